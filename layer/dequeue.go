package layer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// This file has the receive: it finds ready groups and claims them. Words:
//
//   - A lock is the key that holds a group. Its value is a record: a holding (a claim, a grant or a retry delay) until
//     a time, and a mark if the group is paused or halted.
//   - A lane is what a lock locks: a whole group, or a part of one. A packed template ("where") says which lanes a
//     receive takes; "" = whole groups. See package lanes.
//   - A candidate is a hint, a due timer or a grant: a key that leads to a lane. See claim_search.go.
//   - A look reads the lock and the first items of a candidate. A wave is the looks whose reads start together.
//   - A verdict says what may be done with the group of a look, see group_verdict.go. Deliver means: claim it.
//   - A hold is the claim of a single item, or its delay after a nack, see store_hold.go.
//   - An item is suspect if it was in a claim whose lease has expired: its handler may have killed the process. It is
//     given alone, see group_verdict.go.

// ReceiveOptions say what a receive may take. The zero value is the normal use.
type ReceiveOptions struct {
	// Max is the number of items over all groups; 0 = DefaultMax, at most MaxBatch.
	Max int
	// MaxBytes bounds the bodies together; 0 = 1 MiB. A larger first item comes alone. Whatever MaxBytes says, bodies
	// and states together are at most about 8 MiB, because a receive has to read them within a transaction.
	MaxBytes int
	// MaxGroups is the number of groups to claim, or, if Unordered, of items; 0 = as many as needed to fill Max.
	MaxGroups int
	// Lease is how long the claims last unless extended; 0 = the queue's, else MinLease to MaxLease.
	Lease time.Duration
	// Heartbeat makes the claims last as long as the handle lives, without an Extend. The handle keeps all of them
	// alive with a single write each third of the queue's lease (Config.Lease), however many groups are in flight. If
	// the process dies, or cannot reach the database for a lease, all of its claims expire. A claim that is not settled
	// also lasts until then, so the caller must ack, nack or Extend each claim, or Close the handle. Extend gives the
	// claim a lease of its own. Claim.Until is when the claim ends if the handle dies now.
	//
	// While the handle cannot begin a heartbeat, or if another handle has just ended its heartbeat, claims have leases
	// of their own. The claims of SettleReceive also have leases of their own while the handle has no heartbeat,
	// because the settlement does not wait for the begin of one.
	//
	// Heartbeat cannot be combined with Lease, ReceiveID and ReceiveTx, nor used in a queue with facets,
	// Config.Unordered or LeasePerItem. All processes that use the queue must know heartbeats.
	Heartbeat bool
	// Strategy says how the receive spreads over groups. Not with Group.
	Strategy Strategy
	// Group, if not nil, is the only group to receive from; see OnlyGroup.
	Group *string
	// Where, if not nil, is a template. The receive gets the items that match the template, with a claim for each
	// group. Other items of those groups stay free. nil = whole groups. A template that the queue's facets (see Config)
	// do not allow is refused (*TemplateError), and so is nil in a queue without a view of whole groups. Not with
	// State.
	Where Template
	// Unordered takes any free items, each under a claim of its own (Claim.Hold), in any order. The rest of their
	// groups stays free. The queue must have Config.Unordered. A group with a claim of the whole group is skipped. A
	// receive of groups gets the items up to the first held one, so it never sees a gap. Items are taken from the
	// oldest groups, in each from the head. A delayed item keeps back the items behind it. Not with Where, Strategy,
	// State and OnlyIfAny.
	Unordered bool
	// State asks for the groups' state, too: Claim.State. It costs one more read for each group, at the same time as
	// the others. Not in a queue with LeasePerItem.
	State bool
	// ReceiveID, if not "", names this receive, so that the caller can repeat the receive after a lost answer, from
	// another process too. Within 5 minutes a receive with the same id claims nothing more and returns the claims of
	// the first, under the same tokens and with their present leases. Claims and leases ended since, and items acked
	// since, are left out; if nothing is left, nothing is returned. If the first got nothing, the id is still unused.
	// Of the repetition's other options only State counts, and Lease for a claim of a suspect item (see Receive). Use a
	// new id for each receive, such as a UUID; at most 128 bytes of UTF-8. An id costs one read and one write more, and
	// a waiting receive one read more per turn. Not with SettleReceive. The claims are not given back if ctx ends while
	// the receive runs. The error then says that the outcome is unknown (kv.MaybeCommitted), and a receive with the
	// same id returns them.
	ReceiveID string
	// CountExpired counts receives, as Amazon SQS does: if the lease of the claim expires, its first item counts a
	// failed attempt, even if the caller never got the claim, and no item is delivered alone. The same holds for each
	// expired claim that such a receive takes over, because claims of earlier versions do not say how they count.
	// Without CountExpired the first lease of an item that expires counts, unless that would be its last attempt. A
	// later one counts only if the caller is known to have had the claim, see Receive. Also then it counts for the
	// first item that is left of the claim, though the caller may not have begun that item.
	CountExpired bool
	// Wait is how long to wait for a group to become ready if none is; 0 = not at all, at most MaxWait. ReceiveTx
	// cannot wait. An error of the database at the first look may be returned at once. A later error is returned if it
	// lasts until the end of the wait, if the outcome is unknown, or if the queue is gone or the database closed.
	Wait time.Duration
	// OnlyIfAny ends the wait once there is nothing to wait for: the queue, or Group, has no message, not even one in
	// flight, delayed or paused. A message that waits to join Group (Message.JoinWhenDue) does not count. If the last
	// message is in flight and is then acked, the wait ends within Options.Poll. It costs the read of a key for each
	// look that finds nothing. Not with Where, because only a look at every group could show whether a group has a
	// message for a template. Not with Unordered.
	OnlyIfAny bool
	// Stop, if not nil, ends the wait when it is closed. The receive then returns what it has, or nothing, without an
	// error unless its look under way fails: for a consumer that stops in good order.
	Stop <-chan struct{}
}

// Check returns the error that Receive would return for the options on a queue with that configuration. Example: call
// o.Check(q.Config()) when a program starts. Errors: ErrOptions, *TemplateError, *LimitError, ErrInvalidUTF8.
func (o ReceiveOptions) Check(c Config) error {
	o, err := o.withDefaults()
	if err == nil {
		_, err = o.place(subspace{plan: planOf(&c)})
	}
	return wrap("check receive", err)
}

