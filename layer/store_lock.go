package layer

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// kind says what a holding is. A timer's value has the kind of the holding whose end the timer marks, or kindHead.
type kind string

const (
	kindClaim kind = "claim" // of an owner, who works on its items
	kindGrant kind = "grant" // kept for a waiting request until the end: the owner is the request's random
	kindDelay kind = "delay" // of nobody until the end: a retry delay
	kindHead  kind = "head"  // of a timer only: the head of a group that nobody holds is due then
)

// record is the value of a group's lock: who holds the group, and the mark which keeps the group from everybody once
// the holdings have ended. A record without a holding and without a mark is never stored. The list of holdings is for
// the future (items held by several holders): today a record has at most one holding.
//
// Example: a worker holds the group and an operator pauses the group. The record has the claim and the mark; when the
// claim ends, the record has the mark alone.
type record struct {
	token    int64 // of the newest holding, also after its end: the next token is greater
	holdings []holding
	mark     *mark // nil = none
}

// holding is the right to a group that one holder has until a time.
type holding struct {
	kind  kind
	token int64 // the holder's proof of its right
	owner string
	endMS int64
	items []delivered // of a claim, in key order: delivered and not yet acked
	// sinceMS is when a claim was made, by the claimer's clock; 0 = nobody has noted that.
	sinceMS int64
	// beat is the beat on which the end of a claim by heartbeat depends. endMS is then when the beat was due at the
	// time of the claim, and says no more. uuid.Nil = the holding ends at endMS.
	beat uuid.UUID
}

// byBeat reports whether the holding lasts as long as its handle's beat.
func (h *holding) byBeat() bool { return h != nil && h.beat != uuid.Nil }

// delivered is one item under a claim. parts is the number of parts of the item's body, so that an ack can clear the
// parts without reading the item.
type delivered struct {
	index  int64
	random uuid.UUID
	parts  int64
	facets string // in a queue with facets: the packed values, so that an ack finds the item's lanes; else ""
}

func (d delivered) id(group string) ID { return ID{Group: group, Index: d.index, Random: d.random} }

// heldBy returns a record with the holding h, the newest, and the mark m.
func heldBy(h holding, m *mark) *record {
	return &record{token: h.token, holdings: []holding{h}, mark: m}
}

// holding returns the record's only holding; nil if the group is unheld or marked.
func (r *record) holding() *holding {
	if r == nil || len(r.holdings) == 0 {
		return nil
	}
	return &r.holdings[0]
}

// is reports whether the record's holding is of kind k, whatever the time.
func (r *record) is(k kind) bool {
	h := r.holding()
	return h != nil && h.kind == k
}

// claim returns the record's claim, or nil.
func (r *record) claim() *holding {
	if !r.is(kindClaim) {
		return nil
	}
	return r.holding()
}

// grantedTo returns the random of the request for which the group is kept.
func (r *record) grantedTo() (uuid.UUID, bool) {
	if !r.is(kindGrant) {
		return uuid.Nil, false
	}
	random, err := uuid.Parse(r.holding().owner)
	return random, err == nil
}

// The value of a lock is a tuple: the token, the mark as a nested tuple or nil, then a nested tuple for each holding:
// kind, token, owner, end (ms), and index, random and number of parts of each item, and in a queue with facets the
// values of its facets; and last, of a claim, when the claim was made (ms), and of a claim by heartbeat the beat.
func (r *record) pack() []byte {
	size := 0
	for i := range r.holdings {
		size += 64 + len(r.holdings[i].owner) + itemSize*len(r.holdings[i].items)
	}
	b := tuple.Append(tuple.AppendInt(make([]byte, 0, size), r.token), r.mark.note())
	for i := range r.holdings {
		h := &r.holdings[i]
		if b = tuple.AppendNested(b, h.append); h.sinceMS > 0 {
			b = tuple.AppendInt(b, h.sinceMS)
		}
		if h.byBeat() {
			b = tuple.AppendUUID(b, h.beat)
		}
	}
	return b
}

// An item takes from leastItemSize to itemSize bytes in the value of a lock, and more if it has facets or parts.
const (
	leastItemSize = 1 + 17 + 1
	itemSize      = 9 + 17 + 1
)

