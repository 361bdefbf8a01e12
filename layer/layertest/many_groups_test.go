package layer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// groupCrowd is a handle on which a receive waits for each of many groups.
type groupCrowd struct {
	*env
	waiting  *layer.Queue
	counting *record.Recorder
	got      chan *layer.Claim
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// newGroupCrowd starts the receives of n groups of a queue. It is called in a bubble. Each receive has o besides.
func newGroupCrowd(e *env, queue string, n int, o layer.ReceiveOptions) *groupCrowd {
	c := &groupCrowd{env: e, counting: record.WrapCounting(e.db), got: make(chan *layer.Claim, n)}
	var err error
	c.waiting, err = layer.Open(e.ctx, c.counting, testPrefix, queue, e.options(2))
	require.NoError(e.t, err)
	ctx, cancel := context.WithCancel(e.ctx)
	c.cancel = cancel
	o.Wait = layer.MaxWait
	for i := range n {
		o := o
		o.Group = layer.OnlyGroup(fmt.Sprint("g", i))
		c.wg.Go(func() {
			claims, err := c.waiting.Receive(ctx, o)
			if ctx.Err() == nil {
				require.NoError(e.t, err)
				require.Len(e.t, claims, 1)
				c.got <- claims[0]
			}
		})
	}
	e.t.Cleanup(c.stop)
	time.Sleep(10 * time.Second) // until all wait, and have looked again
	return c
}

// stop ends the receives that still wait.
func (c *groupCrowd) stop() {
	c.cancel()
	c.wg.Wait()
	require.NoError(c.t, c.waiting.Close(context.Background()))
}

// served expects that the receive of the group, and no other, gets its message within the time.
func (c *groupCrowd) served(group string, within time.Duration) (at time.Time) {
	c.t.Helper()
	select {
	case claim := <-c.got:
		require.Equal(c.t, group, claim.Group)
		require.NoError(c.t, c.waiting.Ack(c.ctx, claim))
	case <-time.After(within):
		require.Fail(c.t, "the receive was not served", "%s within %v", group, within)
	}
	return time.Now()
}

// TestIdleWaitOfManyGroups: a handle whose receives name many groups looks no more often than one with a single
// receive, whatever keeps the groups from the receives. The requests are still renewed. Transactions are counted in
// virtual time, so the counts are those of every machine.
func TestIdleWaitOfManyGroups(t *testing.T) {
	const (
		watched = 120
		idle    = 1.4 // the polls, about one a second, and the renewals
	)
	long := func(c *layer.Config) { c.Lease = layer.MaxLease }
	plain := func(change func(e *env)) func(e *env) string {
		return func(e *env) string { change(e); return testQueue }
	}
	hold := func(e *env, q *layer.Queue, n int) {
		for range n {
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{MaxGroups: 1, Max: 1, Lease: layer.MaxLease})
			require.NoError(e.t, err)
			require.Len(e.t, claims, 1)
		}
	}
	for name, c := range map[string]struct {
		groups int
		most   float64 // transactions a second
		setup  func(e *env) (queue string)
	}{
		"1 empty group":    {1, idle, plain(func(*env) {})},
		"16 empty groups":  {16, idle, plain(func(*env) {})},
		"100 empty groups": {100, idle, plain(func(*env) {})},
		"300 empty groups": {300, idle, plain(func(*env) {})},
		"300 empty groups beside others": {300, idle, plain(func(e *env) {
			for i := range 300 {
				e.fill(fmt.Sprint("g", i, " other"), 1)
			}
		})},
		"300 groups in flight": {300, idle, plain(func(e *env) {
			for i := range 300 {
				e.fill(fmt.Sprint("g", i), 1)
			}
			hold(e, e.q, 300)
		})},
		"300 delayed groups": {300, idle, plain(func(e *env) {
			for i := range 300 {
				_, err := e.q.Enqueue(e.ctx, layer.Message{Group: fmt.Sprint("g", i), Delay: time.Hour})
				require.NoError(e.t, err)
			}
		})},
		"300 paused groups": {300, idle, plain(func(e *env) {
			for i := range 300 {
				e.fill(fmt.Sprint("g", i), 1)
				_, err := e.q.Admin().PauseGroup(e.ctx, fmt.Sprint("g", i), layer.PauseOptions{})
				require.NoError(e.t, err)
			}
		})},
		"300 groups over their rate": {300, idle, plain(func(e *env) {
			rated("1/h", having())(e)
			for i := range 300 {
				e.fill(fmt.Sprint("g", i), 2)
			}
			for range 300 {
				require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
			}
		})},
		"300 groups while the queue is over its rate": {300, 2*idle + 0.4, // each look asks for a portion of the rate
			plain(func(e *env) {
				totalled("1/h", having())(e)
				for i := range 300 {
					e.fill(fmt.Sprint("g", i), 1)
				}
				require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
			})},
		"300 groups with messages in flight": {300, idle, func(e *env) string {
			q := e.inTurn("lanes", long, 1)[0]
			for i := range 300 {
				m := layer.Message{Group: fmt.Sprint("g", i)}
				_, err := q.Enqueue(e.ctx, m, m)
				require.NoError(e.t, err)
			}
			hold(e, q, 300)
			return "lanes"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, inMemory, false)
				e.clock.real.Store(true)
				queue := c.setup(e)
				w := newGroupCrowd(e, queue, c.groups, layer.ReceiveOptions{})
				before := w.counting.Counters()
				time.Sleep(watched * time.Second)
				d := w.counting.Counters().Sub(before)
				transactions := float64(d.Commits+d.Conflicts+d.Failures) / watched
				t.Logf("%.2f transactions and %.0f reads a second", transactions, float64(d.Reads)/watched)
				require.LessOrEqual(t, transactions, c.most)
				requests := append(append([]byte(nil), testPrefix...), tuple.Tuple{queue, "reqgroup"}.Pack()...)
				require.Len(t, e.rows(kv.PrefixRange(requests)), c.groups)
			})
		})
	}
}

