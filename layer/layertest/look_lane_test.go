package layer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// pipelined makes a queue with the views *; state and the group A: two items NEW, one PAID, and then one NEW.
func (e *env) pipelined(change func(*layer.Config)) (*layer.Queue, []layer.ID) {
	e.t.Helper()
	q := e.laned("pipeline", "*; state", change, 1)[0]
	var msgs []layer.Message
	for _, state := range []string{"NEW", "NEW", "PAID", "NEW"} {
		msgs = append(msgs, layer.Message{Group: "A", Headers: facetsOf(state, "EU")})
	}
	sent, err := q.Enqueue(e.ctx, msgs...)
	require.NoError(e.t, err)
	var ids []layer.ID
	for _, s := range sent {
		ids = append(ids, s.ID)
	}
	return q, ids
}

func causes(e layer.Explanation) (all []layer.Cause) {
	for _, r := range e.Reasons {
		all = append(all, r.Cause)
	}
	return all
}

func itemIDs(items []layer.Item) (ids []layer.ID) {
	for _, i := range items {
		ids = append(ids, i.ID)
	}
	return ids
}

// TestPeekByTemplate: a template leaves the items of the group that agree with it, in order, and page by page.
func TestPeekByTemplate(t *testing.T) {
	onEngines(t, func(e *env) {
		q, ids := e.pipelined(nil)
		items, err := q.Peek(e.ctx, "A", 10, layer.Template{"state": "NEW"})
		require.NoError(e.t, err)
		require.Equal(e.t, []layer.ID{ids[0], ids[1], ids[3]}, itemIDs(items))
		items, err = q.Peek(e.ctx, "A", 2, nil)
		require.NoError(e.t, err)
		require.Equal(e.t, ids[:2], itemIDs(items))
		for range 60 { // more than a page of AllItems
			_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: facetsOf("NEW", "EU")})
			require.NoError(e.t, err)
		}
		n := 0
		for item, err := range q.Admin().AllItems(e.ctx, "A", layer.Template{"state": "NEW"}) {
			require.NoError(e.t, err)
			require.Equal(e.t, "NEW", item.Headers["state"])
			n++
		}
		require.Equal(e.t, 63, n)
		var wrong *layer.TemplateError
		_, err = q.Peek(e.ctx, "A", 1, layer.Template{"region": "EU"})
		require.ErrorAs(e.t, err, &wrong)
		_, err = q.Peek(e.ctx, "A", 1, layer.Template{})
		require.ErrorAs(e.t, err, &wrong)
		_, err = e.q.Peek(e.ctx, "A", 1, layer.Template{"state": "NEW"})
		require.ErrorAs(e.t, err, &wrong)
	})
}

