package layer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// operation is what one caller wants of the queue, in one transaction: an enqueue, or a settlement and a receive,
// either of which may be missing.
type operation struct {
	enqueue *enqueuing
	settle  *settlement
	receive *reception
	waits   bool // the receive goes on the waiting list if it gets nothing

	// settleErr is the settlement's own error: ErrClaimLost, ErrNotInClaim, ErrCorrupt.
	settleErr error
	err       error         // of the transaction
	ended     chan struct{} // closed when the results are there

	// Guarded by the pipeline's mutex.
	state     opState
	abandoned bool          // the caller has gone
	batch     *batch        // that it is running in
	turn      *turn         // of the receive, called from the waiting list; nil = it has not been called
	lastTurn  bool          // the receive waits no longer, whatever comes of this turn
	back      chan struct{} // closed when a called receive has ended or is waiting again
}

type opState int

const (
	opQueued opState = iota
	opRunning
	opWaiting // for a group to become ready
	opEnded
)

// result is the operation's error.
func (o *operation) result() error {
	switch {
	case o.err != nil:
		return o.err
	case o.settleErr != nil:
		return o.settleErr
	case o.enqueue != nil && o.enqueue.full != nil:
		return o.enqueue.full
	case o.receive != nil:
		return o.receive.err()
	}
	return nil
}

// The bounds of one transaction's operations. FoundationDB allows 10 MB and advises to stay below 1 MB.
const (
	maxOperations = 256
	maxMessages   = MaxBatch
	maxBytes      = 1 << 20 // of messages; one operation alone may have more
	maxSettled    = 2000    // items acked
	maxReceived   = 2000    // items asked for
)

// size is what an operation adds to a transaction.
type size struct{ messages, bytes, settled, received int }

func (o *operation) size() size {
	var s size
	if o.enqueue != nil {
		s.messages, s.bytes = len(o.enqueue.msgs), o.enqueue.bytes()
	}
	if o.settle != nil {
		s.settled, s.bytes = max(len(o.settle.claim.Items), len(o.settle.ids)), s.bytes+len(o.settle.state)
		if o.settle.copies {
			for i := range o.settle.claim.Items {
				s.bytes += min(len(o.settle.claim.Items[i].Body), maxInline)
			}
		}
	}
	if o.receive != nil {
		s.received = o.receive.o.Max
	}
	return s
}

func (s size) plus(t size) size {
	return size{s.messages + t.messages, s.bytes + t.bytes, s.settled + t.settled, s.received + t.received}
}

func (s size) tooLarge() bool {
	return (s.messages > maxMessages || s.bytes > maxBytes || s.settled > maxSettled || s.received > maxReceived) && !lacks(guardBatchSize)
}

// batch is the operations of one transaction.
type batch struct {
	operations []*operation
	groups     int // that its receives are likely to take; 0 = it has none
	others     int // that those of other batches in flight are
	cancel     context.CancelFunc
	abandoned  int // guarded by the pipeline's mutex; how many callers have gone
}

// maxFlying is how many transactions of a handle are in flight at a time. Two keep a second core busy, and the
// database while one of them waits for its commit; more only make smaller batches and more conflicts.
const maxFlying = 4

// pipeline makes the operations of a handle travel together: those that arrive while its transactions are in flight
// go into the next one. There is no timer: alone, an operation is begun at once.
type pipeline struct {
	mu     sync.Mutex
	queue  []*operation // guarded by mu; in the order of arrival
	flying int          // guarded by mu; transactions in flight
	// receiving is how many of those in flight receive, and taking how many groups they are likely to take. Guarded
	// by mu.
	receiving, taking int
	waiting           []*operation // guarded by mu; receives for which nothing was ready, in the order of arrival
}

// maxReceiving is how many of a handle's transactions in flight may receive: while the one waits for its commit the
// other reads. They pass over each other's groups, so there must be plenty; otherwise one serves all receives.
const maxReceiving = 3

// mayReceive reports whether another transaction may receive now. The pipeline's mutex is held.
func (q *Queue) mayReceive() bool {
	p := &q.pipeline
	return p.receiving == 0 || p.receiving < maxReceiving && q.spread.plenty.Load()
}

// submit runs o and returns its error when its outcome is known, or when ctx ends. In the latter case a receive
// that gets claims after all gives them back, and for anything else the outcome is unknown.
func (q *Queue) submit(ctx context.Context, o *operation) error {
	if err := q.enter(ctx, o); err != nil {
		return err
	}
	select {
	case <-o.ended:
		return o.result()
	case <-ctx.Done():
		q.yieldUnless(ctx, o, "leave")
		return q.leave(o, context.Cause(ctx))
	}
}

// yieldUnless yields, unless o has ended: then the caller has nothing to wait for, whatever else woke him.
func (q *Queue) yieldUnless(ctx context.Context, o *operation, who string) {
	select {
	case <-o.ended:
	default:
		q.yield(ctx, who)
	}
}

