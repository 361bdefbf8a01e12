package embedded

import (
	"sync"
	"time"

	"fdbfifo/kv"
)

// transaction is one transaction over all its attempts.
type transaction struct {
	db      *DB
	options kv.TxOptions

	mu       sync.Mutex
	deadline time.Time // zero = none; OnError does not move it
	retries  int
	backoff  time.Duration
	current  *attempt
	version  int64 // of the last successful commit of an earlier attempt, or noVersion

	// All below belongs to the current attempt.
	readVersion int64     // 0 = not known yet
	snapshot    *snapshot // in this process
	home        *engine   // whose snapshot it is
	far         *farSnapshot
	blind       bool  // committed without a read version: the DB that has the file has taken one
	deferred    error // of the first write that failed
	poison      error // of the first read that failed
	own         overlay
	frozen      *overlay // own, while reads in flight may look at it
	reads       []keyRange
	sent        []mutation // flushed from own by a versionstamped key
	sentWrites  []keyRange // and their write conflicts
	stampKeys   []string   // templates of versionstamped keys
	watches     []*watch
	size        int64
	noConflict  bool // of the next write
	committing  bool // Commit was called
	retried     bool // begun by OnError
}

// attempt is what futures know of the attempt they belong to. Its fields are guarded by the transaction's mutex.
type attempt struct {
	err    error         // why it ended; nil while it is good
	ended  chan struct{} // closed with err; made at the first wait
	commit *commit       // made by Commit, or by Versionstamp before it

	reading int           // reads in flight
	idle    chan struct{} // closed when there are none; made at the first wait
}

var (
	_ kv.ManagedTx        = (*transaction)(nil)
	_ kv.ConflictReporter = (*transaction)(nil)
)

// The first delay of the backoff, and the caps, of FoundationDB's client.
const (
	firstBackoff       = 10 * time.Millisecond
	maxBackoff         = time.Second
	maxResourceBackoff = 30 * time.Second
	tooOldDelay        = 10 * time.Millisecond
)

// codeBrokenPromise is turned into 1025 by OnError.
const codeBrokenPromise = 1100

func newTransaction(db *DB, o kv.TxOptions) *transaction {
	t := &transaction{db: db, options: o, backoff: firstBackoff, current: &attempt{}, version: noVersion}
	t.startTimeout()
	return t
}

func (t *transaction) startTimeout() {
	if t.options.Timeout > 0 {
		t.deadline = t.db.clock.Now().Add(t.options.Timeout)
	}
}

// usable returns why the transaction cannot be used now, in FoundationDB's order: a deferred error, use during or
// after a commit, the end of the attempt.
func (t *transaction) usable() error {
	if t.deferred != nil {
		return t.deferred
	}
	if err := t.usedDuringCommit(); err != nil {
		return err
	}
	t.checkDeadline()
	return t.current.err
}

// usedDuringCommit also fails a commit in flight.
func (t *transaction) usedDuringCommit() error {
	if !t.committing {
		return nil
	}
	err := codeError(kv.CodeUsedDuringCommit)
	t.abort(err)
	return err
}

func (t *transaction) checkDeadline() {
	if !t.deadline.IsZero() && !t.db.clock.Now().Before(t.deadline) {
		err := codeError(kv.CodeTransactionTimedOut)
		t.abort(err)
		t.endWatches(err)
	}
}

// abort ends the current attempt; the first reason counts.
func (t *transaction) abort(err error) {
	a := t.current
	if a.err != nil {
		return
	}
	a.err = err
	if a.ended != nil {
		close(a.ended)
	}
}

// endWatches ends the watches that no commit took over.
func (t *transaction) endWatches(err error) {
	for _, w := range t.watches {
		w.end(err)
	}
	t.watches = nil
}

// left returns the time to the deadline, if there is one.
func (t *transaction) left() (d time.Duration, limited bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deadline.IsZero() {
		return 0, false
	}
	return t.deadline.Sub(t.db.clock.Now()), true
}

