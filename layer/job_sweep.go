package layer

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// A sweep clears what nobody needs any more and nobody else clears. Each part of it works in short transactions at
// batch priority that read a page and clear what is out of date on it, without a conflict with anybody; so a sweep may
// be stopped at any point and run again, and several at the same time do no harm but waste.

const (

	// sweepSlack is for clocks that differ. dedupSlack is the same for the entries of dedup ids, of which there may be many:
	// one that is swept by a clock ahead would end its window early for the others.
	sweepSlack = 24 * time.Hour
	dedupSlack = time.Minute
	// sweepEvery is how often the workers of a queue sweep, together.
	sweepEvery = 10 * time.Minute
	// sweepPage bounds the rows of one transaction of a sweep.
	sweepPage = 200
	// sweepRows bounds the dedup entries that one of many sweeps looks at; the next one goes on behind them. It goes on
	// all the same as long as a quarter of a page is out of date, so that it keeps up with any load.
	sweepRows = 50_000
)

// SweepOptions configure a sweep. The zero value sweeps at once.
type SweepOptions struct {
	// Every, if not 0, makes it one of many: if any sweep of the queue has begun less than Every ago, nothing is
	// done. Of several that begin at the same time one goes on.
	Every time.Duration
	// Progress, if not nil, is called after each transaction with what has been done so far.
	Progress func(SweepReport)
}

// SweepReport is what a sweep did. What was cleared by a transaction of unknown outcome may be missing from it.
type SweepReport struct {
	Skipped       bool  // another sweep was there, see SweepOptions.Every; the rest is zero
	Keys          int64 // looked at
	PastRetention int64 // items dropped or dead-lettered: they had waited longer than the queue's retention
	Archived      int64 // items cleared from the archive: kept for as long as the queue keeps them
	Repeats       int64 // receive ids, cleared: older than an hour
	Receipts      int64 // cleared: left by processes that were killed, older than an hour
	Wakes         int64 // wake keys cleared: of handles that have no request
	Dedup         int64 // entries cleared that make nothing a duplicate any more
	Purges        int64 // notes of purges cleared that are older than any entry
	Paces         int64 // of groups whose rate is as unused, cleared
}

// Sweep clears what nobody needs any more. Workers do it now and then; a queue that is served without a Worker needs
// it called, or the command run, once a day or so. If it returns an error, the report says what was done before that.
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
		s.receipts, s.wakes, s.repeats, s.dedup, s.purges, s.paces, s.overdue, s.archived,
	} {
		if err := part(); err != nil {
			return s.report, wrap("sweep", err)
		}
	}
	return s.report, nil
}

// wakes clears the wake keys of handles that have no request: they were killed, or somebody has touched the key when they
// had just withdrawn. The handle may live, and request again at this moment: then it wakes for nothing, or at its poll.
func (s *sweeper) wakes() error {
	return s.pagesUntil(s.q.keys.section(nameWake), func(tx kv.Tx, rows []kv.KV, _ bool) (cleared int64, err error) {
		if len(rows) == 0 {
			return 0, nil
		}
		waiting := make(map[uuid.UUID]bool)
		for requests := newCursor(s.q.keys.section(nameRequest)); !requests.exhausted; {
			found, err := requests.read(tx.Snapshot(), sweepPage).Wait(s.ctx)
			if err != nil {
				return 0, fmt.Errorf("read requests: %w", err)
			}
			requests.passed(found, sweepPage)
			for _, row := range found {
				if p, err := s.q.keys.parse(row.Key); err == nil { // Check names what cannot be read
					waiting[p.id] = true
				}
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
	config *Config // nil = it has not been read
}

// configuration is the queue's, as stored.
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

// begin notes in the database that a sweep begins. It returns false if it is another's turn.
//
// Footprint: a read conflict on the note, if it is written.
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
		// A note from the future is of a clock that is wrong.
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

// receipts clears those that were left behind. Whoever still counts on one of them has long stopped, see receiptTrust.
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

// purges clears the notes of purges that are older than any entry may be that asks for them.
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

// pages calls visit for each row of r, page by page; it tells whether it has cleared the row, which counted counts.
func (s *sweeper) pages(r kv.KeyRange, visit func(tx kv.Tx, row kv.KV) (cleared bool, err error), counted *int64) error {
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

// pagesUntil calls visit for each page of r, which returns how many rows it has cleared; more says that this is not known
// to be the last page. It ends early if enough, which is given the rows of a page and how many of them were cleared, says so;
// enough may be nil.
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

// passed reports a step that has looked at so many keys. What it has cleared is counted by counted.
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

// archived clears what has been kept for as long as the queue keeps it, or all of it if it keeps nothing any more.
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
			// A step that has cleared something may have ended at its bound: the rows behind it are the first ones now.
			rest.exhausted = rest.exhausted && p.cleared == 0
			return !rest.exhausted, nil
		},
	}
	return entries.run(true)
}

// forget clears the archived items of the entries that are too old. It returns how many these were, and the entries that it
// has done with; it stops at the first one that is young enough.
func (s *sweeper) forget(tx kv.Tx, rows []kv.KV, keep time.Duration) (items int64, done []kv.KV, err error) {
	for i, row := range rows {
		e, err := unpackArchiveEntry(row.Key, row.Value)
		if err != nil {
			continue // Check names it
		}
		if s.q.nowMS()-e.completedMS < keep.Milliseconds() || items > 0 && items+int64(len(e.items)) > archiveSweepItems {
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

// repeats clears the receive ids that are out of date, with time left for clocks that differ.
func (s *sweeper) repeats() error {
	return s.pages(s.q.keys.section(nameRepeat), func(tx kv.Tx, row kv.KV) (bool, error) {
		r, err := unpackRepeat(row.Key, row.Value)
		if err != nil || r.ms > s.q.nowMS()-receiptLife.Milliseconds() {
			return false, nil
		}
		// It may be in use again by now.
		if err := guardRepeatSweep.read(tx, kv.SingleKey(row.Key)); err != nil {
			return false, err
		}
		tx.Clear(row.Key)
		return true, nil
	}, &s.report.Repeats)
}
