package layer

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
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
