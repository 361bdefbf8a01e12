package layer

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// keepSteps is a handle, and the waiting request of another handle, whose wakes the test counts. No handle answers the
// wakes, so that only the acks and receives of the first handle decide what follows. The test writes the request
// itself, so this file is inside the package.
type keepSteps struct {
	*testing.T
	ctx    context.Context
	db     kv.DB
	q      *Queue
	waiter uuid.UUID
	before uint64 // wakes
}

// inKeep runs fn in virtual time, in a queue whose groups have four messages each.
func inKeep(t *testing.T, config Config, fn func(s *keepSteps), groups ...string) {
	synctest.Test(t, func(t *testing.T) {
		s := &keepSteps{
			T: t, ctx: t.Context(), db: embedded.OpenMemory(embedded.Options{}), waiter: uuid.UUID{1},
		}
		var err error
		s.q, err = Create(s.ctx, s.db, nil, "q", Options{Config: config})
		require.NoError(t, err)
		s.enqueue(groups...)
		r := rec.Request{Owner: "waiter", Wants: 9, DeadlineMS: s.q.nowMS() + requestLife.Milliseconds()}
		_, err = kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(s.q.keys.request(1, s.waiter), r.Pack())
			return nil
		})
		require.NoError(t, err)
		fn(s)
		require.NoError(t, s.q.Close(s.ctx))
		other, err := Open(s.ctx, s.db, nil, "q", Options{})
		require.NoError(t, err)
		report, err := other.Admin().Check(s.ctx, CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, other.Close(s.ctx))
		require.NoError(t, s.db.Close())
	})
}

func (s *keepSteps) enqueue(groups ...string) {
	for range 4 {
		for _, g := range groups {
			_, err := s.q.Enqueue(s.ctx, Message{Group: g})
			require.NoError(s, err)
		}
	}
}

// woken returns how many wakes there were since the last call.
func (s *keepSteps) woken() (n uint64) {
	_, err := kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := tx.Get(s.q.keys.wake(s.waiter)).Wait(s.ctx)
		if n = 0; len(v) == 8 {
			n = binary.LittleEndian.Uint64(v)
		}
		return err
	})
	require.NoError(s, err)
	n, s.before = n-s.before, n
	return n
}

func (s *keepSteps) receive(o ReceiveOptions) *Claim {
	o.Max = 1
	claims, err := s.q.Receive(s.ctx, o)
	require.NoError(s, err)
	require.Len(s, claims, 1)
	return claims[0]
}

func (s *keepSteps) ack(c *Claim) { require.NoError(s, s.q.Ack(s.ctx, c)) }

// TestAckOwesItsWake: an ack of a handle that receives again wakes no other handle. The receive wakes none either,
// because it claims the group.
func TestAckOwesItsWake(t *testing.T) {
	inKeep(t, Config{}, func(s *keepSteps) {
		for range 3 {
			s.ack(s.receive(ReceiveOptions{}))
		}
		s.receive(ReceiveOptions{})
		time.Sleep(10 * advice.KeepGap)
		require.Zero(s, s.woken())
	}, "g")
}

