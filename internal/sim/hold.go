package sim

import (
	"math"
	"time"
)

// holdMost is the longest that a goroutine is held: a transaction has 5 s.
const holdMost = 4 * time.Second

// hold stops a picked goroutine for a while, now and then, when it is about to send a commit. So its reads get old, and
// the operations of others fall between its reads and its writes.
func (s *scheduler) hold(p *parked) bool {
	if s.knobs.hold == 0 || p.what != "commit" || !p.until.IsZero() || s.rng.Float64() >= s.knobs.hold {
		return false
	}
	least := float64(s.knobs.holdLeast)
	most := float64(holdMost)
	if s.knobs.holdMost > 0 {
		most = float64(s.knobs.holdMost)
	}
	d := least * math.Pow(most/least, s.rng.Float64()) // each order of magnitude as often as the others
	p.until = time.Now().Add(time.Duration(d))
	s.trace.note("held", p.place, time.Duration(d))
	return true
}

// idle returns how long to wait, when no goroutine can continue, if nothing happens.
func (s *scheduler) idle(limit time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parked {
		if left := time.Until(p.until); left > 0 {
			limit = min(limit, left)
		}
	}
	return limit
}
