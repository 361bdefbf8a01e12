package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// nilErrors are nil pointers to the error types of the module.
var nilErrors = []error{
	(*kv.Error)(nil), (*layer.ClaimError)(nil), (*layer.FullError)(nil), (*layer.LimitError)(nil),
	(*layer.MessageError)(nil), (*layer.ValueError)(nil), (*layer.TemplateError)(nil), (*layer.FormatError)(nil),
	(*layer.UnknownSettingError)(nil), (*layer.ChangeError)(nil), (*layer.MissedError)(nil), (*worker.RetryError)(nil),
	(*worker.RejectError)(nil), (*worker.BatchError)(nil), (*worker.HandlerError)(nil), (*worker.StuckError)(nil),
	(*worker.StopError)(nil),
}

// TestNilErrors: the methods of the module's errors can be called on a nil pointer.
func TestNilErrors(t *testing.T) {
	for _, err := range nilErrors {
		require.Equal(t, "<nil>", err.Error(), "%T", err)
		require.NotErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, &kv.Error{Code: 1})
		var missing *layer.MessageError
		errors.As(err, &missing)
		require.Zero(t, kv.Code(fmt.Errorf("wrapped: %w", err)))
		require.Equal(t, "other", layer.ErrorKind(errors.New("")))
		_ = layer.ErrorKind(err)
	}
	require.False(t, (*kv.Error)(nil).Retryable())
	require.NotErrorIs(t, &kv.Error{Code: 1}, (*kv.Error)(nil))
	require.Equal(t, "<nil>", (&layer.ClaimError{}).Error())
}

// TestNilErrorIsSuccess: a handler that returns a nil pointer to an error of the module, Go's classic slip, has met no
// error. The item is finished by one call, and the slip is reported.
func TestNilErrorIsSuccess(t *testing.T) {
	for _, slip := range nilErrors {
		plain := func(context.Context, *worker.Delivery) error { return slip }
		inTx := func(context.Context, kv.Tx, *worker.Delivery) error { return slip }
		good := func(context.Context, *worker.Delivery) (int, error) { return 1, nil }
		for kind, h := range map[string]worker.Handler{
			"Handle":   worker.Handle(plain),
			"HandleTx": worker.HandleTx(inTx),
			"HandleBatch": worker.HandleBatch(func(context.Context, []*worker.Delivery) error {
				return slip
			}),
			"HandleCommit, work": worker.HandleCommit(
				func(context.Context, *worker.Delivery) (int, error) { return 1, slip },
				func(context.Context, kv.Tx, *worker.Delivery, int) error { return nil }),
			"HandleCommit, commit": worker.HandleCommit(good,
				func(context.Context, kv.Tx, *worker.Delivery, int) error { return slip }),
		} {
			inBubble(t, layer.Config{Retry: eachSecond}, func(b *bubble) {
				b.fill(1)
				w, err := worker.New(b.q, h, worker.Options{
					Concurrency: 1, OnError: b.onError, Logger: slog.New(slog.DiscardHandler),
				})
				b.run(w, err, time.Minute)
				require.EqualValues(t, 1, b.stats().Acked, "%s, %T", kind, slip)
				require.Zero(t, b.stats().Nacked, "%s, %T", kind, slip)
				require.Len(t, b.reported(), 1, "%s, %T", kind, slip)
				require.ErrorContains(t, b.reported()[0], fmt.Sprintf("a nil %T was returned", slip))
			})
		}
	}
}

