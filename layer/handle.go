package layer

import (
	"context"
	"fmt"
	"sync"
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
	// Seed makes the handle's random choices (message ids among them) repeatable, for simulations. 0 = not. No two
	// handles may have the same seed: their messages and receipts would have the same ids.
	Seed uint64
	// Tx holds for every transaction that the handle begins itself.
	Tx kv.TxOptions
	// Poll is the mean pause between two looks of a handle whose receives wait and which nobody wakes. It bounds
	// how late a receive notices a wake that was lost. 0 = DefaultStagePoll.
	Poll time.Duration
	// Yield, if not nil, is called by a goroutine of the handle that has just begun or that another one or a timer has
	// woken, before it touches what they share; who says which. For simulations: they let one go on at a time. ctx is
	// the caller's if it runs for one alone.
	Yield func(ctx context.Context, who string)
	// NoCoalescing gives each operation a transaction of its own. It is for measurements.
	NoCoalescing bool
	// Path limits how receives find groups. It is for measurements.
	Path Path
	// Config is what Create writes. Open reads it and pays no attention to this one.
	Config Config
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
	closed   atomic.Bool
	followed followed

	pipeline pipeline
	staging  staging

	life       context.Context // of what runs in the background
	endLife    context.CancelFunc
	attendance sync.WaitGroup
	workers    atomic.Int64 // that were started on it
}

// Name is the queue's name.
func (q *Queue) Name() string { return q.name }

// yield is where a goroutine that was woken leaves it to a simulation when it goes on.
func (q *Queue) yield(ctx context.Context, who string) {
	if q.opts.Yield == nil {
		return
	}
	if name, ok := ctx.Value(yieldName{}).(string); ok {
		who += " of " + name
	}
	q.opts.Yield(ctx, who)
}

// yieldName is the key of the name that the goroutine of a context goes by in a simulation.
type yieldName struct{}

// named names the goroutine that ctx is for.
func (q *Queue) named(ctx context.Context, format string, args ...any) context.Context {
	if q.opts.Yield == nil {
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
