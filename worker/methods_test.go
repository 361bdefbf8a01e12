package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
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

// TestMethodsDuringAnAck: the methods of a delivery may be called while the worker acks the messages before it, and
// State is the state that these have left. The race detector sees that they share no memory with the worker. The test
// runs alone: next to busy tests a goroutine that yields waits long for its next turn.
func TestMethodsDuringAnAck(t *testing.T) {
	ctx, db := context.Background(), embedded.OpenMemory(embedded.Options{})
	q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{})
	require.NoError(t, err)
	var calls atomic.Int64
	w, err := worker.New(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		for range 30 {
			if d.TokenKey() == "" || d.Until().IsZero() {
				return errors.New("no claim")
			}
			runtime.Gosched()
		}
		state, err := d.State(ctx)
		n := calls.Add(1) // every other call adds a byte to the state
		if err != nil || int64(len(state)) != n/2 {
			t.Errorf("call %d: state %q, error %v", n, state, err)
			return fmt.Errorf("call %d: state %q, error %v", n, state, err)
		}
		if n%2 == 0 {
			return nil
		}
		return d.SetState(append(state, 'x'))
	}), worker.Options{Concurrency: 1, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	msgs := make([]layer.Message, 20)
	for i := range msgs {
		msgs[i].Group = "a"
	}
	_, err = q.Enqueue(ctx, msgs...)
	require.NoError(t, err)
	w.Start()
	for acked := int64(0); acked < 20; time.Sleep(time.Millisecond) {
		stats, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		acked = stats.Acked
	}
	require.EqualValues(t, 20, calls.Load())
	require.NoError(t, w.Stop(ctx))
	require.NoError(t, q.Close(ctx))
	require.NoError(t, db.Close())
}

// TestStuckInATransaction: a handler that is stuck in its transaction shares no memory with the goroutine that leaves
// its claim to a lease.
func TestStuckInATransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := context.Background(), embedded.OpenMemory(embedded.Options{})
		q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{})
		require.NoError(t, err)
		free := make(chan struct{})
		w, err := worker.New(q, worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
			<-free
			return nil
		}), worker.Options{Concurrency: 2, Heartbeat: true, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, layer.Message{Group: "a"})
		require.NoError(t, err)
		w.Start()
		time.Sleep(2 * time.Minute)
		close(free)
		synctest.Wait() // the handler has returned
		require.NoError(t, w.Stop(ctx))
		require.NoError(t, q.Close(ctx))
		require.NoError(t, db.Close())
	})
}

// TestStateOfAHalvedBatch: State of the second half of a batch is the state that the first half has left, whichever of
// its messages has set the state.
func TestStateOfAHalvedBatch(t *testing.T) {
	t.Parallel()
	var seen []string
	r := handles(t, layer.Config{}, func(call func(d *worker.Delivery) int) worker.Handler {
		return worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
			if len(ds) > 2 {
				return errors.New("too many")
			}
			for i, d := range ds {
				call(d)
				state, err := d.State(ctx)
				if err != nil {
					return err
				}
				seen = append(seen, string(state))
				if i == 0 {
					if err := d.SetState(append(state, 'x')); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
	require.Equal(t, []string{"", "", "x", "x"}, seen)
	require.EqualValues(t, 4, r.stats.Acked)
}
