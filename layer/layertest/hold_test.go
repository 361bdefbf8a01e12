package layer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// unordered makes an unordered queue in addition to the test's own, and returns handles on it.
func (e *env) unordered(name string, change func(*layer.Config), handles int) []*layer.Queue {
	e.t.Helper()
	o := e.options(10)
	o.Config.Unordered, o.Config.MaxAttempts = true, layer.Unlimited
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

// TestLapsedHoldsEndByPages (G5): a receive or take that meets many holds of dead holders ends a bounded number of them
// in a transaction, and still gets items. Without the bound the transaction has several reads for each hold, one after
// the other. On a slow engine, or one whose reads often fail, it would last too long each time.
func TestLapsedHoldsEndByPages(t *testing.T) {
	const n, readsEach = 100, 120
	group := "A"
	for _, kind := range holdKinds {
		for _, of := range []*string{nil, &group} {
			receive := func(e *env) (ids []layer.ID) {
				o := kind.o
				o.Max, o.Group = 1, of
				claims, err := e.q.Receive(e.ctx, o)
				require.NoError(e.t, err)
				for _, c := range claims {
					ids = append(ids, c.Items[0].ID)
					require.NoError(e.t, e.q.Ack(e.ctx, c))
				}
				return ids
			}
			take := func(e *env) (ids []layer.ID) {
				var items []layer.Item
				require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) (err error) {
					items, _, err = e.q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{Group: of, Unordered: kind.o.Unordered})
					return err
				}))
				for _, item := range items {
					ids = append(ids, item.ID)
				}
				return ids
			}
			for _, call := range []struct {
				name string
				get  func(e *env) []layer.ID
			}{{"receive", receive}, {"take", take}} {
				name := fmt.Sprintf("%s/%s", kind.name, call.name)
				if of != nil {
					name += " of a group"
				}
				t.Run(name, func(t *testing.T) {
					e := newEnv(t, anyEngine, false)
					counting := record.WrapCounting(e.raw)
					e.db = counting
					handles := e.unordered("pages", kind.change, 2)
					e.q = handles[0]
					e.fill(group, n)
					for held := 0; held < n; {
						claims, err := handles[1].Receive(e.ctx, layer.ReceiveOptions{
							Max: n, Unordered: kind.name != "in turn", Lease: time.Minute,
						})
						require.NoError(t, err)
						require.NotEmpty(t, claims)
						held += len(claims)
					}
					e.clock.advance(2 * time.Minute)
					got := make(map[layer.ID]bool)
					for looks := 0; len(got) < n; looks++ {
						require.Less(t, looks, 2*n, "got %d", len(got))
						before := counting.Counters()
						ids := call.get(e)
						count := counting.Counters().Sub(before)
						require.LessOrEqual(t, count.Reads, readsEach*count.Commits)
						for _, id := range ids {
							got[id] = true
						}
					}
				})
			}
		}
	}
}

// holdRun is a random history of one unordered queue, one operation after the other, with the model of its results.
type holdRun struct {
	*env
	random  *rand.Rand
	name    string
	handles []*layer.Queue
	groups  []string
	items   []*laneItem // in key order within each group
	held    []*laneClaim
	paused  map[string]bool
}

// TestHoldsAgainstAModel (G2): several handles do random operations under faults. An unordered receive gets free items.
// A receive of groups gets the first items of a group up to the first held one. Each finds items if there are any.
func TestHoldsAgainstAModel(t *testing.T) {
	onEngines(t, func(e *env) {
		for round := range 12 {
			r := &holdRun{env: e, name: fmt.Sprintf("holds-%d", round), groups: []string{"A", "B"}}
			r.random, r.paused = rand.New(rand.NewPCG(e.seed, uint64(round))), make(map[string]bool)
			r.handles = e.unordered(r.name, nil, 3)
			r.run(80)
		}
	})
}

func (r *holdRun) any() *layer.Queue { return r.handles[r.random.IntN(len(r.handles))] }
func (r *holdRun) group() string     { return r.groups[r.random.IntN(len(r.groups))] }

func (r *holdRun) run(steps int) {
	r.t.Helper()
	all := []func(){
		r.enqueueSome, r.enqueueSome, r.receiveSome, r.receiveSome, r.receiveAny, r.receiveAny, r.receiveAny, r.ackSome,
		r.ackSome, r.ackSome, r.nackSome, r.nackSome, r.extendOne, r.takeSome, r.cancelOne, r.editOne, r.skipAndRedrive,
		r.pauseOne, r.purgeOne, r.forceOne, r.delayOne,
		func() { r.clock.advance(20 * time.Second) }, func() { r.clock.advance(time.Minute) },
	}
	for range steps {
		all[r.random.IntN(len(all))]()
		if r.random.IntN(10) == 0 {
			r.sound(r.name)
		}
	}
	r.sound(r.name)
}