// TestOwedWakeIsPaid: progress. A handle owes a wake. The waiting handle is woken once, within advice.KeepGap, also if
// the first is closed or receives no more. If the process dies, a poll finds the group.
func TestOwedWakeIsPaid(t *testing.T) {
	t.Run("by time", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			time.Sleep(advice.KeepGap - time.Millisecond)
			require.Zero(s, s.woken())
			time.Sleep(2 * time.Millisecond)
			require.EqualValues(s, 1, s.woken())
			s.ack(s.receive(ReceiveOptions{})) // wakes by itself, because the receive before came too late
			require.EqualValues(s, 1, s.woken())
			time.Sleep(10 * advice.KeepGap)
			require.Zero(s, s.woken())
		}, "g")
	})
	t.Run("by the end of the handle", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			require.Zero(s, s.woken())
			require.NoError(s, s.q.Close(s.ctx))
			require.EqualValues(s, 1, s.woken())
			time.Sleep(10 * advice.KeepGap)
			require.Zero(s, s.woken())
		}, "g")
	})
	t.Run("by a receive of another group", func(t *testing.T) {
		inKeep(t, Config{RoundRobin: true}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			require.Zero(s, s.woken())
			require.Equal(s, "h", s.receive(ReceiveOptions{}).Group)
			require.EqualValues(s, 1, s.woken())
			time.Sleep(10 * advice.KeepGap)
			require.Zero(s, s.woken())
		}, "g", "h")
	})
	t.Run("by time, after a receive that fails", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			s.q.noticed.keeping.Receives(false).End(advice.Failed)
			require.Zero(s, s.woken())
			time.Sleep(advice.KeepGap + time.Millisecond)
			require.EqualValues(s, 1, s.woken())
		}, "g")
	})
	t.Run("by time, beside a receive that names another group", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			h := "h"
			claims, err := s.q.Receive(s.ctx, ReceiveOptions{Group: &h, Wait: time.Second})
			require.NoError(s, err)
			require.Empty(s, claims)
			require.EqualValues(s, 1, s.woken())
		}, "g")
	})
}

// TestHandleKeepsNoGroupForEver: a handle that acks and receives as fast as can be wakes another that waits after
// advice.KeepMost acks, or after advice.KeepTime; and then stands back if the next receive waits.
func TestHandleKeepsNoGroupForEver(t *testing.T) {
	t.Run("many", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			for range advice.KeepMost / 4 {
				s.enqueue("g")
			}
			for range advice.KeepMost {
				s.ack(s.receive(ReceiveOptions{Wait: time.Second}))
				require.Zero(s, s.woken())
			}
			s.ack(s.receive(ReceiveOptions{Wait: time.Second}))
			require.EqualValues(s, 1, s.woken())
			begun := time.Now()
			s.receive(ReceiveOptions{Wait: time.Second}) // no other handle came
			require.Positive(s, time.Since(begun))
			require.LessOrEqual(s, time.Since(begun), line.AWhileMost)
		}, "g")
	})
	t.Run("slowly", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			c := s.receive(ReceiveOptions{})
			time.Sleep(advice.KeepTime)
			s.ack(c)
			require.EqualValues(s, 1, s.woken())
		}, "g")
	})
}

// TestPollFindsWhatIsLeft: progress. A process dies while it owes a wake, and the oldest request is a dead handle's.
// The next handle that waits finds the group by a poll: it leaves the group alone once, for a moment, and then claims.
func TestPollFindsWhatIsLeft(t *testing.T) {
	inKeep(t, Config{}, func(s *keepSteps) {
		c := s.receive(ReceiveOptions{})
		other, err := Open(s.ctx, s.db, nil, "q", Options{})
		require.NoError(s, err)
		died := make(chan time.Time, 1)
		go func() {
			time.Sleep(time.Second)
			s.q.noticed.keeping.Pay = func(context.Context, string) error { return nil } // dead
			s.ack(c)
			died <- time.Now()
		}()
		claims, err := other.Receive(s.ctx, ReceiveOptions{Wait: time.Minute})
		require.NoError(s, err)
		require.Len(s, claims, 1)
		require.Zero(s, s.woken())
		took, longest := time.Since(<-died), defaultStagePoll*5/4
		longest += longest / pollPlaces // there is a request before
		require.Positive(s, took)
		require.LessOrEqual(s, took, longest+line.AWhileMost)
		require.NoError(s, other.Close(s.ctx))
	}, "g")
}