// withDefaults returns the options with the defaults filled in, and checks all that does not depend on the queue: place
// checks the rest. It copies Group. The errors are those of Check.
func (o ReceiveOptions) withDefaults() (ReceiveOptions, error) {
	if o.Max == 0 {
		o.Max = DefaultMax
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.Max < 0 || o.Max > MaxBatch {
		return o, &LimitError{What: "receive", Unit: "items", Got: int64(o.Max), Min: 1, Max: MaxBatch}
	}
	if o.MaxBytes < 0 {
		return o, &LimitError{
			What: "receive", Unit: "bytes", Got: int64(o.MaxBytes), Min: 1, Max: MaxBatch * MaxBodySize,
		}
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
		o.Group = own(o.Group)
		if err := checkGroup(*o.Group); err != nil {
			return o, err
		}
		if !o.Unordered {
			o.MaxGroups = 1
		}
	}
	if o.OnlyIfAny && o.Where != nil {
		return o, fmt.Errorf("%w: OnlyIfAny with a template", ErrOptions)
	}
	if err := checkReceiveID(o.ReceiveID); err != nil {
		return o, err
	}
	if o.Heartbeat && (o.Lease > 0 || o.ReceiveID != "") {
		return o, fmt.Errorf("%w: Heartbeat with a lease, or with a receive id", ErrOptions)
	}
	return o, checkLease(o.Lease)
}

// Receive claims ready groups, the oldest head first (but see Config.RoundRobin and Fair), and returns their items, as
// o.Strategy says, up to o.Max. If claims are of whole groups, it skips the whole of a group under another claim. It
// returns no claim if no group is ready, and none becomes ready within o.Wait.
//
// A receive may return less than is ready. That happens if it first had to clear away much, such as claims with expired
// leases or messages past retention, or if more would not fit into a transaction. The next call continues. Example: if
// group names have 1,024 letters, a receive claims about 300 groups.
//
// Every claim must be acked, nacked or extended before its lease ends; otherwise its group is delivered to another
// worker, and the first item counts a failed attempt, unless it would be the last one. From then on the items of the
// claim are suspect until they are acked, or nacked with an error: a receive gives a suspect item alone, and no other.
// If the lease of an item that was given alone expires, the attempt counts, and may be the last. So an item that kills
// its process fails for good, and the items around it do not.
//
// A handle gives the next suspect item once the claim of the one before has ended, or after 30 s. If the lease of an
// item has expired while it was alone, a handle gives the item only when no claim of a suspect item lasts, and gives no
// other suspect item while the new claim lasts. The handles of other queues that were opened with the same kv.DB wait
// as well. A receive may therefore return nothing while a group whose next item is suspect is ready. Other handles of
// the queue may give that item. An unordered receive passes over such items.
//
// A claim with an expired lease stays valid until another receive, or a take, takes the group over: until then it can
// be acked, nacked and extended. Under contention groups may be delivered in another order than by age. The order
// within a group always holds.
//
// A group whose next item cannot be read is skipped. If the receive gets no other group, the error wraps ErrCorrupt, at
// once and whatever o.Wait says.
//
// Waiting costs almost nothing. All receives of a handle that take any group wait on one request of the handle, which
// wakes when a group becomes ready. For each Group that receives of the handle name, and for each template, the handle
// has another request. Only that group, or a lane of that template, wakes it.
//
// Reads, at snapshot: hints, due timers, grants to the handle, the heartbeat, and the configuration and the pause
// (meta). Of each group found: the lock, the holds, the items with their parts and attempts, the rate (pace), and the
// state. The row of a receive id (repeat) is read with a conflict.
//
// Conflicts: with any change of the lock of a claimed group, or of another lock or hold that would exclude the claim.
// Also with a change that makes a cleared hint or timer right again, such as an enqueue into an empty group, and with a
// drop of the queue.
//
// Writes, of each claimed group: the lock, a timer at the end of the lease (with Heartbeat the key held), and the rate.
// It clears the hint. A claim of a single item writes its hold instead of the lock, and an unordered one also the lane
// and the next hint. After an expired lease it writes the attempts, and may make the item a dead letter or halt the
// group (mark). It clears away stale hints and timers, and messages past retention. It also writes a receipt, counters,
// changes, repeat, and, if it waits, its requests. It wakes handles for groups that it leaves ready. A receive that
// waits may also grant ready groups to requests of other handles (lock, timer, grant).
//
// The handle may also begin further transactions: to begin its heartbeat (beat, timer), to end the claims of handles
// whose heartbeats are due (beat, held, lock, timer), to draw from the rate of Config.MaxRateTotal (meta), to clear the
// requests of dead handles, or to note in the lock that the caller has got a claim of a suspect item.
//
// Errors: those of o.Check, ErrCorrupt, ErrNoQueue, ErrClosed, and the engine's. Claims may have been made if ctx has
// ended or kv.MaybeCommitted is true of the error. Without a receive id the handle then tries to give them back.
func (q *Queue) Receive(ctx context.Context, o ReceiveOptions) ([]*Claim, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, wrap("receive", err)
	}
	r, err := q.reception(o)
	if err != nil {
		return nil, wrap("receive", err)
	}
	claims, err := q.receive(ctx, nil, r)
	return claims, wrap("receive", err)
}

// receive settles s, if not nil, and receives, as settleAndReceive does. It tells the hooks, begins the handle's
// heartbeat if r asks for it, and proves claims of suspect items: it notes in their locks that the caller has them. If
// the settlement is done and the rest has failed, receive returns neither claims nor an error.
func (q *Queue) receive(ctx context.Context, s *settlement, r *reception) ([]*Claim, error) {
	o := Operation{Verb: VerbReceive, Group: r.o.Group}
	if s != nil && len(q.opts.Hooks) > 0 {
		o.Settled = s.claim.snapshot()
	}
	ctx, w := q.observe(ctx, o)
	switch {
	case r.o.Heartbeat && s == nil:
		q.ensureBeat(ctx)
	case r.o.Heartbeat:
		ensureBeatLater(q)
	}
	claims, err := q.settleAndReceive(ctx, s, r)
	if err == nil {
		claims, err = prove(ctx, q, r, claims)
	}
	if w != nil && err == nil { // else a transaction may still use r
		w.Claims = claims
		for _, c := range claims {
			w.Items += len(c.Items)
		}
		if !r.tried.IsZero() {
			w.Waited = r.tried.Sub(w.Begun)
		}
	}
	if err != nil && s != nil && s.done.Load() {
		claims, err = nil, nil // an error would tell the caller: nothing was settled
	}
	return claims, w.end(ctx, err)
}

