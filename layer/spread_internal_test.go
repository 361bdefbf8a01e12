package layer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/lanes"
)

// spreading is a queue of so many ready groups of one item, and a handle on it that has met conflicts.
func spreading(t *testing.T, seed uint64, shards, groups, conflicts int, clock func() time.Time) *Queue {
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	q, err := Create(t.Context(), db, nil, "q", Options{Test: &TestOptions{Seed: seed}, Now: clock, Config: Config{Shards: shards}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close(context.Background())) })
	for g := range groups {
		_, err := q.Enqueue(t.Context(), Message{Group: fmt.Sprint(g)})
		require.NoError(t, err)
	}
	for range conflicts {
		q.spreadOf("").Widen()
	}
	return q
}

// TestWalkMissesNothing (G5): however far out a search begins, a receive takes all that is ready if it may, and one
// after the other finds every group.
func TestWalkMissesNothing(t *testing.T) {
	for seed := uint64(1); seed <= 40; seed++ {
		shards, groups, conflicts := 1+3*int(seed%2), 1+int(seed*7%90), 1+int(seed%6)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			q := spreading(t, seed, shards, groups, conflicts, nil)
			claims, err := q.Receive(t.Context(), ReceiveOptions{Max: groups})
			require.NoError(t, err)
			require.Len(t, claims, groups)

			q = spreading(t, seed, shards, groups, conflicts, nil)
			for range groups {
				claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
				require.NoError(t, err)
				require.Len(t, claims, 1)
			}
			claims, err = q.Receive(t.Context(), ReceiveOptions{})
			require.NoError(t, err)
			require.Empty(t, claims)
		})
	}
}

// TestWalkIsAStretch: after a conflict a handle lands away from the oldest group and takes from there one group after
// the other, each behind the last; and it comes home again, so that the oldest is not left for good.
func TestWalkIsAStretch(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	const groups = 400
	q := spreading(t, 5, 1, groups, 2, func() time.Time { return now })
	var walk []int64
	next := func() int64 {
		claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		return claims[0].Items[0].ID.Index
	}
	for range 20 {
		walk = append(walk, next())
	}
	require.IsIncreasing(t, walk)
	page, err := q.Admin().Groups(t.Context(), GroupsOptions{})
	require.NoError(t, err)
	for _, g := range page.Groups {
		if g.Status == Ready {
			at := g.Head.Index
			require.False(t, walk[0] < at && at < walk[19], "a step is to the next hint, but group %s was passed over", g.Group)
		}
	}
	oldest, err := q.Peek(t.Context(), "0", 1, nil)
	require.NoError(t, err)
	require.Greater(t, walk[0], oldest[0].ID.Index, "it does not begin at the oldest")
	turns := 0
	for next() != oldest[0].ID.Index {
		now = now.Add(advice.WalkMS * time.Millisecond)
		turns++
		require.Less(t, turns, 4*advice.HomeEvery, "it never comes home; the walk goes on for longer")
	}
}

