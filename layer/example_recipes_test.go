package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// must ends an example in which something goes wrong.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A message for every tick, however many processes tick: the dedup id is the tick's, so that the first process to come
// enqueues the message and the others meet a duplicate. The window has to be longer than the processes' clocks differ.
func Example_periodic() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "reports", layer.Options{
		Config: layer.Config{DedupWindow: time.Hour},
	})
	must(err)
	defer q.Close(ctx)

	tick := func(now time.Time) layer.Sent {
		hour := now.UTC().Truncate(time.Hour)
		sent, err := q.Enqueue(ctx, layer.Message{
			Group: "hourly", Body: []byte(hour.Format(time.RFC3339)), DedupID: "hourly/" + hour.Format(time.RFC3339),
		})
		must(err)
		return sent[0]
	}
	nine := time.Date(2026, 5, 4, 9, 0, 1, 0, time.UTC)
	fmt.Println("first process:", tick(nine).Duplicate)
	fmt.Println("second process:", tick(nine.Add(2*time.Second)).Duplicate)
	fmt.Println("an hour later:", tick(nine.Add(time.Hour)).Duplicate)
	// Output:
	// first process: false
	// second process: true
	// an hour later: false
}

// A program knows a message by an id of its own, here the order's, and cancels the message if the message still waits.
// With DedupForPending the id is remembered as long as the message is in the queue.
func ExampleQueue_Find() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "reminders", layer.Options{
		Config: layer.Config{DedupForPending: true},
	})
	must(err)
	defer q.Close(ctx)
	_, err = q.Enqueue(ctx, layer.Message{
		Group: "customer-7", Body: []byte("pay!"), DedupID: "reminder/order-1", Delay: 24 * time.Hour,
	})
	must(err)

	// Paid: no reminder any more.
	found, err := q.Find(ctx, "", "reminder/order-1")
	must(err)
	fmt.Println(found.Where, found.ID.Group)
	if found.Where == layer.WhereWaiting {
		err = q.Admin().Cancel(ctx, found.ID)
		switch {
		case errors.Is(err, layer.ErrNoItem), errors.Is(err, layer.ErrInFlight):
			fmt.Println("too late, a worker was faster")
		default:
			must(err)
		}
	}
	found, err = q.Find(ctx, "", "reminder/order-1")
	must(err)
	fmt.Println(found.Where)
	// Output:
	// waiting customer-7
	// gone
}

// An HTTP producer. The client chooses the id of its request, and repeats the request when it got no answer: the
// message is enqueued once. A repeated request without an id would be enqueued twice. A message without a customer
// would wait for those of all others without one. So both are refused. A request which the client gives up ends the
// enqueue, too: the repetition finds out what came of it.
func Example_httpProducer() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{Config: layer.Config{MaxWaiting: 100}})
	must(err)
	defer q.Close(ctx)

	place := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, layer.MaxBodySize))
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		customer, id := r.URL.Query().Get("customer"), r.Header.Get("Idempotency-Key")
		if customer == "" || id == "" {
			http.Error(w, "a customer and an Idempotency-Key are wanted", http.StatusBadRequest)
			return
		}
		sent, err := q.Enqueue(r.Context(), layer.Message{Group: customer, Body: body, DedupID: id})
		switch {
		case errors.Is(err, layer.ErrFull):
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		case errors.Is(err, layer.ErrLimit), errors.Is(err, layer.ErrInvalidUTF8):
			http.Error(w, err.Error(), http.StatusBadRequest)
		case err != nil: // the engine, or the client has gone: the outcome may be unknown, and a repetition is safe
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case sent[0].Duplicate:
			w.WriteHeader(http.StatusOK)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}
	for _, customer := range []string{"7", "7", strings.Repeat("x", layer.MaxGroupSize+1)} {
		r := httptest.NewRequest("POST", "/orders?customer="+customer, strings.NewReader("2 apples"))
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		place(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 202
	// 200
	// 400
}

// Fan-out: a message of one queue becomes messages of several queues, in the transaction which acks it. All happens, or
// nothing, also if the outcome of a commit is unknown.
//
// The dedup id of each new message is the random part of the item's id. Without a dedup id, a queue with
// dedup_by=content takes two messages with the same body for duplicates: the second would be acked here, and enqueued
// nowhere. The look at Duplicate guards against programs that send the same dedup id.
func ExampleQueue_Once_fanOut() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	queues := make(map[string]*layer.Queue)
	for _, name := range []string{"orders", "mail", "stock"} {
		q, _, err := layer.Ensure(ctx, db, nil, name, layer.Options{})
		must(err)
		defer q.Close(ctx)
		queues[name] = q
	}
	orders := queues["orders"]
	_, err := orders.Enqueue(ctx, layer.Message{Group: "customer-7", Body: []byte("2 apples")})
	must(err)

	claims, err := orders.Receive(ctx, layer.ReceiveOptions{Max: 1})
	must(err)
	item := claims[0].Items[0]
	must(orders.Once(ctx, func(tx kv.Tx) error {
		for name, group := range map[string]string{"mail": "customer-7", "stock": "apples"} {
			sent, err := queues[name].EnqueueTx(ctx, tx, layer.Message{
				Group: group, Body: item.Body, Headers: item.Headers, DedupID: item.ID.Random.String(),
			})
			if err != nil {
				return err
			}
			if sent[0].Duplicate {
				return fmt.Errorf("%s is taken for a duplicate of %s", item.ID, sent[0].ID) // the item is not acked
			}
		}
		return orders.AckItemsTx(ctx, tx, claims[0], []layer.ID{item.ID})
	}))
	for _, name := range []string{"orders", "mail", "stock"} {
		s, err := queues[name].Stats(ctx, layer.StatsOptions{})
		must(err)
		fmt.Println(name, s.Depth)
	}
	// Output:
	// orders 0
	// mail 1
	// stock 1
}

