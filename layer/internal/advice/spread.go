package advice

import (
	"sync"
	"sync/atomic"
)

// Spread keeps the handles of a queue apart from each other, without any communication. It chooses the hint at which a
// handle's search for ready groups begins. (A hint is a key that leads to a ready group; hints lie in shards, by age.)
//
// A handle begins at home: the handle claims the oldest group. Handles there together conflict, and the loser of a
// conflict goes for a walk: the loser lands on a hint chosen at random, and from there claims group after group, so
// that the handle has a stretch of the hints alone until the walk meets another handle's. Only the landing passes over
// hints without reading; each step reads the next hint. The more conflicts, the further away the landing. After
// walkClaims groups the handle lands nearer, and from time to time comes home instead: otherwise, with no handle left
// at home, the oldest groups would wait long.
//
// A Spread is only advice: a wrong guess costs time, nothing else.
type Spread struct {
	mu     sync.Mutex
	level  int    // guarded by mu; index into levels: how far away the next walk lands; 0 = no conflict lately
	calm   int    // guarded by mu; transactions without conflict since the last conflict, or since Narrow has reset it
	away   bool   // guarded by mu; on a walk
	landed bool   // guarded by mu; the walk has landed: its next search is a step
	next   []byte // guarded by mu; the key of the last hint of the walk
	shard  int64  // guarded by mu; of the walk
	left   int    // guarded by mu; groups until the walk ends
	kept   int    // guarded by mu; groups kept since the last step
	offset int    // guarded by mu; hints passed over by the last landing
	// reach is how many hints a landing may pass over, because a landing further out has found none. Guarded by mu;
	// 0 = not known.
	reach int
	// untilMS is when the handle may come home, although groups of the walk are left. Guarded by mu.
	untilMS int64

	// The searches read and set the exported fields.

	Plenty   atomic.Bool  // the last search which began at home found more groups than asked for
	Oldest   atomic.Int64 // the index of the oldest hint
	Newest   atomic.Int64 // the index of the newest hint, which is read only when landing
	FairTurn atomic.Int64 // in a fair queue: the shard whose turn it is
	Turn     atomic.Int64 // counts the searches from the oldest hint: it says the timers of which shard come first
	perGroup atomic.Int64 // how many items a group gave lately, in 1/16; 0 = not known
}

const (
	walkClaims = 64
	// After walkClaims groups, and after each WalkMS, a handle comes home with probability 1/HomeEvery, at the cost of
	// a conflict. More would be wasteful: after a pause all handles try at once, but home needs only a single handle.
	WalkMS    = 500
	HomeEvery = 8
	// KeepClaims is how many claims in a row a handle on a walk makes of groups that its own acks have just left ready,
	// before the next step: see Keeps.
	KeepClaims = 3
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

// Place is where a search on a walk begins, among the hints of a shard: at a landing, or at the next step of the walk.
type Place struct {
	Shard int64
	After []byte // the key of a hint: behind that; nil = a landing
	// A landing passes over Offset hints and one more, counted from the first with an index of From at least.
	From   int64
	Offset int
}

// Place returns where a search begins, and notes the landing if it is one. away is false if the search begins at home:
// then p says nothing. shards is the number of shards.
func (s *Spread) Place(random Random, shards, nowMS int64) (p Place, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.away:
		return Place{}, false
	case s.landed && s.left > 0 && nowMS < s.untilMS: // the next step of the walk
		return Place{Shard: s.shard, After: s.next}, true
	case s.landed && random.N(HomeEvery) == 0: // the time or the groups of the walk are used up: perhaps home
		s.away = false
		return Place{}, false
	case s.landed && s.left > 0: // the next step, for another WalkMS
		s.untilMS = nowMS + WalkMS
		return Place{Shard: s.shard, After: s.next}, true
	case s.landed: // another walk, nearer
		s.level, s.landed = max(s.level-1, 1), false
	}
	level := levels[s.level]
	s.shard = int64(random.N(int(shards)))
	s.left, s.untilMS = walkClaims, nowMS+WalkMS
	from := int64(0)
	if oldest, newest := s.Oldest.Load(), s.Newest.Load(); level.fraction > 0 && newest > oldest {
		from = oldest + int64(random.Float()*level.fraction*float64(newest-oldest))
	}
	reach := level.offset
	if s.reach > 0 {
		reach = min(reach, s.reach)
	}
	s.offset = random.N(reach)
	return Place{Shard: s.shard, From: from, Offset: s.offset}, true
}

