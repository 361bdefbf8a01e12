package fault_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
)

// open returns an engine and the same engine under p.
func open(t *testing.T, p *fault.Plan) (engine, faulty kv.DB) {
	engine = embedded.OpenMemory(embedded.Options{})
	faulty = fault.Wrap(engine, p)
	t.Cleanup(func() { require.NoError(t, faulty.Close()) })
	return engine, faulty
}

func begin(t *testing.T, db kv.DB) kv.ManagedTx {
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	t.Cleanup(tx.Cancel)
	return tx
}

// wait awaits f, which must end by itself.
func wait[T any](t *testing.T, f kv.Future[T]) (T, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v, err := f.Wait(ctx)
	require.NoError(t, ctx.Err())
	return v, err
}

func commit(t *testing.T, tx kv.ManagedTx) error {
	_, err := wait(t, tx.Commit())
	return err
}

func requireCode(t *testing.T, code int, err error) {
	t.Helper()
	require.ErrorIs(t, err, &kv.Error{Code: code})
}

// value reads key in a transaction of its own.
func value(t *testing.T, db kv.DB, key string) string {
	v, err := wait(t, begin(t, db).Get([]byte(key)))
	require.NoError(t, err)
	return string(v)
}

func set(t *testing.T, db kv.DB, key, value string) error {
	tx := begin(t, db)
	tx.Set([]byte(key), []byte(value))
	return commit(t, tx)
}

// Each fault of the commit has its code, and the commit is applied or not, as the kind says. OnError restarts the
// transaction exactly if FoundationDB retries that code.
func TestCommitFaults(t *testing.T) {
	for _, c := range []struct {
		kind      fault.Kind
		code      int
		applied   bool
		retryable bool
	}{
		{fault.Conflict, kv.CodeNotCommitted, false, true},
		{fault.UnknownApplied, kv.CodeCommitUnknownResult, true, true},
		{fault.UnknownLost, kv.CodeCommitUnknownResult, false, true},
		{fault.CommitTooOld, kv.CodeTransactionTooOld, false, true},
		{fault.MemoryLimit, kv.CodeCommitProxyMemoryLimit, false, true},
		{fault.TimedOutLate, kv.CodeTransactionTimedOut, false, false},
		{fault.TimedOutLost, kv.CodeTransactionTimedOut, false, false},
		{fault.VersionChangedLost, kv.CodeClusterVersionChanged, false, true},
		{fault.CommitFailed, kv.CodeIOError, false, false},
		{fault.UnnamedApplied, 4100, true, false},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			plan := &fault.Plan{}
			engine, db := open(t, plan)
			plan.ForceNext(c.kind)

			tx := begin(t, db)
			tx.Set([]byte("a"), []byte("1"))
			err := commit(t, tx)
			requireCode(t, c.code, err)
			version, versionErr := tx.CommittedVersion()
			require.NoError(t, versionErr)
			require.Equal(t, int64(-1), version)
			require.Equal(t, c.applied, value(t, engine, "a") == "1")
			require.Equal(t, map[fault.Kind]int{c.kind: 1}, plan.Counts())

			_, again := wait(t, tx.OnError(err))
			if !c.retryable {
				requireCode(t, c.code, again)
				return
			}
			require.NoError(t, again)
			tx.Set([]byte("b"), []byte("2"))
			require.NoError(t, commit(t, tx))
			require.Equal(t, "2", value(t, engine, "b"))
			require.Equal(t, c.applied, value(t, engine, "a") == "1")
		})
	}
}

