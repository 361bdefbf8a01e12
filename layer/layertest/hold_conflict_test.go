package layer_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// held is an unordered queue, and a handle on it whose clock is a minute behind.
type held struct {
	*env
	q, late *layer.Queue
}

func (h *held) send(n int) {
	for range n {
		_, err := h.q.Enqueue(h.ctx, layer.Message{Group: "A"})
		require.NoError(h.t, err)
	}
}

func (h *held) claim(o layer.ReceiveOptions) *layer.Claim {
	h.t.Helper()
	claims, err := h.q.Receive(h.ctx, o)
	require.NoError(h.t, err)
	require.Len(h.t, claims, 1)
	return claims[0]
}

func waiting(n int) func(h *held) *layer.Claim {
	return func(h *held) *layer.Claim {
		h.send(n)
		return nil
	}
}

// holdingOne sends, and holds the first item by itself.
func holdingOne(n int) func(h *held) *layer.Claim {
	return func(h *held) *layer.Claim {
		h.send(n)
		return h.claim(layer.ReceiveOptions{Unordered: true, Max: 1})
	}
}

// holdingOneRetimed sends one item into a queue with retroactive delay, and holds it by itself.
func holdingOneRetimed(h *held) *layer.Claim {
	for _, d := range []time.Duration{time.Hour, 0} {
		_, _, err := h.q.Admin().Configure(h.ctx, func(c *layer.Config) { c.RetroactiveDelay, c.Delay = true, d })
		require.NoError(h.t, err)
		if d > 0 {
			h.send(1)
		}
	}
	return h.claim(layer.ReceiveOptions{Unordered: true, Max: 1})
}

func receiveIn(o layer.ReceiveOptions) func(h *held, tx kv.Tx, _ *layer.Claim) error {
	return func(h *held, tx kv.Tx, _ *layer.Claim) error {
		_, err := h.q.ReceiveTx(h.ctx, tx, o)
		return err
	}
}

// takeAny takes a free item.
func takeAny(h *held, tx kv.Tx, _ *layer.Claim) error {
	_, _, err := h.q.TakeTx(h.ctx, tx, 1, layer.TakeOptions{Unordered: true})
	return err
}

func ackHeld(h *held, tx kv.Tx, c *layer.Claim) error { return h.q.AckTx(h.ctx, tx, c) }

func nackHeld(h *held, tx kv.Tx, c *layer.Claim) error {
	return h.q.NackTx(h.ctx, tx, c, layer.NackOptions{Release: true})
}

func extendHeld(h *held, tx kv.Tx, c *layer.Claim) error {
	_, err := h.q.ExtendTx(h.ctx, tx, c, 0)
	return err
}

// sendDelayed sends an item that is due in an hour.
func (h *held) sendDelayed() {
	_, err := h.q.Enqueue(h.ctx, layer.Message{Group: "A", Delay: time.Hour})
	require.NoError(h.t, err)
}

func oneThenDelayed(h *held) *layer.Claim {
	h.send(1)
	h.sendDelayed()
	return nil
}

// holdingOneThenDelayed holds the first item by itself, and sends a second, which is delayed.
func holdingOneThenDelayed(h *held) *layer.Claim {
	c := holdingOne(1)(h)
	h.sendDelayed()
	return c
}

// hurryDelayed makes the last item of the group due in a minute.
func hurryDelayed(h *held, tx kv.Tx, _ *layer.Claim) error {
	items, err := h.q.Peek(h.ctx, "A", 10, nil)
	require.NoError(h.t, err)
	return h.q.RescheduleTx(h.ctx, tx, items[len(items)-1].ID, h.clock.now().Add(time.Minute))
}

func enqueueIn(h *held, tx kv.Tx, _ *layer.Claim) error {
	_, err := h.q.EnqueueTx(h.ctx, tx, layer.Message{Group: "A"})
	return err
}

// behind returns the options of the handle late, whose clock is a minute behind.
func (h *held) behind() layer.Options {
	o := h.options(11)
	o.Now = func() time.Time { return h.clock.now().Add(-time.Minute) }
	return o
}