// A test with a clock of its own: delays and leases end when the test says so. For whole workers, which also sleep and
// wait, use testing/synctest: see TestVirtualTime in this package.
func ExampleOptions_ownClock() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	now := time.Date(2026, 5, 4, 9, 0, 0, 0, time.UTC)
	q, _, err := layer.Ensure(ctx, db, nil, "reminders", layer.Options{Now: func() time.Time { return now }})
	must(err)
	defer q.Close(ctx)
	_, err = q.Enqueue(ctx, layer.Message{Group: "A", Body: []byte("pay!"), Delay: 24 * time.Hour})
	must(err)
	for range 2 {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{})
		must(err)
		fmt.Println(now.Weekday(), len(claims))
		now = now.Add(24 * time.Hour)
	}
	// Output:
	// Monday 0
	// Tuesday 1
}

// TestVirtualTime is a recipe: the whole library runs in a bubble of testing/synctest, in which time passes when all
// goroutines wait. Here a receive waits for a message which is delayed by 50 minutes, and the test takes no time.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		q, _, err := layer.Ensure(ctx, db, nil, "reminders", layer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close(ctx)
		begun := time.Now()
		if _, err := q.Enqueue(ctx, layer.Message{Group: "A", Delay: 50 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Wait: time.Hour})
		if err != nil || len(claims) != 1 {
			t.Fatal(claims, err)
		}
		if waited := time.Since(begun).Round(time.Minute); waited != 50*time.Minute {
			t.Fatal("waited", waited)
		}
		if err := q.Ack(ctx, claims[0]); err != nil {
			t.Fatal(err)
		}
	})
}

// A receive by template gets the messages of a stage. The holder moves them on to the next stage, in their places.
func ExampleTemplate() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(ctx, db, nil, "bookings", layer.Options{
		Config: layer.Config{Facets: []string{"state"}, Views: "*; state"},
	})
	must(err)
	defer q.Close(ctx)
	for _, seat := range []string{"12A", "12B"} {
		_, err = q.Enqueue(ctx, layer.Message{
			Group: "LH400", Body: []byte(seat), Headers: map[string]string{"state": "NEW"},
		})
		must(err)
	}

	claims, err := q.Receive(ctx, layer.ReceiveOptions{Where: layer.Template{"state": "NEW"}, Max: 10})
	must(err)
	err = q.Settle(ctx, layer.Settlement{
		Claim: claims[0], AdvanceAll: true, Change: func(_ layer.ID, m *layer.Message) error {
			m.Headers["state"] = "PAID"
			return nil
		},
	})
	must(err)

	paid, err := q.Receive(ctx, layer.ReceiveOptions{Where: layer.Template{"state": "PAID"}, Max: 10})
	must(err)
	for _, item := range paid[0].Items {
		fmt.Printf("%s %s\n", item.ID.Group, item.Body)
	}
	// Output:
	// LH400 12A
	// LH400 12B
}

// A claim of a whole group waits until no lane of the group is held. A pause keeps the stages away until then: the
// resume and the claim are one transaction.
func ExampleAdmin_ResumeGroupTx() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(ctx, db, nil, "bookings", layer.Options{
		Config: layer.Config{Facets: []string{"state"}, Views: "*; state"},
	})
	must(err)
	defer q.Close(ctx)
	for _, state := range []string{"NEW", "PAID"} {
		_, err = q.Enqueue(ctx, layer.Message{Group: "LH400", Headers: map[string]string{"state": state}})
		must(err)
	}
	stage, err := q.Receive(ctx, layer.ReceiveOptions{Where: layer.Template{"state": "NEW"}})
	must(err)

	var claims []*layer.Claim
	errHeld := errors.New("a lane is held")
	_, err = q.Admin().PauseGroup(ctx, "LH400", layer.PauseOptions{By: "seat map"})
	for err == nil || errors.Is(err, errHeld) {
		err = q.Once(ctx, func(tx kv.Tx) (err error) {
			if _, err = q.Admin().ResumeGroupTx(ctx, tx, "LH400", layer.ResumeOptions{}); err != nil {
				return err
			}
			claims, err = q.ReceiveTx(ctx, tx, layer.ReceiveOptions{Group: layer.OnlyGroup("LH400")})
			if err == nil && len(claims) == 0 {
				err = errHeld
			}
			return err
		})
		if err == nil {
			break
		}
		fmt.Println(err)
		must(q.Ack(ctx, stage[0])) // here the stage ends
		time.Sleep(time.Millisecond)
	}
	must(err)
	fmt.Println(len(claims[0].Items), "item is left of", claims[0].Group)
	// Output:
	// a lane is held
	// 1 item is left of LH400
}

// A program enqueues, in a transaction of its own, into a queue from which clients of Amazon SQS receive.
func ExampleQueue_EnqueueTx_forSQS() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	served, err := layer.Create(ctx, db, tuple.Tuple{"fdbfifo"}.Pack(), "orders.fifo", layer.Options{})
	must(err)
	defer served.Close(ctx)

	q, err := layer.Open(ctx, db, tuple.Tuple{"fdbfifo"}.Pack(), "orders.fifo", layer.Options{})
	must(err)
	defer q.Close(ctx)
	err = q.Once(ctx, func(tx kv.Tx) error {
		_, err := q.EnqueueTx(ctx, tx, layer.Message{
			Group: "customer-7", Body: []byte("order 1"), Headers: map[string]string{"kind": "order"},
		})
		return err
	})
	must(err)
	items, err := served.Peek(ctx, "customer-7", 1, nil)
	must(err)
	fmt.Printf("%s %s\n", items[0].Headers["kind"], items[0].Body)
	// Output: order order 1
}
