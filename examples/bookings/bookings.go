package main

import (
	"context"
	"fmt"
	"strings"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// office keeps its own rows in the database of the queue:
//
//	("bookings", "request", number)         tuple (flight, passenger, answer), with the answer "" until there is one
//	("bookings", "seat", flight, place)     tuple (number), the request that the seat is sold to
type office struct {
	db    kv.DB
	queue *layer.Queue
	seats int // on each flight
}

// refused is the answer when a flight is full.
const refused = "refused"

type request struct {
	flight    string
	passenger string
	answer    string // a place, refused, or "" = not yet
}

func requestKey(number int64) []byte { return tuple.Append(nil, "bookings", "request", number) }

func seatKey(flight string, place int) []byte {
	return tuple.Append(nil, "bookings", "seat", flight, place)
}

func (r request) pack() []byte { return tuple.Append(nil, r.flight, r.passenger, r.answer) }

func unpackRequest(value []byte) (request, error) {
	t, err := tuple.Unpack(value)
	if err != nil {
		return request{}, fmt.Errorf("request: %w", err)
	}
	var r request
	var ok [3]bool
	if len(t) == 3 {
		r.flight, ok[0] = t[0].(string)
		r.passenger, ok[1] = t[1].(string)
		r.answer, ok[2] = t[2].(string)
	}
	if ok != [3]bool{true, true, true} {
		return request{}, fmt.Errorf("request has another form: %s", t)
	}
	return r, nil
}

// book records a request and enqueues it in one transaction: either both are there afterwards, or neither. The
// flight is the group, so requests for one flight are served in the order in which they came.
func (o *office) book(ctx context.Context, number int64, flight, passenger string) error {
	return o.queue.Once(ctx, func(tx kv.Tx) error {
		tx.Set(requestKey(number), request{flight: flight, passenger: passenger}.pack())
		_, err := o.queue.EnqueueTx(ctx, tx, layer.Message{Group: flight, Body: tuple.Append(nil, number)})
		return err
	})
}

// assign is the worker's handler: it gives the request the first free seat, in the transaction that acks the
// message. If that does not commit, the seat is not sold and the message comes again; if it does, the message
// is gone. So a crash at any point sells no seat twice and forgets no request.
func (o *office) assign(ctx context.Context, tx kv.Tx, d *worker.Delivery) error {
	number, _, err := tuple.DecodeInt(d.Body)
	if err != nil {
		return fmt.Errorf("message: %w", err)
	}
	value, err := tx.Get(requestKey(number)).Wait(ctx)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	r, err := unpackRequest(value)
	if err != nil {
		return err
	}
	sold, err := o.soldOn(ctx, tx, r.flight)
	if err != nil {
		return err
	}
	r.answer = refused
	for place, owner := range sold {
		if owner == free {
			tx.Set(seatKey(r.flight, place), tuple.Append(nil, number))
			r.answer = seatName(place)
			break
		}
	}
	tx.Set(requestKey(number), r.pack())
	return nil
}

// free stands for the request of a seat that is not sold.
const free = -1

// soldOn returns, for each place of a flight, the request that has it.
func (o *office) soldOn(ctx context.Context, tx kv.ReadTx, flight string) ([]int64, error) {
	rows, err := tx.GetRange(kv.PrefixRange(tuple.Append(nil, "bookings", "seat", flight)).Selectors(),
		kv.RangeOptions{}).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read seats: %w", err)
	}
	sold := make([]int64, o.seats)
	for place := range sold {
		sold[place] = free
	}
	for _, row := range rows {
		place, err := lastInt(row.Key)
		if err != nil {
			return nil, err
		}
		if place < 0 || place >= int64(o.seats) {
			return nil, fmt.Errorf("flight %s has no place %d", flight, place)
		}
		if sold[place], _, err = tuple.DecodeInt(row.Value); err != nil {
			return nil, fmt.Errorf("seat: %w", err)
		}
	}
	return sold, nil
}