// TestWhyByTemplate: an explanation names the claim of another template that is in the way.
func TestWhyByTemplate(t *testing.T) {
	onEngines(t, func(e *env) {
		q, ids := e.pipelined(nil)
		a, fresh, paid := q.Admin(), layer.Template{"state": "NEW"}, layer.Template{"state": "PAID"}
		x, err := a.Why(e.ctx, ids[1], fresh)
		require.NoError(e.t, err)
		require.Equal(e.t, fresh, x.Where)
		require.Equal(e.t, []layer.Cause{layer.CauseBehind, layer.CauseReady}, causes(x))
		x, err = a.Why(e.ctx, ids[2], fresh)
		require.NoError(e.t, err)
		require.Equal(e.t, []layer.Cause{layer.CauseOtherFacets}, causes(x))
		require.Contains(e.t, x.String(), "state=NEW")

		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: paid})
		require.NoError(e.t, err)
		x, err = a.Why(e.ctx, ids[2], paid)
		require.NoError(e.t, err)
		require.Equal(e.t, []layer.Cause{layer.CauseInFlight}, causes(x))
		x, err = a.Why(e.ctx, ids[2], nil)
		require.NoError(e.t, err)
		require.Equal(e.t, layer.CauseInFlight, x.Reasons[0].Cause, "whoever holds it")
		require.Equal(e.t, paid, x.Reasons[0].Where)
		x, err = a.Why(e.ctx, ids[0], nil)
		require.NoError(e.t, err)
		require.Equal(e.t, []layer.Cause{layer.CauseExcluded}, causes(x), "whole groups wait for all lanes")
		r := x.Reasons[0]
		require.Equal(e.t, paid, r.Where)
		require.Equal(e.t, claims[0].Token, r.Token)
		require.Equal(e.t, e.clock.now().UnixMilli(), r.Since.UnixMilli())
		require.Contains(e.t, x.String(), `excluded by the claim of state=PAID, held by "`)
		require.Contains(e.t, x.String(), " since "+e.clock.now().UTC().Format(time.RFC3339))
		x, err = a.WhyGroup(e.ctx, "A", fresh)
		require.NoError(e.t, err)
		require.Equal(e.t, ids[0], x.ID)
		require.Equal(e.t, []layer.Cause{layer.CauseReady}, causes(x), "a disjoint claim is not in the way")
		x, err = a.WhyGroup(e.ctx, "A", layer.Template{"state": "DONE"})
		require.NoError(e.t, err)
		require.Equal(e.t, []layer.Cause{layer.CauseEmpty}, causes(x))

		require.NoError(e.t, q.Nack(e.ctx, claims[0], layer.NackOptions{Delay: time.Minute}))
		x, err = a.Why(e.ctx, ids[2], paid)
		require.NoError(e.t, err)
		require.Equal(e.t, []layer.Cause{layer.CauseDelayed, layer.CauseFailed}, causes(x))
		require.Contains(e.t, x.String(), "state=PAID")
		_, err = q.Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{Reason: "a look"})
		require.NoError(e.t, err)
		x, err = a.WhyGroup(e.ctx, "A", fresh)
		require.NoError(e.t, err)
		require.Equal(e.t, []layer.Cause{layer.CauseGroupPaused}, causes(x))
		var wrong *layer.TemplateError
		_, err = a.Why(e.ctx, ids[0], layer.Template{"region": "EU"})
		require.ErrorAs(e.t, err, &wrong)
	})
}

// TestWhyOfALapsedLane: a hint which was put aside under a claim, and the timer at its end, still lead to the group.
func TestWhyOfALapsedLane(t *testing.T) {
	onEngines(t, func(e *env) {
		q, ids := e.pipelined(nil)
		_, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": "PAID"}})
		require.NoError(e.t, err)
		none, err := q.Receive(e.ctx, layer.ReceiveOptions{})
		require.NoError(e.t, err)
		require.Empty(e.t, none)
		e.clock.advance(time.Minute)
		x, err := q.Admin().Why(e.ctx, ids[0], nil)
		require.NoError(e.t, err)
		require.Equal(e.t, []layer.Cause{layer.CauseLeaseExpired, layer.CauseNobodyWaits}, causes(x))
	})
}

