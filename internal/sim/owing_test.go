package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestOwing: progress. Some handles ack and at once receive again, while others wait. No group is left alone for longer
// than a wake may be owed, and no handle keeps a group without end (owing.go).
func TestOwing(t *testing.T) {
	seeds := someOf(30)
	sum := runSeeds(t, seeds, sim.Options{Profile: "owing"})
	if seeds >= 10 {
		requireSeen(t, sum, "group free while a receive waits", "group kept for many acks")
	}
}
