package layer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// namedRequests is how many requests there are for groups.
func (e *env) namedRequests() int { return len(e.rows(kv.PrefixRange(key("reqgroup")))) }

// groupReady is something that makes group A ready.
type groupReady struct {
	setup func(e *env) any
	ready func(e *env, given any)
}

// groupReadies are all that make group A ready, by name.
func groupReadies() map[string]groupReady {
	admin := func(do func(e *env, a layer.Admin) error) func(e *env, _ any) {
		return func(e *env, _ any) { require.NoError(e.t, do(e, e.q.Admin())) }
	}
	pausedGroup := func(e *env) any {
		e.fill("A", 1)
		_, err := e.q.Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{})
		require.NoError(e.t, err)
		return nil
	}
	return map[string]groupReady{
		"enqueue": {having(), func(e *env, _ any) { e.enqueue("A", "a1") }},
		"enqueue to many groups": {having(), func(e *env, _ any) {
			msgs := make([]layer.Message, 50)
			for i := range msgs {
				msgs[i].Group = fmt.Sprint("g", i)
			}
			_, err := e.q.Enqueue(e.ctx, append(msgs, layer.Message{Group: "A"})...)
			require.NoError(e.t, err)
		}},
		"enqueue in the caller's transaction": {having(), func(e *env, _ any) {
			require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error { return enqueueTo("A")(e, tx, nil) }))
		}},
		"ack that leaves items": {holding(2, 1), func(e *env, c any) {
			require.NoError(e.t, e.q.Ack(e.ctx, c.(*layer.Claim)))
		}},
		"nack": {holding(1, 1), func(e *env, c any) {
			require.NoError(e.t, nackWith(layer.NackOptions{})(e, c))
		}},
		"forced release": {holding(1, 1), func(e *env, given any) {
			o := layer.ForceReleaseOptions{Hold: given.(*layer.Claim).Hold}
			_, err := e.q.Admin().ForceRelease(e.ctx, "A", o)
			require.NoError(e.t, err)
		}},
		"redrive": {func(e *env) any {
			require.NoError(e.t, nackWith(layer.NackOptions{Reject: "no use"})(e, holding(1, 1)(e)))
			return nil
		}, admin(func(e *env, a layer.Admin) error {
			_, err := a.Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
			return err
		})},
		"resume of the group": {pausedGroup, admin(func(e *env, a layer.Admin) error {
			_, err := a.ResumeGroup(e.ctx, "A", layer.ResumeOptions{})
			return err
		})},
		"resume of the queue": {func(e *env) any {
			e.fill("A", 1)
			_, err := e.q.Admin().Pause(e.ctx, layer.PauseOptions{})
			require.NoError(e.t, err)
			return nil
		}, admin(func(e *env, a layer.Admin) error { _, err := a.Resume(e.ctx, layer.ResumeOptions{}); return err })},
		"shorter retroactive delay": {func(e *env) any {
			e.configure(func(c *layer.Config) { c.RetroactiveDelay, c.Delay = true, time.Hour })
			e.fill("A", 1)
			return nil
		}, func(e *env, _ any) { e.configure(func(c *layer.Config) { c.Delay = 0 }) }},
		"retry now": {func(e *env) any {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: time.Hour})
			require.NoError(e.t, err)
			return nil
		}, admin(func(e *env, a layer.Admin) error { return a.RetryNow(e.ctx, "A", layer.RetryOptions{}) })},
	}
}

