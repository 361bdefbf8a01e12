package layer_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// consumersRun is a run of producers and consumers at the same time and under faults.
type consumersRun struct {
	*env
	left atomic.Int64

	mu   sync.Mutex
	sent map[string][]layer.ID // guarded by mu; of each group, in order
	held map[layer.ID]bool     // guarded by mu
	done map[layer.ID]bool     // guarded by mu: acked, or about to be
	err  error                 // guarded by mu
}

// TestMixedConsumersAtOnce (G2): producers, consumers of groups and unordered consumers run at the same time and under
// faults. No item has two holders, a consumer of groups sees no gap, and all items are finished once.
func TestMixedConsumersAtOnce(t *testing.T) {
	onEngines(t, func(e *env) {
		e.consumeAtOnce(e.unordered("mixed", nil, 7), func(i int) layer.ReceiveOptions {
			return layer.ReceiveOptions{Unordered: i < 3, Max: 1 + i%3}
		})
	})
}

// consumeAtOnce sends messages by the first handle, and receives by all others with the options that of returns.
func (e *env) consumeAtOnce(handles []*layer.Queue, of func(i int) layer.ReceiveOptions) {
	const groups, messages = 3, 20
	r := &consumersRun{
		env: e, sent: make(map[string][]layer.ID), held: make(map[layer.ID]bool), done: make(map[layer.ID]bool),
	}
	r.left.Store(groups * messages)
	var all sync.WaitGroup
	for g := range groups {
		all.Go(func() {
			for range messages {
				sent, err := handles[0].Enqueue(r.ctx, layer.Message{Group: fmt.Sprint(g)})
				if r.fail(err) {
					return
				}
				r.mu.Lock()
				r.sent[sent[0].ID.Group] = append(r.sent[sent[0].ID.Group], sent[0].ID)
				r.mu.Unlock()
			}
		})
	}
	for i, q := range handles[1:] {
		all.Go(func() { r.consume(q, of(i)) })
	}
	all.Wait()
	require.NoError(e.t, r.err)
}

func (r *consumersRun) fail(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	return r.err != nil
}

func (r *consumersRun) consume(q *layer.Queue, o layer.ReceiveOptions) {
	for n := 0; r.left.Load() > 0 && !r.fail(nil); n++ {
		claims, err := q.Receive(r.ctx, o)
		if r.fail(err) || r.fail(r.got(claims, !o.Unordered)) {
			return
		}
		for i := range claims {
			c := claims[(i+n)%len(claims)] // in any order
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

// got notes the items of a receive. In order, each item before one of them must be finished or among them.
func (r *consumersRun) got(claims []*layer.Claim, inOrder bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := make(map[layer.ID]bool)
	for _, c := range claims {
		for _, item := range c.Items {
			if r.held[item.ID] || r.done[item.ID] {
				return fmt.Errorf("%s is in two hands, or was finished", item.ID)
			}
			r.held[item.ID], own[item.ID] = true, true
		}
		last := c.Items[len(c.Items)-1].ID
		for _, id := range r.sent[c.Group] {
			if inOrder && id.Index < last.Index && !own[id] && !r.done[id] {
				return fmt.Errorf("a gap: %s was delivered before %s", last, id)
			}
		}
	}
	return nil
}

// release notes that a claim is about to end.
func (r *consumersRun) release(c *layer.Claim, done bool) {
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

// TestOthersLeaveTheAttemptsOfAHeldItem (G7): items before and behind an item under a hold are taken together, or pass
// their retention together. The failed attempts of the held item still count.
func TestOthersLeaveTheAttemptsOfAHeldItem(t *testing.T) {
	for name, remove := range map[string]func(e *env, q *layer.Queue){
		"taken": func(e *env, q *layer.Queue) {
			_, err := kv.Run(e.ctx, e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				taken, _, err := q.TakeTx(e.ctx, tx, 2, layer.TakeOptions{Unordered: true})
				require.Len(t, taken, 2)
				return err
			})
			require.NoError(e.t, err)
		},
		"past retention": func(e *env, q *layer.Queue) {
			e.clock.advance(time.Hour + time.Minute)
			_, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true, Max: 3})
			require.NoError(e.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			q := e.unordered("holds", func(c *layer.Config) {
				c.Retention, c.DeadLetterExpired = time.Hour, true
			}, 1)[0]
			_, err := q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Group: "A"}, layer.Message{Group: "A"})
			require.NoError(t, err)
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true, Max: 3})
			require.NoError(t, err)
			require.Len(t, claims, 3)
			held := claims[1].Items[0].ID
			nack := layer.NackOptions{Delay: 2 * time.Hour, Err: errors.New("failed")}
			require.NoError(t, q.Nack(e.ctx, claims[1], nack))
			for _, c := range []*layer.Claim{claims[0], claims[2]} {
				require.NoError(t, q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
			}
			remove(e, q)
			e.clock.advance(2 * time.Hour)
			_, err = q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true}) // the held item is past its retention, too
			require.NoError(t, err)
			page, err := q.Admin().DeadLetters(e.ctx, layer.DeadOptions{})
			require.NoError(t, err)
			i := slices.IndexFunc(page.Letters, func(l layer.DeadLetter) bool { return l.ID == held })
			require.GreaterOrEqual(t, i, 0)
			require.Equal(t, 1, page.Letters[i].Attempts)
		})
	}
}