// Between a failed commit and OnError a transaction answers as FoundationDB's does, and Reset makes it new.
func TestUseAfterCommitFault(t *testing.T) {
	for kind, code := range map[fault.Kind]int{
		fault.Conflict:     kv.CodeUsedDuringCommit,
		fault.TimedOutLate: kv.CodeTransactionTimedOut,

		fault.VersionChangedLate: kv.CodeUsedDuringCommit,
		fault.VersionChangedLost: kv.CodeUsedDuringCommit,
	} {
		plan := &fault.Plan{}
		engine, db := open(t, plan)
		plan.ForceNext(kind)
		tx := begin(t, db)
		tx.Set([]byte("a"), nil)
		require.Error(t, commit(t, tx))
		_, err := wait(t, tx.Get([]byte("a")))
		requireCode(t, code, err)
		requireCode(t, code, commit(t, tx))

		tx.Reset()
		tx.Set([]byte("b"), []byte("2"))
		require.NoError(t, commit(t, tx))
		require.Equal(t, "2", value(t, engine, "b"))
	}
}

// An unknown-applied commit that the engine itself refuses has the engine's error, and no fault is counted.
func TestUnknownAppliedRefused(t *testing.T) {
	plan := &fault.Plan{}
	engine, db := open(t, plan)
	tx := begin(t, db)
	_, err := wait(t, tx.Get([]byte("a")))
	require.NoError(t, err)
	require.NoError(t, set(t, engine, "a", "other"))
	plan.ForceNext(fault.UnknownApplied)
	tx.Set([]byte("a"), []byte("mine"))
	requireCode(t, kv.CodeNotCommitted, commit(t, tx))
	require.Equal(t, "other", value(t, engine, "a"))
	require.Empty(t, plan.Counts())
}

// gated is an engine whose commits end only when the gate opens.
type gated struct {
	kv.DB
	gate chan struct{}
}

type gatedTx struct {
	kv.ManagedTx
	gate chan struct{}
}

type gatedFuture struct {
	kv.Future[struct{}]
	gate chan struct{}
}

func (g gated) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := g.DB.Begin(o)
	return gatedTx{tx, g.gate}, err
}

func (g gatedTx) Commit() kv.Future[struct{}] { return gatedFuture{g.ManagedTx.Commit(), g.gate} }

func (g gatedFuture) Ready() bool {
	select {
	case <-g.gate:
		return g.Future.Ready()
	default:
		return false
	}
}

func (g gatedFuture) Wait(ctx context.Context) (struct{}, error) {
	select {
	case <-g.gate:
		return g.Future.Wait(ctx)
	case <-ctx.Done():
		return struct{}{}, context.Cause(ctx)
	}
}

// An unknown result is not reported before the real commit has ended: that is what 1021 promises.
func TestUnknownAppliedWaits(t *testing.T) {
	plan := &fault.Plan{}
	engine, _ := open(t, &fault.Plan{})
	gate := make(chan struct{})
	tx := begin(t, fault.Wrap(gated{engine, gate}, plan))
	plan.ForceNext(fault.UnknownApplied)
	tx.Set([]byte("a"), []byte("1"))
	f := tx.Commit()
	require.False(t, f.Ready())
	require.Empty(t, plan.Counts())
	gone, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("gone")
	cancel(cause)
	_, err := f.Wait(gone)
	require.ErrorIs(t, err, cause)

	close(gate)
	_, err = wait(t, f)
	requireCode(t, kv.CodeCommitUnknownResult, err)
	_, err = wait(t, f)
	requireCode(t, kv.CodeCommitUnknownResult, err)
	require.Equal(t, map[fault.Kind]int{fault.UnknownApplied: 1}, plan.Counts())
}

