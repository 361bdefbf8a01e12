package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// ByHand returns the benchmarks that run only if they are named: each takes minutes.
func ByHand(s Sizes) []Benchmark {
	all := []Benchmark{contendedHandles(s), pickupTime(s)}
	for i := range all {
		all[i].Means += "; only with --run"
	}
	return all
}

// openLoop sends messages at a rate, whatever becomes of them, and waits until workers have handled all.
type openLoop struct {
	groups   int
	perS     float64
	lasts    time.Duration
	patience time.Duration // after the last message is due
	handles  int
	hands    int // of each handle
	lease    time.Duration
}

// openRun is what came of an open loop.
type openRun struct {
	waits     []float64 // µs from the time at which a message is due to its handler, in order
	commits   []float64 // µs of a plain commit in the same run, in order
	conflicts int64
	lost      int64 // claims
	took      time.Duration
}

func (l *openLoop) run(ctx context.Context, q *queue, space Space) (r *openRun, err error) {
	begun := time.Now()
	due := make([]time.Time, int(l.perS*l.lasts.Seconds()))
	for n := range due {
		due[n] = begun.Add(time.Duration(float64(n) / l.perS * float64(time.Second)))
	}
	seen := newArrivals(due)
	r = &openRun{}
	var lost atomic.Int64
	o := worker.Options{Concurrency: l.hands, Lease: l.lease, Logger: slog.New(slog.DiscardHandler)}
	o.Events.Lost = func(worker.Event) { lost.Add(1) }
	crew, err := newCrew(ctx, q, space, l.handles, layer.Options{}, layer.ReceiveOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, crew.close(context.WithoutCancel(ctx))) }()
	for _, h := range crew.handles {
		w, err := worker.New(h, worker.Handle(seen.handle), o)
		if err != nil {
			return nil, err
		}
		w.Start()
		defer func() { err = errors.Join(err, w.Stop(context.WithoutCancel(ctx))) }()
	}
	sent := make(chan error, 1)
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	go func() { sent <- l.send(ctx, q, due) }()
	r.commits, err = seen.await(ctx, space, l.lasts+l.patience)
	if err != nil {
		giveUp()
		<-sent
		return nil, err
	}
	r.took = time.Since(begun)
	if err := errors.Join(<-sent, l.drained(ctx, q)); err != nil {
		return nil, err
	}
	for _, h := range crew.handles {
		r.conflicts += h.Paths().Conflicts
	}
	r.lost, r.waits = lost.Load(), seen.sorted()
	return r, nil
}