// enter puts a new operation into the queue, or runs it at once if there is room in flight. In the latter case it
// returns when o has ended or waits for a group to become ready; if ctx ends meanwhile, that is when its transaction
// has ended, or abandonedTimeout later.
func (q *Queue) enter(ctx context.Context, o *operation) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	o.ended = make(chan struct{})
	if o.settle != nil {
		o.settle.copies = q.Config().Archive > 0
	}
	p := &q.pipeline
	p.mu.Lock()
	if q.closed.Load() {
		p.mu.Unlock()
		return ErrClosed
	}
	if p.flying > 0 || len(p.queue) > 0 || q.opts.NoCoalescing {
		q.queueUp(o)
		p.mu.Unlock()
		return nil
	}
	// Nothing to wait for: the caller runs it himself, which saves the change of goroutines.
	p.flying++
	b := q.newBatch([]*operation{o})
	p.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if o.batch == b {
			q.abandon(o)
		}
	})
	q.runShared(b)
	stop()
	q.land()
	return nil
}

// land gives up a place in flight, or leaves it to what has been queued meanwhile.
func (q *Queue) land() {
	p := &q.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) > 0 {
		go q.drive()
	} else {
		p.flying--
	}
}

// abandon notes that nobody waits for a running operation. The pipeline's mutex is held.
func (q *Queue) abandon(o *operation) {
	o.abandoned = true
	b := o.batch
	if b.abandoned++; b.abandoned == len(b.operations) {
		// It may still end well, and then what it claimed is given back; but it must not hold up the others for
		// ever, as with a database that does not answer.
		time.AfterFunc(abandonedTimeout, func() { q.cancelBatch(b) })
	}
}

// queueUp queues operations, together. The pipeline's mutex is held.
func (q *Queue) queueUp(os ...*operation) {
	p := &q.pipeline
	if q.opts.NoCoalescing {
		for _, o := range os {
			b := q.newBatch([]*operation{o})
			p.flying++
			go func() {
				q.yield(q.life, "alone")
				q.runShared(b)
				p.mu.Lock()
				defer p.mu.Unlock()
				p.flying--
			}()
		}
		return
	}
	for _, o := range os {
		o.state = opQueued
	}
	p.queue = append(p.queue, os...)
	if p.flying < maxFlying {
		p.flying++
		go q.drive()
	}
}

// leave is for a caller that goes before o has ended, because of cause. It returns o's error if that has ended
// after all.
func (q *Queue) leave(o *operation, cause error) error {
	p := &q.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	switch o.state {
	case opEnded:
		return o.result()
	case opQueued:
		p.queue = without(p.queue, o)
		q.end(o)
		return cause
	case opWaiting:
		p.waiting = without(p.waiting, o)
		q.end(o)
		q.staging.nudge()
		return cause
	}
	q.abandon(o)
	if o.enqueue == nil && o.settle == nil {
		return cause
	}
	return &kv.Error{Code: kv.CodeOperationCancelled, InFlight: true, Cause: cause}
}

