package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"fdbfifo/layer"
)

// Handlers kill their process, with all its goroutines and its handle: before the handler, in it, after it and before
// the ack, and during the ack. There is no other fault in these runs. In half of the runs one message is a poison,
// which always kills. In the others an eighth of the messages kills once. The laws:
//
//   - The poison becomes a dead letter, and no other message does.
//   - A handler is called at most twice for a neighbour of the one poison.
//   - A handler is called for each message at most once more than processes have died.

type lethality int

const (
	harmless lethality = iota
	poisoned           // one message always kills
	crowded            // some kill once
)

// lethalProfiles are the profiles of handlers that kill, which no seed draws by itself.
var lethalProfiles = []string{"lethal"}

// lethals: workers alone, with leases that end soon.
func (k *knobs) lethals(rng *rand.Rand) {
	k.worker(rng)
	k.faultless()
	k.strict, k.lethal = false, lethality(1+rng.IntN(2))
	k.config.Lease = layer.MinLease + time.Duration(rng.Int64N(int64(3*time.Second)))
	k.config.MaxAttempts = []int{3, 5, 25}[rng.IntN(3)]
	if k.lethal == crowded {
		k.config.MaxAttempts = 5
	}
	k.poison = fmt.Sprintf("a%d.%d", k.consumers, 1+rng.IntN(20)) // of the first producer
}

// deadly lets the process die, or takes its time.
func (h *handling) deadly() error {
	w, law := h.a.w, h.a.w.law(h.d.ID)
	draw := uint(h.d.ID.Random[0]) | uint(h.d.ID.Random[1])<<8
	took := tookOf(h.d.ID)
	phase := draw % 32
	switch {
	case w.knobs.lethal == poisoned && h.d.Headers[labelHeader] == w.knobs.poison:
		phase = 1
	case w.knobs.lethal == poisoned, law.failed > 0:
		phase = 4
	}
	victim := w.handleOf(h.a.who)
	if phase < 4 {
		law.failed++
	}
	switch phase {
	case 0:
		w.mark("process killed before the handler")
		w.killNow(victim)
		return errHandler
	case 1:
		if h.sleep(took) {
			w.mark("process killed in the handler")
			w.killNow(victim)
		}
		return errHandler
	}
	if took > 0 && !h.sleep(took) {
		return errHandler
	}
	law.good++
	switch phase {
	case 2:
		w.killSoon(victim, "process killed after the handler", func() bool { return true })
	case 3:
		who := victim.who
		w.killSoon(victim, "process killed during an ack", func() bool {
			return w.sched.isAt("commit", who) || w.sched.isAt("committed", who)
		})
	}
	return nil
}

// tookOf is how long the handler of a message takes.
func tookOf(id layer.ID) time.Duration {
	return []time.Duration{0, 0, 100 * time.Millisecond, 700 * time.Millisecond}[id.Random[2]%4]
}

// killer is a fate for one death.
func (w *world) killer() *fate {
	id := w.nextActor
	w.nextActor++
	rng := rand.New(rand.NewPCG(w.o.Seed, 30_000+uint64(id)))
	return &fate{w: w, rng: rng, who: firstActor + id, rest: 5 * time.Second}
}

// killNow lets the process die in which the caller runs.
func (w *world) killNow(h *handle) {
	f, work := w.killer(), w.die(h)
	w.sched.start(f.who, func() { f.bury(h, work) })
}

// killSoon lets a process die when at says so, or after a few steps.
func (w *world) killSoon(h *handle, mark string, at func() bool) {
	f := w.killer()
	w.sched.start(f.who, func() {
		for range 60 {
			if at() || !f.wait(0) {
				break
			}
		}
		if h.dead || w.sched.ended(f.who) {
			return
		}
		w.mark(mark)
		f.bury(h, w.die(h))
	})
}

// compareDeadly holds the run to the laws of handlers that kill.
func (m *model) compareDeadly(drained bool) {
	w := m.w
	if w.knobs.lethal == harmless {
		return
	}
	dead := make(map[layer.ID]bool)
	for _, row := range w.rows(section("dead"), 0) {
		_, rest := keyOf(row.Key)
		id := idOf(rest)
		dead[id] = true
		if w.knobs.lethal != poisoned || m.first[id].label != w.knobs.poison {
			w.violation("G7: %s is a dead letter, and its handler has not failed: %s", m.first[id].label, row.Value)
		}
	}
	deaths := w.marks["death of a handle"]
	for id, s := range m.first {
		calls := 0
		if law := w.laws[id]; law != nil {
			calls = law.calls
		}
		switch isPoison := w.knobs.lethal == poisoned && s.label == w.knobs.poison; {
		case isPoison && drained && !dead[id]:
			w.violation("G7: the poison %s is no dead letter after %d calls", s.label, calls)
		case isPoison:
			w.mark("poison found")
		case w.knobs.lethal == poisoned && calls > 2:
			w.violation("G7: the handler of %s was called %d times, beside one poison", s.label, calls)
		case calls > 1+deaths:
			w.violation("G7: the handler of %s was called %d times in a run with %d deaths", s.label, calls, deaths)
		}
	}
}
