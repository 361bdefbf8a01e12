package layer

import (
	"fmt"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// A mark keeps a group from being claimed or taken from until the mark is removed: an operator's pause, or the halt of
// a group whose head has failed for good. The mark is a lock of its own kind without holder and end. So a receive
// passes the group over as a held group, and no timer is needed. Enqueues go on: an enqueue does not read locks.
//
// A group marked under a claim stays with its holder. The holder may extend, ack and nack as before. The claim's lock
// bears the mark, and becomes the mark's own when the claim ends: by ack or nack, or by the claimer which meets the
// expired lease. A delay, or a grant not accepted yet, gives way to the mark at once.
//
// A mark on an empty group stays too. An enqueue into the group writes its hint as usual. The hint is stale while the
// mark is there, and may be cleared. So the transaction that removes the mark looks for the head and sets the hint.

// mark marks a group, and returns the record that the group's lock then has. A claim stays, and the mark takes effect
// when the claim ends. A delay or a grant ends at once. If the group has a mark already, mark changes nothing, except
// that a halt replaces a pause: the failed item needs to be looked at before the group continues.
//
// Footprint: reads the lock with a conflict. Sets the lock and the key mark, and adds to counters. If a delay or a
// grant ends, clears its timer, and the key grant of a grant. Hints stay. They are stale while the mark is there, and
// cleared when met.
func (w *txn) mark(group string, m rec.Mark) (*rec.Record, error) {
	r, err := w.guarded(guard.MarkGroup).readLock(group)
	if err != nil {
		return nil, err
	}
	old := r.Mark()
	if old != nil && (old.Kind == m.Kind || old.Kind == rec.MarkHalt) {
		return r, nil
	}
	w.countMark(old, -1)
	w.countMark(&m, 1)
	next := r.WithMark(&m)
	if next.Holding() == nil {
		delete(w.noted.ready, group)
	}
	w.put(group, r, next, 0)
	return next, nil
}

// unmark removes the mark of a lane, and returns that mark; nil = there was none. group is the name of the lane: a
// whole group, or a part of one. unmark first calls allow with the mark. If allow returns an error, unmark returns it
// and changes nothing. If the lane has no claim, it is set free: free writes the hint of its head. If the lane was
// halted and has no claim, the attempts of its head are cleared first (forgive), and so the head is tried again.
//
// Footprint: reads the lock with a conflict, sets or clears it, clears the key mark, and adds to counters. If the lane
// has no claim, also the keys of free, and after a halt those of forgive.
func (w *txn) unmark(group string, allow func(m *rec.Mark) error) (*rec.Mark, error) {
	r, err := w.guarded(guard.MarkGroup).readLock(group)
	if err != nil || r.Mark() == nil {
		return nil, err
	}
	if err := allow(r.Mark()); err != nil {
		return nil, err
	}
	w.countMark(r.Mark(), -1)
	next := r.WithMark(nil)
	w.put(group, r, next, 0)
	if next != nil {
		return r.Mark(), nil
	}
	if r.Mark().Kind == rec.MarkHalt {
		if err := w.forgive(group); err != nil {
			return nil, err
		}
	}
	return r.Mark(), w.free(group)
}

// forgive clears the attempt record (attempt) of the head of a lane, so that no failed attempt of it counts any more.
// It reads the key of the head at snapshot. If the lane is empty, it does nothing. If that key cannot be read, the
// error wraps ErrCorrupt.
func (w *txn) forgive(group string) error {
	head, found, err := w.readHead(group)
	if found {
		w.tx.Clear(w.keys.attempt(head))
	}
	return err
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

// publicMark converts the mark of a lock for callers; nil for nil.
func publicMark(m *rec.Mark) *Mark {
	if m == nil {
		return nil
	}
	state := Paused
	if m.Kind == rec.MarkHalt {
		state = Halted
	}
	return &Mark{Status: state, By: m.By, Reason: m.Reason, Since: fromMillis(m.SinceMS)}
}

// MaxRateTotal bounds how many items of the whole queue start their delivery per time. One key, the field "pace" of
// meta, has the time up to which that rate is used up. Each handle draws a portion of the rate there, and its claims
// and takes spend the portion without touching the key: see package advice, portions.go.

// reserve books up to n items of the handle's portion of the queue's rate (MaxRateTotal) for this transaction, and
// returns how many: see advice.Portions. The caller must give those that it does not deliver to unreserve. If the
// portion is used up, reserve waits for a draw of another goroutine, or draws the next portion in a transaction of its
// own (Queue.draw). If n is not 0 and the result is 0, this transaction must deliver nothing more, and w.shortMS says
// when the rate may have an item again. Without such a rate the result is n.
func (w *txn) reserve(n int) (int, error) {
	config, err := w.config()
	if err != nil || config.MaxRateTotal.isNone() || n == 0 {
		return n, err
	}
	if w.shortMS > 0 {
		return 0, nil
	}
	got, untilMS, err := w.q.noticed.portions.Reserve(
		w.ctx, config.MaxRateTotal.known(), n, w.along.booked, w.q.nowMS,
		func(wait int) { w.q.yield(w.ctx, fmt.Sprint("drawn ", wait)) },
		func(want int64) (int64, int64, error) { return w.q.draw(w, config.MaxRateTotal, want) },
	)
	if err != nil {
		return 0, fmt.Errorf("draw from the queue's rate: %w", err)
	}
	if got == 0 {
		w.shortMS = untilMS
	}
	return got, nil
}

// unreserve puts n items, which reserve has booked last, back into the handle's portion, because the transaction does
// not deliver them. Without a rate it does nothing.
func (w *txn) unreserve(n int) {
	if n == 0 {
		return
	}
	if config, err := w.config(); err == nil && !config.MaxRateTotal.isNone() {
		w.q.noticed.portions.GiveBackLast(w.along.booked, n)
	}
}

// short reports whether the queue's rate (MaxRateTotal) is used up as far as the handle knows, and then notes in
// w.shortMS until when. Then the caller need not look for groups. short reads only the configuration.
func (w *txn) short() (bool, error) {
	config, err := w.config()
	if err != nil || config.MaxRateTotal.isNone() {
		return false, err
	}
	if w.shortMS == 0 {
		w.shortMS = w.q.noticed.portions.UsedUp(config.MaxRateTotal.known(), w.q.nowMS())
	}
	return w.shortMS > 0, nil
}

// runWithin is run within the queue's rate: it books the items that it returns (reserve). The caller must give those
// that it does not deliver to unreserve. runWithin returns nothing, and no error, if the rate is used up or no item is
// due.
func (w *txn) runWithin(
	f *found, limit int, fits func(size int) bool,
) (items []Item, out []rec.Item, err error) {
	room, err := w.reserve(min(limit, f.rows.due(w.nowMS), f.allowed.items))
	if err != nil || room == 0 {
		return nil, nil, err
	}
	items, out, err = w.run(f, room, fits)
	w.unreserve(room - len(out))
	return items, out, err
}

// draw takes up to want items from the queue's rate, in a transaction of its own. got is how many it has taken. If
// none, draw writes nothing, and untilMS is when there will be one (ms). by is the transaction that needs them. The
// queue's pair is the field pace of meta: the time up to which the rate is used up.
//
// Footprint: reads the queue's pair. If there are items, writes the pair, with a read conflict on it, so that of two
// draws at the same time one sees the other. It has no other conflict, except with a drop of the queue (finish). A draw
// of unknown outcome is done again: if the first was applied, its items are lost.
func (q *Queue) draw(by *txn, rate Rate, want int64) (got, untilMS int64, err error) {
	key := q.keys.meta(metaPace)
	err = runApart(by, "rate", func(tx kv.Tx) error {
		got, untilMS = 0, 0
		w := q.txn(by.ctx, tx)
		used, err := w.readPaceTotal(rate)
		if err != nil {
			return err
		}
		a := rate.allowance(used, w.nowMS)
		if a.items == 0 {
			untilMS = a.untilMS
			return nil
		}
		if err := guard.TotalDraw.Read(tx, kv.SingleKey(key)); err != nil {
			return err
		}
		got = min(want, int64(a.items))
		tx.Set(key, a.after(got).Pack())
		return w.finish()
	})
	if err != nil {
		return 0, 0, err
	}
	return got, untilMS, nil
}
