package kv

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Trouble is a loop of Run that the database keeps waiting. With TxOptions.Patient the time of the body does not count:
// if no attempt has failed, Since is when the last body ended.
type Trouble struct {
	ID    int64     // of the loop, in this process
	Call  string    // TxOptions.Call; "" = a transaction without a name
	Since time.Time // when the loop began, or lost its last conflict, because a conflict is an answer of the database
	// Attempts is how many attempts have failed since, and Err the error of the last; nil = the database has not
	// answered the first.
	Attempts int
	Err      error
	Over     bool // the loop has ended, well or badly
}

// String says which call waits, since when and why, and what to do.
func (t Trouble) String() string {
	call, why := t.Call, "there is no answer"
	if call == "" {
		call = "a transaction"
	}
	if t.Err != nil {
		why = fmt.Sprintf("%d attempts have failed, the last with: %v", t.Attempts, t.Err)
	}
	waited := time.Since(t.Since).Round(100 * time.Millisecond)
	return fmt.Sprintf("%s has waited %s for the database: %s. It tries again until its context ends. "+
		"Look at the database: its processes, its disk and the network; of a cluster, fdbcli --exec status",
		call, waited, why)
}

// Observers are told of trouble after troubleAfter if attempts have failed, and after silentAfter if the first has not
// ended: a transaction that reads much may take some seconds, but none can be committed 5 s after its first read.
// Example: a loop that has waited for an hour is looked at once a minute, and not once a second.
const (
	troubleAfter = time.Second
	silentAfter  = 5 * time.Second
)

// troubleReports is how often Troubles says that there is trouble at most.
const troubleReports = 10 * time.Second

// Troubles gives the loops of many callers one voice: Note is an observer for TxOptions.OnTrouble and WithTrouble. A
// Troubles is safe for concurrent use, and must not be copied.
type Troubles struct {
	// Say is called at most once in ten seconds while there is trouble, and with Over set when no loop is in trouble
	// any more. nil = Troubles only counts.
	Say func(t Trouble)

	mu     sync.Mutex
	since  map[int64]time.Time // guarded by mu; by loop
	saidAt time.Time           // guarded by mu; zero = nothing was said since all was well
}

// Note notes t, and calls Say if it is time.
func (s *Troubles) Note(t Trouble) {
	if s.note(t) && s.Say != nil {
		s.Say(t)
	}
}

// note reports whether t is to be said.
func (s *Troubles) note(t Trouble) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Over {
		delete(s.since, t.ID)
		over := len(s.since) == 0 && !s.saidAt.IsZero()
		if over {
			s.saidAt = time.Time{}
		}
		return over
	}
	if s.since == nil {
		s.since = make(map[int64]time.Time)
	}
	s.since[t.ID] = t.Since
	if !s.saidAt.IsZero() && time.Since(s.saidAt) < troubleReports {
		return false
	}
	s.saidAt = time.Now()
	return true
}

// Waiting returns for how long the database has kept a loop waiting: the longest of those under way that are in
// trouble; 0 = there is none.
func (s *Troubles) Waiting() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var longest time.Duration
	for _, since := range s.since {
		longest = max(longest, time.Since(since))
	}
	return longest
}

type observerKey struct{}

// WithTrouble returns a context whose loops of Run tell observe of trouble, as they tell TxOptions.OnTrouble.
func WithTrouble(ctx context.Context, observe func(t Trouble)) context.Context {
	return context.WithValue(ctx, observerKey{}, observe)
}

var troubles atomic.Int64 // loops of Run that had trouble

// vigil watches one loop of Run for its observers. The loop never waits for an observer.
type vigil struct {
	observers [2]func(t Trouble)
	patient   bool
	timer     *time.Timer

	mu      sync.Mutex
	t       Trouble // guarded by mu; ID = 0: the observers have not been told
	telling bool    // guarded by mu; a goroutine calls the observers
	body    bool    // guarded by mu; the loop is in a body that may wait for more than the database
}

// keepVigil returns nil, whose methods do nothing, if there are no observers.
func keepVigil(ctx context.Context, o TxOptions) *vigil {
	outer, _ := ctx.Value(observerKey{}).(func(t Trouble))
	if outer == nil && o.OnTrouble == nil {
		return nil
	}
	v := &vigil{
		observers: [2]func(t Trouble){o.OnTrouble, outer}, patient: o.Patient,
		t: Trouble{Call: o.Call, Since: time.Now()},
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.timer = time.AfterFunc(troubleAfter, v.look)
	return v
}

// look tells of trouble, if there is any, and looks again later. It tells last after the end of the loop.
func (v *vigil) look() {
	for t, is := v.trouble(false); is; t, is = v.trouble(true) {
		for _, observe := range v.observers {
			if observe != nil {
				tell(observe, t)
			}
		}
	}
}

// tell calls an observer on a goroutine of its own, which the observer may end. A panic of the observer does not end
// the process.
func tell(observe func(t Trouble), t Trouble) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				tellPanic(r)
			}
		}()
		observe(t)
	}()
	<-done
}

// tellPanic logs the panic of an observer. A panic of the log's handler is dropped: nothing is left to tell it to.
func tellPanic(r any) {
	defer func() { _ = recover() }()
	slog.Error("kv: an observer of trouble has panicked", "panic", r, "stack", string(debug.Stack()))
}

// trouble returns what to tell now, if there is anything to tell. told: the goroutine has told of trouble. If another
// goroutine tells, that one comes here when it has told.
func (v *vigil) trouble(told bool) (t Trouble, is bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.telling && !told {
		return Trouble{}, false
	}
	waited := time.Since(v.t.Since)
	switch {
	case v.t.Over:
		is, t = v.t.ID != 0, v.t
		v.t.ID = 0 // it is told once
	case told, v.body, waited < troubleAfter, v.t.Err == nil && waited < silentAfter:
		v.timer.Reset(max(troubleAfter, waited/60))
	default:
		if v.t.ID == 0 {
			v.t.ID = troubles.Add(1)
		}
		is, t = true, v.t
	}
	v.telling = is
	return t, is
}

// in calls a body.
func (v *vigil) in(body func() error) error {
	if v == nil || !v.patient {
		return body()
	}
	v.enter(true)
	defer v.enter(false)
	return body()
}

// enter notes that a body begins or has ended. The time of the body is not that of the database.
func (v *vigil) enter(body bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.body = body; !body && v.t.Err == nil {
		v.t.Since = time.Now()
	}
}

// failed notes an attempt that has failed.
func (v *vigil) failed(err error) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if Code(err) == CodeNotCommitted {
		v.t.Since, v.t.Attempts, v.t.Err = time.Now(), 0, nil
		return
	}
	v.t.Attempts++
	v.t.Err = err
}

// end ends the vigil with its loop.
func (v *vigil) end() {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.t.Over = true; v.t.ID == 0 {
		v.timer.Stop()
		return
	}
	v.timer.Reset(0)
}
