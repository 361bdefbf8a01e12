package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestRetroactive: the delay of a queue is changed while messages wait by it: none is delivered earlier than a delay
// that was in force allows, and none is lost.
func TestRetroactive(t *testing.T) {
	sum := runSeeds(t, someOf(15), sim.Options{Profile: "redelayed"})
	if sum.Operations > 1000 {
		requireSeen(t, sum, "delay changed under load", "head awaited by the time of its enqueue",
			"claim in a queue with a delay that changes", "expired after a shorter delay")
	}
}
