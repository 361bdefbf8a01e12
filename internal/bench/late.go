package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"fdbfifo/layer"
)

// lateFloor is below what no wait counts as late, however short a round trip is: a busy machine's scheduler and timers
// take as long.
const lateFloor = 20 * time.Millisecond

// lateTrips is how many round trips a wait may take that is not late.
const lateTrips = 10

// latePoll is how often the handles look without a wake. It is longer than a receive waits: no poll can stand in for
// a wake that was lost. The handles of an SQS server look after 2.25 s at the earliest, which is late.
const latePoll = time.Minute

// lateAtMost is how long a receive waits, and an SQS client can ask for.
const lateAtMost = 20 * time.Second

// sendAfter is how long after a receive has begun to wait the message is sent.
func sendAfter() []time.Duration {
	return []time.Duration{0, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond}
}

// restEach is for how many of the other waits there is one at rest: its message is sent atRest after it has begun, when
// nothing can be lost. Such a wait is late only if the machine is busy.
const (
	restEach = 10
	atRest   = 50 * time.Millisecond
)

// lateWakeShare sends a message just when a receive begins to wait, and counts the receives that return late: those
// whose wake was lost. By calls of the layer, and by SQS.
func lateWakeShare(s Sizes) Benchmark {
	return lateWakes(s, "", "", func(_ context.Context, env Env) (Env, func() error, error) {
		return env, func() error { return nil }, nil
	})
}

// sharedLateWakeShare is the same in a process that reaches the folder over the socket of another.
func sharedLateWakeShare(s Sizes) Benchmark {
	return lateWakes(s, "shared_", "; through the socket of a folder that another process serves", throughSocket)
}

func lateWakes(
	s Sizes, prefix, where string, at func(ctx context.Context, env Env) (_ Env, closing func() error, err error),
) Benchmark {
	const figure = "late_wake_share"
	name := prefix + figure
	means := fmt.Sprintf("of messages sent 0, 1, 2, 5 and 10 ms after a receive began to wait, those that it returned "+
		"more than %d round trips, and %v, after the send%s", lateTrips, lateFloor, where)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		env, closing, err := at(ctx, env)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, closing()) }()
		library, err := lateByCalls(ctx, env, s)
		if err != nil {
			return nil, err
		}
		served, err := lateBySQS(ctx, env, s)
		if err != nil {
			return nil, err
		}
		bySQS := "the same, by SQS over the loopback" + where
		return append(library.results(name, means), served.results(prefix+"sqs_"+figure, bySQS)...), nil
	}}
}

// throughSocket has another process serve a new folder, and this one open it after.
func throughSocket(ctx context.Context, env Env) (_ Env, closing func() error, err error) {
	f, err := env.Folder(ctx)
	if err != nil {
		return env, nil, err
	}
	p, a, err := startPeer(ctx, f, "there")
	if err != nil {
		return env, nil, errors.Join(err, f.Remove())
	}
	closing = func() error { return errors.Join(p.end(p.Stop), f.Remove()) }
	if !a.Serves {
		return env, nil, errors.Join(errors.New("the other process does not serve the folder"), closing())
	}
	opened := 0
	env.Open = func(ctx context.Context) (Space, error) {
		db, err := f.Open(ctx, false)
		opened++
		return Space{DB: db, Prefix: fmt.Append(nil, "here", opened)}, err
	}
	return env, closing, nil
}

// lateWaits are the times from the return of a send to the return of the receive that waited.
type lateWaits struct {
	soon  [][]time.Duration // by sendAfter
	rest  []time.Duration
	trips []float64 // µs
}

// measure has a message sent, again and again, at random within a millisecond of each time of sendAfter.
func (l *lateWaits) measure(
	ctx context.Context, env Env, space Space, s Sizes,
	send func(n int) error, receive func() (at time.Time, err error),
) error {
	l.soon = make([][]time.Duration, len(sendAfter()))
	all := s.LateWakes * len(l.soon)
	for n := range all {
		env.progress("measuring", n, all)
		trip, err := roundTrip(ctx, space)
		if err != nil {
			return err
		}
		l.trips = append(l.trips, trip)
		at := n % len(l.soon)
		wait, err := l.one(n, sendAfter()[at]+rand.N(time.Millisecond), send, receive)
		if err != nil {
			return err
		}
		l.soon[at] = append(l.soon[at], wait)
		if n%restEach > 0 {
			continue
		}
		if wait, err = l.one(all+n, atRest, send, receive); err != nil {
			return err
		}
		l.rest = append(l.rest, wait)
	}
	return nil
}

