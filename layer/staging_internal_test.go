package layer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	recording "fdbfifo/kv/record"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// stagedSteps are the steps of staging that run inside a handle's own transactions, while other handles run theirs. The
// tests call the steps one by one, so this file is inside the package.
type stagedSteps struct {
	t   *testing.T
	ctx context.Context
	db  *interleaved
	q   *Queue // grants, and claims
	own *Queue // has a request
	key []byte // of that request
}

func newStagedSteps(t *testing.T) *stagedSteps {
	s := &stagedSteps{t: t, ctx: t.Context(), db: &interleaved{DB: embedded.OpenMemory(embedded.Options{})}}
	t.Cleanup(func() { require.NoError(t, s.db.Close()) })
	var err error
	s.q, err = Create(s.ctx, s.db, nil, "q", Options{Test: &TestOptions{Seed: 1}})
	require.NoError(t, err)
	s.own, err = Open(s.ctx, s.db, nil, "q", Options{Test: &TestOptions{Seed: 2}})
	require.NoError(t, err)
	const index = 5
	s.key = s.own.keys.request(index, s.own.waitID)
	r := rec.Request{Owner: "own", Wants: 9, DeadlineMS: s.q.nowMS() + requestLife.Milliseconds()}
	s.run(func(tx kv.Tx) error { tx.Set(s.key, r.Pack()); return nil })
	s.own.staging.set(staged{request: index, deadlineMS: r.DeadlineMS})
	for _, g := range []string{"A", "B"} {
		_, err := s.q.Enqueue(s.ctx, Message{Group: g})
		require.NoError(t, err)
	}
	return s
}

// requireSound checks the rows of a queue.
func requireSound(t *testing.T, q *Queue) {
	t.Helper()
	report, err := q.Admin().Check(t.Context(), CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
}

// calm opens a handle to look at the queue with.
func (s *stagedSteps) calm() *Queue {
	q, err := Open(s.ctx, s.db, nil, "q", Options{Test: &TestOptions{Seed: 9}})
	require.NoError(s.t, err)
	return q
}

func (s *stagedSteps) run(fn func(tx kv.Tx) error) {
	s.t.Helper()
	_, err := kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return fn(tx) })
	require.NoError(s.t, err)
}

// overlap runs second while first is under way and returns what first's commit says.
func (s *stagedSteps) overlap(first, second func(tx kv.Tx) error) error {
	s.t.Helper()
	tx, err := s.db.Begin(kv.TxOptions{})
	require.NoError(s.t, err)
	defer tx.Cancel()
	_, err = tx.ReadVersion().Wait(s.ctx)
	require.NoError(s.t, err)
	require.NoError(s.t, first(tx))
	s.run(second)
	_, err = tx.Commit().Wait(s.ctx)
	return err
}

// grant grants the oldest group that has a hint to the request. hide is a group that it does not see.
func (s *stagedSteps) grant(hide string) func(tx kv.Tx) error {
	return func(tx kv.Tx) error {
		w := s.q.txn(s.ctx, tx)
		c := w.newClaimer("", nil)
		for {
			found, err := c.search.next(1)
			require.NoError(s.t, err)
			require.NotEmpty(s.t, found)
			if found[0].lane != hide {
				c.looks = append(c.looks, c.read(found[0], 1))
				break
			}
		}
		c.search.pending = nil
		for i := range c.search.timers {
			c.search.timers[i].exhausted = true
		}
		for i := range c.search.shards {
			c.search.shards[i].exhausted = true
		}
		requests, err := w.beginTurn("").requests.Wait(s.ctx)
		require.NoError(s.t, err)
		return c.grantOthers(requests)
	}
}

func (s *stagedSteps) claim(tx kv.Tx) error {
	claims, err := s.q.ReceiveTx(s.ctx, tx, ReceiveOptions{MaxGroups: 1})
	require.Len(s.t, claims, 1)
	return err
}

// withdrawn is what a handle does whose receives have all left.
func (s *stagedSteps) withdrawn(tx kv.Tx) error {
	index, _ := s.own.staging.requested()
	return s.own.txn(s.ctx, tx).withdraw(index)
}

