// Package line makes the operations of a handle share transactions, and makes receives wait.
//
// A Pipeline starts an operation at once if nothing is in flight. Operations that arrive later travel together. A Line
// has the receives for which nothing was ready. One goroutine, the attendance, attends to the line and gives turns.
//
// The words of the package:
//
//   - A turn is a transaction that tries to serve receives of the line. If it finds nothing, the line rests.
//   - The handle's request is a row of the database that says: receives of this handle wait. A transaction that makes a
//     group ready wakes the handle of a request: it changes the handle's wake key, which the line watches.
//   - The place of a receive is the group, the lane or the template that the receive waits for. A turn may glance at
//     the places of receives that it does not serve: it reads whether there is anything, and claims nothing.
//   - A nudge ends a rest of the attendance, because the line has changed.
//   - A receive stands back if it waits before its first turn, because the handle has just woken another handle.
//
// The package does not know groups, messages or keys. An Operation tells its size, and whether its receive has got
// something. PipelineEnv and Env have the functions of the handle, which run the transactions. The tests need no
// database.
//
// An operation ends exactly once. If the caller of a receive has left, its claims are given back. The numbered rules at
// Pipeline and Line state this in full.
package line

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/advice"
)

// Line is the line of a handle's receives for which nothing was ready, and the attendance which gives turns.
//
// Invariants:
//
//  1. A receive stands in the line once, or the pipeline has the receive. The call that removes a receive (call, quit,
//     disband, all under mu) decides alone what follows. Example: a receive is called just when its time is up. If quit
//     comes first, the receive ends now; otherwise quit returns false and the receive ends with the turn.
//  2. While receives stand in the line, a goroutine attends to the line, and never more than one.
//  3. The same goroutine waits for the watch and runs the turn: a change of goroutines would make a wake later.
//  4. No change is missed: a nudge that comes outside of a rest ends the next rest at once, and a watch counts from the
//     version at which there was nothing.
//
// The line calls nothing of env under mu. The pipeline calls join, quit, tidy and disband under its own mutex.
type Line[O Operation] struct {
	env     Env[O]
	life    context.Context // of the attendance
	endLife context.CancelFunc
	pace    advice.Pace // of the turns that serve no receive

	mu       sync.Mutex
	waiting  arrivals[O]   // guarded by mu
	attended chan struct{} // guarded by mu; closed at the end of the attendance; nil = none is running
	nudged   bool          // guarded by mu: something has changed
	pause    time.Duration // guarded by mu; how long the line waits before the next turn, for receives that stand back
	rouse    func()        // guarded by mu: ends the rest under way; nil = there is none
	failing  error         // guarded by mu; the error of the latest transaction, nil = it succeeded
}

// Env has the functions of the handle that a line calls. If one returns an error, the line may call it again.
type Env[O Operation] struct {
	RunTurn func(called []O) // gives the receives a transaction, and returns when each has ended or waits again
	// Yield is called where another goroutine may go first.
	Yield func(ctx context.Context, who string)
	// Requested, Wants and Gone are also called with the pipeline's mutex held: they must neither block nor call the
	// pipeline.
	//
	// Requested returns the index of the handle's request, 0 = there is none. renew: the request's deadline must be
	// moved now.
	Requested func() (index int64, renew bool)
	Wants     func() bool                                  // the handle may have requests for places
	Withdraw  func(ctx context.Context, index int64) error // clears the requests for which no receive waits
	Renew     func(ctx context.Context, index int64) error // moves the request's deadline
	// Sweep clears the requests of dead handles by the templates.
	Sweep func(ctx context.Context, templates []string) error
	// Glances reports whether a turn which does not serve the receive may glance at its place instead.
	Glances func(o O) bool
	// WatchFailed is told the error of a watch, and reports whether to look again at once.
	WatchFailed func(err error) (again bool)
	// After a request was cleared, a transaction that has read it may still wake the handle. Such a wake must be passed
	// on to another handle. Gone is for how long that may happen; 0 = there is nothing to pass on. LookGone reports
	// whether the handle was woken, and otherwise returns a watch for the next wake. PassOn passes wakes on.
	Gone     func() time.Duration
	LookGone func(ctx context.Context) (r Rest, woken bool, err error)
	PassOn   func(ctx context.Context) error
	AWhile   func() time.Duration // the time of a few transactions
}

const (
	// MaxWave bounds the receives of a turn.
	MaxWave = 64
	// NamedWave bounds the receives which name a group, and the other templates, in one turn. Each has reads of its
	// own. Where one read in thirty fails, a transaction of many reads would seldom succeed.
	NamedWave = 16
	// MaxGlances bounds the places at which one turn glances.
	MaxGlances = 1000
	// BusyPause is the pause before the next try when a transaction in flight may change the handle's request.
	BusyPause = 5 * time.Millisecond
	// ErrorPause is the pause after a turn, or another transaction of the attendance, that failed.
	ErrorPause = time.Second

	// burst is how many looks in vain the line takes in a row at once, and lookPause the time for each look more.
	burst     = 8
	lookPause = 125 * time.Millisecond
)

