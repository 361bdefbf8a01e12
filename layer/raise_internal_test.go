package layer

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
	recording "fdbfifo/kv/record"
)

func raise(t *testing.T, q *Queue, shards int) {
	t.Helper()
	config, _, err := q.Admin().Configure(t.Context(), func(c *Config) { c.Shards = shards })
	require.NoError(t, err)
	require.Equal(t, shards, config.Shards)
}

// elsewhere is a group which a raise from so many shards puts into a shard that was not read before.
func elsewhere(t *testing.T, q *Queue, before int64) string {
	t.Helper()
	for n := range 1000 {
		if g := fmt.Sprint("new", n); q.keys.shard(g) >= before {
			return g
		}
	}
	t.Fatal("no group in a new shard")
	return ""
}

func shardsInUse(t *testing.T, q *Queue, section string) (shards map[int64]int) {
	t.Helper()
	shards = make(map[int64]int)
	require.NoError(t, q.view(t.Context(), func(v *view) error {
		rows, err := v.read.GetRange(q.keys.section(section).Selectors(), kv.RangeOptions{}).Wait(t.Context())
		for _, row := range rows {
			p, err := q.keys.parse(row.Key)
			require.NoError(t, err)
			shards[p.n]++
		}
		return err
	}))
	return shards
}

// finishAll receives and acks until nothing comes for so long, and returns the bodies by group, in order.
func finishAll(t *testing.T, q *Queue, patience time.Duration, got map[string][]string) {
	t.Helper()
	for {
		claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 5, Wait: patience})
		require.NoError(t, err)
		if len(claims) == 0 {
			return
		}
		for _, c := range claims {
			for _, item := range c.Items {
				got[c.Group] = append(got[c.Group], string(item.Body))
			}
			require.NoError(t, q.Ack(t.Context(), c))
		}
	}
}

// TestRaiseShards (G5, I1): what lies in the shards of earlier numbers is found, counted and explained after a raise,
// in each state of a group, and by a handle opened before and one opened after.
func TestRaiseShards(t *testing.T) {
	for _, from := range []int{1, 3} {
		inABubble(t, Config{Shards: from}, func(t *testing.T, q *Queue, r *recording.Recorder) {
			old, err := Open(t.Context(), r, nil, "q", Options{Owner: "old"})
			require.NoError(t, err)
			var groups []string
			for n := range 40 {
				groups = append(groups, fmt.Sprint("g", n))
			}
			send(t, q, groups...)
			send(t, q, groups...)
			var held []*Claim
			for _, g := range groups[:10] {
				held = append(held, claimOf(t, q, g, time.Minute))
			}
			for _, c := range held[:3] {
				require.NoError(t, q.Nack(t.Context(), c, NackOptions{Delay: time.Minute}))
			}
			_, err = q.Enqueue(t.Context(), Message{Group: "later", Body: []byte("x"), Delay: time.Minute})
			require.NoError(t, err)
			before, err := q.Stats(t.Context(), StatsOptions{})
			require.NoError(t, err)

			for _, to := range []int{7, 16} {
				raise(t, q, to)
				require.EqualValues(t, to, q.keys.shards.known.Load().write)
				stats, err := q.Stats(t.Context(), StatsOptions{})
				require.NoError(t, err)
				require.Equal(t, before.ReadyGroups, stats.ReadyGroups)
				require.Equal(t, before.BusyGroups, stats.BusyGroups)
				require.Equal(t, before.HeldGroups, stats.HeldGroups)
				why, err := q.Admin().WhyGroup(t.Context(), "g30", nil)
				require.NoError(t, err)
				require.NotEmpty(t, why)
				report, err := q.Admin().Check(t.Context(), CheckOptions{})
				require.NoError(t, err)
				require.Empty(t, report.Violations)
				require.Zero(t, report.StaleHints+report.StaleTimers)
			}
			_, _, err = q.Admin().Configure(t.Context(), func(c *Config) { c.Shards = 7 })
			var limit *LimitError
			require.ErrorAs(t, err, &limit)
			require.Equal(t, LimitError{What: "shards", Got: 7, Min: 16, Max: maxShards}, *limit)

			for _, c := range held[3:6] {
				_, err = q.Extend(t.Context(), c, 2*time.Minute) // its timer moves
				require.NoError(t, err)
			}
			for _, c := range held[6:8] {
				require.NoError(t, q.AckItems(t.Context(), c, []ID{c.Items[0].ID}))
			}
			fresh, err := Open(t.Context(), r, nil, "q", Options{Owner: "fresh"})
			require.NoError(t, err)
			got := make(map[string][]string)
			finishAll(t, old, 10*time.Second, got)
			finishAll(t, fresh, 5*time.Minute, got)
			for i, g := range groups {
				want := 2
				if i >= 6 && i < 8 {
					want = 1
				}
				require.Len(t, got[g], want, g)
			}
			require.Len(t, got["later"], 1)
			require.NoError(t, old.Close(t.Context()))
			require.NoError(t, fresh.Close(t.Context()))
		})
	}
}

