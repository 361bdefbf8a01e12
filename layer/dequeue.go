package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// ReceiveOptions say what a receive may take. The zero value is the normal use.
type ReceiveOptions struct {
	// Max is the number of items over all groups; 0 = DefaultMax, at most MaxBatch.
	Max int
	// MaxBytes bounds the bodies together; 0 = DefaultMaxBytes. A first item that is larger comes alone.
	MaxBytes int
	// MaxGroups is the number of groups to claim; 0 = as many as it takes to fill Max.
	MaxGroups int
	// Lease is how long the claims last unless extended; 0 = the queue's, else MinLease to MaxLease.
	Lease time.Duration
	// Strategy says how the receive spreads over groups. Not with Group.
	Strategy Strategy
	// Group, if not nil, is the only group to receive from; see OnlyGroup.
	Group *string
	// State asks for the groups' state, too: Claim.State. It costs one more read a group, beside the others.
	State bool
	// AttemptID, if not "", names this receive, so that it can be repeated after a lost answer, from another process too:
	// one with the same id, within ReceiveIDLife, returns the claims that the first was given, under the same tokens and
	// with the leases that they have, and takes nothing more. Claims that have ended since are left out, items that were
	// acked too; if nothing is left, it returns nothing. If the first was given nothing, the id is still unused. What
	// else the options of the repetition say does not count, but for State. Use a new id for each receive, such as a
	// UUID; at most MaxReceiveIDSize bytes of UTF-8. It costs one read and one write more. Not with AckReceive. A receive
	// with an id that waits looks now and then, and what it claims is not given back when its ctx ends.
	ReceiveID string
	// Wait is how long to wait for a group to become ready if none is; 0 = not at all, at most MaxWait. ReceiveTx
	// cannot wait.
	Wait time.Duration
}

func (o ReceiveOptions) withDefaults() (ReceiveOptions, error) {
	if o.Max == 0 {
		o.Max = DefaultMax
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Max < 0 || o.Max > MaxBatch {
		return o, &LimitError{What: "receive", Unit: "items", Got: int64(o.Max), Min: 1, Max: MaxBatch}
	}
	if o.MaxBytes < 0 {
		return o, &LimitError{What: "receive", Unit: "bytes", Got: int64(o.MaxBytes), Min: 1, Max: MaxBatch * MaxBodySize}
	}
	if o.MaxGroups < 0 {
		return o, &LimitError{What: "receive", Unit: "groups", Got: int64(o.MaxGroups), Min: 1, Max: MaxBatch}
	}
	if o.MaxGroups == 0 {
		o.MaxGroups = o.Max
	}
	if o.Wait < 0 || o.Wait > MaxWait {
		return o, durationLimit("wait", o.Wait, 0, MaxWait)
	}
	if o.Strategy < FillGroup || o.Strategy > Heads {
		return o, fmt.Errorf("%w: strategy %d", ErrOptions, o.Strategy)
	}
	if o.Group != nil {
		if o.Strategy != FillGroup {
			return o, fmt.Errorf("%w: a strategy for a receive from one group", ErrOptions)
		}
		if err := checkGroup(*o.Group); err != nil {
			return o, err
		}
		o.MaxGroups = 1
	}
	if err := checkReceiveID(o.ReceiveID); err != nil {
		return o, err
	}
	return o, checkLease(o.Lease)
}

// Claim is one holder's exclusive right to a group, and the items delivered under it, in order. It is plain
// data: Group, Token and the items' ids are all that Ack, Nack and Extend need, in any process.
type Claim struct {
	Group string
	// Token grows from claim to claim of a group. Pass it to systems outside the database, so that they can
	// refuse a holder that has been overtaken.
	Token int64
	Items []Item
	Until time.Time // the end of the lease, by this worker's clock
	// State is what was kept with the group (SetState, AckState) when it was claimed, if ReceiveOptions.State asked for
	// it; nil = there is none.
	State []byte
}

// Receive claims ready groups, the oldest head first, and returns their items, as o.Strategy says, up to o.Max.
// A group in other hands is passed over, whole. It returns no claim if no group is ready, or became so within
// o.Wait.
//
// Every claim must be acked, nacked or extended before its lease ends; else its group is delivered to another
// worker, and the first item counts a failed attempt. Under contention the order between groups is given up
// for parallelism; the order within a group never is.
//
// A group whose next item cannot be read is passed over; if there is no other, the error wraps ErrCorrupt.
//
// Waiting costs next to nothing: all receives of a handle wait on one request of that handle, which whoever
// makes a group ready wakes. Receives that wait for one Group look now and then.
func (q *Queue) Receive(ctx context.Context, o ReceiveOptions) ([]*Claim, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, wrap("receive", err)
	}
	claims, err := q.receive(ctx, nil, &reception{o: o})
	return claims, wrap("receive", err)
}

