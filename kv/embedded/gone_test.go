package embedded_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// removeFolder removes a folder in use. The process that serves makes its socket again once a second, perhaps between
// the removal of the files and that of the folder.
func removeFolder(path string) error {
	for {
		if err := os.RemoveAll(path); !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
}

// takings are the ways in which an operator takes the open database away. A taking gets the folder and an older copy of
// its file. back undoes the taking; nil = it cannot be undone while the folder is open.
var takings = map[string]struct {
	away func(t *testing.T, path string, older []byte) error
	back func(path string) error
}{
	"folder removed": {func(_ *testing.T, path string, _ []byte) error { return removeFolder(path) }, nil},
	"folder moved": {
		func(_ *testing.T, path string, _ []byte) error { return os.Rename(path, path+".old") },
		func(path string) error { return os.Rename(path+".old", path) },
	},
	"file in the place of the folder": {
		func(_ *testing.T, path string, _ []byte) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
		},
		func(path string) error { return errors.Join(os.Remove(path), os.Rename(path+".old", path)) },
	},
	"another folder": {
		func(t *testing.T, path string, _ []byte) error {
			return errors.Join(os.Rename(path, path+".old"), os.Rename(withoutPair(t), path))
		},
		func(path string) error { return errors.Join(os.RemoveAll(path), os.Rename(path+".old", path)) },
	},
	"file removed": {func(_ *testing.T, path string, _ []byte) error { return os.Remove(fileOf(path)) }, nil},
	"file moved": {
		func(_ *testing.T, path string, _ []byte) error { return os.Rename(fileOf(path), path+".file") },
		func(path string) error { return os.Rename(path+".file", fileOf(path)) },
	},
	"older copy": {
		func(_ *testing.T, path string, older []byte) error {
			return errors.Join(os.Rename(fileOf(path), path+".file"), os.WriteFile(fileOf(path), older, 0o600))
		},
		func(path string) error { return os.Rename(path+".file", fileOf(path)) },
	},
	"today's copy": {
		func(_ *testing.T, path string, _ []byte) error {
			today, err := os.ReadFile(fileOf(path))
			return errors.Join(err, os.Rename(fileOf(path), path+".file"), os.WriteFile(fileOf(path), today, 0o600))
		},
		func(path string) error { return os.Rename(path+".file", fileOf(path)) },
	},
	"older copy in place": {func(_ *testing.T, path string, older []byte) error {
		return os.WriteFile(fileOf(path), older, 0o600)
	}, nil},
}

func fileOf(path string) string { return filepath.Join(path, "kv.bbolt") }

// takeAway opens a folder in two DBs, commits, and takes the database away. The newest commit is known to the client
// by the way that told says.
func takeAway(t *testing.T, name, told string) (path string, server, client *embedded.DB) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "db")
	server, client = pair(t, path)
	put(t, server, "a", "1")
	require.Equal(t, "1", read(t, client, "a"))
	older, err := os.ReadFile(fileOf(path))
	require.NoError(t, err)
	switch told {
	case "by its commit":
		put(t, client, "a", "2")
	case "by its read":
		put(t, server, "a", "2")
		require.Equal(t, "2", read(t, client, "a"))
	case "at the end":
		put(t, server, "a", "2")
	}
	require.NoError(t, takings[name].away(t, path, older))
	return path, server, client
}

// requireGone requires that the DB neither reads nor writes, and that the error says why.
func requireGone(t *testing.T, db *embedded.DB) {
	t.Helper()
	tx := begin(t, db)
	tx.Set([]byte("a"), []byte("3"))
	_, err := waitErr(t, tx.Commit())
	for kv.MaybeCommitted(err) { // it was on its way to the process that has ended
		tx = begin(t, db)
		tx.Set([]byte("a"), []byte("3"))
		_, err = waitErr(t, tx.Commit())
	}
	require.Equal(t, kv.CodeIOError, kv.Code(err), "%v", err)
	require.ErrorIs(t, err, embedded.ErrGone)
	_, err = waitErr(t, begin(t, db).Get([]byte("a")))
	require.ErrorIs(t, err, embedded.ErrGone)
	require.False(t, db.Serves())
}

// TestNoTakeoverOfAnotherFile: the database is taken away while it is open, and the serving process ends. A client does
// not take over another file that is at the path, also not an older copy of its own: it reads nothing there, writes
// nothing, and makes no file. Its error is ErrGone until its own database is back.
func TestNoTakeoverOfAnotherFile(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("no socket here")
	}
	for name, taking := range takings {
		for _, told := range []string{"by its commit", "by its read", "at the end"} {
			t.Run(name+", told "+told, func(t *testing.T) {
				t.Parallel()
				path, server, client := takeAway(t, name, told)
				before, errBefore := os.ReadFile(fileOf(path))
				require.NoError(t, server.Close())
				requireGone(t, client)
				after, err := os.ReadFile(fileOf(path))
				require.Equal(t, errors.Is(errBefore, fs.ErrNotExist), errors.Is(err, fs.ErrNotExist), "%v", err)
				require.Equal(t, before, after)
				if taking.back == nil {
					return
				}
				require.NoError(t, taking.back(path))
				require.Eventually(t, client.Serves, patience, time.Millisecond)
				require.Equal(t, "2", read(t, client, "a"))
			})
		}
	}
}

// TestNoClientOfAnotherFile: after the database was taken away, a new process opens the folder as it is now. A client
// from before does not work on that database. It must be closed and opened again.
func TestNoClientOfAnotherFile(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("no socket here")
	}
	for name := range takings {
		if name == "file in the place of the folder" {
			continue // which cannot be opened
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, server, client := takeAway(t, name, "by its read")
			require.NoError(t, server.Close())
			requireGone(t, client)
			next := openDisk(t, path, embedded.Options{})
			require.True(t, next.Serves())
			put(t, next, "b", "1")
			requireGone(t, client)
			require.NoError(t, client.Close())
			client = openDisk(t, path, embedded.Options{})
			require.Equal(t, "1", read(t, client, "b"))
		})
	}
}
