package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Delivery is one item, as a handler gets it. The handler must not use the Delivery after it has returned, but may keep
// the body and the headers.
type Delivery struct {
	layer.Item
	// Queue is the handle from which the worker has received the item.
	Queue *layer.Queue
	// Token is the claim's fencing token, which grows from claim to claim of a group. Pass it to systems outside the
	// database with TokenKey, so that they can refuse a holder whose group has a later claim.
	Token int64
	// Attempt is the number of this delivery among those that count: 1 for the first, Item.Attempts + 1.
	Attempt int

	of    *Delivery // the worker's own, of which a handler has a copy
	in    *inHand
	known bool   // was is the group's state before the call
	was   []byte // only with known
	sets  bool   // state is to be kept with the ack
	state []byte // only with sets
	acked bool   // in the handler's transaction
	// spared: the handler's transaction has failed because of the database, or its outcome is unknown, so the call is
	// no failed attempt. The handler was not called, or has returned nil in time.
	spared bool
	// unknown: the outcome of the handler's transaction is unknown.
	unknown bool
	// refused is the error of AdvanceTo, if it has refused next; nil = it has not.
	refused error
	slip    error          // a mistake of a handler that has succeeded; nil = there is none
	next    layer.Template // to which the item is advanced, in the place of the ack; nil = it is finished
}

// Until is the end of the claim's lease, by this process's clock. The worker extends it while the handler runs, and
// before a transaction of HandleTx or HandleCommit.
func (d *Delivery) Until() time.Time { return time.UnixMilli(d.of.in.untilMS()) }

// TokenKey is the key under which tokens are compared: see layer.Claim.TokenKey.
func (d *Delivery) TokenKey() string { return d.of.in.as.TokenKey() }

// lend returns a copy of the delivery for one call of a handler, which may change the copy and all that is in it.
func (d *Delivery) lend() *Delivery {
	mine := &Delivery{Item: d.Item, Queue: d.Queue, Token: d.Token, Attempt: d.Attempt, of: d}
	mine.Body, mine.Headers = bytes.Clone(d.Body), maps.Clone(d.Headers)
	return mine
}

// State returns the state of the group (see layer.Settlement.State) as it was before the call, or as SetState of this
// delivery has set it; nil = the group has no state. In a batch it does not show what the items in front have set. The
// first call in a worker costs a read of its own. From then on the worker receives the state with its claims. The bytes
// belong to the handler. Errors: ErrOptions for a claim by a template or of a single item, because others may hold the
// group too, and those of layer.Queue.GroupState.
func (d *Delivery) State(ctx context.Context) ([]byte, error) {
	if d = d.of; d.sets {
		return bytes.Clone(d.state), nil
	}
	if d.in.isLane() {
		return nil, wrap("state", errLaneState)
	}
	if !d.known {
		d.in.source.state.Store(true)
		state, err := d.Queue.GroupState(ctx, d.in.as.Group)
		if err != nil {
			return nil, err
		}
		d.was, d.known = state, true
	}
	return bytes.Clone(d.was), nil
}

// SetState stores state with the group, in the transaction that acks the item. If the handler fails, the stored state
// does not change. nil, or no bytes, clears the state. In a batch the last state that was set for a finished item
// counts. The error is a *LimitError if state has more than MaxStateSize bytes, and ErrOptions as for State.
func (d *Delivery) SetState(state []byte) error {
	if d = d.of; d.in.isLane() {
		return wrap("set state", errLaneState)
	}
	if len(state) > layer.MaxStateSize {
		return wrap("set state", &layer.LimitError{
			What: "state", Unit: "bytes", Got: int64(len(state)), Max: layer.MaxStateSize,
		})
	}
	d.sets, d.state = true, bytes.Clone(state)
	return nil
}

// The bounds of a handler's transaction.
const (
	// txTime is when the context of a handler's transaction ends: FoundationDB's ends after 5 s.
	txTime = 4800 * time.Millisecond
	// txLease is what must be left of a lease when the transaction begins: its 5 s, and the commit. A lease that is not
	// much longer than that has to be left nearly whole, because the handler may need it all.
	txLease = 6 * time.Second
)

