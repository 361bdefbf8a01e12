package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// Settlement says how a claim ends or continues. Set what it must do: a Settlement with only a Claim is refused
// (ErrOptions), because a field was forgotten. An empty list that is not nil names no item. A Settlement with only such
// lists is valid and does nothing. So if a loop adds the items to a list, begin the list as []ID{}, or call AckItems.
type Settlement struct {
	Claim *Claim
	// Finish are the items to finish: a finished item is never delivered again. A claim ends with its last item, and
	// the group is free for others.
	Finish []ID
	// FinishAll finishes all items left in the claim, except those in Advance. Not with Finish, AdvanceAll or Nack.
	FinishAll bool
	// Advance are the items that Change rewrites in place. An advanced item keeps place and id, leaves the claim, and
	// is delivered again by the templates that now match. So a message goes from stage to stage of a pipeline. Failed
	// attempts do not go along: each stage begins with none. An item whose facets do not change is delivered again to
	// the same template, in a later claim. An item in Finish must not be in Advance. Not for a claim of one item
	// (Claim.Hold).
	Advance []ID
	// AdvanceAll advances all items left in the claim, except those in Finish. Not with Advance, FinishAll or Nack.
	AdvanceAll bool
	// Change gets each advanced item as a message, and changes its body or its headers (facets are headers too). Change
	// is required with items to advance, and refused without Advance and AdvanceAll.
	//
	// Change may run several times, in another goroutine than the caller's, but never after the call has returned. An
	// error of Change ends the settlement without effect, also an error that wraps a *kv.Error. Then kv.MaybeCommitted
	// says nothing of the settlement. A panic or a runtime.Goexit comes back as an error. If ctx ends while Change
	// runs, the call waits for Change to return. Change must return at once, because other settlements of the handle
	// may share its transaction.
	Change func(id ID, m *Message) error
	// Nack, if not nil, gives back all items that are neither in Finish nor in Advance, as Queue.Nack does.
	Nack *NackOptions
	// State, if not nil, is stored with the group, in place of the old state: at most MaxStateSize bytes. No bytes
	// clear the state. A State alone leaves the claim and the items unchanged. Not for a claim with Where or Hold.
	State *[]byte
	// Extend, if greater than 0, makes the claim last for so long from now on, as Queue.Extend does: MinLease to
	// MaxLease. Not with Nack, State, Change or items to finish or to advance.
	Extend time.Duration
	// Result, if not nil, gets the result of the settlement after success.
	Result *Settled
}

// Settled is the result of a settlement, for Settlement.Result. Fields that do not apply are zero.
type Settled struct {
	// Follows says what has become of the item that was tried, if Nack counted a failed attempt.
	Follows Follows
	// Waits is how long the group is not delivered after Nack.
	Waits time.Duration
	// Until is the new end of the claim, after Extend.
	Until time.Time
}

// Settle settles claims together, in one transaction where possible. Example: a caller that receives many small claims
// (ReceiveOptions.Strategy Heads) finishes all of them. The claims may come from different receives and handles: Settle
// needs only the fields that Claim.Stored keeps. Up to 256 claims, with up to 2000 items and 1 MiB, travel together;
// more take several transactions. SettleTx lists the keys that a settlement reads and writes.
//
// A lost claim does not stop the others. The error joins a *ClaimError for each claim that was not settled, in the
// order of the arguments; nil = all were settled. A caller that repeats the call must leave out the claims that were
// settled.
//
// A ClaimError has an error of AckItems, Nack or Extend, or ErrOptions if fields do not go together or no field says
// what to do, or *LimitError for a state over MaxStateSize. After an error the claim is unchanged, unless
// kv.MaybeCommitted(err).
//
// With items to advance, a ClaimError may also have:
//   - ErrCorrupt: an item cannot be read.
//   - ErrOptions: Change has set anything but body and headers.
//   - *LimitError or ErrInvalidUTF8: a changed message, or the value of a facet, is not valid, see Enqueue.
//   - *LimitError: the new items of a claim do not fit into a transaction of 10,000,000 bytes. Advance fewer at a time.
func (q *Queue) Settle(ctx context.Context, all ...Settlement) error {
	errs := make([]error, len(all))
	var settled []*settlement
	var places []int
	defer func() {
		for _, s := range settled {
			s.returned()
		}
	}()
	for i := range all {
		s, err := all[i].begin()
		if errs[i] = err; s != nil && err == nil {
			settled, places = append(settled, s), append(places, i)
		}
	}
	if len(settled) == 1 {
		errs[places[0]] = q.settleAlone(ctx, settled[0])
	} else {
		for i, err := range q.settleAll(ctx, settled) {
			errs[places[i]] = err
		}
	}
	for i, s := range settled {
		if at := places[i]; errs[at] == nil {
			all[at].end(s)
		}
	}
	var failed []error
	for i, err := range errs {
		if err != nil {
			failed = append(failed, &ClaimError{Claim: all[i].Claim, Err: err})
		}
	}
	return wrap("settle", errors.Join(failed...))
}

