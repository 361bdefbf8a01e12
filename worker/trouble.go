package worker

import (
	"sync"
	"time"

	"fdbfifo/kv"
)

// trouble gives the goroutines of a worker one pace and one log line while the database fails: after a receive that has
// failed, one goroutine at a time asks again, after a pause that doubles, until a receive has succeeded.
type trouble struct {
	turn chan struct{} // has a token while a goroutine asks; the others wait for it

	mu      sync.Mutex
	failing bool              // guarded by mu: the last receive has failed
	pause   time.Duration     // guarded by mu
	next    time.Time         // guarded by mu; when the next goroutine may ask
	told    map[int]time.Time // guarded by mu; when an error of the code was reported last
}

const (
	// longestPause bounds the pause between two receives while the database fails.
	longestPause = time.Second
	// reportAgain is how long an error of the database is not reported again.
	reportAgain = 10 * time.Second
)

func newTrouble() *trouble {
	return &trouble{turn: make(chan struct{}, 1), told: make(map[int]time.Time)}
}

// ask is next at the worker's pace. An ack is never delayed. A goroutine that asks alone does not wait for a message,
// because the others wait for its answer.
func (w *Worker) ask(h *hand, done *finished) received {
	alone := false
	if failing, _ := w.trouble.state(); failing && done == nil {
		var ok bool
		if alone, ok = w.trouble.enter(h.leaving); !ok {
			return received{}
		}
		h.yield("asks again")
	}
	var r received
	defer func() { w.trouble.leave(alone, r.err) }() // also if a clock of the handle ends the goroutine
	r = w.next(h, done, alone)
	return r
}

// enter returns when the goroutine may ask, after a failure. alone: no other may until leave. ok is false if stop was
// closed before.
func (t *trouble) enter(stop <-chan struct{}) (alone, ok bool) {
	select {
	case t.turn <- struct{}{}:
	case <-stop:
		return false, false
	}
	failing, next := t.state()
	if !failing {
		<-t.turn
		return false, true
	}
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true, true
	case <-stop:
		<-t.turn
		return false, false
	}
}

func (t *trouble) state() (failing bool, next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failing, t.next
}

// leave notes how a receive has ended.
func (t *trouble) leave(alone bool, err error) {
	t.mu.Lock()
	switch {
	case err == nil:
		t.failing, t.pause = false, 0
	case kv.Code(err) != 0 && (alone || !t.failing): // else one that had begun before
		t.failing, t.pause = true, min(max(2*t.pause, firstWait), longestPause)
		t.next = time.Now().Add(t.pause)
	}
	t.mu.Unlock()
	if alone {
		<-t.turn
	}
}

// isNews reports whether an error is to be reported. It is not if an error of the database with the same code was
// reported less than reportAgain ago.
func (t *trouble) isNews(err error) bool {
	code := kv.Code(err)
	if code == 0 {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if last, known := t.told[code]; known && now.Sub(last) < reportAgain {
		return false
	}
	t.told[code] = now
	return true
}
