package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Unpark lets a group go on that was parked because its head had failed for good, and returns why it was. The head is
// tried anew, with no attempts counted. A group that is held and would be parked when its claim ends is not parked
// then.
//
// Errors: ErrNotParked; limits of the group's name; ErrClosed, and the engine's.
func (q *Queue) Unpark(ctx context.Context, group string) (Mark, error) {
	if err := checkGroup(group); err != nil {
		return Mark{}, wrap("unpark", err)
	}
	var was *mark
	err := q.once(ctx, func(tx kv.Tx, _ kv.Attempt) (tuple.Tuple, error) {
		var err error
		if was, err = q.unpark(ctx, tx, group); err != nil {
			return nil, err
		}
		return tuple.Tuple{was.note()}, nil
	}, func(_ kv.Tx, result tuple.Tuple) error {
		m, ok := unpackNote(result[0])
		if !ok || m == nil {
			return fmt.Errorf("%w: receipt of an unpark: %v", ErrCorrupt, result)
		}
		was = m
		return nil
	})
	if err != nil {
		return Mark{}, wrap("unpark", err)
	}
	return *was.public(), nil
}

// UnparkTx is Unpark in the caller's transaction. The caller answers for an unknown commit: use Once.
//
// Conflicts: with claims, acks, nacks and extends of the group, and with enqueues into it if it is empty.
func (q *Queue) UnparkTx(ctx context.Context, tx kv.Tx, group string) (Mark, error) {
	if q.closed.Load() {
		return Mark{}, ErrClosed
	}
	if err := checkGroup(group); err != nil {
		return Mark{}, wrap("unpark", err)
	}
	was, err := q.unpark(ctx, tx, group)
	if err != nil {
		return Mark{}, wrap("unpark", err)
	}
	return *was.public(), nil
}

func (q *Queue) unpark(ctx context.Context, tx kv.Tx, group string) (*mark, error) {
	w := q.work(ctx, tx)
	was, err := w.unmark(group, kindPark)
	if err != nil {
		return nil, err
	}
	if was == nil {
		return nil, fmt.Errorf("%w: %q", ErrNotParked, group)
	}
	head, err := w.head(group).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read head: %w", err)
	}
	if q.keys.items(group).Contains(head) {
		p, err := q.keys.parse(head)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		tx.Clear(q.keys.attempt(p.itemID()))
	}
	return was, w.finish()
}
