package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// exampleQueue is a queue in memory, with a message of each body in one group.
func exampleQueue(bodies ...string) (q *layer.Queue, closeAll func()) {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	q, err := layer.Create(ctx, db, nil, "example", layer.Options{Config: layer.Config{MaxAttempts: 2}})
	if err != nil {
		log.Fatal(err)
	}
	for _, body := range bodies {
		if _, err := q.Enqueue(ctx, layer.Message{Group: "A", Body: []byte(body)}); err != nil {
			log.Fatal(err)
		}
	}
	return q, func() {
		_ = q.Close(ctx)
		_ = db.Close()
	}
}

// runUntilEmpty runs a worker until the queue is empty.
func runUntilEmpty(q *layer.Queue, h worker.Handler, o worker.Options) {
	o.Logger = slog.New(slog.DiscardHandler) // for the example's output
	w, err := worker.New(q, h, o)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		for depth := int64(1); depth > 0; time.Sleep(time.Millisecond) {
			s, err := q.Stats(ctx, layer.StatsOptions{})
			if err != nil {
				log.Fatal(err)
			}
			depth = s.Depth
		}
	}()
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// A worker calls its handler for each item, in order within a group. It acks an item while the handler runs for the
// next.
func ExampleHandle() {
	q, closeAll := exampleQueue("one", "two")
	defer closeAll()
	runUntilEmpty(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		fmt.Printf("%s: %s, attempt %d\n", d.ID.Group, d.Body, d.Attempt)
		return nil
	}), worker.Options{})
	// Output:
	// A: one, attempt 1
	// A: two, attempt 1
}

// Slow work, such as a call of another service, comes first. Its result is written with the ack, exactly once.
func ExampleHandleCommit() {
	q, closeAll := exampleQueue("3", "4")
	defer closeAll()
	runUntilEmpty(q, worker.HandleCommit(
		func(ctx context.Context, d *worker.Delivery) (string, error) {
			time.Sleep(time.Millisecond) // at most worker.Options.Timeout
			return "price of " + string(d.Body), nil
		},
		func(ctx context.Context, tx kv.Tx, d *worker.Delivery, result string) error {
			tx.Set([]byte("result/"+string(d.Body)), []byte(result))
			fmt.Println(result)
			return nil
		}), worker.Options{})
	// Output:
	// price of 3
	// price of 4
}

// A handler of batches is given what a claim has, and says how far it came.
func ExampleHandleBatch() {
	q, closeAll := exampleQueue("one", "two", "three")
	defer closeAll()
	again := true
	runUntilEmpty(q, worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
		fmt.Print(len(ds), " items:")
		for i, d := range ds {
			if again && string(d.Body) == "two" {
				again = false
				fmt.Println(" stopped")
				return &worker.BatchError{Done: i, Err: errors.New("not now")}
			}
			fmt.Print(" ", string(d.Body))
		}
		fmt.Println()
		return nil
	}), worker.Options{RetryDelay: func(int, error) time.Duration { return 0 }})
	// Output:
	// 3 items: one stopped
	// 2 items: two three
}

// A handler decodes the body. A body that it cannot decode becomes a dead letter at once.
func ExampleRejectError() {
	type order struct{ Item string }
	q, closeAll := exampleQueue(`{"Item":"apple"}`, "nonsense", `{"Item":"pear"}`)
	defer closeAll()
	orders := layer.JSON[order]()
	runUntilEmpty(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		o, err := orders.Decode(d.Body)
		if err != nil {
			return &worker.RejectError{Reason: "body cannot be decoded", Err: err}
		}
		fmt.Println(o.Item)
		return nil
	}), worker.Options{})
	// Output:
	// apple
	// pear
}

// A form makes messages of values: body, group and facets. A nested path is a function.
func Example_form() {
	type booking struct {
		Flight struct{ Number string }
		Seat   string
		State  string
	}
	form := layer.Form[booking]{
		Group: func(b booking) string { return b.Flight.Number },
		Facets: map[string]func(booking) string{
			"state": func(b booking) string { return b.State },
		},
	}
	config := layer.Config{Facets: []string{"state"}, Views: "state"}
	fmt.Println(form.Check(config))

	b := booking{Seat: "12A", State: "NEW"}
	b.Flight.Number = "LH400"
	m, err := form.Message(b)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Group, m.Headers, string(m.Body))

	form.Facets["stage"] = form.Facets["state"]
	fmt.Println(form.Check(config))
	// Output:
	// <nil>
	// LH400 map[state:NEW] {"Flight":{"Number":"LH400"},"Seat":"12A","State":"NEW"}
	// layer: check form: facet is "stage", allowed is: the queue's facets: state
}

