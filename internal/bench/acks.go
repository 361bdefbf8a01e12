package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/layer"
)

// The receives of ack_beside_conflicts fight for a few groups, from several handles with several goroutines each.
const (
	conflictGroups  = 4
	conflictHandles = 4
	conflictHands   = 16
	// fightPatience is how long one more receive may wait, because chance decides which of the 65 gets a message.
	fightPatience = time.Minute
)

// ackBesideConflicts compares an ack with a plain transaction, while receives of the same handle lose conflicts.
func ackBesideConflicts(s Sizes) Benchmark {
	const (
		name  = "ack_beside_conflicts"
		means = "p99.9 of an ack beside conflicting receives of its handle, over p99.9 of a plain commit beside them"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "acks")
		if err != nil {
			return nil, err
		}
		var acks, commits []float64
		conflicts, err := q.besideFight(ctx, space, func(ctx context.Context) error {
			acks, commits, err = q.acksAndCommits(ctx, space, s)
			return err
		})
		if err != nil {
			return nil, err
		}
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		detail := fmt.Sprintf("%d acks, %d handles, %d conflicts", len(acks), conflictHandles, conflicts)
		return []Result{
			{name, at(acks, 0.999) / at(commits, 0.999), "ratio", means, detail, atMost(3)},
			{name + "_p50", at(acks, 0.5) / at(commits, 0.5), "ratio", "the median of the same", "", Target{}},
			{name + "_longest_us", at(acks, 1), "us", "the longest ack", "", Target{}},
		}, nil
	}}
}

// acksAndCommits measures acks and plain commits in turn. It returns the microseconds of each, in order.
func (q *queue) acksAndCommits(ctx context.Context, space Space, s Sizes) (acks, commits []float64, err error) {
	for i := range s.Acks {
		q.env.progress("acking", i, s.Acks)
		claim, err := q.one(ctx, fightPatience)
		if err != nil {
			return nil, nil, err
		}
		begun := time.Now()
		if err := q.Ack(ctx, claim); err != nil {
			return nil, nil, err
		}
		acks = append(acks, micros(time.Since(begun)))
		if _, err := q.Enqueue(ctx, layer.Message{Group: claim.Group}); err != nil {
			return nil, nil, err
		}
		trip, err := roundTrip(ctx, space)
		if err != nil {
			return nil, nil, err
		}
		commits = append(commits, trip)
	}
	slices.Sort(acks)
	slices.Sort(commits)
	return acks, commits, nil
}

// one receives one message, which must come within patience.
func (q *queue) one(ctx context.Context, patience time.Duration) (*layer.Claim, error) {
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 1, MaxGroups: 1, Wait: patience})
	if err == nil && len(claims) != 1 {
		err = fmt.Errorf("%w: no message for %v", errWrong, patience)
	}
	if err != nil {
		return nil, err
	}
	return claims[0], nil
}

// besideFight calls f while the handle of q and others receive, ack and enqueue the same few messages. It returns how
// many conflicts they had.
func (q *queue) besideFight(
	ctx context.Context, space Space, f func(ctx context.Context) error,
) (conflicts int64, err error) {
	others, err := newCrew(ctx, q, space, conflictHandles-1, layer.Options{}, layer.ReceiveOptions{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, others.close(context.WithoutCancel(ctx))) }()
	handles := append(others.handles, q.Queue)
	for g := range conflictGroups {
		if err := q.enqueue(ctx, messages(groupName(g), batch)...); err != nil {
			return 0, err
		}
	}
	ctx, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	var over atomic.Bool // a round is ended, not cut, so that no message is between two places
	var wg sync.WaitGroup
	for _, h := range handles {
		for range conflictHands {
			wg.Go(func() {
				for !over.Load() && ctx.Err() == nil {
					if err := takeAndReturn(ctx, h); err != nil {
						failed(err)
					}
				}
			})
		}
	}
	err = f(ctx)
	over.Store(true)
	wg.Wait()
	for _, h := range handles {
		conflicts += h.Paths().Conflicts
	}
	return conflicts, errors.Join(err, context.Cause(ctx))
}

// takeAndReturn receives a message, acks it, and enqueues it again.
func takeAndReturn(ctx context.Context, h *layer.Queue) error {
	claims, err := h.Receive(ctx, layer.ReceiveOptions{Max: 1, MaxGroups: 1, Wait: time.Second})
	if err != nil || len(claims) == 0 {
		return err
	}
	if err := h.Ack(ctx, claims[0]); err != nil {
		return err
	}
	_, err = h.Enqueue(ctx, layer.Message{Group: claims[0].Group})
	return err
}

// at is a quantile of figures in order.
func at[T any](sorted []T, q float64) T {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
