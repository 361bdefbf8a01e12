package layer

import (
	"context"
	"maps"

	"fdbfifo/kv"
)

// HandleStage makes a handler of a function that is one stage of a pipeline: for a worker with a template (Where) on a
// queue with facets. h works as long as Timeout allows, under a lease that the worker extends, and returns the facets
// which the item has next: the item is advanced to them, in its place, and a worker of that stage gets it. A facet that
// next does not name keeps its value. nil finishes the item.
//
// The item is advanced, or acked, in a transaction of its own after h has returned, so as with Handle the effect of h
// happens at least once. An error is a failed attempt, as for every kind; a next that is no template of the queue's
// facets is one, too.
func HandleStage(h func(ctx context.Context, d *Delivery) (next Template, err error)) Handler {
	if h == nil {
		return Handler{}
	}
	return Handler{inTx: true, call: func(ctx context.Context, ds []*Delivery) error {
		next, err := h(ctx, ds[0])
		if err != nil {
			return err
		}
		if err := ds[0].Queue.keys.plan.checkNext(next); err != nil {
			return err
		}
		ds[0].next = next
		return ds[0].commit(ctx, func(context.Context, kv.Tx) error { return nil })
	}}
}

// checkNext returns an error unless each facet of next is the queue's, with a value that a message may have.
func (p *lanePlan) checkNext(next Template) error {
	known := 0
	if p != nil {
		for _, name := range p.facets {
			value, ok := next[name]
			if !ok {
				continue
			}
			if err := checkFacetValue(name, value); err != nil {
				return err
			}
			known++
		}
	}
	if known == len(next) {
		return nil
	}
	err := &TemplateError{Template: next}
	if p != nil {
		err.Views = p.text
	}
	return err
}

// finish acks the delivery's item in the handler's transaction, or advances it to its next facets.
func (d *Delivery) finish(ctx context.Context, tx kv.Tx) error {
	if d.next == nil {
		return d.Queue.AckTx(ctx, tx, d.in.claim, d.ID)
	}
	return d.Queue.AdvanceTx(ctx, tx, d.in.claim, func(m *Message) error {
		maps.Copy(m.Headers, d.next)
		return nil
	}, d.ID)
}
