package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/metrics"
)

// AllHooks are the hooks that hooks_cost sets: the hook of the metrics, one of the shape of a trace, and one that
// writes a log, which is discarded.
func AllHooks() []layer.Hook {
	return []layer.Hook{
		metrics.New(metrics.Options{}).Hook(),
		{Begin: func(ctx context.Context, _ *layer.Operation) context.Context { return ctx }},
		layer.LogHook(slog.New(slog.DiscardHandler)),
	}
}

// lives is how many messages went through a queue, for how much.
type lives struct {
	messages float64
	clock    time.Duration
	cpu      time.Duration // 0 if the system does not say
}

// hooksCost compares the life of messages through a handle with all hooks with one without: by CPU, because a busy
// machine spreads the ratio by the clock over more than there is to tell, and by the clock.
func hooksCost(s Sizes) Benchmark {
	const name = "hooks_cost"
	const means = "messages per second of CPU enqueued, received and acked with all hooks set, to those without hooks"
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
		hooked := &queue{env: env}
		hooked.Queue, err = layer.Open(ctx, space.DB, space.Prefix, "hooks", layer.Options{Hooks: AllHooks()})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, hooked.Close(context.WithoutCancel(ctx))) }()
		var clocks [2][]float64
		run := func(q *queue, clocks *[]float64) side {
			return func(ctx context.Context) (float64, error) {
				l, err := q.live(ctx, s.Slice)
				if err != nil {
					return 0, err
				}
				perSecond := l.messages / l.clock.Seconds()
				*clocks = append(*clocks, perSecond)
				if l.cpu == 0 {
					return perSecond, nil
				}
				return l.messages / l.cpu.Seconds(), nil
			}
		}
		c, err := compare(ctx, env, s.Rounds, s.Slices, run(plain, &clocks[0]), run(hooked, &clocks[1]))
		if err != nil {
			return nil, err
		}
		without, with := median(clocks[0]), median(clocks[1])
		sizes := fmt.Sprintf("enqueue, receive and ack of %d, a call each, one caller", batch)
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atLeast(0.95)},
			{"hooks_cost_clock", with / without, "ratio", "the same by the clock", "medians of all slices", Target{}},
			{"no_hooks_messages_per_s", without, "messages/s", "without hooks, by the clock", sizes, Target{}},
		}, plain.verify(ctx)
	}}
}

// live has messages live their lives for a while.
func (q *queue) live(ctx context.Context, slice time.Duration) (l lives, err error) {
	before, _ := cpuTime()
	begun := time.Now()
	for time.Since(begun) < slice {
		n, err := q.life(ctx, int(l.messages)/batch)
		if err != nil {
			return l, err
		}
		l.messages += float64(n)
	}
	after, _ := cpuTime()
	l.clock, l.cpu = time.Since(begun), after-before
	return l, nil
}

// life is the life of the nth batch.
func (q *queue) life(ctx context.Context, nth int) (int, error) {
	if err := q.enqueue(ctx, messages(groupName(nth%50), batch)...); err != nil {
		return 0, err
	}
	claims, err := q.receive(ctx)
	if err != nil {
		return 0, err
	}
	return q.ack(ctx, claims)
}

// Live has so many batches of messages live their lives through a queue of db, whose handle has hooks.
func Live(ctx context.Context, db kv.DB, hooks []layer.Hook, batches int) (err error) {
	q := &queue{}
	if q.Queue, err = layer.Create(ctx, db, nil, "hooks", layer.Options{Hooks: hooks}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close(context.WithoutCancel(ctx))) }()
	for n := range batches {
		if _, err := q.life(ctx, n); err != nil {
			return err
		}
	}
	return q.verify(ctx)
}
