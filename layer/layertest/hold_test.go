package layer_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// unordered makes an unordered queue in addition to the test's own, and returns handles on it.
func (e *env) unordered(name string, change func(*layer.Config), handles int) []*layer.Queue {
	e.t.Helper()
	o := e.options(10)
	o.Config.Unordered, o.Config.MaxAttempts = true, layer.Unlimited
	if change != nil {
		change(&o.Config)
	}
	q, err := layer.Create(e.ctx, e.db, testPrefix, name, o)
	require.NoError(e.t, err)
	all := []*layer.Queue{q}
	for n := 1; n < handles; n++ {
		q, err := layer.Open(e.ctx, e.db, testPrefix, name, e.options(uint64(10+n)))
		require.NoError(e.t, err)
		all = append(all, q)
	}
	e.t.Cleanup(func() { e.sound(name) })
	return all
}

// TestLapsedHoldsEndByPages (G5): a receive or take that meets many holds of dead holders ends a bounded number of them
// in a transaction, and still gets items. Without the bound the transaction has several reads for each hold, one after
// the other. On a slow engine, or one whose reads often fail, it would last too long each time.
func TestLapsedHoldsEndByPages(t *testing.T) {
	const n, readsEach = 100, 120
	group := "A"
	for _, kind := range holdKinds {
		for _, of := range []*string{nil, &group} {
			receive := func(e *env) (ids []layer.ID) {
				o := kind.o
				o.Max, o.Group = 1, of
				claims, err := e.q.Receive(e.ctx, o)
				require.NoError(e.t, err)
				for _, c := range claims {
					ids = append(ids, c.Items[0].ID)
					require.NoError(e.t, e.q.Ack(e.ctx, c))
				}
				return ids
			}
			take := func(e *env) (ids []layer.ID) {
				var items []layer.Item
				require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) (err error) {
					items, _, err = e.q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{Group: of, Unordered: kind.o.Unordered})
					return err
				}))
				for _, item := range items {
					ids = append(ids, item.ID)
				}
				return ids
			}
			for _, call := range []struct {
				name string
				get  func(e *env) []layer.ID
			}{{"receive", receive}, {"take", take}} {
				name := fmt.Sprintf("%s/%s", kind.name, call.name)
				if of != nil {
					name += " of a group"
				}
				t.Run(name, func(t *testing.T) {
					e := newEnv(t, anyEngine, false)
					counting := record.WrapCounting(e.raw)
					e.db = counting
					handles := e.unordered("pages", kind.change, 2)
					e.q = handles[0]
					e.fill(group, n)
					for held := 0; held < n; {
						claims, err := handles[1].Receive(e.ctx, layer.ReceiveOptions{
							Max: n, Unordered: kind.name != "in turn", Lease: time.Minute,
						})
						require.NoError(t, err)
						require.NotEmpty(t, claims)
						held += len(claims)
					}
					e.clock.advance(2 * time.Minute)
					got := make(map[layer.ID]bool)
					for looks := 0; len(got) < n; looks++ {
						require.Less(t, looks, 2*n, "got %d", len(got))
						before := counting.Counters()
						ids := call.get(e)
						count := counting.Counters().Sub(before)
						require.LessOrEqual(t, count.Reads, readsEach*count.Commits)
						for _, id := range ids {
							got[id] = true
						}
					}
				})
			}
		}
	}
}

