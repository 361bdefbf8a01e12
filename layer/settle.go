package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// Settlement says how a claim ends or continues. Set what it must do: a Settlement with only a Claim is refused
// (ErrOptions), because a field was forgotten. A list that is empty but not nil names no item, and a Settlement whose
// lists name none is valid and does nothing: make a list that a loop fills with []ID{}, or call AckItems.
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
	// the same template, in a later claim. An item in Finish must not be in Advance.
	Advance []ID
	// AdvanceAll advances all items left in the claim, except those in Finish. Not with Advance, FinishAll or Nack.
	AdvanceAll bool
	// Change gets each advanced item as a message, and changes the headers, with the facets among them, or the body.
	// Change is required with items to advance, and refused without Advance and AdvanceAll.
	//
	// Change may run several times, in another goroutine than the caller's, but never after the call has returned. An
	// error of Change ends the settlement without effect, and so does a panic or a runtime.Goexit, which comes back as
	// an error. If ctx ends while Change runs, the call waits for Change to return. Change must return at once, because
	// other settlements of the handle may share its transaction.
	Change func(id ID, m *Message) error
	// Nack, if not nil, gives back all items that are neither in Finish nor in Advance, as Queue.Nack does.
	Nack *NackOptions
	// State, if not nil, is stored with the group, in place of the old state: at most MaxStateSize bytes. No bytes
	// clear the state. A State alone leaves the claim and the items unchanged.
	State *[]byte
	// Extend, if greater than 0, makes the claim last for so long from now on, as Queue.Extend does: MinLease to
	// MaxLease. Not with Nack, State, Change or items to finish or to advance.
	Extend time.Duration
	// Result, if not nil, gets the result of the settlement after success.
	Result *Settled
}

// Settled is the result of a settlement. Fields that do not apply are zero.
type Settled struct {
	// Follows says what has become of the item that was tried, if Nack counted a failed attempt.
	Follows Follows
	// Waits is how long the group is not delivered after Nack.
	Waits time.Duration
	// Until is the new end of the claim, after Extend.
	Until time.Time
}

// Settle settles claims together, in one transaction where possible. Example: a caller that receives many small claims
// (Heads) finishes all of them. The claims may come from different receives and handles: Settle needs only the fields
// that Claim.Stored keeps. Up to 256 claims, with up to 2000 items, travel together; more take several transactions.
//
// A lost claim does not stop the others. The error joins a *ClaimError for each claim that was not settled, in the
// order of the arguments; nil = all were settled. A caller that repeats the call must leave out the claims that were
// settled.
//
// Errors in there: those of AckItems, and of Nack and Extend. ErrOptions for fields that do not go together, and if
// none says what to do. *LimitError for a state over MaxStateSize. With items to advance: ErrCorrupt if an item cannot
// be read; ErrOptions if Change sets anything but body and headers; *LimitError and ErrInvalidUTF8 as Enqueue's, and
// for the value of a facet; *LimitError if the new items of a claim do not fit into a transaction of 10,000,000 bytes:
// advance fewer at a time. After an error the claim is unchanged.
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

// SettleTx settles in the caller's transaction. An error means that nothing was written. If the error wraps a
// *kv.Error, the caller must end the transaction with it; otherwise the transaction may continue without the
// settlement. The caller must handle an unknown commit, for example with Once. The Claim is not changed, because the
// commit is the caller's.
//
// Reads: the lock, with a conflict. When the claim ends: the key of the next item at snapshot, with a conflict on the
// whole group if the group is empty now, and else, with FinishAll, from the first to the last of several finished
// items. If the queue has an archive: the items, at snapshot. With items to advance: these items, and the first and the
// last key of each lane that an item joins, at snapshot; this conflicts with the removal of the last item of such a
// lane.
func (q *Queue) SettleTx(ctx context.Context, tx kv.Tx, s Settlement) error {
	return wrap("settle", q.settleOneTx(ctx, tx, &s))
}

