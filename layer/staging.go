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
)

// Staging makes receives wait for which no group is ready. ARCHITECTURE.md (Wait) has the steps.
//
// A handle whose receives wait for any group has one request in the database. A transaction that makes a group ready
// reads the oldest request at snapshot, and changes the wake key of its handle. So only this handle wakes, and nothing
// conflicts. The handle claims for its own receives, and grants other ready groups to the requests behind its own. A
// grant is a lock with a short lease. The other handle turns the grant into a claim.
//
// Other ways to find a group: if a lease or a delay ends, the waiting handles find the group by their own clocks. If an
// enqueue was in flight when the request was written, the handle finds the message by further looks (lookSoon). If a
// handle is woken that no longer waits, it passes the wake on (passWakeOn). If a watch is lost or a handle has died, a
// poll finds the group. A sweep clears the requests of dead handles.

const (
	// stageAfter is the number of conflicts in a row after which a receive with a Wait joins the waiting line.
	stageAfter = 8
	// skewOfTurns bounds the random time for which a handle waits after the end of a lease or delay, if another handle
	// has the oldest request. So that handle claims first.
	skewOfTurns = 250 * time.Millisecond

	// grantProbe bounds the requests that a turn serves with grants, and the dead requests that a sweep clears.
	grantProbe = 16
)

// defaultStagePoll is the mean pause between two turns of a handle that is not woken.
const defaultStagePoll = time.Second

// staged is what a transaction has done to the handle's requests; the zero value = nothing.
type staged struct {
	granted    int   // groups granted to other handles
	request    int64 // the index of the request for any group, if it was registered or renewed
	deadlineMS int64
	gone       bool // the request was cleared, or not found
	// wants has the deadlines (ms) of the requests for lanes and by templates that were written; 0 = the request was
	// cleared.
	wants map[want]int64
	began bool      // a request was written: a new one, or one that wants a group again
	rest  line.Rest // what waiting receives wait for after a turn which found nothing
	past  *goneFor  // the requests that the transaction has cleared; nil = none
}

// cancel gives up the watch of an attempt that has failed, and forgets the requests that the attempt has cleared.
func (o *staged) cancel() {
	o.rest.Cancel()
	o.past = nil
}

// staging is what the handle knows of its own requests in the database. The handle's line.Line has the receives that
// wait.
//
// A transaction that may register or clear the request must have called acquire, so that the handle never has two
// requests. When the outcome of the transaction is known, the handle must call set, if the transaction was applied, and
// then release.
type staging struct {
	// lostUntil is a time by the handle's clock, in ms. Until then the handle polls as often as Options.Poll says: see
	// pollOf.
	lostUntil atomic.Int64
	front     atomic.Pointer[string] // key of the first request when the handle last looked; nil = there was none

	mu         sync.Mutex
	index      int64 // guarded by mu; of the request in the database; 0 = there is none
	deadlineMS int64 // guarded by mu
	busy       bool  // guarded by mu: a transaction in flight may change the request
	requests   bool  // guarded by mu: the handle has had a request, and so may have a wake key
	// began is when the handle last wrote a new request. past has the requests that the handle has cleared a short
	// while ago; nil = none. Guarded by mu.
	began time.Time
	past  *goneFor
	// wants are the handle's requests for lanes and by templates. Guarded by mu.
	wants map[want]ownRequest
}

// set notes in memory the requests that a transaction has written and cleared. The transaction must have been applied.
// After one of unknown outcome o may have past alone (mayBeLeft). expect must have noted the lanes and templates of the
// written requests (o.wants) before.
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

// acquire reports whether the caller's transaction may register or clear requests of the handle. It does not wait:
// false means that another transaction does so. After true the caller must call release. acquire changes memory only.
func (s *staging) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return false
	}
	s.busy = true
	return true
}

// release ends the right that acquire has given.
func (s *staging) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
}