// SettleTx settles in the caller's transaction. After ErrClaimLost, ErrNotInClaim, ErrOptions or an error for a field
// nothing was written, and the transaction may continue without the settlement. After any other error the caller must
// end the transaction with it, because a part of the settlement may be written. The caller must handle an unknown
// commit, for example with Once. The Claim is not changed, because the commit is the caller's. Result is set before the
// commit.
//
// Reads: the lock, with a conflict. When the last item is finished: the key of the next item at snapshot; if there is
// none, a conflict on the whole group. If the group becomes free: the oldest requests, at snapshot. With FinishAll, if
// several items are the first of the group: a conflict on their range. With Nack: the failed attempts of the first
// item, at snapshot. For a dead letter: the item, receipts, and the attempts of the next item, at snapshot. If the
// queue has an archive: the items, at snapshot. With items to advance: these items, and the first and the last key of
// each lane that an item joins, at snapshot; this conflicts with the removal of the last item of such a lane. Each
// settlement conflicts with a drop of the queue.
//
// Writes: the lock, and the timer or the held key of the claim. A finished item: its keys item, part and attempt and
// its lane keys are cleared. With an archive its parts stay, and rows archive and archived are set. An advanced item:
// its keys item and part are written again, and its attempt is cleared. If its facets change, its keys lane are cleared
// and set, and each lane of which it becomes the first gets a hint. A nack: the attempt is set. If a delay, a dead
// letter or a halt follows, also the timer, the dead letter or the mark. With State: the state. A State alone leaves
// the lock as it is, and adds a write conflict on the lock. If the group becomes free: the hint of its first item, and
// wake keys. If items leave the claim: counters, and a row of changes if the queue keeps changes.
//
// In a queue with facets or Unordered, the end or a shorter lease of a claim reads the hints kept under its lock
// (kept), with a conflict, and writes them back as hints. With RetroactiveDelay, too, SettleTx reads the first key of
// each lane that a finished or advanced item leaves, at snapshot. Such a lane gets a hint, or, if it is empty, a
// conflict on its range.
//
// A claim of one item (Claim.Hold) has the key hold as its lock. With Unordered its end sets the item's lane key and a
// hint again, if the item stays in the queue. With LeasePerItem its end adds a write conflict on the group's lock, and
// reads that lock, the first hold and the first item, at snapshot. If the group is locked, or its first item is held,
// it then sets no hint and adds read conflicts on the lock and on the items up to the first.
func (q *Queue) SettleTx(ctx context.Context, tx kv.Tx, s Settlement) error {
	return wrap("settle", q.settleOneTx(ctx, tx, &s))
}

// SettleReceive settles a claim and receives, in one transaction where possible: for a worker that is done with a claim
// and wants the next. If the settlement fails nothing is received, and the error is the settlement's. If the settlement
// is done, and the receive fails or is given up, there are no claims and no error: the next receive says what is wrong.
// The keys are those of SettleTx and Receive. A ReceiveID is refused (ErrOptions).
func (q *Queue) SettleReceive(ctx context.Context, s Settlement, o ReceiveOptions) ([]*Claim, error) {
	claims, err := q.settleReceive(ctx, &s, o)
	return claims, wrap("settle and receive", err)
}

