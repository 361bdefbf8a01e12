package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// Whoever meets an item past retention at the head of a group carries the retention out: a claimer, a taker, or a
// sweep, which goes from head to head. Items behind a head within retention stay until their turn. Items in flight are
// never touched: nobody looks at a group under a claim whose lease has not ended.

// isOverdue reports whether an item is past retention.
func (w *txn) isOverdue(config *Config, e *envelope) bool {
	return config.Retention > 0 && w.nowMS-config.retro().waitsSince(e) > config.Retention.Milliseconds()
}

// waitsSince returns since when (ms) the item counts as waiting. A delay does not count.
func (r retro) waitsSince(e *envelope) int64 { return max(e.enqueuedMS, r.due(e)) }

// overdue returns the first rows of a group which are past retention, from the head on; up to about overdueBytes.
func (w *txn) overdue(all rows) (rows, error) {
	config, err := w.config()
	if err != nil || config.Retention == 0 {
		return rows{}, err
	}
	size := 0
	for i := range all.len() {
		row := all.at(i)
		if row.err != nil || !w.isOverdue(&config, &row.envelope) {
			return all.first(i), nil // whoever would deliver an unreadable item reports the error
		}
		if size += len(row.Value); i > 0 && size > overdueBytes {
			return all.first(i), nil
		}
	}
	return all, nil
}

// expireItems drops or dead-letters a group's first items. r is the group's record, read by the caller with a conflict,
// and not a claim whose lease lasts. The holding ends, as at a takeover, but a mark stays. free means: the group is
// free, and has no hint yet.
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
	if err := w.excludeHolders(guardAgeExclude, old.lane); err != nil {
		return false, err
	}
	if free, err = w.endBefore(old.lane, r, out); err != nil {
		return false, err
	}
	w.tx.Clear(w.q.keys.ready(out[0].index, old.lane))
	if config.OnExpiry == DropExpired {
		w.remove(old.group, out, out, false)
		w.count(countAgedOut, len(out))
		w.changeAll(ChangeExpired, old.group, out)
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

// endBefore ends the holding of a group because the items out are about to be removed. If out contains the item which
// was tried, the attempt counts, but does not dead-letter the item, because the item is removed anyway.
func (w *txn) endBefore(lane string, r *record, out []delivered) (free bool, err error) {
	if r == nil {
		return true, nil
	}
	if r.holding() == nil {
		return false, nil
	}
	spared := ID{}
	if c := r.claim(); c != nil && len(c.items) > 0 && place(out, c.items[0].id(groupOf(lane)), groupOf(lane)) >= 0 {
		spared = c.items[0].id(groupOf(lane))
	}
	return w.lapse(lane, r, nil, spared)
}

// overduePage returns the group's first items which are past retention, about overdueWidth at most. f holds the items
// read by the caller. If all of them are past retention, overduePage reads more, because a small take or claim would
// otherwise remove the items in many small steps, one after the other. What is behind the first item held by itself
// stays.
func (w *txn) overduePage(f *found) (rows, error) {
	old, err := w.overdue(f.rows)
	width := w.most(overdueWidth)
	if err != nil || old.len() < f.rows.len() || f.rows.len() >= width || f.behind != nil {
		return old, err
	}
	tx := w.tx.Snapshot()
	page := &found{candidate: f.candidate}
	pairs, hold := w.q.readItems(tx, tx, f.lane, width), kv.Future[[]kv.KV](nil)
	if !isPart(f.lane) {
		hold = w.q.firstHold(tx, f.lane)
	}
	read, err := pairs.Wait(w.ctx)
	if err != nil {
		return rows{}, fmt.Errorf("read items: %w", err)
	}
	if page.rows, err = w.rows(f.lane, read); err != nil {
		return rows{}, err
	}
	if err := page.meetHold(w, hold); err != nil {
		return rows{}, err
	}
	return w.overdue(page.rows)
}
