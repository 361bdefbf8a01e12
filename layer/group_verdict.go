package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// verdict is what a receive or a take may do with a group to which a hint, a timer or a grant led.
type verdict int

const (
	verdictDeliver  verdict = iota
	verdictStale            // somebody holds the group, or the holding which led here is gone
	verdictEmpty            // no items: what is left of a holding is cleared
	verdictAged             // the head has waited longer than the queue's retention
	verdictEnds             // a claim's end dead-letters the item, halts the group, or begins a mark
	verdictEarly            // the head is not due, or the group's rate is used up
	verdictExcluded         // an intersecting lane is held
	verdictOther            // an intersecting lane is under a holding that has ended
)

// found is a group under examination: what led here, the reads, and the conclusions.
type found struct {
	candidate
	record *record
	others []heldLane        // the locks of intersecting lanes
	other  int               // of excluded and other: which of others
	rows   rows              // up to the first that is held by itself
	behind *ID               // the item at which rows was cut, because it is held by itself; nil = rows was not cut
	pace   kv.Future[[]byte] // nil if the queue has no rate, as far as was known
	// fenced says: the reads were serialisable, so the read conflicts which a verdict needs exist already.
	fenced bool

	verdict verdict
	failure *failure  // of the item tried under a lapsed claim; nil = none
	untilMS int64     // of early: when the group is due
	allowed allowance // of deliver
}

// dueMS returns when the time ends which keeps the group from receives; 0 = no time does.
func (f *found) dueMS() int64 {
	switch {
	case f == nil:
		return 0
	case f.verdict == verdictEarly:
		return f.untilMS
	}
	r := f.record
	if f.verdict == verdictExcluded {
		r = f.others[f.other].record
	}
	if h := r.holding(); h != nil {
		return h.endMS
	}
	return 0
}

// assess sets the verdict. It writes nothing.
func (w *txn) assess(f *found) error {
	cond := f.record.at(w.nowMS)
	if lacks(guardLease) && cond == claimed {
		cond = lapsed
	}
	switch {
	case f.accepts(f.record) && f.rows.len() > 0:
	case f.accepts(f.record): // granted, and emptied since
		f.verdict = verdictEmpty
		return nil
	case cond.keeps(), cond == unheld && f.timer, f.grant != 0:
		// Held by another, a timer of a holding that is gone, or a grant that was lost.
		f.verdict = verdictStale
		return nil
	case f.rows.len() == 0 && f.record.bears() == nil:
		f.verdict = verdictEmpty
		return nil
	}
	if w.assessOthers(f) {
		return nil
	}
	if f.record.bears() == nil {
		old, err := w.overdue(f.rows.first(1))
		if err != nil || old.len() > 0 {
			f.verdict = verdictAged
			return err
		}
	}
	if c := f.record.claim(); c != nil && len(c.items) > 0 {
		var err error
		if f.failure, err = w.judgeTried(f.lane, c, c.lapseText()); err != nil {
			return err
		}
	}
	if f.record.bears() != nil || f.failure.endsItem() || f.failure.haltsGroup() {
		f.verdict = verdictEnds
		return nil
	}
	return w.assessHead(f)
}

// assessHead is assess for a group which nothing but its head or its rate may delay.
func (w *txn) assessHead(f *found) (err error) {
	head := f.rows.at(0)
	if head.err != nil {
		return head.err
	}
	if f.allowed, err = w.allow(f.group(), f.pace); err != nil {
		return err
	}
	if f.untilMS = max(head.dueMS, f.allowed.untilMS); f.untilMS > w.nowMS {
		f.verdict = verdictEarly
	}
	return nil
}

// fence adds the read conflict which keeps a verdict true, unless the reads have the conflict already.
func (f *found) fence(w *txn, g guard, r kv.KeyRange) error {
	if f.fenced {
		return nil
	}
	return g.read(w.tx, r)
}

// fenceOver is fence for the locks of all lanes that may share an item with the lane.
func (f *found) fenceOver(w *txn, g guard) error {
	if f.fenced {
		return nil
	}
	return w.fenceOver(g, f.lane)
}

// putsOff reports whether a verdict is left to a later transaction, because this one has carried out enough of them.
func (w *txn) putsOff(f *found) bool {
	switch f.verdict {
	case verdictDeliver:
		return false
	case verdictAged:
		return w.spent() || w.enough()
	case verdictOther:
		return w.tired() || w.enough()
	case verdictExcluded, verdictEnds, verdictEarly:
		return f.record != nil && w.tired() || w.enough()
	case verdictStale, verdictEmpty:
	}
	return w.enough()
}

// clears reports whether dispose clears anything: what led to the lane, a holding, items. Of an excluded lane
// disposeExcluded says so.
func (f *found) clears() bool {
	switch f.verdict {
	case verdictAged, verdictEnds, verdictOther:
		return true
	case verdictStale:
		return f.key != nil
	case verdictEmpty, verdictEarly:
		return f.key != nil || f.record != nil
	case verdictDeliver, verdictExcluded:
	}
	return false
}