// Unordered and ordered consumers can use one queue. Each unordered claim is of one free item, so the items of a group
// can have several holders at the same time. A receive of the group in order gets nothing behind a held item.
func ExampleOptions_unordered() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(ctx, db, nil, "pages", layer.Options{Config: layer.Config{Unordered: true}})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close(ctx)
	for _, body := range []string{"page-1", "page-2", "page-3"} {
		if _, err := q.Enqueue(ctx, layer.Message{Group: "crawl", Body: []byte(body)}); err != nil {
			log.Fatal(err)
		}
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Unordered: true, Max: 2})
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range claims {
		fmt.Printf("%s alone: %t\n", c.Items[0].Body, c.Hold == c.Items[0].ID)
	}
	ordered, err := q.Receive(ctx, layer.ReceiveOptions{Max: 10})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("in order:", len(ordered))
	if err := q.Ack(ctx, claims[1]); err != nil {
		log.Fatal(err)
	}
	if err := q.Nack(ctx, claims[0], layer.NackOptions{Release: true}); err != nil {
		log.Fatal(err)
	}
	// A worker takes any item, too. An item that was returned is free again, at its old place.
	runUntilEmpty(q, worker.Handle(func(_ context.Context, d *worker.Delivery) error {
		fmt.Printf("worker: %s\n", d.Body)
		return nil
	}), worker.Options{Unordered: true, Concurrency: 1})
	// Output:
	// page-1 alone: true
	// page-2 alone: true
	// in order: 0
	// worker: page-1
	// worker: page-3
}

// A handler says when its item is to be tried again, and that the attempt does not count.
func ExampleRetryError() {
	q, closeAll := exampleQueue("one")
	defer closeAll()
	calls := 0
	runUntilEmpty(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		if calls++; calls < 2 {
			return &worker.RetryError{After: time.Second, Uncounted: true, Err: errors.New("service is down")}
		}
		fmt.Printf("call %d, attempt %d\n", calls, d.Attempt)
		return nil
	}), worker.Options{})
	// Output: call 2, attempt 1
}

// A group's state goes from item to item, and is kept with the ack.
func ExampleDelivery_SetState() {
	q, closeAll := exampleQueue("2", "3", "5")
	defer closeAll()
	runUntilEmpty(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		state, err := d.State(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("%q before %s\n", state, d.Body)
		return d.SetState(append(state, d.Body...))
	}), worker.Options{})
	// Output:
	// "" before 2
	// "2" before 3
	// "23" before 5
}

// A worker has as many goroutines as there is work for, within bounds that can be changed while the worker runs.
func ExampleWorker_SetConcurrency() {
	q, closeAll := exampleQueue("a", "b", "c")
	defer closeAll()
	w, err := worker.New(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		return nil
	}), worker.Options{Concurrency: 1, MaxConcurrency: 8})
	if err != nil {
		log.Fatal(err)
	}
	w.Start()
	if err := w.SetConcurrency(2, 4); err != nil { // at night
		log.Fatal(err)
	}
	fmt.Println(w.Hands().All <= 4)
	fmt.Println(w.SetConcurrency(4, 2))
	fmt.Println(w.Stop(context.Background()))
	// Output:
	// true
	// worker: set concurrency: max concurrency is 2 goroutines, allowed are 4 to 10000
	// <nil>
}

// Hooks are told what becomes of items: here, of one that has failed for good.
func ExampleEvents() {
	q, closeAll := exampleQueue("bad")
	defer closeAll()
	runUntilEmpty(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		return errors.New("no such account")
	}), worker.Options{
		Concurrency: 1, // so that events come in order
		RetryDelay:  func(int, error) time.Duration { return 0 },
		Events: worker.Events{Failed: func(e worker.Event) {
			fmt.Printf("attempt %d: %v: %s\n", e.Attempt, e.Err, e.Follows)
		}},
	})
	// Output:
	// attempt 1: no such account: retry
	// attempt 2: no such account: dead letter
}

