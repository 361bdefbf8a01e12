package sim

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSlowProgress: a run with many steps between two messages is not given up, and one without progress is. Example:
// handlers of one group that are stuck for minutes, one after the other.
func TestSlowProgress(t *testing.T) {
	for _, moves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &scheduler{
				settle: synctest.Wait, rng: rand.New(rand.NewPCG(1, 1)), knobs: &knobs{}, trace: new(trace),
				arrived: make(chan struct{}, 1), most: 100, live: 1,
			}
			go func() {
				for step := range 1000 {
					s.park(place{"call", 1, 0})
					if moves && step%80 == 0 {
						s.progress()
					}
				}
				s.mu.Lock()
				s.live = 0
				s.mu.Unlock()
				s.signal()
			}()
			err := s.drive(time.Hour)
			if moves {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "no end within")
			require.Equal(t, 101, s.steps)
			s.mu.Lock()
			s.given = true
			all := s.parked
			s.mu.Unlock()
			for _, p := range all {
				p.resume <- struct{}{}
			}
		})
	}
}
