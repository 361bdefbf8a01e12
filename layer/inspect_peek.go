package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
)

// Peek returns up to max items of a group from its head on, held or not, with their attempts. Peek conflicts with
// nothing and changes nothing. max is 1 to MaxBatch; the bodies together stay below DefaultMaxBytes, but for the first,
// which may be larger.
func (q *Queue) Peek(ctx context.Context, group string, max int) ([]Item, error) {
	if err := checkGroup(group); err != nil {
		return nil, wrap("peek", err)
	}
	if max < 1 || max > MaxBatch {
		return nil, wrap("peek", &LimitError{What: "peek", Unit: "items", Got: int64(max), Min: 1, Max: MaxBatch})
	}
	items, err := q.peek(ctx, group, nil, max)
	return items, wrap("peek", err)
}

// peek is Peek for the items behind after; nil = from the head on. No items means: there are no more.
func (q *Queue) peek(ctx context.Context, group string, after *ID, max int) ([]Item, error) {
	var items []Item
	err := q.view(ctx, func(tx kv.ReadTx) error {
		items = nil
		all := q.keys.items(group)
		from := kv.FirstGreaterOrEqual(all.Begin)
		if after != nil {
			from = kv.FirstGreaterThan(q.keys.item(*after))
		}
		rows, err := tx.GetRange(
			kv.Range{Begin: from, End: kv.FirstGreaterOrEqual(all.End)}, kv.RangeOptions{Limit: max},
		).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read items: %w", err)
		}
		size := 0
		for _, row := range rows {
			item, err := q.readItem(ctx, tx, row)
			if err != nil {
				return err
			}
			if size += len(item.Body); len(items) > 0 && size > DefaultMaxBytes {
				return nil
			}
			record, err := q.readAttempt(ctx, tx, item.ID)
			if err != nil {
				return err
			}
			item.failedBefore(record)
			items = append(items, item)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}
