package layer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// RedriveOptions say how dead letters go back to their groups. The zero value puts each letter back at its old place.
type RedriveOptions struct {
	// ToTail enqueues the letters now, at the tails of their groups, with new ids. Otherwise each letter comes back
	// under its own id, before the items which followed.
	ToTail bool
	// Edit, if not nil, is given each message and may change its body and its headers, and nothing else. Edit may run
	// several times, and must return at once, because it is part of a transaction, which lasts five seconds: a slower
	// Edit runs again and again until ctx ends. An error ends the redrive before the step at hand, also an error that
	// wraps a *kv.Error. A dry run calls Edit, too, and ends at the same error.
	Edit func(d DeadLetter, m *Message) error
	// DryRun changes nothing and reports what would be done.
	DryRun bool
	// Limit is how many to redrive at most; 0 = every chosen letter.
	Limit int
	// Progress, if not nil, is called after each transaction with the report so far.
	Progress func(DeadReport)
}

// DiscardOptions say how dead letters are removed.
type DiscardOptions struct {
	// DryRun changes nothing and reports what would be done.
	DryRun bool
	// Limit is how many to remove at most; 0 = every chosen letter.
	Limit int
	// Progress, if not nil, is called after each transaction with the report so far.
	Progress func(DeadReport)
}

// DeadReport is what a redrive or a discard has done.
type DeadReport struct {
	Scanned int64 // dead letters looked at
	Done    int64 // redriven or discarded; in a dry run: would be
	// Unreadable letters stay where they are: DeadLetters with Bodies lists each with the reason. With ToTail or Edit a
	// letter whose body cannot be read is one of them.
	Unreadable int64
	Missing    []ID // chosen by id, and no dead letters
}

// The bounds of one transaction of a redrive or a discard.
const (
	deadStepRows  = 100
	deadStepBytes = 1 << 20 // written by the transaction; a first letter alone may have more
)

// Redrive gives the dead letters which f chooses back to their groups, with no attempts counted. f must say what it
// chooses; DeadFilter.All says all letters. Redrive works in short transactions at batch priority, each all or none; a
// redrive may be stopped at any point and run again to go on. A holder keeps its claim: a letter whose place is before
// the claim's items is delivered after the claim has ended. Redrive gives each letter back once, also if the letter is
// dead again before the end of the redrive.
//
// The letters of a group come back in order, up to 100 a transaction; letters already back may be delivered between two
// transactions. Example: a group has 150 letters, and then a live item. The item may be delivered before the last 50
// letters are back, unless the group is paused (PauseGroup) for the time of the redrive.
//
// RedriveTx lists the keys that Redrive reads and writes. If f has a time, Redrive also reads receipts, at snapshot.
//
// After an error, the report says what was done before. Errors: ErrNotDead if chosen ids are no dead letters, when all
// others are done; ErrOptions, ErrInvalidID, ErrInvalidUTF8, *LimitError; ErrClock if f has a time and the clocks
// disagree; errors of Edit; ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Redrive(ctx context.Context, f DeadFilter, o RedriveOptions) (DeadReport, error) {
	return a.sweepDead(VerbRedrive, &deadSweep{
		q: a.q, ctx: ctx, filter: f, dryRun: o.DryRun, limit: int64(o.Limit), progress: o.Progress, redrive: &o,
	})
}

// RedriveTx redrives chosen letters, up to MaxBatch, in the caller's transaction, all or none. Without ids it does
// nothing. DryRun, Limit and Progress are refused (ErrOptions). The caller must handle an unknown commit, for example
// with Once.
//
// Reads: each letter, with a conflict. With ToTail or Edit, its parts, at snapshot. With ToTail, its dedup entry, with
// a conflict, and the keys that an enqueue reads. Without ToTail, if each group is one lane, the lock of each group,
// with a conflict, and the first attempts of the group from the letter on. With Config.Retention, receipts, to compare
// the clocks of the handles. Conflicts: with ToTail as an enqueue; else with claims, acks and takes of the groups, and
// with all else that reads their locks.
//
// Writes: clears the letters. Without ToTail: the items, their keys lane and the hints of their lanes, a write conflict
// on the lock of each group, and the parts of edited letters. With ToTail: clears the parts, and writes the dedup
// entries and the keys that an enqueue writes.
//
// Errors: ErrNotDead, ErrCorrupt if a letter cannot be read, ErrOptions, ErrInvalidID, errors of Edit: nothing of this
// call is in the transaction then. Also *LimitError, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) RedriveTx(ctx context.Context, tx kv.Tx, o RedriveOptions, ids ...ID) error {
	if o.DryRun || o.Limit != 0 || o.Progress != nil {
		return wrap("redrive", fmt.Errorf("%w: a dry run, limit or progress of a single transaction", ErrOptions))
	}
	do := func(w *txn, rows []deadRow) error { return w.redrive(rows, &o) }
	return wrap("redrive", reveal(a.q.deadTx(ctx, tx, ids, do)))
}

