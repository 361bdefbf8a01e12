package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/data"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// mortal is a database as a process sees it that can be frozen and killed: then nothing of it begins or commits.
type mortal struct {
	kv.DB
	going sync.RWMutex // held for writing while frozen
	mu    sync.Mutex
	dead  bool // guarded by mu
}

var errDead = errors.New("the process is dead")

// passes waits while the process is frozen.
func (m *mortal) passes() error {
	m.going.RLock()
	defer m.going.RUnlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errDead
	}
	return nil
}

func (m *mortal) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if err := m.passes(); err != nil {
		return nil, err
	}
	tx, err := m.DB.Begin(o)
	return mortalTx{tx, m}, err
}

func (m *mortal) Close() error { return nil }

type mortalTx struct {
	kv.ManagedTx
	m *mortal
}

func (t mortalTx) Commit() kv.Future[struct{}] {
	if err := t.m.passes(); err != nil {
		return kv.Done(struct{}{}, err)
	}
	return t.ManagedTx.Commit()
}

// fakeProcess is a process that is a goroutine of this one.
type fakeProcess struct {
	db    *mortal
	stdin *io.PipeWriter
	done  chan struct{}
	err   error // set before done is closed
}

func (p *fakeProcess) Write(b []byte) (int, error) { return p.stdin.Write(b) }

func (p *fakeProcess) Stop() error   { return p.stdin.Close() }
func (p *fakeProcess) Freeze() error { p.db.going.Lock(); return nil }
func (p *fakeProcess) Thaw() error   { p.db.going.Unlock(); return nil }
func (p *fakeProcess) Wait() error   { <-p.done; return p.err }

// Kill is for a frozen one.
func (p *fakeProcess) Kill() error {
	p.db.mu.Lock()
	p.db.dead = true
	p.db.mu.Unlock()
	p.db.going.Unlock()
	return nil
}

// fakeProcesses is a command line whose processes are goroutines with one database in common.
func fakeProcesses(t *testing.T) *App {
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	on := func(db kv.DB) *App {
		open := func(context.Context, EngineOptions) (kv.DB, error) { return db, nil }
		return &App{Engines: map[string]OpenFunc{"disk": open}, Shared: []string{"disk"}}
	}
	app := on(shared{db})
	app.spawn = func(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error) {
		in, out := io.Pipe()
		p := &fakeProcess{db: &mortal{DB: db}, stdin: out, done: make(chan struct{})}
		go func() {
			defer close(p.done)
			p.err = on(p.db).Run(ctx, args, in, stdout, stderr)
		}()
		return p, nil
	}
	return app
}

// someDepartures writes the first n departures into a file.
func someDepartures(t *testing.T, n int) string {
	lines := strings.SplitAfterN(data.Flights(), "\n", n+2)
	name := filepath.Join(t.TempDir(), "cut.csv")
	require.NoError(t, os.WriteFile(name, []byte(strings.Join(lines[:n+1], "")), 0o600))
	return name
}

// Four processes, one of which is killed with groups in flight: each message takes effect once and in order, and the
// dead one's groups are taken over. A second demo on the same queue begins with no effects.
func TestDemoProcesses(t *testing.T) {
	app := fakeProcesses(t)
	for _, kill := range []bool{true, false} {
		var stdout, stderr bytes.Buffer
		args := []string{"demo", "--engine", "disk", "--processes", "4", "--json"}
		messages := 2000
		if kill {
			messages = 8000
			args = append(args, "--kill", "--lease", "1s")
		}
		args = append(args, "--data", someDepartures(t, messages))
		require.NoError(t, app.Run(context.Background(), args, nil, &stdout, &stderr), stderr.String())
		var got map[string]float64
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &got))
		require.EqualValues(t, messages, got["messages"])
		require.EqualValues(t, 4, got["processes"])
		require.Zero(t, got["order_violations"]+got["lost"]+got["doubled"])
		if kill {
			require.EqualValues(t, 1, got["killed"])
			require.Positive(t, got["taken_over"])
			require.Contains(t, stderr.String(), "is dead")
		} else {
			require.Zero(t, got["killed"]+got["taken_over"])
		}
	}
}

