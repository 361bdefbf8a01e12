package sim

import (
	"maps"
	"slices"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The lanes of the model. A lane has a state like a group: its items, which are those of its group that match it, its
// lock, and its greatest token. So each lane has the laws of a group: order, growing tokens, and a key that leads to
// it. There are also laws between lanes. Claims that could share an item exclude each other, a hint that is put aside
// is under an existing lock, and the keys of lanes are those of the items' facets.

// laneIndex is the lanes of the model.
type laneIndex struct {
	of     map[string]map[string]bool   // by group: its lanes that have ever been named, without the whole group
	kept   map[string]map[string]bool   // by lane: the keys of its hints that are put aside
	under  map[string]map[string]bool   // by lane: the keys of the hints that are put aside under its lock
	left   map[string]map[layer.ID]bool // by lane: the items that the record under replay takes out of it
	item   map[string]layer.ID          // by lane: the item of a hold
	moved  []change
	passed map[layer.ID]int64 // advanced by the record under replay, out of the claim of the token
	holds  []*holdSpan        // of items that were held by themselves, in the order of their beginning
}

// change is one rewriting of an item by which its facets changed, or that its holder made.
type change struct {
	r       *record
	id      layer.ID
	headers map[string]string
	holder  bool
	staged  bool  // by the holder's worker
	token   int64 // of the holder's claim
}

func newLaneIndex() laneIndex {
	return laneIndex{
		of: make(map[string]map[string]bool), kept: make(map[string]map[string]bool),
		under: make(map[string]map[string]bool), item: make(map[string]layer.ID),
	}
}

// laneOf reads a lane: a group, and in a queue with facets the view and the values, if any, as in the key of a lock.
func (m *model) laneOf(t tuple.Tuple) string {
	group, _ := t[0].(string)
	lane, _ := m.viewed(group, t[1:])
	return lane
}

// viewed reads the view and the values of a lane of a group, and returns how many elements these are.
func (m *model) viewed(group string, t tuple.Tuple) (lane string, n int) {
	p := m.w.knobs.plan
	switch {
	case m.w.knobs.unordered && len(t) > 0:
		return m.plainView(group, t)
	case p == nil || len(t) == 0:
		return group, 0
	}
	view, ok := t[0].(int64)
	if !ok || view < 1 || int(view) > len(p.views) || len(t) <= len(p.views[view-1]) {
		m.violation("no view of %q: %v", group, t)
		return group, 0
	}
	where := layer.Template{}
	for i, name := range p.views[view-1] {
		where[name], _ = t[1+i].(string)
	}
	lane = laneText(group, where)
	m.named(group, lane)
	return lane, 1 + len(p.views[view-1])
}

func (m *model) named(group, lane string) {
	if lane != group {
		inner(m.lanes.of, group)[lane] = true
	}
}

// ofKey returns the lane of a key of the modelled names, except items; "" = of none.
func (m *model) ofKey(name string, rest tuple.Tuple) string {
	switch name {
	case "lock":
		return m.laneOf(rest)
	case "hold":
		return m.holdNamed(idOf(rest))
	case "ready":
		group, _ := rest[2].(string)
		return group
	case "open":
		group, _ := rest[len(rest)-1].(string)
		lane, _ := m.viewed(group, append(tuple.Tuple{rest[0]}, rest[2:]...))
		return lane
	case "timer":
		if m.w.knobs.inTurn && len(rest) == 4 {
			return m.holdNamed(idOf(rest[1:]))
		}
		group, _ := rest[1].(string)
		return group
	case "due":
		if m.w.knobs.unordered && len(rest) == 5 {
			return m.holdNamed(idOf(rest[2:]))
		}
		group, _ := rest[len(rest)-1].(string)
		lane, _ := m.viewed(group, rest)
		return lane
	case "grant":
		return m.laneOf(rest[1:])
	case "kept":
		group, _ := rest[0].(string)
		of, _ := rest[2].(tuple.Tuple)
		lane, _ := m.viewed(group, of)
		return lane
	case "lane":
		group, _ := rest[0].(string)
		if m.w.knobs.unordered {
			return freeLaneOf(group)
		}
		lane, _ := m.viewed(group, rest[1:])
		return lane
	}
	return ""
}

// dueAt is when a timer of either name is due.
func (m *model) dueAt(name string, rest tuple.Tuple) int64 {
	at := 0
	switch {
	case name == "due" && m.w.knobs.unordered:
		at = 1
	case name == "due":
		at = len(rest) - 2
	}
	due, _ := rest[at].(int64)
	return due
}

// holderOf is the lane whose claim has an item, and its lock; the whole group and its lock if there is no such claim.
func (m *model) holderOf(id layer.ID) (lane string, l *lockState) {
	g := m.group(id.Group)
	if g.lock.is("claim") && g.lock.has(id) {
		return id.Group, g.lock
	}
	for lane := range m.lanes.of[id.Group] {
		if l := m.group(lane).lock; l.is("claim") && l.has(id) {
			return lane, l
		}
	}
	return id.Group, g.lock
}

// held are the locks of a group that last, by their lanes.
func (m *model) held(group string) (lanes []string) {
	for _, lane := range append(slices.Sorted(maps.Keys(m.lanes.of[group])), group) {
		if l := m.lasting(m.group(lane).lock); l != nil && l.endMS > m.r.nowMS {
			lanes = append(lanes, lane)
		}
	}
	return lanes
}

// excluded returns a lane that is held, or marked, or waits, and intersects another one of its group; "" = none.
func (m *model) excluded(held []string, lane string) string {
	for _, other := range held {
		if other != lane && meet(other, lane) {
			return other
		}
	}
	return ""
}

// settles moves an item from the lanes that it was in to those that it is in. nil = it was, or is, not there.
func (m *model) settles(id layer.ID, was, is *stored) {
	p := m.w.knobs.plan
	if m.w.knobs.unordered {
		m.settlesPlain(id, was, is)
	}
	if p == nil {
		return
	}
	var old, now []string
	if was != nil {
		old = p.lanesOf(id.Group, was.headers)
	}
	if is != nil {
		now = p.lanesOf(id.Group, is.headers)
	}
	for _, lane := range old {
		if !slices.Contains(now, lane) {
			delete(m.group(lane).items, id)
			if m.lanes.left[lane] == nil {
				m.lanes.left[lane] = make(map[layer.ID]bool)
			}
			m.lanes.left[lane][id] = true
		}
	}
	for _, lane := range now {
		m.named(id.Group, lane)
		s := *is
		if slices.Contains(old, lane) {
			there := m.group(lane).items[id]
			s.version, s.back = there.version, there.back
		} else if was != nil {
			s.version, s.back = m.r.version, false // it joins as a new item does, wherever it lands
		}
		m.group(lane).items[id] = s
	}
}

// overIn are the lanes in which others that the record's transaction must have seen stand before an item.
func (m *model) overIn(id layer.ID, s stored) map[string]bool {
	over := make(map[string]bool)
	if m.w.knobs.unordered {
		free := freeLaneOf(id.Group)
		over[free] = m.over(m.group(free), id)
	}
	p := m.w.knobs.plan
	if p == nil {
		return over
	}
	for _, lane := range p.lanesOf(id.Group, s.headers) {
		over[lane] = m.over(m.group(lane), id)
	}
	return over
}

// passes holds the rewriting of an item to its causes: its holder has advanced it, or an operator has edited it.
func (m *model) passes(id layer.ID, was, is *stored) {
	if m.w.knobs.plan == nil || was.dueMS != is.dueMS { // a reschedule, or the end of a delay
		return
	}
	lane, l := m.holderOf(id)
	holder, staged := false, false
	for _, o := range m.w.ops {
		// An advance of unknown outcome may land later, but it is no edit of the body.
		if !o.maybeAt(m.r) || o.who != m.r.who || !agrees(o.next, is.headers) {
			continue
		}
		switch {
		case o.is("advance") && slices.Contains(o.advanced, id):
			holder = l.is("claim") && l.has(id) && lane == o.group && l.token == o.token
		case o.kind == "handle-stage" && o.staged == id && o.next != nil:
			holder = l.is("claim") && l.has(id)
			staged = holder
		}
		if holder {
			break
		}
	}
	if holder {
		m.lanes.passed[id] = l.token
	}
	if holder || sortedFacets(was.headers, m.w.knobs.plan) != sortedFacets(is.headers, m.w.knobs.plan) {
		m.lanes.moved = append(m.lanes.moved, change{m.r, id, is.headers, holder, staged, m.lanes.passed[id]})
	}
}

// keeper is the lane under whose lock a hint is put aside, by the hint's key.
func (m *model) keeper(rest tuple.Tuple) string {
	group, _ := rest[0].(string)
	by, _ := rest[1].(tuple.Tuple)
	holder, _ := m.viewed(group, by)
	return holder
}

// beginLanes follows the hints that are put aside.
func (m *model) beginLanes(after map[string][]byte) {
	for k, v := range after {
		name, rest := m.keyOf([]byte(k))
		if name != "kept" {
			continue
		}
		holder, lane := m.keeper(rest), m.ofKey(name, rest)
		set(inner(m.lanes.kept, lane), k, v != nil, true)
		set(inner(m.lanes.under, holder), k, v != nil, true)
		if v != nil {
			m.w.mark("hint put aside")
			if !meet(holder, lane) || holder == lane {
				m.violation("a hint of %q is put aside under the lock of %q", lane, holder)
			}
		} else if m.db[k] != nil {
			m.w.mark("hint put back")
		}
	}
}

// endLanes looks at the lanes of the groups that a record has changed, in the state that it leaves.
func (m *model) endLanes(after map[string][]byte) {
	p := m.w.knobs.plan
	if p == nil {
		return
	}
	groups := make(map[string]bool)
	for k, v := range after {
		name, rest := m.keyOf([]byte(k))
		switch name {
		case "lock":
			lane := m.laneOf(rest)
			groups[groupOfLane(lane)] = true
			m.keptUnder(lane)
		case "kept":
			m.keptUnder(m.keeper(rest))
		case "lane":
			lane, n := m.viewed(rest[0].(string), rest[1:])
			id := idOf(tuple.Tuple{rest[0], rest[1+n], rest[2+n]})
			if _, in := m.group(lane).items[id]; in != (v != nil) {
				m.violation("the key of %s in %q: %t, and it is in it: %t", id, lane, v != nil, in)
			}
		case "item":
			m.inLanes(idOf(rest))
		}
	}
	for group := range groups {
		m.apart(group)
	}
}

// inLanes holds an item to the keys of its lanes.
func (m *model) inLanes(id layer.ID) {
	s, there := m.group(id.Group).items[id]
	if !there {
		return
	}
	p := m.w.knobs.plan
	for i, view := range p.views {
		of := tuple.Tuple{id.Group, int64(i + 1)}
		for _, name := range view {
			of = append(of, s.headers[name])
		}
		if k := keyFor("lane", append(of, id.Index, id.Random)...); m.db[k] == nil {
			m.violation("%s is not in the lane of %s", id, sortedFacets(s.headers, p))
		}
	}
	if lane, l := m.holderOf(id); l.is("claim") && l.has(id) {
		switch {
		case m.lanes.passed[id] == l.token:
			// In another claim the item may be: the receive of the same transaction has got it.
			m.violation("G2: %s was advanced and is still in claim %d of %q", id, l.token, lane)
		case !agrees(whereOfLane(lane), s.headers):
			m.violation("claim %d of %q has %s, which is %s", l.token, lane, id, sortedFacets(s.headers, p))
		}
	}
}

// keptUnder holds the hints that are put aside under a lock to it.
func (m *model) keptUnder(holder string) {
	if n := len(m.lanes.under[holder]); n > 0 && m.group(holder).lock == nil {
		m.violation("I1: %d hints are put aside under the lock of %q, which nobody holds", n, holder)
	}
}

// apart holds the claims and grants of a group to G2: no item could be in two of them.
func (m *model) apart(group string) {
	var claims []string
	for _, lane := range append(slices.Sorted(maps.Keys(m.lanes.of[group])), group) {
		if l := m.group(lane).lock; l.is("claim") || l.is("grant") {
			for _, other := range claims {
				hold := m.lanes.item[other]
				if meet(lane, other) && (!isHoldLane(other) || l.has(hold)) {
					m.violation("G2: %q and %q are held at the same time", other, lane)
				}
			}
			claims = append(claims, lane)
		}
	}
	if len(claims) > 1 {
		m.w.mark("lanes of a group held side by side")
	}
}

// compareLanes: an advance that is done has made its changes, and every change of facets belongs to a call. Each
// delivered item matches the template of its receive.
func (m *model) compareLanes() {
	p := m.w.knobs.plan
	if p == nil {
		return
	}
	mine := make(map[int]bool)
	for _, o := range m.w.ops {
		ids := o.advanced
		switch {
		case o.edits != (layer.ID{}) && o.next != nil:
			ids = []layer.ID{o.edits}
		case o.kind == "handle-stage" && o.next != nil:
			ids = []layer.ID{o.staged}
		}
		for _, id := range ids {
			found := false
			for i, c := range m.lanes.moved {
				if c.id == id && o.maybeAt(c.r) && agrees(o.next, c.headers) {
					mine[i], found = true, true
				}
			}
			// Several actors may have the same claim, by one receive id. The first to advance an item has done so for
			// all, as with an ack. An ack of the item leaves nothing to do. An actor that has returned the items from
			// one on has left the claim to the others, without these items.
			twin := func(c change) bool { return c.id == id && c.holder && c.token == o.token && c.r.step <= o.end }
			acked := func(f finished) bool { return f.under && f.lock.token == o.token && f.r.step <= o.end }
			gaveBack := func(other *op) bool {
				from := other.nack.From
				return from != nil && from.Index <= id.Index && other.outcome != refused &&
					other.token == o.token && other.group == o.group && other.begin < o.end
			}
			found = found || slices.ContainsFunc(m.lanes.moved, twin) || slices.ContainsFunc(m.finished[id], acked) ||
				slices.ContainsFunc(m.w.ops, gaveBack)
			if !found && o.outcome == done && o.is("advance") {
				m.w.violation("%s: %s was not advanced to %s", o, id, o.next)
			}
		}
		for _, c := range o.claims {
			for i := range c.Items {
				if !agrees(c.Where, c.Items[i].Headers) {
					m.w.violation("%s was delivered to %q with %v", c.Items[i].ID, c.Where, c.Items[i].Headers)
				}
			}
		}
		for i := range o.items {
			if !agrees(o.where, o.items[i].Headers) {
				m.w.violation("%s was taken by %q with %v", o.items[i].ID, o.where, o.items[i].Headers)
			}
		}
		if o.item != nil && !agrees(o.where, o.item.Headers) {
			m.w.violation("%s was handled by %q with %v", o.item.ID, o.where, o.item.Headers)
		}
	}
	for i, c := range m.lanes.moved {
		if !mine[i] {
			m.w.violation("%s became %s at step %d by nobody", c.id, sortedFacets(c.headers, p), c.r.step)
		}
		if c.holder {
			m.w.mark("item advanced")
		} else {
			m.w.mark("item edited into other lanes")
		}
	}
}

// wasEdited reports whether an operator may have moved an item from lane to lane.
func (w *world) wasEdited(id layer.ID) bool {
	return slices.ContainsFunc(w.ops, func(o *op) bool { return o.edits == id && o.next != nil })
}

// outstanding reads the items of a claim of a lock: index, random and parts of each, and in a queue with facets the
// values of its facets.
func outstanding(group string, t tuple.Tuple) (ids []layer.ID, ok bool) {
	for len(t) > 0 {
		if len(t) < 3 {
			return ids, false
		}
		index, _ := t[0].(int64)
		random, _ := t[1].(uuid.UUID)
		ids = append(ids, layer.ID{Group: group, Index: index, Random: random})
		for t = t[3:]; len(t) > 0; t = t[1:] {
			if _, facet := t[0].(string); !facet {
				break
			}
		}
	}
	return ids, true
}

// isLedOtherwise reports whether a lane without a claim needs no hint: its hint is put aside, or it is a whole group in
// a queue without receives of whole groups.
func (m *model) isLedOtherwise(lane string) bool {
	p := m.w.knobs.plan
	if m.w.knobs.inTurn && (lane == freeLaneOf(groupOfLane(lane)) || m.headInHand(lane)) {
		return true
	}
	return isHoldLane(lane) || len(m.lanes.kept[lane]) > 0 || p != nil && lane == groupOfLane(lane) && !p.whole
}

// forces reports whether an operation may end the claims of all lanes of a lane's group.
func (o *op) forces(lane string) bool {
	return o.forcing && !o.is("force-release") && o.group == groupOfLane(lane)
}

// lapsing reports whether a claim of a queue with facets has expired. The transaction that ends it may then remove its
// items, and leave its lane with a stale hint.
func (m *model) lapsing(lane string) bool {
	return (m.w.knobs.plan != nil || m.w.knobs.unordered) && m.group(lane).lock.endMS <= m.r.nowMS
}
