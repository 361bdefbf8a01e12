package layer

import (
	"context"
	"errors"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/line"
)

// This file gives back the claims of receives whose callers never got them. A caller may have left before the end of
// the receive, or the outcome of the commit is unknown. In the second case the receipt tells which attempt was applied:
// a row that the transaction writes together with the claims. To release a claim is to nack it without a failed
// attempt: the lock is cleared, the group gets a hint, and its items are delivered again (Queue.Nack).
//
// The work is done in goroutines of the handle. Close waits for them, because a claim that stays holds its group until
// the lease ends.

// giveBackAll starts a goroutine that releases claims that no caller has: see releaseAll. There must be at least one
// claim, and the first must have its items. The goroutine tries until the longest of the leases has expired, and for at
// least endTimeout; orphans.start says when Close ends it earlier. If the handle has no room for the goroutine
// (mostOrphans), the claims stay until their leases end. The handle then leaves the heartbeat of claims without a
// lease, so that these end, too.
func giveBackAll(q *Queue, claims []*Claim) {
	during := endTimeout
	for _, c := range claims {
		during = max(during, min(c.Until.Sub(q.Now()), MaxLease))
	}
	started := q.orphans.start(during, func(ctx context.Context) {
		ctx = q.named(ctx, "give back of %s under %d", claims[0].Items[0].ID, claims[0].Token)
		q.yield(ctx, "begin")
		releaseAll(ctx, q, claims)
	})
	if !started {
		for _, c := range claims {
			q.heart.end(c.pulse)
		}
	}
}

// releaseAll releases claims that no caller has, one after the other by Nack; after Close several in a transaction
// (releaseLate). It tries again after an error of the database, until ctx ends. It returns at once if the queue is gone
// or the database is closed. A claim that is lost or unreadable is left alone.
func releaseAll(ctx context.Context, q *Queue, claims []*Claim) {
	for pause := firstLook; len(claims) > 0; {
		n, err := 1, q.Nack(ctx, claims[0], NackOptions{Release: true})
		if errors.Is(err, ErrClosed) && q.isClosed() {
			n, err = releaseLate(ctx, q, claims)
		}
		switch {
		case errors.Is(err, ErrNoQueue), errors.Is(err, ErrClosed): // the database is closed
			return
		case err == nil, kv.Code(err) == 0 && ctx.Err() == nil: // released, or it is lost, or cannot be read
			claims, pause = claims[n:], firstLook
		case !wait(ctx, q, pause, "look again"):
			return
		default:
			pause = min(2*pause, time.Second)
		}
	}
}

// releaseLate releases claims in a transaction of its own, which also runs after Close. It takes as many of the claims
// as may share a transaction, from the first on, and returns their number. If they are too large together, or fail by
// an error that is not the engine's, it tries the first alone. A claim that is lost by then, or that cannot be read,
// counts as released. So the transaction needs no receipt: its second run finds that the first has ended the claims.
// The keys are those of a Nack with Release.
func releaseLate(ctx context.Context, q *Queue, claims []*Claim) (n int, err error) {
	var batch []*operation
	var total line.Size
	for _, c := range claims {
		o := &operation{settle: &settlement{claim: c, back: newGivingBack(&NackOptions{Release: true})}}
		if err := q.prepare(o); err != nil {
			return 1, err // it is the first: a claim that this handle has made has no error
		}
		total = total.Plus(o.Size())
		if len(batch) == releasedTogether || len(batch) > 0 && total.Exceeds(mostTogether()) {
			break
		}
		batch = append(batch, o)
	}
	for {
		_, err = kv.Run(ctx, q.db, txFor(q, "give back"), func(tx kv.Tx, _ kv.Attempt) error {
			w := q.txn(ctx, tx)
			_, err := w.perform(batch, 0)
			q.learn(&w.chores, err)
			return err
		})
		if n = len(batch); n == 1 || kv.Code(err) != 0 && !tooLarge(err) || err == nil {
			return n, err
		}
		batch = batch[:1]
	}
}

