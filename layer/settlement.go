package layer

import (
	"bytes"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// settlement is an ack, an advance, a nack, an extend, or the holder's change of the state. Each attempt of the
// transaction runs the steps begin, apply and finish, and last advancing.conclude. A transaction with several
// settlements of different lanes runs one step of all of them, then the next step of all. So their reads overlap.
// Settlements of one lane run one after the other. To ack an item is to finish it.
//
// The claim may be of a whole group, of a lane of the group (the items that agree with a template), or of a single item
// (a hold). Each of them has a lock: lane is its name, see package lanes. The comments say "group" for all three.
type settlement struct {
	claim *Claim // from checkClaim on a copy of the caller's
	lane  string // the name of the group, lane or hold that the claim has; set by checkClaim
	ids   []ID   // to ack or to advance
	all   bool   // every item of the claim is acked or advanced; ids must be among them
	items []ID   // ids, or all items of the claim as checkClaim has found them

	extend  *extension   // nil = the end of the lease does not change; not with the fields below
	back    *givingBack  // nil = the claim keeps the items that are not acked or advanced
	advance *advancing   // nil = the items of ids, or all, are acked
	state   *stateChange // nil = the group's state stays
	archive archiving    // copies the acked items into the archive, if the queue has one

	run  settling    // the state of the attempt under way
	done atomic.Bool // committed, as far as the handle knows
}

// settling is the state of a settlement in one attempt of its transaction.
type settling struct {
	lock   kv.Future[[]byte]
	held   *rec.Record       // the value of the lock; set once the claim's token is found in it
	moved  []rec.Item        // the items that are advanced
	acked  []rec.Item        // the items that are acked
	left   []rec.Item        // the items of the claim that are neither, also those that are given back
	ahead  kv.Future[[]byte] // the key behind the first len(claim.Items) items, read before the acked are known
	leads  bool              // all items are acked, and are the first of the group: see ledBy
	next   kv.Future[[]byte] // key of the group's first item afterwards, if all items of the claim are finished
	tried  *recordsRead      // the attempts from the first item on that is given back, if the claim ends; else nil
	result settlementResult  // for the caller
}

// settlementResult is what the caller learns of a settlement.
type settlementResult struct {
	Settled
	ends time.Time // of an extend: Until by the monotonic clock
}

// A part of a settlement is something that it may do in addition to its ack. Example: the acked items go into the
// archive. A part has a file of its own and up to four methods, which do nothing if the settlement is without the part:
//
//   - begin removes the results of the attempt before, and starts reads together with the read of the lock.
//   - check reads, and may refuse the settlement. It runs after the check of the token, and must write nothing.
//   - write writes, after the removal of the acked items.
//   - conclude reads and writes. It runs after finish has run for all claims that are settled together.

// keeps reports whether the settlement changes no item: it is an extend, or only changes the state.
func (s *settlement) keeps() bool { return s.extend != nil || s.state != nil && s.state.alone }

// returned must be called when the call of the settlement returns. It waits until Settlement.Change does not run, and
// prevents later calls of Change. s may be nil.
func (s *settlement) returned() {
	if s != nil && s.advance != nil {
		s.advance.lent.end()
	}
}

// checkClaim checks the claim to settle, and sets lane and items. It reads no keys. ErrClaimLost means that the claim
// is of another queue, or is of a single item in a queue without such claims. ErrOptions means that the claim cannot be
// settled so, or has a template of no view (*TemplateError).
//
// From here on the settlement uses a copy of the claim. The copy shares the array of Items with the caller, and the
// caller may change the array while a transaction still runs. So a transaction must use only the length of claim.Items,
// and take ids from s.items.
func (s *settlement) checkClaim(q *Queue) (err error) {
	if s.claim == nil {
		return fmt.Errorf("%w: no claim", ErrOptions)
	}
	s.claim = s.claim.snapshot()
	s.claim.Where = maps.Clone(s.claim.Where)
	if s.items = s.ids; s.all {
		s.items = itemIDs(s.claim.Items)
	}
	if s.state != nil && (s.claim.Where != nil || s.claim.Hold != (ID{})) {
		return errLaneState
	}
	if s.advance != nil && s.claim.Hold != (ID{}) {
		return fmt.Errorf("%w: an item under a claim of its own is not advanced", ErrOptions)
	}
	if !s.claim.of(q) {
		return s.lost(q, nil)
	}
	s.lane, err = s.claim.lane(q)
	return err
}

// of reports whether the claim may be of queue q: it names q, or no queue. The token alone does not tell, because two
// queues may have equal tokens.
func (c *Claim) of(q *Queue) bool { return c.Queue == "" || c.Queue == q.name }

// lost returns the ErrClaimLost for a claim that is not in r, the record of its lock. Its text tells the present
// holder. r is nil if there is no lock, or if the present holder is not known.
func (s *settlement) lost(q *Queue, r *rec.Record) error {
	what, held := s.claim.words()
	now := "nobody holds " + held + ": the claim has ended" + s.claim.missing(q)
	if c := r.Claim(); c != nil {
		now = fmt.Sprintf("%s is held under token %d, by %q", held, c.Token, c.Owner)
	}
	if !s.claim.of(q) {
		now = fmt.Sprintf("the claim is of queue %q", s.claim.Queue)
	}
	return fmt.Errorf("%w: %s, token %d: %s", ErrClaimLost, what, s.claim.Token, now)
}

// begin starts the reads of the settlement: the lock, with a conflict, and the reads of the parts. If the settlement
// acks all n items of a group or lane, begin also reads the key behind the lane's first n items, at snapshot: see
// ledBy. begin forgets the results of an earlier attempt.
func (s *settlement) begin(w *txn) {
	s.run = settling{lock: guard.SettleLock.Get(w.tx, w.keys.lock(s.lane))}
	s.advance.begin(w, s)
	s.archive.begin(w, s)
	if n := len(s.claim.Items); n > 0 && s.all && s.advance == nil && !lanes.IsHold(s.lane) {
		behind := kv.FirstGreaterOrEqual(w.keys.items(s.lane).Begin)
		behind.Offset += n
		s.run.ahead = w.read.GetKey(behind)
	}
}

// apply compares the claim's token with that of the lock, and then does the first writes: those of extension.carryOut,
// of stateChange.keep, or of take. ErrClaimLost means that the lock has no claim, or one with another token. After an
// error that is not the engine's nothing was written. If the lease has expired and no other claim has taken the group
// over, the lock still has the token, so the claim is still valid.
func (s *settlement) apply(w *txn) error {
	r, err := w.waitLock(s.lane, s.run.lock)
	if err != nil {
		return err
	}
	c := r.Claim()
	if c == nil || c.Token != s.claim.Token || !s.claim.of(w.q) {
		return s.lost(w.q, r)
	}
	s.run.held = r
	switch {
	case s.extend != nil:
		return s.extend.carryOut(w, s)
	case s.keeps():
		return s.state.keep(w, s.claim.Group)
	}
	return s.take(w, c)
}

// take removes the settled items from the claim c, and ends the claim if no item stays in it. It clears the keys of the
// acked items (see remove) and the attempts of the advanced ones, and lets each part write. If items stay, take
// rewrites the lock with them. If the claim ends without a nack, take clears the lock with its timer, or leaves the
// mark in it; put has the keys that change with the lock. Last it starts the read for finish: the next item's key, or
// the attempts of the item that a nack counts against.
//
// ErrNotInClaim means that one of the items to settle is not in the claim. The other errors are those of the parts'
// checks. After an error that is not the engine's nothing was written.
func (s *settlement) take(w *txn, c *rec.Holding) (err error) {
	group, run := s.claim.Group, &s.run
	if run.acked, run.left, err = divide(c, group, s.ids, s.all); err != nil {
		return err
	}
	stays := len(run.left)
	if s.back != nil {
		if stays, err = s.back.stay(run.left, group); err != nil {
			return err
		}
	}
	if err := s.advance.check(w, s); err != nil { // the first, because it takes the advanced items out of the acked
		return err
	}
	if err := s.archive.check(w, s); err != nil {
		return err
	}
	if run.leads, err = s.ledBy(w); err != nil {
		return err
	}
	w.clearAttempts(group, c.Items, run.moved) // remove clears those of the acked items
	if err := s.remove(w, c.Items); err != nil {
		return err
	}
	w.count(countAcked, len(run.acked))
	w.changeAll(ChangeFinished, group, run.acked)
	w.count(countReturned, -len(run.acked)) // put counts every item that leaves the claim as returned, also the acked
	s.advance.write(w, s)
	s.archive.write(w, s)
	s.state.write(w, s)
	if stays > 0 {
		w.put(s.lane, run.held, run.held.WithItems(run.left[:stays], c.EndMS), 0)
		return nil
	}
	w.ended(s.lane)
	if len(run.left) > 0 {
		run.tried = readRecords(&w.view, idOf(run.left[0], group))
		return nil
	}
	// An acked hold has no next item; put has noted the group if it needs a hint now.
	if w.end(s.lane, run.held, run.held.Mark()) && !lanes.IsHold(s.lane) {
		s.readNext(w)
	}
	return nil
}

// ledBy reports whether all items of the claim are acked, and are the first n items of the group. This holds if ahead,
// the key of item n + 1, is greater than the key of each acked item. (All acked items exist, because only the holder
// may remove items of a claim.) Example: 1 and 3 are acked, and 2 was enqueued late. Then ahead is the key of 3, and
// the result is false.
func (s *settlement) ledBy(w *txn) (bool, error) {
	acked := s.run.acked
	if s.run.ahead == nil || len(acked) == 0 || len(acked) != len(s.claim.Items) {
		return false, nil
	}
	k, err := s.run.ahead.Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read head: %w", err)
	}
	last := w.keys.laneItem(s.lane, idOf(acked[len(acked)-1], s.claim.Group))
	return !w.keys.items(s.lane).Contains(k) || bytes.Compare(k, last) > 0, nil
}

