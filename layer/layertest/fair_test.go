package layer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// loudAndQuiet are a tenant with a backlog of so many messages, and tenants whose only messages come behind it.
func loudAndQuiet(loud int, quiet ...string) (msgs []layer.Message) {
	for i := range loud {
		msgs = append(msgs, layer.Message{Alone: true, Tenant: "loud", Body: fmt.Appendf(nil, "loud %d", i)})
	}
	for _, tenant := range quiet {
		msgs = append(msgs, layer.Message{Alone: true, Tenant: tenant, Body: []byte(tenant)})
	}
	return msgs
}

// TestFairTenants: in a fair queue tenants with a message each are served within as many turns as there are tenants,
// though another tenant's backlog is older, by receives of one message and by receives of ten; among the loud tenant's
// own the oldest comes first. In a queue that is not fair they wait for all that is older.
func TestFairTenants(t *testing.T) {
	quiet := []string{"q1", "q2", "q4"} // in other shards than the loud one
	for _, fair := range []bool{true, false} {
		for _, most := range []int{1, 10} {
			t.Run(fmt.Sprintf("fair=%v/max=%d", fair, most), func(t *testing.T) {
				e := newEnv(t, anyEngine, false) // conflicts send a handle for a walk, away from the order
				config := layer.Config{Shards: 16, Fair: true}
				if !fair {
					config = layer.Config{}
				}
				q := e.configured(config)
				_, err := q.Enqueue(e.ctx, loudAndQuiet(60, quiet...)...)
				require.NoError(e.t, err)
				var order []string
				for {
					claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: most})
					require.NoError(e.t, err)
					if len(claims) == 0 {
						break
					}
					for _, c := range claims {
						order = append(order, bodies(c.Items)...)
						require.NoError(e.t, q.Ack(e.ctx, c))
					}
				}
				require.Len(e.t, order, 63)
				var loud []string
				for _, body := range order {
					if !slices.Contains(quiet, body) {
						loud = append(loud, body)
					}
				}
				for i, body := range loud {
					require.Equal(e.t, fmt.Sprintf("loud %d", i), body)
				}
				for _, tenant := range quiet {
					if place := slices.Index(order, tenant); fair {
						require.Less(e.t, place, 10, "%s among %v", tenant, order)
					} else {
						require.GreaterOrEqual(e.t, place, 60, "%s among %v", tenant, order)
					}
				}
			})
		}
	}
}

// TestFairHandles: whatever a loud tenant has queued, a quiet tenant's message is delivered within as many receives of
// a handle as there are shards, though several handles receive by turns and more of the loud tenant's messages come.
func TestFairHandles(t *testing.T) {
	const shards, handles = 16, 3
	e := newEnv(t, anyEngine, false)
	q := e.configured(layer.Config{Shards: shards, Fair: true})
	var all []*layer.Queue
	for i := range handles {
		h, err := layer.Open(e.ctx, e.db, testPrefix, q.Name(), e.options(uint64(10+i)))
		require.NoError(t, err)
		all = append(all, h)
	}
	rng := rand.New(rand.NewPCG(e.seed, 5))
	waited := make(map[string]int) // receives since the message was sent
	for n := range 400 {
		msgs := loudAndQuiet(2)
		if n == 0 {
			msgs = loudAndQuiet(300)
		}
		if n%10 == 0 {
			tenant := []string{"q1", "q2", "q4"}[rng.IntN(3)] // in other shards than the loud one
			body := fmt.Sprint(tenant, " ", n)
			msgs = append(msgs, layer.Message{Alone: true, Tenant: tenant, Body: []byte(body)})
			waited[body] = 0
		}
		_, err := q.Enqueue(e.ctx, msgs...)
		require.NoError(t, err)
		h := all[rng.IntN(handles)]
		claims, err := h.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		delete(waited, string(claims[0].Items[0].Body))
		for body := range waited {
			waited[body]++
			require.LessOrEqual(t, waited[body], handles*shards, body)
		}
		require.NoError(t, h.Ack(e.ctx, claims[0]))
	}
}