// Each process serves its metrics; those of this one are the queue's while the others drain it.
func TestDemoProcessesServeMetrics(t *testing.T) {
	app := fakeProcesses(t)
	var stderr bytes.Buffer
	args := []string{
		"demo", "--engine", "disk", "--processes", "3", "--metrics", "127.0.0.1:0", "--data", someDepartures(t, 400),
	}
	require.NoError(t, app.Run(t.Context(), args, nil, io.Discard, &stderr), stderr.String())
	for _, who := range []string{"", "process 1: ", "process 2: ", "process 3: "} {
		require.Regexp(t, `(?m)^`+who+`fdbfifo: metrics: http://127\.0\.0\.1:[1-9][0-9]+/metrics$`, stderr.String())
	}

	for address, want := range map[string]string{
		"": "", "127.0.0.1:0": "127.0.0.1:0", "localhost:9464": "localhost:9467", "[::1]:1": "[::1]:4",
	} {
		at, err := (&beside{metrics: address}).metricsOf(3)
		require.NoError(t, err)
		require.Equal(t, want, at)
	}
	for _, address := range []string{"9464", "127.0.0.1:65533", "127.0.0.1:-1", "127.0.0.1:x"} {
		args := []string{"demo", "--engine", "disk", "--processes", "3", "--metrics", address}
		err := app.Run(t.Context(), args, nil, io.Discard, io.Discard)
		require.Equal(t, ExitUsage, ExitCode(err), "%s: %v", address, err)
	}
}

// A process that fails ends the demo, which says which one and why, and the others are stopped.
func TestDemoProcessFails(t *testing.T) {
	app := fakeProcesses(t)
	spawn := app.spawn
	app.spawn = func(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error) {
		for i, arg := range args {
			if arg == "--number" && args[i+1] == "2" {
				args[i-1] = "nowhere" // the queue
			}
		}
		return spawn(ctx, args, stdout, stderr)
	}
	var stderr bytes.Buffer
	err := app.Run(context.Background(), []string{"demo", "--engine", "disk", "--processes", "2"}, nil, io.Discard, &stderr)
	require.ErrorIs(t, err, layer.ErrNoQueue)
	require.Contains(t, stderr.String(), `process 2: fdbfifo demo-worker: there is no queue "nowhere"`)
}

// Ctrl-C stops the processes, and they return their claims.
func TestDemoProcessesInterrupted(t *testing.T) {
	app := fakeProcesses(t)
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	stderr := newScreen("now 2 processes")
	go func() {
		<-stderr.seen
		interrupt()
	}()
	stdout := newScreen("x")
	err := app.Run(ctx, []string{"demo", "--engine", "disk", "--processes", "2"}, nil, stdout, stderr)
	require.Equal(t, ExitInterrupted, ExitCode(err), stderr.String())
	require.Empty(t, stdout.String())

	var check bytes.Buffer
	require.NoError(t, app.Run(context.Background(), []string{"check", "--queue", "demo", "--json"}, nil, &check, io.Discard))
	require.Contains(t, check.String(), `"held":0,`)
}

