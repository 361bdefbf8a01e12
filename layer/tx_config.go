package layer

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// A handle follows its queue's configuration and pause without a timer. A transaction that begins when the handle's
// knowledge is older than followAge reads both again, at the same time as its other reads, and uses the result.
//
// With the configuration the handle reads the incarnation of the queue. Each Create draws a new one and stores it with
// the configuration. A handle that reads another incarnation than its own gets ErrNoQueue. Otherwise a handle from
// before a drop would continue with the next queue of the name, and would use the number of shards of the last one.
//
// A transaction needs no more than these reads. It needs one conflict, on the mark of a drop (job_purge.go). Every
// transaction that sets a key has this conflict, or reads with a conflict a key that the drop clears (Configure: the
// configuration). Proof: take a transaction T of a handle of incarnation 1. The first step of the drop clears the
// configuration, so 1 was read before that step. If T read 1 itself, T's read version is older than the drop. Otherwise
// T uses a read that the handle made at most followLimit before T ends. Then T's read version is older than the last
// step of the drop, which comes dropGrace after the first. In both cases the last step clears the mark and so makes T
// fail. Create comes after the last step.

// followAge keeps a handle in use within a second of the configuration: a transaction which begins just before
// followAge is over has half a second left.
const followAge = 500 * time.Millisecond

// followed is the handle's knowledge of the queue's configuration and pause, in memory.
type followed struct {
	mu      sync.Mutex
	config  *Config   // guarded by mu; the Config itself is never changed
	version int64     // guarded by mu; 0 = nothing is known yet
	paused  *rec.Mark // guarded by mu; nil = the queue is not paused
	read    time.Time // guarded by mu; by the handle's clock
	since   time.Time // guarded by mu; by the handle's clock, when the version was learned

	value    []byte       // guarded by mu; the value of the last read configuration
	unpacked storedConfig // guarded by mu; the content of value
}

// unpack unpacks the value of the configuration as unpackConfig does, but does nothing if the value is the last one
// that it has unpacked: the handle reads the same value every half a second. key is for errors.
func (f *followed) unpack(key, value []byte) (storedConfig, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if value != nil && bytes.Equal(value, f.value) {
		return f.unpacked, nil
	}
	stored, err := unpackConfig(key, value)
	if err == nil {
		f.value, f.unpacked = bytes.Clone(value), stored
	}
	return stored, err
}

// learnConfig stores a configuration that was read alone, or in a transaction that began at an unknown time. Unlike
// learn, it does not make the rest of the knowledge fresh, and stores no lower version than the known one. Example: a
// Configure hears only after four later changes that its commit was applied.
func (f *followed) learnConfig(config Config, version int64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if version >= f.version {
		f.use(config, version, now)
	}
}

// use stores a configuration as the known one. now is when. mu is held.
func (f *followed) use(config Config, version int64, now time.Time) {
	if version != f.version {
		f.since = now
	}
	f.config, f.version = &config, version
}

// learnPause stores the pause of the whole queue; nil = it is not paused.
func (f *followed) learnPause(m *rec.Mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = m
}

// forget makes the next transaction of the handle read the configuration and the pause again. A transaction that has
// begun before, and learns them after forget, may undo that: see learn.
func (f *followed) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read = time.Time{}
}

// learn stores a configuration that a transaction has read, unless a newer one is known, and returns the newer of the
// two. read is when the transaction began: the age of the handle's knowledge counts from then on. Of two configurations
// the one with the higher version is newer, or the one read by a transaction that began after the other was learned. So
// a lower version may be newer. Example: T1 sets version 7, reads 7 back and fails to commit; T2, begun later, reads 6.
// Then 6 is right.
func (f *followed) learn(config Config, version int64, read, now time.Time) *Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	if version >= f.version || read.After(f.since) {
		f.use(config, version, now)
	}
	f.read = read
	return f.config
}

// fresh returns the known configuration and pause, and when they were read. The last result is true if a transaction
// that begins now may use them without a new read: they are less than followAge old.
func (f *followed) fresh(now time.Time) (*Config, *rec.Mark, time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	age := now.Sub(f.read)
	return f.config, f.paused, f.read, f.version > 0 && age >= 0 && age < followAge
}

// Config is the queue's configuration as the handle knows it: at the handle's last transaction, or at most half a
// second before. The caller owns the copy.
func (q *Queue) Config() Config { return q.knownConfig().copied() }

