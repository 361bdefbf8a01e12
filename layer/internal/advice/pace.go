package advice

import (
	"sync"
	"time"
)

// Pace bounds the looks in vain of a loop, or of several. A loop that waits for the database looks again when something
// has woken the loop. If its watch fails, or fires for nothing, the loop would look again at once, and so on: 200,000
// times a second.
type Pace struct {
	Burst int           // looks in a row without a pause, see Wait
	Pause time.Duration // for each look beyond the burst

	mu   sync.Mutex
	next time.Time // guarded by mu; when the next look would be if there were no burst
}

// Wait books the next look, after one in vain, and returns how long to wait before it: 0 for the first Burst + 1 looks
// that are booked in a row.
func (p *Pace) Wait() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	left := p.next.Sub(now) - time.Duration(p.Burst)*p.Pause
	p.next = p.next.Add(p.Pause)
	return max(left, 0)
}

// Found notes that a look has found something: the next looks may follow at once.
func (p *Pace) Found() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = time.Time{}
}
