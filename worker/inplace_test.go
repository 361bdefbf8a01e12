package worker_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// handled runs a worker for a minute on four messages of a group, each with its body as a header, too.
func handled(t *testing.T, h worker.Handler, then func(t *testing.T, q *layer.Queue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), embedded.OpenMemory(embedded.Options{})
		q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{})
		require.NoError(t, err)
		for _, body := range []string{"a", "b", "c", "d"} {
			_, err := q.Enqueue(ctx, layer.Message{
				Group: "A", Body: []byte(body), Headers: map[string]string{"name": body},
			})
			require.NoError(t, err)
		}
		w, err := worker.New(q, h, worker.Options{Concurrency: 1, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Minute)
		require.NoError(t, w.Stop(ctx))
		then(t, q)
		require.NoError(t, q.Close(ctx))
		require.NoError(t, db.Close())
	})
}

// TestAdvanceRefusedWithoutFacets: a message that AdvanceTo has refused to advance has failed, also in a queue without
// facets: the transaction of its handler does not finish it.
func TestAdvanceRefusedWithoutFacets(t *testing.T) {
	h := worker.HandleTx(func(_ context.Context, _ kv.Tx, d *worker.Delivery) error {
		_ = d.AdvanceTo(layer.Template{"stage": "paid"})
		return nil
	})
	handled(t, h, func(t *testing.T, q *layer.Queue) {
		stats, err := q.Stats(t.Context(), layer.StatsOptions{})
		require.NoError(t, err)
		require.Zero(t, stats.Acked)
	})
}
