package layer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Handler handles one item. nil finishes it; an error or a panic gives it back, and those behind it; a *RejectError
// says that it will never succeed. The
// context ends when the claim is lost or the worker is stopped by force: return then.
//
// An item may be handled more than once: the lease may end while a handler still runs, or the process may die
// before the ack. Make the effect repeatable, or write it with a TxHandler.
type Handler func(ctx context.Context, item Item) error

// TxHandler handles one item in a transaction that commits its writes and the ack together: the effect happens
// exactly once, for it is there if and only if the item is gone. It may be called several times for one item,
// and only what it does through tx counts once. It must end within the 5 s that a transaction may last.
type TxHandler func(ctx context.Context, tx kv.Tx, item Item) error

// StateHandler is a Handler for groups that keep a state (SetState): it is given the state as it is before the item, nil if
// there is none, and returns it as it is after it; nothing (no bytes) clears it. What it returns with an error does not count.
// A state over MaxStateSize is an error of the handler.
type StateHandler func(ctx context.Context, item Item, state []byte) ([]byte, error)

// TxStateHandler is likewise a TxHandler.
type TxStateHandler func(ctx context.Context, tx kv.Tx, item Item, state []byte) ([]byte, error)

// WorkerOptions configure a worker. The zero value is the normal use.
type WorkerOptions struct {
	// Concurrency is the number of goroutines, each with one group in flight at a time. 0 = DefaultConcurrency.
	Concurrency int
	// Batch is the number of items of a claim. 0 = DefaultMax, at most MaxBatch. With a Handler they are
	// acked together, after the last; with a TxHandler one by one.
	Batch int
	// Lease is the lease of a claim; it is extended while handlers run. 0 = the queue's.
	Lease time.Duration
	// Poll is how long one receive waits for a group to become ready, before the worker receives anew. Waiting
	// receives are woken, so it decides little. 0 = DefaultPoll, at most MaxWait.
	Poll time.Duration
	// RetryDelay says how long a group waits after its head has failed for the attempts-th time, from 1 on.
	// It is cut to 0 … MaxDelay. nil = as the queue's retry policy has it.
	RetryDelay func(attempts int) time.Duration
	// OnError is told every error: a handler's (*HandlerError), a lost claim, the engine's. It may be called
	// by several goroutines at once. nil = errors are not reported, only acted on.
	OnError func(err error)
}

// Defaults of a worker.
const (
	DefaultConcurrency = 8
	DefaultPoll        = 20 * time.Second
)

// HandlerError is a handler's error or panic, with the item that it was about.
type HandlerError struct {
	ID  ID
	Err error
}

func (e *HandlerError) Error() string {
	return wrap("handler", fmt.Errorf("item %s: %w", e.ID, e.Err)).Error()
}

// Unwrap returns the handler's error.
func (e *HandlerError) Unwrap() error { return e.Err }

// Worker receives and handles items on a fixed number of goroutines. Beside them it sweeps the queue now and then, see
// Sweep.
type Worker struct {
	q       *Queue
	o       WorkerOptions
	receive ReceiveOptions
	handle  func(ctx context.Context, c *Claim, item Item) error
	inTx    bool // handle acks each item itself

	ctx      context.Context // of the handlers; ends when Stop is cut short
	cancel   context.CancelCauseFunc
	stopping chan struct{}
	wg       sync.WaitGroup

	mu      sync.Mutex
	started bool // guarded by mu
	stopped bool // guarded by mu
}

// NewWorker makes a worker that acks a claim's items together after the last has been handled. Start it.
func NewWorker(q *Queue, h Handler, o WorkerOptions) (*Worker, error) {
	return newWorker(q, o, false, func(ctx context.Context, _ *Claim, item Item) error { return h(ctx, item) })
}

// NewTxWorker makes a worker that handles each item in the transaction that acks it. Start it.
func NewTxWorker(q *Queue, h TxHandler, o WorkerOptions) (*Worker, error) {
	return newWorker(q, o, true, func(ctx context.Context, c *Claim, item Item) error {
		return q.Once(ctx, func(tx kv.Tx) error {
			if err := q.AckTx(ctx, tx, c, item.ID); err != nil {
				return err
			}
			return h(ctx, tx, item)
		})
	})
}

// NewStateWorker makes a worker like NewWorker, for groups that keep a state: that after the last item that was handled is
// written with the ack of the claim's items, or with the nack that acks those before one that has failed. Start it.
func NewStateWorker(q *Queue, h StateHandler, o WorkerOptions) (*Worker, error) {
	w, err := newWorker(q, o, false, func(ctx context.Context, c *Claim, item Item) error {
		state, err := h(ctx, item, c.State)
		if err == nil {
			err = checkState(state)
		}
		if err == nil {
			c.State = state
		}
		return err
	})
	return w.withState(), err
}

