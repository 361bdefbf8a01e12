package layer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/linear"
	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

var historiesFlag = flag.Int("layer.histories", 0, "runs of TestLinearizable on each engine, of each sort; 0 = a few")

// TestLinearizable: what many callers on several handles are told at the same time, each group could have told them one
// after the other (G1, G2, G3). package linear says what exactly is checked. Faults are added to every engine, with
// commits that time out and land later, or never; and calls are given up.
//
// A seed gives the same calls and the same faults, but not the same interleaving.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	for _, engine := range engines() {
		if engine.faults {
			continue // all get faults here, of each kind
		}
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			requireLinear(t, 4, func(t *testing.T, sort callersSort, seed uint64) linear.Result {
				return callTogether(t, engine.open, sort, seed)
			})
		})
	}
}

// requireLinear has runs of each sort, as many as the flag says, else a few.
func requireLinear(t *testing.T, few int, run func(t *testing.T, sort callersSort, seed uint64) linear.Result) {
	runs := *historiesFlag
	if runs == 0 {
		runs = map[bool]int{true: 1, false: few}[testing.Short()]
	}
	seed := *seedFlag
	if seed == 0 {
		seed = seeds.Of(t.Name())
	}
	var sum linear.Result
	sorts := []callersSort{
		lapsing, lasting, lapsingLanes, lastingLanes, lapsingItems, lastingItems, lapsingTurns, lastingTurns,
	}
	for n := range uint64(runs) {
		for _, sort := range sorts {
			t.Run(fmt.Sprintf("%d %s", seed+n, sort), func(t *testing.T) {
				r := run(t, sort, seed+n)
				sum.Add(r)
				require.Empty(t, r.Violations, "%s", r)
				for _, u := range r.Undecided {
					t.Logf("UNDECIDED %s", u)
				}
			})
		}
	}
	// One alone may be undecided on a busy machine: the checker gives up by the clock.
	require.LessOrEqual(t, 20*len(sum.Undecided), max(sum.Histories, 20), "too many are undecided: %s", sum)
	t.Logf("seeds %d to %d: %s", seed, seed+uint64(runs)-1, sum)
}

// callersSort says what a run is about.
type callersSort string

const (
	// lapsing: short leases, slow holders, clocks up to 30 s apart, receives that wait.
	lapsing callersSort = "lapsing"
	// lasting: leases outlast the run, all clocks show the same, and no receive waits. Then one that gives nothing
	// counts.
	lasting callersSort = "lasting"
	// The same, in a queue with facets: receives and takes by template and of whole groups, and advances.
	lapsingLanes callersSort = "lapsing lanes"
	lastingLanes callersSort = "lasting lanes"
	// The same, in an unordered queue: receives and takes of groups, and of any free messages.
	lapsingItems callersSort = "lapsing items"
	lastingItems callersSort = "lasting items"
	// The same, in a queue with a lease for each message.
	lapsingTurns callersSort = "lapsing turns"
	lastingTurns callersSort = "lasting turns"
)

func (s callersSort) lapses() bool {
	return s == lapsing || s == lapsingLanes || s == lapsingItems || s == lapsingTurns
}

func (s callersSort) laned() bool { return s == lapsingLanes || s == lastingLanes }

func (s callersSort) unordered() bool { return s == lapsingItems || s == lastingItems }

func (s callersSort) inTurn() bool { return s == lapsingTurns || s == lastingTurns }

// queue is the name of the queue that callers call.
func (s callersSort) queue() string {
	switch {
	case s.laned():
		return "lanes"
	case s.unordered():
		return "items"
	case s.inTurn():
		return "turns"
	}
	return testQueue
}

// callable makes the queue that callers call, if it is not there.
func (e *env) callable(s callersSort) {
	switch {
	case s.laned():
		e.laned(s.queue(), "*; state; region", nil, 1)
	case s.unordered():
		e.unordered(s.queue(), nil, 1)
	case s.inTurn():
		e.inTurn(s.queue(), nil, 1)
	}
}

const (
	callers      = 8
	callsEach    = 40
	callerGroups = 3
	drainer      = 100 // the number of the caller that drains the queue at the end
)

