package layer

import (
	"bytes"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// A row of changes is a tuple: the time of its transaction (ms), and for each change
//
//	kind, group, index, random     of the item; then, in a queue with facets, a nested tuple of their values
//	kind, group, n                 of a purge: n items of the group are gone
//
// For example an ack of two items of group A: (1700000000000, 1, "A", 7, r1, 1, "A", 8, r2).

// ChangeKind is what has happened to an item.
type ChangeKind int

// The kinds. The numbers are stored.
const (
	ChangeEnqueued     ChangeKind = iota // a new message, or an archived item enqueued anew by Replay
	ChangeFinished                       // acked, or taken
	ChangeDeadLettered                   // failed for good, or past retention
	ChangeRedriven                       // a dead letter is in its group again; to the tail: under the ID's new index
	ChangeDiscarded                      // a dead letter was deleted
	ChangeCancelled                      // an operator has removed the waiting item
	ChangeExpired                        // past retention, and dropped
	ChangePurged                         // a purge has removed items of the group: Change.Items says how many
	ChangeAdvanced                       // the holder has rewritten the item in its place
	changeKinds
)

var changeKindNames = []string{
	"enqueued", "finished", "dead_lettered", "redriven", "discarded", "cancelled", "expired", "purged", "advanced",
}

func (k ChangeKind) String() string { return nameOf(k, changeKindNames) }

// Change is something that has happened to an item, in the order of commits. A Change has no body, and of the headers
// only the facets: the item may be gone by the time the change is read.
type Change struct {
	Kind  ChangeKind
	ID    ID        // of a purge: only the group
	Items int       // 1; of a purge: how many items of the group are gone
	At    time.Time // of the transaction, by the clock of its handle
	// Facets, in a queue with facets, has the values that the item had, of an advance those that it was given. nil of a
	// purge. Shared by nobody.
	Facets map[string]string

	facets string // packed
}

// changed is changes of a single kind to items of a single group, made one after the other by one transaction.
type changed struct {
	kind  ChangeKind
	group string
	items []delivered // none of a purge
	n     int         // only of a purge: how many items
}

// changeSize is how many bytes a change takes in its row, at most, beside the group's name.
const changeSize = 2 + 2 + 9 + 17

// appendItem appends a change to a row.
func (c *changed) appendItem(row []byte, d delivered) []byte {
	row = tuple.AppendString(tuple.AppendInt(row, int64(c.kind)), c.group)
	row = tuple.AppendUUID(tuple.AppendInt(row, d.index), d.random)
	if d.facets == "" {
		return row
	}
	return appendNested(row, d.facets)
}

// appendPurge appends a purge to a row.
func (c *changed) appendPurge(row []byte) []byte {
	row = tuple.AppendString(tuple.AppendInt(row, int64(c.kind)), c.group)
	return tuple.AppendInt(row, int64(c.n))
}

// unpackChanges reads a row of changes.
func unpackChanges(key, value []byte) (ms int64, all []Change, err error) {
	d := decoder{rest: value}
	ms = d.int()
	for d.more() {
		c := Change{Kind: ChangeKind(d.int()), ID: ID{Group: d.str(), Index: d.int()}, Items: 1, At: fromMillis(ms)}
		d.check(c.Kind >= 0 && c.Kind < changeKinds, "unknown kind %d", c.Kind)
		if c.Kind == ChangePurged {
			c.ID.Index, c.Items = 0, int(c.ID.Index)
		} else {
			c.ID.Random = d.uuid()
			if d.follows(codeNested) {
				var values []string
				d.list(func() { values = append(values, d.str()) })
				d.check(len(values) > 0, "no facets")
				c.facets = packStrings(values)
			}
		}
		all = append(all, c)
	}
	d.check(len(all) > 0, "no changes")
	return ms, all, d.end(key)
}

// position is how far a subscription has come: everything before the key from is done, and of the row at from so many
// changes. The key counts from the first byte behind the queue's prefix.
type position struct {
	from []byte
	done int64
}

func (p position) equal(q position) bool { return bytes.Equal(p.from, q.from) && p.done == q.done }

// progress is the value of a cursor: a subscription's place, and the token of its holder.
type progress struct {
	token uuid.UUID
	position
}

func (p *progress) pack() []byte {
	return tuple.Tuple{p.token, p.from, p.done}.Pack()
}

func unpackProgress(key, value []byte) (p progress, err error) {
	d := decoder{rest: value}
	p = progress{token: d.uuid(), position: position{from: d.bytes(), done: d.int()}}
	d.check(len(p.from) > 0 && p.done >= 0, "no place")
	return p, d.end(key)
}

// reader is the value of a subscription's reader: who holds it, and until when.
type reader struct {
	token uuid.UUID
	owner string
	endMS int64
}

func (r *reader) pack() []byte { return tuple.Tuple{r.token, r.owner, r.endMS}.Pack() }

func unpackReader(key, value []byte) (r reader, err error) {
	d := decoder{rest: value}
	r = reader{token: d.uuid(), owner: d.str(), endMS: d.int()}
	return r, d.end(key)
}
