package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"fdbfifo/kv"
)

// stage registers the handle's request if receives wait, makes the request want again if receives wait though all
// wanted groups were granted, and clears the request when the last receive has been served. requests are the oldest
// requests, as far as read.
//
// Footprint: registering adds no conflict. Rewriting adds a read conflict on the request, which meets only a sweep
// taking the handle for dead, because nobody grants to a request which wants nothing. Clearing adds a read conflict on
// the request, because a grant rewrites the request.
func (w *txn) stage(waiting []*operation, c *claimer, requests []kv.KV) (staged, error) {
	if len(waiting) == 0 || !w.mayStage {
		return staged{}, nil
	}
	unserved, wants := 0, w.stageWants(waiting)
	for _, o := range waiting {
		if _, any := o.receive.want(); any && o.receive.unserved() {
			unserved++
		}
	}
	outcome, err := w.stageAny(unserved, c, requests)
	outcome.wants = wants
	return outcome, err
}

// stageAny is stage for receives which take any group, of which so many are unserved.
func (w *txn) stageAny(unserved int, c *claimer, requests []kv.KV) (staged, error) {
	q := w.q
	index, _ := q.staging.requested()
	switch {
	case unserved > 0 && index == 0:
		now, err := w.clock()
		if err != nil {
			return staged{}, err
		}
		return w.request(now, unserved), nil
	case unserved > 0:
		// Granted groups may be gone by now, or more receives wait. A request which wants nothing is never woken.
		key := q.keys.request(index, q.staging.random)
		i := slices.IndexFunc(requests, func(row kv.KV) bool { return bytes.Equal(row.Key, key) })
		if i < 0 {
			return staged{}, nil
		}
		r, err := unpackRequest(key, requests[i].Value)
		if err != nil || r.wants > 0 {
			return staged{}, err
		}
		if err := guardRenewRequest.read(w.tx, kv.SingleKey(key)); err != nil {
			return staged{}, err
		}
		return w.request(index, unserved), nil
	case unserved == 0 && index != 0 && !q.line.awaitsAny() && !c.holdsGrants():
		key := q.keys.request(index, q.staging.random)
		if err := guardRequestClear.read(w.tx, kv.SingleKey(key)); err != nil {
			return staged{}, err
		}
		w.tx.Clear(key)
		return staged{gone: true}, nil
	}
	return staged{}, nil
}

// request writes the handle's request.
func (w *txn) request(index int64, wants int) staged {
	q := w.q
	r := request{
		owner: q.opts.Owner, wants: int64(min(wants, maxWave)), deadlineMS: w.nowMS + requestLife.Milliseconds(),
	}
	w.tx.Set(q.keys.request(index, q.staging.random), r.pack())
	w.wrote = true
	return staged{request: index, deadlineMS: r.deadlineMS}
}

// findRequest looks for the handle's request after an unknown commit which was applied.
func (q *Queue) findRequest(ctx context.Context, tx kv.Tx) (staged, error) {
	for row, err := range walk(ctx, tx.Snapshot(), q.keys.section(nameRequest), 1000) {
		if err != nil {
			return staged{}, fmt.Errorf("read requests: %w", err)
		}
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return staged{}, err
		}
		if p.id == q.staging.random {
			r, err := unpackRequest(row.Key, row.Value)
			return staged{request: p.index, deadlineMS: r.deadlineMS}, err
		}
	}
	return staged{gone: true}, nil
}

// renew moves the deadline of the handle's request. If a sweep has cleared the request, the next turn writes another.
func (q *Queue) renew(ctx context.Context, index int64) error {
	key := q.keys.request(index, q.staging.random)
	var outcome staged
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := guardRenewRequest.get(tx, key).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		outcome = staged{gone: true}
		if v == nil {
			return nil
		}
		r, err := unpackRequest(key, v)
		if err != nil {
			return err
		}
		r.deadlineMS = q.nowMS() + requestLife.Milliseconds()
		r.wants = int64(min(max(q.line.length(), 1), maxWave))
		tx.Set(key, r.pack())
		outcome = staged{request: index, deadlineMS: r.deadlineMS}
		return nil
	})
	if err == nil {
		q.staging.set(outcome)
	}
	return err
}

