package embedded

// The read conflict ranges of reads, as FoundationDB's client derives them (ReadYourWrites.actor.cpp,
// addConflictRange). A read first gives the range that its outcome depends on. The conflict ranges are the parts of it
// that were read from the database.

// readThrough appends the parts of r that this transaction has not written itself, or only by an atomic
// operation on a value it does not know.
func (o *overlay) readThrough(out []keyRange, r keyRange) []keyRange {
	if r.empty() {
		return out
	}
	if o.empty() {
		return append(out, r)
	}
	for s, ok := o.segmentOf(r.begin), true; ok && s.begin < r.end; s, ok = o.after(s) {
		if !s.readsThrough() {
			continue
		}
		part := keyRange{max(s.begin, r.begin), r.end}
		if s.end != "" {
			part.end = min(s.end, r.end)
		}
		out = append(out, part)
	}
	return out
}

// keyReadRange returns the range of keys that the resolution of s to key depends on.
func keyReadRange(s selector, key string) keyRange {
	if s.offset <= 0 {
		return keyRange{key, s.key}
	}
	return keyRange{s.key, key + "\x00"}
}

// rangeRead is a finished range read.
type rangeRead struct {
	begin, end                  selector
	first, last                 string // keys returned, in the order returned, if rows > 0
	rows                        int
	limited                     bool // as many rows as the limit
	readToBegin, readThroughEnd bool
}

// forwardRange returns the range that the outcome of an ascending read depends on. It is the whole range, or the range
// up to the last row if a limit stopped the read.
func (q rangeRead) forwardRange() keyRange {
	var r keyRange
	if q.begin.key < q.end.key {
		r = keyRange{q.begin.key, q.end.key}
		if q.end.offset > 0 && q.limited {
			r.end = q.begin.key
		}
	} else {
		r = keyRange{q.end.key, q.begin.key}
	}
	q.widen(&r)
	if q.rows > 0 {
		if q.begin.offset <= 0 {
			r.begin = min(r.begin, q.first)
		}
		if r.end <= q.last {
			r.end = q.last + "\x00"
		}
	}
	return r
}

// reverseRange is the same for a descending read.
func (q rangeRead) reverseRange() keyRange {
	var r keyRange
	if q.begin.key < q.end.key {
		r = keyRange{q.begin.key, q.end.key}
		if q.begin.offset <= 1 && q.limited {
			r.begin = q.end.key
		}
	} else {
		r = keyRange{q.end.key, q.begin.key}
	}
	q.widen(&r)
	if q.rows > 0 {
		r.begin = min(r.begin, q.last)
		if q.end.offset > 0 && r.end <= q.first {
			r.end = q.first + "\x00"
		}
	}
	return r
}

// widen extends r to the end of the key space if a selector ran past it.
func (q rangeRead) widen(r *keyRange) {
	if q.readToBegin && q.begin.offset <= 0 {
		r.begin = ""
	}
	if q.readThroughEnd && q.end.offset > 0 {
		r.end = maxKey
	}
}
