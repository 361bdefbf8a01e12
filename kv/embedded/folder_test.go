package embedded_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
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

// TestFileIsTakenAway: the folder, or the file in it, is removed, moved, replaced or overwritten while it is open. No
// further commit is acknowledged or written, and the error says why, to the clients of the process too. The folder can
// be opened again, with the data that lies there now.
func TestFileIsTakenAway(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no file is removed while it is open")
	}
	for name, c := range map[string]struct {
		away func(path string) error
		says string
	}{
		"folder": {removeFolder, "was removed while it was open"},
		"file": {func(path string) error {
			return os.Remove(filepath.Join(path, "kv.bbolt"))
		}, "was removed while it was open"},
		"copy": {func(path string) error {
			return os.Rename(filepath.Join(withoutPair(t), "kv.bbolt"), filepath.Join(path, "kv.bbolt"))
		}, "was replaced while it was open"},
		"copy in place": {func(path string) error {
			bytes, err := os.ReadFile(filepath.Join(withoutPair(t), "kv.bbolt"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(path, "kv.bbolt"), bytes, 0o600)
		}, "was overwritten while it was open"},
		"folder moved": {func(path string) error {
			return os.Rename(path, path+".old")
		}, "was moved or replaced while it was open"},
		"another folder": {func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.Rename(withoutPair(t), path))
		}, "was moved or replaced while it was open"},
	} {
		for _, exclusive := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "db")
			db := openDisk(t, path, embedded.Options{Exclusive: exclusive})
			handles := []*embedded.DB{db}
			if !exclusive && embedded.Sharable {
				handles = append(handles, openDisk(t, path, embedded.Options{}))
			}
			put(t, db, "a", "1")
			if exclusive {
				require.Equal(t, "1", read(t, db, "a")) // there is a snapshot that the commit need not take
			}
			require.NoError(t, c.away(path), name)
			for _, db := range handles {
				tx := begin(t, db)
				tx.Set([]byte("a"), []byte("2"))
				_, err := waitErr(t, tx.Commit())
				require.Equal(t, kv.CodeIOError, kv.Code(err), "%s: nothing was written", name)
				require.ErrorContains(t, err, c.says)
				require.ErrorIs(t, err, embedded.ErrGone)
				requireCode(t, kv.CodeIOError, begin(t, db).Get([]byte("a")))
			}
			for _, db := range slices.Backward(handles) {
				require.NoError(t, db.Close())
			}
			require.Empty(t, read(t, openDisk(t, path, embedded.Options{Exclusive: exclusive}), "a"), name)
		}
	}
}

// firstLook is a clock that calls do when it is read for the first time: while a folder is opened.
type firstLook struct {
	slowClock
	once sync.Once
	do   func()
}

func (c *firstLook) Now() time.Time {
	c.once.Do(c.do)
	return c.slowClock.Now()
}

// TestFileIsReplacedDuringTheOpening: another file takes the place of the database file while that one is opened. No
// commit is acknowledged, and nothing is written to either of them.
func TestFileIsReplacedDuringTheOpening(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no file is replaced while it is open")
	}
	path, other := withoutPair(t), withoutPair(t)
	before, err := os.ReadFile(fileOf(other))
	require.NoError(t, err)
	clock := &firstLook{slowClock: slowClock{time.Now()}, do: func() {
		require.NoError(t, os.Rename(fileOf(other), fileOf(path)))
	}}
	db := openDisk(t, path, embedded.Options{Exclusive: true, Clock: clock})
	tx := begin(t, db)
	tx.Set([]byte("a"), []byte("1"))
	_, err = waitErr(t, tx.Commit())
	require.Equal(t, kv.CodeIOError, kv.Code(err), "%v", err)
	require.ErrorIs(t, err, embedded.ErrGone)
	require.ErrorContains(t, err, "was replaced while it was open")
	after, err := os.ReadFile(fileOf(path))
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestFileIsCutOffAfterItHasGrown: a commit enlarges the file, and the file is then truncated to more than it had
// before. The next commit fails, because pages of the first are missing.
func TestFileIsCutOffAfterItHasGrown(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no file is truncated while it is open")
	}
	path := t.TempDir()
	db := openDisk(t, path, embedded.Options{Exclusive: true})
	put(t, db, "a", "1")
	small := db.Usage().FileSize
	tx := begin(t, db)
	for i := range 20 {
		tx.Set(fmt.Appendf(nil, "key %02d", i), make([]byte, kv.MaxValueSize))
	}
	wait(t, tx.Commit())
	require.Greater(t, db.Usage().FileSize, small+1)
	require.NoError(t, os.Truncate(fileOf(path), small+1))
	tx = begin(t, db)
	tx.Set([]byte("a"), []byte("2"))
	_, err := waitErr(t, tx.Commit())
	require.Equal(t, kv.CodeIOError, kv.Code(err), "%v", err)
	require.ErrorContains(t, err, "was truncated while it was open")
}

