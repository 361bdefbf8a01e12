package line

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

// Pipeline makes the operations of a handle travel together: operations which arrive while transactions of the handle
// are in flight go into the next transaction. There is no timer: an operation alone is begun at once, by its caller.
//
// Invariants:
//
//  1. An operation ends once, and has its results then. Until then the operation is in one place: queued, in a batch,
//     or in the line. Only running operations have a transaction.
//  2. While operations are queued, a transaction is in flight, and the goroutine that ran it looks at the queue
//     afterwards. So every queued operation is run. Example: a caller's goroutine runs its ack, and ten enqueues arrive
//     in that time. Three drivers begin at once. If the drivers leave operations in the queue, a fourth driver takes
//     the slot of the ack.
//  3. At most maxFlying transactions are in flight, or maxApart while callers are few and the database is far away. At
//     most maxReceiving of them receive; unless groups are plenty, only a single one does. At most one has operations
//     with Contends, and counts towards maxReceiving. So one transaction in flight is left to the other operations.
//  4. A batch which has ended, also by a panic, is removed from the books (flying, receiving, taking). If the caller's
//     goroutine runs the operation, the panic reaches the caller. In any other goroutine the panic becomes the error of
//     the operations without an outcome, because their callers are not at fault when another operation of the batch
//     panics.
//  5. After Close nothing is submitted, and nothing waits: a receive that would have waited ends with env.Closed.
//     closed changes under mu, so that its value stays the same while a batch's books are settled.
//  6. No claim is lost when a caller leaves: the pipeline gives back what an abandoned receive has got. A receive with
//     Keeps keeps it, and its caller's error says that the outcome is unknown.
//
// mu is held for bookkeeping alone, never during a transaction. The line has a mutex of its own, taken under mu, never
// the other way round.
type Pipeline[O Operation] struct {
	env  PipelineEnv[O]
	line *Line[O]

	mu     sync.Mutex
	queue  arrivals[O] // guarded by mu
	flying int         // guarded by mu; transactions in flight
	// running is how many operations the transactions in flight have, and took how long a transaction took lately.
	// Guarded by mu.
	running int
	took    time.Duration
	// receiving is how many transactions in flight receive; taking is how many groups the receives are likely to take.
	// Guarded by mu.
	receiving, taking int
	// losing is how many of the transactions that receive have lost a conflict. Guarded by mu.
	losing int
	// contending is how many transactions in flight have operations with Contends: 0 or 1. Guarded by mu.
	contending int
	closed     atomic.Bool // written under mu; a caller with nothing in the pipeline reads it without mu
}

// PipelineEnv is what a pipeline needs of the handle.
type PipelineEnv[O Operation] struct {
	// Most bounds a transaction of several operations. An operation alone may be larger.
	Most Size
	// Closed is the error of calls after Close.
	Closed error
	// Run runs the operations, in one transaction or several, and sets the results. Run sets TxErr of an operation,
	// also to nil, once the outcome is known. others is how many groups the handle's other transactions are likely to
	// take.
	Run func(ctx context.Context, os []O, others int)
	// Yield is called where another goroutine may go first.
	Yield func(ctx context.Context, who string)

	// The following are called with the pipeline's mutex held, so a callee must neither block nor call the pipeline.

	Groups func(o O) int // how many groups a receive is likely to take, 1 at least
	Plenty func() bool   // there are groups enough for several transactions to receive at the same time
	// MayRecover reports whether the receives of a turn that has failed with err may wait for another.
	MayRecover func(err error) bool
	// GiveBack takes away what a receive has got, because its caller has left, and starts a goroutine that gives it
	// back. It does nothing if Keeps is true.
	GiveBack func(o O)
}

// maxOperations bounds the operations of a transaction.
const maxOperations = 256

// maxFlying is how many transactions of a handle are in flight at a time, unless apart is true. Up to maxReceiving of
// them receive or contend, and one is left to the other operations. More only make smaller batches and more conflicts.
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

// AWhileMost bounds AWhile.
const AWhileMost = 100 * time.Millisecond

// batch is the operations of one transaction.
type batch[O Operation] struct {
	transaction
	operations []O
}

