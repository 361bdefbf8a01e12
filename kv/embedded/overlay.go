package embedded

import (
	"slices"
	"sort"

	"fdbfifo/kv"
)

// overlay holds the writes of a transaction, like FoundationDB's WriteMap. It cuts the key space into segments, each
// either one written key or a range that is unmodified or cleared, with a write conflict or without, readable or not.
// An entry describes its own key and, until the next entry, the keys behind it.
//
// The zero value is an untouched key space. Entries are kept in sorted chunks, so that a small transaction is one
// slice and a large one still inserts in O(log n).
type overlay struct {
	chunks [][]*entry
	slab   []entry
}

// clone returns an overlay that shares nothing with o which either of the two may change.
func (o *overlay) clone() overlay {
	out := overlay{chunks: make([][]*entry, len(o.chunks))}
	for i, chunk := range o.chunks {
		slab := make([]entry, len(chunk))
		out.chunks[i] = make([]*entry, len(chunk), max(8, len(chunk)+1))
		for j, e := range chunk {
			slab[j] = *e
			slab[j].ops.more = slices.Clone(e.ops.more)
			out.chunks[i][j] = &slab[j]
		}
	}
	return out
}

// maxChunk bounds what one insert moves.
const maxChunk = 128

type entry struct {
	padded string // the key and a zero byte
	ops    opStack

	conflict, unreadable bool // of the key itself; equal to following if ops is empty
	following            rangeFlags
}

// rangeFlags describe the keys between an entry's key and the next entry.
type rangeFlags struct{ cleared, conflict, unreadable bool }

func (e *entry) key() string { return e.padded[:len(e.padded)-1] }

// conflicts reports whether all from the entry's key up to the next entry is in a write conflict range.
func (e *entry) conflicts() bool { return e.conflict && e.following.conflict }

// pos is the place of an entry.
type pos struct{ chunk, index int }

func (o *overlay) empty() bool { return len(o.chunks) == 0 }

func (o *overlay) at(p pos) *entry { return o.chunks[p.chunk][p.index] }

// floor returns the place of the last entry with key <= key. There always is one: the first has the empty key.
func (o *overlay) floor(key string) pos {
	c := 0
	if len(o.chunks) > 1 {
		c = sort.Search(len(o.chunks), func(i int) bool { return o.chunks[i][0].key() > key }) - 1
	}
	chunk := o.chunks[c]
	if n := len(chunk) - 1; chunk[n].key() <= key {
		return pos{c, n}
	}
	return pos{c, sort.Search(len(chunk), func(i int) bool { return chunk[i].key() > key }) - 1}
}

func (o *overlay) next(p pos) (pos, bool) {
	if p.index+1 < len(o.chunks[p.chunk]) {
		return pos{p.chunk, p.index + 1}, true
	}
	if p.chunk+1 < len(o.chunks) {
		return pos{p.chunk + 1, 0}, true
	}
	return pos{}, false
}

func (o *overlay) prev(p pos) (pos, bool) {
	if p.index > 0 {
		return pos{p.chunk, p.index - 1}, true
	}
	if p.chunk > 0 {
		return pos{p.chunk - 1, len(o.chunks[p.chunk-1]) - 1}, true
	}
	return pos{}, false
}

func (o *overlay) newEntry() *entry {
	if len(o.slab) == cap(o.slab) {
		o.slab = make([]entry, 0, min(max(4, 2*cap(o.slab)), maxChunk))
	}
	o.slab = o.slab[:len(o.slab)+1]
	return &o.slab[len(o.slab)-1]
}

// touch makes the first entry, that of the empty key.
func (o *overlay) touch() {
	if len(o.chunks) == 0 {
		e := o.newEntry()
		e.padded = "\x00"
		o.chunks = append(o.chunks, append(make([]*entry, 0, 8), e))
	}
}

// insertAfter puts e directly behind p.
func (o *overlay) insertAfter(p pos, e *entry) {
	chunk := append(o.chunks[p.chunk], nil)
	copy(chunk[p.index+2:], chunk[p.index+1:])
	chunk[p.index+1] = e
	o.chunks[p.chunk] = chunk
	if len(chunk) <= maxChunk {
		return
	}
	// A chunk that grew at its end is one of many keys in order: leave it nearly full.
	half := maxChunk / 2
	if p.index+1 == maxChunk {
		half = maxChunk - 8
	}
	right := append(make([]*entry, 0, maxChunk+1), chunk[half:]...)
	clear(chunk[half:])
	o.chunks[p.chunk] = chunk[:half]
	o.chunks = append(o.chunks, nil)
	copy(o.chunks[p.chunk+2:], o.chunks[p.chunk+1:])
	o.chunks[p.chunk+1] = right
}

// boundary makes sure that an entry begins at the key and returns its place.
func (o *overlay) boundary(padded string) pos {
	key := padded[:len(padded)-1]
	p := o.floor(key)
	before := o.at(p)
	if before.key() == key {
		return p
	}
	e := o.newEntry()
	*e = entry{
		padded: padded, conflict: before.following.conflict, unreadable: before.following.unreadable,
		following: before.following,
	}
	o.insertAfter(p, e)
	return o.floor(key)
}

