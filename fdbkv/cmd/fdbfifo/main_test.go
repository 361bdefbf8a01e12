package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apple/foundationdb/bindings/go/src/fdb"
	"github.com/apple/foundationdb/bindings/go/src/fdb/directory"
	"github.com/stretchr/testify/require"

	"fdbfifo/cli"
	"fdbfifo/fdbkv"
	"fdbfifo/fdbkv/internal/cluster"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

// asCommand, set in the environment, makes the test's own binary the command: the tests run it in processes, as a
// user does, and the demo starts its workers from it.
const asCommand = "FDBFIFO_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(cli.Main(app()))
	}
	os.Exit(cluster.Tests(m.Run))
}

// limit bounds one command. All of them end in a few seconds, on a busy machine in some dozen, so one that meets it
// hangs.
const limit = 5 * time.Minute

// run runs one command line in a process of its own, with more in its environment.
func run(t *testing.T, more []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(append(os.Environ(), asCommand+"=1"), more...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	require.NoError(t, ctx.Err(), "%q hangs: %s", args, errs.String())
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// queue returns a name that no other test, nor an earlier run on the same cluster, has used.
func queue(t *testing.T) string {
	return fmt.Sprintf("%s-%d-%d", t.Name(), os.Getpid(), time.Now().UnixNano())
}

// departures writes the first n of the built-in ones to a file.
func departures(t *testing.T, n int) (name string) {
	t.Helper()
	text, err := os.ReadFile("../../../data/flights-20k.csv")
	require.NoError(t, err)
	lines := bytes.SplitAfterN(text, []byte("\n"), n+2) // the header, n lines, the rest
	name = filepath.Join(t.TempDir(), "departures.csv")
	require.NoError(t, os.WriteFile(name, bytes.Join(lines[:n+1], nil), 0o600))
	return name
}

// One process enqueues messages, and another finds and finishes them.
func TestCommands(t *testing.T) {
	q := queue(t)
	_, stderr, code := run(t, nil, "enqueue", "--engine", "fdb", "--queue", q, "--group", "ATL", "--body", "hello")
	require.Equal(t, cli.ExitOK, code, stderr)
	_, stderr, code = run(t, nil, "enqueue", "--engine", "fdb:"+os.Getenv(fdbkv.ClusterFileVariable), "--queue", q, "--group", "ATL", "--body", "again")
	require.Equal(t, cli.ExitOK, code, stderr)
	stdout, stderr, code := run(t, nil, "groups", "--engine", "fdb", "--queue", q, "--json")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Contains(t, stdout, `"group":"ATL","status":"ready","depth":2,`)
	stdout, stderr, code = run(t, nil, "work", "--engine", "fdb", "--queue", q, "--exec", "cat; echo", "--until-empty")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Equal(t, "hello\nagain\n", stdout)
	_, stderr, code = run(t, nil, "check", "--engine", "fdb", "--queue", q)
	require.Equal(t, cli.ExitOK, code, stderr)
}

// A queue in a directory that the bindings have made, in a partition too, is found by its path. A command that looks
// elsewhere prints the path.
func TestDirectories(t *testing.T) {
	require.NoError(t, selectAPIVersion())
	db, err := fdb.OpenDatabase(os.Getenv(fdbkv.ClusterFileVariable))
	require.NoError(t, err)
	root := queue(t)
	_, err = directory.CreateOrOpen(db, []string{root, "part"}, []byte("partition"))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := directory.Root().Remove(db, []string{root})
		require.NoError(t, err)
	})
	for _, path := range [][]string{{root, "queues"}, {root, "part", "queues"}} {
		dir, err := directory.CreateOrOpen(db, path, nil)
		require.NoError(t, err)
		q, err := layer.Create(t.Context(), fdbkv.From(db), dir.Bytes(), "orders", layer.Options{})
		require.NoError(t, err)
		require.NoError(t, q.Close(t.Context()))
		text := strings.Join(path, "/")
		stdout, stderr, code := run(t, nil, "queues", "--engine", "fdb", "--directory", text)
		require.Equal(t, cli.ExitOK, code, stderr)
		require.Equal(t, "orders\n", stdout)
		_, stderr, code = run(t, nil, "stats", "--engine", "fdb", "--directory", text, "--queue", "nowhere")
		require.Equal(t, cli.ExitNoQueue, code, stderr)
		require.Contains(t, stderr, "There are: orders.")
	}
	_, stderr, code := run(t, nil, "stats", "--engine", "fdb", "--directory", root+"/none")
	require.Equal(t, cli.ExitNoQueue, code, stderr)
	require.Contains(t, stderr, "has: part, queues.")
}

