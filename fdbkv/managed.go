package fdbkv

import (
	"context"
	"sync"

	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/kv"
)

// managedTx is a transaction of a DB, with its lifecycle.
type managedTx struct {
	*tx
	db      *DB
	options kv.TxOptions
}

var _ kv.ManagedTx = (*managedTx)(nil)

// SetReadVersion implements kv.ManagedTx.
func (t *managedTx) SetReadVersion(v int64) { t.tr.SetReadVersion(v) }

// Commit implements kv.ManagedTx.
func (t *managedTx) Commit() kv.Future[struct{}] {
	if t.db.closed.Load() {
		t.tr.Cancel()
		return kv.Done(struct{}{}, &kv.Error{Code: kv.CodeTransactionCancelled, Cause: ErrClosed})
	}
	f := t.tr.Commit()
	return newFuture(f, func() (struct{}, error) { return struct{}{}, t.sized(f.Get()) }, t.tr, t.large)
}

// sized adds its size to the error of a transaction that is too large.
func (t *managedTx) sized(err error) error {
	if converted := converted(err); kv.Code(converted) == kv.CodeTransactionTooLarge {
		if size, sizeErr := t.tr.GetApproximateSize().Get(); sizeErr == nil {
			return caused(kv.TransactionTooLarge(size), converted)
		}
	}
	return err
}

// CommittedVersion implements kv.ManagedTx.
func (t *managedTx) CommittedVersion() (int64, error) {
	v, err := t.tr.GetCommittedVersion()
	return v, converted(err)
}

// OnError implements kv.ManagedTx.
func (t *managedTx) OnError(err error) kv.Future[struct{}] {
	code, ok := codeOf(err)
	if err != nil && !ok {
		t.tr.Cancel()
		return kv.Done(struct{}{}, err)
	}
	return &retry{future: newNilFuture(t.tr.OnError(fdb.Error{Code: code}), t.tr, t.large), tx: t, code: code, err: err}
}

// Cancel implements kv.ManagedTx.
func (t *managedTx) Cancel() { t.tr.Cancel() }

// Reset implements kv.ManagedTx.
func (t *managedTx) Reset() {
	t.tr.Reset()
	t.large.forget()
	// Begin has set the same ones without an error.
	_ = setOptions(t.tr.Options(), t.options)
}

// retry is the future of OnError.
type retry struct {
	*future[struct{}]
	tx   *managedTx
	code int
	err  error // what OnError was asked about
	once sync.Once
}

// Wait implements kv.Future.
func (r *retry) Wait(ctx context.Context) (struct{}, error) {
	v, err := r.future.Wait(ctx)
	if err == nil {
		r.once.Do(func() {
			r.tx.large.forget()
			_ = setAttemptOptions(r.tx.tr.Options(), r.tx.options)
		})
		return v, nil
	}
	if r.err != nil && kv.Code(err) == r.code {
		return v, r.err // with all that it is wrapped in
	}
	return v, err
}
