package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
)

// This file has the take: it removes items in the caller's transaction. It finds groups as a receive does. dequeue.go
// explains the words lock, lane, packed template, candidate, verdict, hold and suspect, and claim_search.go the hints
// and timers.

// TakeTx removes up to max items of the oldest ready group in the caller's transaction and returns the items: if the
// transaction commits, the items are finished; if not, the items were never gone. The bodies together have at most 1
// MiB, but a larger first item is taken alone. There is no lease and nothing to ack, so the work must be done within
// the transaction (well under 5 s). TakeTx returns nothing if there is no ready group, or if it had to clear away as
// much as one transaction may: many items past retention, or claims whose leases have ended. max is 1 to MaxBatch. The
// caller must handle an unknown commit, for example with Once.
//
// again is true if nothing was taken, but the next transaction may take something at once. To drain a queue, call
// TakeTx until it returns nothing and again is false. Each such transaction, if it commits, has changed something, so
// the loop comes to an end.
//
// In a queue with Config.Unordered, TakeOptions.Unordered passes over what others hold.
//
// A group whose lease or delay has ended is ready, as for Receive: the item tried under the claim counts a failed
// attempt, and the claim is lost.
//
// Reads at snapshot: hints, due timers, attempts, parts, the rate (pace), and the configuration and the pause (meta).
// Reads with conflicts: the locks and the first hold that may exclude the take, the items taken and the next item (by a
// template their lane keys). A write conflict on the lock excludes other takers and claimers of the group.
//
// Writes: it clears the items with their attempts, lane keys and parts, and moves the hint of the group to the next
// item. In a queue with an archive the parts stay, and it writes the items there (archive, archived). It writes the
// rate, counters and changes, and wakes handles for a group that it leaves ready. It ends a lease or delay that is over
// (lock, timer, attempt, dead), and clears away the same as a receive. With Config.MaxRateTotal it may draw from the
// rate (meta) in a transaction of its own, and this draw stays even if the caller's transaction does not commit.
//
// Errors: *LimitError, ErrInvalidUTF8, *TemplateError and ErrOptions for the arguments; ErrCorrupt if nothing was taken
// and a group cannot be read; ErrNoQueue, ErrClosed, and the engine's. The error is also a *LimitError if the
// transaction has half of FoundationDB's 10,000,000 bytes already, or has become too large.
func (q *Queue) TakeTx(ctx context.Context, tx kv.Tx, max int, o TakeOptions) (items []Item, again bool, err error) {
	items, again, err = q.takeTx(ctx, tx, max, o)
	return items, again, wrap("take", err)
}

// TakeOptions say what a take may take. The zero value is the normal use: from any group.
type TakeOptions struct {
	// Group, if not nil, is the only group to take from; see OnlyGroup.
	Group *string
	// Where, if not nil, is the template of the items to take, as in ReceiveOptions. A template without facets is
	// refused (*TemplateError).
	Where Template
	// Unordered takes free items of one group, as ReceiveOptions.Unordered does, and passes over items in flight. Not
	// with Where.
	Unordered bool
}

// where returns the packed template of a take: of o.Where, or of the free lane if Unordered; "" = whole groups. The
// error says that the queue has no such template or no unordered receives, or that the options do not go together.
func (o *TakeOptions) where(q *Queue) (string, error) {
	if !o.Unordered {
		return q.keys.where(o.Where)
	}
	where, ok := q.keys.plan.WhereUnordered()
	switch {
	case !ok:
		return "", errUnordered
	case o.Where != nil:
		return "", fmt.Errorf("%w: unordered, and a template", ErrOptions)
	}
	return where, nil
}

// takeTx is TakeTx without the name of the call in its errors. Before the take, keepOwn may extend claims of the handle
// (locks and timers). If nothing was taken and again is false, it returns the error of the first group that could not
// be read.
func (q *Queue) takeTx(
	ctx context.Context, tx kv.Tx, max int, o TakeOptions,
) (items []Item, again bool, err error) {
	if max < 1 || max > MaxBatch {
		return nil, false, &LimitError{What: "take", Unit: "items", Got: int64(max), Min: 1, Max: MaxBatch}
	}
	where, err := o.where(q)
	if err != nil {
		return nil, false, err
	}
	if o.Group != nil {
		if err := checkGroup(*o.Group); err != nil {
			return nil, false, err
		}
	}
	var broken error
	err = q.operate(ctx, tx, func(w *txn) (err error) {
		if err := w.checkRoom(); err != nil {
			return err
		}
		if err := keepOwn(w); err != nil {
			return err
		}
		if o.Group == nil {
			items, err = w.takeTo(where, max)
		} else {
			items, err = w.takeFromGroup(*o.Group, where, max)
		}
		again = len(items) == 0 && w.leaves()
		broken = w.broken
		return err
	})
	// With again, an error would undo what lets the next take go on. The error comes after the end of operate, because
	// the caller may commit what the take has removed.
	if err == nil && len(items) == 0 && !again {
		err = broken
	}
	if err != nil {
		return nil, false, err
	}
	return items, again, nil
}

