package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// handlerPanic is what a handler panics with.
const handlerPanic = "handler out of its mind"

// errHandler is what a handler fails with.
var errHandler = errors.New("handler failed")

// consume lets a worker.Worker work, with handlers that fail, reject, panic, or block past their lease.
func (a *actor) consume() {
	h := a.w.handleOf(a.who)
	for !a.w.readyToWork() {
		a.sleep(time.Second)
	}
	for a.left > 0 {
		served := a.newWorker(h)
		if served == nil {
			return
		}
		served.Start()
		enough := a.left - 1 - a.rng.IntN(20)
		for turns := 0; a.left > enough && a.left > 0 && turns < 5; turns++ {
			a.sleep(time.Second + a.below(2*time.Second))
		}
		a.stop(h, served)
		a.left -= 3
	}
}

// newWorker makes a worker of any kind.
func (a *actor) newWorker(h *handle) *worker.Worker {
	k := a.w.knobs
	o := worker.Options{
		Concurrency: 1 + a.rng.IntN(3), Batch: 1 + a.rng.IntN(k.receive), Poll: time.Second + a.below(k.wait),
		OnError: func(err error) { a.workerError(h, err) }, Logger: slog.New(slog.DiscardHandler),
		Test: a.w.testOptions(h.who, a.w.workerSeed()), StayWhenStuck: true,
	}
	if a.rng.IntN(2) == 0 && !k.clocks {
		o.Lease = layer.MinLease + a.below(maxLease-layer.MinLease)
	}
	a.beatWorker(&o)
	a.lease = cmp.Or(o.Lease, k.config.Lease)
	if a.rng.IntN(3) == 0 {
		delay := a.below(maxDelay)
		o.RetryDelay = func(int, error) time.Duration { return delay }
	}
	switch {
	case k.worked:
		o.Timeout = workTimeout
		if k.lethal == harmless {
			a.slowly(&o)
			a.wrongly(&o)
			a.besides(&o)
		}
	case a.rng.IntN(2) == 0:
		o.Timeout = time.Second + a.below(maxLease)
	}
	kinds := []worker.Handler{
		worker.Handle(a.handleItem), worker.HandleTx(a.handleTx), worker.HandleCommit(a.handleWork, a.handleCommit),
		worker.HandleBatch(a.handleBatch),
	}
	kinds = a.workerLanes(&o, kinds)
	a.plainWorker(&o)
	served, err := worker.New(a.q, kinds[a.rng.IntN(len(kinds))], o)
	if err != nil {
		a.w.violation("worker: %v", err)
		return nil
	}
	h.consumer, h.consumed = served, true
	return served
}

// stop stops a worker, in half of the cases by force.
func (a *actor) stop(h *handle, served *worker.Worker) {
	ctx, cancel := a.ctx, context.CancelFunc(func() {})
	if !a.w.strict() && a.w.knobs.lethal == harmless && a.rng.IntN(2) == 0 {
		after := a.below(time.Second).Truncate(time.Microsecond) + time.Duration(500+a.id)
		ctx, cancel = context.WithTimeout(a.ctx, after)
	}
	defer cancel()
	err := served.Stop(ctx)
	forced := ctx.Err() != nil
	a.park("stopped") // before it touches what all actors share
	if stopped := new(worker.StopError); errors.As(err, &stopped) {
		if forced {
			a.w.mark("worker stopped by force")
		}
		if len(stopped.Running) > 0 {
			a.w.mark("handler left behind")
		}
	}
	h.consumer = nil
}

// workerError judges what a worker reports.
func (a *actor) workerError(h *handle, err error) {
	if a.w.sched.ended(firstActor + a.id) {
		return
	}
	var failed *worker.HandlerError
	if errors.As(err, &failed) {
		a.w.mark("handler failed")
		if strings.Contains(failed.Error(), handlerPanic) {
			a.w.mark("panic of a handler reported")
		}
		if strings.Contains(failed.Error(), "Goexit") {
			a.w.mark("Goexit of a handler reported")
		}
		if errors.Is(err, context.DeadlineExceeded) {
			a.w.mark("handler timed out")
		}
		return
	}
	if stuck := new(worker.StuckError); errors.As(err, &stuck) {
		if stuck.Hook {
			a.w.mark("function that hung reported")
		} else {
			a.w.mark("handler stuck")
		}
		return
	}
	if errors.As(err, new(*callback.PanicError)) {
		a.w.mark("function that panicked reported")
		return
	}
	if errors.Is(err, worker.ErrNoAnswer) && !a.w.strict() {
		a.w.mark("worker stopped waiting for the database") // long after its stop: the world had paused
		return
	}
	if errors.Is(err, layer.ErrClaimLost) {
		a.w.mark("worker lost its claim")
		if a.w.strict() && !a.w.hangs {
			a.w.violation("a worker lost a claim without a fault: %v", err)
		}
	}
	if _, expected := judge(err, true); !expected && !a.w.knobs.refusesClock(err) && !h.dead && !h.turnsAway(err) {
		a.w.violation("unexpected error of a worker: %v", err)
	}
}

