package layer

import (
	"fmt"
	"time"
)

// A mark keeps a group from being claimed or taken from until it is removed: an operator's pause, or the park of a
// group whose head has failed for good. It is a lock of its own kind that has neither holder nor end, so that whoever
// meets it passes the group over as one that is held, and needs no timer. Enqueues go on: they do not read locks.
//
// A group that is under a claim when it is marked stays with its holder, who may extend, ack and nack as ever: the
// claim's lock bears the mark, and becomes the mark's own when the claim ends, by ack or nack, or by the claimer that
// meets the lease run out. A delay, or a grant that was not accepted, gives way to the mark at once.
//
// A mark on an empty group stays too. An enqueue into it writes its hint as ever, which is stale as long as the mark
// is there; so whoever removes the mark looks for the head and sets the hint.

// mark marks a group. It returns the mark that the group bore before, or nil, and the record as it is then. One that is
// marked already stays as it is, but that a park takes the place of a pause: what has failed needs to be looked at before
// the group goes on.
//
// Footprint: reads and writes the lock, with conflicts, and clears the timer or grant of the holding that gives way.
// Hints are left: they are stale now, and cleared when met.
func (w *txn) mark(group string, m mark) (old *mark, r *record, err error) {
	r, err = w.q.readLock(w.ctx, guardMarkGroup.reads(w.tx), group)
	if err != nil {
		return nil, nil, err
	}
	if old = r.bears(); old != nil && (old.kind == m.kind || old.kind == markHalt) {
		return old, r, nil
	}
	w.countMark(old, -1)
	w.countMark(&m, 1)
	next := r.marking(&m)
	if next.holding() == nil {
		delete(w.ready, group)
	}
	w.put(group, r, next, 0)
	return old, next, nil
}

// unmark removes the mark of a group and returns it, or nil if the group bears none. If nobody holds
// the group it becomes ready; if it was parked, its head is tried anew, with no attempts counted.
//
// Footprint: reads and writes the lock, with conflicts; if nobody holds the group, as the end of a claim.
func (w *txn) unmark(group string) (*mark, error) {
	r, err := w.q.readLock(w.ctx, guardMarkGroup.reads(w.tx), group)
	if err != nil || r.bears() == nil {
		return nil, err
	}
	w.countMark(r.mark, -1)
	next := r.marking(nil)
	w.put(group, r, next, 0)
	if next != nil {
		return r.mark, nil
	}
	if r.mark.kind == markHalt {
		if err := w.forgive(group); err != nil {
			return nil, err
		}
	}
	return r.mark, w.free(group)
}

// forgive clears the failed attempts of a group's head.
func (w *txn) forgive(group string) error {
	head, err := w.head(group).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read head: %w", err)
	}
	if !w.q.keys.items(group).Contains(head) {
		return nil
	}
	p, err := w.q.keys.parse(head)
	if err != nil {
		return err
	}
	w.tx.Clear(w.q.keys.attempt(p.itemID()))
	return nil
}

// countMark counts marked groups; m may be nil.
func (w *txn) countMark(m *mark, n int) {
	switch {
	case m == nil:
	case m.kind == markPause:
		w.count(countPausedGroups, n)
	default:
		w.count(countHaltedGroups, n)
	}
}

// Mark says why a group is kept from being claimed.
type Mark struct {
	Status Status // Paused or Halted
	By     string
	Reason string
	Since  time.Time
}

// String says who has paused or halted, when and why.
func (m Mark) String() string {
	text := fmt.Sprintf("%s by %q since %s", m.Status, m.By, timeWords(millis(m.Since)))
	if m.Reason != "" {
		text += ": " + m.Reason
	}
	return text
}

// public is nil for nil.
func (m *mark) public() *Mark {
	if m == nil {
		return nil
	}
	state := Paused
	if m.kind == markHalt {
		state = Halted
	}
	return &Mark{Status: state, By: m.who, Reason: m.reason, Since: fromMillis(m.sinceMS)}
}
