package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Subscribers: processes that share subscriptions of the queue's changes, with handlers that take from nothing to
// longer than a lease and a transaction, that fail and panic. The holder of a subscription stops, dies, stands still,
// and loses it to another. See feed.go for the laws.

// topic is a subscription that several subscribers share.
type topic struct {
	name     string
	inTx     bool // by SubscribeTx
	oldest   bool // a new one begins with the oldest change
	kinds    []layer.ChangeKind
	max      int
	parallel int
}

func (t *topic) String() string {
	return fmt.Sprintf("%s (tx %t, oldest %t, kinds %v, max %d, parallel %d)",
		t.name, t.inTx, t.oldest, t.kinds, t.max, t.parallel)
}

func (t *topic) wants(kind layer.ChangeKind) bool {
	for _, k := range t.kinds {
		if k == kind {
			return true
		}
	}
	return len(t.kinds) == 0
}

// hearing is one call of a handler of changes.
type hearing struct {
	topic      *topic
	by         *op // the call of Subscribe
	begin, end int // steps; end = 0: it did not return
	beginAt    time.Time
	endAt      time.Time
	changes    []string // each as the text of it
	groups     []string
	failed     bool
}

// heardText is a change as a text, by which it is told from others.
func heardText(kind layer.ChangeKind, id layer.ID, items int) string {
	return fmt.Sprintf("%s %s %d", kind, id, items)
}

// subscribes lets a run have subscribers.
func (k *knobs) subscribes(rng *rand.Rand) {
	k.subscribers = 2 + rng.IntN(4)
	k.config.Changes = 365 * 24 * time.Hour
	if rng.IntN(4) == 0 {
		k.config.Changes = time.Second + time.Duration(rng.Int64N(int64(20*time.Second)))
	}
	for i := range 1 + rng.IntN(2) {
		t := &topic{
			name: fmt.Sprint("s", i), inTx: rng.IntN(2) == 0, oldest: rng.IntN(2) == 0,
			max: []int{1, 2, 7, 100}[rng.IntN(4)], parallel: 1,
		}
		if !t.inTx && rng.IntN(3) == 0 {
			t.parallel = 2 + rng.IntN(3)
		}
		if rng.IntN(3) == 0 {
			t.kinds = []layer.ChangeKind{layer.ChangeFinished, layer.ChangeDeadLettered}
		}
		k.topics = append(k.topics, t)
	}
}

// subscribed: two or more subscribers of each name, commits that seek conflicts, and leases that end all the time. Half
// of the runs have no faults and clocks that agree, and must keep the strict laws.
func (k *knobs) subscribed(rng *rand.Rand) {
	k.seeking(rng)
	k.subscribes(rng)
	k.subscribers, k.handles, k.think = 3+rng.IntN(3), 2+rng.IntN(3), 500*time.Millisecond
	k.operators, k.operations = rng.IntN(2), []int{7, 8, 11, 14, 17}
	if k.calmly = rng.IntN(2) == 0; !k.calmly {
		k.blowEvery, k.stop, k.kill = 200+rng.IntN(1500), 2, 1
		return
	}
	clear(k.faults)
	k.blowEvery, k.giveUp, k.versionJump, k.holdWatches, k.disk = 0, 0, 0, 0, false
	k.seek, k.hold, k.longPause = 0, 0, 0
	for i := range k.skew {
		k.skew[i] = 0
	}
}

// mostMischief is how many calls of a topic's handlers fail on purpose, so that calm comes to an end.
const mostMischief = 8

// subscribe is the role of a subscriber.
func (a *actor) subscribe() {
	t := a.w.knobs.topics[a.id%len(a.w.knobs.topics)]
	for a.left > 0 {
		a.left -= 4
		if a.rng.IntN(12) == 0 && !a.w.knobs.calmly {
			o := &op{kind: "unsubscribe", named: t.name}
			if a.call(o, func(ctx context.Context) error { return a.q.Admin().Unsubscribe(ctx, t.name) }) == nil {
				a.w.mark("unsubscribed")
			}
		}
		life := a.below(20*time.Second).Truncate(time.Microsecond) + time.Duration(500+a.id)
		ctx, cancel := context.WithTimeout(a.ctx, life)
		a.hear(ctx, t)
		cancel()
		a.sleep(a.below(a.w.knobs.think))
	}
}

// hear subscribes until ctx ends.
func (a *actor) hear(ctx context.Context, t *topic) {
	o := &op{kind: "subscribe", named: t.name}
	a.begin(o)
	options := layer.SubscribeOptions{
		Kinds: t.kinds, FromOldest: t.oldest, Max: t.max, Parallel: t.parallel,
		Lease:   layer.MinLease + a.below(8*time.Second).Truncate(time.Microsecond),
		OnError: func(err error) { a.subscriptionError(t, err) },
	}
	o.every = options.Lease
	var err error
	if t.inTx {
		err = a.q.SubscribeTx(ctx, t.name, func(ctx context.Context, tx kv.Tx, changes []layer.Change) error {
			for i, c := range changes {
				tx.Atomic(kv.SetVersionstampedKey, journalKey(t.name, i), []byte(heardText(c.Kind, c.ID, c.Items)))
			}
			return a.heard(ctx, t, o, changes)
		}, options)
	} else {
		err = a.q.Subscribe(ctx, t.name, func(ctx context.Context, changes []layer.Change) error {
			return a.heard(ctx, t, o, changes)
		}, options)
	}
	a.park("back")
	o.end, o.endAt, o.over, o.outcome = a.w.sched.step(), time.Now(), true, done
	a.w.sched.trace.note("subscribed", a.id, t.name, err)
	dropped := a.w.doom != nil && errors.Is(err, layer.ErrNoQueue)
	if a.leave(err); err != nil && !dropped {
		a.w.violation("%s to %s has ended: %v", o, t.name, err)
	}
}

