package layer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestManyDeadHandles (G5): hundreds of handles with claims by heartbeat die at the same time. A receive and a take on
// a slow engine are served soon: a transaction ends claims of a few of the handles.
func TestManyDeadHandles(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		const handles = 700
		lost, quiet := &cutDB{DB: b.db}, layer.Options{Tx: kv.TxOptions{OnTrouble: func(kv.Trouble) {}}}
		all := make([]*layer.Queue, handles)
		for i := range all {
			q, err := layer.Open(b.t.Context(), lost, testPrefix, testQueue, quiet)
			require.NoError(b.t, err)
			_, err = q.Enqueue(b.t.Context(), layer.Message{Group: fmt.Sprint(i)})
			require.NoError(b.t, err)
			claims, err := q.Receive(b.t.Context(), layer.ReceiveOptions{Max: 1, Heartbeat: true})
			require.NoError(b.t, err)
			require.Len(b.t, claims, 1)
			all[i] = q
		}
		lost.cut(0)
		time.Sleep(2 * time.Minute)
		slow, db := b.cutOffQueue(layer.Options{})
		db.lag = 2 * time.Millisecond
		ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
		defer cancel()
		claims, err := slow.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(b.t, err)
		require.NotEmpty(b.t, claims)
		for _, c := range claims {
			require.NoError(b.t, slow.Ack(ctx, c))
		}
		var items []layer.Item
		for again := true; again && len(items) == 0; {
			require.NoError(b.t, slow.Once(ctx, func(tx kv.Tx) (err error) {
				items, again, err = slow.TakeTx(ctx, tx, 1, layer.TakeOptions{})
				return err
			}))
		}
		require.Len(b.t, items, 1)
		b.close(slow, db)
		lost.heal()
		for _, q := range all {
			require.NoError(b.t, q.Close(b.t.Context()))
		}
		b.sound()
	})
}
