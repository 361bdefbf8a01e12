package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// Ids under wrong clocks. The processes of clocks.go share a few dedup ids and receive ids, purge, and sweep. The
// dedup window is a second to a day long. When the faults have stopped, the processes purge once more, and the one
// whose clock is furthest ahead sweeps alone. Then all processes repeat receives and messages, one after the other,
// with up to an hour between two rounds. The laws:
//
//   - No dedup id and no receive id ends early: its time must have passed by the world's clock, or by versions. If two
//     clocks differ by less than five minutes, they may end a dedup window by that much early.
//   - Each of them is free again after twice its time and five minutes, for a process that runs for as long.
//   - A dedup id of a message from before a purge is free once the purge has returned. A receive id is not: it stands
//     for the answer of a call, and not for messages. A caller that repeats the receive after a purge must get what is
//     left of the first answer, which may be nothing, and no further messages. So no law frees a receive id early.

// receiveIDLife is for how long a receive can be repeated.
const receiveIDLife = 5 * time.Minute

// mayLast reports whether an id that was used at a time, and lasts for life, may be in force at another for a process.
func (h *handle) mayLast(used, at time.Time, life time.Duration) bool {
	return min(at.Sub(used), at.Sub(h.opened)) <= 2*life+clocksDiffer*time.Millisecond
}

// clockIDs: processes with wrong clocks share ids, purge and sweep.
func (k *knobs) clockIDs(rng *rand.Rand) {
	k.wrongClocks(rng)
	k.recalls, k.handles = true, 3+rng.IntN(2)
	k.repeat, k.attempts, k.twin = 0.4, 1+rng.IntN(6), 0.3
	k.named, k.ids, k.operators, k.operations = 0.7, 4+rng.IntN(8), 2, []int{11, purge, purge, purgeAll}
	k.config.DedupWindow = []time.Duration{
		periodOfClocks, 10 * time.Minute, time.Minute, time.Second + time.Duration(rng.Int64N(int64(20*time.Second))),
	}[rng.IntN(4)]
	k.first = firstClocks[rng.IntN(len(firstClocks))]
}

// recallWaits are the times between two rounds of repetitions.
var recallWaits = []time.Duration{
	time.Second, 20 * time.Second, 2 * time.Minute, 4 * time.Minute, 6 * time.Minute, 16 * time.Minute, time.Hour,
}

// recallFor is the longest that all rounds take.
const recallFor = 8 * time.Hour

// purgeAgain lets processes send messages with dedup ids that were used before, and purge their groups.
func (w *world) purgeAgain() {
	if !w.knobs.recalls {
		return
	}
	for i, h := range w.alive() {
		a := w.actor(250+i, h)
		a.sendAgain()
		o := &op{kind: "purge", sweeping: true, group: w.group(a.rng)}
		a.call(o, func(ctx context.Context) error {
			_, err := a.q.Admin().Purge(ctx, layer.PurgeOptions{Group: &o.group})
			return err
		})
	}
}

// recallIDs lets all processes repeat receives and messages in a few rounds. No other actor works.
func (w *world) recallIDs() {
	if !w.knobs.recalls {
		return
	}
	var all []*actor
	for i, h := range w.alive() {
		all = append(all, w.actor(200+i, h))
	}
	rng := rand.New(rand.NewPCG(w.o.Seed, 70_000))
	for range 3 + rng.IntN(4) {
		all[0].sleep(recallWaits[rng.IntN(len(recallWaits))])
		for _, i := range rng.Perm(len(all)) {
			switch a := all[i]; a.rng.IntN(4) {
			case 0:
				a.sweep()
			case 1:
				a.sendAgain()
			default:
				a.receiveAgain()
			}
		}
	}
}

// sendAgain sends a message with the group and the dedup id of an earlier one.
func (a *actor) sendAgain() {
	var had []layer.Message
	for _, o := range a.w.ops {
		for _, m := range o.messages {
			if m.DedupID != "" {
				had = append(had, m)
			}
		}
	}
	if len(had) == 0 {
		return
	}
	m := had[a.rng.IntN(len(had))]
	a.sendOne(layer.Message{Group: m.Group, DedupID: m.DedupID})
	a.w.mark("dedup id used again")
}

// sendOne sends one message without a delay.
func (a *actor) sendOne(m layer.Message) {
	a.n++
	label := fmt.Sprintf("a%d.%d", a.id, a.n)
	m.AtOnce, m.Body, m.Headers = true, []byte("body of "+label), map[string]string{labelHeader: label}
	o := &op{kind: "enqueue", bodies: []string{label}, groups: []string{m.Group}, messages: []layer.Message{m}}
	msgs := o.lendMessages(o.messages)
	a.call(o, func(ctx context.Context) error {
		sent, err := a.q.Enqueue(ctx, msgs...)
		if err == nil {
			o.sentAs(sent)
		}
		return err
	})
}

