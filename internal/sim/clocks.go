package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// Processes have wrong clocks: ahead, behind, leaping and standing, by 20 minutes up to two years. Processes die now
// and then, and the next ones have other clocks. The first process creates the queue. It has the right time, or is
// ahead or behind, or its clock leaps. The process that opens the folder first has the right time or is ahead, the next
// ones have the right time or are behind. All retentions and windows of the queue are longer than the run. Some runs
// have claims by heartbeat, subscribers, and movers. The laws:
//
//   - Nothing is removed because of its age: no message, dead letter, archived message, change or dedup id. In many
//     runs the process whose clock is furthest ahead sweeps while no receipt tells another clock.
//   - The messages in source and target never get fewer (moverlaw.go).
//   - A beat that its process moves in time is ended by no other process. A beat of a dead process is ended within
//     twice the lease.
//   - Each subscription comes to its end in bounded time when the processes with wrong clocks have died.
//   - No message becomes a dead letter unless it was rejected.
//   - No attempt is counted while a lease lasts, by a clock that is known to be ahead of the holder's.
//   - No handle takes its own claim. A right handle does not take the claim of a right handle.
//   - When the processes with wrong clocks have died, the first drains the queue within twice the lease and the longest
//     delay, whatever times they have stored.
//
// A wrong clock may take a group from a live process, and deliver a message before its delay is over. So the model does
// not hold these runs to its other laws of time: see model.mistimed.

// clockProfiles are the profiles of wrong clocks, which no seed draws by itself.
var clockProfiles = []string{"clocks", "clock-ids"}

// wrongClocks: most kinds of actors, on processes that die.
func (k *knobs) wrongClocks(rng *rand.Rand) {
	k.scarce(rng)
	k.faultless()
	k.clocks, k.handles, k.groups = true, 3+rng.IntN(3), 2+rng.IntN(5)
	k.producers, k.workers, k.takers, k.operators, k.stewards, k.consumers = 2, 3, 1, 1, 2, k.handles
	k.operations, k.replays = []int{11}, true // redrive
	k.disk = rng.IntN(2) == 0
	k.blowEvery, k.crash, k.kill, k.stop = 300+rng.IntN(500), 0, 2, 0
	if k.disk {
		k.crash = 1
	}
	k.die, k.freeze, k.partial, k.nack, k.reject, k.wrong = 0.1, 0, 0.2, 0.1, 0.1, 0
	k.delayed, k.repeat, k.large, k.state, k.think = 0.3, 0, 0, 0, time.Second
	k.named, k.same, k.ids, k.wait = 0.3, 0, 40, 5*time.Second
	c := &k.config
	c.Lease = layer.MinLease + time.Duration(rng.Int64N(int64(5*time.Second)))
	c.DedupByContent, c.DedupForPending, c.DedupWindow = false, false, periodOfClocks
	c.Retention, c.DeadLetterExpired = periodOfClocks, rng.IntN(2) == 1
	c.Archive, c.DeadRetention = periodOfClocks*time.Duration(rng.IntN(2)), periodOfClocks
	c.MaxWaiting, c.MaxRate, c.MaxRateTotal = 0, layer.Rate{}, layer.Rate{}
	c.MaxAttempts, c.OnFailure = 25, layer.DeadLetterItem
	c.Delay = maxDelay / 2 * time.Duration(rng.IntN(2))
}

// clocked: the same with heartbeats, subscribers and movers, in half of the runs each.
func (k *knobs) clocked(rng *rand.Rand) {
	k.wrongClocks(rng)
	c := &k.config
	if rng.IntN(2) == 0 {
		k.setBeats(rng)
	}
	if rng.IntN(2) == 0 {
		k.subscribes(rng)
		c.Changes = periodOfClocks
	}
	if rng.IntN(2) == 0 {
		k.movers, k.keep, k.refuses = 1+rng.IntN(3), rng.Float64(), float64(rng.IntN(3))/2
		k.target = layer.Config{
			Shards: 1 + rng.IntN(3), MaxWaiting: rng.IntN(4), Retention: periodOfClocks,
		}
	}
	k.first = firstClocks[rng.IntN(len(firstClocks))]
}

// firstClocks are the kinds of clocks of the first process. If its clock stood, it could not end any delay.
var firstClocks = []string{"right", "right", "ahead", "behind", "leaping"}

// periodOfClocks is longer than a run.
const periodOfClocks = 24 * time.Hour

// clock is the clock of a process.
type clock struct {
	kind   string
	off    time.Duration
	every  time.Duration // how long it goes until it leaps or stands
	opened time.Time
}

var clockKinds = []string{"right", "ahead", "behind", "leaping", "standing"}

