//go:build broken

package sim_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBrokenAlone: porcupine alone, from the answers that the callers got, finds that a guard is missing. In the same
// run of a whole queue it finds nothing. The test tries the known seed first, then a bounded number of others.
func TestBrokenAlone(t *testing.T) {
	const bound = 100
	for guard, k := range caughtAlone {
		t.Run(guard, func(t *testing.T) {
			t.Parallel()
			f := start(t, guard, k.profile, k.seed, 1, "-alone")
			if f.Violation == "" {
				f = start(t, guard, k.profile, 1, bound, "-alone")
			}
			require.NotEmpty(t, f.Violation, "without %q porcupine finds nothing in %d seeds", guard, bound)
			require.Empty(t, start(t, "", k.profile, f.Seed, 1, "-alone").Violation)
			last := f.Violation[strings.LastIndex(f.Violation, "\n")+1:]
			t.Logf("without %s: %s, seed %d: %s", guard, k.profile, f.Seed, last)
		})
	}
}
