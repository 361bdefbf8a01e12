package layer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
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

	takenFrom string // whose lease had ended; "" = nobody's
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
	if err != nil && s != nil && s.done.Load() {
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
	if q.isClosed() {
		return nil, wrap("receive", ErrClosed)
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, wrap("receive", err)
	}
	if o.Wait > 0 {
		return nil, wrap("receive", fmt.Errorf("%w: ReceiveTx cannot wait", ErrOptions))
	}
	w := q.txn(ctx, tx)
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

// given is the claims that a receive was given, by their names.
func (r *reception) given() []claimRef {
	refs := make([]claimRef, len(r.claims))
	for i, c := range r.claims {
		refs[i] = claimRef{group: c.Group, token: c.Token}
	}
	return refs
}

// claimer takes ready groups for the receives of one transaction, one after the other.
//
// Footprint, per group taken: reads the lock, the items and, if asked for, the state at snapshot and adds a read conflict on the lock
// alone; writes lock and timer, clears the hint it came by. A hint or timer that turns out stale is cleared
// only with a read conflict on what makes it stale (the lock, or the emptiness of the group, or the gap up to a head that
// is not due yet), because a release may write that very key again. A takeover reads and writes the attempt record of the item that was tried.
type claimer struct {
	*txn
	search *search
	met    map[string]bool // groups looked at in this transaction; true = settled, under a conflict
	looks  []*look         // under way
	owed   []*reception    // that have not had their turn, to know how much to read ahead
	passed []candidate     // left to the handle's other transactions in flight
	// granted is the grants to the handle, being read; nil = it has no request.
	granted kv.Future[[]kv.KV]
	// repeats is what is kept of the receive ids, being read.
	repeats map[string]kv.Future[[]byte]
	taken   int // groups
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
	seen  *found            // once the reads have been waited for; nil = not yet
	err   error             // of seen
	// assessed: seen has its verdict.
	assessed bool
}

// maxWave bounds the groups looked at together, and with that the memory of a receive.
const maxWave = 64

func (w *txn) newClaimer(rs []*reception) *claimer {
	return &claimer{txn: w, search: newSearch(w), met: make(map[string]bool), owed: rs}
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
	var all []*look
	var have []int
	for len(all) < r.o.MaxGroups && len(all) < maxWave {
		l, ok, err := c.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		f, err := c.see(l)
		for err == nil && f.verdict != verdictDeliver {
			// What is not free is settled at once, and the rest of the group, if there is one, takes its part.
			if l, err = c.clearAway(r, l, r.o.Max); l == nil {
				break
			}
			f, err = c.see(l)
		}
		if err = r.spoilt(err); err != nil {
			return err
		}
		if l != nil && l.err == nil {
			all, have = append(all, l), append(have, min(f.rows.due(c.nowMS), f.allowed.items))
		}
	}
	for i, n := range layers(have, r.o.Max) {
		if n == 0 || r.full() {
			delete(c.met, all[i].group)
			continue
		}
		if err := c.settle(r, all[i], n); err != nil {
			return err
		}
	}
	return nil
}

// reads waits for the reads of a look; once.
func (c *claimer) reads(l *look) (*found, error) {
	if l.seen == nil && l.err == nil {
		if l.seen, l.err = c.await(l.candidate, l.lock, l.items); l.err == nil {
			l.seen.pace = l.pace
		}
	}
	return l.seen, l.err
}

// see says what may be done with the group of a look; once.
func (c *claimer) see(l *look) (*found, error) {
	if _, err := c.reads(l); err == nil && !l.assessed {
		l.assessed, l.err = true, c.assess(l.seen)
	}
	return l.seen, l.err
}

// next returns the next group to look at, its reads under way; none if the queue is paused. Those of a whole wave are started together: as
// many as the receives that are still owed are likely to take.
func (c *claimer) next() (*look, bool, error) {
	if len(c.looks) == 0 {
		n, limit := c.wanted()
		wave, err := c.search.next(n)
		if err != nil {
			return nil, false, err
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
				return nil, false, nil
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
		return nil, false, err
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
func (c *claimer) read(w candidate, limit int) *look {
	snapshot := c.tx.Snapshot()
	return &look{
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
func (c *claimer) settle(r *reception, l *look, limit int) error {
	for l != nil {
		f, err := c.see(l)
		if err == nil && f.verdict == verdictDeliver {
			err = c.take(r, f, l.state, limit)
			if err == nil && !r.stopped {
				c.met[l.group] = true
			}
			return r.spoilt(err)
		}
		if err == nil {
			l, err = c.clearAway(r, l, limit)
		}
		if err != nil {
			return r.spoilt(err)
		}
	}
	return nil
}

// spoilt keeps the error of a group that cannot be read, and returns any other.
func (r *reception) spoilt(err error) error {
	if !isCorrupt(err) {
		return err
	}
	if r.broken == nil {
		r.broken = err
	}
	return nil
}

// clearAway carries out a verdict other than deliver. rest is a look at what is left of the group, if something of that
// may be deliverable.
func (c *claimer) clearAway(r *reception, l *look, limit int) (rest *look, err error) {
	f := l.seen
	switch {
	case f.verdict == verdictAged && c.spent():
		r.more = true
		return nil, nil
	case f.verdict == verdictEarly && f.key == nil && f.record == nil:
		// Named by the caller: what leads to it leads to it still
		return nil, nil
	}
	behind, err := c.dispose(f)
	if err != nil {
		return nil, err
	}
	if behind == nil {
		c.met[l.group] = true
		return nil, nil
	}
	return c.read(*behind, max(limit, 1)), nil
}

// take claims a group for r, with up to limit of its items.
func (c *claimer) take(r *reception, f *found, state kv.Future[[]byte], limit int) error {
	token, err := c.token(f.record)
	if err != nil {
		return err
	}
	n, size := r.items, r.bytes
	// The read was bounded by what was wanted before the groups of the same wave that came first.
	items, out, err := c.run(f, limit, func(next int) bool {
		r.stopped = n > 0 && size+next > r.o.MaxBytes
		n, size = n+1, size+next
		return !r.stopped
	})
	if err != nil || len(out) == 0 {
		return err
	}
	claim := &Claim{Group: f.group, Token: token, Items: items}
	if r.o.State {
		if claim.State, err = waitState(c.ctx, state); err != nil {
			return err
		}
	}
	if err := guardClaimLock.read(c.tx, kv.SingleKey(c.q.keys.lock(f.group))); err != nil {
		return err
	}
	if err := c.succeed(f, claim); err != nil {
		return err
	}
	lease, err := c.lease(r.o.Lease)
	if err != nil {
		return err
	}
	end := c.nowMS + lease.Milliseconds()
	claim.Until = fromMillis(end)
	c.hold(f, holding{kind: kindClaim, token: token, owner: c.q.opts.Owner, endMS: end, items: out}, out[0].index)
	c.spend(f.group, f.allowed, len(out))
	r.claims = append(r.claims, claim)
	r.items += len(items)
	for i := range items {
		r.bytes += len(items[i].Body)
	}
	c.taken++
	c.items += len(items)
	c.count(countReceived, len(items))
	return nil
}

// hold gives a group to a holder, in the place of what led here.
func (c *claimer) hold(f *found, h holding, head int64) {
	c.clearLead(&f.candidate, f.record)
	if f.key == nil {
		// Named by the caller: this is where its hint is, as a rule.
		c.tx.Clear(c.q.keys.ready(head, f.group))
	}
	c.put(f.group, f.record, heldBy(h, nil), head)
	delete(c.ready, f.group)
}

// succeed looks at the holding that the claim takes the place of: the item that was tried under a lapsed claim counts a
// failed attempt; the end of a delay or of a grant counts none.
func (c *claimer) succeed(f *found, claim *Claim) error {
	first := &claim.Items[0]
	if !f.timer && first.ID.Index == f.index {
		first.Attempts = f.attempts
	}
	if f.record == nil && f.key != nil && !f.head {
		return nil // its hint has said how often the head has failed
	}
	id := first.ID
	var record attempt
	if f.failure != nil {
		claim.takenFrom = f.record.claim().owner
		f.failure.write(c.txn)
		c.count(countExpired, 1)
		id, record = f.failure.id, f.failure.record
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

// token is the fencing token of a claim that takes the place of what r says.
func (c *claimer) token(r *record) (int64, error) {
	now, err := c.clock()
	if r != nil && !lacks(guardTokenGrows) {
		// Always so while all handles use the same offset; a handle opened before the offset was raised
		// must not make the token go back.
		now = max(now, r.token+1)
	}
	return now, err
}
