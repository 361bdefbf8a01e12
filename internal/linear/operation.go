package linear

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Kind is what an operation was to do.
type Kind string

// The kinds. Their names are the words of the descriptions.
const (
	Enqueue Kind = "enqueue"
	Receive Kind = "receive"
	Ack     Kind = "ack"
	Nack    Kind = "nack"
	Extend  Kind = "extend"
	Take    Kind = "take"
	Cancel  Kind = "cancel"  // of messages that the caller was shown, or has enqueued
	Release Kind = "release" // by force
	Peek    Kind = "peek"
	// Disturb: it may have ended the claim. In a loose history, or by force.
	Disturb Kind = "disturb"
	// Drop and Put: an outsider, a process that is not in the history, has removed messages or put them there. The test
	// knows it from another source.
	Drop Kind = "drop"
	Put  Kind = "put"
	// Advance: the holder passes messages on to other lanes. Move: an outsider has passed them on.
	Advance Kind = "advance"
	Move    Kind = "move"
	// Busy: between its call and its return an outsider may have held these messages, each by itself. An unordered
	// receive or take may pass over them; with All over any message. Busy itself has no effect.
	Busy Kind = "busy"
	// end comes after all operations that are not open. An open operation that has not been done by then is never done.
	end Kind = "end"
)

// Outcome is the answer that the caller of an operation got.
type Outcome string

// The outcomes.
const (
	Done       Outcome = "done"
	Unknown    Outcome = "unknown" // it may have been done, or may still be done
	Nothing    Outcome = "nothing" // done, and gave nothing
	ClaimLost  Outcome = "claim lost"
	NotInClaim Outcome = "not in claim"
	NoItem     Outcome = "no item"
	InHand     Outcome = "in hand"
	NotHeld    Outcome = "not held"
	// Refused: nothing was done, for a reason that says nothing about the group.
	Refused Outcome = "refused"
)

// OutcomeOf returns the outcome that an error of the layer tells. It is Unknown if the error leaves the outcome open.
func OutcomeOf(err error) Outcome {
	if kv.MaybeCommitted(err) {
		return Unknown
	}
	for _, o := range []struct {
		err     error
		outcome Outcome
	}{
		{layer.ErrClaimLost, ClaimLost}, {layer.ErrNotInClaim, NotInClaim}, {layer.ErrNoItem, NoItem},
		{layer.ErrInFlight, InHand}, {layer.ErrNotHeld, NotHeld},
	} {
		if errors.Is(err, o.err) {
			return o.outcome
		}
	}
	var e *kv.Error
	switch {
	case err == nil:
		return Done
	case errors.As(err, &e):
		return Refused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return Unknown
	}
	return Refused
}

// Never is a time of the clock that does not come.
const Never = math.MaxInt64

// Span is the client and the time of a call.
type Span struct {
	Client int
	// Call and Return order the calls. A call that returned at the moment at which another was called overlaps it.
	// Return has no meaning if the outcome is unknown.
	Call, Return int64
	// Begin is the time of the caller's clock when it called, End that of the fastest clock when it had returned, in
	// ms.
	Begin, End int64
	// Doubted: during the call a commit had an unknown outcome, and its work was tried again. Or the call has repeated
	// an earlier receive.
	Doubted bool `json:",omitempty"`
}

// Message is one message. Its ID is its place; the zero ID of an enqueue of unknown outcome is looked for by the body.
type Message struct {
	ID   layer.ID
	Body string
	// Facets, of an enqueue or put to a queue with facets, are the message's.
	Facets layer.Template `json:",omitempty"`
}

