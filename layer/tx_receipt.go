package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// The form of each result in a receipt stands in this file, and nowhere else; for receipts see tx_once.go.

// receipt is the form of a result in a receipt. The zero value stores nothing: the result is then the finding of the
// last attempt which ran, because an attempt which meets the receipt does not run.
type receipt[T any] struct {
	pack   func(result T) tuple.Tuple
	unpack func(key, value []byte) (T, error) // key is the receipt's, for errors
}

// onceFor runs body in a transaction whose effect happens exactly once, and returns its result: after an unknown commit
// the result of the attempt which was applied, from its receipt. wrote says that body has done something which must not
// be done twice; otherwise body may run again, and no receipt is written.
func onceFor[T any](
	ctx context.Context, q *Queue, o kv.TxOptions, r receipt[T],
	body func(tx kv.Tx, a kv.Attempt) (result T, wrote bool, err error),
) (T, error) {
	var result, none T
	err := q.onceWith(ctx, o,
		func(tx kv.Tx, a kv.Attempt) ([]byte, error) {
			found, wrote, err := body(tx, a)
			if err != nil {
				return nil, err
			}
			result = found
			switch {
			case !wrote:
				return nil, nil
			case r.pack == nil:
				return []byte{}, nil
			}
			return r.pack(result).Pack(), nil
		},
		func(_ kv.Tx, key []byte, kept tuple.Tuple) (err error) {
			if r.unpack != nil {
				result, err = r.unpack(key, kept.Pack())
			}
			return err
		})
	if err != nil {
		return none, err
	}
	return result, nil
}

// skipReceipt is the form for the skipped item of a group: its index and random.
func skipReceipt(group string) receipt[ID] {
	return receipt[ID]{
		pack: func(id ID) tuple.Tuple { return tuple.Tuple{id.Index, id.Random} },
		unpack: func(key, value []byte) (ID, error) {
			d := decoder{rest: value}
			id := ID{Group: group, Index: d.int(), Random: d.uuid()}
			return id, d.end(key)
		},
	}
}

var holderReceipt = receipt[Holder]{
	pack: func(h Holder) tuple.Tuple { return tuple.Tuple{h.Owner, h.Token, int64(h.Outstanding)} },
	unpack: func(key, value []byte) (Holder, error) {
		d := decoder{rest: value}
		h := Holder{Owner: d.str(), Token: d.int(), Outstanding: int(d.int())}
		return h, d.end(key)
	},
}

var markReceipt = receipt[Mark]{
	pack: func(m Mark) tuple.Tuple { return tuple.Tuple{string(m.Status), m.By, m.Reason, millis(m.Since)} },
	unpack: func(key, value []byte) (Mark, error) {
		d := decoder{rest: value}
		m := Mark{Status: Status(d.str()), By: d.str(), Reason: d.str(), Since: fromMillis(d.int())}
		return m, d.end(key)
	},
}

// configured is the configuration after a change: as stored (document), and as read (config).
type configured struct {
	version  int64
	document string
	config   Config
}

// configReceipt is the form for a change of the configuration: the version and the document.
var configReceipt = receipt[configured]{
	pack: func(c configured) tuple.Tuple { return tuple.Tuple{c.version, c.document} },
	unpack: func(key, value []byte) (configured, error) {
		d := decoder{rest: value}
		version, document := d.int(), d.str()
		if err := d.end(key); err != nil {
			return configured{}, err
		}
		config, err := readConfig(key, document)
		return configured{version: version, document: document, config: config}, err
	},
}

var purgeReceipt = receipt[purged]{
	pack: func(s purged) tuple.Tuple {
		return tuple.Tuple{s.place.next, s.place.tail, s.done.Items, s.done.Kept, s.done.Forced}
	},
	unpack: func(key, value []byte) (s purged, err error) {
		d := decoder{rest: value}
		s.place = purgePlace{next: d.keyOrNil(), tail: d.keyOrNil()}
		s.done = PurgeReport{Items: d.int(), Kept: d.int(), Forced: d.int()}
		return s, d.end(key)
	},
}