// TestNewestPagesAreOverwritten: another process overwrites the pages that every transaction begins with. Each call
// then fails with 1510 and the reason. The process lives on, and can close the database.
func TestNewestPagesAreOverwritten(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no file is written while it is open")
	}
	path := t.TempDir()
	db := openDisk(t, path, embedded.Options{Exclusive: true})
	put(t, db, "a", "1")
	file, err := os.OpenFile(filepath.Join(path, "kv.bbolt"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.Write(make([]byte, 2*os.Getpagesize()))
	require.NoError(t, errors.Join(err, file.Close()))
	tx := begin(t, db)
	requireCode(t, kv.CodeIOError, tx.Get([]byte("a")))
	tx = begin(t, db)
	tx.Set([]byte("a"), []byte("2"))
	_, err = waitErr(t, tx.Commit())
	require.Equal(t, kv.CodeIOError, kv.Code(err), "nothing was written")
	require.ErrorContains(t, err, "was overwritten while it was open")
	require.NoError(t, db.Close())
	_, err = embedded.OpenDisk(path, embedded.Options{})
	require.ErrorIs(t, err, embedded.ErrCorrupt)
}

// TestFileGrowsBeforeItIsLocked: OpenDisk waits for a DB that has the folder for itself, and that DB enlarges the file
// before it closes. The longer file is not taken for a corrupt one.
func TestFileGrowsBeforeItIsLocked(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("the file is not locked before it is opened")
	}
	for _, o := range []embedded.Options{{Exclusive: true}, {ReadOnly: true}} {
		path := t.TempDir()
		db := openDisk(t, path, embedded.Options{Exclusive: true})
		ended := make(chan error, 1)
		go func() {
			next, err := embedded.OpenDisk(path, o)
			if err == nil {
				err = next.Close()
			}
			ended <- err
		}()
		time.Sleep(100 * time.Millisecond)
		put(t, db, "a", strings.Repeat("x", kv.MaxValueSize))
		require.NoError(t, db.Close())
		if err := <-ended; !errors.Is(err, embedded.ErrLocked) { // the machine is busy, and the wait was over
			require.NoError(t, err)
		}
	}
}

// TestFileIsCutOff: the file is truncated while it is open. The process lives on: each read finds what was committed,
// or fails with 1510. A commit fails with 1510, because it has written nothing. The file is corrupt when it is opened
// again.
func TestFileIsCutOff(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no file is truncated while it is open")
	}
	value := strings.Repeat("x", 1000)
	for _, left := range []int64{0, 1 << 13, 1 << 17} {
		for _, o := range []embedded.Options{{}, {Exclusive: true}, {ReadOnly: true}} {
			path := t.TempDir()
			db := openDisk(t, path, embedded.Options{Exclusive: true})
			tx := begin(t, db)
			for i := range 1000 {
				tx.Set(fmt.Appendf(nil, "key %03d", i), []byte(value))
			}
			wait(t, tx.Commit())
			require.NoError(t, db.Close())
			db = openDisk(t, path, o)
			handles := []*embedded.DB{db}
			if !o.Exclusive && !o.ReadOnly && embedded.Sharable {
				handles = append(handles, openDisk(t, path, o))
			}
			before := begin(t, db)
			require.Equal(t, value, string(wait(t, before.Get([]byte("key 000")))))
			require.NoError(t, os.Truncate(filepath.Join(path, "kv.bbolt"), left))
			failed := 0
			check := func(tx kv.ManagedTx, key []byte) {
				got, err := waitErr(t, tx.Get(key))
				if err != nil {
					require.Equal(t, kv.CodeIOError, kv.Code(err), "%v", err)
					failed++
					return
				}
				require.Equal(t, value, string(got))
			}
			for i := range 1000 {
				check(before, fmt.Appendf(nil, "key %03d", i))
			}
			for _, db := range handles {
				for i := range 1000 {
					check(begin(t, db), fmt.Appendf(nil, "key %03d", i))
				}
				_, err := waitErr(t, begin(t, db).GetRange(kv.PrefixRange(nil).Selectors(), kv.RangeOptions{}))
				require.Equal(t, kv.CodeIOError, kv.Code(err), "%v", err)
			}
			require.Positive(t, failed)
			if o.ReadOnly {
				continue
			}
			for _, db := range handles {
				tx := begin(t, db)
				tx.Set([]byte("key 000"), nil)
				_, err := waitErr(t, tx.Commit())
				require.Equal(t, kv.CodeIOError, kv.Code(err))
				require.ErrorContains(t, err, "was truncated while it was open")
				_, err = waitErr(t, begin(t, db).Get([]byte("key 000")))
				require.ErrorContains(t, err, "was truncated while it was open")
			}
			for _, db := range slices.Backward(handles) {
				require.NoError(t, db.Close())
			}
			_, err := embedded.OpenDisk(path, o)
			require.ErrorIs(t, err, embedded.ErrCorrupt)
		}
	}
}

// withoutPair makes a folder with an empty database.
func withoutPair(t *testing.T) (folder string) {
	folder = t.TempDir()
	db, err := embedded.OpenDisk(folder, embedded.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	return folder
}