// TestHoldConflicts (lanes, trap 3): operations of an unordered queue conflict if they must not happen at the same
// time, and do not conflict otherwise. After the first operation is repeated, the queue is sound.
func TestHoldConflicts(t *testing.T) {
	const must, mustNot = true, false
	one, group := receiveIn(layer.ReceiveOptions{Unordered: true, Max: 1}), receiveIn(layer.ReceiveOptions{Max: 3})
	lapsed := func(h *held) *layer.Claim {
		c := holdingOne(2)(h)
		h.clock.advance(time.Minute)
		return c
	}
	for _, p := range []pair[*held, *layer.Claim]{
		{"unordered claim, unordered claim of the same item", waiting(2), one, one, must},
		{"claim of the group, unordered claim in the group", waiting(2), group, one, must},
		{"unordered claim, claim of the group", waiting(2), one, group, must},
		{"take of the group, unordered claim in the group", waiting(2), func(h *held, tx kv.Tx, _ *layer.Claim) error {
			_, _, err := h.q.TakeTx(h.ctx, tx, 2, layer.TakeOptions{})
			return err
		}, one, must},
		{"unordered take, unordered claim of the same item", waiting(2), takeAny, one, must},
		{"unordered claim, unordered take of the same item", waiting(2), one, takeAny, must},
		{"unordered take, unordered take of the same item", waiting(2), takeAny, takeAny, must},
		{"unordered take, claim of the group", waiting(2), takeAny, group, must},
		{"claim of the group, unordered take in the group", waiting(2), group, takeAny, must},
		{"unordered take of the last free item, enqueue", waiting(1), takeAny, enqueueIn, must},
		{"unordered take that ends an expired hold, extend by its holder", lapsed, takeAny, extendHeld, must},
		{"unordered claim of the last free item, enqueue", waiting(1), one, enqueueIn, must},
		{"enqueue, unordered claim of the last free item", waiting(1), enqueueIn, one, must},
		{"ack of the only item's hold with retroactive delay, enqueue", holdingOneRetimed, ackHeld, enqueueIn, must},
		{"unordered claim of an earlier item, enqueue", waiting(2), one, enqueueIn, mustNot},
		{"unordered claim, ack of another hold of the group", holdingOne(3), one, ackHeld, mustNot},
		{"ack of a hold, unordered claim in the group", holdingOne(3), ackHeld, one, mustNot},
		{"unordered take, ack of a hold in front", holdingOne(3), takeAny, ackHeld, mustNot},
		{"unordered take, release of a hold in front", holdingOne(3), takeAny, nackHeld, must},
		{"ack of a hold, unordered take behind", holdingOne(3), ackHeld, takeAny, mustNot},
		{"unordered take, ack of a hold behind", func(h *held) *layer.Claim {
			h.send(4)
			claims, err := h.q.Receive(h.ctx, layer.ReceiveOptions{Unordered: true, Max: 4})
			require.NoError(h.t, err)
			require.Len(h.t, claims, 4)
			for _, c := range claims[:3] {
				require.NoError(h.t, h.q.Nack(h.ctx, c, layer.NackOptions{Release: true}))
			}
			return claims[3]
		}, takeAny, ackHeld, mustNot},
		{"reschedule of the next to earlier, ack of a hold in front",
			holdingOneThenDelayed, hurryDelayed, ackHeld, must},
		{"ack of a hold, reschedule of the next to earlier", holdingOneThenDelayed, ackHeld, hurryDelayed, mustNot},
		{"reschedule of the next to earlier, unordered claim in front", oneThenDelayed, hurryDelayed, one, must},
		{"unordered claim in front, reschedule of the next to earlier", oneThenDelayed, one, hurryDelayed, must},
		{"reschedule of the last to earlier, unordered claim far in front", func(h *held) *layer.Claim {
			h.send(3)
			h.sendDelayed()
			return nil
		}, hurryDelayed, one, mustNot},
		{"claim that meets a hold, release of the hold", holdingOne(2), group, nackHeld, must},
		{"release of a hold, claim that meets the hold", holdingOne(2), nackHeld, group, must},
		{"unordered claim that ends an expired hold, extend by its holder", lapsed, one, extendHeld, must},
		{"claim of the group that ends an expired hold, extend by its holder", lapsed, group, extendHeld, must},
		{"cancel of an item, unordered claim of the item", waiting(1), func(h *held, tx kv.Tx, _ *layer.Claim) error {
			items, err := h.q.Peek(h.ctx, "A", 1, nil)
			require.NoError(h.t, err)
			return h.q.Admin().CancelTx(h.ctx, tx, items[0].ID)
		}, one, must},
		{"cancel of an item, unordered take of the item", waiting(2), func(h *held, tx kv.Tx, _ *layer.Claim) error {
			items, err := h.q.Peek(h.ctx, "A", 1, nil)
			require.NoError(h.t, err)
			return h.q.Admin().CancelTx(h.ctx, tx, items[0].ID)
		}, takeAny, must},
		{"retry now by an earlier clock, unordered claim of the head", func(h *held) *layer.Claim {
			_, err := h.q.Enqueue(h.ctx, layer.Message{Group: "A", Delay: 30 * time.Second})
			require.NoError(h.t, err)
			h.clock.advance(40 * time.Second)
			return nil
		}, func(h *held, tx kv.Tx, _ *layer.Claim) error {
			return h.join(tx, "holds", h.behind(), false).RetryNow(h.ctx, "A", layer.RetryOptions{})
		}, receiveIn(layer.ReceiveOptions{Unordered: true}), must},
		{"receive that drops an old item, unordered claim by an earlier clock", func(h *held) *layer.Claim {
			h.send(1)
			h.clock.advance(90 * time.Second)
			return nil
		}, group, func(h *held, tx kv.Tx, _ *layer.Claim) error {
			claims, err := h.late.ReceiveTx(h.ctx, tx, layer.ReceiveOptions{Unordered: true})
			require.Len(h.t, claims, 1)
			return err
		}, must},
	} {
		t.Run(p.name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			h := &held{env: e}
			h.q = e.unordered("holds", func(c *layer.Config) { c.Retention = time.Minute + 10*time.Second }, 1)[0]
			var err error
			h.late, err = layer.Open(e.ctx, e.db, testPrefix, "holds", h.behind())
			require.NoError(t, err)
			p.run(e, h)()
		})
	}
}

