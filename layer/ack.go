package layer

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Ack finishes items of a claim: they are never delivered again. Without ids it finishes all that the claim
// still has. When the last one is finished the claim ends and the group is free for others.
//
// Errors: ErrClaimLost, ErrNotInClaim (also for an item acked before), ErrClosed, and the engine's; with any
// of the first two nothing was changed.
func (q *Queue) Ack(ctx context.Context, c *Claim, ids ...ID) error {
	return q.settle(ctx, "ack", func(tx kv.Tx) error { return q.ack(ctx, tx, c, ids, nil) })
}

// AckTx acks in the caller's transaction. An error of it means that nothing was written; the transaction may
// go on without the ack, unless the error wraps a *kv.Error. The caller answers for an unknown commit: use Once.
//
// Reads: the lock, with a conflict. When the claim ends: the key of the next item at snapshot, with a conflict
// on the gap up to it, or on the whole group if that is empty now.
func (q *Queue) AckTx(ctx context.Context, tx kv.Tx, c *Claim, ids ...ID) error {
	return wrap("ack", q.ack(ctx, tx, c, ids, nil))
}

// NackOptions say how a claim is given back.
type NackOptions struct {
	// Acked are finished in the same transaction, before the rest is given back.
	Acked []ID
	// Err is kept with the attempt of the item that was tried, its first maxErrorText bytes; may be nil.
	Err error
	// Delay keeps the whole group from being delivered for so long; 0 to MaxDelay.
	Delay time.Duration
	// Release gives back without counting a failed attempt: the items were not tried.
	Release bool
}

// Nack gives a claim back: all that it still has is delivered again, in the same order. The first of it is the
// item that was tried and counts a failed attempt; those behind it count none.
//
// Errors: as Ack's, and *LimitError for the delay.
func (q *Queue) Nack(ctx context.Context, c *Claim, o NackOptions) error {
	if err := checkDelay(o.Delay); err != nil {
		return err
	}
	return q.settle(ctx, "nack", func(tx kv.Tx) error { return q.ack(ctx, tx, c, o.Acked, &o) })
}

// NackTx gives a claim back in the caller's transaction, as AckTx acks.
func (q *Queue) NackTx(ctx context.Context, tx kv.Tx, c *Claim, o NackOptions) error {
	if err := checkDelay(o.Delay); err != nil {
		return err
	}
	return wrap("nack", q.ack(ctx, tx, c, o.Acked, &o))
}

func wrap(verb string, err error) error {
	if err != nil {
		return fmt.Errorf("layer: %s: %w", verb, err)
	}
	return nil
}

// settle runs body in a transaction of its own that happens once.
func (q *Queue) settle(ctx context.Context, verb string, body func(tx kv.Tx) error) error {
	return wrap(verb, q.once(ctx, func(tx kv.Tx, _ kv.Attempt) (tuple.Tuple, error) { return tuple.Tuple{}, body(tx) }, nil))
}

// ack finishes ids (all that is outstanding if there are none and nothing is given back), then ends the claim
// if nothing is left of it or if back says that the rest is given back. It writes nothing before it knows that
// the claim is held.
func (q *Queue) ack(ctx context.Context, tx kv.Tx, c *Claim, ids []ID, back *NackOptions) error {
	if q.closed.Load() {
		return ErrClosed
	}
	l, err := q.holds(ctx, tx, c)
	if err != nil {
		return err
	}
	acked, left, err := l.divide(c.Group, ids, back == nil)
	if err != nil {
		return err
	}
	q.remove(tx, c.Group, l.outstanding, acked)
	q.add(tx, countAcked, len(acked))
	lockKey := q.keys.lock(c.Group)
	if len(left) > 0 && back == nil {
		l.outstanding = left
		tx.Set(lockKey, l.pack())
		return nil
	}
	tx.Clear(q.keys.timer(l.endMS, c.Group))
	if len(left) == 0 {
		tx.Clear(lockKey)
		return q.release(ctx, tx, c.Group)
	}
	return q.giveBack(ctx, tx, c, l, left, back)
}

