package rec

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// Record is the value of a lock: what keeps a group. A lock may also be of a lane, which is a part of a group, or of a
// single item. Then "the group" below is that lane or item. A record has a holding, which keeps the group until a time,
// and a mark, which stops the group once the holding has ended. A record with neither is never stored. A nil *Record
// stands for a group without a record. All exported methods except Pack, Prove, WithItems, WithHolding and Until accept
// it.
//
// Example: a worker holds the group, and an operator pauses the group. The record has the claim and the mark. When the
// claim ends, the record has the mark alone.
//
// The methods change no record: they return another one, which may share the items with the first.
type Record struct {
	// Token is that of the newest holding, also after the end of that holding. It is greater if the holding is a claim
	// that was proven (Proven). The token of the next claim or grant must be greater than Token.
	Token int64
	held  *Holding // nil = none
	mark  *Mark    // nil = none
}

// Kind says what a holding is. The value of a timer has the kind of the holding that ends then, or a kind that only
// timers have.
type Kind string

// The kinds. The texts are stored.
const (
	KindClaim Kind = "claim" // an owner works on the items
	KindGrant Kind = "grant" // the group is kept for a waiting request: the owner is the random of the request
	KindDelay Kind = "delay" // after a nack, or a release with a delay; the holding has no owner
	KindHead  Kind = "head"  // of a timer only: the head of a group without a holding is due then
	KindBeat  Kind = "beat"  // of a timer only: the beat of a handle is due then
)

// Holding is the right of one holder to a group, until a time.
type Holding struct {
	Kind  Kind
	Token int64  // the fencing number: proves the right of the holder. A delay has the token of the record before it
	Owner string // see Kind
	EndMS int64
	Items []Item // of a claim, in the order of their keys: the items that are delivered and not yet acked
	// SinceMS is when a claim was made, by the clock of the process that made it; 0 = not known.
	SinceMS int64
	// Beat is the beat that keeps a claim by heartbeat alive. EndMS is then only the time at which the beat was due
	// when the claim was made. uuid.Nil = the holding ends at EndMS.
	Beat uuid.UUID
}

// Item names an item of a group, with the facts that an ack needs to remove the item without reading it.
type Item struct {
	Index  int64
	Random uuid.UUID
	Parts  int64  // how many parts have the rest of a large body
	Facets string // in a queue with facets: the values, packed by PackStrings; else ""
}

// HeldBy returns a record with the holding h and the mark m (nil = none). h must be the newest holding of the group.
func HeldBy(h Holding, m *Mark) *Record {
	return &Record{Token: h.Token, held: &h, mark: m}
}

// Holding returns the record's holding; nil = there is none.
func (r *Record) Holding() *Holding {
	if r == nil {
		return nil
	}
	return r.held
}

// Mark returns the record's mark; nil = there is none.
func (r *Record) Mark() *Mark {
	if r == nil {
		return nil
	}
	return r.mark
}

// Is reports whether the record has a holding of kind k. Its time may be over.
func (r *Record) Is(k Kind) bool {
	h := r.Holding()
	return h != nil && h.Kind == k
}

// Claim returns the record's holding if it is a claim; else nil. Its lease may have expired.
func (r *Record) Claim() *Holding {
	if !r.Is(KindClaim) {
		return nil
	}
	return r.Holding()
}

// GrantedTo returns the random (the number) of the request for which the group is kept; false = the record has no
// grant.
func (r *Record) GrantedTo() (uuid.UUID, bool) {
	if !r.Is(KindGrant) {
		return uuid.Nil, false
	}
	random, err := uuid.Parse(r.Holding().Owner)
	return random, err == nil
}

// A claim is proven if its holder is known to know the claim. Usually only a claim of a suspect item needs that. Such
// an item may have killed the process of its handler (Attempt.Suspect). The token of a record with a proven claim is
// greater than the token of the claim, by one of these numbers.
const (
	ProvenByCaller  = 1 // the caller of the receive knows its claim of a suspect item
	ProvenByReceive = 2 // the receive itself counts as the proof: see layer.ReceiveOptions.CountExpired
)

