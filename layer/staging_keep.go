package layer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// A handle that acks and at once receives again keeps the group: the ack wakes nobody, because who is woken would race
// with the handle's own receive for the one group, and one of the two loses. The wake is then owed. The handle's next
// receive claims the group, or wakes in its own transaction; if no receive comes within keepGap, a transaction of the
// handle's own does. After keepMost acks in a row, or keepTime, an ack wakes, and the handle's next receive stands back
// behind the handle that was woken.
//
// If the process dies while it owes a wake, the group is found as after any wake that is lost: by a poll.

const (
	// keepGap is within what time a receive must have followed the last ack, and must follow this ack.
	keepGap = 20 * time.Millisecond
	// keepMost and keepTime bound how long a handle keeps a group from those that wait.
	keepMost = 32
	keepTime = time.Second
)

// keeping is what a handle knows of its acks and receives, and the wake it owes. Advice: no decision about who gets a
// group hangs on it.
type keeping struct {
	pay func(ctx context.Context, lane string) error // wakes; without effect on anything else

	mu      sync.Mutex
	ackedAt time.Time      // guarded by mu; when the last ack ended; zero = a receive has followed
	slow    bool           // guarded by mu: the last receive has not followed an ack at once
	since   time.Time      // guarded by mu; when the first of the wakes withheld in a row was
	kept    int            // guarded by mu; wakes withheld in a row
	back    bool           // guarded by mu: the next receive stands back
	owed    *owedWake      // guarded by mu; nil = none
	closed  bool           // guarded by mu
	paying  sync.WaitGroup // the timers' payments
}

// owedWake is the wake of a lane left ready.
type owedWake struct {
	lane  string
	timer *time.Timer
}

// keep is a transaction's part in the handle's keeping.
type keep struct {
	q              *Queue
	batch          []*operation
	acks, receives bool
	withholds      bool      // an ack's: the wake may be owed
	owed           *owedWake // taken over by a receive
	back           bool      // the receives stand back

	// Of the attempt under way.
	w    *txn
	owes string // the lane left ready whose wake is owed from now on; "" = none
}

