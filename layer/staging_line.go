package layer

import (
	"context"
	"slices"
	"sync"
	"time"

	"fdbfifo/kv"
)

// A turn is one transaction that tries to serve receives that wait, several if they are too many for one. Example:
// three receives wait, two groups become ready: the turn claims both, and the third receive goes back into the line.
type turn struct {
	mu     sync.Mutex
	rest   rest // guarded by mu; what the turn leaves to wait for
	failed bool // guarded by mu: the database did not let it take place
}

// rest is what receives wait for after a turn that found nothing. If the turn wrote nothing, it watches the wake key
// from the very version on at which it found nothing, so that no wake falls between.
type rest struct {
	watch kv.Future[struct{}] // nil if there is another turn to take
	wait  time.Duration       // until the next turn, if nobody wakes us
	dead  bool                // the oldest request is that of a handle that has died
}

// cancel gives up the watch.
func (r *rest) cancel() {
	if r.watch != nil {
		r.watch.Cancel()
		r.watch = nil
	}
}

// found notes what a transaction of the turn leaves to wait for. Of several transactions the last decides.
func (t *turn) found(r rest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest.cancel()
	t.rest = r
}

// fail notes that a transaction of the turn failed.
func (t *turn) fail() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = true
}

// outcome is what came of the turn, when it is over.
func (t *turn) outcome() (r rest, failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rest, t.failed
}

// waitingLine is the line of a handle's receives for which nothing was ready, and the attendance that gives them turns.
//
// Invariants:
//
//  1. A receive stands in the line once, or the pipeline has it. Whoever takes it out (call, quit, disband, all under
//     mu) decides alone what becomes of it. Example: a receive is called, and at the same moment its time is up. If
//     quit comes first, the receive ends now; if call does, quit returns false and the receive ends with that turn.
//  2. While receives stand in the line, one goroutine attends to it, and only one ever does.
//  3. That goroutine waits for the watch and runs the turn itself: each change of goroutines would make a wake later.
//  4. No change is slept through: a nudge that comes when nobody rests ends the next rest at once, and a watch holds
//     from the version on at which there was nothing.
//
// The line calls nothing of env under mu. The pipeline calls join, quit and disband under its own mutex.
type waitingLine struct {
	env        lineEnv
	life       context.Context // of the attendance
	endLife    context.CancelFunc
	attendance sync.WaitGroup

	mu       sync.Mutex
	waiting  []*operation // guarded by mu; in the order of arrival
	attended bool         // guarded by mu: the attendance is running
	nudged   bool         // guarded by mu: something has changed
	rouse    func()       // guarded by mu: ends the rest under way; nil = there is none
}

// lineEnv is what a waiting line needs of the handle. The errors are of transactions that may be tried again.
type lineEnv struct {
	runTurn   func(called []*operation) // gives them a transaction, and returns when they have had it
	yield     func(ctx context.Context, who string)
	alone     bool // each operation has a transaction of its own
	nowMS     func() int64
	requested func() (index, deadlineMS int64)             // the handle's request; index 0 = there is none
	withdraw  func(ctx context.Context, index int64) error // clears the request
	renew     func(ctx context.Context, index int64) error // moves its deadline
	sweep     func(ctx context.Context) error              // clears the requests of handles that have died
}

func (l *waitingLine) begin(env lineEnv) {
	l.env = env
	l.life, l.endLife = context.WithCancel(context.Background())
}

// stop ends the attendance, and waits for that.
func (l *waitingLine) stop() {
	l.endLife()
	l.attendance.Wait()
}

// join puts a receive at the end of the line, and sees to it that the line is attended. A receive that comes back
// from a turn nudges nobody: else a turn that found nothing would be followed by the next at once.
func (l *waitingLine) join(o *operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, o)
	switch {
	case !l.attended:
		l.attended = true
		l.attendance.Go(l.attend)
	case o.turn == nil:
		l.nudge()
	}
}

// quit takes a receive out of the line. It returns false if the receive does not stand there.
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

// disband takes all out of the line.
func (l *waitingLine) disband() []*operation {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.waiting
	l.waiting = nil
	return all
}

// nudge ends the attendance's rest, or the next one if it is not resting. mu is held.
func (l *waitingLine) nudge() {
	l.nudged = true
	if l.rouse != nil {
		l.rouse()
	}
}

// length is the number of receives that wait; without those that have a turn.
func (l *waitingLine) length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// rest waits for d, for watch (may be nil), or for a nudge. It returns false if ctx has ended.
func (l *waitingLine) rest(ctx context.Context, d time.Duration, watch kv.Future[struct{}]) bool {
	resting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	l.mu.Lock()
	if l.rouse = cancel; l.nudged {
		cancel()
	}
	l.mu.Unlock()
	if watch != nil {
		if _, err := watch.Wait(resting); err != nil {
			<-resting.Done() // a watch that fails must not make us spin
		}
	} else {
		<-resting.Done()
	}
	l.env.yield(context.Background(), "rest")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nudged, l.rouse = false, nil
	return ctx.Err() == nil
}

// attend gives the receives that wait a turn when there may be something for them, until none waits any more.
func (l *waitingLine) attend() {
	l.env.yield(context.Background(), "attend")
	ctx := l.life
	for idle := false; ; {
		waiting := l.length()
		index, deadlineMS := l.env.requested()
		switch {
		case waiting == 0 && index != 0:
			if err := l.env.withdraw(ctx, index); err != nil && !l.rest(ctx, errorPause, nil) {
				return
			}
			continue
		case waiting == 0:
			if l.dismiss() {
				return
			}
			continue
		case index != 0 && deadlineMS-l.env.nowMS() < requestLife.Milliseconds()/2:
			if err := l.env.renew(ctx, index); err != nil && !l.rest(ctx, errorPause, nil) {
				return
			}
			continue
		}
		r, failed := l.call() // which registers the request, if there is none
		if failed {
			r.cancel()
			if !l.rest(ctx, errorPause, nil) {
				return
			}
			continue
		}
		if r.dead {
			if err := l.env.sweep(ctx); err != nil && !l.rest(ctx, errorPause, nil) {
				r.cancel()
				return
			}
		}
		if r.watch != nil {
			idle = false
			goOn := l.rest(ctx, r.wait, r.watch)
			r.cancel()
			if !goOn {
				return
			}
			continue
		}
		// It claimed, or cleared what was stale, or registered the request; or another transaction in flight is about to.
		if idle && l.length() == waiting && !l.rest(ctx, busyPause, nil) {
			return
		}
		idle = true
	}
}

// dismiss ends the attendance if nobody waits.
func (l *waitingLine) dismiss() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attended = len(l.waiting) > 0
	return !l.attended
}

// call gives the oldest waiting receives a turn, in a transaction of their own, and returns when they have had it.
func (l *waitingLine) call() (r rest, failed bool) {
	t := &turn{}
	l.mu.Lock()
	n := min(len(l.waiting), maxWave)
	if l.env.alone {
		n = min(n, 1)
	}
	called := slices.Clone(l.waiting[:n])
	l.waiting = slices.Clone(l.waiting[n:])
	for _, o := range called {
		o.turn = t
	}
	l.mu.Unlock()
	if n > 0 {
		l.env.runTurn(called)
	}
	return t.outcome()
}
