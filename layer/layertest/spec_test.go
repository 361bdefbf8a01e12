package layer_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/spec"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

// specRun is a random history of one queue, one operation after the other, by several handles. Each result is held to
// the specification of the group.
type specRun struct {
	*env
	random  *rand.Rand
	name    string
	handles []*layer.Queue
	others  uint64 // handles that were opened besides
	groups  []string
	wheres  []layer.Template // by which it receives
	turn    bool             // the queue has a lease for each item
	kind    []func()         // the operations that this kind of queue adds
	of      map[string]spec.Group
	claims  map[string]*layer.Claim // of the claims of the groups, by their text
}

func newSpecRun(e *env, name string, round int, handles []*layer.Queue) *specRun {
	return &specRun{
		env: e, name: name, handles: handles, groups: []string{"A", "B"}, wheres: []layer.Template{nil},
		random: rand.New(rand.NewPCG(e.seed, uint64(round))),
		of:     make(map[string]spec.Group), claims: make(map[string]*layer.Claim),
	}
}

// TestLanesAgainstAModel: whatever is done, one operation after the other, by several handles and under faults, a
// receive by template gets the first items of a lane that no intersecting claim keeps, and finds one if there is one.
func TestLanesAgainstAModel(t *testing.T) {
	t.Parallel()
	all := map[string][]layer.Template{
		"*": {nil}, "state": {isNew, isPaid}, "region": {{"region": "EU"}, {"region": "US"}},
		"state,region": {{"state": "NEW", "region": "EU"}, {"state": "PAID", "region": "US"}},
	}
	for _, views := range []string{"*; state", "state", "state; state,region", "*; state; state,region; region"} {
		t.Run(views, func(t *testing.T) {
			onEngines(t, func(e *env) {
				for round := range 4 {
					name := fmt.Sprintf("lanes-%d", round)
					r := newSpecRun(e, name, round, e.laned(name, views, nil, 3))
					r.wheres = nil
					for _, view := range strings.Split(views, "; ") {
						r.wheres = append(r.wheres, all[view]...)
					}
					r.kind = []func(){r.receiveSome, r.advanceSome, r.advanceSome}
					r.run(60)
				}
			})
		})
	}
}

// TestHoldsAgainstAModel (G2): several handles do random operations under faults. An unordered receive gets free items.
// A receive of groups gets the first items of a group up to the first held one. Each finds items if there are any.
func TestHoldsAgainstAModel(t *testing.T) {
	onEngines(t, func(e *env) {
		for round := range 12 {
			name := fmt.Sprintf("holds-%d", round)
			r := newSpecRun(e, name, round, e.unordered(name, nil, 3))
			r.kind = []func(){r.receiveAny, r.receiveAny, r.receiveAny, r.takeAny, r.ackSome, r.nackSome}
			r.run(80)
		}
	})
}

// TestTurnsAgainstAModel (G1, G2, G5): whatever is done, by several handles and under faults, a receive gets the items
// of a group from its head up to the first that is in flight, each under a claim of its own, and finds something if
// there is something.
func TestTurnsAgainstAModel(t *testing.T) {
	onEngines(t, func(e *env) {
		for round := range 12 {
			name := fmt.Sprintf("turns-%d", round)
			r := newSpecRun(e, name, round, e.inTurn(name, nil, 3))
			r.turn = true
			r.kind = []func(){r.receiveSome, r.receiveSome, r.ackSome, r.nackSome, r.retryNow}
			r.run(80)
		}
	})
}

func (r *specRun) run(steps int) {
	r.t.Helper()
	all := append([]func(){
		r.enqueueSome, r.enqueueSome, r.receiveSome, r.receiveSome, r.ackSome, r.ackSome, r.ackTogether, r.nackSome,
		r.extendOne, r.takeSome, r.cancelOne, r.editOne, r.skipAndRedrive, r.pauseOne, r.purgeOne, r.forceOne,
		r.delayOne, func() { r.clock.advance(20 * time.Second) }, func() { r.clock.advance(time.Minute) },
	}, r.kind...)
	for range steps {
		all[r.random.IntN(len(all))]()
		if r.random.IntN(10) == 0 {
			r.sound(r.name)
		}
	}
	r.sound(r.name)
}

func (r *specRun) any() *layer.Queue { return r.handles[r.random.IntN(len(r.handles))] }
func (r *specRun) group() string     { return r.groups[r.random.IntN(len(r.groups))] }
func (r *specRun) now() time.Time    { return r.clock.now() }
func (r *specRun) laned() bool       { return len(r.wheres) > 1 }

