package layer

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
)

// operation is the work of one caller in one transaction: an enqueue, a settlement, a receive, or a settlement and a
// receive.
//
// An operation has one owner at a time, and only the owner reads and writes the fields. The caller owns the operation
// until it is submitted, and again when ended is closed. In between the owner is the pipeline (under its mutex), the
// transaction that runs the operation, or the waiting line.
type operation struct {
	enqueue *enqueuing
	settle  *settlement // nil once the receive waits, because the settlement is done then
	receive *reception
	waits   bool  // the receive joins the waiting line if no group is ready
	turn    *turn // the receive's latest turn, given by the waiting line; nil = none yet
	cue     cue   // of a receive which is about to wait, and for its first turn
	// standsBack is for how long the receive has no turn, because the handle has just woken another.
	standsBack time.Duration

	// lost is how many conflicts the receive has lost in transactions that have ended. A receive that has lost one
	// travels with other such receives alone.
	lost int
	// first: the transaction only settles and enqueues. later: it has done so, and the receive needs another.
	first, later bool

	// settleErr is the settlement's own error: ErrClaimLost, ErrNotInClaim, ErrCorrupt.
	settleErr error
	err       error // of the transaction
	used      int   // bytes of the last attempt's transaction, if the operation is the first of it
	retries   int   // of the last transaction, if the operation is the first of it

	ticket
}

// names reports whether the operation receives from one named group.
func (o *operation) names() bool { return o.receive != nil && o.receive.o.Group != nil }

// awaits reports whether the operation's receive wants w.
func (o *operation) awaits(w want) bool {
	own, any := o.receive.want()
	return !any && own == w
}

// ticket is the pipeline's note of an operation. The pipeline's mutex guards a ticket. The operation contains the
// ticket, so that the pipeline needs no map.
type ticket struct {
	ended     chan struct{} // closed when the results are there; the caller waits without the mutex
	load      size          // what the operation adds to a transaction
	state     opState
	abandoned bool          // the caller has gone
	batch     *batch        // the batch in which the operation runs
	lastTurn  bool          // the receive ends after this turn, also if it has got no claim
	back      chan struct{} // closed when a called receive has ended or is waiting again
}

type opState int

const (
	opQueued opState = iota
	opRunning
	opWaiting // in the waiting line, or called by the line this moment
	opEnded
)

// result returns the operation's error.
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
		s.messages, s.bytes = len(o.enqueue.msgs), o.enqueue.size
	}
	if o.settle != nil {
		s.settled, s.bytes = max(len(o.settle.claim.Items), len(o.settle.ids)), s.bytes+len(o.settle.state)
		s.bytes += o.settle.bytes
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
	return (s.messages > maxMessages || s.bytes > maxBytes || s.settled > maxSettled || s.received > maxReceived) &&
		!lacks(guardBatchSize)
}

// batch is the operations of one transaction.
type batch struct {
	operations []*operation
	groups     int // how many groups the receives are likely to take; 0 = there are no receives
	others     int // how many groups the receives of other batches in flight are likely to take
	ctx        context.Context
	cancel     context.CancelCauseFunc
	left       int // guarded by the pipeline's mutex, as a ticket is; how many callers have not gone
	// losing: the receives have lost a conflict, and try again. Guarded by the pipeline's mutex.
	losing bool
	begun  time.Time
}

// maxFlying is how many transactions of a handle are in flight at a time. Two keep a second core busy, and keep the
// database busy while the other transaction waits for its commit; more only make smaller batches and more conflicts.
const maxFlying = 4

// While few callers have operations in the pipeline, and the database is far away, up to maxApart transactions are in
// flight. So no caller waits for the end of another's transaction, and the database has enough capacity. Example: 16
// producers, each with one message at a time. More than fewCallers share transactions again.
const (
	maxApart   = 16
	fewCallers = 32
	// farAway is how long a transaction takes on the average, at least, if most of the time is spent waiting.
	farAway = time.Millisecond
)

// maxReceiving is how many of a handle's transactions in flight may receive: while T1 waits for its commit, T2 reads.
// T2 passes over the groups of T1, so groups must be plenty; otherwise a single transaction receives.
const maxReceiving = 3