// live returns the claims and delays that last.
func (r *holdRun) live() (all []*laneClaim) {
	for _, c := range r.held {
		if c.until.After(r.clock.now()) {
			all = append(all, c)
		}
	}
	return all
}

// stopped reports whether a whole group is held, delayed or paused.
func (r *holdRun) stopped(group string) bool {
	return r.paused[group] || slices.ContainsFunc(r.live(), func(c *laneClaim) bool {
		return c.claim.Group == group && c.claim.Hold == layer.ID{}
	})
}

// isHeld reports whether an item is held, or delayed, by itself.
func (r *holdRun) isHeld(id layer.ID) bool {
	return slices.ContainsFunc(r.live(), func(c *laneClaim) bool { return c.claim.Hold == id })
}

func (r *holdRun) inHand(id layer.ID) bool {
	return slices.ContainsFunc(r.live(), func(c *laneClaim) bool { return slices.Contains(c.items, id) })
}

// of returns the items of a group.
func (r *holdRun) of(group string) (all []*laneItem) {
	for _, i := range r.items {
		if i.id.Group == group {
			all = append(all, i)
		}
	}
	return all
}

// ordered returns what a receive of a group may get.
func (r *holdRun) ordered(group string) (ids []layer.ID) {
	for _, i := range r.of(group) {
		if r.isHeld(i.id) || i.due.After(r.clock.now()) {
			break
		}
		ids = append(ids, i.id)
	}
	return ids
}

// free returns what an unordered receive may get of a group.
func (r *holdRun) free(group string) (ids []layer.ID) {
	for _, i := range r.of(group) {
		if r.isHeld(i.id) {
			continue
		}
		if i.due.After(r.clock.now()) {
			break
		}
		ids = append(ids, i.id)
	}
	return ids
}

func (r *holdRun) holdsNow(claim *layer.Claim, ids ...layer.ID) {
	givenIn(r.items, ids)
	r.held = append(r.held, &laneClaim{claim: claim, items: ids, until: r.clock.now().Add(layer.DefaultLease)})
}

func (r *holdRun) enqueueSome() {
	var msgs []layer.Message
	for range 1 + r.random.IntN(4) {
		msgs = append(msgs, layer.Message{Group: r.group()})
	}
	sent, err := r.any().Enqueue(r.ctx, msgs...)
	require.NoError(r.t, err)
	for _, s := range sent {
		r.items = append(r.items, &laneItem{id: s.ID})
	}
}

func (r *holdRun) delayOne() {
	m := layer.Message{Group: r.group(), Delay: 30 * time.Second}
	sent, err := r.any().Enqueue(r.ctx, m)
	require.NoError(r.t, err)
	r.items = append(r.items, &laneItem{id: sent[0].ID, due: r.clock.now().Add(m.Delay)})
}

func (r *holdRun) options(unordered bool) layer.ReceiveOptions {
	o := layer.ReceiveOptions{Max: 1 + r.random.IntN(4), Unordered: unordered}
	if r.random.IntN(4) == 0 {
		o.Group = layer.OnlyGroup(r.group())
	}
	return o
}

func (r *holdRun) wants(o layer.ReceiveOptions, group string) bool {
	return o.Group == nil || *o.Group == group
}

// heads returns the heads of the groups of which a receive must get items.
func (r *holdRun) heads(o layer.ReceiveOptions) (all []*laneItem) {
	for _, group := range r.groups {
		if r.wants(o, group) && !r.stopped(group) && len(r.ordered(group)) > 0 {
			all = append(all, r.of(group)[0])
		}
	}
	return all
}

// anyOf returns the items of which an unordered receive must get one.
func (r *holdRun) anyOf(o layer.ReceiveOptions) (all []*laneItem) {
	for _, group := range r.groups {
		if !r.wants(o, group) || r.stopped(group) {
			continue
		}
		free := r.free(group)
		for _, i := range r.of(group) {
			if slices.Contains(free, i.id) {
				all = append(all, i)
			}
		}
	}
	return all
}

func (r *holdRun) receiveSome() {
	o := r.options(false)
	r.gotGroups(o, r.receiveFree(r.any(), o, r.heads(o)))
}

