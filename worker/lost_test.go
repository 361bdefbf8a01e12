package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
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

// orders makes a queue in memory. end checks its rules, and closes it and the database.
func orders(t *testing.T, c layer.Config, groups ...string) (db kv.DB, q *layer.Queue, end func()) {
	t.Helper()
	db = embedded.OpenMemory(embedded.Options{})
	q, err := layer.Create(t.Context(), db, []byte("worker"), "orders", layer.Options{Config: c})
	require.NoError(t, err)
	for i, group := range groups {
		_, err := q.Enqueue(t.Context(), layer.Message{
			Group: group, Body: fmt.Append(nil, i), Headers: map[string]string{"state": "new"},
		})
		require.NoError(t, err)
	}
	return db, q, func() {
		report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, db.Close())
	}
}

// stillDB begins no transaction before a time.
type stillDB struct {
	kv.DB
	until atomic.Int64 // nanoseconds
}

func (db *stillDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	time.Sleep(time.Until(time.Unix(0, db.until.Load())))
	return db.DB.Begin(o)
}

// TestLapsedAndLostIsToldOnce (G2): the lease of a claim ends while the worker's database stands still, and then
// another has the group. OnError hears of the claim once, and so does Events.Lost, whether the handler has failed or
// not.
func TestLapsedAndLostIsToldOnce(t *testing.T) {
	for _, succeeds := range []bool{false, true} {
		t.Run(fmt.Sprint("succeeds ", succeeds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				db, q, end := orders(t, layer.Config{}, "a")
				far := &stillDB{DB: db}
				of, err := layer.Open(ctx, far, []byte("worker"), "orders", layer.Options{})
				require.NoError(t, err)
				var lost, told atomic.Int64
				w, err := worker.New(of, worker.Handle(func(ctx context.Context, _ *worker.Delivery) error {
					far.until.Store(time.Now().Add(3 * time.Second).UnixNano())
					if <-ctx.Done(); succeeds {
						return nil
					}
					return ctx.Err()
				}), worker.Options{
					Concurrency: 1, Lease: time.Second, Logger: slog.New(slog.DiscardHandler),
					Events: worker.Events{Lost: func(worker.Event) { lost.Add(1) }},
					OnError: func(err error) {
						if errors.Is(err, layer.ErrClaimLost) {
							told.Add(1)
						}
					},
				})
				require.NoError(t, err)
				w.Start()
				time.Sleep(2 * time.Second)
				claims, err := q.Receive(ctx, layer.ReceiveOptions{})
				require.NoError(t, err)
				require.Len(t, claims, 1)
				require.NoError(t, q.Ack(ctx, claims[0]))
				time.Sleep(time.Minute)
				require.NoError(t, w.Stop(ctx))
				require.Equal(t, []int64{1, 1}, []int64{lost.Load(), told.Load()})
				require.NoError(t, of.Close(ctx))
				end()
			})
		})
	}
}

// TestLostAfterAnUnknownAck (G2): the outcome of an ack is unknown, and nothing of it was applied. Before the worker
// tries again an operator ends the claim, and another handle receives the message. The worker tells that the claim is
// lost. If the ack was applied, the worker does not tell that.
func TestLostAfterAnUnknownAck(t *testing.T) {
	t.Parallel()
	for _, kind := range []fault.Kind{fault.TimedOutLost, fault.UnknownApplied, fault.UnnamedApplied} {
		for name, handler := range map[string]func(call func()) worker.Handler{
			"Handle": func(call func()) worker.Handler {
				return worker.Handle(func(context.Context, *worker.Delivery) error { call(); return nil })
			},
			"HandleTx": func(call func()) worker.Handler {
				return worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error { call(); return nil })
			},
		} {
			t.Run(fmt.Sprint(kind, ", ", name), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { lostAfterUnknown(t, kind, handler) })
			})
		}
	}
}