// served is the clearing of a request whose receives have all been served.
func (s *stagedSteps) served(tx kv.Tx) error {
	w := s.own.txn(s.ctx, tx)
	w.wakes.mayStage = true
	o := &operation{Op: line.Op{Waits: true}, receive: &reception{claims: []*Claim{{}}}}
	outcome, err := w.stage([]*operation{o}, []*claimer{w.newClaimer("", nil)}, nil)
	require.True(s.t, outcome.gone)
	return err
}

// wanting is a turn of a receive that waits, when all that the request wanted has been granted.
func (s *stagedSteps) wanting(tx kv.Tx) error {
	w := s.own.txn(s.ctx, tx)
	w.wakes.mayStage = true
	requests, err := w.beginTurn("").requests.Wait(s.ctx)
	require.NoError(s.t, err)
	o := &operation{Op: line.Op{Waits: true}, receive: &reception{}}
	outcome, err := w.stage([]*operation{o}, []*claimer{w.newClaimer("", nil)}, requests)
	require.NotZero(s.t, outcome.request)
	return err
}

// TestStagingMustConflict: a grant conflicts with a claim of the group, with another grant to the same request, and
// with the request's own handle when that clears it. That handle, when it rewrites the request, conflicts with a
// transaction that clears it.
func TestStagingMustConflict(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second func(s *stagedSteps) func(tx kv.Tx) error
		conflict      bool
	}{
		{"grant, claim of the group", grantFirst, func(s *stagedSteps) func(kv.Tx) error { return s.claim }, true},
		{"claim, grant of the group", func(s *stagedSteps) func(kv.Tx) error { return s.claim }, grantFirst, true},
		{"grant, grant of another group to the same request", grantFirst, grantSecond, true},
		{"grant, clearing of the request", grantFirst, func(s *stagedSteps) func(kv.Tx) error { return s.served }, true},
		{"clearing of the request, grant", func(s *stagedSteps) func(kv.Tx) error { return s.served }, grantFirst, true},
		{"withdrawal of the request, grant", withdrawal, grantFirst, true},
		{"grant, withdrawal of the request", grantFirst, withdrawal, true},
		{"turn that wants again, sweep of the request", wantsAgain, func(s *stagedSteps) func(kv.Tx) error {
			return func(tx kv.Tx) error { tx.Clear(s.key); return nil }
		}, true},
		{"turn that wants again, grant to another", wantsAgain, grantToAnother, false},
		{"turn that wants again, enqueue", wantsAgain, enqueueA, false},
		{"grant, enqueue to the group", grantFirst, enqueueA, false},
		{"withdrawal, enqueue", withdrawal, enqueueA, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStagedSteps(t)
				err := s.overlap(c.first(s), c.second(s))
				if c.conflict {
					require.Equal(t, kv.CodeNotCommitted, kv.Code(err), "must conflict, got %v", err)
				} else {
					require.NoError(t, err, "must not conflict")
				}
				require.NoError(t, s.own.Close(t.Context()))
				require.NoError(t, s.q.Close(t.Context()))
			})
		})
	}
}

func grantFirst(s *stagedSteps) func(tx kv.Tx) error  { return s.grant("") }
func grantSecond(s *stagedSteps) func(tx kv.Tx) error { return s.grant("A") }
func withdrawal(s *stagedSteps) func(tx kv.Tx) error  { return s.withdrawn }

func wantsAgain(s *stagedSteps) func(tx kv.Tx) error {
	s.run(func(tx kv.Tx) error {
		tx.Set(s.key, rec.Request{Owner: "own", DeadlineMS: s.q.nowMS() + requestLife.Milliseconds()}.Pack())
		return nil
	})
	return s.wanting
}

func grantToAnother(s *stagedSteps) func(tx kv.Tx) error {
	s.run(func(tx kv.Tx) error {
		r := rec.Request{Owner: "other", Wants: 1, DeadlineMS: s.q.nowMS() + requestLife.Milliseconds()}
		tx.Set(s.q.keys.request(6, uuid.UUID{1}), r.Pack())
		return nil
	})
	return s.grant("")
}

