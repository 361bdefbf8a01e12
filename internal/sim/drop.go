package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// The end of a part of the runs: when all has been verified, the queue is dropped while others work on. Afterwards none
// of its keys may be left.

// doom is what the end of the queue is like.
type doom struct {
	begun, done bool // the drop
}

// The actors of the end are few, and make few calls.
const (
	doomedHandles = 3
	doomedCalls   = 12
)

// drop works on the queue, under faults, and drops it amid that.
func (w *world) drop() error {
	const ever = 24 * time.Hour
	w.doom = &doom{}
	k := w.knobs
	k.perActor, k.repeat, k.hold = doomedCalls, 0, 0.4
	var handles []*handle
	var failed error
	w.sched.start(1, func() {
		for i := range doomedHandles {
			h, err := w.openHandle(layer.Open, k.skew[i])
			failed = errors.Join(failed, err)
			handles = append(handles, h)
		}
	})
	if err := w.sched.drive(ever); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	w.faulty, w.plan.Chances = true, k.faults
	for i, role := range []func(*actor){
		(*actor).produce, (*actor).produce, (*actor).work, (*actor).work, (*actor).take, (*actor).operate,
		(*actor).drop, (*actor).sendBare,
	} {
		a := w.actor(w.nextActor, handles[i%doomedHandles])
		w.nextActor++ // a number that nobody had: the dead get no turns
		a.role = role
		w.startActor(a)
	}
	if err := w.sched.drive(ever); err != nil {
		return err
	}
	w.faulty, w.plan.Chances = false, nil
	k.hold = 0
	if err := w.plan.Land(context.Background()); err != nil {
		return err
	}
	w.sched.start(1, func() {
		for _, h := range handles {
			if err := h.q.Close(context.Background()); err != nil {
				failed = errors.Join(failed, fmt.Errorf("close handle %d: %w", h.who, err))
			}
		}
	})
	if err := w.sched.drive(ever); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	for _, row := range w.rows(kv.PrefixRange([]byte(queuePrefix)), 0) {
		name, rest := keyOf(row.Key)
		w.violation("the queue was dropped, and left %s %v", name, rest)
	}
	w.mark("queue dropped")
	return nil
}

// drop drops the queue, whatever it takes.
func (a *actor) drop() {
	a.sleep(a.below(time.Second))
	engine := a.w.handleOf(a.who).engine
	a.w.doom.begun = true
	for {
		err := layer.Drop(a.ctx, engine, []byte(queuePrefix), queueName, layer.DropOptions{})
		a.park("dropped")
		a.w.sched.trace.note("drop", err)
		if err == nil || errors.Is(err, layer.ErrNoQueue) {
			break
		}
		if e := new(kv.Error); !errors.As(err, &e) {
			a.w.violation("unexpected error of a drop: %v", err)
			break
		}
		a.sleep(time.Millisecond)
	}
	a.w.doom.done = true
}

// sendBare enqueues in transactions outside of Once, which have no receipt: nothing but the guard of the drop makes
// such a transaction conflict with the drop.
func (a *actor) sendBare() {
	for a.more() {
		o := &op{kind: "enqueue-bare"}
		msgs := a.messages(o)
		a.call(o, func(ctx context.Context) error {
			_, err := kv.Run(ctx, a.w.handleOf(a.who).engine, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				_, err := a.q.EnqueueTx(ctx, tx, msgs...)
				return err
			})
			return err
		})
		a.sleep(a.below(100 * time.Millisecond))
	}
}

// doomed judges a call that began when the queue was dropped, or not, and reports whether its error is of that.
func (a *actor) doomed(o *op, droppedBefore bool, err error) bool {
	d := a.w.doom
	switch {
	case d == nil:
		return false
	case errors.Is(err, layer.ErrNoQueue):
		if !d.begun {
			a.w.violation("%s: %v; and nobody drops it", o, err)
		}
		a.w.mark("call on a dropped queue")
		return true
	case err == nil && droppedBefore:
		a.w.violation("%s is done, on a queue that was dropped before it began", o)
	}
	return false
}

// ends draws whether the run ends with a drop. It has draws of its own, for runs of any profile.
func (k *knobs) ends(rng *rand.Rand) { k.dropped = k.dropped || rng.IntN(5) == 0 }

// doomed: commits that take long while the queue is dropped.
func (k *knobs) doomed(rng *rand.Rand) {
	k.scarce(rng)
	k.dropped = true
	k.config.MaxRate = layer.Rate{}
}