func lostAfterUnknown(t *testing.T, kind fault.Kind, handler func(call func()) worker.Handler) {
	t.Helper()
	ctx := t.Context()
	db, other, end := orders(t, layer.Config{}, "a")
	var called, struck, lost atomic.Int64
	plan := &fault.Plan{OnCommit: func(int, kv.Tx) fault.Kind {
		if called.Load() == 0 || struck.Add(1) > 1 {
			return fault.None
		}
		if kind == fault.TimedOutLost {
			_, err := other.Admin().ForceRelease(ctx, "a", layer.ForceReleaseOptions{})
			assert.NoError(t, err)
			claims, err := other.Receive(ctx, layer.ReceiveOptions{})
			assert.NoError(t, err)
			assert.Len(t, claims, 1)
		}
		return kind
	}}
	q, err := layer.Open(ctx, fault.Wrap(db, plan), []byte("worker"), "orders", layer.Options{})
	require.NoError(t, err)
	stats := counted(t, q, handler(func() { called.Add(1) }), worker.Options{
		Events: worker.Events{Lost: func(worker.Event) { lost.Add(1) }},
	}, 10*time.Second)
	want := []int64{1, 0, 1}
	if kind == fault.TimedOutLost {
		want = []int64{1, 1, 0}
	}
	require.Equal(t, want, []int64{called.Load(), lost.Load(), stats.Acked})
	end()
}

// TestLostDuringAHook (G2): an operator ends a claim while its handler runs, and a slow hook follows. The ack that
// begins during the hook finds the claim lost. The worker tells of that once.
func TestLostDuringAHook(t *testing.T) {
	t.Parallel()
	for _, result := range []error{nil, errors.New("boom")} {
		t.Run(fmt.Sprint(result), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				_, q, end := orders(t, layer.Config{}, "a", "a")
				calls, lost := 0, 0
				var told atomic.Int64
				w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
					if calls++; calls < 2 {
						return nil
					}
					_, err := q.Admin().PauseGroup(ctx, "a", layer.PauseOptions{Force: true})
					return errors.Join(err, result)
				}), worker.Options{
					Concurrency: 1, Logger: slog.New(slog.DiscardHandler),
					Events: worker.Events{
						Lost: func(worker.Event) { lost++ },
						Done: func(worker.Event) { time.Sleep(5 * time.Second) },
					},
					RetryDelay: func(int, error) time.Duration { time.Sleep(5 * time.Second); return 0 },
					OnError: func(err error) {
						if errors.Is(err, layer.ErrClaimLost) {
							told.Add(1)
						}
					},
				})
				require.NoError(t, err)
				w.Start()
				time.Sleep(time.Minute)
				require.NoError(t, w.Stop(ctx))
				require.Equal(t, []int{2, 1, 1}, []int{calls, lost, int(told.Load())})
				end()
			})
		})
	}
}

// TestLostBehindATransaction (G2): the first message of a claim is acked in its handler's transaction. A slow hook
// follows, and an operator ends the claim. An extension during the hook finds the claim lost, and the worker tells of
// that once.
func TestLostBehindATransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		_, q, end := orders(t, layer.Config{}, "a", "a")
		calls, lost := 0, 0
		var told atomic.Int64
		w, err := worker.New(q, worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
			calls++
			return nil
		}), worker.Options{
			Concurrency: 1, Logger: slog.New(slog.DiscardHandler),
			Events: worker.Events{
				Lost: func(worker.Event) { lost++ },
				Done: func(worker.Event) {
					_, err := q.Admin().PauseGroup(ctx, "a", layer.PauseOptions{Force: true})
					assert.NoError(t, err)
					time.Sleep(15 * time.Second) // half of the lease
				},
			},
			OnError: func(err error) {
				if errors.Is(err, layer.ErrClaimLost) {
					told.Add(1)
				}
			},
		})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Minute)
		require.NoError(t, w.Stop(ctx))
		require.Equal(t, []int{1, 1, 1}, []int{calls, lost, int(told.Load())})
		end()
	})
}

