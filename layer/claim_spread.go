package layer

import (
	"sync"
	"sync/atomic"

	"fdbfifo/kv"
)

// spread keeps the handles of a queue apart from each other, without a word between them.
//
// A handle begins at home: it takes the oldest group. Handles that are there together conflict, and whoever loses
// goes for a walk: it lands on a hint chosen at random and from there takes one group after the other, so that it has
// a stretch of the hints for itself until it runs into another's. Only the landing passes over hints without having
// read them; each step is a read of the next hint. The more conflicts, the further away it lands. After
// walkClaims groups it lands nearer; and from time to time it comes home instead: should nobody be there any more, the
// oldest groups are not left for long.
//
// What a handle has learnt is advice: being wrong costs time.
type spread struct {
	mu      sync.Mutex
	level   int            // guarded by mu; of levels, how far away the next walk lands; 0 = no conflict lately
	calm    int            // guarded by mu; transactions without conflict since the level changed
	away    bool           // guarded by mu; on a walk
	landed  bool           // guarded by mu; next is a step of the walk, not the landing
	next    kv.KeySelector // guarded by mu
	shard   int64          // guarded by mu; of the walk
	left    int            // guarded by mu; groups until it ends
	untilMS int64          // guarded by mu

	// plenty: the last search that began at home found more than it was asked for.
	plenty atomic.Bool
	oldest atomic.Int64 // index of the oldest hint when last seen
	newest atomic.Int64 // and of the newest; only who lands looks
	// perGroup is how many items a group gave lately, in 1/16; 0 = not known.
	perGroup atomic.Int64
}

const (
	walkClaims = 64
	// After walkClaims groups, and after each walkMS, one in homeEvery comes home. It costs a conflict with whoever is
	// there already, and after a pause they all think of it at once; as long as somebody is there, nobody else is needed.
	walkMS    = 500
	homeEvery = 8
	// nearby is how many of the oldest hints a landing chooses among that found nothing further out.
	nearby = 8
	// calmAfter is the number of transactions without conflict after which landings come a level nearer.
	calmAfter = 64
)

// levels are how far a landing goes: up to so many hints from a place, which is the oldest one or lies at random
// within the first part of the hints' ages. The database walks past the hints of the offset, so it is bounded: about
// a hundred cost as much as another read.
var levels = [...]struct {
	offset   int
	fraction float64
}{{}, {64, 0}, {256, 0}, {1024, 0}, {1024, 1}}

// place returns where a search begins: away is false if that is at home.
func (s *spread) place(q *Queue, nowMS int64) (begin kv.KeySelector, shard int64, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.away:
		return begin, 0, false
	case s.landed && s.left > 0 && nowMS < s.untilMS:
		return s.next, s.shard, true
	case s.landed && q.random.n(homeEvery) == 0:
		s.away = false
		return begin, 0, false
	case s.landed && s.left > 0:
		s.untilMS = nowMS + walkMS
		return s.next, s.shard, true
	case s.landed:
		s.level, s.landed = max(s.level-1, 1), false
	}
	level := levels[s.level]
	s.shard = int64(q.random.n(int(q.keys.shards)))
	s.left, s.untilMS = walkClaims, nowMS+walkMS
	from := int64(0)
	if oldest, newest := s.oldest.Load(), s.newest.Load(); level.fraction > 0 && newest > oldest {
		from = oldest + int64(q.random.float()*level.fraction*float64(newest-oldest))
	}
	begin = kv.FirstGreaterOrEqual(q.keys.readyFrom(s.shard, from).Begin)
	begin.Offset += 1 + q.random.n(level.offset)
	return begin, s.shard, true
}

// walked notes the last hint that a search on a walk came to.
func (s *spread) walked(key []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		s.landed, s.next = true, kv.FirstGreaterThan(key)
		s.left--
	}
}

// goHome ends a walk that came to the end of the hints. If it did so at once, it was too far out: then it returns how
// many of the oldest hints to pass over instead.
func (s *spread) goHome(q *Queue) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
	if s.landed {
		return 0
	}
	s.level = max(s.level-1, 1)
	return q.random.n(nearby)
}

// widen is for a conflict: there is somebody else here.
func (s *spread) widen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level, s.calm = min(s.level+1, len(levels)-1), 0
	s.away, s.landed = true, false
}

// narrow is for a transaction without conflict.
func (s *spread) narrow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calm++; s.calm >= calmAfter {
		s.calm, s.level = 0, max(s.level-1, 0)
		if s.level == 0 {
			s.away = false
		}
	}
}

func (s *spread) learn(items, groups int) {
	now := int64(16 * items / groups)
	if old := s.perGroup.Load(); old > 0 {
		now = (3*old + now) / 4
	}
	s.perGroup.Store(max(now, 1))
}

// groupsFor guesses how many groups it takes to get n items.
func (s *spread) groupsFor(n int) int {
	per := int(s.perGroup.Load())
	if per == 0 {
		return 1
	}
	return max(1, (16*n+per-1)/per)
}
