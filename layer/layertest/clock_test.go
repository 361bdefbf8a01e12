package layer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

const year = 365 * 24 * time.Hour

// clocks is a queue in virtual time with handles whose clocks differ.
type clocks struct {
	*testing.T
	db kv.DB
	q  *layer.Queue // its clock is right
}

// inClocks runs a test on a queue with the lease clockLease. The test ends with a full check by the right clock.
func inClocks(t *testing.T, config layer.Config, test func(c *clocks)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &clocks{T: t, db: inMemory(t)}
		config.Lease = clockLease
		var err error
		c.q, err = layer.Create(t.Context(), c.db, nil, "q", layer.Options{Owner: "right", Config: config})
		require.NoError(t, err)
		test(c)
		report, err := c.q.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, c.q.Close(context.Background()))
		require.NoError(t, c.db.Close())
	})
}

const clockLease = 30 * time.Second

// off returns a handle whose clock is off by d.
func (c *clocks) off(d time.Duration) *layer.Queue {
	return c.clock(func() time.Time { return time.Now().Add(d) })
}

// clock returns a handle with a clock.
func (c *clocks) clock(now func() time.Time) *layer.Queue {
	q, err := layer.Open(c.Context(), c.db, nil, "q", layer.Options{Now: now})
	require.NoError(c, err)
	return q
}

func (c *clocks) send(q *layer.Queue, all ...layer.Message) {
	for i := range all {
		all[i].Group = "A"
	}
	_, err := q.Enqueue(c.Context(), all...)
	require.NoError(c, err)
}

// claim receives one message at once.
func (c *clocks) claim(q *layer.Queue, o layer.ReceiveOptions) *layer.Claim {
	o.Max = 1
	claims, err := q.Receive(c.Context(), o)
	require.NoError(c, err)
	require.Len(c, claims, 1)
	return claims[0]
}

// subscribe runs a subscription until its handler is called. begun is called once the subscription is held.
func (c *clocks) subscribe(q *layer.Queue, begun func()) {
	ctx, end := context.WithTimeout(c.Context(), time.Hour)
	defer end()
	time.AfterFunc(time.Second, begun)
	err := q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
		end()
		return nil
	}, layer.SubscribeOptions{Lease: clockLease})
	require.NoError(c, err)
}

func (c *clocks) row(key []byte) (value []byte) {
	_, err := kv.Run(c.Context(), c.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		value, err = tx.Get(key).Wait(c.Context())
		return err
	})
	require.NoError(c, err)
	return value
}

func (c *clocks) put(key, value []byte) {
	_, err := kv.Run(c.Context(), c.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set(key, value)
		return nil
	})
	require.NoError(c, err)
}

// drain returns how long the right handle takes to receive and ack n messages, one receive a second.
func (c *clocks) drain(n int, o layer.ReceiveOptions) time.Duration {
	begun := time.Now()
	for o.Max = 1; n > 0; {
		require.Less(c, time.Since(begun), time.Hour, "%d messages are not delivered", n)
		claims, err := c.q.Receive(c.Context(), o)
		require.NoError(c, err)
		for _, claim := range claims {
			n -= len(claim.Items)
			require.NoError(c, c.q.Ack(c.Context(), claim))
		}
		if len(claims) == 0 {
			time.Sleep(time.Second)
		}
	}
	return time.Since(begun)
}

