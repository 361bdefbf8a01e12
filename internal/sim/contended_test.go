package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestContended (contract): while claims lose their conflicts, a call that settles waits for nothing but its own
// transaction, and no call that has made a claim says that nothing has happened.
func TestContended(t *testing.T) {
	seeds := someOf(12)
	sum := runSeeds(t, seeds, sim.Options{Profile: "contended"})
	if seeds >= 12 {
		requireSeen(t, sum, "claim lost a conflict", "settled beside receives",
			"claim of a repeated receive", "claim proven")
	}
}
