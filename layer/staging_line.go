package layer

import (
	"context"
	"slices"
	"sync"
	"time"

	"fdbfifo/kv"
)

// A turn is one transaction which tries to serve waiting receives, or several transactions for many receives. Example:
// three receives wait, two groups become ready: the turn claims both, and the third receive goes back into the line.
type turn struct {
	cue cue
	// others are the templates at which the turn glances, for receives which it does not serve: see staging_request.go.
	others []string
	mu     sync.Mutex
	rest   rest  // guarded by mu; what the receives wait for after the turn
	failed error // guarded by mu; of a transaction of the turn
	served bool  // guarded by mu: the turn has claimed something
}

// rest is what receives wait for after a turn that found nothing. If the turn wrote nothing, watch is on the wake key,
// from the very version on at which the turn found nothing, so that no wake is missed.
type rest struct {
	watch kv.Future[struct{}] // nil = take another turn at once
	wait  time.Duration       // until the next turn, if no wake comes
	dead  []string            // the templates whose oldest request belongs to a handle which has died
	next  cue                 // of the turn at the end of wait
	found map[string]bool     // the templates where a glance has found something
}

// cancel gives up the watch.
func (r *rest) cancel() {
	if r.watch != nil {
		r.watch.Cancel()
		r.watch = nil
	}
}

// found notes the rest after a transaction of the turn. Of several transactions the last decides.
func (t *turn) found(r rest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest.cancel()
	t.rest = r
}

// fail notes that a transaction of the turn failed.
func (t *turn) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = err
}

// serve notes that a transaction of the turn has claimed something.
func (t *turn) serve() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.served = true
}

// hasServed reports whether a transaction of the turn has claimed something.
func (t *turn) hasServed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.served
}

// outcome returns the turn's result, when the turn is over.
func (t *turn) outcome() (r rest, failed error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rest, t.failed
}

// waitingLine is the line of a handle's receives for which nothing was ready, and the attendance which gives turns.
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
// The line calls nothing of env under mu. The pipeline calls join, quit and disband under its own mutex.
type waitingLine struct {
	env        lineEnv
	life       context.Context // of the attendance
	endLife    context.CancelFunc
	attendance sync.WaitGroup
	pace       lookPace // of the turns that serve no receive

	mu       sync.Mutex
	waiting  []*operation  // guarded by mu; in the order of arrival
	attended bool          // guarded by mu: the attendance is running
	nudged   bool          // guarded by mu: something has changed
	pause    time.Duration // guarded by mu; for how long the line stands back before the next turn
	rouse    func()        // guarded by mu: ends the rest under way; nil = there is none
	failing  error         // guarded by mu; the error of the latest transaction, nil = it succeeded
}

// lineEnv has the functions of the handle that a waiting line calls. If one returns an error, the line may call it
// again.
type lineEnv struct {
	runTurn   func(called []*operation) // gives the receives a transaction, and returns after their turn
	yield     func(ctx context.Context, who string)
	nowMS     func() int64
	requested func() (index, deadlineMS int64)             // the handle's request; index 0 = there is none
	wants     func() bool                                  // the handle may have requests for lanes or by templates
	lasts     func(w want) bool                            // the handle's request for w needs no renewal
	withdraw  func(ctx context.Context, index int64) error // clears the request
	renew     func(ctx context.Context, index int64) error // moves the request's deadline
	// sweep clears the requests of dead handles by the templates.
	sweep func(ctx context.Context, templates []string) error
	// watchFailed is told the error of a watch, and reports whether to look again at once.
	watchFailed func(err error) (again bool)
	// gone is for how long the handle passes on wakes; 0 = there is nothing to pass on. lookGone reports whether the
	// handle was woken, and otherwise returns a watch for the next wake. passOn passes wakes on.
	gone     func() time.Duration
	lookGone func(ctx context.Context) (r rest, woken bool, err error)
	passOn   func(ctx context.Context) error
	aWhile   func() time.Duration // the time of a few transactions
}

func (l *waitingLine) begin(env lineEnv) {
	l.env = env
	l.pace = lookPace{burst: lineBurst, pause: linePause}
	l.life, l.endLife = context.WithCancel(context.Background())
}

// stop ends the attendance, and waits for the end, or for the end of ctx: a turn may wait for the database.
func (l *waitingLine) stop(ctx context.Context) error {
	l.endLife()
	l.mu.Lock()
	attended := l.attended
	l.mu.Unlock()
	if !attended {
		return nil // also if ctx has ended
	}
	return waitFor(ctx, &l.attendance)
}

// join puts a receive at the end of the line, and starts the attendance if none is running. A receive that comes back
// from a turn does not nudge the attendance. Otherwise the next turn would follow at once after a turn that found
// nothing.
func (l *waitingLine) join(o *operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, o)
	l.pause, o.standsBack = max(l.pause, o.standsBack), 0
	if o.turn == nil {
		l.failing = nil // the database has answered the receive's first look
	}
	switch {
	case !l.attended:
		l.attended = true
		l.attendance.Go(l.attend)
	case o.turn == nil:
		l.nudge()
	}
}

