package history

import (
	"sync"
	"time"
)

// Clock is a clock for the engine that plays a history. A history must not depend on the speed of the machine, so no
// transaction may grow too old. Therefore the clock stands still while the engine works. It moves only when the player
// waits between two attempts, and that wait takes no real time. The zero value is ready.
type Clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

// longestRetry is longer than the player waits between two attempts, and shorter than all other waits of an engine.
const longestRetry = 100 * time.Millisecond

// Now is the time of the history.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(1, 0).Add(c.ahead)
}

// After moves the clock by a short wait, which ends at once. A longer wait takes its real time and does not move the
// clock: while an engine writes to a slow disk it waits a second between checks of its transactions.
func (c *Clock) After(d time.Duration) <-chan time.Time {
	if d > longestRetry {
		return time.After(d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += max(d, 0)
	ch := make(chan time.Time, 1)
	ch <- time.Unix(1, 0).Add(c.ahead)
	return ch
}
