package layer

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
)

// TestFailedOperationsKeepNoReceipts: a handle remembers no receipt of an operation that wrote none, so its memory does
// not grow with the number of failed operations, and receipts in the database are still found.
func TestFailedOperationsKeepNoReceipts(t *testing.T) {
	ctx := t.Context()
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	q, err := Create(ctx, db, nil, "q", Options{Test: &TestOptions{Seed: 1}})
	require.NoError(t, err)
	_, err = q.Enqueue(ctx, Message{Group: "A"})
	require.NoError(t, err)
	refused := errors.New("refused")
	for range 100 {
		require.ErrorIs(t, q.Once(ctx, func(kv.Tx) error { return refused }), refused)
		require.ErrorIs(t, q.Admin().Cancel(ctx, ID{Group: "A", Index: 1, Random: uuid.UUID{1}}), ErrNoItem)
		require.Panics(t, func() { _ = q.Once(ctx, func(kv.Tx) error { panic(refused) }) })
	}
	require.LessOrEqual(t, len(q.receipts.idle), 1)
	require.NoError(t, q.Close(ctx))
}

// TestOutageKeepsFewReceipts: in a long outage each operation may leave a receipt, and the handle does not remember
// them all. Those that it remembers are cleared when it closes; a sweep clears the others.
func TestOutageKeepsFewReceipts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, plan := t.Context(), &fault.Plan{}
		db := fault.Wrap(embedded.OpenMemory(embedded.Options{}), plan)
		defer func() { require.NoError(t, db.Close()) }()
		q, err := Create(ctx, db, nil, "q", Options{Test: &TestOptions{Seed: 1}, Tx: kv.TxOptions{Retries: 1}})
		require.NoError(t, err)
		for range mostReceipts + 500 {
			plan.ForceNext(fault.UnnamedApplied) // the outcome stays unknown
			err := q.Once(ctx, func(kv.Tx) error { return nil })
			require.True(t, kv.MaybeCommitted(err))
		}
		require.LessOrEqual(t, len(q.receipts.idle), mostReceipts)
		require.NoError(t, q.Close(ctx))
		time.Sleep(2 * receiptLife)
		q, err = Open(ctx, db, nil, "q", Options{})
		require.NoError(t, err)
		_, err = q.Admin().Sweep(ctx, SweepOptions{})
		require.NoError(t, err)
		report, err := q.Admin().Check(ctx, CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.LessOrEqual(t, report.Receipts, int64(2))
		require.NoError(t, q.Close(ctx))
	})
}
