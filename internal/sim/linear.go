package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"fdbfifo/internal/linear"
	"fdbfifo/layer"
)

// This file turns the actors' calls into the histories of package linear. porcupine checks these by the answers of the
// calls.
//
// A moment is two stamps of a step: calls return when it begins, and are made when it ends. Some events are in no call:
// an item becomes a dead letter, is purged, ages out, is finished by a worker.Worker, or is redriven. The records say
// when they happened, and the file adds them as effects of outsiders (linear.Drop, linear.Put). The other checkers
// judge whether they may happen. A message that a redrive puts at the tail has another name, because its key makes it
// another message. The claims of a worker.Worker are not in the histories. For items that they hold one by one the
// histories say how long (linear.Busy).

// histories are the calls of each group.
func (w *world) histories(m *model, drained bool) map[string][]linear.Operation {
	c := &historian{w: w, m: m, groups: make(map[string][]linear.Operation), newest: make(map[string]*record),
		told: make(map[claimKey]bool)}
	for g := range w.knobs.groups {
		c.groups[w.groupName(g)] = nil
	}
	for _, h := range w.handles {
		c.fastest = max(c.fastest, h.skew)
	}
	repeats := make(map[string][]*op)
	for _, o := range w.ops {
		if o.attemptID != "" {
			repeats[o.attemptID] = append(repeats[o.attemptID], o)
		}
	}
	for _, o := range w.ops {
		c.call(o)
		switch {
		case o.attemptID == "":
			c.receive(o)
		case repeats[o.attemptID][0] == o:
			c.receive(repeats[o.attemptID]...)
		}
	}
	c.others()
	c.busy()
	if drained {
		last := int64(2*w.sched.steps + 2)
		for group := range c.groups {
			c.add(group, linear.Operation{Span: linear.Span{Client: 0, Call: last, Return: last + 1}, Kind: linear.Peek, Outcome: linear.Done, All: true})
		}
	}
	return c.groups
}

// historian turns ops into operations.
type historian struct {
	w       *world
	m       *model
	fastest time.Duration // by how much the fastest clock is fast
	groups  map[string][]linear.Operation
	told    map[claimKey]bool  // claims, by their lanes, that a caller in the histories was told of
	newest  map[string]*record // the record that has last added an operation to a group
}

func (c *historian) add(group string, o linear.Operation) {
	if o.Outcome == linear.Done || o.Outcome == linear.Unknown || len(o.Messages) > 0 || o.Token > 0 || o.Kind == linear.Release {
		c.groups[group] = append(c.groups[group], o)
	}
}

// addTo adds what was done to a lane.
func (c *historian) addTo(lane string, o linear.Operation) {
	switch id := holdIDOf(lane); {
	case id != layer.ID{}:
		o.Hold = id
	case lane != groupOfLane(lane):
		o.Where = whereOfLane(lane)
	}
	c.add(groupOfLane(lane), o)
}

func (c *historian) span(o *op) linear.Span {
	return linear.Span{
		Client: o.actor, Call: int64(2*o.begin + 1), Return: int64(2 * o.end), Doubted: o.doubted,
		Begin: o.beginAt.Add(c.w.skewOf(o.who)).UnixMilli(), End: o.endAt.Add(c.fastest).UnixMilli(),
	}
}

// message is a message by its id.
func (c *historian) message(id layer.ID) linear.Message {
	body := c.m.first[id].label
	if c.m.movedIn[id] {
		body += " at the tail"
	}
	return linear.Message{ID: id, Body: body}
}

func (c *historian) messages(ids ...layer.ID) (all []linear.Message) {
	for _, id := range ids {
		all = append(all, c.message(id))
	}
	return all
}

func (c *historian) items(items []layer.Item) (all []linear.Message) {
	for _, item := range items {
		m := c.message(item.ID)
		if !c.m.movedIn[item.ID] && c.m.first[item.ID].replayOf == "" {
			m.Body = item.Headers[labelHeader]
		}
		all = append(all, m)
	}
	return all
}

// call adds a call without its receive.
func (c *historian) call(o *op) {
	if o.by == byWorker {
		return
	}
	r := linear.Operation{Span: c.span(o), Outcome: o.told, Token: o.token}
	switch {
	case o.settle:
		r.Kind, r.All = linear.Ack, o.all
		if !o.all {
			r.Messages = c.messages(o.ids...)
		}
		if o.is("nack") {
			c.nack(o, &r)
		}
		if o.is("advance") {
			r.Kind, r.Next = linear.Advance, o.next
			if !o.all {
				r.Messages = c.messages(o.advanced...)
			}
		}
		c.addTo(o.group, r)
	case o.is("extend"):
		r.Kind, r.Until = linear.Extend, o.until.UnixMilli()
		if o.told == linear.Unknown {
			r.Until = r.Begin + layer.MinLease.Milliseconds()
		}
		c.addTo(o.group, r)
	case o.is("cancel"):
		r.Kind, r.Messages, r.Token = linear.Cancel, c.messages(o.ids...), 0
		c.add(o.group, r)
	case o.is("force-release"):
		r.Kind, r.Delay = linear.Release, linear.Never // if it counts an attempt
		c.addTo(o.group, r)
	case o.is("pause-group") && o.forcing:
		r.Kind = linear.Disturb
		c.add(groupOfLane(o.group), r)
	case o.kind == "take":
		c.take(o, r)
	}
	if len(o.bodies) > 0 {
		c.enqueue(o)
	}
}