// TestRefusedAdvanceInABatch (contract): AdvanceTo refuses the next facets of an item, and the handler reports that it
// has finished this item and failed at the next. The item has failed: it is neither finished nor advanced.
func TestRefusedAdvanceInABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		_, q, end := orders(t, layer.Config{
			Facets: []string{"state"}, Views: "*", MaxAttempts: 2,
			Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Second},
		}, "a", "a", "a")
		calls := map[string]int{}
		w, err := worker.New(q, worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
			for i, d := range ds {
				switch calls[string(d.Body)]++; string(d.Body) {
				case "0":
					_ = d.AdvanceTo(layer.Template{"stage": "packed"}) // there is no such facet
				case "2":
					return &worker.BatchError{Done: i, Err: errors.New("boom")}
				}
			}
			return nil
		}), worker.Options{Concurrency: 1, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Minute)
		require.NoError(t, w.Stop(ctx))
		stats, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 2, stats.DeadLettered, "the refused one, and the one that fails")
		require.EqualValues(t, 1, stats.Acked)
		end()
	})
}

// TestUnknownOutcomeOfTheHandlersOwnCall (G7): a handler fails with the error of a call of its own, whose outcome is
// unknown. That is a failed attempt like others, also for HandleCommit.
func TestUnknownOutcomeOfTheHandlersOwnCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		_, q, end := orders(t, layer.Config{
			MaxAttempts: 3, Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Second},
		}, "a")
		calls := 0
		own := fmt.Errorf("another database: %w", &kv.Error{Code: kv.CodeCommitUnknownResult})
		w, err := worker.New(q, worker.HandleCommit(
			func(context.Context, *worker.Delivery) (int, error) { calls++; return 0, own },
			func(context.Context, kv.Tx, *worker.Delivery, int) error { return nil },
		), worker.Options{Concurrency: 1, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Minute)
		require.NoError(t, w.Stop(ctx))
		stats, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.Equal(t, 3, calls)
		require.EqualValues(t, 1, stats.DeadLettered)
		end()
	})
}

// TestCallBeyondItsContext (G7): a call of HandleTx that outlasts its context counts if its transaction still commits.
// Otherwise it is a failed attempt, also if the lease has ended: no other process has taken the group.
func TestCallBeyondItsContext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lease, takes  time.Duration
		fails         bool
		acked, nacked int64
	}{
		{0, 4900 * time.Millisecond, false, 1, 0},
		{0, 5100 * time.Millisecond, false, 0, 1},
		{0, 5100 * time.Millisecond, true, 0, 1},
		{time.Second, 990 * time.Millisecond, false, 1, 0},
		{time.Second, 2 * time.Second, false, 1, 0},
		{time.Second, 2 * time.Second, true, 0, 1},
		{time.Second, 5100 * time.Millisecond, false, 0, 1},
		{4 * time.Second, 5100 * time.Millisecond, false, 0, 1},
		{4 * time.Second, 5100 * time.Millisecond, true, 0, 1},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, db := context.Background(), embedded.OpenMemory(embedded.Options{})
				q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{Config: layer.Config{
					Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Hour},
				}})
				require.NoError(t, err)
				_, err = q.Enqueue(ctx, layer.Message{Group: "a"})
				require.NoError(t, err)
				calls := int64(0)
				w, err := worker.New(q, worker.HandleTx(func(ctx context.Context, _ kv.Tx, _ *worker.Delivery) error {
					calls++
					time.Sleep(c.takes)
					if c.fails {
						return ctx.Err()
					}
					return nil
				}), worker.Options{Concurrency: 1, Lease: c.lease, Logger: slog.New(slog.DiscardHandler)})
				require.NoError(t, err)
				w.Start()
				time.Sleep(time.Minute)
				require.NoError(t, w.Stop(ctx))
				stats, err := q.Stats(ctx, layer.StatsOptions{})
				require.NoError(t, err)
				counts := []int64{calls, stats.Acked, stats.Nacked, stats.Expired}
				require.Equal(t, []int64{1, c.acked, c.nacked, 0}, counts)
				require.NoError(t, q.Close(ctx))
				require.NoError(t, db.Close())
			})
		})
	}
}

