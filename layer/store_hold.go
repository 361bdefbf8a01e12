package layer

import (
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

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

// holdLane is the lane of a hold.
func holdLane(id ID) string { return lanes.Hold(lanes.Item(id)) }

// holdOf returns the item of a hold; false = the lane is no hold.
func holdOf(lane string) (ID, bool) {
	item, is := lanes.HoldOf(lane)
	return ID(item), is
}

// hold returns the key of the record of a hold.
func (s subspace) hold(id ID) []byte { return s.itemKey(nameHold, id, 0) }

// holds returns the range of the holds of a group.
func (s subspace) holds(group string) kv.KeyRange { return s.below(s.startGroup(nameHold, group, 1)) }

// holdsTo returns the range of the holds of the item's group, from the first up to the item's own. If the queue has no
// holds, it returns no range.
func (s subspace) holdsTo(id ID) []kv.KeyRange { return s.holdsFrom(s.holds(id.Group).Begin, id) }

// holdsFrom is holdsTo from the key begin on.
func (s subspace) holdsFrom(begin []byte, last ID) []kv.KeyRange {
	lane, ok := s.plan.HoldOn(lanes.Item(last))
	if !ok {
		return nil
	}
	return []kv.KeyRange{{Begin: begin, End: kv.KeyAfter(s.lock(lane))}}
}

// A handle with claims by heartbeat has a beat (rec.Beat), under a random number. A number is never used again: the
// handle takes another number if its beat is ended. The claims themselves have no timers. Three kinds of keys belong
// together:
//
//	beat   ("beat", handle)            the beat
//	timer  ("timer", due (ms), handle) leads to the beat when it is due
//	held   ("held", handle, group)     of each claim that the beat keeps alive
//
// A transaction must read the key of the beat with a conflict before it writes that key, or clears the timer.

// beat returns the key of the beat with the number handle.
func (s subspace) beat(handle uuid.UUID) []byte { return s.startUUID(nameBeat, handle, 0) }

// beatJoin returns the key that stands for the right to join a beat. A claim by heartbeat has a read conflict on the
// key, and a transaction that ends a handle has a write conflict. Nothing is ever stored there, so a beat that moves
// disturbs no claim.
func (s subspace) beatJoin(handle uuid.UUID) []byte { return kv.KeyAfter(s.beat(handle)) }

// beatTimer returns the key of a beat's timer at dueMS. It is in shard 0 of the timers of whole groups, which every
// look for any group reads.
func (s subspace) beatTimer(dueMS int64, handle uuid.UUID) []byte {
	return tuple.AppendUUID(tuple.AppendInt(s.timerIn("", 0, 9+17), dueMS), handle)
}

// held returns the held key of a group: a claim of the group is in the list of the claims that the beat keeps alive.
func (s subspace) held(handle uuid.UUID, group string) []byte {
	return tuple.AppendString(s.startUUID(nameHeld, handle, len(group)+2), group)
}

// tenure returns the key by which the holding h of a lane is found when its time is over: its timer, or, of a claim by
// heartbeat, its held key.
func (s subspace) tenure(lane string, h *rec.Holding) []byte {
	if h.ByBeat() {
		return s.held(h.Beat, lane)
	}
	return s.timer(h.EndMS, lane)
}

// heldBy returns the range of the held keys of a handle's beat: its list of claims by heartbeat.
func (s subspace) heldBy(handle uuid.UUID) kv.KeyRange {
	return s.below(s.startUUID(nameHeld, handle, 1))
}
