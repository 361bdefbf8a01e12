package layer_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// TestRetentionLimits: a retention below or above its limits is refused with the value and the range.
func TestRetentionLimits(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	for _, d := range []time.Duration{-1, time.Millisecond, time.Second - 1, 10*365*24*time.Hour + 1} {
		var limit *layer.LimitError
		_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Retention = d })
		require.ErrorAs(t, err, &limit, d)
		require.Equal(t, "retention", limit.What)
		require.EqualValues(t, 10*365*24*time.Hour, limit.Max)
	}
	var value *layer.ValueError
	_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.OnFailure = 3 })
	require.ErrorAs(t, err, &value)
}

// TestReceiveComesThroughManyOverdueInDoubt (G5): a receive whose transaction has removed overdue items, and has left
// others to the next, continues also if the outcome of its commit was unknown.
func TestReceiveComesThroughManyOverdueInDoubt(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Retention = time.Minute })
		e.fill("A", 1500)
		e.clock.advance(2 * time.Minute)
		e.enqueue("A", "young")
		plan := &fault.Plan{}
		q, err := layer.Open(e.ctx, fault.Wrap(e.raw, plan), testPrefix, testQueue, e.options(2))
		require.NoError(e.t, err)
		plan.ForceNext(fault.UnknownApplied)
		c := e.receive(q, 1)
		require.NotNil(e.t, c)
		require.Equal(e.t, "young", string(c.Items[0].Body))
		require.Equal(e.t, 1, plan.Counts()[fault.UnknownApplied])
	})
}

// TestReceiveComesThroughManyOverdue: a receive meets more overdue items than one transaction can settle. It still
// reaches the item to deliver, and so do a waiting receive and a take.
func TestReceiveComesThroughManyOverdue(t *testing.T) {
	for _, dead := range []bool{false, true} {
		for name, next := range map[string]func(e *env) string{
			"receive": func(e *env) string { return string(e.receive(e.q, 1).Items[0].Body) },
			"wait": func(e *env) string {
				claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 1, Wait: time.Minute})
				require.NoError(e.t, err)
				require.Len(e.t, claims, 1)
				return string(claims[0].Items[0].Body)
			},
			"sweep": func(e *env) string {
				report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
				require.NoError(e.t, err)
				require.EqualValues(e.t, 1500, report.PastRetention)
				return e.all("A")[0]
			},
		} {
			t.Run(fmt.Sprint(name, " dead letters ", dead), func(t *testing.T) {
				e := newEnv(t, anyEngine, false)
				e.configure(func(c *layer.Config) { c.Retention, c.DeadLetterExpired = time.Minute, dead })
				e.fill("A", 1500)
				e.clock.advance(2 * time.Minute)
				e.enqueue("A", "young")
				require.Equal(t, "young", next(e))
				s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 1500, s.PastRetention+s.DeadLettered)
				require.EqualValues(t, 1, s.Depth)
			})
		}
	}
}

// holdKinds are the queues in which items are held by themselves, and how a receive there gets several items.
var holdKinds = []struct {
	name   string
	change func(c *layer.Config)
	o      layer.ReceiveOptions
}{
	{"in turn", func(c *layer.Config) { c.Unordered, c.LeasePerItem = false, true }, layer.ReceiveOptions{}},
	{"unordered", func(*layer.Config) {}, layer.ReceiveOptions{Unordered: true}},
	{"by groups in an unordered queue", func(*layer.Config) {}, layer.ReceiveOptions{}},
}

// TestOverdueItemsGoByPages: a small receive that meets many items past retention removes them by pages, also where
// items are held by themselves. A transaction with several reads for each item, one after the other, would outlast
// itself on a slow engine, again and again.
func TestOverdueItemsGoByPages(t *testing.T) {
	const n = 150
	for _, kind := range holdKinds {
		for _, then := range []bool{false, true} {
			t.Run(fmt.Sprint(kind.name, " dead letters ", then), func(t *testing.T) {
				e := newEnv(t, anyEngine, false)
				counting := record.WrapCounting(e.raw)
				e.db = counting
				e.q = e.unordered("pages", func(c *layer.Config) {
					c.Retention, c.DeadLetterExpired = time.Minute, then
					kind.change(c)
				}, 1)[0]
				e.fill("A", n)
				e.clock.advance(2 * time.Minute)
				e.enqueue("A", "young")
				before := counting.Counters()
				o := kind.o
				o.Max = 1
				claims, err := e.q.Receive(e.ctx, o)
				require.NoError(t, err)
				count := counting.Counters().Sub(before)
				require.Len(t, claims, 1)
				require.Equal(t, []string{"young"}, bodies(claims[0].Items))
				require.Less(t, count.Reads, int64(2*n), "an unordered receive reads each body by its key")
				require.NoError(t, e.q.Ack(e.ctx, claims[0]))
				s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, n, s.PastRetention+s.DeadLettered)
				require.Zero(t, s.Depth)
			})
		}
	}
}

