package embedded

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// engine is an open store and all that its transactions share: versions, snapshots, the commit pipeline, watches.
// One process has it; a DB meets it directly, or over a socket.
type engine struct {
	clock   Clock
	start   time.Time
	base    atomic.Int64 // the version at start; version gaps are added to it
	durable bool         // commits and versions are stored for later processes
	store   store
	hooks   Hooks
	watches *watchTable
	server  *server      // of the other processes; nil if there can be none
	lock    io.Closer    // of the folder; nil if there is none
	groups  atomic.Int64 // commit groups that have ended

	mu          sync.Mutex
	published   sync.Cond   // a commit group was applied
	version     int64       // newest committed
	changed     int64       // the version of the last commit that wrote anything
	stored      int64       // newest in the store
	current     *snapshot   // of the newest version; nil until it is read
	old         []*snapshot // superseded, still read from; by version
	applying    bool        // a group is being written; the store must not be touched
	failed      error       // the store's first failed write
	closed      bool
	storeClosed bool

	queue pipeline
}

// firstVersion is where a new database begins: a window above nothing, so that no version is negative.
const firstVersion = 2 * window

// reopenJump is how far versions jump at least when a stored database is opened, to be above every version given out
// before: those run ahead of the stored one by at most half of it.
const reopenJump = 2 * window

func newEngine(s store, o Options, version int64, durable bool) *engine {
	e := &engine{
		clock: o.Clock, durable: durable, store: s, hooks: o.Hooks, watches: &watchTable{},
		version: version, changed: version, stored: version,
	}
	e.start = e.clock.Now()
	e.base.Store(version)
	e.published.L = &e.mu
	e.queue.idle.L = &e.queue.mu
	return e
}

// stuckLimit is how long close waits for a store in which nothing moves: for two halves, so that a process that has
// stood still for longer looks once more.
const stuckLimit = 5 * time.Second

// close finishes the commits already sent, fails the watches with 1101 and gives the store back. A second close does
// nothing. close returns an error if no commit group has ended for stuckLimit, as on a disk that hangs. The store is
// then given back when its write has ended.
func (e *engine) close() error {
	ended := make(chan error, 1)
	go func() { ended <- e.end() }()
	for last, still := e.groups.Load(), 0; ; {
		select {
		case err := <-ended:
			return err
		case <-time.After(stuckLimit / 2):
		}
		if now := e.groups.Load(); now != last {
			last, still = now, 0
		} else if still++; still == 2 {
			return fmt.Errorf("%w: the folder stays locked until the write has ended", errStalled)
		}
	}
}

// end is close without a bound.
func (e *engine) end() error {
	// Clients first: the server still answers the requests that they have sent. A client must not hear that the
	// database is closed, because it would give up, and another process continues with the database.
	if e.server != nil {
		e.server.close()
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.mu.Unlock()
	e.queue.drain()
	e.watches.close()

	e.mu.Lock()
	e.storeClosed = true
	dead := e.old
	if e.current != nil {
		dead = append(dead, e.current)
	}
	e.old, e.current = nil, nil
	e.mu.Unlock()
	for _, s := range dead {
		s.close()
	}
	err := e.store.close()
	if e.lock != nil {
		err = errors.Join(err, e.lock.Close())
	}
	return err
}
