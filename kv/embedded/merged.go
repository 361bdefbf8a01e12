package embedded

import "fdbfifo/kv"

// merged is the view that a transaction reads: its overlay over a snapshot. Both are frozen during one read, which
// starts with transaction.startRead and ends with endRead.
type merged struct {
	own    *overlay
	tx     *transaction
	fresh  bool      // the read version was not known when the read was begun
	pinned *snapshot // fetched only when the overlay alone cannot answer
	far    *farReads // used instead of pinned in a read that waits for another process

	// walk is the selector being resolved, if it is one that goes over the keys.
	walk *walk
}

// base returns the snapshot's data, which stays open until the read ends.
func (m *merged) base() (view, error) {
	if m.pinned != nil {
		return m.pinned.view, nil
	}
	if m.far != nil {
		return m.far, nil
	}
	s, err := m.tx.view()
	if err != nil {
		return nil, err
	}
	s.pin.RLock()
	if s.closed {
		s.pin.RUnlock()
		return nil, codeError(kv.CodeTransactionTooOld)
	}
	m.pinned = s
	return s.view, nil
}

// expect says how many rows the next walk over the database will take; 0 = all there are.
func (m *merged) expect(rows int) {
	if m.far != nil {
		m.far.expected = rows
	}
}

// get returns the value at key and the segment it lies in.
func (m *merged) get(key string) (value, segment, error) {
	s := m.own.segmentOf(key)
	if s.unreadable() {
		return value{}, s, errUnreadable
	}
	if s.cleared() {
		return value{}, s, nil
	}
	if s.key && !s.dependent() {
		return s.entry.ops.over(value{}), s, nil
	}
	b, err := m.base()
	if err != nil {
		return value{}, s, err
	}
	v, err := b.get(key)
	if err != nil {
		return value{}, s, err
	}
	if s.key {
		v = s.entry.ops.over(v)
	}
	return v, s, nil
}

// ascend calls fn for the pairs of r in order until fn returns false. It fails if it has to step into an
// unreadable segment before that.
func (m *merged) ascend(r keyRange, keysOnly bool, fn func(key, value string) bool) error {
	if r.empty() {
		return nil
	}
	for s, ok := m.own.segmentOf(r.begin), true; ok && s.begin < r.end; s, ok = m.own.after(s) {
		more, err := m.visit(s, r, keysOnly, false, fn)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func (m *merged) descend(r keyRange, keysOnly bool, fn func(key, value string) bool) error {
	if r.empty() {
		return nil
	}
	s, ok := m.own.segmentOf(r.end), true
	if s.begin == r.end {
		s, ok = m.own.ahead(s)
	}
	for ; ok && (s.end == "" || s.end > r.begin); s, ok = m.own.ahead(s) {
		more, err := m.visit(s, r, keysOnly, true, fn)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// visit calls fn for the pairs of r in one segment; more is false once fn returned false.
func (m *merged) visit(
	s segment, r keyRange, keysOnly, reverse bool, fn func(key, value string) bool,
) (more bool, err error) {
	if s.unreadable() {
		return false, errUnreadable
	}
	if s.key {
		v, _, err := m.get(s.begin)
		if err != nil {
			return false, err
		}
		switch {
		case v.present:
			return fn(s.begin, v.data), nil
		case m.walk != nil:
			return m.walk.step(s.begin, false), nil
		}
		return true, nil
	}
	if s.cleared() {
		return true, nil
	}
	b, err := m.base()
	if err != nil {
		return false, err
	}
	part := keyRange{max(s.begin, r.begin), r.end}
	if s.end != "" {
		part.end = min(s.end, r.end)
	}
	more = true
	each := func(key, value string) bool {
		more = fn(key, value)
		return more
	}
	if reverse {
		err = b.descend(part, keysOnly, each)
	} else {
		err = b.ascend(part, keysOnly, each)
	}
	return more, err
}

// selector is a key selector with OrEqual folded into the key: the Offset-th key at or behind key, or for an
// offset <= 0 the (1-Offset)-th key in front of it.
type selector struct {
	key    string
	offset int
}

// firstAt reports whether s is "the first key >= key", which bounds a range without being resolved.
func (s selector) firstAt() bool { return s.offset == 1 }

// resolved is the key that a selector names, with an offset of 1. If there is no such key, key is the end of the key
// space that the walk reached, and offset is the rest of the selector's offset.
type resolved struct {
	key    string
	offset int
}

func (r resolved) readToBegin() bool    { return r.offset < 1 }
func (r resolved) readThroughEnd() bool { return r.offset > 1 }

// allKeys is where selectors walk.
var allKeys = keyRange{"", maxKey}

// resolve walks from s.key and does not leave the given range. It looks at keys only. bound says that the selector
// bounds a range, and need not stop at a key that is there: on its way ahead it stops right behind the key before.
func (m *merged) resolve(s selector, within keyRange, bound bool) (resolved, error) {
	w := walk{resolved{within.end, s.offset}, s.offset > 0, bound}
	m.walk = &w
	m.expect(max(s.offset, 1-s.offset))
	each := func(key, _ string) bool { return w.step(key, true) }
	var err error
	if w.ahead {
		err = m.ascend(keyRange{s.key, within.end}, true, each)
	} else {
		w.key = within.begin
		err = m.descend(keyRange{within.begin, s.key}, true, each)
	}
	m.walk = nil
	return w.resolved, err
}

// walk resolves a selector key by key. It counts also a key that the transaction's own operations leave absent, as a
// compare-and-clear may, because FoundationDB's client does not look at values on the way.
type walk struct {
	resolved
	ahead bool
	bound bool // of a range: it may stop at an absent key
}

func (w *walk) step(key string, present bool) (more bool) {
	switch {
	case w.ahead && w.offset > 1:
		w.offset--
		if w.bound && w.offset == 1 {
			w.key = key + "\x00"
			return false
		}
		return true
	case w.ahead && present:
		w.key = key
		return false
	case w.ahead || w.offset == 0 && !present && !w.bound:
		return true
	}
	w.offset++
	if w.offset == 1 {
		w.key = key
	}
	return w.offset < 1
}

// bounds resolves the selectors of a range. A walk towards the other bound stops there if that bound is fixed. The
// range is then empty, ok is false, and the keys beyond the bound are not read.
func (m *merged) bounds(b, e selector) (begin, end resolved, ok bool, err error) {
	begin, end = resolved{b.key, 1}, resolved{e.key, 1}
	ordered := b.key < e.key
	if !b.firstAt() {
		within := allKeys
		if b.offset > 1 && e.firstAt() && ordered {
			within.end = e.key
		}
		if begin, err = m.resolve(b, within, true); err != nil {
			return begin, end, false, err
		}
		if begin.readThroughEnd() && within != allKeys {
			return begin, end, false, nil
		}
	}
	if !e.firstAt() {
		within := allKeys
		if e.offset < 1 && b.firstAt() && ordered {
			within.begin = b.key
		}
		if end, err = m.resolve(e, within, true); err != nil {
			return begin, end, false, err
		}
		if end.readToBegin() && within != allKeys {
			return begin, end, false, nil
		}
	}
	return begin, end, begin.offset < end.offset || begin.key < end.key, nil
}
