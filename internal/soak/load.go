package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

const (
	lease   = 2 * time.Second
	crowded = 300 // with so many messages in the busy queue the load does not enqueue
	purged  = "purged"
	marked  = "marked"
)

func configOf(queue string) layer.Config {
	c := layer.Config{
		Lease: lease, MaxAttempts: 3, DedupForPending: true,
		Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: 10 * time.Millisecond},
	}
	if queue == scarceQueue {
		c.Archive, c.OnFailure = time.Second, layer.Block
	}
	return c
}

// actor is one goroutine of the load.
type actor struct {
	*load
	rng *rand.Rand
	q   *layer.Queue // that all actors of its kind share; nil = it opens its own
	n   int
}

// start starts all actors. They stop when the load is stopped, each after its operation.
func (l *load) start(ctx context.Context, wg *sync.WaitGroup) {
	for i, kind := range []struct {
		queue  string
		actors int
		step   func(a *actor, ctx context.Context) error
	}{
		{busyQueue, 2, (*actor).produce},
		{busyQueue, 3, (*actor).consume},
		{busyQueue, 1, (*actor).operate},
		{"", 1, (*actor).churnWorker},
		{"", 2, (*actor).churnWaiter},
		{scarceQueue, 1, (*actor).trickle},
		{scarceQueue, 4, (*actor).wait},
	} {
		var q *layer.Queue
		if kind.queue != "" {
			var err error
			if q, err = l.open(ctx, kind.queue, fmt.Sprint("actors-", i)); err != nil {
				l.fail(err)
				return
			}
		}
		var of sync.WaitGroup
		for n := range kind.actors {
			a := &actor{load: l, q: q, rng: rand.New(rand.NewPCG(l.seed, uint64(100*i+n)))}
			of.Go(func() { a.loop(ctx, kind.step) })
		}
		wg.Go(func() {
			of.Wait()
			if q != nil {
				if err := q.Close(context.WithoutCancel(ctx)); err != nil {
					l.fail(fmt.Errorf("soak: close: %w", err))
				}
			}
		})
	}
}

func (l *load) open(ctx context.Context, queue, owner string) (*layer.Queue, error) {
	q, err := layer.Open(ctx, l.db, l.prefix, queue, layer.Options{Owner: owner, Poll: 100 * time.Millisecond})
	if err != nil {
		return nil, fmt.Errorf("soak: open: %w", err)
	}
	return q, nil
}

// loop takes step after step, each of which leaves nothing under way.
func (a *actor) loop(ctx context.Context, step func(a *actor, ctx context.Context) error) {
	for !a.stopped.Load() && ctx.Err() == nil {
		a.gate.RLock()
		a.n++
		err := step(a, ctx)
		a.gate.RUnlock()
		if err != nil && ctx.Err() == nil && !expected(err) {
			a.fail(fmt.Errorf("soak: %w", err))
			return
		}
	}
}

// expected reports whether an operation may fail so under this load: what it was about is gone.
func expected(err error) bool {
	for _, may := range []error{
		layer.ErrClaimLost, layer.ErrNoItem, layer.ErrInFlight, layer.ErrNotHeld, layer.ErrNotPaused, layer.ErrNotInClaim,
		layer.ErrHeld, layer.ErrNotDelayed,
	} {
		if errors.Is(err, may) {
			return true
		}
	}
	return false
}

func (a *actor) group() string { return fmt.Sprint("g", a.rng.IntN(20)) }

// impatient is a context that ends early.
func (a *actor) impatient(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Duration(a.rng.Int64N(int64(15*time.Millisecond))))
}

