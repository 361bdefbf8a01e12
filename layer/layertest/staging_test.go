package layer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// never is a poll that does not come to the rescue: what then returns was woken.
const never = time.Hour

// waiter is a handle of its own, as a process has, with one receive that waits.
type waiter struct {
	q      *layer.Queue
	claims chan []*layer.Claim
	cancel context.CancelFunc
}

// wait opens a handle that polls at the given pace, and starts a receive of one group. It returns when the receive is
// staged and the handle has looked and found nothing.
func (e *env) wait(n uint64, poll time.Duration, o layer.ReceiveOptions) *waiter {
	e.t.Helper()
	return e.waitOn(testQueue, n, poll, o)
}

func (e *env) waitOn(queue string, n uint64, poll time.Duration, o layer.ReceiveOptions) *waiter {
	e.t.Helper()
	return e.waitWith(queue, n, func(o *layer.Options) { o.Poll, o.Test.NoLooks = poll, poll == never }, o)
}

func (e *env) waitWith(queue string, n uint64, change func(o *layer.Options), o layer.ReceiveOptions) *waiter {
	e.t.Helper()
	options := e.options(n)
	change(&options)
	q, err := layer.Open(e.ctx, e.db, testPrefix, queue, options)
	require.NoError(e.t, err)
	ctx, cancel := context.WithCancel(e.ctx)
	w := &waiter{q: q, claims: make(chan []*layer.Claim, 1), cancel: cancel}
	o.Wait, o.MaxGroups = layer.MaxWait, 1
	go func() {
		claims, err := q.Receive(ctx, o)
		if err != nil && ctx.Err() == nil {
			e.t.Errorf("receive: %v", err)
		}
		w.claims <- claims
	}()
	e.t.Cleanup(func() {
		cancel()
		require.NoError(e.t, q.Close(context.Background()))
	})
	require.Eventually(e.t, func() bool { return q.Paths().Looks > 0 }, time.Minute, time.Millisecond)
	return w
}

func (e *env) requests() int { return len(e.rows(kv.PrefixRange(key("request")))) }

func (w *waiter) get(t *testing.T) *layer.Claim {
	t.Helper()
	select {
	case claims := <-w.claims:
		require.Len(t, claims, 1)
		return claims[0]
	case <-time.After(time.Minute):
		require.Fail(t, "the receive was not woken")
		return nil
	}
}

// onMemory runs a test without and with faults.
func onMemory(t *testing.T, test func(e *env)) {
	for _, faults := range []bool{false, true} {
		t.Run(fmt.Sprintf("faults=%v", faults), func(t *testing.T) {
			t.Parallel()
			test(newEnv(t, anyEngine, faults))
		})
	}
}

// TestWaitEndsWhenAGroupBecomesReady: a receive that waits is woken by everything that makes a group ready, without
// the help of its poll.
func TestWaitEndsWhenAGroupBecomesReady(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setup func(e *env) any
		ready func(e *env, given any)
	}{
		"enqueue": {having(), func(e *env, _ any) { e.enqueue("A", "a1") }},
		"enqueue in the caller's transaction": {having(), func(e *env, _ any) {
			require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error { return enqueueTo("A")(e, tx, nil) }))
		}},
		"ack that leaves items": {holding(2, 1), func(e *env, c any) { require.NoError(e.t, e.q.Ack(e.ctx, c.(*layer.Claim))) }},
		"nack":                  {holding(1, 1), func(e *env, c any) { require.NoError(e.t, nackWith(layer.NackOptions{})(e, c)) }},
		"release":               {holding(1, 1), func(e *env, c any) { require.NoError(e.t, nackWith(layer.NackOptions{Release: true})(e, c)) }},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			given := c.setup(e)
			w := e.wait(2, never, layer.ReceiveOptions{})
			c.ready(e, given)
			claim := w.get(t)
			require.Equal(t, "A", claim.Group)
			require.EqualValues(t, 1, w.q.Paths().Staged)
			require.NoError(t, w.q.Ack(e.ctx, claim))
			require.Zero(t, e.requests(), "the request went with the claim")
		})
	}
	// A waiting handle finds groups that become ready at a time by its own clock.
	for name, ready := range map[string]func(e *env, c *layer.Claim) error{
		"end of a lease": func(e *env, c *layer.Claim) error { _, err := e.q.Extend(e.ctx, c, time.Second); return err },
		"end of a delay": func(e *env, c *layer.Claim) error {
			return e.q.Nack(e.ctx, c, layer.NackOptions{Delay: time.Second})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calmly(t, func(t *testing.T, open func(t *testing.T) kv.DB) {
				// The first look is before the time that it waits for.
				e := newEnv(t, open, false)
				e.clock.real.Store(true)
				c := holding(1, 1)(e).(*layer.Claim)
				require.NoError(t, ready(e, c))
				w := e.wait(2, never, layer.ReceiveOptions{})
				claim := w.get(t)
				require.Equal(t, 1, claim.Items[0].Attempts)
				require.NoError(t, w.q.Ack(e.ctx, claim))
			})
		})
	}
}