// Discard removes the dead letters which f chooses, for good. f must say what it chooses; DeadFilter.All says all
// letters. Discard works as Redrive does, and never touches a group. With Before it leaves the letters whose messages
// are younger than that by the database's versions, because a clock is wrong then. DiscardTx lists the keys that
// Discard reads and writes. If f has a time, Discard also reads receipts, at snapshot.
func (a Admin) Discard(ctx context.Context, f DeadFilter, o DiscardOptions) (DeadReport, error) {
	return a.sweepDead(VerbDiscard, &deadSweep{
		q: a.q, ctx: ctx, filter: f, dryRun: o.DryRun, limit: int64(o.Limit), progress: o.Progress,
	})
}

// sweepDead runs the redrive or discard s, as the operation v of hooks. A dry run calls no hooks.
func (a Admin) sweepDead(v Verb, s *deadSweep) (DeadReport, error) {
	if s.dryRun {
		err := s.run()
		return s.report, wrap(string(v), err)
	}
	id := ID{}
	if len(s.filter.IDs) == 1 {
		id = s.filter.IDs[0]
	}
	err := a.act(s.ctx, v, s.filter.Group, id, func(ctx context.Context) (int, error) {
		s.ctx = ctx
		err := s.run()
		return int(s.report.Done), err
	})
	return s.report, err
}

// DiscardTx discards chosen letters, up to MaxBatch, in the caller's transaction, all or none. Without ids it does
// nothing. The caller must handle an unknown commit: with Once, or by a second call, which fails with ErrNotDead if the
// letters are gone.
//
// Reads: each letter, with a conflict. Writes: clears the letters and their parts.
//
// Errors: ErrNotDead, ErrCorrupt if a letter cannot be read, ErrInvalidID, *LimitError, ErrNoQueue, ErrClosed, and the
// engine's.
func (a Admin) DiscardTx(ctx context.Context, tx kv.Tx, ids ...ID) error {
	return wrap("discard", a.q.deadTx(ctx, tx, ids, (*txn).discard))
}

// deadTx reads the dead letters with these ids, at snapshot, and runs do on them in the caller's transaction. do adds
// the conflicts. It gets the letters in the order of their keys, each once. If an id is of no dead letter, the error
// wraps ErrNotDead; if a letter cannot be read, ErrCorrupt. In both cases, and without ids, do does not run.
func (q *Queue) deadTx(ctx context.Context, tx kv.Tx, ids []ID, do func(w *txn, rows []deadRow) error) error {
	if len(ids) > MaxBatch {
		return &LimitError{What: "batch", Unit: "dead letters", Got: int64(len(ids)), Max: MaxBatch}
	}
	if len(ids) == 0 {
		return nil
	}
	f := DeadFilter{IDs: ids}
	if err := f.check(); err != nil {
		return err
	}
	return q.operate(ctx, tx, func(w *txn) error {
		step, err := q.walkDead(&f, nil).read(&w.view, len(ids))
		if err != nil {
			return err
		}
		if len(step.missing) > 0 {
			return fmt.Errorf("%w: %s", ErrNotDead, step.missing[0])
		}
		for i := range step.rows {
			if step.rows[i].dead == nil {
				return fmt.Errorf("%w: %s", ErrCorrupt, step.rows[i].letter.Reason)
			}
		}
		return do(w, step.rows)
	})
}

// deadSweep is a redrive or a discard under way, of all dead letters that a filter chooses, step by step.
type deadSweep struct {
	q        *Queue
	ctx      context.Context
	filter   DeadFilter
	dryRun   bool
	limit    int64 // of letters; 0 = no limit
	progress func(DeadReport)
	redrive  *RedriveOptions // nil = a discard
	report   DeadReport
	// back are the letters of group that went to the tail already, by the random of their ids, which they keep. If such
	// a message is dead again, the walk comes to it again, and leaves it.
	group string
	back  map[uuid.UUID]bool
}

// opens reports whether the redrive needs the messages of the letters, with the parts of their bodies.
func (s *deadSweep) opens() bool {
	return s.redrive != nil && (s.redrive.ToTail || s.redrive.Edit != nil)
}

