package layer

import (
	"context"
	"fmt"
	"maps"

	"fdbfifo/kv"
)

// ReplayHeader is the header of a replayed message: the id of the archived item which the message repeats.
const ReplayHeader = "fdbfifo-replay-of"

// ReplayOptions say how archived items are enqueued anew. The zero value replays every chosen item.
type ReplayOptions struct {
	// After is the item behind which the replay begins: ReplayReport.Last of a stopped replay.
	After *ID
	// DryRun changes nothing and reports what would be done.
	DryRun bool
	// Limit is how many to replay at most; 0 = every chosen item.
	Limit int
	// Progress, if not nil, is called after each transaction with the report so far.
	Progress func(ReplayReport)
}

func (o *ReplayOptions) limit() (int64, error) {
	switch {
	case o.Limit < 0:
		return 0, &LimitError{What: "limit", Unit: "items", Got: int64(o.Limit), Max: noLimit}
	case o.Limit == 0:
		return noLimit, nil
	}
	return int64(o.Limit), nil
}

// ReplayReport is what a replay has done.
type ReplayReport struct {
	Scanned    int64 // archived items looked at
	Done       int64 // enqueued anew; in a dry run: would be
	Unreadable int64 // chosen, and not readable: Archive lists each with the reason
	// Last is the last item replayed or passed over; nil = none. Pass Last as After to go on.
	Last *ID
	// More: there may be more behind Last, because the limit was reached, or the bound of a ReplayTx.
	More bool
}

// replayBytes bounds what one transaction of a replay writes; a first item alone may have more.
const replayBytes = 1 << 20

// Replay enqueues the archived items which f chooses anew: as new messages at the tails of their groups, in the order
// of Archive. ReplayHeader says which item each message repeats. The archive stays unchanged. Items finished in
// transactions begun after the replay are left out. Replayed messages are no duplicates of anything.
//
// Replay works in short transactions at batch priority, each all or none and done once. A stopped replay goes on behind
// ReplayReport.Last. Conflicts: as an enqueue.
//
// After an error, the report says what was done before. Errors: ErrOptions, ErrInvalidID, ErrInvalidUTF8, *LimitError,
// ErrClosed, and the engine's.
func (a Admin) Replay(ctx context.Context, f ArchiveFilter, o ReplayOptions) (ReplayReport, error) {
	if o.DryRun {
		return a.q.replay(ctx, f, o)
	}
	var report ReplayReport
	err := a.act(ctx, VerbReplay, f.Group, ID{}, func(ctx context.Context) (n int, err error) {
		report, err = a.q.replay(ctx, f, o)
		return int(report.Done), err
	})
	return report, err
}

func (q *Queue) replay(ctx context.Context, f ArchiveFilter, o ReplayOptions) (ReplayReport, error) {
	var report ReplayReport
	limit, err := o.limit()
	if err != nil {
		return report, wrap("replay", err)
	}
	walk, err := q.walkArchive(ctx, f, o.After)
	if err != nil {
		return report, wrap("replay", err)
	}
	steps := job[replayStep]{
		q: q, ctx: ctx, width: archiveRows, kept: &receipt[replayStep]{}, reads: o.DryRun,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (replayStep, bool, error) {
			r := replayStep{q: q, walk: walk, left: limit - report.Done, dryRun: o.DryRun}
			err := r.perform(ctx, tx, width)
			return r, !o.DryRun && r.done > 0, err
		},
		pass: func(r replayStep) (bool, error) {
			report.Scanned += int64(r.step.scanned)
			report.Done += r.done
			report.Unreadable += r.unreadable
			if r.step.last != nil {
				report.Last = r.step.last
			}
			if o.Progress != nil {
				o.Progress(report)
			}
			if r.cut && !lacks(guardReplayCut) {
				walk, err = q.resumeArchive(ctx, walk, report.Last)
			} else {
				walk.pass(r.step)
			}
			return err == nil && !walk.ended && report.Done < limit, err
		},
	}
	if err := steps.run(!walk.ended); err != nil {
		return report, wrap("replay", err)
	}
	report.More = !walk.ended
	return report, nil
}

