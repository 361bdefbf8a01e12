package layer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// Create makes the queue name under prefix and opens the queue. The caller must Close the handle. The error wraps
// ErrQueueExists if the queue exists, ErrForeignKeys if other keys are where the queue would be, and ErrDropping if the
// queue is being dropped. prefix belongs to the caller. It is a directory's bytes or a tuple, may be empty, and has at
// most 1,024 bytes.
//
// Reads, with a conflict: the fields format and dropped of meta, and the first key where the queue would be; after a
// commit of unknown outcome the field config. Writes: the fields format, offset and config of meta.
//
// Other errors: ErrNoQueueName, ErrInvalidUTF8, ErrOptions, *LimitError and *ValueError for the arguments, and the
// engine's.
func Create(ctx context.Context, db kv.DB, prefix []byte, name string, o Options) (*Queue, error) {
	call := fmt.Sprintf("create queue %q", name)
	q, err := newQueue(db, prefix, name, o)
	if err != nil {
		return nil, wrap(call, err)
	}
	config, err := o.Config.withDefaults()
	if err == nil {
		err = config.checkNewFacets()
	}
	if err != nil {
		return nil, wrap(call, err)
	}
	packed, err := storedConfig{config: config, version: 1, incarnation: q.incarnation}.pack()
	if err != nil {
		return nil, wrap(call, err)
	}
	exists, begun := false, q.aging.now(q.opts.Now)
	_, err = kv.Run(ctx, db, txFor(q, "create"), func(tx kv.Tx, a kv.Attempt) error {
		v, err := tx.Get(q.keys.meta(metaFormat)).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read format: %w", err)
		}
		dropped, err := tx.Get(q.keys.meta(metaDropped)).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read mark: %w", err)
		}
		if dropped != nil {
			return ErrDropping
		}
		if exists = v != nil; exists && a.MaybeCommitted {
			exists, err = q.isForeign(ctx, tx)
			return err
		}
		if !exists {
			v := q.viewOf(ctx, tx)
			k, err := v.firstItem(q.keys.all())
			if err != nil {
				return err
			}
			if k != nil {
				return fmt.Errorf("%w: %s", ErrForeignKeys, tuple.Printable(k))
			}
			tx.Set(q.keys.meta(metaFormat), rec.PackInt(storedFormat))
			tx.Set(q.keys.meta(metaOffset), rec.PackInt(0))
			tx.Set(q.keys.meta(metaConfig), packed)
		}
		rv, err := tx.ReadVersion().Wait(ctx)
		q.opened.note(rv)
		return err
	})
	if err != nil {
		return nil, wrap(call, err)
	}
	if exists {
		return nil, wrap(call, ErrQueueExists)
	}
	q.keys.shards.set(shardCounts{read: int64(config.Shards), write: int64(config.Shards)})
	q.keys.plan = planOf(&config)
	q.followed.learn(config, 1, begun, q.aging.now(q.opts.Now))
	return q, nil
}

// isForeign reports whether a queue that Create has found after a commit of unknown outcome was made by another call.
// It reads the configuration (meta) with a conflict, and compares the incarnation, the random id that each Create
// draws.
func (q *Queue) isForeign(ctx context.Context, tx kv.Tx) (bool, error) {
	key := q.keys.meta(metaConfig)
	value, err := tx.Get(key).Wait(ctx)
	if err != nil {
		return false, fmt.Errorf("read configuration: %w", err)
	}
	stored, err := unpackConfig(key, value)
	return stored.incarnation != q.incarnation, err
}

// Open opens the queue name under prefix. Errors: ErrNoQueue, ErrDropping, *FormatError, *UnknownSettingError,
// ErrCorrupt, and the engine's; of the arguments ErrNoQueueName, ErrInvalidUTF8 and *LimitError.
//
// If the hints of ready groups or the receipts of handles are ahead of the database's versions, Open raises the offset
// in meta, so that new items sort behind the old and tokens keep growing. It is so after a copy key by key into another
// cluster; a restore by FoundationDB's own tools never lets versions go back. Every other handle must be reopened then,
// because each keeps the offset of its opening. The caller must Close the handle.
//
// Reads, with a conflict: the fields format, offset and dropped of meta. Reads, at snapshot: the fields config and
// paused, the newest hint (ready) and some receipts. Only to raise the offset, Open also reads the first item of that
// hint's group and more receipts, and writes the field offset.
func Open(ctx context.Context, db kv.DB, prefix []byte, name string, o Options) (*Queue, error) {
	call := fmt.Sprintf("open queue %q", name)
	q, err := newQueue(db, prefix, name, o)
	if err != nil {
		return nil, wrap(call, err)
	}
	_, err = kv.Run(ctx, db, txFor(q, "open"), func(tx kv.Tx, _ kv.Attempt) error { return q.load(ctx, tx) })
	if err != nil {
		return nil, wrap(call, err)
	}
	return q, nil
}

