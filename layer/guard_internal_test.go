package layer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/rec"
)

// Guards that a handle's own transactions have and no call of the public interface brings about alone. Each test names
// the guard without which it fails.

// interleaved is an engine that runs something before the next commit of a transaction that clears or sets, once.
type interleaved struct {
	kv.DB
	armed  atomic.Bool
	before func()
	gap    atomic.Int64 // how many versions to skip before the next commit
	// err, if not nil, is what that commit is said to have ended with, though it was applied. Then after runs, if set.
	err   error
	after func()
}

func (d *interleaved) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &interleavedTx{ManagedTx: tx, d: d}, err
}

type interleavedTx struct {
	kv.ManagedTx
	d     *interleaved
	wrote bool
}

func (t *interleavedTx) Set(key, value []byte) {
	t.wrote = true
	t.ManagedTx.Set(key, value)
}

func (t *interleavedTx) Clear(key []byte) {
	t.wrote = true
	t.ManagedTx.Clear(key)
}

func (t *interleavedTx) Commit() kv.Future[struct{}] {
	if !t.wrote || !t.d.armed.CompareAndSwap(true, false) {
		return t.ManagedTx.Commit()
	}
	if t.d.before != nil {
		t.d.before()
	}
	if t.d.err == nil {
		return t.ManagedTx.Commit()
	}
	if _, err := t.ManagedTx.Commit().Wait(context.Background()); err != nil {
		return kv.Done(struct{}{}, err)
	}
	if t.d.after != nil {
		t.d.after()
	}
	return kv.Done(struct{}{}, t.d.err)
}

// newInterleaved returns a queue on such an engine.
func newInterleaved(t *testing.T, config Config) (*interleaved, *Queue) {
	db := &interleaved{}
	db.DB = embedded.OpenMemory(embedded.Options{Hooks: embedded.Hooks{
		VersionGap: func() int64 { return db.gap.Swap(0) },
	}})
	t.Cleanup(func() { require.NoError(t, db.DB.Close()) })
	q, err := Create(t.Context(), db, nil, "q", Options{Test: &TestOptions{Seed: 1}, Config: config})
	require.NoError(t, err)
	return db, q
}

// put writes past the queue.
func (d *interleaved) put(t *testing.T, key, value []byte) {
	_, err := kv.Run(t.Context(), d.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set(key, value)
		return nil
	})
	require.NoError(t, err)
}

func (d *interleaved) get(t *testing.T, key []byte) (v []byte) {
	_, err := kv.Run(t.Context(), d.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		v, err = tx.Get(key).Wait(t.Context())
		return err
	})
	require.NoError(t, err)
	return v
}

// TestSweepKeepsWhatIsWrittenAnew: a sweep has found a row out of date and is about to clear it. Another transaction
// writes the row again, and the row stays. Guards dedup-sweep, purge-sweep, repeat-sweep, pace-sweep.
func TestSweepKeepsWhatIsWrittenAnew(t *testing.T) {
	long := (maxDedupWindow + 2*sweepSlack).Milliseconds()
	for _, c := range []struct {
		name  string
		key   func(q *Queue) []byte
		value func(ms, clock int64) []byte
		part  func(s *sweeper) error
	}{
		{"dedup", func(q *Queue) []byte {
			return q.keys.dedupKey(false, "", "x")
		}, func(ms, clock int64) []byte {
			return rec.DedupEntry{Group: "A", Index: 1, Random: uuid.UUID{1}, UntilMS: ms + 1, Clock: clock}.Pack()
		}, (*sweeper).dedup},
		{"purge", func(q *Queue) []byte { return q.keys.purged("A") }, func(ms, clock int64) []byte {
			return tuple.Tuple{clock, ms}.Pack()
		}, (*sweeper).purges},
		{"repeat", func(q *Queue) []byte { return q.keys.repeat("once") }, func(ms, clock int64) []byte {
			return tuple.Tuple{ms, "A", clock}.Pack()
		}, (*sweeper).repeats},
		{"pace", func(q *Queue) []byte { return q.keys.pace("A") }, func(ms, _ int64) []byte {
			return rec.Pace{US: ms * 1000, Of: 1}.Pack()
		}, (*sweeper).paces},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, q := newInterleaved(t, Config{MaxRate: Rate{Count: 1, Per: time.Second}})
			key, now := c.key(q), q.nowMS()
			db.put(t, key, c.value(now-long, -long*versionsPerMS))
			db.before = func() { db.put(t, key, c.value(now+time.Hour.Milliseconds(), 1)) }
			db.armed.Store(true)
			require.NoError(t, c.part(&sweeper{q: q, ctx: t.Context()}))
			require.False(t, db.armed.Load())
			require.NotNil(t, db.get(t, key))
			// Out of date, it goes.
			db.put(t, key, c.value(now-long, -long*versionsPerMS))
			require.NoError(t, c.part(&sweeper{q: q, ctx: t.Context()}))
			require.Nil(t, db.get(t, key))
		})
	}
}