// holds reads the lock with a conflict and returns it if it is the claim's: this is the fencing check. A lease
// that has run out does no harm as long as nobody has taken over.
func (q *Queue) holds(ctx context.Context, tx kv.Tx, c *Claim) (*lock, error) {
	l, err := q.readLock(ctx, tx, c.Group)
	if err != nil {
		return nil, err
	}
	if l == nil || l.kind != kindClaim || l.token != c.Token {
		return nil, fmt.Errorf("%w: group %q, token %d", ErrClaimLost, c.Group, c.Token)
	}
	return l, nil
}

// divide splits what is outstanding into what ids name and the rest, both in key order.
func (l *lock) divide(group string, ids []ID, allIfNone bool) (acked, left []delivered, err error) {
	if len(ids) == 0 {
		if allIfNone {
			return l.outstanding, nil, nil
		}
		return nil, l.outstanding, nil
	}
	named := make(map[ID]bool, len(ids))
	for _, id := range ids {
		named[id] = true
	}
	found := 0
	for _, d := range l.outstanding {
		if named[d.id(group)] {
			acked = append(acked, d)
			found++
		} else {
			left = append(left, d)
		}
	}
	if found < len(named) {
		for _, d := range acked {
			delete(named, d.id(group))
		}
		for id := range named {
			return nil, nil, fmt.Errorf("%w: %s", ErrNotInClaim, id)
		}
	}
	return acked, left, nil
}

// remove clears the items acked, out of those under the claim, by their exact keys: a range from the first to
// the last would take with it an item whose enqueue committed late, between them. Attempt records need no such
// care, because only an item that was tried has one: they go by ranges, one for each run of acked items.
func (q *Queue) remove(tx kv.Tx, group string, all, acked []delivered) {
	var run []delivered
	endRun := func() {
		if len(run) > 0 {
			first, last := run[0].id(group), run[len(run)-1].id(group)
			tx.ClearRange(kv.KeyRange{Begin: q.keys.attempt(first), End: kv.KeyAfter(q.keys.attempt(last))})
			run = nil
		}
	}
	for i, d := range all {
		if len(acked) == 0 || d != acked[0] {
			endRun()
			continue
		}
		acked = acked[1:]
		id := d.id(group)
		tx.Clear(q.keys.item(id))
		if d.parts > 0 {
			tx.ClearRange(q.keys.parts(id))
		}
		run = all[i-len(run) : i+1]
	}
	endRun()
}

// release frees a group whose claim has ended: it sets the hint if there are items, and otherwise makes sure
// that there are none.
func (q *Queue) release(ctx context.Context, tx kv.Tx, group string) error {
	gap := q.keys.items(group)
	next, err := q.firstItem(ctx, tx.Snapshot(), gap)
	if err != nil {
		return err
	}
	// An enqueue that commits first, before the item found or into the empty group, counted on us to leave a
	// hint for its item.
	if next != nil {
		gap.End = kv.KeyAfter(next)
	}
	if err := tx.AddReadConflictRange(gap); err != nil {
		return fmt.Errorf("guard gap: %w", err)
	}
	if next == nil {
		return nil
	}
	p, err := q.keys.parse(next)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	tx.Set(q.keys.ready(p.index, group), nil)
	return nil
}

// giveBack counts the attempt and leaves the group ready, or delayed.
func (q *Queue) giveBack(ctx context.Context, tx kv.Tx, c *Claim, l *lock, left []delivered, o *NackOptions) error {
	first := left[0].id(c.Group)
	record, err := q.readAttempt(ctx, tx.Snapshot(), first)
	if err != nil {
		return err
	}
	now := q.nowMS()
	if !o.Release {
		text := ""
		if o.Err != nil {
			text = o.Err.Error()
		}
		record = record.failed(now, text)
		tx.Set(q.keys.attempt(first), record.pack())
		q.add(tx, countNacked, 1)
	}
	if o.Delay > 0 {
		// Held by nobody until then: every hint of the group is stale for so long.
		delay := lock{token: l.token, endMS: now + o.Delay.Milliseconds(), kind: kindDelay}
		tx.Set(q.keys.lock(c.Group), delay.pack())
		tx.Set(q.keys.timer(delay.endMS, c.Group), packTimer(kindDelay, first.Index))
		return nil
	}
	tx.Clear(q.keys.lock(c.Group))
	var value []byte
	if record.count > 0 {
		value = tuple.AppendInt(nil, int64(record.count))
	}
	tx.Set(q.keys.ready(first.Index, c.Group), value)
	return nil
}
