package layer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// A client of several versions that goes on to another connection ends its commits with 1039 and retries them, and they may
// still land (trap 4): before the retry looks for its receipt, between that and its commit, or behind it.

// versions opens a handle whose n-th commit from here on, from 1, meets what at returns. Land lets the late ones land: those
// of this seed let ten others pass, more than there are.
func (e *env) versions(at func(plan *fault.Plan, n int) fault.Kind) (*layer.Queue, *fault.Plan) {
	e.t.Helper()
	plan := &fault.Plan{Seed: 10}
	plan.OnCommit = func(n int, _ kv.Tx) fault.Kind { return at(plan, n) }
	q, err := layer.Open(e.ctx, fault.Wrap(e.raw, plan), testPrefix, testQueue, e.options(3))
	require.NoError(e.t, err)
	return q, plan
}

// inGroups runs a test with an empty group and with one that has items, because a late enqueue into an empty group has
// one more conflict than that of its receipt.
func inGroups(t *testing.T, test func(e *env, before []string)) {
	for name, before := range map[string][]string{"into an empty group": nil, "behind others": {"a1"}} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			if before != nil {
				e.enqueue("A", before...)
			}
			test(e, before)
		})
	}
}

// TestLateCommitExcludesItsRetry (G3): a commit that is still under way when its retry has been applied does not land. Guard
// receipt-late.
func TestLateCommitExcludesItsRetry(t *testing.T) {
	inGroups(t, func(e *env, before []string) {
		q, plan := e.versions(func(_ *fault.Plan, n int) fault.Kind {
			if n == 1 {
				return fault.VersionChangedLate
			}
			return fault.None
		})
		sent, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("once")})
		require.NoError(e.t, err)
		require.NoError(e.t, plan.Land(e.ctx))
		require.Equal(e.t, map[fault.Kind]int{fault.VersionChangedLate: 1}, plan.Counts())
		items, err := e.q.Peek(e.ctx, "A", 10, nil)
		require.NoError(e.t, err)
		require.Len(e.t, items, len(before)+1)
		require.Equal(e.t, sent[0].ID, items[len(before)].ID)
	})
}

// TestLateRetryExcludesTheNext (G3): the commit of a retry that ends with 1039, too, does not land once the next attempt has
// looked for the receipt. Guard receipt-conflict.
func TestLateRetryExcludesTheNext(t *testing.T) {
	inGroups(t, func(e *env, before []string) {
		attempts := 0 // commits: attempt, fence, attempt, fence, attempt
		q, plan := e.versions(func(plan *fault.Plan, n int) fault.Kind {
			attempts = n
			switch n {
			case 1:
				return fault.VersionChangedLost
			case 3:
				return fault.VersionChangedLate
			case 5:
				require.NoError(e.t, plan.Land(e.ctx)) // behind the look, before the commit
			}
			return fault.None
		})
		sent, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("once")})
		require.NoError(e.t, err)
		require.GreaterOrEqual(e.t, attempts, 5)
		require.Equal(e.t, map[fault.Kind]int{fault.VersionChangedLost: 1, fault.VersionChangedLate: 1}, plan.Counts())
		items, err := e.q.Peek(e.ctx, "A", 10, nil)
		require.NoError(e.t, err)
		require.Len(e.t, items, len(before)+1)
		require.Equal(e.t, sent[0].ID, items[len(before)].ID)
	})
}

// TestLateCommitAndResultsOfItsRetry (G3): a function of Once that has run again has assigned the results of its last run,
// and these are what is there: the commit of the run before lands no more. Guard receipt-fence.
func TestLateCommitAndResultsOfItsRetry(t *testing.T) {
	inGroups(t, func(e *env, before []string) {
		q, plan := e.versions(func(_ *fault.Plan, n int) fault.Kind {
			if n == 1 {
				return fault.VersionChangedLate
			}
			return fault.None
		})
		runs := 0
		var sent []layer.Sent
		require.NoError(e.t, q.Once(e.ctx, func(tx kv.Tx) (err error) {
			runs++
			sent, err = q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A", Body: []byte("once")})
			if err == nil && runs == 2 {
				err = plan.Land(e.ctx)
			}
			return err
		}))
		require.Equal(e.t, 2, runs)
		items, err := e.q.Peek(e.ctx, "A", 10, nil)
		require.NoError(e.t, err)
		require.Len(e.t, items, len(before)+1)
		require.Equal(e.t, sent[0].ID, items[len(before)].ID)
	})
}

// TestLateCommitAndRefusalOfItsRetry (G3): what a retry refuses has not happened, and does not happen later.
func TestLateCommitAndRefusalOfItsRetry(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q, plan := e.versions(func(_ *fault.Plan, n int) fault.Kind {
		if n == 1 {
			return fault.VersionChangedLate
		}
		return fault.None
	})
	refused := errors.New("refused")
	runs := 0
	require.ErrorIs(t, q.Once(e.ctx, func(tx kv.Tx) error {
		if runs++; runs == 2 {
			return refused
		}
		_, err := q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A"})
		return err
	}), refused)
	require.Equal(t, 2, runs)
	require.NoError(t, plan.Land(e.ctx))
	require.Empty(t, e.all("A"))
}

// TestLateClaimOfReceiveThatFindsNothing (G2): a receive that is retried and finds nothing holds no group. The claim of
// its first attempt, whose commit was still in flight, does not land later and hold the group for a whole lease.
func TestLateClaimOfReceiveThatFindsNothing(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: time.Second})
	require.NoError(t, err)
	e.clock.advance(time.Second)
	q, plan := e.versions(func(_ *fault.Plan, n int) fault.Kind {
		if n == 1 {
			e.clock.advance(-time.Second) // it was set right: for the retry nothing is due
			return fault.VersionChangedLate
		}
		return fault.None
	})
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.Empty(t, claims)
	require.NoError(t, plan.Land(e.ctx))
	e.clock.advance(time.Second)
	require.NotNil(t, e.receive(e.q, 1))
}