// mixedRun is one run of TestMixedConsumersAtOnce.
type mixedRun struct {
	*env
	handles []*layer.Queue
	left    atomic.Int64

	mu   sync.Mutex
	sent map[string][]layer.ID // guarded by mu; of each group, in order
	held map[layer.ID]bool     // guarded by mu
	done map[layer.ID]bool     // guarded by mu: acked, or about to be
	err  error                 // guarded by mu
}

// TestMixedConsumersAtOnce (G2): producers, consumers of groups and unordered consumers run at the same time and under
// faults. No item has two holders, a consumer of groups sees no gap, and all items are finished once.
func TestMixedConsumersAtOnce(t *testing.T) {
	const groups, messages = 3, 20
	onEngines(t, func(e *env) {
		r := &mixedRun{env: e, handles: e.unordered("mixed", nil, 7)}
		r.sent, r.held, r.done = make(map[string][]layer.ID), make(map[layer.ID]bool), make(map[layer.ID]bool)
		r.left.Store(groups * messages)
		var all sync.WaitGroup
		for g := range groups {
			all.Go(func() {
				for range messages {
					sent, err := r.handles[0].Enqueue(r.ctx, layer.Message{Group: fmt.Sprint(g)})
					if r.fail(err) {
						return
					}
					r.mu.Lock()
					r.sent[sent[0].ID.Group] = append(r.sent[sent[0].ID.Group], sent[0].ID)
					r.mu.Unlock()
				}
			})
		}
		for i, q := range r.handles[1:] {
			all.Go(func() { r.consume(q, layer.ReceiveOptions{Unordered: i < 3, Max: 1 + i%3}) })
		}
		all.Wait()
		require.NoError(e.t, r.err)
	})
}

func (r *mixedRun) fail(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	return r.err != nil
}

func (r *mixedRun) consume(q *layer.Queue, o layer.ReceiveOptions) {
	for n := 0; r.left.Load() > 0 && !r.fail(nil); n++ {
		claims, err := q.Receive(r.ctx, o)
		if r.fail(err) || r.fail(r.got(claims)) {
			return
		}
		for i, c := range claims {
			back := (n+i)%4 == 0
			r.release(c, !back)
			if back {
				err = q.Nack(r.ctx, c, layer.NackOptions{Release: true})
			} else {
				err = q.Ack(r.ctx, c)
				r.left.Add(-int64(len(c.Items)))
			}
			if r.fail(err) {
				return
			}
		}
		runtime.Gosched()
	}
}

// got notes the items of claims.
func (r *mixedRun) got(claims []*layer.Claim) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range claims {
		for _, item := range c.Items {
			if r.held[item.ID] || r.done[item.ID] {
				return fmt.Errorf("%s is in two hands, or was finished", item.ID)
			}
			r.held[item.ID] = true
		}
		if c.Hold != (layer.ID{}) {
			continue
		}
		last := c.Items[len(c.Items)-1].ID
		own := make(map[layer.ID]bool)
		for _, item := range c.Items {
			own[item.ID] = true
		}
		for _, id := range r.sent[c.Group] {
			if id.Index < last.Index && !own[id] && !r.done[id] {
				return fmt.Errorf("a gap: %s was delivered before %s", last, id)
			}
		}
	}
	return nil
}

// release notes that a claim is about to end.
func (r *mixedRun) release(c *layer.Claim, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range c.Items {
		delete(r.held, item.ID)
		if done {
			r.done[item.ID] = true
		}
	}
}

// TestRetryNowOfAHeldItem (G2): an operator whose clock is behind takes a head for delayed which is in another's hand
// by itself, or waits by itself since it was given back. The head is not changed there.
func TestRetryNowOfAHeldItem(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.unordered("holds", nil, 1)[0]
	o := e.options(11)
	o.Now = func() time.Time { return e.clock.now().Add(-time.Minute) }
	late, err := layer.Open(e.ctx, e.db, testPrefix, "holds", o)
	require.NoError(t, err)
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: 30 * time.Second})
	require.NoError(t, err)
	e.clock.advance(40 * time.Second)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.ErrorIs(t, late.Admin().RetryNow(e.ctx, "A", layer.RetryOptions{}), layer.ErrNotDelayed)
	e.sound("holds")
	require.NoError(t, q.Nack(e.ctx, claims[0], layer.NackOptions{Delay: time.Hour}))
	require.ErrorIs(t, late.Admin().RetryNow(e.ctx, "A", layer.RetryOptions{}), layer.ErrNotDelayed)
	e.sound("holds")
	require.NoError(t, late.Close(e.ctx))
}
