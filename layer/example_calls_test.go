package layer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// A program brings its queue along: the first process creates the queue, and those which want other settings than the
// stored are told what differs.
func ExampleEnsure() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	first, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{Config: layer.Config{Lease: time.Minute}})
	must(err)
	defer first.Close(ctx)

	want := layer.Config{Lease: 2 * time.Minute, MaxWaiting: 100}
	second, different, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{Config: want})
	must(err)
	defer second.Close(ctx)
	for _, d := range different {
		fmt.Println(d)
	}
	third, different, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{Config: want, Mend: true})
	must(err)
	defer third.Close(ctx)
	for _, d := range different {
		fmt.Println(d)
	}
	// Output:
	// lease is 1m, wanted is 2m
	// max_waiting is 0, wanted is 100
	// lease is 1m, wanted is 2m: mended
	// max_waiting is 0, wanted is 100: mended
}

// A batch is enqueued whole or not at all. A duplicate is no error; a bad message is named.
func ExampleQueue_Enqueue() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	sent, err := q.Enqueue(ctx,
		layer.Message{Group: "customer-7", Body: []byte("2 apples"), DedupID: "order-1"},
		layer.Message{Group: "customer-7", Body: []byte("2 apples"), DedupID: "order-1"},
		layer.Message{Group: "customer-9", Body: []byte("a pear"), Headers: map[string]string{"trace": "4bf9"}})
	must(err)
	for _, s := range sent {
		fmt.Println(s.ID.Group, s.Duplicate)
	}
	_, err = q.Enqueue(ctx, layer.Message{Group: "customer-7"}, layer.Message{Group: strings.Repeat("x", 2000)})
	if bad := (*layer.MessageError)(nil); errors.As(err, &bad) {
		fmt.Println("bad:", bad.Index, errors.Is(err, layer.ErrLimit))
	}
	// Output:
	// customer-7 false
	// customer-7 true
	// customer-9 false
	// bad: 1 true
}

// Messages which need no order are alone: each has a group of its own, so that as many workers as there are messages
// can handle them at the same time.
func ExampleMessage_alone() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "thumbnails", layer.Options{})
	must(err)
	defer q.Close(ctx)
	_, err = q.Enqueue(ctx,
		layer.Message{Alone: true, Body: []byte("cat.jpg")}, layer.Message{Alone: true, Body: []byte("dog.jpg")},
		layer.Message{Body: []byte("a.jpg")}, layer.Message{Body: []byte("b.jpg")}) // one group, the default group
	must(err)
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
	must(err)
	for _, c := range claims {
		fmt.Println(len(c.Items))
	}
	// Output:
	// 1
	// 1
	// 2
}

// A later event moves the message of an earlier one: the mail goes out ten minutes after the last change, not after the
// first.
func ExampleQueue_Reschedule() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	now := time.Date(2026, 5, 4, 9, 0, 0, 0, time.UTC)
	q, _, err := layer.Ensure(ctx, db, nil, "mail", layer.Options{
		Now: func() time.Time { return now }, Config: layer.Config{DedupForPending: true},
	})
	must(err)
	defer q.Close(ctx)
	changed := func(body string) {
		sent, err := q.Enqueue(ctx, layer.Message{
			Group: "customer-7", Body: []byte(body), DedupID: "changes/customer-7", Delay: 10 * time.Minute,
		})
		must(err)
		if sent[0].Duplicate { // still waiting
			must(q.Once(ctx, func(tx kv.Tx) error {
				if err := q.ReplaceTx(ctx, tx, sent[0].ID, []byte(body), nil); err != nil {
					return err
				}
				return q.RescheduleTx(ctx, tx, sent[0].ID, now.Add(10*time.Minute))
			}))
		}
	}
	changed("new address")
	now = now.Add(6 * time.Minute)
	changed("new address, new name")
	for range 2 {
		now = now.Add(5 * time.Minute)
		claims, err := q.Receive(ctx, layer.ReceiveOptions{})
		must(err)
		for _, c := range claims {
			fmt.Println(now.Format(time.TimeOnly), string(c.Items[0].Body))
		}
	}
	// Output:
	// 09:16:00 new address, new name
}

// A waiting message gets another body; its place, its id and its time stay.
func ExampleQueue_Replace() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	sent, err := q.Enqueue(ctx, layer.Message{Group: "A", Body: []byte("2 apples")}, layer.Message{Group: "A"})
	must(err)
	must(q.Replace(ctx, sent[0].ID, []byte("3 apples"), nil))
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
	must(err)
	fmt.Println(string(claims[0].Items[0].Body))
	err = q.Replace(ctx, sent[0].ID, []byte("4 apples"), nil)
	fmt.Println(errors.Is(err, layer.ErrInFlight))
	// Output:
	// 3 apples
	// true
}

