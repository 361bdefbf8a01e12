package embedded_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// gate stops the commit pipeline before it writes a group, and counts the groups.
type gate struct {
	mu     sync.Mutex
	sizes  []int
	closed chan struct{} // while not nil, the write of a group waits for it
	inside chan struct{} // one for each group that waits
}

func (g *gate) hooks() embedded.Hooks {
	return embedded.Hooks{
		BeforeGroup: func(n int) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.sizes = append(g.sizes, n)
		},
		Apply: func() error {
			g.mu.Lock()
			wait := g.closed
			g.mu.Unlock()
			if wait != nil {
				g.inside <- struct{}{}
				<-wait
			}
			return nil
		},
	}
}

func (g *gate) close() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := make(chan struct{})
	g.closed, g.inside = c, make(chan struct{}, 100)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.closed = nil
		close(c)
	}
}

// Commits that arrive during a write are one group with one version and one write. They are checked in order, so an
// earlier one can reject a later one. Reads continue during the write, and see the group only when it is written.
func TestGroupCommit(t *testing.T) {
	g := &gate{}
	db := openDisk(t, t.TempDir(), embedded.Options{Hooks: g.hooks()})
	put(t, db, "first", "1")

	loser := begin(t, db)
	wait(t, loser.Get([]byte("k3")))
	loser.Set([]byte("lost"), nil)

	open := g.close()
	first := begin(t, db)
	first.Set([]byte("first"), []byte("2"))
	leader := first.Commit()
	<-g.inside

	const n = 20
	var txs []kv.ManagedTx
	var commits []kv.Future[struct{}]
	var stamps []kv.Future[[10]byte]
	for i := range n {
		tx := begin(t, db)
		tx.Set(fmt.Appendf(nil, "k%d", i), nil)
		stamps = append(stamps, tx.Versionstamp())
		txs, commits = append(txs, tx), append(commits, tx.Commit())
	}
	lost := loser.Commit()
	require.False(t, leader.Ready())
	require.Equal(t, "1", read(t, db, "first"), "not visible before it is written")
	open()

	wait(t, leader)
	requireCode(t, kv.CodeNotCommitted, lost)
	var version int64
	for i := range n {
		wait(t, commits[i])
		v, err := txs[i].CommittedVersion()
		require.NoError(t, err)
		if i == 0 {
			version = v
		}
		require.Equal(t, version, v, "one version for the group")
		stamp := wait(t, stamps[i])
		require.Equal(t, uint64(version), binary.BigEndian.Uint64(stamp[:]))
		require.Equal(t, uint16(i), binary.BigEndian.Uint16(stamp[8:]), "stamps in the order of the group")
	}
	require.Equal(t, []int{1, 1, n + 1}, g.sizes)
	require.Equal(t, "2", read(t, db, "first"))
}

// After a failed write the group's outcome is unknown until the folder is opened again. Until then nothing is
// committed, and nothing is read: a read that found the state before the group would say that the group was not
// applied. Each gets a plain error with the cause. A transaction that has read before continues at its version, which
// is older than the group.
func TestFailedStore(t *testing.T) {
	for _, mode := range []string{"write", "sync"} {
		t.Run(mode, func(t *testing.T) {
			path := t.TempDir()
			var failure error
			hooks := embedded.Hooks{Apply: func() error { return failure }}
			if mode == "sync" {
				hooks = embedded.Hooks{Synced: func(err error) error { return errors.Join(err, failure) }}
			}
			db := openDisk(t, path, embedded.Options{Hooks: hooks})
			put(t, db, "a", "1")
			before := begin(t, db)
			require.Equal(t, "1", string(wait(t, before.Get([]byte("a")))))
			failure = syscall.ENOSPC
			writer := begin(t, db)
			writer.Set([]byte("a"), []byte("2"))
			_, err := waitErr(t, writer.Commit())
			require.Equal(t, kv.CodeCommitUnknownResult, kv.Code(err))
			require.ErrorIs(t, err, syscall.ENOSPC)

			failure = nil
			later := begin(t, db)
			later.Set([]byte("b"), nil)
			_, err = waitErr(t, later.Commit())
			require.Equal(t, kv.CodeIOError, kv.Code(err))
			require.ErrorIs(t, err, syscall.ENOSPC)
			_, err = waitErr(t, later.OnError(err))
			require.Equal(t, kv.CodeIOError, kv.Code(err), "not to be retried")
			for name, read := range map[string]func(tx kv.ManagedTx) error{
				"Get": func(tx kv.ManagedTx) error { _, err := waitErr(t, tx.Get([]byte("a"))); return err },
				"GetKey": func(tx kv.ManagedTx) error {
					_, err := waitErr(t, tx.GetKey(kv.LastLessThan([]byte("b"))))
					return err
				},
				"GetRange": func(tx kv.ManagedTx) error {
					all := kv.PrefixRange([]byte("a")).Selectors()
					_, err := waitErr(t, tx.GetRange(all, kv.RangeOptions{}))
					return err
				},
				"snapshot": func(tx kv.ManagedTx) error {
					_, err := waitErr(t, tx.Snapshot().Get([]byte("a")))
					return err
				},
				"ReadVersion": func(tx kv.ManagedTx) error { _, err := waitErr(t, tx.ReadVersion()); return err },
			} {
				err := read(begin(t, db))
				require.Equal(t, kv.CodeIOError, kv.Code(err), "%s", name)
				require.ErrorIs(t, err, syscall.ENOSPC, "%s", name)
			}
			require.Equal(t, "1", string(wait(t, before.Get([]byte("a")))))
			require.NoError(t, db.Close())

			db = openDisk(t, path, embedded.Options{})
			require.Equal(t, mode == "sync", read(t, db, "a") == "2", "the hook alone decides what reached the disk")
			require.Equal(t, "", read(t, db, "b"))
			put(t, db, "b", "works again")
		})
	}
}

// Close waits for commits under way; a closed database refuses everything and says so without a retry.
func TestClose(t *testing.T) {
	g := &gate{}
	path := t.TempDir()
	db := openDisk(t, path, embedded.Options{Hooks: g.hooks()})
	put(t, db, "a", "1")
	reader, writer, idle := begin(t, db), begin(t, db), begin(t, db)
	wait(t, reader.Get([]byte("a")))
	watch := idle.Watch([]byte("b"))
	wait(t, idle.Commit())
	open := g.close()
	writer.Set([]byte("a"), []byte("2"))
	commit := writer.Commit()
	<-g.inside
	closed := make(chan error)
	go func() { closed <- db.Close() }()
	open()
	require.NoError(t, <-closed)
	wait(t, commit)
	requireCode(t, kv.CodeOperationCancelled, watch)
	_, err := waitErr(t, reader.Get([]byte("a")))
	require.Error(t, err)
	_, err = db.Begin(kv.TxOptions{})
	require.Error(t, err)
	require.False(t, (&kv.Error{Code: kv.Code(err)}).Retryable())
	require.Equal(t, "2", read(t, openDisk(t, path, embedded.Options{}), "a"))
}
