package sim_test

import "testing"

// TestWaking: progress. No receive waits for a poll, whatever commits are in flight when a receive begins to wait, is
// served, or gives up, and however many requests of dead handles there are (waking.go).
func TestWaking(t *testing.T) {
	seeds := someOf(30)
	sum := runProfiles(t, seeds, "waking", "waking-dead", "waking-lanes")
	requireSeen(t, sum, "free while a receive waits")
	if seeds >= 10 {
		requireSeen(t, sum, "lifted a rate while a receive waits", "lifted a rate of the queue while a receive waits",
			"lifted a delay while a receive waits")
	}
}
