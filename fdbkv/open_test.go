package fdbkv_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/fdbkv"
	"fdbfifo/kv"
)

func clusterFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fdb.cluster")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// silentAddress returns an address where connections are accepted and nothing is ever answered.
func silentAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l.Addr().String()
}

// unreachable opens a cluster that never answers.
func unreachable(t *testing.T) *fdbkv.DB {
	t.Helper()
	db, err := fdbkv.Open(clusterFile(t, "nobody:home@"+silentAddress(t)+"\n"))
	require.NoError(t, err)
	return db
}

// TestOpenSaysWhatIsWrongWithAFile: missing, not a file, and all the ways of not being a connection string.
func TestOpenSaysWhatIsWrongWithAFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.cluster")
	_, err := fdbkv.Open(missing)
	require.ErrorIs(t, err, fdbkv.ErrNoClusterFile)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, missing)

	_, err = fdbkv.Open(t.TempDir())
	require.ErrorIs(t, err, fdbkv.ErrClusterFile)

	for name, text := range map[string]string{
		"empty":          "",
		"comment only":   "# nothing\n",
		"no coordinator": "a:b@\n",
		"no port":        "a:b@127.0.0.1\n",
		"no id":          "a@127.0.0.1:4500\n",
		"no description": ":b@127.0.0.1:4500\n",
		"two lines":      "a:b@127.0.0.1:4500\nc:d@127.0.0.1:4501\n",
		"binary":         "\x00\x01\x02",
		"bad id":         "a:b-c@127.0.0.1:4500\n",
		"trailing comma": "a:b@127.0.0.1:4500,\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := clusterFile(t, text)
			_, err := fdbkv.Open(path)
			require.ErrorIs(t, err, fdbkv.ErrClusterFile)
			require.ErrorContains(t, err, path)
		})
	}
}

// TestOpenTakesEveryFormOfAConnectionString that the client knows.
func TestOpenTakesEveryFormOfAConnectionString(t *testing.T) {
	address := silentAddress(t)
	for _, text := range []string{
		"a:b@" + address,
		"# a comment\n\n  a_1:b2@" + address + "  # another\n",
		"a:b@" + address + ",127.0.0.1:1,[::1]:1\n",
		"a:b@" + address + ",localhost:1\n",
		"a:b@" + address + ",127.0.0.1:1:tls\n",
	} {
		_, err := fdbkv.Open(clusterFile(t, text))
		require.NoError(t, err, text)
	}
}

// TestOpenLooksWhereTheClientDoes: an empty name means FDB_CLUSTER_FILE, and a name that is set is not passed over.
func TestOpenLooksWhereTheClientDoes(t *testing.T) {
	require.NoError(t, open(t).Ping(t.Context()))
	missing := filepath.Join(t.TempDir(), "none.cluster")
	t.Setenv(fdbkv.ClusterFileVariable, missing)
	_, err := fdbkv.Open("")
	require.ErrorIs(t, err, fdbkv.ErrNoClusterFile)
	require.ErrorContains(t, err, missing)

	require.NoError(t, os.Unsetenv(fdbkv.ClusterFileVariable))
	here := clusterFile(t, "not a cluster file")
	t.Chdir(filepath.Dir(here))
	_, err = fdbkv.Open("")
	require.ErrorIs(t, err, fdbkv.ErrClusterFile)
}

// TestPingNamesAnUnreachableCluster within the time it was given, by file and coordinators.
func TestPingNamesAnUnreachableCluster(t *testing.T) {
	address := silentAddress(t)
	path := clusterFile(t, "nobody:home@"+address)
	db, err := fdbkv.Open(path)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err = db.Ping(ctx)
	require.ErrorIs(t, err, fdbkv.ErrUnreachable)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, address)
}

// TestPingEndsWithItsContext, and returns the caller's cause rather than a verdict on the cluster.
func TestPingEndsWithItsContext(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	err := unreachable(t).Ping(ctx)
	require.ErrorIs(t, err, cause)
	require.NotErrorIs(t, err, fdbkv.ErrUnreachable)
}

// TestWaitsEndWithTheirContext on a cluster that never answers; the transaction's own time-out works too.
func TestWaitsEndWithTheirContext(t *testing.T) {
	db := unreachable(t)
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	defer tx.Cancel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	tx.Set([]byte("a"), nil)
	_, err = tx.Get([]byte("b")).Wait(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = tx.GetKey(kv.LastLessThan([]byte("b"))).Wait(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = tx.Commit().Wait(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	_, err = kv.Run(t.Context(), db, kv.TxOptions{Timeout: 100 * time.Millisecond}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set([]byte("a"), nil)
		return nil
	})
	var e *kv.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, kv.CodeTransactionTimedOut, e.Code)
	require.True(t, e.InFlight)
}

// TestClose: no transaction begins, and none commits, on a closed DB; others on the same cluster go on.
func TestClose(t *testing.T) {
	db, other := open(t), open(t)
	p := prefix(t, other)
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	tx.Set(key(p, "a"), []byte("1"))
	require.NoError(t, db.Close())
	require.NoError(t, db.Close())
	_, err = tx.Commit().Wait(t.Context())
	require.Equal(t, kv.CodeTransactionCancelled, kv.Code(err))
	require.ErrorIs(t, err, fdbkv.ErrClosed)
	_, err = db.Begin(kv.TxOptions{})
	require.ErrorIs(t, err, fdbkv.ErrClosed)
	require.ErrorIs(t, db.Ping(t.Context()), fdbkv.ErrClosed)
	require.Empty(t, get(t, other, key(p, "a")))
}
