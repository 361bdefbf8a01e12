package worker

import (
	"slices"
	"time"
)

// A worker with several queues receives from each of them on a goroutine of its own, so that a queue that does not
// answer, or whose Next is slow, holds up no other queue. A hand takes the first claim that arrives. It stops its other
// receives, and does not wait until they have ended. A claim that arrives after that goes to another hand that waits.
// If none does, the claim waits for the next hand, and the worker extends it until then. The next hand takes such a
// claim before it asks any queue: otherwise a queue that is always ready would be faster each time. A hand has at most
// one receive under way for each queue.

const (
	// lookAgain is for how long one of several queues that had nothing ready is not looked at, while others have.
	lookAgain = 100 * time.Millisecond
	// patience is how long a hand waits for the queue whose turn it is. After that it asks the next queue, too.
	patience = 100 * time.Millisecond
	// longestOffer is how long a claim waits for a hand. After that the worker returns it, so that another process can
	// have it.
	longestOffer = time.Minute
)

// asking is a receive under way from one of several queues, for a hand.
type asking struct {
	source *source
	done   *finished     // the ack that travels with it; may be nil
	wait   time.Duration // for a message
	stop   chan struct{} // closed when the hand does not wait for it any more
	slow   bool          // it has taken longer than patience
	ended  bool          // guarded by the worker's mutex
	failed bool          // guarded by the worker's mutex; only with ended
}

// next receives for a hand. It settles done, too: in the transaction of the receive if both are of one queue, and
// otherwise at the same time. The wait ends when the hand is to end.
func (h *hand) next(done *finished) received {
	if s := h.w.sources[0]; len(h.w.sources) == 1 {
		return s.ask(h, done, s.receive.Wait, h.leaving)
	}
	defer h.stopAsking()
	all, ready := h.w.live(time.Now())
	r, over := received{}, false
	if h.w.offered() {
		h.settleAlone(done)
		done = nil
		r, over = h.await(patience, func() bool { return false })
	}
	if !over {
		r, over = h.look(ready, done)
	}
	if !over {
		r = h.wait()
	}
	h.w.given(r, all)
	return r
}

// look asks the queues in the order of their turns, without a wait for a message. over says that the hand must not wait
// for one: it has a claim, or is to end.
func (h *hand) look(ready []*source, done *finished) (r received, over bool) {
	for _, s := range ready {
		a := h.underWay(s)
		if a != nil && a.slow {
			continue
		}
		if a != nil || done != nil && done.in.source != s {
			h.settleAlone(done)
			done = nil
		}
		if a != nil { // it was stopped, and is about to end
			if r, over = h.awaits(a); over {
				return r, true
			}
			if a.slow {
				continue
			}
		}
		if a = h.startAsking(s, done, 0); a == nil {
			continue
		}
		done = nil
		if r, over = h.awaits(a); over {
			return r, true
		}
	}
	h.settleAlone(done)
	return received{}, false
}

// settleAlone settles the last ack of a claim on a goroutine of its own. done may be nil.
func (h *hand) settleAlone(done *finished) {
	if done == nil {
		return
	}
	of := done.in.as
	own := &hand{w: h.w, ctx: h.w.o.Test.Named(h.ctx, "last ack of %s under %d", of.Items[0].ID, of.Token)}
	h.w.wg.Go(func() {
		own.yield("ack")
		own.settle(done)
	})
}

// wait asks all queues, and waits for the first claim, up to Options.Poll.
func (h *hand) wait() received {
	for until := time.Now().Add(h.w.o.Poll); ; {
		all, _ := h.w.live(time.Now())
		for _, s := range all {
			if h.underWay(s) == nil {
				h.startAsking(s, nil, s.receive.Wait)
			}
		}
		r, over := h.await(time.Until(until), func() bool {
			return slices.ContainsFunc(all, func(s *source) bool { return h.asked[s] != nil && h.asked[s].ended })
		})
		if over || !time.Now().Before(until) {
			return r
		}
	}
}

// awaits waits for the end of one receive that is not to wait for a message, up to patience. If it takes longer, awaits
// sets slow. If it has got nothing, the queue counts as idle for lookAgain.
func (h *hand) awaits(a *asking) (r received, over bool) {
	ended, failed := false, false
	r, over = h.await(patience, func() bool {
		ended, failed = a.ended, a.failed
		return ended
	})
	switch {
	case !ended:
		a.slow = !over
		return r, over
	case !failed && !isClosed(a.stop):
		h.w.mu.Lock()
		a.source.idle = time.Now().Add(lookAgain)
		h.w.mu.Unlock()
	}
	delete(h.asked, a.source)
	return r, over
}

