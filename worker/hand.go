package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/layer"
)

// firstWait is the pause after an error; it doubles.
const firstWait = 5 * time.Millisecond

// endTimeout bounds the transactions of a worker that is stopped, also if it is stopped by force.
const endTimeout = 10 * time.Second

// stuckAfter is the time after the end of its context at which a handler counts as stuck.
const stuckAfter = 5 * time.Second

// hand is one of a worker's goroutines: it has at most one claim at a time, and calls handlers on goroutines of their
// own, one after the other.
type hand struct {
	w   *Worker
	ctx context.Context
	may bool // the limiter was waited for, and no item has been handled since
	// late: it does what follows from a call that was left to itself (finishLate), and the worker does not wait for it.
	late bool
	// calls leads to the goroutine that calls the handlers; nil = there is none.
	calls chan func(goroutine *string)
	now   atomic.Pointer[call] // the handler's call; nil = there is none
	// calling: the hand waits for a function of the options.
	calling atomic.Bool

	staying context.Context    // ends when the hand is to end
	dismiss context.CancelFunc // makes the hand end when it has nothing in flight; called under the worker's mutex
	leaving <-chan struct{}    // closed when the hand is to end
	busy    bool               // guarded by the worker's mutex: a claim is in flight

	// Of a hand of a worker with several queues: see several.go.
	number int // of the hand
	asked  map[*source]*asking
	wake   chan struct{} // has a token if got has been set, or a receive has ended
	wants  bool          // guarded by the worker's mutex: the hand waits for a claim
	got    received      // guarded by the worker's mutex: the claim for which it has waited
}

// yield lets a simulation decide when the goroutine that was woken continues.
func (h *hand) yield(what string) { h.w.o.Test.Pause(h.ctx, what) }

// loop runs until the hand is to end: the worker stops, or has more hands than it needs. A claim that was handled to
// its end is acked in the transaction that receives the next, if possible.
func (h *hand) loop() {
	w, returns := h.w, false
	defer func() { w.ended(h, returns) }()
	defer h.endCalls()
	var done *finished
	for pause, vain := firstWait, 0; ; {
		h.yield("loop")
		if isClosed(h.leaving) || w.spare(h, vain) {
			break
		}
		if done = h.admit(done); isClosed(h.leaving) {
			break
		}
		r := h.next(done)
		h.yield("received")
		was := done
		done = nil
		switch {
		case len(r.claims) > 0:
			pause, vain = firstWait, 0
			w.setBusy(h, true)
			done = h.work(r)
			w.setBusy(h, false)
		case r.err != nil:
			h.failed(r, was)
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-h.leaving:
				timer.Stop()
			}
			pause = min(2*pause, time.Second)
		default:
			vain++
		}
	}
	if done != nil {
		h.settle(done)
	}
	returns = true
}

// start runs a call on the goroutine of the hand's calls. One goroutine makes all calls, until a call has ended the
// goroutine or is stuck.
func (h *hand) start(c *call, fn func(ctx context.Context) error) {
	if h.calls == nil {
		calls := make(chan func(*string))
		h.calls = calls
		go func() {
			id := callback.GoroutineID()
			for call := range calls {
				call(&id)
			}
		}()
	}
	h.calls <- func(goroutine *string) {
		c.goroutine.Store(goroutine)
		c.run(fn)
	}
}

// endCalls ends the goroutine of the hand's calls, after the call that it may be running.
func (h *hand) endCalls() {
	if h.calls != nil {
		close(h.calls)
		h.calls = nil
	}
}

// admit waits for the limiter, for the first item of a claim, until the hand is to end. If the limiter does not return
// at once, admit settles done in that time. It returns what is left to settle: done or nil.
func (h *hand) admit(done *finished) *finished {
	if h.w.o.Limiter == nil || h.may {
		return done
	}
	var waited error
	done, err := h.settleBefore(done, &call{ctx: h.staying, grace: stuckAfter}, "Limiter", func() {
		waited = callback.Sound(h.w.o.Limiter.Wait(h.staying))
	})
	failed := err != nil
	if !failed {
		err = waited
	}
	if err != nil {
		h.settle(done)
		done = nil
		over := h.call()
		h.w.limitFailed(h.staying, failed, err)
		over()
	}
	h.may = h.staying.Err() == nil
	return done
}

// limiterPause is the wait after a limiter has failed to wait.
const limiterPause = time.Second