// SettleReceive settles a claim and receives, in one transaction where possible: for a worker that is done with a claim
// and wants the next. If the settlement fails nothing is received, and the error is the settlement's. If the settlement
// is done, and the receive fails or is given up, there are no claims and no error: the next receive says what is wrong.
func (q *Queue) SettleReceive(ctx context.Context, s Settlement, o ReceiveOptions) ([]*Claim, error) {
	claims, err := q.settleReceive(ctx, &s, o)
	return claims, wrap("settle and receive", err)
}

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

// settleOne settles in a transaction of the handle's own; without a ClaimError.
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

// begin checks what can be checked without the queue. nil = there is nothing to do.
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
		settled.lent = lend(s.Change)
		settled.change = s.change(settled.lent.call)
	}
	stays := len(settled.ids) == 0 && !settled.all && s.Nack == nil
	if stays && s.State == nil {
		return nil, nil
	}
	if s.State != nil {
		settled.sets, settled.state, settled.keeps = true, bytes.Clone(*s.State), stays
		if err := checkState(settled.state); err != nil {
			return nil, err
		}
	}
	if s.Nack == nil {
		return settled, nil
	}
	back := *s.Nack
	settled.back, back.From = &back, own(back.From)
	if back.Err != nil && !back.Release {
		settled.why, back.Err = errorText(back.Err), nil
	}
	return settled, back.check()
}

// check refuses fields that do not go together, and a settlement that says nothing: a field was forgotten then, and its
// caller believes that items are finished.
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
	ids := make(map[ID]bool, len(a))
	for _, id := range a {
		ids[id] = true
	}
	return slices.ContainsFunc(b, func(id ID) bool { return ids[id] })
}

// change returns how change is called for each item that leaves the claim for good; nil = the item is finished.
func (s *Settlement) change(change func(id ID, m *Message) error) func(id ID) func(m *Message) error {
	chosen := make(map[ID]bool) // or, with AdvanceAll, those that are not
	for _, id := range s.Advance {
		chosen[id] = true
	}
	if s.AdvanceAll {
		for _, id := range s.Finish {
			chosen[id] = true
		}
	}
	all := s.AdvanceAll
	return func(id ID) func(m *Message) error {
		if chosen[id] == all {
			return nil
		}
		return func(m *Message) error { return change(id, m) }
	}
}

// tell sets Result.
func (s *Settlement) tell(done *settlement) {
	if s.Result != nil {
		*s.Result = Settled{Follows: done.follows, Waits: done.waits, Until: done.until}
	}
}

// end sets Result, and updates the caller's Claim, after success.
func (s *Settlement) end(done *settlement) {
	s.tell(done)
	switch {
	case done.extends:
		s.Claim.extended(done)
	case done.all:
	case s.Nack == nil:
		s.Claim.drop(done.ids, nil)
	case s.Nack.From != nil:
		s.Claim.drop(done.ids, s.Nack.From)
	}
}

// Ack finishes all items that are left in a claim: an acked item is never delivered again. The claim ends, and the
// group is free for others. Use AckItems to finish some.
//
// A handle which receives at once after an ack keeps the group. Other handles that wait are woken after at most 32 acks
// in a row, or a second, or 20 ms after an ack which no receive has followed.
//
// Acks, nacks, extends, enqueues and receives of a handle which arrive while a transaction is in flight travel together
// in the next transaction; each has its own result.
//
// Errors: ErrClaimLost, ErrClosed, and the engine's. After ErrClaimLost nothing was changed.
func (q *Queue) Ack(ctx context.Context, c *Claim) error {
	return wrap("ack", q.settleOne(ctx, &Settlement{Claim: c, FinishAll: true}))
}