// A failed read, of any form, fails the commit with the same error until OnError.
func TestReadFaults(t *testing.T) {
	reads := map[string]func(kv.ReadTx) error{
		"Get": func(r kv.ReadTx) error { _, err := r.Get([]byte("a")).Wait(context.Background()); return err },
		"GetKey": func(r kv.ReadTx) error {
			_, err := r.GetKey(kv.LastLessThan([]byte("z"))).Wait(context.Background())
			return err
		},
		"GetRange": func(r kv.ReadTx) error {
			_, err := r.GetRange(kv.PrefixRange([]byte("a")).Selectors(), kv.RangeOptions{}).Wait(context.Background())
			return err
		},
	}
	for kind, code := range map[fault.Kind]int{
		fault.ReadTooOld:    kv.CodeTransactionTooOld,
		fault.FutureVersion: kv.CodeFutureVersion,
		fault.ProcessBehind: kv.CodeProcessBehind,
	} {
		for name, read := range reads {
			for _, snapshot := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s snapshot=%t", kind, name, snapshot), func(t *testing.T) {
					plan := &fault.Plan{}
					engine, db := open(t, plan)
					tx := begin(t, db)
					view := func() kv.ReadTx {
						if snapshot {
							return tx.Snapshot()
						}
						return tx
					}
					plan.Force(kind, 2)
					require.NoError(t, read(view()))
					requireCode(t, code, read(view()))
					require.NoError(t, read(view()))
					tx.Set([]byte("a"), []byte("1"))
					err := commit(t, tx)
					requireCode(t, code, err)
					require.Empty(t, value(t, engine, "a"))
					require.Equal(t, map[fault.Kind]int{kind: 1}, plan.Counts())

					_, err = wait(t, tx.OnError(err))
					require.NoError(t, err)
					require.NoError(t, read(view()))
					tx.Set([]byte("a"), []byte("2"))
					require.NoError(t, commit(t, tx))
					require.Equal(t, "2", value(t, engine, "a"))
				})
			}
		}
	}
}

// Without a read version nothing of the attempt works, whichever call asks for it first.
func TestReadVersionFault(t *testing.T) {
	firsts := map[string]func(kv.ManagedTx) error{
		"ReadVersion": func(tx kv.ManagedTx) error { _, err := wait(t, tx.ReadVersion()); return err },
		"Get":         func(tx kv.ManagedTx) error { _, err := wait(t, tx.Get([]byte("a"))); return err },
		"Watch":       func(tx kv.ManagedTx) error { _, err := wait(t, tx.Watch([]byte("a"))); return err },
		"blind Commit": func(tx kv.ManagedTx) error {
			tx.Set([]byte("a"), nil)
			return commit(t, tx)
		},
	}
	for kind, code := range map[fault.Kind]int{
		fault.ReadVersionFailed: kv.CodeGRVProxyMemoryLimit,
		fault.Throttled:         kv.CodeTagThrottled,
	} {
		for name, first := range firsts {
			t.Run(fmt.Sprintf("%s %s", kind, name), func(t *testing.T) {
				plan := &fault.Plan{}
				_, db := open(t, plan)
				plan.ForceNext(kind)
				tx := begin(t, db)
				err := first(tx)
				requireCode(t, code, err)
				if name != "blind Commit" {
					_, err := wait(t, tx.Snapshot().Get([]byte("b")))
					requireCode(t, code, err)
					_, err = wait(t, tx.ReadVersion())
					requireCode(t, code, err)
					requireCode(t, code, commit(t, tx))
				}
				_, err = wait(t, tx.OnError(err))
				require.NoError(t, err)
				tx.Set([]byte("a"), nil)
				require.NoError(t, commit(t, tx))
				require.Equal(t, map[fault.Kind]int{kind: 1}, plan.Counts())
			})
		}
	}
}

// A transaction that sets its read version asks for none, so none can fail.
func TestReadVersionSet(t *testing.T) {
	plan := &fault.Plan{}
	engine, db := open(t, plan)
	version, err := wait(t, begin(t, engine).ReadVersion())
	require.NoError(t, err)
	plan.ForceNext(fault.ReadVersionFailed)
	tx := begin(t, db)
	tx.SetReadVersion(version)
	_, err = wait(t, tx.Get([]byte("a")))
	require.NoError(t, err)
	require.Empty(t, plan.Counts())
}

