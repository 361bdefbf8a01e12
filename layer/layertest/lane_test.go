package layer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// laned makes a queue with facets in addition to the test's own, and returns handles on it.
func (e *env) laned(name, views string, change func(*layer.Config), handles int) []*layer.Queue {
	e.t.Helper()
	o := e.options(10)
	o.Config.Facets, o.Config.Views = []string{"state", "region"}, views
	o.Config.MaxAttempts = layer.Unlimited
	if change != nil {
		change(&o.Config)
	}
	q, err := layer.Create(e.ctx, e.db, testPrefix, name, o)
	require.NoError(e.t, err)
	all := []*layer.Queue{q}
	for n := 1; n < handles; n++ {
		q, err := layer.Open(e.ctx, e.db, testPrefix, name, e.options(uint64(10+n)))
		require.NoError(e.t, err)
		all = append(all, q)
	}
	e.t.Cleanup(func() { e.sound(name) })
	return all
}

// sound holds a queue to the invariants.
func (e *env) sound(name string) {
	e.t.Helper()
	q, err := layer.Open(context.Background(), e.raw, testPrefix, name, e.options(98))
	require.NoError(e.t, err)
	report, err := q.Admin().Check(context.Background(), layer.CheckOptions{})
	require.NoError(e.t, err)
	require.Empty(e.t, report.Violations)
}

var (
	isNew  = layer.Template{"state": "NEW"}
	isPaid = layer.Template{"state": "PAID"}
)

func facetsOf(state, region string) map[string]string {
	return map[string]string{"state": state, "region": region}
}

// laneModel is what a queue with facets must do, one operation after the other.
type laneModel struct {
	now    func() time.Time
	items  []*laneItem // in key order within each group
	held   []*laneClaim
	paused map[string]bool
}

type laneItem struct {
	id      layer.ID
	headers map[string]string
	due     time.Time
	given   bool // it was in a claim
}

// givenIn notes that items were in a claim.
func givenIn(items []*laneItem, ids []layer.ID) {
	for _, i := range items {
		i.given = i.given || slices.Contains(ids, i.id)
	}
}

// receiveFree receives by q. free has the items of which q must get one. If all were in a claim before, they may be
// suspect, and q may get none, because it has given another suspect item: then another handle must get one.
func (e *env) receiveFree(q *layer.Queue, o layer.ReceiveOptions, free []*laneItem) []*layer.Claim {
	e.t.Helper()
	claims, err := q.Receive(e.ctx, o)
	require.NoError(e.t, err)
	if len(claims) > 0 || len(free) == 0 {
		return claims
	}
	for _, i := range free {
		require.True(e.t, i.given, "%s is free, was never given, and was not found", i.id)
	}
	other, err := layer.Open(e.ctx, e.db, testPrefix, q.Name(), e.options(20))
	require.NoError(e.t, err)
	claims, err = other.Receive(e.ctx, o)
	require.NoError(e.t, err)
	return claims
}

// laneClaim is a claim, or, without items, the delay that a nack has left.
type laneClaim struct {
	claim *layer.Claim
	items []layer.ID
	until time.Time
}

func agrees(headers map[string]string, t layer.Template) bool {
	for name, value := range t {
		if headers[name] != value {
			return false
		}
	}
	return true
}

func meet(a, b layer.Template) bool {
	for name, value := range a {
		if other, ok := b[name]; ok && other != value {
			return false
		}
	}
	return true
}

// lane returns the items of a group that agree with a template, in order, up to the first that is not due.
func (m *laneModel) lane(group string, where layer.Template) (ids []layer.ID) {
	for _, item := range m.items {
		if item.id.Group == group && agrees(item.headers, where) {
			if item.due.After(m.now()) {
				return ids
			}
			ids = append(ids, item.id)
		}
	}
	return ids
}

// excluded reports whether a claim of the group keeps a template from it.
func (m *laneModel) excluded(group string, where layer.Template) bool {
	return m.paused[group] || slices.ContainsFunc(m.held, func(c *laneClaim) bool {
		return c.claim.Group == group && c.until.After(m.now()) && meet(c.claim.Where, where)
	})
}

