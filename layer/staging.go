package layer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
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

// Path limits how a handle's receives find groups. It is for measurements: Adaptive is right.
type Path int

// The paths.
const (
	Adaptive Path = iota // claim directly, wider after conflicts; stage when nothing is ready or conflicts go on
	Direct               // never stage: a receive that waits looks again and again
	Staged               // a receive that waits requests first
)

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
	// wakeProbe is how many requests a waker looks at to find one that lives and wants.
	wakeProbe = 4
	// grantProbe is how many requests one fulfilment serves at most, and how many dead ones a sweep clears.
	grantProbe = 16
)

// DefaultStagePoll is the mean pause between two looks of a handle that nobody wakes.
const DefaultStagePoll = time.Second

// request is the value of a request.
type request struct {
	owner      string
	wants      int64 // groups
	deadlineMS int64
}

func (r request) pack() []byte { return tuple.Tuple{r.owner, r.wants, r.deadlineMS}.Pack() }

func unpackRequest(key, value []byte) (request, error) {
	d := keyDecoder{rest: value}
	r := request{owner: d.str(), wants: d.int(), deadlineMS: d.int()}
	if err := d.end(); err != nil {
		return request{}, corrupt(key, err)
	}
	return r, nil
}

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
	return q.opts.Path == Staged || q.opts.Path == Adaptive && conflicts >= stageAfter
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

// stage registers the handle's request if receives wait, lets it want again if they do and it has been granted all that it
// wanted, and clears it when the last of them has been served. requests is the oldest ones, as far as they were read.
//
// Footprint: a request is registered without any conflict. It is rewritten with a read conflict on it, which meets only a
// sweep that takes the handle for dead, for nobody grants to what wants nothing; and cleared with one, for a grant rewrites it.
func (w *work) stage(waiting []*operation, c *claimer, requests []kv.KV) (staged, error) {
	q := w.q
	if len(waiting) == 0 || !w.mayStage {
		return staged{}, nil
	}
	unserved := 0
	for _, o := range waiting {
		if len(o.receive.claims) == 0 {
			unserved++
		}
	}
	index, _ := q.staging.requested()
	switch {
	case unserved > 0 && index == 0:
		now, err := w.clock()
		if err != nil {
			return staged{}, err
		}
		return w.request(now, unserved), nil
	case unserved > 0:
		// What it was granted may be gone by now, or receives have come since. A request that wants nothing is never woken.
		key := q.keys.request(index, q.staging.random)
		i := slices.IndexFunc(requests, func(row kv.KV) bool { return bytes.Equal(row.Key, key) })
		if i < 0 {
			return staged{}, nil
		}
		r, err := unpackRequest(key, requests[i].Value)
		if err != nil || r.wants > 0 {
			return staged{}, err
		}
		if err := guardRenewRequest.read(w.tx, kv.SingleKey(key)); err != nil {
			return staged{}, err
		}
		return w.request(index, unserved), nil
	case unserved == 0 && index != 0 && !q.othersWait() && !c.holdsGrants():
		key := q.keys.request(index, q.staging.random)
		if err := guardRequestClear.read(w.tx, kv.SingleKey(key)); err != nil {
			return staged{}, err
		}
		w.tx.Clear(key)
		return staged{gone: true}, nil
	}
	return staged{}, nil
}

// request writes the handle's request.
func (w *work) request(index int64, wants int) staged {
	q := w.q
	r := request{owner: q.opts.Owner, wants: int64(min(wants, maxWave)), deadlineMS: w.nowMS + requestLife.Milliseconds()}
	w.tx.Set(q.keys.request(index, q.staging.random), r.pack())
	w.wrote = true
	return staged{request: index, deadlineMS: r.deadlineMS}
}

// othersWait reports whether receives wait that have no part in the transaction under way.
func (q *Queue) othersWait() bool {
	q.pipeline.mu.Lock()
	defer q.pipeline.mu.Unlock()
	return len(q.pipeline.waiting) > 0
}

// accept looks at what the handle was granted before anything else.
func (c *claimer) accept() error {
	if c.granted == nil {
		return nil
	}
	rows, err := c.granted.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read grants: %w", err)
	}
	limit := 1
	for _, r := range c.owed {
		limit = max(limit, r.o.Max)
	}
	for _, row := range rows {
		p, err := c.q.keys.parse(row.Key)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		token, err := unpackInt(row.Key, row.Value)
		if err != nil {
			return err
		}
		c.met[p.group] = false
		c.looks = append(c.looks, c.read(candidate{key: row.Key, group: p.group, grant: token}, limit))
		c.grants[string(row.Key)] = true
	}
	return nil
}

