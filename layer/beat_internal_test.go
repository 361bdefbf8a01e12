package layer

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	recording "fdbfifo/kv/record"
	"fdbfifo/layer/internal/rec"
)

// beside opens another handle, as another process would.
func beside(t *testing.T, db kv.DB, owner string) *Queue {
	t.Helper()
	q, err := Open(t.Context(), db, nil, "q", Options{Owner: owner})
	require.NoError(t, err)
	t.Cleanup(func() { _ = q.Close(context.Background()) }) // the database is closed by then
	return q
}

func groupsNamed(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("g%04d", i)
	}
	return all
}

// byHeart claims by heartbeat.
func byHeart(t *testing.T, q *Queue, o ReceiveOptions) []*Claim {
	t.Helper()
	o.Heartbeat = true
	claims, err := q.Receive(t.Context(), o)
	require.NoError(t, err)
	return claims
}

// dies has a handle's heartbeat stop, as a process that is killed does.
func dies(q *Queue) { q.heart.end(q.heart.pulse()) }

func rowsOf(t *testing.T, q *Queue, name string) (n int) {
	t.Helper()
	require.NoError(t, q.view(t.Context(), func(v *view) error {
		rows, err := v.read.GetRange(q.keys.section(name).Selectors(), kv.RangeOptions{}).Wait(t.Context())
		n = len(rows)
		return err
	}))
	return n
}

// TestNoRoomToGiveBack: a claim by heartbeat that no caller has, and that the handle has no room to give back, ends
// with the heartbeat, which the handle leaves.
func TestNoRoomToGiveBack(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		send(t, q, "a")
		claims := byHeart(t, q, ReceiveOptions{})
		q.orphans.count = mostOrphans
		giveBackAll(q, claims)
		q.orphans.count = 0
		time.Sleep(2 * defaultLease)
		again, err := q.Receive(t.Context(), ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, again, 1)
		requireSound(t, q)
	})
}

// TestHeartbeatKeepsClaims (G2): claims by heartbeat stay in flight for many leases, at a cost that does not depend on
// the number of groups. The inspections show them correctly. The last ack and Close leave no rows behind.
func TestHeartbeatKeepsClaims(t *testing.T) {
	inABubble(t, Config{Shards: 3}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		const groups = 120
		send(t, q, groupsNamed(groups)...)
		other := q
		q = beside(t, r, "holder")
		claims := byHeart(t, q, ReceiveOptions{Max: 1000})
		require.Len(t, claims, groups)
		require.Equal(t, 0, rowsOf(t, q, nameTimer)-1, "one timer, of the heartbeat")
		before := r.Counters()
		time.Sleep(10 * time.Minute)
		beats := r.Counters().Sub(before).Mutations
		require.Less(t, float64(beats)/groups/10, 0.2)
		t.Logf("%d mutations in ten minutes, for %d groups in flight", beats, groups)
		require.Empty(t, receive(t, other, ReceiveOptions{}))

		info, err := q.Admin().Group(t.Context(), "g0000", nil)
		require.NoError(t, err)
		require.Equal(t, Held, info.Status)
		require.Greater(t, info.Left, 15*time.Second)
		stats, err := q.Stats(t.Context(), StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, groups, stats.HeldGroups)
		holders, err := q.Admin().Holders(t.Context())
		require.NoError(t, err)
		require.Len(t, holders.Holders, 1)
		require.Equal(t, groups, holders.Holders[0].Groups)
		require.Greater(t, holders.Holders[0].LeastLeft, 15*time.Second)

		for _, c := range claims {
			require.NoError(t, q.Ack(t.Context(), c))
		}
		require.Equal(t, 0, rowsOf(t, q, nameHeld))
		require.NoError(t, q.Close(t.Context()))
		require.Equal(t, 0, rowsOf(t, other, nameBeat))
		require.Equal(t, 0, rowsOf(t, other, nameTimer))
	})
}

func receive(t *testing.T, q *Queue, o ReceiveOptions) []*Claim {
	t.Helper()
	claims, err := q.Receive(t.Context(), o)
	require.NoError(t, err)
	return claims
}

