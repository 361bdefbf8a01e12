package layer

import (
	"context"

	"fdbfifo/kv"
)

// A group may have a state: bytes which its holders store with the group, from claim to claim. The holder writes the
// state, under the check of the token, or an operator (SetGroupState); a claim reads the state. The state outlives
// claims, and the group's last item, until cleared or purged with the group. Every writer also has a write conflict on
// the group's lock, so a claim needs no conflict on the state.

// SetState stores state with the group of a claim, in the place of the old state; no bytes clear the state. The claim
// and its items stay unchanged. Use AckState to finish items in the same transaction.
//
// Errors: ErrClaimLost, *LimitError over MaxStateSize, ErrClosed, and the engine's; nothing was changed.
func (q *Queue) SetState(ctx context.Context, c *Claim, state []byte) error {
	s, err := newStateChange(c, state, nil, true)
	if err != nil {
		return wrap("set state", err)
	}
	return wrap("set state", q.settleAlone(ctx, s))
}

// SetStateTx sets the state in the caller's transaction, as AckTx acks.
//
// Reads: the lock, with a conflict.
func (q *Queue) SetStateTx(ctx context.Context, tx kv.Tx, c *Claim, state []byte) error {
	s, err := newStateChange(c, state, nil, true)
	if err != nil {
		return wrap("set state", err)
	}
	return wrap("set state", q.settleTx(ctx, tx, s))
}

// AckState acks as Ack does, and stores state with the group in the same transaction, as SetState does. Without ids
// AckState finishes all that the claim still has; with an empty slice of ids, nothing.
//
// Errors: those of Ack and of SetState.
func (q *Queue) AckState(ctx context.Context, c *Claim, state []byte, ids ...ID) error {
	s, err := newStateChange(c, state, ids, ids != nil && len(ids) == 0)
	if err != nil {
		return wrap("ack", err)
	}
	if err = q.settleAlone(ctx, s); err == nil {
		c.drop(ids, nil)
	}
	return wrap("ack", err)
}

// AckStateTx is AckState in the caller's transaction, as AckTx acks.
func (q *Queue) AckStateTx(ctx context.Context, tx kv.Tx, c *Claim, state []byte, ids ...ID) error {
	s, err := newStateChange(c, state, ids, ids != nil && len(ids) == 0)
	if err != nil {
		return wrap("ack", err)
	}
	return wrap("ack", q.settleTx(ctx, tx, s))
}

func newStateChange(c *Claim, state []byte, ids []ID, keeps bool) (*settlement, error) {
	return &settlement{claim: c, ids: ids, sets: true, state: state, keeps: keeps}, checkState(state)
}

// keep writes the state alone, under the read conflict on the lock that begin added.
func (s *settlement) keep(w *txn) error {
	// The lock's value stays, so add a write conflict: a takeover which has read the old state must fail.
	if err := w.excludeHolders(guardKeepExclude, s.claim.Group); err != nil {
		return err
	}
	w.setState(s.claim.Group, s.state)
	return nil
}

// GroupState reads the state of a group, held or not; nil = no state. It conflicts with nothing.
func (q *Queue) GroupState(ctx context.Context, group string) ([]byte, error) {
	if err := checkGroup(group); err != nil {
		return nil, wrap("group state", err)
	}
	var state []byte
	err := q.view(ctx, func(tx kv.ReadTx) (err error) {
		state, err = waitState(ctx, readState(q, tx, group, true))
		return err
	})
	return state, wrap("group state", err)
}
