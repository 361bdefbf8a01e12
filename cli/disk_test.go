package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// onDisk runs a command line as a user does and returns its streams and exit code.
func onDisk(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	err := Run(context.Background(), args, nil, &out, &errs)
	return out.String(), errs.String(), ExitCode(err)
}

// What one command enqueues another finds: the default engine keeps queues in the user's data directory, and
// says so when it is made.
func TestDefaultFolder(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_DATA_HOME", home)

	_, stderr, code := onDisk("stats")
	require.Equal(t, ExitNoQueue, code)
	require.Contains(t, stderr, "there are no queues in")
	require.NoDirExists(t, filepath.Join(home, "fdbfifo"), "a read-only command has made a folder")

	_, stderr, code = onDisk("enqueue", "--group", "a", "--body", "hello")
	require.Equal(t, ExitOK, code, stderr)
	require.Contains(t, stderr, "queues are kept in "+filepath.Join(home, "fdbfifo"))

	stdout, stderr, code := onDisk("peek", "--group", "a")
	require.Equal(t, ExitOK, code)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "hello")
}

// Without XDG_DATA_HOME, or with one that is not absolute, the folder is the one the XDG rules name.
func TestDataFolder(t *testing.T) {
	t.Setenv("HOME", "/home/someone")
	for _, base := range []string{"", "relative"} {
		t.Setenv("XDG_DATA_HOME", base)
		folder, err := dataFolder()
		require.NoError(t, err)
		require.Equal(t, "/home/someone/.local/share/fdbfifo", folder)
	}
}

// The command works on a folder that a program has open, and the program sees what the command did.
func TestFolderInUse(t *testing.T) {
	folder := t.TempDir()
	db, err := embedded.OpenDisk(folder, embedded.Options{})
	require.NoError(t, err)
	defer db.Close()
	_, stderr, code := onDisk("enqueue", "--group", "a", "--body", "x", "--engine", "disk:"+folder)
	require.Equal(t, ExitOK, code, stderr)
	stdout, stderr, code := onDisk("peek", "--group", "a", "--engine", "disk:"+folder)
	require.Equal(t, ExitOK, code, stderr)
	require.Contains(t, stdout, "x")
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	rows, err := tx.GetRange(kv.PrefixRange(nil).Selectors(), kv.RangeOptions{}).Wait(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, rows)
}

// A second process on a folder that a program has for itself is told so, and what to do.
func TestFolderExclusive(t *testing.T) {
	folder := t.TempDir()
	db, err := embedded.OpenDisk(folder, embedded.Options{Exclusive: true})
	require.NoError(t, err)
	defer db.Close()
	_, stderr, code := onDisk("enqueue", "--body", "x", "--engine", "disk:"+folder)
	require.Equal(t, ExitFailed, code)
	require.Contains(t, stderr, "does not share the folder")
}

// A file that is no database is named, and left as it is.
func TestCorruptFile(t *testing.T) {
	folder := t.TempDir()
	_, stderr, code := onDisk("enqueue", "--body", "x", "--engine", "disk:"+folder)
	require.Equal(t, ExitOK, code, stderr)
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, files, 1)
	name := filepath.Join(folder, files[0].Name())
	garbage := bytes.Repeat([]byte("garbage "), 8192)
	require.NoError(t, os.WriteFile(name, garbage, 0o600))

	_, stderr, code = onDisk("stats", "--engine", "disk:"+folder)
	require.Equal(t, ExitFailed, code)
	require.Contains(t, stderr, "Restore it from a copy")
	after, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, garbage, after)
}

// A path through a file cannot be a folder.
func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, stderr, code := onDisk("enqueue", "--body", "x", "--engine", "disk:"+filepath.Join(file, "queues"))
	require.Equal(t, ExitFailed, code)
	require.Contains(t, stderr, file)
}
