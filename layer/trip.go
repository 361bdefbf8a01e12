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

// runTogether runs the operations in one transaction, whose effect happens once: if the outcome of a commit is unknown,
// the next attempt looks for the receipt of the one before (onceKnown). perform does the work of the operations. The
// error is of the transaction; errors of single operations are in the operations. If the outcome is still unknown at
// the end, disown gives back the claims that may have been made.
//
// others is how many groups the handle's other transactions in flight are likely to take. If the handle has just woken
// another handle, and the batch has only receives that may wait, they stand back: they go into the waiting line, and
// runTogether runs no transaction.
func (q *Queue) runTogether(ctx context.Context, batch []*operation, others int, o kv.TxOptions) error {
	t := trip{q: q, batch: batch, suspect: &suspectTurn{q: q}}
	t.begin(others)
	defer t.leave()
	if t.along.kept.StandsBack() {
		standBack(batch, q.pipeline.AWhile())
		return nil
	}
	// If the engine panics, the handle goes on, and it is unknown whether the transaction was committed.
	var err error = &kv.Error{Code: kv.CodeCommitUnknownResult}
	defer func() { t.end(err) }()
	_, err = onceKnown(ctx, q, calledFor(batch, o),
		func(tx kv.Tx, a kv.Attempt) (*attempted, bool, error) { return t.attempt(ctx, tx, a) },
		func(tx kv.Tx, results *attempted) error { return t.restore(ctx, tx, results) },
		func(r *ownReceipt, results map[int64]*attempted) bool { return disown(q, r, batch, results) })
	return err
}

// trip is one shared transaction of a handle's operations, over all its attempts. It has the guesses of the handle (see
// package advice), for example which groups another transaction is about to claim. It may write the handle's requests,
// the keys by which receives wait. At its end it tells the handle what has happened. The work of the operations in an
// attempt is in tx_perform.go.
//
// An attempt must assign the fields and never append to them, because a body runs again.
type trip struct {
	q     *Queue
	batch []*operation

	slot    bool         // the trip may write the handle's requests; the handle has one such trip at a time
	wants   []want       // the lanes and templates for which there may be requests from now on
	along   advised      // guesses
	suspect *suspectTurn // lets the trip give at most one suspect item: see group_verdict.go
	lost    int          // conflicts that the receives have lost in trips before

	// Of the attempt under way, or the last.
	conflicts int       // lost, and the conflicts of the attempts before
	outcome   staged    // what the attempt has done to the handle's requests
	due       []dueBeat // heartbeats that the attempt has found due
}

// attempted is the results of an attempt. They are kept until it is known which attempt was applied: see restore.
type attempted struct {
	landed []landed // of each operation
	staged staged   // without a watch, because a watch fails with the commit
}

// begin takes the guesses, and, if receives of the batch wait, the handle's slot for writing requests. The caller must
// call leave, which gives both back. begin reads and writes no key.
func (t *trip) begin(others int) {
	t.lost = lostOf(t.batch)
	t.conflicts = t.lost
	if t.slot = waits(t.batch) && t.q.staging.acquire(); t.slot {
		t.wants = t.q.staging.expect(wantsOf(t.batch), t.q.nowMS())
	}
	t.along = advise(t.q, t.batch, others)
}

// leave gives back what begin has taken: the groups that the trip was about to claim, and the slot.
func (t *trip) leave() {
	t.along.flight.Land()
	if t.slot {
		t.q.staging.release()
	}
}

// attempt performs the operations in tx (txn.perform has the keys), and forgets the results of the attempt before.
// After a conflict it widens the spreads: the receives then take other groups than other handles do.
//
// wrote: the attempt has written something that must not happen twice. Only then there are results, which restore takes
// if this attempt turns out to have been applied. err is an error of the whole transaction: an operation keeps its own.
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

// restore gives the operations the results of the attempt that was applied. It may not be the last attempt that ran.
// The items of claims are read again in tx: see reload.
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

// end tells the handle how the transaction has ended. err is the error of the transaction.
//
// If the outcome is unknown, the handle leaves its heartbeat if claims by heartbeat may have been made, and notes that
// a request may be left in the database. After success end starts a later look of the handle, and does not wait for it,
// because the callers must learn that their operations are committed.
func (t *trip) end(err error) {
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
	q.applied(batch, t.outcome, t.conflicts)
	q.staging.unexpect(t.wants)
	lookLater(q, batch, t.due)
}

