//go:build linux || darwin

package embedded_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
)

// process is this binary in another process, with a life of its own.
type process struct {
	*exec.Cmd
	t    testing.TB
	in   io.WriteCloser
	told *bufio.Reader
}

func startProcess(t testing.TB, path, life string, env ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0], life), t: t}
	p.Env = append(append(os.Environ(), shareFolder+"="+path), env...)
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	p.in, p.told = in, bufio.NewReader(out)
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	return p
}

// hear waits until the process has told a word.
func (p *process) hear(want string) {
	p.t.Helper()
	text, err := p.told.ReadString('\n')
	require.NoError(p.t, err)
	require.Equal(p.t, want+"\n", text)
}

func (p *process) tell(text string) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, text)
	require.NoError(p.t, err)
}

// finish lets the process end by itself.
func (p *process) finish() {
	p.t.Helper()
	require.NoError(p.t, p.in.Close())
	require.NoError(p.t, p.Wait())
}

func (p *process) kill() {
	p.t.Helper()
	require.NoError(p.t, p.Process.Kill())
	require.Error(p.t, p.Wait())
}

// opened is a DB that a goroutine has opened, or why it could not.
type opened struct {
	db   *embedded.DB
	err  error
	took time.Duration
}

func openAside(path string) <-chan opened {
	done := make(chan opened, 1)
	go func() {
		begun := time.Now()
		db, err := embedded.OpenDisk(path, embedded.Options{})
		done <- opened{db, err, time.Since(begun)}
	}()
	return done
}

// stillWaits requires that an opening does not end within d.
func stillWaits(t *testing.T, done <-chan opened, d time.Duration) {
	t.Helper()
	select {
	case o := <-done:
		require.Fail(t, "it did not wait", "after %s: %v", o.took, o.err)
	case <-time.After(d):
	}
}

func requireOpened(t *testing.T, done <-chan opened) *embedded.DB {
	t.Helper()
	select {
	case o := <-done:
		require.NoError(t, o.err, "after %s", o.took)
		t.Cleanup(func() { require.NoError(t, o.db.Close()) })
		return o.db
	case <-time.After(patience):
		require.Fail(t, "it waits still")
		return nil
	}
}

// TestOpenerIsKilled: OpenDisk in one process waits while another process opens the folder. When that process is
// killed before it has opened the folder, one of those that wait opens it, and serves the others.
func TestOpenerIsKilled(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	opener := startProcess(t, path, opensOnly)
	opener.hear(toldOpening)
	var others []*process
	for range 3 {
		others = append(others, startProcess(t, path, servesOnly))
	}
	own := openAside(path)
	stillWaits(t, own, time.Second)
	opener.kill()
	db := requireOpened(t, own)
	for _, o := range others {
		o.hear(toldServing)
	}
	put(t, db, "a", "1")
	require.Equal(t, "1", read(t, db, "a"))
	for _, o := range others {
		o.finish()
	}
}

// TestOpenersAreKilledInTurn: each process that opens a folder and is killed gives those that wait their time again.
// Nine openings of more than a second each are more than OpenDisk waits for one that shows no life.
func TestOpenersAreKilledInTurn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than OpenDisk waits for a silent process")
	}
	t.Parallel()
	path := t.TempDir()
	opener := startProcess(t, path, opensOnly)
	opener.hear(toldOpening)
	var others []*process
	for range 8 {
		others = append(others, startProcess(t, path, opensOnly))
	}
	told := make(chan *process, len(others))
	for _, o := range others {
		go func() {
			if text, _ := o.told.ReadString('\n'); text == toldOpening+"\n" {
				told <- o
			} else {
				told <- nil // it has given up
			}
		}()
	}
	for range others {
		time.Sleep(1500 * time.Millisecond) // a slow opening
		opener.kill()
		select {
		case opener = <-told:
			require.NotNil(t, opener, "it did not wait")
		case <-time.After(patience):
			require.Fail(t, "one of those that wait opens the folder")
		}
	}
	opener.tell("")
	opener.hear(toldServing)
	opener.finish()
}

// TestLongOpening: OpenDisk waits for a process that opens the folder for longer than for one that shows no life. It
// is served by that process then.
func TestLongOpening(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than OpenDisk waits for a silent process")
	}
	t.Parallel()
	path := t.TempDir()
	opener := startProcess(t, path, opensOnly)
	opener.hear(toldOpening)
	own := openAside(path)
	stillWaits(t, own, 13*time.Second)
	opener.tell("")
	opener.hear(toldServing)
	db := requireOpened(t, own)
	require.False(t, db.Serves())
	put(t, db, "a", "1")
	opener.finish()
	require.Equal(t, "1", read(t, db, "a"))
}

// TestStoppedOpener: a process that is stopped while it opens the folder shows no life. OpenDisk waits ten seconds for
// it, and the error names the process.
func TestStoppedOpener(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as OpenDisk waits for a silent process")
	}
	t.Parallel()
	path := t.TempDir()
	opener := startProcess(t, path, opensOnly)
	opener.hear(toldOpening)
	require.NoError(t, opener.Process.Signal(syscall.SIGSTOP))
	select {
	case o := <-openAside(path):
		require.ErrorIs(t, o.err, embedded.ErrLocked)
		require.ErrorContains(t, o.err, fmt.Sprintf("process %d", opener.Process.Pid))
		require.ErrorContains(t, o.err, path)
		require.GreaterOrEqual(t, o.took, 10*time.Second)
	case <-time.After(patience):
		require.Fail(t, "it waits still")
	}
}

