package layer

import (
	"bytes"
	"context"
	"fmt"

	"fdbfifo/kv"
)

// An operator's changes of items and groups that he does not hold. Each operation reads the lock of the group with a
// conflict and adds a write conflict on the lock, so that the operation excludes a claim, an ack, a take or another
// such operation of the group, while enqueues and all other groups go on.

// Cancel removes a waiting item, so that the item is not delivered any more. If the group was delayed because of the
// item, the delay ends. Cancel works on an unreadable item, too.
//
// Errors: ErrNoItem, ErrInFlight, ErrInvalidID, ErrClosed, and the engine's; nothing was changed then.
func (a Admin) Cancel(ctx context.Context, id ID) error {
	return a.act(ctx, VerbCancel, &id.Group, id, func(ctx context.Context) (int, error) {
		return 1, a.q.onceTx(ctx, func(tx kv.Tx) error { return a.CancelTx(ctx, tx, id) })
	})
}

// CancelTx cancels in the caller's transaction. The caller answers for an unknown commit: use Once.
//
// Reads: the lock, with a conflict; the item and the key of the head, at snapshot. If the item is the head: the next
// head, at snapshot, with a conflict on the whole group if the group is empty now; and the next head's attempts.
func (a Admin) CancelTx(ctx context.Context, tx kv.Tx, id ID) error {
	if err := checkID(id); err != nil {
		return wrap("cancel", err)
	}
	return wrap("cancel", a.q.operate(ctx, tx, func(w *txn) error { return w.cancel(id) }))
}

// SkipOptions say who skips, what and why.
type SkipOptions struct {
	// Head, if not zero, is the head that the caller has seen: if another item is the head now, nothing is skipped and
	// the error wraps ErrChanged. So a second click does not skip a second item.
	Head ID
	// By is who skips, for people; "" = as Admin.As says. At most MaxQueueNameSize bytes.
	By string
	// Reason is why, for people; at most 1,000 bytes.
	Reason string
}

// Skip moves the head of a group, whichever item is the head, to the dead letters, and returns the item's id: for a
// group blocked by its head. A delay of the group ends. Use Cancel to name the item, or to remove an item for good.
//
// Errors: as Cancel's; ErrNoItem if the group is empty; *LimitError and ErrInvalidUTF8.
func (a Admin) Skip(ctx context.Context, group string, o SkipOptions) (ID, error) {
	var id ID
	if o.By != "" {
		a.by = o.By
	}
	err := a.act(ctx, VerbSkip, &group, o.Head, func(ctx context.Context) (n int, err error) {
		id, err = onceFor(ctx, a.q, a.q.opts.Tx, skipReceipt(group), func(tx kv.Tx, _ kv.Attempt) (ID, bool, error) {
			id, err := a.SkipTx(ctx, tx, group, o)
			return id, true, err
		})
		return 1, err
	})
	return id, err
}

// SkipTx skips in the caller's transaction, as CancelTx cancels.
func (a Admin) SkipTx(ctx context.Context, tx kv.Tx, group string, o SkipOptions) (ID, error) {
	q := a.q
	if err := checkGroup(group); err != nil {
		return ID{}, wrap("skip", err)
	}
	if err := checkByReason(o.By, o.Reason); err != nil {
		return ID{}, wrap("skip", err)
	}
	if o.By == "" {
		o.By = a.who()
	}
	reason := "skipped by " + o.By
	if o.Reason != "" {
		reason += ": " + o.Reason
	}
	var id ID
	err := q.operate(ctx, tx, func(w *txn) error {
		head, err := q.firstItem(ctx, tx.Snapshot(), q.keys.items(group))
		if err != nil {
			return err
		}
		if head == nil {
			return fmt.Errorf("%w: group %q is empty", ErrNoItem, group)
		}
		p, err := q.keys.parse(head)
		if err != nil {
			return err
		}
		id = p.itemID()
		if err := seenHead(o.Head, id); err != nil {
			return err
		}
		return w.takeOut(id, func([]byte) error {
			record, err := q.readAttempt(ctx, tx.Snapshot(), id)
			if err != nil {
				return err
			}
			f := failure{id: id, record: record, reason: cut(reason)}
			_, err = f.deadLetter(w)
			return err
		})
	})
	return id, wrap("skip", err)
}

// Edit changes the body and the headers of a waiting item. change gets the current message and changes the message;
// change may run several times, and an error from change ends the edit without effect. The item keeps its place, its
// id, the time of its enqueue, and its failed attempts; a delay of the group goes on.
//
// Errors: as Cancel's; ErrCorrupt if the item cannot be read; ErrOptions if change sets anything but body and headers;
// *LimitError and ErrInvalidUTF8 as Enqueue's.
func (a Admin) Edit(ctx context.Context, id ID, change func(m *Message) error) error {
	return a.act(ctx, VerbEdit, &id.Group, id, func(ctx context.Context) (int, error) {
		return 1, a.q.onceTx(ctx, func(tx kv.Tx) error { return a.EditTx(ctx, tx, id, change) })
	})
}