// requested returns the index and the deadline (ms) of the handle's request for any group; 0 = there is none.
func (s *staging) requested() (index, deadlineMS int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index, s.deadlineMS
}

// lineEnv returns the functions of the handle that its waiting line calls: see line.Env.
func (q *Queue) lineEnv() line.Env[*operation] {
	return line.Env[*operation]{
		RunTurn: q.pipeline.RunTurn, Yield: q.yield,
		Requested: func() (index int64, renew bool) {
			index, deadlineMS := q.staging.requested()
			return index, index != 0 && !lastsUntil(deadlineMS, q.nowMS())
		},
		Wants: q.staging.hasWants, Glances: func(o *operation) bool { return glances(q, o) },
		Withdraw: q.withdraw, Renew: q.renew, Sweep: q.sweepRequests,
		Gone: q.staging.goneLeft, PassOn: q.passWakeOn, WatchFailed: q.watchFailed,
		LookGone: func(ctx context.Context) (line.Rest, bool, error) { return lookGone(ctx, q) },
		AWhile:   q.pipeline.AWhile,
	}
}

// takeTurn does the work of a turn: a transaction for receives that wait in the line. It claims for the receives of
// this turn, unless it must leave the hints that it finds to another handle (leaveAlone). Ready groups that are left
// over are granted to other handles' requests. If a lane of a template is left over, or the turn is modest
// (pipeline_tx.go), the next handle is woken instead (passOn). If receives are left without a claim, takeTurn writes
// the handle's requests; it clears requests for which no receive waits any more.
//
// If nothing was written or cleared, the outcome has a rest with a watch on the handle's wake key. The same holds if
// only the request was written, and all receives have stood back until this turn (stoodBack). Otherwise the outcome has
// no watch, and the line gives the next turn at once.
//
// There is a claimer for each template. waiting are the operations of the receives rs, at least one. In addition to the
// reads of the claimers, the turn reads the oldest requests and the timers of each template, at snapshot; it does not
// if all its receives by the template name their groups.
func (w *txn) takeTurn(claimers []*claimer, waiting []*operation, rs []*reception) (staged, error) {
	var serving []*claimer // a turn for named groups alone serves no other handles
	var turns []*turning   // of those
	for _, c := range claimers {
		if !allNamed(c.owed) {
			serving, turns = append(serving, c), append(turns, w.beginTurn(c.where))
		}
	}
	alone, err := w.leaveAlone(claimers, waiting, 0)
	if err != nil {
		return staged{}, err
	}
	claiming := claimers
	if alone {
		claiming = nil
	}
	if err := w.claimAll(claiming, rs); err != nil {
		return staged{}, err
	}
	w.noteLostWake(waiting[0].Turn, rs)
	var requests []kv.KV
	for i, c := range serving {
		rows, err := turns[i].wait(w)
		if err != nil {
			return staged{}, err
		}
		if c.where == "" {
			requests = rows
		}
		switch {
		case alone:
		case c.where != "", c.modest:
			err = c.passOn(rows)
		default:
			if len(claimers) > 1 {
				c.lookAgain()
			}
			err = c.grantOthers(rows)
		}
		if err != nil {
			return staged{}, err
		}
	}
	looked := !w.did.wrote && !w.did.cleared
	outcome, err := w.stage(waiting, claimers, requests)
	if err != nil {
		return outcome, err
	}
	w.clearWants(waiting, &outcome)
	if w.did.cleared || w.did.wrote && !(looked && stoodBack(waiting)) {
		return outcome, err
	}
	outcome.rest, err = w.rest(turns, rs, waiting[0].Turn.Glances, outcome.began)
	if alone || slices.ContainsFunc(claimers, func(c *claimer) bool { return len(c.passed) > 0 }) {
		lookAgain(&outcome.rest, waiting[0].Turn.Cue, w.q.pipeline.AWhile())
	}
	return outcome, err
}