// errLaneState: a group's state belongs to the holder of the whole group.
var errLaneState = fmt.Errorf(
	"%w: the state of a group with a template: others may hold the group, too", layer.ErrOptions)

// txNeed is what must be left of a lease when a handler's transaction begins. Example: 980 ms of 1 s, 6 s of 30 s.
func txNeed(lease time.Duration) time.Duration { return min(txLease, lease-lease/50) }

// txBound is for how long a handler's transaction may run when so much is left of its lease: not to the lease's very
// end, because the commit takes time too.
func txBound(lease, left time.Duration) time.Duration { return min(txTime, left-lease/25) }

// The reasons for which the loop of a handler's transaction ends without a commit.
var (
	errGiveUp = errors.New("the handler's failure")
	errRenew  = errors.New("too little is left of the lease for an attempt")
)

// commit runs fn in the transaction that acks d. fn's contexts end with of. ctx is the transaction's: of, or a context
// that outlives of, so that fn may succeed after the end of its context. While the transaction is open, the worker does
// not extend the claim: an extension writes the lock, which the transaction has read, so each would make the other
// fail. commit extends the claim before the transaction and between two attempts, if the rest of the lease may be too
// short.
func (d *Delivery) commit(ctx, of context.Context, fn func(ctx context.Context, tx kv.Tx) error) error {
	h := d.in
	d.spared, d.unknown = true, false // until the handler is called
	if err := h.begin(of); err != nil {
		return err
	}
	defer h.end()
	h.commits.Store(true)
	defer h.commits.Store(false)
	mayAdvance := len(d.Queue.Config().Facets) > 0
	for {
		if h.left() < txNeed(h.leaseTime()) {
			if err := h.extend(of); err != nil {
				return err
			}
		}
		lease := h.leaseTime() // the extension may have learnt that an operator has changed it
		t := &handlerTx{d: d, of: of, fn: fn, lease: lease, mayAdvance: mayAdvance}
		begun := time.Now()
		err := t.once(ctx)
		d.spared = d.spared && !isMisuse(kv.Code(err))
		switch {
		case errors.Is(err, errRenew):
			continue
		case errors.Is(err, errGiveUp):
			return t.failed
		case err != nil:
			d.unknown = t.committing && kv.MaybeCommitted(err)
			d.spared = (d.spared || d.unknown) && !t.usedUp(time.Since(begun), err)
			return err
		}
		d.acked = true
		h.acked(d)
		return nil
	}
}

// isMisuse reports whether a code says that a client has used the database in a wrong way. Example: the handler has
// written too much. The codes from 3000 on (unknown, internal and authorization errors) do not say so.
func isMisuse(code int) bool { return code >= 2000 && code < 3000 }

// isOutage reports whether a transaction has failed with err because of the database.
func isOutage(err error) bool {
	code := kv.Code(err)
	return code > 0 && !isMisuse(code)
}

// isEndOf reports whether err says that ctx has ended.
func isEndOf(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ctx.Err()))
}

// outlive returns a context for the commit of a handler that succeeds after the end of its context. It ends endTimeout
// after of, or when the queue has said that the claim is lost.
func (h *inHand) outlive(of context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(of))
	free := context.AfterFunc(h.ctx, func() {
		if cause := context.Cause(h.ctx); lostBy(cause) {
			cancel(cause)
		}
	})
	bound := endAfter(ctx, of, func() { cancel(context.Cause(of)) })
	return ctx, func() {
		free()
		bound()
		cancel(nil)
	}
}

// handlerTx is the transaction of a handler.
type handlerTx struct {
	d     *Delivery
	of    context.Context
	fn    func(ctx context.Context, tx kv.Tx) error
	lease time.Duration
	// mayAdvance: the queue has facets. Then the item is finished or advanced after the handler, otherwise before.
	mayAdvance bool

	failed     error         // the handler's, with errGiveUp
	took       time.Duration // the time of the handler's function in the attempt before
	all        time.Duration // the time of the whole attempt before; the rest of it is the database's
	bound      time.Duration // of the attempt before
	n          int           // attempts so far
	committing bool          // the last attempt went on to its commit
}

