package layer

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fdbfifo/layer/internal/guard"
)

// The parts of a settlement after which the claim continues: a longer lease, and a state of the group.

// extended updates the caller's Claim after its extension was committed: the new end by both clocks, of the wall and
// monotonic. The claim has a lease of its own from then on, and no heartbeat.
func (c *Claim) extended(r *settlementResult) {
	claimsMu.Lock()
	defer claimsMu.Unlock()
	c.failed = c.failed || c.ends.IsZero() // what is behind a rebuilt claim stays unknown
	c.Until, c.ends, c.beat, c.pulse = r.Until, r.ends, uuid.Nil, nil
}

// newExtension returns the settlement that makes a claim last for lease from now on; 0 = the queue's lease. It returns
// a *LimitError for a lease out of its bounds.
func newExtension(c *Claim, lease time.Duration) (*settlement, error) {
	return &settlement{claim: c, extend: &extension{lease: lease}}, checkLease(lease)
}

// extension makes a claim last longer.
type extension struct {
	lease time.Duration // from now on; 0 = the queue's
	// proves: a receive has given a suspect item, which may kill its process. The lock then also notes that the caller
	// has got the claim: see rec.ProvenByCaller.
	proves bool
}

// carryOut rewrites lock and timer with the new end, under the read conflict on the lock that settlement.begin added. A
// claim by heartbeat then has a lease of its own: its held key is cleared, and it gets a timer. If the handle's clock
// has stood for more than half a lease, the end still changes (otherEnd).
//
// If the extension proves the claim, a claim by heartbeat keeps its heartbeat instead. Any other claim ends no earlier
// than before, because a repeated receive may have got a claim with a longer lease, or of a holder whose clock is
// ahead. Only an end that is provably wrong (isWrong) may become earlier. ErrClaimLost then means that another handle
// has ended the heartbeat, and the lease that was left has expired.
func (e *extension) carryOut(w *txn, s *settlement) error {
	lease, err := w.lease(e.lease)
	if err != nil {
		return err
	}
	c, end := s.run.held.Claim(), w.nowMS+lease.Milliseconds()
	if !e.proves && w.q.aging.stood(w.q.opts.Now) > lease/2 {
		end = otherEnd(end, c.EndMS)
	}
	next, err := extended(w, s.run.held, end)
	if err != nil {
		return err
	}
	if e.proves {
		if s.claim.beat != uuid.Nil {
			if hasLease(c) && c.EndMS <= w.nowMS { // another handle has ended the heartbeat
				return s.lost(w.q, nil)
			}
			next, end = s.run.held, c.EndMS
		} else if end < c.EndMS && !isWrong(c, w.nowMS) {
			next, end = s.run.held, c.EndMS
		}
		next = next.Prove()
	}
	w.put(s.lane, s.run.held, next, c.FirstIndex())
	s.run.result = settlementResult{Settled{Until: fromMillis(end)}, byMonotonic(&w.view, end)}
	return nil
}

// A group may have a state: bytes which its holders store with the group, from claim to claim. The holder writes the
// state, under the check of the token (Settlement.State), or an operator (SetGroupState); a claim reads the state. The
// state outlives claims, and the group's last item, until cleared or purged with the group. Every writer also has a
// write conflict on the group's lock, so a claim needs no conflict on the state.

// stateChange stores a state with the group.
type stateChange struct {
	state []byte // nothing = cleared
	alone bool   // all items stay in the claim
}

// write sets the key state of the group, or clears it. Without a change of the state it does nothing.
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

// keep writes the key state alone, under the read conflict on the lock that settlement.begin added. It adds a write
// conflict on the lock.
func (c *stateChange) keep(w *txn, group string) error {
	// The lock's value stays, so add a write conflict: a takeover which has read the old state must fail.
	if err := w.excludeHolders(guard.KeepExclude, group); err != nil {
		return err
	}
	w.setState(group, c.state)
	return nil
}

// GroupState reads the state of a group, held or not, at snapshot; nil = no state. It conflicts with nothing. Errors:
// *LimitError and ErrInvalidUTF8 for the name, ErrNoQueue, ErrClosed, and the engine's.
func (q *Queue) GroupState(ctx context.Context, group string) ([]byte, error) {
	if err := checkGroup(group); err != nil {
		return nil, wrap("group state", err)
	}
	state, err := viewFor(ctx, q, func(v *view) ([]byte, error) { return v.waitState(v.readState(group, true)) })
	return state, wrap("group state", err)
}
