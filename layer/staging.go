package layer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// Staging is the waiting line of receives for which nothing was ready.
//
// A handle whose receives wait has one request in the database, whatever their number. Whoever makes a group ready
// (an enqueue into an empty group, the end of a claim) reads the oldest request at snapshot and touches its wake
// key, which that handle watches: one handle wakes, nobody else is disturbed, and nothing conflicts. The one that
// wakes claims for its own receives and grants what else is ready to the requests behind it: a lock with a short
// lease, a grant that its handle accepts by turning it into a claim. Groups that become ready because a lease or a
// delay ends are found by the waiting handles' own clocks. A jittered poll is the net below: for wakes that were
// lost (a watch may be late; an enqueue may have read before the request was there), and for requests of handles
// that died, which are swept when their deadline has passed.

const (
	// stageAfter is the number of conflicts in a row after which a receive that waits is staged.
	stageAfter = 8
	// grantLease is how long a granted group waits for its requester. One that lives accepts in milliseconds.
	grantLease = 2 * time.Second
	// requestLife is how far ahead a request's deadline lies; it is renewed at half of it. It is long against
	// the skew of clocks: a request taken for dead too early costs its handle a poll, nothing else.
	requestLife = 60 * time.Second
	// busyPause is the pause before the next try when a transaction in flight may change the handle's request.
	busyPause = 5 * time.Millisecond
	// errorPause is the pause after a look that failed.
	errorPause = time.Second
	// skewOfTurns is by how much at most a handle that is not the oldest leaves the end of a lease to that one.
	skewOfTurns = 250 * time.Millisecond

	// grantProbe is how many requests one fulfilment serves at most, and how many dead ones a sweep clears.
	grantProbe = 16
)

// DefaultStagePoll is the mean pause between two looks of a handle that nobody wakes.
const DefaultStagePoll = time.Second

// staged is what a transaction did to the handle's request: the zero value = nothing.
type staged struct {
	granted    int   // groups, to other handles
	request    int64 // its index, if it was registered or found
	deadlineMS int64
	gone       bool // it was cleared, or not found
	turn       turn // what a turn of waiting receives that found nothing leaves them to wait for
}

// turn is a turn of a handle's waiting receives, in one transaction. It is also the look that comes before the next
// wait: if it wrote nothing, it watches the wake key from that very version on, so that nothing falls between.
type turn struct {
	watch kv.Future[struct{}] // nil if there is another turn to take
	wait  time.Duration       // until the next turn, if nobody wakes us
	dead  bool                // the oldest request is that of a handle that has died
	// failed: the database did not let it take place.
	failed bool
}

// cancel gives up the watch.
func (t *turn) cancel() {
	if t.watch != nil {
		t.watch.Cancel()
		t.watch = nil
	}
}

// staging is the handle's side of the waiting line. The receives that wait are in the pipeline.
type staging struct {
	random uuid.UUID // of the handle's request, grants and wake key

	mu         sync.Mutex
	index      int64 // guarded by mu; of the request in the database; 0 = there is none
	deadlineMS int64 // guarded by mu
	busy       bool  // guarded by mu: a transaction in flight may change the request
	requests   bool  // guarded by mu: it has had a request, and so may have a wake key
	attended   bool  // guarded by the pipeline's mutex: attendance is running

	nudged bool   // guarded by mu: something has changed
	rouse  func() // guarded by mu: ends the rest under way; nil = there is none
}

func (s *staging) set(o staged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.request != 0 || o.gone {
		s.index, s.deadlineMS = o.request, o.deadlineMS
	}
	s.requests = s.requests || o.request != 0
}

// acquire lets one transaction at a time register or clear the request.
func (s *staging) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return false
	}
	s.busy = true
	return true
}

func (s *staging) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
}

// requested returns the index of the handle's request, or 0.
func (s *staging) requested() (index, deadlineMS int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index, s.deadlineMS
}

// nudge ends the attendance's rest, or the next one if it is not resting.
func (s *staging) nudge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nudged = true
	if s.rouse != nil {
		s.rouse()
	}
}