// Proven reports whether the record has a claim that is proven.
func (r *Record) Proven() bool {
	c := r.Claim()
	return c != nil && r.Token > c.Token
}

// LeadsSuspects reports whether the record has a claim that its holder has proven (ProvenByCaller). Then the claim is
// of a suspect item, and items behind may be suspect too.
func (r *Record) LeadsSuspects() bool {
	c := r.Claim()
	return c != nil && r.Token == c.Token+ProvenByCaller
}

// Prove returns the record with its claim proven by the caller. The record must have a claim.
func (r *Record) Prove() *Record {
	next := *r
	next.Token = max(r.Token, r.Claim().Token+ProvenByCaller)
	return &next
}

// ByBeat reports whether a heartbeat keeps the holding alive. h may be nil.
func (h *Holding) ByBeat() bool { return h != nil && h.Beat != uuid.Nil }

// LapseText returns the LastError of an attempt that failed because the lease of the claim h expired. See
// Attempt.Suspect.
func (h *Holding) LapseText() string { return lapsePrefix + h.Owner }

// FirstIndex returns the index of the first item of the claim; 0 if there is none.
func (h *Holding) FirstIndex() int64 {
	if len(h.Items) == 0 {
		return 0
	}
	return h.Items[0].Index
}

// An item takes from leastItemSize to ItemSize bytes in the value of a lock, and more if it has facets or parts.
const (
	leastItemSize = 1 + 17 + 1
	// ItemSize is enough for an item without facets and parts, in bytes.
	ItemSize = 9 + 17 + 1
)

// Pack returns the value of the lock. It is a tuple:
//
//	token                  of the record
//	mark                   nil, or the nested tuple (kind, by, reason, since (ms))
//	holding                a nested tuple of kind, token, owner and end (ms), and for each item index, random, number
//	                       of parts, and the values of its facets. Left out if there is none.
//	since (ms)             of a claim. Left out if it is not known.
//	beat                   of a claim by heartbeat only
func (r *Record) Pack() []byte {
	h, size := r.held, 0
	if h != nil {
		size = 64 + len(h.Owner) + ItemSize*len(h.Items)
	}
	b := tuple.Append(tuple.AppendInt(make([]byte, 0, size), r.Token), r.mark.nested())
	if h == nil {
		return b
	}
	if b = tuple.AppendNested(b, h.append); h.SinceMS > 0 {
		b = tuple.AppendInt(b, h.SinceMS)
	}
	if h.ByBeat() {
		b = tuple.AppendUUID(b, h.Beat)
	}
	return b
}

// append appends the elements of a holding's tuple to b.
func (h *Holding) append(b []byte) []byte {
	b = tuple.AppendInt(tuple.AppendString(b, string(h.Kind)), h.Token)
	b = tuple.AppendInt(tuple.AppendString(b, h.Owner), h.EndMS)
	for _, d := range h.Items {
		b = tuple.AppendInt(tuple.AppendUUID(tuple.AppendInt(b, d.Index), d.Random), d.Parts)
		for _, value := range UnpackStrings(d.Facets) {
			b = tuple.AppendString(b, value)
		}
	}
	return b
}

// UnpackRecord reads the value of a lock.
func UnpackRecord(key, value []byte) (*Record, error) {
	d := Decode(value)
	r := &Record{Token: d.Int(), mark: d.mark()}
	if d.More() {
		h := d.holding()
		r.held = &h
	}
	if d.More() {
		h := r.held
		h.SinceMS = d.Int()
		d.Check(h.SinceMS > 0 && h.Kind == KindClaim, "time %d beside a %s", h.SinceMS, h.Kind)
		if d.More() {
			h.Beat = d.UUID()
			d.Check(h.Beat != uuid.Nil, "no beat")
		}
	}
	if d.err == nil {
		d.err = r.check()
	}
	if err := d.End(key); err != nil {
		return nil, err
	}
	return r, nil
}