// one has a receive begin to wait, and a message sent that long after.
func (l *lateWaits) one(
	n int, pause time.Duration, send func(n int) error, receive func() (at time.Time, err error),
) (time.Duration, error) {
	got, errs := make(chan time.Time, 1), make(chan error, 1)
	begun := time.Now()
	go func() {
		at, err := receive()
		got <- at
		errs <- err
	}()
	for time.Since(begun) < pause { // a timer is too coarse
		if left := pause - time.Since(begun); left > 2*time.Millisecond {
			time.Sleep(left - 2*time.Millisecond)
		}
	}
	sending := send(n)
	sent := time.Now()
	received := <-got
	return max(0, received.Sub(sent)), errors.Join(sending, <-errs)
}

func (l *lateWaits) results(name, means string) []Result {
	trip := median(l.trips)
	limit := max(lateFloor, lateTrips*time.Duration(trip*float64(time.Microsecond)))
	late := func(waits []time.Duration) (n int) {
		for _, w := range waits {
			if w > limit {
				n++
			}
		}
		return n
	}
	const atRestMeans = "of messages sent at rest: what a busy machine makes late"
	var all []time.Duration
	detail := ""
	for i, waits := range l.soon {
		detail += fmt.Sprintf("%d of %d at %v, ", late(waits), len(waits), sendAfter()[i])
		all = append(all, waits...)
	}
	slices.Sort(all)
	share := func(waits []time.Duration) float64 { return float64(late(waits)) / float64(len(waits)) }
	detail += fmt.Sprintf("late is more than %v", limit)
	resting := fmt.Sprintf("%d of %d", late(l.rest), len(l.rest))
	return []Result{
		{name, share(all), "ratio", means, detail, atMost(0.001)},
		{name + "_waits", float64(len(all)), "waits", "measured", "", Target{}},
		{name + "_late", float64(late(all)), "waits", "of these, late", "", Target{}},
		{name + "_at_rest", share(l.rest), "ratio", atRestMeans, resting, Target{}},
		{name + "_p50_us", micros(at(all, 0.5)), "us", "of these waits", "", Target{}},
		{name + "_p99_us", micros(at(all, 0.99)), "us", "", "", Target{}},
		{name + "_longest_us", micros(at(all, 1)), "us", "", "", Target{}},
	}
}

// lateByCalls has one handle receive and another enqueue.
func lateByCalls(ctx context.Context, env Env, s Sizes) (l lateWaits, err error) {
	space, err := env.Open(ctx)
	if err != nil {
		return l, err
	}
	defer space.closing(&err)
	q, err := newQueue(ctx, env, space, "late")
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, q.Close(context.WithoutCancel(ctx))) }()
	c, err := newCrew(ctx, q, space, 1, layer.Options{Poll: latePoll}, layer.ReceiveOptions{Wait: lateAtMost})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, c.close(context.WithoutCancel(ctx))) }()
	one := c.claimers[0]
	err = l.measure(ctx, env, space, s,
		func(n int) error { return q.enqueue(ctx, messages(groupName(n%10), 1)...) },
		func() (time.Time, error) {
			claims, err := one.handle.Receive(ctx, one.o)
			if err == nil && len(claims) == 0 { // the wake was lost; the message is not
				claims, err = one.handle.Receive(ctx, one.o)
			}
			at := time.Now()
			if err == nil && len(claims) != 1 {
				err = fmt.Errorf("%w: a receive got %d claims", errWrong, len(claims))
			}
			if err == nil {
				err = one.handle.Ack(ctx, claims[0])
				q.left.Add(-1)
			}
			return at, err
		})
	if err != nil {
		return l, err
	}
	return l, q.verify(ctx)
}

// lateBySQS has one client wait by a long poll and another send.
func lateBySQS(ctx context.Context, env Env, s Sizes) (l lateWaits, err error) {
	queue := servedQueue(leasePerItem)
	err = serving(ctx, env, func(space Space, server *service) error {
		err := l.measure(ctx, env, space, s,
			func(n int) error { return server.send(ctx, queue, groupName(n%10), fmt.Sprint("message-", n)) },
			func() (time.Time, error) {
				got, err := server.receive(ctx, queue, int(lateAtMost.Seconds()), inHand)
				if err == nil && len(got) == 0 {
					got, err = server.receive(ctx, queue, int(lateAtMost.Seconds()), inHand)
				}
				at := time.Now()
				if err == nil && len(got) != 1 {
					err = fmt.Errorf("%w: a receive gave %d messages", errWrong, len(got))
				}
				if err == nil {
					err = server.delete(ctx, queue, got)
				}
				return at, err
			})
		if err != nil {
			return err
		}
		return server.check(ctx, queue, 0)
	})
	return l, err
}
