package worker

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// An ack waits for nothing but its own transaction. The worker does not know how long a function of its options takes:
// a limiter, a hook, the log. Such a function runs on the goroutine of the calls if the hand has an ack to make or a
// claim to keep. Unless the function returns at once, the hand acks, and it extends the claim until the function
// returns.

// aside calls a function of the options while a claim is in flight. The hand acks what is handled, and extends the
// claim, until the function has returned. It reports false if the function is stuck: then the hand continues without
// the function.
func (h *hand) aside(in *inHand, fn func()) bool {
	c := &call{in: in, hook: true, begun: time.Now(), done: make(chan struct{}), cancel: in.cancel}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(in.ctx), hookTimeout) // the function does not see it
	defer cancel()
	c.ctx = ctx
	h.start(c, func(ctx context.Context) error {
		h.w.o.Test.Pause(ctx, "aside")
		fn()
		return nil
	})
	if !h.attend(c) {
		h.endCalls()
		return false
	}
	h.over(c)
	return true
}

// emit tells the log and a hook of an event of the claim. The hand extends the claim until both
// have returned.
func (h *inHand) emit(hook func(Event), level slog.Level, text string, event func() Event) {
	w := h.hand.w
	switch {
	case hook == nil && !w.log.Enabled(context.Background(), level):
	case h.over || h.lost || h.stale:
		w.emit(hook, level, text, event)
	default:
		e := event() // here: a function that is left alone must not read what the hand goes on with
		h.hand.aside(h, func() { w.emit(hook, level, text, func() Event { return e }) })
	}
}

// report reports an error that the hand has met while it keeps the claim: it does not wait for the report.
func (h *inHand) report(err error) {
	w := h.hand.w
	w.wg.Go(func() {
		h.test.Pause(h.ctx, "report")
		w.report(err)
	})
}

// settleBefore calls a function that may take long. It settles done before, unless the function returns at once: then
// it returns done as it is. done may be nil.
func (h *hand) settleBefore(done *finished, fn func()) *finished {
	if done == nil {
		defer h.call()()
		fn()
		return nil
	}
	c := &call{begun: time.Now(), done: make(chan struct{}), ctx: h.ctx}
	h.start(c, func(ctx context.Context) error {
		h.w.o.Test.Pause(ctx, "before")
		fn()
		return nil
	})
	if runtime.Gosched(); !isClosed(c.done) {
		h.settle(done)
		done = nil
		over := h.call()
		<-c.done
		over()
		h.yield("asked")
	}
	h.over(c)
	return done
}

// settle settles the last ack of a claim alone, and reports an error. done may be nil.
func (h *hand) settle(done *finished) {
	if done == nil {
		return
	}
	ctx, cancel := endContext(h.ctx)
	defer cancel()
	if err := done.in.settle(ctx, done.settle, false); err != nil {
		h.failed(received{source: done.in.source, err: err}, done)
	}
}

// settle settles, and tries again after an error of the database until ctx or the claim ends. Otherwise the item would
// be handled again. unknown says that an attempt before may have settled. After such an attempt, a lost claim or an
// item that is not in the claim any more says that it has.
func (h *inHand) settle(ctx context.Context, s layer.Settlement, unknown bool) error {
	for pause := firstWait; ; pause = min(2*pause, time.Second) {
		err := h.source.q.Settle(ctx, s)
		if unknown && (errors.Is(err, layer.ErrClaimLost) || errors.Is(err, layer.ErrNotInClaim)) {
			return nil
		}
		unknown = unknown || kv.MaybeCommitted(err)
		if !mayPass(err) || ctx.Err() != nil || h.left() <= 0 {
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

// mayPass reports whether a settlement that has failed with err may succeed next time: the database has failed.
func mayPass(err error) bool { return kv.Code(err) != 0 }
