package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestRivals (G2, G3): two goroutines of a process settle the same claim at the same time.
func TestRivals(t *testing.T) {
	sum := runSeeds(t, someOf(15), sim.Options{Profile: "rivals"})
	if sum.Operations > 1000 {
		requireSeen(t, sum, "claim with two settlements")
	}
}
