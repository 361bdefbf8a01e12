package sim

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// longestGrant is the longest that a group may be kept for a request that has not accepted it.
const longestGrant = 5_000 // ms

// invariants is what the model needs to hold every commit to the invariants of the design: a group with items is led
// to, a lock has its timer, a grant its lock and its request, a dead letter was an item.
type invariants struct {
	hints    map[string]map[string]bool  // of each group: keys
	timers   map[string]map[int64]string // of each group: kinds, by when they are due
	grants   map[string]map[string]bool  // of each request, by its random: groups
	requests map[string]int              // keys, by their random: how many there are
	ended    map[string]bool             // the keys of requests that were cleared
}

func newInvariants() *invariants {
	return &invariants{
		hints: make(map[string]map[string]bool), timers: make(map[string]map[int64]string),
		grants: make(map[string]map[string]bool), requests: make(map[string]int), ended: make(map[string]bool),
	}
}

func inner[V any](m map[string]map[string]V, k string) map[string]V {
	if m[k] == nil {
		m[k] = make(map[string]V)
	}
	return m[k]
}

// begin looks at what a record writes before the model's state has it.
func (m *model) begin(r *record, after map[string][]byte) {
	for _, w := range r.writes {
		name, rest := m.keyOf(w.key)
		old := m.db[string(w.key)]
		switch {
		case name == "dead" && w.kind == cleared && old == nil:
			m.violation("G3: the dead letter %s is taken away twice", idOf(rest))
		case name == "dedup" && w.kind == cleared && old != nil:
			m.forget(rest, old)
		case name == "request":
			m.requestSound(w, rest, old)
		}
	}
	m.beginLanes(after)
	i := m.invariants
	for k, v := range after {
		name, rest := m.keyOf([]byte(k))
		there := m.db[k] != nil
		switch name {
		case "ready", "open":
			set(inner(i.hints, m.ofKey(name, rest)), k, v != nil, true)
		case "timer", "due":
			if isBeatTimer(rest) && name == "timer" {
				continue
			}
			due, group := m.dueAt(name, rest), m.ofKey(name, rest)
			if i.timers[group] == nil {
				i.timers[group] = make(map[int64]string)
			}
			set(i.timers[group], due, v != nil, timerKind(v))
		case "grant":
			random, _ := rest[0].(uuid.UUID)
			set(inner(i.grants, random.String()), m.ofKey(name, rest), v != nil, true)
		case "request":
			random, _ := rest[1].(uuid.UUID)
			switch {
			case v != nil && !there:
				i.requests[random.String()]++
				delete(i.ended, k)
			case v == nil && there:
				i.requests[random.String()]--
				i.ended[k] = true
			}
		}
	}
}

// forget holds the sweep of a dedup entry to its time, by whoever's clock.
func (m *model) forget(rest tuple.Tuple, old []byte) {
	t, err := tuple.Unpack(old)
	if err != nil || len(t) < 4 || len(rest) < 2 {
		m.violation("dedup entry %v: %v, %v", rest, t, err)
		return
	}
	until, _ := t[3].(int64)
	id := idOf(t)
	dedupID, _ := rest[len(rest)-1].(string)
	key := m.dedupKey(id.Group, dedupID)
	early := until > m.r.nowMS-2*maxSkew.Milliseconds() || until == 0 && m.isThere(id)
	if m.w.knobs.clocks {
		early = m.earlyDedup(m.dedup[key].at) > 0
	}
	if early {
		m.violation("the dedup entry %v of %s is swept, which lasts until %d", rest, id, until)
	}
	m.w.mark("dedup id swept")
	delete(m.dedup, key)
}

func set[K comparable, V any](m map[K]V, k K, there bool, v V) {
	if there {
		m[k] = v
	} else {
		delete(m, k)
	}
}

func timerKind(value []byte) string {
	t, err := tuple.Unpack(value)
	if err != nil || len(t) == 0 {
		return ""
	}
	kind, _ := t[0].(string)
	return kind
}