// caller makes calls on one handle, one after the other, and notes what it is told.
type caller struct {
	e      *env
	sort   callersSort
	h      *linear.History
	id     int
	q      *layer.Queue
	rng    *rand.Rand
	doubts *doubts
	skew   time.Duration
	groups []string
	claims []*layer.Claim // that it may try to settle: its own, ended ones too
	ids    []layer.ID     // that it has heard of
	cut    bool           // the context of the last call ended before it
}

// fastest is by how much the fastest handle's clock is fast.
func (s callersSort) fastest() time.Duration {
	if s.lapses() {
		return 30 * time.Second
	}
	return 0
}

// callTogether is one run: it makes the calls, drains the queue, and checks the history.
func callTogether(t *testing.T, open func(t *testing.T) kv.DB, sort callersSort, seed uint64) linear.Result {
	t.Helper()
	e := newEnv(t, open, false)
	e.seed, e.plan = seed, roughPlan(seed)
	h := &linear.History{}
	e.callable(sort)
	e.callTogether(h, sort, 0, callers)
	return e.judge(h, sort)
}

// roughPlan has faults of every kind, and commits that time out and land later, or never.
func roughPlan(seed uint64) *fault.Plan {
	p := fault.Default(seed)
	p.Chances[fault.TimedOutLate], p.Chances[fault.TimedOutLost] = 0.03, 0.02
	return p
}

// callTogether lets callers, of the numbers from first on, work on several handles until each has made its calls. No
// commit of theirs lands later.
func (e *env) callTogether(h *linear.History, sort callersSort, first, count int) {
	t := e.t
	t.Helper()
	// Between the reads of a transaction and its commit, others get a chance to commit theirs.
	e.plan.OnCommit = func(n int, _ kv.Tx) fault.Kind {
		for range n % 50 {
			runtime.Gosched()
		}
		return fault.Chance
	}
	db := fault.Wrap(e.raw, e.plan)
	var all []*caller
	var handles []*layer.Queue
	var doubted []*doubts
	skews := []time.Duration{0, 30 * time.Second, -30 * time.Second, 10 * time.Second}
	for i, skew := range skews {
		if !sort.lapses() {
			skews[i], skew = 0, 0
		}
		o := e.options(uint64(10 + i))
		o.Now = func() time.Time { return e.clock.now().Add(skew) }
		o.Tx.MaxRetryDelay = 5 * time.Millisecond
		d := &doubts{DB: db}
		q, err := layer.Open(e.ctx, d, testPrefix, sort.queue(), o)
		require.NoError(t, err)
		handles, doubted = append(handles, q), append(doubted, d)
	}
	groups := groupsOfCallers()
	for id := first; id < first+count; id++ {
		i := id % len(handles)
		all = append(all, &caller{
			e: e, sort: sort, h: h, id: id, q: handles[i], doubts: doubted[i], skew: skews[i],
			rng: rand.New(rand.NewPCG(e.seed, uint64(id))), groups: groups,
		})
	}
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(c.work)
	}
	wg.Wait()
	for _, q := range handles {
		if err := q.Close(context.Background()); linear.OutcomeOf(err) == linear.Refused {
			t.Errorf("close: %v", err)
		}
	}
	require.NoError(t, e.plan.Land(e.ctx))
}

func groupsOfCallers() (groups []string) {
	for g := range callerGroups {
		groups = append(groups, fmt.Sprint("g", g))
	}
	return groups
}

// doubts is the database of one handle, and counts the commits of unknown outcome after which the handle tries again:
// in the same transaction or, after a timeout, in another one.
type doubts struct {
	kv.DB
	n atomic.Int64
	// next, if not nil, comes before the handle tries again.
	next func()
}

func (d *doubts) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &doubtedTx{tx, d}, err
}

type doubtedTx struct {
	kv.ManagedTx
	d *doubts
}

func (t *doubtedTx) OnError(err error) kv.Future[struct{}] {
	var e *kv.Error
	if errors.As(err, &e) && (e.MaybeCommitted() || e.Code == kv.CodeTransactionTimedOut) {
		t.d.n.Add(1)
		if t.d.next != nil {
			t.d.next()
		}
	}
	return t.ManagedTx.OnError(err)
}

