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
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// isEU meets isNew: an item may agree with both.
var isEU = layer.Template{"region": "EU"}

// inLanes is the range of one kind of keys of the queue "lanes".
func inLanes(kind string) kv.KeyRange {
	return kv.PrefixRange(append(append([]byte(nil), testPrefix...), tuple.Tuple{"lanes", kind}.Pack()...))
}

// laneRequests is how many requests there are by templates, and for lanes or groups.
func (e *env) laneRequests() (byTemplate, named int) {
	return len(e.rows(inLanes("reqlane"))), len(e.rows(inLanes("reqgroup")))
}

// laneReady is something that makes the lane of group A with state NEW ready.
type laneReady struct {
	setup func(l *env) any
	ready func(l *env, c *layer.Claim) error
}

// advancing moves the items of a claim to a state.
func advancing(state string) func(l *env, c *layer.Claim) error {
	return func(l *env, c *layer.Claim) error {
		return l.q.Once(l.ctx, func(tx kv.Tx) error { return l.move(tx, c, state) })
	}
}

func ackIt(l *env, c *layer.Claim) error { return l.q.Ack(l.ctx, c) }

// laneReadies are all that make a lane ready, by name.
func laneReadies() map[string]laneReady {
	return map[string]laneReady{
		"enqueue": {sending("PAID"), func(l *env, _ *layer.Claim) error { l.sendStates("NEW"); return nil }},
		"enqueue to many groups": {sending(), func(l *env, _ *layer.Claim) error {
			msgs := make([]layer.Message, 50)
			for i := range msgs {
				msgs[i] = layer.Message{Group: fmt.Sprint("g", i), Headers: facetsOf(fmt.Sprint("other ", i), "EU")}
			}
			_, err := l.q.Enqueue(l.ctx, append(msgs, layer.Message{Group: "A", Headers: facetsOf("NEW", "EU")})...)
			return err
		}},
		"enqueue in the caller's transaction": {sending(), func(l *env, _ *layer.Claim) error {
			return l.q.Once(l.ctx, func(tx kv.Tx) error {
				_, err := l.q.EnqueueTx(l.ctx, tx, layer.Message{Group: "A", Headers: facetsOf("NEW", "EU")})
				return err
			})
		}},
		"advance":                   {handing(isPaid, "PAID"), advancing("NEW")},
		"advance that leaves items": {handing(isNew, "NEW", "NEW"), advancing("PAID")},
		"ack that leaves items":     {handing(isNew, "NEW", "NEW"), ackIt},
		"nack": {handing(isNew, "NEW"), func(l *env, c *layer.Claim) error {
			return l.q.Nack(l.ctx, c, layer.NackOptions{})
		}},
		"end of an intersecting claim":  {handing(isEU, "PAID", "NEW"), ackIt},
		"end of a claim of whole group": {handing(nil, "PAID", "NEW"), ackIt},
		"forced release": {handing(isEU, "PAID", "NEW"), func(l *env, c *layer.Claim) error {
			_, err := l.q.Admin().ForceRelease(l.ctx, "A", layer.ForceReleaseOptions{Where: isEU})
			return err
		}},
		"resume of the group": {func(l *env) any {
			l.sendStates("NEW")
			_, err := l.q.Admin().PauseGroup(l.ctx, "A", layer.PauseOptions{})
			require.NoError(l.t, err)
			return nil
		}, func(l *env, _ *layer.Claim) error {
			_, err := l.q.Admin().ResumeGroup(l.ctx, "A", layer.ResumeOptions{})
			return err
		}},
		"resume of the queue": {func(l *env) any {
			l.sendStates("NEW")
			_, err := l.q.Admin().Pause(l.ctx, layer.PauseOptions{})
			require.NoError(l.t, err)
			return nil
		}, func(l *env, _ *layer.Claim) error {
			_, err := l.q.Admin().Resume(l.ctx, layer.ResumeOptions{})
			return err
		}},
		"retry now": {func(l *env) any {
			_, err := l.q.Enqueue(l.ctx, layer.Message{Group: "A", Headers: facetsOf("NEW", "EU"), Delay: time.Hour})
			require.NoError(l.t, err)
			return nil
		}, func(l *env, _ *layer.Claim) error {
			return l.q.Admin().RetryNow(l.ctx, "A", layer.RetryOptions{Where: isNew})
		}},
		"redrive": {func(l *env) any {
			c := handing(isNew, "NEW")(l).(*layer.Claim)
			require.NoError(l.t, l.q.Nack(l.ctx, c, layer.NackOptions{Reject: "no use"}))
			return nil
		}, func(l *env, _ *layer.Claim) error {
			_, err := l.q.Admin().Redrive(l.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
			return err
		}},
		"edit of a facet": {sending("PAID"), func(l *env, _ *layer.Claim) error {
			items, err := l.q.Peek(l.ctx, "A", 1, nil)
			require.NoError(l.t, err)
			return l.q.Admin().Edit(l.ctx, items[0].ID, func(m *layer.Message) error {
				m.Headers["state"] = "NEW"
				return nil
			})
		}},
	}
}

// TestWaitByTemplate: a receive that waits by template, or for a lane of one group, is woken by everything that makes
// such a lane ready, without the help of its poll. Its request is gone afterwards.
func TestWaitByTemplate(t *testing.T) {
	for name, c := range laneReadies() {
		for how, o := range map[string]layer.ReceiveOptions{
			"template":                {Where: isNew},
			"group and template":      {Where: isNew, Group: layer.OnlyGroup("A")},
			"template, receive id":    {Where: isNew, ReceiveID: "once"},
			"group, template, and id": {Where: isNew, Group: layer.OnlyGroup("A"), ReceiveID: "once"},
		} {
			if o.ReceiveID != "" && name != "enqueue" {
				continue
			}
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, anyEngine, false)
				// Only a wake can end the wait, neither a poll nor the end of a lease.
				long := func(c *layer.Config) { c.Lease = layer.MaxLease }
				l := e.on(e.laned("lanes", "*; state; region", long, 1)[0])
				given := c.setup(l)
				w := e.waitOn("lanes", 2, never, o)
				byTemplate, named := e.laneRequests()
				require.Equal(t, 1, byTemplate+named)
				require.NoError(t, c.ready(l, claimOf(given)))
				claim := w.get(t)
				require.Equal(t, "A", claim.Group)
				require.Equal(t, isNew, claim.Where)
				require.NoError(t, w.q.Close(e.ctx))
				byTemplate, named = e.laneRequests()
				require.Zero(t, byTemplate+named)
				require.Empty(t, e.rows(inLanes("wake")))
			})
		}
	}
}

