package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// An unordered receive: see store_hold.go.

// checkUnordered checks the options of an unordered receive.
func (o *ReceiveOptions) checkUnordered(q *Queue) error {
	switch {
	case !q.keys.takesAny():
		return errUnordered
	case o.Where != nil:
		return fmt.Errorf("%w: unordered, and a template", ErrOptions)
	case o.Strategy != FillGroup:
		return fmt.Errorf("%w: a strategy for an unordered receive", ErrOptions)
	case o.OnlyIfAny:
		return fmt.Errorf("%w: OnlyIfAny for an unordered receive", ErrOptions)
	case o.State:
		return fmt.Errorf("%w: the state of a group for an unordered receive", ErrOptions)
	}
	return nil
}

// takeHolds claims up to limit free items for r, each by itself.
//
// Footprint: read conflicts on the lock of the group, and on the holds taken; if no free item is left, on the emptiness
// of the free lane. Writes the holds and their timers, takes the items out of the free lane, and moves its hint. If
// items are claimed in turn: see leaveInHand.
func (c *claimer) takeHolds(r *reception, f *found, limit int) error {
	n, size := r.items, r.bytes
	if r.o.Unordered {
		limit = min(limit, r.o.MaxGroups-r.groups)
	}
	items, out, err := c.runWithin(f, limit, func(next int) bool {
		r.stopped = n > 0 && size+next > r.o.MaxBytes
		n, size = n+1, size+next
		return !r.stopped
	})
	if err != nil || len(out) == 0 {
		return err
	}
	if err := c.fenceOver(guardClaimLock, f.lane); err != nil {
		return err
	}
	attempts, err := c.q.readAttempts(c.ctx, c.tx.Snapshot(), items[0].ID, items[len(items)-1].ID)
	if err != nil {
		return err
	}
	lease, err := c.lease(r.o.Lease)
	if err != nil {
		return err
	}
	token, err := c.token(nil)
	if err != nil {
		return err
	}
	end := c.nowMS + lease.Milliseconds()
	if f.record != nil { // a grant
		c.put(f.lane, f.record, nil, 0)
	}
	for i := range items {
		item := &items[i]
		item.FirstDelivered = fromMillis(c.nowMS)
		item.failedBefore(attempts[item.ID])
		if r.o.Unordered {
			if err := guardHold.read(c.tx, kv.SingleKey(c.q.keys.hold(item.ID))); err != nil {
				return err
			}
			c.tx.Clear(c.q.keys.laneItem(f.lane, item.ID))
		}
		c.put(holdLane(item.ID), nil, heldBy(holding{
			kind: kindClaim, token: token, owner: c.q.opts.Owner, endMS: end, items: out[i : i+1 : i+1],
			sinceMS: c.nowMS,
		}, nil), item.ID.Index)
		r.claims = append(r.claims, &Claim{
			Queue: c.q.name, Group: f.group(), Hold: item.ID, Token: token, Items: items[i : i+1 : i+1],
			Until: fromMillis(end),
		})
		r.bytes += len(item.Body)
	}
	r.items += len(items)
	c.taken++
	c.items += len(items)
	c.count(countReceived, len(items))
	if c.q.keys.inTurn() {
		r.groups++
		return c.leaveInHand(f, items[0].ID)
	}
	r.groups += len(items)
	c.clearLead(&f.candidate, nil)
	_, more, err := c.leave(f.lane, nil, guardHoldEmpty, false)
	if err != nil {
		return err
	}
	if delete(c.remains, f.lane); more {
		if c.remains == nil {
			c.remains = make(map[string]bool)
		}
		c.remains[f.lane] = true // for the next that waits
	}
	return nil
}

// leaveInHand clears the hint which led to a group, once a receive has taken hold of the items from the head on.
func (c *claimer) leaveInHand(f *found, head ID) error {
	c.clearLead(&f.candidate, f.record)
	if f.key == nil {
		// Named by the caller: as a rule the group's hint has this key.
		c.tx.Clear(c.q.keys.ready(head.Index, f.lane))
	}
	delete(c.ready, f.lane)
	return c.fenceTurn(f.lane, head)
}

// endHold ends the hold to which a timer led, if its time is over: the item is free again, or a dead letter. Otherwise
// the timer is stale.
func (c *claimer) endHold(l *look) error {
	if c.tired() {
		return nil // left to the next transaction: see claim
	}
	if c.turned[l.lane] {
		l = c.read(l.candidate, 0) // this transaction has changed the hold since the read
	}
	c.met[l.lane] = true
	if free, err := c.txn.endHold(l.candidate, l.lock.lock); err != nil || !free {
		return err
	}
	c.changed(laneName(groupOf(l.lane), c.q.keys.holdWhere()))
	return nil
}

// endHold ends the hold of a candidate, whose record is being read, if its time is over, and returns whether the item
// is free again. Otherwise the timer that led to the hold, if one did, is stale.
func (w *txn) endHold(c candidate, lock kv.Future[[]byte]) (free bool, err error) {
	v, err := lock.Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read hold: %w", err)
	}
	key := w.q.keys.lock(c.lane)
	var r *record
	if v != nil {
		if r, err = unpackRecord(key, v); err != nil {
			return false, err
		}
	}
	if r == nil || r.at(w.nowMS).keeps() {
		if err = guardStaleLock.read(w.tx, kv.SingleKey(key)); err == nil {
			w.clear(c.key)
		}
		if c.key != nil {
			w.done++
		}
		return false, err
	}
	w.done++
	if err := guardHoldEnd.read(w.tx, kv.SingleKey(key)); err != nil {
		return false, err
	}
	w.clearLead(&c, r)
	if free, err = w.lapse(c.lane, r, nil, ID{}); err != nil || !free {
		return false, err
	}
	return true, w.free(c.lane)
}

// namedHolds is how many holds of a group a receive looks at which names the group, to end those whose time is over.
// Others are found by their timers, by receives that name no group.
const namedHolds = 100

// endHolds is endHolds of the transaction, for a claimer.
func (c *claimer) endHolds(group string) (nextMS int64, err error) {
	return c.txn.endHolds(group, func(lane string) error { return c.endHold(c.read(candidate{lane: lane}, 0)) })
}

// endHolds calls end for the first holds of a group whose time is over, and returns when the next of the others ends
// (ms); 0 = there is none. A transaction that is tired leaves the others to the next.
func (w *txn) endHolds(group string, end func(lane string) error) (nextMS int64, err error) {
	rows, err := w.tx.Snapshot().GetRange(
		w.q.keys.holds(group).Selectors(), kv.RangeOptions{Limit: namedHolds}).Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read holds: %w", err)
	}
	for _, row := range rows {
		all, err := w.q.unpackHolds([]kv.KV{row})
		if err != nil {
			return 0, err
		}
		if !all[0].record.at(w.nowMS).keeps() {
			if w.tired() {
				break
			}
			if err := end(all[0].lane); err != nil {
				return 0, err
			}
		} else if h := all[0].record.holding(); h != nil && (nextMS == 0 || h.endMS < nextMS) {
			nextMS = h.endMS
		}
	}
	return nextMS, nil
}
