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
	"fdbfifo/kv/tuple"
)

// engineRatio compares the queue with what its engine does for the least that a queue could be: each item set
// by one transaction and cleared by another, in the same batches, by the same number of goroutines, with as much
// standing in it, but with no reads, no order and no claims.
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
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "engine")
		if err != nil {
			return nil, err
		}
		groups := groupsEach * s.Claimers
		if err := q.load(ctx, 0, groups, batchesEach*batch); err != nil {
			return nil, err
		}
		raw, err := newRawItems(ctx, space, s.Claimers)
		if err != nil {
			return nil, err
		}
		cycle := newQueueCycle(q, groups)
		c, err := compare(ctx, env, s.Rounds, s.Slices,
			func(ctx context.Context) (float64, error) { return rate(ctx, s.Claimers, s.Slice, raw.batch) },
			func(ctx context.Context) (float64, error) { return rate(ctx, s.Claimers, s.Slice, cycle.batch) })
		if err != nil {
			return nil, err
		}
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		sizes := fmt.Sprintf("%d goroutines, batches of %d, %d bytes each", s.Claimers, batch, bodySize)
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), env.target(atLeast(0.5), atLeast(0.4))},
			{"queue_items_per_s", c.b, "items/s", "enqueue + claim + ack, a transaction each", sizes, Target{}},
			{"engine_items_per_s", c.a, "items/s", "one set + one clear, a transaction each, no reads", sizes, Target{}},
		}, nil
	}}
}

// rate lets workers do batches for a while and returns their items a second. A batch that is still running at the end
// of the time does not count, because a slow last batch would be a large part of a short slice.
func rate(ctx context.Context, workers int, d time.Duration, do func(ctx context.Context, worker int) (items int, err error)) (float64, error) {
	var items atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	errs := make([]error, workers)
	begun := time.Now()
	for w := range workers {
		wg.Go(func() {
			for !over.Load() {
				n, err := do(ctx, w)
				items.Add(int64(n))
				if err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	time.Sleep(d)
	n, took := items.Load(), time.Since(begun)
	over.Store(true)
	wg.Wait()
	if n == 0 { // slower than a slice: what is late is all there is
		n, took = items.Load(), time.Since(begun)
	}
	return float64(n) / took.Seconds(), errors.Join(errs...)
}

// groupsEach is how many groups there are for each worker, and batchesEach how many batches stand in each group.
const (
	groupsEach  = 4
	batchesEach = 2
)

// rawItems sets and clears keys that are as many, as long and as scattered as those of the queue's items, but the
// worker knows them: the groups are its own.
type rawItems struct {
	db      kv.DB
	prefix  []byte
	value   []byte
	workers []rawWorker
}

type rawWorker struct {
	turn int
	next [groupsEach]uint64 // the index of the next item, by group
}

func newRawItems(ctx context.Context, s Space, workers int) (*rawItems, error) {
	r := &rawItems{
		db: s.DB, prefix: tuple.AppendString(bytes.Clone(s.Prefix), "raw"), value: make([]byte, bodySize),
		workers: make([]rawWorker, workers),
	}
	for w := range workers {
		for range groupsEach * batchesEach {
			if _, err := r.set(ctx, w); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

func (r *rawItems) key(worker, group int, index uint64) []byte {
	k := append(append(make([]byte, 0, 96), r.prefix...), groupName(groupsEach*worker+group)...)
	k = binary.BigEndian.AppendUint64(k, index)
	return append(k, make([]byte, 16)...) // in the place of an item's UUID
}

// set sets a batch of the worker's next group and returns the group.
func (r *rawItems) set(ctx context.Context, worker int) (group int, err error) {
	w := &r.workers[worker]
	group = w.turn % groupsEach
	w.turn++
	err = r.update(ctx, worker, group, w.next[group], func(tx kv.Tx, key []byte) { tx.Set(key, r.value) })
	w.next[group] += batch
	return group, err
}

// batch sets a batch and clears the oldest one of the same group.
func (r *rawItems) batch(ctx context.Context, worker int) (int, error) {
	group, err := r.set(ctx, worker)
	if err != nil {
		return 0, err
	}
	oldest := r.workers[worker].next[group] - (batchesEach+1)*batch
	return batch, r.update(ctx, worker, group, oldest, func(tx kv.Tx, key []byte) { tx.Clear(key) })
}

func (r *rawItems) update(ctx context.Context, worker, group int, first uint64, write func(tx kv.Tx, key []byte)) error {
	_, err := kv.Run(ctx, r.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		for i := range uint64(batch) {
			write(tx, r.key(worker, group, first+i))
		}
		return nil
	})
	return err
}

// queueCycle enqueues a batch, claims one and acks it.
type queueCycle struct {
	q      *queue
	groups int
	turn   atomic.Int64
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
	return c.q.ack(ctx, claims)
}