// TestPollOfManyGroups: what becomes ready in any of many named groups is delivered at that time, or, if the wake is
// lost, at the next poll.
func TestPollOfManyGroups(t *testing.T) {
	const (
		groups = 150
		poll   = time.Second*5/4 + 50*time.Millisecond
		later  = 20 * time.Second
	)
	plain := func(e *env) *layer.Queue { return e.q }
	item := layer.ReceiveOptions{Max: 1, Lease: later}
	lose := func(c *groupCrowd, q *layer.Queue, m layer.Message) {
		c.write(func(tx kv.Tx) { // no transaction knows a handle to wake
			tx.ClearRange(kv.PrefixRange(key("reqgroup")))
			tx.ClearRange(inLanes("reqgroup"))
		})
		_, err := q.Enqueue(c.ctx, m)
		require.NoError(c.t, err)
	}
	// leased claims a message before the receives begin to wait. The claim expires when they have waited for a while.
	leased := func(o layer.ReceiveOptions) func(e *env, q *layer.Queue, m layer.Message) {
		return func(e *env, q *layer.Queue, m layer.Message) {
			_, err := q.Enqueue(e.ctx, m)
			require.NoError(e.t, err)
			o.Group = layer.OnlyGroup(m.Group)
			claims, err := q.Receive(e.ctx, o)
			require.NoError(e.t, err)
			require.Len(e.t, claims, 1)
		}
	}
	for name, c := range map[string]struct {
		queue  func(e *env) *layer.Queue
		o      layer.ReceiveOptions                                 // of the receives that wait
		before func(e *env, q *layer.Queue, m layer.Message)        // what ends later; nil = ready is called
		ready  func(c *groupCrowd, q *layer.Queue, m layer.Message) // makes the group ready at once
	}{
		"lost wake": {queue: plain, ready: lose},
		"lost wake of a lane": {
			queue: func(e *env) *layer.Queue { return e.laned("lanes", "*; state; region", nil, 1)[0] },
			o:     layer.ReceiveOptions{Where: isNew}, ready: lose,
		},
		"lost wake, unordered": {
			queue: func(e *env) *layer.Queue { return e.unordered("lanes", nil, 1)[0] },
			o:     layer.ReceiveOptions{Unordered: true, Max: 1}, ready: lose,
		},
		"lost wake, in turn": {queue: func(e *env) *layer.Queue { return e.inTurn("lanes", nil, 1)[0] }, ready: lose},
		"lease":              {queue: plain, before: leased(item)},
		"lease of another lane": {
			queue:  func(e *env) *layer.Queue { return e.laned("lanes", "*; state; region", nil, 1)[0] },
			o:      layer.ReceiveOptions{Where: isNew},
			before: leased(layer.ReceiveOptions{Where: isEU, Max: 1, Lease: later}),
		},
		"lease, unordered": {
			queue:  func(e *env) *layer.Queue { return e.unordered("lanes", nil, 1)[0] },
			o:      layer.ReceiveOptions{Unordered: true, Max: 1},
			before: leased(layer.ReceiveOptions{Unordered: true, Max: 1, Lease: later}),
		},
		"lease, in turn": {
			queue: func(e *env) *layer.Queue { return e.inTurn("lanes", nil, 1)[0] }, before: leased(item),
		},
		"delay": {queue: plain, before: func(e *env, q *layer.Queue, m layer.Message) {
			m.Delay = later
			_, err := q.Enqueue(e.ctx, m)
			require.NoError(e.t, err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, inMemory, false)
				e.clock.real.Store(true)
				q := c.queue(e)
				message := func(n int) layer.Message {
					return layer.Message{Group: fmt.Sprint("g", n), Headers: facetsOf("NEW", "EU")}
				}
				const first, second, third = 3, 70, 140
				all := []int{first, second, third}
				due := make(map[int]time.Time)
				for _, n := range all {
					if c.before != nil {
						c.before(e, q, message(n))
						due[n] = time.Now().Add(later)
						time.Sleep(time.Second)
					}
				}
				w := newGroupCrowd(e, q.Name(), groups, c.o)
				for _, n := range all {
					if c.ready != nil {
						c.ready(w, q, message(n))
						w.served(message(n).Group, poll)
						continue
					}
					at := w.served(message(n).Group, later)
					require.InDelta(t, 0, at.Sub(due[n]), float64(50*time.Millisecond))
				}
			})
		})
	}
}