// TestRaiseHasTwoSteps (G5): no handle writes to the new shards before all handles read them. An interrupted change
// leaves a queue that works, and the next sweep, or change of the configuration, completes it.
func TestRaiseHasTwoSteps(t *testing.T) {
	for name, finish := range map[string]func(t *testing.T, q *Queue) error{
		"sweep": func(t *testing.T, q *Queue) error {
			_, err := q.Admin().Sweep(t.Context(), SweepOptions{})
			return err
		},
		"configure": func(t *testing.T, q *Queue) error {
			_, _, err := q.Admin().Configure(t.Context(), func(c *Config) { c.Delay = 0 })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
				ctx, cancel := context.WithTimeout(t.Context(), raiseGrace/2)
				defer cancel()
				_, _, err := q.Admin().Configure(ctx, func(c *Config) { c.Shards = 8 })
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, 8, q.Config().Shards)
				var groups []string
				for n := range 30 {
					groups = append(groups, fmt.Sprint("g", n))
				}
				send(t, q, groups[:20]...)
				require.Equal(t, map[int64]int{0: 20}, shardsInUse(t, q, nameReady))
				begun := time.Now()
				require.NoError(t, finish(t, q))
				require.GreaterOrEqual(t, time.Since(begun), raiseGrace)
				send(t, q, groups[20:]...)
				require.Greater(t, len(shardsInUse(t, q, nameReady)), 1)
				got := make(map[string][]string)
				finishAll(t, q, 0, got)
				require.Len(t, got, 30)
			})
		})
	}
}

// TestRaiseReachesWhoSleeps (G5): a handle which waits, and has not read the configuration for long, looks into the new
// shards as soon as it is woken; so does the first call of a handle that was idle. Guard grow.
func TestRaiseReachesWhoSleeps(t *testing.T) {
	inABubble(t, Config{Shards: 2}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		waiting, err := Open(t.Context(), r, nil, "q", Options{Owner: "waiting", Poll: time.Hour})
		require.NoError(t, err)
		idle, err := Open(t.Context(), r, nil, "q", Options{Owner: "idle"})
		require.NoError(t, err)
		var wg sync.WaitGroup
		var claims []*Claim
		wg.Go(func() {
			claims, err = waiting.Receive(t.Context(), ReceiveOptions{Wait: time.Hour})
		})
		synctest.Wait()
		raise(t, q, 16)
		begun := time.Now()
		send(t, q, elsewhere(t, q, 2))
		wg.Wait()
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.Less(t, time.Since(begun), 100*time.Millisecond)
		require.NoError(t, waiting.Ack(t.Context(), claims[0]))

		send(t, q, elsewhere(t, q, 2))
		claims, err = idle.Receive(t.Context(), ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.NoError(t, idle.Ack(t.Context(), claims[0]))
		require.NoError(t, waiting.Close(t.Context()))
		require.NoError(t, idle.Close(t.Context()))
	})
}