// Difference is a setting whose stored value is not the wanted value. Both are texts, as Config.Setting gives them.
type Difference struct {
	Setting string
	Stored  string // when Ensure looked
	Wanted  string
	// Mended: the wanted value is stored now (Options.Mend).
	Mended bool
}

// String says what differs.
func (d Difference) String() string {
	text := fmt.Sprintf("%s is %s, wanted is %s", d.Setting, d.Stored, d.Wanted)
	if d.Mended {
		text += ": mended"
	}
	return text
}

// Ensure opens the queue name under prefix, or creates the queue with o.Config if there is none: for a program which
// brings its queues along. Several processes may call Ensure at the same time; one creates the queue. The caller must
// Close the handle.
//
// If the queue was there, Ensure returns the settings whose stored values are not those of o.Config, in the order of
// Settings; none = all are as wanted. A setting left zero in o.Config is wanted at its default. The stored values hold,
// because an operator may have changed them on purpose, unless o.Mend is set: then Ensure stores the wanted values, as
// Configure does, for every handle of the queue. Some differences are never mended. Facets, Views, Unordered and
// LeasePerItem cannot be changed, and RetroactiveDelay cannot be unset. Shards can never be lowered again: call
// Configure to raise them.
//
// Keys: those of Open, of Create and of Admin.Configure.
//
// Errors: those of Open and Create; *LimitError, *ValueError and ErrOptions for o.Config, also if the queue is there;
// with Mend those of Configure. An error wraps ErrNoQueue only if the queue is being dropped (ErrDropping), is dropped
// before Ensure stores the wanted values, or is not there when ctx ends. An error wraps ErrQueueExists only if other
// processes have created and dropped the queue again and again. After an error there is no handle.
func Ensure(ctx context.Context, db kv.DB, prefix []byte, name string, o Options) (*Queue, []Difference, error) {
	call := fmt.Sprintf("ensure queue %q", name)
	want, err := o.Config.withDefaults()
	if err != nil {
		return nil, nil, wrap(call, err)
	}
	q, err := Open(ctx, db, prefix, name, o)
	// After the end of ctx, ErrNoQueue may be the cause of that end, of another call of the caller's.
	for tries := 0; ctx.Err() == nil && errors.Is(err, ErrNoQueue) && !errors.Is(err, ErrDropping); tries++ {
		if q, err = Create(ctx, db, prefix, name, o); err == nil {
			return q, nil, nil
		}
		if errors.Is(err, ErrQueueExists) && tries < ensureTries { // another process has created it since
			q, err = Open(ctx, db, prefix, name, o)
		}
	}
	if err != nil {
		return nil, nil, rewrap(call, err)
	}
	different, err := q.differences(ctx, want, o.Mend)
	if err != nil {
		_ = q.Close(ctx) // clears the receipt of Configure; if not, a sweep does
		return nil, nil, rewrap(call, err)
	}
	return q, different, nil
}

// ensureTries bounds how often Ensure begins again because others create and drop the queue at the same time.
const ensureTries = 10

// differences compares the wanted configuration with the one that the new handle has in memory. It returns the
// settings that differ. If mend is set and one of them is mendable, it also calls Configure, to store the wanted
// values. The settings that are not mendable keep their stored values. Example: Shards, which only an operator
// raises. After Configure the result lists how the wanted values differed from the values that Configure has
// replaced.
//
// Keys: none without mend. Configure reads and writes the field config of meta, with conflicts. It writes a receipt,
// reads requests at snapshot and touches wake keys. After a change of MaxRate it also clears pace keys and sets hints
// or timers. Errors: those of Configure.
func (q *Queue) differences(ctx context.Context, want Config, mend bool) ([]Difference, error) {
	different := want.differs(q.knownConfig())
	if !mend || !slices.ContainsFunc(different, Difference.mendable) {
		return different, nil
	}
	_, _, err := q.Admin().Configure(ctx, func(c *Config) {
		different = want.differs(*c) // of this attempt
		*c = want.withFixed(*c)
	})
	if err != nil {
		return nil, err
	}
	for i := range different {
		different[i].Mended = different[i].mendable()
	}
	return different, nil
}

