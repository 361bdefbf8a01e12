package sim_test

import (
	"fmt"
	"testing"

	"fdbfifo/internal/sim"
)

// TestFailingStore (G3): a call whose attempts meet one error after the other says of its outcome what is true. It is
// not refused if any of its attempts has had an effect.
func TestFailingStore(t *testing.T) {
	sum := sim.Report{Marks: make(map[string]int)}
	t.Run("seeds", func(t *testing.T) {
		for seed := *seedFlag; seed < *seedFlag+uint64(someOf(4)); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				r := runAs(t, sim.Options{
					Seed: seed, Operations: *operationsFlag, Profile: "failing", Trace: *linesFlag, Linear: true,
				})
				requireSound(t, r, *operationsFlag)
				sum.Add(r)
			})
		}
	})
	t.Log(&sum)
	for _, name := range []string{"fault read-failed", "fault commit-failed", "fault unnamed-applied"} {
		if sum.Marks[name] == 0 && sum.Operations > 1000 {
			t.Errorf("not seen: %s", name)
		}
	}
}