// TestSweepSparesRenewedRequest: the request of a handle that was taken for dead, and renews it while it is swept,
// stays. Guard sweep-request.
func TestSweepSparesRenewedRequest(t *testing.T) {
	db, q := newInterleaved(t, Config{})
	key := q.keys.request(5, uuid.UUID{1})
	r := rec.Request{Owner: "other", Wants: 1, DeadlineMS: q.nowMS() - 1}
	db.put(t, key, r.Pack())
	db.before = func() {
		r.DeadlineMS += requestLife.Milliseconds()
		db.put(t, key, r.Pack())
	}
	db.armed.Store(true)
	require.NoError(t, q.sweepRequests(t.Context(), []string{""}))
	require.Equal(t, r.Pack(), db.get(t, key))
}

// TestRenewalOfSweptRequest: a request that is swept while its handle renews it does not come back, and the handle
// knows. Guard renew-request.
func TestRenewalOfSweptRequest(t *testing.T) {
	db, q := newInterleaved(t, Config{})
	key := q.keys.request(5, q.waitID)
	r := rec.Request{Owner: "own", Wants: 1, DeadlineMS: q.nowMS()}
	db.put(t, key, r.Pack())
	q.staging.set(staged{request: 5, deadlineMS: r.DeadlineMS})
	db.before = func() {
		_, err := kv.Run(t.Context(), db.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { tx.Clear(key); return nil })
		require.NoError(t, err)
	}
	db.armed.Store(true)
	require.NoError(t, q.renew(t.Context(), 5))
	require.Nil(t, db.get(t, key))
	index, _ := q.staging.requested()
	require.Zero(t, index)
}

// TestWithdrawalMeetsTakeover: a grant ends while it is returned, and another handle claims the group. The return does
// not end that claim. Guard withdraw-lock.
func TestWithdrawalMeetsTakeover(t *testing.T) {
	s := newStagedSteps(t)
	s.run(s.grant(""))
	err := s.overlap(s.withdrawn, func(tx kv.Tx) error {
		delay := rec.Holding{Kind: rec.KindDelay, Token: 1 << 50, EndMS: s.q.nowMS() + 60_000}
		tx.Set(s.q.keys.lock("A"), rec.HeldBy(delay, nil).Pack())
		tx.Set(s.q.keys.timer(s.q.nowMS()+60_000, "A"), rec.PackTimer(rec.KindDelay, 1))
		return nil
	})
	require.Equal(t, kv.CodeNotCommitted, kv.Code(err), "must conflict, got %v", err)
}

// TestDeadAreGrantedNothing: a request whose deadline has passed is given no group. Guard request-deadline.
func TestDeadAreGrantedNothing(t *testing.T) {
	s := newStagedSteps(t)
	s.run(func(tx kv.Tx) error {
		tx.Set(s.key, rec.Request{Owner: "own", Wants: 9, DeadlineMS: s.q.nowMS() - 1}.Pack())
		return nil
	})
	s.run(s.grant(""))
	claims, err := s.q.Receive(s.ctx, ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 2)
}

// TestTogetherOfUnknownOutcome (G3): operations that travelled together, and whose commit had an unknown outcome, are
// not done again one by one. A code that says nothing of the commit is such an outcome. Guard apart.
func TestTogetherOfUnknownOutcome(t *testing.T) {
	for _, failure := range []*kv.Error{
		{Code: kv.CodeTransactionTimedOut, InFlight: true}, {Code: 1022}, {Code: 4000}, {Code: 4100}, {Code: 9999},
	} {
		db, q := newInterleaved(t, Config{})
		var both []*operation
		for i := range 2 {
			msgs := []Message{{Group: fmt.Sprint(i)}}
			both = append(both, &operation{enqueue: &enqueuing{msgs: msgs, randoms: q.random.uuids(1)}})
		}
		db.err = failure
		db.armed.Store(true)
		q.run(t.Context(), both, 0)
		for i, o := range both {
			require.True(t, kv.MaybeCommitted(o.TxErr), "%v", o.TxErr)
			items, err := q.Peek(t.Context(), fmt.Sprint(i), 10, nil)
			require.NoError(t, err)
			require.Len(t, items, 1)
		}
	}
}

