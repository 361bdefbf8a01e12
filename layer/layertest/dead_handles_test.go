package layer_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestManyDeadHandles (G5): dozens of handles with claims by heartbeat die at the same time. A receive and a take on
// a slow engine are served soon: a transaction ends claims of a few of the handles.
func TestManyDeadHandles(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		const handles = 60
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
		db.lag = 25 * time.Millisecond
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

// TestManySuspects (G5): a process dies with thousands of groups in flight. A handle on a slow engine has one of the
// suspect messages in hand. Its next receive finds that nothing else is ready, and another finds a younger group.
func TestManySuspects(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		const groups, page = 6000, 1000
		for range groups / page {
			b.scatterMore(page)
			claims, err := b.q.Receive(b.t.Context(), layer.ReceiveOptions{Max: page})
			require.NoError(b.t, err)
			require.Len(b.t, claims, page)
		}
		time.Sleep(time.Minute)
		slow, db := b.cutOffQueue(layer.Options{})
		db.lag = time.Millisecond
		ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
		defer cancel()
		one := layer.ReceiveOptions{Max: 1}
		suspect, err := slow.Receive(ctx, one)
		require.NoError(b.t, err)
		require.Len(b.t, suspect, 1)
		begun := time.Now()
		claims, err := slow.Receive(ctx, one)
		require.NoError(b.t, err)
		require.Empty(b.t, claims)
		_, err = b.q.Enqueue(ctx, layer.Message{Group: "young"})
		require.NoError(b.t, err)
		claims, err = slow.Receive(ctx, one)
		require.NoError(b.t, err)
		require.Len(b.t, claims, 1)
		require.Equal(b.t, "young", claims[0].Group)
		require.Less(b.t, time.Since(begun), 5*time.Second)
		require.NoError(b.t, slow.Ack(ctx, claims[0]))
		require.NoError(b.t, slow.Ack(ctx, suspect[0]))
		b.close(slow, db)
		b.sound()
	})
}

// scatterMore enqueues n messages, each into a new group.
func (b *bubble) scatterMore(n int) {
	b.t.Helper()
	var msgs []layer.Message
	for range n {
		msgs = append(msgs, layer.Message{Group: rand.Text()})
	}
	_, err := b.q.Enqueue(b.t.Context(), msgs...)
	require.NoError(b.t, err)
}
