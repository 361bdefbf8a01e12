package layer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// rated is setup in a queue whose groups have a rate.
func rated(text string, setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		e.configure(func(c *layer.Config) { require.NoError(e.t, c.Set("max_rate", text)) })
		return setup(e)
	}
}

// usedUp has a group A of two items left that waits by its rate of one a minute, with a hint, as the end of a claim
// leaves it.
func usedUp(e *env) any {
	return rated("1/m", func(e *env) any {
		require.NoError(e.t, e.q.Ack(e.ctx, holding(3, 3)(e).(*layer.Claim)))
		return nil
	})(e)
}

// paced is usedUp with the timer in the place of the hint.
func paced(e *env) any {
	usedUp(e)
	require.Nil(e.t, e.receive(e.q, 1))
	return nil
}

// used is up to when a group's rate is used up, after the clock's start, by the pair itself.
func (e *env) used(group string) time.Duration {
	e.t.Helper()
	rows := e.rows(kv.SingleKey(key("pace", group)))
	require.Len(e.t, rows, 1)
	t, err := tuple.Unpack(rows[0].Value)
	require.NoError(e.t, err)
	return time.UnixMicro(t[0].(int64)).Sub(time.UnixMilli(1_700_000_000_000))
}

// started is a start of deliveries of one group: the time by the receiver's clock, and the number of items.
type started struct {
	at    time.Time
	items int
}

// rateLaw is what is promised: over any time T at most rate × T items and a second's worth, one at least. It returns the
// first time over which it was more, or "". Clocks may differ by skew.
func rateLaw(r layer.Rate, all []started, skew time.Duration) string {
	burst := max(1, int64(r.Count)*int64(time.Second)/int64(r.Per))
	for i := range all {
		n := int64(0)
		for _, s := range all[i:] {
			n += int64(s.items)
			if span := s.at.Sub(all[i].at) + skew; (n-burst)*int64(r.Per) > int64(r.Count)*int64(span) {
				return fmt.Sprintf("%d items in %s, from %s on", n, span, all[i].at)
			}
		}
	}
	return ""
}

// TestRateLawIsSharp: the law that the tests hold the queue to can be broken, by one item or by a millisecond.
func TestRateLawIsSharp(t *testing.T) {
	at := func(ms int64, items int) started { return started{time.UnixMilli(ms), items} }
	twoASecond := layer.Rate{Count: 2, Per: time.Second}
	require.Empty(t, rateLaw(twoASecond, []started{at(0, 2), at(500, 1), at(1500, 2)}, 0))
	require.NotEmpty(t, rateLaw(twoASecond, []started{at(0, 3)}, 0))
	require.NotEmpty(t, rateLaw(twoASecond, []started{at(0, 2), at(499, 1)}, 0))
	require.NotEmpty(t, rateLaw(twoASecond, []started{at(0, 1), at(0, 1), at(1000, 2), at(1000, 1)}, 0))
	perMinute := layer.Rate{Count: 3, Per: time.Minute}
	require.Empty(t, rateLaw(perMinute, []started{at(0, 1), at(20_000, 1)}, 0))
	require.NotEmpty(t, rateLaw(perMinute, []started{at(0, 1), at(19_999, 1)}, 0))
}