// TestTogetherInTime: the database answers no operation in the time of Options.Tx.Timeout. Operations that travel
// together end after this time, not after a multiple.
func TestTogetherInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, q := newInterleaved(t, Config{})
		q.db = fault.Wrap(db, &fault.Plan{Chances: map[fault.Kind]float64{fault.Throttled: 1}})
		q.opts.Tx.Timeout = 10 * time.Second
		var all []*operation
		for i := range 4 {
			msgs := []Message{{Group: fmt.Sprint(i)}}
			all = append(all, &operation{enqueue: &enqueuing{msgs: msgs, randoms: q.random.uuids(1)}})
		}
		begun := time.Now()
		q.run(t.Context(), all, 0)
		require.Less(t, time.Since(begun), 11*time.Second)
		for _, o := range all {
			require.Equal(t, kv.CodeTransactionTimedOut, kv.Code(o.TxErr), "%v", o.TxErr)
			require.False(t, kv.MaybeCommitted(o.TxErr))
		}
		q.db = db
		requireSound(t, q)
		require.NoError(t, q.Close(t.Context()))
	})
}

// TestTwinsOfOneAttempt: of receives with one receive id in the same transaction one claims, and all are given the
// same. Guard repeat-twin.
func TestTwinsOfOneAttempt(t *testing.T) {
	_, q := newInterleaved(t, Config{})
	var twins []*operation
	for i := range 3 {
		_, err := q.Enqueue(t.Context(), Message{Group: fmt.Sprint(i)})
		require.NoError(t, err)
		twins = append(twins, &operation{receive: &reception{o: ReceiveOptions{Max: 1, MaxGroups: 1, MaxBytes: 1, ReceiveID: "once"}}})
	}
	q.run(t.Context(), twins, 0)
	for _, o := range twins {
		require.NoError(t, o.TxErr)
		require.Len(t, o.receive.claims, 1)
		first, claim := *twins[0].receive.claims[0], *o.receive.claims[0]
		first.ends, claim.ends = time.Time{}, time.Time{} // by when each has read its claim
		require.Equal(t, first, claim)
	}
	s, err := q.Stats(t.Context(), StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, s.HeldGroups)
	require.NotSame(t, twins[0].receive.claims[0], twins[1].receive.claims[0], "each caller has its own")
}

// TestTwinsOfTwoTemplates: of receives with one receive id and different templates, in the same transaction, one
// claims, and both are given the same.
func TestTwinsOfTwoTemplates(t *testing.T) {
	_, q := newInterleaved(t, Config{Facets: []string{"state"}, Views: "state"})
	var twins []*operation
	for _, state := range []string{"NEW", "PAID"} {
		_, err := q.Enqueue(t.Context(), Message{Group: "A", Headers: map[string]string{"state": state}})
		require.NoError(t, err)
		r, err := q.reception(ReceiveOptions{
			Max: 1, MaxGroups: 1, MaxBytes: 1, Lease: MinLease, ReceiveID: "once", Where: Template{"state": state},
		})
		require.NoError(t, err)
		twins = append(twins, &operation{receive: r})
	}
	q.run(t.Context(), twins, 0)
	for _, o := range twins {
		require.NoError(t, o.TxErr)
		require.Len(t, o.receive.claims, 1)
		first, claim := *twins[0].receive.claims[0], *o.receive.claims[0]
		first.ends, claim.ends = time.Time{}, time.Time{} // by when each has read its claim
		require.Equal(t, first, claim)
		require.Equal(t, twins[0].receive.given(), o.receive.given())
	}
	report, err := q.Admin().Check(t.Context(), CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
}

// TestReloadPassesLateItem (trap 1): a claim whose commit was of unknown outcome is answered with its items, and not
// with one that has come between them since. Guard reload-exact.
func TestReloadPassesLateItem(t *testing.T) {
	db, q := newInterleaved(t, Config{})
	ctx := t.Context()
	_, err := q.Enqueue(ctx, Message{Group: "A", Body: []byte("a1")})
	require.NoError(t, err)
	late, err := db.DB.Begin(kv.TxOptions{})
	require.NoError(t, err)
	_, err = q.EnqueueTx(ctx, late, Message{Group: "A", Body: []byte("late")})
	require.NoError(t, err)
	_, err = q.Enqueue(ctx, Message{Group: "B"}, Message{Group: "B"})
	require.NoError(t, err)
	_, err = q.Enqueue(ctx, Message{Group: "A", Body: []byte("a2")})
	require.NoError(t, err)
	group := "A"
	claims, err := q.Receive(ctx, ReceiveOptions{Group: &group})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Len(t, claims[0].Items, 2)
	_, err = late.Commit().Wait(ctx)
	require.NoError(t, err)
	_, err = kv.Run(ctx, db.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		r := &reception{claims: claims}
		again, err := q.reload(ctx, tx, r.given(), &ReceiveOptions{})
		if err != nil {
			return err
		}
		require.Len(t, again, 1)
		require.Equal(t, claims[0].Items, again[0].Items)
		return nil
	})
	require.NoError(t, err)
}