// keyOrNil reads a key, or no bytes, which stand for no key.
func (d *decoder) keyOrNil() []byte {
	key := d.bytes()
	if len(key) == 0 {
		return nil
	}
	return key
}

// sweptReceipt is the form for a step of a redrive or a discard. The missing ids are a nested tuple of group, index,
// random, group, index, random …
var sweptReceipt = receipt[sweptStep]{
	pack: func(s sweptStep) tuple.Tuple {
		ended := int64(0)
		if s.ended {
			ended = 1
		}
		missing := make(tuple.Tuple, 0, 3*len(s.missing))
		for _, id := range s.missing {
			missing = append(missing, id.Group, id.Index, id.Random)
		}
		return tuple.Tuple{s.done, s.unreadable, int64(s.scanned), int64(s.ids), ended, s.last, missing}
	},
	unpack: func(key, value []byte) (s sweptStep, err error) {
		d := decoder{rest: value}
		s.done, s.unreadable, s.scanned, s.ids = d.int(), d.int(), int(d.int()), int(d.int())
		ended := d.int()
		d.check(ended == 0 || ended == 1, "neither ended nor not: %d", ended)
		s.ended, s.last = ended == 1, d.keyOrNil()
		d.list(func() { s.missing = append(s.missing, ID{Group: d.str(), Index: d.int(), Random: d.uuid()}) })
		return s, d.end(key)
	},
}

// appendResult appends the receipt's result of a receive: group and token of each claim. The items are read anew, see
// reload.
func (r *reception) appendResult(b []byte) []byte { return appendClaims(b, r.given()) }

// appendResult appends the receipt's result of an enqueue: the index of each message, or for a duplicate the whole id
// of the first message; or why the enqueue was refused. For example (7, 8) of two messages, (7, (A, 3, random)) if the
// second was a duplicate, ("full", A, 2, 100) if group A had no room for the two.
func (e *enqueuing) appendResult(b []byte) []byte {
	if e.full != nil {
		return tuple.Append(b, "full", e.full.Group, e.full.Adding, e.full.Max)
	}
	for i := range e.sent {
		if s := &e.sent[i]; s.Duplicate {
			b = tuple.AppendTuple(b, tuple.Tuple{s.ID.Group, s.ID.Index, s.ID.Random})
		} else {
			b = tuple.AppendInt(b, s.ID.Index)
		}
	}
	return b
}

// restore takes the result from a receipt: the attempt which landed may not be the last attempt which ran.
func (e *enqueuing) restore(t tuple.Tuple) error {
	d := decoder{rest: t.Pack()}
	e.full = nil
	if len(t) > 0 && t[0] == "full" {
		d.str()
		e.full = &FullError{Group: d.str(), Adding: d.int(), Max: d.int()}
	} else {
		d.check(len(t) == len(e.msgs), "it is of %d messages, not %d", len(t), len(e.msgs))
		e.sent = make([]Sent, len(e.msgs))
		for i := 0; i < len(e.sent) && d.more(); i++ {
			e.sent[i] = d.sent(ID{Group: e.msgs[i].Group, Random: e.randoms[i]})
		}
	}
	if err := d.left(); err != nil {
		return fmt.Errorf("%w: receipt of an enqueue %v: %w", ErrCorrupt, t, err)
	}
	return nil
}

// sent reads what became of a message: an index, which makes id the message's own, or the id of another message.
func (d *decoder) sent(id ID) Sent {
	if !d.follows(codeNested) {
		id.Index = d.int()
		return Sent{ID: id}
	}
	d.list(func() { id = ID{Group: d.str(), Index: d.int(), Random: d.uuid()} })
	return Sent{ID: id, Duplicate: true}
}
