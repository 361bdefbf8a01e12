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

// The keys of lanes. subspace.go has the table of the keys, in which the keys of lanes stand behind those of every
// queue.
//
// Package lanes explains lanes and their names. In short: a lane is a whole group, the part of a group that a template
// matches, the free items of a group, or a single item (a hold). A template gives a value for each facet of a view. A
// packed template, in the code "where", is the tuple (view, values …); "" = whole groups. The plan of a queue says
// which lanes its groups have. Functions that return a key or a range read and write nothing.
const (
	nameLane = "lane"
	nameOpen = "open"
	nameDue  = "due"
	nameKept = "kept"
)

// ofParts are the names of the keys that only a queue with lanes other than whole groups has.
var ofParts = []string{nameLane, nameOpen, nameDue, nameByLane, nameKept, nameHold}

// present returns the names. If each group of the queue is one lane, it leaves out those in ofParts, because such a
// queue has no keys with these names. It may change the array of names.
func (s subspace) present(names ...string) []string {
	if !s.plan.IsPlain() {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(ofParts, name) })
}

// sections returns the range of all keys of each name, for the names that present returns.
func (s subspace) sections(names ...string) (all []kv.KeyRange) {
	for _, name := range s.present(names...) {
		all = append(all, s.section(name))
	}
	return all
}

// errLaneState: only the holder of the whole group may use the group's state.
var errLaneState = fmt.Errorf("%w: the state of a group with a template: others may hold the group, too", ErrOptions)

// where packs a template: (view, values …), or "" for nil, which is whole groups. If the queue has no such view, the
// error is a *TemplateError.
func (s subspace) where(t Template) (string, error) {
	where, err := s.plan.Where(t, checkFacetValue)
	if errors.Is(err, lanes.ErrNoView) {
		return "", &TemplateError{Template: t, Views: s.plan.Views()}
	}
	return where, err
}

// whereGiven is where for a call that may name a whole group, even in a queue without a view for whole groups: nil is
// "".
func (s subspace) whereGiven(t Template) (string, error) {
	if t == nil {
		return "", nil
	}
	return s.where(t)
}

// laneAt returns the name of the lane of a group that a template matches. nil = the whole group, as whereGiven has it.
func (s subspace) laneAt(group string, t Template) (string, error) {
	where, err := s.whereGiven(t)
	return lanes.Name(group, where), err
}

// over returns the ranges of the locks of all lanes that may share an item with the given lane, its own lock included.
// A range may also have locks of lanes that share no item with it. over leaves out holds.
func (s subspace) over(lane string) []kv.KeyRange {
	return s.locksIn(lanes.GroupOf(lane), s.plan.Excluding(lane))
}

// locksIn returns the ranges of the locks of a group that the plan has named: one range for each element of the
// parameter of, see lanes.Locks.
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

// lanesOver returns the lanes of which a claim may have the item id. others: a claim of any other lane may have it too.
// See lanes.Plan.LanesOver.
func (s subspace) lanesOver(id ID, facets string) (all []string, others bool) {
	return s.plan.LanesOver(lanes.Item(id), facets)
}

// locksOf returns the ranges of the locks of a group and of its parts, the lanes in parts. If items are claimed by
// themselves, it is the range of all locks of the group, without holds.
func (s subspace) locksOf(group string, parts []string) []kv.KeyRange {
	return s.locksIn(group, s.plan.LocksOf(group, parts))
}

// looked returns the ranges of the locks that a look at a lane must read. many: a range may have many locks, so the
// look must read with a limit.
func (s subspace) looked(lane string) (all []kv.KeyRange, many bool) {
	of, many := s.plan.Looked(lane)
	return s.locksIn(lanes.GroupOf(lane), of), many
}

// locks returns the range of all locks of a group: of the whole group, and of its other lanes except holds.
func (s subspace) locks(group string) kv.KeyRange { return s.withLanes(nameLock, group) }

