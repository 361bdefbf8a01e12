package advice

import (
	"context"
	"sync"
	"time"
)

// A handle that acks and at once receives again keeps the group. The ack wakes no other handle, because a woken handle
// would compete with the handle's own receive for the one group, and one of the two would lose. The handle then owes a
// wake. Its next receive claims the group, or wakes another handle in its own transaction. If no receive comes within
// KeepGap, the handle wakes another in a transaction of its own. After KeepMost acks in a row, or after KeepTime, an
// ack wakes at once, and the handle's next receive waits a little, so that the woken handle is first.
//
// If the process dies while it owes a wake, the group is found as after any wake that is lost: by a poll.

const (
	// KeepGap is the time within which a receive must have followed the last ack, and must follow this one.
	KeepGap = 20 * time.Millisecond
	// KeepMost and KeepTime bound how long a handle keeps a group from those that wait.
	KeepMost = 32
	KeepTime = time.Second
)

// Keeping is what a handle knows of its acks and receives, and the wake it owes.
type Keeping struct {
	// Pay wakes for a lane, without effect on anything else. Set before the first use.
	Pay func(ctx context.Context, lane string) error

	mu      sync.Mutex
	ackedAt time.Time      // guarded by mu; when the last ack ended; zero = a receive has followed
	slow    bool           // guarded by mu: the last receive has not followed an ack at once
	since   time.Time      // guarded by mu; when the first of the wakes withheld in a row was
	kept    int            // guarded by mu; wakes withheld in a row
	back    bool           // guarded by mu: the next receive stands back
	owed    *owedWake      // guarded by mu; nil = none
	closed  bool           // guarded by mu
	paying  sync.WaitGroup // payments under way
}

// owedWake is the wake of a lane left ready.
type owedWake struct {
	lane  string
	timer *time.Timer // after KeepGap it pays the wake
}

// Keep is a transaction's part in the handle's keeping, over all its attempts. The zero value has none.
type Keep struct {
	of        *Keeping  // nil = there is no part
	acks      bool      // otherwise the transaction receives
	withholds bool      // an ack's: the wake may be owed
	owed      *owedWake // taken over by a receive
	back      bool      // the receives stand back

	// Of the attempt under way.
	owes string // the lane left ready whose wake is owed from now on; "" = none
	woke bool   // another handle was woken
	met  bool   // the owed wake is not needed any more: the handle has claimed the lane
}

// Acks returns the part of a transaction which acks items of one claim, and does nothing else. The part may owe a wake
// (Withholds), unless the handle owes one already, its last receive came late, or the bounds KeepMost and KeepTime are
// reached.
func (k *Keeping) Acks() *Keep {
	k.mu.Lock()
	defer k.mu.Unlock()
	within := k.kept == 0 || k.kept < KeepMost && time.Since(k.since) < KeepTime
	return &Keep{of: k, acks: true, withholds: !k.slow && k.owed == nil && !k.closed && within}
}

// Receives returns the part of a transaction with receives of any group. The part takes over the wake that the handle
// owes. mayWait: the transaction has nothing but these receives, and they all may wait. Then they may have to stand
// back (StandsBack).
func (k *Keeping) Receives(mayWait bool) *Keep {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := &Keep{of: k}
	if !k.ackedAt.IsZero() {
		k.slow = time.Since(k.ackedAt) > KeepGap
		k.ackedAt = time.Time{}
	}
	if now.owed = k.owed; now.owed != nil {
		now.owed.timer.Stop()
		k.owed = nil
	}
	now.back = mayWait && k.back && now.owed == nil
	k.back = false
	return now
}

// StandsBack reports whether the receives go into the waiting line without a transaction, because the handle has just
// woken another.
func (now *Keep) StandsBack() bool { return now.back }

// Attempt begins an attempt, and forgets the notes of the attempt before.
func (now *Keep) Attempt() { now.owes, now.woke, now.met = "", false, false }

// Withholds reports whether the transaction, an ack, may owe the wake of the only lane that it leaves ready, instead of
// waking another handle.
func (now *Keep) Withholds() bool { return now != nil && now.withholds }

// Owe notes the lane whose wake the handle owes from the commit on.
func (now *Keep) Owe(lane string) { now.owes = lane }

// Owed returns the lane whose wake an earlier transaction of the handle owes, and which this attempt must claim or wake
// for; "" = none.
func (now *Keep) Owed() string {
	if now == nil || now.owed == nil || now.met {
		return ""
	}
	return now.owed.lane
}

// Met notes that the attempt has claimed the owed lane.
func (now *Keep) Met() { now.met = true }

// Woke notes which handle the attempt has woken last: another handle (true), or this handle itself.
func (now *Keep) Woke(another bool) {
	if now != nil {
		now.woke = another
	}
}

// End notes the outcome of the transaction. After an ack that may have been applied, the handle owes the wake that the
// ack withheld. If the ack woke another handle instead, the next receive stands back, unless the last receive came
// late. If a receive that took over a wake failed, or its outcome is unknown, the handle owes the wake again.
func (now *Keep) End(o Outcome) {
	k := now.of
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case now.acks && o != Failed:
		if k.ackedAt = time.Now(); now.owes != "" {
			if k.kept++; k.kept == 1 {
				k.since = k.ackedAt
			}
			k.owe(now.owes)
		} else if now.woke {
			k.kept, k.back = 0, !k.slow
		}
	case now.owed != nil && o != Applied: // perhaps nothing was claimed, and no other handle woken
		k.owe(now.owed.lane)
	case now.owed != nil && !now.met:
		k.kept = 0 // another has the group, or was woken
	}
}

// owe notes that the handle owes the wake of a lane, and sets the timer that pays it. If the handle owes the wake of
// another lane already, owe pays that one at once. mu is held.
func (k *Keeping) owe(lane string) {
	if k.closed {
		return // a poll finds the group
	}
	if k.owed != nil {
		k.owed.timer.Stop()
		if k.owed.lane != lane { // two acks that were under way at once have both withheld a wake
			k.pay(k.owed.lane)
		}
	}
	o := &owedWake{lane: lane}
	k.owed = o
	o.timer = time.AfterFunc(KeepGap, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.owed == o {
			k.owed, k.slow, k.kept = nil, true, 0
			k.pay(lane)
		}
	})
}

// pay pays the wake of a lane in a goroutine of its own. mu is held.
func (k *Keeping) pay(lane string) {
	k.paying.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), KeepTime)
		defer cancel()
		_ = k.Pay(ctx, lane) // if it fails, a poll finds the group
	})
}

// Close pays the wake that the handle owes, if any, and waits for payments under way. The caller must have ended all
// transactions that ack. The error is Pay's.
func (k *Keeping) Close(ctx context.Context) (err error) {
	k.mu.Lock()
	k.closed = true
	o := k.owed
	k.owed = nil
	k.mu.Unlock()
	if o != nil {
		o.timer.Stop()
		err = k.Pay(ctx, o.lane)
	}
	k.paying.Wait()
	return err
}
