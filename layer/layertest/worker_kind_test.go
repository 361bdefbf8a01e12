package layer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// worker makes a worker of the bubble's queue that logs nothing.
func (b *bubble) worker(h worker.Handler, o worker.Options) *worker.Worker {
	b.t.Helper()
	o.OnError = b.onError
	w, err := worker.New(b.q, h, quiet(o))
	require.NoError(b.t, err)
	return w
}

// kinds are handlers of each kind that do fn.
func (b *bubble) kinds(fn func(ctx context.Context, d *worker.Delivery) error) map[string]worker.Handler {
	return map[string]worker.Handler{
		"Handle": worker.Handle(fn),
		"HandleTx": worker.HandleTx(func(ctx context.Context, tx kv.Tx, d *worker.Delivery) error {
			addOne(tx, d.Item)
			return fn(ctx, d)
		}),
		"HandleCommit": worker.HandleCommit(
			func(ctx context.Context, d *worker.Delivery) (string, error) { return string(d.Body), fn(ctx, d) },
			func(_ context.Context, tx kv.Tx, d *worker.Delivery, result string) error {
				require.Equal(b.t, string(d.Body), result)
				addOne(tx, d.Item)
				return nil
			}),
		"HandleBatch": worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
			for i, d := range ds {
				if err := fn(ctx, d); err != nil {
					return &worker.BatchError{Done: i, Err: err}
				}
			}
			return nil
		}),
	}
}

// onKinds runs a test with handlers of each kind, which do fn.
func onKinds(
	t *testing.T, c layer.Config, fn func(b *bubble, ctx context.Context, d *worker.Delivery) error,
	test func(b *bubble, h worker.Handler),
) {
	for _, kind := range []string{"Handle", "HandleTx", "HandleCommit", "HandleBatch"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, c, func(b *bubble) {
				test(b, b.kinds(func(ctx context.Context, d *worker.Delivery) error { return fn(b, ctx, d) })[kind])
			})
		})
	}
}

// TestKinds: handlers of every kind are called once for each item, with its delivery; an item that a handler rejects
// becomes a dead letter, and those before it in a batch are not handled again.
func TestKinds(t *testing.T) {
	onKinds(t, layer.Config{MaxAttempts: 1}, func(b *bubble, _ context.Context, d *worker.Delivery) error {
		b.called(d.Item)
		if string(d.Body) == "x" {
			return &worker.RejectError{Reason: "body cannot be decoded"}
		}
		require.Equal(b.t, 1, d.Attempt)
		require.NotZero(b.t, d.Token)
		require.Same(b.t, b.q, d.Queue)
		require.InDelta(b.t, 30*time.Second, time.Until(d.Until()), float64(time.Second))
		return nil
	}, func(b *bubble, h worker.Handler) {
		b.fill(5)
		_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: "A", Body: []byte("x")})
		require.NoError(b.t, err)
		b.run(b.worker(h, worker.Options{Concurrency: 1}), nil, time.Second)
		require.Equal(b.t, map[string]int{"0": 1, "1": 1, "2": 1, "3": 1, "4": 1, "x": 1}, b.seen())
		page, err := b.q.Admin().DeadLetters(b.t.Context(), layer.DeadOptions{})
		require.NoError(b.t, err)
		require.Len(b.t, page.Letters, 1)
		require.Equal(b.t, "body cannot be decoded", page.Letters[0].Reason)
	})
}

// TestTimeout: a handler's context ends after Timeout, and that is a failed attempt of the item, not of those before
// it.
func TestTimeout(t *testing.T) {
	onKinds(t, layer.Config{MaxAttempts: 2, Retry: eachSecond},
		func(b *bubble, ctx context.Context, d *worker.Delivery) error {
			b.called(d.Item)
			if string(d.Body) == "1" {
				<-ctx.Done()
			}
			return ctx.Err()
		},
		func(b *bubble, h worker.Handler) {
			b.fill(3)
			b.run(b.worker(h, worker.Options{Timeout: 3 * time.Second}), nil, time.Minute)
			require.Equal(b.t, map[string]int{"0": 1, "1": 2, "2": 1}, b.seen())
			require.Len(b.t, b.reported(), 2)
			require.ErrorIs(b.t, b.reported()[0], context.DeadlineExceeded)
			require.ErrorContains(b.t, b.reported()[0], "has not ended after 3s")
		})
}

