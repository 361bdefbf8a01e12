package layer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestStageWorkers: workers of three stages hand the messages of each group on in their order, in place, though
// handlers fail now and then; each message passes each stage once more than the stage has failed for it, and the last
// finishes it.
func TestStageWorkers(t *testing.T) {
	inBubble(t, layer.Config{Facets: []string{"state"}, Views: "*; state", Retry: eachSecond}, func(b *bubble) {
		const groups, each = 3, 5
		for n := range groups * each {
			_, err := b.q.Enqueue(b.t.Context(), layer.Message{
				Group: fmt.Sprint(n % groups), Headers: map[string]string{"state": "NEW", "trace": fmt.Sprint(n)},
			})
			require.NoError(b.t, err)
		}
		next := map[string]layer.Template{"NEW": {"state": "PAID"}, "PAID": {"state": "DONE"}, "DONE": nil}
		var mu sync.Mutex
		last := make(map[string]layer.ID)
		done := 0
		for stage := range next {
			w := b.worker(worker.HandleStage(func(_ context.Context, d *worker.Delivery) (layer.Template, error) {
				mu.Lock()
				defer mu.Unlock()
				if d.Attempt == 1 && d.ID.Index%3 == 0 {
					return nil, errors.New("not yet")
				}
				require.Equal(b.t, stage, d.Headers["state"])
				require.NotEmpty(b.t, d.Headers["trace"], "other headers stay")
				key := stage + d.ID.Group
				require.Greater(b.t, d.ID.Index, last[key].Index, "in order, each once")
				last[key] = d.ID
				if next[stage] == nil {
					done++
				}
				return next[stage], nil
			}), worker.Options{Where: layer.Template{"state": stage}, Concurrency: 2, Batch: 2})
			w.Start()
			defer func() { require.NoError(b.t, w.Stop(b.t.Context())) }()
		}
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(b.t, groups*each, done)
	})
}

// TestStageToNowhere: a handler that names no facet of the queue has failed, and a worker by no template of the queue
// is not made.
func TestStageToNowhere(t *testing.T) {
	config := layer.Config{Facets: []string{"state"}, Views: "state", MaxAttempts: 1}
	inBubble(t, config, func(b *bubble) {
		_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: "A", Headers: map[string]string{"state": "NEW"}})
		require.NoError(b.t, err)
		stage := worker.HandleStage(func(context.Context, *worker.Delivery) (layer.Template, error) {
			return layer.Template{"stage": "PAID"}, nil
		})
		_, err = worker.New(b.q, stage, worker.Options{})
		var wrong *layer.TemplateError
		require.ErrorAs(b.t, err, &wrong)
		_, err = worker.New(b.q, worker.HandleStage(nil), worker.Options{Where: isNew})
		require.ErrorIs(b.t, err, layer.ErrOptions)
		b.run(b.worker(stage, worker.Options{Where: isNew}), nil, time.Minute)
		page, err := b.q.Admin().DeadLetters(b.t.Context(), layer.DeadOptions{})
		require.NoError(b.t, err)
		require.Len(b.t, page.Letters, 1)
		require.Contains(b.t, page.Letters[0].LastError,
			`facets is "stage=PAID", allowed is: values of the queue's facets: state`)
	})
}

// sound: the queue keeps its rules.
func (b *bubble) sound() {
	b.t.Helper()
	report, err := b.q.Admin().Check(b.t.Context(), layer.CheckOptions{})
	require.NoError(b.t, err)
	require.Empty(b.t, report.Violations)
}

// TestStagesShareTransactions: what a stage has handled of a claim is advanced in the transaction that receives the
// next claim, whether the handler is given the items one by one or together.
func TestStagesShareTransactions(t *testing.T) {
	for name, stage := range map[string]worker.Handler{
		"one by one": worker.HandleStage(func(context.Context, *worker.Delivery) (layer.Template, error) {
			return isPaid, nil
		}),
		"together": worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
			for _, d := range ds {
				if err := d.AdvanceTo(isPaid); err != nil {
					return err
				}
			}
			return nil
		}),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, layer.Config{Facets: []string{"state"}, Views: "state"}, func(b *bubble) {
				const groups, each = 5, 10
				for n := range groups * each {
					_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: fmt.Sprint(n % groups), Headers: isNew})
					require.NoError(b.t, err)
				}
				var received, done int
				counting := record.WrapCounting(b.db)
				q, err := layer.Open(b.t.Context(), counting, testPrefix, testQueue, layer.Options{})
				require.NoError(b.t, err)
				hooks := worker.Events{Received: func(worker.Event) { received++ }, Done: func(worker.Event) { done++ }}
				w, err := worker.New(q, stage, worker.Options{
					Where: isNew, Concurrency: 1, Batch: each, Events: hooks,
				})
				b.run(w, err, 500*time.Millisecond)
				require.NoError(b.t, q.Close(b.t.Context()))
				require.Less(b.t, counting.Counters().Commits, int64(groups*each))
				require.Equal(b.t, groups, received)
				require.Equal(b.t, groups*each, done)
				claims, err := b.q.Receive(b.t.Context(), layer.ReceiveOptions{Where: isPaid, Max: groups * each})
				require.NoError(b.t, err)
				require.Len(b.t, claims, groups)
				for _, c := range claims {
					require.Len(b.t, c.Items, each)
					require.NoError(b.t, b.q.Ack(b.t.Context(), c))
				}
				b.sound()
			})
		})
	}
}

