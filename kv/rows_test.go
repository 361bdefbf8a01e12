package kv_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// TestRows: Rows yields all pairs of the range and no others, in the order of their keys, whatever number of pages they
// fill. It ends when its reader stops. If it cannot read, it yields an error.
func TestRows(t *testing.T) {
	for _, n := range []int{0, 1, 999, 1000, 1001, 2000, 2500} {
		db := embedded.OpenMemory(embedded.Options{})
		defer func() { require.NoError(t, db.Close()) }()
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set([]byte("a"), nil)
			tx.Set([]byte("c"), nil)
			for i := range n {
				tx.Set(binary.BigEndian.AppendUint32([]byte("b"), uint32(i)), []byte{byte(i)})
			}
			return nil
		})
		require.NoError(t, err)
		i := 0
		for row, err := range kv.Rows(t.Context(), db, kv.PrefixRange([]byte("b"))) {
			require.NoError(t, err)
			require.Equal(t, binary.BigEndian.AppendUint32([]byte("b"), uint32(i)), row.Key)
			require.Equal(t, []byte{byte(i)}, row.Value)
			i++
		}
		require.Equal(t, n, i)
	}
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set([]byte("b1"), nil)
		tx.Set([]byte("b2"), nil)
		return nil
	})
	require.NoError(t, err)
	for row, err := range kv.Rows(t.Context(), db, kv.PrefixRange([]byte("b"))) {
		require.NoError(t, err)
		require.Equal(t, []byte("b1"), row.Key)
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	errs := 0
	for row, err := range kv.Rows(ctx, db, kv.PrefixRange([]byte("b"))) {
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, row.Key)
		errs++
	}
	require.Equal(t, 1, errs)
}
