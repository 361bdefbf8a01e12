package layer_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// gate holds back the next commit that writes, of a database which is otherwise as it was.
type gate struct {
	kv.DB
	shut          atomic.Bool
	reached, open chan struct{}
}

func newGate(db kv.DB) *gate {
	return &gate{DB: db, reached: make(chan struct{}), open: make(chan struct{})}
}

func (g *gate) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := g.DB.Begin(o)
	return &gatedTx{writingTx{ManagedTx: tx}, g}, err
}

// writingTx is a transaction that notes that it writes.
type writingTx struct {
	kv.ManagedTx
	wrote bool
}

func (t *writingTx) Set(key, value []byte) {
	t.wrote = true
	t.ManagedTx.Set(key, value)
}

func (t *writingTx) Clear(key []byte) {
	t.wrote = true
	t.ManagedTx.Clear(key)
}

type gatedTx struct {
	writingTx
	gate *gate
}

func (t *gatedTx) Commit() kv.Future[struct{}] {
	if t.wrote && t.gate.shut.CompareAndSwap(true, false) {
		close(t.gate.reached)
		<-t.gate.open
	}
	return t.ManagedTx.Commit()
}

// soon is below every poll, and far above the time of a few transactions on a busy machine. Without a wake or a look
// the receives of these tests never return.
const soon = 20 * time.Second

// lateOn makes a message ready with a late transaction: it reads the requests before a receive begins to wait, and
// commits after the receive has looked.
func (e *env) lateOn(g *gate, queue string, o layer.ReceiveOptions, ready func()) *layer.Claim {
	e.t.Helper()
	g.shut.Store(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ready()
	}()
	select {
	case <-g.reached:
	case <-done:
		require.Fail(e.t, "nothing was committed")
	}
	e.db = g.DB
	w := e.waitLooking(queue, 2, o)
	close(g.open)
	<-done
	select {
	case claims := <-w.claims:
		require.Len(e.t, claims, 1)
		return claims[0]
	case <-time.After(soon):
		require.Fail(e.t, "the receive did not look again")
		return nil
	}
}

// waitLooking is waitOn for a handle which has no poll, but looks again when it has begun to wait.
func (e *env) waitLooking(queue string, n uint64, o layer.ReceiveOptions) *waiter {
	return e.waitWith(queue, n, func(o *layer.Options) { o.Poll = never }, o)
}

// TestWaitThatBeginsBesideACommit (G5): a receive which begins to wait while what makes its group ready is being
// committed gets the group within the time of a few transactions, whatever makes it ready.
func TestWaitThatBeginsBesideACommit(t *testing.T) {
	for name, c := range groupReadies() {
		for how, o := range map[string]layer.ReceiveOptions{"any": {}, "group": {Group: layer.OnlyGroup("A")}} {
			t.Run(how+"/"+name, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, anyEngine, false)
				g := newGate(e.db)
				var err error
				e.q, err = layer.Open(e.ctx, g, testPrefix, testQueue, e.options(7))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, e.q.Close(context.Background())) })
				given := c.setup(e)
				claim := e.lateOn(g, testQueue, o, func() { c.ready(e, given) })
				if name != "enqueue to many groups" || how == "group" {
					require.Equal(t, "A", claim.Group)
				}
			})
		}
	}
	long := func(c *layer.Config) { c.Lease = layer.MaxLease }
	for name, c := range groupReadies() {
		for how, o := range map[string]layer.ReceiveOptions{"any": {}, "group": {Group: layer.OnlyGroup("A")}} {
			t.Run("lease for each message, "+how+"/"+name, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, anyEngine, false)
				g := newGate(e.db)
				e.db = g
				e.q = e.inTurn("lanes", long, 1)[0]
				given := c.setup(e)
				claim := e.lateOn(g, "lanes", o, func() { c.ready(e, given) })
				if name != "enqueue to many groups" || how == "group" {
					require.Equal(t, "A", claim.Group)
				}
			})
		}
	}
	for name, c := range laneReadies() {
		for how, o := range map[string]layer.ReceiveOptions{
			"template": {Where: isNew}, "group and template": {Where: isNew, Group: layer.OnlyGroup("A")},
		} {
			t.Run(how+"/"+name, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, anyEngine, false)
				g := newGate(e.db)
				e.db = g
				l := e.on(e.laned("lanes", "*; state; region", long, 1)[0])
				given := c.setup(l)
				claim := e.lateOn(g, "lanes", o, func() { require.NoError(t, c.ready(l, claimOf(given))) })
				require.Equal(t, "A", claim.Group)
			})
		}
	}
	for name, f := range frees() {
		for how, o := range map[string]layer.ReceiveOptions{
			"unordered":        {Unordered: true, Max: 1},
			"unordered, group": {Unordered: true, Max: 1, Group: layer.OnlyGroup("A")},
		} {
			t.Run(how+"/"+name, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, anyEngine, false)
				g := newGate(e.db)
				e.db = g
				h := e.on(e.unordered("lanes", long, 1)[0])
				given := f.setup(h)
				claim := e.lateOn(g, "lanes", o, func() { require.NoError(t, f.frees(h, claimOf(given))) })
				require.Equal(t, "A", claim.Group)
			})
		}
	}
}

