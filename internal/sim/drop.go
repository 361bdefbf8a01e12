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

// The end of a part of the runs. When all has been verified, the queue is dropped while others work on. Afterwards none
// of its keys may be left. In half of these runs the queue is re-created with another number of shards, while handles
// of the old one are still open. Those must find no queue. The new queue has exactly the messages that were enqueued
// there.

// doom is what the end of the queue is like.
type doom struct {
	begun, done bool // the drop

	next *handle            // of the new queue; nil = there is none
	sent map[string]outcome // bodies of the new queue's messages: the outcomes of their enqueues
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
		w.nextActor++ // an unused number: the dead get no turns
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
	w.mark("queue dropped")
	if w.doom.next != nil {
		w.sched.start(1, func() { failed = w.anew() })
		return errors.Join(w.sched.drive(ever), failed)
	}
	for _, row := range w.rows(kv.PrefixRange([]byte(queuePrefix)), 0) {
		name, rest := keyOf(row.Key)
		w.violation("the queue was dropped, and left %s %v", name, rest)
	}
	return nil
}

// anew verifies the queue that was re-created after the drop, without faults.
func (w *world) anew() error {
	d, q, ctx := w.doom, w.doom.next.q, context.Background()
	report, err := q.Admin().Check(ctx, layer.CheckOptions{})
	if err != nil {
		return err
	}
	for _, v := range report.Violations {
		w.violation("the queue made after the drop: %s", v)
	}
	got := make(map[string]bool)
	for {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 100, MaxGroups: 100})
		if err != nil {
			return err
		}
		if len(claims) == 0 {
			break
		}
		for _, c := range claims {
			for _, item := range c.Items {
				told, sent := d.sent[string(item.Body)]
				if !sent || told == refused || got[string(item.Body)] {
					w.violation("the queue made after the drop delivers %q", item.Body)
				}
				got[string(item.Body)] = true
			}
			if err := q.Ack(ctx, c); err != nil {
				return err
			}
		}
	}
	for body, told := range d.sent {
		if told == done && !got[body] {
			w.violation("the queue made after the drop does not deliver %q", body)
		}
	}
	w.mark("queue made anew")
	return q.Close(ctx)
}

// recreate creates the queue again, with another number of shards, and enqueues.
func (a *actor) recreate() {
	w := a.w
	config := w.knobs.config
	defer func() { w.knobs.config = config }()
	w.knobs.config = layer.Config{Shards: 1 + (max(config.Shards, 1)+a.rng.IntN(3))%4}
	for w.doom.next == nil {
		h, err := w.openHandle(layer.Create, 0)
		a.park("created")
		w.sched.trace.note("create anew", err)
		if err == nil {
			w.doom.next = h
			break
		}
		if e := new(kv.Error); !errors.As(err, &e) && !errors.Is(err, layer.ErrQueueExists) {
			w.violation("unexpected error of a create: %v", err)
			return
		}
		if errors.Is(err, layer.ErrQueueExists) { // a commit of unknown outcome, in a call before this one
			if w.doom.next, err = w.openHandle(layer.Open, 0); err != nil {
				w.doom.next = nil
			}
			a.park("opened")
		}
		a.sleep(time.Millisecond)
	}
	w.doom.sent = make(map[string]outcome)
	for i := range 2 * doomedHandles {
		body := fmt.Sprint("anew ", i)
		w.doom.sent[body] = unknown
		_, err := w.doom.next.q.Enqueue(a.ctx, layer.Message{Group: w.group(a.rng), Body: []byte(body)})
		a.park("enqueued")
		w.sched.trace.note("enqueue anew", err)
		switch told, expected := judge(err, w.knobs.mayFail(err)); {
		case !expected:
			w.violation("unexpected error of an enqueue: %v", err)
		default:
			w.doom.sent[body] = told
		}
		a.sleep(a.below(time.Second))
	}
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
	if a.w.knobs.recreated {
		a.recreate()
		a.left = doomedCalls / 4
		a.produce() // on the handle of the old queue
	}
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
func (k *knobs) ends(rng *rand.Rand) {
	k.dropped = k.dropped || rng.IntN(5) == 0
	k.recreated = rng.IntN(2) == 0
}

// doomed: commits that take long while the queue is dropped.
func (k *knobs) doomed(rng *rand.Rand) {
	k.scarce(rng)
	k.dropped = true
	k.config.MaxRate = layer.Rate{}
}
