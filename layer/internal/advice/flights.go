package advice

import "sync"

// Flights keeps the receiving transactions of one handle from claiming the same groups at the same time.
type Flights struct {
	mu     sync.Mutex
	groups map[string]*Flight // guarded by mu; who is about to claim a group
}

// Flight is a receiving transaction of the handle, over all its attempts.
type Flight struct {
	all    *Flights
	groups []string // guarded by the mutex of all
}

// Begin returns the flight of a transaction. The caller calls Land when the transaction and what follows it have ended.
func (s *Flights) Begin() *Flight { return &Flight{all: s} }

// Take enters a lane for the flight. Take returns false if another flight has the lane.
func (f *Flight) Take(lane string) bool {
	s := f.all
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups == nil {
		s.groups = make(map[string]*Flight)
	}
	other, taken := s.groups[lane]
	if !taken {
		s.groups[lane] = f
		f.groups = append(f.groups, lane)
	}
	return !taken || other == f
}

// Attempt gives up what a failed attempt was about to claim.
func (f *Flight) Attempt() { f.Land() }

// End does nothing: see Land.
func (f *Flight) End(Outcome) {}

// Land gives up all lanes of the flight.
func (f *Flight) Land() {
	s := f.all
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lane := range f.groups {
		delete(s.groups, lane)
	}
	f.groups = f.groups[:0]
}

// Empty reports whether no flight has any lane.
func (s *Flights) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.groups) == 0
}