// Begin makes the line ready. The caller must call Begin before any other method.
func (l *Line[O]) Begin(env Env[O]) {
	l.env = env
	l.pace = advice.Pace{Burst: burst, Pause: lookPause}
	l.life, l.endLife = context.WithCancel(context.Background())
}

// Stop ends the attendance, and waits for its end. A turn may wait for the database: if ctx ends first, Stop returns
// the cause.
func (l *Line[O]) Stop(ctx context.Context) error {
	l.endLife()
	l.mu.Lock()
	attended := l.attended
	l.mu.Unlock()
	if attended == nil {
		return nil // also if ctx has ended
	}
	select {
	case <-attended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join puts a receive at the end of the line, and starts the attendance if none is running. A new receive nudges the
// attendance. A receive that comes back from a turn does not. Otherwise the next turn would follow at once after a turn
// that found nothing.
func (l *Line[O]) join(o O) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting.add(o)
	l.pause, o.op().StandsBack = max(l.pause, o.op().StandsBack), 0
	if o.op().Turn == nil {
		l.failing = nil // the database has answered the receive's first look
	}
	switch {
	case l.attended == nil:
		l.attended = make(chan struct{})
		go l.attend(l.attended)
	case o.op().Turn == nil:
		l.nudge()
	}
}

// quit removes a receive from the line, and nudges the attendance. quit returns false if the receive is not in the
// line: then the receive has a turn, or has ended.
func (l *Line[O]) quit(o O) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.waiting.remove(o) {
		return false
	}
	l.nudge()
	return true
}

// tidy is for a receive that is about to end and has not stood in the line. Its transaction may have written a request
// for which no receive waits, or cleared one, so that a wake may still come. Then tidy makes the attendance clear the
// request or pass on the wake, and starts an attendance if none is running. If another receive waits at the same place,
// the request is still needed, and tidy does nothing.
func (l *Line[O]) tidy(o O) {
	index, _ := l.env.Requested()
	left := index != 0
	if !takesAny(o) {
		left = l.env.Wants()
	}
	if !left && l.env.Gone() == 0 {
		return
	}
	place := o.Place()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.waiting.some(func(other O) bool { return other.Place() == place }):
	case l.attended == nil:
		l.attended = make(chan struct{})
		go l.attend(l.attended)
	case left:
		l.nudge()
	}
}

// disband removes all receives from the line, and returns them.
func (l *Line[O]) disband() []O {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Collect(l.waiting.each())
	for _, o := range all {
		l.waiting.remove(o)
	}
	return all
}

// nudge ends the attendance's rest; if the attendance is not resting, the next rest. mu is held.
func (l *Line[O]) nudge() {
	l.nudged = true
	if l.rouse != nil {
		l.rouse()
	}
}

// Each calls fn for each receive in the line.
func (l *Line[O]) Each(fn func(o O)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for o := range l.waiting.each() {
		fn(o)
	}
}

// SomeTakeAny reports whether a receive in the line takes any group of the queue.
func (l *Line[O]) SomeTakeAny() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.some(takesAny)
}

// takesAny reports whether a receive takes any group, so that it has no place.
func takesAny[O Operation](o O) bool { return !o.Named() && o.Template() == "" }

// Length returns the number of waiting receives, without the receives that have a turn.
func (l *Line[O]) Length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.length()
}

// Rest waits for d, or for a nudge. Rest returns false if ctx has ended, and true otherwise.
func (l *Line[O]) Rest(ctx context.Context, d time.Duration) bool {
	return l.restUntil(ctx, d, nil) != restStopped
}

// restEnd is what has ended a rest.
type restEnd int

const (
	restOver    restEnd = iota // its time is over, and nothing else has happened
	restNudged                 // by a change of the line
	restWoken                  // by the watch
	restStopped                // the context has ended
)

// restUntil waits for d, for watch (may be nil), or for a nudge, and returns which of these has ended the rest. A nudge
// counts once.
func (l *Line[O]) restUntil(ctx context.Context, d time.Duration, watch kv.Future[struct{}]) restEnd {
	resting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	l.mu.Lock()
	if l.rouse = cancel; l.nudged {
		cancel()
	}
	l.mu.Unlock()
	woken := false
	if watch != nil {
		_, err := watch.Wait(resting)
		if woken = err == nil; !woken && resting.Err() == nil {
			woken = l.env.WatchFailed(err)
		}
	}
	if !woken {
		<-resting.Done() // also for a watch which has failed: otherwise we would spin
	}
	l.env.Yield(context.Background(), "rest")
	l.mu.Lock()
	defer l.mu.Unlock()
	nudged := l.nudged
	l.nudged, l.rouse = false, nil
	switch {
	case ctx.Err() != nil:
		return restStopped
	case woken:
		return restWoken
	case nudged:
		return restNudged
	}
	return restOver
}