// settleAndReceive receives, and waits for a group if r.o.Wait says so. Its first transaction also settles s (an ack, a
// nack or an extend); nil = it settles nothing.
//
// A receive that does not wait runs more transactions as long as none has claimed a group, and the last has left work
// for the next (r.more), or a later look has ended claims.
func (q *Queue) settleAndReceive(ctx context.Context, s *settlement, r *reception) ([]*Claim, error) {
	for {
		if err := q.submit(ctx, &operation{settle: s, receive: r}); err != nil {
			return nil, err
		}
		if r.o.Wait > 0 && len(r.claims) == 0 {
			return nil, nil // the waiting line has looked until the end of the wait
		}
		err := looked(ctx, q, r)
		if len(r.claims) > 0 {
			return r.claims, nil // they are valid after an error of the look, too
		}
		if err != nil || !r.more {
			return nil, err
		}
		s = nil // each look removes some of the items past retention, or puts some hints aside
	}
}

// looked waits for the look that the handle has started after the transaction of r, if there is one, and notes in
// r.more that it has ended claims. So the work that a receive has met is done when the receive returns, and not at some
// time after that. If r has claims, looked waits for at most longestLooked. The error is the cause for which it waits
// no longer. The claims of r are valid then, too.
func looked(ctx context.Context, q *Queue, r *reception) error {
	if r.look == nil {
		return nil
	}
	if len(r.claims) > 0 {
		within, cancel := context.WithTimeout(ctx, longestLooked)
		defer cancel()
		ctx = within
	}
	err := r.look.wait(ctx)
	q.yield(ctx, "looked")
	if err == nil && r.look.ended {
		r.more = true
	}
	return err
}

// longestLooked bounds the time for which a receive keeps its claims back until a look of the handle has ended.
const longestLooked = time.Second

// ReceiveTx claims in the caller's transaction: the claims hold if and only if the transaction commits. The leases
// begin now, not at the commit. ReceiveTx cannot wait. It may claim nothing though a group is ready, if it first had to
// clear away as much as one transaction may: many items past retention, or claims whose leases have expired. The caller
// must handle an unknown commit, for example with Once.
//
// A group that the transaction has claimed is held from then on, so a second ReceiveTx in the same transaction
// continues with the next group. TakeTx holds nothing, so a second TakeTx continues in the same group.
//
// If the transaction has no room left for a claim, because it has half of FoundationDB's 10,000,000 bytes already, the
// error is a *LimitError: the caller must commit, and receive in the next transaction.
//
// Reads and writes: as Receive, without requests and a receipt. If ReceiveTx has claimed nothing, it ends, in the same
// transaction, claims of handles whose heartbeats are due (beat, held, lock, timer), and looks once more. Errors: as
// Receive, and ErrOptions with Wait or Heartbeat.
//
// Conflicts: as Receive. Examples: another claim, ack, nack or extend of a claimed group.
func (q *Queue) ReceiveTx(ctx context.Context, tx kv.Tx, o ReceiveOptions) ([]*Claim, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, wrap("receive", err)
	}
	if o.Wait > 0 || o.Heartbeat {
		return nil, wrap("receive", fmt.Errorf("%w: ReceiveTx cannot wait, nor claim by heartbeat", ErrOptions))
	}
	r, err := q.reception(o)
	if err != nil {
		return nil, wrap("receive", err)
	}
	r.inTx = true
	err = q.operate(ctx, tx, func(w *txn) error {
		if err := w.checkRoom(); err != nil {
			return err
		}
		if err := keepOwn(w); err != nil {
			return err
		}
		c := w.newClaimer(r.where, []*reception{r})
		c.begin()
		if err := c.claim(); err != nil || len(r.claims) > 0 || len(w.beats.due) == 0 {
			return err
		}
		if ended, err := w.endBeats(w.beats.due); err != nil || !ended {
			return err
		}
		c = w.newClaimer(r.where, []*reception{r})
		c.begin()
		return c.claim()
	})
	if err != nil {
		return nil, wrap("receive", err)
	}
	return r.claims, wrap("receive", r.err())
}

// reception is one receive: its options, and its results in the transaction under way.
type reception struct {
	o     ReceiveOptions
	where string // the packed template; "" = whole groups
	inTx  bool   // the transaction is the caller's

	// tried is when the transaction under way, or the last, began; zero without hooks.
	tried time.Time

	// The results of the attempt under way. An attempt is one run of the transaction, which may run again.
	claims  []*Claim
	groups  int   // claimed groups, or, if Unordered, items: as o.MaxGroups counts
	items   int   // in claims
	bytes   int   // of the bodies
	states  int   // bytes of the groups' states
	refs    int   // bytes of the row that is kept under the receive id
	stopped bool  // the receive takes no more: the next item is too large, or a suspect item is the next or was given
	broken  error // the error of the first unreadable group
	more    bool  // the transaction has left something to the next, which may find more
	dueMS   int64 // of a receive from one group: when to look again, because a time ends then; 0 = not known
	// repeated: the receive returns the claims of an earlier receive with the same receive id. was is the packed
	// template of that earlier receive.
	repeated bool
	was      string
	// nothing: the receive asked for OnlyIfAny, and there is no message.
	nothing bool
	// look is a look that the handle has started after the transaction; nil = there is none.
	look *laterLook
}

// begin removes the results of an earlier attempt.
func (r *reception) begin() {
	r.claims, r.groups, r.items, r.bytes, r.stopped, r.broken, r.repeated = nil, 0, 0, 0, false, nil, false
	r.more, r.dueMS, r.nothing, r.states, r.refs, r.look = false, 0, false, 0, 0, nil
}

// hurries reports whether r has no claim so far, and is to return at once: it does not wait for a group.
func hurries(r *reception) bool { return len(r.claims) == 0 && r.o.Wait == 0 }

// unserved reports whether r has no claim, so that a receive which waits must wait on. A repetition of which no claim
// is left does not wait, and neither does a receive with OnlyIfAny if there is no message.
func (r *reception) unserved() bool { return len(r.claims) == 0 && !r.repeated && !r.nothing }

