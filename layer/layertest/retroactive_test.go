package layer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// retroactive gives the queue retroactive delay, and the delay d.
func (e *env) retroactive(d time.Duration) {
	e.t.Helper()
	e.configure(func(c *layer.Config) { c.RetroactiveDelay, c.Delay = true, d })
}

// bodiesOf receives and acks the next claim; nil = nothing is ready.
func (e *env) bodiesOf(q *layer.Queue) []string {
	e.t.Helper()
	c := e.receive(q, 10)
	if c == nil {
		return nil
	}
	require.NoError(e.t, q.Ack(e.ctx, c))
	return bodies(c.Items)
}

// TestRetroactiveDelay: a longer and a shorter delay hold for the messages that wait, ready ones and delayed ones,
// heads and those behind, on every handle, and a message with a time of its own keeps it.
func TestRetroactiveDelay(t *testing.T) {
	onEngines(t, func(e *env) {
		other := e.handle(2)
		e.retroactive(0)
		follow := func() { e.clock.advance(time.Second) }
		e.enqueue("A", "a1", "a2")
		e.retroactive(time.Minute) // A was ready
		follow()
		require.Nil(e.t, e.receive(other, 1))
		e.enqueue("B", "b1")
		e.check()
		stats, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 3, stats.Delayed)
		require.EqualValues(e.t, 2, stats.DelayedGroups)

		e.clock.advance(10 * time.Second)
		e.retroactive(5 * time.Second) // shorter: A and B are due
		follow()
		require.Equal(e.t, []string{"a1", "a2"}, e.bodiesOf(other))
		require.Equal(e.t, []string{"b1"}, e.bodiesOf(other))

		e.retroactive(time.Minute)
		sent, err := e.q.Enqueue(e.ctx, layer.Message{Group: "C", Body: []byte("c1"), AtOnce: true},
			layer.Message{Group: "C", Body: []byte("c2")},
			layer.Message{Group: "D", Body: []byte("d1"), Delay: 10 * time.Second},
			layer.Message{Group: "E", Body: []byte("e1"), DeliverAt: e.clock.now()})
		require.NoError(e.t, err)
		e.retroactive(2 * time.Minute)
		follow()
		require.Equal(e.t, []string{"c1"}, e.bodiesOf(other), "c2 waits")
		require.Equal(e.t, []string{"e1"}, e.bodiesOf(other))
		require.Nil(e.t, e.receive(other, 1))
		why, err := e.calm().Admin().Why(e.ctx, sent[1].ID, nil)
		require.NoError(e.t, err)
		require.Equal(e.t, layer.CauseItemDelayed, why.Reasons[0].Cause)
		require.Equal(e.t, 2*time.Minute-time.Second, why.Reasons[0].Left)
		e.clock.advance(10 * time.Second)
		require.Equal(e.t, []string{"d1"}, e.bodiesOf(other), "it has a time of its own")
		e.check()
		e.clock.advance(49 * time.Second)
		require.Nil(e.t, e.receive(other, 1), "the delay was a minute")
		e.retroactive(0)
		follow()
		require.Equal(e.t, []string{"c2"}, e.bodiesOf(other))
	})
}

// TestRetroactiveDelayModel: random enqueues, changes of the delay and actions of operators. At each time a group
// delivers its messages up to the first that is not due by the present delay. With a lease for each item messages stay
// in flight during a change, and are returned under another delay. A group then delivers up to the first message in
// flight.
func TestRetroactiveDelayModel(t *testing.T) {
	for _, config := range []layer.Config{
		{}, {Unordered: true}, {Facets: []string{"kind"}, Views: "*; kind"}, {LeasePerItem: true},
	} {
		name := fmt.Sprintf(
			"unordered=%v,facets=%d,per_item=%v", config.Unordered, len(config.Facets), config.LeasePerItem)
		t.Run(name, func(t *testing.T) { onEngines(t, func(e *env) { retroactiveModel(e, config) }) })
	}
}