// AckItems finishes the named items of a claim, all or none. The other items stay in the claim, which ends with its
// last item. No ids, nil or empty, finish nothing: AckItems returns nil, without a transaction and without a look at
// the claim.
//
// Errors: as Ack's, and ErrNotInClaim, also for an item acked before; nothing was changed then.
func (q *Queue) AckItems(ctx context.Context, c *Claim, ids []ID) error {
	if len(ids) == 0 {
		return nil
	}
	return wrap("ack items", q.settleOne(ctx, &Settlement{Claim: c, Finish: ids}))
}

// AckTx acks in the caller's transaction, as SettleTx settles.
func (q *Queue) AckTx(ctx context.Context, tx kv.Tx, c *Claim) error {
	return wrap("ack", q.settleOneTx(ctx, tx, &Settlement{Claim: c, FinishAll: true}))
}

// AckItemsTx acks the named items in the caller's transaction, as SettleTx settles. No ids, nil or empty, finish
// nothing, and leave the transaction as it is.
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
	// Delay keeps the whole group, and no other group, from delivery for so long; 0 to MaxDelay. 0 = by the queue's
	// retry policy, or no delay if nothing failed (Release). A paused group takes no delay: it is ready once resumed.
	Delay time.Duration
	// AtOnce delivers again without a delay, whatever the retry policy says. Not with Delay.
	AtOnce bool
	// Release gives back without counting a failed attempt: the items were not tried.
	Release bool
	// From, if not nil, is the first item to give back: From and all items behind, handled or not, because a group is
	// delivered in order. The items before stay in the claim, with its lease; if none, the claim ends. Only with
	// Release, and without a delay: what failed is always the first item left, so a failure gives all back.
	From *ID
	// Reject, if not empty, says why the item that was tried will never succeed: the item has then failed for good, see
	// OnFailure. The first 1,000 bytes are stored. Not with Release, Delay or AtOnce.
	Reject string
}

// Nack gives back a claim, or its end (From): every item still in the claim is delivered again, in the same order. The
// first was tried and counts a failed attempt; the items behind count none. If the attempt was the item's last, or the
// item is rejected, the queue's OnFailure decides. The item becomes a dead letter and the items behind are free at
// once, or the group halts, or the item is tried again.
//
// Errors: as Ack's, *LimitError for the delay, and ErrOptions.
func (q *Queue) Nack(ctx context.Context, c *Claim, o NackOptions) error {
	return wrap("nack", q.settleOne(ctx, &Settlement{Claim: c, Nack: &o}))
}

// NackTx gives a claim back in the caller's transaction, as SettleTx settles.
func (q *Queue) NackTx(ctx context.Context, tx kv.Tx, c *Claim, o NackOptions) error {
	return wrap("nack", q.settleOneTx(ctx, tx, &Settlement{Claim: c, Nack: &o}))
}

func (o *NackOptions) check() error {
	if o.AtOnce && o.Delay != 0 {
		return fmt.Errorf("%w: a delay of %s, and at once", ErrOptions, o.Delay)
	}
	if o.From != nil && (!o.Release || o.AtOnce || o.Delay != 0) {
		return fmt.Errorf("%w: From goes with Release, and without a delay", ErrOptions)
	}
	if o.Reject != "" && (o.Release || o.AtOnce || o.Delay != 0) {
		return fmt.Errorf("%w: reject, and deliver again", ErrOptions)
	}
	return checkDelay(o.Delay)
}

// settleAlone settles in a transaction of the handle's own, without a receive.
func (q *Queue) settleAlone(ctx context.Context, s *settlement) error {
	if len(q.opts.Hooks) == 0 {
		return q.submit(ctx, &operation{settle: s})
	}
	ctx, end := q.observeSettlement(ctx, s)
	return end(q.submit(ctx, &operation{settle: s}))
}

// settleAll is settleAlone for several claims together. It returns the error of each.
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
		errs[places[i]] = err
		q.leaveIfUnsettled(beats[i], err)
	}
	for i, end := range ends {
		errs[i] = end(errs[i])
	}
	return errs
}

