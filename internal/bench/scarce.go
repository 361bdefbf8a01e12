package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// transactionsPerItem counts what it costs when many claimers want the one group that is ready: the worst case.
func transactionsPerItem(s Sizes) Benchmark {
	const name = "transactions_per_item_one_group"
	n := s.Handles[len(s.Handles)-1]
	means := fmt.Sprintf("transactions, failed ones included, per item of one group that %d claimers with a handle each wait for", n)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		counting := record.WrapCounting(&yieldingDB{DB: space.DB})
		space.DB = counting
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "scarce")
		if err != nil {
			return nil, err
		}
		for i := range s.ScarceItems {
			if err := q.enqueue(ctx, layer.Message{Group: groupName(0), Body: []byte(strconv.Itoa(i))}); err != nil {
				return nil, err
			}
		}
		c, err := newCrew(ctx, q, space, n, layer.Options{}, layer.ReceiveOptions{Max: 1, Wait: s.Patience})
		if err != nil {
			return nil, err
		}
		before, begun := counting.Counters(), time.Now()
		if err := takeInOrder(ctx, c, s); err != nil {
			return nil, errors.Join(err, c.close(ctx))
		}
		took := time.Since(begun)
		counted := counting.Counters().Sub(before)
		var paths layer.Paths
		for _, h := range c.handles {
			p := h.Paths()
			paths.Direct += p.Direct
			paths.Widened += p.Widened
			paths.Staged += p.Staged
			paths.Looks += p.Looks
		}
		if err := c.close(ctx); err != nil {
			return nil, err
		}
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		per := func(n int64) float64 { return float64(n) / float64(s.ScarceItems) }
		return []Result{
			{name, per(attempts(counted)), "transactions", means,
				fmt.Sprintf("%d items; claims: %d direct, %d after a conflict, %d after waiting; %d looks", s.ScarceItems, paths.Direct, paths.Widened, paths.Staged, paths.Looks), env.target(atMost(2.2), atMost(2))},
			{"conflicts_per_item_one_group", per(counted.Conflicts), "conflicts", "of these, failed with a conflict", "", Target{}},
			{"items_per_s_one_group", float64(s.ScarceItems) / took.Seconds(), "items/s", "receive and ack, a transaction each", "", Target{}},
		}, nil
	}}
}

// errAllDone is the cause of the end of receives that have nothing left to wait for.
var errAllDone = errors.New("all is done")

// takeInOrder lets the crew receive and ack the items of one group one by one until none is left. Each must be the
// one that follows.
func takeInOrder(ctx context.Context, c *crew, s Sizes) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex
	next := 0 // guarded by mu
	var wg sync.WaitGroup
	for _, one := range c.claimers {
		wg.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				before := next
				mu.Unlock()
				claims, err := one.handle.Receive(ctx, one.o)
				if err == nil && len(claims) == 0 {
					mu.Lock()
					others := next > before // have got items meanwhile; nobody has promised each a share
					mu.Unlock()
					if others {
						continue
					}
					err = fmt.Errorf("%w: no item came for %v", errWrong, one.o.Wait)
				}
				if err != nil {
					stop(err) // the first cause stays
					return
				}
				body := string(claims[0].Items[0].Body)
				mu.Lock()
				if body != strconv.Itoa(next) {
					stop(fmt.Errorf("%w: item %s came, should be %d", errWrong, body, next))
				}
				next++
				last := next == s.ScarceItems
				mu.Unlock()
				if err := one.handle.Ack(ctx, claims[0]); err != nil {
					stop(err)
					return
				}
				c.q.left.Add(-1)
				if last {
					stop(errAllDone)
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, errAllDone) {
		return err
	}
	return nil
}
