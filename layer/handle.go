package layer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
)

// Options configure a handle. The zero value is the normal use.
type Options struct {
	// Owner names the holder in locks, for people. Defaults to host:pid:random. At most 256 bytes.
	Owner string
	// Now is the clock for leases and times. Defaults to time.Now. A clock that differs from other workers'
	// shortens or lengthens leases; it cannot break order or exclusion.
	Now func() time.Time
	// Tx holds for every transaction that the handle begins itself.
	Tx kv.TxOptions
	// Poll is the mean pause between two looks of a handle whose receives wait and which nobody wakes. It bounds
	// how late a receive notices a wake that was lost. 0 = DefaultStagePoll.
	Poll time.Duration
	// Config is what Create writes. Open reads it and pays no attention to this one.
	Config Config
	// Test, if not nil, is for simulations and measurements of the library itself. The handle keeps a copy.
	Test *TestOptions
}

// TestOptions are knobs for simulations and measurements; a program that uses a queue needs none of them. The zero
// value changes nothing.
type TestOptions struct {
	// Seed makes the handle's random choices (message ids among them) repeatable. 0 = not. No two handles may have the
	// same seed: their messages and receipts would have the same ids.
	Seed uint64
	// Yield, if not nil, is called by a goroutine of the handle that has just begun or that another goroutine or a
	// timer has woken, before the goroutine touches what they share; who says which goroutine. A simulation lets one go
	// on at a time. ctx is the caller's if the goroutine runs for one caller alone.
	Yield func(ctx context.Context, who string)
	// NoCoalescing gives each operation a transaction of its own.
	NoCoalescing bool
	// Path limits how receives find groups.
	Path Path
}

// Path limits how a handle's receives find groups. It is for measurements: Adaptive is right.
type Path int

// The paths.
const (
	Adaptive Path = iota // claim directly, wider after conflicts; stage when nothing is ready or conflicts go on
	Direct               // never stage: a receive that waits looks again and again
	Staged               // a receive that waits requests first
)

// Queue is a handle on one queue. It is safe for concurrent use, holds no claim, and keeps nothing of the
// database but the queue's settings; make one a process and share it. Close it when done.
type Queue struct {
	db       kv.DB
	name     string
	keys     subspace
	opts     Options
	offset   int64
	random   *entropy
	receipts receipts
	spread   spread
	flights  flights
	paths    pathCounts
	slot     int64
	followed followed

	pipeline pipeline
	line     waitingLine
	staging  staging
	workers  atomic.Int64 // that were started on it
}

// isClosed reports whether the handle was closed.
func (q *Queue) isClosed() bool { return q.pipeline.isClosed() }

// Name is the queue's name.
func (q *Queue) Name() string { return q.name }

// yield is where a goroutine that was woken leaves it to a simulation when it goes on.
func (q *Queue) yield(ctx context.Context, who string) {
	if q.opts.Test.Yield == nil {
		return
	}
	if name, ok := ctx.Value(yieldName{}).(string); ok {
		who += " of " + name
	}
	q.opts.Test.Yield(ctx, who)
}

// yieldName is the key of the name that the goroutine of a context goes by in a simulation.
type yieldName struct{}

// named names the goroutine that ctx is for.
func (q *Queue) named(ctx context.Context, format string, args ...any) context.Context {
	if q.opts.Test.Yield == nil {
		return ctx
	}
	return context.WithValue(ctx, yieldName{}, fmt.Sprintf(format, args...))
}

func (q *Queue) nowMS() int64 { return millis(q.opts.Now()) }

// batchOptions are those of a large piece of work that yields to everything else.
func (q *Queue) batchOptions() kv.TxOptions {
	o := q.opts.Tx
	o.Batch = true
	return o
}
