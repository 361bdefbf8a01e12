package layer

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// Changes which a program makes of its own waiting messages: another time, another body. Find gives the id of a message
// which the program knows by its dedup id.

// Reschedule moves the earliest delivery time of a waiting message to at, later or earlier; a time in the past, and the
// zero time, mean: at once. at is rounded up to the millisecond, and at most MaxDelay from now.
//
// The message keeps its place in the group, because order is kept. So the messages behind wait as long as the message
// waits, and a message behind a delayed message does not overtake: its new time counts once it is the group's first. A
// retry delay of the group, a pause and a used-up rate go on; Admin.RetryNow ends a retry delay. Retention counts from
// the new time on.
//
// Errors: ErrNoItem, ErrInFlight, ErrInvalidID, ErrCorrupt, *LimitError, ErrClosed, and the engine's; nothing was
// changed then.
func (q *Queue) Reschedule(ctx context.Context, id ID, at time.Time) error {
	ctx, w := q.observe(ctx, Operation{Verb: VerbReschedule, ID: id})
	err := q.onceTx(ctx, func(tx kv.Tx) error { return q.RescheduleTx(ctx, tx, id, at) })
	return w.end(ctx, wrap("reschedule", err))
}

// RescheduleTx reschedules in the caller's transaction. The caller answers for an unknown commit: to reschedule again
// does no harm, but after the message was delivered the error is ErrNoItem or ErrInFlight; or use Once.
//
// Reads: the lock, with a conflict; the item and the key of the head, at snapshot. If the item is the head of a group
// which nobody holds: a conflict on the place before the head; and the head's attempts, if due at once.
func (q *Queue) RescheduleTx(ctx context.Context, tx kv.Tx, id ID, at time.Time) error {
	if err := checkID(id); err != nil {
		return wrap("reschedule", err)
	}
	return wrap("reschedule", q.operate(ctx, tx, func(w *txn) error {
		left := at.Sub(fromMillis(w.nowMS))
		if left > MaxDelay {
			return checkDelay(left)
		}
		dueMS := w.nowMS
		if left > 0 {
			dueMS = millis(at.Add(time.Millisecond - 1))
		}
		return w.reschedule(id, dueMS)
	}))
}

// Replace puts another body and other headers (nil = none) in the place of those of a waiting message. The message
// keeps its place, its id, its dedup id, its times and its failed attempts. Use Admin.Edit to make the new body of the
// old. With DedupByContent the dedup id remains that of the first body.
//
// Errors: ErrNoItem, ErrInFlight, ErrInvalidID, ErrCorrupt, *LimitError, ErrInvalidUTF8, ErrClosed, and the engine's;
// nothing was changed then.
func (q *Queue) Replace(ctx context.Context, id ID, body []byte, headers map[string]string) error {
	ctx, w := q.observe(ctx, Operation{Verb: VerbReplace, ID: id})
	err := q.onceTx(ctx, func(tx kv.Tx) error { return q.ReplaceTx(ctx, tx, id, body, headers) })
	return w.end(ctx, wrap("replace", err))
}

// ReplaceTx replaces in the caller's transaction, as RescheduleTx reschedules.
//
// Reads: the lock, with a conflict; the item and its parts, at snapshot.
func (q *Queue) ReplaceTx(ctx context.Context, tx kv.Tx, id ID, body []byte, headers map[string]string) error {
	if err := checkID(id); err != nil {
		return wrap("replace", err)
	}
	return wrap("replace", q.operate(ctx, tx, func(w *txn) error {
		return w.edit(id, func(m *Message) error {
			m.Body, m.Headers = body, headers
			return nil
		})
	}))
}

// reschedule makes a waiting item due at dueMS. If both the old and the new time are over, nothing changes.
func (w *txn) reschedule(id ID, dueMS int64) error {
	if w.q.keys.plan != nil {
		return w.rescheduleInLanes(id, dueMS)
	}
	i, err := w.waitingItem(id)
	if err != nil {
		return err
	}
	key := w.q.keys.item(id)
	e, body, err := openEnvelope(i.value)
	if err != nil {
		return corrupt(key, err)
	}
	config, err := w.config()
	if err != nil {
		return err
	}
	if max(config.retro().due(&e), dueMS) <= w.nowMS {
		return nil
	}
	oldMS := config.retro().timing(&e)
	if err := w.excludeHolders(guardEditExclude, id.Group); err != nil {
		return err
	}
	free := i.record == nil
	if i.stuck {
		if free, err = w.lapse(id.Group, i.record, nil, id); err != nil {
			return err
		}
	}
	freeHead := free && bytes.Equal(i.head, key)
	if freeHead {
		// Before the set, or else the item's own key would be left out of the conflict. The gap is awaitHead's: the old
		// timer, which is about to be cleared, may be that of an item which comes into the gap.
		gap := kv.KeyRange{Begin: w.q.keys.items(id.Group).Begin, End: kv.KeyAfter(key)}
		if err := guardEarlyGap.read(w.tx, gap); err != nil {
			return err
		}
	}
	e.dueMS = dueMS
	w.tx.Set(key, append(e.append(nil), body...))
	switch {
	case freeHead:
		return w.retimeHead(id, oldMS, dueMS)
	case free && i.stuck:
		return w.free(id.Group)
	}
	return nil // the hint or timer of the head, or of the holding, stays right
}

// retimeHead leads to the head of a group which nobody holds at dueMS, instead of by a timer with the time oldMS in its
// key. The caller has a read conflict
// on the lock, and on the gap up to the head.
func (w *txn) retimeHead(head ID, oldMS, dueMS int64) error {
	keys := w.q.keys
	for _, key := range keys.timersAt(oldMS, head.Group) {
		// With a conflict: a claim which leaves the group to its head at the same time sets the timer.
		timers, err := guardEarlyGap.reads(w.tx).GetRange(kv.SingleKey(key).Selectors(), kv.RangeOptions{}).Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read timer: %w", err)
		}
		for _, row := range timers { // at most one
			w.clear(row.Key)
		}
	}
	if dueMS > w.nowMS {
		return w.awaitHead(head.Group, keys.ready(head.Index, head.Group), head, dueMS)
	}
	return w.free(head.Group)
}
