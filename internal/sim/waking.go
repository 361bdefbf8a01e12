package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The law of wakes: no receive waits for a poll. Runs of the profiles waking and waking-lanes check it. In these runs
// every other commit, of any kind, is held for up to wakingHold. So a receive begins to wait, is served, or gives up
// between the reads and the commit of an enqueue, of a release, or of the end of a pause or of a limit.
//
//   - A group, or a lane, with items and without a claim is not left alone for longer than wakingLate while a receive
//     waits that takes it. The polls come after wakingPoll.
//
// There are no faults: a process that dies takes a wake along.

const (
	wakingHold = 20 * time.Millisecond
	// wakingLate is what a few looks take, the last of which comes twice as late as the longest commit, where
	// every transaction may be held and tried again.
	wakingLate = 700 * time.Millisecond
	wakingPoll = 20 * time.Second
	wakingLook = 5 * time.Millisecond
)

// wakingProfiles are the profiles of wakes, which no seed draws by itself.
var wakingProfiles = []string{"waking", "waking-dead", "waking-lanes"}

// waking: a few groups that are often empty, more receives than messages, and commits that take long.
func (k *knobs) waking(rng *rand.Rand) {
	k.scarce(rng)
	k.faultless()
	k.wakes, k.poll, k.hold, k.holdMost = true, wakingPoll, 0.3+0.6*rng.Float64(), wakingHold
	k.handles, k.groups, k.batch = 1+rng.IntN(4), 1+rng.IntN(4), 1
	k.producers, k.workers, k.takers, k.operators, k.consumers, k.stewards = 2, 0, 0, 0, 0, 0
	k.think = time.Duration(1 + rng.Int64N(int64(500*time.Millisecond)))
	k.config.Lease, k.config.Retry = maxLease, layer.RetryPolicy{Kind: layer.RetryAtOnce}
	k.config.MaxAttempts, k.config.OnFailure = layer.Unlimited, layer.DeadLetterItem
	k.config.Retention, k.config.MaxWaiting, k.config.MaxRate, k.config.Delay = 0, 0, layer.Rate{}, 0
	k.named, k.large, k.delayed, k.inTx, k.giveUp, k.repeat, k.state = 0, 0, 0, 0.3, 0, 0, 0
	k.config.MaxRateTotal, k.config.RetroactiveDelay = layer.Rate{}, rng.IntN(2) == 0
}

// wakingLanes: the same, of lanes that do not intersect, and receives by template.
func (k *knobs) wakingLanes(rng *rand.Rand) {
	k.waking(rng)
	k.setLanes(rng)
	k.plan = newLanePlan("state", rng)
	k.config.Views = "state"
}

// wakingDead: one of these two, amid the requests of handles that died an hour ago. They wait for single groups and
// lanes, and there may be more of them than a commit reads.
func (k *knobs) wakingDead(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		k.waking(rng)
	} else {
		k.wakingLanes(rng)
	}
	k.dead = []int{4, 20, 250}[rng.IntN(3)]
}

// layRequests writes the requests of dead handles, for each group and lane.
func (w *world) layRequests() {
	value := tuple.Tuple{"dead", int64(1), time.Now().Add(-time.Hour).UnixMilli()}.Pack()
	for i := range w.knobs.dead {
		who := uuid.UUID{14: byte(i >> 8), 15: byte(i)} // before any other
		_, err := kv.Run(context.Background(), w.store.life.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			lay := func(name string, at ...any) {
				key := append(append(tuple.Tuple{queueName, name}, at...), who)
				tx.Set(append([]byte(queuePrefix), key.Pack()...), value)
			}
			var states []string
			if p := w.knobs.plan; p != nil {
				states = p.values["state"]
			}
			for group := range w.knobs.groups {
				lay("reqgroup", w.groupName(group))
				for _, state := range states {
					lay("reqgroup", w.groupName(group), int64(1), state)
				}
			}
			for _, state := range states {
				lay("reqlane", int64(1), state, int64(i))
			}
			return nil
		})
		if err != nil {
			w.violation("requests of the dead: %v", err)
		}
	}
}

// wakingWorld is the state of a run of these profiles.
type wakingWorld struct {
	waits map[int]*wakingWait      // receives under way, by actors
	begun int                      // receives
	free  map[wakingLane]time.Time // since when a lane with items has no claim
	// limited: a limit is in force, or about to be, by which groups wait.
	limited bool
}

