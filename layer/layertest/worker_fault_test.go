package layer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
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

// Workers in virtual time: handlers that are slow, hang, or end their goroutine.

// bubble is a queue in memory whose time is virtual, and what its workers' handlers saw.
type bubble struct {
	t  *testing.T
	q  *layer.Queue
	db kv.DB

	mu    sync.Mutex
	calls map[string]int // of handlers, by the body; guarded by mu
	errs  []error        // that workers have reported; guarded by mu
}

// eachSecond tries what has failed again after a second.
var eachSecond = layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Second}

// inBubble runs fn with an empty queue in a bubble of testing/synctest.
func inBubble(t *testing.T, c layer.Config, fn func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{Config: c})
		require.NoError(t, err)
		b := &bubble{t: t, q: q, db: db, calls: make(map[string]int)}
		fn(b)
		_ = q.Close(context.Background())
	})
}

func (b *bubble) onError(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errs = append(b.errs, err)
}

func (b *bubble) reported() []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.errs
}

// called counts a call and returns its number, from 1 on.
func (b *bubble) called(item layer.Item) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[string(item.Body)]++
	return b.calls[string(item.Body)]
}

// seen is a copy of the calls so far.
func (b *bubble) seen() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.calls)
}

// fill enqueues n items into group A, with their numbers as bodies.
func (b *bubble) fill(n int) {
	b.t.Helper()
	var msgs []layer.Message
	for i := range n {
		msgs = append(msgs, layer.Message{Group: "A", Body: fmt.Append(nil, i)})
	}
	_, err := b.q.Enqueue(b.t.Context(), msgs...)
	require.NoError(b.t, err)
}

func (b *bubble) stats() layer.Stats {
	b.t.Helper()
	s, err := b.q.Stats(b.t.Context(), layer.StatsOptions{})
	require.NoError(b.t, err)
	return s
}

// run lets a worker work for as long as told, and stops it.
func (b *bubble) run(w *worker.Worker, err error, d time.Duration) {
	b.t.Helper()
	require.NoError(b.t, err)
	w.Start()
	time.Sleep(d)
	require.NoError(b.t, w.Stop(b.t.Context()))
}

// eachOnce: every item was handled once, and is gone.
func (b *bubble) eachOnce(n int) {
	b.t.Helper()
	require.Empty(b.t, b.reported())
	require.EqualValues(b.t, n, b.stats().Acked)
	for i := range n {
		require.Equal(b.t, 1, b.calls[fmt.Sprint(i)], "calls for %d", i)
	}
}

// TestSlowHandlers: a handler that takes longer than a third of the lease is called once for each item, in a
// transaction or not: the worker's extension of the claim does not meet the transaction. Guard extend-apart.
func TestSlowHandlers(t *testing.T) {
	for _, c := range []struct{ lease, takes time.Duration }{
		{3 * time.Second, 1100 * time.Millisecond},
		{30 * time.Second, 4500 * time.Millisecond},
		{time.Second, 900 * time.Millisecond},
		{5 * time.Second, 4500 * time.Millisecond},
		{time.Second, 4 * time.Second},
	} {
		handle := func(b *bubble, item layer.Item) error {
			b.called(item)
			time.Sleep(c.takes)
			return nil
		}
		o := worker.Options{Concurrency: 2, Batch: 10, Lease: c.lease}
		t.Run(fmt.Sprintf("plain, %s of %s", c.takes, c.lease), func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				b.fill(10)
				o.OnError = b.onError
				w, err := plainWorker(b.q, func(_ context.Context, item layer.Item) error { return handle(b, item) }, o)
				b.run(w, err, 10*c.takes+5*time.Second)
				b.eachOnce(10)
			})
		})
		if c.takes > c.lease {
			continue // no transaction may take that long
		}
		t.Run(fmt.Sprintf("in a transaction, %s of %s", c.takes, c.lease), func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				b.fill(10)
				o.OnError = b.onError
				w, err := txWorker(b.q, func(_ context.Context, _ kv.Tx, item layer.Item) error {
					return handle(b, item)
				}, o)
				b.run(w, err, 10*c.takes+5*time.Second)
				b.eachOnce(10)
			})
		})
	}
}

