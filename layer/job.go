package layer

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// job is a large piece of work, done in short transactions (steps) at batch priority, one after the other. A step takes
// up to width rows, and half as many after each failed attempt. When the step is done, the step is reported, and the
// job rests. T is the result of a step. For example a sweep: T is a page of rows and how many rows were cleared;
// attempt reads the page and clears; pass moves a cursor behind the page.
type job[T any] struct {
	q     *Queue
	ctx   context.Context
	width int // rows of the first attempt of a step
	// kept, if not nil, makes each step happen once, under a receipt of this form. Without kept a step which has landed
	// may be done again. Example: a sweep may, because clearing twice does no harm.
	kept *receipt[T]
	// reads: the steps change nothing, so no rest follows a step.
	reads bool
	// attempt is one attempt of a step. wrote means: the step must not be done twice. An attempt must not change state
	// which the next attempt depends on, because the attempt may fail: pass changes such state.
	attempt func(tx kv.Tx, a kv.Attempt, width int) (done T, wrote bool, err error)
	// pass reports a finished step and moves on. more means: there is another step to do.
	pass func(done T) (more bool, err error)
}

// run does step after step while there is more to do.
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

// page is the result of a step which reads a range.
type page struct {
	rows    []kv.KV // the rows which the step has finished
	width   int     // how many rows the step asked for
	cleared int64
}

// stepWidth returns how many rows this attempt of a step takes: width for the first attempt, half as many after each
// failure. So a step whose transaction is too long for a slow cluster, too large, or in conflict with others, succeeds
// in the end.
func stepWidth(width int, a kv.Attempt) int { return halved(width, a.N) }

// restFactor is how many times its own length a step rests afterwards, so that the job takes at most a quarter of the
// time of whatever the job shares with claims of other groups. Batch priority alone is not enough: a cluster grants
// batch transactions as long as the cluster's own limits are far.
const restFactor = 3

// longestRest bounds a rest, so that a step which was slow for another reason does not delay the job for long.
const longestRest = time.Second

// restAfter rests after a step of length took. If ctx ends, restAfter returns early and without an error, because the
// next step reports the end.
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

// step runs a read-only transaction of a job, at batch priority.
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

// checkSpan checks the bounds of a time: at or after from, and before before; zero = no bound.
func checkSpan(what string, from, before time.Time) error {
	if !from.IsZero() && !before.IsZero() && !from.Before(before) {
		return fmt.Errorf("%w: %s from %s on, and before %s", ErrOptions, what, from, before)
	}
	return nil
}

func inSpan(ms int64, from, before time.Time) bool {
	return (from.IsZero() || ms >= millis(from)) && (before.IsZero() || ms < millis(before))
}
