package sim_test

import "testing"

// TestPlain: unordered and ordered consumers share a queue, in runs in which items are held, returned and taken over
// all the time. No item has two holders, a receive of groups sees no gap, and no message is lost.
func TestPlain(t *testing.T) {
	sum := runProfiles(t, someOf(30), "mixed", "outlived", "overripe", "turned", "overturned")
	if sum.Operations > 1000 {
		requireSeen(t, sum,
			"item claimed by itself", "items of a group held side by side", "item free again", "hint put aside",
			"takeover of an expired claim", "exclusion of claims seen", "order of deliveries seen",
		)
	}
}
