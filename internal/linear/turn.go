package linear

import (
	"slices"

	"fdbfifo/layer"
)

// The part of the law for queues whose messages have leases of their own, and are delivered in turn. Each message in
// flight is a lane, like a message that is held by itself (hold.go). A receive of several messages claims each of them.

// givesInTurn is a receive of the first messages of a group. Each gets a claim of its own, so none may be in flight.
// The receive leaves out no message that has ever been in flight, because it reads a key that the end of each claim
// writes.
func (s state) givesInTurn(l Law, p *step, all hands) (state, bool) {
	if !s.gives(l, p) || p.End < s.since {
		return s, false
	}
	for _, h := range all {
		r := l.lanes.rank(h.lane)
		switch in := (state{hold: h.hold}); {
		case h.lane == p.lane:
		case p.messages.has(r):
			if !in.lapsed(p) || h.newest >= p.Token || h.delay > p.End {
				return s, false
			}
		case s.waiting.has(r) && r < p.messages.last() && !p.ended.has(r) && !l.Loose:
			return s, false
		}
	}
	for _, r := range p.messages.ranks() {
		all = all.with(l.lanes.alone(r), hold{
			token: p.Token, held: setOf(r), until: p.Until, latest: p.Until, newest: p.Token,
		})
	}
	return s.heldBy(l.lanes, all), true
}

// endedMeanwhile returns the messages of which a receive in turn may have had claims that ended before it returned.
// Only a receive whose commit was first of unknown outcome (Doubted) may have had any: it returns the messages that it
// still has.
func endedMeanwhile(history []Operation, o *Operation, ranks map[layer.ID]int) set {
	var all []int
	mine := func(id layer.ID) bool {
		return slices.ContainsFunc(o.Messages, func(m Message) bool { return m.ID == id })
	}
	for _, a := range history {
		if a.Call > o.Return || a.Outcome != Unknown && a.Return < o.Call || a.Span == o.Span {
			continue
		}
		ids := make([]layer.ID, 0, len(a.Messages)+1)
		for _, m := range a.Messages {
			ids = append(ids, m.ID)
		}
		lapsed := o.Until <= o.End && (o.Until <= a.End || a.Outcome == Unknown)
		switch {
		case a.Outcome != Done && a.Outcome != Unknown:
			continue
		case a.Kind == Busy, a.Kind == Drop:
		case a.Kind == Release:
			ids = append(ids, a.Hold)
		case a.Kind == Disturb, a.Kind == Receive && a.Outcome == Unknown && lapsed: // of any of them
			for id := range ranks {
				ids = append(ids, id)
			}
		case lapsed && (a.Kind == Receive || a.Kind == Take || a.Kind == Cancel):
		default:
			continue
		}
		for _, id := range ids {
			if r, known := ranks[id]; known && !mine(id) {
				all = append(all, r)
			}
		}
	}
	return setOf(all...)
}
