package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestTwinned (contract): callers leave receives with receive ids, and repeat them. No such receive that has made
// claims says that nothing has happened.
func TestTwinned(t *testing.T) {
	sum := runSeeds(t, someOf(15), sim.Options{Profile: "twinned"})
	if sum.Operations > 1000 {
		requireSeen(t, sum, "receive repeated")
	}
}

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