func retroactiveModel(e *env, config layer.Config) {
	config.Retry, config.Lease = atOnce, time.Hour
	e.q = e.configured(config)
	options := e.options(7)
	other, err := layer.Open(e.ctx, e.db, testPrefix, e.q.Name(), options)
	require.NoError(e.t, err)
	rng := rand.New(rand.NewPCG(e.seed, 3))
	e.retroactive(0)
	type message struct {
		id            layer.ID
		enqueued, own time.Time // own: zero = by the delay of the queue
	}
	groups, delay := map[string][]message{}, time.Duration(0)
	var kept []*layer.Claim // of one message each
	inHand := func(id layer.ID) bool {
		return slices.ContainsFunc(kept, func(c *layer.Claim) bool { return c.Hold == id })
	}
	settle := func(q *layer.Queue, c *layer.Claim) {
		switch n := rng.IntN(4); {
		case n == 0:
			require.NoError(e.t, q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
		case n == 1 && config.LeasePerItem:
			kept = append(kept, c)
		default:
			require.NoError(e.t, q.Ack(e.ctx, c))
			groups[c.Group] = slices.DeleteFunc(groups[c.Group], func(m message) bool {
				return slices.ContainsFunc(c.Items, func(i layer.Item) bool { return i.ID == m.id })
			})
		}
	}
	due := func(m message) time.Time {
		if m.own.IsZero() {
			return m.enqueued.Add(delay)
		}
		return m.own
	}
	draw := func() time.Duration { return time.Duration(rng.IntN(30)) * time.Second }
	for range 120 {
		e.clock.advance(time.Duration(500+rng.IntN(3000)) * time.Millisecond)
		now, group := e.clock.now(), string(rune('A'+rng.IntN(4)))
		switch list := groups[group]; rng.IntN(8) {
		case 0:
			delay = draw()
			e.retroactive(delay)
			e.clock.advance(time.Second) // that all handles follow
		case 1, 2, 3:
			m, own := layer.Message{Group: group, Headers: map[string]string{"kind": "one"}}, time.Time{}
			switch rng.IntN(4) {
			case 0:
				m.AtOnce, own = true, now
			case 1:
				m.Delay = time.Second + draw()
				own = now.Add(m.Delay)
			}
			sent, err := e.q.Enqueue(e.ctx, m)
			require.NoError(e.t, err)
			groups[group] = append(list, message{sent[0].ID, now, own})
		case 4:
			if len(list) == 0 {
				continue
			}
			i := rng.IntN(len(list))
			if inHand(list[i].id) {
				require.ErrorIs(e.t, e.q.Reschedule(e.ctx, list[i].id, now), layer.ErrInFlight)
				continue
			}
			at := now.Add(draw() - 10*time.Second)
			require.NoError(e.t, e.q.Reschedule(e.ctx, list[i].id, at))
			if old := due(list[i]); at.After(now) || old.After(now) {
				if list[i].own = at; at.Before(now) {
					list[i].own = now
				}
			}
		case 5:
			err := e.q.Admin().RetryNow(e.ctx, group, layer.RetryOptions{})
			if len(list) == 0 || inHand(list[0].id) || !due(list[0]).After(now) {
				require.ErrorIs(e.t, err, layer.ErrNotDelayed)
				continue
			}
			require.NoError(e.t, err)
			list[0].own = now
		default:
			q := e.q
			if rng.IntN(2) == 0 {
				q = other
			}
			var claims []*layer.Claim
			for more := true; more; { // a receive may give fewer than are ready: see Receive
				some, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 100})
				require.NoError(e.t, err)
				claims, more = append(claims, some...), len(some) > 0
			}
			got := map[string][]layer.ID{}
			for _, c := range claims {
				for _, item := range c.Items {
					got[c.Group] = append(got[c.Group], item.ID)
				}
			}
			want := map[string][]layer.ID{}
			for group, list := range groups {
				for _, m := range list {
					if inHand(m.id) || due(m).After(e.clock.now()) {
						break
					}
					want[group] = append(want[group], m.id)
				}
			}
			require.Equal(e.t, want, got, "delay %s", delay)
			if len(claims) == 0 && len(kept) > 0 {
				i := rng.IntN(len(kept))
				c := kept[i]
				kept = slices.Delete(kept, i, i+1)
				settle(q, c)
			}
			for _, c := range claims {
				settle(q, c)
			}
		}
		report, err := e.q.Admin().Check(e.ctx, layer.CheckOptions{})
		require.NoError(e.t, err)
		require.Empty(e.t, report.Violations)
	}
}

// TestRetroactiveDelayLonger: a handle that does not know yet that the delay is longer now leaves a head to its timer.
// It finds the timer in the same receive, because a receive reads the hints of all shards first, and the timers of most
// shards later.
func TestRetroactiveDelayLonger(t *testing.T) {
	for _, group := range []string{"A", "B"} {
		t.Run(group, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			e.configure(func(c *layer.Config) { c.Shards = 8 })
			e.retroactive(time.Second)
			ids := e.enqueue(group, "1", "2")
			other := e.handle(2)
			require.Nil(t, e.receive(other, 1)) // learns the delay
			e.retroactive(time.Minute)
			require.NoError(t, e.q.Admin().Cancel(e.ctx, ids[0])) // leaves a hint for the second
			e.clock.advance(5 * time.Second)
			require.Nil(t, e.receive(other, 1))
			e.check()
			e.clock.advance(time.Minute)
			require.Equal(t, []string{"2"}, e.bodiesOf(other))
		})
	}
}

