package embedded_test

import (
	"sync"
	"time"
)

// manualClock stands still until it is advanced.
type manualClock struct {
	mu      sync.Mutex
	now     time.Time
	waiting []alarm
}

type alarm struct {
	at time.Time
	c  chan time.Time
}

func newManualClock() *manualClock { return &manualClock{now: time.Unix(1_000_000, 0)} }

func (c *manualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manualClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := alarm{c.now.Add(d), make(chan time.Time, 1)}
	if d <= 0 {
		a.c <- c.now
	} else {
		c.waiting = append(c.waiting, a)
	}
	return a.c
}

func (c *manualClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	kept := c.waiting[:0]
	for _, a := range c.waiting {
		if a.at.After(c.now) {
			kept = append(kept, a)
		} else {
			a.c <- c.now
		}
	}
	c.waiting = kept
}
