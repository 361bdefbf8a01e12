package advice

import (
	"maps"
	"sync"
)

// Flights keeps the receiving transactions of one handle from claiming the same lanes (groups or parts of groups) at
// the same time. Each such transaction is a Flight: it takes a lane before it claims it, and lands when it has ended.
//
// A transaction whose attempt began before another landed may read the database as it was before the other's commit. It
// would find the other's lanes free, and lose a conflict. So a lane stays taken for all such attempts. Example: T1
// claims A and lands; T2, which began before, may not take A; T3, which begins now, may.
type Flights struct {
	mu     sync.Mutex
	clock  int64              // guarded by mu; counts attempts and landings
	groups map[string]*Flight // guarded by mu; by lane, the flight that is about to claim it
	landed map[string]int64   // guarded by mu; by lane, when its flight landed, while an older attempt is under way
	began  map[*Flight]int64  // guarded by mu; when the attempt under way of each flight began
}

// Flight is a receiving transaction of the handle, over all its attempts.
type Flight struct {
	all    *Flights
	groups []string // guarded by the mutex of all; the lanes taken
}

// Begin returns the flight of a transaction. The caller must call Land when the transaction and the work that follows
// it have ended.
func (s *Flights) Begin() *Flight {
	f := &Flight{all: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups == nil {
		s.groups, s.landed = make(map[string]*Flight), make(map[string]int64)
		s.began = make(map[*Flight]int64)
	}
	s.clock++
	s.began[f] = s.clock
	return f
}

// Take takes a lane for the flight, so that it may claim the lane. Take returns false if another flight has the lane,
// or has landed with it since the attempt of this flight began.
func (f *Flight) Take(lane string) bool {
	s := f.all
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, taken := s.groups[lane]; taken {
		return other == f
	}
	if s.landed[lane] > s.began[f] {
		return false
	}
	s.groups[lane] = f
	f.groups = append(f.groups, lane)
	return true
}

// Attempt begins another attempt of the transaction: it gives up the lanes that the failed attempt was about to claim.
func (f *Flight) Attempt() {
	s := f.all
	s.mu.Lock()
	defer s.mu.Unlock()
	f.giveUp()
	s.clock++
	s.began[f] = s.clock
}

// giveUp gives up all lanes of the flight. The mutex of all is held.
func (f *Flight) giveUp() {
	for _, lane := range f.groups {
		delete(f.all.groups, lane)
	}
	f.groups = f.groups[:0]
}

// Land ends the flight. Attempts that begin from now on may take its lanes. Attempts that are under way may not.
func (f *Flight) Land() {
	s := f.all
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	for _, lane := range f.groups {
		s.landed[lane] = s.clock
	}
	f.giveUp()
	delete(s.began, f)
	oldest := s.clock
	for _, at := range s.began {
		oldest = min(oldest, at)
	}
	maps.DeleteFunc(s.landed, func(_ string, at int64) bool { return at <= oldest })
}

// Empty reports whether no flight has any lane.
func (s *Flights) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.groups) == 0
}
