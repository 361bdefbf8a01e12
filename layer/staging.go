package layer

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// Staging is the waiting line of receives for which nothing was ready.
//
// A handle whose receives wait has a single request in the database, whatever the number of receives. A transaction
// that makes a group ready (an enqueue into an empty group, the end of a claim) reads the oldest request at snapshot
// and touches the wake key which the request's handle watches: only this handle wakes, and nothing conflicts. The
// handle claims for its own receives and grants the other ready groups to the requests behind: a grant is a lock with a
// short lease, and the requester accepts by turning the grant into a claim. Groups which become ready because a lease
// or a delay ends are found by the waiting handles' own clocks. A message whose enqueue was in flight when the request
// was written is found by looks that follow it (lookSoon), and a wake of a handle which waits no more is passed on
// (passWakeOn). A jittered poll is the net below: for watches that were lost, and for requests of dead handles, which
// are swept when their deadline has passed.

const (
	// stageAfter is the number of conflicts in a row after which a receive that waits is staged.
	stageAfter = 8
	// requestLife is the time from the writing of a request to its deadline. A handle renews the deadline at half of
	// requestLife. The time is much longer than clocks differ. If another handle takes a request for dead too early,
	// its handle has to poll once, and nothing else is lost.
	requestLife = 60 * time.Second
	// skewOfTurns bounds the time for which other handles wait after the end of a lease, so that the handle with the
	// oldest request claims first.
	skewOfTurns = 250 * time.Millisecond

	// grantProbe is how many requests a fulfilment serves at most, and how many dead requests a sweep clears.
	grantProbe = 16
)

// DefaultStagePoll is the mean pause between two turns of a handle that is not woken.
const DefaultStagePoll = time.Second

// staged is what a transaction did to the handle's request; the zero value = nothing.
type staged struct {
	granted    int   // groups granted to other handles
	request    int64 // the request's index, if the request was registered or found
	deadlineMS int64
	gone       bool // the request was cleared, or not found
	// wants are the requests for lanes and by templates which were written, with their deadlines; 0 = cleared.
	wants map[want]int64
	began bool      // a request was written that is new, or that wants a group again
	rest  line.Rest // what waiting receives wait for after a turn which found nothing
	past  *goneFor  // what the transaction has cleared requests for; nil = nothing
}

// cancel gives up the watch of an attempt which has failed.
func (o *staged) cancel() {
	o.rest.Cancel()
	o.past = nil
}

// staging is the handle's request in the waiting line of all handles, as far as the handle knows. The receives behind
// the request stand in the handle's own line.Line.
//
// Invariants: at most one transaction at a time may register or clear the request (acquire, release), so the handle
// never has two requests. A transaction's change of the request is noted (set) when the outcome is known.
type staging struct {
	// lostUntil: until then, by the handle's clock in ms, polls are as frequent as Options.Poll says; see pollOf.
	lostUntil atomic.Int64
	front     atomic.Pointer[string] // the first request when the handle last looked; nil = there was none

	mu         sync.Mutex
	index      int64 // guarded by mu; of the request in the database; 0 = there is none
	deadlineMS int64 // guarded by mu
	busy       bool  // guarded by mu: a transaction in flight may change the request
	requests   bool  // guarded by mu: the handle has had a request, and so may have a wake key
	// began is when the handle last wrote a new request. past has the groups and lanes that the handle has had requests
	// for until a short while ago; nil = none. Guarded by mu.
	began time.Time
	past  *goneFor
	// wants are the handle's requests for lanes and by templates, as far as the handle may have such. Guarded by mu.
	wants map[want]ownRequest
}

