package layer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
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

// delayBehind makes a handle delay a group for a message that is then no longer the first: a dead letter comes back to
// its place before it.
func (c *clocks) delayBehind(q *layer.Queue) layer.ID {
	c.send(c.q, layer.Message{}, layer.Message{})
	bad := c.claim(c.q, layer.ReceiveOptions{})
	require.NoError(c, c.q.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
	claim := c.claim(q, layer.ReceiveOptions{})
	require.NoError(c, q.Nack(c.Context(), claim, layer.NackOptions{}))
	_, err := c.q.Admin().Redrive(c.Context(), layer.DeadFilter{All: true}, layer.RedriveOptions{})
	require.NoError(c, err)
	return claim.Items[0].ID
}

// extendAfterStep lets a process claim, whose clock then steps to that of ahead, and which dies after extend.
func (c *clocks) extendAfterStep(ahead *layer.Queue, extend func(q *layer.Queue, claim *layer.Claim)) {
	var step atomic.Int64
	q := c.clock(func() time.Time { return time.Now().Add(time.Duration(step.Load())) })
	claim := c.claim(q, layer.ReceiveOptions{})
	time.Sleep(clockLease / 3)
	step.Store(int64(time.Until(ahead.Now())))
	extend(q, claim)
	require.NoError(c, q.Close(c.Context()))
}

// endDelay lets a process end a delay of layer.MaxDelay whose clock is ahead, though by less than that.
func (c *clocks) endDelay(ahead *layer.Queue, end func(q *layer.Queue) error) {
	time.Sleep(time.Minute)
	q := c.off(min(time.Until(ahead.Now()), layer.MaxDelay/2))
	require.NoError(c, end(q))
	require.NoError(c, q.Close(c.Context()))
}

func (c *clocks) row(key []byte) (value []byte) {
	_, err := kv.Run(c.Context(), c.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		value, err = tx.Get(key).Wait(c.Context())
		return err
	})
	require.NoError(c, err)
	return value
}

// rows is all rows of the queue.
func (c *clocks) rows() (rows []kv.KV) {
	_, err := kv.Run(c.Context(), c.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		all := kv.KeyRange{End: []byte{0xff}}
		rows, err = tx.GetRange(all.Selectors(), kv.RangeOptions{}).Wait(c.Context())
		return err
	})
	require.NoError(c, err)
	return rows
}

func (c *clocks) put(key, value []byte) {
	_, err := kv.Run(c.Context(), c.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set(key, value)
		return nil
	})
	require.NoError(c, err)
}

// crash ends a process: it leaves the rows behind that a Close clears.
func (c *clocks) crash(q *layer.Queue) {
	rows := c.rows()
	require.NoError(c, q.Close(c.Context()))
	for _, row := range rows {
		if c.row(row.Key) == nil {
			c.put(row.Key, row.Value)
		}
	}
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
	{name: "a lease that was extended after a step", store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		c.extendAfterStep(ahead, func(q *layer.Queue, claim *layer.Claim) {
			_, err := q.Extend(c.Context(), claim, clockLease)
			require.NoError(c, err)
		})
	}, within: 2 * clockLease},
	{name: "a lease that was kept after a step", store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		c.extendAfterStep(ahead, func(q *layer.Queue, _ *layer.Claim) {
			claims, err := q.Receive(c.Context(), layer.ReceiveOptions{})
			require.NoError(c, err)
			require.Empty(c, claims)
		})
	}, within: 2 * clockLease},
	{name: "the lease of an item that was extended after a step", config: layer.Config{LeasePerItem: true},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(c.q, layer.Message{})
			c.extendAfterStep(ahead, func(q *layer.Queue, claim *layer.Claim) {
				err := q.Once(c.Context(), func(tx kv.Tx) error {
					_, err := q.ExtendTx(c.Context(), tx, claim, clockLease)
					return err
				})
				require.NoError(c, err)
			})
		}, within: 2 * clockLease},
	{name: "the lease of an item", config: layer.Config{LeasePerItem: true},
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
	{name: "a heartbeat that was moved", store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		c.claim(ahead, layer.ReceiveOptions{Heartbeat: true})
		time.Sleep(clockLease)
	}, within: 3 * clockLease},
	{name: "a retry delay",
		config: layer.Config{Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Minute}},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(c.q, layer.Message{})
			require.NoError(c, ahead.Nack(c.Context(), c.claim(ahead, layer.ReceiveOptions{}), layer.NackOptions{}))
		}, within: 2 * time.Minute},
	{name: "a delay of a nack that counts no attempt", store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		claim := c.claim(ahead, layer.ReceiveOptions{})
		require.NoError(c, ahead.Nack(c.Context(), claim, layer.NackOptions{Release: true, Delay: time.Minute}))
	}, within: 2 * time.Minute},
	{name: "the retry delay of an item", config: layer.Config{
		LeasePerItem: true, Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Minute},
	}, store: func(c *clocks, ahead *layer.Queue) {
		c.send(c.q, layer.Message{})
		require.NoError(c, ahead.Nack(c.Context(), c.claim(ahead, layer.ReceiveOptions{}), layer.NackOptions{}))
	}, within: 2 * time.Minute},
	{name: "a retry delay behind a dead letter that came back", config: layer.Config{
		Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Minute},
	}, store: func(c *clocks, ahead *layer.Queue) { c.delayBehind(ahead) }, within: 2 * time.Minute},
	{name: "a retry delay whose message is gone", config: layer.Config{
		Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Minute},
	}, store: func(c *clocks, ahead *layer.Queue) {
		require.NoError(c, c.q.Admin().Cancel(c.Context(), c.delayBehind(ahead)))
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
	{name: "the delay of a message that another wrong clock has met", store: func(c *clocks, ahead *layer.Queue) {
		c.send(ahead, layer.Message{Delay: time.Minute})
		less := c.off(time.Until(ahead.Now()) - time.Hour)
		claims, err := less.Receive(c.Context(), layer.ReceiveOptions{})
		require.NoError(c, err)
		require.Empty(c, claims)
		require.NoError(c, less.Close(c.Context()))
	}, within: 2 * time.Minute},
	{name: "the delay of a message that was redriven later",
		config: layer.Config{Retention: 24 * time.Hour},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(ahead, layer.Message{Delay: time.Minute})
			time.Sleep(time.Minute)
			bad := c.claim(ahead, layer.ReceiveOptions{})
			require.NoError(c, ahead.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
			time.Sleep(2 * time.Minute) // no other clock is known by then
			later := c.off(time.Until(ahead.Now()) + 48*time.Hour)
			report, err := later.Admin().Redrive(c.Context(), layer.DeadFilter{All: true}, layer.RedriveOptions{})
			require.NoError(c, err)
			require.EqualValues(c, 1, report.Done)
			require.NoError(c, later.Close(c.Context()))
		}, within: time.Minute},
	{name: "a retroactive delay", config: layer.Config{Delay: time.Minute, RetroactiveDelay: true},
		store: func(c *clocks, ahead *layer.Queue) { c.send(ahead, layer.Message{}) }, within: 2 * time.Minute},
	{name: "the end of a delay by an operator", config: layer.Config{Retention: time.Hour},
		store: func(c *clocks, ahead *layer.Queue) {
			c.send(c.q, layer.Message{Delay: layer.MaxDelay})
			c.endDelay(ahead, func(q *layer.Queue) error {
				return q.Admin().RetryNow(c.Context(), "A", layer.RetryOptions{})
			})
		}, within: time.Second},
	{name: "the present by an operator", store: func(c *clocks, ahead *layer.Queue) {
		sent, err := c.q.Enqueue(c.Context(), layer.Message{Group: "A", Delay: layer.MaxDelay})
		require.NoError(c, err)
		c.endDelay(ahead, func(q *layer.Queue) error {
			return q.Reschedule(c.Context(), sent[0].ID, time.Time{})
		})
	}, within: time.Second},
	{name: "the present by an operator, in lanes", config: layer.Config{Facets: []string{"f"}, Views: "*; f"},
		store: func(c *clocks, ahead *layer.Queue) {
			sent, err := c.q.Enqueue(c.Context(), layer.Message{
				Group: "A", Delay: layer.MaxDelay, Headers: map[string]string{"f": "1"},
			})
			require.NoError(c, err)
			c.endDelay(ahead, func(q *layer.Queue) error {
				return q.Reschedule(c.Context(), sent[0].ID, time.Time{})
			})
		}, within: time.Second},
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
	}, clear: func(c *clocks) { c.drain(1, layer.ReceiveOptions{ReceiveID: "once"}) }, within: 2 * 5 * time.Minute},
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

// testStoredTimes runs the rows with a process whose clock is ahead by that much.
func testStoredTimes(t *testing.T, by time.Duration) {
	t.Parallel()
	for _, s := range storedTimes {
		t.Run(s.name, func(t *testing.T) {
			inClocks(t, s.config, func(c *clocks) {
				ahead := c.off(by)
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

// TestAClockAYearAhead: no time that a process stored whose clock was a year ahead keeps a message from the others for
// longer than twice the lease, delay, rate or window that it stands for.
func TestAClockAYearAhead(t *testing.T) { testStoredTimes(t, year) }

// TestManyTimersOfAClockAhead: a process whose clock is a year ahead dies with more claims than another handle keeps an
// eye on. In a queue with many shards, too, the others get all of the groups.
func TestManyTimersOfAClockAhead(t *testing.T) {
	const groups = 1200
	for _, shards := range []int{1, 64} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			inClocks(t, layer.Config{Shards: shards}, func(c *clocks) {
				all := make([]layer.Message, groups)
				for i := range all {
					all[i].Group = fmt.Sprint("g", i)
				}
				for page := range slices.Chunk(all, 100) {
					_, err := c.q.Enqueue(c.Context(), page...)
					require.NoError(c, err)
				}
				ahead := c.off(year)
				for n := 0; n < groups; {
					claims, err := ahead.Receive(c.Context(), layer.ReceiveOptions{Max: 100})
					require.NoError(c, err)
					n += len(claims)
				}
				require.NoError(c, ahead.Close(c.Context()))
				for begun, n := time.Now(), 0; n < groups; {
					require.Less(c, time.Since(begun), groups*clockLease/30, "after %d groups", n)
					claims, err := c.q.Receive(c.Context(), layer.ReceiveOptions{Max: 1, Wait: time.Minute})
					require.NoError(c, err)
					for _, claim := range claims {
						require.NoError(c, c.q.Ack(c.Context(), claim))
						n++
					}
				}
			})
		})
	}
}

// TestAClockAheadByLess: 47 hours are less than the longest delay. The times of a process whose clock is so much ahead
// end in time, too.
func TestAClockAheadByLess(t *testing.T) { testStoredTimes(t, 47*time.Hour) }

// TestAClockAnHourAhead: an hour is less than the longest lease.
func TestAClockAnHourAhead(t *testing.T) { testStoredTimes(t, time.Hour) }

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

// liveClocks are clocks of processes that live: their heartbeats and subscriptions never end.
var liveClocks = map[string]func() time.Time{
	"an hour ahead": func() time.Time { return time.Now().Add(time.Hour) },
	"standing":      func() time.Time { return time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC) }, // an hour ahead at first
}

// TestALiveHeartbeatOfAWrongClock (G2): a process whose clock is ahead, or stands, keeps its claim by heartbeat.
func TestALiveHeartbeatOfAWrongClock(t *testing.T) {
	t.Parallel()
	for name, now := range liveClocks {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				ahead := c.clock(now)
				c.send(c.q, layer.Message{})
				claim := c.claim(ahead, layer.ReceiveOptions{Heartbeat: true})
				for begun := time.Now(); time.Since(begun) < 6*clockLease; time.Sleep(clockLease / 5) {
					claims, err := c.q.Receive(c.Context(), layer.ReceiveOptions{})
					require.NoError(c, err)
					require.Empty(c, claims)
				}
				require.NoError(c, ahead.Ack(c.Context(), claim))
				require.NoError(c, ahead.Close(c.Context()))
			})
		})
	}
}

// TestALiveLeaseOfAWrongClock (G2): a process whose clock is ahead, or stands, keeps a claim with a lease of its own as
// long as it extends the claim. It extends the claim twice between two looks of another process.
func TestALiveLeaseOfAWrongClock(t *testing.T) {
	t.Parallel()
	for name, now := range liveClocks {
		for _, perItem := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lease per item=%t", name, perItem), func(t *testing.T) {
				inClocks(t, layer.Config{LeasePerItem: perItem}, func(c *clocks) {
					ahead := c.clock(now)
					c.send(c.q, layer.Message{})
					claim := c.claim(ahead, layer.ReceiveOptions{})
					for begun := time.Now(); time.Since(begun) < 6*clockLease; {
						claims, err := c.q.Receive(c.Context(), layer.ReceiveOptions{})
						require.NoError(c, err)
						require.Empty(c, claims, time.Since(begun))
						for range 2 {
							time.Sleep(clockLease / 5)
							_, err = ahead.Extend(c.Context(), claim, clockLease)
							require.NoError(c, err)
						}
					}
					require.NoError(c, ahead.Ack(c.Context(), claim))
					require.NoError(c, ahead.Close(c.Context()))
				})
			})
		}
	}
}