func enqueueA(s *stagedSteps) func(tx kv.Tx) error {
	return func(tx kv.Tx) error {
		_, err := s.q.EnqueueTx(s.ctx, tx, Message{Group: "A"})
		return err
	}
}

// TestWithdrawalReturnsGrants: a handle that withdraws returns its granted groups at once, and no attempt is counted. A
// group that another handle has taken over since stays with that handle.
func TestWithdrawalReturnsGrants(t *testing.T) {
	s := newStagedSteps(t)
	s.run(s.grant(""))
	s.run(s.grant("A"))
	// B was taken over by another: its grant is void.
	s.run(func(tx kv.Tx) error {
		delay := rec.Holding{Kind: rec.KindDelay, Token: 1 << 50, EndMS: s.q.nowMS() + 60_000}
		tx.Set(s.q.keys.lock("B"), rec.HeldBy(delay, nil).Pack())
		tx.Set(s.q.keys.timer(s.q.nowMS()+60_000, "B"), rec.PackTimer(rec.KindDelay, 1))
		return nil
	})
	index, _ := s.own.staging.requested()
	require.NoError(t, s.own.withdraw(s.ctx, index))
	claims, err := s.q.Receive(s.ctx, ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Equal(t, "A", claims[0].Group)
	require.Zero(t, claims[0].Items[0].Attempts)
	report, err := s.q.Admin().Check(s.ctx, CheckOptions{})
	require.NoError(t, err)
	require.Zero(t, report.Requests+report.Grants)
}

// TestUnreadableLockStopsNoWithdrawal (G3): the lock of a granted group cannot be read. The handle still withdraws its
// request and returns its other groups. When the lock is readable again, the group is delivered at the end of the
// grant.
func TestUnreadableLockStopsNoWithdrawal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStagedSteps(t)
		s.run(s.grant(""))
		s.run(s.grant("A"))
		var lock []byte
		s.run(func(tx kv.Tx) (err error) {
			lock, err = tx.Get(s.q.keys.lock("A")).Wait(s.ctx)
			tx.Set(s.q.keys.lock("A"), []byte{0xff})
			return err
		})
		index, _ := s.own.staging.requested()
		require.NoError(t, s.own.withdraw(s.ctx, index))
		require.NotZero(t, s.own.Paths().Unreadable)
		require.Equal(t, "B", claimOf(t, s.q, "B", time.Minute).Group)
		s.run(func(tx kv.Tx) error { tx.Set(s.q.keys.lock("A"), lock); return nil })
		report, err := s.q.Admin().Check(s.ctx, CheckOptions{})
		require.NoError(t, err)
		require.Zero(t, report.Requests+report.Grants)
		time.Sleep(2 * grantLease)
		claims, err := s.q.Receive(s.ctx, ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.Equal(t, "A", claims[0].Group)
		require.NoError(t, s.own.Close(s.ctx))
		require.NoError(t, s.q.Close(s.ctx))
		requireSound(t, s.calm())
	})
}

// TestWithdrawalKeepsAttempts: the head of the granted group has failed before. The receive after the withdrawal knows
// it.
func TestWithdrawalKeepsAttempts(t *testing.T) {
	s := newStagedSteps(t)
	_, _, err := s.q.Admin().Configure(s.ctx, func(c *Config) { c.Retry = RetryPolicy{Kind: RetryAtOnce} })
	require.NoError(t, err)
	claims, err := s.q.Receive(s.ctx, ReceiveOptions{})
	require.NoError(t, err)
	require.NoError(t, s.q.Nack(s.ctx, claims[0], NackOptions{Err: errors.New("failed")}))
	s.run(s.grant(""))
	index, _ := s.own.staging.requested()
	require.NoError(t, s.own.withdraw(s.ctx, index))
	claims, err = s.q.Receive(s.ctx, ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Equal(t, "A", claims[0].Group)
	require.Equal(t, 1, claims[0].Items[0].Attempts)
}

// TestWaitBesideAWithdrawal (G5): a receive begins to wait while a handle that withdraws returns its granted group. The
// transaction of the withdrawal has looked for receives that wait, and found none. The receive has seen the request of
// that handle before its own, so it does not look again. The withdrawal wakes it.
func TestWaitBesideAWithdrawal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStagedSteps(t)
		s.run(s.grant(""))
		claims, err := s.q.Receive(s.ctx, ReceiveOptions{MaxGroups: 1, Lease: MaxLease}) // B is not free either
		require.NoError(t, err)
		require.Len(t, claims, 1)
		other, err := Open(s.ctx, s.db, nil, "q", Options{Poll: time.Hour, Test: &TestOptions{Seed: 3}})
		require.NoError(t, err)
		got := make(chan []*Claim, 1)
		s.db.before = func() {
			go func() {
				claims, err := other.Receive(s.ctx, ReceiveOptions{Wait: time.Minute})
				require.NoError(t, err)
				got <- claims
			}()
			synctest.Wait()
			require.Positive(t, other.Paths().Looks)
		}
		begun := time.Now()
		s.db.armed.Store(true)
		index, _ := s.own.staging.requested()
		require.NoError(t, s.own.withdraw(s.ctx, index))
		claims = <-got
		require.Less(t, time.Since(begun), time.Second, "not at the end of the grant")
		require.Len(t, claims, 1)
		require.Equal(t, "A", claims[0].Group)
		for _, q := range []*Queue{other, s.own, s.q} {
			require.NoError(t, q.Close(s.ctx))
		}
	})
}

