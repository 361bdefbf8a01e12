package sim

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// Lanes: half of the seeds that name no profile run on a queue with facets. All their draws are of generators of their
// own, so that the other seeds are what they are without lanes.

// lanePlan is the facets and views of a run's queue.
type lanePlan struct {
	facets []string
	values map[string][]string
	views  [][]string // the facets of each, in the order of facets; "*" is not among them
	whole  bool       // "*" is
	// drains is the one view that everything is received by when the faults have stopped, as a place in views;
	// -1 = "*". So a lane that only the hints of another view led to would be seen to be lost.
	drains  int
	advance float64 // chance that a holder advances what it has
}

// viewsOf are the views that a run may have, of the facets state and region.
var viewsOf = []string{
	"*; state", "state", "*; state; region", "state; region", "*; state; state,region", "state,region; region",
	"*; region; state,region", "state; region; state,region",
}

func newLanePlan(views string, rng *rand.Rand) *lanePlan {
	states := []string{"NEW", "PAID", "DONE"}
	p := &lanePlan{
		facets: []string{"state", "region"},
		values: map[string][]string{"state": states[:2+rng.IntN(2)], "region": {"EU", "US"}},
	}
	for _, text := range strings.Split(views, "; ") {
		if text == "*" {
			p.whole = true
			continue
		}
		p.views = append(p.views, strings.Split(text, ","))
	}
	p.drains = rng.IntN(len(p.views))
	if p.whole && rng.IntN(3) == 0 {
		p.drains = -1
	}
	p.advance = 0.2 + 0.4*rng.Float64()
	return p
}

// lane draws whether the run has lanes. A run of a profile that the caller names has none, unless it is one of lanes.
func (k *knobs) lane(o Options) {
	rng := rand.New(rand.NewPCG(o.Seed, 13))
	if rng.IntN(2) == 0 || o.Profile != "" {
		return
	}
	k.setLanes(rng)
}

// setLanes gives the run's queue facets, and takes away what such a queue refuses.
func (k *knobs) setLanes(rng *rand.Rand) {
	views := viewsOf[rng.IntN(len(viewsOf))]
	k.plan = newLanePlan(views, rng)
	k.config.Facets, k.config.Views = k.plan.facets, views
	k.config.MaxRate, k.calmRate, k.rated, k.rushes = layer.Rate{}, layer.Rate{}, false, false
}

// laned: few groups with two stages, claims that seek conflicts, and holders who pass items on all the time.
func (k *knobs) laned(rng *rand.Rand) {
	k.seeking(rng)
	k.setLanes(rng)
	k.producers, k.workers, k.takers, k.operators = 2, 3+rng.IntN(3), rng.IntN(2), rng.IntN(2)
	k.groups, k.batch, k.receive, k.think = 1+rng.IntN(2), 1, 1+rng.IntN(2), 50*time.Millisecond
	k.nack, k.die, k.freeze, k.delayed, k.config.Delay = 0.1, 0, 0, 0, 0
	k.own = 0.3 * rng.Float64()
}

// lapsing: the same, with holders who die, whose leases end while others look at lanes that intersect theirs.
func (k *knobs) lapsing(rng *rand.Rand) {
	k.laned(rng)
	k.config.Lease, k.freeze, k.die, k.nack, k.think = layer.MinLease, 0.5, 0.1, 0, time.Second
	k.operators, k.takers = 0, 0
}

// crossed: one group whose lanes intersect, which is left and looked at all the time.
func (k *knobs) crossed(rng *rand.Rand) {
	k.laned(rng)
	k.groups, k.takers, k.operators, k.nack = 1, 1, 0, 0.2
	k.faults[fault.Conflict] = 0
	k.hold = 0.3 * rng.Float64()
}

// laneProfiles are the profiles of lanes, which no seed draws by itself.
var laneProfiles = []string{"laned", "lapsing", "crossed"}

// laneText names a lane: the group, and the template unless that is none.
func laneText(group string, t layer.Template) string {
	if t == nil {
		return group
	}
	return group + "?" + t.String()
}

// claimLane is the lane of a claim.
func claimLane(c *layer.Claim) string {
	if c.Hold != (layer.ID{}) {
		return holdLaneOf(c.Hold)
	}
	return laneText(c.Group, c.Where)
}