// holding reads the tuple of a holding.
func (d *Decoder) holding() (h Holding) {
	begun := false
	d.List(func() {
		if begun {
			item := Item{Index: d.Int(), Random: d.UUID(), Parts: d.Int()}
			var facets []string
			for d.Follows(CodeString) {
				facets = append(facets, d.Text())
			}
			item.Facets = PackStrings(facets)
			h.Items = append(h.Items, item)
			return
		}
		begun, h = true, Holding{Kind: Kind(d.Text()), Token: d.Int(), Owner: d.Text(), EndMS: d.Int()}
		if most := len(d.rest) / leastItemSize; most > 0 {
			h.Items = make([]Item, 0, most)
		}
	})
	return h
}

// check returns an error if the holding and the mark of a record do not fit together, or the items of a claim are not
// in the order of their keys.
func (r *Record) check() error {
	h := r.Holding()
	if h == nil {
		if r.mark == nil {
			return errors.New("neither a holding nor a mark")
		}
		return nil
	}
	switch h.Kind {
	case KindClaim:
		// An ack may clear a range from one item to another.
		if !slices.IsSortedFunc(h.Items, byKey) {
			return errors.New("the items are not in the order of their keys")
		}
		return nil
	case KindGrant, KindDelay:
		if r.mark != nil || len(h.Items) > 0 {
			return errors.New("a mark or items without a claim")
		}
		return nil
	case KindHead, KindBeat:
	}
	return fmt.Errorf("holding of unknown kind %q", h.Kind)
}

// byKey compares two items of a group in the order of their keys.
func byKey(a, b Item) int {
	return cmp.Or(cmp.Compare(a.Index, b.Index), bytes.Compare(a.Random[:], b.Random[:]))
}

// MarkKind says why a group is stopped.
type MarkKind string

// The kinds of marks. The texts are stored.
const (
	MarkPause MarkKind = "pause" // an operator has stopped the group
	MarkHalt  MarkKind = "halt"  // the head of the group has failed for good
)

// Mark keeps a group from all receives until the mark is removed.
type Mark struct {
	Kind    MarkKind
	By      string // the operator, or the owner of the handle that has halted the group
	Reason  string
	SinceMS int64
}

// nested returns the tuple of a mark in the value of a lock; nil for nil.
func (m *Mark) nested() any {
	if m == nil {
		return nil
	}
	return tuple.Tuple{string(m.Kind), m.By, m.Reason, m.SinceMS}
}

// mark reads the tuple of a mark, or nil.
func (d *Decoder) mark() *Mark {
	if d.null() {
		return nil
	}
	m := &Mark{}
	d.List(func() { *m = Mark{Kind: MarkKind(d.Text()), By: d.Text(), Reason: d.Text(), SinceMS: d.Int()} })
	d.Check(m.Kind == MarkPause || m.Kind == MarkHalt, "mark of unknown kind %q", m.Kind)
	return m
}

// PackPause returns the value that says that the whole queue is paused: the tuple (since (ms), by, reason).
func (m Mark) PackPause() []byte { return tuple.Tuple{m.SinceMS, m.By, m.Reason}.Pack() }

// UnpackPause reads the pause of a queue. No value means no pause, and UnpackPause returns nil.
func UnpackPause(key, value []byte) (*Mark, error) {
	if value == nil {
		return nil, nil
	}
	d := Decode(value)
	m := &Mark{Kind: MarkPause, SinceMS: d.Int(), By: d.Text(), Reason: d.Text()}
	return m, d.End(key)
}

// PackTimer returns the value of a timer: the tuple (kind, index of the head). The timer of a beat has the time (ms) at
// which its handle has moved the beat, instead of an index; 0 = the timer was set otherwise.
func PackTimer(k Kind, headIndex int64) []byte {
	return tuple.AppendInt(tuple.AppendString(nil, string(k)), headIndex)
}

// UnpackTimer reads the value of a timer: its kind, and the index of the head. Of a beat the second is the time of the
// last move (ms) or 0, see PackTimer.
func UnpackTimer(key, value []byte) (k Kind, headIndex int64, err error) {
	d := Decode(value)
	k, headIndex = Kind(d.Text()), d.Int()
	if err := d.End(key); err != nil {
		return "", 0, err
	}
	return k, headIndex, nil
}
