package sim

import (
	"context"
	"time"

	"fdbfifo/layer"
	"fdbfifo/worker"
)

// Workers of the profile worked have limiters whose intervals are shorter and longer than the lease, and hooks that
// take up to a minute. Some handlers return a typed nil. None of this is a failure: the laws of progress (law.go) hold.

// slows is how many waits of a worker's limiter, and how many of its hooks, are slow. The others take no time, so that
// the run ends.
const slows = 6

// slowly makes some workers slow. Such a worker has one goroutine, because several that wake at the same instant would
// have one name. slowly draws from a generator of its own.
func (a *actor) slowly(o *worker.Options) {
	rng := a.lanes
	if rng.IntN(3) == 0 {
		every := []time.Duration{
			10 * time.Millisecond, a.lease / 3, a.lease * 3 / 2, 4 * a.lease, time.Minute,
		}[rng.IntN(5)]
		o.Limiter, o.Concurrency = &limiter{a: a, every: every}, 1
	}
	if rng.IntN(3) == 0 {
		took := []time.Duration{a.lease / 2, 2 * a.lease, time.Minute}[rng.IntN(3)]
		o.Concurrency, a.w.slow = 1, true
		called := 0
		slow := func(mark string) func(worker.Event) {
			return func(worker.Event) {
				if a.w.sched.ended(firstActor + a.id) {
					return
				}
				if called++; called <= slows {
					a.w.mark("slow event: " + mark)
					a.rests(context.Background(), took)
				}
			}
		}
		o.Events = worker.Events{
			Received: slow("received"), Started: slow("started"), Done: slow("done"), Failed: slow("failed"),
			DeadLettered: slow("dead-lettered"),
		}
	}
}

// limiter lets one item after the other pass.
type limiter struct {
	a      *actor
	every  time.Duration
	next   time.Time
	waited int
}

func (l *limiter) Wait(ctx context.Context) error {
	if l.a.w.sched.ended(firstActor + l.a.id) {
		return ctx.Err()
	}
	if l.waited++; l.waited > slows {
		return nil
	}
	now := time.Now()
	if l.next.Before(now) {
		l.next = now
	}
	wait := l.next.Sub(now)
	l.next = l.next.Add(l.every)
	if l.every > l.a.lease {
		l.a.w.mark("limiter slower than the lease")
	} else {
		l.a.w.mark("limiter faster than the lease")
	}
	l.a.rests(ctx, wait)
	return ctx.Err()
}

// rests lets a goroutine of the actor's worker sleep, at most until ctx ends.
func (a *actor) rests(ctx context.Context, d time.Duration) {
	a.n++
	n := a.n
	timer := time.NewTimer(d.Truncate(time.Microsecond) + time.Duration(1+n%900))
	select {
	case <-timer.C:
	case <-ctx.Done():
		timer.Stop()
	}
	a.w.sched.park(place{"rest", firstActor + a.id, n})
}

// oddly returns a typed nil in the place of nil, for some messages.
func (a *actor) oddly(id layer.ID, err error) error {
	if err != nil || !a.w.knobs.worked || id.Random[2]%4 > 0 {
		return err
	}
	a.w.mark("handler returned a typed nil")
	if id.Random[3]%2 == 0 {
		return (*worker.RetryError)(nil)
	}
	return (*worker.RejectError)(nil)
}
