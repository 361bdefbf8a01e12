package layer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// TestDropAgainstASlowReadVersion: a transaction that found the configuration fresh when it was begun, but got its read
// version only after the queue was dropped, looks again at its end.
func TestDropAgainstASlowReadVersion(t *testing.T) {
	t.Parallel()
	ctx, now := t.Context(), time.UnixMilli(1_700_000_000_000)
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	q, err := Create(ctx, db, nil, "q", Options{Now: func() time.Time { return now }})
	require.NoError(t, err)
	begin := func() kv.ManagedTx {
		tx, err := db.Begin(kv.TxOptions{})
		require.NoError(t, err)
		t.Cleanup(tx.Cancel)
		return tx
	}
	w := q.txn(ctx, begin())
	require.Nil(t, w.follow.stored, "the configuration is fresh")
	require.NoError(t, Drop(ctx, db, nil, "q", DropOptions{}))
	now = now.Add(dropGrace)
	w.tx = begin() // as if its read version had taken so long
	require.ErrorIs(t, w.finish(), ErrNoQueue)

	// Within the limit there is no need to look: then the read version is older than the last step of the drop.
	require.Less(t, followLimit, dropGrace)
	require.Less(t, followAge, followLimit)
}
