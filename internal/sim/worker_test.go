package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/sim"
)

// seenOfWorkers is what runs of workers have met.
var seenOfWorkers = []string{
	"run without faults", "batch handled", "handler failed", "handler panicked", "panic of a handler reported",
	"handler ended its goroutine", "Goexit of a handler reported", "handler took too long for a transaction",
	"handler timed out",
	"handler waited for the end of its context", "handler ignored its context", "handler stuck", "item dead-lettered",
	"takeover of an expired claim", "worker lost its claim", "worker stopped by force", "death of a handle",
	"limiter slower than the lease", "limiter faster than the lease", "handler returned a typed nil",
	"typed nil in a batch",
	"slow event: received", "slow event: started", "slow event: done", "slow event: failed",
	"hook of a handle hung", "hook of a handle panicked", "hook of a handle ended its goroutine",
	"event received hung", "event started hung", "OnError hung", "function that hung reported",
	"function that panicked reported", "worker with a second queue", "slow Next of a second queue",
	"slow Next of the queue", "handler returned nil late",
}

// enoughWorkers is the number of seeds after which all of seenOfWorkers must have been seen.
const enoughWorkers = 40

// TestWorkers: workers of every kind keep the laws of progress (law.go). Their handlers take from no time to longer
// than the lease, the timeout and a transaction. They fail, panic, end their goroutine, and hang. Half of the runs have
// no faults. A seed of workers takes as long as ten others, so 40 seeds are enough to see all rare events. With few
// seeds half of them run.
func TestWorkers(t *testing.T) {
	seeds := min((seedsWanted()+1)/2, enoughWorkers)
	sum := runSeeds(t, seeds, sim.Options{Profile: "worked"})
	if seeds < enoughWorkers {
		return
	}
	requireSeen(t, sum, seenOfWorkers...)
	require.Zero(t, sum.Lost+sum.Doubled+sum.Unexpected)
}