// A canary: the judgement must see each kind of broken promise in the effects.
func TestJudgement(t *testing.T) {
	flights, err := readDepartures(strings.NewReader("id,origin\n1,A\n2,B\n3,A\n4,A\n"))
	require.NoError(t, err)
	of := func(line, group, body string, token int64) effect {
		return effect{group: group, line: line, body: []byte(body), process: 1, token: token}
	}
	one, two, three, four := of("2", "A", "1,A", 5), of("3", "B", "2,B", 6), of("4", "A", "3,A", 7), of("5", "A", "4,A", 7)
	for name, test := range map[string]struct {
		effects []effect
		want    demoReport
		taken   int
	}{
		"sound":     {[]effect{one, two, three, four}, demoReport{}, 1},
		"in part":   {[]effect{of("2", "A", "1,A", 6), two, three, four}, demoReport{}, 1},
		"lost":      {[]effect{one, two, three}, demoReport{Lost: 1}, 1},
		"doubled":   {[]effect{one, two, three, four, four}, demoReport{Doubled: 1}, 1},
		"order":     {[]effect{one, two, four, three}, demoReport{Disorder: 2}, 1},
		"overtaken": {[]effect{one, two, three, of("5", "A", "4,A", 5)}, demoReport{TwoHands: 1}, 1},
		"late":      {[]effect{one, two, of("4", "A", "3,A", 6), four}, demoReport{}, 0},
		"not taken": {[]effect{one, two}, demoReport{Lost: 2}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			held := map[heldClaim]int{{"A", 6}: 0}
			if name == "in part" {
				held = map[heldClaim]int{{"A", 6}: 1}
			}
			j := newJudgement(newWitness(flights), held)
			for _, e := range test.effects {
				j.see(e)
			}
			got := j.w.report()
			require.Equal(t, test.want, demoReport{Lost: got.Lost, Doubled: got.Doubled, Disorder: got.Disorder, TwoHands: j.overtaken})
			require.Equal(t, test.taken, j.takenOver())
		})
	}
}

// An effect comes back as it was written, and those of other queues do not.
func TestEffects(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	write := func(queue string, token int64, lines ...string) {
		for _, line := range lines {
			one := effect{group: "A", line: line, body: []byte("body " + line), process: 3, token: token}
			_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				return newEffects(queue).write(tx, one)
			})
			require.NoError(t, err)
		}
	}
	write("q", 2, "9", "8")
	write("r", 2, "7")
	write("q", 1, "1")
	var seen []effect
	require.NoError(t, newEffects("q").read(t.Context(), db, func(e effect) { seen = append(seen, e) }))
	require.Equal(t, []effect{
		{"A", "9", []byte("body 9"), 3, 2}, {"A", "8", []byte("body 8"), 3, 2}, {"A", "1", []byte("body 1"), 3, 1},
	}, seen)

	held := map[heldClaim]int{{"A", 1}: 0, {"A", 2}: 0, {"A", 3}: 0, {"B", 2}: 0}
	require.NoError(t, newEffects("q").count(t.Context(), db, held))
	require.Equal(t, map[heldClaim]int{{"A", 1}: 1, {"A", 2}: 2, {"A", 3}: 0, {"B", 2}: 0}, held)

	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set(append(newEffects("r").prefix, tuple.Tuple{"A", int64(1)}.Pack()...), []byte("x"))
		return nil
	})
	require.NoError(t, err)
	require.Error(t, newEffects("r").read(t.Context(), db, func(effect) {}))
	require.Error(t, fitEffects([]departure{{line: 2, body: make([]byte, maxEffectBody+1)}}))
	require.NoError(t, newEffects("r").clear(t.Context(), db))
	require.NoError(t, newEffects("r").read(t.Context(), db, func(e effect) { t.Errorf("%v is left", e) }))
}

// The processes' share of the workers adds up.
func TestDemoWorkerShare(t *testing.T) {
	var mu sync.Mutex
	app := fakeProcesses(t)
	spawn := app.spawn
	total := map[string]int{}
	app.spawn = func(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error) {
		mu.Lock()
		defer mu.Unlock()
		for i, arg := range args {
			if arg == "--workers" {
				total[args[i+1]]++
			}
		}
		return spawn(ctx, args, stdout, stderr)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	args := []string{"demo", "--engine", "disk", "--data", someDepartures(t, 100), "--processes", "3", "--workers", "8"}
	require.NoError(t, app.Run(ctx, args, nil, io.Discard, io.Discard))
	require.Equal(t, map[string]int{"3": 2, "2": 1}, total)
}