// handleItem is a handler.
func (a *actor) handleItem(ctx context.Context, d *worker.Delivery) error {
	return a.oddly(d.ID, a.handled(ctx, &op{kind: "handle", by: byWorker, ids: []layer.ID{d.ID}}, d))
}

// handleTx is a handler in a transaction.
func (a *actor) handleTx(ctx context.Context, tx kv.Tx, d *worker.Delivery) error {
	addEffect(tx, d.ID)
	return a.oddly(d.ID, a.handled(ctx, &op{kind: "handle-tx", by: byWorker, ids: []layer.ID{d.ID}, effect: true}, d))
}

// handleWork is the slow half of a handler, whose effect is that of handleCommit.
func (a *actor) handleWork(ctx context.Context, d *worker.Delivery) (string, error) {
	return d.ID.String(), a.oddly(d.ID, a.handled(ctx, &op{kind: "handle-work", by: byWorker}, d))
}

func (a *actor) handleCommit(_ context.Context, tx kv.Tx, d *worker.Delivery, result string) error {
	if result != d.ID.String() {
		a.w.violation("the result for %s was given to the commit of %s", result, d.ID)
	}
	addEffect(tx, d.ID)
	o := &op{kind: "handle-tx", by: byWorker, ids: []layer.ID{d.ID}, effect: true}
	a.begin(o)
	o.group, o.token, o.item, o.handled, o.where = d.ID.Group, d.Token, &d.Item, true, a.worksAt
	o.plain = a.worksPlain
	o.end, o.endAt = a.w.sched.steps, time.Now()
	return nil
}

// handleBatch is a handler of all items of a claim.
func (a *actor) handleBatch(ctx context.Context, ds []*worker.Delivery) error {
	for i, d := range ds {
		o := &op{kind: "handle-batch", by: byWorker, ids: []layer.ID{d.ID}}
		err := a.handled(ctx, o, ds[:i+1]...)
		if odd := a.oddly(d.ID, err); err != nil || odd != nil {
			if err == nil {
				a.w.mark("typed nil in a batch")
			}
			return &worker.BatchError{Done: i, Err: odd}
		}
	}
	a.w.mark("batch handled")
	return nil
}

// handled is the body of every handler, for the last of ds; the others are those before in its batch.
func (a *actor) handled(ctx context.Context, o *op, ds ...*worker.Delivery) error {
	d, before := ds[len(ds)-1], ds[:len(ds)-1]
	if a.w.sched.ended(firstActor + a.id) {
		return errHandler
	}
	a.left--
	a.n++
	a.begin(o)
	o.group, o.token, o.item, o.where, o.plain = d.ID.Group, d.Token, &d.Item, a.worksAt, a.worksPlain
	h := &handling{a: a, ctx: ctx, o: o, d: d, n: a.n, before: before}
	if !h.park() {
		return errHandler
	}
	act := h.drawn
	switch {
	case a.w.knobs.lethal != harmless:
		act = h.deadly
	case a.w.knobs.worked:
		act = h.planned
	}
	law := a.w.law(d.ID)
	law.calls++
	law.claims[d.Token]++
	if err := act(); err != nil {
		return err
	}
	o.handled = true
	o.end, o.endAt = a.w.sched.steps, time.Now()
	a.w.sched.trace.note("handled", a.id, d.ID)
	return nil
}

// handling is one call of a handler.
type handling struct {
	a   *actor
	ctx context.Context
	o   *op
	d   *worker.Delivery
	n   int // its number
	// before are the items of its batch that come before.
	before []*worker.Delivery
}

// park reports whether the handler is to go on.
func (h *handling) park() bool {
	who := firstActor + h.a.id
	h.a.w.sched.park(place{"handler", who, h.n})
	return !h.a.w.sched.ended(who) && h.ctx.Err() == nil
}

// sleep pays no attention to the context.
func (h *handling) sleep(d time.Duration) bool {
	time.Sleep(d.Truncate(time.Microsecond) + time.Duration(1+h.n%900))
	return h.park()
}