func (s *staging) set(o staged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.request != 0 || o.gone {
		s.index, s.deadlineMS = o.request, o.deadlineMS
	}
	s.requests = s.requests || o.request != 0 || len(o.wants) > 0
	if o.began {
		s.began = time.Now()
	}
	for w, deadlineMS := range o.wants {
		if deadlineMS == 0 {
			delete(s.wants, w)
		} else {
			s.wants[w] = ownRequest{sinceMS: s.wants[w].sinceMS, deadlineMS: deadlineMS}
		}
	}
	s.noteGone(o)
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

// receiveWaiting receives, and waits for up to r.o.Wait if nothing is ready.
func (q *Queue) receiveWaiting(ctx context.Context, s *settlement, r *reception) ([]*Claim, error) {
	o := &operation{settle: s, receive: r}
	if err := q.prepare(o); err != nil {
		return nil, err
	}
	beat := o.settlesUnder()
	if err := q.pipeline.SubmitWaiting(ctx, o, r.o.Wait, r.stop); err != nil {
		q.leaveIfUnsettled(beat, err)
		return nil, err
	}
	return r.claims, nil
}

// lineEnv returns what the handle's waiting line needs.
func (q *Queue) lineEnv() line.Env[*operation] {
	return line.Env[*operation]{
		RunTurn: q.pipeline.RunTurn, Yield: q.yield,
		Requested: func() (index int64, renew bool) {
			index, deadlineMS := q.staging.requested()
			return index, index != 0 && deadlineMS-q.nowMS() < requestLife.Milliseconds()/2
		},
		Wants: q.staging.hasWants, Glances: func(o *operation) bool { return glances(q, o) },
		Withdraw: q.withdraw, Renew: q.renew, Sweep: q.sweepRequests,
		Gone: q.staging.goneLeft, PassOn: q.passWakeOn, WatchFailed: q.watchFailed,
		LookGone: func(ctx context.Context) (line.Rest, bool, error) { return lookGone(ctx, q) },
		AWhile:   q.pipeline.AWhile,
	}
}

// takeTurn claims for the called receives, grants the other ready groups to other handles, and stages the receives left
// without a claim. If there was nothing to write, takeTurn sets a watch; see stoodBack. There is a claimer for each
// template.
func (w *txn) takeTurn(claimers []*claimer, waiting []*operation) (staged, error) {
	named := func(r *reception) bool { return r.o.Group != nil }
	anyGroup := func(r *reception) bool { return r.o.Group == nil }
	var rs []*reception
	turns := make([]*turning, len(claimers))
	for i, c := range claimers {
		rs = append(rs, c.owed...)
		if !slices.ContainsFunc(c.owed, named) || slices.ContainsFunc(c.owed, anyGroup) {
			turns[i] = w.beginTurn(c.where)
		}
	}
	alone, err := w.leaveAlone(claimers, waiting, 0)
	if err != nil {
		return staged{}, err
	}
	for _, c := range claimers {
		if alone {
			break
		}
		if err := c.claim(); err != nil {
			return staged{}, err
		}
	}
	w.claimed(rs)
	w.noteLostWake(waiting, rs)
	if err := w.lookForAny(rs); err != nil {
		return staged{}, err
	}
	var whole *claimer
	var requests []kv.KV
	for i, c := range claimers {
		if c.where == "" {
			whole = c
		}
		if turns[i] == nil {
			continue // a turn for named groups alone leaves the others to the handles which wait for any
		}
		rows, err := turns[i].wait(w)
		if err != nil {
			return staged{}, err
		}
		if c.where != "" {
			err = c.passOn(rows)
		} else {
			if requests = rows; alone {
				continue
			}
			if len(claimers) > 1 {
				c.lookAgain()
			}
			if c.modest {
				err = c.passOn(rows)
			} else {
				err = c.grantOthers(rows)
			}
		}
		if err != nil {
			return staged{}, err
		}
	}
	looked := !w.did.wrote && !w.did.cleared
	outcome, err := w.stage(waiting, whole, requests)
	if err != nil {
		return outcome, err
	}
	w.clearWants(waiting, &outcome)
	if w.did.cleared || w.did.wrote && !(looked && stoodBack(waiting)) {
		return outcome, err
	}
	outcome.rest, err = w.rest(turns, rs, waiting[0].Turn.Glances)
	if alone || slices.ContainsFunc(claimers, func(c *claimer) bool { return len(c.passed) > 0 }) {
		lookAgain(&outcome.rest, waiting[0].Turn.Cue, w.q.pipeline.AWhile())
	}
	return outcome, err
}

// stoodBack reports whether the receives have stood back until this turn. Such a turn, if it only writes the request,
// also sets the watch. A transaction that reads the requests after this commit touches the wake key, which ends the
// watch at once. A transaction that has read them before may have left a group ready without a wake for the handle: so
// another receive looks again. But here another handle has a request, and is woken for the group; and if it dies, a
// poll finds the group.
func stoodBack(waiting []*operation) bool {
	return !slices.ContainsFunc(waiting, func(o *operation) bool { return !o.Cue.Back })
}

// turning has the reads of a turn for the receives by one template, without the reads for the turn's claims.
type turning struct {
	where    string // the packed template; "" = whole groups
	requests kv.Future[[]kv.KV]
	timer    kv.Future[[]byte] // the first of shard 0
	rows     []kv.KV           // of requests
}

func (w *txn) beginTurn(where string) *turning {
	snapshot := w.read
	return &turning{
		where:    where,
		requests: snapshot.GetRange(w.keys.byLaneFor(where).Selectors(), kv.RangeOptions{Limit: grantProbe}),
		timer:    snapshot.GetKey(kv.FirstGreaterOrEqual(w.keys.timersIn(where, 0).Begin)),
	}
}

// wait returns the oldest requests.
func (t *turning) wait(w *txn) (rows []kv.KV, err error) {
	if t.rows, err = t.requests.Wait(w.ctx); err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	return t.rows, nil
}

// rest returns what the handle waits for after a turn that wrote nothing. others are the templates to glance at.
func (w *txn) rest(turns []*turning, receives []*reception, others []string) (line.Rest, error) {
	q := w.q
	poll := w.pollOf(turns, receives)
	left := line.Rest{Wait: poll}
	for _, t := range turns {
		if t == nil {
			continue
		}
		if err := w.restOfAny(t, &left); err != nil {
			return left, err
		}
	}
	if err := w.glance(others, &left); err != nil {
		return left, err
	}
	for _, r := range receives {
		if r.dueMS > 0 {
			due := time.Duration(r.dueMS-w.nowMS) * time.Millisecond
			left.Wait = min(left.Wait, max(due, time.Millisecond))
		}
	}
	paused, err := w.paused()
	if err != nil {
		return left, err
	}
	if paused {
		left.Wait = poll // a due timer makes nothing ready while the queue is paused
	}
	if w.shortMS > 0 { // nor while its rate is used up
		left.Wait = min(poll, max(time.Duration(w.shortMS-w.nowMS)*time.Millisecond, time.Millisecond))
	}
	if left.Next.Why = line.WhyWoken; left.Wait == poll {
		left.Next.Why = line.WhyPoll
	}
	if soon, err := w.lookSoon(turns, receives); err != nil {
		return left, err
	} else if soon > 0 && soon < left.Wait {
		left.Wait, left.Next.Why = soon, line.WhyNew
	}
	left.Watch = w.tx.Watch(q.keys.wake(q.waitID))
	if q.staging.hasWants() {
		left.Watch = eitherWatch{left.Watch, w.tx.Watch(q.keys.wake(uuid.Nil))}
	}
	return left, nil
}

// eitherWatch ends when one of its watches ends.
type eitherWatch [2]kv.Future[struct{}]

// Wait implements kv.Future.
func (e eitherWatch) Wait(ctx context.Context) (struct{}, error) {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	second := make(chan error, 1)
	go func() {
		_, err := e[1].Wait(both)
		second <- err
		cancel()
	}()
	_, err := e[0].Wait(both)
	if err != nil && ctx.Err() == nil && both.Err() != nil {
		err = <-second
	}
	return struct{}{}, err
}

// Ready implements kv.Future.
func (e eitherWatch) Ready() bool { return e[0].Ready() || e[1].Ready() }

// Cancel implements kv.Future.
func (e eitherWatch) Cancel() {
	e[0].Cancel()
	e[1].Cancel()
}

// restOfAny is rest for the receives which take any group, or any lane of a template: the next timer there ends the
// rest, too.
func (w *txn) restOfAny(t *turning, left *line.Rest) error {
	q := w.q
	first := false
	if len(t.rows) > 0 {
		p, err := q.keys.parse(t.rows[0].Key)
		var r rec.Request
		if err == nil {
			r, err = rec.UnpackRequest(t.rows[0].Key, t.rows[0].Value)
		}
		q.passes(err) // as one of a dead handle
		if first = p.id == q.waitID; !first && !lives(r, w.nowMS) {
			left.Dead = append(left.Dead, t.where)
		}
	}
	dueMS, found, err := w.firstDue(t)
	if err != nil {
		return err
	}
	if found {
		due := time.Duration(dueMS-w.nowMS) * time.Millisecond
		if !first {
			// The oldest requester goes first; the others come a little later, in case the oldest is dead.
			due += time.Duration(q.random.N(int(skewOfTurns)))
		}
		left.Wait = min(left.Wait, max(due, time.Millisecond))
	}
	return nil
}

// firstDue returns the time of the first timer of the template. The timers of the shards from 1 on are read only here,
// because a turn which has found something does not need them.
//
// In a queue with retroactive delay the timers with the time of an enqueue are further ranges, and while there are such
// the handle looks each followAge, because the delay may become shorter.
func (w *txn) firstDue(t *turning) (dueMS int64, found bool, err error) {
	config, err := w.config()
	if err != nil {
		return 0, false, err
	}
	keys, delay := w.keys, config.retro()
	since := delay.times()[1:]
	first, ranges := []kv.Future[[]byte]{t.timer}, []kv.KeyRange{keys.timersIn(t.where, 0)}
	add := func(timers kv.KeyRange) {
		first = append(first, w.read.GetKey(kv.FirstGreaterOrEqual(timers.Begin)))
		ranges = append(ranges, timers)
	}
	for shard := range keys.shards.all() {
		if shard > 0 {
			add(keys.timersIn(t.where, shard))
		}
		for _, of := range since {
			add(keys.dueWithin(t.where, shard, of))
		}
	}
	for i, f := range first {
		k, err := f.Wait(w.ctx)
		if err != nil {
			return 0, false, fmt.Errorf("read timers: %w", err)
		}
		if !ranges[i].Contains(k) {
			continue
		}
		if at := w.dueAt(k, delay); !found || at < dueMS {
			dueMS, found = at, true
		}
	}
	return dueMS, found, nil
}

// dueAt returns when the timer with the key is due, or when to look at it again.
func (w *txn) dueAt(key []byte, delay retro) int64 {
	p, err := w.keys.parse(key)
	if w.passes(err) {
		// A key that leads nowhere hides the first timer behind it: look again before long.
		p.index = w.nowMS + followAge.Milliseconds()
	}
	at := delay.dueOf(p.index)
	if p.index >= sinceBase {
		at = min(at, w.nowMS+followAge.Milliseconds())
	}
	return at
}

// stopStaging ends the attendance, withdraws the request and clears the wake key. A transaction that was about to touch
// the wake key may write the key again. Then the next sweep clears the key. The pipeline is closed, so no receive waits
// any more.
func (q *Queue) stopStaging(ctx context.Context) error {
	defer q.staging.takeGone()
	if err := q.line.Stop(ctx); err != nil {
		return err
	}
	// Transactions in flight may still register the request, or clear the request.
	for q.pipeline.InFlight() {
		if !q.line.Rest(ctx, line.BusyPause) {
			return context.Cause(ctx)
		}
	}
	index, _ := q.staging.requested()
	if index != 0 || q.staging.hasWants() {
		return q.withdraw(ctx, index)
	}
	q.staging.mu.Lock()
	requested := q.staging.requests
	q.staging.mu.Unlock()
	if !requested {
		return nil
	}
	_, err := kv.Run(ctx, q.db, txFor(q, "close"), func(tx kv.Tx, _ kv.Attempt) error {
		tx.Clear(q.keys.wake(q.waitID))
		return nil
	})
	if err != nil {
		return fmt.Errorf("clear wake key: %w", err)
	}
	return nil
}

// Paths counts, since the handle was opened, in which ways the handle's receives have got their claims.
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
	// Unreadable is how often the handle has met a row that cannot be read and has gone on without it: a hint, a timer,
	// a request, a change. Check names the rows, and a Purge with Force, or a Sweep, clears them.
	Unreadable int64
	// Waiting is for how long the database has kept a transaction of the handle waiting; 0 = none waits. A transaction
	// counts if its attempts have failed for a second, or have had no answer for five. If several count, Waiting is the
	// longest of their times.
	Waiting time.Duration
}

