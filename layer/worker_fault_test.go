package layer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// Workers in virtual time: handlers that are slow, hang, or end their goroutine.

// bubble is a queue in memory whose time is virtual, and what its workers' handlers saw.
type bubble struct {
	t  *testing.T
	q  *layer.Queue
	db kv.DB

	mu    sync.Mutex
	calls map[string]int // of handlers, by the body; guarded by mu
	errs  []error        // that workers have reported; guarded by mu
}

// eachSecond tries what has failed again after a second.
var eachSecond = layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Second}

// inBubble runs fn with an empty queue in a bubble of testing/synctest.
func inBubble(t *testing.T, c layer.Config, fn func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{Config: c})
		require.NoError(t, err)
		b := &bubble{t: t, q: q, db: db, calls: make(map[string]int)}
		fn(b)
		_ = q.Close(context.Background())
	})
}

func (b *bubble) onError(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errs = append(b.errs, err)
}

func (b *bubble) reported() []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.errs
}

// called counts a call and returns its number, from 1 on.
func (b *bubble) called(item layer.Item) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[string(item.Body)]++
	return b.calls[string(item.Body)]
}

// seen is a copy of the calls so far.
func (b *bubble) seen() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.calls)
}

// fill enqueues n items into group A, with their numbers as bodies.
func (b *bubble) fill(n int) {
	b.t.Helper()
	var msgs []layer.Message
	for i := range n {
		msgs = append(msgs, layer.Message{Group: "A", Body: fmt.Append(nil, i)})
	}
	_, err := b.q.Enqueue(b.t.Context(), msgs...)
	require.NoError(b.t, err)
}

func (b *bubble) stats() layer.Stats {
	b.t.Helper()
	s, err := b.q.Stats(b.t.Context())
	require.NoError(b.t, err)
	return s
}

// run lets a worker work for as long as told, and stops it.
func (b *bubble) run(w *layer.Worker, err error, d time.Duration) {
	b.t.Helper()
	require.NoError(b.t, err)
	w.Start()
	time.Sleep(d)
	require.NoError(b.t, w.Stop(b.t.Context()))
}

// eachOnce: every item was handled once, and is gone.
func (b *bubble) eachOnce(n int) {
	b.t.Helper()
	require.Empty(b.t, b.reported())
	require.EqualValues(b.t, n, b.stats().Acked)
	for i := range n {
		require.Equal(b.t, 1, b.calls[fmt.Sprint(i)], "calls for %d", i)
	}
}

// TestSlowHandlers: a handler that takes longer than a third of the lease is called once for each item, in a
// transaction or not: the worker's extension of the claim does not meet the transaction. Guard extend-apart.
func TestSlowHandlers(t *testing.T) {
	for _, c := range []struct{ lease, takes time.Duration }{
		{3 * time.Second, 1100 * time.Millisecond},
		{30 * time.Second, 4500 * time.Millisecond},
		{time.Second, 4 * time.Second},
	} {
		handle := func(b *bubble, item layer.Item) error {
			b.called(item)
			time.Sleep(c.takes)
			return nil
		}
		o := layer.WorkerOptions{Concurrency: 2, Batch: 10, Lease: c.lease}
		t.Run(fmt.Sprintf("plain, %s of %s", c.takes, c.lease), func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				b.fill(10)
				o.OnError = b.onError
				w, err := plainWorker(b.q, func(_ context.Context, item layer.Item) error { return handle(b, item) }, o)
				b.run(w, err, 10*c.takes+5*time.Second)
				b.eachOnce(10)
			})
		})
		t.Run(fmt.Sprintf("in a transaction, %s of %s", c.takes, c.lease), func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				b.fill(10)
				o.OnError = b.onError
				w, err := txWorker(b.q, func(_ context.Context, _ kv.Tx, item layer.Item) error {
					return handle(b, item)
				}, o)
				b.run(w, err, 10*c.takes+5*time.Second)
				b.eachOnce(10)
			})
		})
	}
}