// drawn does what the knobs say.
func (h *handling) drawn() error {
	a, k := h.a, h.a.w.knobs
	if a.rng.IntN(3) == 0 && h.o.kind != "handle-tx" && !h.sleep(a.below(k.think)) {
		return errHandler
	}
	if a.chance(k.freeze) {
		a.w.mark("handler blocked past its lease")
		if !h.sleep(maxLease + a.below(maxSkew)) {
			a.w.mark("handler cut off")
			return errHandler
		}
	}
	switch {
	case a.chance(k.nack):
		if a.rng.IntN(3) == 0 {
			return &worker.RetryError{After: a.below(time.Second), Uncounted: a.rng.IntN(2) == 0, Err: errHandler}
		}
		return errHandler
	case a.chance(k.reject):
		a.w.mark("handler rejected")
		h.o.rejected = h.d.ID
		return &worker.RejectError{Reason: "hopeless", Err: errHandler}
	case k.panics > 0 && a.chance(k.panics):
		h.vanish(a.rng.IntN(2) == 0)
	}
	return nil
}

// vanish does not return. Nothing of the handler happens: a transaction is not committed.
func (h *handling) vanish(panics bool) {
	h.o.outcome, h.o.effect = refused, false
	h.loseBatch()
	if panics {
		h.a.w.mark("handler panicked")
		panic(handlerPanic)
	}
	h.a.w.mark("handler ended its goroutine")
	runtime.Goexit()
}

// loseBatch notes that a batch will not say how far it came: the items before this one are handled again.
func (h *handling) loseBatch() {
	for _, d := range h.before {
		h.a.w.law(d.ID).lost++
		h.a.w.mark("batch lost with its handler")
	}
}

const (
	// workTimeout is the Timeout of workers whose handlers follow a plan.
	workTimeout = 30 * time.Second
	// lateReturn is after the end of a handler's context, and before the worker calls the handler stuck.
	lateReturn = workTimeout + 2*time.Second
)

// planned does what the item's plan says: it fails in some way a few times, and then takes its time and succeeds.
func (h *handling) planned() error {
	w, id := h.a.w, h.d.ID
	draw := uint(id.Random[0]) | uint(id.Random[1])<<8
	law := w.law(id)
	if fails := []int{0, 0, 0, 1, 2}[draw%5]; law.failed < fails {
		law.failed++
		return h.misbehave(draw/5 + uint(law.failed))
	}
	law.good++
	times := []time.Duration{0, 0, 100 * time.Millisecond, 1100 * time.Millisecond}
	switch h.o.kind {
	case "handle-tx":
		times = append(times, 4500*time.Millisecond)
	case "handle", "handle-work":
		times = append(times, 4500*time.Millisecond, maxLease+5*time.Second, lateReturn)
	}
	took := times[draw/64%uint(len(times))]
	late := took == lateReturn
	if h.o.kind == "handle-tx" {
		took = min(took, h.a.lease*8/10) // what takes longer than the lease has failed
	}
	switch {
	case late && h.a.lease/2 > lateReturn-workTimeout:
		// The claim is not extended after the end of the handler's context, but its lease still lasts.
		w.mark("handler returned nil late")
		if h.sleep(took); w.sched.ended(firstActor + h.a.id) {
			return errHandler
		}
	case late, took == 0:
	case !h.sleep(took):
		w.mark("planned handler cut off")
		return errHandler
	}
	if law.done == 0 {
		w.sched.progress()
	}
	law.done = w.sched.step()
	return nil
}

func (h *handling) misbehave(how uint) error {
	w := h.a.w
	switch how % 7 {
	case 0:
		return errHandler
	case 1:
		h.vanish(true)
	case 2:
		h.vanish(false)
	case 3:
		return &worker.RetryError{After: time.Second, Uncounted: true}
	case 4: // longer than a transaction
		w.mark("handler took too long for a transaction")
		if h.o.kind == "handle-tx" {
			w.mark("transaction held for too long")
			w.hangs = w.hangs || h.a.lease < 6*time.Second
		}
		h.sleep(5300 * time.Millisecond)
		if h.o.kind == "handle-tx" && !w.sched.ended(firstActor+h.a.id) {
			return nil // but it cannot be committed
		}
		return errHandler
	case 5:
		w.mark("handler waited for the end of its context")
		<-h.ctx.Done()
		h.park()
		return fmt.Errorf("cut off: %w", h.ctx.Err())
	}
	w.mark("handler ignored its context")
	w.hangs = true
	h.loseBatch()
	h.sleep(workTimeout + 2*maxLease + 20*time.Second)
	return errHandler
}
