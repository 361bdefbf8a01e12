package sim

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// fate is what befalls the store and the processes, at any step.
type fate struct {
	w    *world
	rng  *rand.Rand
	who  int
	rest time.Duration // longest until a process that has died is replaced
}

func (f *fate) wait(steps int) bool {
	f.w.sched.parkFor(place{"fate", f.who, 0}, steps, nil)
	return !f.w.sched.ended(f.who)
}

// strike goes on until it is ended.
func (f *fate) strike() {
	k := f.w.knobs
	if k.blowEvery == 0 {
		return
	}
	for f.wait(1 + f.rng.IntN(2*k.blowEvery)) {
		switch n := f.rng.IntN(k.crash + k.kill + k.stop); {
		case n < k.crash:
			f.crashStore()
		case n < k.crash+k.kill:
			f.killHandle()
		default:
			f.stopHandle()
		}
	}
}

func (f *fate) crashStore() {
	w := f.w
	// Most crashes should meet a commit: one that was not sent yet, or one whose answer is on its way.
	in := []string{"commit", "committed", ""}[f.rng.IntN(3)]
	for range 60 {
		if in == "" || w.sched.someoneAt(in) {
			break
		}
		if !f.wait(1) {
			return
		}
	}
	w.sched.trace.note("crash of the store")
	if err := w.store.crash(); err != nil {
		w.violation("crash: %v", err)
	}
	w.mark("crash of the store")
	if w.knobs.disk {
		w.mark("crash of the store on disk")
	}
}

// pick is one of the handles that live.
func (f *fate) pick() *handle {
	alive := f.w.alive()
	if f.w.knobs.clocks && len(alive) > 1 {
		alive = alive[1:] // the first drains the queue in the end
	}
	return alive[f.rng.IntN(len(alive))]
}

// killHandle lets a process die.
func (f *fate) killHandle() {
	w, h := f.w, f.pick()
	for range 60 {
		if w.sched.someoneAt("committed") {
			break
		}
		if !f.wait(1) {
			return
		}
	}
	f.bury(h, w.die(h))
}

// die is the death of a process: its goroutines reach nothing any more, and its actors are gone. It returns those that
// had work left.
func (w *world) die(h *handle) (work []*actor) {
	w.sched.trace.note("death of handle", h.who)
	w.mark("death of a handle")
	h.dead, h.died, h.diedAt = true, w.sched.step(), time.Now()
	h.engine.dead.Store(true)
	who := []int{h.who}
	for _, a := range h.actors {
		who = append(who, firstActor+a.id)
		if !a.over {
			work = append(work, a)
		}
		a.end()
	}
	w.sched.kill(who...)
	for _, id := range slices.Sorted(maps.Keys(w.attempts)) {
		if slices.Contains(who, firstActor+w.attempts[id]) {
			w.orphans = append(w.orphans, id)
			delete(w.attempts, id)
		}
	}
	return work
}

// closeDead lets the goroutines of a dead process end.
func (w *world) closeDead(h *handle) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if h.consumer != nil {
		go h.consumer.Stop(ended)
	}
	if h.q == nil {
		return // it died while it was opened
	}
	if err := h.q.Close(ended); err == nil {
		w.mark("death of an idle handle")
	}
}

// bury ends what is left of a process that has died. Another one takes up its work after a while.
func (f *fate) bury(h *handle, work []*actor) {
	w := f.w
	w.sched.occupy(1)
	defer w.sched.occupy(-1)
	w.closeDead(h)
	if !f.wait(0) {
		return
	}
	if f.rng.IntN(2) == 0 {
		time.Sleep(time.Duration(f.rng.Int64N(int64(f.rest))).Truncate(time.Microsecond) + 7)
	}
	if !f.wait(0) {
		return
	}
	skew := time.Duration(0)
	if w.knobs.skew[0] != 0 {
		skew = time.Duration(f.rng.Int64N(int64(2*maxSkew))) - maxSkew
	}
	for {
		next, err := w.openHandle(w.openAgain, skew)
		if err == nil {
			w.takeUp(work, next)
			w.mark("handle opened again")
			return
		}
		if !f.wait(0) {
			return
		}
	}
}

// stopHandle lets a process stand still, as in a long pause of its machine.
func (f *fate) stopHandle() {
	w, h := f.w, f.pick()
	who := []int{h.who}
	for _, a := range h.actors {
		who = append(who, firstActor+a.id)
	}
	w.sched.trace.note("handle stands still", h.who)
	w.mark("handle stood still")
	h.stood++
	w.sched.freeze(true, who...)
	time.Sleep(time.Duration(f.rng.Int64N(int64(maxLease+2*maxSkew))).Truncate(time.Microsecond) + 7)
	f.wait(0)
	w.sched.freeze(false, who...)
}
