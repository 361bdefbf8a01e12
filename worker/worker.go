// Package worker runs handlers for the messages of a queue on several goroutines. A worker receives claims, extends
// the leases while a handler runs, finishes the messages that were handled, and gives back those that failed.
//
// Choose the handler by how often an effect may happen. Handle and HandleBatch: at least once. HandleTx and
// HandleCommit: exactly once, because the effect is written in the transaction that acks the message. HandleStage
// moves a message to the next stage of a pipeline.
//
//	w, err := worker.New(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
//		return send(ctx, d.Body)
//	}), worker.Options{})
//
// A worker uses nothing but the public API of package layer: a program can do the same with Queue.Receive, Queue.Settle
// and Queue.Extend.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Options configure a worker. The zero value is the normal use.
type Options struct {
	// Concurrency is the number of goroutines, each with one group in flight at a time. 0 = DefaultConcurrency.
	Concurrency int
	// MaxConcurrency, if greater than Concurrency, is how many goroutines there may be: one more begins whenever all
	// have a group in flight, and one ends after three receives in a row, each as long as Poll, that got nothing,
	// unless it is the only one without a group. 0 = Concurrency. See SetConcurrency.
	MaxConcurrency int
	// Batch is how many items a claim has at most, up to MaxBatch; 0 = DefaultMax. A larger Batch saves receives, and
	// keeps a group with one goroutine for longer. With Unordered, or in a queue with a lease for each item, a claim
	// has one item. See the kinds of handlers for how items are acked.
	Batch int
	// Lease is the lease of a claim. The worker extends it while handlers run. If the process dies, the group is free
	// again when the lease ends. 0 = the queue's.
	Lease time.Duration
	// Heartbeat makes claims last as long as the handle lives, with one write for all claims instead of an extension of
	// each: see layer.ReceiveOptions.Heartbeat. Three kinds of claims leave the heartbeat. The first is that of a stuck
	// handler. The second are those of a handle that others have ended because it could not reach the database. The
	// third are those of HandleTx and HandleCommit of which too little is left for a transaction: less than 6 s, or
	// less than 0.98 of a shorter lease. The worker extends the last two by themselves from then on. If another holder
	// has such a claim by then, the handler's context ends. Not with Lease.
	Heartbeat bool
	// Timeout is when a handler's context ends, after its call: 1 ms or more. 0 = 1 minute, < 0 = never. The claim is
	// extended until then, and no more. The result of the handler still counts if the handler returns before the lease
	// ends. At least two ninths of the lease are left then, or two thirds if Timeout is longer than a third of the
	// lease; less with HandleTx. Example: with a Timeout of 1 s and a lease below 22.5 s another process may get the
	// item within the 5 s that follow.
	// A handler that has still not returned 5 s later is stuck: that is reported with its stack, the item counts a
	// failed attempt when the lease ends, and another goroutine takes the place of the one that is lost. The worker
	// does not handle the item again while its handler is stuck, but leaves the item to other processes.
	Timeout time.Duration
	// StayWhenStuck: the worker does not end when as many handlers are stuck as it may have goroutines. Handlers that
	// get stuck later keep their goroutines, and when they keep all the worker handles nothing. Without StayWhenStuck
	// the worker ends, and Run returns a *StopError that wraps ErrStuck, so that a supervisor starts the process again.
	StayWhenStuck bool
	// Poll is how long one receive waits for a group to become ready, before the worker receives again. Waiting
	// receives are woken, so Poll matters little. 1 ms to MaxWait; 0 = 20 s.
	Poll time.Duration
	// RetryDelay says how long a group waits after its head has failed with err for the attempts-th time, from 1 on. A
	// result outside of 0 to MaxDelay is cut to that range. nil = as the queue's retry policy says; the same applies if
	// RetryDelay panics. A *RetryError with After has priority.
	RetryDelay func(attempts int, err error) time.Duration
	// Limiter, if not nil, bounds the rate of items: each goroutine calls its Wait before each item. A *rate.Limiter of
	// golang.org/x/time/rate is a Limiter. The worker acks what is handled before the wait, and extends a claim in
	// flight during the wait; nothing is claimed before the first wait has ended. If the limiter panics, the goroutine
	// waits for a second instead. An error of Wait is reported, and limits nothing. Wait must return when its context
	// ends; the worker continues without it 5 s later.
	Limiter Limiter
	// Also are further queues, each with a handler of its own. The same goroutines serve all queues. While several have
	// ready groups, the worker handles as many items of each. It looks at an idle queue again within 0.1 s. A queue
	// that fails, hangs, or has a slow Next holds up no other. If all goroutines are busy when its claim arrives, the
	// worker extends the claim until a goroutine is free, and returns it after a minute.
	Also []Source
	// Where, if not nil, is the template of the items to handle, of a queue with facets: see layer.ReceiveOptions.
	Where layer.Template
	// Group, if not nil, is the only group to handle, for example of a worker that holds what the group needs; see
	// OnlyGroup. One goroutine at a time has the group, or several if Unordered.
	Group *string
	// Unordered handles any free items, each by itself, in a queue with layer.Config.Unordered: see
	// layer.ReceiveOptions.
	Unordered bool
	// Next, if not nil, is asked before each receive for the template and the group, in place of Where and Group. A
	// receive that waits keeps both, for as long as Poll. If the queue's views do not allow the template, or the name
	// of the group is invalid, OnError is told, and Next is asked again after a pause. Several goroutines call Next at
	// once.
	Next func() (where layer.Template, group *string)
	// Logger gets a line for each of Events, without bodies: a dead letter and a stuck handler as an error, a failure
	// and a lost claim as a warning, each claim and item at the level debug. docs/telemetry.md has all lines. nil =
	// slog.Default().
	Logger *slog.Logger
	// Events are called as the worker meets them. The worker extends the claim while a function of Events runs, and
	// acks what is handled. The worker continues without a function of these options that has not returned after two
	// minutes, and does not call it again until it has returned. Only Next and the Limiter are called again while a
	// call hangs. One that calls runtime.Goexit counts as one that panics.
	Events Events
	// OnError, if not nil, gets every error: a handler's (*HandlerError) unless the worker knows by then that the claim
	// is lost, each lost claim once, a stuck handler (*StuckError), the engine's, and a panic of a function of these
	// options, with its stack. Such a panic changes nothing for the messages. OnError may be called by several
	// goroutines at once. An error of a receive, an ack, an extension, a sweep or the limiter is reported and logged
	// once in ten seconds: one of the database (kv.Error) for each code, another for each text. nil = errors are only
	// in the log.
	OnError func(err error)
	// Test, if not nil, is for simulations of the library itself: Seed and Yield alone count. The seed also names the
	// worker, so no two workers may have the same.
	Test *layer.TestOptions
}

