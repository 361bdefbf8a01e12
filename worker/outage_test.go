package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// silentDB does not answer for a while. The calls that have waited fail, and nothing of them was applied.
type silentDB struct {
	kv.DB
	until atomic.Int64 // nanoseconds
}

// silence begins the silence.
func (db *silentDB) silence(d time.Duration) { db.until.Store(time.Now().Add(d).UnixNano()) }

func (db *silentDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := db.DB.Begin(o)
	return silentTx{tx, db}, err
}

type silentTx struct {
	kv.ManagedTx
	db *silentDB
}

func (t silentTx) Get(key []byte) kv.Future[[]byte] { return unless(t.db, t.ManagedTx.Get(key)) }
func (t silentTx) ReadVersion() kv.Future[int64]    { return unless(t.db, t.ManagedTx.ReadVersion()) }

func (t silentTx) Commit() kv.Future[struct{}] {
	if left := time.Until(time.Unix(0, t.db.until.Load())); left > 0 {
		return unless(t.db, kv.Done(struct{}{}, nil))
	}
	return t.ManagedTx.Commit()
}

// unless returns the answer unless the database is silent.
func unless[T any](db *silentDB, answer kv.Future[T]) kv.Future[T] {
	if left := time.Until(time.Unix(0, db.until.Load())); left > 0 {
		return silent[T]{answer, time.After(left)}
	}
	return answer
}

type silent[T any] struct {
	kv.Future[T]
	ends <-chan time.Time
}

func (f silent[T]) Ready() bool { return false }

func (f silent[T]) Wait(ctx context.Context) (v T, err error) {
	select {
	case <-f.ends:
		return v, &kv.Error{Code: kv.CodeTransactionTooOld}
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

// counted lets a worker of the queue run for some time, and returns the figures of the queue.
func counted(t *testing.T, q *layer.Queue, h worker.Handler, o worker.Options, d time.Duration) layer.Stats {
	t.Helper()
	o.Concurrency, o.Logger = 1, slog.New(slog.DiscardHandler)
	w, err := worker.New(q, h, o)
	require.NoError(t, err)
	w.Start()
	time.Sleep(d)
	require.NoError(t, w.Stop(t.Context()))
	stats, err := q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.NoError(t, q.Close(t.Context()))
	return stats
}

// TestSilenceBlamesNoItem (G7): a database does not answer the transaction of a handler, before the handler's own part
// or behind it. The handler was not called, or has returned nil. So the end of the transaction's time, of Timeout or of
// the lease counts no attempt.
func TestSilenceBlamesNoItem(t *testing.T) {
	t.Parallel()
	facets := layer.Config{MaxAttempts: 1, Facets: []string{"state"}, Views: "*"}
	plain, short := layer.Config{MaxAttempts: 1}, worker.Options{Timeout: time.Second}
	for name, c := range map[string]struct {
		config layer.Config
		o      worker.Options
		during bool // the handler is called, and returns nil
		silent time.Duration
		calls  int
	}{
		"before":                  {plain, worker.Options{}, false, 6 * time.Second, 1},
		"before, short timeout":   {plain, short, false, 6 * time.Second, 1},
		"before, short lease":     {plain, worker.Options{Lease: time.Second}, false, 6 * time.Second, 1},
		"behind, facets":          {facets, worker.Options{}, true, 6 * time.Second, 2},
		"behind, facets, timeout": {facets, short, true, 15 * time.Second, 2},
		"behind, its guard": {
			plain, worker.Options{Timeout: time.Second, StayWhenStuck: true}, true, 15 * time.Second, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, _, end := orders(t, c.config, "a")
				far := &silentDB{DB: db}
				q, err := layer.Open(t.Context(), far, []byte("worker"), "orders", layer.Options{})
				require.NoError(t, err)
				silence := sync.OnceFunc(func() { far.silence(c.silent) })
				calls := 0
				o := c.o
				o.Events.Started = func(worker.Event) {
					if !c.during {
						silence()
					}
				}
				stats := counted(t, q, worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
					if calls++; c.during {
						silence()
					}
					return nil
				}), o, 2*time.Minute)
				require.Equal(t, c.calls, calls)
				require.Zero(t, stats.DeadLettered)
				require.EqualValues(t, 1, stats.Acked)
				end()
			})
		})
	}
}

