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

// transactionsPerItem counts the transactions per item when many claimers want the only ready group. That is the worst
// case.
func transactionsPerItem(s Sizes) Benchmark {
	const name = "transactions_per_item_one_group"
	most := s.Handles[len(s.Handles)-1]
	means := func(n int) string {
		const each = "transactions, failed ones included, per item of one group"
		return fmt.Sprintf("%s that %d claimers with a handle each wait for", each, n)
	}
	const (
		steady    = "the same without the first quarter of the items, in which all begin to wait"
		conflicts = "of these, failed with a conflict"
		rate      = "receive and ack, a transaction each"
	)
	return Benchmark{name, means(most), func(ctx context.Context, env Env) ([]Result, error) {
		all, err := takeOneGroup(ctx, env, s, most)
		if err != nil {
			return nil, err
		}
		fewer := min(fewHandles, most)
		few, err := takeOneGroup(ctx, env, s, fewer)
		if err != nil {
			return nil, err
		}
		target := env.target(atMost(2.2), atMost(2))
		return []Result{
			{name, all.each, "transactions", means(most), all.how, target},
			{name + "_steady", all.steady, "transactions", steady, "", Target{}},
			{"conflicts_per_item_one_group", all.conflicts, "conflicts", conflicts, "", Target{}},
			{"items_per_s_one_group", all.perSecond, "items/s", rate, "", Target{}},
			{name + "_16", few.each, "transactions", means(fewer), few.how, target},
			{name + "_16_steady", few.steady, "transactions", steady, "", Target{}},
			{"conflicts_per_item_one_group_16", few.conflicts, "conflicts", conflicts, "", Target{}},
		}, nil
	}}
}

// oneGroup is what it cost to take the items of one group.
type oneGroup struct {
	each, steady, conflicts float64 // an item
	perSecond               float64 // items
	how                     string
}

// takeOneGroup has so many handles take the items of one group.
func takeOneGroup(ctx context.Context, env Env, s Sizes, handles int) (r oneGroup, err error) {
	space, err := env.Open(ctx)
	if err != nil {
		return r, err
	}
	counting := record.WrapCounting(&yieldingDB{DB: space.DB})
	space.DB = counting
	defer space.closing(&err)
	q, err := newQueue(ctx, env, space, "scarce")
	if err != nil {
		return r, err
	}
	for i := range s.ScarceItems {
		if err := q.enqueue(ctx, layer.Message{Group: groupName(0), Body: []byte(strconv.Itoa(i))}); err != nil {
			return r, err
		}
	}
	c, err := newCrew(ctx, q, space, handles, layer.Options{}, layer.ReceiveOptions{Max: 1, Wait: s.Patience})
	if err != nil {
		return r, err
	}
	quarter := s.ScarceItems / 4
	var from, to record.Counters // when a quarter of the items was received, and when all were
	received := func(n int) {
		switch n {
		case quarter:
			from = counting.Counters()
		case s.ScarceItems:
			to = counting.Counters()
		}
	}
	before, begun := counting.Counters(), time.Now()
	if err := takeInOrder(ctx, c, s, received); err != nil {
		return r, errors.Join(err, c.close(ctx))
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
		return r, err
	}
	per := func(n int64, items int) float64 { return float64(n) / float64(items) }
	return oneGroup{
		each: per(attempts(counted), s.ScarceItems), steady: per(attempts(to.Sub(from)), s.ScarceItems-quarter),
		conflicts: per(counted.Conflicts, s.ScarceItems), perSecond: float64(s.ScarceItems) / took.Seconds(),
		how: fmt.Sprintf("%d items; claims: %d direct, %d after a conflict, %d after waiting; %d looks",
			s.ScarceItems, paths.Direct, paths.Widened, paths.Staged, paths.Looks),
	}, q.verify(ctx)
}

// errAllDone is the cause of the end of receives that have nothing left to wait for.
var errAllDone = errors.New("all is done")

// takeInOrder lets the crew receive and ack the items of one group one by one until none is left. Each must be the
// one that follows. received is told how many were received, one call at a time.
func takeInOrder(ctx context.Context, c *crew, s Sizes, received func(n int)) error {
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
					others := next > before // have got items since; a claimer need not get a share
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
				received(next)
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