// errInterrupted is the outcome of an operation whose transaction has not come to its end: it may have committed.
var errInterrupted error = &kv.Error{Code: kv.CodeOperationCancelled, InFlight: true}

// Begin makes the pipeline ready. Receives for which nothing is ready, and which wait, join the line.
func (p *Pipeline[O]) Begin(env PipelineEnv[O], line *Line[O]) { p.env, p.line = env, line }

// IsClosed reports whether Close was called.
func (p *Pipeline[O]) IsClosed() bool { return p.closed.Load() }

// Close ends the receives that wait, with env.Closed, and lets nothing in any more. Operations that are queued or in
// flight still run to their end. Close returns false if it was called before.
func (p *Pipeline[O]) Close() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Swap(true) {
		return false
	}
	for _, o := range p.line.disband() {
		o.op().TxErr = p.env.Closed
		p.end(o)
	}
	return true
}

// InFlight reports whether a transaction is in flight.
func (p *Pipeline[O]) InFlight() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flying > 0
}

// Queued returns how many operations wait for the next transaction.
func (p *Pipeline[O]) Queued() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.length()
}

// AWhile is the time that a few transactions take, one after the other: 1 to 100 ms.
func (p *Pipeline[O]) AWhile() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(4*p.took, time.Millisecond), AWhileMost)
}

// mayReceive reports whether another transaction may receive now: if none does, or if groups are plenty and fewer than
// maxReceiving receive or contend. mu is held.
func (p *Pipeline[O]) mayReceive() bool {
	return p.receiving == 0 || p.receiving+p.contending < maxReceiving && p.env.Plenty()
}

// mayContend reports whether a transaction of operations with Contends may begin now: if none is in flight, and fewer
// than maxReceiving receive. Two would conflict with each other. If such conflicts, and those of receives, held all
// transactions in flight, an ack could not begin. mu is held.
func (p *Pipeline[O]) mayContend() bool { return p.contending == 0 && p.receiving < maxReceiving }

// mayFly reports whether another transaction may begin, for the operations that are queued. mu is held.
func (p *Pipeline[O]) mayFly() bool { return p.flying < maxFlying || p.flying < maxApart && p.apart() }

// apart reports whether up to maxApart transactions may be in flight: the database is far away, and few callers have
// operations in the pipeline. mu is held.
func (p *Pipeline[O]) apart() bool {
	return p.took >= farAway && p.running+p.queue.length() <= fewCallers
}

// Submit runs o and returns its error when the outcome is known, or when ctx ends. If ctx ends first, an operation that
// is queued has no effect, and a receive gives back the claims that it still gets. The outcome of any other operation,
// and of a receive with Keeps in a transaction, is unknown.
func (p *Pipeline[O]) Submit(ctx context.Context, o O) error {
	if err := p.enter(ctx, o); err != nil {
		return err
	}
	return p.await(ctx, o)
}

// SubmitAll is Submit for operations that travel in the next transaction together, as far as the bounds of a
// transaction allow. It returns the error of each, in the order of os.
func (p *Pipeline[O]) SubmitAll(ctx context.Context, os []O) []error {
	if err := p.enter(ctx, os...); err != nil {
		return slices.Repeat([]error{err}, len(os))
	}
	errs := make([]error, len(os))
	for i, o := range os {
		errs[i] = p.await(ctx, o)
	}
	return errs
}

// SubmitWaiting is Submit for a receive that waits if nothing is ready. After wait, or when stop is closed (which may
// be nil), the receive ends with the claims got so far, or got by the turn under way. After wait it ends with the error
// of Line.trouble if it has got nothing and the line's latest transaction has failed. After stop it has no such error.
func (p *Pipeline[O]) SubmitWaiting(ctx context.Context, o O, wait time.Duration, stop <-chan struct{}) error {
	o.op().Waits = true
	if err := p.enter(ctx, o); err != nil {
		return err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-o.op().ended:
	case <-ctx.Done():
	case <-timer.C:
		p.yieldUnless(ctx, o, "waited")
		p.stopWaiting(o, p.line.trouble)
	case <-stop:
		p.yieldUnless(ctx, o, "stop")
		p.stopWaiting(o, func() error { return nil })
	}
	return p.await(ctx, o)
}

