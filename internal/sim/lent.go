package sim

import (
	"bytes"
	"maps"
	"slices"

	"fdbfifo/layer"
)

// Callers reuse their memory. An actor gives copies to its calls. It writes over the copies as soon as the call has
// returned, also if its context has ended and the transaction goes on. The laws: each stored message, state and body is
// one that was given (compareMessage, compareStates, compareEdits), and no item is settled that was not named
// (compareFinished).

// ruined is the text that actors write over memory that they have lent.
const ruined = "ruined"

// takeBack writes over all memory that was lent to the call.
func (o *op) takeBack() {
	for _, ruin := range o.lent {
		ruin()
	}
	o.lent = nil
}

func (o *op) lends(ruin func()) { o.lent = append(o.lent, ruin) }

// lendBytes returns a copy for a call; nil stays nil.
func (o *op) lendBytes(b []byte) []byte {
	given := bytes.Clone(b)
	o.lends(func() {
		for i := range given {
			given[i] = '!'
		}
	})
	return given
}

func (o *op) lendIDs(ids []layer.ID) []layer.ID {
	given := slices.Clone(ids)
	o.lends(func() {
		for i := range given {
			given[i] = layer.ID{Group: ruined}
		}
	})
	return given
}

func lendMap[M ~map[string]string](o *op, m M) M {
	given := maps.Clone(m)
	o.lends(func() {
		if given != nil {
			clear(given)
			given[ruined] = ruined
		}
	})
	return given
}

func (o *op) lendMessages(msgs []layer.Message) []layer.Message {
	given := slices.Clone(msgs)
	for i := range given {
		m := &given[i]
		m.Body, m.Headers = o.lendBytes(m.Body), lendMap(o, m.Headers)
	}
	o.lends(func() {
		for i := range given {
			given[i] = layer.Message{Group: ruined, DedupID: ruined}
		}
	})
	return given
}

func (o *op) lendClaim(c *layer.Claim) *layer.Claim {
	given := *c
	given.Items, given.Where = slices.Clone(c.Items), lendMap(o, c.Where)
	o.lends(func() {
		for i := range given.Items {
			given.Items[i] = layer.Item{}
		}
		given.Group, given.Token, given.Hold = ruined, 0, layer.ID{}
	})
	return &given
}

func (o *op) lendReceive(r layer.ReceiveOptions) layer.ReceiveOptions {
	r.Where = lendMap(o, r.Where)
	if r.Group != nil {
		group := *r.Group
		r.Group = &group
		o.lends(func() { group = ruined })
	}
	return r
}

// lendSettlement lends all but the claim.
func (o *op) lendSettlement(s layer.Settlement) layer.Settlement {
	s.Finish, s.Advance = o.lendIDs(s.Finish), o.lendIDs(s.Advance)
	if s.State != nil {
		state := o.lendBytes(*s.State)
		s.State = &state
		o.lends(func() { state = []byte(ruined) })
	}
	if s.Nack != nil {
		nack := *s.Nack
		s.Nack = &nack
		if nack.From != nil {
			from := *nack.From
			s.Nack.From = &from
			o.lends(func() { from = layer.ID{Group: ruined} })
		}
		o.lends(func() { nack = layer.NackOptions{Reject: ruined} })
	}
	return s
}
