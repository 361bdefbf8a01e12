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

// settlement is an ack, an advance, a nack, an extend, or the holder's change of the state. Each attempt runs begin,
// check, finish and conclude. All settlements of a transaction run a step before any runs the next, so that their reads
// overlap.
type settlement struct {
	claim *Claim // a copy
	lane  string // of the claim
	ids   []ID   // to ack or to advance
	all   bool   // every outstanding item is acked or advanced, and ids, named besides, must be among them
	items []ID   // of the claim, if all

	extend  *extension   // nil = the claim keeps its end; not with the fields below
	back    *givingBack  // nil = nothing is given back
	advance *advancing   // nil = the items that leave the claim are acked
	state   *stateChange // nil = the group's state stays
	archive archiving

	run  settling
	done atomic.Bool // committed, as far as the handle knows
}

// settling is a settlement in the attempt under way.
type settling struct {
	lock   kv.Future[[]byte]
	held   *rec.Record
	moved  []rec.Item        // the advanced
	acked  []rec.Item        // with moved: what leaves the claim for good
	left   []rec.Item        // of the claim; those that are given back among them
	ahead  kv.Future[[]byte] // the key behind the first len(claim.Items) items, read before the acked are known
	leads  bool              // the group begins with the acked items, see ledBy
	next   kv.Future[[]byte] // the first item left in the group, if nothing is left of the claim
	tried  kv.Future[[]byte] // the attempt of the item that was tried, if nothing stays in the claim
	result settlementResult
}

// settlementResult is what the caller learns of a settlement.
type settlementResult struct {
	until, ends time.Time // of an extend; ends by the monotonic clock
	follows     Follows   // of a nack that counts an attempt, as waits
	waits       time.Duration
}

// part is something that happens together with an ack, in the same settlement. Example: the acked items go into the
// archive. A new part is a file of its own and an element of settlement.parts. A method of a part that a settlement
// does not have does nothing.
type part interface {
	// begin forgets the attempt before, and starts reads at the same time as that of the lock.
	begin(w *txn, s *settlement)
	// check reads, and may refuse the settlement. It runs after the check of the token, and must write nothing.
	check(w *txn, s *settlement) error
	// write writes, after the removal of the acked items.
	write(w *txn, s *settlement)
	// conclude reads and writes after the ends of all claims that are settled together.
	conclude(w *txn, s *settlement) error
}

// parts returns the parts in the order in which they run. An advance is the first, because it takes the advanced items
// out of the acked.
func (s *settlement) parts() [3]part { return [...]part{s.advance, &s.archive, s.state} }

// keeps reports whether all items stay in the claim, as they are.
func (s *settlement) keeps() bool { return s.extend != nil || s.state != nil && s.state.alone }

// returned notes that the call of a settlement has returned. The settlement may be nil.
func (s *settlement) returned() {
	if s != nil && s.advance != nil {
		s.advance.lent.end()
	}
}

