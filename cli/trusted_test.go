//go:build linux

package cli

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// strangersFolder is a folder of another user, which only root can make.
func strangersFolder(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a folder of another user")
	}
	folder := filepath.Join(t.TempDir(), "theirs")
	require.NoError(t, os.Mkdir(folder, 0o755))
	require.NoError(t, os.Chown(folder, 65534, 65534))
	return folder
}

// TestRootWritesOnlyWhereItMay: root makes no socket, log, picture or folder where another user can replace them by
// links. The error says what to do. The victim stands for a file of root's to which such a link leads.
func TestRootWritesOnlyWhereItMay(t *testing.T) {
	theirs := strangersFolder(t)
	home := filepath.Dir(theirs)
	victim := filepath.Join(home, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("kept"), 0o644))
	require.NoError(t, os.Symlink(victim, filepath.Join(theirs, "link.svg")))
	shared := filepath.Join(home, "shared")
	require.NoError(t, os.Mkdir(shared, 0o755))
	require.NoError(t, os.Chmod(shared, 0o777|os.ModeSticky))
	group := filepath.Join(home, "group")
	require.NoError(t, os.Mkdir(group, 0o755))
	require.NoError(t, os.Chmod(group, 0o775))
	below := filepath.Join(theirs, "below") // root's folder, which the other user can move away
	require.NoError(t, os.Mkdir(below, 0o755))
	led := filepath.Join(home, "led")
	require.NoError(t, os.Symlink(theirs, led))
	back, over := filepath.Join(theirs, "back"), filepath.Join(home, "over") // to folders of root's, by way of theirs
	require.NoError(t, os.Mkdir(filepath.Join(home, "own"), 0o755))
	require.NoError(t, os.Symlink(filepath.Join(home, "own"), back))
	require.NoError(t, os.Lchown(back, 65534, 65534))
	require.NoError(t, os.Symlink(back, over))

	h := newHarness(t)
	run := func(args ...string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // ends a console that serves
		defer cancel()
		return h.app().Run(ctx, args, strings.NewReader(""), new(strings.Builder), new(strings.Builder))
	}
	require.NoError(t, run("create"))
	for _, folder := range []string{theirs, below, led, back, over, group, filepath.Join(theirs, "new")} {
		err := run("console", "--listen", "unix:"+filepath.Join(folder, "s"))
		require.Equal(t, ExitUsage, ExitCode(err), "%s: %v", folder, err)
		require.ErrorContains(t, err, "name a folder that only root can change", folder)
		err = run("pause", "--log", filepath.Join(folder, "link.svg"))
		require.Equal(t, ExitUsage, ExitCode(err), "%s: %v", folder, err)
		require.ErrorContains(t, err, "name a folder that only root can change", folder)
		require.ErrorContains(t, replaceFile(filepath.Join(folder, "link.svg"), []byte("lost")), "only root", folder)
		_, _, err = makeBenchFolder(filepath.Join(folder, "bench"))
		require.ErrorContains(t, err, "only root", folder)
		_, _, err = makeBenchFolder(folder)
		require.ErrorContains(t, err, "only root", folder)
	}
	require.ErrorContains(t, run("pause", "--log", filepath.Join(shared, "log")), "only root can change")
	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "kept", string(text))

	// Each of these makes files of its own in a folder like /tmp.
	l, err := listenUnix(t.Context(), filepath.Join(shared, "s"), 0o600)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, remove, err := makeBenchFolder(shared)
	require.NoError(t, err)
	require.NoError(t, remove())
	require.NoError(t, run("pause", "--log", filepath.Join(home, "log")))
	left, err := os.ReadDir(shared)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestPlotReplacesALink: a picture of bench takes the place of a link, and the file that the link leads to stays as it
// is.
func TestPlotReplacesALink(t *testing.T) {
	folder := t.TempDir()
	victim, plot := filepath.Join(folder, "victim"), filepath.Join(folder, "plot.svg")
	require.NoError(t, os.WriteFile(victim, []byte("kept"), 0o600))
	require.NoError(t, os.Symlink(victim, plot))
	require.NoError(t, replaceFile(plot, []byte("new")))
	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "kept", string(text))
	info, err := os.Lstat(plot)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o644), info.Mode())
}