// Paths returns the handle's counts.
func (q *Queue) Paths() Paths {
	c := &q.paths
	return Paths{
		Queued: int64(q.pipeline.Queued()),
		Direct: c.direct.Load(), Widened: c.widened.Load(), Staged: c.staged.Load(), Granted: c.granted.Load(),
		Looks: c.looks.Load(), Conflicts: c.conflicts.Load(), Shared: c.shared.Load(), Together: c.together.Load(),
		Unreadable: q.unreadable.Load(), Waiting: q.troubles.Waiting(),
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
		case o.Turn != nil:
			c.staged.Add(n)
		case conflicts > 0:
			c.widened.Add(n)
		default:
			c.direct.Add(n)
		}
	}
}

// A transaction that makes a group ready wakes one handle, by a request that the handle may be about to clear, because
// it has been served with another group or waits no longer. Then the wake reaches no receive, and a handle that waits
// would find the group by its poll. Example: two enqueues wake handle A at the same time; A takes one group, and B
// waits for the other. So a handle which clears a request remembers the count of its wake key, for as long as a
// transaction can last that has read the request. If a wake comes in that time, the handle passes it on.
//
// The clearing transaction reads the count without a conflict, and sets no watch, which would conflict with each wake.
// Otherwise a handle could not clear its request while messages are enqueued as fast as transactions end: each enqueue
// wakes the handle again. A later transaction, which only reads, compares the count and sets the watch.
//
// If the process dies or the handle is closed, the wake is lost. Then a poll finds the group, as after any lost wake.