// TestWaitForOneGroup: a receive that waits for a group is woken by everything that makes this group ready, without the
// help of its poll, under a receive id too, and by no other group. Its request is gone afterwards.
func TestWaitForOneGroup(t *testing.T) {
	for name, c := range groupReadies() {
		for _, id := range []string{"", "once"} {
			t.Run(name+id, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, anyEngine, false)
				given := c.setup(e)
				w := e.wait(2, never, layer.ReceiveOptions{Group: layer.OnlyGroup("A"), ReceiveID: id})
				require.Equal(t, 1, e.namedRequests())
				require.Zero(t, e.requests(), "nobody waits for any group")
				looks := w.q.Paths().Looks
				if name != "resume of the queue" && name != "shorter retroactive delay" { // which hold B back
					e.enqueue("B", "b1")
					require.NotNil(t, e.receive(e.q, 1))
				}
				require.Equal(t, looks, w.q.Paths().Looks, "another group wakes nobody")
				c.ready(e, given)
				require.Equal(t, "A", w.get(t).Group)
				require.NoError(t, w.q.Close(e.ctx))
				require.Zero(t, e.namedRequests())
				require.Empty(t, e.rows(kv.PrefixRange(key("wake"))))
			})
		}
	}
}

// TestWaitForManyGroups: many receives of one handle wait, each for a group of its own. Each is woken by its group. A
// receive that gives up leaves no rows behind.
func TestWaitForManyGroups(t *testing.T) {
	onMemory(t, func(e *env) {
		options := e.options(2)
		groups := 150
		if options.Poll = never; e.plan.Chances != nil {
			// Watches fail, and where one read in thirty fails, many together do not come through.
			options.Poll, groups = 100*time.Millisecond, 20
		}
		q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, options)
		require.NoError(e.t, err)
		var wg sync.WaitGroup
		for i := range groups {
			wg.Go(func() {
				claims, err := q.Receive(e.ctx, layer.ReceiveOptions{
					Group: layer.OnlyGroup(fmt.Sprint("g", i)), Wait: layer.MaxWait, Max: 1,
				})
				require.NoError(e.t, err)
				require.Len(e.t, claims, 1)
				require.Equal(e.t, fmt.Sprint("g", i), claims[0].Group)
				require.NoError(e.t, q.Ack(e.ctx, claims[0]))
			})
		}
		short, cancel := context.WithCancel(e.ctx)
		wg.Go(func() {
			_, err := q.Receive(short, layer.ReceiveOptions{Group: layer.OnlyGroup("none"), Wait: layer.MaxWait})
			require.ErrorIs(e.t, err, context.Canceled)
		})
		require.Eventually(e.t, func() bool { return e.namedRequests() == groups+1 }, time.Minute, time.Millisecond)
		cancel()
		for i := range groups {
			e.enqueue(fmt.Sprint("g", (i*37)%groups), "x")
		}
		wg.Wait()
		require.NoError(e.t, q.Close(e.ctx))
		require.Zero(e.t, e.namedRequests())
	})
}

// TestManyRequestsEndInSmallTransactions: the callers of many receives leave at once, each with a request for a group
// of its own. The handle clears the requests in transactions that the database accepts, also when it closes.
func TestManyRequestsEndInSmallTransactions(t *testing.T) {
	const groups, limit = 1500, 300_000 // a transaction that clears all the requests needs about three times as much
	for name, end := range map[string]func(e *env, q *layer.Queue, cancel func()){
		"callers leave": func(e *env, q *layer.Queue, cancel func()) {
			cancel()
			time.Sleep(time.Second)
			require.Zero(e.t, e.namedRequests())
			require.NoError(e.t, q.Close(e.ctx))
		},
		"close": func(e *env, q *layer.Queue, _ func()) { require.NoError(e.t, q.Close(e.ctx)) },
		"callers leave beside another receive": func(e *env, q *layer.Queue, cancel func()) {
			stays, stop := context.WithCancel(e.ctx)
			ended := make(chan error, 1)
			go func() {
				_, err := q.Receive(stays, layer.ReceiveOptions{Group: layer.OnlyGroup("stays"), Wait: layer.MaxWait})
				ended <- err
			}()
			time.Sleep(5 * time.Second)
			cancel()
			time.Sleep(10 * time.Second)
			require.Equal(e.t, 1, e.namedRequests())
			stop()
			require.ErrorIs(e.t, <-ended, context.Canceled)
			require.NoError(e.t, q.Close(e.ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, inMemory, false)
				e.clock.real.Store(true)
				options := e.options(2)
				options.Tx.SizeLimit = limit
				q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, options)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(e.ctx)
				var wg sync.WaitGroup
				for i := range groups {
					wg.Go(func() {
						o := layer.ReceiveOptions{Wait: layer.MaxWait}
						o.Group = layer.OnlyGroup(fmt.Sprintf("%0200d", i))
						claims, err := q.Receive(ctx, o)
						assert.Error(t, err)
						assert.Empty(t, claims)
					})
				}
				time.Sleep(20 * time.Second)
				require.Equal(t, groups, e.namedRequests())
				end(e, q, cancel)
				cancel()
				wg.Wait()
				require.Zero(t, e.namedRequests())
			})
		})
	}
}

