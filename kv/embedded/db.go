package embedded

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
)

// DB is one database. It is safe for concurrent use.
type DB struct {
	clock Clock
	slots watchSlots

	jitter struct {
		sync.Mutex
		*rand.Rand
	}

	closed atomic.Bool
	local  atomic.Pointer[engine] // nil while another process has the database
	link   *link                  // to that process; nil if this one has had the database from the beginning

	refuses error // what a commit that writes ends with; nil = none is refused
}

var _ kv.DB = (*DB)(nil)

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = wallClock{}
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.MaxWatches == 0 {
		o.MaxWatches = defaultMaxWatches
	}
	return o
}

// newDB returns a database without an engine; o has its defaults.
func newDB(o Options) *DB {
	db := &DB{clock: o.Clock}
	db.slots.limit = int64(o.MaxWatches)
	db.jitter.Rand = rand.New(rand.NewPCG(o.Seed, o.Seed))
	return db
}

// OpenMemory returns an empty database that lives as long as the process.
func OpenMemory(o Options) *DB {
	o = o.withDefaults()
	db := newDB(o)
	db.local.Store(newEngine(newMemStore(), o, firstVersion, false))
	return db
}

// Begin starts a transaction. It never waits, and fails only on a closed database. It ignores Batch and Tag of the
// options.
func (db *DB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if db.closed.Load() {
		return nil, &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
	}
	return newTransaction(db, o), nil
}

// Serves reports whether this DB has the database open itself. A DB in memory always has. For a folder it is false
// while another DB, in this process or another, has the database open. It becomes true when this DB takes over.
func (db *DB) Serves() bool { return db.local.Load() != nil }

// Close finishes the commits already sent, fails the watches with 1101 and releases the store. A second Close does
// nothing. If the disk hangs, so that no commit ends for 5 s, Close returns an error. The folder then stays locked
// until the disk has finished the write, or this process has ended.
func (db *DB) Close() error {
	if db.closed.Swap(true) {
		return nil
	}
	if db.link != nil {
		db.link.close()
	}
	if e := db.local.Load(); e != nil {
		return e.close()
	}
	return nil
}

// silentLimit is how long OpenDisk waits for a process that has the folder and shows no sign of life.
const silentLimit = 10 * time.Second

// join opens the database in the folder, or connects to the process that has it open. It waits while another process
// opens the folder. That may take long with a large file, and the other process may be killed.
func (db *DB) join(f *folder) error {
	l := newLink(db, f)
	last, seen := time.Now(), f.sign(socketName)
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		c, e, err := f.join(l.ctx, l)
		if s := f.sign(socketName); !s.equal(seen) {
			last, seen = time.Now(), s
		}
		switch {
		case err == nil && e != nil:
			l.cancel()
			db.local.Store(e)
			return nil
		case err == nil:
			db.link, l.conn = l, c
			go l.run(c)
			return nil
		case time.Since(last) >= patienceWith(err):
			l.cancel()
			return err
		}
		time.Sleep(wait)
	}
}

// patienceWith returns how long OpenDisk waits after the last sign of life if it cannot open the folder because of err.
func patienceWith(err error) time.Duration {
	var own *unservable
	switch {
	case errors.Is(err, ErrOtherUser):
		return unservedLimit
	// If another process has the file, serve has waited for it already.
	case errors.As(err, &own), !errors.Is(err, ErrLocked),
		errors.Is(err, errProtocol), errors.Is(err, errFrame), errors.Is(err, fs.ErrPermission):
		return 0
	}
	return silentLimit
}

// submit sends a commit to the DB that has the database open. It does not wait.
func (db *DB) submit(c *commit) {
	if e := db.local.Load(); e != nil {
		e.submit(c)
	} else {
		db.link.submit(c)
	}
}

// register implements watcher.
func (db *DB) register(watches []*watch) {
	if len(watches) == 0 {
		return
	}
	if e := db.local.Load(); e != nil {
		e.register(watches)
	} else {
		db.link.register(watches)
	}
}

// random returns a number in [0, 1).
func (db *DB) random() float64 {
	db.jitter.Lock()
	defer db.jitter.Unlock()
	return db.jitter.Float64()
}
