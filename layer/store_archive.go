package layer

import (
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// The archive of a queue keeps, for as long as its configuration says, what was finished: acked, or taken. An item goes
// there in the transaction that finishes it, under its own id, so that a group's items lie together and in their order;
// its parts stay where they are. Beside them, each ack leaves one entry that names its items. The entries are in the
// order of completion: within a group exactly, across groups by the read versions of the acks. Listings by time and the
// sweep go by the entries.
//
// An ack does not read items, unless the queue has an archive: then it reads those that it finishes, beside its lock,
// and writes each again, and the entry.
//
// The value of an archived item is when and where it was completed, and then the item's value as it was:
//
//	byte 0       version: 1
//	uvarint      length of the tuple that follows, in bytes
//	tuple        (completed (ms), place, and index and random of the first item of its entry)
//	rest         the value of the item, see store_item.go
const archiveVersion = 1

// completion is where in the order of completion the items of one ack stand.
type completion struct {
	place  int64 // the read version of the ack, as indexes count
	index  int64 // of the first item
	random uuid.UUID
}

// archived is the value of an archived item.
type archived struct {
	completedMS int64
	at          completion
	item        []byte // the item's value
}

func (a *archived) pack() []byte {
	packed := tuple.Tuple{a.completedMS, a.at.place, a.at.index, a.at.random}.Pack()
	value := append(make([]byte, 0, 4+len(packed)+len(a.item)), archiveVersion)
	value = binary.AppendUvarint(value, uint64(len(packed)))
	return append(append(value, packed...), a.item...)
}

// unpackArchived takes the value of an archived item apart; item aliases value.
func unpackArchived(key, value []byte) (*archived, error) {
	if len(value) == 0 || value[0] != archiveVersion {
		return nil, corrupt(key, fmt.Errorf("archived item of unknown version"))
	}
	packed, item, ok := cutCounted(value[1:])
	if !ok {
		return nil, corrupt(key, fmt.Errorf("archived item cut short"))
	}
	a := &archived{item: item}
	t := keyDecoder{rest: packed}
	a.completedMS, a.at.place, a.at.index, a.at.random = t.int(), t.int(), t.int(), t.uuid()
	if t.err == nil && len(t.rest) > 0 {
		t.err = fmt.Errorf("%d bytes too many", len(t.rest))
	}
	if t.err != nil {
		return nil, corrupt(key, t.err)
	}
	return a, nil
}

// archiveEntry is the value of an entry: what one ack has finished.
type archiveEntry struct {
	completedMS int64
	group       string
	items       []delivered
}

func (e *archiveEntry) pack() []byte {
	t := make(tuple.Tuple, 2, 2+3*len(e.items))
	t[0], t[1] = e.completedMS, e.group
	for _, d := range e.items {
		t = append(t, d.index, d.random, d.parts)
	}
	return t.Pack()
}

func unpackArchiveEntry(key, value []byte) (*archiveEntry, error) {
	d := keyDecoder{rest: value}
	e := &archiveEntry{completedMS: d.int(), group: d.str()}
	for d.err == nil && len(d.rest) > 0 {
		e.items = append(e.items, delivered{index: d.int(), random: d.uuid(), parts: d.int()})
	}
	if d.err == nil && len(e.items) == 0 {
		d.err = fmt.Errorf("no items")
	}
	if d.err != nil {
		return nil, corrupt(key, d.err)
	}
	return e, nil
}