// changedSetting is a setting by which receives wait, and the change by which they need wait no longer.
type changedSetting struct {
	name   string
	groups bool // the setting is only for queues without facets
	before func(c *layer.Config)
	after  func(c *layer.Config)
}

// changedSettings are all settings of which a change lets receives continue that wait.
func changedSettings() []changedSetting {
	set := func(name, text string) func(c *layer.Config) {
		return func(c *layer.Config) {
			if err := c.Set(name, text); err != nil {
				panic(err)
			}
		}
	}
	delay := func(d time.Duration) func(c *layer.Config) {
		return func(c *layer.Config) { c.RetroactiveDelay, c.Delay = true, d }
	}
	return []changedSetting{
		{"max_rate raised", true, set("max_rate", "1/h"), set("max_rate", "10/s")},
		{"max_rate removed", true, set("max_rate", "1/h"), set("max_rate", "0")},
		{"max_rate_total raised", false, set("max_rate_total", "1/h"), set("max_rate_total", "10/s")},
		{"max_rate_total removed", false, set("max_rate_total", "1/h"), set("max_rate_total", "0")},
		{"delay shortened", false, delay(time.Hour), delay(3 * time.Second)},
		{"delay removed", false, delay(time.Hour), delay(0)},
	}
}

// TestChangedSettingWakes (G5): a receive that waits by a setting continues at once when Configure has changed the
// setting. It neither waits for a poll nor for the time that it has computed by the old setting. While the
// setting stays, the handle looks at most once a second, or twice for a retroactive delay.
func TestChangedSettingWakes(t *testing.T) {
	for _, c := range changedSettings() {
		for how, o := range map[string]layer.ReceiveOptions{
			"any": {}, "group": {Group: layer.OnlyGroup("A")}, "receive id": {ReceiveID: "once"},
			"template": {Where: isNew}, "group and template": {Where: isNew, Group: layer.OnlyGroup("A")},
		} {
			for _, handles := range []int{1, 3} {
				if c.groups && o.Where != nil {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%d handles", c.name, how, handles), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { waitByASetting(t, c, o, handles) })
				})
			}
		}
	}
}

