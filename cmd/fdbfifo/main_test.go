package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/cli"
	"fdbfifo/kv/embedded"
)

// asCommand, set in the environment, makes the test's own binary the command: the tests run it in processes, as a
// user does, and the demo starts its workers from it.
const asCommand = "FDBFIFO_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(cli.Main(cli.New()))
	}
	os.Exit(m.Run())
}

// limit bounds one command. All of them end in a few seconds, on a busy machine in some dozen, so one that meets it
// hangs.
const limit = 5 * time.Minute

// run runs one command line in a process of its own, and holds it to its exit code.
func run(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // its exit code says it
	require.NoError(t, ctx.Err(), "%q hangs: %s", args, errs.String())
	require.Equal(t, code, cmd.ProcessState.ExitCode(), "%q: %s", args, &errs)
	return out.String(), errs.String()
}

// departures writes the first n of the built-in ones to a file.
func departures(t *testing.T, n int) (name string) {
	t.Helper()
	text, err := os.ReadFile("../../data/flights-20k.csv")
	require.NoError(t, err)
	lines := bytes.SplitAfterN(text, []byte("\n"), n+2) // the header, n lines, the rest
	name = filepath.Join(t.TempDir(), "departures.csv")
	require.NoError(t, os.WriteFile(name, bytes.Join(lines[:n+1], nil), 0o600))
	return name
}

// Four processes work on one folder. SIGKILL ends a worker and the process that serves, both with groups in flight.
// Another process takes over. The content of the folder shows that no message is lost, doubled or out of order.
func TestDemoProcessesKilled(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("a folder belongs to one process here")
	}
	t.Setenv("TMPDIR", t.TempDir())
	stdout, stderr := run(t, cli.ExitOK, "demo", "--data", departures(t, 5000), "--lease", "1s", "--json")
	var got map[string]float64
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.EqualValues(t, 5000, got["messages"])
	require.EqualValues(t, 4, got["processes"])
	require.EqualValues(t, 2, got["killed"], stderr)
	require.EqualValues(t, 1, got["takeovers"], stderr)
	require.Zero(t, got["lost"]+got["doubled"]+got["order_violations"])
	require.Contains(t, stderr, "which served the folder")
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left)
}