// facets are those of a message; nil in a queue without facets.
func (r *specRun) facets() layer.Template {
	if !r.laned() {
		return nil
	}
	return facetsOf([]string{"NEW", "PAID", "DONE"}[r.random.IntN(3)], []string{"EU", "US"}[r.random.IntN(2)])
}

func (r *specRun) enqueueSome() { r.send(1+r.random.IntN(4), 0) }

// delayOne enqueues a message that is not due yet.
func (r *specRun) delayOne() { r.send(1, 30*time.Second) }

func (r *specRun) send(n int, delay time.Duration) {
	msgs := make([]layer.Message, n)
	for i := range msgs {
		msgs[i] = layer.Message{Group: r.group(), Headers: r.facets(), Delay: delay}
	}
	sent, err := r.any().Enqueue(r.ctx, msgs...)
	require.NoError(r.t, err)
	for i, s := range sent {
		item := spec.Item{ID: s.ID, Facets: msgs[i].Headers}
		if delay > 0 {
			item.Due = r.now().Add(delay)
		}
		r.of[s.ID.Group] = r.of[s.ID.Group].Enqueue(item)
	}
}

func (r *specRun) options(unordered bool) layer.ReceiveOptions {
	o := layer.ReceiveOptions{
		Where: r.wheres[r.random.IntN(len(r.wheres))], Max: 1 + r.random.IntN(4), Unordered: unordered,
	}
	if r.random.IntN(4) == 0 {
		o.Group = layer.OnlyGroup(r.group())
	} else if r.turn {
		o.Strategy = layer.Strategy(r.random.IntN(3))
	}
	return o
}

func (r *specRun) request(o layer.ReceiveOptions) spec.Request {
	return spec.Request{Where: o.Where, Any: o.Unordered, Turn: r.turn}
}

// receive receives, and receives again by another handle if it must: if all items of which it had to get one were in a
// claim before, they may be suspect. It may then get none, because its handle has given another suspect item.
func (r *specRun) receive(o layer.ReceiveOptions) []*layer.Claim {
	r.t.Helper()
	q := r.any()
	claims, err := q.Receive(r.ctx, o)
	require.NoError(r.t, err)
	if len(claims) > 0 {
		return claims
	}
	must := 0
	for _, group := range r.groups {
		free := r.of[group].Free(r.request(o), r.now())
		if o.Group != nil && *o.Group != group || len(free) == 0 {
			continue
		}
		if !o.Unordered {
			free = free[:1]
		}
		for _, id := range free {
			item, _ := r.of[group].Item(id)
			require.True(r.t, item.Given, "%s is free, was never given, and was not found", id)
			must++
		}
	}
	if must == 0 {
		return nil
	}
	r.others++ // no two handles have one seed: the rows of their receipts would be the same
	other, err := layer.Open(r.ctx, r.db, testPrefix, q.Name(), r.env.options(1000+r.others))
	require.NoError(r.t, err)
	claims, err = other.Receive(r.ctx, o)
	require.NoError(r.t, err)
	return claims
}

// got holds items that one call got to the specification. Without any items nothing that it wants may be free.
func (r *specRun) got(o layer.ReceiveOptions, items []layer.Item) map[string][]layer.ID {
	r.t.Helper()
	got := make(map[string][]layer.ID)
	for _, item := range items {
		got[item.ID.Group] = append(got[item.ID.Group], item.ID)
		want, ok := r.of[item.ID.Group].Item(item.ID)
		require.True(r.t, ok, "%s is no item of its group", item.ID)
		require.Equal(r.t, want.Facets, layer.Template(item.Headers))
		require.True(r.t, o.Group == nil || *o.Group == item.ID.Group)
	}
	for _, group := range r.groups {
		if len(got[group]) > 0 || len(items) == 0 && (o.Group == nil || *o.Group == group) {
			g, by := r.of[group], r.request(o)
			require.True(r.t, g.MayGet(by, got[group], r.now()), "of group %q where %s: got %v, free are %v",
				group, o.Where, got[group], g.Free(by, r.now()))
		}
	}
	return got
}

