package layer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestStatsOfDelayedHead (contract): the items in front of a delayed message are acked. The group is then delayed, not
// ready, before any receive has looked. It is ready when the message is due.
func TestStatsOfDelayedHead(t *testing.T) {
	e := newEnv(t, inMemory, false)
	_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Group: "A", Delay: time.Minute})
	require.NoError(t, err)
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.NoError(t, e.q.Ack(e.ctx, claims[0]))
	for range 2 { // before and after a receive has looked
		stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.Equal(t, [4]int64{0, 1, 1, 1},
			[4]int64{stats.ReadyGroups, stats.BusyGroups, stats.DelayedGroups, stats.Delayed})
		require.Zero(t, stats.OldestReady)
		claims, err = e.q.Receive(e.ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		require.Empty(t, claims)
	}
	e.clock.advance(time.Minute)
	stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.Equal(t, [3]int64{1, 0, 0}, [3]int64{stats.ReadyGroups, stats.BusyGroups, stats.DelayedGroups})
}

// TestStatsOfExcludedGroup (contract): a group that a claim of another stage excludes is not ready for a template, but
// delayed, before and after a receive has met it.
func TestStatsOfExcludedGroup(t *testing.T) {
	e := newEnv(t, inMemory, false)
	q := e.configured(layer.Config{Facets: []string{"state", "region"}, Views: "*; state; region"})
	headers := map[string]string{"state": "NEW", "region": "EU"}
	for _, group := range []string{"A", "B"} {
		_, err := q.Enqueue(e.ctx, layer.Message{Group: group, Headers: headers})
		require.NoError(t, err)
	}
	byRegion := layer.Template{"region": "EU"}
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": "NEW"}, MaxGroups: 1})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	for _, look := range []bool{true, false} {
		stats, err := q.Stats(e.ctx, layer.StatsOptions{Where: byRegion})
		require.NoError(t, err)
		require.Equal(t, [2]int64{1, 1}, [2]int64{stats.ReadyGroups, stats.DelayedGroups})
		if look {
			other, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: byRegion})
			require.NoError(t, err)
			require.Len(t, other, 1)
			require.NoError(t, q.Nack(e.ctx, other[0], layer.NackOptions{Release: true}))
		}
	}
}