// abandonedTimeout is the time after which a transaction is cancelled whose callers have all gone.
const abandonedTimeout = time.Second

// pipeline makes the operations of a handle travel together: operations which arrive while transactions of the handle
// are in flight go into the next transaction. There is no timer: an operation alone is begun at once, by its caller.
//
// Invariants:
//
//  1. An operation ends once, and has its results then. Until then the operation is in one place: queued, in a batch,
//     or in the waiting line. Only running operations have a batch.
//  2. While operations are queued, a transaction is in flight, and the goroutine that ran it looks at the queue
//     afterwards. So every queued operation is run. Example: a caller's goroutine runs its ack, and ten enqueues arrive
//     in that time. Three drivers begin at once. If the drivers leave operations in the queue, a fourth driver takes
//     the slot of the ack.
//  3. At most maxFlying transactions are in flight, or maxApart while callers are few; and at most maxReceiving of the
//     transactions receive; unless groups are plenty, only a single transaction receives.
//  4. A batch which has ended, also by a panic, is removed from the books (flying, receiving, taking). If the caller's
//     goroutine runs the operation, the panic reaches the caller. In any other goroutine the panic becomes the error of
//     the operations without an outcome, because their callers are not at fault when another operation of the batch
//     panics.
//  5. After close nothing is submitted, and nothing waits: a receive that would have waited ends with ErrClosed.
//     closed changes under mu, so that its value stays the same while a batch's books are settled.
//  6. No claim is lost when a caller leaves: the pipeline gives back the claims of an abandoned receive.
//
// mu is held for bookkeeping alone, never during a transaction. The waiting line has a mutex of its own, taken under
// mu, never the other way round.
type pipeline struct {
	env pipelineEnv

	mu     sync.Mutex
	queue  []*operation // guarded by mu; in the order of arrival
	flying int          // guarded by mu; transactions in flight
	// running is how many operations the transactions in flight have, and took how long a transaction took lately.
	// Guarded by mu.
	running int
	took    time.Duration
	// receiving is how many transactions in flight receive; taking is how many groups the receives are likely to take.
	// Guarded by mu.
	receiving, taking int
	// losing is how many of the transactions that receive have lost a conflict. Guarded by mu.
	losing int
	closed atomic.Bool // written under mu; a caller with nothing in the pipeline reads it without mu
}

// pipelineEnv is what a pipeline needs of the handle.
type pipelineEnv struct {
	// run runs the operations, in one transaction or several, and sets the results. run sets err of an operation, also
	// to nil, once the outcome is known. others is how many groups the handle's other transactions are likely to take.
	run func(ctx context.Context, os []*operation, others int)
	// giveBack releases the claims of a receive whose caller has left. The pipeline starts a goroutine for the call.
	giveBack func(claims []*Claim)
	yield    func(ctx context.Context, who string) // see TestOptions.Yield

	// The following are called with the pipeline's mutex held, so a callee must neither block nor call the pipeline.

	groups func(r *reception) int // how many groups a receive is likely to take, 1 at least
	plenty func() bool            // there are groups enough for several transactions to receive at the same time
	// join puts a receive into the waiting line, which calls the pipeline's turn. quit removes a receive, and returns
	// false if the line has called the receive. disband removes all receives.
	join    func(o *operation)
	quit    func(o *operation) bool
	disband func() []*operation
	trouble func() error // of the line's last turn
}

// errInterrupted is the outcome of an operation whose transaction has not come to its end: it may have committed.
var errInterrupted error = &kv.Error{Code: kv.CodeOperationCancelled, InFlight: true}

// isClosed reports whether close was called.
func (p *pipeline) isClosed() bool { return p.closed.Load() }

// close ends the receives that wait, and lets nothing in any more. Operations that are queued or in flight still run to
// their end. close returns false if close was called before.
func (p *pipeline) close() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Swap(true) {
		return false
	}
	for _, o := range p.env.disband() {
		o.err = ErrClosed
		p.end(o)
	}
	return true
}

// inFlight reports whether a transaction is in flight.
func (p *pipeline) inFlight() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flying > 0
}

// queued returns how many operations wait for the next transaction.
func (p *pipeline) queued() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue)
}

