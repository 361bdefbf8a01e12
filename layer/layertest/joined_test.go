package layer_test

import (
	"errors"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// joinedDB is an engine whose transactions are parts of one transaction of the test, which commits them. With it a call
// that has no form for the caller's transaction is one of two operations that overlap: see pair.
type joinedDB struct {
	kv.DB
	tx kv.Tx // nil = transactions of their own
	// dies makes each transaction after the first commit fail, as if the process had died there.
	dies, dead bool
}

var errDied = errors.New("the process has died")

func (d *joinedDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	switch {
	case d.dead:
		return nil, errDied
	case d.tx == nil:
		return d.DB.Begin(o)
	}
	own, err := d.DB.Begin(o)
	return joinedTx{d.tx, own, d}, err
}

// joinedTx reads and writes in the test's transaction. It is over by its own, which is empty.
type joinedTx struct {
	kv.Tx
	own kv.ManagedTx
	d   *joinedDB
}

func (t joinedTx) SetReadVersion(int64)                  {}
func (t joinedTx) CommittedVersion() (int64, error)      { return t.own.CommittedVersion() }
func (t joinedTx) OnError(err error) kv.Future[struct{}] { return kv.Done(struct{}{}, err) }
func (t joinedTx) Cancel()                               { t.own.Cancel() }
func (t joinedTx) Reset()                                { t.own.Reset() }

func (t joinedTx) Commit() kv.Future[struct{}] {
	t.d.dead = t.d.dies
	return t.own.Commit()
}

// within returns the operator's calls of a handle of its own, whose transactions are parts of tx. Without tx they are
// those of e.q, with transactions of their own.
func (e *env) within(tx kv.Tx) layer.Admin {
	if tx == nil {
		return e.q.Admin()
	}
	return e.join(tx, testQueue, e.options(98), false)
}

// join opens a handle of a queue whose transactions are parts of tx from then on.
func (e *env) join(tx kv.Tx, queue string, o layer.Options, dies bool) layer.Admin {
	e.t.Helper()
	e.joins++
	o.Test.Seed += 1000 * e.joins // the same receipts would conflict
	db := &joinedDB{DB: e.raw, dies: dies}
	q, err := layer.Open(e.ctx, db, testPrefix, queue, o)
	require.NoError(e.t, err)
	db.tx = tx
	return q.Admin()
}
