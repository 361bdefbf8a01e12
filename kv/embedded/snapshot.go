package embedded

import (
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"fdbfifo/kv"
)

// errStalled says that a write of the store has lasted for longer than the window.
var errStalled = errors.New("embedded: the disk has not finished a write for more than 5 s")

// snapshot is a view shared by the transactions whose read version it serves.
type snapshot struct {
	view view

	refs   int   // open transactions; guarded by engine.mu
	newest int64 // the highest read version it was given out for; guarded by engine.mu

	// It serves versions from <= v < until. from is the version of its last commit, and never changes. until is set
	// when a commit supersedes the snapshot. Guarded by engine.mu.
	from, until int64

	// pin is held for reading during a read and for writing while the view is closed.
	pin    sync.RWMutex
	closed bool
}

// read calls fn with the view; error 1007 if the snapshot was given up.
func (s *snapshot) read(fn func(v view) error) error {
	s.pin.RLock()
	defer s.pin.RUnlock()
	if s.closed {
		return codeError(kv.CodeTransactionTooOld)
	}
	return fn(s.view)
}

// close waits for reads that are under way.
func (s *snapshot) close() {
	s.pin.Lock()
	defer s.pin.Unlock()
	if !s.closed {
		s.closed = true
		s.view.close()
	}
}

// now is the version that the clock says it is.
func (e *engine) now() int64 {
	return e.base.Load() + e.clock.Now().Sub(e.start).Microseconds()
}

// idleSpan is the number of versions without a commit after which a read version is taken from the clock, as if an
// empty commit had been made. So versions advance while the database is idle, and transactions that begin close
// together still share a version.
const idleSpan = 100_000

// acquire returns a read version and the snapshot at it. The caller releases it.
func (e *engine) acquire() (int64, *snapshot, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.advanceLocked(); err != nil {
		return 0, nil, err
	}
	s, err := e.newestLocked()
	return e.version, s, err
}

// acquireNewest is acquire for the pipeline, which cannot wait for itself to advance the version.
func (e *engine) acquireNewest() (*snapshot, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.newestLocked()
}

// acquireAt returns the snapshot at version v: the newest if no commit followed v, or one that is still open;
// else error 1007, or 1009 for a version that is not there yet.
func (e *engine) acquireAt(v int64) (*snapshot, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.advanceLocked(); err != nil {
		return nil, err
	}
	if v > e.version {
		return nil, codeError(kv.CodeFutureVersion)
	}
	if v >= e.changed {
		return e.newestLocked()
	}
	if i := e.oldAtLocked(v); i < len(e.old) && e.old[i].from <= v && v < e.old[i].until {
		s := e.old[i]
		s.refs++
		s.newest = max(s.newest, v)
		return s, nil
	}
	return nil, codeError(kv.CodeTransactionTooOld)
}

// readVersion returns a read version without a snapshot, for a transaction that only writes.
func (e *engine) readVersion() (int64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.advanceLocked(); err != nil {
		return 0, err
	}
	return e.version, nil
}

// newestStored returns the newest version in the store.
func (e *engine) newestStored() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stored
}

// advanceLocked lets the version follow the clock when nothing commits.
func (e *engine) advanceLocked() error {
	for {
		if e.closed {
			return &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
		}
		v := e.now()
		if e.applying || v-e.version < idleSpan {
			return nil
		}
		// A failed store commits nothing more, so no process after this one depends on its versions.
		if e.failed != nil || !e.durable || v-e.stored < reopenJump/2 {
			e.version = v
			return nil
		}
		// Versions must never go back after a restart, so one that far ahead is written down first.
		e.mu.Unlock()
		c := &commit{empty: true, done: make(chan struct{})}
		e.submit(c)
		stalled := false
		select {
		case <-c.done:
		case <-e.clock.After(advanceLimit):
			stalled = true
		}
		e.mu.Lock()
		if stalled {
			return nil // no commit has come in that time: the version is the newest, as during each write
		}
	}
}

// advanceLimit bounds how long a call waits in advanceLocked, because the context of the call cannot end that wait.
const advanceLimit = time.Second

// newestLocked returns the snapshot of the newest version, with a reference.
func (e *engine) newestLocked() (*snapshot, error) {
	if err := e.viewLocked(); err != nil {
		return nil, err
	}
	e.current.refs++
	e.current.newest = e.version
	return e.current, nil
}

// viewLocked makes sure that there is a current snapshot. After a failed write there is none, because the newest state
// may be the one before that write or the one after it.
//
// On disk there is none either if the present write has outlasted the window: see reap. The disk may hang for long, and
// the caller's context could not end a wait here. So the error is then 1037, and the caller's loop tries again.
func (e *engine) viewLocked() error {
	for e.current == nil && e.applying {
		if e.durable && e.version < e.now()-window {
			return &kv.Error{Code: kv.CodeProcessBehind, Cause: errStalled}
		}
		e.published.Wait()
	}
	if e.failed != nil && !e.storeClosed {
		return &kv.Error{Code: kv.CodeIOError, Cause: e.failed}
	}
	if e.current != nil {
		return nil
	}
	if e.storeClosed {
		return &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
	}
	v, err := e.store.snapshot()
	if err != nil {
		return &kv.Error{Code: kv.CodeIOError, Cause: err}
	}
	e.current = &snapshot{view: v, from: e.changed, newest: e.version}
	return nil
}

// release gives a reference back and closes a superseded snapshot with the last.
func (e *engine) release(s *snapshot) {
	e.mu.Lock()
	s.refs--
	unused := s.refs == 0 && s != e.current
	if unused {
		if i := e.oldAtLocked(s.from); i < len(e.old) && e.old[i] == s {
			e.old = slices.Delete(e.old, i, i+1)
		}
	}
	e.mu.Unlock()
	if unused {
		s.close()
	}
}

// oldAtLocked returns the index of the superseded snapshot that serves version v, if there is one. They are kept
// in the order of their versions.
func (e *engine) oldAtLocked(v int64) int {
	return sort.Search(len(e.old), func(i int) bool { return e.old[i].until > v })
}

// retireLocked takes the current snapshot out of use at a commit. It returns the snapshot if no transaction reads from
// it.
func (e *engine) retireLocked(version int64) *snapshot {
	s := e.current
	e.current = nil
	if s == nil || s.refs == 0 {
		return s
	}
	s.until = version
	e.old = append(e.old, s)
	return nil
}

// closeIdle closes the current snapshot if no transaction reads from it, because a write below an open snapshot costs
// more. A reader that comes before the write is done waits for the next snapshot.
func (e *engine) closeIdle() {
	e.mu.Lock()
	s := e.current
	if s == nil || s.refs > 0 {
		e.mu.Unlock()
		return
	}
	e.current = nil
	e.mu.Unlock()
	s.close()
}

// reap closes the snapshots that only transactions past the window still hold: an open view costs memory, and
// on disk it stops the file's map from growing. Reads of those transactions fail with 1007 in any case.
func (e *engine) reap() {
	oldest := e.now() - window
	var dead []*snapshot
	e.mu.Lock()
	n := 0
	for n < len(e.old) && e.old[n].newest < oldest {
		n++
	}
	dead = append(dead, e.old[:n]...)
	e.old = slices.Delete(e.old, 0, n)
	if s := e.current; s != nil && e.applying && e.version < oldest {
		e.current = nil
		dead = append(dead, s)
	}
	e.mu.Unlock()
	for _, s := range dead {
		s.close()
	}
}