// TestLeaseAsAsked: whatever its handler, a worker holds no group for longer than the lease that it was given, so that
// the group is free again so long after the process has gone.
func TestLeaseAsAsked(t *testing.T) {
	const lease = 2 * time.Second
	type handle = func(context.Context, *worker.Delivery) error
	for name, handler := range map[string]func(h handle) worker.Handler{
		"plain": func(h handle) worker.Handler { return worker.Handle(h) },
		"in a transaction": func(h handle) worker.Handler {
			return worker.HandleTx(func(ctx context.Context, _ kv.Tx, d *worker.Delivery) error { return h(ctx, d) })
		},
		"in two steps": func(h handle) worker.Handler {
			return worker.HandleCommit(
				func(ctx context.Context, d *worker.Delivery) (int, error) { return 0, h(ctx, d) },
				func(context.Context, kv.Tx, *worker.Delivery, int) error { return nil },
			)
		},
		"batch": func(h handle) worker.Handler {
			return worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
				for _, d := range ds {
					if err := h(ctx, d); err != nil {
						return err
					}
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				b.fill(20)
				h := handler(func(ctx context.Context, d *worker.Delivery) error {
					b.called(d.Item)
					require.LessOrEqual(b.t, time.Until(d.Until()), lease)
					time.Sleep(300 * time.Millisecond)
					return nil
				})
				o := worker.Options{Concurrency: 1, Lease: lease, OnError: b.onError}
				w, err := worker.New(b.q, h, quiet(o))
				require.NoError(t, err)
				w.Start()
				for range 100 {
					time.Sleep(77 * time.Millisecond)
					page, err := b.q.Admin().Groups(b.t.Context(), layer.GroupsOptions{})
					require.NoError(t, err)
					for _, g := range page.Groups {
						require.LessOrEqual(b.t, g.Left, lease, "the lock's lease")
					}
				}
				require.NoError(t, w.Stop(b.t.Context()))
				b.eachOnce(20)
			})
		})
	}
}

// TestConflictAmidHandler: a transaction of a handler that has met a conflict is repeated once, with a lease that is
// too short for a whole transaction too: the extension between the attempts does not meet them.
func TestConflictAmidHandler(t *testing.T) {
	for _, lease := range []time.Duration{2 * time.Second, 7 * time.Second, 30 * time.Second} {
		t.Run(lease.String(), func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				b.fill(3)
				w, err := txWorker(b.q, func(ctx context.Context, tx kv.Tx, item layer.Item) error {
					n := b.called(item)
					if _, err := tx.Get([]byte("other")).Wait(ctx); err != nil {
						return err
					}
					time.Sleep(1500 * time.Millisecond)
					if n == 1 {
						_, err := kv.Run(ctx, b.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
							tx.Set([]byte("other"), item.Body)
							return nil
						})
						return err
					}
					return nil
				}, worker.Options{Concurrency: 2, Lease: lease, OnError: b.onError})
				b.run(w, err, time.Minute)
				require.Empty(t, b.reported())
				require.Equal(t, map[string]int{"0": 2, "1": 2, "2": 2}, b.seen())
				require.EqualValues(t, 3, b.stats().Acked)
			})
		})
	}
}

// stillDB stands still for a while before it begins a transaction, once it is told to, as a process that is stopped.
type stillDB struct {
	kv.DB
	still atomic.Int64 // nanoseconds of the next one
}

func (db *stillDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	time.Sleep(time.Duration(db.still.Swap(0)))
	return db.DB.Begin(o)
}

// TestStillBeforeTransaction: a worker checks that enough of the lease is left for a handler's transaction, and then
// stands still until the lease is over. This is no failure of the item. The worker extends the claim and continues, or,
// if another has the group by then, has lost the claim.
func TestStillBeforeTransaction(t *testing.T) {
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken=%v", taken), func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				b.fill(1)
				db := &stillDB{DB: b.db}
				q, err := layer.Open(b.t.Context(), db, testPrefix, testQueue, layer.Options{})
				require.NoError(t, err)
				h := worker.HandleCommit(
					func(_ context.Context, d *worker.Delivery) (int, error) {
						if b.called(d.Item) == 1 {
							db.still.Store(int64(10 * time.Second))
						}
						return 0, nil
					},
					func(ctx context.Context, tx kv.Tx, d *worker.Delivery, _ int) error {
						addOne(tx, d.Item)
						return ctx.Err() // as a read from an engine far away does
					})
				w, err := worker.New(q, h, quiet(worker.Options{
					Concurrency: 1, Lease: time.Second, OnError: b.onError,
				}))
				require.NoError(t, err)
				w.Start()
				if taken {
					time.Sleep(5 * time.Second)
					claims, err := b.q.Receive(b.t.Context(), layer.ReceiveOptions{})
					require.NoError(t, err)
					require.Len(t, claims, 1)
					require.NoError(t, b.q.Ack(b.t.Context(), claims[0]))
				}
				time.Sleep(time.Minute)
				require.NoError(t, w.Stop(b.t.Context()))
				require.NoError(t, q.Close(b.t.Context()))
				require.Equal(t, map[string]int{"0": 1}, b.seen())
				require.EqualValues(t, 1, b.stats().Acked)
				if !taken {
					require.Empty(t, b.reported())
					return
				}
				require.Len(t, b.reported(), 1)
				require.ErrorIs(t, b.reported()[0], layer.ErrClaimLost)
			})
		})
	}
}

