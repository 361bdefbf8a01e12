package embedded

import (
	"fdbfifo/kv"
)

var errUnreadable = codeError(kv.CodeAccessedUnreadable)

// maxReadKey is the longest key, in bytes, that reads, clears and conflict ranges take as it is. None above
// kv.MaxKeySize exists, but FoundationDB 7.3 leaves eight more for a tenant's prefix.
const maxReadKey = kv.MaxKeySize + 8

// view returns the snapshot that the attempt reads from, and fetches the read version if there is none yet.
func (t *transaction) view() (*snapshot, error) {
	if t.snapshot == nil {
		if err := t.fetchSnapshot(); err != nil {
			return nil, err
		}
	}
	if t.readVersion < t.db.now()-window {
		return nil, codeError(kv.CodeTransactionTooOld)
	}
	return t.snapshot, nil
}

func (t *transaction) fetchSnapshot() (err error) {
	if t.readVersion == 0 {
		t.readVersion, t.snapshot, err = t.db.acquire()
		if err != nil {
			t.readVersion = 0
		}
		return err
	}
	t.snapshot, err = t.db.acquireAt(t.readVersion)
	return err
}

func (t *transaction) startRead() merged { return merged{own: &t.own, tx: t} }

// endRead keeps the first error of a read: it fails the commit too.
func (t *transaction) endRead(m *merged, err error) error {
	if m.pinned != nil {
		m.pinned.pin.RUnlock()
	}
	if err != nil && kv.Code(err) == 0 {
		err = &kv.Error{Code: kv.CodeIOError, Cause: err}
	}
	if err != nil && t.poison == nil {
		t.poison = err
	}
	return err
}

func (t *transaction) get(key []byte, snapshot bool) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return nil, err
	}
	v, err := t.read(key, snapshot)
	if err != nil || !v.present {
		return nil, err
	}
	return []byte(v.data), nil
}

func (t *transaction) read(key []byte, snapshot bool) (value, error) {
	if string(key) >= maxKey {
		return value{}, codeError(kv.CodeKeyOutsideLegalRange)
	}
	if len(key) > maxReadKey {
		return value{}, nil
	}
	k := singleKey(padded(key))
	m := t.startRead()
	v, s, err := m.get(k.begin)
	if err = t.endRead(&m, err); err != nil {
		return value{}, err
	}
	if !snapshot && s.readsThrough() {
		t.addRead(k)
	}
	return v, nil
}

func (t *transaction) getKey(ks kv.KeySelector, snapshot bool) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return nil, err
	}
	if string(ks.Key) > maxKey {
		return nil, codeError(kv.CodeKeyOutsideLegalRange)
	}
	s := newSelector(ks)
	m := t.startRead()
	r, err := m.resolve(s, allKeys, false)
	if err = t.endRead(&m, err); err != nil {
		return nil, err
	}
	if !snapshot {
		t.addReads(keyReadRange(s, r.key))
	}
	return []byte(r.key), nil
}

func newSelector(s kv.KeySelector) selector {
	if s.OrEqual {
		return selector{padded(s.Key), s.Offset}
	}
	return selector{string(s.Key), s.Offset}
}

func (t *transaction) getRange(r kv.Range, o kv.RangeOptions, snapshot bool) ([]kv.KV, error) {
	if o.Limit < 0 {
		return nil, codeError(kv.CodeRangeLimitsInvalid)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return nil, err
	}
	if string(r.Begin.Key) > maxKey || string(r.End.Key) > maxKey {
		return nil, codeError(kv.CodeKeyOutsideLegalRange)
	}
	q := rangeRead{begin: newSelector(r.Begin), end: newSelector(r.End)}
	if q.begin.offset >= q.end.offset && q.begin.key >= q.end.key {
		return nil, nil
	}
	m := t.startRead()
	rows, err := m.rows(&q, o)
	if err = t.endRead(&m, err); err != nil {
		return nil, err
	}
	switch {
	case snapshot:
	case o.Reverse:
		t.addReads(q.reverseRange())
	default:
		t.addReads(q.forwardRange())
	}
	return rows, nil
}

