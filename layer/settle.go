package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// Ack finishes items of a claim: an acked item is never delivered again. Without ids Ack finishes all that the claim
// still has; with an empty slice of ids, nothing. With its last item the claim ends, and the group is free for others.
//
// A handle which receives at once after an ack keeps the group: others who wait are woken after at most 32 acks in a
// row, or a second, or 20 ms after an ack which no receive has followed.
//
// Acks, nacks, extends, enqueues and receives of a handle which arrive while a transaction is in flight travel together
// in the next transaction; each has its own result.
//
// Errors: ErrClaimLost, ErrNotInClaim (also for an item acked before; nothing was changed after either), ErrClosed, and
// the engine's.
func (q *Queue) Ack(ctx context.Context, c *Claim, ids ...ID) error {
	if ids != nil && len(ids) == 0 {
		return nil
	}
	err := q.settleAlone(ctx, &settlement{claim: c, ids: ids})
	if err == nil {
		c.drop(ids, nil)
	}
	return wrap("ack", err)
}

// AckAll acks all items left of each claim, in one transaction where possible: for who receives many small claims, as
// by Heads, and is done with all. The claims may be of different receives and handles, held by anybody; only group,
// token and the items' ids count. Up to 256 claims, with up to 2000 items, travel together; more take several
// transactions.
//
// Each claim has its own outcome: a claim that is lost keeps no other from its end. The error joins a *ClaimError for
// each claim that was not acked, in the order of claims; nil = all were. The errors in there are Ack's. Repeat the call
// with the claims of those errors alone.
func AckAll(ctx context.Context, q *Queue, claims ...*Claim) error {
	settled := make([]*settlement, len(claims))
	for i, c := range claims {
		settled[i] = &settlement{claim: c}
	}
	var failed []error
	for i, err := range q.settleAll(ctx, settled) {
		if err != nil {
			failed = append(failed, &ClaimError{Claim: claims[i], Err: err})
		}
	}
	return wrap("ack all", errors.Join(failed...))
}

// AckTx acks in the caller's transaction. An error means that nothing was written; the transaction may go on without
// the ack, unless the error wraps a *kv.Error. The caller answers for an unknown commit: use Once.
//
// Reads: the lock, with a conflict. When the claim ends: the key of the next item at snapshot, with a conflict on the
// whole group if the group is empty now, and else from the first to the last of several items acked without ids. If the
// queue has an archive: the items, at snapshot.
func (q *Queue) AckTx(ctx context.Context, tx kv.Tx, c *Claim, ids ...ID) error {
	if ids != nil && len(ids) == 0 {
		return nil
	}
	return wrap("ack", q.settleTx(ctx, tx, &settlement{claim: c, ids: ids}))
}

// NackOptions say how a claim is given back.
type NackOptions struct {
	// Acked are the items to finish in the same transaction, before the rest is given back.
	Acked []ID
	// Err is stored with the attempt of the item that was tried: the first maxErrorText bytes. May be nil.
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
	// OnFailure. The first maxErrorText bytes are stored. Not with Release, Delay or AtOnce.
	Reject string
	// SetState stores State with the group in the same transaction, as Queue.SetState does; no bytes clear the state.
	SetState bool
	State    []byte // only with SetState; at most MaxStateSize bytes
}

// Nack gives back a claim, or its end (From): every item still in the claim is delivered again, in the same order. The
// first was tried and counts a failed attempt; the items behind count none. If the attempt was the item's last, or the
// item is rejected, the queue's OnFailure decides: the item becomes a dead letter, and the items behind are free at
// once; or the group halts; or the item is tried again.
//
// Errors: as Ack's, *LimitError for the delay and the state, and ErrOptions.
func (q *Queue) Nack(ctx context.Context, c *Claim, o NackOptions) error {
	if err := o.check(); err != nil {
		return wrap("nack", err)
	}
	err := q.settleAlone(ctx, o.settlement(c))
	if err == nil && o.From != nil {
		c.drop(o.Acked, o.From)
	}
	return wrap("nack", err)
}