// knownConfig returns the handle's copy of the configuration, for functions of the handle that do not change it. It may
// be old, see Queue.Config.
func (q *Queue) knownConfig() Config {
	c, _, _, _ := q.followed.fresh(time.Time{})
	return *c
}

// following is the configuration by which one transaction goes, and whether the whole queue is paused. It is either the
// handle's copy, or read in the transaction. wait returns it.
type following struct {
	q      *Queue
	begun  time.Time         // when the transaction was begun, as far as is known
	known  time.Time         // when config and paused were read
	stored kv.Future[[]byte] // the configuration, being read; nil if config and paused are known
	pause  kv.Future[[]byte] // the pause, being read
	anew   bool              // the transaction reads config, even if the handle knew one
	only   bool              // the handle does not learn: the transaction may have changed the configuration itself
	guest  bool              // the transaction may be the caller's: see operate
	config *Config           // nil until stored is waited for
	paused *rec.Mark         // nil = the queue is not paused
	// incarnation is the queue's, and shards are the numbers of shards, if config was read in this transaction.
	incarnation uuid.UUID
	shards      shardCounts
}

// follow returns the configuration for a transaction. If the handle's copy is not fresh, follow starts reading the
// configuration and the pause (both meta). It reads at snapshot, so that a change of the configuration conflicts with
// no transaction.
func (q *Queue) follow(tx kv.Tx) *following {
	now := q.aging.now(q.opts.Now)
	if config, paused, read, fresh := q.followed.fresh(now); fresh {
		return &following{q: q, begun: now, known: read, config: config, paused: paused}
	}
	return q.followAnew(tx, now)
}

// followAnew is follow for a transaction that must not use the handle's copy: it always reads. begun is when the
// transaction began.
//
// The result is of the read version, which may be as old as the transaction. So the handle counts its age from begun:
// otherwise later transactions would use an outdated configuration.
func (q *Queue) followAnew(tx kv.Tx, begun time.Time) *following {
	s := tx.Snapshot()
	return &following{
		q: q, begun: begun, known: q.aging.now(q.opts.Now), anew: true,
		stored: s.Get(q.keys.meta(metaConfig)), pause: s.Get(q.keys.meta(metaPaused)),
	}
}

// exists returns ErrNoQueue if the queue is gone, for an operation that has found nothing to do. tx may be the
// caller's. exists reads the configuration and the pause (meta), at snapshot. While the handle's copy is fresh it reads
// nothing, and does not notice a drop of the last half second.
func (q *Queue) exists(ctx context.Context, tx kv.Tx) error {
	f := q.follow(tx)
	f.guest = true
	_, err := f.wait(ctx)
	return err
}

// own returns the configuration and the error that a read has given. If the configuration is of another queue of the
// same name, created since the handle was opened, the error is ErrNoQueue. The incarnation, a random id that each
// Create draws, tells the two apart. own reads no key.
func (q *Queue) own(stored storedConfig, err error) (storedConfig, error) {
	switch {
	case stored.incarnation == uuid.Nil, q.incarnation == uuid.Nil:
	case stored.incarnation != q.incarnation:
		return stored, fmt.Errorf("%w: there is a new one of that name: open it", ErrNoQueue)
	}
	return stored, err
}

// readStored reads the configuration (meta) of the handle's own queue. The error is ErrNoQueue if there is none, or if
// it is of a later queue of the same name.
func (v *view) readStored() (storedConfig, error) {
	key := v.keys.meta(metaConfig)
	value, err := v.read.Get(key).Wait(v.ctx)
	if err != nil {
		return storedConfig{}, fmt.Errorf("read configuration: %w", err)
	}
	return v.q.own(unpackConfig(key, value))
}

// stored is readStored in a transaction of its own.
func (q *Queue) stored(ctx context.Context) (storedConfig, error) {
	return viewFor(ctx, q, (*view).readStored)
}

// ReadConfig reads the stored configuration and its version, which grows with each change. It reads the field config of
// meta at snapshot, whatever the handle knows.
//
// Errors: ErrNoQueue if the queue is gone or is a later one of the same name, ErrCorrupt or *UnknownSettingError if the
// configuration cannot be read, ErrClosed, and the engine's.
func (a Admin) ReadConfig(ctx context.Context) (Config, int64, error) {
	q := a.q
	stored, err := q.stored(ctx)
	if err != nil {
		return Config{}, 0, wrap("configuration", err)
	}
	q.followed.learnConfig(stored.config, stored.version, q.aging.now(q.opts.Now))
	return stored.config.copied(), stored.version, nil
}

