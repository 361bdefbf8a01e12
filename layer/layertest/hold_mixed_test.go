package layer_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

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
