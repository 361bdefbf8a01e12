package layer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// submit runs o and returns its error when the outcome is known, or when ctx ends. Operations that arrive at the same
// time share transactions, see line.Pipeline.Submit; txn.perform has the keys. If no group is ready, a receive with a
// Wait waits in the line for so long, or until its Stop is closed. If a claim by heartbeat may have stayed unsettled,
// the handle ends its heartbeat, so that the claim can expire (leaveIfUnsettled).
func (q *Queue) submit(ctx context.Context, o *operation) (err error) {
	if err := q.prepare(o); err != nil {
		return err
	}
	s, beat := o.settle, o.settlesUnder()
	if r := o.receive; r != nil && r.o.Wait > 0 {
		err = q.pipeline.SubmitWaiting(ctx, o, r.o.Wait, r.o.Stop)
	} else {
		err = q.pipeline.Submit(ctx, o)
	}
	if s == nil || !s.done.Load() { // else the error is another part's
		q.leaveIfUnsettled(ctx, beat, err)
	}
	return reveal(err)
}

// prepare checks the claim of a settlement, and estimates the bytes that it adds, before the operation shares a
// transaction with others. It reads no key.
func (q *Queue) prepare(o *operation) error {
	if o.settle == nil {
		return nil
	}
	if err := o.settle.checkClaim(q); err != nil {
		return err
	}
	o.adds = q.settleSize(o.settle)
	return nil
}

// settleSize estimates how many bytes a settlement adds to its transaction. It counts a quarter of the items' keys,
// because most acks clear items that follow each other, which have no parts and are in one lane.
func (q *Queue) settleSize(s *settlement) int {
	config, c := q.knownConfig(), s.claim
	z := q.keys.sizesIn(c.Group, config.Changes)
	n := s.state.size() + setSize(z.key, rec.ItemSize*len(c.Items))
	if s.keeps() {
		return n
	}
	facets := 0
	for i := range c.Items {
		if i == 0 {
			facets = len(q.keys.plan.Pack(c.Items[i].Headers))
		}
		switch {
		case s.advance != nil:
			n += setSize(z.key, len(c.Items[i].Body)) // its parts are written again, too
		case config.Archive > 0:
			n += setSize(z.key, min(len(c.Items[i].Body), rec.MaxInline))
		}
	}
	return n + max(len(c.Items), len(s.ids))*z.finish(facets)/4
}

// pipelineEnv returns the functions of the handle that its pipeline calls: see line.PipelineEnv.
func (q *Queue) pipelineEnv() line.PipelineEnv[*operation] {
	return line.PipelineEnv[*operation]{
		Most: mostTogether(), Closed: ErrClosed, Run: q.run, Yield: q.yield,
		Groups: func(o *operation) int { return q.wantedGroups(o.receive) }, Plenty: q.spreadOf("").Plenty.Load,
		MayRecover: mayRecover, GiveBack: func(o *operation) { giveBackOf(q, o) },
	}
}

// giveBackOf takes the claims of a receive whose caller has left, and starts a goroutine that returns them to the
// queue. If the receive has a receive id, the caller can repeat it and keeps the claims.
func giveBackOf(q *Queue, o *operation) {
	r := o.receive
	if len(r.claims) > 0 && r.o.ReceiveID == "" {
		giveBackAll(q, r.claims)
		r.claims = nil
	}
}

// run runs the operations of a batch, in one transaction or several, and sets the results of each. txn.perform has the
// keys. others is how many groups the handle's other transactions in flight are likely to take.
//
// A batch of receives together with settlements or enqueues runs in one transaction, up to the first conflict. After
// that the settlements and enqueues run again without the receives, and all receives of the batch follow in other
// transactions. If an operation has First set, the batch begins so: the pipeline has seen that receives lose conflicts
// at the time. A batch of receives alone is tried again after each conflict.
func (q *Queue) run(ctx context.Context, batch []*operation, others int) {
	switch {
	case slices.ContainsFunc(batch, func(o *operation) bool { return o.First }):
		runFirst(ctx, q, batch)
	case !slices.ContainsFunc(batch, (*operation).Receives):
		runWhole(ctx, q, batch, others, q.runTogether(ctx, batch, others, q.opts.Tx))
	case slices.ContainsFunc(batch, writesFirst):
		o := q.opts.Tx
		o.UntilConflict = true
		if err := q.runTogether(ctx, batch, others, o); !isConflict(q, batch, err) {
			runWhole(ctx, q, batch, others, err)
			return
		}
		lostConflict(q, batch)
		runFirst(ctx, q, batch)
	default:
		runWhole(ctx, q, batch, others, runReceives(ctx, q, batch, others))
	}
}