// begin tells of a transaction of the operations which is about to begin.
func (k *keeping) begin(q *Queue, batch []*operation) *keep {
	now := &keep{q: q, batch: batch}
	if now.acks = len(batch) == 1 && batch[0].acksAlone(); !now.acks {
		now.back = true
		for _, o := range batch {
			now.receives = now.receives || o.receivesAny()
			now.back = now.back && o.waits && o.settle == nil && o.receivesAny()
		}
		if !now.receives {
			return now
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.acks {
		within := k.kept == 0 || k.kept < keepMost && time.Since(k.since) < keepTime
		now.withholds = !k.slow && k.owed == nil && !k.closed && (within || lacks(guardKeepBounds))
		return now
	}
	if !k.ackedAt.IsZero() {
		k.slow = time.Since(k.ackedAt) > keepGap
		k.ackedAt = time.Time{}
	}
	if now.owed = k.owed; now.owed != nil {
		now.owed.timer.Stop()
		k.owed = nil
	}
	now.back = now.back && k.back && now.owed == nil
	k.back = false
	return now
}

// acksAlone reports whether the operation acks items of a group under a claim, and nothing else.
func (o *operation) acksAlone() bool {
	s := o.settle
	if s == nil || o.receive != nil || o.enqueue != nil {
		return false
	}
	return s.back == nil && !s.extends && !s.keeps && !isHold(s.lane)
}

// receivesAny reports whether the operation is a receive from any whole group, and no turn of the waiting line.
func (o *operation) receivesAny() bool {
	r := o.receive
	return r != nil && o.turn == nil && r.o.Group == nil && r.where == "" && !r.o.Unordered
}

// enter prepares an attempt of the transaction.
func (now *keep) enter(w *txn) {
	if now.w, now.owes = w, ""; now.withholds {
		w.withhold = now.withhold
	}
	if now.owed != nil {
		w.owedLane = now.owed.lane
	}
}

// withhold owes the wake of the only lane that the transaction has left ready, if the oldest request that wants groups
// is another handle's.
func (now *keep) withhold(requests []kv.KV) (owes bool, err error) {
	w := now.w
	for _, row := range requests {
		id, wants, err := w.wanting(row)
		if err != nil {
			return false, err
		}
		if !wants {
			continue
		}
		if id == w.q.staging.random || len(w.ready) > 1 {
			return false, nil
		}
		for lane := range w.ready {
			now.owes = lane
		}
		return true, nil
	}
	return false, nil
}

// end tells of the outcome.
func (now *keep) end(err error) {
	if !now.acks && !now.receives {
		return
	}
	k := &now.q.staging.keeping
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case now.w == nil && now.owed == nil: // not begun
	case now.acks && (err == nil || unknown(err)):
		if k.ackedAt = time.Now(); now.owes != "" {
			if k.kept++; k.kept == 1 {
				k.since = k.ackedAt
			}
			k.owe(now.owes)
		} else if woke := now.w.woke; woke != uuid.Nil && woke != now.q.staging.random {
			k.kept, k.back = 0, !k.slow
		}
	case now.owed != nil && err != nil:
		k.owe(now.owed.lane)
	case now.owed != nil && now.w.owedLane != "":
		k.kept = 0 // another has the group, or was woken
	}
}

// standBack sends the receives into the waiting line without a transaction, if the handle has just woken another: their
// first turn comes after the time of a few transactions.
func (now *keep) standBack() bool {
	if !now.back {
		return false
	}
	for _, o := range now.batch {
		o.receive.begin()
		o.standsBack, o.cue = now.q.pipeline.aWhile(), cue{back: true}
	}
	return true
}

// owe notes a wake. mu is held.
func (k *keeping) owe(lane string) {
	if k.closed {
		return // a poll finds the group
	}
	if k.owed != nil {
		k.owed.timer.Stop()
	}
	o := &owedWake{lane: lane}
	k.owed = o
	o.timer = time.AfterFunc(keepGap, func() {
		k.mu.Lock()
		if k.owed != o {
			k.mu.Unlock()
			return
		}
		k.owed, k.slow, k.kept = nil, true, 0
		k.paying.Add(1)
		k.mu.Unlock()
		defer k.paying.Done()
		ctx, cancel := context.WithTimeout(context.Background(), keepTime)
		defer cancel()
		_ = k.pay(ctx, lane) // if it fails, a poll finds the group
	})
}

// close pays what is owed. No transaction of an ack is under way any more.
func (k *keeping) close(ctx context.Context) (err error) {
	k.mu.Lock()
	k.closed = true
	o := k.owed
	k.owed = nil
	k.mu.Unlock()
	if o != nil {
		o.timer.Stop()
		err = k.pay(ctx, o.lane)
	}
	k.paying.Wait()
	return err
}

// wakeFor wakes who waits for a lane that an ack has left ready.
func (q *Queue) wakeFor(ctx context.Context, lane string) error {
	if lacks(guardOwedWake) {
		return nil
	}
	ctx = q.named(ctx, "wake for %q by %s", groupOf(lane), q.opts.Owner)
	q.yield(ctx, "begin")
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		w := q.txn(ctx, tx)
		w.leftReady(lane)
		return w.finish()
	})
	if errors.Is(err, ErrNoQueue) {
		return nil
	}
	return err
}

// leftReady has finish wake who waits for a lane which an earlier transaction has left ready.
func (w *txn) leftReady(lane string) {
	if w.ready == nil {
		w.ready = make(map[string]bool)
	}
	w.ready[lane] = true
	w.readRequests()
}

// meetOwed is called after the receives of a transaction have claimed what they could. The wake that the handle owes is
// no longer needed if the lane was claimed, or if a look from the oldest hint on has found nothing, because then
// another has the lane. Otherwise the transaction wakes.
func (w *txn) meetOwed(rs []*reception, looked bool) error {
	if w.owedLane == "" {
		return nil
	}
	nothing := looked && w.shortMS == 0
	for _, r := range rs {
		nothing = nothing && len(r.claims) == 0 && !r.more && r.broken == nil
		for _, c := range r.claims {
			if r.lane(c) == w.owedLane {
				w.owedLane = ""
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
	w.leftReady(w.owedLane)
	return nil
}
