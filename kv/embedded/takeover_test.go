//go:build linux || darwin

package embedded

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCloseDuringATakeover: a process that is about to take over a folder reads the whole file first. Close ends that
// reading, and the folder is free for another process.
func TestCloseDuringATakeover(t *testing.T) {
	path := t.TempDir()
	db := openHere(t, path, Options{})
	change(t, db, "a", "1")
	require.NoError(t, db.Close())
	d, err := openDir(path)
	require.NoError(t, err)
	file, err := d.lock()
	require.NoError(t, err)
	f := &folder{path: path, is: d.info, options: Options{}.withDefaults()}
	closed, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.serve(closed, &folderLock{file, d}, new(seen))
	require.ErrorIs(t, err, context.Canceled)
	next := openHere(t, path, Options{})
	require.True(t, next.Serves())
	require.Equal(t, "1", look(t, next, "a"))
}
