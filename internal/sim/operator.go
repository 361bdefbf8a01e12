package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// operate does what an operator may do.
func (a *actor) operate() {
	for a.more() {
		group := a.w.group(a.rng)
		id := layer.ID{Group: group, Index: 1, Random: uuid.UUID{6: 0x40, 8: 0x80}} // nobody's
		if n := len(a.w.known); n > 0 {
			id = a.w.known[a.rng.IntN(n)]
			if a.rng.IntN(2) == 0 {
				id = a.w.known[n-1-a.rng.IntN(min(n, 5))] // which may still wait
			}
		}
		if n := len(a.w.handed); n > 0 && a.w.knobs.seek > 0 && a.rng.IntN(2) == 0 {
			id = a.w.handed[n-1-a.rng.IntN(min(n, 4))]
		}
		o := &op{group: group}
		var fn func(ctx context.Context) error
		var inTx func(ctx context.Context, tx kv.Tx) error
		switch n := a.operation(19); n {
		case 0:
			o.kind, o.forcing = "pause-group", a.rng.IntN(2) == 0
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().PauseGroup(ctx, group, layer.PauseOptions{Force: o.forcing})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				_, err := a.q.Admin().PauseGroupTx(ctx, tx, group, layer.PauseOptions{Force: o.forcing})
				return err
			}
		case 1, 2, 3:
			o.kind = "resume-group"
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().ResumeGroup(ctx, group, layer.ResumeOptions{})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				_, err := a.q.Admin().ResumeGroupTx(ctx, tx, group, layer.ResumeOptions{})
				return err
			}
		case 4:
			o.kind = "pause"
			fn = func(ctx context.Context) error { _, err := a.q.Admin().Pause(ctx, layer.PauseOptions{}); return err }
			inTx = func(ctx context.Context, tx kv.Tx) error {
				_, err := a.q.Admin().PauseTx(ctx, tx, layer.PauseOptions{})
				return err
			}
		case 5, 6:
			o.kind = "resume"
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Resume(ctx, layer.ResumeOptions{})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				_, err := a.q.Admin().ResumeTx(ctx, tx, layer.ResumeOptions{})
				return err
			}
		case 7:
			o.kind, o.group, o.ids = "cancel", id.Group, []layer.ID{id}
			fn = func(ctx context.Context) error { return a.q.Admin().Cancel(ctx, id) }
			inTx = func(ctx context.Context, tx kv.Tx) error { return a.q.Admin().CancelTx(ctx, tx, id) }
		case 8:
			o.kind = "skip"
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Skip(ctx, group, layer.SkipOptions{})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				_, err := a.q.Admin().SkipTx(ctx, tx, group, layer.SkipOptions{})
				return err
			}
		case 9:
			o.kind, o.forcing = "force-release", true
			count := a.rng.IntN(2) == 0
			fn = func(ctx context.Context) error {
				h, err := a.q.Admin().ForceRelease(ctx, group, layer.ForceReleaseOptions{CountAttempt: count})
				o.token = h.Token
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				h, err := a.q.Admin().ForceReleaseTx(ctx, tx, group, layer.ForceReleaseOptions{CountAttempt: count})
				o.token = h.Token
				return err
			}
		case 10:
			o.kind = "retry-now"
			fn = func(ctx context.Context) error { return a.q.Admin().RetryNow(ctx, group, layer.RetryOptions{}) }
			inTx = func(ctx context.Context, tx kv.Tx) error {
				return a.q.Admin().RetryNowTx(ctx, tx, group, layer.RetryOptions{})
			}
		case 11:
			o.kind = "redrive"
			tail := a.rng.IntN(2) == 0
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Redrive(ctx, layer.DeadFilter{}, layer.RedriveOptions{ToTail: tail})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				return a.q.Admin().RedriveTx(ctx, tx, layer.RedriveOptions{ToTail: tail}, id)
			}
		case 12, purge:
			if n == 12 && a.rng.IntN(4) > 0 {
				o.kind = "stats"
				fn = func(ctx context.Context) error { _, err := a.q.Stats(ctx); return err }
				break
			}
			o.kind, o.sweeping, o.forcing = "purge", true, a.rng.IntN(3) == 0
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Purge(ctx, layer.PurgeOptions{Group: &group, Force: o.forcing})
				return err
			}
		case purgeAll:
			o.kind, o.sweeping, o.group = "purge-all", true, ""
			fn = func(ctx context.Context) error { _, err := a.q.Admin().Purge(ctx, layer.PurgeOptions{}); return err }
		case 13:
			o.kind = "configure"
			lease := layer.MinLease + a.below(maxLease-layer.MinLease)
			attempts := []int{0, 1, 2, 5}[a.rng.IntN(4)]
			change := func(c *layer.Config) { c.Lease, c.MaxAttempts = lease, attempts }
			fn = func(ctx context.Context) (err error) {
				_, o.token, err = a.q.Admin().Configure(ctx, change)
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) (err error) {
				_, o.token, err = a.q.Admin().ConfigureTx(ctx, tx, change)
				return err
			}
		case 14:
			o.kind = "sweep"
			fn = func(ctx context.Context) error { _, err := a.q.Admin().Sweep(ctx, layer.SweepOptions{}); return err }
		case 15, 16:
			a.n++
			o.kind, o.group, o.edits, o.body = "edit", id.Group, id, fmt.Sprintf("edited a%d.%d", a.id, a.n)
			change := func(m *layer.Message) error { m.Body = []byte(o.body); return nil }
			fn = func(ctx context.Context) error { return a.q.Admin().Edit(ctx, id, change) }
			inTx = func(ctx context.Context, tx kv.Tx) error { return a.q.Admin().EditTx(ctx, tx, id, change) }
		case 17:
			o.kind, o.discarding = "discard", true
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Discard(ctx, layer.DeadFilter{}, layer.DiscardOptions{Limit: 2})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error { return a.q.Admin().DiscardTx(ctx, tx, id) }
		case 18:
			a.n++
			o.kind, o.sets, o.state, o.anyHolder = "set-group-state", true, fmt.Appendf(nil, "o%d.%d", a.id, a.n), true
			force := layer.SetGroupStateOptions{Force: a.rng.IntN(2) == 0}
			o.override = force.Force
			fn = func(ctx context.Context) error { return a.q.Admin().SetGroupState(ctx, group, o.state, force) }
			inTx = func(ctx context.Context, tx kv.Tx) error {
				return a.q.Admin().SetGroupStateTx(ctx, tx, group, o.state, force)
			}
		}
		var err error
		if inTx == nil {
			err = a.call(o, fn)
		} else {
			err = a.once(o, fn, inTx)
		}
		if err == nil && (o.kind == "edit" || o.kind == "edit-tx") {
			a.w.mark("edited")
		}
		a.sleep(a.below(a.w.knobs.think))
	}
}