// endsDelays ends the delays of the lanes whose head an operator is about to take out.
func (m *laneModel) endsDelays(id layer.ID) {
	out := m.item(id)
	m.held = slices.DeleteFunc(m.held, func(c *laneClaim) bool {
		if len(c.items) > 0 || c.claim.Group != id.Group || !agrees(out.headers, c.claim.Where) {
			return false
		}
		for _, i := range m.items {
			if i.id.Group == id.Group && agrees(i.headers, c.claim.Where) {
				return i.id == id
			}
		}
		return false
	})
}

func (m *laneModel) remove(ids ...layer.ID) {
	m.items = slices.DeleteFunc(m.items, func(i *laneItem) bool { return slices.Contains(ids, i.id) })
}

func (m *laneModel) item(id layer.ID) *laneItem {
	for _, i := range m.items {
		if i.id == id {
			return i
		}
	}
	return nil
}

// received holds what a receive got to the model: the first items of a lane, in order, nothing that is excluded, and
// nothing only if there is nothing.
func (m *laneModel) received(t *testing.T, o layer.ReceiveOptions, groups []string, claims []*layer.Claim) {
	t.Helper()
	for _, c := range claims {
		require.Equal(t, o.Where, c.Where)
		require.False(t, m.excluded(c.Group, o.Where), "group %q where %s is in other hands", c.Group, o.Where)
		lane := m.lane(c.Group, o.Where)
		require.LessOrEqual(t, len(c.Items), len(lane))
		var ids []layer.ID
		for i, item := range c.Items {
			require.Equal(t, lane[i], item.ID, "in the order of the lane")
			require.Equal(t, m.item(item.ID).headers, item.Headers)
			ids = append(ids, item.ID)
		}
		givenIn(m.items, ids)
		m.held = append(m.held, &laneClaim{claim: c, items: ids, until: m.now().Add(layer.DefaultLease)})
	}
	if len(claims) > 0 {
		return
	}
	for _, group := range groups {
		if o.Group != nil && *o.Group != group || m.excluded(group, o.Where) {
			continue
		}
		require.Empty(t, m.lane(group, o.Where), "group %q where %s is free, and was not found", group, o.Where)
	}
}

// TestLanesAgainstAModel: whatever is done, one operation after the other, by several handles and under faults, a
// receive by template gets the first items of a lane that no intersecting claim keeps, and finds one if there is one.
func TestLanesAgainstAModel(t *testing.T) {
	t.Parallel()
	for _, views := range []string{"*; state", "state", "state; state,region", "*; state; state,region; region"} {
		t.Run(views, func(t *testing.T) {
			onEngines(t, func(e *env) {
				for round := range 4 {
					newLaneRun(e, fmt.Sprintf("lanes-%d", round), views).run(60)
				}
			})
		})
	}
}

// laneRun is a random history of one queue with facets.
type laneRun struct {
	*env
	laneModel
	random  *rand.Rand
	name    string
	handles []*layer.Queue
	groups  []string
	wheres  []layer.Template
}

func newLaneRun(e *env, name, views string) *laneRun {
	r := &laneRun{env: e, name: name, groups: []string{"A", "B"}}
	r.random = rand.New(rand.NewPCG(e.seed, uint64(len(name))+uint64(name[len(name)-1])))
	r.now, r.paused = e.clock.now, make(map[string]bool)
	r.handles = e.laned(name, views, nil, 3)
	for _, view := range []string{"*", "state", "state,region", "region"} {
		if !slices.Contains(strings.Split(views, "; "), view) {
			continue
		}
		switch view {
		case "*":
			r.wheres = append(r.wheres, nil)
		case "state":
			r.wheres = append(r.wheres, layer.Template{"state": "NEW"}, layer.Template{"state": "PAID"})
		case "region":
			r.wheres = append(r.wheres, layer.Template{"region": "EU"}, layer.Template{"region": "US"})
		default:
			r.wheres = append(r.wheres, layer.Template{"state": "NEW", "region": "EU"},
				layer.Template{"state": "PAID", "region": "US"})
		}
	}
	return r
}

