package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// Movers pass messages from the run's queue, the source, to another queue of the database, the target, and back. The
// layer has no call for that: a mover removes and enqueues in one transaction, as package sqs does in its move tasks
// and for its dead letter queues. It takes items, acks items of a claim, discards dead letters, or sifts the source:
// it cancels each item that it has listed. The transaction is one of Once, of the one queue or of the other. The target
// has limits of its own: it is full, remembers dedup ids, wants a facet or a group. A keeper creates it, and in some
// runs drops it while the movers work, and creates it again. The laws are in moverlaw.go.

const (
	targetPrefix = "M"
	targetName   = "t"
	// movePrefix begins the key under which a transaction says what it moves. The number of the move follows.
	movePrefix = "V"
	// originHeader names the item that a message in the target was.
	originHeader = "origin"
	// kindHeader is the facet that some targets want.
	kindHeader = "kind"
	mostMoved  = 4 // messages of a move
	mostSifted = 8 // moves of a sift
)

// movingKnobs is what a seed chooses for movers.
type movingKnobs struct {
	movers        int // 0 = there is no target
	target        layer.Config
	dropsTarget   bool
	renewsTarget  bool    // it is created again after the drop
	refuses, keep float64 // chances that a move refuses duplicates, and that a message keeps its dedup id
}

// movingProfiles are the profiles of movers, which no seed draws by itself.
var movingProfiles = []string{"moved"}

// moving: few groups with workers that reject, and movers between two queues whose settings differ.
func (k *knobs) moving(rng *rand.Rand) {
	k.scarce(rng)
	k.handles, k.producers, k.workers, k.takers, k.operators = 2+rng.IntN(3), 2, 1+rng.IntN(2), 0, 0
	k.movers, k.groups, k.batch = 2+rng.IntN(3), 1+rng.IntN(3), 1+rng.IntN(3)
	k.config.MaxRate, k.config.Retention, k.config.Delay, k.delayed = layer.Rate{}, 0, 0, 0
	k.config.OnFailure, k.reject, k.nack = layer.DeadLetterItem, 0.5, 0.3
	k.config.Lease = layer.MinLease
	k.named, k.ids = 0.5, 10
	k.config.DedupByContent, k.config.DedupForPending = false, rng.IntN(2) == 1
	k.config.DedupWindow = time.Second + time.Duration(rng.Int64N(int64(time.Minute)))
	k.refuses, k.keep = float64(rng.IntN(3))/2, rng.Float64()
	k.dropsTarget, k.renewsTarget = rng.IntN(2) == 0, rng.IntN(3) > 0
	if rng.IntN(2) == 0 {
		k.faults[fault.UnknownApplied], k.faults[fault.UnknownLost] = 0.2, 0.1
		k.faults[fault.TimedOutLate], k.faults[fault.VersionChangedLate] = 0.05*rng.Float64(), 0.05
	}
	if rng.IntN(2) == 0 {
		k.blowEvery, k.kill = 200+rng.IntN(800), 3
	}
	k.hold = 0.3 * rng.Float64()
	t := &k.target
	t.Shards = 1 + rng.IntN(3)
	if rng.IntN(3) == 0 {
		t.MaxWaiting = 1 + rng.IntN(4)
	}
	if rng.IntN(3) == 0 {
		t.Facets, t.Views = []string{kindHeader}, "*; "+kindHeader
	}
	t.GroupRequired = rng.IntN(2) == 0
	t.DedupByContent, t.DedupInGroup = rng.IntN(2) == 1, rng.IntN(2) == 1
	t.DedupForPending, t.DedupWindow = rng.IntN(2) == 1, time.Second
}

// movingWorld is the state of the target and of the moves.
type movingWorld struct {
	stage   int // of the keeper: what it does next
	handles int // of the target, so far
	created bool
	doomed  bool // a drop of the target has begun
	moves   []*move
	calm    int // the step from which on the target is drained
}

// move is one call of a mover.
type move struct {
	o        *op
	n        int
	back     bool      // to the source
	pairs    []moved   // of the last attempt
	tries    [][]moved // of all attempts
	mayYet   bool      // it ended without saying whether it has happened
	full     string    // the group of the target because of which it was refused
	tried    int       // messages for that group
	lastSent []layer.Sent
}

