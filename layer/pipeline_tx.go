package layer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// submit runs o together with other operations arriving at the same time, see line.Pipeline.Submit.
func (q *Queue) submit(ctx context.Context, o *operation) error {
	if err := q.prepare(o); err != nil {
		return err
	}
	beat := o.settlesUnder()
	err := q.pipeline.Submit(ctx, o)
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
	n := len(s.state) + setSize(z.key, rec.ItemSize*len(c.Items))
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
			n += setSize(z.key, min(len(c.Items[i].Body), rec.MaxInline))
		}
	}
	return n + max(len(c.Items), len(s.ids))*z.finish(facets)/4
}

// pipelineEnv returns what the handle's pipeline needs.
func (q *Queue) pipelineEnv() line.PipelineEnv[*operation] {
	return line.PipelineEnv[*operation]{
		Most: mostTogether(), Closed: ErrClosed, Run: q.run, Yield: q.yield,
		Groups: func(o *operation) int { return q.wantedGroups(o.receive) }, Plenty: q.spreadOf("").Plenty,
		MayRecover: mayRecover, GiveBack: func(o *operation) { giveBackOf(q, o) },
	}
}

// giveBackOf gives back the claims of a receive whose caller has left, unless the caller can repeat the receive.
func giveBackOf(q *Queue, o *operation) {
	r := o.receive
	if len(r.claims) > 0 && (r.o.ReceiveID == "" || guard.RepeatBack.Missing()) {
		go q.giveBackAll(r.claims)
		r.claims = nil
	}
}