// releasedTogether bounds the claims that one transaction releases after Close.
const releasedTogether = 64

// searchesFor is for how long a handle asks at least whether a commit of unknown outcome was applied. One answer is
// enough: see settleReceipt.
const searchesFor = 10 * time.Second

// firstLook is the pause after the first try that failed. It doubles, up to a second.
const firstLook = 20 * time.Millisecond

// wait waits for d, and reports whether the caller may go on: false = ctx has ended. who names the goroutine, see
// yield.
func wait(ctx context.Context, q *Queue, d time.Duration, who string) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	q.yield(ctx, who)
	return ctx.Err() == nil
}

// giveBackUnknown finds out whether a receive whose outcome is unknown has made claims, and releases them: no caller
// knows of them. settleReceipt and releaseAll have the keys. given has the claims of each attempt that may have been
// applied, by the number of the attempt. r is the receipt of the receive. giveBackUnknown returns when the database has
// answered and the claims are released, or when ctx ends. In both cases it ends r (ownReceipt.end).
func giveBackUnknown(ctx context.Context, q *Queue, r *ownReceipt, given map[int64][]*Claim) {
	ctx = q.named(ctx, "give back by receipt %s", r.own)
	q.yield(ctx, "begin")
	defer r.end(ctx)
	r.written, r.succeeded = true, false
	for pause := firstLook; ; pause = min(2*pause, time.Second) {
		landed, found, err := settleReceipt(ctx, q, r.key)
		if err == nil {
			if r.written = found; found {
				releaseAll(ctx, q, given[landed])
			}
			return
		}
		if !wait(ctx, q, pause, "look again") {
			return
		}
	}
}

// settleReceipt reads the receipt with the given key, with a conflict, and returns which attempt of its operation was
// applied (landed), if found. Not found means that none was applied, and none will be: then settleReceipt writes a
// conflict on the receipt, and a commit that may still land fails by it, as in fenceReceipt.
func settleReceipt(ctx context.Context, q *Queue, key []byte) (landed int64, found bool, err error) {
	_, err = kv.Run(ctx, q.db, txFor(q, "receipt"), func(tx kv.Tx, _ kv.Attempt) (err error) {
		if landed, found, err = q.readReceipt(ctx, tx, key); err != nil || found {
			return err
		}
		return guard.Orphan.Write(tx, key)
	})
	return landed, found, err
}

// disown starts the goroutine that gives back the claims of a transaction whose outcome is unknown: see
// giveBackUnknown. It returns false if there are no claims to give back, or if the handle has no room for the goroutine
// (mostOrphans). After true the goroutine has the receipt r, and ends it. results has the results of each attempt that
// may have been applied.
func disown(q *Queue, r *ownReceipt, batch []*operation, results map[int64]*attempted) bool {
	given := orphansOf(q, batch, results)
	if len(given) == 0 {
		return false
	}
	return q.orphans.start(max(longestLease(q, batch), searchesFor), func(ctx context.Context) {
		giveBackUnknown(ctx, q, r, given)
	})
}

// orphansOf returns the claims that the receives of the batch were given, by the number of the attempt. Their callers
// get an error, and will never hear of them. A claim under a receive id is left out, because the caller can repeat the
// receive. The claims have no Items: a release needs only the lane and the token.
func orphansOf(q *Queue, batch []*operation, results map[int64]*attempted) map[int64][]*Claim {
	given := make(map[int64][]*Claim)
	for attempt, all := range results {
		for i, o := range batch {
			for _, ref := range all.landed[i].given {
				if o.receive.o.ReceiveID == "" {
					given[attempt] = append(given[attempt], givenClaim(q, ref))
				}
			}
		}
	}
	return given
}

// longestLease returns the longest lease that a receive of the batch asks for: the queue's at least.
func longestLease(q *Queue, batch []*operation) time.Duration {
	lease := q.knownConfig().Lease
	for _, o := range batch {
		if o.receive != nil {
			lease = max(lease, o.receive.o.Lease)
		}
	}
	return lease
}