// AckReceive acks all that the claim still has and receives, in one transaction where it can: for a worker that
// finishes one claim and wants the next. If the ack fails nothing is received, and the error is that of Ack. If the ack is
// done, and the receive fails or is given up, there are no claims and no error: the next receive says what is wrong.
func (q *Queue) AckReceive(ctx context.Context, c *Claim, o ReceiveOptions) ([]*Claim, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, wrap("ack and receive", err)
	}
	if o.ReceiveID != "" {
		return nil, wrap("ack and receive", fmt.Errorf("%w: a receive id of a receive that acks", ErrOptions))
	}
	claims, err := q.receive(ctx, &settlement{claim: c}, &reception{o: o})
	return claims, wrap("ack and receive", err)
}

// receive settles s, if there is one, and receives.
func (q *Queue) receive(ctx context.Context, s *settlement, r *reception) ([]*Claim, error) {
	claims, err := q.settleAndReceive(ctx, s, r)
	if err != nil && s != nil && q.isDone(s) {
		return nil, nil // of an error the caller would conclude that nothing was settled
	}
	return claims, err
}

func (q *Queue) settleAndReceive(ctx context.Context, s *settlement, r *reception) ([]*Claim, error) {
	if r.o.Wait == 0 || r.o.Group != nil || r.o.ReceiveID != "" || q.opts.Test.Path == Direct {
		return q.receiveNow(ctx, s, r)
	}
	return q.receiveWaiting(ctx, s, r)
}

