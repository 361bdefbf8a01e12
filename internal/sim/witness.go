package sim

import (
	"slices"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The checks of a call's answer against the state at the moment of its commit.

// stateAt is the state of a group from a record on.
type stateAt struct {
	r     *record
	value string
	under *lockState // the claim that lasted then, if there was one
}

// voidAt is a step of a purge, of a group, or of the queue if that is "".
type voidAt struct {
	r     *record
	group string
}

// setState notes what the record under replay makes of the state of a group.
func (m *model) setState(rest tuple.Tuple, value []byte) {
	group, _ := rest[0].(string)
	s := stateAt{r: m.r, value: string(value)}
	if l := m.group(group).lock; l.is("claim") && m.lasting(l).endMS > m.r.nowMS {
		s.under = l
	}
	m.stateLog[group] = append(m.stateLog[group], s)
}

// mayHaveHad reports whether a group had a state at any moment between a claim and the end of the call that returned
// it.
func (m *model) mayHaveHad(group, state string, c *claimed, o *op) bool {
	if state == c.state {
		return true
	}
	return slices.ContainsFunc(m.stateLog[group], func(s stateAt) bool {
		return s.value == state && s.r.order > c.r.order && s.r.from <= o.end
	})
}

// compareOverrides: a call without the claim does not set the state of a held group, unless it has Force.
func (m *model) compareOverrides() {
	for _, o := range m.w.ops {
		if !o.anyHolder || o.override {
			continue
		}
		for _, s := range m.stateLog[o.group] {
			if s.value == string(o.state) && s.under != nil {
				m.w.violation("%s: the state %s was set while claim %d of %q lasted", o, o.state, s.under.token, o.group)
			}
		}
	}
}

// compareRefused: a message was refused as a duplicate in an enqueue that accepted another one. When that enqueue
// committed, the earlier message was remembered: it was still there, or in its window, and was not purged since.
func (m *model) compareRefused() {
	for _, o := range m.w.ops {
		if o.outcome != done {
			continue
		}
		var r *record
		for i, id := range o.sent {
			if !o.duplicate[i] {
				r = m.entered[id]
			}
		}
		if r == nil {
			continue
		}
		for i, id := range o.sent {
			if o.duplicate[i] && m.entered[id] != nil && !m.movedIn[id] && !m.moved[id] && m.goneBefore(id, r) && !m.inWindow(id, r) {
				m.w.violation("G3: %s is a duplicate of %s, which was gone when %s was accepted: %s", o.bodies[i], id, o.bodies, o)
			}
		}
	}
}

// goneBefore reports whether an item had left the queue, and was no dead letter, before a record.
func (m *model) goneBefore(id layer.ID, r *record) bool {
	if d := m.discarded[id]; d != nil && d.order < r.order {
		return true
	}
	f := m.finished[id]
	return len(f) > 0 && f[0].r.order < r.order
}

// inWindow reports whether a message was remembered by its window at a record, and had not been purged.
func (m *model) inWindow(id layer.ID, r *record) bool {
	if m.w.knobs.config.DedupForPending {
		return false
	}
	return !slices.ContainsFunc(m.voids, func(v voidAt) bool {
		return v.r.order < r.order && m.entered[id].rv < v.r.rv && (v.group == "" || v.group == id.Group)
	})
}

// remembers holds the entry of a dedup id to the message that has left it.
func (m *model) remembers(rest tuple.Tuple, value []byte) {
	t, err := tuple.Unpack(value)
	if err != nil || len(t) < 4 || len(rest) < 2 {
		m.violation("dedup entry %v: %v, %v", rest, t, err)
		return
	}
	id := idOf(t)
	dedupID, _ := rest[len(rest)-1].(string)
	if was := m.dedup[m.dedupKey(id.Group, dedupID)].id; was != id {
		m.violation("G3: the dedup id %q is that of %s, and is taken for that of %s", dedupID, was, id)
	}
}

// awaited checks invariant I1 for a group without a claim and without a hint: a timer leads to it when its head is due.
func (m *model) awaited(group string, g *groupState, timers map[int64]string) {
	if len(timers) == 0 || m.w.paced() {
		return // see led; or it may wait for its rate
	}
	var head *layer.ID
	for id := range g.items {
		if head == nil || before(id, *head) {
			head = &id
		}
	}
	if m.sinceTimers(group, *head, timers) {
		return
	}
	first := int64(-1)
	for due := range timers {
		if first < 0 || due < first {
			first = due
		}
	}
	nowMS := m.r.nowMS
	// The timer may be of a head that has left with another lane's claim, and so was due. The record may have been sent
	// long before it was applied.
	if m.w.knobs.plan != nil || m.w.knobs.unordered || m.r.from != m.r.step {
		nowMS = m.latestMS + m.w.fastest().Milliseconds() + rounding
	}
	if due := g.items[*head].dueMS; first > due && first > nowMS {
		m.mistimed("I1: %q has %s, due at %d, and nothing leads to it before %d", group, head, due, first)
	}
}

// paced reports whether groups may have waited for their rates.
func (w *world) paced() bool {
	return w.knobs.config.MaxRate.Count > 0 || w.knobs.calmRate.Count > 0 ||
		slices.ContainsFunc(w.ops, func(o *op) bool { return o.rates })
}

// mostLate is how long a transaction may have read the clock before it commits, in ms.
const mostLate = 6_000

// grantedTo holds a grant to a requester that may live, by the request that it rewrites: a handle may have another,
// older one, whose registration landed late.
func (m *model) grantedTo(l *lockState, group string) {
	for _, wr := range m.r.writes {
		name, rest := m.keyOf(wr.key)
		if name != "request" || wr.kind != wrote {
			continue
		}
		random, _ := rest[1].(uuid.UUID)
		t, err := tuple.Unpack(wr.value)
		if random.String() != l.owner || err != nil || len(t) != 3 {
			continue
		}
		if deadline, _ := t[2].(int64); deadline+mostLate < m.r.nowMS {
			m.mistimed("%q is granted to %s, whose request ended %d ms before", group, l.owner, m.r.nowMS-deadline)
		}
		return
	}
	m.violation("%q is granted to %s, and no request is rewritten", group, l.owner)
}

// claimedMS returns when the first claim of a call was made, by a right clock.
func (m *model) claimedMS(o *op) int64 {
	first := o.beginAt.UnixMilli()
	for _, c := range o.claims {
		if was, ok := m.claims[claimKey{claimLane(c), c.Token}]; ok {
			first = min(first, was.r.nowMS-m.w.skewOf(was.r.who).Milliseconds())
		}
	}
	return first
}

// compareTwins: all receives of one attempt are given the claims of one transaction, and each those that are left of
// them.
func (m *model) compareTwins() {
	given := make(map[string][]*op)
	for _, o := range m.w.ops {
		if o.attemptID == "" || !o.over || o.outcome != done || len(o.claims) == 0 {
			continue
		}
		for _, p := range given[o.attemptID] {
			if max(o.endAt.UnixMilli(), p.endAt.UnixMilli())-min(m.claimedMS(o), m.claimedMS(p)) > repeatLife.Milliseconds() {
				continue
			}
			few, many := o, p
			if len(few.claims) > len(many.claims) {
				few, many = many, few
			}
			of := make(map[claimKey]bool)
			for _, c := range many.claims {
				of[claimKey{claimLane(c), c.Token}] = true
			}
			for _, c := range few.claims {
				if !of[claimKey{claimLane(c), c.Token}] {
					m.w.violation("%s was given claim %d of %q, and %s was not", few, c.Token, c.Group, many)
				}
			}
		}
		given[o.attemptID] = append(given[o.attemptID], o)
	}
}

// hinted holds the hint that an end of a claim leaves to the item that is first then: it is of none that the claim had
// and that went with it. An item past retention that a receive in the same transaction drops may have been the first.
func (m *model) hinted(name string, rest tuple.Tuple, ended map[string]*lockState, gone map[layer.ID]bool) {
	index, _ := rest[len(rest)-2].(int64)
	group := m.ofKey(name, rest)
	if name == "open" {
		gone = m.lanes.left[group]
	}
	if ended[group] == nil || index == m.r.rv {
		return // in a queue whose groups take turns that is its place, and a batch's indexes run ahead of versions
	}
	of := false
	for id := range gone {
		of = of || ended[group].has(id) && id.Group == groupOfLane(group) && id.Index == index
	}
	for id := range m.entered {
		// Another of the same index is first, or was at the read version, and has left since or goes with this.
		of = of && (id.Group != groupOfLane(group) || id.Index != index || ended[group].has(id) && gone[id])
	}
	if of && !slices.ContainsFunc(m.w.ops, func(o *op) bool { return o.sweeping && o.maybeAt(m.r) }) {
		m.violation("I1: %q is left under the age of an item that goes with this", group)
	}
}
