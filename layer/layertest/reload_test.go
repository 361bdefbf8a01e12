package layer_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

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
