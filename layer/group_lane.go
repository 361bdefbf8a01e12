package layer

import (
	"context"
	"fmt"
	"slices"

	"fdbfifo/kv"
)

// Lanes of one group may be held at the same time if no item can be in both. A lane cannot be claimed while another
// lane that may share an item is held: the hint that led to the lane is then put aside under the lock of that lane,
// kept, and the release of the lock puts the hint back. Meanwhile nobody finds the lane, and nobody looks at it in
// vain. Beside the kept hint stands a timer at the end of the lease, for the case that nobody releases.
//
// Whoever puts a hint aside has a read conflict on the lock, and whoever releases a lock reads the hints put aside
// under the lock with a conflict. So a hint can be lost neither way.

// heldLane is a lock of another lane of a group, one that may share an item with the lane that is looked at.
type heldLane struct {
	lane   string
	record *record
}

// laneLock is the read of a lane's lock, and, in a queue with facets, of the other locks of its group.
type laneLock struct {
	lock  kv.Future[[]byte]
	locks kv.Future[[]kv.KV]
	hold  kv.Future[[]kv.KV] // the first hold; nil if the lane has none
}

// readLaneLock starts the read by lock, or by locks in a queue with facets.
func (q *Queue) readLaneLock(lock, locks kv.ReadTx, lane string) laneLock {
	if q.keys.plan == nil || isHold(lane) {
		return laneLock{lock: lock.Get(q.keys.lock(lane))}
	}
	l := laneLock{locks: locks.GetRange(q.keys.locks(groupOf(lane)).Selectors(), kv.RangeOptions{})}
	if !isPart(lane) {
		l.hold = q.firstHold(lock, lane)
	}
	return l
}

// wait sets the records of f.
func (l laneLock) wait(w *txn, f *found) (err error) {
	if l.locks != nil {
		rows, err := l.locks.Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read locks: %w", err)
		}
		f.record, f.others, err = w.q.unpackLocks(f.lane, rows)
		return err
	}
	v, err := l.lock.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read lock: %w", err)
	}
	if v != nil {
		f.record, err = unpackRecord(w.keys.lock(f.lane), v)
	}
	return err
}

// unpackLocks reads the records in rows: the lane's own, and those of the lanes that may share an item with the lane.
func (q *Queue) unpackLocks(lane string, rows []kv.KV) (own *record, others []heldLane, err error) {
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return nil, nil, err
		}
		if p.lane != lane && !q.keys.plan.intersect(p.lane, lane) {
			continue
		}
		r, err := unpackRecord(row.Key, row.Value)
		if err != nil {
			return nil, nil, err
		}
		if p.lane == lane {
			own = r
		} else {
			others = append(others, heldLane{lane: p.lane, record: r})
		}
	}
	return own, others, nil
}

// laneRead reads the items of a lane that is no whole group: first the lane's keys, then the items by key, because the
// lane's items may lie far apart in the group.
type laneRead struct {
	keys   subspace
	lane   string
	first  kv.Future[[]kv.KV]
	values kv.ReadTx
	got    []kv.Future[[]byte]
	pairs  []kv.KV
	err    error
	begun  bool
	ended  bool
}

// readItems starts reading the first items of a lane. tx reads the lane's keys; values reads the items of a lane that
// is no whole group, which need no conflict of their own.
func (q *Queue) readItems(tx, values kv.ReadTx, lane string, limit int) kv.Future[[]kv.KV] {
	return q.readItemsIn(tx, values, lane, q.keys.items(lane), limit)
}

// readItemsIn is readItems for a part of the lane's keys.
func (q *Queue) readItemsIn(
	tx, values kv.ReadTx, lane string, keys kv.KeyRange, limit int,
) kv.Future[[]kv.KV] {
	first := tx.GetRange(keys.Selectors(), kv.RangeOptions{Limit: limit})
	if !isPart(lane) {
		return first
	}
	return &laneRead{keys: q.keys, lane: lane, first: first, values: values}
}

