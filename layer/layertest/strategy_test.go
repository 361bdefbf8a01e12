package layer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// TestStrategies: the exact orders of the design (section 7), for A=5, B=3, C=2 items in that age order. A held group
// is skipped whole.
func TestStrategies(t *testing.T) {
	fill := func(e *env) {
		e.enqueue("A", "A1", "A2", "A3", "A4", "A5")
		e.enqueue("B", "B1", "B2", "B3")
		e.enqueue("C", "C1", "C2")
	}
	b := "B"
	for _, c := range []struct {
		o    layer.ReceiveOptions
		want []string
	}{
		{layer.ReceiveOptions{Max: 10}, []string{"A1", "A2", "A3", "A4", "A5", "B1", "B2", "B3", "C1", "C2"}},
		{layer.ReceiveOptions{Max: 3}, []string{"A1", "A2", "A3"}},
		{layer.ReceiveOptions{Max: 7}, []string{"A1", "A2", "A3", "A4", "A5", "B1", "B2"}},
		{layer.ReceiveOptions{Max: 10, MaxGroups: 2}, []string{"A1", "A2", "A3", "A4", "A5", "B1", "B2", "B3"}},
		{layer.ReceiveOptions{Max: 10, Strategy: layer.Layers}, []string{"A1", "B1", "C1", "A2", "B2", "C2", "A3", "B3", "A4", "A5"}},
		{layer.ReceiveOptions{Max: 4, Strategy: layer.Layers}, []string{"A1", "B1", "C1", "A2"}},
		{layer.ReceiveOptions{Max: 2, Strategy: layer.Layers}, []string{"A1", "B1"}},
		{layer.ReceiveOptions{Max: 10, MaxGroups: 2, Strategy: layer.Layers}, []string{"A1", "B1", "A2", "B2", "A3", "B3", "A4", "A5"}},
		{layer.ReceiveOptions{Max: 10, Strategy: layer.Heads}, []string{"A1", "B1", "C1"}},
		{layer.ReceiveOptions{Max: 2, Strategy: layer.Heads}, []string{"A1", "B1"}},
		{layer.ReceiveOptions{Max: 10, Group: &b}, []string{"B1", "B2", "B3"}},
		{layer.ReceiveOptions{Max: 2, Group: &b}, []string{"B1", "B2"}},
	} {
		name := fmt.Sprintf("max %d of %d groups, strategy %d", c.o.Max, c.o.MaxGroups, c.o.Strategy)
		if c.o.Group != nil {
			name = fmt.Sprintf("max %d of group %s", c.o.Max, *c.o.Group)
		}
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			fill(e)
			claims, err := e.q.Receive(e.ctx, c.o)
			require.NoError(t, err)
			require.Equal(t, c.want, bodies(c.o.Strategy.InOrder(claims)))
			for _, claim := range claims {
				require.NoError(t, e.q.Ack(e.ctx, claim))
			}
			var rest []string
			for _, g := range []string{"A", "B", "C"} {
				rest = append(rest, e.all(g)...)
			}
			require.Len(t, rest, 10-len(c.want), "only what was delivered was claimed")
		})
		t.Run(name+", A in other hands", func(t *testing.T) {
			onMemory(t, func(e *env) {
				fill(e)
				a := e.receive(e.handle(2), 1)
				claims, err := e.q.Receive(e.ctx, c.o)
				require.NoError(e.t, err)
				for _, claim := range claims {
					if e.plan.Chances == nil {
						require.NotEqual(e.t, a.Group, claim.Group)
					}
				}
			})
		})
	}
	t.Run("two calls never share a group", func(t *testing.T) {
		e := newEnv(t, anyEngine, false)
		fill(e)
		seen := map[string]bool{}
		for range 4 {
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 2, Strategy: layer.Heads})
			require.NoError(t, err)
			for _, c := range claims {
				require.False(t, seen[c.Group])
				seen[c.Group] = true
			}
		}
		require.Len(t, seen, 3)
	})
	t.Run("contradictions", func(t *testing.T) {
		e := newEnv(t, anyEngine, false)
		for _, o := range []layer.ReceiveOptions{{Strategy: 7}, {Strategy: -1}, {Strategy: layer.Heads, Group: &b}} {
			_, err := e.q.Receive(e.ctx, o)
			require.ErrorIs(t, err, layer.ErrOptions)
		}
		err := e.q.Once(e.ctx, func(tx kv.Tx) error {
			_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Wait: time.Second})
			return err
		})
		require.ErrorIs(t, err, layer.ErrOptions)
	})
}