// runWhole notes the outcome of a transaction of the whole batch, which has ended with err. If it has failed for good,
// each operation runs in a transaction of its own, so that one does not fail because of another. But if the time of
// Options.Tx.Timeout is over, it is over for all: otherwise the last of n operations would wait n times as long. If the
// outcome is unknown, or the callers have gone, all operations get err.
func runWhole(ctx context.Context, q *Queue, batch []*operation, others int, err error) {
	if len(batch) == 1 {
		batch[0].ranWith(q.runSmaller(ctx, batch[0], others, err))
		return
	}
	if err != nil && ctx.Err() == nil && !kv.MaybeCommitted(err) && kv.Code(err) != kv.CodeTransactionTimedOut {
		for _, o := range batch {
			o.ranWith(q.runSmaller(ctx, o, 0, q.runTogether(ctx, []*operation{o}, 0, q.opts.Tx)))
		}
		return
	}
	for _, o := range batch {
		o.ranWith(err)
	}
}

// An ack waits only for its own transaction. A conflict is nearly always a receive's: another handle was faster.
// So after the first conflict of a transaction, its settlements and enqueues run again at once, without the receives.
// The receives try again in transactions of their own. While these lose conflicts, an ack-and-receive does not wait
// until its receive may begin: it settles in one transaction and receives in another.
//
// A turn of the waiting line that has lost a conflict is modest: it takes the groups that were granted to the handle,
// or one other group if there are none, and passes its wake on. Granted groups are the handle's alone, so such a turn
// loses no conflict with other handles. Otherwise a grant would end, after 2 s, while the turn fights for more groups.
// Example: ten receives of a handle wait, and one group is granted to it. The turn that takes it and nine others loses
// one conflict after the other.

// lastConflictPause bounds the pause of receives after a conflict: a random part of the time of a few transactions,
// which doubles. The engine's own pause grows up to a second, because it is for a database in trouble. A conflict means
// that another handle was served. A pause must be short: if the handle is the first in the waiting line, it alone is
// woken for the messages of that time.
const lastConflictPause = 64 * time.Millisecond

// isConflict reports whether a transaction of the batch with UntilConflict has ended with a conflict, and nothing else.
// If Options.Tx bounds the attempts, only a conflict of the first attempt counts: a later one may have been the last.
func isConflict(q *Queue, batch []*operation, err error) bool {
	return kv.Code(err) == kv.CodeNotCommitted && !kv.MaybeCommitted(err) &&
		(q.opts.Tx.Retries == 0 || batch[0].retries == 0)
}

// lostConflict notes in memory that a transaction with receives has lost a conflict: the next searches begin at other
// hints (advice.Spread.Widen).
func lostConflict(q *Queue, batch []*operation) {
	q.eachSpread(batch, (*advice.Spread).Widen)
	for _, o := range batch {
		if o.receive != nil {
			o.Lost++
		}
	}
}

// lostOf returns how many conflicts the receives of the batch have lost in earlier transactions: the most of any.
func lostOf(batch []*operation) (lost int) {
	for _, o := range batch {
		lost = max(lost, o.Lost)
	}
	return lost
}

// runFirst runs the settlements and enqueues of the operations in one transaction, and leaves the receives to other
// transactions. Later is set on an operation whose receive must still run.
func runFirst(ctx context.Context, q *Queue, batch []*operation) {
	var parts, wholes []*operation
	for _, o := range batch {
		if o.receive != nil {
			o.receive.begin()
		}
		if !writesFirst(o) {
			o.TxErr, o.Later = nil, true
			continue
		}
		parts, wholes = append(parts, &operation{settle: o.settle, enqueue: o.enqueue}), append(wholes, o)
	}
	if len(parts) == 0 {
		return
	}
	runWhole(ctx, q, parts, 0, q.runTogether(ctx, parts, 0, q.opts.Tx))
	for i, o := range wholes {
		o.TxErr, o.settleErr, o.used = parts[i].TxErr, parts[i].settleErr, parts[i].used
		o.Later = o.receive != nil && o.TxErr == nil && o.settleErr == nil
	}
}

