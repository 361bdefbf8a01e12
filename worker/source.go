package worker

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

// source is a queue that a worker serves.
type source struct {
	q       *layer.Queue
	handler Handler
	receive layer.ReceiveOptions
	next    func() (where layer.Template, group *string) // asked before each receive; may be nil
	state   atomic.Bool                                  // handlers ask for the groups' state
	pace    *pace                                        // of the receives, while they fail
	tag     string                                       // tells the sources apart in simulations

	// Guarded by the worker's mutex.
	gone   bool
	pass   float64   // items given: the queue with the least is next
	idle   time.Time // until then it counts as without ready groups
	asking int       // receives under way, of a worker with several queues
}

func newSource(from Source, receive layer.ReceiveOptions) (*source, error) {
	s := &source{q: from.Queue, handler: from.Handler, receive: receive, pace: newPace()}
	s.receive.Where = maps.Clone(from.Where) // the caller's may change
	if from.Group != nil {
		s.receive.Group = layer.OnlyGroup(*from.Group)
	}
	s.receive.Unordered, s.next = from.Unordered, from.Next
	if s.q.Config().LeasePerItem {
		s.receive.Max = 1 // otherwise several hands would handle messages of one group side by side
	}
	if s.next != nil {
		return s, nil
	}
	return s, s.receive.Check(s.q.Config())
}

// received is the result of a receive from one of the queues.
type received struct {
	source *source
	claims []*layer.Claim
	state  bool // the claims have the groups' state
	err    error
	in     *inHand // if the claim has waited for a hand; otherwise nil
}

// finished is the ack that ends a claim, and travels with the next receive.
type finished struct {
	in     *inHand
	settle layer.Settlement
}

// receiveFrom settles, unless done is nil, and receives for a hand. It also tries to settle done if the receive fails.
func (s *source) receiveFrom(
	ctx context.Context, h *hand, done *finished, wait time.Duration, stop <-chan struct{},
) received {
	o := s.receive
	if s.next != nil {
		var err error
		if done, err = s.askNext(h, done, &o); err != nil {
			h.settle(done)
			return received{source: s, err: err}
		}
	}
	if done != nil {
		ctx = context.WithoutCancel(ctx) // also a stop by force waits for an ack
	}
	ctx, free := h.w.inTime(ctx)
	defer free()
	o.Wait, o.Stop, o.State = wait, stop, s.state.Load() && o.Where == nil // a lane has no state
	r := received{source: s, state: o.State}
	if done == nil {
		r.claims, r.err = s.q.Receive(ctx, o)
		return r
	}
	if r.claims, r.err = s.q.SettleReceive(ctx, done.settle, o); mayPass(r.err) {
		ctx, cancel := context.WithTimeout(ctx, done.in.patience())
		defer cancel()
		if err := done.in.settle(ctx, done.settle, kv.MaybeCommitted(r.err)); err != nil {
			r.err = err
		}
	}
	return r
}

// askNext asks Next for the template and the group, and returns what is left of done: see settleBefore.
func (s *source) askNext(h *hand, done *finished, o *layer.ReceiveOptions) (*finished, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), callback.Patience) // Next does not see it
	defer cancel()
	asked := *o // Next may return when no goroutine waits for it any more
	done, err := h.settleBefore(done, &call{ctx: ctx}, "Next", func() { asked.Where, asked.Group = s.next() })
	if err != nil {
		return done, err
	}
	*o = asked
	return done, o.Check(s.q.Config())
}

// live returns the sources that are not gone; the source whose turn it is comes first. The second result has those of
// them that are neither known to be idle nor failing.
func (w *Worker) live(now time.Time) (all, ready []*source) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sources {
		if !s.gone {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b *source) int { return cmp.Compare(a.pass, b.pass) })
	for _, s := range all {
		if failing, _ := s.pace.state(); !failing && !s.idle.After(now) {
			ready = append(ready, s)
		}
	}
	return all, ready
}

// given counts the items that a queue was given. A queue that was idle does not get the items that it missed in that
// time. One receive that gets nothing says little: a queue that has given items before the next look was not idle.
func (w *Worker) given(r received, all []*source) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := r.source
	if s == nil || len(r.claims) == 0 {
		return
	}
	if !s.idle.IsZero() && !time.Now().Before(s.idle) {
		least := math.Inf(1)
		for _, o := range all {
			if o != s && o.idle.IsZero() {
				least = min(least, o.pass)
			}
		}
		if !math.IsInf(least, 1) {
			s.pass = max(s.pass, least)
		}
	}
	s.idle = time.Time{}
	s.pass += float64(len(r.claims[0].Items))
}

// leave removes a queue that is gone. If it was the last, the worker ends. leave returns true for the first hand that
// meets the loss, which then reports it, unless the worker is being stopped.
func (w *Worker) leave(s *source, err error) (news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.gone {
		return false
	}
	s.gone, news = true, !w.isStopping()
	if !slices.ContainsFunc(w.sources, func(o *source) bool { return !o.gone }) {
		w.end(err)
	}
	return news
}