// wakingLane is a group, or a lane of it.
type wakingLane struct{ group, state string }

type wakingWait struct {
	op    *op
	group *string // nil = any
	state string
}

func (v *wakingWait) takes(l wakingLane) bool {
	return v.state == l.state && (v.group == nil || *v.group == l.group)
}

// startWaking starts the actors that receive, one that pauses and resumes, one that limits, and one that watches.
func (w *world) startWaking() {
	if !w.knobs.wakes {
		return
	}
	w.waking = &wakingWorld{waits: make(map[int]*wakingWait), free: make(map[wakingLane]time.Time)}
	w.layRequests()
	rng := rand.New(rand.NewPCG(w.o.Seed, 29))
	start := w.starting()
	for _, h := range w.handles {
		for _, a := range h.actors {
			a.left = 1 // of the producers: the rest is sent when a receive begins
		}
		start(h, (*actor).await)
		if rng.IntN(3) == 0 {
			start(h, (*actor).await)
		}
	}
	for range 1 + rng.IntN(3) {
		h := w.handles[rng.IntN(len(w.handles))]
		last := start(h, (*actor).sendBeside)
		last.produces, last.left = true, max(1, last.left/8)
	}
	start(w.handles[0], (*actor).watchWaking)
	if rng.IntN(2) == 0 {
		start(w.handles[len(w.handles)-1], (*actor).suspend)
	}
	if rng.IntN(2) == 0 {
		start(w.handles[rng.IntN(len(w.handles))], (*actor).limit)
	}
}

// sendBeside sends a message when a receive begins, at about the same time, unless there is one already.
func (a *actor) sendBeside() {
	for seen := 0; a.left > 0; a.sleep(2 * time.Millisecond) {
		if a.w.waking.begun == seen {
			continue
		}
		seen = a.w.waking.begun
		if len(a.w.waking.free) == 0 && a.rng.IntN(2) == 0 {
			a.sleep(a.below(wakingHold >> a.rng.IntN(7)))
			a.left--
			a.send()
			a.w.sched.progress()
		}
	}
}

// await receives one message at a time, works on it for a while, and acks it or gives it back.
func (a *actor) await() {
	w := a.w
	for !w.sent() || !w.empty() {
		o := &op{kind: "receive"}
		wait := (time.Second + a.below(2*time.Second)).Truncate(time.Microsecond) + time.Duration(1+a.id)
		options := layer.ReceiveOptions{Max: 1, Wait: wait}
		v := &wakingWait{op: o}
		if p := w.knobs.plan; p != nil {
			v.state = p.values["state"][a.rng.IntN(len(p.values["state"]))]
			options.Where = layer.Template{"state": v.state}
		}
		if a.rng.IntN(4) == 0 || w.knobs.dead > 0 && a.rng.IntN(2) == 0 {
			g := w.group(a.rng)
			v.group, options.Group = &g, &g
		}
		w.waking.waits[a.id] = v
		w.waking.begun++
		a.call(o, func(ctx context.Context) (err error) {
			o.claims, err = a.q.Receive(ctx, options)
			return err
		})
		delete(w.waking.waits, a.id)
		for _, c := range o.claims {
			switch a.rng.IntN(2) {
			case 0:
				a.sleep(a.below(w.knobs.think))
			default:
				a.sleep(2*wakingLate + a.below(w.knobs.think)) // only this handle finds the group that woke it
			}
			a.finishOne(c)
		}
		if a.rng.IntN(2) == 0 {
			a.sleep(a.below(w.knobs.think))
		}
	}
}

// finishOne ends a claim: mostly by an ack.
func (a *actor) finishOne(c *layer.Claim) {
	s := &op{kind: "ack", settle: true, all: true, group: claimLane(c), token: c.Token, ids: []layer.ID{c.Items[0].ID}}
	if a.rng.IntN(4) > 0 {
		a.call(s, func(ctx context.Context) error { return a.q.Ack(ctx, c) })
		return
	}
	s.kind, s.all, s.ids = "nack", false, nil
	a.call(s, func(ctx context.Context) error { return a.q.Nack(ctx, c, layer.NackOptions{Release: true}) })
}