func waitByASetting(t *testing.T, c changedSetting, o layer.ReceiveOptions, handles int) {
	const poll, waited = 20 * time.Second, 5200 * time.Millisecond
	e := newEnv(t, inMemory, false)
	e.clock.real.Store(true)
	q := e.laned("changed", "*; state; region", func(config *layer.Config) {
		if c.before(config); o.Where == nil {
			config.Facets, config.Views = nil, ""
		}
	}, 1)[0]
	m := layer.Message{Group: "A"}
	if o.Where != nil {
		m.Headers = map[string]string{"state": isNew["state"], "region": "EU"}
	}
	_, err := q.Enqueue(e.ctx, m, m)
	require.NoError(t, err)
	used, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
	require.NoError(t, err)
	for _, claim := range used {
		require.NoError(t, q.Ack(e.ctx, claim))
	}
	ctx, cancel := context.WithCancel(e.ctx)
	var waiting []*layer.Queue
	var ended sync.WaitGroup
	got := make(chan time.Time, handles)
	for i := range handles {
		options := e.options(uint64(20 + i))
		options.Poll = poll
		h, err := layer.Open(e.ctx, e.db, testPrefix, "changed", options)
		require.NoError(t, err)
		waiting = append(waiting, h)
		o := o
		if o.Wait = layer.MaxWait; o.ReceiveID != "" {
			o.ReceiveID = fmt.Sprint(i)
		}
		ended.Go(func() {
			if claims, err := h.Receive(ctx, o); err == nil && len(claims) > 0 {
				got <- time.Now()
			}
		})
	}
	time.Sleep(waited)
	assert.Empty(t, got)
	for _, h := range waiting {
		first := int64(12) // at 0.25, 0.5, 1 … 512 ms
		assert.LessOrEqual(t, h.Paths().Looks, first+2*int64(waited/time.Second)+2)
	}
	changed := time.Now()
	_, _, err = q.Admin().Configure(e.ctx, c.after)
	require.NoError(t, err)
	select {
	case at := <-got:
		assert.Less(t, at.Sub(changed), 100*time.Millisecond)
	case <-time.After(2 * poll):
		t.Error("the receive waits on")
	}
	cancel()
	ended.Wait()
	for _, h := range append(waiting, q) {
		require.NoError(t, h.Close(e.ctx))
	}
}

// lostWatches is an engine whose watches fail when lost is closed, as reads do that are too old.
type lostWatches struct {
	kv.DB
	lost chan struct{}
}

func (d *lostWatches) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return lostWatchesTx{tx, d}, err
}

type lostWatchesTx struct {
	kv.ManagedTx
	d *lostWatches
}

func (t lostWatchesTx) Watch(key []byte) kv.Future[struct{}] {
	select {
	case <-t.d.lost:
		return t.ManagedTx.Watch(key)
	default:
		return hanging[struct{}]{t.d.lost}
	}
}

// TestWatchThatIsTooOld (G5): a watch that fails because its read was too old, for example because another process
// serves the folder now, is set again at once. The next message wakes the receive.
func TestWatchThatIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, inMemory, false)
		db := &lostWatches{DB: e.db, lost: make(chan struct{})}
		options := e.options(3)
		options.Poll = never
		q, err := layer.Open(e.ctx, db, testPrefix, testQueue, options)
		require.NoError(t, err)
		got := make(chan []*layer.Claim)
		go func() {
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Hour})
			require.NoError(t, err)
			got <- claims
		}()
		time.Sleep(time.Hour / 2)
		close(db.lost)
		time.Sleep(time.Second)
		sent := time.Now()
		e.enqueue("A", "a")
		require.Len(t, <-got, 1)
		require.Less(t, time.Since(sent), 100*time.Millisecond)
		require.NoError(t, q.Close(e.ctx))
		e.sound(testQueue)
	})
}

// TestLooksFollowTheWait (G5): what commits a time d after a receive has begun to wait, and was begun before, reaches
// the receive at most d after its commit, whatever d is. A poll never comes.
func TestLooksFollowTheWait(t *testing.T) {
	for _, ms := range []int{2, 9, 33, 140, 600, 2000} {
		d := time.Duration(ms) * time.Millisecond
		t.Run(d.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, inMemory, false)
				e.clock.real.Store(true)
				g := newGate(e.db)
				late, err := layer.Open(e.ctx, g, testPrefix, testQueue, e.options(2))
				require.NoError(t, err)
				g.shut.Store(true)
				done := make(chan error)
				go func() {
					_, err := late.Enqueue(e.ctx, layer.Message{Group: "A"})
					done <- err
				}()
				<-g.reached
				options := e.options(3)
				options.Poll = never
				q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, options)
				require.NoError(t, err)
				got := make(chan time.Time)
				go func() {
					claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Minute})
					require.NoError(t, err)
					require.Len(t, claims, 1)
					got <- time.Now()
				}()
				time.Sleep(d)
				close(g.open)
				require.NoError(t, <-done)
				sent := time.Now()
				received := <-got
				require.LessOrEqual(t, received.Sub(sent), d+time.Millisecond)
				require.NoError(t, q.Close(e.ctx))
				require.NoError(t, late.Close(e.ctx))
			})
		})
	}
}