// TestLapsedAttemptOfAReceive: a receive does not return a claim of its own earlier attempt of unknown outcome, if
// another has ended the claim before the next attempt. The other ends it because the lease has expired by its clock, or
// by force. If messages are claimed in turn, the receive does not return the claims behind, either. While the claim was
// there others passed over its message, and the history of their answers has an order (G1).
func TestLapsedAttemptOfAReceive(t *testing.T) {
	for _, c := range []struct {
		name      string
		sort      callersSort
		max       int
		meanwhile func(t *testing.T, receive func(by string) []string, release func())
	}{
		{"unordered", lapsingItems, 1, func(t *testing.T, receive func(by string) []string, _ func()) {
			require.Equal(t, []string{"y"}, receive("same"), "x is held")
			require.Equal(t, []string{"x"}, receive("fast"), "its lease is over by this clock")
		}},
		{"in turn", lapsingTurns, 2, func(t *testing.T, receive func(by string) []string, release func()) {
			require.Empty(t, receive("same"), "both are held")
			release()
			require.Equal(t, []string{"x"}, receive("same"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEngines(t, func(e *env) { e.lapsedAttempt(c.sort, c.max, c.meanwhile) })
		})
	}
}

// TestFailedReceiveBehindAnAck: a SettleReceive whose ack is done, and whose receive has an unknown outcome, answers
// nothing, without an error. The history of such an answer has an order, though messages are free (G1).
func TestFailedReceiveBehindAnAck(t *testing.T) {
	onEngines(t, func(e *env) {
		e.callable(lastingItems)
		e.plan = &fault.Plan{}
		d := &doubts{DB: fault.Wrap(e.raw, e.plan)}
		q, err := layer.Open(e.ctx, d, testPrefix, lastingItems.queue(), e.options(1))
		require.NoError(e.t, err)
		h := &linear.History{}
		c := &caller{
			e: e, sort: lastingItems, h: h, q: q, doubts: d, rng: rand.New(rand.NewPCG(1, 1)), groups: []string{"g"},
		}
		var sent []layer.Sent
		span, outcome := c.call(false, func(ctx context.Context) (err error) {
			sent, err = q.Enqueue(
				ctx, layer.Message{Group: "g", Body: []byte("x")}, layer.Message{Group: "g", Body: []byte("y")})
			return err
		})
		h.Enqueued(span, outcome, []string{"g", "g"}, []string{"x", "y"}, idsOf(sent))
		options := layer.ReceiveOptions{Unordered: true, Max: 1, Lease: layer.MaxLease}
		var claims []*layer.Claim
		span, outcome = c.call(false, func(ctx context.Context) (err error) {
			claims, err = q.Receive(ctx, options)
			return err
		})
		c.received(span, outcome, claims, options)
		require.Len(e.t, claims, 1)

		// After the conflict the ack has a transaction of its own, and then the receive.
		faults := []fault.Kind{fault.Conflict, fault.None, fault.TimedOutLost}
		e.plan.OnCommit = func(int, kv.Tx) (k fault.Kind) {
			if k = fault.None; len(faults) > 0 {
				k, faults = faults[0], faults[1:]
			}
			return k
		}
		o := linear.Operation{Kind: linear.Ack, Token: claims[0].Token, Hold: claims[0].Hold}
		c.settleReceive(claims[0], options, &o, false)
		h.Settled("g", o, nil)
		require.Equal(e.t, linear.Done, o.Outcome)
		require.Empty(e.t, faults)
		r := e.judge(h, lastingItems)
		require.Empty(e.t, r.Violations, "%s", r)
	})
}

// lapsedAttempt makes a handle receive up to limit of the messages x and y, with an unknown outcome. The handle tries
// again after the function meanwhile has run.
func (e *env) lapsedAttempt(
	sort callersSort, limit int, meanwhile func(t *testing.T, receive func(by string) []string, release func()),
) {
	e.plan = &fault.Plan{}
	e.db = e.raw
	e.callable(sort)
	d := &doubts{DB: fault.Wrap(e.raw, e.plan)}
	h := &linear.History{}
	of := func(id int, db kv.DB, skew time.Duration) *caller {
		o := e.options(uint64(20 + id))
		o.Now = func() time.Time { return e.clock.now().Add(skew) }
		q, err := layer.Open(e.ctx, db, testPrefix, sort.queue(), o)
		require.NoError(e.t, err)
		return &caller{
			e: e, sort: sort, h: h, id: id, q: q, doubts: d, skew: skew, rng: rand.New(rand.NewPCG(1, 1)),
			groups: []string{"g"},
		}
	}
	receive := func(c *caller, n int) (bodies []string) {
		o := layer.ReceiveOptions{Unordered: sort.unordered(), Max: n, Lease: 10 * time.Second}
		var claims []*layer.Claim
		span, outcome := c.call(false, func(ctx context.Context) (err error) {
			claims, err = c.q.Receive(ctx, o)
			return err
		})
		require.Equal(e.t, linear.Done, outcome)
		c.received(span, outcome, claims, o)
		for _, claim := range claims {
			bodies = append(bodies, string(claim.Items[0].Body))
		}
		return bodies
	}
	slow := of(1, d, 0)
	others := map[string]*caller{"same": of(2, e.raw, 0), "fast": of(3, e.raw, 30*time.Second)}
	var sent []layer.Sent
	span, o := others["same"].call(false, func(ctx context.Context) (err error) {
		sent, err = others["same"].q.Enqueue(
			ctx, layer.Message{Group: "g", Body: []byte("x")}, layer.Message{Group: "g", Body: []byte("y")})
		return err
	})
	h.Enqueued(span, o, []string{"g", "g"}, []string{"x", "y"}, idsOf(sent))

	d.next = sync.OnceFunc(func() {
		meanwhile(e.t, func(by string) []string { return receive(others[by], 1) }, func() {
			var holder layer.Holder
			x := layer.ForceReleaseOptions{Hold: sent[0].ID}
			span, o := others["same"].call(false, func(ctx context.Context) (err error) {
				holder, err = others["same"].q.Admin().ForceRelease(ctx, "g", x)
				return err
			})
			h.Add("g", linear.Operation{
				Span: span, Kind: linear.Release, Outcome: o, Token: holder.Token, Hold: x.Hold,
			})
		})
	})
	e.plan.ForceNext(fault.UnknownApplied)
	require.Empty(e.t, receive(slow, limit), "the claim of x was ended")
	r := e.judge(h, sort)
	require.Empty(e.t, r.Violations, "%s", r)
}

// judge drains the queue, and checks the history.
func (e *env) judge(h *linear.History, sort callersSort) linear.Result {
	e.t.Helper()
	e.clock.advance(24 * time.Hour)
	q, err := layer.Open(context.Background(), e.raw, testPrefix, sort.queue(), e.options(99))
	require.NoError(e.t, err)
	(&caller{e: e, sort: sort, h: h, id: drainer, q: q, doubts: &doubts{}, groups: groupsOfCallers()}).drain()
	r, err := linear.Check(linear.Law{Empty: !sort.lapses()}, h.Groups(), linear.CheckOptions{Timeout: time.Minute})
	require.NoError(e.t, err)
	return r
}

// call makes a call and notes when. It returns the call's outcome, having failed the test if an error may not come.
func (c *caller) call(limited bool, fn func(ctx context.Context) error) (linear.Span, linear.Outcome) {
	ctx, cancel := c.e.ctx, context.CancelFunc(func() {})
	if limited {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.rng.IntN(3000))*time.Microsecond)
	}
	defer cancel()
	span, before := c.h.Call(c.id, c.e.clock.now().Add(c.skew).UnixMilli()), c.doubts.n.Load()
	err := fn(ctx)
	c.cut, span.Doubted = ctx.Err() != nil, c.doubts.n.Load() > before
	c.h.Return(&span, c.e.clock.now().Add(c.sort.fastest()).UnixMilli())
	o := linear.OutcomeOf(err)
	var e *kv.Error
	if o == linear.Refused && !errors.As(err, &e) {
		c.e.t.Errorf("unexpected error: %v", err)
	}
	return span, o
}