// TestSocketBeatsTheSwap: a user who can write to the folder of a socket, and puts links in the place of whatever the
// console makes there, changes the mode of no other file.
func TestSocketBeatsTheSwap(t *testing.T) {
	folder := t.TempDir()
	victim := filepath.Join(folder, "victim")
	require.NoError(t, os.WriteFile(victim, nil, 0o644))
	ctx, stop := context.WithCancel(t.Context())
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for ctx.Err() == nil {
			entries, _ := os.ReadDir(folder)
			for _, e := range entries {
				aside, taken := filepath.Join(folder, e.Name()), filepath.Join(folder, "taken"+e.Name())
				if !strings.HasPrefix(e.Name(), ".fdbfifo-") || os.Rename(aside, taken) != nil {
					continue
				}
				if os.Mkdir(aside, 0o777) == nil {
					_ = os.Symlink(victim, filepath.Join(aside, "s"))
				}
			}
		}
	})
	path := filepath.Join(folder, "console.sock")
	for range 300 {
		if l, err := listenUnix(t.Context(), path, 0o660); err == nil {
			_ = l.Close()
		}
		_ = os.RemoveAll(path)
	}
	stop()
	swaps.Wait()
	info, err := os.Lstat(victim)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o644), info.Mode())
}

// TestBusySocketIsNotReplaced: a socket stays in its place if a process may listen on it, though it takes no connection
// now.
func TestBusySocketIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Close(fd)) }()
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
	require.NoError(t, syscall.Listen(fd, 0))
	before, err := os.Lstat(path)
	require.NoError(t, err)
	for {
		c, err := net.Dial("unix", path)
		if err != nil { // no further connection may wait
			require.ErrorIs(t, err, syscall.EAGAIN)
			break
		}
		defer c.Close()
	}
	_, err = listenUnix(t.Context(), path, 0o600)
	require.ErrorIs(t, err, syscall.EAGAIN)
	require.ErrorContains(t, err, "may listen")
	now, err := os.Lstat(path)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, now))
}

// TestRootFollowsNoLinkToAFolder: root does not act on the folder to which a link of another user leads, and makes no
// folder behind such a link, also if a link of root's leads to it. It follows a link of its own.
func TestRootFollowsNoLinkToAFolder(t *testing.T) {
	theirs := strangersFolder(t)
	own := filepath.Join(t.TempDir(), "own")
	db, err := openDisk(t.Context(), EngineOptions{Arg: own, Create: true, Notice: t.Logf})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	link := filepath.Join(theirs, "queues")
	require.NoError(t, os.Symlink(own, link))
	mine := filepath.Join(t.TempDir(), "mine")
	require.NoError(t, os.Symlink(own, mine))
	db, err = openDisk(t.Context(), EngineOptions{Arg: mine, Notice: t.Logf})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.NoError(t, os.Lchown(link, 65534, 65534))
	over := filepath.Join(t.TempDir(), "over")
	require.NoError(t, os.Symlink(link, over))
	again := filepath.Join(filepath.Dir(mine), "again")
	target, err := filepath.Rel(filepath.Dir(mine), over)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(target, again))
	for _, folder := range []string{link, filepath.Join(link, "below", "new"), over, again} {
		_, err = openDisk(t.Context(), EngineOptions{Arg: folder, Create: true, Notice: t.Logf})
		require.ErrorContains(t, err, link+" is a link of another user")
	}
	require.NoDirExists(t, filepath.Join(own, "below"))
	db, err = openDisk(t.Context(), EngineOptions{Arg: link + "/../made", Create: true, Notice: t.Logf})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.NoDirExists(t, filepath.Join(filepath.Dir(own), "made"))
	circle := filepath.Join(t.TempDir(), "circle")
	require.NoError(t, os.Symlink(circle, circle))
	require.ErrorContains(t, checkFolderOfRoot(circle), "more than 40 links")
}