// withLanes returns the range of the keys of a name and a group, both the key of the group itself and those of its
// lanes.
func (s subspace) withLanes(name, group string) kv.KeyRange {
	k := s.startGroup(name, group, 1)
	return kv.KeyRange{Begin: k, End: append(k[:len(k):len(k)], 0xff)}
}

// ofLane returns the beginning of the keys of a name and a lane: (name, group), and for a part of a group the view and
// the values behind. extra is how many more bytes the caller will append.
func (s subspace) ofLane(name, lane string, extra int) []byte {
	group, where := lanes.Split(lane)
	return append(s.startGroup(name, group, len(where)+extra), where...)
}

// laneItem returns the key that says that the item belongs to the lane. For a whole group that is the item's own key,
// for another lane a lane key. The lane must not be a hold.
func (s subspace) laneItem(lane string, id ID) []byte {
	return tuple.AppendUUID(tuple.AppendInt(s.startItems(lane, 9+17), id.Index), id.Random)
}

// startItems returns the beginning of the keys of laneItem, which all items of the lane share.
func (s subspace) startItems(lane string, extra int) []byte {
	if lanes.IsPart(lane) {
		return s.ofLane(nameLane, lane, extra)
	}
	return s.startGroup(nameItem, lane, extra)
}

// ofWhere returns the beginning of the keys of a name and a packed template.
func (s subspace) ofWhere(name, where string, extra int) []byte {
	return append(s.start(name, len(where)+extra), where...)
}

// startHints returns the beginning of the hints of a template in a shard: ("ready", shard) for whole groups, and
// ("open", view, shard, values …) for others. The section on shards below explains shards.
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

// hintsFrom returns the range of the hints of a packed template in a shard, from an index on.
func (s subspace) hintsFrom(where string, shard, index int64) kv.KeyRange {
	k := s.startHints(where, shard, 9)
	return kv.KeyRange{Begin: tuple.AppendInt(k[:len(k):len(k)], index), End: s.below(k).End}
}

// hintsOf returns the ranges of all hints of a packed template, one for each shard.
func (s subspace) hintsOf(where string) []kv.KeyRange {
	return s.inShards(func(shard int64) []kv.KeyRange { return []kv.KeyRange{s.hintsFrom(where, shard, 0)} })
}

// hintsIn returns the range of all hints of the view with a number, whatever the values and the shard. View 0 stands
// for whole groups.
func (s subspace) hintsIn(view int) kv.KeyRange {
	if view == 0 {
		return s.section(nameReady)
	}
	return s.below(tuple.AppendInt(s.start(nameOpen, 9+1), int64(view)))
}

// lanesIn returns the range of the lane keys of a group: those of all its lanes except the whole group.
func (s subspace) lanesIn(group string) kv.KeyRange { return s.below(s.startGroup(nameLane, group, 1)) }

// marks returns the range of the mark keys of a group: of the whole group, and of its other lanes.
func (s subspace) marks(group string) kv.KeyRange { return s.withLanes(nameMark, group) }

// byLane returns the key of a handle's request for any lane of a template (reqlane). sinceMS is when the handle began
// to wait, and random is the handle's number.
func (s subspace) byLane(where string, sinceMS int64, random uuid.UUID) []byte {
	return tuple.AppendUUID(tuple.AppendInt(s.ofWhere(nameByLane, where, 9+17), sinceMS), random)
}

// byLaneFor returns the range of the requests for any lane of a packed template. For "" these are the requests for any
// group.
func (s subspace) byLaneFor(where string) kv.KeyRange {
	if where == "" {
		return s.section(nameRequest)
	}
	return s.below(s.ofWhere(nameByLane, where, 1))
}

// keptUnder returns the range of the kept hints under the lock of the lane holder.
func (s subspace) keptUnder(holder string) kv.KeyRange {
	group, where := lanes.Split(holder)
	return s.below(rec.AppendNested(s.startGroup(nameKept, group, len(where)+3), where))
}

// keptOf returns the range of the kept hints under all locks of a group.
func (s subspace) keptOf(group string) kv.KeyRange { return s.below(s.startGroup(nameKept, group, 1)) }