// observeSettlement tells the hooks that s begins; end tells how s ended.
func (q *Queue) observeSettlement(
	ctx context.Context, s *settlement,
) (observed context.Context, end func(err error) error) {
	ctx, w := q.observe(ctx, Operation{Verb: s.verb(), Settled: s.claim.copied()})
	if w.Settled != nil {
		w.Group = &w.Settled.Group
	}
	return ctx, func(err error) error {
		if err == nil {
			w.Items, w.Follows = s.size(), s.follows
		}
		return w.end(ctx, err)
	}
}

func (s *settlement) verb() Verb {
	switch {
	case s.extends:
		return VerbExtend
	case s.back != nil && s.back.Release:
		return VerbRelease
	case s.back != nil:
		return VerbNack
	case s.keeps:
		return VerbSetState
	case s.change != nil:
		return VerbAdvance // of a worker; some items may be acked with it
	}
	return VerbAck
}

// size is how many items it acks, or gives back, or keeps; the claim's, as far as the caller has said.
func (s *settlement) size() int {
	if len(s.ids) > 0 && !s.all && s.back == nil {
		return len(s.ids)
	}
	return len(s.claim.Items)
}

func (q *Queue) settleTx(ctx context.Context, tx kv.Tx, s *settlement) error {
	if err := s.checkClaim(q); err != nil {
		return err
	}
	return q.operate(ctx, tx, func(w *txn) error {
		s.begin(w)
		if err := s.check(w); err != nil {
			return err
		}
		if err := s.finish(w); err != nil {
			return err
		}
		return s.joinLanes(w)
	})
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
	if s.sets && (s.claim.Where != nil || s.claim.Hold != (ID{})) {
		return errLaneState
	}
	if s.change != nil && s.claim.Hold != (ID{}) {
		return fmt.Errorf("%w: an item under a claim of its own is not advanced", ErrOptions)
	}
	if !s.claim.of(q) {
		return s.lost(q, nil)
	}
	s.lane, err = s.claim.lane(q)
	return err
}

// settlement is an ack, an advance, a nack, an extend, or the holder's change of the state. Each attempt runs begin,
// check, finish and joinLanes; all settlements of a transaction run a step before any runs the next, so that their
// reads overlap.
type settlement struct {
	claim   *Claim
	lane    string       // of the claim
	ids     []ID         // to ack or to advance
	all     bool         // every outstanding item is acked or advanced, and ids, named besides, must be among them
	items   []ID         // of the claim, if all
	back    *NackOptions // nil = nothing is given back; a copy without Err
	why     string       // the text of the caller's NackOptions.Err
	extends bool
	proves  bool          // of an extend: the lock notes that the caller has the claim
	lease   time.Duration // of an extend; 0 = the queue's
	sets    bool          // the group's state, to state; nothing = cleared
	state   []byte
	keeps   bool // nothing is acked: only the state is set
	bytes   int  // how many bytes it is likely to add to a transaction, as far as known at submission
	// change returns how an item is advanced rather than acked; nil = it is acked. change itself nil = all are acked.
	change func(id ID) func(m *Message) error
	lent   *lentAdvance // which change calls; nil = change is nil

	// Of the attempt under way.
	lock kv.Future[[]byte]
	finishing
	advancing
	held    *rec.Record
	left    []rec.Item
	ahead   kv.Future[[]byte] // the key behind the first len(claim.Items) items, read before the acked are known
	leads   bool              // the group begins with the acked items, see ledBy
	next    kv.Future[[]byte] // the first item left in the group, if nothing is left of the claim
	attempt kv.Future[[]byte] // of the item that was tried, if the rest is given back

	until, ends time.Time // the result of an extend; ends by the monotonic clock
	// The outcome of a failed attempt: the results of a nack that counts one.
	follows Follows
	waits   time.Duration

	done atomic.Bool // committed, as far as the handle knows
}

