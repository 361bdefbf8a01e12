package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Event is an event of a worker. Fields that do not apply are zero. An Event has no message bodies.
type Event struct {
	Queue   string
	Group   string
	Token   int64
	ID      layer.ID      // of the item; of a claim, its first
	Attempt int           // of the item, from 1 on
	Items   int           // of the claim
	Took    time.Duration // since the begin of the handler's call; of Failed with the time to give the item back
	Err     error
	// Follows is what has become of an item that has failed, and Waits for how long its group is not delivered.
	Follows layer.Follows
	Waits   time.Duration
	Owner   string // whose lease had ended
	Stack   string // of the goroutine that is stuck
}

// Events are the functions that a worker calls. Several goroutines may call one at the same time. A function must
// return soon. nil = not called.
type Events struct {
	Received  func(Event) // a claim, with its first item
	TakenOver func(Event) // a claim of a group whose holder's lease had ended; Received is called too
	// Started: a handler is about to be called, for each item of a batch. Done follows for each item, or Failed or Lost
	// for the rest of the claim.
	Started func(Event)
	// Done: a handler has finished an item. It may come again, if the claim is lost or the ack fails.
	Done func(Event)
	// Failed: a handler has failed. Follows says what has become of the item, if that is known. It is FollowsRelease if
	// a HandleBatch has failed with an error that names no item, and is called again with half as many. Failed is also
	// called if the claim has ended after Started, and so the handler was not called. Err wraps ErrUncalled then,
	// Follows is FollowsRelease or FollowsUnknown, and OnError is not told.
	Failed       func(Event)
	DeadLettered func(Event) // an item has become a dead letter; Failed is called too
	Lost         func(Event) // the claim is another's
	Stuck        func(Event) // a handler has not returned 5 s after the end of its context
	Gone         func(Event) // a queue was dropped, or its handle closed
}

// HandlerError is a handler's error or panic, with the item that it handled. Of a batch that is the item that has
// failed, or the first item of the call if the error names none or the claim is lost.
type HandlerError struct {
	ID  layer.ID
	Err error
}

func (e *HandlerError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return wrap("handler", fmt.Errorf("item %s: %w", e.ID, e.Err)).Error()
}

