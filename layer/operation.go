package layer

import (
	"context"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// operation is the work of one caller in one transaction: an enqueue, a settlement, a receive, or a settlement and a
// receive. line.Op says which goroutine owns an operation at a time.
type operation struct {
	line.Op
	enqueue *enqueuing
	settle  *settlement // nil once the receive waits, because the settlement is done then
	receive *reception

	// settleErr is the settlement's own error: ErrClaimLost, ErrNotInClaim, ErrCorrupt.
	settleErr error
	adds      int // bytes that the settlement is likely to add to a transaction, as far as known at submission
	used      int // bytes of the last attempt's transaction, if the operation is the first of it
	retries   int // of the last transaction, if the operation is the first of it
}

// The bounds of one transaction's operations. FoundationDB allows 10 MB and advises to stay below 1 MB.
const (
	maxBytes    = 1 << 20 // of messages
	maxSettled  = 2000    // items acked
	maxReceived = 2000    // items asked for
)

// mostTogether returns the bounds of a transaction of several operations.
func mostTogether() line.Size {
	return line.Size{Messages: MaxBatch, Bytes: maxBytes, Settled: maxSettled, Received: maxReceived}
}

// Size implements line.Operation.
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

// Settles, Enqueues and Receives implement line.Operation.
func (o *operation) Settles() bool  { return o.settle != nil }
func (o *operation) Enqueues() bool { return o.enqueue != nil }
func (o *operation) Receives() bool { return o.receive != nil }

// Err implements line.Operation.
func (o *operation) Err() error {
	switch {
	case o.TxErr != nil:
		return o.TxErr
	case o.settleErr != nil:
		return o.settleErr
	case o.enqueue != nil && o.enqueue.full != nil:
		return o.enqueue.full
	case o.receive != nil:
		return o.receive.err()
	}
	return nil
}

// Named implements line.Operation.
func (o *operation) Named() bool { return o.receive.o.Group != nil }

// Template implements line.Operation.
func (o *operation) Template() string { return o.receive.where }

// Place implements line.Operation.
func (o *operation) Place() string {
	w, any := o.receive.want()
	if any {
		return ""
	}
	return w.place()
}

// Unserved implements line.Operation.
func (o *operation) Unserved() bool { return o.receive.unserved() }

// Forget implements line.Operation.
func (o *operation) Forget() { o.receive.begin() }

// Settled implements line.Operation.
func (o *operation) Settled() { o.settle = nil }

func receives(o *operation) bool { return o.receive != nil }

// writesFirst reports whether the operation settles or enqueues.
func writesFirst(o *operation) bool { return o.settle != nil || o.enqueue != nil }

// settlesUnder returns the beat of the claim which the operation settles; uuid.Nil = it settles none by heartbeat.
func (o *operation) settlesUnder() uuid.UUID {
	if o.settle == nil {
		return uuid.Nil
	}
	return o.settle.claim.beat
}

// served reports whether the operation's receive has got something.
func (o *operation) served() bool { return o.receive != nil && len(o.receive.claims) > 0 }

// byHeartbeat reports whether the operation may have claimed by heartbeat.
func (o *operation) byHeartbeat() bool { return o.receive != nil && o.receive.o.Heartbeat }

// ranWith notes the outcome of an operation's transaction.
func (o *operation) ranWith(err error) {
	if o.TxErr = err; o.settle != nil && err == nil && o.settleErr == nil {
		o.settle.done.Store(true)
	}
}

// landed is the results of an operation in an attempt, to be restored if the attempt turns out to have been applied.
type landed struct {
	settleErr error
	settled   settlementResult
	sent      []Sent
	full      *FullError
	given     []rec.ClaimRef // the items are read again, see reload
}

// results returns the results of the attempt under way.
func (o *operation) results() landed {
	l := landed{settleErr: o.settleErr}
	if s := o.settle; s != nil {
		l.settled = s.run.result
	}
	if e := o.enqueue; e != nil {
		l.sent, l.full = e.sent, e.full
	}
	if o.receive != nil {
		l.given = o.receive.given()
	}
	return l
}

// restore takes the results of the attempt which was applied: it may not be the last attempt which ran.
func (o *operation) restore(ctx context.Context, q *Queue, tx kv.Tx, l *landed) (err error) {
	if s := o.settle; s != nil {
		o.settleErr, s.run.result = l.settleErr, l.settled
	}
	if e := o.enqueue; e != nil {
		e.sent, e.full = l.sent, l.full
	}
	if o.receive == nil {
		return nil
	}
	o.receive.begin()
	o.receive.claims, err = q.reload(ctx, tx, l.given, &o.receive.o)
	o.receive.more = len(l.given) == 0 // the attempt may have left something to the next transaction
	return err
}