// givenUp returns err, or nil if err says that ctx has ended. err is of a call with this context, which may end early.
// While its context lasts, a call must not fail so.
func givenUp(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// pause lets others run, and bounds the load's rate.
func (a *actor) pause(most time.Duration) { time.Sleep(time.Duration(a.rng.Int64N(int64(most)))) }

func (a *actor) produce(ctx context.Context) error {
	if a.backlog.Load() > crowded {
		a.pause(2 * time.Millisecond)
		return nil
	}
	msgs := make([]layer.Message, 1+a.rng.IntN(8))
	for i := range msgs {
		m := layer.Message{Group: a.group(), Body: bytes.Repeat([]byte{'x'}, 50+a.rng.IntN(200))}
		switch a.rng.IntN(40) {
		case 0:
			m.Body = bytes.Repeat(m.Body[:1], 100_000+a.rng.IntN(100_000))
		case 1, 2:
			m.Delay = time.Duration(1+a.rng.IntN(30)) * time.Millisecond
		case 3, 4, 5, 6:
			m.DedupID = fmt.Sprint("id-", a.rng.IntN(500))
		case 7:
			m.Headers = map[string]string{"name": "value"}
		case 8:
			m.Group = purged
		}
		msgs[i] = m
	}
	a.backlog.Add(int64(len(msgs)))
	if a.rng.IntN(20) == 0 {
		a.count("enqueue given up")
		early, cancel := a.impatient(ctx)
		defer cancel()
		_, err := a.q.Enqueue(early, msgs...)
		return givenUp(early, err)
	}
	a.count("enqueue")
	_, err := a.q.Enqueue(ctx, msgs...)
	return err
}

func (a *actor) receiveOptions() layer.ReceiveOptions {
	o := layer.ReceiveOptions{
		Max: 1 + a.rng.IntN(30), MaxGroups: a.rng.IntN(5), State: a.rng.IntN(2) == 0,
		Strategy: []layer.Strategy{layer.FillGroup, layer.Layers, layer.Heads}[a.rng.IntN(3)],
	}
	if a.rng.IntN(2) == 0 {
		o.Wait = 20 * time.Millisecond
	}
	if a.rng.IntN(100) == 0 {
		// Kept for an hour each, so there are only some. One that was used in the last minutes gives nothing new.
		o.ReceiveID = fmt.Sprint("attempt-", a.rng.IntN(10))
	}
	return o
}

func (a *actor) consume(ctx context.Context) error {
	a.count("receive")
	claims, err := a.q.Receive(ctx, a.receiveOptions())
	for len(claims) > 0 && err == nil {
		c := claims[0]
		a.backlog.Add(-int64(len(c.Items)))
		var more []*layer.Claim
		if more, err = a.finish(ctx, c); expected(err) {
			err = nil
		}
		claims = append(claims[1:], more...)
	}
	return err
}

// finish ends a claim in one of the ways there are. It returns what an ack received.
func (a *actor) finish(ctx context.Context, c *layer.Claim) ([]*layer.Claim, error) {
	nack := func(kind string, o layer.NackOptions) error {
		a.count(kind)
		return a.q.Nack(ctx, c, o)
	}
	switch n := a.rng.IntN(100); {
	case n < 20:
		a.count("ack+receive")
		o := a.receiveOptions()
		o.ReceiveID = "" // is not for an ack
		return a.q.SettleReceive(ctx, layer.Settlement{Claim: c, FinishAll: true}, o)
	case n < 30:
		a.count("ack of some")
		if err := a.q.AckItems(ctx, c, []layer.ID{c.Items[0].ID}); err != nil || len(c.Items) == 0 {
			return nil, err
		}
	case n < 36:
		return nil, nack("nack", layer.NackOptions{Err: errors.New("it failed")})
	case n < 40:
		return nil, nack("nack with a delay", layer.NackOptions{Delay: time.Duration(1+a.rng.IntN(30)) * time.Millisecond})
	case n < 44:
		return nil, nack("reject", layer.NackOptions{Reject: "it never will"})
	case n < 48:
		return nil, nack("release", layer.NackOptions{Release: true})
	case n < 52:
		a.count("ack with state")
		state := []byte("kept")
		if a.rng.IntN(2) == 0 {
			state = nil
		}
		return nil, a.q.Settle(ctx, layer.Settlement{Claim: c, State: &state, FinishAll: true})
	case n < 56:
		a.count("ack with an effect")
		return nil, a.q.Once(ctx, func(tx kv.Tx) error { return a.q.AckTx(ctx, tx, c) })
	case n < 57:
		a.count("abandon")
		_, err := a.q.Extend(ctx, c, layer.MinLease)
		return nil, err
	case n < 59:
		a.count("ack given up")
		early, cancel := a.impatient(ctx)
		defer cancel()
		return nil, givenUp(early, a.q.Ack(early, c))
	}
	a.count("ack")
	return nil, a.q.Ack(ctx, c)
}

// operate is an operator at work.
func (a *actor) operate(ctx context.Context) (err error) {
	a.pause(10 * time.Millisecond)
	kinds := []string{
		"redrive", "discard", "purge", "configure", "pause", "look", "take", "sweep", "force release", "state", "skip", "edit",
	}
	kind := kinds[a.n%len(kinds)]
	a.count(kind)
	group := a.group()
	switch kind {
	case "redrive":
		_, err = a.q.Admin().Redrive(ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{ToTail: a.rng.IntN(3) == 0})
	case "discard":
		_, err = a.q.Admin().Discard(ctx, layer.DeadFilter{Group: &group}, layer.DiscardOptions{})
	case "purge":
		name := purged
		_, err = a.q.Admin().Purge(ctx, layer.PurgeOptions{Group: &name, Force: a.rng.IntN(2) == 0})
	case "configure":
		_, _, err = a.q.Admin().Configure(ctx, func(c *layer.Config) {
			c.RoundRobin = a.rng.IntN(2) == 1
			c.DedupInGroup = a.rng.IntN(2) == 1
			c.Lease = lease + time.Duration(a.n%1000)*time.Millisecond
		})
	case "pause":
		if _, err = a.q.Admin().PauseGroup(ctx, marked, layer.PauseOptions{}); err == nil {
			_, err = a.q.Admin().ResumeGroup(ctx, marked, layer.ResumeOptions{})
		}
	case "look":
		err = a.look(ctx)
	case "take":
		err = a.q.Once(ctx, func(tx kv.Tx) error {
			_, _, err := a.q.TakeTx(ctx, tx, 5, layer.TakeOptions{})
			return err
		})
	case "sweep":
		_, err = a.q.Admin().Sweep(ctx, layer.SweepOptions{})
	case "force release":
		_, err = a.q.Admin().ForceRelease(ctx, group, layer.ForceReleaseOptions{})
	case "state":
		err = a.q.Admin().SetGroupState(ctx, group, []byte("set"), layer.SetGroupStateOptions{})
	case "skip":
		_, err = a.q.Admin().Skip(ctx, group, layer.SkipOptions{})
	case "edit":
		var head []layer.Item
		if head, err = a.q.Peek(ctx, group, 1, nil); err == nil && len(head) > 0 {
			err = a.q.Admin().Edit(ctx, head[0].ID, func(m *layer.Message) error { m.Body = []byte("edited"); return nil })
		}
	}
	return err
}

func (a *actor) look(ctx context.Context) error {
	if _, err := a.q.Stats(ctx, layer.StatsOptions{}); err != nil {
		return err
	}
	page, err := a.q.Admin().Groups(ctx, layer.GroupsOptions{Limit: 5})
	if err == nil && len(page.Groups) > 0 {
		_, err = a.q.Admin().Why(ctx, page.Groups[0].Head, nil)
	}
	if err == nil {
		_, err = a.q.Admin().DeadLetters(ctx, layer.DeadOptions{Bodies: true})
	}
	return err
}

// churnWorker opens a handle, lets a worker run on it for a while, and stops and closes both.
func (a *actor) churnWorker(ctx context.Context) (err error) {
	a.count("worker")
	q, err := a.open(ctx, busyQueue, "worker")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close(ctx)) }()
	o := worker.Options{
		Concurrency: 3, Batch: 1 + a.rng.IntN(10), OnError: func(error) {}, Logger: slog.New(slog.DiscardHandler),
	}
	failing := a.rng.IntN(4)
	judge := func(item layer.Item) error {
		a.backlog.Add(-1)
		switch {
		case item.ID.Random[0]%64 == byte(failing):
			return errors.New("it failed")
		case item.ID.Random[0]%64 == 63:
			return &worker.RejectError{Reason: "it never will"}
		case item.ID.Random[0] == 62:
			panic("a handler's")
		}
		return nil
	}
	kinds := []worker.Handler{
		worker.Handle(func(_ context.Context, d *worker.Delivery) error { return judge(d.Item) }),
		worker.HandleTx(func(_ context.Context, _ kv.Tx, d *worker.Delivery) error { return judge(d.Item) }),
		worker.HandleCommit(
			func(context.Context, *worker.Delivery) (int, error) { return 0, nil },
			func(_ context.Context, _ kv.Tx, d *worker.Delivery, _ int) error { return judge(d.Item) }),
		worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
			for i, d := range ds {
				if err := judge(d.Item); err != nil {
					return &worker.BatchError{Done: i, Err: err}
				}
			}
			return nil
		}),
	}
	w, err := worker.New(q, kinds[a.n%len(kinds)], o)
	if err != nil {
		return err
	}
	w.Start()
	a.pause(200 * time.Millisecond)
	early, cancel := ctx, func() {}
	if a.rng.IntN(3) == 0 {
		early, cancel = a.impatient(ctx)
	}
	defer cancel()
	return givenUp(early, w.Stop(early))
}

