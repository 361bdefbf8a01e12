package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// outcome is a queue with messages 0 to 3 of one group, after a worker has handled them for a minute.
type outcome struct {
	stats    layer.Stats
	reported []error
	calls    map[string]int
}

// handles runs a worker in virtual time. call is called for each message of each call.
func handles(t *testing.T, config layer.Config, h func(call func(d *worker.Delivery) int) worker.Handler) *outcome {
	t.Helper()
	r := &outcome{calls: make(map[string]int)}
	synctest.Test(t, func(t *testing.T) {
		ctx, db := context.Background(), embedded.OpenMemory(embedded.Options{})
		q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{Config: config})
		require.NoError(t, err)
		for i := range 4 {
			_, err := q.Enqueue(ctx, layer.Message{
				Group: "a", Body: fmt.Append(nil, i), Headers: map[string]string{"n": fmt.Sprint(i)},
			})
			require.NoError(t, err)
		}
		var mu sync.Mutex
		w, err := worker.New(q, h(func(d *worker.Delivery) int {
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, string(d.Body), d.Headers["n"])
			r.calls[string(d.Body)]++
			return r.calls[string(d.Body)]
		}), worker.Options{Logger: slog.New(slog.DiscardHandler), OnError: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			r.reported = append(r.reported, err)
		}})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Minute)
		require.NoError(t, w.Stop(ctx))
		r.stats, err = q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		report, err := q.Admin().Check(ctx, layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(ctx))
		require.NoError(t, db.Close())
	})
	return r
}

// spoil changes all of a delivery that a handler can.
func spoil(d *worker.Delivery) {
	for i := range d.Body {
		d.Body[i] = 'x'
	}
	clear(d.Headers)
	d.ID, d.Queue, d.Token, d.Attempt = layer.ID{Group: "other"}, nil, 1, 99
	*d = worker.Delivery{}
}

// TestHandlersThatChangeTheirDeliveries: a handler changes its deliveries and the slice of them. The worker acks,
// counts and reports the messages that it has received. Each message fails once.
func TestHandlersThatChangeTheirDeliveries(t *testing.T) {
	t.Parallel()
	fail := func(n int) error {
		if n == 1 {
			return errors.New("failed")
		}
		return nil
	}
	type caller = func(d *worker.Delivery) int
	for name, handler := range map[string]func(call caller) worker.Handler{
		"Handle": func(call caller) worker.Handler {
			return worker.Handle(func(_ context.Context, d *worker.Delivery) error {
				defer spoil(d)
				return fail(call(d))
			})
		},
		"HandleTx": func(call caller) worker.Handler {
			return worker.HandleTx(func(_ context.Context, _ kv.Tx, d *worker.Delivery) error {
				defer spoil(d)
				return fail(call(d))
			})
		},
		"HandleCommit": func(call caller) worker.Handler {
			return worker.HandleCommit(func(_ context.Context, d *worker.Delivery) (int, error) {
				defer spoil(d)
				return call(d), nil
			}, func(_ context.Context, _ kv.Tx, d *worker.Delivery, n int) error {
				defer spoil(d)
				return fail(n)
			})
		},
		"HandleBatch": func(call caller) worker.Handler {
			return worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
				defer clear(ds)
				for i, d := range ds {
					if err := fail(call(d)); err != nil {
						for _, d := range ds {
							spoil(d)
						}
						return &worker.BatchError{Done: i, Err: err}
					}
				}
				return nil
			})
		},
		"HandleBatch, reversed": func(call caller) worker.Handler {
			return worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
				for i, d := range ds {
					if err := fail(call(d)); err != nil {
						slices.Reverse(ds)
						return &worker.BatchError{Done: i, Err: err}
					}
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := handles(t, layer.Config{}, handler)
			require.Equal(t, map[string]int{"0": 2, "1": 2, "2": 2, "3": 2}, r.calls)
			require.EqualValues(t, 4, r.stats.Acked)
			require.EqualValues(t, 4, r.stats.Nacked)
			require.Len(t, r.reported, 4)
			for i, err := range r.reported {
				failed := new(worker.HandlerError)
				require.ErrorAs(t, err, &failed)
				require.Equal(t, "a", failed.ID.Group, "error %d", i)
			}
		})
	}
}
