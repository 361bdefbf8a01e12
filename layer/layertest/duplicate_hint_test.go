package layer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// TestDuplicateHintOfAGroupNotTaken: a group has two hints when two enqueues met it empty at the same time. A
// receive that meets both and then has no room for the group must leave both: meanwhile the second may have
// become the only one, set by the end of another claim (I1).
func TestDuplicateHintOfAGroupNotTaken(t *testing.T) {
	onEngines(t, func(e *env) {
		ahead, err := layer.Open(e.ctx, e.raw, testPrefix, testQueue, layer.Options{
			Now: func() time.Time { return e.clock.now().Add(30 * time.Second) }, Test: &layer.TestOptions{Seed: e.seed},
		})
		require.NoError(e.t, err)
		other := e.calm()

		// A handle that found one item in a group expects as much of others, and looks at several together.
		e.enqueue("X", "x1")
		require.NoError(e.t, ahead.Ack(e.ctx, e.receive(ahead, 1)))

		// A is held, and its lease has run out for the one ahead only.
		e.enqueue("A", "a1", "a2", "a3")
		held, err := other.Receive(e.ctx, layer.ReceiveOptions{Lease: 10 * time.Second})
		require.NoError(e.t, err)
		require.Len(e.t, held, 1)

		// Two enqueues into the empty group B, each blind to the other, and of different read versions.
		b1 := e.begin()
		_, err = other.EnqueueTx(e.ctx, b1, layer.Message{Group: "B", Body: []byte("b1")})
		require.NoError(e.t, err)
		e.enqueue("A", "a4")
		b2 := e.begin()
		_, err = other.EnqueueTx(e.ctx, b2, layer.Message{Group: "B", Body: []byte("b2")})
		require.NoError(e.t, err)
		e.commit(b1)
		e.commit(b2)
		require.Equal(e.t, []string{"b1", "b2"}, e.all("B"))

		// The one ahead meets A and both hints of B, and is full after A.
		tx := e.begin()
		claims, err := ahead.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Max: 3})
		require.NoError(e.t, err)
		require.Len(e.t, claims, 1)
		require.Equal(e.t, "A", claims[0].Group)

		// Before it commits, the first hint of B is used and the second set anew.
		b := e.receive(other, 1)
		require.Equal(e.t, []string{"b1"}, bodies(b.Items))
		require.NoError(e.t, other.Ack(e.ctx, b))
		e.commit(tx)

		b = e.receive(other, 1)
		require.NotNil(e.t, b, "the rest of B is reachable")
		require.Equal(e.t, []string{"b2"}, bodies(b.Items))
	})
}

// begin starts a transaction on the engine without faults.
func (e *env) begin() kv.ManagedTx {
	e.t.Helper()
	tx, err := e.raw.Begin(kv.TxOptions{})
	require.NoError(e.t, err)
	return tx
}

func (e *env) commit(tx kv.ManagedTx) {
	e.t.Helper()
	_, err := tx.Commit().Wait(e.ctx)
	require.NoError(e.t, err)
}

// TestDuplicateHintOfAGroupPassedOver: a group has two hints, and another transaction of the handle is about to take
// it. A receive that finds nothing else looks at the group all the same, and claims it once: its items are not
// delivered twice.
func TestDuplicateHintOfAGroupPassedOver(t *testing.T) {
	onEngines(t, func(e *env) {
		other := e.calm()
		b1 := e.begin()
		_, err := other.EnqueueTx(e.ctx, b1, layer.Message{Group: "B", Body: []byte("b1")})
		require.NoError(e.t, err)
		e.enqueue("A", "a1")
		require.NoError(e.t, other.Ack(e.ctx, e.receive(other, 1)))
		b2 := e.begin()
		_, err = other.EnqueueTx(e.ctx, b2, layer.Message{Group: "B", Body: []byte("b2")})
		require.NoError(e.t, err)
		e.commit(b1)
		e.commit(b2)
		require.Len(e.t, e.rows(kv.PrefixRange(key("ready"))), 2)

		var q *layer.Queue
		var inside []*layer.Claim
		plan := &fault.Plan{}
		q, err = layer.Open(e.ctx, fault.Wrap(e.raw, plan), testPrefix, testQueue, layer.Options{
			Now: e.clock.now, Test: &layer.TestOptions{Seed: e.seed + 9},
		})
		require.NoError(e.t, err)
		plan.OnCommit = func(n int, _ kv.Tx) fault.Kind {
			if n == 1 {
				var err error
				inside, err = q.Receive(e.ctx, layer.ReceiveOptions{})
				require.NoError(e.t, err)
			}
			return fault.Chance
		}
		// For a receive of one group two hints are plenty: another may receive in the meantime.
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{MaxGroups: 1})
		require.NoError(e.t, err)
		require.Empty(e.t, claims, "the other was faster")
		require.Len(e.t, inside, 1)
		require.Equal(e.t, []string{"b1", "b2"}, bodies(inside[0].Items))
		require.NoError(e.t, q.Ack(e.ctx, inside[0]))
		require.NoError(e.t, q.Close(e.ctx))
	})
}