// mendable reports whether a change of the configuration can set the wanted value.
func (d Difference) mendable() bool {
	s, err := settingNamed(d.Setting)
	return err == nil && s.mendable(d.Stored)
}

// differs lists the settings whose values in the stored configuration are not those in c.
func (c Config) differs(stored Config) (different []Difference) {
	for _, s := range settings {
		is, wanted := s.text(&stored), s.text(&c)
		if is != wanted {
			different = append(different, Difference{Setting: s.name, Stored: is, Wanted: wanted})
		}
	}
	return different
}

// newQueue checks the arguments of Create and Open, and makes a handle. The handle has read nothing yet. Before its
// first operation, Create or load must set the shards and the plan of its keys, and the configuration that it knows
// (followed).
func newQueue(db kv.DB, prefix []byte, name string, o Options) (*Queue, error) {
	if err := checkQueueName(name); err != nil {
		return nil, err
	}
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	if err := checkText("owner", o.Owner, maxQueueNameSize); err != nil {
		return nil, err
	}
	if o.Poll = cmp.Or(o.Poll, defaultStagePoll); o.Poll < minPoll {
		return nil, durationLimit("poll", o.Poll, minPoll, math.MaxInt64)
	}
	o.Poll = min(o.Poll, MaxWait) // no receive waits longer
	if o.Now == nil {
		o.Now = time.Now
	} else {
		o.Now = callback.Clock(o.Now)
	}
	o.Tx.UntilConflict = false // the handle sets it where it splits its work
	o.Hooks = slices.Clone(o.Hooks)
	o.Test = new(*cmp.Or(o.Test, &TestOptions{})) // a copy
	random := newEntropy(o.Test.Seed)
	if o.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Owner = fmt.Sprintf("%s:%d:%04x", strings.ToValidUTF8(host, "?"), os.Getpid(), random.N(1<<16))
	}
	own := newEntropy(o.Test.Seed)
	q := &Queue{
		db: db, name: name, keys: newSubspace(prefix, name), opts: o, random: random, opened: opening{at: time.Now()},
		counting: counting{slot: int64(random.N(counterSlots))},
		waitID:   own.uuid(), incarnation: own.uuid(), heart: newHeart(),
		followed: followed{config: &Config{}}, subscribers: advice.Pace{Pause: subscriptionsPause},
		hooksStuck: make([]atomic.Int64, len(o.Hooks)),
	}
	q.orphans.turn = make(chan struct{}, workingOrphans)
	q.orphans.life, q.orphans.end = context.WithCancel(context.Background())
	observeTrouble(q)
	q.pipeline.Begin(q.pipelineEnv(), &q.line)
	q.line.Begin(q.lineEnv())
	q.noticed.keeping.Pay = q.payWake
	return q, nil
}

// load reads the settings of the queue, for Open: the fields format, offset and dropped of meta with a conflict, config
// and paused at snapshot. It also reads the newest hint (ready) and some receipts, at snapshot. If they are ahead of
// the database's versions, load raises the offset (meta); restoredAt then reads an item and receipts. It notes the
// version at which the handle was opened. Errors: those of Open, apart from those of the arguments.
func (q *Queue) load(ctx context.Context, tx kv.Tx) error {
	formatKey, offsetKey := q.keys.meta(metaFormat), q.keys.meta(metaOffset)
	format, offset := tx.Get(formatKey), tx.Get(offsetKey)
	dropped := tx.Get(q.keys.meta(metaDropped))
	q.incarnation = uuid.Nil // of an earlier attempt
	following := q.followAnew(tx, q.aging.now(q.opts.Now))
	last := tx.Snapshot().GetKey(kv.LastLessThan(q.keys.section(nameReady).End))
	receipts := tx.Snapshot().GetRange(q.keys.section(nameReceipt).Selectors(), kv.RangeOptions{Limit: openReceipts})
	version := tx.ReadVersion()

	v, err := format.Wait(ctx)
	if err != nil {
		return fmt.Errorf("read format: %w", err)
	}
	if v == nil {
		return ErrNoQueue
	}
	if d, err := dropped.Wait(ctx); err != nil || d != nil {
		if err != nil {
			return fmt.Errorf("read mark: %w", err)
		}
		return ErrDropping
	}
	f, err := rec.UnpackInt(formatKey, v)
	if err != nil {
		return err
	}
	if f != storedFormat {
		return &FormatError{Queue: q.name, Found: f, Known: storedFormat}
	}
	v, err = offset.Wait(ctx)
	if err != nil {
		return fmt.Errorf("read offset: %w", err)
	}
	if q.offset, err = rec.UnpackInt(offsetKey, v); err != nil {
		return err
	}
	config, err := following.wait(ctx)
	if err != nil {
		return err
	}
	q.keys.shards.set(following.shards)
	q.incarnation = following.incarnation
	q.keys.plan = planOf(&config)
	rv, err := version.Wait(ctx)
	if err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	defer func() { q.opened.note(rv + q.offset) }()
	newest, err := newestHint(q.viewOf(ctx, tx.Snapshot()), last)
	if err != nil {
		return err
	}
	ahead := newest.index
	seen, err := receipts.Wait(ctx)
	if err != nil {
		return fmt.Errorf("read receipts: %w", err)
	}
	for _, w := range momentsOf(seen) {
		ahead = max(ahead, w.clock)
	}
	if ahead > rv+q.offset+offsetSlack {
		clock, err := q.restoredAt(ctx, tx.Snapshot(), newest)
		if err != nil {
			return err
		}
		q.offset = clock - rv
		q.restored = clock
		tx.Set(offsetKey, rec.PackInt(q.offset))
	}
	return nil
}

