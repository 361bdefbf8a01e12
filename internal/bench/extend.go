package bench

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/layer"
)

// extendMutations counts the mutations that keep many groups of one handle in flight: by the heartbeat, and by an
// extension of each claim. Both happen each third of a lease. So it counts the mutations of one, times the thirds of
// the default lease in a minute. The figure depends neither on the machine nor on the engine.
func extendMutations(s Sizes) Benchmark {
	const name = "extend_mutations"
	aMinute := float64(time.Minute / (30 * time.Second / 3))
	return Benchmark{name, "mutations that keep a group in flight for a minute", func(
		ctx context.Context, env Env,
	) (results []Result, err error) {
		space, counting, err := env.openCounted(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "extend")
		if err != nil {
			return nil, err
		}
		defer func() { _ = q.Close(context.WithoutCancel(ctx)) }()
		if err := q.load(ctx, 0, s.Held, 1); err != nil {
			return nil, err
		}
		lease := max(layer.MinLease, s.Watch*3/5) // so that the heart beats while we wait
		if _, _, err := q.Admin().Configure(ctx, func(c *layer.Config) { c.Lease = lease }); err != nil {
			return nil, err
		}
		var held []*layer.Claim
		for len(held) < s.Held {
			claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: layer.MaxBatch, Heartbeat: true})
			if err != nil {
				return nil, err
			}
			if len(claims) == 0 {
				return nil, fmt.Errorf("%w: %d groups of %d are ready", errWrong, len(held), s.Held)
			}
			held = append(held, claims...)
		}
		const beats = 2
		before := counting.Counters()
		for end := time.Now().Add(s.Patience + lease); counting.Counters().Sub(before).Commits < beats; {
			if time.Now().After(end) {
				return nil, fmt.Errorf("%w: no heartbeat", errWrong)
			}
			if err := sleep(ctx, lease/20); err != nil {
				return nil, err
			}
		}
		c := counting.Counters().Sub(before)
		byHeart := float64(c.Mutations) / float64(c.Commits) * aMinute / float64(s.Held)
		extended := held[:min(len(held), perLoad)]
		before = counting.Counters()
		for _, claim := range extended {
			if _, err := q.Extend(ctx, claim, time.Minute); err != nil {
				return nil, err
			}
		}
		c = counting.Counters().Sub(before)
		oneByOne := float64(c.Mutations) / float64(len(extended)) * aMinute
		n, err := q.ack(ctx, held)
		if err != nil {
			return nil, err
		}
		if n != s.Held {
			return nil, fmt.Errorf("%w: %d items acked, should be %d", errWrong, n, s.Held)
		}
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		groups := fmt.Sprintf("%d groups in flight of one handle", s.Held)
		return []Result{
			{name, byHeart, "mutations", "by heartbeat, per group and minute", groups, atMost(0.05)},
			{"extend_mutations_each", oneByOne, "mutations", "by an extension of each group, per group and minute",
				groups, Target{}},
		}, nil
	}}
}