// The commit of a transaction that wrote nothing goes nowhere: it meets no fault and is not counted.
func TestReadOnlyCommit(t *testing.T) {
	plan := &fault.Plan{}
	_, db := open(t, plan)
	plan.Force(fault.Conflict, 1)
	tx := begin(t, db)
	_, err := wait(t, tx.Get([]byte("a")))
	require.NoError(t, err)
	require.NoError(t, tx.AddReadConflictRange(kv.SingleKey([]byte("b"))))
	require.NoError(t, commit(t, tx))
	requireCode(t, kv.CodeNotCommitted, set(t, db, "a", "1"))

	// A write conflict range alone makes a transaction that writes.
	plan.ForceNext(fault.Conflict)
	tx = begin(t, db)
	require.NoError(t, tx.AddWriteConflictRange(kv.SingleKey([]byte("b"))))
	requireCode(t, kv.CodeNotCommitted, commit(t, tx))
}

// A spurious watch fires though the value is what it was, and not before its transaction has committed.
func TestWatchSpurious(t *testing.T) {
	plan := &fault.Plan{}
	_, db := open(t, plan)
	plan.ForceNext(fault.WatchSpurious)
	tx := begin(t, db)
	w := tx.Watch([]byte("a"))
	other := tx.Watch([]byte("b"))
	require.False(t, w.Ready())
	require.NoError(t, commit(t, tx))
	_, err := wait(t, w)
	require.NoError(t, err)
	require.True(t, w.Ready())
	require.False(t, other.Ready())
	other.Cancel()
	_, err = wait(t, other)
	requireCode(t, kv.CodeOperationCancelled, err)
	require.Equal(t, map[fault.Kind]int{fault.WatchSpurious: 1}, plan.Counts())
}

// A watch without a fault fires when the value changes.
func TestWatchReal(t *testing.T) {
	engine, db := open(t, &fault.Plan{})
	tx := begin(t, db)
	w := tx.Watch([]byte("a"))
	require.NoError(t, commit(t, tx))
	require.False(t, w.Ready())
	require.NoError(t, set(t, engine, "a", "1"))
	_, err := wait(t, w)
	require.NoError(t, err)
}

// A watch that fails leaves its transaction whole.
func TestWatchError(t *testing.T) {
	plan := &fault.Plan{}
	engine, db := open(t, plan)
	plan.ForceNext(fault.WatchError)
	tx := begin(t, db)
	_, err := wait(t, tx.Watch([]byte("a")))
	requireCode(t, kv.CodeTooManyWatches, err)
	tx.Set([]byte("b"), []byte("1"))
	require.NoError(t, commit(t, tx))
	require.Equal(t, "1", value(t, engine, "b"))
}

// Watches and the versionstamp share the fate of their commit, also of one that was applied and lost its answer.
func TestFuturesOfFailedCommit(t *testing.T) {
	for kind, code := range map[fault.Kind]int{
		fault.Conflict:       kv.CodeNotCommitted,
		fault.UnknownApplied: kv.CodeCommitUnknownResult,
		fault.TimedOutLate:   kv.CodeTransactionTimedOut,

		fault.VersionChangedLate: kv.CodeClusterVersionChanged,
		fault.VersionChangedLost: kv.CodeClusterVersionChanged,
	} {
		plan := &fault.Plan{}
		_, db := open(t, plan)
		plan.ForceNext(kind)
		tx := begin(t, db)
		w := tx.Watch([]byte("a"))
		tx.Set([]byte("b"), nil)
		stamp := tx.Versionstamp()
		requireCode(t, code, commit(t, tx))
		_, err := wait(t, w)
		requireCode(t, code, err)
		_, err = wait(t, stamp)
		requireCode(t, kv.CodeTransactionInvalidVer, err)
	}
}

// A stamp without a fault is the engine's.
func TestVersionstamp(t *testing.T) {
	_, db := open(t, &fault.Plan{})
	tx := begin(t, db)
	tx.Set([]byte("a"), nil)
	f := tx.Versionstamp()
	require.NoError(t, commit(t, tx))
	stamp, err := wait(t, f)
	require.NoError(t, err)
	version, err := tx.CommittedVersion()
	require.NoError(t, err)
	require.Equal(t, uint64(version), binary.BigEndian.Uint64(stamp[:]))
}

