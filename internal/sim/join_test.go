package sim_test

import "testing"

// TestJoining: messages join their groups when they are due, in the order of their times. None is lost, doubled, or
// delivered from where it waits.
func TestJoining(t *testing.T) {
	sum := runProfiles(t, someOf(30), "joining")
	if sum.Operations > 1000 {
		requireSeen(t, sum, "message joined its group", "messages that join at several times")
	}
}
