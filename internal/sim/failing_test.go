package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestFailingStore (G3): a call whose attempts meet one error after the other says of its outcome what is true. It is
// not refused if any of its attempts has had an effect.
func TestFailingStore(t *testing.T) {
	sum := runSeeds(t, someOf(15), sim.Options{Profile: "failing"})
	if sum.Operations > 1000 {
		requireSeen(t, sum, "fault read-failed", "fault commit-failed", "fault unnamed-applied")
	}
}