// lookForAny sets the field nothing of each unserved receive with OnlyIfAny: true = there is no message. It reads the
// key of the first item (item) of the queue, or of the named group. It reads at snapshot, because messages that are
// enqueued at the same time come after the receive.
func (w *txn) lookForAny(rs []*reception) error {
	for _, r := range rs {
		if !r.o.OnlyIfAny || !r.unserved() {
			continue
		}
		items := w.keys.section(nameItem)
		if r.o.Group != nil {
			items = w.keys.items(*r.o.Group)
		}
		k, err := w.read.GetKey(kv.FirstGreaterOrEqual(items.Begin)).Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read items: %w", err)
		}
		r.nothing = !items.Contains(k)
	}
	return nil
}

// full reports whether r may take nothing more: it has as many items, groups or bytes as it may, or it is stopped.
func (r *reception) full() bool {
	return r.stopped || r.items >= r.o.Max || r.groups >= r.o.MaxGroups || r.bytes+r.states >= maxReceiveSize
}

// fits returns a function that reports whether the next item of a lane, with a body of so many bytes, fits into the
// receive. The function must be called once for each item, in order, because it adds up the sizes. If an item does not
// fit, it sets stopped. The first item of a receive always fits. byItem: each item has a claim of its own.
func (r *reception) fits(lane string, byItem bool) func(body int) bool {
	n, size, refs := r.items, r.bytes, r.refs
	return func(body int) bool {
		if byItem || n == r.items {
			refs += rec.ClaimRefSize(lane)
		}
		size += body
		r.stopped = n > 0 && (size > r.o.MaxBytes || size+r.states > maxReceiveSize ||
			r.o.ReceiveID != "" && refs > maxRepeatSize)
		n++
		return !r.stopped
	}
}

// give adds a claim of the lane to the receive, and counts its items and bytes.
func (r *reception) give(c *Claim, lane string) {
	r.claims = append(r.claims, c)
	r.items, r.states, r.refs = r.items+len(c.Items), r.states+len(c.State), r.refs+rec.ClaimRefSize(lane)
	for i := range c.Items {
		r.bytes += len(c.Items[i].Body)
	}
}

// err returns the error of the first group that could not be read, if the receive has no claim. nil = it has one, or
// all groups that it has met could be read.
func (r *reception) err() error {
	if len(r.claims) > 0 {
		return nil
	}
	return r.broken
}

// given returns lane and token of each claim given to the receive: enough to find the claims in the database again.
func (r *reception) given() []rec.ClaimRef {
	refs := make([]rec.ClaimRef, len(r.claims))
	for i, c := range r.claims {
		refs[i] = rec.ClaimRef{Lane: r.lane(c), Token: c.Token}
	}
	return refs
}

// claimer claims ready groups for the receives of one transaction that have the same template, one after the other.
//
// The comment of claim has the keys. A stale hint or timer is cleared only with a read conflict on the proof (the lock,
// the emptiness of the group, or the gap up to a head not due yet), because a release may write the very same key
// again.
type claimer struct {
	*txn
	where  string // the packed template of all receives
	search *search
	met    map[string]bool // lanes looked at in this transaction; true = a verdict was carried out, under a conflict
	looks  []*look         // begun, and not decided about: next returns the first
	owed   []*reception    // receives not served yet, to know how much to read ahead
	passed []candidate     // lanes left to the handle's other transactions in flight
	twins  []candidate     // second hints and timers of lanes that were looked at and not decided about
	// granted is the read of the grants to the handle; nil = the handle has no request for any group, or the claimer is
	// by a template.
	granted kv.Future[[]kv.KV]
	// repeats has the reads of the rows that are kept under the receive ids.
	repeats map[string]kv.Future[[]byte]
	join    *joining        // of the handle's beat; nil = no receive asks for claims by heartbeat, or there is no beat
	layered int             // groups that a receive by layers has found so far
	vain    int             // waves of looks since the last group was taken or granted
	taken   int             // groups claimed
	items   int             // claimed
	remains map[string]bool // free lanes that unordered receives have left items in
	// modest: the claimer takes only the groups granted to the handle, or one other group if there are none, because
	// the receives have lost a conflict: see pipeline_tx.go.
	modest bool
}

// look is one candidate with the reads of its lane, under way or done.
type look struct {
	candidate
	limit int      // how many items are read
	lock  laneLock // the reads of the lane's lock, and of other locks that may exclude the lane
	items kv.Future[[]kv.KV]
	state kv.Future[[]byte] // nil if no receive in owed asks for the state
	pace  kv.Future[[]byte] // nil if the queue has no rate, as far as known
	seen  *found            // once the reads have been waited for; nil = not yet
	err   error             // of seen
	// assessed: seen has a verdict.
	assessed bool
}

// newClaimer returns a claimer for rs, which all receive by the packed template where. It reads nothing: see begin. If
// one of rs has CountExpired, the whole transaction counts expired leases as CountExpired says.
func (w *txn) newClaimer(where string, rs []*reception) *claimer {
	counts := slices.ContainsFunc(rs, func(r *reception) bool { return r.o.CountExpired })
	w.suspects.countExpired = w.suspects.countExpired || counts
	return &claimer{
		txn: w, where: where, search: newSearch(w, where), met: make(map[string]bool), owed: rs,
	}
}

// begin starts reads ahead of claim. It reads the repeat rows of receive ids, with a conflict. At snapshot it reads the
// handle's beat and its timer if a receive asks for a claim by heartbeat, the grants to the handle if it has a request
// for any group, and the first hints and timers of the search unless all receives name groups. The reads of a named
// group are left to claim. The transaction may write between begin and claim, and claim takes these writes into
// account.
func (c *claimer) begin() {
	c.readRepeats()
	c.readJoin()
	if index, _ := c.q.staging.requested(); index != 0 && c.where == "" {
		random := c.q.waitID
		c.granted = c.tx.Snapshot().GetRange(c.keys.grants(random).Selectors(), kv.RangeOptions{Limit: line.MaxWave})
	}
	if !allNamed(c.owed) {
		n, _ := c.wanted()
		c.search.start(n)
	}
}

// allNamed reports whether all of the receives name their groups.
func allNamed(rs []*reception) bool {
	return !slices.ContainsFunc(rs, func(r *reception) bool { return r.o.Group == nil })
}

