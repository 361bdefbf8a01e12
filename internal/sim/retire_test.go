package sim_test

import (
	"fmt"
	"testing"

	"fdbfifo/internal/sim"
)

// TestRetire: handles are closed in good order while their actors call, wait and hold claims. Close returns, a refused
// call has no effect, the handle leaves no rows, and others take over its groups.
func TestRetire(t *testing.T) {
	sum := sim.Report{Marks: make(map[string]int)}
	t.Run("seeds", func(t *testing.T) {
		for seed := *seedFlag; seed < *seedFlag+uint64(max(4, seedsWanted()/10)); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				r := runAs(t, sim.Options{
					Seed: seed, Operations: *operationsFlag, Retire: true, Trace: *linesFlag, Linear: true,
				})
				requireSound(t, r, *operationsFlag)
				sum.Add(r)
			})
		}
	})
	t.Log(&sum)
	for _, name := range []string{
		"handle closed in good order", "handle closed with actors at work", "call refused: handle closed",
	} {
		if sum.Marks[name] == 0 && sum.Operations > 1000 {
			t.Errorf("not seen: %s", name)
		}
	}
}
