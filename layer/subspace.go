package layer

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// This file owns the keys: no other file of the package builds a key or takes a key apart. All keys of a queue begin
// with the prefix given to Open and the tuple (queue); the rest is a tuple too:
//
//	name     key after the queue's prefix            value
//	meta     ("meta", field)                         tuple. Fields: see below
//	item     ("item", group, index, random)          rec.Envelope and body; random is a UUID
//	part     ("part", group, index, random, n)       bytes: the n-th continuation of a large body, n from 0
//	lock     ("lock", group)                         tuple: token, mark or nil, holding or none: see rec.Record;
//	                                                mark is nested: "pause" or "halt", who, reason, since (ms);
//	                                                holding is nested: kind, token, owner, end (ms), items; then, of a
//	                                                claim: since (ms), and its beat if a heartbeat keeps the claim
//	mark     ("mark", group)                         empty: the group's lock has a mark
//	ready    ("ready", shard, index, group)          empty, or tuple (failures of the head)
//	timer    ("timer", due (ms), group),             tuple: kind (of a lock, or "head"), index of the head
//	         ("timer", (shard), due (ms), group)     the same, in the shards from 1 on; see retro, too
//	         ("timer", due (ms), handle)             tuple: "beat", last move of the heartbeat (ms; 0 = not known)
//	beat     ("beat", handle)                        tuple: due (ms), owner, and 1 if the handle is being ended
//	held     ("held", handle, group)                 as a timer, instead of it: a claim by the handle's heartbeat
//	state    ("state", group)                        bytes: the state of the group; never empty
//	pace     ("pace", group)                         tuple: us, part, of (rec.Pace): used up to us + part/of (µs)
//	attempt  ("attempt", group, index, random)       tuple: count, first, last (ms), last error, begin (ms)
//	archive  ("archive", group, index, random)       when it was finished, then the item's value: rec.Archived
//	archived ("archived", place, index, random)      tuple: completed (ms), group; index, random, parts of each item
//	request  ("request", index, random)              tuple: owner, groups wanted, deadline (ms)
//	reqgroup ("reqgroup", group, random)             as of request: one that waits for this group alone
//	grant    ("grant", random, group)                tuple: token
//	wake     ("wake", random)                        int64, little-endian, changed by atomic add; watched
//	dedup    ("dedup", "queue", id),                 tuple: group, index, random of the accepted message,
//	         ("dedup", "group", group, id)           until (ms; 0 = while the message is in the queue), clock
//	purged   ("purged", group)                       tuple: clock, when (ms) of the last step of a purge of the group
//	dead     ("dead", group, index, random)          the failure, then the item's value: rec.DeadLetter
//	repeat   ("repeat", receive id)                   tuple: time (ms), then lane, token of each claim that was given
//	receipt  ("receipt", random)                     tuple: time (ms), attempt of the transaction, clock
//	change   ("change", offset, stamp, n)            tuple: time (ms), then each change: rec.Changes
//	cursor   ("cursor", subscription)                tuple: holder's token, place: key, changes done of the row
//	reader   ("reader", subscription)                tuple: holder's token, owner, lease end (ms)
//	count    ("count", name, slot)                   int64, little-endian, changed by atomic add only
//
// A queue with facets (store_lane.go) has further keys. Of a lane that is no whole group:
//
//	lane     ("lane", group, view, values …, index, random)  empty: the item belongs to the lane
//	lock     ("lock", group, view, values …)         as of a group, and so for mark and grant
//	open     ("open", view, shard, values …, index, group)   as a ready hint
//	due      ("due", view, values …, due (ms), group)  as a timer; from shard 1 on the shard as ("timer") has it
//	kept     ("kept", group, holder, lane, index)    as a ready hint, of any lane
//	reqgroup ("reqgroup", group, view, values …, random)   as of request: one that waits for this lane alone
//	reqlane  ("reqlane", view, values …, since (ms), random)  as of request: one for any lane of a template
//
// An unordered queue (store_hold.go) has these keys too, for its free lanes, which have the view 0 and no values. And:
//
//	hold     ("hold", group, index, random)          as a lock: the item is claimed by itself, or delayed
//	due      ("due", 0, due (ms), group, index, random)  as a timer: of a hold
//
// A queue with a lease for each item (group_hold.go) has the same keys, except those of free lanes. Its timer of a hold
// is
//
//	timer    ("timer", due (ms), group, index, random)  as a timer; from shard 1 on the shard as ("timer") has it
//
// In kept, holder and lane are nested tuples, (view, values …), or () for the whole group. A kept key is a hint of the
// lane that was moved aside, because the lock of the holder, an intersecting lane, makes the hint useless. The release
// of the lock puts the hint back.
//
// index is a hybrid clock: max(index of the group's tail + 1, read version + offset). It grows within a group and
// compares ages across groups. The index of a request is the read version + offset, and so is the place in archived.
// The shard of a ready hint or a timer is a hash of the group, modulo the number of shards, see store_lane.go.
//
// A holding of kind "claim" has an owner that works on its items. One of kind "delay" has no owner: the group cannot be
// claimed until its end. As with a claim, every hint of the group is stale while the delay lasts. One of kind "grant"
// keeps a group for the handle whose random is its owner, until the handle accepts or the short lease ends.
//
// A lock with a mark and no holding keeps the group from all receives. It has no end and no timer. Together with a
// claim the mark takes effect when the claim ends.
//
// The stamp of a change is the versionstamp of its transaction, so changes lie in the order of commits. The offset is
// the queue's: after a restore into a cluster with lower versions new changes still come behind old ones. n tells apart
// the rows of one transaction, in the order of the calls.
//
// The random of request, reqgroup, reqlane, grant and wake is the handle's: a handle has one request at a time, and one
// for each group, lane and template that receives of the handle wait for. The names reqgroup and reqlane lie right
// before request, so that a single range read finds the oldest requests, and whether there are requests of other kinds.
// since is when the handle began to wait, by the handle's clock: it decides who is woken first, nothing else.
//
// The comment of each operation says which keys it may write, and its conflicts.
const (
	nameMeta     = "meta"
	nameItem     = "item"
	namePart     = "part"
	nameLock     = "lock"
	nameMark     = "mark"
	nameState    = "state"
	namePace     = "pace"
	nameReady    = "ready"
	nameTimer    = "timer"
	nameBeat     = "beat"
	nameHeld     = "held"
	nameAttempt  = "attempt"
	nameDead     = "dead"
	nameArchive  = "archive"
	nameArchived = "archived"
	nameDedup    = "dedup"
	namePurged   = "purged"
	nameNamed    = "reqgroup"
	nameByLane   = "reqlane"
	nameRequest  = "request"
	nameGrant    = "grant"
	nameWake     = "wake"
	nameRepeat   = "repeat"
	nameReceipt  = "receipt"
	nameChange   = "change"
	nameCursor   = "cursor"
	nameReader   = "reader"
	nameCount    = "count"
)

