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