func (r *holdRun) gotGroups(o layer.ReceiveOptions, claims []*layer.Claim) {
	r.t.Helper()
	for _, c := range claims {
		require.False(r.t, r.stopped(c.Group), "group %q is in other hands", c.Group)
		may := r.ordered(c.Group)
		require.LessOrEqual(r.t, len(c.Items), len(may), "an item is held")
		var ids []layer.ID
		for i, item := range c.Items {
			require.Equal(r.t, may[i], item.ID, "in order, without a gap")
			ids = append(ids, item.ID)
		}
		r.holdsNow(c, ids...)
	}
	for _, group := range r.groups {
		if len(claims) == 0 && r.wants(o, group) && !r.stopped(group) {
			require.Empty(r.t, r.ordered(group), "group %q is free, and was not found", group)
		}
	}
}

// receiveAny receives unordered. A receive may give fewer items than are free, see Receive: then receiveAny receives
// again, for the rest.
func (r *holdRun) receiveAny() {
	o := r.options(true)
	for o.Max > 0 {
		claims := r.receiveFree(r.any(), o, r.anyOf(o))
		for _, c := range claims {
			require.Len(r.t, c.Items, 1)
			require.Equal(r.t, c.Hold, c.Items[0].ID)
			require.False(r.t, r.stopped(c.Group), "group %q is in other hands", c.Group)
			require.Contains(r.t, r.free(c.Group), c.Hold, "an item in other hands")
			r.holdsNow(c, c.Hold)
		}
		if len(claims) == 0 {
			break
		}
		o.Max -= len(claims)
	}
	for _, group := range r.groups {
		if o.Max > 0 && r.wants(o, group) && !r.stopped(group) {
			require.Empty(r.t, r.free(group), "items of %q are free, and were not found", group)
		}
	}
}