// TestAdvanceInHandlersTransaction: with HandleTx and HandleCommit the item is advanced in the handler's transaction,
// with what the handler writes; a handler which does not say where to finishes its item.
func TestAdvanceInHandlersTransaction(t *testing.T) {
	inBubble(t, layer.Config{Facets: []string{"state"}, Views: "state", Retry: eachSecond}, func(b *bubble) {
		written := tuple.Append(nil, "written")
		move := func(ctx context.Context, tx kv.Tx, d *worker.Delivery) error {
			tx.Atomic(kv.Add, written, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			if string(d.Body) == "last" {
				return nil
			}
			if err := d.AdvanceTo(isPaid); err != nil {
				return err
			}
			if d.Attempt == 1 {
				return errors.New("not yet")
			}
			return nil
		}
		for _, body := range []string{"first", "last"} {
			_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: body, Headers: isNew, Body: []byte(body)})
			require.NoError(b.t, err)
		}
		b.run(b.worker(worker.HandleTx(move), worker.Options{Where: isNew}), nil, time.Minute)
		work := func(context.Context, *worker.Delivery) (layer.Template, error) { return isNew, nil }
		back := worker.HandleCommit(work,
			func(ctx context.Context, tx kv.Tx, d *worker.Delivery, next layer.Template) error {
				return d.AdvanceTo(next)
			})
		b.run(b.worker(back, worker.Options{Where: isPaid}), nil, time.Minute)
		claims, err := b.q.Receive(b.t.Context(), layer.ReceiveOptions{Where: isNew})
		require.NoError(b.t, err)
		require.Len(b.t, claims, 1)
		require.Equal(b.t, "first", string(claims[0].Items[0].Body))
		require.NoError(b.t, b.q.Ack(b.t.Context(), claims[0]))
		_, err = kv.Run(b.t.Context(), b.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			v, err := tx.Get(written).Wait(b.t.Context())
			require.Equal(b.t, []byte{2, 0, 0, 0, 0, 0, 0, 0}, v, "what a failed attempt has written does not count")
			tx.Clear(written)
			return err
		})
		require.NoError(b.t, err)
		b.sound()
	})
}

// TestAdvanceRefused: AdvanceTo says at once what is wrong, and the item has failed, also if the handler returns nil.
func TestAdvanceRefused(t *testing.T) {
	config := layer.Config{Facets: []string{"state"}, Views: "state", MaxAttempts: 1}
	inBubble(t, config, func(b *bubble) {
		long := strings.Repeat("x", layer.MaxFacetSize+1)
		wrong := []layer.Template{{}, {"stage": "PAID"}, {"state": ""}, {"state": long}, {"state": "\xff"}}
		handlers := map[string]func(next layer.Template) worker.Handler{
			"plain": func(next layer.Template) worker.Handler {
				return worker.Handle(func(_ context.Context, d *worker.Delivery) error {
					require.Error(b.t, d.AdvanceTo(next))
					return nil
				})
			},
			"tx": func(next layer.Template) worker.Handler {
				return worker.HandleTx(func(_ context.Context, _ kv.Tx, d *worker.Delivery) error {
					require.Error(b.t, d.AdvanceTo(next))
					return nil
				})
			},
			"batch": func(next layer.Template) worker.Handler {
				return worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
					require.Error(b.t, ds[len(ds)-1].AdvanceTo(next))
					return nil
				})
			},
		}
		dead := 0
		for name, handler := range handlers {
			for _, next := range wrong {
				for range 2 {
					_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: name, Headers: isNew})
					require.NoError(b.t, err)
				}
				b.run(b.worker(handler(next), worker.Options{Where: isNew, Batch: 2}), nil, time.Minute)
				stats, err := b.q.Stats(b.t.Context(), layer.StatsOptions{})
				require.NoError(b.t, err)
				require.Zero(b.t, stats.Depth)
				if dead += 2; name == "batch" {
					dead-- // the first of the two was finished
				}
				require.EqualValues(b.t, dead, stats.Dead, "%s %v", name, next)
			}
		}
		b.sound()
	})
}

// TestAdvancedBesideAcked: of one claim some items are advanced and others finished, in the transaction that also gives
// back the rest.
func TestAdvancedBesideAcked(t *testing.T) {
	inBubble(t, layer.Config{Facets: []string{"state"}, Views: "*; state", Retry: eachSecond}, func(b *bubble) {
		for _, body := range []string{"on", "done", "on", "fails", "on"} {
			_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: "A", Headers: isNew, Body: []byte(body)})
			require.NoError(b.t, err)
		}
		b.run(b.worker(worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
			for i, d := range ds {
				switch string(d.Body) {
				case "fails":
					if d.Attempt == 1 {
						return &worker.BatchError{Done: i, Err: errors.New("not yet")}
					}
				case "on":
					if err := d.AdvanceTo(isPaid); err != nil {
						return err
					}
				}
			}
			return nil
		}), worker.Options{Where: isNew, Batch: 5}), nil, time.Minute)
		claims, err := b.q.Receive(b.t.Context(), layer.ReceiveOptions{Where: isPaid})
		require.NoError(b.t, err)
		require.Len(b.t, claims, 1)
		require.Len(b.t, claims[0].Items, 3)
		for _, i := range claims[0].Items {
			require.Equal(b.t, "on", string(i.Body))
		}
		require.NoError(b.t, b.q.Ack(b.t.Context(), claims[0]))
		stats, err := b.q.Stats(b.t.Context(), layer.StatsOptions{})
		require.NoError(b.t, err)
		require.Zero(b.t, stats.Depth)
		b.sound()
	})
}

// TestStageWantsFacets: a worker with a stage is refused for a queue without facets, where no item could be advanced.
func TestStageWantsFacets(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		stage := worker.HandleStage(func(context.Context, *worker.Delivery) (layer.Template, error) { return nil, nil })
		_, err := worker.New(b.q, stage, worker.Options{})
		require.ErrorIs(b.t, err, layer.ErrOptions)
		require.ErrorContains(b.t, err, "no facets")
	})
}