// TestWaitForAGroupByTheClock: a group becomes ready at a time, by the end of a lease, of a delay or of a wait by the
// rate. A receive that names the group gets it at that time, not at a poll. While nothing happens the handle looks once
// in a poll, except in the second in which it has begun to wait.
func TestWaitForAGroupByTheClock(t *testing.T) {
	for name, c := range map[string]struct {
		setup func(e *env)
		after time.Duration
		draws int64 // looks besides the polls, in which the handle asks for a portion of the rate
	}{
		"lease": {func(e *env) {
			e.fill("A", 1)
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Lease: 7 * time.Second})
			require.NoError(e.t, err)
			require.Len(e.t, claims, 1)
		}, 7 * time.Second, 0},
		"delayed message": {func(e *env) {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: 11 * time.Second})
			require.NoError(e.t, err)
		}, 11 * time.Second, 0},
		"retry delay": {func(e *env) {
			e.fill("A", 1)
			require.NoError(e.t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Delay: 5 * time.Second}))
		}, 5 * time.Second, 0},
		"rate": {func(e *env) {
			rated("1/10s", having())(e)
			e.fill("A", 2)
			require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		}, 10 * time.Second, 0},
		"rate of the queue": {func(e *env) {
			totalled("1/10s", having())(e)
			e.fill("A", 2)
			require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		}, 10 * time.Second, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, inMemory, false)
				e.clock.real.Store(true)
				c.setup(e)
				begun := time.Now()
				claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Group: layer.OnlyGroup("A"), Wait: time.Minute})
				require.NoError(t, err)
				require.Len(t, claims, 1)
				require.InDelta(t, c.after, time.Since(begun), float64(10*time.Millisecond))
				first := int64(12) // at 0.25, 0.5, 1 … 512 ms: here transactions take no time
				require.LessOrEqual(t, e.q.Paths().Looks, int64(c.after/(750*time.Millisecond))+5+first+c.draws)
				require.NoError(t, e.q.Close(e.ctx))
			})
		})
	}
}

// TestWaitForAGroupThatIsDropped: a drop wakes receives that name a group, too.
func TestWaitForAGroupThatIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{Poll: never})
		require.NoError(t, err)
		ended := make(chan error)
		go func() {
			_, err := q.Receive(t.Context(), layer.ReceiveOptions{Group: layer.OnlyGroup("A"), Wait: layer.MaxWait})
			ended <- err
		}()
		synctest.Wait()
		begun := time.Now()
		require.NoError(t, layer.Drop(t.Context(), db, testPrefix, testQueue, layer.DropOptions{}))
		require.ErrorIs(t, <-ended, layer.ErrNoQueue)
		require.Less(t, time.Since(begun), 3*time.Second)
		require.NoError(t, q.Close(t.Context()))
	})
}

