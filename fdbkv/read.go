package fdbkv

import (
	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/kv"
)

// reader is the reading half of a transaction, or of its snapshot.
type reader struct {
	from  fdb.ReadTransaction
	large *oversize
}

func newReader(from fdb.ReadTransaction) reader { return reader{from: from, large: &oversize{}} }

var _ kv.ReadTx = reader{}

// Get implements kv.ReadTx.
func (r reader) Get(key []byte) kv.Future[[]byte] {
	f := r.from.Get(fdb.Key(key))
	return newFuture(f, f.Get, r.from, r.large)
}

// GetKey implements kv.ReadTx.
func (r reader) GetKey(s kv.KeySelector) kv.Future[[]byte] {
	f := r.from.GetKey(selector(s))
	return newFuture(f, func() ([]byte, error) { return f.Get() }, r.from, r.large)
}

// ReadVersion implements kv.ReadTx.
func (r reader) ReadVersion() kv.Future[int64] {
	f := r.from.GetReadVersion()
	return newFuture(f, f.Get, r.from, r.large)
}

func selector(s kv.KeySelector) fdb.KeySelector {
	return fdb.KeySelector{Key: fdb.Key(s.Key), OrEqual: s.OrEqual, Offset: s.Offset}
}

func keyRange(r kv.KeyRange) fdb.KeyRange {
	return fdb.KeyRange{Begin: fdb.Key(r.Begin), End: fdb.Key(r.End)}
}