func (r *holdRun) holding() *laneClaim {
	var all []*laneClaim
	for _, c := range r.live() {
		if len(c.items) > 0 {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[r.random.IntN(len(all))]
}

func (r *holdRun) ends(c *laneClaim) {
	r.held = slices.DeleteFunc(r.held, func(other *laneClaim) bool { return other == c })
}

func (r *holdRun) ackSome() {
	c := r.holding()
	if c == nil {
		return
	}
	n := 1 + r.random.IntN(len(c.items))
	require.NoError(r.t, r.any().AckItems(r.ctx, c.claim, c.items[:n]))
	r.remove(c.items[:n]...)
	if c.items = c.items[n:]; len(c.items) == 0 {
		r.ends(c)
	}
}

func (r *holdRun) remove(ids ...layer.ID) {
	r.items = slices.DeleteFunc(r.items, func(i *laneItem) bool { return slices.Contains(ids, i.id) })
}

func (r *holdRun) nackSome() {
	c := r.holding()
	if c == nil {
		return
	}
	o := layer.NackOptions{Release: r.random.IntN(2) == 0}
	if r.random.IntN(3) == 0 {
		o.Delay = 10 * time.Second
	}
	require.NoError(r.t, r.any().Nack(r.ctx, c.claim, o))
	r.ends(c)
	paused := r.paused[c.claim.Group] && c.claim.Hold == layer.ID{} // then the group is paused instead
	if o.Delay > 0 && !paused {
		r.held = append(r.held, &laneClaim{claim: c.claim, until: r.clock.now().Add(o.Delay)})
	}
}

func (r *holdRun) extendOne() {
	if c := r.holding(); c != nil {
		until, err := r.any().Extend(r.ctx, c.claim, 40*time.Second)
		require.NoError(r.t, err)
		c.until = until
	}
}

func (r *holdRun) takeSome() {
	o := r.options(r.random.IntN(2) == 0)
	if o.Unordered {
		r.takeAny(o)
		return
	}
	items, err := r.take(r.any(), o.Max, layer.TakeOptions{Group: o.Group})
	require.NoError(r.t, err)
	var claims []*layer.Claim
	if len(items) > 0 {
		claims = []*layer.Claim{{Group: items[0].ID.Group, Items: items}}
	}
	r.gotGroups(o, claims)
	if len(items) > 0 {
		taken := r.held[len(r.held)-1]
		r.remove(taken.items...)
		r.ends(taken)
	}
}

// takeAny takes free items.
func (r *holdRun) takeAny(o layer.ReceiveOptions) {
	items, err := r.take(r.any(), o.Max, layer.TakeOptions{Group: o.Group, Unordered: true})
	require.NoError(r.t, err)
	for _, item := range items {
		require.Equal(r.t, items[0].ID.Group, item.ID.Group)
		require.False(r.t, r.stopped(item.ID.Group), "group %q is in other hands", item.ID.Group)
		require.Contains(r.t, r.free(item.ID.Group), item.ID, "an item in other hands")
	}
	for _, group := range r.groups {
		if len(items) == 0 && r.wants(o, group) && !r.stopped(group) {
			require.Empty(r.t, r.free(group), "items of %q are free, and were not found", group)
		}
	}
	for _, item := range items {
		r.remove(item.ID)
	}
}

// endsDelays ends the delay of the item that is taken out, and the delay of the group whose head it is.
func (r *holdRun) endsDelays(id layer.ID) {
	head := r.of(id.Group)[0].id == id
	r.held = slices.DeleteFunc(r.held, func(c *laneClaim) bool {
		if c.claim.Hold == (layer.ID{}) {
			return len(c.items) == 0 && head && c.claim.Group == id.Group
		}
		return len(c.items) == 0 && c.claim.Hold == id
	})
}

func (r *holdRun) cancelOne() {
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

func (r *holdRun) editOne() {
	if len(r.items) == 0 {
		return
	}
	id := r.items[r.random.IntN(len(r.items))].id
	err := r.any().Admin().Edit(r.ctx, id, func(m *layer.Message) error {
		m.Body = append(m.Body, 'x')
		return nil
	})
	if r.inHand(id) {
		require.ErrorIs(r.t, err, layer.ErrInFlight)
		return
	}
	require.NoError(r.t, err)
}

// skipAndRedrive makes a dead letter of a group's head, and puts it back to its place.
func (r *holdRun) skipAndRedrive() {
	id, err := r.any().Admin().Skip(r.ctx, r.group(), layer.SkipOptions{})
	if errors.Is(err, layer.ErrInFlight) || errors.Is(err, layer.ErrNoItem) {
		return
	}
	require.NoError(r.t, err)
	r.endsDelays(id)
	items := r.items
	r.items = slices.DeleteFunc(slices.Clone(items), func(i *laneItem) bool { return i.id == id })
	if r.random.IntN(2) == 0 {
		r.receiveAny()
	} else {
		r.receiveSome()
	}
	r.items = items
	_, err = r.any().Admin().Redrive(r.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
	require.NoError(r.t, err)
}

func (r *holdRun) pauseOne() {
	group := r.group()
	if r.paused[group] {
		_, err := r.any().Admin().ResumeGroup(r.ctx, group, layer.ResumeOptions{})
		require.NoError(r.t, err)
		r.paused[group] = false
		return
	}
	force := r.random.IntN(3) == 0
	_, err := r.any().Admin().PauseGroup(r.ctx, group, layer.PauseOptions{Force: force})
	require.NoError(r.t, err)
	r.paused[group] = true
	r.held = slices.DeleteFunc(r.held, func(c *laneClaim) bool {
		delay := len(c.items) == 0 && c.claim.Hold == layer.ID{}
		return c.claim.Group == group && (force && len(c.items) > 0 || delay)
	})
}

// purgeOne removes the items of a group that are not in flight.
func (r *holdRun) purgeOne() {
	if r.random.IntN(3) > 0 {
		return
	}
	group := r.group()
	_, err := r.any().Admin().Purge(r.ctx, layer.PurgeOptions{Group: &group})
	require.NoError(r.t, err)
	removed := false
	r.items = slices.DeleteFunc(r.items, func(i *laneItem) bool {
		gone := i.id.Group == group && !r.inHand(i.id)
		removed = removed || gone
		return gone
	})
	r.held = slices.DeleteFunc(r.held, func(c *laneClaim) bool { // delays end
		return removed && c.claim.Group == group && len(c.items) == 0
	})
}

func (r *holdRun) forceOne() {
	if c := r.holding(); c != nil {
		_, err := r.any().Admin().ForceRelease(r.ctx, c.claim.Group, layer.ForceReleaseOptions{Hold: c.claim.Hold})
		require.NoError(r.t, err)
		r.ends(c)
	}
}

// TestUnorderedIsChecked: what an unordered queue, or an unordered receive, cannot do is an error before the
// transaction.
func TestUnorderedIsChecked(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.unordered("checked", nil, 1)[0]
	state := layer.Template{"state": "NEW"}
	for _, o := range []layer.ReceiveOptions{
		{Unordered: true, Where: state}, {Unordered: true, Strategy: layer.Heads}, {Unordered: true, State: true},
		{Unordered: true, OnlyIfAny: true},
	} {
		_, err := q.Receive(e.ctx, o)
		require.ErrorIs(t, err, layer.ErrOptions, "%+v", o)
	}
	_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true})
	require.ErrorIs(t, err, layer.ErrOptions)
	require.ErrorContains(t, err, "unordered")
	_, err = worker.New(e.q, worker.Handle(func(context.Context, *worker.Delivery) error { return nil }),
		worker.Options{Unordered: true})
	require.ErrorIs(t, err, layer.ErrOptions)
	for _, bad := range []layer.Config{
		{Unordered: true, Facets: []string{"state"}, Views: "state"}, {Unordered: true, OnFailure: layer.HaltGroup},
		{Unordered: true, MaxRate: layer.Rate{Count: 1, Per: time.Second}},
	} {
		_, err := layer.Create(e.ctx, e.db, testPrefix, "bad", layer.Options{Config: bad})
		require.ErrorIs(t, err, layer.ErrOptions)
	}
	_, _, err = q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Unordered = false })
	require.ErrorContains(t, err, "fixed at creation")
	sent, err := q.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Equal(t, sent[0].ID, claims[0].Hold)
	same := func(*layer.Message) error { return nil }
	require.ErrorIs(t, q.Settle(e.ctx, advanceBy(claims[0], same)), layer.ErrOptions)
	require.ErrorIs(t, q.Settle(e.ctx, ackingState(claims[0], []byte("x"))), layer.ErrOptions)
	other := *claims[0]
	other.Token++
	require.ErrorIs(t, q.Ack(e.ctx, &other), layer.ErrClaimLost)
	require.NoError(t, q.Ack(e.ctx, claims[0]))
	require.ErrorIs(t, q.Ack(e.ctx, claims[0]), layer.ErrClaimLost)
}

