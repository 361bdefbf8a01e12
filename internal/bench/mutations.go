package bench

import (
	"context"
	"fmt"
)

// mutationsPerMessage counts the mutations of a message from its enqueue to its ack. The figure depends neither on the
// machine nor on the engine.
func mutationsPerMessage(s Sizes) Benchmark {
	const (
		name   = "mutations_per_message"
		means  = "sets, clears and atomic operations from enqueue to ack, in batches of 10"
		budget = 3.0
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, counting, err := env.openCounted(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "mutations")
		if err != nil {
			return nil, err
		}
		// One in flight, so that the first transaction has a receipt to clear as all others have.
		if err := q.enqueue(ctx, messages(groupName(s.Batches), batch)...); err != nil {
			return nil, err
		}
		before := counting.Counters()
		for n := range s.Batches {
			if err := q.enqueue(ctx, messages(groupName(n), batch)...); err != nil {
				return nil, err
			}
			claims, err := q.receive(ctx)
			if err != nil {
				return nil, err
			}
			if n, err := q.ack(ctx, claims); err != nil {
				return nil, err
			} else if n != batch {
				return nil, fmt.Errorf("%w: a claim has %d items, should be %d", errWrong, n, batch)
			}
		}
		c := counting.Counters().Sub(before)
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		per := func(n int64) float64 { return float64(n) / float64(s.Batches*batch) }
		return []Result{
			{name, per(c.Mutations), "mutations", means, "", atMost(budget)},
			{"reads_per_message", per(c.Reads), "reads", "keys and ranges read from enqueue to ack", "", Target{}},
			{"bytes_written_per_message", per(c.BytesWritten), "bytes", "keys and values of the mutations",
				fmt.Sprintf("bodies of %d bytes", bodySize), Target{}},
			{"transactions_per_message", per(c.Commits), "transactions", "", "", Target{}},
		}, nil
	}}
}
