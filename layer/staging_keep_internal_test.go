package layer

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// keepSteps is a handle beside a waiting request, of whose wakes the test keeps count. Nobody answers the wakes, so
// that the acks and receives of the handle alone decide what follows; that is why this file is inside the package.
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
		r := request{owner: "waiter", wants: 9, deadlineMS: s.q.nowMS() + requestLife.Milliseconds()}
		_, err = kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(s.q.keys.request(1, s.waiter), r.pack())
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

// TestAckOwesItsWake: an ack of a handle that receives again wakes nobody, and neither does the receive, which claims
// the group.
func TestAckOwesItsWake(t *testing.T) {
	inKeep(t, Config{}, func(s *keepSteps) {
		for range 3 {
			s.ack(s.receive(ReceiveOptions{}))
		}
		s.receive(ReceiveOptions{})
		time.Sleep(10 * keepGap)
		require.Zero(s, s.woken())
	}, "g")
}

// TestOwedWakeIsPaid: progress. Whatever becomes of the handle that owes a wake, who waits is woken, once, within
// keepGap; unless the process dies, and then a poll finds the group.
func TestOwedWakeIsPaid(t *testing.T) {
	t.Run("by time", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			time.Sleep(keepGap - time.Millisecond)
			require.Zero(s, s.woken())
			time.Sleep(2 * time.Millisecond)
			require.EqualValues(s, 1, s.woken())
			s.ack(s.receive(ReceiveOptions{})) // wakes by itself, because the receive before came too late
			require.EqualValues(s, 1, s.woken())
			time.Sleep(10 * keepGap)
			require.Zero(s, s.woken())
		}, "g")
	})
	t.Run("by the end of the handle", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			require.Zero(s, s.woken())
			require.NoError(s, s.q.Close(s.ctx))
			require.EqualValues(s, 1, s.woken())
			time.Sleep(10 * keepGap)
			require.Zero(s, s.woken())
		}, "g")
	})
	t.Run("by a receive of another group", func(t *testing.T) {
		inKeep(t, Config{Schedule: RoundRobin}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			require.Zero(s, s.woken())
			require.Equal(s, "h", s.receive(ReceiveOptions{}).Group)
			require.EqualValues(s, 1, s.woken())
			time.Sleep(10 * keepGap)
			require.Zero(s, s.woken())
		}, "g", "h")
	})
	t.Run("by time, after a receive that fails", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			s.q.staging.keeping.begin(s.q, []*operation{{receive: &reception{}}}).end(errInterrupted)
			require.Zero(s, s.woken())
			time.Sleep(keepGap + time.Millisecond)
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

// TestHandleKeepsNoGroupForEver: a handle that acks and receives as fast as can be wakes who waits after keepMost acks,
// or after keepTime; and then stands back if the next receive waits.
func TestHandleKeepsNoGroupForEver(t *testing.T) {
	t.Run("many", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			for range keepMost / 4 {
				s.enqueue("g")
			}
			for range keepMost {
				s.ack(s.receive(ReceiveOptions{Wait: time.Second}))
				require.Zero(s, s.woken())
			}
			s.ack(s.receive(ReceiveOptions{Wait: time.Second}))
			require.EqualValues(s, 1, s.woken())
			begun := time.Now()
			s.receive(ReceiveOptions{Wait: time.Second}) // nobody else came
			require.Positive(s, time.Since(begun))
			require.LessOrEqual(s, time.Since(begun), aWhileMost)
		}, "g")
	})
	t.Run("slowly", func(t *testing.T) {
		inKeep(t, Config{}, func(s *keepSteps) {
			s.ack(s.receive(ReceiveOptions{}))
			c := s.receive(ReceiveOptions{})
			time.Sleep(keepTime)
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
			s.ack(c)
			k := &s.q.staging.keeping
			k.mu.Lock()
			defer k.mu.Unlock()
			k.owed.timer.Stop() // dead
			k.owed = nil
			died <- time.Now()
		}()
		claims, err := other.Receive(s.ctx, ReceiveOptions{Wait: time.Minute})
		require.NoError(s, err)
		require.Len(s, claims, 1)
		require.Zero(s, s.woken())
		took, longest := time.Since(<-died), DefaultStagePoll*5/4
		longest += longest / pollPlaces // there is a request before
		require.Positive(s, took)
		require.LessOrEqual(s, took, longest+aWhileMost)
		require.NoError(s, other.Close(s.ctx))
	}, "g")
}

// TestPollsAfterALostWake: progress. Many dead handles stand before one that lives: their wakes are lost, and it polls
// rarely, until a poll has claimed what nobody was woken for. From then on it polls as often as a handle alone.
func TestPollsAfterALostWake(t *testing.T) {
	inKeep(t, Config{}, func(s *keepSteps) {
		r := request{owner: "dead", wants: 9, deadlineMS: s.q.nowMS() + requestLife.Milliseconds()}
		_, err := kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for i := range int64(15) {
				tx.Set(s.q.keys.request(1, uuid.UUID{2, byte(i)}), r.pack())
			}
			return nil
		})
		require.NoError(s, err)
		other, err := Open(s.ctx, s.db, nil, "q", Options{})
		require.NoError(s, err)
		for i, longest := range []time.Duration{5 * DefaultStagePoll, DefaultStagePoll, DefaultStagePoll} {
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
			require.LessOrEqual(s, time.Since(<-sent), longest*5/4+aWhileMost, "wake %d that is lost", i+1)
			require.NoError(s, other.Ack(s.ctx, claims[0]))
		}
		require.NoError(s, other.Close(s.ctx))
	})
}