// TestNoHerd: one group that becomes ready wakes one of many handles; the others do not run a single transaction. An
// enqueue into a held group wakes no handle.
func TestNoHerd(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	var all []*waiter
	for n := range uint64(8) {
		all = append(all, e.wait(10+n, never, layer.ReceiveOptions{}))
	}
	looks := func() (n int64) {
		for _, w := range all {
			p := w.q.Paths()
			n += p.Looks + p.Shared
		}
		return n
	}
	before := looks()
	e.enqueue("A", "a1")
	claim := all[0].get(t) // the oldest request
	require.Equal(t, "A", claim.Group)
	woken := looks() - before
	require.LessOrEqual(t, woken, int64(3), "the one that was woken looked and claimed")
	before = looks()
	e.enqueue("A", "a2")
	require.NoError(t, all[0].q.AckItems(e.ctx, claim, []layer.ID{claim.Items[0].ID}))
	require.Equal(t, "A", all[1].get(t).Group)
	require.LessOrEqual(t, looks()-before, int64(4))
	before = looks()
	e.enqueue("A", "a3")
	require.Equal(t, before, looks(), "the group is held: nobody is woken")
}

// TestOneFulfilsForAll: when several groups become ready at once, the one handle that is woken claims for itself and
// grants the rest to the others.
func TestOneFulfilsForAll(t *testing.T) {
	onMemory(t, func(e *env) {
		poll := never
		if e.plan.Chances != nil {
			poll = 100 * time.Millisecond // a fault may take the watch
		}
		var all []*waiter
		for n := range uint64(5) {
			all = append(all, e.wait(10+n, poll, layer.ReceiveOptions{}))
		}
		var msgs []layer.Message
		for i := range all {
			msgs = append(msgs, layer.Message{Group: fmt.Sprint("G", i)})
		}
		_, err := e.q.Enqueue(e.ctx, msgs...)
		require.NoError(e.t, err)
		seen := map[string]bool{}
		for _, w := range all {
			c := w.get(e.t)
			require.False(e.t, seen[c.Group], "two calls never share a group")
			seen[c.Group] = true
			require.Zero(e.t, c.Items[0].Attempts)
			require.NoError(e.t, w.q.Ack(e.ctx, c))
		}
		if e.plan.Chances == nil {
			require.EqualValues(e.t, 4, all[0].q.Paths().Granted)
		}
	})
}

// TestDrainedWhileStaged: a handle that is woken for a group which is empty again by the time it looks goes on waiting,
// and is woken for the next.
func TestDrainedWhileStaged(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	w := e.wait(2, never, layer.ReceiveOptions{})
	for range 3 {
		looks := w.q.Paths().Looks
		require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) error {
			if err := enqueueTo("A")(e, tx, nil); err != nil {
				return err
			}
			return take(e, tx, nil)
		}))
		require.Eventually(t, func() bool { return w.q.Paths().Looks > looks }, time.Minute, time.Millisecond, "it was woken")
	}
	require.Empty(t, e.all("A"))
	e.enqueue("B", "b1")
	c := w.get(t)
	require.Equal(t, "B", c.Group)
	require.NoError(t, w.q.Ack(e.ctx, c))
}

// TestGrantForEachStrategy: what a handle is granted it accepts, however its receive spreads over groups. Its request
// is not cleared before, and the grant is not left to its short lease, which does not end here: the clock stands.
func TestGrantForEachStrategy(t *testing.T) {
	for _, strategy := range []layer.Strategy{layer.FillGroup, layer.Layers, layer.Heads} {
		t.Run(fmt.Sprint(strategy), func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			first := e.wait(2, never, layer.ReceiveOptions{})
			second := e.wait(3, never, layer.ReceiveOptions{Strategy: strategy})
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Group: "B"})
			require.NoError(t, err)
			for _, w := range []*waiter{first, second} {
				require.NoError(t, w.q.Ack(e.ctx, w.get(t)))
			}
			require.Equal(t, int64(1), first.q.Paths().Granted)
			require.Zero(t, e.requests())
		})
	}
}

