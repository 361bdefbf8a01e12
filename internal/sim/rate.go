package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The checks of the rate of the groups. Over any time T at most rate × T items of a group and a burst start their
// delivery, by the clocks of the handles that deliver them. No group is left to an outdated rate.

// clearedPair is the value of a pair, and the version at which it was cleared.
type clearedPair struct{ us, version int64 }

// ratedAt is a rate from one record on.
type ratedAt struct {
	r              *record
	version        int64
	count          float64 // 0 = none
	per            float64 // µs
	delayMS        int64
	fromMS, tillMS int64 // by the world's clock: from when and, at the latest, till when it was in force
}

func (c *ratedAt) none() bool { return c.count == 0 }

// item is how long an item takes, in µs.
func (c *ratedAt) item() float64 { return c.per / c.count }

// burst is how many items may come at once.
func (c *ratedAt) burst() float64 { return max(1, math.Floor(c.count*1e6/c.per)) }

// pacing is what the model knows of the rates of groups.
type pacing struct {
	rates   []*ratedAt
	used    map[string]float64        // by group: up to when, in µs, its rate is used up at least
	pairs   map[string]int64          // by group: up to when the queue says that it is
	cleared map[string]clearedPair    // by group: the pair that was cleared last
	started map[string]int            // by group: items that start their delivery in the record under replay
	dues    map[string]map[int64]bool // by group: until when items are kept back, or were
	taken   map[layer.ID]bool         // by an actor that got the answer
	changed []*op                     // changes of the rate that are done, by their ends
}

// knownFor is how old what a handle knows of the configuration may be when a transaction begins, and some.
const knownFor = 600 // ms

// freshBeyond is how long a group may be left to a rate that is out of date.
const freshBeyond = 1000 // ms

// worldMS is the world's time when the record was sent, and begunMS when its attempt began.
func (w *world) worldMS(r *record) int64 {
	if w.knobs.clocks {
		return r.atMS
	}
	return r.nowMS - w.skewOf(r.who).Milliseconds()
}

func newPacing(w *world, records []record) *pacing {
	p := &pacing{
		used: make(map[string]float64), pairs: make(map[string]int64), started: make(map[string]int),
		cleared: make(map[string]clearedPair),
		dues:    make(map[string]map[int64]bool), taken: make(map[layer.ID]bool),
	}
	for i := range records {
		r := &records[i]
		for _, wr := range r.writes {
			name, rest := keyOf(wr.key)
			if name != "meta" || len(rest) != 1 || rest[0] != "config" || wr.kind != wrote {
				continue
			}
			c, err := ratedBy(wr.value)
			if err != nil {
				w.violation("configuration of commit %d: %v", i, err)
				continue
			}
			c.r, c.fromMS, c.tillMS = r, w.worldMS(r), math.MaxInt64
			if n := len(p.rates); n > 0 {
				p.rates[n-1].tillMS = w.landedMS(records, i)
			}
			p.rates = append(p.rates, c)
		}
	}
	for _, o := range w.ops {
		if o.kind == "take" && o.outcome == done {
			for _, id := range o.ids {
				p.taken[id] = true
			}
		}
		if o.rates && o.kind == "configure" && o.outcome == done {
			p.changed = append(p.changed, o)
		}
	}
	slices.SortStableFunc(p.changed, func(a, b *op) int { return a.end - b.end })
	return p
}

// landedMS is when a record was applied, at the latest.
func (w *world) landedMS(records []record, i int) int64 {
	for ; i < len(records); i++ {
		if r := &records[i]; r.from == r.step {
			return w.worldMS(r)
		}
	}
	return math.MaxInt64
}

// ratedBy reads the rate of a stored configuration.
func ratedBy(value []byte) (*ratedAt, error) {
	t, err := tuple.Unpack(value)
	if err != nil || len(t) < 3 { // more after a raise of the shards
		return nil, fmt.Errorf("%v, %w", t, err)
	}
	c := &ratedAt{}
	c.version, _ = t[0].(int64)
	document, _ := t[1].(string)
	var settings map[string]any
	if err := json.Unmarshal([]byte(document), &settings); err != nil {
		return nil, err
	}
	if text, ok := settings["delay"].(string); ok {
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, err
		}
		c.delayMS = d.Milliseconds()
	}
	text, ok := settings["max_rate"].(string)
	if !ok || text == "0" {
		return c, nil
	}
	count, per, _ := strings.Cut(text, "/")
	if per[0] < '0' || per[0] > '9' {
		per = "1" + per
	}
	d, err := time.ParseDuration(per)
	if err != nil {
		return nil, err
	}
	if c.count, err = strconv.ParseFloat(count, 64); err != nil {
		return nil, err
	}
	c.per = float64(d.Microseconds())
	return c, nil
}

