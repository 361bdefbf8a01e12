//go:build linux

package embedded_test

import (
	"fmt"
	"io"
	"net"
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

// strangerFolder, in the environment, is the folder that TestStranger opens.
const strangerFolder = "FDBFIFO_STRANGER"

// stranger is a user who owns nothing here.
const stranger = 65534

// strangerTask, in the environment, is what TestStranger does; strangerVictim is the file it is after.
const (
	strangerTask   = "FDBFIFO_STRANGER_TASK"
	strangerVictim = "FDBFIFO_STRANGER_VICTIM"
)

// TestStranger is the process of another user that other tests start, and nothing without that.
func TestStranger(t *testing.T) {
	path := os.Getenv(strangerFolder)
	switch task := os.Getenv(strangerTask); {
	case path == "":
		t.Skip("of other tests, which start it")
	case task == "serve":
		strangerServes(t, path)
		return
	case task == "swap":
		strangerSwaps(path, os.Getenv(strangerVictim))
		return
	}
	db, err := embedded.OpenDisk(path, embedded.Options{})
	if err == nil {
		err = db.Close()
	}
	fmt.Printf("told: %v\n", err)
	c, err := net.Dial("unix", filepath.Join(path, "kv.socket"))
	if err == nil {
		defer c.Close()
		if err = c.SetReadDeadline(time.Now().Add(patience)); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
	}
	fmt.Printf("at the socket: %v\n", err)
}

// asStranger runs TestStranger as that user, and returns what it was told.
func asStranger(t *testing.T, self, path string) string {
	t.Helper()
	out, err := strangerCommand(self, path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, told, found := strings.Cut(string(out), "told: ")
	require.True(t, found, "%s", out)
	return told
}

// strangerCommand is TestStranger as that user.
func strangerCommand(self, path string, env ...string) *exec.Cmd {
	c := exec.Command(self, "-test.run", "^TestStranger$", "-test.v")
	c.Dir, c.Env = "/", append(append(os.Environ(), strangerFolder+"="+path), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	return c
}

// strangerHome returns a folder that all can enter, with a copy of this program there that all can run.
func strangerHome(t *testing.T) (home, self string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	home = t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(home), 0o755)) // of this test alone
	self = filepath.Join(home, "self")
	from, err := os.Open(os.Args[0])
	require.NoError(t, err)
	defer from.Close()
	to, err := os.OpenFile(self, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(to, from)
	require.NoError(t, err)
	require.NoError(t, to.Close())
	return home, self
}

// TestStrangers: another user who opens a folder is told that he may not, whether it is served or not, also where the
// socket's mode lets him in. Its owner does not notice.
func TestStrangers(t *testing.T) {
	home, self := strangerHome(t)
	path := filepath.Join(home, "db")
	require.NoError(t, os.Mkdir(path, 0o755))
	db, err := embedded.OpenDisk(path, embedded.Options{})
	require.NoError(t, err)
	put(t, db, "a", "1")
	denied := func(what string) {
		t.Helper()
		told := asStranger(t, self, path)
		require.Contains(t, told, "permission denied", what)
		require.Contains(t, told, path, what)
	}
	denied("served")
	require.NoError(t, os.Chmod(filepath.Join(path, "kv.socket"), 0o666))
	require.Contains(t, asStranger(t, self, path), "at the socket: EOF", "he is sent away, whatever the socket's mode")
	put(t, db, "a", "2")
	require.Equal(t, "2", read(t, db, "a"))
	require.NoError(t, db.Close())
	denied("not served")
	require.NoError(t, os.Chmod(path, 0o700))
	denied("unreadable")
	require.Equal(t, "2", read(t, openDisk(t, path, embedded.Options{}), "a"))
}
