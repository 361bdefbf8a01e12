package embedded

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"fdbfifo/kv"
)

// setClock is a clock that the test sets.
type setClock struct{ now *time.Time }

func (c setClock) Now() time.Time                         { return *c.now }
func (c setClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// inFolder opens a folder whose clock shows now, runs fn in a transaction, and closes the folder.
func inFolder(t *testing.T, dir string, now *time.Time, fn func(tx kv.ManagedTx)) {
	t.Helper()
	db, err := OpenDisk(dir, Options{Clock: setClock{now}, Exclusive: true})
	require.NoError(t, err)
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	fn(tx)
	require.NoError(t, db.Close())
}

// TestVersionsOfAClosedFolder: an opening moves the version on by the time since the last commit, as the folder tells
// it. A clock that is behind, or was ahead, makes versions lag, and never go back.
func TestVersionsOfAClosedFolder(t *testing.T) {
	t.Parallel()
	const week = 7 * 24 * time.Hour
	now, dir := time.Now(), t.TempDir()
	open := func() (version int64) {
		inFolder(t, dir, &now, func(tx kv.ManagedTx) {
			tx.Set([]byte("a"), nil)
			_, err := tx.Commit().Wait(t.Context())
			require.NoError(t, err)
			version, err = tx.CommittedVersion()
			require.NoError(t, err)
		})
		return version
	}
	last := open()
	for _, step := range []struct {
		name  string
		by    time.Duration // of the clock
		moves time.Duration // of the version; 0 = by the least jump
	}{
		{"a week", week, week},
		{"the clock is set back", -45 * 24 * time.Hour, 0},
		{"it runs on", time.Minute, 0},
		{"it is right again", 45*24*time.Hour + time.Hour, time.Hour},
		{"it is set ahead", 10 * week, 10 * week},
		{"and right again", -10 * week, 0},
		{"a week more", week, 0},
		{"ten weeks more", 10 * week, week},
	} {
		now = now.Add(step.by)
		version := open()
		moves := max(step.moves.Microseconds(), reopenJump)
		require.InDelta(t, moves, version-last, 70*float64(time.Second.Microseconds()), step.name)
		require.Greater(t, version, last, step.name)
		last = version
	}
}

// TestVersionsOfAnEarlierFolder: the time of a folder that an earlier version has written is not known. Versions jump,
// and tell the time from then on.
func TestVersionsOfAnEarlierFolder(t *testing.T) {
	t.Parallel()
	now, dir := time.Now(), t.TempDir()
	open := func() (version int64) {
		inFolder(t, dir, &now, func(tx kv.ManagedTx) {
			v, err := tx.ReadVersion().Wait(t.Context())
			require.NoError(t, err)
			version = v
			tx.Cancel()
		})
		return version
	}
	first := open()
	file, err := bbolt.Open(dir+"/"+fileName, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, file.Update(func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Delete(aheadKey) }))
	require.NoError(t, file.Close())
	now = now.Add(24 * time.Hour)
	second := open()
	require.EqualValues(t, unknownJump, second-first)
	now = now.Add(24 * time.Hour)
	require.EqualValues(t, (24 * time.Hour).Microseconds(), open()-second)
}

// TestVersionsAfterAnEarlierEngine: an earlier version of the engine moves the version of a folder, and leaves its time
// as it was. The time is not known then. Versions do not jump by the time that had passed before that engine wrote: its
// rows would look that much too old.
func TestVersionsAfterAnEarlierEngine(t *testing.T) {
	t.Parallel()
	now, dir := time.Now(), t.TempDir()
	open := func() (version int64) {
		inFolder(t, dir, &now, func(tx kv.ManagedTx) {
			v, err := tx.ReadVersion().Wait(t.Context())
			require.NoError(t, err)
			version = v
			tx.Cancel()
		})
		return version
	}
	var earlier int64
	meanwhile := func(edit func(meta *bbolt.Bucket, version int64) error) {
		file, err := bbolt.Open(dir+"/"+fileName, 0o600, nil)
		require.NoError(t, err)
		require.NoError(t, file.Update(func(tx *bbolt.Tx) error {
			meta := tx.Bucket(metaBucket)
			earlier = int64(binary.BigEndian.Uint64(meta.Get(versionKey)))
			return edit(meta, earlier)
		}))
		require.NoError(t, file.Close())
	}
	open()
	now = now.Add(7 * 24 * time.Hour)
	const work = reopenJump + 3_600_000_000
	meanwhile(func(meta *bbolt.Bucket, version int64) error { return putVersion(meta, version+work) })
	require.EqualValues(t, unknownJump, open()-earlier-work)

	now = now.Add(7 * 24 * time.Hour)
	meanwhile(func(meta *bbolt.Bucket, _ int64) error { // a time without its version
		return meta.Put(aheadKey, meta.Get(aheadKey)[:8])
	})
	last := open()
	require.EqualValues(t, unknownJump, last-earlier)
	now = now.Add(24 * time.Hour)
	require.EqualValues(t, (24 * time.Hour).Microseconds(), open()-last)
}
