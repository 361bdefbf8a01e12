package layer

import "sync"

// flights keeps the receiving transactions of one handle from claiming the same groups at the same time. flights is
// advice: the lock decides.
type flights struct {
	mu     sync.Mutex
	groups map[string]*flight // guarded by mu; who is about to claim a group
}

// flight is a receiving transaction of the handle, over all its attempts.
type flight struct {
	groups []string // guarded by the flights' mutex
}

// take enters group for f. take returns false if another flight has the group.
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

// end gives up all groups of f.
func (s *flights) end(f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, group := range f.groups {
		delete(s.groups, group)
	}
	f.groups = f.groups[:0]
}
