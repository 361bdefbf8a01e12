package record

import (
	"context"
	"sync"

	"fdbfifo/kv"
)

// Recorder is an engine that notes what its transactions do. It is safe for concurrent use.
type Recorder struct {
	kv.DB
	counters counters
	logging  bool

	mu  sync.Mutex
	log []Transaction
}

// Wrap returns db with counters and a log of its transactions. The log grows until Take.
func Wrap(db kv.DB) *Recorder { return &Recorder{DB: db, logging: true} }

// WrapCounting returns db with counters alone, for benchmarks.
func WrapCounting(db kv.DB) *Recorder { return &Recorder{DB: db} }

// Counters returns the totals since Wrap.
func (r *Recorder) Counters() Counters { return r.counters.load() }

// Take returns the log and empties it: the attempts whose commit was awaited, failed ones included, in the order
// in which they ended.
func (r *Recorder) Take() []Transaction {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log = nil
	return log
}

// Begin begins a transaction that is noted. It is a kv.ConflictReporter if the engine's is one.
func (r *Recorder) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	inner, err := r.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	t := &managedTx{Tx: &Tx{Tx: inner, counters: &r.counters}, inner: inner, recorder: r}
	if r.logging {
		t.log = &opLog{}
	}
	if reporter, ok := inner.(kv.ConflictReporter); ok {
		return reportingTx{t, reporter}, nil
	}
	return t, nil
}

// managedTx is a Tx with its lifecycle.
type managedTx struct {
	*Tx
	inner    kv.ManagedTx
	recorder *Recorder

	mu      sync.Mutex
	attempt int
}

func (t *managedTx) SetReadVersion(v int64)           { t.inner.SetReadVersion(v) }
func (t *managedTx) CommittedVersion() (int64, error) { return t.inner.CommittedVersion() }
func (t *managedTx) Cancel()                          { t.inner.Cancel() }

func (t *managedTx) Commit() kv.Future[struct{}] {
	var noted Transaction
	if t.recorder.logging {
		// Before the commit, for after it the engine no longer answers. A failure here is the commit's too.
		noted, _ = t.Transaction(context.Background())
		t.mu.Lock()
		noted.Attempt = t.attempt
		t.mu.Unlock()
	}
	return &committing{Future: t.inner.Commit(), tx: t, noted: noted}
}

// committing is a commit whose end is noted.
type committing struct {
	kv.Future[struct{}]
	tx    *managedTx
	once  sync.Once
	noted Transaction
}

func (c *committing) Wait(ctx context.Context) (struct{}, error) {
	_, err := c.Future.Wait(ctx)
	c.once.Do(func() { c.tx.ended(c.noted, err) })
	return struct{}{}, err
}

func (t *managedTx) ended(noted Transaction, err error) {
	r := t.recorder
	switch {
	case err == nil:
		r.counters.commits.Add(1)
	case kv.Code(err) == kv.CodeNotCommitted:
		r.counters.conflicts.Add(1)
	default:
		r.counters.failures.Add(1)
	}
	if !r.logging {
		return
	}
	if noted.Err = err; err == nil {
		noted.Version, noted.Err = t.inner.CommittedVersion()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, noted)
}

func (t *managedTx) OnError(err error) kv.Future[struct{}] {
	return &counted[struct{}]{Future: t.inner.OnError(err), count: func(struct{}) {
		t.log.clear()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.attempt++
	}}
}

func (t *managedTx) Reset() {
	t.inner.Reset()
	t.log.clear()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt = 0
}

// reportingTx is a managedTx over an engine that reports conflict ranges.
type reportingTx struct {
	*managedTx
	kv.ConflictReporter
}
