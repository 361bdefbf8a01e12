package layer

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Enqueue appends the messages to their groups, all or none, and returns their ids in the order of msgs. The
// order of msgs is the order within each group. It retries until the outcome is known, and never doubles a
// message. At most MaxBatch messages and MaxBatchSize bytes; no messages are no work.
//
// Errors: *LimitError and ErrInvalidUTF8 before anything is done, ErrClosed, and the engine's. If ctx ends
// while the commit is under way, the error wraps a *kv.Error that says whether it may have landed.
func (q *Queue) Enqueue(ctx context.Context, msgs ...Message) ([]ID, error) {
	if q.closed.Load() {
		return nil, ErrClosed
	}
	if err := q.keys.checkBatch(msgs); err != nil {
		return nil, err
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	randoms := q.random.uuids(len(msgs))
	var ids []ID
	err := q.once(ctx,
		func(tx kv.Tx, _ kv.Attempt) (tuple.Tuple, error) {
			var err error
			if ids, err = q.enqueue(ctx, tx, msgs, randoms); err != nil {
				return nil, err
			}
			result := make(tuple.Tuple, len(ids))
			for i, id := range ids {
				result[i] = id.Index
			}
			return result, nil
		},
		func(_ kv.Tx, result tuple.Tuple) error {
			// The attempt that landed may not be the last one that ran: its indexes are in the receipt.
			if len(result) != len(msgs) {
				return fmt.Errorf("%w: receipt of %d messages for %d", ErrCorrupt, len(result), len(msgs))
			}
			ids = make([]ID, len(msgs))
			for i, v := range result {
				index, ok := v.(int64)
				if !ok {
					return fmt.Errorf("%w: receipt with index %v", ErrCorrupt, v)
				}
				ids[i] = ID{Group: msgs[i].Group, Index: index, Random: randoms[i]}
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("layer: enqueue: %w", err)
	}
	return ids, nil
}

// EnqueueTx appends the messages in the caller's transaction: they are there if and only if it commits. The
// same limits hold. It sees the transaction's own enqueues and acks.
//
// The caller answers for an unknown commit: use Once, which does. The transaction must not use an old read
// version (SetReadVersion, a GRV cache): a message could then land before one that was enqueued earlier.
//
// Reads: per group, the key of the tail, at snapshot. Conflicts: with the removal of that tail only; none if
// the group is empty. Enqueues never conflict with enqueues.
func (q *Queue) EnqueueTx(ctx context.Context, tx kv.Tx, msgs ...Message) ([]ID, error) {
	if q.closed.Load() {
		return nil, ErrClosed
	}
	if err := q.keys.checkBatch(msgs); err != nil {
		return nil, err
	}
	ids, err := q.enqueue(ctx, tx, msgs, q.random.uuids(len(msgs)))
	if err != nil {
		return nil, fmt.Errorf("layer: enqueue: %w", err)
	}
	return ids, nil
}

// tail is where the items of a group go on, within one enqueue.
type tail struct {
	items kv.KeyRange
	key   kv.Future[[]byte] // the last item's, or one outside of items
	begun bool
	next  int64 // the index of the next item, once begun
}

// enqueue writes the messages. Its conflict footprint is the one EnqueueTx states.
func (q *Queue) enqueue(ctx context.Context, tx kv.Tx, msgs []Message, randoms []uuid.UUID) ([]ID, error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	version := tx.ReadVersion()
	tails := make(map[string]*tail)
	for i := range msgs {
		group := msgs[i].Group
		if tails[group] == nil {
			items := q.keys.items(group)
			tails[group] = &tail{items: items, key: tx.Snapshot().GetKey(kv.LastLessThan(items.End))}
		}
	}
	rv, err := version.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read version: %w", err)
	}

	now := q.nowMS()
	ids := make([]ID, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		t := tails[m.Group]
		empty := false
		if !t.begun {
			key, err := t.key.Wait(ctx)
			if err != nil {
				return nil, fmt.Errorf("read tail: %w", err)
			}
			t.begun, t.next = true, rv+q.offset
			if empty = !t.items.Contains(key); !empty {
				p, err := q.keys.parse(key)
				if err != nil {
					return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
				}
				t.next = max(t.next, p.index+1)
				// Whoever removes this tail may leave the group empty and without a hint, while this
				// transaction leaves the hint out because it saw the group non-empty. Before the sets:
				// a conflict on a key already written would not be added.
				if err := tx.AddReadConflictRange(kv.SingleKey(key)); err != nil {
					return nil, fmt.Errorf("guard tail: %w", err)
				}
			}
		}
		index := t.next
		t.next++
		ids[i] = ID{Group: m.Group, Index: index, Random: randoms[i]}
		value, parts := split(m, now)
		tx.Set(q.keys.item(ids[i]), value)
		for n, part := range parts {
			tx.Set(q.keys.part(ids[i], n), part)
		}
		if empty {
			tx.Set(q.keys.ready(index, m.Group), nil)
		}
	}
	q.add(tx, countEnqueued, len(msgs))
	return ids, nil
}