func (c *caller) chance(percent int) bool { return c.rng.IntN(100) < percent }

func (c *caller) group() string { return c.groups[c.rng.IntN(len(c.groups))] }

func (c *caller) work() {
	for n := range callsEach {
		if c.chance(15) {
			c.e.clock.advance(time.Duration(c.rng.IntN(2000)) * time.Millisecond)
		}
		limited := c.chance(5)
		switch p := c.rng.IntN(100); {
		case p < 25:
			c.enqueue(n, limited)
		case p < 50:
			c.receive(limited)
		case p < 85:
			c.settle(limited)
		case p < 90:
			c.take(limited)
		case p < 94:
			c.peek()
		case p < 97:
			c.cancel(limited)
		default:
			c.release(limited)
		}
	}
}

func (c *caller) enqueue(n int, limited bool) {
	var groups, bodies []string
	var facets []layer.Template
	var msgs []layer.Message
	for i := range 1 + c.rng.IntN(3) {
		groups, bodies = append(groups, c.group()), append(bodies, fmt.Sprintf("%d.%d.%d", c.id, n, i))
		msgs = append(msgs, layer.Message{Group: groups[i], Body: []byte(bodies[i])})
		if c.sort.laned() {
			facets = append(facets, c.facets())
			msgs[i].Headers = facets[i]
		}
	}
	var sent []layer.Sent
	span, o := c.call(limited, func(ctx context.Context) (err error) {
		sent, err = c.q.Enqueue(ctx, msgs...)
		return err
	})
	c.h.Enqueued(span, o, groups, bodies, idsOf(sent), facets...)
	c.ids = append(c.ids, idsOf(sent)...)
}

