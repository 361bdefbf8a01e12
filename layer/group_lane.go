package layer

import (
	"fmt"
	"maps"
	"slices"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
)

// Lanes of one group may be held at the same time if no item can be in both. A lane cannot be claimed while another
// lane that may share an item is held: the hint that led to the lane is then moved under the lock of that other lane.
// There it is a kept hint, and the release of the lock moves it back. Until then the hint leads no receive to the lane,
// so no receive looks there in vain. A timer at the end of the lock's holding also leads to the lane of a kept hint,
// for the case that the lock is not released. Two lanes that may share an item intersect. In a queue with
// lease_per=item there are no kept hints: see disposeInHand.
//
// A transaction that puts a hint aside has a read conflict on the lock. A transaction that releases a lock reads the
// hints put aside under the lock with a conflict. So neither of the two can lose a hint.

// clearItem clears the item with this id, and its keys in lanes (lane). Its parts and attempts stay. facets are the
// packed facets that the item has now, not those of the message as it was sent. In a queue with facets, "" means that
// they are not known: then the keys in lanes stay. by is the lane whose claim has the item, or the group. If by is a
// hold (the claim of a single item) of an unordered queue, the hold has taken the item out of its lanes already.
// clearItem notes the lanes that may lose their head: see txn.vacate.
func (w *txn) clearItem(by string, id ID, facets string) {
	w.tx.Clear(w.keys.item(id))
	of, parts := w.keys.plan.Leaving(by, facets)
	w.vacate(id.Index, of)
	for _, lane := range parts {
		w.tx.Clear(w.keys.laneItem(lane, id))
	}
}

// fenceOver adds read conflicts on the locks of all lanes that intersect the given lane, its own included. In a queue
// in which each group is one lane, that is the group's lock alone. g is the guard of the range with the lane's own
// lock. The other conflicts have the guard OverLock. Holds are left to fenceHolds.
func (w *txn) fenceOver(g guard.Guard, lane string) error {
	own := w.keys.lock(lane)
	for _, r := range w.keys.over(lane) {
		of := guard.OverLock
		if r.Contains(own) {
			of = g
		}
		if err := of.Read(w.tx, r); err != nil {
			return err
		}
	}
	return nil
}

// assessOthers sets the verdict if the lock of an intersecting lane (f.others) keeps the lane from being claimed.
// decided: it has set the verdict. A lock whose time is over must be ended first (verdictOther). A lock that is in
// force gives verdictExcluded.
func (w *txn) assessOthers(f *found) (decided bool) {
	for i := range f.others {
		if !f.others[i].record.At(w.nowMS).Keeps() {
			f.verdict, f.other = verdictOther, i
			return true
		}
	}
	if len(f.others) > 0 {
		f.verdict, f.other = verdictExcluded, 0
		return true
	}
	return false
}

// endOther carries out verdictOther: it ends the expired claim, or the delay or grant that is over, of the intersecting
// lane f.others[f.other]. If that lane is free then, it gets a hint, so that its own receives find it. behind is the
// candidate of f: the caller must look at the lane of f again.
//
// Footprint: a read conflict on the other lane's lock; else as lapse and free.
func (w *txn) endOther(f *found) (behind *candidate, err error) {
	w.chores.done++
	other := f.others[f.other]
	if err := f.fence(w, guard.OtherLock, kv.SingleKey(w.keys.lock(other.lane))); err != nil {
		return nil, err
	}
	if err := w.lapseAndFree(other.lane, other.record); err != nil {
		return nil, err
	}
	again := f.candidate
	return &again, nil
}

