package layer

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// A sweep clears what nobody needs any more and nobody else clears. Each part works in short transactions at batch
// priority: read a page, clear what is out of date, with a conflict only on what decides a clear. So a sweep may be
// stopped at any point and run again, and several sweeps at the same time do no harm but waste.

const (

	// sweepSlack is for clocks which differ. dedupSlack is the same for dedup entries, of which there may be many.
	// Otherwise a worker whose clock is ahead would end an entry's window early for the others.
	sweepSlack = 24 * time.Hour
	dedupSlack = time.Minute
	// sweepEvery is how often the workers of a queue sweep, together.
	sweepEvery = 10 * time.Minute
	// sweepPage bounds the rows of one transaction of a sweep.
	sweepPage = 200
	// sweepRows bounds the dedup entries which one of many sweeps looks at; the next sweep goes on behind. While a
	// quarter of a page is out of date a sweep continues beyond, so that sweeps keep up with any load.
	sweepRows = 50_000
	// sweepLetters is the same for dead letters, whose rows have the messages too.
	sweepLetters = 10_000
)

// SweepOptions configure a sweep. The zero value sweeps at once.
type SweepOptions struct {
	// Every, if not 0, makes the sweep one of many: if any sweep of the queue has begun less than Every ago, nothing is
	// done. Of several sweeps beginning at the same time only one goes on.
	Every time.Duration
	// Progress, if not nil, is called after each transaction with what has been done so far.
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
	Wakes         int64 // cleared: wake keys of handles without a request, and requests of dead handles for lanes
	Dedup         int64 // entries cleared which make nothing a duplicate any more
	Purges        int64 // notes of purges cleared: older than any dedup entry
	Changes       int64 // changes cleared: seen by every subscription, or older than Config.Changes
	Paces         int64 // pairs cleared, of groups with a full token bucket
	Hints         int64 // cleared: of lanes by which nobody receives, see docs/lanes.md
}

// Sweep clears what nobody needs any more. Workers sweep now and then; for a queue served without a Worker, call Sweep,
// or run the command, once a day or so. If Sweep returns an error, the report has what was done before the error.
//
// Errors: *LimitError, ErrClosed, and the engine's.
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
	for _, part := range []func() error{
		s.receipts, s.named, s.wakes, s.repeats, s.dedup, s.purges, s.paces, s.overdue, s.archived, s.letters,
		s.changes, s.hints, s.raise,
	} {
		if err := part(); err != nil {
			return s.report, wrap("sweep", err)
		}
	}
	return s.report, nil
}

// raise finishes a raise of the shards which was interrupted, or begun in a caller's transaction.
func (s *sweeper) raise() error {
	if !s.q.keys.shards.known.Load().isRising() {
		return nil
	}
	return s.q.finishRaise(s.ctx)
}

// named clears the requests for groups, lanes and by templates of handles which have died.
func (s *sweeper) named() error {
	names := []string{nameNamed}
	if s.q.keys.plan != nil {
		names = append(names, nameByLane)
	}
	for _, name := range names {
		if err := s.requestsOf(name); err != nil {
			return err
		}
	}
	return nil
}

func (s *sweeper) requestsOf(name string) error {
	return s.pages(s.q.keys.section(name), func(tx kv.Tx, row kv.KV) (bool, error) {
		r, err := unpackRequest(row.Key, row.Value)
		if err != nil || r.deadlineMS > s.q.nowMS() {
			return false, nil
		}
		if err := guardSweepRequest.read(tx, kv.SingleKey(row.Key)); err != nil {
			return false, err
		}
		tx.Clear(row.Key)
		return true, nil
	}, &s.report.Wakes)
}

