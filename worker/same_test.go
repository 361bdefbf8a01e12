package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestOneCallOfAMessage (G2): an operator releases a group while its handler runs. Another goroutine of the same worker
// receives the group, and does not call the handler before the first call has returned. The context of that call ends.
func TestOneCallOfAMessage(t *testing.T) {
	t.Parallel()
	for _, o := range []worker.Options{
		{}, {Heartbeat: true}, {Timeout: time.Second}, {Lease: time.Hour},
	} {
		t.Run(fmt.Sprint(o.Heartbeat, o.Timeout, o.Lease), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				_, q, end := orders(t, layer.Config{}, "a", "a")
				var calls, running, lost atomic.Int64
				var ended atomic.Pointer[time.Time]
				o.Concurrency, o.Logger = 2, slog.New(slog.DiscardHandler)
				o.Events.Lost = func(worker.Event) { lost.Add(1) }
				w, err := worker.New(q, worker.Handle(func(ctx context.Context, _ *worker.Delivery) error {
					assert.EqualValues(t, 1, running.Add(1), "calls at the same time")
					defer running.Add(-1)
					if calls.Add(1) == 1 {
						context.AfterFunc(ctx, func() { now := time.Now(); ended.Store(&now) })
						time.Sleep(5 * time.Second) // it does not look at its context
					}
					return nil
				}), o)
				require.NoError(t, err)
				w.Start()
				time.Sleep(900 * time.Millisecond)
				released := time.Now()
				_, err = q.Admin().ForceRelease(ctx, "a", layer.ForceReleaseOptions{})
				require.NoError(t, err)
				time.Sleep(time.Minute)
				require.NoError(t, w.Stop(ctx))
				require.EqualValues(t, []int64{3, 1}, []int64{calls.Load(), lost.Load()})
				require.NotNil(t, ended.Load())
				require.Less(t, ended.Load().Sub(released), 200*time.Millisecond)
				stats, err := q.Stats(ctx, layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 2, stats.Acked)
				end()
			})
		})
	}
}

// TestCallEndsAfterASuspension (G2): the machine is suspended for an hour while a handler runs. The monotonic clock has
// stood still, and another process has the group. The context of the call ends soon, and not at the next extension.
func TestCallEndsAfterASuspension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var off, gap atomic.Int64
		ctx := t.Context()
		db := embedded.OpenMemory(embedded.Options{Hooks: embedded.Hooks{
			VersionGap: func() int64 { return gap.Swap(0) },
		}})
		o := layer.Options{Now: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }}
		q, err := layer.Create(ctx, db, nil, "orders", o)
		require.NoError(t, err)
		other, err := layer.Open(ctx, db, nil, "orders", o)
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, layer.Message{Group: "a"})
		require.NoError(t, err)
		var took atomic.Int64
		w, err := worker.New(q, worker.Handle(func(ctx context.Context, _ *worker.Delivery) error {
			begun := time.Now()
			<-ctx.Done()
			took.Store(int64(time.Since(begun)))
			return context.Cause(ctx)
		}), worker.Options{
			Concurrency: 1, Lease: 10 * time.Minute, Timeout: -1, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		w.Start()
		time.Sleep(1500 * time.Millisecond) // between two looks of the worker
		off.Store(int64(time.Hour))
		gap.Store(time.Hour.Microseconds())
		claims, err := other.Receive(ctx, layer.ReceiveOptions{Wait: 400 * time.Millisecond})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.NoError(t, other.Ack(ctx, claims[0]))
		time.Sleep(20 * time.Minute)
		require.NoError(t, w.Stop(ctx))
		require.NotZero(t, took.Load())
		require.Less(t, time.Duration(took.Load()), 4*time.Second)
		report, err := q.Admin().Check(ctx, layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, other.Close(ctx))
		require.NoError(t, q.Close(ctx))
		require.NoError(t, db.Close())
	})
}
