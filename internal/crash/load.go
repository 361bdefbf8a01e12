package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

const (
	workers   = 6 // goroutines of a child that produce and consume; one more operates
	leaseBase = 30 * time.Second
	crowded   = 400 // with so many messages not yet acked a child does not enqueue
	lifeSpan  = 1_000_000
)

// Only the groups of purgedGroups are ever purged: a purge makes it harder to say what must be there.
var (
	groups       = []string{"", "a", "b", "c", "d\x00e", "f", "g", "h"}
	purgedGroups = []string{"p", "q"}
	allGroups    = append(append([]string(nil), groups...), purgedGroups...)
)

// load is what the goroutines of a child share.
type load struct {
	o       *orders
	j       *journal
	numbers atomic.Int64
	backlog atomic.Int64
}

// actor is one goroutine of a child.
type actor struct {
	*load
	q    *layer.Queue
	rng  *rand.Rand
	mine []message // enqueued, acknowledged, with a dedup id, of a group that is not purged
}

// work runs the load until something breaks: so many goroutines, and an operator.
func work(ctx context.Context, o *orders, handles []*layer.Queue, j *journal, goroutines int) error {
	l := &load{o: o, j: j}
	broken := make(chan error, goroutines+1)
	for i := range goroutines {
		a := &actor{load: l, q: handles[i%len(handles)], rng: rand.New(rand.NewPCG(o.Seed, uint64(i)))}
		var retry [][]message
		if i == 0 {
			retry = o.Retry
		}
		go func() { broken <- a.work(ctx, retry) }()
	}
	op := &actor{load: l, q: handles[0], rng: rand.New(rand.NewPCG(o.Seed, workers))}
	go func() { broken <- op.operate(ctx) }()
	return <-broken
}

