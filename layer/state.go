package layer

import (
	"context"
	"fmt"

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

func checkState(state []byte) error {
	if len(state) > MaxStateSize {
		return &LimitError{What: "state", Unit: "bytes", Got: int64(len(state)), Max: MaxStateSize}
	}
	return nil
}

// keep writes the state alone, under the read conflict on the lock that begin added.
func (s *settlement) keep(w *work) error {
	// The lock stays as it is: a takeover that has read the old state must conflict all the same.
	if err := w.excludeHolders(guardKeepExclude, s.claim.Group); err != nil {
		return err
	}
	w.setState(s.claim.Group, s.state)
	return nil
}

func (w *work) setState(group string, state []byte) {
	if len(state) == 0 {
		w.tx.Clear(w.q.keys.state(group))
		return
	}
	w.tx.Set(w.q.keys.state(group), state)
}

// readState starts reading a group's state if it is wanted; nil if not.
func readState(q *Queue, tx kv.ReadTx, group string, wanted bool) kv.Future[[]byte] {
	if !wanted {
		return nil
	}
	return tx.Get(q.keys.state(group))
}

// waitState returns nil for a read that was not started.
func waitState(ctx context.Context, f kv.Future[[]byte]) ([]byte, error) {
	if f == nil {
		return nil, nil
	}
	v, err := f.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return v, nil
}

// checkStoredState holds a state in the database to its form.
func checkStoredState(key, value []byte) error {
	if len(value) == 0 {
		return corrupt(key, fmt.Errorf("a state of no bytes"))
	}
	if err := checkState(value); err != nil {
		return corrupt(key, err)
	}
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

// SetGroupStateOptions say how the state of a group is set by others than its holder.
type SetGroupStateOptions struct {
	// Force sets it also while somebody holds the group, who has read the old one and may write over the new one.
	Force bool
}

// SetGroupState sets the state of a group that nobody holds; nothing (no bytes) clears it. A claim whose lease has run
// out holds nothing.
//
// Errors: ErrHeld, *LimitError, ErrInvalidUTF8, ErrClosed, and the engine's; nothing was changed.
func (q *Queue) SetGroupState(ctx context.Context, group string, state []byte, o SetGroupStateOptions) error {
	return q.Once(ctx, func(tx kv.Tx) error { return q.SetGroupStateTx(ctx, tx, group, state, o) })
}

// SetGroupStateTx sets the state in the caller's transaction. The caller answers for an unknown commit: use Once.
//
// Reads: the lock, with a conflict. Conflicts: with claims, acks and what else changes the lock of the group.
func (q *Queue) SetGroupStateTx(ctx context.Context, tx kv.Tx, group string, state []byte, o SetGroupStateOptions) error {
	if err := checkGroup(group); err != nil {
		return wrap("set group state", err)
	}
	if err := checkState(state); err != nil {
		return wrap("set group state", err)
	}
	return wrap("set group state", q.operate(ctx, tx, func(w *work) error {
		l, err := q.readLock(ctx, guardStateLock.reads(tx), group)
		if err != nil {
			return err
		}
		if l != nil && l.kind == kindClaim && l.endMS > w.nowMS && !o.Force {
			return fmt.Errorf("%w: group %q, by %q", ErrHeld, group, l.owner)
		}
		if err := w.excludeHolders(guardStateExclude, group); err != nil {
			return err
		}
		w.setState(group, state)
		return nil
	}))
}