// TestRateText: the texts of rates. Other texts, and rates out of range, are refused.
func TestRateText(t *testing.T) {
	for text, want := range map[string]layer.Rate{
		"0": {}, "10/s": {Count: 10, Per: time.Second}, "100/m": {Count: 100, Per: time.Minute},
		"5/h": {Count: 5, Per: time.Hour}, "3/10s": {Count: 3, Per: 10 * time.Second},
		"7/1h30m": {Count: 7, Per: 90 * time.Minute}, "1/1.5s": {Count: 1, Per: 1500 * time.Millisecond},
		"1000000/s": {Count: 1_000_000, Per: time.Second}, "1/24h": {Count: 1, Per: 24 * time.Hour},
	} {
		got, err := layer.ParseRate(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		require.Equal(t, text, got.String())
		var c, again layer.Config
		require.NoError(t, c.Set("max_rate", text))
		document, err := json.Marshal(c)
		require.NoError(t, err)
		require.Contains(t, string(document), `"max_rate":"`+text+`"`)
		require.NoError(t, json.Unmarshal(document, &again))
		require.Equal(t, want, again.MaxRate)
	}
	for _, text := range []string{"", "10", "/s", "10/", "ten/s", "10/x", "1.5/s", "10/s/s", "10 / s", "0.0"} {
		_, err := layer.ParseRate(text)
		var bad *layer.ValueError
		require.ErrorAs(t, err, &bad, "%q", text)
		require.Equal(t, text, bad.Got)
		require.ErrorIs(t, new(layer.Config).Set("max_rate", text), layer.ErrOptions)
	}
	e := newEnv(t, anyEngine, false)
	for _, r := range []layer.Rate{
		{Count: -1, Per: time.Second}, {Per: time.Second}, {Count: 1}, {Count: 1_000_000 + 1, Per: time.Second},
		{Count: 1, Per: time.Second - 1}, {Count: 1, Per: 24*time.Hour + 1},
	} {
		_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.MaxRate = r })
		var limit *layer.LimitError
		require.ErrorAs(t, err, &limit, "%v", r)
	}
	_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.MaxRate = layer.Rate{Count: 1, Per: time.Second + 1} })
	require.ErrorIs(t, err, layer.ErrOptions)
	require.Zero(t, e.q.Config().MaxRate, "nothing was changed")
}

// TestRateHolds (the law of Config.MaxRate): whatever is done in a queue, by several handles, with faults: over any
// time no group starts more deliveries than its rate and a second's worth. And no less: a group that is ready gives an
// item, one that waits gives one when it has waited for as long as is said, and at last all is delivered.
func TestRateHolds(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"3/s", "1/s", "7/m", "50/s", "3/2.5s", "1000/s"} {
		t.Run(strings.ReplaceAll(text, "/", " in "), func(t *testing.T) {
			onEngines(t, func(e *env) { holdRate(e, text) })
		})
	}
}

