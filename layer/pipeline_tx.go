package layer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/advice"
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
	o.settle.bytes = q.settleSize(o.settle)
	return nil
}

// settleSize estimates how many bytes a settlement adds to its transaction: of the items a quarter, because most acks
// clear items that follow each other, which have no parts and are in one lane.
func (q *Queue) settleSize(s *settlement) int {
	config, c := q.knownConfig(), s.claim
	z := q.keys.sizesIn(c.Group, config.Changes)
	n := len(s.state) + setSize(z.key, itemSize*len(c.Items))
	if s.extends || s.keeps {
		return n
	}
	facets := 0
	for i := range c.Items {
		if i == 0 {
			facets = len(q.keys.plan.pack(c.Items[i].Headers))
		}
		switch {
		case s.change != nil:
			n += setSize(z.key, len(c.Items[i].Body)) // its parts are written again, too
		case config.Archive > 0:
			n += setSize(z.key, min(len(c.Items[i].Body), maxInline))
		}
	}
	return n + max(len(c.Items), len(s.ids))*z.finish(facets)/4
}

// pipelineEnv returns what the handle's pipeline needs.
func (q *Queue) pipelineEnv() pipelineEnv {
	return pipelineEnv{
		run: q.run, giveBack: q.giveBackAll, yield: q.yield, alone: q.opts.Test.NoCoalescing,
		groups: q.wantedGroups, plenty: q.spreadOf("").Plenty,
		join: q.line.join, quit: q.line.quit, disband: q.line.disband, trouble: q.line.trouble,
	}
}

// run runs the operations in one transaction. If the shared transaction fails for good, each operation runs in its own.
func (q *Queue) run(ctx context.Context, batch []*operation, others int) {
	err := q.runTogether(ctx, batch, others)
	if len(batch) == 1 {
		batch[0].ranWith(q.runSmaller(ctx, batch[0], others, err))
		return
	}
	if err != nil && ctx.Err() == nil && (!kv.MaybeCommitted(err) || lacks(guardApart)) {
		for _, o := range batch {
			o.ranWith(q.runSmaller(ctx, o, 0, q.runTogether(ctx, []*operation{o}, 0)))
		}
		return
	}
	for _, o := range batch {
		o.ranWith(err)
	}
}

// runSmaller goes on with an operation whose own transaction has ended with err. If the transaction was too large, a
// receive asks for less and less; what has to be done as it is gets a *LimitError.
func (q *Queue) runSmaller(ctx context.Context, o *operation, others int, err error) error {
	for r := o.receive; tooLarge(err) && r != nil && r.o.Max > 1; {
		r.o.Max, r.o.MaxGroups = r.o.Max/2, min(r.o.MaxGroups, r.o.Max/2)
		err = q.runTogether(ctx, []*operation{o}, others)
	}
	if tooLarge(err) {
		err = &LimitError{What: "transaction", Unit: "bytes", Got: int64(o.used), Max: int64(q.txLimit())}
	}
	return err
}

// ranWith notes the outcome of an operation's transaction.
func (o *operation) ranWith(err error) {
	if o.err = err; o.settle != nil && err == nil && o.settleErr == nil {
		o.settle.done.Store(true)
	}
}

// mayRecover reports whether a turn of waiting receives, failed with err, may succeed next time.
func mayRecover(err error) bool {
	return err != nil && !kv.MaybeCommitted(err) && !errors.Is(err, ErrNoQueue)
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
	along := advise(&q.noticed, batch, others)
	if along.kept.StandsBack() {
		standBack(batch, q.pipeline.aWhile())
		return nil
	}
	var due []dueBeat
	defer along.flight.Land()
	_, err := onceFor(ctx, q, q.opts.Tx,
		func(tx kv.Tx, a kv.Attempt) ([]landed, bool, error) {
			for ; conflicts < a.Conflicts; conflicts++ {
				q.eachSpread(batch, (*advice.Spread).Widen)
			}
			w := q.txn(ctx, tx)
			w.mayStage, w.advised = slot, along
			along.attempt()
			outcome.cancel() // the watches of a failed attempt
			var err error
			outcome, err = w.perform(batch, a.Conflicts)
			q.learn(&w.chores, err)
			batch[0].used = w.used()
			if due = w.dueBeats; err != nil || !w.wrote {
				return nil, false, err
			}
			results := make([]landed, len(batch))
			for i, o := range batch {
				results[i] = o.results()
			}
			return results, true, nil
		},
		func(tx kv.Tx, results []landed) error {
			for i, o := range batch {
				if err := o.restore(ctx, q, tx, &results[i]); err != nil {
					return err
				}
			}
			if !slot {
				return nil
			}
			wants = nil      // nobody knows which the transaction has written
			outcome.cancel() // the watches of the attempt which was applied have failed with its commit
			var err error
			outcome, err = q.findRequest(ctx, tx)
			return err
		})
	along.end(err)
	if err != nil {
		outcome.cancel()
		if kv.MaybeCommitted(err) && slices.ContainsFunc(batch, (*operation).byHeartbeat) {
			q.heart.end(q.heart.pulse()) // nobody may ever learn of the claims
		}
		return err
	}
	ended := len(due) > 0 && q.endDueBeats(ctx, due)
	if lookFarFor(ctx, q, batch) || ended {
		for _, o := range batch {
			if o.receive != nil {
				o.receive.more = true
			}
		}
	}
	q.applied(batch, outcome, conflicts)
	q.staging.unexpect(wants)
	return nil
}