// wait returns the configuration, and sets f.paused. If follow has found both in the handle's memory, wait reads
// nothing. Otherwise follow or followAnew has begun to read, at snapshot, the fields config and paused of meta, and
// the first wait of the transaction waits for them. wait writes no key. The handle learns from the reads:
//
//   - usually the configuration, the pause and the numbers of shards, and the handle's copy is fresh again. If the
//     handle has learned a newer configuration since the transaction began, wait returns that one.
//   - in a transaction that may be the caller's (f.guest) the numbers of shards, and the configuration unless the
//     handle knows a newer one. The pause is not learned, because the read version may be old.
//   - nothing if f.only is set.
//
// Errors: ErrNoQueue if the queue is gone or is a later one of the same name, ErrCorrupt or *UnknownSettingError if
// the configuration cannot be read, and the engine's. A pause that cannot be read counts as a pause.
func (f *following) wait(ctx context.Context) (Config, error) {
	if f.stored == nil {
		return *f.config, nil
	}
	value, err := f.stored.Wait(ctx)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	stored, err := f.q.own(f.q.followed.unpack(f.q.keys.meta(metaConfig), value))
	if err != nil {
		return Config{}, err
	}
	pauseKey := f.q.keys.meta(metaPaused)
	if value, err = f.pause.Wait(ctx); err != nil {
		return Config{}, fmt.Errorf("read pause: %w", err)
	}
	f.paused = f.q.pauseOf(pauseKey, value)
	f.config, f.incarnation, f.shards, f.stored = &stored.config, stored.incarnation, stored.shards, nil
	if !f.only {
		f.q.keys.shards.learn(stored.shards)
	}
	switch {
	case f.only:
	case f.guest:
		f.q.followed.learnConfig(stored.config, stored.version, f.q.aging.now(f.q.opts.Now))
	default:
		f.q.followed.learnPause(f.paused)
		f.config = f.q.followed.learn(stored.config, stored.version, f.begun, f.q.aging.now(f.q.opts.Now))
	}
	return *f.config, nil
}

// aging is the clock with which a handle measures the age of its knowledge of the queue. It advances with Options.Now,
// or with the process's clock if that is faster. So a handle whose Options.Now stands still learns of a drop in time.
// The two seconds of a drop pass by the clock of another process.
type aging struct {
	mu        sync.Mutex
	at        time.Time
	set, real time.Time // when it was last asked, by Options.Now and by the process's clock
	moved     time.Time // when Options.Now last changed, by the process's clock
}

// now returns the time by this clock. clock is Options.Now. The result never goes back.
func (a *aging) now(clock func() time.Time) time.Time {
	set, real := clock(), time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !set.Equal(a.set) {
		a.moved = real
	}
	if a.at.IsZero() {
		a.at = set
	} else {
		a.at = a.at.Add(max(set.Sub(a.set), real.Sub(a.real), 0))
	}
	a.set, a.real = set, real
	return a.at
}

// stood returns for how long Options.Now has stood, as far as the handle has asked it.
func (a *aging) stood(clock func() time.Time) time.Duration {
	a.now(clock)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.real.Sub(a.moved)
}

// followLimit is the greatest age that the configuration of a transaction may have when the transaction ends.
const followLimit = time.Second

// guardDrop makes the transaction fail if the queue is dropped before the commit: it waits for the configuration, and
// adds a read conflict on the mark of a drop (the field dropped of meta). If the configuration was read more than
// followLimit ago, guardDrop reads it and the pause again, because otherwise a drop before the read version would go
// unnoticed. The error is ErrNoQueue if the queue is gone.
func (f *following) guardDrop(ctx context.Context, tx kv.Tx) error {
	if _, err := f.wait(ctx); err != nil {
		return err
	}
	if err := guard.Drop.Read(tx, f.q.keys.fixed.dropped); err != nil {
		return err
	}
	if age := f.q.aging.now(f.q.opts.Now).Sub(f.known); age >= 0 && age <= followLimit {
		return nil
	}
	look := f.q.followAnew(tx, f.begun)
	look.only = true
	_, err := look.wait(ctx)
	return err
}

