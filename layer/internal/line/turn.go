package line

import (
	"sync"
	"time"

	"fdbfifo/kv"
)

// Turn is one transaction which tries to serve waiting receives, or several transactions for many receives. Example:
// three receives wait, two groups become ready: the turn claims both, and the third receive goes back into the line.
type Turn struct {
	// Cue is the reason of the turn, with the handle's knowledge, for the transaction. The transaction may change it.
	Cue Cue
	// Glances are the places at which the turn only glances, for receives that it does not serve.
	Glances []string

	mu     sync.Mutex
	rest   Rest  // guarded by mu; what the receives wait for after the turn
	failed error // guarded by mu; of a transaction of the turn
	served bool  // guarded by mu: the turn has claimed something
}

// Rest is what receives wait for after a turn that found nothing. Watch is set if the turn wrote nothing, or, for
// receives that stood back, only the handle's request. It is on the handle's wake key, and for receives with a place
// also on the key that all such handles watch. It counts from the version at which the turn found nothing, so that no
// wake is missed.
type Rest struct {
	Watch kv.Future[struct{}] // nil = take another turn at once
	Wait  time.Duration       // until the next turn, if no wake comes
	Dead  []string            // the templates whose oldest request belongs to a handle which has died
	Next  Cue                 // of the turn at the end of Wait
	Found map[string]bool     // the places where a glance has found something
}

// Cancel gives up the watch.
func (r *Rest) Cancel() {
	if r.Watch != nil {
		r.Watch.Cancel()
		r.Watch = nil
	}
}

// Cue says why waiting receives have a turn, and has the handle's knowledge from earlier turns.
type Cue struct {
	Why Why
	// Seen are the hints which the handle met at the last look and did not claim.
	Seen map[string]bool
	// Fresh are the hints which this turn has met and did not claim; nil = none.
	Fresh map[string]bool
	// Again: the look before this one was only a while ago (Env.AWhile), so the handle has looked twice.
	Again bool
	// Back: of a receive that stands back. The handle has just woken another handle.
	Back bool
}

// Why is the reason of a turn.
type Why int

// The reasons.
const (
	WhyNew   Why = iota // the attendance has just begun, the last turn wrote or failed, or a request is new
	WhyWoken            // by another handle, by a time that has come, or by a change of the line
	WhyPoll             // the time of a poll has come
)

// Rests notes the rest after a transaction of the turn. Of several transactions the last decides: Rests gives up the
// watch of the one before.
func (t *Turn) Rests(r Rest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest.Cancel()
	t.rest = r
}

// Served notes that a transaction of the turn has claimed something.
func (t *Turn) Served() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.served = true
}

// fail notes that a transaction of the turn failed.
func (t *Turn) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = err
}

// outcome returns the turn's result, when the turn is over. served: the turn has claimed something.
func (t *Turn) outcome() (r Rest, served bool, failed error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rest, t.served, t.failed
}