// TestFairWhateverFits (G5): in a fair queue the shards take turns, though a receive finds more groups than fit
// into it, and a take looks at two.
func TestFairWhateverFits(t *testing.T) {
	for _, shards := range []int{2, 4} {
		for how, give := range map[string]func(e *env, q *layer.Queue, o layer.ReceiveOptions) []layer.Item{
			"receive": func(e *env, q *layer.Queue, o layer.ReceiveOptions) []layer.Item {
				claims, err := q.Receive(e.ctx, o)
				require.NoError(e.t, err)
				require.Len(e.t, claims, 1, "a second message does not fit")
				require.NoError(e.t, q.Ack(e.ctx, claims[0]))
				return claims[0].Items
			},
			"take": func(e *env, q *layer.Queue, _ layer.ReceiveOptions) []layer.Item {
				items, err := takeFrom(e.ctx, q, 1, layer.TakeOptions{})
				require.NoError(e.t, err)
				return items
			},
		} {
			for _, strategy := range []layer.Strategy{layer.FillGroup, layer.Layers} {
				t.Run(fmt.Sprintf("%s/%d shards/strategy %d", how, shards, strategy), func(t *testing.T) {
					e := newEnv(t, anyEngine, false)
					q := e.configured(layer.Config{Shards: shards, Fair: true})
					quiet := slices.Repeat([]string{"q1", "q2", "q3", "q4"}, 20) // not all in the shard of the loud one
					_, err := q.Enqueue(e.ctx, loudAndQuiet(20, quiet...)...)
					require.NoError(t, err)
					o := layer.ReceiveOptions{Max: shards, MaxBytes: 1, Strategy: strategy}
					var order []string
					for range 12 {
						order = append(order, bodies(give(e, q, o))...)
					}
					loud := slices.IndexFunc(order, func(body string) bool { return body[0] == 'l' })
					other := slices.IndexFunc(order, func(body string) bool { return body[0] == 'q' })
					require.ElementsMatch(t, []bool{true, true}, []bool{loud >= 0, other >= 0}, "among %v", order)
				})
			}
		}
	}
}

// TestTenantShards: for every number of shards the name of the group of a message alone leads to the tenant's shard, so
// that in a fair queue two messages of a tenant never overtake each other.
func TestTenantShards(t *testing.T) {
	for _, shards := range []int{1, 2, 3, 10, 64} {
		e := newEnv(t, anyEngine, false)
		q := e.configured(layer.Config{Shards: shards, Fair: true})
		var msgs []layer.Message
		for i := range 20 {
			msgs = append(msgs, layer.Message{Alone: true, Tenant: "one", Body: fmt.Appendf(nil, "%02d", i)})
		}
		_, err := q.Enqueue(e.ctx, msgs...)
		require.NoError(t, err)
		var order []string
		for range msgs {
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
			require.NoError(t, err)
			order = append(order, bodies(claims[0].Items)...)
			require.NoError(t, q.Ack(e.ctx, claims[0]))
		}
		require.IsIncreasing(t, order, "%d shards", shards)
	}
}

// TestTenantRefused: a tenant is of messages alone.
func TestTenantRefused(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Tenant: "one"})
	require.ErrorIs(t, err, layer.ErrOptions)
	_, err = e.q.Enqueue(e.ctx, layer.Message{Alone: true, Tenant: string(make([]byte, layer.MaxGroupSize+1))})
	require.ErrorIs(t, err, layer.ErrLimit)
}

// TestFairTimers: what becomes due, a delayed message or a lease that has ended, takes its turn in its own shard, and
// waits for no other tenant's backlog, however old.
func TestFairTimers(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.configured(layer.Config{Shards: 16, Fair: true})
	_, err := q.Enqueue(e.ctx, loudAndQuiet(40, "q1")...)
	require.NoError(e.t, err)
	late := layer.Message{Alone: true, Tenant: "q2", Body: []byte("late"), Delay: time.Second}
	_, err = q.Enqueue(e.ctx, late)
	require.NoError(e.t, err)
	held, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 4, Lease: 2 * time.Second})
	require.NoError(e.t, err)
	require.NotEmpty(e.t, held)
	e.clock.advance(3 * time.Second) // what was received is not acked
	var order []string
	for range 8 {
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
		require.NoError(e.t, err)
		require.NotEmpty(e.t, claims)
		order = append(order, bodies(claims[0].Items)...)
		require.NoError(e.t, q.Ack(e.ctx, claims[0]))
	}
	require.Contains(e.t, order, "late")
	require.Contains(e.t, order, "q1")
}

// TestFairFindsAll: by turns, as by age, every message is found, by two handles that meet, whatever fails.
func TestFairFindsAll(t *testing.T) {
	onEngines(t, func(e *env) {
		q := e.configured(layer.Config{Shards: 16, Fair: true})
		other, err := layer.Open(e.ctx, e.db, testPrefix, "configured", e.options(6))
		require.NoError(e.t, err)
		_, err = q.Enqueue(e.ctx, loudAndQuiet(40, "q1", "q2", "q3", "q4", "q5")...)
		require.NoError(e.t, err)
		seen := make(map[string]bool)
		for i := 0; len(seen) < 45; i++ {
			h := []*layer.Queue{q, other}[i%2]
			claims, err := h.Receive(e.ctx, layer.ReceiveOptions{Max: 3})
			require.NoError(e.t, err)
			require.NotEmpty(e.t, claims)
			for _, c := range claims {
				require.False(e.t, seen[string(c.Items[0].Body)])
				seen[string(c.Items[0].Body)] = true
				require.NoError(e.t, h.Ack(e.ctx, c))
			}
		}
	})
}
