package advice

import (
	"sync"
	"time"
)

const (
	// farSeen bounds the timers that a handle keeps an eye on.
	farSeen = 1000
	// farLooks is how many looks by a template a handle has in one lease. It has twice as many in all.
	farLooks = 4
)

// Far is what a handle has seen when it looked far ahead. The zero value has seen nothing.
type Far struct {
	mu     sync.Mutex
	last   time.Time            // guarded by mu; when the handle looked last
	looked map[string]time.Time // guarded by mu; the same by template
	after  map[string][]byte    // guarded by mu; by the begin of a shard's section: where the next look continues
	seen   map[string]time.Time // guarded by mu; by the key of a timer: when the handle saw it first
}

// Begin reports whether it is time for a look by a template. empty: a receive has just found nothing.
func (f *Far) Begin(where string, now time.Time, lease time.Duration, empty bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.looked == nil {
		f.looked, f.after = make(map[string]time.Time), make(map[string][]byte)
	}
	last, before := f.looked[where]
	switch {
	case !before && !empty:
		f.looked[where] = now
		return false
	case before && now.Sub(last) < lease/farLooks, now.Sub(f.last) < lease/farLooks/2 && !f.last.IsZero():
		return false
	}
	f.looked[where], f.last = now, now
	return true
}

// IsOver reports whether the handle has seen a timer for as long as d.
func (f *Far) IsOver(key []byte, now time.Time, d time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, known := f.seen[string(key)]
	if !known {
		if f.seen == nil {
			f.seen = make(map[string]time.Time)
		}
		if len(f.seen) >= farSeen {
			clear(f.seen)
		}
		first = now
		f.seen[string(key)] = first
	}
	return now.Sub(first) >= d
}

// Place returns where a look at a section continues; nil = from the begin.
func (f *Far) Place(section []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.after[string(section)]
}

// Next sets where the next look at a section continues; nil = from the begin.
func (f *Far) Next(section, last []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after[string(section)] = last
}
