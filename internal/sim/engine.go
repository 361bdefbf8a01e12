package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
)

// engine is a kv.DB for one handle, whose every call parks.
type engine struct {
	w    *world
	who  int
	now  func() time.Time // the handle's clock
	next int              // number of its next transaction
	// dead: the process is gone. The calls of its goroutines have no effect any more.
	dead atomic.Bool
	// doubts counts the commits of unknown outcome after which the handle tried again.
	doubts atomic.Int64
}

// errDead is the error that the goroutines of a dead process get.
func errDead() error { return &kv.Error{Code: kv.CodeClientInvalidOperation} }

func (e *engine) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	e.w.sched.park(e.w.sched.begins(e.who))
	if e.dead.Load() {
		return nil, errDead()
	}
	e.next++
	t := &transaction{e: e, n: e.next, options: o, foot: footprint{on: e.w.seeks}}
	return t, t.enter()
}

// Close does nothing: the engine belongs to the world.
func (e *engine) Close() error { return nil }

// transaction parks before each wait, and adds a record to its commit. It survives a crash of the store: its attempt
// fails, and the next one runs in the store that was opened again.
type transaction struct {
	kv.ManagedTx
	e       *engine
	life    *life // of the store, in which the attempt was begun
	options kv.TxOptions
	n       int
	attempt int
	begunMS int64 // of the attempt, by the handle's clock
	writes  []write
	wrote   bool
	loses   bool // conflicts, see contended.go
	foot    footprint
}

// enter begins in the store as it is.
func (t *transaction) enter() (err error) {
	t.begunMS = t.e.now().UnixMilli()
	t.life = t.e.w.store.life
	t.ManagedTx, err = t.life.db.Begin(t.options)
	return err
}

func (t *transaction) park(what string) { t.e.w.sched.parkFor(place{what, t.e.who, t.n}, 0, &t.foot) }

// broken is why nothing more can be had of this attempt.
func (t *transaction) broken() error {
	switch {
	case t.e.dead.Load():
		return errDead()
	case t.life.over():
		return &kv.Error{Code: kv.CodeTransactionTooOld}
	}
	return nil
}

// parking is a future whose Wait parks before it.
type parking[T any] struct {
	kv.Future[T]
	t    *transaction
	what string
}

// start begins a read, unless it would reach nothing.
func start[T any](t *transaction, what string, read func() kv.Future[T]) kv.Future[T] {
	if err := t.broken(); err != nil {
		var none T
		return &parking[T]{kv.Done(none, err), t, what}
	}
	return &parking[T]{read(), t, what}
}

func (p *parking[T]) Wait(ctx context.Context) (T, error) {
	p.t.park(p.what)
	if err := p.t.broken(); err != nil {
		var none T
		return none, err
	}
	return p.Future.Wait(ctx)
}

func (t *transaction) Get(key []byte) kv.Future[[]byte] {
	t.foot.reads(key, nil)
	return start(t, "get", func() kv.Future[[]byte] { return t.ManagedTx.Get(key) })
}

func (t *transaction) GetKey(s kv.KeySelector) kv.Future[[]byte] {
	t.foot.reads(s.Key, nil)
	return start(t, "get-key", func() kv.Future[[]byte] { return t.ManagedTx.GetKey(s) })
}

func (t *transaction) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	t.foot.reads(r.Begin.Key, r.End.Key)
	return start(t, "get-range", func() kv.Future[[]kv.KV] { return t.ManagedTx.GetRange(r, o) })
}

func (t *transaction) ReadVersion() kv.Future[int64] {
	if err := t.broken(); err != nil {
		return kv.Done(int64(0), err)
	}
	return t.ManagedTx.ReadVersion()
}

func (t *transaction) Snapshot() kv.ReadTx { return snapshot{t.ManagedTx.Snapshot(), t} }

type snapshot struct {
	kv.ReadTx
	t *transaction
}

func (s snapshot) Get(key []byte) kv.Future[[]byte] {
	s.t.foot.reads(key, nil)
	return start(s.t, "get", func() kv.Future[[]byte] { return s.ReadTx.Get(key) })
}

func (s snapshot) GetKey(k kv.KeySelector) kv.Future[[]byte] {
	s.t.foot.reads(k.Key, nil)
	return start(s.t, "get-key", func() kv.Future[[]byte] { return s.ReadTx.GetKey(k) })
}

func (s snapshot) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	s.t.foot.reads(r.Begin.Key, r.End.Key)
	return start(s.t, "get-range", func() kv.Future[[]kv.KV] { return s.ReadTx.GetRange(r, o) })
}

func (s snapshot) ReadVersion() kv.Future[int64] { return s.t.ReadVersion() }

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
	if op == kv.SetVersionstampedKey && noteStamped(key) {
		t.writes = append(t.writes, write{kind: stamped, key: bytes.Clone(key), value: bytes.Clone(operand)})
	}
	t.ManagedTx.Atomic(op, key, operand)
}

func (t *transaction) AddWriteConflictRange(r kv.KeyRange) error {
	t.wrote = true
	t.foot.writes(r.Begin, r.End)
	return t.ManagedTx.AddWriteConflictRange(r)
}

