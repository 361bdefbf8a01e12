package sim

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The laws of blame (G7). They hold each commit that counts an attempt for a lease that has expired.
//
//   - The attempt is of the first item of the claim whose lease has expired. The same transaction may have acked items
//     before it.
//   - It is the first of the item by a lease, or the claim is proven: the handle has noted in the lock that it has the
//     claim, in a commit after that of the receive.
//   - A dead letter by such an attempt is of a proven claim of a single item.
//   - Only the claim's own handle notes that it has the claim, or one that a receive is repeated on.
//   - If workers alone handle messages, a lease that counts was one under which a handler was called. Only the first of
//     the item needs no evidence. A process may also die, stand still, or have a slow hook, between its note and the
//     call.

// blame is what the laws of blame know of the attempt records.
type blame struct {
	records map[string]attemptOf  // by their keys
	left    map[string]*lockState // by lane: the claims of which the record under replay has acked a part
	swept   []layer.ID            // of the records that the record under replay clears by ranges
}

// attemptOf is an attempt record.
type attemptOf struct {
	id     layer.ID
	count  int64
	lapsed bool // the last failure was a lease that expired
}

const lapsePrefix = "lease expired, held by "

func newBlame() *blame { return &blame{records: make(map[string]attemptOf)} }

// suspects reports whether an item is suspect: its last failure was a lease that expired.
func (b *blame) suspects(id layer.ID) bool {
	for _, of := range b.records {
		if of.id == id && of.lapsed {
			return true
		}
	}
	return false
}

// blames holds the attempts and dead letters of a record to the laws, before its locks are replayed.
func (m *model) blames(r *record) {
	m.blame.left, m.blame.swept = make(map[string]*lockState), nil
	for _, w := range r.writes {
		if w.kind == clearedRange {
			for k := range m.blame.records {
				if k >= string(w.key) && k < string(w.value) {
					m.blame.swept = append(m.blame.swept, m.blame.records[k].id)
					delete(m.blame.records, k)
				}
			}
			continue
		}
		switch name, rest := m.keyOf(w.key); {
		case (name == "lock" || name == "hold") && w.kind == wrote:
			lane := m.ofKey(name, rest)
			if l, err := lockOf(groupOfLane(lane), w.value); err == nil && l.is("claim") {
				m.blame.left[lane] = l
			}
		case name == "attempt" && w.kind == cleared:
			delete(m.blame.records, string(w.key))
		case name == "attempt":
			m.counts(string(w.key), idOf(rest), w.value)
		case name == "dead" && w.kind == wrote:
			m.buries(idOf(rest), w.value)
		}
	}
}

// sweptWith holds the attempt records that the record under replay clears by a range to a law: they are of items that
// leave with it or that it advances, or of items that left before.
func (m *model) sweptWith(after map[string][]byte) {
	for _, id := range m.blame.swept {
		k := itemKeyFor("item", id)
		if _, touched := after[k]; !touched && m.db[k] != nil {
			m.violation("G7: the failed attempts of %s are cleared with others, and the item stays", id)
		}
	}
}

// counts holds what is written to an attempt record.
func (m *model) counts(k string, id layer.ID, value []byte) {
	t, err := tuple.Unpack(value)
	if err != nil || len(t) < 4 {
		m.violation("attempt record of %s: %v, %v", id, t, err)
		return
	}
	next := attemptOf{id: id}
	next.count, _ = t[0].(int64)
	text, _ := t[3].(string)
	next.lapsed = strings.HasPrefix(text, lapsePrefix)
	old := m.blame.records[k]
	m.blame.records[k] = next
	if lane, l := m.holderOf(id); next.lapsed && m.w.strict() && l.is("claim") && m.lasting(l).endMS <= m.r.nowMS &&
		m.leadingOf(lane, l) == id && m.w.law(id).claims[l.token] == 0 {
		m.violation("G7: the lease of claim %d ended in a run without faults, and no handler was called for %s",
			l.token, id)
	}
	switch {
	case !next.lapsed:
	case next.count == old.count:
		m.w.mark("lease that counted no attempt")
	default:
		lane, l := m.holderOf(id)
		switch {
		case next.count != old.count+1:
			m.violation("G7: %s has %d attempts after %d", id, next.count, old.count)
		case !l.is("claim") || m.leadingOf(lane, l) != id:
			m.violation("G7: an attempt of %s is counted, which was not the first of a claim", id)
		case old.lapsed && !l.proven():
			m.violation("G7: another attempt of %s is counted, of claim %d which is not proven", id, l.token)
		case old.lapsed && m.w.knobs.worked:
			m.called(id, claimKey{lane, l.token})
		}
		m.expired(id, l)
		m.w.mark("lease that counted an attempt")
	}
}

// leadingOf is the first item of a claim that the record under replay has not acked.
func (m *model) leadingOf(lane string, l *lockState) layer.ID {
	if left := m.blame.left[lane]; left != nil && left.token == l.token {
		return left.out[0]
	}
	return l.out[0]
}

// called holds a lease that counts to the calls of the item's handler.
func (m *model) called(id layer.ID, key claimKey) {
	if m.w.law(id).claims[key.token] > 0 {
		m.w.mark("lease that counted after a call")
		return
	}
	h := m.w.handleOf(m.claims[key].r.who)
	if died := h.died > 0 && h.died <= m.r.step; !died && h.stood == 0 && !m.w.slow {
		m.violation("G7: claim %d of %q counts an attempt of %s, and no handler was called", key.token, key.group, id)
	}
}

// buries holds a dead letter to the laws.
func (m *model) buries(id layer.ID, value []byte) {
	if !bytes.Contains(value, []byte(lapsePrefix)) || !bytes.Contains(value, []byte("failed")) {
		return
	}
	_, l := m.holderOf(id)
	if !l.is("claim") || m.lasting(l).endMS > m.r.nowMS {
		return // a nack, an operator, or past retention
	}
	if !l.proven() || len(l.out) != 1 {
		m.violation("G7: %s is a dead letter by claim %d of %d items, which is proven: %t",
			id, l.token, len(l.out), l.proven())
	}
	m.w.mark("dead letter by a lease")
}

// proves holds a change of a claim's record: a handle notes that it has the claim, of its own receive or of a receive
// that is repeated.
func (m *model) proves(group string, old, next *lockState) {
	if next.noted == old.noted {
		return
	}
	own := next.owner == fmt.Sprintf("handle %d", m.r.who)
	repeats := func(o *op) bool { return o.who == m.r.who && o.attemptID != "" && o.maybeAt(m.r) }
	if next.noted < old.noted || !own && !slices.ContainsFunc(m.w.ops, repeats) {
		m.violation("G7: handle %d notes in the lock of %q that %s has claim %d",
			m.r.who, group, next.owner, next.token)
	}
	m.w.mark("claim proven")
}