// subspace builds the keys of one queue, and takes them apart. Its methods read and write nothing: each returns a key,
// the beginning of keys, or a range of keys. A parameter extra is how many bytes the caller will append to the
// beginning.
type subspace struct {
	prefix []byte
	shards *sharding  // the shards of ready hints and timers (store_lane.go); set when the queue is opened
	plan   lanes.Plan // which lanes the groups of the queue have; set when the queue is opened
	fixed  *fixedKeys
	room   *room // of a transaction; nil = each key has memory of its own
}

// fixedKeys are keys that nearly every transaction needs. They are made once, and must not be changed.
type fixedKeys struct {
	dropped  kv.KeyRange // the key in meta that is there while the queue is being dropped
	requests kv.KeyRange // the result of subspace.requests
}

// room is memory for the keys of a transaction: a few pieces instead of one for each key. Only one goroutine may use a
// room. Memory that was taken is not taken again, so a key may be kept.
type room struct{ left []byte }

// roomPiece is enough for the keys of most transactions, or for half of them.
const roomPiece = 512

// take returns an empty slice with capacity n. r may be nil: then the slice has memory of its own.
func (r *room) take(n int) []byte {
	if r == nil || n > roomPiece/4 {
		return make([]byte, 0, n)
	}
	if n > len(r.left) {
		r.left = make([]byte, roomPiece)
	}
	k := r.left[:0:n]
	r.left = r.left[n:]
	return k
}

