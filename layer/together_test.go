package layer_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// TestReceivesTogetherShareNoGroup: of receives that travel in one transaction, one that names its group and one that
// does not, a group goes to one of them alone (G2), though the transaction looks at groups ahead.
func TestReceivesTogetherShareNoGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		engine := embedded.OpenMemory(embedded.Options{})
		db := fault.Wrap(engine, plan)
		defer func() { require.NoError(t, db.Close()) }()
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		other, err := layer.Open(t.Context(), engine, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), layer.Message{Group: "Z"})
		require.NoError(t, err)

		named := "B"
		options := []layer.ReceiveOptions{{Max: 1}, {Max: 1, Group: &named}, {Max: 1}}
		claims := make([][]*layer.Claim, len(options))
		plan.OnCommit = func(int, kv.Tx) fault.Kind {
			plan.OnCommit = nil
			_, err := other.Enqueue(t.Context(), layer.Message{Group: "A"}, layer.Message{Group: "B"}, layer.Message{Group: "C"})
			require.NoError(t, err)
			for i, o := range options {
				go func() {
					var err error
					claims[i], err = q.Receive(t.Context(), o)
					require.NoError(t, err)
				}()
				synctest.Wait() // it is in the queue, behind the transaction that is about to commit
			}
			return fault.Chance
		}
		before := q.Paths()
		_, err = q.Receive(t.Context(), layer.ReceiveOptions{Max: 1})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, int64(2), q.Paths().Shared-before.Shared, "the three travel together")
		var groups []string
		for _, of := range claims {
			require.Len(t, of, 1)
			groups = append(groups, of[0].Group)
			require.NoError(t, q.Ack(t.Context(), of[0]))
		}
		require.Equal(t, []string{"A", "B", "C"}, groups)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, other.Close(t.Context()))
	})
}