// TestShortSilenceBlamesNoItem (G7): the database has taken nearly all the time of a handler's transaction. The context
// ends while the handler runs, which then returns the context's error. No attempt counts.
func TestShortSilenceBlamesNoItem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _, end := orders(t, layer.Config{MaxAttempts: 1}, "a")
		far := &lateDB{DB: db}
		q, err := layer.Open(t.Context(), far, []byte("worker"), "orders", layer.Options{})
		require.NoError(t, err)
		calls := 0
		late := sync.OnceFunc(func() { far.late.Store(int64(4500 * time.Millisecond)) })
		stats := counted(t, q, worker.HandleTx(func(ctx context.Context, _ kv.Tx, _ *worker.Delivery) error {
			calls++
			select {
			case <-time.After(500 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}), worker.Options{Events: worker.Events{Started: func(worker.Event) { late() }}}, time.Minute)
		require.Equal(t, 2, calls)
		require.Zero(t, stats.DeadLettered)
		require.EqualValues(t, 1, stats.Acked)
		end()
	})
}

// lateDB answers the first read of its next transaction late, once it is told to.
type lateDB struct {
	kv.DB
	late atomic.Int64 // nanoseconds
}

func (db *lateDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := db.DB.Begin(o)
	return lateTx{tx, db}, err
}

type lateTx struct {
	kv.ManagedTx
	db *lateDB
}

func (t lateTx) Get(key []byte) kv.Future[[]byte] {
	time.Sleep(time.Duration(t.db.late.Swap(0)))
	return t.ManagedTx.Get(key)
}

// failingDB fails one read with an error, once it is told to.
type failingDB struct {
	kv.DB
	code atomic.Int64 // of the error; 0 = none
}

func (db *failingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := db.DB.Begin(o)
	return failingTx{tx, db}, err
}

type failingTx struct {
	kv.ManagedTx
	db *failingDB
}

func (t failingTx) Get(key []byte) kv.Future[[]byte] {
	if code := t.db.code.Swap(0); code != 0 {
		return kv.Done[[]byte](nil, error(&kv.Error{Code: int(code)}))
	}
	return t.ManagedTx.Get(key)
}

// TestErrorOfTheDatabaseBlamesNoItem (G7): the transaction of a handler fails with an error of the database, before the
// handler's own part or behind it. The error is an unknown one, an internal one, or one of the authorization, and the
// client has used the database in no wrong way. No attempt counts.
func TestErrorOfTheDatabaseBlamesNoItem(t *testing.T) {
	t.Parallel()
	for _, code := range []int64{4000, 4100, 6000} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprint(code, ", behind ", behind), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					config := layer.Config{MaxAttempts: 1}
					if behind {
						config.Facets, config.Views = []string{"state"}, "*"
					}
					db, _, end := orders(t, config, "a")
					far := &failingDB{DB: db}
					q, err := layer.Open(t.Context(), far, []byte("worker"), "orders", layer.Options{})
					require.NoError(t, err)
					fail := sync.OnceFunc(func() { far.code.Store(code) })
					calls, o := 0, worker.Options{}
					if !behind {
						o.Events.Started = func(worker.Event) { fail() }
					}
					stats := counted(t, q, worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
						if calls++; behind {
							fail()
						}
						return nil
					}), o, time.Minute)
					require.Equal(t, map[bool]int{false: 1, true: 2}[behind], calls)
					require.Zero(t, stats.DeadLettered)
					require.EqualValues(t, 1, stats.Acked)
					end()
				})
			})
		}
	}
}

// TestSlowHandlerOfAShortTransactionIsBlamed (G7): a handler needs more time than the time-out of its handle's
// transactions allows, and uses the transaction no more at its end. Each attempt counts.
func TestSlowHandlerOfAShortTransactionIsBlamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _, end := orders(t, layer.Config{
			MaxAttempts: 2, Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Second},
		}, "a")
		q, err := layer.Open(t.Context(), db, []byte("worker"), "orders", layer.Options{
			Tx: kv.TxOptions{Timeout: time.Second},
		})
		require.NoError(t, err)
		calls := 0
		stats := counted(t, q, worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
			calls++
			time.Sleep(1200 * time.Millisecond)
			return nil
		}), worker.Options{}, time.Minute)
		require.Equal(t, 2, calls)
		require.EqualValues(t, 1, stats.DeadLettered)
		end()
	})
}

