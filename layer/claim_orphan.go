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

// giveBackAll releases claims which no caller has, while their leases last.
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

// releaseAll releases claims which no caller has, each as soon as the database allows it, until ctx ends.
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

// searchesFor is for how long a handle asks at least whether a commit of unknown outcome has landed. One answer is
// enough: see settleReceipt.
const searchesFor = 10 * time.Second

// firstLook is the pause after the first look that failed. It doubles, up to a second.
const firstLook = 20 * time.Millisecond

// pauseBackground waits, and reports whether there is a reason to continue.
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

// giveBackUnknown finds out whether a receive whose outcome is unknown has made claims, and gives them back: no caller
// knows of them. given has the claims of each attempt that may have landed. giveBackUnknown ends when the database has
// answered, when the leases have expired, and at Close.
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

// settleReceipt returns which attempt of an operation was applied, if one was. Otherwise none will be: as in
// fenceReceipt, a commit that may still land fails.
func settleReceipt(ctx context.Context, q *Queue, key []byte) (landed int64, found bool, err error) {
	_, err = kv.Run(ctx, q.db, txFor(q, "receipt"), func(tx kv.Tx, _ kv.Attempt) (err error) {
		if landed, found, err = q.readReceipt(ctx, tx, key); err != nil || found {
			return err
		}
		return guard.Orphan.Write(tx, key)
	})
	return landed, found, err
}

// disown begins to give back the claims of a transaction whose outcome is unknown. It reports whether there may be any.
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

// claimsOf returns claims that are in the database, with no more than a release needs.
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

// orphans returns the claims in the results of a transaction whose callers will never hear of them. A claim under a
// receive id is left out: its caller repeats the receive.
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

// longestLease is the longest lease that a receive of the batch asks for.
func longestLease(q *Queue, batch []*operation) time.Duration {
	lease := q.knownConfig().Lease
	for _, o := range batch {
		if o.receive != nil {
			lease = max(lease, o.receive.o.Lease)
		}
	}
	return lease
}