// TestHeartbeatEnds (G2, G5): other handles get all groups that a dead handle had by heartbeat when the lease has
// expired, and none before. An attempt is counted. The old holder can ack a group until another has taken it over.
func TestHeartbeatEnds(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		const groups = 2*beatPage + 50
		send(t, q, groupsNamed(groups)...)
		claims := byHeart(t, q, ReceiveOptions{Max: 1000})
		require.Len(t, claims, groups)
		other := beside(t, r, "other")
		dies(q)
		time.Sleep(29 * time.Second)
		require.Empty(t, receive(t, other, ReceiveOptions{}))
		time.Sleep(2 * time.Second)
		first := receive(t, other, ReceiveOptions{Max: 1, CountExpired: true})
		require.Len(t, first, 1)
		require.Equal(t, 1, first[0].Items[0].Attempts)

		late := claims[len(claims)-1]
		require.NoError(t, q.Ack(t.Context(), late), "no other has taken it over")
		taken := map[string]bool{first[0].Group: true}
		for len(taken) < groups-1 {
			next := receive(t, other, ReceiveOptions{Max: 100, CountExpired: true})
			require.NotEmpty(t, next, "of %d", len(taken))
			for _, c := range next {
				require.False(t, taken[c.Group])
				taken[c.Group] = true
				require.Equal(t, 1, c.Items[0].Attempts)
				require.NoError(t, other.Ack(t.Context(), c))
			}
		}
		require.False(t, taken[late.Group])
		require.ErrorIs(t, q.Ack(t.Context(), claims[0]), ErrClaimLost)
		require.Equal(t, 0, rowsOf(t, q, nameBeat)+rowsOf(t, q, nameHeld))
		send(t, q, "again")
		again := byHeart(t, q, ReceiveOptions{Max: 1})
		require.Len(t, again, 1)
		require.NotEqual(t, claims[0].beat, again[0].beat, "a handle that was ended is another")
		require.NoError(t, q.Ack(t.Context(), again[0]))
		require.NoError(t, other.Ack(t.Context(), first[0]))
	})
}

// TestStatsBoundsClaimsByHeartbeat (Contract): MaxTimers bounds the timers and the claims by heartbeat together,
// however many handles have such claims.
func TestStatsBoundsClaimsByHeartbeat(t *testing.T) {
	const handles, each = 3, 15
	inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		send(t, q, groupsNamed(handles*each)...)
		var claims []*Claim
		for i := range handles {
			h := beside(t, r, fmt.Sprint("h", i))
			claims = append(claims, byHeart(t, h, ReceiveOptions{Max: each, MaxGroups: each})...)
		}
		require.Len(t, claims, handles*each)
		// A heartbeat has a timer of its own. All three are read before the claims of the first.
		for most, held := range map[int]int{
			0: handles * each, handles: 0, handles + 1: 1, handles + 12: 12, handles + each + 2: each + 2,
			handles + handles*each: handles * each,
		} {
			stats, err := q.Stats(t.Context(), StatsOptions{MaxTimers: most})
			require.NoError(t, err)
			require.EqualValues(t, held, stats.HeldGroups, "of %d timers", most)
			require.EqualValues(t, handles*each, stats.BusyGroups)
		}
		for _, c := range claims {
			require.NoError(t, q.Ack(t.Context(), c))
		}
	})
}

// TestShorterLeaseEndsNoHeartbeat (G2): what was claimed by heartbeat lasts as long as the receive has told, also if
// the queue's lease becomes shorter, and the handle dies after its next beat.
func TestShorterLeaseEndsNoHeartbeat(t *testing.T) {
	inABubble(t, Config{Lease: 30 * time.Second}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		send(t, q, "g")
		claim := byHeart(t, q, ReceiveOptions{Max: 1})[0]
		_, _, err := q.Admin().Configure(t.Context(), func(c *Config) { c.Lease = 3 * time.Second })
		require.NoError(t, err)
		other := beside(t, r, "other")
		for time.Until(claim.Until) > 15*time.Second { // in which the handle beats
			time.Sleep(time.Second)
		}
		dies(q)
		for time.Until(claim.Until) > time.Second {
			require.Empty(t, receive(t, other, ReceiveOptions{}))
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second)
		taken := receive(t, other, ReceiveOptions{})
		require.Len(t, taken, 1)
		require.NoError(t, other.Ack(t.Context(), taken[0]))
	})
}

