// Package recipe is the plain queue of FoundationDB's documentation, to measure this project's queue against.
package recipe

import (
	"bytes"
	"context"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Queue has the keys (index, random) under Prefix. An item is dequeued by reading the first pair and clearing it. All
// consumers read the same pair, so that one of them gets it and the others conflict.
type Queue struct {
	DB     kv.DB
	Prefix []byte
}

// Push appends values; their indexes follow the last one, which is read at snapshot.
func (q *Queue) Push(ctx context.Context, values ...[]byte) error {
	_, err := kv.Run(ctx, q.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		of := kv.PrefixRange(q.Prefix)
		last, err := tx.Snapshot().GetKey(kv.LastLessThan(of.End)).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read last key: %w", err)
		}
		index := int64(0)
		if of.Contains(last) {
			if index, _, err = tuple.DecodeInt(last[len(q.Prefix):]); err != nil {
				return fmt.Errorf("index of %s: %w", tuple.Printable(last), err)
			}
		}
		for i, value := range values {
			id := uuid.New()
			key := tuple.AppendInt(bytes.Clone(q.Prefix), index+1+int64(i))
			tx.Set(append(key, id[:]...), value)
		}
		return nil
	})
	return err
}

// Pop dequeues one value. ok is false if there is none.
func (q *Queue) Pop(ctx context.Context) (value []byte, ok bool, err error) {
	_, err = kv.Run(ctx, q.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		rows, err := tx.GetRange(kv.PrefixRange(q.Prefix).Selectors(), kv.RangeOptions{Limit: 1}).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read first pair: %w", err)
		}
		if value, ok = nil, len(rows) > 0; ok {
			value = rows[0].Value
			tx.Clear(rows[0].Key)
		}
		return nil
	})
	return value, ok, err
}