// A worker handles items on several goroutines and extends their leases while handlers run. With HandleTx the effect
// happens exactly once: it commits together with the ack.
func ExampleHandleTx() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(ctx, db, nil, "payments", layer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close(ctx)
	for range 3 {
		if _, err := q.Enqueue(ctx, layer.Message{Group: "account-1", Body: []byte{10}}); err != nil {
			log.Fatal(err)
		}
	}

	handled := make(chan struct{}, 3)
	balance := []byte("balance/account-1")
	w, err := worker.New(q, worker.HandleTx(func(ctx context.Context, tx kv.Tx, d *worker.Delivery) error {
		tx.Atomic(kv.Add, balance, d.Body)
		handled <- struct{}{} // outside the transaction: it may happen more than once
		return nil
	}), worker.Options{Concurrency: 2})
	if err != nil {
		log.Fatal(err)
	}
	w.Start()
	for range 3 {
		<-handled
	}
	if err := w.Stop(ctx); err != nil { // drains: what is in flight is finished
		log.Fatal(err)
	}
	_, err = kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := tx.Get(balance).Wait(ctx)
		if err != nil {
			return err
		}
		fmt.Println("balance:", v[0])
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: balance: 30
}

// A handler rejects an item that will never succeed. The item becomes a dead letter at once, and its group continues.
func ExampleRejectError_deadLetter() {
	q, closeAll := exampleQueue("2 apples", "1 moon", "3 pears")
	defer closeAll()
	runUntilEmpty(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		if string(d.Body) == "1 moon" {
			return &worker.RejectError{Reason: "not sold"}
		}
		fmt.Printf("sold %s\n", d.Body)
		return nil
	}), worker.Options{})
	for letter, err := range q.Admin().AllDeadLetters(context.Background(), layer.DeadOptions{Bodies: true}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("dead: %s: %s\n", letter.Body, letter.Reason)
	}
	// Output:
	// sold 2 apples
	// sold 3 pears
	// dead: 1 moon: not sold
}

// stopLog is a log that is closed when its worker stops.
type stopLog chan struct{}

func (stopLog) Enabled(context.Context, slog.Level) bool { return true }
func (l stopLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l stopLog) WithGroup(string) slog.Handler          { return l }

func (l stopLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "worker stops" {
		close(l)
	}
	return nil
}

// Run ends when its context does: here, when a program is told to stop. The handler finishes what it is at; what was
// not begun is given back.
func ExampleWorker_Run_shutdown() {
	q, closeAll := exampleQueue("one", "two")
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background()) // in a program: signal.NotifyContext
	stops := make(stopLog)
	w, err := worker.New(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		stop()  // the signal comes while the handler runs,
		<-stops // the worker stops, and the handler is not disturbed
		fmt.Printf("%s is done, %v\n", d.Body, ctx.Err())
		return nil
	}), worker.Options{Concurrency: 1, Logger: slog.New(stops)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("run:", w.Run(ctx))
	items, err := q.Peek(context.Background(), "A", 10, nil)
	fmt.Printf("%s is left, %v\n", items[0].Body, err)
	// Output:
	// one is done, <nil>
	// run: <nil>
	// two is left, <nil>
}

// An item that fails is tried again: by the queue's policy, and so many times. Then it is a dead letter.
func ExampleHandle_retry() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(ctx, db, tuple.Tuple{"shop"}.Pack(), "mails", layer.Options{Config: layer.Config{
		Retry:       layer.RetryPolicy{Kind: layer.RetryExponential, Base: time.Millisecond, Max: time.Second},
		MaxAttempts: 3,
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close(ctx)
	if _, err := q.Enqueue(ctx, layer.Message{Group: "customer-7", Body: []byte("welcome")}); err != nil {
		log.Fatal(err)
	}
	runUntilEmpty(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		fmt.Println("attempt", d.Attempt)
		return errors.New("the mail server is down")
	}), worker.Options{})
	page, err := q.Admin().DeadLetters(ctx, layer.DeadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(page.Letters[0].Attempts, "attempts:", page.Letters[0].LastError)
	// Output:
	// attempt 1
	// attempt 2
	// attempt 3
	// 3 attempts: the mail server is down
}
