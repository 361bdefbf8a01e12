package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"fdbfifo/layer"
)

// fairShards is over how many shards the server spreads the tenants of a standard queue.
const fairShards = 16

// fairRatio compares the work on messages that are alone and name tenants in a queue that is fair, whose receives look
// at all shards, with the same in a queue by age, with the same backlog.
func fairRatio(s Sizes) Benchmark {
	const name = "fair_ratio"
	messages := max(s.Deep/100, 2*s.SliceBatches*batch)
	means := fmt.Sprintf(
		"claim + ack of ten messages of tenants in a fair queue of %d shards to the same in one by age, beside %d",
		fairShards, messages)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		var sides [2]*tenants
		for i, config := range []layer.Config{{}, {Fair: true, Shards: fairShards}} {
			space, opened := env.Open(ctx)
			if opened != nil {
				return nil, opened
			}
			defer space.closing(&err) // the benchmark's own, which the loop must not hide
			q, err := layer.Create(ctx, space.DB, space.Prefix, "tenants", layer.Options{Config: config})
			if err != nil {
				return nil, err
			}
			sides[i] = &tenants{q: &queue{Queue: q, env: env}, batches: s.SliceBatches}
			for done := 0; done < messages; done += perLoad {
				env.progress("loading", done, messages)
				if err := sides[i].send(ctx, min(perLoad, messages-done)); err != nil {
					return nil, err
				}
			}
		}
		c, err := compare(ctx, env, s.LongRounds, s.Slices, sides[0].slice, sides[1].slice)
		if err != nil {
			return nil, err
		}
		for _, side := range sides {
			if err := side.q.verify(ctx); err != nil {
				return nil, err
			}
		}
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atMost(2)},
			{"by_age_batch_us", c.a, "us", "claim + ack of ten messages of tenants", "one shard, by age", Target{}},
			{"fair_batch_us", c.b, "us", "claim + ack of ten messages of tenants", "16 shards, fair", Target{}},
		}, nil
	}}
}

// tenants is a queue of messages that are alone, of fairTenants tenants in turn.
type tenants struct {
	q       *queue
	batches int // of a slice
	sent    int
}

const fairTenants = 40

func (t *tenants) send(ctx context.Context, n int) error {
	all := make([]layer.Message, n)
	for i := range all {
		t.sent++
		tenant := fmt.Sprint("tenant ", t.sent%fairTenants)
		all[i] = layer.Message{Alone: true, Tenant: tenant, Body: make([]byte, bodySize)}
	}
	return t.q.enqueue(ctx, all...)
}

// slice returns the microseconds that claim + ack of ten messages took. The acks of ten are called at the same time, as
// the server does, and so travel together.
func (t *tenants) slice(ctx context.Context) (float64, error) {
	begun := time.Now()
	for range t.batches {
		claims, err := t.q.receive(ctx)
		if err != nil {
			return 0, err
		}
		if len(claims) != batch {
			return 0, fmt.Errorf("%w: %d messages, should be %d", errWrong, len(claims), batch)
		}
		errs := make([]error, len(claims))
		var acks sync.WaitGroup
		for i := range claims {
			acks.Go(func() { _, errs[i] = t.q.ack(ctx, claims[i:i+1]) })
		}
		acks.Wait()
		for _, err := range errs {
			if err != nil {
				return 0, err
			}
		}
	}
	took := micros(time.Since(begun)) / float64(t.batches)
	for left := t.batches * batch; left > 0; left -= perLoad {
		if err := t.send(ctx, min(perLoad, left)); err != nil {
			return 0, err
		}
	}
	return took, nil
}