func holdRate(e *env, text string) {
	e.configure(func(c *layer.Config) {
		require.NoError(e.t, c.Set("max_rate", text))
		c.MaxAttempts = 3
	})
	rate := e.q.Config().MaxRate
	item := rate.Per / time.Duration(rate.Count) // how long one takes
	r := rand.New(rand.NewPCG(e.seed, 1))
	handles := []*layer.Queue{e.q, e.handle(2), e.handle(3)}
	all := make(map[string][]started)
	var claims []*layer.Claim
	given := func(group string, items int) {
		all[group] = append(all[group], started{e.clock.now(), items})
		require.Empty(e.t, rateLaw(rate, all[group], 0), "group %q", group)
	}
	receive := func(o layer.ReceiveOptions) []*layer.Claim {
		got, err := handles[r.IntN(3)].Receive(e.ctx, o)
		require.NoError(e.t, err)
		for _, c := range got {
			given(c.Group, len(c.Items))
		}
		claims = append(claims, got...)
		return got
	}
	group := func() string { return string(rune('A' + r.IntN(3))) }
	lost := func(err error) {
		if !errors.Is(err, layer.ErrClaimLost) && !errors.Is(err, layer.ErrNotHeld) && !errors.Is(err, layer.ErrNotPaused) {
			require.NoError(e.t, err)
		}
	}
	steps := 150
	if testing.Short() {
		steps = 40
	}
	for range steps {
		q := handles[r.IntN(3)]
		switch n := r.IntN(20); {
		case n < 4:
			msgs := make([]layer.Message, 1+r.IntN(8))
			for i := range msgs {
				msgs[i] = layer.Message{Group: group()}
				if r.IntN(10) == 0 {
					msgs[i].Delay = time.Duration(r.IntN(3)) * item
				}
			}
			_, err := q.Enqueue(e.ctx, msgs...)
			require.NoError(e.t, err)
		case n < 8:
			o := layer.ReceiveOptions{
				Max: 1 + r.IntN(12), Strategy: layer.Strategy(r.IntN(3)), Lease: time.Second,
				CountExpired: true, // so that each handle gives the same
			}
			if o.Strategy == layer.FillGroup && r.IntN(3) == 0 {
				o.Group = ptr(group())
			}
			if r.IntN(3) == 0 {
				o.ReceiveID = fmt.Sprint("id", r.Uint64())
				got := receive(o)
				again, err := handles[r.IntN(3)].Receive(e.ctx, o)
				require.NoError(e.t, err)
				require.Equal(e.t, len(got), len(again), "a repetition is given the same, and it has not counted")
				break
			}
			receive(o)
		case n < 9:
			var items []layer.Item
			require.NoError(e.t, q.Once(e.ctx, func(tx kv.Tx) (err error) {
				items, _, err = q.TakeTx(e.ctx, tx, 1+r.IntN(5), layer.TakeOptions{})
				return err
			}))
			if len(items) > 0 {
				given(items[0].ID.Group, len(items))
			}
		case n < 14:
			if len(claims) > 0 {
				c := claims[r.IntN(len(claims))]
				switch r.IntN(5) {
				case 0:
					lost(q.Nack(e.ctx, c, layer.NackOptions{}))
				case 1:
					lost(q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
				case 2:
					next := layer.ReceiveOptions{Max: 5, Lease: time.Second}
					got, err := q.SettleReceive(e.ctx, layer.Settlement{Claim: c, FinishAll: true}, next)
					lost(err)
					for _, c := range got {
						given(c.Group, len(c.Items))
					}
					claims = append(claims, got...)
				default:
					lost(q.Ack(e.ctx, c))
				}
			}
		case n < 15:
			_, err := q.Admin().ForceRelease(e.ctx, group(), layer.ForceReleaseOptions{})
			lost(err)
		case n < 16:
			_, err := q.Admin().PauseGroup(e.ctx, group(), layer.PauseOptions{})
			require.NoError(e.t, err)
		case n < 17:
			_, err := q.Admin().ResumeGroup(e.ctx, group(), layer.ResumeOptions{})
			lost(err)
		case n < 18:
			_, err := q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(e.t, err)
		default:
			e.clock.advance(time.Duration(r.Int64N(int64(4*item) + int64(100*time.Millisecond))))
		}
	}
	for _, g := range []string{"A", "B", "C"} {
		_, err := e.q.Admin().ResumeGroup(e.ctx, g, layer.ResumeOptions{})
		lost(err)
	}
	e.clock.advance(10 * time.Second) // leases and delays are over
	look := e.calm()
	for {
		page, err := look.Admin().Groups(e.ctx, layer.GroupsOptions{})
		require.NoError(e.t, err)
		if len(page.Groups) == 0 {
			return
		}
		switch g := page.Groups[r.IntN(len(page.Groups))]; g.Status {
		case layer.Delayed:
			e.clock.advance(g.Left)
			fallthrough
		case layer.Expired: // when that is settled it may have to wait
			receive(layer.ReceiveOptions{Max: 1, Group: &g.Group})
		case layer.RateLimited:
			e.clock.advance(g.Left - time.Millisecond)
			require.Empty(e.t, receive(layer.ReceiveOptions{Group: &g.Group}), "a millisecond early")
			e.clock.advance(time.Millisecond)
			require.NotEmpty(e.t, receive(layer.ReceiveOptions{Group: &g.Group}), "its time has come")
		case layer.Ready:
			require.NotEmpty(e.t, receive(layer.ReceiveOptions{Group: &g.Group}))
		default:
			require.Fail(e.t, "nothing else is left", "%v", g)
		}
		for _, c := range claims {
			lost(look.Ack(e.ctx, c))
		}
		claims = nil
	}
}

// TestRateAtOnce: many receives and takes run at the same time, conflict and share transactions. A group gives exactly
// a second's worth of items. It gives no fewer, because each receiver begins again after its ack.
func TestRateAtOnce(t *testing.T) {
	onEngines(t, func(e *env) {
		rated("7/s", having())(e)
		const groups = 5
		for i := range groups {
			e.fill(fmt.Sprint("g", i), 20)
		}
		handles := []*layer.Queue{e.q, e.handle(2), e.handle(3)}
		var mu sync.Mutex
		given := make(map[string]int)
		note := func(group string, n int) {
			mu.Lock()
			defer mu.Unlock()
			given[group] += n
		}
		var wg sync.WaitGroup
		for i := range 12 {
			q := handles[i%len(handles)]
			wg.Go(func() {
				for range 10 {
					claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1 + i%4})
					if err != nil {
						e.t.Error(err)
						return
					}
					for _, c := range claims {
						note(c.Group, len(c.Items))
						if err := q.Ack(e.ctx, c); err != nil {
							e.t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		for {
			c := e.receive(e.calm(), 1)
			if c == nil {
				break
			}
			note(c.Group, 1)
			require.NoError(e.t, e.q.Ack(e.ctx, c))
		}
		require.Len(e.t, given, groups)
		for group, n := range given {
			require.Equal(e.t, 7, n, "group %q", group)
		}
	})
}

// TestRateWhileWaiting: waiting receives get a group when its rate lets it continue, by the machine's clock. The law
// holds by the times of the claims, all items are delivered, and other groups are not held up.
func TestRateWhileWaiting(t *testing.T) {
	onMemory(t, func(e *env) {
		rated("20/s", having())(e)
		e.clock.real.Store(true)
		e.fill("A", 30)
		var mu sync.Mutex
		all := make(map[string][]started)
		left := 30 + 5
		over := make(chan struct{})
		var wg sync.WaitGroup
		for n := range uint64(3) {
			q := e.handle(10 + n)
			wg.Go(func() {
				defer func() { require.NoError(e.t, q.Close(e.ctx)) }()
				for {
					select {
					case <-over:
						return
					default:
					}
					claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 3, Lease: time.Minute, Wait: 100 * time.Millisecond})
					if err != nil {
						e.t.Error(err)
						return
					}
					mu.Lock()
					for _, c := range claims {
						all[c.Group] = append(all[c.Group], started{c.Until.Add(-time.Minute), len(c.Items)})
						if left -= len(c.Items); left == 0 {
							close(over)
						}
					}
					mu.Unlock()
					for _, c := range claims {
						if err := q.Ack(e.ctx, c); err != nil {
							e.t.Error(err)
						}
					}
				}
			})
		}
		e.fill("B", 5)
		wg.Wait()
		rate := layer.Rate{Count: 20, Per: time.Second}
		for group, s := range all {
			slices.SortFunc(s, func(a, b started) int { return a.at.Compare(b.at) })
			require.Empty(e.t, rateLaw(rate, s, 0), "group %q", group)
		}
	})
}

// TestRateOfUnknownCommit (G3): a claim or a take with an unknown commit counts once, both if it was applied, and if it
// was lost and done again.
func TestRateOfUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		for name, op := range map[string]func(e *env) error{
			"receive": func(e *env) error { return receiveN(2)(e, nil) },
			"take": func(e *env) error {
				return e.q.Once(e.ctx, func(tx kv.Tx) error {
					_, _, err := e.q.TakeTx(e.ctx, tx, 2, layer.TakeOptions{})
					return err
				})
			},
			"receive with an id": func(e *env) error {
				_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 2, ReceiveID: "once"})
				return err
			},
		} {
			e := newEnv(t, anyEngine, false)
			rated("5/s", having("a1", "a2", "a3"))(e)
			e.plan.ForceNext(kind)
			require.NoError(t, op(e), name)
			require.Equal(t, -600*time.Millisecond, e.used("A"), "%s, %s: two of the second that was saved up", name, kind)
		}
	}
}