// TestPurgeMeetsClaim (G2): a purge leaves the items of a group that is claimed during the purge. Guard purge-lock.
func TestPurgeMeetsClaim(t *testing.T) {
	db, q := newInterleaved(t, Config{})
	// A pause elsewhere: otherwise the purge first tries to remove all at once, and meets the claim there.
	_, err := q.Admin().PauseGroup(t.Context(), "paused", PauseOptions{})
	require.NoError(t, err)
	claims := meetClaim(t, db, q, func() error {
		_, err := q.Admin().Purge(t.Context(), PurgeOptions{All: true})
		return err
	})
	require.NoError(t, q.Ack(t.Context(), claims[0]))
}

// TestSweepOfOverdueMeetsClaim (G2): a sweep of overdue items leaves the items of a group that is claimed during the
// sweep. Guard age-lock.
func TestSweepOfOverdueMeetsClaim(t *testing.T) {
	db, q := newInterleaved(t, Config{})
	_, _, err := q.Admin().Configure(t.Context(), func(c *Config) { c.Retention = minRetention })
	require.NoError(t, err)
	ahead := time.Duration(0)
	now := q.opts.Now
	q.opts.Now = func() time.Time { return now().Add(ahead) }
	claims := meetClaim(t, db, q, func() error {
		ahead = time.Hour
		db.gap.Store(ahead.Microseconds())
		db.put(t, []byte{0xfe}, nil) // from here on the versions are an hour later, too
		return (&sweeper{q: q, ctx: t.Context()}).overdue()
	})
	require.NoError(t, q.Ack(t.Context(), claims[0]))
}

// meetClaim runs something while a group of two items is claimed, by a handle whose clock stands, and returns the claim.
func meetClaim(t *testing.T, db *interleaved, q *Queue, run func() error) (claims []*Claim) {
	other, err := Open(t.Context(), db.DB, nil, "q", Options{Test: &TestOptions{Seed: 2}})
	require.NoError(t, err)
	_, err = q.Enqueue(t.Context(), Message{Group: "A"}, Message{Group: "A"})
	require.NoError(t, err)
	db.before = func() {
		claims, err = other.Receive(t.Context(), ReceiveOptions{Lease: MaxLease})
		require.NoError(t, err)
		require.Len(t, claims, 1)
	}
	db.armed.Store(true)
	require.NoError(t, run())
	require.False(t, db.armed.Load())
	require.Len(t, claims[0].Items, 2)
	items, err := q.Peek(t.Context(), "A", 10, nil)
	require.NoError(t, err)
	require.Len(t, items, 2)
	return claims
}

// TestTurnsThatEndTheWait: receives that wait go on after a turn that has failed, but not if the queue is gone, and not
// if the turn may have claimed.
func TestTurnsThatEndTheWait(t *testing.T) {
	for err, goesOn := range map[error]bool{
		&kv.Error{Code: kv.CodeTransactionTimedOut}: true, errors.New("no database"): true,
		fmt.Errorf("open: %w", ErrNoQueue): false, &kv.Error{Code: kv.CodeCommitUnknownResult}: false,
		&kv.Error{Code: kv.CodeTransactionTimedOut, InFlight: true}: false,
	} {
		require.Equal(t, goesOn, mayRecover(err), "%v", err)
	}
}

// TestTogetherInBounds (trap 7): what travels together is bounded by messages and by bytes; what is alone may be
// larger. Guard batch-size.
func TestTogetherInBounds(t *testing.T) {
	for _, c := range []struct {
		operations, messages, size int
		first                      int // of them that travel in the first transaction
	}{{3, MaxBatch/2 + 1, 1, 1}, {3, 1, maxBytes/2 + 1, 1}, {4, 1, maxBytes / 4, 3}, {2, 1, maxBytes + 1, 1}, {5, 1, 1, 5}} {
		msgs := make([]Message, c.messages)
		for i := range msgs {
			msgs[i] = Message{Group: "A", Body: make([]byte, c.size)}
		}
		o := &operation{enqueue: &enqueuing{msgs: msgs, size: c.messages * (c.size + 1)}}
		total, first := o.Size(), 1
		for ; first < c.operations && !total.Plus(o.Size()).Exceeds(mostTogether()); first++ {
			total = total.Plus(o.Size())
		}
		require.Equal(t, c.first, first, "%+v", c)
	}
}
