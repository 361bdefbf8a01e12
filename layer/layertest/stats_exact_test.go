package layer_test

import (
	"fmt"
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

// figures reads the statistics.
func (e *env) figures(q *layer.Queue, o layer.StatsOptions) layer.Stats {
	e.t.Helper()
	stats, err := q.Stats(e.ctx, o)
	require.NoError(e.t, err)
	return stats
}

// TestStatsOfClaimsByHeartbeat (contract): each group that a heartbeat holds is busy, and the heartbeat's own timer is
// no group. After the death of the handle each of the groups is ready.
func TestStatsOfClaimsByHeartbeat(t *testing.T) {
	e := newEnv(t, inMemory, false)
	q := e.configured(layer.Config{})
	for i := range 7 {
		_, err := q.Enqueue(e.ctx, layer.Message{Group: fmt.Sprint("g", i)})
		require.NoError(t, err)
	}
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Heartbeat: true, Max: 5})
	require.NoError(t, err)
	require.Len(t, claims, 5)
	for _, o := range []layer.StatsOptions{{}, {MaxTimers: 1}} {
		stats := e.figures(q, o)
		require.Equal(t, [2]int64{2, 5}, [2]int64{stats.ReadyGroups, stats.BusyGroups}, o)
	}
	for _, c := range claims {
		require.NoError(t, q.Ack(e.ctx, c))
	}
	stats := e.figures(q, layer.StatsOptions{})
	require.Equal(t, [2]int64{2, 0}, [2]int64{stats.ReadyGroups, stats.BusyGroups})
}

// TestStatsOfCancelledDelay (contract): a group whose delayed message was cancelled is not delayed, and does not hide
// the age of another group's head.
func TestStatsOfCancelledDelay(t *testing.T) {
	e := newEnv(t, inMemory, false)
	q := e.configured(layer.Config{})
	sent, err := q.Enqueue(e.ctx, layer.Message{Group: "a", Delay: time.Hour})
	require.NoError(t, err)
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "b"})
	require.NoError(t, err)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Lease: 10 * time.Minute})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.NoError(t, q.Admin().Cancel(e.ctx, sent[0].ID))
	e.clock.advance(time.Minute)
	stats := e.figures(q, layer.StatsOptions{})
	require.Equal(t, [3]int64{1, 1, 0}, [3]int64{stats.BusyGroups, stats.HeldGroups, stats.DelayedGroups})
	require.Equal(t, time.Minute, stats.OldestHead)
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "a"}) // the timer of the cancelled message is still there
	require.NoError(t, err)
	claims, err = q.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	stats = e.figures(q, layer.StatsOptions{})
	require.Equal(t, [3]int64{2, 2, 0}, [3]int64{stats.BusyGroups, stats.HeldGroups, stats.DelayedGroups})
}

// TestStatsOldestBehindADelay (contract): a delay does not count as a wait. A message whose delay has just ended does
// not hide one that was enqueued later, and has been ready for longer.
func TestStatsOldestBehindADelay(t *testing.T) {
	e := newEnv(t, inMemory, false)
	q := e.configured(layer.Config{})
	_, err := q.Enqueue(e.ctx, layer.Message{Group: "reminder", Delay: time.Hour})
	require.NoError(t, err)
	e.clock.advance(50 * time.Minute)
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "order"})
	require.NoError(t, err)
	e.clock.advance(10*time.Minute + time.Second)
	stats := e.figures(q, layer.StatsOptions{})
	require.EqualValues(t, 2, stats.ReadyGroups)
	require.Equal(t, 10*time.Minute+time.Second, stats.OldestReady)
	require.Equal(t, 10*time.Minute+time.Second, stats.OldestHead)
}

// TestStatsOfUsedRate (contract): a group whose rate is used up is delayed, not ready, before any receive has looked.
func TestStatsOfUsedRate(t *testing.T) {
	e := newEnv(t, inMemory, false)
	q := e.configured(layer.Config{MaxRate: layer.Rate{Count: 1, Per: time.Minute}})
	for range 2 { // before and after a receive has looked
		_, err := q.Enqueue(e.ctx, layer.Message{Group: "a"})
		require.NoError(t, err)
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		for _, c := range claims {
			require.NoError(t, q.Ack(e.ctx, c))
			_, err = q.Enqueue(e.ctx, layer.Message{Group: "a"})
			require.NoError(t, err)
		}
		stats := e.figures(q, layer.StatsOptions{})
		require.Equal(t, [3]int64{0, 1, 1}, [3]int64{stats.ReadyGroups, stats.BusyGroups, stats.DelayedGroups})
	}
	e.clock.advance(time.Minute)
	require.EqualValues(t, 1, e.figures(q, layer.StatsOptions{}).ReadyGroups)
}
