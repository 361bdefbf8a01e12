package layer_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// TestReceivesTogetherShareNoGroup: of receives that travel in one transaction, one that names its group and one that
// does not, a group goes to one of them alone (G2), though the transaction looks at groups ahead.
func TestReceivesTogetherShareNoGroup(t *testing.T) {
	named := "B"
	require.Equal(t, []string{"A", "B", "C"}, receivedTogether(t,
		layer.ReceiveOptions{Max: 1}, layer.ReceiveOptions{Max: 1, Group: &named}, layer.ReceiveOptions{Max: 1}))
}

// TestLayersLeaveTheRest (contract): a receive by layers looks at more groups than have room in its MaxBytes. Another
// receive in the same transaction gets one of the rest.
func TestLayersLeaveTheRest(t *testing.T) {
	require.Equal(t, []string{"A", "B", "C"}, receivedTogether(t,
		layer.ReceiveOptions{Max: 3, MaxBytes: 1, Strategy: layer.Layers}, layer.ReceiveOptions{Max: 1}, layer.ReceiveOptions{Max: 1}))
}

// receivedTogether receives in one transaction from a queue with a message in each of the groups A, B and C. It
// returns the group of each receive, which must get one.
func receivedTogether(t *testing.T, options ...layer.ReceiveOptions) (groups []string) {
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

		claims := make([][]*layer.Claim, len(options))
		plan.OnCommit = func(int, kv.Tx) fault.Kind {
			plan.OnCommit = nil
			body := []byte("body")
			_, err := other.Enqueue(t.Context(), layer.Message{Group: "A", Body: body},
				layer.Message{Group: "B", Body: body}, layer.Message{Group: "C", Body: body})
			require.NoError(t, err)
			for i, o := range options {
				go func() {
					var err error
					claims[i], err = q.Receive(t.Context(), o)
					assert.NoError(t, err)
				}()
				synctest.Wait() // it is in the queue, behind the transaction that is about to commit
			}
			return fault.Chance
		}
		before := q.Paths()
		_, err = q.Receive(t.Context(), layer.ReceiveOptions{Max: 1})
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, len(options)-1, q.Paths().Shared-before.Shared, "they travel together")
		for i, of := range claims {
			require.Len(t, of, 1, "receive %d", i)
			groups = append(groups, of[0].Group)
			require.NoError(t, q.Ack(t.Context(), of[0]))
		}
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, other.Close(t.Context()))
	})
	return groups
}

// finishAll finishes all that is left of each claim, together.
func finishAll(ctx context.Context, q *layer.Queue, claims ...*layer.Claim) error {
	all := make([]layer.Settlement, len(claims))
	for i, c := range claims {
		all[i] = layer.Settlement{Claim: c, FinishAll: true}
	}
	return q.Settle(ctx, all...)
}

// ackingState acks, and stores the group's state; without ids all is acked.
func ackingState(c *layer.Claim, state []byte, ids ...layer.ID) layer.Settlement {
	return layer.Settlement{Claim: c, Finish: ids, FinishAll: len(ids) == 0, State: &state}
}

// settingState stores the group's state alone.
func settingState(c *layer.Claim, state []byte) layer.Settlement {
	return layer.Settlement{Claim: c, State: &state}
}

// advanceBy advances items; without ids all that is left of the claim.
func advanceBy(c *layer.Claim, change func(m *layer.Message) error, ids ...layer.ID) layer.Settlement {
	s := layer.Settlement{Claim: c, Advance: ids, AdvanceAll: len(ids) == 0}
	if change != nil {
		s.Change = func(_ layer.ID, m *layer.Message) error { return change(m) }
	}
	return s
}

// TestAckAll: claims of different handles and receives are acked in one transaction, each with its own outcome, also if
// one of them is lost or of another queue (G3).
func TestAckAll(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	r := record.WrapCounting(e.raw)
	q, err := layer.Open(e.ctx, r, testPrefix, testQueue, e.options(2))
	require.NoError(t, err)
	for _, group := range []string{"A", "B", "C", "D", "E"} {
		e.enqueue(group, group+"1", group+"2")
	}
	heads := layer.ReceiveOptions{Max: 3, Strategy: layer.Heads}
	claims, err := q.Receive(e.ctx, heads)
	require.NoError(t, err)
	require.Len(t, claims, 3)
	theirs, err := e.q.Receive(e.ctx, heads)
	require.NoError(t, err)
	require.Len(t, theirs, 2)
	lost := claims[1]
	require.NoError(t, e.q.Ack(e.ctx, lost))
	foreign := &layer.Claim{Queue: "another", Group: "D", Token: theirs[0].Token}

	before := r.Counters().Commits
	err = finishAll(e.ctx, q, claims[0], lost, claims[2], foreign, nil, theirs[1])
	require.EqualValues(t, 1, r.Counters().Commits-before)
	require.ErrorIs(t, err, layer.ErrClaimLost)
	require.ErrorIs(t, err, layer.ErrOptions)
	require.ErrorContains(t, err, "layer: settle: group \"B\"")
	var failed *layer.ClaimError
	require.ErrorAs(t, err, &failed)
	require.Same(t, lost, failed.Claim)
	require.NoError(t, e.q.Ack(e.ctx, theirs[0]), "D is held as before")
	require.NoError(t, finishAll(e.ctx, q), "no claims, no work")
	for _, group := range []string{"A", "B", "C", "D", "E"} {
		require.Equal(t, []string{group + "2"}, e.all(group))
	}
	e.check()
}

// TestAckAllUnknown (G3): when the commit of claims acked together ends unknown, none is acked twice, nor reported
// lost.
func TestAckAllUnknown(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		plan := &fault.Plan{}
		db := fault.Wrap(embedded.OpenMemory(embedded.Options{}), plan)
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), layer.Message{Group: "A"}, layer.Message{Group: "B"}, layer.Message{Group: "B"})
		require.NoError(t, err)
		claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Strategy: layer.Heads})
		require.NoError(t, err)
		require.Len(t, claims, 2)
		plan.OnCommit = func(int, kv.Tx) fault.Kind {
			plan.OnCommit = nil
			return kind
		}
		require.NoError(t, finishAll(t.Context(), q, claims...))
		report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.EqualValues(t, 1, report.Items)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, db.Close())
	}
}
