package layer

import (
	"context"
	"errors"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/line"
)

// advise begins the advice (advised) for a transaction of these operations: the guesses of the handle from its earlier
// transactions. It may take over the wake that the handle owes. So the caller must call attempt for each attempt, and
// end with the outcome. Last it must call Land on the flight, the list of lanes that no other transaction of the handle
// claims at the same time. The third argument is how many groups the handle's other transactions in flight are likely
// to take. advise touches memory only.
func advise(q *Queue, batch []*operation, beside int) advised {
	n := &q.noticed
	return advised{
		flight: n.flights.Begin(), booked: n.portions.Begin(), kept: keepFor(&n.keeping, batch),
		own: &ownChanges{owns: &q.owns}, beside: beside,
	}
}

// keepFor returns the transaction's part in keeping groups. A handle that acks and at once receives again keeps the
// group: its ack does not wake another handle but owes the wake, and its next receive claims the group or pays the wake
// (advice.Keeping). A transaction of a single ack may owe a wake, but only in a queue in which each group is one lane
// (wakeOldest). A transaction with receives of any group takes over the wake that is owed. Any other transaction has no
// part in this.
func keepFor(k *advice.Keeping, batch []*operation) *advice.Keep {
	if len(batch) == 1 && batch[0].acksAlone() {
		return k.Acks()
	}
	receives, mayWait := false, true
	for _, o := range batch {
		any := o.receivesAny()
		receives = receives || any
		mayWait = mayWait && o.Waits && o.settle == nil && any
	}
	if !receives {
		return &advice.Keep{}
	}
	return k.Receives(mayWait)
}

// acksAlone reports whether the operation acks or advances items of a group under a claim, and is no receive, enqueue
// or nack. It may also set the group's state.
func (o *operation) acksAlone() bool {
	s := o.settle
	if s == nil || o.receive != nil || o.enqueue != nil {
		return false
	}
	return s.back == nil && !s.keeps() && !lanes.IsHold(s.lane)
}

// receivesAny reports whether the operation has a receive from any whole group, and the waiting line has given this
// receive no turn yet.
func (o *operation) receivesAny() bool {
	r := o.receive
	return r != nil && o.Turn == nil && r.o.Group == nil && r.where == ""
}

// standBack makes the receives of the batch stand back: the pipeline puts them into the waiting line without a
// transaction, because they have got nothing. Their first turn (a transaction for waiting receives) comes after aWhile,
// the time of a few transactions. So a handle that has just been woken claims first. All operations must be receives
// that may wait.
func standBack(batch []*operation, aWhile time.Duration) {
	for _, o := range batch {
		o.receive.begin()
		o.StandsBack, o.Cue = aWhile, line.Cue{Back: true}
	}
}

// payWake wakes a handle that waits for a lane that an ack has left ready, in a transaction of its own. It is the
// payment of a wake that is owed.
func (q *Queue) payWake(ctx context.Context, lane string) error {
	return q.wakeFor(ctx, []string{lane}, nil)
}

// wakeFor wakes handles that wait for one of the lanes in sought, in a transaction of its own: it reads the oldest
// requests at snapshot and touches wake keys, as a transaction does that leaves the lanes ready (txn.finish has the
// keys). sought must not be empty. If the function with is not nil, each attempt of the transaction calls it before
// that. wakeFor returns nil if the queue is gone.
func (q *Queue) wakeFor(ctx context.Context, sought []string, with func(w *txn) error) error {
	ctx = q.named(ctx, "wake for %q by %s", lanes.GroupOf(sought[0]), q.opts.Owner)
	q.yield(ctx, "begin")
	_, err := kv.Run(ctx, q.db, txFor(q, "wake"), func(tx kv.Tx, _ kv.Attempt) error {
		w := q.txn(ctx, tx)
		for _, lane := range sought {
			w.leftReady(lane)
		}
		if with != nil {
			if err := with(w); err != nil {
				return err
			}
		}
		return w.finish()
	})
	if errors.Is(err, ErrNoQueue) {
		return nil
	}
	return err
}

// meetOwed settles the wake that the handle owes, if any (see keepFor), after the receives rs of a transaction have
// claimed. looked: the receives have searched for groups. There are three cases. If a receive has claimed the owed
// lane, the wake is not needed. If the search has found nothing at all, another handle has claimed the lane, and the
// wake is not needed either. But an empty search proves nothing while the queue is paused or its rate is used up. Then,
// and in every other case, this transaction wakes a handle: see leftReady.
func (w *txn) meetOwed(rs []*reception, looked bool) error {
	owed := w.along.kept.Owed()
	if owed == "" {
		return nil
	}
	nothing := looked && w.shortMS == 0
	for _, r := range rs {
		nothing = nothing && len(r.claims) == 0 && !r.more && r.broken == nil
		for _, c := range r.claims {
			if r.lane(c) == owed {
				w.along.kept.Met()
				return nil
			}
		}
	}
	if nothing {
		paused, err := w.paused()
		if err != nil || !paused {
			return err
		}
	}
	w.leftReady(owed)
	return nil
}