// receiveNow receives without waiting, or by looking now and then for one group.
func (q *Queue) receiveNow(ctx context.Context, s *settlement, r *reception) ([]*Claim, error) {
	end := time.Now().Add(r.o.Wait)
	for pause := firstWait; ; pause = min(2*pause, groupPoll) {
		if err := q.submit(ctx, &operation{settle: s, receive: r}); err != nil {
			return nil, err
		}
		left := time.Until(end)
		if r.more && len(r.claims) == 0 {
			s, pause = nil, firstWait
			continue // each look settles a part of what is overdue
		}
		if len(r.claims) > 0 || r.repeated || left <= 0 {
			return r.claims, nil
		}
		s = nil
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
			q.yield(ctx, "look again")
		case <-r.stop:
			timer.Stop()
			return nil, nil
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// groupPoll is the longest pause between two looks of a receive that waits for one group.
const groupPoll = time.Second

// ReceiveTx claims in the caller's transaction: the claims hold if and only if it commits. Its leases begin
// now, not at the commit. It cannot wait. The caller answers for an unknown commit: use Once.
//
// Conflicts: with any other claim, ack, nack or extend of the groups it takes.
func (q *Queue) ReceiveTx(ctx context.Context, tx kv.Tx, o ReceiveOptions) ([]*Claim, error) {
	if q.closed.Load() {
		return nil, wrap("receive", ErrClosed)
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, wrap("receive", err)
	}
	if o.Wait > 0 {
		return nil, wrap("receive", fmt.Errorf("%w: ReceiveTx cannot wait", ErrOptions))
	}
	w := q.work(ctx, tx)
	r := &reception{o: o}
	c := w.newClaimer([]*reception{r})
	c.begin()
	if err := c.claim(); err != nil {
		return nil, wrap("receive", err)
	}
	if err := w.finish(); err != nil {
		return nil, wrap("receive", err)
	}
	return r.claims, wrap("receive", r.err())
}

// reception is one receive.
type reception struct {
	o    ReceiveOptions
	stop <-chan struct{} // if closed, a wait is cut short; may be nil

	// Of the attempt under way.
	claims  []*Claim
	items   int
	bytes   int
	stopped bool  // the next item would go over o.MaxBytes
	broken  error // the first group that could not be read
	more    bool  // so much was overdue that it could not all be settled
	// repeated: it was answered as the receive with the same receive id.
	repeated bool
}

// begin forgets what an earlier attempt left.
func (r *reception) begin() {
	r.claims, r.items, r.bytes, r.stopped, r.broken, r.repeated = nil, 0, 0, false, nil, false
	r.more = false
}

// full reports whether nothing more may be taken.
func (r *reception) full() bool {
	return r.stopped || r.items >= r.o.Max || len(r.claims) >= r.o.MaxGroups
}

// err is the reason why nothing was received, if there is one other than that nothing is ready.
func (r *reception) err() error {
	if len(r.claims) > 0 {
		return nil
	}
	return r.broken
}

// result is what the receipt keeps of a receive: groups and tokens.
func (r *reception) result() tuple.Tuple {
	t := make(tuple.Tuple, 0, 2*len(r.claims))
	for _, c := range r.claims {
		t = append(t, c.Group, c.Token)
	}
	return t
}

// claimer takes ready groups for the receives of one transaction, one after the other.
//
// Footprint, per group taken: reads the lock, the items and, if asked for, the state at snapshot and adds a read conflict on the lock
// alone; writes lock and timer, clears the hint it came by. A hint or timer that turns out stale is cleared
// only with a read conflict on what makes it stale (the lock, or the emptiness of the group, or the gap up to a head that
// is not due yet), because a release may write that very key again. A takeover reads and writes the attempt record of the item that was tried.
type claimer struct {
	*work
	search *search
	met    map[string]bool // groups looked at in this transaction; true = settled, under a conflict
	looks  []look          // under way
	owed   []*reception    // that have not had their turn, to know how much to read ahead
	passed []candidate     // left to the handle's other transactions in flight
	// granted is the grants to the handle, being read; nil = it has no request.
	granted kv.Future[[]kv.KV]
	grants  map[string]bool // the keys of those that are not taken yet
	// repeats is what is kept of the receive ids, being read.
	repeats map[string]kv.Future[[]byte]
	left    bool // the group just looked at stays as it is, and so does what leads to it
	taken   int  // groups
	items   int
}

// look is the reads of one candidate under way.
type look struct {
	candidate
	limit int // of the items read
	lock  kv.Future[[]byte]
	items kv.Future[[]kv.KV]
	state kv.Future[[]byte] // nil if no receive that is owed asks for it
	pace  kv.Future[[]byte] // nil if the queue has no rate, as far as was known
}

// maxWave bounds the groups looked at together, and with that the memory of a receive.
const maxWave = 64

func (w *work) newClaimer(rs []*reception) *claimer {
	return &claimer{work: w, search: newSearch(w), met: make(map[string]bool), grants: make(map[string]bool), owed: rs}
}

// begin starts the reads that do not depend on any other. What the transaction writes between this and claim is
// taken into account.
func (c *claimer) begin() {
	c.readRepeats()
	if index, _ := c.q.staging.requested(); index != 0 {
		random := c.q.staging.random
		c.granted = c.tx.Snapshot().GetRange(c.q.keys.grants(random).Selectors(), kv.RangeOptions{Limit: maxWave})
	}
	for _, r := range c.owed {
		if r.o.Group == nil {
			n, _ := c.wanted()
			c.search.start(n)
			return
		}
	}
}

// claim receives for each that is owed, in their order.
func (c *claimer) claim() error {
	named, err := c.repeat()
	if err != nil {
		return err
	}
	if err := c.accept(); err != nil {
		return err
	}
	for len(c.owed) > 0 {
		if err := c.receive(c.owed[0]); err != nil {
			return err
		}
		c.owed = c.owed[1:]
	}
	if c.taken > 0 {
		c.q.spread.learn(c.items, c.taken)
	}
	c.keepRepeats(named)
	return nil
}

// receive takes groups for r until it is full or there are no more.
func (c *claimer) receive(r *reception) error {
	if r.o.Group != nil {
		l := c.read(candidate{group: *r.o.Group}, r.o.Max)
		if paused, err := c.paused(); err != nil || paused {
			return err
		}
		return c.settle(r, l, r.o.Max)
	}
	if r.o.Strategy == Layers {
		return c.receiveLayers(r)
	}
	for !r.full() {
		l, ok, err := c.next()
		if err != nil || !ok {
			return err
		}
		limit := r.o.Max - r.items
		if r.o.Strategy == Heads {
			limit = 1
		}
		if err := c.settle(r, l, limit); err != nil {
			return err
		}
	}
	return nil
}

// receiveLayers looks at as many groups as there may be items, and then takes from each what the layers give it.
func (c *claimer) receiveLayers(r *reception) error {
	type found struct {
		look
		have int
	}
	var all []found
	for len(all) < r.o.MaxGroups && len(all) < maxWave {
		l, ok, err := c.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		// What is not free, or not readable, is settled at once and takes no part.
		free, err := c.free(l)
		if err != nil {
			return err
		}
		if !free {
			if err := c.settle(r, l, 0); err != nil {
				return err
			}
			continue
		}
		rows, err := l.items.Wait(c.ctx)
		if err != nil {
			return fmt.Errorf("read items: %w", err)
		}
		allowed, err := c.allow(l.group, l.pace)
		if err != nil {
			return err
		}
		all = append(all, found{l, min(c.due(rows), allowed.items)})
	}
	have := make([]int, len(all))
	for i, f := range all {
		have[i] = f.have
	}
	for i, n := range layers(have, r.o.Max) {
		if n == 0 || r.full() {
			delete(c.met, all[i].group)
			continue
		}
		if err := c.settle(r, all[i].look, n); err != nil {
			return err
		}
	}
	return nil
}

// due is how many of these rows of a group may be delivered.
func (c *claimer) due(rows []kv.KV) int {
	for i, row := range rows {
		if until, err := c.early(row); err == nil && until > c.nowMS {
			return i
		}
	}
	return len(rows)
}

// free reports whether a look shows a group that can be taken: not held, not empty, and its head is due.
func (c *claimer) free(l look) (bool, error) {
	v, err := l.lock.Wait(c.ctx)
	if err != nil {
		return false, fmt.Errorf("read lock: %w", err)
	}
	rows, err := l.items.Wait(c.ctx)
	if err != nil {
		return false, fmt.Errorf("read items: %w", err)
	}
	if len(rows) == 0 {
		return false, nil
	}
	if until, err := c.early(rows[0]); err == nil && until > c.nowMS {
		return false, nil
	}
	if allowed, err := c.allow(l.group, l.pace); err != nil || allowed.items == 0 {
		if errors.Is(err, ErrCorrupt) {
			err = nil // whoever would take it meets it
		}
		return false, err
	}
	if v == nil {
		return !l.timer, nil
	}
	held, err := unpackLock(c.q.keys.lock(l.group), v)
	return err == nil && (l.accepts(held) || held.endMS <= c.nowMS && held.mark == nil), nil
}

// next returns the next group to look at, its reads under way; none if the queue is paused. Those of a whole wave are started together: as
// many as the receives that are still owed are likely to take.
func (c *claimer) next() (look, bool, error) {
	if len(c.looks) == 0 {
		n, limit := c.wanted()
		wave, err := c.search.next(n)
		if err != nil {
			return look{}, false, err
		}
		for _, w := range wave {
			if settled, met := c.met[w.group]; met {
				// A second hint of a group met before: what was found then makes this one stale too, unless this
				// transaction has left the group ready. As long as nothing has been settled, and so no conflict been
				// added, it stays.
				if settled && !c.ready[w.group] {
					c.clear(w.key)
				}
				continue
			}
			if c.flight != nil && !c.q.flights.take(c.flight, w.group) {
				c.passed = append(c.passed, w)
				continue
			}
			c.met[w.group] = false
			c.looks = append(c.looks, c.read(w, limit))
		}
		if len(c.looks) == 0 {
			if len(wave) > 0 {
				return c.next()
			}
			if len(c.passed) == 0 || len(c.owed) == 0 || len(c.owed[0].claims) > 0 {
				return look{}, false, nil
			}
			// There is nothing else. Whether the handle's other transactions take these is not known yet.
			passed := c.passed[:min(n, len(c.passed))]
			c.passed = c.passed[len(passed):]
			for _, w := range passed {
				if _, met := c.met[w.group]; met {
					continue // a second hint of a group: it stays
				}
				c.met[w.group] = false
				c.looks = append(c.looks, c.read(w, limit))
			}
			if len(c.looks) == 0 {
				return c.next()
			}
		}
	}
	// Here, when the reads are under way: it may have to be read itself.
	if paused, err := c.paused(); err != nil || paused {
		return look{}, false, err
	}
	l := c.looks[0]
	c.looks = c.looks[1:]
	if c.met[l.group] {
		// Settled since its reads began, by a receive that named it: they do not see that.
		l = c.read(l.candidate, l.limit)
	}
	return l, true, nil
}

// wanted is how many groups the receives that are still owed are likely to take, and how many items at most of one.
func (c *claimer) wanted() (groups, items int) {
	groups, items = 0, 1
	for _, r := range c.owed {
		groups += c.q.wantedGroups(r)
		if r.o.Strategy != Heads {
			items = max(items, r.o.Max-r.items)
		}
	}
	return min(max(groups, 1), maxWave), items
}

// wantedGroups is how many more groups a receive is likely to take, 1 at least.
func (q *Queue) wantedGroups(r *reception) int {
	left, groups := r.o.Max-r.items, r.o.MaxGroups-len(r.claims)
	switch r.o.Strategy {
	case FillGroup:
		groups = min(groups, q.spread.groupsFor(left))
	case Layers:
		groups = min(left, r.o.MaxGroups)
	default:
		groups = min(left, groups)
	}
	return max(groups, 1)
}

// read starts the reads of one candidate.
func (c *claimer) read(w candidate, limit int) look {
	snapshot := c.tx.Snapshot()
	return look{
		candidate: w,
		limit:     limit,
		lock:      snapshot.Get(c.q.keys.lock(w.group)),
		items:     snapshot.GetRange(c.q.keys.items(w.group).Selectors(), kv.RangeOptions{Limit: limit}),
		state:     readState(c.q, snapshot, w.group, slices.ContainsFunc(c.owed, func(r *reception) bool { return r.o.State })),
		pace:      c.q.readPace(snapshot, w.group),
	}
}

// settle decides what to do about one candidate: claim up to limit of its items for r, take it over, or clear it as
// stale. A group that cannot be read is left as it is.
func (c *claimer) settle(r *reception, l look, limit int) error {
	c.left = false
	err := c.decide(r, l, limit)
	if errors.Is(err, ErrCorrupt) {
		if r.broken == nil {
			r.broken = err
		}
		return nil
	}
	if err == nil && !r.stopped && !c.left {
		c.met[l.group] = true
	}
	return err
}

func (c *claimer) decide(r *reception, l look, limit int) error {
	lockKey := c.q.keys.lock(l.group)
	value, err := l.lock.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read lock: %w", err)
	}
	rows, err := l.items.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read items: %w", err)
	}
	var held *lock
	if value != nil {
		if held, err = unpackLock(lockKey, value); err != nil {
			return err
		}
	}
	ours := l.accepts(held)
	expired := held != nil && (held.endMS <= c.nowMS || lacks(guardLease))
	switch {
	case ours && len(rows) > 0:
	case ours: // it was granted, and has been emptied since
		return c.settleEmpty(l, lockKey, held)
	case held != nil && !expired, held == nil && l.timer, l.grant != 0:
		// Held by another, a timer of a lock that is gone, or a grant that was lost.
		if err := guardStaleLock.read(c.tx, kv.SingleKey(lockKey)); err != nil {
			return err
		}
		c.clear(l.key)
		return nil
	case len(rows) == 0 && (held == nil || held.mark == nil):
		return c.settleEmpty(l, lockKey, held)
	}
	if held == nil || held.mark == nil {
		if old, err := c.overdue(rows[:1]); err != nil || len(old) > 0 {
			if err != nil {
				return err
			}
			return c.settleOverdue(r, l, lockKey, held, limit)
		}
	}
	f, err := c.expire(l, held)
	if err != nil {
		return err
	}
	switch {
	case expired && held.mark != nil, f.parksGroup():
		return c.settleMarked(l, lockKey, held, f)
	case f.parksItem():
		parked, behind, err := c.settleParked(l, lockKey, held, f)
		if err != nil || parked && behind == nil {
			return err
		}
		if parked {
			return c.decide(r, c.read(*behind, limit), limit)
		}
	}
	var allowed allowance
	if len(rows) > 0 {
		untilMS, err := c.early(rows[0])
		if err != nil {
			return err
		}
		if allowed, err = c.allow(l.group, l.pace); err != nil {
			return err
		}
		if untilMS = max(untilMS, allowed.untilMS); untilMS > c.nowMS {
			return c.settleEarly(l, lockKey, held, f, rows[0], untilMS)
		}
	}
	// The read was bounded by what was wanted before the groups of the same wave that came first.
	claim, taken, err := c.take(r, l, held, rows[:min(len(rows), limit, allowed.items)])
	if err != nil || len(taken) == 0 {
		return err
	}
	if r.o.State {
		if claim.State, err = waitState(c.ctx, l.state); err != nil {
			return err
		}
	}
	if err := guardClaimLock.read(c.tx, kv.SingleKey(lockKey)); err != nil {
		return err
	}
	if err := c.succeed(l, held, f, claim); err != nil {
		return err
	}
	lease, err := c.lease(r.o.Lease)
	if err != nil {
		return err
	}
	end := c.nowMS + lease.Milliseconds()
	claim.Until = fromMillis(end)
	next := lock{token: claim.Token, owner: c.q.opts.Owner, endMS: end, outstanding: taken, kind: kindClaim}
	c.hold(l, lockKey, held, &next, taken[0].index)
	c.spend(l.group, allowed, len(taken))
	r.claims = append(r.claims, claim)
	r.items += len(claim.Items)
	c.taken++
	c.items += len(claim.Items)
	c.count(countReceived, len(claim.Items))
	return nil
}

