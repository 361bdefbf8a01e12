package worker

import (
	"errors"
	"sync"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/layer"
)

// pace gives the receives from a source one pace while they fail: after a receive that has failed, one goroutine at a
// time asks again, after a pause that doubles, until a receive has succeeded.
type pace struct {
	turn chan struct{} // has a token while a goroutine asks; the others wait for it

	mu      sync.Mutex
	failing bool          // guarded by mu: the last receive has failed
	pause   time.Duration // guarded by mu
	next    time.Time     // guarded by mu; when the next goroutine may ask
}

const (
	// longestPause bounds the pause between two receives while the database fails.
	longestPause = time.Second
)

func newPace() *pace { return &pace{turn: make(chan struct{}, 1)} }

// ask receives for a hand at the source's pace. It settles done first, in the same transaction if it can. An ack is
// never delayed. A goroutine that asks alone does not wait for a message, because the others wait for its answer. The
// wait for a message ends when stop is closed.
func (s *source) ask(h *hand, done *finished, wait time.Duration, stop <-chan struct{}) received {
	alone := false
	if failing, _ := s.pace.state(); failing && done == nil {
		var ok bool
		if alone, ok = s.pace.enter(stop); !ok {
			return received{source: s}
		}
		h.yield("asks again")
	}
	if alone {
		wait = 0
	}
	r := received{source: s, err: callback.ErrGoexit} // until receiveFrom has returned
	defer func() { s.pace.leave(alone, r.err) }()     // also if a clock of the handle ends the goroutine
	r = s.receiveFrom(h.ctx, h, done, wait, stop)
	return r
}

// enter returns when the goroutine may ask, after a failure. alone: no other may until leave. ok is false if stop was
// closed before.
func (p *pace) enter(stop <-chan struct{}) (alone, ok bool) {
	select {
	case p.turn <- struct{}{}:
	case <-stop:
		return false, false
	}
	failing, next := p.state()
	if !failing {
		<-p.turn
		return false, true
	}
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true, true
	case <-stop:
		<-p.turn
		return false, false
	}
}

func (p *pace) state() (failing bool, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failing, p.next
}

// leave notes how a receive has ended.
func (p *pace) leave(alone bool, err error) {
	p.mu.Lock()
	switch {
	case err == nil:
		p.failing, p.pause = false, 0
	case errors.Is(err, layer.ErrClaimLost): // only the ack that travelled with the receive has failed
	case alone || !p.failing: // else one that had begun before
		p.failing, p.pause = true, min(max(2*p.pause, firstWait), longestPause)
		p.next = time.Now().Add(p.pause)
	}
	p.mu.Unlock()
	if alone {
		<-p.turn
	}
}
