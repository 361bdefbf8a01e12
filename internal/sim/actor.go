package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"fdbfifo/internal/linear"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

// actor makes calls on one handle, one after the other.
type actor struct {
	w          *world
	id         int
	who        int // the handle
	q          *layer.Queue
	rng        *rand.Rand
	lanes      *rand.Rand     // for choices that only a queue with facets has
	works      bool           // it has had a worker
	worksAt    layer.Template // of its workers
	worksPlain bool           // its workers are unordered
	role       func(*actor)
	left       int           // how many calls it still makes, about
	over       bool          // its role has ended
	produces   bool          // its role is to enqueue
	n          int           // of its messages, or of the calls of its handler
	lease      time.Duration // of its worker's claims
	ctx        context.Context
	end        context.CancelFunc
}

func (a *actor) chance(p float64) bool { return a.rng.Float64() < p }

func (a *actor) below(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(a.rng.Int64N(int64(d)))
}

// park parks, and ends the goroutine if its process died, or the run was given up.
func (a *actor) park(what string) {
	a.w.sched.park(place{what, firstActor + a.id, 0})
	if a.w.sched.ended(firstActor + a.id) {
		runtime.Goexit()
	}
}

// more counts the calls down.
func (a *actor) more() bool {
	a.left--
	return a.left >= 0
}

// sleep lets virtual time pass. No two actors wake at the same nanosecond.
func (a *actor) sleep(d time.Duration) {
	time.Sleep(d.Truncate(time.Microsecond) + time.Duration(1+a.id))
	a.park("awake")
}

// call makes one call and notes it. o's results must be assigned by fn.
func (a *actor) call(o *op, fn func(ctx context.Context) error) error {
	ctx, cancel := a.ctx, context.CancelFunc(func() {})
	limited := o.leaves || a.w.faulty && a.chance(a.w.knobs.giveUp)
	switch {
	case o.leaves:
		after := a.below(20*time.Millisecond).Truncate(time.Microsecond) + time.Duration(500+a.id)
		ctx, cancel = context.WithTimeoutCause(ctx, after, a.causeOfEnd())
	case limited:
		after := a.below([]time.Duration{2 * time.Second, 20 * time.Millisecond}[a.rng.IntN(2)])
		after = after.Truncate(time.Microsecond) + time.Duration(500+a.id)
		ctx, cancel = context.WithTimeoutCause(ctx, after, a.causeOfEnd())
	}
	defer cancel()
	a.begin(o)
	o.limited = limited
	dropped, retired := a.w.doom != nil && a.w.doom.done, a.w.handleOf(a.who).retired
	doubts := a.w.handleOf(a.who).engine.doubts.Load()
	err := fn(ctx)
	o.takeBack()
	a.park("back")
	o.doubted = a.w.handleOf(a.who).engine.doubts.Load() > doubts
	o.end, o.endAt, o.over = a.w.sched.steps, time.Now(), true
	a.w.timely(o)
	var expected bool
	o.told = linear.OutcomeOf(err)
	o.outcome, expected = judge(err, limited || a.w.knobs.mayFail(err))
	if o.outcome == unknown && !kv.MaybeCommitted(err) && (!o.is("receive") || o.attemptID != "") {
		o.outcome = refused // a call says if it may have had an effect; without an id, a receive gives its claims back
	}
	if a.doomed(o, dropped, err) || a.turnedAway(o, retired, err) {
		o.outcome = refused
	} else if !expected && !a.w.knobs.refusesClock(err) && !a.w.knobs.endsBetween(err) {
		a.w.violation("unexpected error of %s: %v", o, err)
	}
	if (o.sweeping || o.is("replay") || a.w.knobs.endsBetween(err)) && o.outcome == refused {
		o.outcome = unknown // of its transactions some may have been done
	}
	if o.beats {
		a.w.byBeat(o)
	}
	a.w.sched.trace.note("op", a.id, o.kind, o.outcome, o.ids, o.sent, claimsText(o.claims), len(o.items), err)
	a.leave(err)
	return err
}