// await waits until o has ended and returns its error. If ctx ends first, await leaves o behind, see leave.
func (p *Pipeline[O]) await(ctx context.Context, o O) error {
	select {
	case <-o.op().ended:
		return o.Err()
	case <-ctx.Done():
		p.yieldUnless(ctx, o, "leave")
		return p.leave(o, kv.CauseOf(ctx))
	}
}

// yieldUnless calls env.Yield, unless o has ended: then the caller has nothing to wait for.
func (p *Pipeline[O]) yieldUnless(ctx context.Context, o O, who string) {
	select {
	case <-o.op().ended:
	default:
		p.env.Yield(ctx, who)
	}
}

// begin makes a new operation ready for the pipeline. Its caller still owns it.
func begin[O Operation](o O) { o.op().ended, o.op().load = make(chan struct{}), o.Size() }

// enter puts new operations into the queue, together, and returns. It runs a single operation at once if nothing is in
// flight. In the latter case enter returns when the operation has ended or waits for a group to become ready; if ctx
// ends in that time, enter returns when the transaction has ended, or abandonedTimeout later. The error is that ctx has
// ended before, or that the pipeline is closed: then no operation was run.
func (p *Pipeline[O]) enter(ctx context.Context, os ...O) error {
	if ctx.Err() != nil {
		return kv.CauseOf(ctx)
	}
	for _, o := range os {
		begin(o)
	}
	p.mu.Lock()
	if p.closed.Load() {
		p.mu.Unlock()
		return p.env.Closed
	}
	if len(os) != 1 || p.flying > 0 || p.queue.length() > 0 {
		p.queueUp(os...)
		p.mu.Unlock()
		return nil
	}
	// There is nothing to wait for: the caller's goroutine runs the operation, which saves the change of goroutines.
	p.flying++
	b := p.newBatch(os)
	p.mu.Unlock()
	defer p.releaseSlot()
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if o := os[0].op(); o.tx == &b.transaction {
			o.abandon(kv.CauseOf(ctx))
		}
	})
	defer stop()
	p.fly(b)
	return nil
}

// releaseSlot gives up the slot of a transaction in flight. If operations are queued the slot passes to a driver
// goroutine, otherwise the slot is free.
func (p *Pipeline[O]) releaseSlot() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.length() > 0 {
		go p.drive()
	} else {
		p.flying--
	}
}

// abandon notes that the caller of a running operation has left, and why. If it was the last caller of the transaction,
// the transaction is cancelled abandonedTimeout later. The pipeline's mutex is held.
func (o *Op) abandon(cause error) {
	o.abandoned = cause
	if o.tx.left--; o.tx.left == 0 {
		// The transaction may still end well, and then its claims are given back. But it must not hold up others
		// without end, for example if the database does not answer.
		cancel := o.tx.cancel
		time.AfterFunc(abandonedTimeout, func() { cancel(cause) })
	}
}

// queueUp puts operations into the queue, together, and starts a driver goroutine if another transaction may begin. mu
// is held.
func (p *Pipeline[O]) queueUp(os ...O) {
	for _, o := range os {
		o.op().state = isQueued
	}
	p.queue.add(os...)
	if p.mayFly() {
		p.flying++
		go p.drive()
	}
}

// leave is for a caller who goes, because of cause, before o has ended. leave returns the error for the caller. If o
// has ended after all, that is the error of o. If o is queued, or only its receive is left and the claims are given
// back, it is cause: a settlement that is done stays done. Otherwise the error says that the outcome is unknown.
func (p *Pipeline[O]) leave(o O, cause error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch o.op().state {
	case hasEnded:
		return o.Err()
	case isQueued:
		p.queue.remove(o)
		p.end(o)
		return cause
	case isWaiting:
		o.op().abandoned = cause
		if p.line.quit(o) {
			p.end(o)
		} // else o is about to have a turn, and ends there
		return cause
	case isRunning:
		o.op().abandon(cause)
	}
	if !o.Enqueues() && !o.Settles() && !o.Keeps() {
		return cause
	}
	return &kv.Error{Code: kv.CodeOperationCancelled, InFlight: true, Cause: cause}
}