// settleReceive is SettleReceive, and its error does not name the call. A Settlement that does nothing is allowed: then
// settleReceive only receives.
func (q *Queue) settleReceive(ctx context.Context, one *Settlement, o ReceiveOptions) ([]*Claim, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.ReceiveID != "" {
		return nil, fmt.Errorf("%w: a receive id of a receive that settles", ErrOptions)
	}
	r, err := q.reception(o)
	if err != nil {
		return nil, err
	}
	s, err := one.begin()
	if err != nil {
		return nil, err
	}
	defer s.returned()
	claims, err := q.receive(ctx, s, r)
	if err == nil && s != nil {
		one.end(s)
	}
	return claims, err
}

// settleOne settles one claim in a transaction of the handle, and then sets the caller's Result and Claim. A Settlement
// that does nothing runs no transaction. The error is the cause itself, and no *ClaimError.
func (q *Queue) settleOne(ctx context.Context, one *Settlement) error {
	s, err := one.begin()
	if err != nil || s == nil {
		return err
	}
	defer s.returned()
	if err = q.settleAlone(ctx, s); err == nil {
		one.end(s)
	}
	return err
}

// settleOneTx is settleOne in the caller's transaction. It sets Result before the commit. It leaves the caller's Claim
// as it is, because the transaction may not commit.
func (q *Queue) settleOneTx(ctx context.Context, tx kv.Tx, one *Settlement) error {
	s, err := one.begin()
	if err != nil || s == nil {
		return err
	}
	defer s.returned()
	if err = q.settleTx(ctx, tx, s); err == nil {
		one.tell(s)
	}
	return err
}

// begin checks the Settlement as far as possible without the queue, and returns the settlement to run. It copies State
// and Nack, so the caller may change them. nil without an error means that there is nothing to do: all lists are empty.
// With an error the result must not be used. The caller must call returned for the result when the public call returns.
func (s *Settlement) begin() (*settlement, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.Extend != 0 {
		return newExtension(s.Claim, s.Extend)
	}
	settled := &settlement{
		claim: s.Claim, ids: slices.Concat(s.Finish, s.Advance), all: s.FinishAll || s.AdvanceAll,
	}
	if s.AdvanceAll || len(s.Advance) > 0 {
		settled.advance = &advancing{lent: newLent(), fn: s.Change, of: s.advances()}
	}
	stays := len(settled.ids) == 0 && !settled.all && s.Nack == nil
	if stays && s.State == nil {
		return nil, nil
	}
	if s.State != nil {
		settled.state = &stateChange{state: bytes.Clone(*s.State), alone: stays}
		if err := checkState(settled.state.state); err != nil {
			return nil, err
		}
	}
	if s.Nack == nil {
		return settled, nil
	}
	settled.back = newGivingBack(s.Nack)
	return settled, settled.back.o.check(s.Claim)
}

// check returns ErrOptions for fields that do not go together, and for a settlement that says nothing. Otherwise a
// caller that has forgotten a field would believe that items are finished.
func (s *Settlement) check() error {
	all := s.FinishAll || s.AdvanceAll
	named := len(s.Finish) > 0 || len(s.Advance) > 0
	advances := s.AdvanceAll || len(s.Advance) > 0
	refuse := ""
	switch {
	case s.Claim == nil:
		refuse = "no claim"
	case s.Extend != 0 && (all || named || s.Change != nil || s.Nack != nil || s.State != nil):
		refuse = "Extend with another settlement of the claim"
	case s.Finish == nil && s.Advance == nil && !all && s.Change == nil && s.Nack == nil && s.State == nil &&
		s.Extend == 0:
		refuse = "nothing to settle: set Finish or FinishAll, Advance or AdvanceAll, Nack, State or Extend"
	case s.FinishAll && s.AdvanceAll, s.FinishAll && len(s.Finish) > 0, s.AdvanceAll && len(s.Advance) > 0:
		refuse = "all items, and the same or others by their ids"
	case all && s.Nack != nil:
		refuse = "Nack with FinishAll or AdvanceAll: no item is left to give back"
	case s.Change == nil && advances:
		refuse = "items to advance, and no Change"
	case s.Change != nil && s.Advance == nil && !s.AdvanceAll:
		refuse = "Change without items to advance: set Advance or AdvanceAll"
	case intersect(s.Finish, s.Advance):
		refuse = "an item in Finish and in Advance"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrOptions, refuse)
}

