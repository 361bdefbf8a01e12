package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestStopEndsWhileTheEngineHangs: a call of the engine does not return, and so no context ends the calls of the queue
// that wait for it. Stop and Run end in time.
func TestStopEndsWhileTheEngineHangs(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(w *worker.Worker, ctx context.Context) error{
		"Stop": (*worker.Worker).Stop, "Run": (*worker.Worker).Run,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, _, end := orders(t, layer.Config{})
				far := &stillDB{DB: db}
				q, err := layer.Open(t.Context(), far, []byte("worker"), "orders", layer.Options{})
				require.NoError(t, err)
				w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
					return nil
				}), worker.Options{Concurrency: 2, Logger: slog.New(slog.DiscardHandler)})
				require.NoError(t, err)
				w.Start()
				time.Sleep(time.Second)
				far.until.Store(time.Now().Add(10 * time.Minute).UnixNano())
				time.Sleep(time.Minute) // each goroutine asks
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				begun := time.Now()
				require.ErrorIs(t, stop(w, ctx), worker.ErrNoAnswer)
				require.Less(t, time.Since(begun), 3100*time.Millisecond)
				time.Sleep(20 * time.Minute)
				require.NoError(t, q.Close(t.Context()))
				end()
			})
		})
	}
}

// TestReportAfterTheEnd: a stuck handler returns after the worker has ended, and its ack fails. The worker reports that
// by nothing for which its end has waited: otherwise package sync would end the process now and then. The race detector
// sees it each time.
func TestReportAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _, end := orders(t, layer.Config{Lease: 5 * time.Minute}, "a")
		q, fail := faulty(t, db, fault.CommitFailed)
		var failed atomic.Int64
		w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
			time.Sleep(30 * time.Second)
			fail(time.Minute)
			return nil
		}), worker.Options{
			Concurrency: 1, Timeout: time.Second, Logger: slog.New(slog.DiscardHandler),
			Events: worker.Events{Done: func(worker.Event) { time.Sleep(40 * time.Second) }},
			OnError: func(err error) {
				switch {
				case errors.Is(err, worker.ErrStuck):
					time.Sleep(time.Second) // the worker waits for its goroutine in that time
				case kv.Code(err) == kv.CodeIOError:
					failed.Add(1)
				}
			},
		})
		require.NoError(t, err)
		w.Start() // and no Stop before the report
		time.Sleep(10 * time.Minute)
		require.Positive(t, failed.Load())
		require.ErrorIs(t, w.Stop(t.Context()), worker.ErrStuck)
		require.NoError(t, q.Close(t.Context()))
		end()
	})
}