// begin starts reading the items by key.
func (r *laneRead) begin(ctx context.Context) {
	if r.begun {
		return
	}
	r.begun = true
	rows, err := r.first.Wait(ctx)
	if err != nil {
		r.err = err
		return
	}
	of, group := r.keys.items(r.lane), groupOf(r.lane)
	for _, row := range rows {
		p, err := r.keys.parseItem(row.Key, group, of)
		if err != nil {
			r.err = err
			return
		}
		key := r.keys.item(p.itemID())
		r.pairs = append(r.pairs, kv.KV{Key: key})
		r.got = append(r.got, r.values.Get(key))
	}
}

// Wait returns the items as pairs of their own keys and values.
func (r *laneRead) Wait(ctx context.Context) ([]kv.KV, error) {
	r.begin(ctx)
	for i := 0; r.err == nil && !r.ended && i < len(r.got); i++ {
		if r.pairs[i].Value, r.err = r.got[i].Wait(ctx); r.err == nil && r.pairs[i].Value == nil {
			r.err = corrupt(r.pairs[i].Key, fmt.Errorf("no item, though in a lane"))
		}
	}
	r.ended = true
	return r.pairs, r.err
}

// Ready reports whether Wait returns at once.
func (r *laneRead) Ready() bool { return r.ended }

// Cancel gives the reads up.
func (r *laneRead) Cancel() {
	r.first.Cancel()
	for _, f := range r.got {
		f.Cancel()
	}
}

// facetsIn returns the packed facets of an item with the given value; "" if the queue has none, or the value cannot be
// read.
func (s subspace) facetsIn(value []byte) string {
	if s.plan == nil {
		return ""
	}
	e, _, err := openEnvelope(value)
	if err != nil {
		return ""
	}
	return s.plan.pack(e.headers)
}

// clearItem clears an item, and the keys of its lanes. The facets are those which the item has now, not those of the
// message as it was sent.
func (w *txn) clearItem(id ID, facets string) {
	w.tx.Clear(w.keys.item(id))
	if plan := w.keys.plan; plan == nil || plan.inTurn || facets == "" && len(plan.facets) > 0 {
		return
	}
	lanes := w.keys.plan.lanesOf(id.Group, facets)
	w.vacate(id.Index, lanes)
	for _, lane := range lanes {
		if isPart(lane) {
			w.tx.Clear(w.keys.laneItem(lane, id))
		}
	}
}

// fenceOver adds read conflicts on all locks that may share an item with a lane: its own, if the queue has no facets.
func (w *txn) fenceOver(g guard, lane string) error {
	for _, r := range w.keys.over(lane) {
		if err := g.read(w.tx, r); err != nil {
			return err
		}
	}
	return nil
}