// moved is a message on its way.
type moved struct {
	from, to  layer.ID
	duplicate bool // to was there before
}

// errNotMoved: the target does not accept what is moved, so nothing is moved.
var errNotMoved = errors.New("sim: not moved")

// startMovers starts the keeper of the target, and the movers.
func (w *world) startMovers() {
	if w.knobs.movers == 0 {
		return
	}
	w.moving = &movingWorld{}
	roles := []func(*actor){(*actor).keepTarget}
	for range w.knobs.movers {
		roles = append(roles, (*actor).move)
	}
	for i, role := range roles {
		a := w.actor(w.nextActor, w.handles[i%len(w.handles)])
		w.nextActor++
		a.role = role
		w.startActor(a)
	}
}

// targetOptions are those of a handle of the target.
func (a *actor) targetOptions() layer.Options {
	h := a.w.handleOf(a.who)
	a.w.moving.handles++ // each has ids of its own
	return layer.Options{
		Owner: fmt.Sprintf("mover %d", a.id), Now: h.engine.now, Config: a.w.knobs.target,
		Test: a.w.testOptions(a.who, a.w.o.Seed<<16+uint64(a.w.moving.handles)),
		Tx:   kv.TxOptions{OnTrouble: func(kv.Trouble) {}},
	}
}

