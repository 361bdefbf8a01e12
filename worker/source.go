package worker

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
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

	// Guarded by the worker's mutex.
	gone bool
	pass float64   // items given: the queue with the least is next
	idle time.Time // until then it counts as without ready groups
}

func newSource(from Source, receive layer.ReceiveOptions) (*source, error) {
	s := &source{q: from.Queue, handler: from.Handler, receive: receive}
	s.receive.Where = maps.Clone(from.Where) // the caller's may change
	if from.Group != nil {
		s.receive.Group = layer.OnlyGroup(*from.Group)
	}
	s.receive.Unordered, s.next = from.Unordered, from.Next
	if s.q.Config().LeasePer == layer.LeasePerItem {
		s.receive.Max = 1 // otherwise several hands would handle messages of one group side by side
	}
	if s.next != nil {
		return s, nil
	}
	return s, s.receive.Check(s.q.Config())
}

// lookAgain is for how long one of several queues that had nothing ready is not looked at, while others have.
const lookAgain = 100 * time.Millisecond

// received is the result of a receive from one of the queues.
type received struct {
	source *source
	claims []*layer.Claim
	state  bool // the claims have the groups' state
	err    error
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
		if done, err = s.ask(h, done, &o); err != nil {
			h.settle(done)
			return received{source: s, err: err}
		}
	}
	o.Wait, o.Stop, o.State = wait, stop, s.state.Load()
	r := received{source: s, state: o.State}
	if done == nil {
		r.claims, r.err = s.q.Receive(ctx, o)
		return r
	}
	if r.claims, r.err = s.q.SettleReceive(ctx, done.settle, o); mayPass(r.err) {
		if err := done.in.settle(ctx, done.settle, kv.MaybeCommitted(r.err)); err != nil {
			r.err = err
		}
	}
	return r
}

// ask asks Next for the template and the group, and returns what is left of done: see settleBefore.
func (s *source) ask(h *hand, done *finished, o *layer.ReceiveOptions) (*finished, error) {
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
// them that are not known to be idle.
func (w *Worker) live(now time.Time) (all, ready []*source) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sources {
		if !s.gone {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b *source) int {
		switch {
		case a.pass < b.pass:
			return -1
		case a.pass > b.pass:
			return 1
		}
		return 0
	})
	for _, s := range all {
		if !s.idle.After(now) {
			ready = append(ready, s)
		}
	}
	return all, ready
}

// next receives for a hand from the queue whose turn it is. done is settled first, in the same transaction if it can
// be. The wait ends when the hand is to end. With look there is no wait, and all queues are asked.
func (w *Worker) next(h *hand, done *finished, look bool) received {
	ctx, stop := h.ctx, h.leaving
	if len(w.sources) == 1 {
		s, wait := w.sources[0], time.Duration(0)
		if !look {
			wait = s.receive.Wait
		}
		return s.receiveFrom(ctx, h, done, wait, stop)
	}
	all, ready := w.live(time.Now())
	if look {
		ready = all
	}
	for _, s := range ready {
		if done != nil && done.in.source != s {
			h.settle(done)
			done = nil
		}
		r := s.receiveFrom(ctx, h, done, 0, stop)
		done = nil
		if r.err != nil || len(r.claims) > 0 {
			w.given(r, all)
			return r
		}
		w.mu.Lock()
		s.idle = time.Now().Add(lookAgain)
		w.mu.Unlock()
	}
	h.settle(done)
	if look {
		return received{}
	}
	r := w.await(ctx, all, stop)
	w.given(r, all)
	return r
}

// given counts the items that a queue was given. A queue that was idle does not get the items that it missed in that
// time.
func (w *Worker) given(r received, all []*source) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := r.source
	if s == nil || len(r.claims) == 0 {
		return
	}
	if !s.idle.IsZero() {
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

// await waits on all queues at once. It returns the first claim, and gives the others back.
func (w *Worker) await(ctx context.Context, all []*source, leaving <-chan struct{}) received {
	stop, over := make(chan struct{}), make(chan struct{})
	var once sync.Once
	end := func() { once.Do(func() { close(stop) }) }
	defer close(over)
	go func() {
		select {
		case <-leaving:
			end()
		case <-over:
		}
	}()
	results := make([]received, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		ctx := w.o.Test.Named(ctx, "wait of %d for %s", i, s.q.Name())
		wg.Go(func() {
			h := &hand{w: w, ctx: ctx}
			defer h.endCalls()
			results[i] = s.receiveFrom(ctx, h, nil, s.receive.Wait, stop)
			if results[i].err != nil || len(results[i].claims) > 0 {
				end()
			}
		})
	}
	wg.Wait()
	first := received{}
	for _, r := range results {
		switch {
		case len(first.claims) == 0 && (len(r.claims) > 0 || r.err != nil):
			first = r
		case len(r.claims) > 0:
			w.giveBackUntried(r)
		}
	}
	return first
}

// giveBackUntried gives back claims that no hand has. If that fails their leases run out.
func (w *Worker) giveBackUntried(r received) {
	first := r.claims[0]
	ctx := w.o.Test.Named(context.Background(), "give back of %s under %d", first.Items[0].ID, first.Token)
	w.o.Test.Pause(ctx, "begin")
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for _, c := range r.claims {
		if err := r.source.q.Nack(ctx, c, layer.NackOptions{Release: true}); err != nil {
			return
		}
	}
}

// leave removes a queue that is gone. If it was the last, the worker ends. leave returns true for the first hand that
// meets the loss, which then reports it, unless the worker is being stopped.
func (w *Worker) leave(s *source, err error) (news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.gone {
		return false
	}
	s.gone, news = true, !w.stopped
	for _, o := range w.sources {
		if !o.gone {
			return news
		}
	}
	w.end(err)
	return news
}
