package layer_test

import (
	"context"
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

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