// run does the steps until all chosen letters, or as many as the limit, are done. Each step happens once. The error is
// ErrNotDead if chosen ids are no dead letters, when all others are done.
func (s *deadSweep) run() error {
	limit, err := limitOf(s.limit, "dead letters")
	if err == nil {
		err = s.filter.checkChosen()
	}
	if err == nil {
		err = checkClock(s.ctx, s.q, &s.filter)
	}
	if err != nil {
		return err
	}
	s.limit = limit
	walk := s.q.walkDead(&s.filter, nil)
	steps := job[sweptStep]{
		q: s.q, ctx: s.ctx, width: deadStepRows, once: true, reads: s.dryRun,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (sweptStep, bool, error) { return s.attempt(walk, tx, width) },
		pass: func(done sweptStep) bool {
			walk.pass(done.deadStep)
			s.report.Scanned += int64(done.scanned)
			s.report.Done += done.done
			s.report.Unreadable += done.unreadable
			s.report.Missing = append(s.report.Missing, done.missing...)
			for _, id := range done.moved {
				if s.back == nil || s.group != id.Group {
					s.group, s.back = id.Group, make(map[uuid.UUID]bool)
				}
				s.back[id.Random] = true
			}
			if s.progress != nil {
				s.progress(s.report)
			}
			return !walk.ended && s.report.Done < s.limit
		},
	}
	if err := steps.run(!walk.ended); err != nil {
		return reveal(err)
	}
	switch n := len(s.report.Missing); n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%w: %s", ErrNotDead, s.report.Missing[0])
	default:
		return fmt.Errorf("%w: %s, and %d more", ErrNotDead, s.report.Missing[0], n-1)
	}
}

// checkClock returns an error that wraps ErrClock if the filter has a time, and the clock of another process is more
// than clockSlack behind this one's. The time may then be by a wrong clock, for example if it is an age. It reads the
// receipts.
func checkClock(ctx context.Context, q *Queue, f *DeadFilter) error {
	if f.From.IsZero() && f.Before.IsZero() {
		return nil
	}
	return q.view(ctx, func(v *view) error {
		apart, err := v.disagreement()
		if err == nil && apart != nil {
			return apart
		}
		return err
	})
}

// tooYoung returns a function that reports whether a dead letter cannot have died before filter.Before, the bound of a
// discard. It cannot if its message, judged by versions, was enqueued more than clockSlack after filter.Before. Then
// one of the clocks is wrong, and the letter stays: see view.moment. For a redrive, and without Before, the function
// always returns false. tooYoung reads the read version of the transaction, and no key.
func tooYoung(s *deadSweep, v *view) (func(row *deadRow) bool, error) {
	if s.redrive != nil || s.filter.Before.IsZero() {
		return func(*deadRow) bool { return false }, nil
	}
	m, err := v.moment()
	age := time.Duration(m.nowMS-millis(s.filter.Before))*time.Millisecond - clockSlack
	return func(row *deadRow) bool { return !m.old(row.letter.ID.Index, age) }, err
}

// sweptStep is what a step of a deadSweep has read and done.
type sweptStep struct {
	deadStep
	done       int64 // letters redriven or discarded
	unreadable int64 // letters that were chosen and cannot be read
	moved      []ID  // the letters done, if they went to the tails
}

// attempt is one attempt of a step: it chooses letters, and redrives or discards them. In a dry run it only chooses.
// wrote means: the transaction has redriven or discarded letters, and needs a receipt. Without a receipt, after a
// commit of unknown outcome the report would miss the letters of the commit, and their ids would be taken for unknown.
// The error is ErrNoQueue if the queue is gone, also if attempt writes nothing.
func (s *deadSweep) attempt(walk *deadWalk, tx kv.Tx, width int) (done sweptStep, wrote bool, err error) {
	w := s.q.txn(s.ctx, tx)
	done, rows, err := s.choose(walk, w, width)
	if err != nil {
		return done, false, err
	}
	if s.dryRun || len(rows) == 0 {
		return done, false, s.q.exists(s.ctx, tx)
	}
	if s.redrive == nil {
		err = w.discard(rows)
	} else {
		err = w.redrive(rows, s.redrive)
	}
	if err != nil {
		return done, false, err
	}
	return done, true, w.finish()
}

