package sqs

import (
	"context"
	"slices"
	"sync"
	"time"
)

// line keeps most of a queue's long polls from the database: as long as one of them waits there, nothing is ready,
// and the others stand in the line. When it has got messages there may be more: two others take its place; when its
// time is over, one. That is the newest, which can stay the longest, so that many polls of 20 s cost as little as
// one.
type line struct {
	mu      sync.Mutex
	ahead   int             // how many wait, or look, in the database; guarded by mu
	waiting []chan struct{} // closed when it is their turn; the newest last; guarded by mu
}

// enter waits until it is a poll's turn. It reports false if the time is over, or ctx has ended, before that.
// Otherwise call leave.
func (l *line) enter(ctx context.Context, until time.Time) bool {
	l.mu.Lock()
	if l.ahead == 0 {
		l.ahead++
		l.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-turn:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, turn); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		return false
	}
	return true // its turn has come just now
}

// leave lets others have their turn.
func (l *line) leave(found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead--
	n := 0
	if found {
		n = 2
	} else if l.ahead == 0 {
		n = 1
	}
	for ; n > 0 && len(l.waiting) > 0; n-- {
		newest := len(l.waiting) - 1
		close(l.waiting[newest])
		l.waiting = l.waiting[:newest]
		l.ahead++
	}
}