// TestTakeSaysAgain (G5): a take with too much in its way for one transaction returns Again, and no other take does.
// Without it a program that takes until nothing is left would leave the young message behind.
func TestTakeSaysAgain(t *testing.T) {
	const n = 450
	group := "A"
	for _, kind := range holdKinds {
		for _, then := range []bool{false, true} {
			for _, of := range []*string{nil, &group} {
				t.Run(fmt.Sprint(kind.name, " dead letters ", then, " named ", of != nil), func(t *testing.T) {
					e := newEnv(t, anyEngine, false)
					e.q = e.unordered("again", func(c *layer.Config) {
						c.Retention, c.DeadLetterExpired = time.Minute, then
						kind.change(c)
					}, 1)[0]
					e.fill(group, n)
					e.clock.advance(2 * time.Minute)
					e.enqueue(group, "young")
					var got []string
					vain, again := 0, true
					for ; again; vain++ {
						require.Less(t, vain, n)
						require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) error {
							o := layer.TakeOptions{Group: of, Unordered: kind.o.Unordered}
							items, more, err := e.q.TakeTx(e.ctx, tx, 1, o)
							got, again = bodies(items), more
							return err
						}))
						if len(got) > 0 {
							require.False(t, again)
							break
						}
					}
					require.Equal(t, []string{"young"}, got)
					require.Positive(t, vain, "one transaction cannot do it")
				})
			}
		}
	}
}

// TestDrainEndsBehindUnreadableGroups (contract): the first groups cannot be read, and a take fills its transaction by
// reads of them. The loop that drains the queue comes to an end, with the error of the first of them.
func TestDrainEndsBehindUnreadableGroups(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	const groups = 100
	for i := range groups {
		e.enqueue(fmt.Sprint("broken", i), "x")
		e.spoil(key("lock", fmt.Sprint("broken", i)))
	}
	o := e.options(7)
	o.Tx.SizeLimit = 10_000
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(t, err)
	takes := 0
	for again := true; again && err == nil; takes++ {
		require.Less(t, takes, groups)
		err = q.Once(e.ctx, func(tx kv.Tx) (err error) {
			var items []layer.Item
			items, again, err = q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{})
			require.Empty(t, items)
			return err
		})
	}
	require.ErrorIs(t, err, layer.ErrCorrupt)
	_, err = q.Receive(e.ctx, layer.ReceiveOptions{})
	require.ErrorIs(t, err, layer.ErrCorrupt)
	require.Len(t, e.rows(kv.PrefixRange(key("ready"))), groups, "the hints are as they were")
	_, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true, Force: true})
	require.NoError(t, err)
}

// TestOverduePageLeavesWhatIsHeld (G2): a page of items past retention ends before the first held item.
func TestOverduePageLeavesWhatIsHeld(t *testing.T) {
	for _, kind := range holdKinds {
		t.Run(kind.name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			e.q = e.unordered("pages", func(c *layer.Config) {
				c.Retention, c.Lease = time.Minute, time.Hour
				kind.change(c)
			}, 1)[0]
			e.enqueue("A", "a", "b", "c", "d", "e", "f")
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 4, Unordered: kind.name != "in turn"})
			require.NoError(t, err)
			require.Len(t, claims, 4)
			for _, c := range claims[:3] {
				require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
			}
			e.clock.advance(2 * time.Minute)
			o := kind.o
			o.Max = 1
			none, err := e.q.Receive(e.ctx, o)
			require.NoError(t, err)
			require.Empty(t, none)
			require.NoError(t, e.q.Ack(e.ctx, claims[3]), "its item was past retention, and in flight")
			none, err = e.q.Receive(e.ctx, o)
			require.NoError(t, err)
			require.Empty(t, none)
			s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 5, s.PastRetention)
			require.EqualValues(t, 1, s.Acked)
			require.Zero(t, s.Depth)
		})
	}
}