// newSubspace returns the subspace of a queue. Its plan is that of a queue in which each group is one lane.
func newSubspace(prefix []byte, queue string) subspace {
	s := subspace{prefix: tuple.AppendString(append([]byte(nil), prefix...), queue), shards: newSharding(1)}
	s.fixed = &fixedKeys{
		dropped:  s.single(s.meta(metaDropped)),
		requests: kv.KeyRange{Begin: s.section(nameNamed).Begin, End: s.section(nameRequest).End},
	}
	return s
}

// all returns the range of all keys of the queue: the tuples that extend (queue).
func (s subspace) all() kv.KeyRange {
	return kv.KeyRange{Begin: s.with(0x00), End: s.with(0xff)}
}

// with returns the queue's prefix with one more byte.
func (s subspace) with(b byte) []byte {
	return append(append(make([]byte, 0, len(s.prefix)+1), s.prefix...), b)
}

// start returns the beginning of all keys with a name. extra is how many more bytes the caller will append.
func (s subspace) start(name string, extra int) []byte {
	k := s.room.take(len(s.prefix) + len(name) + 2 + extra)
	return tuple.AppendString(append(k, s.prefix...), name)
}

// startGroup returns the beginning of all keys with a name and a group, or another text in the place of the group.
func (s subspace) startGroup(name, group string, extra int) []byte {
	return tuple.AppendString(s.start(name, len(group)+2+extra), group)
}

// startUUID returns the beginning of all keys with a name and a UUID.
func (s subspace) startUUID(name string, id uuid.UUID, extra int) []byte {
	return tuple.AppendUUID(s.start(name, 17+extra), id)
}

// below returns the range of all tuples that extend the packed tuple k. k must not be used again: the range takes k
// over.
func (s subspace) below(k []byte) kv.KeyRange {
	end := append(append(s.room.take(len(k)+1), k...), 0xff)
	return kv.KeyRange{Begin: append(k, 0x00), End: end}
}

// single returns the range that has one key alone.
func (s subspace) single(key []byte) kv.KeyRange { return kv.KeyRange{Begin: key, End: s.after(key)} }

// after returns the key that follows key directly.
func (s subspace) after(key []byte) []byte {
	return append(append(s.room.take(len(key)+1), key...), 0x00)
}

// section returns the range of all keys with a name.
func (s subspace) section(name string) kv.KeyRange { return s.below(s.start(name, 1)) }

// meta returns the key of a field of meta. The fields are below.
func (s subspace) meta(field string) []byte { return s.startGroup(nameMeta, field, 0) }

// itemKey returns the key of an item under a name: (name, group, index, random).
func (s subspace) itemKey(name string, id ID, extra int) []byte {
	return appendItemID(s.startGroup(name, id.Group, 9+17+extra), id)
}

// appendItem appends the key of an item to dst. of is the range of all items of the group.
func appendItem(dst []byte, of kv.KeyRange, id ID) []byte {
	return appendItemID(append(dst, of.Begin[:len(of.Begin)-1]...), id)
}

// appendItemID appends index and random of an item, by which it differs from the others of its group.
func appendItemID(k []byte, id ID) []byte {
	return tuple.AppendUUID(tuple.AppendInt(k, id.Index), id.Random)
}

// item, attempt, dead and archive return the keys of an item with these names. parts returns the range of its parts,
// and mark the mark key of a lane.
func (s subspace) item(id ID) []byte       { return s.itemKey(nameItem, id, 0) }
func (s subspace) attempt(id ID) []byte    { return s.itemKey(nameAttempt, id, 0) }
func (s subspace) dead(id ID) []byte       { return s.itemKey(nameDead, id, 0) }
func (s subspace) archive(id ID) []byte    { return s.itemKey(nameArchive, id, 0) }
func (s subspace) parts(id ID) kv.KeyRange { return s.below(s.itemKey(namePart, id, 1)) }
func (s subspace) mark(lane string) []byte { return s.ofLane(nameMark, lane, 0) }

// lock returns the key of a lane's record: a lock key, or, if the lane is a single item, a hold key.
func (s subspace) lock(lane string) []byte {
	if id, ok := holdOf(lane); ok {
		return s.hold(id)
	}
	return s.ofLane(nameLock, lane, 0)
}

