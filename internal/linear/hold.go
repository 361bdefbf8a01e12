package linear

import (
	"maps"
	"slices"

	"fdbfifo/layer"
)

// The part of the law for queues with unordered consumers, in which single messages are held.

// noLane is the lane of an unordered take, which removes its messages and holds none.
const noLane = -1

// isAlone reports whether a lane is one message, held by itself.
func (l *lanes) isAlone(lane int) bool { return lane >= len(l.where) }

// rank is that message.
func (l *lanes) rank(lane int) int { return lane - len(l.where) }

// alone is the lane of a message that is held by itself.
func (l *lanes) alone(rank int) int { return len(l.where) + rank }

// inTheWay reports whether the claim of another lane must have ended before a receive or take could give its messages.
// The hold of a single message is in the way only if p gave that message.
func (l *lanes) inTheWay(p *step, lane int) bool {
	switch {
	case lane == p.lane:
		return false
	case l.isAlone(lane):
		return p.messages.has(l.rank(lane))
	case p.Unordered:
		return true // a claim of the whole group excludes holds of its messages
	}
	return l.meets[lane][p.lane]
}

// keptFrom reports whether a live claim explains that a receive or take gave nothing. It is a claim of a lane that
// could share a message with p's. For a receive of a whole group the hold of its head is enough.
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

// lasts reports whether a claim or a delay had not yet ended by itself, by the clock of p's caller.
func (h hold) lasts(p *step) bool {
	return h.token != 0 && h.latest > p.Begin || h.delayLatest > p.Begin
}

// free returns s with only those waiting messages that an unordered receive or take can give. It leaves out the
// messages that others hold, or may hold. p may also have passed over a message without a known hold. That message must
// then be under a claim that no caller was told of. ok is false if there can be no such claim.
func (s state) free(l *lanes, p *step, all hands) (state, bool) {
	in := s
	in.hold, in.waiting = all.of(p.lane), s.waiting.without(p.busy)
	for _, h := range all {
		if !l.isAlone(h.lane) {
			continue
		}
		held := h.token != 0 || h.delay != 0 || h.delayLatest != 0 // it may have expired, but no call has ended it
		if p.Outcome == Nothing {
			held = h.lasts(p)
		}
		if held {
			in.waiting = in.waiting.without(setOf(l.rank(h.lane)))
		}
	}
	in.waiting = in.waiting.without(p.suspect).with(p.messages.and(s.waiting))
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

// busy returns the messages that an outsider may have held while an operation ran. An outsider is a process that is not
// in the history.
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

// suspect returns the messages that may have been suspect when an unordered receive or take returned: each was given
// before, and the lease of that claim may have ended. A message whose claim was settled is not suspect by that claim. A
// nack of a claim of the whole group settles all messages that it gives back.
func suspect(ops []*Operation, of *Operation, ranks map[layer.ID]int) set {
	type claim struct {
		id    layer.ID
		token int64
	}
	settled, lapsed := make(map[claim]bool), make(map[claim]bool)
	given := make(map[int64][]layer.ID) // of lapsed, by token: the messages of claims of the group
	for _, o := range ops {
		switch {
		case o.Outcome == Done && (o.Kind == Ack || o.Kind == Nack):
			for _, m := range o.Messages {
				settled[claim{m.ID, o.Token}] = true
			}
			settled[claim{o.Hold, o.Token}] = true
		case o.Kind == Receive && o.Call < of.Return && o.Until <= of.End:
			for _, m := range o.Messages {
				lapsed[claim{m.ID, o.Token}] = true
				if o.Hold == (layer.ID{}) {
					given[o.Token] = append(given[o.Token], m.ID)
				}
			}
		}
	}
	for _, o := range ops {
		if o.Kind != Nack || o.Outcome != Done || o.Hold != (layer.ID{}) {
			continue
		}
		for _, id := range given[o.Token] {
			if o.From == nil || compareIDs(id, *o.From) >= 0 {
				settled[claim{id, o.Token}] = true
			}
		}
	}
	var all []int
	for c := range lapsed {
		if !settled[c] {
			all = append(all, ranks[c.id])
		}
	}
	return setOf(all...)
}

// never returns acks and nacks of unknown outcome, each of one held message, that were certainly never done. Another
// call has settled the message under the same claim. Or, for an ack, the message was delivered again, taken, cancelled
// or dropped. The search for an order need not try them. That saves much time with many held messages, because each
// would be tried in each state.
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