// TestNamedRequestOfADeadHandle: a sweep clears the request of a dead handle for a group when its life is over. The
// request does not keep other handles from the group.
func TestNamedRequestOfADeadHandle(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	dead := e.wait(2, never, layer.ReceiveOptions{Group: layer.OnlyGroup("A")})
	rows := e.rows(kv.PrefixRange(key("reqgroup")))
	require.Len(t, rows, 1)
	dead.cancel()
	require.Nil(t, <-dead.claims)
	require.NoError(t, dead.q.Close(e.ctx))
	require.Zero(t, e.namedRequests())
	_, err := kv.Run(e.ctx, e.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set(rows[0].Key, rows[0].Value) // as if it had been killed
		return nil
	})
	require.NoError(t, err)
	_, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, e.namedRequests(), "it may live")
	live := e.wait(3, never, layer.ReceiveOptions{Group: layer.OnlyGroup("A")})
	e.enqueue("A", "a1")
	require.Equal(t, "A", live.get(t).Group, "the dead one's request keeps nobody waiting")
	e.clock.advance(2 * time.Minute)
	_, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.NoError(t, live.q.Close(e.ctx))
	require.Zero(t, e.namedRequests())
}

// TestWaitForAGroupOfUnknownCommit: a receive whose registration has an unknown outcome waits, is woken, and leaves
// nothing behind.
func TestWaitForAGroupOfUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost, fault.Conflict} {
		e := newEnv(t, anyEngine, false)
		e.plan.ForceNext(kind)
		w := e.wait(2, never, layer.ReceiveOptions{Group: layer.OnlyGroup("A")})
		e.enqueue("A", "a1")
		require.Equal(t, "A", w.get(t).Group, kind)
		require.NoError(t, w.q.Close(e.ctx))
		require.Zero(t, e.namedRequests(), kind)
	}
}

// TestOnlyIfAnyOfManyHandles: once the last message is acked, the receives of all handles that wait in line end within
// a poll.
func TestOnlyIfAnyOfManyHandles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, inMemory, false)
		e.clock.real.Store(true)
		e.fill("A", 1)
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Lease: time.Hour})
		require.NoError(t, err)
		var all sync.WaitGroup
		for i := range 16 {
			h := e.handle(uint64(10 + i))
			all.Go(func() {
				got, err := h.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Minute, OnlyIfAny: true})
				assert.NoError(t, err)
				assert.Empty(t, got)
				assert.NoError(t, h.Close(e.ctx))
			})
		}
		time.Sleep(20 * time.Second)
		acked := time.Now()
		require.NoError(t, e.q.Ack(e.ctx, claims[0]))
		all.Wait()
		require.LessOrEqual(t, time.Since(acked), 1100*time.Millisecond)
		require.NoError(t, e.q.Close(e.ctx))
	})
}

// TestNamedRequestBehindTheDead (G5): a receive that waits for a group is woken, however many handles have died that
// waited for it. Their requests stay until a sweep.
func TestNamedRequestBehindTheDead(t *testing.T) {
	const many = 250 // more than a waker reads
	views := func(c *layer.Config) { c.Facets, c.Views = []string{"state"}, "*; state" }
	for _, c := range []struct {
		name   string
		dead   int
		change func(c *layer.Config)
	}{{"group", 4, nil}, {"group", many, nil}, {"lanes", 20, views}, {"lanes", many, views}} {
		t.Run(fmt.Sprintf("%s/%d", c.name, c.dead), func(t *testing.T) {
			e := newEnvOf(t, anyEngine, false, func(config *layer.Config) {
				if c.change != nil {
					c.change(config)
				}
			})
			e.write(func(tx kv.Tx) {
				request := tuple.Tuple{"dead", int64(1), e.clock.now().Add(-time.Hour).UnixMilli()}.Pack()
				for i := range c.dead {
					tx.Set(key("reqgroup", "A", uuid.UUID{15: byte(i), 14: byte(i >> 8)}), request) // before any other
				}
			})
			w := e.wait(2, never, layer.ReceiveOptions{Group: layer.OnlyGroup("A")})
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: map[string]string{"state": "new"}})
			require.NoError(t, err)
			require.Equal(t, "A", w.get(t).Group)
		})
	}
}

