package layer

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// The keys of lanes. Package lanes explains lanes and their names. subspace.go has the table of the keys, in which the
// keys of lanes stand behind those of every queue.
const (
	nameLane = "lane"
	nameOpen = "open"
	nameDue  = "due"
	nameKept = "kept"
)

// ofParts are the names of keys that only a queue with parts or holds has.
var ofParts = []string{nameLane, nameOpen, nameDue, nameByLane, nameKept, nameHold}

// present returns those of the names that keys of the queue have. A queue in which each group is one lane has no keys
// of parts and holds.
func (s subspace) present(names ...string) []string {
	if !s.plan.IsPlain() {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(ofParts, name) })
}

// sections returns the ranges of the keys of those of the names that keys of the queue have.
func (s subspace) sections(names ...string) (all []kv.KeyRange) {
	for _, name := range s.present(names...) {
		all = append(all, s.section(name))
	}
	return all
}

// errLaneState: only the holder of the whole group may use the group's state.
var errLaneState = fmt.Errorf("%w: the state of a group with a template: others may hold the group, too", ErrOptions)

// where packs a template that the queue allows: (view, values …), or "" for whole groups.
func (s subspace) where(t Template) (string, error) {
	where, err := s.plan.Where(t, checkFacetValue)
	if errors.Is(err, lanes.ErrNoView) {
		return "", &TemplateError{Template: t, Views: s.plan.Views()}
	}
	return where, err
}

// whereGiven is where for a call that may name a whole group whatever the views: nil is "".
func (s subspace) whereGiven(t Template) (string, error) {
	if t == nil {
		return "", nil
	}
	return s.where(t)
}

// laneAt returns the lane of a group that a template matches; nil = the whole group, whatever the views.
func (s subspace) laneAt(group string, t Template) (string, error) {
	where, err := s.whereGiven(t)
	return lanes.Name(group, where), err
}

// over returns the ranges of the lock keys that may intersect a lane, its own included.
func (s subspace) over(lane string) []kv.KeyRange {
	return s.locksIn(lanes.GroupOf(lane), s.plan.Excluding(lane))
}

// locksIn returns the ranges of locks of a group.
func (s subspace) locksIn(group string, of []lanes.Locks) []kv.KeyRange {
	all := make([]kv.KeyRange, len(of))
	for i, l := range of {
		switch {
		case l.All:
			all[i] = s.locks(group)
		case l.Holds:
			all[i] = s.holds(group)
		case l.Below:
			all[i] = s.below(append(s.startGroup(nameLock, group, len(l.Where)+1), l.Where...))
		default:
			all[i] = s.single(s.lock(lanes.Name(group, l.Where)))
		}
	}
	return all
}

// lanesOver is Plan.LanesOver for an id.
func (s subspace) lanesOver(id ID, facets string) (all []string, others bool) {
	return s.plan.LanesOver(lanes.Item(id), facets)
}

// locksOf returns the ranges of the locks of a group and of the other lanes given.
func (s subspace) locksOf(group string, parts []string) []kv.KeyRange {
	return s.locksIn(group, s.plan.LocksOf(group, parts))
}

// looked returns the ranges of the locks that a look at a lane reads. many: there may be many locks in a range.
func (s subspace) looked(lane string) (all []kv.KeyRange, many bool) {
	of, many := s.plan.Looked(lane)
	return s.locksIn(lanes.GroupOf(lane), of), many
}

// locks is the range of all locks of a group: of the whole group, and of its other lanes.
func (s subspace) locks(group string) kv.KeyRange { return s.withLanes(nameLock, group) }

// withLanes is the range of the keys of a name and a group, with nothing or with a lane behind the group.
func (s subspace) withLanes(name, group string) kv.KeyRange {
	k := s.startGroup(name, group, 1)
	return kv.KeyRange{Begin: k, End: append(k[:len(k):len(k)], 0xff)}
}

// ofLane is a key that begins with a name and the lane's tuple.
func (s subspace) ofLane(name, lane string, extra int) []byte {
	group, where := lanes.Split(lane)
	return append(s.startGroup(name, group, len(where)+extra), where...)
}

// laneItem is the key that says: the item belongs to the lane. Of a whole group the item itself is that key. The lane
// must not be a hold.
func (s subspace) laneItem(lane string, id ID) []byte {
	return tuple.AppendUUID(tuple.AppendInt(s.startItems(lane, 9+17), id.Index), id.Random)
}

// startItems is the beginning of the keys of laneItem.
func (s subspace) startItems(lane string, extra int) []byte {
	if lanes.IsPart(lane) {
		return s.ofLane(nameLane, lane, extra)
	}
	return s.startGroup(nameItem, lane, extra)
}