// causeOfEnd is why the context of a call ends; nil = the time is over. In half of the cases another call of the same
// caller has failed, as in a group of goroutines. The error of that call says nothing of the outcome of this one.
func (a *actor) causeOfEnd() error {
	causes := []error{
		&kv.Error{Code: kv.CodeCommitUnknownResult}, &kv.Error{Code: kv.CodeNotCommitted},
		&kv.Error{Code: kv.CodeTransactionTimedOut, InFlight: true}, &kv.Error{Code: kv.CodeTransactionTooOld},
		errHandler, context.Canceled,
	}
	n := (uint64(a.id)*7 + uint64(len(a.w.ops))*13 + a.w.o.Seed) % uint64(2*len(causes)) // no draw: see failedOnce
	if n >= uint64(len(causes)) {
		return nil
	}
	return causes[n]
}

// begin notes a call that begins.
func (a *actor) begin(o *op) {
	o.actor, o.who, o.begin, o.beginAt = a.id, a.who, a.w.sched.steps, time.Now()
	o.outcome, o.told = unknown, linear.Unknown
	a.w.ops = append(a.w.ops, o)
}

// once makes a call in a transaction of its own, of the caller's, as often as the knobs say; else plain.
func (a *actor) once(o *op, plain func(ctx context.Context) error, inTx func(ctx context.Context, tx kv.Tx) error) error {
	if !a.chance(a.w.knobs.inTx) {
		return a.call(o, plain)
	}
	o.kind += "-tx"
	return a.call(o, func(ctx context.Context) error {
		return a.q.Once(ctx, func(tx kv.Tx) error { return inTx(ctx, tx) })
	})
}

// settle settles a claim, in a transaction of its own or of the caller's: see once.
func (a *actor) settle(o *op, s layer.Settlement) error {
	s = o.lendSettlement(s)
	return a.once(o, func(ctx context.Context) error { return a.q.Settle(ctx, s) },
		func(ctx context.Context, tx kv.Tx) error { return a.q.SettleTx(ctx, tx, s) })
}

func claimsText(claims []*layer.Claim) (s string) {
	for _, c := range claims {
		s += fmt.Sprintf(" %s/%d:%d-%d", c.Group, c.Token, c.Items[0].ID.Index, len(c.Items))
	}
	return s
}

// labelHeader is the header that tells messages apart: their bodies may be the same.
const labelHeader = "n"

// messages are random, and o is told what they are.
func (a *actor) messages(o *op) (msgs []layer.Message) {
	k, room := a.w.knobs, layer.MaxBodySize-4*layer.MaxHeadersSize
	for range 1 + a.rng.IntN(k.batch) {
		a.n++
		label := fmt.Sprintf("a%d.%d", a.id, a.n)
		m := layer.Message{Group: a.w.group(a.rng), Body: []byte("body of " + label), Headers: map[string]string{labelHeader: label}}
		if a.chance(k.same) {
			m.Body = fmt.Appendf(nil, "same %d", a.rng.IntN(20))
		}
		if a.chance(k.large) {
			m.Body = append(m.Body, bytes.Repeat([]byte{byte('A' + a.rng.IntN(26))}, 90_000+a.rng.IntN(150_000))...)
			room -= len(m.Body)
			a.w.mark("body in parts")
		}
		if a.chance(k.named) {
			m.DedupID = fmt.Sprintf("d%d", a.rng.IntN(k.ids))
		}
		if a.chance(k.delayed) {
			switch a.rng.IntN(3) {
			case 0:
				m.Delay = time.Millisecond + a.below(maxDelay)
			case 1:
				m.DeliverAt = a.w.handleOf(a.who).now().Add(a.below(maxDelay))
			case 2:
				m.AtOnce = true
			}
		}
		a.joinLater(&m)
		a.faceted(&m)
		k.enlarge(rand.New(rand.NewPCG(a.w.o.Seed, uint64(a.id)<<32|uint64(a.n))), &m, &room)
		o.bodies, o.groups, o.messages = append(o.bodies, label), append(o.groups, m.Group), append(o.messages, m)
		msgs = append(msgs, m)
	}
	return msgs
}

// sentAs notes what became of messages.
func (o *op) sentAs(sent []layer.Sent) {
	o.sent, o.duplicate = nil, nil
	for _, s := range sent {
		o.sent, o.duplicate = append(o.sent, s.ID), append(o.duplicate, s.Duplicate)
	}
}

// produce enqueues.
func (a *actor) produce() {
	for a.more() {
		a.send()
		if a.rng.IntN(2) == 0 {
			a.sleep(a.below(a.w.knobs.think))
		}
	}
}