// TestReceiveFromOneGroup: held, delayed and empty groups give nothing; an expired claim is taken over; attempts
// are known.
func TestReceiveFromOneGroup(t *testing.T) {
	onEngines(t, func(e *env) {
		g := "A"
		one := func() *layer.Claim {
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Group: &g})
			require.NoError(e.t, err)
			if len(claims) == 0 {
				return nil
			}
			return claims[0]
		}
		require.Nil(e.t, one(), "empty")
		e.enqueue("A", "a1")
		c := one()
		require.NotNil(e.t, c)
		require.Nil(e.t, one(), "held")
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{}))
		c = one()
		require.Equal(e.t, 1, c.Items[0].Attempts)
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Delay: time.Minute}))
		require.Nil(e.t, one(), "delayed")
		e.clock.advance(time.Minute)
		c = one()
		require.Equal(e.t, 2, c.Items[0].Attempts)
		e.clock.advance(time.Hour)
		c = one()
		require.Equal(e.t, 3, c.Items[0].Attempts, "taken over")
		require.NoError(e.t, e.q.Ack(e.ctx, c))
		require.Nil(e.t, one())
	})
}

// configured makes a queue of its own with a configuration.
func (e *env) configured(config layer.Config) *layer.Queue {
	e.t.Helper()
	options := e.options(5)
	options.Config = config
	q, err := layer.Create(e.ctx, e.db, testPrefix, "configured", options)
	require.NoError(e.t, err)
	e.t.Cleanup(func() {
		calm, err := layer.Open(context.Background(), e.raw, testPrefix, "configured", e.options(98))
		require.NoError(e.t, err)
		report, err := calm.Admin().Check(context.Background(), layer.CheckOptions{})
		require.NoError(e.t, err)
		require.Empty(e.t, report.Violations)
	})
	return q
}

// TestShardsHideNoGroup: with several shards groups are still found, the oldest first, whatever their shard. Another
// handle reads the setting from the database.
func TestShardsHideNoGroup(t *testing.T) {
	onEngines(t, func(e *env) {
		q := e.configured(layer.Config{Shards: 7})
		for i := range 40 {
			_, err := q.Enqueue(e.ctx, layer.Message{Group: fmt.Sprint(i), Body: []byte(fmt.Sprint(i))})
			require.NoError(e.t, err)
			e.write(func(tx kv.Tx) { tx.Set([]byte("own"), nil) }) // another version for the next
		}
		e.write(func(tx kv.Tx) { tx.Clear([]byte("own")) })
		other, err := layer.Open(e.ctx, e.db, testPrefix, "configured", e.options(6))
		require.NoError(e.t, err)
		require.Equal(e.t, 7, other.Config().Shards)
		seen := map[string]bool{}
		last := -1
		for len(seen) < 40 {
			claims, err := other.Receive(e.ctx, layer.ReceiveOptions{Max: 3})
			require.NoError(e.t, err)
			require.NotEmpty(e.t, claims)
			for _, c := range claims {
				require.False(e.t, seen[c.Group])
				seen[c.Group] = true
				var n int
				fmt.Sscan(c.Group, &n)
				if e.plan.Chances == nil {
					require.Equal(e.t, last+1, n, "the oldest first")
				}
				last = n
				require.NoError(e.t, other.Ack(e.ctx, c))
			}
		}
		for _, bad := range []layer.Config{{Shards: -1}, {Shards: 64 + 1}} {
			_, err := layer.Create(e.ctx, e.db, testPrefix, "bad", layer.Options{Config: bad})
			var limit *layer.LimitError
			require.ErrorAs(e.t, err, &limit)
		}
		_, err = layer.Create(e.ctx, e.db, testPrefix, "bad", layer.Options{Config: layer.Config{OnFailure: 9}})
		require.ErrorIs(e.t, err, layer.ErrOptions)
	})
}

