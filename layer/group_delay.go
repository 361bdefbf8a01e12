package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// A message may be delayed: the envelope has the earliest delivery time. The message delays its group, and no other:
// the items behind wait too, and a claim ends before the delayed item. Meanwhile nobody holds the group, and there is
// no lock; a timer of kind "head" leads to the group when the time has come, as a hint leads to a ready group. The
// enqueue writes the timer if the group was empty. Otherwise whoever ends a claim writes a hint, having read only the
// next head's key, not the value; the receive or take which meets the hint puts the timer in place of the hint.

// rows is subspace.rows for the queue as the transaction knows it.
func (w *txn) rows(lane string, pairs []kv.KV) (rows, error) {
	config, err := w.config()
	return w.q.keys.rows(lane, pairs, config.retro()), err
}

// awaitHead leaves a group which nobody holds to a timer of its head, with the time timingMS in the timer's key. from
// is the hint or timer which led here, or nil.
//
// Footprint: the caller has a read conflict on the lock; awaitHead adds a read conflict on the gap up to the head,
// because an enqueue which saw the group empty may fill the gap, and write a hint of the very key cleared here. In a
// queue with facets awaitHead adds a write conflict on the lane, which who joins it reads the last item of.
func (w *txn) awaitHead(lane string, from []byte, head ID, timingMS int64) error {
	gap := kv.KeyRange{Begin: w.q.keys.items(lane).Begin, End: kv.KeyAfter(w.q.keys.laneItem(lane, head))}
	if err := guardEarlyGap.read(w.tx, gap); err != nil {
		return err
	}
	if isPart(lane) && !w.q.keys.hasHolds() {
		// An item may join the lane in the middle, behind one that has just left: it is the first, and needs a hint.
		if err := guardEarlyGap.writeRange(w.tx, w.q.keys.items(lane)); err != nil {
			return err
		}
	}
	w.clear(from)
	w.cleared = true
	delete(w.ready, lane)
	w.timeHead(lane, head.Index, timingMS)
	return nil
}

// timeHead sets the timer of a head, in a group held by nobody.
func (w *txn) timeHead(lane string, index, timingMS int64) {
	w.tx.Set(w.q.keys.timer(timingMS, lane), packTimer(kindHead, index))
}

// hasten makes a delayed head deliverable now and reports whether the head was delayed. The caller has a read conflict
// on the lock. In a queue with facets hasten reads all locks of the group, with a conflict, because a claim of another
// lane may have the head: then the head is not delayed. So it is with a hold of the head.
func (w *txn) hasten(lane string) (early bool, err error) {
	found := w.q.readItems(w.tx.Snapshot(), w.tx.Snapshot(), lane, 1)
	pairs, err := found.Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read head: %w", err)
	}
	if len(pairs) == 0 {
		return false, nil
	}
	items, err := w.rows(lane, pairs)
	if err != nil {
		return false, err
	}
	head := items.at(0)
	if head.err != nil || head.dueMS <= w.nowMS {
		return false, head.err
	}
	id := head.id(groupOf(lane))
	if held, err := w.inOtherLane(guardRetryLock, id); err != nil || held {
		return false, err
	}
	config, err := w.config()
	if err != nil {
		return false, err
	}
	e := head.envelope
	// The timer would be found stale when it is due. Until then it would count as a delayed group.
	for _, timer := range w.q.keys.timersAt(items.timing(head.dueMS), lane) {
		w.clear(timer)
	}
	e.dueMS = items.retro.own(e.enqueuedMS) // rather than now: clocks differ
	if config.Retention > 0 {
		e.dueMS = w.nowMS // otherwise the item would have waited for the retention since the enqueue
	}
	w.tx.Set(head.Key, append(e.append(nil), head.body...))
	if w.q.keys.plan != nil { // other lanes, too, may wait for this head
		return true, w.hintLanes(id, head.facets)
	}
	return true, nil
}