// mayReceive reports whether another transaction may receive now. mu is held.
func (p *pipeline) mayReceive() bool {
	return p.receiving == 0 || p.receiving < maxReceiving && p.env.plenty()
}

// mayFly reports whether another transaction may begin, for those that are queued. mu is held.
func (p *pipeline) mayFly() bool { return p.flying < maxFlying || p.flying < maxApart && p.apart() }

// apart reports whether few callers travel, each as far apart from the others as can be. mu is held.
func (p *pipeline) apart() bool { return p.took >= farAway && p.running+len(p.queue) <= fewCallers }

// submit runs o and returns its error when the outcome is known, or when ctx ends. If ctx ends first, a receive gives
// back the claims that it still gets, and the outcome of any other operation is unknown.
func (p *pipeline) submit(ctx context.Context, o *operation) error {
	if err := p.enter(ctx, o); err != nil {
		return err
	}
	return p.await(ctx, o)
}

// submitAll is submit for operations that travel in the next transaction together, as far as the bounds of a
// transaction allow. It returns the error of each.
func (p *pipeline) submitAll(ctx context.Context, os []*operation) []error {
	errs := make([]error, len(os))
	if err := p.enterAll(ctx, os); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	for i, o := range os {
		errs[i] = p.await(ctx, o)
	}
	return errs
}

// enterAll puts new operations into the queue, together.
func (p *pipeline) enterAll(ctx context.Context, os []*operation) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, o := range os {
		o.ended, o.load = make(chan struct{}), o.size()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return ErrClosed
	}
	p.queueUp(os...)
	return nil
}

// submitWaiting is submit for a receive that waits. After wait, or when stop is closed (which may be nil), the receive
// ends with the claims got so far, or got by the turn under way.
func (p *pipeline) submitWaiting(ctx context.Context, o *operation, wait time.Duration, stop <-chan struct{}) error {
	o.waits = true
	if err := p.enter(ctx, o); err != nil {
		return err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-o.ended:
	case <-ctx.Done():
	case <-timer.C:
		p.yieldUnless(ctx, o, "waited")
		p.stopWaiting(o, p.env.trouble)
	case <-stop:
		p.yieldUnless(ctx, o, "stop")
		p.stopWaiting(o, func() error { return nil })
	}
	return p.await(ctx, o)
}

// await waits until o has ended, or leaves it when ctx ends.
func (p *pipeline) await(ctx context.Context, o *operation) error {
	select {
	case <-o.ended:
		return o.result()
	case <-ctx.Done():
		p.yieldUnless(ctx, o, "leave")
		return p.leave(o, context.Cause(ctx))
	}
}

// yieldUnless yields, unless o has ended: then the caller has nothing to wait for.
func (p *pipeline) yieldUnless(ctx context.Context, o *operation, who string) {
	select {
	case <-o.ended:
	default:
		p.env.yield(ctx, who)
	}
}

// enter puts a new operation into the queue, or runs the operation at once if nothing is in flight. In the latter case
// enter returns when o has ended or waits for a group to become ready; if ctx ends in that time, enter returns when the
// transaction has ended, or abandonedTimeout later.
func (p *pipeline) enter(ctx context.Context, o *operation) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	o.ended, o.load = make(chan struct{}), o.size()
	p.mu.Lock()
	if p.closed.Load() {
		p.mu.Unlock()
		return ErrClosed
	}
	if p.flying > 0 || len(p.queue) > 0 {
		p.queueUp(o)
		p.mu.Unlock()
		return nil
	}
	// There is nothing to wait for: the caller's goroutine runs o, which saves the change of goroutines.
	p.flying++
	b := p.newBatch([]*operation{o})
	p.mu.Unlock()
	defer p.releaseSlot()
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if o.batch == b {
			p.abandon(o, context.Cause(ctx))
		}
	})
	defer stop()
	p.fly(b)
	return nil
}

// releaseSlot ends one of the maxFlying transactions: if operations are queued the slot passes to a driver goroutine,
// otherwise the slot is free.
func (p *pipeline) releaseSlot() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) > 0 {
		go p.drive()
	} else {
		p.flying--
	}
}

