package small

import "fdbfifo/kv"

//go:noinline
func free() {}

// Queue has two exported methods.
type Queue struct {
	keys  table
	where []byte
}

func (q Queue) One()                    { free() }
func (q *Queue) Two(tx kv.Tx)           { q.put(tx, q.keys.lock("a")) }
func (q *Queue) put(tx kv.Tx, k []byte) { tx.Set(k, nil) } // all callers pass a lock's key

// either is called with both, so its parameter is neither.
func (q *Queue) either(tx kv.Tx, k []byte) { tx.Set(k, nil) }

func (q *Queue) any(tx kv.Tx) {
	q.either(tx, q.keys.lock("a"))
	q.either(tx, []byte("b"))
}

func (q *Queue) lockOf() []byte { return q.keys.lock("a") }

func (q *Queue) writes(tx kv.Tx, lockKey []byte) {
	q.where = q.keys.lock("a")
	tx.Clear(q.where)
	tx.Clear(lockKey)
	tx.Atomic(kv.Add, q.lockOf(), nil)
	k := q.keys.lock("a")
	func() { tx.Clear(k) }()
	tx.ClearRange(kv.SingleKey(k))
	tx.ClearRange(kv.KeyRange{Begin: k, End: nil})
	tx.Get(k)
	tx.Set([]byte("a"), k)
	tx.Clear(q.keys.timer(1, "a"))
}

func (q *Queue) elsewhere(tx kv.Tx) {
	tx.Clear(q.where) // of another function: not followed
	literal := func() []byte { return q.keys.lock("a") }
	tx.Clear(literal())
}
