package layer

import (
	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// kindBeat is of a timer only: the beat of a handle is due then.
const kindBeat kind = "beat"

// beat is up to when the claims by heartbeat of a handle last, unless the handle moves the time, never back. The claims
// themselves have no timers. Three keys belong together, and only transactions that read the beat's row with a conflict
// write the row or the timer:
//
//	beat   ("beat", handle)            tuple: due (ms), owner, and 1 if the handle is being ended
//	timer  ("timer", due (ms), handle) as a timer of a group: kind "beat", index 0
//	held   ("held", handle, group)     as a timer's value: of each claim by the handle's heartbeat
//
// handle is a random number of the beat. A number is never used again: a handle whose beat was ended takes another.
type beat struct {
	dueMS int64
	owner string
	ended bool // whoever met the beat when it was due has begun to end the handle: nothing joins the beat any more
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

// beatJoin stands for the right to join a beat: claims by heartbeat have a read conflict on the key, and whoever ends a
// handle a write conflict. Nothing is ever stored there, so a beat that moves disturbs no claim.
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
