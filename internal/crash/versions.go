package crash

import (
	"context"
	"sync/atomic"

	"fdbfifo/kv"
)

// versions is a database that remembers the version of its newest commit. An operation of the queue may share a
// transaction with others, so the versions at its begin and at its end are bounds of its own.
type versions struct {
	kv.DB
	newest atomic.Int64
}

func (d *versions) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	return versionTx{tx, d}, nil
}

// saw raises the newest version to v.
func (d *versions) saw(v int64) {
	for old := d.newest.Load(); v > old && !d.newest.CompareAndSwap(old, v); old = d.newest.Load() {
	}
}

type versionTx struct {
	kv.ManagedTx
	db *versions
}

func (t versionTx) Commit() kv.Future[struct{}] {
	return versionFuture{t.ManagedTx.Commit(), t}
}

type versionFuture struct {
	kv.Future[struct{}]
	tx versionTx
}

func (f versionFuture) Wait(ctx context.Context) (struct{}, error) {
	done, err := f.Future.Wait(ctx)
	if err == nil {
		if v, err := f.tx.CommittedVersion(); err == nil {
			f.tx.db.saw(v)
		}
	}
	return done, err
}