// stoodBack reports whether all receives have stood back until this turn: they have waited a short time without a
// transaction, because the handle had just woken another handle. Such a turn may set the watch in the transaction that
// writes the request. A turn in other cases must not: a transaction that has read the requests before this commit may
// make a group ready without a wake for the handle, so the handle must look again. Here the other handle has a request,
// and is woken for the group. It may give the group back and then wait for something else, or die: the next look finds
// the group, see lookSoon.
func stoodBack(waiting []*operation) bool {
	return !slices.ContainsFunc(waiting, func(o *operation) bool { return !o.Cue.Back })
}

// turning has the reads of a turn for one template, except those of its claimer.
type turning struct {
	where    string // the packed template; "" = whole groups
	requests kv.Future[[]kv.KV]
	timer    kv.Future[[]byte] // the key of the first timer in shard 0
	rows     []kv.KV           // of requests
}

// beginTurn starts two reads for a turn, at snapshot: of the oldest grantProbe requests by the template ("" = for any
// group), and of the first timer in shard 0.
func (w *txn) beginTurn(where string) *turning {
	snapshot := w.read
	return &turning{
		where:    where,
		requests: snapshot.GetRange(w.keys.byLaneFor(where).Selectors(), kv.RangeOptions{Limit: grantProbe}),
		timer:    snapshot.GetKey(kv.FirstGreaterOrEqual(w.keys.timersIn(where, 0).Begin)),
	}
}

// wait returns the oldest requests by the template, at most grantProbe.
func (t *turning) wait(w *txn) (rows []kv.KV, err error) {
	if t.rows, err = t.requests.Wait(w.ctx); err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	return t.rows, nil
}