// A late commit lands at Land, and its caller was told that it might.
func TestTimedOutLate(t *testing.T) {
	plan := &fault.Plan{}
	engine, db := open(t, plan)
	plan.ForceNext(fault.TimedOutLate)
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set([]byte("a"), []byte("late"))
		return nil
	})
	requireCode(t, kv.CodeTransactionTimedOut, err)
	var e *kv.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.InFlight)
	require.Empty(t, value(t, engine, "a"))
	require.NoError(t, plan.Land(t.Context()))
	require.Equal(t, "late", value(t, engine, "a"))
}

// Without Land a late commit goes ahead of one of the next four, and it never overwrites what it conflicts with.
func TestTimedOutLateOvertaken(t *testing.T) {
	for seed := range uint64(8) {
		plan := &fault.Plan{Seed: seed}
		engine, db := open(t, plan)
		plan.ForceNext(fault.TimedOutLate)
		requireCode(t, kv.CodeTransactionTimedOut, set(t, db, "a", "late"))

		plan.ForceNext(fault.TimedOutLate)
		guarded := begin(t, db)
		_, err := wait(t, guarded.Get([]byte("c")))
		require.NoError(t, err)
		guarded.Set([]byte("c"), []byte("late"))
		requireCode(t, kv.CodeTransactionTimedOut, commit(t, guarded))
		require.NoError(t, set(t, engine, "c", "other"))

		for range 4 {
			require.NoError(t, set(t, db, "b", "next"))
		}
		require.Equal(t, "late", value(t, engine, "a"), "%s", plan)
		require.NoError(t, plan.Land(t.Context()))
		require.Equal(t, "other", value(t, engine, "c"), "%s", plan)
	}
}

// kept is an engine that outlives the wrapper's Close.
type kept struct{ kv.DB }

func (kept) Close() error { return nil }

// Close waits for the late commits; one that was lost stays lost.
func TestCloseLandsLate(t *testing.T) {
	plan := &fault.Plan{}
	engine, _ := open(t, &fault.Plan{})
	db := fault.Wrap(kept{engine}, plan)
	plan.Force(fault.TimedOutLate, 1)
	plan.Force(fault.TimedOutLost, 2)
	requireCode(t, kv.CodeTransactionTimedOut, set(t, db, "a", "late"))
	requireCode(t, kv.CodeTransactionTimedOut, set(t, db, "b", "lost"))
	require.NoError(t, db.Close())
	require.Equal(t, "late", value(t, engine, "a"))
	require.Empty(t, value(t, engine, "b"))
}

// TestLandGivesUp: a Land whose context ends leaves the late commits that are still under way to the next Land, and to
// Close, which waits for them.
func TestLandGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		engine, err := embedded.OpenDisk(t.TempDir(), embedded.Options{
			Exclusive: true, Hooks: embedded.Hooks{Apply: func() error { <-gate; return nil }},
		})
		require.NoError(t, err)
		plan := &fault.Plan{}
		db := fault.Wrap(kept{engine}, plan)
		for _, key := range []string{"a", "b"} {
			plan.ForceNext(fault.TimedOutLate)
			requireCode(t, kv.CodeTransactionTimedOut, set(t, db, key, "late"))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 {
			require.ErrorIs(t, plan.Land(ended), context.Canceled)
		}
		closed := make(chan error, 1)
		go func() { closed <- db.Close() }()
		synctest.Wait()
		require.Empty(t, closed, "it does not wait")
		open()
		require.NoError(t, <-closed)
		require.Equal(t, "late", value(t, engine, "a"))
		require.Equal(t, "late", value(t, engine, "b"))
		require.NoError(t, engine.Close())
	})
}