// TestNilErrorInABatch (G7): a BatchError around a nil pointer to an error of the module says that the item has met no
// error. The item is finished, as are those before it. A further call gets those behind, and no attempt counts.
func TestNilErrorInABatch(t *testing.T) {
	for _, slip := range nilErrors {
		inBubble(t, layer.Config{Retry: eachSecond}, func(b *bubble) {
			const items = 5
			for i := range items {
				_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: "g", Body: fmt.Append(nil, i)})
				require.NoError(b.t, err)
			}
			calls := make(map[string]int)
			h := worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
				for i, d := range ds {
					calls[string(d.Body)]++
					require.Equal(b.t, 1, d.Attempt)
					if i == 1 || i == len(ds)-1 {
						return &worker.BatchError{Done: i, Err: slip}
					}
				}
				return nil
			})
			w, err := worker.New(b.q, h, worker.Options{
				Concurrency: 1, Batch: items, OnError: b.onError, Logger: slog.New(slog.DiscardHandler),
			})
			b.run(w, err, time.Minute)
			for i := range items {
				require.Equal(b.t, 1, calls[fmt.Sprint(i)], "%d, %T", i, slip)
			}
			require.EqualValues(b.t, items, b.stats().Acked)
			require.NotEmpty(b.t, b.reported())
			for _, err := range b.reported() {
				require.ErrorContains(b.t, err, fmt.Sprintf("a nil %T was returned", slip))
			}
		})
	}
}

// TestNilErrorOfASubscription: a subscription's handler that returns a nil pointer to an error of the module has met no
// error. The place moves after one call, and the slip is reported. A nil pointer of another type is an error.
func TestNilErrorOfASubscription(t *testing.T) {
	for _, slip := range append([]error{errors.Join((*kv.Error)(nil)), (*foreignError)(nil)}, nilErrors...) {
		for _, inTx := range []bool{false, true} {
			inBubble(t, layer.Config{Changes: time.Hour}, func(b *bubble) {
				var calls atomic.Int64
				ctx, cancel := context.WithCancel(b.t.Context())
				done := make(chan error, 1)
				o := layer.SubscribeOptions{FromOldest: true, OnError: b.onError}
				go func() {
					if inTx {
						done <- b.q.SubscribeTx(ctx, "s", func(context.Context, kv.Tx, []layer.Change) error {
							calls.Add(1)
							return slip
						}, o)
						return
					}
					done <- b.q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
						calls.Add(1)
						return slip
					}, o)
				}()
				b.fill(1)
				time.Sleep(time.Minute)
				cancel()
				require.NoError(b.t, <-done)
				if errors.As(slip, new(*foreignError)) {
					require.Greater(b.t, calls.Load(), int64(3))
					return
				}
				require.EqualValues(b.t, 1, calls.Load(), "%T", slip)
				require.Len(b.t, b.reported(), 1)
				require.ErrorContains(b.t, b.reported()[0], "was returned as an error, and counts as nil")
			})
		}
	}
}

// foreignError is an error type of the user's whose methods can be called on a nil pointer.
type foreignError struct{}

func (*foreignError) Error() string { return "foreign" }

// TestNilErrorOfACall: a function of one call that returns a nil pointer to an error fails the call: its caller gets an
// error, and nothing is written.
func TestNilErrorOfACall(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		b.fill(1)
		slip, ctx, key := (*kv.Error)(nil), b.t.Context(), []byte("key")
		require.Error(b.t, b.q.Once(ctx, func(tx kv.Tx) error {
			tx.Set(key, []byte("once"))
			return slip
		}))
		_, err := kv.Run(ctx, b.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(key, []byte("run"))
			return slip
		})
		require.Error(b.t, err)
		claims, err := b.q.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(b.t, err)
		require.NoError(b.t, b.q.Nack(ctx, claims[0], layer.NackOptions{Release: true}))
		require.Error(b.t, b.q.Admin().Edit(ctx, claims[0].Items[0].ID, func(m *layer.Message) error {
			m.Body = []byte("edited")
			return slip
		}))
		claims, err = b.q.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(b.t, err)
		require.Equal(b.t, "0", string(claims[0].Items[0].Body))
		_, err = kv.Run(ctx, b.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			v, err := tx.Get(key).Wait(ctx)
			require.Empty(b.t, v)
			return err
		})
		require.NoError(b.t, err)
	})
}

// brokenError is an error of the user's whose methods panic on a nil pointer.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// muteError has a method that fails for nil, and no Unwrap: errors.Is and errors.As do not meet the failure.
type muteError struct{ text string }

func (e *muteError) Error() string { return e.text }

