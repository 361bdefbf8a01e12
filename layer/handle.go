package layer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// Options configure a handle. The zero value is the normal use.
type Options struct {
	// Owner names the holder in locks, for people. Defaults to host:pid:random. At most 256 bytes.
	Owner string
	// Now is the clock for leases and times. Defaults to time.Now. A clock which differs from other workers' clocks
	// shortens or lengthens leases, but cannot break order or exclusion.
	Now func() time.Time
	// Tx applies to every transaction which the handle begins itself.
	Tx kv.TxOptions
	// Poll is the mean pause between two looks of a handle whose receives wait and which nobody wakes. Poll bounds how
	// late a lost wake is noticed: by the first handle that waits, which serves the others, too. A handle with others
	// before it looks less often, down to a fifth, and down to a 17th while those before it are served, until a look
	// has found that they are dead. 0 = DefaultStagePoll.
	Poll time.Duration
	// Config is the configuration which Create writes, and with which Ensure compares the stored configuration. Open
	// ignores this field and reads the stored configuration.
	Config Config
	// Mend: Ensure stores Config where the stored configuration differs. Open and Create ignore this field.
	Mend bool
	// Hooks are told of every operation of the handle, the first begun first and ended last. The slice belongs to the
	// handle from then on.
	Hooks []Hook
	// Test, if not nil, is for simulations and measurements of the library itself. The handle keeps a copy.
	Test *TestOptions
}

// TestOptions are knobs for simulations and measurements; a program which uses a queue needs none. The zero value
// changes nothing.
type TestOptions struct {
	// Seed makes the handle's random choices (message ids among others) repeatable. 0 = not repeatable. No two handles
	// may have the same seed, because otherwise their messages and receipts would have the same ids.
	Seed uint64
	// Yield, if not nil, is called by a goroutine of the handle which has just begun, or which another goroutine or a
	// timer has woken, before the goroutine touches shared state; who names the goroutine. So a simulation can let a
	// single goroutine run at a time. ctx is the caller's if the goroutine runs for one caller alone.
	Yield func(ctx context.Context, who string)
	// NoCoalescing gives each operation its own transaction.
	NoCoalescing bool
	// Path limits how receives find groups.
	Path Path
}

// Path limits how a handle's receives find groups. For measurements; programs use Adaptive.
type Path int

// The paths.
const (
	Adaptive Path = iota // claim directly, wider after conflicts; stage when nothing is ready or conflicts go on
	Direct               // never stage: a waiting receive looks again and again
	Staged               // a waiting receive requests first
)

// Queue is a handle on one queue. Queue is safe for concurrent use, holds no claim, and caches nothing of the database
// but the queue's settings. Make one per process, share the handle, and close the handle when done.
type Queue struct {
	db       kv.DB
	name     string
	keys     subspace
	opts     Options
	offset   int64
	random   *entropy
	receipts receipts
	empties  empties
	spread   spread
	spreads  spreads
	flights  flights
	paths    pathCounts
	counting counting
	followed followed
	budget   budget
	stride   stride
	// incarnation tells the queue from others of the same name, before and after it: see tx_config.go. Drawn by Create,
	// read by Open, and never changed after.
	incarnation uuid.UUID

	pipeline pipeline
	line     waitingLine
	staging  staging
	workers  atomic.Int64 // that were started on it
	heart    *heart
}

// isClosed reports whether the handle was closed.
func (q *Queue) isClosed() bool { return q.pipeline.isClosed() }

// Name returns the queue's name.
func (q *Queue) Name() string { return q.name }

// yield lets a simulation decide when a goroutine which was woken goes on.
func (q *Queue) yield(ctx context.Context, who string) {
	if q.opts.Test.Yield == nil {
		return
	}
	if name, ok := ctx.Value(yieldName{}).(string); ok {
		who += " of " + name
	}
	q.opts.Test.Yield(ctx, who)
}

// yieldName is the context key of a goroutine's name in a simulation.
type yieldName struct{}

// named returns ctx with a name for the goroutine which ctx is for.
func (q *Queue) named(ctx context.Context, format string, args ...any) context.Context {
	if q.opts.Test.Yield == nil {
		return ctx
	}
	return context.WithValue(ctx, yieldName{}, fmt.Sprintf(format, args...))
}

func (q *Queue) nowMS() int64 { return millis(q.opts.Now()) }

// batchOptions returns the transaction options of a job, which yields to everything else.
func (q *Queue) batchOptions() kv.TxOptions {
	o := q.opts.Tx
	o.Batch = true
	return o
}
