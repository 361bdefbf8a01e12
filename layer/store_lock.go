package layer

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// kind says what a holding is. A timer's value has the kind of the holding whose end the timer marks, or kindHead.
type kind string

const (
	kindClaim kind = "claim" // of an owner that works on its items
	kindGrant kind = "grant" // kept for a waiting request until the end: the owner is the request's random
	kindDelay kind = "delay" // without an owner, until the end: a retry delay
	kindHead  kind = "head"  // of a timer only: when the head of a group without a holding is due
)

// record is the value of a group's lock: the holding of the group, and the mark which keeps the group from all receives
// once the holding has ended. A record without a holding and without a mark is never stored.
//
// Example: a worker holds the group and an operator pauses the group. The record has the claim and the mark; when the
// claim ends, the record has the mark alone.
type record struct {
	token int64    // of the newest holding, also after its end: the next token is greater
	held  *holding // nil = none
	mark  *mark    // nil = none
}

// holding is the right to a group that one holder has until a time.
type holding struct {
	kind  kind
	token int64 // the holder's proof of its right
	owner string
	endMS int64
	items []delivered // of a claim, in key order: delivered and not yet acked
	// sinceMS is when a claim was made, by the claimer's clock; 0 = not known.
	sinceMS int64
	// beat is the beat on which the end of a claim by heartbeat depends. endMS is then only the time at which the beat
	// was due when the claim was made. uuid.Nil = the holding ends at endMS.
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
	return &record{token: h.token, held: &h, mark: m}
}

