package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// The service keeps its own rows in the database of the queue:
//
//	("shop", "queue", …)                  the queue's keys
//	("shop", "order", id)                 JSON of an order
//	("shop", "place", customer)           tuple (n), the number of accepted orders of the customer
//	("shop", "ledger", customer, line)    JSON of an entry, a booking of the customer, from line 1 on
type shop struct {
	db    kv.DB
	queue *layer.Queue
}

// order is what a customer has asked for.
type order struct {
	ID       string `json:"id"` // the client's: a request that is sent again has the same
	Customer string `json:"customer"`
	Article  string `json:"article"`
	Cents    int64  `json:"cents"`
	// Place is the order's place among those of the customer, from 1 on, as the API has accepted them.
	Place  int64  `json:"place"`
	Status status `json:"status"`
}

type status string

// The states of an order.
const (
	accepted status = "accepted"
	booked   status = "booked"
)

// entry is a line of the ledger.
type entry struct {
	Order   string `json:"order"`
	Place   int64  `json:"place"`
	Cents   int64  `json:"cents"`
	Balance int64  `json:"balance"` // of the customer, with this entry
}

func orderKey(id string) []byte { return tuple.Append(nil, "shop", "order", id) }

func placeKey(customer string) []byte { return tuple.Append(nil, "shop", "place", customer) }

func ledgerKey(customer string, line int64) []byte {
	return tuple.Append(nil, "shop", "ledger", customer, line)
}

func ledgerOf(customer string) kv.KeyRange {
	return kv.PrefixRange(tuple.Append(nil, "shop", "ledger", customer))
}

// openShop opens the queue, or makes it: whichever process comes first.
func openShop(ctx context.Context, db kv.DB) (*shop, error) {
	prefix := tuple.Append(nil, "shop", "queue")
	queue, differ, err := layer.Ensure(ctx, db, prefix, "orders", layer.Options{Config: layer.Config{
		Lease:       leaseTime,
		DedupWindow: 24 * time.Hour, // a client may repeat a request for so long
		MaxAttempts: 10,
		// A forgotten group would put all customers into one line.
		GroupRequired: true,
		Retry:         layer.RetryPolicy{Base: 200 * time.Millisecond, Max: time.Minute},
		MaxWaiting:    10_000, // of one customer; more are told to come back
	}})
	for _, d := range differ {
		// A setting that an operator has changed since stays.
		slog.Info("another setting", "name", d.Setting, "stored", d.Stored, "wanted", d.Wanted)
	}
	return &shop{db, queue}, err
}

// errOtherOrder: the id is another order's.
var errOtherOrder = errors.New("another order has this id")

// place records an order and enqueues its message, in one transaction: both are there afterwards, or neither. The
// customer is the group, so a customer's orders are booked in the order in which they were accepted. A request that is
// sent again changes nothing: the order's id is the message's dedup id. The result is the order as the database has it.
func (s *shop) place(ctx context.Context, asked order) (o order, duplicate bool, err error) {
	err = s.queue.Once(ctx, func(tx kv.Tx) error {
		o = asked
		sent, err := s.queue.EnqueueTx(ctx, tx, layer.Message{Group: o.Customer, Body: []byte(o.ID), DedupID: o.ID})
		if err != nil {
			return err
		}
		if duplicate = sent[0].Duplicate; duplicate {
			o, err = s.readOrder(ctx, tx, asked.ID)
			if err == nil && (o.Customer != asked.Customer || o.Article != asked.Article || o.Cents != asked.Cents) {
				err = errOtherOrder
			}
			return err
		}
		last, err := tx.Get(placeKey(o.Customer)).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read place: %w", err)
		}
		var place int64
		if last != nil {
			if place, _, err = tuple.DecodeInt(last); err != nil {
				return fmt.Errorf("place: %w", err)
			}
		}
		o.Place, o.Status = place+1, accepted
		tx.Set(placeKey(o.Customer), tuple.Append(nil, o.Place))
		return setJSON(tx, orderKey(o.ID), o)
	})
	return o, duplicate, err
}

// errNoOrder: there is no order of that id.
var errNoOrder = errors.New("no such order")

func (s *shop) readOrder(ctx context.Context, tx kv.ReadTx, id string) (o order, err error) {
	value, err := tx.Get(orderKey(id)).Wait(ctx)
	if err != nil {
		return o, fmt.Errorf("read order: %w", err)
	}
	if value == nil {
		return o, errNoOrder
	}
	return o, json.Unmarshal(value, &o)
}

// catalog is what is sold.
var catalog = map[string]bool{"apples": true, "pears": true, "plums": true}

// book is the workers' handler: it writes the ledger's next line, in the transaction that acks the message. If the
// transaction does not commit, nothing is booked and the message comes again. If it commits, the message is gone. An
// order for an article that is not sold becomes a dead letter, and the customer's next order continues.
func (s *shop) book(ctx context.Context, tx kv.Tx, d *worker.Delivery) error {
	o, err := s.readOrder(ctx, tx, string(d.Body))
	if err != nil {
		return err
	}
	if !catalog[o.Article] {
		return &worker.RejectError{Reason: fmt.Sprintf("%q is not sold", o.Article)}
	}
	line, balance, err := lastLine(ctx, tx, o.Customer)
	if err != nil {
		return err
	}
	e := entry{Order: o.ID, Place: o.Place, Cents: o.Cents, Balance: balance + o.Cents}
	if err := setJSON(tx, ledgerKey(o.Customer, line+1), e); err != nil {
		return err
	}
	o.Status = booked
	return setJSON(tx, orderKey(o.ID), o)
}

// lastLine is the number of a customer's last entry, and the balance there; 0 if there is none.
func lastLine(ctx context.Context, tx kv.ReadTx, customer string) (line, balance int64, err error) {
	rows, err := tx.GetRange(ledgerOf(customer).Selectors(), kv.RangeOptions{Limit: 1, Reverse: true}).Wait(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("read ledger: %w", err)
	}
	if len(rows) == 0 {
		return 0, 0, nil
	}
	line, e, err := readLine(rows[0])
	return line, e.Balance, err
}

// readLine reads a row of the ledger.
func readLine(row kv.KV) (line int64, e entry, err error) {
	key, err := tuple.Unpack(row.Key)
	if err != nil {
		return 0, e, fmt.Errorf("key of an entry: %w", err)
	}
	line, ok := key[len(key)-1].(int64)
	if !ok {
		return 0, e, fmt.Errorf("the key %s does not end in a line's number", key)
	}
	if err := json.Unmarshal(row.Value, &e); err != nil {
		return 0, e, fmt.Errorf("entry %s: %w", key, err)
	}
	return line, e, nil
}

func setJSON(tx kv.Tx, key []byte, value any) error {
	data, err := json.Marshal(value)
	if err == nil {
		tx.Set(key, data)
	}
	return err
}