// claim serves the receives in owed, in order. A receive whose id was used in the last 5 minutes gets the claims of the
// earlier receive. A receive that names a group looks at that group alone. Any other receive gets the groups granted to
// the handle, and then those that the search finds. If work is left to the next transaction, claim sets r.more. If a
// group cannot be read, claim stores the error in r.broken and continues. Any other error ends the transaction.
//
//   - To find groups it reads grant, hints (ready, open), due timers (timer, due), and the beat's keys, at snapshot. It
//     sets the beat's timer if that is missing.
//   - Of each group found it reads lock, hold, item, lane, part, attempt, state and pace, at snapshot. It reads them
//     again for a receive whose id was used before.
//   - Of each group claimed it sets lock and timer, or held instead of the timer of a claim by heartbeat. A claim of a
//     single item sets hold and its timer; an unordered one clears lane, and sets the hint of the next item (open). The
//     claim sets pace, and attempt after an expired lease. It clears the hint, timer or grant that led there. It adds
//     read conflicts on the lock, on the locks of intersecting lanes, on the holds up to the last item, and for a claim
//     by heartbeat on the beat (key beatJoin). takeHolds has the conflicts of a claim of single items.
//   - A group that is not free is cleared away, with the keys and conflicts of dispose and join: hints and timers,
//     kept, lock, hold, mark, attempt, item, lane, part, dead, dedup.
//   - It reads the row of each receive id (repeat) with a conflict, and writes it if the receive has got a claim.
//   - If the handle's portion of MaxRateTotal is used up, reserve draws another in a transaction of its own (meta).
//
// finish writes the counters and the changes, and wakes handles for the hints that claim has set.
func (c *claimer) claim() error {
	named, err := c.repeat()
	if err != nil {
		return err
	}
	c.readJoin()
	if err := c.accept(); err != nil {
		return err
	}
	for len(c.owed) > 0 {
		if err := c.receive(c.owed[0]); err != nil {
			return err
		}
		if c.leaves() {
			// Work was left to the next transaction: a receive that waits is to look again at once.
			c.owed[0].more, c.did.cleared = true, true
		}
		c.owed = c.owed[1:]
	}
	if c.taken > 0 {
		c.search.spread.Learn(c.items, c.taken)
	}
	c.keepRepeats(named)
	return nil
}

// receive takes groups for r until r is full or no groups are left. While the queue is paused, it takes nothing. If r
// names a group, receive looks at this group alone. If receives by the template of r claim single items, it first ends
// the holds of the group whose time is over (meetNamed). Of a named group it also sets r.dueMS: when the time ends that
// keeps the group from r; 0 = no such time is known. decide has the keys.
func (c *claimer) receive(r *reception) error {
	if r.o.Group != nil {
		l := c.read(candidate{lane: lanes.Name(*r.o.Group, c.where)}, r.o.Max)
		paused, err := c.paused()
		if err != nil || paused {
			return err
		}
		changed, dueMS, err := meetNamed(c.txn, *r.o.Group, r.where, c.endHoldAt)
		if err != nil {
			return r.spoilt(err)
		}
		if r.dueMS = dueMS; changed {
			l = c.read(l.candidate, r.o.Max)
		}
		if err = c.decide(r, l, r.o.Max); err != nil {
			return err
		}
		due, err := keptUntil(c.txn, l.seen)
		if due > 0 && (r.dueMS == 0 || due < r.dueMS) {
			r.dueMS = due
		}
		return err
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
		if err := c.decide(r, l, limit); err != nil {
			return err
		}
	}
	return nil
}

// meetNamed prepares a group before a receive or a take looks at it by its name. where is the packed template. If
// receives by this template claim single items, meetNamed reads the first holds of the group, at snapshot, and calls
// end for each hold whose time is over (endHolds). Otherwise it does nothing. changed: the caller's reads of the group
// may be out of date. nextMS is when the next hold ends (ms); 0 = no time is known.
func meetNamed(
	w *txn, group, where string, end func(lane string) error,
) (changed bool, nextMS int64, err error) {
	if !w.keys.plan.ClaimsItems(where) {
		return false, 0, nil
	}
	nextMS, err = w.endHolds(group, end)
	return true, nextMS, err
}

// carryOutVerdict carries out a verdict other than deliver. It clears a stale hint, ends an expired holding, removes
// old items, or lets messages join their group; dispose and join say which keys. behind leads to the rest of the group,
// if some of it may be deliverable at once. Otherwise behind is nil.
func carryOutVerdict(w *txn, f *found) (behind *candidate, err error) {
	if f.verdict == verdictJoins {
		return join(w, f)
	}
	return w.dispose(f)
}

// receiveLayers is receive for the strategy Layers (A1 B1 A2 B2 …). It claims each group once, for its share of the
// items. A round is one call of takeLayers and has all layers. The first round that gives an item is the last one. A
// further round looks at the next groups. It follows only if this round has got no item of the groups that it tried to
// claim, because the items are suspect and may not be given now (group_verdict.go), or cannot be read.
func (c *claimer) receiveLayers(r *reception) error {
	for {
		more, err := c.takeLayers(r)
		if err != nil || !more || r.items > 0 || r.full() {
			return err
		}
	}
}

// takeLayers is one round of receiveLayers. It looks at up to MaxGroups groups, and then claims each group with as many
// items as the layers give it. more: there may be further groups, and this round has tried to claim some.
func (c *claimer) takeLayers(r *reception) (more bool, err error) {
	var all []*look
	var have []int
	defer func() { c.layered = 0 }()
	for len(all) < r.o.MaxGroups {
		c.layered = len(all)
		l, ok, err := c.next()
		if err != nil {
			return false, err
		}
		if more = ok; !ok {
			break
		}
		if l, err = c.deliverable(r, l, r.o.Max); err != nil {
			return false, err
		}
		if l != nil && !l.seen.refused {
			all, have = append(all, l), append(have, min(l.seen.rows.due(c.nowMS), l.seen.allowed.items))
			c.vain = 0
		}
	}
	n, bytes := 0, 0
	fits := func(group, item int) bool {
		row := all[group].seen.rows.at(item)
		n, bytes = n+1, bytes+max(len(row.body), int(row.envelope.Size))
		return n == 1 || bytes <= r.o.MaxBytes
	}
	var rest []*look // for the other receives of the transaction
	taken := make(map[string]bool, len(all))
	for i, n := range layers(have, r.o.Max, fits) {
		switch {
		case taken[all[i].lane]: // looked at twice, because the end of a hold has led there again
		case n == 0 || r.full() || len(taken) > 0 && c.enough():
			rest = append(rest, all[i])
		default:
			taken[all[i].lane] = true
			if err := c.decide(r, all[i], n); err != nil {
				return false, err
			}
		}
	}
	rest = slices.DeleteFunc(rest, func(l *look) bool { return taken[l.lane] })
	c.looks = append(rest, c.looks...)
	return more && len(taken) > 0, nil
}

