package layer

import (
	"fmt"
	"time"
)

// A mark keeps a group from being claimed or taken from until the mark is removed: an operator's pause, or the halt of
// a group whose head has failed for good. The mark is a lock of its own kind without holder and end. So a receive
// passes the group over as a held group, and no timer is needed. Enqueues go on: an enqueue does not read locks.
//
// A group marked under a claim stays with its holder, who may extend, ack and nack as ever. The claim's lock bears the
// mark, and becomes the mark's own when the claim ends: by ack or nack, or by the claimer which meets the expired
// lease. A delay, or a grant not accepted yet, gives way to the mark at once.
//
// A mark on an empty group stays too. An enqueue into the group writes its hint as ever, which is stale while the mark
// is there and may be cleared; so whoever removes the mark looks for the head and sets the hint.

// mark marks a group. It returns the mark which the group bore before, or nil, and the new record. A group which is
// marked already stays unchanged, but a halt replaces a pause: the failed item needs to be looked at before the group
// goes on.
//
// Footprint: reads and writes the lock, with conflicts, and clears the timer or grant of the holding which gives way.
// Hints are left: a hint is stale now, and cleared when met.
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

// unmark removes the mark of a group and returns the mark, or nil if there is none. allow may refuse. If nobody holds
// the group, the group becomes ready; a halted group's head is tried anew, with no attempts counted.
//
// Footprint: reads and writes the lock, with conflicts; if nobody holds the group, as the end of a claim.
func (w *txn) unmark(group string, allow func(m *mark) error) (*mark, error) {
	r, err := w.q.readLock(w.ctx, guardMarkGroup.reads(w.tx), group)
	if err != nil || r.bears() == nil {
		return nil, err
	}
	if err := allow(r.mark); err != nil {
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

// public returns nil for nil.
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
