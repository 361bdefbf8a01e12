package linear

import (
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Law says how much of the law holds for a history.
type Law struct {
	// Empty: also check the answers that say that the group is held without naming a claim. They are a receive or take
	// that gave nothing, and a cancel that was refused as in flight.
	Empty bool
	// Loose: processes that are not in the history may make messages dead letters, purge and redrive, and end claims at
	// a Disturb.
	Loose bool

	lanes *lanes // of the group that is checked
}

// step is an operation with its messages as ranks.
type step struct {
	*Operation
	messages set
	ordered  bool // in the order of their keys
	from     int  // rank of From; -1 = none
	before   set  // the messages that were known to be there before it was called
	ended    set  // of a Doubted receive in turn: it may have had claims of these, too, which ended before it returned
	busy     set  // of an unordered receive or take: the messages that an outsider may have held
	suspect  set  // of an unordered receive or take: the messages that it may have passed over as suspect
	lane     int  // of a queue with facets, as the next two
	next     byte // the kind that an advance or move gives its messages
	kinds    facets
	phantoms int // claims that no caller was told of and that may have begun before it returned
}

// state is a group.
type state struct {
	waiting set // held or not
	facets  facets
	// hold is of the whole group; others is of the other lanes, of a queue with facets or unordered consumers, packed.
	hold
	others string
	// hidden: a claim that no caller was told of holds the group. phantoms counts these claims so far. It does not
	// matter which receive made one, or when: the model assumes such a claim only where a result needs it.
	hidden   bool
	phantoms int
	// since: a call has taken over a claim whose lease ended at this time, so now is not earlier.
	since int64
	ended bool // operations that are still open were never done
}

// hold is the claim of a group or of a lane.
type hold struct {
	// The live claim: token is 0 if there is none.
	token  int64
	held   set
	until  int64 // before this moment its lease has not ended
	latest int64 // from this moment on it has; it differs from until after an extend of unknown outcome
	shaky  bool  // it may have been ended
	newest int64 // the greatest token so far
	// A delay ends between these moments.
	delay, delayLatest int64
}

// unheld is s without a claim.
func (s state) unheld() state {
	s.token, s.held, s.until, s.latest, s.shaky = 0, "", 0, 0, false
	return s
}

// lapsed reports whether the claim may have ended by itself when the call returned.
func (s state) lapsed(p *step) bool { return s.token == 0 || s.until <= p.End || s.shaky }

// gives reports whether p may have been given its messages, and be the one to hold the group.
func (s state) gives(l Law, p *step) bool {
	if !s.lapsed(p) || !p.ordered || p.messages == "" || !s.waiting.holds(p.messages) {
		return false
	}
	if l.Loose {
		return true
	}
	missing := s.waiting.below(p.messages.last() + 1).without(p.messages)
	if p.Kind == Receive {
		missing = missing.and(p.before)
	}
	return missing == "" && s.delay <= p.End
}

// follow is one operation: whether it may have the result that it had, and the group after it.
func (s state) follow(l Law, p *step) (state, bool) {
	if l.lanes != nil {
		return s.followInLane(l, p)
	}
	return s.apply(l, p)
}

// apply is follow for the group or lane that s.hold is of.
func (s state) apply(l Law, p *step) (state, bool) {
	if p.Outcome == Unknown {
		return s.open(l, p)
	}
	if p.touchesClaim() && p.End < s.since {
		return s, false
	}
	switch p.Kind {
	case Enqueue:
		ok := p.ordered && s.waiting.and(p.messages) == "" && s.waiting.and(p.before).last() < p.messages.first()
		s.waiting = s.waiting.with(p.messages)
		return s, ok
	case Receive, Take:
		if p.Outcome == Nothing {
			if s.waiting == "" || s.token != 0 && s.latest > p.Begin || s.delayLatest > p.Begin {
				return s, true
			}
			return s.heldForNobody(p)
		}
		ok := s.gives(l, p)
		s = s.unheld()
		s.delay, s.delayLatest, s.hidden = 0, 0, false
		if p.Kind == Take {
			s.waiting = s.waiting.without(p.messages)
			return s, ok
		}
		ok = ok && p.Token > s.newest
		s.token, s.held, s.until, s.latest, s.newest = p.Token, p.messages, p.Until, p.Until, p.Token
		return s, ok
	case Ack, Nack, Extend, Advance:
		return s.settle(p)
	case Cancel:
		inHand := s.held.holds(p.messages)
		switch p.Outcome {
		case NoItem:
			return s, s.waiting.and(p.messages) == ""
		case InHand:
			if inHand && s.latest > p.Begin || !l.Empty {
				return s, true
			}
			return s.heldForNobody(p)
		}
		ok := s.waiting.holds(p.messages) && (!inHand || s.lapsed(p))
		return s.drop(p), ok
	case Release:
		if p.Outcome == NotHeld {
			return s.unheld(), s.lapsed(p)
		}
		ok := true
		if s.token != p.Token { // it ended a claim that no caller was told of
			ok = s.lapsed(p) && p.Token > s.newest
			s, _ = s.heldForNobody(p)
			ok = ok && s.phantoms <= p.phantoms
		}
		s.newest, s.hidden = max(s.newest, p.Token), false
		s = s.unheld()
		if p.Delay == Never { // it counted an attempt
			s.delayLatest = Never
		}
		return s, ok
	case Peek:
		if l.Loose {
			return s, true
		}
		shown := s.waiting
		if !p.All {
			shown = s.waiting.below(p.messages.last() + 1)
		}
		return s, p.ordered && shown == p.messages
	case Disturb:
		s.shaky = s.token != 0
		return s, true
	case Drop:
		ok := s.waiting.holds(p.messages) && (s.held.and(p.messages) == "" || s.lapsed(p) || p.Force)
		return s.drop(p), ok
	case Put:
		ok := s.waiting.and(p.messages) == ""
		s.waiting, s.delay = s.waiting.with(p.messages), 0 // a delay was for the head
		return s, ok
	case end:
		s.ended = true
		return s, true
	case Move, Busy: // only from lane to lane: see dropInLanes; and nothing itself
	}
	return s, false
}

// heldForNobody returns s under a claim that no caller was told of. ok is false if there can be none while p runs.
func (s state) heldForNobody(p *step) (state, bool) {
	if !s.hidden {
		s.hidden = true
		s.phantoms++
	}
	return s, s.phantoms <= p.phantoms
}

// touchesClaim reports whether p reads the claim of the group.
func (p *step) touchesClaim() bool {
	switch p.Kind {
	case Receive, Take, Ack, Nack, Extend, Advance, Cancel, Release:
		return true
	case Enqueue, Peek, Disturb, Drop, Put, Move, Busy, end:
	}
	return false
}

// settle is an ack, nack or extend.
func (s state) settle(p *step) (state, bool) {
	mine := s.token == p.Token
	named := s.held.holds(p.messages) && (p.from < 0 || s.held.has(p.from) && !p.messages.has(p.from))
	switch p.Outcome {
	case ClaimLost:
		if mine {
			return s.unheld(), s.lapsed(p)
		}
		return s, true
	case NotInClaim:
		return s, mine && !named
	}
	return s.settled(p), mine && named
}

// settled is s after an ack, nack or extend of the live claim.
func (s state) settled(p *step) state {
	if p.Kind == Extend {
		s.until, s.latest = p.Until, p.Until
		return s
	}
	acked := p.messages
	if p.All {
		acked = s.held
	}
	left := s.held.without(acked)
	if p.Kind != Advance {
		s.waiting = s.waiting.without(acked)
	}
	if p.Kind == Nack && p.from >= 0 {
		left = left.below(p.from)
	}
	switch {
	case left == "":
		return s.unheld()
	case p.Kind == Ack || p.Kind == Advance || p.from >= 0:
		s.held = left
		return s
	}
	if p.Reject {
		s.waiting = s.waiting.without(setOf(left.first()))
	}
	switch p.Delay {
	case 0:
	case Never:
		s.delayLatest = Never
	default:
		s.delay, s.delayLatest = p.Begin+p.Delay, Never
		if p.End != Never {
			s.delayLatest = p.End + p.Delay
		}
	}
	return s.unheld()
}

// drop returns s without p's messages. One of them may be under a claim, or be the head that a delay is for.
func (s state) drop(p *step) state {
	if s.held.and(p.messages) != "" || p.Force && s.token == p.Token {
		s = s.unheld() // by force, also from the holder of others
	}
	if s.waiting.first() == p.messages.first() {
		s.delay = 0 // the delay was for this one
	}
	s.waiting = s.waiting.without(p.messages)
	return s
}

// open is an operation of unknown outcome. A moment at which it would change nothing is refused: the search then puts
// it after the end, where it does nothing.
func (s state) open(l Law, p *step) (state, bool) {
	if s.ended {
		return s, true
	}
	was := s
	switch p.Kind {
	case Enqueue:
		done := *p.Operation
		done.Outcome = Done
		q := *p
		q.Operation = &done
		return s.apply(l, &q)
	case Ack, Nack, Extend, Advance:
		if s.token != p.Token || !s.held.holds(p.messages) || p.from >= 0 && !s.held.has(p.from) {
			return s, false
		}
		s = s.settled(p)
		if p.Kind == Extend {
			s.until, s.latest = min(s.until, was.until), Never
		}
	case Take:
		if !s.gives(l, p) {
			return s, false
		}
		if !s.shaky {
			s.since = max(s.since, s.until)
		}
		s = s.unheld()
		s.waiting, s.delay, s.delayLatest, s.hidden = s.waiting.without(p.messages), 0, 0, false
	case Cancel, Drop, Move:
		if !s.waiting.holds(p.messages) || p.Kind == Drop && s.held.and(p.messages) != "" && !s.lapsed(p) && !p.Force {
			return s, false
		}
		s = s.drop(p)
	case Release:
		s = s.unheld()
	case Disturb:
		s.shaky = s.token != 0
	case Busy:
	}
	return s, s != was
}

var hashSeed = maphash.MakeSeed()

// model is the law for one group whose messages have these names, by rank. known are the messages of a loose history
// that no call has enqueued: they are there from the beginning.
func model(l Law, names []string, known set) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{waiting: known} },
		Step: func(s, input, _ any) (bool, any) {
			next, ok := s.(state).follow(l, input.(*step))
			return ok, next
		},
		Hash:              func(s any) uint64 { return maphash.Comparable(hashSeed, s.(state)) },
		DescribeOperation: func(input, _ any) string { return input.(*step).String() },
		DescribeState:     func(s any) string { return s.(state).describe(l, names) },
		DescribeOperationMetadata: func(m any) string {
			s, _ := m.(Span)
			return fmt.Sprintf("client %d, its clock when called %d, the fastest when returned %s", s.Client, s.Begin, ms(s.End))
		},
	}
}