// groupOfLane is the group of a lane.
func groupOfLane(lane string) string {
	group, _, _ := strings.Cut(lane, "?")
	group, _, _ = strings.Cut(group, "#")
	return group
}

// whereOfLane is the template of a lane.
func whereOfLane(lane string) layer.Template {
	_, text, ok := strings.Cut(lane, "?")
	if !ok {
		return nil
	}
	t, err := layer.ParseTemplate(text)
	if err != nil {
		panic(err) // of a text that is a template's
	}
	return t
}

// facetsOf are the facets among headers.
func (p *lanePlan) facetsOf(headers map[string]string) layer.Template {
	if p == nil {
		return nil
	}
	t := layer.Template{}
	for _, name := range p.facets {
		t[name] = headers[name]
	}
	return t
}

// agrees reports whether a template matches what has these headers.
func agrees(t layer.Template, headers map[string]string) bool {
	for name, value := range t {
		if headers[name] != value {
			return false
		}
	}
	return true
}

// meet reports whether some item could be in both lanes, of one group.
func meet(a, b string) bool {
	if both, known := meetPlain(a, b); known {
		return both
	}
	x, y := whereOfLane(a), whereOfLane(b)
	for name, value := range x {
		if v, ok := y[name]; ok && v != value {
			return false
		}
	}
	return true
}

// templates are all templates of a view.
func (p *lanePlan) templates(view int) []layer.Template {
	if view < 0 {
		return []layer.Template{nil}
	}
	all := []layer.Template{{}}
	for _, name := range p.views[view] {
		var next []layer.Template
		for _, t := range all {
			for _, value := range p.values[name] {
				with := maps.Clone(t)
				with[name] = value
				next = append(next, with)
			}
		}
		all = next
	}
	return all
}

// lanesOf returns the lanes of a message with these headers, without the lane of the whole group.
func (p *lanePlan) lanesOf(group string, headers map[string]string) (lanes []string) {
	for _, view := range p.views {
		t := layer.Template{}
		for _, name := range view {
			t[name] = headers[name]
		}
		lanes = append(lanes, laneText(group, t))
	}
	return lanes
}

// where is a random template of a view that the queue has, or none.
func (a *actor) where() layer.Template {
	p := a.w.knobs.plan
	if p == nil {
		return nil
	}
	view := a.lanes.IntN(len(p.views))
	if p.whole && a.lanes.IntN(3) == 0 {
		view = -1
	}
	all := p.templates(view)
	return all[a.lanes.IntN(len(all))]
}

// faceted gives a message its facets.
func (a *actor) faceted(m *layer.Message) {
	if a.w.knobs.plan != nil {
		maps.Copy(m.Headers, a.facets())
	}
}

// facets are random.
func (a *actor) facets() layer.Template {
	p, t := a.w.knobs.plan, layer.Template{}
	for _, name := range p.facets {
		t[name] = p.values[name][a.lanes.IntN(len(p.values[name]))]
	}
	return t
}

// laneOptions adds a template to the options of a receive.
func (a *actor) laneOptions(o *layer.ReceiveOptions) {
	if a.w.knobs.plan == nil {
		return
	}
	if o.Where = a.where(); o.Where != nil {
		o.State = false
	}
	if o.Group == nil && a.lanes.IntN(6) == 0 {
		g := a.w.group(a.lanes)
		o.Group, o.Strategy = &g, layer.FillGroup
	}
	o.Wait = min(o.Wait, 3*time.Second+time.Duration(1+a.id)) // a receive by template gets no wake
}

// takeOptions are those of a take.
func (a *actor) takeOptions() (o layer.TakeOptions) {
	if a.w.knobs.unordered {
		return a.plainTake()
	}
	if a.w.knobs.plan == nil {
		return o
	}
	o.Where = a.where()
	if a.lanes.IntN(4) == 0 {
		g := a.w.group(a.lanes)
		o.Group = &g
	}
	return o
}