// The hook sees each writing commit, chooses its fault, and can act between the body and the commit.
func TestOnCommit(t *testing.T) {
	var engine kv.DB
	var seen []int
	plan := &fault.Plan{OnCommit: func(n int, tx kv.Tx) fault.Kind {
		seen = append(seen, n)
		switch n {
		case 1:
			require.NoError(t, tx.AddReadConflictRange(kv.SingleKey([]byte("a"))))
			_, err := wait(t, tx.Get([]byte("x")))
			require.NoError(t, err)
			require.NoError(t, set(t, engine, "x", "between"))
		case 2:
			return fault.UnknownApplied
		}
		return fault.None
	}}
	engine, db := open(t, plan)
	requireCode(t, kv.CodeNotCommitted, set(t, db, "a", "1"))
	requireCode(t, kv.CodeCommitUnknownResult, set(t, db, "a", "2"))
	plan.ForceNext(fault.Conflict)
	requireCode(t, kv.CodeNotCommitted, set(t, db, "a", "3"))
	require.NoError(t, set(t, db, "b", "4"))
	require.Equal(t, []int{1, 2, 4}, seen)
	require.Equal(t, "2", value(t, engine, "a"))
}

// The hook of a plan above another sees no commit that fails without coming to the engine, by a fault of a read or of
// the read version.
func TestOnCommitAbove(t *testing.T) {
	below := &fault.Plan{}
	engine, faulty := open(t, below)
	seen := 0
	db := fault.Wrap(faulty, &fault.Plan{OnCommit: func(int, kv.Tx) fault.Kind { seen++; return fault.None }})

	tx := begin(t, db)
	below.ForceNext(fault.ProcessBehind)
	tx.Get([]byte("a")) // without a wait for its error
	tx.Set([]byte("a"), []byte("1"))
	requireCode(t, kv.CodeProcessBehind, commit(t, tx))
	below.ForceNext(fault.Throttled)
	require.Error(t, set(t, db, "a", "2"))
	require.Zero(t, seen)

	require.NoError(t, set(t, db, "a", "3"))
	require.Equal(t, 1, seen)
	require.Equal(t, "3", value(t, engine, "a"))
}

// ForceNext queues: two of them hit the next two calls, whatever was counted before.
func TestForceNext(t *testing.T) {
	plan := &fault.Plan{}
	_, db := open(t, plan)
	require.NoError(t, set(t, db, "a", "1"))
	plan.ForceNext(fault.Conflict)
	plan.ForceNext(fault.UnknownLost)
	requireCode(t, kv.CodeNotCommitted, set(t, db, "a", "2"))
	requireCode(t, kv.CodeCommitUnknownResult, set(t, db, "a", "3"))
	require.NoError(t, set(t, db, "a", "4"))
	require.Panics(t, func() { plan.Force(fault.None, 1) })
}

// increment adds one to a counter exactly once, by a receipt that a retry after an unknown result reads.
func increment(ctx context.Context, db kv.DB, id int) error {
	receipt := fmt.Appendf(nil, "receipt/%06d", id)
	_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
		if a.MaybeCommitted {
			if done, err := tx.Get(receipt).Wait(ctx); err != nil || done != nil {
				return err
			}
		}
		v, err := tx.Get([]byte("n")).Wait(ctx)
		if err != nil {
			return err
		}
		n := uint64(0)
		if v != nil {
			n = binary.LittleEndian.Uint64(v)
		}
		tx.Set([]byte("n"), binary.LittleEndian.AppendUint64(nil, n+1))
		tx.Set(receipt, nil)
		return nil
	})
	return err
}

func counter(t *testing.T, db kv.DB) int {
	v, err := wait(t, begin(t, db).Get([]byte("n")))
	require.NoError(t, err)
	return int(binary.LittleEndian.Uint64(v))
}