func (c *caller) receiveOptions() layer.ReceiveOptions {
	o := layer.ReceiveOptions{Max: 1 + c.rng.IntN(4), Strategy: layer.Strategy(c.rng.IntN(3)), Lease: layer.MaxLease}
	if c.sort.laned() {
		o.Where = c.where()
	}
	if c.sort.lapses() {
		o.Lease = layer.MinLease + time.Duration(c.rng.IntN(10_000))*time.Millisecond
		o.Wait = time.Duration(c.rng.IntN(3)) * 5 * time.Millisecond
	}
	if c.chance(50) {
		o.MaxGroups = 1
	}
	if c.chance(20) {
		g := c.group()
		o.Group, o.Strategy = &g, layer.FillGroup
	}
	if c.sort.unordered() && c.chance(60) {
		o.Unordered, o.Strategy = true, layer.FillGroup
	}
	return o
}

// from is the groups that a receive looks at.
func (c *caller) from(o layer.ReceiveOptions) []string {
	if o.Group != nil {
		return []string{*o.Group}
	}
	return c.groups
}

func (c *caller) receive(limited bool) {
	options := c.receiveOptions()
	var claims []*layer.Claim
	span, o := c.call(limited, func(ctx context.Context) (err error) {
		claims, err = c.q.Receive(ctx, options)
		return err
	})
	c.received(span, o, claims, options)
}

func (c *caller) received(span linear.Span, o linear.Outcome, claims []*layer.Claim, options layer.ReceiveOptions) {
	if c.cut && len(claims) == 0 && o == linear.Done {
		o = linear.Unknown // what it was given was given back
	}
	c.h.Received(span, o, options, claims, c.from(options))
	c.claims = append(c.claims, claims...)
	for _, claim := range claims {
		for _, item := range claim.Items {
			c.ids = append(c.ids, item.ID)
		}
	}
}

// settleReceive acks a claim and receives. Once the ack is done the call does not say whether its receive has failed.
// So an empty answer says nothing of the groups if a commit was in doubt.
func (c *caller) settleReceive(claim *layer.Claim, options layer.ReceiveOptions, o *linear.Operation, limited bool) {
	var claims []*layer.Claim
	o.All = true
	o.Span, o.Outcome = c.call(limited, func(ctx context.Context) (err error) {
		claims, err = c.q.SettleReceive(ctx, layer.Settlement{Claim: claim, FinishAll: true}, options)
		return err
	})
	switch {
	case o.Outcome == linear.Done && o.Doubted && len(claims) == 0:
		c.received(o.Span, linear.Unknown, nil, options)
	case o.Outcome == linear.Done, o.Outcome == linear.Unknown:
		c.received(o.Span, o.Outcome, claims, options)
	}
}

