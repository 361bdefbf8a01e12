package layer

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	crand "crypto/rand"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Format is the layout of keys and values that this version writes and the newest that it reads.
const Format = 1

// The fields of meta.
const (
	metaFormat = "format" // tuple (format)
	metaOffset = "offset" // tuple (offset): index and token are read version + offset
	metaConfig = "config" // tuple (version, JSON text): see config.go
	metaSwept  = "swept"  // tuple (when the last sweep began (ms), its random)
	// Only while the queue is being dropped: tuple (since (ms)).
	metaDropped = "dropped"
	metaPaused  = "paused"   // tuple (since (ms), who, reason); not there = the queue is not paused
	metaSweptTo = "swept_to" // tuple (key): where the next sweep of the dedup entries goes on
	metaPurged  = "purged"   // tuple (clock, when (ms)) of the last step of a purge of the queue: see dedup.go
)

// offsetSlack is how far the items may run ahead of the clock before an open takes it for a database whose
// versions went back: ten seconds' worth, far more than batches of 1,000 can get ahead, far less than a restore.
const offsetSlack = 10_000_000 // versions

// Options configure a handle. The zero value is the normal use.
type Options struct {
	// Owner names the holder in locks, for people. Defaults to host:pid:random. At most 256 bytes.
	Owner string
	// Now is the clock for leases and times. Defaults to time.Now. A clock that differs from other workers'
	// shortens or lengthens leases; it cannot break order or exclusion.
	Now func() time.Time
	// Seed makes the handle's random choices (message ids among them) repeatable, for simulations. 0 = not. No two
	// handles may have the same seed: their messages and receipts would have the same ids.
	Seed uint64
	// Tx holds for every transaction that the handle begins itself.
	Tx kv.TxOptions
	// Poll is the mean pause between two looks of a handle whose receives wait and which nobody wakes. It bounds
	// how late a receive notices a wake that was lost. 0 = DefaultStagePoll.
	Poll time.Duration
	// Yield, if not nil, is called by a goroutine of the handle that has just begun or that another one or a timer has
	// woken, before it touches what they share; who says which. For simulations: they let one go on at a time. ctx is
	// the caller's if it runs for one alone.
	Yield func(ctx context.Context, who string)
	// NoCoalescing gives each operation a transaction of its own. It is for measurements.
	NoCoalescing bool
	// Path limits how receives find groups. It is for measurements.
	Path Path
	// Config is what Create writes. Open reads it and pays no attention to this one.
	Config Config
}

// Queue is a handle on one queue. It is safe for concurrent use, holds no claim, and keeps nothing of the
// database but the queue's settings; make one a process and share it. Close it when done.
type Queue struct {
	db       kv.DB
	name     string
	keys     subspace
	opts     Options
	offset   int64
	random   *entropy
	receipts receipts
	spread   spread
	flights  flights
	paths    pathCounts
	slot     int64
	closed   atomic.Bool
	followed followed

	pipeline pipeline
	staging  staging

	life       context.Context // of what runs in the background
	endLife    context.CancelFunc
	attendance sync.WaitGroup
}