// wakes clears the wake keys of handles without a request: killed handles, or handles which had just withdrawn when the
// key was touched. If such a handle requests again at this moment, the handle wakes for nothing, or at its poll.
func (s *sweeper) wakes() error {
	return s.pagesUntil(s.q.keys.section(nameWake), func(tx kv.Tx, rows []kv.KV, _ bool) (cleared int64, err error) {
		if len(rows) == 0 {
			return 0, nil
		}
		waiting := make(map[uuid.UUID]bool)
		for row, err := range walk(s.ctx, tx.Snapshot(), s.q.keys.requests(), sweepPage) {
			if err != nil {
				return 0, fmt.Errorf("read requests: %w", err)
			}
			if p, err := s.q.keys.parse(row.Key); err == nil { // Check names what cannot be read
				waiting[p.id] = true
			}
		}
		for _, row := range rows {
			if p, err := s.q.keys.parse(row.Key); err == nil && !waiting[p.id] {
				tx.Clear(row.Key)
				cleared++
			}
		}
		return cleared, nil
	}, &s.report.Wakes, nil)
}

type sweeper struct {
	q      *Queue
	ctx    context.Context
	o      SweepOptions
	report SweepReport
	config *Config // nil = not read yet
}

// configuration returns the queue's configuration, as stored.
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

// begin notes in the database the begin of a sweep, and returns false if the turn is another sweep's.
//
// Footprint: a read conflict on the note, if the note is written.
func (s *sweeper) begin() (mine bool, err error) {
	q, key, own := s.q, s.q.keys.meta(metaSwept), s.q.random.uuid()
	_, err = kv.Run(s.ctx, q.db, q.batchOptions(), func(tx kv.Tx, _ kv.Attempt) error {
		follow := q.follow(tx)
		v, err := tx.Snapshot().Get(key).Wait(s.ctx)
		if err != nil {
			return fmt.Errorf("read last sweep: %w", err)
		}
		if _, err := follow.wait(s.ctx); err != nil {
			return err
		}
		if err := follow.guardDrop(s.ctx, tx); err != nil {
			return err
		}
		now, last := q.nowMS(), int64(0)
		if v != nil {
			note, err := unpackSweepNote(key, v)
			if err != nil {
				return err
			}
			last = note.begunMS
			if mine = note.random == own; mine {
				return nil // written by an earlier attempt whose outcome was unknown
			}
		}
		// A note from the future was written by a wrong clock, and must not stop all sweeps until then.
		age := time.Duration(now-last) * time.Millisecond
		if mine = age >= s.o.Every || age < -s.o.Every; !mine {
			return nil
		}
		if err := guardSweepTurn.read(tx, kv.SingleKey(key)); err != nil {
			return err
		}
		tx.Set(key, sweepNote{begunMS: now, random: own}.pack())
		return nil
	})
	return mine, err
}

// receipts clears receipts left behind. Whoever counted on such a receipt has long stopped, see receiptTrust.
func (s *sweeper) receipts() error {
	return s.pages(s.q.keys.section(nameReceipt), func(tx kv.Tx, row kv.KV) (bool, error) {
		writtenMS, _, err := unpackReceipt(row.Key, row.Value)
		if err != nil || writtenMS > s.q.nowMS()-receiptLife.Milliseconds() && !lacks(guardReceiptLife) {
			return false, nil
		}
		tx.Clear(row.Key)
		return true, nil
	}, &s.report.Receipts)
}

// purges clears the notes of purges older than any dedup entry which may ask for the note.
func (s *sweeper) purges() error {
	return s.pages(s.q.keys.section(namePurged), func(tx kv.Tx, row kv.KV) (bool, error) {
		note, err := unpackPurged(row.Key, row.Value)
		if err != nil || note.ms > s.q.nowMS()-(MaxDedupWindow+sweepSlack).Milliseconds() {
			return false, nil
		}
		if err := guardPurgeSweep.read(tx, kv.SingleKey(row.Key)); err != nil {
			return false, err
		}
		tx.Clear(row.Key)
		return true, nil
	}, &s.report.Purges)
}

// pages calls visit for each row of r, page by page, and adds to counted the rows which visit has cleared.
func (s *sweeper) pages(
	r kv.KeyRange, visit func(tx kv.Tx, row kv.KV) (cleared bool, err error), counted *int64,
) error {
	return s.pagesUntil(r, func(tx kv.Tx, rows []kv.KV, _ bool) (int64, error) {
		cleared := int64(0)
		for _, row := range rows {
			ok, err := visit(tx, row)
			if err != nil {
				return 0, err
			}
			if ok {
				cleared++
			}
		}
		return cleared, nil
	}, counted, nil)
}

