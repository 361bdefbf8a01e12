package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// enqueueConflicts counts the conflicts between many goroutines that enqueue into one group.
func enqueueConflicts(s Sizes) Benchmark {
	const name = "enqueue_conflicts"
	means := fmt.Sprintf("conflicts between %d goroutines that enqueue into one group", s.Enqueuers)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		yielding := &yieldingDB{DB: space.DB}
		counting := record.WrapCounting(yielding)
		space.DB = counting
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "conflicts")
		if err != nil {
			return nil, err
		}
		before := counting.Counters()
		begun := time.Now()
		var wg sync.WaitGroup
		errs := make([]error, s.Enqueuers)
		for w := range s.Enqueuers {
			wg.Go(func() {
				for n := range s.EnqueuesEach {
					m := layer.Message{Group: groupName(0), Body: fmt.Appendf(nil, "%d %d", w, n)}
					if errs[w] = q.enqueue(ctx, m); errs[w] != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(begun)
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		conflicts := counting.Counters().Sub(before).Conflicts
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		if err := inOrder(ctx, q, s.Enqueuers, s.EnqueuesEach); err != nil {
			return nil, err
		}
		total := s.Enqueuers * s.EnqueuesEach
		return []Result{
			{name, float64(conflicts), "conflicts", means, fmt.Sprintf("%d enqueues of one item", total), atMost(0)},
			{"enqueues_at_once", float64(yielding.most.Load()), "transactions",
				"most enqueues between their reads and the end of their commit", "", Target{}},
			{"enqueues_per_s", float64(total) / took.Seconds(), "items/s", "enqueues of one item into one group", "", Target{}},
		}, nil
	}}
}

// inOrder drains the group: what one goroutine enqueued must come in the order in which it did.
func inOrder(ctx context.Context, q *queue, workers, each int) error {
	next := make([]int, workers)
	for {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: layer.MaxBatch})
		if err != nil {
			return err
		}
		if len(claims) == 0 {
			break
		}
		for _, item := range claims[0].Items {
			var w, n int
			if _, err := fmt.Sscanf(string(item.Body), "%d %d", &w, &n); err != nil {
				return fmt.Errorf("%w: body %q: %w", errWrong, item.Body, err)
			}
			if n != next[w] {
				return fmt.Errorf("%w: item %d of goroutine %d came, should be %d", errWrong, n, w, next[w])
			}
			next[w]++
		}
		if _, err := q.ack(ctx, claims); err != nil {
			return err
		}
	}
	for w, n := range next {
		if n != each {
			return fmt.Errorf("%w: %d items of goroutine %d came, should be %d", errWrong, n, w, each)
		}
	}
	return nil
}

// yieldingDB lets other goroutines run before each commit. On an engine that never waits, transactions of a
// few cores would hardly meet otherwise.
type yieldingDB struct {
	kv.DB
	open, most atomic.Int64
}

func (d *yieldingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	return &yieldingTx{tx, d}, nil
}

type yieldingTx struct {
	kv.ManagedTx
	db *yieldingDB
}

func (t *yieldingTx) Commit() kv.Future[struct{}] {
	open := t.db.open.Add(1)
	for most := t.db.most.Load(); open > most && !t.db.most.CompareAndSwap(most, open); {
		most = t.db.most.Load()
	}
	runtime.Gosched()
	return &yieldingCommit{Future: t.ManagedTx.Commit(), db: t.db}
}

type yieldingCommit struct {
	kv.Future[struct{}]
	db   *yieldingDB
	once sync.Once
}

func (c *yieldingCommit) Wait(ctx context.Context) (struct{}, error) {
	v, err := c.Future.Wait(ctx)
	c.once.Do(func() { c.db.open.Add(-1) })
	return v, err
}
