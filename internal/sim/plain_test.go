package sim_test

import (
	"fmt"
	"testing"

	"fdbfifo/internal/sim"
)

// TestPlain: unordered and ordered consumers share a queue, in runs in which items are held, returned and taken over
// all the time. No item has two holders, a receive of groups sees no gap, and no message is lost.
func TestPlain(t *testing.T) {
	sum := sim.Report{Marks: make(map[string]int)}
	t.Run("seeds", func(t *testing.T) {
		for _, profile := range []string{"mixed", "outlived", "overripe", "turned", "overturned"} {
			for seed := *seedFlag; seed < *seedFlag+uint64(someOf(10)); seed++ {
				t.Run(fmt.Sprintf("%s/%d", profile, seed), func(t *testing.T) {
					o := sim.Options{
						Seed: seed, Operations: *operationsFlag, Profile: profile, Trace: *linesFlag, Linear: true,
					}
					r := runAs(t, o)
					requireSound(t, r, *operationsFlag)
					sum.Add(r)
				})
			}
		}
	})
	t.Log(&sum)
	if sum.Operations > 1000 {
		requireSeen(t, sum,
			"item claimed by itself", "items of a group held side by side", "item free again", "hint put aside",
			"takeover of an expired claim", "exclusion of claims seen", "order of deliveries seen",
		)
	}
}