// returned notes that the call of a settlement has returned. The settlement may be nil.
func (s *settlement) returned() {
	if s != nil && s.lent != nil {
		s.lent.end()
	}
}

// begin starts reading the lock, with a conflict.
func (s *settlement) begin(w *txn) {
	s.lock, s.held, s.left, s.ahead, s.next, s.attempt = guard.SettleLock.Get(w.tx, w.keys.lock(s.lane)),
		nil, nil, nil, nil, nil
	s.leads = false
	s.readFinishing(w)
	s.readAdvancing(w)
	if n := len(s.claim.Items); n > 0 && s.all && s.change == nil && !lanes.IsHold(s.lane) {
		behind := kv.FirstGreaterOrEqual(w.keys.items(s.lane).Begin)
		behind.Offset += n
		s.ahead = w.read.GetKey(behind)
	}
}

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

// check does the fencing check, and then the writes which need no more reads. An error means that nothing was written.
// A claim with an expired lease stays valid until another claim takes over, because its token is still the lock's.
func (s *settlement) check(w *txn) error {
	group := s.claim.Group
	v, err := s.lock.Wait(w.ctx)
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
	s.held = r
	if s.extends {
		return s.extend(w)
	}
	if s.keeps {
		return s.keep(w)
	}
	acked, left, err := divide(c, group, s.ids, s.all)
	if err != nil {
		return err
	}
	stays := 0 // how many of left stay in the claim
	switch {
	case s.back == nil:
		stays = len(left)
	case s.back.From != nil:
		if stays = place(left, *s.back.From, group); stays < 0 {
			return fmt.Errorf("%w: %s", ErrNotInClaim, s.back.From)
		}
	}
	moved, acked, err := s.divideAdvanced(w, acked)
	if err != nil {
		return err
	}
	archived, err := s.archive(w, acked)
	if err != nil {
		return err
	}
	if s.leads, err = s.ledBy(w, acked); err != nil {
		return err
	}
	s.left = left
	s.leaveLanes(w)
	w.clearAttempts(group, c.Items, moved)
	if s.sets {
		w.setState(group, s.state)
	}
	if err := s.remove(w, c.Items, acked, archived); err != nil {
		return err
	}
	w.count(countAcked, len(acked))
	w.changeAll(ChangeFinished, group, acked)
	given, was := s.given(moved)
	w.changeInPlace(ChangeAdvanced, group, given, was)
	w.count(countReturned, -len(acked)) // put adds all which leave the claim
	if stays > 0 {
		w.put(s.lane, r, r.WithItems(left[:stays], c.EndMS), 0)
		return nil
	}
	w.ended(s.lane)
	if len(left) > 0 {
		s.attempt = w.read.Get(w.keys.attempt(idOf(left[0], group)))
		return nil
	}
	if !w.end(s.lane, r, r.Mark()) || lanes.IsHold(s.lane) {
		return nil
	}
	return s.readNext(w, acked)
}

// drop takes items out of Items: the acked, and those from an item on, if not nil. Loops over the old Items go on.
func (c *Claim) drop(acked []ID, from *ID) {
	claimsMu.Lock()
	defer claimsMu.Unlock()
	if from != nil {
		if i := slices.IndexFunc(c.Items, func(i Item) bool { return i.ID == *from }); i >= 0 {
			c.Items = c.Items[:i:i]
		}
	}
	gone := make(map[ID]bool, len(acked))
	for _, id := range acked {
		gone[id] = true
	}
	// As a rule the first items: no copy.
	for len(c.Items) > 0 && gone[c.Items[0].ID] {
		delete(gone, c.Items[0].ID)
		c.Items = c.Items[1:]
	}
	if len(gone) > 0 && len(c.Items) > 0 {
		c.Items = slices.DeleteFunc(slices.Clone(c.Items), func(i Item) bool { return gone[i.ID] })
	}
}