// TestRepetitionDoesNotCount: a receive repeated with its receive id, from another handle too, uses nothing of the
// rate.
func TestRepetitionDoesNotCount(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	rated("5/s", having("a1", "a2", "a3"))(e)
	o := layer.ReceiveOptions{Max: 2, ReceiveID: "once"}
	for range 3 {
		for _, q := range []*layer.Queue{e.q, e.calm()} {
			claims, err := q.Receive(e.ctx, o)
			require.NoError(t, err)
			require.Len(t, claims[0].Items, 2)
			require.Equal(t, -600*time.Millisecond, e.used("A"))
		}
	}
}

// TestRateOfHandlesThatDoNotKnow: a raised or removed rate applies to groups that wait by the old rate, also if a
// handle that still uses the old rate looks at them in between.
func TestRateOfHandlesThatDoNotKnow(t *testing.T) {
	for _, text := range []string{"0", "5/s"} {
		e := newEnv(t, anyEngine, false)
		rated("1/24h", having("a1", "a2"))(e)
		late := e.handle(2)
		require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		require.Nil(t, e.receive(late, 1))
		require.Len(t, e.rows(kv.PrefixRange(key("timer"))), 1)
		e.clock.advance(200 * time.Millisecond)
		require.Nil(t, e.receive(late, 1))
		rated(text, having())(e)
		require.Equal(t, "1/24h", late.Config().MaxRate.String(), "it is not time to look yet")
		c := e.receive(late, 1)
		require.NotNil(t, c, "it looked, before it left the group for a day")
		require.Equal(t, []string{"a2"}, bodies(c.Items))
	}
}

