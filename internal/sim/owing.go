package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"fdbfifo/layer"
)

// The laws of progress of handles that wait for one group, while other handles ack and at once receive again. Runs of
// the profile owing check them. These runs have no faults, so transactions take no time. There is one group, because
// the wake for a second group may meet a handle that is just being served, and then only a poll finds the group.
//
//   - A group with items and without a claim is not left alone while a receive waits, and no poll is needed. An ack may
//     owe its wake for owedFor. A group that is free for longer, with the same head, is a violation.
//   - No handle keeps a group from those that wait, beyond keptMost acks in a row or keptFor; unless another receive of
//     the handle competes with the woken handle.

const (
	// owedFor is how long a wake may be owed (20 ms), and the time of a few transactions, far below a poll.
	owedFor = 150 * time.Millisecond
	// settled is how long a receive takes to write its request and to set its watch, standing back included.
	settled = 110 * time.Millisecond
	// keptMost and keptFor are more than 32 acks, and a second and the longest that a message is handled.
	keptMost = 48
	keptFor  = 3 * time.Second

	owingLook = 5 * time.Millisecond
)

// owingProfiles are the profiles of owed wakes, which no seed draws by itself.
var owingProfiles = []string{"owing"}

// owing: one group of many messages, and handles that take one message at a time.
func (k *knobs) owing(rng *rand.Rand) {
	k.scarce(rng)
	k.faultless()
	k.owes, k.hold = true, 0
	k.nearLimit = false // such a run has so many steps that long names make it take 14 s
	k.handles, k.groups, k.batch = 2+rng.IntN(mostHandles-1), 1, 10
	k.producers, k.workers, k.takers, k.operators, k.consumers, k.stewards = 1, 0, 0, 0, 0, 0
	k.think = 200 * time.Millisecond
	k.config.Lease, k.config.RoundRobin = maxLease, false
	k.config.MaxAttempts, k.config.OnFailure = layer.Unlimited, layer.DeadLetterItem
	k.config.Retention, k.config.MaxWaiting, k.config.MaxRate, k.config.Delay = 0, 0, layer.Rate{}, 0
	k.named, k.large, k.delayed, k.inTx, k.giveUp, k.repeat, k.state = 0, 0, 0, 0, 0, 0, 0
}

// owingWorld is the state of a run of the profile owing.
type owingWorld struct {
	waits map[int]*op         // receives under way, by actors
	free  map[string]freeHead // groups without a claim, at the last look
	kept  map[string]*keptRun // by groups
	alone bool                // each handle has one receive at a time
}

// freeHead is the head of a free group, and since when the group is free.
type freeHead struct {
	index int64
	since time.Time
}

// keptRun is how often in a row a handle has acked in a group.
type keptRun struct {
	who, acks int
	since     time.Time
}

// startOwing starts the actors that receive, one or two for each handle, and the actor that watches.
func (w *world) startOwing() {
	if !w.knobs.owes {
		return
	}
	w.owing = &owingWorld{
		waits: make(map[int]*op), free: make(map[string]freeHead), kept: make(map[string]*keptRun),
	}
	rng := rand.New(rand.NewPCG(w.o.Seed, 27))
	start := w.starting()
	w.owing.alone = rng.IntN(2) == 0
	for _, h := range w.handles {
		for _, a := range h.actors {
			a.left = max(1, a.left/6) // of the producer, whose messages are acked one by one
		}
		start(h, (*actor).keep)
		if !w.owing.alone && rng.IntN(2) == 0 {
			start(h, (*actor).keep)
		}
	}
	start(w.handles[0], (*actor).watchOwing)
}

// starting returns a function that starts actors in addition to those of every run.
func (w *world) starting() func(h *handle, role func(*actor)) *actor {
	id := 50
	return func(h *handle, role func(*actor)) *actor {
		a := w.actor(id, h)
		id++
		a.role = role
		w.startActor(a)
		return a
	}
}

