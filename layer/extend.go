package layer

import (
	"context"
	"time"

	"fdbfifo/kv"
)

// Extend makes a claim last for lease from now on (not from its old end), and returns its new end.
// lease is MinLease to MaxLease; 0 = DefaultLease.
//
// Errors: ErrClaimLost, *LimitError, ErrClosed, and the engine's.
func (q *Queue) Extend(ctx context.Context, c *Claim, lease time.Duration) (time.Time, error) {
	if lease == 0 {
		lease = DefaultLease
	}
	if err := checkLease(lease); err != nil {
		return time.Time{}, err
	}
	var until time.Time
	err := q.settle(ctx, "extend", func(tx kv.Tx) (err error) {
		until, err = q.extend(ctx, tx, c, lease)
		return err
	})
	return until, err
}

// ExtendTx extends in the caller's transaction, as AckTx acks.
func (q *Queue) ExtendTx(ctx context.Context, tx kv.Tx, c *Claim, lease time.Duration) (time.Time, error) {
	if lease == 0 {
		lease = DefaultLease
	}
	if err := checkLease(lease); err != nil {
		return time.Time{}, err
	}
	until, err := q.extend(ctx, tx, c, lease)
	return until, wrap("extend", err)
}

// extend rewrites lock and timer under a read conflict on the lock.
func (q *Queue) extend(ctx context.Context, tx kv.Tx, c *Claim, lease time.Duration) (time.Time, error) {
	if q.closed.Load() {
		return time.Time{}, ErrClosed
	}
	l, err := q.holds(ctx, tx, c)
	if err != nil {
		return time.Time{}, err
	}
	tx.Clear(q.keys.timer(l.endMS, c.Group))
	l.endMS = q.nowMS() + lease.Milliseconds()
	tx.Set(q.keys.lock(c.Group), l.pack())
	tx.Set(q.keys.timer(l.endMS, c.Group), packTimer(kindClaim, l.outstanding[0].index))
	return fromMillis(l.endMS), nil
}