// TestRateLowered: what was saved up by a faster rate does not count by a slower one.
func TestRateLowered(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	rated("10/s", having())(e)
	e.fill("A", 10)
	require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 2)))
	e.configure(func(c *layer.Config) { c.MaxRate = layer.Rate{Count: 2, Per: time.Second} })
	require.Len(t, e.receive(e.q, 10).Items, 1, "of the second 0.8 is left")
}

// TestRateAndClocks: a clock that is ahead lets as many more items start, once. A handle whose clock is behind waits
// for the difference and no longer. Neither breaks the order.
func TestRateAndClocks(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	rated("1/s", having())(e)
	e.fill("A", 10)
	skewed := func(n uint64, by time.Duration) *layer.Queue {
		o := e.options(n)
		o.Now = func() time.Time { return e.clock.now().Add(by) }
		q, err := layer.Open(e.ctx, e.raw, testPrefix, testQueue, o)
		require.NoError(t, err)
		return q
	}
	ahead := skewed(5, 30*time.Second)
	require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 5)))
	require.Nil(t, e.receive(e.q, 5))
	c := e.receive(ahead, 5)
	require.Len(t, c.Items, 1, "thirty seconds are no more than one has saved up")
	require.NoError(t, e.q.Ack(e.ctx, c))
	require.Nil(t, e.receive(ahead, 5))
	e.clock.advance(30*time.Second - time.Millisecond)
	require.Nil(t, e.receive(e.q, 5))
	page, err := e.q.Admin().Groups(e.ctx, layer.GroupsOptions{})
	require.NoError(t, err)
	require.Equal(t, layer.RateLimited, page.Groups[0].Status)
	require.Equal(t, time.Second+time.Millisecond, page.Groups[0].Left)
	e.clock.advance(time.Second + time.Millisecond)
	require.NotNil(t, e.receive(e.q, 5))
}

// TestSweepClearsPaces: what is kept of a group's rate goes when it is as none, not before, and all of it when there is
// no rate any more; and a sweep makes the groups ready that wait by a rate that was another.
func TestSweepClearsPaces(t *testing.T) {
	onEngines(t, func(e *env) {
		rated("4/m", having())(e)
		n := 300 // more than a page
		if len(e.plan.Chances) > 0 {
			n = 20 // each is a read that may fail
		}
		for i := range n {
			e.enqueue(fmt.Sprint("g", i), "x")
		}
		receiveAll := func() {
			for {
				claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 5}) // few reads, of which any may fail
				require.NoError(e.t, err)
				if len(claims) == 0 {
					return
				}
				for _, c := range claims {
					require.NoError(e.t, e.q.Ack(e.ctx, c))
				}
			}
		}
		receiveAll()
		kept := func() int { return len(e.rows(kv.PrefixRange(key("pace")))) }
		require.Equal(e.t, n, kept())
		e.enqueue("g7", "y")
		receiveAll()
		e.clock.advance(15*time.Second - time.Millisecond)
		sweepOnce := func() layer.SweepReport {
			report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(e.t, err)
			return report
		}
		require.Zero(e.t, sweepOnce().Paces)
		require.Equal(e.t, n, kept())
		e.clock.advance(time.Millisecond)
		sweepOnce()
		require.Zero(e.t, kept())
		require.NotNil(e.t, e.receive(e.q, 1), "it is not forgotten that it waits")

		// A process that dies after the commit of another rate leaves that to the sweep.
		changeAndDie := func(rate layer.Rate) {
			_, err := kv.Run(e.ctx, e.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				a := e.join(tx, testQueue, e.options(98), true)
				_, _, err := a.Configure(e.ctx, func(c *layer.Config) { c.MaxRate = rate })
				require.ErrorIs(e.t, err, errDied)
				return nil
			})
			require.NoError(e.t, err)
		}
		changeAndDie(layer.Rate{Count: 1, Per: 24 * time.Hour})
		e.clock.advance(time.Second)
		e.enqueue("day", "1", "2")
		require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		require.Nil(e.t, e.receive(e.q, 1))
		changeAndDie(layer.Rate{})
		e.clock.advance(time.Second)
		require.Nil(e.t, e.receive(e.q, 1))
		sweepOnce()
		require.Zero(e.t, kept())
		c := e.receive(e.q, 1)
		require.NotNil(e.t, c)
		require.Equal(e.t, "day", c.Group)
	})
}

