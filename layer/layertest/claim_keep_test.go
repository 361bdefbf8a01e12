package layer_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestClaimIsKeptRight: a claim says what is left of it, and until when, after each call that changes that; a loop over
// its items goes on over those it began with; a call in the caller's own transaction leaves it as it is (Contract).
func TestClaimIsKeptRight(t *testing.T) {
	onEngines(t, func(e *env) {
		e.enqueue("A", "1", "2", "3", "4", "5", "6")
		c := e.receive(e.q, 6)
		left := func() string { return strings.Join(bodies(c.Items), "") }
		until, err := e.q.Extend(e.ctx, c, time.Hour)
		require.NoError(e.t, err)
		require.Equal(e.t, until, c.Until)
		require.Equal(e.t, e.clock.now().Add(time.Hour), c.Until)

		begun := c.Items
		require.NoError(e.t, e.q.AckItems(e.ctx, c, []layer.ID{c.Items[0].ID}))
		require.Equal(e.t, "23456", left())
		require.NoError(e.t, e.q.Settle(e.ctx, ackingState(c, []byte("s"), c.Items[1].ID)))
		require.Equal(e.t, "2456", left())
		require.Equal(e.t, []string{"1", "2", "3", "4", "5", "6"}, bodies(begun), "a loop goes on")
		require.ErrorIs(e.t, e.q.AckItems(e.ctx, c, []layer.ID{begun[0].ID}), layer.ErrNotInClaim)
		require.Equal(e.t, "2456", left(), "nothing was changed")
		last := c.Items[3].ID
		require.NoError(e.t, e.q.Settle(e.ctx, layer.Settlement{
			Claim: c, Finish: []layer.ID{c.Items[0].ID}, Nack: &layer.NackOptions{Release: true, From: &last},
		}))
		require.Equal(e.t, "45", left())
		require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error {
			return e.q.AckItemsTx(e.ctx, tx, c, []layer.ID{c.Items[0].ID})
		}))
		require.Equal(e.t, "45", left(), "the commit is the caller's")
		require.NoError(e.t, e.q.AckItems(e.ctx, c, []layer.ID{c.Items[1].ID}))
		require.Equal(e.t, "4", left())
		_, err = e.q.Extend(e.ctx, c, 0)
		require.ErrorIs(e.t, err, layer.ErrClaimLost, "that was its last item")
		require.Equal(e.t, until, c.Until)

		c = e.receive(e.q, 6)
		require.Equal(e.t, "6", left())
		require.NoError(e.t, e.q.Ack(e.ctx, c))
		require.Equal(e.t, "6", left(), "a call that ends the claim leaves the items")
	})
}

// TestCallsOnOneClaim: acks and extensions of a claim at the same time do not disturb each other (run it with -race).
func TestCallsOnOneClaim(t *testing.T) {
	onEngines(t, func(e *env) {
		e.enqueue("A", numbered("a", 20)...)
		c := e.receive(e.q, 20)
		items := c.Items
		var wg sync.WaitGroup
		for _, item := range items[1:] {
			wg.Go(func() {
				if err := e.q.AckItems(e.ctx, c, []layer.ID{item.ID}); err != nil {
					e.t.Error(err)
				}
			})
			wg.Go(func() {
				if _, err := e.q.Extend(e.ctx, c, time.Minute); err != nil {
					e.t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(e.t, bodies(items[:1]), bodies(c.Items))
		require.Equal(e.t, e.clock.now().Add(time.Minute), c.Until)
	})
}