// goneFor says which requests a handle has cleared a short while ago: for any group, for lanes, by templates.
type goneFor struct {
	any   bool
	wants map[want]bool
	until time.Time
	wakes []byte // the value of the wake key when the handle looked last
}

// noteCleared notes the wakes before a transaction which clears requests of the handle. any is true if the request for
// any group is among them.
func (w *txn) noteCleared(outcome *staged, any bool) error {
	past := goneFor{any: any, wants: make(map[want]bool), until: time.Now().Add(transactionLife)}
	for wanted, deadlineMS := range outcome.wants {
		if deadlineMS == 0 {
			past.wants[wanted] = true
		}
	}
	if !any && len(past.wants) == 0 {
		return nil
	}
	if err := rememberWakes(w, &past); err != nil {
		return err
	}
	outcome.past = &past
	return nil
}

// rememberWakes notes the handle's wakes so far.
func rememberWakes(w *txn, past *goneFor) (err error) {
	if past.wakes, err = w.tx.Snapshot().Get(w.keys.wake(w.q.waitID)).Wait(w.ctx); err != nil {
		return fmt.Errorf("read wake key: %w", err)
	}
	return nil
}

// noteGone adds the requests that a transaction has cleared to past. It removes from past what the handle waits for
// again, because the handle has looked. The caller must hold mu.
func (s *staging) noteGone(o staged) {
	switch {
	case o.past == nil:
	case s.past == nil:
		s.past = o.past
	default: // the older count: a wake that either missed is seen
		s.past.any, s.past.until = s.past.any || o.past.any, o.past.until
		maps.Copy(s.past.wants, o.past.wants)
	}
	if s.past == nil || o.rest.Watch == nil {
		return
	}
	s.past.any = s.past.any && s.index == 0
	maps.DeleteFunc(s.past.wants, func(w want, _ bool) bool { _, again := s.wants[w]; return again })
	if !s.past.any && len(s.past.wants) == 0 {
		s.past = nil
	}
}

