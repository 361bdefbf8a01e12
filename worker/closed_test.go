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
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestRunEndsWithItsDatabase: a worker, a subscription and a receive that waits end soon after their database was
// closed, and say why. They do not try again and again.
func TestRunEndsWithItsDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), embedded.OpenMemory(embedded.Options{})
		q, err := layer.Create(ctx, db, nil, "q", layer.Options{Config: layer.Config{Changes: time.Hour}})
		require.NoError(t, err)
		var errs atomic.Int64
		tell := func(error) { errs.Add(1) }
		handler := worker.Handle(func(context.Context, *worker.Delivery) error { return nil })
		w, err := worker.New(q, handler, worker.Options{
			Concurrency: 3, OnError: tell, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		ended := make(chan error, 3)
		go func() { ended <- w.Run(ctx) }()
		go func() {
			none := func(context.Context, []layer.Change) error { return nil }
			ended <- q.Subscribe(ctx, "s", none, layer.SubscribeOptions{OnError: tell})
		}()
		go func() {
			_, err := q.Receive(ctx, layer.ReceiveOptions{Wait: time.Hour})
			ended <- err
		}()
		time.Sleep(5 * time.Second)
		require.NoError(t, db.Close())
		closed := time.Now()
		for range 3 {
			err := <-ended
			require.ErrorIs(t, err, kv.ErrClosed)
			require.ErrorIs(t, err, layer.ErrClosed)
		}
		require.Less(t, time.Since(closed), 5*time.Second)
		require.Less(t, errs.Load(), int64(10))
		require.ErrorIs(t, q.Close(ctx), kv.ErrClosed) // it could not leave the database in order
	})
}

// TestRunEndsAmidWork (contract): a database is closed while a handler runs. The worker does not try the ack again and
// again: it ends soon, and says why.
func TestRunEndsAmidWork(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			db, q, _ := orders(t, layer.Config{}, "a", "a", "b")
			w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
				err := db.Close()
				if fails {
					return errors.Join(errors.New("boom"), err)
				}
				return nil
			}), worker.Options{Concurrency: 1, Lease: 10 * time.Minute, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			begun := time.Now()
			err = w.Run(ctx)
			require.ErrorIs(t, err, kv.ErrClosed)
			require.Less(t, time.Since(begun), 5*time.Second)
			require.ErrorIs(t, q.Close(ctx), kv.ErrClosed)
		})
	}
}