// Source is a further queue of a worker.
type Source struct {
	Queue   *layer.Queue
	Handler Handler
	Where   layer.Template // as Options.Where
	Group   *string        // as Options.Group
	// Unordered is as Options.Unordered.
	Unordered bool
	// Next, if not nil, is used in place of Where and Group: see Options.Next.
	Next func() (where layer.Template, group *string)
}

// Limiter bounds how fast a worker handles items.
type Limiter interface {
	// Wait returns when the next item may be handled, or with an error when ctx has ended.
	Wait(ctx context.Context) error
}

// Defaults of a worker.
const (
	DefaultConcurrency = 8
	defaultPoll        = 20 * time.Second
	defaultTimeout     = time.Minute
)

// minDuration bounds Poll and Timeout. A time whose unit was forgotten is a few nanoseconds. With such a Poll the
// worker would receive without a pause, and with such a Timeout each handler would run out of time.
const minDuration = time.Millisecond

// tooShort returns the error for a time below minDuration.
func tooShort(what string, got, most time.Duration) error {
	return &layer.LimitError{What: what, Unit: "ns", Got: int64(got), Min: int64(minDuration), Max: int64(most)}
}

// maxConcurrency bounds Concurrency, so that a mistyped number does not start a million transactions.
const maxConcurrency = 10_000

