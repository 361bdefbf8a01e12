package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// A message may be kept back: its envelope says before when it is not delivered. It holds its group, and no other: what
// is behind it waits too, and a claim ends before it. Nobody holds the group meanwhile, and no lock does; a timer of kind
// "head" leads to it when the time has come, as a hint leads to a group that is ready. The enqueue writes that timer if
// the group was empty. Otherwise whoever ends a claim writes a hint, because it reads the key of the next head, not the
// value; and the receive or take that meets the hint puts the timer in its place.

// early returns until when a group is to wait whose first item is head; 0 or a time that has passed = not at all.
func (w *work) early(head kv.KV) (untilMS int64, err error) {
	e, _, err := openEnvelope(head.Value)
	if err != nil {
		return 0, corrupt(head.Key, err)
	}
	return e.dueMS, nil
}

// awaitHead leaves a group that nobody holds to a timer of its head. from is the hint or timer that led here, or nil.
//
// Footprint: the caller has a read conflict on the lock; one on the gap up to the head, which an enqueue that saw the
// group empty may fill, with a hint of the very same key.
func (w *work) awaitHead(from []byte, head kv.KV, untilMS int64) error {
	p, err := w.q.keys.parse(head.Key)
	if err != nil {
		return err
	}
	if err := guardEarlyGap.read(w.tx, kv.KeyRange{Begin: w.q.keys.items(p.group).Begin, End: kv.KeyAfter(head.Key)}); err != nil {
		return err
	}
	w.clear(from)
	w.tx.Set(w.q.keys.timer(untilMS, p.group), packTimer(kindHead, p.index))
	w.cleared = true
	delete(w.ready, p.group)
	return nil
}

// hasten makes the head of a group due now. It returns false if it was. Under the conflict on the lock that the caller
// has.
func (w *work) hasten(group string) (early bool, err error) {
	rows, err := w.tx.Snapshot().GetRange(w.q.keys.items(group).Selectors(), kv.RangeOptions{Limit: 1}).Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read head: %w", err)
	}
	if len(rows) == 0 {
		return false, nil
	}
	e, body, err := openEnvelope(rows[0].Value)
	if err != nil {
		return false, corrupt(rows[0].Key, err)
	}
	if e.dueMS <= w.nowMS {
		return false, nil
	}
	e.dueMS = 0 // rather than now: clocks differ
	w.tx.Set(rows[0].Key, append(e.append(nil), body...))
	return true, nil
}