// await waits until the hand is given a claim, until ended, or for the time given. over is true if there is a claim, or
// if the hand is to end. ended is called under the worker's mutex.
func (h *hand) await(patience time.Duration, ended func() bool) (r received, over bool) {
	w := h.w
	timer := time.NewTimer(patience)
	defer timer.Stop()
	until := time.Now().Add(patience)
	w.mu.Lock()
	h.wants = true
	w.callOffer()
	w.mu.Unlock()
	for {
		select {
		case <-h.wake:
		case <-h.leaving:
		case <-timer.C:
		}
		h.yield("asked")
		w.mu.Lock()
		is := ended()
		if r, over = h.got, !h.wants || isClosed(h.leaving); over || is || !time.Now().Before(until) {
			h.wants, h.got = false, received{}
			w.mu.Unlock()
			return r, over
		}
		w.mu.Unlock()
	}
}

// underWay returns the receive of the hand that is under way for a queue; nil = there is none.
func (h *hand) underWay(s *source) *asking {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if a := h.asked[s]; a != nil && a.ended {
		delete(h.asked, s)
	}
	return h.asked[s]
}

// startAsking begins a receive from a queue. It returns nil if the worker has too many under way: hands that have ended
// may have left some that hang.
func (h *hand) startAsking(s *source, done *finished, wait time.Duration) *asking {
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.asking >= w.most {
		return nil
	}
	s.asking++
	a := &asking{source: s, done: done, wait: wait, stop: make(chan struct{})}
	h.asked[s] = a
	w.wg.Go(func() { h.runAsking(a) })
	return a
}

// stopAsking stops the receives of the hand that are under way.
func (h *hand) stopAsking() {
	for _, a := range h.asked {
		if !isClosed(a.stop) {
			close(a.stop)
		}
	}
}

// runAsking receives, and passes the claim to a hand.
func (h *hand) runAsking(a *asking) {
	w, s, ctx := h.w, a.source, h.ctx
	if w.o.Test != nil {
		ctx = w.o.Test.Named(ctx, "receive of worker %d.%d from %s", w.o.Test.Seed, h.number, s.q.Name())
	}
	own, failed := &hand{w: w, ctx: ctx}, true // unless a clock of the handle ends the goroutine
	defer own.endCalls()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		s.asking--
		a.ended, a.failed = true, failed
		h.wakeUp()
	}()
	own.yield("ask")
	r := s.ask(own, a.done, a.wait, a.stop)
	own.yield("answered")
	if failed = r.err != nil; failed {
		own.failed(r, a.done)
	}
	if len(r.claims) > 0 {
		own.offer(h, r)
	}
}

func (h *hand) wakeUp() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// offer passes a claim that h has received to a hand that waits, preferably to the given one. If none waits, h keeps
// the claim until one does, and extends it. When no hand has come for too long, h returns the claim.
func (h *hand) offer(to *hand, r received) {
	for until := time.Now().Add(longestOffer); ; {
		called := h.w.pass(to, r)
		if called == nil {
			return
		}
		if r.in == nil {
			r.in = h.newInHand(r)
		}
		if !h.keep(r.in, called, until) {
			h.w.withdraw(called)
			h.w.giveBack(h.ctx, r.in, nil, nil)
			r.in.cancel(nil)
			return
		}
	}
}

// keep extends a claim until called is closed. It reports false if there is no more to wait for.
func (h *hand) keep(in *inHand, called chan struct{}, until time.Time) bool {
	h.aside(in, func() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-called:
		case <-timer.C:
		case <-h.w.stopping:
		case <-in.ctx.Done():
		}
	})
	return isClosed(called) && !in.lost && in.ctx.Err() == nil
}

// pass gives a claim to a hand that waits, preferably to the given one. If none waits, it returns a channel that the
// next hand closes.
func (w *Worker) pass(to *hand, r received) (called chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range append([]*hand{to}, w.hands...) {
		if h.wants {
			h.wants, h.got = false, r
			h.wakeUp()
			return nil
		}
	}
	called = make(chan struct{})
	w.offers = append(w.offers, called)
	return called
}

// offered reports whether a claim waits for a hand.
func (w *Worker) offered() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.offers) > 0
}

// callOffer calls the first claim that waits for a hand. The mutex is held.
func (w *Worker) callOffer() {
	if len(w.offers) > 0 {
		close(w.offers[0])
		w.offers = w.offers[1:]
	}
}

// withdraw removes a claim that does not wait any more. If a hand has called it, the next claim is called instead.
func (w *Worker) withdraw(called chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if isClosed(called) {
		w.callOffer()
		return
	}
	w.offers = slices.DeleteFunc(w.offers, func(o chan struct{}) bool { return o == called })
}
