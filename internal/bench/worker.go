package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// workerHands is how many goroutines the workers of this file have.
const workerHands = 8

// workerLivelock counts how often a worker calls the handler of each message when the handler needs nearly all of its
// lease, in the transaction that acks: with no faults once, unless the worker gets into its own way.
func workerLivelock(s Sizes) Benchmark {
	const (
		name  = "worker_livelock"
		means = "calls a message of a HandleTx that takes 0.9 of its lease, without faults"
		lease = layer.MinLease
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "livelock")
		if err != nil {
			return nil, err
		}
		if err := q.load(ctx, 0, s.SlowGroups, s.SlowEach); err != nil {
			return nil, err
		}
		var calls atomic.Int64
		takes := lease * 9 / 10
		h := worker.HandleTx(func(context.Context, kv.Tx, *worker.Delivery) error {
			calls.Add(1)
			time.Sleep(takes) // whatever the context says: a call that is cut off would not show
			return nil
		})
		total := int64(s.SlowGroups * s.SlowEach)
		if err := q.runWorker(ctx, h, worker.Options{Lease: lease}, total, lease+s.Patience); err != nil {
			return nil, err
		}
		detail := fmt.Sprintf("%d groups of %d, a lease of %s", s.SlowGroups, s.SlowEach, lease)
		return []Result{
			{name, float64(calls.Load()) / float64(total), "calls", means, detail, atMost(1)},
		}, q.verify(ctx)
	}}
}

// runWorker lets a worker work until so many messages are acked. After patience without one the rest is lost.
func (q *queue) runWorker(
	ctx context.Context, h worker.Handler, o worker.Options, messages int64, patience time.Duration,
) error {
	var done atomic.Int64
	all := make(chan struct{})
	o.Concurrency, o.Logger = workerHands, slog.New(slog.DiscardHandler)
	o.Events.Done = func(worker.Event) {
		if done.Add(1) == messages {
			close(all)
		}
	}
	o.OnError = func(err error) { q.env.progress(err.Error(), 0, 1) }
	w, err := worker.New(q.Queue, h, o)
	if err != nil {
		return err
	}
	w.Start()
	ticker := time.NewTicker(patience)
	defer ticker.Stop()
	for before := int64(-1); err == nil && done.Load() < messages; {
		select {
		case <-all:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-ticker.C:
			n := done.Load()
			if n == before {
				err = fmt.Errorf("%w: %d of %d messages have come", errWrong, n, messages)
			}
			before = n
		}
	}
	if err := errors.Join(err, w.Stop(ctx)); err != nil {
		return err
	}
	q.left.Add(-messages)
	return nil
}

// workerRatio compares a worker, which acks item by item, with receives and acks by hand, which ack what they have
// received.
func workerRatio(s Sizes) Benchmark {
	const (
		name  = "worker_ratio"
		means = "messages/s of a plain worker, which acks item by item, to those of Receive and Ack in batches"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "worker")
		if err != nil {
			return nil, err
		}
		d := &draining{queue: q, groups: s.WorkerGroups, patience: s.Patience}
		c, err := compare(ctx, env, s.LongRounds, 1,
			func(ctx context.Context) (float64, error) { return d.slice(ctx, d.byHand) },
			func(ctx context.Context) (float64, error) { return d.slice(ctx, d.byWorker) })
		if err != nil {
			return nil, err
		}
		sizes := fmt.Sprintf("%d goroutines, %d groups of %d", workerHands, s.WorkerGroups, batch)
		byHand := fmt.Sprintf("receive and ack of %d, a call each", batch)
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atLeast(0.7)},
			{"worker_items_per_s", c.b, "items/s", "a handler that does nothing, item by item", sizes, Target{}},
			{"by_hand_items_per_s", c.a, "items/s", byHand, sizes, Target{}},
		}, q.verify(ctx)
	}}
}

// draining is the emptying of a queue with so many groups of a batch each.
type draining struct {
	*queue
	groups   int
	patience time.Duration
}

// slice fills the queue and returns how many items a second drain takes out.
func (d *draining) slice(ctx context.Context, drain func(ctx context.Context) error) (float64, error) {
	if err := d.load(ctx, 0, d.groups, batch); err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := drain(ctx); err != nil {
		return 0, err
	}
	return float64(d.groups*batch) / time.Since(begun).Seconds(), nil
}

func (d *draining) byWorker(ctx context.Context) error {
	h := worker.Handle(func(context.Context, *worker.Delivery) error { return nil })
	return d.runWorker(ctx, h, worker.Options{Batch: batch}, int64(d.groups*batch), d.patience)
}

func (d *draining) byHand(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, workerHands)
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil {
				claims, err := d.receive(ctx)
				if err == nil && len(claims) == 0 {
					return
				}
				if err == nil {
					_, err = d.ack(ctx, claims)
				}
				errs[i] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