// Worker receives and handles items on goroutines, its hands: a fixed number, or, within bounds, as many as there is
// work for. It also sweeps its queues from time to time, see layer.Admin.Sweep. It ends by itself when its queues have
// been dropped, or their handles closed, or when too many handlers are stuck (ErrStuck).
type Worker struct {
	o       Options
	sources []*source
	log     *slog.Logger

	ctx      context.Context // of the handlers; ends when Stop is cut short
	cancel   context.CancelCauseFunc
	taking   context.Context // ends when no more work is to be taken
	stopping chan struct{}   // closed under mu when the worker is stopped, or has ended by itself
	done     chan struct{}   // closed when all hands have ended
	wg       sync.WaitGroup
	trouble  callback.News // the reported errors

	mu      sync.Mutex
	started bool            // guarded by mu
	err     error           // guarded by mu; why it has ended by itself
	hands   []*hand         // guarded by mu; those that have not ended
	begun   int             // guarded by mu; how many hands have ever begun
	least   int             // guarded by mu; how many hands there are at least, and at most
	most    int             // guarded by mu
	left    map[*call]bool  // guarded by mu; calls that are stuck, and whose hands continue without them
	offers  []chan struct{} // guarded by mu: see offer
	hanging map[string]int  // guarded by mu; calls of functions of the options that hang, by function: see hang
	// handling are the handlers' calls that have not returned, also those about to begin, by item.
	handling map[layer.ID]*call // guarded by mu
}

// New makes a worker that handles the items of q with h. The caller must Run it, or Start and Stop it. Errors:
// ErrOptions without a queue or a handler, or for HandleStage on a queue without facets; *LimitError, and those of
// layer.ReceiveOptions.Check.
func New(q *layer.Queue, h Handler, o Options) (*Worker, error) {
	w, err := newWorker(q, h, o)
	return w, wrap("new", err)
}

// newWorker is New, but its errors do not name the call.
func newWorker(q *layer.Queue, h Handler, o Options) (*Worker, error) {
	o.Concurrency = cmp.Or(o.Concurrency, DefaultConcurrency)
	o.MaxConcurrency = cmp.Or(o.MaxConcurrency, o.Concurrency)
	o.Poll = cmp.Or(o.Poll, defaultPoll)
	o.Batch = cmp.Or(o.Batch, layer.DefaultMax)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if err := checkConcurrency(o.Concurrency, o.MaxConcurrency); err != nil {
		return nil, err
	}
	if o.Poll > 0 && o.Poll < minDuration {
		return nil, tooShort("poll", o.Poll, layer.MaxWait)
	}
	if o.Timeout > 0 && o.Timeout < minDuration {
		return nil, tooShort("timeout", o.Timeout, math.MaxInt64)
	}
	receive := layer.ReceiveOptions{Max: o.Batch, MaxGroups: 1, Lease: o.Lease, Heartbeat: o.Heartbeat, Wait: o.Poll}
	if err := receive.Check(layer.Config{}); err != nil {
		return nil, err
	}
	w := &Worker{o: o, least: o.Concurrency, most: o.MaxConcurrency}
	w.left, w.handling = make(map[*call]bool), make(map[layer.ID]*call)
	w.hanging = make(map[string]int)
	w.stopping, w.done = make(chan struct{}), make(chan struct{})
	w.log = callback.Logger(o.Logger, shield, w.failing)
	for i, from := range append([]Source{{q, h, o.Where, o.Group, o.Unordered, o.Next}}, o.Also...) {
		switch {
		case from.Queue == nil:
			return nil, fmt.Errorf("%w: queue %d of the worker is nil", layer.ErrOptions, i+1)
		case from.Handler.call == nil:
			return nil, fmt.Errorf("%w: the worker has no handler for queue %q", layer.ErrOptions, from.Queue.Name())
		case from.Handler.stage && len(from.Queue.Config().Facets) == 0:
			return nil, fmt.Errorf("%w: a stage for queue %q, which has no facets", layer.ErrOptions, from.Queue.Name())
		}
		s, err := newSource(from, receive)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			s.tag = fmt.Sprintf(" of source %d", i)
		}
		w.sources = append(w.sources, s)
	}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	return w, nil
}