// ofWhere is a key that begins with a name and a packed template.
func (s subspace) ofWhere(name, where string, extra int) []byte {
	return append(s.start(name, len(where)+extra), where...)
}

// startHints is the beginning of the hints of a template in a shard: ("ready", shard) for whole groups, and ("open",
// view, shard, values …) for others.
func (s subspace) startHints(where string, shard int64, extra int) []byte {
	if where == "" {
		return tuple.AppendInt(s.start(nameReady, 2+extra), shard)
	}
	view, values := lanes.SplitWhere(where)
	k := tuple.AppendInt(tuple.AppendInt(s.start(nameOpen, len(where)+9+extra), int64(view)), shard)
	for _, v := range values {
		k = tuple.AppendString(k, v)
	}
	return k
}

// hintsFrom is the range of the hints of a template from index on, in a shard.
func (s subspace) hintsFrom(where string, shard, index int64) kv.KeyRange {
	k := s.startHints(where, shard, 9)
	return kv.KeyRange{Begin: tuple.AppendInt(k[:len(k):len(k)], index), End: s.below(k).End}
}

// hintsOf is the ranges of the hints of a template, shard by shard.
func (s subspace) hintsOf(where string) []kv.KeyRange {
	return s.inShards(func(shard int64) []kv.KeyRange { return []kv.KeyRange{s.hintsFrom(where, shard, 0)} })
}

// hintsIn is the range of the hints of a view, by all templates; 0 = of whole groups.
func (s subspace) hintsIn(view int) kv.KeyRange {
	if view == 0 {
		return s.section(nameReady)
	}
	return s.below(tuple.AppendInt(s.start(nameOpen, 9+1), int64(view)))
}

// lanesIn is the range of the keys of all lanes of a group, without the lane of the whole group.
func (s subspace) lanesIn(group string) kv.KeyRange { return s.below(s.startGroup(nameLane, group, 1)) }

// marks is the range of the marks of a group: of the whole group, and of its other lanes.
func (s subspace) marks(group string) kv.KeyRange {
	k := s.startGroup(nameMark, group, 1)
	return kv.KeyRange{Begin: k, End: append(k[:len(k):len(k)], 0xff)}
}

// byLane is the key of a handle's request for any lane of a template.
func (s subspace) byLane(where string, sinceMS int64, random uuid.UUID) []byte {
	return tuple.AppendUUID(tuple.AppendInt(s.ofWhere(nameByLane, where, 9+17), sinceMS), random)
}

// byLaneFor is the range of the requests by a template: ("" = of whole groups).
func (s subspace) byLaneFor(where string) kv.KeyRange {
	if where == "" {
		return s.section(nameRequest)
	}
	return s.below(s.ofWhere(nameByLane, where, 1))
}

// keptUnder is the range of the hints put aside under a lock.
func (s subspace) keptUnder(holder string) kv.KeyRange {
	group, where := lanes.Split(holder)
	return s.below(rec.AppendNested(s.startGroup(nameKept, group, len(where)+3), where))
}

// keptOf is the range of the hints put aside under the locks of a group.
func (s subspace) keptOf(group string) kv.KeyRange { return s.below(s.startGroup(nameKept, group, 1)) }

func (s subspace) kept(holder, lane string, index int64) []byte {
	group, by := lanes.Split(holder)
	_, where := lanes.Split(lane)
	k := rec.AppendNested(s.startGroup(nameKept, group, len(by)+len(where)+6+9), by)
	return tuple.AppendInt(rec.AppendNested(k, where), index)
}

// readWhere reads (view, values …) up to the next element that is no string.
func readWhere(d *rec.Decoder) string {
	view := d.Int()
	b := tuple.AppendInt(nil, view)
	for d.Follows(rec.CodeString) {
		b = tuple.AppendString(b, d.Text())
	}
	return string(b)
}

// readNested reads what appendNested wrote.
func readNested(d *rec.Decoder) string {
	var b []byte
	d.List(func() {
		switch {
		case d.Follows(rec.CodeString):
			b = tuple.AppendString(b, d.Text())
		case d.Follows(rec.CodeUUID): // of a hold
			b = tuple.AppendUUID(b, d.UUID())
		default:
			b = tuple.AppendInt(b, d.Int())
		}
	})
	return string(b)
}

// readLane reads a group, and the view and values behind the group, if any: up to the end.
func readLane(d *rec.Decoder) (group, lane string) {
	group = d.Text()
	if !d.More() {
		return group, group
	}
	return group, lanes.Name(group, readWhere(d))
}

