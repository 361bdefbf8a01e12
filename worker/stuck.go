package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/layer"
)

// A handler is stuck if it has not returned 5 s after the end of its context. The hand sees that by a timer of its own.
// It reports the call once, leaves it alone, and continues without it. A call that waits for the database on the way to
// its commit is not stuck: it ends by itself, endTimeout after the end of its context (outlive). It counts as stuck
// only if the engine hangs for longer. The same holds for the commit function of a HandleCommit. A function of the
// options has a shield: see aside.go.

// ErrStuck: as many handlers are stuck as the worker may have goroutines, and so the worker has ended. See
// Options.StayWhenStuck.
var ErrStuck = errors.New("as many handlers are stuck as the worker may have goroutines")

// stuckPause is for how long a group is delayed whose handler is stuck in this worker, so that another process gets it.
const stuckPause = 2 * time.Second

// reserve returns the first items, up to the first whose handler still runs in this worker: a second call would run at
// the same time. It notes c as the call for these items, until returns.
func (w *Worker) reserve(c *call, items []layer.Item) []layer.Item {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range items {
		if w.runs(items[i].ID) {
			return items[:i]
		}
		w.handling[items[i].ID] = c
	}
	return items
}

// returns notes that a call has returned, or is not made.
func (w *Worker) returns(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range c.ds {
		if w.handling[d.ID] == c {
			delete(w.handling, d.ID)
		}
	}
}

// isBusy reports whether a handler still runs in this worker for an item that the worker has received again.
func (w *Worker) isBusy(id layer.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs(id)
}

// runs reports whether a handler runs for an item that the worker has received again. If so, the hand of that call asks
// for its claim at once, because the claim is lost: an operator may have released the group. In a queue with facets a
// call that waits for its commit does not count. The commit may have advanced the item, and none of the handler's code
// runs. The mutex is held.
func (w *Worker) runs(id layer.ID) bool {
	c := w.handling[id]
	if c == nil || c.in.commits.Load() && len(c.in.source.q.Config().Facets) > 0 {
		return false
	}
	c.meet()
	return true
}

// keepOff gives back a claim whose next item this worker must not handle, because a handler still runs for it here.
func (w *Worker) keepOff(of context.Context, in *inHand) {
	in.keptOff = stuckPause
	w.giveBack(of, in, nil, nil)
}

// leave leaves a handler that is stuck to itself, so that the hand can continue. It returns false, and leaves nothing,
// if there are too many such handlers already. first is true if the call has not been reported yet.
func (h *hand) leave(c *call, first bool) bool {
	w := h.w
	if first {
		h.tellStuck(c)
	}
	w.mu.Lock()
	ends := len(w.left)+1 >= w.most && !w.isStopping() && !w.o.StayWhenStuck
	if len(w.left) >= w.most && !w.isStopping() && !ends {
		w.mu.Unlock()
		return false
	}
	w.left[c] = true
	if ends {
		w.end(ErrStuck)
	}
	w.mu.Unlock()
	go w.finishLate(h.ctx, c)
	if ends {
		w.log.Error("worker: too many handlers are stuck, it ends", "queues", w.names())
		w.told(ErrStuck)
	}
	return true
}

// tellStuck reports a call that is stuck. The hand does not wait for the report, because the call may return, and is
// acked then.
func (h *hand) tellStuck(c *call) {
	w, stack := h.w, c.stack()
	e := c.event(c.ds[0])
	e.Err, e.Stack = context.Cause(c.ctx), stack
	w.wg.Go(func() {
		w.o.Test.Pause(c.ctx, "stuck")
		w.emit(w.o.Events.Stuck, slog.LevelError, "worker: a handler is stuck", e)
		w.told(&StuckError{ID: e.ID, Since: c.begun, Stack: stack})
	})
}

// stack is the stack of the call's goroutine, if it still runs.
func (c *call) stack() string {
	id := c.goroutine.Load()
	if id == nil {
		return ""
	}
	return callback.Stacks("goroutine " + *id + " [")
}

// finishLate waits for a call that was left to itself. The call may return while the claim still lasts.
func (w *Worker) finishLate(ctx context.Context, c *call) {
	<-c.done
	c.in.lost = c.in.lost || c.gone
	ctx = w.o.Test.Named(ctx, "late call for %s under %d", c.ds[0].ID, c.ds[0].Token)
	w.o.Test.Pause(ctx, "late")
	c.in.hand = &hand{w: w, ctx: ctx, late: true}
	defer c.in.hand.endCalls()
	done, more := w.conclude(ctx, c)
	of, cancel := w.endContext(ctx, c.in)
	defer cancel()
	switch {
	case done != nil:
		w.unsettled(done.in, done.in.settle(of, done.settle, false))
	case c.halved:
		w.leaveHalved(c)
	case more:
		w.giveBack(ctx, c.in, nil, nil)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.left, c)
}
