package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// A message may be delayed: its envelope says before when it is not delivered. It holds its group, and no other: what
// is behind it waits too, and a claim ends before it. Nobody holds the group meanwhile, and no lock does; a timer of kind
// "head" leads to it when the time has come, as a hint leads to a group that is ready. The enqueue writes that timer if
// the group was empty. Otherwise whoever ends a claim writes a hint, because it reads the key of the next head, not the
// value; and the receive or take that meets the hint puts the timer in its place.

// awaitHead leaves a group that nobody holds to a timer of its head. from is the hint or timer that led here, or nil.
//
// Footprint: the caller has a read conflict on the lock; one on the gap up to the head, which an enqueue that saw the
// group empty may fill, with a hint of the very same key.
func (w *txn) awaitHead(from []byte, head ID, untilMS int64) error {
	gap := kv.KeyRange{Begin: w.q.keys.items(head.Group).Begin, End: kv.KeyAfter(w.q.keys.item(head))}
	if err := guardEarlyGap.read(w.tx, gap); err != nil {
		return err
	}
	w.clear(from)
	w.cleared = true
	delete(w.ready, head.Group)
	w.timeHead(head.Group, head.Index, untilMS)
	return nil
}

// timeHead sets the timer of a head that is due at untilMS, in a group that nobody holds.
func (w *txn) timeHead(group string, index, untilMS int64) {
	w.tx.Set(w.q.keys.timer(untilMS, group), packTimer(kindHead, index))
}

// hasten makes the head of a group due now. It returns false if it was. Under the conflict on the lock that the caller
// has.
func (w *txn) hasten(group string) (early bool, err error) {
	found := w.tx.Snapshot().GetRange(w.q.keys.items(group).Selectors(), kv.RangeOptions{Limit: 1})
	pairs, err := found.Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read head: %w", err)
	}
	if len(pairs) == 0 {
		return false, nil
	}
	head := w.q.keys.rows(group, pairs).at(0)
	if head.err != nil || head.envelope.dueMS <= w.nowMS {
		return false, head.err
	}
	e := head.envelope
	e.dueMS = 0 // rather than now: clocks differ
	w.tx.Set(head.Key, append(e.append(nil), head.body...))
	return true, nil
}