// assessOthers sets the verdict if another lane of the group keeps the lane from being claimed.
func (w *txn) assessOthers(f *found) (decided bool) {
	for i := range f.others {
		if !f.others[i].record.at(w.nowMS).keeps() {
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

// endOther ends the lapsed claim, or the delay or grant that is over, of another lane. The lane is not taken over: its
// own receives find it. Then the caller looks again.
func (w *txn) endOther(f *found) (behind *candidate, err error) {
	other := f.others[f.other]
	if err := f.fence(w, guardOtherLock, kv.SingleKey(w.keys.lock(other.lane))); err != nil {
		return nil, err
	}
	free, err := w.lapse(other.lane, other.record, nil, ID{})
	if err != nil {
		return nil, err
	}
	if free {
		if err := w.free(other.lane); err != nil {
			return nil, err
		}
	}
	again := f.candidate
	return &again, nil
}

// disposeExcluded puts the hint aside under the lock which makes the hint useless.
//
// Footprint: a read conflict on the lock, so that the hint is not put aside under a lock which has just been released.
func (w *txn) disposeExcluded(f *found) (behind *candidate, err error) {
	if f.record != nil { // a claim that has lapsed, a delay or grant that is over, or a grant to this handle
		if err := f.fence(w, guardOtherLock, kv.SingleKey(w.keys.lock(f.lane))); err != nil {
			return nil, err
		}
		w.done++
		free, err := w.lapse(f.lane, f.record, nil, ID{})
		if err != nil {
			return nil, err
		}
		return w.leadOn(f, free)
	}
	if f.key == nil {
		return nil, nil // named by the caller: the hint stays, wherever it is
	}
	if w.keys.inTurn() {
		return nil, w.disposeInHand(f)
	}
	other := f.others[f.other]
	if full, err := w.keepsMany(other.lane); err != nil || full {
		return nil, err
	}
	if err := f.fence(w, guardKeptLock, kv.SingleKey(w.keys.lock(other.lane))); err != nil {
		return nil, err
	}
	w.clear(f.key)
	delete(w.ready, f.lane)
	var value []byte
	if f.attempts > 0 {
		value = packInt(int64(f.attempts))
	}
	w.tx.Set(w.keys.kept(other.lane, f.lane, f.index), value)
	w.done++
	if h := other.record.holding(); h != nil {
		w.timeHead(f.lane, f.index, h.endMS)
	}
	return nil, nil
}

// maxKept bounds the hints that are put aside under one lock, because the release of the lock puts all of them back in
// its transaction. What is more stays where it is, and costs each claim by its template a look. Claims at the same time
// may put aside a few more.
const maxKept = 100

// keepsMany reports whether so many hints are put aside under a lane's lock that no more should be.
func (w *txn) keepsMany(holder string) (bool, error) {
	kept := w.keys.keptUnder(holder)
	last := kv.FirstGreaterOrEqual(kept.Begin)
	last.Offset += maxKept - 1
	key, err := w.tx.Snapshot().GetKey(last).Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read kept hints: %w", err)
	}
	return kept.Contains(key), nil
}

// groupLocks reads all records of a group, with a conflict, for an operator who changes what he does not hold. Together
// with a write conflict on the lock of the whole group, which every claim of the group reads, nothing of the group is
// claimed or released meanwhile.
func (w *txn) groupLocks(g guard, group string) ([]heldLane, error) {
	rows, err := g.reads(w.tx).GetRange(w.keys.locks(group).Selectors(), kv.RangeOptions{}).Wait(w.ctx)
	if err != nil {
		return nil, fmt.Errorf("read locks: %w", err)
	}
	own, others, err := w.q.unpackLocks(group, rows)
	if own != nil {
		others = append(others, heldLane{lane: group, record: own})
	}
	return others, err
}

// locksOver reads, with a conflict, the locks that may have an item: of all lanes of its group, and the item's hold.
func (w *txn) locksOver(g guard, id ID) ([]heldLane, error) {
	all, err := w.groupLocks(g, id.Group)
	if err != nil {
		return nil, err
	}
	holds, err := w.readHolds(g, kv.SingleKey(w.keys.hold(id)))
	return append(all, holds...), err
}

// inOtherLane reports whether a claim of any lane has an item, or the item is held by itself, in a queue with facets or
// unordered receives. It adds read conflicts on all locks that may have the item.
func (w *txn) inOtherLane(g guard, id ID) (bool, error) {
	if w.keys.plan == nil {
		return false, nil
	}
	all, err := w.locksOver(g, id)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all, func(held heldLane) bool {
		return isHold(held.lane) || held.record.claim().holds(id) // a hold may be the item's own delay, after a nack
	}), nil
}

// hintLanes adds an item that has come to its place, or become due, to its lanes, and writes a hint of each. A hint of
// a lane that is held, or whose head is not due, is cleared when met.
func (w *txn) hintLanes(id ID, facets string) error {
	for _, lane := range w.keys.plan.lanesOf(id.Group, facets) {
		if isPart(lane) {
			w.tx.Set(w.keys.laneItem(lane, id), nil)
		}
		if _, err := w.rehint(id.Index, lane, 0); err != nil {
			return err
		}
	}
	return nil
}

// rejoin adds an item that has come back to its place to its lanes. Who claims in the group at the same time conflicts,
// because the item may come before those of the claim.
func (w *txn) rejoin(g guard, id ID, value []byte) error {
	if w.keys.plan == nil {
		return nil
	}
	if err := w.excludeHolders(g, id.Group); err != nil {
		return err
	}
	return w.hintLanes(id, w.keys.facetsIn(value))
}
