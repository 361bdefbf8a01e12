package layer_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestAckLeavesAttemptsOfOtherLanes (G7): the items of two lanes alternate in a group. An ack of the claim of one lane
// leaves the failed attempts of the other lane's items as they are.
func TestAckLeavesAttemptsOfOtherLanes(t *testing.T) {
	onEngines(t, func(e *env) {
		t := e.t
		q := e.configured(layer.Config{Facets: []string{"state"}, Views: "state", MaxAttempts: 2})
		state := func(s string) map[string]string { return map[string]string{"state": s} }
		for _, s := range []string{"old", "new", "old"} {
			_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: state(s)})
			require.NoError(t, err)
		}
		failing := func() *layer.Claim {
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: state("new")})
			require.NoError(t, err)
			require.Len(t, claims, 1)
			require.NoError(t, q.Nack(e.ctx, claims[0], layer.NackOptions{Err: errors.New("fails"), AtOnce: true}))
			return claims[0]
		}
		failing()
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: state("old"), Max: 2})
		require.NoError(t, err)
		require.Len(t, claims[0].Items, 2)
		require.NoError(t, q.Ack(e.ctx, claims[0]))
		failing()
		s, err := q.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Dead)
	})
}
