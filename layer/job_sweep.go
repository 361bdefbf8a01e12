package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// A sweep clears rows that are not needed any more and that no other call clears. Each part works in short transactions
// at batch priority. A transaction reads a page at snapshot and clears the rows that are out of date. It adds conflicts
// on the keys that decide a clear: see each part. So a sweep may be stopped at any point and run again. Several sweeps
// at the same time are safe, but waste work.

const (

	// sweepSlack allows for clocks that differ. dedupSlack does so for dedup entries. Without dedupSlack a worker whose
	// clock is ahead would end an entry's window early for the others. It is short, because there may be many entries.
	sweepSlack = 24 * time.Hour
	dedupSlack = time.Minute
	// sweepPage bounds the rows of one transaction of a sweep.
	sweepPage = 200
	// sweepRows bounds the dedup entries that a sweep with SweepOptions.Every looks at; the next sweep begins behind
	// them. The sweep continues beyond the bound while it clears a quarter of each page, so that sweeps keep up with
	// any load.
	sweepRows = 50_000
	// sweepLetters is the same for dead letters, whose rows have the messages too.
	sweepLetters = 10_000
)

// SweepOptions configure a sweep. The zero value sweeps at once.
type SweepOptions struct {
	// Every, if not 0, makes the sweep one of many: if any sweep of the queue has begun less than Every ago, nothing is
	// done. Of several sweeps beginning at the same time only one goes on.
	Every time.Duration
	// Progress, if not nil, is called after each transaction with the report so far.
	Progress func(SweepReport)
}

// SweepReport is what a sweep did. Clears by a transaction of unknown outcome may be missing.
type SweepReport struct {
	Skipped       bool  // another sweep was there, see SweepOptions.Every; the rest is zero
	Keys          int64 // looked at
	PastRetention int64 // items dropped or dead-lettered, because past the queue's retention
	Archived      int64 // items cleared from the archive, because kept for as long as Config.Archive says
	Dead          int64 // dead letters discarded, because kept for as long as Config.DeadRetention says
	Repeats       int64 // receive ids, cleared: older than an hour
	Receipts      int64 // cleared: left by processes that were killed, older than an hour
	Wakes         int64 // cleared: wake keys of handles without a request; requests of dead handles (reqgroup, reqlane)
	Dedup         int64 // cleared entries whose time is over: they make no message a duplicate any more
	Purges        int64 // notes of purges cleared: older than any dedup entry
	Changes       int64 // rows of changes cleared: seen by every subscription, or older than Config.Changes
	Paces         int64 // used rates cleared, of groups that have their full rate again
	Hints         int64 // cleared, timers too: of lanes from which no handle receives, see docs/lanes.md
	Unreadable    int64 // hints, timers, requests and the like cleared, because they could not be read
}

// Sweep clears rows that no process needs any more. Workers sweep every ten minutes or so. For a queue without a Worker
// the program must call Sweep, or run the command, about once a day. If Sweep returns an error, the report has what was
// done before the error.
//
// If a recent receipt shows that the clock of another process is behind by more than clocks may differ, Sweep clears no
// receipts, receive ids, dedup entries, notes of purges, archived messages, dead letters and changes from then on. It
// does the rest, and the error wraps ErrClock. It still removes messages past retention, because their versions must
// also say that they are old.
//
// If a row that cannot be read stops one part of the work, Sweep does the other parts, and the error wraps ErrCorrupt.
// Each part is a method of sweeper; the comment of the method lists the keys.
//
// Errors: *LimitError, ErrClock, ErrCorrupt, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Sweep(ctx context.Context, o SweepOptions) (SweepReport, error) {
	q := a.q
	s := &sweeper{q: q, ctx: ctx, o: o}
	if o.Every < 0 || o.Every > MaxDelay {
		return s.report, wrap("sweep", durationLimit("every", o.Every, 0, MaxDelay))
	}
	if q.isClosed() {
		return s.report, wrap("sweep", ErrClosed)
	}
	mine, err := s.begin()
	if err != nil {
		return s.report, wrap("sweep", err)
	}
	if !mine {
		return SweepReport{Skipped: true}, nil
	}
	var failed []error
	for _, part := range []struct {
		byAge bool // the part clears rows by age: it is left out while the clock of another process disagrees
		sweep func() error
	}{
		{false, s.unreadable}, {true, s.receipts}, {false, s.named}, {false, s.wakes}, {true, s.repeats},
		{true, s.dedup}, {true, s.purges}, {false, s.paces}, {false, s.overdue}, {true, s.archived},
		{true, s.letters}, {true, s.changes}, {false, s.hints}, {false, s.raise},
	} {
		if part.byAge {
			if err := s.ask(); err != nil {
				return s.report, wrap("sweep", errors.Join(append(failed, err)...))
			}
			if s.refused != nil {
				continue
			}
		}
		if err := part.sweep(); err != nil {
			failed = append(failed, err)
			if !isCorrupt(err) && !tooLarge(err) { // else the rows of the other parts may be good
				break
			}
		}
	}
	if s.refused != nil {
		failed = append(failed, s.refused)
	}
	return s.report, wrap("sweep", errors.Join(failed...))
}

// ask compares this process's clock with the times in recent receipts, which it reads at snapshot. If a clock
// disagrees, ask sets s.refused, and the caller must leave out the parts of the sweep that remove rows by age. After a
// refusal ask does not read again.
func (s *sweeper) ask() error {
	if s.refused != nil {
		return nil
	}
	return s.q.view(s.ctx, func(v *view) (err error) {
		s.refused, err = v.disagreement()
		return err
	})
}

// raise takes the second step of a raise of the shards, if the handle knows that the step is missing, for example
// because Configure was interrupted. See finishRaise, which waits before the step.
func (s *sweeper) raise() error {
	if !s.q.keys.shards.known.Load().isRising() {
		return nil
	}
	return s.q.finishRaise(s.ctx)
}

