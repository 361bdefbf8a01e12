package bench

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/layer"
)

// shape is what stands in a queue while claims are measured.
type shape struct {
	held, groups, each int // groups held in front; ready groups behind them, with so many items each
}

// backlogRatio compares claim + ack of a batch in two databases of different shape. One goroutine does it, and its
// figure is the time of a batch. It enqueues the acked items again to the same groups, so the shapes stay. That enqueue
// is not timed.
type backlogRatio struct {
	name, means  string
	small, large shape
	smallName    string // of the times
	largeName    string
}

func depthRatio(s Sizes) Benchmark {
	const groups = 10
	return backlogRatio{
		name:  "depth_ratio",
		means: fmt.Sprintf("claim + ack of a batch with %d items in the queue to the same with %d", s.Deep, s.Shallow),
		small: shape{groups: groups, each: s.Shallow / groups}, smallName: "shallow_batch_us",
		large: shape{groups: groups, each: s.Deep / groups}, largeName: "deep_batch_us",
	}.benchmark(s)
}

func groupsRatio(s Sizes) Benchmark {
	return backlogRatio{
		name:  "groups_ratio",
		means: fmt.Sprintf("claim + ack of a batch with %d groups to the same with %d", s.ManyGroups, s.FewGroups),
		small: shape{groups: s.FewGroups, each: batch}, smallName: "few_groups_batch_us",
		large: shape{groups: s.ManyGroups, each: batch}, largeName: "many_groups_batch_us",
	}.benchmark(s)
}

func heldRatio(s Sizes) Benchmark {
	return backlogRatio{
		name:  "held_ratio",
		means: fmt.Sprintf("claim + ack of a batch with %d held groups in front to the same with none", s.Held),
		small: shape{groups: s.FewGroups, each: batch}, smallName: "none_held_batch_us",
		large: shape{held: s.Held, groups: s.FewGroups, each: batch}, largeName: "many_held_batch_us",
	}.benchmark(s)
}

func (r backlogRatio) benchmark(s Sizes) Benchmark {
	return Benchmark{r.name, r.means, func(ctx context.Context, env Env) ([]Result, error) { return r.run(ctx, env, s) }}
}

func (r backlogRatio) run(ctx context.Context, env Env, s Sizes) (results []Result, err error) {
	var sides [2]*backlog
	for i, of := range []shape{r.small, r.large} {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		if sides[i], err = newBacklog(ctx, env, space, of, s.SliceBatches); err != nil {
			return nil, err
		}
	}
	c, err := compare(ctx, env, s.Rounds, s.Slices, sides[0].slice, sides[1].slice)
	if err != nil {
		return nil, err
	}
	for _, b := range sides {
		if err := b.q.verify(ctx); err != nil {
			return nil, err
		}
	}
	sizes := func(of shape) string {
		text := fmt.Sprintf("%d groups of %d items", of.groups, of.each)
		if of.held > 0 {
			text += fmt.Sprintf(" behind %d held ones", of.held)
		}
		return text
	}
	return []Result{
		{r.name, c.ratio(), "ratio", r.means, c.spread(), atMost(1.1)},
		{r.smallName, c.a, "us", "claim + ack of a batch of 10", sizes(r.small), Target{}},
		{r.largeName, c.b, "us", "claim + ack of a batch of 10", sizes(r.large), Target{}},
	}, nil
}

// backlog is one side of a backlogRatio.
type backlog struct {
	q       *queue
	batches int // of a slice
}

func newBacklog(ctx context.Context, env Env, s Space, of shape, batches int) (*backlog, error) {
	q, err := newQueue(ctx, env, s, "backlog")
	if err != nil {
		return nil, err
	}
	if of.held > 0 {
		// Each of these groups gets a second item while the first is held, so no claimer can get this backlog.
		if err := q.load(ctx, 0, of.held, 1); err != nil {
			return nil, err
		}
		if err := q.hold(ctx); err != nil {
			return nil, err
		}
		if err := q.load(ctx, 0, of.held, 1); err != nil {
			return nil, err
		}
	}
	if err := q.load(ctx, of.held, of.groups, of.each); err != nil {
		return nil, err
	}
	return &backlog{q: q, batches: batches}, nil
}

// slice returns the microseconds that claim + ack of a batch took.
func (b *backlog) slice(ctx context.Context) (float64, error) {
	var again []layer.Message
	begun := time.Now()
	for range b.batches {
		claims, err := b.q.receive(ctx)
		if err != nil {
			return 0, err
		}
		n, err := b.q.ack(ctx, claims)
		if err != nil {
			return 0, err
		}
		if n != batch || len(claims) != 1 {
			return 0, fmt.Errorf("%w: a claim has %d items in %d groups, should be %d in 1", errWrong, n, len(claims), batch)
		}
		again = append(again, messages(claims[0].Group, n)...)
	}
	took := micros(time.Since(begun)) / float64(b.batches)
	for len(again) > 0 {
		n := min(len(again), perLoad)
		if err := b.q.enqueue(ctx, again[:n]...); err != nil {
			return 0, err
		}
		again = again[n:]
	}
	return took, nil
}