// Under the default plan a correct body is applied exactly once though every important fault is met, and the same
// seed meets the same faults again.
func TestDefault(t *testing.T) {
	const increments = 150
	run := func(seed uint64) *fault.Plan {
		plan := fault.Default(seed)
		engine, db := open(t, plan)
		for id := range increments {
			require.NoError(t, increment(t.Context(), db, id), "%s", plan)
		}
		require.Equal(t, increments, counter(t, engine), "%s", plan)
		return plan
	}
	first := run(1)
	for _, kind := range []fault.Kind{fault.Conflict, fault.UnknownApplied, fault.UnknownLost} {
		require.Positive(t, first.Counts()[kind], "%s", first)
	}
	require.Equal(t, first.String(), run(1).String())
	require.NotEqual(t, first.Counts(), run(2).Counts())
}

// The chances are those of the plan: every kind is met about as often as it says. The seed is fixed.
func TestChances(t *testing.T) {
	plan := fault.Default(1)
	_, db := open(t, plan)
	const rounds = 2000
	for range rounds {
		tx := begin(t, db)
		w := tx.Watch([]byte("w"))
		tx.Get([]byte("a"))
		tx.Set([]byte("a"), nil)
		tx.Commit().Wait(t.Context())
		w.Cancel()
		tx.Cancel()
	}
	counts := plan.Counts()
	for kind, chance := range plan.Chances {
		// About four standard deviations; some commits are never reached, for a read before them failed.
		require.InDelta(t, chance*rounds, counts[kind], 10+6*chance*100, "%s of %s", kind, plan)
	}
	require.Len(t, counts, len(plan.Chances))
}

// A plan and its database serve many goroutines at once, and nothing is lost or doubled.
func TestConcurrent(t *testing.T) {
	plan := fault.Default(1)
	engine, db := open(t, plan)
	const goroutines, each = 8, 10
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		all.Go(func() {
			for i := range each {
				errs[g] = errors.Join(errs[g], increment(t.Context(), db, g*each+i))
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...), "%s", plan)
	require.Equal(t, goroutines*each, counter(t, engine), "%s", plan)
}

// A plan's text has the seed, the chances, and each fault with the number of its call.
func TestPlanString(t *testing.T) {
	plan := &fault.Plan{Seed: 7, Chances: map[fault.Kind]float64{fault.TimedOutLost: 0.0, fault.ReadTooOld: 1}}
	_, db := open(t, plan)
	require.Equal(t, "fault plan, seed 7; read-too-old 100% timed-out-lost 0%; 0 read versions, 0 reads, 0 commits,"+
		" 0 watches; injected: nothing", plan.String())
	plan.ForceNext(fault.Conflict)
	requireCode(t, kv.CodeNotCommitted, set(t, db, "a", ""))
	_, err := wait(t, begin(t, db).Get([]byte("a")))
	requireCode(t, kv.CodeTransactionTooOld, err)
	require.Equal(t, "fault plan, seed 7; read-too-old 100% timed-out-lost 0%; 2 read versions, 1 reads, 1 commits,"+
		" 0 watches; injected: conflict@commit 1 read-too-old@read 1", plan.String())
}

// The conflict ranges are the engine's, also in the transaction that follows a late one.
func TestConflictRanges(t *testing.T) {
	plan := &fault.Plan{}
	_, db := open(t, plan)
	tx := begin(t, db)
	tx.Get([]byte("a"))
	tx.Set([]byte("b"), nil)
	reporter, ok := tx.(kv.ConflictReporter)
	require.True(t, ok)
	read, write, err := reporter.ConflictRanges(t.Context())
	require.NoError(t, err)
	require.Equal(t, []kv.KeyRange{kv.SingleKey([]byte("a"))}, read)
	require.Equal(t, []kv.KeyRange{kv.SingleKey([]byte("b"))}, write)

	plan.ForceNext(fault.TimedOutLate)
	require.Error(t, commit(t, tx))
	tx.Reset()
	tx.Clear([]byte("c"))
	read, write, err = reporter.ConflictRanges(t.Context())
	require.NoError(t, err)
	require.Empty(t, read)
	require.Equal(t, []kv.KeyRange{kv.SingleKey([]byte("c"))}, write)
}

// plain hides that an engine reports conflict ranges.
type plain struct{ kv.DB }

type plainTx struct{ kv.ManagedTx }

func (p plain) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := p.DB.Begin(o)
	return plainTx{tx}, err
}