// abandon notes that no caller waits for a running operation any more, and why. The caller must hold mu.
func (p *pipeline) abandon(o *operation, cause error) {
	o.abandoned = true
	if o.batch.left--; o.batch.left == 0 {
		// The transaction may still end well, and then its claims are given back. But it must not hold up others
		// without end, for example if the database does not answer.
		cancel := o.batch.cancel
		time.AfterFunc(abandonedTimeout, func() { cancel(cause) })
	}
}

// queueUp queues operations, together. mu is held.
func (p *pipeline) queueUp(os ...*operation) {
	for _, o := range os {
		o.state = opQueued
	}
	p.queue = append(p.queue, os...)
	if p.mayFly() {
		p.flying++
		go p.drive()
	}
}

// leave is for a caller who goes, because of cause, before o has ended. If o has ended after all, leave returns the
// error of o.
func (p *pipeline) leave(o *operation, cause error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch o.state {
	case opEnded:
		return o.result()
	case opQueued:
		p.queue = without(p.queue, o)
		p.end(o)
		return cause
	case opWaiting:
		o.abandoned = true
		if p.env.quit(o) {
			p.end(o)
		} // else o is about to have a turn, and ends there
		return cause
	}
	p.abandon(o, cause)
	if o.enqueue == nil && o.settle == nil {
		return cause
	}
	return &kv.Error{Code: kv.CodeOperationCancelled, InFlight: true, Cause: cause}
}

// stopWaiting ends a wait: o ends at once, with the error of trouble, if o stands in the waiting line, and otherwise
// with the turn under way.
func (p *pipeline) stopWaiting(o *operation, trouble func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.lastTurn = true
	if o.state == opWaiting && p.env.quit(o) {
		o.err = trouble()
		p.end(o)
	}
}

