package linear

import (
	"maps"
	"slices"

	"fdbfifo/layer"
)

// Of a queue with unordered consumers: what is taken by itself, past what others hold.

// noLane is the lane of an unordered take: nobody holds what it has taken.
const noLane = -1

// isAlone reports whether a lane is one message, held by itself.
func (l *lanes) isAlone(lane int) bool { return lane >= len(l.where) }

// rank is that message.
func (l *lanes) rank(lane int) int { return lane - len(l.where) }

// alone is the lane of a message that is held by itself.
func (l *lanes) alone(rank int) int { return len(l.where) + rank }

// inTheWay reports whether who holds another lane must have let go of it before a receive or take gives what it gave:
// of messages of one lane or the other that are held by themselves, those that it gave.
func (l *lanes) inTheWay(p *step, lane int) bool {
	switch {
	case lane == p.lane:
		return false
	case l.isAlone(lane):
		return p.messages.has(l.rank(lane))
	case p.Unordered:
		return true // nobody takes messages of a group by themselves that somebody holds as a whole
	}
	return l.meets[lane][p.lane]
}

// keptFrom reports whether a receive or take gave nothing because of who holds a lane that could share a message with
// its own: or, of a whole group in a queue with unordered consumers, holds its head.
func (s state) keptFrom(l *lanes, p *step, all hands) bool {
	for _, h := range all {
		if !h.lasts(p) {
			continue
		}
		if l.isAlone(h.lane) && !p.Unordered && p.lane == 0 && l.rank(h.lane) == s.waiting.first() {
			return true
		}
		if !l.isAlone(h.lane) && l.inTheWay(p, h.lane) {
			return true
		}
	}
	return false
}

// lasts reports whether a claim or a delay had not ended by itself, by the clock of who called.
func (h hold) lasts(p *step) bool {
	return h.token != 0 && h.latest > p.Begin || h.delayLatest > p.Begin
}

// free is s with what waits and may be given to an unordered receive or take: without the messages that others hold, or
// may hold. Those that are left out, with nobody known to hold them, are held under claims that nobody was told of, if
// there can be any.
func (s state) free(l *lanes, p *step, all hands) (state, bool) {
	in := s
	in.hold, in.waiting = all.of(p.lane), s.waiting.without(p.busy)
	for _, h := range all {
		if !l.isAlone(h.lane) {
			continue
		}
		held := h.token != 0 || h.delay != 0 || h.delayLatest != 0 // perhaps no longer, but nobody has let go of it
		if p.Outcome == Nothing {
			held = h.lasts(p)
		}
		if held {
			in.waiting = in.waiting.without(setOf(l.rank(h.lane)))
		}
	}
	in.waiting = in.waiting.with(p.messages.and(s.waiting))
	if p.Outcome == Nothing {
		return in, true
	}
	passed := in.waiting.below(p.messages.last() + 1).without(p.messages)
	if p.Kind == Receive {
		passed = passed.and(p.before)
	}
	if passed == "" {
		return in, true
	}
	in, ok := in.heldForNobody(p)
	in.waiting = in.waiting.without(passed)
	return in, ok
}

// busy is what was, perhaps, in the hands of somebody who is not in the history, while an operation was under way.
func busy(history []Operation, o *Operation, ranks map[layer.ID]int) set {
	var all []int
	for _, a := range history {
		if a.Kind != Busy || a.Call > o.Return || a.Return < o.Call {
			continue
		}
		if a.All {
			return setOf(slices.Collect(maps.Values(ranks))...)
		}
		for _, m := range a.Messages {
			if r, known := ranks[m.ID]; known {
				all = append(all, r)
			}
		}
	}
	return setOf(all...)
}

// never is the operations of unknown outcome that were never done, because of what else became of the one message that
// they are about: it was settled otherwise under the same claim, or it was acked, though it was given again, or taken.
// Those who look for an order need not try them: of messages that are held side by side, each in each state.
func never(ops []*Operation) map[*Operation]bool {
	type claim struct {
		hold  layer.ID
		token int64
	}
	settled, given, gone := make(map[claim]bool), make(map[layer.ID]int64), make(map[layer.ID]bool)
	back := make(map[layer.ID]bool) // from the dead letters, perhaps
	ends := func(o *Operation) bool { return o.Hold != layer.ID{} && (o.Kind == Ack || o.Kind == Nack) }
	for _, o := range ops {
		for _, m := range o.Messages {
			back[m.ID] = back[m.ID] || o.Kind == Put
		}
		if o.Outcome != Done {
			continue
		}
		if ends(o) {
			settled[claim{o.Hold, o.Token}] = true
		}
		for _, m := range o.Messages {
			if o.Kind == Receive {
				given[m.ID] = max(given[m.ID], o.Token)
			}
			gone[m.ID] = gone[m.ID] || o.Kind == Take || o.Kind == Cancel || o.Kind == Drop
		}
	}
	all := make(map[*Operation]bool)
	for _, o := range ops {
		if o.Outcome == Unknown && ends(o) && !back[o.Hold] {
			again := o.Kind == Ack && (given[o.Hold] > o.Token || gone[o.Hold])
			all[o] = again || settled[claim{o.Hold, o.Token}]
		}
	}
	return all
}