// TestSweepOverdueBehindLapsedHolds (G5): a sweep removes items past retention also if a consumer had claimed some of
// them by themselves and is gone. Otherwise they stay until a receive comes, which may never come.
func TestSweepOverdueBehindLapsedHolds(t *testing.T) {
	for _, kind := range holdKinds {
		t.Run(kind.name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			e.q = e.unordered("gone", func(c *layer.Config) {
				c.Retention, c.Lease = time.Minute, 10*time.Second
				kind.change(c)
			}, 1)[0]
			e.enqueue("A", "a", "b", "c", "d")
			o := kind.o
			o.Max = 3
			claims, err := e.q.Receive(e.ctx, o)
			require.NoError(t, err)
			held := claims[len(claims)-1]
			_, err = e.q.Extend(e.ctx, held, 2*time.Minute)
			require.NoError(t, err)
			e.clock.advance(61 * time.Second)
			_, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(t, err)
			require.NoError(t, e.q.Ack(e.ctx, held), "its items were in flight")
			e.enqueue("A", "young")
			e.clock.advance(time.Second)
			_, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(t, err)
			s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 1, s.Depth)
			require.EqualValues(t, 4, s.PastRetention+s.Acked)
			require.Zero(t, s.InFlight)
			claims, err = e.q.Receive(e.ctx, kind.o)
			require.NoError(t, err)
			require.Len(t, claims, 1)
			require.Equal(t, []string{"young"}, bodies(claims[0].Items))
			require.NoError(t, e.q.Ack(e.ctx, claims[0]))
		})
	}
}

// TestPauseProtectsNoOldMessages: a sweep removes messages past retention also from a paused or halted group, in each
// kind of queue. The group stays paused, and delivers later messages after a resume.
func TestPauseProtectsNoOldMessages(t *testing.T) {
	for _, k := range purgedKinds {
		e := newEnvOf(t, anyEngine, false, func(c *layer.Config) {
			k.configure(c)
			c.Retention = time.Minute
		})
		e.enqueueNew("A", "a1", "a2", "a3")
		admin := e.q.Admin()
		_, err := admin.PauseGroup(e.ctx, "A", layer.PauseOptions{})
		require.NoError(t, err)
		e.clock.advance(2 * time.Minute)
		e.enqueueNew("A", "young")
		report, err := admin.Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 3, report.PastRetention, k.name)
		require.Equal(t, []string{"young"}, e.all("A"), k.name)
		e.check()
		claims, err := e.q.Receive(e.ctx, k.o)
		require.NoError(t, err)
		require.Empty(t, claims, k.name)
		require.NoError(t, e.resume("A"))
		e.check()
		claims, err = e.q.Receive(e.ctx, k.o)
		require.NoError(t, err)
		require.Len(t, claims, 1, k.name)
		require.Equal(t, []string{"young"}, bodies(claims[0].Items), k.name)
		require.NoError(t, e.q.Ack(e.ctx, claims[0]))
		e.check()
	}
}

// TestHaltsProtectNoOldMessages: many lanes of a group are halted, and behind them a claim has expired. A sweep removes
// the messages past retention. While a claim lasts, they stay.
func TestHaltsProtectNoOldMessages(t *testing.T) {
	e := newEnvOf(t, anyEngine, false, func(c *layer.Config) {
		facets("*; state").configure(c)
		c.OnFailure, c.Retention, c.Lease = layer.HaltGroup, time.Minute, 10*time.Second
	})
	const lanes = 12
	receive := func(i int) *layer.Claim {
		state := fmt.Sprintf("s%02d", i)
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: facetsOf(state, "EU")})
		require.NoError(t, err)
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": state}})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		return claims[0]
	}
	for i := range lanes {
		require.NoError(t, e.q.Nack(e.ctx, receive(i), layer.NackOptions{Reject: "poison"}))
	}
	last := receive(lanes)
	_, err := e.q.Extend(e.ctx, last, 3*time.Minute)
	require.NoError(t, err)
	e.clock.advance(2 * time.Minute)
	admin := e.q.Admin()
	report, err := admin.Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.Zero(t, report.PastRetention)
	require.Len(t, e.all("A"), lanes+1)
	e.clock.advance(2 * time.Minute)
	report, err = e.handle(2).Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.EqualValues(t, lanes+1, report.PastRetention)
	require.Empty(t, e.all("A"))
	require.Len(t, e.rows(kv.PrefixRange(key("mark"))), lanes)
	e.check()
	require.NoError(t, e.resume("A"))
	e.check()
	require.NoError(t, e.q.Ack(e.ctx, receive(0)))
	e.check()
}