// of reports whether the claim may be of that queue. Tokens of two queues may be equal: both are read versions.
func (c *Claim) of(q *Queue) bool { return c.Queue == "" || c.Queue == q.name }

// ledBy reports whether the group begins with the acked items, all items of the claim are acked, and no other item lies
// between them. This holds if ahead, the key behind the group's first n items, is greater than each of the n acked
// ones. All of these exist, because only the holder may remove an item of a claim. Example: 1, 3 are acked. If 2 has
// come back since, or was enqueued late, the key behind the first two items is 3.
func (s *settlement) ledBy(w *txn, acked []rec.Item) (bool, error) {
	if s.ahead == nil || len(acked) == 0 || len(acked) != len(s.claim.Items) {
		return false, nil
	}
	k, err := s.ahead.Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read head: %w", err)
	}
	last := w.keys.laneItem(s.lane, idOf(acked[len(acked)-1], s.claim.Group))
	return !w.keys.items(s.lane).Contains(k) || bytes.Compare(k, last) > 0, nil
}

// remove clears the acked items: several that lead the group by one range, with a conflict on items whose enqueue
// commits late, with an index in between; all others by their exact keys.
func (s *settlement) remove(w *txn, all, acked []rec.Item, archived bool) error {
	group := s.claim.Group
	if !s.leads || len(acked) < 2 || !w.keys.plan.IsPlain() {
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
func (s *settlement) readNext(w *txn, acked []rec.Item) error {
	if s.leads {
		k, err := s.ahead.Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read head: %w", err)
		}
		s.next = kv.Done(k, nil)
		return nil
	}
	s.next = w.head(s.lane)
	return nil
}

// finish writes what depends on the reads that check began.
func (s *settlement) finish(w *txn) error {
	switch {
	case s.next != nil:
		_, _, err := w.leave(s.lane, s.next, guard.ReleaseEmpty, s.held.LeadsSuspects())
		return err
	case s.attempt != nil:
		return s.giveBack(w)
	}
	return nil
}

// giveBack counts the attempt and leaves the group ready, delayed or marked.
func (s *settlement) giveBack(w *txn) error {
	group := s.claim.Group
	first := idOf(s.left[0], group)
	key := w.keys.attempt(first)
	v, err := s.attempt.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read attempts: %w", err)
	}
	var record rec.Attempt
	if v != nil {
		if record, err = rec.UnpackAttempt(key, v); err != nil {
			return err
		}
	}
	m := s.held.Mark()
	s.follows, s.waits = "", 0
	if !s.back.Release {
		if s.why == "" && record.Suspect() {
			record.LastError = rec.Cut("failed; before, " + record.LastError) // a call has ended
		}
		record = record.Failed(s.held.Claim().SinceMS, w.nowMS, s.why)
		w.count(countNacked, 1)
		f, err := w.judge(first, record, s.back.Reject)
		if err != nil {
			return err
		}
		if s.follows = f.follows(); f.endsItem() {
			return s.deadLetterItem(w, &f)
		}
		if m, err = f.carryOut(w, m, ID{}); err != nil {
			return err
		}
	}
	if m != nil {
		w.end(s.lane, s.held, m)
		return nil
	}
	wait, err := s.wait(w, record.Count)
	if err != nil {
		return err
	}
	s.waits = wait
	if ms := wait.Milliseconds(); ms > 0 {
		if s.back.Release { // without a failure the record tells when the delay has begun: see delayIsWrong
			record.LastMS = w.nowMS
			w.tx.Set(key, record.Pack())
		}
		// A delay has no holder: until its end every hint of the group is stale.
		delay := rec.Holding{Kind: rec.KindDelay, Token: s.held.Token, EndMS: w.nowMS + ms}
		w.put(s.lane, s.held, rec.HeldBy(delay, nil), first.Index)
		return nil
	}
	w.end(s.lane, s.held, nil)
	if lanes.IsHold(s.lane) {
		_, _, err = w.letGo(s.lane)
		return err
	}
	_, err = w.rehint(first.Index, s.lane, hinted(record))
	return err
}