// closeTarget closes a handle of the target, which has nothing in flight.
func closeTarget(q *layer.Queue) {
	if q == nil {
		return
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	q.Close(ended)
}

// keepTarget creates the target, and drops it if the run has it so. It begins again where a keeper that died has ended.
func (a *actor) keepTarget() {
	k, m := a.w.knobs, a.w.moving
	for ; m.stage < 3; m.stage++ {
		switch {
		case m.stage == 0:
			a.createTarget(k.target)
			m.created = true
		case !k.dropsTarget:
		case m.stage == 1:
			a.sleep(a.below(time.Second))
			if m.doomed = true; a.rng.IntN(2) == 0 {
				a.stopOther()
			}
			a.dropTarget()
			a.w.mark("target dropped")
		case k.renewsTarget:
			a.sleep(a.below(time.Second))
			config := k.target
			config.Shards = 1 + (config.Shards+a.rng.IntN(2))%4
			a.createTarget(config)
			a.w.mark("target created again")
		}
	}
}

// stopOther lets another process stand still from a commit whose outcome it does not know yet until the drop has ended.
func (a *actor) stopOther() {
	w := a.w
	for range 200 {
		for _, h := range w.alive() {
			if h.who == a.who || !w.sched.isAt("committed", h.who) {
				continue
			}
			who := []int{h.who}
			for _, b := range h.actors {
				who = append(who, firstActor+b.id)
			}
			w.mark("process stood still during a drop")
			f := w.killer()
			w.sched.freeze(true, who...)
			w.sched.start(f.who, func() {
				time.Sleep(10*time.Second + 7)
				f.wait(0)
				w.sched.freeze(false, who...)
			})
			return
		}
		a.park("looks")
	}
}

func (a *actor) createTarget(config layer.Config) {
	a.insist("create", "created", layer.ErrQueueExists, func() error {
		o := a.targetOptions()
		o.Config = config
		q, err := layer.Create(a.ctx, a.w.handleOf(a.who).engine, []byte(targetPrefix), targetName, o)
		closeTarget(q)
		return err
	})
}

func (a *actor) dropTarget() {
	a.insist("drop", "dropped", layer.ErrNoQueue, func() error {
		return layer.Drop(a.ctx, a.w.handleOf(a.who).engine, []byte(targetPrefix), targetName, layer.DropOptions{})
	})
}

// insist makes a call for the target until the call, or one before it, has done its work: then it ends with already.
func (a *actor) insist(verb, done string, already error, try func() error) {
	for {
		err := try()
		a.park(done)
		a.w.sched.trace.note(verb+" the target", err)
		if e := new(kv.Error); err == nil || errors.Is(err, already) {
			return
		} else if !errors.As(err, &e) {
			a.w.violation("unexpected error of a %s: %v", verb, err)
			return
		}
		a.sleep(time.Millisecond)
	}
}

// openTarget opens the target; nil = it is not there, or the store has failed.
func (a *actor) openTarget() *layer.Queue {
	there := a.w.moving.created && !a.w.moving.doomed
	q, err := layer.Open(a.ctx, a.w.handleOf(a.who).engine, []byte(targetPrefix), targetName, a.targetOptions())
	if a.w.sched.ended(firstActor + a.id) {
		closeTarget(q)
	}
	a.park("opened")
	e := new(kv.Error)
	gone := errors.Is(err, layer.ErrNoQueue) && (!there || a.w.moving.doomed)
	if err != nil && !gone && !errors.As(err, &e) {
		a.w.violation("unexpected error of an open: %v", err)
	}
	return q
}

// move is the role of a mover.
func (a *actor) move() {
	var target *layer.Queue
	defer func() { closeTarget(target) }()
	for a.more() {
		if target == nil {
			if target = a.openTarget(); target == nil {
				a.sleep(a.below(200 * time.Millisecond))
				continue
			}
		}
		var err error
		switch n := a.rng.IntN(13); {
		case n < 4:
			err = a.moveTaken(target)
		case n < 6:
			err = a.moveClaimed(target)
		case n < 8:
			err = a.moveDead(target)
		case n < 9:
			err = a.moveSifted(target)
		default:
			err = a.moveBack(target)
		}
		if errors.Is(err, layer.ErrNoQueue) {
			closeTarget(target)
			target = nil
		}
		a.sleep(a.below(a.w.knobs.think))
	}
}

// newMove notes a move that begins.
func (a *actor) newMove(o *op) *move {
	w := a.w.moving
	m := &move{o: o, n: len(w.moves), mayYet: true}
	w.moves = append(w.moves, m)
	return m
}

// try makes the call of a move, in a transaction of one of the queues.
func (a *actor) try(m *move, target *layer.Queue, fn func(ctx context.Context, tx kv.Tx) error) error {
	q := a.q
	if a.rng.IntN(2) == 0 {
		q = target
	}
	err := a.call(m.o, func(ctx context.Context) error {
		err := q.Once(ctx, func(tx kv.Tx) error {
			m.pairs = nil
			return fn(ctx, tx)
		})
		m.mayYet = kv.MaybeCommitted(err)
		return a.notMoved(m, err)
	})
	if err == nil && len(m.pairs) > 0 {
		a.w.mark("moved: " + m.o.kind)
	}
	return err
}

// notMoved returns the error of a move. An error of the target wraps errNotMoved.
func (a *actor) notMoved(m *move, err error) error {
	if err == nil || kv.Code(err) != 0 || kv.MaybeCommitted(err) || errors.Is(err, errNotMoved) {
		return err
	}
	full, message := new(layer.FullError), new(layer.MessageError)
	switch {
	case errors.As(err, &full):
		a.w.mark("move refused: full")
		if m.full = full.Group; m.back {
			m.o.full, m.full = full.Group, ""
			return err
		}
	case errors.As(err, &message):
		a.w.mark("move refused: message")
	case errors.Is(err, layer.ErrNoQueue) && a.w.moving.doomed:
		a.w.mark("move refused: no target")
	default:
		return err
	}
	return fmt.Errorf("%w: %w", errNotMoved, err)
}

// pass enqueues in the transaction that removes, and says so under a key of the move.
func (a *actor) pass(
	ctx context.Context, tx kv.Tx, m *move, to *layer.Queue, from []layer.ID, msgs []layer.Message, strict bool,
) error {
	if len(from) == 0 {
		m.tries = append(m.tries, nil)
		return nil
	}
	sent, err := to.EnqueueTx(ctx, tx, msgs...)
	if err != nil {
		if full := new(layer.FullError); errors.As(err, &full) {
			m.tried = 0
			for i := range msgs {
				if msgs[i].Group == full.Group {
					m.tried++
				}
			}
		}
		return a.notMoved(m, err)
	}
	var note tuple.Tuple
	pairs := make([]moved, len(sent))
	for i, s := range sent {
		if s.Duplicate && strict {
			a.w.mark("move refused: duplicate")
			return fmt.Errorf("%w: %s is a duplicate of %s", errNotMoved, from[i], s.ID)
		}
		pairs[i] = moved{from[i], s.ID, s.Duplicate}
		note = append(note, from[i].String(), s.ID.String(), s.Duplicate)
	}
	m.pairs, m.tries, m.lastSent = pairs, append(m.tries, pairs), sent
	tx.Set(tuple.Append([]byte(movePrefix), int64(m.n)), note.Pack())
	return nil
}

// outward makes the messages that items become in the target. It draws before the first attempt.
func (a *actor) outward(m *move) func(items []layer.Item) (ids []layer.ID, msgs []layer.Message) {
	keep, fresh := a.chance(a.w.knobs.keep), a.rng.IntN(2) == 0
	nameless, kind := a.rng.IntN(8) == 0, a.rng.IntN(4) > 0
	return func(items []layer.Item) (ids []layer.ID, msgs []layer.Message) {
		for i, item := range items {
			msg := layer.Message{Group: item.ID.Group, Body: item.Body, Headers: maps.Clone(item.Headers)}
			msg.Headers[originHeader] = item.ID.String()
			if kind {
				msg.Headers[kindHeader] = "moved"
			}
			switch {
			case keep:
				msg.DedupID = item.DedupID
			case fresh:
				msg.DedupID = fmt.Sprintf("move %d.%d", m.n, i)
			}
			if nameless {
				msg.Group = ""
			}
			ids, msgs = append(ids, item.ID), append(msgs, msg)
		}
		return ids, msgs
	}
}

// takeSome takes from one group after the other, as a move task does.
func takeSome(ctx context.Context, tx kv.Tx, q *layer.Queue, n int) (items []layer.Item, err error) {
	for len(items) < n {
		more, again, err := q.TakeTx(ctx, tx, n-len(items), layer.TakeOptions{})
		if err != nil || again || len(more) == 0 {
			return items, err
		}
		items = append(items, more...)
	}
	return items, nil
}

// moveTaken moves what it takes from the source.
func (a *actor) moveTaken(target *layer.Queue) error {
	o := &op{kind: "take", effect: true}
	m, n, strict := a.newMove(o), 1+a.rng.IntN(mostMoved), a.chance(a.w.knobs.refuses)
	outward := a.outward(m)
	return a.try(m, target, func(ctx context.Context, tx kv.Tx) error {
		items, err := takeSome(ctx, tx, a.q, n)
		if err != nil {
			return err
		}
		ids, msgs := outward(items)
		o.items, o.ids = items, ids
		o.tried, o.tries = append(o.tried, ids...), append(o.tries, items)
		for _, id := range ids {
			addEffect(tx, id)
		}
		return a.pass(ctx, tx, m, target, ids, msgs, strict)
	})
}

// moveClaimed moves what it has received, with the ack.
func (a *actor) moveClaimed(target *layer.Queue) (failed error) {
	received := &op{kind: "receive"}
	options := layer.ReceiveOptions{Max: 1 + a.rng.IntN(mostMoved)}
	a.call(received, func(ctx context.Context) (err error) {
		received.claims, err = a.q.Receive(ctx, options)
		return err
	})
	for _, c := range received.claims {
		var ids []layer.ID
		for _, item := range c.Items {
			ids = append(ids, item.ID)
		}
		if a.chance(a.w.knobs.freeze) {
			a.sleep(maxLease)
		}
		o := &op{kind: "ack-tx", settle: true, group: claimLane(c), token: c.Token, ids: ids, effect: true}
		m, strict := a.newMove(o), a.chance(a.w.knobs.refuses)
		outward := a.outward(m)
		err := a.try(m, target, func(ctx context.Context, tx kv.Tx) error {
			from, msgs := outward(c.Items)
			for _, id := range from {
				addEffect(tx, id)
			}
			if a.id%2 == 0 { // the order in the transaction is the caller's
				if err := a.q.AckItemsTx(ctx, tx, c, ids); err != nil {
					return err
				}
				return a.pass(ctx, tx, m, target, from, msgs, strict)
			}
			if err := a.pass(ctx, tx, m, target, from, msgs, strict); err != nil {
				return err
			}
			return a.q.AckItemsTx(ctx, tx, c, ids)
		})
		if failed = errors.Join(failed, err); err != nil && a.rng.IntN(2) == 0 {
			n := layer.NackOptions{Release: true, Behind: behind(c, ids)}
			back := &op{kind: "nack", settle: true, group: claimLane(c), token: c.Token, nack: n}
			a.settle(back, layer.Settlement{Claim: back.lendClaim(c), Nack: &n})
		}
	}
	return failed
}

// moveDead moves dead letters of the source, as they were listed in another transaction.
func (a *actor) moveDead(target *layer.Queue) error {
	var letters []layer.DeadLetter
	n := 1 + a.rng.IntN(mostMoved)
	err := a.call(&op{kind: "dead-letters"}, func(ctx context.Context) error {
		page, err := a.q.Admin().DeadLetters(ctx, layer.DeadOptions{Limit: n, Bodies: true})
		letters = page.Letters
		return err
	})
	if err != nil || len(letters) == 0 {
		return err
	}
	if a.rng.IntN(2) == 0 {
		a.sleep(a.below(a.w.knobs.think))
	}
	var items []layer.Item
	for _, l := range letters {
		items = append(items, layer.Item{ID: l.ID, Body: l.Body, Headers: l.Headers, DedupID: l.DedupID})
	}
	o := &op{kind: "discard-tx", discarding: true}
	m, strict := a.newMove(o), a.chance(a.w.knobs.refuses)
	ids, msgs := a.outward(m)(items)
	return a.try(m, target, func(ctx context.Context, tx kv.Tx) error {
		if err := a.q.Admin().DiscardTx(ctx, tx, ids...); err != nil {
			return err
		}
		return a.pass(ctx, tx, m, target, ids, msgs, strict)
	})
}

// moveSifted passes over the source, as a move task of package sqs sifts its queue. It moves items one by one, each by
// its id and in a transaction of its own, at most mostSifted of them. An item stays if the target refuses it, if it is
// in flight, or if its delay is not over. The source may change between the list and the move.
func (a *actor) moveSifted(target *layer.Queue) error {
	var items []layer.Item
	err := a.call(&op{kind: "list-items"}, func(ctx context.Context) (err error) {
		items, err = a.listWaiting(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, item := range items[:min(len(items), mostSifted)] {
		if !a.more() {
			break
		}
		if err := a.moveListed(target, item); errors.Is(err, layer.ErrNoQueue) {
			return err
		}
	}
	return nil
}

// listWaiting lists the items of the source that are due, without those of groups that an operator has stopped.
func (a *actor) listWaiting(ctx context.Context) (items []layer.Item, err error) {
	for g, err := range a.q.Admin().AllGroups(ctx, layer.GroupsOptions{}) {
		if err != nil {
			return nil, err
		}
		if g.Mark != nil {
			continue
		}
		for item, err := range a.q.Admin().AllItems(ctx, g.Group, nil) {
			if err != nil {
				return nil, err
			}
			if !item.DeliverAt.After(a.w.handleOf(a.who).now()) {
				items = append(items, item)
			}
		}
	}
	return items, nil
}

// moveListed moves an item of a list. Of some items it finds after the removal that the target refuses them: then the
// removal must not stay.
func (a *actor) moveListed(target *layer.Queue, item layer.Item) error {
	o := &op{kind: "cancel-tx", group: item.ID.Group, ids: []layer.ID{item.ID}}
	m, refuses, strict := a.newMove(o), a.rng.IntN(3) == 0, a.chance(a.w.knobs.refuses)
	from, msgs := a.outward(m)([]layer.Item{item})
	err := a.try(m, target, func(ctx context.Context, tx kv.Tx) error {
		if err := a.q.Admin().CancelTx(ctx, tx, item.ID); err != nil {
			return err
		}
		if refuses {
			return fmt.Errorf("%w: %s stays", errNotMoved, item.ID)
		}
		return a.pass(ctx, tx, m, target, from, msgs, strict)
	})
	if refuses && errors.Is(err, errNotMoved) {
		a.w.mark("message left by a sift")
	}
	return err
}

// moveBack moves what it takes from the target to the source, as new messages: the model of the source knows messages
// by their labels, so these are drawn before the first attempt.
func (a *actor) moveBack(target *layer.Queue) error {
	o := &op{kind: "enqueue-tx"}
	m, n, strict := a.newMove(o), 1+a.rng.IntN(mostMoved), a.chance(a.w.knobs.refuses)
	m.back = true
	var msgs []layer.Message
	for range n {
		a.n++
		label := fmt.Sprintf("a%d.%d", a.id, a.n)
		msg := layer.Message{
			Group: a.w.group(a.rng), Body: []byte("body of " + label), Headers: map[string]string{labelHeader: label},
		}
		if a.chance(a.w.knobs.keep) {
			msg.DedupID = fmt.Sprintf("d%d", a.rng.IntN(a.w.knobs.ids))
		}
		msgs = append(msgs, msg)
	}
	name := func(n int) { // o's messages: at most those of the longest attempt
		o.bodies, o.groups, o.messages = nil, nil, msgs[:n]
		for i := range msgs[:n] {
			o.bodies, o.groups = append(o.bodies, msgs[i].Headers[labelHeader]), append(o.groups, msgs[i].Group)
		}
	}
	err := a.try(m, target, func(ctx context.Context, tx kv.Tx) error {
		items, err := takeSome(ctx, tx, target, n)
		if err != nil {
			return err
		}
		var from []layer.ID
		for _, item := range items {
			from = append(from, item.ID)
		}
		o.varied = o.varied || len(o.bodies) > 0 && len(from) > 0 && len(from) != len(o.bodies)
		if len(from) > len(o.bodies) {
			name(len(from))
		}
		return a.pass(ctx, tx, m, a.q, from, msgs[:len(from)], strict)
	})
	if err == nil {
		name(len(m.pairs))
		o.sentAs(m.lastSent[:len(m.pairs)])
		a.w.owns(o)
		for i, id := range o.sent {
			if !o.duplicate[i] {
				a.w.known = append(a.w.known, id)
			}
		}
	}
	return err
}

// finishMoves drains the target when the faults have stopped.
func (w *world) finishMoves() {
	if w.moving == nil {
		return
	}
	w.moving.calm = w.sched.step()
	a := w.actor(299, w.alive()[0])
	w.sched.start(firstActor+a.id, a.drainTarget)
}

// drainTarget holds the target to its own rules, and receives what is there, each message once.
func (a *actor) drainTarget() {
	w, ctx := a.w, context.Background()
	q := a.openTarget()
	if q == nil {
		return
	}
	r, err := q.Admin().Check(ctx, layer.CheckOptions{})
	if err != nil {
		w.violation("check of the target: %v", err)
	}
	for _, v := range r.Violations {
		w.violation("check of the target: %s", v)
	}
	left := make(map[layer.ID]bool)
	for _, row := range w.rows(targetSection("item"), 0) {
		_, rest := targetKeyOf(row.Key)
		left[idOf(rest)] = true
	}
	for {
		items, err := a.takeTarget(ctx, q)
		if err != nil {
			w.violation("take from the target: %v", err)
		}
		if len(items) == 0 {
			break
		}
		for _, item := range items {
			if !left[item.ID] {
				w.violation("the target gives %s, which is not there", item.ID)
			}
			delete(left, item.ID)
		}
	}
	for id := range left {
		w.violation("G3: lost: no take finds %s in the target", id)
	}
	if err := q.Close(ctx); err != nil {
		w.violation("close the target: %v", err)
	}
	w.mark("target drained")
}

func (a *actor) takeTarget(ctx context.Context, q *layer.Queue) (items []layer.Item, err error) {
	err = q.Once(ctx, func(tx kv.Tx) (err error) {
		items, err = takeSome(ctx, tx, q, 100)
		return err
	})
	a.park("taken")
	return items, err
}