// Items are acked one by one, so that what is done stays done; what is left of the claim is given back.
func ExampleQueue_Ack() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	for _, body := range []string{"one", "two", "bad", "four"} {
		_, err := q.Enqueue(ctx, layer.Message{Group: "A", Body: []byte(body)})
		must(err)
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
	must(err)
	c := claims[0]
	for _, item := range c.Items {
		if string(item.Body) == "bad" {
			must(q.Nack(ctx, c, layer.NackOptions{Err: errors.New("cannot be read"), Delay: time.Minute}))
			break
		}
		must(q.AckItems(ctx, c, []layer.ID{item.ID}))
	}
	fmt.Println(len(c.Items), "given back")
	items, err := q.Peek(ctx, "A", 10, nil)
	must(err)
	for _, item := range items {
		fmt.Println(string(item.Body), item.Attempts)
	}
	// Output:
	// 2 given back
	// bad 1
	// four 0
}

// A worker of many small groups takes the head of each, and acks all in one transaction. A lost claim does not keep the
// others from their end.
func ExampleQueue_Settle() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	for _, group := range []string{"A", "B", "C"} {
		_, err := q.Enqueue(ctx, layer.Message{Group: group}, layer.Message{Group: group})
		must(err)
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Strategy: layer.Heads})
	must(err)
	must(q.Ack(ctx, claims[1])) // another call was faster
	var all []layer.Settlement
	for _, c := range claims {
		all = append(all, layer.Settlement{Claim: c, FinishAll: true})
	}
	err = q.Settle(ctx, all...)
	var failed *layer.ClaimError
	if errors.As(err, &failed) {
		fmt.Println(failed.Claim.Group, errors.Is(failed, layer.ErrClaimLost))
	}
	stats, err := q.Stats(ctx, layer.StatsOptions{})
	must(err)
	fmt.Println(stats.Acked, "acked")
	// Output:
	// B true
	// 3 acked
}

// Long work extends the lease; Extend says until when, and so does the claim.
func ExampleQueue_Extend() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	now := time.Date(2026, 5, 4, 9, 0, 0, 0, time.UTC)
	q, _, err := layer.Ensure(ctx, db, nil, "films", layer.Options{Now: func() time.Time { return now }})
	must(err)
	defer q.Close(ctx)
	_, err = q.Enqueue(ctx, layer.Message{Alone: true, Body: []byte("film.mov")})
	must(err)
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Lease: time.Minute})
	must(err)
	c := claims[0]
	fmt.Println(c.Until.UTC().Format(time.TimeOnly))
	now = now.Add(50 * time.Second)
	_, err = q.Extend(ctx, c, time.Minute)
	must(err)
	fmt.Println(c.Until.UTC().Format(time.TimeOnly))
	must(q.Ack(ctx, c))
	// Output:
	// 09:01:00
	// 09:01:50
}

// A receive which waits costs next to nothing, and ends as soon as there is a message.
func ExampleQueue_Receive_wait() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	go func() {
		_, err := q.Enqueue(ctx, layer.Message{Group: "A", Body: []byte("here")})
		must(err)
	}()
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Wait: time.Minute})
	must(err)
	fmt.Println(string(claims[0].Items[0].Body))
	// Output: here
}

// Layers spreads a receive over the groups: the firsts of all groups come before any second.
func ExampleStrategy_InOrder() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	for _, body := range []string{"A1", "A2", "A3", "B1", "B2", "C1"} {
		_, err := q.Enqueue(ctx, layer.Message{Group: body[:1], Body: []byte(body)})
		must(err)
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Strategy: layer.Layers})
	must(err)
	for _, item := range layer.Layers.InOrder(claims) {
		fmt.Print(string(item.Body), " ")
	}
	// Output: A1 B1 C1 A2 B2 A3
}

// A receive under an id can be repeated, for example after a lost answer: the same claims come back.
func ExampleReceiveOptions_receiveID() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	_, err = q.Enqueue(ctx, layer.Message{Group: "A"}, layer.Message{Group: "B"})
	must(err)
	o := layer.ReceiveOptions{Max: 1, ReceiveID: "request-1"}
	first, err := q.Receive(ctx, o)
	must(err)
	again, err := q.Receive(ctx, o)
	must(err)
	fmt.Println(again[0].Group == first[0].Group, again[0].Token == first[0].Token)
	// Output: true true
}

// TakeTx moves a message into the caller's own data, in one transaction, with no lease and no ack.
func ExampleQueue_TakeTx() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "payments", layer.Options{})
	must(err)
	defer q.Close(ctx)
	_, err = q.Enqueue(ctx,
		layer.Message{Group: "account-1", Body: []byte{10}}, layer.Message{Group: "account-1", Body: []byte{5}})
	must(err)
	taken := 0
	must(q.Once(ctx, func(tx kv.Tx) error {
		items, _, err := q.TakeTx(ctx, tx, 10, layer.TakeOptions{})
		if err != nil {
			return err
		}
		for _, item := range items {
			tx.Atomic(kv.Add, []byte("balance/"+item.ID.Group), item.Body)
		}
		taken = len(items) // assigned, because the function may run again
		return nil
	}))
	fmt.Println(taken)
	// Output: 2
}