// hold notes the claims of a receive.
func (r *specRun) hold(o layer.ReceiveOptions, claims []*layer.Claim) {
	r.t.Helper()
	var items []layer.Item
	groups := make(map[string]bool)
	alone := o.Unordered || r.turn
	for _, c := range claims {
		require.Equal(r.t, o.Where, c.Where)
		if alone {
			require.Len(r.t, c.Items, 1)
			require.Equal(r.t, c.Hold, c.Items[0].ID)
		} else {
			require.False(r.t, groups[c.Group], "a group is claimed twice")
			require.Zero(r.t, c.Hold)
		}
		groups[c.Group] = true
		items = append(items, c.Items...)
	}
	r.got(o, items)
	for _, c := range claims {
		ids := make([]layer.ID, len(c.Items))
		for i, item := range c.Items {
			ids[i] = item.ID
		}
		g := r.of[c.Group].Claim(r.request(o), c.Token, ids, r.now().Add(30*time.Second))
		r.of[c.Group], r.claims[textOf(c.Group, g.Claims[len(g.Claims)-1])] = g, c
	}
}

// textOf names a claim.
func textOf(group string, c spec.Claim) string { return fmt.Sprint(group, c.Where, c.Alone, c.Token) }

func (r *specRun) receiveSome() {
	o := r.options(false)
	r.hold(o, r.receive(o))
}

// receiveAny receives unordered. A receive may give fewer items than are free, see Receive: then receiveAny receives
// again, for the rest.
func (r *specRun) receiveAny() {
	o := r.options(true)
	for o.Max > 0 {
		claims := r.receive(o)
		r.hold(o, claims)
		if len(claims) == 0 {
			return
		}
		o.Max -= len(claims)
	}
}

func (r *specRun) takeSome() { r.takeBy(r.options(false)) }

// takeAny takes free items.
func (r *specRun) takeAny() { r.takeBy(r.options(true)) }

func (r *specRun) takeBy(o layer.ReceiveOptions) {
	items, err := r.take(r.any(), o.Max, layer.TakeOptions{Group: o.Group, Where: o.Where, Unordered: o.Unordered})
	require.NoError(r.t, err)
	got := r.got(o, items)
	require.LessOrEqual(r.t, len(got), 1, "a take is of one group")
	for group, ids := range got {
		r.of[group] = r.of[group].Take(ids...)
	}
}

// live returns the claims that have not ended, with their groups.
func (r *specRun) live() (groups []string, all []spec.Claim) {
	for _, group := range r.groups {
		for _, c := range r.of[group].Live(r.now()) {
			groups, all = append(groups, group), append(all, c)
		}
	}
	return groups, all
}

// held chooses a live claim, and returns its group and its claim of the layer. ok is false if there is none.
func (r *specRun) held() (group string, c spec.Claim, claim *layer.Claim, ok bool) {
	groups, all := r.live()
	if len(all) == 0 {
		return group, c, nil, false
	}
	n := r.random.IntN(len(all))
	return groups[n], all[n], r.claims[textOf(groups[n], all[n])], true
}

