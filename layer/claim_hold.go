package layer

import (
	"fmt"
	"slices"

	"fdbfifo/kv"
)

// An unordered receive: see store_hold.go.

// checkUnordered checks the options of an unordered receive.
func (o *ReceiveOptions) checkUnordered(q *Queue) error {
	switch {
	case !q.keys.hasHolds():
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
// of the free lane. Writes the holds and their timers, takes the items out of the free lane, and moves its hint.
func (c *claimer) takeHolds(r *reception, f *found, limit int) error {
	n, size := r.items, r.bytes
	limit = min(limit, r.o.MaxGroups-len(r.claims))
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
	for i := range items {
		item := &items[i]
		item.FirstDelivered = fromMillis(c.nowMS)
		item.failedBefore(attempts[item.ID])
		if err := guardHold.read(c.tx, kv.SingleKey(c.q.keys.hold(item.ID))); err != nil {
			return err
		}
		c.tx.Clear(c.q.keys.laneItem(f.lane, item.ID))
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
	c.clearLead(&f.candidate, nil)
	if _, _, err := c.leave(f.lane, nil, guardHoldEmpty, false); err != nil {
		return err
	}
	c.taken++
	c.items += len(items)
	c.count(countReceived, len(items))
	return nil
}

// endHold ends the hold to which a timer led, if its time is over: the item is free again, or a dead letter. Otherwise
// the timer is stale.
func (c *claimer) endHold(l *look) error {
	c.met[l.lane] = true
	v, err := l.lock.lock.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read hold: %w", err)
	}
	key := c.q.keys.lock(l.lane)
	var r *record
	if v != nil {
		if r, err = unpackRecord(key, v); err != nil {
			return err
		}
	}
	if r == nil || r.at(c.nowMS).keeps() {
		if err := guardStaleLock.read(c.tx, kv.SingleKey(key)); err == nil {
			c.clear(l.key)
		}
		return err
	}
	if err := guardHoldEnd.read(c.tx, kv.SingleKey(key)); err != nil {
		return err
	}
	c.clearLead(&l.candidate, r)
	free, err := c.lapse(l.lane, r, nil, ID{})
	if err != nil || !free {
		return err
	}
	if err := c.free(l.lane); err != nil {
		return err
	}
	// A look at the free items that is under way has not seen this one: it must be read again. If none is, the hint
	// just written is to lead to a new look.
	lane := freeLane(groupOf(l.lane))
	if slices.ContainsFunc(c.looks, func(l *look) bool { return l.lane == lane }) {
		c.met[lane] = true
	} else {
		delete(c.met, lane)
	}
	return nil
}

// namedHolds is how many holds of a group a receive looks at which names the group, to end those whose time is over.
// Others are found by their timers, by receives that name no group.
const namedHolds = 100

// endHolds ends the first holds of a group whose time is over.
func (c *claimer) endHolds(group string) error {
	rows, err := c.tx.Snapshot().GetRange(
		c.q.keys.holds(group).Selectors(), kv.RangeOptions{Limit: namedHolds}).Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read holds: %w", err)
	}
	for _, row := range rows {
		all, err := c.q.unpackHolds([]kv.KV{row})
		if err != nil {
			return err
		}
		if !all[0].record.at(c.nowMS).keeps() {
			if err := c.endHold(c.read(candidate{lane: all[0].lane}, 0)); err != nil {
				return err
			}
		}
	}
	return nil
}