// TestBrokenErrors: an error whose methods panic, and a nil verdict within an error, are failures like others. The item
// is tried again, the panic is reported with its stack, and the worker goes on.
func TestBrokenErrors(t *testing.T) {
	for _, broken := range []error{
		(*brokenError)(nil), fmt.Errorf("wrapped: %w", (*brokenError)(nil)),
		fmt.Errorf("wrapped: %w", (*worker.RetryError)(nil)), fmt.Errorf("wrapped: %w", (*worker.RejectError)(nil)),
		fmt.Errorf("wrapped: %w", (*worker.BatchError)(nil)), fmt.Errorf("wrapped: %w", (*kv.Error)(nil)),
		&worker.RetryError{After: time.Second, Err: (*brokenError)(nil)},
		&worker.RejectError{Err: (*worker.RejectError)(nil)}, &worker.BatchError{Err: (*worker.RetryError)(nil)},
		&worker.BatchError{Err: (*muteError)(nil)}, &worker.BatchError{Err: &worker.RetryError{Err: (*muteError)(nil)}},
	} {
		for _, h := range []func(do func(d *worker.Delivery) error) worker.Handler{
			func(do func(d *worker.Delivery) error) worker.Handler {
				return worker.Handle(func(_ context.Context, d *worker.Delivery) error { return do(d) })
			},
			func(do func(d *worker.Delivery) error) worker.Handler {
				return worker.HandleTx(func(_ context.Context, _ kv.Tx, d *worker.Delivery) error { return do(d) })
			},
			func(do func(d *worker.Delivery) error) worker.Handler {
				return worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error { return do(ds[0]) })
			},
		} {
			inBubble(t, layer.Config{Retry: eachSecond}, func(b *bubble) {
				b.fill(2)
				w, err := worker.New(b.q, h(func(d *worker.Delivery) error {
					if b.called(d.Item) == 1 && d.ID.Index > 0 && string(d.Body) == "0" {
						return broken
					}
					return nil
				}), worker.Options{
					Concurrency: 1, OnError: b.onError, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
				})
				b.run(w, err, time.Minute)
				s := b.stats()
				require.EqualValues(t, 2, s.Acked+s.DeadLettered, "%T %#v", broken, b.seen())
				require.NotEmpty(t, b.reported())
				for _, err := range b.reported() {
					_ = err.Error()
				}
			})
		}
	}
}

// TestBrokenErrorInAVerdict: if the error in a verdict is broken, the verdict holds. Items that a BatchError says are
// finished are not handled again.
func TestBrokenErrorInAVerdict(t *testing.T) {
	broken := (*brokenError)(nil)
	for _, c := range []struct {
		verdict     error
		calls, dead int // of the third message
	}{
		{&worker.BatchError{Done: 2, Err: &worker.RetryError{Uncounted: true, Err: broken}}, 2, 0},
		{fmt.Errorf("wrapped: %w", &worker.BatchError{Done: 2, Err: broken}), 2, 0},
		{&worker.BatchError{Done: 2, Err: &worker.RejectError{Reason: "no", Err: broken}}, 1, 1},
		{&worker.BatchError{Done: 2, Err: &worker.RejectError{Err: (*muteError)(nil)}}, 1, 1},
		{&worker.BatchError{Done: math.MaxInt, Err: broken}, 1, 0},
	} {
		inBubble(t, layer.Config{MaxAttempts: 2, Retry: eachSecond}, func(b *bubble) {
			b.fill(3)
			w := b.worker(worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
				for _, d := range ds {
					if b.called(d.Item) == 1 && string(d.Body) == "2" {
						return c.verdict
					}
				}
				return nil
			}), worker.Options{Concurrency: 1})
			b.run(w, nil, time.Minute)
			require.Equal(b.t, map[string]int{"0": 1, "1": 1, "2": c.calls}, b.seen())
			require.EqualValues(b.t, c.dead, b.stats().DeadLettered)
			require.EqualValues(b.t, 3-c.dead, b.stats().Acked)
		})
	}
}

