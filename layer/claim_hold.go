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
			kind: kindClaim, token: token, owner: c.q.opts.Owner, endMS: end, items: out[i : i+1 : i+1], sinceMS: c.nowMS,
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
	// A look at the free items that is under way has not seen this one: it must be read again. If none is, the hint just
	// written is to lead to a new look.
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

// letGo puts the item of a hold that has ended back among the free items of its group, if the item is still there.
func (w *txn) letGo(lane string) error {
	id, _ := holdOf(lane)
	v, err := w.tx.Snapshot().Get(w.q.keys.item(id)).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read item: %w", err)
	}
	if v == nil {
		return nil
	}
	free := freeLane(id.Group)
	w.tx.Set(w.q.keys.laneItem(free, id), nil)
	_, err = w.rehint(id.Index, free, 0)
	return err
}

// firstHold is the read of the first hold of a group; nil if the queue has none.
func (q *Queue) firstHold(tx kv.ReadTx, group string) kv.Future[[]kv.KV] {
	if !q.keys.hasHolds() {
		return nil
	}
	return tx.GetRange(q.keys.holds(group).Selectors(), kv.RangeOptions{Limit: 1})
}

// meetHold notes the first hold of the group, which f is to be delivered up to: if the head is held, as a lock that
// excludes.
func (f *found) meetHold(w *txn, read kv.Future[[]kv.KV]) error {
	if read == nil {
		return nil
	}
	rows, err := read.Wait(w.ctx)
	if err != nil || len(rows) == 0 {
		return err
	}
	all, err := w.q.unpackHolds(rows)
	if err != nil {
		return err
	}
	id, _ := holdOf(all[0].lane)
	if f.rows.len() > 0 && f.rows.id(0) == id {
		f.others = append(f.others, all[0])
	}
	for i := range f.rows.len() {
		if f.rows.id(i) == id {
			if f.rows = f.rows.first(max(i, 1)); i > 0 {
				f.behind = &id
			}
			break
		}
	}
	return nil
}

// unpackHolds reads the records of holds.
func (q *Queue) unpackHolds(rows []kv.KV) ([]heldLane, error) {
	all := make([]heldLane, 0, len(rows))
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return nil, err
		}
		r, err := unpackRecord(row.Key, row.Value)
		if err != nil {
			return nil, err
		}
		all = append(all, heldLane{lane: p.lane, record: r})
	}
	return all, nil
}

// readHolds reads the holds of a group from one item to another, both included, with a conflict.
func (w *txn) readHolds(g guard, r kv.KeyRange) ([]heldLane, error) {
	if !w.q.keys.hasHolds() {
		return nil, nil
	}
	rows, err := g.reads(w.tx).GetRange(r.Selectors(), kv.RangeOptions{}).Wait(w.ctx)
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	return w.q.unpackHolds(rows)
}

// fenceHolds adds a read conflict on the holds of a group up to an item, which are known to hold nothing of what the
// caller is about to take.
func (w *txn) fenceHolds(g guard, lane string, last ID) error {
	if !w.q.keys.hasHolds() || isHold(lane) {
		return nil
	}
	return g.read(w.tx, w.q.keys.holdsTo(last))
}
