package layer

import (
	"context"
	"errors"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// This file gives back the claims of receives whose callers never got them. A caller may have left before the end of
// the receive, or the outcome of the commit is unknown. In the second case the receipt tells which attempt was applied:
// a row that the transaction writes together with the claims. To release a claim is to nack it without a failed
// attempt: the lock is cleared, the group gets a hint, and its items are delivered again (Queue.Nack).

// giveBackAll releases claims that no caller has. It tries until the longest of their leases has expired.
func (q *Queue) giveBackAll(claims []*Claim) {
	ctx := q.named(context.Background(), "give back of %s under %d", claims[0].Items[0].ID, claims[0].Token)
	q.yield(ctx, "begin")
	during := endTimeout
	for _, c := range claims {
		during = max(during, min(c.Until.Sub(q.Now()), MaxLease))
	}
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	releaseAll(ctx, q, claims)
}

// releaseAll releases claims that no caller has, one after the other, each in a transaction of its own. It tries again
// after an error of the database, until ctx ends or the handle is closed. A claim that is lost or unreadable is left
// alone.
func releaseAll(ctx context.Context, q *Queue, claims []*Claim) {
	for _, c := range claims {
		for pause := firstLook; ; pause = min(2*pause, time.Second) {
			err := q.Nack(ctx, c, NackOptions{Release: true})
			if errors.Is(err, ErrNoQueue) || errors.Is(err, ErrClosed) {
				return
			}
			if err == nil || kv.Code(err) == 0 && ctx.Err() == nil { // it is lost, or cannot be read
				break
			}
			if !pauseBackground(ctx, q, pause) {
				return
			}
		}
	}
}

// searchesFor is for how long a handle asks at least whether a commit of unknown outcome was applied. One answer is
// enough: see settleReceipt.
const searchesFor = 10 * time.Second

// firstLook is the pause after the first try that failed. It doubles, up to a second.
const firstLook = 20 * time.Millisecond

// pauseBackground waits for d, and reports whether the caller may try again: false = ctx has ended, or the handle is
// closed.
func pauseBackground(ctx context.Context, q *Queue, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-q.heart.life.Done():
	case <-ctx.Done():
	}
	q.yield(ctx, "look again")
	return ctx.Err() == nil && !q.isClosed()
}

// giveBackUnknown finds out whether a receive whose outcome is unknown has made claims, and releases them: no caller
// knows of them. given has the claims of each attempt that may have been applied, by the number of the attempt. r is
// the receipt of the receive. giveBackUnknown ends when the database has answered and the claims are released, after
// lease (at least searchesFor), and at Close.
func giveBackUnknown(q *Queue, r *ownReceipt, given map[int64][]rec.ClaimRef, lease time.Duration) {
	ctx := q.named(context.Background(), "give back by receipt %s", r.own)
	q.yield(ctx, "begin")
	defer r.end(ctx)
	r.written, r.succeeded = true, false
	ctx, cancel := context.WithTimeout(ctx, max(lease, searchesFor))
	defer cancel()
	defer context.AfterFunc(q.heart.life, cancel)()
	for pause := firstLook; ; pause = min(2*pause, time.Second) {
		landed, found, err := settleReceipt(ctx, q, r.key)
		if err == nil {
			if r.written = found; found {
				releaseAll(ctx, q, claimsOf(q, given[landed]))
			}
			return
		}
		if !pauseBackground(ctx, q, pause) {
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
// giveBackUnknown. It returns false if there are no claims to give back, or if the handle is closed. After true the
// goroutine has the receipt r, and ends it. results has the results of each attempt that may have been applied.
func disown(q *Queue, r *ownReceipt, batch []*operation, results map[int64]*attempted) bool {
	given := orphans(batch, results)
	s := &q.suspects
	s.mu.Lock() // Close waits for all searches that are added before it gets the mutex
	defer s.mu.Unlock()
	if len(given) == 0 || q.isClosed() {
		return false
	}
	lease := longestLease(q, batch)
	s.searches++
	s.orphans.Go(func() {
		defer s.searched()
		giveBackUnknown(q, r, given, lease)
	})
	return true
}

// claimsOf returns claims with the fields that a release needs, and no more. It reads no key.
func claimsOf(q *Queue, given []rec.ClaimRef) []*Claim {
	claims := make([]*Claim, len(given))
	for i, ref := range given {
		hold, _ := holdOf(ref.Lane)
		claims[i] = &Claim{
			Queue: q.name, Group: lanes.GroupOf(ref.Lane), Where: q.keys.plan.TemplateOf(ref.Lane),
			Hold: hold, Token: ref.Token,
		}
	}
	return claims
}

// orphans returns the claims that the receives of the batch were given, by the number of the attempt. Their callers get
// an error, and will never hear of them. A claim under a receive id is left out, because the caller can repeat the
// receive.
func orphans(batch []*operation, results map[int64]*attempted) map[int64][]rec.ClaimRef {
	given := make(map[int64][]rec.ClaimRef)
	for attempt, all := range results {
		for i, o := range batch {
			if o.receive != nil && o.receive.o.ReceiveID == "" {
				given[attempt] = append(given[attempt], all.landed[i].given...)
			}
		}
		if len(given[attempt]) == 0 {
			delete(given, attempt)
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