// append appends the elements of a holding.
func (h *holding) append(b []byte) []byte {
	b = tuple.AppendInt(tuple.AppendString(b, string(h.kind)), h.token)
	b = tuple.AppendInt(tuple.AppendString(b, h.owner), h.endMS)
	for _, d := range h.items {
		b = tuple.AppendInt(tuple.AppendUUID(tuple.AppendInt(b, d.index), d.random), d.parts)
		for _, value := range unpackStrings(d.facets) {
			b = tuple.AppendString(b, value)
		}
	}
	return b
}

func unpackRecord(key, value []byte) (*record, error) {
	d := decoder{rest: value}
	r := &record{token: d.int(), mark: d.note()}
	if d.more() {
		r.holdings = []holding{d.holding()}
	}
	if d.more() {
		h := &r.holdings[0]
		h.sinceMS = d.int()
		d.check(h.sinceMS > 0 && h.kind == kindClaim, "time %d beside a %s", h.sinceMS, h.kind)
		if d.more() {
			h.beat = d.uuid()
			d.check(h.beat != uuid.Nil, "no beat")
		}
	}
	if d.err == nil {
		d.err = r.check()
	}
	if err := d.end(key); err != nil {
		return nil, err
	}
	return r, nil
}

// holding reads a holding: kind, token, owner, end, and then index, random, parts of each item.
func (d *decoder) holding() (h holding) {
	begun := false
	d.list(func() {
		if begun {
			item := delivered{index: d.int(), random: d.uuid(), parts: d.int()}
			var facets []string
			for d.follows(codeString) {
				facets = append(facets, d.str())
			}
			item.facets = packStrings(facets)
			h.items = append(h.items, item)
			return
		}
		begun, h = true, holding{kind: kind(d.str()), token: d.int(), owner: d.str(), endMS: d.int()}
		if most := len(d.rest) / leastItemSize; most > 0 {
			h.items = make([]delivered, 0, most)
		}
	})
	return h
}

// check holds a record to its form.
func (r *record) check() error {
	h := r.holding()
	if h == nil {
		if r.mark == nil {
			return errors.New("neither a holding nor a mark")
		}
		return nil
	}
	switch h.kind {
	case kindClaim:
		return nil
	case kindGrant, kindDelay:
		if r.mark != nil || len(h.items) > 0 {
			return errors.New("a mark or items beside what is no claim")
		}
		return nil
	case kindHead, kindBeat:
	}
	return fmt.Errorf("holding of unknown kind %q", h.kind)
}

// markKind says why a group is kept from everybody.
type markKind string

const (
	markPause markKind = "pause" // by an operator
	markHalt  markKind = "halt"  // because the group's head has failed for good
)

// mark is what keeps a group from everybody until the mark is removed.
type mark struct {
	kind    markKind
	who     string
	reason  string
	sinceMS int64
}

func (m *mark) note() any {
	if m == nil {
		return nil
	}
	return tuple.Tuple{string(m.kind), m.who, m.reason, m.sinceMS}
}

// note reads the tuple laid out by mark.note.
func (d *decoder) note() *mark {
	if d.null() {
		return nil
	}
	m := &mark{}
	d.list(func() { *m = mark{kind: markKind(d.str()), who: d.str(), reason: d.str(), sinceMS: d.int()} })
	d.check(m.kind == markPause || m.kind == markHalt, "mark of unknown kind %q", m.kind)
	return m
}

// packPause returns the value of meta's pause field.
func (m mark) packPause() []byte { return tuple.Tuple{m.sinceMS, m.who, m.reason}.Pack() }

// unpackPause returns nil if there is no value.
func unpackPause(key, value []byte) (*mark, error) {
	if value == nil {
		return nil, nil
	}
	d := decoder{rest: value}
	m := &mark{kind: markPause, sinceMS: d.int(), who: d.str(), reason: d.str()}
	return m, d.end(key)
}

func packTimer(k kind, headIndex int64) []byte {
	return tuple.AppendInt(tuple.AppendString(nil, string(k)), headIndex)
}

func unpackTimer(key, value []byte) (k kind, headIndex int64, err error) {
	d := decoder{rest: value}
	k, headIndex = kind(d.str()), d.int()
	if err := d.end(key); err != nil {
		return "", 0, err
	}
	return k, headIndex, nil
}