// TestWaitByTemplateInVain: a transaction that makes no lane of the template ready wakes no handle. One that makes a
// lane ready does not wake a second handle.
func TestWaitByTemplateInVain(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	l := e.on(e.laned("lanes", "*; state; region", nil, 1)[0])
	held := handing(isNew, "NEW")(l).(*layer.Claim)
	for n := range uint64(3) {
		e.waitOn("lanes", 2+n, never, layer.ReceiveOptions{Where: isNew})
		e.clock.advance(time.Millisecond)
	}
	one := e.waitOn("lanes", 5, never, layer.ReceiveOptions{Where: isPaid, Group: layer.OnlyGroup("B")})
	wakes := func() (n int) { return len(e.rows(inLanes("wake"))) }
	l.sendStates("NEW", "PAID")
	_, err := l.q.Enqueue(e.ctx, layer.Message{Group: "B", Headers: facetsOf("DONE", "EU")})
	require.NoError(t, err)
	require.Zero(t, wakes(), "a lane that is held, a lane of another template, and a lane of another group")
	require.NoError(t, l.q.Ack(e.ctx, held))
	require.Eventually(t, func() bool { n, _ := e.laneRequests(); return n == 2 }, time.Minute, time.Millisecond)
	require.LessOrEqual(t, wakes(), 1, "one of three handles was woken")
	_, err = l.q.Enqueue(e.ctx, layer.Message{Group: "B", Headers: facetsOf("PAID", "EU")})
	require.NoError(t, err)
	require.Equal(t, "B", one.get(t).Group)
}

// TestWakesOfThreeViews (lanes, trap 17): an enqueue that opens lanes of three views wakes one handle by each template,
// not three by one.
func TestWakesOfThreeViews(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.laned("lanes", "state; region; state, region", nil, 1)[0]
	var waiters []*waiter
	for n, where := range []layer.Template{isNew, isNew, isEU, isEU, {"state": "NEW", "region": "EU"}} {
		waiters = append(waiters, e.waitOn("lanes", uint64(2+n), never, layer.ReceiveOptions{Where: where}))
		e.clock.advance(time.Millisecond)
	}
	before := len(e.rows(inLanes("wake")))
	require.NoError(t, q.Once(e.ctx, func(tx kv.Tx) error {
		if _, err := q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A", Headers: facetsOf("NEW", "EU")}); err != nil {
			return err
		}
		wakes, err := tx.GetRange(inLanes("wake").Selectors(), kv.RangeOptions{}).Wait(e.ctx)
		require.NoError(t, err)
		require.Len(t, wakes, before+3)
		return nil
	}))
	// The templates meet in the item, so that one handle has it, and then the next.
	type given struct {
		by    *layer.Queue
		claim *layer.Claim
	}
	claims := make(chan given)
	for _, w := range waiters {
		go func() { claims <- given{w.q, w.get(t)} }()
	}
	for range waiters {
		c := <-claims
		require.NoError(t, c.by.Nack(e.ctx, c.claim, layer.NackOptions{Release: true}))
	}
}

