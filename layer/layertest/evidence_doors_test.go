package layer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestNobodyKnowsOfAnyClaim (G7): processes that die between the commit of a receive and its answer leave claims of
// which no caller knows. Their leases count one attempt at most for each message and never make a dead letter, by
// whatever kind of receive the claims were made.
func TestNobodyKnowsOfAnyClaim(t *testing.T) {
	t.Parallel()
	state := layer.Template{"state": "new"}
	for name, kind := range map[string]struct {
		change func(c *layer.Config)
		o      layer.ReceiveOptions
	}{
		"layers":    {func(*layer.Config) {}, layer.ReceiveOptions{Max: 10, Strategy: layer.Layers}},
		"one group": {func(*layer.Config) {}, layer.ReceiveOptions{Max: 10, Group: layer.OnlyGroup("A")}},
		"unordered": {
			func(c *layer.Config) { c.Unordered = true }, layer.ReceiveOptions{Max: 10, Unordered: true},
		},
		"lease per item": {func(c *layer.Config) { c.LeasePerItem = true }, layer.ReceiveOptions{Max: 10}},
		"template": {
			func(c *layer.Config) { c.Facets, c.Views = []string{"state"}, "state" },
			layer.ReceiveOptions{Max: 10, Where: state},
		},
		"whole groups": {
			func(c *layer.Config) { c.Facets, c.Views = []string{"state"}, "*; state" },
			layer.ReceiveOptions{Max: 10},
		},
	} {
		for _, attempts := range []int{1, 2, 3} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, inMemory, false)
				o := e.options(10)
				o.Config.MaxAttempts = attempts
				kind.change(&o.Config)
				q, err := layer.Create(e.ctx, e.db, testPrefix, "doors", o)
				require.NoError(t, err)
				for _, body := range []string{"1", "2", "3"} {
					m := layer.Message{Group: "A", Body: []byte(body), Headers: headersOf(o, state)}
					_, err := q.Enqueue(e.ctx, m)
					require.NoError(t, err)
				}
				for n := range 10 {
					db := &mortal{DB: e.raw}
					dying, err := layer.Open(e.ctx, db, testPrefix, "doors", e.options(uint64(20+n)))
					require.NoError(t, err)
					db.afterCommit.Store(true)
					_, err = dying.Receive(e.ctx, kind.o)
					require.True(t, kv.MaybeCommitted(err), "%v", err)
					_ = dying.Close(ended()) // as the process cannot
					e.clock.advance(2 * time.Minute)
				}
				for seen := 0; seen < 3; {
					claims, err := q.Receive(e.ctx, kind.o)
					require.NoError(t, err)
					require.NotEmpty(t, claims, "%d seen", seen)
					for _, c := range claims {
						for _, item := range c.Items {
							require.LessOrEqual(t, item.Attempts, 1)
							seen++
						}
						require.NoError(t, q.Ack(e.ctx, c))
					}
				}
				page, err := q.Admin().DeadLetters(e.ctx, layer.DeadOptions{})
				require.NoError(t, err)
				require.Empty(t, page.Letters)
				e.sound("doors")
			})
		}
	}
}

func headersOf(o layer.Options, all layer.Template) map[string]string {
	if len(o.Config.Facets) == 0 {
		return nil
	}
	return all
}
