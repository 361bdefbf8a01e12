package layer

import (
	"bytes"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// This file owns the keys: nothing else in the package builds or takes apart one. All keys of a queue begin
// with the prefix given to Open and the tuple (queue); the rest is a tuple too:
//
//	name     key after the queue's prefix            value
//	meta     ("meta", field)                         tuple. Fields: see config.go
//	item     ("item", group, index, random)          envelope and body, see envelope.go; random is a UUID
//	part     ("part", group, index, random, n)       bytes: the n-th continuation of a large body, n from 0
//	lock     ("lock", group)                         tuple: kind, token, owner, lease end (ms), outstanding items
//	ready    ("ready", shard, index, group)          empty, or tuple (attempts) if the head has failed before
//	timer    ("timer", due (ms), group)              tuple: kind, index of the head
//	attempt  ("attempt", group, index, random)       tuple: count, first (ms), last (ms), last error
//	request  ("request", index, random)              reserved: staging
//	grant    ("grant", random, group)                reserved: staging
//	wake     ("wake", random)                        reserved: staging
//	dedup    ("dedup", scope, id)                    reserved: de-duplication
//	dead     ("dead", group, index, random)          reserved: dead letters
//	receipt  ("receipt", random)                     tuple: time (ms), then the result of the operation
//	count    ("count", name, slot)                   int64, little-endian, changed by atomic add only
//
// index is a hybrid clock: max(index of the group's tail + 1, read version + offset). It grows within a group
// and compares ages across groups. The shard of a ready hint is 0.
//
// A lock of kind "delay" is held by nobody: it keeps a group from being claimed until its lease end. That makes
// every hint of the group stale while the delay lasts, as with a holder's lock.
//
// Who may write what, and what that conflicts with, is said at each operation.
const (
	nameMeta    = "meta"
	nameItem    = "item"
	namePart    = "part"
	nameLock    = "lock"
	nameReady   = "ready"
	nameTimer   = "timer"
	nameAttempt = "attempt"
	nameReceipt = "receipt"
	nameCount   = "count"
)

// subspace builds the keys of one queue.
type subspace struct {
	prefix []byte
}

func newSubspace(prefix []byte, queue string) subspace {
	return subspace{prefix: tuple.AppendString(append([]byte(nil), prefix...), queue)}
}

// all is every key of the queue: the tuples that extend (queue).
func (s subspace) all() kv.KeyRange {
	return kv.KeyRange{Begin: s.with(0x00), End: s.with(0xff)}
}

func (s subspace) with(b byte) []byte {
	return append(append(make([]byte, 0, len(s.prefix)+1), s.prefix...), b)
}

func (s subspace) start(name string, extra int) []byte {
	k := make([]byte, 0, len(s.prefix)+len(name)+2+extra)
	return tuple.AppendString(append(k, s.prefix...), name)
}

func (s subspace) startGroup(name, group string, extra int) []byte {
	return tuple.AppendString(s.start(name, len(group)+2+extra), group)
}

// below is the range of all tuples that extend the packed tuple k, which it takes over.
func below(k []byte) kv.KeyRange {
	end := append(k[:len(k):len(k)], 0xff)
	return kv.KeyRange{Begin: append(k, 0x00), End: end}
}

func (s subspace) section(name string) kv.KeyRange { return below(s.start(name, 1)) }

func (s subspace) meta(field string) []byte {
	return tuple.AppendString(s.start(nameMeta, len(field)+2), field)
}

func (s subspace) itemKey(name string, id ID, extra int) []byte {
	k := s.startGroup(name, id.Group, 9+17+extra)
	return tuple.AppendUUID(tuple.AppendInt(k, id.Index), id.Random)
}

func (s subspace) item(id ID) []byte              { return s.itemKey(nameItem, id, 0) }
func (s subspace) attempt(id ID) []byte           { return s.itemKey(nameAttempt, id, 0) }
func (s subspace) items(group string) kv.KeyRange { return below(s.startGroup(nameItem, group, 1)) }
func (s subspace) parts(id ID) kv.KeyRange        { return below(s.itemKey(namePart, id, 1)) }
func (s subspace) lock(group string) []byte       { return s.startGroup(nameLock, group, 0) }
func (s subspace) receipt(id uuid.UUID) []byte    { return tuple.AppendUUID(s.start(nameReceipt, 17), id) }
func (s subspace) part(id ID, n int) []byte {
	return tuple.AppendInt(s.itemKey(namePart, id, 9), int64(n))
}

func (s subspace) ready(index int64, group string) []byte {
	k := tuple.AppendInt(s.start(nameReady, 1+9+len(group)+2), 0)
	return tuple.AppendString(tuple.AppendInt(k, index), group)
}

func (s subspace) timer(dueMS int64, group string) []byte {
	return tuple.AppendString(tuple.AppendInt(s.start(nameTimer, 9+len(group)+2), dueMS), group)
}

// timersUntil is the range of the timers due at nowMS or before.
func (s subspace) timersUntil(nowMS int64) kv.KeyRange {
	return kv.KeyRange{
		Begin: s.section(nameTimer).Begin,
		End:   tuple.AppendInt(s.start(nameTimer, 9), nowMS+1),
	}
}

func (s subspace) count(name string, slot int64) []byte {
	return tuple.AppendInt(tuple.AppendString(s.start(nameCount, len(name)+2+2), name), slot)
}

// parsedKey is a key of the queue taken apart. Only the fields that its name has are set.
type parsedKey struct {
	name  string
	field string // meta: the field; count: the counter's name
	group string
	index int64 // item, part, attempt, ready; timer: due (ms); count: slot
	id    uuid.UUID
	n     int64 // part
}

func (p parsedKey) itemID() ID { return ID{Group: p.group, Index: p.index, Random: p.id} }

// parse takes apart a key below the queue's prefix; any other key, or one of a shape that is not in the table,
// is an error.
func (s subspace) parse(key []byte) (parsedKey, error) {
	var p parsedKey
	rest, ok := bytes.CutPrefix(key, s.prefix)
	if !ok || len(rest) == 0 || rest[0] == 0xff {
		return p, fmt.Errorf("key %s is not one of this queue", tuple.Printable(key))
	}
	d := keyDecoder{rest: rest}
	p.name = d.str()
	switch p.name {
	case nameMeta:
		p.field = d.str()
	case nameItem, nameAttempt:
		p.group, p.index, p.id = d.str(), d.int(), d.uuid()
	case namePart:
		p.group, p.index, p.id, p.n = d.str(), d.int(), d.uuid(), d.int()
	case nameLock:
		p.group = d.str()
	case nameReady:
		d.int() // the shard
		p.index, p.group = d.int(), d.str()
	case nameTimer:
		p.index, p.group = d.int(), d.str()
	case nameReceipt:
		p.id = d.uuid()
	case nameCount:
		p.field, p.index = d.str(), d.int()
	default:
		if d.err == nil {
			d.err = fmt.Errorf("unknown name %q", p.name)
		}
	}
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	if d.err != nil {
		return p, fmt.Errorf("key %s: %w", tuple.Printable(key), d.err)
	}
	return p, nil
}

// parseItem is parse for the key of an item of the group whose range is of.
func (s subspace) parseItem(key []byte, group string, of kv.KeyRange) (parsedKey, error) {
	// What all of the range begins with: its first key without the last byte.
	rest, ok := bytes.CutPrefix(key, of.Begin[:len(of.Begin)-1])
	if !ok {
		return s.parse(key)
	}
	d := keyDecoder{rest: rest}
	p := parsedKey{name: nameItem, group: group, index: d.int(), id: d.uuid()}
	if d.err != nil || len(d.rest) > 0 {
		return s.parse(key) // says what is wrong with it
	}
	return p, nil
}

// keyDecoder reads tuple elements one after the other and keeps the first error.
type keyDecoder struct {
	rest []byte
	err  error
}

func (d *keyDecoder) str() (v string) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeString(d.rest)
	}
	return v
}

func (d *keyDecoder) int() (v int64) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeInt(d.rest)
	}
	return v
}

func (d *keyDecoder) uuid() (v uuid.UUID) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeUUID(d.rest)
	}
	return v
}
