package layer

import (
	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// The archive of a queue keeps finished items, acked or taken, for as long as the configuration says. An item goes
// there in the transaction which finishes the item, under its own id, so that a group's items lie together and in
// order; the item's parts stay where they are. Beside the items, each ack or take leaves an entry which names its
// items. The entries are in the order of completion: within a group exactly, across groups by the read versions of the
// acks and takes. Listings by time and the sweep go by the entries.
//
// An ack does not read items, unless the queue has an archive: then the ack reads the finished items, beside its lock,
// and writes each item again, and the entry.

// completion is the position of the items of an ack or take in the order of completion.
type completion struct {
	place  int64 // the read version of the ack or take, as indexes count
	index  int64 // of the first item
	random uuid.UUID
}

// archived is the value of an archived item. The tuple of the head is
//
//	(completed (ms), place, and index and random of the first item of its entry)
type archived struct {
	completedMS int64
	at          completion
	item        []byte // the item's value
}

func (a *archived) pack() []byte {
	return packHead(tuple.Tuple{a.completedMS, a.at.place, a.at.index, a.at.random}, a.item)
}

// unpackArchived splits the value of an archived item; item aliases value.
func unpackArchived(key, value []byte) (*archived, error) {
	head, item := openHead("archived item", value)
	a := &archived{
		completedMS: head.int(), at: completion{place: head.int(), index: head.int(), random: head.uuid()}, item: item,
	}
	return a, head.end(key)
}

// archiveEntry is the value of an entry: the items finished by an ack or a take.
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
	d := decoder{rest: value}
	e := &archiveEntry{completedMS: d.int(), group: d.str()}
	for d.more() {
		e.items = append(e.items, delivered{index: d.int(), random: d.uuid(), parts: d.int()})
	}
	d.check(len(e.items) > 0, "no items")
	return e, d.end(key)
}
