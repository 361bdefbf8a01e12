package layer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// freeing is something that makes an item of group A free, in an unordered queue.
type freeing struct {
	setup func(h *env) any
	frees func(h *env, c *layer.Claim) error
}

// holdingGroup sends, and claims the group up to the first item.
func holdingGroup(n int) func(h *env) any {
	return func(h *env) any {
		h.sendN(n)
		return h.claimOne(layer.ReceiveOptions{Max: 1})
	}
}

// frees are all that make an item free, by name.
func frees() map[string]freeing {
	pause := func(h *env) any {
		h.sendN(1)
		_, err := h.q.Admin().PauseGroup(h.ctx, "A", layer.PauseOptions{})
		require.NoError(h.t, err)
		return nil
	}
	return map[string]freeing{
		"enqueue":               {having(), func(h *env, _ *layer.Claim) error { h.sendN(1); return nil }},
		"enqueue behind a hold": {holdingOne(1), func(h *env, _ *layer.Claim) error { h.sendN(1); return nil }},
		"end of a claim of a group": {holdingGroup(2), func(h *env, c *layer.Claim) error {
			return h.q.Ack(h.ctx, c)
		}},
		"nack of a claim of a group": {holdingGroup(1), func(h *env, c *layer.Claim) error {
			return h.q.Nack(h.ctx, c, layer.NackOptions{Release: true})
		}},
		"nack of a hold": {holdingOne(1), func(h *env, c *layer.Claim) error {
			return h.q.Nack(h.ctx, c, layer.NackOptions{Release: true})
		}},
		"forced release of a hold": {holdingOne(1), func(h *env, c *layer.Claim) error {
			_, err := h.q.Admin().ForceRelease(h.ctx, "A", layer.ForceReleaseOptions{Hold: c.Hold})
			return err
		}},
		"resume of the group": {pause, func(h *env, _ *layer.Claim) error {
			_, err := h.q.Admin().ResumeGroup(h.ctx, "A", layer.ResumeOptions{})
			return err
		}},
		"redrive": {func(h *env) any {
			c := holdingOne(1)(h).(*layer.Claim)
			require.NoError(h.t, h.q.Nack(h.ctx, c, layer.NackOptions{Reject: "no use"}))
			return nil
		}, func(h *env, _ *layer.Claim) error {
			_, err := h.q.Admin().Redrive(h.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
			return err
		}},
	}
}

// TestWaitUnordered: an unordered receive that waits is woken by everything that makes an item free, without the help
// of its poll. Its request is gone afterwards.
func TestWaitUnordered(t *testing.T) {
	for name, f := range frees() {
		for how, o := range map[string]layer.ReceiveOptions{
			"any": {Unordered: true, Max: 1}, "group": {Unordered: true, Max: 1, Group: layer.OnlyGroup("A")},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, anyEngine, false)
				// Only a wake can end the wait, neither a poll nor the end of a lease.
				q := e.unordered("lanes", func(c *layer.Config) { c.Lease = layer.MaxLease }, 1)[0]
				h := e.on(q)
				given := f.setup(h)
				w := e.waitOn("lanes", 2, never, o)
				byTemplate, named := e.laneRequests()
				require.Equal(t, 1, byTemplate+named)
				require.NoError(t, f.frees(h, claimOf(given)))
				claim := w.get(t)
				require.Equal(t, "A", claim.Group)
				require.Equal(t, claim.Items[0].ID, claim.Hold)
				require.NoError(t, w.q.Close(e.ctx))
				byTemplate, named = e.laneRequests()
				require.Zero(t, byTemplate+named)
			})
		}
	}
}

// TestWaitUnorderedIsPassedOn: of several items of one group that come at once, for which one handle is woken, those
// that the handle does not take are taken by the next, without the help of a poll.
func TestWaitUnorderedIsPassedOn(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.unordered("lanes", nil, 1)[0]
	const handles = 6
	var waiters []*waiter
	for n := range uint64(handles) {
		waiters = append(waiters, e.waitOn("lanes", 20+n, never, layer.ReceiveOptions{Unordered: true, Max: 1}))
		e.clock.advance(time.Millisecond)
	}
	// A message that comes before a request is written waits for the handle's poll, and there is none here.
	require.Eventually(t, func() bool { n, _ := e.laneRequests(); return n == handles }, time.Minute, time.Millisecond)
	msgs := make([]layer.Message, handles)
	for i := range msgs {
		msgs[i].Group = "A"
	}
	_, err := q.Enqueue(e.ctx, msgs...)
	require.NoError(t, err)
	got := make(map[layer.ID]bool)
	for _, w := range waiters {
		got[w.get(t).Hold] = true
	}
	require.Len(t, got, handles)
}

// TestWaitUnorderedByTheClock: an item whose hold lapses, or whose delay ends, is delivered at that time, not at a
// poll.
func TestWaitUnorderedByTheClock(t *testing.T) {
	for name, setup := range map[string]func(h *env){
		"lease": func(h *env) {
			h.sendN(1)
			h.claimOne(layer.ReceiveOptions{Unordered: true, Max: 1, Lease: 7 * time.Second})
		},
		"lease of the group": func(h *env) {
			h.sendN(1)
			h.claimOne(layer.ReceiveOptions{Max: 1, Lease: 7 * time.Second})
		},
		"retry delay": func(h *env) {
			c := holdingOne(1)(h).(*layer.Claim)
			require.NoError(h.t, h.q.Nack(h.ctx, c, layer.NackOptions{Delay: 7 * time.Second}))
		},
		"delayed message": func(h *env) {
			_, err := h.q.Enqueue(h.ctx, layer.Message{Group: "A", Delay: 7 * time.Second})
			require.NoError(h.t, err)
		},
	} {
		for how, o := range map[string]layer.ReceiveOptions{
			"any":   {Unordered: true, Wait: time.Minute},
			"group": {Unordered: true, Wait: time.Minute, Group: layer.OnlyGroup("A")},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newEnv(t, inMemory, false)
					e.clock.real.Store(true)
					h := e.on(e.unordered("lanes", nil, 1)[0])
					setup(h)
					begun := time.Now()
					claims, err := h.q.Receive(e.ctx, o)
					require.NoError(t, err)
					require.Len(t, claims, 1)
					require.InDelta(t, 7*time.Second, time.Since(begun), float64(10*time.Millisecond))
					require.LessOrEqual(t, h.q.Paths().Looks, int64(9+12)) // polls, and at 0.25, 0.5 … 512 ms
					require.NoError(t, h.q.Close(e.ctx))
				})
			})
		}
	}
}
