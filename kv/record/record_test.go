package record_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
)

func open(t testing.TB) kv.DB {
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// run runs body and waits for all reads that it started.
func run(t testing.TB, db kv.DB, body func(tx kv.Tx)) {
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		body(tx)
		return nil
	})
	require.NoError(t, err)
}

// key is a key of the tests, as FoundationDB's tuples make them.
func key(elems ...any) []byte { return tuple.Append(nil, elems...) }

// printKey shows a key as its tuple, or as fdbcli does.
func printKey(b []byte) string {
	if t, err := tuple.Unpack(b); err == nil {
		return t.String()
	}
	return tuple.Printable(b)
}

// everything makes one call of each kind that a footprint shows.
func everything(t testing.TB, tx kv.Tx) {
	ctx := t.Context()
	items := kv.PrefixRange(key("item", "A"))
	_, err := tx.Get(key("lock", "A")).Wait(ctx)
	require.NoError(t, err)
	_, err = tx.Snapshot().Get(key("meta")).Wait(ctx)
	require.NoError(t, err)
	for _, s := range []kv.KeySelector{
		kv.LastLessThan(items.End), kv.LastLessOrEqual(items.End), kv.FirstGreaterThan(items.Begin),
		{Key: items.Begin, Offset: 3}, {Key: items.Begin, Offset: -2},
	} {
		_, err = tx.Snapshot().GetKey(s).Wait(ctx)
		require.NoError(t, err)
	}
	_, err = tx.Snapshot().GetRange(kv.PrefixRange(key("ready")).Selectors(), kv.RangeOptions{Limit: 8}).Wait(ctx)
	require.NoError(t, err)
	_, err = tx.GetRange(kv.Range{Begin: kv.FirstGreaterThan(key("timer")), End: kv.FirstGreaterOrEqual(key("timer", 9))},
		kv.RangeOptions{Reverse: true}).Wait(ctx)
	require.NoError(t, err)
	require.NoError(t, tx.AddReadConflictRange(kv.SingleKey(key("item", "A", 7))))
	require.NoError(t, tx.AddWriteConflictRange(kv.KeyRange{Begin: key("a"), End: key("b")}))
	tx.Set(key("item", "A", 9), []byte("second"))
	tx.Set(key("item", "A", 8), []byte("first"))
	tx.NextWriteNoConflict()
	tx.Clear(key("ready", 0, 8, "A"))
	tx.ClearRange(kv.KeyRange{Begin: key("part", 1), End: key("part", 2)})
	tx.Atomic(kv.Add, key("count", "enqueued"), []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

const footprint = `read           get      ("lock", "A")                       conflict
read           get      ("meta")                            snapshot
read           getkey   first>("item", "A")                 snapshot
read           getkey   first>=("item", "A")+2              snapshot
read           getkey   last<("item", "A")-2                snapshot
read           getkey   last<=\x02item\x00\x02A\x01         snapshot
read           getkey   last<\x02item\x00\x02A\x01          snapshot
read           range    [("ready"), \x02ready\x01)          snapshot limit 8
read           range    [first>("timer"), ("timer", 9))     conflict reverse
conflict-read  key      ("item", "A", 7)
conflict-write range    [("a"), ("b"))
set            ("item", "A", 8)
set            ("item", "A", 9)
clear          ("ready", 0, 8, "A")                         no-conflict
clear-range    [("part", 1), ("part", 2))
add            ("count", "enqueued")
`

// The bound behind ("timer") is that key and a zero byte, which reads as the tuple with a nil more.
const conflicts = `= read         key      ("item", "A", 7)
= read         key      ("lock", "A")
= read         range    [("timer", nil), ("timer", 9))
= write        range    [("a"), ("b"))
= write        key      ("count", "enqueued")
= write        key      ("item", "A", 8)
= write        key      ("item", "A", 9)
= write        range    [("part", 1), ("part", 2))
`

// A footprint shows each call, sorted, and then the conflict ranges that the engine reports.
func TestFootprint(t *testing.T) {
	db := record.Wrap(open(t))
	run(t, db, func(tx kv.Tx) { everything(t, tx) })
	log := db.Take()
	require.Len(t, log, 1)
	require.NoError(t, log[0].Err)
	require.Positive(t, log[0].Version)
	require.True(t, log[0].Reported)
	require.Equal(t, footprint+conflicts, record.Footprint(log[0], printKey))
	require.Empty(t, db.Take())
}

// A caller's own transaction is noted without a Recorder, and its lifecycle stays with the caller.
func TestWrapTx(t *testing.T) {
	tx, err := open(t).Begin(kv.TxOptions{})
	require.NoError(t, err)
	defer tx.Cancel()
	recorded := record.WrapTx(tx)
	everything(t, recorded)
	noted, err := recorded.Transaction(t.Context())
	require.NoError(t, err)
	require.Equal(t, footprint+conflicts, record.Footprint(noted, printKey))
	require.Equal(t, int64(5), recorded.Counters().Mutations)
	_, err = tx.Commit().Wait(t.Context())
	require.NoError(t, err)
}

// Every atomic operation has its name, and a versionstamped key is shown without the place of its stamp.
func TestFootprintAtomic(t *testing.T) {
	stamped, err := tuple.PackWithVersionstamp(nil, tuple.Tuple{tuple.IncompleteVersionstamp(1)})
	require.NoError(t, err)
	noted := record.Transaction{Ops: []record.Op{{Kind: record.Atomic, Mutation: kv.SetVersionstampedKey, Key: stamped}}}
	for _, m := range []kv.MutationType{
		kv.Add, kv.BitAnd, kv.BitOr, kv.BitXor, kv.AppendIfFits, kv.Max, kv.Min, kv.SetVersionstampedValue, kv.ByteMin,
		kv.ByteMax, kv.CompareAndClear, 99,
	} {
		noted.Ops = append(noted.Ops, record.Op{Kind: record.Atomic, Mutation: m, Key: key(int(m))})
	}
	noted.Ops = append(noted.Ops, record.Op{Kind: record.Watch, Key: key("wake")})
	require.Equal(t, `watch          ("wake")
add            (2)
and            (6)
or             (7)
xor            (8)
append-if-fits (9)
max            (12)
min            (13)
set-stamp      (15)
byte-min       (16)
byte-max       (17)
clear-if-equal (20)
atomic-99      (99)
set-stamped    (versionstamp(ffffffffffffffffffff:1))
`, record.Footprint(noted, printKey))
}

// The counters tell what was read and written, also without a log.
func TestCounters(t *testing.T) {
	engine := open(t)
	for _, db := range []*record.Recorder{record.Wrap(engine), record.WrapCounting(engine)} {
		run(t, db, func(tx kv.Tx) { tx.ClearRange(kv.KeyRange{End: []byte{0xff}}) })
		before := db.Counters()
		run(t, db, func(tx kv.Tx) {
			tx.Set([]byte("a1"), []byte("xyz"))
			tx.Set([]byte("a2"), nil)
			tx.Atomic(kv.Max, []byte("m"), []byte{1})
			tx.Clear([]byte("b"))
		})
		run(t, db, func(tx kv.Tx) {
			v, err := tx.Get([]byte("a1")).Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, "xyz", string(v))
			last := tx.Snapshot().GetKey(kv.LastLessThan([]byte("b")))
			for range 2 { // a future that is awaited again is counted once
				_, err = last.Wait(t.Context())
				require.NoError(t, err)
			}
			_, err = tx.GetRange(kv.PrefixRange([]byte("a")).Selectors(), kv.RangeOptions{}).Wait(t.Context())
			require.NoError(t, err)
			tx.Watch([]byte("w")).Cancel()
		})
		require.Equal(t, record.Counters{
			Reads: 3, KeyReads: 2, RangeReads: 1, Rows: 2, Watches: 1, BytesRead: 3 + 2 + 7,
			Mutations: 4, BytesWritten: 5 + 2 + 2 + 1, Commits: 2,
		}, db.Counters().Sub(before))
	}
}

// The counting Recorder keeps no log, so that it can run for long.
func TestCountingKeepsNoLog(t *testing.T) {
	db := record.WrapCounting(open(t))
	run(t, db, func(tx kv.Tx) { everything(t, tx) })
	require.Empty(t, db.Take())
	require.Equal(t, int64(9), db.Counters().Reads)
}

// Each attempt whose commit ended is in the log with its own calls, its number and its result.
func TestAttempts(t *testing.T) {
	plan := &fault.Plan{}
	plan.Force(fault.Conflict, 1)
	plan.Force(fault.UnknownApplied, 2)
	plan.Force(fault.ReadTooOld, 3)
	db := record.Wrap(fault.Wrap(open(t), plan))
	n := 0
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
		n = a.N
		if _, err := tx.Get([]byte("a")).Wait(t.Context()); err != nil {
			return err
		}
		tx.Set(fmt.Append(nil, a.N), nil)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	log := db.Take()
	require.Len(t, log, 3) // the third attempt failed at its read and never came to a commit
	for i, want := range []struct{ attempt, code int }{
		{0, kv.CodeNotCommitted}, {1, kv.CodeCommitUnknownResult}, {3, 0},
	} {
		require.Equal(t, want.attempt, log[i].Attempt)
		require.Equal(t, want.code, kv.Code(log[i].Err))
		require.Len(t, log[i].Ops, 2)
		require.Equal(t, fmt.Append(nil, want.attempt), log[i].Ops[1].Key)
		require.Equal(t, want.code == 0, log[i].Version > 0)
	}
	c := db.Counters()
	require.Equal(t, []int64{1, 1, 1}, []int64{c.Commits, c.Conflicts, c.Failures})
}

// A commit that its caller gave up on is noted as failed.
func TestAbandonedCommit(t *testing.T) {
	db := record.Wrap(open(t))
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	defer tx.Cancel()
	tx.Set([]byte("a"), nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("gone")
	cancel(cause)
	_, err = tx.Commit().Wait(ctx)
	log := db.Take()
	require.Len(t, log, 1)
	require.Equal(t, err, log[0].Err) // the engine may have been faster than the caller
}

// A transaction that was Reset begins a new log.
func TestReset(t *testing.T) {
	db := record.Wrap(open(t))
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	defer tx.Cancel()
	tx.NextWriteNoConflict()
	tx.Set([]byte("a"), nil)
	tx.NextWriteNoConflict()
	tx.Reset()
	tx.Set([]byte("b"), nil)
	_, err = tx.Commit().Wait(t.Context())
	require.NoError(t, err)
	log := db.Take()
	require.Len(t, log, 1)
	require.Equal(t, []record.Op{{Kind: record.Set, Key: []byte("b")}}, log[0].Ops)
}

// The recorded operations do not change with the caller's buffers.
func TestOpsAreCopies(t *testing.T) {
	db := record.Wrap(open(t))
	buffer := []byte("k")
	run(t, db, func(tx kv.Tx) {
		tx.Set(buffer, buffer)
		require.NoError(t, tx.AddReadConflictRange(kv.KeyRange{Begin: buffer, End: []byte("z")}))
		buffer[0] = 'x'
	})
	ops := db.Take()[0].Ops
	require.Equal(t, "k", string(ops[0].Key))
	require.Equal(t, "k", string(ops[0].Value))
	require.Equal(t, "k", string(ops[1].Keys.Begin))
}

// A Recorder over an engine that reports no conflict ranges reports none, and says so.
func TestNoConflictRanges(t *testing.T) {
	db := record.Wrap(plain{open(t)})
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	defer tx.Cancel()
	_, ok := tx.(kv.ConflictReporter)
	require.False(t, ok)
	run(t, db, func(tx kv.Tx) { everything(t, tx) })
	noted := db.Take()[0]
	require.False(t, noted.Reported)
	require.Equal(t, footprint, record.Footprint(noted, printKey))
}

// plain hides that an engine reports conflict ranges.
type plain struct{ kv.DB }

type plainTx struct{ kv.ManagedTx }

func (p plain) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := p.DB.Begin(o)
	return plainTx{tx}, err
}

// A Recorder and one transaction of it serve many goroutines at once.
func TestConcurrent(t *testing.T) {
	db := record.Wrap(open(t))
	const goroutines = 8
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		all.Go(func() {
			_, errs[g] = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				var inner sync.WaitGroup
				for i := range 4 {
					inner.Go(func() {
						tx.Set(key(g, i), nil)
						tx.Snapshot().Get(key(g, i))
					})
				}
				inner.Wait()
				return nil
			})
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	log := db.Take()
	require.Len(t, log, goroutines)
	for _, noted := range log {
		require.Len(t, noted.Ops, 8)
	}
	require.Equal(t, int64(4*goroutines), db.Counters().Mutations)
}

// The cost of counting and of logging for a transaction of one read and one write, compared with the engine alone.
func BenchmarkCounting(b *testing.B) {
	engine := open(b)
	for name, db := range map[string]kv.DB{"engine": engine, "counting": record.WrapCounting(engine), "logging": record.Wrap(engine)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				run(b, db, func(tx kv.Tx) {
					if _, err := tx.Get([]byte("a")).Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
					tx.Set([]byte("b"), nil)
				})
			}
		})
	}
}
