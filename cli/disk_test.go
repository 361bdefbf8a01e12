package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// onDisk runs a command line as a user does and returns its streams and exit code.
func onDisk(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	err := Run(context.Background(), args, nil, &out, &errs)
	return out.String(), errs.String(), ExitCode(err)
}

// One command finds the messages that another has enqueued, because the default engine keeps queues in the user's data
// directory. The command that makes the directory says so.
func TestDefaultFolder(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_DATA_HOME", home)

	_, stderr, code := onDisk("stats")
	require.Equal(t, ExitNoQueue, code)
	require.Contains(t, stderr, "there are no queues in")
	require.NoDirExists(t, filepath.Join(home, "fdbfifo"), "a read-only command has made a folder")

	_, stderr, code = onDisk("enqueue", "--group", "a", "--body", "hello")
	require.Equal(t, ExitOK, code, stderr)
	require.Contains(t, stderr, "queues are kept in "+filepath.Join(home, "fdbfifo"))

	stdout, stderr, code := onDisk("peek", "--group", "a")
	require.Equal(t, ExitOK, code)
	require.Empty(t, unhurried(stderr))
	require.Contains(t, stdout, "hello")
}

// TestLookingMakesNoDatabase: a command that changes nothing makes no database in a folder that has other files. A
// command that makes the first queue there says where it is.
func TestLookingMakesNoDatabase(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "notes"), nil, 0o600))
	for name := range looking {
		args := append(strings.Fields(name), "--engine", "disk:"+folder)
		switch name {
		case "key", "decode":
			continue // which open no database
		case "why", "find":
			args = append(args, layer.ID{Group: "g", Random: uuid.New()}.String())
		}
		_, stderr, code := onDisk(args...)
		require.Equal(t, ExitNoQueue, code, "%s: %s", name, stderr)
		require.Contains(t, stderr, "fdbfifo --engine disk:"+folder+" enqueue makes the first.", name)
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Len(t, entries, 1, name)
	}
	_, stderr, code := onDisk("enqueue", "--body", "x", "--engine", "disk:"+folder)
	require.Equal(t, ExitOK, code, stderr)
	require.Contains(t, stderr, "queues are kept in "+folder)
	require.FileExists(t, filepath.Join(folder, "kv.bbolt"))
}

// TestOpeningEndsAtCtrlC: another process has the folder and does not answer. The command says after a second that it
// still opens the folder, and the first Ctrl-C ends it.
func TestOpeningEndsAtCtrlC(t *testing.T) {
	t.Parallel()
	var folder *os.File
	t.Cleanup(func() { folder.Close() }) // once the path is gone: the opening that is left behind must find nothing
	path := t.TempDir()
	_, stderr, code := onDisk("enqueue", "--body", "x", "--engine", "disk:"+path)
	require.Equal(t, ExitOK, code, stderr)
	var err error
	folder, err = os.Open(path)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(folder.Fd()), syscall.LOCK_EX)) // as the process that serves the folder does
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	told := newScreen("still opening " + path)
	late := time.After(9 * time.Second) // of the ten that a silent process is waited for
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, []string{"stats", "--engine", "disk:" + path}, nil, io.Discard, told) }()
	select {
	case <-told.seen:
	case <-late:
		require.Fail(t, "it says nothing", told)
	}
	interrupt()
	select {
	case err := <-ended:
		require.Equal(t, ExitInterrupted, ExitCode(err), told)
	case <-late:
		require.Fail(t, "it does not end")
	}
}

// Without XDG_DATA_HOME, or with one that is not absolute, the folder is the one the XDG rules name.
func TestDataFolder(t *testing.T) {
	t.Setenv("HOME", "/home/someone")
	for _, base := range []string{"", "relative"} {
		t.Setenv("XDG_DATA_HOME", base)
		folder, err := dataFolder()
		require.NoError(t, err)
		require.Equal(t, "/home/someone/.local/share/fdbfifo", folder)
	}
}

// unhurried is stderr without the line that a command writes if it opens its folder for a second, as on a busy machine.
func unhurried(stderr string) string {
	return regexp.MustCompile(`(?m)^fdbfifo: still opening .*\n`).ReplaceAllString(stderr, "")
}

// The command works on a folder that a program has open, and the program sees what the command did.
func TestFolderInUse(t *testing.T) {
	folder := t.TempDir()
	db, err := embedded.OpenDisk(folder, embedded.Options{})
	require.NoError(t, err)
	defer db.Close()
	_, stderr, code := onDisk("enqueue", "--group", "a", "--body", "x", "--engine", "disk:"+folder)
	require.Equal(t, ExitOK, code, stderr)
	stdout, stderr, code := onDisk("peek", "--group", "a", "--engine", "disk:"+folder)
	require.Equal(t, ExitOK, code, stderr)
	require.Contains(t, stdout, "x")
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	rows, err := tx.GetRange(kv.PrefixRange(nil).Selectors(), kv.RangeOptions{}).Wait(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, rows)
}

// A second process on a folder that a program has for itself is told so, and what to do.
func TestFolderExclusive(t *testing.T) {
	folder := t.TempDir()
	db, err := embedded.OpenDisk(folder, embedded.Options{Exclusive: true})
	require.NoError(t, err)
	defer db.Close()
	_, stderr, code := onDisk("enqueue", "--body", "x", "--engine", "disk:"+folder)
	require.Equal(t, ExitFailed, code)
	require.Contains(t, stderr, "does not share it")
}

