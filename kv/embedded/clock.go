package embedded

import "time"

// Clock is the engine's only source of time: it drives versions, the five second window, backoff and timeouts. An
// implementation must be safe for concurrent use. Now must not go back; the engine tolerates a clock that stands still.
type Clock interface {
	Now() time.Time
	// After returns a channel that delivers once d has passed; at once if d <= 0.
	After(d time.Duration) <-chan time.Time
}

type wallClock struct{}

func (wallClock) Now() time.Time                         { return time.Now() }
func (wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
