package bench

import (
	"context"
	"errors"
	"fmt"

	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// transactionsPerBatch counts the transactions of claimers that ack a batch and receive the next.
func transactionsPerBatch(s Sizes) Benchmark {
	const (
		name  = "transactions_per_batch"
		means = "transactions, failed ones included, per batch of claimers that ack and receive in one"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		counting := record.WrapCounting(&yieldingDB{DB: space.DB})
		space.DB = counting
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "fused")
		if err != nil {
			return nil, err
		}
		if err := q.load(ctx, 0, s.ReadyGroups/10, 10*batch); err != nil {
			return nil, err
		}
		c, err := newCrew(ctx, q, space, s.Claimers, layer.Options{}, layer.ReceiveOptions{Max: batch, MaxGroups: 1})
		if err != nil {
			return nil, err
		}
		var ws []work
		for round := range s.LongRounds + 1 {
			env.progress("measuring", round, s.LongRounds+1)
			w, err := c.slice(ctx, s, counting)
			if err != nil {
				return nil, errors.Join(err, c.close(ctx))
			}
			if round > 0 {
				ws = append(ws, w)
			}
		}
		if err := c.close(ctx); err != nil {
			return nil, err
		}
		p := pointOf(s.Claimers, ws)
		sizes := fmt.Sprintf("%d handles, batches of %d", s.Claimers, batch)
		return []Result{
			{name, p.Attempts, "transactions", means, sizes, atMost(1.3)},
			{"fused_items_per_s", p.PerSecond, "items/s", "ack + receive in one transaction", sizes, Target{}},
		}, q.verify(ctx)
	}}
}
