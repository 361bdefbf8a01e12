package sim

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"fdbfifo/layer"
)

// Retroactive delay: a share of the seeds has a queue whose delay is changed while messages wait. The model holds each
// claim to the delays that were in force when its transaction began, and what leads to a group to the time at which the
// head was enqueued. That a shorter delay lets go what waits is held by the drain, and by the groups' reachability.

// sinceBase is what the layer adds to the times of timers that have the time of an enqueue.
const sinceBase = 1 << 50

// retroProfiles are the profiles of retroactive delay, which no seed draws by itself.
var retroProfiles = []string{"redelayed"}

// drawRetroactive draws whether the run's queue has retroactive delay, by a generator of its own. A run of a profile
// has it only if the profile is its own, and a run whose owners look for the times of messages has it not.
func (k *knobs) drawRetroactive(o Options) {
	rng := rand.New(rand.NewPCG(o.Seed, 24))
	if rng.IntN(4) > 0 || o.Profile != "" || k.profile != "" || k.plan != nil || k.owners > 0 {
		return
	}
	k.setRetroactive(rng)
}

func (k *knobs) setRetroactive(rng *rand.Rand) {
	k.config.RetroactiveDelay = true
	if k.operators = max(k.operators, 1); k.config.Delay == 0 && rng.IntN(2) == 0 {
		k.config.Delay = time.Duration(rng.Int64N(int64(maxDelay / 2)))
	}
}

// redelayed: few groups that are delayed all the time, and operators who change for how long.
func (k *knobs) redelayed(rng *rand.Rand) {
	k.seeking(rng)
	k.setRetroactive(rng)
	k.operators, k.operations = 2+rng.IntN(2), []int{13, 13, 13, 3, 5, 9}
	k.delayed, k.wait = 0.3, 5*time.Second
	if k.config.Retention = 0; rng.IntN(3) == 0 {
		k.config.Retention = time.Second + time.Duration(rng.Int64N(int64(maxDelay/2)))
	}
	if rng.IntN(2) == 0 {
		k.apart(rng)
	}
}

// redelay is the delay that a change of the configuration sets.
func (a *actor) redelay() func(c *layer.Config) {
	if !a.w.knobs.config.RetroactiveDelay {
		return func(*layer.Config) {}
	}
	delay := max(0, a.below(maxDelay)-maxDelay/4)
	return func(c *layer.Config) {
		if c.Delay != delay {
			a.w.mark("delay changed under load")
		}
		c.Delay = delay
	}
}

// atOnce is the due time that a message has which is delivered at once; 0 = none.
func (k *knobs) atOnce(enqueuedMS int64) int64 {
	if k.config.RetroactiveDelay {
		return enqueuedMS
	}
	return 0
}

// earliest is when an item may be delivered by the record under replay, at the earliest.
func (m *model) earliest(s *stored) int64 {
	if s.dueMS > 0 || !m.w.knobs.config.RetroactiveDelay {
		return s.dueMS
	}
	begunMS := m.w.worldMS(m.r) - (m.r.nowMS - m.r.begunMS)
	delay := int64(math.MaxInt64)
	for _, c := range m.pacing.inForce(begunMS-knownFor, m.w.worldMS(m.r)) {
		delay = min(delay, c.delayMS)
	}
	if delay == 0 {
		return 0 // whatever the clock of its producer
	}
	m.w.mark("claim in a queue with a delay that changes")
	return s.enqueuedMS + delay
}

// easedMS is since when an item has waited whose delay the queue decides, by the last change that its removal has seen
// and that made the delay shorter; 0 = there was none.
func (m *model) easedMS(f *finished) (ms int64) {
	if f.item.dueMS > 0 || !m.w.knobs.config.RetroactiveDelay {
		return 0
	}
	for i, c := range m.pacing.rates {
		if i > 0 && c.delayMS < m.pacing.rates[i-1].delayMS && c.r.version <= f.r.rv {
			ms = c.r.begunMS
		}
	}
	return ms
}

// sinceTimers reports whether a timer with the time of an enqueue leads to a group, as it must to one whose head has no
// time of its own, no later than the head was enqueued.
func (m *model) sinceTimers(group string, head layer.ID, timers map[int64]string) bool {
	if !m.w.knobs.config.RetroactiveDelay {
		return false
	}
	s := m.group(group).items[head]
	if s.dueMS > 0 {
		return false // its own timer leads there
	}
	all := slices.Collect(maps.Keys(timers))
	if !slices.ContainsFunc(all, func(t int64) bool { return t < sinceBase || t-sinceBase <= s.enqueuedMS }) {
		m.violation("I1: %q has %s, enqueued at %d, and no timer leads to it: %v", group, head, s.enqueuedMS, timers)
	}
	m.w.mark("head awaited by the time of its enqueue")
	return true
}
