package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// Workers of the profile worked have limiters whose intervals are shorter and longer than the lease, and hooks and a
// Next that take up to a minute. Some have a second queue. Some handlers return a typed nil. None of this is a failure:
// the laws of progress (law.go) hold.

// slows is how many waits of a worker's limiter, how many of its hooks, and how many calls of each of its Next, are
// slow. The others take no time, so that the run ends.
const slows = 6

// slowly makes some workers slow. slowly draws from a generator of its own.
func (a *actor) slowly(o *worker.Options) {
	rng := a.lanes
	if rng.IntN(3) == 0 {
		every := []time.Duration{
			10 * time.Millisecond, a.lease / 3, a.lease * 3 / 2, 4 * a.lease, time.Minute,
		}[rng.IntN(5)]
		o.Limiter = &limiter{a: a, every: every}
	}
	if rng.IntN(3) == 0 {
		took := []time.Duration{a.lease / 2, 2 * a.lease, time.Minute}[rng.IntN(3)]
		a.w.slow = true
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

// besides gives some workers a second queue, which is always empty. Its database is not simulated. Next of either queue
// may be slow.
func (a *actor) besides(o *worker.Options) {
	rng := rand.New(rand.NewPCG(a.w.o.Seed, 70_000+uint64(a.id)))
	next := func(what string) func() (layer.Template, *string) {
		took := []time.Duration{a.lease / 2, 2 * a.lease, time.Minute}[rng.IntN(3)]
		called := 0
		return func() (layer.Template, *string) {
			if a.w.sched.ended(firstActor + a.id) {
				return nil, nil
			}
			if called++; called%3 == 0 && called <= 3*slows {
				a.w.mark("slow Next of " + what)
				a.rests(context.Background(), took)
			}
			return nil, nil
		}
	}
	if rng.IntN(4) == 0 {
		o.Next = next("the queue")
	}
	if rng.IntN(2) == 0 {
		return
	}
	also := worker.Source{Queue: a.w.second(), Handler: worker.Handle(func(context.Context, *worker.Delivery) error {
		a.w.violation("a message of an empty queue")
		return nil
	})}
	if rng.IntN(3) > 0 {
		also.Next = next("a second queue")
	}
	o.Also = []worker.Source{also}
	a.w.mark("worker with a second queue")
}

// second returns the handle of the second queue.
func (w *world) second() *layer.Queue {
	if w.besides == nil {
		w.besidesDB = embedded.OpenMemory(embedded.Options{})
		q, err := layer.Create(context.Background(), w.besidesDB, []byte("second"), "second", layer.Options{
			Owner: "second", Test: &layer.TestOptions{Seed: w.o.Seed},
		})
		if err != nil {
			w.violation("create the second queue: %v", err)
		}
		w.besides = q
	}
	return w.besides
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