// choose reads the letters (dead) for one transaction: up to width, up to the limit, and for a redrive about
// deadStepBytes to write. It returns the step, and the letters to redrive or discard. Not among them are letters that
// cannot be read, are too young (tooYoung), or went to the tail already (back). If the redrive needs the messages,
// choose also reads the parts of the bodies, and calls RedriveOptions.Edit. The reads are at snapshot: redrive and
// discard add the conflicts.
func (s *deadSweep) choose(walk *deadWalk, w *txn, width int) (sweptStep, []deadRow, error) {
	step, err := walk.read(&w.view, width)
	out := sweptStep{deadStep: step}
	if err != nil {
		return out, nil, err
	}
	young, err := tooYoung(s, &w.view)
	if err != nil {
		return out, nil, fmt.Errorf("read version: %w", err)
	}
	var rows []deadRow
	size := int64(0)
	for i := range step.rows {
		row := &step.rows[i]
		if row.dead == nil {
			out.unreadable++
			continue
		}
		if s.group == row.letter.ID.Group && s.back[row.letter.ID.Random] || young(row) {
			continue
		}
		if s.redrive != nil {
			size += int64(len(row.value))
		}
		if s.opens() {
			size += row.letter.Size
		}
		if len(rows) > 0 && size > deadStepBytes || s.report.Done+int64(len(rows)) == s.limit {
			out.cutBefore(i, walk)
			break
		}
		if s.opens() { // also of a dry run, which so finds what the run would find
			err := w.open(row)
			if s.q.skipsRow(err) {
				out.unreadable++
				continue
			}
			if err == nil {
				row.message, err = w.edited(row, s.redrive)
			}
			if err != nil {
				return out, nil, err
			}
		}
		rows = append(rows, *row)
		if s.redrive != nil && s.redrive.ToTail {
			out.moved = append(out.moved, row.letter.ID)
		}
	}
	out.done = int64(len(rows))
	out.rows = nil
	return out, rows, nil
}

// cutBefore ends a step before its i-th row, which is the first of the next step. i is not 0. The fields of the step
// then say what the walk has passed up to the row before.
func (t *sweptStep) cutBefore(i int, walk *deadWalk) {
	last := &t.rows[i-1]
	t.ended, t.last, t.scanned = false, last.key, last.nth+1
	if !walk.named {
		return
	}
	ids := walk.ids[walk.idsAt:]
	t.ids = slices.Index(ids, last.letter.ID) + 1
	t.missing = slices.DeleteFunc(t.missing, func(id ID) bool { return !slices.Contains(ids[:t.ids], id) })
}

// bury clears dead letters (dead), but not their parts. Footprint: a read conflict on each letter, so that of two
// redrives only the first commits.
func (w *txn) bury(rows []deadRow) error {
	for i := range rows {
		if err := guard.Letter.Read(w.tx, kv.SingleKey(rows[i].key)); err != nil {
			return err
		}
		w.tx.Clear(rows[i].key)
	}
	return nil
}

// discard removes dead letters for good: it clears the letters (dead) and their parts, and adds to the counters and the
// changes. bury adds the read conflicts.
func (w *txn) discard(rows []deadRow) error {
	for i := range rows {
		w.tx.ClearRange(w.keys.parts(rows[i].letter.ID))
		facets := ""
		if rows[i].dead != nil {
			facets = w.keys.plan.FacetsIn(rows[i].dead.Item)
		}
		w.change(ChangeDiscarded, rows[i].letter.ID, facets)
	}
	w.count(countDiscarded, len(rows))
	return w.bury(rows)
}

