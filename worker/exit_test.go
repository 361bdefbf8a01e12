package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestHooksOfTheHandle: a hook of the handle that ends its goroutine, panics, takes a minute or never returns costs a
// worker none of its goroutines, and no message a second call of its handler.
func TestHooksOfTheHandle(t *testing.T) {
	t.Parallel()
	wrong := map[string]func(){
		"exits":         runtime.Goexit,
		"panics":        func() { panic("the hook") },
		"takes minutes": func() { time.Sleep(2 * time.Minute) },
		"hangs":         nil,
	}
	for how, fail := range wrong {
		for _, lease := range []time.Duration{layer.MinLease, 30 * time.Second} {
			for _, begin := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, lease %s, begin %v", how, lease, begin), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						fail := fail
						if how == "hangs" {
							stop := make(chan struct{})
							defer close(stop)
							fail = func() { <-stop }
						}
						withHook(t, lease, func(b bool) {
							if b == begin {
								fail()
							}
						})
						time.Sleep(2 * time.Minute)
					})
				})
			}
		}
	}
}

// withHook has a worker handle eight messages. hook is called by the second of three hooks of the handle.
func withHook(t *testing.T, lease time.Duration, hook func(begin bool)) {
	t.Helper()
	ctx, db := context.Background(), embedded.OpenMemory(embedded.Options{})
	var told [2]struct{ begun, ended int }
	var mu sync.Mutex
	calls := make(map[string]int)
	good := func(i int) layer.Hook {
		return layer.Hook{
			Begin: func(ctx context.Context, _ *layer.Operation) context.Context {
				mu.Lock()
				defer mu.Unlock()
				told[i].begun++
				return ctx
			},
			End: func(context.Context, *layer.Operation) {
				mu.Lock()
				defer mu.Unlock()
				told[i].ended++
			},
		}
	}
	bad := layer.Hook{
		Begin: func(ctx context.Context, o *layer.Operation) context.Context {
			hook(true)
			for i := range o.Messages {
				o.SetHeader(i, "late", "yes")
			}
			return ctx
		},
		End: func(context.Context, *layer.Operation) { hook(false) },
	}
	q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{
		Config: layer.Config{Lease: lease, MaxAttempts: 1}, Hooks: []layer.Hook{good(0), bad, good(1)},
	})
	require.NoError(t, err)
	w, err := worker.New(q, worker.Handle(func(_ context.Context, d *worker.Delivery) error {
		mu.Lock()
		calls[string(d.Body)]++
		mu.Unlock()
		time.Sleep(time.Second)
		return nil
	}), worker.Options{Concurrency: 2, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	w.Start()
	for i := range 4 {
		_, err := q.Enqueue(ctx, layer.Message{Group: "a", Body: fmt.Append(nil, "a", i)},
			layer.Message{Group: "b", Body: fmt.Append(nil, "b", i)})
		require.NoError(t, err)
	}
	time.Sleep(10 * time.Minute)
	require.Equal(t, worker.Hands{All: 2, Idle: 2}, w.Hands())
	stats, err := q.Stats(ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 8, stats.Acked)
	require.Zero(t, stats.DeadLettered)
	mu.Lock()
	require.Len(t, calls, 8)
	for body, n := range calls {
		require.Equal(t, 1, n, body)
	}
	mu.Unlock()
	require.NoError(t, w.Stop(ctx))
	require.NoError(t, q.Close(ctx))
	require.NoError(t, db.Close())
	require.Equal(t, told[0], told[1])
	require.Equal(t, told[0].begun, told[0].ended)
}

// exitingError ends the goroutine that asks for its text.
type exitingError struct{}

func (exitingError) Error() string {
	runtime.Goexit()
	return ""
}

// TestPanicWithAnErrorThatExits (G7): a handler that panics with an error whose text cannot be had has failed, and its
// message and its goroutine come back.
func TestPanicWithAnErrorThatExits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := context.Background(), embedded.OpenMemory(embedded.Options{})
		q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{})
		require.NoError(t, err)
		calls := 0
		w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
			if calls++; calls == 1 {
				panic(exitingError{})
			}
			return nil
		}), worker.Options{Concurrency: 1, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, layer.Message{Group: "a"})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Second)
		stats, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.Equal(t, []int64{1, 1, 0}, []int64{stats.Nacked, stats.Acked, stats.Depth})
		require.NoError(t, w.Stop(ctx))
		require.NoError(t, q.Close(ctx))
		require.NoError(t, db.Close())
	})
}
