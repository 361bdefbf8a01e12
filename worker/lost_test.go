package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestLostIsToldOnce (G2): an operator ends a claim while its handler runs. The worker tells of it once, by Events.Lost
// and by OnError, whatever the handler returns, and when.
func TestLostIsToldOnce(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	results := map[string]error{
		"succeeds": nil, "fails": boom,
		"rejects": &worker.RejectError{}, "postpones": &worker.RetryError{Uncounted: true},
	}
	for how, result := range results {
		for _, takes := range []time.Duration{time.Second, 4 * time.Second, time.Minute} {
			for kind, handler := range map[string]func(h func() error) worker.Handler{
				"one": func(h func() error) worker.Handler {
					return worker.Handle(func(context.Context, *worker.Delivery) error { return h() })
				},
				"batch": func(h func() error) worker.Handler {
					return worker.HandleBatch(func(context.Context, []*worker.Delivery) error { return h() })
				},
			} {
				t.Run(how+" after "+takes.String()+", "+kind, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { lostWhile(t, takes, handler, result) })
				})
			}
		}
	}
}

func lostWhile(t *testing.T, takes time.Duration, handler func(h func() error) worker.Handler, result error) {
	t.Helper()
	ctx, db := context.Background(), embedded.OpenMemory(embedded.Options{})
	q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{})
	require.NoError(t, err)
	_, err = q.Enqueue(ctx, layer.Message{Group: "a"})
	require.NoError(t, err)
	lost, told := 0, 0
	w, err := worker.New(q, handler(func() error {
		_, err := q.Admin().PauseGroup(ctx, "a", layer.PauseOptions{Force: true})
		time.Sleep(takes)
		return errors.Join(err, result)
	}), worker.Options{
		Concurrency: 2, Timeout: 3 * time.Second, Logger: slog.New(slog.DiscardHandler),
		Events: worker.Events{Lost: func(worker.Event) { lost++ }},
		OnError: func(err error) {
			if errors.Is(err, layer.ErrClaimLost) {
				told++
			}
		},
	})
	require.NoError(t, err)
	w.Start()
	time.Sleep(2 * time.Minute)
	require.NoError(t, w.Stop(ctx))
	require.Equal(t, []int{1, 1}, []int{lost, told})
	report, err := q.Admin().Check(ctx, layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.NoError(t, q.Close(ctx))
	require.NoError(t, db.Close())
}
