package fdbkv_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/apple/foundationdb/bindings/go/src/fdb"
	"github.com/stretchr/testify/require"

	"fdbfifo/fdbkv"
	"fdbfifo/fdbkv/internal/cluster"
)

// TestMain runs the package's tests on the cluster of FDB_CLUSTER_FILE, or on one of its own. Without either it says
// SKIP and passes.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	if os.Getenv(cluster.FileVariable) == "" {
		c, err := cluster.Start(context.Background())
		if errors.Is(err, cluster.ErrNoBinaries) {
			fmt.Printf("SKIP fdbkv: FDB_CLUSTER_FILE is not set, and %v\n", cluster.ErrNoBinaries)
			return 0
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		defer func() {
			if err := c.Stop(); err != nil {
				fmt.Println("stopping the cluster:", err)
				code = 1
			}
		}()
		if err := os.Setenv(cluster.FileVariable, c.File); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	// Before an API version is chosen, which cannot be undone.
	if _, err := fdbkv.Open(""); !errors.Is(err, fdbkv.ErrAPIVersion) {
		fmt.Printf("Open without an API version: got %v, want %v\n", err, fdbkv.ErrAPIVersion)
		return 1
	}
	fdb.MustAPIVersion(730)
	return m.Run()
}

// open opens the tests' cluster.
func open(t *testing.T) *fdbkv.DB {
	t.Helper()
	db, err := fdbkv.Open("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