// redrive gives dead letters back to their groups as o says: to the tails (redriveToTail), or, as follows, to their old
// places. rows must be in the order of their keys, each once. redrive writes the items again (exhumedOf, exhume),
// clears the letters (bury), and makes each group findable by hints. A write conflict on each group's lock excludes
// claims that have not seen the items.
//
// In a queue in which each group is one lane, redrive reads the group's lock with a conflict, and the first attempt
// record of the group from the letter on, for the hint. It writes a hint only if there is no lock. In any other queue
// each lane of an item gets the item and a hint, held or not (hintLanes).
func (w *txn) redrive(rows []deadRow, o *RedriveOptions) error {
	w.count(countRedriven, len(rows))
	if o.ToTail {
		return w.redriveToTail(rows, o)
	}
	var locks map[string]kv.Future[[]byte] // nil = each lane gets a hint, held or not
	records := make(map[string]*recordsRead)
	if w.keys.plan.IsPlain() {
		locks = make(map[string]kv.Future[[]byte])
		for i := range rows {
			if group := rows[i].letter.ID.Group; locks[group] == nil {
				locks[group] = guard.RedriveLock.Get(w.tx, w.keys.lock(group))
				records[group] = readRecords(&w.view, rows[i].letter.ID)
			}
		}
	}
	all := make([]exhumed, len(rows))
	for i := range rows { // before the first write: RedriveTx leaves no half in the transaction of a caller who commits
		var err error
		if all[i], err = exhumedOf(w, &rows[i], o); err != nil {
			return err
		}
	}
	if err := w.bury(rows); err != nil {
		return err
	}
	for i := range rows {
		id := rows[i].letter.ID
		w.exhume(id, &all[i])
		first := i == 0 || rows[i-1].letter.ID.Group != id.Group
		if first {
			if err := w.excludeHolders(guard.RedriveExclude, id.Group); err != nil {
				return err
			}
		}
		if locks == nil {
			if err := w.hintLanes(id, all[i].facets); err != nil {
				return err
			}
		} else if first {
			held, err := locks[id.Group].Wait(w.ctx)
			if err != nil {
				return fmt.Errorf("read lock: %w", err)
			}
			// The letter may be the head now. If the group is held, the holder sets the hint at the end.
			if held == nil {
				attempts, err := hintedOf(w, records[id.Group])
				if err != nil {
					return err
				}
				if _, err := w.rehint(id.Index, id.Group, attempts); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// exhumed is an item that comes back under its own key, out of a dead letter.
type exhumed struct {
	value  []byte   // of the item: envelope and begin of the body
	edited bool     // else the parts of the body have stayed where they were
	parts  [][]byte // of an edited body
	facets string   // packed
}

// exhumedOf makes the item from a dead letter that was read, and edits it if o says so. It writes nothing. It reads the
// parts of a body that is to be edited, and with Retention receipts (renewed).
func exhumedOf(w *txn, row *deadRow, o *RedriveOptions) (e exhumed, err error) {
	e.value, e.edited = row.dead.Item, o.Edit != nil
	if e.edited {
		m, err := w.edited(row, o)
		if err != nil {
			return e, err
		}
		envelope, _, err := rec.OpenEnvelope(e.value)
		if err != nil {
			return e, rec.Corrupt(row.key, err)
		}
		e.value, e.parts = split(nil, m, envelope)
	}
	e.value, err = w.renewed(e.value)
	e.facets = w.keys.plan.FacetsIn(e.value)
	return e, err
}

// exhume writes an item under the id of its dead letter. If the body was edited, it also clears the old parts and
// writes the new ones. The caller must clear the letter, and must exclude the holders of the group, because the item
// may come before those of a claim. It must also make the item findable in its lanes: by a hint, and by the key lane in
// a lane that is no whole group (hintLanes).
func (w *txn) exhume(id ID, e *exhumed) {
	if e.edited {
		w.tx.ClearRange(w.keys.parts(id))
	}
	w.tx.Set(w.keys.item(id), e.value)
	for n, part := range e.parts {
		w.tx.Set(w.keys.part(id, n), part)
	}
	w.change(ChangeRedriven, id, e.facets)
}

// renewed returns the value of a dead letter's item that comes back. It writes nothing, and reads receipts (present).
// An item past retention counts as enqueued now, because otherwise it would expire at once. Its delay is over then: the
// old end of the delay and the new time may be by two clocks. With RetroactiveDelay a DueMS of 0 would begin the
// queue's delay again, so DueMS becomes the new time.
func (w *txn) renewed(value []byte) ([]byte, error) {
	config, err := w.config()
	if err != nil || config.Retention == 0 {
		return value, err
	}
	e, body, err := rec.OpenEnvelope(value)
	if err != nil {
		return nil, err
	}
	now, err := w.present()
	if err != nil || now-config.retro().waitsSince(&e) <= config.Retention.Milliseconds() {
		return value, err
	}
	e.EnqueuedMS, e.DueMS = now, config.retro().own(now)
	return append(e.Append(make([]byte, 0, len(value)+16)), body...), nil
}

// open sets row.item, the item of a dead letter that was read. It reads the parts of the body (part), at snapshot. If
// row.item is set already, open does nothing.
func (w *txn) open(row *deadRow) error {
	if row.item != nil {
		return nil
	}
	item, err := w.readItem(kv.KV{Key: w.keys.item(row.letter.ID), Value: row.dead.Item})
	if err == nil {
		row.item = &item
	}
	return err
}

// edited returns the message of a dead letter, changed by o.Edit if there is one. It reads the parts of the body
// (open). If row.message is set already, edited returns that, and reads and calls nothing.
func (w *txn) edited(row *deadRow, o *RedriveOptions) (*Message, error) {
	if row.message != nil {
		return row.message, nil
	}
	if err := w.open(row); err != nil {
		return nil, err
	}
	m := row.item.message()
	if o.Edit == nil {
		return &m, nil
	}
	err := changeMessage(w, &m, row.item, func(m *Message) error { return given(o.Edit(row.letter, m)) })
	if err != nil {
		return nil, fmt.Errorf("dead letter %s: %w", row.letter.ID, err)
	}
	return &m, nil
}

// redriveToTail enqueues letters at the tails of their groups (groupOfLetter), under new indexes and with the same
// randoms, and clears the letters (dead) and their parts. The dedup entries of the messages then name the new ids
// (renamed). It reads the parts of the bodies, unless choose has done so. For the other keys see txn.enqueue.
func (w *txn) redriveToTail(rows []deadRow, o *RedriveOptions) error {
	e := &enqueuing{redriven: true, told: ChangeRedriven}
	for i := range rows {
		m, err := w.edited(&rows[i], o)
		if err != nil {
			return err
		}
		m.Group = groupOfLetter(&rows[i])
		e.msgs = append(e.msgs, *m)
		e.randoms = append(e.randoms, rows[i].letter.ID.Random)
	}
	for i := range rows {
		w.tx.ClearRange(w.keys.parts(rows[i].letter.ID))
	}
	if err := w.bury(rows); err != nil {
		return err
	}
	if err := w.enqueue(e); err != nil {
		return err
	}
	for i := range rows {
		if err := w.renamed(e.msgs[i].DedupID, rows[i].letter.ID, e.sent[i].ID); err != nil {
			return err
		}
	}
	return nil
}

// groupOfLetter returns the group to whose tail a letter goes. For a message that failed while it waited to join its
// group (see Message.JoinWhenDue), that is the group to join. Otherwise the letter's own group.
func groupOfLetter(row *deadRow) string {
	group, waits := joinedFrom(row.letter.ID.Group)
	if !waits {
		return row.letter.ID.Group
	}
	if e, _, err := rec.OpenEnvelope(row.dead.Item); err != nil || !e.Joins {
		return row.letter.ID.Group
	}
	return group
}

// DeadLetter is a dead-lettered item: failed for good, skipped, or past retention. The place in the group is kept.
type DeadLetter struct {
	ID       ID
	Headers  map[string]string // nil if there are none
	Body     []byte            // nil if not asked for
	Size     int64             // of the body, bytes
	Enqueued time.Time
	DedupID  string // the dedup id in use; "sha256:…" if made from the body; "" = none
	// Reason is the number of failed attempts, the text of the reject, the operator who skipped the item, or the
	// exceeded retention.
	Reason    string
	LastError string // of the last failed delivery with an error
	Attempts  int    // failed deliveries
	// FirstDelivered is when the delivery began that failed first, see Item.FirstDelivered; zero if none has failed.
	FirstDelivered time.Time
	First          time.Time
	Last           time.Time // failed delivery; zero if none has failed, see Skip
	DeadLettered   time.Time
	// Err says why the letter cannot be read, as Reason then does, too; nil if readable. The body is read only if asked
	// for.
	Err error
}

// DeadFilter chooses the dead letters for which every set field holds. The zero value is refused by Redrive and Discard
// (ErrOptions); DeadLetters lists all for it, because a list only reads.
type DeadFilter struct {
	// All chooses all letters. Not with anything else.
	All bool
	// IDs chooses the named letters alone, listed in key order whatever the order of IDs. An empty list that is not nil
	// chooses none; nil = not set. Not with anything else.
	IDs []ID
	// Group, if not nil, is the only group; see OnlyGroup.
	Group *string
	// Text is a part of the reason or of the last error; "" = not set. A call that removes or moves letters refuses a
	// text of blanks alone (ErrOptions), because nearly every reason has a blank.
	Text string
	// From and Before bound the time of dead-lettering, by the clock of the process that did it: from From on, and
	// before Before. Zero = no bound.
	From, Before time.Time
}

// some reports whether the filter has a condition other than All and IDs.
func (f *DeadFilter) some() bool {
	return f.Group != nil || f.Text != "" || !f.From.IsZero() || !f.Before.IsZero()
}

// checkChosen is check for a call that removes or moves the chosen dead letters: the filter must not be empty.
func (f *DeadFilter) checkChosen() error {
	if !f.All && f.IDs == nil && !f.some() {
		return fmt.Errorf("%w: an empty filter: set IDs, Group, Text, From or Before, or All for all dead letters",
			ErrOptions)
	}
	if f.Text != "" && strings.TrimSpace(f.Text) == "" {
		return fmt.Errorf("%w: the text is blank, which would choose nearly all dead letters", ErrOptions)
	}
	return f.check()
}

// check returns an error if conditions of the filter do not go together, or one of them is illegal.
func (f *DeadFilter) check() error {
	if f.IDs != nil && f.some() {
		return fmt.Errorf("%w: ids of dead letters, and something else to choose by", ErrOptions)
	}
	if f.All && (f.IDs != nil || f.some()) {
		return fmt.Errorf("%w: all dead letters, and something else to choose by", ErrOptions)
	}
	for _, id := range f.IDs {
		if err := checkID(id); err != nil {
			return err
		}
	}
	if f.Group != nil {
		if err := checkGroup(*f.Group); err != nil {
			return err
		}
	}
	return checkSpan("dead-lettered", f.From, f.Before)
}

// matches reports whether the text and the time of a letter agree with the filter. The walk has chosen by group and ids
// already.
func (f *DeadFilter) matches(d *rec.DeadLetter) bool {
	return (f.Text == "" || strings.Contains(d.Reason, f.Text) || strings.Contains(d.LastError, f.Text)) &&
		inSpan(d.DeadMS, f.From, f.Before)
}

// DeadOptions say which dead letters to list. The zero value lists the first 100.
type DeadOptions struct {
	DeadFilter
	// After is the letter behind which the page begins: DeadPage.Next of the page before. It need not be there any
	// more. With Group it must be of that group.
	After *ID
	// Limit is the number of letters of a page, up to MaxBatch; 0 = 100.
	Limit int
	// Bodies asks for the bodies too. A page then ends when the bodies exceed 1 MiB.
	Bodies bool
}

// DeadPage is a part of a list of dead letters.
type DeadPage struct {
	Letters []DeadLetter
	Next    *ID // pass Next as After to go on; nil = there are no more
}

// deadRows bounds how many dead letters one transaction reads: at most 5 MB, with the largest values.
const deadRows = 50

// DeadLetters lists dead letters by group, and within a group in key order, without a conflict or a change. The list is
// read in as many short transactions as needed to fill the page, each at batch priority.
//
// Reads, at snapshot: the keys dead, and with Bodies part.
//
// Errors: ErrOptions, ErrInvalidID, ErrInvalidUTF8, *LimitError, ErrNoQueue, ErrClosed, and the engine's. A letter
// which cannot be read is listed with the reason why.
func (a Admin) DeadLetters(ctx context.Context, o DeadOptions) (DeadPage, error) {
	q := a.q
	list, err := newListPage[DeadLetter](o.Limit, "dead letters")
	if err != nil {
		return DeadPage{}, wrap("dead letters", err)
	}
	if err := o.check(); err != nil {
		return DeadPage{}, wrap("dead letters", err)
	}
	if err := checkAfter(o.Group, o.After); err != nil {
		return DeadPage{}, wrap("dead letters", err)
	}
	walk := q.walkDead(&o.DeadFilter, o.After)
	var next *ID
	steps := job[deadStep]{
		q: q, ctx: ctx, width: deadRows, reads: true,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (deadStep, bool, error) {
			v := q.viewOf(ctx, tx.Snapshot())
			step, err := walk.read(&v, width)
			if err == nil && o.Bodies {
				err = readBodies(&v, step.rows)
			}
			return step, false, err
		},
		pass: func(step deadStep) bool {
			for _, row := range step.rows {
				if !list.add(row.letter, row.letter.Body) {
					next = new(list.rows[len(list.rows)-1].ID)
					return false
				}
			}
			walk.pass(step)
			return !walk.ended
		},
	}
	if err := steps.run(!walk.ended); err != nil {
		return DeadPage{}, wrap("dead letters", err)
	}
	return DeadPage{Letters: list.rows, Next: next}, nil
}

// readBodies reads the bodies of dead letters with their parts, at the version of v, into letter.Body. If a body cannot
// be read, readBodies sets letter.Err and letter.Reason.
func readBodies(v *view, found []deadRow) error {
	for i := range found {
		row := &found[i]
		if row.dead == nil {
			continue
		}
		item, err := v.readItem(kv.KV{Key: v.keys.item(row.letter.ID), Value: row.dead.Item})
		if errors.Is(err, ErrCorrupt) {
			row.letter.Err, row.letter.Reason = err, err.Error()
			continue
		}
		if err != nil {
			return err
		}
		row.letter.Body = item.Body
	}
	return nil
}

// deadRow is a dead letter as read.
type deadRow struct {
	letter DeadLetter      // for the operator; without the body until readBodies
	key    []byte          // in the section dead
	value  []byte          // as stored
	dead   *rec.DeadLetter // the value decoded; nil if unreadable
	nth    int             // among the letters which the step has looked at, from 0
	// item is the item with its whole body, message the message that goes back; nil = not made yet.
	item    *Item
	message *Message
}

// deadWalk goes through the dead letters chosen by a filter, a few a transaction. If the filter names ids, the walk
// reads those letters. Otherwise it reads a range: all letters of a group, or of the queue.
type deadWalk struct {
	filter *DeadFilter
	rest   cursor // the part of the range that is not read yet
	named  bool   // the filter names ids, perhaps none
	ids    []ID   // of the filter, in order, each once
	idsAt  int    // how many ids the walk has looked at
	ended  bool   // there are no more letters
}

// deadStep is what one transaction of a walk has read. The walk passes a step when the transaction is done.
type deadStep struct {
	rows    []deadRow // chosen by the filter
	scanned int       // letters looked at, chosen or not
	missing []ID      // ids of no dead letter
	last    []byte    // the last key looked at; nil = none
	ids     int       // how many ids were looked at
	ended   bool      // there are no more letters
}

// walkDead returns a walk through the letters chosen by f, behind the letter after; nil = from the first on. It reads
// nothing.
func (q *Queue) walkDead(f *DeadFilter, after *ID) *deadWalk {
	rows := q.keys.section(nameDead)
	if f.Group != nil {
		rows = q.keys.below(q.keys.startGroup(nameDead, *f.Group, 1))
	}
	w := &deadWalk{filter: f, rest: newCursor(rows), named: f.IDs != nil, ids: slices.Clone(f.IDs)}
	slices.SortFunc(w.ids, compareIDs)
	w.ids = slices.Compact(w.ids)
	if after != nil {
		w.rest.begin = kv.FirstGreaterThan(q.keys.dead(*after))
		w.idsAt = len(w.ids)
		if i := slices.IndexFunc(w.ids, func(id ID) bool { return compareIDs(id, *after) > 0 }); i >= 0 {
			w.idsAt = i
		}
	}
	w.ended = w.named && w.idsAt == len(w.ids)
	return w
}

// compareIDs compares ids in the order of their keys.
func compareIDs(a, b ID) int {
	return cmp.Or(
		cmp.Compare(a.Group, b.Group), cmp.Compare(a.Index, b.Index), bytes.Compare(a.Random[:], b.Random[:]),
	)
}

// read reads the next letters (dead) of the walk, up to limit, and returns those that the filter chooses. A letter
// whose value cannot be read counts as chosen, and one whose key cannot be read is left out. The walk stays where it
// is, see pass. Whether the read conflicts depends on the view.
func (w *deadWalk) read(v *view, limit int) (deadStep, error) {
	var step deadStep
	var err error
	var rows []kv.KV
	if w.named {
		rows, err = w.readIDs(v, limit, &step)
	} else {
		rows, err = w.readRange(v, limit, &step)
	}
	if err != nil {
		return step, err
	}
	step.scanned = len(rows)
	for i, row := range rows {
		p, err := v.keys.parse(row.Key)
		if v.skipsRow(err) {
			continue
		}
		r := deadRow{nth: i, key: row.Key, value: row.Value, letter: DeadLetter{ID: p.itemID()}}
		if err := r.open(); err != nil {
			r.dead, r.letter.Err, r.letter.Reason = nil, err, err.Error()
		} else if !w.filter.matches(r.dead) {
			continue
		}
		step.rows = append(step.rows, r)
	}
	return step, nil
}

// readRange reads the next rows of the walk's range, and notes in step where they end.
func (w *deadWalk) readRange(v *view, limit int, step *deadStep) ([]kv.KV, error) {
	rows, err := w.rest.read(v.read, limit).Wait(v.ctx)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	if step.ended = len(rows) < limit; len(rows) > 0 {
		step.last = rows[len(rows)-1].Key
	}
	return rows, nil
}

// readIDs reads the letters of the next ids, and notes in step how many ids these are, and those of no dead letter.
func (w *deadWalk) readIDs(v *view, limit int, step *deadStep) ([]kv.KV, error) {
	ids := w.ids[w.idsAt:]
	ids = ids[:min(limit, len(ids))]
	step.ids, step.ended = len(ids), w.idsAt+len(ids) == len(w.ids)
	rows, err := v.readRows(ids, v.keys.dead)
	if err != nil {
		return nil, fmt.Errorf("read dead letter: %w", err)
	}
	found := 0
	for _, id := range ids {
		if found < len(rows) && bytes.Equal(rows[found].Key, v.keys.dead(id)) {
			found++
		} else {
			step.missing = append(step.missing, id)
		}
	}
	return rows, nil
}

// pass moves the walk behind a step whose transaction is done.
func (w *deadWalk) pass(step deadStep) {
	w.idsAt += step.ids
	w.ended = step.ended
	if step.last != nil {
		w.rest.begin = kv.FirstGreaterThan(step.last)
	}
}

// open decodes the value of the row into r.dead, and all of r.letter except the body. If the value cannot be read, the
// error wraps ErrCorrupt.
func (r *deadRow) open() error {
	d, err := rec.UnpackDeadLetter(r.key, r.value)
	if err != nil {
		return err
	}
	e, body, err := rec.OpenEnvelope(d.Item)
	if err != nil {
		return rec.Corrupt(r.key, err)
	}
	r.dead = d
	r.letter = DeadLetter{
		ID: r.letter.ID, Headers: e.Headers, Size: max(int64(len(body)), e.Size), Enqueued: fromMillis(e.EnqueuedMS),
		DedupID: e.DedupID, Reason: d.Reason, LastError: d.LastError, Attempts: d.Attempts,
		DeadLettered: fromMillis(d.DeadMS),
	}
	if d.Attempts > 0 {
		r.letter.First, r.letter.Last = fromMillis(d.FirstMS), fromMillis(d.LastMS)
		if d.DeliveredMS > 0 {
			r.letter.FirstDelivered = fromMillis(d.DeliveredMS)
		}
	}
	return nil
}
