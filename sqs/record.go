package sqs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	ID            uuid.UUID         `json:"id"` // another one when the queue is re-created
	Attributes    map[string]string `json:"attributes,omitempty"`
	Tags          map[string]string `json:"tags,omitempty"`
	Created       int64             `json:"created"`                 // s
	Modified      int64             `json:"modified"`                // s
	Deleted       int64             `json:"deleted,omitempty"`       // ms; the queue is gone, or going
	Purged        int64             `json:"purged,omitempty"`        // ms; the last PurgeQueue
	Purging       bool              `json:"purging,omitempty"`       // that purge is not known to have ended
	PurgedVersion int64             `json:"purgedVersion,omitempty"` // of the database then; 0 = not known
	Behind        bool              `json:"behind,omitempty"`        // the layer's queue is not yet as Attributes say
	Cleared       bool              `json:"cleared,omitempty"`       // nothing is left of the deleted queue
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

// maxSettings bounds the attributes and tags of a queue in its record, which is one value of at most 100,000 bytes. The
// fields that the server itself adds have less than 1,000 bytes. So there is always room for them: a server can delete
// each queue that a client could create.
const maxSettings = 90_000 // bytes of JSON

// checkSize returns an error if the attributes and tags are too large. The caller must call it for each change of them
// that a client asks for, and for no other change.
func (r record) checkSize() error {
	value, err := json.Marshal([]map[string]string{r.Attributes, r.Tags})
	if err != nil {
		return err
	}
	if len(value) > maxSettings {
		return invalid("One or more parameters are invalid. Reason: attributes and tags have more than %d bytes.",
			maxSettings)
	}
	return nil
}

func (s *Server) key(elements ...any) []byte {
	return tuple.Append(append([]byte(nil), s.options.Prefix...), append([]any{0, "sqs"}, elements...)...)
}

func (s *Server) recordKey(name string) []byte { return s.key("queue", name) }

// errUnreadable is wrapped by the error of a record that cannot be read.
var errUnreadable = errors.New("sqs: the record of the queue cannot be read")

// unpackRecord reads the stored value of a record; nil is the zero record.
func unpackRecord(name string, value []byte) (r record, err error) {
	if value == nil {
		return r, nil
	}
	if err = json.Unmarshal(value, &r); err == nil && r.ID == uuid.Nil {
		err = errors.New("it has no id")
	}
	if err != nil {
		return record{}, fmt.Errorf("%w: queue %q: %w", errUnreadable, name, err)
	}
	return r, nil
}

// readRecord reads a record; there is none if its ID is zero. The error wraps errUnreadable if there is a record that
// cannot be read.
func (s *Server) readRecord(ctx context.Context, tx kv.ReadTx, name string) (record, error) {
	value, err := tx.Get(s.recordKey(name)).Wait(ctx)
	if err != nil {
		return record{}, fmt.Errorf("read record of %q: %w", name, err)
	}
	return unpackRecord(name, value)
}

// isNews reports whether the log does not have the reason yet why the server leaves something out. subject says what.
func (s *Server) isNews(subject string, why error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.told[subject] == why.Error()
	s.told[subject] = why.Error()
	return !known
}

// live reports whether the queue is there.
func (r record) live() bool { return r.ID != uuid.Nil && r.Deleted == 0 }

// changeRecord changes the record of a live queue in a transaction. change may run several times, each time on the
// stored record. If it returns an error, nothing is changed.
func (s *Server) changeRecord(ctx context.Context, name string, change func(r *record) error) (record, error) {
	var after record // what the last attempt has written
	_, err := kv.Run(ctx, s.db, kv.TxOptions{Call: "change attributes"}, func(tx kv.Tx, a kv.Attempt) error {
		before, err := s.readRecord(ctx, tx, name)
		switch {
		case err != nil:
			return err
		case a.MaybeCommitted && !after.live() && before.ID == after.ID && !before.live():
			return nil // an earlier attempt has deleted the queue
		case !before.live():
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

// writeRecord writes a record, and the entry of the queue among the sources of its dead letter queue. It accepts any
// size: see checkSize.
func (s *Server) writeRecord(tx kv.Tx, name string, before, after record) error {
	value, err := json.Marshal(after)
	if err != nil {
		return err
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

// namesPage bounds the rows that names reads in a transaction: 10 MB with the largest records.
const namesPage = 100

// names are the names of a page of keys (0, "sqs", KIND…, NAME): behind after, which begin with prefix, at most limit.
// There are no more if they are fewer. A key or a record that cannot be read is left out: then the name has the zero
// record, and the log has the reason.
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
	var names []string
	var records []record
	for len(names) < limit {
		size := min(limit-len(names), namesPage)
		rows, err := s.rows(ctx, "list queues", r, size)
		if err != nil {
			return nil, nil, err
		}
		for _, row := range rows {
			name, _, err := tuple.DecodeString(row.Key[len(base):])
			if err != nil {
				if key := tuple.Printable(row.Key); s.isNews("key "+key, err) {
					s.options.Logger.Warn("sqs: a key cannot be read, and is left out", "key", key, "err", err)
				}
				continue
			}
			var found record
			if kind[0] == "queue" {
				if found, err = unpackRecord(name, row.Value); err != nil && s.isNews("record "+name, err) {
					s.options.Logger.Warn("sqs: the record of a queue cannot be read, and the queue is left out",
						"queue", name, "err", err)
				}
			}
			names, records = append(names, name), append(records, found)
		}
		if len(rows) < size {
			break
		}
		r.Begin = kv.KeyAfter(rows[size-1].Key)
	}
	return names, records, nil
}

// rows reads the first rows of a range. call names the purpose.
func (s *Server) rows(ctx context.Context, call string, r kv.KeyRange, limit int) (rows []kv.KV, err error) {
	_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: call}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		rows, err = tx.Snapshot().GetRange(r.Selectors(), kv.RangeOptions{Limit: limit}).Wait(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", call, err)
		}
		return nil
	})
	return rows, err
}

// seconds is a time as the attributes of queues have it.
func seconds(t time.Time) int64 { return t.Unix() }