// lastInt returns the last element of a key, which is a number.
func lastInt(key []byte) (int64, error) {
	t, err := tuple.Unpack(key)
	if err != nil {
		return 0, fmt.Errorf("key: %w", err)
	}
	n, ok := t[len(t)-1].(int64)
	if !ok {
		return 0, fmt.Errorf("key %s does not end in a number", t)
	}
	return n, nil
}

// Each row has two seats on either side of the aisle.
const abreast = 4

func seatName(place int) string {
	return fmt.Sprintf("%d%c", place/abreast+1, 'A'+rune(place%abreast))
}

// ledger is what the database says in the end, at one moment.
type ledger struct {
	requests map[int64]request
	sold     map[string][]int64 // by flight: the request that has each place, or free
}

func (o *office) audit(ctx context.Context, flights []string) (ledger, error) {
	var l ledger
	_, err := kv.Run(ctx, o.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		l = ledger{requests: make(map[int64]request), sold: make(map[string][]int64)}
		rows, err := tx.Snapshot().GetRange(kv.PrefixRange(tuple.Append(nil, "bookings", "request")).Selectors(),
			kv.RangeOptions{}).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		for _, row := range rows {
			number, err := lastInt(row.Key)
			if err != nil {
				return err
			}
			if l.requests[number], err = unpackRequest(row.Value); err != nil {
				return err
			}
		}
		for _, flight := range flights {
			if l.sold[flight], err = o.soldOn(ctx, tx.Snapshot(), flight); err != nil {
				return err
			}
		}
		return nil
	})
	return l, err
}

// verdict is the sum of a ledger.
type verdict struct {
	requests, seated, refused int
}

// prove checks the promises. Each request has one answer. Each sold seat belongs to the one request that names it. No
// request was refused while a seat of its flight stayed free. Earlier requests are served first, so the refused
// requests of a flight are the last ones.
func (l ledger) prove(want int) (verdict, error) {
	v := verdict{requests: len(l.requests)}
	if v.requests != want {
		return v, fmt.Errorf("%d requests are recorded, %d were made", v.requests, want)
	}
	taken := make(map[string]int64)
	firstRefused, lastSeated := make(map[string]int64), make(map[string]int64)
	for number, r := range l.requests {
		switch r.answer {
		case "":
			return v, fmt.Errorf("request %d has no answer", number)
		case refused:
			v.refused++
			if first, ok := firstRefused[r.flight]; !ok || number < first {
				firstRefused[r.flight] = number
			}
		default:
			v.seated++
			lastSeated[r.flight] = max(lastSeated[r.flight], number)
			seat := r.flight + " " + r.answer
			if other, twice := taken[seat]; twice {
				return v, fmt.Errorf("seat %s is sold to %d and to %d", seat, other, number)
			}
			taken[seat] = number
		}
	}
	sold := 0
	for flight, places := range l.sold {
		for place, number := range places {
			if number == free {
				if first, ok := firstRefused[flight]; ok {
					return v, fmt.Errorf("request %d was refused although %s %s is free", first, flight, seatName(place))
				}
				continue
			}
			sold++
			if taken[flight+" "+seatName(place)] != number {
				return v, fmt.Errorf("seat %s %s belongs to request %d, which does not have it", flight, seatName(place), number)
			}
		}
		if first, ok := firstRefused[flight]; ok && first < lastSeated[flight] {
			return v, fmt.Errorf("on %s request %d was refused and the later %d seated", flight, first, lastSeated[flight])
		}
	}
	if sold != v.seated {
		return v, fmt.Errorf("%d seats are sold, %d requests are seated", sold, v.seated)
	}
	return v, nil
}

// picture draws a flight from nose to tail: one line a side, the aisle between them.
func (l ledger) picture(flight string) string {
	places := l.sold[flight]
	var s strings.Builder
	for column := abreast - 1; column >= 0; column-- {
		fmt.Fprintf(&s, "    %c ", 'A'+rune(column))
		for place := column; place < len(places); place += abreast {
			if places[place] == free {
				s.WriteString(" ·")
			} else {
				s.WriteString(" ■")
			}
		}
		s.WriteByte('\n')
		if column == abreast/2 {
			s.WriteByte('\n')
		}
	}
	return s.String()
}