// openReceipts bounds the receipts that Open reads to notice that the database's versions went back. A queue that was
// in use has receipts, also if all its groups are in flight or delayed, and so have no hints. In a restored queue
// nearly all receipts are ahead of the versions, because sweeps clear receipts that are older than an hour.
const openReceipts = 16

// newestHint returns the key (ready) of the newest hint of a whole group; its index is 0 if there is none. Open
// compares the index with the database's version, to notice that the versions went back. last is the read of the last
// hint, begun by the caller, and that hint is the newest if the queue has one shard. With more shards newestHint reads
// the last hint of each. A last hint that cannot be read counts as none.
func newestHint(v view, last kv.Future[[]byte]) (newest parsedKey, err error) {
	found := []kv.Future[[]byte]{last}
	if shards := v.keys.hintsOf(""); len(shards) > 1 {
		for _, hints := range shards {
			found = append(found, v.read.GetKey(kv.LastLessThan(hints.End)))
		}
	}
	for _, f := range found {
		key, err := f.Wait(v.ctx)
		if err != nil {
			return newest, fmt.Errorf("read newest hint: %w", err)
		}
		if !v.keys.section(nameReady).Contains(key) {
			continue
		}
		p, err := v.keys.parse(key)
		if !v.skipsRow(err) && p.index > newest.index {
			newest = p
		}
	}
	return newest, nil
}

// momentsOf returns when each of these receipts was written, by the clock and by the version. It leaves out receipts
// that cannot be read, or that have no version.
func momentsOf(receipts []kv.KV) (all []moment) {
	for _, row := range receipts {
		r, err := rec.UnpackReceipt(row.Key, row.Value)
		if w, ok := witnessOf(r); err == nil && ok {
			all = append(all, w)
		}
	}
	return all
}

// restoredAt returns the version, as indexes count, from which a restored queue continues. The item and each receipt
// that it reads have a version and a wall time. The version plus the time since then is about the present. The clock
// that wrote the time may have been wrong, so the smallest of these sums counts. But the result is at least the newest
// version that a hint, the item or a receipt has. newest is the newest hint; its index is 0 if there is none.
// restoredAt reads the first item of the hint's group, and receipts.
func (q *Queue) restoredAt(ctx context.Context, read kv.ReadTx, newest parsedKey) (int64, error) {
	v := q.viewOf(ctx, read)
	head := kv.Done[[]kv.KV](nil, nil)
	if newest.index > 0 {
		head = v.read.GetRange(v.keys.items(lanes.GroupOf(newest.lane)).Selectors(), kv.RangeOptions{Limit: 1})
	}
	receipts := v.read.GetRange(v.keys.section(nameReceipt).Selectors(), kv.RangeOptions{Limit: witnessPage})
	rows, err := head.Wait(ctx)
	if err != nil {
		return 0, fmt.Errorf("read head: %w", err)
	}
	var all []moment
	for _, row := range rows {
		p, err := v.keys.parse(row.Key)
		e, _, err2 := rec.OpenEnvelope(row.Value)
		if err == nil && err2 == nil {
			all = append(all, moment{nowMS: e.EnqueuedMS, clock: p.index})
		}
	}
	if rows, err = receipts.Wait(ctx); err != nil {
		return 0, fmt.Errorf("read receipts: %w", err)
	}
	all = append(all, momentsOf(rows)...)
	last, since := newest.index, int64(math.MaxInt64)
	for _, m := range all {
		last, since = max(last, m.clock), min(since, m.clock+(v.nowMS-m.nowMS)*versionsPerMS)
	}
	if len(all) == 0 {
		return last, nil
	}
	return max(last, since), nil
}

