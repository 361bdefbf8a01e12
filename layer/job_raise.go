package layer

import (
	"context"
	"time"

	"fdbfifo/kv"
)

// raiseGrace is the time between the two steps of a raise of the shards, by the same reasons as dropGrace: a look which
// begins after the second step goes by a configuration which has been read after the first.
const raiseGrace = dropGrace

// finishRaise takes the second step of a raise of the shards, if one is under way: writers use the new shards from then
// on. Nothing is lost if finishRaise does not come to its end, because all shards are read already: the next change of
// the configuration, or the next sweep, finishes the raise.
func (q *Queue) finishRaise(ctx context.Context) error {
	for {
		stored, err := q.stored(ctx)
		if err != nil || !stored.shards.isRising() {
			return err
		}
		// Of several who finish the raise, the first spares the others a conflict.
		grace := time.NewTimer(raiseGrace + time.Duration(q.random.float()*float64(raiseGrace/16)))
		select {
		case <-grace.C:
		case <-ctx.Done():
			grace.Stop()
			return context.Cause(ctx)
		}
		if err := q.raiseFrom(ctx, stored.shards); err != nil {
			return err
		}
	}
}

// raiseFrom is the second step, unless the numbers have changed since they were seen. After an unknown commit the next
// attempt finds the step done.
//
// Footprint: reads and writes the configuration, with conflicts.
func (q *Queue) raiseFrom(ctx context.Context, seen shardCounts) error {
	var now storedConfig
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) (err error) {
		if now, err = q.readStored(ctx, guardConfigure.reads(tx)); err != nil {
			return err
		}
		if now.shards.read != seen.read || !now.shards.isRising() {
			return nil
		}
		now.shards.write = now.shards.read
		packed, err := now.pack()
		if err != nil {
			return err
		}
		tx.Set(q.keys.meta(metaConfig), packed)
		return nil
	})
	if err == nil {
		q.keys.shards.learn(now.shards)
	}
	return err
}
