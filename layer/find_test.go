package layer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// found is Find, which must not fail.
func (e *env) found(group, id string) layer.Found {
	e.t.Helper()
	f, err := e.calm().Find(e.ctx, group, id)
	require.NoError(e.t, err)
	return f
}

// TestFind follows messages by their dedup ids through all places.
func TestFind(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.DedupFor, c.MaxAttempts = layer.DedupForPending, 1 })
		require.Equal(e.t, layer.Found{Where: layer.WhereUnknown}, e.found("", "x"))
		e.enqueue("A", "first")
		due := e.clock.now().Add(time.Minute)
		sent, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", DedupID: "x", DeliverAt: due})
		require.NoError(e.t, err)
		id := sent[0].ID
		waiting := layer.Found{Where: layer.WhereWaiting, ID: id, Ahead: 1, DeliverAt: due}
		require.Equal(e.t, waiting, e.found("", "x"))
		require.Equal(e.t, waiting, e.found("any", "x"), "the group does not matter")
		first := e.receive(e.q, 10)
		require.Len(e.t, first.Items, 1)
		require.Equal(e.t, waiting, e.found("", "x"), "another item of the group is in flight")
		require.NoError(e.t, e.q.Ack(e.ctx, first))

		e.clock.advance(time.Minute)
		c := e.receive(e.q, 1)
		require.NotNil(e.t, c)
		inFlight := layer.Found{
			Where: layer.WhereInFlight, ID: id, Owner: "worker-1", Token: c.Token, Until: c.Until,
		}
		require.Equal(e.t, inFlight, e.found("", "x"))
		e.clock.advance(time.Hour)
		require.Equal(e.t, inFlight, e.found("", "x"), "as long as nobody has taken over")
		require.Nil(e.t, e.receive(e.q, 1), "that was its last attempt")
		require.Equal(e.t, layer.Found{Where: layer.WhereDead, ID: id, Reason: "1 attempt failed"}, e.found("", "x"))

		require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error {
			return e.q.Admin().RedriveTx(e.ctx, tx, layer.RedriveOptions{ToTail: true}, id)
		}))
		moved := e.found("", "x")
		require.Equal(e.t, layer.WhereWaiting, moved.Where)
		require.Equal(e.t, id.Random, moved.ID.Random, "it goes on under another id, and is found")
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		done := layer.Found{Where: layer.WhereArchived, ID: moved.ID, Completed: e.clock.now()}
		require.Equal(e.t, done, e.found("", "x"))
		e.clock.advance(2 * time.Hour)
		_, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(e.t, err)
		require.Contains(e.t, []layer.Where{layer.WhereGone, layer.WhereUnknown}, e.found("", "x").Where)
	})
}

// TestFindOfScopes: within groups the group says which message is meant; in a window the entry outlives the message.
func TestFindOfScopes(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.DedupScope = layer.DedupInGroup })
	a, b := e.sendAs(e.q, "A", "x").ID, e.sendAs(e.q, "B", "x").ID
	until := e.clock.now().Add(layer.DefaultDedupWindow)
	for group, id := range map[string]layer.ID{"A": a, "B": b} {
		require.Equal(t, layer.Found{Where: layer.WhereWaiting, ID: id, Remembered: until}, e.found(group, "x"))
	}
	require.Equal(t, layer.Found{Where: layer.WhereUnknown}, e.found("", "x"))
	require.NoError(t, e.q.Admin().Cancel(e.ctx, a))
	require.Equal(t, layer.Found{Where: layer.WhereGone, ID: a, Remembered: until}, e.found("A", "x"))

	e.clock.advance(time.Second)
	e.configure(func(c *layer.Config) { c.DedupScope = layer.DedupInQueue })
	e.clock.advance(time.Second)
	require.Equal(t, b, e.found("B", "x").ID, "what was remembered otherwise is found, too")
	again := e.sendAs(e.q, "A", "x").ID
	require.Equal(t, again, e.found("B", "x").ID, "the last which was accepted")
}