// storedTimes lists the times that a process stores and that keep a message or an id from others. In each row store is
// done by a handle whose clock is ahead, and which then dies. The right handle may wait for within.
var storedTimes = []struct {
	name   string
	config layer.Config
	store  func(c *clocks, ahead *layer.Queue)
	clear  func(c *clocks) // until nothing is kept from the right handle; nil = it drains one message
	within time.Duration
}{
	{name: "the lease of a claim", store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		c.claim(ahead, layer.ReceiveOptions{})
	}, within: 2 * clockLease},
	{name: "a lease that was extended", store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		claim := c.claim(ahead, layer.ReceiveOptions{})
		time.Sleep(clockLease / 3)
		_, err := ahead.Extend(c.Context(), claim, clockLease)
		require.NoError(c, err)
	}, within: 2 * clockLease},
	{name: "the lease of an item", config: layer.Config{LeasePer: layer.LeasePerItem},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(c.q, layer.Message{})
			c.claim(ahead, layer.ReceiveOptions{})
		}, within: 2 * clockLease},
	{name: "the lease of an unordered item", config: layer.Config{Unordered: true},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(c.q, layer.Message{})
			c.claim(ahead, layer.ReceiveOptions{Unordered: true})
		}, within: 2 * clockLease},
	{name: "a heartbeat", store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		c.claim(ahead, layer.ReceiveOptions{Heartbeat: true})
	}, within: 3 * clockLease},
	{name: "a retry delay",
		config: layer.Config{Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Minute}},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(c.q, layer.Message{})
			require.NoError(c, ahead.Nack(c.Context(), c.claim(ahead, layer.ReceiveOptions{}), layer.NackOptions{}))
		}, within: 2 * time.Minute},
	{name: "the retry delay of an item", config: layer.Config{
		LeasePer: layer.LeasePerItem, Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Minute},
	}, store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		require.NoError(c, ahead.Nack(c.Context(), c.claim(ahead, layer.ReceiveOptions{}), layer.NackOptions{}))
	}, within: 2 * time.Minute},
	{name: "the delay of a message", store: func(c *clocks, ahead *layer.Queue) {
		c.send(ahead, layer.Message{Delay: time.Minute})
	}, within: 2 * time.Minute},
	{name: "the delay of a message behind others", store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		c.send(ahead, layer.Message{Delay: time.Minute})
		c.drain(1, layer.ReceiveOptions{})
	}, within: 2 * time.Minute},
	{name: "the delay of a queue", config: layer.Config{Delay: time.Minute},
		store: func(c *clocks, ahead *layer.Queue) { c.send(ahead, layer.Message{}) }, within: 2 * time.Minute},
	{name: "a retroactive delay", config: layer.Config{Delay: time.Minute, RetroactiveDelay: true},
		store: func(c *clocks, ahead *layer.Queue) { c.send(ahead, layer.Message{}) }, within: 2 * time.Minute},
	{name: "a delay by an operator", store: func(c *clocks, ahead *layer.Queue) {
		sent, err := c.q.Enqueue(c.Context(), layer.Message{Group: "A", Delay: time.Minute})
		require.NoError(c, err)
		require.NoError(c, ahead.Reschedule(c.Context(), sent[0].ID, ahead.Now().Add(time.Minute)))
	}, clear: func(c *clocks) {
		time.Sleep(time.Second)
		claims, err := c.q.Receive(c.Context(), layer.ReceiveOptions{}) // the look ahead
		require.NoError(c, err)
		require.Empty(c, claims)
		_, err = c.q.Receive(c.Context(), layer.ReceiveOptions{})
		require.NoError(c, err)
		time.Sleep(layer.MaxDelay)
		c.drain(1, layer.ReceiveOptions{})
	}, within: layer.MaxDelay + time.Minute},
	{name: "the rate of a group", config: layer.Config{MaxRate: layer.Rate{Count: 1, Per: time.Minute}},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(c.q, layer.Message{}, layer.Message{})
			require.NoError(c, ahead.Ack(c.Context(), c.claim(ahead, layer.ReceiveOptions{})))
		}, within: 2 * time.Minute},
	{name: "the rate of the queue", config: layer.Config{MaxRateTotal: layer.Rate{Count: 1, Per: time.Minute}},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(c.q, layer.Message{}, layer.Message{})
			require.NoError(c, ahead.Ack(c.Context(), c.claim(ahead, layer.ReceiveOptions{})))
		}, within: 2 * time.Minute},
	{name: "a deduplication window", config: layer.Config{DedupWindow: time.Minute},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(ahead, layer.Message{DedupID: "x"})
			c.drain(1, layer.ReceiveOptions{})
		}, clear: func(c *clocks) {
			begun := time.Now()
			for again := true; again; time.Sleep(time.Second) {
				require.Less(c, time.Since(begun), time.Hour)
				sent, err := c.q.Enqueue(c.Context(), layer.Message{Group: "A", DedupID: "x"})
				require.NoError(c, err)
				again = sent[0].Duplicate
			}
			c.drain(1, layer.ReceiveOptions{})
		}, within: 2 * time.Minute},
	{name: "a receive id", store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{}, layer.Message{})
		require.NoError(c, ahead.Ack(c.Context(), c.claim(ahead, layer.ReceiveOptions{ReceiveID: "once"})))
	}, clear: func(c *clocks) { c.drain(1, layer.ReceiveOptions{ReceiveID: "once"}) }, within: 2 * layer.ReceiveIDLife},
	{name: "the lease of a subscription", config: layer.Config{Changes: time.Hour},
		store: func(c *clocks, ahead *layer.Queue) {
			held := tuple.Tuple{"q", "reader", "s"}.Pack()
			var row []byte
			c.subscribe(ahead, func() { // a process that dies does not give it back
				row = c.row(held)
				c.send(c.q, layer.Message{})
			})
			require.NotNil(c, row)
			c.put(held, row)
		}, clear: func(c *clocks) {
			c.send(c.q, layer.Message{})
			c.subscribe(c.q, func() {})
			c.drain(2, layer.ReceiveOptions{})
		}, within: 2 * clockLease},
}