// hold writes a lock and its timer in the place of what led here.
func (c *claimer) hold(l look, lockKey []byte, held, next *lock, headIndex int64) {
	c.clear(l.key)
	if l.key == nil {
		// Named by the caller: this is where its hint is, as a rule.
		c.tx.Clear(c.q.keys.ready(headIndex, l.group))
	}
	if held != nil {
		if timer := c.q.keys.timer(held.endMS, l.group); !bytes.Equal(timer, l.key) {
			c.tx.Clear(timer)
		}
		if random, ok := held.grantedTo(); ok {
			c.clear(c.q.keys.grant(random, l.group))
		}
	}
	c.tx.Set(lockKey, next.pack())
	c.tx.Set(c.q.keys.timer(next.endMS, l.group), packTimer(next.kind, headIndex))
	delete(c.ready, l.group)
}

// expire is the failure of the item that was tried under an expired claim, if held is one. It writes nothing.
func (c *claimer) expire(l look, held *lock) (*failure, error) {
	if held == nil || held.kind != kindClaim || len(held.outstanding) == 0 {
		return nil, nil
	}
	f, err := c.judgeTried(l.group, held, lapsed(held))
	return &f, err
}

// succeed looks at the lock that the claim takes the place of: the item that was tried under an expired claim
// counts a failed attempt, f; the end of a delay or of a grant counts none.
func (c *claimer) succeed(l look, held *lock, f *failure, claim *Claim) error {
	if held == nil && l.key != nil && !l.head {
		return nil // its hint has said how often the head has failed
	}
	id := claim.Items[0].ID
	var record attempt
	if f != nil {
		f.write(c.work)
		c.count(countExpired, 1)
		id, record = f.id, f.record
	} else {
		var err error
		if record, err = c.q.readAttempt(c.ctx, c.tx.Snapshot(), id); err != nil {
			return err
		}
	}
	for i := range claim.Items {
		if claim.Items[i].ID == id {
			claim.Items[i].Attempts = record.count
		}
	}
	return nil
}

