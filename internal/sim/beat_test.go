package sim_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/sim"
)

// seenOfBeats is what runs of heartbeats have met.
var seenOfBeats = []string{
	"claim by heartbeat", "beat moved", "claim by heartbeat extended", "claim by heartbeat let go",
	"handle ended by its heartbeat", "claim ended with its heartbeat", "takeover of an expired claim",
	"death of a handle",
}

// TestBeats: handles claim by heartbeat. They die, stand still, are closed with claims in flight, and are late with
// their beats. No handle takes over the groups of a handle whose beat is in time. The groups of dead handles are taken
// over, and no message is lost.
func TestBeats(t *testing.T) {
	sum := sim.Report{Marks: make(map[string]int)}
	t.Run("seeds", func(t *testing.T) {
		for _, p := range []struct {
			profile string
			// share is of the seeds: only where there are many of these, there are slow ones; operations are a seed's.
			share, operations int
		}{{"beating", 20, *operationsFlag}, {"paged", 150, *operationsFlag / 4}, {"steady", 100, *operationsFlag},
			{"leasing", 100, *operationsFlag}} {
			seeds := uint64(seedsWanted() / p.share)
			if seeds == 0 && !testing.Short() {
				seeds = 1
			}
			for seed := *seedFlag; seed < *seedFlag+seeds; seed++ {
				t.Run(fmt.Sprintf("%s/%d", p.profile, seed), func(t *testing.T) {
					o := sim.Options{
						Seed: seed, Operations: p.operations, Profile: p.profile, Trace: *linesFlag, Linear: true,
					}
					r := runAs(t, o)
					requireSound(t, r, p.operations)
					sum.Add(r)
					if seed == *seedFlag && p.profile == "beating" { // which beats all the time
						require.Equal(t, r.Digest, runAs(t, o).Digest, "a seed decides a run")
					}
				})
			}
		}
	})
	t.Log(&sum)
	if sum.Operations > 3_000 {
		requireSeen(t, sum, seenOfBeats...)
	}
}
