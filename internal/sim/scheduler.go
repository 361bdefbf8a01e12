package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// place names a parked goroutine. No two goroutines should get to the same place in the same step.
type place struct {
	what string // kind of step, e.g. "commit"
	who  int    // the handle or the actor
	n    int    // the transaction of the handle
}

// scheduler decides which goroutine continues.
//
// The race detector must see that the actions of one goroutine come before those of the next one. It sees this by the
// mutex of a park, and by settle, which is synctest.Wait: all goroutines that have blocked in a channel or a timer
// before it returns come before. There is one exception. In sync.WaitGroup.Wait the detector ignores the goroutine that
// blocks. Its actions since its last park then have no order for the detector, although it stands still. So a goroutine
// that has acted after its last park must wait for others with a channel (see serve in layer/subscription.go).
type scheduler struct {
	settle func() // returns when every other goroutine is blocked
	rng    *rand.Rand
	knobs  *knobs
	trace  *trace
	leap   float64   // knobs.leap, while there are faults
	most   int       // steps without progress, after which a run is given up
	moved  int       // the step of the last progress: see progress
	steps  int       // written by the driver alone
	can    []*parked // the goroutines that may continue; the driver's

	arrived chan struct{} // holds one token if a goroutine has parked

	mu        sync.Mutex
	parked    []*parked    // guarded by mu
	free      []*parked    // guarded by mu; of goroutines that went on, for others
	live      int          // guarded by mu; actors that have not returned
	gone      map[int]bool // guarded by mu; dead handles: their goroutines park no more
	frozen    map[int]bool // guarded by mu; handles that get no turn
	ambiguous int          // guarded by mu; steps with two goroutines of one name
	given     bool         // guarded by mu; the run was given up: no goroutine parks any more

	paused time.Duration // guarded by mu; long pauses of the whole world, in sum
}

// parked is a goroutine that waits for its turn, and when it came to wait.
type parked struct {
	place
	from   int // it has no turn before this step
	step   int
	at     time.Time
	until  time.Time // held until then; zero = it was not held
	foot   *footprint
	seeks  int           // so many commits are to be applied that meet its own, before it goes on
	found  bool          // they were
	own    bool          // no others count than those that write what it writes
	resume chan struct{} // gets one token for each park
}

func (p *parked) compare(o *parked) int {
	switch { // not cmp.Or, which compares all: every step sorts those that are parked
	case p.who != o.who:
		return cmp.Compare(p.who, o.who)
	case p.n != o.n:
		return cmp.Compare(p.n, o.n)
	case p.what != o.what:
		return cmp.Compare(p.what, o.what)
	case p.step != o.step:
		return cmp.Compare(p.step, o.step)
	}
	return p.at.Compare(o.at)
}

// park blocks until the driver picks the caller. No mutex may be held.
func (s *scheduler) park(p place) { s.parkFor(p, 0, nil) }

// parkFor is park for at least so many steps of others, in a transaction of that footprint if there is one.
func (s *scheduler) parkFor(p place, steps int, f *footprint) {
	s.mu.Lock()
	if s.given || s.gone[p.who] {
		s.mu.Unlock()
		return
	}
	me := s.spare()
	*me = parked{place: p, from: s.steps + steps, step: s.steps, at: time.Now(), foot: f, resume: me.resume}
	s.parked = append(s.parked, me)
	s.mu.Unlock()
	s.signal()
	<-me.resume
	s.mu.Lock()
	s.free = append(s.free, me)
	s.mu.Unlock()
}

// begins returns the place of a goroutine that begins a transaction: another than those of the handle's goroutines that
// have come there in an earlier step. Of two that come in the same step the seed does not decide: see ambiguous.
func (s *scheduler) begins(who int) place {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := place{"begin", who, 0}
	for slices.ContainsFunc(s.parked, func(o *parked) bool { return o.place == p && o.step < s.steps }) {
		p.n++
	}
	return p
}

// spare is a parked for another goroutine. The mutex is held.
func (s *scheduler) spare() *parked {
	if n := len(s.free); n > 0 {
		p := s.free[n-1]
		s.free = s.free[:n-1]
		return p
	}
	return &parked{resume: make(chan struct{}, 1)}
}

func (s *scheduler) signal() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// start runs fn on a goroutine that begins with a park.
func (s *scheduler) start(who int, fn func()) {
	s.mu.Lock()
	s.live++
	s.mu.Unlock()
	go func() {
		defer func() { // an actor of a run that was given up leaves by Goexit
			s.mu.Lock()
			s.live--
			s.mu.Unlock()
			s.signal()
		}()
		s.park(place{"start", who, 0})
		fn()
	}()
}

// giveUp lets everything go on at once, and returns when all actors have gone, or after limit.
func (s *scheduler) giveUp(limit time.Duration) {
	s.mu.Lock()
	s.given = true
	for _, p := range s.parked {
		p.resume <- struct{}{}
	}
	s.parked = nil
	s.mu.Unlock()
	for end := time.Now().Add(limit); time.Now().Before(end) && s.alive(); {
		time.Sleep(time.Second)
	}
}

func (s *scheduler) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live > 0
}

