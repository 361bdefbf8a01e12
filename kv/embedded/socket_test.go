package embedded_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// pair opens a folder twice: the first DB has the database, the second reaches it over a socket.
func pair(t *testing.T, path string) (server, client *embedded.DB) {
	t.Helper()
	server = openDisk(t, path, embedded.Options{})
	client = openDisk(t, path, embedded.Options{})
	require.Positive(t, server.Usage().FileSize)
	require.Zero(t, client.Usage().FileSize)
	return server, client
}

// More answers are asked for at once than a server keeps for a client that does not read.
func TestManyLargeAnswers(t *testing.T) {
	_, db := pair(t, t.TempDir())
	const n = 90
	tx := begin(t, db)
	for i := range n {
		tx.Set(fmt.Appendf(nil, "%03d", i), make([]byte, kv.MaxValueSize))
	}
	wait(t, tx.Commit())
	tx = begin(t, db)
	var all []kv.Future[[]byte]
	for i := range n {
		all = append(all, tx.Get(fmt.Appendf(nil, "%03d", i)))
	}
	for _, f := range all {
		require.Len(t, wait(t, f), kv.MaxValueSize)
	}
	rows := wait(t, tx.GetRange(kv.PrefixRange(nil).Selectors(), kv.RangeOptions{}))
	require.Len(t, rows, n, "in many frames")
	rows = wait(t, tx.GetRange(kv.PrefixRange(nil).Selectors(), kv.RangeOptions{Reverse: true}))
	require.Len(t, rows, n)
	require.Equal(t, "000", string(rows[n-1].Key))
}

// A folder whose path is longer than the name of a socket may be is shared too.
func TestLongPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("long", 40), strings.Repeat("path", 40))
	server, client := pair(t, path)
	put(t, client, "a", "1")
	require.Equal(t, "1", read(t, server, "a"))
	require.NoError(t, server.Close())
	left, err := filepath.Glob(filepath.Join(path, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, left)
}

// TestLongTemporaryFolder: a folder with a long path is shared also where the temporary folder, in which the link to it
// is made, has a path of 60 bytes. On macOS it has 48.
func TestLongTemporaryFolder(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("no socket here")
	}
	const longest = 60
	path := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	base, err := os.MkdirTemp("", "l")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	if len(base)+2 > longest {
		t.Skip("the temporary folder of this machine has a longer path")
	}
	temporary := filepath.Join(base, strings.Repeat("x", longest-len(base)-1))
	require.NoError(t, os.Mkdir(temporary, 0o700))
	t.Setenv("TMPDIR", temporary)
	server, client := pair(t, path)
	put(t, client, "a", "1")
	require.Equal(t, "1", read(t, server, "a"))
	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	require.Empty(t, left)
}

// When the DB that has the database closes, the other takes over: its transactions in flight retry, its watches live
// on.
func TestHandOver(t *testing.T) {
	server, client := pair(t, t.TempDir())
	put(t, server, "a", "1")
	old := begin(t, client)
	require.Equal(t, "1", string(wait(t, old.Get([]byte("a")))))
	watching := begin(t, client)
	w := watching.Watch([]byte("a"))
	wait(t, watching.Commit())

	require.NoError(t, server.Close())
	requireCode(t, kv.CodeTransactionTooOld, old.Get([]byte("b")))
	_, err := kv.Run(t.Context(), client, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		_, err := tx.Get([]byte("a")).Wait(t.Context())
		return err
	})
	require.NoError(t, err)
	require.Positive(t, client.Usage().FileSize, "has taken over")
	require.False(t, w.Ready(), "the value is the same")
	put(t, client, "a", "2")
	wait(t, w)
}

// A DB that serves the database closes while others work. Their operations in flight are answered or retried. Only the
// callers of the closed DB get the error that it is closed.
func TestHandOverUnderLoad(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	server := openDisk(t, path, embedded.Options{})
	for range 10 {
		client := openDisk(t, path, embedded.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for n := range 16 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, err := kv.Run(t.Context(), client, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
						tx.Set(fmt.Appendf(nil, "%d", n), []byte("1"))
						if n%2 == 0 {
							return nil // a transaction that only writes
						}
						_, err := tx.Get([]byte("0")).Wait(t.Context())
						return err
					})
					if !assert.NoError(t, err) {
						return
					}
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, server.Close())
		time.Sleep(20 * time.Millisecond)
		cancel()
		wg.Wait()
		server = client
	}
}

// A watch of another DB's change fires; one that was given up gives its place back; Close ends the others.
func TestFarWatches(t *testing.T) {
	server, client := pair(t, t.TempDir())
	watch := func(key string) kv.Future[struct{}] {
		tx := begin(t, client)
		w := tx.Watch([]byte(key))
		wait(t, tx.Commit())
		return w
	}
	a, b, c := watch("a"), watch("b"), watch("c")
	require.Equal(t, 3, client.Usage().Watches)
	put(t, server, "a", "1")
	wait(t, a)
	b.Cancel()
	require.Equal(t, 1, client.Usage().Watches)
	require.NoError(t, client.Close())
	requireCode(t, kv.CodeOperationCancelled, c)
	require.Zero(t, client.Usage().Watches)
	require.Eventually(t, func() bool { return server.Usage().Transactions == 0 }, patience, 1e6)
}
