package embedded

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
)

// DB is one database. It is safe for concurrent use.
type DB struct {
	clock   Clock
	start   time.Time
	base    atomic.Int64 // the version at start; version gaps are added to it
	durable bool
	store   store
	hooks   Hooks
	watches *watchTable

	jitter struct {
		sync.Mutex
		*rand.Rand
	}

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

var _ kv.DB = (*DB)(nil)

// firstVersion is where a new database begins: a window above nothing, so that no version is negative.
const firstVersion = 2 * window

// reopenJump is how far versions jump when a stored database is opened, to be above every version given out
// before: those run ahead of the stored one by at most half of it.
const reopenJump = 2 * window

// OpenMemory returns an empty database that lives as long as the process.
func OpenMemory(o Options) *DB { return open(newMemStore(), o, firstVersion, false) }

func open(s store, o Options, version int64, durable bool) *DB {
	db := &DB{
		clock: o.Clock, durable: durable, store: s, hooks: o.Hooks,
		version: version, changed: version, stored: version,
	}
	if db.clock == nil {
		db.clock = wallClock{}
	}
	seed := o.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	db.jitter.Rand = rand.New(rand.NewPCG(seed, seed))
	limit := o.MaxWatches
	if limit == 0 {
		limit = defaultMaxWatches
	}
	db.watches = newWatchTable(limit)
	db.start = db.clock.Now()
	db.base.Store(version)
	db.published.L = &db.mu
	db.queue.idle.L = &db.queue.mu
	return db
}

// Begin starts a transaction. It never waits and fails only on a closed database. Batch and Tag of the options mean
// nothing here.
func (db *DB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	db.mu.Lock()
	closed := db.closed
	db.mu.Unlock()
	if closed {
		return nil, &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
	}
	return newTransaction(db, o), nil
}

// Close finishes the commits already sent, fails the watches with 1101 and gives the store back. A second Close
// does nothing.
func (db *DB) Close() error {
	db.mu.Lock()
	if db.closed {
		db.mu.Unlock()
		return nil
	}
	db.closed = true
	db.mu.Unlock()
	db.queue.drain()
	db.watches.close()

	db.mu.Lock()
	db.storeClosed = true
	dead := db.old
	if db.current != nil {
		dead = append(dead, db.current)
	}
	db.old, db.current = nil, nil
	db.mu.Unlock()
	for _, s := range dead {
		s.close()
	}
	return db.store.close()
}

// random returns a number in [0, 1).
func (db *DB) random() float64 {
	db.jitter.Lock()
	defer db.jitter.Unlock()
	return db.jitter.Float64()
}
