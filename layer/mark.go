package layer

import (
	"fmt"
	"math"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
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

// mark is the note in a lock.
type mark struct {
	kind    string // kindPause or kindPark
	who     string
	reason  string
	sinceMS int64
}

// noEnd is the end of a lock that has none.
const noEnd = math.MaxInt64

// lock is the lock that a marked group has when nobody holds it. token is that of the lock it takes the place of.
func (m mark) lock(token int64) *lock {
	return &lock{token: token, owner: m.who, endMS: noEnd, kind: m.kind, mark: &m}
}

// isMark reports whether l keeps its group from everybody.
func (l *lock) isMark() bool { return l.kind == kindPause || l.kind == kindPark }

func (m *mark) note() any {
	if m == nil {
		return nil
	}
	return tuple.Tuple{m.kind, m.who, m.reason, m.sinceMS}
}

func unpackNote(v any) (*mark, bool) {
	if v == nil {
		return nil, true
	}
	t, ok := v.(tuple.Tuple)
	if !ok || len(t) != 4 {
		return nil, false
	}
	m := &mark{}
	var oks [4]bool
	m.kind, oks[0] = t[0].(string)
	m.who, oks[1] = t[1].(string)
	m.reason, oks[2] = t[2].(string)
	m.sinceMS, oks[3] = t[3].(int64)
	return m, oks == [4]bool{true, true, true, true} && (m.kind == kindPause || m.kind == kindPark)
}

// mark marks a group and returns the mark that it bore before, or nil. One that is marked already stays as it is,
// but that a park takes the place of a pause: what has failed needs to be looked at before the group goes on.
//
// Footprint: reads and writes the lock, with conflicts, and clears the timer or grant of the lock that gives way.
// Hints are left: they are stale now, and cleared when met.
func (w *work) mark(group string, m mark) (*mark, error) {
	key := w.q.keys.lock(group)
	l, err := w.q.readLock(w.ctx, guardMarkGroup.reads(w.tx), group)
	if err != nil {
		return nil, err
	}
	var old *mark
	token := int64(0)
	if l != nil {
		if old = l.mark; old != nil && (old.kind == m.kind || old.kind == kindPark) {
			return old, nil
		}
		token = l.token
	}
	w.countMark(old, -1)
	w.countMark(&m, 1)
	if l != nil && l.kind == kindClaim {
		l.mark = &m
		w.tx.Set(key, l.pack())
		return old, nil
	}
	if l != nil {
		w.unhold(group, l)
	}
	delete(w.ready, group)
	w.tx.Set(key, m.lock(token).pack())
	return old, nil
}

// unmark removes the mark of a group and returns it, or nil if the group bears none. If nobody holds
// the group it becomes ready; if it was parked, its head is tried anew, with no attempts counted.
//
// Footprint: reads and writes the lock, with conflicts; if nobody holds the group, as the end of a claim.
func (w *work) unmark(group string) (*mark, error) {
	key := w.q.keys.lock(group)
	l, err := w.q.readLock(w.ctx, guardMarkGroup.reads(w.tx), group)
	if err != nil || l == nil || l.mark == nil {
		return nil, err
	}
	old := l.mark
	w.countMark(old, -1)
	if l.kind == kindClaim {
		l.mark = nil
		w.tx.Set(key, l.pack())
		return old, nil
	}
	w.tx.Clear(key)
	if old.kind == kindPark {
		if err := w.forgive(group); err != nil {
			return nil, err
		}
	}
	return old, w.free(group)
}

// forgive clears the failed attempts of a group's head.
func (w *work) forgive(group string) error {
	head, err := w.head(group).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read head: %w", err)
	}
	if !w.q.keys.items(group).Contains(head) {
		return nil
	}
	p, err := w.q.keys.parse(head)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	w.tx.Clear(w.q.keys.attempt(p.itemID()))
	return nil
}

// unhold clears what stands beside a lock that ends: its timer and its grant.
func (w *work) unhold(group string, l *lock) {
	if l.endMS != noEnd {
		w.tx.Clear(w.q.keys.timer(l.endMS, group))
	}
	if random, ok := l.grantedTo(); ok {
		w.tx.Clear(w.q.keys.grant(random, group))
	}
}

// countMark counts marked groups; m may be nil.
func (w *work) countMark(m *mark, n int) {
	switch {
	case m == nil:
	case m.kind == kindPause:
		w.count(countPausedGroups, n)
	default:
		w.count(countParkedGroups, n)
	}
}

// head starts reading the key of a group's first item, at snapshot.
func (w *work) head(group string) kv.Future[[]byte] {
	return w.tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(w.q.keys.items(group).Begin))
}

// release leaves a group ready that nobody holds any more: it sets the hint if there are items, and otherwise makes
// sure that there are none. head is its first item as head reads it. An item that comes before it meanwhile is led to by
// the same hint, and nobody removes it but under the lock.
func (w *work) release(group string, head kv.Future[[]byte]) error {
	next, err := head.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read head: %w", err)
	}
	items := w.q.keys.items(group)
	if !items.Contains(next) {
		return guardReleaseEmpty.read(w.tx, items)
	}
	p, err := w.q.keys.parse(next)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return w.rehint(p.index, group, 0)
}

// Mark says why a group is kept from being claimed.
type Mark struct {
	State  State // Paused or Parked
	By     string
	Reason string
	Since  time.Time
}

// String says who has paused or parked, when and why.
func (m Mark) String() string {
	text := fmt.Sprintf("%s by %q since %s", m.State, m.By, timeWords(millis(m.Since)))
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
	if m.kind == kindPark {
		state = Parked
	}
	return &Mark{State: state, By: m.who, Reason: m.reason, Since: fromMillis(m.sinceMS)}
}