// named clears requests for a group or a lane (reqgroup), or for any lane of a template (reqlane): those whose deadline
// is over, because the handle is dead, and those that cannot be read. It has a read conflict on each cleared request,
// because a live handle may renew the request at the same time.
func (s *sweeper) named() error {
	for _, section := range s.q.keys.sections(nameNamed, nameByLane) {
		err := s.pages(section, func(tx kv.Tx, m moment, row kv.KV) (bool, error) {
			r, err := rec.UnpackRequest(row.Key, row.Value)
			if err == nil && lives(r, m.nowMS) { // in place of an unreadable request its handle writes another
				return false, nil
			}
			return true, guard.SweepRequest.Read(tx, kv.SingleKey(row.Key))
		}, &s.report.Wakes)
		if err != nil {
			return err
		}
	}
	return nil
}

// wakes clears the wake keys of handles without a request: killed handles, or handles which had just withdrawn when
// another transaction changed the key. It first notes all handles with a request, page by page. Then it reads the wake
// keys. All reads are at snapshot.
//
// If a handle writes its request after that page was read, its wake key is cleared too. Then the handle wakes for
// nothing, or misses a wake and finds the group by its next poll.
func (s *sweeper) wakes() error {
	waiting := make(map[uuid.UUID]bool)
	err := s.pagesUntil(s.q.keys.requests(), func(_ kv.Tx, rows []kv.KV, _ bool) (int64, error) {
		for _, row := range rows {
			if p, err := s.q.keys.parse(row.Key); err == nil { // Check names what cannot be read
				waiting[p.id] = true
			}
		}
		return 0, nil
	}, new(int64), nil)
	if err != nil {
		return err
	}
	return s.pagesUntil(s.q.keys.section(nameWake), func(tx kv.Tx, rows []kv.KV, _ bool) (cleared int64, err error) {
		for _, row := range rows {
			if p, err := s.q.keys.parse(row.Key); err == nil && p.id != uuid.Nil && !waiting[p.id] {
				tx.Clear(row.Key)
				cleared++
			}
		}
		return cleared, nil
	}, &s.report.Wakes, nil)
}

// sweeper is a sweep under way. Its methods named in Sweep are the parts of the sweep; each adds to report.
type sweeper struct {
	q      *Queue
	ctx    context.Context
	o      SweepOptions
	report SweepReport
	config *Config // nil = not read yet
	// turns has the hints of turns that the sweep has kept, by lane: see isLaterTurn. It has at most maxTurns.
	turns map[string][]byte
	// refused is the reason why the sweep removes no row by its age alone; nil = no clock disagrees.
	refused *clockError
}

// configuration returns the queue's configuration as stored in meta when the sweep first asked.
func (s *sweeper) configuration() (Config, error) {
	if s.config == nil {
		config, _, err := s.q.Admin().ReadConfig(s.ctx)
		if err != nil {
			return config, err
		}
		s.config = &config
	}
	return *s.config, nil
}

// asOf begins to read the configuration (meta) in the transaction, at snapshot, instead of taking the one that the
// handle knows. A sweep must not remove a row by an outdated setting. Example: an operator has just made Config.Archive
// longer.
func (s *sweeper) asOf(tx kv.Tx) *following { return s.q.followAnew(tx, s.q.aging.now(s.q.opts.Now)) }

// begin decides whether this sweep may run, and notes its begin in meta (swept). mine is false if another sweep has
// begun less than SweepOptions.Every ago.
//
// Footprint: reads the note at snapshot. A read conflict on the mark of a drop, and, if the note is written, on the
// note.
func (s *sweeper) begin() (mine bool, err error) {
	q, key, own := s.q, s.q.keys.meta(metaSwept), s.q.random.uuid()
	_, err = kv.Run(s.ctx, q.db, q.batchOptions(), func(tx kv.Tx, _ kv.Attempt) error {
		follow := q.follow(tx)
		v, err := tx.Snapshot().Get(key).Wait(s.ctx)
		if err != nil {
			return fmt.Errorf("read last sweep: %w", err)
		}
		if err := follow.guardDrop(s.ctx, tx); err != nil {
			return err
		}
		now, last := q.nowMS(), int64(0)
		if v != nil {
			note, err := rec.UnpackSweepNote(key, v)
			q.skipsRow(err) // as no note: a sweep too many does no harm
			last = note.BegunMS
			if mine = note.Random == own; mine {
				return nil // written by an earlier attempt whose outcome was unknown
			}
		}
		// A note from the future was written by a wrong clock, and must not stop all sweeps until then.
		age := time.Duration(now-last) * time.Millisecond
		if mine = age >= s.o.Every || age < -min(s.o.Every, clockSlack); !mine {
			return nil
		}
		if err := guard.SweepTurn.Read(tx, kv.SingleKey(key)); err != nil {
			return err
		}
		tx.Set(key, rec.SweepNote{BegunMS: now, Random: own}.Pack())
		return nil
	})
	return mine, err
}

// receipts clears the receipts that are older than receiptLife by the wall clock and by the database's version. A retry
// that needed a receipt so old has long ended: see receiptTrust. A receipt of an earlier release has no version, and
// its time decides alone. Receipts that cannot be read stay. receipts adds no conflict.
func (s *sweeper) receipts() error {
	return s.pages(s.q.keys.section(nameReceipt), func(tx kv.Tx, m moment, row kv.KV) (bool, error) {
		r, err := rec.UnpackReceipt(row.Key, row.Value)
		written, dated := witnessOf(r) // not dated = by an earlier release, without a version: only the time counts
		young := r.WrittenMS > m.nowMS-receiptLife.Milliseconds() || dated && !m.old(written.clock, receiptLife)
		if err != nil || young {
			return false, nil
		}
		return true, nil
	}, &s.report.Receipts)
}

// purges clears the notes of purges of groups (purged) that are older than any dedup entry. A purge of a group voids
// all dedup entries older than its note, so the note must stay as long as there may be such an entry. purges has a read
// conflict on each cleared note, because a purge may write it again. Notes that cannot be read stay.
func (s *sweeper) purges() error {
	return s.pages(s.q.keys.section(namePurged), func(tx kv.Tx, m moment, row kv.KV) (bool, error) {
		note, err := rec.UnpackInstant(row.Key, row.Value)
		if err != nil {
			return false, nil
		}
		if ahead(note.AtMS, m.nowMS) {
			note.AtMS = m.at(note.Clock) // the clock that wrote the note was ahead
		}
		const life = maxDedupWindow + sweepSlack
		if note.AtMS > m.nowMS-life.Milliseconds() || !m.old(note.Clock, life) {
			return false, nil
		}
		return true, guard.PurgeSweep.Read(tx, kv.SingleKey(row.Key))
	}, &s.report.Purges)
}