// rest waits for d, for watch (may be nil), or for a nudge. It returns false if ctx has ended.
func (q *Queue) rest(ctx context.Context, d time.Duration, watch kv.Future[struct{}]) bool {
	s := &q.staging
	resting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	s.mu.Lock()
	if s.rouse = cancel; s.nudged {
		cancel()
	}
	s.mu.Unlock()
	if watch != nil {
		// The goroutine that waits is the one that claims: each change of goroutines would make a wake later.
		if _, err := watch.Wait(resting); err != nil {
			<-resting.Done() // a watch that fails must not make us spin
		}
	} else {
		<-resting.Done()
	}
	q.yield(q.life, "rest")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nudged, s.rouse = false, nil
	return ctx.Err() == nil
}

// stageFirst reports whether receives that wait are to be staged without a look of their own.
func (q *Queue) stageFirst(conflicts int) bool {
	return q.opts.Test.Path == Staged || q.opts.Test.Path == Adaptive && conflicts >= stageAfter
}

// receiveWaiting receives, and waits for up to r.o.Wait if nothing is ready.
func (q *Queue) receiveWaiting(ctx context.Context, s *settlement, r *reception) ([]*Claim, error) {
	o := &operation{settle: s, receive: r, waits: true}
	if err := q.enter(ctx, o); err != nil {
		return nil, err
	}
	timer := time.NewTimer(r.o.Wait)
	defer timer.Stop()
	select {
	case <-o.ended:
	case <-ctx.Done():
		q.yieldUnless(ctx, o, "leave")
	case <-timer.C:
		q.yieldUnless(ctx, o, "waited")
		q.stopWaiting(o)
	case <-r.stop:
		q.yieldUnless(ctx, o, "stop")
		q.stopWaiting(o)
	}
	select {
	case <-o.ended:
	case <-ctx.Done():
		if err := q.leave(o, context.Cause(ctx)); err != nil {
			return nil, err
		}
	}
	if err := o.result(); err != nil {
		return nil, err
	}
	return r.claims, nil
}

// stopWaiting ends a wait: o ends at once if it is on the waiting list, and otherwise with the turn it is in.
func (q *Queue) stopWaiting(o *operation) {
	p := &q.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	o.lastTurn = true
	if o.state == opWaiting {
		p.waiting = without(p.waiting, o)
		q.end(o)
		q.staging.nudge()
	}
}

// othersWait reports whether receives wait that have no part in the transaction under way.
func (q *Queue) othersWait() bool {
	q.pipeline.mu.Lock()
	defer q.pipeline.mu.Unlock()
	return len(q.pipeline.waiting) > 0
}

// attend starts the attendance of the waiting list if it is not running. The pipeline's mutex is held.
func (q *Queue) attend() {
	if !q.staging.attended {
		q.staging.attended = true
		q.attendance.Go(q.attendWaiting)
		return
	}
	q.staging.nudge()
}

// attendWaiting gives the receives that wait a turn when there may be something for them, until none waits any more.
func (q *Queue) attendWaiting() {
	q.yield(q.life, "attend")
	ctx := q.life
	for idle := false; ; {
		waiting := q.waiters()
		index, deadlineMS := q.staging.requested()
		switch {
		case waiting == 0 && index != 0:
			if err := q.withdraw(ctx, index); err != nil && !q.rest(ctx, errorPause, nil) {
				return
			}
			continue
		case waiting == 0:
			if q.dismiss() {
				return
			}
			continue
		}
		if index != 0 && deadlineMS-q.nowMS() < requestLife.Milliseconds()/2 {
			if err := q.renew(ctx, index); err != nil && !q.rest(ctx, errorPause, nil) {
				return
			}
			continue
		}
		t := q.call() // which registers the request, if there is none
		if t.failed {
			if !q.rest(ctx, errorPause, nil) {
				return
			}
			continue
		}
		if t.dead {
			if err := q.sweepRequests(ctx); err != nil && !q.rest(ctx, errorPause, nil) {
				t.cancel()
				return
			}
		}
		if t.watch != nil {
			idle = false
			goOn := q.rest(ctx, t.wait, t.watch)
			t.cancel()
			if !goOn {
				return
			}
			continue
		}
		// It claimed, or cleared what was stale, or registered the request; or another transaction in flight is about to.
		if idle && q.waiters() == waiting && !q.rest(ctx, busyPause, nil) {
			return
		}
		idle = true
	}
}

