package embedded_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
)

// TestLinkedFile: no process follows a link in the place of the file, to a database or to nothing. The target of the
// link stays as it is. The path of the folder may have links.
func TestLinkedFile(t *testing.T) {
	home := t.TempDir()
	other, path := filepath.Join(home, "other"), filepath.Join(home, "db")
	db := openDisk(t, other, embedded.Options{})
	put(t, db, "a", "1")
	require.NoError(t, db.Close())
	require.NoError(t, os.Mkdir(path, 0o700))
	before := contents(t, other)
	for _, target := range []string{filepath.Join(other, "kv.bbolt"), filepath.Join(other, "none")} {
		require.NoError(t, os.Symlink(target, filepath.Join(path, "kv.bbolt")))
		for _, o := range []embedded.Options{{}, {Exclusive: true}, {ReadOnly: true}} {
			_, err := embedded.OpenDisk(path, o)
			require.ErrorContains(t, err, "symbolic link")
			require.ErrorContains(t, err, path)
		}
		require.NoError(t, os.Remove(filepath.Join(path, "kv.bbolt")))
	}
	require.Equal(t, before, contents(t, other))

	require.NoError(t, os.Mkdir(filepath.Join(path, "kv.bbolt"), 0o700))
	_, err := embedded.OpenDisk(path, embedded.Options{})
	require.ErrorContains(t, err, "not a regular file")

	require.NoError(t, os.Symlink(other, filepath.Join(home, "link")))
	require.Equal(t, "1", read(t, openDisk(t, filepath.Join(home, "link"), embedded.Options{}), "a"))
}

// TestStaleServer: a process closes after its folder was removed or moved, and another process has made a new folder at
// the path. The close removes nothing from the new folder.
func TestStaleServer(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("no socket here")
	}
	for name, away := range map[string]func(path string) error{
		"removed": removeFolder,
		"moved":   func(path string) error { return os.Rename(path, path+".old") },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "db")
			stale, err := embedded.OpenDisk(path, embedded.Options{})
			require.NoError(t, err)
			require.NoError(t, away(path))
			server, client := pair(t, path)
			require.NoError(t, stale.Close())
			require.NoError(t, client.Close())
			put(t, server, "a", "1")
			later := openDisk(t, path, embedded.Options{})
			require.False(t, later.Serves())
			require.Equal(t, "1", read(t, later, "a"))
		})
	}
}