// TestBrokenErrorInAVerdictOfOne: as TestBrokenErrorInAVerdict, for a handler of one item. An attempt that must not
// count does not count.
func TestBrokenErrorInAVerdictOfOne(t *testing.T) {
	inBubble(t, layer.Config{MaxAttempts: 1}, func(b *bubble) {
		b.fill(1)
		w := b.worker(worker.Handle(func(_ context.Context, d *worker.Delivery) error {
			if b.called(d.Item) < 3 {
				return &worker.RetryError{Uncounted: true, After: time.Second, Err: (*brokenError)(nil)}
			}
			return nil
		}), worker.Options{Concurrency: 1})
		b.run(w, nil, time.Minute)
		require.Equal(b.t, map[string]int{"0": 3}, b.seen())
		require.EqualValues(b.t, 1, b.stats().Acked)
	})
}

// brokenLog is a log whose handler panics.
type brokenLog struct{ calls atomic.Int64 }

func (l *brokenLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *brokenLog) Handle(context.Context, slog.Record) error {
	l.calls.Add(1)
	panic("the log")
}
func (l *brokenLog) WithAttrs([]slog.Attr) slog.Handler { panic("the log's attributes") }
func (l *brokenLog) WithGroup(string) slog.Handler      { panic("the log's group") }

// brokenLimiter panics.
type brokenLimiter struct{}

func (brokenLimiter) Wait(context.Context) error { panic("the limiter") }

// TestPanicsOfWorkerOptions: a panic in a function of a worker's options ends neither the process nor the work. Each
// item is handled as often as it would be without the panic, none is a dead letter, and the panic is reported with its
// stack.
func TestPanicsOfWorkerOptions(t *testing.T) {
	boom := func(worker.Event) { panic("the event") }
	for name, o := range map[string]worker.Options{
		"RetryDelay": {RetryDelay: func(int, error) time.Duration { panic("the delay") }},
		"Limiter":    {Limiter: brokenLimiter{}},
		"Received":   {Events: worker.Events{Received: boom}},
		"Started":    {Events: worker.Events{Started: boom}},
		"Done":       {Events: worker.Events{Done: boom}},
		"Failed":     {Events: worker.Events{Failed: boom}},
		"Logger":     {Logger: slog.New(&brokenLog{})},
		"OnError":    {OnError: func(error) { panic("the report") }},
		"both":       {OnError: func(error) { panic("the report") }, Logger: slog.New(&brokenLog{})},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, layer.Config{Retry: eachSecond}, func(b *bubble) {
				b.fill(3)
				o.Concurrency = 1
				if o.OnError == nil {
					o.OnError = b.onError
				}
				w, err := plainWorker(b.q, func(_ context.Context, item layer.Item) error {
					if b.called(item) == 1 && string(item.Body) == "1" {
						return errors.New("failed")
					}
					return nil
				}, o)
				b.run(w, err, time.Minute)
				require.Equal(t, map[string]int{"0": 1, "1": 2, "2": 1}, b.seen())
				s := b.stats()
				require.EqualValues(t, 3, s.Acked)
				require.EqualValues(t, 1, s.Nacked)
				require.Zero(t, s.DeadLettered)
				told := ""
				for _, err := range b.reported() {
					told += err.Error()
				}
				if name != "OnError" && name != "both" {
					require.Contains(t, told, "panic: the ")
					require.Contains(t, told, "panic_test.go", "the stack")
				}
			})
		})
	}
}

// TestPanicOfNext: while Options.Next panics nothing is received, and the items handled before are acked at once.
func TestPanicOfNext(t *testing.T) {
	inBubble(t, layer.Config{Retry: eachSecond}, func(b *bubble) {
		b.fill(1)
		asked := 0
		w, err := plainWorker(b.q, func(_ context.Context, item layer.Item) error {
			b.called(item)
			return nil
		}, worker.Options{Concurrency: 1, OnError: b.onError, Next: func() (layer.Template, *string) {
			if asked++; asked > 1 && asked < 10 {
				panic("the next")
			}
			return nil, nil
		}})
		b.run(w, err, time.Minute)
		require.Equal(t, map[string]int{"0": 1}, b.seen())
		require.EqualValues(t, 1, b.stats().Acked)
		require.NotEmpty(t, b.reported())
		require.ErrorContains(t, b.reported()[0], "panic: the next")
	})
}

