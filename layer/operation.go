package layer

import (
	"context"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// operation is the call of one caller in a transaction that it may share with others: an enqueue, a settlement (an ack,
// advance, nack or extend), a receive, or a settlement and a receive. line.Op says which goroutine owns an operation at
// a time. Package line makes operations share transactions, and knows them by the methods below; none of these reads or
// writes a key, except restore. Named, Template, Place, Unserved, Keeps and Forget panic if the operation does not
// receive.
type operation struct {
	line.Op
	enqueue *enqueuing  // nil = none; so for the next two
	settle  *settlement // nil once the receive waits, because the settlement is done then
	receive *reception

	// settleErr is the settlement's own error, for example ErrClaimLost, ErrNotInClaim or ErrCorrupt. It does not end
	// the transaction.
	settleErr error
	adds      int // bytes that the settlement is likely to add to a transaction, as far as known at submission
	used      int // bytes of the last attempt's transaction, if the operation is the first of it
	retries   int // of the last transaction, if the operation is the first of it
}

// The bounds of one transaction's operations. FoundationDB allows 10 MB and advises to stay below 1 MB.
const (
	maxBytes    = 1 << 20 // of messages, and that the settlements are likely to add
	maxSettled  = 2000    // items acked
	maxReceived = 2000    // items asked for
)

// mostTogether returns the bounds of a transaction of several operations.
func mostTogether() line.Size {
	return line.Size{Messages: MaxBatch, Bytes: maxBytes, Settled: maxSettled, Received: maxReceived}
}

// Size implements line.Operation: it returns how much the operation adds to a transaction.
func (o *operation) Size() line.Size {
	var s line.Size
	if o.enqueue != nil {
		s.Messages, s.Bytes = len(o.enqueue.msgs), o.enqueue.size
	}
	if o.settle != nil {
		s.Settled, s.Bytes = max(len(o.settle.claim.Items), len(o.settle.ids)), s.Bytes+o.adds
	}
	if o.receive != nil {
		s.Received = o.receive.o.Max
	}
	return s
}

// Settles, Enqueues and Receives implement line.Operation. They report which parts the operation has. Settles is false
// once the settlement is done, and only the receive is left.
func (o *operation) Settles() bool  { return o.settle != nil }
func (o *operation) Enqueues() bool { return o.enqueue != nil }
func (o *operation) Receives() bool { return o.receive != nil }

// Err implements line.Operation: it returns the error with which the caller's call ends. That is the error of the
// transaction, or else the first error of a part.
func (o *operation) Err() error {
	switch {
	case o.TxErr != nil:
		return o.TxErr
	case o.settleErr != nil:
		return o.settleErr
	case o.enqueue != nil && o.enqueue.refused != nil:
		return o.enqueue.refused
	case o.receive != nil:
		return o.receive.err()
	}
	return nil
}

// Named implements line.Operation: it reports whether the receive names its group.
func (o *operation) Named() bool { return o.receive.o.Group != nil }

// Template implements line.Operation: it returns the packed template of the receive; "" = whole groups.
func (o *operation) Template() string { return o.receive.where }

// Place implements line.Operation: it names the lane or the template that the receive waits for. Receives with equal
// places need one look. "" = the receive takes any whole group.
func (o *operation) Place() string {
	w, any := o.receive.want()
	if any {
		return ""
	}
	return w.place()
}

// Unserved implements line.Operation: it reports whether the receive has no claim and must wait for one, see
// reception.unserved.
func (o *operation) Unserved() bool { return o.receive.unserved() }

// Keeps implements line.Operation: it reports whether the receive has a receive id. Then the caller can repeat it, and
// its claims are not given back.
func (o *operation) Keeps() bool { return o.receive.o.ReceiveID != "" }

// Forget implements line.Operation: it removes the results of the receive in its last transaction.
func (o *operation) Forget() { o.receive.begin() }

// Settled implements line.Operation: the settlement is done, and only the receive is left.
func (o *operation) Settled() { o.settle = nil }

// writesFirst reports whether the operation settles or enqueues. A transaction does so before it receives.
func writesFirst(o *operation) bool { return o.settle != nil || o.enqueue != nil }

// settlesUnder returns the number of the heartbeat on which the claim to settle depends; uuid.Nil = the operation
// settles no claim by heartbeat.
func (o *operation) settlesUnder() uuid.UUID {
	if o.settle == nil {
		return uuid.Nil
	}
	return o.settle.claim.beat
}

// served reports whether the operation's receive has got a claim.
func (o *operation) served() bool { return o.receive != nil && len(o.receive.claims) > 0 }

// byHeartbeat reports whether the operation's receive asks for claims by heartbeat.
func (o *operation) byHeartbeat() bool { return o.receive != nil && o.receive.o.Heartbeat }

// ranWith notes the error of the operation's transaction in TxErr; nil = it was committed. Then the settlement counts
// as done, unless it has an error of its own.
func (o *operation) ranWith(err error) {
	if o.TxErr = err; o.settle != nil && err == nil && o.settleErr == nil {
		o.settle.done.Store(true)
	}
}

// landed is the results of an operation in one attempt of its transaction. They are kept, and restored if this attempt
// turns out to have been applied.
type landed struct {
	settleErr error
	settled   settlementResult
	sent      []Sent         // of an enqueue
	refused   error          // of an enqueue: enqueuing.refused
	given     []rec.ClaimRef // the claims of a receive, by lane and token; the items are read again, see reload
}

// results returns the results of the attempt under way, so that restore can set them again if this attempt turns out to
// have been applied. They are the error and the result of the settlement, the messages sent or the refusal of an
// enqueue, and lane and token of each claim of the receive. results reads and writes no key.
func (o *operation) results() landed {
	l := landed{settleErr: o.settleErr}
	if s := o.settle; s != nil {
		l.settled = s.run.result
	}
	if e := o.enqueue; e != nil {
		l.sent, l.refused = e.sent, e.refused
	}
	if o.receive != nil {
		l.given = o.receive.given()
	}
	return l
}

// restore sets the results of the operation to those of the attempt that was applied. It may not be the last attempt
// that ran. Of a receive, restore reads the claims again in tx: their locks, items with parts, states if asked for, and
// attempt records, at snapshot. It leaves out claims that are lost by now.
func (o *operation) restore(ctx context.Context, q *Queue, tx kv.Tx, l *landed) (err error) {
	if s := o.settle; s != nil {
		o.settleErr, s.run.result = l.settleErr, l.settled
	}
	if e := o.enqueue; e != nil {
		e.sent, e.refused = l.sent, l.refused
	}
	if o.receive == nil {
		return nil
	}
	o.receive.begin()
	o.receive.claims, err = q.reload(ctx, tx, l.given, &o.receive.o)
	o.receive.more = len(l.given) == 0 // the attempt may have left something to the next transaction
	return err
}