// TestHeartbeatEndWakes (G5): the groups of a dead handle go to the receives that wait for them, and to takes, at the
// end of the lease. A receive of any group, one of a named group, and one in a caller's transaction find them.
func TestHeartbeatEndWakes(t *testing.T) {
	group := "g0001"
	for name, wait := range map[string]func(q *Queue) (int, error){
		"any": func(q *Queue) (int, error) {
			claims, err := q.Receive(context.Background(), ReceiveOptions{Wait: MaxWait, Max: 1})
			for _, c := range claims {
				_ = q.Nack(context.Background(), c, NackOptions{Release: true})
			}
			return len(claims), err
		},
		"named": func(q *Queue) (int, error) {
			claims, err := q.Receive(context.Background(), ReceiveOptions{Wait: MaxWait, Group: &group})
			for _, c := range claims {
				_ = q.Nack(context.Background(), c, NackOptions{Release: true})
			}
			return len(claims), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
				send(t, q, groupsNamed(3)...)
				require.Len(t, byHeart(t, q, ReceiveOptions{}), 3)
				other := beside(t, r, "other")
				dies(q)
				begun := time.Now()
				n, err := wait(other)
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.InDelta(t, 30, time.Since(begun).Seconds(), 1.5)
			})
		})
	}
	for name, try := range map[string]func(q *Queue, tx kv.Tx) (int, error){
		"take": func(q *Queue, tx kv.Tx) (int, error) {
			items, _, err := q.TakeTx(context.Background(), tx, 1, TakeOptions{})
			return len(items), err
		},
		"take of a group": func(q *Queue, tx kv.Tx) (int, error) {
			items, _, err := q.TakeTx(context.Background(), tx, 1, TakeOptions{Group: &group})
			return len(items), err
		},
		"receive in a transaction": func(q *Queue, tx kv.Tx) (int, error) {
			claims, err := q.ReceiveTx(context.Background(), tx, ReceiveOptions{})
			return len(claims), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
				send(t, q, groupsNamed(3)...)
				require.Len(t, byHeart(t, q, ReceiveOptions{}), 3)
				dies(q)
				for _, want := range []bool{false, true} {
					n := 0
					require.NoError(t, q.Once(t.Context(), func(tx kv.Tx) (err error) {
						n, err = try(q, tx)
						return err
					}))
					require.Equal(t, want, n > 0)
					time.Sleep(30 * time.Second)
				}
			})
		})
	}
}

// TestHeartbeatEndsNamedGroup (G5): a receive that names one group of a dead handle, the last of many, gets it at once,
// and ends at most a page of the others in a transaction. Otherwise a handle with plenty of groups would leave a
// transaction that is too large to commit.
func TestHeartbeatEndsNamedGroup(t *testing.T) {
	const groups = 10 * beatPage
	names := groupsNamed(groups)
	group := slices.Max(names)
	for name, get := range map[string]func(ctx context.Context, q *Queue) (found int, err error){
		"receive": func(ctx context.Context, q *Queue) (int, error) {
			claims, err := q.Receive(ctx, ReceiveOptions{Group: &group})
			return len(claims), err
		},
		"receive in a transaction": func(ctx context.Context, q *Queue) (found int, err error) {
			err = q.Once(ctx, func(tx kv.Tx) error {
				claims, err := q.ReceiveTx(ctx, tx, ReceiveOptions{Group: &group})
				found = len(claims)
				return err
			})
			return found, err
		},
		"take": func(ctx context.Context, q *Queue) (found int, err error) {
			err = q.Once(ctx, func(tx kv.Tx) error {
				items, _, err := q.TakeTx(ctx, tx, 1, TakeOptions{Group: &group})
				found = len(items)
				return err
			})
			return found, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
				for some := range slices.Chunk(names, MaxBatch) {
					send(t, q, some...)
				}
				for held := 0; held < groups; {
					claims := byHeart(t, q, ReceiveOptions{Max: MaxBatch})
					require.NotEmpty(t, claims)
					held += len(claims)
				}
				other := beside(t, r, "other")
				dies(q)
				time.Sleep(time.Minute)
				r.Take()
				found, err := get(t.Context(), other)
				require.NoError(t, err)
				require.Equal(t, 1, found)
				all := r.Take()
				require.LessOrEqual(t, len(all), 5)
				for _, tx := range all {
					require.Less(t, len(tx.Ops), 6*beatPage)
				}
			})
		})
	}
}

// TestHeartbeatEndsAllNamedGroups (G5): of a dead handle, to which a timer and two receives of groups have led, one
// transaction ends a page of the claims and both groups' claims.
func TestHeartbeatEndsAllNamedGroups(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		const groups = 2 * beatPage
		names := groupsNamed(groups)
		send(t, q, names...)
		claims := byHeart(t, q, ReceiveOptions{Max: groups})
		require.Len(t, claims, groups)
		other := beside(t, r, "other")
		dies(q)
		time.Sleep(time.Minute)
		slices.Sort(names)
		due := []dueBeat{{handle: claims[0].beat}}
		for _, group := range names[groups-2:] {
			held := [][]byte{q.keys.held(claims[0].beat, group)}
			due = append(due, dueBeat{handle: claims[0].beat, held: held})
		}
		require.True(t, other.endDueBeats(t.Context(), due))
		require.Equal(t, groups-beatPage-2, rowsOf(t, other, nameHeld))
	})
}