// deadLetterItem dead-letters the item that was tried and leaves the rest of the group ready, or marked.
func (s *settlement) deadLetterItem(w *txn, f *failure) error {
	if _, err := f.deadLetter(w); err != nil {
		return err
	}
	if !w.end(s.lane, s.held, s.held.Mark()) {
		return nil
	}
	var err error
	if len(s.left) == 1 {
		_, _, err = w.leave(s.lane, nil, guard.ReleaseEmpty, s.held.LeadsSuspects())
	} else {
		_, err = w.rehint(s.left[1].Index, s.lane, 0)
	}
	return err
}

// wait is for how long the group must not be delivered after so many failures.
func (s *settlement) wait(w *txn, failures int) (time.Duration, error) {
	if s.back.Delay > 0 || s.back.AtOnce || s.back.Release {
		return s.back.Delay, nil
	}
	config, err := w.config()
	return config.Retry.delay(failures, w.q.random.Float()), err
}

// Extend makes a claim last for lease from now on (not from its old end), and returns its new end.
// lease is MinLease to MaxLease; 0 = the queue's.
//
// Errors: ErrClaimLost, *LimitError, ErrClosed, and the engine's.
func (q *Queue) Extend(ctx context.Context, c *Claim, lease time.Duration) (time.Time, error) {
	s, err := newExtension(c, lease)
	if err == nil {
		err = q.settleAlone(ctx, s)
	}
	if err != nil {
		return time.Time{}, wrap("extend", err)
	}
	c.extended(s)
	return s.until, nil
}

// extended notes the new end of the claim, which has a lease of its own from then on.
func (c *Claim) extended(s *settlement) {
	claimsMu.Lock()
	defer claimsMu.Unlock()
	c.Until, c.ends, c.beat, c.pulse = s.until, s.ends, uuid.Nil, nil
}

// ExtendTx extends in the caller's transaction, as SettleTx settles.
func (q *Queue) ExtendTx(ctx context.Context, tx kv.Tx, c *Claim, lease time.Duration) (time.Time, error) {
	s, err := newExtension(c, lease)
	if err != nil {
		return time.Time{}, wrap("extend", err)
	}
	err = q.settleTx(ctx, tx, s)
	return s.until, wrap("extend", err)
}

func newExtension(c *Claim, lease time.Duration) (*settlement, error) {
	return &settlement{claim: c, extends: true, lease: lease}, checkLease(lease)
}

// extend rewrites lock and timer, under the read conflict on the lock that begin added. A claim by heartbeat has a
// lease of its own from then on, unless it is proven.
func (s *settlement) extend(w *txn) error {
	lease, err := w.lease(s.lease)
	if err != nil {
		return err
	}
	c, end := s.held.Claim(), w.nowMS+lease.Milliseconds()
	next, err := extended(w, s.held, end)
	if err != nil {
		return err
	}
	if s.proves {
		if s.claim.beat != uuid.Nil {
			next, end = s.held, c.EndMS
		}
		next = next.Prove()
	}
	w.put(s.lane, s.held, next, c.Items[0].Index)
	s.until, s.ends = fromMillis(end), byMonotonic(&w.view, end)
	return nil
}

// archives reports whether finished items are archived.
func (w *txn) archives() (bool, error) {
	config, err := w.config()
	return config.Archive > 0, err
}

// archive stores the items which are being finished. values are the items' values; nil = the item is missing. The
// caller then removes the items, but not their parts, because the archived items need the parts.
func (w *txn) archive(group string, items []rec.Item, values [][]byte) error {
	if len(items) == 0 {
		return nil
	}
	place, err := w.clock()
	if err != nil {
		return err
	}
	at := rec.Completion{Place: place, Index: items[0].Index, Random: items[0].Random}
	for i, d := range items {
		a := rec.Archived{CompletedMS: w.nowMS, At: at, Item: values[i]}
		if values[i] != nil {
			w.tx.Set(w.keys.archive(idOf(d, group)), a.Pack())
		}
	}
	e := rec.ArchiveEntry{CompletedMS: w.nowMS, Group: group, Items: items}
	w.tx.Set(w.keys.archived(at), e.Pack())
	return nil
}