// lookLater starts a later look of the handle after a transaction of the batch, and gives it to the receives of the
// batch. due has the heartbeats that the transaction has found due. lookLater does nothing if the look would have
// nothing to do, or the handle is closed.
//
// One look runs at a time. If a look of an earlier transaction is under way, lookLater starts none. The earlier look
// does not end the heartbeats in due. So if there are any, the receives of the batch get the earlier look, and must
// look again when it has ended (more).
func lookLater(q *Queue, batch []*operation, due []dueBeat) {
	s := &q.looks
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.isClosed() {
		return
	}
	before := s.now != nil
	if !before {
		far := farWanted(q, batch)
		if len(due) == 0 && len(far) == 0 {
			return
		}
		s.now = &laterLook{over: make(chan struct{})}
		go runLater(q, s.now, due, far)
	} else if len(due) == 0 {
		return
	}
	for _, o := range batch {
		if o.receive != nil {
			o.receive.look, o.receive.more = s.now, o.receive.more || before
		}
	}
}

// runLater is the goroutine of a later look. It ends the claims of the heartbeats in due (endDueBeats), and looks far
// ahead for the templates in far (lookFar). It ends with the handle, or after endTimeout.
func runLater(q *Queue, l *laterLook, due []dueBeat, far []string) {
	defer func() {
		q.looks.mu.Lock()
		defer q.looks.mu.Unlock()
		q.looks.now = nil
		close(l.over)
	}()
	ctx, cancel := context.WithTimeout(q.named(q.heart.life, "look by %s", q.opts.Owner), endTimeout)
	defer cancel()
	q.yield(ctx, "begin")
	l.ended = len(due) > 0 && q.endDueBeats(ctx, due)
	for _, where := range far {
		l.ended = lookFar(ctx, q, where) || l.ended
	}
}

// calledFor returns o with Call set to the verbs of the operations, for the report that the database keeps a
// transaction waiting (kv.Trouble). Example: "ack, receive".
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

// farWanted returns the templates of receives of the batch for which it is time to look for claims, delays and
// heartbeats that end far ahead because of a wrong clock (lookFar). The caller must look.
func farWanted(q *Queue, batch []*operation) (far []string) {
	empty := make(map[string]bool)
	for _, o := range batch {
		if r := o.receive; r != nil {
			before, known := empty[r.where]
			empty[r.where] = (before || !known) && len(r.claims) == 0
		}
	}
	now, lease := q.aging.now(q.opts.Now), q.knownConfig().Lease
	for _, where := range slices.Sorted(maps.Keys(empty)) {
		if q.noticed.far.Begin(where, now, lease, empty[where]) {
			far = append(far, where)
		}
	}
	return far
}

// applied notes in the handle that a shared transaction was applied. outcome says what the transaction has done to the
// handle's requests, and, for a turn of the waiting line that has found nothing, how the line waits (rest). conflicts
// is how many conflicts the receives have lost. applied reads and writes no key.
func (q *Queue) applied(batch []*operation, outcome staged, conflicts int) {
	if conflicts == 0 {
		q.eachSpread(batch, (*advice.Spread).Narrow)
	}
	if t := batch[0].Turn; t != nil { // all operations are from the waiting line
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

// waits reports whether receives of the batch go into the waiting line if no group is ready.
func waits(batch []*operation) bool {
	return slices.ContainsFunc(batch, func(o *operation) bool { return o.Waits })
}

// eachSpread calls tell with the handle's Spread of each template that receives of the batch have. A Spread keeps
// handles apart from each other: see package advice. In a queue in which each group is one lane there is one Spread.
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

// mostSuspects bounds the claims of suspect items that a handle remembers.
const mostSuspects = 100

// endSuspectTurn ends the transaction's right to give a suspect item, if it has begun to use the right. One transaction
// of the handle has it at a time. After a success endSuspectTurn notes the claims of suspect items in the batch.
// mayGiveSuspect says which suspect items must wait for them, and how long.
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
				number := int(givers.numbered.Add(1))
				s.given = append(s.given, givenSuspect{ref, t.q, number, t.q.nowMS(), grave})
				s.given = s.given[max(0, len(s.given)-mostSuspects):]
			}
		}
	}
}