// requestSound checks one write of a request. A request that is gone is not rewritten, and only its handle clears it
// before its deadline.
func (m *model) requestSound(w write, rest tuple.Tuple, old []byte) {
	index, _ := rest[0].(int64)
	random, _ := rest[1].(uuid.UUID)
	switch {
	case w.kind == wrote && m.invariants.ended[string(w.key)] && (m.requests[random.String()] != m.r.who || index != m.r.rv):
		// Other than by its registration, which conflicts with nothing and may land late.
		m.violation("the request %s comes back", random)
	case w.kind == cleared && old != nil && m.requests[random.String()] != m.r.who:
		t, err := tuple.Unpack(old)
		if err != nil || len(t) < 3 {
			m.violation("request %s: %v", random, err)
			return
		}
		if deadline, _ := t[2].(int64); deadline > m.r.nowMS {
			m.mistimed("the request %s is swept %d ms before its deadline", random, deadline-m.r.nowMS)
		}
	}
}

// end looks at the groups that a record has changed, in the state that it leaves.
func (m *model) end(after map[string][]byte) {
	touched := make(map[string]bool)
	for k := range after {
		name, rest := m.keyOf([]byte(k))
		switch name {
		case "item":
			group, _ := rest[0].(string)
			touched[group] = true
		case "lock", "ready", "open", "timer", "due", "grant", "kept", "lane":
			if name == "timer" && isBeatTimer(rest) {
				continue
			}
			touched[m.ofKey(name, rest)] = true
		}
		if name == "request" {
			random, _ := rest[1].(uuid.UUID)
			m.requested(random.String())
		}
		if name == "dedup" && after[k] != nil {
			m.remembers(rest, after[k])
		}
	}
	for _, group := range slices.Sorted(maps.Keys(touched)) {
		m.led(group)
	}
	for k := range after {
		if name, rest := m.keyOf([]byte(k)); name == "grant" && after[k] != nil {
			random, _ := rest[0].(uuid.UUID)
			group := m.ofKey(name, rest)
			if l := m.group(group).lock; !l.is("grant") || l.owner != random.String() {
				m.violation("a grant of %q to %s without its lock", group, random)
			}
			m.requested(random.String())
		}
	}
}

// led holds a group to invariant I1: what can be delivered is led to, and so is the end of a lock.
func (m *model) led(group string) {
	g, timers := m.group(group), m.invariants.timers[group]
	if g.lock == nil && m.isLedOtherwise(group) {
		return
	}
	switch l := g.lock; {
	case l.is("pause"), l.is("halt"):
	case l != nil && l.beat != "":
		m.heldByBeat(group, l)
	case l != nil && timers[l.endMS] != l.kind:
		m.violation("I1: %q has a %s until %d and no timer of it: %v", group, l.kind, l.endMS, timers)
	case l == nil && len(g.items) > 0 && len(m.invariants.hints[group]) == 0 && !slices.Contains(slices.Collect(maps.Values(timers)), "head"):
		m.violation("I1: %q has %d items, and nothing leads to it", group, len(g.items))
	case l == nil && len(g.items) > 0 && len(m.invariants.hints[group]) == 0:
		m.awaited(group, g, timers)
	}
}

// requested holds grants to their requests.
func (m *model) requested(random string) {
	if groups := m.invariants.grants[random]; len(groups) > 0 && m.invariants.requests[random] == 0 {
		m.violation("grants of %q without the request %s", slices.Sorted(maps.Keys(groups)), random)
	}
}

// unmarked checks that the end of a pause or a halt has a cause: a call that resumed the group.
func (m *model) unmarked(group string, old *lockState) {
	for _, o := range m.w.ops {
		resumed := strings.HasPrefix(o.kind, "resume-group") && o.group == groupOfLane(group)
		if o.maybeAt(m.r) && (resumed || o.kind == "heal") {
			return
		}
	}
	m.violation("%q was %sd, and nobody resumed it", group, old.marked)
}