// send makes one enqueue.
func (a *actor) send() {
	o := &op{kind: "enqueue"}
	msgs := o.lendMessages(a.messages(o))
	inTx := a.rng.IntN(4) == 0
	err := a.call(o, func(ctx context.Context) error {
		var sent []layer.Sent
		var err error
		if inTx {
			o.kind = "enqueue-tx"
			err = a.q.Once(ctx, func(tx kv.Tx) error {
				var err error
				sent, err = a.q.EnqueueTx(ctx, tx, msgs...)
				return err
			})
		} else {
			sent, err = a.q.Enqueue(ctx, msgs...)
		}
		if err == nil {
			o.sentAs(sent)
		}
		return err
	})
	if full := new(layer.FullError); errors.As(err, &full) {
		a.w.mark("enqueue refused: full")
		o.full = full.Group
		a.sleep(a.below(a.w.knobs.think))
	}
	a.w.owns(o)
	for i, id := range o.sent {
		if o.duplicate[i] {
			a.w.mark("duplicate")
		} else {
			a.w.known = append(a.w.known, id)
		}
	}
}

// receiveOptions are random.
func (a *actor) receiveOptions() layer.ReceiveOptions {
	k := a.w.knobs
	o := layer.ReceiveOptions{Max: 1 + a.rng.IntN(k.receive), Strategy: layer.Strategy(a.rng.IntN(3))}
	if a.rng.IntN(3) == 0 && !k.clocks {
		o.Lease = layer.MinLease + a.below(maxLease-layer.MinLease)
	}
	if a.rng.IntN(4) == 0 {
		o.MaxGroups = 1 + a.rng.IntN(3)
	}
	if a.rng.IntN(10) == 0 {
		g := a.w.group(a.rng)
		o.Group, o.Strategy = &g, layer.FillGroup
	}
	if a.rng.IntN(3) > 0 {
		// Waits of several receives that end at the same instant would end them together.
		o.Wait = a.below(k.wait).Truncate(time.Microsecond) + time.Duration(1+a.id)
	}
	o.State = a.chance(k.state)
	a.laneOptions(&o)
	a.plainOptions(&o)
	a.beatOptions(&o)
	return o
}

// receive receives. It also repeats a receive whose answer was lost, and a receive of a dead actor.
func (a *actor) receive() []*layer.Claim {
	k := a.w.knobs
	o := &op{kind: "receive"}
	options := a.receiveOptions()
	if a.chance(k.repeat) {
		a.n++
		options.ReceiveID = fmt.Sprintf("r%d.%d", a.id, a.n)
		if k.attempts > 0 {
			options.ReceiveID = fmt.Sprintf("r%d", a.rng.IntN(k.attempts))
		}
		if ids := slices.Sorted(maps.Keys(a.w.attempts)); len(ids) > 0 && k.twin > 0 && a.chance(k.twin) {
			options.ReceiveID = ids[a.rng.IntN(len(ids))]
		}
	}
	if len(a.w.orphans) > 0 && a.rng.IntN(2) == 0 {
		options.ReceiveID = a.w.orphans[0]
		a.w.orphans = a.w.orphans[1:]
	}
	if options.Heartbeat {
		options.ReceiveID = ""
	}
	try := func(o *op) error {
		o.beats, o.attemptID, o.wantsState = options.Heartbeat, options.ReceiveID, options.State
		given := o.lendReceive(options)
		if options.ReceiveID != "" {
			a.w.attempts[options.ReceiveID] = a.id
		}
		if options.Wait == 0 && a.chance(k.inTx) && !options.Heartbeat {
			o.kind = "receive-tx"
			return a.call(o, func(ctx context.Context) error {
				var claims []*layer.Claim
				err := a.q.Once(ctx, func(tx kv.Tx) (err error) {
					claims, err = a.q.ReceiveTx(ctx, tx, given)
					return err
				})
				if err == nil {
					o.claims = claims
				}
				return err
			})
		}
		return a.call(o, func(ctx context.Context) (err error) {
			o.claims, err = a.q.Receive(ctx, given)
			return err
		})
	}
	err := try(o)
	if options.ReceiveID != "" && (err != nil || a.rng.IntN(6) == 0) {
		o = &op{kind: "receive"} // the first answer was lost on its way, if there was one
		if err := try(o); err == nil && len(o.claims) > 0 {
			a.w.mark("receive repeated")
		}
	}
	if options.ReceiveID != "" {
		delete(a.w.attempts, options.ReceiveID)
	}
	for _, c := range o.claims {
		for _, item := range c.Items {
			a.w.handed = append(a.w.handed, item.ID)
		}
	}
	return o.claims
}

