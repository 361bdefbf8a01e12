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
	var items []Item
	err := q.view(ctx, func(tx kv.ReadTx) error {
		items = nil
		rows, err := tx.GetRange(q.keys.items(group).Selectors(), kv.RangeOptions{Limit: max}).Wait(ctx)
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
			item.Attempts = record.count
			items = append(items, item)
		}
		return nil
	})
	if err != nil {
		return nil, wrap("peek", err)
	}
	return items, nil
}