// TestMoreGroupsThanRequests, and more than the requests want. The other groups stay ready.
func TestMoreGroupsThanRequests(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	waiters := []*waiter{e.wait(2, never, layer.ReceiveOptions{}), e.wait(3, never, layer.ReceiveOptions{})}
	var msgs []layer.Message
	for i := range 9 {
		msgs = append(msgs, layer.Message{Group: fmt.Sprint(i)})
	}
	_, err := e.q.Enqueue(e.ctx, msgs...)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, w := range waiters {
		c := w.get(t)
		seen[c.Group] = true
		require.NoError(t, w.q.Ack(e.ctx, c))
	}
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 7)
	for _, c := range claims {
		require.False(t, seen[c.Group])
		require.NoError(t, e.q.Ack(e.ctx, c))
	}
	require.Zero(t, e.requests())
}

// put writes a request of a handle that is dead, older than any other.
func (e *env) put(random uuid.UUID, wants int64, deadline time.Duration) {
	e.write(func(tx kv.Tx) {
		tx.Set(key("request", int64(1), random),
			tuple.Tuple{"dead", wants, e.clock.now().Add(deadline).UnixMilli()}.Pack())
	})
}

// TestDeadRequesterStrandsNoGroup: a handle that dies at any point of staging strands no group: between request and
// grant its request is swept; between grant and acceptance the group comes back when the short lease ends, and no
// attempt is counted.
func TestDeadRequesterStrandsNoGroup(t *testing.T) {
	random := uuid.MustParse("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
	t.Run("before a grant", func(t *testing.T) {
		onMemory(t, func(e *env) {
			w := e.wait(2, 20*time.Millisecond, layer.ReceiveOptions{})
			e.put(random, 1, time.Minute) // the oldest: it is the one that is woken
			e.enqueue("A", "a1")
			c := w.get(e.t) // by its poll
			require.NoError(e.t, w.q.Ack(e.ctx, c))
			e.clock.advance(2 * time.Minute)
			next := e.wait(3, 20*time.Millisecond, layer.ReceiveOptions{})
			require.Eventually(e.t, func() bool { return e.requests() == 1 }, time.Minute, time.Millisecond, "swept")
			e.enqueue("A", "a2")
			require.NoError(e.t, next.q.Ack(e.ctx, next.get(e.t)))
		})
	})
	t.Run("a request past its deadline is not woken, even if nobody has swept it", func(t *testing.T) {
		e := newEnv(t, anyEngine, false)
		w := e.wait(2, never, layer.ReceiveOptions{})
		e.put(random, 1, -time.Second)
		e.enqueue("A", "a1")
		require.NoError(t, w.q.Ack(e.ctx, w.get(t)))
		e.write(func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("request"))) })
	})
	t.Run("after a grant", func(t *testing.T) {
		onMemory(t, func(e *env) {
			e.put(random, 1, time.Minute)
			w := e.wait(2, 20*time.Millisecond, layer.ReceiveOptions{})
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Group: "B"})
			require.NoError(e.t, err)
			c := w.get(e.t)
			page, err := e.calm().Admin().Groups(e.ctx, layer.GroupsOptions{})
			require.NoError(e.t, err)
			states := map[string]layer.Status{page.Groups[0].Group: page.Groups[0].Status, page.Groups[1].Group: page.Groups[1].Status}
			require.Equal(e.t, layer.Held, states[c.Group])
			require.Contains(e.t, []layer.Status{layer.Granted, layer.Ready}, states[map[string]string{"A": "B", "B": "A"}[c.Group]])
			e.clock.advance(3 * time.Second)
			other := e.receive(e.q, 1)
			require.NotNil(e.t, other, "the grant ran out")
			require.Zero(e.t, other.Items[0].Attempts)
			require.NoError(e.t, e.q.Ack(e.ctx, other))
			require.NoError(e.t, w.q.Ack(e.ctx, c))
			require.Empty(e.t, e.rows(kv.PrefixRange(key("grant"))), "the taker cleared the grant")
			e.write(func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("request"))) })
		})
	})
}

