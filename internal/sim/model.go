package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// This file reads the queue's keys by their table in the design, with nothing of the layer's code.

// section is the range of the keys with that name.
func section(name string) kv.KeyRange {
	k := tuple.Tuple{queueName, name}.Pack()
	k = append([]byte(queuePrefix), k...)
	return kv.KeyRange{Begin: append(bytes.Clone(k), 0), End: append(bytes.Clone(k), 0xff)}
}

// modelled are the names of the keys that the model knows.
var modelled = []string{"dead", "grant", "item", "lock", "ready", "request", "timer"}

func isModelled(name string) bool { return slices.Contains(modelled, name) }

// keyOf takes a key apart: its name and what follows; "" if it is none of the queue's.
func keyOf(key []byte) (name string, rest tuple.Tuple) {
	tail, ok := bytes.CutPrefix(key, []byte(queuePrefix))
	if !ok {
		return "", nil
	}
	t, err := tuple.Unpack(tail)
	if err != nil || len(t) < 2 {
		return "", nil
	}
	name, _ = t[1].(string)
	return name, t[2:]
}

func idOf(t tuple.Tuple) layer.ID {
	group, _ := t[0].(string)
	index, _ := t[1].(int64)
	random, _ := t[2].(uuid.UUID)
	return layer.ID{Group: group, Index: index, Random: random}
}

func before(a, b layer.ID) bool {
	return cmp.Or(cmp.Compare(a.Index, b.Index), bytes.Compare(a.Random[:], b.Random[:])) < 0
}

// lockState is the value of a lock.
type lockState struct {
	kind  string
	token int64
	owner string
	endMS int64
	out   []layer.ID
	// marked is "pause" or "park" if the lock is such a mark, or a claim that becomes one.
	marked string
}

func lockOf(group string, value []byte) (*lockState, error) {
	t, err := tuple.Unpack(value)
	if err != nil {
		return nil, fmt.Errorf("lock of %q: %w", group, err)
	}
	if len(t) < 5 {
		return nil, fmt.Errorf("lock of %q: %v", group, t)
	}
	l := &lockState{}
	l.token, _ = t[0].(int64)
	l.owner, _ = t[1].(string)
	l.endMS, _ = t[2].(int64)
	out, _ := t[3].(tuple.Tuple)
	l.kind, _ = t[4].(string)
	if len(t) > 5 {
		note, _ := t[5].(tuple.Tuple)
		if len(note) > 0 {
			l.marked, _ = note[0].(string)
		}
	}
	for i := 0; i+2 < len(out); i += 3 {
		index, _ := out[i].(int64)
		random, _ := out[i+1].(uuid.UUID)
		l.out = append(l.out, layer.ID{Group: group, Index: index, Random: random})
	}
	return l, nil
}

func (l *lockState) is(kind string) bool { return l != nil && l.kind == kind }

func (l *lockState) has(id layer.ID) bool { return l != nil && slices.Contains(l.out, id) }

// stored is an item of the model.
type stored struct {
	value   []byte
	version int64 // of the commit that put it there; 0 = a redrive, which no later commit may have missed
}

// groupState is a group of the model.
type groupState struct {
	items map[layer.ID]stored
	lock  *lockState
	token int64 // the greatest so far
	// newest is, by the version of the commits, the greatest index so far.
	newest []indexAt
}

type indexAt struct{ version, index int64 }

// newestAt is the greatest index that had been committed at a version.
func (g *groupState) newestAt(version int64) int64 {
	i, _ := slices.BinarySearchFunc(g.newest, version+1, func(a indexAt, v int64) int { return cmp.Compare(a.version, v) })
	if i == 0 {
		return -1
	}
	return g.newest[i-1].index
}

// finished says how an item left the queue.
type finished struct {
	r     *record
	lock  *lockState // of its group, before
	under bool       // it was outstanding under that lock, a claim
	over  bool       // others of its group stood before it, and stayed
}

// over reports whether others that the record's transaction must have seen stand before an item. Those of the same
// record are gone by then: it is followed in the order of the keys.
func (m *model) over(g *groupState, id layer.ID) bool {
	for other, s := range g.items {
		if s.version <= m.r.rv && before(other, id) {
			return true
		}
	}
	return false
}

// claimed is a claim as it was written.
type claimed struct {
	r    *record
	out  []layer.ID
	ends int // the step of the commit that ended it; 0 = none
}

type claimKey struct {
	group string
	token int64
}

// model is the queue after some records.
type model struct {
	w        *world
	r        *record // under replay
	db       map[string][]byte
	groups   map[string]*groupState
	requests map[string]int // by their random: the handle
	values   map[layer.ID][]byte
	entered  map[layer.ID]*record
	finished map[layer.ID][]finished
	claims   map[claimKey]claimed
	*invariants
}