// TestTransactionTooLong: a handler that takes longer than a transaction may is its item's failure, whether it heeds
// its context or not: it is reported, counts an attempt, and makes a dead letter of it in the end. Guard tx-bound.
func TestTransactionTooLong(t *testing.T) {
	for name, wait := range map[string]func(ctx context.Context){
		"heeds its context":   func(ctx context.Context) { <-ctx.Done() },
		"ignores its context": func(context.Context) { time.Sleep(6 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, layer.Config{MaxAttempts: 3, Retry: eachSecond}, func(b *bubble) {
				b.fill(2)
				w, err := txWorker(b.q, func(ctx context.Context, _ kv.Tx, item layer.Item) error {
					b.called(item)
					if string(item.Body) == "0" {
						wait(ctx)
					}
					return ctx.Err()
				}, layer.WorkerOptions{Concurrency: 1, OnError: b.onError})
				b.run(w, err, time.Minute)
				require.Equal(t, map[string]int{"0": 3, "1": 1}, b.seen())
				require.Len(t, b.reported(), 3)
				for _, err := range b.reported() {
					var h *layer.HandlerError
					require.ErrorAs(t, err, &h)
				}
				page, err := b.q.Admin().DeadLetters(b.t.Context(), layer.DeadOptions{Bodies: true})
				require.NoError(t, err)
				require.Len(t, page.Letters, 1)
				require.Equal(t, "0", string(page.Letters[0].Body))
				require.Equal(t, 3, page.Letters[0].Attempts)
				require.EqualValues(t, 1, b.stats().Acked)
			})
		})
	}
}

// TestStopAmidTooLong: a worker whose handler never ends within a transaction can be stopped.
func TestStopAmidTooLong(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		b.fill(1)
		w, err := txWorker(b.q, func(_ context.Context, _ kv.Tx, _ layer.Item) error {
			time.Sleep(6 * time.Second)
			return nil
		}, layer.WorkerOptions{Concurrency: 1, OnError: b.onError})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		require.NoError(t, w.Stop(ctx))
		require.Less(t, time.Since(begun), 20*time.Second)
	})
}

// TestNoLossOfOwnClaims: a worker does not report as lost what it has finished itself.
func TestNoLossOfOwnClaims(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		const n = 200
		for i := range n {
			_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: fmt.Sprint(i), Body: fmt.Append(nil, i)})
			require.NoError(t, err)
		}
		w, err := txWorker(b.q, func(_ context.Context, _ kv.Tx, item layer.Item) error {
			b.called(item)
			time.Sleep(time.Second / 3) // when an extension is due
			return nil
		}, layer.WorkerOptions{Lease: time.Second, OnError: b.onError})
		b.run(w, err, 2*time.Minute)
		b.eachOnce(n)
	})
}

// TestWorkerOfNothing: a worker needs a queue and a handler.
func TestWorkerOfNothing(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		for name, made := range map[string]func() (*layer.Worker, error){
			"no queue": func() (*layer.Worker, error) {
				return plainWorker(nil, func(context.Context, layer.Item) error { return nil }, layer.WorkerOptions{})
			},
			"no function": func() (*layer.Worker, error) {
				return plainWorker(b.q, nil, layer.WorkerOptions{})
			},
			"no function in a transaction": func() (*layer.Worker, error) {
				return txWorker(b.q, nil, layer.WorkerOptions{})
			},
		} {
			w, err := made()
			require.ErrorIs(t, err, layer.ErrOptions, name)
			require.Nil(t, w)
		}
	})
}

// TestGoexit: a handler that ends its goroutine has failed, and the worker goes on.
func TestGoexit(t *testing.T) {
	inBubble(t, layer.Config{MaxAttempts: 2, Retry: eachSecond}, func(b *bubble) {
		b.fill(3)
		w, err := plainWorker(b.q, func(_ context.Context, item layer.Item) error {
			b.called(item)
			if string(item.Body) == "1" {
				runtime.Goexit()
			}
			return nil
		}, layer.WorkerOptions{Concurrency: 1, OnError: b.onError})
		b.run(w, err, time.Minute)
		require.Equal(t, map[string]int{"0": 1, "1": 2, "2": 1}, b.seen())
		require.Len(t, b.reported(), 2)
		var h *layer.HandlerError
		require.True(t, errors.As(b.reported()[0], &h))
		require.Contains(t, h.Err.Error(), "Goexit")
	})
}