// TestNamedGroupsLeaveNoKeys: in a queue whose receives and takes all name groups, no hints and no timers of messages
// that are gone stay.
func TestNamedGroupsLeaveNoKeys(t *testing.T) {
	whole, free := []string{"ready", "timer"}, []string{"open", "due"}
	o := layer.ReceiveOptions{Group: layer.OnlyGroup("A"), Max: 1}
	receive := func(o layer.ReceiveOptions) func(e *env) {
		return func(e *env) { require.NoError(e.t, e.q.Ack(e.ctx, e.claimOne(o))) }
	}
	take := func(e *env) {
		items, err := e.take(e.q, 1, layer.TakeOptions{Group: o.Group})
		require.NoError(e.t, err)
		require.Len(e.t, items, 1)
	}
	unordered := o
	unordered.Unordered = true
	for name, c := range map[string]struct {
		change  func(c *layer.Config)
		one     func(e *env)
		leading []string
	}{
		"receive":           {func(*layer.Config) {}, receive(o), whole},
		"receive in turn":   {func(c *layer.Config) { c.LeasePerItem = true }, receive(o), whole},
		"receive unordered": {func(c *layer.Config) { c.Unordered = true }, receive(unordered), free},
		"take":              {func(*layer.Config) {}, take, whole},
	} {
		for _, delay := range []time.Duration{0, time.Second} {
			t.Run(fmt.Sprintf("%s, delay %s", name, delay), func(t *testing.T) {
				e := newEnvOf(t, anyEngine, false, c.change)
				for range 10 {
					_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: delay})
					require.NoError(t, err)
					if delay > 0 { // each message is the head for a while
						e.clock.advance(2 * delay)
						c.one(e)
					}
				}
				if delay == 0 {
					for range 10 {
						c.one(e)
					}
				}
				for _, name := range c.leading {
					require.Empty(t, e.rows(kv.PrefixRange(key(name))))
				}
			})
		}
	}
}

// TestDelayedHeadLeavesNoTimer: the timer of a delayed first message goes with the message, or with its time or lane.
// It would stay until the time is over, a row for each message that a program has cancelled.
func TestDelayedHeadLeavesNoTimer(t *testing.T) {
	facets := func(c *layer.Config) { c.Facets, c.Views = []string{"state"}, "*; state" }
	headers := map[string]string{"state": "new"}
	for name, change := range map[string]func(c *layer.Config){
		"plain": func(*layer.Config) {}, "lanes": facets, "unordered": func(c *layer.Config) { c.Unordered = true },
		"in turn":          func(c *layer.Config) { c.LeasePerItem = true },
		"round robin":      func(c *layer.Config) { c.RoundRobin = true },
		"retroactive":      func(c *layer.Config) { c.Delay, c.RetroactiveDelay = time.Hour, true },
		"shards of groups": func(c *layer.Config) { c.Shards = 4 },
	} {
		for verb, do := range map[string]func(e *env, id layer.ID) error{
			"cancel": func(e *env, id layer.ID) error { return e.q.Admin().Cancel(e.ctx, id) },
			"skip": func(e *env, id layer.ID) error {
				_, err := e.q.Admin().Skip(e.ctx, id.Group, layer.SkipOptions{})
				return err
			},
			"reschedule": func(e *env, id layer.ID) error {
				return e.q.Reschedule(e.ctx, id, e.clock.now().Add(time.Minute))
			},
			"replace": func(e *env, id layer.ID) error {
				return e.q.Replace(e.ctx, id, nil, map[string]string{"state": "other"})
			},
		} {
			for _, behind := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s, behind=%t", verb, name, behind), func(t *testing.T) {
					e := newEnvOf(t, inMemory, false, change)
					first := layer.Message{Group: "A", Headers: headers, Delay: time.Hour}
					sent, err := e.q.Enqueue(e.ctx, first)
					require.NoError(t, err)
					if behind {
						_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: headers})
						require.NoError(t, err)
					}
					rows := func() int {
						return len(e.rows(kv.PrefixRange(key("timer")))) + len(e.rows(kv.PrefixRange(key("due"))))
					}
					before := rows()
					require.NoError(t, do(e, sent[0].ID))
					switch verb {
					case "cancel", "skip":
						require.Zero(t, rows())
					case "reschedule": // a receive leaves each lane to the new time
						o := layer.ReceiveOptions{Unordered: e.q.Config().Unordered}
						if name == "lanes" {
							o.Where = layer.Template{"state": "new"}
						}
						for _, o := range []layer.ReceiveOptions{{}, o} {
							claims, err := e.q.Receive(e.ctx, o)
							require.NoError(t, err)
							require.Empty(t, claims)
						}
						require.Equal(t, before, rows())
					case "replace":
						require.LessOrEqual(t, rows(), before)
					}
					e.clock.advance(2 * time.Hour)
					for range before { // nothing is lost
						items, err := e.take(e.q, 10, layer.TakeOptions{})
						require.NoError(t, err)
						if len(items) == 0 {
							break
						}
					}
					stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
					require.NoError(t, err)
					require.Zero(t, stats.Depth)
				})
			}
		}
	}
}