// items returns the range of the items of a group. For a part of a group it is the range of the lane keys, one for each
// item of the lane.
func (s subspace) items(lane string) kv.KeyRange { return s.below(s.startItems(lane, 1)) }

// purged, state, pace, receipt and repeat return the keys with these names.
func (s subspace) purged(group string) []byte  { return s.startGroup(namePurged, group, 0) }
func (s subspace) state(group string) []byte   { return s.startGroup(nameState, group, 0) }
func (s subspace) pace(group string) []byte    { return s.startGroup(namePace, group, 0) }
func (s subspace) receipt(id uuid.UUID) []byte { return s.startUUID(nameReceipt, id, 0) }
func (s subspace) repeat(id string) []byte     { return s.startGroup(nameRepeat, id, 0) }

// archived returns the key of an entry in the order of completion: the items that one ack or take has finished.
func (s subspace) archived(at rec.Completion) []byte {
	k := tuple.AppendInt(s.start(nameArchived, 9+9+17), at.Place)
	return tuple.AppendUUID(tuple.AppendInt(k, at.Index), at.Random)
}

// part returns the key of the n-th part of an item.
func (s subspace) part(id ID, n int) []byte {
	return tuple.AppendInt(s.itemKey(namePart, id, 9), int64(n))
}

// ready returns the key of a lane's hint at an index, in the shard in which handles write: a ready key, or an open key
// if the lane is not a whole group.
func (s subspace) ready(index int64, lane string) []byte {
	return s.readyAt(s.shard(lanes.GroupOf(lane)), index, lane)
}

// readyAt is ready for a given shard.
func (s subspace) readyAt(shard, index int64, lane string) []byte {
	group, where := lanes.Split(lane)
	k := s.startHints(where, shard, 9+len(group)+2)
	return tuple.AppendString(tuple.AppendInt(k, index), group)
}

// request returns the key of a handle's request for any group. random is the handle's number.
func (s subspace) request(index int64, random uuid.UUID) []byte {
	return tuple.AppendUUID(tuple.AppendInt(s.start(nameRequest, 9+17), index), random)
}

// named returns the key of a handle's request for one lane (reqgroup).
func (s subspace) named(lane string, random uuid.UUID) []byte {
	return tuple.AppendUUID(s.ofLane(nameNamed, lane, 17), random)
}

// namedForLane returns the range of the requests of all handles for one lane.
func (s subspace) namedForLane(lane string) kv.KeyRange {
	return kv.KeyRange{Begin: s.named(lane, uuid.Nil), End: s.named(lane, uuid.Max)}
}

// namedFor returns the range of the requests for a group and for the other lanes of the group.
func (s subspace) namedFor(group string) kv.KeyRange {
	return s.below(s.startGroup(nameNamed, group, 1))
}

// requests returns the range of all requests. By the order of the names, those for one group or lane (reqgroup) come
// first, then those by template (reqlane), then those for any group (request).
func (s subspace) requests() kv.KeyRange { return s.fixed.requests }

// grant returns the key of a grant: the lane is kept for the handle with the number random.
func (s subspace) grant(random uuid.UUID, lane string) []byte {
	group, where := lanes.Split(lane)
	return append(tuple.AppendString(s.startUUID(nameGrant, random, len(lane)+2), group), where...)
}

// grants returns the range of all grants to a handle.
func (s subspace) grants(random uuid.UUID) kv.KeyRange {
	return s.below(s.startUUID(nameGrant, random, 1))
}

// wake returns the key that the handle with the request watches. All handles whose receives wait for a group, for a
// lane, or by a template watch the key of uuid.Nil, too.
func (s subspace) wake(random uuid.UUID) []byte { return s.startUUID(nameWake, random, 0) }

// change returns the key of a row of changes, for SetVersionstampedKey: behind the key is the position of its stamp.
// offset is the queue's, and n tells apart the rows of one transaction.
func (s subspace) change(offset, n int64) []byte {
	k := tuple.AppendInt(s.start(nameChange, 9+13+9+4), offset)
	at := len(k) + 1 // behind the type code
	k = tuple.AppendInt(tuple.AppendVersionstamp(k, tuple.IncompleteVersionstamp(0)), n)
	return binary.LittleEndian.AppendUint32(k, uint32(at))
}

