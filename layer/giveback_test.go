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

// TestAckReceiveGivenUp (G3): an AckReceive whose ack is done, and whose wait is given up, does not return an error, which
// would leave open whether the ack was done.
func TestAckReceiveGivenUp(t *testing.T) {
	for _, path := range []layer.Path{layer.Adaptive, layer.Direct, layer.Staged} {
		t.Run(fmt.Sprint(path), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := embedded.OpenMemory(embedded.Options{})
				defer func() { require.NoError(t, db.Close()) }()
				q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{Path: path})
				require.NoError(t, err)
				_, err = q.Enqueue(t.Context(), layer.Message{Group: "A"})
				require.NoError(t, err)
				claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Wait: time.Second})
				require.NoError(t, err)
				require.Len(t, claims, 1)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				next, err := q.AckReceive(ctx, claims[0], layer.ReceiveOptions{Wait: time.Hour})
				require.NoError(t, err)
				require.Empty(t, next)
				require.Error(t, ctx.Err())
				require.ErrorIs(t, q.Ack(t.Context(), claims[0]), layer.ErrClaimLost)
				require.NoError(t, q.Close(t.Context()))
			})
		})
	}
}
