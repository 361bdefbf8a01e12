package layer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// TestFirstDelivered: an item has the time of its first delivery, and of its last failed delivery. This holds after a
// nack, a retry delay, an expired lease and a repeated receive, in a take, and for a dead letter. A return that counts
// no attempt resets the first time.
func TestFirstDelivered(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.MaxAttempts = 4 })
		e.enqueue("A", "a1", "a2")
		at := func() time.Time { return e.clock.now() }
		receive := func(o layer.ReceiveOptions) *layer.Claim {
			e.clock.advance(time.Second)
			claims, err := e.q.Receive(e.ctx, o)
			require.NoError(e.t, err)
			require.Len(e.t, claims, 1)
			return claims[0]
		}
		c := receive(layer.ReceiveOptions{})
		require.WithinDuration(e.t, at(), c.Items[0].FirstDelivered, 0)
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Release: true}))

		c = receive(layer.ReceiveOptions{Lease: 10 * time.Second, ReceiveID: "once"})
		first := at()
		require.WithinDuration(e.t, first, c.Items[0].FirstDelivered, 0, "a release leaves no trace")
		again := receive(layer.ReceiveOptions{ReceiveID: "once"})
		require.WithinDuration(e.t, first, again.Items[0].FirstDelivered, 0)
		require.WithinDuration(e.t, first, again.Items[1].FirstDelivered, 0)
		_, err := e.q.Extend(e.ctx, c, 20*time.Second)
		require.NoError(e.t, err)
		require.Zero(e.t, c.Items[0].LastFailed, "a release is no failure")
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Err: errors.New("down")}))
		failed := at()

		c = receive(layer.ReceiveOptions{})
		require.WithinDuration(e.t, failed, c.Items[0].LastFailed, 0)
		require.Zero(e.t, c.Items[1].LastFailed, "was not tried")
		require.WithinDuration(e.t, first, c.Items[0].FirstDelivered, 0, "by its hint")
		require.WithinDuration(e.t, at(), c.Items[1].FirstDelivered, 0, "which was not tried")
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Delay: time.Second}))
		c = receive(layer.ReceiveOptions{Lease: time.Second})
		require.WithinDuration(e.t, first, c.Items[0].FirstDelivered, 0, "after a delay")
		items, err := e.calm().Peek(e.ctx, "A", 2, nil)
		require.NoError(e.t, err)
		require.WithinDuration(e.t, first, items[0].FirstDelivered, 0)
		require.Zero(e.t, items[1].FirstDelivered)
		e.clock.advance(time.Second)
		var taken []layer.Item
		require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) (err error) {
			taken, _, err = e.q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{})
			return err
		}))
		require.Len(e.t, taken, 1)
		require.WithinDuration(e.t, first, taken[0].FirstDelivered, 0, "after a lease that ran out")
	})
}

// TestFirstDeliveredOfADeadLetter: a dead letter keeps the time, and so does a claim of unknown outcome.
func TestFirstDeliveredOfADeadLetter(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.MaxAttempts = 2 })
	e.enqueue("A", "a1")
	e.clock.advance(time.Second)
	e.plan.ForceNext(fault.UnknownApplied)
	first := e.clock.now()
	c := e.receive(e.q, 1)
	require.WithinDuration(t, first, c.Items[0].FirstDelivered, 0)
	e.clock.advance(time.Second)
	require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{}))
	e.clock.advance(time.Second)
	require.NoError(t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{}))
	page, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{})
	require.NoError(t, err)
	require.Len(t, page.Letters, 1)
	require.WithinDuration(t, first, page.Letters[0].FirstDelivered, 0)
	require.WithinDuration(t, first.Add(time.Second), page.Letters[0].First, 0)
}
