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

// lateAtMost is how long a receive waits, so that a message which never comes ends the measuring.
const lateAtMost = 10 * time.Second

// sendAfter is how long after a receive has begun to wait the message is sent. By the last time the handle is at rest:
// what such a wake takes, on this machine and just now, is not late for the others either.
func sendAfter() []time.Duration {
	return []time.Duration{
		0, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond,
	}
}

// lateWakeShare sends a message just when a receive begins to wait, and counts the receives that return late: those
// whose wake was lost, and which a poll has helped. By calls of the layer, and by SQS.
func lateWakeShare(s Sizes) Benchmark {
	const name = "late_wake_share"
	means := fmt.Sprintf("of messages sent 0, 1, 2, 5 and 10 ms after a receive began to wait, those that it returned "+
		"more than %d round trips, and %v, after the send, and later than any sent at rest", lateTrips, lateFloor)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		library, err := lateByCalls(ctx, env, s)
		if err != nil {
			return nil, err
		}
		served, err := lateBySQS(ctx, env, s)
		if err != nil {
			return nil, err
		}
		const bySQS = "the same, by SQS over the loopback"
		return append(library.results(name, means), served.results("sqs_"+name, bySQS)...), nil
	}}
}

// lateWaits are the times from the return of a send to the return of the receive that waited, by sendAfter.
type lateWaits struct {
	waits [][]time.Duration
	trips []float64 // µs
}

// measure has a message sent, again and again, at random within a millisecond of each time of sendAfter.
func (l *lateWaits) measure(
	ctx context.Context, env Env, space Space, s Sizes,
	send func(n int) error, receive func() (at time.Time, err error),
) error {
	l.waits = make([][]time.Duration, len(sendAfter()))
	for n := range s.LateWakes * len(l.waits) {
		env.progress("measuring", n, s.LateWakes*len(l.waits))
		trip, err := roundTrip(ctx, space)
		if err != nil {
			return err
		}
		l.trips = append(l.trips, trip)
		at := n % len(l.waits)
		got, errs := make(chan time.Time, 1), make(chan error, 1)
		begun := time.Now()
		go func() {
			at, err := receive()
			got <- at
			errs <- err
		}()
		pause := sendAfter()[at] + rand.N(time.Millisecond)
		for time.Since(begun) < pause { // a timer is too coarse
			if left := pause - time.Since(begun); left > 2*time.Millisecond {
				time.Sleep(left - 2*time.Millisecond)
			}
		}
		sending := send(n)
		sent := time.Now()
		received := <-got
		if err := errors.Join(sending, <-errs); err != nil {
			return err
		}
		l.waits[at] = append(l.waits[at], max(0, received.Sub(sent)))
	}
	return nil
}

func (l *lateWaits) results(name, means string) []Result {
	trip := median(l.trips)
	rest := len(l.waits) - 1
	limit := max(lateFloor, lateTrips*time.Duration(trip*float64(time.Microsecond)), slices.Max(l.waits[rest]))
	var all []time.Duration
	late, detail := 0, ""
	for i, waits := range l.waits[:rest] {
		n := 0
		for _, w := range waits {
			if w > limit {
				n++
			}
		}
		detail += fmt.Sprintf("%d of %d at %v, ", n, len(waits), sendAfter()[i])
		late += n
		all = append(all, waits...)
	}
	slices.Sort(all)
	at := func(q float64) float64 { return micros(all[min(len(all)-1, int(q*float64(len(all))))]) }
	detail += fmt.Sprintf("late is more than %v", limit)
	return []Result{
		{name, float64(late) / float64(len(all)), "ratio", means, detail, atMost(0.001)},
		{name + "_p50_us", at(0.5), "us", "of these waits", "", Target{}},
		{name + "_p99_us", at(0.99), "us", "", "", Target{}},
		{name + "_longest_us", at(1), "us", "", "", Target{}},
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
	c, err := newCrew(ctx, q, space, 1, layer.Options{}, layer.ReceiveOptions{Wait: lateAtMost})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, c.close(context.WithoutCancel(ctx))) }()
	one := c.claimers[0]
	err = l.measure(ctx, env, space, s,
		func(n int) error { return q.enqueue(ctx, messages(groupName(n%10), 1)...) },
		func() (time.Time, error) {
			claims, err := one.handle.Receive(ctx, one.o)
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
	queue := servedQueue(layer.LeasePerItem)
	err = serving(ctx, env, func(space Space, server *service) error {
		err := l.measure(ctx, env, space, s,
			func(n int) error { return server.send(ctx, queue, groupName(n%10), fmt.Sprint("message-", n)) },
			func() (time.Time, error) {
				got, err := server.receive(ctx, queue, 20, inHand)
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