// TestWakeOfOneWhoIsGone (G5): two enqueues wake the same handle, and the second commits when the handle has been
// served, or has given up, and waits no more. The handle that waits behind is woken in its place.
func TestWakeOfOneWhoIsGone(t *testing.T) {
	for _, how := range []string{"served", "given up", "given up, and another receive came and went"} {
		t.Run(how, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			first := e.wait(10, never, layer.ReceiveOptions{})
			second := e.wait(11, never, layer.ReceiveOptions{})
			late := e.begin()
			defer late.Cancel()
			_, err := e.q.EnqueueTx(e.ctx, late, layer.Message{Group: "B"})
			require.NoError(t, err)
			switch how {
			case "served":
				e.enqueue("A", "a1")
				require.Equal(t, "A", first.get(t).Group)
			default:
				first.cancel()
				<-first.claims
				require.Eventually(t, func() bool { return e.requests() == 1 }, time.Minute, time.Millisecond)
			}
			if how == "given up, and another receive came and went" {
				o := layer.ReceiveOptions{Group: layer.OnlyGroup("other"), Wait: 20 * time.Millisecond}
				claims, err := first.q.Receive(e.ctx, o)
				require.NoError(t, err)
				require.Empty(t, claims)
				require.Eventually(t, func() bool { return e.requests() == 1 }, time.Minute, time.Millisecond)
			}
			e.commit(late)
			require.Equal(t, "B", second.get(t).Group)
		})
	}
}

// manyWants is more requests of one handle than a transaction reads at once.
const manyWants = 250