// NackTx gives a claim back in the caller's transaction, as AckTx acks.
func (q *Queue) NackTx(ctx context.Context, tx kv.Tx, c *Claim, o NackOptions) error {
	if err := o.check(); err != nil {
		return wrap("nack", err)
	}
	return wrap("nack", q.settleTx(ctx, tx, o.settlement(c)))
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
	if len(o.State) > 0 && !o.SetState {
		return fmt.Errorf("%w: a state that is not to be set", ErrOptions)
	}
	if err := checkState(o.State); err != nil {
		return err
	}
	return checkDelay(o.Delay)
}

// settlement makes the settlement of a claim which is given back.
func (o *NackOptions) settlement(c *Claim) *settlement {
	return &settlement{claim: c, ids: o.Acked, back: o, sets: o.SetState, state: o.State}
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
	for i, err := range q.pipeline.submitAll(ctx, os) {
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
	if len(s.ids) > 0 && s.back == nil {
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

// checkClaim checks that there is a claim to settle, and goes on with a copy.
func (s *settlement) checkClaim(q *Queue) (err error) {
	if s.claim == nil {
		return fmt.Errorf("%w: no claim", ErrOptions)
	}
	s.claim = s.claim.snapshot()
	if s.sets && (s.claim.Where != nil || s.claim.Hold != (ID{})) {
		return errLaneState
	}
	if s.change != nil && s.claim.Hold != (ID{}) {
		return fmt.Errorf("%w: an item under a claim of its own is not advanced", ErrOptions)
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
	ids     []ID         // to ack; none = every outstanding item, if nothing is given back
	back    *NackOptions // nil = nothing is given back
	extends bool
	lease   time.Duration // of an extend; 0 = the queue's
	sets    bool          // the group's state, to state; nothing = cleared
	state   []byte
	keeps   bool // nothing is acked: only the state is set
	copies  bool // acked items go to the archive, as far as was known at submission
	// change returns how an item is advanced rather than acked; nil = it is acked. change itself nil = all are acked.
	change func(id ID) func(m *Message) error

	// Of the attempt under way.
	lock kv.Future[[]byte]
	finishing
	advancing
	held    *record
	left    []delivered
	ahead   kv.Future[[]byte] // the key behind the first len(claim.Items) items, read before the acked are known
	leads   bool              // the group begins with the acked items, see ledBy
	next    kv.Future[[]byte] // the first item left in the group, if nothing is left of the claim
	attempt kv.Future[[]byte] // of the item that was tried, if the rest is given back

	until time.Time // the result of an extend
	// What comes of a failed attempt: the results of a nack that counts one.
	follows Follows
	waits   time.Duration

	done atomic.Bool // committed, as far as the handle knows
}

// begin starts reading the lock, with a conflict.
func (s *settlement) begin(w *txn) {
	s.lock, s.held, s.left, s.ahead, s.next, s.attempt = guardSettleLock.get(w.tx, w.keys.lock(s.lane)),
		nil, nil, nil, nil, nil
	s.leads = false
	s.readFinishing(w)
	s.readAdvancing(w)
	acksAll := len(s.ids) == 0 && s.back == nil && s.change == nil
	if n := len(s.claim.Items); n > 0 && acksAll && !s.extends && !s.keeps &&
		!isHold(s.lane) {
		behind := kv.FirstGreaterOrEqual(w.keys.items(s.lane).Begin)
		behind.Offset += n
		s.ahead = w.tx.Snapshot().GetKey(behind)
	}
}

// lost returns the error of a claim which the group's record r does not bear.
func (s *settlement) lost(w *txn, r *record) error {
	what, held := s.claim.words()
	now := "nobody holds " + held + ": the claim has ended"
	if c := r.claim(); c != nil {
		now = fmt.Sprintf("%s is held under token %d, by %q", held, c.token, c.owner)
	}
	if !s.claim.of(w.q) {
		now = fmt.Sprintf("the claim is of queue %q", s.claim.Queue)
	}
	return fmt.Errorf("%w: %s, token %d: %s", ErrClaimLost, what, s.claim.Token, now)
}

// check does the fencing check, and then the writes which need no more reads. An error means that nothing was written.
// A lease which has run out does no harm as long as nobody has taken over, because the token is still the lock's.
func (s *settlement) check(w *txn) error {
	group := s.claim.Group
	v, err := s.lock.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read lock: %w", err)
	}
	var r *record
	if v != nil {
		if r, err = unpackRecord(w.keys.lock(s.lane), v); err != nil {
			return err
		}
	}
	c := r.claim()
	if c == nil || c.token != s.claim.Token && !lacks(guardToken) || !s.claim.of(w.q) {
		return s.lost(w, r)
	}
	s.held = r
	if s.extends {
		return s.extend(w)
	}
	if s.keeps {
		return s.keep(w)
	}
	acked, left, err := c.divide(group, s.ids, s.back == nil)
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
	w.clearAttempts(group, c.items, moved)
	if s.sets {
		w.setState(group, s.state)
	}
	if err := s.remove(w, c.items, acked, archived); err != nil {
		return err
	}
	w.count(countAcked, len(acked))
	w.changeAll(ChangeFinished, group, acked)
	w.changeAll(ChangeAdvanced, group, s.given(moved))
	w.count(countReturned, -len(acked)) // put adds all which leave the claim
	if stays > 0 {
		w.put(s.lane, r, r.with(left[:stays], c.endMS), 0)
		return nil
	}
	w.ended(s.lane)
	if len(left) > 0 {
		s.attempt = w.tx.Snapshot().Get(w.keys.attempt(left[0].id(group)))
		return nil
	}
	if !w.end(s.lane, r, r.mark) || isHold(s.lane) {
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

// ledBy reports whether the group begins with the acked items, all of the claim, and nothing lies between two of them.
// So it is if ahead, the key behind the group's first n items, is greater than each of the n acked: these exist, for
// nobody else may remove an item of a claim. Example: 1, 3 are acked. If 2 has come back meanwhile, or was enqueued
// late, the key behind the first two items is 3.
func (s *settlement) ledBy(w *txn, acked []delivered) (bool, error) {
	if s.ahead == nil || len(acked) == 0 || len(acked) != len(s.claim.Items) {
		return false, nil
	}
	k, err := s.ahead.Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read head: %w", err)
	}
	last := w.keys.laneItem(s.lane, acked[len(acked)-1].id(s.claim.Group))
	return !w.keys.items(s.lane).Contains(k) || bytes.Compare(k, last) > 0, nil
}

// remove clears the acked items: several that lead the group by one range, with a conflict on items whose enqueue
// commits late, with an index in between; all others by their exact keys. The item of a hold left the free lane when it
// was taken hold of.
func (s *settlement) remove(w *txn, all, acked []delivered, archived bool) error {
	group := s.claim.Group
	if isHold(s.lane) && w.keys.takesAny() {
		for _, d := range acked {
			w.tx.Clear(w.keys.item(d.id(group)))
			w.vacate(d.index, w.keys.plan.lanesOf(group, ""))
		}
		w.clearRest(group, all, acked, archived)
		return nil
	}
	if !s.leads || len(acked) < 2 || w.keys.plan != nil {
		w.remove(group, all, acked, archived)
		return nil
	}
	first, last := acked[0].id(group), acked[len(acked)-1].id(group)
	items := kv.KeyRange{Begin: w.keys.item(first), End: w.keys.after(w.keys.item(last))}
	// Before the clear, because a read conflict leaves out what the transaction itself has cleared.
	if err := guardRangeClear.read(w.tx, items); err != nil {
		return err
	}
	w.tx.ClearRange(items)
	w.clearRest(group, all, acked, archived)
	return nil
}

// readNext starts reading the first item left in the group. No read is needed if the acked items have led the group:
// what lay behind them is the next.
func (s *settlement) readNext(w *txn, acked []delivered) error {
	if s.leads || lacks(guardAhead) && s.ahead != nil && len(acked) == len(s.claim.Items) {
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
		_, _, err := w.leave(s.lane, s.next, guardReleaseEmpty, false)
		return err
	case s.attempt != nil:
		return s.giveBack(w)
	}
	return nil
}

// giveBack counts the attempt and leaves the group ready, delayed or marked.
func (s *settlement) giveBack(w *txn) error {
	group := s.claim.Group
	first := s.left[0].id(group)
	key := w.keys.attempt(first)
	v, err := s.attempt.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read attempts: %w", err)
	}
	var record attempt
	if v != nil {
		if record, err = unpackAttempt(key, v); err != nil {
			return err
		}
	}
	m := s.held.mark
	s.follows, s.waits = "", 0
	if !s.back.Release {
		text := ""
		if s.back.Err != nil {
			text = s.back.Err.Error()
		}
		record = record.failed(s.held.claim().sinceMS, w.nowMS, text)
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
	wait, err := s.wait(w, record.count)
	if err != nil {
		return err
	}
	s.waits = wait
	if ms := wait.Milliseconds(); ms > 0 {
		// A delay has no holder: until its end every hint of the group is stale.
		delay := holding{kind: kindDelay, token: s.held.token, endMS: w.nowMS + ms}
		w.put(s.lane, s.held, heldBy(delay, nil), first.Index)
		return nil
	}
	w.end(s.lane, s.held, nil)
	if isHold(s.lane) {
		return w.letGo(s.lane)
	}
	_, err = w.rehint(first.Index, s.lane, record.count)
	return err
}

// deadLetterItem dead-letters the item that was tried and leaves the rest of the group ready, or marked.
func (s *settlement) deadLetterItem(w *txn, f *failure) error {
	if _, err := f.deadLetter(w); err != nil {
		return err
	}
	if !w.end(s.lane, s.held, s.held.mark) {
		return nil
	}
	var err error
	if len(s.left) == 1 {
		_, _, err = w.leave(s.lane, nil, guardReleaseEmpty, false)
	} else {
		_, err = w.rehint(s.left[1].index, s.lane, 0)
	}
	return err
}

// wait is for how long the group must not be delivered after so many failures.
func (s *settlement) wait(w *txn, failures int) (time.Duration, error) {
	if s.back.Delay > 0 || s.back.AtOnce || s.back.Release {
		return s.back.Delay, nil
	}
	config, err := w.config()
	return config.Retry.delay(failures, w.q.random.float()), err
}

// Extend makes a claim last for lease from now on (not from its old end), and returns its new end.
// lease is MinLease to MaxLease; 0 = the queue's.
//
// Errors: ErrClaimLost, *LimitError, ErrClosed, and the engine's.
func (q *Queue) Extend(ctx context.Context, c *Claim, lease time.Duration) (time.Time, error) {
	s, err := newExtension(c, lease)
	if err != nil {
		return time.Time{}, wrap("extend", err)
	}
	if err := q.settleAlone(ctx, s); err != nil {
		return time.Time{}, wrap("extend", err)
	}
	claimsMu.Lock()
	defer claimsMu.Unlock()
	c.Until, c.beat = s.until, uuid.Nil
	return s.until, nil
}

// ExtendTx extends in the caller's transaction, as AckTx acks.
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
// lease of its own from then on.
func (s *settlement) extend(w *txn) error {
	lease, err := w.lease(s.lease)
	if err != nil {
		return err
	}
	c, end := s.held.claim(), w.nowMS+lease.Milliseconds()
	w.put(s.lane, s.held, s.held.until(end), c.items[0].index)
	s.until = fromMillis(end)
	return nil
}