// TestSlowHandlerIsBlamed (G7): a handler needs nearly all the time of its transaction, and nothing is left for the
// ack. The attempt counts.
func TestSlowHandlerIsBlamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _, end := orders(t, layer.Config{
			MaxAttempts: 2, Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Second},
			Facets: []string{"state"}, Views: "*",
		}, "a")
		far := &silentDB{DB: db}
		q, err := layer.Open(t.Context(), far, []byte("worker"), "orders", layer.Options{})
		require.NoError(t, err)
		stats := counted(t, q, worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
			time.Sleep(4700 * time.Millisecond)
			far.silence(200 * time.Millisecond)
			return nil
		}), worker.Options{}, time.Minute)
		require.EqualValues(t, 1, stats.DeadLettered)
		end()
	})
}

// faulty opens the queue by a handle whose commits meet the fault until the time that fail is called with.
func faulty(t *testing.T, db kv.DB, kind fault.Kind) (q *layer.Queue, fail func(d time.Duration)) {
	t.Helper()
	var heals atomic.Int64 // ns
	plan := &fault.Plan{OnCommit: func(int, kv.Tx) fault.Kind {
		if time.Now().UnixNano() < heals.Load() {
			return kind
		}
		return fault.None
	}}
	q, err := layer.Open(t.Context(), fault.Wrap(db, plan), []byte("worker"), "orders", layer.Options{})
	require.NoError(t, err)
	return q, func(d time.Duration) { heals.Store(time.Now().Add(d).UnixNano()) }
}

// TestSilenceIsNoStuckHandler: the database does not answer the commits of handlers that have returned, for longer than
// Timeout and the time after which a handler counts as stuck. No handler is reported as stuck, and the worker goes on
// when the database answers. A Stop in that time waits for no handler.
func TestSilenceIsNoStuckHandler(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"HandleTx", "HandleCommit", "its commit"} {
		for _, stops := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, stops), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { silenceIsNoStuckHandler(t, kind, stops) })
			})
		}
	}
}

func silenceIsNoStuckHandler(t *testing.T, kind string, stops bool) {
	db, _, end := orders(t, layer.Config{})
	far := &silentDB{DB: db}
	q, err := layer.Open(t.Context(), far, []byte("worker"), "orders", layer.Options{})
	require.NoError(t, err)
	var fails atomic.Bool // the next call is the last before a silence
	hush := func() {
		if fails.CompareAndSwap(true, false) {
			far.silence(90 * time.Second)
		}
	}
	handler := worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
		hush()
		return nil
	})
	if kind != "HandleTx" {
		handler = worker.HandleCommit(func(context.Context, *worker.Delivery) (int, error) {
			if kind == "HandleCommit" {
				hush()
			}
			return 0, nil
		}, func(context.Context, kv.Tx, *worker.Delivery, int) error {
			if kind == "its commit" {
				hush()
			}
			return nil
		})
	}
	var stuck atomic.Int64
	w, err := worker.New(q, handler, worker.Options{
		Concurrency: 2, Timeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
		OnError: func(err error) {
			if errors.Is(err, worker.ErrStuck) || errors.As(err, new(*worker.StuckError)) {
				stuck.Add(1)
			}
		},
	})
	require.NoError(t, err)
	w.Start()
	for n := range 8 {
		fails.Store(true)
		_, err := q.Enqueue(t.Context(), layer.Message{Group: fmt.Sprint(n)})
		require.NoError(t, err)
		if stops {
			time.Sleep(time.Second)
			begun := time.Now()
			require.ErrorIs(t, w.Stop(t.Context()), worker.ErrNoAnswer)
			require.Less(t, time.Since(begun), 2*time.Second)
			break
		}
		time.Sleep(3 * time.Minute)
	}
	require.Zero(t, stuck.Load())
	if !stops {
		stats, err := q.Stats(t.Context(), layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, []int64{8, 0}, []int64{stats.Acked, stats.DeadLettered})
		require.NoError(t, w.Stop(t.Context()))
	}
	time.Sleep(5 * time.Minute)
	require.NoError(t, q.Close(t.Context()))
	end()
}

