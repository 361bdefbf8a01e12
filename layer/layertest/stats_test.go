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

// TestGroupCounts: what is ready to be received, held and delayed is told apart, also after a lease or a delay has ended
// and over several shards; and so are the ages of the oldest heads.
func TestGroupCounts(t *testing.T) {
	for _, shards := range []int{1, 7} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			q := e.configured(layer.Config{Shards: shards})
			counts := func() layer.Stats {
				s, err := q.Stats(e.ctx, layer.StatsOptions{})
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
	stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
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
	stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.Equal(t, time.Second, stats.OldestReady)
	require.Equal(t, time.Second, stats.OldestHead)
}

// TestInFlightAndDelayed: what is delivered and not acked is in flight, however the claim goes on and ends; delayed are
// the items of groups that wait for a time; duplicates are counted (Contract).
func TestInFlightAndDelayed(t *testing.T) {
	onEngines(t, func(e *env) {
		figures := func(inFlight, delayed, depth int64) {
			e.t.Helper()
			s, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
			require.NoError(e.t, err)
			require.Equal(e.t, []int64{inFlight, delayed, depth}, []int64{s.InFlight, s.Delayed, s.Depth})
		}
		e.enqueue("A", "a1", "a2", "a3", "a4", "a5")
		c := e.receive(e.q, 4)
		figures(4, 0, 5)
		require.NoError(e.t, e.q.AckItems(e.ctx, c, []layer.ID{c.Items[0].ID}))
		figures(3, 0, 4)
		_, err := e.q.Extend(e.ctx, c, time.Minute)
		require.NoError(e.t, err)
		figures(3, 0, 4)
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Release: true, From: &c.Items[1].ID}))
		figures(1, 0, 4)
		e.clock.advance(time.Hour)
		figures(1, 0, 4)
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 3, CountExpired: true}) // takes over
		require.NoError(e.t, err)
		c = claims[0]
		figures(3, 0, 4)
		require.NoError(e.t, e.q.Settle(e.ctx, layer.Settlement{
			Claim: c, Finish: []layer.ID{c.Items[0].ID}, Nack: &layer.NackOptions{Delay: time.Minute},
		}))
		figures(0, 3, 3)
		e.clock.advance(time.Minute)
		figures(0, 0, 3)
		require.NotNil(e.t, e.receive(e.q, 3))
		_, err = e.q.Admin().ForceRelease(e.ctx, "A", layer.ForceReleaseOptions{})
		require.NoError(e.t, err)
		figures(0, 0, 3)
		e.receive(e.q, 2)
		_, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
		require.NoError(e.t, err)
		figures(2, 0, 2)
		_, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true, Force: true})
		require.NoError(e.t, err)
		figures(0, 0, 0)

		late := layer.Message{Group: "late", Delay: time.Hour}
		_, err = e.q.Enqueue(e.ctx, late, late, late, layer.Message{Group: "other", Delay: time.Minute})
		require.NoError(e.t, err)
		figures(0, 4, 4)
		e.sendAs(e.q, "A", "x")
		before, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		for range 3 {
			e.sendAs(e.q, "B", "x")
		}
		after, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.GreaterOrEqual(e.t, after.Duplicates-before.Duplicates, int64(3))
		require.Equal(e.t, before.Enqueued, after.Enqueued)
	})
}

// TestDelayedIsBounded: beyond a hundred groups, and a thousand messages of a group, the number is too small, and the
// reads are bounded (trap 7).
func TestDelayedIsBounded(t *testing.T) {
	e, r := recorded(t)
	late := make([]layer.Message, 500)
	for i := range late {
		late[i] = layer.Message{Group: "deep", Delay: time.Hour}
	}
	for range 3 {
		_, err := e.q.Enqueue(e.ctx, late...)
		require.NoError(t, err)
	}
	for i := range 150 {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: fmt.Sprint(i), Delay: 2 * time.Hour},
			layer.Message{Group: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	before := r.Counters()
	s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 151, s.DelayedGroups)
	require.EqualValues(t, 1000+99*2+51, s.Delayed)
	require.LessOrEqual(t, r.Counters().Sub(before).KeyReads, int64(500))
}