func (c *historian) nack(o *op, r *linear.Operation) {
	n, config := o.nack, c.w.knobs.config
	r.Kind, r.From = linear.Nack, n.From
	switch {
	case n.AtOnce, n.Release:
	case n.Delay > 0 && config.MaxAttempts == layer.Unlimited && n.Reject == "" && c.w.knobs.operators == 0:
		r.Delay = n.Delay.Milliseconds()
	default:
		// The delay is drawn. Or there is none, because the head becomes a dead letter, which the records say. Or a
		// call ends it.
		r.Delay = linear.Never
	}
}

// take adds a take. Of one of unknown outcome each attempt may be the one that was done.
func (c *historian) take(o *op, r linear.Operation) {
	r.Kind, r.Where, r.Unordered = linear.Take, o.where, o.plain
	switch o.told {
	case linear.Done:
		c.taken(o.items, r)
	case linear.Unknown:
		for i, items := range o.tries {
			same := func(t []layer.Item) bool {
				return slices.EqualFunc(t, items, func(a, b layer.Item) bool { return a.ID == b.ID })
			}
			if !slices.ContainsFunc(o.tries[:i], same) {
				c.taken(items, r)
			}
		}
	}
}

// taken adds a take to the groups of its items: a transaction may take from several.
func (c *historian) taken(items []layer.Item, r linear.Operation) {
	for i := range items {
		group := items[i].ID.Group
		inGroup := func(item layer.Item) bool { return item.ID.Group == group }
		if !slices.ContainsFunc(items[:i], inGroup) {
			others := func(item layer.Item) bool { return !inGroup(item) }
			r.Messages = c.items(slices.DeleteFunc(slices.Clone(items), others))
			c.add(group, r)
		}
	}
}

// enqueue adds an enqueue. One of unknown outcome is split if some of its messages may not be there: because they are
// duplicates, or because the attempt that was done had fewer.
func (c *historian) enqueue(o *op) {
	r := linear.Operation{Span: c.span(o), Kind: linear.Enqueue, Outcome: o.told}
	if o.told != linear.Done && o.told != linear.Unknown {
		return
	}
	split := make(map[string][]linear.Message)
	for i, label := range o.bodies {
		m := linear.Message{Body: label, Facets: c.w.knobs.plan.facetsOf(o.messages[i].Headers)}
		if o.told == linear.Done {
			if o.duplicate[i] {
				continue
			}
			m.ID = o.sent[i]
		}
		if o.told == linear.Unknown && (o.varied || dedupIDOf(&o.messages[i], c.w.knobs.config.DedupByContent) != "") {
			one := r
			one.Messages = []linear.Message{m}
			c.add(o.groups[i], one)
			continue
		}
		split[o.groups[i]] = append(split[o.groups[i]], m)
	}
	for group, messages := range split {
		r.Messages = messages
		c.add(group, r)
	}
}

// receive adds what a receive, or one and its repetitions, were given: a claim was made after the first of these was
// called, and before the first that showed it returned.
func (c *historian) receive(ops ...*op) {
	first := ops[0]
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b *op) int { return cmp.Compare(a.end, b.end) })
	for _, o := range ops {
		if !o.is("receive") && o.kind != "ack-receive" {
			continue
		}
		r := linear.Operation{Span: c.span(o), Kind: linear.Receive, Outcome: linear.Done}
		r.Call, r.Begin = int64(2*first.begin+1), min(r.Begin, c.span(first).Begin)
		r.Doubted = r.Doubted || len(ops) > 1 // a repetition gives what the first still has
		if o.over {
			for _, claim := range o.claims {
				if key := (claimKey{claimLane(claim), claim.Token}); !c.told[key] {
					c.told[key] = true
					r.Token, r.Messages, r.Until = claim.Token, c.items(claim.Items), claim.Until.UnixMilli()
					if c.w.knobs.inTurn {
						c.inTurn(claim.Group, r)
						continue
					}
					r.Unordered = claim.Hold != layer.ID{}
					c.addTo(claimLane(claim), r)
				}
			}
		}
		// A claim may have reached no caller: its receive may have been given up, or have failed after the ack in the
		// same call.
		open := o.told == linear.Unknown || o.told == linear.Done && (o.limited || o.kind == "ack-receive")
		if open && (!o.over || len(o.claims) == 0) {
			for group := range c.groups {
				c.add(group, linear.Operation{Span: c.span(o), Kind: linear.Receive, Outcome: linear.Unknown})
			}
		}
	}
}

