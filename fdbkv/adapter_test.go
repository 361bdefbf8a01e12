package fdbkv_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apple/foundationdb/bindings/go/src/fdb"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/fdbkv"
	"fdbfifo/kv"
)

// prefix returns a key prefix that no other test uses, cleared when the test ends.
func prefix(t *testing.T, db kv.DB) []byte {
	t.Helper()
	p := []byte("fdbkv/" + uuid.NewString() + "/")
	t.Cleanup(func() {
		write(t, db, func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(p)) })
	})
	return p
}

func key(prefix []byte, k string) []byte { return append(slices.Clone(prefix), k...) }

func write(t *testing.T, db kv.DB, fn func(tx kv.Tx)) {
	t.Helper()
	_, err := kv.Run(context.Background(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		fn(tx)
		return nil
	})
	require.NoError(t, err)
}

func get(t *testing.T, db kv.DB, k []byte) string {
	t.Helper()
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	v, err := tx.Get(k).Wait(t.Context())
	require.NoError(t, err)
	return string(v)
}

// TestErrorsUnwrapToTheBindings: the errors of the adapter wrap fdb.Error, because the retry loops of the binding look
// for it.
func TestErrorsUnwrapToTheBindings(t *testing.T) {
	db := open(t)
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	_, err = tx.Get([]byte("\xff/fdbkv")).Wait(t.Context())
	require.Equal(t, kv.CodeKeyOutsideLegalRange, kv.Code(err))
	var theirs fdb.Error
	require.ErrorAs(t, err, &theirs)
	require.Equal(t, kv.CodeKeyOutsideLegalRange, theirs.Code)
	_, err = tx.GetRange(kv.PrefixRange([]byte("a")).Selectors(), kv.RangeOptions{Limit: -1}).Wait(t.Context())
	require.ErrorAs(t, err, &theirs)
	require.Equal(t, kv.CodeRangeLimitsInvalid, theirs.Code)
	require.ErrorIs(t, tx.AddReadConflictRange(kv.KeyRange{Begin: []byte("b"), End: []byte("a")}),
		&kv.Error{Code: kv.CodeInvertedRange})
}

// TestTooLargeNamesTheRow: the error of a key, a value or a transaction that is too large names the key and the size,
// in the commit and in a read after the write. It wraps the binding's error. The next attempt of the transaction has
// forgotten the key.
func TestTooLargeNamesTheRow(t *testing.T) {
	db := open(t)
	p := prefix(t, db)
	long := key(p, strings.Repeat("k", 10_001-len(p)))
	for _, c := range []struct {
		code  int
		write func(tx kv.Tx)
		says  string
	}{
		{
			kv.CodeKeyTooLarge,
			func(tx kv.Tx) { tx.Set(long, nil) },
			fmt.Sprintf("(2102): key %q … has 10001 bytes: ", long[:200]),
		},
		{
			kv.CodeValueTooLarge,
			func(tx kv.Tx) { tx.Set(key(p, "a"), make([]byte, 100_001)) },
			fmt.Sprintf("(2103): the value of key %q has 100001 bytes: ", key(p, "a")),
		},
		{
			kv.CodeValueTooLarge,
			func(tx kv.Tx) { tx.Atomic(kv.AppendIfFits, key(p, "a"), make([]byte, 100_001)) },
			fmt.Sprintf("(2103): the value of key %q has 100001 bytes: ", key(p, "a")),
		},
		{
			kv.CodeTransactionTooLarge,
			func(tx kv.Tx) {
				for n := range 101 {
					tx.Set(key(p, fmt.Sprint(n)), make([]byte, 100_000))
				}
			},
			"(2101): the transaction has 101",
		},
	} {
		tx, err := db.Begin(kv.TxOptions{})
		require.NoError(t, err)
		named := func(err error) {
			t.Helper()
			require.ErrorContains(t, err, c.says)
			require.Equal(t, c.code, kv.Code(err))
			var theirs fdb.Error
			require.ErrorAs(t, err, &theirs)
			require.Equal(t, c.code, theirs.Code)
		}
		c.write(tx)
		tx.Set(bytes.Repeat([]byte("other"), 2001), nil)
		if c.code != kv.CodeTransactionTooLarge {
			_, err = tx.Get(p).Wait(t.Context())
			named(err)
			_, err = tx.Snapshot().GetRange(kv.PrefixRange(p).Selectors(), kv.RangeOptions{}).Wait(t.Context())
			named(err)
		} else {
			tx.Reset()
			c.write(tx)
		}
		_, err = tx.Commit().Wait(t.Context())
		named(err)
		_, err = tx.OnError(err).Wait(t.Context())
		named(err)
		tx.Reset()
		tx.Set(bytes.Repeat([]byte("z"), 10_001), nil)
		_, err = tx.Commit().Wait(t.Context())
		require.ErrorContains(t, err, "zzz")
		tx.Cancel()
	}
}

