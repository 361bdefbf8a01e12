package layer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
)

// This file has the work of the operations that share a transaction. An operation is the call of one caller: a
// settlement (an ack, advance, nack or extend), an enqueue, a receive, or several of these. A waiting receive is in the
// handle's waiting line. To stage a receive is to put it there, and to write the handle's request: the key that says
// that the handle waits for ready groups. The line gives its receives a turn: a transaction that tries to serve them.

// perform is one attempt of a transaction that operations share. It does the settlements (those of one lane one after
// the other), then the enqueues, then the receives, so that the receives find the groups made ready before. The reads
// of the receives begin first, so that the receives need no round trip of their own. Last, finish writes counters and
// changes, and wakes handles that wait for the groups left ready.
//
// settle, leadBackAll, enqueue, receive, noteCleared and finish say which keys. Before the receives, if there are any,
// keepOwn may extend claims of the handle (locks and timers). conflicts is how many conflicts the receives have lost
// before. The result says what the transaction has done to the handle's requests. An error is of the whole transaction;
// that of a single operation is in the operation.
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
			// The resume of the queue may have woken this handle. So the handle must not use the configuration that it
			// has read before.
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
	// The settlements may have ended holds: leave hints of their groups, so that the receives find these.
	if err := w.leadBackAll(); err != nil {
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

// checkAdvanced returns errTooLarge if the transaction has become too large to be committed, because a settlement has
// written items again with new bodies (advance). The sizes of these bodies were not known before.
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

// receiving has the operations of a transaction that receive.
type receiving struct {
	operations []*operation
	waiting    int        // how many of the operations go into the waiting line if they get nothing
	called     bool       // the transaction is a turn of the waiting line: all operations are from the line
	claimers   []*claimer // one for each template; none = the operations are staged without a look for groups
}

// add adds an operation, and removes the results of its receive in an earlier attempt.
func (r *receiving) add(o *operation) {
	o.receive.begin()
	r.operations = append(r.operations, o)
	if o.Waits {
		r.waiting++
	}
	r.called = r.called || o.Turn != nil
}

// none reports whether no operation receives.
func (r *receiving) none() bool { return len(r.operations) == 0 }

// stageFirst reports whether the receives are staged without a look for groups: all of them may wait, none has waited
// yet, and they have lost stageAfter conflicts.
func (r *receiving) stageFirst(conflicts int) bool {
	return !r.called && r.waiting == len(r.operations) && conflicts >= stageAfter
}

// all returns the receives of the operations.
func (r *receiving) all() []*reception {
	rs := make([]*reception, len(r.operations))
	for i, o := range r.operations {
		rs[i] = o.receive
	}
	return rs
}

// settle takes the settlements through their steps together, so that their reads overlap. No two of them may be of one
// lane. The steps of settlement say which keys. If a claim is lost or a settlement is refused, its operation gets
// settleErr, and the others continue. An error that is returned is of the whole transaction.
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
		if err := o.settle.advance.conclude(w); err != nil {
			return err
		}
	}
	return nil
}

// receive claims groups for the receives, and stages those that wait and have got nothing. It leaves out operations
// whose settlement has failed. It claims nothing if there are no claimers, or if leaveAlone says that another handle is
// about to receive the groups found. claimer.claim has the keys of the claims, and stage those of the requests. In a
// turn of the waiting line takeTurn does all of this, and also grants groups to other handles. conflicts is how many
// conflicts the receives have lost. The result says what has become of the handle's requests.
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
	for _, c := range all.claimers {
		c.owed = slices.DeleteFunc(slices.Clone(rs), func(r *reception) bool { return r.where != c.where })
	}
	if all.called {
		return w.takeTurn(all.claimers, waiting, rs)
	}
	if len(waiting) == len(rs) {
		if alone, err := w.leaveAlone(all.claimers, waiting, conflicts); err != nil {
			return staged{}, err
		} else if alone {
			return w.stage(waiting, nil, nil)
		}
	}
	if err := w.claimAll(all.claimers, rs); err != nil {
		return staged{}, err
	}
	return w.stage(waiting, all.claimers, nil)
}

// claimAll lets the claimers claim for the receives rs, and then looks for a message for those with OnlyIfAny. If a
// receive has got a claim, also one that it gets again by its receive id, claimAll sets did.wrote: then the transaction
// must not be done twice, and writes a receipt.
func (w *txn) claimAll(claimers []*claimer, rs []*reception) error {
	for _, c := range claimers {
		if err := c.claim(); err != nil {
			return err
		}
	}
	for _, r := range rs {
		w.did.wrote = w.did.wrote || len(r.claims) > 0
	}
	return w.lookForAny(rs)
}