// rounding is how far off the world's time of a record may be: of its handle's time and clock skew each is in whole milliseconds.
const rounding = 3 // ms

// inForce are the rates that were in force at some moment between two times of the world.
func (p *pacing) inForce(fromMS, tillMS int64) (all []*ratedAt) {
	for _, c := range p.rates {
		if c.fromMS-rounding <= tillMS && c.tillMS >= fromMS-rounding {
			all = append(all, c)
		}
	}
	return all
}

// since returns the rates that a transaction may use if it must not use an outdated one: the rate that it reads, and
// those that came before it was applied.
func (p *pacing) since(r *record) (all []*ratedAt) {
	for _, c := range p.rates {
		switch {
		case c.r.version <= r.rv:
			all = []*ratedAt{c}
		case c.r.order < r.order:
			all = append(all, c)
		}
	}
	return all
}

// paced follows the rates through a record that has been applied.
func (m *model) paced(r *record, after map[string][]byte, gone map[layer.ID]bool) {
	p := m.pacing
	for id := range gone {
		if f := m.finished[id]; p.taken[id] && len(f) > 0 && f[len(f)-1].r == r && !f[len(f)-1].under {
			p.started[id.Group]++
		}
	}
	for _, wr := range r.writes {
		name, rest := m.keyOf(wr.key)
		if name != "pace" || len(rest) != 1 {
			continue
		}
		group, _ := rest[0].(string)
		switch wr.kind {
		case wrote:
			t, err := tuple.Unpack(wr.value)
			if err != nil || len(t) < 3 { // more after a raise of the shards
				m.violation("pace of %q: %v, %v", group, t, err)
				continue
			}
			p.pairs[group], _ = t[0].(int64)
		case cleared:
			if us, there := p.pairs[group]; there {
				m.unpaced(group)
				p.cleared[group] = clearedPair{us, r.version}
			}
			delete(p.pairs, group)
			delete(p.used, group)
		}
	}
	m.totals(r, p.started)
	for group, n := range p.started {
		m.delivered(group, n)
	}
	clear(p.started)
	led, left := make(map[string]bool), make(map[string]int64)
	for k, v := range after {
		switch name, rest := m.keyOf([]byte(k)); name {
		case "item":
			id := idOf(rest)
			if due := m.group(id.Group).items[id].dueMS; v != nil && due > 0 {
				if p.dues[id.Group] == nil {
					p.dues[id.Group] = make(map[int64]bool)
				}
				p.dues[id.Group][due] = true
			}
		case "ready":
			group, _ := rest[2].(string)
			led[group] = led[group] || v == nil
		case "timer":
			dueMS, _ := rest[0].(int64)
			group, _ := rest[1].(string)
			if v == nil {
				led[group] = true
			} else if timerKind(v) == "head" && dueMS < sinceBase {
				left[group] = dueMS
			}
		}
	}
	for group, untilMS := range left {
		if led[group] && m.awaits(group) > 0 {
			m.leftToRate(group, untilMS)
		}
	}
}

// delivered counts n items of a group that start their delivery.
func (m *model) delivered(group string, n int) {
	p, r := m.pacing, m.r
	begunMS := m.w.worldMS(r) - (r.nowMS - r.begunMS)
	next := math.Inf(1)
	for _, c := range p.inForce(begunMS-knownFor, m.w.worldMS(r)) {
		if c.none() {
			return // for all that is known
		}
		from := max(p.used[group], float64(r.begunMS)*1000-c.burst()*c.item())
		next = min(next, from+float64(n)*c.item())
	}
	if late := next - float64(r.nowMS+1)*1000; late > 10 {
		m.mistimed("%q is given %d items, %.3f s before its rate allows it", group, n, late/1e6)
	}
	p.used[group] = next
	m.w.mark("delivery within a rate")
}

// unpaced holds the sweep of a group's pair to its cause: it is as none, by a rate that the sweep may have gone by.
func (m *model) unpaced(group string) {
	p, r := m.pacing, m.r
	m.w.mark("rate of a group swept")
	fromMS := m.w.worldMS(r) - knownFor
	for _, o := range m.w.ops {
		if o.who != r.who || o.begin > r.step || o.outcome == done && o.end < r.step {
			continue // one that failed may have done a part
		}
		if o.sweeping && o.group == group {
			return // a purge
		}
		if strings.HasPrefix(o.kind, "sweep") || strings.HasPrefix(o.kind, "configure") || o.kind == "heal" {
			fromMS = min(fromMS, o.beginAt.UnixMilli())
		}
	}
	if m.w.handleOf(r.who).consumed {
		return // its worker sweeps when it likes
	}
	for _, c := range p.inForce(fromMS, m.w.worldMS(r)) {
		if c.none() || p.used[group] <= float64(r.nowMS+1)*1000-c.burst()*c.item() {
			return
		}
	}
	m.violation("the rate of %q is swept, which is used up until %.0f ms before", group, float64(r.nowMS)-p.used[group]/1000)
}