// holding returns the record's holding; nil if the group is unheld or marked.
func (r *record) holding() *holding {
	if r == nil {
		return nil
	}
	return r.held
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

// lapseText is the error text of a failed attempt whose lease has ended.
func (h *holding) lapseText() string { return lapsePrefix + h.owner }

// A proven claim's record has a token greater than the claim's, by one of these: see group_verdict.go.
const (
	provenByCaller  = 1 // the caller knows that it has the claim of a suspect item
	provenByReceive = 2 // the receive itself counts: see ReceiveOptions.CountExpired
)

// proven reports whether the claim's holder is known to know of it.
func (r *record) proven() bool {
	c := r.claim()
	return c != nil && r.token > c.token || lacks(guardProof)
}

// leadsSuspects reports whether items behind the claim's may be suspect.
func (r *record) leadsSuspects() bool {
	c := r.claim()
	return c != nil && r.token == c.token+provenByCaller
}

// prove returns the record of a claim that is proven from now on.
func (r *record) prove() *record {
	next := *r
	next.token = max(r.token, r.claim().token+provenByCaller)
	return &next
}

// grantedTo returns the random of the request for which the group is kept.
func (r *record) grantedTo() (uuid.UUID, bool) {
	if !r.is(kindGrant) {
		return uuid.Nil, false
	}
	random, err := uuid.Parse(r.holding().owner)
	return random, err == nil
}

// The value of a lock is a tuple. It has the token, the mark as a nested tuple or nil, and a nested tuple for the
// holding. The holding has kind, token, owner and end (ms), and for each item index, random and number of parts, and in
// a queue with facets the values of its facets. Last comes, for a claim, when it was made (ms), and for a claim by
// heartbeat the beat.
func (r *record) pack() []byte {
	h, size := r.held, 0
	if h != nil {
		size = 64 + len(h.owner) + itemSize*len(h.items)
	}
	b := tuple.Append(tuple.AppendInt(make([]byte, 0, size), r.token), r.mark.note())
	if h == nil {
		return b
	}
	if b = tuple.AppendNested(b, h.append); h.sinceMS > 0 {
		b = tuple.AppendInt(b, h.sinceMS)
	}
	if h.byBeat() {
		b = tuple.AppendUUID(b, h.beat)
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
		h := d.holding()
		r.held = &h
	}
	if d.more() {
		h := r.held
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
			return errors.New("a mark or items without a claim")
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

// A queue with the setting unordered has consumers that take any free item, and consumers that receive groups in order.
// An unordered receive claims single items. The claim of an item, a hold, is a record like a lock, under a key of its
// own. Two kinds of lanes serve this (store_lane.go explains lanes and their names):
//
//   - The free lane of a group has the items that no claim holds. A hold takes its item out, and the end of the hold
//     puts it back. So one read finds the first free item, however many items of the group are held. The free lane has
//     hints, timers and kept hints like any lane. It intersects the whole group, and is itself never locked. It is the
//     view 0, without values.
//   - A hold is the lane of one item: 0xff (group, 0, index, random). Its lock is the record.
//
// A claim of the group meets the first hold of the group. If the head is held, the hold excludes the claim, as the lock
// of an intersecting lane would. If an item behind the head is held, the claim ends before that item. So a receive in
// order never sees a gap.
const nameHold = "hold"

// errUnordered: the queue has no unordered consumers.
var errUnordered = fmt.Errorf("%w: an unordered claim in a queue without the setting %s", ErrOptions, settingUnordered)

// freeWhere is the packed template of unordered receives: the view 0.
var freeWhere = string(tuple.AppendInt(nil, 0))

func freeLane(group string) string { return laneName(group, freeWhere) }

// holdLane is the lane of a hold.
func holdLane(id ID) string {
	return laneName(id.Group, string(tuple.AppendUUID(tuple.AppendInt([]byte(freeWhere), id.Index), id.Random)))
}

// holdOf returns the item of a hold; false = the lane is no hold.
func holdOf(lane string) (ID, bool) {
	group, where := splitLane(lane)
	if len(where) <= len(freeWhere) || where[:len(freeWhere)] != freeWhere {
		return ID{}, false
	}
	d := decoder{rest: []byte(where[len(freeWhere):])}
	id := ID{Group: group, Index: d.int(), Random: d.uuid()}
	return id, d.err == nil
}

func isHold(lane string) bool {
	_, is := holdOf(lane)
	return is
}

// soughtBy is the packed template whose receives find a lane: that of the free lane, if the lane is a hold of an
// unordered queue.
func (s subspace) soughtBy(lane string) string {
	if isHold(lane) {
		return s.holdWhere()
	}
	_, where := splitLane(lane)
	return where
}

// hold is the key of the record of a hold.
func (s subspace) hold(id ID) []byte { return s.itemKey(nameHold, id, 0) }

// holds is the range of the holds of a group.
func (s subspace) holds(group string) kv.KeyRange { return s.below(s.startGroup(nameHold, group, 1)) }

// holdsTo is the range of the holds of a group up to that of an item.
func (s subspace) holdsTo(id ID) kv.KeyRange {
	return kv.KeyRange{Begin: s.holds(id.Group).Begin, End: kv.KeyAfter(s.hold(id))}
}

// holdWhere is the packed template whose receives end holds: those of whole groups, if items are claimed in turn.
func (s subspace) holdWhere() string {
	if s.inTurn() {
		return ""
	}
	return freeWhere
}

// hasHolds reports whether items are claimed by themselves.
func (s subspace) hasHolds() bool { return s.plan != nil && s.plan.holds }

// inTurn reports whether items are claimed by themselves and in order: see group_hold.go.
func (s subspace) inTurn() bool { return s.plan != nil && s.plan.inTurn }

// takesAny reports whether the queue has unordered consumers.
func (s subspace) takesAny() bool { return s.hasHolds() && !s.plan.inTurn }

// kindBeat is of a timer only: the beat of a handle is due then.
const kindBeat kind = "beat"

// beat is the time until which the claims by heartbeat of a handle last. The handle moves it forward, never back. The
// claims themselves have no timers. Three keys belong together. A transaction must read the beat's row with a conflict
// before it writes the row or the timer:
//
//	beat   ("beat", handle)            tuple: due (ms), owner, and 1 if the handle is being ended
//	timer  ("timer", due (ms), handle) as a timer of a group: kind "beat", and instead of an index the time (ms) of
//	                                   the last move; 0 = not known
//	held   ("held", handle, group)     as a timer's value: of each claim by the handle's heartbeat
//
// handle is a random number of the beat. A number is never used again: a handle whose beat was ended takes another.
type beat struct {
	dueMS int64
	owner string
	ended bool // the end of the handle has begun, because the beat was due: no claim may join the beat
}

func (b beat) pack() []byte {
	t := tuple.Tuple{b.dueMS, b.owner}
	if b.ended {
		t = append(t, int64(1))
	}
	return t.Pack()
}

func unpackBeat(key, value []byte) (b beat, err error) {
	d := decoder{rest: value}
	b = beat{dueMS: d.int(), owner: d.str()}
	if d.more() {
		b.ended = true
		n := d.int()
		d.check(n == 1, "%d for an end", n)
	}
	return b, d.end(key)
}

func (s subspace) beat(handle uuid.UUID) []byte {
	return tuple.AppendUUID(s.start(nameBeat, 17), handle)
}

// beatJoin stands for the right to join a beat: claims by heartbeat have a read conflict on the key, and a transaction
// that ends a handle has a write conflict. Nothing is ever stored there, so a beat that moves disturbs no claim.
func (s subspace) beatJoin(handle uuid.UUID) []byte { return kv.KeyAfter(s.beat(handle)) }

// beatTimer is in shard 0 of the timers of whole groups, which every look for any group reads.
func (s subspace) beatTimer(dueMS int64, handle uuid.UUID) []byte {
	return tuple.AppendUUID(tuple.AppendInt(s.timerIn("", 0, 9+17), dueMS), handle)
}

func (s subspace) heldOf(handle uuid.UUID, extra int) []byte {
	return tuple.AppendUUID(s.start(nameHeld, 17+extra), handle)
}

func (s subspace) held(handle uuid.UUID, group string) []byte {
	return tuple.AppendString(s.heldOf(handle, len(group)+2), group)
}

// heldBy is the range of the claims by a handle's heartbeat.
func (s subspace) heldBy(handle uuid.UUID) kv.KeyRange { return s.below(s.heldOf(handle, 1)) }
