package worker_test

import (
	"context"
	"errors"
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

// again makes each transaction run twice: its first attempt has a conflict.
func again(do func(ctx context.Context, d *worker.Delivery) error) worker.Handler {
	calls := 0
	return worker.HandleTx(func(ctx context.Context, _ kv.Tx, d *worker.Delivery) error {
		err := do(ctx, d)
		if calls++; calls%2 == 1 {
			return &kv.Error{Code: kv.CodeNotCommitted}
		}
		return err
	})
}

// TestStateChangedInPlace: a handler may change the state that it got in place. SetState stores it in any case, and
// another attempt of a transaction gets the state as it is stored.
func TestStateChangedInPlace(t *testing.T) {
	count := func(ctx context.Context, d *worker.Delivery) error {
		state, err := d.State(ctx)
		if state == nil {
			state = []byte{0}
		}
		state[0]++
		return errors.Join(err, d.SetState(state))
	}
	for kind, h := range map[string]worker.Handler{"Handle": worker.Handle(count), "HandleTx": again(count)} {
		t.Run(kind, func(t *testing.T) {
			handled(t, h, func(t *testing.T, q *layer.Queue) {
				state, err := q.GroupState(t.Context(), "A")
				require.NoError(t, err)
				require.Equal(t, []byte{4}, state)
			})
		})
	}
}

// TestDeliveryChangedInPlace: a handler may change the body and the headers of a delivery. A call that follows for the
// same message gets them as they were sent.
func TestDeliveryChangedInPlace(t *testing.T) {
	var wrong []string
	change := func(_ context.Context, d *worker.Delivery) error {
		if string(d.Body) == "!" || d.Headers["name"] != string(d.Body) {
			wrong = append(wrong, string(d.Body)+" "+d.Headers["name"])
		}
		d.Body[0] = '!'
		clear(d.Headers)
		return nil
	}
	halved := worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
		for _, d := range ds {
			_ = change(ctx, d)
		}
		if len(ds) > 1 {
			return errors.New("too many")
		}
		return nil
	})
	for kind, h := range map[string]worker.Handler{"HandleTx": again(change), "HandleBatch": halved} {
		t.Run(kind, func(t *testing.T) {
			wrong = nil
			handled(t, h, func(t *testing.T, q *layer.Queue) {
				require.Empty(t, wrong)
				stats, err := q.Stats(t.Context(), layer.StatsOptions{})
				require.NoError(t, err)
				require.Zero(t, stats.Depth)
			})
		})
	}
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
