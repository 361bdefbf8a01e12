package bench

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
)

var heatPrefix = tuple.Tuple{"heat"}.Pack()

func heatEnv() Env {
	return Env{Open: func(context.Context) (Space, error) {
		return Space{DB: embedded.OpenMemory(embedded.Options{}), Prefix: heatPrefix}, nil
	}}
}

// A key of a range that grows with time counts at the end of that range, in whatever layout; any other key for itself.
func TestHeatPlace(t *testing.T) {
	m := newHeatMap(heatPrefix)
	key := func(elements ...any) []byte {
		return append(heatPrefix[:len(heatPrefix):len(heatPrefix)], tuple.Tuple(elements).Pack()...)
	}
	const late = int64(1_795_000_000_000)
	for _, c := range []struct {
		key         []byte
		kind, place string
	}{
		{key("q", "timer", late, "group-7"), "timer", `("q", "timer")`},
		{key("q", "timer", tuple.Tuple{int64(3)}, late, "group-7"), "timer", `("q", "timer", (3))`},
		{key("q", "timer", int64(0)), "timer", `("q", "timer")`},
		{key("q", "ready", int64(3), late, "group-7"), "ready", `("q", "ready", 3)`},
		{key("q", "ready", int64(3), late, "group-8"), "ready", `("q", "ready", 3)`},
		{key("q", "ready", int64(4), int64(0)), "ready", `("q", "ready", 4)`},
		{key("q", "item", "group-7", late), "item", `("q", "item", "group-7")`},
		{key("q", "item", "group-7", nil), "item", `("q", "item", "group-7")`},
		{append(key("q", "item", "group-7"), 0xff), "item", `("q", "item", "group-7")`},
		{key("q", "count", "acked", int64(5)), "count", `("q", "count", "acked", 5)`},
		{key("q", "lock", "group-7"), "lock", `("q", "lock", "group-7")`},
	} {
		kind, place := m.place(c.key)
		require.Equal(t, c.kind, kind, "%x", c.key)
		require.Equal(t, c.place, place, "%x", c.key)
	}
}

// A lifecycle of a claim sets and clears one hint and one timer, however many items the claim has and over however many
// shards the hints are spread; and each hint is at the end of a single shard.
func TestHeatCountsALife(t *testing.T) {
	for _, shards := range heatShards {
		for _, items := range []int{1, batch} {
			const lives = 5
			m, err := heatOf(t.Context(), heatEnv(), shards, items, lives)
			require.NoError(t, err)
			for _, kind := range []string{"timer", "ready"} {
				sum := int64(0)
				for _, n := range m.mutations.byKind[kind] {
					sum += n
				}
				require.EqualValues(t, 2*lives, sum, "%s, %d shards, claims of %d", kind, shards, items)
			}
			all := heatCost{}
			for _, c := range m.byOperation {
				all = all.plus(c)
			}
			require.Equal(t, m.mutations.all, all.mutations)
			require.Equal(t, m.reads.all, all.reads)
			require.LessOrEqual(t, len(m.mutations.byKind["ready"]), min(shards, lives))
			require.Equal(t, len(m.mutations.byKind["ready"]), len(m.mutations.byKind["timer"]), "by the same hash")
			require.Len(t, m.mutations.byKind["item"], lives)
			require.GreaterOrEqual(t, m.emptyLook, int64(shards), "a receive reads every shard")
		}
	}
}

// Mutations of a commit that failed do not count: no cluster applies them. Its reads do.
func TestHeatOfFailedCommit(t *testing.T) {
	m := newHeatMap(heatPrefix)
	key := append(heatPrefix[:len(heatPrefix):len(heatPrefix)], tuple.Tuple{"q", "count", "acked", int64(5)}.Pack()...)
	ops := []record.Op{{Kind: record.Get, Key: key}, {Kind: record.Atomic, Key: key}}
	m.add("ack", []record.Transaction{{Ops: ops}, {Ops: ops, Err: &kv.Error{Code: kv.CodeNotCommitted}}})
	require.EqualValues(t, 1, m.mutations.all)
	require.EqualValues(t, 2, m.reads.all)
	require.Equal(t, heatCost{mutations: 1, reads: 2, bytes: int64(len(key))}, m.byOperation["ack"])
}
