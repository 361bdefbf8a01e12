package sim

import (
	"context"
	"errors"
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

type outcome int

const (
	done    outcome = iota
	refused         // nothing has happened
	unknown         // it may have happened, or may yet
)

// op is one call of an actor, and what it was told.
type op struct {
	kind       string
	actor, who int
	begin, end int // steps of the driver
	outcome    outcome
	limited    bool // its context may end before it does

	bodies []string // enqueue: of its messages
	groups []string // likewise
	sent   []layer.ID

	// What it finishes: items of a claim, or of its own choice.
	group  string
	token  int64 // of a configure: its version; of a force-release: that of the claim it ended
	settle bool  // it settles a claim: token and group
	all    bool  // of the claim, what it still has
	ids    []layer.ID
	tried  []layer.ID // take: of all attempts; the outcome may be unknown
	effect bool       // counted under the effect keys, in the same transaction

	claims []*layer.Claim // receive
	items  []layer.Item   // take

	sweeping bool // it may remove anything (purge), of group if that is not ""
	forcing  bool // it may end anybody's claim
}

// judge says what an error leaves open, and whether it may come at all.
func judge(err error, limited bool) (outcome, bool) {
	if err == nil {
		return done, true
	}
	for _, e := range []error{
		layer.ErrClaimLost, layer.ErrNotInClaim, layer.ErrNoItem, layer.ErrInHand, layer.ErrNotHeld, layer.ErrNotPaused,
		layer.ErrNotDelayed, layer.ErrNotDead,
	} {
		if errors.Is(err, e) {
			return refused, true
		}
	}
	var e *kv.Error
	if errors.As(err, &e) {
		if e.InFlight || e.MaybeCommitted() {
			return unknown, true
		}
		return refused, limited || e.Code == kv.CodeTransactionTimedOut
	}
	if limited && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return unknown, true // of a receive: what it claims is given back
	}
	return refused, false
}

func (o *op) String() string {
	return fmt.Sprintf("%s by actor %d (handle %d), steps %d-%d, outcome %d, group %q token %d ids %v sent %v",
		o.kind, o.actor, o.who, o.begin, o.end, o.outcome, o.group, o.token, o.ids, o.sent)
}