// TestLateSuccess: a handler that returns nil after the end of its context has handled its item: by its timeout, or
// because Stop has ended the context. Each kind of handler is called once.
func TestLateSuccess(t *testing.T) {
	for name, stops := range map[string]bool{"timeout": false, "stop": true} {
		t.Run(name, func(t *testing.T) {
			onKinds(t, layer.Config{MaxAttempts: 2}, func(b *bubble, ctx context.Context, d *worker.Delivery) error {
				b.called(d.Item)
				<-ctx.Done()
				time.Sleep(500 * time.Millisecond)
				return nil
			}, func(b *bubble, h worker.Handler) {
				b.fill(1)
				o := worker.Options{Concurrency: 1, Timeout: 3 * time.Second}
				if stops {
					o.Timeout = -1
				}
				w := b.worker(h, o)
				w.Start()
				time.Sleep(2 * time.Second)
				if !stops {
					time.Sleep(3 * time.Second)
				}
				ctx, cancel := context.WithCancel(b.t.Context())
				cancel()
				_ = w.Stop(ctx) // if a handler was called, a *StopError in any case
				require.Equal(b.t, map[string]int{"0": 1}, b.seen())
				require.Empty(b.t, b.reported())
				require.EqualValues(b.t, 1, b.stats().Acked)
				require.Zero(b.t, b.stats().Nacked)
			})
		})
	}
}

// TestStuck: a handler that does not heed its context is reported with its stack, and the only goroutine of a worker
// that stays continues with other groups. The worker does not handle the item again. Stop does not wait for it.
func TestStuck(t *testing.T) {
	onKinds(t, layer.Config{Lease: 5 * time.Second}, func(b *bubble, _ context.Context, d *worker.Delivery) error {
		if b.called(d.Item) == 1 && string(d.Body) == "0" {
			time.Sleep(time.Hour)
		}
		return nil
	}, func(b *bubble, h worker.Handler) {
		b.fill(1)
		w := b.worker(h, worker.Options{Concurrency: 1, Timeout: 3 * time.Second, StayWhenStuck: true})
		w.Start()
		time.Sleep(time.Second)
		_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: "B", Body: []byte("other")})
		require.NoError(b.t, err)
		time.Sleep(30 * time.Second)
		require.Equal(b.t, map[string]int{"0": 1, "other": 1}, b.seen())
		var stuck *worker.StuckError
		require.ErrorAs(b.t, b.reported()[0], &stuck)
		require.Equal(b.t, "A", stuck.ID.Group)
		require.Contains(b.t, stuck.Stack, "time.Sleep")
		var stopped *worker.StopError
		require.ErrorAs(b.t, w.Stop(b.t.Context()), &stopped)
		require.NoError(b.t, stopped.Err)
		require.Len(b.t, stopped.Running, 1)
		require.Equal(b.t, stuck.ID, stopped.Running[0].ID)
		require.EqualValues(b.t, 1, b.stats().Acked)
		time.Sleep(time.Hour)
	})
}

