package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
)

// readLock returns nil if nobody holds the group. Whether it conflicts depends on tx.
func (q *Queue) readLock(ctx context.Context, tx kv.ReadTx, group string) (*lock, error) {
	key := q.keys.lock(group)
	v, err := tx.Get(key).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read lock: %w", err)
	}
	if v == nil {
		return nil, nil
	}
	return unpackLock(key, v)
}

// readItem turns a pair into an item, as assemble does.
func (q *Queue) readItem(ctx context.Context, tx kv.ReadTx, row kv.KV) (Item, error) {
	p, err := q.keys.parse(row.Key)
	if err != nil {
		return Item{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	e, body, err := openEnvelope(row.Value)
	if err != nil {
		return Item{}, corrupt(row.Key, err)
	}
	return q.assemble(ctx, tx, p, e, body)
}

// assemble makes the item of a key and its envelope and reads the rest of a body that is in parts. An item that
// is not whole is ErrCorrupt.
func (q *Queue) assemble(ctx context.Context, tx kv.ReadTx, p parsedKey, e envelope, body []byte) (Item, error) {
	if e.parts > 0 {
		rows, err := tx.GetRange(q.keys.parts(p.itemID()).Selectors(), kv.RangeOptions{}).Wait(ctx)
		if err != nil {
			return Item{}, fmt.Errorf("read parts: %w", err)
		}
		whole := append(make([]byte, 0, e.size), body...)
		for _, r := range rows {
			whole = append(whole, r.Value...)
		}
		if int64(len(rows)) != e.parts || int64(len(whole)) != e.size {
			return Item{}, corrupt(q.keys.item(p.itemID()), fmt.Errorf("%d bytes in %d parts, should be %d in %d",
				len(whole), len(rows), e.size, e.parts))
		}
		body = whole
	}
	item := Item{ID: p.itemID(), Body: body, Headers: e.headers, Enqueued: fromMillis(e.enqueuedMS), DedupID: e.dedupID}
	if e.dueMS > 0 {
		item.DeliverAt = fromMillis(e.dueMS)
	}
	return item, nil
}

// firstItem returns the key of the first of a group's items, or nil if the group is empty. Called on a snapshot
// it adds no conflict, and it never reads a body.
func (q *Queue) firstItem(ctx context.Context, tx kv.ReadTx, items kv.KeyRange) ([]byte, error) {
	k, err := tx.GetKey(kv.FirstGreaterOrEqual(items.Begin)).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read head: %w", err)
	}
	if !items.Contains(k) {
		return nil, nil
	}
	return k, nil
}