// TestWaitIsPassedOn: of many lanes that become ready at once, for which a few handles are woken, those that these do
// not take are taken by the next, without the help of a poll.
func TestWaitIsPassedOn(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.laned("lanes", "state", nil, 1)[0]
	// More requests than a waker reads at once, and more lanes than requests that it then wakes by one template.
	const handles, lanes = 24, 10
	got := make(chan string, handles)
	for n := range uint64(handles) {
		w := e.waitOn("lanes", 2+n, never, layer.ReceiveOptions{Where: isNew})
		e.clock.advance(time.Millisecond)
		go func() {
			for _, c := range <-w.claims {
				got <- c.Group
			}
		}()
	}
	msgs := make([]layer.Message, lanes)
	for i := range msgs {
		msgs[i] = layer.Message{Group: fmt.Sprint("g", i), Headers: facetsOf("NEW", "EU")}
	}
	// A message that comes before a request is written waits for the handle's poll, and there is none here.
	require.Eventually(t, func() bool { n, _ := e.laneRequests(); return n == handles }, time.Minute, time.Millisecond)
	_, err := q.Enqueue(e.ctx, msgs...)
	require.NoError(t, err)
	groups := make(map[string]bool)
	for range lanes {
		groups[receiveFrom(t, got)] = true
	}
	require.Len(t, groups, lanes)
}

// TestWaitOfManyTemplates: many receives of one handle wait by templates, for lanes and for whole groups. Each gets its
// messages. A receive that gives up leaves no rows behind. The test runs with faults too, also of watches.
func TestWaitOfManyTemplates(t *testing.T) {
	onMemory(t, func(e *env) {
		options := e.options(2)
		templates := 60
		if options.Poll = never; e.plan.Chances != nil {
			options.Poll, templates = 100*time.Millisecond, 20
		}
		q := e.laned("lanes", "state", nil, 1)[0]
		waiting, err := layer.Open(e.ctx, e.db, testPrefix, "lanes", options)
		require.NoError(e.t, err)
		var wg sync.WaitGroup
		for i := range templates {
			o := layer.ReceiveOptions{Where: layer.Template{"state": fmt.Sprint("s", i)}, Wait: layer.MaxWait, Max: 1}
			if i%3 == 0 {
				o.Group = layer.OnlyGroup(fmt.Sprint("g", i))
			}
			wg.Go(func() {
				claims, err := waiting.Receive(e.ctx, o)
				require.NoError(e.t, err)
				require.Len(e.t, claims, 1)
				require.Equal(e.t, fmt.Sprint("g", i), claims[0].Group)
				require.NoError(e.t, waiting.Ack(e.ctx, claims[0]))
			})
		}
		short, cancel := context.WithCancel(e.ctx)
		wg.Go(func() {
			none := layer.Template{"state": "none"}
			_, err := waiting.Receive(short, layer.ReceiveOptions{Where: none, Wait: layer.MaxWait})
			require.ErrorIs(e.t, err, context.Canceled)
		})
		require.Eventually(e.t, func() bool {
			byTemplate, named := e.laneRequests()
			return byTemplate+named == templates+1
		}, time.Minute, time.Millisecond)
		cancel()
		for i := range templates {
			n := (i * 37) % templates
			_, err := q.Enqueue(e.ctx, layer.Message{
				Group: fmt.Sprint("g", n), Headers: facetsOf(fmt.Sprint("s", n), "EU"),
			})
			require.NoError(e.t, err)
		}
		wg.Wait()
		require.NoError(e.t, waiting.Close(e.ctx))
		byTemplate, named := e.laneRequests()
		require.Zero(e.t, byTemplate+named)
	})
}