// Queues returns the names of the queues under prefix, in order. It reads pages of names, each in a transaction of its
// own. A queue that is created or dropped at the same time may be missing.
func Queues(ctx context.Context, db kv.DB, prefix []byte) ([]string, error) {
	var names []string
	// Queue names are strings, whose tuples begin with 0x02.
	for next := append(append([]byte(nil), prefix...), 0x02); next != nil; {
		page, after, err := readNames(ctx, db, prefix, next)
		if err != nil {
			return nil, wrap("list queues", err)
		}
		names, next = append(names, page...), after
	}
	return names, nil
}

const (
	// namesPage and namesTime bound a page of names: each name is found behind the one before, with a read. On a slow
	// cluster many would take longer than the five seconds of a transaction.
	namesPage = 250
	namesTime = time.Second
)

// readNames reads a page of the names of queues, from the key next on. after is where the page after it begins; nil =
// there is none. From each name it jumps to the first key behind that queue. A name counts if the queue has the field
// format of meta. The reads are at snapshot. The reads that tell whether there is a queue of a name travel at the same
// time.
func readNames(ctx context.Context, db kv.DB, prefix, next []byte) (names []string, after []byte, err error) {
	all := kv.PrefixRange(prefix)
	_, err = kv.Run(ctx, db, kv.TxOptions{Call: "list queues"}, func(tx kv.Tx, _ kv.Attempt) error {
		begun, read := time.Now(), tx.Snapshot()
		var found []string
		var formats []kv.Future[[]byte]
		for after = next; len(found) == 0 || len(found) < namesPage && time.Since(begun) < namesTime; {
			k, err := read.GetKey(kv.FirstGreaterOrEqual(after)).Wait(ctx)
			if err != nil {
				return fmt.Errorf("read names: %w", err)
			}
			name, _, err := tuple.DecodeString(bytes.TrimPrefix(k, prefix))
			if !all.Contains(k) || err != nil { // past the strings: not ours
				after = nil
				break
			}
			s := newSubspace(prefix, name)
			found, formats = append(found, name), append(formats, read.Get(s.meta(metaFormat)))
			after = s.with(0xff)
		}
		names = nil
		for i, name := range found {
			v, err := formats[i].Wait(ctx)
			if err != nil {
				return fmt.Errorf("read format: %w", err)
			}
			if v != nil {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, after, err
}

// closeLife bounds Close.
const closeLife = 5 * time.Second

var errCloseLife = fmt.Errorf("the database has not answered within %s: %w", closeLife, context.DeadlineExceeded)

// Close clears the handle's own keys in the database (requests, wake key, receipts, and the heartbeat unless it still
// keeps claims) and makes every further call fail with ErrClosed. Groups that are granted to the handle become ready
// for other handles (their grants, locks and timers are cleared, and hints are set). If the last ack has woken no other
// handle, because a receive usually follows, Close wakes one. Receives that wait end with ErrClosed, and so do the
// handle's workers and subscriptions.
//
// Close waits for enqueues, receives and settlements that are under way, and they come to their end. If the caller of a
// receive has left, or its outcome is unknown, Close waits until the claims are given back. It does not wait for
// transactions of the caller's own, handlers, nor calls of Admin. Close waits for at most 5 s, or until ctx ends. Then
// the error wraps context.DeadlineExceeded or the cause of ctx. The handle is still closed, and a sweep clears its
// keys. A handle that has nothing under way and no keys closes without an error also if ctx has ended.
//
// Claims stay valid until their lease ends; claims by heartbeat for up to one lease of the queue. A subscription whose
// handler still runs keeps its place for one lease at most, so end its context first. Calling Close twice is allowed:
// the second call returns nil at once.
func (q *Queue) Close(ctx context.Context) error {
	if !q.pipeline.Close() {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, closeLife, errCloseLife)
	defer cancel()
	defer endGiving(q)
	q.heart.stop()
	staging := q.stopStaging(ctx)
	if err := cmp.Or(q.orphans.stop(ctx), q.looks.stop(ctx), staging); err != nil {
		return wrap("close", err)
	}
	if err := q.noticed.keeping.Close(ctx); err != nil {
		return wrap("close", err)
	}
	if err := q.stopBeat(ctx); err != nil {
		return wrap("close", err)
	}
	return wrap("close", q.clearReceipts(ctx))
}