// operation is the number of the next one, of so many.
func (a *actor) operation(of int) int {
	if some := a.w.knobs.operations; len(some) > 0 {
		return some[a.rng.IntN(len(some))]
	}
	return a.rng.IntN(of)
}

// handlerPanic is what a handler panics with.
const handlerPanic = "handler out of its mind"

// errHandler is what a handler fails with.
var errHandler = errors.New("handler failed")

// consume lets a layer.Worker work, with handlers that fail, reject, or block past their lease.
func (a *actor) consume() {
	k := a.w.knobs
	h := a.w.handleOf(a.who)
	for a.left > 0 {
		o := layer.WorkerOptions{
			Concurrency: 1 + a.rng.IntN(3), Batch: 1 + a.rng.IntN(k.receive), Poll: time.Second + a.below(k.wait),
			OnError: func(err error) { a.workerError(h, err) },
		}
		if k.path == layer.Direct {
			o.Concurrency = 1 // two that look again at the same instant would have one name
		}
		if a.rng.IntN(2) == 0 {
			o.Lease = layer.MinLease + a.below(maxLease-layer.MinLease)
		}
		if a.rng.IntN(3) == 0 {
			delay := a.below(maxDelay)
			o.RetryDelay = func(int) time.Duration { return delay }
		}
		var worker *layer.Worker
		var err error
		if a.rng.IntN(2) == 0 {
			worker, err = layer.NewTxWorker(a.q, a.handleTx, o)
		} else {
			worker, err = layer.NewWorker(a.q, a.handleItem, o)
		}
		if err != nil {
			a.w.violation("worker: %v", err)
			return
		}
		h.consumer, h.consumed = worker, true
		worker.Start()
		enough := a.left - 1 - a.rng.IntN(20)
		for turns := 0; a.left > enough && a.left > 0 && turns < 5; turns++ {
			a.sleep(time.Second + a.below(2*time.Second))
		}
		ctx, cancel := a.ctx, context.CancelFunc(func() {})
		if a.rng.IntN(2) == 0 {
			ctx, cancel = context.WithTimeout(a.ctx, a.below(time.Second).Truncate(time.Microsecond)+time.Duration(500+a.id))
		}
		if err := worker.Stop(ctx); err != nil {
			a.w.mark("worker stopped by force")
		}
		cancel()
		a.park("stopped")
		h.consumer = nil
		a.left -= 3
	}
}