// attend is the attendance. It gives waiting receives a turn whenever there may be something for the receives. It also
// renews and withdraws the handle's requests, and clears those of dead handles. It ends when no receive waits and there
// is no wake to pass on, or after Stop, and then closes end.
func (l *Line[O]) attend(end chan struct{}) {
	defer close(end)
	l.env.Yield(context.Background(), "attend")
	ctx := l.life
	var next Cue
	for idle := false; ; { // idle: the turn before has set no watch
		waiting := l.Length()
		index, renew := l.env.Requested()
		switch {
		case index != 0 && !l.SomeTakeAny(), waiting == 0 && l.env.Wants():
			if l.met(l.env.Withdraw(ctx, index)) && !l.Rest(ctx, ErrorPause) {
				return
			}
			continue
		case waiting == 0:
			if l.restGone(ctx) {
				return
			}
			continue
		case renew:
			if l.met(l.env.Renew(ctx, index)) && !l.Rest(ctx, ErrorPause) {
				return
			}
			continue
		}
		if pause := l.takePause(); pause > 0 {
			if !l.Rest(ctx, pause) {
				return
			}
			continue
		}
		r, failed := l.call(next) // call also registers the request, if there is none
		next = Cue{}
		if l.met(failed) {
			r.Cancel()
			if !l.Rest(ctx, ErrorPause) {
				return
			}
			continue
		}
		if len(r.Dead) > 0 {
			if err := l.env.Sweep(ctx, r.Dead); err != nil && !l.Rest(ctx, ErrorPause) {
				r.Cancel()
				return
			}
		}
		if r.Watch != nil && l.Length() < waiting {
			r.Cancel() // a receive has ended during its turn: its request may have to go, and no later event says so
			continue
		}
		if r.Watch != nil {
			idle = false
			l.passMissed(ctx)
			var end bool
			if next, end = l.restAfter(ctx, &r); end {
				return
			}
			continue
		}
		// The turn claimed, cleared stale keys or registered the request, or another transaction is about to.
		if idle && l.Length() == waiting && !(l.Rest(ctx, BusyPause) && l.keepPace(ctx)) {
			return
		}
		idle = true
	}
}

// restAfter rests after a turn that found nothing, as r says. next is the cue of the next turn. end: the attendance
// ends.
func (l *Line[O]) restAfter(ctx context.Context, r *Rest) (next Cue, end bool) {
	how := l.restUntil(ctx, r.Wait, r.Watch)
	r.Cancel()
	switch next = (Cue{Why: WhyWoken}); how {
	case restStopped:
		return next, true
	case restOver:
		next = r.Next
	case restNudged:
		return next, false
	case restWoken:
		if l.env.Gone() > 0 {
			l.passOn(ctx) // the wake may be meant for another receive
		}
	}
	return next, next.Why == WhyWoken && !l.keepPace(ctx)
}

// restGone rests while no receive waits, for as long as a transaction that has read a request may wake the handle after
// the request was cleared (Env.Gone). The line passes such a wake on. It looks for one only after a while, because most
// handles receive again before that, and then look for themselves. end: the attendance ends.
func (l *Line[O]) restGone(ctx context.Context) (end bool) {
	left := l.env.Gone()
	if left == 0 {
		return l.dismiss()
	}
	l.mu.Lock()
	l.nudged = l.nudged && l.waiting.length() > 0 // a receive that has left the line needs no turn
	l.mu.Unlock()
	if index, _ := l.env.Requested(); index != 0 || l.env.Wants() {
		return false // of a receive which has just ended, see tidy
	}
	if how := l.restUntil(ctx, min(left, l.env.AWhile()), nil); how != restOver {
		return how == restStopped
	}
	r, woken, err := l.env.LookGone(ctx)
	if err != nil {
		return !l.Rest(ctx, ErrorPause)
	}
	if !woken {
		how := l.restUntil(ctx, left, r.Watch)
		r.Cancel()
		if how != restWoken {
			return how == restStopped
		}
	}
	l.passOn(ctx)
	return !l.keepPace(ctx)
}

// passMissed passes on a wake that has come since the handle cleared a request, for a receive of another handle.
func (l *Line[O]) passMissed(ctx context.Context) {
	if l.env.Gone() == 0 {
		return
	}
	r, woken, err := l.env.LookGone(ctx)
	r.Cancel()
	if woken && err == nil {
		l.passOn(ctx)
	}
}