// overran reports whether the attempt before took too long because of the handler: its function needed at least half of
// the time. Otherwise the database was slow, and no message is blamed for that.
func (t *handlerTx) overran() bool { return t.all >= t.bound && t.took >= t.all/2 }

// usedUp reports whether err says that a time-out of the transaction is over, of Options.Tx or of the database, and the
// handler's function needed at least half of the time. all is the time of the whole loop.
func (t *handlerTx) usedUp(all time.Duration, err error) bool {
	return kv.Code(err) == kv.CodeTransactionTimedOut && t.took > 0 && t.took >= all/2
}

// once runs the transaction. ctx outlives t.of, so that a handler whose context has ended may still succeed.
func (t *handlerTx) once(ctx context.Context) error {
	return t.d.Queue.Once(ctx, func(tx kv.Tx) error {
		if t.n > 0 && !t.overran() && t.of.Err() != nil {
			t.failed = context.Cause(t.of)
			return errGiveUp // the handler must not be called again, and is blamed only for an error of its own
		}
		err := t.attempt(tx, t.n > 0)
		t.n++
		return err
	})
}

// attempt is the body of the transaction. When attempt is called, no attempt before has committed, nor will one commit
// later (see layer.Queue.Once). So attempt may end the loop.
func (t *handlerTx) attempt(tx kv.Tx, again bool) (err error) {
	d, h := t.d, t.d.in
	if again && t.overran() {
		t.failed = &timeoutError{t.bound, "its transaction"} // too old to commit, and the next would be, too
		d.spared = false
		return errGiveUp
	}
	left := h.left()
	t.bound = txBound(t.lease, left)
	// If the process has stood still since it looked at the lease, there is no time left, also in the first attempt.
	if again && left < txNeed(t.lease) || t.bound <= 0 {
		return errRenew
	}
	ctx, cancel := t.bounded()
	defer cancel()
	begun := time.Now()
	d.sets, d.state, d.next, d.refused, d.spared, t.took, t.all = false, nil, nil, nil, true, 0, 0
	defer func() { t.committing = err == nil }()
	if !t.mayAdvance {
		if err := t.finish(ctx, tx); err != nil {
			d.spared = isOutage(err) || isEndOf(ctx, err)
			return err
		}
	}
	own, err := t.call(ctx, tx)
	t.all = time.Since(begun)
	d.spared = err == nil || t.blamesNone(ctx, own, err)
	if err != nil && t.all >= t.bound && (t.of.Err() == nil || hasLapsed(t.of)) {
		t.failed = timedOut(ctx, err)
		return errGiveUp
	}
	if own && isVerdict(err) {
		t.failed = err // Once would call the handler again if an error of the database is in the verdict
		return errGiveUp
	}
	return err
}

// isVerdict reports whether a handler's error says how the item is given back.
func isVerdict(err error) bool {
	_, again := as[RetryError](err)
	_, never := as[RejectError](err)
	return again || never
}

// call calls the handler's function, and does the rest of the transaction. own: the error is the function's.
func (t *handlerTx) call(ctx context.Context, tx kv.Tx) (own bool, err error) {
	d, h, q := t.d, t.d.in, t.d.Queue
	h.commits.Store(false)
	d.spared = false // also if the handler panics
	begun := time.Now()
	err = t.fn(ctx, tx)
	t.took = time.Since(begun)
	h.commits.Store(true)
	switch {
	case err != nil:
		return true, err
	case t.mayAdvance:
		err = t.finish(ctx, tx) // the handler has called AdvanceTo by now
	default:
		err = d.refused // AdvanceTo has refused, because the queue has no facets
	}
	if err == nil && d.sets {
		// Under the ack's conflict on the lock.
		o := layer.SetGroupStateOptions{Force: true}
		err = q.Admin().SetGroupStateTx(ctx, tx, h.as.Group, d.state, o)
	}
	return false, err
}

// blamesNone reports whether an attempt in which the function was called has failed because of the database. own: err
// is the function's. If the time is over, the database is the cause if it took more of the time than the function.
func (t *handlerTx) blamesNone(ctx context.Context, own bool, err error) bool {
	if isEndOf(ctx, err) {
		return t.took < t.all/2
	}
	return !own && isOutage(err) && !t.overran()
}

