package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLateIsCounted: what is late is more than ten round trips and more than the floor, whatever the waits at rest
// took; the figures say how many waits there were at each time, and how many were late.
func TestLateIsCounted(t *testing.T) {
	l := lateWaits{rest: []time.Duration{time.Second, 0}}
	for range sendAfter() {
		l.soon = append(l.soon, []time.Duration{time.Millisecond, time.Millisecond})
	}
	l.soon[3][1] = 55 * time.Millisecond
	for trip, late := range map[float64]float64{100: 1, 5400: 1, 5600: 0} { // µs
		l.trips = []float64{trip}
		figures := map[string]Result{}
		for _, r := range l.results("share", "") {
			figures[r.Name] = r
		}
		require.Equal(t, late/10, figures["share"].Value, "round trips of %v µs", trip)
		require.Equal(t, late, figures["share_late"].Value)
		require.Equal(t, 10.0, figures["share_waits"].Value)
		require.Equal(t, 0.5, figures["share_at_rest"].Value)
		require.Equal(t, late == 0, figures["share"].Target.Met(figures["share"].Value))
	}
	l.trips = []float64{100}
	require.Contains(t, l.results("share", "")[0].Detail,
		"0 of 2 at 2ms, 1 of 2 at 5ms, 0 of 2 at 10ms, late is more than 20ms")
}