// withdraw clears the handle's requests for which nobody waits, and gives back the granted groups; index is 0 if there
// is no request for any group. Repeating a withdraw does no harm.
func (q *Queue) withdraw(ctx context.Context, index int64) error {
	if !q.staging.acquire() {
		if !q.line.rest(ctx, busyPause, nil) { // a receive is about to use or clear the request
			return context.Cause(ctx)
		}
		return nil
	}
	defer q.staging.release()
	wants, own := q.staging.wanting()
	wants = slices.DeleteFunc(wants, q.line.awaits)
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		for _, w := range wants {
			tx.Clear(q.wanted(w, own[w]))
		}
		return q.txn(ctx, tx).withdraw(index)
	})
	if errors.Is(err, ErrNoQueue) {
		err = nil // the request went with the queue
	}
	if err == nil {
		cleared := make(map[want]int64, len(wants))
		for _, w := range wants {
			cleared[w] = 0
		}
		q.staging.set(staged{gone: true, wants: cleared})
	}
	return err
}

// withdraw is Queue.withdraw in a single transaction. Footprint: a read conflict on the request, because every grant
// rewrites the request; per grant, a read conflict on the lock, and the footprint of a release.
func (w *txn) withdraw(index int64) error {
	q, tx, random := w.q, w.tx, w.q.staging.random
	if index == 0 {
		tx.Clear(q.keys.wake(random))
		return w.finish()
	}
	key := q.keys.request(index, random)
	if err := guardWithdrawRequest.read(tx, kv.SingleKey(key)); err != nil {
		return err
	}
	rows, err := tx.Snapshot().GetRange(q.keys.grants(random).Selectors(), kv.RangeOptions{}).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read grants: %w", err)
	}
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return err
		}
		token, err := unpackInt(row.Key, row.Value)
		if err != nil {
			return err
		}
		r, err := q.readLock(w.ctx, guardWithdrawLock.reads(tx), p.lane)
		if err != nil {
			return err
		}
		if lead := (candidate{grant: token}); !lead.accepts(r) {
			tx.Clear(row.Key)
			continue // taken over
		}
		w.end(p.lane, r, nil)
		if _, _, err := w.leave(p.lane, nil, guardReleaseEmpty, false); err != nil {
			return err
		}
	}
	tx.Clear(key)
	tx.Clear(q.keys.wake(random))
	return w.finish()
}

// sweepRequests clears the requests of dead handles for whole groups ("") and by other templates, with the grants and
// wake keys. The groups granted to a dead handle come back when the short lease of the grant ends.
func (q *Queue) sweepRequests(ctx context.Context, templates []string) error {
	_, err := kv.Run(ctx, q.db, q.batchOptions(), func(tx kv.Tx, _ kv.Attempt) error {
		for _, where := range templates {
			if err := q.sweepRequestsOf(ctx, tx, where); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

func (q *Queue) sweepRequestsOf(ctx context.Context, tx kv.Tx, where string) error {
	now := q.nowMS()
	requests := q.keys.byLaneFor(where).Selectors()
	rows, err := tx.Snapshot().GetRange(requests, kv.RangeOptions{Limit: grantProbe}).Wait(ctx)
	if err != nil {
		return fmt.Errorf("sweep requests: %w", err)
	}
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return err
		}
		r, err := unpackRequest(row.Key, row.Value)
		if err != nil {
			return err
		}
		if r.deadlineMS > now || p.id == q.staging.random {
			continue
		}
		if err := guardSweepRequest.read(tx, kv.SingleKey(row.Key)); err != nil {
			return err
		}
		tx.Clear(row.Key)
		tx.ClearRange(q.keys.grants(p.id))
		tx.Clear(q.keys.wake(p.id))
	}
	return nil
}
