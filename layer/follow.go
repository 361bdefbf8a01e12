package layer

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
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

// packConfig lays out the stored configuration.
func packConfig(c Config, version int64) ([]byte, error) {
	document, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("layer: configuration: %w", err)
	}
	return tuple.Tuple{version, string(document)}.Pack(), nil
}

func unpackConfig(key, value []byte) (Config, int64, error) {
	if value == nil {
		return Config{}, 0, ErrNoQueue
	}
	d := keyDecoder{rest: value}
	version, document := d.int(), d.str()
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	if d.err != nil {
		return Config{}, 0, corrupt(key, d.err)
	}
	c, err := readConfig(key, document)
	return c, version, err
}

// Configure changes the queue's configuration: change is given the stored one and changes it. It returns the new one
// and its version, which counts the changes from 1, the creation, on. Two changes at the same time both count: change
// runs again on what the other one has left, so it must not rely on how often it runs. Every handle follows within a
// second.
//
// After a change of MaxRate it goes through the groups that were lately delivered from, as a sweep does, in short steps at
// batch priority: those that wait by the old rate wait by the new one. If that fails, or ctx ends, the error comes with the
// new configuration, which holds, and the next sweep does the rest.
//
// Errors: *LimitError, *ValueError: nothing was changed; *UnknownSettingError if a newer version of this library has
// written the configuration; ErrClosed, and the engine's.
func (q *Queue) Configure(ctx context.Context, change func(c *Config)) (Config, int64, error) {
	var config Config
	var version int64
	var rate Rate // before
	err := q.once(ctx, func(tx kv.Tx, _ kv.Attempt) (tuple.Tuple, error) {
		var err error
		if config, version, err = q.configure(ctx, tx, func(c *Config) { rate = c.MaxRate; change(c) }); err != nil {
			return nil, err
		}
		document, err := json.Marshal(config)
		return tuple.Tuple{version, string(document)}, err
	}, func(_ kv.Tx, result tuple.Tuple) (err error) {
		config, version, err = unpackConfig(q.keys.meta(metaConfig), result.Pack())
		return err
	})
	if err != nil {
		return Config{}, 0, wrap("configure", err)
	}
	q.followed.learnConfig(config, version, q.opts.Now())
	if config.MaxRate != rate && !rate.isNone() {
		s := sweeper{q: q, ctx: ctx, config: &config}
		err = s.paces()
	}
	return config, version, wrap("configure", err)
}

// ConfigureTx is Configure in the caller's transaction. The caller answers for an unknown commit: use Once. Groups that wait
// by an old MaxRate wait for as long as that says, or until the next sweep.
//
// Conflicts: with another change of the configuration only.
func (q *Queue) ConfigureTx(ctx context.Context, tx kv.Tx, change func(c *Config)) (Config, int64, error) {
	if q.closed.Load() {
		return Config{}, 0, ErrClosed
	}
	config, version, err := q.configure(ctx, tx, change)
	return config, version, wrap("configure", err)
}

func (q *Queue) configure(ctx context.Context, tx kv.Tx, change func(c *Config)) (Config, int64, error) {
	key := q.keys.meta(metaConfig)
	value, err := guardConfigure.get(tx, key).Wait(ctx)
	if err != nil {
		return Config{}, 0, fmt.Errorf("read configuration: %w", err)
	}
	old, version, err := unpackConfig(key, value)
	if err != nil {
		return Config{}, 0, err
	}
	config := old
	change(&config)
	if config, err = config.withDefaults(); err != nil {
		return Config{}, 0, err
	}
	if err := config.changedFrom(old); err != nil {
		return Config{}, 0, err
	}
	version++
	packed, err := packConfig(config, version)
	if err != nil {
		return Config{}, 0, err
	}
	tx.Set(key, packed)
	return config, version, nil
}

// ReadConfig reads the stored configuration and its version.
func (q *Queue) ReadConfig(ctx context.Context) (Config, int64, error) {
	var config Config
	var version int64
	key := q.keys.meta(metaConfig)
	err := q.view(ctx, func(tx kv.ReadTx) error {
		value, err := tx.Get(key).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read configuration: %w", err)
		}
		config, version, err = unpackConfig(key, value)
		return err
	})
	if err != nil {
		return Config{}, 0, wrap("configuration", err)
	}
	q.followed.learnConfig(config, version, q.opts.Now())
	return config, version, nil
}
