package kv_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

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

// slow is an engine on which a read of more than ten pairs outlives its transaction.
type slow struct{ kv.DB }

type slowTx struct{ kv.ManagedTx }

type slowReads struct{ kv.ReadTx }

func (d slow) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return slowTx{tx}, err
}

func (t slowTx) Snapshot() kv.ReadTx { return slowReads{t.ManagedTx.Snapshot()} }

func (t slowReads) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	if o.Limit > 10 {
		return kv.Done[[]kv.KV](nil, &kv.Error{Code: kv.CodeTransactionTooOld})
	}
	return t.ReadTx.GetRange(r, o)
}

// TestRowsOfASlowEngine: if a page takes longer than a transaction lasts, Rows reads smaller pages, and yields all
// pairs.
func TestRowsOfASlowEngine(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		for i := range 25 {
			tx.Set([]byte{byte(i)}, nil)
		}
		return nil
	})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := 0
	for row, err := range kv.Rows(ctx, slow{db}, kv.PrefixRange(nil)) {
		require.NoError(t, err)
		require.Equal(t, []byte{byte(n)}, row.Key)
		n++
	}
	require.Equal(t, 25, n)
}