// TestPanicsOfHandleOptions: a panic of a hook, of the clock or of a hook's log changes nothing for the operations of a
// handle, and nothing for a worker's.
func TestPanicsOfHandleOptions(t *testing.T) {
	inBubble(t, layer.Config{Retry: eachSecond}, func(b *bubble) {
		var clock atomic.Bool
		q, err := layer.Open(b.t.Context(), b.db, testPrefix, testQueue, layer.Options{
			Hooks: []layer.Hook{
				{Begin: func(context.Context, *layer.Operation) context.Context { panic("the begin") }},
				{Begin: func(context.Context, *layer.Operation) context.Context { return nil }},
				{End: func(context.Context, *layer.Operation) { panic("the end") }},
				layer.LogHook(slog.New(&brokenLog{})),
			},
			Now: func() time.Time {
				if clock.Swap(!clock.Load()) {
					panic("the clock")
				}
				return time.Now()
			},
		})
		require.NoError(t, err)
		ctx := b.t.Context()
		_, err = q.Enqueue(ctx, bodiesIn("A", "0", "1", "2", "3")...)
		require.NoError(t, err)
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.NoError(t, q.Ack(ctx, claims[0]))
		w, err := plainWorker(q, func(_ context.Context, item layer.Item) error {
			b.called(item)
			return nil
		}, worker.Options{Concurrency: 2, Logger: slog.New(slog.DiscardHandler)})
		b.run(w, err, time.Minute)
		require.Equal(t, map[string]int{"1": 1, "2": 1, "3": 1}, b.seen())
		require.NoError(t, q.Close(ctx))
	})
}

// TestPanicLeavesHandleUsable: a panic of a function that a call runs in the caller's own goroutine comes back to the
// caller. If the caller recovers, the handle works as before, for this caller and for others.
func TestPanicLeavesHandleUsable(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		ctx, a := b.t.Context(), b.q.Admin()
		ids, err := b.q.Enqueue(ctx, bodiesIn("dead", "1")...)
		require.NoError(t, err)
		waiting, err := b.q.Enqueue(ctx, bodiesIn("waiting", "1")...)
		require.NoError(t, err)
		_, err = a.Skip(ctx, "dead", layer.SkipOptions{})
		require.NoError(t, err)
		dead := layer.DeadFilter{IDs: []layer.ID{ids[0].ID}}
		for name, call := range map[string]func() error{
			"Once": func() error { return b.q.Once(ctx, func(kv.Tx) error { panic("boom") }) },
			"Configure": func() error {
				_, _, err := a.Configure(ctx, func(*layer.Config) { panic("boom") })
				return err
			},
			"Edit": func() error {
				return a.Edit(ctx, waiting[0].ID, func(*layer.Message) error { panic("boom") })
			},
			"Redrive, Edit": func() error {
				_, err := a.Redrive(ctx, dead, layer.RedriveOptions{
					Edit: func(layer.DeadLetter, *layer.Message) error { panic("boom") },
				})
				return err
			},
			"Redrive, Progress": func() error {
				_, err := a.Redrive(ctx, dead, layer.RedriveOptions{
					DryRun: true, Progress: func(layer.DeadReport) { panic("boom") },
				})
				return err
			},
			"Check": func() error {
				_, err := a.Check(ctx, layer.CheckOptions{Progress: func(int64) { panic("boom") }})
				return err
			},
		} {
			func() {
				defer func() {
					if r := recover(); name != "Check" { // which may have nothing to tell
						require.Equal(t, "boom", r, name)
					}
				}()
				require.NoError(t, call(), name)
			}()
			done := make(chan error)
			go func() {
				_, err := b.q.Enqueue(ctx, bodiesIn("A", name)...)
				done <- err
			}()
			require.NoError(t, <-done, name)
			group := "A"
			claims, err := b.q.Receive(ctx, layer.ReceiveOptions{Group: &group})
			require.NoError(t, err, name)
			require.Len(t, claims, 1, name)
			require.NoError(t, b.q.Ack(ctx, claims[0]), name)
		}
	})
}

// TestPanicOfAdvance: a panic of Settlement.Change is the error of its settlement, with the stack, and not that of the
// operations that share its transaction. The claim is unchanged. So it is if Change ends its goroutine.
func TestPanicOfAdvance(t *testing.T) {
	t.Run("panic", func(t *testing.T) {
		failsInChange(t, func() { panic("boom") }, "panic: boom", "panic_test.go")
	})
	t.Run("Goexit", func(t *testing.T) { failsInChange(t, runtime.Goexit, "runtime.Goexit", "Settlement.Change") })
}