// pages clears the rows of r for which isOver returns true, page by page, in one transaction for each page. The rows
// are read at snapshot. m is the time of the transaction by two clocks: the handle's, and the database's version.
// isOver adds the conflicts of a clear. pages adds the cleared rows to counted, a field of the report.
func (s *sweeper) pages(
	r kv.KeyRange, isOver func(tx kv.Tx, m moment, row kv.KV) (bool, error), counted *int64,
) error {
	return s.pagesUntil(r, func(tx kv.Tx, rows []kv.KV, _ bool) (int64, error) {
		if len(rows) == 0 {
			return 0, nil
		}
		m, err := momentOf(s.ctx, s.q, tx)
		if err != nil {
			return 0, err
		}
		cleared := int64(0)
		for _, row := range rows {
			over, err := isOver(tx, m, row)
			if err != nil {
				return 0, err
			}
			if over {
				tx.Clear(row.Key)
				cleared++
			}
		}
		return cleared, nil
	}, counted, nil)
}

// pagesUntil calls visit for each page of r, in a transaction of its own: see eachPage. It adds the cleared rows to
// counted, a field of the report. enough, if not nil, gets the numbers of the rows of a page and of those cleared. It
// ends the work by returning true.
func (s *sweeper) pagesUntil(
	r kv.KeyRange, visit func(tx kv.Tx, rows []kv.KV, more bool) (cleared int64, err error), counted *int64,
	enough func(rows int, cleared int64) bool,
) error {
	j := job[page]{q: s.q, ctx: s.ctx, width: sweepPage}
	return eachPage(j, r, "page", visit, func(rows int, cleared int64) bool {
		s.passed(rows, cleared, counted)
		return enough != nil && enough(rows, cleared)
	})
}

// passed reports a step that has looked at the given number of keys, and calls Progress. It adds cleared to counted, a
// field of the report.
func (s *sweeper) passed(keys int, cleared int64, counted *int64) {
	s.report.Keys += int64(keys)
	*counted += cleared
	if s.o.Progress != nil && keys > 0 {
		s.o.Progress(s.report)
	}
}

const (
	// archiveSweepRows and archiveSweepItems bound what one step of the sweep reads and clears.
	archiveSweepRows  = 100
	archiveSweepItems = 1000
)

// archived clears the items that the archive has kept for Config.Archive, or all if the queue has no archive any more.
// It reads the entries (archived), which lie in the order of completion, at snapshot, and clears those that are too
// old, with the items (archive) and parts that they name. It adds no conflict.
func (s *sweeper) archived() error {
	rest := newCursor(s.q.keys.section(nameArchived))
	entries := job[page]{
		q: s.q, ctx: s.ctx, width: archiveSweepRows,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (page, bool, error) {
			rows, err := rest.read(tx.Snapshot(), width).Wait(s.ctx)
			if err != nil {
				return page{}, false, fmt.Errorf("read archive: %w", err)
			}
			config, err := s.asOf(tx).wait(s.ctx) // an operator may have made it longer since the sweep began
			if err != nil {
				return page{}, false, err
			}
			cleared, done, err := s.forget(tx, rows, config.Archive)
			return page{rows: done, width: width, cleared: cleared}, true, err
		},
		pass: func(p page) bool {
			rest.passed(p.rows, p.width)
			s.passed(len(p.rows), p.cleared, &s.report.Archived)
			// A step which has cleared something may have ended at a bound: then more rows follow.
			rest.exhausted = rest.exhausted && p.cleared == 0
			return !rest.exhausted
		},
	}
	return entries.run(true)
}

// forget clears the entries (archived) that are older than keep, with the items (archive) and parts that they name.
// rows are entries in the order of completion. items is how many items were cleared, and done are the rows behind which
// the sweep continues. The first entry young enough ends the work, and so does the bound archiveSweepItems. An entry
// that cannot be read stays.
func (s *sweeper) forget(tx kv.Tx, rows []kv.KV, keep time.Duration) (items int64, done []kv.KV, err error) {
	m, err := momentOf(s.ctx, s.q, tx)
	if err != nil {
		return 0, nil, err
	}
	for i, row := range rows {
		e, err := rec.UnpackArchiveEntry(row.Key, row.Value)
		if err != nil {
			continue // Check names the entry
		}
		p, err := s.q.keys.parse(row.Key)
		if err == nil && ahead(e.CompletedMS, m.nowMS) {
			e.CompletedMS = m.at(p.index)
		}
		if m.nowMS-e.CompletedMS < keep.Milliseconds() || err == nil && !m.old(p.index, keep) ||
			items > 0 && items+int64(len(e.Items)) > archiveSweepItems {
			return items, rows[:i], nil
		}
		for _, d := range e.Items {
			id := idOf(d, e.Group)
			tx.Clear(s.q.keys.archive(id))
			if d.Parts > 0 {
				tx.ClearRange(s.q.keys.parts(id))
			}
		}
		items += int64(len(e.Items))
		tx.Clear(row.Key)
	}
	return items, rows, nil
}

// repeats clears the receive ids (repeat) that are older than receiptLife by the wall clock and by the database's
// version, and those that cannot be read. If the time of a receive id is far in the future, a wrong clock wrote it, and
// the version alone decides. It has a read conflict on each cleared row.
func (s *sweeper) repeats() error {
	return s.pages(s.q.keys.section(nameRepeat), func(tx kv.Tx, m moment, row kv.KV) (bool, error) {
		// A token is a version: that of the receive which wrote the row.
		r, err := rec.UnpackRepeat(row.Key, row.Value)
		if err == nil && (r.AtMS > m.nowMS-receiptLife.Milliseconds() && !tooLate(r.AtMS, m.nowMS, sweepSlack) ||
			!m.old(r.Claims[0].Token, receiptLife)) {
			return false, nil
		}
		// A receive may use the id again at the same time, and write the row.
		return true, guard.RepeatSweep.Read(tx, kv.SingleKey(row.Key))
	}, &s.report.Repeats)
}

