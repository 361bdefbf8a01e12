package layer_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

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
