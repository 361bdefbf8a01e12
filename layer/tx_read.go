package layer

import (
	"context"
	"fmt"
	"iter"

	"fdbfifo/kv"
)

// readLock returns nil if the group has no record. Whether the read conflicts depends on tx.
func (q *Queue) readLock(ctx context.Context, tx kv.ReadTx, group string) (*record, error) {
	key := q.keys.lock(group)
	v, err := tx.Get(key).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read lock: %w", err)
	}
	if v == nil {
		return nil, nil
	}
	return unpackRecord(key, v)
}

// readItem turns a pair into an item, as assemble does.
func (q *Queue) readItem(ctx context.Context, tx kv.ReadTx, row kv.KV) (Item, error) {
	p, err := q.keys.parse(row.Key)
	if err != nil {
		return Item{}, err
	}
	e, body, err := openEnvelope(row.Value)
	if err != nil {
		return Item{}, corrupt(row.Key, err)
	}
	config := q.Config()
	return q.assemble(ctx, tx, p.itemID(), e, body, config.retro())
}

// assemble makes an item from its id and envelope, and reads the rest of a body in parts. An incomplete item is
// ErrCorrupt.
func (q *Queue) assemble(
	ctx context.Context, tx kv.ReadTx, id ID, e envelope, body []byte, delay retro,
) (Item, error) {
	if e.parts > 0 {
		rows, err := tx.GetRange(q.keys.parts(id).Selectors(), kv.RangeOptions{}).Wait(ctx)
		if err != nil {
			return Item{}, fmt.Errorf("read parts: %w", err)
		}
		whole := append(make([]byte, 0, e.size), body...)
		for _, r := range rows {
			whole = append(whole, r.Value...)
		}
		if int64(len(rows)) != e.parts || int64(len(whole)) != e.size {
			return Item{}, corrupt(q.keys.item(id), fmt.Errorf("%d bytes in %d parts, should be %d in %d",
				len(whole), len(rows), e.size, e.parts))
		}
		body = whole
	}
	return Item{
		ID: id, Body: body, Headers: e.headers, Enqueued: fromMillis(e.enqueuedMS), DeliverAt: delay.deliverAt(&e),
		DedupID: e.dedupID,
	}, nil
}

// firstItem returns the key of a group's first item, or nil if the group is empty. Called on a snapshot the read adds
// no conflict. No body is read.
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

// readAttempt returns the zero record if the item has never failed.
func (q *Queue) readAttempt(ctx context.Context, tx kv.ReadTx, id ID) (attempt, error) {
	key := q.keys.attempt(id)
	v, err := tx.Get(key).Wait(ctx)
	if err != nil {
		return attempt{}, fmt.Errorf("read attempts: %w", err)
	}
	if v == nil {
		return attempt{}, nil
	}
	return unpackAttempt(key, v)
}

// readAttempts returns the records of a group's items from first to last. Few items have a record.
func (q *Queue) readAttempts(ctx context.Context, tx kv.ReadTx, first, last ID) (map[ID]attempt, error) {
	rows, err := tx.GetRange(kv.Range{
		Begin: kv.FirstGreaterOrEqual(q.keys.attempt(first)), End: kv.FirstGreaterThan(q.keys.attempt(last)),
	}, kv.RangeOptions{}).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read attempts: %w", err)
	}
	records := make(map[ID]attempt, len(rows))
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return nil, err
		}
		if records[p.itemID()], err = unpackAttempt(row.Key, row.Value); err != nil {
			return nil, err
		}
	}
	return records, nil
}

func (q *Queue) readPause(ctx context.Context, tx kv.ReadTx) (*mark, error) {
	key := q.keys.meta(metaPaused)
	v, err := tx.Get(key).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read pause: %w", err)
	}
	return unpackPause(key, v)
}

// view runs a body that only reads, at snapshot.
func (q *Queue) view(ctx context.Context, fn func(tx kv.ReadTx) error) error {
	if q.isClosed() {
		return ErrClosed
	}
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		follow := q.follow(tx)
		if err := fn(tx.Snapshot()); err != nil {
			return err
		}
		_, err := follow.wait(ctx) // ErrNoQueue for a queue which is being dropped: the rest of its keys is no answer
		return err
	})
	return err
}

// cursor is the part of a range still to be read.
type cursor struct {
	begin     kv.KeySelector
	end       []byte
	exhausted bool
}

func newCursor(r kv.KeyRange) cursor {
	return cursor{begin: kv.FirstGreaterOrEqual(r.Begin), end: r.End}
}