// TestRaiseWhileHandlesWork (G1, G3, G5): handles enqueue, claim, ack, give back and let leases end while the shards
// are raised twice. Each message is acked once, in the order of its group.
func TestRaiseWhileHandlesWork(t *testing.T) {
	const handles, each, groups = 4, 80, 12
	for seed := range uint64(2) {
		inABubble(t, Config{MaxAttempts: Unlimited}, func(t *testing.T, q *Queue, r *recording.Recorder) {
			random := newEntropy(seed + 1)
			acking := make(chan struct{}, 1)
			acked := make(map[string][]string)
			var work sync.WaitGroup
			for n := range handles {
				o := Options{Owner: fmt.Sprint("w", n), Test: &TestOptions{Seed: seed*10 + uint64(n) + 1}}
				h, err := Open(t.Context(), r, nil, "q", o)
				require.NoError(t, err)
				work.Go(func() {
					for i := range each {
						g := fmt.Sprint("g", n, random.N(groups))
						_, err := h.Enqueue(t.Context(), Message{Group: g, Body: fmt.Appendf(nil, "%04d", i)})
						require.NoError(t, err)
						time.Sleep(time.Duration(random.N(60)) * time.Millisecond)
					}
				})
				work.Go(func() {
					for idle := 0; idle < 3; {
						claims, err := h.Receive(
							t.Context(), ReceiveOptions{Max: 2, Wait: 2 * time.Second, Lease: MinLease})
						require.NoError(t, err)
						if len(claims) == 0 {
							idle++
						}
						for _, c := range claims {
							idle = 0
							time.Sleep(time.Duration(random.N(20)) * time.Millisecond)
							switch random.N(10) {
							case 0: // its lease ends
							case 1:
								delay := time.Duration(random.N(300)) * time.Millisecond
								require.NoError(t, h.Nack(t.Context(), c, NackOptions{Delay: delay}))
							default:
								// In order. A mutex would stop the bubble's time.
								acking <- struct{}{}
								require.NoError(t, h.Ack(t.Context(), c))
								for _, item := range c.Items {
									acked[c.Group] = append(acked[c.Group], string(item.Body))
								}
								<-acking
							}
						}
					}
					require.NoError(t, h.Close(t.Context()))
				})
			}
			for _, shards := range []int{4, 16} {
				time.Sleep(time.Second)
				raise(t, q, shards)
				report, err := q.Admin().Check(t.Context(), CheckOptions{})
				require.NoError(t, err)
				require.Empty(t, report.Violations)
			}
			work.Wait()
			all := 0
			for g, bodies := range acked {
				require.IsIncreasing(t, append([]string{""}, bodies...), g)
				all += len(bodies)
			}
			require.Equal(t, handles*each, all)
		})
	}
}

// TestTimersOfAnEarlierLayout: before timers were spread they were all in shard 0, whatever the number of shards. Those
// still lead to their groups.
func TestTimersOfAnEarlierLayout(t *testing.T) {
	inABubble(t, Config{Shards: 16}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		q.keys.shards.set(shardCounts{read: 1, write: 1}) // writes hints in shard 0, too: as before a raise
		send(t, q, "a", "b", "c", "d")
		claimOf(t, q, "a", time.Minute)
		claimOf(t, q, "b", time.Minute)
		q.keys.shards.set(shardCounts{read: 16, write: 16, earlier: []int64{1}})
		report, err := q.Admin().Check(t.Context(), CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.EqualValues(t, 2, report.Held)
		got := make(map[string][]string)
		finishAll(t, q, 5*time.Minute, got)
		require.Len(t, got, 4)
	})
}

// TestFewTimersAreReadWhenSomethingIsFound: a receive that finds a hint reads the timers of a single shard, each time
// of another; one that finds nothing reads those of all.
func TestFewTimersAreReadWhenSomethingIsFound(t *testing.T) {
	for _, shards := range []int{1, 4, 16, 64} {
		synctest.Test(t, func(t *testing.T) {
			r := recording.Wrap(embedded.OpenMemory(embedded.Options{}))
			q, err := Create(t.Context(), r, nil, "q", Options{Config: Config{Shards: shards}})
			require.NoError(t, err)
			ranges := func() (hints, timers int) {
				for _, t := range r.Take() {
					for _, o := range t.Ops {
						if o.Kind != recording.GetRange {
							continue
						}
						switch {
						case q.keys.section(nameReady).Contains(o.Range.Begin.Key):
							hints++
						case q.keys.section(nameTimer).Contains(o.Range.Begin.Key):
							timers++
						}
					}
				}
				return hints, timers
			}
			send(t, q, "a", "b")
			r.Take()
			claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
			require.NoError(t, err)
			require.Len(t, claims, 1)
			hints, timers := ranges()
			require.Equal(t, shards, hints)
			require.Equal(t, 1, timers)
			claimOf(t, q, "b", 0)
			r.Take()
			none, err := q.Receive(t.Context(), ReceiveOptions{})
			require.NoError(t, err)
			require.Empty(t, none)
			hints, timers = ranges()
			require.Equal(t, shards, hints)
			require.Equal(t, shards, timers)
			require.NoError(t, q.Close(t.Context()))
			require.NoError(t, r.Close())
		})
	}
}