// intersect reports whether an id is in both lists.
func intersect(a, b []ID) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	ids := setOf(a)
	return slices.ContainsFunc(b, func(id ID) bool { return ids[id] })
}

// advances returns a function that reports whether an item that leaves the claim is advanced. Otherwise it is finished.
func (s *Settlement) advances() func(id ID) bool {
	if s.AdvanceAll {
		finished := setOf(s.Finish)
		return func(id ID) bool { return !finished[id] }
	}
	advanced := setOf(s.Advance)
	return func(id ID) bool { return advanced[id] }
}

// tell copies the results of the settlement that has run into the caller's Result.
func (s *Settlement) tell(done *settlement) {
	if s.Result != nil {
		*s.Result = done.run.result.Settled
	}
}

// end sets Result and updates the caller's Claim, after the settlement was committed: the new end of an extended claim,
// or Items without those that have left the claim. FinishAll, AdvanceAll and a Nack without From leave Items unchanged.
func (s *Settlement) end(done *settlement) {
	s.tell(done)
	switch {
	case done.extend != nil:
		s.Claim.extended(&done.run.result)
	case done.all:
	case s.Nack == nil:
		s.Claim.drop(done.ids, nil)
	case s.Nack.From != nil:
		s.Claim.drop(done.ids, s.Nack.From)
	}
}

// Ack finishes all items that are left in a claim: an acked item is never delivered again. The claim ends, and the
// group is free for others. Use AckItems to finish some. SettleTx lists the keys.
//
// If a handle receives at once after an ack, the ack wakes no other handle, and the handle usually gets the group
// again. Another handle is woken after at most 32 such acks in a row or one second, or if no receive follows within 20
// ms.
//
// Acks, nacks, extends, enqueues and receives of a handle which arrive while a transaction is in flight travel together
// in the next transaction; each has its own result.
//
// Errors: ErrClaimLost, ErrCorrupt if the lock cannot be read, ErrNoQueue, ErrClosed, and the engine's. After
// ErrClaimLost nothing was changed.
func (q *Queue) Ack(ctx context.Context, c *Claim) error {
	return wrap("ack", q.settleOne(ctx, &Settlement{Claim: c, FinishAll: true}))
}

// AckItems finishes the named items of a claim, all or none. The other items stay in the claim, which ends with its
// last item. No ids, nil or empty, finish nothing: AckItems returns nil, without a transaction and without a look at
// the claim. SettleTx lists the keys.
//
// Errors: as Ack's, and ErrNotInClaim, also for an item acked before; nothing was changed then.
func (q *Queue) AckItems(ctx context.Context, c *Claim, ids []ID) error {
	if len(ids) == 0 {
		return nil
	}
	return wrap("ack items", q.settleOne(ctx, &Settlement{Claim: c, Finish: ids}))
}

// AckTx acks in the caller's transaction, as SettleTx settles. The caller must handle an unknown commit, for example
// with Once.
func (q *Queue) AckTx(ctx context.Context, tx kv.Tx, c *Claim) error {
	return wrap("ack", q.settleOneTx(ctx, tx, &Settlement{Claim: c, FinishAll: true}))
}

// AckItemsTx acks the named items in the caller's transaction, as SettleTx settles. Without ids it does nothing. The
// caller must handle an unknown commit, for example with Once.
func (q *Queue) AckItemsTx(ctx context.Context, tx kv.Tx, c *Claim, ids []ID) error {
	if len(ids) == 0 {
		return nil
	}
	return wrap("ack items", q.settleOneTx(ctx, tx, &Settlement{Claim: c, Finish: ids}))
}