// TestUnorderedIsChecked: what an unordered queue, or an unordered receive, cannot do is an error before the
// transaction.
func TestUnorderedIsChecked(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.unordered("checked", nil, 1)[0]
	state := layer.Template{"state": "NEW"}
	for _, o := range []layer.ReceiveOptions{
		{Unordered: true, Where: state}, {Unordered: true, Strategy: layer.Heads}, {Unordered: true, State: true},
		{Unordered: true, OnlyIfAny: true},
	} {
		_, err := q.Receive(e.ctx, o)
		require.ErrorIs(t, err, layer.ErrOptions, "%+v", o)
	}
	_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true})
	require.ErrorIs(t, err, layer.ErrOptions)
	require.ErrorContains(t, err, "unordered")
	_, err = worker.New(e.q, worker.Handle(func(context.Context, *worker.Delivery) error { return nil }),
		worker.Options{Unordered: true})
	require.ErrorIs(t, err, layer.ErrOptions)
	for _, bad := range []layer.Config{
		{Unordered: true, Facets: []string{"state"}, Views: "state"}, {Unordered: true, OnFailure: layer.HaltGroup},
		{Unordered: true, MaxRate: layer.Rate{Count: 1, Per: time.Second}},
	} {
		_, err := layer.Create(e.ctx, e.db, testPrefix, "bad", layer.Options{Config: bad})
		require.ErrorIs(t, err, layer.ErrOptions)
	}
	_, _, err = q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Unordered = false })
	require.ErrorContains(t, err, "fixed at creation")
	sent, err := q.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Equal(t, sent[0].ID, claims[0].Hold)
	same := func(*layer.Message) error { return nil }
	require.ErrorIs(t, q.Settle(e.ctx, advanceBy(claims[0], same)), layer.ErrOptions)
	require.ErrorIs(t, q.Settle(e.ctx, ackingState(claims[0], []byte("x"))), layer.ErrOptions)
	other := *claims[0]
	other.Token++
	require.ErrorIs(t, q.Ack(e.ctx, &other), layer.ErrClaimLost)
	require.NoError(t, q.Ack(e.ctx, claims[0]))
	require.ErrorIs(t, q.Ack(e.ctx, claims[0]), layer.ErrClaimLost)
}

// TestUnorderedCost (lanes, trap 12): an unordered claim, and a receive that meets a hold, read the same whether ten
// items of the group are held or a thousand, with as many other groups whose heads are held.
func TestUnorderedCost(t *testing.T) {
	cost := func(held int) (claim, group, ack record.Counters) {
		e, r := recorded(t)
		e.db = r
		q := e.unordered("cost", nil, 1)[0]
		var msgs []layer.Message
		for n := range held {
			msgs = append(msgs, layer.Message{Group: "A"}, layer.Message{Group: fmt.Sprint("other ", n)})
		}
		for part := range slices.Chunk(msgs, layer.MaxBatch) {
			_, err := q.Enqueue(e.ctx, part...)
			require.NoError(t, err)
		}
		for left := 2 * held; left > 0; {
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true, Max: min(left, layer.MaxBatch)})
			require.NoError(t, err)
			require.NotEmpty(t, claims)
			left -= len(claims)
		}
		const rounds = 5
		// One item stays free, so that all rounds cost the same.
		_, err := q.Enqueue(e.ctx, slices.Repeat([]layer.Message{{Group: "A"}}, rounds+1)...)
		require.NoError(t, err)
		// step keeps the cost of a call in the cheapest round. In another one the handle may read its configuration
		// again, which it does after half a second.
		step := func(least *record.Counters, round int, call func()) {
			before := r.Counters()
			call()
			if cost := r.Counters().Sub(before); round == 0 || cost.Reads < least.Reads {
				*least = cost
			}
		}
		aside := r.Counters()
		// It puts the hints of held groups aside, a hundred a transaction.
		_, err = q.Receive(e.ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		require.LessOrEqual(t, int64(held/100), r.Counters().Sub(aside).Commits, "no transaction is without bound")
		var claims []*layer.Claim
		receive := func(o layer.ReceiveOptions) func() {
			return func() {
				claims, err = q.Receive(e.ctx, o)
				require.NoError(t, err)
			}
		}
		for round := range rounds {
			step(&group, round, receive(layer.ReceiveOptions{}))
			require.Empty(t, claims)
			step(&claim, round, receive(layer.ReceiveOptions{Unordered: true, Max: 1}))
			require.NotEmpty(t, claims)
			step(&ack, round, func() { require.NoError(t, q.Ack(e.ctx, claims[0])) })
		}
		return claim, group, ack
	}
	type figures struct{ KeyReads, RangeReads, Rows, Mutations int64 }
	of := func(c record.Counters) figures { return figures{c.KeyReads, c.RangeReads, c.Rows, c.Mutations} }
	claim, group, ack := cost(10)
	claim1000, group1000, ack1000 := cost(1000)
	t.Logf("unordered claim %+v, receive of groups that are all held %+v, ack %+v", of(claim), of(group), of(ack))
	require.Equal(t, of(claim), of(claim1000))
	require.Equal(t, of(group), of(group1000))
	require.Equal(t, of(ack), of(ack1000))
}

