// Package spec is the executable specification of a group: its messages, the claims that hold them, and the messages
// that a claim may get. It shares no code with the layer, except the types of its public names.
//
// A Group is a value. Each operation returns the group after it, and changes nothing. The time is an argument: a claim
// or a delay lasts until its end is not after now. Three rules are the whole of claiming, for each kind of queue:
//
//   - A claim of a lane, the messages that a template matches, keeps out every claim whose template could match one of
//     its messages. The template of the whole group matches all.
//   - A claim of a single message keeps out that message alone. A claim in order stops before it, an unordered one
//     passes over it.
//   - No claim passes over a message that is not due.
//
// Example: in a group with the messages 1, 2, 3 and a claim of 2 alone, a receive in order gets 1, and an unordered one
// gets 1 and 3.
package spec

import (
	"slices"
	"time"

	"fdbfifo/layer"
)

// Item is a message of a group.
type Item struct {
	ID     layer.ID
	Facets layer.Template
	Due    time.Time // zero = at once
	Given  bool      // it was in a claim, and may be suspect if the lease of that claim has expired
}

// Request says how messages are claimed.
type Request struct {
	Where layer.Template // nil = of the whole group
	Any   bool           // unordered: free messages, each under a claim of its own
	Turn  bool           // in order, each under a claim of its own
}

// alone reports whether each message gets a claim of its own.
func (r Request) alone() bool { return r.Any || r.Turn }

// Claim is a claim of a group, or of a lane or message of it. Without items it is the delay that a nack has left.
type Claim struct {
	Where layer.Template
	Alone layer.ID // the message that is claimed by itself; zero = a lane or the group
	Token int64
	Items []layer.ID
	Until time.Time
}

// whole reports whether the claim is of the whole group.
func (c Claim) whole() bool { return len(c.Where) == 0 && c.Alone == layer.ID{} }

// delay reports whether the claim is a delay.
func (c Claim) delay() bool { return len(c.Items) == 0 }

// same reports whether both are one claim, at different times.
func (c Claim) same(o Claim) bool {
	return c.Token == o.Token && c.Alone == o.Alone && c.Where.String() == o.Where.String()
}

// Group is a group, in the order of its messages.
type Group struct {
	Items  []Item
	Claims []Claim
	Paused bool
}

// Agree reports whether no facet of both differs. Of two templates: a message could match both. Of a template and the
// facets of a message: the message matches.
func Agree(a, b layer.Template) bool {
	for name, value := range a {
		if other, ok := b[name]; ok && other != value {
			return false
		}
	}
	return true
}

// Free returns the messages that a claim may get, in order.
func (g Group) Free(r Request, now time.Time) (ids []layer.ID) {
	if g.Paused || slices.ContainsFunc(g.Claims, func(c Claim) bool {
		return c.Until.After(now) && c.Alone == layer.ID{} && Agree(c.Where, r.Where)
	}) {
		return nil
	}
	for _, i := range g.Items {
		switch {
		case !Agree(i.Facets, r.Where):
		case g.alone(i.ID, now) && r.Any:
		case g.alone(i.ID, now), i.Due.After(now):
			return ids
		default:
			ids = append(ids, i.ID)
		}
	}
	return ids
}

// alone reports whether a message is claimed, or delayed, by itself.
func (g Group) alone(id layer.ID, now time.Time) bool {
	return slices.ContainsFunc(g.Claims, func(c Claim) bool { return c.Alone == id && c.Until.After(now) })
}

// MayGet reports whether a claim may get these messages. In order they are the first ones, unordered they are any that
// are free. A claim may get nothing only if nothing is free.
func (g Group) MayGet(r Request, ids []layer.ID, now time.Time) bool {
	free := g.Free(r, now)
	switch {
	case len(ids) == 0:
		return len(free) == 0
	case r.Any:
		seen := make(map[layer.ID]bool)
		return !slices.ContainsFunc(ids, func(id layer.ID) bool {
			twice := seen[id]
			seen[id] = true
			return twice || !slices.Contains(free, id)
		})
	}
	return len(ids) <= len(free) && slices.Equal(ids, free[:len(ids)])
}

// Claim returns the group after a claim of these messages.
func (g Group) Claim(r Request, token int64, ids []layer.ID, until time.Time) Group {
	g.Items = slices.Clone(g.Items)
	for n := range g.Items {
		g.Items[n].Given = g.Items[n].Given || slices.Contains(ids, g.Items[n].ID)
	}
	g.Claims = slices.Clone(g.Claims)
	if !r.alone() {
		g.Claims = append(g.Claims, Claim{Where: r.Where, Token: token, Items: slices.Clone(ids), Until: until})
		return g
	}
	for _, id := range ids {
		g.Claims = append(g.Claims, Claim{Alone: id, Token: token, Items: []layer.ID{id}, Until: until})
	}
	return g
}

// Take returns the group without messages that a take got.
func (g Group) Take(ids ...layer.ID) Group {
	g.Items = slices.DeleteFunc(slices.Clone(g.Items), func(i Item) bool { return slices.Contains(ids, i.ID) })
	return g
}

// settle returns the group after a change of a claim.
func (g Group) settle(c Claim, change func(c *Claim)) Group {
	g.Claims = slices.Clone(g.Claims)
	for n := range g.Claims {
		if g.Claims[n].same(c) && !g.Claims[n].delay() {
			change(&g.Claims[n])
		}
	}
	return g
}

