package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
)

// TakeTx removes up to max items of the oldest ready group in the caller's transaction and returns them: if it
// commits they are finished, if not they were never gone. There is no lease and nothing to ack, so the work
// must be done within the transaction (well under 5 s). It returns nothing if it found no ready group, or so many overdue
// items that they were work enough.
// max is 1 to MaxBatch. The caller answers for an unknown commit: use Once.
//
// A group whose lease or delay has ended is ready, as for Receive: the item that was tried under the claim counts a
// failed attempt, and the claim is lost.
//
// Reads: hints and due timers at snapshot; the lock and the items taken and the one behind them, with conflicts. It
// excludes other takers and claimers of the group by a write conflict on the lock.
func (q *Queue) TakeTx(ctx context.Context, tx kv.Tx, max int) ([]Item, error) {
	if q.closed.Load() {
		return nil, wrap("take", ErrClosed)
	}
	if max < 1 || max > MaxBatch {
		return nil, wrap("take", &LimitError{What: "take", Unit: "items", Got: int64(max), Min: 1, Max: MaxBatch})
	}
	w := q.work(ctx, tx)
	items, err := w.takeTo(max)
	if err == nil {
		err = w.finish()
	}
	if err != nil {
		return nil, wrap("take", err)
	}
	return items, nil
}

// takeProbe is how many hints a take looks at together: the first is nearly always good.
const takeProbe = 2

func (w *work) takeTo(max int) ([]Item, error) {
	s := newSearch(w)
	s.fromTheOldest()
	for {
		found, err := s.next(takeProbe)
		if err != nil || len(found) == 0 {
			return nil, err
		}
		if paused, err := w.paused(); err != nil || paused {
			return nil, err
		}
		for _, c := range found {
			items, err := w.takeFrom(c, max)
			if err != nil || len(items) > 0 {
				return items, err
			}
		}
	}
}