// TestDueGroupIsPassedByFewSearches (G5): a group that is due waits for at most (shards - 1) receives of a handle which
// finds ready groups all the time.
func TestDueGroupIsPassedByFewSearches(t *testing.T) {
	const shards = 16
	inABubble(t, Config{Shards: shards}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		send(t, q, "late")
		claimOf(t, q, "late", MinLease)
		time.Sleep(2 * MinLease)
		for n := range 3 * shards {
			send(t, q, fmt.Sprint("g", n))
		}
		for n := range shards {
			claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
			require.NoError(t, err)
			require.Len(t, claims, 1)
			if claims[0].Group == "late" {
				return
			}
			require.Less(t, n, shards-1)
		}
	})
}

// TestTimerOfAnEarlierNumber (I1, G5): a claim's timer which an earlier number of shards has put elsewhere stays there
// when the claim ends. A receive that finds the timer must not take the key that truly leads to the group for a
// needless second one.
func TestTimerOfAnEarlierNumber(t *testing.T) {
	inABubble(t, Config{Shards: 1}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		group := "g"
		for shardOf(group, 16) == 0 {
			group += "g"
		}
		_, err := q.Enqueue(t.Context(), Message{Group: group}, Message{Group: group, Delay: 30 * time.Second})
		require.NoError(t, err)
		claim := claimOf(t, q, group, time.Minute)
		raise(t, q, 16)
		require.NoError(t, q.Ack(t.Context(), claim))
		claims, err := q.Receive(t.Context(), ReceiveOptions{})
		require.NoError(t, err)
		require.Empty(t, claims, "the group's head is delayed, and left to a timer in its present shard")
		time.Sleep(2 * time.Minute)
		claims, err = q.Receive(t.Context(), ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, claims, 1, "the group's head is due")
		require.NoError(t, q.Ack(t.Context(), claims[0]))
	})
}

// TestSecondStepMeetsConfigure (contract): the second step of a raise keeps a configuration that another has stored
// since. If its commit is applied with an unknown outcome, the retry finds the step done. Guard configure.
func TestSecondStepMeetsConfigure(t *testing.T) {
	db, q := newInterleaved(t, Config{})
	other, err := Open(t.Context(), db.DB, nil, "q", Options{})
	require.NoError(t, err)
	change := func(h *Queue, change func(c *Config)) {
		require.NoError(t, h.Once(t.Context(), func(tx kv.Tx) error {
			_, err := h.configure(t.Context(), tx, change)
			return err
		}))
	}
	change(q, func(c *Config) { c.Shards = 4 })
	stored, err := q.stored(t.Context())
	require.NoError(t, err)
	require.True(t, stored.shards.isRising())
	db.before = func() { change(other, func(c *Config) { c.Lease = time.Hour }) }
	db.err = &kv.Error{Code: kv.CodeCommitUnknownResult}
	db.armed.Store(true)
	require.NoError(t, q.raiseFrom(t.Context(), stored.shards))
	stored, err = q.stored(t.Context())
	require.NoError(t, err)
	require.Equal(t, time.Hour, stored.config.Lease)
	require.False(t, stored.shards.isRising())
	require.EqualValues(t, 4, q.keys.shards.known.Load().write)
	db.before = nil
	change(q, func(c *Config) { c.Shards = 8 })
	stored, err = q.stored(t.Context())
	require.NoError(t, err)
	db.armed.Store(true)
	require.NoError(t, q.raiseFrom(t.Context(), stored.shards))
	require.False(t, db.armed.Load())
	require.EqualValues(t, 8, q.keys.shards.known.Load().write)
	require.NoError(t, other.Close(t.Context()))
	require.NoError(t, q.Close(t.Context()))
}

// TestTimerOfAHoldThatHasEnded: a raise of the shards may leave the timer of a hold whose message is gone. That is no
// damage.
func TestTimerOfAHoldThatHasEnded(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	q, err := Create(t.Context(), db, nil, "q", Options{Config: Config{Unordered: true}})
	require.NoError(t, err)
	_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v := q.viewOf(t.Context(), tx)
		wrong, err := headIsWrong(&v, holdLane(ID{Group: "A", Index: 1}))
		require.False(t, wrong)
		return err
	})
	require.NoError(t, err)
	require.NoError(t, q.Close(context.Background()))
	require.NoError(t, db.Close())
}