// clear clears a key, if it is one.
func (c *claimer) clear(key []byte) {
	delete(c.grants, string(key))
	c.work.clear(key)
}

// holdsGrants reports whether grants are left that nobody took.
func (c *claimer) holdsGrants() bool {
	return c == nil || len(c.grants) > 0 // nil: it did not look
}

// grantOthers fulfils the requests of other handles with what is ready beyond one's own needs, the oldest request
// with the oldest group.
//
// Footprint, per request served: a read conflict on it, and it is rewritten; per group: as a claim, with a grant.
func (c *claimer) grantOthers(requests []kv.KV) error {
	q := c.q
	for _, row := range requests {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		r, err := unpackRequest(row.Key, row.Value)
		if err != nil {
			return err
		}
		if p.id == q.staging.random || r.deadlineMS <= c.nowMS && !lacks(guardRequestDeadline) {
			continue
		}
		given := int64(0)
		for given < r.wants {
			ok, err := c.grant(p.id)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			given++
		}
		if given > 0 {
			if err := guardGrantRequest.read(c.tx, kv.SingleKey(row.Key)); err != nil {
				return err
			}
			r.wants -= given
			c.tx.Set(row.Key, r.pack())
			c.touch(p.id)
			c.wrote = true
			c.others += int(given)
		}
		if given == 0 && r.wants > 0 {
			return nil // nothing more is ready
		}
	}
	return nil
}

// grant gives the next free group to the request with that random. It returns false if there is none.
func (c *claimer) grant(random uuid.UUID) (bool, error) {
	for {
		l, ok, err := c.next()
		if err != nil || !ok {
			return false, err
		}
		if l.grant != 0 {
			continue // our own: it stays
		}
		free, err := c.free(l)
		if err != nil {
			return false, err
		}
		if !free || l.timer {
			// What is stale is cleared; an expired claim is left to the next receive, which counts the attempt.
			if !free {
				if err := c.settle(&reception{o: ReceiveOptions{Max: 1}}, l, 0); err != nil {
					return false, err
				}
			}
			continue
		}
		rows, err := l.items.Wait(c.ctx)
		if err != nil {
			return false, fmt.Errorf("read items: %w", err)
		}
		head, err := c.q.keys.parse(rows[0].Key)
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		v, err := l.lock.Wait(c.ctx)
		if err != nil {
			return false, fmt.Errorf("read lock: %w", err)
		}
		if v != nil {
			continue // expired
		}
		lockKey := c.q.keys.lock(l.group)
		if err := guardGrantLock.read(c.tx, kv.SingleKey(lockKey)); err != nil {
			return false, err
		}
		token, err := c.token(nil)
		if err != nil {
			return false, err
		}
		lease := grantLease
		if lacks(guardGrantLease) {
			lease = MaxLease
		}
		next := lock{token: token, owner: random.String(), endMS: c.nowMS + lease.Milliseconds(), kind: kindGrant}
		c.hold(l, lockKey, nil, &next, head.index)
		c.tx.Set(c.q.keys.grant(random, l.group), tuple.AppendInt(nil, token))
		c.met[l.group] = true
		return true, nil
	}
}

// touch changes a wake key.
func (w *work) touch(random uuid.UUID) {
	var one [8]byte
	binary.LittleEndian.PutUint64(one[:], 1)
	w.tx.Atomic(kv.Add, w.q.keys.wake(random), one[:])
}

// wakeOldest touches the wake key of the oldest request that lives and wants. It reads at snapshot: whoever makes
// groups ready conflicts neither with requests nor with each other.
func (w *work) wakeOldest() error {
	w.readRequests()
	rows, err := w.requests.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	for _, row := range rows {
		p, err := w.q.keys.parse(row.Key)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		r, err := unpackRequest(row.Key, row.Value)
		if err != nil {
			return err
		}
		if r.wants > 0 && r.deadlineMS > w.nowMS {
			w.touch(p.id)
			return nil
		}
	}
	return nil
}