// TestHolderIsNamed: a process that has the folder and does not serve it, and one that serves it and is in the way of
// one that wants it alone, are named in the error. A process that has the folder alone is waited for two seconds.
func TestHolderIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, life string
		noSocket   bool
		o          embedded.Options
		within     time.Duration
	}{
		{"exclusive", aloneOnly, false, embedded.Options{}, 9 * time.Second},
		{"both exclusive", aloneOnly, false, embedded.Options{Exclusive: true}, 9 * time.Second},
		{"exclusive, and a reader", aloneOnly, false, embedded.Options{ReadOnly: true}, 9 * time.Second},
		{"serving, and one that is exclusive", servesOnly, false, embedded.Options{Exclusive: true}, 9 * time.Second},
		{"no socket can be made", servesOnly, true, embedded.Options{}, patience},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.noSocket && testing.Short() {
				t.Skip("takes as long as OpenDisk waits for a silent process")
			}
			t.Parallel()
			path := t.TempDir()
			if c.noSocket {
				require.NoError(t, os.MkdirAll(filepath.Join(path, "kv.socket", "full"), 0o700))
			}
			holder := startProcess(t, path, c.life)
			holder.hear(toldServing)
			begun := time.Now()
			_, err := embedded.OpenDisk(path, c.o)
			require.ErrorIs(t, err, embedded.ErrLocked)
			require.ErrorContains(t, err, fmt.Sprintf("process %d", holder.Process.Pid))
			require.ErrorContains(t, err, path)
			require.Less(t, time.Since(begun), c.within)
			holder.finish()
			require.NoFileExists(t, filepath.Join(path, "kv.pid"))
			openDisk(t, path, embedded.Options{})
		})
	}
}

// TestDeadHolderIsNotNamed: the number that a killed process has left is not given out for that of one that reads.
func TestDeadHolderIsNotNamed(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	holder := startProcess(t, path, aloneOnly)
	holder.hear(toldServing)
	holder.kill()
	require.FileExists(t, filepath.Join(path, "kv.pid"))
	reader := openDisk(t, path, embedded.Options{ReadOnly: true})
	_, err := embedded.OpenDisk(path, embedded.Options{})
	require.ErrorIs(t, err, embedded.ErrLocked)
	require.NotContains(t, err.Error(), "held by process")
	said := strings.ReplaceAll(err.Error(), path, "") // the folder's name has digits, too
	require.NotContains(t, said, fmt.Sprint(holder.Process.Pid))
	require.NoError(t, reader.Close())
	openDisk(t, path, embedded.Options{})
}

// TestNumberOfAnotherProcess: the number that a killed process has left may be in use again, or be that of a process in
// another container. A process that has that number and not the folder is not named.
func TestNumberOfAnotherProcess(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("the system does not tell when a process has started")
	}
	path := t.TempDir()
	holder := startProcess(t, path, aloneOnly)
	holder.hear(toldServing)
	holder.kill()
	left, err := os.ReadFile(filepath.Join(path, "kv.pid"))
	require.NoError(t, err)
	openDisk(t, path, embedded.Options{ReadOnly: true})
	_, rest, _ := strings.Cut(string(left), " ")
	for _, left := range []string{fmt.Sprintln(os.Getpid(), rest), fmt.Sprintln(os.Getpid())} {
		require.NoError(t, os.WriteFile(filepath.Join(path, "kv.pid"), []byte(left), 0o600))
		_, err := embedded.OpenDisk(path, embedded.Options{Exclusive: true})
		require.ErrorIs(t, err, embedded.ErrLocked)
		require.NotContains(t, err.Error(), "held by process")
	}
}

// TestSocketIsMadeAgain: a program removes the socket of the process that serves the folder, or something was in the
// way of the socket when that process opened the folder. The process makes the socket as soon as it can. Another
// process then gets in, and works with the same database.
func TestSocketIsMadeAgain(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("no socket here")
	}
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%t", late), func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			socket := filepath.Join(path, "kv.socket")
			if late {
				require.NoError(t, os.MkdirAll(filepath.Join(socket, "full"), 0o700))
			}
			server := openDisk(t, path, embedded.Options{})
			require.NoError(t, os.RemoveAll(socket))
			client := requireOpened(t, openAside(path))
			require.False(t, client.Serves())
			put(t, client, "a", "1")
			require.Equal(t, "1", read(t, server, "a"))
			require.NoError(t, server.Close())
			require.Equal(t, "1", read(t, client, "a"))
		})
	}
}

// TestStaleSocket: OpenDisk waits while another process has the folder's lock and has not made its socket yet. The
// socket that a killed process has left does not mislead it.
func TestStaleSocket(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	holder := startProcess(t, path, servesOnly)
	holder.hear(toldServing)
	holder.kill()
	_, err := os.Lstat(filepath.Join(path, "kv.socket"))
	require.NoError(t, err)
	d, err := os.Open(path)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(d.Fd()), syscall.LOCK_EX))
	own := openAside(path)
	stillWaits(t, own, time.Second)
	require.NoError(t, d.Close())
	require.True(t, requireOpened(t, own).Serves())
}
