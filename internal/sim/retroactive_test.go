package sim_test

import (
	"fmt"
	"testing"

	"fdbfifo/internal/sim"
)

// TestRetroactive: the delay of a queue is changed while messages wait by it: none is delivered earlier than a delay
// that was in force allows, and none is lost.
func TestRetroactive(t *testing.T) {
	sum := sim.Report{Marks: make(map[string]int)}
	t.Run("seeds", func(t *testing.T) {
		for seed := *seedFlag; seed < *seedFlag+uint64(someOf(5)); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				o := sim.Options{
					Seed: seed, Operations: *operationsFlag, Profile: "redelayed", Trace: *linesFlag, Linear: true,
				}
				r := runAs(t, o)
				requireSound(t, r, *operationsFlag)
				sum.Add(r)
			})
		}
	})
	t.Log(&sum)
	for _, name := range []string{
		"delay changed under load", "head awaited by the time of its enqueue",
		"claim in a queue with a delay that changes",
	} {
		if sum.Marks[name] == 0 && sum.Operations > 1000 {
			t.Errorf("not seen: %s", name)
		}
	}
}
