package linear

import (
	"encoding/binary"
	"slices"

	"fdbfifo/internal/spec"
	"fdbfifo/layer"
)

// lanes are the templates of the operations of one group, and the facets of its messages, in a queue with facets. The
// first lane is the whole group. The first kind stands for facets that are not known, and every template matches it.
//
// In a queue with unordered consumers each message that is held by itself is a lane too. These lanes follow those of
// the templates, in the order of the ranks. See hold.go.
type lanes struct {
	where []layer.Template
	kinds []layer.Template
	at    map[string]int  // lanes, by their templates' text
	kind  map[string]byte // kinds, by the facets' text
	meets [][]bool        // by two lanes: some message could be in both
	sees  [][]bool        // by lane and kind: a message of the kind is in the lane
}

// lanesOf returns the lanes of a history; nil if it has nothing of facets.
func lanesOf(ops []*Operation) *lanes {
	l := &lanes{
		where: []layer.Template{nil}, at: map[string]int{layer.Template(nil).String(): 0},
		kinds: []layer.Template{nil}, kind: map[string]byte{layer.Template(nil).String(): 0},
	}
	kind := func(t layer.Template) {
		if _, ok := l.kind[t.String()]; !ok {
			l.kind[t.String()] = byte(len(l.kinds))
			l.kinds = append(l.kinds, t)
		}
	}
	for _, o := range ops {
		if _, ok := l.at[o.Where.String()]; !ok {
			l.at[o.Where.String()] = len(l.where)
			l.where = append(l.where, o.Where)
		}
		kind(o.Next)
		for _, m := range o.Messages {
			kind(m.Facets)
		}
	}
	alone := slices.ContainsFunc(ops, func(o *Operation) bool {
		return o.Unordered || o.InTurn || o.Hold != (layer.ID{})
	})
	if len(l.where) == 1 && len(l.kinds) == 1 && !alone {
		return nil
	}
	for _, a := range l.where {
		var meets, sees []bool
		for _, b := range l.where {
			meets = append(meets, spec.Agree(a, b))
		}
		for _, k := range l.kinds {
			sees = append(sees, spec.Agree(a, k))
		}
		l.meets, l.sees = append(l.meets, meets), append(l.sees, sees)
	}
	return l
}

// place adds to a step the lane and the kinds of its operation.
func (l *lanes) place(p *step, ranks []int) {
	if l == nil {
		return
	}
	p.lane, p.next = l.at[p.Where.String()], l.kind[p.Next.String()]
	if p.Unordered && p.Kind == Take {
		p.lane = noLane
	}
	if p.Kind == Enqueue || p.Kind == Put {
		for i, m := range p.Messages {
			p.kinds = p.kinds.put(ranks[i], l.kind[m.Facets.String()])
		}
	}
}

// facets is the kind of each message that waits, by its rank. It has no trailing zero bytes.
type facets string

func (f facets) of(rank int) byte {
	if rank < len(f) {
		return f[rank]
	}
	return 0
}

func (f facets) put(rank int, kind byte) facets {
	b := []byte(f)
	for len(b) <= rank {
		b = append(b, 0)
	}
	b[rank] = kind
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return facets(b)
}

// inLane is what waits in a lane.
func (s state) inLane(l *lanes, lane int) set {
	if lane <= 0 || l.isAlone(lane) {
		return s.waiting
	}
	var in []int
	for _, r := range s.waiting.ranks() {
		if l.sees[lane][s.facets.of(r)] {
			in = append(in, r)
		}
	}
	return setOf(in...)
}

// hands are who holds the lanes that anybody holds or has held, in the order of the lanes.
type hands []hand

// hand is who holds a lane.
type hand struct {
	lane int
	hold
}

func (all hands) find(lane int) (int, bool) {
	return slices.BinarySearchFunc(all, lane, func(h hand, lane int) int { return h.lane - lane })
}

// of is who holds a lane.
func (all hands) of(lane int) hold {
	if i, ok := all.find(lane); ok {
		return all[i].hold
	}
	return hold{}
}

// with is all with a lane held so.
func (all hands) with(lane int, h hold) hands {
	i, ok := all.find(lane)
	if !ok {
		return slices.Insert(all, i, hand{lane, h})
	}
	all[i].hold = h
	return all
}

// hands are who holds each lane.
func (s state) hands() (all hands) {
	if s.hold != (hold{}) {
		all = append(all, hand{0, s.hold})
	}
	b := []byte(s.others)
	number := func() int64 {
		n, width := binary.Varint(b)
		b = b[width:]
		return n
	}
	for len(b) > 0 {
		h := hand{lane: int(number())}
		h.token, h.until, h.latest, h.newest = number(), number(), number(), number()
		h.delay, h.delayLatest, h.shaky = number(), number(), number() == 1
		n := number()
		h.held, b = set(b[:n]), b[n:]
		all = append(all, h)
	}
	return all
}

// heldBy returns s with these claims of its lanes. It drops the hold of a message that does not wait any more, because
// no later operation depends on it.
func (s state) heldBy(l *lanes, all hands) state {
	s.hold = all.of(0)
	var b []byte
	for _, h := range all {
		if h.lane == 0 || h.hold == (hold{}) || l.isAlone(h.lane) && !s.waiting.has(l.rank(h.lane)) {
			continue
		}
		shaky := int64(0)
		if h.shaky {
			shaky = 1
		}
		for _, n := range []int64{
			int64(h.lane), h.token, h.until, h.latest, h.newest, h.delay, h.delayLatest, shaky, int64(len(h.held)),
		} {
			b = binary.AppendVarint(b, n)
		}
		b = append(b, h.held...)
	}
	s.others = string(b)
	return s
}