// TestManyClaimsOfAWrongClock (G2): a process whose clock is ahead, or stands, claims and acks the messages of a group
// one after the other. By a clock that stands, each of the claims ends at the same time. Another process takes none.
func TestManyClaimsOfAWrongClock(t *testing.T) {
	t.Parallel()
	for name, now := range liveClocks {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				const messages = 30
				ahead := c.clock(now)
				c.send(c.q, make([]layer.Message, messages)...)
				for n := range messages {
					claim := c.claim(ahead, layer.ReceiveOptions{})
					for range 2 {
						time.Sleep(clockLease / 10)
						claims, err := c.q.Receive(c.Context(), layer.ReceiveOptions{})
						require.NoError(c, err)
						require.Empty(c, claims, "message %d", n)
					}
					require.NoError(c, ahead.Ack(c.Context(), claim))
				}
				require.NoError(c, ahead.Close(c.Context()))
			})
		})
	}
}

// TestAHeartbeatBesideAClockAhead (G2): no process whose clock is ahead, or steps ahead again and again, ends the
// heartbeat of a process that lives, whose clock may be wrong, too. If the process has died, another gets its message
// within twice the lease. Meanwhile the other process looks less than 20 times a second.
func TestAHeartbeatBesideAClockAhead(t *testing.T) {
	t.Parallel()
	begun := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	leaps := func(passed time.Duration) time.Duration { return passed / (8 * time.Second) % 2 * time.Hour }
	for name, off := range map[string]struct {
		other  func(passed time.Duration) time.Duration
		holder time.Duration
	}{
		"20 minutes ahead":                {offBy(20 * time.Minute), 0},
		"a year ahead":                    {offBy(year), 0},
		"leaping":                         {leaps, 0},
		"leaping, and the holder ahead":   {leaps, year},
		"leaping, and the holder behind":  {leaps, -year},
		"ahead of a holder that is ahead": {offBy(2 * year), year},
	} {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				passed := func() time.Duration { return time.Since(begun) }
				ahead := c.clock(func() time.Time { return time.Now().Add(off.other(passed())) })
				holder := c.off(off.holder)
				c.send(c.q, layer.Message{}, layer.Message{})
				claim := c.claim(holder, layer.ReceiveOptions{Heartbeat: true})
				group, o := "A", layer.ReceiveOptions{Wait: 50 * time.Second, Max: 1}
				for begun, before := time.Now(), ahead.Paths().Looks; time.Since(begun) < 6*clockLease; {
					if o.Group = nil; time.Since(begun) > 3*clockLease {
						o.Group = &group
					}
					claims, err := ahead.Receive(c.Context(), o)
					require.NoError(c, err)
					require.Empty(c, claims, time.Since(begun))
					require.Less(c, ahead.Paths().Looks-before, 20*int64(1+time.Since(begun)/time.Second))
				}
				require.NoError(c, holder.Ack(c.Context(), claim))
				c.claim(holder, layer.ReceiveOptions{Heartbeat: true})
				require.NoError(c, holder.Close(c.Context())) // no process moves the beat any more
				closed := time.Now()
				claims, err := ahead.Receive(c.Context(), layer.ReceiveOptions{Wait: 3 * clockLease})
				require.NoError(c, err)
				require.Len(c, claims, 1)
				require.Less(c, time.Since(closed), 2*clockLease)
				require.NoError(c, ahead.Ack(c.Context(), claims[0]))
				require.NoError(c, ahead.Close(c.Context()))
			})
		})
	}
}

// TestAnIdleHeartbeatBesideAClockAhead (G2): the clock of a process is ahead of another's by more than five minutes. It
// leaves the heartbeat of the other process also while that has no claim. So the next claim is by heartbeat, too, and
// lasts as long as its process lives. If the process has died without a claim, nothing is left of its heartbeat after
// twice the lease.
func TestAnIdleHeartbeatBesideAClockAhead(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]struct{ holder, other time.Duration }{
		"5 minutes and 1 s": {-5*time.Minute - time.Second, 0},
		"a year behind":     {-year, 0},
		"a year ahead":      {year, 2 * year},
	} {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				holder, other := c.off(off.holder), c.off(off.other)
				looks := func(d time.Duration) {
					for begun, before := time.Now(), other.Paths().Looks; time.Since(begun) < d; {
						claims, err := other.Receive(c.Context(), layer.ReceiveOptions{Wait: 7 * time.Second})
						require.NoError(c, err)
						require.Empty(c, claims)
						require.Less(c, other.Paths().Looks-before, 20*int64(1+time.Since(begun)/time.Second))
					}
				}
				beats := func() int64 {
					report, err := c.q.Admin().Check(c.Context(), layer.CheckOptions{})
					require.NoError(c, err)
					return report.Beats
				}
				for range 3 {
					c.send(holder, layer.Message{})
					claim := c.claim(holder, layer.ReceiveOptions{Heartbeat: true})
					looks(2 * clockLease)
					_, ended := claim.Lasts()
					require.NotNil(c, ended, "the claim is by heartbeat")
					require.NoError(c, holder.Ack(c.Context(), claim))
					looks(2 * clockLease)
					require.EqualValues(c, 1, beats())
				}
				c.crash(holder)
				looks(2 * clockLease)
				require.Zero(c, beats())
				require.NoError(c, other.Close(c.Context()))
			})
		})
	}
}

// TestALiveLongLeaseBesideAClockBehind (G2): a claim has a longer lease than the queue's. No process whose clock is
// behind ends it while its holder lives. After the lease, that process gets the message: within twice the queue's
// lease, or, if the claim is older than the clock is behind, when the lease is over by that clock.
func TestALiveLongLeaseBesideAClockBehind(t *testing.T) {
	t.Parallel()
	for by, within := range map[time.Duration]time.Duration{
		20 * time.Minute: 20*time.Minute + time.Second, time.Hour: 2 * clockLease, year: 2 * clockLease,
	} {
		t.Run(by.String(), func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				const lease = 20 * clockLease
				behind := c.off(-by)
				c.send(c.q, layer.Message{})
				claim := c.claim(c.q, layer.ReceiveOptions{Lease: lease})
				for i := range 12 {
					claims, err := behind.Receive(c.Context(), layer.ReceiveOptions{Wait: lease / 3})
					require.NoError(c, err)
					require.Empty(c, claims, "after %d thirds of the lease", i+1)
					_, err = c.q.Extend(c.Context(), claim, lease)
					require.NoError(c, err)
				}
				begun := time.Now()
				claims, err := behind.Receive(c.Context(), layer.ReceiveOptions{Wait: 4 * lease})
				require.NoError(c, err)
				require.Len(c, claims, 1)
				require.GreaterOrEqual(c, time.Since(begun), lease)
				require.LessOrEqual(c, time.Since(begun), lease+within)
				require.NoError(c, behind.Ack(c.Context(), claims[0]))
				require.NoError(c, behind.Close(c.Context()))
			})
		})
	}
}

// operations are changes of a message, or of its group, that a live claim prevents. The error of each is then
// ErrInFlight or ErrHeld.
var operations = map[string]func(c *clocks, id layer.ID) error{
	"cancel": func(c *clocks, id layer.ID) error { return c.q.Admin().Cancel(c.Context(), id) },
	"skip": func(c *clocks, id layer.ID) error {
		_, err := c.q.Admin().Skip(c.Context(), id.Group, layer.SkipOptions{Head: id})
		return err
	},
	"edit": func(c *clocks, id layer.ID) error {
		return c.q.Admin().Edit(c.Context(), id, func(m *layer.Message) error {
			m.Body = []byte("edited")
			return nil
		})
	},
	"reschedule": func(c *clocks, id layer.ID) error {
		return c.q.Reschedule(c.Context(), id, time.Now().Add(time.Hour))
	},
	"replace": func(c *clocks, id layer.ID) error { return c.q.Replace(c.Context(), id, []byte("new"), nil) },
	"set state": func(c *clocks, id layer.ID) error {
		return c.q.Admin().SetGroupState(c.Context(), id.Group, []byte("s"), layer.SetGroupStateOptions{})
	},
	"purge": func(c *clocks, id layer.ID) error {
		report, err := c.q.Admin().Purge(c.Context(), layer.PurgeOptions{Group: &id.Group})
		require.NoError(c, err)
		if report.Kept > 0 {
			return layer.ErrInFlight
		}
		return nil
	},
}

// TestDeadHeartbeatHindersNoOperator (contract): a process has died with claims by heartbeat. An operator may change
// what it held, before any receive has ended its claims. While the process lives, the change is refused.
func TestDeadHeartbeatHindersNoOperator(t *testing.T) {
	t.Parallel()
	for name, operate := range operations {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				holder := c.off(0)
				c.send(c.q, layer.Message{}, layer.Message{})
				_, err := c.q.Enqueue(c.Context(), layer.Message{Group: "B"}) // the holder has another claim
				require.NoError(c, err)
				claim := c.claim(holder, layer.ReceiveOptions{Heartbeat: true})
				c.claim(holder, layer.ReceiveOptions{Heartbeat: true})
				time.Sleep(3 * clockLease)
				err = operate(c, claim.Items[0].ID)
				require.True(c, errors.Is(err, layer.ErrInFlight) || errors.Is(err, layer.ErrHeld), "%v", err)
				require.NoError(c, holder.Close(c.Context()))
				time.Sleep(2 * clockLease)
				require.NoError(c, operate(c, claim.Items[0].ID))
			})
		})
	}
}

// TestALongerHeartbeat (G2): the queue's lease becomes shorter while a process has a claim by heartbeat. No beat makes
// the claim end earlier than the process was told.
func TestALongerHeartbeat(t *testing.T) {
	inClocks(t, layer.Config{}, func(c *clocks) {
		lease := func(d time.Duration) {
			_, _, err := c.q.Admin().Configure(c.Context(), func(config *layer.Config) { config.Lease = d })
			require.NoError(c, err)
		}
		lease(time.Hour)
		works := c.off(0)
		c.send(c.q, layer.Message{})
		claim := c.claim(works, layer.ReceiveOptions{Heartbeat: true})
		told, _ := claim.Lasts()
		lease(clockLease)
		for begun := time.Now(); time.Since(begun) < 50*time.Minute; time.Sleep(10 * time.Second) {
			claims, err := c.q.Receive(c.Context(), layer.ReceiveOptions{})
			require.NoError(c, err)
			require.Empty(c, claims)
		}
		require.NoError(c, works.Close(c.Context())) // the beat is not moved any more
		begun := time.Now()
		c.drain(1, layer.ReceiveOptions{})
		require.False(c, time.Now().Before(told), time.Since(begun))
	})
}

// TestALiveSubscriptionOfAWrongClock: a process whose clock is ahead, or stands, keeps its subscription. Another
// process waits whose own lease is shorter, and whose clock is right, or steps by an hour again and again.
func TestALiveSubscriptionOfAWrongClock(t *testing.T) {
	t.Parallel()
	for name, now := range liveClocks {
		t.Run(name, func(t *testing.T) { keepsSubscription(t, now, offBy(0)) })
	}
	ahead := func() time.Time { return time.Now().Add(year) }
	t.Run("a year ahead, beside a leaping clock", func(t *testing.T) {
		keepsSubscription(t, ahead, func(passed time.Duration) time.Duration {
			return passed / time.Second % 2 * time.Hour
		})
	})
}

// TestASubscriptionOfAStandingClockBesideASlowPoll: a process whose clock stands extends its subscription twice between
// two looks of another process. It keeps the subscription.
func TestASubscriptionOfAStandingClockBesideASlowPoll(t *testing.T) {
	inClocks(t, layer.Config{Changes: time.Hour}, func(c *clocks) {
		stands := c.clock(liveClocks["standing"])
		const poll = 10 * time.Second // the longest there is
		ctx, end := context.WithTimeout(c.Context(), 20*poll)
		defer end()
		var held sync.WaitGroup
		for i, q := range []*layer.Queue{stands, c.q} {
			held.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				err := q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
					assert.True(c, q == stands)
					return nil
				}, layer.SubscribeOptions{Lease: 3 * poll / 2})
				assert.NoError(c, err)
			})
		}
		for range 15 {
			time.Sleep(poll)
			c.send(c.q, layer.Message{})
		}
		held.Wait()
		require.NoError(c, stands.Close(c.Context()))
	})
}