// some returns some items of a claim, at least one.
func (r *specRun) some(c spec.Claim) (ids []layer.ID) {
	for _, id := range c.Items {
		if r.random.IntN(2) == 0 {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return slices.Clone(c.Items)
	}
	return ids
}

func (r *specRun) ackSome() {
	if group, c, claim, ok := r.held(); ok {
		ids := r.some(c)
		require.NoError(r.t, r.any().AckItems(r.ctx, claim, ids))
		r.of[group] = r.of[group].Ack(c, ids...)
	}
}

// ackTogether acks all claims in one transaction.
func (r *specRun) ackTogether() {
	if r.random.IntN(3) > 0 {
		return
	}
	groups, all := r.live()
	require.NoError(r.t, r.any().Once(r.ctx, func(tx kv.Tx) error {
		var err error
		for n, c := range all {
			err = errors.Join(err, r.handles[0].AckTx(r.ctx, tx, r.claims[textOf(groups[n], c)]))
		}
		return err
	}))
	for n, c := range all {
		r.of[groups[n]] = r.of[groups[n]].Ack(c, c.Items...)
	}
}

func (r *specRun) nackSome() {
	group, c, claim, ok := r.held()
	if !ok {
		return
	}
	o := layer.NackOptions{Release: r.random.IntN(2) == 0}
	var until time.Time
	if r.random.IntN(3) == 0 {
		o.Delay = 10 * time.Second
		until = r.now().Add(o.Delay)
	}
	require.NoError(r.t, r.any().Nack(r.ctx, claim, o))
	r.of[group] = r.of[group].Nack(c, until)
}

func (r *specRun) extendOne() {
	if group, c, claim, ok := r.held(); ok {
		until, err := r.any().Extend(r.ctx, claim, 40*time.Second)
		require.NoError(r.t, err)
		r.of[group] = r.of[group].Extend(c, until)
	}
}

func (r *specRun) advanceSome() {
	if group, c, claim, ok := r.held(); ok {
		ids, next := r.some(c), r.facets()
		require.NoError(r.t, r.any().Settle(r.ctx, advanceBy(claim, func(m *layer.Message) error {
			m.Headers = maps.Clone(next)
			return nil
		}, ids...)))
		r.of[group] = r.of[group].Advance(c, next, ids...)
	}
}

// forceOne takes a lane, or an item, from its holder.
func (r *specRun) forceOne() {
	if group, c, _, ok := r.held(); ok {
		o := layer.ForceReleaseOptions{Where: c.Where, Hold: c.Alone}
		_, err := r.any().Admin().ForceRelease(r.ctx, group, o)
		require.NoError(r.t, err)
		r.of[group] = r.of[group].Release(c)
	}
}

// onAnItem does what is refused for an item in flight.
func (r *specRun) onAnItem(do func(id layer.ID) error, done func(g spec.Group, id layer.ID) spec.Group) {
	r.t.Helper()
	group := r.group()
	g := r.of[group]
	if len(g.Items) == 0 {
		return
	}
	id := g.Items[r.random.IntN(len(g.Items))].ID
	err := do(id)
	if g.InFlight(id, r.now()) {
		require.ErrorIs(r.t, err, layer.ErrInFlight)
		return
	}
	require.NoError(r.t, err)
	r.of[group] = done(g, id)
}

func (r *specRun) cancelOne() {
	r.onAnItem(func(id layer.ID) error { return r.any().Admin().Cancel(r.ctx, id) }, spec.Group.Remove)
}

func (r *specRun) editOne() {
	next := r.facets()
	r.onAnItem(func(id layer.ID) error {
		return r.any().Admin().Edit(r.ctx, id, func(m *layer.Message) error {
			m.Headers, m.Body = maps.Clone(next), append(m.Body, 'x')
			return nil
		})
	}, func(g spec.Group, id layer.ID) spec.Group { return g.Edit(next, id) })
}

// skipAndRedrive makes a dead letter of a group's head, and puts it back to its place.
func (r *specRun) skipAndRedrive() {
	group := r.group()
	id, err := r.any().Admin().Skip(r.ctx, group, layer.SkipOptions{})
	g := r.of[group]
	switch {
	case len(g.Items) == 0:
		require.ErrorIs(r.t, err, layer.ErrNoItem)
		return
	case g.InFlight(g.Items[0].ID, r.now()):
		require.ErrorIs(r.t, err, layer.ErrInFlight)
		return
	}
	require.NoError(r.t, err)
	head := g.Items[0]
	require.Equal(r.t, head.ID, id)
	r.of[group] = g.Remove(id)
	if len(r.kind) > 0 && r.random.IntN(2) == 0 {
		r.kind[0]()
	} else {
		r.receiveSome()
	}
	_, err = r.any().Admin().Redrive(r.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
	require.NoError(r.t, err)
	r.of[group] = r.of[group].Restore(head)
}

func (r *specRun) pauseOne() {
	group := r.group()
	g := r.of[group]
	if g.Paused {
		_, err := r.any().Admin().ResumeGroup(r.ctx, group, layer.ResumeOptions{})
		require.NoError(r.t, err)
		r.of[group] = g.Resume()
		return
	}
	force := r.random.IntN(3) == 0
	_, err := r.any().Admin().PauseGroup(r.ctx, group, layer.PauseOptions{Force: force})
	require.NoError(r.t, err)
	r.of[group] = g.Pause(force)
}

// purgeOne removes the items of a group that are not in flight.
func (r *specRun) purgeOne() {
	if r.random.IntN(3) > 0 {
		return
	}
	group := r.group()
	_, err := r.any().Admin().Purge(r.ctx, layer.PurgeOptions{Group: &group})
	require.NoError(r.t, err)
	r.of[group] = r.of[group].Purge(r.now())
}

// retryNow ends the delay of a group's head.
func (r *specRun) retryNow() {
	group := r.group()
	g := r.of[group]
	err := r.any().Admin().RetryNow(r.ctx, group, layer.RetryOptions{})
	switch {
	case len(g.Items) == 0 || g.InFlight(g.Items[0].ID, r.now()) || g.Paused:
		require.ErrorIs(r.t, err, layer.ErrNotDelayed)
		return
	case g.Delayed(r.now()):
		require.NoError(r.t, err)
	}
	r.of[group] = g.RetryNow()
}