// settleMarked ends an expired claim on a group that was marked meanwhile, or that is parked because of this failure.
func (c *claimer) settleMarked(l look, lockKey []byte, held *lock, f *failure) error {
	if err := guardMarkLock.read(c.tx, kv.SingleKey(lockKey)); err != nil {
		return err
	}
	if f != nil {
		if err := f.carryOut(c.work, held, ID{}); err != nil {
			return err
		}
		c.count(countExpired, 1)
	}
	c.clear(l.key)
	c.unlock(l.group, held)
	return nil
}

// settleParked ends an expired claim whose tried item has failed for good: that is taken aside, and the group is left
// ready. It returns false, and has done nothing, if the item is not there; else behind is what is left of the group, if
// anything is.
func (c *claimer) settleParked(l look, lockKey []byte, held *lock, f *failure) (parked bool, behind *candidate, err error) {
	if parked, err = f.park(c.work); err != nil || !parked {
		return false, nil, err
	}
	if err := guardParkLock.read(c.tx, kv.SingleKey(lockKey)); err != nil {
		return false, nil, err
	}
	c.count(countExpired, 1)
	c.clear(l.key)
	c.unlock(l.group, held)
	next, found, err := c.freed(l.group)
	if err != nil || !found {
		return true, nil, err
	}
	return true, &next, nil
}

