package layer

import (
	"time"

	"github.com/google/uuid"
)

// extended notes the new end of the claim, which has a lease of its own from then on.
func (c *Claim) extended(r *settlementResult) {
	claimsMu.Lock()
	defer claimsMu.Unlock()
	c.Until, c.ends, c.beat, c.pulse = r.until, r.ends, uuid.Nil, nil
}

func newExtension(c *Claim, lease time.Duration) (*settlement, error) {
	return &settlement{claim: c, extend: &extension{lease: lease}}, checkLease(lease)
}

// extension makes a claim last longer.
type extension struct {
	lease  time.Duration // from now on; 0 = the queue's
	proves bool          // the lock notes that the caller knows its claim, see rec.ProvenByCaller
}

// carryOut rewrites lock and timer, under the read conflict on the lock that begin added. A claim by heartbeat then has
// a lease of its own. If the extension proves the claim, the claim keeps its heartbeat instead, and never ends earlier
// than before: a repeated receive may have given the claim to a holder whose clock is ahead, or with a longer lease.
func (e *extension) carryOut(w *txn, s *settlement) error {
	lease, err := w.lease(e.lease)
	if err != nil {
		return err
	}
	c, end := s.run.held.Claim(), w.nowMS+lease.Milliseconds()
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
	w.put(s.lane, s.run.held, next, c.Items[0].Index)
	s.run.result = settlementResult{until: fromMillis(end), ends: byMonotonic(&w.view, end)}
	return nil
}
