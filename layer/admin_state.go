package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
)

// SetGroupStateOptions say how somebody other than the holder sets the state of a group.
type SetGroupStateOptions struct {
	// Force also sets the state of a held group. Its holder has read the old state and may overwrite the new.
	Force bool
}

// SetGroupState sets the state of a group which nobody holds; no bytes clear the state. A claim whose lease has run out
// does not count as holding.
//
// Errors: ErrHeld, *LimitError, ErrInvalidUTF8, ErrClosed, and the engine's; nothing was changed.
func (a Admin) SetGroupState(ctx context.Context, group string, state []byte, o SetGroupStateOptions) error {
	return a.act(ctx, VerbSetGroupState, &group, ID{}, func(ctx context.Context) (int, error) {
		return 0, a.q.onceTx(ctx, func(tx kv.Tx) error { return a.SetGroupStateTx(ctx, tx, group, state, o) })
	})
}

// SetGroupStateTx sets the state in the caller's transaction. The caller answers for an unknown commit: use Once.
//
// Reads: the lock, with a conflict. Conflicts: with claims, acks and what else changes the lock of the group.
func (a Admin) SetGroupStateTx(
	ctx context.Context, tx kv.Tx, group string, state []byte, o SetGroupStateOptions,
) error {
	q := a.q
	if err := checkGroup(group); err != nil {
		return wrap("set group state", err)
	}
	if err := checkState(state); err != nil {
		return wrap("set group state", err)
	}
	return wrap("set group state", q.operate(ctx, tx, func(w *txn) error {
		r, err := q.readLock(ctx, guardStateLock.reads(tx), group)
		if err != nil {
			return err
		}
		if r.at(w.nowMS) == claimed && !o.Force {
			return fmt.Errorf("%w: group %q, by %q", ErrHeld, group, r.claim().owner)
		}
		if err := w.excludeHolders(guardStateExclude, group); err != nil {
			return err
		}
		w.setState(group, state)
		return nil
	}))
}
