package embedded

import (
	"slices"
	"sort"
	"sync"

	"fdbfifo/kv"
)

// snapshot is a view shared by the transactions whose read version it serves.
type snapshot struct {
	view view

	refs   int   // open transactions; guarded by DB.mu
	newest int64 // the highest read version it was given out for; guarded by DB.mu

	// It serves versions from <= v < until; until is set when a commit supersedes it. Guarded by DB.mu.
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
func (db *DB) now() int64 {
	return db.base.Load() + db.clock.Now().Sub(db.start).Microseconds()
}

// idleSpan is after how many versions without a commit a read version is taken from the clock, as an empty
// commit would give it: versions advance while idle, and transactions close together still share one.
const idleSpan = 100_000

// acquire returns a read version and the snapshot at it. The caller releases it.
func (db *DB) acquire() (int64, *snapshot, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.advanceLocked(); err != nil {
		return 0, nil, err
	}
	s, err := db.newestLocked()
	return db.version, s, err
}

// acquireNewest is acquire for the pipeline, which cannot wait for itself to advance the version.
func (db *DB) acquireNewest() (*snapshot, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.newestLocked()
}

// acquireAt returns the snapshot at version v: the newest if no commit followed v, or one that is still open;
// else error 1007, or 1009 for a version that is not there yet.
func (db *DB) acquireAt(v int64) (*snapshot, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.advanceLocked(); err != nil {
		return nil, err
	}
	if v > db.version {
		return nil, codeError(kv.CodeFutureVersion)
	}
	if v >= db.changed {
		return db.newestLocked()
	}
	if i := db.oldAtLocked(v); i < len(db.old) && db.old[i].from <= v && v < db.old[i].until {
		s := db.old[i]
		s.refs++
		s.newest = max(s.newest, v)
		return s, nil
	}
	return nil, codeError(kv.CodeTransactionTooOld)
}

// readVersion returns a read version without a snapshot, for a transaction that only writes.
func (db *DB) readVersion() (int64, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.advanceLocked(); err != nil {
		return 0, err
	}
	return db.version, nil
}

// advanceLocked lets the version follow the clock when nothing commits.
func (db *DB) advanceLocked() error {
	for {
		if db.closed {
			return &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
		}
		v := db.now()
		if db.applying || v-db.version < idleSpan {
			return nil
		}
		// A failed store commits nothing more, so its versions bind nobody.
		if db.failed != nil || !db.durable || v-db.stored < reopenJump/2 {
			db.version = v
			return nil
		}
		// Versions must never go back after a restart, so one that far ahead is written down first.
		db.mu.Unlock()
		c := &commit{empty: true, done: make(chan struct{})}
		db.submit(c)
		<-c.done
		db.mu.Lock()
	}
}

// newestLocked returns the snapshot of the newest version, with a reference.
func (db *DB) newestLocked() (*snapshot, error) {
	if err := db.viewLocked(); err != nil {
		return nil, err
	}
	db.current.refs++
	db.current.newest = db.version
	return db.current, nil
}

// viewLocked makes sure that there is a current snapshot.
func (db *DB) viewLocked() error {
	for db.current == nil && db.applying {
		db.published.Wait()
	}
	if db.current != nil {
		return nil
	}
	if db.storeClosed {
		return &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
	}
	if db.failed != nil {
		return &kv.Error{Code: kv.CodeIOError, Cause: db.failed}
	}
	v, err := db.store.snapshot()
	if err != nil {
		return &kv.Error{Code: kv.CodeIOError, Cause: err}
	}
	db.current = &snapshot{view: v, from: db.changed, newest: db.version}
	return nil
}

// release gives a reference back and closes a superseded snapshot with the last.
func (db *DB) release(s *snapshot) {
	db.mu.Lock()
	s.refs--
	unused := s.refs == 0 && s != db.current
	if unused {
		if i := db.oldAtLocked(s.from); i < len(db.old) && db.old[i] == s {
			db.old = slices.Delete(db.old, i, i+1)
		}
	}
	db.mu.Unlock()
	if unused {
		s.close()
	}
}

// oldAtLocked returns the index of the superseded snapshot that serves version v, if there is one. They are kept
// in the order of their versions.
func (db *DB) oldAtLocked(v int64) int {
	return sort.Search(len(db.old), func(i int) bool { return db.old[i].until > v })
}

// retireLocked takes the current snapshot out of use at a commit and returns it if nobody reads from it.
func (db *DB) retireLocked(version int64) *snapshot {
	s := db.current
	db.current = nil
	if s == nil || s.refs == 0 {
		return s
	}
	s.until = version
	db.old = append(db.old, s)
	return nil
}

// reap closes the snapshots that only transactions past the window still hold: an open view costs memory, and
// on disk it stops the file's map from growing. Reads of those transactions fail with 1007 in any case.
func (db *DB) reap() {
	oldest := db.now() - window
	var dead []*snapshot
	db.mu.Lock()
	n := 0
	for n < len(db.old) && db.old[n].newest < oldest {
		n++
	}
	dead = append(dead, db.old[:n]...)
	db.old = slices.Delete(db.old, 0, n)
	if s := db.current; s != nil && db.applying && db.version < oldest {
		db.current = nil
		dead = append(dead, s)
	}
	db.mu.Unlock()
	for _, s := range dead {
		s.close()
	}
}
