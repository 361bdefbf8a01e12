package layer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// submit runs o together with other operations arriving at the same time, see pipeline.submit.
func (q *Queue) submit(ctx context.Context, o *operation) error {
	if err := q.prepare(o); err != nil {
		return err
	}
	beat := o.settlesUnder()
	err := q.pipeline.submit(ctx, o)
	q.leaveIfUnsettled(beat, err)
	return err
}

// settlesUnder returns the beat of the claim which the operation settles; uuid.Nil = it settles none by heartbeat.
func (o *operation) settlesUnder() uuid.UUID {
	if o.settle == nil {
		return uuid.Nil
	}
	return o.settle.claim.beat
}

// prepare checks an operation before the operation travels with others.
func (q *Queue) prepare(o *operation) error {
	if o.settle == nil {
		return nil
	}
	if err := o.settle.checkClaim(q); err != nil {
		return err
	}
	o.settle.copies = q.Config().Archive > 0
	return nil
}

// pipelineEnv returns what the handle's pipeline needs.
func (q *Queue) pipelineEnv() pipelineEnv {
	return pipelineEnv{
		run: q.run, giveBack: q.giveBackAll, yield: q.yield, alone: q.opts.Test.NoCoalescing,
		groups: q.wantedGroups, plenty: q.spread.plenty.Load,
		join: q.line.join, quit: q.line.quit, disband: q.line.disband,
	}
}

// run runs the operations in one transaction. If the shared transaction fails for good, each operation runs in its own.
func (q *Queue) run(ctx context.Context, batch []*operation, others int) {
	err := q.runTogether(ctx, batch, others)
	if err != nil && len(batch) > 1 && ctx.Err() == nil && (!unknown(err) || lacks(guardApart)) {
		for _, o := range batch {
			o.ranWith(q.runTogether(ctx, []*operation{o}, 0))
		}
		return
	}
	for _, o := range batch {
		o.ranWith(err)
	}
}

// ranWith notes the outcome of an operation's transaction.
func (o *operation) ranWith(err error) {
	if o.err = err; o.settle != nil && err == nil && o.settleErr == nil {
		o.settle.done.Store(true)
	}
}

// mayRecover reports whether a turn of waiting receives, failed with err, may succeed next time.
func mayRecover(err error) bool {
	return err != nil && !unknown(err) && !errors.Is(err, ErrNoQueue)
}

// unknown reports whether err leaves the transaction's outcome open.
func unknown(err error) bool {
	var e *kv.Error
	return errors.As(err, &e) && (e.InFlight || e.MaybeCommitted())
}

// giveBackAll releases claims which nobody receives. From the first failure on, the claims run into their leases.
func (q *Queue) giveBackAll(claims []*Claim) {
	ctx := q.named(context.Background(), "give back of %s under %d", claims[0].Items[0].ID, claims[0].Token)
	q.yield(ctx, "begin")
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for _, c := range claims {
		if err := q.Nack(ctx, c, NackOptions{Release: true}); err != nil {
			return
		}
	}
}

// runTogether runs the operations in one transaction, which happens once. others is how many groups the handle's other
// transactions in flight are likely to take.
func (q *Queue) runTogether(ctx context.Context, batch []*operation, others int) error {
	conflicts := 0
	var outcome staged
	slot := waits(batch) && q.staging.acquire()
	var wants []want // for which there may be requests from now on
	if slot {
		defer q.staging.release()
		wants = q.staging.expect(wantsOf(batch), q.nowMS())
	}
	f, booked := &flight{}, &bookings{}
	kept := q.staging.keeping.begin(q, batch)
	if kept.standBack() {
		return nil
	}
	var due []dueBeat
	defer q.flights.end(f)
	err := q.once(ctx,
		func(tx kv.Tx, a kv.Attempt) ([]byte, error) {
			for ; conflicts < a.Conflicts; conflicts++ {
				q.widen(batch)
			}
			w := q.txn(ctx, tx)
			w.mayStage = slot
			q.flights.end(f) // the groups which a failed attempt was about to claim
			q.budget.giveBack(booked)
			w.flight, w.beside, w.booked = f, others, booked
			kept.enter(w)
			outcome.rest.cancel() // the watch of a failed attempt
			var err error
			outcome, err = w.perform(batch, a.Conflicts)
			q.stride.learn(&w.chores, err)
			if due = w.dueBeats; err != nil || !w.wrote {
				return nil, err
			}
			result := make([]byte, 0, 64*len(batch))
			for _, o := range batch {
				result = tuple.AppendNested(result, o.appendResult)
			}
			return result, nil
		},
		func(tx kv.Tx, result tuple.Tuple) error {
			if len(result) != len(batch) {
				return fmt.Errorf("%w: receipt of %d operations for %d", ErrCorrupt, len(result), len(batch))
			}
			for i, o := range batch {
				if err := o.unpack(ctx, q, tx, result[i]); err != nil {
					return err
				}
			}
			if !slot {
				return nil
			}
			wants = nil           // nobody knows which the transaction has written
			outcome.rest.cancel() // the watch of the attempt which was applied has failed with its commit
			var err error
			outcome, err = q.findRequest(ctx, tx)
			return err
		})
	kept.end(err)
	if err != nil {
		outcome.rest.cancel()
		if !unknown(err) {
			q.budget.giveBack(booked)
		} else if slices.ContainsFunc(batch, (*operation).byHeartbeat) {
			q.heart.end(q.heart.pulse()) // nobody may ever learn of the claims
		}
		return err
	}
	if len(due) > 0 && q.endDueBeats(ctx, due) {
		for _, o := range batch {
			if o.receive != nil {
				o.receive.more = true
			}
		}
	}
	if conflicts == 0 {
		q.narrow(batch)
	}
	if t := batch[0].turn; t != nil {
		t.found(outcome.rest)
		if outcome.rest.watch != nil {
			q.paths.looks.Add(1)
		}
	}
	q.staging.set(outcome)
	q.staging.unexpect(wants)
	q.paths.granted.Add(int64(outcome.granted))
	q.paths.count(batch, conflicts)
	return nil
}