// pagesUntil calls visit for each page of r; visit returns how many rows were cleared, and more is false on the page
// known to be the last. enough, if not nil, is given the rows of a page and how many were cleared, and ends the work
// early by returning true.
func (s *sweeper) pagesUntil(
	r kv.KeyRange, visit func(tx kv.Tx, rows []kv.KV, more bool) (cleared int64, err error), counted *int64,
	enough func(rows int, cleared int64) bool,
) error {
	rest := newCursor(r)
	pages := job[page]{
		q: s.q, ctx: s.ctx, width: sweepPage,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (page, bool, error) {
			rows, err := rest.read(tx.Snapshot(), width).Wait(s.ctx)
			if err != nil {
				return page{}, false, fmt.Errorf("read page: %w", err)
			}
			cleared, err := visit(tx, rows, len(rows) == width)
			return page{rows: rows, width: width, cleared: cleared}, true, err
		},
		pass: func(p page) (bool, error) {
			rest.passed(p.rows, p.width)
			s.passed(len(p.rows), p.cleared, counted)
			over := enough != nil && enough(len(p.rows), p.cleared)
			return !rest.exhausted && !over, nil
		},
	}
	return pages.run(true)
}

// passed reports a step which has looked at so many keys; counted counts the cleared keys.
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

// archived clears what was kept for as long as Config.Archive says, or everything if the queue keeps nothing any more.
func (s *sweeper) archived() error {
	config, err := s.configuration()
	if err != nil {
		return err
	}
	rest := newCursor(s.q.keys.section(nameArchived))
	entries := job[page]{
		q: s.q, ctx: s.ctx, width: archiveSweepRows,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (page, bool, error) {
			rows, err := rest.read(tx.Snapshot(), width).Wait(s.ctx)
			if err != nil {
				return page{}, false, fmt.Errorf("read archive: %w", err)
			}
			cleared, done, err := s.forget(tx, rows, config.Archive)
			return page{rows: done, width: width, cleared: cleared}, true, err
		},
		pass: func(p page) (bool, error) {
			rest.passed(p.rows, p.width)
			s.passed(len(p.rows), p.cleared, &s.report.Archived)
			// A step which has cleared something may have ended at a bound: then more rows follow.
			rest.exhausted = rest.exhausted && p.cleared == 0
			return !rest.exhausted, nil
		},
	}
	return entries.run(true)
}

// forget clears the archived items of entries which are too old, and returns how many items, and the entries done. The
// first entry young enough ends the work, and so does the bound archiveSweepItems.
func (s *sweeper) forget(tx kv.Tx, rows []kv.KV, keep time.Duration) (items int64, done []kv.KV, err error) {
	for i, row := range rows {
		e, err := unpackArchiveEntry(row.Key, row.Value)
		if err != nil {
			continue // Check names the entry
		}
		if s.q.nowMS()-e.completedMS < keep.Milliseconds() ||
			items > 0 && items+int64(len(e.items)) > archiveSweepItems {
			return items, rows[:i], nil
		}
		for _, d := range e.items {
			id := d.id(e.group)
			tx.Clear(s.q.keys.archive(id))
			if d.parts > 0 {
				tx.ClearRange(s.q.keys.parts(id))
			}
		}
		items += int64(len(e.items))
		tx.Clear(row.Key)
	}
	return items, rows, nil
}

// repeats clears the receive ids which are out of date, with time left for clocks which differ.
func (s *sweeper) repeats() error {
	return s.pages(s.q.keys.section(nameRepeat), func(tx kv.Tx, row kv.KV) (bool, error) {
		r, err := unpackRepeat(row.Key, row.Value)
		if err != nil || r.ms > s.q.nowMS()-receiptLife.Milliseconds() {
			return false, nil
		}
		// The id may be in use again by now.
		if err := guardRepeatSweep.read(tx, kv.SingleKey(row.Key)); err != nil {
			return false, err
		}
		tx.Clear(row.Key)
		return true, nil
	}, &s.report.Repeats)
}