// A poll may find a group that another handle is about to receive again: between the other's ack and the next receive
// the group is ready for one round trip (see advice.Keeping). A claim of the group makes one of the two transactions
// fail. So a poll remembers the hints, and looks again after four transaction times (line.Pipeline.AWhile). If a hint
// is still there, the other handle has abandoned the group, and this handle claims it. The key of a hint has the index
// of the group's first item. So if the other handle has received and acked that item, the hint is another one: then
// this handle leaves the group alone.

// leaveAlone reports whether this transaction must leave the hints that its search has found, because another handle
// may be about to receive the groups again. It then stores the hints in the cue of the turn, or of the receive that is
// about to wait, and the next look claims those that are still there. waiting are the operations whose receives may
// wait. conflicts is how many conflicts they have lost.
//
// It can be true in three cases: for a turn that a poll has started, for a receive that has just lost a conflict, and
// for a turn of receives that have just come into the line, if they have stood back or the handle has lost a conflict
// lately. It is false if a hint was there at the last look (Cue.Seen), or if the search has found nothing, more hints
// than the receives want, or a due timer. It is false if there is a grant to this handle, or the handle owes a wake. It
// is also false unless each group is one lane, and all operations are receives of any group without a receive id.
// leaveAlone reads hints, timers and grants at snapshot, and writes nothing.
func (w *txn) leaveAlone(claimers []*claimer, waiting []*operation, conflicts int) (alone bool, err error) {
	if !w.q.keys.plan.IsPlain() || len(claimers) != 1 || w.along.kept.Owed() != "" {
		return false, nil
	}
	c, first := claimers[0], waiting[0]
	at := &first.Cue
	if first.Turn != nil {
		at = &first.Turn.Cue
	}
	switch {
	case first.Turn == nil:
		if *at = (line.Cue{Again: conflicts > 0}); conflicts == 0 {
			return false, nil
		}
	case at.Why == line.WhyWoken, at.Why == line.WhyNew && !first.Cue.Back && !w.q.spreadOf("").Contended():
		return false, nil
	case at.Why == line.WhyNew:
		at.Seen, at.Again = first.Cue.Fresh, first.Cue.Again
	}
	other := func(o *operation) bool {
		return o.settle != nil || o.receive.o.Group != nil || o.receive.o.ReceiveID != ""
	}
	if slices.ContainsFunc(waiting, other) {
		return false, nil
	}
	if c.granted != nil {
		if rows, err := c.granted.Wait(c.ctx); err != nil || len(rows) > 0 {
			return false, err
		}
	}
	n, _ := c.wanted()
	if err := c.search.find(n); err != nil {
		return false, err
	}
	found := c.search.pending
	if len(found) == 0 || len(found) > n {
		return false, nil // nothing, or plenty
	}
	fresh := make(map[string]bool, len(found))
	for _, l := range found {
		if l.timer || l.head || at.Seen[string(l.key)] {
			return false, nil
		}
		fresh[string(l.key)] = true
	}
	at.Fresh = fresh
	return true, nil
}

// lookAgain is for a turn that has left hints alone (leaveAlone), or hints of groups that another transaction of the
// handle is about to claim. It makes the next look come after aWhile. r is the turn's rest, and at is its cue. The next
// look gets the hints that leaveAlone has left (Seen), unless the rest ends at a known time. Of two such turns in a row
// only the first has an early next look.
func lookAgain(r *line.Rest, at line.Cue, aWhile time.Duration) {
	if r.Next.Why != line.WhyWoken {
		r.Next = line.Cue{Why: line.WhyPoll, Seen: at.Fresh, Again: !at.Again}
	}
	if !at.Again {
		r.Wait = min(r.Wait, aWhile)
	}
}

// lookSoon returns the time until the handle looks again without a wake; 0 = at the poll. turns and receives are those
// of the turn that has just found nothing. lookSoon reads no key.
//
// A transaction that makes a group ready reads the requests, and may commit after the handle has looked. Example: an
// enqueue reads the requests at version 10, the handle writes its request at 11 and finds nothing at 12, the enqueue
// commits at 13. No transaction touches the wake key. The handle therefore looks again for enqueues that were in flight
// when it wrote the request. It does so after the time of a transaction, then twice as late, and so on until the poll.
// So a message that comes d after the request waits at most d, or the time of a transaction, and enqueues have no
// conflict with waiting handles.
//
// A handle behind another in the line counts from the other's request, because an enqueue that has seen the other's
// request wakes the other. A handle further behind looks less often, because the turns of the handles before serve all.
//
// began: the transaction itself writes the request, so the handle must look after the time of a transaction. Example:
// handle 1 waits behind handle 2. Handle 2 gives a group back before the request of handle 1 is there, and then waits
// for another group by name. It knows of no handle to wake.
func (w *txn) lookSoon(turns []*turning, receives []*reception, began bool) (time.Duration, error) {
	q := w.q
	if q.opts.Test.NoLooks {
		return 0, nil
	}
	since := time.Duration(0)
	if !began {
		age, err := w.ageOfOldest(turns, receives)
		if err != nil {
			return 0, err
		}
		since = max(age, q.staging.waitsSince())
	}
	if since >= transactionLife {
		return 0, nil
	}
	soon := max(since, q.pipeline.AWhile()/4)
	if anyGroupAlone(turns, receives) {
		soon += soon * time.Duration(w.before(turns[0])) / pollPlaces
	}
	return soon, nil
}