// drained waits until the workers have acked all messages, and proves that the queue is empty.
func (l *openLoop) drained(ctx context.Context, q *queue) (err error) {
	for end := time.Now().Add(l.patience); ; {
		if err = q.verify(ctx); err == nil || !time.Now().Before(end) {
			return err
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// send enqueues each message when it is due.
func (l *openLoop) send(ctx context.Context, q *queue, due []time.Time) error {
	const senders = 16
	errs := make([]error, senders)
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for n := i; n < len(due) && errs[i] == nil; n += senders {
				if errs[i] = sleep(ctx, time.Until(due[n])); errs[i] == nil {
					m := layer.Message{Group: groupName(rand.IntN(l.groups)), Body: tuple.AppendInt(nil, int64(n))}
					_, errs[i] = q.Enqueue(ctx, m)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// arrivals notes when the handler of each message was called first. The body of a message is its number.
type arrivals struct {
	due   []time.Time
	waits []atomic.Int64 // ns; 0: not called yet
	left  atomic.Int64
	all   chan struct{} // closed when the last has come
}

func newArrivals(due []time.Time) *arrivals {
	a := &arrivals{due: due, waits: make([]atomic.Int64, len(due)), all: make(chan struct{})}
	a.left.Store(int64(len(due)))
	return a
}

func (a *arrivals) handle(_ context.Context, d *worker.Delivery) error {
	n, _, err := tuple.DecodeInt(d.Body)
	if err != nil {
		return err
	}
	if wait := max(1, time.Since(a.due[n])); a.waits[n].CompareAndSwap(0, int64(wait)) && a.left.Add(-1) == 0 {
		close(a.all)
	}
	return nil
}

// await waits until all have come, at most that long. It returns how long plain commits took, in order.
func (a *arrivals) await(ctx context.Context, space Space, atMost time.Duration) (commits []float64, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(atMost)
	for {
		trip, err := roundTrip(ctx, space)
		if err != nil {
			return nil, err
		}
		commits = append(commits, trip)
		select {
		case <-a.all:
			slices.Sort(commits)
			return commits, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late:
			return nil, fmt.Errorf("%w: %d of %d messages have not come", errWrong, a.left.Load(), len(a.due))
		case <-tick.C:
		}
	}
}

// sorted returns the waits in microseconds, in order.
func (a *arrivals) sorted() []float64 {
	waits := make([]float64, len(a.waits))
	for n := range a.waits {
		waits[n] = micros(time.Duration(a.waits[n].Load()))
	}
	slices.Sort(waits)
	return waits
}

// contendedHandles lets many handles wait for the same messages, as many processes do.
func contendedHandles(s Sizes) Benchmark {
	const (
		name  = "contended_handles"
		means = "claims that healthy workers lost: 20 handles of 10 goroutines, 2,000 messages/s, a lease of 3 s"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		l := openLoop{
			groups: 1000, perS: 2000, lasts: s.OpenLoop, patience: s.Patience,
			handles: 20, hands: 10, lease: 3 * time.Second,
		}
		r, err := l.alone(ctx, env, "contended")
		if err != nil {
			return nil, err
		}
		perMessage := float64(r.conflicts) / float64(len(r.waits))
		return []Result{
			{name, float64(r.lost), "claims", means, fmt.Sprintf("%d messages", len(r.waits)), atMost(0)},
			{name + "_wait_ms", at(r.waits, 0.999) / 1000, "ms", "p99.9 of the wait of a message", "", atMost(300)},
			{name + "_p50_ms", at(r.waits, 0.5) / 1000, "ms", "the median wait", "", Target{}},
			{name + "_conflicts", perMessage, "conflicts", "for each message", "", Target{}},
			{name + "_commit_ms", at(r.commits, 0.5) / 1000, "ms", "the median of a plain commit", "", Target{}},
		}, nil
	}}
}

// alone runs the loop in a new space.
func (l *openLoop) alone(ctx context.Context, env Env, name string) (r *openRun, err error) {
	space, err := env.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer space.closing(&err)
	q, err := newQueue(ctx, env, space, name)
	if err != nil {
		return nil, err
	}
	return l.run(ctx, q, space)
}

// pickupTime measures how long a message waits for a worker that is not at its limit.
func pickupTime(s Sizes) Benchmark {
	const (
		name  = "pickup_p99"
		means = "p99 of the wait for a worker of 16 at 70 % of its top rate, over the commit time; 10,000 groups"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		l := openLoop{
			groups: 10_000, perS: 1e6, lasts: time.Duration(s.Pickups) * time.Microsecond,
			patience: s.OpenLoop + s.Patience, handles: 1, hands: 16,
		}
		top, err := l.alone(ctx, env, "top") // all are due at once
		if err != nil {
			return nil, err
		}
		rate := float64(len(top.waits)) / top.took.Seconds()
		l.perS, l.lasts = 0.7*rate, s.OpenLoop/6
		r, err := l.alone(ctx, env, "pickup")
		if err != nil {
			return nil, err
		}
		commit := at(r.commits, 0.5)
		detail := fmt.Sprintf(
			"median %.3g ms, commit %.3g ms, top rate %.0f/s", at(r.waits, 0.5)/1000, commit/1000, rate)
		return []Result{
			{name, at(r.waits, 0.99) / commit, "ratio", means, detail, Target{}},
			{name + "_ms", at(r.waits, 0.99) / 1000, "ms", "the same in time", "", Target{}},
		}, nil
	}}
}
