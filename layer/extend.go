package layer

import (
	"context"
	"time"

	"fdbfifo/kv"
)

// Extend makes a claim last for lease from now on (not from its old end), and returns its new end.
// lease is MinLease to MaxLease; 0 = the queue's.
//
// Errors: ErrClaimLost, *LimitError, ErrClosed, and the engine's.
func (q *Queue) Extend(ctx context.Context, c *Claim, lease time.Duration) (time.Time, error) {
	s, err := newExtension(c, lease)
	if err != nil {
		return time.Time{}, err
	}
	if err := q.submit(ctx, &operation{settle: s}); err != nil {
		return time.Time{}, wrap("extend", err)
	}
	return s.until, nil
}

// ExtendTx extends in the caller's transaction, as AckTx acks.
func (q *Queue) ExtendTx(ctx context.Context, tx kv.Tx, c *Claim, lease time.Duration) (time.Time, error) {
	s, err := newExtension(c, lease)
	if err != nil {
		return time.Time{}, err
	}
	err = q.settleTx(ctx, tx, s)
	return s.until, wrap("extend", err)
}

func newExtension(c *Claim, lease time.Duration) (*settlement, error) {
	return &settlement{claim: c, extends: true, lease: lease}, checkLease(lease)
}

// extend rewrites lock and timer, under the read conflict on the lock that begin added.
func (s *settlement) extend(w *work, key []byte) error {
	lease, err := w.lease(s.lease)
	if err != nil {
		return err
	}
	l, group := s.held, s.claim.Group
	w.tx.Clear(w.q.keys.timer(l.endMS, group))
	l.endMS = w.nowMS + lease.Milliseconds()
	w.tx.Set(key, l.pack())
	w.tx.Set(w.q.keys.timer(l.endMS, group), packTimer(kindClaim, l.outstanding[0].index))
	s.until = fromMillis(l.endMS)
	return nil
}