// Unwrap returns the handler's error.
func (e *HandlerError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// StuckError: a handler has not returned 5 s after the end of its context. Or a function of the options has not
// returned after two minutes; a Limiter, 5 s after the end of its context.
type StuckError struct {
	ID    layer.ID  // of the handler's item; zero for a function of the options
	Since time.Time // of its call
	Stack string    // of its goroutine
	Hook  bool      // it is a function of the options
}

func (e *StuckError) Error() string {
	if e == nil {
		return "<nil>"
	}
	since := e.Since.Format(time.RFC3339)
	if e.Hook {
		return wrap("function of the options", fmt.Errorf("stuck since %s\n%s", since, e.Stack)).Error()
	}
	return wrap("handler", fmt.Errorf("item %s: stuck since %s\n%s", e.ID, since, e.Stack)).Error()
}

// Running is a call of a handler that has not returned.
type Running struct {
	Queue string
	ID    layer.ID // of the item; of a batch, the first
	Since time.Time
}

// StopError: a worker was stopped by force, or has ended while handlers were stuck. It wraps Err.
type StopError struct {
	Running []Running // handlers that still run; none = all have returned
	Err     error     // the cause of the end of Stop's context, or why the worker has ended, or ErrNoAnswer; may be nil
}

func (e *StopError) Error() string {
	if e == nil {
		return "<nil>"
	}
	var all []string
	if e.Err != nil {
		all = append(all, e.Err.Error())
	}
	for _, r := range e.Running {
		since := r.Since.Format(time.RFC3339)
		all = append(all, fmt.Sprintf("a handler still runs, for item %s of queue %q, since %s", r.ID, r.Queue, since))
	}
	return "worker: stop: " + strings.Join(all, "; ")
}

// Unwrap returns Err.
func (e *StopError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

func (w *Worker) report(err error) {
	if err == nil || !w.trouble.Has(kv.Code(err), err) {
		return
	}
	w.log.Warn("worker: error", "error", err)
	w.told(err)
}

// told passes an error that is in the log to OnError, too.
func (w *Worker) told(err error) {
	if w.o.OnError != nil {
		w.try("OnError", func() { w.o.OnError(err) })
	}
}

// shield is for the functions of the options. All are called behind a shield, or as hand.startTry does.
const shield = callback.Shield(callback.Patience)

// try calls a function of the options behind a shield, and tells the user if the function has failed. It does not call
// the function while another call of it hangs.
func (w *Worker) try(what string, fn func()) {
	if !w.hangs(what) {
		w.failing(w.shielded(shield, what, fn))
	}
}

// shielded calls a function of the options behind a shield.
func (w *Worker) shielded(shield callback.Shield, what string, fn func()) error {
	err := shield.Try("Options."+what, fn)
	if stuck, ok := as[callback.StuckError](err); ok {
		w.hang(what, func() { <-stuck.Returned })
	}
	return err
}

// hang notes that a call of a function of the options has not returned in time. returned returns when the call has.
// Otherwise each later event would wait for another call, and leave its goroutine behind.
func (w *Worker) hang(what string, returned func()) {
	note := func(n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.hanging[what] += n
	}
	note(1)
	go func() {
		returned()
		note(-1)
	}()
}

// hangs reports whether a call of a function of the options hangs, so that the worker continues without the function.
func (w *Worker) hangs(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hanging[what] > 0
}

// failing reports a function of the options that has failed; nil = it has not. The log and OnError may be what has
// failed. So each gets a second, and its own failure is dropped, except that slog.Default gets the report if OnError
// does not.
func (w *Worker) failing(err error) {
	if err == nil {
		return
	}
	short := callback.Shield(time.Second)
	try := func(what string, fn func()) bool {
		brief := what + ", of a failure" // a call that takes longer than a second does not hang yet for try
		return !w.hangs(what) && !w.hangs(brief) && w.shielded(short, brief, fn) == nil
	}
	if stuck, ok := as[callback.StuckError](err); ok {
		err = &StuckError{Since: stuck.Since, Stack: stuck.Stack(), Hook: true}
	}
	write := func(log *slog.Logger) {
		if errors.As(err, new(*StuckError)) {
			log.Error("worker: a function of the options is stuck", "error", err)
			return
		}
		log.Error("worker: a function of the options has panicked", "error", err)
	}
	told := w.o.OnError != nil && try("OnError", func() { w.o.OnError(err) })
	if !try("Logger", func() { write(w.o.Logger) }) && !told {
		_ = short.Try("slog.Default", func() { write(slog.Default()) })
	}
}

// emit tells the log and a function of Events, which may be nil.
func (w *Worker) emit(hook func(Event), level slog.Level, text string, e Event) {
	if w.log.Enabled(context.Background(), level) {
		w.log.LogAttrs(context.Background(), level, text, e.attrs()...)
	}
	if hook != nil {
		w.try("Events, "+text, func() { hook(e) })
	}
}

// attrs is the event for a log.
func (e *Event) attrs() []slog.Attr {
	all := []slog.Attr{slog.String("queue", e.Queue)}
	add := func(there bool, a slog.Attr) {
		if there {
			all = append(all, a)
		}
	}
	add(e.ID != layer.ID{}, slog.String("item", e.ID.String()))
	add(e.Token != 0, slog.Int64("token", e.Token))
	add(e.Attempt != 0, slog.Int("attempt", e.Attempt))
	add(e.Items != 0, slog.Int("items", e.Items))
	add(e.Took != 0, slog.Duration("took", e.Took))
	add(e.Follows != "", slog.String("follows", string(e.Follows)))
	add(e.Waits != 0, slog.Duration("waits", e.Waits))
	add(e.Owner != "", slog.String("owner", e.Owner))
	if e.Err != nil {
		all = append(all, slog.String("error", e.Err.Error()))
	}
	add(e.Stack != "", slog.String("stack", e.Stack))
	return all
}

// event is an event of a claim in flight.
func (h *inHand) event() Event {
	e := Event{Queue: h.source.q.Name(), Group: h.claim.Group, Token: h.claim.Token, Items: len(h.claim.Items)}
	if len(h.claim.Items) > 0 {
		e.ID = h.claim.Items[0].ID
	}
	return e
}

// event is an event of an item.
func (c *call) event(d *Delivery) Event {
	return Event{
		Queue: d.Queue.Name(), Group: d.ID.Group, Token: d.Token, ID: d.ID, Attempt: d.Attempt,
		Took: time.Since(c.begun),
	}
}