// TestWithdrawalEndsWithTheHandle: while a receive is changing the request, a withdrawal returns and is tried again
// later. When the handle has ended it returns an error instead. Otherwise the attendance would try again without a
// pause until the receive is over.
func TestWithdrawalEndsWithTheHandle(t *testing.T) {
	s := newStagedSteps(t)
	require.True(t, s.own.staging.acquire())
	ctx, cancel := context.WithCancel(s.ctx)
	require.NoError(t, s.own.withdraw(ctx, 1), "it is busy, and may be tried again")
	cancel()
	require.ErrorIs(t, s.own.withdraw(ctx, 1), context.Canceled)
	s.own.staging.release()
}

// TestRequestHasOneOwner: while a transaction in flight may change the handle's request, no other changes it. A renewal
// or a withdrawal that is meant for an earlier request leaves the present one alone, and the handle still knows it.
func TestRequestHasOneOwner(t *testing.T) {
	s := newStagedSteps(t)
	read := func(key []byte) (v []byte) {
		s.run(func(tx kv.Tx) (err error) { v, err = tx.Get(key).Wait(s.ctx); return err })
		return v
	}
	before := read(s.key)
	require.True(t, s.own.staging.acquire())
	require.NoError(t, s.own.renew(s.ctx, 5))
	require.Equal(t, before, read(s.key))
	const next = 7 // the transaction in flight writes another request
	r := rec.Request{Owner: "own", Wants: 9, DeadlineMS: s.q.nowMS() + requestLife.Milliseconds()}
	key := s.own.keys.request(next, s.own.waitID)
	s.run(func(tx kv.Tx) error {
		tx.Clear(s.key)
		tx.Set(key, r.Pack())
		return nil
	})
	s.own.staging.set(staged{request: next, deadlineMS: r.DeadlineMS})
	s.own.staging.release()
	s.run(s.grant(""))
	granted := read(key)
	for name, late := range map[string]func() error{
		"renewal":                  func() error { return s.own.renew(s.ctx, 5) },
		"withdrawal":               func() error { return s.own.withdraw(s.ctx, 5) },
		"withdrawal of lane waits": func() error { return s.own.withdraw(s.ctx, 0) },
	} {
		require.NoError(t, late(), name)
		index, _ := s.own.staging.requested()
		require.EqualValues(t, next, index, name)
		require.Equal(t, granted, read(key), name)
		report, err := s.q.Admin().Check(s.ctx, CheckOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, report.Grants, name)
		require.Empty(t, report.Violations)
	}
	require.NoError(t, s.own.withdraw(s.ctx, next))
	require.Nil(t, read(key))
}

