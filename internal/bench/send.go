package bench

import (
	"context"
	"fmt"

	"fdbfifo/layer"
)

// fewSenders is how many goroutines of one handle send_ratio has: few enough for each to be in flight by itself.
const fewSenders = 16

// sendRatio compares a few goroutines that enqueue one message at a time with as many that set a key each, and a
// caller alone with a caller alone.
func sendRatio(s Sizes) Benchmark {
	const name = "send_ratio"
	n := min(fewSenders, s.Senders)
	means := fmt.Sprintf("messages/s of %d goroutines that enqueue one by one, to sets/s of as many on the engine", n)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		h, err := layer.Create(ctx, space.DB, space.Prefix, "send", layer.Options{})
		if err != nil {
			return nil, err
		}
		q := &queue{Queue: h, env: env}
		by := []*layer.Queue{h}
		together := &senders{q: q, by: by, n: n, each: sendsEach}
		alone := &senders{q: q, by: by, n: 1, each: sendsEach}
		c, err := compare(ctx, env, s.LongRounds, s.Slices,
			func(ctx context.Context) (float64, error) { return rawSets(ctx, space, n, 1) }, together.slice)
		if err != nil {
			return nil, err
		}
		one, err := compare(ctx, env, s.LongRounds, s.Slices,
			func(ctx context.Context) (float64, error) { return perItem(rawSets(ctx, space, 1, 1)) },
			func(ctx context.Context) (float64, error) { return perItem(alone.slice(ctx)) })
		if err != nil {
			return nil, err
		}
		sizes := fmt.Sprintf("%d goroutines, %d bytes each", n, bodySize)
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atLeast(0.7)},
			{"send_p50_ratio", one.ratio(), "ratio", "the time of one enqueue to that of one set, by one caller alone",
				one.spread(), atMost(2)},
			{"sends_per_s", c.b, "items/s", "enqueues of one message", sizes, Target{}},
			{"raw_sends_per_s", c.a, "items/s", "transactions of one set", sizes, Target{}},
			{"send_us", one.b, "us", "one enqueue, by one caller alone", "", Target{}},
			{"raw_send_us", one.a, "us", "one set, by one caller alone", "", Target{}},
		}, q.verify(ctx)
	}}
}

// perItem is the microseconds that each of so many a second took, one after the other.
func perItem(perSecond float64, err error) (float64, error) { return 1e6 / perSecond, err }
