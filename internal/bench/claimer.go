package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// claimer is one consumer: it acks the claim it has in the transaction that receives the next.
type claimer struct {
	handle *layer.Queue
	of     *queue // whose account it keeps
	o      layer.ReceiveOptions
	held   *layer.Claim
	claims atomic.Int64
	done   []string // groups acked, once for each item
}

// turn acks the claimer's items and receives again. It returns how many items it acked.
func (c *claimer) turn(ctx context.Context) (int, error) {
	var claims []*layer.Claim
	var err error
	acked := c.held
	if acked == nil {
		claims, err = c.handle.Receive(ctx, c.o)
	} else {
		claims, err = c.handle.SettleReceive(ctx, layer.Settlement{Claim: acked, FinishAll: true}, c.o)
	}
	if err != nil {
		return 0, err
	}
	c.held = nil
	if len(claims) > 0 {
		c.held = claims[0] // MaxGroups is 1
		c.claims.Add(1)
	}
	return c.settled(acked), nil
}

// settled notes that a claim was acked.
func (c *claimer) settled(acked *layer.Claim) int {
	if acked == nil {
		return 0
	}
	for range acked.Items {
		c.done = append(c.done, acked.Group)
	}
	c.of.left.Add(-int64(len(acked.Items)))
	return len(acked.Items)
}

// finish acks what the claimer has.
func (c *claimer) finish(ctx context.Context) error {
	if c.held == nil {
		return nil
	}
	if err := c.handle.Ack(ctx, c.held); err != nil {
		return err
	}
	c.settled(c.held)
	c.held = nil
	return nil
}

// crew is the consumers that work at the same time.
type crew struct {
	q        *queue
	handles  []*layer.Queue // all different
	claimers []*claimer
}

// newCrew opens handles on the queue of q, with one goroutine's work on each.
func newCrew(ctx context.Context, q *queue, s Space, n int, options layer.Options, o layer.ReceiveOptions) (*crew, error) {
	c := &crew{q: q}
	for range n {
		h, err := layer.Open(ctx, s.DB, s.Prefix, q.Name(), options)
		if err != nil {
			return nil, errors.Join(err, c.close(ctx))
		}
		c.handles = append(c.handles, h)
		c.claimers = append(c.claimers, &claimer{handle: h, of: q, o: o})
	}
	return c, nil
}

// sharing is a crew on the handle of q itself, as the goroutines of a process.
func sharing(q *queue, n int, o layer.ReceiveOptions) *crew {
	c := &crew{q: q}
	for range n {
		c.claimers = append(c.claimers, &claimer{handle: q.Queue, of: q, o: o})
	}
	return c
}

func (c *crew) turn(ctx context.Context, worker int) (int, error) {
	return c.claimers[worker].turn(ctx)
}

// finish acks what the crew has and enqueues again what it acked, to the same groups.
func (c *crew) finish(ctx context.Context) error {
	var again []layer.Message
	for _, one := range c.claimers {
		if err := one.finish(ctx); err != nil {
			return err
		}
		for _, group := range one.done {
			again = append(again, messages(group, 1)...)
		}
		one.done = one.done[:0]
	}
	for len(again) > 0 {
		n := min(len(again), perLoad)
		if err := c.q.enqueue(ctx, again[:n]...); err != nil {
			return err
		}
		again = again[n:]
	}
	return nil
}

func (c *crew) claims() (n int64) {
	for _, one := range c.claimers {
		n += one.claims.Load()
	}
	return n
}

// close closes the crew's own handles.
func (c *crew) close(ctx context.Context) error {
	var errs []error
	for _, h := range c.handles {
		errs = append(errs, h.Close(ctx))
	}
	return errors.Join(errs...)
}

// slice lets the crew work for a slice and returns what it did. Then the queue is as it was before.
func (c *crew) slice(ctx context.Context, s Sizes, counting *record.Recorder) (work, error) {
	claims, before := c.claims(), counting.Counters()
	var r float64
	// On a machine that is busy with something else a slice may pass before anything was claimed and acked: then longer.
	for length := s.LongSlice; r == 0; length *= 2 {
		if length > s.Patience+s.LongSlice {
			return work{}, fmt.Errorf("%w: nothing was claimed", errWrong)
		}
		var err error
		if r, err = rate(ctx, len(c.claimers), length, c.turn); err != nil {
			return work{}, err
		}
	}
	counted := counting.Counters().Sub(before)
	w := work{perSecond: r, claims: c.claims() - claims, conflicts: counted.Conflicts, attempts: attempts(counted)}
	return w, c.finish(ctx)
}

// work is what a crew did.
type work struct {
	perSecond                   float64 // items
	claims, conflicts, attempts int64
}

// attempts is how many transactions came to their commit.
func attempts(c record.Counters) int64 { return c.Commits + c.Conflicts + c.Failures }