// work receives and settles what it gets, until it has made its number of calls.
func (a *actor) work() {
	k := a.w.knobs
	var next []*layer.Claim
	for a.more() || len(next) > 0 {
		claims := next
		next = nil
		if claims == nil {
			if claims = a.receive(); len(claims) == 0 {
				a.sleep(a.below(k.think))
			}
		}
		for i, c := range claims {
			a.left--
			a.rival(c)
			next = a.handle(c, i == len(claims)-1 && a.left > 0)
			a.letGo(c)
		}
	}
}

// handle does with a claim what a worker may do. If may is set it can receive the next claims with the ack.
func (a *actor) handle(given *layer.Claim, may bool) (next []*layer.Claim) {
	k := a.w.knobs
	same := *given // the given claim stays as it was received: the history refers to it
	c := &same
	left := make([]layer.ID, len(c.Items))
	for i, item := range c.Items {
		left[i] = item.ID
	}
	if a.rng.IntN(2) == 0 {
		a.sleep(a.below(k.think))
	}
	if k.beats > 0 && a.rng.IntN(4) == 0 {
		a.sleep(a.edge())
	}
	if a.chance(k.die) {
		a.w.mark("worker died with a claim")
		return nil
	}
	frozen := a.chance(k.freeze)
	if frozen {
		a.sleep(maxLease + a.below(2*maxSkew))
	}
	if frozen && a.rng.IntN(2) == 0 || a.rng.IntN(8) == 0 {
		o := &op{kind: "extend", group: claimLane(c), token: c.Token}
		var until time.Time
		err := a.once(o, func(ctx context.Context) (err error) { until, err = a.q.Extend(ctx, c, 0); return err },
			func(ctx context.Context, tx kv.Tx) (err error) { until, err = a.q.ExtendTx(ctx, tx, c, 0); return err })
		o.until = until
		if err == nil && frozen {
			a.w.mark("late extend accepted")
		}
	}
	settle := func(kind string, ids []layer.ID) *op {
		return &op{kind: kind, settle: true, group: claimLane(c), token: c.Token, ids: ids}
	}
	if len(left) > 1 && a.chance(k.partial) {
		var part, rest []layer.ID
		for _, id := range left {
			if a.rng.IntN(2) == 0 {
				part = append(part, id)
			} else {
				rest = append(rest, id)
			}
		}
		if len(part) > 0 && len(rest) > 0 {
			o := settle("ack-part", part)
			given := o.lendIDs(part)
			err := a.once(o, func(ctx context.Context) error { return a.q.AckItems(ctx, c, given) },
				func(ctx context.Context, tx kv.Tx) error { return a.q.AckItemsTx(ctx, tx, c, given) })
			if err != nil {
				return nil
			}
			a.w.mark("partial ack")
			left = rest
			if a.rng.IntN(3) == 0 {
				a.sleep(a.below(k.think))
			}
		}
	}
	if k.wrong > 0 && a.chance(k.wrong) {
		a.ackWrongly(c, left)
	}
	if left = a.advance(c, left); len(left) == 0 {
		return nil
	}
	if a.chance(k.nack) {
		a.nack(c, left, settle)
		return nil
	}
	o := settle("ack", left)
	var err error
	switch {
	case a.chance(k.state) && claimLane(c) == c.Group:
		a.n++
		o.kind, o.sets, o.state = "ack-state", true, []byte(fmt.Sprintf("s%d.%d", a.id, a.n))
		if a.rng.IntN(4) == 0 {
			o.kind, o.ids = "set-state", nil
			a.settle(o, layer.Settlement{Claim: c, Finish: []layer.ID{}, State: &o.state})
			return nil // the lease runs out
		}
		if a.rng.IntN(5) == 0 {
			o.state = nil
		}
		err = a.settle(o, layer.Settlement{Claim: c, Finish: left, State: &o.state})
		if err == nil {
			a.w.mark("ack with the group's state")
		}
	case a.chance(k.inTx):
		// The transaction that acks the message enqueues its successors.
		o.kind, o.effect = "ack-enqueue-tx", true
		msgs, c, left := o.lendMessages(a.messages(o)), o.lendClaim(c), o.lendIDs(left)
		err = a.call(o, func(ctx context.Context) error {
			var sent []layer.Sent
			err := a.q.Once(ctx, func(tx kv.Tx) (err error) {
				for _, id := range left {
					addEffect(tx, id)
				}
				if err := a.q.AckItemsTx(ctx, tx, c, left); err != nil {
					return err
				}
				sent, err = a.q.EnqueueTx(ctx, tx, msgs...)
				return err
			})
			if err == nil {
				o.sentAs(sent)
			}
			return err
		})
		if full := new(layer.FullError); errors.As(err, &full) {
			a.w.mark("ack and enqueue refused: full")
			o.full = full.Group
		}
		if err == nil {
			a.w.mark("ack and enqueue in one transaction")
		}
	case may && a.chance(k.fuse):
		o.kind, o.all = "ack-receive", true
		options := a.receiveOptions()
		o.beats = options.Heartbeat
		options, c := o.lendReceive(options), o.lendClaim(c)
		err = a.call(o, func(ctx context.Context) (err error) {
			o.claims, err = a.q.SettleReceive(ctx, layer.Settlement{Claim: c, FinishAll: true}, options)
			return err
		})
	case a.rng.IntN(4) == 0:
		o.kind, o.effect = "ack-tx", true
		c, given := o.lendClaim(c), o.lendIDs(left)
		err = a.call(o, func(ctx context.Context) error {
			return a.q.Once(ctx, func(tx kv.Tx) error {
				for _, id := range left {
					addEffect(tx, id)
				}
				return a.q.AckItemsTx(ctx, tx, c, given)
			})
		})
	case a.rng.IntN(2) == 0:
		o.all = true
		c := o.lendClaim(c)
		err = a.call(o, func(ctx context.Context) error { return a.q.Ack(ctx, c) })
	default:
		c, given := o.lendClaim(c), o.lendIDs(left)
		err = a.call(o, func(ctx context.Context) error { return a.q.AckItems(ctx, c, given) })
	}
	if frozen {
		switch {
		case err == nil:
			a.w.mark("late ack accepted")
		case errors.Is(err, layer.ErrClaimLost):
			a.w.mark("late ack refused")
		}
	}
	return o.claims
}

