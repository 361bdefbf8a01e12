package embedded_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// Committed rows are there after a reopen, the empty key and an empty value too. Cleared rows are not.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "here")
	db := openDisk(t, path, embedded.Options{})
	put(t, db, "a", "1")
	put(t, db, "", "empty key")
	put(t, db, "gone", "x")
	tx := begin(t, db)
	tx.Set([]byte("empty value"), nil)
	tx.Clear([]byte("gone"))
	wait(t, tx.Commit())
	require.NoError(t, db.Close())

	db = openDisk(t, path, embedded.Options{})
	require.Equal(t, "1", read(t, db, "a"))
	require.Equal(t, "empty key", read(t, db, ""))
	tx = begin(t, db)
	v := wait(t, tx.Get([]byte("empty value")))
	require.NotNil(t, v)
	require.Empty(t, v)
	require.Nil(t, wait(t, tx.Get([]byte("gone"))))
}

// A file that was being made when its process was killed is removed when the folder is opened, whether the database has
// been made since or not; one that another process is making right now stays.
func TestStaleFilesOfCreationGo(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		path := t.TempDir()
		for range 2 {
			stale, young := filepath.Join(path, "kv.bbolt.new-123"), filepath.Join(path, "kv.bbolt.new-456")
			for _, name := range []string{stale, young} {
				require.NoError(t, os.WriteFile(name, []byte("half a file"), 0o600))
			}
			old := time.Now().Add(-time.Minute)
			require.NoError(t, os.Chtimes(stale, old, old))
			db := openDisk(t, path, embedded.Options{Exclusive: exclusive})
			put(t, db, "k", "v")
			require.NoFileExists(t, stale)
			require.FileExists(t, young)
			require.NoError(t, db.Close())
		}
	}
}

// TestVersionsGrowOverReopen: versions never go back over a reopen, neither commit versions nor read versions. Idling
// moves read versions ahead, and so does a commit that fails. Nothing need be committed in between.
func TestVersionsGrowOverReopen(t *testing.T) {
	path := t.TempDir()
	var newest int64
	for range 5 {
		clock := newManualClock()
		db := openDisk(t, path, embedded.Options{Clock: clock})
		see := func(v int64) {
			require.Greater(t, v, newest)
			newest = v
		}
		see(wait(t, begin(t, db).ReadVersion()))
		clock.Advance(time.Minute)
		see(wait(t, begin(t, db).ReadVersion()))
		see(put(t, db, "k", "v"))
		clock.Advance(4 * time.Second)
		see(wait(t, begin(t, db).ReadVersion()))
		late := begin(t, db)
		wait(t, late.Get([]byte("k")))
		late.Set([]byte("k"), nil)
		clock.Advance(time.Minute)
		requireCode(t, kv.CodeTransactionTooOld, late.Commit())
		see(wait(t, begin(t, db).ReadVersion()))
		require.NoError(t, db.Close())
	}
}

// An exclusive folder belongs to one DB at a time, and is free again after Close.
func TestLocked(t *testing.T) {
	for _, second := range []bool{true, false} {
		t.Run(fmt.Sprintf("exclusive=%t", second), func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			db := openDisk(t, path, embedded.Options{Exclusive: true})
			_, err := embedded.OpenDisk(path, embedded.Options{Exclusive: second})
			require.ErrorIs(t, err, embedded.ErrLocked)
			require.ErrorContains(t, err, path)
			put(t, db, "still", "works")
			require.NoError(t, db.Close())
			db = openDisk(t, path, embedded.Options{Exclusive: second})
			require.Equal(t, "works", read(t, db, "still"))
			_, err = embedded.OpenDisk(path, embedded.Options{Exclusive: true})
			require.ErrorIs(t, err, embedded.ErrLocked)
		})
	}
}

// filled makes a database of about a megabyte and returns the name of its file.
func filled(t *testing.T, path string) string {
	t.Helper()
	db := openDisk(t, path, embedded.Options{})
	for i := range 100 {
		tx := begin(t, db)
		for j := range 50 {
			tx.Set(binary.BigEndian.AppendUint32(nil, uint32(i*50+j)), make([]byte, 200))
		}
		wait(t, tx.Commit())
	}
	require.NoError(t, db.Close())
	names, err := filepath.Glob(filepath.Join(path, "*"))
	require.NoError(t, err)
	require.Len(t, names, 1, "one file, and nothing left of its making")
	return names[0]
}

// A file that is no database is refused as corrupt, and not touched.
func TestGarbage(t *testing.T) {
	random := make([]byte, 100_000)
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < len(random); i++ {
		random[i] = byte(r.Uint32())
	}
	for name, content := range map[string][]byte{
		"empty": {}, "text": []byte("not a database\n"), "zeros": make([]byte, 1<<20), "random": random,
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			file := filled(t, path)
			require.NoError(t, os.WriteFile(file, content, 0o600))
			_, err := embedded.OpenDisk(path, embedded.Options{})
			require.ErrorIs(t, err, embedded.ErrCorrupt)
			after, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, content, after)
		})
	}
}

// A truncated file is refused, wherever it was cut.
func TestTruncated(t *testing.T) {
	path := t.TempDir()
	file := filled(t, path)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, size := range []int{1, 100, 4096, 5000, 8192, 16384, 65536, 200_000, 1 << 20} {
		require.NoError(t, os.WriteFile(file, whole[:size], 0o600))
		_, err := embedded.OpenDisk(path, embedded.Options{})
		require.ErrorIs(t, err, embedded.ErrCorrupt, "cut to %d bytes", size)
	}
	require.NoError(t, os.WriteFile(file, whole, 0o600))
	openDisk(t, path, embedded.Options{})
}

