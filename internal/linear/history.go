package linear

import (
	"sync"
	"sync/atomic"

	"fdbfifo/layer"
)

// History is what was done to the groups of a queue. Its methods may be called concurrently.
type History struct {
	// Stamp orders the calls. Histories of one queue that several processes write, to be joined, share it. nil = this
	// history's own.
	Stamp *atomic.Int64

	stamp  atomic.Int64
	mu     sync.Mutex
	groups map[string][]Operation // guarded by mu
}

func (h *History) next() int64 {
	if h.Stamp != nil {
		return h.Stamp.Add(1)
	}
	return h.stamp.Add(1)
}

// Call notes that a client calls, at the time of its handle's clock.
func (h *History) Call(client int, clockMS int64) Span {
	return Span{Client: client, Call: h.next(), Begin: clockMS}
}

// Return notes that the call has returned; fastestMS is the time of the fastest clock.
func (h *History) Return(s *Span, fastestMS int64) { s.End, s.Return = fastestMS, h.next() }

// Add adds what a call did to a group.
func (h *History) Add(group string, o Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.groups == nil {
		h.groups = make(map[string][]Operation)
	}
	h.groups[group] = append(h.groups[group], o)
}

// Groups is what was done to each group. Nothing may be added after it.
func (h *History) Groups() map[string][]Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.groups
}

// Enqueued adds an enqueue. sent is empty unless its outcome is Done; facets are the messages', in a queue with facets.
func (h *History) Enqueued(s Span, o Outcome, groups, bodies []string, sent []layer.ID, facets ...layer.Template) {
	split := make(map[string][]Message)
	for i, group := range groups {
		m := Message{Body: bodies[i]}
		if o == Done {
			m.ID = sent[i]
		}
		if len(facets) > 0 {
			m.Facets = facets[i]
		}
		split[group] = append(split[group], m)
	}
	for group, messages := range split {
		h.Add(group, Operation{Span: s, Kind: Enqueue, Outcome: o, Messages: messages})
	}
}

// Received adds a receive: each claim to its group. If there is none, it adds its outcome, which may be Nothing, to all
// of the groups that it may have been from.
//
// An attempt of unknown outcome may have claimed messages by themselves, of any of these groups, whose leases others saw
// end before the receive returned; and then the receive is not told of these claims, whatever else it is told.
func (h *History) Received(
	s Span, o Outcome, of layer.ReceiveOptions, claims []*layer.Claim, from []string,
) {
	if of.Unordered && s.Doubted && o != Unknown && s.Begin+of.Lease.Milliseconds() <= s.End {
		for _, group := range from {
			h.Add(group, Operation{Span: s, Kind: Busy, Outcome: Done, All: true})
		}
	}
	one := Operation{Span: s, Kind: Receive, Outcome: o, Where: of.Where, Unordered: of.Unordered}
	for i, c := range claims {
		got := one
		got.Token, got.Messages, got.Until = c.Token, messages(c.Items), c.Until.UnixMilli()
		switch {
		case c.Hold == layer.ID{}:
		case of.Unordered:
			got.Hold = c.Hold
		default: // the claims of a group follow one another
			if got.InTurn = true; i > 0 && sameTurn(claims[i-1], c) {
				continue
			}
			for _, next := range claims[i+1:] {
				if sameTurn(c, next) {
					got.Messages = append(got.Messages, messages(next.Items)...)
				}
			}
		}
		h.Add(c.Group, got)
	}
	if len(claims) > 0 {
		return
	}
	if o == Done {
		one.Outcome = Nothing
	}
	for _, group := range from {
		h.Add(group, one)
	}
}

// sameTurn reports whether two claims of a receive are of one group.
func sameTurn(a, b *layer.Claim) bool { return a.Group == b.Group && a.Token == b.Token }

// Took adds a take, as Received adds a receive. Items are of one group.
func (h *History) Took(s Span, o Outcome, of layer.TakeOptions, items []layer.Item, from []string) {
	one := Operation{Span: s, Kind: Take, Outcome: o, Where: of.Where, Unordered: of.Unordered}
	one.Messages = messages(items)
	switch {
	case len(items) > 0:
		h.Add(items[0].ID.Group, one)
	case o == Done:
		one.Outcome, one.Messages = Nothing, nil
		for _, group := range from {
			h.Add(group, one)
		}
	}
}

// Settled adds what was done to a claim: an ack, nack or extend. acked is without bodies.
func (h *History) Settled(group string, o Operation, acked []layer.ID) {
	for _, id := range acked {
		o.Messages = append(o.Messages, Message{ID: id})
	}
	h.Add(group, o)
}

func messages(items []layer.Item) []Message {
	all := make([]Message, len(items))
	for i, item := range items {
		all[i] = Message{ID: item.ID, Body: string(item.Body)}
	}
	return all
}
