package layer

import (
	"context"
	"maps"
	"strings"

	"fdbfifo/kv"
)

// HandleStage makes a handler of a function that is one stage of a pipeline: for a worker with a template (Where) on a
// queue with facets. h works as long as Timeout allows, under a lease that the worker extends, and returns the facets
// which the item has next: the item is advanced to them, in its place, and a worker of that stage gets it. A facet that
// next does not name keeps its value. nil finishes the item.
//
// Items are advanced as Handle acks them: while h is called for the next of the claim, those finished meanwhile
// together, and the last of the claim in the transaction that receives the next claim. So the effect of h happens at
// least once. For an effect that happens exactly once use HandleTx or HandleCommit with Delivery.AdvanceTo; for a stage
// that handles a claim's items together, HandleBatch. An error is a failed attempt, as for every kind; a next that
// AdvanceTo refuses is one, too. NewWorker refuses a stage for a queue without facets.
func HandleStage(h func(ctx context.Context, d *Delivery) (next Template, err error)) Handler {
	if h == nil {
		return Handler{}
	}
	handler := Handle(func(ctx context.Context, d *Delivery) error {
		next, err := h(ctx, d)
		if err != nil {
			return err
		}
		return d.AdvanceTo(next)
	})
	handler.stage = true
	return handler
}

// AdvanceTo says that the item, when its handler has returned nil, is not to be finished but advanced (see
// Queue.Advance): in the place of the ack, so with HandleTx and HandleCommit in the handler's transaction. A facet that
// next does not name keeps its value. The last call counts; nil finishes the item. A handler of HandleTx, or the second
// one of HandleCommit, calls AdvanceTo each time that it is called itself.
//
// Errors: *ValueError if next names what is no facet of the queue, or nothing; *LimitError and ErrInvalidUTF8 for a
// value, as Enqueue's. The item has failed then, also if the handler returns nil.
func (d *Delivery) AdvanceTo(next Template) error {
	d.next, d.refused = maps.Clone(next), nil
	if next == nil {
		return nil
	}
	config := d.Queue.Config()
	err := config.CheckFacets(next)
	if err == nil {
		m := d.message()
		maps.Copy(m.Headers, next)
		_, err = m.check()
	}
	if err != nil {
		d.refused = wrap("advance to "+next.String(), err)
	}
	return d.refused
}

// refused is the error of a handler that has returned nil, though AdvanceTo has refused what an item is to have next.
func refused(ds []*Delivery) error {
	for i, d := range ds {
		switch {
		case d.refused == nil:
		case i == 0:
			return d.refused
		default:
			return &BatchError{Done: i, Err: d.refused}
		}
	}
	return nil
}

// CheckFacets returns an error unless t names facets of the queue alone, one at least, with values that a message may
// have: what a message can be advanced to (Delivery.AdvanceTo). Errors: *ValueError, *LimitError, ErrInvalidUTF8.
func (c Config) CheckFacets(t Template) error {
	known := 0
	for _, name := range c.Facets {
		value, ok := t[name]
		if !ok {
			continue
		}
		if err := checkFacetValue(name, value); err != nil {
			return err
		}
		known++
	}
	if known == len(t) && known > 0 {
		return nil
	}
	allowed := "none: the queue has no facets"
	if len(c.Facets) > 0 {
		allowed = "values of the queue's facets: " + strings.Join(c.Facets, ", ")
	}
	return &ValueError{What: "facets", Got: t.String(), Allowed: allowed}
}

// advancingOf is how the items of deliveries are advanced, for a settlement; nil = all are acked.
func advancingOf(ds ...*Delivery) func(id ID) func(m *Message) error {
	next := make(map[ID]Template)
	for _, d := range ds {
		if d.next != nil {
			next[d.ID] = d.next
		}
	}
	if len(next) == 0 {
		return nil
	}
	return func(id ID) func(m *Message) error {
		facets := next[id]
		if facets == nil {
			return nil
		}
		return func(m *Message) error {
			maps.Copy(m.Headers, facets)
			return nil
		}
	}
}

// finish acks the delivery's item in the handler's transaction, or advances it.
func (d *Delivery) finish(ctx context.Context, tx kv.Tx) error {
	if d.refused != nil {
		return d.refused
	}
	return d.Queue.settleTx(ctx, tx, &settlement{claim: d.in.claim, ids: []ID{d.ID}, change: advancingOf(d)})
}