// changes clears rows of changes (change), the oldest first. It clears a row if every subscription has passed the
// row, or if the row is older than Config.Changes by the clock and by the version. Without a subscription only the
// age counts. If Config.Changes is 0, changes clears all rows. If it clears a row that some subscription has not
// passed, it raises the field missed of meta to the row's key. So the subscription learns that it has missed changes.
//
// Footprint: it reads at snapshot the rows, the cursors, and the configuration and the pause (meta). It clears rows,
// and may write missed. It conflicts with a drop (the field dropped of meta) if it writes missed, and with nothing
// else. Subscriptions need no conflict. A cursor that moves at the same time only moves on. A new subscription begins
// behind the last row, or with FromOldest before the oldest row that is left.
func (s *sweeper) changes() error {
	return s.pagesUntil(s.q.keys.section(nameChange), func(tx kv.Tx, rows []kv.KV, _ bool) (cleared int64, err error) {
		if len(rows) == 0 {
			return 0, nil
		}
		follow := s.asOf(tx)
		config, err := follow.wait(s.ctx) // as in archived
		if err != nil {
			return 0, err
		}
		seen, err := s.slowest(tx.Snapshot())
		if err != nil {
			return 0, err
		}
		m, err := momentOf(s.ctx, s.q, tx)
		if err != nil {
			return 0, err
		}
		// unseen is the last cleared row that a subscription has not seen, unreadable the first of a run of rows whose
		// keys cannot be read.
		var unseen, unreadable []byte
		for i, row := range rows {
			ms, _, err := rec.UnpackChanges(row.Key, row.Value)
			p, perr := s.q.keys.parse(row.Key)
			if perr != nil {
				// Its time is unknown. The rows are in the order of their commits, so this one is cleared together with
				// the next readable row.
				if unreadable == nil {
					unreadable = row.Key
				}
				continue
			}
			if err != nil || ahead(ms, m.nowMS) { // the writer's clock was ahead, or the time cannot be read
				ms = m.at(p.version())
			}
			at := s.q.keys.relative(row.Key)
			passed := bytes.Compare(at, seen) < 0 // never if there is no subscription
			young := ms > m.nowMS-config.Changes.Milliseconds() || !m.old(p.version(), config.Changes)
			if !passed && config.Changes > 0 && young {
				break
			}
			if tx.Clear(row.Key); unreadable != nil {
				tx.ClearRange(kv.KeyRange{Begin: unreadable, End: row.Key})
				unreadable = nil
			}
			cleared = int64(i + 1) // so far all rows of the page
			if !passed {
				unseen = at
			}
		}
		if unseen == nil || seen == nil {
			return cleared, nil
		}
		// Of two sweeps at the same time the one that has come further is right.
		tx.Atomic(kv.ByteMax, s.q.keys.meta(metaMissed), rec.PackKey(unseen))
		return cleared, follow.guardDrop(s.ctx, tx)
	}, &s.report.Changes, func(rows int, cleared int64) bool { return cleared < int64(rows) })
}

// mostCursors bounds the subscriptions whose places the sweep reads in the transaction that clears changes.
const mostCursors = 1000

// slowest returns the place of the subscription which is furthest behind: a key of a change, without the queue's
// prefix. nil = there is no subscription. It reads the cursors by tx. If the queue has more than mostCursors, slowest
// returns a place before all changes: the sweep then removes only old changes.
func (s *sweeper) slowest(tx kv.ReadTx) (from []byte, err error) {
	rows, err := tx.GetRange(
		s.q.keys.section(nameCursor).Selectors(), kv.RangeOptions{Limit: mostCursors + 1}).Wait(s.ctx)
	if err != nil {
		return nil, fmt.Errorf("read cursors: %w", err)
	}
	if len(rows) > mostCursors {
		return []byte{}, nil
	}
	for _, row := range rows {
		p, err := rec.UnpackCursor(row.Key, row.Value)
		if s.q.skipsRow(err) {
			p.From = []byte{} // it is unknown which changes the subscription has seen
		}
		if from == nil || bytes.Compare(p.From, from) < 0 {
			from = p.From
		}
	}
	return from, nil
}

// letters discards the dead letters (dead, and their parts) that are older than Config.DeadRetention; 0 = it does
// nothing. A letter must be so old by the clock and by the index of its message, which is a version of the database:
// then a wrong clock discards nothing. A letter that cannot be read stays. A time of death that is still to come is
// corrected (redate).
//
// The keys are in the order of groups, not of ages, so a sweep reads all letters. A sweep with Every continues where
// the last one ended (field swept_dead of meta, see sweepPlace). After sweepLetters letters such a sweep ends at the
// first page of which it discards less than a quarter.
//
// Footprint: a read conflict on each discarded letter, because a redrive may take the letter; and what finish writes:
// counters, and a row of changes if the queue keeps changes.
func (s *sweeper) letters() error {
	config, err := s.configuration()
	if err != nil || config.DeadRetention == 0 {
		return err
	}
	place := sweepPlace{
		s: s, section: s.q.keys.section(nameDead), key: s.q.keys.meta(metaSweptDead), most: sweepLetters,
	}
	if err := place.resume(); err != nil {
		return err
	}
	return s.pagesUntil(place.section, func(tx kv.Tx, rows []kv.KV, more bool) (int64, error) {
		w := s.q.txn(s.ctx, tx)
		w.followAnew()
		config, err := w.config() // again, because it may have changed since the page before
		if err != nil || config.DeadRetention == 0 {
			return 0, err
		}
		m, err := w.moment()
		if err != nil {
			return 0, err
		}
		before := m.nowMS - config.DeadRetention.Milliseconds()
		var old, late []deadRow
		for _, row := range rows {
			d, err := rec.UnpackDeadLetter(row.Key, row.Value)
			if err != nil || d.DeadMS > before && !ahead(d.DeadMS, m.nowMS) {
				continue // Check names what cannot be read
			}
			p, err := s.q.keys.parse(row.Key)
			if err == nil && ahead(d.DeadMS, m.nowMS) {
				late = append(late, deadRow{key: row.Key, letter: DeadLetter{ID: p.itemID()}, dead: d})
				continue
			}
			if s.q.skipsRow(err) || !m.old(p.index, config.DeadRetention) {
				continue
			}
			old = append(old, deadRow{key: row.Key, letter: DeadLetter{ID: p.itemID()}, dead: d})
		}
		if err := w.discard(old); err != nil {
			return 0, err
		}
		if err := redate(w, late); err != nil {
			return 0, err
		}
		place.note(tx, rows, more)
		return int64(len(old)), w.finish()
	}, &s.report.Dead, place.enough)
}