func newModel(w *world) *model {
	return &model{
		w: w, db: make(map[string][]byte), groups: make(map[string]*groupState), requests: make(map[string]int),
		values: make(map[layer.ID][]byte), entered: make(map[layer.ID]*record), finished: make(map[layer.ID][]finished),
		claims: make(map[claimKey]claimed), invariants: newInvariants(),
	}
}

func (m *model) group(name string) *groupState {
	g := m.groups[name]
	if g == nil {
		g = &groupState{items: make(map[layer.ID]stored)}
		m.groups[name] = g
	}
	return g
}

func (m *model) violation(format string, args ...any) {
	m.w.violation("commit %d (step %d, handle %d, transaction %d): %s", m.r.order, m.r.step, m.r.who, m.r.tx, fmt.Sprintf(format, args...))
}

// apply replays a record: it follows the locks write by write, and the items and dead letters by what they come to.
func (m *model) apply(r *record) {
	m.r = r
	after := make(map[string][]byte)     // nil = cleared
	grantsTaken := make(map[string]bool) // groups
	var lockWrites []write
	for _, w := range r.writes {
		if w.kind == clearedRange {
			for k := range m.db {
				if k >= string(w.key) && k < string(w.value) {
					after[k] = nil
				}
			}
			for k := range after {
				if k >= string(w.key) && k < string(w.value) {
					after[k] = nil
				}
			}
			continue
		}
		name, rest := keyOf(w.key)
		if !isModelled(name) {
			continue
		}
		value := w.value
		if w.kind == wrote && value == nil {
			value = []byte{}
		}
		if w.kind == cleared {
			value = nil
		}
		after[string(w.key)] = value
		switch name {
		case "lock":
			lockWrites = append(lockWrites, w)
		case "grant":
			if w.kind == cleared && len(rest) == 2 {
				group, _ := rest[1].(string)
				grantsTaken[group] = true
			}
		}
	}
	keys := slices.Sorted(maps.Keys(after))
	gone := make(map[layer.ID]bool)
	for _, k := range keys {
		if name, rest := keyOf([]byte(k)); name == "item" && after[k] == nil && m.db[k] != nil {
			gone[idOf(rest)] = true
		}
	}
	// What is there after this record, of what is new or gone.
	for _, k := range keys {
		name, rest := keyOf([]byte(k))
		switch name {
		case "item":
			m.item(k, idOf(rest), after)
		case "request":
			if after[k] != nil {
				random, _ := rest[1].(uuid.UUID)
				m.requests[random.String()] = registrant(m.requests, random.String(), r.who)
			}
		}
	}
	for _, w := range lockWrites {
		_, rest := keyOf(w.key)
		group, _ := rest[0].(string)
		var next *lockState
		if w.kind == wrote {
			var err error
			if next, err = lockOf(group, w.value); err != nil {
				m.violation("%v", err)
			}
		}
		m.lock(group, next, gone, grantsTaken[group])
	}
	m.begin(r, after)
	for k, v := range after {
		if v == nil {
			delete(m.db, k)
		} else {
			m.db[k] = v
		}
	}
	m.end(after)
}

// registrant is who has registered a request first: others rewrite it.
func registrant(known map[string]int, random string, who int) int {
	if first, ok := known[random]; ok {
		return first
	}
	return who
}

// deadKey is the key of the dead letter of an item.
func deadKey(id layer.ID) string {
	return queuePrefix + string(tuple.Tuple{queueName, "dead", id.Group, id.Index, id.Random}.Pack())
}

// item follows one item that the record sets or clears.
func (m *model) item(k string, id layer.ID, after map[string][]byte) {
	g, old, now := m.group(id.Group), m.db[k], after[k]
	dead := deadKey(id)
	deadNow, deadTouched := after[dead]
	switch {
	case now != nil && old != nil: // edited
		s := g.items[id]
		s.value = now
		g.items[id] = s
		m.values[id] = now
	case now != nil:
		version := m.r.version
		if deadTouched && deadNow == nil && m.db[dead] != nil {
			m.w.mark("redriven to its place")
			version = 0
		} else {
			if m.entered[id] != nil {
				m.violation("%s enters a second time", id)
			}
			m.entered[id] = m.r
			if newest := g.newestAt(m.r.rv); id.Index <= newest {
				m.violation("G1: %s comes before index %d, which had been committed before it began", id, newest)
			}
		}
		last := int64(-1)
		if n := len(g.newest); n > 0 {
			last = g.newest[n-1].index
		}
		if id.Index > last {
			g.newest = append(g.newest, indexAt{m.r.version, id.Index})
		} else if last > id.Index {
			m.w.mark("enqueue committed late")
		}
		g.items[id] = stored{now, version}
		m.values[id] = now
	case old != nil:
		delete(g.items, id)
		if deadTouched && deadNow != nil {
			m.w.mark("item parked")
			return
		}
		m.finished[id] = append(m.finished[id], finished{m.r, g.lock, g.lock.is("claim") && g.lock.has(id), m.over(g, id)})
	default:
		// Entered and finished in the same transaction, or cleared though not there.
		return
	}
}

