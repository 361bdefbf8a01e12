// A program that a user might write first: a message goes in, and a worker takes the message out.
package main

import (
	"context"
	"fmt"
	"log"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

func main() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(ctx, db, []byte("app/"), "orders", layer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close(ctx)
	if _, err := q.Enqueue(ctx, layer.Message{Group: "customer-7", Body: []byte("2 apples")}); err != nil {
		log.Fatal(err)
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
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
}
