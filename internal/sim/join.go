package sim

import (
	"math/rand/v2"
	"strings"
	"time"

	"fdbfifo/layer"
)

// Messages that join their groups when they are due (Message.JoinWhenDue). The model knows a message that waits so by
// its envelope, and that it has joined by its random. A record that joins one has two laws: the message is due, and no
// message that joins the same group earlier, and that its transaction must have seen, stays behind.

// joinProfiles are the profiles of messages that join, which no seed draws by itself.
var joinProfiles = []string{"joining"}

// joining: few groups, where most of the messages that are delayed join their groups later.
func (k *knobs) joining(rng *rand.Rand) {
	k.scarce(rng)
	k.producers, k.workers, k.operators, k.takers = 2, 2+rng.IntN(3), rng.IntN(2), rng.IntN(2)
	k.delayed, k.joins, k.wait = 0.7, 0.8, 5*time.Second
	k.named, k.config.MaxRate, k.rated = 0.3*rng.Float64(), layer.Rate{}, false
	k.config.RetroactiveDelay, k.config.DedupWindow = rng.IntN(4) == 0, time.Second
	switch rng.IntN(4) {
	case 0:
		k.config.Retention = time.Second + time.Duration(rng.Int64N(int64(5*time.Second)))
	case 1:
		k.setPlain(rng)
		k.setTurns()
	}
	k.hold = 0.4 * rng.Float64()
}

// joinLater makes some delayed messages join their groups when they are due.
func (a *actor) joinLater(m *layer.Message) {
	k, later := a.w.knobs, m.Delay > 0 || !m.DeliverAt.IsZero()
	if k.joins > 0 && later && len(m.Group) < layer.MaxGroupSize/2 && a.lanes.Float64() < k.joins {
		m.JoinWhenDue = true
	}
}

// waits takes the name of a group apart in which messages wait to join another at dueMS.
func waits(group string) (joins string, dueMS int64, ok bool) {
	joins, at, ok := strings.Cut(group, " (until ")
	if !ok {
		return "", 0, false
	}
	due, err := time.Parse("2006-01-02T15:04:05.000Z)", at)
	return joins, due.UnixMilli(), err == nil
}

// groupToJoin is the group that messages of a group are to be in.
func groupToJoin(group string) string {
	if joins, _, ok := waits(group); ok {
		return joins
	}
	return group
}

// joinedAs is the item that an item which the record clears is in its group, or nil.
func (m *model) joinedAs(old layer.ID, come map[layer.ID]envelope) *layer.ID {
	for id := range come {
		if m.isJoined(old, id) {
			return &id
		}
	}
	return nil
}

// isJoined reports whether an item that waited has joined its group as the item id.
func (m *model) isJoined(old, id layer.ID) bool {
	joins, _, ok := waits(old.Group)
	return ok && joins == id.Group && old.Random == id.Random
}

// joinsFrom is the item that joins its group in this record as the item id, or nil.
func (m *model) joinsFrom(id layer.ID, after map[string][]byte) *layer.ID {
	for k, v := range after {
		if name, rest := m.keyOf([]byte(k)); name == "item" && v == nil && m.db[k] != nil {
			if old := idOf(rest); m.isJoined(old, id) {
				return &old
			}
		}
	}
	return nil
}

// passesThrough is the item that an item which the record clears was in its group for a moment, because the same record
// finishes it there; or nil.
func (m *model) passesThrough(old layer.ID) *layer.ID {
	for _, wr := range m.r.writes {
		if name, rest := m.keyOf(wr.key); name == "item" && wr.kind == wrote {
			if id := idOf(rest); m.isJoined(old, id) {
				return &id
			}
		}
	}
	return nil
}

// passThrough follows an item that joins its group and is finished there by the same record.
func (m *model) passThrough(old, id layer.ID, s stored, after map[string][]byte) {
	m.entered[id], m.first[id] = m.r, s
	if key := m.dedupKey(id.Group, s.dedupID); key != "" && m.dedup[key].id == old {
		was := m.dedup[key]
		was.id = id
		m.dedup[key] = was
	}
	_, lock := m.holderOf(id)
	m.finished[id] = append(m.finished[id], finished{
		r: m.r, item: s, lane: id.Group, lock: m.lasting(lock), over: m.over(m.group(id.Group), id),
		archived: after[itemKeyFor("archive", id)] != nil, held: m.spare(m.held(id.Group), []layer.ID{id}),
		wrong: m.w.knobs.clocks,
	})
	m.w.mark("message joined its group, and was taken at once")
}

// join holds an item that joins its group to the order of the times.
func (m *model) join(old, id layer.ID, s stored, gone map[layer.ID]bool) {
	m.moved[old], m.movedIn[id] = true, true
	m.w.mark("message joined its group")
	if s.dueMS > m.r.nowMS {
		m.mistimed("%s joins its group, and is due in %d ms", old, s.dueMS-m.r.nowMS)
	}
	_, dueMS, _ := waits(old.Group)
	for name, g := range m.groups {
		if joins, earlierMS, ok := waits(name); !ok || joins != id.Group || earlierMS >= dueMS || g.lock != nil {
			continue
		}
		for other, o := range g.items {
			if m.seen(o) && !gone[other] && o.joins && o.dueMS <= m.r.nowMS && !m.tooOld(&o) {
				m.violation("G1: %s joins its group before %s, which was due earlier", old, other)
			}
		}
		m.w.mark("messages that join at several times")
	}
}

// tooOld reports whether an item may be past retention.
func (m *model) tooOld(s *stored) bool {
	keep := m.w.knobs.config.Retention.Milliseconds()
	return keep > 0 && max(s.enqueuedMS, s.dueMS)+keep <= m.r.nowMS
}

// compareWaiting: a message that joins its group later waits where its name says.
func (m *model) compareWaiting(o *op, i int, id layer.ID) (waiting bool) {
	sent, s := &o.messages[i], m.first[id]
	joins, dueMS, ok := waits(id.Group)
	if ok != s.joins || ok && (!sent.JoinWhenDue || joins != o.groups[i] || s.dueMS != dueMS) {
		m.w.violation("%s: sent to %q (joins: %t), there as %s (joins: %t), due at %d",
			s.label, o.groups[i], sent.JoinWhenDue, id, s.joins, s.dueMS)
	}
	return ok
}