// findRequest looks for the handle's request after an unknown commit that was applied.
func (q *Queue) findRequest(ctx context.Context, tx kv.Tx) (staged, error) {
	requests := newCursor(q.keys.section(nameRequest))
	for !requests.exhausted {
		const limit = 1000
		rows, err := requests.read(tx.Snapshot(), limit).Wait(ctx)
		if err != nil {
			return staged{}, fmt.Errorf("read requests: %w", err)
		}
		requests.passed(rows, limit)
		for _, row := range rows {
			p, err := q.keys.parse(row.Key)
			if err != nil {
				return staged{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			if p.id == q.staging.random {
				r, err := unpackRequest(row.Key, row.Value)
				return staged{request: p.index, deadlineMS: r.deadlineMS}, err
			}
		}
	}
	return staged{gone: true}, nil
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
	if q.opts.NoCoalescing {
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
	if p.flying < maxFlying && q.mayReceive() && !q.opts.NoCoalescing {
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
			return left, fmt.Errorf("%w: %w", ErrCorrupt, err)
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
			return left, fmt.Errorf("%w: %w", ErrCorrupt, err)
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

// renew moves the deadline of the handle's request. If it was swept, the next call registers another.
func (q *Queue) renew(ctx context.Context, index int64) error {
	key := q.keys.request(index, q.staging.random)
	var outcome staged
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := guardRenewRequest.get(tx, key).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		outcome = staged{gone: true}
		if v == nil {
			return nil
		}
		r, err := unpackRequest(key, v)
		if err != nil {
			return err
		}
		r.deadlineMS = q.nowMS() + requestLife.Milliseconds()
		r.wants = int64(min(max(q.waiters(), 1), maxWave))
		tx.Set(key, r.pack())
		outcome = staged{request: index, deadlineMS: r.deadlineMS}
		return nil
	})
	if err == nil {
		q.staging.set(outcome)
	}
	return err
}

// withdraw clears the handle's request and gives back what it was granted. It may be repeated.
func (q *Queue) withdraw(ctx context.Context, index int64) error {
	if !q.staging.acquire() {
		if !q.rest(ctx, busyPause, nil) { // a receive is about to use the request, or to clear it
			return context.Cause(ctx)
		}
		return nil
	}
	defer q.staging.release()
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error { return q.work(ctx, tx).withdraw(index) })
	if errors.Is(err, ErrNoQueue) {
		err = nil // it went with the queue
	}
	if err == nil {
		q.staging.set(staged{gone: true})
	}
	return err
}

// withdraw is withdraw in one transaction. Footprint: a read conflict on the request, which every grant to it
// rewrites; per grant, one on the lock, and as a release.
func (w *work) withdraw(index int64) error {
	q, tx, random := w.q, w.tx, w.q.staging.random
	key := q.keys.request(index, random)
	if err := guardWithdrawRequest.read(tx, kv.SingleKey(key)); err != nil {
		return err
	}
	rows, err := tx.Snapshot().GetRange(q.keys.grants(random).Selectors(), kv.RangeOptions{}).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read grants: %w", err)
	}
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		token, err := unpackInt(row.Key, row.Value)
		if err != nil {
			return err
		}
		tx.Clear(row.Key)
		l, err := q.readLock(w.ctx, guardWithdrawLock.reads(tx), p.group)
		if err != nil {
			return err
		}
		if l == nil || l.kind != kindGrant || l.token != token {
			continue // taken over
		}
		tx.Clear(q.keys.lock(p.group))
		tx.Clear(q.keys.timer(l.endMS, p.group))
		if err := w.release(p.group, w.head(p.group)); err != nil {
			return err
		}
	}
	tx.Clear(key)
	tx.Clear(q.keys.wake(random))
	return w.finish()
}

// sweepRequests clears the requests of handles that have died, with their grants and wake keys. The groups that
// were granted to them come back when the short lease of the grant ends.
func (q *Queue) sweepRequests(ctx context.Context) error {
	_, err := kv.Run(ctx, q.db, q.batchOptions(), func(tx kv.Tx, _ kv.Attempt) error {
		now := q.nowMS()
		rows, err := tx.Snapshot().GetRange(q.keys.section(nameRequest).Selectors(), kv.RangeOptions{Limit: grantProbe}).Wait(ctx)
		if err != nil {
			return fmt.Errorf("sweep requests: %w", err)
		}
		for _, row := range rows {
			p, err := q.keys.parse(row.Key)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			r, err := unpackRequest(row.Key, row.Value)
			if err != nil {
				return err
			}
			if r.deadlineMS > now || p.id == q.staging.random {
				continue
			}
			if err := guardSweepRequest.read(tx, kv.SingleKey(row.Key)); err != nil {
				return err
			}
			tx.Clear(row.Key)
			tx.ClearRange(q.keys.grants(p.id))
			tx.Clear(q.keys.wake(p.id))
		}
		return nil
	})
	return err
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