// waitsSince returns for how long a request of the handle has been there; of several, the newest.
func (s *staging) waitsSince() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.began)
}

// goneLeft is line.Env.Gone.
func (s *staging) goneLeft() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past == nil {
		return 0
	}
	left := time.Until(s.past.until)
	if left <= 0 {
		s.past = nil
	}
	return max(left, 0)
}

// takeGone returns the note of the cleared requests, and removes the note from s.
func (s *staging) takeGone() *goneFor {
	s.mu.Lock()
	defer s.mu.Unlock()
	past := s.past
	s.past = nil
	return past
}

// lookGone is line.Env.LookGone.
func lookGone(ctx context.Context, q *Queue) (r line.Rest, woken bool, err error) {
	q.staging.mu.Lock()
	past := q.staging.past
	q.staging.mu.Unlock()
	if past == nil {
		return r, false, nil
	}
	key := q.keys.wake(q.waitID)
	_, err = kv.Run(ctx, q.db, txFor(q, "wait"), func(tx kv.Tx, _ kv.Attempt) error {
		r.Cancel() // of a failed attempt
		wakes, err := tx.Snapshot().Get(key).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read wake key: %w", err)
		}
		if woken = !bytes.Equal(wakes, past.wakes); !woken {
			r.Watch = tx.Watch(key)
		}
		return nil
	})
	if err != nil {
		r.Cancel()
	}
	return r, woken, err
}

// passWakeOn wakes the next handle which waits for what this handle has had a request for, and remembers the wakes so
// far. If the handle has no request now, one that bears the handle's name was left by a commit of unknown outcome.
// passWakeOn withdraws such a request: otherwise the handle would wake itself by the request again and again.
func (q *Queue) passWakeOn(ctx context.Context) error {
	past := q.staging.takeGone()
	if past == nil {
		return nil
	}
	var sought []string
	if past.any {
		sought = append(sought, "")
	}
	for _, w := range slices.SortedFunc(maps.Keys(past.wants), want.compare) {
		if w.one {
			sought = append(sought, w.of)
		} else {
			sought = append(sought, lanes.Name("", w.of))
		}
	}
	alone := q.staging.acquire()
	var left leftOver
	err := q.wakeFor(ctx, sought, func(w *txn) error {
		left = leftOver{of: q.waitID}
		if index, _ := q.staging.requested(); alone && index == 0 && !q.staging.hasWants() {
			w.wakes.leftOver = &left
		}
		return rememberWakes(w, past)
	})
	if alone {
		q.staging.release()
	}
	if err != nil {
		return err
	}
	q.staging.set(staged{past: past})
	if left.index != 0 {
		return q.withdraw(ctx, left.index)
	}
	return nil
}