func keepsSubscription(t *testing.T, now func() time.Time, off func(passed time.Duration) time.Duration) {
	inClocks(t, layer.Config{Changes: time.Hour}, func(c *clocks) {
		begun := time.Now()
		ahead, other := c.clock(now), c.clock(func() time.Time { return time.Now().Add(off(time.Since(begun))) })
		key := tuple.Tuple{"q", "reader", "s"}.Pack()
		c.subscribe(ahead, func() {
			holder := c.row(key)[:17] // its token
			ctx, end := context.WithTimeout(c.Context(), 4*clockLease)
			defer end()
			time.AfterFunc(4*clockLease-time.Second, func() { require.Equal(c, holder, c.row(key)[:17]) })
			err := other.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
				return errors.New("taken over")
			}, layer.SubscribeOptions{Lease: layer.MinLease})
			require.NoError(c, err)
			c.send(c.q, layer.Message{})
		})
		c.drain(1, layer.ReceiveOptions{})
		require.NoError(c, ahead.Close(c.Context()))
		require.NoError(c, other.Close(c.Context()))
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

// TestWhyTellsALeaseByVersions: Why tells a claim's age by versions, and its whole lease, on a handle of any clock.
func TestWhyTellsALeaseByVersions(t *testing.T) {
	inClocks(t, layer.Config{}, func(c *clocks) {
		c.send(c.q, layer.Message{})
		claim := c.claim(c.q, layer.ReceiveOptions{})
		time.Sleep(clockLease / 3)
		for _, off := range []time.Duration{0, time.Minute, year, -time.Minute, -year} {
			q := c.off(off)
			why, err := q.Admin().Why(c.Context(), claim.Items[0].ID, nil)
			require.NoError(c, err)
			r := why.Reasons[0]
			require.Equal(c, claim.Token, r.Token)
			require.Equal(c, clockLease, r.Lease)
			require.InDelta(c, clockLease/3, r.Age, float64(time.Second))
			require.NoError(c, q.Close(c.Context()))
		}
		require.NoError(c, c.q.Ack(c.Context(), claim))
	})
}

// TestAWrongClockDestroysNothing (G3): the clock of a process is ahead, or steps ahead while the process runs. The
// process removes no message past retention, no dead letter, archived message, change, dedup entry or receive id. Its
// sweep fails with an error that names both times, if another process has just written.
func TestAWrongClockDestroysNothing(t *testing.T) {
	t.Parallel()
	const few = 5 * time.Minute
	for name, by := range map[string]time.Duration{
		"10 minutes ahead": 10 * time.Minute, "2 days ahead": 48 * time.Hour, "a year ahead": year,
	} {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{
				Retention: few, DeadRetention: few, Archive: few, Changes: few, DedupWindow: few,
			}, func(c *clocks) {
				var step atomic.Int64
				handles := map[string]*layer.Queue{
					"before": c.off(by), // the messages are younger than the handle
					"steps":  c.clock(func() time.Time { return time.Now().Add(time.Duration(step.Load())) }),
				}
				for i := range 3 {
					c.send(c.q, layer.Message{DedupID: fmt.Sprint(i)}, layer.Message{})
				}
				handles["after"] = c.off(by)
				require.NoError(c, c.q.Ack(c.Context(), c.claim(c.q, layer.ReceiveOptions{ReceiveID: "once"})))
				bad := c.claim(c.q, layer.ReceiveOptions{})
				require.NoError(c, c.q.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
				time.Sleep(time.Second)
				step.Store(int64(by))
				// A receipt of an earlier release has no version: only the refusal keeps it.
				c.put(tuple.Tuple{"q", "receipt", uuid.New()}.Pack(), tuple.Tuple{time.Now().UnixMilli()}.Pack())
				before := len(c.rows())
				for name, q := range handles {
					report, err := q.Admin().Sweep(c.Context(), layer.SweepOptions{})
					require.ErrorIs(c, err, layer.ErrClock, name)
					require.Contains(c, err.Error(), q.Now().UTC().Format("2006-01-02 15:04"))
					require.Contains(c, err.Error(), c.q.Now().UTC().Format("2006-01-02 15:04"))
					require.Zero(c, report.PastRetention+report.Dead+report.Archived)
					require.Zero(c, report.Changes+report.Dedup+report.Repeats+report.Receipts)
					claim := c.claim(q, layer.ReceiveOptions{})
					require.NoError(c, q.Nack(c.Context(), claim, layer.NackOptions{Release: true}))
				}
				require.GreaterOrEqual(c, len(c.rows()), before)
				stats, err := c.q.Stats(c.Context(), layer.StatsOptions{})
				require.NoError(c, err)
				require.Zero(c, stats.PastRetention)
				require.EqualValues(c, 4, stats.Depth)
				for _, q := range handles {
					require.NoError(c, q.Close(c.Context()))
				}
			})
		})
	}
}

// TestAClockAheadAlone (G3): a process whose clock is two days ahead finds messages of a process that has just ended.
// It removes none.
func TestAClockAheadAlone(t *testing.T) {
	const day = 24 * time.Hour
	inClocks(t, layer.Config{Retention: day, DeadRetention: day, Archive: day}, func(c *clocks) {
		ended := c.off(0)
		for range 301 {
			c.send(ended, layer.Message{})
		}
		require.NoError(c, ended.Ack(c.Context(), c.claim(ended, layer.ReceiveOptions{})))
		bad := c.claim(ended, layer.ReceiveOptions{})
		require.NoError(c, ended.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
		require.NoError(c, ended.Close(c.Context()))
		ahead := c.off(48 * time.Hour)
		report, err := ahead.Admin().Sweep(c.Context(), layer.SweepOptions{})
		require.NoError(c, err)
		require.Zero(c, report.Dead+report.Archived)
		stats, err := ahead.Stats(c.Context(), layer.StatsOptions{})
		require.NoError(c, err)
		require.Zero(c, stats.PastRetention)
		require.EqualValues(c, 299, stats.Depth)
		require.NoError(c, ahead.Close(c.Context()))
	})
}

// keptRows are the kinds of rows that a sweep removes because of their age. In each row store leaves one row or more,
// which are kept for keep, and swept is how many of them a sweep has removed.
var keptRows = []struct {
	name   string
	config layer.Config
	keep   time.Duration
	store  func(c *clocks)
	swept  func(r layer.SweepReport) int64
	rows   int64
	use    func(c *clocks) // what the rows are kept for; nil = the sweep's count is enough
}{
	{
		name: "message", config: layer.Config{Retention: time.Hour}, keep: time.Hour,
		store: func(c *clocks) { c.send(c.q, layer.Message{}, layer.Message{}) },
		swept: func(r layer.SweepReport) int64 { return r.PastRetention }, rows: 2,
	},
	{
		name: "dead letter", config: layer.Config{DeadRetention: time.Hour}, keep: time.Hour,
		store: func(c *clocks) {
			c.send(c.q, layer.Message{})
			bad := c.claim(c.q, layer.ReceiveOptions{})
			require.NoError(c, c.q.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
		},
		swept: func(r layer.SweepReport) int64 { return r.Dead }, rows: 1,
	},
	{
		name: "archived message", config: layer.Config{Archive: time.Hour}, keep: time.Hour,
		store: func(c *clocks) {
			c.send(c.q, layer.Message{})
			c.drain(1, layer.ReceiveOptions{})
		},
		swept: func(r layer.SweepReport) int64 { return r.Archived }, rows: 1,
	},
	{
		name: "change", config: layer.Config{Changes: time.Hour}, keep: time.Hour,
		store: func(c *clocks) {
			c.subscribe(c.q, func() { c.send(c.q, layer.Message{}) })
			_, err := c.q.Admin().Sweep(c.Context(), layer.SweepOptions{}) // the change that the subscription has seen
			require.NoError(c, err)
			for range 3 {
				c.send(c.q, layer.Message{})
			}
		},
		swept: func(r layer.SweepReport) int64 { return r.Changes }, rows: 3,
		use: func(c *clocks) {
			ctx, end := context.WithTimeout(c.Context(), time.Hour)
			defer end()
			seen := 0
			err := c.q.Subscribe(ctx, "s", func(_ context.Context, all []layer.Change) error {
				if seen += len(all); seen == 3 {
					end()
				}
				return nil
			}, layer.SubscribeOptions{Lease: clockLease, OnError: func(err error) { c.Error(err) }})
			require.NoError(c, err)
			require.Equal(c, 3, seen)
		},
	},
	{
		name: "deduplication id", config: layer.Config{DedupWindow: time.Hour}, keep: time.Hour + time.Minute,
		store: func(c *clocks) { c.send(c.q, layer.Message{DedupID: "x"}) },
		swept: func(r layer.SweepReport) int64 { return r.Dedup }, rows: 1,
		use: func(c *clocks) {
			sent, err := c.q.Enqueue(c.Context(), layer.Message{Group: "A", DedupID: "x"})
			require.NoError(c, err)
			require.True(c, sent[0].Duplicate)
		},
	},
	{
		name: "receive id", keep: time.Hour,
		store: func(c *clocks) {
			c.send(c.q, layer.Message{})
			require.NoError(c, c.q.Ack(c.Context(), c.claim(c.q, layer.ReceiveOptions{ReceiveID: "once"})))
		},
		swept: func(r layer.SweepReport) int64 { return r.Repeats }, rows: 1,
	},
	{
		name: "receipt", keep: time.Hour,
		store: func(c *clocks) {
			dies := c.off(0)
			c.send(dies, layer.Message{})
			receipts := kv.PrefixRange(tuple.Tuple{"q", "receipt"}.Pack())
			var left []kv.KV
			for _, row := range c.rows() {
				if receipts.Contains(row.Key) {
					left = append(left, row)
				}
			}
			require.Len(c, left, 1)
			require.NoError(c, dies.Close(c.Context()))
			c.put(left[0].Key, left[0].Value) // a process that dies does not clear its receipt
		},
		swept: func(r layer.SweepReport) int64 { return r.Receipts }, rows: 1,
	},
	{
		name: "note of a purge", keep: 30*24*time.Hour + 24*time.Hour,
		store: func(c *clocks) {
			c.send(c.q, layer.Message{})
			group := "A"
			_, err := c.q.Admin().Purge(c.Context(), layer.PurgeOptions{Group: &group})
			require.NoError(c, err)
		},
		swept: func(r layer.SweepReport) int64 { return r.Purges }, rows: 1,
	},
}

// TestASweepByAClockAheadAlone (G3): no other process has written for a while, so no receipt tells that the clock of
// the process that sweeps is ahead. The sweep is not refused, and removes nothing that is not old by versions, too. A
// sweep by a right clock removes each row in time.
func TestASweepByAClockAheadAlone(t *testing.T) {
	t.Parallel()
	for _, row := range keptRows {
		t.Run(row.name, func(t *testing.T) {
			inClocks(t, row.config, func(c *clocks) {
				row.store(c)
				time.Sleep(2 * time.Minute) // a receipt tells the clock of its process for 90 s
				ahead := c.off(row.keep + time.Hour)
				report, err := ahead.Admin().Sweep(c.Context(), layer.SweepOptions{})
				require.NoError(c, err)
				require.Zero(c, row.swept(report))
				require.NoError(c, ahead.Close(c.Context()))
				if row.use != nil {
					row.use(c)
				}
				time.Sleep(row.keep)
				report, err = c.q.Admin().Sweep(c.Context(), layer.SweepOptions{})
				require.NoError(c, err)
				require.Equal(c, row.rows, row.swept(report))
			})
		})
	}
}

// TestASweepAfterOneOfAClockAhead (contract): a process whose clock is half an hour ahead has swept last. The next
// sweep of a process with a right clock is not left out, although both sweep once an hour.
func TestASweepAfterOneOfAClockAhead(t *testing.T) {
	inClocks(t, layer.Config{}, func(c *clocks) {
		ahead := c.off(30 * time.Minute)
		for _, q := range []*layer.Queue{ahead, c.q} {
			report, err := q.Admin().Sweep(c.Context(), layer.SweepOptions{Every: time.Hour})
			require.NoError(c, err)
			require.False(c, report.Skipped)
		}
		require.NoError(c, ahead.Close(c.Context()))
		report, err := c.q.Admin().Sweep(c.Context(), layer.SweepOptions{Every: time.Hour})
		require.NoError(c, err)
		require.True(c, report.Skipped)
	})
}

// TestAWaitingHandleTellsItsClock (G3): a process that has done nothing for most of an hour, except to wait, is a
// witness. So is the one whose clock is ahead: the clocks are known to differ within a minute.
func TestAWaitingHandleTellsItsClock(t *testing.T) {
	inClocks(t, layer.Config{DeadRetention: 10 * time.Minute}, func(c *clocks) {
		c.send(c.q, layer.Message{})
		bad := c.claim(c.q, layer.ReceiveOptions{})
		require.NoError(c, c.q.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
		ctx, end := context.WithCancel(c.Context())
		var all sync.WaitGroup
		wait := func(q *layer.Queue) {
			all.Go(func() {
				_, err := q.Receive(ctx, layer.ReceiveOptions{Wait: time.Hour})
				require.ErrorIs(c, err, context.Canceled)
				require.NoError(c, q.Close(c.Context()))
			})
		}
		apart := func() time.Duration {
			looks := c.off(0)
			stats, err := looks.Stats(c.Context(), layer.StatsOptions{})
			require.NoError(c, err)
			require.NoError(c, looks.Close(c.Context()))
			return stats.ClocksApart
		}
		wait(c.off(0))
		time.Sleep(45 * time.Minute)
		require.Zero(c, apart())
		ahead := c.off(year)
		report, err := ahead.Admin().Sweep(c.Context(), layer.SweepOptions{})
		require.ErrorIs(c, err, layer.ErrClock)
		require.Zero(c, report.Dead)
		wait(ahead)
		for range 5 {
			time.Sleep(time.Minute)
			require.InDelta(c, year, apart(), float64(time.Second))
		}
		end()
		all.Wait()
	})
}

// TestASweptReceiptOfAWrongClock (G3): the clock of a process stands, or is set back. An operation of the process
// learns the outcome of its commit so late that a sweep may have cleared the receipt. The operation then says that it
// does not know the outcome, and does not do its work twice. Guard receipt-trust.
func TestASweptReceiptOfAWrongClock(t *testing.T) {
	t.Parallel()
	const outage = 2 * time.Hour
	for name, wrong := range map[string]func(passed time.Duration) time.Duration{
		"stands": func(passed time.Duration) time.Duration { return -passed }, "set back": stepBy(time.Second, -outage),
	} {
		for kind, depth := range map[fault.Kind]int64{fault.UnknownApplied: 1, fault.UnknownLost: 0} {
			t.Run(fmt.Sprint(name, ", ", kind), func(t *testing.T) {
				inClocks(t, layer.Config{}, func(c *clocks) {
					begun, plan := time.Now(), &fault.Plan{}
					away := func() {
						time.Sleep(outage)
						_, err := c.q.Admin().Sweep(c.Context(), layer.SweepOptions{})
						require.NoError(c, err)
					}
					q, err := layer.Open(c.Context(), between{fault.Wrap(c.db, plan), away}, nil, "q", layer.Options{
						Now: func() time.Time { return time.Now().Add(wrong(time.Since(begun))) },
					})
					require.NoError(c, err)
					plan.ForceNext(kind)
					_, err = q.Enqueue(c.Context(), layer.Message{Group: "A"})
					require.True(c, kv.MaybeCommitted(err), "%v", err)
					stats, err := c.q.Stats(c.Context(), layer.StatsOptions{})
					require.NoError(c, err)
					require.Equal(c, depth, stats.Depth)
					require.NoError(c, q.Close(c.Context()))
				})
			})
		}
	}
}

// TestAMessageOfAClockBehind (G3): a message of a producer whose clock is a year behind is not past retention.
func TestAMessageOfAClockBehind(t *testing.T) {
	inClocks(t, layer.Config{Retention: 24 * time.Hour}, func(c *clocks) {
		behind := c.off(-year)
		late := c.off(0)
		time.Sleep(2 * time.Second)
		c.send(behind, layer.Message{})
		for _, q := range []*layer.Queue{c.q, late} {
			claim := c.claim(q, layer.ReceiveOptions{})
			require.NoError(c, q.Nack(c.Context(), claim, layer.NackOptions{Release: true}))
		}
		require.NoError(c, behind.Close(c.Context()))
		c.drain(1, layer.ReceiveOptions{})
		require.NoError(c, late.Close(c.Context()))
	})
}

// TestAMessageOfADeadClockBehind (G3): a process whose clock is 45 days behind enqueues, and dies. No process that was
// there before removes the message, and none that comes later, until it is past retention by versions.
func TestAMessageOfADeadClockBehind(t *testing.T) {
	inClocks(t, layer.Config{Retention: 24 * time.Hour}, func(c *clocks) {
		behind := c.off(-45 * 24 * time.Hour)
		before := c.off(0)
		c.send(behind, layer.Message{})
		require.NoError(c, behind.Close(c.Context()))
		time.Sleep(10 * time.Minute)
		later := c.off(0)
		handles := []*layer.Queue{c.q, before, later}
		for _, q := range handles {
			report, err := q.Admin().Sweep(c.Context(), layer.SweepOptions{})
			require.NoError(c, err)
			require.Zero(c, report.PastRetention)
			claim := c.claim(q, layer.ReceiveOptions{})
			require.NoError(c, q.Nack(c.Context(), claim, layer.NackOptions{Release: true}))
		}
		time.Sleep(24 * time.Hour)
		report, err := later.Admin().Sweep(c.Context(), layer.SweepOptions{})
		require.NoError(c, err)
		require.EqualValues(c, 1, report.PastRetention)
		for _, q := range handles[1:] {
			require.NoError(c, q.Close(c.Context()))
		}
	})
}

// TestADelayIsNoAge (G3): a process whose clock is ahead removes no message whose delay is longer than the retention.
func TestADelayIsNoAge(t *testing.T) {
	inClocks(t, layer.Config{Retention: time.Hour}, func(c *clocks) {
		c.send(c.q, layer.Message{Delay: 24 * time.Hour})
		time.Sleep(23 * time.Hour)
		ahead := c.off(year)
		report, err := ahead.Admin().Sweep(c.Context(), layer.SweepOptions{})
		require.True(c, err == nil || errors.Is(err, layer.ErrClock), "%v", err)
		require.Zero(c, report.PastRetention)
		require.NoError(c, ahead.Close(c.Context()))
		time.Sleep(time.Hour)
		c.drain(1, layer.ReceiveOptions{})
	})
}

// TestNoIDEndsEarly (G3): a deduplication id and a receive id hold for their time by versions, whether the clock that
// has written the id was behind or the one that reads it is ahead.
func TestNoIDEndsEarly(t *testing.T) {
	t.Parallel()
	for name, by := range map[string][2]time.Duration{
		"the writer is behind": {-year, 0}, "the reader is ahead": {0, year}, "the writer is ahead": {year, 0},
		"both, and apart": {-year, year},
	} {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{DedupWindow: 5 * time.Minute}, func(c *clocks) {
				writer, reader := c.off(by[0]), c.off(by[1])
				c.send(writer, layer.Message{DedupID: "x"}, layer.Message{})
				first := c.claim(writer, layer.ReceiveOptions{ReceiveID: "once"})
				require.NoError(c, writer.Ack(c.Context(), first))
				require.NoError(c, writer.Close(c.Context()))
				again := func() (duplicate, repeated bool) {
					_, err := reader.Admin().Sweep(c.Context(), layer.SweepOptions{})
					require.True(c, err == nil || errors.Is(err, layer.ErrClock), "%v", err)
					sent, err := reader.Enqueue(c.Context(), layer.Message{Group: "A", DedupID: "x"})
					require.NoError(c, err)
					claims, err := reader.Receive(c.Context(), layer.ReceiveOptions{Max: 1, ReceiveID: "once"})
					require.NoError(c, err)
					for _, claim := range claims {
						require.NoError(c, reader.Nack(c.Context(), claim, layer.NackOptions{Release: true}))
					}
					return sent[0].Duplicate, len(claims) == 0
				}
				time.Sleep(5*time.Minute - 2*time.Second)
				duplicate, repeated := again()
				require.True(c, duplicate)
				require.True(c, repeated)
				time.Sleep(3 * time.Second)
				duplicate, repeated = again()
				require.False(c, duplicate)
				require.False(c, repeated)
				require.NoError(c, reader.Close(c.Context()))
			})
		})
	}
}