// workerLanes gives a worker a template, and handlers that are stages.
func (a *actor) workerLanes(o *worker.Options, kinds []worker.Handler) []worker.Handler {
	if a.w.knobs.plan == nil {
		return kinds
	}
	if !a.works { // one for all its workers: handlers of one that was stopped by force may still come
		a.works, a.worksAt = true, a.where()
	}
	o.Where = a.worksAt
	return append(kinds, worker.HandleStage(a.handleStage), worker.HandleStage(a.handleStage))
}

// handleStage is a handler of one stage.
func (a *actor) handleStage(ctx context.Context, d *worker.Delivery) (layer.Template, error) {
	var next layer.Template
	o := &op{kind: "handle-stage", by: byWorker, staged: d.ID}
	if a.lanes.IntN(3) > 0 {
		next = a.facets()
	} else {
		o.ids = []layer.ID{d.ID}
	}
	o.next = next
	return next, a.handled(ctx, o, d)
}

// advance lets the holder of a claim pass items on, all or some, and returns those that it still has.
func (a *actor) advance(c *layer.Claim, left []layer.ID) []layer.ID {
	p := a.w.knobs.plan
	if p == nil || a.lanes.Float64() >= p.advance {
		return left
	}
	var some, rest []layer.ID
	for _, id := range left {
		if a.lanes.IntN(3) > 0 {
			some = append(some, id)
		} else {
			rest = append(rest, id)
		}
	}
	if len(some) == 0 {
		some, rest = left, nil
	}
	o := &op{
		kind: "advance", settle: true, group: claimLane(c), token: c.Token, advanced: some, next: a.facets(),
	}
	if a.lanes.IntN(4) == 0 {
		a.n++
		o.body = fmt.Sprintf("advanced a%d.%d", a.id, a.n)
	}
	s := layer.Settlement{Claim: c, Advance: some}
	if len(rest) == 0 && a.lanes.IntN(2) == 0 {
		s.Advance, s.AdvanceAll, o.all = nil, true, true
	}
	s.Change = func(_ layer.ID, m *layer.Message) error {
		maps.Copy(m.Headers, o.next)
		if o.body != "" {
			m.Body = []byte(o.body)
		}
		return nil
	}
	if err := a.settle(o, s); err != nil {
		return nil
	}
	a.w.mark("advance")
	return rest
}

// editLanes lets an edit change facets, too.
func (a *actor) editLanes(o *op, change func(m *layer.Message) error) func(m *layer.Message) error {
	if a.w.knobs.plan == nil || a.lanes.IntN(2) == 0 {
		return change
	}
	o.next = a.facets()
	return func(m *layer.Message) error {
		maps.Copy(m.Headers, o.next)
		return change(m)
	}
}

// opLane is the lane that an operator acts on in a group, and its template.
func (a *actor) opLane(o *op) layer.Template {
	where := a.where()
	o.group = laneText(o.group, where)
	return where
}

// drainLanes receives and acks by the templates of one view.
func (a *actor) drainLanes() {
	p := a.w.knobs.plan
	const least, most = 100 * time.Millisecond, time.Second // no longer: the queue's rate gives a burst of a second
	for pause := least; !a.w.empty(); {
		got := 0
		for _, where := range p.templates(p.drains) {
			o := &op{kind: "receive"}
			options := layer.ReceiveOptions{Max: 50, Where: where}
			if where == nil {
				options.Wait = 2 * time.Second
			}
			a.call(o, func(ctx context.Context) (err error) {
				o.claims, err = a.q.Receive(ctx, options)
				return err
			})
			for _, c := range o.claims {
				s := &op{kind: "ack", settle: true, all: true, group: claimLane(c), token: c.Token}
				for _, item := range c.Items {
					s.ids = append(s.ids, item.ID)
				}
				a.call(s, func(ctx context.Context) error { return a.q.Ack(ctx, c) })
			}
			got += len(o.claims)
		}
		if got > 0 {
			pause = least
			continue
		}
		a.sleep(pause)
		pause = min(2*pause, most)
	}
}

// sortedFacets are the values of facets as text, for messages.
func sortedFacets(headers map[string]string, p *lanePlan) string {
	var s []string
	for _, name := range p.facets {
		s = append(s, name+"="+headers[name])
	}
	slices.Sort(s)
	return strings.Join(s, ",")
}
