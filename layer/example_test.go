package layer_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

func Example() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{}) // or OpenDisk, or a FoundationDB cluster
	defer db.Close()
	q, err := layer.Create(ctx, db, nil, "orders", layer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close(ctx)

	// Enqueue in the transaction that writes your own data: both happen, or neither.
	err = q.Once(ctx, func(tx kv.Tx) error {
		tx.Set([]byte("order/1"), []byte("2 apples"))
		_, err := q.EnqueueTx(ctx, tx,
			layer.Message{Group: "customer-7", Body: []byte("order/1 placed")},
			layer.Message{Group: "customer-7", Body: []byte("order/1 paid")},
			layer.Message{Group: "customer-9", Body: []byte("address changed")})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	// Receive: each claim is one group, in this process's hands alone, until it is acked or its lease ends.
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 10})
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range claims {
		for _, item := range c.Items {
			fmt.Printf("%s: %s\n", c.Group, item.Body)
		}
		if err := q.Ack(ctx, c); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// customer-7: order/1 placed
	// customer-7: order/1 paid
	// customer-9: address changed
}

// Admin has the operator's calls. Here an operator looks at the dead letters, and returns those of one group to it.
func ExampleAdmin() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(ctx, db, nil, "orders", layer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close(ctx)
	if _, err := q.Enqueue(ctx, layer.Message{Group: "customer-7", Body: []byte("order/1 placed")}); err != nil {
		log.Fatal(err)
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := q.Nack(ctx, claims[0], layer.NackOptions{Reject: "no such customer"}); err != nil {
		log.Fatal(err)
	}

	for letter, err := range q.Admin().AllDeadLetters(ctx, layer.DeadOptions{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", letter.ID.Group, letter.Reason)
	}
	_, err = q.Admin().Redrive(ctx, layer.DeadFilter{Group: layer.OnlyGroup("customer-7")}, layer.RedriveOptions{})
	if err != nil {
		log.Fatal(err)
	}
	page, err := q.Admin().Groups(ctx, layer.GroupsOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(page.Groups[0].Group, page.Groups[0].Status)
	// Output:
	// customer-7: no such customer
	// customer-7 ready
}

// A subscription is told what happens to messages, in the order of the commits. The handler's writes through tx happen
// once for each change, because the transaction also moves the subscription's place.
func ExampleQueue_SubscribeTx() {
	ctx, stop := context.WithCancel(context.Background())
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(ctx, db, nil, "orders", layer.Options{Config: layer.Config{Changes: 24 * time.Hour}})
	if err != nil {
		log.Fatal(err)
	}
	sent, err := q.Enqueue(ctx, layer.Message{Group: "customer-7"}, layer.Message{Group: "customer-9"})
	if err != nil {
		log.Fatal(err)
	}
	if err := q.Admin().Cancel(ctx, sent[1].ID); err != nil {
		log.Fatal(err)
	}
	seen := 0
	err = q.SubscribeTx(ctx, "waiting", func(_ context.Context, tx kv.Tx, changes []layer.Change) error {
		for _, c := range changes {
			n := int64(1)
			if c.Kind != layer.ChangeEnqueued {
				n = -1
			}
			tx.Atomic(kv.Add, []byte("waiting/"+c.ID.Group), binary.LittleEndian.AppendUint64(nil, uint64(n)))
			fmt.Println(c.ID.Group, c.Kind)
		}
		if seen += len(changes); seen == 3 {
			stop() // a program would go on until it is told to end
		}
		return nil
	}, layer.SubscribeOptions{FromOldest: true})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// customer-7 enqueued
	// customer-9 enqueued
	// customer-9 cancelled
}
