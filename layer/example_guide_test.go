package layer_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
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

// A program brings its queue along: the first process makes the queue. Settings that an operator has changed since
// stay, and Ensure returns them.
func ExampleEnsure_settings() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	open := func(lease time.Duration) *layer.Queue {
		q, differ, err := layer.Ensure(ctx, db, tuple.Tuple{"shop", "queue"}.Pack(), "orders", layer.Options{
			Config: layer.Config{Lease: lease, MaxAttempts: 5},
		})
		if err != nil {
			log.Fatal(err)
		}
		for _, d := range differ {
			fmt.Printf("%s is %s, this program would have %s\n", d.Setting, d.Stored, d.Wanted)
		}
		return q
	}
	first := open(time.Minute)
	defer first.Close(ctx)
	second := open(2 * time.Minute) // the next release of the program
	defer second.Close(ctx)
	// Output: lease is 1m, this program would have 2m
}

// The order's own row and its message are written in one transaction: both are there afterwards, or neither.
func ExampleQueue_EnqueueTx_ownData() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(ctx, db, tuple.Tuple{"shop", "queue"}.Pack(), "orders", layer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close(ctx)

	place := func(id, customer string, cents int64) (duplicate bool, err error) {
		err = q.Once(ctx, func(tx kv.Tx) error {
			sent, err := q.EnqueueTx(ctx, tx, layer.Message{Group: customer, Body: []byte(id), DedupID: id})
			if err != nil {
				return err
			}
			if duplicate = sent[0].Duplicate; !duplicate {
				tx.Set(tuple.Tuple{"shop", "order", id}.Pack(), tuple.Tuple{customer, cents}.Pack())
			}
			return nil
		})
		return duplicate, err
	}
	for range 2 { // the client has not heard the first answer, and asks again
		duplicate, err := place("order-1", "customer-7", 250)
		fmt.Println(duplicate, err)
	}
	items, err := q.Peek(ctx, "customer-7", 10, nil)
	fmt.Println(len(items), "message", err)
	// Output:
	// false <nil>
	// true <nil>
	// 1 message <nil>
}

// Without a worker: a receive waits until a group is ready, its items are acked one by one, and the rest is given back.
func ExampleQueue_Receive_byHand() {
	ctx := context.Background()
	q, closeAll := exampleQueue("one", "two", "three")
	defer closeAll()
	claims, err := q.Receive(ctx, layer.ReceiveOptions{MaxGroups: 1, Lease: time.Minute, Wait: 20 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range claims {
		fmt.Println(c.Group, len(c.Items), "items")
		if err := q.AckItems(ctx, c, []layer.ID{c.Items[0].ID}); err != nil {
			log.Fatal(err)
		}
		if err := q.Nack(ctx, c, layer.NackOptions{Release: true}); err != nil {
			log.Fatal(err)
		}
	}
	items, err := q.Peek(ctx, "A", 1, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("next: %s\n", items[0].Body)
	// Output:
	// A 3 items
	// next: two
}

// The figures to watch: what waits, what was given up, and how old the oldest head is.
func ExampleQueue_Stats_figures() {
	ctx := context.Background()
	q, closeAll := exampleQueue("one", "two", "three")
	defer closeAll()
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 1})
	if err != nil {
		log.Fatal(err)
	}
	if err := q.Nack(ctx, claims[0], layer.NackOptions{Reject: "no such account"}); err != nil {
		log.Fatal(err)
	}
	s, err := q.Stats(ctx, layer.StatsOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("depth", s.Depth, "dead", s.Dead, "ready groups", s.ReadyGroups, "old", s.OldestHead > time.Minute)
	// Output: depth 2 dead 1 ready groups 1 old false
}

// A group is kept from everybody while somebody looks into it, and says who and why.
func ExampleAdmin_PauseGroup_why() {
	ctx := context.Background()
	q, closeAll := exampleQueue("one")
	defer closeAll()
	pause := layer.PauseOptions{By: "ann", Reason: "the account is locked"}
	if _, err := q.Admin().PauseGroup(ctx, "A", pause); err != nil {
		log.Fatal(err)
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
	fmt.Println(len(claims), "claims", err)
	items, err := q.Peek(ctx, "A", 1, nil)
	if err != nil {
		log.Fatal(err)
	}
	why, err := q.Admin().Why(ctx, items[0].ID, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range why.Reasons {
		fmt.Println(r.Cause, "by", r.Mark.By+":", r.Mark.Reason)
	}
	if _, err := q.Admin().ResumeGroup(ctx, "A", layer.ResumeOptions{}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 claims <nil>
	// group paused by ann: the account is locked
}

// A message may be kept until a time. Its group waits, because order is kept; other groups do not.
func ExampleMessage_delayed() {
	ctx := context.Background()
	q, closeAll := exampleQueue()
	defer closeAll()
	_, err := q.Enqueue(ctx,
		layer.Message{Group: "A", Body: []byte("in an hour"), Delay: time.Hour},
		layer.Message{Group: "A", Body: []byte("behind it")},
		layer.Message{Group: "B", Body: []byte("now")})
	if err != nil {
		log.Fatal(err)
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range claims {
		fmt.Printf("%s: %s\n", c.Group, c.Items[0].Body)
	}
	// Output: B: now
}
