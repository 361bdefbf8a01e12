// The layer's tests on a FoundationDB cluster: the files of ../../layer, linked, and the cluster in place of the
// embedded engines.
package layer_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/apple/foundationdb/bindings/go/src/fdb"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/fdbkv"
	"fdbfifo/fdbkv/internal/cluster"
	"fdbfifo/kv"
)

type engine struct {
	name   string
	open   func(t *testing.T) kv.DB // an empty one; newEnv closes it
	faults bool
}

func engines() []engine {
	return []engine{{"cluster", anyEngine, false}, {"cluster with faults", anyEngine, true}}
}

// anyEngine opens a new tenant: a key space of its own on the cluster, empty, and deleted with the test.
func anyEngine(t *testing.T) kv.DB {
	handle, err := fdb.OpenDatabase(os.Getenv(cluster.FileVariable))
	require.NoError(t, err)
	name := fdb.Key("fdbfifo-test-" + uuid.NewString())
	require.NoError(t, handle.CreateTenant(name))
	tenant, err := handle.OpenTenant(name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := tenant.Transact(func(tr fdb.Transaction) (any, error) {
			tr.ClearRange(fdb.KeyRange{Begin: fdb.Key{}, End: fdb.Key{0xff}})
			return nil, nil
		})
		require.NoError(t, err)
		require.NoError(t, handle.DeleteTenant(name))
	})
	return fdbkv.FromTenant(tenant)
}

func TestMain(m *testing.M) {
	os.Exit(cluster.Tests(func() int {
		fdb.MustAPIVersion(730)
		if err := tenants(); err != nil {
			fmt.Println(err)
			return 1
		}
		return m.Run()
	}))
}

// tenants finds out whether there can be any: a cluster without them must not look as if it had passed.
func tenants() error {
	handle, err := fdb.OpenDatabase(os.Getenv(cluster.FileVariable))
	if err != nil {
		return err
	}
	name := fdb.Key("fdbfifo-test-" + uuid.NewString())
	if err := handle.CreateTenant(name); err != nil {
		return fmt.Errorf("no tenant to run tests in (fdbcli --exec 'configure tenant_mode=optional_experimental'): %w", err)
	}
	return handle.DeleteTenant(name)
}