// ageOfOldest returns how long ago the oldest request that wants groups was written. It returns 0 if there is no such
// request, if the handle's own request comes first, or if not all receives of this turn take any group. The age is a
// guess by the versions since, which grow by about versionsPerMS. ageOfOldest uses the requests that the turn has read.
func (w *txn) ageOfOldest(turns []*turning, receives []*reception) (age time.Duration, err error) {
	if !anyGroupAlone(turns, receives) {
		return 0, nil
	}
	for _, row := range turns[0].rows {
		p, wants, err := w.wanting(row)
		if w.skipsRow(err) {
			continue
		}
		if p.id == w.q.waitID {
			return 0, nil
		}
		if wants == 0 {
			continue
		}
		now, err := w.clock()
		return time.Duration(now-p.index) * time.Millisecond / versionsPerMS, err
	}
	return 0, nil
}

// anyGroupAlone reports whether the turn is of receives which all take any group.
func anyGroupAlone(turns []*turning, receives []*reception) bool {
	named := func(r *reception) bool { return r.o.Group != nil }
	return len(turns) == 1 && turns[0].where == "" && !slices.ContainsFunc(receives, named)
}

// pollPlaces is how many requests before a handle's own double the time between its polls.
const pollPlaces = 4

// noteLostWake notes in memory that a turn started by a poll has claimed a group, of which no wake has told the handle.
// The handles before it in the line may be dead, so for requestLife the handle polls as often as the first (see
// pollOf).
func (w *txn) noteLostWake(t *line.Turn, receives []*reception) {
	served := func(r *reception) bool { return len(r.claims) > 0 }
	if t.Cue.Why == line.WhyPoll && slices.ContainsFunc(receives, served) {
		w.q.staging.lostUntil.Store(w.nowMS + requestLife.Milliseconds())
	}
}

// pollOf returns the time until the next poll, a turn that no wake has started: Options.Poll, changed at random by up
// to a quarter. If all receives of the turn take any group, and none has OnlyIfAny, a handle that is not the first in
// the line of requests polls less often, because the turns of the handles before it serve it, too: up to five times as
// rarely. If the first request is another than at the last look, the handles before are alive and served: up to 17
// times as rarely. If the handles before are dead, the first group claimed by a poll shows it (noteLostWake): from then
// on the handle polls as often as the first, until the requests of the dead have ended.
func (w *txn) pollOf(turns []*turning, receives []*reception) time.Duration {
	poll := w.q.opts.Poll
	poll = poll*3/4 + time.Duration(w.q.random.Float()*float64(poll)/2)
	if slices.ContainsFunc(receives, func(r *reception) bool { return r.o.OnlyIfAny }) {
		return min(poll, w.q.opts.Poll) // no handle before tells it that there is no message left
	}
	// If much more is left, the clock was set back.
	if left := w.q.staging.lostUntil.Load() - w.nowMS; left > 0 && left <= requestLife.Milliseconds() {
		return poll
	}
	if !anyGroupAlone(turns, receives) {
		return poll
	}
	before := w.before(turns[0])
	places := time.Duration(before)
	if w.q.staging.moved(turns[0].rows) && before > pollPlaces {
		return poll + poll*places*places/(pollPlaces*pollPlaces)
	}
	return poll + poll*places/pollPlaces
}

// before returns how many requests for any group come before the handle's own, among those that the turn has read: at
// most grantProbe.
func (w *txn) before(t *turning) int {
	if i := ownRow(w.q, t.rows); i >= 0 {
		return i
	}
	return len(t.rows)
}

// ownRow returns the place of the handle's own request among these; -1 = it is not there.
func ownRow(q *Queue, requests []kv.KV) int {
	return slices.IndexFunc(requests, func(row kv.KV) bool {
		p, err := q.keys.parse(row.Key)
		return err == nil && p.id == q.waitID
	})
}

// moved reports whether the first of these requests is another than at the last call. A wrong answer changes only the
// time of a poll.
func (s *staging) moved(rows []kv.KV) bool {
	if len(rows) == 0 {
		s.front.Store(nil)
		return false
	}
	first := string(rows[0].Key)
	before := s.front.Swap(&first)
	return before != nil && *before != first
}