// TestWaitThatEndsAtOnceLeavesNoRequest (G5): the first transaction of a receive writes a request, and the receive ends
// with this transaction. The handle withdraws the request. So an enqueue wakes the handle whose receive waits.
func TestWaitThatEndsAtOnceLeavesNoRequest(t *testing.T) {
	group := "C"
	for name, c := range map[string]struct {
		group   *string
		unknown bool
	}{
		"any group": {}, "named group": {group: &group},
		"any group, unknown outcome": {unknown: true}, "named group, unknown outcome": {&group, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db, q := newInterleaved(t, Config{})
				ctx, leave := context.WithCancel(t.Context())
				db.before = func() {
					leave()
					synctest.Wait()
				}
				if c.unknown {
					db.before, db.err = nil, &kv.Error{Code: kv.CodeTransactionTimedOut, InFlight: true}
				}
				db.armed.Store(true)
				_, err := q.Receive(ctx, ReceiveOptions{Group: c.group, Wait: time.Minute})
				require.Equal(t, c.unknown, kv.MaybeCommitted(err), "%v", err)
				time.Sleep(time.Second)
				options := Options{Poll: time.Hour, Test: &TestOptions{Seed: 2, NoLooks: true}}
				other, err := Open(t.Context(), db, nil, "q", options)
				require.NoError(t, err)
				got := make(chan []*Claim, 1)
				go func() {
					claims, err := other.Receive(t.Context(), ReceiveOptions{Wait: time.Minute})
					assert.NoError(t, err)
					got <- claims
				}()
				time.Sleep(time.Second)
				begun := time.Now()
				send(t, q, group)
				require.Len(t, <-got, 1)
				require.Less(t, time.Since(begun), time.Second)
				synctest.Wait() // until the wake has reached the first handle, too, which then withdraws its request
				report, err := other.Admin().Check(t.Context(), CheckOptions{})
				require.NoError(t, err)
				require.Empty(t, report.Violations)
				require.Zero(t, report.Requests)
				require.NoError(t, other.Close(t.Context()))
				require.NoError(t, q.Close(t.Context()))
			})
		})
	}
}

// TestClockSetBackRenewsRequests: a handle whose clock is a day ahead waits, and then the clock is set right. The
// handle writes new deadlines at its next look, so other handles do not take it for dead.
func TestClockSetBackRenewsRequests(t *testing.T) {
	group := "C"
	for name, of := range map[string]*string{"any group": nil, "named group": &group} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db, right := newInterleaved(t, Config{})
				var ahead atomic.Int64
				clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
				ahead.Store(int64(24 * time.Hour))
				q, err := Open(t.Context(), db, nil, "q", Options{Now: clock, Test: &TestOptions{Seed: 2}})
				require.NoError(t, err)
				ctx, leave := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					_, err := q.Receive(ctx, ReceiveOptions{Group: of, Wait: time.Hour})
					ended <- err
				}()
				alive := func() (is bool) {
					var rows []kv.KV
					require.NoError(t, right.view(t.Context(), func(v *view) (err error) {
						rows, err = v.read.GetRange(v.keys.requests().Selectors(), kv.RangeOptions{}).Wait(v.ctx)
						return err
					}))
					require.Len(t, rows, 1)
					r, err := rec.UnpackRequest(rows[0].Key, rows[0].Value)
					require.NoError(t, err)
					return lives(r, right.nowMS())
				}
				time.Sleep(time.Second)
				require.False(t, alive(), "the clock is not right yet")
				ahead.Store(0)
				time.Sleep(2 * defaultStagePoll)
				require.True(t, alive())
				leave()
				require.ErrorIs(t, <-ended, context.Canceled)
				requireSound(t, right)
				require.NoError(t, q.Close(t.Context()))
				require.NoError(t, right.Close(t.Context()))
			})
		})
	}
}