// NackOptions say how a claim is given back. To finish other items, or to store the group's state, in the same
// transaction, use Settle.
type NackOptions struct {
	// Err is stored with the attempt of the item that was tried: the first 1,000 bytes. May be nil.
	Err error
	// Delay keeps the whole group, and no other group, from delivery for so long; 0 to MaxDelay. Of a claim by a
	// template it keeps the templates of the group that intersect this one. Of a claim of one item it keeps this item,
	// and with LeasePerItem those behind. 0 = by the queue's retry policy, or no delay if nothing failed (Release). A
	// paused group takes no delay: it is ready once resumed.
	Delay time.Duration
	// AtOnce delivers again without a delay, whatever the retry policy says. Not with Delay.
	AtOnce bool
	// Release gives back without counting a failed attempt: the items were not tried.
	Release bool
	// From, if not nil, is the first item to give back: From and all items behind, handled or not, because a group is
	// delivered in order. The items before stay in the claim, with its lease; if none, the claim ends. Only with
	// Release, and without a delay: a failure counts for the first item left, so it gives all items back.
	From *ID
	// Behind gives the group the last place in the line: the groups that are ready now are delivered before it. Without
	// it the group has the place of its first message. The order of the group's own messages stays. Only with Release,
	// and without From or a delay; not for a claim of one message (Claim.Hold). A paused group has no place: once
	// resumed, it has that of its first message.
	Behind bool
	// Reject, if not empty, says why the item that was tried will never succeed: the item has then failed for good, see
	// OnFailure. The first 1,000 bytes are stored. Not with Release, Delay or AtOnce.
	Reject string
}

// Nack gives back all items of a claim, or the last ones (From): they are delivered again, in the same order. Without
// Release the first item was tried and counts a failed attempt; the items behind count none. If the attempt was the
// item's last, or the item is rejected, the queue's OnFailure decides. The item becomes a dead letter and the items
// behind are free at once, or the group halts, or the item is tried again. SettleTx lists the keys.
//
// Errors: as Ack's, *LimitError for the delay, ErrNotInClaim for From, and ErrOptions.
func (q *Queue) Nack(ctx context.Context, c *Claim, o NackOptions) error {
	return wrap("nack", q.settleOne(ctx, &Settlement{Claim: c, Nack: &o}))
}

// NackTx returns a claim in the caller's transaction, as SettleTx settles. The caller must handle an unknown commit,
// for example with Once.
func (q *Queue) NackTx(ctx context.Context, tx kv.Tx, c *Claim, o NackOptions) error {
	return wrap("nack", q.settleOneTx(ctx, tx, &Settlement{Claim: c, Nack: &o}))
}

// Extend makes a claim last for lease from now on (not from its old end), and returns its new end. lease is MinLease to
// MaxLease; 0 = the queue's. Extend reads and writes the lock, and moves its timer. A claim by heartbeat leaves the
// heartbeat: its held key is cleared, and it gets a timer. The Claim gets the new end, too. If the new end is earlier
// than the old one, Extend also reads the hints that the claim keeps (kept), with a conflict, and sets them again.
//
// Errors: as Ack's, and *LimitError for the lease.
func (q *Queue) Extend(ctx context.Context, c *Claim, lease time.Duration) (time.Time, error) {
	s, err := newExtension(c, lease)
	if err == nil {
		err = q.settleAlone(ctx, s)
	}
	if err != nil {
		return time.Time{}, wrap("extend", err)
	}
	c.extended(&s.run.result)
	return s.run.result.Until, nil
}

// ExtendTx is Extend in the caller's transaction; SettleTx says when that may continue after an error. The Claim is not
// changed, its Until neither. But with the caller's commit a claim by heartbeat has left the heartbeat. The caller must
// handle an unknown commit: with Once, or by a second call, which does no harm.
func (q *Queue) ExtendTx(ctx context.Context, tx kv.Tx, c *Claim, lease time.Duration) (time.Time, error) {
	s, err := newExtension(c, lease)
	if err != nil {
		return time.Time{}, wrap("extend", err)
	}
	err = q.settleTx(ctx, tx, s)
	return s.run.result.Until, wrap("extend", err)
}

// settleAlone settles one claim through the pipeline, without a receive. The pipeline is the queue of the handle's
// operations: those that wait at the same time share a transaction. settleAlone calls the hooks.
func (q *Queue) settleAlone(ctx context.Context, s *settlement) error {
	if len(q.opts.Hooks) == 0 {
		return q.submit(ctx, &operation{settle: s})
	}
	ctx, end := q.observeSettlement(ctx, s)
	return end(q.submit(ctx, &operation{settle: s}))
}

