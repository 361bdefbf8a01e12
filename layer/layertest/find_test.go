package layer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// TestOwnersInLanes: the inspections of a group or a message in a queue with facets return the owner and the template
// of the claim that has it, or that excludes the template. They return no owner if there is no such claim.
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
