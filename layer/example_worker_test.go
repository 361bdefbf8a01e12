package layer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
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
func runUntilEmpty(q *layer.Queue, h layer.Handler, o layer.WorkerOptions) {
	o.Logger = slog.New(slog.DiscardHandler) // for the example's output
	w, err := layer.NewWorker(q, h, o)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		for depth := int64(1); depth > 0; time.Sleep(time.Millisecond) {
			s, err := q.Stats(ctx)
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

// A worker calls its handler for each item, in order within a group. The ack of an item travels meanwhile.
func ExampleHandle() {
	q, closeAll := exampleQueue("one", "two")
	defer closeAll()
	runUntilEmpty(q, layer.Handle(func(ctx context.Context, d *layer.Delivery) error {
		fmt.Printf("%s: %s, attempt %d\n", d.ID.Group, d.Body, d.Attempt)
		return nil
	}), layer.WorkerOptions{})
	// Output:
	// A: one, attempt 1
	// A: two, attempt 1
}

// Slow work, such as a call of another service, comes first; what came of it is written with the ack, exactly once.
func ExampleHandleCommit() {
	q, closeAll := exampleQueue("3", "4")
	defer closeAll()
	runUntilEmpty(q, layer.HandleCommit(
		func(ctx context.Context, d *layer.Delivery) (string, error) {
			time.Sleep(time.Millisecond) // at most WorkerOptions.Timeout
			return "price of " + string(d.Body), nil
		},
		func(ctx context.Context, tx kv.Tx, d *layer.Delivery, result string) error {
			tx.Set([]byte("result/"+string(d.Body)), []byte(result))
			fmt.Println(result)
			return nil
		}), layer.WorkerOptions{})
	// Output:
	// price of 3
	// price of 4
}

// A handler of batches is given what a claim has, and says how far it came.
func ExampleHandleBatch() {
	q, closeAll := exampleQueue("one", "two", "three")
	defer closeAll()
	again := true
	runUntilEmpty(q, layer.HandleBatch(func(ctx context.Context, ds []*layer.Delivery) error {
		fmt.Print(len(ds), " items:")
		for i, d := range ds {
			if again && string(d.Body) == "two" {
				again = false
				fmt.Println(" stopped")
				return &layer.BatchError{Done: i, Err: errors.New("not now")}
			}
			fmt.Print(" ", string(d.Body))
		}
		fmt.Println()
		return nil
	}), layer.WorkerOptions{RetryDelay: func(int, error) time.Duration { return 0 }})
	// Output:
	// 3 items: one stopped
	// 2 items: two three
}

// Bodies are decoded for a handler of any kind; one that cannot be becomes a dead letter.
func ExampleTyped() {
	type order struct{ Item string }
	q, closeAll := exampleQueue(`{"Item":"apple"}`, "nonsense", `{"Item":"pear"}`)
	defer closeAll()
	runUntilEmpty(q, layer.Typed(layer.JSON[order](), layer.Handle(func(ctx context.Context, d *layer.Delivery) error {
		fmt.Println(layer.Value[order](d).Item)
		return nil
	})), layer.WorkerOptions{})
	// Output:
	// apple
	// pear
}

// A form makes messages of values: body, group and facets. A nested path is a function.
func ExampleForm() {
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

// Plain consumers beside ordered ones: each unordered claim is of one item that nobody holds, so the items of a group
// are in several hands at the same time, and who receives the group in order gets nothing past an item that is held.
func ExampleWorkerOptions_unordered() {
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
	// A worker takes any item, too. What was given back is free again, at its old place.
	runUntilEmpty(q, layer.Handle(func(_ context.Context, d *layer.Delivery) error {
		fmt.Printf("worker: %s\n", d.Body)
		return nil
	}), layer.WorkerOptions{Unordered: true, Concurrency: 1})
	// Output:
	// page-1 alone: true
	// page-2 alone: true
	// in order: 0
	// worker: page-1
	// worker: page-3
}

// What is around a handler sees each call of it, whatever the kind: to measure, to trace, to log.
func ExampleAround() {
	q, closeAll := exampleQueue("one")
	defer closeAll()
	trace := layer.Around(func(ctx context.Context, ds []*layer.Delivery, next func(context.Context) error) error {
		fmt.Println("begin", string(ds[0].Body))
		err := next(ctx)
		fmt.Println("end", err)
		return err
	})
	runUntilEmpty(q, trace(layer.Handle(func(ctx context.Context, d *layer.Delivery) error {
		fmt.Println("handled")
		return nil
	})), layer.WorkerOptions{})
	// Output:
	// begin one
	// handled
	// end <nil>
}

// A handler says when its item is to be tried again, and that the attempt does not count.
func ExampleRetryError() {
	q, closeAll := exampleQueue("one")
	defer closeAll()
	calls := 0
	runUntilEmpty(q, layer.Handle(func(ctx context.Context, d *layer.Delivery) error {
		if calls++; calls < 4 {
			return &layer.RetryError{After: time.Millisecond, Uncounted: true, Err: errors.New("service is down")}
		}
		fmt.Printf("call %d, attempt %d\n", calls, d.Attempt)
		return nil
	}), layer.WorkerOptions{})
	// Output: call 4, attempt 1
}

// A group's state goes from item to item, and is kept with the ack.
func ExampleDelivery_SetState() {
	q, closeAll := exampleQueue("2", "3", "5")
	defer closeAll()
	runUntilEmpty(q, layer.Handle(func(ctx context.Context, d *layer.Delivery) error {
		state, err := d.State(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("%q before %s\n", state, d.Body)
		return d.SetState(append(state, d.Body...))
	}), layer.WorkerOptions{})
	// Output:
	// "" before 2
	// "2" before 3
	// "23" before 5
}

// A worker has as many goroutines as there is work for, within bounds that can be changed while the worker runs.
func ExampleWorker_SetConcurrency() {
	q, closeAll := exampleQueue("a", "b", "c")
	defer closeAll()
	w, err := layer.NewWorker(q, layer.Handle(func(ctx context.Context, d *layer.Delivery) error {
		return nil
	}), layer.WorkerOptions{Concurrency: 1, MaxConcurrency: 8})
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
	// layer: set concurrency: max concurrency is 2 goroutines, allowed are 4 to 10000
	// <nil>
}

// Hooks are told what becomes of items: here, of one that has failed for good.
func ExampleHooks() {
	q, closeAll := exampleQueue("bad")
	defer closeAll()
	runUntilEmpty(q, layer.Handle(func(ctx context.Context, d *layer.Delivery) error {
		return errors.New("no such account")
	}), layer.WorkerOptions{
		Concurrency: 1, // so that events come in order
		RetryDelay:  func(int, error) time.Duration { return 0 },
		Hooks: layer.Hooks{Failed: func(e layer.Event) {
			fmt.Printf("attempt %d: %v: %s\n", e.Attempt, e.Err, e.Follows)
		}},
	})
	// Output:
	// attempt 1: no such account: retry
	// attempt 2: no such account: dead letter
}