// clockErrors are longer than five minutes: by less, clocks may differ.
var clockErrors = []time.Duration{
	20 * time.Minute, time.Hour, 47 * time.Hour, 48 * time.Hour, 45 * 24 * time.Hour, 365 * 24 * time.Hour,
	2 * 365 * 24 * time.Hour,
}

// clockOf returns the clock of a process.
func (w *world) clockOf(who int) *clock {
	rng := rand.New(rand.NewPCG(w.o.Seed, 40_000+uint64(who)))
	c := &clock{kind: w.knobs.first, opened: time.Now()}
	if who > 1 {
		c.kind = clockKinds[rng.IntN(len(clockKinds))]
	}
	c.off, c.every = clockErrors[rng.IntN(len(clockErrors))], time.Duration(1+rng.IntN(30))*time.Second
	if c.kind == "behind" || c.kind == "leaping" && rng.IntN(2) == 0 {
		c.off = -c.off
	}
	w.mark("clock " + c.kind)
	if who == 1 {
		w.mark("first clock " + c.kind)
	}
	return c
}

func (c *clock) now() time.Time {
	now := time.Now().Round(0)
	switch c.kind {
	case "ahead", "behind":
		return now.Add(c.off)
	case "leaping":
		if now.Sub(c.opened)/c.every%2 == 1 {
			return now.Add(c.off)
		}
	case "standing":
		return c.opened.Add(min(now.Sub(c.opened), c.every))
	}
	return now
}

// engineClock is the clock of the process that has opened the folder.
type engineClock struct{ off time.Duration }