// TestStopReturnsInTime: Stop returns within a second of the end of its context, whatever handlers do.
func TestStopReturnsInTime(t *testing.T) {
	onKinds(t, layer.Config{}, func(_ *bubble, _ context.Context, _ *worker.Delivery) error {
		time.Sleep(time.Hour)
		return nil
	}, func(b *bubble, h worker.Handler) {
		b.fill(1)
		w := b.worker(h, worker.Options{Timeout: -1})
		w.Start()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(b.t.Context(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		var stopped *worker.StopError
		require.ErrorAs(b.t, w.Stop(ctx), &stopped)
		require.Equal(b.t, 6*time.Second, time.Since(begun))
		require.ErrorIs(b.t, stopped, context.DeadlineExceeded)
		require.Len(b.t, stopped.Running, 1)
		require.Contains(b.t, stopped.Error(), stopped.Running[0].ID.String())
		time.Sleep(time.Hour)
	})
}

// TestRetryError: the handler says when its item comes again, and whether the attempt counts.
func TestRetryError(t *testing.T) {
	for _, uncounted := range []bool{false, true} {
		onKinds(t, layer.Config{MaxAttempts: 3}, func(b *bubble, _ context.Context, d *worker.Delivery) error {
			if b.called(d.Item) < 3 {
				again := &worker.RetryError{After: 20 * time.Second, Uncounted: uncounted, Err: errors.New("429")}
				return fmt.Errorf("busy: %w", again)
			}
			attempts := map[bool]int{false: 2}[uncounted]
			require.Equal(b.t, attempts, d.Attempts)
			return nil
		}, func(b *bubble, h worker.Handler) {
			b.fill(1)
			w := b.worker(h, worker.Options{})
			w.Start()
			time.Sleep(39 * time.Second)
			require.Equal(b.t, map[string]int{"0": 2}, b.seen())
			time.Sleep(2 * time.Second)
			require.NoError(b.t, w.Stop(b.t.Context()))
			require.Equal(b.t, map[string]int{"0": 3}, b.seen())
			require.EqualValues(b.t, 1, b.stats().Acked)
		})
	}
}

// TestRun: Run ends with its context, after the handler, without an error. It ends by itself when the queue is gone, or
// its handle is closed.
func TestRun(t *testing.T) {
	slow := func(_ *bubble, _ context.Context, _ *worker.Delivery) error {
		time.Sleep(3 * time.Second)
		return nil
	}
	onKinds(t, layer.Config{}, slow, func(b *bubble, h worker.Handler) {
		b.fill(1)
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		require.NoError(b.t, b.worker(h, worker.Options{}).Run(ctx))
		require.Equal(b.t, 3*time.Second, time.Since(begun))
		require.EqualValues(b.t, 1, b.stats().Acked)
	})
	onKinds(t, layer.Config{}, slow, func(b *bubble, h worker.Handler) {
		gone := make(chan worker.Event, 10)
		hooks := worker.Events{Gone: func(e worker.Event) { gone <- e }}
		time.AfterFunc(time.Second, func() {
			_ = layer.Drop(b.t.Context(), b.db, testPrefix, testQueue, layer.DropOptions{})
		})
		require.ErrorIs(b.t, b.worker(h, worker.Options{Events: hooks}).Run(b.t.Context()), layer.ErrNoQueue)
		require.Equal(b.t, testQueue, (<-gone).Queue)
		require.Empty(b.t, gone)
	})
	onKinds(t, layer.Config{}, slow, func(b *bubble, h worker.Handler) {
		time.AfterFunc(time.Second, func() { _ = b.q.Close(b.t.Context()) })
		w := b.worker(h, worker.Options{})
		require.ErrorIs(b.t, w.Run(b.t.Context()), layer.ErrClosed)
		require.ErrorIs(b.t, w.Stop(b.t.Context()), layer.ErrClosed)
	})
}

// TestSeveralQueues: one worker serves several queues in equal parts, is woken for each, and goes on without one that
// is dropped.
func TestSeveralQueues(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		second, err := layer.Create(b.t.Context(), b.db, testPrefix, "second", layer.Options{})
		require.NoError(b.t, err)
		given := make(map[string]int)
		h := worker.Handle(func(_ context.Context, d *worker.Delivery) error {
			b.mu.Lock()
			given[d.Queue.Name()]++
			b.mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		handled := func() map[string]int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return maps.Clone(given)
		}
		for i := range 400 {
			for _, q := range []*layer.Queue{b.q, second} {
				_, err := q.Enqueue(b.t.Context(), layer.Message{Group: fmt.Sprint(i)})
				require.NoError(b.t, err)
			}
		}
		w := b.worker(h, worker.Options{
			Concurrency: 4, Also: []worker.Source{{Queue: second, Handler: h}},
		})
		w.Start()
		time.Sleep(9 * time.Second)
		so := handled()
		require.InDelta(b.t, so["second"], so[testQueue], 10, "%v", so)
		time.Sleep(time.Minute)
		require.Equal(b.t, map[string]int{testQueue: 400, "second": 400}, handled())
		for _, q := range []*layer.Queue{second, b.q, second} {
			_, err := q.Enqueue(b.t.Context(), layer.Message{})
			require.NoError(b.t, err)
			time.Sleep(200 * time.Millisecond)
		}
		require.Equal(b.t, map[string]int{testQueue: 401, "second": 402}, handled())
		require.NoError(b.t, layer.Drop(b.t.Context(), b.db, testPrefix, "second", layer.DropOptions{}))
		time.Sleep(time.Minute)
		_, err = b.q.Enqueue(b.t.Context(), layer.Message{})
		require.NoError(b.t, err)
		time.Sleep(time.Second)
		require.Equal(b.t, 402, handled()[testQueue])
		require.NoError(b.t, w.Stop(b.t.Context()))
		_ = second.Close(b.t.Context())
	})
}

// pace is a limiter.
type pace struct{ c chan struct{} }

func (p pace) Wait(ctx context.Context) error {
	select {
	case <-p.c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestLimiter: the worker waits for the limiter before each item. It extends the claim during the wait, and waits no
// longer than until Stop.
func TestLimiter(t *testing.T) {
	onKinds(t, layer.Config{Lease: 3 * time.Second}, func(b *bubble, _ context.Context, d *worker.Delivery) error {
		b.called(d.Item)
		return nil
	}, func(b *bubble, h worker.Handler) {
		b.fill(10)
		p := pace{make(chan struct{})}
		w := b.worker(h, worker.Options{Concurrency: 1, Batch: 2, Limiter: p})
		w.Start()
		for range 6 {
			p.c <- struct{}{}
			time.Sleep(10 * time.Second)
		}
		require.NoError(b.t, w.Stop(b.t.Context()))
		require.Empty(b.t, b.reported())
		require.EqualValues(b.t, 6, b.stats().Acked)
		require.Len(b.t, b.seen(), 6)
	})
}

// deafLimiter lets one item through, and then ignores the end of its context for a time.
type deafLimiter struct {
	calls int
	lasts time.Duration
}

func (l *deafLimiter) Wait(context.Context) error {
	if l.calls++; l.calls > 1 {
		time.Sleep(l.lasts)
	}
	return nil
}

// TestLimiterIgnoresStop: a worker keeps its claim while it waits, after Stop, for a limiter that ignores its context
// for longer than the lease. Then it gives the claim back, and another handle has the rest without a counted attempt.
func TestLimiterIgnoresStop(t *testing.T) {
	t.Parallel()
	onKinds(t, layer.Config{Lease: 2 * time.Second}, func(b *bubble, _ context.Context, d *worker.Delivery) error {
		b.called(d.Item)
		return nil
	}, func(b *bubble, h worker.Handler) {
		b.fill(3)
		w := b.worker(h, worker.Options{Concurrency: 1, Batch: 3, Limiter: &deafLimiter{lasts: 4 * time.Second}})
		w.Start()
		synctest.Wait()
		stopped := make(chan error)
		go func() { stopped <- w.Stop(b.t.Context()) }()
		other, err := layer.Open(b.t.Context(), b.db, testPrefix, testQueue, layer.Options{})
		require.NoError(b.t, err)
		claims, err := other.Receive(b.t.Context(), layer.ReceiveOptions{Max: 10, Wait: time.Minute})
		require.NoError(b.t, err)
		require.NoError(b.t, <-stopped)
		require.Empty(b.t, b.reported(), "the claim was not lost")
		require.NotEmpty(b.t, claims)
		require.Zero(b.t, claims[0].Items[0].Attempts)
		require.NoError(b.t, other.Ack(b.t.Context(), claims[0]))
		require.NoError(b.t, other.Close(b.t.Context()))
	})
}

// TestLimiterHangsBeforeABatch: after Stop, a worker waits once for a limiter that ignores its context, and not once
// for each item of a batch.
func TestLimiterHangsBeforeABatch(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		b.fill(100)
		none := worker.HandleBatch(func(context.Context, []*worker.Delivery) error { return nil })
		w := b.worker(none, worker.Options{Concurrency: 1, Batch: 100, Limiter: &deafLimiter{lasts: time.Hour}})
		w.Start()
		synctest.Wait()
		begun := time.Now()
		require.NoError(b.t, w.Stop(b.t.Context()))
		require.LessOrEqual(b.t, time.Since(begun), 10*time.Second)
		require.Len(b.t, b.reported(), 1, "the limiter is stuck")
		require.Zero(b.t, b.stats().Acked)
		time.Sleep(time.Hour)
	})
}

// TestHooks: hooks and the log are told what becomes of claims and items, and no bodies.
func TestHooks(t *testing.T) {
	c := layer.Config{MaxAttempts: 2, Lease: 2 * time.Second}
	onKinds(t, c, func(_ *bubble, _ context.Context, d *worker.Delivery) error {
		if string(d.Body) == "0" {
			return errors.New("no luck")
		}
		return nil
	}, func(b *bubble, h worker.Handler) {
		var text bytes.Buffer
		var met []string
		note := func(kind string) func(worker.Event) {
			return func(e worker.Event) {
				met = append(met, fmt.Sprint(kind, " ", e.Attempt, " ", e.Follows, " ", e.Waits))
			}
		}
		b.fill(2)
		_, err := b.q.Receive(b.t.Context(), layer.ReceiveOptions{Max: 1}) // its lease ends
		require.NoError(b.t, err)
		b.run(b.worker(h, worker.Options{
			Concurrency: 1, Batch: 1,
			Logger: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Events: worker.Events{
				TakenOver: note("taken over"), Done: note("done"), Failed: note("failed"), DeadLettered: note("dead"),
				Lost: note("lost"), Stuck: note("stuck"), Started: note("started"),
			},
		}), nil, time.Minute)
		require.Equal(b.t, []string{
			"taken over 2  0s", "started 2  0s", "failed 2 dead letter 0s", "dead 2 dead letter 0s",
			"started 1  0s", "done 1  0s",
		}, met)
		for _, want := range []string{
			"worker started", "taken over", "level=DEBUG msg=\"worker: done\"", "level=WARN msg=\"worker: failed\"",
			"level=ERROR msg=\"worker: dead letter\"", "no luck", "worker stops",
		} {
			require.Contains(b.t, text.String(), want)
		}
	})
}

// TestAckTravels: the ack of an item travels while the next one is being handled, and is there before that one is done;
// so a worker that dies amid an item leaves no other to be handled again. A failure of the next item changes nothing.
func TestAckTravels(t *testing.T) {
	inBubble(t, layer.Config{MaxAttempts: 2, Retry: eachSecond}, func(b *bubble) {
		b.fill(5)
		w, err := plainWorker(b.q, func(_ context.Context, item layer.Item) error {
			n := b.called(item)
			time.Sleep(time.Second)
			if string(item.Body) == "2" && n == 1 {
				return errors.New("once")
			}
			return nil
		}, worker.Options{Concurrency: 1, OnError: b.onError})
		require.NoError(t, err)
		w.Start()
		for i := range 2 {
			time.Sleep(1100 * time.Millisecond) // amid the second item, and amid the third
			require.EqualValues(b.t, i+1, b.stats().Acked)
		}
		time.Sleep(10 * time.Second)
		require.NoError(b.t, w.Stop(b.t.Context()))
		require.EqualValues(b.t, 5, b.stats().Acked)
		require.Equal(b.t, map[string]int{"0": 1, "1": 1, "2": 2, "3": 1, "4": 1}, b.seen())
		require.Len(b.t, b.reported(), 1)
	})
}

// TestClaimLostAmidAck: an ack that travels finds the claim lost, and the handler of the next item is told by its
// context; nothing is handled under the claim after that.
func TestClaimLostAmidAck(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		b.fill(3)
		w, err := plainWorker(b.q, func(ctx context.Context, item layer.Item) error {
			if n := b.called(item); n > 1 || string(item.Body) == "2" {
				return nil
			}
			if string(item.Body) == "0" {
				_, err := b.q.Admin().ForceRelease(ctx, "A", layer.ForceReleaseOptions{})
				return err
			}
			<-ctx.Done()
			b.onError(context.Cause(ctx))
			return context.Cause(ctx)
		}, worker.Options{Concurrency: 1, Lease: time.Minute, OnError: b.onError})
		b.run(w, err, 10*time.Second)
		require.Equal(b.t, map[string]int{"0": 2, "1": 2, "2": 1}, b.seen())
		require.Len(b.t, b.reported(), 2)
		for _, err := range b.reported() {
			require.ErrorIs(b.t, err, layer.ErrClaimLost)
		}
		require.EqualValues(b.t, 3, b.stats().Acked)
	})
}