// stopWaiting ends a wait: o ends at once, with the error of trouble, if o stands in the line, and otherwise with the
// turn under way.
func (p *Pipeline[O]) stopWaiting(o O, trouble func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.op().lastTurn = true
	if o.op().state == isWaiting && p.line.quit(o) {
		o.op().TxErr = trouble()
		p.end(o)
	}
}

// end ends an operation and makes its results known to its caller. mu is held.
func (p *Pipeline[O]) end(o O) {
	o.op().state = hasEnded
	close(o.op().ended)
	o.op().comeBack()
}

// comeBack tells RunTurn, which had called a waiting receive, that the receive's turn is over.
func (o *Op) comeBack() {
	if o.back != nil {
		close(o.back)
		o.back = nil
	}
}

// drive is a driver goroutine, which has one of the slots of transactions in flight. It runs one transaction after the
// other until the queue is empty, or nextBatch finds that it may take nothing. Then the slot is free.
func (p *Pipeline[O]) drive() {
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
		p.env.Yield(context.Background(), "drive")
		b := p.nextBatch()
		if over = b == nil; over {
			return
		}
		p.flyBehind(b)
	}
}

// newBatch makes a batch of operations, and enters it in the books: running, contending, and for receives receiving and
// taking. mu is held.
func (p *Pipeline[O]) newBatch(os []O) *batch[O] {
	b := &batch[O]{operations: os, transaction: transaction{left: len(os), begun: time.Now()}}
	p.running += len(os)
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	for _, o := range os {
		o.op().state, o.op().tx = isRunning, &b.transaction
		o.op().TxErr = errInterrupted // until Run knows better
		if o.Receives() && !o.op().First {
			b.groups += p.env.Groups(o)
		}
	}
	if b.contends = os[0].op().Contends; b.contends {
		p.contending++
	}
	if b.groups > 0 {
		b.others = p.taking
		p.receiving, p.taking = p.receiving+1, p.taking+b.groups
	}
	return b
}

// nextBatch takes the operations of the next transaction from the queue, in order, and leaves those that must not be in
// it. If it takes none, nextBatch frees the slot in flight and returns nil.
func (p *Pipeline[O]) nextBatch() *batch[O] {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flying > maxFlying && !p.apart() {
		p.flying-- // many callers have come: those in flight take the rest together
		return nil
	}
	var total Size
	var taken []O
	for o := range p.queue.each() {
		if len(taken) == maxOperations {
			break
		}
		next := total.Plus(o.op().load)
		o.op().First = p.settlesFirst(o)
		switch {
		case o.Receives() && !o.op().First && !p.mayReceive(),
			o.op().Contends && !p.mayContend(),
			len(taken) > 0 && next.Exceeds(p.env.Most),
			len(taken) > 0 && !mayTravel(o.op(), taken[0].op()):
		default:
			total = next
			p.queue.remove(o)
			taken = append(taken, o)
		}
	}
	if len(taken) == 0 {
		p.flying--
		return nil
	}
	return p.newBatch(taken)
}

// mayTravel reports whether two operations may be in one transaction. Only operations of a turn may join a turn,
// because a turn sets a watch if its transaction wrote nothing else. A receive that has lost a conflict travels only
// with others that have lost one: it may lose the next conflict, and then the rest of the transaction would fail with
// it. The same holds for an operation with Contends.
func mayTravel(a, b *Op) bool {
	return (a.Turn != nil) == (b.Turn != nil) && (a.Lost > 0) == (b.Lost > 0) && a.Contends == b.Contends
}

// settlesFirst reports whether the operation, which settles and receives, settles in the next transaction and receives
// in another. That is so while transactions that receive lose conflicts, because the settlement must not wait for them.
// mu is held.
func (p *Pipeline[O]) settlesFirst(o O) bool {
	return o.Settles() && o.Receives() && p.losing > 0 && !p.mayReceive()
}

