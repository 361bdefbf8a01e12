package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// Functions of the options go wrong: a hook of a handle, and a hook, a limiter, a logger, OnError and RetryDelay of a
// worker. Such a function panics, ends its goroutine (runtime.Goexit), or hangs for longer than its caller waits: half
// a second for a hook of a handle, two minutes for a function of a worker. It hangs in virtual time, so the run goes
// on. None of this is a fault: the laws of progress (law.go) hold, and no header that a hook sets too late is in a
// message.

// mostWrong is how many functions of workers go wrong in a run, so that the run ends.
const mostWrong = 6

// wrongs is the functions that go wrong in a run.
type wrongs struct {
	mu   sync.Mutex
	left int // guarded by mu
	// hung are the times at which functions have begun to hang. No two do at the same time: their callers would wake at
	// the same nanosecond. guarded by mu
	hung map[time.Time]bool
}

// hangs reports whether a function may hang from now on.
func (s *wrongs) hangs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.hung[now] {
		return false
	}
	if s.hung == nil {
		s.hung = make(map[time.Time]bool)
	}
	s.hung[now] = true
	return true
}

// spend reports whether another function of a worker may go wrong.
func (s *wrongs) spend() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left--
	return s.left >= 0
}

// drawHooks draws whether the handles have hooks that go wrong, by a generator of its own: those of half of the runs of
// workers, and of an eighth of the seeds without a profile.
func (k *knobs) drawHooks(o Options) {
	rng := rand.New(rand.NewPCG(o.Seed, 31))
	switch {
	case k.worked && k.lethal == harmless:
		k.hooked = rng.IntN(2) == 0
	case o.Profile == "" && k.profile == "":
		k.hooked = rng.IntN(8) == 0
	}
}

// goesWrong does not return, or does so too late, unless another function hangs since now. It reports whether it is
// late. The limit is how long the caller waits.
func (w *world) goesWrong(rng *rand.Rand, what string, limit time.Duration) (late bool) {
	switch rng.IntN(4) {
	case 0:
		w.mark(what + " panicked")
		panic("a function of the options is out of its mind")
	case 1:
		w.mark(what + " ended its goroutine")
		runtime.Goexit()
	}
	if !w.wrongs.hangs() {
		return false
	}
	w.mark(what + " hung")
	time.Sleep(limit + time.Second + time.Duration(rng.Int64N(int64(limit))))
	return true
}

// wrongHooks is how many calls of a handle's hook go wrong.
const wrongHooks = 8

// hooks returns the hook of a handle, which goes wrong now and then while there are faults. Several goroutines may call
// the hook in one step, in any order. So each has a generator of its own, and those that go wrong take turns.
func (w *world) hooks(who int) []layer.Hook {
	if !w.knobs.hooked {
		return nil
	}
	var mu sync.Mutex // of left and calls
	left, calls := wrongHooks, make(map[uint64]uint64)
	may := func(ctx context.Context, when string, o *layer.Operation) (own *rand.Rand) {
		id, _ := ctx.Value(actorKey{}).(int)
		caller := fnv.New64a()
		fmt.Fprint(caller, when, o.Verb, id, ctx) // the text of ctx has the names of a worker's goroutines
		key := caller.Sum64()
		mu.Lock()
		calls[key]++
		own = rand.New(rand.NewPCG(w.o.Seed^key, 60_000+uint64(who)+calls[key]<<32))
		mu.Unlock()
		if !w.faulty || own.IntN(12) > 0 || w.sched.ended(who) {
			return nil
		}
		w.sched.park(place{"hook", who, int(key % 10_000)})
		mu.Lock()
		defer mu.Unlock()
		if left == 0 {
			return nil
		}
		left--
		return own
	}
	return []layer.Hook{{
		Begin: func(ctx context.Context, o *layer.Operation) context.Context {
			own := may(ctx, "begin", o)
			if own != nil && w.goesWrong(own, "hook of a handle", layer.MinLease/4) {
				for i := range o.Messages {
					o.SetHeader(i, "late", "yes")
				}
			}
			return ctx
		},
		End: func(ctx context.Context, o *layer.Operation) {
			if own := may(ctx, "end", o); own != nil {
				w.goesWrong(own, "hook of a handle", layer.MinLease/4)
			}
		},
	}}
}

// wrongly makes functions of some workers go wrong.
func (a *actor) wrongly(o *worker.Options) {
	rng := a.lanes
	if rng.IntN(2) > 0 {
		return
	}
	a.w.slow = true
	goWrong := func(what string, likely int) {
		w := a.w
		if w.sched.ended(firstActor+a.id) || rng.IntN(likely) > 0 || !w.wrongs.spend() {
			return
		}
		w.goesWrong(rng, what, callback.Patience)
	}
	event := func(what string, before func(worker.Event)) func(worker.Event) {
		return func(e worker.Event) {
			goWrong("event "+what, 3)
			if before != nil {
				before(e)
			}
		}
	}
	for i, what := range []string{"received", "started", "done", "failed", "dead-lettered", "lost", "stuck"} {
		hook := []*func(worker.Event){
			&o.Events.Received, &o.Events.Started, &o.Events.Done, &o.Events.Failed, &o.Events.DeadLettered,
			&o.Events.Lost, &o.Events.Stuck,
		}[i]
		if rng.IntN(3) == 0 {
			*hook = event(what, *hook)
		}
	}
	if told := o.OnError; rng.IntN(3) == 0 {
		o.OnError = func(err error) {
			told(err)
			goWrong("OnError", 3)
		}
	}
	if delay := o.RetryDelay; delay != nil {
		o.RetryDelay = func(attempts int, err error) time.Duration {
			goWrong("RetryDelay", 2)
			return delay(attempts, err)
		}
	}
	if rng.IntN(3) == 0 {
		o.Logger = slog.New(wrongLog{func() { goWrong("log", 6) }})
	}
	if inner := o.Limiter; inner != nil {
		o.Limiter = wrongLimiter{inner, func() { goWrong("limiter", 4) }}
	}
}

// wrongLog is a log that goes wrong at the lines of claims and handlers, which come from one goroutine of the worker.
type wrongLog struct{ goWrong func() }

func (l wrongLog) Enabled(context.Context, slog.Level) bool { return true }

func (l wrongLog) Handle(_ context.Context, r slog.Record) error {
	switch r.Message {
	case "worker: received", "worker: started", "worker: done", "worker: failed":
		l.goWrong()
	}
	return nil
}
func (l wrongLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l wrongLog) WithGroup(string) slog.Handler      { return l }

// wrongLimiter is a limiter that goes wrong, without a look at its context.
type wrongLimiter struct {
	inner   worker.Limiter
	goWrong func()
}

func (l wrongLimiter) Wait(ctx context.Context) error {
	l.goWrong()
	return l.inner.Wait(ctx)
}