// parseLane reads the rest of a key of a queue with facets, except locks, marks and grants. false = no such name.
func (p *parsedKey) parseLane(d *rec.Decoder) bool {
	where := ""
	switch p.name {
	case nameLane:
		p.group = d.Text()
		where = readWhere(d)
		p.index, p.id = d.Int(), d.UUID()
	case nameOpen:
		view := d.Int()
		p.n = d.Int()
		var values []string
		for d.Follows(rec.CodeString) {
			values = append(values, d.Text())
		}
		where = string(tuple.AppendInt(nil, view)) + rec.PackStrings(values)
		p.index, p.group = d.Int(), d.Text()
	case nameByLane:
		p.where = readWhere(d)
		p.index, p.id = d.Int(), d.UUID()
		return true
	case nameKept:
		p.group = d.Text()
		p.holder = lanes.Name(p.group, readNested(d))
		where = readNested(d)
		p.index = d.Int()
	default:
		return false
	}
	p.lane = lanes.Name(p.group, where)
	return true
}

// parseTimer reads the rest of the key of a timer of a template: the timer of a beat, of a lane, or of a hold.
func (s subspace) parseTimer(p *parsedKey, d *rec.Decoder, where string) {
	if p.n, p.index = readTimerShard(d), d.Int(); where == "" && p.n == 0 && d.Follows(rec.CodeUUID) {
		p.id = d.UUID() // of a beat
		return
	}
	p.group = d.Text()
	// A key is also read without the plan, to describe it. Then more behind the group is a hold, except in nameTimer.
	if p.lane = lanes.Name(p.group, where); d.More() && (where != "" || s.plan.ClaimsItems(where)) {
		p.lane = holdLane(ID{Group: p.group, Index: d.Int(), Random: d.UUID()})
	}
}

// Ready hints and timers grow at the end of their key range, which no cluster can split. So both are spread over shards
// by the group's hash, modulo the number of shards.
//
// The number can be raised while the queue is in use, never lowered. Every reader reads all shards of the greatest
// number, so it also finds keys that an earlier number has put elsewhere: the shards of the earlier number are the
// first of the later one. A raise has two steps. First all handles read the new shards, then they write there. The
// second step comes raiseGrace after the first, when every handle has had to read the configuration again. So no key
// lies in a shard that a handle does not read; see job.go. A key stays where an earlier number has put it, until a
// receive meets it as a hint or a due timer and clears it.

// shardCounts are the numbers of shards of a queue.
type shardCounts struct {
	read  int64 // as configured: readers read all of them
	write int64 // writers use these; fewer than read only between the steps of a raise
	// earlier are the numbers which writers used before, in ascending order; nil = the number was never raised.
	earlier []int64
}

// isRising reports whether the second step of a raise is missing.
func (c shardCounts) isRising() bool { return c.write < c.read }

// raised is c after the first step of a raise, or c itself if shards are as many as before.
func (c shardCounts) raised(shards int64) shardCounts {
	if shards == c.read {
		return c
	}
	next := shardCounts{read: shards, write: c.write, earlier: c.earlier}
	if !slices.Contains(c.earlier, c.write) {
		next.earlier = append(slices.Clone(c.earlier), c.write)
	}
	return next
}

// sharding is what a handle knows of the numbers of shards. They only grow.
type sharding struct{ known atomic.Pointer[shardCounts] }

func newSharding(shards int64) *sharding {
	s := &sharding{}
	s.set(shardCounts{read: shards, write: shards})
	return s
}

func (s *sharding) set(c shardCounts) { s.known.Store(&c) }

// learn keeps the greater numbers. They may include numbers read in a transaction that does not commit: more shards
// than there are cost only reads.
func (s *sharding) learn(c shardCounts) {
	for {
		old := s.known.Load()
		if c.read <= old.read && c.write <= old.write && len(c.earlier) <= len(old.earlier) {
			return
		}
		next := shardCounts{read: max(c.read, old.read), write: max(c.write, old.write), earlier: old.earlier}
		if len(c.earlier) > len(old.earlier) {
			next.earlier = c.earlier
		}
		if s.known.CompareAndSwap(old, &next) {
			return
		}
	}
}

// all is how many shards readers read.
func (s *sharding) all() int64 { return s.known.Load().read }

// hashOf is the 64-bit FNV-1a hash of a group's name.
func hashOf(group string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(group)) // never fails
	return h.Sum64()
}

// shardOf is the shard of a group among so many.
func shardOf(group string, shards int64) int64 { return int64(hashOf(group) % uint64(shards)) }

// shard is where the hints and timers of a group are written.
func (s subspace) shard(group string) int64 { return shardOf(group, s.shards.known.Load().write) }

