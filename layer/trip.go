package layer

import (
	"context"
	"maps"
	"slices"
	"strings"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// runTogether runs the operations in one transaction, which happens once. others is how many groups the handle's other
// transactions in flight are likely to take.
func (q *Queue) runTogether(ctx context.Context, batch []*operation, others int, o kv.TxOptions) error {
	t := trip{q: q, batch: batch, suspect: &suspectTurn{q: q}}
	t.begin(others)
	defer t.leave()
	if t.along.kept.StandsBack() {
		standBack(batch, q.pipeline.AWhile())
		return nil
	}
	_, err := onceKnown(ctx, q, calledFor(batch, o),
		func(tx kv.Tx, a kv.Attempt) (*attempted, bool, error) { return t.attempt(ctx, tx, a) },
		func(tx kv.Tx, results *attempted) error { return t.restore(ctx, tx, results) },
		func(r *ownReceipt, results map[int64]*attempted) bool { return disown(q, r, batch, results) })
	t.end(ctx, err)
	return err
}

// trip is one shared transaction of a handle's operations, over all its attempts. A trip has the guesses of the handle,
// registers waiting receives, and tells the handle its end. Work of the operations in an attempt is in tx_perform.go.
//
// An attempt must assign the fields and never append to them, because a body runs again.
type trip struct {
	q     *Queue
	batch []*operation

	slot    bool         // receives of the batch may wait; the handle has one such transaction at a time
	wants   []want       // for which there may be requests from now on
	along   advised      // guesses
	suspect *suspectTurn // gives at most one suspect item
	lost    int          // conflicts that the receives have lost in trips before

	conflicts int // with lost
	outcome   staged
	due       []dueBeat // heartbeats found due
}

// attempted is the results of an attempt, to be restored if the attempt turns out to have been applied.
type attempted struct {
	landed []landed // of each operation
	staged staged   // without a watch, because a watch fails with the commit
}

// begin takes guesses, and the handle's slot for waiting receives. The caller must call leave, which gives both back.
func (t *trip) begin(others int) {
	t.lost = lostOf(t.batch)
	t.conflicts = t.lost
	if t.slot = waits(t.batch) && t.q.staging.acquire(); t.slot {
		t.wants = t.q.staging.expect(wantsOf(t.batch), t.q.nowMS())
	}
	t.along = advise(t.q, t.batch, others)
}

func (t *trip) leave() {
	t.along.flight.Land()
	if t.slot {
		t.q.staging.release()
	}
}

// attempt performs the operations, and forgets what the attempt before found. Its results are for restore.
func (t *trip) attempt(ctx context.Context, tx kv.Tx, a kv.Attempt) (results *attempted, wrote bool, err error) {
	for ; t.conflicts < t.lost+a.Conflicts; t.conflicts++ {
		t.q.eachSpread(t.batch, (*advice.Spread).Widen)
	}
	w := t.suspect.attempt(ctx, tx, a)
	w.wakes.mayStage, w.along = t.slot, t.along
	t.along.attempt()
	t.outcome.cancel() // the watches of a failed attempt
	t.outcome, err = w.perform(t.batch, t.lost+a.Conflicts)
	t.q.learn(&w.chores, err)
	t.batch[0].used, t.batch[0].retries = w.used(), a.N
	if t.due = w.beats.due; err != nil || !w.did.wrote {
		return nil, false, err
	}
	results = &attempted{landed: make([]landed, len(t.batch)), staged: t.outcome}
	results.staged.rest = line.Rest{}
	for i, o := range t.batch {
		results.landed[i] = o.results()
	}
	return results, true, nil
}

// restore takes the results of the attempt that was applied. It may not be the last attempt that ran.
func (t *trip) restore(ctx context.Context, tx kv.Tx, results *attempted) error {
	for i, o := range t.batch {
		if err := o.restore(ctx, t.q, tx, &results.landed[i]); err != nil {
			return err
		}
	}
	t.outcome.cancel()
	t.outcome = results.staged
	return nil
}

// end tells the handle how the transaction has ended.
func (t *trip) end(ctx context.Context, err error) {
	q, batch := t.q, t.batch
	t.along.end(err)
	endSuspectTurn(t.suspect, batch, err)
	if err != nil {
		t.outcome.cancel()
		if !kv.MaybeCommitted(err) {
			q.staging.unexpect(t.wants)
			return
		}
		if slices.ContainsFunc(batch, (*operation).byHeartbeat) {
			q.heart.end(q.heart.pulse()) // the claims may never reach a caller
		}
		if t.outcome.request != 0 {
			mayBeLeft(q)
		}
		return
	}
	ended := len(t.due) > 0 && q.endDueBeats(ctx, t.due)
	if lookFarFor(ctx, q, batch) || ended {
		for _, o := range batch {
			if o.receive != nil {
				o.receive.more = true
			}
		}
	}
	q.applied(batch, t.outcome, t.conflicts)
	q.staging.unexpect(t.wants)
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

// waits reports whether receives of the batch wait for a group to become ready.
func waits(batch []*operation) bool {
	return slices.ContainsFunc(batch, func(o *operation) bool { return o.Waits })
}

// eachSpread calls tell for each template in a batch.
func (q *Queue) eachSpread(batch []*operation, tell func(*advice.Spread)) {
	if q.keys.plan.IsPlain() {
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