// TestNoIDLastsTooLong (contract): a deduplication id and a receive id are free after twice their time and five
// minutes, though the clock of the process stands, or looks right again to others.
func TestNoIDLastsTooLong(t *testing.T) {
	t.Parallel()
	const life, most = 5 * time.Minute, 15 * time.Minute
	stands := func(opened time.Time) time.Time { return opened }
	ahead := func(time.Time) time.Time { return time.Now().Add(20 * time.Minute) }
	for name, clock := range map[string]struct {
		now  func(opened time.Time) time.Time
		same bool // the same process uses the ids again
	}{
		"the clock stands": {stands, true}, "the writer was 20 minutes ahead": {ahead, false},
	} {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{DedupWindow: life}, func(c *clocks) {
				opened := time.Now()
				writer := c.clock(func() time.Time { return clock.now(opened) })
				reader := writer
				if !clock.same {
					reader = c.q
				}
				c.send(writer, layer.Message{DedupID: "x"}, layer.Message{})
				first := c.claim(writer, layer.ReceiveOptions{ReceiveID: "once"})
				require.NoError(c, writer.Ack(c.Context(), first))
				time.Sleep(most + time.Minute)
				sent, err := reader.Enqueue(c.Context(), layer.Message{Group: "A", DedupID: "x"})
				require.NoError(c, err)
				require.False(c, sent[0].Duplicate)
				again := c.claim(reader, layer.ReceiveOptions{Max: 1, ReceiveID: "once"})
				require.NoError(c, reader.Ack(c.Context(), again))
				require.NoError(c, writer.Close(c.Context()))
			})
		})
	}
}

// TestShorterWindow (contract): a window that becomes shorter ends the ids which are remembered for more than five
// minutes beyond it. They look like those of a clock that is ahead.
func TestShorterWindow(t *testing.T) {
	inClocks(t, layer.Config{DedupWindow: time.Hour}, func(c *clocks) {
		c.send(c.q, layer.Message{DedupID: "x"})
		_, _, err := c.q.Admin().Configure(c.Context(), func(config *layer.Config) { config.DedupWindow = time.Minute })
		require.NoError(c, err)
		for _, duplicate := range []bool{true, false} {
			time.Sleep(45 * time.Second)
			sent, err := c.q.Enqueue(c.Context(), layer.Message{Group: "A", DedupID: "x"})
			require.NoError(c, err)
			require.Equal(c, duplicate, sent[0].Duplicate)
		}
	})
}

// jumping returns an engine whose versions jump once by the value that a test gives to jump.
func jumping(jump *int64) kv.DB {
	return embedded.OpenMemory(embedded.Options{Hooks: embedded.Hooks{VersionGap: func() int64 {
		gap := *jump
		*jump = 0
		return gap
	}}})
}

// TestNoIDEndsByAJump: versions that jump, as at a recovery or at a restore, end neither a deduplication id nor a
// receive id before its time.
func TestNoIDEndsByAJump(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jump := int64(0)
		db := jumping(&jump)
		config := layer.Config{DedupWindow: 5 * time.Minute}
		q, err := layer.Create(t.Context(), db, nil, "q", layer.Options{Config: config})
		require.NoError(t, err)
		c := &clocks{T: t, db: db, q: q}
		time.Sleep(24 * time.Hour)
		c.send(q, layer.Message{DedupID: "x"})
		first := c.claim(q, layer.ReceiveOptions{ReceiveID: "once"})
		require.NoError(t, q.Ack(t.Context(), first))
		for _, by := range []int64{100_000_000, 1_000_000_000_000} {
			jump = by
			c.send(q, layer.Message{})
			time.Sleep(2 * time.Minute)
			sent, err := q.Enqueue(t.Context(), layer.Message{Group: "A", DedupID: "x"})
			require.NoError(t, err)
			require.True(t, sent[0].Duplicate)
			claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Max: 1, ReceiveID: "once"})
			require.NoError(t, err)
			require.Empty(t, claims)
		}
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, db.Close())
	})
}