// lookFarFor is lookFar for the receives of a batch that was applied.
func lookFarFor(ctx context.Context, q *Queue, batch []*operation) (ended bool) {
	empty := make(map[string]bool)
	for _, o := range batch {
		if r := o.receive; r != nil {
			before, known := empty[r.where]
			empty[r.where] = (before || !known) && len(r.claims) == 0
		}
	}
	for _, where := range slices.Sorted(maps.Keys(empty)) {
		ended = lookFar(ctx, q, where, empty[where]) || ended
	}
	return ended
}

// applied notes what a shared transaction that was applied means for the handle.
func (q *Queue) applied(batch []*operation, outcome staged, conflicts int) {
	if conflicts == 0 {
		q.eachSpread(batch, (*advice.Spread).Narrow)
	}
	if t := batch[0].turn; t != nil {
		if slices.ContainsFunc(batch, (*operation).served) {
			t.serve()
		}
		t.found(outcome.rest)
		if outcome.rest.watch != nil {
			q.paths.looks.Add(1)
		}
	}
	q.staging.set(outcome)
	q.paths.granted.Add(int64(outcome.granted))
	q.paths.count(batch, conflicts)
}

// served reports whether the operation's receive has got something.
func (o *operation) served() bool { return o.receive != nil && len(o.receive.claims) > 0 }

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
			// Read the configuration again: the operator who has just resumed the queue counts on the woken handle.
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
	if !receive.none() {
		if err := keepOwn(w); err != nil {
			return staged{}, err
		}
	}
	outcome, err := w.receive(&receive, conflicts)
	if err != nil {
		return outcome, err
	}
	w.noteCleared(&outcome, outcome.gone)
	if err := w.meetOwed(receive.all(), len(receive.claimers) > 0); err != nil {
		return outcome, err
	}
	outcome.granted = w.others
	if err := w.finish(); err != nil {
		return outcome, err
	}
	return outcome, checkAdvanced(w, batch)
}

// checkAdvanced returns errTooLarge if advanced items, whose new bodies were not known before, have made the
// transaction too large to be committed.
func checkAdvanced(w *txn, batch []*operation) error {
	if !slices.ContainsFunc(batch, func(o *operation) bool { return o.settle != nil && o.settle.change != nil }) {
		return nil
	}
	err := w.checkSize()
	if errors.Is(err, ErrLimit) {
		return fmt.Errorf("%w: %w", errTooLarge, err)
	}
	return err
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

// eachSpread calls tell for each template in a batch.
func (q *Queue) eachSpread(batch []*operation, tell func(*advice.Spread)) {
	if q.keys.plan == nil {
		tell(q.spreadOf(""))
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

// landed is the results of an operation in an attempt, to be restored if the attempt turns out to have been applied.
type landed struct {
	settleErr error
	until     time.Time
	ends      time.Time
	follows   Follows
	waits     time.Duration
	sent      []Sent
	full      *FullError
	given     []claimRef // the items are read anew, see reload
}

// results returns the results of the attempt under way.
func (o *operation) results() landed {
	l := landed{settleErr: o.settleErr}
	if s := o.settle; s != nil {
		l.until, l.ends, l.follows, l.waits = s.until, s.ends, s.follows, s.waits
	}
	if e := o.enqueue; e != nil {
		l.sent, l.full = e.sent, e.full
	}
	if o.receive != nil {
		l.given = o.receive.given()
	}
	return l
}

// restore takes the results of the attempt which was applied: it may not be the last attempt which ran.
func (o *operation) restore(ctx context.Context, q *Queue, tx kv.Tx, l *landed) (err error) {
	if s := o.settle; s != nil {
		o.settleErr, s.until, s.ends, s.follows, s.waits = l.settleErr, l.until, l.ends, l.follows, l.waits
	}
	if e := o.enqueue; e != nil {
		e.sent, e.full = l.sent, l.full
	}
	if o.receive == nil {
		return nil
	}
	o.receive.begin()
	if lacks(guardClaimReceipt) {
		return nil
	}
	o.receive.claims, err = q.reload(ctx, tx, l.given, &o.receive.o)
	return err
}