// quit removes a receive from the line. quit returns false if the receive does not stand there.
func (l *waitingLine) quit(o *operation) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.waiting, o) {
		return false
	}
	l.waiting = without(l.waiting, o)
	l.nudge()
	return true
}

// disband removes all receives from the line.
func (l *waitingLine) disband() []*operation {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.waiting
	l.waiting = nil
	return all
}

// nudge ends the attendance's rest; if the attendance is not resting, the next rest. mu is held.
func (l *waitingLine) nudge() {
	l.nudged = true
	if l.rouse != nil {
		l.rouse()
	}
}

// awaits reports whether a receive in the line waits for w.
func (l *waitingLine) awaits(w want) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.waiting, func(o *operation) bool { return o.awaits(w) })
}

// awaitsAny reports whether a receive in the line waits for any group.
func (l *waitingLine) awaitsAny() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.waiting, func(o *operation) bool { _, any := o.receive.want(); return any })
}

// length returns the number of waiting receives, without the receives that have a turn.
func (l *waitingLine) length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// rest waits for d, or for a nudge. rest returns false if ctx has ended.
func (l *waitingLine) rest(ctx context.Context, d time.Duration) bool {
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

// restUntil waits for d, for watch (may be nil), or for a nudge.
func (l *waitingLine) restUntil(ctx context.Context, d time.Duration, watch kv.Future[struct{}]) restEnd {
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
			woken = l.env.watchFailed(err)
		}
	}
	if !woken {
		<-resting.Done() // also for a watch which has failed: otherwise we would spin
	}
	l.env.yield(context.Background(), "rest")
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

// attend gives waiting receives a turn whenever there may be something for the receives, until no receive waits.
func (l *waitingLine) attend() {
	l.env.yield(context.Background(), "attend")
	ctx := l.life
	var next cue
	for idle := false; ; {
		waiting := l.length()
		index, deadlineMS := l.env.requested()
		switch {
		case index != 0 && !l.awaitsAny(), waiting == 0 && l.env.wants():
			if l.met(l.env.withdraw(ctx, index)) && !l.rest(ctx, errorPause) {
				return
			}
			continue
		case waiting == 0:
			if l.restGone(ctx) {
				return
			}
			continue
		case index != 0 && deadlineMS-l.env.nowMS() < requestLife.Milliseconds()/2:
			if l.met(l.env.renew(ctx, index)) && !l.rest(ctx, errorPause) {
				return
			}
			continue
		}
		if pause := l.takePause(); pause > 0 {
			if !l.rest(ctx, pause) {
				return
			}
			continue
		}
		r, failed := l.call(next) // call also registers the request, if there is none
		next = cue{}
		if l.met(failed) {
			r.cancel()
			if !l.rest(ctx, errorPause) {
				return
			}
			continue
		}
		if len(r.dead) > 0 {
			if err := l.env.sweep(ctx, r.dead); err != nil && !l.rest(ctx, errorPause) {
				r.cancel()
				return
			}
		}
		if r.watch != nil && l.length() < waiting {
			r.cancel() // a receive has ended during its turn: its request may have to go, and no later event says so
			continue
		}
		if r.watch != nil {
			idle = false
			passMissed(ctx, l)
			var end bool
			if next, end = l.restAfter(ctx, &r); end {
				return
			}
			continue
		}
		// The turn claimed, cleared stale keys or registered the request, or another transaction is about to.
		if idle && l.length() == waiting && !(l.rest(ctx, busyPause) && l.keepPace(ctx)) {
			return
		}
		idle = true
	}
}

// restAfter rests after a turn that found nothing, and returns what the next turn knows. end: the attendance ends.
func (l *waitingLine) restAfter(ctx context.Context, r *rest) (next cue, end bool) {
	how := l.restUntil(ctx, r.wait, r.watch)
	r.cancel()
	switch next = (cue{why: whyWoken}); how {
	case restStopped:
		return next, true
	case restOver:
		next = r.next
	case restNudged:
		return next, false
	case restWoken:
		if l.env.gone() > 0 {
			l.passOn(ctx) // the wake may be meant for another receive
		}
	}
	return next, next.why == whyWoken && !l.keepPace(ctx)
}

