package layer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestReleaseBehind: a group that is released to the end of the line is delivered after all groups that are ready. The
// order of its own messages stays, no attempt counts, and the next release without Behind gives the group its old place
// again.
func TestReleaseBehind(t *testing.T) {
	behind := layer.NackOptions{Release: true, Behind: true}
	for name, of := range map[string]struct {
		config layer.Config
		where  layer.Template
	}{
		"plain":       {},
		"round robin": {config: layer.Config{RoundRobin: true}},
		"fair":        {config: layer.Config{Fair: true}},
		"by template": {
			config: layer.Config{Facets: []string{"state"}, Views: "state"}, where: layer.Template{"state": "NEW"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(e *env) {
				q := e.configured(of.config)
				for _, group := range []string{"A", "B", "C"} {
					for _, body := range []string{"1", "2", "3"} {
						m := layer.Message{Group: group, Body: []byte(body), Headers: map[string]string{"state": "NEW"}}
						_, err := q.Enqueue(e.ctx, m)
						require.NoError(e.t, err)
					}
				}
				o := layer.ReceiveOptions{Max: 3, MaxGroups: 1, Where: of.where}
				receive := func(group string, want ...string) *layer.Claim {
					e.t.Helper()
					claims, err := q.Receive(e.ctx, o)
					require.NoError(e.t, err)
					require.Len(e.t, claims, 1)
					require.Equal(e.t, group, claims[0].Group)
					require.Equal(e.t, want, bodies(claims[0].Items))
					return claims[0]
				}
				a := receive("A", "1", "2", "3")
				require.NoError(e.t, q.Settle(e.ctx, layer.Settlement{
					Claim: a, Finish: []layer.ID{a.Items[0].ID}, Nack: &behind,
				}))
				// A receive of the same transaction does not prefer the group either.
				b := receive("B", "1", "2", "3")
				next, err := q.SettleReceive(e.ctx, layer.Settlement{Claim: b, Nack: &behind}, o)
				require.NoError(e.t, err)
				require.Equal(e.t, "C", next[0].Group)
				require.NoError(e.t, q.Ack(e.ctx, next[0]))
				a = receive("A", "2", "3")
				require.Zero(e.t, a.Items[0].Attempts)
				require.NoError(e.t, q.Nack(e.ctx, a, behind))
				require.NoError(e.t, q.Ack(e.ctx, receive("B", "1", "2", "3")))
				// No other group is ready. So this one is delivered again at once.
				require.NoError(e.t, q.Ack(e.ctx, receive("A", "2", "3")))
			})
		})
	}
}

// TestBehindIsRefused: Behind is refused where it would say nothing, and the claim is unchanged.
func TestBehindIsRefused(t *testing.T) {
	onEngines(t, func(e *env) {
		e.enqueue("A", "a1", "a2")
		c := e.receive(e.q, 2)
		for name, o := range map[string]layer.NackOptions{
			"not a release": {Behind: true},
			"a delay":       {Behind: true, Release: true, Delay: time.Second},
			"at once":       {Behind: true, Release: true, AtOnce: true},
			"a part":        {Behind: true, Release: true, From: &c.Items[1].ID},
			"rejected":      {Behind: true, Reject: "never"},
		} {
			require.ErrorIs(e.t, e.q.Nack(e.ctx, c, o), layer.ErrOptions, name)
		}
		require.NoError(e.t, e.q.Ack(e.ctx, c))

		q := e.configured(layer.Config{LeasePerItem: true})
		_, err := q.Enqueue(e.ctx, layer.Message{Group: "A"})
		require.NoError(e.t, err)
		c = e.receive(q, 1)
		require.ErrorIs(e.t, q.Nack(e.ctx, c, layer.NackOptions{Release: true, Behind: true}), layer.ErrOptions)
		require.NoError(e.t, q.Ack(e.ctx, c))
	})
}

// TestSweepKeepsTurns: a sweep of a queue with facets leaves the groups their turns.
func TestSweepKeepsTurns(t *testing.T) {
	for name, release := range map[string]layer.NackOptions{
		"round robin": {Release: true}, "behind": {Release: true, Behind: true},
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(e *env) {
				q := e.configured(layer.Config{
					Facets: []string{"state"}, Views: "*; state", RoundRobin: !release.Behind,
				})
				for _, group := range []string{"A", "A", "B", "C"} {
					_, err := q.Enqueue(e.ctx, layer.Message{Group: group, Headers: map[string]string{"state": "new"}})
					require.NoError(e.t, err)
				}
				o := layer.ReceiveOptions{Max: 1, Where: layer.Template{"state": "new"}}
				claims, err := q.Receive(e.ctx, o)
				require.NoError(e.t, err)
				require.Equal(e.t, "A", claims[0].Group)
				require.NoError(e.t, q.Nack(e.ctx, claims[0], release))
				_, err = q.Admin().Sweep(e.ctx, layer.SweepOptions{})
				require.NoError(e.t, err)
				var turns []string
				for range 4 {
					claims, err := q.Receive(e.ctx, o)
					require.NoError(e.t, err)
					require.Len(e.t, claims, 1, "%q", turns)
					turns = append(turns, claims[0].Group)
					require.NoError(e.t, q.Ack(e.ctx, claims[0]))
				}
				require.Equal(e.t, "B", turns[0])
				require.ElementsMatch(e.t, []string{"A", "A", "B", "C"}, turns)
			})
		})
	}
}

// TestSweepKeepsOneTurn (lanes, trap 14): of the hints that receives of a named group leave in a queue with facets and
// turns, a sweep keeps one.
func TestSweepKeepsOneTurn(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.configured(layer.Config{Facets: []string{"state"}, Views: "*; state", RoundRobin: true})
	_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: map[string]string{"state": "new"}})
	require.NoError(t, err)
	for range 100 {
		e.clock.advance(time.Millisecond)
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{
			Group: layer.OnlyGroup("A"), Where: layer.Template{"state": "new"},
		})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.NoError(t, q.Nack(e.ctx, claims[0], layer.NackOptions{Release: true}))
	}
	for _, cleared := range []int64{98, 0} {
		report, err := q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(t, err)
		require.GreaterOrEqual(t, report.Hints, cleared)
		require.LessOrEqual(t, report.Hints, cleared+3)
	}
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": "new"}})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.NoError(t, q.Ack(e.ctx, claims[0]))
}