// The changes of a transaction to items are collected, and written at its end as a row for subscriptions, if the queue
// keeps changes (Config.Changes). The row is part of the transaction, so there is a change if and only if the
// transaction was committed.

// changeRowSize bounds a row of changes; what is more goes into another row. The database allows 100,000 bytes.
const changeRowSize = 90_000

// changeRows numbers the rows of this process, so that rows which one transaction writes keep the order of its calls,
// whichever handles are called.
var changeRows atomic.Int64

// change notes a change of one item. finish writes the notes as rows of changes, for subscriptions. facets are the
// packed facets that the item has, or had. change adds the item to the last note, if that is of the same kind and
// group.
func (w *txn) change(kind ChangeKind, id ID, facets string) {
	if !w.mayKeepChanges() {
		return
	}
	d := rec.Item{Index: id.Index, Random: id.Random, Facets: facets}
	if n := len(w.told.changes); n > 0 {
		last := &w.told.changes[n-1]
		if last.Kind == int64(kind) && last.Group == id.Group && last.Was == nil {
			last.Items = append(last.Items, d)
			return
		}
	}
	w.note(rec.Changes{Kind: int64(kind), Group: id.Group, Items: []rec.Item{d}})
}

// changeInPlace notes that items of a group were rewritten in their places. The items have the facets that they were
// given; was has the packed facets of each before.
func (w *txn) changeInPlace(kind ChangeKind, group string, items []rec.Item, was []string) {
	if len(items) > 0 {
		w.note(rec.Changes{Kind: int64(kind), Group: group, Items: items, Was: was})
	}
}

// changeEdited notes an edit of a waiting item. was and facets are its packed facets before and after.
func (w *txn) changeEdited(id ID, was, facets string) {
	one := rec.Item{Index: id.Index, Random: id.Random, Facets: facets}
	w.changeInPlace(ChangeEdited, id.Group, []rec.Item{one}, []string{was})
}

// changeAll notes a change of several items of a group, in order. The items have their facets.
func (w *txn) changeAll(kind ChangeKind, group string, items []rec.Item) {
	if len(items) > 0 {
		// The slice stays the caller's: what is appended goes into a copy.
		w.note(rec.Changes{Kind: int64(kind), Group: group, Items: items[:len(items):len(items)]})
	}
}

// changePurged notes that a purge has removed n items of a group, without their ids.
func (w *txn) changePurged(group string, n int) {
	w.note(rec.Changes{Kind: int64(ChangePurged), Group: group, N: int64(n)})
}

// note keeps changes for writeChanges.
func (w *txn) note(c rec.Changes) {
	if w.mayKeepChanges() {
		w.told.changes = append(w.told.changes, c)
	}
}

// mayKeepChanges is false if the queue keeps no changes (Config.Changes is 0). It is true while the configuration is
// being read: then writeChanges decides.
func (w *txn) mayKeepChanges() bool { return w.follow.stored != nil || w.follow.config.Changes > 0 }

// writeChanges writes the changes that the transaction has noted, in rows of up to about changeRowSize bytes (change),
// and touches the key that subscriptions watch (the field changed of meta). It does nothing if the queue keeps no
// changes.
//
// Footprint: a key that no other transaction writes, and an atomic add. It has no read and no conflict, so writers of
// changes conflict neither with each other nor with subscriptions.
func (w *txn) writeChanges() error {
	if len(w.told.changes) == 0 {
		return nil
	}
	config, err := w.config()
	if err != nil || config.Changes == 0 {
		return err
	}
	row := tuple.AppendInt(nil, w.nowMS)
	flush := func() {
		w.tx.Atomic(kv.SetVersionstampedKey, w.keys.change(w.q.offset, changeRows.Add(1)), row)
		row = tuple.AppendInt(nil, w.nowMS)
	}
	for n := range w.told.changes {
		c := &w.told.changes[n]
		if len(row) > changeRowSize {
			flush()
		}
		if c.Kind == rec.ChangePurge {
			row = c.AppendPurge(row)
			continue
		}
		for i := range c.Items {
			if len(row) > changeRowSize {
				flush()
			}
			row = c.AppendItem(row, i)
		}
	}
	flush()
	w.tx.Atomic(kv.Add, w.keys.meta(metaChanged), rec.PackCount(1))
	w.told.changes = nil
	return nil
}
