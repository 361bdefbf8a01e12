package bench_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/bench"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
)

var prefix = tuple.Tuple{"bench"}.Pack()

func env(tb testing.TB, o embedded.Options) bench.Env {
	return bench.Env{Open: func(context.Context) (bench.Space, error) {
		return bench.Space{DB: embedded.OpenMemory(o), Prefix: prefix}, nil
	}}
}

// Every benchmark runs, finds the queue right, and gives figures that can be told apart. What they are is of no
// concern here, but for those that are counted and not timed.
func TestBenchmarks(t *testing.T) {
	seen := make(map[string]bool)
	for _, b := range bench.All(bench.Tiny()) {
		t.Run(b.Name, func(t *testing.T) {
			results, err := b.Run(t.Context(), env(t, embedded.Options{}))
			require.NoError(t, err)
			require.Equal(t, b.Name, results[0].Name, "the figure that it is about comes first")
			require.True(t, results[0].Target.Exists())
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
			case "mutations_per_message":
				require.True(t, results[0].Target.Met(results[0].Value), "%v %s", results[0].Value, results[0].Target)
			}
		})
	}
}

// A benchmark ends with the context, and says so.
func TestCancelled(t *testing.T) {
	for _, b := range bench.All(bench.Tiny()) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		cancel(cause)
		_, err := b.Run(ctx, env(t, embedded.Options{}))
		require.ErrorIs(t, err, cause, b.Name)
	}
}

// Benchmarks find out when the queue is wrong: here an item of it is lost while they work.
func TestWrongQueueIsFoundOut(t *testing.T) {
	for _, b := range bench.All(bench.Tiny()) {
		_, err := b.Run(t.Context(), bench.Env{Open: func(context.Context) (bench.Space, error) {
			return bench.Space{DB: &losing{DB: embedded.OpenMemory(embedded.Options{})}, Prefix: prefix}, nil
		}})
		require.Error(t, err, b.Name)
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
	for _, one := range bench.All(bench.Tiny()) {
		b.Run(one.Name, func(b *testing.B) {
			for b.Loop() {
				results, err := one.Run(b.Context(), env(b, embedded.Options{}))
				require.NoError(b, err)
				b.ReportMetric(results[0].Value, results[0].Name)
			}
		})
	}
}