// TestSweepOfLeftRequestSparesTheHandle: a commit of unknown outcome has left a request of a handle that waits under
// another request. The sweep clears the left-over request only. Of a handle whose requests are all over, it also clears
// the grants and the wake key.
func TestSweepOfLeftRequestSparesTheHandle(t *testing.T) {
	s := newStagedSteps(t)
	there := func(key []byte) (is bool) {
		s.run(func(tx kv.Tx) error {
			v, err := tx.Get(key).Wait(s.ctx)
			is = v != nil
			return err
		})
		return is
	}
	keys, id := s.own.keys, s.own.waitID
	left, wake, grant := keys.request(3, id), keys.wake(id), keys.grant(id, "A")
	s.run(s.grant(""))
	over := rec.Request{Owner: "own", Wants: 9, DeadlineMS: s.q.nowMS() - 1}
	s.run(func(tx kv.Tx) error { tx.Set(left, over.Pack()); return nil })
	require.NoError(t, s.q.sweepRequests(s.ctx, []string{""}))
	require.False(t, there(left))
	for _, key := range [][]byte{s.key, wake, grant} {
		require.True(t, there(key), "%q", key)
	}
	requireSound(t, s.q)

	s.run(func(tx kv.Tx) error { tx.Set(s.key, over.Pack()); return nil })
	require.NoError(t, s.q.sweepRequests(s.ctx, []string{""}))
	for _, key := range [][]byte{s.key, wake, grant} {
		require.False(t, there(key), "%q", key)
	}
	requireSound(t, s.q)
}

// TestRenewalWantsNoNamedGroups: of a handle's receives some name a group. The renewed request for any group wants as
// many groups as there are other receives.
func TestRenewalWantsNoNamedGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, q := newInterleaved(t, Config{})
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				o := ReceiveOptions{Wait: time.Hour}
				if name := fmt.Sprint(i); i > 1 {
					o.Group = &name
				}
				_, err := q.Receive(ctx, o)
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		wants := func() int64 {
			index, _ := q.staging.requested()
			key := q.keys.request(index, q.waitID)
			r, err := rec.UnpackRequest(key, db.get(t, key))
			require.NoError(t, err)
			require.True(t, lives(r, q.nowMS()))
			return r.Wants
		}
		time.Sleep(time.Second)
		require.LessOrEqual(t, wants(), int64(2))
		time.Sleep(2 * requestLife)
		require.EqualValues(t, 2, wants())
		leave()
		wg.Wait()
		requireSound(t, q)
		require.NoError(t, q.Close(t.Context()))
	})
}

// TestFailedWaitIsForgotten: a transaction that would have written a request for a group has failed for certain. The
// handle does not count on the request, and so has nothing to clear.
func TestFailedWaitIsForgotten(t *testing.T) {
	s := newStagedSteps(t)
	group := "C"
	s.q.opts.Tx.SizeLimit = 10 // bytes: no request fits
	_, err := s.q.Receive(s.ctx, ReceiveOptions{Group: &group, Wait: time.Minute})
	require.ErrorIs(t, err, ErrLimit)
	require.False(t, s.q.staging.hasWants())
	requireSound(t, s.own)
}

// TestLeftRequestEndsThePassing: handles which pass wakes on may have requests that they do not know of, because a
// commit of unknown outcome has left them. A handle wakes neither itself by such a request nor another in turn without
// end: it clears its own.
func TestLeftRequestEndsThePassing(t *testing.T) {
	for _, handles := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) { leftRequest(t, handles) })
	}
}