func (c engineClock) Now() time.Time                         { return time.Now().Add(c.off) }
func (c engineClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// storeClock returns the clock of the process that opens the folder for the nth time: right or ahead at first, and then
// right or behind.
func (w *world) storeClock(n int) embedded.Clock {
	rng := rand.New(rand.NewPCG(w.o.Seed, 50_000+uint64(n)))
	c := engineClock{}
	if rng.IntN(2) > 0 {
		return c
	}
	if c.off = clockErrors[rng.IntN(len(clockErrors))]; n == 0 {
		w.mark("folder opened first by a clock that is ahead")
	} else {
		c.off = -c.off
		w.mark("folder opened by a clock that is behind")
	}
	return c
}

// now is the time by the process's clock.
func (h *handle) now() time.Time {
	if h.clock != nil {
		return h.clock.now()
	}
	return time.Now().Add(h.skew)
}

// sweepAlone lets the process whose clock is furthest ahead sweep when no receipt tells another clock any more. Then
// only versions tell the sweep what is young. It does so in all runs with subscribers or
// shared ids, and in half of the others.
func (w *world) sweepAlone() {
	rng := rand.New(rand.NewPCG(w.o.Seed, 60_000))
	if !w.knobs.clocks || len(w.knobs.topics) == 0 && !w.knobs.recalls && rng.IntN(2) == 0 {
		return
	}
	a := w.actor(97, slices.MaxFunc(w.alive(), func(a, b *handle) int { return a.now().Compare(b.now()) }))
	a.sleep(2 * time.Minute)
	if a.sweep() {
		w.mark("sweep by the clock furthest ahead")
	}
}

// stopClocks lets all processes die except the first. They leave their claims, delays and rows behind.
func (w *world) stopClocks() {
	if !w.knobs.clocks {
		return
	}
	for _, h := range w.alive()[1:] {
		w.die(h)
		w.closeDead(h)
	}
}

// drainsWithin is how long the first process may take to drain the queue.
func (k *knobs) drainsWithin() time.Duration {
	return 2*(k.config.Lease+maxDelay) + 10*time.Second
}

// mistimed is violation for laws that a wrong clock may break.
func (m *model) mistimed(format string, args ...any) {
	if !m.w.knobs.clocks {
		m.violation(format, args...)
	}
}

// refusesClock reports whether an error says that clocks disagree, as they do.
func (k *knobs) refusesClock(err error) bool { return k.clocks && errors.Is(err, layer.ErrClock) }

// timed follows when a claim ends by the world's clock. It holds a new claim to the one before: no process takes its
// own claim, and none takes another's while both have the right time.
func (m *model) timed(old, next *lockState) {
	if !m.w.knobs.clocks || !next.is("claim") {
		return
	}
	next.wrongMS = m.r.begunMS - m.r.atMS
	if old.is("claim") && next.token == old.token && old.beat != "" && next.beat == "" && !m.owns(old) {
		next.wrongMS = old.wrongMS // its end is by the clock of its holder, whose beat was due
	}
	next.trulyMS = next.endMS - next.wrongMS
	switch {
	case !old.is("claim"):
		return
	case next.token == old.token && next.endMS == old.endMS:
		next.wrongMS, next.trulyMS = old.wrongMS, old.trulyMS
		return
	case next.token == old.token || old.trulyMS <= m.r.atMS+aWhile.Milliseconds():
		return
	}
	owner, taker := m.w.ownerOf(old.owner), m.w.handleOf(m.r.who)
	if owner == taker || owner.clock.kind == "right" && taker.clock.kind == "right" {
		m.violation("G2: a claim under token %d of %s, which lasts for %d ms, is taken by handle %d",
			old.token, old.owner, old.trulyMS-m.r.atMS, m.r.who)
	}
	m.w.mark("claim taken early, by a wrong clock")
}

// owns reports whether the process of the record under replay has the claim.
func (m *model) owns(l *lockState) bool { return m.w.ownerOf(l.owner) == m.w.handleOf(m.r.who) }

// endsBeat holds the end of a beat by another process to the world's clock: the process of the beat has not moved it in
// time. A clock that leaps or stands gives its beat two lengths.
func (m *model) endsBeat(number string, b *beatState) {
	if !m.w.knobs.clocks || b.overMS > 0 {
		return
	}
	b.overMS = m.r.atMS
	m.w.mark("beat ended by another process")
	if holder := m.w.handleOf(b.who).clock.kind; holder == "leaping" || holder == "standing" {
		return
	}
	left := b.movedMS + m.w.knobs.config.Lease.Milliseconds() - m.r.atMS
	if left > aWhile.Milliseconds() {
		m.violation("G2: beat %s of handle %d, whose clock is %s, is ended %d ms early by handle %d, whose clock is %s",
			number, b.who, m.w.handleOf(b.who).clock.kind, left, m.r.who, m.w.handleOf(m.r.who).clock.kind)
	}
}

// compareBeats: when the processes with wrong clocks have died, the first ends their beats within twice the lease.
func (m *model) compareBeats() {
	most := 2*m.w.knobs.config.Lease + 3*time.Second // with its poll and its wait
	for number, b := range m.beats {
		died := m.w.handleOf(b.who).diedAt
		if died.IsZero() || m.w.handleOf(b.who).died < m.w.calm || b.overMS == 0 || !b.used {
			continue
		}
		m.w.mark("beat of a process that died")
		if late := time.UnixMilli(b.overMS).Sub(died); late > most {
			m.violation("beat %s of handle %d, whose clock is %s, is ended %s after its death, by a clock that is %s",
				number, b.who, m.w.handleOf(b.who).clock.kind, late, m.w.alive()[0].clock.kind)
		}
	}
}

// aWhile is more than a transaction takes.
const aWhile = 50 * time.Millisecond

// ownerOf returns the handle of that name.
func (w *world) ownerOf(name string) *handle {
	i := slices.IndexFunc(w.handles, func(h *handle) bool { return name == fmt.Sprintf("handle %d", h.who) })
	return w.handles[i]
}

// expired holds an attempt that a lease counts. No process counts it while the lease lasts by the database's clock, if
// its own clock is known to be ahead of the holder's.
func (m *model) expired(id layer.ID, l *lockState) {
	if !m.w.knobs.clocks || !l.is("claim") || m.w.marks["crash of the store"] > 0 { // versions jump
		return
	}
	switch m.w.ownerOf(l.owner).clock.kind {
	case "leaping", "standing": // the lease has two lengths
		return
	}
	left := time.Duration(l.trulyMS-m.r.atMS) * time.Millisecond
	apart := time.Duration(m.r.begunMS-m.r.atMS-l.wrongMS) * time.Millisecond
	if left > m.w.knobs.config.Lease/2 && apart > 6*time.Minute {
		m.violation("G7: an attempt of %s is counted, whose lease lasts for %s, by a clock that is %s ahead",
			id, left, apart)
	}
}

// compareClocks holds a run to the laws of wrong clocks.
func (m *model) compareClocks() {
	w := m.w
	if !w.knobs.clocks {
		return
	}
	m.compareBeats()
	for id := range m.everDead {
		asked := slices.ContainsFunc(w.ops, func(o *op) bool {
			return o.rejected == id
		})
		if !asked {
			w.violation("G7: %s is a dead letter, and no handler has rejected it", id)
		}
	}
	for id, r := range m.discarded {
		if slices.ContainsFunc(w.ops, func(o *op) bool { return o.discarding && o.maybeAt(r) }) {
			continue // a mover
		}
		w.violation("G3: the dead letter %s was removed at step %d", id, r.step)
	}
}
