package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// claimersFloor asks whether more claimers, each with a handle of its own as processes have, ever make a queue
// with plenty of ready groups slower.
func claimersFloor(s Sizes) Benchmark {
	const name = "claimers_floor"
	last := s.Handles[len(s.Handles)-1]
	means := fmt.Sprintf("1 to %d claimers with a handle each: the worst rate over the best of fewer", last)
	return Benchmark{name, means, func(ctx context.Context, env Env) ([]Result, error) {
		points, err := sweep(ctx, env, s, s.ReadyGroups)
		if err != nil {
			return nil, err
		}
		floor, conflicts, best := 1.0, 0.0, points[0].PerSecond
		for _, p := range points {
			floor = min(floor, p.PerSecond/best)
			best = max(best, p.PerSecond)
			conflicts = max(conflicts, p.Conflicts)
		}
		var rates, each []string
		for _, p := range points {
			rates = append(rates, fmt.Sprintf("%d: %.0f", p.Claimers, p.PerSecond))
			each = append(each, fmt.Sprintf("%d: %.3f", p.Claimers, p.Conflicts))
		}
		sizes := fmt.Sprintf("%d ready groups of %d items", s.ReadyGroups, batch)
		return []Result{
			{name, floor, "ratio", means, "items/s by claimers: " + strings.Join(rates, ", "), atLeast(0.85)},
			{"conflicts_per_claim", conflicts, "conflicts", "failed commits per successful claim, at the worst number of claimers",
				strings.Join(each, ", "), atMost(0.1)},
			{"claimers_best_items_per_s", best, "items/s", "claim + ack in one transaction", sizes, Target{}},
		}, nil
	}}
}

// Point is what so many claimers did.
type Point struct {
	Claimers  int
	PerSecond float64 // items
	Conflicts float64 // per successful claim
	Attempts  float64 // transactions, failed ones included, per successful claim
}

// Sweep measures claim + ack by each number of claimers, on plenty of ready groups.
func Sweep(ctx context.Context, env Env, s Sizes) ([]Point, error) {
	points, err := sweep(ctx, env, s, s.ReadyGroups)
	if err != nil {
		return nil, fmt.Errorf("bench: sweep: %w", err)
	}
	return points, nil
}

// sweep measures claim + ack by each number of s.Handles of claimers on so many ready groups.
func sweep(ctx context.Context, env Env, s Sizes, groups int) (points []Point, err error) {
	space, err := env.Open(ctx)
	if err != nil {
		return nil, err
	}
	counting := record.WrapCounting(&yieldingDB{DB: space.DB})
	space.DB = counting
	defer space.closing(&err)
	q, err := newQueue(ctx, env, space, "claimers")
	if err != nil {
		return nil, err
	}
	each := batch
	if groups < s.ReadyGroups {
		each *= s.ReadyGroups / groups // as much to do, in fewer groups
	}
	if err := q.load(ctx, 0, groups, each); err != nil {
		return nil, err
	}
	o := layer.ReceiveOptions{Max: batch, MaxGroups: 1, Wait: s.LongSlice}
	crews := make([]*crew, len(s.Handles))
	for i, n := range s.Handles {
		// A crew of its own for each number, so that what its handles learn is not another's.
		if crews[i], err = newCrew(ctx, q, space, n, layer.Options{}, o); err != nil {
			return nil, err
		}
	}
	all := make([][]work, len(crews))
	order := make([]int, len(crews))
	for i := range order {
		order[i] = i
	}
	for round := range s.LongRounds + 1 {
		for done, i := range order {
			env.progress("measuring", round*len(order)+done, (s.LongRounds+1)*len(order))
			w, err := crews[i].slice(ctx, s, counting)
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first warms up
				all[i] = append(all[i], w)
			}
		}
		slices.Reverse(order)
	}
	for _, c := range crews {
		err = errors.Join(err, c.close(ctx))
	}
	if err != nil {
		return nil, err
	}
	for i, ws := range all {
		points = append(points, pointOf(s.Handles[i], ws))
	}
	return points, q.verify(ctx)
}

func pointOf(claimers int, ws []work) Point {
	var rates []float64
	var sum work
	for _, w := range ws {
		rates = append(rates, w.perSecond)
		sum.claims += w.claims
		sum.conflicts += w.conflicts
		sum.attempts += w.attempts
	}
	return Point{claimers, median(rates), float64(sum.conflicts) / float64(sum.claims), float64(sum.attempts) / float64(sum.claims)}
}