// read starts reading the next rows; limit bounds them.
func (c *cursor) read(tx kv.ReadTx, limit int) kv.Future[[]kv.KV] {
	if c.exhausted {
		return kv.Done[[]kv.KV](nil, nil)
	}
	return tx.GetRange(kv.Range{Begin: c.begin, End: kv.FirstGreaterOrEqual(c.end)}, kv.RangeOptions{Limit: limit})
}

// passed moves the cursor behind rows.
func (c *cursor) passed(rows []kv.KV, limit int) {
	if len(rows) < limit {
		c.exhausted = true
		return
	}
	c.begin = kv.FirstGreaterThan(rows[len(rows)-1].Key)
}

// walk reads the rows of r, a page at a time, all at one version. After an error nothing follows.
func walk(ctx context.Context, tx kv.ReadTx, r kv.KeyRange, page int) iter.Seq2[kv.KV, error] {
	return func(yield func(kv.KV, error) bool) {
		for rest := newCursor(r); !rest.exhausted; {
			rows, err := rest.read(tx, page).Wait(ctx)
			if !give(rows, err, yield) {
				return
			}
			rest.passed(rows, page)
		}
	}
}

// give passes a page's entries to yield, and then the page's error, if any. give reports whether the list may go on.
func give[T any](entries []T, err error, yield func(T, error) bool) bool {
	for _, e := range entries {
		if !yield(e, nil) {
			return false
		}
	}
	if err != nil {
		var none T
		yield(none, err)
	}
	return err == nil
}

// maxStride bounds how many keys countKeys steps over at a time.
const maxStride = 1000

// countKeys counts the keys of r up to limit.
func countKeys(ctx context.Context, tx kv.ReadTx, r kv.KeyRange, limit int64) (int64, error) {
	counts, err := countKeysOfEach(ctx, tx, []kv.KeyRange{r}, limit)
	if err != nil {
		return 0, err
	}
	return counts[0], nil
}

// countKeysOfEach counts the keys of each range up to limit. Key selectors step over the keys, so no value is
// transferred. The ranges take a step at a time, all together.
func countKeysOfEach(ctx context.Context, tx kv.ReadTx, ranges []kv.KeyRange, limit int64) ([]int64, error) {
	all, counts := make([]keyCount, len(ranges)), make([]int64, len(ranges))
	for i, r := range ranges {
		all[i] = keyCount{of: r, at: r.Begin, offset: 1, stride: 1, growing: true}
	}
	for more := true; more; {
		more = false
		for i := range all {
			if c := &all[i]; c.stride > 0 && c.n < limit {
				c.step, more = tx.GetKey(kv.KeySelector{Key: c.at, Offset: c.offset}), true
			}
		}
		for i := range all {
			if err := all[i].take(ctx); err != nil {
				return nil, err
			}
		}
	}
	for i := range all {
		counts[i] = min(all[i].n, limit)
	}
	return counts, nil
}

// keyCount is a count under way: in growing strides until a stride leads out of the range, then in halves of the
// stride.
type keyCount struct {
	of      kv.KeyRange
	at      []byte
	n       int64
	offset  int // the first step leads to the first key, all others from a key to a later key
	stride  int // 0 = the count is done
	growing bool
	step    kv.Future[[]byte] // under way; nil = none
}

// take waits for the step under way and makes the next one ready.
func (c *keyCount) take(ctx context.Context) error {
	if c.step == nil {
		return nil
	}
	k, err := c.step.Wait(ctx)
	if err != nil {
		return fmt.Errorf("count keys: %w", err)
	}
	c.step = nil
	switch {
	case c.of.Contains(k):
		c.n += int64(c.stride)
		c.at = k
		if c.growing && c.n > 1 {
			c.stride = min(2*c.stride, maxStride)
		}
	case c.n == 0:
		c.stride = 0
	default:
		c.growing = false
		c.stride /= 2
	}
	c.offset = 1 + c.stride
	return nil
}

func (w *txn) setState(group string, state []byte) {
	if len(state) == 0 {
		w.tx.Clear(w.q.keys.state(group))
		return
	}
	w.tx.Set(w.q.keys.state(group), state)
}

// readState starts reading a group's state if wanted; otherwise nil.
func readState(q *Queue, tx kv.ReadTx, group string, wanted bool) kv.Future[[]byte] {
	if !wanted {
		return nil
	}
	return tx.Get(q.keys.state(group))
}

// waitState returns nil for a read that was not started.
func waitState(ctx context.Context, f kv.Future[[]byte]) ([]byte, error) {
	if f == nil {
		return nil, nil
	}
	v, err := f.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return v, nil
}