// checkClaim checks the claim to settle, and continues with a copy. The items of the copy are the caller's:
// transactions only count them, and read items instead.
func (s *settlement) checkClaim(q *Queue) (err error) {
	if s.claim == nil {
		return fmt.Errorf("%w: no claim", ErrOptions)
	}
	s.claim = s.claim.snapshot()
	s.claim.Where = maps.Clone(s.claim.Where)
	if s.items = nil; s.all {
		s.items = make([]ID, len(s.claim.Items))
		for i := range s.items {
			s.items[i] = s.claim.Items[i].ID
		}
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

// of reports whether the claim may be of that queue. Tokens of two queues may be equal: both are read versions.
func (c *Claim) of(q *Queue) bool { return c.Queue == "" || c.Queue == q.name }

// lost returns the error of a claim which the group's record r does not bear.
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

// begin starts reading the lock, with a conflict.
func (s *settlement) begin(w *txn) {
	s.run = settling{lock: guard.SettleLock.Get(w.tx, w.keys.lock(s.lane))}
	for _, p := range s.parts() {
		p.begin(w, s)
	}
	if n := len(s.claim.Items); n > 0 && s.all && s.advance == nil && !lanes.IsHold(s.lane) {
		behind := kv.FirstGreaterOrEqual(w.keys.items(s.lane).Begin)
		behind.Offset += n
		s.run.ahead = w.read.GetKey(behind)
	}
}

// check does the fencing check, and then the writes which need no more reads. An error means that nothing was written.
// A claim with an expired lease stays valid until another claim takes over, because its token is still the lock's.
func (s *settlement) check(w *txn) error {
	v, err := s.run.lock.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read lock: %w", err)
	}
	var r *rec.Record
	if v != nil {
		if r, err = rec.UnpackRecord(w.keys.lock(s.lane), v); err != nil {
			return err
		}
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

// take takes items out of the claim c, and ends the claim if none stays. After an error nothing was written.
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
	for _, p := range s.parts() {
		if err := p.check(w, s); err != nil {
			return err
		}
	}
	if run.leads, err = s.ledBy(w); err != nil {
		return err
	}
	w.clearAttempts(group, c.Items, run.moved)
	if err := s.remove(w, c.Items); err != nil {
		return err
	}
	w.count(countAcked, len(run.acked))
	w.changeAll(ChangeFinished, group, run.acked)
	w.count(countReturned, -len(run.acked)) // put adds all which leave the claim
	for _, p := range s.parts() {
		p.write(w, s)
	}
	if stays > 0 {
		w.put(s.lane, run.held, run.held.WithItems(run.left[:stays], c.EndMS), 0)
		return nil
	}
	w.ended(s.lane)
	if len(run.left) > 0 {
		run.tried = w.read.Get(w.keys.attempt(idOf(run.left[0], group)))
		return nil
	}
	if !w.end(s.lane, run.held, run.held.Mark()) || lanes.IsHold(s.lane) {
		return nil
	}
	return s.readNext(w)
}

// ledBy reports whether the group begins with the acked items, all items of the claim are acked, and no other item lies
// between them. This holds if ahead, the key behind the group's first n items, is greater than each of the n acked
// ones. All of these exist, because only the holder may remove an item of a claim. Example: 1, 3 are acked. If 2 has
// come back since, or was enqueued late, the key behind the first two items is 3.
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

// remove clears the acked items: several that lead the group by one range, with a conflict on items whose enqueue
// commits late, with an index in between; all others by their exact keys.
func (s *settlement) remove(w *txn, all []rec.Item) error {
	group, acked, archived := s.claim.Group, s.run.acked, s.archive.kept
	if !s.run.leads || len(acked) < 2 || !w.keys.plan.IsPlain() {
		w.remove(s.lane, all, acked, archived)
		return nil
	}
	first, last := idOf(acked[0], group), idOf(acked[len(acked)-1], group)
	items := kv.KeyRange{Begin: w.keys.item(first), End: w.keys.after(w.keys.item(last))}
	// Before the clear, because a read conflict leaves out what the transaction itself has cleared.
	if err := guard.RangeClear.Read(w.tx, items); err != nil {
		return err
	}
	w.tx.ClearRange(items)
	w.clearRest(group, all, acked, archived)
	return nil
}

// readNext starts reading the first item left in the group. No read is needed if the acked items have led the group:
// what lay behind them is the next.
func (s *settlement) readNext(w *txn) error {
	if s.run.leads {
		k, err := s.run.ahead.Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read head: %w", err)
		}
		s.run.next = kv.Done(k, nil)
		return nil
	}
	s.run.next = w.head(s.lane)
	return nil
}

// finish writes what depends on the reads that check began.
func (s *settlement) finish(w *txn) error {
	switch {
	case s.run.next != nil:
		return s.leave(w, s.run.next)
	case s.run.tried != nil:
		return s.back.carryOut(w, s)
	}
	return nil
}

// leave leaves the lane findable, or without a trace if no item is left there. next nil = none is.
func (s *settlement) leave(w *txn, next kv.Future[[]byte]) error {
	_, _, err := w.leave(s.lane, next, guard.ReleaseEmpty, s.run.held.LeadsSuspects())
	return err
}

// conclude runs the last step of the parts.
func (s *settlement) conclude(w *txn) error {
	for _, p := range s.parts() {
		if err := p.conclude(w, s); err != nil {
			return err
		}
	}
	return nil
}
