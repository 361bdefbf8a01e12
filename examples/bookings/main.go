// Command bookings sells the seats of a few flights. A request is enqueued in the very transaction that records
// it, the flight is the group, and workers assign seats in the transaction that acks: no seat is sold twice and
// no request is lost, although the engine is told to fail commits at random, some of them after they were done.
//
//	go run ./examples/bookings [-seed N] [-without-faults]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

func main() {
	seed := flag.Uint64("seed", 1, "of the faults and of who asks for which flight")
	calm := flag.Bool("without-faults", false, "let no commit fail")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *seed, !*calm); err != nil {
		fmt.Fprintln(os.Stderr, "bookings:", err)
		os.Exit(1)
	}
}

// The size of the example: more people ask than there are seats.
const (
	seatsAFlight = 40
	passengers   = 200
	workers      = 4
)

func flights() []string { return []string{"LH 400", "BA 117", "DL 8", "NH 9"} }

// run sells the seats and prints what came of it. With faults, commits fail by the seed.
func run(ctx context.Context, out io.Writer, seed uint64, faults bool) (err error) {
	var db kv.DB = embedded.OpenMemory(embedded.Options{Seed: seed})
	plan := fault.Default(seed)
	if faults {
		db = fault.Wrap(db, plan)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	queue, err := layer.Create(ctx, db, nil, "seats", layer.Options{
		Tx: kv.TxOptions{MaxRetryDelay: 20 * time.Millisecond}, // the faults pass by at once
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, queue.Close(context.WithoutCancel(ctx))) }()
	o := &office{db: db, queue: queue, seats: seatsAFlight}

	if err := o.sell(ctx, seed); err != nil {
		return err
	}
	l, err := o.audit(ctx, flights())
	if err != nil {
		return err
	}
	for _, flight := range flights() {
		asked, seated := 0, 0
		for _, r := range l.requests {
			if r.flight == flight {
				asked++
				if r.answer != refused {
					seated++
				}
			}
		}
		fmt.Fprintf(out, "%s: %d asked, %d of %d seats sold\n%s\n", flight, asked, seated, seatsAFlight, l.picture(flight))
	}
	v, err := l.prove(passengers)
	if err != nil {
		return err
	}
	if faults {
		counts := plan.Counts()
		fmt.Fprintf(out, "On the way %d commits failed with a conflict, %d were done but reported unknown, %d were lost and unknown.\n",
			counts[fault.Conflict], counts[fault.UnknownApplied], counts[fault.UnknownLost])
	}
	_, err = fmt.Fprintf(out, "Proven: %d requests = %d seated + %d refused, no seat sold twice, none refused while a seat was free.\n",
		v.requests, v.seated, v.refused)
	return err
}

// sell takes requests while workers assign seats, and returns when all are answered.
func (o *office) sell(ctx context.Context, seed uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	worker, err := worker.New(o.queue, worker.HandleTx(o.assign), worker.Options{
		Concurrency: workers,
		Lease:       2 * time.Second, // a claim whose commit was never heard of is free again after that
		Poll:        20 * time.Millisecond,
		OnError: func(err error) {
			// The worker goes on after a retryable error; the message comes again.
			if kv.Code(err) == 0 && !errors.Is(err, layer.ErrClaimLost) && !errors.Is(err, context.DeadlineExceeded) {
				cancel(err)
			}
		},
	})
	if err != nil {
		return err
	}
	worker.Start()
	err = errors.Join(o.ask(ctx, seed), o.answered(ctx))
	return errors.Join(err, worker.Stop(ctx))
}

// ask makes all requests, at one counter a flight, all at once: within a flight their numbers are the order in
// which they came.
func (o *office) ask(ctx context.Context, seed uint64) error {
	choice := rand.New(rand.NewPCG(seed, seed))
	all := flights()
	queues := make([]chan int64, len(all))
	for i := range queues {
		queues[i] = make(chan int64, passengers)
	}
	for number := range int64(passengers) {
		// The first flights are asked for most.
		queues[min(choice.IntN(len(all)), choice.IntN(len(all)))] <- number
	}
	failed := make(chan error, len(queues))
	for i, numbers := range queues {
		close(numbers)
		go func() {
			for number := range numbers {
				if err := o.book(ctx, number, all[i], fmt.Sprintf("passenger %d", number)); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	var err error
	for range queues {
		err = errors.Join(err, <-failed)
	}
	return err
}

// answered waits until the queue has no messages left.
func (o *office) answered(ctx context.Context) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		page, err := o.queue.Admin().Groups(ctx, layer.GroupsOptions{Limit: 1})
		if err != nil || len(page.Groups) == 0 {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