// TestReceiveThatGivesUpLeavesNothing: a receive that gives up waiting leaves nothing behind, and takes nothing with
// it.
func TestReceiveThatGivesUpLeavesNothing(t *testing.T) {
	onMemory(t, func(e *env) {
		w := e.wait(2, 50*time.Millisecond, layer.ReceiveOptions{})
		w.cancel()
		require.Empty(e.t, <-w.claims)
		require.Eventually(e.t, func() bool { return e.requests() == 0 }, time.Minute, time.Millisecond)

		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Wait: 10 * time.Millisecond})
		require.NoError(e.t, err)
		require.Empty(e.t, claims, "the wait ended with nothing")
		require.Eventually(e.t, func() bool { return e.requests() == 0 }, time.Minute, time.Millisecond)

		closing := e.wait(3, 50*time.Millisecond, layer.ReceiveOptions{})
		go func() { <-closing.claims }()
		closing.cancel()
		require.NoError(e.t, closing.q.Close(e.ctx))
		require.Zero(e.t, e.requests())
		require.Empty(e.t, e.rows(kv.PrefixRange(key("wake"))))
	})
}

// TestCloseWhileReceiving: a handle that is closed while a receive registers its request leaves none behind.
func TestCloseWhileReceiving(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	for n := range uint64(60) {
		q := e.handle(100 + n)
		done := make(chan error, 1)
		go func() {
			_, err := q.Receive(e.ctx, layer.ReceiveOptions{Wait: layer.MaxWait})
			done <- err
		}()
		for range n * 20 {
			runtime.Gosched() // close a little later each time
		}
		require.NoError(t, q.Close(e.ctx))
		require.ErrorIs(t, <-done, layer.ErrClosed)
	}
	require.Zero(t, e.requests())
}

// TestAbandonedReceiveGivesBack: claims that come when the caller has gone are released, with no attempt counted; a
// receive that has not begun when its caller goes claims nothing.
func TestAbandonedReceiveGivesBack(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	blocked := &holdCommits{DB: e.db, entered: make(chan struct{}, 1), release: make(chan struct{})}
	q, err := layer.Open(e.ctx, blocked, testPrefix, testQueue, e.options(2))
	require.NoError(t, err)
	blocked.armed.Store(true)
	received := make(chan *layer.Claim, 2)
	receive := func(ctx context.Context) {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{MaxGroups: 1})
		if err == nil && len(claims) == 1 {
			received <- claims[0]
		} else {
			received <- nil
		}
	}
	go receive(e.ctx) // holds up the others
	<-blocked.entered
	leaver, leave := context.WithCancel(e.ctx)
	never, drop := context.WithCancel(e.ctx)
	go receive(never)
	require.Eventually(t, func() bool { return q.Paths().Queued == 1 }, time.Minute, time.Millisecond)
	drop()
	require.Nil(t, <-received, "it had not begun")
	go receive(leaver)
	require.Eventually(t, func() bool { return q.Paths().Queued == 1 }, time.Minute, time.Millisecond)
	e.enqueue("B", "b1")
	blocked.release <- struct{}{}
	require.Equal(t, "A", (<-received).Group)
	<-blocked.entered // the leaver's transaction is at its commit
	leave()
	require.Nil(t, <-received, "the caller does not wait for the end of it")
	close(blocked.release)
	var b *layer.Claim
	require.Eventually(t, func() bool {
		b = e.receive(e.q, 1)
		return b != nil
	}, time.Minute, time.Millisecond, "given back")
	require.Equal(t, "B", b.Group)
	require.Zero(t, b.Items[0].Attempts)
}

// TestCloseGivesBack (G7): a handle is closed while a receive whose caller has left is at its commit. Close waits until
// the claims are given back: another handle receives them at once, with no attempt counted.
func TestCloseGivesBack(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("B", "b1")
	held := &holdCommits{DB: e.db, entered: make(chan struct{}, 1), release: make(chan struct{})}
	q, err := layer.Open(e.ctx, held, testPrefix, testQueue, e.options(2))
	require.NoError(t, err)
	held.armed.Store(true)
	leaver, leave := context.WithCancel(e.ctx)
	go func() { _, _ = q.Receive(leaver, layer.ReceiveOptions{MaxGroups: 1}) }()
	<-held.entered
	leave()
	closed := make(chan error, 1)
	go func() { closed <- q.Close(e.ctx) }()
	require.Eventually(t, func() bool {
		soon, cancel := context.WithTimeout(e.ctx, time.Millisecond)
		defer cancel()
		_, err := q.Receive(soon, layer.ReceiveOptions{})
		return errors.Is(err, layer.ErrClosed)
	}, time.Minute, time.Millisecond)
	close(held.release)
	require.NoError(t, <-closed)
	b := e.receive(e.q, 1)
	require.NotNil(t, b, "given back")
	require.Equal(t, "B", b.Group)
	require.Zero(t, b.Items[0].Attempts)
}

