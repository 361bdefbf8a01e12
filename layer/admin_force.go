package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
)

// ForceReleaseOptions say how to take a group from the holder.
type ForceReleaseOptions struct {
	// Token, if not 0, is the token of the claim to end. A claim with another token stays, with ErrClaimLost.
	Token int64
	// CountAttempt counts a failed attempt for the item which was tried, as if the lease had ended.
	CountAttempt bool
	// Reason is stored with the attempt; only with CountAttempt.
	Reason string
	// Where is the template of the claim, in a queue with facets; nil = a claim of the whole group.
	Where Template
	// Hold is the item of the claim of an item (Claim.Hold), an item of the group; zero = a claim of the whole group,
	// or of Where.
	Hold ID
}

// Holder is who held a group.
type Holder struct {
	Owner       string
	Token       int64 // of the ended claim
	Outstanding int   // items delivered and not acked
}

// ForceRelease takes a group from the holder and makes the group ready, or paused if the group was paused meanwhile.
// The claim is lost from then on, whatever is left of the lease, and the next claim has a greater token. The holder
// learns of the loss at the next ack, nack or extend (ErrClaimLost); until then the handler may still be running. No
// attempt is counted unless o says so.
//
// Errors: ErrNotHeld, ErrClaimLost if the claim has another token than o.Token, ErrOptions, ErrClosed, and the
// engine's; after an error nothing was changed.
func (a Admin) ForceRelease(ctx context.Context, group string, o ForceReleaseOptions) (Holder, error) {
	var h Holder
	err := a.act(ctx, VerbForceRelease, &group, ID{}, func(ctx context.Context) (n int, err error) {
		h, err = onceFor(ctx, a.q, a.q.opts.Tx, holderReceipt, func(tx kv.Tx, _ kv.Attempt) (Holder, bool, error) {
			h, err := a.ForceReleaseTx(ctx, tx, group, o)
			return h, true, err
		})
		return h.Outstanding, err
	})
	return h, err
}

// ForceReleaseTx releases in the caller's transaction. The caller answers for an unknown commit: use Once.
//
// Reads: the lock, with a conflict; the key of the head at snapshot, with a conflict on the whole group if the group is
// empty; attempts.
func (a Admin) ForceReleaseTx(ctx context.Context, tx kv.Tx, group string, o ForceReleaseOptions) (Holder, error) {
	q := a.q
	if err := checkGroup(group); err != nil {
		return Holder{}, wrap("force release", err)
	}
	if o.Reason != "" && !o.CountAttempt {
		return Holder{}, wrap("force release",
			fmt.Errorf("%w: a reason without an attempt to keep it with", ErrOptions))
	}
	if o.Hold != (ID{}) && (o.Where != nil || o.Hold.Group != group) {
		return Holder{}, wrap("force release",
			fmt.Errorf("%w: the claim of message %q is of no template, and of its own group", ErrOptions, o.Hold))
	}
	claim := &Claim{Group: group, Where: o.Where, Hold: o.Hold}
	lane, err := claim.lane(q)
	if err != nil {
		return Holder{}, wrap("force release", err)
	}
	what, _ := claim.words()
	var h Holder
	err = q.operate(ctx, tx, func(w *txn) error {
		r, err := q.readLock(ctx, guardForceLock.reads(tx), lane)
		if err != nil {
			return err
		}
		c := r.claim()
		if c == nil {
			return fmt.Errorf("%w: %s", ErrNotHeld, what)
		}
		if o.Token != 0 && o.Token != c.token {
			return fmt.Errorf("%w: %s is held under token %d, not %d", ErrClaimLost, what, c.token, o.Token)
		}
		h = Holder{Owner: c.owner, Token: c.token, Outstanding: len(c.items)}
		w.count(countForced, 1)
		m := r.mark
		if o.CountAttempt {
			text := "released by force, held by " + c.owner
			if a.by != "" {
				text = "released by " + a.by + ", held by " + c.owner
			}
			if o.Reason != "" {
				text += ": " + o.Reason
			}
			f, err := w.judgeTried(lane, c, text)
			if err != nil {
				return err
			}
			if m, err = f.carryOut(w, m, ID{}); err != nil {
				return err
			}
		}
		if !w.end(lane, r, m) {
			return nil
		}
		return w.free(lane)
	})
	return h, wrap("force release", err)
}

// RetryOptions say what is retried. The zero value retries whatever the head is.
type RetryOptions struct {
	// Head, if not zero, is the head that the caller has seen: if another item is the head now, its delay stays, and
	// the error wraps ErrChanged.
	Head ID
	// Where is the template whose delay is meant, in a queue with facets; nil = the whole group.
	Where Template
}

// RetryNow ends the delay of a group which waits for a retry, or whose head is delayed, so that the group is ready at
// once.
//
// Errors: ErrNotDelayed, ErrChanged, *LimitError, ErrInvalidUTF8, ErrClosed, and the engine's.
func (a Admin) RetryNow(ctx context.Context, group string, o RetryOptions) error {
	return a.act(ctx, VerbRetryNow, &group, o.Head, func(ctx context.Context) (int, error) {
		return 0, a.q.onceTx(ctx, func(tx kv.Tx) error { return a.RetryNowTx(ctx, tx, group, o) })
	})
}

// RetryNowTx ends the delay in the caller's transaction, as ForceReleaseTx releases.
func (a Admin) RetryNowTx(ctx context.Context, tx kv.Tx, group string, o RetryOptions) error {
	q := a.q
	if err := checkGroup(group); err != nil {
		return wrap("retry now", err)
	}
	lane, err := q.laneAt(group, o.Where)
	if err != nil {
		return wrap("retry now", err)
	}
	return wrap("retry now", q.operate(ctx, tx, func(w *txn) error {
		held, r, err := w.delayOf(lane)
		if err != nil {
			return err
		}
		if r != nil && !r.is(kindDelay) {
			return fmt.Errorf("%w: group %q", ErrNotDelayed, group)
		}
		if err := w.q.sawHead(w.ctx, w.tx.Snapshot(), lane, o.Head); err != nil {
			return err
		}
		early, err := w.hasten(lane)
		if err != nil {
			return err
		}
		if r == nil && !early {
			return fmt.Errorf("%w: group %q", ErrNotDelayed, group)
		}
		if r != nil {
			w.end(held, r, nil)
		}
		if err := w.excludeHolders(guardRetryExclude, lane); err != nil {
			return err
		}
		return w.free(lane)
	}))
}
