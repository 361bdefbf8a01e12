package embedded

import (
	"context"
	"strings"

	"fdbfifo/kv"
)

// mutationOverhead is the bytes that FoundationDB 7.3 counts for a mutation in addition to its key and value.
const mutationOverhead = 44

// deferError keeps the first error of a write: every later read and the commit fail with it. Later writes do
// nothing at all.
func (t *transaction) deferError(err error) {
	if t.deferred == nil {
		t.deferred = err
	}
}

// startWrite returns whether the write adds a write conflict. A write after an error, or after Commit, is an error.
func (t *transaction) startWrite() (addConflict bool, err error) {
	if t.deferred != nil {
		return false, t.deferred
	}
	addConflict = !t.noConflict
	t.noConflict = false
	return addConflict, t.usedDuringCommit()
}

func checkPair(key, value []byte) error {
	if string(key) >= maxKey {
		return codeError(kv.CodeKeyOutsideLegalRange)
	}
	return kv.TooLarge(key, value)
}

func (t *transaction) countMutation(key, value int, addConflict bool) {
	t.size += int64(key+value) + mutationOverhead
	if addConflict {
		t.size += int64(2*key+1) + rangeOverhead
	}
}

// Set implements kv.Tx.
func (t *transaction) Set(key, val []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	addConflict, err := t.startWrite()
	if err == nil {
		err = checkPair(key, val)
	}
	if err != nil {
		t.deferError(err)
		return
	}
	t.countMutation(len(key), len(val), addConflict)
	k, v := copyPair(key, val)
	t.writable().mutate(k, op{opSet, value{v, true}}, addConflict)
	t.triggerWatches(singleKey(k), value{v, true}, true)
}

// maxJoined is the length of the longest value that is kept in one piece with its key.
const maxJoined = 256

// copyPair copies key, padded, and value. A short value is in one piece with the key. The conflict history keeps the
// key long after the commit, and must not keep a long value with it.
func copyPair(key, value []byte) (string, string) {
	if len(value) > maxJoined {
		return padded(key), string(value)
	}
	var b strings.Builder
	b.Grow(len(key) + 1 + len(value))
	b.Write(key)
	b.WriteByte(0)
	b.Write(value)
	s := b.String()
	return s[:len(key)+1], s[len(key)+1:]
}

// Clear implements kv.Tx.
func (t *transaction) Clear(key []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	addConflict, err := t.startWrite()
	if err == nil && string(key) >= maxKey {
		err = codeError(kv.CodeKeyOutsideLegalRange)
	}
	if err != nil {
		t.deferError(err)
		return
	}
	if len(key) > maxReadKey {
		return // no such key can exist
	}
	var b strings.Builder
	b.Grow(len(key) + 2)
	b.Write(key)
	b.WriteByte(0)
	b.WriteByte(0)
	endPadded := b.String()
	t.countClear(2*len(key)+1, rangeOverhead, addConflict) // a client counts it as if it were a range, no mutation
	t.clear(endPadded[:len(key)+1], endPadded, addConflict)
}

// ClearRange implements kv.Tx.
func (t *transaction) ClearRange(r kv.KeyRange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := checkRange(r)
	if err != nil && kv.Code(err) == kv.CodeInvertedRange {
		t.deferError(err) // a client sees this before all else, also before a use after Commit
		return
	}
	addConflict, used := t.startWrite()
	if used != nil {
		err = used
	}
	if err != nil {
		t.deferError(err)
		return
	}
	t.countClear(len(r.Begin)+len(r.End), mutationOverhead, addConflict)
	if begin, end := legalRange(r); begin < end {
		t.clear(begin, end, addConflict)
	}
}

func (t *transaction) countClear(keys, overhead int, addConflict bool) {
	t.size += int64(keys + overhead)
	if addConflict {
		t.size += int64(keys) + rangeOverhead
	}
}

// clear clears a range of which both keys are given padded.
func (t *transaction) clear(begin, end string, addConflict bool) {
	t.writable().clear(begin, end, addConflict)
	t.triggerWatches(unpadded(begin, end), value{}, true)
}

func checkRange(r kv.KeyRange) error {
	switch {
	case string(r.Begin) > string(r.End):
		return codeError(kv.CodeInvertedRange)
	case string(r.Begin) > maxKey || string(r.End) > maxKey:
		return codeError(kv.CodeKeyOutsideLegalRange)
	}
	return nil
}

// legalRange copies the keys of r, padded, cut to one byte above the limit: nothing lies behind that.
func legalRange(r kv.KeyRange) (begin, end string) {
	cut := func(key []byte) []byte { return key[:min(len(key), maxReadKey+1)] }
	return paddedPair(cut(r.Begin), cut(r.End))
}

// Atomic implements kv.Tx. An unknown operation and a versionstamp that does not fit are deferred error 2000.
func (t *transaction) Atomic(kind kv.MutationType, key, operand []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	addConflict, err := t.startWrite()
	if err == nil {
		err = checkPair(key, operand)
	}
	if err == nil && !isAtomic(kind) {
		err = codeError(kv.CodeClientInvalidOperation)
	}
	if err != nil {
		t.deferError(err)
		return
	}
	k, v := copyPair(key, operand)
	switch kind {
	case kv.SetVersionstampedKey:
		offset, ok := stampOffset(k[:len(k)-1])
		if !ok {
			t.deferError(codeError(kv.CodeClientInvalidOperation))
			return
		}
		k, addConflict = t.reserveStamped(k, offset), false
	case kv.SetVersionstampedValue:
		if _, ok := stampOffset(v); !ok {
			t.deferError(codeError(kv.CodeClientInvalidOperation))
			return
		}
	}
	t.countMutation(len(key), len(operand), addConflict)
	t.writable().mutate(k, op{kind, value{v, true}}, addConflict)
	t.triggerWatches(singleKey(k), value{}, false)
}