// Operation is the effect of a call on one group, or the answer about it.
type Operation struct {
	Span
	Kind    Kind
	Outcome Outcome
	// Messages are the messages that were enqueued, delivered, taken, shown, acked or cancelled. The ones of a nack are
	// those that it acked before it returned the rest.
	Messages []Message
	Token    int64 // of the claim; of a release, or of a drop by force: of the claim that it ended
	Until    int64 // of a receive or extend: the new end of the lease, in ms; of one of unknown outcome: the earliest
	// All of an ack: it acks all outstanding messages. Of a peek: it shows all messages. See Busy.
	All bool

	// Of a nack.
	From   *layer.ID // the first message that is returned; nil = all are
	Delay  int64     // until the group is ready, in ms; Never = it may be any
	Reject bool      // the first returned message becomes a dead letter

	// Where is the template of a receive or take, and of an operation on the claim of such a receive; nil = the whole
	// group.
	Where layer.Template `json:",omitempty"`
	// Hold is the message of a claim of one message, and of an operation on such a claim; zero = of no such claim.
	Hold layer.ID `json:",omitzero"`
	// Unordered, of a receive or take: it gives free messages, and passes over those that others hold.
	Unordered bool `json:",omitempty"`
	// InTurn, of a receive: its messages have claims of their own. They are those from the head of the group up to the
	// first in flight.
	InTurn bool `json:",omitempty"`
	// Next is the facets that an advance or move gives the messages.
	Next layer.Template `json:",omitempty"`

	// Force, of a drop: it may have ended a live claim.
	Force bool
}

func (o *Operation) names() string {
	names := make([]string, len(o.Messages))
	for i, m := range o.Messages {
		names[i] = m.Body
		if m.Facets != nil {
			names[i] += "(" + m.Facets.String() + ")"
		}
	}
	return strings.Join(names, " ")
}

// String returns the call and its answer.
func (o *Operation) String() string {
	var s strings.Builder
	s.WriteString(string(o.Kind))
	switch {
	case o.Where != nil:
		s.WriteString(" " + o.Where.String())
	case o.Hold != layer.ID{} && len(o.Messages) == 0:
		fmt.Fprintf(&s, " alone %d", o.Hold.Index)
	case o.Hold != layer.ID{}:
		s.WriteString(" alone")
	case o.Unordered:
		s.WriteString(" unordered")
	case o.InTurn:
		s.WriteString(" in turn")
	}
	word := func(format string, args ...any) { fmt.Fprintf(&s, " "+format, args...) }
	if o.Kind == Ack || o.Kind == Nack || o.Kind == Extend || o.Kind == Advance {
		word("%d", o.Token)
	}
	switch {
	case (o.Kind == Ack || o.Kind == Advance) && o.All:
		word("all")
	case o.Kind == Nack && len(o.Messages) > 0:
		word("acked %s", o.names())
	case o.Kind == Enqueue, o.Kind == Ack, o.Kind == Cancel, o.Kind == Drop, o.Kind == Put, o.Kind == Advance,
		o.Kind == Move, o.Kind == Busy, o.Kind == Take && o.Outcome == Unknown:
		word("%s", o.names())
	}
	if o.Next != nil {
		word("to %s", o.Next)
	}
	if o.From != nil {
		word("from %d", o.From.Index)
	}
	if o.Delay > 0 {
		word("delay %s", ms(o.Delay))
	}
	if o.Reject {
		word("reject")
	}
	if o.Force {
		word("by force")
		if o.Token > 0 {
			word("from %d", o.Token)
		}
	}
	switch {
	case o.Outcome == Unknown:
		word("-> ?")
	case o.Outcome != Done:
		word("-> %s", o.Outcome)
	case o.Kind == Receive:
		word("-> %d: %s until %s", o.Token, o.names(), ms(o.Until))
	case o.Kind == Extend:
		word("-> until %s", ms(o.Until))
	case o.Kind == Take, o.Kind == Peek && len(o.Messages) > 0:
		word("-> %s", o.names())
		if o.Kind == Peek && !o.All {
			word("...")
		}
	case o.Kind == Peek:
		word("-> empty")
	case o.Kind == Release:
		word("-> %d", o.Token)
	}
	return s.String()
}

// ms is a time of the clock, or a duration.
func ms(n int64) string {
	if n == Never {
		return "?"
	}
	return fmt.Sprint(n)
}