// TestOnlyIfAny: a receive that waits only if there is any message waits while the message is in another's hands,
// delayed, or kept by a pause, and no longer than there is one.
func TestOnlyIfAny(t *testing.T) {
	poll := time.Second * 5 / 4
	hold := func(t *testing.T, e *env) *layer.Claim {
		e.fill("A", 1)
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Lease: time.Hour})
		require.NoError(t, err)
		return claims[0]
	}
	for name, c := range map[string]struct {
		setup      func(t *testing.T, e *env)
		least, cut time.Duration // the wait ends in between
		got        bool
	}{
		"empty queue": {func(*testing.T, *env) {}, 0, 0, false},
		"held, and given back": {func(t *testing.T, e *env) {
			c := hold(t, e)
			time.AfterFunc(5*time.Second, func() {
				require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
			})
		}, 5 * time.Second, 5*time.Second + poll, true},
		"held, and acked": {func(t *testing.T, e *env) {
			c := hold(t, e)
			time.AfterFunc(5*time.Second, func() { require.NoError(t, e.q.Ack(e.ctx, c)) })
		}, 5 * time.Second, 5*time.Second + poll, false},
		"delayed": {func(t *testing.T, e *env) {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: 3 * time.Second})
			require.NoError(t, err)
		}, 3 * time.Second, 3*time.Second + poll, true},
		"paused": {func(t *testing.T, e *env) {
			e.fill("A", 1)
			_, err := e.q.Admin().Pause(e.ctx, layer.PauseOptions{})
			require.NoError(t, err)
			time.AfterFunc(4*time.Second, func() {
				_, err := e.q.Admin().Resume(e.ctx, layer.ResumeOptions{})
				require.NoError(t, err)
			})
		}, 4 * time.Second, 4*time.Second + poll, true},
	} {
		for _, group := range []*string{nil, layer.OnlyGroup("A")} {
			t.Run(fmt.Sprintf("%s, named=%v", name, group != nil), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newEnv(t, inMemory, false)
					e.clock.real.Store(true)
					if group != nil {
						e.fill("other", 1)
						_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Lease: time.Hour})
						require.NoError(t, err)
					}
					c.setup(t, e)
					q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, e.options(2))
					require.NoError(t, err)
					begun := time.Now()
					o := layer.ReceiveOptions{Group: group, Wait: time.Minute, OnlyIfAny: true}
					claims, err := q.Receive(e.ctx, o)
					require.NoError(t, err)
					require.Equal(t, c.got, len(claims) == 1)
					require.GreaterOrEqual(t, time.Since(begun), c.least)
					require.LessOrEqual(t, time.Since(begun), c.cut+10*time.Millisecond)
					require.NoError(t, q.Close(e.ctx))
					require.Zero(t, e.namedRequests()+e.requests())
				})
			})
		}
	}
	e := newEnv(t, anyEngine, false)
	q := e.laned("lanes", "*; state", nil, 1)[0]
	_, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: isNew, Wait: time.Second, OnlyIfAny: true})
	require.ErrorIs(t, err, layer.ErrOptions)
	require.ErrorContains(t, err, "OnlyIfAny with a template")
}
