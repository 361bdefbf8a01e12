package callback_test

import (
	"bytes"
	"context"
	"errors"
	"log"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/callback"
)

// TestTry: a panic becomes an error with the stack.
func TestTry(t *testing.T) {
	require.NoError(t, callback.Try("fn", func() {}))
	err := callback.Try("fn", func() { panic("boom") })
	require.ErrorContains(t, err, "fn: panic: boom")
	require.ErrorContains(t, err, "callback_test.go")
	require.Equal(t, "<nil>", (*callback.PanicError)(nil).Error())
}

type badError struct{ is bool }

func (e *badError) Error() string { return "bad" }
func (e *badError) Is(error) bool { return e.is }

// TestSound: an error whose methods panic is replaced; another is returned as it is.
func TestSound(t *testing.T) {
	require.NoError(t, callback.Sound(nil))
	good := errors.New("good")
	require.Same(t, good, callback.Sound(good))
	require.ErrorContains(t, callback.Sound((*badError)(nil)), "*callback_test.badError")
}

// TestClock: the system's clock takes the place of a clock that panics.
func TestClock(t *testing.T) {
	begun := time.Now()
	require.False(t, callback.Clock(func() time.Time { panic("boom") })().Before(begun))
	at := time.UnixMilli(1)
	require.Equal(t, at, callback.Clock(func() time.Time { return at })())
}

// badHandler panics for a text.
type badHandler struct{ slog.Handler }

func (h badHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "boom" {
		panic("boom")
	}
	return h.Handler.Handle(ctx, r)
}

// TestLogger: a record whose handler panics is lost, and told; the others are written.
func TestLogger(t *testing.T) {
	var b bytes.Buffer
	var told []error
	tell := func(err error) { told = append(told, err) }
	log := callback.Logger(slog.New(badHandler{slog.NewTextHandler(&b, nil)}), callback.Shield(time.Minute), tell)
	log.Info("boom")
	log.With("a", 1).WithGroup("g").Info("fine", "b", 2)
	require.Len(t, told, 1)
	require.Contains(t, b.String(), "msg=fine a=1 g.b=2")
}

// hangingHandler does not say whether a level is enabled.
type hangingHandler struct {
	slog.Handler
	free  chan struct{}
	asked *atomic.Int64 // how often it was asked; a call that hangs writes it, too
}

func (h hangingHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h hangingHandler) Enabled(context.Context, slog.Level) bool {
	h.asked.Add(1)
	<-h.free
	return true
}

// TestDefaultThatHangs: a caller waits once, and for a short time, for slog.Default. Texts that come while that hangs
// are dropped, and later ones are written.
func TestDefaultThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, free := new(atomic.Int64), make(chan struct{})
		defer log.SetFlags(log.Flags()) // the first SetDefault changes the log of package log, too
		defer log.SetOutput(log.Writer())
		defer slog.SetDefault(slog.Default())
		var b bytes.Buffer
		slog.SetDefault(slog.New(hangingHandler{slog.NewTextHandler(&b, nil), free, asked}))
		begun := time.Now()
		for _, text := range []string{"first", "second", "third"} {
			callback.Report(text, errors.New("failed"))
		}
		require.Less(t, time.Since(begun), 200*time.Millisecond)
		require.EqualValues(t, 1, asked.Load())
		close(free)
		synctest.Wait()
		callback.Report("fourth", errors.New("failed"))
		require.Contains(t, b.String(), "msg=first")
		require.Contains(t, b.String(), "msg=fourth")
		require.NotContains(t, b.String(), "msg=second")
	})
}

// TestLoggerWithoutAHandlerThatHangs: a logger waits once for a handler that hangs. It makes no other call until that
// call has returned, and then asks Enabled once a second, not for each record.
func TestLoggerWithoutAHandlerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told, asked, free := 0, new(atomic.Int64), make(chan struct{})
		hangs := slog.New(hangingHandler{slog.DiscardHandler, free, asked})
		log := callback.Logger(hangs, callback.Shield(time.Minute), func(error) { told++ })
		begun := time.Now()
		for range 3 {
			log.Debug("fine")
			log.With("a", 1).Debug("fine")
			time.Sleep(time.Second)
		}
		require.Equal(t, time.Minute+3*time.Second, time.Since(begun))
		require.Equal(t, 1, told)
		require.EqualValues(t, 1, asked.Load())
		close(free)
		time.Sleep(time.Second)
		for i := range 3 {
			log.Debug("fine")
			log.Debug("fine")
			require.EqualValues(t, 2+i, asked.Load())
			time.Sleep(time.Second)
		}
		require.Equal(t, 1, told)
	})
}

// TestShield: a function that panics, ends its goroutine or hangs does not take its caller with it.
func TestShield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free, shield := make(chan struct{}), callback.Shield(time.Minute)
		require.NoError(t, shield.Try("fn", func() {}))
		require.ErrorContains(t, shield.Try("fn", func() { panic("boom") }), "fn: panic: boom")
		require.ErrorContains(t, shield.Try("fn", runtime.Goexit), "runtime.Goexit")
		begun, stuck := time.Now(), new(callback.StuckError)
		require.ErrorAs(t, shield.Try("fn", func() { <-free }), &stuck)
		require.Equal(t, time.Minute, time.Since(begun))
		require.Contains(t, stuck.Stack(), "callback_test.go")
		close(free)
	})
}

// exitingError ends the goroutine that asks for its text.
type exitingError struct{}

func (exitingError) Error() string {
	runtime.Goexit()
	return ""
}

// TestPanicWithAnErrorThatExits: the text of a panic can be read, and its reader keeps the goroutine.
func TestPanicWithAnErrorThatExits(t *testing.T) {
	err := callback.Shield(0).Try("fn", func() { panic(exitingError{}) })
	text := make(chan string, 1)
	go func() {
		defer close(text)
		text <- err.Error()
	}()
	require.Contains(t, <-text, "fn: panic: ")
}
