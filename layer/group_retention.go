package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// The retention is carried out by whoever meets an item at the head of its group that has waited too long: a claimer, a
// taker, or a sweep, which goes from head to head. Items behind a head that is not due stay until it is their turn. What
// is in flight is never touched: a claim whose lease lasts keeps its whole group from being looked at.

const (
	// overdueWidth bounds the items that one look reads: with the largest values that is 5 MB.
	overdueWidth = 50
	// overdueItems and overdueBytes bound what a transaction settles on its way to something to deliver, and a step of a
	// sweep: parked items are written again.
	overdueItems = 200
	overdueBytes = 1 << 20
)

// isOverdue reports whether an item has waited too long.
func (w *txn) isOverdue(config *Config, e *envelope) bool {
	return config.Retention > 0 && w.nowMS-e.waitsSince() > config.Retention.Milliseconds()
}

// waitsSince is from when on the item counts as waiting: not while it is delayed.
func (e *envelope) waitsSince() int64 { return max(e.enqueuedMS, e.dueMS) }

// overdue returns those of a group's first rows, from the head on, that have waited too long; up to about overdueBytes.
func (w *txn) overdue(all rows) (rows, error) {
	config, err := w.config()
	if err != nil || config.Retention == 0 {
		return rows{}, err
	}
	size := 0
	for i := range all.len() {
		row := all.at(i)
		if row.err != nil || !w.isOverdue(&config, &row.envelope) {
			return all.first(i), nil // what cannot be read is met by whoever would deliver it
		}
		if size += len(row.Value); i > 0 && size > overdueBytes {
			return all.first(i), nil
		}
	}
	return all, nil
}

// spent reports whether the transaction has settled as much as it may.
func (w *txn) spent() bool {
	return (w.agedItems >= overdueItems || w.agedBytes >= overdueBytes) && !lacks(guardSpent)
}

// expireItems drops or parks a group's first items. r is the group's record, which the caller has read with a conflict: nobody's
// claim whose lease lasts. The holding ends, as a takeover would end it, but a mark stays. free reports whether the group is
// then free, and without a hint.
func (w *txn) expireItems(r *record, old rows) (free bool, err error) {
	config, err := w.config()
	if err != nil {
		return false, err
	}
	out, err := old.delivered()
	if err != nil {
		return false, err
	}
	for i := range out {
		w.agedBytes += len(old.at(i).Value)
	}
	w.agedItems += len(out)
	if err := w.excludeHolders(guardAgeExclude, old.group); err != nil {
		return false, err
	}
	if free, err = w.endBefore(old.group, r, out); err != nil {
		return false, err
	}
	w.tx.Clear(w.q.keys.ready(out[0].index, old.group))
	if config.OnExpiry == DropExpired {
		w.remove(old.group, out, out, false)
		w.count(countAgedOut, len(out))
		return free, nil
	}
	records, err := w.q.readAttempts(w.ctx, w.tx.Snapshot(), old.id(0), old.id(len(out)-1))
	if err != nil {
		return false, err
	}
	reason := "waited longer than " + durationText(config.Retention)
	for i := range out {
		id := old.id(i)
		w.putDeadLetter(&failure{id: id, record: records[id], reason: reason}, old.at(i).Value)
	}
	return free, nil
}

// endBefore ends what holds a group before the items out go. The item that was tried, if it is among them, counts an
// attempt but is not parked: it goes anyway.
func (w *txn) endBefore(group string, r *record, out []delivered) (free bool, err error) {
	if r == nil {
		return true, nil
	}
	if r.holding() == nil {
		return false, nil
	}
	spared := ID{}
	if c := r.claim(); c != nil && len(c.items) > 0 && place(out, c.items[0].id(group), group) >= 0 {
		spared = c.items[0].id(group)
	}
	return w.lapse(group, r, nil, spared)
}

// overduePage returns those of a group's first items that have waited too long, overdueWidth at most. read is what the
// caller has read of them: if all of those are overdue there may be more, and a small take or claim would otherwise go
// through them in small steps.
func (w *txn) overduePage(read rows) (rows, error) {
	old, err := w.overdue(read)
	if err != nil || old.len() < read.len() || read.len() >= overdueWidth {
		return old, err
	}
	found := w.tx.Snapshot().GetRange(read.of.Selectors(), kv.RangeOptions{Limit: overdueWidth})
	pairs, err := found.Wait(w.ctx)
	if err != nil {
		return rows{}, fmt.Errorf("read items: %w", err)
	}
	return w.overdue(w.q.keys.rows(read.group, pairs))
}