// Start begins to work and returns at once. The caller must Stop the worker before it closes the queues. If the worker
// was started or stopped before, Start does nothing.
func (w *Worker) Start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started || w.isStopping() {
		return
	}
	w.started = true
	taking, cancel := context.WithCancel(w.ctx)
	w.taking = taking
	for range w.least {
		w.hire()
	}
	for i, s := range w.sources {
		w.wg.Go(func() { w.sweep(s, w.random(i)) })
	}
	go w.watchClock()
	least, most := w.least, w.most
	go func() { // no line of the log is written under the mutex: its handler may ask the worker
		w.log.Info("worker started", "queues", w.names(), "concurrency", least, "max_concurrency", most)
		<-w.stopping
		cancel()
		w.log.Info("worker stops", "queues", w.names())
		w.wg.Wait()
		close(w.done)
	}()
}

// Run starts the worker and returns when it has ended. After the end of ctx it waits until every handler has finished
// its present item: at most Timeout and 5 s (with HandleCommit 15 s), and two minutes for each function of the options
// that does not return. Then it returns nil, or a *StopError if handlers are stuck. Run ends by itself with an error
// that wraps layer.ErrNoQueue or layer.ErrClosed when there is nothing left to work on, and with a *StopError that
// wraps ErrStuck when stuck handlers have ended the worker. If the database does not answer, Run waits for it no longer
// than a second after the last handler has returned, and returns ErrNoAnswer. Run waits for a database that answers but
// is slow to commit, for 10 s at most. The end of ctx does not end the handlers' contexts: for that use Start and Stop.
func (w *Worker) Run(ctx context.Context) error {
	w.Start()
	select {
	case <-ctx.Done():
	case <-w.stopping:
	}
	return w.Stop(context.WithoutCancel(ctx))
}

// stopGrace is how long Stop waits for handlers whose contexts it has ended.
const stopGrace = time.Second

// settleGrace is how long Stop waits after the last handler has returned, for a database that does not answer. It waits
// longer for one that answers: a commit may take 5 s, and each settlement has its own bound.
const settleGrace = 900 * time.Millisecond

// ErrNoAnswer: the database has not answered within a second of the end of a worker's last handler. The items that were
// handled last may be handled again. Their groups are free again when the leases expire.
var ErrNoAnswer = errors.New("the database does not answer: what was handled last may be handled again")

// drain waits until all hands have ended. Its error is the cause of ctx, or ErrNoAnswer. It asks the databases if no
// function of the options has run at two looks in a row. Nothing tells it of the end of such a function: a handler's
// commit may begin to wait for the database at any time.
func (w *Worker) drain(ctx context.Context) error {
	for quiet := false; ; { // quiet: no function of the options ran at the last look
		timer := time.NewTimer(settleGrace / 4)
		select {
		case <-w.done:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			if isClosed(w.done) {
				return nil
			}
			return context.Cause(ctx)
		case <-timer.C:
		}
		w.o.Test.Pause(ctx, "answers")
		switch {
		case w.calling():
			quiet = false
		case !quiet:
			quiet = true
		case !answer(ctx, w.sources) && !w.calling() && !isClosed(w.done) && ctx.Err() == nil:
			return ErrNoAnswer
		default:
			quiet = false
		}
	}
}

// answer reports whether the databases answer a read of each queue within half of settleGrace. It asks for all queues
// at once, because many answers one after the other may take longer.
func answer(ctx context.Context, sources []*source) bool {
	ctx, cancel := context.WithTimeout(ctx, settleGrace/2)
	defer cancel()
	answers := make(chan bool, len(sources))
	for _, s := range sources {
		go func() {
			_, _, err := s.q.Admin().Paused(ctx)
			answers <- ctx.Err() == nil && kv.Code(err) == 0
		}()
	}
	for range sources {
		select {
		case ok := <-answers:
			if !ok {
				return false
			}
		case <-ctx.Done(): // the engine may hang in a call, which no context ends
			return false
		}
	}
	return true
}