// takeFromGroup takes up to max items of a group, or of its lane by the packed template where. It first ends expired
// holds of the group, if receives by where claim single items. It takes nothing while the queue is paused.
func (w *txn) takeFromGroup(group, where string, max int) ([]Item, error) {
	if paused, err := w.paused(); err != nil || paused {
		return nil, err
	}
	if _, _, err := meetNamed(w, group, where, w.endHoldAt); err != nil {
		return nil, err
	}
	return w.takeFrom(candidate{lane: lanes.Name(group, where)}, max)
}

// takeProbe is how many candidates a take asks the search for at once: the first is nearly always good.
const takeProbe = 2

// takeTo looks at the lanes of a template in the order of the search, and takes up to max items of the first lane that
// gives any. If no lane has given any, takeTo ends claims by the due heartbeats that the search has met (endBeats), and
// searches once more. It takes nothing if no lane is ready, if the queue is paused, if its rate is used up, or if the
// transaction has done enough.
func (w *txn) takeTo(where string, max int) ([]Item, error) {
	s, again := newSearch(w, where), false
	s.fromTheOldest()
	for {
		found, err := s.next(takeProbe)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			due := w.beats.due // heartbeats that the search has met
			w.beats.due = nil
			if again {
				w.chores.postponed = w.chores.postponed || len(due) > 0
				return nil, nil
			}
			if again, err = w.endBeats(due); err != nil || !again {
				return nil, err
			}
			s = newSearch(w, where)
			s.fromTheOldest()
			continue
		}
		if paused, err := w.paused(); err != nil || paused {
			return nil, err
		}
		for _, c := range found {
			if short, err := w.short(); err != nil || short || w.enough() {
				return nil, err
			}
			items, err := w.takeFrom(c, max)
			if len(items) > 0 {
				s.given(&c)
			}
			if err != nil || len(items) > 0 {
				return items, err
			}
		}
	}
}

// takeFrom takes up to limit items of the candidate's lane. If the lane is held, empty or not due, takeFrom carries out
// the verdict instead, for example clears the stale hint or timer, and looks again if items may be left. If the
// transaction has done enough, takeFrom leaves the verdict to the next transaction (postponed). A timer of a hold makes
// takeFrom end the hold first. If the lane is under a claim by heartbeat and the heartbeat is due, takeFrom ends the
// claim. It returns nothing if the group cannot be read: see breaks.
//
// Reads: the lock and limit + 1 items, with conflicts; of a lane that is no whole group its lane keys with conflicts,
// and the items at snapshot. In a queue with facets or holds also the locks of intersecting lanes and the first hold,
// with conflicts. So a clearing conflicts with a release and with an enqueue. It reads the pace, and after an expired
// claim the attempt records, at snapshot. takeItems, carryOutVerdict, endHold and endOwner say which keys they write.
func (w *txn) takeFrom(c candidate, limit int) ([]Item, error) {
	if lanes.IsHold(c.lane) { // a timer of a hold: if the time of the hold is over, the item is free
		if w.tired() {
			return nil, nil
		}
		behind, free, err := w.endHold(c, w.read.Get(w.keys.lock(c.lane)))
		if err != nil || !free {
			return nil, w.breaks(err)
		}
		if c = (candidate{lane: lanes.Name(c.group(), w.keys.plan.HoldWhere())}); behind != nil {
			c = *behind
		}
	}
	for {
		held := w.guarded(guard.TakeLock).readLaneLock(w.read, c.lane, locksAtOnce)
		if !w.keys.plan.IsPlain() {
			if err := w.fenceOver(guard.TakeLock, c.lane); err != nil {
				return nil, err
			}
		}
		// Read one item more than wanted: the group's next head. If there is no such item, the read has covered the
		// whole rest of the group, and an enqueue into the rest conflicts.
		read := w.guarded(guard.TakeItems).readItems(w.read, c.lane, limit+1)
		pace := w.readPace(c.group())
		f, err := w.await(c, held, read)
		if err == nil && f.behindOver && f.rows.len() < limit && !w.tired() {
			if _, err := w.endHolds(f.group(), w.endHoldAt); err != nil {
				return nil, w.breaks(err)
			}
			continue
		}
		if err == nil {
			f.pace, f.fenced = pace, true
			err = w.assess(f)
		}
		switch {
		case err != nil:
			return nil, w.breaks(err) // it is unknown which items may be taken
		case f.verdict == verdictDeliver:
			return w.takeItems(f, limit)
		case w.putsOff(f):
			w.chores.postponed = true
			return nil, nil
		}
		behind, err := carryOutVerdict(w, f)
		if err != nil {
			return nil, w.breaks(err)
		}
		if behind == nil {
			if again, err := w.endOwner(f.lane, f.record); err != nil || !again {
				return nil, err
			}
			continue
		}
		c = *behind
	}
}

