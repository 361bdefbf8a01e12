package embedded

import (
	"context"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"fdbfifo/kv"
)

// steppedClock moves on at each wait for it.
type steppedClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *steppedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *steppedClock) After(d time.Duration) <-chan time.Time {
	runtime.Gosched()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	fired := make(chan time.Time, 1)
	fired <- c.now
	return fired
}

// bbolt cannot grow its map below an open snapshot: a transaction left open holds up a commit that needs more
// room until the end of the window at most, and then reads 1007.
func TestOpenSnapshotDoesNotStopGrowth(t *testing.T) {
	db, err := openDisk(t.TempDir(), Options{Clock: &steppedClock{now: time.Unix(0, 0)}}, 1<<16)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	left, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	_, err = left.Get([]byte("a")).Wait(ctx)
	require.NoError(t, err)
	writer, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	for i := range 50 {
		writer.Set([]byte{byte(i)}, make([]byte, 50_000))
	}
	_, err = writer.Commit().Wait(ctx)
	require.NoError(t, err)
	_, err = left.Get([]byte("a")).Wait(ctx)
	require.Equal(t, kv.CodeTransactionTooOld, kv.Code(err))
}

// A snapshot is given up with the last transaction that reads from it, or at the end of the window.
func TestSnapshotsAreGivenUp(t *testing.T) {
	clock := &steppedClock{now: time.Unix(0, 0)}
	db := OpenMemory(Options{Clock: clock})
	defer func() { require.NoError(t, db.Close()) }()
	commit := func() {
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set([]byte("a"), nil)
			return nil
		})
		require.NoError(t, err)
	}
	var open []kv.ManagedTx
	for range 10 {
		tx, err := db.Begin(kv.TxOptions{})
		require.NoError(t, err)
		_, err = tx.Get([]byte("a")).Wait(t.Context())
		require.NoError(t, err)
		open = append(open, tx)
		commit()
	}
	require.Len(t, db.local.Load().old, 10)
	open[3].Cancel()
	open[0].Reset()
	_, err := open[9].Commit().Wait(t.Context())
	require.NoError(t, err)
	require.Len(t, db.local.Load().old, 7)
	<-clock.After(6 * time.Second)
	commit()
	require.Empty(t, db.local.Load().old)
	_, err = open[5].Get([]byte("a")).Wait(t.Context())
	require.Equal(t, kv.CodeTransactionTooOld, kv.Code(err))
	open[5].Cancel()
}

// A disk that is full fails the group and the store, and loses nothing that was acknowledged.
func TestFullDisk(t *testing.T) {
	path := t.TempDir()
	db, err := OpenDisk(path, Options{})
	require.NoError(t, err)
	set := func(key string, size int) error {
		_, err := kv.Run(t.Context(), db, kv.TxOptions{Retries: 1}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set([]byte(key), make([]byte, size))
			return nil
		})
		return err
	}
	require.NoError(t, set("before", 10))
	db.local.Load().store.(*diskStore).file.MaxSize = 1 << 18
	n := 0
	for err = nil; err == nil; n++ {
		err = set(string(rune('a'+n)), 50_000)
	}
	require.ErrorIs(t, err, berrors.ErrMaxSizeReached)
	require.ErrorIs(t, err, &kv.Error{Code: kv.CodeIOError})
	require.False(t, kv.MaybeCommitted(err), "the file has nothing of the commit")
	require.Error(t, set("after", 1))
	require.NoError(t, db.Close())

	db, err = OpenDisk(path, Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		rows, err := tx.GetRange(kv.PrefixRange(nil).Selectors(), kv.RangeOptions{}).Wait(t.Context())
		require.NoError(t, err)
		require.Len(t, rows, n, "one before, and all but the one that failed")
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, set("again", 50_000))
}

// A commit that is acknowledged is synced: bbolt can be told to leave that out, and is not.
func TestDiskSyncs(t *testing.T) {
	db, err := OpenDisk(t.TempDir(), Options{})
	require.NoError(t, err)
	file := db.local.Load().store.(*diskStore).file
	require.False(t, file.NoSync)
	require.False(t, file.NoGrowSync)
	require.NoError(t, db.Close())
}

// TestPanicLeavesNoLock: bbolt panics while a file is opened to write, here because a bucket is missing. The file does
// not stay locked: the next attempt gets the same error.
func TestPanicLeavesNoLock(t *testing.T) {
	path := t.TempDir()
	file, err := bbolt.Open(filepath.Join(path, fileName), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, file.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(dataBucket)
		return err
	}))
	require.NoError(t, file.Close())
	d, err := openDir(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	for range 2 {
		_, _, err := d.openDatabase(wallClock{}, 1<<20, new(seen))
		require.ErrorContains(t, err, "nil pointer")
	}
}