// TestLateCommitIsNotStuck: the commit function of HandleCommit runs until later than 5 s after Timeout. Its own
// context has not ended, so that it is no stuck handler.
func TestLateCommitIsNotStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _, end := orders(t, layer.Config{}, "a")
		q, err := layer.Open(t.Context(), db, []byte("worker"), "orders", layer.Options{})
		require.NoError(t, err)
		var inTime bool // the commit function has returned before the end of its context
		handler := worker.HandleCommit(func(context.Context, *worker.Delivery) (int, error) {
			time.Sleep(6 * time.Second)
			return 0, nil
		}, func(ctx context.Context, _ kv.Tx, _ *worker.Delivery, _ int) error {
			time.Sleep(3 * time.Second)
			inTime = ctx.Err() == nil
			return nil
		})
		var failures []error
		stats := counted(t, q, handler, worker.Options{
			Timeout: 2 * time.Second, OnError: func(err error) { failures = append(failures, err) },
		}, time.Minute)
		require.Empty(t, failures)
		require.True(t, inTime)
		require.EqualValues(t, 1, stats.Acked)
		end()
	})
}

// TestSlowHooksLoseNoClaim: a worker keeps a claim of the shortest lease, though each of its extensions waits for hooks
// that take too long.
func TestSlowHooksLoseNoClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _, end := orders(t, layer.Config{Lease: layer.MinLease}, "a", "b", "c", "d")
		slow := layer.Hook{End: func(context.Context, *layer.Operation) { time.Sleep(600 * time.Millisecond) }}
		q, err := layer.Open(t.Context(), db, []byte("worker"), "orders", layer.Options{Hooks: []layer.Hook{slow}})
		require.NoError(t, err)
		var calls, lost atomic.Int64
		w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
			calls.Add(1)
			time.Sleep(10 * time.Second)
			return nil
		}), worker.Options{Logger: slog.New(slog.DiscardHandler), OnError: func(error) { lost.Add(1) }})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Minute)
		require.NoError(t, w.Stop(t.Context()))
		require.EqualValues(t, []int64{4, 0}, []int64{calls.Load(), lost.Load()})
		require.NoError(t, q.Close(t.Context()))
		end()
		time.Sleep(time.Second) // until the last hook has returned
	})
}

// TestPostponedGroupsHoldUpNoOthers (G5): the messages of two groups are returned each time, without an attempt and
// without a delay: their handler postpones them, or the database ends its transaction. One goroutine still handles the
// messages of the groups behind them.
func TestPostponedGroupsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tx     kv.TxOptions
		silent bool
	}{
		"postponed": {},
		"spared":    {tx: kv.TxOptions{Timeout: time.Second}, silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, _, end := orders(t, layer.Config{}, "a", "b", "c", "d", "e", "f")
				far := &silentDB{DB: db}
				q, err := layer.Open(t.Context(), far, []byte("worker"), "orders", layer.Options{Tx: c.tx})
				require.NoError(t, err)
				begun := time.Now()
				stats := counted(t, q, worker.HandleTx(func(_ context.Context, _ kv.Tx, d *worker.Delivery) error {
					time.Sleep(10 * time.Millisecond)
					switch {
					case d.ID.Group > "b":
						return nil
					case c.silent && time.Since(begun) < 4*time.Minute: // then the database answers the Stop
						far.silence(2 * time.Second)
						return nil
					}
					return &worker.RetryError{Uncounted: true}
				}), worker.Options{}, 5*time.Minute)
				require.EqualValues(t, 4, stats.Acked)
				require.Zero(t, stats.DeadLettered)
				end()
			})
		})
	}
}

// TestRetriedCommitBlamesNoItem (G7): the handler has returned nil at once, and its commit is tried again until Timeout
// is over. No attempt counts.
func TestRetriedCommitBlamesNoItem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _, end := orders(t, layer.Config{MaxAttempts: 1}, "a")
		q, fail := faulty(t, db, fault.Conflict)
		begin := sync.OnceFunc(func() { fail(3 * time.Second) })
		stats := counted(t, q, worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
			begin()
			return nil
		}), worker.Options{Timeout: 2 * time.Second, Lease: 5 * time.Minute}, time.Minute)
		require.Zero(t, stats.DeadLettered)
		require.EqualValues(t, 1, stats.Acked)
		end()
	})
}