// replace puts the entries in, in order, in place of all those with begin <= key < end. An entry begins at end.
func (o *overlay) replace(begin, end string, with ...*entry) {
	first, last := o.floor(begin), o.floor(end)
	if first.chunk == last.chunk {
		chunk := o.chunks[first.chunk]
		if last.index-first.index == len(with) {
			copy(chunk[first.index:], with)
			return
		}
	}
	// The empty key's entry is never removed without another in its place, so a chunk remains.
	tail := append([]*entry(nil), o.chunks[last.chunk][last.index:]...)
	rest := append([][]*entry(nil), o.chunks[last.chunk+1:]...)
	o.chunks[first.chunk] = append(o.chunks[first.chunk][:first.index:first.index], with...)
	joined := append(o.chunks[first.chunk], tail...)
	o.chunks = o.chunks[:first.chunk]
	for len(joined) > maxChunk {
		o.chunks = append(o.chunks, append(make([]*entry, 0, maxChunk+1), joined[:maxChunk]...))
		joined = joined[maxChunk:]
	}
	if len(joined) > 0 {
		o.chunks = append(o.chunks, append(make([]*entry, 0, maxChunk+1), joined...))
	}
	o.chunks = append(o.chunks, rest...)
}

// mutate adds one operation to the key.
func (o *overlay) mutate(padded string, m op, addConflict bool) {
	o.touch()
	key := padded[:len(padded)-1]
	p := o.floor(key)
	e := o.at(p)
	stampedOp := m.kind == kv.SetVersionstampedKey || m.kind == kv.SetVersionstampedValue
	dependent := m.kind != opSet && !stampedOp

	if e.key() != key {
		n := o.newEntry()
		*n = entry{
			padded: padded, conflict: addConflict || e.following.conflict,
			unreadable: e.following.unreadable || stampedOp, following: e.following,
		}
		if e.following.cleared && dependent {
			n.ops.push(op{kind: opSet})
			n.ops.coalesce(m)
		} else {
			n.ops.push(m)
		}
		o.insertAfter(p, n)
		return
	}

	wasCleared := e.ops.empty() && e.following.cleared
	wasUnreadable := e.unreadable
	e.conflict = e.conflict || addConflict
	e.unreadable = wasUnreadable || stampedOp
	switch {
	case !wasUnreadable && (m.kind == opSet || m.kind == kv.SetVersionstampedValue):
		e.ops.reset(m)
	case wasCleared && dependent:
		e.ops.push(op{kind: opSet})
		e.ops.coalesce(m)
	case !e.unreadable && !e.ops.empty():
		e.ops.coalesce(m)
	default:
		e.ops.push(m)
	}
}

// clear makes a range empty. Both of its keys are given padded.
func (o *overlay) clear(begin, end string, addConflict bool) {
	o.touch()
	r := unpadded(begin, end)
	o.boundary(end)
	o.boundary(begin)
	if addConflict {
		e := o.newEntry()
		*e = entry{padded: begin, conflict: true, following: rangeFlags{cleared: true, conflict: true}}
		o.replace(r.begin, r.end, e)
		return
	}
	// The conflicts of the writes that were there stay.
	var with []*entry
	add := func(padded string, conflict bool) {
		if n := len(with); n > 0 && with[n-1].following.conflict == conflict {
			return
		}
		e := o.newEntry()
		*e = entry{padded: padded, conflict: conflict, following: rangeFlags{cleared: true, conflict: conflict}}
		with = append(with, e)
	}
	for p, ok := o.floor(r.begin), true; ok; p, ok = o.next(p) {
		e := o.at(p)
		if e.key() >= r.end {
			break
		}
		if e.ops.empty() {
			add(e.padded, e.following.conflict)
			continue
		}
		add(e.padded, e.conflict)
		if n, ok := o.next(p); e.padded < r.end && (!ok || o.at(n).key() != e.padded) {
			add(e.padded+"\x00", e.following.conflict)
		}
	}
	o.replace(r.begin, r.end, with...)
}

// addConflict adds a write conflict range. Both of its keys are given padded. A bound within a range that has been
// added before makes no entry, as in FoundationDB's client: ApproximateSize counts a read once for each entry below it.
func (o *overlay) addConflict(begin, end string) {
	o.touch()
	if !o.at(o.floor(end[:len(end)-1])).conflicts() {
		o.boundary(end)
	}
	p := o.floor(begin[:len(begin)-1])
	if !o.at(p).conflicts() {
		p = o.boundary(begin)
	}
	for ok := true; ok; p, ok = o.next(p) {
		e := o.at(p)
		if e.key() >= end[:len(end)-1] {
			return
		}
		e.conflict, e.following.conflict = true, true
	}
}

// forget makes the range unmodified and unreadable: where a versionstamped key may come to lie.
func (o *overlay) forget(r keyRange) {
	o.touch()
	o.boundary(r.end + "\x00")
	o.boundary(r.begin + "\x00")
	e := o.newEntry()
	*e = entry{padded: r.begin + "\x00", unreadable: true, following: rangeFlags{unreadable: true}}
	o.replace(r.begin, r.end, e)
}
