package worker_test

import (
	"context"
	"fmt"
	"log"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// exampleBookings is a queue with the facet state, and one message.
func exampleBookings() (q *layer.Queue, closeAll func()) {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	q, err := layer.Create(ctx, db, nil, "bookings", layer.Options{
		Config: layer.Config{Facets: []string{"state"}, Views: "*; state"},
	})
	if err != nil {
		log.Fatal(err)
	}
	m := layer.Message{Group: "LH400", Body: []byte("12A"), Headers: map[string]string{"state": "NEW"}}
	if _, err := q.Enqueue(ctx, m); err != nil {
		log.Fatal(err)
	}
	return q, func() { _, _ = q.Close(ctx), db.Close() }
}

// A stage gets the messages of one template, and returns the facets of the next stage. The last stage returns none: the
// message is acked.
func ExampleHandleStage() {
	q, closeAll := exampleBookings()
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background())
	book := worker.HandleStage(func(ctx context.Context, d *worker.Delivery) (layer.Template, error) {
		fmt.Printf("book %s\n", d.Body)
		return layer.Template{"state": "PAID"}, nil
	})
	ticket := worker.HandleStage(func(ctx context.Context, d *worker.Delivery) (layer.Template, error) {
		fmt.Printf("ticket %s\n", d.Body)
		stop()
		return nil, nil
	})
	first, err := worker.New(q, book, worker.Options{Where: layer.Template{"state": "NEW"}})
	if err != nil {
		log.Fatal(err)
	}
	second, err := worker.New(q, ticket, worker.Options{Where: layer.Template{"state": "PAID"}})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- first.Run(ctx) }()
	if err := second.Run(ctx); err != nil {
		log.Fatal(err)
	}
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output:
	// book 12A
	// ticket 12A
}

// The price is written, and the message goes on to its next stage, in one transaction: both happen exactly once.
func ExampleDelivery_AdvanceTo() {
	q, closeAll := exampleBookings()
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background())
	h := worker.HandleTx(func(ctx context.Context, tx kv.Tx, d *worker.Delivery) error {
		tx.Set([]byte("price/"+string(d.Body)), []byte("250"))
		return d.AdvanceTo(layer.Template{"state": "PRICED"})
	})
	w, err := worker.New(q, h, worker.Options{Where: layer.Template{"state": "NEW"}})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Where: layer.Template{"state": "PRICED"}, Wait: layer.MaxWait})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("priced: %s\n", claims[0].Items[0].Body)
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output: priced: 12A
}