// reads waits for the reads of a look, and returns the results. A second call returns the same.
func (c *claimer) reads(l *look) (*found, error) {
	if l.seen == nil && l.err == nil {
		if l.seen, l.err = c.await(l.candidate, l.lock, l.items); l.err == nil {
			l.seen.pace = l.pace
		}
	}
	return l.seen, l.err
}

// see returns the results of a look with the verdict on the group. If items are claimed in turn, it first ends expired
// holds behind the head (reach). A second call returns the same.
func (c *claimer) see(l *look) (*found, error) {
	if _, err := c.reads(l); err == nil && !l.assessed {
		if l.err = c.reach(l); l.err == nil {
			l.assessed, l.err = true, c.assess(l.seen)
		}
	}
	return l.seen, l.err
}

// passHold returns l, unless a timer has led to a hold: the lock of a single item that is claimed or delayed by itself.
// If the time of the hold is over, passHold ends the hold, and returns a look at the group. This look reads up to limit
// items, and at least one. nil = there is nothing to look at now, because
//
//   - the transaction has ended enough holdings (tired), and leaves the hold and its timer to the next,
//   - the hold lasts or is gone: passHold clears the timer that led there, with a conflict on the hold,
//   - the head of the group is not free, or this transaction has looked at the group before, or
//   - the queue is unordered: there a hint leads to the item that is free again.
//
// Keys of the end of a hold: it reads the hold at snapshot and adds a conflict on it, and reads attempt and item at
// snapshot. It clears hold and its timer (timer, or due in an unordered queue). After a claim it writes attempt, or
// moves the item to dead. In an unordered queue it sets lane and the hint (open), and puts back hints (kept). If items
// are claimed in turn, it reads the group's lock, first hold and first item, sets the hint (ready), and adds a write
// conflict on the lock. The look at the group reads the lock, the first hold and the items, at snapshot.
func (c *claimer) passHold(l *look, limit int) (*look, error) {
	if !lanes.IsHold(l.lane) {
		return l, nil
	}
	behind, err := c.endHold(l)
	if err != nil || behind == nil {
		return nil, err
	}
	return c.read(*behind, max(limit, 1)), nil
}

// next returns the next look. If no look is begun, next asks the search for a wave of candidates and starts their
// reads: for as many groups as the receives still owed are likely to take. If this transaction has decided about a
// lane, and not left it ready, next clears the lane's second hint or timer. The bool is false if there is nothing more
// to look at: no candidate is left, the queue is paused, its rate is used up, the transaction has done enough, or a
// modest claimer has taken a group.
func (c *claimer) next() (*look, bool, error) {
	if c.modest && c.taken > 0 && (len(c.looks) == 0 || c.looks[0].grant == 0) {
		return nil, false, nil
	}
	if len(c.looks) == 0 {
		n, limit := c.wanted()
		n = c.widened(n, limit)
		wave, err := c.search.next(n)
		if err != nil {
			return nil, false, err
		}
		c.vain++
		for _, w := range wave {
			if settled, met := c.met[w.lane]; met {
				// A group may have two hints. If this transaction decided about the group, the conflict which proves
				// the second hint stale is there already: clear the hint, unless the group was left ready. If not,
				// there is no such conflict: leave the hint.
				if !settled {
					c.twins = append(c.twins, w)
				} else if !c.noted.ready[w.lane] {
					c.clear(w.key)
				}
				continue
			}
			if c.along.flight != nil && !c.along.flight.Take(w.lane) {
				c.passed = append(c.passed, w)
				continue
			}
			c.met[w.lane] = false
			c.looks = append(c.looks, c.read(w, limit))
		}
		if len(c.looks) == 0 {
			if len(wave) > 0 {
				return c.next()
			}
			if len(c.passed) == 0 || !slices.ContainsFunc(c.owed, hurries) {
				return nil, false, nil
			}
			// Nothing else is left. It is not known yet whether the handle's other transactions take these groups. A
			// receive that waits looks again when they have ended, so that it has no conflict with them.
			passed := c.passed[:min(n, len(c.passed))]
			c.passed = c.passed[len(passed):]
			for _, w := range passed {
				if _, met := c.met[w.lane]; met {
					continue // a second hint of a group: leave the hint
				}
				c.met[w.lane] = false
				c.looks = append(c.looks, c.read(w, limit))
			}
			if len(c.looks) == 0 {
				return c.next()
			}
		}
	}
	// Asked only here, with the reads under way, because the pause may have to be read too.
	if paused, err := c.paused(); err != nil || paused {
		return nil, false, err
	}
	if short, err := c.short(); err != nil || short || c.enough() {
		return nil, false, err
	}
	l := c.looks[0]
	c.looks = c.looks[1:]
	if c.met[l.lane] {
		// A receive which named the group has decided since these reads began: read again.
		c.met[l.lane] = false
		l = c.read(l.candidate, l.limit)
	}
	return l, true, nil
}

// widened returns how many groups the next wave has. That is n, until two waves in a row have led to no group taken or
// granted. From then on each wave is twice as wide as the one before. Otherwise a receive would look at thousands of
// suspect groups one after the other, and its transaction would last too long. limit is how many items a look reads.
func (c *claimer) widened(n, limit int) int {
	if c.vain < 2 {
		return n
	}
	most := min(line.MaxWave, wideWaveItems/limit)
	return max(n, min(n<<min(c.vain-1, 6), most))
}

// wideWaveItems bounds the items that a widened wave reads.
const wideWaveItems = 640

// given notes that the group of f was claimed, or granted to another handle.
func (c *claimer) given(f *found) {
	c.vain = 0
	c.search.given(&f.candidate)
}

