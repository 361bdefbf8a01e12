package embedded

import (
	"errors"
	"slices"

	"fdbfifo/kv"
)

var errUnreadable = codeError(kv.CodeAccessedUnreadable)

// maxReadKey is the longest key, in bytes, that reads, clears and conflict ranges take as it is. None above
// kv.MaxKeySize exists, but FoundationDB 7.3 leaves eight more for a tenant's prefix.
const maxReadKey = kv.MaxKeySize + 8

// errElsewhere says that a read needs the database and another process has that open.
var errElsewhere = errors.New("embedded: the database is in another process")

// view returns the snapshot that the attempt reads from, and fetches the read version if there is none yet.
func (t *transaction) view() (*snapshot, error) {
	if t.snapshot == nil {
		if err := t.fetchSnapshot(); err != nil {
			return nil, err
		}
	}
	if t.readVersion < t.home.now()-window {
		return nil, codeError(kv.CodeTransactionTooOld)
	}
	return t.snapshot, nil
}

func (t *transaction) fetchSnapshot() (err error) {
	if t.far != nil {
		return errElsewhere // also if that process has ended and this one has the database now
	}
	if t.home = t.db.local.Load(); t.home == nil {
		return errElsewhere
	}
	if t.readVersion == 0 {
		t.readVersion, t.snapshot, err = t.home.acquire()
		if err != nil {
			t.readVersion = 0
		}
		return err
	}
	t.snapshot, err = t.home.acquireAt(t.readVersion)
	return err
}

func (t *transaction) startRead() merged {
	return merged{own: &t.own, tx: t, fresh: t.readVersion == 0 && t.far == nil}
}

// endRead keeps the first error of a read: it fails the commit too.
func (t *transaction) endRead(m *merged, err error) error {
	if m.pinned != nil {
		m.pinned.pin.RUnlock()
	}
	return t.keepError(err)
}

func (t *transaction) keepError(err error) error {
	if err != nil && kv.Code(err) == 0 {
		err = &kv.Error{Code: kv.CodeIOError, Cause: err}
	}
	if err != nil && t.poison == nil {
		t.poison = err
	}
	return err
}

// reading is one read. It holds the request and, after run, the result.
type reading[T any] interface {
	// run reads. It may run again, and then replaces the earlier result.
	run(m *merged) error
	// depends adds the conflict ranges of the result to the transaction's.
	depends(t *transaction, own *overlay)
	result() T
}

// oneKey is the read of a key's value.
type oneKey struct {
	key     keyRange
	value   value
	segment segment
}

func (r *oneKey) run(m *merged) (err error) {
	r.value, r.segment, err = m.get(r.key.begin)
	return err
}

func (r *oneKey) depends(t *transaction, _ *overlay) {
	if r.segment.readsThrough() {
		t.addRead(r.key)
	}
}

func (r *oneKey) result() []byte {
	if !r.value.present {
		return nil
	}
	return []byte(r.value.data)
}

func (t *transaction) get(key []byte, snapshot bool) kv.Future[[]byte] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return kv.Done[[]byte](nil, err)
	}
	if string(key) >= maxKey {
		return kv.Done[[]byte](nil, codeError(kv.CodeKeyOutsideLegalRange))
	}
	if len(key) > maxReadKey {
		return kv.Done[[]byte](nil, nil)
	}
	r := oneKey{key: singleKey(padded(key))}
	m := t.startRead()
	err := r.run(&m)
	if err == errElsewhere {
		return later[[]byte](t, &m, &oneKey{key: r.key}, snapshot)
	}
	if err = t.endRead(&m, err); err != nil {
		return kv.Done[[]byte](nil, err)
	}
	if !snapshot {
		r.depends(t, &t.own)
	}
	return kv.Done(r.result(), nil)
}

// selection is the resolution of a key selector.
type selection struct {
	selector selector
	found    resolved
}

func (r *selection) run(m *merged) (err error) {
	r.found, err = m.resolve(r.selector, allKeys, false)
	return err
}

func (r *selection) depends(t *transaction, own *overlay) {
	t.addReads(own, keyReadRange(r.selector, r.found.key))
}

func (r *selection) result() []byte { return []byte(r.found.key) }

