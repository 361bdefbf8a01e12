package layer_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

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

// TestNothingGivenBackOfWhatFailed: a receive whose caller has gone and whose transaction has failed has nothing to give
// back. Another handle that read at the same version may have claimed the group under the very same token, and keeps its
// claim (G2).
func TestNothingGivenBackOfWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		engine := embedded.OpenMemory(embedded.Options{})
		db := fault.Wrap(engine, plan)
		defer func() { require.NoError(t, db.Close()) }()
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		other, err := layer.Open(t.Context(), engine, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), layer.Message{Group: "A"})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		var held []*layer.Claim
		var first sync.Once
		plan.OnCommit = func(int, kv.Tx) fault.Kind {
			kind := fault.Chance
			first.Do(func() {
				held, err = other.Receive(t.Context(), layer.ReceiveOptions{})
				require.NoError(t, err)
				cancel()
				synctest.Wait() // the handle has noticed
				kind = fault.TimedOutLost
			})
			return kind
		}
		claims, err := q.Receive(ctx, layer.ReceiveOptions{})
		require.Error(t, err)
		require.Empty(t, claims)
		synctest.Wait()
		require.Len(t, held, 1)
		_, err = other.Extend(t.Context(), held[0], 0)
		require.NoError(t, err)
		require.NoError(t, other.Ack(t.Context(), held[0]))
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, other.Close(t.Context()))
	})
}