// redate stores the present as the time of death of letters that a process whose clock was ahead has written. Otherwise
// they would stay for as long as that clock was ahead. late are letters with a time more than clockSlack later than the
// handle's clock. That clock may be the one that is wrong, and a sweep by a right clock would then discard what redate
// has written, too early. So two others must agree with it:
//
//   - By the clocks of all other handles in receipts of the last witnessLife the time is to come, too. There must be
//     one at least. The latest of all clocks gives the new time.
//   - Since the message was enqueued, the handle's clock has advanced as much as the version, by the clock of the
//     producer.
//
// Footprint: reads receipts, at snapshot; a read conflict on each changed letter. If the transaction has no room left,
// the rest is left to the next sweep.
func redate(w *txn, late []deadRow) error {
	if len(late) == 0 {
		return nil
	}
	m, all, err := w.witnesses()
	others := otherTimes(w.q, m, all)
	if err != nil || len(others) == 0 {
		return err
	}
	now := max(m.nowMS, slices.Max(others))
	for _, row := range late {
		sent, _, err := rec.OpenEnvelope(row.dead.Item)
		apart := m.lag(moment{nowMS: sent.EnqueuedMS, clock: row.letter.ID.Index})
		if err != nil || !ahead(row.dead.DeadMS, now) || apart.Abs() > clockSlack || w.crowded() {
			continue
		}
		if err := guard.Letter.Read(w.tx, kv.SingleKey(row.key)); err != nil {
			return err
		}
		row.dead.DeadMS = now
		w.tx.Set(row.key, row.dead.Pack())
	}
	return nil
}

// sweepPlace is how far the last sweep has come in a section. The next sweep with Every begins behind it. A note in
// meta has the place: the field swept_to or swept_dead. A sweep without Every does not read the note, but writes it
// after each page that is not the last, and clears it after the last page if it has written it.
type sweepPlace struct {
	s       *sweeper
	section kv.KeyRange // still to be swept
	key     []byte      // of the note
	most    int         // rows that a sweep with Every looks at, while it clears few of them: see enough
	looked  int         // rows that this sweep has looked at
	noted   bool        // there is a note
}