// followInLane is follow for a queue with facets, or with unordered consumers: an operation is of one lane. It does
// there what it would do to a group, if those who hold lanes that could share a message with its own allow it. So
// operations of lanes that share none commute.
func (s state) followInLane(l Law, p *step) (state, bool) {
	all := s.hands()
	if p.Kind == Receive || p.Kind == Take {
		return s.givesInLane(l, p, all)
	}
	if p.Kind == Drop || p.Kind == Move {
		return s.dropInLanes(l, p, all)
	}
	if p.Kind == Disturb {
		for i := range all {
			all[i].shaky = all[i].token != 0
		}
		return s.heldBy(l.lanes, all), true
	}
	lane := p.lane
	if p.Kind == Cancel {
		lane = 0
		if i := slices.IndexFunc(all, func(h hand) bool { return h.held.and(p.messages) != "" }); i >= 0 {
			lane = all[i].lane
		}
	}
	in := s
	in.hold = all.of(lane)
	out, ok := in.apply(l, p)
	if !ok {
		return s, false
	}
	all = all.with(lane, out.hold)
	out.hidden = out.hidden || s.hidden // perhaps in another lane
	if p.Kind == Put || p.Kind == Cancel {
		for i := range all {
			all[i].delay = 0 // it was for the head
		}
	}
	for _, r := range out.waiting.without(s.waiting).ranks() {
		out.facets = out.facets.put(r, p.kinds.of(r))
	}
	for _, r := range s.waiting.without(out.waiting).ranks() {
		out.facets = out.facets.put(r, 0)
	}
	if p.Kind == Advance && (p.Outcome == Done || p.Outcome == Unknown) {
		for _, r := range in.held.without(out.held).ranks() {
			out.facets = out.facets.put(r, p.next)
		}
	}
	return out.heldBy(l.lanes, all), true
}

// givesInLane is a receive or take.
func (s state) givesInLane(l Law, p *step, all hands) (state, bool) {
	if p.Outcome == Nothing && s.keptFrom(l.lanes, p, all) {
		return s, true
	}
	if p.InTurn {
		return s.givesInTurn(l, p, all)
	}
	in := s
	for _, h := range all {
		if p.Outcome == Nothing || !l.lanes.inTheWay(p, h.lane) {
			continue
		}
		in.hold = h.hold
		if !in.lapsed(p) || h.delay > p.End {
			return s, false
		}
	}
	in.hold, in.waiting = all.of(p.lane), s.inLane(l.lanes, p.lane)
	if p.Unordered {
		var ok bool
		if in, ok = s.free(l.lanes, p, all); !ok {
			return s, false
		}
		s.hidden, s.phantoms = in.hidden, in.phantoms
	}
	out, ok := in.apply(l, p)
	if !ok || p.Outcome == Nothing || out == in {
		if out.hidden && !s.hidden { // a claim that no caller was told of
			s.hidden, s.phantoms = true, out.phantoms
		}
		return s, ok
	}
	out.hidden = out.hidden || s.hidden // perhaps in another lane
	for i, h := range all {
		if !l.lanes.inTheWay(p, h.lane) {
			continue
		}
		if p.Outcome == Unknown && !h.shaky {
			out.since = max(out.since, h.until)
		}
		all[i].hold = hold{newest: h.newest}
	}
	if p.lane >= 0 {
		all = all.with(p.lane, out.hold)
	}
	gone := in.waiting.without(out.waiting)
	out.waiting = s.waiting.without(gone)
	for _, r := range gone.ranks() {
		out.facets = out.facets.put(r, 0)
	}
	return out.heldBy(l.lanes, all), true
}

// dropInLanes is the drop or move of an outsider: messages were removed, or passed to other lanes.
func (s state) dropInLanes(l Law, p *step, all hands) (state, bool) {
	if p.Outcome == Unknown && s.ended {
		return s, true
	}
	if !s.waiting.holds(p.messages) {
		return s, false
	}
	in := s
	for i := range all {
		if in.hold = all[i].hold; in.held.and(p.messages) != "" {
			if !in.lapsed(p) && !p.Force {
				return s, false
			}
			all[i].hold = in.unheld().hold
		}
		all[i].shaky = all[i].shaky || p.Force && all[i].token != 0
		if p.Kind == Drop {
			all[i].delay = 0
		}
	}
	kind := p.next
	if p.Kind == Drop {
		s.waiting, kind = s.waiting.without(p.messages), 0
	}
	for _, r := range p.messages.ranks() {
		s.facets = s.facets.put(r, kind)
	}
	return s.heldBy(l.lanes, all), true
}

// movers are the operations of a history that may pass a message from lane to lane, or let go of one that was held by
// itself.
func movers(ops []*Operation) []*Operation {
	var all []*Operation
	for _, o := range ops {
		alone := o.Hold != (layer.ID{}) && (o.Kind == Nack || o.Kind == Release)
		if (o.Kind == Advance || o.Kind == Move || alone) && (o.Outcome == Done || o.Outcome == Unknown) {
			all = append(all, o)
		}
	}
	return all
}

// settledIn reports whether a message stayed in its lane while an operation ran: no call moved it, and none ended its
// hold. A caller that knew of the message then also knew its lane.
func settledIn(movers []*Operation, o *Operation, id layer.ID) bool {
	return !slices.ContainsFunc(movers, func(a *Operation) bool {
		if a.Call > o.Return || a.Outcome != Unknown && a.Return < o.Call {
			return false
		}
		return a.Hold == id || a.All && a.Hold == (layer.ID{}) ||
			slices.ContainsFunc(a.Messages, func(m Message) bool { return m.ID == id })
	})
}