func (t *transaction) note(w write) {
	t.wrote = true
	if w.kind == clearedRange {
		t.foot.writes(w.key, w.value)
	} else {
		t.foot.writes(w.key, nil)
	}
	t.writes = append(t.writes, w)
}

// Watch is gone when the store crashes, as everything that it held in memory.
func (t *transaction) Watch(key []byte) kv.Future[struct{}] {
	if err := t.broken(); err != nil {
		return kv.Done(struct{}{}, err)
	}
	return &watch{t.ManagedTx.Watch(key), t.life}
}

type watch struct {
	kv.Future[struct{}]
	life *life
}

func (w *watch) Wait(ctx context.Context) (struct{}, error) {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.life.ctx, cancel)()
	v, err := w.Future.Wait(both)
	if err != nil && ctx.Err() == nil && w.life.over() {
		err = &kv.Error{Code: kv.CodeOperationCancelled}
	}
	return v, err
}

func (t *transaction) OnError(err error) kv.Future[struct{}] {
	if t.e.dead.Load() {
		return kv.Done(struct{}{}, errDead())
	}
	if kv.MaybeCommitted(err) || kv.Code(err) == kv.CodeTransactionTimedOut {
		t.e.doubts.Add(1)
	}
	t.attempt++
	t.begunMS = t.e.now().UnixMilli()
	t.writes, t.wrote, t.foot = nil, false, footprint{on: t.foot.on}
	return &backoff{t.ManagedTx.OnError(err), t}
}

// backoff parks after it, when its time has come.
type backoff struct {
	kv.Future[struct{}]
	t *transaction
}

func (b *backoff) Wait(ctx context.Context) (struct{}, error) {
	v, err := b.Future.Wait(ctx)
	t := b.t
	t.park("on-error")
	if err == nil && !t.e.dead.Load() && t.life.over() {
		err = t.enter()
	}
	return v, err
}

// Commit parks, writes the record, and sends the commit.
func (t *transaction) Commit() kv.Future[struct{}] {
	if !t.wrote {
		t.park("end")
		if err := t.broken(); err != nil {
			return kv.Done(struct{}{}, err)
		}
		return t.ManagedTx.Commit()
	}
	t.park("commit")
	w := t.e.w
	if err := t.broken(); err != nil {
		if t.e.dead.Load() {
			return kv.Done(struct{}{}, err)
		}
		w.mark("commit lost in a crash of the store")
		return kv.Done(struct{}{}, error(&kv.Error{Code: kv.CodeCommitUnknownResult}))
	}
	rv, err := t.ManagedTx.ReadVersion().Wait(context.Background()) // as the commit would ask for it
	if err == nil {
		w.sends(t)
		r := record{step: w.sched.steps, who: t.e.who, tx: t.n, attempt: t.attempt, rv: rv, nowMS: t.e.now().UnixMilli(), begunMS: t.begunMS, writes: t.writes}
		r.atMS = time.Now().UnixMilli()
		key := append(append([]byte(recordPrefix), make([]byte, 10)...), 0, 0, 0, 0)
		binary.LittleEndian.PutUint32(key[len(key)-4:], uint32(len(recordPrefix)))
		t.ManagedTx.Atomic(kv.SetVersionstampedKey, key, r.pack(w.large))
	}
	t.losing()
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
	t := c.t
	w := t.e.w
	if w.sched.givenUp() || t.e.dead.Load() {
		return v, err
	}
	w.sched.trace.note("committed", t.e.who, t.n, t.attempt, len(t.writes), digest(t.writes), kv.Code(err))
	if err == nil || kv.Code(err) != kv.CodeNotCommitted {
		w.sched.applied(&t.foot)
	}
	code := kv.Code(err)
	if err != nil && code == 0 {
		code = kv.CodeCommitUnknownResult // ctx has ended: the caller never learns of the answer
	}
	w.outcomes[attemptID{t.e.who, t.n, t.attempt}] = code // also of a dead process, whose late commit is late
	t.park("committed")
	switch {
	case t.e.dead.Load():
		return v, errDead()
	case t.life.over() && err == nil:
		err = &kv.Error{Code: kv.CodeCommitUnknownResult}
		w.mark("commit applied, and its answer lost in a crash of the store")
	}
	if code := kv.Code(err); code != 0 {
		w.outcomes[attemptID{t.e.who, t.n, t.attempt}] = code
		t.markFailure(code)
	}
	return v, err
}

// markFailure marks the rare paths that a commit is on which failed.
func (t *transaction) markFailure(code int) {
	if code != kv.CodeNotCommitted {
		return
	}
	for _, w := range t.writes {
		switch name, _ := keyOf(w.key); {
		case name == "grant" && w.kind == wrote:
			t.e.w.mark("grant refused: conflict")
		case name == "grant" && w.kind == cleared:
			t.e.w.mark("end of a grant refused: conflict")
		case name == "request" && w.kind == cleared:
			t.e.w.mark("end of a request refused: conflict")
		case name == "lock" && w.kind == wrote:
			t.e.w.mark("claim refused: conflict")
		}
	}
}

// attemptID names one attempt of a transaction.
type attemptID struct{ who, tx, attempt int }
