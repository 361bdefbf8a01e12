package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// Options of a soak.
type Options struct {
	Duration time.Duration
	Interval time.Duration // between two counts
	// Settle is how long to wait before each count, so that the engine can forget what it remembers of the last five
	// seconds' commits. Without it the heap is held to little.
	Settle time.Duration
	Seed   uint64
	Out    io.Writer // the table
}

// Report is what a soak has come to.
type Report struct {
	Operations map[string]int64
	Grown      []string // none = it is sound
}

// leastSamples is how many counts are made, however long it takes.
const leastSamples = 15

// The queues: one with a backlog, one on which receives wait.
const (
	busyQueue   = "busy"
	scarceQueue = "scarce"
)

// load is the load on a database.
type load struct {
	db      kv.DB
	prefix  []byte
	seed    uint64
	gate    sync.RWMutex // held for reading during an operation, for writing while all stands still
	stopped atomic.Bool
	backlog atomic.Int64
	mu      sync.Mutex
	done    map[string]int64 // guarded by mu: operations by kind
	failed  error            // guarded by mu: the first
}

// Run keeps db under load and counts. Its queues are below a prefix of its own, and are dropped at the end.
func Run(ctx context.Context, db kv.DB, o Options) (*Report, error) {
	l := &load{
		db: db, seed: o.Seed, done: make(map[string]int64),
		prefix: tuple.Tuple{"soak", fmt.Sprint(time.Now().UnixNano())}.Pack(),
	}
	queues := []string{busyQueue, scarceQueue}
	for _, name := range queues {
		q, err := layer.Create(ctx, db, l.prefix, name, layer.Options{Config: configOf(name)})
		if err != nil {
			return nil, fmt.Errorf("soak: %w", err)
		}
		if err := q.Close(ctx); err != nil {
			return nil, fmt.Errorf("soak: %w", err)
		}
	}
	samples, err := l.run(ctx, o, queues)
	dropped := make(chan error)
	for _, name := range queues {
		go func() { dropped <- layer.Drop(context.WithoutCancel(ctx), db, l.prefix, name, layer.DropOptions{}) }()
	}
	for range queues {
		err = errors.Join(err, <-dropped)
	}
	return &Report{Operations: l.done, Grown: grown(figures(o.Settle > 0), samples)}, err
}

func (l *load) run(ctx context.Context, o Options, queues []string) (samples [][]int64, err error) {
	var wg sync.WaitGroup
	defer func() {
		l.stopped.Store(true)
		wg.Wait()
		err = errors.Join(err, l.failure())
	}()
	d, err := l.newDrain(ctx, queues)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close(context.WithoutCancel(ctx))) }()
	l.start(ctx, &wg)
	t := newTable(o.Out, figures(o.Settle > 0))
	begun := time.Now()
	for (time.Since(begun) < o.Duration || len(samples) < leastSamples) && ctx.Err() == nil && l.failure() == nil {
		select {
		case <-time.After(o.Interval):
		case <-ctx.Done():
		}
		values, err := l.sample(ctx, o, d, queues)
		if err != nil {
			return samples, err
		}
		samples = append(samples, values)
		t.row(time.Since(begun), l.operations(), values)
	}
	return samples, ctx.Err()
}

// sample waits until no operation is under way, works the queues off, and counts.
func (l *load) sample(ctx context.Context, o Options, d *drain, queues []string) ([]int64, error) {
	l.gate.Lock()
	defer l.gate.Unlock()
	if err := d.run(ctx); err != nil {
		return nil, err
	}
	l.backlog.Store(0)
	if o.Settle > 0 {
		time.Sleep(o.Settle)
		// The engine forgets when it commits.
		_, err := kv.Run(ctx, l.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Clear(l.prefix)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("soak: settle: %w", err)
		}
	}
	return measure(ctx, l.db, l.prefix, queues)
}

func (l *load) operations() (total int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.done {
		total += n
	}
	return total
}

func (l *load) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = err
	}
}

func (l *load) count(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[kind]++
}

// String lists the operations by kind, and the figures that have grown.
func (r *Report) String() string {
	var b strings.Builder
	total := int64(0)
	for _, n := range r.Operations {
		total += n
	}
	fmt.Fprintf(&b, "%d operations:", total)
	for _, kind := range slices.Sorted(maps.Keys(r.Operations)) {
		fmt.Fprintf(&b, " %s %d,", kind, r.Operations[kind])
	}
	text := strings.TrimSuffix(b.String(), ",")
	if len(r.Grown) == 0 {
		return text + "\nnothing has grown"
	}
	return text + "\nGROWN\n" + strings.Join(r.Grown, "\n")
}

// table prints samples as they come.
type table struct {
	out     io.Writer
	figures []figure
}

func newTable(out io.Writer, all []figure) *table {
	t := &table{out, all}
	t.line("time", "operations", func(f figure) string { return f.name })
	return t
}

func (t *table) line(time, operations string, cell func(f figure) string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%7s %10s", time, operations)
	for _, f := range t.figures {
		fmt.Fprintf(&b, " %*s", max(len(f.name), 5), cell(f))
	}
	fmt.Fprintln(t.out, b.String())
}

func (t *table) row(at time.Duration, operations int64, values []int64) {
	i := -1
	t.line(at.Round(time.Second).String(), fmt.Sprint(operations), func(f figure) string {
		i++
		return f.show(values[i])
	})
}
