package layer_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// TestUnknownClaimOfManyItems: a claim whose unknown commit was applied is read back whole, with its attempts, in a few
// reads however many items it has. Otherwise it could not be read within a transaction's time, or between two faults.
func TestUnknownClaimOfManyItems(t *testing.T) {
	onEngines(t, func(e *env) {
		counter := record.WrapCounting(e.raw)
		plan := &fault.Plan{Seed: e.seed}
		q, err := layer.Open(e.ctx, fault.Wrap(counter, plan), testPrefix, testQueue, e.options(2))
		require.NoError(e.t, err)
		var want []string
		for i := range 300 {
			want = append(want, fmt.Sprint("a", i))
		}
		e.enqueue("A", want...)
		c := e.receive(q, 1)
		require.NoError(e.t, q.Nack(e.ctx, c, layer.NackOptions{}))

		before := counter.Counters()
		plan.ForceNext(fault.UnknownApplied)
		c = e.receive(q, len(want))
		require.Equal(e.t, want, bodies(c.Items))
		require.Equal(e.t, 1, plan.Counts()[fault.UnknownApplied])
		require.Equal(e.t, 1, c.Items[0].Attempts)
		require.Zero(e.t, c.Items[1].Attempts)
		require.Less(e.t, counter.Counters().Sub(before).Reads, int64(20))
		require.NoError(e.t, q.Ack(e.ctx, c))
	})
}

// TestRepeatOfItemsFarApart (trap 7): dead letters may return to their places between the items of a claim. A repeated
// receive reads the claim's items back without all those between.
func TestRepeatOfItemsFarApart(t *testing.T) {
	onMemory(t, func(e *env) {
		want := e.enqueue("A", "a1", "a2")
		o := layer.ReceiveOptions{Max: 2, ReceiveID: "r"}
		claims, err := e.q.Receive(e.ctx, o)
		require.NoError(e.t, err)
		first := e.rows(kv.PrefixRange(key("item")))[0]
		e.write(func(tx kv.Tx) {
			for i := range 500 {
				random := uuid.Max
				random[14], random[15] = byte(i>>8), byte(i)
				tx.Set(key("item", "A", want[0].Index, random), first.Value)
			}
		})
		db := &rowsOfEach{DB: e.raw}
		q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(2))
		require.NoError(e.t, err)
		again, err := q.Receive(e.ctx, o)
		require.NoError(e.t, err)
		require.Equal(e.t, claims[0].Items, again[0].Items)
		require.NoError(e.t, q.Ack(e.ctx, again[0]))
		require.LessOrEqual(e.t, db.most(), int64(20))
		require.NoError(e.t, q.Close(e.ctx))
		_, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true, Force: true})
		require.NoError(e.t, err)
	})
}