// NewTxStateWorker makes a worker like NewTxWorker, for groups that keep a state, which is written in the transaction that
// handles and acks the item. Start it.
func NewTxStateWorker(q *Queue, h TxStateHandler, o WorkerOptions) (*Worker, error) {
	w, err := newWorker(q, o, true, func(ctx context.Context, c *Claim, item Item) error {
		var state []byte
		err := q.once(ctx,
			func(tx kv.Tx, _ kv.Attempt) (tuple.Tuple, error) {
				var err error
				if state, err = h(ctx, tx, item, c.State); err == nil {
					err = q.AckStateTx(ctx, tx, c, state, item.ID)
				}
				return tuple.Tuple{}, err
			},
			func(tx kv.Tx, _ tuple.Tuple) (err error) {
				// As it is there, whatever the last attempt made of it. If the claim has been lost since, so will be the next
				// item.
				state, err = waitState(ctx, readState(q, tx.Snapshot(), c.Group, true))
				return err
			})
		if err == nil {
			c.State = state
		}
		return err
	})
	return w.withState(), err
}

// withState makes a worker receive the state; w may be nil.
func (w *Worker) withState() *Worker {
	if w != nil {
		w.receive.State = true
	}
	return w
}

func newWorker(q *Queue, o WorkerOptions, inTx bool, handle func(context.Context, *Claim, Item) error) (*Worker, error) {
	if o.Concurrency == 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.Poll == 0 {
		o.Poll = DefaultPoll
	}
	if o.Batch == 0 {
		o.Batch = DefaultMax
	}
	if o.Concurrency < 0 {
		return nil, wrap("new worker", &LimitError{What: "concurrency", Unit: "goroutines", Got: int64(o.Concurrency), Min: 1, Max: maxConcurrency})
	}
	if o.Concurrency > maxConcurrency {
		return nil, wrap("new worker", &LimitError{What: "concurrency", Unit: "goroutines", Got: int64(o.Concurrency), Min: 1, Max: maxConcurrency})
	}
	receive, err := ReceiveOptions{Max: o.Batch, MaxGroups: 1, Lease: o.Lease, Wait: o.Poll}.withDefaults()
	if err != nil {
		return nil, wrap("new worker", err)
	}
	w := &Worker{q: q, o: o, receive: receive, handle: handle, inTx: inTx, stopping: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	return w, nil
}

// maxConcurrency keeps a mistyped number from starting a million transactions.
const maxConcurrency = 10_000

// Start begins to work and returns at once. A worker that was started or stopped before stays as it is.
func (w *Worker) Start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started || w.stopped {
		return
	}
	w.started = true
	for i := range w.o.Concurrency {
		w.wg.Go(func() { w.loop(i) })
	}
	w.wg.Go(w.sweep)
}

// Stop takes no more work, lets each handler finish the item it is at, gives the rest back without counting an
// attempt, and returns when all has stopped. When ctx ends first, the handlers' contexts end with its cause;
// Stop then waits for them to return and returns an error that wraps that cause. It may be called twice, and
// before Start.
func (w *Worker) Stop(ctx context.Context) error {
	w.mu.Lock()
	if !w.stopped {
		w.stopped = true
		close(w.stopping)
	}
	w.mu.Unlock()
	all := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(all)
	}()
	select {
	case <-all:
		w.cancel(ErrClosed) // frees the context
		return nil
	case <-ctx.Done():
		w.cancel(context.Cause(ctx))
		<-all
		return wrap("stop worker", fmt.Errorf("stopped by force: %w", context.Cause(ctx)))
	}
}

func (w *Worker) report(err error) {
	if err != nil && w.o.OnError != nil {
		w.o.OnError(err)
	}
}

func (w *Worker) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}

// firstWait is the pause after an error, and after a look that found nothing; it doubles.
const firstWait = 5 * time.Millisecond

// loop is one goroutine: it has at most one claim at a time. A claim that was handled to its end is acked in the
// transaction that receives the next.
func (w *Worker) loop(n int) {
	ctx := w.q.named(w.ctx, "worker %d", n)
	var done *settlement
	pause := firstWait
	for {
		w.q.yield(ctx, "loop")
		if w.isStopping() {
			break
		}
		r := &reception{o: w.receive, stop: w.stopping}
		claims, err := w.q.receive(ctx, done, r)
		w.q.yield(ctx, "received")
		done = nil
		w.report(wrap("receive", err))
		switch {
		case len(claims) > 0:
			pause = firstWait
			done = w.work(ctx, claims[0])
		case err != nil:
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-w.stopping:
				timer.Stop()
			}
			pause = min(2*pause, time.Second)
		}
	}
	if done != nil {
		ctx, cancel := w.endContext(ctx)
		defer cancel()
		w.report(wrap("ack", w.q.submit(ctx, &operation{settle: done})))
	}
}

