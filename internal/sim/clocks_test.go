package sim_test

import (
	"testing"

	"fdbfifo/internal/sim"
)

// TestClocks (G3, contract): processes have clocks that are wrong by up to two years. Nothing is removed because of its
// age, and no time that they have stored holds up a group longer than a right one.
func TestClocks(t *testing.T) {
	seeds := someOf(22)
	sum := runSeeds(t, seeds, sim.Options{Profile: "clocks"})
	if seeds >= 18 {
		requireSeen(t, sum, "clock right", "clock ahead", "clock behind", "clock leaping", "clock standing",
			"sweep refused by clocks", "sweep by the clock furthest ahead",
			"first clock ahead", "first clock behind", "first clock leaping",
			"claim by heartbeat",
			"beat of a process that died", "subscription taken over", "moved: take", "target drained",
			"folder opened first by a clock that is ahead")
	}
}

// TestClockIDs (G3): processes with wrong clocks use the same dedup ids and receive ids again, and purge. No id ends
// early, and each is free again in bounded time.
func TestClockIDs(t *testing.T) {
	seeds := someOf(45)
	sum := runSeeds(t, seeds, sim.Options{Profile: "clock-ids"})
	if seeds >= 15 {
		requireSeen(t, sum, "receive id used again", "receive id free again", "repeated receive that got nothing",
			"dedup id used again", "dedup id free after a purge", "dedup id free again", "duplicate", "dedup id swept",
			"receive id swept", "sweep by the clock furthest ahead")
	}
}
