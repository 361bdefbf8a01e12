package layer_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// inTurn makes a queue with a lease for each item, in addition to the test's own, and returns handles on it.
func (e *env) inTurn(name string, change func(*layer.Config), handles int) []*layer.Queue {
	e.t.Helper()
	return e.unordered(name, func(c *layer.Config) {
		c.Unordered, c.LeasePerItem = false, true
		if change != nil {
			change(c)
		}
	}, handles)
}

// TestLapsedBehindAFreeHead (lease_per=item): a free head leads a receive to the group. The receive also gets the
// messages behind it if their leases or retry delays have ended. So do a receive that names the group, and a take.
func TestLapsedBehindAFreeHead(t *testing.T) {
	onEngines(t, func(e *env) {
		for n, end := range []func(q *layer.Queue, claims []*layer.Claim){
			func(q *layer.Queue, claims []*layer.Claim) { // the head is given back, the others lapse
				require.NoError(e.t, q.Nack(e.ctx, claims[0], layer.NackOptions{Release: true}))
			},
			func(q *layer.Queue, claims []*layer.Claim) { // the others wait for a retry
				require.NoError(e.t, q.Nack(e.ctx, claims[2], layer.NackOptions{Delay: 5 * time.Second}))
				require.NoError(e.t, q.Nack(e.ctx, claims[1], layer.NackOptions{Delay: 9 * time.Second}))
				require.NoError(e.t, q.Nack(e.ctx, claims[0], layer.NackOptions{Release: true}))
			},
			func(*layer.Queue, []*layer.Claim) {}, // all lapse
		} {
			for _, take := range []bool{false, true} {
				name := fmt.Sprintf("behind-%d-%t", n, take)
				q := e.inTurn(name, nil, 1)[0]
				_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("a")},
					layer.Message{Group: "A", Body: []byte("b")}, layer.Message{Group: "A", Body: []byte("c")})
				require.NoError(e.t, err)
				claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 10, Lease: 10 * time.Second})
				require.NoError(e.t, err)
				require.Len(e.t, claims, 3)
				end(q, claims)
				e.clock.advance(11 * time.Second)
				stats, err := q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(e.t, err)
				require.EqualValues(e.t, 1, stats.ReadyGroups)
				var got string
				if take {
					require.NoError(e.t, q.Once(e.ctx, func(tx kv.Tx) error {
						items, _, err := q.TakeTx(e.ctx, tx, 10, layer.TakeOptions{})
						got = ""
						for _, item := range items {
							got += string(item.Body)
						}
						return err
					}))
					e.wholeOrLess("abc", got)
				} else {
					claims, err = q.Receive(e.ctx, layer.ReceiveOptions{Max: 10, CountExpired: true})
					require.NoError(e.t, err)
					e.wholeOrLess("abc", bodiesInTurn(claims))
				}
				e.sound(name)
			}
		}
	})
}

// TestLargeBatchComesBackWhole (lease_per=item): the process with a batch of a group dies, so that all its leases
// lapse. The next receive gets the whole batch: what is left of the group would wait until the messages before it are
// settled.
func TestLargeBatchComesBackWhole(t *testing.T) {
	for _, n := range []int{10, 30, 90} {
		e := newClockedEnv(t)
		q := e.inTurn("batch", nil, 1)[0]
		var all string
		for i := range n {
			body := fmt.Sprint(i, " ")
			_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte(body)})
			require.NoError(t, err)
			all += body
		}
		for range 2 {
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: n, CountExpired: true})
			require.NoError(t, err)
			require.Equal(t, all, bodiesInTurn(claims))
			e.clock.advance(time.Hour)
		}
		e.sound("batch")
	}
}

// wholeOrLess requires all free messages. With faults a transaction may end fewer holds, so it then requires only the
// first ones.
func (e *env) wholeOrLess(all, got string) {
	e.t.Helper()
	if e.plan.Chances == nil {
		require.Equal(e.t, all, got)
	}
	require.NotEmpty(e.t, got)
	require.True(e.t, strings.HasPrefix(all, got), got)
}

// bodiesInTurn returns the bodies of all items of claims, in order.
func bodiesInTurn(claims []*layer.Claim) (all string) {
	for _, c := range claims {
		for _, item := range c.Items {
			all += string(item.Body)
		}
	}
	return all
}