// TestSweepOverdueBehindADeadHeartbeat (G5): a sweep removes items past retention also if the process is gone that held
// some of them by heartbeat.
func TestSweepOverdueBehindADeadHeartbeat(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.Retention, c.Lease = time.Minute, 10*time.Second })
	e.enqueue("A", "1", "2", "3")
	db := &cutDB{DB: e.raw}
	dead, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
	require.NoError(t, err)
	claims, err := dead.Receive(e.ctx, layer.ReceiveOptions{Max: 2, Heartbeat: true})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	db.cut(6000) // no beat comes any more
	e.clock.advance(61 * time.Second)
	_, err = e.handle(2).Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.Zero(t, s.Depth)
	require.EqualValues(t, 3, s.PastRetention)
	e.check()
}

// TestSweepOverdueGoesOn: a sweep that was stopped has done what it reports; run again it goes on. Many groups, deep
// and shallow, with heads that are overdue and heads that are not.
func TestSweepOverdueGoesOn(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Retention = time.Minute })
		for i := range 120 {
			e.enqueue(fmt.Sprint("old", i), make([]string, 1+i%3)...)
		}
		e.fill("deep", 130)
		e.clock.advance(2 * time.Minute)
		for i := range 120 {
			e.enqueue(fmt.Sprint("young", i), "x")
		}
		e.enqueue("old7", "young")
		aged, runs := int64(0), 0
		for ; ; runs++ {
			ctx, cancel := context.WithCancel(e.ctx)
			report, err := e.q.Admin().Sweep(ctx, layer.SweepOptions{Progress: func(r layer.SweepReport) {
				if r.PastRetention > 0 {
					cancel()
				}
			}})
			cancel()
			if aged += report.PastRetention; err == nil {
				break
			}
			require.ErrorIs(e.t, err, context.Canceled)
			e.check()
		}
		require.Greater(e.t, runs, 3)
		s, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 240+130, s.PastRetention)
		require.EqualValues(e.t, 121, s.Depth)
		if e.plan.Chances == nil {
			require.EqualValues(e.t, s.PastRetention, aged)
		}
	})
}

// TestRetentionUnderLoad (G3): while producers, workers and sweeps run at the same time and messages grow old, each
// message is either acked, dropped or dead-lettered, never two of these, and none is stranded.
func TestRetentionUnderLoad(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Retention, c.DeadLetterExpired = time.Second, e.seed%2 == 1 })
		const producers, each = 2, 60
		var wg, workers sync.WaitGroup
		for p := range producers {
			q := e.handle(uint64(10 + p))
			wg.Go(func() {
				for i := range each {
					e.clock.advance(20 * time.Millisecond)
					if _, err := q.Enqueue(e.ctx, layer.Message{Group: fmt.Sprint(i % 4)}, layer.Message{Group: fmt.Sprint(i % 3)}); err != nil {
						e.t.Error(err)
						return
					}
				}
			})
		}
		var acked atomic.Int64
		stop := make(chan struct{})
		work := func(do func() error) {
			workers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := do(); err != nil {
						e.t.Error(err)
						return
					}
				}
			})
		}
		q := e.handle(20)
		work(func() error {
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 3, Lease: layer.MaxLease})
			for _, c := range claims {
				if err := q.Ack(e.ctx, c); err != nil {
					return err
				}
				acked.Add(int64(len(c.Items)))
			}
			return err
		})
		sweeper := e.handle(21)
		work(func() error { _, err := sweeper.Admin().Sweep(e.ctx, layer.SweepOptions{}); return err })
		wg.Wait()
		close(stop)
		workers.Wait()
		e.clock.advance(time.Hour)
		_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(e.t, err)
		s, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.Zero(e.t, s.Depth)
		require.EqualValues(e.t, acked.Load(), s.Acked)
		require.EqualValues(e.t, 2*producers*each, s.Acked+s.PastRetention+s.DeadLettered)
		require.EqualValues(e.t, s.DeadLettered, s.Dead)
		page, err := e.calm().Admin().Groups(e.ctx, layer.GroupsOptions{})
		require.NoError(e.t, err)
		require.Empty(e.t, page.Groups)
	})
}