// wanted returns how many groups the receives still owed are likely to take, and how many items at most of a group.
func (c *claimer) wanted() (groups, items int) {
	groups, items = 0, 1
	for _, r := range c.owed {
		groups += c.q.wantedGroups(r)
		if r.o.Strategy != Heads {
			// A receive by layers that has found n groups takes about an n-th of its items from each further group.
			items = max(items, (r.o.Max-r.items)/max(c.layered, 1))
		}
	}
	return min(max(groups, 1), line.MaxWave), items
}

// wantedGroups returns how many more groups a receive is likely to take, 1 at least.
func (q *Queue) wantedGroups(r *reception) int {
	left, groups := r.o.Max-r.items, r.o.MaxGroups-r.groups
	perhaps := left // a group for each item
	if r.o.Strategy == FillGroup {
		perhaps = q.spreadOf(r.where).GroupsFor(left)
	}
	return max(min(groups, perhaps), 1)
}

// read starts the reads of one candidate, at snapshot: the lock, up to limit items, the state if a receive asks for it,
// and, in a queue with a rate, the pace (how far the group's rate is used up). In a queue with facets it also reads the
// locks of the lanes that may exclude this lane, and in a queue with holds the first hold. Of a hold it reads the
// record alone.
func (c *claimer) read(w candidate, limit int) *look {
	if lanes.IsHold(w.lane) {
		return &look{candidate: w, lock: laneLock{lock: c.view.read.Get(c.keys.lock(w.lane))}}
	}
	return &look{
		candidate: w,
		limit:     limit,
		lock:      c.readLaneLock(c.view.read, w.lane, locksAtOnce),
		items:     c.readItems(c.view.read, w.lane, limit),
		state: c.readState(w.group(),
			slices.ContainsFunc(c.owed, func(r *reception) bool { return r.o.State })),
		pace: c.readPace(w.group()),
	}
}

// decide carries out the verdict on one candidate for r. It claims the group, or up to limit of its items each under a
// hold, or clears away the reason against a delivery (deliverable). It gives nothing if the head is suspect and may not
// be given now (refused). If the group cannot be read, decide stores the error in r (spoilt). take, takeHolds,
// passHold, dispose and join say which keys.
func (c *claimer) decide(r *reception, l *look, limit int) error {
	l, err := c.deliverable(r, l, limit)
	if err != nil || l == nil {
		return err
	}
	f := l.seen
	if f.refused {
		r.stopped = r.stopped || r.items > 0
		return nil
	}
	before := c.taken
	if c.keys.plan.ClaimsItems(r.where) {
		err = c.takeHolds(r, f, limit)
	} else {
		err = c.take(r, f, l.state, limit)
	}
	if c.taken > before {
		c.given(f)
	}
	switch {
	case r.o.Unordered:
		c.changed(l.lane) // the next receive may take more of the group
	case err == nil && c.taken > before: // otherwise no conflict proves the group's other hints stale
		c.met[l.lane] = true
	}
	return r.spoilt(err)
}

// deliverable returns a look at items that may be delivered, or nil. If the look has seen.refused set, the caller must
// give nothing of it. If the verdict on l is not deliver, deliverable carries it out at once (clearAway), and continues
// with the rest of the group, if any. If the group cannot be read, deliverable leaves the group unchanged, stores the
// error in r, and returns nil.
func (c *claimer) deliverable(r *reception, l *look, limit int) (*look, error) {
	l, err := c.passHold(l, limit)
	for l != nil {
		if _, err = c.see(l); err != nil {
			break
		}
		if l.seen.verdict == verdictDeliver {
			return l, nil
		}
		l, err = c.clearAway(l, limit)
	}
	return nil, r.spoilt(err)
}

// spoilt returns nil for the error of an unreadable row, so that the receive continues with other groups. It stores the
// first such error in r. It returns any other error.
func (r *reception) spoilt(err error) error {
	if !isCorrupt(err) {
		return err
	}
	if r.broken == nil {
		r.broken = err
	}
	return nil
}

// clearAway carries out a verdict other than deliver (carryOutVerdict), or leaves it to the next transaction if this
// one has done enough. A lane that the caller has named, and that has no lock, stays as it is if it is not due, or if
// another lane excludes it. rest is a look at the rest of the group, if some of the items there may be deliverable; nil
// = there is nothing to deliver.
func (c *claimer) clearAway(l *look, limit int) (rest *look, err error) {
	f := l.seen
	switch {
	case c.putsOff(f):
		c.chores.postponed = true
		return nil, nil
	case (f.verdict == verdictEarly || f.verdict == verdictExcluded) && f.key == nil && f.record == nil:
		// Named by the caller: the timer or hint which leads to the group stays as is.
		return nil, nil
	}
	behind, err := carryOutVerdict(c.txn, f)
	if err != nil {
		return nil, err
	}
	if f.verdict == verdictJoins {
		group, _ := joinedFrom(f.group())
		c.changed(group)
	}
	switch {
	case f.verdict == verdictStale && f.record == nil:
		c.undecided(l.lane)
		return nil, nil
	case behind == nil:
		c.met[l.lane] = !f.left
		return nil, nil
	}
	return c.read(*behind, max(limit, 1)), nil
}

// changed notes that this transaction has changed a lane of which more may be taken. A look that has begun has not seen
// the change: next reads again. If there is none, another hint or timer of the lane may lead to a new look.
func (c *claimer) changed(lane string) {
	if slices.ContainsFunc(c.looks, func(l *look) bool { return l.lane == lane }) {
		c.met[lane] = true
	} else {
		delete(c.met, lane)
	}
}

// undecided makes the search look at a lane again when another hint or timer leads there. It is called when a timer of
// a holding, or a grant, has led to a lane without a lock: that key says nothing of the lane. Example: customer-7 has
// two timers. One is of a claim that has ended. It lies in the shard of an earlier number of shards, because the end of
// the claim has cleared the timer in the present shard. The other is of the group's delayed head, and leads to the
// group.
func (c *claimer) undecided(lane string) {
	delete(c.met, lane)
	again := func(w candidate) bool { return w.lane == lane }
	for _, w := range c.twins {
		if again(w) {
			c.search.pending = append(c.search.pending, w)
		}
	}
	c.twins = slices.DeleteFunc(c.twins, again)
}