// leave returns the group after messages have left a claim. The claim ends with its last message.
func (g Group) leave(c Claim, ids []layer.ID) Group {
	g = g.settle(c, func(c *Claim) {
		c.Items = slices.DeleteFunc(slices.Clone(c.Items), func(id layer.ID) bool { return slices.Contains(ids, id) })
	})
	g.Claims = slices.DeleteFunc(g.Claims, func(o Claim) bool { return o.same(c) && o.delay() })
	return g
}

// Ack returns the group after some messages of a claim were acked.
func (g Group) Ack(c Claim, ids ...layer.ID) Group { return g.leave(c, ids).Take(ids...) }

// Advance returns the group after some messages of a claim were passed on to the lanes of other facets.
func (g Group) Advance(c Claim, to layer.Template, ids ...layer.ID) Group {
	return g.leave(c, ids).Edit(to, ids...)
}

// Nack returns the group after a claim was given back. Its lane, or message, waits until then. Only a pause ends the
// delay of a whole group at once.
func (g Group) Nack(c Claim, until time.Time) Group {
	g = g.leave(c, c.Items)
	if g.Paused && c.whole() || until.IsZero() {
		return g
	}
	c.Items, c.Until = nil, until
	g.Claims = append(g.Claims, c)
	return g
}

// Extend returns the group after a claim was extended.
func (g Group) Extend(c Claim, until time.Time) Group {
	return g.settle(c, func(c *Claim) { c.Until = until })
}

// Release returns the group after a claim was ended by force.
func (g Group) Release(c Claim) Group { return g.leave(c, c.Items) }

// Live returns the claims that have not ended.
func (g Group) Live(now time.Time) (all []Claim) {
	for _, c := range g.Claims {
		if !c.delay() && c.Until.After(now) {
			all = append(all, c)
		}
	}
	return all
}

// InFlight reports whether a message is under a claim.
func (g Group) InFlight(id layer.ID, now time.Time) bool {
	return slices.ContainsFunc(g.Live(now), func(c Claim) bool { return slices.Contains(c.Items, id) })
}

// Item returns a message.
func (g Group) Item(id layer.ID) (Item, bool) {
	if n := slices.IndexFunc(g.Items, func(i Item) bool { return i.ID == id }); n >= 0 {
		return g.Items[n], true
	}
	return Item{}, false
}

// Enqueue returns the group with a message behind all others.
func (g Group) Enqueue(i Item) Group {
	g.Items = append(slices.Clip(g.Items), i)
	return g
}

// Edit returns the group with other facets of messages.
func (g Group) Edit(facets layer.Template, ids ...layer.ID) Group {
	g.Items = slices.Clone(g.Items)
	for n := range g.Items {
		if slices.Contains(ids, g.Items[n].ID) {
			g.Items[n].Facets = facets
		}
	}
	return g
}

// Remove returns the group after an operator has taken a message out. The delay of the message ends, and so does that
// of each lane whose head it was.
func (g Group) Remove(id layer.ID) Group { return g.endDelays(id).Take(id) }

// RetryNow returns the group after an operator has ended the delay of its head.
func (g Group) RetryNow() Group {
	if len(g.Items) == 0 {
		return g
	}
	g = g.endDelays(g.Items[0].ID)
	g.Items = slices.Clone(g.Items)
	g.Items[0].Due = time.Time{}
	return g
}

// Delayed reports whether the head of the group waits, by itself or with the group.
func (g Group) Delayed(now time.Time) bool {
	return len(g.Items) > 0 && (g.Items[0].Due.After(now) || slices.ContainsFunc(g.Claims, func(c Claim) bool {
		return c.delay() && c.Until.After(now) && (c.whole() || c.Alone == g.Items[0].ID)
	}))
}

func (g Group) endDelays(id layer.ID) Group {
	head := func(where layer.Template) bool {
		n := slices.IndexFunc(g.Items, func(i Item) bool { return Agree(i.Facets, where) })
		return n >= 0 && g.Items[n].ID == id
	}
	g.Claims = slices.DeleteFunc(slices.Clone(g.Claims), func(c Claim) bool {
		return c.delay() && (c.Alone == id || c.Alone == layer.ID{} && head(c.Where))
	})
	return g
}

// Restore returns the group with a message in front of all others, where it was before Remove took it out.
func (g Group) Restore(i Item) Group {
	g.Items = append([]Item{i}, g.Items...)
	return g
}

// Pause returns the group after a pause. The delay of the whole group ends, and by force all claims do.
func (g Group) Pause(force bool) Group {
	g.Paused = true
	g.Claims = slices.DeleteFunc(slices.Clone(g.Claims), func(c Claim) bool {
		return force && !c.delay() || c.delay() && c.whole()
	})
	return g
}

// Resume returns the group after the end of a pause.
func (g Group) Resume() Group {
	g.Paused = false
	return g
}

// Purge returns the group with those messages alone that are in flight. If that removes any, all delays end.
func (g Group) Purge(now time.Time) Group {
	left := slices.DeleteFunc(slices.Clone(g.Items), func(i Item) bool { return !g.InFlight(i.ID, now) })
	if len(left) == len(g.Items) {
		return g
	}
	g.Items = left
	g.Claims = slices.DeleteFunc(slices.Clone(g.Claims), Claim.delay)
	return g
}
