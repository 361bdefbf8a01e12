package layer_test

import (
	"context"
	"sync"
	"time"

	"fdbfifo/kv"
)

// cutDB is a database that can be cut off: then each call of a transaction hangs, or fails with a code, until it is
// healed. The calls that hung fail then, and nothing of them was applied.
type cutDB struct {
	kv.DB
	lag time.Duration // of each call while it is not cut off

	mu   sync.Mutex
	away chan struct{} // guarded by mu; closed when the database is back; nil = it is not away
	code int           // guarded by mu; of the calls until then; 0 = they hang
}

// cut cuts the database off.
func (d *cutDB) cut(code int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away, d.code = make(chan struct{}), code
}

// heal brings the database back.
func (d *cutDB) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away != nil {
		close(d.away)
		d.away = nil
	}
}

func (d *cutDB) state() (away chan struct{}, code int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.away, d.code
}

func (d *cutDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return cutTx{tx, d}, err
}

type cutTx struct {
	kv.ManagedTx
	d *cutDB
}

// cutOff is the result of a call of a database that may be away.
func cutOff[T any](d *cutDB, call func() kv.Future[T]) kv.Future[T] {
	away, code := d.state()
	switch {
	case away == nil && d.lag > 0:
		return lagging[T]{call(), time.Now().Add(d.lag)}
	case away == nil:
		return call()
	case code != 0:
		var none T
		return kv.Done(none, &kv.Error{Code: code})
	}
	return hanging[T]{away}
}

// hanging is a future that fails when the database is back.
type hanging[T any] struct{ away chan struct{} }

func (f hanging[T]) Wait(ctx context.Context) (v T, err error) {
	select {
	case <-f.away:
		return v, &kv.Error{Code: kv.CodeTransactionTooOld}
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

func (f hanging[T]) Ready() bool { return false }
func (f hanging[T]) Cancel()     {}

func (t cutTx) Get(key []byte) kv.Future[[]byte] {
	return cutOff(t.d, func() kv.Future[[]byte] { return t.ManagedTx.Get(key) })
}

func (t cutTx) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return cutOff(t.d, func() kv.Future[[]kv.KV] { return t.ManagedTx.GetRange(r, o) })
}

func (t cutTx) ReadVersion() kv.Future[int64] {
	return cutOff(t.d, func() kv.Future[int64] { return t.ManagedTx.ReadVersion() })
}

func (t cutTx) Commit() kv.Future[struct{}] {
	return cutOff(t.d, func() kv.Future[struct{}] { return t.ManagedTx.Commit() })
}

func (t cutTx) Snapshot() kv.ReadTx { return cutReads{t.ManagedTx.Snapshot(), t.d} }

// cutReads are a transaction's reads at snapshot.
type cutReads struct {
	kv.ReadTx
	d *cutDB
}

func (r cutReads) Get(key []byte) kv.Future[[]byte] {
	return cutOff(r.d, func() kv.Future[[]byte] { return r.ReadTx.Get(key) })
}

func (r cutReads) GetRange(of kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return cutOff(r.d, func() kv.Future[[]kv.KV] { return r.ReadTx.GetRange(of, o) })
}

func (r cutReads) GetKey(s kv.KeySelector) kv.Future[[]byte] {
	return cutOff(r.d, func() kv.Future[[]byte] { return r.ReadTx.GetKey(s) })
}

// lagging is a future whose answer comes at a time. Calls that travel at the same time take the lag once.
type lagging[T any] struct {
	kv.Future[T]
	at time.Time
}

func (f lagging[T]) Wait(ctx context.Context) (T, error) {
	time.Sleep(time.Until(f.at))
	return f.Future.Wait(ctx)
}
