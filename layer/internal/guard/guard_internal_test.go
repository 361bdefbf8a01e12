package guard

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

var key = []byte("key")

// pair is two transactions at the same read version. One writes the key, then the other, which reads the key, commits.
// One of them uses a method of the guard.
type pair struct {
	reads, writes func(t *testing.T, tx kv.Tx, g Guard)
}

func get(t *testing.T, tx kv.Tx, _ Guard) {
	_, err := tx.Get(key).Wait(t.Context())
	require.NoError(t, err)
}

func set(_ *testing.T, tx kv.Tx, _ Guard) { tx.Set(key, nil) }

// pairs has a pair for each method that adds a conflict.
var pairs = map[string]pair{
	"Read": {func(t *testing.T, tx kv.Tx, g Guard) { require.NoError(t, g.Read(tx, kv.SingleKey(key))) }, set},
	"Get": {func(t *testing.T, tx kv.Tx, g Guard) {
		_, err := g.Get(tx, key).Wait(t.Context())
		require.NoError(t, err)
	}, set},
	"Reads": {func(t *testing.T, tx kv.Tx, g Guard) {
		_, err := g.Reads(tx).Get(key).Wait(t.Context())
		require.NoError(t, err)
	}, set},
	"Write": {get, func(t *testing.T, tx kv.Tx, g Guard) { require.NoError(t, g.Write(tx, key)) }},
	"WriteRange": {get, func(t *testing.T, tx kv.Tx, g Guard) {
		require.NoError(t, g.WriteRange(tx, kv.SingleKey(key)))
	}},
}

// conflicts reports whether the transaction of the pair that reads must fail.
func (p pair) conflicts(t *testing.T, g Guard) bool {
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	begin := func() kv.ManagedTx {
		tx, err := db.Begin(kv.TxOptions{})
		require.NoError(t, err)
		_, err = tx.ReadVersion().Wait(t.Context())
		require.NoError(t, err)
		return tx
	}
	reader, writer := begin(), begin()
	p.writes(t, writer, g)
	_, err := writer.Commit().Wait(t.Context())
	require.NoError(t, err)
	p.reads(t, reader, g)
	reader.Set([]byte("another key"), nil) // a transaction that only reads has no conflicts
	if _, err = reader.Commit().Wait(t.Context()); err != nil {
		require.Equal(t, kv.CodeNotCommitted, kv.Code(err), "%v", err)
	}
	return err != nil
}

// TestMethods: each method of a guard adds a conflict.
func TestMethods(t *testing.T) {
	for name, p := range pairs {
		require.True(t, p.conflicts(t, Token), name)
	}
}

// TestErrorNamesGuard: an error of a conflict range names the guard.
func TestErrorNamesGuard(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	inverted := kv.KeyRange{Begin: []byte("b"), End: []byte("a")}
	require.ErrorContains(t, Token.Read(tx, inverted), "guard token: ")
	require.ErrorContains(t, Token.WriteRange(tx, inverted), "guard token: ")
}
