package crash

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"fdbfifo/layer"
)

// place is where a message may be: a set.
type place uint8

const (
	absent   place = 1 << iota // never enqueued
	waiting                    // in its group
	dead                       // a dead letter
	finished                   // acked; in the archive if there is one
	removed                    // purged
)

var placeNames = []string{"absent", "waiting", "dead", "finished", "removed"}

func (p place) String() string {
	var names []string
	for i, name := range placeNames {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// item is what the model knows of a message.
type item struct {
	message
	id      layer.ID // zero if no child was told
	at      place
	touched int // the last event that changed at
	effect  effect
}

// effect is whether there must be a row of the worker's own.
type effect uint8

const (
	noEffect  effect = iota
	anEffect         // acks that write one are under way, and nothing else can have finished the item
	mayEffect        // such an ack is under way, and another one may have finished the item without an effect
	theEffect
)

// operation is one that has begun.
type operation struct {
	event
	begun   int
	sure    []int          // of a redrive, those that were dead, of a purge, those that were waiting, for certain
	fresh   map[int]bool   // of a resend: those that were absent
	adds    map[int]bool   // of an ack: those of which nothing else said that they may be finished
	floors  map[string]key // the greatest key of each group that was acknowledged before
	touched map[int]int    // when this operation changed each item's place
}

// holding is a claim of a group.
type holding struct {
	group string
	token int64
}

type key struct {
	index  int64
	random [16]byte
}

func keyOf(id layer.ID) key { return key{id.Index, id.Random} }

func (k key) less(o key) bool {
	if k.index != o.index {
		return k.index < o.index
	}
	return bytes.Compare(k.random[:], o.random[:]) < 0
}

// model holds where each message may be, by the answers that the children got. Operations overlap. So the answer of an
// operation is certain for a message only if no other operation touched the message between its begin and its end.
type model struct {
	now      int // counts events
	items    map[int]*item
	byGroup  map[string][]*item
	open     map[int]*operation         // begun, by the child's number
	tops     map[string]key             // the greatest acknowledged key of each group
	tokens   map[string]int64           // the greatest that a child was told
	told     map[int64]bool             // tokens
	begun    map[holding]int64          // by the claims that a child was told of: when their receive began, in µs
	states   map[string]map[string]bool // the possible states of each group; "" = none
	stateAt  map[string]int             // when that last changed
	leases   map[int64]bool             // what the configured lease may be, in ms
	archive  bool
	problems []string
	history  history

	Acknowledged map[string]int
}

func newModel(archive bool) *model {
	m := &model{
		items: make(map[int]*item), byGroup: make(map[string][]*item), open: make(map[int]*operation),
		tops: make(map[string]key), tokens: make(map[string]int64), told: make(map[int64]bool),
		begun:  make(map[holding]int64),
		states: make(map[string]map[string]bool), stateAt: make(map[string]int),
		leases: map[int64]bool{leaseBase.Milliseconds(): true}, archive: archive,
		Acknowledged: make(map[string]int), history: newHistory(),
	}
	for _, g := range allGroups {
		m.states[g] = map[string]bool{"": true}
	}
	return m
}

func (m *model) problem(format string, args ...any) {
	m.problems = append(m.problems, fmt.Sprintf(format, args...))
}

// wrong is a problem of message n.
func (m *model) wrong(n int, format string, args ...any) {
	m.history.items[n] = true
	m.problem(format, args...)
}

// wrongGroup is a problem of a group.
func (m *model) wrongGroup(group, format string, args ...any) {
	m.history.groups[group] = true
	m.problem(format, args...)
}

// move changes where an item may be, on behalf of an operation.
func (m *model) move(o *operation, it *item, at place) {
	it.at, it.touched = at, m.now
	o.touched[it.N] = m.now
}

// undisturbed reports that no other operation has touched the item since o began.
func (o *operation) undisturbed(it *item) bool {
	return it.touched < o.begun || it.touched == o.touched[it.N]
}

// during reports whether an operation of that kind on that group is under way.
func (m *model) during(kind, group string) bool {
	for _, o := range m.open {
		if o.Kind == kind && (o.Group == group || kind == kindRedrive && o.Group == "") {
			return true
		}
	}
	return false
}

// around is at, and where other operations under way may have brought an item from there.
func (m *model) around(group string, at place) place {
	if at&dead != 0 && m.during(kindRedrive, group) {
		at |= waiting
	}
	if at&waiting != 0 && m.during(kindPurge, group) {
		at |= removed
	}
	return at
}

// see takes in a line of the journal.
func (m *model) see(e event) {
	m.now++
	m.history.see(m.now, e)
	if !e.Done {
		o := &operation{event: e, begun: m.now, touched: make(map[int]int)}
		m.open[e.Op] = o
		m.begin(o)
		return
	}
	switch e.Kind {
	case kindReady, kindServes:
		return
	case kindBroken:
		m.problem("a child gave up: %s", e.Text)
		return
	}
	o := m.open[e.Op]
	delete(m.open, e.Op)
	m.Acknowledged[e.Kind]++
	o.Done, o.Sent, o.Claims, o.Lost = true, e.Sent, e.Claims, e.Lost
	if e.Lost {
		m.lost(o, e.Micros)
	}
	m.end(o)
}

// lost: a child was told at that time that the claim of its ack or nack had ended. Nothing but a forced purge ends a
// claim before its lease, and the lease begins when the receive runs.
func (m *model) lost(o *operation, micros int64) {
	begun, told := m.begun[holding{o.Group, o.Token}]
	if held := micros/1000 - begun/1000; told && !isPurged(o.Group) && held < leaseBase.Milliseconds() {
		m.wrongGroup(o.Group, "G2: the claim of group %q with the token %d was lost %d ms after its receive began, "+
			"and its lease is %s at least", o.Group, o.Token, held, leaseBase)
	}
}

func (m *model) begin(o *operation) {
	switch o.Kind {
	case kindEnqueue, kindResend:
		o.fresh, o.floors = make(map[int]bool), make(map[string]key)
		for _, msg := range o.Msgs {
			it := m.items[msg.N]
			if it == nil {
				it = &item{message: msg, at: absent}
				m.items[msg.N] = it
				m.byGroup[msg.Group] = append(m.byGroup[msg.Group], it)
			}
			o.floors[msg.Group] = m.tops[msg.Group]
			if it.at == absent {
				o.fresh[msg.N] = true
				m.move(o, it, m.around(it.Group, absent|waiting))
			}
		}
	case kindAck, kindAckReceive:
		o.adds = make(map[int]bool)
		for _, n := range o.Items {
			it := m.items[n]
			switch {
			case !o.Effect && it.effect == anEffect:
				it.effect = mayEffect
			case !o.Effect || it.effect != noEffect || it.at == finished: // what is finished gets no effect any more
			case it.at&finished != 0:
				it.effect = mayEffect
			default:
				it.effect = anEffect
			}
			o.adds[n] = it.at&finished == 0
			m.move(o, it, it.at|finished)
		}
		if o.State != "" {
			m.states[o.Group][o.State] = true
			m.stateAt[o.Group] = m.now
		}
	case kindNack:
		if !o.Free && len(o.Items) > 0 {
			it := m.items[o.Items[0]]
			m.move(o, it, m.around(it.Group, it.at|dead))
		}
	case kindRedrive:
		for _, it := range m.items {
			if (o.Group == "" || o.Group == it.Group) && it.at&dead != 0 {
				if it.at == dead {
					o.sure = append(o.sure, it.N)
				}
				m.move(o, it, m.around(it.Group, it.at|waiting))
			}
		}
	case kindPurge:
		for _, it := range m.byGroup[o.Group] {
			if it.at&waiting != 0 {
				if it.at == waiting && o.Force {
					o.sure = append(o.sure, it.N)
				}
				m.move(o, it, it.at|removed)
			}
		}
		m.states[o.Group][""] = true
		m.stateAt[o.Group] = m.now
	case kindConfigure:
		m.leases[o.Lease] = true
	}
}

func (m *model) end(o *operation) {
	switch o.Kind {
	case kindEnqueue, kindResend:
		m.endEnqueue(o)
	case kindReceive:
		m.endReceive(o)
	case kindAck, kindAckReceive:
		m.endAck(o)
		m.endReceive(o)
	case kindNack:
		if o.Lost || o.Free || len(o.Items) == 0 {
			return // what was thought possible stays so
		}
		if it := m.items[o.Items[0]]; o.Reject && o.undisturbed(it) {
			m.move(o, it, m.around(it.Group, dead))
		}
	case kindRedrive, kindPurge:
		to := waiting
		if o.Kind == kindPurge {
			to = removed
		}
		for _, n := range o.sure {
			if it := m.items[n]; o.undisturbed(it) {
				m.move(o, it, m.around(it.Group, to))
			}
		}
		// Others that are told only after this what they did before it must not take it for undone.
		for _, it := range m.items {
			if it.at&to != 0 && it.touched != m.now && (o.Group == it.Group || o.Group == "" && o.Kind == kindRedrive) {
				m.move(o, it, it.at)
			}
		}
	case kindConfigure:
		m.leases = map[int64]bool{o.Lease: true} // no other operation configures
	}
}

func (m *model) endEnqueue(o *operation) {
	if len(o.Sent) != len(o.Msgs) {
		m.problem("an enqueue of %d messages was told of %d", len(o.Msgs), len(o.Sent))
		return
	}
	last := make(map[string]key)
	for i, s := range o.Sent {
		it := m.items[o.Msgs[i].N]
		if s.Duplicate == o.fresh[it.N] {
			m.wrong(it.N, "message %d, dedup id %q, a duplicate: %t; not there before: %t", it.N, it.Dedup,
				s.Duplicate, o.fresh[it.N])
		}
		id, err := layer.ParseID(s.ID)
		if err != nil {
			m.wrong(it.N, "message %d: %v", it.N, err)
			continue
		}
		if it.id != (layer.ID{}) && it.id != id {
			m.wrong(it.N, "message %d is known as %s, and was told to be %s", it.N, it.id, id)
		}
		it.id = id
		if !o.fresh[it.N] {
			continue
		}
		if k := keyOf(id); !o.floors[it.Group].less(k) || !last[it.Group].less(k) {
			m.wrong(it.N, "G1: message %d of group %q, %s, is not behind what was enqueued before", it.N, it.Group, id)
		} else {
			last[it.Group] = k
			if m.tops[it.Group].less(k) {
				m.tops[it.Group] = k
			}
		}
		if o.undisturbed(it) {
			m.move(o, it, m.around(it.Group, waiting))
		} else {
			m.move(o, it, it.at&^absent)
		}
	}
}

// writesEffect reports whether an ack that writes an effect of item n is under way.
func (m *model) writesEffect(n int) bool {
	for _, o := range m.open {
		if o.Effect && slices.Contains(o.Items, n) {
			return true
		}
	}
	return false
}

func (m *model) endAck(o *operation) {
	for _, n := range o.Items {
		it := m.items[n]
		switch {
		case o.Lost:
			// It takes back only what its own begin has added: another ack may have finished the item.
			if o.adds[n] && o.undisturbed(it) {
				m.move(o, it, it.at&^finished)
			}
			if it.effect != theEffect && !m.writesEffect(n) {
				it.effect = noEffect
			}
		default:
			m.move(o, it, finished) // nothing moves what is finished
			if o.Effect {
				it.effect = theEffect
			}
		}
	}
	if o.State != "" && !o.Lost && m.stateAt[o.Group] == o.begun && !m.during(kindPurge, o.Group) {
		m.states[o.Group] = map[string]bool{o.State: true}
		m.stateAt[o.Group] = m.now
	}
}

func (m *model) endReceive(o *operation) {
	for _, c := range o.Claims {
		// A group that is purged by force may have been claimed again before this receive was told.
		if c.Token <= m.tokens[c.Group] && !isPurged(c.Group) {
			m.wrongGroup(c.Group, "G2: the token %d of a claim of group %q is not above %d", c.Token, c.Group,
				m.tokens[c.Group])
		}
		m.tokens[c.Group] = max(m.tokens[c.Group], c.Token)
		m.told[c.Token] = true
		m.begun[holding{c.Group, c.Token}] = o.Micros
		if !m.states[c.Group][c.State] && m.stateAt[c.Group] < o.begun {
			m.wrongGroup(c.Group, "group %q was delivered with the state %q", c.Group, c.State)
		}
		m.endClaim(o, c)
	}
}

func (m *model) endClaim(o *operation, c claim) {
	var last key
	in := make(map[int]bool, len(c.Items))
	for _, d := range c.Items {
		in[d.N] = true
		it := m.items[d.N]
		id, err := layer.ParseID(d.ID)
		if err != nil || it == nil || it.Group != c.Group || id.Group != c.Group {
			m.wrong(d.N, "group %q: delivered %d, %s, which was not enqueued there: %v", c.Group, d.N, d.ID, err)
			continue
		}
		if it.id != (layer.ID{}) && it.id != id {
			m.wrong(it.N, "message %d is known as %s, and was delivered as %s", it.N, it.id, id)
		}
		it.id = id
		if k := keyOf(id); !last.less(k) {
			m.wrong(d.N, "G1: group %q: %s was delivered out of order", c.Group, id)
		} else {
			last = k
		}
		if it.touched >= o.begun && it.touched != o.touched[it.N] {
			continue // it may have moved on
		}
		if it.at&waiting == 0 {
			m.wrong(it.N, "G3: message %d was delivered though it is %s", it.N, it.at)
		}
		m.move(o, it, m.around(it.Group, waiting))
	}
	for _, it := range m.byGroup[c.Group] {
		if it.at == waiting && it.touched < o.begun && !in[it.N] && keyOf(it.id).less(last) {
			m.wrong(it.N, "G1: group %q: message %d, %s, was passed over", c.Group, it.N, it.id)
		}
	}
}
