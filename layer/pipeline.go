package layer

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"fdbfifo/kv"
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
	if p.flying > 0 || len(p.queue) > 0 || q.opts.Test.NoCoalescing {
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
	if q.opts.Test.NoCoalescing {
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
			(o.receive.o.ReceiveID == "" || lacks(guardRepeatBack)):
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
