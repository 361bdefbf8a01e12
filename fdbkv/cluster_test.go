package fdbkv_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/apple/foundationdb/bindings/go/src/fdb"
	"github.com/stretchr/testify/require"

	"fdbfifo/fdbkv"
	"fdbfifo/fdbkv/internal/cluster"
)

func TestMain(m *testing.M) {
	os.Exit(cluster.Tests(func() int {
		// Before an API version is chosen, which cannot be undone.
		if _, err := fdbkv.Open(""); !errors.Is(err, fdbkv.ErrAPIVersion) {
			fmt.Printf("Open without an API version: got %v, want %v\n", err, fdbkv.ErrAPIVersion)
			return 1
		}
		fdb.MustAPIVersion(730)
		return m.Run()
	}))
}

// open opens the tests' cluster.
func open(t *testing.T) *fdbkv.DB {
	t.Helper()
	db, err := fdbkv.Open("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
