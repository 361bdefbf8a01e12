package sim_test

import (
	"fmt"
	"testing"

	"fdbfifo/internal/sim"
)

// TestContended (contract): while claims lose their conflicts, a call that settles waits for nothing but its own
// transaction, and no call that has made a claim says that nothing has happened.
func TestContended(t *testing.T) {
	requireSeen(t, runProfile(t, "contended", someOf(12)), 12,
		"claim lost a conflict", "settled beside receives", "claim of a repeated receive", "claim proven")
}

// runProfile runs that many seeds of a profile.
func runProfile(t *testing.T, profile string, seeds int) []*sim.Report {
	reports := make([]*sim.Report, seeds)
	t.Run("seeds", func(t *testing.T) {
		for i := range reports {
			seed := *seedFlag + uint64(i)
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				reports[i] = runAs(t, sim.Options{
					Seed: seed, Operations: *operationsFlag, Profile: profile, Trace: *linesFlag, Linear: true,
				})
				requireSound(t, reports[i], *operationsFlag)
			})
		}
	})
	return reports
}

// requireSeen sums up the reports. It fails if so many or more have not met each of names.
func requireSeen(t *testing.T, reports []*sim.Report, enough int, names ...string) {
	t.Helper()
	sum := sim.Report{Marks: make(map[string]int)}
	for _, r := range reports {
		if r == nil {
			return // a seed has failed
		}
		sum.Add(r)
	}
	t.Log(&sum)
	for _, name := range names {
		if sum.Marks[name] == 0 && len(reports) >= enough {
			t.Errorf("not seen: %s", name)
		}
	}
}
