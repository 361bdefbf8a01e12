package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// wakeHandles is how many handles wait in wakeRoundTrips, with one receive each.
const wakeHandles = 4

// wakeRoundTrips measures the time from the return of an enqueue into an empty group to the return of a waiting
// receive. Its unit is the time of a small transaction on the same engine, which is measured in turns with it. A second
// figure counts from the call of the enqueue, so it includes the transaction of the enqueue.
func wakeRoundTrips(s Sizes) Benchmark {
	const (
		name  = "wake_p50_roundtrips"
		means = "from the return of an enqueue into an empty group to the return of a waiting receive, in round trips of one read-write transaction"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "wake")
		if err != nil {
			return nil, err
		}
		c, err := newCrew(ctx, q, space, wakeHandles, layer.Options{}, layer.ReceiveOptions{Wait: layer.MaxWait})
		if err != nil {
			return nil, err
		}
		wakes, sends, trips, watches, err := wakes(ctx, env, space, c, s)
		if err = errors.Join(err, c.close(ctx)); err != nil {
			return nil, err
		}
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		whole := make([]float64, len(wakes))
		for i := range wakes {
			whole[i] = sends[i] + wakes[i]
		}
		slices.Sort(wakes)
		slices.Sort(whole)
		trip, p50, p99 := median(trips), median(wakes), wakes[len(wakes)*99/100]
		detail := fmt.Sprintf("%d enqueues, %d waiting handles", len(wakes), wakeHandles)
		return []Result{
			{name, p50 / trip, "round trips", means, detail, atMost(3)},
			{"wake_p99_roundtrips", p99 / trip, "round trips", "the same, 99 of 100", detail, atMost(10)},
			{"enqueue_to_receive_p50_roundtrips", median(whole) / trip, "round trips", "the same from the call of the enqueue", "", Target{}},
			{"enqueue_to_receive_p99_roundtrips", whole[len(whole)*99/100] / trip, "round trips", "", "", Target{}},
			{"watch_p50_roundtrips", median(watches) / trip, "round trips",
				"what a wake cannot do without: from the commit of a change to its watch, bare engine", "", Target{}},
			{"wake_p50_us", p50, "us", "", "", Target{}},
			{"roundtrip_us", trip, "us", "one get and one set of a key in a transaction, median", "", Target{}},
		}, nil
	}}
}

// wakes returns the microseconds of each wake, of the enqueue before it, of each round trip, and of each bare watch. A
// receive may return before the enqueue that woke it: then the wake took no time.
func wakes(ctx context.Context, env Env, space Space, c *crew, s Sizes) (wakes, sends, trips, watches []float64, err error) {
	waiting, stop := context.WithCancelCause(ctx)
	got := make(chan time.Time, len(c.claimers))
	var wg sync.WaitGroup
	defer func() {
		stop(errAllDone)
		wg.Wait()
		if cause := context.Cause(waiting); !errors.Is(cause, errAllDone) {
			err = cause
		}
	}()
	for _, one := range c.claimers {
		wg.Go(func() {
			for waiting.Err() == nil {
				claims, err := one.handle.Receive(waiting, one.o)
				at := time.Now()
				if err == nil && len(claims) > 0 {
					if err = one.handle.Ack(waiting, claims[0]); err == nil {
						c.q.left.Add(-1)
						got <- at
					}
				}
				if err != nil {
					stop(err)
				}
			}
		})
	}
	for i := range s.Wakes {
		env.progress("measuring", i, s.Wakes)
		// The one that was served must wait again, and whatever is measured begins from rest.
		if err := sleep(ctx, restTime); err != nil {
			return nil, nil, nil, nil, err
		}
		t, err := roundTrip(ctx, space)
		if err != nil {
			return nil, nil, nil, nil, err
		}
		trips = append(trips, t)
		if t, err = watchTime(ctx, space, i, restTime); err != nil {
			return nil, nil, nil, nil, err
		}
		watches = append(watches, t)
		if err := sleep(ctx, restTime); err != nil {
			return nil, nil, nil, nil, err
		}
		begun := time.Now()
		if err := c.q.enqueue(ctx, messages(groupName(i%10), 1)...); err != nil {
			return nil, nil, nil, nil, err
		}
		sent := time.Now()
		select {
		case at := <-got:
			wakes = append(wakes, max(0, micros(at.Sub(sent))))
			sends = append(sends, micros(sent.Sub(begun)))
		case <-waiting.Done():
			return nil, nil, nil, nil, context.Cause(waiting)
		case <-time.After(s.Patience):
			return nil, nil, nil, nil, fmt.Errorf("%w: no receive woke within %v", errWrong, s.Patience)
		}
	}
	return wakes, sends, trips, watches, nil
}

// restTime is how long is waited before a figure of single events, so that each begins from rest.
const restTime = 20 * time.Millisecond

// roundTrip returns the microseconds of a small transaction, which reads and writes a key.
func roundTrip(ctx context.Context, space Space) (float64, error) {
	key := append(bytes.Clone(space.Prefix), tuple.Tuple{"trip"}.Pack()...)
	begun := time.Now()
	_, err := kv.Run(ctx, space.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := tx.Get(key).Wait(ctx)
		if err == nil {
			tx.Set(key, append(v[:0:0], "trip"...))
		}
		return err
	})
	return micros(time.Since(begun)), err
}

// watchTime returns the microseconds from the return of the n-th change of a key to that of a wait for its watch, which
// has been set pause before. 0 if the watch was first.
func watchTime(ctx context.Context, space Space, n int, pause time.Duration) (float64, error) {
	key := append(bytes.Clone(space.Prefix), tuple.Tuple{"watch"}.Pack()...)
	var watch kv.Future[struct{}]
	_, err := kv.Run(ctx, space.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		watch = tx.Watch(key)
		return nil
	})
	if err != nil {
		return 0, err
	}
	type fired struct {
		at  time.Time
		err error
	}
	done := make(chan fired, 1)
	go func() {
		_, err := watch.Wait(ctx)
		done <- fired{time.Now(), err}
	}()
	if err := sleep(ctx, pause); err != nil {
		return 0, errors.Join(err, (<-done).err)
	}
	_, err = kv.Run(ctx, space.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set(key, tuple.Tuple{int64(n)}.Pack())
		return nil
	})
	changed := time.Now()
	if err != nil {
		return 0, err
	}
	f := <-done
	return max(0, micros(f.at.Sub(changed))), f.err
}
