package fault_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
)

// A commit that ended with 1039 may still land, and its error says so. Its transaction restarts at a later version,
// without the writes of the first attempt. The retry has its own reads and writes.
func TestVersionChangedLate(t *testing.T) {
	plan := &fault.Plan{}
	engine, db := open(t, plan)
	plan.ForceNext(fault.VersionChangedLate)
	tx := begin(t, db)
	tx.Set([]byte("a"), []byte("late"))
	err := commit(t, tx)
	requireCode(t, kv.CodeClusterVersionChanged, err)
	var e *kv.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.InFlight)
	require.True(t, e.MaybeCommitted())

	_, err = wait(t, tx.OnError(err))
	require.NoError(t, err)
	require.NoError(t, set(t, engine, "b", "meanwhile"))
	v, err := wait(t, tx.Get([]byte("b")))
	require.NoError(t, err)
	require.Equal(t, "meanwhile", string(v))
	v, err = wait(t, tx.Get([]byte("a")))
	require.NoError(t, err)
	require.Empty(t, v)
	require.Empty(t, value(t, engine, "a"))
	require.NoError(t, plan.Land(t.Context()))
	require.Equal(t, "late", value(t, engine, "a"))
	tx.Set([]byte("c"), []byte("retry"))
	requireCode(t, kv.CodeNotCommitted, commit(t, tx)) // it read what has landed
	require.Equal(t, map[fault.Kind]int{fault.VersionChangedLate: 1}, plan.Counts())
}

// The retry makes the next commit after a late one. The seed decides whether the late commit lands before or after it,
// and both orders occur. In each order the second of two conflicting commits is refused.
func TestVersionChangedLateBeforeAndBehind(t *testing.T) {
	orders := make(map[string]int)
	for seed := range uint64(40) {
		plan := &fault.Plan{Seed: seed}
		engine, db := open(t, plan)
		plan.ForceNext(fault.VersionChangedLate)
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			require.Equal(t, a.N > 0, a.MaybeCommitted)
			require.Empty(t, value(t, engine, "a"), "not before the retry's reads: nobody commits in between")
			tx.Set([]byte("a"), fmt.Append(nil, a.N))
			return nil
		})
		require.NoError(t, err)
		for range 16 {
			require.NoError(t, set(t, db, "b", "next"))
		}
		orders[value(t, engine, "a")]++

		plan.ForceNext(fault.VersionChangedLate)
		_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			v, err := tx.Get([]byte("c")).Wait(t.Context())
			tx.Set([]byte("c"), append(v, 'x'))
			return err
		})
		require.NoError(t, err)
		require.NoError(t, plan.Land(t.Context()))
		c := value(t, engine, "c")
		require.Contains(t, []string{"x", "xx"}, c, "%s", plan) // once more if the retry came behind: it has no receipt
	}
	require.Positive(t, orders["0"], "the late commit landed last")
	require.Positive(t, orders["1"], "the retry did")
}

// OnError restarts after an injected 1039 alone: any other is the engine's, whose choice it stays, and a cancelled
// transaction stays cancelled.
func TestVersionChangedRetries(t *testing.T) {
	plan := &fault.Plan{}
	_, db := open(t, plan)
	changed := &kv.Error{Code: kv.CodeClusterVersionChanged}
	tx := begin(t, db)
	_, err := wait(t, tx.OnError(changed))
	requireCode(t, kv.CodeClusterVersionChanged, err)

	plan.ForceNext(fault.VersionChangedLost)
	tx = begin(t, db)
	tx.Set([]byte("a"), nil)
	requireCode(t, kv.CodeClusterVersionChanged, commit(t, tx))
	_, err = wait(t, tx.OnError(fmt.Errorf("wrapped: %w", changed)))
	require.NoError(t, err)
	_, err = wait(t, tx.OnError(changed))
	requireCode(t, kv.CodeClusterVersionChanged, err) // it was not injected

	plan.ForceNext(fault.VersionChangedLost)
	tx = begin(t, db)
	tx.Set([]byte("a"), nil)
	requireCode(t, kv.CodeClusterVersionChanged, commit(t, tx))
	tx.Cancel()
	_, err = wait(t, tx.OnError(changed))
	requireCode(t, kv.CodeTransactionCancelled, err)

	plan.ForceNext(fault.VersionChangedLost)
	tx = begin(t, db)
	tx.Set([]byte("a"), nil)
	requireCode(t, kv.CodeClusterVersionChanged, commit(t, tx))
	_, err = wait(t, tx.OnError(&kv.Error{Code: kv.CodeInvertedRange}))
	requireCode(t, kv.CodeInvertedRange, err)
}

// The retry has the options of its transaction.
func TestVersionChangedKeepsOptions(t *testing.T) {
	plan := &fault.Plan{}
	engine := embedded.OpenMemory(embedded.Options{})
	db := fault.Wrap(engine, plan)
	defer func() { require.NoError(t, db.Close()) }()
	plan.ForceNext(fault.VersionChangedLost)
	n := 0
	_, err := kv.Run(context.Background(), db, kv.TxOptions{SizeLimit: 1000}, func(tx kv.Tx, a kv.Attempt) error {
		n = a.N
		tx.Set([]byte("a"), make([]byte, a.N*2000))
		return nil
	})
	requireCode(t, kv.CodeTransactionTooLarge, err)
	require.Equal(t, 1, n)
}
