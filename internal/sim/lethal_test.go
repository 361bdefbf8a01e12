package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestLethal (G7): handlers kill their process at every phase. One message that always does becomes the only dead
// letter, and its neighbours are handled at most twice.
func TestLethal(t *testing.T) {
	seeds := someOf(8)
	sum := runSeeds(t, seeds, sim.Options{Profile: "lethal"})
	if seeds >= 18 {
		requireSeen(t, sum,
			"process killed before the handler", "process killed in the handler", "process killed after the handler",
			"process killed during an ack", "poison found", "dead letter by a lease", "lease that counted no attempt")
	}
}