// settleEmpty clears what is left of a group without items.
func (c *claimer) settleEmpty(l look, lockKey []byte, held *lock) error {
	// An enqueue into the empty group writes a hint, which may have this very key.
	if err := guardStaleEmpty.read(c.tx, c.q.keys.items(l.group)); err != nil {
		return err
	}
	if held != nil {
		if err := guardEmptyLock.read(c.tx, kv.SingleKey(lockKey)); err != nil {
			return err
		}
		c.tx.Clear(lockKey)
		c.tx.Clear(c.q.keys.timer(held.endMS, l.group))
		if random, ok := held.grantedTo(); ok {
			c.clear(c.q.keys.grant(random, l.group))
		}
	}
	c.clear(l.key)
	return nil
}

// token is the fencing token of a claim that takes the place of held.
func (c *claimer) token(held *lock) (int64, error) {
	now, err := c.clock()
	if held != nil && !lacks(guardTokenGrows) {
		// Always so while all handles use the same offset; a handle opened before the offset was raised
		// must not make the token go back.
		now = max(now, held.token+1)
	}
	return now, err
}

// take turns rows into the items of a claim, as many as still fit.
func (c *claimer) take(r *reception, l look, held *lock, rows []kv.KV) (*Claim, []delivered, error) {
	token, err := c.token(held)
	if err != nil {
		return nil, nil, err
	}
	config, err := c.config()
	if err != nil {
		return nil, nil, err
	}
	claim := &Claim{Group: l.group, Token: token}
	claim.Items = make([]Item, 0, len(rows))
	taken := make([]delivered, 0, len(rows))
	of, values := c.q.keys.items(l.group), 0
	for _, row := range rows {
		p, err := c.q.keys.parseItem(row.Key, l.group, of)
		if err != nil {
			return nil, nil, err
		}
		e, body, err := openEnvelope(row.Value)
		if err != nil {
			if len(taken) > 0 {
				break // what stands before it can be delivered
			}
			return nil, nil, corrupt(row.Key, err)
		}
		if e.dueMS > c.nowMS {
			break // what is behind it waits, too
		}
		if len(taken) > 0 && c.isOverdue(&config, &e) {
			break // it is settled when it is the head
		}
		if values += len(row.Value); config.Archive > 0 && len(taken) > 0 && values > archiveClaimBytes {
			break // the ack writes them again
		}
		size := max(len(body), int(e.size))
		if r.items+len(taken) > 0 && r.bytes+size > r.o.MaxBytes {
			r.stopped = true
			break
		}
		item, err := c.q.assemble(c.ctx, c.tx.Snapshot(), p, e, body)
		if err != nil {
			if errors.Is(err, ErrCorrupt) && len(taken) > 0 {
				break
			}
			return nil, nil, err
		}
		r.bytes += size
		claim.Items = append(claim.Items, item)
		taken = append(taken, delivered{index: p.index, random: p.id, parts: e.parts})
	}
	if len(taken) > 0 && !l.timer && claim.Items[0].ID.Index == l.index {
		claim.Items[0].Attempts = l.attempts
	}
	return claim, taken, nil
}