// Four worker processes work on a queue. SIGKILL ends one of them with groups in flight. The content of the database
// shows that no message is lost, doubled or out of order, and that others took over the groups of the dead process.
func TestDemoProcessesKilled(t *testing.T) {
	stdout, stderr, code := run(t, nil, "demo", "--engine", "fdb", "--queue", queue(t), "--data", departures(t, 5000),
		"--processes", "4", "--kill", "--lease", "2s", "--json")
	require.Equal(t, cli.ExitOK, code, stderr)
	var got map[string]float64
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.EqualValues(t, 5000, got["messages"])
	require.EqualValues(t, 4, got["processes"])
	require.EqualValues(t, 1, got["killed"], stderr)
	require.Positive(t, got["taken_over"], stderr)
	require.Zero(t, got["lost"]+got["doubled"]+got["order_violations"])
}

// Each way in which a cluster cannot be used has its own exit code, and a text that says what and what to do.
func TestUnusable(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	nobody := unusedAddress(t)
	malformed, away := file("malformed", "x@y\n"), file("away", "x:y@"+nobody+"\n")
	for _, test := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"no cluster file", []string{"--engine", "fdb:" + folder + "/none"}, cli.ExitClusterFile, []string{folder + "/none", "FDB_CLUSTER_FILE"}},
		{"unreadable", []string{"--engine", "fdb:" + folder}, cli.ExitClusterFile, []string{folder}},
		{"malformed", []string{"--engine", "fdb:" + malformed}, cli.ExitClusterFile, []string{malformed, "description:id@host:port"}},
		{"unreachable", []string{"--engine", "fdb:" + away}, cli.ExitUnreachable, []string{away, nobody}},
		{"no queue", []string{"--engine", "fdb", "--queue", queue(t)}, cli.ExitNoQueue, []string{"there is no queue"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := run(t, nil, append([]string{"stats"}, test.args...)...)
			require.Equal(t, test.code, code, stderr)
			require.Empty(t, stdout)
			for _, text := range test.says {
				require.Contains(t, stderr, text)
			}
		})
	}
}

// FDB_CLUSTER_FILE is where --engine fdb looks, and the message names the file that it led to.
func TestClusterFileVariable(t *testing.T) {
	_, stderr, code := run(t, []string{fdbkv.ClusterFileVariable + "=/no/such/file"}, "stats", "--engine", "fdb")
	require.Equal(t, cli.ExitClusterFile, code)
	require.Contains(t, stderr, "/no/such/file")
}

// unusedAddress returns an address on which no process listens.
func unusedAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// A command does not wait for a database that an operator has locked. The test locks a cluster of its own.
func TestLocked(t *testing.T) {
	c, err := cluster.Start(t.Context())
	if errors.Is(err, cluster.ErrNoBinaries) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Stop()) }()
	require.NoError(t, selectAPIVersion())
	db, err := fdb.OpenDatabase(c.File)
	require.NoError(t, err)
	_, err = db.Transact(func(tr fdb.Transaction) (any, error) {
		if err := errors.Join(tr.Options().SetLockAware(), tr.Options().SetAccessSystemKeys()); err != nil {
			return nil, err
		}
		// As fdbcli's lock does: a versionstamp, and the lock's id behind it.
		value := append(make([]byte, 10), "0123456789abcdef"...)
		tr.SetVersionstampedValue(fdb.Key("\xff/dbLocked"), binary.LittleEndian.AppendUint32(value, 0))
		return nil, nil
	})
	require.NoError(t, err)
	for _, args := range [][]string{{"stats"}, {"enqueue", "--body", "x"}, {"work", "--exec", "true"}} {
		_, stderr, code := run(t, nil, append(args, "--engine", "fdb:"+c.File)...)
		require.Equal(t, cli.ExitLocked, code, stderr)
		require.Contains(t, stderr, "unlock")
	}
}

// The errors of fdbkv that no cluster file brings about.
func TestExplain(t *testing.T) {
	for err, code := range map[error]int{
		fmt.Errorf("x: %w", fdbkv.ErrAPIVersion):  cli.ExitAPIVersion,
		wrongVersion(fdb.Error{Code: 2203}):       cli.ExitAPIVersion,
		&kv.Error{Code: kv.CodeDatabaseLocked}:    cli.ExitLocked,
		fmt.Errorf("x: %w", fdbkv.ErrUnreachable): cli.ExitUnreachable,
		fmt.Errorf("x: %w", context.Canceled):     cli.ExitInterrupted,
		errors.New("another one"):                 cli.ExitFailed,
	} {
		require.Equal(t, code, cli.ExitCode(explain(err)), err.Error())
	}
}

// --help says which engines there are, and the API version.
func TestHelp(t *testing.T) {
	stdout, _, code := run(t, nil, "--help")
	require.Equal(t, cli.ExitOK, code)
	words := strings.Join(strings.Fields(stdout), " ")
	require.Contains(t, words, "fdb:CLUSTERFILE")
	require.Contains(t, words, "API version 730")
	_, stderr, code := run(t, nil, "demo", "--processes", "2", "--engine", "memory")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "--engine disk or fdb")
}