// shardsOf are the shards in which hints of a group may lie, the present one first.
func (s subspace) shardsOf(group string) []int64 {
	counts := s.shards.known.Load()
	all := []int64{shardOf(group, counts.write)}
	for _, n := range append([]int64{counts.read}, counts.earlier...) {
		if shard := shardOf(group, n); !slices.Contains(all, shard) {
			all = append(all, shard)
		}
	}
	return all
}

// timerShardsOf is shardsOf for timers: before timers were spread, all were in shard 0, whatever the number of shards.
func (s subspace) timerShardsOf(group string) []int64 {
	all := s.shardsOf(group)
	if !slices.Contains(all, 0) {
		all = append(all, 0)
	}
	return all
}

// timerIn is the beginning of the timers of a template in a shard. The timers of shard 0 have no shard in their keys.
func (s subspace) timerIn(where string, shard int64, extra int) []byte {
	name := nameTimer
	if where != "" {
		name = nameDue
	}
	if shard == 0 {
		return s.ofWhere(name, where, extra)
	}
	return rec.AppendNested(s.ofWhere(name, where, extra+4), string(tuple.AppendInt(nil, shard)))
}

// timer is the key of a lane's timer.
func (s subspace) timer(dueMS int64, lane string) []byte {
	return s.timerAt(s.shard(lanes.GroupOf(lane)), dueMS, lane)
}

// timersAt are the keys at which a lane's timer may lie, the present one first.
func (s subspace) timersAt(dueMS int64, lane string) [][]byte {
	var keys [][]byte
	for _, shard := range s.timerShardsOf(lanes.GroupOf(lane)) {
		keys = append(keys, s.timerAt(shard, dueMS, lane))
	}
	return keys
}

func (s subspace) timerAt(shard, dueMS int64, lane string) []byte {
	if id, ok := holdOf(lane); ok {
		k := s.timerAt(shard, dueMS, lanes.Name(id.Group, s.plan.HoldWhere()))
		return tuple.AppendUUID(tuple.AppendInt(k, id.Index), id.Random)
	}
	group, where := lanes.Split(lane)
	return tuple.AppendString(tuple.AppendInt(s.timerIn(where, shard, 9+len(group)+2), dueMS), group)
}

// dueFrom is the range of the timers of a template in a shard due from fromMS to nowMS.
func (s subspace) dueFrom(where string, shard, fromMS, nowMS int64) kv.KeyRange {
	return kv.KeyRange{
		Begin: tuple.AppendInt(s.timerIn(where, shard, 9), fromMS),
		End:   tuple.AppendInt(s.timerIn(where, shard, 9), nowMS+1),
	}
}

// inShards joins the ranges in each shard in which hints and timers may lie.
func (s subspace) inShards(in func(shard int64) []kv.KeyRange) []kv.KeyRange {
	var all []kv.KeyRange
	for shard := range s.shards.all() {
		all = append(all, in(shard)...)
	}
	return all
}

// dueWithin is dueFrom for a span.
func (s subspace) dueWithin(where string, shard int64, of span) kv.KeyRange {
	return s.dueFrom(where, shard, of.fromMS, of.toMS)
}

// timersWithin is the ranges of the timers of a template with the times of the spans, shard by shard.
func (s subspace) timersWithin(where string, of []span) []kv.KeyRange {
	return s.inShards(func(shard int64) []kv.KeyRange {
		all := make([]kv.KeyRange, len(of))
		for i := range of {
			all[i] = s.dueWithin(where, shard, of[i])
		}
		return all
	})
}

// timersIn is the range of all timers of a template in a shard.
func (s subspace) timersIn(where string, shard int64) kv.KeyRange {
	if where == "" && s.shards.all() == 1 {
		return s.section(nameTimer)
	}
	return s.dueFrom(where, shard, 0, math.MaxInt64-1)
}

// timersByShard is timersIn for each shard.
func (s subspace) timersByShard(where string) []kv.KeyRange {
	return s.inShards(func(shard int64) []kv.KeyRange { return []kv.KeyRange{s.timersIn(where, shard)} })
}

// timersOf is the range of all timers of a template, shard by shard.
func (s subspace) timersOf(where string) kv.KeyRange {
	if where == "" {
		return s.section(nameTimer)
	}
	return s.below(s.ofWhere(nameDue, where, 1))
}

// readTimerShard reads the shard of a timer's key.
func readTimerShard(d *rec.Decoder) (shard int64) {
	if !d.Follows(rec.CodeNested) {
		return 0
	}
	d.List(func() {
		d.Check(shard == 0, "more than a shard")
		shard = d.Int()
	})
	d.Check(shard > 0, "shard %d", shard)
	return shard
}