// TestReschedule: the message keeps its place; those behind wait with it, and what moves past its head's delay does not
// overtake.
func TestReschedule(t *testing.T) {
	onEngines(t, func(e *env) {
		ids := e.enqueue("A", "a1", "a2", "a3")
		in := func(d time.Duration) time.Time { return e.clock.now().Add(d) }
		require.NoError(e.t, e.q.Reschedule(e.ctx, ids[0], in(time.Hour)))
		require.Nil(e.t, e.receive(e.q, 10), "those behind wait, too")
		require.NoError(e.t, e.q.Reschedule(e.ctx, ids[1], time.Time{}))
		require.Nil(e.t, e.receive(e.q, 10))
		s, err := e.calm().Stats(e.ctx)
		require.NoError(e.t, err)
		require.Equal(e.t, []int64{0, 1}, []int64{s.ReadyGroups, s.DelayedGroups})

		require.NoError(e.t, e.q.Reschedule(e.ctx, ids[0], in(time.Minute)), "earlier")
		e.clock.advance(time.Minute)
		c := e.receive(e.q, 1)
		require.Equal(e.t, []string{"a1"}, bodies(c.Items))
		require.ErrorIs(e.t, e.q.Reschedule(e.ctx, ids[0], in(time.Hour)), layer.ErrInFlight)
		require.NoError(e.t, e.q.Reschedule(e.ctx, ids[1], in(time.Minute)), "another of the group is in flight")
		require.NoError(e.t, e.q.Ack(e.ctx, c))
		require.ErrorIs(e.t, e.q.Reschedule(e.ctx, ids[0], in(time.Hour)), layer.ErrNoItem)
		require.Nil(e.t, e.receive(e.q, 10))
		require.NoError(e.t, e.q.Reschedule(e.ctx, ids[1], in(-time.Hour)), "at once")
		c = e.receive(e.q, 10)
		require.Equal(e.t, []string{"a2", "a3"}, bodies(c.Items))
		require.Equal(e.t, e.clock.now(), c.Items[0].DeliverAt)
	})
}

// TestRescheduleHasItsEffectOnce (trap 4), and so has a replacement.
func TestRescheduleHasItsEffectOnce(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		e := newEnv(t, anyEngine, false)
		id := e.enqueue("A", "a1")[0]
		e.plan.ForceNext(kind)
		require.NoError(t, e.q.Reschedule(e.ctx, id, e.clock.now().Add(time.Minute)))
		require.Nil(t, e.receive(e.q, 1))
		e.plan.ForceNext(kind)
		require.NoError(t, e.q.Reschedule(e.ctx, id, time.Time{}))
		e.plan.ForceNext(kind)
		require.NoError(t, e.q.Replace(e.ctx, id, []byte("new"), map[string]string{"h": "v"}))
		c := e.receive(e.q, 1)
		require.Equal(t, []string{"new"}, bodies(c.Items))
		require.Equal(t, map[string]string{"h": "v"}, c.Items[0].Headers)
	}
}

// TestReplaceLargeBody: a body in parts gives way to a small one, and the other way round.
func TestReplaceLargeBody(t *testing.T) {
	onEngines(t, func(e *env) {
		e.sendAs(e.q, "A", "x")
		id := e.found("", "x").ID
		large := make([]byte, 300_000)
		require.NoError(e.t, e.q.Replace(e.ctx, id, large, nil))
		require.Equal(e.t, []string{string(large)}, e.all("A"))
		require.NoError(e.t, e.q.Reschedule(e.ctx, id, e.clock.now().Add(time.Minute)))
		e.clock.advance(time.Minute)
		require.NoError(e.t, e.q.Replace(e.ctx, id, []byte("small"), nil))
		c := e.receive(e.q, 1)
		require.Equal(e.t, []string{"small"}, bodies(c.Items))
		require.Equal(e.t, "x", c.Items[0].DedupID)
		require.ErrorIs(e.t, e.q.Replace(e.ctx, id, nil, nil), layer.ErrInFlight)
	})
}

// TestDelayIsNoRetention: a message whose delay ends early, by RetryNow or by Reschedule, has not waited for the
// retention yet.
func TestDelayIsNoRetention(t *testing.T) {
	for name, now := range map[string]func(e *env, id layer.ID) error{
		"retry now": func(e *env, id layer.ID) error {
			return e.q.Admin().RetryNow(e.ctx, id.Group, layer.RetryOptions{})
		},
		"reschedule": func(e *env, id layer.ID) error { return e.q.Reschedule(e.ctx, id, time.Time{}) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			e.configure(func(c *layer.Config) { c.Retention = time.Hour })
			sent, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: 24 * time.Hour})
			require.NoError(t, err)
			e.clock.advance(12 * time.Hour)
			require.NoError(t, now(e, sent[0].ID))
			require.NotNil(t, e.receive(e.q, 1), "it is delivered, not dropped")
		})
	}
}

