package layer

import (
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// A queue with the setting unordered has consumers that take any item which nobody holds, beside consumers that receive
// groups in order. An unordered receive claims single items: the claim of an item, a hold, is a record as a lock is,
// under a key of its own. Two kinds of lanes serve this (see store_lane.go for what a lane is, and how it is named):
//
//   - The free lane of a group has the items that nobody holds: who takes hold of an item takes the item out, who lets
//     go puts it back. So the first free item is found by one read, however many items of the group are held; and the
//     hints, timers and kept hints of lanes are those of the free lane, too. The free lane intersects the whole group,
//     and is itself never locked. It is the view 0, without values.
//   - A hold is the lane of one item: 0xff (group, 0, index, random). Its lock is the record.
//
// A claim of the group meets the first hold of the group: if the head is held, the hold excludes the claim, as the lock
// of an intersecting lane would; if an item behind is, the claim ends before it. So there is never a gap for those who
// receive in order.
const nameHold = "hold"

// errUnordered: the queue has no unordered consumers. errHold: nor any other holds.
var (
	errUnordered = fmt.Errorf("%w: an unordered claim in a queue without the setting %s", ErrOptions, settingUnordered)
	errHold      = fmt.Errorf("%w: the claim of an item in a queue without the setting %s or %s=%s",
		ErrOptions, settingUnordered, settingLeasePer, LeasePerItem)
)

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

// inTurn reports whether items are claimed by themselves and in order: see group_turn.go.
func (s subspace) inTurn() bool { return s.plan != nil && s.plan.inTurn }

// takesAny reports whether the queue has unordered consumers.
func (s subspace) takesAny() bool { return s.hasHolds() && !s.plan.inTurn }
