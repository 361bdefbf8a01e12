package main

import (
	"context"
	"encoding/json"
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// ledger is the content of the service's database. No process may use the service while it is read.
type ledger struct {
	orders  map[string]order
	entries map[string][]entry // by customer, in the order of the lines
	waiting int64              // messages
	dead    int64              // dead letters
}

// audit reads the ledger, page by page: 5,000 orders do not fit into a transaction's five seconds for sure.
func (s *shop) audit(ctx context.Context) (ledger, error) {
	l := ledger{orders: make(map[string]order), entries: make(map[string][]entry)}
	for row, err := range kv.Rows(ctx, s.db, kv.PrefixRange(tuple.Append(nil, "shop", "order"))) {
		if err != nil {
			return l, err
		}
		var o order
		if err := json.Unmarshal(row.Value, &o); err != nil {
			return l, fmt.Errorf("order: %w", err)
		}
		l.orders[o.ID] = o
	}
	for row, err := range kv.Rows(ctx, s.db, kv.PrefixRange(tuple.Append(nil, "shop", "ledger"))) {
		if err != nil {
			return l, err
		}
		key, err := tuple.Unpack(row.Key)
		if err != nil {
			return l, fmt.Errorf("key of an entry: %w", err)
		}
		customer, ok := key[len(key)-2].(string)
		if !ok {
			return l, fmt.Errorf("the key %s names no customer", key)
		}
		_, e, err := readLine(row)
		if err != nil {
			return l, err
		}
		l.entries[customer] = append(l.entries[customer], e)
	}
	stats, err := s.queue.Stats(ctx, layer.StatsOptions{})
	l.waiting, l.dead = stats.Depth, stats.Dead
	return l, err
}

// verdict is what a ledger says of the promises. All but Orders have to be 0.
type verdict struct {
	Orders  int `json:"orders"`
	Missing int `json:"missing"` // accepted, and neither booked nor waiting nor dead
	Doubled int `json:"doubled"` // entries of an order beyond the first, or of no order at all
	// OutOfOrder is entries behind one of a later order of the customer, or of a wrong balance. A dead letter that was
	// redriven has been overtaken, and counts.
	OutOfOrder int `json:"out_of_order"`
}

// prove holds the ledger to the promises. told are the ids of the orders that a client was told to be accepted.
func (l ledger) prove(told []string) verdict {
	v := verdict{Orders: len(l.orders)}
	times := make(map[string]int)
	for customer, entries := range l.entries {
		place, balance := int64(0), int64(0)
		for _, e := range entries {
			if o, ok := l.orders[e.Order]; !ok || o.Customer != customer {
				v.Doubled++
			} else if times[e.Order]++; times[e.Order] > 1 {
				v.Doubled++
			}
			balance += e.Cents
			if e.Place < place || e.Balance != balance {
				v.OutOfOrder++
			}
			place, balance = e.Place, e.Balance
		}
	}
	v.Missing = max(0, len(l.orders)-len(times)-int(l.waiting)-int(l.dead))
	for _, id := range told {
		if _, ok := l.orders[id]; !ok {
			v.Missing++
		}
	}
	return v
}

func (v verdict) err() error {
	if v.Missing+v.Doubled+v.OutOfOrder > 0 {
		return fmt.Errorf("the ledger is wrong: %d missing, %d doubled, %d out of order",
			v.Missing, v.Doubled, v.OutOfOrder)
	}
	return nil
}