// restGone rests while no receive waits, for as long as a transaction that has read a request may wake the handle after
// the request was cleared. The line passes such a wake on. It looks for one only after a while, because most handles
// receive again before that, and then look for themselves. end: the attendance ends.
func (l *waitingLine) restGone(ctx context.Context) (end bool) {
	left := l.env.gone()
	if left == 0 {
		return l.dismiss()
	}
	l.mu.Lock()
	l.nudged = l.nudged && len(l.waiting) > 0 // a receive that has left the line needs no turn
	l.mu.Unlock()
	if how := l.restUntil(ctx, min(left, l.env.aWhile()), nil); how != restOver {
		return how == restStopped
	}
	r, woken, err := l.env.lookGone(ctx)
	if err != nil {
		return !l.rest(ctx, errorPause)
	}
	if !woken {
		how := l.restUntil(ctx, left, r.watch)
		r.cancel()
		if how != restWoken {
			return how == restStopped
		}
	}
	l.passOn(ctx)
	return !l.keepPace(ctx)
}

// passMissed passes on a wake that has come since the handle cleared a request, for a receive of another handle.
func passMissed(ctx context.Context, l *waitingLine) {
	if l.env.gone() == 0 {
		return
	}
	r, woken, err := l.env.lookGone(ctx)
	r.cancel()
	if woken && err == nil {
		l.passOn(ctx)
	}
}

// met stores the error of a transaction of the attendance, and reports whether the transaction has failed.
func (l *waitingLine) met(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = err
	return err != nil
}

// trouble returns the error of the latest transaction of the attendance. trouble returns nil if that succeeded, or the
// first look of a receive has succeeded since.
func (l *waitingLine) trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failing
}

// keepPace rests before a turn if many turns before it have served no receive. keepPace returns false if ctx has ended.
func (l *waitingLine) keepPace(ctx context.Context) bool {
	wait := l.pace.wait()
	return wait == 0 || l.rest(ctx, wait)
}

// passOn passes on a wake. If it fails, a poll finds the group.
func (l *waitingLine) passOn(ctx context.Context) { _ = l.env.passOn(ctx) }

// takePause returns for how long the line stands back; once.
func (l *waitingLine) takePause() (pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pause, l.pause = l.pause, 0
	return pause
}

// dismiss ends the attendance if no receive waits.
func (l *waitingLine) dismiss() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attended = len(l.waiting) > 0
	return !l.attended
}

// call gives the oldest waiting receives a turn, in their own transaction, and returns when the turn is over. If these
// receives found nothing, further receives may find something, and have a turn: each receive which names a group, and
// the receives by each other template where a glance has found something.
func (l *waitingLine) call(next cue) (r rest, failed error) {
	var turns []*turn
	had := make(map[string]bool)         // the templates by which receives have had a turn for any group
	glanced := make(map[*operation]bool) // the receives at whose templates the first turn has glanced
	may := func(o *operation) bool {
		switch {
		case o.names():
			return !slices.Contains(turns, o.turn)
		case had[o.receive.where]:
			return false
		case glanced[o]:
			return r.found[o.receive.where]
		}
		return true
	}
	mayGlance := func(o *operation) bool {
		glanced[o] = l.glances(o)
		return glanced[o]
	}
	for {
		t := &turn{cue: next}
		called := l.give(t, may, mayGlance)
		mayGlance = nil
		if len(called) == 0 {
			return r, failed
		}
		for _, o := range called {
			if !o.names() {
				had[o.receive.where] = true
			}
		}
		more, bad := t.outcome()
		if t.hasServed() {
			l.pace.found()
		}
		if turns = append(turns, t); len(turns) == 1 {
			r, failed = more, bad
		} else {
			failed = bad
			r.dead = append(r.dead, more.dead...)
			if r.wait = min(r.wait, more.wait); more.watch == nil {
				r.cancel() // there was something
			}
			more.cancel() // the first watch is older
		}
		if r.watch == nil || failed != nil {
			return r, failed
		}
	}
}

// namedWave bounds the receives which name a group, and the other templates, in one turn. Each has reads of its own.
// Where one read in thirty fails, a transaction of many reads would seldom succeed.
const namedWave = 16

// give gives the turn to the oldest waiting receives of which may is true, and returns the receives. The turn glances
// for the receives left of which mayGlance is true; nil = none.
func (l *waitingLine) give(t *turn, may, mayGlance func(o *operation) bool) (called []*operation) {
	l.mu.Lock()
	var left []*operation
	apart := 0 // receives and templates with reads of their own
	templates := map[string]bool{"": true}
	for _, o := range l.waiting {
		alone := o.names() || !templates[o.receive.where]
		if len(called) == maxWave || alone && apart == namedWave || !may(o) {
			left = append(left, o)
			continue
		}
		if alone {
			apart++
		}
		if o.turn != nil {
			o.cue = cue{}
		}
		if o.turn = t; !o.names() {
			templates[o.receive.where] = true
		}
		called = append(called, o)
	}
	l.waiting = left
	left = slices.Clone(left)
	l.mu.Unlock()
	if mayGlance != nil && apart > 0 {
		for _, o := range left {
			if mayGlance(o) {
				t.others = append(t.others, o.receive.where)
			}
		}
		slices.Sort(t.others)
		t.others = slices.Compact(t.others)
	}
	if len(called) > 0 {
		l.env.runTurn(called)
	}
	return called
}