// TestGroupsByTemplate: a list by template has the groups with such items, and says of these items what it says.
func TestGroupsByTemplate(t *testing.T) {
	onEngines(t, func(e *env) {
		q, ids := e.pipelined(nil)
		a, fresh, paid := q.Admin(), layer.Template{"state": "NEW"}, layer.Template{"state": "PAID"}
		for _, group := range []string{"B", "C", "D"} {
			_, err := q.Enqueue(e.ctx, layer.Message{Group: group, Headers: facetsOf("PAID", "EU")})
			require.NoError(e.t, err)
		}
		list := func(o layer.GroupsOptions) (all []layer.GroupInfo) {
			e.t.Helper()
			for g, err := range a.AllGroups(e.ctx, o) {
				require.NoError(e.t, err)
				all = append(all, g)
			}
			return all
		}
		groups := list(layer.GroupsOptions{Where: fresh})
		require.Len(e.t, groups, 1)
		require.Equal(e.t, int64(3), groups[0].Depth)
		require.Equal(e.t, layer.Ready, groups[0].Status)
		require.Len(e.t, list(layer.GroupsOptions{Where: paid, Limit: 1}), 4, "page by page")
		require.Empty(e.t, list(layer.GroupsOptions{Where: layer.Template{"state": "DONE"}}))

		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: paid, Group: layer.OnlyGroup("A")})
		require.NoError(e.t, err)
		g, err := a.Group(e.ctx, "A", paid)
		require.NoError(e.t, err)
		require.Equal(e.t, layer.Held, g.Status)
		require.Equal(e.t, ids[2], g.Head)
		g, err = a.Group(e.ctx, "A", fresh)
		require.NoError(e.t, err)
		require.Equal(e.t, layer.Ready, g.Status)
		require.Zero(e.t, g.Token)
		g, err = a.Group(e.ctx, "A", nil)
		require.NoError(e.t, err)
		require.Equal(e.t, layer.Held, g.Status)
		require.Equal(e.t, paid, g.Where, "what ForceRelease takes")
		require.Equal(e.t, claims[0].Token, g.Token)
		require.NoError(e.t, q.Ack(e.ctx, claims[0]))

		whole, err := q.Receive(e.ctx, layer.ReceiveOptions{Group: layer.OnlyGroup("A")})
		require.NoError(e.t, err)
		g, err = a.Group(e.ctx, "A", fresh)
		require.NoError(e.t, err)
		require.Equal(e.t, layer.Excluded, g.Status)
		require.Equal(e.t, whole[0].Token, g.Token)
		require.Nil(e.t, g.Where)
		var wrong *layer.TemplateError
		_, err = a.Groups(e.ctx, layer.GroupsOptions{Where: layer.Template{"region": "EU"}})
		require.ErrorAs(e.t, err, &wrong)
		_, err = a.Groups(e.ctx, layer.GroupsOptions{Where: fresh, Marked: true})
		require.ErrorIs(e.t, err, layer.ErrOptions)
		_, err = a.Group(e.ctx, "A", layer.Template{"state": ""})
		require.ErrorIs(e.t, err, layer.ErrLimit)
	})
}

// TestAHaltedLaneIsListedOnce: the mark of a lane, too, is one of its group's.
func TestAHaltedLaneIsListedOnce(t *testing.T) {
	onEngines(t, func(e *env) {
		q, _ := e.pipelined(func(c *layer.Config) { c.OnFailure, c.MaxAttempts = layer.HaltGroup, 1 })
		_, err := q.Enqueue(e.ctx, layer.Message{Group: "B", Headers: facetsOf("NEW", "EU")})
		require.NoError(e.t, err)
		paid := layer.Template{"state": "PAID"}
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: paid})
		require.NoError(e.t, err)
		require.NoError(e.t, q.Nack(e.ctx, claims[0], layer.NackOptions{}))
		page, err := q.Admin().Groups(e.ctx, layer.GroupsOptions{Marked: true, Limit: 10})
		require.NoError(e.t, err)
		require.Len(e.t, page.Groups, 1)
		g := page.Groups[0]
		require.Equal(e.t, layer.Halted, g.Status)
		require.Equal(e.t, paid, g.Where)
		require.NotNil(e.t, g.Mark)
		blocked, err := q.Admin().Blocked(e.ctx, layer.BlockedOptions{Where: paid})
		require.NoError(e.t, err)
		require.Len(e.t, blocked.Groups, 1)
		require.Equal(e.t, layer.CauseGroupHalted, blocked.Groups[0].Cause)
		blocked, err = q.Admin().Blocked(e.ctx, layer.BlockedOptions{Where: layer.Template{"state": "NEW"}})
		require.NoError(e.t, err)
		require.Empty(e.t, blocked.Groups, "another lane is not halted")
	})
}

// TestStatsByTemplate: the figures of groups are those of the template's lanes, and each view says how many lanes are
// ready.
func TestStatsByTemplate(t *testing.T) {
	onEngines(t, func(e *env) {
		q, _ := e.pipelined(nil)
		fresh, paid := layer.Template{"state": "NEW"}, layer.Template{"state": "PAID"}
		for _, group := range []string{"B", "C"} {
			_, err := q.Enqueue(e.ctx, layer.Message{Group: group, Headers: facetsOf("NEW", "EU")})
			require.NoError(e.t, err)
		}
		_, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: paid, Group: layer.OnlyGroup("A")})
		require.NoError(e.t, err)
		s, err := q.Stats(e.ctx, layer.StatsOptions{Where: fresh})
		require.NoError(e.t, err)
		require.Equal(e.t, []int64{3, 0, 0}, []int64{s.ReadyGroups, s.BusyGroups, s.HeldGroups})
		require.Equal(e.t, []layer.ViewStats{{View: "*", ReadyLanes: 3}, {View: "state", ReadyLanes: 3}}, s.Views)
		s, err = q.Stats(e.ctx, layer.StatsOptions{Where: paid})
		require.NoError(e.t, err)
		require.Equal(e.t, []int64{0, 1, 1}, []int64{s.ReadyGroups, s.BusyGroups, s.HeldGroups})
		require.Equal(e.t, int64(6), s.Depth, "of the whole queue")
		_, err = q.Stats(e.ctx, layer.StatsOptions{Where: layer.Template{"region": "EU"}})
		require.ErrorIs(e.t, err, layer.ErrOptions)
		s, err = e.q.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.Nil(e.t, s.Views)
	})
}

