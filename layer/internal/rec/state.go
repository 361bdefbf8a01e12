package rec

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// Condition is the state of a group at a given time, as the record of the group says.
type Condition int

// The conditions.
const (
	Unheld  Condition = iota // there is no record: the group is free
	Claimed                  // a claim whose lease lasts
	Granted                  // a grant that lasts
	Delayed                  // a delay that lasts
	Lapsed                   // a claim whose lease has expired: the holder keeps the claim until another takes over
	Over                     // a grant or a delay that has ended
	Marked                   // paused or halted, without a holding
)

// At returns the condition of the group at nowMS. A claim by heartbeat counts as lasting, whatever its EndMS: the
// caller must know whether the beat was due.
func (r *Record) At(nowMS int64) Condition {
	h := r.Holding()
	switch {
	case r == nil:
		return Unheld
	case h == nil:
		return Marked
	}
	ended := h.EndMS <= nowMS && !h.ByBeat()
	switch {
	case h.Kind == KindClaim && ended:
		return Lapsed
	case h.Kind == KindClaim:
		return Claimed
	case ended:
		return Over
	case h.Kind == KindGrant:
		return Granted
	}
	return Delayed
}

// Keeps reports whether receives must pass over a group in this condition. Unheld, Lapsed and Over do not keep a group
// from them.
func (c Condition) Keeps() bool { return c != Unheld && c != Lapsed && c != Over }

// WithoutHolding returns the record after the end of its holding. The mark m then stops the group. If m is nil, the
// group has no record, and the result is nil.
func (r *Record) WithoutHolding(m *Mark) *Record {
	if m == nil {
		return nil
	}
	next := &Record{mark: m}
	if r != nil {
		next.Token = r.Token
	}
	return next
}

// WithMark returns the record with the mark m, or without a mark if m is nil. A claim stays, also an expired one. A
// grant or a delay ends. The result is nil if neither a claim nor a mark is left.
func (r *Record) WithMark(m *Mark) *Record {
	if r.Claim() == nil {
		return r.WithoutHolding(m)
	}
	next := *r
	next.mark = m
	return &next
}

// WithHolding returns the record with h in the place of its holding. The token of the record stays.
func (r *Record) WithHolding(h Holding) *Record {
	return &Record{Token: r.Token, held: &h, mark: r.mark}
}

// WithItems returns the record with other items and another end of its claim.
func (r *Record) WithItems(items []Item, endMS int64) *Record {
	h := *r.Holding()
	h.Items, h.EndMS = items, endMS
	return r.WithHolding(h)
}

// Until returns the record with its claim ending at endMS. No heartbeat keeps the claim alive from then on. The record
// must have a claim.
func (r *Record) Until(endMS int64) *Record {
	next := r.WithItems(r.Holding().Items, endMS)
	next.held.Beat = uuid.Nil
	return next
}

// Leaving returns how many items are no longer under a claim when the record of a group changes from old to next.
func Leaving(old, next *Record) int {
	was, is := old.Claim(), next.Claim()
	switch {
	case was == nil:
		return 0
	case is == nil || is.Token != was.Token:
		return len(was.Items)
	}
	return len(was.Items) - len(is.Items)
}

// shape is a record without its times, owners and items: which holding it has, and which mark.
type shape string

const (
	shapeNone   shape = "none"
	shapeClaim  shape = "claim"
	shapeNoted  shape = "claim, mark to follow" // a claim and a mark
	shapeGrant  shape = "grant"
	shapeDelay  shape = "delay"
	shapePause  shape = "pause"
	shapeHalt   shape = "halt"
	shapeBroken shape = "unreadable"
)

// steps lists for each shape of a record the shapes that may follow. Every other change is illegal. Examples: a group
// with a claim is never granted, and the end of a marked claim never loses the mark.
var steps = map[shape][]shape{
	shapeNone:   {shapeClaim, shapeGrant, shapePause, shapeHalt},
	shapeClaim:  {shapeNone, shapeClaim, shapeNoted, shapeDelay, shapePause, shapeHalt},
	shapeNoted:  {shapeClaim, shapeNoted, shapePause, shapeHalt},
	shapeGrant:  {shapeNone, shapeClaim, shapePause, shapeHalt},
	shapeDelay:  {shapeNone, shapeClaim, shapePause, shapeHalt},
	shapePause:  {shapeNone, shapeHalt},
	shapeHalt:   {shapeNone},
	shapeBroken: {shapeNone},
}

// Unreadable stands for a record that cannot be read. The only step from it is the removal of the record.
var Unreadable = &Record{}

// shape returns the shape of the record. A record with neither holding nor mark is Unreadable.
func (r *Record) shape() shape {
	h := r.Holding()
	switch {
	case r == nil:
		return shapeNone
	case h == nil && r.mark == nil:
		return shapeBroken
	case h == nil && r.mark.Kind == MarkHalt:
		return shapeHalt
	case h == nil:
		return shapePause
	case h.Kind == KindGrant:
		return shapeGrant
	case h.Kind == KindDelay:
		return shapeDelay
	case r.mark != nil:
		return shapeNoted
	}
	return shapeClaim
}

// ErrStep means that the record of a group was about to change in an illegal way. That is a fault of the caller.
var ErrStep = errors.New("illegal change of a group")

// Step returns an error that wraps ErrStep if the record of a group must not change from old to next: the table steps
// does not have the change, or the token would fall. Either record may be nil.
func Step(old, next *Record) error {
	from, to := old.shape(), next.shape()
	if !slices.Contains(steps[from], to) {
		return fmt.Errorf("%w: no step leads from %s to %s", ErrStep, from, to)
	}
	if old != nil && next != nil && next.Token < old.Token {
		return fmt.Errorf("%w: token %d after %d", ErrStep, next.Token, old.Token)
	}
	return nil
}
