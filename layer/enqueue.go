package layer

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Sent is what became of one message of an enqueue.
type Sent struct {
	ID ID
}

// Enqueue appends the messages to their groups, all or none, and returns what became of each, in the order of msgs. The
// order of msgs is the order within each group. It retries until the outcome is known, and never doubles a
// message. At most MaxBatch messages and MaxBatchSize bytes; no messages are no work.
//
// Errors: *LimitError and ErrInvalidUTF8 before anything is done, ErrClosed, and the engine's. If ctx ends
// while the commit is under way, the error wraps a *kv.Error that says whether it may have landed.
func (q *Queue) Enqueue(ctx context.Context, msgs ...Message) ([]Sent, error) {
	if q.closed.Load() {
		return nil, ErrClosed
	}
	if err := q.keys.checkBatch(msgs); err != nil {
		return nil, err
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	e := &enqueuing{msgs: msgs, randoms: q.random.uuids(len(msgs))}
	if err := q.submit(ctx, &operation{enqueue: e}); err != nil {
		return nil, fmt.Errorf("layer: enqueue: %w", err)
	}
	return e.sent, nil
}

// EnqueueTx appends the messages in the caller's transaction: they are there if and only if it commits. The
// same limits hold. It sees the transaction's own enqueues and acks.
//
// The caller answers for an unknown commit: use Once, which does. The transaction must not use an old read
// version (SetReadVersion, a GRV cache): a message could then land before one that was enqueued earlier.
//
// Reads: per group, the key of the tail, at snapshot. Conflicts: with the removal of that tail only; none if
// the group is empty. Enqueues never conflict with enqueues.
func (q *Queue) EnqueueTx(ctx context.Context, tx kv.Tx, msgs ...Message) ([]Sent, error) {
	if q.closed.Load() {
		return nil, ErrClosed
	}
	if err := q.keys.checkBatch(msgs); err != nil {
		return nil, err
	}
	e := &enqueuing{msgs: msgs, randoms: q.random.uuids(len(msgs))}
	w := q.work(ctx, tx)
	if err := w.enqueue(e); err != nil {
		return nil, fmt.Errorf("layer: enqueue: %w", err)
	}
	if err := w.finish(); err != nil {
		return nil, fmt.Errorf("layer: enqueue: %w", err)
	}
	return e.sent, nil
}

// tail is where the items of a group go on, within one transaction.
type tail struct {
	items kv.KeyRange
	key   kv.Future[[]byte] // the last item's, or one outside of items
	begun bool
	next  int64 // the index of the next item, once begun
}

// enqueuing is the messages of one enqueue.
type enqueuing struct {
	msgs    []Message
	randoms []uuid.UUID // chosen before the first attempt
	sent    []Sent      // the result; set anew by each attempt
	// redriven: they are no new messages, but dead letters on their way back. What may be done to a new message, other
	// than to write it, is not for them.
	redriven bool
}

// bytes is about what the messages add to a transaction.
func (e *enqueuing) bytes() int {
	n := 0
	for i := range e.msgs {
		n += len(e.msgs[i].Body) + 4*len(e.msgs[i].Group) + 200
	}
	return n
}

// enqueue writes the messages of several enqueues, in their order. Its conflict footprint is the one EnqueueTx
// states. All tails are read at once.
func (w *work) enqueue(all ...*enqueuing) error {
	q, tx := w.q, w.tx
	tails := make(map[string]*tail)
	for _, e := range all {
		for i := range e.msgs {
			group := e.msgs[i].Group
			if tails[group] == nil {
				items := q.keys.items(group)
				tails[group] = &tail{items: items, key: tx.Snapshot().GetKey(kv.LastLessThan(items.End))}
			}
		}
	}
	if len(tails) == 0 {
		return nil
	}
	now, err := w.clock()
	if err != nil {
		return err
	}
	count := 0
	for _, e := range all {
		e.sent = make([]Sent, len(e.msgs))
		for i := range e.msgs {
			m := &e.msgs[i]
			t := tails[m.Group]
			empty := false
			if !t.begun {
				key, err := t.key.Wait(w.ctx)
				if err != nil {
					return fmt.Errorf("read tail: %w", err)
				}
				// Later groups of the transaction come behind the earlier ones: their heads are in the order of the
				// messages, and the hints do not pile up at one index.
				t.begun, t.next = true, now+int64(count+i)
				if empty = !t.items.Contains(key); !empty {
					p, err := q.keys.parse(key)
					if err != nil {
						return fmt.Errorf("%w: %w", ErrCorrupt, err)
					}
					t.next = max(t.next, p.index+1)
					// Whoever removes this tail may leave the group empty and without a hint, while this
					// transaction leaves the hint out because it saw the group non-empty. Before the sets:
					// a conflict on a key already written would not be added.
					if err := tx.AddReadConflictRange(kv.SingleKey(key)); err != nil {
						return fmt.Errorf("guard tail: %w", err)
					}
				}
			}
			index := t.next
			t.next++
			id := ID{Group: m.Group, Index: index, Random: e.randoms[i]}
			e.sent[i] = Sent{ID: id}
			value, parts := split(m, w.nowMS)
			tx.Set(q.keys.item(id), value)
			for n, part := range parts {
				tx.Set(q.keys.part(id, n), part)
			}
			if empty {
				w.hint(index, m.Group, 0)
			}
		}
		if !e.redriven {
			count += len(e.msgs)
		}
	}
	w.count(countEnqueued, count)
	return nil
}

// result is what the receipt keeps of an enqueue: the indexes.
func (e *enqueuing) result() tuple.Tuple {
	t := make(tuple.Tuple, len(e.sent))
	for i := range e.sent {
		t[i] = e.sent[i].ID.Index
	}
	return t
}

// restore takes the result from a receipt: the attempt that landed may not be the last one that ran.
func (e *enqueuing) restore(t tuple.Tuple) error {
	if len(t) != len(e.msgs) {
		return fmt.Errorf("%w: receipt of %d messages for %d", ErrCorrupt, len(t), len(e.msgs))
	}
	e.sent = make([]Sent, len(e.msgs))
	for i, v := range t {
		index, ok := v.(int64)
		if !ok {
			return fmt.Errorf("%w: receipt with index %v", ErrCorrupt, v)
		}
		e.sent[i] = Sent{ID: ID{Group: e.msgs[i].Group, Index: index, Random: e.randoms[i]}}
	}
	return nil
}