func without(list []*operation, o *operation) []*operation {
	if i := slices.Index(list, o); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// end makes an operation's results known. The pipeline's mutex is held.
func (q *Queue) end(o *operation) {
	o.state = opEnded
	close(o.ended)
	o.comeBack()
}

// comeBack tells whoever called a waiting receive that it has had its turn. The pipeline's mutex is held.
func (o *operation) comeBack() {
	if o.back != nil {
		close(o.back)
		o.back = nil
	}
}

// abandonedTimeout is how long a transaction goes on whose callers have all gone.
const abandonedTimeout = time.Second

func (q *Queue) cancelBatch(b *batch) {
	q.pipeline.mu.Lock()
	defer q.pipeline.mu.Unlock()
	if b.cancel != nil {
		b.cancel()
	}
}

// drive runs one transaction after the other until the queue is empty.
func (q *Queue) drive() {
	for {
		// Whoever can run and is about to submit goes first: then it travels along. With nobody else it is no delay.
		runtime.Gosched()
		q.yield(q.life, "drive")
		b := q.nextBatch()
		if b == nil {
			return
		}
		q.runShared(b)
	}
}

// newBatch makes a batch of operations. The pipeline's mutex is held.
func (q *Queue) newBatch(os []*operation) *batch {
	b := &batch{operations: os}
	for _, o := range os {
		o.state, o.batch = opRunning, b
		if o.receive != nil {
			b.groups += q.wantedGroups(o.receive)
		}
	}
	if b.groups > 0 {
		p := &q.pipeline
		b.others = p.taking
		p.receiving, p.taking = p.receiving+1, p.taking+b.groups
	}
	return b
}

// nextBatch takes the operations of the next transaction from the queue. It returns nil, and gives up the place in
// flight, if there are none.
func (q *Queue) nextBatch() *batch {
	p := &q.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	var total size
	var taken []*operation
	left := p.queue[:0]
	for _, o := range p.queue {
		next := total.plus(o.size())
		switch {
		case o.receive != nil && !q.mayReceive(), len(taken) == maxOperations, len(taken) > 0 && next.tooLarge(),
			len(taken) > 0 && (o.turn != nil) != (taken[0].turn != nil): // a turn sets a watch, so nothing is to write beside it
			left = append(left, o)
		default:
			total = next
			taken = append(taken, o)
		}
	}
	clear(p.queue[len(left):])
	p.queue = left
	if len(taken) == 0 {
		p.flying--
		return nil
	}
	return q.newBatch(taken)
}

// runShared runs a batch whose callers may leave.
func (q *Queue) runShared(b *batch) {
	ctx, cancel := context.WithCancel(context.Background())
	q.pipeline.mu.Lock()
	b.cancel = cancel
	q.pipeline.mu.Unlock()
	q.run(ctx, b.operations, b.others)
	cancel()

	batch := b.operations
	p := &q.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.groups > 0 {
		p.receiving, p.taking = p.receiving-1, p.taking-b.groups
	}
	for _, o := range batch {
		o.batch = nil
		if o.settle != nil && o.err == nil && o.settleErr == nil {
			o.settle.done = true
		}
		if o.waits && q.closed.Load() && o.result() == nil && len(o.receive.claims) == 0 {
			o.err = ErrClosed // it would have waited
		}
		if o.turn != nil && mayRecover(o.err) && !o.abandoned && !o.lastTurn && !q.closed.Load() {
			// The wait goes on: a database that does not answer for a while is not a reason to end it.
			o.turn.failed, o.err = true, nil
			o.receive.begin()
		}
		switch {
		case o.waits && !o.abandoned && !o.lastTurn && o.result() == nil && len(o.receive.claims) == 0 && !q.closed.Load():
			o.settle = nil // what it waits for is the receive
			o.state = opWaiting
			p.waiting = append(p.waiting, o)
			o.comeBack()
			if o.turn == nil {
				q.attend()
			}
		// If the transaction failed, what it was about to claim may be another's by now, under the same token: the read
		// version of both. If its outcome is unknown, the claim runs into its lease.
		case o.abandoned && o.err == nil && o.receive != nil && len(o.receive.claims) > 0 &&
			(o.receive.o.AttemptID == "" || lacks(guardRepeatBack)):
			go q.giveBackAll(o.receive.claims)
			o.receive.claims = nil // not the caller's, who may still be there: he ran the transaction himself
			fallthrough
		default:
			q.end(o)
		}
	}
}

// giveBackAll releases claims that nobody is there to receive. What cannot be released runs into its lease.
func (q *Queue) giveBackAll(claims []*Claim) {
	ctx := q.named(context.Background(), "give back of %s under %d", claims[0].Group, claims[0].Token)
	q.yield(ctx, "begin")
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for _, c := range claims {
		if err := q.Nack(ctx, c, NackOptions{Release: true}); err != nil {
			return
		}
	}
}

// isDone reports whether a settlement is committed, as far as this handle knows.
func (q *Queue) isDone(s *settlement) bool {
	q.pipeline.mu.Lock()
	defer q.pipeline.mu.Unlock()
	return s.done
}

// run runs the operations in one transaction, or, if one of them makes that fail for good, each in its own.
func (q *Queue) run(ctx context.Context, batch []*operation, others int) {
	err := q.runTogether(ctx, batch, others)
	if err != nil && len(batch) > 1 && ctx.Err() == nil && (!unknown(err) || lacks(guardApart)) {
		for _, o := range batch {
			o.err = q.runTogether(ctx, []*operation{o}, 0)
		}
		return
	}
	for _, o := range batch {
		o.err = err
	}
}

// mayRecover reports whether err, of a turn of receives that wait, may be over at the next.
func mayRecover(err error) bool {
	return err != nil && !unknown(err) && !errors.Is(err, ErrNoQueue)
}

// unknown reports whether err leaves open what became of the transaction.
func unknown(err error) bool {
	var e *kv.Error
	return errors.As(err, &e) && (e.InFlight || e.MaybeCommitted())
}

// runTogether runs the operations in one transaction that happens once. others is how many groups the handle's other
// transactions in flight are likely to take.
func (q *Queue) runTogether(ctx context.Context, batch []*operation, others int) error {
	conflicts := 0
	var outcome staged
	slot := waits(batch) && q.staging.acquire()
	if slot {
		defer q.staging.release()
	}
	f := &flight{}
	defer q.flights.end(f)
	err := q.once(ctx,
		func(tx kv.Tx, a kv.Attempt) (tuple.Tuple, error) {
			for ; conflicts < a.Conflicts; conflicts++ {
				q.spread.widen()
			}
			w := q.work(ctx, tx)
			w.mayStage = slot
			q.flights.end(f) // what an attempt that failed was about to claim
			w.flight, w.beside = f, others
			outcome.turn.cancel() // of an attempt that failed
			var err error
			if outcome, err = w.perform(batch, a.Conflicts); err != nil || !w.wrote {
				return nil, err
			}
			result := make(tuple.Tuple, len(batch))
			for i, o := range batch {
				result[i] = o.pack()
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
			var err error
			outcome, err = q.findRequest(ctx, tx)
			return err
		})
	if err != nil {
		outcome.turn.cancel()
		return err
	}
	if conflicts == 0 {
		q.spread.narrow()
	}
	if t := batch[0].turn; t != nil {
		t.cancel() // a turn too large for one transaction takes several, one after the other
		*t = outcome.turn
		if t.watch != nil {
			q.paths.looks.Add(1)
		}
	}
	q.staging.set(outcome)
	q.paths.granted.Add(int64(outcome.granted))
	q.paths.count(batch, conflicts)
	return nil
}

// waits reports whether receives of the batch wait for a group to become ready.
func waits(batch []*operation) bool {
	return slices.ContainsFunc(batch, func(o *operation) bool { return o.waits })
}

// perform does the work of all operations: first the settlements, those of one group one after the other, then the
// enqueues, then the receives, so that these find what the others leave ready. What the receives will read is begun
// before, so that it does not take a round trip of its own.
func (w *work) perform(batch []*operation, conflicts int) (staged, error) {
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
			receive.add(o)
		}
	}
	if !receive.none() && !receive.stageFirst(w.q, conflicts) {
		if receive.called {
			// Whoever has just resumed the queue counts on the handle that he woke.
			w.follow, w.anew = w.q.followAnew(w.tx, w.follow.begun), true
		}
		receive.claimer = w.newClaimer(receive.all())
		receive.claimer.begin()
	}
	for len(settle) > 0 {
		var now, later []*operation
		groups := make(map[string]bool, len(settle))
		for _, o := range settle {
			if group := o.settle.claim.Group; groups[group] {
				later = append(later, o)
			} else {
				groups[group] = true
				now = append(now, o)
			}
		}
		if err := w.settle(now); err != nil {
			return staged{}, err
		}
		settle = later
	}
	if err := w.enqueue(enqueue...); err != nil {
		return staged{}, err
	}
	outcome, err := w.receive(&receive)
	if err != nil {
		return staged{}, err
	}
	outcome.granted = w.others
	return outcome, w.finish()
}