// sent reports whether all messages are there.
func (w *world) sent() bool {
	for _, h := range w.handles {
		if slices.ContainsFunc(h.actors, func(a *actor) bool { return a.produces && !a.over }) {
			return false
		}
	}
	return true
}

// about returns times on both sides of the bounds of an owed wake.
func (a *actor) about() time.Duration {
	times := []int{1, 18, 22, 980, 1020} // milliseconds
	return time.Duration(times[min(a.rng.IntN(len(times)), a.rng.IntN(len(times)))]) * time.Millisecond
}

// keep receives one message at a time and acks it, mostly at once, until all are gone.
func (a *actor) keep() {
	quick := 10 + a.rng.IntN(90) // of a hundred pauses, those that are left out
	pause := func() {
		if a.rng.IntN(100) >= quick {
			a.sleep(a.about())
		}
	}
	w := a.w
	for !w.sent() || !w.empty() {
		o := &op{kind: "receive"}
		options := layer.ReceiveOptions{Max: 1, Wait: time.Second + a.below(5*time.Second)}
		w.owing.waits[a.id] = o
		a.call(o, func(ctx context.Context) (err error) {
			o.claims, err = a.q.Receive(ctx, options)
			return err
		})
		delete(w.owing.waits, a.id)
		for _, c := range o.claims {
			pause()
			s := &op{kind: "ack", settle: true, all: true, group: c.Group, token: c.Token}
			s.ids = []layer.ID{c.Items[0].ID}
			if a.call(s, func(ctx context.Context) error { return a.q.Ack(ctx, c) }) == nil {
				w.keeps(a.who, c.Group)
			}
		}
		pause()
	}
}

// waitsSince reports whether a receive waits which has waited since then, and whose handle is not that one.
func (w *world) waitsSince(then time.Time, besides int) bool {
	for _, o := range w.owing.waits {
		if o.who != besides && !o.over && !o.beginAt.IsZero() && !o.beginAt.Add(settled).After(then) {
			return true
		}
	}
	return false
}

// keeps notes an ack, and holds the handle to the second law.
func (w *world) keeps(who int, group string) {
	run := w.owing.kept[group]
	if !w.owing.alone || run == nil || run.who != who || !w.waitsSince(run.since, who) {
		w.owing.kept[group] = &keptRun{who, 1, time.Now()}
		return
	}
	if run.acks++; run.acks == 32 {
		w.mark("group kept for many acks")
	}
	if age := time.Since(run.since); run.acks > keptMost || age > keptFor {
		w.violation("handle %d keeps group %q from those that wait: %d acks in %v", who, group, run.acks, age)
		w.owing.kept[group] = nil
	}
}

// watchOwing holds the run to the first law.
func (a *actor) watchOwing() {
	w := a.w
	for !w.sent() || !w.empty() {
		a.sleep(owingLook)
		now, free := time.Now(), make(map[string]freeHead)
		held := make(map[string]bool)
		for _, row := range w.rows(section("lock"), 0) {
			_, rest := keyOf(row.Key)
			held[fmt.Sprint(rest[0])] = true
		}
		for _, row := range w.rows(section("item"), 0) {
			_, rest := keyOf(row.Key)
			id := idOf(rest)
			if _, seen := free[id.Group]; seen || held[id.Group] {
				continue // only the head counts
			}
			free[id.Group] = freeHead{id.Index, now}
			if before, ok := w.owing.free[id.Group]; ok && before.index == id.Index {
				free[id.Group] = before
			}
		}
		for group, head := range free {
			if now.Sub(head.since) > owingLook && w.waitsSince(head.since, 0) {
				w.mark("group free while a receive waits")
			}
			if now.Sub(head.since) > owedFor && w.waitsSince(head.since, 0) {
				w.violation("group %q is free for %v, and a receive waits", group, now.Sub(head.since))
				free[group] = freeHead{head.index, now}
			}
		}
		w.owing.free = free
	}
}