// runReceives runs operations that only receive in one transaction, and again after each conflict, within the bounds of
// Options.Tx. It returns the error of the last transaction, or says that ctx has ended or that Options.Tx.Timeout is
// over. After lost conflicts it pauses before a try, see pauseAfter.
func runReceives(ctx context.Context, q *Queue, batch []*operation, others int) error {
	o, begun := q.opts.Tx, time.Now()
	o.UntilConflict = true
	for tries := 0; ; tries++ {
		if lost := lostOf(batch); lost > 0 && !pauseAfter(ctx, q, lost) {
			return context.Cause(ctx)
		}
		if q.opts.Tx.Timeout > 0 {
			if o.Timeout = q.opts.Tx.Timeout - time.Since(begun); o.Timeout <= 0 {
				return &kv.Error{Code: kv.CodeTransactionTimedOut}
			}
		}
		err := q.runTogether(ctx, batch, others, o)
		if !isConflict(q, batch, err) || q.opts.Tx.Retries > 0 && tries >= q.opts.Tx.Retries {
			return err
		}
		lostConflict(q, batch)
		q.pipeline.Conflicted(batch[0])
	}
}

// pauseAfter waits for a random time after so many lost conflicts, at least one: up to AWhile, doubled with each
// further conflict, at most lastConflictPause and Options.Tx.MaxRetryDelay. It returns false if ctx has ended. With
// lost = 0 it panics.
func pauseAfter(ctx context.Context, q *Queue, lost int) bool {
	pause := min(q.pipeline.AWhile()<<min(lost-1, 10), lastConflictPause)
	if most := q.opts.Tx.MaxRetryDelay; most > 0 {
		pause = min(pause, most)
	}
	return wait(ctx, q, time.Duration(q.random.Float()*float64(pause)), "after a conflict")
}

// runSmaller continues with an operation whose own transaction has ended with err, and returns the final error. If the
// transaction was too large, a receive asks for half as much, again and again. An operation that cannot ask for less
// gets a *LimitError. A row that is too large is another fault, and keeps its error. Any other err comes back
// unchanged.
func (q *Queue) runSmaller(ctx context.Context, o *operation, others int, err error) error {
	for r := o.receive; tooLarge(err) && r != nil && r.o.Max > 1; {
		r.o.Max, r.o.MaxGroups = r.o.Max/2, min(r.o.MaxGroups, r.o.Max/2)
		err = q.runTogether(ctx, []*operation{o}, others, q.opts.Tx)
	}
	if code := kv.Code(err); code == kv.CodeValueTooLarge || code == kv.CodeKeyTooLarge {
		return fmt.Errorf("a row of this call is too large, use shorter names and headers, or fewer messages: %w", err)
	}
	if tooLarge(err) {
		err = &LimitError{What: whatTransaction, Unit: "bytes", Got: int64(o.used), Max: int64(q.txLimit())}
	}
	return err
}

// mayRecover reports whether a turn of waiting receives that has failed with err may succeed next time. It is false if
// the outcome is unknown, or if the queue is gone or the database was closed.
func mayRecover(err error) bool {
	return err != nil && !kv.MaybeCommitted(err) && !errors.Is(err, ErrNoQueue) && !errors.Is(err, ErrClosed)
}

// prove notes in the locks of claims of suspect items that the caller has them. From then on the end of the lease
// counts as a failed attempt of the first item (group_verdict.go explains suspect items). Claims without a suspect item
// stay as they are.
//
// For each suspect claim prove submits an extension, after the transaction of the receive. The extension writes the
// lock, and if the lease ends later then, the timer. A claim by heartbeat, or with a later end, keeps its end. A claim
// that is lost by then is left out of the result. If the handle is closed, the claim is returned without the note.
//
// After another error no claim is returned. All claims are given back in the background, unless the caller repeats the
// receive under its id. kv.MaybeCommitted is true of the error, because the receive has made the claims.
func prove(ctx context.Context, q *Queue, r *reception, claims []*Claim) ([]*Claim, error) {
	known := claims[:0:0]
	for _, c := range claims {
		if !c.suspect {
			known = append(known, c)
			continue
		}
		q.yield(ctx, "prove")
		s := &settlement{claim: c, extend: &extension{lease: r.o.Lease, proves: true}}
		switch err := q.submit(ctx, &operation{settle: s}); {
		case err == nil:
			c.Until, c.ends = s.run.result.Until, s.run.result.ends
			known = append(known, c)
		case errors.Is(err, ErrClosed): // a claim that is not proven counts nothing
			known = append(known, c)
		case errors.Is(err, ErrClaimLost):
		default:
			if r.o.ReceiveID == "" {
				giveBackAll(q, claims)
			}
			if !kv.MaybeCommitted(err) {
				err = &kv.Error{Code: kv.CodeCommitUnknownResult, Cause: err} // the claims have been made
			}
			return nil, err
		}
	}
	return known, nil
}