// TestUnorderedCost (lanes, trap 12): an unordered claim, and a receive that meets a hold, read the same whether ten
// items of the group are held or a thousand, with as many other groups whose heads are held.
func TestUnorderedCost(t *testing.T) {
	cost := func(held int) (claim, group, ack record.Counters) {
		e, r := recorded(t)
		e.db = r
		q := e.unordered("cost", nil, 1)[0]
		var msgs []layer.Message
		for n := range held {
			msgs = append(msgs, layer.Message{Group: "A"}, layer.Message{Group: fmt.Sprint("other ", n)})
		}
		for part := range slices.Chunk(msgs, layer.MaxBatch) {
			_, err := q.Enqueue(e.ctx, part...)
			require.NoError(t, err)
		}
		for left := 2 * held; left > 0; {
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true, Max: min(left, layer.MaxBatch)})
			require.NoError(t, err)
			require.NotEmpty(t, claims)
			left -= len(claims)
		}
		_, err := q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Group: "A"})
		require.NoError(t, err)
		step := func(call func()) record.Counters {
			before := r.Counters()
			call()
			return r.Counters().Sub(before)
		}
		aside := r.Counters()
		// It puts the hints of held groups aside, a hundred a transaction.
		_, err = q.Receive(e.ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		require.LessOrEqual(t, int64(held/100), r.Counters().Sub(aside).Commits, "no transaction is without bound")
		var claims []*layer.Claim
		receive := func(o layer.ReceiveOptions) func() {
			return func() {
				claims, err = q.Receive(e.ctx, o)
				require.NoError(t, err)
			}
		}
		group = step(receive(layer.ReceiveOptions{}))
		require.Empty(t, claims)
		claim = step(receive(layer.ReceiveOptions{Unordered: true}))
		require.NotEmpty(t, claims)
		ack = step(func() { require.NoError(t, q.Ack(e.ctx, claims[0])) })
		return claim, group, ack
	}
	type figures struct{ KeyReads, RangeReads, Rows, Mutations int64 }
	of := func(c record.Counters) figures { return figures{c.KeyReads, c.RangeReads, c.Rows, c.Mutations} }
	claim, group, ack := cost(10)
	claim1000, group1000, ack1000 := cost(1000)
	t.Logf("unordered claim %+v, receive of groups that are all held %+v, ack %+v", of(claim), of(group), of(ack))
	require.Equal(t, of(claim), of(claim1000))
	require.Equal(t, of(group), of(group1000))
	require.Equal(t, of(ack), of(ack1000))
}

// TestStatsOfAnUnorderedQueue (unordered): an unordered queue has no views. Its ready groups are counted as groups.
func TestStatsOfAnUnorderedQueue(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.unordered("lanes", nil, 1)[0]
	for _, group := range []string{"A", "B"} {
		_, err := q.Enqueue(e.ctx, layer.Message{Group: group}, layer.Message{Group: group})
		require.NoError(t, err)
	}
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true, Max: 1})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	stats, err := q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.Nil(t, stats.Views)
	require.EqualValues(t, 3, stats.Depth-stats.InFlight)
}