// TestMarkedGroupsAreNotReady: a paused group counts as paused and not as ready, and its head is not the oldest. This
// holds if no receive has met the group, or if it was filled while it was paused. It holds for a delayed head of a
// paused group, before and after it is due, and for a paused group with an expired claim (Contract).
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
			stats, err := q.Stats(e.ctx, layer.StatsOptions{})
			require.NoError(t, err)
			stats.LongestHold = 0 // of the versions' time
			require.Equal(t, layer.Stats{
				Enqueued: 5, Received: 1, Depth: 5, InFlight: 1, ReadyGroups: 1, BusyGroups: 1, HeldGroups: 1,
				PausedGroups: 4,
				OldestReady:  time.Second, OldestHead: 2 * time.Second,
			}, stats)
			e.clock.advance(time.Minute)
			stats, err = q.Stats(e.ctx, layer.StatsOptions{})
			require.NoError(t, err)
			stats.LongestHold = 0 // of the versions' time
			require.Equal(t, layer.Stats{
				Enqueued: 5, Received: 1, Depth: 5, InFlight: 1, ReadyGroups: 1, PausedGroups: 4,
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
		g, err := admin.Group(e.ctx, "empty", nil)
		require.NoError(e.t, err)
		require.Equal(e.t, layer.GroupInfo{Group: "empty", Status: layer.Empty}, g)
		m, err := admin.PauseGroup(e.ctx, "empty", layer.PauseOptions{By: "me", Reason: "because"})
		require.NoError(e.t, err)
		g, err = admin.Group(e.ctx, "empty", nil)
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
				alone, err := admin.Group(e.ctx, g.Group, nil)
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
		_, err = admin.Group(e.ctx, "\xff", nil)
		require.ErrorIs(e.t, err, layer.ErrInvalidUTF8)
	})
}

// TestBusyGroupsAreBounded: BusyGroups ends at MaxGroups, also if it counts groups by their hints. The hint of such a
// group leads to a head that is not due.
func TestBusyGroupsAreBounded(t *testing.T) {
	e := newEnv(t, inMemory, false)
	for _, group := range []string{"a", "b"} {
		e.enqueue(group, "x")
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: group, Delay: time.Hour})
		require.NoError(t, err)
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Group: &group, Max: 1})
		require.NoError(t, err)
		require.NoError(t, e.q.Ack(e.ctx, claims[0]))
	}
	for most := 1; most < 4; most++ {
		stats, err := e.q.Stats(e.ctx, layer.StatsOptions{MaxGroups: most})
		require.NoError(t, err)
		require.EqualValues(t, min(most, 2), stats.BusyGroups)
	}
	e.sound(testQueue)
}

// TestStatsBounded: with options a Stats reads less, and bounded figures are too small, never too large. A list of
// blocked groups has the same figures in its own transaction.
func TestStatsBounded(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	for i := range 30 {
		e.enqueue(fmt.Sprintf("g%02d", i), "x")
	}
	for range 10 {
		e.receive(e.q, 1)
	}
	whole, err := e.q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	few, err := e.q.Stats(e.ctx, layer.StatsOptions{MaxGroups: 5, MaxTimers: 3})
	require.NoError(t, err)
	require.EqualValues(t, 20, whole.ReadyGroups)
	require.EqualValues(t, 5, few.ReadyGroups)
	require.EqualValues(t, 5, few.BusyGroups)
	require.EqualValues(t, 3, few.HeldGroups)
	require.Equal(t, whole.Depth, few.Depth)
	page, err := e.q.Admin().Blocked(e.ctx, layer.BlockedOptions{Stats: &layer.StatsOptions{}})
	require.NoError(t, err)
	require.Equal(t, whole.ReadyGroups, page.Stats.ReadyGroups)
	require.Equal(t, whole.HeldGroups, page.Stats.HeldGroups)
	require.Equal(t, whole.Enqueued, page.Stats.Enqueued)
	page, err = e.q.Admin().Blocked(e.ctx, layer.BlockedOptions{})
	require.NoError(t, err)
	require.Nil(t, page.Stats)
	for _, o := range []layer.StatsOptions{{MaxGroups: -1}, {MaxGroups: layer.StatsCap + 1}, {MaxTimers: 10_001}} {
		_, err = e.q.Stats(e.ctx, o)
		require.ErrorIs(t, err, layer.ErrLimit)
		_, err = e.q.Admin().Blocked(e.ctx, layer.BlockedOptions{Stats: &o})
		require.ErrorIs(t, err, layer.ErrLimit)
	}
}

