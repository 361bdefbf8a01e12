// Package callback calls functions of the user's: hooks, clocks, log handlers, the methods of errors. A panic in one of
// them must not end the process, because it may run in a goroutine of the library's own, and must not change what
// becomes of a message. Try makes a panic an error, and the caller continues with a default.
package callback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// PanicError is a panic in a function of the user's.
type PanicError struct {
	What  string // the function, for example "Options.Now"
	Value any    // of the panic
	Stack []byte
}

// Error has the stack, too.
func (e *PanicError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return fmt.Sprintf("%s: panic: %v\n%s", e.What, e.Value, e.Stack)
}

// Try calls fn. The error is nil, or a *PanicError. If fn ends the goroutine (runtime.Goexit), Try does not return.
func Try(what string, fn func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{What: what, Value: r, Stack: debug.Stack()}
		}
	}()
	fn()
	return nil
}

// Report writes a panic to slog.Default. A panic of its handler is dropped, because nothing is left to tell it to.
func Report(text string, err error, args ...any) {
	if err != nil {
		_ = Try("slog.Default", func() { slog.Default().Error(text, append(args, "error", err.Error())...) })
	}
}

// Sound returns err if its methods can be called: Error, Is, As and Unwrap, also those of the errors within err. If one
// of them panics, as Unwrap of a nil pointer may, Sound returns an error with the type of err and the stack.
func Sound(err error) error {
	if err == nil {
		return nil
	}
	failed := Try("methods of the error", func() {
		_ = err.Error()
		_ = errors.Is(err, errNone)
		errors.As(err, new(*noneError))
	})
	if failed != nil {
		return fmt.Errorf("an error of type %T: %w", err, failed)
	}
	return err
}

// errNone and noneError are in no error, so that a search for them calls the methods of all errors.
var errNone = errors.New("none")

type noneError struct{}

func (*noneError) Error() string { return "none" }

// Clock returns now, or time.Now in the place of a call that panics. The first panic is reported.
func Clock(now func() time.Time) func() time.Time {
	var told atomic.Bool
	return func() (t time.Time) {
		defer func() {
			if r := recover(); r != nil {
				t = time.Now()
				if !told.Swap(true) {
					Report("the clock has panicked: the system's clock is used instead",
						&PanicError{What: "Options.Now", Value: r, Stack: debug.Stack()})
				}
			}
		}()
		return now()
	}
}

// Logger returns a logger like log. A record whose handler panics is lost, and told is called with a *PanicError.
func Logger(log *slog.Logger, told func(err error)) *slog.Logger {
	return slog.New(&handler{log.Handler(), told})
}

// handler is a slog.Handler of the user's.
type handler struct {
	inner slog.Handler
	told  func(err error)
}

func (h *handler) try(fn func()) {
	if err := Try("slog.Handler", fn); err != nil {
		h.told(err)
	}
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, l slog.Level) (enabled bool) {
	h.try(func() { enabled = h.inner.Enabled(ctx, l) })
	return enabled
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) (err error) {
	h.try(func() { err = h.inner.Handle(ctx, r) })
	return err
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := h.inner
	h.try(func() { with = h.inner.WithAttrs(attrs) })
	return &handler{with, h.told}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	with := h.inner
	h.try(func() { with = h.inner.WithGroup(name) })
	return &handler{with, h.told}
}
