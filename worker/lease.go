package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fdbfifo/layer"
)

// A handler is told in time: its context ends with its claim's lease at the latest, whatever the database does. The
// hand watches the lease by the monotonic clock while a call runs. It never waits for an extension that is under way.

// leaseMargin is how long before the end of its lease a claim counts as lapsed. Timers are late and stored times are in
// milliseconds, so the handler's context may end later than planned, by no more than leaseMargin.
const leaseMargin = 20 * time.Millisecond

// deadlines returns when to extend next, and when the claim counts as lapsed unless it is extended. The next extension
// is after a third of the rest of the lease, and at least a third of the shortest lease. If that is too late, because
// little of the lease is left, it is half way to the time at which the claim counts as lapsed.
func (h *inHand) deadlines() (due, lapses time.Time) {
	now, left := time.Now(), h.left()
	wait := max(left, layer.MinLease) / 3
	if left > leaseMargin {
		wait = min(wait, max((left-leaseMargin)/2, time.Millisecond))
	}
	return now.Add(wait), now.Add(left - leaseMargin)
}

// beginExtend begins to extend the claim of a call, unless its transaction is open, or an ack or an extension is under
// way. A claim by heartbeat is extended only if it may be lost.
func (h *hand) beginExtend(c *call) {
	in := c.in
	if in.beats() && !c.doubt || in.acking != nil || in.extending != nil || !in.tryBegin() {
		return
	}
	if in.over || in.lost || in.stale {
		in.end()
		return
	}
	c.doubt = false
	e := &underWay{ended: make(chan struct{})}
	in.extending = e
	same := *in.claim
	// The context ends with the claim, because then there is nothing to extend.
	ctx := in.test.Named(in.ctx, "extension of %s under %d", same.Items[0].ID, same.Token)
	go func() {
		defer close(e.ended)
		defer in.end()
		in.test.Pause(ctx, "extend")
		e.err = in.extendAs(ctx, &same)
	}()
}

// meet tells the hand of a call that the call's claim may be lost.
func (c *call) meet() {
	select {
	case c.met <- struct{}{}:
	default:
	}
}

// isMet reports whether meet was called since the last time. A call of a function of the options has no such sign.
func (c *call) isMet() bool {
	select {
	case <-c.met:
		return !c.gone
	default:
		return false
	}
}

// clockLook is how often a worker compares the wall clock with the leases of its calls.
const clockLook = time.Second

// watchClock has a hand ask for its claim whose lease has ended by the wall clock of its handle alone. The machine may
// have been suspended: the monotonic clock has stood still, and another holder may have the group. A claim by heartbeat
// is left alone: the next beat of its handle tells.
func (w *Worker) watchClock() {
	ticker := time.NewTicker(clockLook)
	defer ticker.Stop()
	for {
		select {
		case <-w.done:
			return
		case <-ticker.C:
		}
		for _, c := range w.calls() {
			in := c.in
			if !in.beats() && in.left() > 0 && in.source.q.Now().UnixMilli() > in.untilMS() {
				ctx := w.o.Test.Named(c.ctx, "look at the lease of %s under %d", c.ds[0].ID, c.ds[0].Token)
				w.o.Test.Pause(ctx, "clock")
				c.meet()
			}
		}
	}
}

// calls are the handlers' calls under way, in the order of their hands.
func (w *Worker) calls() (all []*call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.hands {
		if c := h.now.Load(); c != nil {
			all = append(all, c)
		}
	}
	return all
}

// endExtend does what follows from an extension that has ended.
func (h *hand) endExtend(c *call) {
	in := c.in
	err := in.extending.err
	in.extending = nil
	switch {
	case lostBy(err):
		c.gone = true
		c.cancel(err)
	case err != nil && h.ctx.Err() == nil && in.ctx.Err() == nil:
		in.report(err)
	}
}

// lapse ends the handlers' context, because the lease has ended. The hand still settles the result of the handler: the
// claim is there until another takes over. tell says to report that: the contexts have not ended before. If the claim
// turns out to be lost, OnError has heard enough.
func (h *inHand) lapse(tell bool) {
	h.lapsed, h.warned = true, tell
	err := fmt.Errorf("%w: group %q, token %d: its lease has ended, and the database has not extended it",
		errLapsed, h.as.Group, h.as.Token)
	h.cancel(err)
	if tell {
		h.report(err)
	}
}

// errLapsed is the cause with which the handlers' context ends at the end of the lease. Then another may have taken the
// claim over, or not.
var errLapsed = fmt.Errorf("%w", layer.ErrClaimLost)

// lostBy reports whether the queue has said that a claim is lost. An error may only name the cause with which the
// context of a call has ended.
func lostBy(err error) bool { return errors.Is(err, layer.ErrClaimLost) && !errors.Is(err, errLapsed) }

// cutOff reports whether the call's context has ended with the lease: then the item has not failed. But if a handler's
// transaction has lasted for too long, that is why the lease could not be extended, and so the item has failed.
func (c *call) cutOff(failed error) bool {
	_, slow := as[timeoutError](failed)
	return !slow && hasLapsed(c.ctx)
}

// hasLapsed reports whether a context has ended with the lease.
func hasLapsed(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errLapsed) }

// settled reports whether nothing is left of the claim. While a transaction of the claim is open that is not known yet.
func (h *inHand) settled() bool {
	if !h.tryBegin() {
		return false
	}
	defer h.end()
	return h.over
}

// extendFirst extends the claim before a call. It waits for that no longer than the lease lasts, or a second if that is
// longer.
func (h *hand) extendFirst(in *inHand) {
	if in.over || in.lost || in.stale || in.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(in.ctx, max(in.left()-leaseMargin, time.Second))
	defer cancel()
	err := in.begin(ctx)
	if err == nil {
		err = in.extend(ctx)
		in.end()
	}
	switch {
	case in.lost:
		in.cancel(err)
	case err == nil || h.ctx.Err() != nil:
	case in.left() <= leaseMargin:
		in.lapse(true)
	default:
		in.report(err)
	}
}
