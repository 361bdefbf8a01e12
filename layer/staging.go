package layer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// Staging is the waiting line of receives for which nothing was ready.
//
// A handle whose receives wait has a single request in the database, whatever the number of receives. Whoever makes a
// group ready (an enqueue into an empty group, the end of a claim) reads the oldest request at snapshot and touches the
// wake key which the request's handle watches: only this handle wakes, and nothing conflicts. The handle claims for its
// own receives and grants the other ready groups to the requests behind: a grant is a lock with a short lease, and the
// requester accepts by turning the grant into a claim. Groups which become ready because a lease or a delay ends are
// found by the waiting handles' own clocks. A jittered poll is the net below: for wakes that were lost (a watch may be
// late; an enqueue may have read before the request was there), and for requests of dead handles, which are swept when
// their deadline has passed.

const (
	// stageAfter is the number of conflicts in a row after which a receive that waits is staged.
	stageAfter = 8
	// grantLease is how long a granted group waits for the requester. A live requester accepts in milliseconds.
	grantLease = 2 * time.Second
	// requestLife is how far ahead a request's deadline lies, renewed at half of requestLife. The time is long against
	// the skew of clocks: a request taken for dead too early costs its handle a poll, nothing else.
	requestLife = 60 * time.Second
	// busyPause is the pause before the next try when a transaction in flight may change the handle's request.
	busyPause = 5 * time.Millisecond
	// errorPause is the pause after a turn that failed.
	errorPause = time.Second
	// skewOfTurns is how long at most the other handles leave the end of a lease to the handle with the oldest request.
	skewOfTurns = 250 * time.Millisecond

	// grantProbe is how many requests a fulfilment serves at most, and how many dead requests a sweep clears.
	grantProbe = 16
)

// DefaultStagePoll is the mean pause between two turns of a handle which nobody wakes.
const DefaultStagePoll = time.Second

// staged is what a transaction did to the handle's request; the zero value = nothing.
type staged struct {
	granted    int   // groups granted to other handles
	request    int64 // the request's index, if the request was registered or found
	deadlineMS int64
	gone       bool // the request was cleared, or not found
	// named are the requests for groups which were written, with their deadlines; 0 = cleared.
	named map[string]int64
	rest  rest // what waiting receives wait for after a turn which found nothing
}

// staging is the handle's request in the waiting line of all handles, as far as the handle knows. The receives behind
// the request stand in the handle's own waitingLine.
//
// Invariants: at most one transaction at a time may register or clear the request (acquire, release), so the handle
// never has two requests. A transaction's change of the request is noted (set) when the outcome is known.
type staging struct {
	random uuid.UUID // of the handle's request, grants and wake key

	mu         sync.Mutex
	index      int64 // guarded by mu; of the request in the database; 0 = there is none
	deadlineMS int64 // guarded by mu
	busy       bool  // guarded by mu: a transaction in flight may change the request
	requests   bool  // guarded by mu: the handle has had a request, and so may have a wake key
	// named are the groups for which the handle may have a request, with the deadlines; 0 = not known. Guarded by mu.
	named map[string]int64
}

func (s *staging) set(o staged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.request != 0 || o.gone {
		s.index, s.deadlineMS = o.request, o.deadlineMS
	}
	s.requests = s.requests || o.request != 0 || len(o.named) > 0
	for group, deadlineMS := range o.named {
		if deadlineMS == 0 {
			delete(s.named, group)
		} else {
			s.named[group] = deadlineMS
		}
	}
}

// expect notes that a transaction is about to write requests for groups, and returns those that are new. If the outcome
// is never known, the requests are cleared all the same when nobody waits any more.
func (s *staging) expect(groups []string) (added []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(groups) > 0 && s.named == nil {
		s.named = make(map[string]int64)
	}
	for _, group := range groups {
		if _, known := s.named[group]; !known {
			s.named[group] = 0
			added = append(added, group)
		}
	}
	return added
}

// unexpect forgets the groups for which no request was written after all.
func (s *staging) unexpect(groups []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, group := range groups {
		if s.named[group] == 0 {
			delete(s.named, group)
		}
	}
}

// groups returns the groups for which the handle may have a request, in order, and the deadlines.
func (s *staging) groups() (groups []string, deadlines map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.named)), maps.Clone(s.named)
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

// hasNamed reports whether the handle may have requests for groups.
func (s *staging) hasNamed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.named) > 0
}

// requested returns the index of the handle's request, or 0.
func (s *staging) requested() (index, deadlineMS int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index, s.deadlineMS
}

// stageFirst reports whether waiting receives are to be staged without looking for ready groups first.
func (q *Queue) stageFirst(conflicts int) bool {
	return q.opts.Test.Path == Staged || q.opts.Test.Path == Adaptive && conflicts >= stageAfter
}

// receiveWaiting receives, and waits for up to r.o.Wait if nothing is ready.
func (q *Queue) receiveWaiting(ctx context.Context, s *settlement, r *reception) ([]*Claim, error) {
	o := &operation{settle: s, receive: r}
	if err := q.prepare(o); err != nil {
		return nil, err
	}
	if err := q.pipeline.submitWaiting(ctx, o, r.o.Wait, r.stop); err != nil {
		return nil, err
	}
	return r.claims, nil
}

// lineEnv returns what the handle's waiting line needs.
func (q *Queue) lineEnv() lineEnv {
	return lineEnv{
		runTurn: q.pipeline.runTurn, yield: q.yield, alone: q.opts.Test.NoCoalescing, nowMS: q.nowMS,
		requested: q.staging.requested, named: q.staging.hasNamed,
		withdraw: q.withdraw, renew: q.renew, sweep: q.sweepRequests,
	}
}

