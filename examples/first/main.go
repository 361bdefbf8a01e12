// A first program: it puts a message into a queue in a folder, and works until Ctrl-C. README has it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	db, err := embedded.OpenDisk("shop.data", embedded.Options{})
	check(err)
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, []byte("shop/"), "orders", layer.Options{})
	check(err)
	defer q.Close(context.Background())
	_, err = q.Enqueue(ctx, layer.Message{Group: "customer-7", Body: []byte("2 apples")})
	check(err)
	w, err := worker.New(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		fmt.Printf("%s: %s\n", d.ID.Group, d.Body)
		return nil
	}), worker.Options{})
	check(err)
	check(w.Run(ctx))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
