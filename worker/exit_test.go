package worker_test

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestHooksOfTheHandleThatExit: a hook of the handle that ends its goroutine, in a receive or in an ack, costs a worker
// none of its goroutines.
func TestHooksOfTheHandleThatExit(t *testing.T) {
	t.Parallel()
	for _, verb := range []layer.Verb{layer.VerbReceive, layer.VerbAck} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, db := context.Background(), embedded.OpenMemory(embedded.Options{})
				var exits, handled atomic.Int64
				q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{Hooks: []layer.Hook{{
					Begin: func(ctx context.Context, o *layer.Operation) context.Context {
						if o.Verb == verb && exits.Add(1) <= 2 {
							runtime.Goexit()
						}
						return ctx
					},
				}}})
				require.NoError(t, err)
				w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
					handled.Add(1)
					time.Sleep(time.Second)
					return nil
				}), worker.Options{Concurrency: 2, Logger: slog.New(slog.DiscardHandler)})
				require.NoError(t, err)
				w.Start()
				for range 4 {
					_, err := q.Enqueue(ctx, layer.Message{Group: "a"}, layer.Message{Group: "b"})
					require.NoError(t, err)
				}
				time.Sleep(5 * time.Minute)
				require.Equal(t, worker.Hands{All: 2, Idle: 2}, w.Hands())
				stats, err := q.Stats(ctx, layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 8, stats.Acked)
				require.GreaterOrEqual(t, exits.Load(), int64(2))
				require.NoError(t, w.Stop(ctx))
				require.NoError(t, q.Close(ctx))
				require.NoError(t, db.Close())
			})
		})
	}
}
