package layer

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// stepWidth is how many rows this attempt of a step of a large piece of work takes, of width that the first one takes: half
// as many after each that failed. A step whose transaction is too long for a slow cluster, too large, or in the way of
// others, comes through in the end.
func stepWidth(width int, a kv.Attempt) int { return max(1, width>>min(a.N, 16)) }

// restFactor is for how many times its own length a step of a large piece of work is followed by a rest, so that the
// work takes a quarter of the time at most from whatever it shares with the claims of other groups. Batch priority alone
// does not see to that: a cluster hands it out as long as its own limits are far.
const restFactor = 3

// longestRest keeps a step that was slow for another reason from holding the work up.
const longestRest = time.Second

// restAfter waits after a step of a large piece of work that took so long. It returns early, and no error, when ctx ends:
// the next step says so.
func (q *Queue) restAfter(ctx context.Context, took time.Duration) {
	d := min(restFactor*took, longestRest)
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		q.yield(ctx, "rested")
	case <-ctx.Done():
	}
}

// step runs one step of a long piece of work, at batch priority.
func (q *Queue) step(ctx context.Context, fn func(tx kv.Tx, a kv.Attempt) error) error {
	if q.isClosed() {
		return ErrClosed
	}
	_, err := kv.Run(ctx, q.db, q.batchOptions(), func(tx kv.Tx, a kv.Attempt) error {
		follow := q.follow(tx)
		if err := fn(tx, a); err != nil {
			return err
		}
		_, err := follow.wait(ctx) // as in view
		return err
	})
	return err
}

// checkSpan checks the bounds of a time: from the first on, and before the second; zero = no bound.
func checkSpan(what string, from, before time.Time) error {
	if !from.IsZero() && !before.IsZero() && !from.Before(before) {
		return fmt.Errorf("%w: %s from %s on, and before %s", ErrOptions, what, from, before)
	}
	return nil
}

func inSpan(ms int64, from, before time.Time) bool {
	return (from.IsZero() || ms >= millis(from)) && (before.IsZero() || ms < millis(before))
}