// TestAckBeyondItsLease (G3): commits fail for longer than a lease, and no other handle takes the group. The messages
// that were handled are acked when commits succeed again: with the next receive, during the next call, or in the
// settlement after a failure. None of them is delivered again.
func TestAckBeyondItsLease(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"travels", "during the next call", "given back"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, _, end := orders(t, layer.Config{
					Lease: 5 * time.Second, MaxAttempts: 3,
					Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Second},
				}, "a", "a", "a")
				q, fail := faulty(t, db, fault.CommitFailed)
				calls := map[string]int{}
				stats := counted(t, q, worker.Handle(func(_ context.Context, d *worker.Delivery) error {
					calls[string(d.Body)]++
					switch body := string(d.Body); {
					case how == "during the next call" && body == "1":
						fail(7500 * time.Millisecond)
						time.Sleep(6 * time.Second)
					case how != "during the next call" && body == "2" && calls[body] == 1:
						fail(7500 * time.Millisecond)
						if how == "given back" {
							return errors.New("once")
						}
					}
					return nil
				}), worker.Options{}, time.Minute)
				last := 1
				if how == "given back" {
					last = 2
				}
				require.Equal(t, map[string]int{"0": 1, "1": 1, "2": last}, calls)
				require.EqualValues(t, 3, stats.Acked)
				require.Zero(t, stats.Expired)
				end()
			})
		})
	}
}

// TestEndlessOutageFreesTheGoroutine (contract): the commits of an ack fail without end. The worker tries the ack
// for a bounded time: then it reports the error and asks for other messages.
func TestEndlessOutageFreesTheGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _, end := orders(t, layer.Config{Lease: 5 * time.Second}, "a")
		q, fail := faulty(t, db, fault.CommitFailed)
		var reported atomic.Int64
		begun := time.Now()
		w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
			if reported.Load() == 0 {
				fail(30 * time.Second)
			}
			return nil
		}), worker.Options{
			Concurrency: 1, Logger: slog.New(slog.DiscardHandler), OnError: func(err error) {
				reported.CompareAndSwap(0, int64(time.Since(begun)))
			},
		})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Minute)
		require.NoError(t, w.Stop(t.Context()))
		require.Positive(t, reported.Load())
		require.LessOrEqual(t, time.Duration(reported.Load()), 15*time.Second)
		stats, err := q.Stats(t.Context(), layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, stats.Acked)
		require.NoError(t, q.Close(t.Context()))
		end()
	})
}

// TestSilenceAfterAStop: a worker is stopped while a handler runs, and the database does not answer the commit that
// follows. Each Stop returns ErrNoAnswer within a second of the handler's return, whatever the handler's Timeout is.
func TestSilenceAfterAStop(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{0, -1} {
		for _, kind := range []string{"HandleTx", "HandleCommit"} {
			t.Run(fmt.Sprint(kind, timeout), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { silenceAfterAStop(t, kind, timeout) })
			})
		}
	}
}