// TestRoundRobinSchedule: with RoundRobin one deep group cannot starve small ones, even with a single worker. By the
// age of the heads it does.
func TestRoundRobinSchedule(t *testing.T) {
	for robin, want := range map[bool][]string{
		false: {"deep", "deep", "deep", "deep", "small"},
		true:  {"deep", "small", "deep", "deep", "deep"},
	} {
		e := newEnv(t, anyEngine, false)
		q := e.configured(layer.Config{RoundRobin: robin})
		for range 4 {
			_, err := q.Enqueue(e.ctx, layer.Message{Group: "deep"})
			require.NoError(t, err)
		}
		_, err := q.Enqueue(e.ctx, layer.Message{Group: "small"})
		require.NoError(t, err)
		var got []string
		for range want {
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
			require.NoError(t, err)
			got = append(got, claims[0].Group)
			require.NoError(t, q.Ack(e.ctx, claims[0]))
		}
		require.Equal(t, want, got)
	}
}

// newClockedEnv is newEnv on an engine whose versions stand still unless the workers' clock moves on.
func newClockedEnv(t *testing.T) *env {
	return newEnv(t, func(*testing.T) kv.DB {
		return embedded.OpenMemory(embedded.Options{Clock: stillClock{}})
	}, false)
}

// TestRoundRobinOfTimers: with RoundRobin a group whose lease or delay has ended is at the place of that end. Groups
// that fail all the time do not starve the others of a single worker, and the others do not starve them.
func TestRoundRobinOfTimers(t *testing.T) {
	for name, fail := range map[string]func(e *env, q *layer.Queue, c *layer.Claim) error{
		"delay": func(e *env, q *layer.Queue, c *layer.Claim) error {
			return q.Nack(e.ctx, c, layer.NackOptions{Delay: layer.MinLease})
		},
		"lease": func(*env, *layer.Queue, *layer.Claim) error { return nil },
	} {
		for _, take := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, take=%v", name, take), func(t *testing.T) {
				e := newClockedEnv(t)
				q := e.configured(layer.Config{RoundRobin: true, Lease: layer.MinLease})
				groups := []string{"bad 1", "bad 2", "A", "B", "C", "D"}
				for _, group := range groups {
					for range 10 {
						_, err := q.Enqueue(e.ctx, layer.Message{Group: group})
						require.NoError(t, err)
					}
				}
				var got []string
				for range 4 * len(groups) {
					e.clock.advance(layer.MinLease * 2 / 3)
					if len(got)%2 == 1 && take { // one of the good, or it is the bad one's turn
						var items []layer.Item
						require.NoError(t, q.Once(e.ctx, func(tx kv.Tx) (err error) {
							items, _, err = q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{})
							return err
						}))
						got = append(got, items[0].ID.Group)
						continue
					}
					c := e.receive(q, 1)
					got = append(got, c.Group)
					if strings.HasPrefix(c.Group, "bad") {
						require.NoError(t, fail(e, q, c))
					} else {
						require.NoError(t, q.Ack(e.ctx, c))
					}
				}
				count := make(map[string]int)
				for _, group := range got {
					count[group]++
				}
				for _, group := range groups {
					require.GreaterOrEqual(t, count[group], 3, "%s of %v", group, got)
				}
			})
		}
	}
}

// TestCoalescing: operations of one handle that arrive while a transaction is in flight travel together; each has
// its own result, and a bad one fails alone.
func TestCoalescing(t *testing.T) {
	t.Run("every commit of unknown outcome, and applied", func(t *testing.T) {
		e := newEnv(t, anyEngine, false)
		coalesce(e, func() { e.plan.OnCommit = func(int, kv.Tx) fault.Kind { return fault.UnknownApplied } })
	})
	onMemory(t, func(e *env) { coalesce(e, func() {}) })
}