func failsInChange(t *testing.T, fail func(), text, where string) {
	t.Helper()
	inBubble(t, layer.Config{Facets: []string{"state"}, Views: "*; state"}, func(b *bubble) {
		ctx := b.t.Context()
		_, err := b.q.Enqueue(ctx, append(bodiesIn("A", "1"), bodiesIn("B", "1")...)...)
		require.NoError(t, err)
		claims, err := b.q.Receive(ctx, layer.ReceiveOptions{Strategy: layer.Heads})
		require.NoError(t, err)
		require.Len(t, claims, 2)
		err = b.q.Settle(ctx, layer.Settlement{
			Claim: claims[0], AdvanceAll: true, Change: func(layer.ID, *layer.Message) error {
				fail()
				return nil
			},
		}, layer.Settlement{Claim: claims[1], FinishAll: true})
		require.ErrorContains(t, err, text)
		require.ErrorContains(t, err, where)
		var failed *layer.ClaimError
		require.ErrorAs(t, err, &failed)
		require.Same(t, claims[0], failed.Claim)
		require.EqualValues(t, 1, b.stats().Depth, "the other claim is acked")
		require.NoError(t, b.q.Ack(ctx, claims[0]))
	})
}

// TestPanicsOfSubscribe: a panic or an exit of OnError ends no subscription, an error whose methods panic is a
// handler's error, and a handler that ends its goroutine has not seen its changes. The error names the first change,
// also if the handler has cleared the slice.
func TestPanicsOfSubscribe(t *testing.T) {
	type handler = func(ctx context.Context, changes []layer.Change) error
	type subscribe func(ctx context.Context, q *layer.Queue, h handler, o layer.SubscribeOptions) error
	plain := func(parallel int) subscribe {
		return func(ctx context.Context, q *layer.Queue, h handler, o layer.SubscribeOptions) error {
			o.Parallel = parallel
			return q.Subscribe(ctx, "s", h, o)
		}
	}
	kinds := map[string]subscribe{
		"one call": plain(1), "parallel": plain(2),
		"tx": func(ctx context.Context, q *layer.Queue, h handler, o layer.SubscribeOptions) error {
			inTx := func(ctx context.Context, _ kv.Tx, changes []layer.Change) error { return h(ctx, changes) }
			return q.SubscribeTx(ctx, "s", inTx, o)
		},
	}
	exit := func() error {
		runtime.Goexit()
		return nil
	}
	for name, fail := range map[string]func() error{
		"panic":        func() error { panic("boom") },
		"broken error": func() error { return (*brokenError)(nil) },
		"Goexit":       exit,
	} {
		for kind, subscribe := range kinds {
			t.Run(name+", "+kind, func(t *testing.T) {
				inBubble(t, layer.Config{Changes: time.Hour}, func(b *bubble) {
					var calls, seen atomic.Int64
					ctx, cancel := context.WithCancel(b.t.Context())
					done := make(chan error, 1)
					go func() {
						defer close(done)
						done <- subscribe(ctx, b.q, func(_ context.Context, changes []layer.Change) error {
							if calls.Add(1) <= 2 {
								clear(changes)
								return fail()
							}
							seen.Add(int64(len(changes)))
							return nil
						}, layer.SubscribeOptions{FromOldest: true, OnError: func(err error) {
							b.onError(err)
							_ = fail()
							panic("the report")
						}})
					}()
					b.fill(3)
					time.Sleep(time.Minute)
					cancel()
					err, returned := <-done
					require.True(t, returned)
					require.NoError(t, err)
					require.EqualValues(t, 3, seen.Load())
					require.NotEmpty(t, b.reported())
					failed := new(layer.ChangeError)
					require.ErrorAs(t, b.reported()[0], &failed)
					require.NotZero(t, failed.First.ID)
					require.True(t, strings.Contains(failed.Error(), "panic") || name == "Goexit")
				})
			})
		}
	}
}