// TestHeartbeatAmidPurge (I1): a purge of everything clears the heartbeat's timer with all timers, and a later claim by
// the same heartbeat still ends with the handle.
func TestHeartbeatAmidPurge(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		send(t, q, "a")
		for _, c := range byHeart(t, q, ReceiveOptions{}) {
			require.NoError(t, q.Ack(t.Context(), c))
		}
		send(t, q, "b")
		_, err := q.Admin().Purge(t.Context(), PurgeOptions{All: true})
		require.NoError(t, err)
		require.Equal(t, 0, rowsOf(t, q, nameTimer))
		send(t, q, "c")
		require.Len(t, byHeart(t, q, ReceiveOptions{}), 1)
		dies(q)
		time.Sleep(31 * time.Second)
		require.Len(t, receive(t, beside(t, r, "other"), ReceiveOptions{}), 1)
	})
}

// TestHeartbeatIsLeftByUnknown (G5): a claim that may never be settled, because its ack has failed, ends within a
// lease, although the handle lives. The handle continues under another number.
func TestHeartbeatIsLeftByUnknown(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		send(t, q, "a")
		claims := byHeart(t, q, ReceiveOptions{})
		require.Len(t, claims, 1)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, q.Ack(gone, claims[0]))
		require.Nil(t, q.heart.pulse())
		time.Sleep(31 * time.Second)
		require.Len(t, receive(t, beside(t, r, "other"), ReceiveOptions{}), 1)
	})
}

// TestReceiveTxEndsAHeartbeat: a receive in the caller's transaction that meets a handle whose heartbeat has stopped
// ends the handle and claims what it had, with a receive id too; and is answered the same when it is repeated.
func TestReceiveTxEndsAHeartbeat(t *testing.T) {
	for _, id := range []string{"", "r1"} {
		inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
			send(t, q, "g")
			require.Len(t, byHeart(t, q, ReceiveOptions{}), 1)
			other := beside(t, r, "other")
			dies(q)
			time.Sleep(31 * time.Second)
			for range 2 {
				var claims []*Claim
				require.NoError(t, other.Once(t.Context(), func(tx kv.Tx) (err error) {
					claims, err = other.ReceiveTx(t.Context(), tx, ReceiveOptions{ReceiveID: id})
					return err
				}))
				if id == "" {
					require.Len(t, claims, 1)
					break
				}
				require.Len(t, claims, 1, "the same claim again")
			}
		})
	}
}

// TestReceiveByHeartbeatAfterClose (bounded calls): a receive by heartbeat of a handle that is closed, or is being
// closed, fails with ErrClosed; it does not wait for a beat.
func TestReceiveByHeartbeatAfterClose(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		closed := beside(t, q.db, "closed")
		require.NoError(t, closed.Close(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := closed.Receive(ctx, ReceiveOptions{Heartbeat: true})
		require.ErrorIs(t, err, ErrClosed)

		closing := beside(t, q.db, "closing")
		closing.heart.turn <- struct{}{} // a beat is being begun
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := closing.Receive(ctx, ReceiveOptions{Heartbeat: true})
			require.ErrorIs(t, err, ErrClosed)
		})
		wg.Go(func() { require.NoError(t, closing.Close(ctx)) })
		synctest.Wait()
		<-closing.heart.turn
		wg.Wait()
	})
}

// TestCloseEndsTheHeartbeat (contract): a handle that is being closed keeps no claim by heartbeat, also if the database
// does not answer. So the channel of Claim.Lasts is closed, and a caller that waits for it stops its work.
func TestCloseEndsTheHeartbeat(t *testing.T) {
	for _, cut := range []bool{false, true} {
		inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
			_, err := q.Enqueue(t.Context(), Message{Group: "a"})
			require.NoError(t, err)
			closed := beside(t, q.db, "closed")
			_, ended := byHeart(t, closed, ReceiveOptions{})[0].Lasts()
			require.False(t, isOver(ended))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if cut {
				cancel()
			}
			require.Equal(t, cut, closed.Close(ctx) != nil)
			require.True(t, isOver(ended))
		})
	}
}

