package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
)

// Peek returns up to max items of a group from its head on, held or not, with their attempts. Peek conflicts with
// nothing and changes nothing. max is 1 to MaxBatch; the bodies together stay below DefaultMaxBytes, but for the first,
// which may be larger. A template, one at most, leaves only the items of the group that agree with it.
//
// Errors: *LimitError, ErrInvalidUTF8, *TemplateError, ErrOptions, ErrCorrupt, ErrClosed, and the engine's.
func (q *Queue) Peek(ctx context.Context, group string, max int, where ...Template) ([]Item, error) {
	if err := checkGroup(group); err != nil {
		return nil, wrap("peek", err)
	}
	if max < 1 || max > MaxBatch {
		return nil, wrap("peek", &LimitError{What: "peek", Unit: "items", Got: int64(max), Min: 1, Max: MaxBatch})
	}
	packed, err := q.whereGiven(where)
	if err != nil {
		return nil, wrap("peek", err)
	}
	items, err := q.peek(ctx, laneName(group, packed), nil, max)
	return items, wrap("peek", err)
}

// peek is Peek for the items of a lane behind after; nil = from the head on. No items means: there are no more.
func (q *Queue) peek(ctx context.Context, lane string, after *ID, max int) ([]Item, error) {
	var items []Item
	err := q.view(ctx, func(tx kv.ReadTx) error {
		items = nil
		all := q.keys.items(lane)
		if after != nil {
			all.Begin = kv.KeyAfter(q.keys.laneItem(lane, *after))
		}
		rows, err := q.readItemsIn(tx, tx, lane, all, max).Wait(ctx)
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