func (r *laneRun) any() *layer.Queue { return r.handles[r.random.IntN(len(r.handles))] }

func (r *laneRun) facets() map[string]string {
	return facetsOf([]string{"NEW", "PAID", "DONE"}[r.random.IntN(3)], []string{"EU", "US"}[r.random.IntN(2)])
}

func (r *laneRun) run(steps int) {
	r.t.Helper()
	weights := []func(){
		r.enqueueSome, r.enqueueSome, r.receiveSome, r.receiveSome, r.receiveSome, r.ackSome, r.ackSome, r.nackSome,
		r.advanceSome, r.advanceSome, r.takeSome, r.expireAll, r.cancelOne, r.editOne, r.skipAndRedrive, r.pauseOne,
		r.purgeOne, r.delayOne, r.forceOne, r.wait,
	}
	for range steps {
		weights[r.random.IntN(len(weights))]()
		if r.random.IntN(10) == 0 {
			r.sound(r.name)
		}
	}
	r.sound(r.name)
}

func (r *laneRun) enqueueSome() {
	var msgs []layer.Message
	for range 1 + r.random.IntN(3) {
		msgs = append(msgs, layer.Message{Group: r.groups[r.random.IntN(len(r.groups))], Headers: r.facets()})
	}
	sent, err := r.any().Enqueue(r.ctx, msgs...)
	require.NoError(r.t, err)
	for i, s := range sent {
		r.items = append(r.items, &laneItem{id: s.ID, headers: msgs[i].Headers})
	}
}

func (r *laneRun) laneOptions() layer.ReceiveOptions {
	o := layer.ReceiveOptions{Where: r.wheres[r.random.IntN(len(r.wheres))], Max: 1 + r.random.IntN(4)}
	if r.random.IntN(4) == 0 {
		o.Group = layer.OnlyGroup(r.groups[r.random.IntN(len(r.groups))])
	}
	return o
}

func (r *laneRun) receiveSome() {
	o := r.laneOptions()
	var heads []*laneItem
	for _, group := range r.groups {
		if o.Group != nil && *o.Group != group || r.excluded(group, o.Where) {
			continue
		}
		if lane := r.lane(group, o.Where); len(lane) > 0 {
			heads = append(heads, r.item(lane[0]))
		}
	}
	r.received(r.t, o, r.groups, r.receiveFree(r.any(), o, heads))
}