// isOver reports whether a channel is closed.
func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestHeartbeatOptions: what a claim by heartbeat does not go with.
func TestHeartbeatOptions(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		for _, o := range []ReceiveOptions{{Lease: time.Second}, {ReceiveID: "x"}} {
			o.Heartbeat = true
			_, err := q.Receive(t.Context(), o)
			require.ErrorIs(t, err, ErrOptions)
		}
		require.ErrorIs(t, q.Once(t.Context(), func(tx kv.Tx) error {
			_, err := q.ReceiveTx(t.Context(), tx, ReceiveOptions{Heartbeat: true})
			return err
		}), ErrOptions)
		unordered, err := Create(t.Context(), r, nil, "unordered", Options{Config: Config{Unordered: true}})
		require.NoError(t, err)
		_, err = unordered.Receive(t.Context(), ReceiveOptions{Heartbeat: true})
		require.ErrorIs(t, err, ErrOptions)
		require.NoError(t, unordered.Close(t.Context()))
	})
}

// TestExtendThatFailsKeepsNoClaim (G5): an extension whose transaction is given up leaves the claim as it was. When its
// lease is over the group is free, also for the same handle.
func TestExtendThatFailsKeepsNoClaim(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		send(t, q, groupsNamed(1)...)
		claims, err := q.Receive(t.Context(), ReceiveOptions{Lease: 5 * time.Second})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		boom := errors.New("boom")
		require.ErrorIs(t, q.Once(t.Context(), func(tx kv.Tx) error {
			if _, err := q.ExtendTx(t.Context(), tx, claims[0], time.Hour); err != nil {
				return err
			}
			return boom
		}), boom)
		time.Sleep(6 * time.Second)
		again, err := q.Receive(t.Context(), ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, again, 1)
		require.NoError(t, q.Ack(t.Context(), again[0]))
	})
}

// TestErrorOfAChangeKeepsTheHeartbeat (G5): a settlement whose Change returns an error has no effect. The handle keeps
// its claims by heartbeat.
func TestErrorOfAChangeKeepsTheHeartbeat(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		send(t, q, groupsNamed(2)...)
		claims := byHeart(t, q, ReceiveOptions{Max: 2})
		require.Len(t, claims, 2)
		boom := errors.New("boom")
		require.ErrorIs(t, q.Settle(t.Context(), Settlement{
			Claim: claims[0], AdvanceAll: true, Change: func(ID, *Message) error { return boom },
		}), boom)
		time.Sleep(3 * defaultLease)
		for _, c := range claims {
			require.False(t, isEnded(c.pulse))
			require.NoError(t, q.Ack(t.Context(), c))
		}
	})
}

// TestUnreadableNeighbourKeepsTheHeartbeat (G5): an ack travels with a receive, which meets a group that cannot be
// read. The ack is done, and the handle keeps its other claims by heartbeat.
func TestUnreadableNeighbourKeepsTheHeartbeat(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		send(t, q, groupsNamed(2)...)
		claims := byHeart(t, q, ReceiveOptions{Max: 2})
		require.Len(t, claims, 2)
		sent, err := q.Enqueue(t.Context(), Message{Group: "spoilt"})
		require.NoError(t, err)
		_, err = kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(q.keys.item(sent[0].ID), []byte("no message"))
			return nil
		})
		require.NoError(t, err)
		_, err = q.SettleReceive(t.Context(), Settlement{Claim: claims[0], FinishAll: true}, ReceiveOptions{})
		require.NoError(t, err)
		time.Sleep(3 * defaultLease)
		require.False(t, isEnded(claims[1].pulse))
		require.NoError(t, q.Ack(t.Context(), claims[1]))
		_, err = q.Admin().Purge(t.Context(), PurgeOptions{All: true, Force: true})
		require.NoError(t, err)
	})
}

// stuckBeats is an engine whose commits hang while stuck is set, if the transaction writes a heartbeat.
type stuckBeats struct {
	kv.DB
	beats kv.KeyRange
	stuck atomic.Bool
}

func (d *stuckBeats) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &stuckBeat{ManagedTx: tx, d: d}, err
}

type stuckBeat struct {
	kv.ManagedTx
	d     *stuckBeats
	beats bool
}

func (t *stuckBeat) Set(key, value []byte) {
	t.beats = t.beats || t.d.beats.Contains(key)
	t.ManagedTx.Set(key, value)
}

func (t *stuckBeat) Commit() kv.Future[struct{}] {
	if t.beats && t.d.stuck.Load() {
		return endless{}
	}
	return t.ManagedTx.Commit()
}

// endless is a future without an answer.
type endless struct{}

func (endless) Wait(ctx context.Context) (struct{}, error) {
	<-ctx.Done()
	return struct{}{}, context.Cause(ctx)
}
func (endless) Ready() bool { return false }
func (endless) Cancel()     {}

