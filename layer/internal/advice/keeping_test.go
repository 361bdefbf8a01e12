//go:build !broken

// A guard in internal/mutants gives Acks a parameter.

package advice

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTwoAcksOweTwoWakes: two acks at the same time leave two lanes ready. Each of them withholds its wake, because
// none is owed yet. Both wakes are paid, the first at once. If both acks leave the same lane ready, one wake is enough.
func TestTwoAcksOweTwoWakes(t *testing.T) {
	for second, want := range map[string][]string{"B": {"A", "B"}, "A": {"A"}} {
		synctest.Test(t, func(t *testing.T) {
			lanes := make(chan string, 2)
			k := &Keeping{Pay: func(_ context.Context, lane string) error {
				lanes <- lane
				return nil
			}}
			paid := func() (all []string) {
				synctest.Wait()
				for len(lanes) > 0 {
					all = append(all, <-lanes)
				}
				return all
			}
			a, b := k.Acks(), k.Acks()
			require.True(t, a.Withholds() && b.Withholds())
			a.Owe("A")
			b.Owe(second)
			a.End(Applied)
			b.End(Applied)
			first := paid()
			require.Equal(t, len(want)-1, len(first))
			time.Sleep(2 * KeepGap)
			require.Equal(t, want, append(first, paid()...))
			require.NoError(t, k.Close(t.Context()))
			require.Empty(t, paid())
		})
	}
}
