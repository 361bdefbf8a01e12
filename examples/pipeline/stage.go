package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// state is the facet: where a request has come to.
const state = "state"

// states are the states of a request, in their order. In the last one it is handed over, and finished.
var states = []string{"NEW", "PRICED", "PAID", "TICKETED"}

// openQueue opens the queue, or makes it: whichever process comes first.
func openQueue(ctx context.Context, db kv.DB) (*layer.Queue, error) {
	q, _, err := layer.Ensure(ctx, db, tuple.Append(nil, "pipeline", "queue"), "requests", layer.Options{
		Config: layer.Config{Facets: []string{state}, Views: state, GroupRequired: true},
	})
	return q, err
}

// request is a passenger's wish for a seat.
type request struct {
	Flight string `json:"flight"`
	Number int    `json:"number"` // among those of the flight, from 1 on
	Seat   string `json:"seat"`
}

// message makes the message that goes through all stages. The flight is the group.
func (r request) message() (layer.Message, error) {
	body, err := json.Marshal(r)
	return layer.Message{Group: r.Flight, Headers: map[string]string{state: states[0]}, Body: body}, err
}

// stage is what one process does.
type stage struct {
	from string        // the state of the requests
	next string        // their next state; "" = they are finished
	work time.Duration // for a request
}

func stageOf(from string) (stage, error) {
	for i, s := range states {
		if s == from && i+1 < len(states) {
			return stage{from: from, next: states[i+1]}, nil
		}
		if s == from {
			return stage{from: from}, nil
		}
	}
	return stage{}, fmt.Errorf("unknown state %q: there are %v", from, states)
}

func (s stage) template() layer.Template { return layer.Template{state: s.from} }

// entry is a line of a stage's book: one request that the stage has handled.
type entry struct {
	Number int   `json:"number"`
	Begun  int64 `json:"begun"` // nanoseconds, by the machine's clock
	Ended  int64 `json:"ended"`
}

// bookOf has the lines of a stage about a flight: ("pipeline", "book", state, flight, line).
func bookOf(from, flight string) kv.KeyRange {
	return kv.PrefixRange(tuple.Append(nil, "pipeline", "book", from, flight))
}

// handler does the stage's work, which may take long. It then writes the book's next line in the transaction that moves
// the request on. So each request is in the book of each stage once, whenever a process dies.
func (s stage) handler() worker.Handler {
	return worker.HandleCommit(
		func(ctx context.Context, d *worker.Delivery) (entry, error) {
			begun := time.Now()
			var r request
			if err := json.Unmarshal(d.Body, &r); err != nil {
				return entry{}, &worker.RejectError{Reason: "no request", Err: err}
			}
			select {
			case <-time.After(s.work): // a call of another service
			case <-ctx.Done():
				return entry{}, ctx.Err()
			}
			return entry{Number: r.Number, Begun: begun.UnixNano(), Ended: time.Now().UnixNano()}, nil
		},
		func(ctx context.Context, tx kv.Tx, d *worker.Delivery, e entry) error {
			// This process alone has a claim of the lane, so no other process writes these lines.
			book := bookOf(s.from, d.ID.Group).Selectors()
			last, err := tx.GetRange(book, kv.RangeOptions{Limit: 1, Reverse: true}).Wait(ctx)
			if err != nil {
				return fmt.Errorf("read book: %w", err)
			}
			line := int64(1)
			if len(last) > 0 {
				key, err := tuple.Unpack(last[0].Key)
				if err != nil {
					return fmt.Errorf("key of a line: %w", err)
				}
				n, ok := key[len(key)-1].(int64)
				if !ok {
					return fmt.Errorf("the key %s does not end in a line's number", key)
				}
				line = n + 1
			}
			value, err := json.Marshal(e)
			if err != nil {
				return err
			}
			tx.Set(tuple.Append(nil, "pipeline", "book", s.from, d.ID.Group, line), value)
			if s.next == "" {
				return nil // finished
			}
			return d.AdvanceTo(layer.Template{state: s.next})
		})
}