// kept returns the key of a kept hint: the hint of a lane at an index, moved aside under the lock of the lane holder.
// Both are lanes of the same group.
func (s subspace) kept(holder, lane string, index int64) []byte {
	group, by := lanes.Split(holder)
	_, where := lanes.Split(lane)
	k := rec.AppendNested(s.startGroup(nameKept, group, len(by)+len(where)+6+9), by)
	return tuple.AppendInt(rec.AppendNested(k, where), index)
}

// readWhere reads a packed template, (view, values …), from a key: the view, and then all strings that follow.
func readWhere(d *rec.Decoder) string {
	view := d.Int()
	b := tuple.AppendInt(nil, view)
	for d.Follows(rec.CodeString) {
		b = tuple.AppendString(b, d.Text())
	}
	return string(b)
}

// readNested reads a nested tuple of integers, strings and UUIDs, and returns its elements packed. rec.AppendNested
// writes such a tuple.
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

// readLane reads the rest of a key: a group, and the view and values behind it, if any. lane is the name of the lane.
func readLane(d *rec.Decoder) (group, lane string) {
	group = d.Text()
	if !d.More() {
		return group, group
	}
	return group, lanes.Name(group, readWhere(d))
}

// parseLane reads the rest of a lane, open, reqlane or kept key into p. It returns false if p.name is none of these.
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

// parseTimer reads the rest of a timer or due key into p. where is the packed template that the caller has read; "" = a
// timer key. The timer leads to a beat, to a hold, or to any other lane.
func (s subspace) parseTimer(p *parsedKey, d *rec.Decoder, where string) {
	if p.n, p.index = readTimerShard(d), d.Int(); where == "" && p.n == 0 && d.Follows(rec.CodeUUID) {
		p.id = d.UUID() // of a beat
		return
	}
	p.group = d.Text()
	// Behind the group of a hold's timer come the item's index and random. A timer key has them only if the plan claims
	// single items. Describe does not know the plan of the queue, and reads with describedPlan, which claims them.
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

// shardCounts are the numbers of shards of a queue. The text above has the reason for more than one number.
type shardCounts struct {
	read  int64 // as configured: readers read all of them
	write int64 // writers use these; fewer than read only between the steps of a raise
	// earlier are the numbers which writers used before, in ascending order, and during a raise also the present one
	// (write). nil = the number was never raised.
	earlier []int64
}

// isRising reports whether the second step of a raise is missing.
func (c shardCounts) isRising() bool { return c.write < c.read }

// raised returns c after the first step of a raise to the given number of shards: readers use it, writers do not yet.
// shards must not be less than c.read. If it is the present number, raised returns c.
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

// sharding is what a handle knows of the numbers of shards. They only grow. Goroutines may share it.
type sharding struct{ known atomic.Pointer[shardCounts] }

// newSharding returns the sharding of a queue whose number of shards was never raised.
func newSharding(shards int64) *sharding {
	s := &sharding{}
	s.set(shardCounts{read: shards, write: shards})
	return s
}

// set replaces the numbers, also by smaller ones, while the handle is being opened. Afterwards learn must be used.
func (s *sharding) set(c shardCounts) { s.known.Store(&c) }

// learn raises each number to that of c if that is greater. c may have numbers read in a transaction that does not
// commit: more shards than there are cost only reads.
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

// all returns how many shards readers read: the shards 0 to all()-1.
func (s *sharding) all() int64 { return s.known.Load().read }

// hashOf is the 64-bit FNV-1a hash of a group's name.
func hashOf(group string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(group)) // never fails
	return h.Sum64()
}

// shardOf returns the shard of a group in a queue with the given number of shards.
func shardOf(group string, shards int64) int64 { return int64(hashOf(group) % uint64(shards)) }

// shard returns the shard in which handles write the hints and timers of a group.
func (s subspace) shard(group string) int64 { return shardOf(group, s.shards.known.Load().write) }