// calling reports whether a handler, or another function of the options, runs and is not stuck. A call that waits for
// the database has no such function.
func (w *Worker) calling() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.hands {
		if c := h.now.Load(); h.calling.Load() && (c == nil || !c.in.commits.Load()) {
			return true
		}
	}
	return false
}

// call notes that the hand waits for a function of the options, until the result is called.
func (h *hand) call() (over func()) {
	h.calling.Store(true)
	return func() { h.calling.Store(false) }
}

// Stop ends the worker. The worker claims no more, lets each handler finish its present item, and gives the other items
// back without counting an attempt. Stop returns when all goroutines have ended, or with ErrNoAnswer, as Run does. When
// ctx ends first, the handlers' contexts end with its cause. Handlers that return within a second give their items
// back, and then Stop returns a *StopError in any case. It wraps that cause, and names the handlers that are still
// running. Stop does not wait for stuck handlers, and names them too. Stop may be called twice, and before Start. If
// the worker has ended by itself, Stop returns the reason.
func (w *Worker) Stop(ctx context.Context) error {
	w.mu.Lock()
	w.end(nil)
	started := w.started
	w.mu.Unlock()
	if !started {
		return nil
	}
	cause := w.drain(ctx)
	forced := cause != nil && ctx.Err() != nil
	if forced {
		w.cancel(cause)
		timer := time.NewTimer(stopGrace)
		defer timer.Stop()
		select {
		case <-w.done:
		case <-timer.C:
		}
	}
	running := w.running()
	w.cancel(layer.ErrClosed) // frees the context
	if !forced {
		w.mu.Lock()
		cause = errors.Join(w.err, cause)
		w.mu.Unlock()
		if len(running) == 0 {
			return wrap("stop", cause)
		}
	}
	return &StopError{Running: running, Err: cause}
}

// end ends the worker in good order. err is the reason if Stop was not called; otherwise nil. The caller must hold the
// mutex.
func (w *Worker) end(err error) {
	if !w.isStopping() {
		w.err = err
		close(w.stopping)
		for _, h := range w.hands {
			h.dismiss()
		}
	}
}

// running is the calls of handlers that have not returned. A call that waits for the database is none.
func (w *Worker) running() (all []Running) {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := maps.Clone(w.left)
	for _, h := range w.hands {
		if c := h.now.Load(); c != nil {
			calls[c] = true
		}
	}
	for c := range calls {
		if !isClosed(c.done) && !c.in.commits.Load() {
			all = append(all, Running{Queue: c.in.source.q.Name(), ID: c.ds[0].ID, Since: c.begun})
		}
	}
	slices.SortFunc(all, func(a, b Running) int { return a.Since.Compare(b.Since) })
	return all
}

func (w *Worker) names() string {
	names := make([]string, len(w.sources))
	for i, s := range w.sources {
		names[i] = s.q.Name()
	}
	return strings.Join(names, " ")
}

