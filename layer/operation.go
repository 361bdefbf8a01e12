package layer

import (
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/line"
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
	if guard.BatchSize.Missing() {
		const none = 1 << 40
		return line.Size{Messages: none, Bytes: none, Settled: none, Received: none}
	}
	return line.Size{Messages: MaxBatch, Bytes: maxBytes, Settled: maxSettled, Received: maxReceived}
}

// Size implements line.Operation.
func (o *operation) Size() line.Size {
	var s line.Size
	if o.enqueue != nil {
		s.Messages, s.Bytes = len(o.enqueue.msgs), o.enqueue.size
	}
	if o.settle != nil {
		s.Settled, s.Bytes = max(len(o.settle.claim.Items), len(o.settle.ids)), s.Bytes+len(o.settle.state)
		s.Bytes += o.settle.bytes
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

// Unserved implements line.Operation.
func (o *operation) Unserved() bool { return o.receive.unserved() }

// Forget implements line.Operation.
func (o *operation) Forget() { o.receive.begin() }

// Settled implements line.Operation.
func (o *operation) Settled() { o.settle = nil }

// awaits returns the test of whether an operation's receive waits for w.
func awaits(w want) func(o *operation) bool {
	return func(o *operation) bool {
		own, any := o.receive.want()
		return !any && own == w
	}
}
