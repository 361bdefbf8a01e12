package layer

import (
	"context"

	"fdbfifo/kv"
)

// A group may have a state: bytes that its holders keep with it, from one claim to the next. It is written by the
// holder alone, under the check of the token, and read with the claim. It outlives claims, and the group's last item,
// until it is cleared or the group is purged. Whoever writes it also has a write conflict on the group's lock, so a
// claim needs none on the state.

// SetState keeps state with the group of a claim, in the place of what was kept before; nothing (no bytes) clears it.
// The claim and its items stay as they are. Use AckState to finish items in the same transaction.
//
// Errors: ErrClaimLost, *LimitError over MaxStateSize, ErrClosed, and the engine's; nothing was changed.
func (q *Queue) SetState(ctx context.Context, c *Claim, state []byte) error {
	s, err := newStateChange(c, state, nil, true)
	if err != nil {
		return wrap("set state", err)
	}
	return wrap("set state", q.submit(ctx, &operation{settle: s}))
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

// AckState acks as Ack does, and keeps state with the group in the same transaction, as SetState does: without ids it
// finishes all that the claim still has, with ids that are empty nothing.
//
// Errors: those of Ack and of SetState.
func (q *Queue) AckState(ctx context.Context, c *Claim, state []byte, ids ...ID) error {
	s, err := newStateChange(c, state, ids, ids != nil && len(ids) == 0)
	if err != nil {
		return wrap("ack", err)
	}
	return wrap("ack", q.submit(ctx, &operation{settle: s}))
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
	// The lock stays as it is: a takeover that has read the old state must conflict all the same.
	if err := w.excludeHolders(guardKeepExclude, s.claim.Group); err != nil {
		return err
	}
	w.setState(s.claim.Group, s.state)
	return nil
}

// GroupState reads the state of a group, whoever holds it; nil = there is none. It conflicts with nothing.
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
