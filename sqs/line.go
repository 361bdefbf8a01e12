package sqs

import (
	"context"
	"slices"
	"sync"
	"time"
)

// line keeps most of a queue's long polls away from the database. While one poll waits in the database, no message is
// ready, and the other polls wait in the line. If that poll has got messages, there may be more, and two others follow
// it. If its time is over, one follows. The newest polls go first, because they can wait the longest. So many polls of
// 20 s cost as little as one. A poll that has to wait for memory of its answer leaves the line: the others may be of
// clients that have memory.
type line struct {
	mu      sync.Mutex
	ahead   int             // polls that wait or look in the database; guarded by mu
	waiting []chan struct{} // closed when it is their turn; the newest last; guarded by mu
}

// enter waits until it is the poll's turn. It returns false if the time is over, or ctx has ended, before that. If it
// returns true, the caller must call leave.
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

// leave ends the turn of a poll, and gives other polls their turn. found says whether it got messages.
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