// TestPlaceAfterALease (lease_per=item): a group that comes back after a lease or a retry delay comes before groups
// that became ready later, with each schedule and strategy.
func TestPlaceAfterALease(t *testing.T) {
	for _, robin := range []bool{false, true} {
		for _, strategy := range []layer.Strategy{layer.FillGroup, layer.Layers, layer.Heads} {
			for _, delayed := range []bool{false, true} {
				t.Run(fmt.Sprintf("round robin %t, %v, delayed %t", robin, strategy, delayed), func(t *testing.T) {
					e := newClockedEnv(t)
					q := e.inTurn("place", func(c *layer.Config) { c.RoundRobin = robin }, 1)[0]
					send := func(group string) {
						_, err := q.Enqueue(e.ctx, layer.Message{Group: group, Body: []byte(group)})
						require.NoError(t, err)
					}
					send("A")
					claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Lease: 10 * time.Second})
					require.NoError(t, err)
					require.Len(t, claims, 1)
					if delayed {
						require.NoError(t, q.Nack(e.ctx, claims[0], layer.NackOptions{Delay: 10 * time.Second}))
					}
					e.clock.advance(20 * time.Second)
					send("B")
					send("C")
					claims, err = q.Receive(e.ctx, layer.ReceiveOptions{Max: 2, Strategy: strategy, CountExpired: true})
					require.NoError(t, err)
					require.Equal(t, "AB", bodiesInTurn(claims))
					e.sound("place")
				})
			}
		}
	}
}

// TestWorkerInTurn (G1, G2): workers handle the messages of a group one after the other, in order, each once.
func TestWorkerInTurn(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.inTurn("worked", nil, 1)[0]
	const groups, each = 3, 6
	for n := range groups * each {
		_, err := q.Enqueue(e.ctx, layer.Message{Group: fmt.Sprint(n % groups), Body: []byte(fmt.Sprint(n / groups))})
		require.NoError(t, err)
	}
	var mu sync.Mutex
	running, handled := make(map[string]bool), make(map[string][]string)
	all := make(chan struct{})
	w, err := worker.New(q, worker.Handle(func(_ context.Context, d *worker.Delivery) error {
		mu.Lock()
		beside := running[d.ID.Group]
		running[d.ID.Group] = true
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		defer mu.Unlock()
		running[d.ID.Group] = false
		if handled[d.ID.Group] = append(handled[d.ID.Group], string(d.Body)); beside {
			return fmt.Errorf("two messages of %q are handled side by side", d.ID.Group)
		}
		done := 0
		for _, bodies := range handled {
			done += len(bodies)
		}
		if done == groups*each {
			close(all)
		}
		return nil
	}), worker.Options{Concurrency: 4})
	require.NoError(t, err)
	w.Start()
	<-all
	require.NoError(t, w.Stop(e.ctx))
	for group, bodies := range handled {
		require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, bodies, "group %q", group)
	}
}

// TestLeasePerItemIsChecked: what a queue with a lease for each item cannot do is an error that says so.
func TestLeasePerItemIsChecked(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.inTurn("checked", nil, 1)[0]
	for _, o := range []layer.ReceiveOptions{
		{Unordered: true}, {State: true}, {Where: layer.Template{"state": "NEW"}},
	} {
		_, err := q.Receive(e.ctx, o)
		require.ErrorIs(t, err, layer.ErrOptions, "%+v", o)
	}
	for _, bad := range []layer.Config{
		{Facets: []string{"state"}, Views: "state"}, {OnFailure: layer.HaltGroup}, {Unordered: true},
		{MaxRate: layer.Rate{Count: 1, Per: time.Second}},
	} {
		bad.LeasePerItem = true
		_, err := layer.Create(e.ctx, e.db, testPrefix, "bad", layer.Options{Config: bad})
		require.ErrorIs(t, err, layer.ErrOptions)
		require.ErrorContains(t, err, "lease_per=item")
	}
	_, _, err := q.Admin().Configure(e.ctx, func(c *layer.Config) { c.LeasePerItem = false })
	require.ErrorContains(t, err, "fixed at creation")
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	same := func(*layer.Message) error { return nil }
	require.ErrorIs(t, q.Settle(e.ctx, advanceBy(claims[0], same)), layer.ErrOptions)
	require.ErrorIs(t, q.Settle(e.ctx, ackingState(claims[0], []byte("x"))), layer.ErrOptions)
	require.NoError(t, q.Ack(e.ctx, claims[0]))
	require.ErrorIs(t, q.Ack(e.ctx, claims[0]), layer.ErrClaimLost)
}

// TestConsumersInTurnAtOnce (G1, G2, G3): with producers and consumers at the same time and under faults, no item has
// two holders, none is delivered while one before it is in flight elsewhere, and all items are finished once.
func TestConsumersInTurnAtOnce(t *testing.T) {
	onEngines(t, func(e *env) {
		e.consumeAtOnce(e.inTurn("line", nil, 6), func(i int) layer.ReceiveOptions {
			return layer.ReceiveOptions{Max: 1 + i}
		})
	})
}