// Create makes the queue name under prefix and opens it. It returns an error that wraps ErrQueueExists if it
// is there already, and ErrDropping if it is being dropped. prefix is the caller's: a directory's bytes, or a tuple; it may be empty.
func Create(ctx context.Context, db kv.DB, prefix []byte, name string, o Options) (*Queue, error) {
	q, err := newQueue(db, prefix, name, o)
	if err != nil {
		return nil, err
	}
	config, err := o.Config.withDefaults()
	if err != nil {
		return nil, err
	}
	packed, err := packConfig(config, 1)
	if err != nil {
		return nil, err
	}
	exists, begun := false, q.opts.Now()
	_, err = kv.Run(ctx, db, o.Tx, func(tx kv.Tx, a kv.Attempt) error {
		v, err := tx.Get(q.keys.meta(metaFormat)).Wait(ctx)
		if err != nil {
			return fmt.Errorf("layer: create: %w", err)
		}
		dropped, err := tx.Get(q.keys.meta(metaDropped)).Wait(ctx)
		if err != nil {
			return fmt.Errorf("layer: create: %w", err)
		}
		if dropped != nil {
			return ErrDropping
		}
		// After an unknown commit the queue may be there by our own hand; whose it is makes no difference.
		exists = v != nil && !a.MaybeCommitted
		if v == nil {
			tx.Set(q.keys.meta(metaFormat), tuple.Tuple{int64(Format)}.Pack())
			tx.Set(q.keys.meta(metaOffset), tuple.Tuple{int64(0)}.Pack())
			tx.Set(q.keys.meta(metaConfig), packed)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("layer: create queue %q: %w", name, err)
	}
	if exists {
		return nil, fmt.Errorf("%w: %q", ErrQueueExists, name)
	}
	q.keys.shards = int64(config.Shards)
	q.followed.learn(config, 1, begun, q.opts.Now())
	return q, nil
}

// Open opens the queue name under prefix. Errors: ErrNoQueue, ErrDropping, *FormatError,
// *UnknownSettingError, ErrCorrupt, and the engine's.
//
// If the queue's items are ahead of the database's versions, as after a copy into another cluster key by key (a
// restore by FoundationDB's own tools does not let versions go back), Open raises the offset in meta, so that new items sort behind the old and tokens keep growing. Reopen every other
// handle then.
func Open(ctx context.Context, db kv.DB, prefix []byte, name string, o Options) (*Queue, error) {
	q, err := newQueue(db, prefix, name, o)
	if err != nil {
		return nil, err
	}
	_, err = kv.Run(ctx, db, o.Tx, func(tx kv.Tx, _ kv.Attempt) error { return q.load(ctx, tx) })
	if err != nil {
		return nil, fmt.Errorf("layer: open queue %q: %w", name, err)
	}
	return q, nil
}

func newQueue(db kv.DB, prefix []byte, name string, o Options) (*Queue, error) {
	if err := checkQueueName(name); err != nil {
		return nil, err
	}
	if len(o.Owner) > MaxQueueNameSize {
		return nil, &LimitError{What: "owner", Unit: "bytes", Got: int64(len(o.Owner)), Max: MaxQueueNameSize}
	}
	if o.Poll < 0 {
		return nil, &LimitError{What: "poll", Unit: "ms", Got: o.Poll.Milliseconds(), Max: math.MaxInt64}
	}
	if o.Poll == 0 {
		o.Poll = DefaultStagePoll
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	random := newEntropy(o.Seed)
	if o.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Owner = fmt.Sprintf("%s:%d:%04x", host, os.Getpid(), random.n(1<<16))
	}
	q := &Queue{
		db: db, name: name, keys: newSubspace(prefix, name), opts: o, random: random, slot: int64(random.n(counterSlots)),
		staging: staging{random: newEntropy(o.Seed).uuid()},
	}
	q.life, q.endLife = context.WithCancel(context.Background())
	return q, nil
}

// load reads the settings and checks them against the database's versions.
func (q *Queue) load(ctx context.Context, tx kv.Tx) error {
	formatKey, offsetKey := q.keys.meta(metaFormat), q.keys.meta(metaOffset)
	format, offset := tx.Get(formatKey), tx.Get(offsetKey)
	dropped := tx.Get(q.keys.meta(metaDropped))
	following := q.follow(tx)
	hints := q.keys.section(nameReady)
	last := tx.Snapshot().GetKey(kv.LastLessThan(hints.End))
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
	f, err := unpackInt(formatKey, v)
	if err != nil {
		return err
	}
	if f != Format {
		return &FormatError{Queue: q.name, Found: f, Known: Format}
	}
	v, err = offset.Wait(ctx)
	if err != nil {
		return fmt.Errorf("read offset: %w", err)
	}
	if q.offset, err = unpackInt(offsetKey, v); err != nil {
		return err
	}
	config, err := following.wait(ctx)
	if err != nil {
		return err
	}
	q.keys.shards = int64(config.Shards)
	rv, err := version.Wait(ctx)
	if err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	newest, err := last.Wait(ctx)
	if err != nil {
		return fmt.Errorf("read newest hint: %w", err)
	}
	if !hints.Contains(newest) {
		return nil
	}
	p, err := q.keys.parse(newest)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if p.index > rv+q.offset+offsetSlack {
		q.offset = p.index - rv
		tx.Set(offsetKey, tuple.Tuple{q.offset}.Pack())
	}
	return nil
}

func unpackInt(key, value []byte) (int64, error) {
	n, rest, err := tuple.DecodeInt(value)
	if err != nil {
		return 0, corrupt(key, err)
	}
	if len(rest) > 0 {
		return 0, corrupt(key, fmt.Errorf("%d bytes too many", len(rest)))
	}
	return n, nil
}

// Queues returns the names of the queues under prefix, in order.
func Queues(ctx context.Context, db kv.DB, prefix []byte) ([]string, error) {
	var names []string
	_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		names = nil
		all := kv.PrefixRange(prefix)
		// Queue names are strings, whose tuples begin with 0x02.
		next := append(append([]byte(nil), prefix...), 0x02)
		for {
			k, err := tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(next)).Wait(ctx)
			if err != nil {
				return fmt.Errorf("layer: list queues: %w", err)
			}
			if !all.Contains(k) {
				return nil
			}
			name, _, err := tuple.DecodeString(k[len(prefix):])
			if err != nil {
				return nil // past the strings: not ours
			}
			s := newSubspace(prefix, name)
			v, err := tx.Snapshot().Get(s.meta(metaFormat)).Wait(ctx)
			if err != nil {
				return fmt.Errorf("layer: list queues: %w", err)
			}
			if v != nil {
				names = append(names, name)
			}
			next = s.with(0xff)
		}
	})
	return names, err
}

