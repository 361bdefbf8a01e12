package layer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
	"fdbfifo/worker"
)

// Handlers that never return.

// hangs enqueues n items whose handlers never return, each into a group of its own, and returns the handler.
func (b *bubble) hangs(n int) (h worker.Handler, free func()) {
	b.t.Helper()
	b.scatter(n)
	gate := make(chan struct{})
	return worker.Handle(func(_ context.Context, d *worker.Delivery) error {
		if b.called(d.Item); string(d.Body) != "good" {
			<-gate
		}
		return nil
	}), func() { close(gate) }
}

func (b *bubble) good() {
	b.t.Helper()
	_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: "good", Body: []byte("good")})
	require.NoError(b.t, err)
}

// TestStuckHandlersEndTheWorker: Run ends when as many handlers are stuck as the worker has goroutines. Its error names
// them. Each is called once and reported once.
func TestStuckHandlersEndTheWorker(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 8} {
		inBubble(t, layer.Config{Lease: 5 * time.Second}, func(b *bubble) {
			h, free := b.hangs(n)
			var told atomic.Int64
			w := b.worker(h, worker.Options{
				Concurrency: n, Timeout: 10 * time.Second,
				Events: worker.Events{Stuck: func(worker.Event) { told.Add(1) }},
			})
			begun := time.Now()
			err := w.Run(b.t.Context())
			require.ErrorIs(b.t, err, worker.ErrStuck)
			require.Less(b.t, time.Since(begun), 17*time.Second)
			var stopped *worker.StopError
			require.ErrorAs(b.t, err, &stopped)
			require.Len(b.t, stopped.Running, n)
			require.EqualValues(b.t, n, told.Load())
			require.Len(b.t, b.reported(), n+1)
			for _, calls := range b.seen() {
				require.Equal(b.t, 1, calls)
			}
			free()
			time.Sleep(time.Minute)
		})
	}
}

// TestStuckItemsGoToOthers: a worker that stays serves the other items, and is not given again those whose handlers are
// stuck in it; another process handles them.
func TestStuckItemsGoToOthers(t *testing.T) {
	t.Parallel()
	for _, beat := range []bool{false, true} {
		inBubble(t, layer.Config{Lease: 5 * time.Second, MaxAttempts: 3}, func(b *bubble) {
			h, free := b.hangs(8)
			w := b.worker(h, worker.Options{
				Concurrency: 8, Timeout: 10 * time.Second, StayWhenStuck: true, Heartbeat: beat,
			})
			w.Start()
			time.Sleep(time.Minute)
			b.good()
			time.Sleep(time.Second)
			require.Equal(b.t, 1, b.seen()["good"])
			for i := range 8 {
				require.Equal(b.t, 1, b.seen()[fmt.Sprint(i)])
			}
			require.Zero(b.t, b.stats().DeadLettered)
			other := b.worker(worker.Handle(func(_ context.Context, d *worker.Delivery) error {
				b.called(d.Item)
				return nil
			}), worker.Options{})
			b.run(other, nil, time.Minute)
			require.EqualValues(b.t, 9, b.stats().Acked)
			for i := range 8 {
				require.Equal(b.t, 2, b.seen()[fmt.Sprint(i)])
			}
			free()
			time.Sleep(time.Minute)
			require.NoError(b.t, w.Stop(b.t.Context()))
		})
	}
}

// TestStuckHook: a worker continues without a hook that never returns, and reports it. It does not call the hook again
// while the call hangs, so a hundred messages wait for it once.
func TestStuckHook(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		b.fill(100)
		gate := make(chan struct{})
		var begun atomic.Int64
		w := b.worker(worker.Handle(func(_ context.Context, d *worker.Delivery) error {
			b.called(d.Item)
			return nil
		}), worker.Options{Concurrency: 1, Events: worker.Events{Started: func(worker.Event) {
			begun.Add(1)
			<-gate
		}}})
		w.Start()
		time.Sleep(3 * time.Minute)
		require.EqualValues(b.t, 100, b.stats().Acked)
		require.Len(b.t, b.seen(), 100)
		require.EqualValues(b.t, 1, begun.Load())
		require.Len(b.t, b.reported(), 1)
		var stuck *worker.StuckError
		require.ErrorAs(b.t, b.reported()[0], &stuck)
		require.Contains(b.t, stuck.Stack, "TestStuckHook")
		close(gate)
		time.Sleep(time.Second)
		b.fill(1)
		time.Sleep(time.Second)
		require.EqualValues(b.t, 2, begun.Load())
		require.NoError(b.t, w.Stop(b.t.Context()))
	})
}
