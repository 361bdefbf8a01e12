package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestRetire: handles are closed in good order while their actors call, wait and hold claims. Close returns, a refused
// call has no effect, the handle leaves no rows, and others take over its groups.
func TestRetire(t *testing.T) {
	sum := runSeeds(t, max(4, seedsWanted()/25), sim.Options{Retire: true})
	if sum.Operations > 1000 {
		requireSeen(t, sum, "handle closed in good order", "handle closed with actors at work",
			"call refused: handle closed")
	}
}
