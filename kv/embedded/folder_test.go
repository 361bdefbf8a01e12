package embedded_test

import (
	"path/filepath"
	"testing"

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