// settle does something to one of the claims that the caller has ever had: most often to the newest, and sometimes to one
// that it should have forgotten.
func (c *caller) settle(limited bool) {
	if len(c.claims) == 0 {
		c.receive(limited)
		return
	}
	i := len(c.claims) - 1
	if c.chance(30) {
		i = c.rng.IntN(len(c.claims))
	}
	same := *c.claims[i] // the caller may forget what it has acked
	claim := &same
	if c.chance(60) { // it ends it, and forgets it
		c.claims = append(c.claims[:i:i], c.claims[i+1:]...)
	}
	o := linear.Operation{Kind: linear.Ack, Token: claim.Token, Where: claim.Where, Hold: claim.Hold}
	ids := make([]layer.ID, len(claim.Items))
	for i, item := range claim.Items {
		ids[i] = item.ID
	}
	part := ids[:1+c.rng.IntN(len(ids))]
	if c.sort.laned() && c.chance(40) {
		c.advance(claim, part, o, limited)
		return
	}
	switch c.rng.IntN(8) {
	case 0, 1:
		o.All = true
		o.Span, o.Outcome = c.call(limited, func(ctx context.Context) error { return c.q.Ack(ctx, claim) })
		part = nil
	case 2:
		o.Span, o.Outcome = c.call(limited, func(ctx context.Context) error { return c.q.AckItems(ctx, claim, part) })
	case 3:
		o.Span, o.Outcome = c.call(limited, func(ctx context.Context) error {
			return c.q.Once(ctx, func(tx kv.Tx) error { return c.q.AckItemsTx(ctx, tx, claim, part) })
		})
	case 4:
		c.settleReceive(claim, c.receiveOptions(), &o, limited)
		part = nil
	case 5, 6:
		part = c.nack(claim, ids, &o, limited)
	case 7:
		o.Kind, part = linear.Extend, nil
		lease := layer.MaxLease
		if c.sort.lapses() {
			lease = layer.MinLease + time.Duration(c.rng.IntN(10_000))*time.Millisecond
		}
		o.Span, o.Outcome = c.call(limited, func(ctx context.Context) error {
			until, err := c.q.Extend(ctx, claim, lease)
			o.Until = until.UnixMilli()
			return err
		})
		if o.Outcome == linear.Unknown {
			o.Until = o.Begin + lease.Milliseconds()
		}
	}
	c.h.Settled(claim.Group, o, part)
}

// facets are random.
func (c *caller) facets() layer.Template {
	return layer.Template{"state": pick(c.rng, "NEW", "PAID"), "region": pick(c.rng, "EU", "US")}
}

// where is a random template, or none.
func (c *caller) where() layer.Template {
	switch c.rng.IntN(5) {
	case 0:
		return nil
	case 1, 2, 3:
		return layer.Template{"state": pick(c.rng, "NEW", "PAID")}
	}
	return layer.Template{"region": pick(c.rng, "EU", "US")}
}

func pick(rng *rand.Rand, of ...string) string { return of[rng.IntN(len(of))] }

// advance passes items of a claim on.
func (c *caller) advance(claim *layer.Claim, ids []layer.ID, o linear.Operation, limited bool) {
	o.Kind, o.Next = linear.Advance, c.facets()
	o.Span, o.Outcome = c.call(limited, func(ctx context.Context) error {
		return c.q.Settle(ctx, advanceBy(claim, func(m *layer.Message) error {
			maps.Copy(m.Headers, o.Next)
			return nil
		}, ids...))
	})
	c.h.Settled(claim.Group, o, ids)
}

