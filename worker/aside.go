package worker

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

// An ack waits for nothing but its own transaction. The worker does not know how long a function of its options takes:
// a limiter, a hook, the log. Such a function runs on the goroutine of the calls if the hand has an ack to make or a
// claim to keep. Unless the function returns at once, the hand acks, and it extends the claim until the function
// returns. The goroutine of the calls is also the function's shield: the hand replaces it if the function ends it or is
// stuck. A callback.Shield would do the same, but its second goroutine takes so long that no function returns at once.

// try calls one function of the options on the goroutine of the calls, while the claim of c is in flight. After an
// error, which is a *PanicError or a *StuckError, the caller must not read the variables that fn writes.
func (h *hand) try(c *call, what string, fn func()) error {
	h.startTry(c, what, fn)
	return h.tried(c, what, h.attend(c))
}

func (h *hand) startTry(c *call, what string, fn func()) {
	c.begun, c.done = time.Now(), make(chan struct{})
	h.start(c, func(ctx context.Context) error {
		h.w.o.Test.Pause(ctx, "aside")
		return callback.Try("Options."+what, fn)
	})
}

// tried is the error of a function that startTry has called. returned: the function is not stuck.
func (h *hand) tried(c *call, what string, returned bool) error {
	switch {
	case !returned:
		h.w.hang(what, func() { <-c.done })
		h.endCalls()
		return &StuckError{Since: c.begun, Stack: c.stack(), Hook: true}
	case c.exited:
		h.calls = nil
		return &callback.PanicError{What: "Options." + what, Value: callback.ErrGoexit}
	}
	return c.err
}

// try calls a function of the options that must return soon. It reports false, and tells the user, if the function has
// failed. It also reports false, and does not call the function, while another call of it hangs.
func (h *inHand) try(what string, fn func()) bool {
	if h.hand.w.hangs(what) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), callback.Patience) // the function does not see it
	defer cancel()
	err := h.hand.try(&call{in: h, ctx: ctx, cancel: h.cancel}, what, fn)
	if err != nil {
		h.hand.aside(h, func() { h.hand.w.failing(err) })
	}
	return err == nil
}

// aside calls a function of the worker while a claim is in flight. It may call functions of the options behind the
// worker's shield. The hand acks what is handled, and extends the claim, until the function has returned.
func (h *hand) aside(in *inHand, fn func()) {
	c := &call{in: in, begun: time.Now(), done: make(chan struct{}), cancel: in.cancel}
	c.ctx = context.WithoutCancel(in.ctx)
	h.start(c, func(ctx context.Context) error {
		h.w.o.Test.Pause(ctx, "aside")
		fn()
		return nil
	})
	h.attend(c)
}

// emit tells the log and a hook of an event of the claim. The hand extends the claim until both have returned, also
// while the log is asked whether the level is enabled.
func (h *inHand) emit(hook func(Event), level slog.Level, text string, event func() Event) {
	w, ctx := h.hand.w, context.Background()
	logs, known := callback.Known(w.log, level)
	logs = logs || !known
	switch {
	case hook == nil && !logs:
		return
	case h.over || h.lost || h.stale:
		w.emit(hook, level, text, event())
		return
	}
	e := event() // made here, because the hand may change the claim while the hook runs
	if logs {
		h.try("Logger", func() {
			if known || callback.Ask(ctx, w.log, level) {
				w.o.Logger.LogAttrs(ctx, level, text, e.attrs()...)
			}
		})
	}
	if hook != nil {
		h.try("Events, "+text, func() { hook(e) })
	}
}

// report reports an error that the hand has met during a call. The hand does not wait for the report. The worker does
// when it ends, unless the call was left to itself: then the worker may have ended.
func (h *inHand) report(err error) {
	w := h.hand.w
	tell := func() {
		h.test.Pause(h.ctx, "report")
		w.report(err)
	}
	if h.hand.late {
		go tell()
		return
	}
	w.wg.Go(tell)
}

// settleBefore calls one function of the options that may take long, with the context of c. If the function returns at
// once, settleBefore returns done as it is. Otherwise it settles done while the function runs, and returns nil. done
// may be nil. The error is that of hand.try.
func (h *hand) settleBefore(done *finished, c *call, what string, fn func()) (*finished, error) {
	h.startTry(c, what, fn)
	returned := true
	if runtime.Gosched(); !isClosed(c.done) {
		h.settle(done)
		done = nil
		over := h.call()
		returned = c.wait()
		over()
		h.yield("asked")
	}
	return done, h.tried(c, what, returned)
}

// wait waits for the end of a call without a claim. It reports false if the call is stuck.
func (c *call) wait() bool {
	select {
	case <-c.done:
		return true
	case <-c.ctx.Done():
	}
	timer := time.NewTimer(c.grace)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return isClosed(c.done)
	}
}

// settle settles the last ack of a claim alone, and reports an error. done may be nil.
func (h *hand) settle(done *finished) {
	if done == nil {
		return
	}
	ctx, cancel := h.w.endContext(h.ctx, done.in)
	defer cancel()
	if err := done.in.settle(ctx, done.settle, false); err != nil {
		h.failed(received{source: done.in.source, err: err}, done)
	}
}

// patience is how long the worker tries to settle a claim, from now on: until one more lease is over, and endTimeout at
// least. After the end of its own lease the claim is there until another handle takes over, and that may never happen
// in an outage.
func (h *inHand) patience() time.Duration { return max(endTimeout, max(h.left(), 0)+h.leaseTime()) }

// settle settles, and tries again after an error of the database until ctx ends. Otherwise the item would be handled
// again. unknown says that an attempt before may have settled: see settledBefore.
func (h *inHand) settle(ctx context.Context, s layer.Settlement, unknown bool) error {
	for pause := firstWait; ; pause = min(2*pause, time.Second) {
		err := h.source.q.Settle(ctx, s)
		if unknown && (errors.Is(err, layer.ErrClaimLost) || errors.Is(err, layer.ErrNotInClaim)) {
			err = h.settledBefore(ctx, s, err)
		}
		unknown = unknown || kv.MaybeCommitted(err)
		if !mayPass(err) || ctx.Err() != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			h.test.Pause(ctx, "settle again")
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// settledBefore returns nil if an attempt of unknown outcome has settled. refused is the error of a later attempt: the
// claim is lost, or an item is not in the claim any more. If the claim is lost, and an item that was to be finished is
// still in the queue, no attempt has settled: another holder has the item. After a nack the items stay in the queue, so
// settledBefore cannot tell, and takes the claim for ended by the nack.
func (h *inHand) settledBefore(ctx context.Context, s layer.Settlement, refused error) error {
	id, ok := finishes(s)
	if !ok || !errors.Is(refused, layer.ErrClaimLost) {
		return nil
	}
	h.test.Pause(ctx, "refused") // two calls may have shared the transaction
	why, err := h.source.q.Admin().Why(ctx, id, nil)
	if err != nil || why.Reasons[0].Cause == layer.CauseGone {
		return err
	}
	return refused
}

// finishes returns an item that the settlement finishes. ok is false if there is none.
func finishes(s layer.Settlement) (id layer.ID, ok bool) {
	if len(s.Finish) > 0 {
		return s.Finish[0], true
	}
	for _, item := range s.Claim.Items {
		if s.FinishAll && !slices.Contains(s.Advance, item.ID) {
			return item.ID, true
		}
	}
	return id, false
}

// mayPass reports whether a settlement that has failed with err may succeed next time: the database has failed, and is
// not closed.
func mayPass(err error) bool { return kv.Code(err) != 0 && !isGone(err) }
