package layer_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// A handler is told by its context when its lease ends, whatever the database does.

// cutOffQueue is a handle of the bubble's queue on a database that can be cut off.
func (b *bubble) cutOffQueue(o layer.Options) (*layer.Queue, *cutDB) {
	b.t.Helper()
	db := &cutDB{DB: b.db}
	q, err := layer.Open(b.t.Context(), db, testPrefix, testQueue, o)
	require.NoError(b.t, err)
	return q, db
}

// close heals the database and closes its handle.
func (b *bubble) close(q *layer.Queue, db *cutDB) {
	b.t.Helper()
	db.heal()
	require.NoError(b.t, q.Close(b.t.Context()))
}

// TestContextEndsWithLease: a worker is cut off from its database, by a hang or by errors without end. Its handler is
// told when the lease ends, before another worker has the group. The item has not failed, and the next worker handles
// it.
func TestContextEndsWithLease(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	for name, c := range map[string]struct {
		code int
		o    worker.Options
	}{
		"hang":                      {0, worker.Options{Lease: lease}},
		"process behind":            {kv.CodeProcessBehind, worker.Options{Lease: lease}},
		"hang, queue's lease":       {0, worker.Options{}},
		"hang, heartbeat":           {0, worker.Options{Heartbeat: true}},
		"process behind, heartbeat": {kv.CodeProcessBehind, worker.Options{Heartbeat: true}},
		"io error, heartbeat":       {kv.CodeIOError, worker.Options{Heartbeat: true}},
		"hang, no timeout":          {0, worker.Options{Timeout: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var begun, ended time.Time
			var cause error
			onKinds(t, layer.Config{Lease: lease}, func(b *bubble, ctx context.Context, d *worker.Delivery) error {
				if b.called(d.Item) > 1 {
					return nil
				}
				<-ctx.Done()
				b.mu.Lock()
				defer b.mu.Unlock()
				ended, cause = time.Now(), context.Cause(ctx)
				return cause
			}, func(b *bubble, h worker.Handler) {
				if strings.HasSuffix(b.t.Name(), "Tx") {
					return // its transaction ends before its lease does
				}
				ended = time.Time{}
				b.fill(1)
				q, db := b.cutOffQueue(layer.Options{})
				o := c.o
				o.Concurrency, o.OnError = 1, b.onError
				w, err := worker.New(q, h, quiet(o))
				require.NoError(b.t, err)
				w.Start()
				time.Sleep(12 * time.Second) // it is extended
				b.mu.Lock()
				require.True(b.t, ended.IsZero())
				b.mu.Unlock()
				begun = time.Now()
				db.cut(c.code)
				time.Sleep(lease)
				synctest.Wait()
				b.mu.Lock()
				require.False(b.t, ended.IsZero())
				require.ErrorIs(b.t, cause, layer.ErrClaimLost)
				require.LessOrEqual(b.t, ended.Sub(begun), lease)
				require.Greater(b.t, ended.Sub(begun), lease/2)
				b.mu.Unlock()
				other := b.worker(h, worker.Options{Concurrency: 1})
				b.run(other, nil, 10*time.Second)
				require.EqualValues(b.t, 1, b.stats().Acked)
				require.Zero(b.t, b.stats().Nacked)
				db.heal()
				require.NoError(b.t, w.Stop(b.t.Context()))
				b.close(q, db)
				require.Equal(b.t, map[string]int{"0": 2}, b.seen())
			})
		})
	}
}

// TestLateIsSettled: the worker acks an item though its lease ended while the handler ran, if no other has the group.
func TestLateIsSettled(t *testing.T) {
	t.Parallel()
	var db *cutDB
	onKinds(t, layer.Config{Lease: 5 * time.Second}, func(b *bubble, _ context.Context, d *worker.Delivery) error {
		if b.called(d.Item) == 1 && string(d.Body) == "0" {
			db.cut(0)
			time.Sleep(time.Minute) // and does not heed its context
			db.heal()
		}
		return nil
	}, func(b *bubble, h worker.Handler) {
		if strings.HasSuffix(b.t.Name(), "Tx") {
			return // its transaction does not last so long
		}
		b.fill(2)
		var q *layer.Queue
		q, db = b.cutOffQueue(layer.Options{})
		w, err := worker.New(q, h, quiet(worker.Options{Concurrency: 1, OnError: b.onError, StayWhenStuck: true}))
		b.run(w, err, 2*time.Minute)
		require.Equal(b.t, map[string]int{"0": 1, "1": 1}, b.seen())
		require.EqualValues(b.t, 2, b.stats().Acked)
		b.close(q, db)
	})
}

// TestLeaseEndCountsNothing: a handler that ends because its lease has ended has not failed. With one attempt allowed
// its item is no dead letter, and the worker handles the item when the database is back.
func TestLeaseEndCountsNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{Lease: 5 * time.Second, MaxAttempts: 1}, func(b *bubble) {
		b.fill(2)
		q, db := b.cutOffQueue(layer.Options{})
		w, err := plainWorker(q, func(ctx context.Context, item layer.Item) error {
			if b.called(item) == 1 && string(item.Body) == "0" {
				db.cut(0)
				time.AfterFunc(6*time.Second, db.heal)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}, worker.Options{Concurrency: 1, OnError: b.onError})
		b.run(w, err, time.Minute)
		require.Equal(b.t, map[string]int{"0": 2, "1": 1}, b.seen())
		require.EqualValues(b.t, 2, b.stats().Acked)
		require.Zero(b.t, b.stats().DeadLettered)
		b.close(q, db)
	})
}

// TestLeftOfClaim: a claim tells by the monotonic clock what is left of it, whatever the wall clock of the handle does,
// by a lease and by a heartbeat; and a heartbeat that does not reach the database for a lease ends.
func TestLeftOfClaim(t *testing.T) {
	t.Parallel()
	for _, beat := range []bool{false, true} {
		inBubble(t, layer.Config{Lease: 9 * time.Second}, func(b *bubble) {
			b.fill(1)
			var mu sync.Mutex
			var step time.Duration
			now := func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				return time.Now().Add(step)
			}
			q, db := b.cutOffQueue(layer.Options{Now: now})
			claims, err := q.Receive(b.t.Context(), layer.ReceiveOptions{Heartbeat: beat})
			require.NoError(b.t, err)
			c := claims[0]
			left := func(want time.Duration) {
				b.t.Helper()
				require.InDelta(b.t, want.Seconds(), c.Left().Seconds(), 0.01)
			}
			left(9 * time.Second)
			mu.Lock()
			step = time.Hour
			mu.Unlock()
			left(9 * time.Second)
			time.Sleep(2 * time.Second)
			left(7 * time.Second)
			_, ended := c.Lasts()
			require.Equal(b.t, beat, ended != nil)
			if !beat {
				_, err = q.Extend(b.t.Context(), c, 20*time.Second)
				require.NoError(b.t, err)
				left(20 * time.Second)
			} else {
				time.Sleep(3 * time.Second)
				left(7 * time.Second) // a beat has come after three
				db.cut(0)
				time.Sleep(7*time.Second + time.Millisecond)
				synctest.Wait()
				left(-time.Millisecond)
				select {
				case <-ended:
				default:
					b.t.Error("the handle still keeps the claim")
				}
			}
			db.heal()
			require.NoError(b.t, q.Ack(b.t.Context(), c))
			b.close(q, db)
		})
	}
}