// TestRetroactiveDelayAwaited: a receive that waits gets what a shorter delay makes due, within a second or so of the
// change, and not before; so it does when nothing changes.
func TestRetroactiveDelayAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, func(*testing.T) kv.DB { return embedded.OpenMemory(embedded.Options{}) }, false)
		e.clock.real.Store(true)
		e.configure(func(c *layer.Config) { c.RetroactiveDelay, c.Delay = true, 10*time.Minute })
		other := e.handle(2)
		wait := func() (after time.Duration) {
			begun := time.Now()
			claims, err := other.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Hour})
			require.NoError(t, err)
			require.Len(t, claims, 1)
			require.NoError(t, other.Ack(e.ctx, claims[0]))
			return time.Since(begun)
		}
		e.enqueue("A", "a1")
		require.InDelta(t, (10 * time.Minute).Seconds(), wait().Seconds(), 2)

		e.enqueue("A", "a2")
		go func() {
			time.Sleep(time.Minute)
			e.configure(func(c *layer.Config) { c.Delay = 30 * time.Second })
		}()
		require.InDelta(t, time.Minute.Seconds(), wait().Seconds(), 3)
		require.NoError(t, other.Close(e.ctx))
		require.NoError(t, e.q.Close(e.ctx))
	})
}

// TestRetroactiveDelayStays: the setting is never taken back.
func TestRetroactiveDelayStays(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.retroactive(0)
	var value *layer.ValueError
	_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.RetroactiveDelay = false })
	require.ErrorAs(t, err, &value)
}

// TestRetroactiveDelaySetInUse: messages that were delayed before the setting keep their times; those that were not
// are delayed from then on, and a raise of the shards amid loses none.
func TestRetroactiveDelaySetInUse(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	e.configure(func(c *layer.Config) { c.Delay = 20 * time.Second })
	e.enqueue("B", "b1")
	e.retroactive(time.Minute)
	e.enqueue("C", "c1")
	e.configure(func(c *layer.Config) { c.Shards = 7 })
	e.enqueue("D", "d1")
	e.clock.advance(20 * time.Second)
	require.Equal(t, []string{"b1"}, e.bodiesOf(e.q), "it has its time")
	require.Nil(t, e.receive(e.q, 1))
	e.clock.advance(40 * time.Second)
	got := append(e.bodiesOf(e.q), append(e.bodiesOf(e.q), e.bodiesOf(e.q)...)...)
	require.ElementsMatch(t, []string{"a1", "c1", "d1"}, got)
}

// TestRetroactiveDelayOtherLane: the head of two lanes leaves by a claim in one of them, and the delay is long again.
// The next message, which has a time of its own, does not wait for it in the other lane.
func TestRetroactiveDelayOtherLane(t *testing.T) {
	one := map[string]string{"kind": "one"}
	all, free, kind := layer.ReceiveOptions{}, layer.ReceiveOptions{Unordered: true}, layer.ReceiveOptions{Where: one}
	unordered := layer.Config{Unordered: true}
	facets := layer.Config{Facets: []string{"kind"}, Views: "*; kind"}
	for _, tt := range []struct {
		name       string
		config     layer.Config
		head, next layer.ReceiveOptions
	}{
		{"group, then item", unordered, all, free},
		{"item, then group", unordered, free, all},
		{"group, then lane", facets, all, kind},
		{"lane, then group", facets, kind, all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			e.q = e.configured(tt.config)
			e.retroactive(time.Hour)
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("a1"), Headers: one})
			require.NoError(t, err)
			_, err = e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("a2"), Headers: one, AtOnce: true})
			require.NoError(t, err)
			e.retroactive(0)
			tt.head.Max, tt.next.Max = 1, 1
			claims, err := e.q.Receive(e.ctx, tt.head)
			require.NoError(t, err)
			require.Len(t, claims, 1)
			require.NoError(t, e.q.Ack(e.ctx, claims[0]))
			e.retroactive(time.Hour)
			e.check()
			claims, err = e.q.Receive(e.ctx, tt.next)
			require.NoError(t, err)
			require.Len(t, claims, 1)
			require.Equal(t, []string{"a2"}, bodies(claims[0].Items))
			e.check()
		})
	}
}