// TestStartedIsACall: a claim ends before its handler is called. Events.Started, which tells of calls, hears nothing of
// the claim.
func TestStartedIsACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), embedded.OpenMemory(embedded.Options{})
		q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{})
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, layer.Message{Group: "a"})
		require.NoError(t, err)
		started, called, lost := 0, 0, 0
		w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
			called++
			return nil
		}), worker.Options{
			Concurrency: 1, Logger: slog.New(slog.DiscardHandler),
			Events: worker.Events{
				Received: func(worker.Event) {
					_, _ = q.Admin().PauseGroup(ctx, "a", layer.PauseOptions{Force: true})
					time.Sleep(25 * time.Second) // of a lease of 30 s
				},
				Started: func(worker.Event) { started++ },
				Lost:    func(worker.Event) { lost++ },
			},
		})
		require.NoError(t, err)
		w.Start()
		time.Sleep(2 * time.Minute)
		require.NoError(t, w.Stop(ctx))
		require.Equal(t, []int{0, 0, 1}, []int{started, called, lost})
		require.NoError(t, q.Close(ctx))
		require.NoError(t, db.Close())
	})
}

// TestStartedHasAnEnd: the claim of a call ends during Events.Started, by its lease or because the worker is stopped by
// force, and so the handler is not called. Events.Failed tells of that: else the functions would take the handler for
// one that still runs.
func TestStartedHasAnEnd(t *testing.T) {
	for name, c := range map[string]struct {
		during func(db *stillDB, stop func())
		cause  error
		events []string
	}{
		"the lease ends": {func(db *stillDB, _ func()) {
			db.until.Store(time.Now().Add(3 * time.Second).UnixNano())
			time.Sleep(2 * time.Second)
		}, layer.ErrClaimLost, []string{"started", "started", "given back", "started", "started", "done", "done"}},
		"the worker is stopped": {func(_ *stillDB, stop func()) {
			go stop()
			time.Sleep(500 * time.Millisecond)
		}, context.Canceled, []string{"started", "started", "given back"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				db, _, end := orders(t, layer.Config{}, "a", "a")
				far := &stillDB{DB: db}
				q, err := layer.Open(ctx, far, []byte("worker"), "orders", layer.Options{})
				require.NoError(t, err)
				var events []string
				var failed []worker.Event
				var w *worker.Worker
				stopped := make(chan struct{})
				stop := func() {
					defer close(stopped)
					now, cancel := context.WithCancel(ctx)
					cancel()
					_ = w.Stop(now)
				}
				w, err = worker.New(q, worker.HandleBatch(func(context.Context, []*worker.Delivery) error {
					return nil
				}), worker.Options{
					Concurrency: 1, Lease: time.Second, Logger: slog.New(slog.DiscardHandler),
					Events: worker.Events{
						Started: func(worker.Event) {
							if events = append(events, "started"); len(events) == 2 {
								c.during(far, stop)
							}
						},
						Done: func(worker.Event) { events = append(events, "done") },
						Lost: func(worker.Event) { events = append(events, "lost") },
						Failed: func(e worker.Event) {
							events = append(events, string(e.Follows))
							failed = append(failed, e)
						},
					},
				})
				require.NoError(t, err)
				w.Start()
				time.Sleep(time.Minute)
				if name == "the lease ends" {
					stop()
				}
				<-stopped
				require.Equal(t, c.events, events)
				require.ErrorIs(t, failed[0].Err, worker.ErrUncalled)
				require.ErrorIs(t, failed[0].Err, c.cause)
				require.NoError(t, q.Close(ctx))
				end()
			})
		})
	}
}

// TestLostBatchBlamesItsItem: the claim of a batch is lost during the call, and the handler says how far it came. The
// report names the item that the handler names.
func TestLostBatchBlamesItsItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, q, end := orders(t, layer.Config{}, "a", "a", "a")
		mine, err := layer.Open(t.Context(), db, []byte("worker"), "orders", layer.Options{})
		require.NoError(t, err)
		var second layer.ID
		var blamed []layer.ID
		handler := worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
			if second != (layer.ID{}) {
				return nil
			}
			second = ds[1].ID
			_, err := q.Admin().ForceRelease(t.Context(), "a", layer.ForceReleaseOptions{})
			assert.NoError(t, err)
			<-ctx.Done()
			return &worker.BatchError{Done: 1, Err: errors.New("no stock")}
		})
		counted(t, mine, handler, worker.Options{Batch: 3, Events: worker.Events{Lost: func(e worker.Event) {
			blamed = append(blamed, e.ID)
		}}}, time.Minute)
		require.Equal(t, []layer.ID{second}, blamed)
		end()
	})
}