// workerError judges what a worker reports.
func (a *actor) workerError(h *handle, err error) {
	if a.w.sched.ended(firstActor + a.id) {
		return
	}
	var failed *layer.HandlerError
	if errors.As(err, &failed) {
		a.w.mark("handler failed")
		if strings.Contains(failed.Error(), handlerPanic) {
			a.w.mark("panic of a handler reported")
		}
		return
	}
	if errors.Is(err, layer.ErrClaimLost) {
		a.w.mark("worker lost its claim")
	}
	if _, expected := judge(err, true); !expected && !h.dead {
		a.w.violation("unexpected error of a worker: %v", err)
	}
}

// handleItem is a handler.
func (a *actor) handleItem(ctx context.Context, item layer.Item) error {
	return a.handled(ctx, &op{kind: "handle", by: byWorker, ids: []layer.ID{item.ID}}, &item)
}

// handleTx is a handler in a transaction.
func (a *actor) handleTx(ctx context.Context, tx kv.Tx, item layer.Item) error {
	addEffect(tx, item.ID)
	return a.handled(ctx, &op{kind: "handle-tx", by: byWorker, ids: []layer.ID{item.ID}, effect: true}, &item)
}

func (a *actor) handled(ctx context.Context, o *op, item *layer.Item) error {
	k := a.w.knobs
	if a.w.sched.ended(firstActor + a.id) {
		return errHandler
	}
	a.left--
	a.n++
	a.begin(o)
	o.group, o.item = item.ID.Group, item
	n := a.n
	park := func() bool {
		a.w.sched.park(place{"handler", firstActor + a.id, n})
		return !a.w.sched.ended(firstActor+a.id) && ctx.Err() == nil
	}
	sleep := func(d time.Duration) {
		time.Sleep(d.Truncate(time.Microsecond) + time.Duration(1+n%900))
	}
	if !park() {
		return errHandler
	}
	if a.rng.IntN(3) == 0 && o.kind == "handle" {
		sleep(a.below(k.think))
		if !park() {
			return errHandler
		}
	}
	if a.chance(k.freeze) {
		a.w.mark("handler blocked past its lease")
		sleep(maxLease + a.below(maxSkew))
		if !park() {
			a.w.mark("handler cut off")
			return errHandler
		}
	}
	switch {
	case a.chance(k.nack):
		return errHandler
	case a.chance(k.reject):
		a.w.mark("handler rejected")
		return &layer.RejectError{Reason: "hopeless", Err: errHandler}
	case k.panics > 0 && a.chance(k.panics):
		// Nothing of it happens: the transaction of a TxHandler is not committed.
		a.w.mark("handler panicked")
		o.outcome, o.effect = refused, false
		panic(handlerPanic)
	}
	o.handled = true
	o.end, o.endAt = a.w.sched.steps, time.Now()
	a.w.sched.trace.note("handled", a.id, item.ID)
	return nil
}