// settleEarly leaves a group whose head is not to be delivered before untilMS.
func (c *claimer) settleEarly(l look, lockKey []byte, held *lock, f *failure, head kv.KV, untilMS int64) error {
	if l.key == nil && held == nil {
		c.left = true
		return nil // named by the caller: what leads to it leads to it still
	}
	if err := guardEarlyLock.read(c.tx, kv.SingleKey(lockKey)); err != nil {
		return err
	}
	if f != nil {
		f.write(c.work)
		c.count(countExpired, 1)
	}
	if held != nil {
		c.unlock(l.group, held)
	}
	return c.awaitHead(l.key, head, untilMS)
}

// settleOverdue settles the head that was met, and those behind it, before it looks at the group again.
func (c *claimer) settleOverdue(r *reception, l look, lockKey []byte, held *lock, limit int) error {
	if c.spent() {
		c.left, r.more = true, true
		return nil
	}
	rows, err := c.overduePage(l.group)
	if err != nil {
		return err
	}
	if err := guardOverdueLock.read(c.tx, kv.SingleKey(lockKey)); err != nil {
		return err
	}
	free, err := c.ageOut(l.group, held, rows)
	if err != nil {
		return err
	}
	c.clear(l.key)
	c.wrote = true
	if !free {
		return nil
	}
	behind, found, err := c.freed(l.group)
	if err != nil || !found {
		return err
	}
	return c.decide(r, c.read(behind, limit), limit)
}