// TestADeadLetterOfAClockBehind (G3): a process whose clock is 45 days behind makes a dead letter of an old message, or
// redrives one. Others that have just written know better: the letter is kept for its time, and the message comes.
func TestADeadLetterOfAClockBehind(t *testing.T) {
	const day = 24 * time.Hour
	config := layer.Config{Retention: 7 * day / 2, DeadRetention: day}
	inClocks(t, config, func(c *clocks) {
		behind := c.off(-45 * day)
		c.send(c.q, layer.Message{})
		time.Sleep(3 * day)
		claim := c.claim(c.q, layer.ReceiveOptions{})
		require.NoError(c, c.q.Nack(c.Context(), claim, layer.NackOptions{Release: true}))
		bad := c.claim(behind, layer.ReceiveOptions{})
		require.NoError(c, behind.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
		sweep := func() layer.SweepReport {
			report, err := c.q.Admin().Sweep(c.Context(), layer.SweepOptions{})
			require.True(c, err == nil || errors.Is(err, layer.ErrClock), "%v", err)
			return report
		}
		require.Zero(c, sweep().Dead)
		time.Sleep(10 * time.Minute) // until the receipt of the clock behind counts no more
		require.Zero(c, sweep().Dead)
		time.Sleep(day - 12*time.Minute)
		require.Zero(c, sweep().Dead)
		time.Sleep(30 * time.Second)
		_, err := c.q.Enqueue(c.Context(), layer.Message{Group: "B"})
		require.NoError(c, err)
		_, err = behind.Admin().Redrive(c.Context(), layer.DeadFilter{All: true}, layer.RedriveOptions{})
		require.NoError(c, err)
		time.Sleep(2 * time.Minute)
		require.Zero(c, sweep().PastRetention)
		require.NoError(c, behind.Close(c.Context()))
		c.drain(2, layer.ReceiveOptions{})
	})
}

// writes lets a handle have n transactions at a time, each of which leaves a receipt.
func (c *clocks) writes(q *layer.Queue, n int) {
	var begun, all sync.WaitGroup
	begun.Add(n)
	for range n {
		all.Go(func() {
			err := q.Once(c.Context(), func(kv.Tx) error {
				begun.Done()
				begun.Wait()
				return nil
			})
			assert.NoError(c, err)
		})
	}
	all.Wait()
}

// TestManyReceiptsOfAClockBehind (G3): a process whose clock is right is alone among two whose clocks are 45 days
// behind. Its dead letters and the messages that it redrives are not removed too early.
func TestManyReceiptsOfAClockBehind(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	reject := func(c *clocks) {
		bad := c.claim(c.q, layer.ReceiveOptions{})
		require.NoError(c, c.q.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
	}
	t.Run("a message that is redriven", func(t *testing.T) {
		inClocks(t, layer.Config{Retention: day}, func(c *clocks) {
			c.send(c.q, layer.Message{})
			reject(c)
			time.Sleep(40 * time.Hour)
			for range 2 {
				behind := c.off(-45 * day)
				c.writes(behind, 2)
				defer func() { require.NoError(c, behind.Close(c.Context())) }()
			}
			report, err := c.q.Admin().Redrive(c.Context(), layer.DeadFilter{All: true}, layer.RedriveOptions{})
			require.NoError(c, err)
			require.EqualValues(c, 1, report.Done)
			_, err = c.q.Admin().Sweep(c.Context(), layer.SweepOptions{})
			require.ErrorIs(c, err, layer.ErrClock)
			stats, err := c.q.Stats(c.Context(), layer.StatsOptions{})
			require.NoError(c, err)
			require.Zero(c, stats.PastRetention)
			c.drain(1, layer.ReceiveOptions{})
		})
	})
	t.Run("a dead letter", func(t *testing.T) {
		inClocks(t, layer.Config{DeadRetention: day}, func(c *clocks) {
			c.send(c.q, layer.Message{})
			time.Sleep(2 * day)
			var both []*layer.Queue
			for range 2 {
				behind := c.off(-45 * day)
				c.writes(behind, 2)
				both = append(both, behind)
			}
			reject(c)
			for _, behind := range both {
				require.NoError(c, behind.Close(c.Context()))
			}
			time.Sleep(2 * time.Minute) // until no receipt shows their clocks
			report, err := c.q.Admin().Sweep(c.Context(), layer.SweepOptions{})
			require.NoError(c, err)
			require.Zero(c, report.Dead)
			time.Sleep(day)
			report, err = c.q.Admin().Sweep(c.Context(), layer.SweepOptions{})
			require.NoError(c, err)
			require.EqualValues(c, 1, report.Dead)
		})
	})
}

// died returns the time of death of the only dead letter, by the right clock.
func (c *clocks) died() time.Time {
	page, err := c.q.Admin().DeadLetters(c.Context(), layer.DeadOptions{})
	require.NoError(c, err)
	require.Len(c, page.Letters, 1)
	return page.Letters[0].DeadLettered
}

// TestManyReceiptsOfAClockAhead (contract): a process whose clock is a year ahead has many transactions at a time. Two
// with right clocks have one. A dead letter of one of the two gets the right time, because clocks count, not receipts.
func TestManyReceiptsOfAClockAhead(t *testing.T) {
	inClocks(t, layer.Config{}, func(c *clocks) {
		ahead, right := c.off(year), c.off(0)
		c.send(c.q, layer.Message{})
		bad := c.claim(c.q, layer.ReceiveOptions{})
		c.writes(ahead, 8)
		c.writes(right, 1)
		require.NoError(c, c.q.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
		require.WithinDuration(c, time.Now(), c.died(), time.Second)
		require.NoError(c, ahead.Close(c.Context()))
		require.NoError(c, right.Close(c.Context()))
	})
}

// TestADeadLetterOfAClockAhead (contract): a process whose clock is a year ahead makes a dead letter, and ends. The
// letter stays for DeadRetention from the next sweep by a right clock that another process confirms. A sweep by a clock
// that no other confirms leaves the letter as it is.
func TestADeadLetterOfAClockAhead(t *testing.T) {
	const day = 24 * time.Hour
	inClocks(t, layer.Config{DeadRetention: day}, func(c *clocks) {
		ahead, other := c.off(year), c.off(0)
		c.send(c.q, layer.Message{})
		bad := c.claim(ahead, layer.ReceiveOptions{})
		require.NoError(c, ahead.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
		require.NoError(c, ahead.Close(c.Context()))
		sweep := func() int64 {
			report, err := c.q.Admin().Sweep(c.Context(), layer.SweepOptions{})
			require.NoError(c, err)
			return report.Dead
		}
		time.Sleep(2 * time.Minute)
		require.Zero(c, sweep())
		require.Greater(c, time.Until(c.died()), year/2)
		c.writes(other, 1)
		require.Zero(c, sweep())
		require.WithinDuration(c, time.Now(), c.died(), time.Second)
		time.Sleep(day - time.Minute)
		require.Zero(c, sweep())
		time.Sleep(2 * time.Minute)
		require.EqualValues(c, 1, sweep())
		require.NoError(c, other.Close(c.Context()))
	})
}

// TestASweepByClocksBehind (G3): the clocks of two processes are 45 days behind. To them all dead letters seem to be of
// the future. Their sweep does not change the time of such a letter, because the time of its message is of the future,
// too.
func TestASweepByClocksBehind(t *testing.T) {
	const day = 24 * time.Hour
	inClocks(t, layer.Config{DeadRetention: day}, func(c *clocks) {
		c.send(c.q, layer.Message{})
		bad := c.claim(c.q, layer.ReceiveOptions{})
		require.NoError(c, c.q.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
		died := c.died()
		time.Sleep(2 * time.Minute)
		both := []*layer.Queue{c.off(-45 * day), c.off(-45 * day)}
		c.writes(both[0], 1)
		report, err := both[1].Admin().Sweep(c.Context(), layer.SweepOptions{})
		require.NoError(c, err)
		require.Zero(c, report.Dead)
		require.Equal(c, died, c.died())
		for _, behind := range both {
			require.NoError(c, behind.Close(c.Context()))
		}
	})
}

// TestRetentionBesideALiveLease (G3): a message passes its retention while a process works on it. A process whose clock
// is two days ahead sweeps, and receives. The message is not removed: it is delivered, or its holder acks it.
func TestRetentionBesideALiveLease(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]struct {
		config layer.Config
		o      layer.ReceiveOptions
	}{
		"a lease for each claim":   {},
		"a lease for each message": {config: layer.Config{LeasePerItem: true}},
		"unordered":                {config: layer.Config{Unordered: true}, o: layer.ReceiveOptions{Unordered: true}},
		"a template": {
			config: layer.Config{Facets: []string{"f"}, Views: "*; f"},
			o:      layer.ReceiveOptions{Where: layer.Template{"f": "1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.config.Retention = time.Hour
			inClocks(t, s.config, func(c *clocks) {
				c.send(c.q, layer.Message{Headers: map[string]string{"f": "1"}})
				time.Sleep(59 * time.Minute)
				claim := c.claim(c.q, s.o)
				extend := func() {
					_, err := c.q.Extend(c.Context(), claim, clockLease)
					require.NoError(c, err)
				}
				for range 12 {
					time.Sleep(clockLease / 3)
					extend()
				}
				ahead, held := c.off(48*time.Hour), true
				report, err := ahead.Admin().Sweep(c.Context(), layer.SweepOptions{})
				require.True(c, err == nil || errors.Is(err, layer.ErrClock), "%v", err)
				require.Zero(c, report.PastRetention)
				extend()
				claims, err := ahead.Receive(c.Context(), layer.ReceiveOptions{Unordered: s.o.Unordered})
				require.NoError(c, err)
				for _, claim := range claims {
					held = false
					require.NoError(c, ahead.Ack(c.Context(), claim))
				}
				if held {
					require.NoError(c, c.q.Ack(c.Context(), claim))
				}
				stats, err := c.q.Stats(c.Context(), layer.StatsOptions{})
				require.NoError(c, err)
				require.Zero(c, stats.PastRetention)
				require.EqualValues(c, 1, stats.Acked)
				require.NoError(c, ahead.Close(c.Context()))
			})
		})
	}
}

// TestNoOperatorUnderALiveLease (contract): a process works with a lease, and its clock is an hour behind that of an
// operator's computer. The operator cannot change what the process holds. Once the lease is over, the operator can.
func TestNoOperatorUnderALiveLease(t *testing.T) {
	t.Parallel()
	for name, operate := range operations {
		for of, config := range map[string]layer.Config{"": {}, ", a lease for each message": {LeasePerItem: true}} {
			if name == "set state" && config.LeasePerItem {
				continue // the state of a group is not of a message
			}
			t.Run(name+of, func(t *testing.T) {
				inClocks(t, config, func(c *clocks) {
					holder := c.off(-time.Hour)
					c.send(c.q, layer.Message{}, layer.Message{})
					claim := c.claim(holder, layer.ReceiveOptions{})
					for range 4 {
						time.Sleep(clockLease / 3)
						_, err := holder.Extend(c.Context(), claim, clockLease)
						require.NoError(c, err)
					}
					err := operate(c, claim.Items[0].ID)
					require.True(c, errors.Is(err, layer.ErrInFlight) || errors.Is(err, layer.ErrHeld), "%v", err)
					require.NotContains(c, err.Error(), "for -")
					require.NoError(c, holder.Close(c.Context()))
					time.Sleep(clockLease + time.Second)
					require.NoError(c, operate(c, claim.Items[0].ID))
				})
			})
		}
	}
}

// folderClock is the clock of the computer with a folder.
type folderClock struct{ now *time.Time }

func (c folderClock) Now() time.Time                         { return *c.now }
func (c folderClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// TestRetentionOfAFolderThatWasClosed: a folder that was closed for a week does not stop retention. The last process
// may have closed the queue or died.
func TestRetentionOfAFolderThatWasClosed(t *testing.T) {
	t.Parallel()
	type opening func(context.Context, kv.DB, []byte, string, layer.Options) (*layer.Queue, error)
	for _, dies := range []bool{false, true} {
		dir, now := t.TempDir(), time.Now()
		begin := func(open opening) (kv.DB, *layer.Queue) {
			db, err := embedded.OpenDisk(dir, embedded.Options{Clock: folderClock{&now}})
			require.NoError(t, err)
			q, err := open(t.Context(), db, nil, "q", layer.Options{
				Now:    func() time.Time { return now },
				Config: layer.Config{Retention: 24 * time.Hour, DeadRetention: 24 * time.Hour},
			})
			require.NoError(t, err)
			return db, q
		}
		db, q := begin(layer.Create)
		for range 5 {
			_, err := q.Enqueue(t.Context(), layer.Message{Group: "A"})
			require.NoError(t, err)
		}
		claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.NoError(t, q.Nack(t.Context(), claims[0], layer.NackOptions{Reject: "bad"}))
		if !dies {
			require.NoError(t, q.Close(t.Context()))
		}
		require.NoError(t, db.Close())
		now = now.Add(7 * 24 * time.Hour)
		db, q = begin(layer.Open)
		report, err := q.Admin().Sweep(t.Context(), layer.SweepOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 4, report.PastRetention)
		require.EqualValues(t, 1, report.Dead)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, db.Close())
	}
}

// TestAFolderOfAClockBehind (G3): a process whose clock is 45 days behind opens the folder, enqueues, and closes it.
// The next process, whose clock is right, delivers the message.
func TestAFolderOfAClockBehind(t *testing.T) {
	t.Parallel()
	dir, off := t.TempDir(), time.Duration(0)
	start := time.Now()
	in := func(step func(q *layer.Queue)) {
		now := start.Add(off)
		db, err := embedded.OpenDisk(dir, embedded.Options{Clock: folderClock{&now}})
		require.NoError(t, err)
		q, err := layer.Create(t.Context(), db, nil, "q", layer.Options{
			Now: func() time.Time { return now }, Config: layer.Config{Retention: 24 * time.Hour},
		})
		if errors.Is(err, layer.ErrQueueExists) {
			q, err = layer.Open(t.Context(), db, nil, "q", layer.Options{Now: func() time.Time { return now }})
		}
		require.NoError(t, err)
		step(q)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, db.Close())
	}
	send := func(q *layer.Queue) {
		_, err := q.Enqueue(t.Context(), layer.Message{Group: "A"})
		require.NoError(t, err)
	}
	in(func(*layer.Queue) {})
	off = -45 * 24 * time.Hour
	in(send)
	for _, d := range []struct {
		off time.Duration
		old int64
	}{{time.Minute, 0}, {23 * time.Hour, 0}, {25 * time.Hour, 1}} {
		off = d.off
		in(func(q *layer.Queue) {
			report, err := q.Admin().Sweep(t.Context(), layer.SweepOptions{})
			require.NoError(t, err)
			require.Equal(t, d.old, report.PastRetention, "%s", d.off)
		})
	}
}

// TestRetentionAfterAStep: the clock of a computer that has slept for a week steps when it wakes, and its versions have
// stood. Retention continues: it does not count the week.
func TestRetentionAfterAStep(t *testing.T) {
	inClocks(t, layer.Config{DeadRetention: 24 * time.Hour}, func(c *clocks) {
		var step atomic.Int64
		q := c.clock(func() time.Time { return time.Now().Add(time.Duration(step.Load())) })
		sweep := func() int64 {
			report, err := q.Admin().Sweep(c.Context(), layer.SweepOptions{})
			require.True(c, err == nil || errors.Is(err, layer.ErrClock), "%v", err)
			return report.Dead
		}
		c.send(q, layer.Message{})
		bad := c.claim(q, layer.ReceiveOptions{})
		require.NoError(c, q.Nack(c.Context(), bad, layer.NackOptions{Reject: "bad"}))
		require.Zero(c, sweep())
		step.Store(int64(7 * 24 * time.Hour))
		require.Zero(c, sweep())
		time.Sleep(23 * time.Hour)
		require.Zero(c, sweep())
		time.Sleep(time.Hour)
		require.EqualValues(c, 1, sweep())
		require.NoError(c, q.Close(c.Context()))
	})
}

// TestRetentionOfARestoredQueue: a backup of a running queue is restored a week later into a database whose versions
// are lower, or far higher. Retention does not stop.
func TestRetentionOfARestoredQueue(t *testing.T) {
	t.Parallel()
	for _, ahead := range []int64{0, 1_000_000_000_000} {
		synctest.Test(t, func(t *testing.T) {
			old := inMemory(t)
			q, err := layer.Create(t.Context(), old, nil, "q", layer.Options{
				Config: layer.Config{Retention: 24 * time.Hour},
			})
			require.NoError(t, err)
			time.Sleep(time.Hour)
			for range 3 {
				_, err := q.Enqueue(t.Context(), layer.Message{Group: "A"})
				require.NoError(t, err)
			}
			rows := (&clocks{T: t, db: old}).rows()
			require.NoError(t, q.Close(t.Context()))
			require.NoError(t, old.Close())

			time.Sleep(7 * 24 * time.Hour)
			restored := embedded.OpenMemory(embedded.Options{Hooks: embedded.Hooks{VersionGap: func() (gap int64) {
				gap, ahead = ahead, 0
				return gap
			}}})
			for _, row := range rows {
				(&clocks{T: t, db: restored}).put(row.Key, row.Value)
			}
			q, err = layer.Open(t.Context(), restored, nil, "q", layer.Options{})
			require.NoError(t, err)
			report, err := q.Admin().Sweep(t.Context(), layer.SweepOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 3, report.PastRetention)
			require.NoError(t, q.Close(t.Context()))
			require.NoError(t, restored.Close())
		})
	}
}

// TestALapseInARestoredQueue (G7): a backup of a queue with a claim is restored an hour later into a database whose
// versions are lower. The lease is over, and counts an attempt.
func TestALapseInARestoredQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old := inMemory(t)
		q, err := layer.Create(t.Context(), old, nil, "q", layer.Options{Config: layer.Config{Lease: clockLease}})
		require.NoError(t, err)
		time.Sleep(3 * time.Hour)
		c := &clocks{T: t, db: old}
		c.send(q, layer.Message{})
		c.claim(q, layer.ReceiveOptions{CountExpired: true})
		rows := c.rows()
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, old.Close())

		time.Sleep(time.Hour)
		c.db = inMemory(t)
		for _, row := range rows {
			c.put(row.Key, row.Value)
		}
		q, err = layer.Open(t.Context(), c.db, nil, "q", layer.Options{})
		require.NoError(t, err)
		require.Equal(t, 1, c.claim(q, layer.ReceiveOptions{}).Items[0].Attempts)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, c.db.Close())
	})
}

