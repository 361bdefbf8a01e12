package layer

import "sync"

// flights keeps the transactions of one handle that receive at the same time from claiming the same groups. It is
// advice: what decides is the lock.
type flights struct {
	mu     sync.Mutex
	groups map[string]*flight // guarded by mu; who is about to claim a group
}

// flight is one of those transactions, over all its attempts.
type flight struct {
	groups []string // guarded by the flights' mutex
}

// take enters group for f. It returns false if another has it.
func (s *flights) take(f *flight, group string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups == nil {
		s.groups = make(map[string]*flight)
	}
	other, taken := s.groups[group]
	if !taken {
		s.groups[group] = f
		f.groups = append(f.groups, group)
	}
	return !taken || other == f
}

// end gives up all that f has.
func (s *flights) end(f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, group := range f.groups {
		delete(s.groups, group)
	}
	f.groups = f.groups[:0]
}