// remove clears the acked items (item) with the parts of their bodies (part), their attempts (attempt) and their keys
// in other lanes (lane). The parts of archived items stay. all are the items of the claim, acked or not: they say which
// of these rows an acked item has.
//
// remove clears an item by its exact key. If several acked items are the first of the group, and the queue's items have
// no keys in other lanes (CountParts), it clears one range instead. No other item lies inside. But an item whose
// enqueue commits late may have an index inside, so remove adds a read conflict on the range.
func (s *settlement) remove(w *txn, all []rec.Item) error {
	group, acked, archived := s.claim.Group, s.run.acked, s.archive.kept
	if !s.run.leads || len(acked) < 2 || w.keys.plan.CountParts() > 0 {
		w.remove(s.lane, all, acked, archived)
		return nil
	}
	first, last := idOf(acked[0], group), idOf(acked[len(acked)-1], group)
	items := kv.KeyRange{Begin: w.keys.item(first), End: w.keys.after(w.keys.item(last))}
	// The conflict comes first: a read leaves out of its conflict the keys that its own transaction has cleared.
	if err := guard.RangeClear.Read(w.tx, items); err != nil {
		return err
	}
	w.tx.ClearRange(items)
	w.clearRest(group, all, acked, archived)
	return nil
}

// readNext starts reading the key of the group's first item after the acked ones. If these were the first of the group,
// ahead is this key, and no read is needed.
func (s *settlement) readNext(w *txn) {
	if s.run.leads {
		s.run.next = s.run.ahead
	} else {
		s.run.next = w.head(s.lane)
	}
}