// endHoldAt ends the hold of which lane is the name, if its time is over: see endHold. Takes pass it to meetNamed and
// endHolds.
func (w *txn) endHoldAt(lane string) error {
	_, _, err := w.endHold(candidate{lane: lane}, w.read.Get(w.keys.lock(lane)))
	return err
}

// takeItems takes up to limit items of f, a lane that is free or under a holding that has ended, and returns them. The
// bodies together have at most defaultMaxBytes, except that a larger first item is taken alone. takeItems takes nothing
// if the queue's rate is used up, or if the first item or an attempt record cannot be read. runWithin books the items
// in the queue's rate (MaxRateTotal).
//
// It clears the items, their lane keys, their attempt records and the hint or timer that led here; if the caller has
// named the lane, the hint and the timers of the head (clearTaken). It clears the parts of their bodies, or, in a queue
// with an archive, writes the items there (archive, archived). It adds a write conflict on the lock, sets the hint of
// the next item, writes the group's pace if the queue has a rate for groups, and tells subscriptions. It ends a holding
// whose time is over: lapse has the keys. It reads attempt records at snapshot.
func (w *txn) takeItems(f *found, limit int) ([]Item, error) {
	n, size := 0, 0
	items, out, err := w.runWithin(f, limit, func(next int) bool {
		n, size = n+1, size+next
		return n == 1 || size <= defaultMaxBytes
	})
	if err != nil || len(out) == 0 {
		return nil, w.breaks(err)
	}
	// An attempt record that cannot be read must be met before the first write. attemptsOf reads it for free lanes.
	if f.record != nil {
		if _, err := w.readAttempts(itemIDs(items)); err != nil {
			return nil, notTaken(w, len(items), err)
		}
	}
	if err := w.excludeHolders(guard.TakeExclude, f.lane); err != nil {
		return nil, err
	}
	if f.record != nil {
		if _, err := w.lapse(f.lane, f.record, f.failure, ID{}); err != nil {
			return nil, err
		}
	}
	if err := w.attemptsOf(f, items); err != nil {
		if f.record == nil {
			err = notTaken(w, len(items), err)
		}
		return nil, err
	}
	archived, err := w.archives()
	if err != nil {
		return nil, err
	}
	if archived {
		values := make([][]byte, len(out))
		for i := range values {
			values[i] = f.rows.at(i).Value
		}
		place, err := w.clock()
		if err != nil {
			return nil, err
		}
		w.archive(place, f.group(), out, values)
	}
	w.remove(f.group(), out, out, archived)
	w.spend(f.group(), f.allowed, len(out))
	clearTaken(w, f)
	w.count(countTaken, len(out))
	w.changeAll(ChangeFinished, f.group(), out)
	var next ID
	switch {
	case f.rows.len() > len(out):
		next = f.rows.id(len(out))
	case f.behind != nil:
		next = *f.behind
	default:
		return items, nil
	}
	attempts := 0
	// The messages behind a head that has failed may be suspect. Nothing says how often the head of a named group has
	// failed.
	if f.record != nil || f.head || f.attempts > 0 || f.key == nil {
		if attempts, err = hintedOf(w, readRecords(&w.view, next)); err != nil {
			return nil, err
		}
	}
	if next.Index == 0 { // its key cannot be read: the receive that follows the hint says so
		if next.Index, err = w.clock(); err != nil {
			return nil, err
		}
	}
	_, err = w.rehint(next.Index, f.lane, attempts)
	return items, err
}

// breaks makes a take pass over a group that cannot be read: it stores the first such error in w.broken, and returns
// nil. The take returns the stored error if it takes no item. breaks returns any other error. The unreadable group is
// unchanged.
func (w *txn) breaks(err error) error {
	if !isCorrupt(err) {
		return err
	}
	if w.broken == nil {
		w.broken = err
	}
	return nil
}

// notTaken is breaks for a group of which n items were booked in the queue's rate (MaxRateTotal): it ends the bookings.
func notTaken(w *txn, n int, err error) error {
	w.unreserve(n)
	return w.breaks(err)
}

// attemptsOf sets FirstDelivered, Attempts and LastFailed of the items. It reads the attempt records, at snapshot,
// unless the hint that led here says that the head has never failed.
func (w *txn) attemptsOf(f *found, items []Item) error {
	for i := range items {
		items[i].FirstDelivered = fromMillis(w.nowMS)
	}
	if f.key != nil && f.isCounted(w.keys.plan) {
		if items[0].ID.Index == f.index {
			items[0].Attempts = f.attempts // as the hint says
		}
		if f.attempts == 0 {
			return nil
		}
	}
	// The attempts include the failure counted just now.
	attempts, err := w.readAttempts(itemIDs(items))
	if err != nil {
		return err
	}
	for i := range items {
		items[i].failedBefore(attempts[items[i].ID])
	}
	return nil
}
