package layer

import (
	"hash/fnv"
	"math"
	"slices"
	"sync/atomic"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Ready hints and timers grow at the end of their key range, which no cluster can split. So both are spread over shards
// by the group's hash, modulo the number of shards.
//
// The number can be raised while the queue is in use, never lowered. Every reader reads all shards of the greatest
// number, so keys which an earlier number has put elsewhere are found, too: the shards of the earlier number are the
// first of the later. A raise has two steps: first all handles read the new shards, then they write there. The second
// step comes raiseGrace after the first, when every handle has had to read the configuration anew. So nothing lies
// where nobody looks; see job_raise.go. A key stays where an earlier number has put the key until somebody meets it,
// as a hint or a due timer, and clears it.

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

// learn keeps the greater numbers. What was read in a transaction that does not commit may be among them: more shards
// than there are cost reads, nothing else.
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
	return appendNested(s.ofWhere(name, where, extra+4), string(tuple.AppendInt(nil, shard)))
}

// timer is the key of a lane's timer.
func (s subspace) timer(dueMS int64, lane string) []byte {
	return s.timerAt(s.shard(groupOf(lane)), dueMS, lane)
}

// timersAt are the keys at which a lane's timer may lie, the present one first.
func (s subspace) timersAt(dueMS int64, lane string) [][]byte {
	var keys [][]byte
	for _, shard := range s.timerShardsOf(groupOf(lane)) {
		keys = append(keys, s.timerAt(shard, dueMS, lane))
	}
	return keys
}

func (s subspace) timerAt(shard, dueMS int64, lane string) []byte {
	if id, ok := holdOf(lane); ok {
		k := s.timerAt(shard, dueMS, laneName(id.Group, s.holdWhere()))
		return tuple.AppendUUID(tuple.AppendInt(k, id.Index), id.Random)
	}
	group, where := splitLane(lane)
	return tuple.AppendString(tuple.AppendInt(s.timerIn(where, shard, 9+len(group)+2), dueMS), group)
}

// dueFrom is the range of the timers of a template in a shard due from fromMS to nowMS.
func (s subspace) dueFrom(where string, shard, fromMS, nowMS int64) kv.KeyRange {
	return kv.KeyRange{
		Begin: tuple.AppendInt(s.timerIn(where, shard, 9), fromMS),
		End:   tuple.AppendInt(s.timerIn(where, shard, 9), nowMS+1),
	}
}

// dueBy is the ranges of the timers of a template in a shard due at nowMS: a second one in a queue with retroactive
// delay.
func (s subspace) dueBy(where string, shard, nowMS int64, delay retro) []kv.KeyRange {
	due := []kv.KeyRange{s.dueFrom(where, shard, 0, nowMS)}
	if delay.on {
		due = append(due, s.sinceFrom(where, shard, 0, delay.begunMS(nowMS)))
	}
	return due
}

// sinceFrom is the range of the timers with the time of an enqueue, from fromMS to toMS, see retro.
func (s subspace) sinceFrom(where string, shard, fromMS, toMS int64) kv.KeyRange {
	return s.dueFrom(where, shard, sinceBase+fromMS, sinceBase+toMS)
}

// laterThan is the ranges of the timers of a template in a shard due after nowMS.
func (s subspace) laterThan(where string, shard, nowMS int64, delay retro) []kv.KeyRange {
	if !delay.on {
		return []kv.KeyRange{s.dueFrom(where, shard, nowMS+1, math.MaxInt64-1)}
	}
	return []kv.KeyRange{
		s.dueFrom(where, shard, nowMS+1, sinceBase-1),
		s.sinceFrom(where, shard, delay.begunMS(nowMS)+1, sinceBase),
	}
}

// timersIn is the range of all timers of a template in a shard.
func (s subspace) timersIn(where string, shard int64) kv.KeyRange {
	if where == "" && s.shards.all() == 1 {
		return s.section(nameTimer)
	}
	return s.dueFrom(where, shard, 0, math.MaxInt64-1)
}

// timersOf is the range of all timers of a template, shard by shard.
func (s subspace) timersOf(where string) kv.KeyRange {
	if where == "" {
		return s.section(nameTimer)
	}
	return s.below(s.ofWhere(nameDue, where, 1))
}

// shardCounts reads what is stored behind the configuration after a raise.
func (d *decoder) shardCounts() (c shardCounts) {
	if !d.more() {
		return c
	}
	c.write = d.int()
	for last := int64(0); d.more(); {
		n := d.int()
		d.check(last < n && n <= MaxShards, "shards %d after %d", n, last)
		last, c.earlier = n, append(c.earlier, n)
	}
	d.check(c.earlier != nil && 0 < c.write && c.write <= MaxShards, "%d shards", c.write)
	return c
}

// timerShard reads the shard of a timer's key.
func (d *decoder) timerShard() (shard int64) {
	if !d.follows(codeNested) {
		return 0
	}
	d.list(func() {
		d.check(shard == 0, "more than a shard")
		shard = d.int()
	})
	d.check(shard > 0, "shard %d", shard)
	return shard
}