// The holders of a group keep a state with it, for example how far a conversation has come.
func ExampleQueue_Settle_state() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "chats", layer.Options{})
	must(err)
	defer q.Close(ctx)
	for _, body := range []string{"hello", "what is your name?"} {
		_, err := q.Enqueue(ctx, layer.Message{Group: "chat-1", Body: []byte(body)})
		must(err)
		claims, err := q.Receive(ctx, layer.ReceiveOptions{State: true})
		must(err)
		fmt.Printf("%q after %q\n", body, claims[0].State)
		state := []byte(body)
		must(q.Settle(ctx, layer.Settlement{Claim: claims[0], State: &state, FinishAll: true}))
	}
	// Output:
	// "hello" after ""
	// "what is your name?" after "hello"
}

// The figures of a queue.
func ExampleQueue_Stats() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	_, err = q.Enqueue(ctx,
		layer.Message{Group: "A", DedupID: "1"}, layer.Message{Group: "A"}, layer.Message{Group: "B"},
		layer.Message{Group: "later", Delay: time.Hour}, layer.Message{Group: "B", DedupID: "1"})
	must(err)
	_, err = q.Receive(ctx, layer.ReceiveOptions{Max: 1})
	must(err)
	s, err := q.Stats(ctx, layer.StatsOptions{})
	must(err)
	fmt.Println("messages:", s.Depth, "in flight:", s.InFlight, "delayed:", s.Delayed, "duplicates:", s.Duplicates)
	fmt.Println("groups ready:", s.ReadyGroups, "held:", s.HeldGroups, "delayed:", s.DelayedGroups)
	// Output:
	// messages: 4 in flight: 1 delayed: 1 duplicates: 1
	// groups ready: 1 held: 1 delayed: 1
}

// Why a message is not delivered, in words.
func ExampleAdmin_Why() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	sent, err := q.Enqueue(ctx, layer.Message{Group: "A"}, layer.Message{Group: "A"})
	must(err)
	_, err = q.Admin().PauseGroup(ctx, "A", layer.PauseOptions{By: "ann", Reason: "customer has moved"})
	must(err)
	why, err := q.Admin().Why(ctx, sent[1].ID, nil)
	must(err)
	for _, r := range why.Reasons {
		fmt.Println(r.Cause)
	}
	// Output:
	// group paused
	// behind
}

// Everything that waits in a group, however much.
func ExampleAdmin_AllItems() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	_, err = q.Enqueue(ctx, make([]layer.Message, 200)...)
	must(err)
	n := 0
	for _, err := range q.Admin().AllItems(ctx, "", nil) {
		must(err)
		n++
	}
	fmt.Println(n)
	// Output: 200
}

// Finished messages stay in the archive for as long as the configuration says, and can be enqueued again.
func ExampleAdmin_Replay() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{Config: layer.Config{Archive: 24 * time.Hour}})
	must(err)
	defer q.Close(ctx)
	_, err = q.Enqueue(ctx, layer.Message{Group: "A", Body: []byte("2 apples"), DedupID: "order-1"})
	must(err)
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
	must(err)
	must(q.Ack(ctx, claims[0]))
	for item, err := range q.Admin().AllArchived(ctx, layer.ArchiveOptions{Bodies: true}) {
		must(err)
		fmt.Println(item.DedupID, string(item.Body))
	}
	_, err = q.Admin().Replay(ctx, layer.ArchiveFilter{Group: layer.OnlyGroup("A")}, layer.ReplayOptions{})
	must(err)
	items, err := q.Peek(ctx, "A", 1, nil)
	must(err)
	fmt.Println(string(items[0].Body))
	// Output:
	// order-1 2 apples
	// 2 apples
}

// The configuration is stored with the queue; every handle follows a change within a second.
func ExampleAdmin_Configure() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, _, err := layer.Ensure(ctx, db, nil, "orders", layer.Options{})
	must(err)
	defer q.Close(ctx)
	config, version, err := q.Admin().Configure(ctx, func(c *layer.Config) {
		c.MaxAttempts = 5
		c.MaxRate = layer.Rate{Count: 10, Per: time.Second}
	})
	must(err)
	fmt.Println(version, config.MaxAttempts, config.MaxRate)
	// Output: 2 5 10/s
}

// A hook is told of each operation of a handle; here it sets a header, and prints the outcome.
func ExampleHook() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	hook := layer.Hook{
		Begin: func(ctx context.Context, o *layer.Operation) context.Context {
			for i := range o.Messages {
				o.SetHeader(i, "from", "the shop")
			}
			return ctx
		},
		End: func(_ context.Context, o *layer.Operation) { fmt.Println(o.Verb, o.Items, o.By, o.Err) },
	}
	q, err := layer.Create(ctx, db, nil, "orders", layer.Options{Hooks: []layer.Hook{hook}})
	if err != nil {
		panic(err)
	}
	sent, err := q.Enqueue(ctx, layer.Message{Group: "order-1", Body: []byte("paid")})
	if err != nil {
		panic(err)
	}
	if err := q.Admin().As("ann").Cancel(ctx, sent[0].ID); err != nil {
		panic(err)
	}
	// Output:
	// enqueue 1  <nil>
	// cancel 1 ann <nil>
}