// TestWaitByTemplateByTheClock: a message that becomes ready at a time is delivered at that time, not at a poll. A
// message whose wake was lost is delivered at the next poll. While nothing happens the handle looks once in a poll.
func TestWaitByTemplateByTheClock(t *testing.T) {
	claiming := func(where layer.Template, lease time.Duration) func(l *env) {
		return func(l *env) {
			l.sendStates("NEW")
			claims, err := l.q.Receive(l.ctx, layer.ReceiveOptions{Where: where, Lease: lease})
			require.NoError(l.t, err)
			require.Len(l.t, claims, 1)
		}
	}
	for name, c := range map[string]struct {
		setup func(l *env)
		after time.Duration
		slack time.Duration
	}{
		"lease":                         {claiming(isNew, 7*time.Second), 7 * time.Second, 0},
		"lease of an intersecting lane": {claiming(isEU, 7*time.Second), 7 * time.Second, 0},
		"delayed message": {func(l *env) {
			m := layer.Message{Group: "A", Headers: facetsOf("NEW", "EU"), Delay: 11 * time.Second}
			_, err := l.q.Enqueue(l.ctx, m)
			require.NoError(l.t, err)
		}, 11 * time.Second, 0},
		"retry delay": {func(l *env) {
			l.sendStates("NEW")
			require.NoError(l.t, l.q.Nack(l.ctx, l.claimBy(isNew, 1), layer.NackOptions{Delay: 5 * time.Second}))
		}, 5 * time.Second, 0},
		"lost wake": {func(l *env) {
			l.plan.ForceNext(fault.WatchError)
			time.AfterFunc(3*time.Second, func() { l.sendStates("NEW") })
		}, 3 * time.Second, time.Second * 5 / 4},
	} {
		for how, o := range map[string]layer.ReceiveOptions{
			"template":           {Where: isNew, Wait: time.Minute},
			"group and template": {Where: isNew, Wait: time.Minute, Group: layer.OnlyGroup("A")},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newEnv(t, inMemory, false)
					e.clock.real.Store(true)
					l := e.on(e.laned("lanes", "*; state; region", nil, 1)[0])
					c.setup(l)
					begun := time.Now()
					claims, err := l.q.Receive(e.ctx, o)
					require.NoError(t, err)
					require.Len(t, claims, 1)
					require.InDelta(t, c.after, time.Since(begun), float64(10*time.Millisecond+c.slack))
					// A look at each poll, and twelve more before the first poll: each comes twice as late as the one
					// before.
					polls := int64((c.after + c.slack) / (750 * time.Millisecond))
					require.LessOrEqual(t, l.q.Paths().Looks, polls+5+12)
					require.NoError(t, l.q.Close(e.ctx))
				})
			})
		}
	}
}

// TestWaitByTemplateIsDropped: a drop wakes receives by template, too.
func TestWaitByTemplateIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{
			Poll: never, Config: layer.Config{Facets: []string{"state"}, Views: "state"},
		})
		require.NoError(t, err)
		ended := make(chan error)
		go func() {
			_, err := q.Receive(t.Context(), layer.ReceiveOptions{Where: isNew, Wait: layer.MaxWait})
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

// TestRequestByTemplateOfADeadHandle: the request of a dead handle keeps no other handle waiting. When its life is over
// it is cleared, by the next handle that waits by the template or by a sweep.
func TestRequestByTemplateOfADeadHandle(t *testing.T) {
	for _, sweep := range []bool{false, true} {
		t.Run(fmt.Sprint("sweep=", sweep), func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			l := e.on(e.laned("lanes", "state", nil, 1)[0])
			var rows []kv.KV
			for n := range uint64(5) { // more than a waker reads
				dead := e.waitOn("lanes", 20+n, never, layer.ReceiveOptions{Where: isNew})
				rows = append(rows, e.rows(inLanes("reqlane"))...)
				dead.cancel()
				require.Nil(t, <-dead.claims)
				require.NoError(t, dead.q.Close(e.ctx))
			}
			byTemplate, _ := e.laneRequests()
			require.Zero(t, byTemplate)
			e.write(func(tx kv.Tx) {
				for _, row := range rows {
					tx.Set(row.Key, row.Value) // as if they had been killed
				}
			})
			_, err := l.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(t, err)
			byTemplate, _ = e.laneRequests()
			require.Equal(t, 5, byTemplate, "they may live")
			e.clock.advance(2 * time.Minute)
			if sweep {
				_, err := l.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
				require.NoError(t, err)
				byTemplate, _ = e.laneRequests()
				require.Zero(t, byTemplate)
			}
			live := e.waitOn("lanes", 3, never, layer.ReceiveOptions{Where: isNew})
			one := func() bool { n, _ := e.laneRequests(); return n == 1 }
			require.Eventually(t, one, time.Minute, time.Millisecond)
			l.sendStates("NEW")
			require.Equal(t, "A", live.get(t).Group)
		})
	}
}