// TestAnyTraceOfARestore: a queue is copied into a database whose versions are lower. The open notices it if all groups
// are in flight, and whichever shard has the newest hint: new items still sort behind the old.
func TestAnyTraceOfARestore(t *testing.T) {
	t.Parallel()
	const groups = 8
	for name, c := range map[string]struct {
		shards int
		then   func(t *testing.T, q *layer.Queue) // before the copy
	}{
		"all in flight, in use": {1, func(t *testing.T, q *layer.Queue) {
			claims, err := q.Receive(t.Context(), layer.ReceiveOptions{MaxGroups: groups, Lease: layer.MaxLease})
			require.NoError(t, err)
			require.Len(t, claims, groups)
		}},
		"ready, not in use": {4, func(t *testing.T, q *layer.Queue) { require.NoError(t, q.Close(t.Context())) }},
	} {
		t.Run(name, func(t *testing.T) {
			for last := range groups {
				synctest.Test(t, func(t *testing.T) {
					old := &clocks{T: t, db: inMemory(t)}
					o := layer.Options{Config: layer.Config{Shards: c.shards}}
					q, err := layer.Create(t.Context(), old.db, nil, "q", o)
					require.NoError(t, err)
					send := func(group string) layer.ID {
						sent, err := q.Enqueue(t.Context(), layer.Message{Group: group})
						require.NoError(t, err)
						return sent[0].ID
					}
					for i := range groups {
						if i != last {
							send(fmt.Sprint(i))
						}
					}
					time.Sleep(3 * time.Hour)
					newest := send(fmt.Sprint(last))
					c.then(t, q)
					rows := old.rows()
					require.NoError(t, q.Close(t.Context()))
					require.NoError(t, old.db.Close())

					restored := &clocks{T: t, db: inMemory(t)}
					for _, row := range rows {
						restored.put(row.Key, row.Value)
					}
					q, err = layer.Open(t.Context(), restored.db, nil, "q", layer.Options{})
					require.NoError(t, err)
					require.Greater(t, send("new").Index, newest.Index, "group %d", last)
					report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
					require.NoError(t, err)
					require.Empty(t, report.Violations)
					require.NoError(t, q.Close(t.Context()))
					require.NoError(t, restored.db.Close())
				})
			}
		})
	}
}

// TestRetentionAmidRecoveries: neither 20 recoveries of a cluster in an hour nor a restore stop retention.
func TestRetentionAmidRecoveries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jump := int64(0)
		db := jumping(&jump)
		q, err := layer.Create(t.Context(), db, nil, "q", layer.Options{Config: layer.Config{Retention: time.Hour}})
		require.NoError(t, err)
		other, err := layer.Open(t.Context(), db, nil, "q", layer.Options{})
		require.NoError(t, err)
		send := func() {
			for _, q := range []*layer.Queue{q, other} {
				_, err := q.Enqueue(t.Context(), layer.Message{Group: "A"})
				require.NoError(t, err)
			}
		}
		for range 20 {
			send()
			jump = 100_000_000
			send()
			time.Sleep(3 * time.Minute)
			_, err := other.Admin().Sweep(t.Context(), layer.SweepOptions{})
			require.NoError(t, err)
		}
		jump = 1_000_000_000_000 // a restore into a cluster whose versions are higher
		send()
		time.Sleep(time.Hour + time.Second)
		send()
		_, err = q.Admin().Sweep(t.Context(), layer.SweepOptions{})
		require.NoError(t, err)
		stats, err := q.Stats(t.Context(), layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 2, stats.Depth)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, other.Close(t.Context()))
		require.NoError(t, db.Close())
	})
}

// wrongClocks are the ways in which a clock is wrong, by the time that has passed since the process began.
var wrongClocks = map[string]func(rng *rand.Rand) func(passed time.Duration) time.Duration{
	"ahead":  func(rng *rand.Rand) func(time.Duration) time.Duration { return offBy(some(rng, year)) },
	"behind": func(rng *rand.Rand) func(time.Duration) time.Duration { return offBy(-some(rng, year)) },
	"stands": func(*rand.Rand) func(time.Duration) time.Duration {
		return func(passed time.Duration) time.Duration { return -passed }
	},
	"steps back": func(rng *rand.Rand) func(time.Duration) time.Duration {
		return stepBy(some(rng, 20*time.Minute), -some(rng, year))
	},
	"steps ahead": func(rng *rand.Rand) func(time.Duration) time.Duration {
		return stepBy(some(rng, 20*time.Minute), some(rng, year))
	},
}

func stepBy(at, by time.Duration) func(time.Duration) time.Duration {
	return func(passed time.Duration) time.Duration {
		if passed < at {
			return 0
		}
		return by
	}
}

func offBy(d time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return d }
}

// some is a duration up to most, of any size.
func some(rng *rand.Rand, most time.Duration) time.Duration {
	return max(time.Minute, most>>rng.IntN(20))
}

// clockRun is a run of processes of which one has a wrong clock.
type clockRun struct {
	*clocks
	config layer.Config
	mu     sync.Mutex
	sent   map[layer.ID]bool // guarded by mu; true = acked
}

// TestClocksAtRandom (G3, contract): five processes enqueue, receive, ack, nack, extend and sweep. The clock of one is
// ahead, behind, stands or steps, by up to a year, or the clocks of all are wrong, each in its way. No message is
// removed by its age. Once they are dead, a process with a right clock finishes each message within twice the lease and
// the delays.
func TestClocksAtRandom(t *testing.T) {
	t.Parallel()
	kinds := slices.Sorted(maps.Keys(wrongClocks))
	for _, name := range append(kinds, "all wrong") {
		for i := range 4 {
			t.Run(fmt.Sprint(name, " ", i), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seeds.Of(t.Name()), 1))
				config := layer.Config{
					Retention: 2 * time.Hour, DeadRetention: 2 * time.Hour, MaxAttempts: layer.Unlimited,
					Retry:        layer.RetryPolicy{Kind: layer.RetryConstant, Base: clockDelay},
					LeasePerItem: rng.IntN(2) == 1, RetroactiveDelay: rng.IntN(2) == 0,
				}
				if rng.IntN(2) == 0 {
					config.Delay = clockDelay
				}
				inClocks(t, config, func(c *clocks) {
					run := &clockRun{clocks: c, config: config, sent: map[layer.ID]bool{}}
					wrong := make([]func(time.Duration) time.Duration, 5)
					for i := range wrong {
						wrong[i] = offBy(0)
						if draw := wrongClocks[name]; draw != nil && i == 0 {
							wrong[i] = draw(rng)
						} else if draw == nil {
							wrong[i] = wrongClocks[kinds[rng.IntN(len(kinds))]](rng)
						}
					}
					run.run(rng, wrong)
				})
			})
		}
	}
}

const clockDelay = 20 * time.Second

func (r *clockRun) run(rng *rand.Rand, wrong []func(time.Duration) time.Duration) {
	begun := time.Now()
	var all sync.WaitGroup
	for _, wrong := range wrong {
		own := rand.New(rand.NewPCG(rng.Uint64(), 2))
		ends := begun.Add(some(rng, 30*time.Minute))
		q := r.clock(func() time.Time { return time.Now().Add(wrong(time.Since(begun))) })
		all.Go(func() {
			for time.Now().Before(ends) {
				r.step(own, q)
				time.Sleep(time.Duration(own.IntN(10_000)) * time.Millisecond)
			}
			require.NoError(r, q.Close(r.Context()))
		})
	}
	all.Wait()
	left := time.Now()
	for rest := r.rest(); rest > 0; rest = r.rest() {
		// Clocks may differ by five minutes before one counts as wrong; each message of a group may be delayed.
		bound := 5*time.Minute + 2*(clockLease+clockDelay) + time.Duration(len(r.sent))*clockDelay
		require.Less(r, time.Since(left), bound, "%d messages are left", rest)
		r.receive(r.q, func(c *layer.Claim) (bool, error) { return true, r.q.Ack(r.Context(), c) })
		time.Sleep(time.Second)
	}
	stats, err := r.q.Stats(r.Context(), layer.StatsOptions{})
	require.NoError(r, err)
	require.Zero(r, stats.PastRetention)
	require.Zero(r, stats.Depth)
	require.Zero(r, stats.Dead)
}

// rest is how many messages are not acked.
func (r *clockRun) rest() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, acked := range r.sent {
		if !acked {
			n++
		}
	}
	return n
}

func (r *clockRun) step(rng *rand.Rand, q *layer.Queue) {
	switch rng.IntN(6) {
	case 0, 1:
		m := layer.Message{Group: fmt.Sprint(rng.IntN(5))}
		if rng.IntN(2) == 0 {
			m.Delay = clockDelay
		}
		sent, err := q.Enqueue(r.Context(), m)
		require.NoError(r, err)
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.sent[sent[0].ID] { // another process may have acked it already
			r.sent[sent[0].ID] = false
		}
	case 2:
		_, err := q.Admin().Sweep(r.Context(), layer.SweepOptions{})
		require.True(r, err == nil || errors.Is(err, layer.ErrClock), "%v", err)
	default:
		r.receive(q, func(c *layer.Claim) (acked bool, err error) {
			switch rng.IntN(4) {
			case 0:
				return false, q.Nack(r.Context(), c, layer.NackOptions{})
			case 1: // the handler dies
				return false, nil
			case 2:
				time.Sleep(clockLease / 3)
				if _, err := q.Extend(r.Context(), c, 0); err != nil {
					return false, err
				}
			}
			return true, q.Ack(r.Context(), c)
		})
	}
}

// receive settles claims by end, and notes those that were acked.
func (r *clockRun) receive(q *layer.Queue, end func(c *layer.Claim) (acked bool, err error)) {
	claims, err := q.Receive(r.Context(), layer.ReceiveOptions{Max: 3})
	require.NoError(r, err)
	for _, c := range claims {
		ids := make([]layer.ID, len(c.Items))
		for i, item := range c.Items {
			ids[i] = item.ID
		}
		acked, err := end(c)
		require.True(r, err == nil || errors.Is(err, layer.ErrClaimLost), "%v", err)
		if err != nil || !acked {
			continue
		}
		r.mu.Lock()
		for _, id := range ids {
			require.False(r, r.sent[id], "acked twice")
			r.sent[id] = true
		}
		r.mu.Unlock()
	}
}

// steppedHandles are the ways in which a handle holds claims.
var steppedHandles = map[string]struct {
	config    layer.Config
	heartbeat bool
}{
	"a lease for each claim":   {},
	"a lease for each message": {config: layer.Config{LeasePerItem: true}},
	"heartbeat":                {heartbeat: true},
}

// TestAStepUnderAWorker (G2): the clock steps one hour forward under a worker, as that of a laptop does that wakes. Its
// goroutines do not take each other's groups: each message is handled once, though a second attempt is forbidden.
// Guard own-claim.
func TestAStepUnderAWorker(t *testing.T) {
	t.Parallel()
	for name, s := range steppedHandles {
		t.Run(name, func(t *testing.T) {
			s.config.MaxAttempts = 1
			inClocks(t, s.config, func(c *clocks) {
				var step atomic.Int64
				q := c.clock(func() time.Time { return time.Now().Add(time.Duration(step.Load())) })
				for i := range 40 {
					_, err := q.Enqueue(c.Context(), layer.Message{Group: fmt.Sprint(i % 20)})
					require.NoError(c, err)
				}
				var mu sync.Mutex
				calls := map[layer.ID]int{}
				w, err := worker.New(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
					mu.Lock()
					calls[d.ID]++
					n := len(calls)
					mu.Unlock()
					time.Sleep(time.Duration(1+n%7*7) * time.Second)
					return ctx.Err()
				}), quiet(worker.Options{Concurrency: 6, Heartbeat: s.heartbeat}))
				require.NoError(c, err)
				ctx, end := context.WithCancel(c.Context())
				ended := make(chan error, 1)
				go func() { ended <- w.Run(ctx) }()
				for range 20 {
					time.Sleep(17 * time.Second)
					step.Add(int64(time.Hour))
				}
				end()
				require.NoError(c, <-ended)
				require.Len(c, calls, 40)
				for id, n := range calls {
					require.Equal(c, 1, n, "%s", id)
				}
				stats, err := q.Stats(c.Context(), layer.StatsOptions{})
				require.NoError(c, err)
				require.Zero(c, stats.Dead+stats.Depth+stats.Expired)
				require.NoError(c, q.Close(c.Context()))
			})
		})
	}
}

