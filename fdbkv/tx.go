package fdbkv

import (
	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/kv"
)

// Wrap lets kv's operations take part in the caller's own transaction:
//
//	_, err := db.Transact(func(tr fdb.Transaction) (any, error) {
//		return nil, enqueue(fdbkv.Wrap(tr))
//	})
//
// The caller's loop keeps the lifecycle. The caller must return errors to it, bare or wrapped with %w: they unwrap to
// fdb.Error, so the loop sees which to retry. A context that ends in the middle ends the wait, not the transaction. The
// caller must wrap a transaction only once. It must not disable read-your-writes in it, also not for snapshot reads,
// and must not set causal_read_risky.
func Wrap(tr fdb.Transaction) kv.Tx { return newTx(tr) }

func newTx(tr fdb.Transaction) *tx { return &tx{newReader(tr), tr} }

// tx is a transaction without its lifecycle.
type tx struct {
	reader
	tr fdb.Transaction
}

var (
	_ kv.Tx               = (*tx)(nil)
	_ kv.ConflictReporter = (*tx)(nil)
)

// Snapshot implements kv.Tx.
func (t *tx) Snapshot() kv.ReadTx { return reader{t.tr.Snapshot(), t.large} }

// Set implements kv.Tx.
func (t *tx) Set(key, value []byte) {
	t.large.note(key, value)
	t.tr.Set(fdb.Key(key), value)
}

// Clear implements kv.Tx.
func (t *tx) Clear(key []byte) { t.tr.Clear(fdb.Key(key)) }

// ClearRange implements kv.Tx.
func (t *tx) ClearRange(r kv.KeyRange) { t.tr.ClearRange(keyRange(r)) }

// Atomic implements kv.Tx. An unknown operation is a deferred error 2000.
func (t *tx) Atomic(op kv.MutationType, key, operand []byte) {
	t.large.note(key, operand)
	k := fdb.Key(key)
	switch op {
	case kv.Add:
		t.tr.Add(k, operand)
	case kv.BitAnd:
		t.tr.BitAnd(k, operand)
	case kv.BitOr:
		t.tr.BitOr(k, operand)
	case kv.BitXor:
		t.tr.BitXor(k, operand)
	case kv.AppendIfFits:
		t.tr.AppendIfFits(k, operand)
	case kv.Max:
		t.tr.Max(k, operand)
	case kv.Min:
		t.tr.Min(k, operand)
	case kv.SetVersionstampedKey:
		t.tr.SetVersionstampedKey(k, operand)
	case kv.SetVersionstampedValue:
		t.tr.SetVersionstampedValue(k, operand)
	case kv.ByteMin:
		t.tr.ByteMin(k, operand)
	case kv.ByteMax:
		t.tr.ByteMax(k, operand)
	case kv.CompareAndClear:
		t.tr.CompareAndClear(k, operand)
	default:
		// The binding cannot express it. An operand without an offset makes the client itself defer the error.
		t.tr.SetVersionstampedValue(k, nil)
	}
}

// AddReadConflictRange implements kv.Tx.
func (t *tx) AddReadConflictRange(r kv.KeyRange) error {
	return converted(t.tr.AddReadConflictRange(keyRange(r)))
}

// AddWriteConflictRange implements kv.Tx.
func (t *tx) AddWriteConflictRange(r kv.KeyRange) error {
	return converted(t.tr.AddWriteConflictRange(keyRange(r)))
}

// NextWriteNoConflict implements kv.Tx.
func (t *tx) NextWriteNoConflict() {
	// The only error would be that this client does not know the option; every supported one does.
	_ = t.tr.Options().SetNextWriteNoWriteConflictRange()
}

// Watch implements kv.Tx.
func (t *tx) Watch(key []byte) kv.Future[struct{}] {
	return newNilFuture(t.tr.Watch(fdb.Key(key)), nil, t.large)
}

// Versionstamp implements kv.Tx.
func (t *tx) Versionstamp() kv.Future[[10]byte] {
	f := t.tr.GetVersionstamp()
	return newFuture(f, func() (stamp [10]byte, err error) {
		b, err := f.Get()
		if err != nil {
			return stamp, err
		}
		copy(stamp[:], b)
		return stamp, nil
	}, t.tr, t.large)
}

// ApproximateSize implements kv.Tx.
func (t *tx) ApproximateSize() kv.Future[int64] {
	f := t.tr.GetApproximateSize()
	return newFuture(f, f.Get, t.tr, t.large)
}