// takeFrom takes from one group. If that is held or empty, the hint or timer is stale and is cleared: the
// serialisable reads make that conflict with a release and with an enqueue.
func (w *work) takeFrom(c candidate, limit int) ([]Item, error) {
	q, tx, ctx, group := w.q, w.tx, w.ctx, c.group
	lockKey := q.keys.lock(group)
	held := guardTakeLock.get(tx, lockKey)
	// One more than wanted, to know what the group begins with afterwards. If there is none, the read has
	// covered the whole rest of the group, and an enqueue into it conflicts.
	found := guardTakeItems.reads(tx).GetRange(q.keys.items(group).Selectors(), kv.RangeOptions{Limit: limit + 1})
	pace := q.readPace(tx.Snapshot(), group)
	v, err := held.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read lock: %w", err)
	}
	rows, err := found.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	var l *lock
	if v != nil {
		if l, err = unpackLock(lockKey, v); err != nil {
			return nil, nil // there is no telling whether it is held: Check names it
		}
	}
	switch {
	case l != nil && l.endMS > w.nowMS, l == nil && c.timer:
		w.clear(c.key)
		return nil, nil
	case len(rows) == 0:
		w.clear(c.key)
		if l != nil {
			w.unlock(group, l)
		}
		return nil, nil
	case l != nil && l.mark != nil:
		w.clear(c.key)
		_, err := w.lapse(group, l, ID{})
		return nil, err
	}
	if old, err := w.overdue(rows); err != nil || len(old) > 0 {
		if err != nil {
			return nil, err
		}
		return w.takeOverdue(c, l, old, limit)
	}
	config, err := w.config()
	if err != nil {
		return nil, err
	}
	if l != nil && l.kind == kindClaim {
		f, err := w.judgeTried(group, l, lapsed(l))
		if err != nil {
			return nil, err
		}
		if f.parksItem() || f.parksGroup() {
			return w.takeBehind(c, l, limit)
		}
	}
	untilMS, err := w.early(rows[0])
	if err != nil {
		return nil, err
	}
	allowed, err := w.allow(group, pace)
	if err != nil {
		return nil, err
	}
	if untilMS = max(untilMS, allowed.untilMS); untilMS > w.nowMS {
		if l != nil {
			if _, err := w.lapse(group, l, ID{}); err != nil {
				return nil, err
			}
		}
		return nil, w.awaitHead(c.key, rows[0], untilMS)
	}
	var items []Item
	var taken []delivered
	size := 0
	for _, row := range rows[:min(limit, len(rows), allowed.items)] {
		item, err := q.readItem(ctx, tx.Snapshot(), row)
		if err != nil {
			return nil, err
		}
		e, _, err := openEnvelope(row.Value)
		if err != nil {
			return nil, corrupt(row.Key, err)
		}
		if e.dueMS > w.nowMS {
			break // what is behind it waits, too
		}
		if len(items) > 0 && w.isOverdue(&config, &e) {
			break
		}
		if size += len(item.Body); len(items) > 0 && size > DefaultMaxBytes {
			break
		}
		items = append(items, item)
		taken = append(taken, delivered{index: item.ID.Index, random: item.ID.Random, parts: e.parts})
	}
	if l == nil && items[0].ID.Index == c.index {
		items[0].Attempts = c.attempts
	}
	if err := w.excludeHolders(guardTakeExclude, group); err != nil {
		return nil, err
	}
	if l != nil {
		if _, err := w.lapse(group, l, ID{}); err != nil {
			return nil, err
		}
	}
	if l != nil || c.head {
		// What the hint would have said; the failure just counted is seen.
		attempts, err := q.readAttempts(ctx, tx.Snapshot(), items[0].ID, items[len(items)-1].ID)
		if err != nil {
			return nil, err
		}
		for i := range items {
			items[i].Attempts = attempts[items[i].ID].count
		}
	}
	archived, err := w.archives()
	if err != nil {
		return nil, err
	}
	if archived {
		values := make([][]byte, len(taken))
		for i := range values {
			values[i] = rows[i].Value
		}
		if err := w.archive(group, taken, values); err != nil {
			return nil, err
		}
	}
	w.remove(group, taken, taken, archived)
	w.spend(group, allowed, len(taken))
	w.clear(c.key)
	delete(w.ready, group)
	if len(rows) > len(taken) {
		p, err := q.keys.parse(rows[len(taken)].Key)
		if err != nil {
			return nil, err
		}
		if err := w.rehint(p.index, group, 0); err != nil {
			return nil, err
		}
	}
	w.count(countTaken, len(taken))
	return items, nil
}

// takeBehind ends an expired claim whose tried item has failed for good, and takes what is left of the group, if that is
// not parked.
func (w *work) takeBehind(c candidate, l *lock, max int) ([]Item, error) {
	free, err := w.lapse(c.group, l, ID{})
	if err != nil {
		return nil, err
	}
	return w.takeRest(c, free, max)
}

// takeRest takes what is left of a group whose head has been settled, if the group is free.
func (w *work) takeRest(c candidate, free bool, max int) ([]Item, error) {
	w.clear(c.key)
	if !free {
		return nil, nil
	}
	behind, found, err := w.freed(c.group)
	if err != nil || !found {
		return nil, err
	}
	return w.takeFrom(behind, max)
}

// takeOverdue is settleOverdue for a taker, of the overdue rows among the max and one that it has read. If all of those are
// overdue there may be more, and a small take would go through them in small steps.
func (w *work) takeOverdue(c candidate, l *lock, rows []kv.KV, max int) ([]Item, error) {
	if w.spent() {
		return nil, nil
	}
	if len(rows) > max && len(rows) < overdueWidth {
		var err error
		if rows, err = w.overduePage(c.group); err != nil {
			return nil, err
		}
	}
	free, err := w.ageOut(c.group, l, rows)
	if err != nil {
		return nil, err
	}
	return w.takeRest(c, free, max)
}
