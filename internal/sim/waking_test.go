package sim_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/sim"
)

// TestWaking: progress. No receive waits for a poll, whatever commits are in flight when a receive begins to wait, is
// served, or gives up (waking.go).
func TestWaking(t *testing.T) {
	sum := sim.Report{Marks: make(map[string]int)}
	for _, profile := range []string{"waking", "waking-lanes"} {
		t.Run(profile, func(t *testing.T) {
			for seed := *seedFlag; seed < *seedFlag+uint64(someOf(10)); seed++ {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					r := runAs(t, sim.Options{
						Seed: seed, Operations: *operationsFlag, Profile: profile, Trace: *linesFlag, Linear: true,
					})
					requireSound(t, r, *operationsFlag)
					sum.Add(r)
				})
			}
		})
	}
	t.Log(&sum)
	require.Positive(t, sum.Marks["free while a receive waits"])
	if someOf(10) >= 10 {
		requireSeen(t, sum, "lifted a rate while a receive waits", "lifted a rate of the queue while a receive waits",
			"lifted a delay while a receive waits")
	}
}