// TestOnErrorTakesTheBindingsErrors: an error of the binding itself is as good as a kv.Error.
func TestOnErrorTakesTheBindingsErrors(t *testing.T) {
	tx, err := open(t).Begin(kv.TxOptions{})
	require.NoError(t, err)
	_, err = tx.OnError(fmt.Errorf("caller: %w", fdb.Error{Code: kv.CodeNotCommitted})).Wait(t.Context())
	require.NoError(t, err)
	final := fmt.Errorf("caller: %w", fdb.Error{Code: kv.CodeKeyTooLarge})
	_, err = tx.OnError(final).Wait(t.Context())
	require.Equal(t, final, err)
}

// TestWrapTakesPartInTheCallersTransaction: writes of both sides commit together, and the caller's loop retries the
// conflict that a wrapped read ran into.
func TestWrapTakesPartInTheCallersTransaction(t *testing.T) {
	handle := ownHandle(t)
	db := fdbkv.From(handle)
	p := prefix(t, db)
	attempts := 0
	_, err := handle.Transact(func(tr fdb.Transaction) (any, error) {
		attempts++
		tx := fdbkv.Wrap(tr)
		seen, err := tx.Get(key(p, "a")).Wait(t.Context())
		if err != nil {
			return nil, err
		}
		if attempts == 1 {
			write(t, db, func(tx kv.Tx) { tx.Set(key(p, "a"), []byte("other")) })
		}
		tx.Set(key(p, "seen"), seen)
		tr.Set(fdb.Key(key(p, "mine")), []byte("1"))
		if attempts == 2 {
			return nil, fmt.Errorf("wrapped: %w", &kv.Error{Code: kv.CodeProcessBehind, Cause: fdb.Error{Code: kv.CodeProcessBehind}})
		}
		return nil, nil
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, attempts, 3)
	require.Equal(t, "other", get(t, db, key(p, "seen")))
	require.Equal(t, "1", get(t, db, key(p, "mine")))
}

// TestWrapLeavesTheTransactionAlone: a context that ends in a wrapped wait ends nothing of the caller's.
func TestWrapLeavesTheTransactionAlone(t *testing.T) {
	handle := ownHandle(t)
	db := fdbkv.From(handle)
	p := prefix(t, db)
	cause := errors.New("enough")
	_, err := handle.Transact(func(tr fdb.Transaction) (any, error) {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		_, err := fdbkv.Wrap(tr).Watch(key(p, "never")).Wait(ctx)
		require.ErrorIs(t, err, cause)
		tr.Set(fdb.Key(key(p, "a")), []byte("1"))
		return nil, nil
	})
	require.NoError(t, err)
	require.Equal(t, "1", get(t, db, key(p, "a")))
}

// collect makes the binding's finalizers run.
func collect() {
	for range 3 {
		runtime.GC()
	}
}

// TestFuturesKeepTheirTransaction: a transaction that only a future is left of is not finalised, which would cancel
// the future.
func TestFuturesKeepTheirTransaction(t *testing.T) {
	db := open(t)
	p := prefix(t, db)
	for range 20 {
		value, rows, version, commit, stamp := func() (kv.Future[[]byte], kv.Future[[]kv.KV], kv.Future[int64],
			kv.Future[struct{}], kv.Future[[10]byte]) {
			reader, err := db.Begin(kv.TxOptions{})
			require.NoError(t, err)
			writer, err := db.Begin(kv.TxOptions{})
			require.NoError(t, err)
			writer.Set(key(p, "a"), nil)
			stamp := writer.Versionstamp()
			return reader.Get(key(p, "a")), reader.GetRange(kv.PrefixRange(p).Selectors(), kv.RangeOptions{}),
				reader.Snapshot().ReadVersion(), writer.Commit(), stamp
		}()
		collect()
		for _, wait := range []func() error{
			func() error { _, err := value.Wait(t.Context()); return err },
			func() error { _, err := rows.Wait(t.Context()); return err },
			func() error { _, err := version.Wait(t.Context()); return err },
			func() error { _, err := commit.Wait(t.Context()); return err },
			func() error { _, err := stamp.Wait(t.Context()); return err },
		} {
			// The caller's last reference may be gone while Wait still waits.
			collected := make(chan struct{})
			go func() {
				defer close(collected)
				collect()
			}()
			require.NoError(t, wait())
			<-collected
		}
	}
}

// TestWatchesOutliveTheirTransaction: also its destruction.
func TestWatchesOutliveTheirTransaction(t *testing.T) {
	db := open(t)
	p := prefix(t, db)
	var w kv.Future[struct{}]
	write(t, db, func(tx kv.Tx) { w = tx.Watch(key(p, "a")) })
	defer w.Cancel()
	collect()
	require.False(t, w.Ready())
	write(t, db, func(tx kv.Tx) { tx.Set(key(p, "a"), nil) })
	_, err := w.Wait(t.Context())
	require.NoError(t, err)
}

// TestLongRangesAreOneRead: a range of many replies shows what was there when the read was issued, none of the
// transaction's later writes.
func TestLongRangesAreOneRead(t *testing.T) {
	db := open(t)
	p := prefix(t, db)
	const rows = 500 // of 1 kB: about 500 kB, where a reply holds 80
	write(t, db, func(tx kv.Tx) {
		for i := range rows {
			tx.Set(key(p, fmt.Sprintf("%04d", i)), make([]byte, 1000))
		}
	})
	for _, c := range []struct {
		options kv.RangeOptions
		want    int
	}{
		{kv.RangeOptions{}, rows},
		{kv.RangeOptions{Reverse: true}, rows},
		{kv.RangeOptions{Limit: rows - 1}, rows - 1},
		{kv.RangeOptions{Limit: rows - 1, Reverse: true}, rows - 1},
	} {
		tx, err := db.Begin(kv.TxOptions{})
		require.NoError(t, err)
		f := tx.GetRange(kv.PrefixRange(p).Selectors(), c.options)
		tx.ClearRange(kv.PrefixRange(p))
		got, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Len(t, got, c.want)
		require.True(t, slices.IsSortedFunc(got, func(a, b kv.KV) int {
			if c.options.Reverse {
				a, b = b, a
			}
			return slices.Compare(a.Key, b.Key)
		}))
		require.True(t, f.Ready())
		tx.Cancel()
	}
}

// TestCancelledRangeReads end like any cancelled future, and leave the transaction usable.
func TestCancelledRangeReads(t *testing.T) {
	db := open(t)
	p := prefix(t, db)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	silent, err := unreachable(t).Begin(kv.TxOptions{})
	require.NoError(t, err)
	defer silent.Cancel()
	all := kv.PrefixRange(p).Selectors()

	f := silent.GetRange(all, kv.RangeOptions{})
	require.False(t, f.Ready())
	_, err = f.Wait(ctx)
	require.ErrorIs(t, err, cause)
	require.True(t, f.Ready())
	_, err = f.Wait(t.Context())
	require.Equal(t, kv.CodeOperationCancelled, kv.Code(err))

	f = silent.Snapshot().GetRange(all, kv.RangeOptions{})
	f.Cancel()
	f.Cancel()
	_, err = f.Wait(t.Context())
	require.Equal(t, kv.CodeOperationCancelled, kv.Code(err))

	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	tx.GetRange(all, kv.RangeOptions{}).Cancel()
	tx.Set(key(p, "a"), nil)
	_, err = tx.Commit().Wait(t.Context())
	require.NoError(t, err)
}

// TestUnknownAtomicOperation is a deferred error, not a panic and not a silent nothing.
func TestUnknownAtomicOperation(t *testing.T) {
	db := open(t)
	p := prefix(t, db)
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	tx.Atomic(3, key(p, "a"), []byte{1})
	_, err = tx.Commit().Wait(t.Context())
	require.Equal(t, kv.CodeClientInvalidOperation, kv.Code(err))
}

// TestPriorityAndTag are accepted, in the first attempt, after OnError and after a reset. An option that the client
// does not accept is an error before anything is committed.
func TestPriorityAndTag(t *testing.T) {
	db := open(t)
	p := prefix(t, db)
	tx, err := db.Begin(kv.TxOptions{Batch: true, Tag: "sweep"})
	require.NoError(t, err)
	next := func() {
		_, err := tx.Get(key(p, "a")).Wait(t.Context())
		require.NoError(t, err)
		tx.Set(key(p, "a"), nil)
		_, err = tx.Commit().Wait(t.Context())
		require.NoError(t, err)
	}
	next()
	_, err = tx.OnError(&kv.Error{Code: kv.CodeNotCommitted}).Wait(t.Context())
	require.NoError(t, err)
	next()
	tx.Reset()
	next()

	tx, err = db.Begin(kv.TxOptions{Tag: strings.Repeat("x", 256)})
	require.NoError(t, err)
	tx.Set(key(p, "b"), []byte("1"))
	_, err = tx.Commit().Wait(t.Context())
	require.Equal(t, 2110, kv.Code(err)) // tag_too_long
	require.Empty(t, get(t, db, key(p, "b")))
}

// TestConflictRangesOfWrappedTransactions: tools can ask a caller's own transaction.
func TestConflictRangesOfWrappedTransactions(t *testing.T) {
	tr, err := ownHandle(t).CreateTransaction()
	require.NoError(t, err)
	defer tr.Cancel()
	tx := fdbkv.Wrap(tr)
	require.NoError(t, tx.AddReadConflictRange(kv.KeyRange{Begin: []byte(""), End: []byte("b")}))
	require.NoError(t, tx.AddReadConflictRange(kv.KeyRange{Begin: []byte("c"), End: []byte("\xff")}))
	tx.Set([]byte("d"), nil)
	read, write, err := tx.(kv.ConflictReporter).ConflictRanges(t.Context())
	require.NoError(t, err)
	require.Equal(t, []kv.KeyRange{{Begin: []byte(""), End: []byte("b")}, {Begin: []byte("c"), End: []byte("\xff")}}, read)
	require.Equal(t, []kv.KeyRange{kv.SingleKey([]byte("d"))}, write)
}

// TestTenants: a tenant is a key space of its own, and the suite's cluster has them switched on.
func TestTenants(t *testing.T) {
	handle := ownHandle(t)
	name := fdb.Key("fdbkv-" + uuid.NewString())
	if err := handle.CreateTenant(name); err != nil {
		var e fdb.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 2136, e.Code) // tenants_disabled
		t.Skip("the cluster has tenants switched off")
	}
	tenant, err := handle.OpenTenant(name)
	require.NoError(t, err)
	inside, outside := fdbkv.FromTenant(tenant), fdbkv.From(handle)
	p := prefix(t, outside)
	write(t, inside, func(tx kv.Tx) {
		tx.Set(key(p, "a"), []byte("tenant's"))
		tx.Atomic(kv.SetVersionstampedKey, make([]byte, 14), nil)
	})
	require.Equal(t, "tenant's", get(t, inside, key(p, "a")))
	status, err := inside.Status(t.Context())
	require.NoError(t, err, "the whole cluster's")
	require.Contains(t, string(status), `"cluster"`)
	require.Empty(t, get(t, outside, key(p, "a")))
	write(t, inside, func(tx kv.Tx) { tx.ClearRange(kv.KeyRange{Begin: []byte(""), End: []byte("\xff")}) })
	require.NoError(t, handle.DeleteTenant(name))
}

// TestSnapshotSeesOwnWrites (kv.Tx): snapshot reads see the transaction's own writes in the first attempt, after
// OnError and after Reset, even if the database handle has disabled this.
func TestSnapshotSeesOwnWrites(t *testing.T) {
	// A handle of its own: the option stays in force for all that share one.
	file := filepath.Join(t.TempDir(), "fdb.cluster")
	text, err := os.ReadFile(os.Getenv("FDB_CLUSTER_FILE"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	handle, err := fdb.OpenDatabase(file)
	require.NoError(t, err)
	require.NoError(t, handle.Options().SetSnapshotRywDisable())
	tx, err := fdbkv.From(handle).Begin(kv.TxOptions{})
	require.NoError(t, err)
	defer tx.Cancel()
	sees := func() {
		t.Helper()
		tx.Set([]byte("fdbkv/own"), []byte("write"))
		v, err := tx.Snapshot().Get([]byte("fdbkv/own")).Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, "write", string(v))
	}
	sees()
	_, err = tx.OnError(&kv.Error{Code: kv.CodeNotCommitted}).Wait(t.Context())
	require.NoError(t, err)
	sees()
	tx.Reset()
	sees()
}