// lock follows one write of a lock.
func (m *model) lock(group string, next *lockState, gone map[layer.ID]bool, grantTaken bool) {
	g := m.group(group)
	old := g.lock
	g.lock = next
	live := old != nil && old.endMS > m.r.nowMS
	if old.is("claim") && (next == nil || next.token != old.token || next.kind != old.kind) {
		m.stop(claimKey{group, old.token})
	}
	if old.is("claim") && (next == nil || next.token != old.token) && live {
		m.ended(group, old, gone)
	}
	if old != nil && old.marked != "" && (next == nil || next.marked == "") {
		m.unmarked(group, old)
	}
	switch {
	case next == nil:
		return
	case next.kind == "park":
		m.w.mark("group parked")
		return
	case next.kind == "pause":
		m.w.mark("group paused")
		return
	case next.kind == "delay":
		m.w.mark("group delayed")
		return
	}
	if old != nil && next.kind == old.kind && next.token == old.token {
		for _, id := range next.out {
			if !old.has(id) {
				m.violation("claim %d of %q now has %s, which it had not", next.token, group, id)
			}
		}
		return
	}
	// A new claim or grant.
	accepted := old.is("grant") && next.is("claim") && grantTaken && m.requests[old.owner] == m.r.who
	switch {
	case accepted:
		m.w.mark("grant accepted")
		if old.endMS <= m.r.nowMS {
			m.w.mark("grant accepted after its end")
		}
	case old == nil:
	case old.is("park"), old.is("pause"):
		m.violation("G2: %q is claimed under token %d though it is %sd", group, next.token, old.kind)
	case live:
		m.violation("G2: %q is claimed under token %d, while %s %d of %s lasts for %d ms",
			group, next.token, old.kind, old.token, old.owner, old.endMS-m.r.nowMS)
	case old.is("claim"):
		m.w.mark("takeover of an expired claim")
	case old.is("grant"):
		m.w.mark("takeover of an expired grant")
	case old.is("delay"):
		m.w.mark("claim after a delay")
	}
	if next.token < g.token || next.token == g.token && !accepted {
		m.violation("G2: token %d of %q does not grow: %d was there", next.token, group, g.token)
	}
	g.token = max(g.token, next.token)
	if next.is("grant") {
		if d := next.endMS - m.r.nowMS; d > longestGrant {
			m.violation("%q is kept for %s for %d ms before that accepts it", group, next.owner, d)
		}
		m.w.mark("grant given")
		return
	}
	m.w.mark("claim")
	m.claim(group, g, next)
}

// claim holds a new claim to G1: it has the first items of its group, as its transaction saw it.
func (m *model) claim(group string, g *groupState, l *lockState) {
	key := claimKey{group, l.token}
	if _, twice := m.claims[key]; twice {
		m.violation("claim %d of %q is there twice", l.token, group)
	}
	m.claims[key] = claimed{r: m.r, out: l.out}
	if len(l.out) == 0 {
		m.violation("claim %d of %q has no items", l.token, group)
		return
	}
	for i, id := range l.out {
		if _, there := g.items[id]; !there {
			m.violation("G3: claim %d of %q has %s, which is not there", l.token, group, id)
		}
		if i > 0 && !before(l.out[i-1], id) {
			m.violation("G1: claim %d of %q is out of order at %s", l.token, group, id)
		}
	}
	last := l.out[len(l.out)-1]
	for id, s := range g.items {
		if s.version <= m.r.rv && before(id, last) && !l.has(id) {
			m.violation("G1: claim %d of %q passes over %s", l.token, group, id)
		}
	}
}

// stop notes when a claim ended.
func (m *model) stop(key claimKey) {
	c := m.claims[key]
	c.ends = m.r.step
	m.claims[key] = c
}

// ended holds the end of a claim whose lease lasts to its causes: its holder, or an operator.
func (m *model) ended(group string, l *lockState, gone map[layer.ID]bool) {
	for _, o := range m.w.ops {
		if o.limited && o.begin <= m.r.step && len(o.claims) == 0 && (o.kind == "receive" || o.kind == "ack-receive") {
			return // what it claimed is given back, as nobody was there to receive it
		}
		if !o.maybeAt(m.r) {
			continue
		}
		if o.group == group && (o.settle && o.token == l.token || o.forcing && !o.spares(l)) {
			return
		}
	}
	m.violation("G2: claim %d of %q, which lasts for %d ms, was ended by nobody", l.token, group, l.endMS-m.r.nowMS)
}

// spares reports whether an operation that may end claims was told that it has ended another.
func (o *op) spares(l *lockState) bool {
	return o.kind == "force-release" && o.outcome == done && o.token != l.token
}

// maybeAt reports whether the operation may have made the record.
func (o *op) maybeAt(r *record) bool {
	switch o.outcome {
	case done:
		return o.begin <= r.step && r.step <= o.end
	case unknown:
		return o.begin <= r.step
	}
	return false
}