// A file that is no database is named, and left as it is.
func TestCorruptFile(t *testing.T) {
	folder := t.TempDir()
	_, stderr, code := onDisk("enqueue", "--body", "x", "--engine", "disk:"+folder)
	require.Equal(t, ExitOK, code, stderr)
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, files, 1)
	name := filepath.Join(folder, files[0].Name())
	garbage := bytes.Repeat([]byte("garbage "), 8192)
	require.NoError(t, os.WriteFile(name, garbage, 0o600))

	_, stderr, code = onDisk("stats", "--engine", "disk:"+folder)
	require.Equal(t, ExitFailed, code)
	require.Contains(t, stderr, "Restore it from a copy")
	after, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, garbage, after)
}

// A path through a file cannot be a folder.
func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, stderr, code := onDisk("enqueue", "--body", "x", "--engine", "disk:"+filepath.Join(file, "queues"))
	require.Equal(t, ExitFailed, code)
	require.Contains(t, stderr, file)
}

// A user can inspect a read-only copy of a folder. The command says that the copy is read-only, and from when it is. A
// command that writes is refused with advice. No command leaves a file in the folder.
func TestReadOnlyCopy(t *testing.T) {
	folder := t.TempDir()
	run := func(args string) (string, string, int) {
		return onDisk(append(strings.Fields(args), "--engine", "disk:"+folder)...)
	}
	stdout, stderr, code := run("enqueue --group a --body hello")
	require.Equal(t, ExitOK, code, stderr)
	id := strings.Fields(stdout)[1]
	_, stderr, code = run("enqueue --group b --body there")
	require.Equal(t, ExitOK, code, stderr)
	stdout, stderr, code = run("receive --group b")
	require.Equal(t, ExitOK, code, stderr)
	require.NotEmpty(t, stdout)
	name := filepath.Join(folder, "kv.bbolt")
	require.NoError(t, os.Chmod(name, 0o400))
	require.NoError(t, os.Chmod(folder, 0o500))
	t.Cleanup(func() { require.NoError(t, os.Chmod(folder, 0o700)) })
	before, err := os.ReadFile(name)
	require.NoError(t, err)
	info, err := os.Stat(name)
	require.NoError(t, err)
	told := "fdbfifo: " + folder + " is read-only: seen as it was last written, " +
		info.ModTime().UTC().Format("2006-01-02 15:04:05 UTC") + "\n"

	for args, want := range map[string]string{
		"stats --json": `"depth":2`, "groups": "held", "peek": "hello", "why " + id: "ready", "check": "",
		"queues": "default", "config": "lease", "dead list": "no dead letters", "archive list": "",
		"state --group a": "", "find nothing": "", "subscriptions": "",
	} {
		stdout, stderr, code := run(args)
		require.Equal(t, ExitOK, code, "%s: %s", args, stderr)
		require.True(t, strings.HasPrefix(unhurried(stderr), told), "%s: %s", args, stderr)
		require.Contains(t, stdout, want, args)
	}
	for _, args := range []string{
		"enqueue --body x", "enqueue --queue new --body x", "create new", "receive", "work --until-empty --exec cat",
		"sweep", "pause", "pause --group a", "cancel " + id, "purge --all --yes", "drop default --yes", "demo",
		"config default --set lease=1m", "reschedule " + id + " --after 1h", "bench --run enqueue_conflicts",
	} {
		_, stderr, code := run(args)
		require.Equal(t, ExitFailed, code, "%s: %s", args, stderr)
		require.Contains(t, stderr, "the folder is read-only: "+folder, args)
		require.Contains(t, stderr, "Nothing was written.", args)
	}
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	after, err := os.ReadFile(name)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after))
}

// TestGoneFolderIsNotCalledKept: the advice for a folder that was taken away says how to get the messages back. Neither
// that advice nor that for any other error of the storage says that messages are kept. The error of another process,
// that serves the folder, gets the same advice.
func TestGoneFolderIsNotCalledKept(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("one process has the folder alone")
	}
	folder := filepath.Join(t.TempDir(), "data")
	server, err := embedded.OpenDisk(folder, embedded.Options{})
	require.NoError(t, err)
	defer server.Close()
	client, err := embedded.OpenDisk(folder, embedded.Options{})
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, os.RemoveAll(folder))
	for _, db := range []kv.DB{server, client} {
		_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set([]byte("a"), nil)
			return nil
		})
		require.Contains(t, (&session{}).explain(err), "was removed while it was open")
		require.Contains(t, (&session{}).explain(err), "put the\n  folder back, or restore a copy")
		require.NotContains(t, (&session{}).explain(err), "are kept")
	}
	other := (&session{}).explain(&kv.Error{Code: kv.CodeIOError, Cause: os.NewSyscallError("open", syscall.EMFILE)})
	require.NotContains(t, other, "are kept")
	require.NotContains(t, other, "The storage has failed")
}

// An error of the system is told with the call that has failed. It is not called damage, and no copy is advised.
func TestSystemErrorIsNoDamage(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.ENODEV, syscall.ENOLCK} {
		err := fmt.Errorf("open: %w", &kv.Error{Code: kv.CodeIOError, Cause: os.NewSyscallError("mmap", errno)})
		text := (&session{}).explain(err)
		require.Contains(t, text, "mmap: "+errno.Error())
		require.Contains(t, text, "no damage")
		require.NotContains(t, text, "Restore")
		require.NotContains(t, text, "takes no more writes")
	}
}