// holding returns a claim and some of its items, at least one.
func (r *laneRun) holding() (*laneClaim, []layer.ID) {
	var live []*laneClaim
	for _, c := range r.held {
		if len(c.items) > 0 && c.until.After(r.now()) {
			live = append(live, c)
		}
	}
	if len(live) == 0 {
		return nil, nil
	}
	c := live[r.random.IntN(len(live))]
	var ids []layer.ID
	for _, id := range c.items {
		if r.random.IntN(2) == 0 {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		ids = slices.Clone(c.items)
	}
	return c, ids
}

// leaves takes items out of a claim, which ends with its last.
func (r *laneRun) leaves(c *laneClaim, ids []layer.ID) {
	c.items = slices.DeleteFunc(c.items, func(id layer.ID) bool { return slices.Contains(ids, id) })
	if len(c.items) == 0 {
		r.held = slices.DeleteFunc(r.held, func(other *laneClaim) bool { return other == c })
	}
}

func (r *laneRun) ackSome() {
	if c, ids := r.holding(); c != nil {
		require.NoError(r.t, r.any().AckItems(r.ctx, c.claim, ids))
		r.remove(ids...)
		r.leaves(c, ids)
	}
}

func (r *laneRun) nackSome() {
	c, _ := r.holding()
	if c == nil {
		return
	}
	o := layer.NackOptions{Release: r.random.IntN(2) == 0}
	if r.random.IntN(3) == 0 {
		o.Delay = 10 * time.Second
	}
	require.NoError(r.t, r.any().Nack(r.ctx, c.claim, o))
	r.leaves(c, c.items)
	if o.Delay > 0 && !(r.paused[c.claim.Group] && len(c.claim.Where) == 0) { // see NackOptions.Delay
		r.held = append(r.held, &laneClaim{claim: c.claim, until: r.now().Add(o.Delay)})
	}
}

func (r *laneRun) advanceSome() {
	c, ids := r.holding()
	if c == nil {
		return
	}
	next := r.facets()
	require.NoError(r.t, r.any().Settle(r.ctx, advanceBy(c.claim, func(m *layer.Message) error {
		m.Headers = map[string]string{"state": next["state"], "region": next["region"]}
		return nil
	}, ids...)))
	for _, id := range ids {
		r.item(id).headers = next
	}
	r.leaves(c, ids)
}

func (r *laneRun) takeSome() {
	o := r.laneOptions()
	items, err := r.take(r.any(), o.Max, layer.TakeOptions{Group: o.Group, Where: o.Where})
	require.NoError(r.t, err)
	var claims []*layer.Claim
	if len(items) > 0 {
		claims = []*layer.Claim{{Group: items[0].ID.Group, Where: o.Where, Items: items}}
	}
	r.received(r.t, o, r.groups, claims)
	if len(items) > 0 {
		taken := r.held[len(r.held)-1]
		r.remove(taken.items...)
		r.leaves(taken, taken.items)
	}
}

// expireAll lets all leases end.
func (r *laneRun) expireAll() {
	r.clock.advance(time.Minute)
}

// wait lets some leases and delays end.
func (r *laneRun) wait() { r.clock.advance(20 * time.Second) }

// delayOne enqueues a message that is not due yet.
func (r *laneRun) delayOne() {
	m := layer.Message{Group: r.groups[r.random.IntN(len(r.groups))], Headers: r.facets(), Delay: 30 * time.Second}
	sent, err := r.any().Enqueue(r.ctx, m)
	require.NoError(r.t, err)
	r.items = append(r.items, &laneItem{id: sent[0].ID, headers: m.Headers, due: r.now().Add(m.Delay)})
}

// skipAndRedrive makes a dead letter of a group's head, and puts it back to its place.
func (r *laneRun) skipAndRedrive() {
	group := r.groups[r.random.IntN(len(r.groups))]
	id, err := r.any().Admin().Skip(r.ctx, group, layer.SkipOptions{})
	if errors.Is(err, layer.ErrInFlight) || errors.Is(err, layer.ErrNoItem) {
		return
	}
	require.NoError(r.t, err)
	r.endsDelays(id)
	if r.random.IntN(2) == 0 {
		r.receiveWithout(id)
	}
	_, err = r.any().Admin().Redrive(r.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
	require.NoError(r.t, err)
}

// receiveWithout receives while an item is a dead letter.
func (r *laneRun) receiveWithout(id layer.ID) {
	items := r.items
	r.items = slices.DeleteFunc(slices.Clone(items), func(i *laneItem) bool { return i.id == id })
	r.receiveSome()
	r.items = items
}

func (r *laneRun) pauseOne() {
	group := r.groups[r.random.IntN(len(r.groups))]
	if r.paused[group] {
		_, err := r.any().Admin().ResumeGroup(r.ctx, group, layer.ResumeOptions{})
		require.NoError(r.t, err)
		r.paused[group] = false
		return
	}
	_, err := r.any().Admin().PauseGroup(r.ctx, group, layer.PauseOptions{})
	require.NoError(r.t, err)
	r.paused[group] = true
	r.held = slices.DeleteFunc(r.held, func(c *laneClaim) bool { // the delay of the whole group ends
		return c.claim.Group == group && len(c.items) == 0 && len(c.claim.Where) == 0
	})
}

// purgeOne removes what is not in anybody's hands of a group.
func (r *laneRun) purgeOne() {
	if r.random.IntN(3) > 0 {
		return
	}
	group := r.groups[r.random.IntN(len(r.groups))]
	_, err := r.any().Admin().Purge(r.ctx, layer.PurgeOptions{Group: &group})
	require.NoError(r.t, err)
	removed := false
	r.items = slices.DeleteFunc(r.items, func(i *laneItem) bool {
		gone := i.id.Group == group && !r.inHand(i.id)
		removed = removed || gone
		return gone
	})
	if !removed {
		return // nothing was done
	}
	r.held = slices.DeleteFunc(r.held, func(c *laneClaim) bool { // delays end
		return c.claim.Group == group && len(c.items) == 0
	})
}

// forceOne takes a lane from its holder.
func (r *laneRun) forceOne() {
	if c, _ := r.holding(); c != nil {
		_, err := r.any().Admin().ForceRelease(r.ctx, c.claim.Group, layer.ForceReleaseOptions{Where: c.claim.Where})
		require.NoError(r.t, err)
		r.leaves(c, c.items)
	}
}

func (r *laneRun) inHand(id layer.ID) bool {
	return slices.ContainsFunc(r.held, func(c *laneClaim) bool {
		return c.until.After(r.now()) && slices.Contains(c.items, id)
	})
}

func (r *laneRun) cancelOne() {
	if len(r.items) == 0 {
		return
	}
	id := r.items[r.random.IntN(len(r.items))].id
	err := r.any().Admin().Cancel(r.ctx, id)
	if r.inHand(id) {
		require.ErrorIs(r.t, err, layer.ErrInFlight)
		return
	}
	require.NoError(r.t, err)
	r.endsDelays(id)
	r.remove(id)
}

func (r *laneRun) editOne() {
	if len(r.items) == 0 {
		return
	}
	id, next := r.items[r.random.IntN(len(r.items))].id, r.facets()
	err := r.any().Admin().Edit(r.ctx, id, func(m *layer.Message) error {
		m.Headers = next
		return nil
	})
	if r.inHand(id) {
		require.ErrorIs(r.t, err, layer.ErrInFlight)
		return
	}
	require.NoError(r.t, err)
	r.item(id).headers = next
}

// TestTemplatesAreChecked (lanes, traps 9, 16): a template that fits no view, or with an impossible value, is an error
// before the transaction, which names the allowed ones. So are facets and views that do not fit together, and messages
// without facets.
func TestTemplatesAreChecked(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.laned("checked", "state; state,region", nil, 1)[0]
	_, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"region": "EU"}})
	var wrong *layer.TemplateError
	require.ErrorAs(t, err, &wrong)
	require.ErrorIs(t, err, layer.ErrOptions)
	require.ErrorContains(t, err, "state; state,region")
	_, err = q.Receive(e.ctx, layer.ReceiveOptions{})
	require.ErrorAs(t, err, &wrong, "whole groups are no view of this queue")
	_, err = q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": ""}})
	require.ErrorIs(t, err, layer.ErrLimit)
	_, err = e.q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": "NEW"}})
	require.ErrorAs(t, err, &wrong)
	require.ErrorContains(t, err, "no facets")
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: map[string]string{"state": "NEW"}})
	require.ErrorIs(t, err, layer.ErrLimit)
	require.ErrorContains(t, err, `facet "region"`)
	for _, bad := range []layer.Config{
		{Facets: []string{"a"}}, {Views: "a"}, {Facets: []string{"a", "a"}, Views: "a"},
		{Facets: []string{"a"}, Views: "b"}, {Facets: []string{"a"}, Views: "a; a"},
		{Facets: []string{"a b"}, Views: "*"},
		{Facets: []string{"a", "b", "c", "d", "e"}, Views: "a"},
		{Facets: []string{"a", "b", "c"}, Views: "a; b; c; a,b"},
		{Facets: []string{"a"}, Views: "a", MaxRate: layer.Rate{Count: 1, Per: time.Second}},
	} {
		_, err := layer.Create(e.ctx, e.db, testPrefix, "bad", layer.Options{Config: bad})
		require.Error(t, err, "%v %q", bad.Facets, bad.Views)
		_, err = layer.Open(e.ctx, e.db, testPrefix, "bad", layer.Options{})
		require.True(t, errors.Is(err, layer.ErrNoQueue))
	}
	_, _, err = q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Views = "*" })
	require.ErrorContains(t, err, "fixed at creation")
}
