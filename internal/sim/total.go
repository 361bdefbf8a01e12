package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"fdbfifo/layer"
)

// The checks of the rate of the whole queue (max_rate_total). Over any time T at most rate × (T + 1 s) items of all
// groups and a burst start their delivery. If clocks differ, each clock that is ahead of another has a burst of its
// own, again whenever the others have caught up. In calm the queue drains at the rate (totalFor).

var totalRates = []layer.Rate{
	{Count: 10, Per: time.Second}, {Count: 4, Per: time.Second}, {Count: 2, Per: time.Second},
	{Count: 1, Per: time.Second}, {Count: 3, Per: 2 * time.Second},
}

// totalled: several handles that are hungry all the time, and draw at the same moments.
func (k *knobs) totalled(rng *rand.Rand) {
	k.seeking(rng)
	k.config.MaxRateTotal = totalRates[1+rng.IntN(len(totalRates)-1)]
	k.groups, k.batch, k.receive, k.producers, k.workers = 6, 2+rng.IntN(5), 1+rng.IntN(3), 2, 5+rng.IntN(4)
	k.handles, k.takers, k.operators, k.operations = mostHandles, rng.IntN(2), rng.IntN(2), []int{7, 9, 12}
	k.think, k.wait, k.delayed, k.config.Delay = 20*time.Millisecond, 5*time.Second, 0, 0
	k.config.MaxRate, k.config.MaxWaiting = layer.Rate{}, 0
	k.own = 0.5
}

// startedAt is items that start their delivery in one transaction, which began and was sent at a time of the world.
type startedAt struct {
	begunMS, sentMS int64
	n               int
	r               *record
}

// totals notes the items whose delivery starts in a record.
func (m *model) totals(r *record, started map[string]int) {
	if m.w.knobs.config.MaxRateTotal.Count == 0 {
		return
	}
	s := startedAt{begunMS: m.w.worldMS(r) - (r.nowMS - r.begunMS), sentMS: m.w.worldMS(r), r: r}
	for _, n := range started {
		s.n += n
	}
	if s.n > 0 {
		m.starts = append(m.starts, s)
	}
}

// compareTotal holds all starts to the rate, over every time from the begin of one to the end of another.
func (m *model) compareTotal() {
	rate := m.w.knobs.config.MaxRateTotal
	if rate.Count == 0 {
		return
	}
	perMS := float64(rate.Count) / float64(rate.Per.Milliseconds())
	burst := max(1, math.Floor(perMS*1000))
	clocks := make(map[time.Duration]bool)
	for _, h := range m.w.handles {
		clocks[h.skew] = true
	}
	slices.SortStableFunc(m.starts, func(a, b startedAt) int { return cmp.Compare(a.sentMS, b.sentMS) })
	for _, from := range m.starts {
		n := 0
		for _, till := range m.starts {
			if till.begunMS < from.begunMS {
				continue
			}
			n += till.n
			d := float64(till.sentMS - from.begunMS + rounding)
			bursts := 1.0
			if len(clocks) > 1 {
				bursts = float64(len(clocks)) * (1 + d/float64(maxSkew.Milliseconds()))
			}
			if most := perMS*(d+1000) + burst*bursts; float64(n) > most {
				m.w.violation("%d items start within %.0f ms, from step %d to %d, where %s lets %.1f start",
					n, d, from.r.step, till.r.step, rate, most)
				return
			}
		}
		m.w.mark("delivery within the queue's rate")
	}
}

// totalFor is how long the queue's rate lets what is there wait in calm: what a handle has drawn and does not need is
// lost.
func (w *world) totalFor() time.Duration {
	rate := w.knobs.config.MaxRateTotal
	if rate.Count == 0 {
		return 0
	}
	items := len(w.rows(section("item"), 0))
	return 2*maxSkew + 3*time.Duration(items+mostHandles)*rate.Per/time.Duration(rate.Count)
}