// reserveStamped makes the range in which a versionstamped key may lie unreadable. It returns the template, padded,
// with the lowest stamp filled in. The lowest is the read version if that is known, else zero, as in FoundationDB 7.3.
func (t *transaction) reserveStamped(template string, offset int) string {
	key := template[:len(template)-1]
	r := stampRange(key, offset, t.readVersion)
	t.stampKeys = append(t.stampKeys, key)
	// The writes there go to the commit unchanged; later writes come after them.
	t.sent = t.own.mutations(t.sent, r)
	for _, w := range t.own.writeConflicts(nil) {
		if w = w.within(r); !w.empty() {
			t.sentWrites = append(t.sentWrites, w)
		}
	}
	if !r.empty() {
		t.writable().forget(r)
	}
	lowest := makeStamp(t.readVersion, 0)
	return template[:offset] + string(lowest[:]) + template[offset+stampSize:]
}

// stampRange returns the range in which a versionstamped key may lie if it commits after version.
func stampRange(template string, offset int, version int64) keyRange {
	key := template[:len(template)-offsetSize]
	lowest := makeStamp(version, 0)
	return keyRange{
		key[:offset] + string(lowest[:]) + key[offset+stampSize:],
		min(key[:offset]+strings.Repeat("\xff", stampSize)+key[offset+stampSize:]+"\x00", maxKey),
	}
}

func (r keyRange) within(o keyRange) keyRange {
	return keyRange{max(r.begin, o.begin), min(r.end, o.end)}
}

// AddReadConflictRange implements kv.Tx. A range outside the legal keys is deferred error 2004.
func (t *transaction) AddReadConflictRange(r kv.KeyRange) error {
	return t.addConflictRange(r, func(begin, end string) { t.addReads(&t.own, unpadded(begin, end)) })
}

// AddWriteConflictRange implements kv.Tx. A range outside the legal keys is deferred error 2004.
func (t *transaction) AddWriteConflictRange(r kv.KeyRange) error {
	return t.addConflictRange(r, func(begin, end string) {
		t.size += int64(len(begin)-1+len(end)-1) + rangeOverhead
		t.writable().addConflict(begin, end)
	})
}

// addConflictRange calls add with both keys of r, padded, if anything can lie in r.
func (t *transaction) addConflictRange(r kv.KeyRange, add func(begin, end string)) error {
	err := checkRange(r)
	if kv.Code(err) == kv.CodeInvertedRange {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deferred != nil {
		return nil
	}
	if used := t.usedDuringCommit(); used != nil {
		err = used
	}
	if err != nil {
		t.deferError(err)
		return nil
	}
	if begin, end := legalRange(r); begin < end {
		add(begin, end)
	}
	return nil
}

// NextWriteNoConflict implements kv.Tx.
func (t *transaction) NextWriteNoConflict() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noConflict = true
}

// ApproximateSize implements kv.Tx.
func (t *transaction) ApproximateSize() kv.Future[int64] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deferred != nil {
		return kv.Done[int64](0, t.deferred)
	}
	if t.current.reading > 0 {
		return newPending(t, t.current.wait(), func() (int64, error) {
			t.mu.Lock()
			defer t.mu.Unlock()
			return t.size, nil
		}, nil)
	}
	return kv.Done(t.size, nil)
}

// ConflictRanges implements kv.ConflictReporter. A versionstamped key counts as the range it may come to lie in, and
// after the commit as itself. An error that fails the commit fails the list too. As FoundationDB's client lists them,
// the conflict ranges of earlier writes to where a versionstamped key may lie are missing; the commit has them.
func (t *transaction) ConflictRanges(ctx context.Context) (read, write []kv.KeyRange, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.current.reading > 0 {
		idle := t.current.wait()
		t.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
		}
		t.mu.Lock()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
	}
	if err := t.listable(); err != nil {
		return nil, nil, err
	}
	reads := append([]keyRange(nil), t.reads...)
	writes := t.own.writeConflicts(nil)
	for _, k := range t.stampKeys {
		writes = append(writes, t.stampedRange(k))
	}
	return exported(merge(reads)), exported(merge(writes)), nil
}

// stampedRange is the write conflict range of a versionstamped key. FoundationDB's client knows the key itself only
// if the attempt was not begun by OnError.
func (t *transaction) stampedRange(template string) keyRange {
	if c := t.current.commit; c != nil && c.finished() && c.err == nil && !t.retried {
		key := stamped(template, makeStamp(c.version, c.index))
		return keyRange{key, key + "\x00"}
	}
	offset, _ := stampOffset(template)
	return stampRange(template, offset, t.readVersion)
}

// listable returns the error of a write, of the attempt's end, or of a read.
func (t *transaction) listable() error {
	if t.deferred != nil {
		return t.deferred
	}
	t.checkDeadline()
	if t.current.err != nil {
		return t.current.err
	}
	return t.poison
}