// met stores the error of a transaction of the attendance, and reports whether the transaction has failed.
func (l *Line[O]) met(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = err
	return err != nil
}

// trouble returns the error of the latest transaction of the attendance. trouble returns nil if that succeeded, or the
// first look of a receive has succeeded since.
func (l *Line[O]) trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failing
}

// keepPace rests before a turn if many turns before it have served no receive. keepPace returns false if ctx has ended.
func (l *Line[O]) keepPace(ctx context.Context) bool {
	wait := l.pace.Wait()
	return wait == 0 || l.Rest(ctx, wait)
}

// passOn passes on a wake. If it fails, a poll finds the group.
func (l *Line[O]) passOn(ctx context.Context) { _ = l.env.PassOn(ctx) }

// takePause returns how long the line must wait before the next turn, for receives that stand back. A pause counts
// once.
func (l *Line[O]) takePause() (pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pause, l.pause = l.pause, 0
	return pause
}

// dismiss ends the attendance and returns true, unless a receive waits. A nudge since the attendance has looked may be
// tidy's: then dismiss returns false, and the attendance looks again.
func (l *Line[O]) dismiss() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting.length() > 0 || l.nudged {
		l.nudged = l.nudged && l.waiting.length() > 0
		return false
	}
	l.attended = nil
	return true
}

// call gives the oldest waiting receives a turn, in their own transaction, and returns when the turn is over. If these
// receives found nothing, further receives may find something, and have a turn. A turn also glances at the places of
// receives that it does not serve, see Env.Glances: of these receives only those have a turn whose glance has found
// something.
//
// next is the cue of the turns. r is what the receives wait for after all turns: the watch of the first turn, and the
// shortest wait. r.Watch = nil means that another turn must follow at once. failed is the error of the last turn.
func (l *Line[O]) call(next Cue) (r Rest, failed error) {
	var turns []*Turn
	had := make(map[string]bool) // the templates by which receives have had a turn for any group
	glanced := make(map[O]bool)  // the receives at whose places a turn has glanced
	found := make(map[string]bool)
	may := func(o O) bool {
		if glanced[o] && !found[o.Place()] {
			return false
		}
		if o.Named() {
			return !slices.Contains(turns, o.op().Turn)
		}
		return !had[o.Template()]
	}
	mayGlance := func(o O) bool {
		if glanced[o] {
			return false
		}
		glanced[o] = l.env.Glances(o)
		return glanced[o]
	}
	for {
		t := &Turn{Cue: next}
		called := l.give(t, may, mayGlance)
		if len(called) == 0 {
			return r, failed
		}
		for _, o := range called {
			if !o.Named() {
				had[o.Template()] = true
			}
		}
		more, served, bad := t.outcome()
		maps.Copy(found, more.Found)
		if served {
			l.pace.Found()
		}
		if turns = append(turns, t); len(turns) == 1 {
			r, failed = more, bad
		} else {
			failed = bad
			r.Dead = append(r.Dead, more.Dead...)
			if r.Wait = min(r.Wait, more.Wait); more.Watch == nil {
				r.Cancel() // there was something
			}
			more.Cancel() // the first watch is older
		}
		if r.Watch == nil || failed != nil {
			return r, failed
		}
	}
}

// give gives the turn t to the oldest waiting receives of which may is true, within MaxWave and NamedWave. It takes
// them out of the line, and returns them when the turn is over. If one of them has reads of its own (see NamedWave),
// the turn glances for the receives left of which mayGlance is true, within MaxGlances. If called is empty, there was
// no turn.
func (l *Line[O]) give(t *Turn, may, mayGlance func(o O) bool) (called []O) {
	l.mu.Lock()
	var left []O
	apart := 0 // receives and templates with reads of their own
	templates := map[string]bool{"": true}
	for o := range l.waiting.each() {
		alone := o.Named() || !templates[o.Template()]
		if len(called) == MaxWave || alone && apart == NamedWave || !may(o) {
			left = append(left, o)
			continue
		}
		if alone {
			apart++
		}
		if o.op().Turn != nil {
			o.op().Cue = Cue{}
		}
		if o.op().Turn = t; !o.Named() {
			templates[o.Template()] = true
		}
		l.waiting.remove(o)
		called = append(called, o)
	}
	l.mu.Unlock()
	if apart > 0 {
		places := make(map[string]bool)
		for _, o := range left {
			if (places[o.Place()] || len(places) < MaxGlances) && mayGlance(o) {
				places[o.Place()] = true
			}
		}
		t.Glances = slices.Sorted(maps.Keys(places))
	}
	if len(called) > 0 {
		l.env.RunTurn(called)
	}
	return called
}