// TestPollsAfterALostWake: progress. Many dead handles stand in the line before one that lives. Their wakes are lost,
// and the living handle polls rarely. Then a poll claims a group for which no living handle was woken. From then on the
// handle polls as often as a handle alone.
func TestPollsAfterALostWake(t *testing.T) {
	inKeep(t, Config{}, func(s *keepSteps) {
		r := rec.Request{Owner: "dead", Wants: 9, DeadlineMS: s.q.nowMS() + requestLife.Milliseconds()}
		_, err := kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for i := range int64(15) {
				tx.Set(s.q.keys.request(1, uuid.UUID{2, byte(i)}), r.Pack())
			}
			return nil
		})
		require.NoError(s, err)
		other, err := Open(s.ctx, s.db, nil, "q", Options{})
		require.NoError(s, err)
		for i, longest := range []time.Duration{5 * defaultStagePoll, defaultStagePoll, defaultStagePoll} {
			sent := make(chan time.Time, 1)
			go func() {
				time.Sleep(10 * time.Millisecond)
				_, err := s.q.Enqueue(s.ctx, Message{Group: groupsNamed(3)[i]})
				require.NoError(s, err)
				sent <- time.Now()
			}()
			claims, err := other.Receive(s.ctx, ReceiveOptions{Wait: time.Minute})
			require.NoError(s, err)
			require.Len(s, claims, 1)
			require.LessOrEqual(s, time.Since(<-sent), longest*5/4+line.AWhileMost, "wake %d that is lost", i+1)
			require.NoError(s, other.Ack(s.ctx, claims[0]))
		}
		require.NoError(s, other.Close(s.ctx))
	})
}

// TestPollsRarelyInALineThatMoves: many requests stand before a handle's. As long as the first is the same, the handle
// looks up to five times as rarely as one alone; if another has become the first, up to 17 times.
func TestPollsRarelyInALineThatMoves(t *testing.T) {
	inKeep(t, Config{}, func(s *keepSteps) {
		first := int64(10)
		set := func() {
			r := rec.Request{Owner: "other", Wants: 9, DeadlineMS: s.q.nowMS() + 5*requestLife.Milliseconds()}
			_, err := kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				tx.Clear(s.q.keys.request(first, uuid.UUID{2}))
				for i := range int64(grantProbe) {
					tx.Set(s.q.keys.request(first+1+i, uuid.UUID{2}), r.Pack())
				}
				first++
				return nil
			})
			require.NoError(s, err)
		}
		set()
		_, err := kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Clear(s.q.keys.request(1, s.waiter))
			return nil
		})
		require.NoError(s, err)
		other, err := Open(s.ctx, s.db, nil, "q", Options{})
		require.NoError(s, err)
		var receiving sync.WaitGroup
		receiving.Go(func() {
			claims, err := other.Receive(s.ctx, ReceiveOptions{Wait: time.Hour})
			require.NoError(s, err)
			require.Len(s, claims, 1)
			require.NoError(s, other.Ack(s.ctx, claims[0]))
		})
		next := func() time.Duration { // until the handle has looked again
			begun, looks := time.Now(), other.Paths().Looks
			for other.Paths().Looks == looks {
				time.Sleep(10 * time.Millisecond)
			}
			return time.Since(begun)
		}
		next() // the look behind the request
		for range 3 {
			rest := next()
			require.GreaterOrEqual(s, rest, defaultStagePoll*5*3/4)
			require.LessOrEqual(s, rest, defaultStagePoll*5*5/4+20*time.Millisecond)
		}
		for range 3 {
			set()
			next()
			rest := next()
			require.GreaterOrEqual(s, rest, defaultStagePoll*17*3/4)
			require.LessOrEqual(s, rest, defaultStagePoll*17*5/4+20*time.Millisecond)
		}
		s.enqueue("g") // the wake goes to one of the others: a poll finds the group
		receiving.Wait()
		require.NoError(s, other.Close(s.ctx))
	})
}

// betweenDB runs something before and after the commit of each transaction that sets a watch and writes, and counts.
type betweenDB struct {
	kv.DB
	before, after  func()
	begins, writes atomic.Int64 // those that fail included
}

func (d *betweenDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	d.begins.Add(1)
	tx, err := d.DB.Begin(o)
	return &betweenTx{ManagedTx: tx, db: d}, err
}

type betweenTx struct {
	kv.ManagedTx
	db             *betweenDB
	watches, wrote bool
}

func (t *betweenTx) Watch(key []byte) kv.Future[struct{}] {
	t.watches = true
	return t.ManagedTx.Watch(key)
}

func (t *betweenTx) Set(key, value []byte) {
	t.wrote = true
	t.ManagedTx.Set(key, value)
}

