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
	unserved, named := 0, w.stageNamed(waiting)
	for _, o := range waiting {
		if !o.names() && o.receive.unserved() {
			unserved++
		}
	}
	outcome, err := w.stageAny(unserved, c, requests)
	outcome.named = named
	return outcome, err
}

// stageNamed writes the requests for the groups which unserved receives name, unless the requests are there and have
// half of their lives left. A handle writes its own requests only, so there is no conflict but with a sweep taking the
// handle for dead.
func (w *txn) stageNamed(waiting []*operation) (written map[string]int64) {
	_, known := w.q.staging.groups()
	for _, o := range waiting {
		if !o.names() || !o.receive.unserved() {
			continue
		}
		group := *o.receive.o.Group
		if known[group]-w.nowMS > requestLife.Milliseconds()/2 {
			continue
		}
		if written == nil {
			written = make(map[string]int64)
		}
		r := request{owner: w.q.opts.Owner, wants: 1, deadlineMS: w.nowMS + requestLife.Milliseconds()}
		w.tx.Set(w.q.keys.named(group, w.q.staging.random), r.pack())
		written[group], known[group] = r.deadlineMS, r.deadlineMS
		w.wrote = true
	}
	return written
}

// clearNamed clears the requests for groups for which no receive waits any more.
func (w *txn) clearNamed(waiting []*operation, outcome *staged) {
	if !w.mayStage {
		return
	}
	groups, _ := w.q.staging.groups()
	for _, group := range groups {
		awaited := func(o *operation) bool {
			return o.names() && *o.receive.o.Group == group && o.receive.unserved()
		}
		if slices.ContainsFunc(waiting, awaited) || w.q.line.awaits(group) {
			continue
		}
		w.tx.Clear(w.q.keys.named(group, w.q.staging.random))
		w.cleared = true
		if outcome.named == nil {
			outcome.named = make(map[string]int64)
		}
		outcome.named[group] = 0
	}
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
	case unserved == 0 && index != 0 && q.line.length() == 0 && !c.holdsGrants():
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

// withdraw clears the handle's requests and gives back the granted groups; index is 0 if there are requests for groups
// alone. Repeating a withdraw does no harm.
func (q *Queue) withdraw(ctx context.Context, index int64) error {
	if !q.staging.acquire() {
		if !q.line.rest(ctx, busyPause, nil) { // a receive is about to use or clear the request
			return context.Cause(ctx)
		}
		return nil
	}
	defer q.staging.release()
	groups, named := q.staging.groups()
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		for _, group := range groups {
			tx.Clear(q.keys.named(group, q.staging.random))
		}
		return q.txn(ctx, tx).withdraw(index)
	})
	if errors.Is(err, ErrNoQueue) {
		err = nil // the request went with the queue
	}
	if err == nil {
		for group := range named {
			named[group] = 0
		}
		q.staging.set(staged{gone: true, named: named})
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

// sweepRequests clears the requests of dead handles, with the grants and wake keys. The groups granted to a dead handle
// come back when the short lease of the grant ends.
func (q *Queue) sweepRequests(ctx context.Context) error {
	_, err := kv.Run(ctx, q.db, q.batchOptions(), func(tx kv.Tx, _ kv.Attempt) error {
		now := q.nowMS()
		requests := q.keys.section(nameRequest).Selectors()
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
	})
	return err
}
