package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"time"

	"fdbfifo/kv"
)

// engine is a kv.DB for one handle, whose every call parks.
type engine struct {
	kv.DB
	w    *world
	who  int
	now  func() time.Time // the handle's clock
	next int              // number of its next transaction
}

func (e *engine) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	e.w.sched.park(place{"begin", e.who, 0})
	inner, err := e.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	e.next++
	return &transaction{ManagedTx: inner, e: e, n: e.next}, nil
}

// Close does nothing: the engine belongs to the world.
func (e *engine) Close() error { return nil }

// transaction parks before what waits, and puts a record into what it commits.
type transaction struct {
	kv.ManagedTx
	e       *engine
	n       int
	attempt int
	writes  []write
	wrote   bool
}

func (t *transaction) park(what string) { t.e.w.sched.park(place{what, t.e.who, t.n}) }

// parking is a future whose Wait parks before it.
type parking[T any] struct {
	kv.Future[T]
	t    *transaction
	what string
}

func (p *parking[T]) Wait(ctx context.Context) (T, error) {
	p.t.park(p.what)
	return p.Future.Wait(ctx)
}

func (t *transaction) Get(key []byte) kv.Future[[]byte] {
	return &parking[[]byte]{t.ManagedTx.Get(key), t, "get"}
}

func (t *transaction) GetKey(s kv.KeySelector) kv.Future[[]byte] {
	return &parking[[]byte]{t.ManagedTx.GetKey(s), t, "get-key"}
}

func (t *transaction) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return &parking[[]kv.KV]{t.ManagedTx.GetRange(r, o), t, "get-range"}
}

func (t *transaction) Snapshot() kv.ReadTx { return snapshot{t.ManagedTx.Snapshot(), t} }

type snapshot struct {
	kv.ReadTx
	t *transaction
}

func (s snapshot) Get(key []byte) kv.Future[[]byte] {
	return &parking[[]byte]{s.ReadTx.Get(key), s.t, "get"}
}

func (s snapshot) GetKey(k kv.KeySelector) kv.Future[[]byte] {
	return &parking[[]byte]{s.ReadTx.GetKey(k), s.t, "get-key"}
}

func (s snapshot) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return &parking[[]kv.KV]{s.ReadTx.GetRange(r, o), s.t, "get-range"}
}

func (t *transaction) Set(key, value []byte) {
	t.note(write{kind: wrote, key: bytes.Clone(key), value: bytes.Clone(value)})
	t.ManagedTx.Set(key, value)
}

func (t *transaction) Clear(key []byte) {
	t.note(write{kind: cleared, key: bytes.Clone(key)})
	t.ManagedTx.Clear(key)
}

func (t *transaction) ClearRange(r kv.KeyRange) {
	t.note(write{kind: clearedRange, key: bytes.Clone(r.Begin), value: bytes.Clone(r.End)})
	t.ManagedTx.ClearRange(r)
}

func (t *transaction) Atomic(op kv.MutationType, key, operand []byte) {
	t.wrote = true
	t.ManagedTx.Atomic(op, key, operand)
}

func (t *transaction) AddWriteConflictRange(r kv.KeyRange) error {
	t.wrote = true
	return t.ManagedTx.AddWriteConflictRange(r)
}

func (t *transaction) note(w write) {
	t.wrote = true
	t.writes = append(t.writes, w)
}

func (t *transaction) OnError(err error) kv.Future[struct{}] {
	t.attempt++
	t.writes, t.wrote = nil, false
	return &backoff{t.ManagedTx.OnError(err), t}
}

// backoff parks after it, when its time has come.
type backoff struct {
	kv.Future[struct{}]
	t *transaction
}

func (b *backoff) Wait(ctx context.Context) (struct{}, error) {
	v, err := b.Future.Wait(ctx)
	b.t.park("on-error")
	return v, err
}

// Commit parks, writes the record, and sends the commit.
func (t *transaction) Commit() kv.Future[struct{}] {
	if !t.wrote {
		t.park("end")
		return t.ManagedTx.Commit()
	}
	t.park("commit")
	w := t.e.w
	rv, err := t.ManagedTx.ReadVersion().Wait(context.Background()) // as the commit would ask for it
	if err == nil {
		r := record{step: w.sched.steps, who: t.e.who, tx: t.n, attempt: t.attempt, rv: rv, nowMS: t.e.now().UnixMilli(), writes: t.writes}
		key := append(append([]byte(recordPrefix), make([]byte, 10)...), 0, 0, 0, 0)
		binary.LittleEndian.PutUint32(key[len(key)-4:], uint32(len(recordPrefix)))
		t.ManagedTx.Atomic(kv.SetVersionstampedKey, key, r.pack())
	}
	return &committing{t.ManagedTx.Commit(), t, w.sched.steps}
}

// committing parks when the outcome is there, before anybody learns of it.
type committing struct {
	kv.Future[struct{}]
	t    *transaction
	step int
}

func (c *committing) Wait(ctx context.Context) (struct{}, error) {
	v, err := c.Future.Wait(ctx)
	w := c.t.e.w
	if w.sched.givenUp() {
		return v, err
	}
	w.sched.trace.note("committed", c.t.e.who, c.t.n, c.t.attempt, len(c.t.writes), digest(c.t.writes), kv.Code(err))
	if err != nil {
		w.outcomes[attemptID{c.t.e.who, c.t.n, c.t.attempt}] = kv.Code(err)
	}
	c.t.park("committed")
	return v, err
}

// attemptID names one attempt of a transaction.
type attemptID struct{ who, tx, attempt int }