// TestTimeByALateClock (contract): a message that was delayed has its time, also one that a clock behind the enqueuer's
// has set.
func TestTimeByALateClock(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	o := e.options(7)
	o.Now = func() time.Time { return e.clock.now().Add(-time.Minute) }
	late, err := layer.Open(e.ctx, e.db, testPrefix, e.q.Name(), o)
	require.NoError(t, err)
	sent, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: time.Hour, DedupID: "x"})
	require.NoError(t, err)
	require.NoError(t, late.Reschedule(e.ctx, sent[0].ID, time.Time{}))
	require.Equal(t, o.Now(), e.found("A", "x").DeliverAt)
	require.Equal(t, o.Now(), e.receive(e.q, 1).Items[0].DeliverAt)
	require.NoError(t, late.Close(e.ctx))
}

// TestFindHeldElsewhere: a message that a claim by template has, or an unordered one, is found in flight.
func TestFindHeldElsewhere(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	for _, c := range []struct {
		q *layer.Queue
		o layer.ReceiveOptions
	}{
		{e.laned("lanes", "*; state; region", nil, 1)[0], layer.ReceiveOptions{Where: isNew}},
		{e.unordered("holds", nil, 1)[0], layer.ReceiveOptions{Unordered: true}},
	} {
		_, err := c.q.Enqueue(e.ctx, layer.Message{Group: "A", DedupID: "d", Headers: facetsOf("NEW", "EU")})
		require.NoError(t, err)
		claims, err := c.q.Receive(e.ctx, c.o)
		require.NoError(t, err)
		require.Len(t, claims, 1)
		found, err := c.q.Find(e.ctx, "A", "d")
		require.NoError(t, err)
		require.Equal(t, layer.WhereInFlight, found.Where)
		require.Equal(t, claims[0].Token, found.Token)
		require.NoError(t, c.q.Ack(e.ctx, claims[0]))
	}
}

// TestOwnersInLanes: whoever asks about a group or a message of a queue with facets is told the owner and the template
// of the claim that has it, or that keeps the template from it; and nobody's where nobody is in the way.
func TestOwnersInLanes(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.laned("owners", "*; state; region", nil, 1)[0]
	for _, state := range []string{"NEW", "PAID"} {
		_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", DedupID: state, Headers: facetsOf(state, "EU")})
		require.NoError(t, err)
	}
	paid := layer.Template{"state": "PAID"}
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: paid})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	for _, p := range []struct {
		where  layer.Template
		status layer.Status
		told   bool
	}{
		{nil, layer.Held, true}, {paid, layer.Held, true}, {layer.Template{"region": "EU"}, layer.Excluded, true},
		{layer.Template{"state": "NEW"}, layer.Ready, false},
	} {
		owner, token, where := "", int64(0), layer.Template(nil)
		if p.told {
			owner, token, where = "worker-10", claims[0].Token, paid
		}
		g, err := q.Admin().Group(e.ctx, "A", p.where)
		require.NoError(t, err)
		page, err := q.Admin().Groups(e.ctx, layer.GroupsOptions{Where: p.where})
		require.NoError(t, err)
		require.Len(t, page.Groups, 1)
		for _, g := range []layer.GroupInfo{g, page.Groups[0]} {
			require.Equal(t, p.status, g.Status, "%s", p.where)
			require.Equal(t, owner, g.Owner, "%s", p.where)
			require.Equal(t, token, g.Token, "%s", p.where)
			require.Equal(t, where, g.Where, "%s", p.where)
		}
		why, err := q.Admin().WhyGroup(e.ctx, "A", p.where)
		require.NoError(t, err)
		require.Equal(t, p.told, strings.Contains(why.String(), "worker-10"), "%s: %s", p.where, why)
	}
	for state, owner := range map[string]string{"NEW": "", "PAID": "worker-10"} {
		f, err := q.Find(e.ctx, "A", state)
		require.NoError(t, err)
		require.Equal(t, owner, f.Owner, state)
	}
}
