package layer

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// The first step of a drop marks the queue and clears the configuration, so that nobody can open the queue. The last
// step comes dropGrace later, when all handles have had to read the configuration anew, and clears all keys in one
// range. Only then can a queue of the name be created again: with another incarnation, see tx_config.go.
//
// A transaction T begun before the last step must not commit after the step, because T would leave keys behind. So T
// has a read conflict on the mark, and fails if T's read version is older than the last step. And T's read version is
// older: when T ends, T's configuration is at most followLimit old, and was read before the mark.

const (

	// dropGrace is the time between the mark and the last step. dropGrace and followLimit are measured by different
	// clocks: the difference (1 s) makes up for clocks which run at different speeds.
	dropGrace = 2 * time.Second
	// dropWakes bounds the waiting handles which are woken to notice the drop.
	dropWakes = 1000
)

// DropOptions configure a drop. The zero value is the normal use.
type DropOptions struct {
	// Tx applies to the transactions of the drop.
	Tx kv.TxOptions
}

// Drop removes a queue with everything in the queue: messages, dead letters, claims, configuration. From the first
// transaction on, nobody can open the queue. Handles in use get ErrNoQueue within a second; their work until then is
// removed, too. Drop takes two seconds, whatever the depth. After an interruption the queue stays, but cannot be
// opened: call Drop again. A handle opened before the drop stays useless, even if a queue of the same
// name is created: each of its calls is ErrNoQueue.
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
	rows, err := tx.Snapshot().GetRange(d.keys.requests().Selectors(),
		kv.RangeOptions{Limit: dropWakes}).Wait(d.ctx)
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

// clear is the last step. A missing mark means: another Drop has cleared the queue, and any queue there now is new.
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