// TestAClockAYearAhead: no time that a process stored whose clock was a year ahead keeps a message from the others for
// longer than twice the lease, delay, rate or window that it stands for.
func TestAClockAYearAhead(t *testing.T) {
	t.Parallel()
	for _, s := range storedTimes {
		t.Run(s.name, func(t *testing.T) {
			inClocks(t, s.config, func(c *clocks) {
				ahead := c.off(year)
				s.store(c, ahead)
				require.NoError(c, ahead.Close(c.Context()))
				begun := time.Now()
				if s.clear != nil {
					s.clear(c)
				} else {
					c.drain(1, layer.ReceiveOptions{Unordered: s.config.Unordered})
				}
				require.LessOrEqual(c, time.Since(begun), s.within)
			})
		})
	}
}

// TestAClockAheadByLess: 47 hours are less than the longest delay. A claim, a retry and a delay of a process whose
// clock is so much ahead end in time, too.
func TestAClockAheadByLess(t *testing.T) {
	t.Parallel()
	for _, s := range storedTimes[:11] {
		t.Run(s.name, func(t *testing.T) {
			inClocks(t, s.config, func(c *clocks) {
				ahead := c.off(47 * time.Hour)
				s.store(c, ahead)
				require.NoError(c, ahead.Close(c.Context()))
				require.LessOrEqual(c, c.drain(1, layer.ReceiveOptions{Unordered: s.config.Unordered}), s.within)
			})
		})
	}
}

// TestAClockAYearBehind (G2): to a process whose clock is a year behind, the end of each claim looks wrong. It ends no
// claim that its holder extends, and no delay.
func TestAClockAYearBehind(t *testing.T) {
	inClocks(t, layer.Config{Lease: clockLease}, func(c *clocks) {
		behind := c.off(-year)
		c.send(c.q, layer.Message{})
		claim := c.claim(c.q, layer.ReceiveOptions{})
		_, err := c.q.Enqueue(c.Context(), layer.Message{Group: "B", Delay: time.Hour})
		require.NoError(c, err)
		for begun := time.Now(); time.Since(begun) < 50*time.Minute; time.Sleep(clockLease / 3) {
			for range 3 {
				claims, err := behind.Receive(c.Context(), layer.ReceiveOptions{})
				require.NoError(c, err)
				require.Empty(c, claims)
			}
			_, err := c.q.Extend(c.Context(), claim, clockLease)
			require.NoError(c, err)
		}
		require.NoError(c, c.q.Ack(c.Context(), claim))
		c.drain(1, layer.ReceiveOptions{})
		stats, err := c.q.Stats(c.Context(), layer.StatsOptions{})
		require.NoError(c, err)
		require.Zero(c, stats.Expired)
		require.NoError(c, behind.Close(c.Context()))
	})
}

// TestWhyTellsOfAWrongClock: a claim and a delay that end later than any process may make them end are listed as
// blocked at once, and the words say that a clock was ahead.
func TestWhyTellsOfAWrongClock(t *testing.T) {
	inClocks(t, layer.Config{}, func(c *clocks) {
		ahead := c.off(year)
		c.send(c.q, layer.Message{})
		claim := c.claim(ahead, layer.ReceiveOptions{})
		_, err := ahead.Enqueue(c.Context(), layer.Message{Group: "B", Delay: time.Minute})
		require.NoError(c, err)
		page, err := c.q.Admin().Blocked(c.Context(), layer.BlockedOptions{})
		require.NoError(c, err)
		causes := map[string]layer.Cause{}
		for _, g := range page.Groups {
			causes[g.Group] = g.Cause
			require.Contains(c, g.Reasons[0].String(), "the clock of its process was ahead")
		}
		require.Equal(c, map[string]layer.Cause{"A": layer.CauseGroupHeld, "B": layer.CauseDelayed}, causes)
		why, err := c.q.Admin().Why(c.Context(), claim.Items[0].ID, nil)
		require.NoError(c, err)
		require.Contains(c, why.String(), "the clock of its process was ahead")
		require.NoError(c, ahead.Ack(c.Context(), claim))
		require.NoError(c, ahead.Close(c.Context()))
	})
}