// inTurn adds a claim of a message of a receive in turn. All messages of a group that the receive got are one
// operation.
func (c *historian) inTurn(group string, r linear.Operation) {
	r.InTurn = true
	history := c.groups[group]
	if n := len(history) - 1; n >= 0 && history[n].InTurn && history[n].Span == r.Span && history[n].Token == r.Token {
		history[n].Messages = append(history[n].Messages, r.Messages...)
		return
	}
	c.add(group, r)
}

// others adds the events that are in no call.
func (c *historian) others() {
	ids := slices.SortedFunc(maps.Keys(c.m.finished), func(a, b layer.ID) int {
		return cmp.Or(cmp.Compare(c.m.finished[a][0].r.order, c.m.finished[b][0].r.order), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Index, b.Index))
	})
	for _, id := range ids {
		f := c.m.finished[id][0]
		by, sure, maybe := false, false, false
		for _, o := range c.w.ops {
			ids := o.ids
			if o.kind == "take" && o.outcome != done {
				ids = o.tried
			}
			switch {
			case !slices.Contains(ids, id) || !o.mayFinish(&f):
			case o.by == byWorker:
				by = true
			case o.outcome == done:
				sure = true
			default:
				maybe = true
			}
		}
		force := c.m.purged(id, f)
		if !sure && (by || force || c.m.agedOut(&f)) {
			o := linear.Operation{Kind: linear.Drop, Outcome: linear.Done, Messages: c.messages(id), Force: force}
			if f.lock.is("claim") && force && c.m.claims[claimKey{f.lane, f.lock.token}].ends == f.r.step {
				o.Token = f.lock.token // also if what is in flight is left to a later step
			}
			if maybe {
				o.Outcome = linear.Unknown
			}
			c.happened(f.r, id.Group, o)
		}
	}
	for _, p := range c.m.asides {
		o := linear.Operation{Kind: p.kind, Outcome: linear.Done, Messages: c.messages(p.id)}
		if p.kind == linear.Put {
			o.Messages[0].Facets = c.w.knobs.plan.facetsOf(p.headers)
		}
		c.happened(p.r, p.id.Group, o)
	}
	for _, moved := range c.m.lanes.moved {
		if !moved.holder || moved.staged {
			c.happened(moved.r, moved.id.Group, linear.Operation{
				Kind: linear.Move, Outcome: linear.Done, Messages: c.messages(moved.id),
				Next: c.w.knobs.plan.facetsOf(moved.headers),
			})
		}
	}
}

// busy adds how long single items were held under claims that no caller in the histories was told of.
func (c *historian) busy() {
	for _, h := range c.m.lanes.holds {
		lane := holdLaneOf(h.id)
		if !slices.ContainsFunc(h.tokens, func(token int64) bool { return !c.told[claimKey{lane, token}] }) {
			continue
		}
		o := linear.Operation{Kind: linear.Busy, Outcome: linear.Done, Messages: c.messages(h.id)}
		o.Client, o.Call, o.Return = -h.from.who, int64(2*h.from.from), int64(2*c.w.sched.steps+1)
		if h.to != nil {
			o.Return = int64(2*min(h.to.to, c.w.sched.steps) + 1)
		}
		c.add(h.id.Group, o)
	}
}

// happened adds what a record says.
func (c *historian) happened(r *record, group string, o linear.Operation) {
	now := time.UnixMilli(r.nowMS + 1).Add(-c.w.skewOf(r.who)) // not before it was
	o.Span = linear.Span{
		Client: -r.who, Call: int64(2 * r.from), Return: int64(2*min(r.to, c.w.sched.steps) + 1),
		Begin: r.nowMS, End: now.Add(c.fastest).UnixMilli(),
	}
	// The effects of one transaction are one operation. As several operations they would have to be tried in each
	// order.
	history := c.groups[group]
	if n := len(history) - 1; n >= 0 && c.newest[group] == r && o.Outcome == linear.Done && history[n].Outcome == linear.Done &&
		history[n].Kind == o.Kind && history[n].Force == o.Force && maps.Equal(history[n].Next, o.Next) {
		history[n].Messages = append(history[n].Messages, o.Messages...)
		return
	}
	c.newest[group] = r
	c.add(group, o)
}

// Linearize checks the histories of the run with porcupine, and adds what has no order to the violations. It must not
// be called in the bubble, where no time passes by itself.
func (r *Report) Linearize(o linear.CheckOptions) error {
	if r.calls == nil {
		return nil
	}
	groups := make(map[string][]linear.Operation)
	for group, history := range r.calls {
		if slices.ContainsFunc(history, func(o linear.Operation) bool { return o.Kind == linear.Receive || o.Kind == linear.Take }) {
			groups[group] = history
		} else {
			r.Skipped++
		}
	}
	result, err := linear.Check(linear.Law{}, groups, o)
	r.calls = nil
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	for i, u := range result.Undecided {
		result.Undecided[i] = fmt.Sprintf("seed %d: %s", r.Seed, u)
	}
	r.Linear.Add(result)
	for _, v := range result.Violations {
		r.Violations = append(r.Violations, "linear: "+v.String())
	}
	return nil
}
