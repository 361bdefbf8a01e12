package soak

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// soak keeps db under load for a few seconds.
func soak(t *testing.T, db kv.DB) *Report {
	t.Helper()
	return soakUntil(t, db, func(report *Report) bool {
		for _, kind := range []string{
			"ack", "ack given up", "ack+receive", "enqueue", "enqueue given up", "handle", "nack", "redrive", "reject",
			"release", "trickle", "wait", "worker",
		} {
			if report.Operations[kind] == 0 {
				return testing.Short() // it may be too slow to come by everything
			}
		}
		return true
	})
}

// soakUntil repeats the soak, longer and longer, until enough has been done: a busy machine comes to less.
func soakUntil(t *testing.T, db kv.DB, enough func(*Report) bool) *Report {
	t.Helper()
	for duration := 2 * time.Second; ; duration *= 2 {
		var out bytes.Buffer
		report, err := Run(t.Context(), db, Options{
			Duration: duration, Interval: duration / 20, Seed: 1, Out: &out,
		})
		t.Logf("%s%s", &out, report)
		require.NoError(t, err)
		if enough(report) {
			return report
		}
		require.Less(t, duration, time.Minute, "not enough was done")
	}
}

// TestNothingGrows: under steady load of all that a process does with a queue nothing is left over.
func TestNothingGrows(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		require.Empty(t, soak(t, db).Grown)
		require.NoError(t, db.Close())
	})
	t.Run("disk", func(t *testing.T) {
		db, err := embedded.OpenDisk(t.TempDir(), embedded.Options{})
		require.NoError(t, err)
		require.Empty(t, soak(t, db).Grown)
		require.NoError(t, db.Close())
	})
}

// leak is an engine under which something is left over.
type leak struct {
	*embedded.DB
	what string
	end  chan struct{}

	mu   sync.Mutex
	kept []kv.ManagedTx // guarded by mu
}

func (l *leak) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	switch l.what {
	case "goroutines":
		go func() { <-l.end }()
	case "open tx":
		if other, err := l.DB.Begin(o); err == nil {
			other.Get([]byte("key"))
			l.mu.Lock()
			l.kept = append(l.kept, other)
			l.mu.Unlock()
		}
	}
	tx, err := l.DB.Begin(o)
	return leakyTx{tx, l}, err
}

type leakyTx struct {
	kv.ManagedTx
	l *leak
}

func (tx leakyTx) Clear(key []byte) {
	if tx.l.what == "receipt" && bytes.Contains(key, tuple.Tuple{"receipt"}.Pack()) {
		return
	}
	tx.ManagedTx.Clear(key)
}

func (tx leakyTx) Watch(key []byte) kv.Future[struct{}] {
	f := tx.ManagedTx.Watch(key)
	if tx.l.what == "watches" {
		return leakyWatch{f}
	}
	return f
}

// leakyWatch is never cancelled.
type leakyWatch struct{ kv.Future[struct{}] }

func (w leakyWatch) Cancel() {}

func (w leakyWatch) Wait(ctx context.Context) (struct{}, error) {
	for !w.Ready() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return struct{}{}, context.Cause(ctx)
		}
	}
	return w.Future.Wait(ctx)
}

// TestLeaksAreFound: one of each kind that is left over by an operation is found.
func TestLeaksAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many operations")
	}
	for _, what := range []string{"goroutines", "open tx", "watches", "receipt"} {
		t.Run(what, func(t *testing.T) { // alone: the others would slow it down, and have goroutines of their own
			l := &leak{DB: embedded.OpenMemory(embedded.Options{MaxWatches: 1_000_000}), what: what, end: make(chan struct{})}
			soakUntil(t, l, func(report *Report) bool {
				return slices.ContainsFunc(report.Grown, func(g string) bool { return strings.HasPrefix(g, what+":") })
			})
			close(l.end)
			for _, tx := range l.kept {
				tx.Cancel()
			}
			require.NoError(t, l.Close())
		})
	}
}

// TestOnlyWhatIsGivenUpEnds: a call whose context lasts, and that fails as if it had ended, fails the soak. The calls
// that are given up may fail so.
func TestOnlyWhatIsGivenUpEnds(t *testing.T) {
	for _, ended := range []error{context.DeadlineExceeded, context.Canceled} {
		l := &load{}
		(&actor{load: l}).loop(t.Context(), func(a *actor, _ context.Context) error {
			a.stopped.Store(true) // one step
			return ended
		})
		require.ErrorIs(t, l.failure(), ended)
	}
	early, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	require.NoError(t, givenUp(early, context.DeadlineExceeded))
	require.ErrorIs(t, givenUp(t.Context(), context.DeadlineExceeded), context.DeadlineExceeded)
	require.ErrorIs(t, givenUp(early, layer.ErrCorrupt), layer.ErrCorrupt)
}

// TestGrown: a figure may move within its slack, but not rise out of it.
func TestGrown(t *testing.T) {
	series := func(n int, at func(i int) int64) [][]int64 {
		out := make([][]int64, n)
		for i := range out {
			out[i] = []int64{at(i)}
		}
		return out
	}
	f := []figure{{"rows", 10}}
	for _, c := range []struct {
		what  string
		grown bool
		at    func(i int) int64
	}{
		{"flat", false, func(int) int64 { return 7 }},
		{"a warm-up", false, func(i int) int64 { return int64(min(i, 10)) * 100 }},
		{"single spikes", false, func(i int) int64 { return int64(i%10/9) * 1000 }},
		{"one a sample", true, func(i int) int64 { return int64(i) }},
		{"slow, from much", true, func(i int) int64 { return 1000 + 5*int64(i) }},
		{"within a tenth", false, func(i int) int64 { return 1000 + int64(i) }},
		{"falling", false, func(i int) int64 { return int64(-i) * 100 }},
	} {
		require.Equal(t, c.grown, len(grown(f, series(50, c.at))) > 0, c.what)
	}
	require.NotEmpty(t, grown(f, series(4, func(int) int64 { return 0 })), "too few to say")
}