// awaits returns until when a group waits that nothing but timers of its head leads to; 0 = it does not.
func (m *model) awaits(group string) (untilMS int64) {
	g := m.group(group)
	if g.lock != nil || len(g.items) == 0 || len(m.hints[group]) > 0 || m.w.knobs.plan != nil || m.w.knobs.unordered {
		return 0 // a queue with facets, or an unordered one, has no rate of groups
	}
	for due, kind := range m.timers[group] {
		if due >= sinceBase {
			return 0 // it waits by the queue's delay
		}
		if kind == "head" && (untilMS == 0 || due < untilMS) {
			untilMS = due
		}
	}
	return untilMS
}

// allowed is until when a rate lets a group wait, at most.
func (p *pacing) allowed(c *ratedAt, group string, nowMS int64) int64 {
	if c.none() {
		return nowMS
	}
	return max(nowMS, p.pairs[group]/1000) + int64(c.item()/1000) + 2
}

// leftToRate holds a record that leaves a group to a timer, and nothing else that led to it, to the rate that holds for it.
func (m *model) leftToRate(group string, untilMS int64) {
	p, r := m.pacing, m.r
	if untilMS <= r.nowMS || p.dues[group][untilMS] {
		return
	}
	m.w.mark("group left to its rate")
	if untilMS <= r.nowMS+freshBeyond {
		return
	}
	m.w.mark("group left to its rate for long")
	for _, c := range p.since(r) {
		if untilMS <= p.allowed(c, group, r.nowMS) {
			return
		}
		if was := p.cleared[group]; was.version > r.rv && untilMS <= was.us/1000+int64(c.item()/1000)+2 {
			return // it has read what a clock ahead of its own takes for long past, and was cleared since
		}
	}
	m.violation("%q is left to its rate for %d ms", group, untilMS-r.nowMS)
}

// rateChanged checks the changes of the rate that had ended before a record: no group may wait by the old rate. r is
// nil after the last record.
func (m *model) rateChanged(r *record) {
	p := m.pacing
	for len(p.changed) > 0 && (r == nil || r.from > p.changed[0].end) {
		o := p.changed[0]
		p.changed = p.changed[1:]
		i := slices.IndexFunc(p.rates, func(c *ratedAt) bool { return c.version == o.token })
		if i < 1 || p.rates[i-1].none() || p.rates[i-1].count == p.rates[i].count && p.rates[i-1].per == p.rates[i].per {
			continue
		}
		m.w.mark("rate changed under load")
		nowMS := o.endAt.Add(m.w.fastest()).UnixMilli()
		for group := range m.groups {
			untilMS := m.awaits(group)
			if untilMS == 0 {
				continue
			}
			limit := nowMS + freshBeyond
			for _, s := range m.group(group).items {
				limit = max(limit, s.dueMS)
			}
			for _, c := range p.rates[i:] {
				if r == nil || c.r.order < r.order {
					limit = max(limit, p.allowed(c, group, nowMS))
				}
			}
			if untilMS > limit {
				m.w.violation("%s has returned, and %q still waits for %d ms by what the rate was", o, group, untilMS-nowMS)
			}
		}
	}
}

// fastest is the clock that is furthest ahead.
func (w *world) fastest() time.Duration {
	d := w.handles[0].skew
	for _, h := range w.handles {
		d = max(d, h.skew)
	}
	return d
}

// unswept reports whether the rate was changed in a way that lets groups wait by the old rate until the next sweep.
func (w *world) unswept() bool {
	return slices.ContainsFunc(w.ops, func(o *op) bool { return o.rates && o.outcome != done })
}

// pacedFor is how long the rate lets what is there wait in calm.
func (w *world) pacedFor() time.Duration {
	rate := w.knobs.calmRate
	if rate == (layer.Rate{}) {
		return 0
	}
	items, most := make(map[string]int), 0
	for _, row := range w.rows(section("item"), 0) {
		_, rest := keyOf(bytes.Clone(row.Key))
		group, _ := rest[0].(string)
		items[group]++
		most = max(most, items[group])
	}
	return 2*maxSkew + time.Duration(most+1)*rate.Per/time.Duration(rate.Count)
}
