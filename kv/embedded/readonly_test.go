package embedded_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// contents is what lies in a folder: names, modes, times of writing, and bytes.
func contents(t *testing.T, path string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	require.NoError(t, filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		found[name] = info.Mode().String() + info.ModTime().String()
		if d.Type().IsRegular() {
			text, err := os.ReadFile(name)
			found[name] += string(text)
			return err
		}
		return nil
	}))
	return found
}

// TestReadOnlyFolder: a copy without write permission can be read, by several at once; what writes is refused, and
// nothing is left in the folder. By its modes the folder is read-only for root too.
func TestReadOnlyFolder(t *testing.T) {
	path := t.TempDir()
	db := openDisk(t, path, embedded.Options{})
	put(t, db, "a", "1")
	require.NoError(t, db.Close())
	_, readOnly := embedded.ReadOnly(path)
	require.False(t, readOnly)
	name := filepath.Join(path, "kv.bbolt")
	require.NoError(t, os.Chmod(name, 0o400))
	_, readOnly = embedded.ReadOnly(path)
	require.True(t, readOnly, "the file")
	require.NoError(t, os.Chmod(name, 0o600))
	require.NoError(t, os.Chmod(path, 0o500))
	t.Cleanup(func() { require.NoError(t, os.Chmod(path, 0o700)) })
	_, readOnly = embedded.ReadOnly(path)
	require.True(t, readOnly, "the folder")
	require.NoError(t, os.Chmod(name, 0o400))
	info, err := os.Stat(name)
	require.NoError(t, err)
	before := contents(t, path)

	one := openDisk(t, path, embedded.Options{ReadOnly: true})
	other := openDisk(t, path, embedded.Options{ReadOnly: true})
	written, readOnly := embedded.ReadOnly(path)
	require.True(t, readOnly)
	require.Equal(t, info.ModTime(), written)
	for _, db := range []*embedded.DB{one, other} {
		require.Equal(t, "1", read(t, db, "a"))
		tx := begin(t, db)
		tx.Set([]byte("a"), []byte("2"))
		require.Equal(t, "2", string(wait(t, tx.Get([]byte("a")))), "its own write")
		stamp := tx.Versionstamp()
		_, err := waitErr(t, tx.Commit())
		require.Equal(t, kv.CodeTransactionReadOnly, kv.Code(err))
		require.ErrorIs(t, err, embedded.ErrReadOnly)
		require.Contains(t, err.Error(), path)
		requireCode(t, kv.CodeTransactionInvalidVer, stamp)
		tx = begin(t, db)
		require.Equal(t, "1", string(wait(t, tx.Get([]byte("a")))))
		wait(t, tx.Commit()) // it writes nothing
		require.Equal(t, "1", read(t, db, "a"))
	}
	_, err = kv.Run(t.Context(), one, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Clear([]byte("a"))
		return nil
	})
	require.ErrorIs(t, err, embedded.ErrReadOnly, "not tried for ever")
	require.Equal(t, before, contents(t, path))
}

// TestReadOnlyWithout: a read-only open makes neither a missing folder nor a missing database. It returns ErrLocked if
// another process writes in the folder, and ErrCorrupt if the database is damaged.
func TestReadOnlyWithout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	_, err := embedded.OpenDisk(path, embedded.Options{ReadOnly: true})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoDirExists(t, path)
	require.NoError(t, os.Mkdir(path, 0o500))
	_, err = embedded.OpenDisk(path, embedded.Options{ReadOnly: true})
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, readOnly := embedded.ReadOnly(path)
	require.False(t, readOnly, "no database")

	path = t.TempDir()
	db := openDisk(t, path, embedded.Options{})
	_, err = embedded.OpenDisk(path, embedded.Options{ReadOnly: true})
	require.ErrorIs(t, err, embedded.ErrLocked)
	require.NoError(t, db.Close())
	require.NoError(t, os.WriteFile(filepath.Join(path, "kv.bbolt"), make([]byte, 8192), 0o400))
	_, err = embedded.OpenDisk(path, embedded.Options{ReadOnly: true})
	require.ErrorIs(t, err, embedded.ErrCorrupt)
}

// TestReadOnlyForLong: a folder that is open for reading alone can be read for as long as it is open. Its versions
// grow, and are not stored.
func TestReadOnlyForLong(t *testing.T) {
	path := t.TempDir()
	db := openDisk(t, path, embedded.Options{})
	put(t, db, "a", "1")
	require.NoError(t, db.Close())
	before, clock := contents(t, path), newManualClock()
	db = openDisk(t, path, embedded.Options{ReadOnly: true, Clock: clock})
	last := int64(0)
	for range 5 {
		v := wait(t, begin(t, db).ReadVersion())
		require.Greater(t, v, last)
		require.Equal(t, "1", read(t, db, "a"))
		last = v
		clock.Advance(20 * time.Second)
	}
	require.Equal(t, before, contents(t, path))
}

// TestReadOnlyPath: a folder that is open for reading alone keeps its path when the program changes its working
// directory. An empty path is no folder.
func TestReadOnlyPath(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	t.Chdir(home)
	require.NoError(t, os.Rename(withoutPair(t), "db"))
	db := openDisk(t, "db", embedded.Options{ReadOnly: true})
	_, err = embedded.OpenDisk("", embedded.Options{ReadOnly: true})
	require.ErrorIs(t, err, fs.ErrNotExist)
	t.Chdir(t.TempDir())
	require.Positive(t, db.Usage().FileSize)
	tx := begin(t, db)
	tx.Set([]byte("a"), nil)
	_, err = waitErr(t, tx.Commit())
	require.ErrorIs(t, err, embedded.ErrReadOnly)
	require.ErrorContains(t, err, filepath.Join(home, "db"))
}

// TestReadOnlyIsCutOff: the file is truncated after it was opened for reading alone, and before the first read. Each
// read fails with 1510, and Close says that the file stays locked. No call waits for a lock that stays held.
func TestReadOnlyIsCutOff(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no file is truncated while it is open")
	}
	path := withoutPair(t)
	db, err := embedded.OpenDisk(path, embedded.Options{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(fileOf(path), 0))
	ended := make(chan error)
	go func() {
		for range 2 {
			tx, err := db.Begin(kv.TxOptions{})
			if err == nil {
				_, err = tx.Get([]byte("a")).Wait(t.Context())
			}
			ended <- err
		}
		ended <- db.Close()
	}()
	next := func() error {
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			require.Fail(t, "the call has not ended")
			return nil
		}
	}
	for range 2 {
		err := next()
		require.Equal(t, kv.CodeIOError, kv.Code(err), "%v", err)
	}
	require.ErrorContains(t, next(), "stays locked until this process ends")
}