// TestBlockedByTemplate: a lane that is held for long, or waits for a retry, is listed by its own template.
func TestBlockedByTemplate(t *testing.T) {
	onEngines(t, func(e *env) {
		q, ids := e.pipelined(nil)
		fresh, paid := layer.Template{"state": "NEW"}, layer.Template{"state": "PAID"}
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: paid})
		require.NoError(e.t, err)
		require.NoError(e.t, q.Nack(e.ctx, claims[0], layer.NackOptions{Delay: time.Hour}))
		list := func(where layer.Template) []layer.BlockedGroup {
			e.t.Helper()
			page, err := q.Admin().Blocked(e.ctx, layer.BlockedOptions{Where: where})
			require.NoError(e.t, err)
			return page.Groups
		}
		require.Empty(e.t, list(fresh))
		groups := list(paid)
		require.Len(e.t, groups, 1)
		require.Equal(e.t, layer.CauseDelayed, groups[0].Cause)
		require.Equal(e.t, ids[2], groups[0].Head)
		require.Equal(e.t, int64(1), groups[0].Depth)
		_, err = q.Admin().Blocked(e.ctx, layer.BlockedOptions{Where: layer.Template{"region": "EU"}})
		require.ErrorIs(e.t, err, layer.ErrOptions)
	})
}

// TestWhyGroupWithoutWholeGroups (contract): no view of the queue is of whole groups. A question about a group without
// a template is about its head by the first view, as a question about the head is.
func TestWhyGroupWithoutWholeGroups(t *testing.T) {
	e := newEnv(t, inMemory, false)
	q := e.laned("pipeline", "state", nil, 1)[0]
	sent, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: facetsOf("NEW", "EU")})
	require.NoError(t, err)
	ofItem, err := q.Admin().Why(e.ctx, sent[0].ID, nil)
	require.NoError(t, err)
	ofGroup, err := q.Admin().WhyGroup(e.ctx, "A", nil)
	require.NoError(t, err)
	require.Equal(t, []layer.Cause{layer.CauseReady}, causes(ofItem))
	require.Equal(t, causes(ofItem), causes(ofGroup))
}

// TestManyHoldsOfAGroup (contract): several messages of a group are held by themselves. Blocked lists the group once,
// and Stats counts no group less than none.
func TestManyHoldsOfAGroup(t *testing.T) {
	e := newEnv(t, inMemory, false)
	q := e.configured(layer.Config{LeasePerItem: true})
	for i := range 3 {
		_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Body: fmt.Append(nil, i)}, layer.Message{Group: "B"})
		require.NoError(t, err)
	}
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 6, Lease: time.Hour})
	require.NoError(t, err)
	require.Len(t, claims, 6)
	for _, after := range []time.Duration{time.Second, 2 * time.Hour} {
		e.clock.advance(after)
		page, err := q.Admin().Blocked(e.ctx, layer.BlockedOptions{HeldFor: time.Millisecond})
		require.NoError(t, err)
		seen := map[string]int{}
		for _, g := range page.Groups {
			seen[g.Group]++
			require.Equal(t, 1, seen[g.Group])
		}
		stats, err := q.Stats(e.ctx, layer.StatsOptions{MaxGroups: 1})
		require.NoError(t, err)
		require.GreaterOrEqual(t, stats.ReadyGroups, int64(0))
		require.GreaterOrEqual(t, stats.BusyGroups, int64(0))
	}
	for _, c := range claims {
		require.NoError(t, q.Ack(e.ctx, c))
	}
}