// TestAckWaitsForNoHeartbeat (G5): a handle has lost its heartbeat, and the database does not answer the begin of the
// next. An ack with a receive by heartbeat does not wait. The claim has a lease of its own, and later claims are by
// heartbeat again.
func TestAckWaitsForNoHeartbeat(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
		send(t, q, groupsNamed(2)...)
		db := &stuckBeats{DB: r, beats: q.keys.section(nameBeat)}
		holder := beside(t, db, "holder")
		o := ReceiveOptions{Max: 1, Heartbeat: true}
		first := byHeart(t, holder, o)[0]
		require.NotNil(t, first.pulse)
		db.stuck.Store(true)
		dies(holder)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		claims, err := holder.SettleReceive(ctx, Settlement{Claim: first, FinishAll: true}, o)
		require.NoError(t, err)
		require.Equal(t, 1, rowsOf(t, q, nameItem))
		require.Len(t, claims, 1)
		require.Nil(t, claims[0].pulse)
		time.Sleep(2 * longestBegin) // the goroutine that begins the heartbeat gives up
		db.stuck.Store(false)
		send(t, q, "next", "last")
		claims, err = holder.SettleReceive(t.Context(), Settlement{Claim: claims[0], FinishAll: true}, o)
		require.NoError(t, err)
		time.Sleep(time.Second)
		last := byHeart(t, holder, o)[0]
		require.NotNil(t, last.pulse, "the heartbeat was begun behind the ack")
		require.NoError(t, holder.Ack(t.Context(), claims[0]))
		require.NoError(t, holder.Ack(t.Context(), last))
		require.NoError(t, holder.Close(t.Context()))
	})
}

// TestHeartbeatConflicts: transactions that must conflict with the end of a handle. Each pair has the name of the guard
// without which both would commit.
func TestHeartbeatConflicts(t *testing.T) {
	type side = func(w *txn, claims []*Claim) error
	var other *Queue
	var end side = func(w *txn, claims []*Claim) error {
		w.q, w.nowMS = other, w.nowMS+time.Minute.Milliseconds() // no handle ends its own
		_, err := w.endBeats([]dueBeat{{handle: claims[0].beat}})
		return err
	}
	var move side = func(w *txn, claims []*Claim) error {
		_, err := w.moveBeat(claims[0].pulse, false)
		return err
	}
	var claim side = func(w *txn, _ []*Claim) error {
		c := w.newClaimer("", []*reception{{o: ReceiveOptions{Heartbeat: true, Max: 1, MaxGroups: 1, MaxBytes: 1}}})
		c.begin()
		return c.claim()
	}
	var ack side = func(w *txn, claims []*Claim) error {
		return w.q.AckTx(w.ctx, w.tx, claims[0])
	}
	var leave side = func(w *txn, claims []*Claim) error { // as Close does when all is acked
		if err := ack(w, claims); err != nil {
			return err
		}
		handle := claims[0].pulse.handle
		value, err := w.tx.Get(w.keys.beat(handle)).Wait(w.ctx)
		if err != nil {
			return err
		}
		return clearBeat(w.q, w.tx, handle, value)
	}
	for _, p := range []struct {
		name          string
		first, second side
	}{
		{"beat-join: claim by heartbeat, end of the handle", claim, end},
		{"beat-join: claim by heartbeat, close of the handle", claim, leave},
		{"beat-last: end of the handle, claim by heartbeat", end, claim},
		{"beat-move: move of the beat, end of the handle", move, end},
		{"beat-end: end of the handle, move of the beat", end, move},
		{"beat-lock: end of the handle, ack of a claim", end, ack},
	} {
		t.Run(p.name, func(t *testing.T) {
			inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
				other = beside(t, q.db, "other")
				send(t, q, groupsNamed(2)...)
				claims := byHeart(t, q, ReceiveOptions{Max: 1})
				require.Len(t, claims, 1)
				in := func(tx kv.Tx, do side) {
					w := q.txn(t.Context(), tx)
					require.NoError(t, do(w, claims))
					require.NoError(t, w.finish())
				}
				a, err := r.Begin(kv.TxOptions{})
				require.NoError(t, err)
				defer a.Cancel()
				_, err = a.ReadVersion().Wait(t.Context())
				require.NoError(t, err)
				in(a, p.first)
				_, err = kv.Run(t.Context(), r, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
					in(tx, p.second)
					return nil
				})
				require.NoError(t, err)
				_, err = a.Commit().Wait(t.Context())
				require.Equal(t, kv.CodeNotCommitted, kv.Code(err), "must conflict, got %v", err)
			})
		})
	}
}

