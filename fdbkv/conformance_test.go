package fdbkv_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/apple/foundationdb/bindings/go/src/fdb"
	"github.com/stretchr/testify/require"

	"fdbfifo/fdbkv"
	"fdbfifo/fdbkv/internal/cluster"
	"fdbfifo/kv/kvtest"
)

// TestConformance: every promise of kv holds on a cluster.
func TestConformance(t *testing.T) {
	const maxWatches = 100
	handle := ownHandle(t)
	require.NoError(t, handle.Options().SetMaxWatches(maxWatches))
	kvtest.Run(t, func(t *testing.T) kvtest.Engine {
		db := fdbkv.From(handle)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return kvtest.Engine{DB: db, MaxWatches: maxWatches}
	})
}

// ownHandle opens the tests' cluster by another spelling of its file's name: for the same name the binding returns
// the handle that Open uses.
func ownHandle(t *testing.T) fdb.Database {
	t.Helper()
	file := os.Getenv(cluster.FileVariable)
	db, err := fdb.OpenDatabase(filepath.Dir(file) + "/./" + filepath.Base(file))
	require.NoError(t, err)
	return db
}