// finish does the writes that wait for reads of apply. If apply has ended the claim and the group has no mark, it calls
// leave, but not for a hold. If a nack ends the claim, it calls givingBack.carryOut, which also writes the lock.
// Otherwise it does nothing.
func (s *settlement) finish(w *txn) error {
	switch {
	case s.run.next != nil:
		return s.leave(w, s.run.next)
	case s.run.tried != nil:
		return s.back.carryOut(w, s)
	}
	return nil
}

// leave calls txn.leave for the lane that the settlement has set free. txn.leave writes a hint (ready or open) or, if
// the lane has no item, adds a read conflict on the range of its items. So the settlement runs again if an item is
// enqueued at the same time. For a hold, letGo has the keys instead. next is the read of the lane's first key. If next
// is nil, txn.leave reads the key. If the first item may be suspect, it also reads the attempts, for the hint.
func (s *settlement) leave(w *txn, next kv.Future[[]byte]) error {
	_, _, err := w.leave(s.lane, next, guard.ReleaseEmpty, leadsSuspects(s))
	return err
}

// leadsSuspects reports whether items behind those of the claim may be suspect. An item is suspect if the lease of a
// claim on it has expired: it may kill its process, see Receive. Then the hint must lead the next receive to the
// attempt records. The result is also true for a claim that another process has received (ends is zero), because this
// process does not know.
func leadsSuspects(s *settlement) bool {
	return s.run.held.LeadsSuspects() || s.claim.failed || s.claim.ends.IsZero()
}
