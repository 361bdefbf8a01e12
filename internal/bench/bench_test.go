package bench_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/bench"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
)

// all are the benchmarks, at sizes of which nothing but their working is seen.
func all() []bench.Benchmark {
	s := bench.Tiny()
	if !embedded.Sharable {
		s.SharedRounds = 0
	}
	return append(bench.All(s), bench.ByHand(s)...)
}

var prefix = tuple.Tuple{"bench"}.Pack()

func env(tb testing.TB, o embedded.Options) bench.Env {
	return bench.Env{
		Open: func(context.Context) (bench.Space, error) {
			return bench.Space{DB: embedded.OpenMemory(o), Prefix: prefix}, nil
		},
		Folder: func(context.Context) (bench.Folder, error) {
			return folder(tb, func(db kv.DB) kv.DB { return db }), nil
		},
	}
}

// folder returns a folder whose processes are goroutines, each with a database of its own. wrap wraps the databases
// that the benchmark itself opens.
func folder(tb testing.TB, wrap func(kv.DB) kv.DB) bench.Folder {
	path := filepath.Join(tb.TempDir(), "db")
	return bench.Folder{
		Open: func(_ context.Context, exclusive bool) (kv.DB, error) {
			db, err := embedded.OpenDisk(path, embedded.Options{Exclusive: exclusive})
			return wrap(db), err
		},
		Start: func(ctx context.Context, stdout io.Writer) (bench.Process, error) {
			db, err := embedded.OpenDisk(path, embedded.Options{})
			if err != nil {
				return nil, err
			}
			in, out := io.Pipe()
			p := &process{PipeWriter: out, ended: make(chan struct{})}
			go func() {
				defer close(p.ended)
				p.err = errors.Join(bench.Peer(ctx, db, in, stdout), db.Close())
			}()
			return p, nil
		},
		Remove: func() error { return os.RemoveAll(path) },
	}
}

// process is a goroutine that can be told to end.
type process struct {
	*io.PipeWriter
	ended chan struct{}
	err   error // set before ended is closed
}

func (p *process) Stop() error { return p.PipeWriter.Close() }
func (p *process) Kill() error { return p.Stop() }
func (p *process) Wait() error { <-p.ended; return p.err }

// Every benchmark runs, finds the queue right, and gives figures with different names. The test checks the values only
// of figures that are counted, not of those that are timed.
func TestBenchmarks(t *testing.T) {
	seen := make(map[string]bool)
	for _, b := range all() {
		t.Run(b.Name, func(t *testing.T) {
			results, err := b.Run(t.Context(), env(t, embedded.Options{}))
			require.NoError(t, err)
			require.Equal(t, b.Name, results[0].Name, "the figure that it is about comes first")
			require.True(t, results[0].Target.Exists() || b.Name == "pickup_p99")
			for _, r := range results {
				require.False(t, seen[r.Name], "%s is given once", r.Name)
				seen[r.Name] = true
				require.False(t, math.IsNaN(r.Value) || math.IsInf(r.Value, 0), "%s is %v", r.Name, r.Value)
				require.GreaterOrEqual(t, r.Value, 0.0, r.Name)
				require.NotEmpty(t, r.Unit, r.Name)
			}
			switch b.Name {
			case "enqueue_conflicts":
				require.Zero(t, results[0].Value)
			case "mutations_per_message", "sqs_mutations_per_message":
				for _, r := range results {
					require.True(t, !r.Target.Exists() || r.Target.Met(r.Value), "%s: %v %s", r.Name, r.Value, r.Target)
				}
			}
		})
	}
}

// A benchmark ends with the context, and says so.
func TestCancelled(t *testing.T) {
	for _, b := range all() {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		cancel(cause)
		_, err := b.Run(ctx, env(t, embedded.Options{}))
		require.ErrorIs(t, err, cause, b.Name)
	}
}

// Benchmarks find out when the queue is wrong: here an item of it is lost while they work.
func TestWrongQueueIsFoundOut(t *testing.T) {
	for _, b := range all() {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel() // some wait for the lost item, asleep
			_, err := b.Run(t.Context(), bench.Env{
				Open: func(context.Context) (bench.Space, error) {
					return bench.Space{DB: &losing{DB: embedded.OpenMemory(embedded.Options{})}, Prefix: prefix}, nil
				},
				Folder: func(context.Context) (bench.Folder, error) {
					return folder(t, func(db kv.DB) kv.DB { return &losing{DB: db} }), nil
				},
			})
			require.Error(t, err)
		})
	}
}

// losing drops one item of each transaction that sets several keys.
type losing struct{ kv.DB }

func (d *losing) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &losingTx{ManagedTx: tx}, err
}

type losingTx struct {
	kv.ManagedTx
	dropped bool
}

func (t *losingTx) Set(key, value []byte) {
	if !t.dropped && bytes.Contains(key, []byte("item")) {
		t.dropped = true
		return
	}
	t.ManagedTx.Set(key, value)
}

// Each benchmark as a Go benchmark: one operation is a whole run at tiny sizes.
func BenchmarkTiny(b *testing.B) {
	for _, one := range all() {
		b.Run(one.Name, func(b *testing.B) {
			for b.Loop() {
				results, err := one.Run(b.Context(), env(b, embedded.Options{}))
				require.NoError(b, err)
				b.ReportMetric(results[0].Value, results[0].Name)
			}
		})
	}
}
