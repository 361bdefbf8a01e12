package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// actor makes calls on one handle, one after the other.
type actor struct {
	w   *world
	id  int
	who int // the handle
	q   *layer.Queue
	rng *rand.Rand
}

func (a *actor) chance(p float64) bool { return a.rng.Float64() < p }

func (a *actor) below(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(a.rng.Int64N(int64(d)))
}

// park parks, and ends the goroutine if the run was given up.
func (a *actor) park(what string) {
	a.w.sched.park(place{what, firstActor + a.id, 0})
	if a.w.sched.givenUp() {
		runtime.Goexit()
	}
}

// sleep lets virtual time pass. No two actors wake at the same nanosecond.
func (a *actor) sleep(d time.Duration) {
	time.Sleep(d.Truncate(time.Microsecond) + time.Duration(1+a.id))
	a.park("awake")
}

// call makes one call and notes it. o's results must be assigned by fn.
func (a *actor) call(o *op, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithValue(context.Background(), actorKey{}, a.id), context.CancelFunc(func() {})
	limited := a.w.faulty && a.chance(a.w.knobs.giveUp)
	if limited {
		after := []time.Duration{2 * time.Second, 20 * time.Millisecond}[a.rng.IntN(2)]
		ctx, cancel = context.WithTimeout(ctx, a.below(after).Truncate(time.Microsecond)+time.Duration(500+a.id))
	}
	defer cancel()
	o.actor, o.who, o.begin, o.limited = a.id, a.who, a.w.sched.steps, limited
	a.w.ops = append(a.w.ops, o)
	o.outcome = unknown
	err := fn(ctx)
	a.park("back")
	o.end = a.w.sched.steps
	var expected bool
	if o.outcome, expected = judge(err, limited); !expected {
		a.w.violation("unexpected error of %s: %v", o, err)
	}
	if o.sweeping && o.outcome == refused {
		o.outcome = unknown // of its transactions some may have been done
	}
	a.w.sched.trace.note("op", a.id, o.kind, o.outcome, o.ids, o.sent, claimsText(o.claims), len(o.items), err)
	return err
}

func claimsText(claims []*layer.Claim) (s string) {
	for _, c := range claims {
		s += fmt.Sprintf(" %s/%d:%d-%d", c.Group, c.Token, c.Items[0].ID.Index, len(c.Items))
	}
	return s
}

// produce enqueues.
func (a *actor) produce() {
	for n := range a.w.knobs.perActor {
		o := &op{kind: "enqueue"}
		var msgs []layer.Message
		for i := range 1 + a.rng.IntN(a.w.knobs.batch) {
			body := fmt.Sprintf("a%d.%d.%d", a.id, n, i)
			group := a.w.group(a.rng)
			o.bodies, o.groups = append(o.bodies, body), append(o.groups, group)
			msgs = append(msgs, layer.Message{Group: group, Body: []byte(body)})
		}
		tx := a.rng.IntN(4) == 0
		a.call(o, func(ctx context.Context) error {
			var sent []layer.Sent
			var err error
			if tx {
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
				for _, s := range sent {
					o.sent = append(o.sent, s.ID)
				}
			}
			return err
		})
		a.w.known = append(a.w.known, o.sent...)
		if a.rng.IntN(2) == 0 {
			a.sleep(a.below(a.w.knobs.think))
		}
	}
}