// byHeartbeat reports whether the operation may have claimed by heartbeat.
func (o *operation) byHeartbeat() bool { return o.receive != nil && o.receive.o.Heartbeat }

// waits reports whether receives of the batch wait for a group to become ready.
func waits(batch []*operation) bool {
	return slices.ContainsFunc(batch, func(o *operation) bool { return o.waits })
}

// perform does the work of all operations: first the settlements, for each group one after the other, then the
// enqueues, then the receives, so that the receives find the groups made ready before. The reads of the receives begin
// first, so that the receives need no round trip of their own.
func (w *txn) perform(batch []*operation, conflicts int) (staged, error) {
	var settle []*operation
	var enqueue []*enqueuing
	var receive receiving
	for _, o := range batch {
		o.settleErr = nil
		if o.settle != nil {
			settle = append(settle, o)
		}
		if o.enqueue != nil {
			enqueue = append(enqueue, o.enqueue)
		}
		if o.receive != nil {
			if len(w.q.opts.Hooks) > 0 {
				o.receive.tried = time.Now()
			}
			receive.add(o)
		}
	}
	if !receive.none() && !receive.stageFirst(w.q, conflicts) {
		if receive.called {
			// Read the configuration anew: whoever has just resumed the queue counts on the woken handle.
			w.followAnew()
		}
		for _, rs := range byTemplate(receive.all()) {
			c := w.newClaimer(rs[0].where, rs)
			c.begin()
			receive.claimers = append(receive.claimers, c)
		}
	}
	for len(settle) > 0 {
		var now, later []*operation
		lanes := make(map[string]bool, len(settle))
		for _, o := range settle {
			if lane := o.settle.lane; lanes[lane] {
				later = append(later, o)
			} else {
				lanes[lane] = true
				now = append(now, o)
			}
		}
		if err := w.settle(now); err != nil {
			return staged{}, err
		}
		settle = later
	}
	if err := w.leadBackAll(); err != nil { // the receives are to find the groups
		return staged{}, err
	}
	if err := w.enqueue(enqueue...); err != nil {
		return staged{}, err
	}
	outcome, err := w.receive(&receive, conflicts)
	if err != nil {
		return staged{}, err
	}
	if err := w.meetOwed(receive.all(), len(receive.claimers) > 0); err != nil {
		return staged{}, err
	}
	outcome.granted = w.others
	return outcome, w.finish()
}

// receiving is the operations of a transaction which receive.
type receiving struct {
	operations []*operation
	waiting    int        // how many of the operations wait
	called     bool       // by the waiting line: then all operations are
	claimers   []*claimer // one for each template; none = the operations are staged without a look
}

func (r *receiving) add(o *operation) {
	if !lacks(guardAssign) {
		o.receive.begin()
	}
	r.operations = append(r.operations, o)
	if o.waits {
		r.waiting++
	}
	r.called = r.called || o.turn != nil
}

func (r *receiving) none() bool { return len(r.operations) == 0 }

// stageFirst reports whether all operations wait and are to be staged without a look.
func (r *receiving) stageFirst(q *Queue, conflicts int) bool {
	return !r.called && r.waiting == len(r.operations) && q.stageFirst(conflicts)
}

func (r *receiving) all() []*reception {
	rs := make([]*reception, len(r.operations))
	for i, o := range r.operations {
		rs[i] = o.receive
	}
	return rs
}

// settle takes the settlements, of different groups, through their steps together.
func (w *txn) settle(os []*operation) error {
	for _, o := range os {
		o.settle.begin(w)
	}
	for _, o := range os {
		err := o.settle.check(w)
		if err != nil && kv.Code(err) != 0 {
			return err
		}
		o.settleErr = err // nothing was written: only this settlement fails
		w.wrote = w.wrote || err == nil
	}
	for _, o := range os {
		if o.settleErr != nil {
			continue
		}
		if err := o.settle.finish(w); err != nil {
			return err
		}
	}
	for _, o := range os {
		if o.settleErr != nil {
			continue
		}
		if err := o.settle.joinLanes(w); err != nil {
			return err
		}
	}
	return nil
}