// TestWakesBehindManyRequests (G5): a handle with many requests takes no wake away from the handles behind it. A
// transaction reads a bounded number of requests, and yet wakes each handle for which there may be something. No handle
// polls.
func TestWakesBehindManyRequests(t *testing.T) {
	named := func(group string) layer.ReceiveOptions { return layer.ReceiveOptions{Group: layer.OnlyGroup(group)} }
	state := func(v string) layer.ReceiveOptions { return layer.ReceiveOptions{Where: layer.Template{"state": v}} }
	inGroup := func(o layer.ReceiveOptions, group string) layer.ReceiveOptions {
		o.Group = layer.OnlyGroup(group)
		return o
	}
	anyOf := func(o layer.ReceiveOptions) func(n int) layer.ReceiveOptions {
		return func(n int) layer.ReceiveOptions {
			if v := fmt.Sprintf("a%03d", n); o.Where == nil {
				o.Group = layer.OnlyGroup(v)
			} else {
				o.Where = layer.Template{"state": v}
			}
			return o
		}
	}
	pause := func(l *env) any {
		_, err := l.q.Admin().Pause(l.ctx, layer.PauseOptions{})
		require.NoError(l.t, err)
		return nil
	}
	resume := func(l *env, _ any) {
		_, err := l.q.Admin().Resume(l.ctx, layer.ResumeOptions{})
		require.NoError(l.t, err)
	}
	slow := func(l *env) any { // the first message uses the rate up
		configureTotal(l, "1/h")
		used, err := l.q.Receive(l.ctx, layer.ReceiveOptions{Max: 1})
		require.NoError(l.t, err)
		require.NoError(l.t, l.q.Ack(l.ctx, used[0]))
		return nil
	}
	many := func(l *env, _ any) {
		msgs := make([]layer.Message, 50)
		for i := range msgs {
			msgs[i] = layer.Message{Group: fmt.Sprint("x", i), Headers: facetsOf("old", "US")}
		}
		msgs = append(msgs, layer.Message{Group: "z", Headers: facetsOf(isNew["state"], "EU")})
		_, err := l.q.Enqueue(l.ctx, msgs...)
		require.NoError(l.t, err)
	}
	one := func(l *env, _ any) {
		_, err := l.q.Enqueue(l.ctx, layer.Message{Group: "z", Headers: facetsOf(isNew["state"], "EU")})
		require.NoError(l.t, err)
	}
	region := layer.ReceiveOptions{Where: layer.Template{"region": "EU"}}
	take := func(l *env) any {
		claims, err := l.q.Receive(l.ctx, layer.ReceiveOptions{Where: isNew})
		require.NoError(l.t, err)
		require.Len(l.t, claims, 1)
		return claims[0]
	}
	release := func(l *env, claim any) {
		require.NoError(l.t, l.q.Nack(l.ctx, claim.(*layer.Claim), layer.NackOptions{Release: true}))
	}
	for name, c := range map[string]struct {
		facets, sent bool // sent = a message for the receive is there before
		before       func(n int) layer.ReceiveOptions
		o            layer.ReceiveOptions
		setup        func(l *env) any
		ready        func(l *env, given any)
	}{
		"resume, groups":          {false, true, anyOf(named("")), named("z"), pause, resume},
		"resume, templates":       {true, true, anyOf(state("")), region, pause, resume},
		"setting, groups":         {false, true, anyOf(named("")), named("z"), slow, raiseTotal},
		"setting, templates":      {true, true, anyOf(state("")), region, slow, raiseTotal},
		"many groups":             {false, false, anyOf(named("")), named("z"), nil, many},
		"many lanes":              {true, false, anyOf(state("")), region, nil, many},
		"lane of a group":         {true, false, anyOf(inGroup(state(""), "z")), inGroup(region, "z"), nil, one},
		"many lanes, and a group": {true, false, anyOf(inGroup(state(""), "z")), inGroup(region, "z"), nil, many},
		"unlocked lane":           {true, true, anyOf(inGroup(state(""), "z")), inGroup(region, "z"), take, release},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, inMemory, false)
				e.clock.real.Store(true)
				l := e.on(e.laned("wakes", "*; state; region", func(config *layer.Config) {
					if !c.facets {
						config.Facets, config.Views = nil, ""
					}
				}, 1)[0])
				if c.sent {
					one(l, nil)
					one(l, nil)
				}
				var given any
				if c.setup != nil {
					given = c.setup(l)
				}
				options := e.options(2)
				options.Poll, options.Test.NoLooks = never, true
				crowd, err := layer.Open(e.ctx, e.db, testPrefix, "wakes", options)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(e.ctx)
				var ended sync.WaitGroup
				for n := range manyWants {
					o := c.before(n)
					o.Wait = layer.MaxWait
					ended.Go(func() { _, _ = crowd.Receive(ctx, o) })
				}
				time.Sleep(time.Second)
				w := e.waitOn("wakes", 3, never, c.o)
				time.Sleep(time.Second)
				require.Empty(t, w.claims)
				sent := time.Now()
				c.ready(l, given)
				require.Equal(t, "z", w.get(t).Group)
				require.Less(t, time.Since(sent), time.Second)
				cancel()
				ended.Wait()
				require.NoError(t, crowd.Close(context.Background()))
				require.NoError(t, w.q.Close(context.Background()))
			})
		})
	}
}

func configureTotal(l *env, rate string) {
	l.t.Helper()
	_, _, err := l.q.Admin().Configure(l.ctx, func(c *layer.Config) {
		require.NoError(l.t, c.Set("max_rate_total", rate))
	})
	require.NoError(l.t, err)
}

func raiseTotal(l *env, _ any) { configureTotal(l, "10/s") }