func (t *transaction) getKey(ks kv.KeySelector, snapshot bool) kv.Future[[]byte] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return kv.Done[[]byte](nil, err)
	}
	if string(ks.Key) > maxKey {
		return kv.Done[[]byte](nil, codeError(kv.CodeKeyOutsideLegalRange))
	}
	r := selection{selector: newSelector(padded(ks.Key), ks)}
	m := t.startRead()
	err := r.run(&m)
	if err == errElsewhere {
		return later[[]byte](t, &m, &selection{selector: r.selector}, snapshot)
	}
	if err = t.endRead(&m, err); err != nil {
		return kv.Done[[]byte](nil, err)
	}
	if !snapshot {
		r.depends(t, &t.own)
	}
	return kv.Done(r.result(), nil)
}

// newSelector returns s as a selector of the engine. padded must be s.Key with a zero byte behind it.
func newSelector(padded string, s kv.KeySelector) selector {
	if s.OrEqual {
		return selector{padded, s.Offset}
	}
	return selector{padded[:len(padded)-1], s.Offset}
}

// stretch is the read of a range.
type stretch struct {
	rangeRead
	options kv.RangeOptions
	found   []kv.KV
}

func (r *stretch) run(m *merged) (err error) {
	r.rangeRead, r.found = rangeRead{begin: r.begin, end: r.end}, nil
	if err = m.rows(r); err != nil {
		r.found = nil
	}
	return err
}

// add takes a row that was found, and reports whether more are wanted.
func (r *stretch) add(key, value string) bool {
	if len(r.found) == 0 {
		r.first = key
	}
	if len(r.found) == cap(r.found) {
		r.found = slices.Grow(r.found, moreRows(len(r.found), r.options.Limit))
	}
	r.found = append(r.found, newKV(key, value))
	r.last = key
	return len(r.found) != r.options.Limit
}

func (r *stretch) depends(t *transaction, own *overlay) {
	if r.options.Reverse {
		t.addReads(own, r.reverseRange())
	} else {
		t.addReads(own, r.forwardRange())
	}
}

func (r *stretch) result() []kv.KV { return r.found }

func (t *transaction) getRange(r kv.Range, o kv.RangeOptions, snapshot bool) kv.Future[[]kv.KV] {
	if o.Limit < 0 {
		return kv.Done[[]kv.KV](nil, codeError(kv.CodeRangeLimitsInvalid))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return kv.Done[[]kv.KV](nil, err)
	}
	if string(r.Begin.Key) > maxKey || string(r.End.Key) > maxKey {
		return kv.Done[[]kv.KV](nil, codeError(kv.CodeKeyOutsideLegalRange))
	}
	begin, end := paddedPair(r.Begin.Key, r.End.Key)
	q := stretch{rangeRead: rangeRead{begin: newSelector(begin, r.Begin), end: newSelector(end, r.End)}, options: o}
	if q.begin.offset >= q.end.offset && q.begin.key >= q.end.key {
		return kv.Done[[]kv.KV](nil, nil)
	}
	m := t.startRead()
	err := q.run(&m)
	if err == errElsewhere {
		return later[[]kv.KV](t, &m, &stretch{rangeRead: q.rangeRead, options: o}, snapshot)
	}
	if err = t.endRead(&m, err); err != nil {
		return kv.Done[[]kv.KV](nil, err)
	}
	if !snapshot {
		q.depends(t, &t.own)
	}
	return kv.Done(q.found, nil)
}

// rows reads the range, and notes what its conflict range depends on.
func (m *merged) rows(q *stretch) error {
	if m.fresh && m.own.decideEmpty(q.begin, q.end) {
		return nil
	}
	begin, end, ok, err := m.bounds(q.begin, q.end)
	if err != nil || !ok {
		return err
	}
	m.expect(q.options.Limit)
	r := keyRange{begin.key, min(end.key, maxKey)}
	switch {
	case r.empty():
	case q.options.Reverse:
		err = m.descend(r, false, q.add)
	default:
		err = m.ascend(r, false, q.add)
	}
	if err != nil {
		return err
	}
	q.rangeRead.rows = len(q.found)
	q.limited = q.options.Limit > 0 && len(q.found) == q.options.Limit
	q.readToBegin = (begin.readToBegin() || end.readToBegin()) && !(q.limited && q.options.Reverse)
	q.readThroughEnd = (begin.readThroughEnd() || end.readThroughEnd()) && !(q.limited && !q.options.Reverse)
	return nil
}