// Keeps reports whether a handle on a walk continues with a group that an ack of the same transaction has left ready,
// instead of a step. No other transaction sees the group's hint before the commit, so there is no conflict.
func (s *Spread) Keeps() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.away || s.kept >= KeepClaims {
		s.kept = 0
		return false
	}
	s.kept++
	return true
}

// Walked notes the key of the last hint which a search on a walk in a shard came to: the next step begins behind it. If
// another search has landed in another shard since, the walk goes on from that landing: between the key and the end of
// the other shard are hints of other templates.
func (s *Spread) Walked(shard int64, key []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away && s.shard == shard {
		if !s.landed && s.reach > 0 && s.offset >= s.reach/2 {
			s.reach += s.reach/2 + 1 // there may be more hints by now
		}
		s.landed, s.next = true, key
		s.left--
	}
}

// GoHome ends a walk which reached the end of the hints. If the walk ended at its landing, the landing was too far out:
// then GoHome returns how many of the oldest hints to pass over instead, fewer than the landing did or fewer than
// nearby. Otherwise it returns 0.
func (s *Spread) GoHome(random Random) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
	if s.landed {
		return 0
	}
	s.level = max(s.level-1, 1)
	s.reach = max(s.offset, nearby)
	return random.N(s.reach)
}

// Widen is called after a conflict, which means that another handle works at the same hints. The handle goes for a
// walk, further away than the last time.
func (s *Spread) Widen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level, s.calm = min(s.level+1, len(levels)-1), 0
	s.away, s.landed = true, false
}

// Narrow is called after a transaction without conflict. After calmAfter of these, landings come a level nearer, and at
// level 0 the handle comes home.
func (s *Spread) Narrow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calm++; s.calm >= calmAfter {
		s.calm, s.level = 0, max(s.level-1, 0)
		if s.level == 0 {
			s.away = false
		}
	}
}

// Contended reports whether the handle has met a conflict lately.
func (s *Spread) Contended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level > 0
}

// Learn notes how many items a transaction has claimed of how many groups. groups must be 1 or more. What Learn has
// noted before counts for three quarters.
func (s *Spread) Learn(items, groups int) {
	now := int64(16 * items / groups)
	if old := s.perGroup.Load(); old > 0 {
		now = (3*old + now) / 4
	}
	s.perGroup.Store(max(now, 1))
}

// GroupsFor guesses how many groups hold n items, by the numbers that Learn has noted; 1 if there are none.
func (s *Spread) GroupsFor(n int) int {
	per := int(s.perGroup.Load())
	if per == 0 {
		return 1
	}
	return max(1, (16*n+per-1)/per)
}

// Spreads keeps a Spread for each template in use, because a Spread is about the hints of one template. A program may
// use a new template for each order. So a handle that has spreadsMost templates forgets all of them.
type Spreads struct {
	whole Spread // of receives without a template
	mu    sync.Mutex
	all   map[string]*Spread // guarded by mu; by packed template
	begun int64              // guarded by mu; how often all was begun
}

// spreadsMost bounds the templates of which a handle keeps a Spread.
const spreadsMost = 10_000

// Of returns the Spread for a packed template; "" = of receives without one.
func (s *Spreads) Of(where string) *Spread {
	if where == "" {
		return &s.whole
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[where]
	if one == nil {
		if s.all == nil || len(s.all) >= spreadsMost {
			s.all = make(map[string]*Spread)
			s.begun++
		}
		one = &Spread{}
		one.FairTurn.Store(s.begun - 1) // otherwise the first shard of a fair queue would come first each time
		one.Turn.Store(s.begun - 1)
		s.all[where] = one
	}
	return one
}
