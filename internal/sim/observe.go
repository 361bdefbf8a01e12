package sim

import (
	"cmp"
	"slices"
	"time"

	"fdbfifo/layer"
)

// The checks of this file use only the answers that the actors and the handlers saw, not the writes of the
// transactions.

// delivery is the delivery of an item to an actor.
type delivery struct {
	id          layer.ID
	claimed     int // it was claimed, or taken, after this step
	begin, seen int // steps: of the call that brought it, and when it was there
	by          *op
	where       layer.Template // it was asked for
	plain       bool           // out of order
}

// deliveries are those of each group, in the order in which they were seen.
func (w *world) deliveries() map[string][]delivery {
	all := make(map[string][]delivery)
	add := func(id layer.ID, claimed, begin, seen int, o *op, where layer.Template, plain bool) {
		all[id.Group] = append(all[id.Group], delivery{id, claimed, begin, seen, o, where, plain})
	}
	for _, o := range w.ops {
		if !o.over && o.by == byActor {
			continue
		}
		for _, c := range o.claims {
			for _, item := range c.Items {
				claimed := o.begin
				if o.attemptID != "" {
					claimed = 0 // perhaps by the receive that this one repeats
				}
				add(item.ID, claimed, o.begin, o.end, o, c.Where, c.Hold != layer.ID{} && !w.knobs.inTurn)
			}
		}
		if o.kind == "take" && o.outcome == done {
			for _, item := range o.items {
				add(item.ID, o.begin, o.begin, o.end, o, o.where, o.plain)
			}
		}
		if o.item != nil {
			add(o.item.ID, 0, o.begin, o.begin, o, o.where, o.plain) // when it was claimed is not known
		}
	}
	for _, ds := range all {
		slices.SortStableFunc(ds, func(a, b delivery) int { return cmp.Compare(a.seen, b.seen) })
	}
	return all
}

// compareOrder: no actor gets an item while an earlier item waits that was never delivered (G1). An item waits from the
// return of its enqueue on, and so before everything whose enqueue began later; one that was a dead letter is left out.
func (w *world) compareOrder(m *model) {
	sent, sending := make(map[layer.ID]int), make(map[layer.ID]int)
	for _, o := range w.ops {
		if o.outcome != done {
			continue
		}
		for i, id := range o.sent {
			if !o.duplicate[i] {
				sent[id], sending[id] = o.end, o.begin
			}
		}
	}
	for _, ds := range w.deliveries() {
		given := make(map[layer.ID]bool)
		for i, d := range ds {
			if given[d.id] {
				continue
			}
			given[d.id] = true
			end, known := sent[d.id]
			if !known || m.everDead[d.id] || w.wasEdited(d.id) {
				continue
			}
			if f := m.finished[d.id]; d.by.by == byWorker && len(f) > 0 && f[0].r.step < d.begin {
				continue // a worker had it in flight when it was removed by force, and still calls its handler
			}
			// It is new here. Was it there when an item behind it was read and delivered?
			for _, p := range ds[:i] {
				if p.plain || !agrees(p.where, m.first[d.id].headers) {
					continue // it was out of order, or of another lane
				}
				if p.seen < d.begin && (p.claimed > end && before(d.id, p.id) || sending[p.id] > end && !m.everDead[p.id]) {
					w.violation("G1: %s was there from step %d on, was given by %s, and after %s, which %s gave", d.id, end, d.by, p.id, p.by)
				}
			}
			w.mark("order of deliveries seen")
		}
	}
}

// compareExclusion: no actor gets a claim on a group while an earlier claim has not been returned and its lease lasts,
// by the clock that is furthest ahead. A handle with that clock may have ended it in between (G2).
func (w *world) compareExclusion() {
	type hold struct {
		c     *layer.Claim
		by    *op
		until time.Time // by the clock of its holder
		freed int       // the step at which its holder, or an operator by force, began to end it
	}
	const never = int(^uint(0) >> 1)
	holds := make(map[string][]*hold)
	find := func(lane string, token int64) *hold {
		for _, h := range holds[groupOfLane(lane)] {
			if h.c.Token == token && claimLane(h.c) == lane {
				return h
			}
		}
		return nil
	}
	for _, o := range w.ops {
		for _, c := range o.claims {
			if o.over && find(claimLane(c), c.Token) == nil {
				holds[c.Group] = append(holds[c.Group], &hold{c, o, c.Until, never})
			}
		}
	}
	for _, o := range w.ops {
		switch {
		case o.kind == "extend" || o.kind == "extend-tx":
			if h := find(o.group, o.token); h != nil { // which may be shorter than the rest
				until := o.until
				if o.outcome != done {
					until = o.beginAt.Add(w.skewOf(o.who) + layer.MinLease)
				}
				if until.Before(h.until) {
					h.until = until
				}
			}
		case o.settle:
			if h := find(o.group, o.token); h != nil {
				h.freed = min(h.freed, o.begin)
			}
		case o.forcing:
			for _, h := range holds[groupOfLane(o.group)] {
				if o.end == 0 || o.end > h.by.begin {
					h.freed = min(h.freed, max(o.begin, h.by.begin))
				}
			}
		}
	}
	fastest := w.handles[0].skew
	for _, h := range w.handles {
		fastest = max(fastest, h.skew)
	}
	for group, hs := range holds {
		for _, h := range hs {
			for _, other := range hs {
				if !clash(h.c, other.c) {
					continue
				}
				if other == h || other.by.attemptID != "" || h.by.attemptID != "" || other.by.begin <= h.by.end || other.by.end >= h.freed {
					continue
				}
				if clock := other.by.endAt.Add(fastest); clock.Before(h.until) {
					w.violation("G2: %s got claim %d of %q, %s before the end of claim %d of %s",
						other.by, other.c.Token, group, h.until.Sub(clock), h.c.Token, h.by)
				}
			}
			w.mark("exclusion of claims seen")
		}
	}
}

// repeatLife is for how long a receive can be repeated, without the most that clocks differ.
const repeatLife = 5*time.Minute - 2*maxSkew

// compareRepeats: a receive that is repeated takes nothing more than it was given.
func (w *world) compareRepeats() {
	given := make(map[string]*op)
	began := make(map[string]time.Time) // the first call that may have been given claims which another has repeated
	for _, o := range w.ops {
		if o.attemptID == "" {
			continue
		}
		if began[o.attemptID].IsZero() && (len(o.claims) > 0 || o.outcome != done || !o.over) {
			began[o.attemptID] = o.beginAt
		}
		if o.outcome != done || !o.over {
			continue
		}
		first := given[o.attemptID]
		if first == nil {
			if len(o.claims) > 0 {
				given[o.attemptID] = o
			}
			continue
		}
		if o.begin < first.end || o.endAt.Sub(began[o.attemptID]) > repeatLife {
			continue
		}
		for _, c := range o.claims {
			if !slices.ContainsFunc(first.claims, func(f *layer.Claim) bool {
				return claimLane(f) == claimLane(c) && f.Token == c.Token
			}) {
				w.violation("%s was given claim %d of %q, which %s was not", o, c.Token, c.Group, first)
			}
		}
	}
}
