package embedded

import (
	"context"
	"sync"
	"time"

	"fdbfifo/kv"
)

// pending is a result that is not there yet. It ends with the first of: the result, the end of its attempt
// (cancelled, timed out, used during commit, reset), Cancel, the caller's context.
type pending[T any] struct {
	tx     *transaction
	of     *attempt
	done   <-chan struct{}
	result func() (T, error) // valid once done is closed
	giveUp func()            // tells the operation that no caller waits for it; may be nil

	once      sync.Once
	cancelled chan struct{}
}

func newPending[T any](t *transaction, done <-chan struct{}, result func() (T, error), giveUp func()) *pending[T] {
	return &pending[T]{
		tx: t, of: t.current, done: done, result: result, giveUp: giveUp, cancelled: make(chan struct{}),
	}
}

func (p *pending[T]) Wait(ctx context.Context) (T, error) {
	var none T
	aborted := p.tx.aborted(p.of)
	for {
		if isClosed(p.done) {
			return p.result()
		}
		if isClosed(p.cancelled) {
			return none, codeError(kv.CodeOperationCancelled)
		}
		var expired <-chan time.Time
		if left, limited := p.tx.left(); limited {
			expired = p.tx.db.clock.After(left)
		}
		select {
		case <-p.done:
		case <-p.cancelled:
		case <-aborted:
			if isClosed(p.done) || isClosed(p.cancelled) {
				continue
			}
			return none, p.tx.abortError(p.of)
		case <-expired:
			p.tx.expire(p.of)
		case <-ctx.Done():
			if isClosed(p.done) {
				continue
			}
			p.Cancel()
			return none, context.Cause(ctx)
		}
	}
}

func (p *pending[T]) Ready() bool {
	return isClosed(p.done) || isClosed(p.cancelled) || isClosed(p.tx.aborted(p.of))
}

func (p *pending[T]) Cancel() {
	if isClosed(p.done) {
		return
	}
	p.once.Do(func() {
		if p.tx.abortError(p.of) == nil { // else the end of the attempt is the result
			close(p.cancelled)
		}
		if p.giveUp != nil {
			p.giveUp()
		}
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// delay is ready at a time of the engine's clock.
type delay struct {
	tx *transaction
	of *attempt
	at time.Time

	once      sync.Once
	cancelled chan struct{}
}

func (d *delay) Wait(ctx context.Context) (struct{}, error) {
	clock := d.tx.db.clock
	aborted := d.tx.aborted(d.of)
	for {
		if isClosed(d.cancelled) {
			return struct{}{}, codeError(kv.CodeOperationCancelled)
		}
		if isClosed(aborted) {
			return struct{}{}, d.tx.abortError(d.of)
		}
		left := d.at.Sub(clock.Now())
		if left <= 0 {
			return struct{}{}, nil
		}
		if until, limited := d.tx.left(); limited && until < left {
			if until <= 0 {
				d.tx.expire(d.of)
				continue
			}
			left = until
		}
		select {
		case <-clock.After(left):
		case <-aborted:
		case <-d.cancelled:
		case <-ctx.Done():
			d.Cancel()
			return struct{}{}, context.Cause(ctx)
		}
	}
}

func (d *delay) Ready() bool {
	return isClosed(d.cancelled) || isClosed(d.tx.aborted(d.of)) || !d.tx.db.clock.Now().Before(d.at)
}

func (d *delay) Cancel() {
	if d.tx.db.clock.Now().Before(d.at) && d.tx.abortError(d.of) == nil {
		d.once.Do(func() { close(d.cancelled) })
	}
}
