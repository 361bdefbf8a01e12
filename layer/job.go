package layer

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// job is a large piece of work: short transactions at batch priority, its steps, one after the other. A step takes up
// to width rows, and half as many after each attempt that failed; when the step is done, it is reported, and the work
// rests. T is what one step has found or done. For example a sweep: T is a page of rows and how many of them were
// cleared; attempt reads the page and clears; pass moves a cursor behind the page.
type job[T any] struct {
	q     *Queue
	ctx   context.Context
	width int // rows of the first attempt of a step
	// kept, if not nil, makes each step happen once, under a receipt of that form. Without it a step that has landed
	// may be done again, as a sweep may: to clear twice does no harm.
	kept *receipt[T]
	// reads: the steps change nothing, so that none is followed by a rest.
	reads bool
	// attempt is one attempt of a step. wrote says that the step must not be done again. An attempt changes nothing
	// that the next attempt goes by: pass does.
	attempt func(tx kv.Tx, a kv.Attempt, width int) (done T, wrote bool, err error)
	// pass reports a step that is done and goes on behind it. more says that there is another step to do.
	pass func(done T) (more bool, err error)
}

// run does step after step as long as there is more to do.
func (j *job[T]) run(more bool) error {
	for more {
		begun := time.Now()
		done, err := j.step()
		if err != nil {
			return err
		}
		took := time.Since(begun)
		if more, err = j.pass(done); err != nil {
			return err
		}
		if more && !j.reads {
			j.q.restAfter(j.ctx, took)
		}
	}
	return nil
}

func (j *job[T]) step() (done T, err error) {
	attempt := func(tx kv.Tx, a kv.Attempt) (T, bool, error) { return j.attempt(tx, a, stepWidth(j.width, a)) }
	body := func(tx kv.Tx, a kv.Attempt) (err error) {
		done, _, err = attempt(tx, a)
		return err
	}
	switch {
	case j.kept != nil:
		return onceFor(j.ctx, j.q, j.q.batchOptions(), *j.kept, attempt)
	case j.reads:
		err = j.q.step(j.ctx, body)
	default:
		_, err = kv.Run(j.ctx, j.q.db, j.q.batchOptions(), body)
	}
	return done, err
}

// page is what a step that goes through a range has found there.
type page struct {
	rows    []kv.KV // that the step is done with
	width   int     // how many it would have read if there were more
	cleared int64
}

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

// step runs one transaction of a large piece of work that only reads, at batch priority.
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
