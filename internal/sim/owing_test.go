package sim_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/sim"
)

// TestOwing: progress. Some handles ack and at once receive again, while others wait. No group is left alone for longer
// than a wake may be owed, and no handle keeps a group without end (owing.go).
func TestOwing(t *testing.T) {
	sum := sim.Report{Marks: make(map[string]int)}
	t.Run("seeds", func(t *testing.T) {
		for seed := *seedFlag; seed < *seedFlag+uint64(someOf(10)); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				r := runAs(t, sim.Options{
					Seed: seed, Operations: *operationsFlag, Profile: "owing", Trace: *linesFlag, Linear: true,
				})
				requireSound(t, r, *operationsFlag)
				sum.Add(r)
			})
		}
	})
	t.Log(&sum)
	for _, name := range []string{"group free while a receive waits", "group kept for many acks"} {
		if someOf(10) >= 10 {
			require.Positive(t, sum.Marks[name], name)
		}
	}
}