// TestAStepBeforeAnOperator (G2): the clock of a handle steps one hour forward while the handle holds a claim. Then an
// operator's call of the same handle does not end that claim: the call is refused as it is before the step, and the ack
// succeeds. After a real hour without an extension each call ends the claim. Guard own-claim.
func TestAStepBeforeAnOperator(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(c *clocks, q *layer.Queue, id layer.ID) error{
		"cancel": func(c *clocks, q *layer.Queue, id layer.ID) error { return q.Admin().Cancel(c.Context(), id) },
		"edit": func(c *clocks, q *layer.Queue, id layer.ID) error {
			return q.Admin().Edit(c.Context(), id, func(m *layer.Message) error {
				m.Body = []byte("edited")
				return nil
			})
		},
		"replace": func(c *clocks, q *layer.Queue, id layer.ID) error {
			return q.Replace(c.Context(), id, []byte("replaced"), nil)
		},
		"reschedule": func(c *clocks, q *layer.Queue, id layer.ID) error {
			return q.Reschedule(c.Context(), id, q.Now().Add(time.Minute))
		},
		"skip": func(c *clocks, q *layer.Queue, _ layer.ID) error {
			_, err := q.Admin().Skip(c.Context(), "A", layer.SkipOptions{})
			return err
		},
		"purge": func(c *clocks, q *layer.Queue, _ layer.ID) error {
			r, err := q.Admin().Purge(c.Context(), layer.PurgeOptions{Group: layer.OnlyGroup("A")})
			if err == nil && r.Items == 0 {
				return layer.ErrInFlight
			}
			return err
		},
		"purge of all": func(c *clocks, q *layer.Queue, _ layer.ID) error {
			r, err := q.Admin().Purge(c.Context(), layer.PurgeOptions{All: true})
			if err == nil && r.Items == 0 {
				return layer.ErrInFlight
			}
			return err
		},
		"set group state": func(c *clocks, q *layer.Queue, _ layer.ID) error {
			return q.Admin().SetGroupState(c.Context(), "A", []byte("state"), layer.SetGroupStateOptions{})
		},
	} {
		for handle, s := range steppedHandles {
			if s.config.LeasePerItem && name == "set group state" {
				continue // there is no claim of a group
			}
			for _, stands := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, stands %t", name, handle, stands), func(t *testing.T) {
					s.config.MaxAttempts = 1
					inClocks(t, s.config, func(c *clocks) {
						var step atomic.Int64
						q := c.clock(func() time.Time { return time.Now().Add(time.Duration(step.Load())) })
						c.send(q, layer.Message{})
						held := c.claim(q, layer.ReceiveOptions{Heartbeat: s.heartbeat && !stands})
						if stands {
							time.Sleep(time.Hour)
							require.NoError(c, do(c, q, held.Items[0].ID))
							require.NoError(c, q.Close(c.Context()))
							return
						}
						refused := do(c, q, held.Items[0].ID)
						require.Error(c, refused)
						step.Store(int64(time.Hour))
						err := do(c, q, held.Items[0].ID)
						for _, kind := range []error{layer.ErrInFlight, layer.ErrHeld} {
							require.Equal(c, errors.Is(refused, kind), errors.Is(err, kind), "%v", err)
						}
						require.NoError(c, q.Ack(c.Context(), held))
						require.NoError(c, q.Close(c.Context()))
					})
				})
			}
		}
	}
}

// TestAStepUnderASubscription (G2): the clock steps one hour forward while a call of a handle holds a subscription. A
// second call of the same handle, which begins before the first extends its lease, does not take the subscription over.
// It does so when the first has ended. Guard own-claim.
func TestAStepUnderASubscription(t *testing.T) {
	inClocks(t, layer.Config{Changes: time.Hour}, func(c *clocks) {
		var step, inside, most, calls atomic.Int64
		q := c.clock(func() time.Time { return time.Now().Add(time.Duration(step.Load())) })
		subscribe := func() (stop func() error) {
			ctx, cancel := context.WithCancel(c.Context())
			done := make(chan error, 1)
			go func() {
				done <- q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
					most.Store(max(most.Load(), inside.Add(1)))
					defer inside.Add(-1)
					calls.Add(1)
					time.Sleep(time.Minute)
					return nil
				}, layer.SubscribeOptions{FromOldest: true, Lease: 30 * time.Second})
			}()
			return func() error {
				cancel()
				return <-done
			}
		}
		first := subscribe()
		c.send(q, layer.Message{})
		time.Sleep(5 * time.Second)
		step.Store(int64(time.Hour))
		second := subscribe()
		time.Sleep(10 * time.Minute)
		require.EqualValues(c, 1, calls.Load())
		require.EqualValues(c, 1, most.Load())
		require.NoError(c, first())
		c.send(q, layer.Message{})
		time.Sleep(5 * time.Minute)
		require.EqualValues(c, 2, calls.Load())
		require.NoError(c, second())
		require.NoError(c, q.Close(c.Context()))
	})
}

// TestASubscriptionAfterASuspension (contract): a machine is suspended for an hour while a subscription's handler runs.
// The wall clock steps when the machine wakes, and the monotonic clock has stood. Another process has taken the
// subscription over. The handler's context ends within two seconds, not after a third of the lease.
func TestASubscriptionAfterASuspension(t *testing.T) {
	inClocks(t, layer.Config{Changes: 2 * time.Hour}, func(c *clocks) {
		var step atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
		sleeps, other := c.clock(now), c.clock(now) // by its clock the hour has passed, too
		ctx, end := context.WithCancel(c.Context())
		taken, lost := make(chan time.Time, 1), make(chan time.Time, 1)
		var all sync.WaitGroup
		subscribe := func(q *layer.Queue, handler func(ctx context.Context)) {
			all.Go(func() {
				err := q.Subscribe(ctx, "s", func(ctx context.Context, _ []layer.Change) error {
					handler(ctx)
					return nil
				}, layer.SubscribeOptions{FromOldest: true, Lease: 30 * time.Minute})
				assert.NoError(c, err)
			})
		}
		c.send(c.q, layer.Message{})
		subscribe(sleeps, func(ctx context.Context) {
			<-ctx.Done()
			lost <- time.Now()
		})
		time.Sleep(time.Minute + 100*time.Millisecond) // not at a tick of its own
		step.Store(int64(time.Hour))
		subscribe(other, func(context.Context) {
			taken <- time.Now()
			time.Sleep(20 * time.Minute)
			end()
		})
		all.Wait()
		require.Less(c, (<-lost).Sub(<-taken), 2*time.Second)
		c.drain(1, layer.ReceiveOptions{})
		require.NoError(c, sleeps.Close(c.Context()))
		require.NoError(c, other.Close(c.Context()))
	})
}

// TestAStepDuringACommit (G2): the clock steps one hour forward while a commit is under way that makes, extends or ends
// a claim. Another receive of the handle sees the database as it is before that commit. It does not take the group, nor
// does a receive after the commit.
func TestAStepDuringACommit(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"receive", "extend", "ack", "ack in a transaction"} {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				var step atomic.Int64
				db := &beforeCommit{DB: c.db}
				q, err := layer.Open(c.Context(), db, nil, "q", layer.Options{
					Now: func() time.Time { return time.Now().Add(time.Duration(step.Load())) },
				})
				require.NoError(c, err)
				c.send(c.q, layer.Message{})
				held := c.claim(q, layer.ReceiveOptions{})
				if name == "receive" {
					require.NoError(c, q.Nack(c.Context(), held, layer.NackOptions{Release: true}))
				}
				// Not through the handle's pipeline, which holds back the second of two receives.
				others := func(o layer.ReceiveOptions) {
					var claims []*layer.Claim
					require.NoError(c, q.Once(c.Context(), func(tx kv.Tx) (err error) {
						claims, err = q.ReceiveTx(c.Context(), tx, o)
						return err
					}))
					require.Empty(c, claims)
				}
				db.run = func() {
					step.Add(int64(time.Hour))
					o := layer.ReceiveOptions{}
					if other := "B"; name == "receive" { // the message is free before the commit
						o.Group = &other
					}
					others(o)
				}
				db.left.Store(1)
				switch name {
				case "receive":
					held = c.claim(q, layer.ReceiveOptions{})
				case "extend":
					_, err = q.Extend(c.Context(), held, clockLease)
					require.NoError(c, err)
				case "ack":
					require.NoError(c, q.Ack(c.Context(), held))
				case "ack in a transaction":
					require.NoError(c, q.Once(c.Context(), func(tx kv.Tx) error {
						return q.AckTx(c.Context(), tx, held)
					}))
				}
				others(layer.ReceiveOptions{})
				step.Add(int64(time.Hour))
				others(layer.ReceiveOptions{})
				if name == "receive" || name == "extend" {
					require.NoError(c, q.Ack(c.Context(), held))
				}
				stats, err := c.q.Stats(c.Context(), layer.StatsOptions{})
				require.NoError(c, err)
				require.EqualValues(c, 1, stats.Acked)
				require.Zero(c, stats.Expired)
				require.NoError(c, q.Close(c.Context()))
			})
		})
	}
}

// TestNoAttemptByAWrongClock (G7): a process whose clock is a year ahead takes the message of a process that works on
// it, again and again. No attempt counts, and so the message never becomes a dead letter. Nor does one of a process
// whose clock is a year behind. The claim may have a much shorter lease than the queue's. Guard clock-lease.
func TestNoAttemptByAWrongClock(t *testing.T) {
	t.Parallel()
	for name, s := range steppedHandles {
		for who, by := range map[string][2]time.Duration{"ahead": {0, year}, "behind": {-year, 0}} {
			for of, lease := range map[string]time.Duration{"": clockLease, ", short": clockLease / 6} {
				if s.heartbeat && of != "" {
					continue // a heartbeat has the queue's lease
				}
				t.Run(name+" "+who+of, func(t *testing.T) {
					o := layer.ReceiveOptions{Heartbeat: s.heartbeat}
					if !s.heartbeat {
						o.Lease = lease
					}
					s.config.MaxAttempts = 1
					inClocks(t, s.config, func(c *clocks) { c.takeAgain(c.off(by[0]), c.off(by[1]), o, lease) })
				})
			}
		}
	}
}

// takeAgain lets the handle works claim a message and extend the claim. Then the handle takes claims the message. This
// happens several times. No attempt may count.
func (c *clocks) takeAgain(works, takes *layer.Queue, o layer.ReceiveOptions, lease time.Duration) {
	c.send(c.q, layer.Message{})
	for range 5 {
		held := c.claim(works, o)
		time.Sleep(lease / 5)
		_, err := works.Extend(c.Context(), held, lease)
		require.NoError(c, err)
		time.Sleep(lease / 5)
		var claims []*layer.Claim
		for range 3 { // a heartbeat is ended first
			if claims, err = takes.Receive(c.Context(), layer.ReceiveOptions{}); len(claims) > 0 {
				break
			}
			require.NoError(c, err)
		}
		for _, claim := range claims {
			require.Zero(c, claim.Items[0].Attempts)
			require.NoError(c, takes.Nack(c.Context(), claim, layer.NackOptions{Release: true}))
		}
		if len(claims) == 0 {
			require.NoError(c, works.Nack(c.Context(), held, layer.NackOptions{Release: true}))
		}
	}
	stats, err := c.q.Stats(c.Context(), layer.StatsOptions{})
	require.NoError(c, err)
	require.Zero(c, stats.Dead)
	require.EqualValues(c, 1, stats.Depth)
	for _, q := range []*layer.Queue{works, takes} {
		require.NoError(c, q.Close(c.Context()))
	}
}

// TestAStepUnderAClaimOfAnother (G2): the receives of two processes read the same version, and so make the same token.
// One is refused. Its process, whose clock is behind, does not take the claim of the other for its own when its clock
// steps.
func TestAStepUnderAClaimOfAnother(t *testing.T) {
	inClocks(t, layer.Config{}, func(c *clocks) {
		var off atomic.Int64
		off.Store(int64(-2 * time.Minute))
		plan := &fault.Plan{}
		behind, err := layer.Open(c.Context(), fault.Wrap(c.db, plan), nil, "q", layer.Options{
			Now: func() time.Time { return time.Now().Add(time.Duration(off.Load())) },
		})
		require.NoError(c, err)
		c.send(c.q, layer.Message{})
		var held *layer.Claim
		plan.OnCommit = func(int, kv.Tx) fault.Kind {
			if plan.OnCommit = nil; held == nil {
				held = c.claim(c.q, layer.ReceiveOptions{})
			}
			return fault.None
		}
		claims, err := behind.Receive(c.Context(), layer.ReceiveOptions{})
		require.NoError(c, err)
		require.Empty(c, claims)
		require.NotNil(c, held)
		off.Add(int64(clockLease + time.Second))
		for _, q := range []*layer.Queue{behind, c.q} {
			claims, err = q.Receive(c.Context(), layer.ReceiveOptions{})
			require.NoError(c, err)
			require.Empty(c, claims)
		}
		require.NoError(c, c.q.Ack(c.Context(), held))
		require.NoError(c, behind.Close(c.Context()))
	})
}

// TestAStepUnderAClaim (G2): after a step of its clock, a handle delivers nothing again, takes nothing and removes
// nothing that it holds itself, until the lease is over by the time that has passed.
func TestAStepUnderAClaim(t *testing.T) {
	t.Parallel()
	for name, s := range steppedHandles {
		t.Run(name, func(t *testing.T) {
			s.config.Retention = 10 * time.Minute
			inClocks(t, s.config, func(c *clocks) {
				var step atomic.Int64
				q := c.clock(func() time.Time { return time.Now().Add(time.Duration(step.Load())) })
				c.send(q, layer.Message{}, layer.Message{})
				o := layer.ReceiveOptions{Max: 2, Heartbeat: s.heartbeat}
				claims, err := q.Receive(c.Context(), o)
				require.NoError(c, err)
				require.NotEmpty(c, claims)
				time.Sleep(time.Second)
				group := "A"
				for range 3 {
					step.Add(int64(time.Hour))
					for _, named := range []*string{nil, &group} {
						o.Group = named
						again, err := q.Receive(c.Context(), o)
						require.NoError(c, err)
						require.Empty(c, again)
						err = q.Once(c.Context(), func(tx kv.Tx) error {
							items, _, err := q.TakeTx(c.Context(), tx, 1, layer.TakeOptions{Group: named})
							require.Empty(c, items)
							return err
						})
						require.NoError(c, err)
					}
					report, err := q.Admin().Sweep(c.Context(), layer.SweepOptions{})
					require.True(c, err == nil || errors.Is(err, layer.ErrClock), "%v", err)
					require.Zero(c, report.PastRetention)
					time.Sleep(clockLease / 10)
				}
				require.NoError(c, q.Ack(c.Context(), claims[0]))
				require.NoError(c, q.Close(c.Context()))
			})
		})
	}
}