// rest returns the watch and the time for which the handle waits after a turn that found nothing. The watch is on the
// handle's wake key. If the handle has requests for groups, lanes or templates, the watch is on the shared wake key, of
// uuid.Nil, too. The time is that of the poll. It is shorter if the end of a delay, a lease or a used-up rate comes
// before, or if the handle must look again for enqueues in flight (lookSoon). rest reads timers at snapshot, and the
// keys of glance.
//
// receives are those of the turn. others are the places (groups, lanes and templates) of other receives in the line,
// which get only a glance. began: the transaction has written a new request.
func (w *txn) rest(turns []*turning, receives []*reception, others []string, began bool) (line.Rest, error) {
	q := w.q
	poll := w.pollOf(turns, receives)
	left := line.Rest{Wait: poll}
	for _, t := range turns {
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
	if soon, err := w.lookSoon(turns, receives, began); err != nil {
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

// eitherWatch is a future of two watches. It ends when the first of them ends.
type eitherWatch [2]kv.Future[struct{}]

// Wait implements kv.Future. It returns the error of the watch that has ended first.
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

// restOfAny is rest for receives of any group, or of any lane of a template. It shortens left.Wait to the time of the
// template's first timer (firstDue reads the timers). Unless this handle has the oldest request, a random part of
// skewOfTurns is added, so that the handle with the oldest request claims first. If the oldest request is a dead
// handle's, the template goes into left.Dead.
func (w *txn) restOfAny(t *turning, left *line.Rest) error {
	q := w.q
	first := false
	if len(t.rows) > 0 {
		p, r, err := q.keys.openRequest(t.rows[0])
		q.skipsRow(err) // such a request counts as a dead handle's
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

// firstDue returns when (ms) the template's first timer is due; found is false if there is no timer. It reads the first
// timer of each shard, at snapshot. (The turn has read only that of shard 0, because a turn that finds a group needs no
// others.)
//
// In a queue with retroactive delay, timers with the time of an enqueue are in further ranges. While there are such
// timers the handle looks again after followAge at the latest, because the delay may become shorter.
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

// dueAt returns when (ms) the handle must look at the timer with this key: when the timer is due. A timer with the time
// of an enqueue is due when the queue's delay is over, and the delay may change: then the time is at most followAge
// ahead. A key that does not have the form of a timer's counts as due after followAge. delay is the queue's delay, as
// the timers have it (config.go).
func (w *txn) dueAt(key []byte, delay retro) int64 {
	p, err := w.keys.parse(key)
	if w.skipsRow(err) {
		// A key that leads nowhere hides the first timer behind it: look again before long.
		p.index = w.nowMS + followAge.Milliseconds()
	}
	at := delay.dueOf(p.index)
	if p.index >= sinceBase {
		at = min(at, w.nowMS+followAge.Milliseconds())
	}
	return at
}

// stopStaging ends the waiting line of a handle that is closed. It clears the handle's requests, returns the groups
// granted to it (withdraw), and clears its wake key. The pipeline must be closed, so that no receive waits. Another
// handle's transaction in flight may write the wake key again; the next sweep clears it.
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
	for {
		index, _ := q.staging.requested()
		if index == 0 && !q.staging.hasWants() {
			break
		}
		if err := q.withdraw(ctx, index); err != nil {
			return err
		}
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

// Paths has counts since the handle was opened: how its receives have got their claims, and how its transactions have
// gone.
type Paths struct {
	Direct    int64 // claims of receives whose transaction had no conflict
	Widened   int64 // claims of receives whose transaction had a conflict before
	Staged    int64 // claims of receives that have waited
	Granted   int64 // groups granted to other handles
	Looks     int64 // looks of waiting receives that found nothing
	Conflicts int64 // attempts of this handle's shared transactions which failed with a conflict
	Shared    int64 // transactions of the handle's operations
	Together  int64 // operations in these transactions; Together / Shared share one on average
	Queued    int64 // operations now waiting for the next transaction
	// Unreadable is how often the handle has met a row that cannot be read, and has continued without it. Examples: a
	// hint, a timer, a request, a change, a counter, a receipt. Check names the rows. A Purge with Force, or a Sweep,
	// clears hints, timers and requests.
	Unreadable int64
	// Waiting is how long the database has kept a transaction of the handle waiting; 0 = none waits. Such a transaction
	// has failed for a second, or has had no answer for five. If there are several, Waiting is the longest time.
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

// pathCounts are the counters behind Paths.
type pathCounts struct{ direct, widened, staged, granted, looks, conflicts, shared, together atomic.Int64 }

// count adds a shared transaction that was applied, with its operations and their claims. conflicts is how many
// conflicts the operations have lost.
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

// A transaction that makes a group ready wakes one handle. This handle may be clearing its request at that moment. Then
// the wake reaches no receive, and another handle that waits would find the group only by its poll. Example: two
// enqueues wake handle A at the same time. A needs one group and clears its request. B waits, and gets no wake for the
// second group. So after clearing a request a handle remembers the count of its wake key, for the longest time that a
// transaction can last. If a wake comes in that time, the handle passes it on.
//
// The transaction that clears the request reads the count at snapshot, and sets no watch. Otherwise it would conflict
// with each wake, and under a steady load of enqueues a handle could never clear its request. A later transaction,
// which only reads, compares the count and sets the watch.
//
// If the process dies or the handle is closed, the wake is lost. Then a poll finds the group, as after any lost wake.

// goneFor has the requests that a handle has cleared a short while ago, or that a commit of unknown outcome may have
// left. A wake of the handle may still be meant for them.
type goneFor struct {
	// any: the request for any group is among them. wants are those for lanes and by templates.
	any   bool
	wants map[want]bool
	until time.Time // after this time no wake counts as one for these requests
	// wakes is the value of the wake key at the handle's last look. If requests are added, the older value stays. nil =
	// the key had no value, or was not read (mayBeLeft): then any value counts as a wake.
	wakes []byte
}

// mayBeLeft notes that a commit of unknown outcome may have left a request for any group. If no receive of the handle
// waits, the handle passes on the wakes of the request, and the first of them leads to its withdrawal. mayBeLeft
// changes memory only.
func mayBeLeft(q *Queue) {
	left := goneFor{any: true, wants: make(map[want]bool), until: time.Now().Add(requestLife)}
	q.staging.set(staged{past: &left})
}

// noteCleared stores in outcome the requests that this transaction clears, with the present value of the handle's wake
// key, read at snapshot. any: the request for any group is among them.
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

// rememberWakes reads the handle's wake key, at snapshot, and stores its value in past.
func rememberWakes(w *txn, past *goneFor) (err error) {
	if past.wakes, err = w.tx.Snapshot().Get(w.keys.wake(w.q.waitID)).Wait(w.ctx); err != nil {
		return fmt.Errorf("read wake key: %w", err)
	}
	return nil
}

// noteGone adds the requests that a transaction has cleared to s.past. If the transaction was a turn that found nothing
// and set a watch, noteGone removes the requests that the handle has again: the watch serves them. The caller must hold
// mu, and must have stored index and wants before.
func (s *staging) noteGone(o staged) {
	switch {
	case o.past == nil:
	case s.past == nil:
		s.past = o.past
	default: // past keeps the older count, so that no wake since then is missed, and the later end
		s.past.any = s.past.any || o.past.any
		if s.past.until.Before(o.past.until) {
			s.past.until = o.past.until
		}
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

// waitsSince returns how long ago the handle has last written a new request; many years if it has written none.
func (s *staging) waitsSince() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.began)
}

// goneLeft returns for how long the handle must still pass on wakes for the requests in s.past; 0 = there are none. It
// is line.Env.Gone.
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

// takeGone returns s.past and sets it to nil.
func (s *staging) takeGone() *goneFor {
	s.mu.Lock()
	defer s.mu.Unlock()
	past := s.past
	s.past = nil
	return past
}

// lookGone reports whether the handle's wake key has another value than s.past.wakes, the one that the handle has in
// memory. Then a wake came for a request that the handle no longer has. The caller must pass it on (passWakeOn), which
// also puts the new value into memory. Otherwise lookGone sets a watch on the key; r has it. It reads the key at
// snapshot, in a transaction of its own. If s.past is nil, it reads nothing, and r has no watch. lookGone is
// line.Env.LookGone.
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

// passWakeOn passes on a wake that has come for the requests in s.past: it wakes the next handles that wait for the
// groups and lanes of these requests (wakeFor), and stores the present value of the handle's wake key. After an error
// s.past is gone: then a poll finds the group.
//
// If the handle should have no request but the database has one, a commit of unknown outcome has left it. passWakeOn
// clears this request, or withdraws it if it is for any group, because the handle would wake itself by it again and
// again.
func (q *Queue) passWakeOn(ctx context.Context) error {
	past := q.staging.takeGone()
	if past == nil {
		return nil
	}
	// The lanes of the default group stand for those of any group. A request for any group, or by a template, is woken
	// by every group.
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
	var left int64 // the index of a request that a commit of unknown outcome has left
	var err error
	for n, page := range slices.Collect(slices.Chunk(sought, clearedTogether)) {
		found := leftOver{of: q.waitID}
		err = q.wakeFor(ctx, page, func(w *txn) error {
			found.index = 0 // of a failed attempt
			if index, _ := q.staging.requested(); alone && index == 0 && !q.staging.hasWants() {
				w.wakes.leftOver = &found
			}
			if n > 0 {
				return nil // a wake since the first page may be for a lane of that page
			}
			return rememberWakes(w, past)
		})
		if left = max(left, found.index); err != nil {
			break
		}
	}
	if alone {
		q.staging.release()
	}
	if err != nil {
		return err
	}
	q.staging.set(staged{past: past})
	if left != 0 {
		return q.withdraw(ctx, left)
	}
	return nil
}