// EditTx edits in the caller's transaction, as CancelTx cancels.
//
// Reads: the lock, with a conflict; the item and its parts, at snapshot.
func (a Admin) EditTx(ctx context.Context, tx kv.Tx, id ID, change func(m *Message) error) error {
	if err := checkID(id); err != nil {
		return wrap("edit", err)
	}
	if change == nil {
		return wrap("edit", fmt.Errorf("%w: no function that changes the message", ErrOptions))
	}
	return wrap("edit", a.q.operate(ctx, tx, func(w *txn) error { return w.edit(id, change) }))
}

// waiting is an item that is not in flight, and the lock of its group.
type waiting struct {
	value  []byte
	head   []byte  // the key of the group's first item
	record *record // of the group; nil = nobody holds it
	stuck  bool    // the item is outstanding in a claim whose lease has run out
}

// waitingItem reads an item which is about to be changed. An error means: nothing was written.
func (w *txn) waitingItem(id ID) (waiting, error) {
	q := w.q
	lockKey := q.keys.lock(id.Group)
	held, value := guardItemLock.get(w.tx, lockKey), w.tx.Snapshot().Get(q.keys.item(id))
	head := w.tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(q.keys.items(id.Group).Begin))
	var i waiting
	var err error
	if i.value, err = value.Wait(w.ctx); err != nil {
		return i, fmt.Errorf("read item: %w", err)
	}
	if i.head, err = head.Wait(w.ctx); err != nil {
		return i, fmt.Errorf("read head: %w", err)
	}
	v, err := held.Wait(w.ctx)
	if err != nil {
		return i, fmt.Errorf("read lock: %w", err)
	}
	if i.value == nil {
		return i, fmt.Errorf("%w: %s", ErrNoItem, id)
	}
	if v == nil {
		return i, nil
	}
	if i.record, err = unpackRecord(lockKey, v); err != nil {
		return i, err
	}
	c := i.record.claim()
	if !c.holds(id) {
		return i, nil
	}
	if i.stuck = i.record.at(w.nowMS) == lapsed; !i.stuck {
		return i, fmt.Errorf("%w: %s is held by %q for %s", ErrInFlight, id, c.owner, c.leftOf(w.nowMS))
	}
	return i, nil
}

func (w *txn) cancel(id ID) error {
	return w.takeOut(id, func(value []byte) error {
		w.tx.Clear(w.q.keys.item(id))
		w.tx.ClearRange(w.q.keys.parts(id))
		w.tx.Clear(w.q.keys.attempt(id))
		w.count(countCancelled, 1)
		w.change(ChangeCancelled, id, w.q.keys.facetsIn(value))
		return nil
	})
}

// takeOut removes a waiting item from its group, by a call of remove with the item's value.
func (w *txn) takeOut(id ID, remove func(value []byte) error) error {
	if w.q.keys.plan != nil {
		return w.takeOutOfLanes(id, remove)
	}
	i, err := w.waitingItem(id)
	if err != nil {
		return err
	}
	if err := w.excludeHolders(guardTakeOutExclude, id.Group); err != nil {
		return err
	}
	isHead := bytes.Equal(i.head, w.q.keys.item(id))
	free := false // nobody holds the group, and there is no hint of the head
	switch {
	case i.stuck:
		if free, err = w.lapse(id.Group, i.record, nil, id); err != nil {
			return err
		}
	case !isHead: // the hint or timer of the group's head stays right
	case i.record == nil:
		free = true
	case i.record.is(kindDelay): // the delay was for this item
		free = w.end(id.Group, i.record, i.record.mark)
	}
	if isHead {
		w.tx.Clear(w.q.keys.ready(id.Index, id.Group))
	}
	if err := remove(i.value); err != nil || !free {
		return err
	}
	return w.free(id.Group)
}

func (w *txn) edit(id ID, change func(m *Message) error) error {
	if w.q.keys.plan != nil {
		return w.editInLanes(id, change)
	}
	i, err := w.waitingItem(id)
	if err != nil {
		return err
	}
	key := w.q.keys.item(id)
	old, err := w.q.readItem(w.ctx, w.tx.Snapshot(), kv.KV{Key: key, Value: i.value})
	if err != nil {
		return err
	}
	e, _, err := openEnvelope(i.value)
	if err != nil {
		return corrupt(key, err)
	}
	m := old.message()
	if err := change(&m); err != nil {
		return err
	}
	if err := m.keeps(&old); err != nil {
		return err
	}
	if _, err := m.check(); err != nil {
		return err
	}
	if err := w.excludeHolders(guardEditExclude, id.Group); err != nil {
		return err
	}
	if i.stuck {
		free, err := w.lapse(id.Group, i.record, nil, id)
		if err == nil && free {
			err = w.free(id.Group)
		}
		if err != nil {
			return err
		}
	}
	value, parts := split(nil, &m, e)
	// The old body goes in the same transaction in which the new body comes: no reader sees parts of both.
	w.tx.ClearRange(w.q.keys.parts(id))
	w.tx.Set(key, value)
	for n, part := range parts {
		w.tx.Set(w.q.keys.part(id, n), part)
	}
	return nil
}
