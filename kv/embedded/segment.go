package embedded

// segment is a stretch of the key space over which the overlay says the same: one written key or a range.
type segment struct {
	begin string
	end   string // exclusive; "" = no end
	entry *entry
	key   bool // one written key, entry's
	at    pos
}

// whole is the only segment of a transaction that has written nothing.
var whole = entry{padded: "\x00"}

func (s *segment) unreadable() bool {
	if s.key {
		return s.entry.unreadable
	}
	return s.entry.following.unreadable
}

func (s *segment) conflict() bool {
	if s.key {
		return s.entry.conflict
	}
	return s.entry.following.conflict
}

func (s *segment) cleared() bool    { return !s.key && s.entry.following.cleared }
func (s *segment) unmodified() bool { return !s.key && !s.entry.following.cleared }

// dependent reports whether the segment is one key whose value depends on the database.
func (s *segment) dependent() bool {
	return s.key && !s.entry.following.cleared && s.entry.ops.dependent()
}

// readsThrough reports whether a read here looks at the database, and so needs a read conflict.
func (s *segment) readsThrough() bool { return s.unmodified() || s.dependent() }

// segmentOf returns the segment that contains key.
func (o *overlay) segmentOf(key string) segment {
	if o.empty() {
		return segment{entry: &whole}
	}
	p := o.floor(key)
	e := o.at(p)
	if !e.ops.empty() && e.key() == key {
		return o.keySegment(p)
	}
	return o.rangeSegment(p)
}

func (o *overlay) keySegment(p pos) segment {
	e := o.at(p)
	return segment{begin: e.key(), end: e.padded, entry: e, key: true, at: p}
}

func (o *overlay) rangeSegment(p pos) segment {
	e := o.at(p)
	s := segment{begin: e.key(), entry: e, at: p}
	if !e.ops.empty() {
		s.begin = e.padded
	}
	if n, ok := o.next(p); ok {
		s.end = o.at(n).key()
	}
	return s
}

// after returns the segment behind s; ok is false if s was the last.
func (o *overlay) after(s segment) (segment, bool) {
	if s.end == "" {
		return segment{}, false
	}
	n, ok := o.next(s.at)
	if s.key && (!ok || o.at(n).key() != s.end) {
		return o.rangeSegment(s.at), true
	}
	if !o.at(n).ops.empty() {
		return o.keySegment(n), true
	}
	return o.rangeSegment(n), true
}

// ahead returns the segment in front of s; ok is false if s was the first.
func (o *overlay) ahead(s segment) (segment, bool) {
	if s.begin == "" {
		return segment{}, false
	}
	p := s.at
	if s.key || s.entry.ops.empty() {
		var ok bool
		if p, ok = o.prev(p); !ok {
			return segment{}, false
		}
		e := o.at(p)
		if e.ops.empty() || e.padded != s.begin {
			return o.rangeSegment(p), true
		}
	}
	return o.keySegment(p), true
}

// writeConflicts returns the write conflict ranges, in order.
func (o *overlay) writeConflicts(out []keyRange) []keyRange {
	if o.empty() {
		return out
	}
	first := len(out)
	for s, ok := o.segmentOf(""), true; ok; s, ok = o.after(s) {
		if !s.conflict() {
			continue
		}
		if n := len(out); n > first && out[n-1].end == s.begin {
			out[n-1].end = s.end
			continue
		}
		out = append(out, keyRange{s.begin, s.end})
	}
	return out
}

// mutations returns what to send for the segments of r: clears first, for a key may be both cleared and set.
func (o *overlay) mutations(out []mutation, r keyRange) []mutation {
	if o.empty() {
		return out
	}
	first := len(out)
	for s, ok := o.segmentOf(r.begin), true; ok && s.begin < r.end; s, ok = o.after(s) {
		if !s.cleared() {
			continue
		}
		c := mutation{opClear, max(s.begin, r.begin), r.end}
		if s.end != "" {
			c.value = min(s.end, r.end)
		}
		if n := len(out); n > first && out[n-1].value == c.key {
			out[n-1].value = c.value
			continue
		}
		out = append(out, c)
	}
	for s, ok := o.segmentOf(r.begin), true; ok && s.begin < r.end; s, ok = o.after(s) {
		if !s.key {
			continue
		}
		for i := range s.entry.ops.n {
			m := s.entry.ops.at(i)
			if m.kind == opSet && !m.arg.present {
				out = append(out, mutation{opClear, s.begin, s.end})
			} else {
				out = append(out, mutation{m.kind, s.begin, m.arg.data})
			}
		}
	}
	return out
}

// decided reports whether the segment's keys are known without the database.
func (s *segment) decided() bool { return !s.unreadable() && !s.readsThrough() }

// decideEmpty reports whether own writes alone show that nothing lies between the bounds of a range.
func (o *overlay) decideEmpty(begin, end selector) bool {
	if begin.firstAt() && end.firstAt() || o.empty() {
		return false
	}
	b, e := o.skip(begin), o.skip(end)
	return b.offset >= e.offset && b.key >= e.key
}

// skip moves a selector as far as own writes alone decide the way.
func (o *overlay) skip(sel selector) selector {
	s := o.segmentOf(sel.key)
	if sel.offset < 1 && s.begin == sel.key && sel.key != "" {
		s, _ = o.ahead(s)
	}
	for sel.offset > 1 && s.decided() && s.end != "" {
		if s.key {
			sel.offset--
		}
		s, _ = o.after(s)
		sel.key = s.begin
	}
	for sel.offset < 1 && s.decided() && s.begin != "" {
		if s.key {
			sel.offset++
			if sel.offset == 1 {
				sel.key = s.begin
				break
			}
		}
		s, _ = o.ahead(s)
		sel.key = s.end
	}
	for !s.unreadable() && s.cleared() && s.end != "" {
		s, _ = o.after(s)
		sel.key = s.begin
	}
	return sel
}