// TestHeartbeatsAtRandom: no message of handles that claim by heartbeat and by leases is acked twice or lost (G3). The
// messages of a group are acked in order (G1), and no claim is acked once a later one was handed out (G2). The handles
// have different clocks. They hold for less and for more than a lease, ack, return, stop beating while they continue,
// and die. Runs are with faults and without. Without faults, and with one clock, no handle that beats loses a claim.
func TestHeartbeatsAtRandom(t *testing.T) {
	for _, disturbed := range []bool{false, true} {
		for i := range 2 {
			seed := *beatSeed
			if seed == 0 {
				seed = seeds.Of(fmt.Sprint(t.Name(), disturbed, i))
			}
			t.Run(fmt.Sprintf("disturbed=%t", disturbed), func(t *testing.T) {
				t.Logf("replay: go test ./layer -run '^TestHeartbeatsAtRandom$' -layer.beats %d", seed)
				synctest.Test(t, func(t *testing.T) { newHearts(t, seed, disturbed).run() })
			})
		}
	}
}

var beatSeed = flag.Uint64("layer.beats", 0, "seed of TestHeartbeatsAtRandom; 0 = of SEED")

// hearts is what the handles of TestHeartbeatsAtRandom do.
type hearts struct {
	t         *testing.T
	seed      uint64
	disturbed bool
	db        kv.DB // with faults, perhaps
	calm      kv.DB
	until     time.Time

	mu      sync.Mutex
	sent    map[string][]ID // by group; guarded by mu, as all below
	tokens  map[string]int64
	acked   map[ID]bool
	last    map[string]int64
	unknown map[ID]bool
	lost    int
	handles int
}

const heartLease = 6 * time.Second

func newHearts(t *testing.T, seed uint64, disturbed bool) *hearts {
	h := &hearts{
		t: t, seed: seed, disturbed: disturbed, sent: map[string][]ID{}, tokens: map[string]int64{},
		acked: map[ID]bool{}, last: map[string]int64{}, unknown: map[ID]bool{},
	}
	h.calm = embedded.OpenMemory(embedded.Options{})
	if h.db = h.calm; disturbed {
		h.db = fault.Wrap(h.calm, fault.Default(seed))
	}
	return h
}

func (h *hearts) open(skew time.Duration) *Queue {
	h.mu.Lock()
	h.handles++
	n := h.handles
	h.mu.Unlock()
	q, err := Open(h.t.Context(), h.db, nil, "q", Options{
		Owner: fmt.Sprint("h", n), Now: func() time.Time { return time.Now().Add(skew) },
		Test: &TestOptions{Seed: h.seed + uint64(n)},
	})
	require.NoError(h.t, err)
	return q
}

func (h *hearts) run() {
	t := h.t
	q, err := Create(t.Context(), h.calm, nil, "q", Options{Owner: "calm", Config: Config{
		Lease: heartLease, Retry: RetryPolicy{Kind: RetryAtOnce}, Shards: 1 + int(h.seed%3),
	}})
	require.NoError(t, err)
	for n := range 300 {
		g := fmt.Sprint("g", n%25)
		sent, err := q.Enqueue(t.Context(), Message{Group: g})
		require.NoError(t, err)
		h.sent[g] = append(h.sent[g], sent[0].ID)
	}
	h.until = time.Now().Add(3 * time.Minute)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() { h.work(rand.New(rand.NewPCG(h.seed, uint64(i))), time.Duration(i)*time.Second) })
	}
	all.Wait()
	var left []ID
	for {
		claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 100, Wait: 2 * heartLease})
		require.NoError(t, err)
		if len(claims) == 0 {
			break
		}
		for _, c := range claims {
			for _, item := range c.Items {
				left = append(left, item.ID)
			}
			require.NoError(t, q.Ack(t.Context(), c))
		}
	}
	for _, id := range left {
		require.False(t, h.acked[id], "delivered after its ack")
		h.acked[id] = true
	}
	for g, ids := range h.sent {
		for _, id := range ids {
			require.True(t, h.acked[id] || h.unknown[id], "lost: %s of %s", id, g)
		}
	}
	t.Logf("%d handles, %d claims lost, %d acks unknown, %d left", h.handles, h.lost, len(h.unknown), len(left))
	require.Equal(t, 0, rowsOf(t, q, nameHeld))
	report, err := q.Admin().Check(t.Context(), CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.NoError(t, q.Close(t.Context()))
	require.NoError(t, h.calm.Close())
}

