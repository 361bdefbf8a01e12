package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// Actions that only one of several actors may do at the same time: a sweep with Every, and a pause of the queue. And an
// action that a holder may not do: an ack of items that it does not hold.

// sweepInTurn sweeps unless anybody has begun to lately.
func (a *actor) sweepInTurn() {
	o := &op{kind: "sweep-turn", every: time.Second + a.below(20*time.Second).Truncate(time.Millisecond)}
	a.call(o, func(ctx context.Context) error {
		r, err := a.q.Admin().Sweep(ctx, layer.SweepOptions{Every: o.every})
		if o.swept = err == nil && !r.Skipped; err == nil && r.Skipped {
			a.w.mark("sweep left to another")
		}
		return err
	})
}

// pauseQueue pauses the queue, under a name of its own, and resumes it.
func (a *actor) pauseQueue() {
	a.n++
	o := &op{kind: "pause-named", named: fmt.Sprintf("pause %d.%d", a.id, a.n)}
	var m layer.Mark
	options := layer.PauseOptions{By: o.named}
	err := a.call(o, func(ctx context.Context) (err error) { m, err = a.q.Admin().Pause(ctx, options); return err })
	o.toldBy = m.By
	if err == nil && o.toldBy != o.named {
		a.w.mark("queue paused before")
	}
	if a.rng.IntN(2) == 0 {
		a.sleep(a.below(a.w.knobs.think))
	}
	o = &op{kind: "resume-named"}
	whichever := layer.ResumeOptions{}
	a.call(o, func(ctx context.Context) (err error) { m, err = a.q.Admin().Resume(ctx, whichever); return err })
	o.toldBy = m.By
}

// ackWrongly acks items of the claim together with one that is not in it.
func (a *actor) ackWrongly(c *layer.Claim, left []layer.ID) {
	wrong := layer.ID{Group: c.Group, Index: c.Items[0].ID.Index, Random: c.Items[0].ID.Random}
	wrong.Random[15] ^= 1 // of no item
	if n := len(a.w.known); a.rng.IntN(2) == 0 && n > 0 {
		if id := a.w.known[a.rng.IntN(n)]; id.Group == c.Group && !slices.ContainsFunc(c.Items, func(i layer.Item) bool { return i.ID == id }) {
			wrong = id
		}
	}
	ids := []layer.ID{wrong}
	if a.rng.IntN(2) == 0 {
		ids = append(ids, left...)
	}
	o := &op{kind: "ack-wrong"}
	err := a.once(o, func(ctx context.Context) error {
		if len(ids)%2 == 0 {
			return a.q.Settle(ctx, layer.Settlement{Claim: c, Finish: ids, Nack: &layer.NackOptions{}})
		}
		return a.q.AckItems(ctx, c, ids)
	}, func(ctx context.Context, tx kv.Tx) error { return a.q.AckItemsTx(ctx, tx, c, ids) })
	if err == nil {
		a.w.violation("G3: %s of %s, which is not in claim %d of %q, is taken for done", o, wrong, c.Token, c.Group)
	}
	a.w.mark("ack of what is not in the claim")
}

// turns is what the model knows of sweeps and of the pause of the queue.
type turns struct {
	begunMS int64 // of the last sweep; 0 = there was none
	swept   []*record
	by      string // who paused the queue; "" = it is not paused
	pauses  map[string]*record
}

// turn follows a record for the sweeping handle and for the pause of the queue.
func (m *model) turn(r *record) {
	for _, wr := range r.writes {
		name, rest := m.keyOf(wr.key)
		if name != "meta" || len(rest) != 1 {
			continue
		}
		t, err := tuple.Unpack(wr.value)
		switch rest[0] {
		case "swept":
			if err != nil || len(t) != 2 {
				m.violation("note of a sweep: %v, %v", t, err)
				continue
			}
			begunMS, _ := t[0].(int64)
			m.sweeps(begunMS)
		case "paused":
			if wr.kind == cleared {
				if m.turns.by == "" {
					m.violation("the queue is resumed, and is not paused")
				}
				m.turns.by = ""
				continue
			}
			if m.turns.by != "" {
				m.violation("the pause by %s is written over", m.turns.by)
			}
			if err != nil || len(t) != 3 {
				m.violation("pause: %v, %v", t, err)
				continue
			}
			m.turns.by, _ = t[1].(string)
			m.turns.pauses[m.turns.by] = r
		}
	}
}

// sweeps holds the begin of a sweep to its turn.
func (m *model) sweeps(begunMS int64) {
	last := m.turns.begunMS
	m.turns.begunMS, m.turns.swept = begunMS, append(m.turns.swept, m.r)
	every := time.Duration(-1) // the least that any sweep has that this may be
	for _, o := range m.w.ops {
		if o.who == m.r.who && o.begin <= m.r.step && (o.outcome != done || o.end >= m.r.step) &&
			(strings.HasPrefix(o.kind, "sweep") || o.kind == "heal") && (every < 0 || o.every < every) {
			every = o.every
		}
	}
	age := time.Duration(begunMS-last) * time.Millisecond
	if last > 0 && age < every && age >= -every {
		m.violation("a sweep begins %s after another, and may after %s", age, every)
	}
}

// compareTurns: a handle that continues a sweep has begun it. An actor that was told that it was the first to pause the
// queue was the first. A pause is ended once.
func (m *model) compareTurns() {
	ended := make(map[string]*op)
	for _, o := range m.w.ops {
		switch {
		case o.outcome != done:
		case o.swept:
			if !slices.ContainsFunc(m.turns.swept, func(r *record) bool { return r.who == o.who && o.maybeAt(r) }) {
				m.w.violation("%s went on, and has not begun", o)
			}
			m.w.mark("sweep in its turn")
		case o.is("pause-named"):
			if r := m.turns.pauses[o.named]; (o.toldBy == o.named) != (r != nil) {
				m.w.violation("%s: told that the queue was paused by %q; it paused it: %t", o, o.toldBy, r != nil)
			}
		case o.is("resume-named"):
			if other := ended[o.toldBy]; other != nil && strings.HasPrefix(o.toldBy, "pause ") {
				m.w.violation("the pause by %s was ended by %s and by %s", o.toldBy, other, o)
			}
			ended[o.toldBy] = o
			m.w.mark("queue resumed")
		}
	}
}
