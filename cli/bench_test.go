package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/bench"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// benchSession is a session whose benchmarks are tiny: what is tested is the command, not the speed.
func benchSession(engine string, asJSON bool) (s *session, stdout, stderr *bytes.Buffer) {
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	app := &App{Engines: Embedded(), Now: time.Now, size: terminalSize, spawn: spawnHere}
	return &session{app: app, stdout: stdout, stderr: stderr, engine: engine, json: asJSON}, stdout, stderr
}

// spawnHere starts a process that is a goroutine. It ends only by itself.
func spawnHere(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error) {
	in, out := io.Pipe()
	p := &fakeProcess{stdin: out, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = New().Run(ctx, args, in, stdout, stderr)
	}()
	return &endless{p}, nil
}

type endless struct{ *fakeProcess }

func (p *endless) Kill() error { return p.Stop() }

// requiredFigures are those that scripts may count on.
var requiredFigures = []string{
	"engine_ratio", "depth_ratio", "groups_ratio", "held_ratio", "enqueue_conflicts", "mutations_per_message",
	"claimers_floor", "conflicts_per_claim", "transactions_per_item_one_group", "idle_transactions_per_s",
	"wake_p50_roundtrips", "wake_p99_roundtrips", "coalescing_gain", "transactions_per_batch",
}

// With --json each figure is an object on a line of its own with exactly a name, a value and a unit.
func TestBenchJSON(t *testing.T) {
	s, stdout, _ := benchSession("memory", true)
	require.NoError(t, s.bench(t.Context(), bench.All(bench.Tiny()), benchFlags{}))
	var names []string
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var line struct {
			Name  *string  `json:"name"`
			Value *float64 `json:"value"`
			Unit  *string  `json:"unit"`
		}
		d := json.NewDecoder(strings.NewReader(lines.Text()))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&line), lines.Text())
		require.NotNil(t, line.Name)
		require.NotNil(t, line.Value)
		require.NotNil(t, line.Unit)
		names = append(names, *line.Name)
	}
	require.Subset(t, names, requiredFigures)
}

// The table has a row for each figure, and the target of those that have one.
func TestBenchTable(t *testing.T) {
	s, stdout, stderr := benchSession("memory", false)
	figures := []string{"depth_ratio", "enqueue_conflicts", "mutations_per_message"}
	require.NoError(t, s.bench(t.Context(), bench.All(bench.Tiny()), benchFlags{run: figures}))
	for _, name := range figures {
		require.Contains(t, stdout.String(), "\n"+name)
	}
	require.Contains(t, stdout.String(), "≤ 1.1")
	require.Contains(t, stderr.String(), "engine memory")
}

// --run runs what it names, in that order, and nothing else.
func TestBenchRunsByName(t *testing.T) {
	s, stdout, _ := benchSession("memory", true)
	require.NoError(t, s.bench(t.Context(), bench.All(bench.Tiny()), benchFlags{run: []string{"enqueue_conflicts"}}))
	require.Contains(t, stdout.String(), `{"name":"enqueue_conflicts","value":0,"unit":"conflicts"}`)
	for _, name := range requiredFigures {
		require.Equal(t, name == "enqueue_conflicts", strings.Contains(stdout.String(), `"`+name+`"`), name)
	}

	var usage *usageError
	require.ErrorAs(t, s.bench(t.Context(), bench.All(bench.Tiny()), benchFlags{run: []string{"speed"}}), &usage)
}

// --list names each benchmark and runs none.
func TestBenchList(t *testing.T) {
	s, stdout, stderr := benchSession("memory", false)
	require.NoError(t, s.bench(t.Context(), bench.All(bench.Full()), benchFlags{list: true}))
	for _, b := range bench.All(bench.Full()) {
		require.Contains(t, stdout.String(), "\n"+b.Name)
	}
	require.Empty(t, stderr.String())
}

// On disk nothing is left behind, and nothing that was there is touched, also when the benchmark is interrupted.
func TestBenchOnDisk(t *testing.T) {
	t.Run("a new folder", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "new")
		s, _, _ := benchSession("disk:"+folder, true)
		require.NoError(t, s.bench(t.Context(), bench.All(bench.Tiny()), benchFlags{run: []string{"held_ratio"}}))
		require.NoDirExists(t, folder)
	})
	t.Run("a folder with other things", func(t *testing.T) {
		folder := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(folder, "mine"), nil, 0o600))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, ctx := range []context.Context{t.Context(), ctx} {
			s, _, _ := benchSession("disk:"+folder, true)
			err := s.bench(ctx, bench.All(bench.Tiny()), benchFlags{run: []string{"mutations_per_message"}})
			if ctx.Err() != nil {
				require.Equal(t, ExitInterrupted, ExitCode(err), "%v", err)
			} else {
				require.NoError(t, err)
			}
			entries, err := os.ReadDir(folder)
			require.NoError(t, err)
			require.Len(t, entries, 1)
			require.Equal(t, "mine", entries[0].Name())
		}
	})
}

// An engine that holds the data of others gets it back as it was.
func TestBenchLeavesOtherDataAlone(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	write := func(key string) {
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set([]byte(key), []byte("mine"))
			return nil
		})
		require.NoError(t, err)
	}
	write("a")
	write("\xf0")
	rows := func() (rows []kv.KV) {
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
			rows, err = tx.GetRange(kv.KeyRange{End: []byte{0xff}}.Selectors(), kv.RangeOptions{}).Wait(t.Context())
			return err
		})
		require.NoError(t, err)
		return rows
	}
	before := rows()
	s, _, _ := benchSession("cluster:file", true)
	s.app.Engines["cluster"] = func(_ context.Context, o EngineOptions) (kv.DB, error) {
		if o.Arg != "file" {
			return nil, errors.New("the engine's argument is lost")
		}
		return shared{db}, nil
	}
	require.NoError(t, s.bench(t.Context(), bench.All(bench.Tiny()), benchFlags{run: []string{"depth_ratio"}}))
	require.Equal(t, before, rows())
}

// --plot writes the drawing, and a table in the same folder with the figures, the engine and the machine.
func TestBenchPlot(t *testing.T) {
	s, _, _ := benchSession("memory", false)
	path := filepath.Join(t.TempDir(), "claimers.svg")
	require.NoError(t, s.plotBench(t.Context(), bench.Tiny(), path))
	require.FileExists(t, path)
	table, err := os.ReadFile(strings.TrimSuffix(path, ".svg") + ".md")
	require.NoError(t, err)
	require.Contains(t, string(table), "engine memory")
	require.Contains(t, string(table), "| 4 |")

	var usage *usageError
	require.ErrorAs(t, s.plotBench(t.Context(), bench.Tiny(), "claimers.png"), &usage)
}