// leftRequest is TestLeftRequestEndsThePassing for so many handles.
func leftRequest(t *testing.T, handles int) {
	eventually := func(holds func() bool) {
		t.Helper()
		for range 1000 {
			if holds() {
				return
			}
			time.Sleep(time.Millisecond)
		}
		require.True(t, holds())
	}
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err := Create(t.Context(), db, nil, "q", Options{})
	require.NoError(t, err)
	var gone []*Queue
	for range handles {
		q, err := Open(t.Context(), db, nil, "q", Options{})
		require.NoError(t, err)
		gone = append(gone, q)
		waiting, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := q.Receive(waiting, ReceiveOptions{Wait: time.Minute})
			ended <- err
		}()
		eventually(func() bool { index, _ := q.staging.requested(); return index != 0 })
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		eventually(func() bool {
			index, _ := q.staging.requested()
			return index == 0 && q.staging.goneLeft() > 0
		})
	}
	run := func(body func(tx kv.Tx) error) {
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return body(tx) })
		require.NoError(t, err)
	}
	run(func(tx kv.Tx) error {
		for i, q := range gone {
			r := rec.Request{Owner: q.opts.Owner, Wants: 9, DeadlineMS: q.nowMS() + requestLife.Milliseconds()}
			tx.Set(q.keys.request(int64(5+i), q.waitID), r.Pack())
		}
		return nil
	})
	sender, err := Open(t.Context(), db, nil, "q", Options{})
	require.NoError(t, err)
	_, err = sender.Enqueue(t.Context(), Message{Group: "A"})
	require.NoError(t, err)
	wakes := func() (n int64) {
		run(func(tx kv.Tx) error {
			n = 0
			for _, q := range gone {
				key := q.keys.wake(q.waitID)
				value, err := tx.Snapshot().Get(key).Wait(t.Context())
				if err != nil || value == nil {
					return err
				}
				count, err := rec.UnpackCount(key, value)
				if err != nil {
					return err
				}
				n += count
			}
			return nil
		})
		return n
	}
	left := func() (n int) {
		run(func(tx kv.Tx) error {
			requests := sender.keys.section(nameRequest).Selectors()
			rows, err := tx.Snapshot().GetRange(requests, kv.RangeOptions{}).Wait(t.Context())
			n = len(rows)
			return err
		})
		return n
	}
	eventually(func() bool { return left() == 0 })
	time.Sleep(50 * time.Millisecond)
	require.LessOrEqual(t, wakes(), int64(2*handles), "wakes of %d handles", handles)
	for _, q := range append(gone, sender) {
		require.NoError(t, q.Close(t.Context()))
	}
}

// TestEachFirst: the first key of each range is found, whatever lies in the ranges, between them and around them. Where
// nothing lies one read is enough, and no more than two for each range are ever made.
func TestEachFirst(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		db := recording.WrapCounting(embedded.OpenMemory(embedded.Options{}))
		q, err := Create(t.Context(), db, nil, "q", Options{})
		require.NoError(t, err)
		_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			keys := random.IntN(120)
			if round%10 == 0 {
				keys = 0
			}
			for range keys {
				tx.Set(fmt.Appendf(nil, "a%03d", random.IntN(400)), nil)
			}
			for _, k := range []string{"0", "b"} {
				tx.Set([]byte(k), nil)
			}
			want, got := make(map[string]string), make(map[string]string)
			var ranges []placed
			for at := random.IntN(5); at < 400; {
				end := at + 1 + random.IntN(6)
				r := kv.KeyRange{Begin: fmt.Appendf(nil, "a%03d", at), End: fmt.Appendf(nil, "a%03d", end)}
				ranges = append(ranges, placed{r, fmt.Sprint(at)})
				rows, err := tx.GetRange(r.Selectors(), kv.RangeOptions{Limit: 1}).Wait(t.Context())
				require.NoError(t, err)
				if len(rows) > 0 {
					want[fmt.Sprint(at)] = string(rows[0].Key)
				}
				at = end + random.IntN(5)
			}
			random.Shuffle(len(ranges), func(i, j int) { ranges[i], ranges[j] = ranges[j], ranges[i] })
			before, n := db.Counters().Reads, int64(len(ranges))
			w := q.txn(t.Context(), tx)
			begun := db.Counters().Reads - before
			require.NoError(t, w.eachFirst(ranges, func(key []byte, where string) {
				require.Empty(t, got[where])
				got[where] = string(key)
			}))
			require.Equal(t, want, got)
			reads := db.Counters().Reads - before - begun
			require.LessOrEqual(t, reads, 2*n)
			if keys == 0 {
				require.Equal(t, int64(1), reads)
			}
			return nil
		})
		require.NoError(t, err)
		report, err := q.Admin().Check(t.Context(), CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, db.Close())
	}
}

// TestLeftRequestIsRemembered: a handle may have left a request in a commit of unknown outcome, and then clears another
// request. It passes on the wakes of the first for as long as that may last.
func TestLeftRequestIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &Queue{}
		mayBeLeft(q)
		cleared := goneFor{wants: map[want]bool{{one: true, of: "A"}: true}, until: time.Now().Add(time.Second)}
		q.staging.set(staged{past: &cleared})
		require.Equal(t, requestLife, q.staging.goneLeft())
		require.True(t, q.staging.past.any)
		require.Len(t, q.staging.past.wants, 1)
	})
}