// TestAClaimOfAClockThatDrifts: the clock of a process is ahead by less than five minutes when it claims, and by more
// when it extends the claim for the last time. No step is larger than five minutes. The process dies, and another gets
// the message within twice the lease.
func TestAClaimOfAClockThatDrifts(t *testing.T) {
	t.Parallel()
	receives := func(c *clocks, q *layer.Queue, _ *layer.Claim) {
		claims, err := q.Receive(c.Context(), layer.ReceiveOptions{})
		require.NoError(c, err)
		require.Empty(c, claims)
	}
	extends := func(c *clocks, q *layer.Queue, claim *layer.Claim) {
		_, err := q.Extend(c.Context(), claim, 0)
		require.NoError(c, err)
	}
	for name, s := range map[string]struct {
		first, step time.Duration
		steps       int
		then        func(c *clocks, q *layer.Queue, claim *layer.Claim)
	}{
		"a step and a receive":    {290 * time.Second, 290 * time.Second, 1, receives},
		"a step and an extension": {290 * time.Second, 290 * time.Second, 1, extends},
		"many small steps":        {0, 31 * time.Second, 20, extends},
		"from behind":             {-4 * time.Minute, 4 * time.Minute, 3, extends},
	} {
		for _, perItem := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lease per item=%t", name, perItem), func(t *testing.T) {
				inClocks(t, layer.Config{LeasePerItem: perItem}, func(c *clocks) {
					var off atomic.Int64
					off.Store(int64(s.first))
					dies := c.clock(func() time.Time { return time.Now().Add(time.Duration(off.Load())) })
					c.send(c.q, layer.Message{})
					claim := c.claim(dies, layer.ReceiveOptions{})
					for range s.steps {
						time.Sleep(time.Second)
						off.Add(int64(s.step))
						s.then(c, dies, claim)
					}
					require.NoError(c, dies.Close(c.Context()))
					died := time.Now()
					claims, err := c.q.Receive(c.Context(), layer.ReceiveOptions{Wait: 4 * clockLease})
					require.NoError(c, err)
					require.Len(c, claims, 1)
					require.LessOrEqual(c, time.Since(died), 2*clockLease)
					require.NoError(c, c.q.Ack(c.Context(), claims[0]))
				})
			})
		}
	}
}

// TestAStepUnderASuspect (G7): the clock of a handle steps ahead, or back, while the handle has a suspect message in
// hand. The handle gives the next suspect message after 30 s, and no earlier. After a small step back it takes a little
// longer.
func TestAStepUnderASuspect(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{0, time.Hour, -time.Hour, -10 * time.Second} {
		t.Run(by.String(), func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				dies := c.off(0)
				for _, group := range []string{"A", "B"} {
					_, err := c.q.Enqueue(c.Context(), layer.Message{Group: group})
					require.NoError(c, err)
					c.claim(dies, layer.ReceiveOptions{})
				}
				require.NoError(c, dies.Close(c.Context()))
				time.Sleep(2 * clockLease)
				var step atomic.Int64
				q := c.clock(func() time.Time { return time.Now().Add(time.Duration(step.Load())) })
				first := c.claim(q, layer.ReceiveOptions{Lease: time.Hour})
				begun := time.Now()
				time.Sleep(5 * time.Second)
				step.Store(int64(by))
				var claims []*layer.Claim
				for len(claims) == 0 {
					time.Sleep(time.Second)
					var err error
					claims, err = q.Receive(c.Context(), layer.ReceiveOptions{})
					require.NoError(c, err)
				}
				require.GreaterOrEqual(c, time.Since(begun), 30*time.Second)
				require.LessOrEqual(c, time.Since(begun), 42*time.Second)
				require.NoError(c, q.Ack(c.Context(), first))
				require.NoError(c, q.Ack(c.Context(), claims[0]))
				require.NoError(c, q.Close(c.Context()))
			})
		})
	}
}

// TestAStepEndsNoLease: a handler has stopped without an ack, and then the clock steps. The claim ends after the rest
// of its lease.
func TestAStepEndsNoLease(t *testing.T) {
	inClocks(t, layer.Config{}, func(c *clocks) {
		var step atomic.Int64
		q := c.clock(func() time.Time { return time.Now().Add(time.Duration(step.Load())) })
		c.send(q, layer.Message{})
		c.claim(q, layer.ReceiveOptions{})
		time.Sleep(clockLease / 2)
		step.Store(int64(time.Hour))
		begun := time.Now()
		claims, err := q.Receive(c.Context(), layer.ReceiveOptions{Wait: time.Minute})
		require.NoError(c, err)
		require.Len(c, claims, 1)
		require.InDelta(c, clockLease/2, time.Since(begun), float64(2*time.Second))
		require.NoError(c, q.Ack(c.Context(), claims[0]))
		require.NoError(c, q.Close(c.Context()))
	})
}

// TestALiveRequestOfAClockAhead (G5): a process whose clock is a year ahead takes handles that wait for dead: its sweep
// clears their requests, or its own receive does. These handles still get the next message, at their next poll.
func TestALiveRequestOfAClockAhead(t *testing.T) {
	t.Parallel()
	sweep := func(c *clocks, ahead *layer.Queue) {
		_, err := ahead.Admin().Sweep(c.Context(), layer.SweepOptions{})
		require.True(c, err == nil || errors.Is(err, layer.ErrClock), "%v", err)
	}
	wait := func(c *clocks, ahead *layer.Queue) {
		claims, err := ahead.Receive(c.Context(), layer.ReceiveOptions{Wait: 3 * time.Second})
		require.NoError(c, err)
		require.Empty(c, claims)
	}
	for name, s := range map[string]struct {
		section string
		o       layer.ReceiveOptions
		clears  func(c *clocks, ahead *layer.Queue)
	}{
		"group, sweep":         {"reqgroup", layer.ReceiveOptions{Group: layer.OnlyGroup("A")}, sweep},
		"any group, a receive": {"request", layer.ReceiveOptions{}, wait},
	} {
		t.Run(name, func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				ahead := c.off(year)
				section := tuple.Tuple{"q", s.section}.Pack()
				requests := func() (n int) {
					for _, row := range c.rows() {
						if bytes.HasPrefix(row.Key, section) {
							n++
						}
					}
					return n
				}
				got := make(chan time.Time)
				go func() {
					s.o.Wait = time.Minute
					claims, err := c.q.Receive(c.Context(), s.o)
					require.NoError(c, err)
					require.Len(c, claims, 1)
					require.NoError(c, c.q.Ack(c.Context(), claims[0]))
					got <- time.Now()
				}()
				time.Sleep(10 * time.Second)
				require.Equal(c, 1, requests())
				s.clears(c, ahead)
				require.Zero(c, requests())
				sent := time.Now()
				c.send(c.q, layer.Message{})
				received := <-got
				require.Less(c, received.Sub(sent), 2*time.Second)
				require.NoError(c, ahead.Close(c.Context()))
			})
		})
	}
}

// TestADeadRequestOfAClockAhead (G5): a process whose clock is an hour ahead waits, and dies. Its request wakes no
// handle, so the next message wakes the handle that lives. No handle but that one is shown to wait.
func TestADeadRequestOfAClockAhead(t *testing.T) {
	t.Parallel()
	for section, o := range map[string]layer.ReceiveOptions{
		"request": {}, "reqgroup": {Group: layer.OnlyGroup("A")},
	} {
		t.Run(section, func(t *testing.T) {
			inClocks(t, layer.Config{}, func(c *clocks) {
				o.Wait = 10 * time.Minute
				var all sync.WaitGroup
				ahead, requests := c.off(time.Hour), kv.PrefixRange(tuple.Tuple{"q", section}.Pack())
				ctx, dies := context.WithCancel(c.Context())
				all.Go(func() {
					_, err := ahead.Receive(ctx, o)
					assert.ErrorIs(c, err, context.Canceled)
				})
				time.Sleep(time.Minute)
				left := slices.DeleteFunc(c.rows(), func(row kv.KV) bool { return !requests.Contains(row.Key) })
				require.Len(c, left, 1)
				dies()
				all.Wait()
				require.NoError(c, ahead.Close(c.Context()))
				c.put(left[0].Key, left[0].Value) // a process that dies does not clear its request
				received := make(chan time.Time, 1)
				all.Go(func() {
					claims, err := c.q.Receive(c.Context(), o)
					received <- time.Now()
					if assert.NoError(c, err) && assert.Len(c, claims, 1) {
						assert.NoError(c, c.q.Ack(c.Context(), claims[0]))
					}
				})
				time.Sleep(2 * time.Minute)
				stats, err := c.q.Stats(c.Context(), layer.StatsOptions{})
				require.NoError(c, err)
				sent := time.Now()
				c.send(c.q, layer.Message{})
				all.Wait()
				assert.Less(c, (<-received).Sub(sent), 10*time.Millisecond)
				require.EqualValues(c, 1, stats.WaitingHandles)
			})
		})
	}
}

// TestAStepOverManyOwnClaims (G2): the clock of a handle steps two hours forward while the handle has more claims than
// fit into one of its transactions. Each call that may end expired claims succeeds, and ends none of them.
func TestAStepOverManyOwnClaims(t *testing.T) {
	e := newEnvOf(t, inMemory, false, func(c *layer.Config) { c.Unordered, c.Lease = true, time.Hour })
	const claims = 300
	o := e.options(7)
	o.Tx.SizeLimit = 60_000
	var step atomic.Int64
	o.Now = func() time.Time { return e.clock.now().Add(time.Duration(step.Load())) }
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(t, err)
	e.fill("A", claims)
	receive := layer.ReceiveOptions{Unordered: true, Max: 30}
	var all []*layer.Claim
	for len(all) < claims {
		some, err := q.Receive(e.ctx, receive)
		require.NoError(t, err)
		require.NotEmpty(t, some)
		all = append(all, some...)
	}
	take := func(tx kv.Tx) error {
		_, _, err := q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{Unordered: true})
		return err
	}
	for name, call := range map[string]func() error{
		"receive": func() error { return last(q.Receive(e.ctx, receive)) },
		"take":    func() error { return q.Once(e.ctx, take) },
		"purge":   func() error { return last(q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: ptr("A")})) },
		"cancel": func() error {
			err := q.Admin().Cancel(e.ctx, all[0].Items[0].ID)
			require.ErrorIs(t, err, layer.ErrInFlight)
			return nil
		},
	} {
		step.Add(int64(2 * time.Hour))
		require.NoError(t, call(), name)
		e.clock.advance(time.Second)
	}
	step.Store(0)
	for _, c := range all {
		require.NoError(t, q.Ack(e.ctx, c))
	}
	s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, claims, s.Acked)
	require.Zero(t, s.Expired+s.Depth)
	require.NoError(t, q.Close(e.ctx))
	e.check()
}

// TestDiscardByAgeWithAWrongClock (G3): a discard or a redrive by the time of death is refused if the clock of another
// process is behind this one's, because either may be wrong. If no other clock is known, a discard keeps the letters
// whose messages are younger than the bound by versions.
func TestDiscardByAgeWithAWrongClock(t *testing.T) {
	const day = 24 * time.Hour
	inClocks(t, layer.Config{}, func(c *clocks) {
		c.send(c.q, layer.Message{})
		err := c.q.Nack(c.Context(), c.claim(c.q, layer.ReceiveOptions{}), layer.NackOptions{Reject: "bad"})
		require.NoError(c, err)
		dead := func() int64 {
			stats, err := c.q.Stats(c.Context(), layer.StatsOptions{})
			require.NoError(c, err)
			return stats.Dead
		}
		ahead := c.off(60 * day)
		old := layer.DeadFilter{Before: ahead.Now().Add(-30 * day)}
		for _, dry := range []bool{true, false} {
			_, err = ahead.Admin().Discard(c.Context(), old, layer.DiscardOptions{DryRun: dry})
			require.ErrorIs(c, err, layer.ErrClock)
			_, err = ahead.Admin().Redrive(c.Context(), old, layer.RedriveOptions{DryRun: dry})
			require.ErrorIs(c, err, layer.ErrClock)
		}
		time.Sleep(2 * time.Minute) // no receipt shows the other clock any more
		report, err := ahead.Admin().Discard(c.Context(), old, layer.DiscardOptions{})
		require.NoError(c, err)
		require.Zero(c, report.Done)
		require.EqualValues(c, 1, dead())
		require.NoError(c, ahead.Close(c.Context()))

		time.Sleep(31 * day)
		old.Before = c.q.Now().Add(-30 * day)
		report, err = c.q.Admin().Discard(c.Context(), old, layer.DiscardOptions{})
		require.NoError(c, err)
		require.EqualValues(c, 1, report.Done)
		require.Zero(c, dead())
	})
}