// TestSweepAmidClaims: what a claim uses of a rate between a sweep's look and its commit is not cleared, whichever of
// its transactions that is.
func TestSweepAmidClaims(t *testing.T) {
	for skip := range int64(8) {
		e := newEnv(t, anyEngine, false)
		rated("5/s", having("a1", "a2", "a3"))(e)
		require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 3)))
		e.clock.advance(time.Second)
		require.Equal(t, -400*time.Millisecond, e.used("A"))
		db := &beforeCommit{DB: e.raw}
		q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
		require.NoError(t, err)
		claimed := false
		db.run = func() {
			claimed = true
			e.enqueue("A", "a4")
			e.receive(e.calm(), 1)
		}
		db.skip.Store(skip)
		db.left.Store(1)
		_, err = q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(t, err)
		if !claimed {
			require.Greater(t, skip, int64(5), "all parts of the sweep")
			continue
		}
		require.Equal(t, 200*time.Millisecond, e.used("A"), "of the second from now; before commit %d", skip)
	}
}

// TestSweepAmidAChangeOfTheRate: a sweep judges what a group has used by the rate of the moment, also in its later
// pages.
func TestSweepAmidAChangeOfTheRate(t *testing.T) {
	const groups = 201 // more than one page
	last := layer.ReceiveOptions{Group: ptr("last")}
	for skip := int64(0); ; skip++ {
		e := newEnv(t, anyEngine, false)
		e.configure(func(c *layer.Config) { require.NoError(t, c.Set("max_rate", "1/s")) })
		for i := range groups {
			e.enqueue(fmt.Sprintf("G%03d", i), "1")
		}
		for e.receive(e.q, 1) != nil {
		}
		e.enqueue("last", "1", "2")
		e.clock.advance(2 * time.Second)
		db := &beforeCommit{DB: e.raw}
		q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
		require.NoError(t, err)
		db.run = func() {
			e.configure(func(c *layer.Config) { require.NoError(t, c.Set("max_rate", "1/24h")) })
			claims, err := e.q.Receive(e.ctx, last)
			require.NoError(t, err)
			require.Len(t, claims, 1)
			require.NoError(t, e.q.Ack(e.ctx, claims[0]))
			e.clock.advance(2 * time.Second)
		}
		db.skip.Store(skip)
		db.left.Store(1)
		_, err = q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(t, err)
		if db.left.Load() > 0 {
			require.Greater(t, skip, int64(5), "all parts of the sweep")
			break
		}
		claims, err := e.q.Receive(e.ctx, last)
		require.NoError(t, err)
		require.Empty(t, claims, "before commit %d", skip)
	}
}

// ackAndReceive ends a claim and receives, in one transaction.
func ackAndReceive(e *env, tx kv.Tx, given any) error {
	if err := e.q.AckTx(e.ctx, tx, given.(*layer.Claim)); err != nil {
		return err
	}
	claims, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{})
	require.Empty(e.t, claims)
	return err
}

