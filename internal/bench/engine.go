package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
)

// engineRatio compares the queue with what its engine does for the least that a queue could be: each item set
// by one transaction and cleared by another, in the same batches, by the same number of goroutines, with no
// reads, no order and no claims.
func engineRatio(s Sizes) Benchmark {
	const (
		name  = "engine_ratio"
		means = "queue_items_per_s / engine_items_per_s: what of the engine's speed is left to the queue"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		counting := record.WrapCounting(space.DB)
		space.DB = counting
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "engine")
		if err != nil {
			return nil, err
		}
		groups := 4 * s.Claimers
		if err := q.load(ctx, 0, groups, 2*batch); err != nil {
			return nil, err
		}
		raw := newRawItems(space, s.Claimers)
		cycle := newQueueCycle(q, groups)
		before := counting.Counters()
		c, err := compare(ctx, env, s.Rounds, s.Slices,
			func(ctx context.Context) (float64, error) { return rate(ctx, s.Claimers, s.Slice, raw.batch) },
			func(ctx context.Context) (float64, error) { return rate(ctx, s.Claimers, s.Slice, cycle.batch) })
		if err != nil {
			return nil, err
		}
		conflicts := counting.Counters().Sub(before).Conflicts
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		sizes := fmt.Sprintf("%d goroutines, batches of %d, %d bytes each", s.Claimers, batch, bodySize)
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atLeast(0.25)},
			{"queue_items_per_s", c.b, "items/s", "enqueue + claim + ack, a transaction each", sizes, Target{}},
			{"engine_items_per_s", c.a, "items/s", "one set + one clear, a transaction each, no reads", sizes, Target{}},
			{"conflicts_per_item", float64(conflicts) / float64(max(cycle.items.Load(), 1)), "conflicts",
				"transactions of the queue that were tried again", sizes, Target{}},
		}, nil
	}}
}

// rate lets workers do batches for a while and returns the items that they did a second.
func rate(ctx context.Context, workers int, d time.Duration, do func(ctx context.Context, worker int) (items int, err error)) (float64, error) {
	var total atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, workers)
	begun := time.Now()
	for w := range workers {
		wg.Go(func() {
			for first := true; first || time.Since(begun) < d; first = false {
				n, err := do(ctx, w)
				total.Add(int64(n))
				if err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(total.Load()) / time.Since(begun).Seconds(), errors.Join(errs...)
}

// rawItems sets and clears keys. Each worker has its own, in ascending order, as a queue's items are.
type rawItems struct {
	db     kv.DB
	prefix []byte
	next   []uint64 // by worker
	value  []byte
}

func newRawItems(s Space, workers int) *rawItems {
	return &rawItems{db: s.DB, prefix: tuple.AppendString(bytes.Clone(s.Prefix), "raw"), next: make([]uint64, workers), value: make([]byte, bodySize)}
}

func (r *rawItems) batch(ctx context.Context, worker int) (int, error) {
	keys := make([][]byte, batch)
	for i := range keys {
		// As long as the key of an item.
		k := append(append(make([]byte, 0, 64), r.prefix...), groupName(worker)...)
		k = append(k, make([]byte, 16)...)
		keys[i] = binary.BigEndian.AppendUint64(k, r.next[worker])
		r.next[worker]++
	}
	for _, write := range []func(tx kv.Tx, key []byte){
		func(tx kv.Tx, key []byte) { tx.Set(key, r.value) },
		func(tx kv.Tx, key []byte) { tx.Clear(key) },
	} {
		_, err := kv.Run(ctx, r.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for _, k := range keys {
				write(tx, k)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return batch, nil
}

// queueCycle enqueues a batch, claims one and acks it.
type queueCycle struct {
	q      *queue
	groups int
	turn   atomic.Int64
	items  atomic.Int64
}

func newQueueCycle(q *queue, groups int) *queueCycle { return &queueCycle{q: q, groups: groups} }

func (c *queueCycle) batch(ctx context.Context, _ int) (int, error) {
	group := groupName(int(c.turn.Add(1)) % c.groups)
	if err := c.q.enqueue(ctx, messages(group, batch)...); err != nil {
		return 0, err
	}
	claims, err := c.q.receive(ctx)
	if err != nil {
		return 0, err
	}
	n, err := c.q.ack(ctx, claims)
	c.items.Add(int64(n))
	return n, err
}
