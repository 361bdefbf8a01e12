package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"fdbfifo/layer"
	"fdbfifo/metrics"
)

// hooksCost compares the life of messages through a handle with all hooks with one without: those that count, and those
// that write a log which nobody keeps.
func hooksCost(s Sizes) Benchmark {
	const name = "hooks_cost"
	const means = "messages/s enqueued, received and acked with all hooks set, to those without hooks"
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		plain, err := newQueue(ctx, env, space, "hooks")
		if err != nil {
			return nil, err
		}
		hooks := []layer.Hook{
			metrics.New(metrics.Options{}).Hook(),
			{Begin: func(ctx context.Context, _ *layer.Operation) context.Context { return ctx }},
			layer.LogHook(slog.New(slog.DiscardHandler)),
		}
		hooked := &queue{env: env}
		hooked.Queue, err = layer.Open(ctx, space.DB, space.Prefix, "hooks", layer.Options{Hooks: hooks})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, hooked.Close(context.WithoutCancel(ctx))) }()
		c, err := compare(ctx, env, s.Rounds, s.Slices,
			func(ctx context.Context) (float64, error) { return plain.lives(ctx, s.Slice) },
			func(ctx context.Context) (float64, error) { return hooked.lives(ctx, s.Slice) })
		if err != nil {
			return nil, err
		}
		sizes := fmt.Sprintf("enqueue, receive and ack of %d, a call each, one caller", batch)
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atLeast(0.95)},
			{"no_hooks_messages_per_s", c.a, "messages/s", "the same without hooks", sizes, Target{}},
		}, plain.verify(ctx)
	}}
}

// lives returns how many messages a second go through the queue.
func (q *queue) lives(ctx context.Context, slice time.Duration) (float64, error) {
	n, begun := 0, time.Now()
	for time.Since(begun) < slice {
		if err := q.enqueue(ctx, messages(groupName(n%50), batch)...); err != nil {
			return 0, err
		}
		claims, err := q.receive(ctx)
		if err != nil {
			return 0, err
		}
		done, err := q.ack(ctx, claims)
		if err != nil {
			return 0, err
		}
		n += done
	}
	return float64(n) / time.Since(begun).Seconds(), nil
}
