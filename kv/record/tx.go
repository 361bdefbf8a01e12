package record

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"fdbfifo/kv"
)

// Tx notes what is asked of a transaction and passes it on. It is safe for concurrent use if that one is.
type Tx struct {
	kv.Tx
	counters *counters
	log      *opLog // nil if only counters are kept
}

// WrapTx returns tx with a log and counters of its own: for a transaction that the caller commits himself.
func WrapTx(tx kv.Tx) *Tx { return &Tx{Tx: tx, counters: &counters{}, log: &opLog{}} }

// Counters returns what was counted so far; for a transaction of a Recorder, by all of the Recorder's.
func (t *Tx) Counters() Counters { return t.counters.load() }

// Transaction returns what was noted so far, with the conflict ranges if the engine reports them. It asks for
// them, and that waits for pending reads. The error is the engine's.
func (t *Tx) Transaction(ctx context.Context) (Transaction, error) {
	r := Transaction{Ops: t.log.ops()}
	reporter, ok := t.Tx.(kv.ConflictReporter)
	if !ok {
		return r, nil
	}
	var err error
	r.Reads, r.Writes, err = reporter.ConflictRanges(ctx)
	r.Reported = err == nil
	return r, err
}

// opLog is the calls of one attempt. A nil opLog keeps nothing.
type opLog struct {
	mu         sync.Mutex
	list       []Op
	noConflict bool // the next write
}

func (l *opLog) ops() []Op {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

func (l *opLog) clear() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list, l.noConflict = nil, false
}

// read notes a call that writes nothing.
func (l *opLog) read(o Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, o)
}

// write notes a call that NextWriteNoConflict may have been about.
func (l *opLog) write(o Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.NoConflict, l.noConflict = l.noConflict, false
	l.list = append(l.list, o)
}

// reader notes reads through one of a transaction's two views.
type reader struct {
	kv.ReadTx
	tx       *Tx
	snapshot bool
}

func (r reader) Get(key []byte) kv.Future[[]byte] {
	r.tx.counters.keyReads.Add(1)
	if r.tx.log != nil {
		r.tx.log.read(Op{Kind: Get, Snapshot: r.snapshot, Key: bytes.Clone(key)})
	}
	return r.tx.countBytes(r.ReadTx.Get(key))
}

func (r reader) GetKey(s kv.KeySelector) kv.Future[[]byte] {
	r.tx.counters.keyReads.Add(1)
	if r.tx.log != nil {
		r.tx.log.read(Op{Kind: GetKey, Snapshot: r.snapshot, Selector: cloneSelector(s)})
	}
	return r.tx.countBytes(r.ReadTx.GetKey(s))
}

func (r reader) GetRange(keys kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	r.tx.counters.rangeReads.Add(1)
	if r.tx.log != nil {
		r.tx.log.read(Op{Kind: GetRange, Snapshot: r.snapshot, Options: o,
			Range: kv.Range{Begin: cloneSelector(keys.Begin), End: cloneSelector(keys.End)}})
	}
	return &counted[[]kv.KV]{Future: r.ReadTx.GetRange(keys, o), count: func(rows []kv.KV) {
		n := 0
		for _, row := range rows {
			n += len(row.Key) + len(row.Value)
		}
		r.tx.counters.rows.Add(int64(len(rows)))
		r.tx.counters.bytesRead.Add(int64(n))
	}}
}

func (t *Tx) countBytes(f kv.Future[[]byte]) kv.Future[[]byte] {
	return &counted[[]byte]{Future: f, count: func(v []byte) { t.counters.bytesRead.Add(int64(len(v))) }}
}

// counted is a future that looks at its first result.
type counted[T any] struct {
	kv.Future[T]
	once  sync.Once
	count func(T)
}

func (c *counted[T]) Wait(ctx context.Context) (T, error) {
	v, err := c.Future.Wait(ctx)
	if err == nil {
		c.once.Do(func() { c.count(v) })
	}
	return v, err
}

// Get notes a read that conflicts.
func (t *Tx) Get(key []byte) kv.Future[[]byte] { return reader{t.Tx, t, false}.Get(key) }

// GetKey notes a read that conflicts.
func (t *Tx) GetKey(s kv.KeySelector) kv.Future[[]byte] { return reader{t.Tx, t, false}.GetKey(s) }

// GetRange notes a read that conflicts.
func (t *Tx) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return reader{t.Tx, t, false}.GetRange(r, o)
}

// Snapshot notes reads that do not conflict.
func (t *Tx) Snapshot() kv.ReadTx { return reader{t.Tx.Snapshot(), t, true} }

// Set notes a mutation.
func (t *Tx) Set(key, value []byte) {
	t.counters.mutation(len(key) + len(value))
	if t.log != nil {
		t.log.write(Op{Kind: Set, Key: bytes.Clone(key), Value: bytes.Clone(value)})
	}
	t.Tx.Set(key, value)
}

// Clear notes a mutation.
func (t *Tx) Clear(key []byte) {
	t.counters.mutation(len(key))
	if t.log != nil {
		t.log.write(Op{Kind: Clear, Key: bytes.Clone(key)})
	}
	t.Tx.Clear(key)
}

// ClearRange notes a mutation.
func (t *Tx) ClearRange(r kv.KeyRange) {
	t.counters.mutation(len(r.Begin) + len(r.End))
	if t.log != nil {
		t.log.write(Op{Kind: ClearRange, Keys: cloneRange(r)})
	}
	t.Tx.ClearRange(r)
}

// Atomic notes a mutation.
func (t *Tx) Atomic(op kv.MutationType, key, operand []byte) {
	t.counters.mutation(len(key) + len(operand))
	if t.log != nil {
		t.log.write(Op{Kind: Atomic, Mutation: op, Key: bytes.Clone(key), Value: bytes.Clone(operand)})
	}
	t.Tx.Atomic(op, key, operand)
}

// AddReadConflictRange notes the range.
func (t *Tx) AddReadConflictRange(r kv.KeyRange) error {
	if t.log != nil {
		t.log.read(Op{Kind: ReadConflict, Keys: cloneRange(r)})
	}
	return t.Tx.AddReadConflictRange(r)
}

// AddWriteConflictRange notes the range.
func (t *Tx) AddWriteConflictRange(r kv.KeyRange) error {
	if t.log != nil {
		t.log.read(Op{Kind: WriteConflict, Keys: cloneRange(r)})
	}
	return t.Tx.AddWriteConflictRange(r)
}

// NextWriteNoConflict is noted at the next mutation.
func (t *Tx) NextWriteNoConflict() {
	if t.log != nil {
		t.log.mu.Lock()
		t.log.noConflict = true
		t.log.mu.Unlock()
	}
	t.Tx.NextWriteNoConflict()
}

// Watch notes the key.
func (t *Tx) Watch(key []byte) kv.Future[struct{}] {
	t.counters.watches.Add(1)
	if t.log != nil {
		t.log.read(Op{Kind: Watch, Key: bytes.Clone(key)})
	}
	return t.Tx.Watch(key)
}

func cloneSelector(s kv.KeySelector) kv.KeySelector {
	s.Key = bytes.Clone(s.Key)
	return s
}

func cloneRange(r kv.KeyRange) kv.KeyRange {
	return kv.KeyRange{Begin: bytes.Clone(r.Begin), End: bytes.Clone(r.End)}
}