// behind chooses, without a random number, whether a release puts the group behind the others.
func behind(c *layer.Claim, left []layer.ID) bool { return c.Hold == layer.ID{} && len(left)%2 == 0 }

func (a *actor) nack(c *layer.Claim, left []layer.ID, settle func(string, []layer.ID) *op) {
	o := settle("nack", nil)
	n := layer.NackOptions{Err: errors.New("failed")}
	switch a.rng.IntN(5) {
	case 0:
		n.Delay = time.Millisecond + a.below(maxDelay)
	case 1:
		n.AtOnce = true
	case 2:
		n.Release = true
		if a.rng.IntN(2) == 0 {
			from := left[a.rng.IntN(len(left))]
			n.From = &from
		}
		n.Behind = n.From == nil && behind(c, left)
	case 3:
		if a.chance(a.w.knobs.reject) {
			n.Reject = "hopeless"
		}
	}
	if len(left) > 1 && n.From == nil && a.rng.IntN(2) == 0 {
		o.ids = left[:1]
	}
	if n.Reject != "" {
		o.rejected = left[len(o.ids)]
	}
	o.nack = n
	a.settle(o, layer.Settlement{Claim: o.lendClaim(c), Finish: o.ids, Nack: &n})
}

// take takes in transactions of its own.
func (a *actor) take() {
	for a.more() {
		o := &op{kind: "take", effect: true}
		n := 1 + a.rng.IntN(a.w.knobs.receive)
		options := a.takeOptions()
		o.where, o.plain = options.Where, options.Unordered
		a.call(o, func(ctx context.Context) error {
			return a.q.Once(ctx, func(tx kv.Tx) error {
				items, _, err := a.q.TakeTx(ctx, tx, n, options)
				if err != nil {
					return err
				}
				o.items, o.ids = items, nil
				for i := range items {
					addEffect(tx, items[i].ID)
					o.ids = append(o.ids, items[i].ID)
				}
				o.tried, o.tries = append(o.tried, o.ids...), append(o.tries, items)
				return nil
			})
		})
		a.sleep(a.below(a.w.knobs.think))
	}
}

// effectPrefix begins the keys under which a transaction that finishes an item counts that it did.
const effectPrefix = "E"

func addEffect(tx kv.Tx, id layer.ID) {
	var one [8]byte
	binary.LittleEndian.PutUint64(one[:], 1)
	tx.Atomic(kv.Add, []byte(effectPrefix+id.String()), one[:])
}