// An engine that does not report conflict ranges does not begin to.
func TestNoConflictRanges(t *testing.T) {
	engine, _ := open(t, &fault.Plan{})
	_, ok := begin(t, fault.Wrap(plain{engine}, &fault.Plan{})).(kv.ConflictReporter)
	require.False(t, ok)
}

// Every write reaches the engine and makes the commit one that can meet a fault.
func TestWrites(t *testing.T) {
	for name, write := range map[string]func(kv.Tx){
		"Set":        func(tx kv.Tx) { tx.Set([]byte("a"), []byte("2")) },
		"Clear":      func(tx kv.Tx) { tx.Clear([]byte("a")) },
		"ClearRange": func(tx kv.Tx) { tx.ClearRange(kv.SingleKey([]byte("a"))) },
		"Atomic":     func(tx kv.Tx) { tx.Atomic(kv.Max, []byte("a"), []byte("2")) },
	} {
		t.Run(name, func(t *testing.T) {
			plan := &fault.Plan{}
			engine, db := open(t, plan)
			require.NoError(t, set(t, engine, "a", "1"))
			plan.ForceNext(fault.Conflict)
			tx := begin(t, db)
			write(tx)
			err := commit(t, tx)
			requireCode(t, kv.CodeNotCommitted, err)
			_, err = wait(t, tx.OnError(err))
			require.NoError(t, err)

			tx.NextWriteNoConflict()
			write(tx)
			_, conflicts, err := tx.(kv.ConflictReporter).ConflictRanges(t.Context())
			require.NoError(t, err)
			require.Empty(t, conflicts)
			size, err := wait(t, tx.ApproximateSize())
			require.NoError(t, err)
			require.Positive(t, size)
			require.NoError(t, commit(t, tx))
			require.NotEqual(t, "1", value(t, engine, "a"))
		})
	}
}

// A cancelled transaction answers 1025 and meets no faults.
func TestCancel(t *testing.T) {
	plan := &fault.Plan{Chances: map[fault.Kind]float64{fault.Conflict: 1, fault.ReadTooOld: 1}}
	_, db := open(t, plan)
	tx := begin(t, db)
	tx.Set([]byte("a"), nil)
	tx.Cancel()
	_, err := wait(t, tx.Get([]byte("a")))
	requireCode(t, kv.CodeTransactionCancelled, err)
	requireCode(t, kv.CodeTransactionCancelled, commit(t, tx))
	require.Empty(t, plan.Counts())
}

// UntilConflict ends a loop with its first conflict, unless an earlier attempt may have landed.
func TestUntilConflict(t *testing.T) {
	for _, c := range []struct {
		faults   []fault.Kind
		attempts int
		code     int
	}{
		{[]fault.Kind{fault.Conflict}, 1, kv.CodeNotCommitted},
		{[]fault.Kind{fault.CommitTooOld, fault.Conflict}, 2, kv.CodeNotCommitted},
		{[]fault.Kind{fault.UnknownLost, fault.Conflict}, 3, 0},
		{nil, 1, 0},
	} {
		plan := &fault.Plan{}
		for i, kind := range c.faults {
			plan.Force(kind, i+1)
		}
		_, db := open(t, plan)
		attempts := 0
		_, err := kv.Run(t.Context(), db, kv.TxOptions{UntilConflict: true}, func(tx kv.Tx, _ kv.Attempt) error {
			attempts++
			tx.Set([]byte("k"), nil)
			return nil
		})
		require.Equal(t, c.code, kv.Code(err), "%v", c.faults)
		require.Equal(t, c.attempts, attempts, "%v", c.faults)
		require.False(t, kv.MaybeCommitted(err))
	}
}