// limitFailed reports an error of the limiter. If the limiter itself has failed (see try), it reports that, and waits
// for limiterPause in the limiter's place.
func (w *Worker) limitFailed(ctx context.Context, failed bool, err error) {
	switch {
	case failed:
		w.failing(err)
		select {
		case <-time.After(limiterPause):
		case <-ctx.Done():
		}
	case ctx.Err() == nil:
		w.report(wrap("limiter", err))
	}
}

// failed is called when a receive has failed, or the ack that travelled with it.
func (h *hand) failed(r received, done *finished) {
	w := h.w
	switch {
	case isGone(r.err):
		if !w.leave(r.source, r.err) {
			return
		}
		e := Event{Queue: r.source.q.Name(), Err: r.err}
		w.emit(w.o.Events.Gone, slog.LevelError, "worker: queue is gone", e)
		w.told(r.err)
	case errors.Is(r.err, layer.ErrClaimLost) && done != nil:
		e := done.in.event()
		e.Err = r.err
		w.tellLost(done.in, e)
	default:
		w.report(r.err)
	}
}

// endContext is the context of a settlement. It lasts as long as the claim's patience, but no longer than endTimeout
// after the worker is stopped.
func (w *Worker) endContext(of context.Context, in *inHand) (context.Context, context.CancelFunc) {
	ctx, free := w.inTime(context.WithoutCancel(of))
	ctx, cancel := context.WithTimeout(ctx, in.patience())
	return ctx, func() {
		cancel()
		free()
	}
}