func coalesce(e *env, strike func()) {
	held := map[string]*layer.Claim{}
	for _, g := range []string{"A", "B", "C", "D", "F"} {
		e.enqueue(g, g+"1", g+"2", g+"3")
	}
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 15})
	require.NoError(e.t, err)
	for _, c := range claims {
		held[c.Group] = c
	}
	require.Len(e.t, held, 5)
	require.NoError(e.t, e.q.Ack(e.ctx, held["D"]), "from now on lost")

	// While the first commit is held up, the others gather.
	strike()
	release := make(chan struct{})
	entered := make(chan struct{}, 1)
	blocked := &holdCommits{DB: e.db, entered: entered, release: release}
	q, err := layer.Open(e.ctx, blocked, testPrefix, testQueue, e.options(2))
	require.NoError(e.t, err)
	blocked.armed.Store(true)
	first := make(chan error, 4)
	for _, g := range []string{"first", "second", "third", "fourth"} { // as many as are in flight at a time
		go func() { _, err := q.Enqueue(e.ctx, layer.Message{Group: g}); first <- err }()
		<-entered
	}
	before := q.Paths()
	type result struct {
		name string
		err  error
	}
	results := make(chan result, 16)
	do := func(name string, call func() error) { go func() { results <- result{name, call()} }() }
	do("ack A", func() error { return q.Ack(e.ctx, held["A"]) })
	do("ack one of B", func() error { return q.AckItems(e.ctx, held["B"], []layer.ID{held["B"].Items[0].ID}) })
	do("nack C", func() error { return q.Nack(e.ctx, held["C"], layer.NackOptions{}) })
	do("ack lost D", func() error { return q.Ack(e.ctx, held["D"]) })
	do("extend lost D", func() error { _, err := q.Extend(e.ctx, held["D"], time.Minute); return err })
	do("ack not in B", func() error { return q.AckItems(e.ctx, held["B"], []layer.ID{held["A"].Items[0].ID}) })
	// Two of one claim: the second must see what the first has left of it.
	do("ack F1", func() error { return q.AckItems(e.ctx, held["F"], []layer.ID{held["F"].Items[0].ID}) })
	do("ack F2", func() error { return q.AckItems(e.ctx, held["F"], []layer.ID{held["F"].Items[1].ID}) })
	do("enqueue", func() error { _, err := q.Enqueue(e.ctx, layer.Message{Group: "E"}); return err })
	require.Eventually(e.t, func() bool { return q.Paths().Queued == 9 }, time.Minute, time.Millisecond)
	close(release)
	for range cap(first) {
		require.NoError(e.t, <-first)
	}
	for range 9 {
		r := <-results
		switch r.name {
		case "ack lost D", "extend lost D":
			require.ErrorIs(e.t, r.err, layer.ErrClaimLost, r.name)
		case "ack not in B":
			require.ErrorIs(e.t, r.err, layer.ErrNotInClaim, r.name)
		default:
			require.NoError(e.t, r.err, r.name)
		}
	}
	after := q.Paths()
	require.EqualValues(e.t, 5, after.Shared-before.Shared, "those under way, and one for all that waited")
	require.EqualValues(e.t, 13, after.Together-before.Together)
	require.Empty(e.t, e.all("A"))
	require.Equal(e.t, []string{"B2", "B3"}, e.all("B"))
	require.Equal(e.t, []string{"C1", "C2", "C3"}, e.all("C"))
	require.Equal(e.t, []string{"F3"}, e.all("F"))
	require.NoError(e.t, q.Ack(e.ctx, held["B"]))
	require.NoError(e.t, q.Ack(e.ctx, held["F"]))
}

// holdCommits is an engine whose commits wait for a release.
type holdCommits struct {
	kv.DB
	armed   atomic.Bool
	entered chan struct{}
	release chan struct{}
}

func (h *holdCommits) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := h.DB.Begin(o)
	return &heldTx{tx, h}, err
}

type heldTx struct {
	kv.ManagedTx
	h *holdCommits
}

func (t *heldTx) Commit() kv.Future[struct{}] {
	if t.h.armed.Load() {
		select {
		case t.h.entered <- struct{}{}:
		default:
		}
		<-t.h.release
	}
	return t.ManagedTx.Commit()
}

// TestFusedAckReceive: the ack of one claim and the receive of the next are one transaction, and if the claim is
// lost nothing is received.
func TestFusedAckReceive(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	r := record.WrapCounting(e.raw)
	q, err := layer.Open(e.ctx, r, testPrefix, testQueue, e.options(2))
	require.NoError(t, err)
	for range 50 {
		e.enqueue("A", "a")
	}
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 10})
	require.NoError(t, err)
	before := r.Counters().Commits
	for range 4 {
		claims, err = q.SettleReceive(
			e.ctx, layer.Settlement{Claim: claims[0], FinishAll: true}, layer.ReceiveOptions{Max: 10},
		)
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.Len(t, claims[0].Items, 10)
	}
	require.EqualValues(t, 4, r.Counters().Commits-before, "one transaction a batch")
	require.NoError(t, q.Ack(e.ctx, claims[0]))
	e.enqueue("B", "b1")
	none, err := q.SettleReceive(e.ctx, layer.Settlement{Claim: claims[0], FinishAll: true}, layer.ReceiveOptions{})
	require.ErrorIs(t, err, layer.ErrClaimLost)
	require.Empty(t, none)
	require.NotNil(t, e.receive(e.q, 1), "B is still ready")
}