// Conflicted notes that the transaction of o, which receives, has lost a conflict and tries again. The operations that
// settle or enqueue do not wait for it.
func (p *Pipeline[O]) Conflicted(o O) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tx := o.op().tx
	if tx == nil || tx.losing {
		return
	}
	tx.losing = true
	p.losing++
	writes := func(o O) bool { return o.Settles() || o.Enqueues() }
	if p.queue.some(writes) && p.mayFly() {
		p.flying++
		go p.drive()
	}
}

// RunTurn gives a transaction to the receives which the line has called, and returns when each receive has ended or
// waits again. If possible, RunTurn runs the transaction itself: then the goroutine woken by the line's watch claims at
// once.
func (p *Pipeline[O]) RunTurn(called []O) {
	p.mu.Lock()
	var os []O
	for _, o := range called {
		switch {
		case p.closed.Load():
			o.op().TxErr = p.env.Closed
			p.end(o)
		case o.op().abandoned != nil:
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
		o.op().back = backs[i]
	}
	p.queueUp(os...)
	p.mu.Unlock()
	for _, back := range backs {
		<-back
	}
	p.env.Yield(context.Background(), "called")
}

// fly runs a batch in the goroutine of a caller. It settles the batch's books also after a panic, which goes on to the
// caller.
func (p *Pipeline[O]) fly(b *batch[O]) {
	defer p.settle(b)
	p.env.Run(b.ctx, b.operations, b.others)
}

// flyBehind is fly in a goroutine of no caller: a panic becomes the error of the operations that have no outcome yet.
func (p *Pipeline[O]) flyBehind(b *batch[O]) {
	defer p.settle(b)
	if err := callback.Try("a transaction", func() { p.env.Run(b.ctx, b.operations, b.others) }); err != nil {
		for _, o := range b.operations {
			if o.op().TxErr == errInterrupted {
				o.op().TxErr = &kv.Error{Code: kv.CodeOperationCancelled, InFlight: true, Cause: err}
			}
		}
	}
}

// settle removes an ended batch from the books, and ends its operations or returns waiting receives to the line.
func (p *Pipeline[O]) settle(b *batch[O]) {
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
	if b.contends {
		p.contending--
	}
	for _, o := range b.operations {
		o.op().tx = nil
		p.conclude(o)
	}
}

// conclude ends an operation that has run, or, if its receive has got nothing and waits, puts it into the line. So it
// does after a turn that failed with an error of which MayRecover is true. If all except the receive has run, conclude
// queues the receive. The claims of a receive whose caller has left are given back, unless Keeps is true. mu is held.
func (p *Pipeline[O]) conclude(o O) {
	at := o.op()
	if at.Later {
		if at.Later = false; o.Err() == nil && at.abandoned == nil {
			// The receive has a transaction of its own.
			at.First = false
			p.settled(o)
			p.queueUp(o)
			return
		}
	}
	if at.Turn != nil && at.TxErr != nil && p.env.MayRecover(at.TxErr) && at.abandoned == nil && !at.lastTurn {
		// The receive continues to wait, because the database may answer again soon.
		at.Turn.fail(at.TxErr)
		at.TxErr = nil
		o.Forget()
	}
	nothing := at.Waits && o.Err() == nil && o.Unserved()
	switch {
	case nothing && p.closed.Load():
		at.TxErr = p.env.Closed
	case nothing && at.abandoned == nil && !at.lastTurn:
		p.settled(o)
		at.Lost, at.state = 0, isWaiting
		p.line.join(o)
		at.comeBack()
		return
	// If the transaction failed, another may have claimed the same groups by now, under the same token (both
	// transactions had the same read version). If the outcome is unknown, the claim runs into its lease. The caller may
	// still be there, if it ran the transaction.
	case at.abandoned != nil && at.TxErr == nil && o.Receives():
		p.env.GiveBack(o)
		if o.Err() == nil && o.Unserved() {
			at.TxErr = at.abandoned // else a caller that is still there would take it for a queue with nothing ready
		}
	}
	if at.Waits && at.Turn == nil && !p.closed.Load() {
		p.line.tidy(o)
	}
	p.end(o)
}

// settled notes that the settlement is done, and that only the receive of the operation is left. mu is held.
func (p *Pipeline[O]) settled(o O) {
	o.Settled()
	o.op().load = o.Size()
}
