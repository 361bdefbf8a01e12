package layer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fdbfifo/kv"
)

// A handle follows its queue's configuration, and whether it is paused, without a timer: a transaction that begins when what the handle knows is
// older than followAge reads it anew, beside its other reads, and goes by what it finds.

// followAge keeps a handle in use within a second of the configuration: a transaction that begins with what is just
// not too old has half a second left.
const followAge = 500 * time.Millisecond

// followed is what the handle knows of the configuration.
type followed struct {
	mu      sync.Mutex
	config  Config    // guarded by mu
	version int64     // guarded by mu; 0 = nothing is known yet
	paused  *mark     // guarded by mu; nil = the queue is not paused
	read    time.Time // guarded by mu; by the handle's clock
	since   time.Time // guarded by mu; likewise, when the version was learned
}

// learnConfig is learn for a configuration that was read by itself.
func (f *followed) learnConfig(config Config, version int64, now time.Time) {
	f.mu.Lock()
	read := f.read
	f.mu.Unlock()
	f.learn(config, version, read, now)
}

// learnPause takes over whether the queue is paused.
func (f *followed) learnPause(m *mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = m
}

// forget makes the next transaction read anew.
func (f *followed) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read = time.Time{}
}

// learn takes over what was read in a transaction that was begun at read, unless it is older than what is known. It returns
// what is known then. A version that is lower, and was read by one that was begun later, is not older: the other was read
// by the transaction that had set it, and never committed.
func (f *followed) learn(config Config, version int64, read, now time.Time) Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	if version >= f.version || read.After(f.since) {
		if version != f.version {
			f.since = now
		}
		f.config, f.version = config, version
	}
	f.read = read
	return f.config
}

// fresh returns what is known, when it was read, and whether it need not be read anew.
func (f *followed) fresh(now time.Time) (Config, *mark, time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	age := now.Sub(f.read)
	return f.config, f.paused, f.read, f.version > 0 && age >= 0 && age < followAge
}

// Config is the queue's configuration as this handle knows it: as of its last transaction, or at most half a second
// older.
func (q *Queue) Config() Config {
	c, _, _, _ := q.followed.fresh(time.Time{})
	return c
}

// following is the configuration that one transaction goes by, and whether the queue is paused for it.
type following struct {
	q      *Queue
	begun  time.Time         // when the transaction was begun, as far as is known
	known  time.Time         // when what it goes by was read
	stored kv.Future[[]byte] // nil if config and paused are known
	pause  kv.Future[[]byte]
	only   bool // the handle does not learn from it: the transaction may have changed the configuration itself
	config Config
	paused *mark
}

// follow begins to read the configuration if the handle has to. It is a snapshot read: a change of the configuration
// makes nobody's transaction conflict.
func (q *Queue) follow(tx kv.Tx) *following {
	now := q.opts.Now()
	if config, paused, read, fresh := q.followed.fresh(now); fresh {
		return &following{q: q, begun: now, known: read, config: config, paused: paused}
	}
	return q.followAnew(tx, now)
}

// followAnew is follow for a transaction, begun at that time, that must not go by what the handle knows.
//
// What it reads is of the time of its read version, which may be as old as the transaction: for the handle it counts from
// then on, or the transactions that come next would go by what was.
func (q *Queue) followAnew(tx kv.Tx, begun time.Time) *following {
	s := tx.Snapshot()
	return &following{
		q: q, begun: begun, known: q.opts.Now(), stored: s.Get(q.keys.meta(metaConfig)), pause: s.Get(q.keys.meta(metaPaused)),
	}
}

// wait returns the configuration.
func (f *following) wait(ctx context.Context) (Config, error) {
	if f.stored == nil {
		return f.config, nil
	}
	value, err := f.stored.Wait(ctx)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	config, version, err := unpackConfig(f.q.keys.meta(metaConfig), value)
	if err != nil {
		return Config{}, err
	}
	pauseKey := f.q.keys.meta(metaPaused)
	if value, err = f.pause.Wait(ctx); err != nil {
		return Config{}, fmt.Errorf("read pause: %w", err)
	}
	if f.paused, err = unpackPause(pauseKey, value); err != nil {
		return Config{}, err
	}
	f.config, f.stored = config, nil
	if !f.only {
		f.q.followed.learnPause(f.paused)
		f.config = f.q.followed.learn(config, version, f.begun, f.q.opts.Now())
	}
	return f.config, nil
}

// readConfig reads a stored document.
func readConfig(key []byte, document string) (Config, error) {
	var c Config
	err := c.unmarshal([]byte(document))
	if err == nil {
		c, err = c.withDefaults()
	}
	var unknown *UnknownSettingError
	if err != nil && !errors.As(err, &unknown) {
		err = corrupt(key, err)
	}
	return c, err
}

// followLimit is how old the configuration may be that a transaction has gone by when it ends.
const followLimit = time.Second

// guardDrop makes the transaction fail if the queue is dropped before it commits, and makes sure that it had to look
// whether it has been.
func (f *following) guardDrop(ctx context.Context, tx kv.Tx) error {
	if err := guardDrop.read(tx, kv.SingleKey(f.q.keys.meta(metaDropped))); err != nil {
		return err
	}
	if age := f.q.opts.Now().Sub(f.known); age >= 0 && age <= followLimit || lacks(guardDropLook) {
		return nil
	}
	look := f.q.followAnew(tx, f.begun)
	look.only = true
	_, err := look.wait(ctx)
	return err
}