// finishing holds the reads of the values of the items which a settlement will finish, if the queue has an archive.
type finishing struct {
	gets map[ID]kv.Future[[]byte]
	run  kv.Future[[]kv.KV] // of all items of a claim
}

// readFinishing starts reading what s will finish, as far as known before the lock is read.
func (s *settlement) readFinishing(w *txn) {
	s.finishing = finishing{}
	if s.extends || s.keeps || w.q.knownConfig().Archive == 0 {
		return
	}
	snapshot := w.read
	if n := len(s.items); n > 0 {
		s.finishing.run = snapshot.GetRange(kv.Range{
			Begin: kv.FirstGreaterOrEqual(w.keys.item(s.items[0])),
			End:   kv.FirstGreaterThan(w.keys.item(s.items[n-1])),
		}, kv.RangeOptions{})
		return
	}
	s.finishing.gets = make(map[ID]kv.Future[[]byte], len(s.ids))
	for _, id := range s.ids {
		s.finishing.gets[id] = snapshot.Get(w.keys.item(id))
	}
}

// archive archives the acked items if the queue has an archive (kept). After an error nothing was written.
func (s *settlement) archive(w *txn, acked []rec.Item) (kept bool, err error) {
	if kept, err = w.archives(); err != nil || !kept || len(acked) == 0 {
		return kept, err
	}
	group := s.claim.Group
	found := make(map[string][]byte)
	if s.finishing.run != nil {
		rows, err := s.finishing.run.Wait(w.ctx)
		if err != nil {
			return false, fmt.Errorf("read items: %w", err)
		}
		for _, row := range rows {
			found[string(row.Key)] = row.Value
		}
	}
	gets := make([]kv.Future[[]byte], len(acked))
	for i, d := range acked {
		id := idOf(d, group)
		key := w.keys.item(id)
		if v := found[string(key)]; v != nil {
			gets[i] = kv.Done(v, nil)
		} else if gets[i] = s.finishing.gets[id]; gets[i] == nil {
			gets[i] = w.read.Get(key)
		}
	}
	values := make([][]byte, len(acked))
	for i := range gets {
		if values[i], err = gets[i].Wait(w.ctx); err != nil {
			return false, fmt.Errorf("read item: %w", err)
		}
	}
	return true, w.archive(group, acked, values)
}

// A group may have a state: bytes which its holders store with the group, from claim to claim. The holder writes the
// state, under the check of the token (Settlement.State), or an operator (SetGroupState); a claim reads the state. The
// state outlives claims, and the group's last item, until cleared or purged with the group. Every writer also has a
// write conflict on the group's lock, so a claim needs no conflict on the state.

// keep writes the state alone, under the read conflict on the lock that begin added.
func (s *settlement) keep(w *txn) error {
	// The lock's value stays, so add a write conflict: a takeover which has read the old state must fail.
	if err := w.excludeHolders(guard.KeepExclude, s.claim.Group); err != nil {
		return err
	}
	w.setState(s.claim.Group, s.state)
	return nil
}

// GroupState reads the state of a group, held or not; nil = no state. It conflicts with nothing.
func (q *Queue) GroupState(ctx context.Context, group string) ([]byte, error) {
	if err := checkGroup(group); err != nil {
		return nil, wrap("group state", err)
	}
	var state []byte
	err := q.view(ctx, func(v *view) (err error) {
		state, err = v.waitState(v.readState(group, true))
		return err
	})
	return state, wrap("group state", err)
}