// TestLayersTakeWhatIsLeft: a group whose lapsed claim ends with its item in the dead letters takes its part in the very
// receive by layers that meets it (G5).
func TestLayersTakeWhatIsLeft(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.MaxAttempts = 1 })
	e.enqueue("A", "a1", "a2")
	_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 1, CountExpired: true})
	require.NoError(t, err)
	e.clock.advance(time.Hour)
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 5, Strategy: layer.Layers})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Equal(t, []string{"a2"}, bodies(claims[0].Items))
}

// TestLayersOverManyGroups: by layers, the first items of all groups come before any second, however many groups there
// are (Contract).
func TestLayersOverManyGroups(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	const groups = 100
	for i := range groups {
		e.enqueue(string(rune('A'+i/26))+string(rune('A'+i%26)), "1", "2")
	}
	o := layer.ReceiveOptions{Max: 150, MaxGroups: groups, Strategy: layer.Layers}
	claims, err := e.q.Receive(e.ctx, o)
	require.NoError(t, err)
	require.Len(t, claims, groups)
	firsts, seconds := 0, 0
	for _, c := range claims {
		firsts++
		seconds += len(c.Items) - 1
	}
	require.Equal(t, groups, firsts)
	require.Equal(t, 50, seconds)
}

// TestLayersOfLargeBodies: a bound on bytes is given out by layers too, not group by group (Contract).
func TestLayersOfLargeBodies(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	for _, group := range []string{"A", "B", "C"} {
		for range 4 {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: group, Body: make([]byte, 300_000)})
			require.NoError(t, err)
		}
	}
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 12, MaxBytes: 1_000_000, Strategy: layer.Layers})
	require.NoError(t, err)
	require.Len(t, claims, 3)
	for _, c := range claims {
		require.Len(t, c.Items, 1, "group %s", c.Group)
	}
}

// TestRoundRobinTellsAttempts: a group that takes its turn has a hint whose place is not the head's; the number of the
// head's failures is still known, also in a take.
func TestRoundRobinTellsAttempts(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.RoundRobin = true })
	e.enqueue("A", "a1", "a2")
	for attempts := range 3 {
		claim := e.receive(e.q, 2)
		require.Equal(t, attempts, claim.Items[0].Attempts)
		require.Zero(t, claim.Items[1].Attempts)
		require.NoError(t, e.q.Nack(e.ctx, claim, layer.NackOptions{AtOnce: true}))
	}
	e.write(func(tx kv.Tx) {
		items, _, err := e.q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{})
		require.NoError(t, err)
		require.Equal(t, 3, items[0].Attempts)
	})
}

// TestLayersFitATransaction (contract): a receive with Layers adds no claim when its transaction has no room left, also
// in the transaction of the caller.
func TestLayersFitATransaction(t *testing.T) {
	e := newEnv(t, inMemory, false)
	var msgs []layer.Message
	for i := range 900 {
		msgs = append(msgs, layer.Message{Group: strings.Repeat("\x00", layer.MaxGroupSize-4) + fmt.Sprintf("%04d", i)})
	}
	for len(msgs) > 0 {
		_, err := e.q.Enqueue(e.ctx, msgs[:100]...)
		require.NoError(t, err)
		msgs = msgs[100:]
	}
	got := 0
	for calls := 0; got < 900; calls++ {
		require.Less(t, calls, 10)
		var claims []*layer.Claim
		require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) (err error) {
			claims, err = e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Strategy: layer.Layers, Max: layer.MaxBatch})
			return err
		}))
		require.NotEmpty(t, claims)
		got += len(claims)
		for _, c := range claims {
			require.NoError(t, e.q.Ack(e.ctx, c))
		}
	}
}
