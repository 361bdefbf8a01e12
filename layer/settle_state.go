package layer

import (
	"context"

	"fdbfifo/layer/internal/guard"
)

// A group may have a state: bytes which its holders store with the group, from claim to claim. The holder writes the
// state, under the check of the token (Settlement.State), or an operator (SetGroupState); a claim reads the state. The
// state outlives claims, and the group's last item, until cleared or purged with the group. Every writer also has a
// write conflict on the group's lock, so a claim needs no conflict on the state.

// stateChange stores a state with the group.
type stateChange struct {
	state []byte // nothing = cleared
	alone bool   // all items stay in the claim
}

func (*stateChange) begin(*txn, *settlement)          {}
func (*stateChange) check(*txn, *settlement) error    { return nil }
func (*stateChange) conclude(*txn, *settlement) error { return nil }

func (c *stateChange) write(w *txn, s *settlement) {
	if c != nil {
		w.setState(s.claim.Group, c.state)
	}
}

// size returns how many bytes the state adds to a transaction.
func (c *stateChange) size() int {
	if c == nil {
		return 0
	}
	return len(c.state)
}

// keep writes the state alone, under the read conflict on the lock that settlement.begin added.
func (c *stateChange) keep(w *txn, group string) error {
	// The lock's value stays, so add a write conflict: a takeover which has read the old state must fail.
	if err := w.excludeHolders(guard.KeepExclude, group); err != nil {
		return err
	}
	w.setState(group, c.state)
	return nil
}

// GroupState reads the state of a group, held or not; nil = no state. It conflicts with nothing.
func (q *Queue) GroupState(ctx context.Context, group string) ([]byte, error) {
	if err := checkGroup(group); err != nil {
		return nil, wrap("group state", err)
	}
	var state []byte
	err := q.view(ctx, func(v *view) (err error) {
		state, err = v.waitState(v.readState(group, true))
		return err
	})
	return state, wrap("group state", err)
}
