package sqs

import (
	"math"
	"time"
)

// clockSlack is how far the clocks of two servers may differ before one counts as wrong.
const clockSlack = 5 * time.Minute

// since returns how long ago a stored time (ms) was the present of a server. A time that lies further ahead than clocks
// differ was stored by a server whose clock was wrong: it counts as long ago.
func (s *Server) since(ms int64) time.Duration {
	if age := s.options.Now().Sub(time.UnixMilli(ms)); age >= -clockSlack {
		return age
	}
	return math.MaxInt64
}

// until reports whether a stored deadline (ms) is still to come. A deadline further ahead than lasts and than clocks
// differ was stored by a server whose clock was wrong: it is over.
func (s *Server) until(ms int64, lasts time.Duration) bool {
	left := time.UnixMilli(ms).Sub(s.options.Now())
	return left >= 0 && left <= lasts+clockSlack
}
