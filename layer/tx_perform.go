package layer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
)

// perform does the work of all operations: first the settlements, for each group one after the other, then the
// enqueues, then the receives, so that the receives find the groups made ready before. The reads of the receives begin
// first, so that the receives need no round trip of their own.
func (w *txn) perform(batch []*operation, conflicts int) (staged, error) {
	var settle []*operation
	var enqueue []*enqueuing
	var receive receiving
	for _, o := range batch {
		o.settleErr = nil
		if o.settle != nil {
			settle = append(settle, o)
		}
		if o.enqueue != nil {
			enqueue = append(enqueue, o.enqueue)
		}
		if o.receive != nil {
			if len(w.q.opts.Hooks) > 0 {
				o.receive.tried = time.Now()
			}
			receive.add(o)
		}
	}
	if !receive.none() && !receive.stageFirst(conflicts) {
		if receive.called {
			// Read the configuration again: the operator who has just resumed the queue counts on the woken handle.
			w.followAnew()
		}
		for _, rs := range byTemplate(receive.all()) {
			c := w.newClaimer(rs[0].where, rs)
			c.modest = receive.called && conflicts > 0
			c.begin()
			receive.claimers = append(receive.claimers, c)
		}
	}
	for len(settle) > 0 {
		var now, later []*operation
		settled := make(map[string]bool, len(settle))
		for _, o := range settle {
			if lane := o.settle.lane; settled[lane] {
				later = append(later, o)
			} else {
				settled[lane] = true
				now = append(now, o)
			}
		}
		if err := w.settle(now); err != nil {
			return staged{}, err
		}
		settle = later
	}
	if err := w.leadBackAll(); err != nil { // the receives are to find the groups
		return staged{}, err
	}
	if err := w.enqueue(enqueue...); err != nil {
		return staged{}, err
	}
	if !receive.none() {
		if err := keepOwn(w); err != nil {
			return staged{}, err
		}
	}
	outcome, err := w.receive(&receive, conflicts)
	if err != nil {
		return outcome, err
	}
	if err := w.noteCleared(&outcome, outcome.gone); err != nil {
		return outcome, err
	}
	if err := w.meetOwed(receive.all(), len(receive.claimers) > 0); err != nil {
		return outcome, err
	}
	outcome.granted = w.wakes.others
	if err := w.finish(); err != nil {
		return outcome, err
	}
	return outcome, checkAdvanced(w, batch)
}

// checkAdvanced returns errTooLarge if advanced items, whose new bodies were not known before, have made the
// transaction too large to be committed.
func checkAdvanced(w *txn, batch []*operation) error {
	if !slices.ContainsFunc(batch, func(o *operation) bool { return o.settle != nil && o.settle.advance != nil }) {
		return nil
	}
	err := w.checkSize()
	if errors.Is(err, ErrLimit) {
		return fmt.Errorf("%w: %w", errTooLarge, err)
	}
	return err
}

// receiving is the operations of a transaction which receive.
type receiving struct {
	operations []*operation
	waiting    int        // how many of the operations wait
	called     bool       // by the waiting line: then all operations are
	claimers   []*claimer // one for each template; none = the operations are staged without a look
}

func (r *receiving) add(o *operation) {
	o.receive.begin()
	r.operations = append(r.operations, o)
	if o.Waits {
		r.waiting++
	}
	r.called = r.called || o.Turn != nil
}

func (r *receiving) none() bool { return len(r.operations) == 0 }

// stageFirst reports whether all operations wait and are to be staged without a look.
func (r *receiving) stageFirst(conflicts int) bool {
	return !r.called && r.waiting == len(r.operations) && conflicts >= stageAfter
}

func (r *receiving) all() []*reception {
	rs := make([]*reception, len(r.operations))
	for i, o := range r.operations {
		rs[i] = o.receive
	}
	return rs
}

// settle takes the settlements, of different groups, through their steps together.
func (w *txn) settle(os []*operation) error {
	for _, o := range os {
		o.settle.begin(w)
	}
	for _, o := range os {
		err := o.settle.apply(w)
		if err != nil && kv.Code(err) != 0 {
			return err
		}
		o.settleErr = err // nothing was written: only this settlement fails
		w.did.wrote = w.did.wrote || err == nil
	}
	for _, o := range os {
		if o.settleErr != nil {
			continue
		}
		if err := o.settle.finish(w); err != nil {
			return err
		}
	}
	for _, o := range os {
		if o.settleErr != nil {
			continue
		}
		if err := o.settle.conclude(w); err != nil {
			return err
		}
	}
	return nil
}

// receive claims for the operations whose settlement, if any, succeeded, and stages the operations waiting for a group
// to become ready.
func (w *txn) receive(all *receiving, conflicts int) (staged, error) {
	var rs []*reception
	var waiting []*operation
	for _, o := range all.operations {
		if o.settleErr == nil {
			rs = append(rs, o.receive)
			if o.Waits {
				waiting = append(waiting, o)
			}
		}
	}
	if len(rs) == 0 {
		return staged{}, nil
	}
	if len(all.claimers) == 0 {
		if err := w.lookForAny(rs); err != nil {
			return staged{}, err
		}
		return w.stage(waiting, nil, nil)
	}
	var whole *claimer // of the receives which may wait
	for _, c := range all.claimers {
		c.owed = slices.DeleteFunc(slices.Clone(rs), func(r *reception) bool { return r.where != c.where })
	}
	if all.called {
		return w.takeTurn(all.claimers, waiting)
	}
	if len(waiting) == len(rs) {
		if alone, err := w.leaveAlone(all.claimers, waiting, conflicts); err != nil {
			return staged{}, err
		} else if alone {
			return w.stage(waiting, nil, nil)
		}
	}
	for _, c := range all.claimers {
		if c.where == "" {
			whole = c
		}
		if err := c.claim(); err != nil {
			return staged{}, err
		}
	}
	w.claimed(rs)
	if err := w.lookForAny(rs); err != nil {
		return staged{}, err
	}
	return w.stage(waiting, whole, nil)
}

// claimed sets did.wrote if a receive has got a claim, also one that is given again by its receive id.
func (w *txn) claimed(rs []*reception) {
	for _, r := range rs {
		w.did.wrote = w.did.wrote || len(r.claims) > 0
	}
}
