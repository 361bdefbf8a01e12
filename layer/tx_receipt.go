package layer

import (
	"fmt"

	"fdbfifo/kv/tuple"
)

// What the receipts of operations keep, see tx_once.go: each result has its form here, and nowhere else.

// result is what the receipt keeps of a receive: the claims by their names. Their items are read anew, see reload.
func (r *reception) result() tuple.Tuple { return claimTuple(r.given()) }

// result is what the receipt keeps of an enqueue: the index of each message, or the whole id of the message that it is a
// duplicate of; or why the enqueue was refused. For example (7, 8) of two messages, and (7, (A, 3, random)) if the second
// was a duplicate.
func (e *enqueuing) result() tuple.Tuple {
	if e.full != nil {
		return tuple.Tuple{"full", e.full.Group, e.full.Adding, e.full.Max}
	}
	t := make(tuple.Tuple, len(e.sent))
	for i, s := range e.sent {
		t[i] = s.ID.Index
		if s.Duplicate {
			t[i] = tuple.Tuple{s.ID.Group, s.ID.Index, s.ID.Random}
		}
	}
	return t
}

// restore takes the result from a receipt: the attempt that landed may not be the last one that ran.
func (e *enqueuing) restore(t tuple.Tuple) error {
	d := decoder{rest: t.Pack()}
	e.full = nil
	if len(t) > 0 && t[0] == "full" {
		d.str()
		e.full = &FullError{Group: d.str(), Adding: d.int(), Max: d.int()}
	} else {
		d.check(len(t) == len(e.msgs), "it is of %d messages, not %d", len(t), len(e.msgs))
		e.sent = make([]Sent, len(e.msgs))
		for i := 0; i < len(e.sent) && d.more(); i++ {
			e.sent[i] = d.sent(ID{Group: e.msgs[i].Group, Random: e.randoms[i]})
		}
	}
	if err := d.left(); err != nil {
		return fmt.Errorf("%w: receipt of an enqueue %v: %w", ErrCorrupt, t, err)
	}
	return nil
}

// sent reads what became of a message: its index, with which id is its own, or the id of another message.
func (d *decoder) sent(id ID) Sent {
	if !d.follows(codeNested) {
		id.Index = d.int()
		return Sent{ID: id}
	}
	d.list(func() { id = ID{Group: d.str(), Index: d.int(), Random: d.uuid()} })
	return Sent{ID: id, Duplicate: true}
}