// TestDeadRetention: a sweep discards the dead letters that were kept for as long as the queue says, and no others
// (Contract).
func TestDeadRetention(t *testing.T) {
	onEngines(t, func(e *env) {
		letter := func(group string, size int) {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: group, Body: make([]byte, size)})
			require.NoError(e.t, err)
			require.NoError(e.t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Reject: "no use"}))
		}
		sweep := func(want int64) {
			e.t.Helper()
			report, err := e.calm().Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(e.t, err)
			require.Equal(e.t, want, report.Dead)
		}
		letter("A", 1)
		letter("B", 200_000)
		letter("C", 1)
		e.clock.advance(1000 * time.Hour)
		sweep(0) // without the setting they stay for good
		e.configure(func(c *layer.Config) { c.DeadRetention = 1001 * time.Hour })
		letter("A", 1)
		sweep(0)
		e.clock.advance(time.Hour)
		sweep(3)
		page, err := e.calm().Admin().DeadLetters(e.ctx, layer.DeadOptions{})
		require.NoError(e.t, err)
		require.Len(e.t, page.Letters, 1)
		require.Equal(e.t, "A", page.Letters[0].ID.Group)
		stats, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 1, stats.Dead)
		require.EqualValues(e.t, 3, stats.Discarded)
		e.clock.advance(1000 * time.Hour)
		sweep(1)
		sweep(0)
	})
}

// TestExpiryLeavesAnUnreadableRecord: a message past retention, of which the record of failed attempts cannot be read,
// stays as it is. Something still leads to its group, and other groups are delivered (I1).
func TestExpiryLeavesAnUnreadableRecord(t *testing.T) {
	for way, call := range map[string]func(e *env, q *layer.Queue) []layer.Item{
		"receive": func(e *env, q *layer.Queue) []layer.Item { return e.on(q).receive(q, 1).Items },
		"take": func(e *env, q *layer.Queue) []layer.Item {
			items, err := takeFrom(e.ctx, q, 1, layer.TakeOptions{})
			require.NoError(e.t, err)
			return items
		},
	} {
		t.Run(way, func(t *testing.T) {
			e := newEnvOf(t, inMemory, false, func(c *layer.Config) {
				c.Retention, c.DeadLetterExpired = time.Hour, true
			})
			old := e.enqueue("A", "old")[0]
			record := key("attempt", "A", old.Index, old.Random)
			e.write(func(tx kv.Tx) { tx.Set(record, []byte("no record")) })
			e.clock.advance(2 * time.Hour)
			e.enqueue("B", "new")
			require.Equal(t, []string{"new"}, bodies(call(e, e.q)))
			report, err := e.q.Admin().Check(e.ctx, layer.CheckOptions{})
			require.NoError(t, err)
			require.Len(t, report.Violations, 1, "of the record alone")
			e.write(func(tx kv.Tx) { tx.Clear(record) })
		})
	}
}

// TestSweepSeesALongerArchive (G3): an operator switches the archive on, and makes a time longer, while a sweep is at
// work. From then on the sweep clears nothing that is to be kept.
func TestSweepSeesALongerArchive(t *testing.T) {
	for n := range 12 {
		e := newEnvOf(t, inMemory, false, func(c *layer.Config) {
			c.Retention, c.DeadRetention = 100*time.Hour, time.Second
			c.MaxRate = layer.Rate{Count: 1000, Per: time.Second}
		})
		e.enqueue("A", "dead")
		e.enqueue("B", "b")
		c := e.receive(e.q, 1)
		require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{Reject: "no use"}))
		e.clock.advance(2 * time.Hour)
		steps, dead := 0, int64(1)
		report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{Progress: func(r layer.SweepReport) {
			if steps++; steps != n+1 {
				return
			}
			dead = r.Dead
			_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) {
				c.Archive, c.DeadRetention = 24*time.Hour, 24*time.Hour
			})
			require.NoError(t, err)
			require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		}})
		require.NoError(t, err)
		if steps <= n {
			require.Positive(t, n, "the sweep has no steps")
			break
		}
		require.Zero(t, report.Archived, "changed at step %d", n)
		require.Equal(t, dead, report.Dead, "changed at step %d", n)
	}
}