// without returns list without o.
func without(list []*operation, o *operation) []*operation {
	if i := slices.Index(list, o); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// end makes an operation's results known. mu is held.
func (p *pipeline) end(o *operation) {
	o.state = opEnded
	close(o.ended)
	o.comeBack()
}

// comeBack tells runTurn, which had called a waiting receive, that the receive's turn is over.
func (t *ticket) comeBack() {
	if t.back != nil {
		close(t.back)
		t.back = nil
	}
}

// drive runs one transaction after the other until the queue is empty.
func (p *pipeline) drive() {
	over := false
	defer func() {
		if !over {
			p.releaseSlot() // a function of a caller's has ended the goroutine, as a test's FailNow does
		}
	}()
	for {
		// Another goroutine that can run and is about to submit goes first, so its operation is in the same
		// transaction. Without such a goroutine there is no delay.
		runtime.Gosched()
		p.env.yield(context.Background(), "drive")
		b := p.nextBatch()
		if over = b == nil; over {
			return
		}
		p.flyBehind(b)
	}
}

// newBatch makes a batch of operations. mu is held.
func (p *pipeline) newBatch(os []*operation) *batch {
	b := &batch{operations: os, left: len(os), begun: time.Now()}
	p.running += len(os)
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	for _, o := range os {
		o.state, o.batch = opRunning, b
		if o.receive != nil && !o.first {
			b.groups += p.env.groups(o.receive)
		}
	}
	if b.groups > 0 {
		b.others = p.taking
		p.receiving, p.taking = p.receiving+1, p.taking+b.groups
	}
	return b
}

// nextBatch takes the operations of the next transaction from the queue. If there are none, nextBatch frees the slot in
// flight and returns nil.
func (p *pipeline) nextBatch() *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flying > maxFlying && !p.apart() {
		p.flying-- // many callers have come: those in flight take the rest together
		return nil
	}
	var total size
	var taken []*operation
	left := p.queue[:0]
	for _, o := range p.queue {
		next := total.plus(o.load)
		o.first = settlesFirst(p, o)
		switch {
		case o.receive != nil && !o.first && !p.mayReceive(),
			len(taken) == maxOperations, len(taken) > 0 && next.tooLarge(),
			// A turn sets a watch if its transaction wrote nothing else, so no other operation may join a turn.
			len(taken) > 0 && (o.turn != nil) != (taken[0].turn != nil),
			// A receive that has lost a conflict may lose the next, and so would the rest of the batch.
			len(taken) > 0 && (o.lost > 0) != (taken[0].lost > 0):
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
	return p.newBatch(taken)
}

// runTurn gives a transaction to the receives which the waiting line has called, and returns when each receive has
// ended or waits again. If possible, runTurn runs the transaction itself: then the goroutine woken by the line's watch
// claims at once.
func (p *pipeline) runTurn(called []*operation) {
	p.mu.Lock()
	var os []*operation
	for _, o := range called {
		switch {
		case p.closed.Load():
			o.err = ErrClosed
			p.end(o)
		case o.abandoned:
			p.end(o)
		default:
			os = append(os, o)
		}
	}
	if len(os) == 0 {
		p.mu.Unlock()
		return
	}
	if p.flying < maxFlying && p.mayReceive() {
		p.flying++
		b := p.newBatch(os)
		p.mu.Unlock()
		p.flyBehind(b)
		p.releaseSlot()
		return
	}
	backs := make([]chan struct{}, len(os))
	for i, o := range os {
		backs[i] = make(chan struct{})
		o.back = backs[i]
	}
	p.queueUp(os...)
	p.mu.Unlock()
	for _, back := range backs {
		<-back
	}
	p.env.yield(context.Background(), "called")
}

// fly runs a batch, and settles the batch's books also after a panic.
func (p *pipeline) fly(b *batch) {
	for _, o := range b.operations {
		o.err = errInterrupted // until run knows better
	}
	defer p.settle(b)
	p.env.run(b.ctx, b.operations, b.others)
}

// flyBehind is fly in a goroutine of no caller: a panic becomes the error of the operations.
func (p *pipeline) flyBehind(b *batch) {
	for _, o := range b.operations {
		o.err = errInterrupted
	}
	defer p.settle(b)
	if err := callback.Try("a transaction", func() { p.env.run(b.ctx, b.operations, b.others) }); err != nil {
		b.interrupted(err)
	}
}

// interrupted sets the error of the operations that have no outcome yet.
func (b *batch) interrupted(cause error) {
	for _, o := range b.operations {
		if o.err == errInterrupted {
			o.err = &kv.Error{Code: kv.CodeOperationCancelled, InFlight: true, Cause: cause}
		}
	}
}

// settle removes an ended batch from the books, and ends its operations or returns waiting receives to the line.
func (p *pipeline) settle(b *batch) {
	b.cancel(nil)
	took := time.Since(b.begun)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running -= len(b.operations)
	p.took += (took - p.took) / 8
	if b.groups > 0 {
		p.receiving, p.taking = p.receiving-1, p.taking-b.groups
	}
	if b.losing {
		p.losing--
	}
	for _, o := range b.operations {
		o.batch = nil
		p.conclude(o)
	}
}

// conclude ends an operation that has run, or puts it into the waiting line. mu is held.
func (p *pipeline) conclude(o *operation) {
	if o.later {
		if o.later = false; o.result() == nil && !o.abandoned {
			receiveNext(p, o)
			return
		}
	}
	if o.turn != nil && mayRecover(o.err) && !o.abandoned && !o.lastTurn {
		// The receive continues to wait, because the database may answer again soon.
		o.turn.fail(o.err)
		o.err = nil
		o.receive.begin()
	}
	nothing := o.waits && o.result() == nil && o.receive.unserved()
	switch {
	case nothing && p.closed.Load():
		o.err = ErrClosed
	case nothing && !o.abandoned && !o.lastTurn:
		o.settle, o.lost = nil, 0 // only the receive waits
		o.load = o.size()
		o.state = opWaiting
		p.env.join(o)
		o.comeBack()
		return
	// If the transaction failed, another may have claimed the same groups by now, under the same token (both
	// transactions had the same read version). If the outcome is unknown, the claim runs into its lease.
	case o.abandoned && o.err == nil && o.receive != nil && len(o.receive.claims) > 0 &&
		(o.receive.o.ReceiveID == "" || lacks(guardRepeatBack)):
		go p.env.giveBack(o.receive.claims)
		o.receive.claims = nil // not for the caller, which may still be there if it ran the transaction
	}
	p.end(o)
}
