package advice

import (
	"maps"
	"sync"
	"time"
)

const (
	// farSeen bounds the timers that a handle keeps an eye on.
	farSeen = 1000
	// farPlaces bounds the templates and sections of which a handle remembers its last look.
	farPlaces = 10_000
	// farLooks is how many looks by a template a handle has in one lease. It has twice as many in all.
	farLooks = 4
)

// Far is what a handle has seen when it looked far ahead: at timers far in the future, which a process with a wrong
// clock may have left (see lookFar in package layer). Far counts by the time that the caller passes. The zero value has
// seen nothing.
type Far struct {
	mu     sync.Mutex
	lease  time.Duration        // guarded by mu; of the queue
	last   time.Time            // guarded by mu; when the handle looked last
	looked map[string]time.Time // guarded by mu; the same by template
	after  map[string][]byte    // guarded by mu; by the begin of a shard's section: where the next look continues
	seen   map[string]sight     // guarded by mu; by the name of a timer: see IsOver
	// cleared is when the handle last forgot timers that it did not meet any more. Guarded by mu.
	cleared time.Time
}

// sight is when the handle saw a timer first with this due time (ms), and when it saw the timer last.
type sight struct {
	dueMS       int64
	first, last time.Time
}

// Begin reports whether it is time for a look by the template where, and notes the look. lease is the queue's: looks by
// a template are a quarter of it apart, and looks by any template an eighth. empty: a receive has just found nothing.
// The first look by a template must wait for a quarter of the lease, unless empty is set.
func (f *Far) Begin(where string, now time.Time, lease time.Duration, empty bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lease = lease
	last, before := f.looked[where]
	if f.looked == nil || !before && len(f.looked) >= farPlaces {
		f.looked = make(map[string]time.Time)
	}
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

// IsOver notes that the handle has just seen a timer due at dueMS (ms). It reports whether the handle has seen the
// timer unchanged for as long as d. If d <= 0, it returns true and notes nothing. name stays the same while the timer
// moves, and tells apart the timers of two claims of a group. The key of the timer would not: a process whose clock
// stands sets the same timer for each of its claims.
//
// A handle that keeps an eye on farSeen timers first forgets those that it has not met for a lease, but not more often
// than farLooks times in a lease. If there is still no room, the new timer has to wait and IsOver returns false. A
// handle that forgot timers which it still meets might see none of them for long enough.
func (f *Far) IsOver(name []byte, dueMS int64, now time.Time, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, known := f.seen[string(name)]
	if !known {
		if len(f.seen) >= farSeen && now.Sub(f.cleared) > f.lease/farLooks {
			f.cleared = now
			maps.DeleteFunc(f.seen, func(_ string, s sight) bool { return now.Sub(s.last) > f.lease })
		}
		if len(f.seen) >= farSeen {
			return false
		}
		if f.seen == nil {
			f.seen = make(map[string]sight)
		}
	}
	if !known || s.dueMS != dueMS {
		s.dueMS, s.first = dueMS, now
	}
	s.last = now
	f.seen[string(name)] = s
	return now.Sub(s.first) >= d
}

// Place returns the key behind which the next look at a section continues; nil = from the begin. section is the begin
// of the timers of one shard and template.
func (f *Far) Place(section []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.after[string(section)]
}

// Next sets the key behind which the next look at a section continues; nil = from the begin.
func (f *Far) Next(section, last []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last == nil {
		delete(f.after, string(section))
		return
	}
	if _, known := f.after[string(section)]; f.after == nil || !known && len(f.after) >= farPlaces {
		f.after = make(map[string][]byte)
	}
	f.after[string(section)] = last
}
