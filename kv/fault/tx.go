package fault

import (
	"context"
	"sync"

	"fdbfifo/kv"
)

// faultyTx is a transaction under a plan. Like the engine's it may be used by several goroutines.
type faultyTx struct {
	db      *faultyDB
	options kv.TxOptions

	mu    sync.Mutex
	inner kv.ManagedTx // another one after a late commit, or a change of the version, took it along
	attempt
}

// attempt is what the wrapper knows of the current attempt.
type attempt struct {
	versioned bool  // the read version was asked for, or set
	wrote     bool  // a commit will be sent to the engine
	failed    bool  // the commit ended with an injected error
	changed   bool  // which was 1039: inner is new already
	broken    error // of every further read and commit
	poison    error // of a failed read, for the commit

	watches  []*overridable[struct{}] // not yet committed
	spurious []*overridable[struct{}] // those of watches that are to fire at commit
	stamps   []*overridable[[10]byte]
}

func (t *faultyTx) engine() kv.ManagedTx {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inner
}

// write returns the engine's transaction for a write.
func (t *faultyTx) write() kv.ManagedTx {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrote = true
	return t.inner
}

// version chooses whether the attempt gets a read version, at the call that asks for it first; t.mu is held.
func (t *faultyTx) version() error {
	if t.broken != nil || t.versioned {
		return t.broken
	}
	t.versioned = true
	e := t.db.plan.choose(atReadVersion)
	if e.kind != None {
		t.db.plan.record(e)
		t.broken = e.kind.err()
	}
	return t.broken
}

// read returns the error to inject into a read, if any. A failed read fails the commit too.
func (t *faultyTx) read() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.version(); err != nil {
		return err
	}
	e := t.db.plan.choose(atRead)
	if e.kind == None {
		return nil
	}
	t.db.plan.record(e)
	err := e.kind.err()
	if t.poison == nil {
		t.poison = err
	}
	return err
}

func (t *faultyTx) Get(key []byte) kv.Future[[]byte] {
	if err := t.read(); err != nil {
		return kv.Done[[]byte](nil, err)
	}
	return t.engine().Get(key)
}

func (t *faultyTx) GetKey(s kv.KeySelector) kv.Future[[]byte] {
	if err := t.read(); err != nil {
		return kv.Done[[]byte](nil, err)
	}
	return t.engine().GetKey(s)
}

func (t *faultyTx) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	if err := t.read(); err != nil {
		return kv.Done[[]kv.KV](nil, err)
	}
	return t.engine().GetRange(r, o)
}

func (t *faultyTx) ReadVersion() kv.Future[int64] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.version(); err != nil {
		return kv.Done[int64](0, err)
	}
	return t.inner.ReadVersion()
}

// snapshot is the snapshot view of a transaction.
type snapshot struct{ *faultyTx }

func (t *faultyTx) Snapshot() kv.ReadTx { return snapshot{t} }

func (s snapshot) Get(key []byte) kv.Future[[]byte] {
	if err := s.read(); err != nil {
		return kv.Done[[]byte](nil, err)
	}
	return s.engine().Snapshot().Get(key)
}

func (s snapshot) GetKey(k kv.KeySelector) kv.Future[[]byte] {
	if err := s.read(); err != nil {
		return kv.Done[[]byte](nil, err)
	}
	return s.engine().Snapshot().GetKey(k)
}

func (s snapshot) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	if err := s.read(); err != nil {
		return kv.Done[[]kv.KV](nil, err)
	}
	return s.engine().Snapshot().GetRange(r, o)
}

func (t *faultyTx) Set(key, value []byte)             { t.write().Set(key, value) }
func (t *faultyTx) Clear(key []byte)                  { t.write().Clear(key) }
func (t *faultyTx) ClearRange(r kv.KeyRange)          { t.write().ClearRange(r) }
func (t *faultyTx) NextWriteNoConflict()              { t.engine().NextWriteNoConflict() }
func (t *faultyTx) ApproximateSize() kv.Future[int64] { return t.engine().ApproximateSize() }

func (t *faultyTx) Atomic(op kv.MutationType, key, operand []byte) {
	t.write().Atomic(op, key, operand)
}

func (t *faultyTx) AddReadConflictRange(r kv.KeyRange) error {
	return t.engine().AddReadConflictRange(r)
}

func (t *faultyTx) AddWriteConflictRange(r kv.KeyRange) error {
	return t.write().AddWriteConflictRange(r)
}

func (t *faultyTx) Watch(key []byte) kv.Future[struct{}] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.version(); err != nil {
		return kv.Done(struct{}{}, err)
	}
	e := t.db.plan.choose(atWatch)
	if e.kind != None {
		t.db.plan.record(e)
	}
	if e.kind == WatchError {
		return kv.Done(struct{}{}, e.kind.err())
	}
	w := &overridable[struct{}]{Future: t.inner.Watch(key)}
	t.watches = append(t.watches, w)
	if e.kind == WatchSpurious {
		t.spurious = append(t.spurious, w)
	}
	return w
}

func (t *faultyTx) Versionstamp() kv.Future[[10]byte] {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &overridable[[10]byte]{Future: t.inner.Versionstamp()}
	t.stamps = append(t.stamps, s)
	return s
}

func (t *faultyTx) SetReadVersion(v int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.versioned = true
	t.inner.SetReadVersion(v)
}

func (t *faultyTx) CommittedVersion() (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed {
		return -1, nil
	}
	return t.inner.CommittedVersion()
}

// OnError is the engine's, except after an injected 1039. An engine need not retry that code. FoundationDB's
// multi-version client does retry it, without a delay, in a new transaction, and so does OnError. A new attempt forgets
// the faults of the one before.
func (t *faultyTx) OnError(err error) kv.Future[struct{}] {
	t.mu.Lock()
	if t.changed && kv.Code(err) == kv.CodeClusterVersionChanged {
		defer t.mu.Unlock()
		t.attempt = attempt{}
		return kv.Done(struct{}{}, nil)
	}
	t.mu.Unlock()
	return &after{Future: t.engine().OnError(err), success: func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.attempt = attempt{}
		return nil
	}}
}

func (t *faultyTx) Cancel() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken, t.changed = &kv.Error{Code: kv.CodeTransactionCancelled}, false
	t.inner.Cancel()
}

func (t *faultyTx) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt = attempt{}
	t.inner.Reset()
}

// reportingTx is a faultyTx over an engine that reports conflict ranges.
type reportingTx struct{ *faultyTx }

func (t reportingTx) ConflictRanges(ctx context.Context) (read, write []kv.KeyRange, err error) {
	return t.engine().(kv.ConflictReporter).ConflictRanges(ctx)
}