// cursor returns the key of a subscription's place in the changes.
func (s subspace) cursor(subscription string) []byte {
	return s.startGroup(nameCursor, subscription, 0)
}

// reader returns the key of a subscription's holder.
func (s subspace) reader(subscription string) []byte {
	return s.startGroup(nameReader, subscription, 0)
}

// relative returns a key of the queue without the queue's prefix. absolute returns the whole key again.
func (s subspace) relative(key []byte) []byte { return key[len(s.prefix):] }

func (s subspace) absolute(relative []byte) []byte {
	return append(append(make([]byte, 0, len(s.prefix)+len(relative)), s.prefix...), relative...)
}

// count returns the key of a slot of a counter. Each counter has several slots, so that writers do not meet at one key.
func (s subspace) count(name string, slot int64) []byte {
	return tuple.AppendInt(s.startGroup(nameCount, name, 2), slot)
}

// parsedKey is a key of the queue taken apart. Only the fields that its name has are set.
type parsedKey struct {
	name string
	// meta: the field; count: the counter's name; repeat: the receive id; dedup: the id; cursor, reader: the
	// subscription
	field string
	scope string // dedup
	group string
	// lane is of a lock, hold, mark, hint, timer (except that of a beat), held, reqgroup, grant, kept or lane key. It
	// is the group's name if the lane is a whole group.
	lane   string
	holder string // kept: the lane whose lock keeps the hint
	where  string // reqlane: the packed template
	// item, part, attempt, dead, archive, ready, request, hold, lane, open, kept; archived: place; timer, due: due
	// (ms); count: slot; change: offset; reqlane: since (ms)
	index int64
	id    uuid.UUID
	n     int64 // of a part or change; of a hint or timer the shard; of archived the index
	stamp tuple.Versionstamp
}

// version returns, of a change key, the commit version of its transaction plus the queue's offset, which can be
// compared with indexes.
func (p parsedKey) version() int64 {
	return int64(binary.BigEndian.Uint64(p.stamp.Stamp[:8])) + p.index
}

func (p parsedKey) itemID() ID { return ID{Group: p.group, Index: p.index, Random: p.id} }

// parse takes apart a key of the queue. The error for a key that this queue cannot have wraps ErrCorrupt.
func (s subspace) parse(key []byte) (parsedKey, error) {
	p, err := s.parseForm(key)
	if err != nil {
		return p, err
	}
	for _, lane := range []string{p.lane, p.holder, lanes.Name(p.group, p.where)} {
		if err := s.plan.CheckLane(lane); err != nil {
			return p, rec.Corrupt(key, err)
		}
	}
	return p, nil
}

// parseForm takes apart a key below the queue's prefix, and does not check its lane against the queue's plan: perhaps
// no item can be in that lane. The error for any other key, or for a shape which is not in the table, wraps ErrCorrupt.
func (s subspace) parseForm(key []byte) (parsedKey, error) {
	var p parsedKey
	rest, ok := bytes.CutPrefix(key, s.prefix)
	if !ok || len(rest) == 0 || rest[0] == 0xff {
		return p, rec.Corrupt(key, errors.New("it is not one of this queue"))
	}
	d := rec.Decode(rest)
	p.name = d.Text()
	switch p.name {
	case nameMeta, nameRepeat, nameCursor, nameReader:
		p.field = d.Text()
	case nameItem, nameAttempt, nameDead, nameArchive:
		p.group, p.index, p.id = d.Text(), d.Int(), d.UUID()
	case nameArchived:
		p.index, p.n, p.id = d.Int(), d.Int(), d.UUID()
	case namePart:
		p.group, p.index, p.id, p.n = d.Text(), d.Int(), d.UUID(), d.Int()
	case nameLock, nameMark:
		p.group, p.lane = readLane(&d)
	case nameHold:
		p.group, p.index, p.id = d.Text(), d.Int(), d.UUID()
		p.lane = holdLane(p.itemID())
	case nameState, namePace, namePurged:
		p.group = d.Text()
	case nameDedup:
		switch p.scope = d.Text(); p.scope {
		case scopeGroup:
			p.group = d.Text()
		case scopeQueue:
		default:
			d.Check(false, "unknown scope %q", p.scope)
		}
		p.field = d.Text()
	case nameReady:
		p.n, p.index, p.group = d.Int(), d.Int(), d.Text()
		p.lane = p.group
	case nameTimer:
		s.parseTimer(&p, &d, "")
	case nameDue:
		s.parseTimer(&p, &d, readWhere(&d))
	case nameBeat:
		p.id = d.UUID()
	case nameHeld:
		p.id, p.group = d.UUID(), d.Text()
		p.lane = p.group
	case nameRequest:
		p.index, p.id = d.Int(), d.UUID()
	case nameNamed:
		p.group = d.Text()
		if p.lane = p.group; !d.Follows(rec.CodeUUID) {
			p.lane = lanes.Name(p.group, readWhere(&d))
		}
		p.id = d.UUID()
	case nameGrant:
		p.id = d.UUID()
		p.group, p.lane = readLane(&d)
	case nameReceipt, nameWake:
		p.id = d.UUID()
	case nameChange:
		p.index, p.stamp, p.n = d.Int(), d.Versionstamp(), d.Int()
	case nameCount:
		p.field, p.index = d.Text(), d.Int()
	default:
		d.Check(p.parseLane(&d), "unknown name %q", p.name)
	}
	if lanes.IsPart(p.group) { // it would be taken for a lane
		d.Check(false, "group %q, which is not UTF-8", p.group)
	}
	return p, d.End(key)
}