// churnWaiter opens a handle, lets receives wait on it, some of which are given up, and closes it under the others.
func (a *actor) churnWaiter(ctx context.Context) error {
	a.count("handle")
	q, err := a.open(ctx, scarceQueue, "waiter")
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i := range 3 {
		waiting, cancel := ctx, func() {}
		if i > 0 {
			waiting, cancel = a.impatient(ctx)
		}
		wg.Go(func() {
			defer cancel()
			claims, err := q.Receive(waiting, layer.ReceiveOptions{Wait: layer.MaxWait})
			err = givenUp(waiting, err)
			for _, c := range claims {
				err = errors.Join(err, q.Ack(ctx, c))
			}
			if err != nil && ctx.Err() == nil && !expected(err) && !errors.Is(err, layer.ErrClosed) {
				a.fail(fmt.Errorf("soak: waiter: %w", err))
			}
		})
	}
	a.pause(30 * time.Millisecond)
	err = q.Close(ctx)
	wg.Wait()
	return err
}

// trickle enqueues now and then, for those who wait.
func (a *actor) trickle(ctx context.Context) error {
	a.pause(10 * time.Millisecond)
	a.count("trickle")
	_, err := a.q.Enqueue(ctx, layer.Message{Group: fmt.Sprint("s", a.rng.IntN(3)), Body: []byte("x")})
	return err
}

// wait receives what trickles in, or gives up.
func (a *actor) wait(ctx context.Context) error {
	a.count("wait")
	waiting, cancel := ctx, func() {}
	o := layer.ReceiveOptions{Wait: time.Duration(1+a.rng.IntN(50)) * time.Millisecond}
	switch a.rng.IntN(4) {
	case 0:
		waiting, cancel = a.impatient(ctx)
		o.Wait = layer.MaxWait
	case 1:
		group := fmt.Sprint("s", a.rng.IntN(3))
		o.Group = &group
	}
	defer cancel()
	claims, err := a.q.Receive(waiting, o)
	err = givenUp(waiting, err)
	for _, c := range claims {
		switch a.rng.IntN(20) {
		case 0:
			err = errors.Join(err, a.q.Nack(ctx, c, layer.NackOptions{AtOnce: true}))
		default:
			err = errors.Join(err, a.q.Ack(ctx, c))
		}
	}
	return err
}
