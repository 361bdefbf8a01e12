package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestUnreadableRowHasAPace (contract): a receive fails at a row that cannot be read. The goroutines of a worker ask
// one at a time, and tell the error once in ten seconds. An error of another row is told at once.
func TestUnreadableRowHasAPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		db, q, _ := orders(t, layer.Config{})
		for i := range 2 {
			_, err := q.Enqueue(ctx, layer.Message{Group: fmt.Sprint(i)})
			require.NoError(t, err)
		}
		mend := spoilItems(t, db)
		var told, begun atomic.Int64
		counting := &countingDB{DB: db, begun: &begun}
		of, err := layer.Open(ctx, counting, []byte("worker"), "orders", layer.Options{})
		require.NoError(t, err)
		w, err := worker.New(of, worker.Handle(func(context.Context, *worker.Delivery) error {
			return nil
		}), worker.Options{
			Concurrency: 64, Logger: slog.New(slog.DiscardHandler), OnError: func(error) { told.Add(1) },
		})
		require.NoError(t, err)
		w.Start()
		time.Sleep(5 * time.Second)
		told.Store(0)
		begun.Store(0)
		time.Sleep(100 * time.Second)
		require.LessOrEqual(t, told.Load(), int64(22))
		require.Positive(t, told.Load())
		require.LessOrEqual(t, begun.Load(), int64(1000))
		mend()
		time.Sleep(10 * time.Second)
		require.NoError(t, w.Stop(ctx))
		stats, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 2, stats.Acked)
		require.NoError(t, of.Close(ctx))
		require.NoError(t, q.Close(ctx))
		require.NoError(t, db.(*embedded.DB).Close())
	})
}

// countingDB counts the transactions that are begun.
type countingDB struct {
	kv.DB
	begun *atomic.Int64
}

func (db *countingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	db.begun.Add(1)
	return db.DB.Begin(o)
}

// spoilItems makes all items of the queue of orders unreadable, until mend.
func spoilItems(t *testing.T, db kv.DB) (mend func()) {
	t.Helper()
	items := kv.PrefixRange(append([]byte("worker"), tuple.Tuple{"orders", "item"}.Pack()...))
	write := func(fn func(tx kv.Tx) error) {
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return fn(tx) })
		require.NoError(t, err)
	}
	var rows []kv.KV
	write(func(tx kv.Tx) (err error) {
		if rows, err = tx.GetRange(items.Selectors(), kv.RangeOptions{}).Wait(t.Context()); err != nil {
			return err
		}
		for _, row := range rows {
			tx.Set(row.Key, []byte("unreadable"))
		}
		return nil
	})
	require.NotEmpty(t, rows)
	return func() {
		write(func(tx kv.Tx) error {
			for _, row := range rows {
				tx.Set(row.Key, row.Value)
			}
			return nil
		})
	}
}