// moreRows returns for how many more rows a read makes room at once, after it has found so many. Most ranges have no
// row or a few, whatever the limit. A range with more rows usually has many.
func moreRows(found, limit int) int {
	const few, many = 10, 128
	switch {
	case found == 0 && limit == 0:
		return few
	case found == 0:
		return min(limit, few)
	case limit == 0:
		return found
	}
	return min(limit-found, max(found, many-found))
}

// newKV copies a pair for the caller, in one piece.
func newKV(key, value string) kv.KV {
	b := make([]byte, len(key)+len(value))
	n := copy(b, key)
	copy(b[n:], value)
	return kv.KV{Key: b[:n:n], Value: b[n:]}
}

// rangeOverhead is the bytes that FoundationDB counts for a conflict range in addition to its two keys.
const rangeOverhead = 24

// firstReads is for how many ranges a transaction that adds a read conflict makes room.
const firstReads = 4

func (t *transaction) addRead(r keyRange) {
	if t.reads == nil {
		t.reads = make([]keyRange, 0, firstReads)
	}
	t.reads = append(t.reads, r)
	t.size += int64(len(r.begin)+len(r.end)) + rangeOverhead
}

// addReads adds those parts of r that were read from the database, below what the transaction had written by then.
func (t *transaction) addReads(own *overlay, r keyRange) {
	if t.reads == nil {
		t.reads = make([]keyRange, 0, firstReads)
	}
	n := len(t.reads)
	t.reads = own.readThrough(t.reads, r)
	// A client counts the whole range for every part.
	t.size += int64(len(t.reads)-n) * (int64(len(r.begin)+len(r.end)) + rangeOverhead)
}

func (t *transaction) getReadVersion() kv.Future[int64] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deferred != nil {
		return kv.Done[int64](0, t.deferred)
	}
	t.checkDeadline()
	if t.current.err != nil {
		return kv.Done[int64](0, t.current.err)
	}
	if t.readVersion != 0 {
		return kv.Done(t.readVersion, nil)
	}
	if t.committing { // still answered, but there is nothing more to read
		return t.lateVersion()
	}
	err := t.fetchSnapshot()
	if err == errElsewhere {
		return t.farVersion(func() {})
	}
	return kv.Done(t.readVersion, err)
}

// Get implements kv.ReadTx.
func (t *transaction) Get(key []byte) kv.Future[[]byte] { return t.get(key, false) }

// GetKey implements kv.ReadTx.
func (t *transaction) GetKey(s kv.KeySelector) kv.Future[[]byte] { return t.getKey(s, false) }

// GetRange implements kv.ReadTx.
func (t *transaction) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return t.getRange(r, o, false)
}

// ReadVersion implements kv.ReadTx.
func (t *transaction) ReadVersion() kv.Future[int64] { return t.getReadVersion() }

// SetReadVersion implements kv.ManagedTx. An error is deferred.
func (t *transaction) SetReadVersion(v int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.deferred != nil:
	case t.readVersion != 0 || t.far != nil || t.blind:
		t.deferError(codeError(kv.CodeReadVersionAlreadySet))
	case v <= 0:
		t.deferError(codeError(kv.CodeVersionInvalid))
	default:
		t.readVersion = v
	}
}

// Snapshot implements kv.Tx.
func (t *transaction) Snapshot() kv.ReadTx { return snapshotReads{t} }

// snapshotReads reads without read conflicts.
type snapshotReads struct{ t *transaction }

func (s snapshotReads) Get(key []byte) kv.Future[[]byte] { return s.t.get(key, true) }

func (s snapshotReads) GetKey(k kv.KeySelector) kv.Future[[]byte] { return s.t.getKey(k, true) }

func (s snapshotReads) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return s.t.getRange(r, o, true)
}

func (s snapshotReads) ReadVersion() kv.Future[int64] { return s.t.ReadVersion() }
