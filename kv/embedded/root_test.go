//go:build linux

package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// strangerServes has a folder open until its input ends.
func strangerServes(t *testing.T, path string) {
	db, err := embedded.OpenDisk(path, embedded.Options{})
	require.NoError(t, err)
	put(t, db, "owner", "wrote this")
	fmt.Println("serving")
	_, _ = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, db.Close())
}

// strangerSwaps puts a link to the victim in the place of whatever socket another process is making in the folder,
// until its input ends.
func strangerSwaps(path, victim string) {
	var over sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	over.Go(func() { _, _ = io.Copy(io.Discard, os.Stdin); stop() })
	fmt.Println("swapping")
	for n := 0; ctx.Err() == nil; n++ {
		entries, _ := os.ReadDir(path)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "kv.socket-") {
				continue
			}
			aside := filepath.Join(path, e.Name())
			taken := filepath.Join(path, fmt.Sprintf("taken-%d", n))
			if os.Rename(aside, taken) == nil && os.Mkdir(aside, 0o777) == nil {
				_ = os.Symlink(victim, filepath.Join(aside, "s"))
			}
		}
	}
	over.Wait()
}

// startStranger starts TestStranger with a task, and returns when it says the word; stop ends it.
func startStranger(t *testing.T, word, self, path string, env ...string) (stop func()) {
	t.Helper()
	c := strangerCommand(self, path, env...)
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	stop = sync.OnceFunc(func() {
		_ = in.Close()
		_ = c.Wait()
	})
	t.Cleanup(stop)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == word {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return stop
		}
	}
	require.Fail(t, "it did not start", "%s", path)
	return stop
}

// strangersFolder makes a folder that belongs to the stranger.
func strangersFolder(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.Mkdir(path, 0o700))
	require.NoError(t, os.Chown(path, stranger, stranger))
}

// requireStrangers requires that all in a folder is the stranger's.
func requireStrangers(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		require.NoError(t, err)
		require.EqualValues(t, stranger, info.Sys().(*syscall.Stat_t).Uid, name)
		return nil
	}))
}

// TestRootIsAClientOnly: root works in another user's folder through the process of that user which serves it. When
// there is none, root is told what to do, and leaves nothing there.
func TestRootIsAClientOnly(t *testing.T) {
	home, self := strangerHome(t)
	path := filepath.Join(home, "db")
	strangersFolder(t, path)
	for _, o := range []embedded.Options{{}, {Exclusive: true}} {
		_, err := embedded.OpenDisk(path, o)
		require.ErrorIs(t, err, embedded.ErrOtherUser)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "sudo -u")
	}
	require.Len(t, contents(t, path), 1, "the folder, and nothing in it")

	stop := startStranger(t, "serving", self, path, strangerTask+"=serve")
	db := openDisk(t, path, embedded.Options{})
	require.False(t, db.Serves())
	require.Equal(t, "wrote this", read(t, db, "owner"))
	put(t, db, "root", "wrote that")
	requireStrangers(t, path)

	stop()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		_, err := tx.Get([]byte("root")).Wait(ctx)
		return err
	})
	require.ErrorIs(t, err, embedded.ErrOtherUser, "nobody serves")
	require.False(t, db.Serves())
	requireStrangers(t, path)

	stop = startStranger(t, "serving", self, path, strangerTask+"=serve")
	require.Eventually(t, func() bool {
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			_, err := tx.Get([]byte("root")).Wait(ctx)
			return err
		})
		return err == nil
	}, patience, 10*time.Millisecond, "the owner is back")
	require.Equal(t, "wrote that", read(t, db, "root"))
	requireStrangers(t, path)
	stop()
}

// TestRootReadsACopy: a copy of another user's that is not to be written is read by root too, but not a file of root's
// under a second name there.
func TestRootReadsACopy(t *testing.T) {
	home, self := strangerHome(t)
	path := filepath.Join(home, "db")
	strangersFolder(t, path)
	startStranger(t, "serving", self, path, strangerTask+"=serve")()
	db := openDisk(t, path, embedded.Options{ReadOnly: true})
	require.Equal(t, "wrote this", read(t, db, "owner"))
	require.NoError(t, db.Close())

	own := filepath.Join(home, "own")
	secret := openDisk(t, own, embedded.Options{})
	put(t, secret, "secret", "of root's")
	require.NoError(t, secret.Close())
	name := filepath.Join(path, "kv.bbolt")
	require.NoError(t, os.Remove(name))
	require.NoError(t, os.Link(filepath.Join(own, "kv.bbolt"), name))
	_, err := embedded.OpenDisk(path, embedded.Options{ReadOnly: true})
	require.ErrorContains(t, err, "belongs to user 0")
	require.NoError(t, os.Remove(name))
	require.NoError(t, os.Symlink(filepath.Join(own, "kv.bbolt"), name))
	_, err = embedded.OpenDisk(path, embedded.Options{ReadOnly: true})
	require.ErrorContains(t, err, "symbolic link")
}

// TestRootIsNotLedElsewhere: a link in the place of another user's socket does not lead root to a folder of root's.
func TestRootIsNotLedElsewhere(t *testing.T) {
	t.Parallel()
	home, _ := strangerHome(t)
	own, path := filepath.Join(home, "own"), filepath.Join(home, "db")
	db := openDisk(t, own, embedded.Options{})
	put(t, db, "a", "1")
	strangersFolder(t, path)
	d, err := os.Open(path)
	require.NoError(t, err)
	defer d.Close()
	require.NoError(t, syscall.Flock(int(d.Fd()), syscall.LOCK_EX)) // as a process that serves has it
	socket := filepath.Join(path, "kv.socket")
	require.NoError(t, os.Symlink(filepath.Join(own, "kv.socket"), socket))
	_, err = embedded.OpenDisk(path, embedded.Options{})
	require.ErrorIs(t, err, embedded.ErrLocked)
	require.ErrorContains(t, err, "it is not a socket: remove it")
	// A hard link to the socket stands for a symbolic link that is made after the check: both lead to the other socket.
	require.NoError(t, os.Remove(socket))
	require.NoError(t, os.Link(filepath.Join(own, "kv.socket"), socket))
	_, err = embedded.OpenDisk(path, embedded.Options{})
	require.ErrorIs(t, err, embedded.ErrLocked)
	require.ErrorContains(t, err, "is served by user 0")
}

// TestRootBeatsTheSwap: the owner of a folder who puts links in the place of what root makes there gets root to change
// the mode of no file.
func TestRootBeatsTheSwap(t *testing.T) {
	home, self := strangerHome(t)
	path, victim := filepath.Join(home, "db"), filepath.Join(home, "victim")
	strangersFolder(t, path)
	require.NoError(t, os.WriteFile(victim, nil, 0o644))
	require.NoError(t, os.Chmod(victim, 0o644))
	stop := startStranger(t, "swapping", self, path, strangerTask+"=swap", strangerVictim+"="+victim)
	defer stop()
	// Many at a time, for each looks two seconds for a process that serves, again and again.
	starts := 3
	if testing.Short() {
		starts = 1
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range starts {
				if db, err := embedded.OpenDisk(path, embedded.Options{}); err == nil {
					assert.NoError(t, db.Close())
				}
			}
		})
	}
	all.Wait()
	info, err := os.Lstat(victim)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o644), info.Mode())
	require.EqualValues(t, 0, info.Sys().(*syscall.Stat_t).Uid)
	requireStrangers(t, path)
}