// finish acks the item in the handler's transaction, or advances it.
func (t *handlerTx) finish(ctx context.Context, tx kv.Tx) error {
	d := t.d
	if d.refused != nil {
		return d.refused
	}
	s := layer.Settlement{Claim: d.in.claim}
	advance(&s, d)
	err := d.Queue.SettleTx(ctx, tx, s)
	d.in.lost = d.in.lost || lostBy(err)
	return err
}

// bounded is a context for one attempt of the transaction.
func (t *handlerTx) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(t.of, t.bound, &timeoutError{t.bound, "its transaction"})
}

// timeoutError is the cause with which a handler's context has ended.
type timeoutError struct {
	after time.Duration
	what  string
}

func (e *timeoutError) Error() string {
	return fmt.Sprintf("%s has not ended after %s", e.what, e.after)
}

// Unwrap returns context.DeadlineExceeded.
func (e *timeoutError) Unwrap() error { return context.DeadlineExceeded }

// timedOut adds to the error of a handler that its context had ended, if so.
func timedOut(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	cause, ok := as[timeoutError](context.Cause(ctx))
	switch {
	case !ok || errors.Is(err, cause):
		return err
	case err == context.DeadlineExceeded:
		return cause
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// inHand is a claim in a worker's hand.
type inHand struct {
	source *source
	hand   *hand                       // that has it now
	test   *layer.TestOptions          // the worker's
	as     *layer.Claim                // as received; it is only read, so a call of a handler may read it at any time
	claim  *layer.Claim                // Items are those not acked yet, State as the last acked item has left it
	until  atomic.Int64                // milliseconds
	ends   atomic.Pointer[time.Time]   // until by the monotonic clock
	beat   atomic.Pointer[layer.Claim] // kept by the handle's heartbeat; nil = the claim has a lease of its own
	leaves sync.Mutex                  // held while the claim leaves the heartbeat, and while a new end is stored
	ctx    context.Context             // of the handlers' calls; ends when the claim is lost, or was ended
	cancel context.CancelCauseFunc

	// turn holds a token while the claim is being extended, or a handler's transaction on the claim is open.
	turn       chan struct{}
	lost       bool // the claim is another's
	over       bool // all is acked, or the rest was given back
	stateKnown bool

	// handled are the claim's first items whose handlers have returned nil, and which are not acked yet. acking is the
	// ack under way of some of them, the first ones; nil = there is none.
	handled []*Delivery
	acking  *underWay
	// extending is the extension under way; nil = there is none.
	extending *underWay
	lapsed    bool // the lease has ended, and so have the calls
	// commits: the call waits for the database on the way to a commit, which needs the claim and so fails if that is
	// lost. None of the handler's code runs, and none will before the claim is extended.
	commits atomic.Bool
	// outlives: the commit function of a HandleCommit runs, whose context ends up to endTimeout after the call's.
	outlives atomic.Bool
	stale    bool          // an ack has failed, or its outcome is unknown: the worker does nothing more under the claim
	told     bool          // that the claim is lost
	warned   bool          // OnError knows that the claim may be lost
	keptOff  time.Duration // for how long the group is delayed when it is given back
	most     int           // how many messages a call of a HandleBatch gets; 0 = all that are left
}

// underWay is an ack or an extension under way, while a handler runs.
type underWay struct {
	ds    []*Delivery   // of an ack
	ended chan struct{} // closed when err is there
	err   error
}

// over is closed when the ack or the extension has ended. It is nil, which is never closed, if u is nil.
func (u *underWay) over() <-chan struct{} {
	if u == nil {
		return nil
	}
	return u.ended
}

// isLane reports whether others may hold the group, too: then its state is not the claim's.
func (h *inHand) isLane() bool { return h.as.Where != nil || h.as.Hold != (layer.ID{}) }

// learn notes the state of the group if a call has read it.
func (h *inHand) learn(ds []*Delivery) {
	for _, d := range ds {
		if d.known && !h.stateKnown {
			same := *h.claim
			same.State = d.was
			h.claim, h.stateKnown = &same, true
		}
	}
}

// unhandled are the items that are neither acked nor handled.
func (h *inHand) unhandled() []layer.Item { return h.claim.Items[len(h.handled):] }

func (h *hand) newInHand(r received) *inHand {
	c, s, test := r.claims[0], r.source, h.w.o.Test
	in := &inHand{source: s, hand: h, test: test, as: c, claim: c, stateKnown: r.state}
	in.turn = make(chan struct{}, 1)
	in.ctx, in.cancel = context.WithCancelCause(test.Named(h.ctx, "call for %s under %d", c.Items[0].ID, c.Token))
	in.lasts(c)
	if _, ended := c.Lasts(); ended != nil {
		same := *c
		in.beat.Store(&same)
	}
	return in
}

// begin waits until the claim is not being extended, and keeps it so until end.
func (h *inHand) begin(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *inHand) tryBegin() bool {
	select {
	case h.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (h *inHand) end() {
	<-h.turn
}

// lasts notes the end of a lease of the claim's own.
func (h *inHand) lasts(c *layer.Claim) {
	until, _ := c.Lasts()
	ends := time.Now().Add(c.Left())
	h.until.Store(until.UnixMilli())
	h.ends.Store(&ends)
}

// left is what is left of the lease, by the monotonic clock.
func (h *inHand) left() time.Duration {
	if c := h.beat.Load(); c != nil {
		return c.Left()
	}
	return time.Until(*h.ends.Load())
}

// noBeat notes that the handle no longer keeps the claim by its heartbeat. An extension that ends at the same time must
// not be overwritten with the end of the heartbeat.
func (h *inHand) noBeat() {
	h.leaves.Lock()
	defer h.leaves.Unlock()
	if c := h.beat.Load(); c != nil {
		h.lasts(c)
		h.beat.Store(nil)
	}
}

func (h *inHand) untilMS() int64 {
	if c := h.beat.Load(); c != nil {
		until, _ := c.Lasts()
		return max(h.until.Load(), until.UnixMilli())
	}
	return h.until.Load()
}

// beats reports whether the handle keeps the claim by its heartbeat.
func (h *inHand) beats() bool {
	ended := h.stopped()
	return ended != nil && !isClosed(ended)
}

// stopped is closed when the handle no longer keeps the claim by its heartbeat; nil = the claim has a lease of its own.
func (h *inHand) stopped() <-chan struct{} {
	if c := h.beat.Load(); c != nil {
		_, ended := c.Lasts()
		return ended
	}
	return nil
}

// leaseTime is Options.Lease, or else the queue's lease.
func (h *inHand) leaseTime() time.Duration {
	return cmp.Or(h.source.receive.Lease, h.source.q.Config().Lease)
}

// extend extends the claim for leaseTime and no longer, because the group stays held for so long if this process dies.
// The caller has begun.
func (h *inHand) extend(ctx context.Context) error {
	same := *h.claim // because Extend changes the claim, and the hand may read it
	err := h.extendAs(ctx, &same)
	h.lost = h.lost || lostBy(err)
	return err
}

// extendAs extends by c, a copy of the claim. A claim by heartbeat has a lease of its own from then on.
func (h *inHand) extendAs(ctx context.Context, c *layer.Claim) error {
	_, err := h.source.q.Extend(ctx, c, h.source.receive.Lease)
	h.test.Pause(ctx, "extended") // two calls may have shared the transaction
	if err != nil {
		return err
	}
	h.leaves.Lock()
	defer h.leaves.Unlock()
	h.lasts(c)
	h.beat.Store(nil)
	return nil
}

// acked notes what is acked: the first items of the claim, up to d.
func (h *inHand) acked(d *Delivery) {
	if i := slices.IndexFunc(h.claim.Items, func(item layer.Item) bool { return item.ID == d.ID }); i >= 0 {
		rest := *h.claim
		rest.Items = h.claim.Items[i+1:]
		h.claim = &rest
	}
	if d.sets {
		h.claim.State, h.stateKnown = d.state, true
	}
	h.over = len(h.claim.Items) == 0
}