// TestWalkKeepsItsGroup: a handle that has met others continues with the group it acks, for some claims, before the
// next step. A handle that meets no other takes the oldest group. If groups take turns (RoundRobin), every handle does
// so.
func TestWalkKeepsItsGroup(t *testing.T) {
	for _, of := range []struct {
		conflicts int
		robin     bool
		keeps     int
	}{{2, false, advice.KeepClaims}, {0, false, 0}, {2, true, 0}} {
		now := time.Unix(1_000_000, 0) // it stands still: a walk ends by itself after 500 ms
		q := spreading(t, 11, 1, 100, of.conflicts, func() time.Time { return now })
		_, _, err := q.Admin().Configure(t.Context(), func(c *Config) { c.RoundRobin = of.robin })
		require.NoError(t, err)
		for g := range 100 {
			_, err := q.Enqueue(t.Context(), slices.Repeat([]Message{{Group: fmt.Sprint(g)}}, 9)...)
			require.NoError(t, err)
		}
		claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
		require.NoError(t, err)
		kept := 0
		for group := claims[0].Group; ; kept++ {
			claims, err = q.SettleReceive(
				t.Context(), Settlement{Claim: claims[0], FinishAll: true}, ReceiveOptions{Max: 1},
			)
			require.NoError(t, err)
			require.Len(t, claims, 1)
			if claims[0].Group != group {
				break
			}
		}
		require.Equal(t, of.keeps, kept)
		report, err := q.Admin().Check(t.Context(), CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
	}
}

// TestBehindIsNotKept: a handle that meets others keeps the group that it settles, but not if the settlement puts the
// group behind the others.
func TestBehindIsNotKept(t *testing.T) {
	same := map[bool]int{}
	for n := range uint64(40) {
		behind := n < 20
		q := spreading(t, n%20, 1, 100, 3, nil)
		claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
		require.NoError(t, err)
		group := claims[0].Group
		claims, err = q.SettleReceive(t.Context(), Settlement{
			Claim: claims[0], Nack: &NackOptions{Release: true, Behind: behind},
		}, ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		if claims[0].Group == group {
			same[behind]++
		}
		report, err := q.Admin().Check(t.Context(), CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
	}
	require.Zero(t, same[true])
	require.Positive(t, same[false])
}

// TestReceiveLeavesWhatAnotherIsTaking: what another transaction of the handle is about to claim is left to it, if
// there is anything else; but a receive does not come back with nothing because of it.
func TestReceiveLeavesWhatAnotherIsTaking(t *testing.T) {
	q := spreading(t, 7, 1, 3, 0, nil)
	other := q.noticed.flights.Begin()
	require.True(t, other.Take("0"))
	group := func() string {
		claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		return claims[0].Group
	}
	require.Equal(t, []string{"1", "2", "0"}, []string{group(), group(), group()})
	other.Land()
	require.True(t, q.noticed.flights.Empty())
}

// TestLateAckThatReceives (I1): a group stays reachable if the ack of its expired claim receives in the same
// transaction. No other has taken over. The timer that the receive has read is void by then.
func TestLateAckThatReceives(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	q := spreading(t, 8, 1, 1, 0, func() time.Time { return now })
	for range 2 {
		_, err := q.Enqueue(t.Context(), Message{Group: "0"})
		require.NoError(t, err)
	}
	claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
	require.NoError(t, err)
	now = now.Add(MaxLease)
	claims, err = q.SettleReceive(t.Context(), Settlement{Claim: claims[0], FinishAll: true}, ReceiveOptions{Max: 1})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	report, err := q.Admin().Check(t.Context(), CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.NoError(t, q.Ack(t.Context(), claims[0]))
	claims, err = q.Receive(t.Context(), ReceiveOptions{Max: 1})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Zero(t, claims[0].Items[0].Attempts)
}

// TestNamedAmongOthers (G2): of the receives of one transaction, one that names a group claims it although another has
// begun to read it, and no other receive gets it too.
func TestNamedAmongOthers(t *testing.T) {
	q := spreading(t, 9, 1, 4, 0, nil)
	named := "2"
	all := []*reception{
		{o: ReceiveOptions{Max: 1, MaxGroups: 1, Lease: MinLease}},
		{o: ReceiveOptions{Max: 1, MaxGroups: 1, Lease: MinLease, Group: &named}},
		{o: ReceiveOptions{Max: 9, MaxGroups: 9, Lease: MinLease}},
	}
	_, err := kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		c := q.txn(t.Context(), tx).newClaimer("", all)
		c.begin()
		return c.claim()
	})
	require.NoError(t, err)
	var got [][]string
	for _, r := range all {
		var groups []string
		for _, c := range r.claims {
			groups = append(groups, c.Group)
		}
		got = append(got, groups)
	}
	require.Equal(t, [][]string{{"0"}, {"2"}, {"1", "3"}}, got)
}

// TestOwnHintIsNotStale (I1): a group that a transaction has settled and left ready keeps the hint that it has set.
func TestOwnHintIsNotStale(t *testing.T) {
	q := spreading(t, 11, 1, 1, 0, nil)
	_, err := kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		w := q.txn(t.Context(), tx)
		c := w.newClaimer("", []*reception{{o: ReceiveOptions{Max: 1, MaxGroups: 1, Lease: MinLease}}})
		head, err := q.Peek(t.Context(), "0", 1, nil)
		if err != nil {
			return err
		}
		tx.Clear(q.keys.ready(head[0].ID.Index, "0"))
		w.hint(head[0].ID.Index, "0", 0)
		c.met["0"] = true
		_, _, err = c.next()
		return err
	})
	require.NoError(t, err)
	report, err := q.Admin().Check(t.Context(), CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
}

// TestWalkStaysInItsShard: two searches of a handle land one after the other, in different shards, and the first comes
// to a hint of its own. The next search goes on in one shard: from a key of one to the end of another lie the hints of
// all templates that come between, and a receive by template would take groups of another.
func TestWalkStaysInItsShard(t *testing.T) {
	q := spreading(t, 1, 4, 0, 3, nil)
	spread, all := q.spreadOf(""), q.keys.shards.all()
	for range 100 {
		first, away := spread.Place(q.random, all, 0)
		require.True(t, away)
		second := first
		for second.Shard == first.Shard {
			second, _ = spread.Place(q.random, all, 0)
		}
		spread.Walked(first.Shard, q.keys.hintsFrom("", first.Shard, 5).Begin)
		place, _ := spread.Place(q.random, all, 0)
		begin := (&search{w: &txn{view: view{q: q, keys: q.keys}}}).landing(place)
		require.True(t, q.keys.hintsFrom("", place.Shard, 0).Contains(begin.Key), "%d: %q", place.Shard, begin.Key)
	}
}

// TestLandingLearnsTheNewest: a handle that lands in any shard learns how far the hints go, also by a template. Else
// its landings of the last level would all be near the oldest hint.
func TestLandingLearnsTheNewest(t *testing.T) {
	const newest = 1_000_000
	for _, template := range []Template{nil, {"state": "new"}} {
		for shard := range int64(4) {
			db := embedded.OpenMemory(embedded.Options{})
			q, err := Create(t.Context(), db, nil, "q", Options{
				Test:   &TestOptions{Seed: 1},
				Config: Config{Shards: 4, Facets: []string{"state"}, Views: "*; state"},
			})
			require.NoError(t, err)
			where, err := q.keys.whereGiven(template)
			require.NoError(t, err)
			spread := q.spreadOf(where)
			_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				key := q.keys.readyAt(shard, newest, lanes.Name("A", where))
				tx.Set(key, nil)
				s := &search{w: q.txn(t.Context(), tx), where: where, shard: shard, spread: spread}
				s.newest = tx.GetKey(kv.FirstGreaterOrEqual(key))
				return s.learnNewest()
			})
			require.NoError(t, err)
			for range 4 {
				spread.Widen()
			}
			place, away := spread.Place(q.random, 4, 0)
			require.True(t, away)
			require.Positive(t, place.From, "%v, shard %d", template, shard)
			require.NoError(t, q.Close(t.Context()))
			require.NoError(t, db.Close())
		}
	}
}

// TestSearchBehindTheOldestHasMore: a search which has come home from a walk may begin a few hints behind the oldest.
// When such a search has read to the end, the hints passed over are left. The claimer must say so, because no other
// transaction wakes the handles that wait for them.
func TestSearchBehindTheOldestHasMore(t *testing.T) {
	met := 0
	for seed := uint64(1); seed <= 40; seed++ {
		q := spreading(t, seed, 1, 2, 1, nil)
		_, err := kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			c := q.txn(t.Context(), tx).newClaimer("", nil)
			found, err := c.search.next(4)
			if err != nil {
				return err
			}
			if len(found) == 1 {
				met++
				require.Equal(t, 1, c.left())
			}
			return nil
		})
		require.NoError(t, err)
	}
	require.NotZero(t, met, "no search began behind the oldest")
}
