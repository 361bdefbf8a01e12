// The layer's tests on a FoundationDB cluster: the files of ../../layer/layertest, linked, and the cluster in place of
// the embedded engines.
package layer_test

import (
	"errors"
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

// replay is the command that runs a test again with the same choices and faults.
func replay(t *testing.T, seed uint64) string {
	command := fmt.Sprintf("go test ./layertest -run '^%s$' -layer.seed %d", t.Name(), seed)
	return "cd fdbkv && go run ./testcluster -- " + command
}

// anyEngine opens a new tenant: a key space of its own on the cluster, empty, and deleted with the test.
func anyEngine(t *testing.T) kv.DB {
	handle, err := fdb.OpenDatabase(os.Getenv(cluster.FileVariable))
	require.NoError(t, err)
	name := fdb.Key("fdbfifo-test-" + uuid.NewString())
	require.NoError(t, done(handle.CreateTenant(name), tenantExists))
	tenant, err := handle.OpenTenant(name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := tenant.Transact(func(tr fdb.Transaction) (any, error) {
			tr.ClearRange(fdb.KeyRange{Begin: fdb.Key{}, End: fdb.Key{0xff}})
			return nil, nil
		})
		require.NoError(t, err)
		require.NoError(t, done(handle.DeleteTenant(name), noTenant))
	})
	return fdbkv.FromTenant(tenant)
}

// calmly runs a test that a pause of the process could make fail. A cluster needs real time.
func calmly(t *testing.T, test func(t *testing.T, open func(t *testing.T) kv.DB)) { test(t, anyEngine) }

// tooSlow reports whether the cluster has ended a transaction because its servers were too slow, or died.
func tooSlow(err error) bool {
	return kv.Code(err) == kv.CodeTransactionTooOld || kv.MaybeCommitted(err)
}

// The binding's answers to a retry after an unknown commit that was applied.
const (
	noTenant     = 2131
	tenantExists = 2132
)

// done is err, unless it says that it was done already: no two tests have a name in common.
func done(err error, already int) error {
	if errors.Is(err, fdb.Error{Code: already}) {
		return nil
	}
	return err
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
	if err := done(handle.CreateTenant(name), tenantExists); err != nil {
		return fmt.Errorf("no tenant to run tests in (fdbcli --exec 'configure tenant_mode=optional_experimental'): %w", err)
	}
	return done(handle.DeleteTenant(name), noTenant)
}
