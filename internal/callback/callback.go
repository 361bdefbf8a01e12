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
	"sync"
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

// Try calls fn on the goroutine of its caller. The error is nil, or a *PanicError. Try does not return if fn never
// returns, or ends the goroutine (runtime.Goexit): a goroutine of the library's own must use a Shield.
func Try(what string, fn func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			// The text is made here, behind the caller's shield, because Error of r may end the goroutine, too.
			err = &PanicError{What: what, Value: fmt.Sprint(r), Stack: debug.Stack()}
		}
	}()
	fn()
	return nil
}

// defaultPatience is how long Default waits. It is short, because an operation of a queue waits as long.
const defaultPatience = Shield(100 * time.Millisecond)

// hanging is how many calls of slog.Default have not returned in time.
var hanging atomic.Int64

// Default calls write with slog.Default, behind a shield. It waits no longer than defaultPatience: then write goes on
// by itself, and until write returns, Default drops what else there is to write. It also drops an error of the log's
// handler. Nothing is left to tell of that.
func Default(write func(log *slog.Logger)) {
	if hanging.Load() == 0 {
		_ = defaultPatience.TryCounted(&hanging, "slog.Default", func() { write(slog.Default()) })
	}
}

// Report writes an error to slog.Default.
func Report(text string, err error, args ...any) {
	if err != nil {
		args = append(args, "error", err.Error()) // here, because the stack of Default's own goroutine tells nothing
		Default(func(log *slog.Logger) { log.Error(text, args...) })
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

// Logger returns a logger like log, whose handler is called behind a shield. A record whose handler fails is lost, and
// told is called with the error of Shield.Try. While a call of the handler hangs, the logger makes no other, and the
// records are lost. The logger asks the handler at most once a second whether a level is enabled. Otherwise a shield
// would cost a goroutine for each record, although most records are not enabled.
func Logger(log *slog.Logger, shield Shield, told func(err error)) *slog.Logger {
	return slog.New(&handler{inner: log.Handler(), shield: shield, told: told, stuck: new(atomic.Int64)})
}

// Known returns the answer that a logger of Logger's keeps for a level, and calls no function of the user's. ok is
// false if there is no answer of the last second.
func Known(log *slog.Logger, l slog.Level) (enabled, ok bool) {
	return log.Handler().(*handler).known(l)
}

// Ask asks the user's handler whether a level is enabled, without a shield, and keeps the answer.
func Ask(ctx context.Context, log *slog.Logger, l slog.Level) bool {
	h := log.Handler().(*handler)
	enabled := h.inner.Enabled(ctx, l)
	h.answers.Store(l, answer{enabled, time.Now()})
	return enabled
}

// handler is a slog.Handler of the user's.
type handler struct {
	inner   slog.Handler
	shield  Shield
	told    func(err error)
	stuck   *atomic.Int64 // how many calls have not returned in time, and still run
	answers sync.Map      // of inner.Enabled: an answer for each slog.Level
}

// answer is an answer of Enabled, and when it was asked.
type answer struct {
	enabled bool
	at      time.Time
}

// try calls fn, which must write no variable that is read after an error. It calls nothing while another call hangs.
func (h *handler) try(fn func()) bool {
	if h.stuck.Load() > 0 {
		return false
	}
	err := h.shield.TryCounted(h.stuck, "slog.Handler", fn)
	if err != nil {
		h.told(err)
	}
	return err == nil
}

func (h *handler) known(l slog.Level) (enabled, ok bool) {
	last, ok := h.answers.Load(l)
	if !ok || time.Since(last.(answer).at) >= time.Second {
		return false, false
	}
	return last.(answer).enabled, true
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, l slog.Level) bool {
	if enabled, ok := h.known(l); ok {
		return enabled
	}
	enabled := false
	now := h.try(func() { enabled = h.inner.Enabled(ctx, l) }) && enabled
	h.answers.Store(l, answer{now, time.Now()})
	return now
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var err error
	if !h.try(func() { err = h.inner.Handle(ctx, r) }) {
		return nil
	}
	return err
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func() slog.Handler { return h.inner.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return h.with(func() slog.Handler { return h.inner.WithGroup(name) })
}

func (h *handler) with(derive func() slog.Handler) slog.Handler {
	var inner slog.Handler
	if !h.try(func() { inner = derive() }) {
		return h
	}
	return &handler{inner: inner, shield: h.shield, told: h.told, stuck: h.stuck}
}