// ReplayTx replays in the caller's transaction as much as a transaction may take: up to 50 items and about 1 MiB, or
// o.Limit if less. While report.More is true, call ReplayTx again with Last as After, in another transaction. DryRun
// and Progress are refused (ErrOptions). The caller answers for an unknown commit: use Once. Archived items which the
// transaction itself has finished are replayed too.
//
// Reads: the archive, at snapshot. Conflicts: as an enqueue.
func (a Admin) ReplayTx(ctx context.Context, tx kv.Tx, f ArchiveFilter, o ReplayOptions) (ReplayReport, error) {
	report, err := a.q.replayTx(ctx, tx, f, o)
	if err != nil {
		return ReplayReport{}, wrap("replay", err)
	}
	return report, nil
}

func (q *Queue) replayTx(
	ctx context.Context, tx kv.Tx, f ArchiveFilter, o ReplayOptions,
) (report ReplayReport, err error) {
	switch {
	case q.isClosed():
		return report, ErrClosed
	case o.DryRun || o.Progress != nil:
		return report, fmt.Errorf("%w: a dry run or progress of a single transaction", ErrOptions)
	}
	limit, err := o.limit()
	if err != nil {
		return report, err
	}
	if err := checkArchiveWalk(&f, o.After); err != nil {
		return report, err
	}
	walk := &archiveWalk{q: q, filter: f}
	if err := walk.place(ctx, tx.Snapshot(), o.After); err != nil {
		return report, err
	}
	if walk.ended {
		return report, q.exists(ctx, tx)
	}
	r := replayStep{q: q, walk: walk, left: limit}
	if err := r.perform(ctx, tx, archiveRows); err != nil {
		return report, err
	}
	return ReplayReport{
		Scanned: int64(r.step.scanned), Done: r.done, Unreadable: r.unreadable, Last: r.step.last,
		More: r.cut || !r.step.ended,
	}, nil
}

// resumeArchive is a walk which goes on behind an item, up to the end of the old walk.
func (q *Queue) resumeArchive(ctx context.Context, old *archiveWalk, after *ID) (*archiveWalk, error) {
	w, err := q.walkArchive(ctx, old.filter, after)
	if err == nil && !lacks(guardReplayEnd) {
		w.end, w.until = old.end, old.until
	}
	return w, err
}

// replayStep is an attempt of a step of a replay, and its findings. The receipt stores no findings, because the attempt
// which landed is the last attempt which ran.
type replayStep struct {
	q      *Queue
	walk   *archiveWalk
	left   int64
	dryRun bool

	step       archiveStep // its items: all which the step is done with
	done       int64
	unreadable int64
	cut        bool // not all that was read could be done
}

// perform is an attempt, with at most width archived items.
func (r *replayStep) perform(ctx context.Context, tx kv.Tx, width int) error {
	var err error
	if r.step, err = r.walk.read(ctx, tx.Snapshot(), width); err != nil {
		return err
	}
	e, err := r.choose(ctx, tx.Snapshot())
	if err != nil {
		return err
	}
	if r.dryRun || len(e.msgs) == 0 {
		return r.q.exists(ctx, tx)
	}
	e.randoms = r.q.randoms(len(e.msgs))
	return r.q.operate(ctx, tx, func(w *txn) error {
		w.count(countEnqueued, len(e.msgs))
		return w.enqueue(e)
	})
}

// choose makes the messages of as many items as a transaction may enqueue.
func (r *replayStep) choose(ctx context.Context, tx kv.ReadTx) (*enqueuing, error) {
	r.done, r.unreadable, r.cut = 0, 0, false
	e := &enqueuing{redriven: true}
	size := 0
	for i := range r.step.items {
		row := &r.step.items[i]
		if err := r.q.readArchivedBody(ctx, tx, row); err != nil {
			return nil, err
		}
		size += len(row.Body) + 500
		if r.done == r.left || r.done > 0 && size > replayBytes {
			r.cut = true
			r.step.items, r.step.scanned, r.step.last = r.step.items[:i], i, nil
			if i > 0 {
				r.step.last = &r.step.items[i-1].ID
			}
			return e, nil
		}
		if row.Err != nil {
			r.unreadable++
			continue
		}
		headers := maps.Clone(row.Headers)
		if headers == nil {
			headers = make(map[string]string, 1)
		}
		headers[ReplayHeader] = row.ID.String()
		e.msgs = append(e.msgs, Message{Group: row.ID.Group, Body: row.Body, Headers: headers})
		r.done++
	}
	return e, nil
}
