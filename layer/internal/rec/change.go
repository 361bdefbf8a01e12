package rec

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// A row of changes tells subscriptions what a transaction has done to items. It is a tuple: the time of the transaction
// (ms), and for each change
//
//	kind, group, index, random   of the item. In a queue with facets a nested tuple of their values follows. If the
//	                             change gave the item other facets, a nested tuple of those before follows, too.
//	kind, group, n               of a purge: n items of the group are gone
//
// Example: an ack of two items of group A is (1700000000000, 1, "A", 7, r1, 1, "A", 8, r2).

const (
	// ChangePurge is the number of layer.ChangePurged.
	ChangePurge = 7
	// ChangeKinds is the number of kinds that are stored. A kind is the number of a layer.ChangeKind, from 0 on.
	ChangeKinds = 10
)

// Changes are changes of one kind to items of one group, in the order in which a transaction made them.
type Changes struct {
	Kind  int64 // a layer.ChangeKind
	Group string
	Items []Item   // none of a purge
	Was   []string // the packed facets of each item before the change; nil = the change leaves the facets as they are
	N     int64    // of a purge: how many items are gone
}

// ChangeSize bounds the bytes of a change in its row, without the name of the group and the facets.
const ChangeSize = 2 + 2 + 9 + 17

// AppendItem appends the change of Items[i] to a row.
func (c *Changes) AppendItem(row []byte, i int) []byte {
	d := &c.Items[i]
	row = tuple.AppendString(tuple.AppendInt(row, c.Kind), c.Group)
	row = tuple.AppendUUID(tuple.AppendInt(row, d.Index), d.Random)
	if d.Facets == "" {
		return row
	}
	row = AppendNested(row, d.Facets)
	if c.Was == nil || c.Was[i] == "" || c.Was[i] == d.Facets {
		return row
	}
	return AppendNested(row, c.Was[i])
}

// AppendPurge appends a purge to a row.
func (c *Changes) AppendPurge(row []byte) []byte {
	row = tuple.AppendString(tuple.AppendInt(row, c.Kind), c.Group)
	return tuple.AppendInt(row, c.N)
}

// Change is one change of a row.
type Change struct {
	Kind   int64 // a layer.ChangeKind
	Group  string
	Index  int64 // of the item, as Random; zero of a purge
	Random uuid.UUID
	N      int64 // 1; of a purge: how many items are gone
	// Facets are the packed facets of the item, and Was those before the change; "" = none are stored.
	Facets, Was string
}

// UnpackChanges reads the value of a row of changes. ms is the time of its transaction. The row has at least one
// change.
func UnpackChanges(key, value []byte) (ms int64, all []Change, err error) {
	d := Decode(value)
	ms = d.Int()
	for d.More() {
		c := Change{Kind: d.Int(), Group: d.Text(), N: 1}
		n := d.Int()
		d.Check(c.Kind >= 0 && c.Kind < ChangeKinds, "unknown kind %d", c.Kind)
		if c.Kind == ChangePurge {
			c.N = n
		} else {
			c.Index, c.Random = n, d.UUID()
			c.Facets = d.facets()
			c.Was = d.facets()
		}
		all = append(all, c)
	}
	d.Check(len(all) > 0, "no changes")
	return ms, all, d.End(key)
}

// facets reads the facets of a change, and packs them; "" = none follow.
func (d *Decoder) facets() string {
	if !d.Follows(CodeNested) {
		return ""
	}
	var values []string
	d.List(func() { values = append(values, d.Text()) })
	d.Check(len(values) > 0, "no facets")
	return PackStrings(values)
}

// Position is how far a subscription has come: all rows of changes before the key From are done, and the first Done
// changes of the row at From. From is a key without the prefix of the queue.
type Position struct {
	From []byte
	Done int64
}

// Equal reports whether two positions are the same.
func (p Position) Equal(q Position) bool { return bytes.Equal(p.From, q.From) && p.Done == q.Done }

// Cursor is the value of a cursor key: how far a subscription has come, and the token of the subscription's holder.
type Cursor struct {
	Token uuid.UUID
	Position
}

// Pack returns the value: the tuple (token, from, done).
func (c *Cursor) Pack() []byte {
	return tuple.Tuple{c.Token, c.From, c.Done}.Pack()
}

// UnpackCursor reads the value of a cursor key.
func UnpackCursor(key, value []byte) (c Cursor, err error) {
	d := Decode(value)
	c = Cursor{Token: d.UUID(), Position: Position{From: d.Bytes(), Done: d.Int()}}
	d.Check(len(c.From) > 0 && c.Done >= 0, "no place")
	return c, d.End(key)
}

// Reader is the value of a reader key: the handle that reads a subscription, and the end of its lease. Only one handle
// at a time reads a subscription.
type Reader struct {
	Token uuid.UUID // a number of the holder's own, see ReaderToken
	Owner string    // of the handle
	EndMS int64     // when the lease ends
}

// readerMark is the first four bytes of a token that has the lease in the next four bytes, in milliseconds.
const readerMark = 0x6c656173

// ReaderToken makes the token of a holder from a random number and its lease. Other processes read the lease from the
// token (Reader.Lease), and so can tell an end that is wrong.
func ReaderToken(random uuid.UUID, lease time.Duration) uuid.UUID {
	binary.BigEndian.PutUint32(random[:4], readerMark)
	binary.BigEndian.PutUint32(random[4:8], uint32(lease.Milliseconds()))
	return random
}

// Lease returns the lease that the token tells; 0 = the token tells none, because an earlier version made it. The lease
// may lie outside the limits.
func (r *Reader) Lease() time.Duration {
	if binary.BigEndian.Uint32(r.Token[:4]) != readerMark {
		return 0
	}
	return time.Duration(binary.BigEndian.Uint32(r.Token[4:8])) * time.Millisecond
}

// Pack returns the value: the tuple (token, owner, end (ms)).
func (r *Reader) Pack() []byte { return tuple.Tuple{r.Token, r.Owner, r.EndMS}.Pack() }

// UnpackReader reads the value of a reader key.
func UnpackReader(key, value []byte) (r Reader, err error) {
	d := Decode(value)
	r = Reader{Token: d.UUID(), Owner: d.Text(), EndMS: d.Int()}
	return r, d.End(key)
}