func silenceAfterAStop(t *testing.T, kind string, timeout time.Duration) {
	db, _, end := orders(t, layer.Config{}, "a")
	far := &silentDB{DB: db}
	q, err := layer.Open(t.Context(), far, []byte("worker"), "orders", layer.Options{})
	require.NoError(t, err)
	var returned atomic.Int64 // nanoseconds
	work := func() {
		time.Sleep(2 * time.Second)
		far.silence(10 * time.Minute)
		returned.Store(time.Now().UnixNano())
	}
	handler := worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
		work()
		return nil
	})
	if kind == "HandleCommit" {
		handler = worker.HandleCommit(func(context.Context, *worker.Delivery) (int, error) {
			work()
			return 0, nil
		}, func(context.Context, kv.Tx, *worker.Delivery, int) error { return nil })
	}
	w, err := worker.New(q, handler, worker.Options{Timeout: timeout, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	w.Start()
	time.Sleep(time.Second)
	stopped := make(chan error, 2)
	for range cap(stopped) {
		go func() { stopped <- w.Stop(t.Context()) }()
	}
	for range cap(stopped) {
		require.ErrorIs(t, <-stopped, worker.ErrNoAnswer)
		require.Less(t, time.Since(time.Unix(0, returned.Load())), time.Second)
	}
	time.Sleep(11 * time.Minute)
	require.NoError(t, q.Close(t.Context()))
	end()
}

// TestLateCommitBlamesNoOther (G7): the time-out of a handler's transaction ends during the commit, and the handler has
// used most of the time. If the commit lands later, the message is gone. Then the attempt must not count for the
// message behind it, whose handler was not called. If the commit is lost, the attempt counts for the first message.
func TestLateCommitBlamesNoOther(t *testing.T) {
	t.Parallel()
	for kind, want := range map[fault.Kind][]int64{fault.TimedOutLate: {2, 0}, fault.TimedOutLost: {1, 1}} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, other, end := orders(t, layer.Config{MaxAttempts: 1}, "a", "a")
				var returned, struck atomic.Bool
				plan := &fault.Plan{KeepLate: true}
				plan.OnCommit = func(int, kv.Tx) fault.Kind {
					switch {
					case !returned.Load():
						return fault.None
					case struck.CompareAndSwap(false, true):
						return kind
					}
					assert.NoError(t, plan.Land(t.Context()))
					return fault.None
				}
				q, err := layer.Open(t.Context(), fault.Wrap(db, plan), []byte("worker"), "orders", layer.Options{})
				require.NoError(t, err)
				calls := map[string]int{}
				stats := counted(t, q, worker.HandleTx(func(_ context.Context, _ kv.Tx, d *worker.Delivery) error {
					calls[string(d.Body)]++
					time.Sleep(100 * time.Millisecond)
					returned.Store(true)
					return nil
				}), worker.Options{}, time.Minute)
				require.Equal(t, map[string]int{"0": 1, "1": 1}, calls)
				require.Equal(t, want, []int64{stats.Acked, stats.DeadLettered})
				page, err := other.Admin().DeadLetters(t.Context(), layer.DeadOptions{Bodies: true})
				require.NoError(t, err)
				for _, letter := range page.Letters {
					require.Equal(t, "0", string(letter.Body))
				}
				end()
			})
		})
	}
}

// TestShorterLeaseAmidAClaim: an operator makes the queue's lease shorter during a transaction of a handler, which then
// has to be tried again. Too little is left of the claim for that. The worker extends the claim once, by the new lease,
// and calls the handler again.
func TestShorterLeaseAmidAClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const s = time.Second
		// The last call begins with 10.5 s of a lease of 30 s, and ends with 5.8 s: too much for an extension before
		// the call, and too little for another attempt.
		takes := []time.Duration{9 * s / 2, 9 * s / 2, 9 * s / 2, 9 * s / 2, 3 * s / 2, 47 * s / 10}
		groups := slices.Repeat([]string{"a"}, len(takes))
		db, other, end := orders(t, layer.Config{Lease: 30 * s}, groups...)
		var extensions atomic.Int64
		count := layer.Hook{End: func(_ context.Context, o *layer.Operation) {
			if o.Verb == layer.VerbExtend {
				extensions.Add(1)
				time.Sleep(10 * time.Millisecond) // so that an endless row of them ends with Timeout
			}
		}}
		q, err := layer.Open(t.Context(), db, []byte("worker"), "orders", layer.Options{Hooks: []layer.Hook{count}})
		require.NoError(t, err)
		calls := 0
		stats := counted(t, q, worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
			if calls++; calls > len(takes) {
				return nil
			}
			time.Sleep(takes[calls-1])
			if calls < len(takes) {
				return nil
			}
			_, _, err := other.Admin().Configure(t.Context(), func(c *layer.Config) { c.Lease = s })
			return errors.Join(err, &kv.Error{Code: kv.CodeNotCommitted})
		}), worker.Options{Batch: len(takes)}, 2*time.Minute)
		require.Equal(t, len(takes)+1, calls)
		require.EqualValues(t, len(takes), stats.Acked)
		require.EqualValues(t, 1, extensions.Load())
		end()
	})
}