// TestManyWaitersDrainEverything (trap 11, the poll): with producers and waiting handles, faults, skewed clocks and
// receivers that leave, every item is acked exactly once, in its group's order, and no rows of the staging are left.
func TestManyWaitersDrainEverything(t *testing.T) {
	t.Parallel()
	onMemory(t, func(e *env) {
		const handles, receivers, groups, perGroup = 4, 3, 12, 20
		var mu sync.Mutex
		got := map[string][]string{}
		var left atomic.Int64
		left.Store(groups * perGroup)
		ctx, cancel := untilStill(e.ctx, left.Load)
		defer cancel()
		var wg sync.WaitGroup
		var qs []*layer.Queue
		for h := range uint64(handles) {
			options := e.options(20 + h)
			options.Poll = 50 * time.Millisecond
			skew := time.Duration(int64(h)*20-30) * time.Second
			options.Now = func() time.Time { return e.clock.now().Add(skew) }
			q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, options)
			require.NoError(e.t, err)
			qs = append(qs, q)
			for range receivers {
				wg.Go(func() {
					for left.Load() > 0 && ctx.Err() == nil {
						claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 3, MaxGroups: 1, Lease: time.Hour, Wait: 100 * time.Millisecond})
						if err != nil {
							if ctx.Err() == nil {
								e.t.Errorf("receive: %v", err)
							}
							return
						}
						for _, c := range claims {
							// Noted before the ack: after it, another may have the group.
							mu.Lock()
							got[c.Group] = append(got[c.Group], bodies(c.Items)...)
							mu.Unlock()
							if err := q.Ack(ctx, c); err != nil {
								e.t.Errorf("ack: %v", err)
								return
							}
							left.Add(-int64(len(c.Items)))
						}
					}
				})
			}
		}
		want := map[string][]string{}
		for i := range perGroup {
			for g := range groups {
				name := fmt.Sprint("G", g)
				e.enqueue(name, fmt.Sprint(i))
				want[name] = append(want[name], fmt.Sprint(i))
			}
		}
		wg.Wait()
		require.NoError(e.t, ctx.Err(), "drained in time; left: %d", left.Load())
		require.Equal(e.t, want, got)
		for _, q := range qs {
			require.NoError(e.t, q.Close(context.Background()))
		}
		require.Zero(e.t, e.requests())
		require.Empty(e.t, e.rows(kv.PrefixRange(key("grant"))))
	})
}

// TestStagingConflicts: the footprints of staging.
func TestStagingConflicts(t *testing.T) {
	t.Run("two requests do not conflict, nor do a request and an enqueue", func(t *testing.T) {
		e := newEnv(t, anyEngine, false)
		before := e.conflicts()
		for n := range uint64(5) {
			e.wait(30+n, never, layer.ReceiveOptions{})
		}
		require.Equal(t, before, e.conflicts())
	})
	t.Run("an enqueue that wakes a request, and the withdrawal of that request", func(t *testing.T) {
		e := newEnv(t, anyEngine, false)
		w := e.wait(2, never, layer.ReceiveOptions{})
		err := e.overlap(
			func(tx kv.Tx) error { return enqueueTo("A")(e, tx, nil) },
			func(tx kv.Tx) error { tx.Clear(e.rows(kv.PrefixRange(key("request")))[0].Key); return nil },
		)
		require.NoError(t, err, "must not conflict")
		w.cancel()
	})
}

// conflicts is how many of the handles' shared transactions failed with a conflict, in all that was opened here.
func (e *env) conflicts() int64 { return e.q.Paths().Conflicts }

// TestUnknownRegistrationAmongMany (trap 4): a receive whose registration has an unknown commit that was applied knows
// its own request. It does not look for the request among those of all handles that wait.
func TestUnknownRegistrationAmongMany(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	deadline := e.clock.now().Add(time.Minute).UnixMilli()
	e.write(func(tx kv.Tx) {
		for i := range 1500 {
			tx.Set(key("request", int64(i+1), uuid.New()), tuple.Tuple{"other", int64(1), deadline}.Pack())
		}
	})
	db := &rowsOfEach{DB: e.db}
	e.db = db
	e.plan.ForceNext(fault.UnknownApplied)
	w := e.wait(2, never, layer.ReceiveOptions{})
	require.Equal(t, 1, e.plan.Counts()[fault.UnknownApplied])
	require.Equal(t, 1501, e.requests(), "the receive waits by one request")
	require.LessOrEqual(t, db.most(), int64(50))
	w.cancel()
	<-w.claims
	require.NoError(t, w.q.Close(e.ctx))
	require.Equal(t, 1500, e.requests(), "the request went with the handle")
}
