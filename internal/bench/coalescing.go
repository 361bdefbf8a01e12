package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// coalescingGain compares many goroutines that enqueue one message at a time by one handle with as many that have a
// handle each, and so share no transaction.
func coalescingGain(s Sizes) Benchmark {
	const name = "coalescing_gain"
	means := fmt.Sprintf("messages/s of %d goroutines that enqueue one at a time: one handle to a handle each",
		s.Senders)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		var sides [2]*senders
		for i, handles := range []int{s.Senders, 1} {
			var q *queue
			if q, err = newQueue(ctx, env, space, fmt.Sprintf("coalescing-%d", i)); err != nil {
				return nil, err
			}
			var c *crew
			if c, err = newCrew(ctx, q, space, handles, layer.Options{}, layer.ReceiveOptions{}); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, c.close(context.WithoutCancel(ctx))) }()
			sides[i] = &senders{q: q, by: c.handles, n: s.Senders, each: sendsEach}
		}
		c, err := compare(ctx, env, s.LongRounds, 2, sides[0].slice, sides[1].slice)
		if err != nil {
			return nil, err
		}
		raw, err := compare(ctx, env, s.LongRounds, 2,
			func(ctx context.Context) (float64, error) { return rawSets(ctx, space, s.Senders, 1) },
			func(ctx context.Context) (float64, error) { return rawSets(ctx, space, 2, s.Senders/2) })
		if err != nil {
			return nil, err
		}
		for _, side := range sides {
			if err := side.q.verify(ctx); err != nil {
				return nil, err
			}
		}
		off, on := median(sides[0].took), median(sides[1].took)
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atLeast(8)},
			{"coalescing_p50_ratio", on / off, "ratio", "median time of one enqueue, by one handle to a handle each", "", atMost(2)},
			{"raw_batching_gain", raw.ratio(), "ratio", "what there is to be gained: sets/s of the bare engine, " +
				fmt.Sprintf("%d in a transaction by 2 goroutines, to one by %d", s.Senders/2, s.Senders), raw.spread(), Target{}},
			{"coalesced_messages_per_s", c.b, "items/s", "", "", Target{}},
			{"uncoalesced_messages_per_s", c.a, "items/s", "", "", Target{}},
			{"coalesced_p50_us", on, "us", "", "", Target{}},
			{"uncoalesced_p50_us", off, "us", "", "", Target{}},
		}, nil
	}}
}

// rawSets returns the sets a second of goroutines that each commit transactions of so many, of messages' size.
func rawSets(ctx context.Context, space Space, goroutines, each int) (float64, error) {
	var wg sync.WaitGroup
	errs := make([]error, goroutines)
	value := make([]byte, bodySize)
	begun := time.Now()
	for i := range goroutines {
		wg.Go(func() {
			keys := append(bytes.Clone(space.Prefix), tuple.Tuple{"raw", int64(i)}.Pack()...)
			for n := range sendsEach {
				_, err := kv.Run(ctx, space.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
					for k := range each {
						id := uuid.New()
						key := tuple.AppendInt(bytes.Clone(keys), int64(n*each+k))
						tx.Set(append(key, id[:]...), value)
					}
					return nil
				})
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(goroutines*each*sendsEach) / time.Since(begun).Seconds(), errors.Join(errs...)
}

// sendsEach is how many messages a goroutine enqueues in a slice, one after the other: the first of them finds
// nothing in flight.
const sendsEach = 10

// senders are goroutines that enqueue into a group each.
type senders struct {
	q       *queue
	by      []*layer.Queue // handles on q, which take turns
	n, each int
	took    []float64 // microseconds, of each enqueue
}

// slice returns the messages enqueued a second.
func (s *senders) slice(ctx context.Context) (float64, error) {
	var wg sync.WaitGroup
	errs := make([]error, s.n)
	took := make([][]float64, s.n)
	begun := time.Now()
	for i := range s.n {
		wg.Go(func() {
			h, m := s.by[i%len(s.by)], messages(groupName(i), 1)
			for range s.each {
				begun := time.Now()
				if _, errs[i] = h.Enqueue(ctx, m...); errs[i] != nil {
					return
				}
				s.q.left.Add(1)
				took[i] = append(took[i], micros(time.Since(begun)))
			}
		})
	}
	wg.Wait()
	all := time.Since(begun)
	for _, t := range took {
		s.took = append(s.took, t...)
	}
	return float64(s.n*s.each) / all.Seconds(), errors.Join(errs...)
}