// takeTurn claims for the called receives, grants the other ready groups to other handles, and stages the receives left
// without a claim. If there was nothing to write, takeTurn sets a watch.
func (w *txn) takeTurn(c *claimer, waiting []*operation) (staged, error) {
	named := func(r *reception) bool { return r.o.Group != nil }
	t, rs := turning{}, c.owed
	anyGroup := !slices.ContainsFunc(rs, named) || slices.ContainsFunc(rs, func(r *reception) bool { return !named(r) })
	if anyGroup {
		t = w.beginTurn()
	}
	if err := c.claim(); err != nil {
		return staged{}, err
	}
	w.claimed(rs)
	var requests []kv.KV
	if anyGroup { // a turn for named groups alone leaves the others to the handles which wait for any
		var err error
		if requests, err = t.requests.Wait(w.ctx); err != nil {
			return staged{}, fmt.Errorf("read requests: %w", err)
		}
		if err := c.grantOthers(requests); err != nil {
			return staged{}, err
		}
	}
	outcome, err := w.stage(waiting, c, requests)
	if err != nil {
		return outcome, err
	}
	w.clearNamed(waiting, &outcome)
	if w.wrote || w.cleared {
		return outcome, err
	}
	outcome.rest, err = w.rest(t, requests, rs)
	return outcome, err
}

// turning is the reads of a turn beside the reads of the turn's claims.
type turning struct {
	requests kv.Future[[]kv.KV]
	timer    kv.Future[[]byte]
}

func (w *txn) beginTurn() turning {
	snapshot := w.tx.Snapshot()
	return turning{
		requests: snapshot.GetRange(w.q.keys.section(nameRequest).Selectors(), kv.RangeOptions{Limit: grantProbe}),
		timer:    snapshot.GetKey(kv.FirstGreaterOrEqual(w.q.keys.section(nameTimer).Begin)),
	}
}

// rest returns what the handle waits for after a turn that wrote nothing.
func (w *txn) rest(t turning, requests []kv.KV, receives []*reception) (rest, error) {
	q := w.q
	poll := q.opts.Poll*3/4 + time.Duration(q.random.float()*float64(q.opts.Poll)/2)
	left := rest{wait: poll}
	if t.timer != nil {
		if err := w.restOfAny(t, requests, &left); err != nil {
			return left, err
		}
	}
	for _, r := range receives {
		if r.dueMS > 0 {
			due := time.Duration(r.dueMS-w.nowMS) * time.Millisecond
			left.wait = min(left.wait, max(due, time.Millisecond))
		}
	}
	paused, err := w.paused()
	if err != nil {
		return left, err
	}
	if paused {
		left.wait = poll // a due timer is of no use while the queue is paused
	}
	if w.shortMS > 0 { // nor while its rate is used up
		left.wait = min(poll, max(time.Duration(w.shortMS-w.nowMS)*time.Millisecond, time.Millisecond))
	}
	left.watch = w.tx.Watch(q.keys.wake(q.staging.random))
	return left, nil
}

// restOfAny is rest for the receives which take any group: the queue's next timer ends the rest, too.
func (w *txn) restOfAny(t turning, requests []kv.KV, left *rest) error {
	q := w.q
	first := false
	if len(requests) > 0 {
		p, err := q.keys.parse(requests[0].Key)
		if err != nil {
			return err
		}
		r, err := unpackRequest(requests[0].Key, requests[0].Value)
		if err != nil {
			return err
		}
		first = p.id == q.staging.random
		left.dead = !first && r.deadlineMS <= w.nowMS
	}
	k, err := t.timer.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read timers: %w", err)
	}
	if q.keys.section(nameTimer).Contains(k) {
		p, err := q.keys.parse(k)
		if err != nil {
			return err
		}
		due := time.Duration(p.index-w.nowMS) * time.Millisecond
		if !first {
			// The oldest requester goes first; the others come a little later, in case the oldest is dead.
			due += time.Duration(q.random.n(int(skewOfTurns)))
		}
		left.wait = min(left.wait, max(due, time.Millisecond))
	}
	return nil
}

// stopStaging ends the attendance, withdraws the request and clears the wake key. Whoever was about to touch the wake
// key may write the key anew: then the next sweep clears the key. The pipeline is closed, so nobody waits any more.
func (q *Queue) stopStaging(ctx context.Context) error {
	q.line.stop()
	// Transactions in flight may still register the request, or clear the request.
	for q.pipeline.inFlight() {
		if !q.line.rest(ctx, busyPause, nil) {
			return context.Cause(ctx)
		}
	}
	index, _ := q.staging.requested()
	if index != 0 || q.staging.hasNamed() {
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

// Paths counts, since the handle was opened, how the handle's receives came by their claims.
type Paths struct {
	Direct    int64 // claims got at the first attempt
	Widened   int64 // claims got after one conflict or more
	Staged    int64 // claims got by receives which had waited
	Granted   int64 // groups granted to other handles
	Looks     int64 // turns of the handle's waiting receives which found nothing
	Conflicts int64 // attempts of this handle's shared transactions which failed with a conflict
	Shared    int64 // transactions of the handle's operations
	Together  int64 // operations which travelled in shared transactions
	Queued    int64 // operations now waiting for the next transaction
}

// Paths returns the handle's counts.
func (q *Queue) Paths() Paths {
	c := &q.paths
	return Paths{
		Queued: int64(q.pipeline.queued()),
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