// receive claims for the operations whose settlement, if any, succeeded, and stages the operations waiting for a group
// to become ready.
func (w *txn) receive(all *receiving, conflicts int) (staged, error) {
	var rs []*reception
	var waiting []*operation
	for _, o := range all.operations {
		if o.settleErr == nil {
			rs = append(rs, o.receive)
			if o.waits {
				waiting = append(waiting, o)
			}
		}
	}
	if len(rs) == 0 {
		return staged{}, nil
	}
	if len(all.claimers) == 0 {
		if err := w.lookForAny(rs); err != nil {
			return staged{}, err
		}
		return w.stage(waiting, nil, nil)
	}
	var whole *claimer // of the receives which may wait
	for _, c := range all.claimers {
		c.owed = slices.DeleteFunc(slices.Clone(rs), func(r *reception) bool { return r.where != c.where })
	}
	if all.called {
		return w.takeTurn(all.claimers, waiting)
	}
	if len(waiting) == len(rs) {
		if alone, err := w.leaveAlone(all.claimers, waiting, conflicts); err != nil {
			return staged{}, err
		} else if alone {
			return w.stage(waiting, nil, nil)
		}
	}
	for _, c := range all.claimers {
		if c.where == "" {
			whole = c
		}
		if err := c.claim(); err != nil {
			return staged{}, err
		}
	}
	w.claimed(rs)
	if err := w.lookForAny(rs); err != nil {
		return staged{}, err
	}
	return w.stage(waiting, whole, nil)
}

// widen and narrow tell the spreads of the templates in a batch of a conflict, or that there was none.
func (q *Queue) widen(batch []*operation) { q.eachSpread(batch, (*spread).widen) }

func (q *Queue) narrow(batch []*operation) { q.eachSpread(batch, (*spread).narrow) }

func (q *Queue) eachSpread(batch []*operation, tell func(*spread)) {
	if q.keys.plan == nil {
		tell(&q.spread)
		return
	}
	told := make(map[string]bool)
	for _, o := range batch {
		if r := o.receive; r != nil && !told[r.where] {
			told[r.where] = true
			tell(q.spreadOf(r.where))
		}
	}
}

// claimed notes whether claims were written.
func (w *txn) claimed(rs []*reception) {
	for _, r := range rs {
		w.wrote = w.wrote || len(r.claims) > 0
	}
}

// The codes of a settlement's outcome in a receipt.
const (
	settled = iota
	settledClaimLost
	settledNotInClaim
	settledCorrupt
	settledRefused // an advance that the queue does not allow
)

// appendResult appends the receipt's part about an operation: how the settlement ended, until when, and the results of
// the enqueue and of the receive as nested tuples.
func (o *operation) appendResult(b []byte) []byte {
	code, until := int64(settled), int64(0)
	switch {
	case errors.Is(o.settleErr, ErrClaimLost):
		code = settledClaimLost
	case errors.Is(o.settleErr, ErrNotInClaim):
		code = settledNotInClaim
	case isCorrupt(o.settleErr):
		code = settledCorrupt
	case o.settleErr != nil:
		code = settledRefused
	case o.settle != nil && o.settle.extends:
		until = millis(o.settle.until)
	}
	b = tuple.AppendInt(tuple.AppendInt(b, code), until)
	b = tuple.AppendNested(b, func(b []byte) []byte {
		if o.enqueue == nil {
			return b
		}
		return o.enqueue.appendResult(b)
	})
	return tuple.AppendNested(b, func(b []byte) []byte {
		if o.receive == nil {
			return b
		}
		return o.receive.appendResult(b)
	})
}

// unpack takes the results from a receipt.
func (o *operation) unpack(ctx context.Context, q *Queue, tx kv.Tx, v any) error {
	t, ok := v.(tuple.Tuple)
	if !ok || len(t) != 4 {
		return fmt.Errorf("%w: receipt of an operation: %v", ErrCorrupt, v)
	}
	code, ok := t[0].(int64)
	until, ok2 := t[1].(int64)
	ids, ok3 := t[2].(tuple.Tuple)
	claims, ok4 := t[3].(tuple.Tuple)
	if !ok || !ok2 || !ok3 || !ok4 {
		return fmt.Errorf("%w: receipt of an operation: %v", ErrCorrupt, v)
	}
	if o.settle != nil && (code != settledRefused || o.settleErr == nil) { // refused: as the last attempt has said
		o.settleErr = map[int64]error{
			settledClaimLost: ErrClaimLost, settledNotInClaim: ErrNotInClaim, settledCorrupt: ErrCorrupt,
			settledRefused: ErrOptions,
		}[code]
		if until > 0 {
			o.settle.until = fromMillis(until)
		}
	}
	if o.enqueue != nil {
		if err := o.enqueue.restore(ids); err != nil {
			return err
		}
	}
	if o.receive != nil {
		o.receive.begin()
		var err error
		if lacks(guardClaimReceipt) {
			return nil
		}
		if o.receive.claims, err = q.reload(ctx, tx, claims, &o.receive.o); err != nil {
			return err
		}
	}
	return nil
}