// settleAll is settleAlone for several claims together. It returns the error of each, in the order of settled; nil =
// the claim was settled.
func (q *Queue) settleAll(ctx context.Context, settled []*settlement) []error {
	errs := make([]error, len(settled))
	var ends []func(err error) error // for hooks
	var os []*operation
	var places []int
	for i, s := range settled {
		if len(q.opts.Hooks) > 0 {
			_, end := q.observeSettlement(ctx, s)
			ends = append(ends, end)
		}
		o := &operation{settle: s}
		if errs[i] = q.prepare(o); errs[i] == nil {
			os, places = append(os, o), append(places, i)
		}
	}
	beats := make([]uuid.UUID, len(os))
	for i, o := range os {
		beats[i] = o.settlesUnder()
	}
	for i, err := range q.pipeline.SubmitAll(ctx, os) {
		q.leaveIfUnsettled(ctx, beats[i], err)
		errs[places[i]] = reveal(err)
	}
	for i, end := range ends {
		errs[i] = end(errs[i])
	}
	return errs
}

// observeSettlement tells the hooks that s begins, and returns the context that they have made. The handle must have
// hooks: without them it panics. The caller must call end with the error of the settlement: end tells the hooks the
// outcome, and returns the same error.
func (q *Queue) observeSettlement(
	ctx context.Context, s *settlement,
) (observed context.Context, end func(err error) error) {
	ctx, w := q.observe(ctx, Operation{Verb: s.verb(), Settled: s.claim.snapshot()})
	if w.Settled != nil {
		w.Group = &w.Settled.Group
	}
	return ctx, func(err error) error {
		if err == nil {
			w.Items, w.Follows = s.size(), s.run.result.Follows
		}
		return w.end(ctx, err)
	}
}

// verb returns the kind of the operation for hooks.
func (s *settlement) verb() Verb {
	switch {
	case s.extend != nil:
		return VerbExtend
	case s.back != nil && s.back.o.Release:
		return VerbRelease
	case s.back != nil:
		return VerbNack
	case s.keeps():
		return VerbSetState
	case s.advance != nil:
		return VerbAdvance // some items may be acked with it
	}
	return VerbAck
}

// size is the number of items for hooks: if the settlement only acks or advances items by ids, the number of ids;
// otherwise all items of the claim, also if NackOptions.From keeps some.
func (s *settlement) size() int {
	if len(s.ids) > 0 && !s.all && s.back == nil {
		return len(s.ids)
	}
	return len(s.claim.Items)
}

// settleTx checks the claim, and takes the settlement through its steps (begin, apply, finish, advancing.conclude) in
// the caller's transaction. SettleTx lists the keys.
func (q *Queue) settleTx(ctx context.Context, tx kv.Tx, s *settlement) error {
	if err := s.checkClaim(q); err != nil {
		return err
	}
	return reveal(q.operate(ctx, tx, func(w *txn) error {
		s.begin(w)
		if err := s.apply(w); err != nil {
			return err
		}
		if err := s.finish(w); err != nil {
			return err
		}
		return s.advance.conclude(w)
	}))
}

// drop takes items out of Items: those that were acked or advanced, and, if from is not nil, all items from it on. It
// does not change the old slice, because the caller may be in a loop over it.
func (c *Claim) drop(acked []ID, from *ID) {
	claimsMu.Lock()
	defer claimsMu.Unlock()
	if from != nil {
		if i := slices.IndexFunc(c.Items, func(i Item) bool { return i.ID == *from }); i >= 0 {
			c.Items = c.Items[:i:i]
		}
	}
	gone := setOf(acked)
	// Usually these are the first items: then no copy is needed.
	for len(c.Items) > 0 && gone[c.Items[0].ID] {
		delete(gone, c.Items[0].ID)
		c.Items = c.Items[1:]
	}
	if len(gone) > 0 && len(c.Items) > 0 {
		c.Items = slices.DeleteFunc(slices.Clone(c.Items), func(i Item) bool { return gone[i.ID] })
	}
}
