package layer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestGroupCounts: what is ready to be received, held and delayed is told apart, also after a lease or a delay has ended
// and over several shards; and so are the ages of the oldest heads.
func TestGroupCounts(t *testing.T) {
	for _, shards := range []int{1, 7} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			q := e.configured(layer.Config{Shards: shards})
			counts := func() layer.Stats {
				s, err := q.Stats(e.ctx)
				require.NoError(t, err)
				return layer.Stats{
					ReadyGroups: s.ReadyGroups, BusyGroups: s.BusyGroups, HeldGroups: s.HeldGroups, DelayedGroups: s.DelayedGroups,
					PausedGroups: s.PausedGroups, OldestReady: s.OldestReady, OldestHead: s.OldestHead,
				}
			}
			require.Equal(t, layer.Stats{}, counts())
			for i := range 20 {
				_, err := q.Enqueue(e.ctx, layer.Message{Group: fmt.Sprint(i)})
				require.NoError(t, err)
				e.clock.advance(time.Second)
			}
			require.Equal(t, layer.Stats{ReadyGroups: 20, OldestReady: 20 * time.Second, OldestHead: 20 * time.Second}, counts())
			var claims []*layer.Claim
			for range 5 {
				got, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1, Lease: time.Minute})
				require.NoError(t, err)
				claims = append(claims, got...)
			}
			for _, c := range claims[:2] {
				require.NoError(t, q.Nack(e.ctx, c, layer.NackOptions{Delay: time.Hour}))
			}
			_, err := q.Admin().PauseGroup(e.ctx, "19", layer.PauseOptions{})
			require.NoError(t, err)
			_, err = q.Receive(e.ctx, layer.ReceiveOptions{Max: 100, Lease: 2 * time.Hour}) // clears the hint of 19
			require.NoError(t, err)
			_, err = q.Enqueue(e.ctx, layer.Message{Group: "new"})
			require.NoError(t, err)
			require.Equal(t, layer.Stats{
				ReadyGroups: 1, BusyGroups: 19, HeldGroups: 17, DelayedGroups: 2, PausedGroups: 1, OldestHead: 20 * time.Second,
			}, counts())
			e.clock.advance(time.Minute) // three leases end
			require.Equal(t, layer.Stats{
				ReadyGroups: 4, BusyGroups: 16, HeldGroups: 14, DelayedGroups: 2, PausedGroups: 1,
				OldestReady: 78 * time.Second, OldestHead: 80 * time.Second,
			}, counts())
			e.clock.advance(time.Hour) // and two delays
			require.Equal(t, layer.Stats{
				ReadyGroups: 6, BusyGroups: 14, HeldGroups: 14, PausedGroups: 1,
				OldestReady: time.Hour + 80*time.Second, OldestHead: time.Hour + 80*time.Second,
			}, counts())
		})
	}
}

// TestOldestHeadWhileNothingIsReady: a queue whose only group is held for an hour says how old its head is (Contract).
func TestOldestHeadWhileNothingIsReady(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	e.clock.advance(time.Hour)
	e.receive(e.q, 1)
	stats, err := e.q.Stats(e.ctx)
	require.NoError(t, err)
	require.Equal(t, time.Hour, stats.OldestHead)
	require.Zero(t, stats.OldestReady)
}

// TestAgeBeginsWhenDue: a message that was delayed for ten hours is a second old a second after it was due (Contract).
func TestAgeBeginsWhenDue(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: 10 * time.Hour})
	require.NoError(t, err)
	e.clock.advance(10*time.Hour + time.Second)
	stats, err := e.q.Stats(e.ctx)
	require.NoError(t, err)
	require.Equal(t, time.Second, stats.OldestReady)
	require.Equal(t, time.Second, stats.OldestHead)
}
