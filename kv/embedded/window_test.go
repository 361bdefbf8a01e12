package embedded_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// A transaction older than five million versions reads 1007, and its commit fails with it too, even if all its
// reads were snapshot reads.
func TestWindow(t *testing.T) {
	clock := newManualClock()
	db := openMemory(t, embedded.Options{Clock: clock})
	put(t, db, "a", "1")
	reader, snapshotWriter, young := begin(t, db), begin(t, db), begin(t, db)
	wait(t, reader.Get([]byte("a")))
	wait(t, snapshotWriter.Snapshot().Get([]byte("a")))
	snapshotWriter.Set([]byte("b"), nil)
	wait(t, young.Get([]byte("a")))
	young.Set([]byte("c"), nil)

	clock.Advance(5*time.Second - 100*time.Microsecond)
	wait(t, reader.Get([]byte("a")))
	wait(t, young.Commit())

	clock.Advance(200 * time.Microsecond)
	requireCode(t, kv.CodeTransactionTooOld, reader.Get([]byte("a")))
	requireCode(t, kv.CodeTransactionTooOld, reader.Snapshot().Get([]byte("a")))
	requireCode(t, kv.CodeTransactionTooOld, snapshotWriter.Commit())
}

// A transaction can read the keys that it has set itself after the window, too: it needs no database for that.
func TestOwnWritesOutliveTheWindow(t *testing.T) {
	clock := newManualClock()
	db := openMemory(t, embedded.Options{Clock: clock})
	tx := begin(t, db)
	wait(t, tx.ReadVersion())
	tx.Set([]byte("a"), []byte("own"))
	clock.Advance(6 * time.Second)
	require.Equal(t, "own", string(wait(t, tx.Get([]byte("a")))))
}

// Versions advance while idle, and a read version is never older than a commit that was acknowledged.
func TestVersionsAdvanceWhileIdle(t *testing.T) {
	clock := newManualClock()
	db := openMemory(t, embedded.Options{Clock: clock})
	committed := put(t, db, "a", "1")
	require.Equal(t, committed, wait(t, begin(t, db).ReadVersion()), "nothing came after the commit")
	clock.Advance(2 * time.Second)
	idle := wait(t, begin(t, db).ReadVersion())
	require.InDelta(t, committed+2_000_000, idle, 10)
	require.Greater(t, put(t, db, "a", "2"), idle)
}

// A gap in the versions, as a recovery makes one, ends every open transaction with 1007: also the one whose commit
// comes first after it.
func TestVersionGap(t *testing.T) {
	const million = 1_000_000
	gap := int64(0)
	db := openMemory(t, embedded.Options{
		Clock: newManualClock(),
		Hooks: embedded.Hooks{VersionGap: func() int64 { g := gap; gap = 0; return g }},
	})
	before := put(t, db, "a", "1")
	reader, writer, first := begin(t, db), begin(t, db), begin(t, db)
	wait(t, reader.Get([]byte("a")))
	wait(t, writer.Get([]byte("b")))
	writer.Set([]byte("b"), nil)
	first.Set([]byte("a"), nil)
	gap = 100 * million
	requireCode(t, kv.CodeTransactionTooOld, first.Commit())
	requireCode(t, kv.CodeTransactionTooOld, reader.Get([]byte("a")))
	requireCode(t, kv.CodeTransactionTooOld, writer.Commit())
	after := put(t, db, "a", "2")
	require.InDelta(t, before+100*million, after, 10, "after a gap versions go on from there")
	require.Equal(t, "2", read(t, db, "a"))
}

// A read version set by hand is served while a snapshot for it exists and within the window, and refused with
// 1007 or 1009 otherwise.
func TestSetReadVersion(t *testing.T) {
	clock := newManualClock()
	db := openMemory(t, embedded.Options{Clock: clock})
	old := put(t, db, "a", "old")
	holder := begin(t, db)
	wait(t, holder.Get([]byte("a")))
	middle := put(t, db, "a", "middle")
	put(t, db, "a", "new")
	at := func(v int64) kv.Future[[]byte] {
		tx := begin(t, db)
		t.Cleanup(tx.Cancel)
		tx.SetReadVersion(v)
		return tx.Get([]byte("a"))
	}
	require.Equal(t, "old", string(wait(t, at(old))), "held open by another transaction")
	requireCode(t, kv.CodeTransactionTooOld, at(middle))
	requireCode(t, kv.CodeFutureVersion, at(middle+1_000_000_000))
	holder.Cancel()
	clock.Advance(6 * time.Second)
	requireCode(t, kv.CodeTransactionTooOld, at(old))
}