// take claims a group for r, with up to limit of its items. It writes the lock and a timer, or for a claim by heartbeat
// the held key in place of the timer, and clears the timer, held key or grant of a holding that ends (put). In a queue
// with MaxRate it writes the pace. It clears the hint, timer or grant that led here; if the caller has named the group,
// it clears the hint and the timers of the head. If an expired claim is taken over, it writes attempt records of items
// in that claim (judgeLapse). take reads attempt records, parts, and for a suspect head the locks that mayGiveSuspect
// names, at snapshot. It adds read conflicts on the lock, on the locks of intersecting lanes, on the holds up to the
// last item, and for a claim by heartbeat on beatJoin.
//
// take claims nothing, and returns no error, if the head is suspect and r or the handle may not give it now, if the
// queue's rate is used up, or if the head does not fit. A suspect head is claimed alone.
func (c *claimer) take(r *reception, f *found, state kv.Future[[]byte], limit int) error {
	token, err := c.token(f.record)
	if err != nil {
		return err
	}
	id, tried, failed, err := lastTried(c.txn, f)
	if err != nil {
		return err
	}
	suspect := r.alone(tried)
	if suspect {
		if r.items > 0 {
			r.stopped = true
			return nil
		}
		if may, err := mayGiveSuspect(c.txn, tried); err != nil || !may {
			return err // to another handle, or later
		}
		limit = min(limit, 1)
	}
	// There may be more rows than limit, because earlier groups of the same wave have used a part of the limit at the
	// time of the read.
	items, out, err := c.runWithin(f, limit, r.fits(f.lane, false))
	if err != nil || len(out) == 0 {
		return err
	}
	if failed && !suspect {
		n, err := c.untilSuspect(r, items)
		if err != nil {
			return err
		}
		c.unreserve(len(items) - n)
		items, out = items[:n], out[:n]
	}
	where := c.keys.plan.TemplateOf(f.lane)
	claim := &Claim{Queue: c.q.name, Group: f.group(), Where: where, Token: token, Items: items}
	if r.o.State {
		if claim.State, err = c.waitState(state); err != nil {
			return err
		}
	}
	if err := c.fenceOver(guard.ClaimLock, f.lane); err != nil {
		return err
	}
	if err := c.fenceHolds(guard.Holds, idOf(out[len(out)-1], f.group())); err != nil {
		return err
	}
	c.succeed(f, claim, id, tried)
	lease, err := c.lease(r.o.Lease)
	if err != nil {
		return err
	}
	end := c.nowMS + lease.Milliseconds()
	held := rec.Holding{
		Kind: rec.KindClaim, Token: token, Owner: c.q.opts.Owner, EndMS: end, Items: out, SinceMS: c.nowMS,
	}
	if err := c.byHeartbeat(r, &held); err != nil {
		return err
	}
	claim.Until, claim.ends = fromMillis(held.EndMS), byMonotonic(&c.view, held.EndMS)
	claim.beat, claim.pulse = held.Beat, c.q.heart.of(held.Beat)
	next := rec.HeldBy(held, nil)
	next.Token += r.proof(suspect)
	claim.suspect, claim.failed = suspect && !r.inTx, failed
	c.hold(f, next)
	c.spend(f.group(), f.allowed, len(out))
	r.give(claim, f.lane)
	r.stopped, c.suspects.gave = r.stopped || suspect, c.suspects.gave || suspect
	r.groups++
	c.taken++
	c.items += len(items)
	c.count(countReceived, len(items))
	return nil
}

// untilSuspect returns how many of the items a claim may have: those before the first suspect item behind the head.
// take calls it if an item of the group has failed before. It reads the attempt records of the items behind the head,
// at snapshot. If one cannot be read, the claim has the head alone. Example: the claim of 1, 2 and 3 has expired, and
// then 1 has failed alone. 2 and 3 are suspect still.
func (c *claimer) untilSuspect(r *reception, items []Item) (int, error) {
	if len(items) == 1 {
		return 1, nil
	}
	behind, err := c.readAttempts(itemIDs(items[1:]))
	if c.skipsRow(err) { // a record that cannot be read, maybe of another item that lies between these: claim the head
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	for n := 1; n < len(items); n++ {
		if r.alone(behind[items[n].ID]) {
			return n, nil
		}
	}
	return len(items), nil
}

// alone reports whether the receive has to give an item with this attempt record alone, because the item is suspect.
func (r *reception) alone(record rec.Attempt) bool { return record.Suspect() && !r.o.CountExpired }

// proof returns by how much the token of a new record is greater than the token of its claim. More than 0 means that
// the claim is proven from the start: its caller is known to know it, so an expired lease counts an attempt.
func (r *reception) proof(suspect bool) int64 {
	switch {
	case r.o.CountExpired:
		return rec.ProvenByReceive
	case suspect && r.inTx:
		return rec.ProvenByCaller // the caller answers for the commit
	}
	return 0
}

// hold writes next, a record with a claim or a grant, into the lock of the group, with its timer, held key or grant key
// (put), and clears the hint, timer or grant that led here.
func (c *claimer) hold(f *found, next *rec.Record) {
	clearTaken(c.txn, f)
	c.put(f.lane, f.record, next, f.rows.at(0).Index)
}

// succeed sets Attempts, FirstDelivered and LastFailed of the claim's items. If the claim takes an expired claim over,
// succeed also writes the attempt records that follow from the expired lease (f.failure), and sets TakenFrom. The end
// of a delay or of a grant counts no attempt.
//
// record has the failed attempts of the item id; both are zero if the hint has said that the head has never failed.
func (c *claimer) succeed(f *found, claim *Claim, id ID, record rec.Attempt) {
	first := &claim.Items[0]
	if !f.timer && first.ID.Index == f.index {
		first.Attempts = f.attempts
	}
	if f.failure != nil {
		claim.TakenFrom = f.record.Claim().Owner
		f.failure.write(c.txn)
		c.count(countExpired, 1)
	}
	for i := range claim.Items {
		item := &claim.Items[i]
		if item.FirstDelivered = fromMillis(c.nowMS); item.ID == id {
			item.failedBefore(record)
		}
	}
}

// token returns the token of a new claim: the transaction's read version + the queue's offset. r is the record that the
// claim replaces; nil = there is none. The token is greater than that of r, because tokens must grow.
func (c *claimer) token(r *rec.Record) (int64, error) {
	now, err := c.clock()
	if r != nil {
		// Always so while all handles use the same offset. But a handle opened before the offset was raised has a clock
		// behind, and must not make the token go back.
		now = max(now, r.Token+1)
	}
	return now, err
}
