package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// TestFolderNames: a folder of any name can be open in two DBs, for example one with a bracket, which is a pattern to
// filepath.Glob.
func TestFolderNames(t *testing.T) {
	for _, name := range []string{"a[b", "a b", "ä*?"} {
		path := filepath.Join(t.TempDir(), name)
		server, err := embedded.OpenDisk(path, embedded.Options{})
		require.NoError(t, err)
		client, err := embedded.OpenDisk(path, embedded.Options{})
		require.NoError(t, err, name)
		_, err = kv.Run(t.Context(), client, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set([]byte("k"), []byte("v"))
			return nil
		})
		require.NoError(t, err, name)
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	}
}

// TestFolderPathLengths: a folder with a path of any length can be open in two DBs, though a system bounds the length
// of a socket's name.
func TestFolderPathLengths(t *testing.T) {
	base, err := os.MkdirTemp("", "l")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	for length := max(len(base)+2, 50); length < 130; length++ {
		path := filepath.Join(base, strings.Repeat("x", length-len(base)-1))
		server, err := embedded.OpenDisk(path, embedded.Options{})
		require.NoError(t, err, length)
		client, err := embedded.OpenDisk(path, embedded.Options{})
		require.NoError(t, err, length)
		require.False(t, client.Serves(), length)
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	}
}

// TestTakeoverIsOfTheSameFolder: when the serving process ends, its clients continue with the folder that they have
// opened. It is found again after the program has changed its working directory. Another folder that is at the path by
// then has another database: no client reads it or writes to it.
func TestTakeoverIsOfTheSameFolder(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("no socket here")
	}
	home, away := t.TempDir(), t.TempDir()
	t.Chdir(home)
	server, client := pair(t, "db")
	put(t, server, "a", "1")
	t.Chdir(away)
	other := openDisk(t, "db", embedded.Options{})
	require.NoError(t, server.Close())
	require.Equal(t, "1", read(t, client, "a"))
	require.True(t, client.Serves())

	late := openDisk(t, filepath.Join(home, "db"), embedded.Options{})
	require.NoError(t, os.Rename(filepath.Join(home, "db"), filepath.Join(home, "old")))
	require.NoError(t, other.Close())
	require.NoError(t, os.Rename("db", filepath.Join(home, "db")))
	require.NoError(t, client.Close())
	require.Eventually(t, func() bool {
		_, err := waitErr(t, begin(t, late).Get([]byte("a")))
		return kv.Code(err) == kv.CodeIOError && strings.Contains(err.Error(), "another folder is at the path now")
	}, patience, time.Millisecond)
	require.False(t, late.Serves())
}