// Name is the queue's name.
func (q *Queue) Name() string { return q.name }

// Close clears what the handle has left in the database for its own use (receipts) and makes every further
// call on it fail with ErrClosed. Claims stay valid until their lease ends. It may be called twice.
func (q *Queue) Close(ctx context.Context) error {
	if q.closed.Swap(true) {
		return nil
	}
	if err := q.stopStaging(ctx); err != nil {
		return fmt.Errorf("layer: close: %w", err)
	}
	return q.clearReceipts(ctx)
}

// yield is where a goroutine that was woken leaves it to a simulation when it goes on.
func (q *Queue) yield(ctx context.Context, who string) {
	if q.opts.Yield == nil {
		return
	}
	if name, ok := ctx.Value(yieldName{}).(string); ok {
		who += " of " + name
	}
	q.opts.Yield(ctx, who)
}

// yieldName is the key of the name that the goroutine of a context goes by in a simulation.
type yieldName struct{}

// named names the goroutine that ctx is for.
func (q *Queue) named(ctx context.Context, format string, args ...any) context.Context {
	if q.opts.Yield == nil {
		return ctx
	}
	return context.WithValue(ctx, yieldName{}, fmt.Sprintf(format, args...))
}

func (q *Queue) nowMS() int64 { return millis(q.opts.Now()) }

// counterSlots is over how many keys each counter is spread, so that handles do not all write the same key.
const counterSlots = 16

// add counts; the number decides nothing, so it needs neither a read nor a conflict.
func (q *Queue) add(tx kv.Tx, name string, n int) {
	if n == 0 {
		return
	}
	var delta [8]byte
	binary.LittleEndian.PutUint64(delta[:], uint64(n))
	tx.Atomic(kv.Add, q.keys.count(name, q.slot), delta[:])
}

// entropy is the handle's source of random numbers and UUIDs: cryptographic unless seeded.
type entropy struct {
	mu   sync.Mutex
	src  *rand.ChaCha8 // guarded by mu
	rand *rand.Rand    // over src; guarded by mu
}

func newEntropy(seed uint64) *entropy {
	var s [32]byte
	if seed == 0 {
		crand.Read(s[:]) // never fails
	} else {
		binary.LittleEndian.PutUint64(s[:], seed)
	}
	src := rand.NewChaCha8(s)
	return &entropy{src: src, rand: rand.New(src)}
}

func (e *entropy) n(below int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rand.IntN(below)
}

// float is in [0, 1).
func (e *entropy) float() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rand.Float64()
}

func (e *entropy) uuid() uuid.UUID { return e.uuids(1)[0] }

func (e *entropy) uuids(n int) []uuid.UUID {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		id := &ids[i]
		e.src.Read(id[:])         // never fails
		id[6] = id[6]&0x0f | 0x40 // version 4, random
		id[8] = id[8]&0x3f | 0x80 // variant of RFC 4122
	}
	return ids
}