func (t *betweenTx) Commit() kv.Future[struct{}] {
	if t.wrote {
		t.db.writes.Add(1)
	}
	if !t.watches || !t.wrote {
		return t.ManagedTx.Commit()
	}
	t.db.before()
	f := t.ManagedTx.Commit()
	if _, err := f.Wait(context.Background()); err == nil {
		t.db.after()
	}
	return f
}

// TestStandsBack: progress, and trap 11. A handle that has woken another stands back: one transaction of its receive
// writes, and also sets the watch. A wake that comes as soon as the request is there ends the watch; one that comes
// before makes the transaction run again. Looks that write nothing follow, each twice as late as the one before: the
// first finds a group that became ready before, without a wake.
func TestStandsBack(t *testing.T) {
	for _, of := range []struct {
		name              string
		before, after     func(s *keepSteps, back *Queue)
		conflicts         int64
		earliest, longest time.Duration
	}{
		{"nothing comes", nil, nil, 0, 3 * time.Second, 3 * time.Second},
		{"a wake after the commit", nil, func(s *keepSteps, _ *Queue) { s.enqueue("h") }, 0, 0, 10 * time.Millisecond},
		{"a group without a wake before the commit", func(s *keepSteps, _ *Queue) { s.enqueue("h") }, nil, 0,
			0, 10 * time.Millisecond},
		{"a wake before the commit", func(s *keepSteps, back *Queue) {
			_, err := kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				s.q.txn(s.ctx, tx).touch(back.waitID)
				return nil
			})
			require.NoError(s, err)
		}, nil, 1, 3 * time.Second, 3 * time.Second},
	} {
		t.Run(of.name, func(t *testing.T) {
			inKeep(t, Config{}, func(s *keepSteps) {
				once := func(f func(s *keepSteps, back *Queue), back **Queue) func() {
					return func() {
						if f != nil {
							f(s, *back)
							f = nil
						}
					}
				}
				var back *Queue
				between := &betweenDB{DB: s.db, before: once(of.before, &back), after: once(of.after, &back)}
				var err error
				back, err = Open(s.ctx, between, nil, "q", Options{})
				require.NoError(s, err)
				for range advice.KeepMost / 4 {
					s.enqueue("g")
				}
				for range advice.KeepMost + 1 {
					claims, err := back.Receive(s.ctx, ReceiveOptions{Max: 1})
					require.NoError(s, err)
					require.NoError(s, back.Ack(s.ctx, claims[0]))
				}
				require.EqualValues(s, 1, s.woken())
				_, err = kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
					tx.Clear(s.q.keys.request(1, s.waiter))
					return nil
				})
				require.NoError(s, err)
				held := s.receive(ReceiveOptions{}) // the woken handle's

				begins, writes, begun := between.begins.Load(), between.writes.Load(), time.Now()
				var claims []*Claim
				var took time.Duration
				var receiving sync.WaitGroup
				receiving.Go(func() {
					claims, err = back.Receive(s.ctx, ReceiveOptions{Wait: 3 * time.Second})
					took = time.Since(begun)
				})
				time.Sleep(defaultStagePoll / 2)
				begins, writes = between.begins.Load()-begins, between.writes.Load()-writes
				receiving.Wait()
				require.NoError(s, err)
				require.GreaterOrEqual(s, took, of.earliest)
				require.LessOrEqual(s, took, of.longest)
				if of.longest == 3*time.Second { // nothing is claimed
					require.Equal(s, 1+of.conflicts, writes)
					first := float64(time.Millisecond / 4) // the time of a transaction, at least
					looks := int64(math.Log2(float64(defaultStagePoll/2)/first)) + 2
					require.Greater(s, begins, writes)
					require.LessOrEqual(s, begins, writes+looks)
				}
				for _, c := range claims {
					require.Equal(s, "h", c.Group)
					require.NoError(s, back.Ack(s.ctx, c))
				}
				s.ack(held)
				require.NoError(s, back.Close(s.ctx))
			}, "g")
		})
	}
}