// disposeExcluded carries out verdictExcluded: the lock of an intersecting lane keeps the lane from a claim.
// disposeExcluded clears the hint or timer that led to the lane, and writes a kept hint under that lock. If the lock
// has a holding, it also sets a timer of the lane at the end of the holding, for the case that the lock is not
// released. behind is nil. There are other cases:
//
//   - The lane has a lock whose time is over, or a grant to this handle: disposeExcluded ends that, and behind is the
//     hint that leadOn has written.
//   - The caller has named the lane, or the lock has maxKept hints already: the hint stays (f.left), and nothing is
//     written.
//   - Items are claimed in turn: disposeInHand.
//
// Footprint: a read conflict on the other lane's lock, so that the hint is not put aside under a lock which has just
// been released. In the first case it is on the lane's own lock. There is none if the hint stays.
func (w *txn) disposeExcluded(f *found) (behind *candidate, err error) {
	if f.record != nil { // a claim that has lapsed, a delay or grant that is over, or a grant to this handle
		if err := f.fence(w, guard.OtherLock, kv.SingleKey(w.keys.lock(f.lane))); err != nil {
			return nil, err
		}
		w.chores.done++
		free, err := w.lapse(f.lane, f.record, nil, ID{})
		if err != nil {
			return nil, err
		}
		return w.leadOn(f, free)
	}
	if f.key == nil {
		f.left = true
		return nil, nil // named by the caller: the hint stays, wherever it is
	}
	if !w.keys.plan.KeepsHints() {
		return nil, w.disposeInHand(f)
	}
	other := f.others[f.other]
	if full, err := w.keepsMany(other.lane); err != nil || full {
		f.left = true
		return nil, err
	}
	if err := f.fence(w, guard.KeptLock, kv.SingleKey(w.keys.lock(other.lane))); err != nil {
		return nil, err
	}
	w.clear(f.key)
	delete(w.noted.ready, f.lane)
	w.tx.Set(w.keys.kept(other.lane, f.lane, f.index), packHint(f.attempts))
	w.chores.done++
	if h := other.record.Holding(); h != nil {
		w.timeHead(f.lane, f.index, h.EndMS)
	}
	return nil, nil
}

// maxKept bounds the hints that are put aside under one lock, because the release of the lock puts all of them back in
// its transaction. Further hints stay where they are, and cost each claim by their templates a look. Claims at the same
// time may put aside a few more.
const maxKept = 100

// keepsMany reports whether maxKept or more hints are put aside under the lock of the lane holder. It reads one kept
// key, at snapshot.
func (w *txn) keepsMany(holder string) (bool, error) {
	kept := w.keys.keptUnder(holder)
	last := kv.FirstGreaterOrEqual(kept.Begin)
	last.Offset += maxKept - 1
	key, err := w.read.GetKey(last).Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read kept hints: %w", err)
	}
	return kept.Contains(key), nil
}

// locksOf reads the records of the whole group and of the other lanes given, for an operator's change of items of these
// lanes, in a group that the operator does not hold. It adds a read conflict on all locks of the group. The caller must
// also write a conflict on the lock of the whole group, which every claim of the group reads. Together these exclude
// every claim and release in the group until the commit. A group may have thousands of locks: locksOf reads no others.
func (w *txn) locksOf(g guard.Guard, group string, parts []string) (all []heldLane, err error) {
	ranges := w.keys.locksOf(group, parts)
	if len(ranges) > 1 {
		if err := g.Read(w.tx, w.keys.locks(group)); err != nil {
			return nil, err
		}
	}
	return w.recordsIn(g, ranges)
}

// recordsIn reads the locks and holds in the ranges, with a read conflict by the guard g, and returns their records.
func (w *txn) recordsIn(g guard.Guard, ranges []kv.KeyRange) ([]heldLane, error) {
	rows, _, err := w.guarded(g).rowsOf(ranges, 0)
	if err != nil {
		return nil, fmt.Errorf("read locks: %w", err)
	}
	return w.unpackHolds(rows)
}

// straysMost bounds the lanes in which a call looks for items that cannot be read: see strayFacets.
const straysMost = 1000

// strayFacets returns the packed facets of an item whose value cannot be read, as far as they show in the keys of the
// item in lanes; "" = there is no such key. It reads the first key of each lane of the group, and the item's key there,
// at snapshot. If the group has more than most lanes, the error is a *LimitError.
func strayFacets(v *view, id ID, most int64) (string, error) {
	rest, found := v.keys.lanesIn(id.Group), make(map[string]string)
	for range most + 1 {
		rows, err := v.read.GetRange(rest.Selectors(), kv.RangeOptions{Limit: 1}).Wait(v.ctx)
		if err != nil {
			return "", fmt.Errorf("read lanes: %w", err)
		}
		if len(rows) == 0 {
			if len(found) == 0 {
				return "", nil
			}
			return v.keys.plan.Pack(found), nil
		}
		p, err := v.keys.parse(rows[0].Key)
		if v.skipsRow(err) {
			rest.Begin = kv.KeyAfter(rows[0].Key)
			continue
		}
		there, err := v.read.Get(v.keys.laneItem(p.lane, id)).Wait(v.ctx)
		if err != nil {
			return "", fmt.Errorf("read key in lane: %w", err)
		}
		if there != nil {
			maps.Copy(found, v.keys.plan.TemplateOf(p.lane))
		}
		rest.Begin = v.keys.items(p.lane).End
	}
	return "", &LimitError{What: "lanes of the group", Unit: "lanes", Got: most + 1, Max: most}
}

