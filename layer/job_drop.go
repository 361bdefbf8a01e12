package layer

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// Dropping a queue: first it is marked, and its configuration goes, so that nobody can open it and every handle that
// follows finds it gone; then, when all handles have had to look, all its keys go in one range.
//
// A transaction that was begun before that, and commits after it, would leave keys behind. Two things prevent it. Every
// transaction of the queue has a read conflict on the mark, so it fails if its read version is older than the last step.
// And none goes, when it ends, by a configuration that was read more than followLimit ago: so its read version is not
// much younger than that, and older than the last step, which comes dropGrace after the mark.

const (

	// dropGrace is what lies between the mark and the last step. It is measured by one clock, and followLimit by
	// another: what it is longer is for clocks that do not run alike.
	dropGrace = 2 * time.Second
	// dropWakes bounds the waiting handles that are woken to find the queue gone.
	dropWakes = 1000
)

// DropOptions configure a drop. The zero value is the normal use.
type DropOptions struct {
	// Tx holds for its transactions.
	Tx kv.TxOptions
}

// Drop removes a queue with all that is in it: messages, dead letters, claims, configuration. From its first
// transaction on nobody can open it; handles that are in use get ErrNoQueue within a second, and what they do until then
// goes with the queue. It takes two seconds, whatever the depth. If it is interrupted, the queue stays as it is, and
// cannot be opened; call Drop again. A handle that was open is of no more use, also if a queue of that name is created anew.
//
// Errors: ErrNoQueue, ErrNoQueueName, *LimitError and ErrInvalidUTF8 for the name, and the engine's.
func Drop(ctx context.Context, db kv.DB, prefix []byte, name string, o DropOptions) error {
	if err := checkQueueName(name); err != nil {
		return wrap("drop queue", err)
	}
	call := fmt.Sprintf("drop queue %q", name)
	d := &dropping{ctx: ctx, keys: newSubspace(prefix, name)}
	if _, err := kv.Run(ctx, db, o.Tx, d.mark); err != nil {
		return wrap(call, err)
	}
	timer := time.NewTimer(dropGrace)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return wrap(call, context.Cause(ctx))
	}
	if _, err := kv.Run(ctx, db, o.Tx, d.clear); err != nil {
		return wrap(call, err)
	}
	return nil
}

type dropping struct {
	ctx  context.Context
	keys subspace
}

// mark is the first step.
func (d *dropping) mark(tx kv.Tx, a kv.Attempt) error {
	format, err := tx.Get(d.keys.meta(metaFormat)).Wait(d.ctx)
	if err != nil {
		return fmt.Errorf("read format: %w", err)
	}
	if format == nil {
		return ErrNoQueue
	}
	tx.Set(d.keys.meta(metaDropped), packInt(millis(time.Now())))
	tx.Clear(d.keys.meta(metaConfig))
	rows, err := tx.Snapshot().GetRange(d.keys.section(nameRequest).Selectors(), kv.RangeOptions{Limit: dropWakes}).Wait(d.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	for _, row := range rows {
		if p, err := d.keys.parse(row.Key); err == nil {
			tx.Atomic(kv.Add, d.keys.wake(p.id), packCount(1))
		}
	}
	return nil
}

// clear is the last step. If the mark is gone, another has done it, and a queue that is there now is a new one.
func (d *dropping) clear(tx kv.Tx, _ kv.Attempt) error {
	v, err := tx.Get(d.keys.meta(metaDropped)).Wait(d.ctx)
	if err != nil {
		return fmt.Errorf("read mark: %w", err)
	}
	if v != nil {
		tx.ClearRange(d.keys.all())
	}
	return nil
}