// inTime returns a context that ends with of, and endTimeout after the worker is stopped.
func (w *Worker) inTime(of context.Context) (ctx context.Context, free func()) {
	ctx, cancel := context.WithCancelCause(of)
	stop := endAfter(ctx, w.taking, func() { cancel(ErrNoAnswer) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// endAfter calls cancel endTimeout after the end of the context of, unless ctx ends before, or stop is called before of
// has ended.
func endAfter(ctx, of context.Context, cancel func()) (stop func() bool) {
	return context.AfterFunc(of, func() {
		timer := time.AfterFunc(endTimeout, cancel)
		context.AfterFunc(ctx, func() { timer.Stop() })
	})
}

// work handles a claim's items in order. It ends the claim, or returns the ack that ends it.
func (h *hand) work(r received) *finished {
	w, in := h.w, r.in
	if in == nil {
		in = h.newInHand(r)
	}
	in.hand = h
	defer in.cancel(nil)
	if w.isBusy(in.claim.Items[0].ID) {
		w.keepOff(h.ctx, in)
		return nil
	}
	in.emit(w.o.Events.Received, slog.LevelDebug, "worker: received", in.event)
	if in.claim.TakenFrom != "" {
		in.emit(w.o.Events.TakenOver, slog.LevelWarn, "worker: taken over, the lease had ended", func() Event {
			e := in.event()
			e.Owner, e.Attempt = in.claim.TakenFrom, in.claim.Items[0].Attempts+1
			return e
		})
	}
	for {
		if h.ctx.Err() != nil || w.isStopping() {
			w.giveBack(h.ctx, in, nil, nil)
			return nil
		}
		c := h.newCall(in)
		if len(c.ds) == 0 {
			w.keepOff(h.ctx, in)
			return nil
		}
		if !h.prepare(c) {
			w.tellUncalled(c, w.giveBack(h.ctx, in, nil, nil))
			return nil
		}
		if !h.perform(c) {
			return nil // the call is stuck: finishLate settles if it returns
		}
		done, more := w.conclude(h.ctx, c)
		if !more {
			return done
		}
	}
}

// call is one call of a handler, or a call of functions of the options while a claim is in flight.
type call struct {
	in    *inHand
	ds    []*Delivery
	begun time.Time
	grace time.Duration // it is stuck if it has not returned so long after the end of its context

	ctx       context.Context
	cancel    context.CancelCauseFunc
	goroutine atomic.Pointer[string] // its number
	done      chan struct{}          // closed when it has ended, and err is there
	err       error
	exited    bool // it has ended its goroutine
	halved    bool // it has failed, and the next call is given half as many messages
	gone      bool // the claim is another's, as an extension during the call has found
	// met has a token if there is a sign that the claim is lost, although its lease lasts. doubt: the hand has seen the
	// sign, and extends the claim to find out.
	met   chan struct{}
	doubt bool
}

// newCall makes the deliveries of the next call: one item, or for HandleBatch the rest of the claim or its first half
// (halve.go). They end before an item for which a handler still runs in this worker, so there may be none.
func (h *hand) newCall(in *inHand) *call {
	items := in.batch()
	if !in.source.handler.batch {
		items = items[:1]
	}
	c := &call{in: in, grace: stuckAfter, met: make(chan struct{}, 1)}
	for _, item := range h.w.reserve(c, items) {
		d := &Delivery{Item: item, Queue: in.source.q, Token: in.claim.Token, Attempt: item.Attempts + 1, in: in}
		d.of, d.was, d.known = d, in.claim.State, in.stateKnown
		c.ds = append(c.ds, d)
	}
	return c
}

// prepare waits for the limiter, and tells the hooks. It reports false if there is no more to do for this claim.
func (h *hand) prepare(c *call) (ok bool) {
	defer func() {
		if !ok {
			h.w.returns(c) // also if a function of the user's ends the goroutine
		}
	}()
	return h.limit(c) && h.ready(c)
}

// ready tells the hooks that the handler is about to be called. It reports false if there is no more to do for this
// claim.
func (h *hand) ready(c *call) bool {
	if !h.holds(c) {
		return false // and the hooks hear of no call
	}
	c.begun = time.Now()
	for _, d := range c.ds {
		c.in.emit(h.w.o.Events.Started, slog.LevelDebug, "worker: started", func() Event { return c.event(d) })
	}
	return h.holds(c)
}

// tellUncalled tells the hooks that the call of which Started has told is not made: the claim has ended during a slow
// hook. follows is what has become of the items. If the claim is another's, the hooks know it from Lost.
func (w *Worker) tellUncalled(c *call, follows layer.Follows) {
	if c.begun.IsZero() || c.in.told {
		return
	}
	c.in.emit(w.o.Events.Failed, slog.LevelWarn, "worker: handler not called", func() Event {
		e := c.event(c.ds[0])
		e.Err, e.Follows = ErrUncalled, follows
		if cause := context.Cause(c.in.ctx); cause != nil {
			e.Err = fmt.Errorf("%w: %w", ErrUncalled, cause)
		}
		return e
	})
}

// ErrUncalled: the claim has ended between Events.Started and the call of the handler. Only Events.Failed gets it.
var ErrUncalled = errors.New("the handler was not called")

// holds extends the claim if a slow answer of the database, or a slow hook, has left too little of its lease, or if
// there is a sign that the claim is lost. It reports false if there is no more to do for this claim.
func (h *hand) holds(c *call) bool {
	in := c.in
	if c.isMet() || !in.beats() && in.left() < in.leaseTime()/3 {
		h.w.awaitAck(h.ctx, in)
		h.extendFirst(in)
	}
	return in.ctx.Err() == nil && !in.lost && !in.stale
}

// limit waits for the limiter, for each item that it was not waited for. It reports false if there is no more to do
// for this claim.
func (h *hand) limit(c *call) bool {
	n := len(c.ds)
	if h.may {
		h.may = false
		n--
	}
	if h.w.o.Limiter == nil || n == 0 {
		return true
	}
	ctx, cancel := context.WithCancelCause(h.w.named(h.w.taking, h.number))
	defer cancel(nil)
	for range n {
		var waited error
		wait := &call{in: c.in, ctx: ctx, cancel: cancel, grace: stuckAfter}
		err := h.try(wait, "Limiter", func() { waited = callback.Sound(h.w.o.Limiter.Wait(ctx)) })
		failed := err != nil
		if !failed {
			err = waited
		}
		if err != nil {
			h.aside(c.in, func() { h.w.limitFailed(ctx, failed, err) })
		}
		if ctx.Err() != nil || c.in.lost || c.in.ctx.Err() != nil {
			return false // the other items of a batch need no wait
		}
	}
	return true
}

// perform calls the handler. It reports false if the call is stuck, and was left behind.
func (h *hand) perform(c *call) bool {
	w := h.w
	cancel := context.CancelFunc(nil)
	if w.o.Timeout > 0 {
		cause := &timeoutError{w.o.Timeout, "the handler"}
		c.ctx, cancel = context.WithTimeoutCause(c.in.ctx, w.o.Timeout, cause)
	} else {
		c.ctx, cancel = context.WithCancel(c.in.ctx)
	}
	defer cancel()
	c.begun, c.done, c.cancel = time.Now(), make(chan struct{}), c.in.cancel
	h.now.Store(c)
	defer h.now.Store(nil)
	h.start(c, func(ctx context.Context) error {
		defer w.returns(c)
		w.o.Test.Pause(ctx, "call")
		return refused(c.ds, sound(c.in.source.handler.call(ctx, c.ds)))
	})
	if !h.attend(c) {
		h.endCalls()
		return false
	}
	if c.exited {
		h.calls = nil
	}
	return true
}

// run calls fn; a panic becomes an error, with its stack. Methods of the value of the panic may end the goroutine, too.
func (c *call) run(fn func(ctx context.Context) error) {
	c.err, c.exited = callback.ErrGoexit, true // unless the rest says otherwise
	defer close(c.done)
	defer func() {
		if r := recover(); r != nil {
			c.err, c.exited = fmt.Errorf("panic: %v\n%s", r, debug.Stack()), false
		}
	}()
	c.err = sound(fn(c.ctx))
	c.exited = false
}

// attend waits for the end of a call. It extends the claim each time that a third of the rest of its lease has passed,
// and ends the handlers' context when the lease ends. A handler that ignores the end of its context does not keep the
// claim; a function of the options does, because the items still have to be given back. attend reports false if the
// call is stuck, and was left to itself.
func (h *hand) attend(c *call) bool {
	in, ended := c.in, c.ctx.Done()
	var stopping <-chan struct{} // nil = the end of the worker makes no difference
	var giveUp time.Time         // zero = the context has not ended
	var bound time.Time          // until then the call may wait for the database
	waited := false              // when the hand looked last, it had a reason to last longer
	told := false                // that it is stuck
	// A call that returns at once needs neither a timer nor, before it, an ack of its own.
	if runtime.Gosched(); isClosed(c.done) {
		return true
	}
	defer h.call()()
	h.w.beginAck(h.ctx, in)
	due, lapses := in.deadlines()
	for {
		keeps := giveUp.IsZero() || c.ds == nil
		if keeps && c.doubt {
			h.beginExtend(c)
		}
		next := giveUp
		if keeps && (giveUp.IsZero() || due.Before(giveUp)) {
			next = due
		}
		if !in.lapsed && lapses.Before(next) {
			next = lapses
		}
		c.pause(next, ended, stopping)
		h.yield("attend")
		c.doubt = c.isMet() || c.doubt
		now := time.Now()
		switch {
		case isClosed(c.done):
			in.lost = in.lost || c.gone
			return true
		case isClosed(in.acking.over()):
			if h.w.endAck(in); in.lost {
				c.cancel(fmt.Errorf("%w: group %q, token %d", layer.ErrClaimLost, in.claim.Group, in.claim.Token))
			}
			h.w.beginAck(h.ctx, in)
		case isClosed(in.extending.over()):
			h.endExtend(c)
			due, lapses = in.deadlines()
		case ended != nil && c.ctx.Err() != nil:
			ended, giveUp, bound = nil, now.Add(c.grace), now.Add(endTimeout+stuckAfter)
		case in.beat.Load() != nil && !in.beats():
			// Others have ended the handle's heartbeat, or it has begun a new one. From now on the claim has a lease of
			// its own.
			in.noBeat()
			if keeps {
				h.beginExtend(c)
			}
			due, lapses = in.deadlines()
		case !in.lapsed && !now.Before(lapses):
			switch _, lapses = in.deadlines(); {
			case now.Before(lapses):
			case in.settled():
				lapses = now.Add(time.Hour) // there is nothing to lose
			case in.commits.Load():
				lapses = now.Add(leaseMargin)
			default:
				in.lapse(giveUp.IsZero())
			}
		case !giveUp.IsZero() && (!now.Before(giveUp) || stopping != nil && isClosed(stopping)):
			if c.ds == nil {
				return false
			}
			// The second look is for a call that has just come back from the database and is about to return.
			had := waited
			waited = (in.commits.Load() || in.outlives.Load()) && now.Before(bound) // see outlive
			if waited || had {
				giveUp = now.Add(time.Second)
				continue
			}
			h.loosen(c)
			if h.ctx.Err() == nil && h.leave(c, !told) {
				return false
			}
			giveUp, told, stopping = now.Add(stuckAfter), true, h.w.stopping
			if isClosed(stopping) {
				stopping = nil
			}
		case keeps && !now.Before(due):
			h.beginExtend(c)
			due, _ = in.deadlines()
		}
	}
}

// pause returns when there is something to do for a call: at the time next, or when a channel says so.
func (c *call) pause(next time.Time, ended, stopping <-chan struct{}) {
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-c.done:
	case <-ended:
	case <-stopping:
	case <-c.in.acking.over():
	case <-c.in.extending.over():
	case <-c.in.stopped():
	case <-c.met:
		c.meet() // for isMet
	case <-timer.C:
	}
}

// loosen replaces the heartbeat of a stuck call's claim with a lease that is not extended. Otherwise the group would be
// held for as long as the process lives. If that fails, the handle begins a new heartbeat.
func (h *hand) loosen(c *call) {
	in := c.in
	if !in.beats() {
		return
	}
	in.noBeat()
	same := *in.as // the call may have a transaction open, which may be about to end the claim
	ctx := h.w.o.Test.Named(h.ctx, "lease of %s under %d", c.ds[0].ID, same.Token)
	h.w.wg.Go(func() {
		h.w.o.Test.Pause(ctx, "loosen")
		if _, err := in.source.q.Extend(ctx, &same, 0); err != nil && ctx.Err() == nil && !lostBy(err) {
			h.w.report(err)
		}
	})
}

// conclude does what follows from a call that has ended. It returns the ack that ends the claim, if there is one to
// travel with the next receive; more says that there are items left to handle.
func (w *Worker) conclude(ctx context.Context, c *call) (done *finished, more bool) {
	in, err := c.in, timedOut(c.ctx, c.err)
	in.learn(c.ds)
	handled := 0
	if partly, ok := as[BatchError](err); err == nil {
		handled = len(c.ds)
	} else if ok && in.source.handler.batch {
		handled = min(max(partly.Done, 0), len(c.ds)-1)
	}
	if c.ds[0].acked {
		handled = 1
		if err != nil {
			in.hand.aside(in, func() { w.failure(c, c.ds[0], err, layer.Settled{}) })
		}
	}
	failed := c.ds[0]
	if err != nil {
		failed = c.ds[min(handled, len(c.ds)-1)]
	}
	switch {
	case in.lost:
		w.tellDone(c, handled)
		e := c.event(failed)
		e.Err = err
		w.tellLost(in, e)
		return nil, false
	case in.stale:
		w.tellDone(c, handled)
		if err != nil {
			w.failure(c, failed, err, layer.Settled{Follows: layer.FollowsUnknown})
		}
		return nil, false
	case err != nil && w.halves(c, err):
		return nil, true
	case handled < len(c.ds):
		w.giveBack(ctx, in, c, err)
		w.tellDone(c, handled)
		return nil, false
	case c.ds[0].acked, in.over:
		if w.tellDone(c, handled); in.lost { // found by an extension that began during a slow hook
			w.tellLost(in, in.event())
		}
		return nil, !in.over && !in.lost
	}
	in.handled = append(in.handled, c.ds...)
	w.tellDone(c, handled)
	return w.ack(ctx, in, c.ds)
}

// tellDone tells the hooks that the first n deliveries of a call are handled, and reports a slip of the handler. If a
// hook is slow the hand acks before the hook returns.
func (w *Worker) tellDone(c *call, n int) {
	if c.ds[0].slip != nil {
		c.in.hand.aside(c.in, func() { w.tellSlip(c) })
	}
	for _, d := range c.ds[:n] {
		c.in.emit(w.o.Events.Done, slog.LevelDebug, "worker: done", func() Event { return c.event(d) })
	}
}

// tellSlip tells of an error that a handler has returned although it has finished its items: see Handler and
// BatchError.
func (w *Worker) tellSlip(c *call) {
	d := c.ds[0]
	err := &HandlerError{ID: d.ID, Err: d.slip}
	w.log.Error("worker: wrong result of a handler", "queue", d.Queue.Name(), "error", err)
	w.told(err)
}

// tellLost reports, once, that another holder has the claim. OnError hears of each claim once, so it hears nothing here
// if it knows that the lease has ended.
func (w *Worker) tellLost(in *inHand, e Event) {
	if in.told {
		return
	}
	in.told = true
	w.emit(w.o.Events.Lost, slog.LevelWarn, "worker: claim lost", e)
	if !in.warned {
		w.told(fmt.Errorf("%w: group %q, token %d", layer.ErrClaimLost, in.claim.Group, in.claim.Token))
	}
}

// unsettled tells of the error of a settlement by which a claim was to end; nil = it has ended.
func (w *Worker) unsettled(in *inHand, err error) {
	switch {
	case errors.Is(err, layer.ErrClaimLost):
		w.tellLost(in, in.event())
	case !isGone(err):
		w.report(err)
	}
}

// settlement is the ack of deliveries, with the state that they have set. Its claim is a copy, because Settle changes a
// claim and may run at the same time as the hand.
func (h *inHand) settlement(ds []*Delivery) layer.Settlement {
	view := *h.claim
	s := layer.Settlement{Claim: &view, Finish: []layer.ID{}}
	advance(&s, ds...)
	before := h.claim.State
	for _, d := range ds {
		switch {
		case !d.sets:
		case h.stateKnown && bytes.Equal(before, d.state):
			s.State = nil
		default:
			s.State = &d.state
		}
	}
	return s
}

// ack acks the handled items. It returns the last ack of a claim, for the transaction of the next receive, because no
// handler is called before that. An earlier ack is sent while the handler runs for the next item. Items that are
// finished in that time share the ack that follows. If the next handler may read the effect of an ack in the database,
// that ack is awaited first.
func (w *Worker) ack(of context.Context, in *inHand, ds []*Delivery) (done *finished, more bool) {
	last := len(in.unhandled()) == 0
	sets := slices.ContainsFunc(ds, func(d *Delivery) bool { return d.sets })
	if !last && !in.source.handler.inTx && !sets {
		return nil, true
	}
	w.awaitAck(of, in)
	switch {
	case in.lost: // found by an ack that began during a slow hook
		w.tellLost(in, in.event())
		return nil, false
	case in.over:
		return nil, false // a hook was slow
	case last && !in.stale:
		s := in.settlement(in.handled)
		s.Finish, s.FinishAll = nil, true
		return &finished{in, s}, false
	}
	w.beginAck(of, in)
	w.awaitAck(of, in)
	return nil, !in.lost && !in.stale
}

// beginAck begins to ack what was handled, unless an ack is under way.
func (w *Worker) beginAck(of context.Context, in *inHand) {
	if in.acking != nil || len(in.handled) == 0 || in.lost || in.stale {
		return
	}
	a := &underWay{ds: slices.Clone(in.handled), ended: make(chan struct{})}
	in.acking = a
	s := in.settlement(a.ds)
	ctx, cancel := w.endContext(of, in)
	ctx = w.o.Test.Named(ctx, "ack of %s under %d", a.ds[0].ID, a.ds[0].Token)
	a.err = callback.ErrGoexit // until Settle has returned
	go func() {
		defer cancel()
		defer close(a.ended)
		w.o.Test.Pause(ctx, "ack")
		a.err = in.settle(ctx, s, false)
		w.o.Test.Pause(ctx, "acked")
	}()
}

// awaitAck waits for the ack under way, if there is one.
func (w *Worker) awaitAck(of context.Context, in *inHand) {
	if in.acking == nil {
		return
	}
	<-in.acking.ended
	w.o.Test.Pause(of, "awaited")
	w.endAck(in)
	if in.lost {
		w.tellLost(in, in.event())
	}
}

// endAck does what follows from an ack that has ended.
func (w *Worker) endAck(in *inHand) {
	a := in.acking
	in.acking = nil
	switch {
	case errors.Is(a.err, layer.ErrClaimLost):
		in.lost = true
		return
	case a.err != nil:
		in.stale = true
		in.report(a.err)
		return
	}
	for _, d := range a.ds {
		in.acked(d)
	}
	in.handled = in.handled[len(a.ds):]
}

// failure tells of a failed call. then says what has become of the item d, as far as that is known.
func (w *Worker) failure(c *call, d *Delivery, err error, then layer.Settled) {
	e := c.event(d)
	e.Err, e.Follows, e.Waits = err, then.Follows, then.Waits
	w.emit(w.o.Events.Failed, slog.LevelWarn, "worker: failed", e)
	if e.Follows == layer.FollowsDeadLetter {
		w.emit(w.o.Events.DeadLettered, slog.LevelError, "worker: dead letter", e)
	}
	w.told(&HandlerError{ID: d.ID, Err: err})
}

// giveBack acks the handled items of a claim, and returns the rest. If c is nil, no attempt counts. Otherwise the next
// item has failed, and counts an attempt. It counts none if the worker was stopped by force, the call was cut off
// (cutOff), the database was the cause (spared), or the handler says so (RetryError.Uncounted). follows is what has
// become of that item, or of the first item.
func (w *Worker) giveBack(of context.Context, in *inHand, c *call, failed error) (follows layer.Follows) {
	o, n := layer.NackOptions{Release: true, Delay: in.keptOff}, 0
	partly, batch := as[BatchError](failed)
	if batch = batch && c != nil && in.source.handler.batch; batch {
		n = min(max(partly.Done, 0), len(c.ds)-1)
		if partly.Err != nil {
			failed = timedOut(c.ctx, partly.Err)
		}
	}
	if c != nil && w.ctx.Err() == nil && !c.cutOff(failed) {
		if !c.ds[n].spared {
			w.judge(&o, c.ds[n], failed)
		}
		// Groups that are always returned without a delay must not always come before all others. A claim of a single
		// item has no place in the line.
		o.Behind = o.Release && o.Delay == 0 && in.as.Hold == (layer.ID{})
	}
	if w.awaitAck(of, in); in.lost || in.stale {
		if c != nil {
			w.failure(c, c.ds[n], failed, layer.Settled{Follows: layer.FollowsUnknown})
		}
		if in.lost {
			w.tellLost(in, in.event())
		}
		return layer.FollowsUnknown
	}
	done := slices.Clone(in.handled)
	if batch {
		done = append(done, c.ds[:n]...)
	}
	settled := layer.Settled{Follows: layer.FollowsUnknown} // until a settlement has succeeded
	given := in.settlement(done)
	given.Nack, given.Result = &o, &settled
	ctx, cancel := w.endContext(of, in)
	defer cancel()
	err := error(nil)
	if c != nil && c.ds[n].unknown && !o.Release {
		err = in.leaveAlone(ctx)
	}
	if err == nil {
		err = in.settle(ctx, given, false)
	}
	in.over = true // there is no lease to keep
	w.o.Test.Pause(of, "given back")
	settled.Follows = cmp.Or(settled.Follows, layer.FollowsRelease)
	if c != nil {
		w.failure(c, c.ds[n], failed, settled)
	}
	if c != nil && c.ds[n].unknown && errors.Is(err, layer.ErrClaimLost) {
		err = in.settledBefore(ctx, in.settlement(c.ds[n:n+1]), err) // the handler's commit may have been applied
	}
	w.unsettled(in, err)
	return settled.Follows
}

// leaveAlone gives back the items behind the first one, before a failed attempt of the first one is counted. The
// handler's commit may still land. Then the first one is gone, and the attempt would count for the item behind it.
func (h *inHand) leaveAlone(ctx context.Context) error {
	items := h.unhandled()
	if len(items) < 2 {
		return nil
	}
	behind := h.settlement(nil)
	behind.Nack = &layer.NackOptions{Release: true, From: &items[1].ID}
	return h.settle(ctx, behind, false)
}

// judge says how an item is given back that has failed.
func (w *Worker) judge(o *layer.NackOptions, d *Delivery, failed error) {
	o.Release, o.Delay, o.Err = false, 0, failed
	retry, again := as[RetryError](failed)
	rejected, never := as[RejectError](failed)
	switch {
	case never:
		o.Reject, o.Err = cmp.Or(rejected.Reason, "rejected by the handler"), rejected.Err
	case again && retry.Uncounted:
		o.Release, o.Delay, o.Err = true, min(max(retry.After, 0), layer.MaxDelay), nil
	case again && retry.After > 0:
		o.Delay, o.Err = min(retry.After, layer.MaxDelay), retry.Err
	case w.o.RetryDelay != nil:
		var delay time.Duration
		if d.in.try("RetryDelay", func() { delay = w.o.RetryDelay(d.Attempt, failed) }) {
			o.Delay = min(max(delay, 0), layer.MaxDelay)
			o.AtOnce = o.Delay == 0
		}
	}
}

// vainReceives is how many receives in a row that get nothing end a hand beyond the least number.
const vainReceives = 3

func checkConcurrency(least, most int) error {
	if least < 1 || least > maxConcurrency {
		return &layer.LimitError{
			What: "concurrency", Unit: "goroutines", Got: int64(least), Min: 1, Max: maxConcurrency,
		}
	}
	if most < least || most > maxConcurrency {
		return &layer.LimitError{
			What: "max concurrency", Unit: "goroutines", Got: int64(most), Min: int64(least), Max: maxConcurrency,
		}
	}
	return nil
}

// SetConcurrency changes how many goroutines the worker has at least and at most, from now on: see Options. If most is
// 0, least is also the most. Before Start it sets the number with which the worker starts. Goroutines beyond most end
// at once if they have no group in flight, and otherwise with the claim. After Stop it changes nothing.
//
// Errors: *LimitError unless 1 <= least <= most <= 10,000; nothing has changed then.
func (w *Worker) SetConcurrency(least, most int) error {
	most = cmp.Or(most, least)
	if err := checkConcurrency(least, most); err != nil {
		return wrap("set concurrency", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.least, w.most = least, most
	if !w.started || w.isStopping() {
		return nil
	}
	all, _ := w.staying()
	for range w.least - all {
		w.hire()
	}
	for _, busy := range []bool{false, true} {
		for _, h := range w.hands {
			if all, _ := w.staying(); all > w.most && h.busy == busy {
				h.dismiss()
			}
		}
	}
	w.grow()
	return nil
}

// Hands is how many goroutines a worker has.
type Hands struct {
	All  int // that have not ended
	Idle int // without a group in flight: they wait for one, for the limiter, or for the end of a receive or of an ack
	// Ended: the worker has ended, or was stopped before Start. It will have no goroutine again.
	Ended bool
}

// Hands returns how many goroutines the worker has at this moment. If some are always idle while messages wait, there
// are fewer ready groups than goroutines, and more goroutines do not help. There are none before Start. After a Stop by
// force those that still run count.
func (w *Worker) Hands() Hands {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := Hands{All: len(w.hands), Ended: isClosed(w.done) || !w.started && w.isStopping()}
	for _, h := range w.hands {
		if !h.busy {
			all.Idle++
		}
	}
	return all
}

// named is ctx with the name of a hand.
func (w *Worker) named(ctx context.Context, hand int) context.Context {
	if w.o.Test == nil {
		return ctx
	}
	return w.o.Test.Named(ctx, "worker %d.%d", w.o.Test.Seed, hand)
}

// hire begins another hand. The mutex is held.
func (w *Worker) hire() {
	h := &hand{
		w: w, ctx: w.named(w.ctx, w.begun), number: w.begun,
		asked: make(map[*source]*asking), wake: make(chan struct{}, 1),
	}
	h.staying, h.dismiss = context.WithCancel(w.named(w.taking, w.begun))
	h.leaving = h.staying.Done()
	w.begun++
	w.hands = append(w.hands, h)
	w.wg.Go(h.loop)
}

// ended removes a hand from the worker. If the hand has not returned, a clock of the queue's handle has ended its
// goroutine (runtime.Goexit), and another hand takes its place.
func (w *Worker) ended(h *hand, returns bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hands = slices.DeleteFunc(w.hands, func(o *hand) bool { return o == h })
	if !returns && !isClosed(h.leaving) {
		w.hire()
	}
}

// staying returns how many hands are not to end, and how many of these have nothing in flight. The mutex is held.
func (w *Worker) staying() (all, idle int) {
	for _, h := range w.hands {
		if isClosed(h.leaving) {
			continue
		}
		if all++; !h.busy {
			idle++
		}
	}
	return all, idle
}

// grow starts another hand if all are busy, so that one always waits for new groups. The caller must hold the mutex.
func (w *Worker) grow() {
	if all, idle := w.staying(); !w.isStopping() && idle == 0 && all < w.most {
		w.hire()
	}
}

// setBusy notes whether a hand has a claim. If all hands have one now, another begins.
func (w *Worker) setBusy(h *hand, busy bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.busy = busy; busy {
		w.grow()
	}
}

// spare dismisses a hand whose last receives, so many in a row, got nothing, if there are enough hands without it. It
// reports whether it has.
func (w *Worker) spare(h *hand, vain int) bool {
	if vain < vainReceives {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if all, idle := w.staying(); all <= w.least || idle < 2 || isClosed(h.leaving) {
		return false
	}
	h.dismiss()
	return true
}