// receiveOptions are random.
func (a *actor) receiveOptions() layer.ReceiveOptions {
	k := a.w.knobs
	o := layer.ReceiveOptions{Max: 1 + a.rng.IntN(k.receive), Strategy: layer.Strategy(a.rng.IntN(3))}
	if a.rng.IntN(3) == 0 {
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
	return o
}

// work receives and settles what it gets, until it has made its number of calls.
func (a *actor) work() {
	k := a.w.knobs
	var next []*layer.Claim
	for n := 0; n < k.perActor || len(next) > 0; n++ {
		claims := next
		next = nil
		if claims == nil {
			o := &op{kind: "receive"}
			options := a.receiveOptions()
			a.call(o, func(ctx context.Context) (err error) {
				o.claims, err = a.q.Receive(ctx, options)
				return err
			})
			claims = o.claims
			if len(claims) == 0 {
				a.sleep(a.below(k.think))
			}
		}
		for i, c := range claims {
			n++
			next = a.handle(c, i == len(claims)-1 && n < k.perActor)
		}
	}
}

// handle does with a claim what a worker may do. If may is set it can receive the next claims with the ack.
func (a *actor) handle(c *layer.Claim, may bool) (next []*layer.Claim) {
	k := a.w.knobs
	left := make([]layer.ID, len(c.Items))
	for i, item := range c.Items {
		left[i] = item.ID
	}
	if a.rng.IntN(2) == 0 {
		a.sleep(a.below(k.think))
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
		o := &op{kind: "extend"}
		if err := a.call(o, func(ctx context.Context) error { _, err := a.q.Extend(ctx, c, 0); return err }); err == nil && frozen {
			a.w.mark("late extend accepted")
		}
	}
	settle := func(kind string, ids []layer.ID) *op {
		return &op{kind: kind, settle: true, group: c.Group, token: c.Token, ids: ids}
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
			if a.call(settle("ack-part", part), func(ctx context.Context) error { return a.q.Ack(ctx, c, part...) }) != nil {
				return nil
			}
			a.w.mark("partial ack")
			left = rest
			if a.rng.IntN(3) == 0 {
				a.sleep(a.below(k.think))
			}
		}
	}
	if a.chance(k.nack) {
		a.nack(c, left, settle)
		return nil
	}
	o := settle("ack", left)
	var err error
	switch {
	case may && a.chance(k.fuse):
		o.kind, o.all = "ack-receive", true
		options := a.receiveOptions()
		err = a.call(o, func(ctx context.Context) (err error) {
			o.claims, err = a.q.AckReceive(ctx, c, options)
			return err
		})
	case a.rng.IntN(4) == 0:
		o.kind, o.effect = "ack-tx", true
		err = a.call(o, func(ctx context.Context) error {
			return a.q.Once(ctx, func(tx kv.Tx) error {
				for _, id := range left {
					addEffect(tx, id)
				}
				return a.q.AckTx(ctx, tx, c, left...)
			})
		})
	case a.rng.IntN(2) == 0:
		o.all = true
		err = a.call(o, func(ctx context.Context) error { return a.q.Ack(ctx, c) })
	default:
		err = a.call(o, func(ctx context.Context) error { return a.q.Ack(ctx, c, left...) })
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

func (a *actor) nack(c *layer.Claim, left []layer.ID, settle func(string, []layer.ID) *op) {
	o := settle("nack", nil)
	n := layer.NackOptions{Err: errors.New("failed")}
	switch a.rng.IntN(5) {
	case 0:
		n.Delay = layer.MinRetry + a.below(maxDelay)
	case 1:
		n.AtOnce = true
	case 2:
		n.Release = true
		if a.rng.IntN(2) == 0 {
			from := left[a.rng.IntN(len(left))]
			n.From = &from
		}
	case 3:
		if a.chance(a.w.knobs.reject) {
			n.Reject = "hopeless"
		}
	}
	if len(left) > 1 && n.From == nil && a.rng.IntN(2) == 0 {
		o.ids = left[:1]
		n.Acked = o.ids
	}
	a.call(o, func(ctx context.Context) error { return a.q.Nack(ctx, c, n) })
}

// take takes in transactions of its own.
func (a *actor) take() {
	for range a.w.knobs.perActor {
		o := &op{kind: "take", effect: true}
		n := 1 + a.rng.IntN(a.w.knobs.receive)
		a.call(o, func(ctx context.Context) error {
			return a.q.Once(ctx, func(tx kv.Tx) error {
				items, err := a.q.TakeTx(ctx, tx, n)
				if err != nil {
					return err
				}
				o.items, o.ids = items, nil
				for _, item := range items {
					addEffect(tx, item.ID)
					o.ids = append(o.ids, item.ID)
				}
				o.tried = append(o.tried, o.ids...)
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

// operate does what an operator may do.
func (a *actor) operate() {
	for range a.w.knobs.perActor {
		group := a.w.group(a.rng)
		id := layer.ID{Group: group, Index: 1, Random: uuid.UUID{6: 0x40, 8: 0x80}} // nobody's
		if n := len(a.w.known); n > 0 {
			id = a.w.known[a.rng.IntN(n)]
		}
		o := &op{group: group}
		var fn func(ctx context.Context) error
		switch a.rng.IntN(15) {
		case 0:
			o.kind, o.forcing = "pause-group", a.rng.IntN(2) == 0
			fn = func(ctx context.Context) error {
				_, err := a.q.PauseGroup(ctx, group, layer.PauseOptions{Force: o.forcing})
				return err
			}
		case 1, 2, 3:
			o.kind = "resume-group"
			fn = func(ctx context.Context) error { _, err := a.q.ResumeGroup(ctx, group); return err }
		case 4:
			o.kind = "pause"
			fn = func(ctx context.Context) error { _, err := a.q.Pause(ctx, layer.PauseOptions{}); return err }
		case 5, 6:
			o.kind = "resume"
			fn = func(ctx context.Context) error { _, err := a.q.Resume(ctx); return err }
		case 7:
			o.kind, o.group, o.ids = "cancel", id.Group, []layer.ID{id}
			fn = func(ctx context.Context) error { return a.q.Cancel(ctx, id) }
		case 8:
			o.kind = "skip"
			fn = func(ctx context.Context) error { _, err := a.q.Skip(ctx, group, layer.SkipOptions{}); return err }
		case 9:
			o.kind, o.forcing = "force-release", true
			count := a.rng.IntN(2) == 0
			fn = func(ctx context.Context) error {
				h, err := a.q.ForceRelease(ctx, group, layer.ForceReleaseOptions{CountAttempt: count})
				o.token = h.Token
				return err
			}
		case 10:
			o.kind = "retry-now"
			fn = func(ctx context.Context) error { return a.q.RetryNow(ctx, group) }
		case 11:
			o.kind = "redrive"
			tail := a.rng.IntN(2) == 0
			fn = func(ctx context.Context) error {
				_, err := a.q.Redrive(ctx, layer.DeadFilter{}, layer.RedriveOptions{ToTail: tail})
				return err
			}
		case 12:
			o.kind, o.sweeping, o.forcing = "purge", true, a.rng.IntN(3) == 0
			if a.rng.IntN(4) > 0 {
				o.kind, o.sweeping, o.forcing = "stats", false, false
				fn = func(ctx context.Context) error { _, err := a.q.Stats(ctx); return err }
				break
			}
			fn = func(ctx context.Context) error {
				_, err := a.q.Purge(ctx, layer.PurgeOptions{Group: &group, Force: o.forcing})
				return err
			}
		case 13:
			o.kind = "configure"
			lease := layer.MinLease + a.below(maxLease-layer.MinLease)
			attempts := []int{0, 1, 2, 5}[a.rng.IntN(4)]
			fn = func(ctx context.Context) error {
				var err error
				_, o.token, err = a.q.Configure(ctx, func(c *layer.Config) { c.Lease, c.MaxAttempts = lease, attempts })
				return err
			}
		case 14:
			o.kind = "sweep"
			fn = func(ctx context.Context) error { _, err := a.q.Sweep(ctx, layer.SweepOptions{}); return err }
		}
		a.call(o, fn)
		a.sleep(a.below(a.w.knobs.think))
	}
}