// run runs the operations. Operations that settle or enqueue travel without the receives after the first conflict.
func (q *Queue) run(ctx context.Context, batch []*operation, others int) {
	switch {
	case slices.ContainsFunc(batch, func(o *operation) bool { return o.First }):
		runFirst(ctx, q, batch)
	case !slices.ContainsFunc(batch, receives):
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

// runWhole notes the outcome of a transaction of the operations. If it has failed for good, each operation runs in a
// transaction of its own.
func runWhole(ctx context.Context, q *Queue, batch []*operation, others int, err error) {
	if len(batch) == 1 {
		batch[0].ranWith(q.runSmaller(ctx, batch[0], others, err))
		return
	}
	if err != nil && ctx.Err() == nil && (!kv.MaybeCommitted(err) || guard.Apart.Missing()) {
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

const (
	// firstConflictPause and lastConflictPause bound the pause of receives after a conflict: a random part of a time
	// that doubles. The engine's own pause grows up to a second, because it is for a database in trouble. A conflict
	// means that another handle was served.
	firstConflictPause = 32 * time.Millisecond
	lastConflictPause  = 64 * time.Millisecond
)

func receives(o *operation) bool { return o.receive != nil }

// writesFirst reports whether the operation settles or enqueues.
func writesFirst(o *operation) bool { return o.settle != nil || o.enqueue != nil }

// isConflict reports whether a transaction of the batch with UntilConflict has ended with a conflict, and nothing else.
// If Options.Tx bounds the attempts, only a conflict of the first attempt counts: a later one may have been the last.
func isConflict(q *Queue, batch []*operation, err error) bool {
	return kv.Code(err) == kv.CodeNotCommitted && !kv.MaybeCommitted(err) &&
		(q.opts.Tx.Retries == 0 || batch[0].retries == 0)
}

// lostConflict notes a conflict of a transaction that receives.
func lostConflict(q *Queue, batch []*operation) {
	q.eachSpread(batch, (*advice.Spread).Widen)
	for _, o := range batch {
		if o.receive != nil {
			o.Lost++
		}
	}
}

// lostOf returns how many conflicts the receives have lost, in transactions before.
func lostOf(batch []*operation) (lost int) {
	for _, o := range batch {
		lost = max(lost, o.Lost)
	}
	return lost
}

// runFirst settles and enqueues for the operations, and leaves the receives to other transactions.
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

// runReceives runs operations that only receive in one transaction, again after each conflict, and within the bounds of
// Options.Tx.
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

// pauseAfter waits after so many lost conflicts. pauseAfter returns false if ctx has ended.
func pauseAfter(ctx context.Context, q *Queue, lost int) bool {
	pause := min(firstConflictPause<<min(lost-1, 10), lastConflictPause)
	if most := q.opts.Tx.MaxRetryDelay; most > 0 {
		pause = min(pause, most)
	}
	timer := time.NewTimer(time.Duration(q.random.Float() * float64(pause)))
	defer timer.Stop()
	select {
	case <-timer.C:
		q.yield(ctx, "after a conflict")
		return true
	case <-ctx.Done():
		return false
	}
}

// runSmaller goes on with an operation whose own transaction has ended with err. If the transaction was too large, a
// receive asks for less and less; what has to be done as it is gets a *LimitError.
func (q *Queue) runSmaller(ctx context.Context, o *operation, others int, err error) error {
	for r := o.receive; tooLarge(err) && r != nil && r.o.Max > 1; {
		r.o.Max, r.o.MaxGroups = r.o.Max/2, min(r.o.MaxGroups, r.o.Max/2)
		err = q.runTogether(ctx, []*operation{o}, others, q.opts.Tx)
	}
	if tooLarge(err) {
		err = &LimitError{What: whatTransaction, Unit: "bytes", Got: int64(o.used), Max: int64(q.txLimit())}
	}
	return err
}

// ranWith notes the outcome of an operation's transaction.
func (o *operation) ranWith(err error) {
	if o.TxErr = err; o.settle != nil && err == nil && o.settleErr == nil {
		o.settle.done.Store(true)
	}
}

// mayRecover reports whether a turn of waiting receives, failed with err, may succeed next time.
func mayRecover(err error) bool {
	return err != nil && !kv.MaybeCommitted(err) && !errors.Is(err, ErrNoQueue)
}

// giveBackAll releases claims which no caller has, while their leases last.
func (q *Queue) giveBackAll(claims []*Claim) {
	ctx := q.named(context.Background(), "give back of %s under %d", claims[0].Items[0].ID, claims[0].Token)
	q.yield(ctx, "begin")
	during := endTimeout
	for _, c := range claims {
		during = max(during, min(c.Until.Sub(q.Now()), MaxLease))
	}
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	releaseAll(ctx, q, claims)
}

// releaseAll releases claims which no caller has, each as soon as the database allows it, until ctx ends.
func releaseAll(ctx context.Context, q *Queue, claims []*Claim) {
	for _, c := range claims {
		for pause := firstLook; ; pause = min(2*pause, time.Second) {
			err := q.Nack(ctx, c, NackOptions{Release: true})
			if err == nil || errors.Is(err, ErrClaimLost) {
				break
			}
			if errors.Is(err, ErrNoQueue) || errors.Is(err, ErrClosed) || !pauseBackground(ctx, q, pause) {
				return
			}
		}
	}
}

// pauseBackground waits, and reports whether there is a reason to continue.
func pauseBackground(ctx context.Context, q *Queue, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-q.heart.life.Done():
	case <-ctx.Done():
	}
	q.yield(ctx, "look again")
	return ctx.Err() == nil && !q.isClosed()
}

// prove notes in the locks of claims of suspect items that the caller has them. Their leases begin again by that. A
// claim that is lost by then is left out. After an error the claims are given back, unless the caller repeats the
// receive under its id.
func prove(ctx context.Context, q *Queue, r *reception, claims []*Claim) ([]*Claim, error) {
	known := claims[:0:0]
	for _, c := range claims {
		if !c.suspect {
			known = append(known, c)
			continue
		}
		q.yield(ctx, "prove")
		s := &settlement{claim: c, extends: true, proves: true, lease: r.o.Lease}
		switch err := q.submit(ctx, &operation{settle: s}); {
		case err == nil:
			c.Until, c.ends = s.until, s.ends
			known = append(known, c)
		case errors.Is(err, ErrClosed): // a claim that is not proven counts nothing
			known = append(known, c)
		case errors.Is(err, ErrClaimLost):
		default:
			if r.o.ReceiveID == "" {
				go q.giveBackAll(claims)
			}
			if !kv.MaybeCommitted(err) {
				err = &kv.Error{Code: kv.CodeCommitUnknownResult, Cause: err} // the claims have been made
			}
			return nil, err
		}
	}
	return known, nil
}

// runTogether runs the operations in one transaction, which happens once. others is how many groups the handle's other
// transactions in flight are likely to take.
func (q *Queue) runTogether(ctx context.Context, batch []*operation, others int, o kv.TxOptions) error {
	lost := lostOf(batch)
	conflicts := lost
	var outcome staged
	slot := waits(batch) && q.staging.acquire()
	var wants []want // for which there may be requests from now on
	if slot {
		defer q.staging.release()
		wants = q.staging.expect(wantsOf(batch), q.nowMS())
	}
	along := advise(q, batch, others)
	if along.kept.StandsBack() {
		standBack(batch, q.pipeline.AWhile())
		return nil
	}
	var due []dueBeat
	defer along.flight.Land()
	suspect := &suspectTurn{q: q}
	_, err := onceKnown(ctx, q, calledFor(batch, o),
		func(tx kv.Tx, a kv.Attempt) ([]landed, bool, error) {
			for ; conflicts < lost+a.Conflicts; conflicts++ {
				q.eachSpread(batch, (*advice.Spread).Widen)
			}
			w := suspect.attempt(ctx, tx, a)
			w.mayStage, w.advised = slot, along
			along.attempt()
			outcome.cancel() // the watches of a failed attempt
			var err error
			outcome, err = w.perform(batch, lost+a.Conflicts)
			q.learn(&w.chores, err)
			batch[0].used, batch[0].retries = w.used(), a.N
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
			wants = nil      // it is unknown which requests the transaction has written
			outcome.cancel() // the watches of the attempt which was applied have failed with its commit
			var err error
			outcome, err = q.findRequest(ctx, tx)
			return err
		},
		func(r *ownReceipt, results map[int64][]landed) bool { return disown(q, r, batch, results) })
	along.end(err)
	endSuspectTurn(suspect, batch, err)
	if err != nil {
		outcome.cancel()
		if kv.MaybeCommitted(err) && slices.ContainsFunc(batch, (*operation).byHeartbeat) {
			q.heart.end(q.heart.pulse()) // the claims may never reach a caller
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

// calledFor returns o with the verbs of a shared transaction's operations, for kv.Trouble.
func calledFor(batch []*operation, o kv.TxOptions) kv.TxOptions {
	calls := make([]string, 0, 4)
	note := func(v Verb) {
		if !slices.Contains(calls, string(v)) {
			calls = append(calls, string(v))
		}
	}
	for _, o := range batch {
		switch {
		case o.enqueue != nil:
			note(VerbEnqueue)
		case o.settle != nil:
			note(o.settle.verb())
		}
		if o.receive != nil {
			note(VerbReceive)
		}
	}
	slices.Sort(calls)
	o.Call = strings.Join(calls, ", ")
	return o
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
	if t := batch[0].Turn; t != nil {
		if slices.ContainsFunc(batch, (*operation).served) {
			t.Served()
		}
		t.Rests(outcome.rest)
		if outcome.rest.Watch != nil {
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
	return slices.ContainsFunc(batch, func(o *operation) bool { return o.Waits })
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
	if !receive.none() && !receive.stageFirst(conflicts) {
		if receive.called {
			// Read the configuration again: the operator who has just resumed the queue counts on the woken handle.
			w.followAnew()
		}
		for _, rs := range byTemplate(receive.all()) {
			c := w.newClaimer(rs[0].where, rs)
			c.modest = receive.called && conflicts > 0
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
	if err := w.noteCleared(&outcome, outcome.gone); err != nil {
		return outcome, err
	}
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
	if !guard.Assign.Missing() {
		o.receive.begin()
	}
	r.operations = append(r.operations, o)
	if o.Waits {
		r.waiting++
	}
	r.called = r.called || o.Turn != nil
}

func (r *receiving) none() bool { return len(r.operations) == 0 }

// stageFirst reports whether all operations wait and are to be staged without a look.
func (r *receiving) stageFirst(conflicts int) bool {
	return !r.called && r.waiting == len(r.operations) && conflicts >= stageAfter
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
			if o.Waits {
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
	given     []rec.ClaimRef // the items are read again, see reload
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
	if guard.ClaimReceipt.Missing() {
		return nil
	}
	o.receive.claims, err = q.reload(ctx, tx, l.given, &o.receive.o)
	o.receive.more = len(l.given) == 0 // the attempt may have left something to the next transaction
	return err
}

// mostSuspects bounds the claims of suspect items that a handle keeps in mind.
const mostSuspects = 100

// endSuspectTurn ends the turn of a transaction, which has given the claims of the batch, or has failed.
func endSuspectTurn(t *suspectTurn, batch []*operation, err error) {
	s := &t.q.suspects
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by != t {
		return
	}
	s.by = nil
	for _, o := range batch {
		if o.receive == nil || err != nil {
			continue
		}
		for _, c := range o.receive.claims {
			if c.suspect {
				ref := rec.ClaimRef{Lane: o.receive.lane(c), Token: c.Token}
				grave := c.Items[0].Attempts >= graveAttempts
				s.all++
				s.given = append(s.given, givenSuspect{ref, s.all, t.q.nowMS(), grave})
				s.given = s.given[max(0, len(s.given)-mostSuspects):]
			}
		}
	}
}

// searchesFor is for how long a handle asks at least whether a commit of unknown outcome has landed. One answer is
// enough: see settleReceipt.
const searchesFor = 10 * time.Second

// firstLook is the pause after the first look that failed. It doubles, up to a second.
const firstLook = 20 * time.Millisecond

// giveBackUnknown finds out whether a receive whose outcome is unknown has made claims, and gives them back: no caller
// knows of them. given has the claims of each attempt that may have landed. giveBackUnknown ends when the database has
// answered, when the leases have expired, and at Close.
func giveBackUnknown(q *Queue, r *ownReceipt, given map[int64][]rec.ClaimRef, lease time.Duration) {
	ctx := q.named(context.Background(), "give back by receipt %s", r.own)
	q.yield(ctx, "begin")
	defer r.end(ctx)
	r.written, r.succeeded = true, false
	ctx, cancel := context.WithTimeout(ctx, max(lease, searchesFor))
	defer cancel()
	defer context.AfterFunc(q.heart.life, cancel)()
	for pause := firstLook; ; pause = min(2*pause, time.Second) {
		landed, found, err := settleReceipt(ctx, q, r.key)
		if err == nil {
			if r.written = found; found {
				releaseAll(ctx, q, claimsOf(q, given[landed]))
			}
			return
		}
		if !pauseBackground(ctx, q, pause) {
			return
		}
	}
}

// settleReceipt returns which attempt of an operation was applied, if one was. Otherwise none will be: as in
// fenceReceipt, a commit that may still land fails.
func settleReceipt(ctx context.Context, q *Queue, key []byte) (landed int64, found bool, err error) {
	_, err = kv.Run(ctx, q.db, txFor(q, "receipt"), func(tx kv.Tx, _ kv.Attempt) (err error) {
		if landed, found, err = q.readReceipt(ctx, tx, key); err != nil || found {
			return err
		}
		return guard.Orphan.Write(tx, key)
	})
	return landed, found, err
}

// disown begins to give back the claims of a transaction whose outcome is unknown. It reports whether there may be any.
func disown(q *Queue, r *ownReceipt, batch []*operation, results map[int64][]landed) bool {
	given := orphans(batch, results)
	s := &q.suspects
	s.mu.Lock() // Close waits for all searches that are added before it gets the mutex
	defer s.mu.Unlock()
	if len(given) == 0 || q.isClosed() || guard.Orphan.Missing() {
		return false
	}
	lease := longestLease(q, batch)
	s.searches++
	s.orphans.Go(func() {
		defer s.searched()
		giveBackUnknown(q, r, given, lease)
	})
	return true
}

// claimsOf returns claims that are in the database, with no more than a release needs.
func claimsOf(q *Queue, given []rec.ClaimRef) []*Claim {
	claims := make([]*Claim, len(given))
	for i, ref := range given {
		hold, _ := holdOf(ref.Lane)
		claims[i] = &Claim{
			Queue: q.name, Group: groupOf(ref.Lane), Where: q.keys.plan.whereOf(ref.Lane), Hold: hold, Token: ref.Token,
		}
	}
	return claims
}

// orphans returns the claims in the results of a transaction whose callers will never hear of them. A claim under a
// receive id is left out: its caller repeats the receive.
func orphans(batch []*operation, results map[int64][]landed) map[int64][]rec.ClaimRef {
	given := make(map[int64][]rec.ClaimRef)
	for attempt, all := range results {
		for i, o := range batch {
			if o.receive != nil && o.receive.o.ReceiveID == "" {
				given[attempt] = append(given[attempt], all[i].given...)
			}
		}
		if len(given[attempt]) == 0 {
			delete(given, attempt)
		}
	}
	return given
}

// longestLease is the longest lease that a receive of the batch asks for.
func longestLease(q *Queue, batch []*operation) time.Duration {
	lease := q.knownConfig().Lease
	for _, o := range batch {
		if o.receive != nil {
			lease = max(lease, o.receive.o.Lease)
		}
	}
	return lease
}