// TestStatsOfAnUnorderedQueue (unordered): an unordered queue has no views. Its groups are counted as unordered
// receives see them: a group with a free item is ready, also while another of its items is held.
func TestStatsOfAnUnorderedQueue(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.unordered("lanes", nil, 1)[0]
	for _, group := range []string{"A", "B"} {
		_, err := q.Enqueue(e.ctx, layer.Message{Group: group}, layer.Message{Group: group})
		require.NoError(t, err)
	}
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true, Max: 1})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	stats, err := q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.Nil(t, stats.Views)
	require.EqualValues(t, 3, stats.Depth-stats.InFlight)
	groups := func() [3]int64 {
		stats, err := q.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.Zero(t, stats.Delayed)
		return [3]int64{stats.ReadyGroups, stats.HeldGroups, stats.DelayedGroups}
	}
	require.Equal(t, [3]int64{2, 1, 0}, groups(), "the other item of the group is ready")
	for range 3 {
		claims, err = q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true, Max: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)
	}
	require.Equal(t, [3]int64{0, 2, 0}, groups(), "each group counts once")
	e.clock.advance(time.Hour)
	require.Equal(t, [3]int64{2, 0, 0}, groups(), "the leases have expired")
}

// TestUnreadableHoldKeepsItsItemAlone (G5): the record of a hold cannot be read. Receives and takes of the group, named
// or not, go on with the other items.
func TestUnreadableHoldKeepsItsItemAlone(t *testing.T) {
	group := "A"
	for _, named := range []bool{false, true} {
		for _, kind := range holdKinds {
			if !kind.o.Unordered {
				continue // else it is the head that is held
			}
			t.Run(fmt.Sprint(kind.name, " named ", named), func(t *testing.T) {
				e := newEnv(t, inMemory, false)
				q := e.unordered("spoilt", kind.change, 1)[0]
				e = e.on(q)
				ids := e.enqueue(group, "a1", "a2", "a3")
				o := kind.o
				o.Max = 1
				claims, err := q.Receive(e.ctx, o)
				require.NoError(t, err)
				require.Len(t, claims, 1)
				hold := tuple.Tuple{"spoilt", "hold", group, ids[0].Index, ids[0].Random}
				mend := e.spoil(append(bytes.Clone(testPrefix), hold.Pack()...))
				if named {
					o.Group = &group
				}
				claims, err = q.Receive(e.ctx, o)
				require.NoError(t, err)
				require.Len(t, claims, 1)
				require.Equal(t, ids[1], claims[0].Items[0].ID)
				require.NoError(t, q.Ack(e.ctx, claims[0]))
				items, err := takeFrom(e.ctx, q, 1, layer.TakeOptions{Group: o.Group, Unordered: true})
				require.NoError(t, err)
				require.Len(t, items, 1)
				mend()
			})
		}
	}
}

// TestUnreadableRecordUsesUpNoRate (G5): the record of the failed attempts of a group's head cannot be read. Looks at
// the group use up nothing of the queue's rate: a receive and a take deliver a message of another group.
func TestUnreadableRecordUsesUpNoRate(t *testing.T) {
	for _, kind := range holdKinds {
		for _, takes := range []bool{false, true} {
			t.Run(fmt.Sprint(kind.name, " takes ", takes), func(t *testing.T) {
				e := newEnv(t, inMemory, false)
				q := e.unordered("spoilt", func(c *layer.Config) {
					kind.change(c)
					c.MaxRateTotal = layer.Rate{Count: 1, Per: time.Second}
				}, 1)[0]
				e = e.on(q)
				ids := e.enqueue("A", "a1", "a2")
				e.enqueue("B", "b")
				var mends []func()
				for _, id := range ids {
					record := tuple.Tuple{"spoilt", "attempt", "A", id.Index, id.Random}
					mends = append(mends, e.spoil(append(bytes.Clone(testPrefix), record.Pack()...)))
				}
				e.clock.advance(time.Minute)
				var got []string
				if takes {
					items, err := takeFrom(e.ctx, q, 1, layer.TakeOptions{Unordered: kind.o.Unordered})
					require.NoError(t, err)
					got = bodies(items)
				} else {
					claims, err := q.Receive(e.ctx, kind.o)
					require.NoError(t, err)
					for _, c := range claims {
						got = append(got, bodies(c.Items)...)
						require.NoError(t, q.Ack(e.ctx, c))
					}
				}
				require.Equal(t, []string{"b"}, got)
				for _, mend := range mends {
					mend()
				}
			})
		}
	}
}