// parseItem is a faster parse for a key of an item, or for its key in a lane. of is the range of the items of that lane
// (subspace.items), and group is the lane's group. parseItem sets group, index and id, and the name of an item, also
// for a key lane. For a key outside of the range, or with another form, it returns the results of parse.
func (s subspace) parseItem(key []byte, group string, of kv.KeyRange) (parsedKey, error) {
	// All keys of the range begin with its first key without the last byte.
	rest, ok := bytes.CutPrefix(key, of.Begin[:len(of.Begin)-1])
	if !ok {
		return s.parse(key)
	}
	d := rec.Decode(rest)
	p := parsedKey{name: nameItem, group: group, index: d.Int(), id: d.UUID()}
	if d.End(key) != nil {
		return s.parse(key) // says what is wrong with the key
	}
	return p, nil
}

// storedFormat is the layout of keys and values which this version writes, and the only layout which this version
// reads. Format 1 was the layout of the versions before the first release.
const storedFormat = 2

// The fields of meta.
const (
	metaFormat = "format" // tuple (format)
	metaOffset = "offset" // tuple (offset): index and token are read version + offset
	// tuple (version, JSON text, incarnation): see config.go, tx_config.go. After a raise of the shards: also the
	// number of shards that writers use, and the earlier numbers, see store_lane.go.
	metaConfig = "config"
	metaSwept  = "swept" // tuple (when the last sweep began (ms), its random)
	// Only while the queue is being dropped: tuple (since (ms)).
	metaDropped = "dropped"
	metaPaused  = "paused"   // tuple (since (ms), who, reason); not there = the queue is not paused
	metaSweptTo = "swept_to" // tuple (key): where the next sweep of the dedup entries goes on
	metaChanged = "changed"  // int64, little-endian, changed by atomic add with each row of changes; watched
	metaMissed  = "missed"   // tuple (key): the last row of changes cleared before every subscription had seen the row
	// tuple (key): where the next sweep of the dead letters goes on
	metaSweptDead = "swept_dead"
	metaPace      = "pace"   // as the value of pace: up to when the rate of the whole queue is used up
	metaPurged    = "purged" // tuple (clock, when (ms)) of the last step of a purge of the queue: see enqueue_dedup.go
	// tuple (clock, when (ms)) of the last change that made the delay shorter, with retroactive delay: see isOld
	metaEased = "eased"
)

// dedupKey returns the key of the dedup entry for a message of the group with the dedup id. inGroup: ids count within a
// group, so that two groups may have the same id. Otherwise they count in the whole queue.
func (s subspace) dedupKey(inGroup bool, group, id string) []byte {
	k := s.start(nameDedup, len(scopeGroup)+len(group)+len(id)+6)
	if inGroup {
		k = tuple.AppendString(tuple.AppendString(k, scopeGroup), group)
	} else {
		k = tuple.AppendString(k, scopeQueue)
	}
	return tuple.AppendString(k, id)
}
