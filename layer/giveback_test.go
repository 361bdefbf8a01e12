package layer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// TestGivenBackIsNotReturned: a receive whose context ends while its transaction is in flight gives back what it
// claims, and does not return it: a claim that is returned is held (G2).
func TestGivenBackIsNotReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		db := fault.Wrap(embedded.OpenMemory(embedded.Options{}), plan)
		defer func() { require.NoError(t, db.Close()) }()
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), layer.Message{Group: "A"})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		var first sync.Once // the next commit gives back what was claimed, beside this goroutine
		plan.OnCommit = func(int, kv.Tx) fault.Kind {
			first.Do(func() {
				cancel()
				synctest.Wait() // the handle has noticed
			})
			return fault.Chance
		}
		claims, _ := q.Receive(ctx, layer.ReceiveOptions{})
		require.Empty(t, claims)
		synctest.Wait()
		claims, err = q.Receive(t.Context(), layer.ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.NoError(t, q.Ack(t.Context(), claims[0]))
		require.NoError(t, q.Close(t.Context()))
	})
}

// TestGivenBackOnlyIfClaimed: a receive that was given up, and whose transaction failed, gives nothing back: what it was
// about to claim may be another's claim by now, under the same token, which is the read version of both (G2).
func TestGivenBackOnlyIfClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		raw := embedded.OpenMemory(embedded.Options{})
		defer func() { require.NoError(t, raw.Close()) }()
		q, err := layer.Create(t.Context(), fault.Wrap(raw, plan), testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		other, err := layer.Open(t.Context(), raw, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), layer.Message{Group: "A"})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		var claims []*layer.Claim
		var first sync.Once
		plan.OnCommit = func(int, kv.Tx) fault.Kind {
			kind := fault.Chance
			first.Do(func() {
				cancel()
				synctest.Wait() // the handle has noticed
				claims, err = other.Receive(t.Context(), layer.ReceiveOptions{})
				kind = fault.TimedOutLost
			})
			return kind
		}
		lost, failed := q.Receive(ctx, layer.ReceiveOptions{})
		require.Error(t, failed)
		require.Empty(t, lost)
		require.NoError(t, err)
		require.Len(t, claims, 1)
		synctest.Wait()
		require.NoError(t, other.Ack(t.Context(), claims[0]), "the claim of the other handle is not lost")
		require.NoError(t, other.Close(t.Context()))
		require.NoError(t, q.Close(t.Context()))
	})
}

// TestAckReceiveAcks: once its ack is done, AckReceive returns no error of its receive, from which the caller would conclude
// that nothing was acked: whether he gives up the wait, the handle is closed, or nothing can be read.
func TestAckReceiveAcks(t *testing.T) {
	ends := []struct {
		name string
		wait time.Duration
		// end sees to it that a receive that waits ends with an error. q's claim of A is about to be acked.
		end func(t *testing.T, q *layer.Queue, db kv.DB, cancel func())
	}{
		{"given up", time.Hour, func(t *testing.T, _ *layer.Queue, _ kv.DB, cancel func()) {
			time.AfterFunc(time.Minute, cancel)
		}},
		{"closed", time.Hour, func(t *testing.T, q *layer.Queue, _ kv.DB, _ func()) {
			time.AfterFunc(time.Minute, func() { require.NoError(t, q.Close(t.Context())) })
		}},
		{"unreadable", 0, func(t *testing.T, q *layer.Queue, db kv.DB, _ func()) {
			sent, err := q.Enqueue(t.Context(), layer.Message{Group: "B"})
			require.NoError(t, err)
			_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				tx.Set(key("item", "B", sent[0].ID.Index, sent[0].ID.Random), []byte("?"))
				return nil
			})
			require.NoError(t, err)
		}},
	}
	for _, end := range ends {
		for _, path := range []layer.Path{layer.Adaptive, layer.Direct, layer.Staged} {
			t.Run(fmt.Sprint(end.name, "/", path), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					db := embedded.OpenMemory(embedded.Options{})
					defer func() { require.NoError(t, db.Close()) }()
					options := layer.Options{Path: path}
					q, err := layer.Create(t.Context(), db, testPrefix, testQueue, options)
					require.NoError(t, err)
					_, err = q.Enqueue(t.Context(), layer.Message{Group: "A"})
					require.NoError(t, err)
					claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Wait: time.Second})
					require.NoError(t, err)
					require.Len(t, claims, 1)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					end.end(t, q, db, cancel)
					begun := time.Now()
					next, err := q.AckReceive(ctx, claims[0], layer.ReceiveOptions{Wait: end.wait})
					require.NoError(t, err)
					require.Empty(t, next)
					require.Less(t, time.Since(begun), time.Hour, "the wait was cut short")
					again, err := layer.Open(t.Context(), db, testPrefix, testQueue, options)
					require.NoError(t, err)
					require.ErrorIs(t, again.Ack(t.Context(), claims[0]), layer.ErrClaimLost)
					if end.wait == 0 { // which a receive alone says
						_, err = again.Receive(t.Context(), layer.ReceiveOptions{})
						require.ErrorIs(t, err, layer.ErrCorrupt)
					}
					require.NoError(t, again.Close(t.Context()))
					require.NoError(t, q.Close(t.Context()))
				})
			})
		}
	}
}