func (w *Worker) isStopping() bool { return isClosed(w.stopping) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sweepEvery is how often the workers of a queue sweep, together.
const sweepEvery = 10 * time.Minute

// random returns random numbers for the sweeps of a source.
func (w *Worker) random(source int) *rand.Rand {
	seed := rand.Uint64()
	if w.o.Test != nil && w.o.Test.Seed != 0 {
		seed = w.o.Test.Seed
	}
	return rand.New(rand.NewPCG(seed, uint64(source)))
}

// sweep sweeps a queue from time to time, in turns with the workers of other processes.
func (w *Worker) sweep(s *source, random *rand.Rand) {
	for {
		timer := time.NewTimer(sweepEvery/2 + time.Duration(random.Float64()*float64(sweepEvery)))
		select {
		case <-timer.C:
			w.o.Test.Pause(w.ctx, "sweep"+s.tag)
		case <-w.taking.Done():
			timer.Stop()
			return
		}
		_, err := s.q.Admin().Sweep(w.taking, layer.SweepOptions{Every: sweepEvery})
		if err != nil && w.taking.Err() == nil {
			if isGone(err) {
				return // the next receive says it
			}
			w.report(err)
		}
	}
}

// isGone reports whether err says that the queue was dropped or its handle closed.
func isGone(err error) bool {
	return errors.Is(err, layer.ErrNoQueue) || errors.Is(err, layer.ErrClosed)
}

// HandleStage makes a handler of a function that is one stage of a pipeline. It is for a worker with a template (Where)
// on a queue with facets. h may work as long as Timeout allows, under a lease that the worker extends. It returns the
// item's next facets. The item is advanced to them, in its place, and a worker of that stage gets it. A facet that next
// does not name keeps its value. nil finishes the item.
//
// Items are advanced as Handle acks them: while h is called for the next item of the claim, several together if they
// are finished in that time, and the last of the claim in the transaction that receives the next claim. So the effect
// of h happens at least once. For an effect that happens exactly once use HandleTx or HandleCommit with
// Delivery.AdvanceTo. For a stage that handles a claim's items together use HandleBatch. An error is a failed attempt,
// as for every kind. A next that AdvanceTo refuses is one, too. New refuses a stage for a queue without facets.
func HandleStage(h func(ctx context.Context, d *Delivery) (next layer.Template, err error)) Handler {
	if h == nil {
		return Handler{}
	}
	handler := Handle(func(ctx context.Context, d *Delivery) error {
		own := d.of // d is the user's
		next, err := h(ctx, d)
		if err = own.meant(err); err != nil {
			return err
		}
		return own.AdvanceTo(next)
	})
	handler.stage = true
	return handler
}

// AdvanceTo makes the worker advance the item (see layer.Settlement.Advance) and not finish it, when the handler has
// returned nil. The advance takes the place of the ack, so with HandleTx and HandleCommit it is in the handler's
// transaction. A facet that next does not name keeps its value. The last call counts; nil finishes the item. A handler
// of HandleTx, or the second one of HandleCommit, calls AdvanceTo each time that it is called itself.
//
// Errors: *ValueError if next names no facet, or one that the queue does not have; *LimitError and ErrInvalidUTF8 for a
// value, as Enqueue's. The item has failed then, also if the handler returns nil.
func (d *Delivery) AdvanceTo(next layer.Template) error {
	d = d.of
	d.next, d.refused = maps.Clone(next), nil
	if next == nil {
		return nil
	}
	config := d.Queue.Config()
	err := config.CheckFacets(next)
	if err == nil {
		m := layer.Message{Group: d.ID.Group, Body: d.Body, Headers: maps.Clone(d.Headers)}
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		maps.Copy(m.Headers, next)
		err = m.Check()
	}
	if err != nil {
		d.refused = wrap("advance to "+next.String(), err)
	}
	return d.refused
}

// refused is the result of a call that has returned err: another error if AdvanceTo has refused the next facets of an
// item that err says is finished.
func refused(ds []*Delivery, err error) error {
	finished := ds
	if partly, ok := as[BatchError](err); ok {
		finished = ds[:min(max(partly.Done, 0), len(ds))]
	} else if err != nil {
		return err
	}
	for i, d := range finished {
		switch {
		case d.refused == nil:
		case i == 0 && err == nil:
			return d.refused
		default:
			return &BatchError{Done: i, Err: d.refused}
		}
	}
	return err
}

// advance makes a settlement advance the items of deliveries for which AdvanceTo was called, and finish the others.
func advance(s *layer.Settlement, ds ...*Delivery) {
	next := make(map[layer.ID]layer.Template)
	for _, d := range ds {
		if d.next == nil {
			s.Finish = append(s.Finish, d.ID)
			continue
		}
		next[d.ID] = d.next
		s.Advance = append(s.Advance, d.ID)
	}
	if len(next) > 0 {
		s.Change = func(id layer.ID, m *layer.Message) error {
			maps.Copy(m.Headers, next[id])
			return nil
		}
	}
}