// suspend pauses groups, and the queue, for a while.
func (a *actor) suspend() {
	w := a.w
	for ; a.left > 0 && !w.sent(); a.left -= 2 {
		a.sleep(time.Second + a.below(w.knobs.think))
		if a.rng.IntN(2) == 0 {
			a.call(&op{kind: "pause"}, func(ctx context.Context) error {
				_, err := a.q.Admin().Pause(ctx, layer.PauseOptions{})
				return err
			})
			a.sleep(a.below(w.knobs.think))
			a.call(&op{kind: "resume"}, func(ctx context.Context) error {
				_, err := a.q.Admin().Resume(ctx, layer.ResumeOptions{})
				return err
			})
			continue
		}
		g := w.group(a.rng)
		a.call(&op{kind: "pause-group", group: g}, func(ctx context.Context) error {
			_, err := a.q.Admin().PauseGroup(ctx, g, layer.PauseOptions{})
			return err
		})
		a.sleep(a.below(w.knobs.think))
		a.call(&op{kind: "resume-group", group: g}, func(ctx context.Context) error {
			_, err := a.q.Admin().ResumeGroup(ctx, g, layer.ResumeOptions{})
			return err
		})
	}
}

// limit sets a limit by which receives wait, and lifts it after a while.
func (a *actor) limit() {
	w := a.w
	rate := layer.Rate{Count: 1, Per: time.Hour}
	type limit struct {
		name      string
		set, lift func(c *layer.Config)
	}
	limits := []limit{{
		"rate of the queue",
		func(c *layer.Config) { c.MaxRateTotal = rate }, func(c *layer.Config) { c.MaxRateTotal = layer.Rate{} },
	}}
	if w.knobs.plan == nil {
		limits = append(limits, limit{
			"rate", func(c *layer.Config) { c.MaxRate = rate }, func(c *layer.Config) { c.MaxRate = layer.Rate{} },
		})
	}
	if w.knobs.config.RetroactiveDelay {
		limits = append(limits, limit{
			"delay", func(c *layer.Config) { c.Delay = time.Hour }, func(c *layer.Config) { c.Delay = 0 },
		})
	}
	for ; a.left > 0 && !w.sent(); a.left -= 2 {
		a.sleep(time.Second + a.below(w.knobs.think))
		l := limits[a.rng.IntN(len(limits))]
		w.waking.limited = true
		a.reconfigure(l.set)
		a.sleep(a.below(2 * time.Second))
		a.reconfigure(l.lift)
		w.waking.limited = false
		if len(w.waking.waits) > 0 && len(w.freeLanes()) > 0 {
			w.mark("lifted a " + l.name + " while a receive waits")
		}
	}
}

// freeLanes returns the lanes with items and without a claim; none while the queue is paused, or limited.
func (w *world) freeLanes() (all []wakingLane) {
	if w.waking.limited {
		return nil
	}
	kind := "item"
	if w.knobs.plan != nil {
		kind = "lane"
	}
	of := func(rest []any) wakingLane {
		l := wakingLane{group: rest[0].(string)}
		if w.knobs.plan != nil && len(rest) > 2 {
			l.state = rest[2].(string)
		}
		return l
	}
	for _, row := range w.rows(section("meta"), 0) {
		if _, rest := keyOf(row.Key); rest[0] == "paused" {
			return nil
		}
	}
	held := make(map[wakingLane]bool)
	for _, row := range w.rows(section("lock"), 0) {
		_, rest := keyOf(row.Key)
		held[of(rest)] = true
	}
	for _, row := range w.rows(section(kind), 0) {
		_, rest := keyOf(row.Key)
		l := of(rest)
		if !held[l] && !held[wakingLane{group: l.group}] && !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	return all
}

// watchWaking holds the run to the law.
func (a *actor) watchWaking() {
	w := a.w
	for !w.sent() || !w.empty() {
		a.sleep(wakingLook)
		now, free := time.Now(), make(map[wakingLane]time.Time)
		for _, l := range w.freeLanes() {
			since, known := w.waking.free[l]
			if !known {
				since = now
			}
			free[l] = since
			for _, v := range w.waking.waits {
				if !v.takes(l) || v.op.beginAt.IsZero() {
					continue
				}
				waits := min(now.Sub(since), now.Sub(v.op.beginAt))
				if waits > 4*wakingLook {
					w.mark("free while a receive waits")
				}
				if waits > wakingLate {
					w.violation("%q of %q is free for %v, and %s waits for it", l.state, l.group, waits, v.op)
					free[l] = now
				}
			}
		}
		w.waking.free = free
	}
}