// TestStatsOfManyHeartbeats: the figures, and the list of blocked groups, take a bounded number of round trips however
// many handles claim by heartbeat. A handle with many claims takes a few more.
func TestStatsOfManyHeartbeats(t *testing.T) {
	const lag, handles, many = 10 * time.Millisecond, 300, 25
	onLagging(t, lag, func(t *testing.T, db, lagging kv.DB) {
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		for i := range handles + many - 1 {
			_, err := q.Enqueue(t.Context(), layer.Message{Group: fmt.Sprint("g", i)})
			require.NoError(t, err)
		}
		defer q.Close(t.Context())
		for i := range handles {
			h, err := layer.Open(t.Context(), db, testPrefix, testQueue, layer.Options{})
			require.NoError(t, err)
			defer h.Close(t.Context())
			o := layer.ReceiveOptions{Heartbeat: true, Max: 1, MaxGroups: 1}
			if i == 0 {
				o.Max, o.MaxGroups = many, many
			}
			claims, err := h.Receive(t.Context(), o)
			require.NoError(t, err)
			require.Len(t, claims, o.Max)
		}
		slow, err := layer.Open(t.Context(), lagging, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		defer slow.Close(t.Context())
		trips := func(call func()) int {
			begun := time.Now()
			call()
			return int(time.Since(begun) / lag)
		}
		n := trips(func() {
			stats, err := slow.Stats(t.Context(), layer.StatsOptions{})
			require.NoError(t, err)
			require.EqualValues(t, handles+many-1, stats.InFlight)
		})
		require.Less(t, n, handles/2)
		n = trips(func() {
			page, err := slow.Admin().Blocked(t.Context(), layer.BlockedOptions{HeldFor: time.Nanosecond})
			require.NoError(t, err)
			require.NotEmpty(t, page.Groups)
		})
		require.Less(t, n, handles/2)
	})
}

// TestGroupsOfDeepGroups (Contract): a listing of many deep groups ends, also on a slow database, because Groups counts
// the messages of a page's groups together, and lists fewer in one transaction.
func TestGroupsOfDeepGroups(t *testing.T) {
	const lag, groups, depth = 15 * time.Millisecond, 100, 200
	onLagging(t, lag, func(t *testing.T, db, lagging kv.DB) {
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		defer q.Close(t.Context())
		for i := range groups {
			all := make([]layer.Message, depth)
			for j := range all {
				all[j].Group = fmt.Sprintf("g%03d", i)
			}
			_, err := q.Enqueue(t.Context(), all...)
			require.NoError(t, err)
		}
		slow, err := layer.Open(t.Context(), lagging, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		defer slow.Close(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		page, err := slow.Admin().Groups(ctx, layer.GroupsOptions{})
		require.NoError(t, err)
		require.Nil(t, page.Next)
		require.Len(t, page.Groups, groups)
		for i, g := range page.Groups {
			require.Equal(t, fmt.Sprintf("g%03d", i), g.Group)
			require.EqualValues(t, depth, g.Depth)
		}
		report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
	})
}