func (a *actor) work(ctx context.Context, retry [][]message) error {
	for _, msgs := range retry {
		if err := a.enqueue(ctx, kindResend, msgs); err != nil {
			return err
		}
	}
	for {
		var err error
		switch n := a.rng.IntN(100); {
		case n < 3 && len(a.mine) > 0:
			err = a.enqueue(ctx, kindResend, []message{a.mine[a.rng.IntN(len(a.mine))]})
		case n < 45 && a.backlog.Load() < crowded:
			err = a.enqueue(ctx, kindEnqueue, a.draw())
		default:
			err = a.consume(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// draw makes up the messages of an enqueue.
func (a *actor) draw() []message {
	count := 1 + a.rng.IntN(4)
	if a.rng.IntN(12) == 0 {
		count = 20 + a.rng.IntN(30)
	}
	msgs := make([]message, count)
	for i := range msgs {
		m := message{
			N:     a.o.Life*lifeSpan + int(a.numbers.Add(1)),
			Group: allGroups[a.rng.IntN(len(allGroups))],
			Size:  20 + a.rng.IntN(300),
		}
		if count < 5 && a.rng.IntN(25) == 0 {
			m.Size = 90_000 + a.rng.IntN(150_000) // takes parts
		}
		if a.rng.IntN(3) == 0 {
			m.Dedup = fmt.Sprint("d", m.N)
		}
		msgs[i] = m
	}
	return msgs
}

func (a *actor) enqueue(ctx context.Context, kind string, msgs []message) error {
	out := make([]layer.Message, len(msgs))
	for i, m := range msgs {
		out[i] = layer.Message{Group: m.Group, Body: bodyOf(m.N, m.Size), DedupID: m.Dedup}
	}
	e := a.j.begin(event{Kind: kind, Msgs: msgs})
	res, err := a.q.Enqueue(ctx, out...)
	if err != nil {
		return err
	}
	for i, s := range res {
		e.Sent = append(e.Sent, sent{s.ID.String(), s.Duplicate})
		if !s.Duplicate {
			a.backlog.Add(1)
		}
		if kind == kindEnqueue && msgs[i].Dedup != "" && !isPurged(msgs[i].Group) {
			a.mine = append(a.mine, msgs[i])
		}
	}
	a.j.done(e)
	return nil
}

func isPurged(group string) bool {
	for _, g := range purgedGroups {
		if g == group {
			return true
		}
	}
	return false
}

func (a *actor) receiveOptions() layer.ReceiveOptions {
	o := layer.ReceiveOptions{
		Max: 1 + a.rng.IntN(20), MaxGroups: a.rng.IntN(4), State: true,
		Strategy: []layer.Strategy{layer.FillGroup, layer.Layers, layer.Heads}[a.rng.IntN(3)],
	}
	if a.rng.IntN(3) == 0 {
		o.Wait = 20 * time.Millisecond
	}
	return o
}

func (a *actor) consume(ctx context.Context) error {
	e := a.j.begin(event{Kind: kindReceive})
	claims, err := a.q.Receive(ctx, a.receiveOptions())
	if err != nil {
		return err
	}
	if e.Claims, err = told(claims); err != nil {
		return err
	}
	a.j.done(e)
	for len(claims) > 0 {
		c := claims[0]
		more, err := a.finish(ctx, c)
		if err != nil {
			return err
		}
		claims = append(claims[1:], more...)
	}
	return nil
}

// told is what a receive gave, for the journal.
func told(claims []*layer.Claim) ([]claim, error) {
	out := make([]claim, len(claims))
	for i, c := range claims {
		out[i] = claim{Group: c.Group, Token: c.Token, State: string(c.State)}
		for _, item := range c.Items {
			n, ok := numberIn(item.Body)
			if !ok || !bytes.Equal(item.Body, bodyOf(n, len(item.Body))) {
				return nil, fmt.Errorf("crash: the body of %s is not one: %.100q", item.ID, item.Body)
			}
			out[i].Items = append(out[i].Items, delivered{n, item.ID.String()})
		}
	}
	return out, nil
}

// finish ends a claim in one of the ways there are. It returns what an ack received.
func (a *actor) finish(ctx context.Context, c *layer.Claim) (more []*layer.Claim, err error) {
	switch n := a.rng.IntN(100); {
	case n < 25:
		return nil, a.ack(ctx, c, len(c.Items))
	case n < 40:
		if k := a.rng.IntN(len(c.Items)); k > 0 {
			rest := c.Items[k:]
			if err := a.ack(ctx, c, k); err != nil {
				return nil, err
			}
			c.Items = rest // Ack sees to it, AckTx does not
		}
		return nil, a.ack(ctx, c, len(c.Items))
	case n < 60:
		return a.ackReceive(ctx, c)
	case n < 78:
		return nil, a.nack(ctx, c, layer.NackOptions{Err: errors.New("it failed")})
	case n < 88:
		return nil, a.nack(ctx, c, layer.NackOptions{Reject: "it never will"})
	case n < 96:
		return nil, a.nack(ctx, c, layer.NackOptions{Release: true})
	}
	return nil, nil // it dies with the process, or its lease runs out in a later life
}

func numbers(items []layer.Item) []int {
	out := make([]int, len(items))
	for i, item := range items {
		out[i], _ = numberIn(item.Body)
	}
	return out
}

// ack finishes the first k items of a claim.
func (a *actor) ack(ctx context.Context, c *layer.Claim, k int) error {
	e := event{Kind: kindAck, Group: c.Group, Token: c.Token, Items: numbers(c.Items[:k])}
	ids := make([]layer.ID, k)
	for i := range ids {
		ids[i] = c.Items[i].ID
	}
	way := a.rng.IntN(3)
	if e.Effect = way == 1; way == 2 {
		e.State = strconv.Itoa(e.Items[0])
	}
	e = a.j.begin(e)
	var err error
	switch way {
	case 0:
		err = a.q.AckItems(ctx, c, ids)
	case 1:
		err = a.q.Once(ctx, func(tx kv.Tx) error {
			for _, n := range e.Items {
				tx.Set(a.o.effectKey(n), []byte("done"))
			}
			return a.q.AckItemsTx(ctx, tx, c, ids)
		})
	case 2:
		state := []byte(e.State)
		err = a.q.Settle(ctx, layer.Settlement{Claim: c, Finish: ids, State: &state})
	}
	return a.settled(e, k, err)
}

func (a *actor) ackReceive(ctx context.Context, c *layer.Claim) ([]*layer.Claim, error) {
	e := a.j.begin(event{Kind: kindAckReceive, Group: c.Group, Token: c.Token, Items: numbers(c.Items)})
	claims, err := a.q.SettleReceive(ctx, layer.Settlement{Claim: c, FinishAll: true}, a.receiveOptions())
	if err == nil {
		if e.Claims, err = told(claims); err != nil {
			return nil, err
		}
	}
	return claims, a.settled(e, len(c.Items), err)
}

func (a *actor) nack(ctx context.Context, c *layer.Claim, o layer.NackOptions) error {
	e := a.j.begin(event{
		Kind: kindNack, Group: c.Group, Token: c.Token, Items: numbers(c.Items),
		Reject: o.Reject != "", Free: o.Release,
	})
	return a.settled(e, 0, a.q.Nack(ctx, c, o))
}

// settled notes the end of an ack of k items, or of a nack.
func (a *actor) settled(e event, k int, err error) error {
	if e.Lost = errors.Is(err, layer.ErrClaimLost); err != nil && !e.Lost {
		return err
	}
	a.backlog.Add(-int64(k))
	a.j.done(e)
	return nil
}

// operate is the work of an operator.
func (a *actor) operate(ctx context.Context) error {
	for n := 1; ; n++ {
		time.Sleep(time.Duration(a.rng.Int64N(int64(8 * time.Millisecond))))
		var err error
		switch r := a.rng.IntN(10); {
		case r < 4:
			e, f := event{Kind: kindRedrive}, layer.DeadFilter{}
			if a.rng.IntN(2) == 0 {
				e.Group = groups[1+a.rng.IntN(len(groups)-1)] // any but "", which stands for all
				f.Group = &e.Group
			}
			f.All = f.Group == nil
			e = a.j.begin(e)
			if _, err = a.q.Admin().Redrive(ctx, f, layer.RedriveOptions{}); err == nil {
				a.j.done(e)
			}
		case r < 6:
			group := purgedGroups[a.rng.IntN(len(purgedGroups))]
			e := a.j.begin(event{Kind: kindPurge, Group: group, Force: a.rng.IntN(2) == 0})
			if _, err = a.q.Admin().Purge(ctx, layer.PurgeOptions{Group: &group, Force: e.Force}); err == nil {
				a.j.done(e)
			}
		case r < 9:
			lease := leaseBase + time.Duration(a.o.Life*1000+n)*time.Millisecond
			e := a.j.begin(event{Kind: kindConfigure, Lease: lease.Milliseconds()})
			if _, _, err = a.q.Admin().Configure(ctx, func(c *layer.Config) { c.Lease = lease }); err == nil {
				a.j.done(e)
			}
		default:
			e := a.j.begin(event{Kind: kindSweep})
			_, err = a.q.Admin().Sweep(ctx, layer.SweepOptions{})
			switch {
			case err == nil:
				a.j.done(e)
			case errors.Is(err, layer.ErrClock): // the clocks of two lives differ, so the sweep removes nothing
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
}
