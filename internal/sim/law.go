package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// The laws of progress of workers. They are held to in runs of the profile worked, in which layer.Workers alone handle
// messages, by plans: an item's handler fails a few times, in any way, and is then good.
//
// Let n be the number of faults in the run: failed transactions, crashes, deaths and pauses of processes, workers
// stopped by force.
//
//   - A good handler is called for an item at most 1 + n times; once, if there was no fault; and once
//     more for each handler of a HandleBatch that has hung, panicked or ended its goroutine behind the item.
//   - Under one claim a handler is called for an item at most 1 + n times, whatever the calls return. It is called once
//     more for each handler of a HandleBatch that has failed at the item or behind it, and did not say where.
//   - No handler is called for an item under a claim that has acked it. (All runs check this.)
//   - Without faults, an item whose good handler has returned nil does not become a dead letter, unless a HandleBatch
//     has failed behind it as above.
//   - Without faults, no lease ends of a claim for whose first item no handler was called.
//   - Every item ends within a bounded time after the faults have stopped: endOf for each item that is there then.

// lawful has the counts of one item for the laws.
type lawful struct {
	good   int           // calls of its handler that were not to fail
	failed int           // calls that were
	calls  int           // all
	lost   int           // batches whose handler did not say how far it had come
	claims map[int64]int // calls, by the claim's token
	done   int           // the step at which its good handler returned nil; 0 = it has not
}

// endOf is how long an item may take from the front of its group to its end. It allows for the good call and two
// failures, each with a handler that hangs, the end of the lease, and a delay.
const endOf = 3*(workTimeout+5*time.Second+maxLease+2*maxDelay) + maxSkew

func (w *world) law(id layer.ID) *lawful {
	if w.laws == nil {
		w.laws = make(map[layer.ID]*lawful)
	}
	if w.laws[id] == nil {
		w.laws[id] = &lawful{claims: make(map[int64]int)}
	}
	return w.laws[id]
}

// strict reports whether there are no faults in the run.
func (w *world) strict() bool { return w.knobs.worked && w.knobs.strict }

// readyToWork reports whether workers may begin. In runs without faults, or with handlers that kill, workers begin when
// all messages are there. An enqueue that meets the end of its group is a conflict, and so another call of a handler in
// a transaction.
func (w *world) readyToWork() bool {
	if !w.strict() && w.knobs.lethal == harmless {
		return true
	}
	for _, h := range w.handles {
		for _, a := range h.actors {
			if a.produces && !a.over {
				return false
			}
		}
	}
	return true
}

// worker makes a run in which workers of every kind are held to the laws of progress; half of them have no faults.
func (k *knobs) worker(rng *rand.Rand) {
	k.worked, k.strict = true, rng.IntN(2) == 0
	k.handles, k.groups = 1+rng.IntN(3), 1+rng.IntN(6)
	k.producers, k.workers, k.takers, k.operators, k.stewards = 1+rng.IntN(2), 0, 0, 0, 0
	k.consumers, k.batch, k.receive = k.handles, 1+rng.IntN(4), 1+rng.IntN(6)
	k.config.MaxAttempts, k.config.OnFailure = []int{layer.Unlimited, 2, 5}[rng.IntN(3)], layer.DeadLetterItem
	k.config.Retention, k.config.MaxWaiting, k.config.MaxRate = 0, 0, layer.Rate{}
	k.named, k.large, k.delayed = 0, 0, 0
	if k.config.DedupByContent {
		k.config.DedupByContent = false
	}
	k.longPause = 0
	if k.strict {
		k.faultless()
	}
}

// faultless takes all faults away.
func (k *knobs) faultless() {
	k.faults, k.blowEvery, k.giveUp = map[fault.Kind]float64{}, 0, 0
	k.shortPause, k.longPause, k.versionJump, k.holdWatches, k.disk = 0, 0, 0, 0, false
	for i := range k.skew {
		k.skew[i] = 0
	}
}

// finish lets workers work until the queue is empty.
func (a *actor) finish() {
	h := a.w.handleOf(a.who)
	served := a.newWorker(h)
	if served == nil {
		return
	}
	served.Start()
	for !a.w.empty() {
		a.sleep(time.Second)
	}
	err := served.Stop(a.ctx)
	a.park("stopped")
	if stopped := new(worker.StopError); err != nil && !errors.As(err, &stopped) {
		a.w.violation("worker: %v", err)
	}
	h.consumer = nil
}

// faultsMet is the number of faults in the run so far.
func (w *world) faultsMet() (n int) {
	for kind, count := range w.plan.Counts() {
		if !strings.HasPrefix(fmt.Sprint(kind), "watch") {
			n += count
		}
	}
	for _, mark := range []string{
		"version jump", "crash of the store", "death of a handle", "handle stood still", "worker stopped by force",
	} {
		n += w.marks[mark]
	}
	return n
}

// compareLaws holds the run to the laws of progress.
func (m *model) compareLaws() {
	w := m.w
	for _, o := range w.ops {
		if o.by != byWorker || o.item == nil {
			continue
		}
		id := o.item.ID
		// Once the lease has ended, a taker or an operator may have finished the item instead of the holder.
		if f := m.finished[id]; len(f) > 0 && f[0].under && f[0].lock.token == o.token && f[0].r.to < o.begin &&
			f[0].lock.endMS > f[0].r.nowMS && !m.purged(id, f[0]) && !m.agedOut(&f[0]) {
			w.violation("a handler was called at step %d for %s, which was acked under the same claim at step %d",
				o.begin, id, f[0].r.to)
		}
	}
	if !w.knobs.worked {
		return
	}
	n := w.faultsMet()
	if w.strict() {
		if n > 0 {
			w.violation("%d faults in a run that has none", n)
		}
		w.mark("run without faults")
	}
	for id, law := range w.laws {
		for token, calls := range law.claims {
			if calls > 1+n+law.lost+law.failed {
				w.violation("the handler of %s was called %d times under claim %d in a run with %d faults",
					id, calls, token, n)
			}
		}
		if law.good > 1+n+law.lost {
			w.violation("the good handler of %s was called %d times in a run with %d faults", id, law.good, n)
		}
	}
}