// A damaged page makes opening fail with ErrCorrupt, or lies in a free part of the file. Nothing panics.
func TestDamagedPages(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	file := filled(t, path)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(3, 4))
	refused := 0
	for at := 0; at+4096 <= 1<<20; at += 3 * 4096 {
		damaged := append([]byte(nil), whole...)
		for i := range 4096 {
			damaged[at+i] = byte(random.Uint32())
		}
		require.NoError(t, os.WriteFile(file, damaged, 0o600))
		db, err := embedded.OpenDisk(path, embedded.Options{})
		if err != nil {
			require.ErrorIs(t, err, embedded.ErrCorrupt, "page at %d", at)
			refused++
			continue
		}
		require.NoError(t, db.Close())
	}
	require.NotZero(t, refused)
}

// change edits a database file behind the engine's back.
func change(t *testing.T, path string, edit func(tx *bbolt.Tx) error) {
	t.Helper()
	file := filled(t, path)
	db, err := bbolt.Open(file, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(edit))
	require.NoError(t, db.Close())
}

// branchPage returns the content of a file that filled has made, and where the root page of its data begins. That is a
// branch page.
func branchPage(t *testing.T, file string) (content []byte, at int) {
	t.Helper()
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, db.View(func(tx *bbolt.Tx) error {
		at = int(tx.Bucket([]byte("kv")).Root()) * db.Info().PageSize
		return nil
	}))
	require.NoError(t, db.Close())
	content, err = os.ReadFile(file)
	require.NoError(t, err)
	require.EqualValues(t, 1, binary.NativeEndian.Uint16(content[at+8:]), "the flag of a branch page")
	return content, at
}

// TestFlippedBits: a bit of a branch page is wrong. Either bbolt cannot notice it, or OpenDisk returns ErrCorrupt, each
// time that this process opens the file. It never ends the process.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	db := openDisk(t, path, embedded.Options{})
	tx := begin(t, db)
	for i := range 50 {
		tx.Set(fmt.Appendf(nil, "key %02d", i), make([]byte, 300))
	}
	wait(t, tx.Commit())
	require.NoError(t, db.Close())
	whole, at := branchPage(t, fileOf(path))
	end := at + 16 // behind the last key
	for i := range int(binary.NativeEndian.Uint16(whole[at+10:])) {
		element := at + 16 + 16*i // it begins with the place of its key, counted from here, and the key's length
		key := element + int(binary.NativeEndian.Uint32(whole[element:]))
		end = max(end, key+int(binary.NativeEndian.Uint32(whole[element+4:])))
	}
	refused := 0
	for i := at; i < end; i++ {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 1
		require.NoError(t, os.WriteFile(fileOf(path), damaged, 0o600))
		for range 2 {
			db, err := embedded.OpenDisk(path, embedded.Options{Exclusive: true})
			if err == nil {
				require.NoError(t, db.Close())
				break
			}
			require.ErrorIs(t, err, embedded.ErrCorrupt, "byte %d of the page", i-at)
			refused++
		}
	}
	require.Greater(t, refused, end-at, "most of them, twice")
}

// A file of a later release is refused with an error of its own.
func TestNewerFormat(t *testing.T) {
	path := t.TempDir()
	change(t, path, func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte{0, 0, 0, 2})
	})
	_, err := embedded.OpenDisk(path, embedded.Options{})
	require.ErrorIs(t, err, embedded.ErrNewerFormat)
	require.NotErrorIs(t, err, embedded.ErrCorrupt)
}

// A bbolt file of another program, or one without its version, is refused as corrupt.
func TestForeignFile(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(tx *bbolt.Tx) error{
		"no meta": func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("meta")) },
		"no data": func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("kv")) },
		"no version": func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("meta")).Delete([]byte("version"))
		},
		"foreign key": func(tx *bbolt.Tx) error { return tx.Bucket([]byte("kv")).Put([]byte("x"), nil) },
		"bucket in the data": func(tx *bbolt.Tx) error {
			_, err := tx.Bucket([]byte("kv")).CreateBucket([]byte("kx"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			change(t, path, edit)
			_, err := embedded.OpenDisk(path, embedded.Options{})
			require.ErrorIs(t, err, embedded.ErrCorrupt)
		})
	}
}

// A path that cannot be used gives the system's error, which is not taken for corruption.
func TestUnusablePath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := embedded.OpenDisk(file, embedded.Options{})
	var path *fs.PathError
	require.ErrorAs(t, err, &path)
	require.NotErrorIs(t, err, embedded.ErrCorrupt)
	require.NotErrorIs(t, err, embedded.ErrLocked)

	t.Chdir(t.TempDir())
	_, err = embedded.OpenDisk("", embedded.Options{})
	require.ErrorAs(t, err, &path, "no path is not the working directory")
}

// A file without permission gives the system's error.
func TestPermission(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may open every file")
	}
	path := t.TempDir()
	require.NoError(t, os.Chmod(filled(t, path), 0))
	_, err := embedded.OpenDisk(path, embedded.Options{})
	require.ErrorIs(t, err, fs.ErrPermission)
}