// TestVanishedWorker: a group whose worker has vanished amid a transaction is delivered again when the lease that was
// asked for is over, and not later.
func TestVanishedWorker(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		const lease = 2 * time.Second
		b.fill(2)
		begun := time.Now()
		gone := make(chan struct{})
		w, err := txWorker(b.q, func(_ context.Context, _ kv.Tx, item layer.Item) error {
			if string(item.Body) == "1" && b.called(item) == 1 {
				<-gone // as a process that stands still
				return errors.New("gone")
			}
			return nil
		}, worker.Options{Concurrency: 1, Lease: lease, OnError: b.onError})
		require.NoError(t, err)
		w.Start()
		time.Sleep(10 * time.Millisecond)
		claims, err := b.q.Receive(b.t.Context(), layer.ReceiveOptions{Wait: 20 * time.Second})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.Equal(t, "1", string(claims[0].Items[0].Body))
		require.InDelta(t, lease.Seconds(), time.Since(begun).Seconds(), 0.1)
		require.NoError(t, b.q.Ack(b.t.Context(), claims[0]))
		close(gone)
		require.NoError(t, w.Stop(b.t.Context()))
	})
}

// TestTransactionTooLong: a handler that takes longer than a transaction may last fails its item, whether it heeds its
// context or not. The failure is reported and counts an attempt, and the item becomes a dead letter in the end. Guard
// tx-bound.
func TestTransactionTooLong(t *testing.T) {
	for name, wait := range map[string]func(ctx context.Context){
		"heeds its context":   func(ctx context.Context) { <-ctx.Done() },
		"ignores its context": func(context.Context) { time.Sleep(6 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, layer.Config{MaxAttempts: 3, Retry: eachSecond}, func(b *bubble) {
				b.fill(2)
				w, err := txWorker(b.q, func(ctx context.Context, _ kv.Tx, item layer.Item) error {
					b.called(item)
					if string(item.Body) == "0" {
						wait(ctx)
					}
					return ctx.Err()
				}, worker.Options{Concurrency: 1, OnError: b.onError})
				b.run(w, err, time.Minute)
				require.Equal(t, map[string]int{"0": 3, "1": 1}, b.seen())
				require.Len(t, b.reported(), 3)
				for _, err := range b.reported() {
					var h *worker.HandlerError
					require.ErrorAs(t, err, &h)
				}
				page, err := b.q.Admin().DeadLetters(b.t.Context(), layer.DeadOptions{Bodies: true})
				require.NoError(t, err)
				require.Len(t, page.Letters, 1)
				require.Equal(t, "0", string(page.Letters[0].Body))
				require.Equal(t, 3, page.Letters[0].Attempts)
				require.EqualValues(t, 1, b.stats().Acked)
			})
		})
	}
}

// TestStopAmidTooLong: a worker whose handler never ends within a transaction can be stopped.
func TestStopAmidTooLong(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		b.fill(1)
		w, err := txWorker(b.q, func(_ context.Context, _ kv.Tx, _ layer.Item) error {
			time.Sleep(6 * time.Second)
			return nil
		}, worker.Options{Concurrency: 1, OnError: b.onError})
		require.NoError(t, err)
		w.Start()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		require.NoError(t, w.Stop(ctx))
		require.Less(t, time.Since(begun), 20*time.Second)
	})
}

// TestNoLossOfOwnClaims: a worker does not report as lost what it has finished itself.
func TestNoLossOfOwnClaims(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		const n = 200
		for i := range n {
			_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: fmt.Sprint(i), Body: fmt.Append(nil, i)})
			require.NoError(t, err)
		}
		w, err := txWorker(b.q, func(_ context.Context, _ kv.Tx, item layer.Item) error {
			b.called(item)
			time.Sleep(time.Second / 3) // when an extension is due
			return nil
		}, worker.Options{Lease: time.Second, OnError: b.onError})
		b.run(w, err, 2*time.Minute)
		b.eachOnce(n)
	})
}

// TestWorkerOfNothing: a worker needs a queue and a handler.
func TestWorkerOfNothing(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		for name, made := range map[string]func() (*worker.Worker, error){
			"no queue": func() (*worker.Worker, error) {
				return plainWorker(nil, func(context.Context, layer.Item) error { return nil }, worker.Options{})
			},
			"no function": func() (*worker.Worker, error) {
				return plainWorker(b.q, nil, worker.Options{})
			},
			"no function in a transaction": func() (*worker.Worker, error) {
				return txWorker(b.q, nil, worker.Options{})
			},
		} {
			w, err := made()
			require.ErrorIs(t, err, layer.ErrOptions, name)
			require.Nil(t, w)
		}
	})
}

// TestGoexit: a handler that ends its goroutine has failed, and the worker goes on.
func TestGoexit(t *testing.T) {
	inBubble(t, layer.Config{MaxAttempts: 2, Retry: eachSecond}, func(b *bubble) {
		b.fill(3)
		w, err := plainWorker(b.q, func(_ context.Context, item layer.Item) error {
			b.called(item)
			if string(item.Body) == "1" {
				runtime.Goexit()
			}
			return nil
		}, worker.Options{Concurrency: 1, OnError: b.onError})
		b.run(w, err, time.Minute)
		require.Equal(t, map[string]int{"0": 1, "1": 2, "2": 1}, b.seen())
		require.Len(t, b.reported(), 2)
		var h *worker.HandlerError
		require.True(t, errors.As(b.reported()[0], &h))
		require.Contains(t, h.Err.Error(), "Goexit")
	})
}
