package clienttest

import (
	"fmt"
	"sync"
)

// ledger notes what the workers of a test have handled. A body is GROUP:NUMBER.
type ledger struct {
	mu     sync.Mutex
	last   map[string]string // the body that was begun last, of each group
	begun  map[string]bool
	gone   map[string]bool // bodies whose delete was answered
	tries  int
	faults []string
}

func newLedger() *ledger {
	return &ledger{last: make(map[string]string), begun: make(map[string]bool), gone: make(map[string]bool)}
}

// fails reports whether a worker's handler fails: one time in five or so.
func (l *ledger) fails(worker int, body string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries++
	return (l.tries*7+worker)%5 == 0
}

// begin notes that a handler has begun with a message: none of its group may come after a later one, nor after its
// delete.
func (l *ledger) begin(body string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	group := body[:1]
	if l.gone[body] {
		l.faults = append(l.faults, body+" was handled after its delete")
	}
	if before := l.last[group]; body < before {
		l.faults = append(l.faults, fmt.Sprintf("%s was handled after %s", body, before))
	}
	l.last[group], l.begun[body] = body, true
}

// done notes that the delete of a message was answered.
func (l *ledger) done(body string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[body] = true
}