// receiving is the operations of a transaction that receive.
type receiving struct {
	operations []*operation
	waiting    int      // of them
	called     bool     // from the waiting list: all of them are
	claimer    *claimer // nil = they are staged without a look
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

// stageFirst reports whether all of them wait and are to be staged without a look.
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
func (w *work) settle(os []*operation) error {
	for _, o := range os {
		o.settle.begin(w)
	}
	for _, o := range os {
		err := o.settle.check(w)
		if err != nil && kv.Code(err) != 0 {
			return err
		}
		o.settleErr = err // nothing was written: this one alone fails
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
	return nil
}

// receive claims for the operations whose settlement, if any, was done, and stages those that wait for a group to
// become ready.
func (w *work) receive(all *receiving) (staged, error) {
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
	c := all.claimer
	if len(rs) == 0 {
		return staged{}, nil
	}
	if c == nil {
		return w.stage(waiting, nil, nil)
	}
	c.owed = rs
	if all.called {
		return w.takeTurn(c, waiting)
	}
	if err := c.claim(); err != nil {
		return staged{}, err
	}
	w.claimed(rs)
	return w.stage(waiting, c, nil)
}

// claimed notes that claims were written.
func (w *work) claimed(rs []*reception) {
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
)

// pack is what the receipt keeps of an operation.
func (o *operation) pack() tuple.Tuple {
	code, until := int64(settled), int64(0)
	var ids, claims tuple.Tuple
	switch {
	case errors.Is(o.settleErr, ErrClaimLost):
		code = settledClaimLost
	case errors.Is(o.settleErr, ErrNotInClaim):
		code = settledNotInClaim
	case o.settleErr != nil:
		code = settledCorrupt
	case o.settle != nil && o.settle.extends:
		until = millis(o.settle.until)
	}
	if o.enqueue != nil {
		ids = o.enqueue.result()
	}
	if o.receive != nil {
		claims = o.receive.result()
	}
	return tuple.Tuple{code, until, ids, claims}
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
	if o.settle != nil {
		o.settleErr = map[int64]error{
			settledClaimLost: ErrClaimLost, settledNotInClaim: ErrNotInClaim, settledCorrupt: ErrCorrupt,
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
