package bench

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/layer"
)

// headsGroups is how many groups heads_ratio has: as many as there are handlers, plus as many that wait.
const headsGroups = 2 * batch

// headsRatio compares claims of one item, acked together, with claims of as many items of one group.
func headsRatio(s Sizes) Benchmark {
	const name = "heads_ratio"
	means := fmt.Sprintf("items/s of %d claims of one item, received and acked together, to those of a claim of %d; "+
		"one caller", batch, batch)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "heads")
		if err != nil {
			return nil, err
		}
		if err := q.load(ctx, 0, headsGroups, 2*s.SliceBatches*batch); err != nil {
			return nil, err
		}
		group := &drain{q, s.SliceBatches, layer.ReceiveOptions{Max: batch, MaxGroups: 1}}
		heads := &drain{q, s.SliceBatches, layer.ReceiveOptions{Max: batch, Strategy: layer.Heads}}
		c, err := compare(ctx, env, s.LongRounds, s.Slices, group.slice, heads.slice)
		if err != nil {
			return nil, err
		}
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atLeast(0.5)},
			{"heads_items_per_s", c.b, "items/s", "claims of one item, acked in one call", "", Target{}},
			{"whole_items_per_s", c.a, "items/s", "claims of ten items", "", Target{}},
		}, q.verify(ctx)
	}}
}

// drain receives and acks batches.
type drain struct {
	q       *queue
	batches int // of a slice
	o       layer.ReceiveOptions
}

// slice returns the items a second. It enqueues the acked items again to the same groups, and does not time that.
func (d *drain) slice(ctx context.Context) (float64, error) {
	var again []layer.Message
	begun := time.Now()
	for range d.batches {
		claims, err := d.q.Receive(ctx, d.o)
		if err != nil {
			return 0, err
		}
		all := make([]layer.Settlement, len(claims))
		for i, c := range claims {
			all[i] = layer.Settlement{Claim: c, FinishAll: true}
		}
		if err := d.q.Settle(ctx, all...); err != nil {
			return 0, err
		}
		for _, c := range claims {
			again = append(again, messages(c.Group, len(c.Items))...)
		}
	}
	took := time.Since(begun)
	n := len(again)
	d.q.left.Add(-int64(n))
	if n != d.batches*batch {
		return 0, fmt.Errorf("%w: %d items came, should be %d", errWrong, n, d.batches*batch)
	}
	for len(again) > 0 {
		next := min(len(again), perLoad)
		if err := d.q.enqueue(ctx, again[:next]...); err != nil {
			return 0, err
		}
		again = again[next:]
	}
	return float64(n) / took.Seconds(), nil
}