// rows reads the range and notes in q what its conflict range depends on.
func (m *merged) rows(q *rangeRead, o kv.RangeOptions) ([]kv.KV, error) {
	if m.tx.readVersion == 0 && m.own.decideEmpty(q.begin, q.end) {
		return nil, nil
	}
	begin, end, ok, err := m.bounds(q.begin, q.end)
	if err != nil || !ok {
		return nil, err
	}
	var rows []kv.KV
	add := func(key, value string) bool {
		rows = append(rows, newKV(key, value))
		if len(rows) == 1 {
			q.first = key
		}
		q.last = key
		return len(rows) != o.Limit
	}
	if o.Limit > 0 {
		rows = make([]kv.KV, 0, min(o.Limit, 128))
	}
	r := keyRange{begin.key, min(end.key, maxKey)}
	switch {
	case r.empty():
	case o.Reverse:
		err = m.descend(r, false, add)
	default:
		err = m.ascend(r, false, add)
	}
	if err != nil {
		return nil, err
	}
	q.rows = len(rows)
	q.limited = o.Limit > 0 && len(rows) == o.Limit
	q.readToBegin = (begin.readToBegin() || end.readToBegin()) && !(q.limited && o.Reverse)
	q.readThroughEnd = (begin.readThroughEnd() || end.readThroughEnd()) && !(q.limited && !o.Reverse)
	return rows, nil
}

// newKV copies a pair for the caller, in one piece.
func newKV(key, value string) kv.KV {
	b := make([]byte, len(key)+len(value))
	n := copy(b, key)
	copy(b[n:], value)
	return kv.KV{Key: b[:n:n], Value: b[n:]}
}

// rangeOverhead is what FoundationDB counts for a conflict range beside its two keys.
const rangeOverhead = 24

func (t *transaction) addRead(r keyRange) {
	t.reads = append(t.reads, r)
	t.size += int64(len(r.begin)+len(r.end)) + rangeOverhead
}

// addReads adds those parts of r that were read from the database.
func (t *transaction) addReads(r keyRange) {
	n := len(t.reads)
	t.reads = t.own.readThrough(t.reads, r)
	// A client counts the whole range for every part.
	t.size += int64(len(t.reads)-n) * (int64(len(r.begin)+len(r.end)) + rangeOverhead)
}

func (t *transaction) getReadVersion() (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deferred != nil {
		return 0, t.deferred
	}
	t.checkDeadline()
	if t.current.err != nil {
		return 0, t.current.err
	}
	switch {
	case t.readVersion != 0:
		return t.readVersion, nil
	case t.committing: // still answered, but there is nothing more to read
		var err error
		t.readVersion, err = t.db.readVersion()
		return t.readVersion, err
	}
	err := t.fetchSnapshot()
	return t.readVersion, err
}

// Get implements kv.ReadTx.
func (t *transaction) Get(key []byte) kv.Future[[]byte] { return kv.Done(t.get(key, false)) }

// GetKey implements kv.ReadTx.
func (t *transaction) GetKey(s kv.KeySelector) kv.Future[[]byte] { return kv.Done(t.getKey(s, false)) }

// GetRange implements kv.ReadTx.
func (t *transaction) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return kv.Done(t.getRange(r, o, false))
}

// ReadVersion implements kv.ReadTx.
func (t *transaction) ReadVersion() kv.Future[int64] { return kv.Done(t.getReadVersion()) }

// SetReadVersion implements kv.ManagedTx. An error is deferred.
func (t *transaction) SetReadVersion(v int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.deferred != nil:
	case t.readVersion != 0:
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

func (s snapshotReads) Get(key []byte) kv.Future[[]byte] { return kv.Done(s.t.get(key, true)) }

func (s snapshotReads) GetKey(k kv.KeySelector) kv.Future[[]byte] {
	return kv.Done(s.t.getKey(k, true))
}

func (s snapshotReads) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return kv.Done(s.t.getRange(r, o, true))
}

func (s snapshotReads) ReadVersion() kv.Future[int64] { return s.t.ReadVersion() }