// describe is the state for people.
func (s state) describe(l Law, names []string) string {
	parts := []string{"empty"}
	if s.waiting != "" {
		parts = []string{"waiting: " + list(s.waiting, names)}
	}
	parts = append(parts, s.hold.describe(names)...)
	for _, h := range s.hands() {
		switch said := strings.Join(h.describe(names), ", "); {
		case h.lane == 0 || h.token == 0 && h.delayLatest == 0:
		case l.lanes.isAlone(h.lane):
			parts = append(parts, names[l.lanes.rank(h.lane)]+" alone "+said)
		default:
			parts = append(parts, l.lanes.where[h.lane].String()+" "+said)
		}
	}
	for _, flag := range []struct {
		set  bool
		text string
	}{
		{s.hidden, "held under a claim that nobody was told of"}, {s.ended, "all that is open has been done or never is"},
	} {
		if flag.set {
			parts = append(parts, flag.text)
		}
	}
	return strings.Join(parts, "; ")
}

// describe is who holds a group or lane, for people.
func (h hold) describe(names []string) (parts []string) {
	switch {
	case h.token != 0:
		parts = append(parts, fmt.Sprintf("held under %d until %s: %s", h.token, ms(h.until), list(h.held, names)))
		if h.latest != h.until {
			parts = append(parts, "or until "+ms(h.latest))
		}
	case h.newest != 0:
		parts = append(parts, fmt.Sprintf("free, newest token %d", h.newest))
	default:
		parts = append(parts, "free")
	}
	if h.shaky {
		parts = append(parts, "the claim may have been ended")
	}
	if h.delayLatest != 0 {
		parts = append(parts, fmt.Sprintf("delayed until %s to %s", ms(h.delay), ms(h.delayLatest)))
	}
	return parts
}

// list is messages by their names.
func list(t set, names []string) string {
	const most = 8
	ranks := t.ranks()
	more := ""
	if len(ranks) > most {
		ranks, more = ranks[:most], fmt.Sprintf(" and %d more", len(ranks)-most)
	}
	var all []string
	for _, r := range ranks {
		all = append(all, names[r])
	}
	return strings.Join(all, " ") + more
}
