package layer

import (
	"sync"
	"sync/atomic"

	"fdbfifo/kv"
)

// spread keeps the handles of a queue apart from each other, without any communication.
//
// A handle begins at home: the handle claims the oldest group. Handles there together conflict, and the loser of a
// conflict goes for a walk: the loser lands on a hint chosen at random, and from there claims group after group, so
// that the handle has a stretch of the hints alone until the walk meets another handle's. Only the landing passes over
// hints without reading; each step reads the next hint. The more conflicts, the further away the landing. After
// walkClaims groups the handle lands nearer, and from time to time comes home instead: otherwise, with no handle left
// at home, the oldest groups would wait long.
//
// What a handle has learnt is advice: a wrong guess costs time, nothing else.
type spread struct {
	mu     sync.Mutex
	level  int            // guarded by mu; index into levels: how far away the next walk lands; 0 = no conflict lately
	calm   int            // guarded by mu; transactions without conflict since the level changed
	away   bool           // guarded by mu; on a walk
	landed bool           // guarded by mu; next is a step of the walk, not the landing
	next   kv.KeySelector // guarded by mu
	shard  int64          // guarded by mu; of the walk
	left   int            // guarded by mu; groups until the walk ends
	kept   int            // guarded by mu; groups kept since the last step
	offset int            // guarded by mu; hints passed over by the last landing
	// reach is how many hints a landing may pass over, because a landing further out has found none. Guarded by mu;
	// 0 = not known.
	reach   int
	untilMS int64 // guarded by mu

	// plenty: the last search which began at home found more than asked for.
	plenty atomic.Bool
	oldest atomic.Int64 // index of the oldest hint when last seen
	newest atomic.Int64 // index of the newest hint; read only when landing
	// fairTurn is, in a fair queue, the shard whose turn it is.
	fairTurn atomic.Int64
	turn     atomic.Int64 // counts the searches from the oldest: whose shard's timers come first
	// perGroup is how many items a group gave lately, in 1/16; 0 = not known.
	perGroup atomic.Int64
}

const (
	walkClaims = 64
	// After walkClaims groups, and after each walkMS, a handle comes home with probability 1/homeEvery, at the cost of
	// a conflict. More would be wasteful: after a pause all handles try at once, but home needs only a single handle.
	walkMS    = 500
	homeEvery = 8
	// keepClaims is how many claims in a row a handle on a walk takes of a group in hand, before the next step.
	keepClaims = 3
	// nearby is among how many of the oldest hints at least a landing chooses after finding nothing further out.
	nearby = 8
	// calmAfter is the number of transactions without conflict after which landings come a level nearer.
	calmAfter = 64
)

// levels are how far a landing goes: up to offset hints from a place. The place is the oldest hint, or a random place
// within the first fraction of the hints' ages. The database walks past the hints of the offset, so the offset is
// bounded: about a hundred hints cost as much as another read.
var levels = [...]struct {
	offset   int
	fraction float64
}{{}, {64, 0}, {256, 0}, {1024, 0}, {1024, 1}}

// place returns where a search begins; away is false if the search begins at home.
func (s *spread) place(q *Queue, where string, nowMS int64) (begin kv.KeySelector, shard int64, away bool) {
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
	s.shard = int64(q.random.n(int(q.keys.shards.all())))
	s.left, s.untilMS = walkClaims, nowMS+walkMS
	from := int64(0)
	if oldest, newest := s.oldest.Load(), s.newest.Load(); level.fraction > 0 && newest > oldest {
		from = oldest + int64(q.random.float()*level.fraction*float64(newest-oldest))
	}
	begin = kv.FirstGreaterOrEqual(q.keys.hintsFrom(where, s.shard, from).Begin)
	reach := level.offset
	if s.reach > 0 {
		reach = min(reach, s.reach)
	}
	s.offset = q.random.n(reach)
	begin.Offset += 1 + s.offset
	return begin, s.shard, true
}

// keeps reports whether a handle on a walk goes on with a group which an ack of the same transaction has left ready,
// instead of a step: nobody else sees the group's hint before the commit, so there is no conflict.
func (s *spread) keeps() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.away || s.kept >= keepClaims {
		s.kept = 0
		return false
	}
	s.kept++
	return true
}

// walked notes the last hint which a search on a walk in a shard came to. If another search has landed in another shard
// since, the walk goes on from that landing: between the key and the end of the other shard are hints of other
// templates.
func (s *spread) walked(shard int64, key []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away && s.shard == shard {
		if !s.landed && s.reach > 0 && s.offset >= s.reach/2 {
			s.reach += s.reach/2 + 1 // there may be more hints by now
		}
		s.landed, s.next = true, kv.FirstGreaterThan(key)
		s.left--
	}
}

// goHome ends a walk which reached the end of the hints. If the walk ended at its landing, the landing was too far out:
// then goHome returns how many of the oldest hints to pass over instead, fewer than before.
func (s *spread) goHome(q *Queue) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
	if s.landed {
		return 0
	}
	s.level = max(s.level-1, 1)
	s.reach = max(s.offset, nearby)
	return q.random.n(s.reach)
}

// widen is called after a conflict: another handle works at the same hints.
func (s *spread) widen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level, s.calm = min(s.level+1, len(levels)-1), 0
	s.away, s.landed = true, false
}

// narrow is called after a transaction without conflict.
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

// contended reports whether the handle has met a conflict lately.
func (s *spread) contended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level > 0
}

func (s *spread) learn(items, groups int) {
	now := int64(16 * items / groups)
	if old := s.perGroup.Load(); old > 0 {
		now = (3*old + now) / 4
	}
	s.perGroup.Store(max(now, 1))
}

// groupsFor guesses how many groups hold n items.
func (s *spread) groupsFor(n int) int {
	per := int(s.perGroup.Load())
	if per == 0 {
		return 1
	}
	return max(1, (16*n+per-1)/per)
}

// spreads keeps a spread for each template in use, because a spread is about the hints of one template.
type spreads struct {
	mu  sync.Mutex
	all map[string]*spread // guarded by mu; by packed template
}

// spreadOf returns the spread for a packed template.
func (q *Queue) spreadOf(where string) *spread {
	if where == "" {
		return &q.spread
	}
	q.spreads.mu.Lock()
	defer q.spreads.mu.Unlock()
	s := q.spreads.all[where]
	if s == nil {
		if q.spreads.all == nil {
			q.spreads.all = make(map[string]*spread)
		}
		s = &spread{}
		q.spreads.all[where] = s
	}
	return s
}