// kill lets the goroutines of these handles continue, and never park again.
func (s *scheduler) kill(who ...int) {
	s.mu.Lock()
	if s.gone == nil {
		s.gone = make(map[int]bool)
	}
	for _, n := range who {
		s.gone[n] = true
	}
	var dead []*parked
	s.parked = slices.DeleteFunc(s.parked, func(p *parked) bool {
		if s.gone[p.who] {
			dead = append(dead, p)
		}
		return s.gone[p.who]
	})
	s.mu.Unlock()
	for _, p := range dead {
		p.resume <- struct{}{}
	}
}

// someoneAt reports whether a goroutine is parked at that kind of step.
func (s *scheduler) someoneAt(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.parked, func(p *parked) bool { return p.what == what })
}

// isAt reports whether a goroutine of a handle or an actor is parked at that kind of step.
func (s *scheduler) isAt(what string, who int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.parked, func(p *parked) bool { return p.what == what && p.who == who })
}

// freeze gives those no turn until they are thawed. Their timers run on.
func (s *scheduler) freeze(frozen bool, who ...int) {
	s.mu.Lock()
	if s.frozen == nil {
		s.frozen = make(map[int]bool)
	}
	for _, n := range who {
		s.frozen[n] = frozen
	}
	s.mu.Unlock()
	s.signal()
}

// thaw ends all freezing.
func (s *scheduler) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = nil
}

// occupy keeps the driver driving though no actor lives, until n is taken back.
func (s *scheduler) occupy(n int) {
	s.mu.Lock()
	s.live += n
	s.mu.Unlock()
	s.signal()
}

// ended reports whether the goroutines of a handle must end, because it died or the run was given up.
func (s *scheduler) ended(who int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given || s.gone[who]
}

func (s *scheduler) givenUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given
}

// drive lets one goroutine after the other go on until all actors have returned. It fails if that takes longer than
// limit of virtual time, or the run makes no progress for its number of steps.
func (s *scheduler) drive(limit time.Duration) error {
	begun := time.Now()
	for {
		s.settle()
		if s.alive() && (time.Since(begun) > limit || s.sinceProgress() > s.most) {
			return fmt.Errorf("sim: no end within %s of virtual time, or %d steps without progress; parked: %s",
				limit, s.most, s.names())
		}
		next, done := s.pick()
		switch {
		case done:
			return nil
		case next == nil:
			select {
			case <-s.arrived:
			case <-time.After(s.idle(limit)):
			}
			continue
		}
		s.mu.Lock() // who was woken by a timer reads it
		s.steps++
		s.mu.Unlock()
		s.trace.step(s.steps, next.place)
		next.resume <- struct{}{}
		s.pass()
	}
}

// progress notes that a handler has succeeded for a message for the first time. A worker with calls that are stuck for
// minutes takes many steps between two messages.
func (s *scheduler) progress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved = s.steps
}

func (s *scheduler) sinceProgress() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps - s.moved
}

// step returns the number of the present step, for a goroutine that a timer may have woken.
func (s *scheduler) step() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps
}

// pick takes one of the parked goroutines out; nil if there is none. done is true if no actor lives.
func (s *scheduler) pick() (next *parked, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.arrived:
	default:
	}
	if s.live == 0 {
		return nil, true
	}
	slices.SortFunc(s.parked, (*parked).compare)
	now := time.Now()
	can := s.can[:0]
	for i, p := range s.parked {
		if i > 0 && p.compare(s.parked[i-1]) == 0 && p.what != "drive" { // those are all alike
			s.ambiguous++
			s.trace.note("ambiguous", p.place)
		}
		if p.from <= s.steps && !s.frozen[p.who] && !p.until.After(now) {
			can = append(can, p)
		}
	}
	s.can = can
	for len(can) > 0 {
		some := s.prefer(can)
		next = some[s.rng.IntN(len(some))]
		if s.hold(next) || s.seek(next) {
			i := slices.Index(can, next)
			can = slices.Delete(can, i, i+1)
			continue
		}
		i := slices.Index(s.parked, next)
		s.parked = slices.Delete(s.parked, i, i+1)
		return next, false
	}
	return nil, false
}

// pass lets virtual time go on though goroutines are parked, now and then: what a slow process or network does.
func (s *scheduler) pass() {
	switch u := s.rng.Float64(); {
	case u < s.knobs.longPause:
		s.settle()
		d := time.Duration(s.rng.Int64N(int64(8 * time.Second)))
		time.Sleep(d)
		s.mu.Lock()
		s.paused += d
		s.mu.Unlock()
	case u < s.knobs.longPause+s.knobs.shortPause:
		s.settle()
		time.Sleep(time.Duration(s.rng.Int64N(int64(20 * time.Millisecond))))
	case u < s.knobs.longPause+s.knobs.shortPause+s.leap:
		s.settle()
		time.Sleep(s.knobs.leapLeast + time.Duration(s.rng.Int64N(int64(time.Hour))))
	}
}

// pausedFor returns for how long the whole world has paused.
func (s *scheduler) pausedFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused
}

func (s *scheduler) names() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(func() (all []place) {
		for _, p := range s.parked {
			all = append(all, p.place)
		}
		return all
	}())
}