// nack gives a claim back in one of many ways, and returns what it acks of it.
func (c *caller) nack(claim *layer.Claim, ids []layer.ID, o *linear.Operation, limited bool) (acked []layer.ID) {
	n := layer.NackOptions{Err: errors.New("failed"), AtOnce: true}
	o.Kind = linear.Nack
	switch c.rng.IntN(5) {
	case 0:
		n.AtOnce, n.Delay = false, time.Duration(1+c.rng.IntN(3000))*time.Millisecond
		o.Delay = n.Delay.Milliseconds()
	case 1:
		n = layer.NackOptions{Release: true}
	case 2:
		n = layer.NackOptions{Release: true, From: &ids[c.rng.IntN(len(ids))]}
		o.From = n.From
	case 3:
		n.AtOnce, n.Reject = false, "hopeless"
		o.Reject = true
	}
	if len(ids) > 1 && n.From == nil && c.chance(30) {
		acked = ids[:1]
	}
	o.Span, o.Outcome = c.call(limited, func(ctx context.Context) error {
		return c.q.Settle(ctx, layer.Settlement{Claim: claim, Finish: acked, Nack: &n})
	})
	return acked
}

func (c *caller) take(limited bool) {
	var items []layer.Item
	options := layer.TakeOptions{Unordered: c.sort.unordered() && c.chance(60)}
	if c.sort.laned() {
		options.Where = c.where()
	}
	span, o := c.call(limited, func(ctx context.Context) (err error) {
		items, err = takeFrom(ctx, c.q, 1+c.rng.IntN(3), options)
		return err
	})
	c.h.Took(span, o, options, items, c.groups)
}

func (c *caller) peek() {
	group, n := c.group(), 1+c.rng.IntN(10)
	var items []layer.Item
	span, o := c.call(false, func(ctx context.Context) (err error) {
		items, err = c.q.Peek(ctx, group, n, nil)
		return err
	})
	c.peeked(group, span, o, items, len(items) < n)
}

func (c *caller) peeked(group string, span linear.Span, o linear.Outcome, items []layer.Item, all bool) {
	op := linear.Operation{Span: span, Kind: linear.Peek, Outcome: o, All: all}
	for _, item := range items {
		op.Messages = append(op.Messages, linear.Message{ID: item.ID, Body: string(item.Body)})
		c.ids = append(c.ids, item.ID)
	}
	c.h.Add(group, op)
}

func (c *caller) cancel(limited bool) {
	if len(c.ids) == 0 {
		return
	}
	id := c.ids[c.rng.IntN(len(c.ids))]
	span, o := c.call(limited, func(ctx context.Context) error { return c.q.Admin().Cancel(ctx, id) })
	c.h.Add(id.Group, linear.Operation{Span: span, Kind: linear.Cancel, Outcome: o, Messages: []linear.Message{{ID: id}}})
}

func (c *caller) release(limited bool) {
	group := c.group()
	var options layer.ForceReleaseOptions
	if c.sort.laned() {
		options.Where = c.where()
	}
	if (c.sort.unordered() || c.sort.inTurn()) && len(c.ids) > 0 && c.chance(60) {
		options.Hold = c.ids[c.rng.IntN(len(c.ids))]
		group = options.Hold.Group
	}
	var holder layer.Holder
	span, o := c.call(limited, func(ctx context.Context) (err error) {
		holder, err = c.q.Admin().ForceRelease(ctx, group, options)
		return err
	})
	c.h.Add(group, linear.Operation{
		Span: span, Kind: linear.Release, Outcome: o, Token: holder.Token, Where: options.Where,
		Hold: options.Hold,
	})
}

// drain finishes all that is left, and shows that nothing is.
func (c *caller) drain() {
	for range callers * callsEach * 3 {
		var claims []*layer.Claim
		span, o := c.call(false, func(ctx context.Context) (err error) {
			claims, err = c.q.Receive(ctx, layer.ReceiveOptions{Max: 20})
			return err
		})
		c.h.Received(span, o, layer.ReceiveOptions{}, claims, c.groups)
		if len(claims) == 0 {
			break
		}
		for _, claim := range claims {
			o := linear.Operation{Kind: linear.Ack, Token: claim.Token, Hold: claim.Hold, All: true}
			o.Span, o.Outcome = c.call(false, func(ctx context.Context) error { return c.q.Ack(ctx, claim) })
			c.h.Add(claim.Group, o)
		}
	}
	for _, group := range c.groups {
		var items []layer.Item
		span, o := c.call(false, func(ctx context.Context) (err error) {
			items, err = c.q.Peek(ctx, group, layer.MaxBatch, nil)
			return err
		})
		c.peeked(group, span, o, items, true)
	}
}