// locksBeside returns the records of the lanes, except the given one, of which a claim may have an item: its group, the
// lanes of its facets, and its hold. facets are the item's packed facets. It reads their locks with a conflict by the
// guard g. If there may be such lanes, it adds a read conflict on all locks of the group. In a queue with facets, the
// facets of an unreadable item are not known: then locksBeside looks at all locks of the group for a claim that has the
// item. With too many locks the error is a *LimitError.
func (w *txn) locksBeside(g guard.Guard, lane string, id ID, facets string) (all []heldLane, err error) {
	over, others := w.keys.lanesOver(id, facets)
	over = slices.DeleteFunc(over, func(of string) bool { return of == lane })
	reads := make([]kv.Future[[]byte], len(over))
	for i, of := range over {
		reads[i] = g.Get(w.tx, w.keys.lock(of))
	}
	if len(over) > 0 || others {
		if err := g.Read(w.tx, w.keys.locks(id.Group)); err != nil {
			return nil, err
		}
	}
	for i, of := range over {
		r, err := w.waitLock(of, reads[i])
		if err != nil {
			return nil, err
		}
		if r != nil {
			all = append(all, heldLane{lane: of, record: r})
		}
	}
	if !others {
		return all, nil
	}
	claims, err := claimsWith(&w.view, id.Group, []ID{id})
	claims = slices.DeleteFunc(claims, func(held heldLane) bool {
		return held.lane == lane || slices.Contains(over, held.lane)
	})
	return append(all, claims...), err
}

// claimsWith returns the claims, of all lanes of a group, that have one of the items. It is for items whose lanes are
// not known. It reads the locks of the group by v.read, page by page, until it has found a claim for each item. If the
// group has more than maxPassed locks, or passedBytes, the error is a *LimitError.
func claimsWith(v *view, group string, ids []ID) (all []heldLane, err error) {
	var read locksRead
	sought := slices.Clone(ids)
	for row, err := range walk(v.ctx, v.read, v.keys.locks(group), locksOfPage) {
		if err != nil {
			return nil, fmt.Errorf("read locks: %w", err)
		}
		if read.add(row); read.over() {
			return nil, read.limit()
		}
		held, err := v.unpackHolds([]kv.KV{row})
		if err != nil {
			return nil, err
		}
		n := len(sought)
		sought = slices.DeleteFunc(sought, func(id ID) bool { return hasItem(held[0].record.Claim(), id) })
		if len(sought) < n {
			all = append(all, held...)
		}
		if len(sought) == 0 {
			break
		}
	}
	return all, nil
}

// inOtherLane reports whether an item is in a claim of a lane other than the given one, or has a hold. An expired claim
// counts, too. A hold is the claim or the delay of a single item. facets are the item's packed facets. inOtherLane adds
// the read conflicts of locksBeside.
func (w *txn) inOtherLane(g guard.Guard, lane string, id ID, facets string) (bool, error) {
	all, err := w.locksBeside(g, lane, id, facets)
	return slices.ContainsFunc(all, func(held heldLane) bool {
		// A hold may be a delay of the item after a nack: such a record lists no items.
		return held.lane == holdLane(id) || hasItem(held.record.Claim(), id)
	}), err
}

// hintLanes makes an item findable in all its lanes, after it has come to its place. It writes the key of the item in
// each lane that is no whole group, and a hint of each lane. facets are the packed facets of the item. A hint of a lane
// that is held, or whose head is not due, is cleared by the search that meets it.
func (w *txn) hintLanes(id ID, facets string) error {
	for _, lane := range w.keys.plan.PartsOf(id.Group, facets) {
		w.tx.Set(w.keys.laneItem(lane, id), nil)
	}
	for _, lane := range w.keys.plan.LanesOf(id.Group, facets) {
		if _, err := w.rehint(id.Index, lane, 0); err != nil {
			return err
		}
	}
	return nil
}