// aborted returns a channel that is closed when the attempt ends.
func (t *transaction) aborted(a *attempt) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return a.end()
}

// end returns a channel that is closed when the attempt ends.
func (a *attempt) end() <-chan struct{} {
	if a.ended == nil {
		a.ended = make(chan struct{})
		if a.err != nil {
			close(a.ended)
		}
	}
	return a.ended
}

func (t *transaction) abortError(a *attempt) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return a.err
}

// expire ends the attempt if the deadline has passed.
func (t *transaction) expire(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a == t.current {
		t.checkDeadline()
	}
}

// uncommitted reports whether a is the current attempt, and Commit was not called.
func (t *transaction) uncommitted(a *attempt) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return a == t.current && !t.committing
}

// Cancel implements kv.ManagedTx.
func (t *transaction) Cancel() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end()
}

// end is a Cancel.
func (t *transaction) end() {
	err := codeError(kv.CodeTransactionCancelled)
	t.abort(err)
	if c := t.current.commit; c != nil {
		c.giveUp()
	}
	t.endWatches(err)
	t.letGo()
}

// Reset implements kv.ManagedTx. The options stay.
func (t *transaction) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retries, t.backoff = 0, firstBackoff
	t.startTimeout()
	t.restart()
}

// restart begins another attempt.
func (t *transaction) restart() {
	t.end()
	if c := t.current.commit; c != nil && c.finished() && c.err == nil {
		t.version = c.version
	}
	t.current = &attempt{}
	t.readVersion = 0
	t.deferred, t.poison = nil, nil
	t.own, t.frozen = overlay{}, nil
	t.reads, t.sent, t.sentWrites, t.stampKeys, t.watches = nil, nil, nil, nil, nil
	t.size = 0
	t.noConflict, t.committing, t.retried, t.blind = false, false, false, false
}

// letGo releases the snapshot.
func (t *transaction) letGo() {
	if t.snapshot != nil {
		t.home.release(t.snapshot)
		t.snapshot = nil
	}
	if t.far != nil {
		t.far.release()
		t.far = nil
	}
}

// OnError implements kv.ManagedTx.
func (t *transaction) OnError(err error) kv.Future[struct{}] {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checkDeadline()
	if t.current.err != nil {
		return kv.Done(struct{}{}, t.current.err)
	}
	wait, again := t.retryAfter(err)
	if !again {
		switch {
		case err == nil:
			err = codeError(kv.CodeClientInvalidOperation)
		case kv.Code(err) == codeBrokenPromise:
			err = codeError(kv.CodeTransactionCancelled)
		}
		t.end()
		return kv.Done(struct{}{}, err)
	}
	t.restart()
	t.retried = true
	return &delay{tx: t, of: t.current, at: t.db.clock.Now().Add(wait), cancelled: make(chan struct{})}
}

// retryAfter returns how long to wait before the next attempt; again is false if err ends the transaction.
func (t *transaction) retryAfter(err error) (wait time.Duration, again bool) {
	if t.options.Retries > 0 && t.retries >= t.options.Retries {
		return 0, false
	}
	t.retries++
	limit := maxBackoff
	if t.options.MaxRetryDelay > 0 {
		limit = t.options.MaxRetryDelay
	}
	switch kv.Code(err) {
	case kv.CodeTransactionTooOld, kv.CodeFutureVersion:
		return min(tooOldDelay, limit), true
	case kv.CodeCommitProxyMemoryLimit, kv.CodeGRVProxyMemoryLimit:
		limit = maxResourceBackoff
	case kv.CodeNotCommitted, kv.CodeCommitUnknownResult, kv.CodeDatabaseLocked, kv.CodeProcessBehind,
		kv.CodeBatchThrottled, kv.CodeTagThrottled, kv.CodeProxyTagThrottled, kv.CodeBlobGranuleFailed:
	default:
		return 0, false
	}
	wait = time.Duration(t.db.random() * float64(t.backoff))
	t.backoff = min(2*t.backoff, limit)
	return wait, true
}
