package layer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// The tests of the package from outside are in layertest, where they run on every engine, with and without faults. This
// one is where to begin to read.

// TestLifeOfAMessage: after enqueue, claim and ack an acked item is gone, and a claimed item has one holder (G1, G2,
// G3).
func TestLifeOfAMessage(t *testing.T) {
	ctx := t.Context()
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	q, err := layer.Create(ctx, db, []byte("test"), "q", layer.Options{})
	require.NoError(t, err)
	defer func() {
		report, err := q.Admin().Check(context.Background(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
	}()
	receive := func() *layer.Claim {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 2, MaxGroups: 1})
		require.NoError(t, err)
		if len(claims) == 0 {
			return nil
		}
		require.Len(t, claims, 1)
		return claims[0]
	}
	require.NoError(t, send(ctx, q, "A", "a1"))
	require.NoError(t, send(ctx, q, "B", "b1"))
	require.NoError(t, send(ctx, q, "A", "a2"))
	require.NoError(t, send(ctx, q, "A", "a3"))

	a, b := receive(), receive()
	require.Equal(t, "A", a.Group, "the oldest first")
	require.Equal(t, []string{"a1", "a2"}, texts(a))
	require.Equal(t, "B", b.Group, "a group that is held is passed over")
	require.Nil(t, receive())

	require.NoError(t, q.Ack(ctx, a))
	require.NoError(t, q.Ack(ctx, b))
	a = receive()
	require.Equal(t, []string{"a3"}, texts(a))
	require.NoError(t, q.Ack(ctx, a))
	require.Nil(t, receive())

	s, err := q.Stats(ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.Equal(t, layer.Stats{Enqueued: 4, Received: 4, Acked: 4}, s)
}

func send(ctx context.Context, q *layer.Queue, group, body string) error {
	_, err := q.Enqueue(ctx, layer.Message{Group: group, Body: []byte(body)})
	return err
}

func texts(c *layer.Claim) []string {
	var all []string
	for _, item := range c.Items {
		all = append(all, string(item.Body))
	}
	return all
}