// receiveAgain receives a new message under a receive id that was perhaps used before. If its time is over, the
// receive must get the message.
func (a *actor) receiveAgain() {
	w := a.w
	group := w.groupName(1_000 + w.recalled)
	w.recalled++
	a.sendOne(layer.Message{Group: group})
	o := &op{kind: "receive", attemptID: fmt.Sprintf("r%d", a.rng.IntN(w.knobs.attempts))}
	var last time.Time // at which the id was used
	for _, other := range w.ops {
		if other.attemptID == o.attemptID && (len(other.claims) > 0 || other.outcome == unknown) {
			last = other.beginAt
			if other.over {
				last = other.endAt
			}
		}
	}
	options := o.lendReceive(layer.ReceiveOptions{
		Max: 1, Group: &group, Strategy: layer.FillGroup, ReceiveID: o.attemptID,
	})
	err := a.call(o, func(ctx context.Context) (err error) {
		o.claims, err = a.q.Receive(ctx, options)
		return err
	})
	h := w.handleOf(a.who)
	over := !h.mayLast(last, o.beginAt, receiveIDLife)
	switch {
	case err == nil && len(o.claims) == 0 && (over || last.IsZero()):
		w.violation("%s by a clock that is %s got nothing, and its receive id %q was last used %s before",
			o, h.clock.kind, o.attemptID, o.beginAt.Sub(last))
	case err == nil && len(o.claims) == 0:
		w.mark("repeated receive that got nothing")
	case err == nil && !last.IsZero() && over:
		w.mark("receive id free again")
	}
	for _, c := range o.claims {
		if a.rng.IntN(2) == 0 {
			s := &op{kind: "ack", settle: true, all: true, group: claimLane(c), token: c.Token}
			for _, item := range c.Items {
				s.ids = append(s.ids, item.ID)
			}
			a.call(s, func(ctx context.Context) error { return a.q.Ack(ctx, c) })
		}
	}
}

// writtenAt is when a row was written, by the world's clock and by versions.
type writtenAt struct {
	atMS, version int64
	who           int
}

func (m *model) written() writtenAt { return writtenAt{m.r.atMS, m.r.version, m.r.who} }

// early returns by how much less than d a row is old, by the world's clock and by versions; 0 = it is as old.
func (m *model) early(at writtenAt, d time.Duration) time.Duration {
	world := time.Duration(m.r.atMS-at.atMS) * time.Millisecond
	versions := time.Duration(m.r.version-at.version) * time.Microsecond
	return max(0, d-max(world, versions)-aWhile)
}

// earlyDedup is early for the window of a dedup id, by clocks which may differ. Only a clock that stands differs from
// another by less than five minutes.
func (m *model) earlyDedup(at writtenAt) time.Duration {
	window := m.w.knobs.config.DedupWindow
	for _, who := range []int{at.who, m.r.who} {
		if m.w.handleOf(who).clock.kind == "standing" {
			window -= clocksDiffer * time.Millisecond
			break
		}
	}
	return m.early(at, window)
}

// recalls follows the rows of receive ids. A row is stored together with the claims of a receive with this id. That
// receive did not answer that nothing had happened.
func (m *model) recalls(name string, rest tuple.Tuple, w write) {
	if name != "repeat" {
		return
	}
	id, _ := rest[0].(string)
	claims := func(o *op) bool { return o.attemptID == id && o.who == m.r.who && o.maybeAt(m.r) }
	if w.kind == wrote && !slices.ContainsFunc(m.w.ops, claims) {
		m.violation("G3: handle %d claims by the receive id %q, and no such receive says that it may have", m.r.who, id)
	}
	if !m.w.knobs.clocks {
		return
	}
	was, known := m.repeated[id]
	if early := m.early(was, receiveIDLife); known && early > 0 {
		what := "used for other claims"
		if w.kind != wrote {
			what = "forgotten"
		}
		m.violation("G3: the receive id %q of handle %d, whose clock is %s, is %s %s early by a clock that is %s", id,
			was.who, m.w.handleOf(was.who).clock.kind, what, early, m.w.handleOf(m.r.who).clock.kind)
	}
	if m.repeated[id] = m.written(); w.kind != wrote {
		delete(m.repeated, id)
		m.w.mark("receive id swept")
	} else if known {
		m.w.mark("receive id used again")
	}
}