// TestWaitByTemplateOfUnknownCommit: a receive whose registration has an unknown outcome waits, is woken, and leaves
// nothing behind.
func TestWaitByTemplateOfUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost, fault.Conflict} {
		for how, o := range map[string]layer.ReceiveOptions{
			"template": {Where: isNew}, "group and template": {Where: isNew, Group: layer.OnlyGroup("A")},
		} {
			t.Run(kind.String()+"/"+how, func(t *testing.T) {
				e := newEnv(t, anyEngine, false)
				l := e.on(e.laned("lanes", "state", nil, 1)[0])
				e.plan.ForceNext(kind)
				w := e.waitOn("lanes", 2, never, o)
				l.sendStates("NEW")
				require.Equal(t, "A", w.get(t).Group)
				require.NoError(t, w.q.Close(e.ctx))
				byTemplate, named := e.laneRequests()
				require.Zero(t, byTemplate+named)
			})
		}
	}
}

// TestGrantOfAWholeGroup: what is granted to the handle's receives of whole groups is no use to its receives by
// template.
func TestGrantOfAWholeGroup(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	l := e.on(e.laned("lanes", "*; state", nil, 1)[0])
	w := e.waitOn("lanes", 2, never, layer.ReceiveOptions{})
	claims, err := w.q.Receive(e.ctx, layer.ReceiveOptions{Where: isPaid})
	require.NoError(t, err)
	require.Empty(t, claims)
	l.sendStates("NEW")
	require.Nil(t, w.get(t).Where)
}

// TestWaitsOfOneHandle: a handle whose receives by template wait keeps no request for whole groups, so that it takes no
// wake from a handle which waits for these.
func TestWaitsOfOneHandle(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	l := e.on(e.laned("lanes", "*; state", nil, 1)[0])
	both := e.waitOn("lanes", 2, never, layer.ReceiveOptions{})
	byTemplate := make(chan []*layer.Claim)
	go func() {
		claims, err := both.q.Receive(e.ctx, layer.ReceiveOptions{Where: isPaid, Wait: layer.MaxWait})
		require.NoError(t, err)
		byTemplate <- claims
	}()
	require.Eventually(t, func() bool { n, _ := e.laneRequests(); return n == 1 }, time.Minute, time.Millisecond)
	e.clock.advance(time.Second)
	other := e.waitOn("lanes", 3, never, layer.ReceiveOptions{})
	both.cancel()
	require.Empty(t, <-both.claims)
	require.Eventually(t, func() bool { return len(e.rows(inLanes("request"))) == 1 }, time.Minute, time.Millisecond)
	l.sendStates("NEW")
	require.Equal(t, "A", other.get(t).Group)
	_, err := l.q.Enqueue(e.ctx, layer.Message{Group: "B", Headers: facetsOf("PAID", "EU")})
	require.NoError(t, err)
	require.Equal(t, "B", (<-byTemplate)[0].Group)
}

// TestEveryWaitingHandleCounts: the figures count each handle whose receives wait once, whether the receives wait for
// any group, for a group, by a template, or for several of these.
func TestEveryWaitingHandleCounts(t *testing.T) {
	for name, all := range map[string][]layer.ReceiveOptions{
		"any group":          {{}},
		"group":              {{Group: layer.OnlyGroup("A")}},
		"template":           {{Where: isNew}},
		"group and template": {{Group: layer.OnlyGroup("A"), Where: isNew}},
		"all of them": {
			{}, {Group: layer.OnlyGroup("A")}, {Group: layer.OnlyGroup("B")}, {Where: isNew}, {Where: isPaid},
			{Group: layer.OnlyGroup("A"), Where: isNew},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			q := e.laned("lanes", "*; state", nil, 1)[0]
			figures := func() (counts [3]int64) {
				stats, err := q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(t, err)
				blocked, err := q.Admin().Blocked(e.ctx, layer.BlockedOptions{})
				require.NoError(t, err)
				require.False(t, blocked.Sampled)
				holders, err := q.Admin().Holders(e.ctx)
				require.NoError(t, err)
				return [...]int64{stats.WaitingHandles, blocked.Waiting, holders.Waiting}
			}
			require.Zero(t, figures())
			for handle := range int64(2) {
				w := e.waitOn("lanes", 2+uint64(handle), never, all[0])
				for _, o := range all[1:] {
					o.Wait = layer.MaxWait
					go w.q.Receive(e.ctx, o)
				}
				require.Eventually(t, func() bool {
					byTemplate, named := e.laneRequests()
					return byTemplate+named+len(e.rows(inLanes("request"))) == (int(handle)+1)*len(all)
				}, time.Minute, time.Millisecond)
				n := handle + 1
				require.Equal(t, [...]int64{n, n, n}, figures())
			}
		})
	}
}
