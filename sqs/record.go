package sqs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// record is what SQS stores about a queue in addition to the layer's queue. It decides whether the queue exists. The
// server does not serve a queue of the layer without a record. It creates the layer's queue of a record if that is
// missing.
//
// The keys are below the tuple (0, "sqs"), where no queue of the layer is, because their keys begin with their names.
//
//	(0, "sqs", "queue", NAME)            the record, as JSON
//	(0, "sqs", "source", DEAD, SOURCE)   the queue SOURCE names DEAD in its RedrivePolicy
//	(0, "sqs", "task", SOURCE, STARTED)  a move task, as JSON
//	(0, "sqs", "receipts")               the key of the receipt handles, as JSON
type record struct {
	ID         uuid.UUID         `json:"id"` // another one when the queue is re-created
	Attributes map[string]string `json:"attributes,omitempty"`
	Tags       map[string]string `json:"tags,omitempty"`
	Created    int64             `json:"created"`           // s
	Modified   int64             `json:"modified"`          // s
	Deleted    int64             `json:"deleted,omitempty"` // ms; the queue is gone, or going
	Purged     int64             `json:"purged,omitempty"`  // ms; the last PurgeQueue
	Behind     bool              `json:"behind,omitempty"`  // the layer's queue is not yet configured as Attributes say
	Cleared    bool              `json:"cleared,omitempty"` // nothing is left of the deleted queue
}

// clone is a copy whose maps may be changed.
func (r record) clone() record {
	r.Attributes, r.Tags = maps.Clone(r.Attributes), maps.Clone(r.Tags)
	if r.Attributes == nil {
		r.Attributes = make(map[string]string)
	}
	if r.Tags == nil {
		r.Tags = make(map[string]string)
	}
	return r
}

// maxRecord bounds a record, because it is one value.
const maxRecord = 90_000 // bytes

func (s *Server) key(elements ...any) []byte {
	return tuple.Append(append([]byte(nil), s.options.Prefix...), append([]any{0, "sqs"}, elements...)...)
}

func (s *Server) recordKey(name string) []byte { return s.key("queue", name) }

// readRecord reads a record; there is none if its ID is zero.
func (s *Server) readRecord(ctx context.Context, tx kv.ReadTx, name string) (record, error) {
	value, err := tx.Get(s.recordKey(name)).Wait(ctx)
	if err != nil {
		return record{}, fmt.Errorf("read record of %q: %w", name, err)
	}
	if value == nil {
		return record{}, nil
	}
	var r record
	if err := json.Unmarshal(value, &r); err != nil {
		return record{}, fmt.Errorf("sqs: record of %q: %w", name, err)
	}
	return r, nil
}

// live reports whether the queue is there.
func (r record) live() bool { return r.ID != uuid.Nil && r.Deleted == 0 }

// changeRecord changes the record of a live queue in a transaction. change may run several times, each time on the
// stored record. If it returns an error, nothing is changed.
func (s *Server) changeRecord(ctx context.Context, name string, change func(r *record) error) (record, error) {
	var after record
	_, err := kv.Run(ctx, s.db, kv.TxOptions{Call: "change attributes"}, func(tx kv.Tx, _ kv.Attempt) error {
		before, err := s.readRecord(ctx, tx, name)
		if err != nil {
			return err
		}
		if !before.live() {
			return noQueue()
		}
		after = before.clone()
		if err := change(&after); err != nil {
			return err
		}
		return s.writeRecord(tx, name, before, after)
	})
	return after, err
}

// writeRecord writes a record, and the entry of the queue among the sources of its dead letter queue.
func (s *Server) writeRecord(tx kv.Tx, name string, before, after record) error {
	value, err := json.Marshal(after)
	if err != nil {
		return err
	}
	if len(value) > maxRecord {
		return invalid("One or more parameters are invalid. Reason: attributes and tags have more than %d bytes.",
			maxRecord)
	}
	tx.Set(s.recordKey(name), value)
	was, is := before.deadLetterQueue(), after.deadLetterQueue()
	if was != "" && was != is {
		tx.Clear(s.key("source", was, name))
	}
	if is != "" && was != is {
		tx.Set(s.key("source", is, name), nil)
	}
	return nil
}

// deadLetterQueue is the name of the queue's dead letter queue; "" = none.
func (r record) deadLetterQueue() string {
	policy, err := parseRedrivePolicy(r.Attributes[redrivePolicy], json.Unmarshal)
	if err != nil || r.Deleted != 0 {
		return ""
	}
	return policy.queue
}

// names are the names of a page of keys (0, "sqs", KIND…, NAME): behind after, which begin with prefix, at most
// limit.
func (s *Server) names(ctx context.Context, after, prefix string, limit int, kind ...any) ([]string, []record, error) {
	base := s.key(kind...)
	r := kv.PrefixRange(base)
	if from := tuple.AppendString(append([]byte(nil), base...), prefix); prefix != "" {
		from = from[:len(from)-1] // without the end of the text
		r = kv.PrefixRange(from)
	}
	if after != "" {
		from := kv.KeyAfter(tuple.AppendString(append([]byte(nil), base...), after))
		r.Begin = slices.MaxFunc([][]byte{from, r.Begin}, bytes.Compare)
	}
	var rows []kv.KV
	_, err := kv.Run(ctx, s.db, kv.TxOptions{Call: "list queues"}, func(tx kv.Tx, _ kv.Attempt) error {
		var err error
		rows, err = tx.Snapshot().GetRange(r.Selectors(), kv.RangeOptions{Limit: limit}).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read records: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	names, records := make([]string, len(rows)), make([]record, len(rows))
	for i, row := range rows {
		if names[i], _, err = tuple.DecodeString(row.Key[len(base):]); err != nil {
			return nil, nil, fmt.Errorf("sqs: key of a name: %w", err)
		}
		if len(row.Value) == 0 {
			continue
		}
		if err := json.Unmarshal(row.Value, &records[i]); err != nil {
			return nil, nil, fmt.Errorf("sqs: record of %q: %w", names[i], err)
		}
	}
	return names, records, nil
}

// seconds is a time as the attributes of queues have it.
func seconds(t time.Time) int64 { return t.Unix() }
