package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestMovers (G3): messages pass between two queues, in one transaction each, under faults. A message is never lost,
// doubled or in both queues. A move says truly whether it has happened.
func TestMovers(t *testing.T) {
	seeds := someOf(10)
	sum := runSeeds(t, seeds, sim.Options{Profile: "moved"})
	if seeds >= 15 {
		requireSeen(t, sum,
			"moved: take", "moved: ack-tx", "moved: discard-tx", "moved: enqueue-tx", "moved: cancel-tx",
			"message left by a sift", "move of unknown outcome found",
			"move refused: full", "move refused: message", "move refused: duplicate", "move refused: no target",
			"target dropped", "target created again", "target drained")
	}
}