// waiters is the number of receives that wait.
func (q *Queue) waiters() int {
	q.pipeline.mu.Lock()
	defer q.pipeline.mu.Unlock()
	return len(q.pipeline.waiting)
}

// dismiss ends the attendance if nobody waits.
func (q *Queue) dismiss() bool {
	q.pipeline.mu.Lock()
	defer q.pipeline.mu.Unlock()
	if len(q.pipeline.waiting) > 0 {
		return false
	}
	q.staging.attended = false
	return true
}

// call gives the oldest waiting receives a turn, in a transaction of their own, and returns when they have had it.
func (q *Queue) call() turn {
	p := &q.pipeline
	p.mu.Lock()
	n := min(len(p.waiting), maxWave)
	if q.opts.Test.NoCoalescing {
		n = min(n, 1)
	}
	if n == 0 {
		p.mu.Unlock()
		return turn{}
	}
	t := &turn{}
	called := append([]*operation(nil), p.waiting[:n]...)
	p.waiting = append([]*operation(nil), p.waiting[n:]...)
	for _, o := range called {
		o.turn = t
	}
	if p.flying < maxFlying && q.mayReceive() && !q.opts.Test.NoCoalescing {
		p.flying++
		b := q.newBatch(called)
		p.mu.Unlock()
		q.runShared(b)
		q.land()
		return *t
	}
	backs := make([]chan struct{}, n)
	for i, o := range called {
		backs[i] = make(chan struct{})
		o.back = backs[i]
	}
	q.queueUp(called...)
	p.mu.Unlock()
	for _, back := range backs {
		<-back
	}
	q.yield(q.life, "called")
	return *t
}

// takeTurn claims for receives that were called, grants what else is ready to other handles, and stages those that got
// nothing. If there was nothing to write, it watches.
func (w *work) takeTurn(c *claimer, waiting []*operation) (staged, error) {
	t, rs := w.beginTurn(), c.owed
	if err := c.claim(); err != nil {
		return staged{}, err
	}
	w.claimed(rs)
	requests, err := t.requests.Wait(w.ctx)
	if err != nil {
		return staged{}, fmt.Errorf("read requests: %w", err)
	}
	if err := c.grantOthers(requests); err != nil {
		return staged{}, err
	}
	outcome, err := w.stage(waiting, c, requests)
	if err != nil || w.wrote || w.cleared {
		return outcome, err
	}
	outcome.turn, err = w.rest(t, requests)
	return outcome, err
}

// turning is the reads of a turn beside those of its claims.
type turning struct {
	requests kv.Future[[]kv.KV]
	timer    kv.Future[[]byte]
}

func (w *work) beginTurn() turning {
	snapshot := w.tx.Snapshot()
	return turning{
		requests: snapshot.GetRange(w.q.keys.section(nameRequest).Selectors(), kv.RangeOptions{Limit: grantProbe}),
		timer:    snapshot.GetKey(kv.FirstGreaterOrEqual(w.q.keys.section(nameTimer).Begin)),
	}
}