// dispose carries out every verdict but deliver. behind is the hint of the group's next head if the head may be
// deliverable at once; else nil.
//
// Footprint: a read conflict on what makes the verdict true: the lock, or the emptiness of the group, or the gap up to
// a head not yet due. Otherwise dispose could clear a hint which a release writes again at the same time.
func (w *txn) dispose(f *found) (behind *candidate, err error) {
	key, free := kv.SingleKey(w.keys.lock(f.lane)), false
	if f.clears() {
		w.done++
	}
	switch f.verdict {
	case verdictDeliver:
		return nil, nil
	case verdictExcluded:
		return w.disposeExcluded(f)
	case verdictOther:
		return w.endOther(f)
	case verdictStale:
		if err = f.fence(w, guardStaleLock, key); err == nil {
			w.clear(f.key)
		}
		return nil, err
	case verdictEmpty:
		// An enqueue into the empty group writes a hint, which may have this very key.
		if err = f.fence(w, guardStaleEmpty, f.rows.of); err == nil && f.record != nil {
			if err = f.fence(w, guardEmptyLock, key); err == nil {
				w.end(f.lane, f.record, nil)
			}
		}
	case verdictAged:
		free, err = w.disposeAged(f)
	case verdictEnds:
		g := guardMarkLock
		if f.record.mark == nil && f.failure.endsItem() {
			g = guardParkLock
		}
		if err = f.fence(w, g, key); err == nil {
			free, err = w.lapse(f.lane, f.record, f.failure, ID{})
		}
	case verdictEarly:
		return nil, w.disposeEarly(f)
	}
	if err != nil {
		return nil, err
	}
	return w.leadOn(f, free)
}

// leadOn clears what led to a lane; of a lane that is free then, leadOn leaves a new hint if there are items, and
// returns it.
func (w *txn) leadOn(f *found, free bool) (behind *candidate, err error) {
	w.clearLead(&f.candidate, f.record)
	if !free {
		return nil, nil
	}
	c, found, err := w.leave(f.lane, nil, guardFreeEmpty, true)
	if err != nil || !found {
		return nil, err
	}
	return &c, nil
}

func (w *txn) disposeAged(f *found) (free bool, err error) {
	old, err := w.overduePage(f)
	if err != nil {
		return false, err
	}
	if err := f.fenceOver(w, guardOverdueLock); err != nil {
		return false, err
	}
	if err := w.fenceHolds(guardOverdueHold, f.lane, old.id(old.len()-1)); err != nil {
		return false, err
	}
	w.wrote = true
	return w.expireItems(f.record, old)
}

// disposeEarly leaves a group to the timer of its head.
func (w *txn) disposeEarly(f *found) error {
	if f.key == nil && f.record == nil {
		return nil // named by the caller: the hint or timer stays right
	}
	if err := f.fenceOver(w, guardEarlyLock); err != nil {
		return err
	}
	if f.record != nil {
		if _, err := w.lapse(f.lane, f.record, f.failure, ID{}); err != nil {
			return err
		}
	}
	w.clearLead(&f.candidate, f.record)
	return w.awaitHead(f.lane, nil, f.rows.id(0), f.rows.timing(f.untilMS))
}

// clearLead clears the key which led to a group, unless put clears the key: the timer or grant of the group's record.
func (w *txn) clearLead(c *candidate, r *record) {
	if h := r.holding(); h != nil {
		if c.grant != 0 && c.accepts(r) || c.timer && !h.byBeat() &&
			string(c.key) == string(w.keys.timer(h.endMS, c.lane)) {
			w.cleared = true
			return
		}
	}
	w.clear(c.key)
}

// run returns the items, from the head on, which may be delivered together: up to limit, and as long as the items fit.
// fits is given the bytes of the next body; run returns nothing if fits refuses the first item.
func (w *txn) run(f *found, limit int, fits func(size int) bool) (items []Item, out []delivered, err error) {
	config, err := w.config()
	if err != nil {
		return nil, nil, err
	}
	n, stored := min(f.rows.len(), limit, f.allowed.items), 0
	items, out = make([]Item, 0, n), make([]delivered, 0, n)
	for i := range n {
		row := f.rows.at(i)
		if row.err != nil {
			if len(out) > 0 {
				break // the items before the unreadable item can be delivered
			}
			return nil, nil, row.err
		}
		e := &row.envelope
		if row.dueMS > w.nowMS {
			break // later items wait behind the delayed item
		}
		if len(out) > 0 && w.isOverdue(&config, e) {
			break // an item past retention is handled once it is the head
		}
		if stored += len(row.Value); config.Archive > 0 && len(out) > 0 && stored > archiveClaimBytes {
			break // the ack writes all items again
		}
		if !fits(max(len(row.body), int(e.size))) {
			break
		}
		item, err := w.q.assemble(w.ctx, w.tx.Snapshot(), row.delivered.id(f.group()), *e, row.body, config.retro())
		if err != nil {
			if len(out) > 0 && isCorrupt(err) {
				break
			}
			return nil, nil, err
		}
		items, out = append(items, item), append(out, row.delivered)
	}
	return items, out, nil
}

// await waits for the reads of a group.
func (w *txn) await(c candidate, lock laneLock, items kv.Future[[]kv.KV]) (*found, error) {
	f := &found{candidate: c}
	if err := lock.wait(w, f); err != nil {
		return nil, err
	}
	pairs, err := items.Wait(w.ctx)
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	if f.rows, err = w.rows(c.lane, pairs); err != nil {
		return nil, err
	}
	return f, f.meetHold(w, lock.hold)
}
