package advice

import (
	"maps"
	"sync"
)

// Flights keeps the receiving transactions of one handle from claiming the same groups at the same time.
//
// A transaction whose attempt began before another landed may read the database as it was before the other's commit. It
// would find the other's groups free, and lose a conflict. So a group stays taken for all such attempts.
type Flights struct {
	mu     sync.Mutex
	clock  int64              // guarded by mu; counts attempts and landings
	groups map[string]*Flight // guarded by mu; by group, the flight that is about to claim it
	landed map[string]int64   // guarded by mu; when the flight with a group landed, while an older attempt is under way
	began  map[*Flight]int64  // guarded by mu; when the attempt under way of each flight began
}

// Flight is a receiving transaction of the handle, over all its attempts.
type Flight struct {
	all    *Flights
	groups []string // guarded by the mutex of all
}

// Begin returns the flight of a transaction. The caller calls Land when the transaction and what follows it have ended.
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

// Take enters a lane for the flight. Take returns false if another flight has the lane, or had it when the attempt
// began.
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

// Attempt gives up what a failed attempt was about to claim.
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

// End does nothing: see Land.
func (f *Flight) End(Outcome) {}

// Land gives up all lanes of the flight, for the attempts that begin from now on.
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
