package bench

import (
	"context"
	"fmt"
)

const (
	fewGroups  = 100
	fewHandles = 16
)

// fewGroupsConflicts asks how handles keep apart from each other where groups are only some times as many as handles.
func fewGroupsConflicts(s Sizes) Benchmark {
	const name = "few_groups_conflicts"
	handles, groups := min(fewHandles, s.Handles[len(s.Handles)-1]), min(fewGroups, s.ReadyGroups/2)
	means := fmt.Sprintf("failed commits per claim of %d handles on %d groups, each with more items than they take",
		handles, groups)
	return Benchmark{name, means, func(ctx context.Context, env Env) ([]Result, error) {
		s := s
		s.Handles = []int{handles}
		points, err := sweep(ctx, env, s, groups)
		if err != nil {
			return nil, err
		}
		return []Result{
			{name, points[0].Conflicts, "conflicts", means, "", atMost(0.2)},
			{"few_groups_items_per_s", points[0].PerSecond, "items/s", "claim + ack in one transaction",
				fmt.Sprintf("batches of %d", batch), Target{}},
		}, nil
	}}
}
