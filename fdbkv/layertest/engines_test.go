// The layer's tests on a FoundationDB cluster: the files of ../../layer, linked, and the cluster in place of the
// embedded engines.
package layer_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// tenantsDisabled is the client's error on a cluster that has no tenants.
const tenantsDisabled = 2136

// anyEngine opens a new tenant: a key space of its own on the cluster, empty, and deleted with the test.
func anyEngine(t *testing.T) kv.DB {
	handle, err := fdb.OpenDatabase(os.Getenv(cluster.FileVariable))
	require.NoError(t, err)
	name := fdb.Key("fdbfifo-test-" + uuid.NewString())
	if err := handle.CreateTenant(name); errors.Is(err, fdb.Error{Code: tenantsDisabled}) {
		t.Skip("the cluster has no tenants to run tests in: fdbcli --exec 'configure tenant_mode=optional_experimental'")
	} else {
		require.NoError(t, err)
	}
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
		return m.Run()
	}))
}

// TestEveryTestIsLinked: a new file of the layer's tests is not forgotten here.
func TestEveryTestIsLinked(t *testing.T) {
	files, err := filepath.Glob("../../layer/*_test.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		name := filepath.Base(file)
		if name == "engines_test.go" || name == "example_test.go" || strings.HasSuffix(name, "_internal_test.go") {
			continue // the examples are of the embedded engine; what is inside the package stays there
		}
		target, err := os.Readlink(name)
		require.NoError(t, err, "link it: ln -s %s fdbkv/layertest/", file)
		require.Equal(t, filepath.FromSlash(file), target)
	}
}