// work is one process after the other.
func (h *hearts) work(random *rand.Rand, skew time.Duration) {
	if !h.disturbed {
		skew = 0
	}
	q := h.open(skew)
	defer func() { _ = q.Close(context.Background()) }()
	var hands sync.WaitGroup
	defer hands.Wait()
	stopped := &atomic.Bool{} // the handle has stopped beating, or has left its beat
	for time.Now().Before(h.until) {
		o := ReceiveOptions{Max: 1 + random.IntN(3), Strategy: Heads, Heartbeat: random.IntN(4) > 0}
		claims, err := q.Receive(h.t.Context(), o)
		if err != nil {
			require.True(h.t, h.disturbed, "%v", err)
		}
		for _, c := range claims {
			h.given(c)
			hold := time.Duration(random.Int64N(int64(4 * heartLease)))
			if random.IntN(2) == 0 {
				hold /= 20
			}
			by, dead, act := q, stopped, random.IntN(10)
			hands.Go(func() {
				time.Sleep(hold)
				h.settle(by, c, act, dead)
			})
		}
		switch random.IntN(60) {
		case 0: // it continues, and its heartbeat stops
			stopped.Store(true)
			dies(q)
		case 1: // it dies, with its groups in flight
			stopped.Store(true)
			old := q
			hands.Go(func() { _ = old.Close(context.Background()) })
			q, stopped = h.open(skew), &atomic.Bool{}
		}
		time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
	}
}

func (h *hearts) given(c *Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Greater(h.t, c.Token, h.tokens[c.Group])
	h.tokens[c.Group] = c.Token
}

func (h *hearts) settle(q *Queue, c *Claim, act int, stopped *atomic.Bool) {
	beats := c.beat != uuid.Nil && !stopped.Load()
	h.mu.Lock()
	overtaken, last := h.tokens[c.Group] > c.Token, h.last[c.Group]
	h.mu.Unlock()
	switch act {
	case 0:
		err := q.Nack(h.t.Context(), c, NackOptions{Release: true})
		require.False(h.t, overtaken && err == nil)
		return
	case 1:
		_, err := q.Extend(h.t.Context(), c, heartLease)
		require.False(h.t, overtaken && err == nil)
		return // and dropped
	case 2:
		if beats {
			return // dropped, and held until the handle dies
		}
	}
	err := q.Ack(h.t.Context(), c)
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(err, ErrClosed) {
		return
	}
	if errors.Is(err, ErrClaimLost) {
		h.lost++
		require.False(h.t, beats && !stopped.Load() && !h.disturbed, "a handle that beats has lost a claim")
		return
	}
	require.False(h.t, overtaken && err == nil, "acked under token %d after %d was given", c.Token, h.tokens[c.Group])
	for _, item := range c.Items {
		if err != nil {
			h.unknown[item.ID] = true
			continue
		}
		require.False(h.t, h.acked[item.ID], "acked twice")
		h.acked[item.ID] = true
		// An ack whose first commit lost its answer returns late, and the ack of the next item may have returned
		// before.
		require.Greater(h.t, item.ID.Index, last, "out of order")
		h.last[c.Group] = max(h.last[c.Group], item.ID.Index)
	}
}

// TestDelayReadsFewRecords: to judge the end of a delay, a handle reads a bounded number of records at the index of its
// message.
func TestDelayReadsFewRecords(t *testing.T) {
	s := newMarkSteps(t)
	counting := recording.WrapCounting(s.db)
	_, err := kv.Run(s.ctx, counting, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		late := rec.Attempt{Count: 1, LastMS: s.now.Add(time.Hour).UnixMilli()}
		for range 500 {
			tx.Set(s.q.keys.attempt(ID{Group: "A", Index: 7, Random: uuid.New()}), late.Pack())
		}
		return nil
	})
	require.NoError(t, err)
	before := counting.Counters()
	_, err = kv.Run(s.ctx, counting, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v := s.q.viewOf(s.ctx, tx.Snapshot())
		wait, wrong, err := delayIsWrong(&v, "A", &rec.Holding{EndMS: s.now.Add(2 * time.Hour).UnixMilli()}, 7)
		require.True(t, wrong)
		require.Equal(t, time.Hour, wait)
		return err
	})
	require.NoError(t, err)
	require.LessOrEqual(t, counting.Counters().Sub(before).Rows, int64(sameIndex))
	_, err = kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.ClearRange(s.q.keys.section(nameAttempt))
		return nil
	})
	require.NoError(t, err)
}
