package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestOperatorsInSteps (contract): two operators pause and resume a group whose lanes take several transactions. The
// last call decides, whatever comes between two steps of another.
func TestOperatorsInSteps(t *testing.T) {
	seeds := someOf(75)
	sum := runSeeds(t, seeds, sim.Options{Profile: "stepped"})
	if seeds >= 6 {
		requireSeen(t, sum, "resume in steps", "pause met a resume between two steps", "group paused", "group halted")
	}
}