// resume reads the note, and moves the begin of the section behind the row where the last sweep ended. A sweep without
// Every begins with the first row.
func (p *sweepPlace) resume() error {
	if p.s.o.Every == 0 {
		return nil
	}
	err := p.s.q.view(p.s.ctx, func(v *view) error {
		note, err := v.read.Get(p.key).Wait(v.ctx)
		if err != nil || note == nil {
			return err
		}
		if last, err := rec.UnpackKey(p.key, note); err == nil && p.section.Contains(last) {
			p.section.Begin, p.noted = kv.KeyAfter(last), true
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read where to go on: %w", err)
	}
	return nil
}

// enough reports whether a sweep with Every ends at a page: it has looked at most rows, and has cleared less than a
// quarter of the page.
func (p *sweepPlace) enough(rows int, cleared int64) bool {
	p.looked += rows
	return p.s.o.Every > 0 && p.looked >= p.most && cleared < int64(rows)/4
}

// note writes where the next sweep continues: behind rows, which this transaction has looked at. more is false at the
// end of the section: then note clears the note, and the next sweep begins with the first row.
func (p *sweepPlace) note(tx kv.Tx, rows []kv.KV, more bool) {
	switch {
	case more:
		tx.Set(p.key, rec.PackKey(rows[len(rows)-1].Key))
		p.noted = true
	case p.noted:
		tx.Clear(p.key)
	}
}

// dedup clears the dedup entries whose time is over. An entry without a time is cleared when its message is neither in
// the queue nor a dead letter: see outlived. A sweep with Every continues where the last one ended: see sweepPlace.
// After sweepRows rows it ends at the first page of which it clears less than a quarter.
//
// Footprint: a read conflict on the mark of a drop, and on each cleared entry, because an enqueue may write the entry
// again. It sets or clears the field swept_to of meta.
func (s *sweeper) dedup() error {
	place := sweepPlace{s: s, section: s.q.keys.section(nameDedup), key: s.q.keys.meta(metaSweptTo), most: sweepRows}
	if err := place.resume(); err != nil {
		return err
	}
	return s.pagesUntil(place.section, func(tx kv.Tx, rows []kv.KV, more bool) (int64, error) {
		follow, v := s.q.follow(tx), s.q.viewOf(s.ctx, tx.Snapshot())
		over, err := outlived(&v, rows)
		if err != nil {
			return 0, err
		}
		if err := follow.guardDrop(s.ctx, tx); err != nil {
			return 0, err
		}
		for _, k := range over {
			if err := guard.DedupSweep.Read(tx, kv.SingleKey(k)); err != nil {
				return 0, err
			}
			tx.Clear(k)
		}
		place.note(tx, rows, more)
		return int64(len(over)), nil
	}, &s.report.Dedup, place.enough)
}

// outlived returns the keys of the entries, among rows, which make nothing a duplicate any more. An entry with a time
// is over as moment.lasts says, by a clock that is dedupSlack behind the handle's, because clocks differ. Of an entry
// without a time outlived reads, at snapshot, whether the item or the dead letter of the entry's message is there: if
// neither is, the entry is over. An unreadable entry stays: Check names the entry.
func outlived(v *view, rows []kv.KV) ([][]byte, error) {
	type place struct{ entry, item, dead []byte }
	var over [][]byte
	var pending []place
	var found [][2]kv.Future[[]byte]
	now, err := v.moment()
	if err != nil {
		return nil, err
	}
	now.nowMS -= dedupSlack.Milliseconds()
	for _, row := range rows {
		r, err := rec.UnpackDedupEntry(row.Key, row.Value)
		switch {
		case err != nil:
		case r.UntilMS == 0:
			p := place{row.Key, v.keys.item(rememberedID(r)), v.keys.dead(rememberedID(r))}
			pending = append(pending, p)
			found = append(found, [2]kv.Future[[]byte]{
				v.read.GetKey(kv.FirstGreaterOrEqual(p.item)), v.read.GetKey(kv.FirstGreaterOrEqual(p.dead)),
			})
		case !now.lasts(r, v.known().DedupWindow):
			over = append(over, row.Key)
		}
	}
	for i, p := range pending {
		item, err := found[i][0].Wait(v.ctx)
		if err != nil {
			return nil, fmt.Errorf("look for item: %w", err)
		}
		dead, err := found[i][1].Wait(v.ctx)
		if err != nil {
			return nil, fmt.Errorf("look for dead letter: %w", err)
		}
		if !bytes.Equal(item, p.item) && !bytes.Equal(dead, p.dead) {
			over = append(over, p.entry)
		}
	}
	return over, nil
}

// hints clears the stale hints (ready, open) and timers (timer, due) of lanes, unless each group is one lane: see
// staleHints and staleTimers. A head without a hint may get one in place of a stale hint. A lane is a group, or the
// part of a group that a template matches.
//
// A claim clears only the hints of its own lane. If the claims of other lanes empty a lane from which no handle
// receives, its hints stay. Example: the views are "*; state", and all workers receive by state. Each enqueue into an
// empty group then sets a hint of the whole group, and no claim clears it.
func (s *sweeper) hints() error {
	if s.q.keys.plan.IsPlain() {
		return nil
	}
	for _, section := range []string{nameReady, nameOpen} {
		if err := s.pagesUntil(s.q.keys.section(section), s.staleHints, &s.report.Hints, nil); err != nil {
			return err
		}
	}
	for _, section := range []string{nameTimer, nameDue} {
		if err := s.pagesUntil(s.q.keys.section(section), s.staleTimers, &s.report.Hints, nil); err != nil {
			return err
		}
	}
	return nil
}

// staleTimers clears, in a page of timers, those of delayed heads of lanes that are empty by now. As a hint, such a
// timer stays in a lane from which no handle receives. Other timers stay.
//
// Footprint, per timer cleared: a read conflict on the whole lane, because an item that comes into the lane may write a
// timer with this very key.
func (s *sweeper) staleTimers(tx kv.Tx, rows []kv.KV, _ bool) (cleared int64, err error) {
	ofHeads := slices.DeleteFunc(slices.Clone(rows), func(row kv.KV) bool {
		kind, _, err := rec.UnpackTimer(row.Key, row.Value)
		return err != nil || kind != rec.KindHead
	})
	return s.clearByHead(tx, ofHeads, func(_ []byte, lane string, head []byte) (stale bool, err error) {
		items := s.q.keys.items(lane)
		if items.Contains(head) {
			return false, nil
		}
		return true, guard.StaleEmpty.Read(tx, items)
	})
}

// clearByHead clears the stale ones of rows, which are hints or timers, and returns how many. It reads the head of each
// row's lane at snapshot. isStale decides, and adds the conflicts. It gets the key of the row, the row's lane, and
// head: the first key at or behind the begin of the lane's items. If the lane is empty, head is a key of something
// else.
func (s *sweeper) clearByHead(
	tx kv.Tx, rows []kv.KV, isStale func(key []byte, lane string, head []byte) (bool, error),
) (cleared int64, err error) {
	of, heads := make([]string, len(rows)), make([]kv.Future[[]byte], len(rows))
	for i, row := range rows {
		p, err := s.q.keys.parse(row.Key)
		if err != nil {
			continue // Check names a row that cannot be read
		}
		of[i] = p.lane
		heads[i] = tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(s.q.keys.items(p.lane).Begin))
	}
	for i, row := range rows {
		if heads[i] == nil {
			continue
		}
		head, err := heads[i].Wait(s.ctx)
		if err != nil {
			return 0, fmt.Errorf("read head: %w", err)
		}
		stale, err := isStale(row.Key, of[i], head)
		if err != nil {
			return 0, err
		}
		if stale {
			tx.Clear(row.Key)
			cleared++
		}
	}
	return cleared, nil
}

// staleHints clears, in a page of hints, those of empty lanes, and those that do not lead to the head of their lane. A
// head that is then without a hint gets one. But a hint behind the place of such a head stays, if it is the first of
// the lane: the group has its turn there, see isLaterTurn.
//
// Footprint, per hint cleared: of an empty lane a read conflict on the whole lane, because an item that comes back to
// the lane writes a hint which may have this very key; else a read conflict on the hint of the head, or of the turn
// that stays. And one on the mark of a drop.
func (s *sweeper) staleHints(tx kv.Tx, rows []kv.KV, _ bool) (cleared int64, err error) {
	follow := s.q.follow(tx)
	cleared, err = s.clearByHead(tx, rows, func(hint []byte, lane string, head []byte) (bool, error) {
		return s.replaceStale(tx, hint, lane, head)
	})
	if err != nil || cleared == 0 {
		return 0, err
	}
	// No hint must be set in a new queue of the same name, created after a drop while this sweep was under way.
	return cleared, follow.guardDrop(s.ctx, tx)
}

// replaceStale reports whether the hint of a lane is stale, with the conflict that keeps the answer true. head is as in
// clearByHead. If the hint is stale, and the lane's head has none, replaceStale sets the head's hint, for which it
// reads the head's attempt record (attempt) at snapshot. The caller must then clear the stale one.
func (s *sweeper) replaceStale(tx kv.Tx, hint []byte, lane string, head []byte) (bool, error) {
	keys := s.q.keys
	items := keys.items(lane)
	if !items.Contains(head) {
		return true, guard.StaleEmpty.Read(tx, items)
	}
	p, err := keys.parseItem(head, lanes.GroupOf(lane), items)
	if err != nil {
		return false, nil // Check names it
	}
	right := keys.ready(p.index, lane) // the hint that the head should have
	if string(right) == string(hint) {
		return false, nil
	}
	set, err := guard.StaleEmpty.Get(tx, right).Wait(s.ctx) // nil = the head has no hint of its own
	if err != nil {
		return false, fmt.Errorf("read hint: %w", err)
	}
	if set != nil {
		return true, nil
	}
	at, err := keys.parse(hint)
	if err != nil {
		return false, nil // Check names it
	}
	if at.index > p.index {
		return s.isLaterTurn(tx, hint, lane)
	}
	v := s.q.viewOf(s.ctx, tx.Snapshot())
	failed, err := v.readAttempt(p.itemID())
	if s.q.skipsRow(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	tx.Set(right, packHint(hinted(failed)))
	return true, nil
}

// maxTurns bounds the hints of turns that a sweep remembers.
const maxTurns = 10_000

// isLaterTurn reports whether a hint behind the place of the lane's head is stale. Such a hint may be the only one of
// its lane: a claim that was returned with Behind, or ended in a queue with RoundRobin, leaves the hint at the end of
// all hints (txn.lastPlace). So isLaterTurn notes the first such hint of a lane in s.turns, and it stays. A further one
// is stale if the first is still set, which isLaterTurn reads with a conflict. If the transaction is repeated, the same
// hint stays again.
func (s *sweeper) isLaterTurn(tx kv.Tx, hint []byte, lane string) (bool, error) {
	first := s.turns[lane]
	if first != nil && string(first) != string(hint) {
		v, err := guard.StaleEmpty.Get(tx, first).Wait(s.ctx)
		if err != nil {
			return false, fmt.Errorf("read hint: %w", err)
		}
		if v != nil {
			return true, nil
		}
	}
	if s.turns == nil {
		s.turns = make(map[string][]byte)
	}
	if len(s.turns) < maxTurns || first != nil {
		s.turns[lane] = hint
	}
	return false, nil
}

// overdue removes the items past retention. It goes from head to head, and removes a head past retention together with
// the items past retention behind it. It clears the items with their keys lane, their parts and their attempts, or
// makes them dead letters (dead): see Config.DeadLetterExpired. Holdings of the group that are over end, too. The group
// then gets a hint, or is found by its mark or timer. The job reads items at snapshot; overdueStep has the conflicts.
func (s *sweeper) overdue() error {
	config, err := s.configuration()
	if err != nil || config.Retention == 0 {
		return err
	}
	rest := s.q.keys.section(nameItem)
	heads := job[*overdueStep]{
		q: s.q, ctx: s.ctx, width: overdueWidth,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (*overdueStep, bool, error) {
			t := &overdueStep{rest: rest}
			return t, true, t.run(s.q.txn(s.ctx, tx), width)
		},
		pass: func(t *overdueStep) bool {
			rest.Begin = t.next
			s.passed(t.keys, int64(t.aged), &s.report.PastRetention)
			return t.next != nil
		},
	}
	return heads.run(true)
}

// overdueStep is one attempt of a step of the sweep for items past retention.
//
// Footprint, per group with a head past retention: a read conflict on the lock. If items are removed, a write conflict
// on the lock. If the group then has no lock and no item, a read conflict on the whole group. In a queue with facets or
// with holds also read conflicts on up to maxLapsed claims, delays and grants of the group, on the marks before them,
// and on the holds of the items. A group whose holder's heartbeat is over: see endBeat.
type overdueStep struct {
	rest kv.KeyRange // the items to look at; begins with the first item of a group
	next []byte      // where the next step begins; nil = done
	keys int         // how many items were looked at
	aged int         // how many items were removed
}

// run looks at up to width items, and removes from each group on the page the first items past retention. Before, it
// extends claims of the handle itself that have ended by its wall clock alone (keepOwn). It sets t.next. After a group
// with more items than the page has, run goes on to the next group, because only first items can be removed.
func (t *overdueStep) run(w *txn, width int) error {
	if err := keepOwn(w); err != nil {
		return err
	}
	rows, err := w.read.GetRange(t.rest.Selectors(), kv.RangeOptions{Limit: width}).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read items: %w", err)
	}
	t.keys = len(rows)
	for len(rows) > 0 {
		p, err := w.keys.parse(rows[0].Key)
		if w.skipsRow(err) {
			t.next = kv.KeyAfter(rows[0].Key)
			rows = rows[1:]
			continue
		}
		t.next = nil
		items := w.keys.items(p.group)
		n := 1
		for n < len(rows) && items.Contains(rows[n].Key) {
			n++
		}
		last := n == len(rows) && t.keys == width // the group may have more items
		all, err := w.rows(p.group, rows[:n])
		if err != nil {
			return err
		}
		again, err := t.expireFirst(w, all, last)
		if err != nil {
			return err
		}
		if again {
			t.next = items.Begin
			break
		}
		if last || w.spent() {
			t.next = items.End
			break
		}
		rows = rows[n:]
	}
	return w.finish()
}

// expireFirst drops or dead-letters the first items of a group that are past retention. It leaves a group alone that is
// in flight, or of which the lock or an attempt record cannot be read (Check reports such a row).
//
// all are the group's rows on this page. last says that the page ends in this group, so that more of its rows may
// follow. again means that the next step has to look at the group again: more of its items are past retention, or may
// be, or a holding was ended first.
func (t *overdueStep) expireFirst(w *txn, all rows, last bool) (again bool, err error) {
	old, err := w.overdue(all)
	if err != nil || old.len() == 0 {
		return false, err
	}
	r, err := w.guarded(guard.AgeLock).readLock(all.group)
	if err == nil && !w.keys.plan.IsPlain() {
		var stop bool
		if again, stop, err = t.endOver(w, old); err == nil && stop {
			return again, nil
		}
	}
	if isCorrupt(err) {
		return false, nil // Check reports the lock
	}
	if err != nil {
		return false, err
	}
	if c := r.At(w.nowMS); c == rec.Claimed || c == rec.Granted { // in flight or about to be, if the holder lives
		return w.endOwner(all.group, r)
	}
	if lasts, err := claimLasts(w, r); err != nil || lasts {
		return false, err
	}
	free, err := w.expireItems(r, old)
	if isCorrupt(err) { // nothing was written
		return false, nil
	}
	if err != nil {
		return false, err
	}
	t.aged += old.len()
	if free && w.keys.plan.NeedsHint(all.group) {
		if err := w.free(all.group); err != nil {
			return false, err
		}
	}
	if old.len() == all.len() {
		return last, nil
	}
	rest, err := w.overdue(all.from(old.len()))
	return rest.len() > 0, err
}

// endOver ends the holdings that are over in a group that is not one lane, before its first items, old, are removed.
// Perhaps no other transaction ever ends them, because no receive comes to their lanes. After an expired claim the item
// that was tried counts a failed attempt, see lapse.
//
// endOver looks at the first maxLapsed claims, delays and grants of the group, whichever lanes they have, and at the
// holds (claims of single items) of the group up to the last item of old. The mark of a lane without a claim protects
// no item.
//
// stop: the items stay in this step. again: the next step must look at the group again. If a holding lasts, the result
// is stop alone; also if the group has too many locks to look at (locksRead). If all are over, endOver ends some of
// them, and the result is both. If there is none, the result is neither.
func (t *overdueStep) endOver(w *txn, old rows) (again, stop bool, err error) {
	var all []heldLane
	var read locksRead
	for row, err := range walk(w.ctx, guard.AgeLock.Reads(w.tx), w.keys.locks(old.group), maxLapsed) {
		if err != nil {
			return false, false, fmt.Errorf("read locks: %w", err)
		}
		if read.add(row); read.over() {
			return false, true, nil
		}
		held, err := w.unpackHolds([]kv.KV{row})
		if err != nil {
			return false, false, err
		}
		if held[0].record.At(w.nowMS) != rec.Marked {
			all = append(all, held...)
		}
		if len(all) == maxLapsed {
			break
		}
	}
	holds, err := w.recordsIn(guard.AgeLock, w.keys.holdsTo(old.id(old.len()-1)))
	if err != nil {
		return false, false, err
	}
	all = append(all, holds...)
	for _, h := range all {
		lasts, err := claimLasts(w, h.record)
		if err != nil {
			return false, false, err
		}
		if lasts || h.record.At(w.nowMS).Keeps() {
			return false, true, nil
		}
	}
	for _, h := range all {
		if w.tired() && (w.chores.lapsed > 0 || t.aged > 0) { // else the next step would come here again, as crowded
			break
		}
		if err := w.lapseAndFree(h.lane, h.record); err != nil {
			return false, false, err
		}
	}
	return len(all) > 0, len(all) > 0, nil
}

// paces clears the used rates (pace) of groups that have their full rate (Config.MaxRate) again. If a group with a used
// rate has items, paces also writes a hint or a timer by the present rate, because the group may wait by a former rate:
// see repace. It has a read conflict on each cleared row, and on the range of the group's items if the group is empty.
func (s *sweeper) paces() error {
	return s.pagesUntil(s.q.keys.section(namePace), func(tx kv.Tx, rows []kv.KV, _ bool) (int64, error) {
		w := s.q.txn(s.ctx, tx)
		w.followAnew() // a group must not continue by a former rate, and a sweep with many pages takes long
		groups := make([]string, len(rows))
		heads := make([]kv.Future[[]byte], len(rows))
		for i, row := range rows {
			p, err := s.q.keys.parse(row.Key)
			if s.q.skipsRow(err) {
				continue
			}
			groups[i], heads[i] = p.group, w.head(p.group)
		}
		config, err := w.config()
		if err != nil {
			return 0, err
		}
		cleared := int64(0)
		for i, row := range rows {
			used, err := rec.UnpackPace(row.Key, row.Value)
			if err != nil || heads[i] == nil {
				continue // Check names it
			}
			if tooLate(used.US/1000, w.nowMS, sweepSlack) {
				used = repairedPace(used, config.MaxRate, w.nowMS)
			}
			head, err := heads[i].Wait(s.ctx)
			if err != nil {
				return 0, fmt.Errorf("read head: %w", err)
			}
			whole := config.MaxRate.whole(used, w.nowMS)
			items := s.q.keys.items(groups[i])
			empty := !items.Contains(head)
			if !empty {
				if err := w.repace(groups[i], config.MaxRate, used); s.q.skipsRow(err) {
					continue // of a group whose lock cannot be read
				} else if err != nil {
					return 0, err
				}
			}
			if !whole {
				continue
			}
			if empty {
				// A message that was enqueued since may wait by the rate of a newer configuration than ours. Then the
				// used rate must stay, because the next change of the rate finds the group by this row.
				if err := guard.PaceEmpty.Read(tx, items); err != nil {
					return 0, err
				}
			}
			if err := guard.PaceSweep.Read(tx, kv.SingleKey(row.Key)); err != nil {
				return 0, err
			}
			tx.Clear(row.Key)
			cleared++
		}
		return cleared, w.finish()
	}, &s.report.Paces, nil)
}

// repace writes a hint or a timer that leads to a group with items when its rate lets the group continue. rate is
// Config.MaxRate, and used is how far the group has used it up.
//
// Footprint: a write conflict on the lock, so that no transaction leaves the group to an outdated rate, also not at the
// end of a claim or a delay. If the group must wait, repace reads its timer with a conflict. If the timer is there
// already, repace writes no key. If the lock has a record, repace writes no key either, and adds a read conflict on the
// lock. If it sets the timer, it adds a read conflict on the gap up to the head. All other reads are at snapshot,
// because a superfluous hint or timer is harmless.
func (w *txn) repace(group string, rate Rate, used rec.Pace) error {
	found := w.read.GetRange(w.keys.items(group).Selectors(), kv.RangeOptions{Limit: 1})
	pairs, err := found.Wait(w.ctx)
	if err != nil || len(pairs) == 0 {
		return err
	}
	items, err := w.rows(group, pairs)
	if err != nil {
		return err
	}
	head := items.at(0)
	if head.err != nil {
		return nil // Check names it
	}
	untilMS := head.dueMS
	if !rate.isNone() {
		untilMS = max(untilMS, rate.allowance(used, w.nowMS).untilMS)
	}
	if err := w.excludeHolders(guard.PaceExclude, group); err != nil {
		return err
	}
	if untilMS > w.nowMS {
		for _, timer := range w.keys.timersAt(items.timing(untilMS), group) {
			v, err := guard.PaceExclude.Get(w.tx, timer).Wait(w.ctx)
			if err != nil || v != nil {
				return err // the timer is there already
			}
		}
	}
	r, err := w.readLock(group)
	if err != nil {
		return err
	}
	if r != nil {
		return guard.PaceExclude.Read(w.tx, kv.SingleKey(w.keys.lock(group)))
	}
	if untilMS > w.nowMS {
		return w.awaitHead(group, nil, idOf(head.Item, group), items.timing(untilMS))
	}
	return w.free(group)
}