// TestRateChangedAmidRelease: a handle acks and receives in one transaction, and so leaves the group to its rate. At
// the same time the rate is changed. The two transactions conflict, whichever transaction of the change it is. Guard
// pace-exclude.
func TestRateChangedAmidRelease(t *testing.T) {
	for skip := range int64(4) {
		e := newEnv(t, anyEngine, false)
		given := rated("1/24h", holding(2, 1))(e)
		tx, err := e.raw.Begin(kv.TxOptions{})
		require.NoError(t, err)
		defer tx.Cancel()
		require.NoError(t, ackAndReceive(e, tx, given))
		db := &beforeCommit{DB: e.raw}
		q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
		require.NoError(t, err)
		db.run = func() { tx.Commit().Wait(e.ctx) }
		db.skip.Store(skip)
		db.left.Store(1)
		_, _, err = q.Admin().Configure(e.ctx, func(c *layer.Config) { c.MaxRate = layer.Rate{} })
		require.NoError(t, err)
		if db.left.Load() > 0 { // no other is left
			require.Greater(t, skip, int64(1))
			continue
		}
		e.clock.advance(2 * time.Second)
		if c := e.receive(e.q, 1); c == nil { // the ack was refused
			require.NoError(t, e.q.Ack(e.ctx, given.(*layer.Claim)), "before commit %d", skip)
			require.NotNil(t, e.receive(e.q, 1), "before commit %d", skip)
		}
	}
}

// TestPurgeForgetsRates: also of groups that wait by them, and not of those in flight.
func TestPurgeForgetsRates(t *testing.T) {
	onEngines(t, func(e *env) {
		rated("1/h", having())(e)
		for _, group := range []string{"A", "B", "C"} {
			e.enqueue(group, "1", "2")
		}
		var held *layer.Claim
		for range 3 {
			if c := e.receive(e.q, 2); c.Group == "B" {
				held = c
			} else {
				require.NoError(e.t, e.q.Ack(e.ctx, c))
			}
		}
		require.Nil(e.t, e.receive(e.q, 2))
		_, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
		require.NoError(e.t, err)
		require.Len(e.t, e.rows(kv.PrefixRange(key("pace"))), 1)
		e.used("B")
		e.enqueue("A", "3")
		require.Equal(e.t, []string{"3"}, bodies(e.receive(e.q, 2).Items))
		require.NoError(e.t, e.q.Ack(e.ctx, held))
		// One that is purged while it waits, with an item that comes behind the purge.
		e.enqueue("A", "4")
		_, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: ptr("C"), Force: true})
		require.NoError(e.t, err)
		e.enqueue("C", "5")
		require.Equal(e.t, []string{"5"}, bodies(e.receive(e.q, 2).Items))
	})
}

// TestCorruptPaceStallsItsGroupOnly: a pair that cannot be read stalls its group and no other, is named, and is never
// taken for none.
func TestCorruptPaceStallsItsGroupOnly(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	rated("1/s", having("a1"))(e)
	e.write(func(tx kv.Tx) { tx.Set(key("pace", "A"), []byte("?")) })
	_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
	require.ErrorIs(t, err, layer.ErrCorrupt)
	e.enqueue("B", "b1")
	require.Equal(t, "B", e.receive(e.q, 1).Group)
	for _, strategy := range []layer.Strategy{layer.Layers, layer.Heads} {
		_, err = e.q.Receive(e.ctx, layer.ReceiveOptions{Strategy: strategy})
		require.ErrorIs(t, err, layer.ErrCorrupt)
	}
	page, err := e.q.Admin().Groups(e.ctx, layer.GroupsOptions{})
	require.NoError(t, err)
	require.Equal(t, layer.Corrupt, page.Groups[0].Status)
	_, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	report, err := e.q.Admin().Check(e.ctx, layer.CheckOptions{})
	require.NoError(t, err)
	require.Len(t, report.Violations, 1)
	e.write(func(tx kv.Tx) { tx.Clear(key("pace", "A")) })
	require.Equal(t, "A", e.receive(e.q, 1).Group)
}

// changeRate changes the rate, in a transaction of its own.
func changeRate(e *env, _ kv.Tx, _ any) error {
	_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.MaxRate = layer.Rate{Count: 9, Per: time.Second} })
	return err
}