// sweep sweeps the queue now and then, in turns with the workers of other processes.
func (w *Worker) sweep() {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	go func() {
		select {
		case <-w.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		timer := time.NewTimer(sweepEvery/2 + time.Duration(w.q.random.float()*float64(sweepEvery)))
		select {
		case <-timer.C:
			w.q.yield(w.ctx, "sweep")
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if _, err := w.q.Admin().Sweep(ctx, SweepOptions{Every: sweepEvery}); err != nil && ctx.Err() == nil {
			w.report(err)
		}
	}
}

// work handles a claim's items in order. It ends the claim, or returns the ack that ends it.
func (w *Worker) work(of context.Context, c *Claim) *settlement {
	ctx, cancel := context.WithCancelCause(of)
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		w.extend(ctx, cancel, c)
	}()
	var acked []ID
	var failed error
	attempts, before := 0, c.State
	for _, item := range c.Items {
		if ctx.Err() != nil || w.isStopping() {
			break
		}
		if err := w.call(ctx, c, item); err != nil {
			failed, attempts = &HandlerError{ID: item.ID, Err: err}, item.Attempts+1
			break
		}
		acked = append(acked, item.ID)
	}
	lost := errors.Is(context.Cause(ctx), ErrClaimLost) || w.inTx && errors.Is(failed, ErrClaimLost)
	// The extension must be over before the claim ends: it would conflict with it.
	cancel(nil)
	<-extended
	w.q.yield(of, "worked")
	w.report(failed)
	switch {
	case lost:
		return nil // nothing of the claim is ours any more
	case len(acked) < len(c.Items):
		w.giveBack(of, c, acked, before, failed, attempts)
		return nil
	case w.inTx:
		return nil // acked one by one
	}
	return &settlement{claim: c, sets: !bytes.Equal(before, c.State), state: c.State}
}

// endTimeout bounds the transaction that ends a claim, also when the worker is being stopped by force.
const endTimeout = 10 * time.Second

func (w *Worker) endContext(of context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(of), endTimeout)
}

// giveBack acks what was handled and gives back the rest. before is the state that the claim came with.
func (w *Worker) giveBack(of context.Context, c *Claim, acked []ID, before []byte, failed error, attempts int) {
	ctx, cancel := w.endContext(of)
	defer cancel()
	o := NackOptions{Acked: acked, SetState: !bytes.Equal(before, c.State)}
	if w.inTx {
		o.Acked, o.SetState = nil, false
	}
	if o.SetState {
		o.State = c.State
	}
	if failed == nil || w.ctx.Err() != nil {
		// Not tried, or cut off by us: no fault of the item.
		o.Release = true
	} else {
		var h *HandlerError
		if errors.As(failed, &h) {
			o.Err = h.Err
		}
		var rejected *RejectError
		if errors.As(failed, &rejected) {
			o.Reject, o.Err = cmp.Or(rejected.Reason, "rejected by the handler"), rejected.Err
		} else if w.o.RetryDelay != nil {
			o.Delay = min(max(w.o.RetryDelay(attempts), 0), MaxDelay)
			o.AtOnce = o.Delay == 0
		}
	}
	w.report(w.q.Nack(ctx, c, o))
}

// call runs the handler; a panic becomes an error, with its stack.
func (w *Worker) call(ctx context.Context, c *Claim, item Item) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return w.handle(ctx, c, item)
}

// extend prolongs the lease each time a third of what is left of it has passed, until ctx ends. When the claim is lost it ends
// the handlers' context.
func (w *Worker) extend(of context.Context, cancel context.CancelCauseFunc, c *Claim) {
	ctx := w.q.named(of, "extension of %s under %d", c.Group, c.Token)
	until := c.Until
	for {
		timer := time.NewTimer(max(until.Sub(w.q.opts.Now()), MinLease) / 3)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			w.q.yield(ctx, "extend")
		}
		next, err := w.q.Extend(ctx, c, w.o.Lease)
		switch {
		case err == nil:
			until = next
		case errors.Is(err, ErrClaimLost):
			w.report(err)
			cancel(err)
			return
		case ctx.Err() == nil:
			w.report(err)
		}
	}
}