// shardsOf returns the shards in which hints of a group may lie: the one in which handles write, then those of the
// number that readers use and of earlier numbers.
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

// timerIn returns the beginning of the timers of a packed template in a shard: ("timer") or ("due", view, values …),
// and the shard as a nested tuple. The timers of shard 0 have no shard in their keys.
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

// timer returns the key of a lane's timer, in the shard in which handles write. dueMS is the time in the key.
func (s subspace) timer(dueMS int64, lane string) []byte {
	return s.timerAt(s.shard(lanes.GroupOf(lane)), dueMS, lane)
}

// timersAt returns the keys, one for each shard in which it may lie, of a lane's timer with the time dueMS. That of the
// shard in which handles write comes first.
func (s subspace) timersAt(dueMS int64, lane string) [][]byte {
	var keys [][]byte
	for _, shard := range s.timerShardsOf(lanes.GroupOf(lane)) {
		keys = append(keys, s.timerAt(shard, dueMS, lane))
	}
	return keys
}

// timerAt is timer for a given shard. The timer of a hold has the item's index and random behind the group.
func (s subspace) timerAt(shard, dueMS int64, lane string) []byte {
	if id, ok := holdOf(lane); ok {
		k := s.timerAt(shard, dueMS, lanes.Name(id.Group, s.plan.HoldWhere()))
		return tuple.AppendUUID(tuple.AppendInt(k, id.Index), id.Random)
	}
	group, where := lanes.Split(lane)
	return tuple.AppendString(tuple.AppendInt(s.timerIn(where, shard, 9+len(group)+2), dueMS), group)
}

// dueFrom returns the range of the timers of a packed template in a shard whose times are from fromMS to nowMS, both
// included.
func (s subspace) dueFrom(where string, shard, fromMS, nowMS int64) kv.KeyRange {
	return kv.KeyRange{
		Begin: tuple.AppendInt(s.timerIn(where, shard, 9), fromMS),
		End:   tuple.AppendInt(s.timerIn(where, shard, 9), nowMS+1),
	}
}

// inShards calls in for each shard that readers read, and joins the results.
func (s subspace) inShards(in func(shard int64) []kv.KeyRange) []kv.KeyRange {
	var all []kv.KeyRange
	for shard := range s.shards.all() {
		all = append(all, in(shard)...)
	}
	return all
}

// dueWithin is dueFrom for the times of a span.
func (s subspace) dueWithin(where string, shard int64, of span) kv.KeyRange {
	return s.dueFrom(where, shard, of.fromMS, of.toMS)
}

// timersWithin returns the ranges of the timers of a packed template with times in the spans, for each shard.
func (s subspace) timersWithin(where string, of []span) []kv.KeyRange {
	return s.inShards(func(shard int64) []kv.KeyRange {
		all := make([]kv.KeyRange, len(of))
		for i := range of {
			all[i] = s.dueWithin(where, shard, of[i])
		}
		return all
	})
}

// timersIn returns the range of all timers of a packed template in a shard. For whole groups and shard 0 it has the
// timers of beats too.
func (s subspace) timersIn(where string, shard int64) kv.KeyRange {
	if where == "" && s.shards.all() == 1 {
		return s.section(nameTimer)
	}
	return s.dueFrom(where, shard, 0, math.MaxInt64-1)
}

// timersByShard returns timersIn for each shard that readers read.
func (s subspace) timersByShard(where string) []kv.KeyRange {
	return s.inShards(func(shard int64) []kv.KeyRange { return []kv.KeyRange{s.timersIn(where, shard)} })
}

// timersOf returns one range with all timers of a packed template, in all shards. For whole groups it has the timers of
// beats too.
func (s subspace) timersOf(where string) kv.KeyRange {
	if where == "" {
		return s.section(nameTimer)
	}
	return s.below(s.ofWhere(nameDue, where, 1))
}

// readTimerShard reads the shard from a timer's key: a nested tuple with the number; 0 = there is no such tuple.
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
