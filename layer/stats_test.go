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

// TestMarkedGroupsAreNotReady: a paused group that no receive has met, and one that was filled while it was paused,
// count as paused and not as ready, and their heads are not the oldest; nor is a delayed head of a paused group, before
// and after it is due, or a paused group whose claim has run out (Contract).
func TestMarkedGroupsAreNotReady(t *testing.T) {
	for _, shards := range []int{1, 7} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			q := e.configured(layer.Config{Shards: shards})
			enqueue := func(m layer.Message) {
				_, err := q.Enqueue(e.ctx, m)
				require.NoError(t, err)
			}
			pause := func(group string) {
				_, err := q.Admin().PauseGroup(e.ctx, group, layer.PauseOptions{})
				require.NoError(t, err)
			}
			enqueue(layer.Message{Group: "held"})
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1, Lease: time.Minute})
			require.NoError(t, err)
			require.Len(t, claims, 1)
			pause("held")
			enqueue(layer.Message{Group: "not met"})
			pause("not met")
			pause("filled")
			enqueue(layer.Message{Group: "filled"})
			enqueue(layer.Message{Group: "late", Delay: time.Minute})
			pause("late")
			e.clock.advance(time.Second)
			enqueue(layer.Message{Group: "free"})
			e.clock.advance(time.Second)
			stats, err := q.Stats(e.ctx)
			require.NoError(t, err)
			require.Equal(t, layer.Stats{
				Enqueued: 5, Received: 1, Depth: 5, ReadyGroups: 1, BusyGroups: 1, HeldGroups: 1, PausedGroups: 4,
				OldestReady: time.Second, OldestHead: 2 * time.Second,
			}, stats)
			e.clock.advance(time.Minute)
			stats, err = q.Stats(e.ctx)
			require.NoError(t, err)
			require.Equal(t, layer.Stats{
				Enqueued: 5, Received: 1, Depth: 5, ReadyGroups: 1, PausedGroups: 4,
				OldestReady: time.Minute + time.Second, OldestHead: time.Minute + time.Second,
			}, stats)
			claims, err = q.Receive(e.ctx, layer.ReceiveOptions{Max: 10})
			require.NoError(t, err)
			require.Len(t, claims, 1, "that is what is ready")
			require.Equal(t, "free", claims[0].Group)
		})
	}
}

// TestEmptyMarkedGroupIsFound: a paused group without items can be asked for by its name, and is in the list of the
// marked groups, as are those that will be paused or halted when their claims end (Contract).
func TestEmptyMarkedGroupIsFound(t *testing.T) {
	onEngines(t, func(e *env) {
		admin := e.q.Admin()
		g, err := admin.Group(e.ctx, "empty")
		require.NoError(e.t, err)
		require.Equal(e.t, layer.GroupInfo{Group: "empty", Status: layer.Empty}, g)
		m, err := admin.PauseGroup(e.ctx, "empty", layer.PauseOptions{By: "me", Reason: "because"})
		require.NoError(e.t, err)
		g, err = admin.Group(e.ctx, "empty")
		require.NoError(e.t, err)
		require.Equal(e.t, layer.GroupInfo{Group: "empty", Status: layer.Paused, Mark: &m}, g)

		e.enqueue("A", "a1", "a2")
		e.enqueue("B", "b1")
		a := e.receive(e.q, 1)
		_, err = admin.PauseGroup(e.ctx, a.Group, layer.PauseOptions{})
		require.NoError(e.t, err)
		list := func(o layer.GroupsOptions) (names []string) {
			for g, err := range admin.AllGroups(e.ctx, o) {
				require.NoError(e.t, err)
				alone, err := admin.Group(e.ctx, g.Group)
				require.NoError(e.t, err)
				require.Equal(e.t, alone, g)
				names = append(names, g.Group)
			}
			return names
		}
		require.Equal(e.t, []string{"A", "B"}, list(layer.GroupsOptions{}))
		for limit := range 3 {
			require.Equal(e.t, []string{a.Group, "empty"}, list(layer.GroupsOptions{Marked: true, Limit: limit}))
		}
		require.NoError(e.t, e.q.Ack(e.ctx, a))
		require.Equal(e.t, []string{a.Group, "empty"}, list(layer.GroupsOptions{Marked: true}))
		for _, group := range []string{a.Group, "empty"} {
			_, err = admin.ResumeGroup(e.ctx, group, layer.ResumeOptions{})
			require.NoError(e.t, err)
		}
		require.Empty(e.t, list(layer.GroupsOptions{Marked: true}))
		_, err = admin.Group(e.ctx, "\xff")
		require.ErrorIs(e.t, err, layer.ErrInvalidUTF8)
	})
}