// journalPrefix begins the keys which handlers write in their transactions: name, stamp, and the number of the change
// in its call.
const journalPrefix = "J"

// journalKey returns such a key as SetVersionstampedKey takes it. No transaction conflicts on it.
func journalKey(name string, n int) []byte {
	k := append([]byte(journalPrefix+name), 0)
	at := len(k)
	k = binary.BigEndian.AppendUint16(append(k, make([]byte, 10)...), uint16(n))
	return binary.LittleEndian.AppendUint32(k, uint32(at))
}

// subscriptionError judges what a subscription reports.
func (a *actor) subscriptionError(t *topic, err error) {
	if a.w.sched.ended(firstActor + a.id) {
		return
	}
	var failed *layer.ChangeError
	var missed *layer.MissedError
	switch {
	case errors.As(err, &failed):
		a.w.mark("handler of changes failed")
		if errors.Is(err, context.DeadlineExceeded) {
			a.w.mark("handler of changes was too slow for a transaction")
		}
	case errors.As(err, &missed):
		a.w.mark("changes missed")
		a.w.missed[t.name]++
	default:
		if _, expected := judge(err, true); !expected && !a.w.handleOf(a.who).turnsAway(err) {
			a.w.violation("unexpected error of a subscription: %v", err)
		}
	}
}

// heard is the body of every handler of changes.
func (a *actor) heard(ctx context.Context, t *topic, o *op, changes []layer.Change) error {
	w, who := a.w, firstActor+a.id
	if w.sched.ended(who) {
		return errHandler
	}
	a.n++
	h := &hearing{topic: t, by: o, begin: w.sched.step(), beginAt: time.Now()}
	for _, c := range changes {
		h.changes, h.groups = append(h.changes, heardText(c.Kind, c.ID, c.Items)), append(h.groups, c.ID.Group)
	}
	w.hearings = append(w.hearings, h)
	n := a.n
	park := func() bool {
		w.sched.park(place{"changes", who, n})
		return !w.sched.ended(who)
	}
	ended := func(err error) error {
		h.end, h.endAt, h.failed = w.sched.step(), time.Now(), err != nil
		w.sched.trace.note("heard", a.id, t.name, len(changes), err)
		return err
	}
	if !park() {
		return errHandler
	}
	if w.calm == 0 {
		took := []time.Duration{0, 0, 0, 10 * time.Millisecond, time.Second, 3500 * time.Millisecond}[a.rng.IntN(6)]
		if !t.inTx && a.rng.IntN(10) == 0 {
			took = o.every + a.below(5*time.Second) // longer than its lease
			w.mark("handler of changes outlived its lease")
		}
		if took > 0 {
			time.Sleep(took + a.below(time.Millisecond).Truncate(time.Microsecond) + time.Duration(1+n%900))
			if !park() {
				return errHandler
			}
		}
	}
	if w.mischief[t.name] < mostMischief && a.rng.IntN(8) == 0 {
		w.mischief[t.name]++
		switch a.rng.IntN(4) {
		case 0:
			w.mark("handler of changes panicked")
			h.end, h.endAt, h.failed = w.sched.step(), time.Now(), true
			panic(handlerPanic)
		case 1: // longer than a transaction
			time.Sleep(5300*time.Millisecond + time.Duration(1+n%900))
			if !park() {
				return errHandler
			}
			if t.inTx {
				ended(errHandler)
				return nil // but it cannot be committed
			}
		}
		return ended(errHandler)
	}
	if ctx.Err() != nil {
		w.mark("handler of changes was cut off")
		if a.rng.IntN(2) == 0 {
			return ended(ctx.Err())
		}
	}
	return ended(nil)
}

// hearToTheEnd subscribes until the queue is empty, and the subscription has heard of everything.
func (a *actor) hearToTheEnd(t *topic) {
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	a.w.sched.start(firstActor+a.id+watching, func() {
		for !a.w.empty() || !a.w.heardAll(t) {
			time.Sleep(500*time.Millisecond + time.Duration(1+a.id))
			a.w.sched.park(place{"awake", firstActor + a.id + watching, 0})
			if a.w.sched.ended(firstActor + a.id + watching) {
				runtime.Goexit()
			}
		}
		cancel()
	})
	a.hear(ctx, t)
}

// watching is added to the number of an actor for the actor that watches over it.
const watching = 20_000

// finishTopics lets every subscription come to its end.
func (w *world) finishTopics() {
	for i, t := range w.knobs.topics {
		alive := w.alive()
		a := w.actor(200+i, alive[i%len(alive)])
		w.sched.start(firstActor+a.id, func() { a.hearToTheEnd(t) })
	}
}