// rest is what a turn that wrote nothing waits for.
func (w *work) rest(t turning, requests []kv.KV) (turn, error) {
	q := w.q
	poll := q.opts.Poll*3/4 + time.Duration(q.random.float()*float64(q.opts.Poll)/2)
	left := turn{wait: poll}
	first := false
	if len(requests) > 0 {
		p, err := q.keys.parse(requests[0].Key)
		if err != nil {
			return left, err
		}
		r, err := unpackRequest(requests[0].Key, requests[0].Value)
		if err != nil {
			return left, err
		}
		first = p.id == q.staging.random
		left.dead = !first && r.deadlineMS <= w.nowMS
	}
	k, err := t.timer.Wait(w.ctx)
	if err != nil {
		return left, fmt.Errorf("read timers: %w", err)
	}
	if q.keys.section(nameTimer).Contains(k) {
		p, err := q.keys.parse(k)
		if err != nil {
			return left, err
		}
		due := time.Duration(p.index-w.nowMS) * time.Millisecond
		if !first {
			// The oldest request goes first; the others see to it if that one has not.
			due += time.Duration(q.random.n(int(skewOfTurns)))
		}
		left.wait = min(left.wait, max(due, time.Millisecond))
	}
	paused, err := w.paused()
	if err != nil {
		return left, err
	}
	if paused {
		left.wait = poll // whatever is due
	}
	left.watch = w.tx.Watch(q.keys.wake(q.staging.random))
	return left, nil
}

// stopStaging ends the attendance and the receives that wait, withdraws the request and clears the wake key. Whoever was
// about to touch that may write it anew: then the next sweep clears it.
func (q *Queue) stopStaging(ctx context.Context) error {
	p := &q.pipeline
	p.mu.Lock()
	for _, o := range p.waiting {
		o.err = ErrClosed
		q.end(o)
	}
	p.waiting = nil
	p.mu.Unlock()
	q.endLife()
	q.attendance.Wait()
	// What is in flight may still register the request, or clear it.
	for q.inFlight() {
		if !q.rest(ctx, busyPause, nil) {
			return context.Cause(ctx)
		}
	}
	index, _ := q.staging.requested()
	if index != 0 {
		return q.withdraw(ctx, index)
	}
	q.staging.mu.Lock()
	requested := q.staging.requests
	q.staging.mu.Unlock()
	if !requested {
		return nil
	}
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Clear(q.keys.wake(q.staging.random))
		return nil
	})
	if err != nil {
		return fmt.Errorf("clear wake key: %w", err)
	}
	return nil
}

// inFlight reports whether a transaction of the handle's operations is in flight.
func (q *Queue) inFlight() bool {
	q.pipeline.mu.Lock()
	defer q.pipeline.mu.Unlock()
	return q.pipeline.flying > 0
}

// Paths counts, since the handle was opened, how its receives came by their claims.
type Paths struct {
	Direct    int64 // claims got at the first attempt
	Widened   int64 // claims got after one conflict or more
	Staged    int64 // claims got by receives that had waited
	Granted   int64 // groups granted to other handles
	Looks     int64 // turns of the handle's waiting receives that found nothing
	Conflicts int64 // attempts of this handle's shared transactions that failed with a conflict
	Shared    int64 // transactions of the handle's operations
	Together  int64 // operations that travelled in them
	Queued    int64 // operations that wait for the next one, now
}

// Paths returns the handle's counts.
func (q *Queue) Paths() Paths {
	q.pipeline.mu.Lock()
	queued := int64(len(q.pipeline.queue))
	q.pipeline.mu.Unlock()
	c := &q.paths
	return Paths{
		Queued: queued,
		Direct: c.direct.Load(), Widened: c.widened.Load(), Staged: c.staged.Load(), Granted: c.granted.Load(),
		Looks: c.looks.Load(), Conflicts: c.conflicts.Load(), Shared: c.shared.Load(), Together: c.together.Load(),
	}
}

type pathCounts struct{ direct, widened, staged, granted, looks, conflicts, shared, together atomic.Int64 }

func (c *pathCounts) count(batch []*operation, conflicts int) {
	c.shared.Add(1)
	c.together.Add(int64(len(batch)))
	c.conflicts.Add(int64(conflicts))
	for _, o := range batch {
		if o.receive == nil {
			continue
		}
		n := int64(len(o.receive.claims))
		switch {
		case o.turn != nil:
			c.staged.Add(n)
		case conflicts > 0:
			c.widened.Add(n)
		default:
			c.direct.Add(n)
		}
	}
}
