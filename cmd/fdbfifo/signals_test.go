//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/cli"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// records writes n records to a file, each of a group of its own.
func records(t *testing.T, n int) (name string) {
	var text bytes.Buffer
	for i := range n {
		fmt.Fprintf(&text, "{\"g\":\"%d\"}\n", i)
	}
	name = filepath.Join(t.TempDir(), "records.jsonl")
	require.NoError(t, os.WriteFile(name, text.Bytes(), 0o600))
	return name
}

// look reads the queue of a folder that no process has open.
func look(t *testing.T, folder string) layer.CheckReport {
	db, err := embedded.OpenDisk(folder, embedded.Options{})
	require.NoError(t, err)
	defer db.Close()
	q, err := layer.Open(t.Context(), db, tuple.Tuple{"fdbfifo"}.Pack(), "default", layer.Options{})
	require.NoError(t, err)
	defer q.Close(t.Context())
	report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	return report
}

// command is the command as a process.
func command(t *testing.T, args ...string) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd, stderr = exec.CommandContext(t.Context(), self, args...), new(bytes.Buffer)
	cmd.Env, cmd.Stderr = append(os.Environ(), asCommand+"=1"), stderr
	return cmd, stderr
}

// TestClosedPipeEndsNoWork: a pipe that nothing reads any more does not end the process: enqueue stores all messages,
// and receive gives back the claims that it cannot print.
func TestClosedPipeEndsNoWork(t *testing.T) {
	t.Parallel()
	folder := "disk:" + t.TempDir()
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{
			[]string{"enqueue", "--ids", "--file", records(t, 600), "--group-field", "g"},
			cli.ExitOutput, "600 messages were enqueued",
		},
		{[]string{"receive", "--max", "5"}, cli.ExitFailed, "gave back group"},
		{[]string{"groups"}, cli.ExitOutput, ""},
	} {
		cmd, stderr := command(t, append(test.args, "--engine", folder)...)
		in, out, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, in.Close())
		cmd.Stdout = out
		err = cmd.Run()
		require.NoError(t, out.Close())
		require.Equal(t, test.code, cmd.ProcessState.ExitCode(), "%q: %v: %s", test.args, err, stderr)
		require.Contains(t, stderr.String(), test.says)
	}
	report := look(t, strings.TrimPrefix(folder, "disk:"))
	require.EqualValues(t, 600, report.Items)
	require.Zero(t, report.Held)
	require.Zero(t, report.Attempts)
}

// TestHangUpEndsWorkInOrder: when the terminal is gone, work lets its commands finish, and holds nothing afterwards.
func TestHangUpEndsWorkInOrder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	run(t, cli.ExitOK, "enqueue", "--file", records(t, 3), "--engine", "disk:"+folder)
	finish := filepath.Join(t.TempDir(), "finish")
	// Else the process inherits that it is to be ignored, if the tests run under nohup.
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)
	defer signal.Stop(hangUp)
	cmd, _ := command(t, "work", "--engine", "disk:"+folder, "--workers", "1", "--exec",
		"echo started; while [ ! -e '"+finish+"' ]; do sleep 0.01; done")
	cmd.Stderr = nil
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	told := bufio.NewReader(errs)
	until := func(text string) {
		for line := ""; !strings.Contains(line, text); {
			var err error
			line, err = told.ReadString('\n')
			require.NoError(t, err)
		}
	}
	until("stopping")
	require.NoError(t, os.WriteFile(finish, nil, 0o600))
	until("handled 1 message, 0 failed, 0 given back")
	require.NoError(t, cmd.Wait())
	report := look(t, folder)
	require.EqualValues(t, 2, report.Items)
	require.Zero(t, report.Held)
	require.Zero(t, report.Attempts)
}

// TestWorkMovesNoDuplicate: work moves messages into another queue by enqueue --refuse-duplicates. One that is a
// duplicate there stays, among the dead letters of its queue.
func TestWorkMovesNoDuplicate(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	run(t, cli.ExitOK, "create", "--set", "max_attempts=1", "--engine", "disk:"+from)
	run(t, cli.ExitOK, "create", "--set", "dedup_by=content", "--engine", "disk:"+to)
	for range 2 {
		run(t, cli.ExitOK, "enqueue", "--body", "same", "--engine", "disk:"+from)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	move := fmt.Sprintf(`'%s' enqueue --engine 'disk:%s' --body "$(cat)" --refuse-duplicates`, self, to)
	_, stderr := run(t, cli.ExitFailed, "work", "--until-empty", "--engine", "disk:"+from, "--exec", move)
	require.Contains(t, stderr, "1 duplicate was not enqueued")
	left, moved := look(t, from), look(t, to)
	require.EqualValues(t, 1, left.Dead)
	require.EqualValues(t, 1, moved.Items)
	run(t, cli.ExitDuplicate, "enqueue", "--body", "same", "--refuse-duplicates", "--engine", "disk:"+to)
}
