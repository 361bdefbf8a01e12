package kvtest

import (
	"maps"
	"slices"

	"fdbfifo/kv"
)

// model is the dumbest database that keeps the promises: every version is a whole copy, and a commit is checked
// against all commits ever made. Keys are relative to the run's prefix.
type model struct{ versions []modelVersion }

// modelVersion is one commit.
type modelVersion struct {
	version int64
	state   map[string][]byte
	wrote   []span
}

func (m *model) latest() modelVersion { return m.versions[len(m.versions)-1] }

// at returns the state that a read version shows.
func (m *model) at(version int64) map[string][]byte {
	for _, v := range slices.Backward(m.versions) {
		if v.version <= version {
			return v.state
		}
	}
	return nil
}

// modelTx is a transaction of the model. A read must not happen before the read version is known.
type modelTx struct {
	m              *model
	readVersion    int64 // 0 = not fixed
	log            writeLog
	reads, writes  []span
	nextNoConflict bool
	failedRead     bool // a read failed with 1036, and so will the commit
}

// cell is one key as a transaction may find it.
type cell struct {
	key        string
	value      []byte // nil = absent
	unreadable bool
}

// cells returns every key that is stored or written, in order, leaving out those known to be absent.
func (tx *modelTx) cells() []cell {
	state := tx.m.at(tx.readVersion)
	keys := map[string]bool{}
	for k := range state {
		keys[k] = true
	}
	for _, w := range tx.log {
		if !w.clear && w.op != kv.SetVersionstampedKey {
			keys[w.key] = true
		}
	}
	var out []cell
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		own := tx.log.at(k)
		c := cell{key: k, unreadable: own.unreadable}
		if !c.unreadable {
			c.value = own.over(state[k])
		}
		if c.unreadable || c.value != nil {
			out = append(out, c)
		}
	}
	return out
}

// unreadable fails a read, and with it the transaction.
func (tx *modelTx) unreadable() int {
	tx.failedRead = true
	return kv.CodeAccessedUnreadable
}

func (tx *modelTx) addRead(s span, snapshot bool) {
	if !snapshot && s.begin < s.end {
		tx.reads = append(tx.reads, tx.log.undecided(s)...)
	}
}

func (tx *modelTx) get(key string, snapshot bool) ([]byte, int) {
	own := tx.log.at(key)
	if own.unreadable {
		return nil, tx.unreadable()
	}
	tx.addRead(single(key), snapshot)
	return own.over(tx.m.at(tx.readVersion)[key]), 0
}

// selector is a kv.KeySelector over relative keys.
type selector struct {
	key     string
	orEqual bool
	offset  int
}

// base is the first key that the selector does not count as below it.
func (s selector) base() string {
	if s.orEqual {
		return s.key + "\x00"
	}
	return s.key
}

// firstFrom reports whether the selector is a plain lower bound: the first key at or behind its base.
func (s selector) firstFrom() bool { return s.offset == 1 }

// step walks from the selector's base over cells, away from it, and returns the cell it ends on.
func (s selector) step(cells []cell) (cell, int) {
	n, _ := slices.BinarySearchFunc(cells, s.base(), func(c cell, b string) int {
		if c.key < b {
			return -1
		}
		return 1
	})
	// Forward the walk takes offset cells from n on, backward 1-offset cells below n.
	from, to, by := n, n+s.offset-1, 1
	if s.offset <= 0 {
		from, to, by = n-1, n-1+s.offset, -1
	}
	for i := from; i != to+by; i += by {
		if cells[i].unreadable {
			return cell{}, kv.CodeAccessedUnreadable
		}
	}
	return cells[to], 0
}

func (tx *modelTx) getKey(s selector, snapshot bool) (string, int) {
	c, code := s.step(tx.cells())
	if code != 0 {
		return "", tx.unreadable()
	}
	if s.offset > 0 {
		tx.addRead(span{s.base(), c.key + "\x00"}, snapshot)
	} else {
		tx.addRead(span{c.key, s.base()}, snapshot)
	}
	return c.key, 0
}

// getRange reads between two selectors. Where a versionstamped value is pending both must be plain bounds.
func (tx *modelTx) getRange(begin, end selector, o kv.RangeOptions, snapshot bool) ([]cell, int) {
	cells := tx.cells()
	if begin.offset >= end.offset && begin.base() >= end.base() {
		return nil, 0 // inverted by its looks: not even read
	}
	bounds := span{begin.base(), end.base()}
	if !begin.firstFrom() {
		c, _ := begin.step(cells)
		bounds.begin = c.key
	}
	if !end.firstFrom() {
		c, _ := end.step(cells)
		bounds.end = c.key
	}
	if o.Reverse {
		slices.Reverse(cells)
	}
	var rows []cell
	for _, c := range cells {
		if !bounds.contains(c.key) {
			continue
		}
		if c.unreadable {
			return nil, tx.unreadable()
		}
		rows = append(rows, c)
		if len(rows) == o.Limit {
			break
		}
	}
	tx.addRead(rangeConflict(begin, end, o, rows), snapshot)
	return rows, 0
}

// rangeConflict is FoundationDB's rule. It looks at the selectors' bases and the rows alone: a range stopped by its
// limit ends with the last row, unless the bound on that side must be counted from outside the range.
func rangeConflict(begin, end selector, o kv.RangeOptions, rows []cell) span {
	more := o.Limit > 0 && len(rows) == o.Limit
	s := span{begin.base(), end.base()}
	switch {
	case s.begin >= s.end:
		s = span{s.end, s.begin}
	case more && !o.Reverse && end.offset > 0:
		s.end = s.begin
	case more && o.Reverse && begin.offset <= 1:
		s.begin = s.end
	}
	if len(rows) == 0 {
		return s
	}
	low, high := rows[0].key, rows[len(rows)-1].key
	if o.Reverse {
		low, high = high, low
	}
	if o.Reverse || begin.offset <= 0 {
		s.begin = min(s.begin, low)
	}
	if (!o.Reverse || end.offset > 0) && s.end <= high {
		s.end = high + "\x00"
	}
	return s
}

func (tx *modelTx) write(w write) {
	at := w.cleared
	if !w.clear {
		at = single(w.key)
	}
	if !tx.nextNoConflict && (w.clear || w.op != kv.SetVersionstampedKey) {
		tx.writes = append(tx.writes, at)
	}
	tx.nextNoConflict = false
	if !w.clear || at.begin < at.end {
		tx.log = append(tx.log, w)
	}
}

// writesNothing reports whether the commit is that of a read-only transaction.
func (tx *modelTx) writesNothing() bool { return len(tx.log) == 0 && len(merged(tx.writes)) == 0 }

// outcome is the code that the commit must end with.
func (tx *modelTx) outcome() int {
	switch {
	case tx.failedRead:
		return kv.CodeAccessedUnreadable
	case tx.writesNothing() || tx.readVersion == 0:
		return 0
	}
	for _, v := range tx.m.versions {
		if v.version <= tx.readVersion {
			continue
		}
		for _, w := range v.wrote {
			if slices.ContainsFunc(tx.reads, w.intersects) {
				return kv.CodeNotCommitted
			}
		}
	}
	return 0
}

// commit makes the transaction's writes the newest version.
func (tx *modelTx) commit(version int64, stamp [10]byte) {
	state := maps.Clone(tx.m.latest().state)
	tx.log.apply(state, stamp)
	wrote := tx.writes
	for _, k := range tx.log.stampedKeys(stamp) {
		wrote = append(wrote, single(k.key))
	}
	tx.m.versions = append(tx.m.versions, modelVersion{version, state, merged(wrote)})
}
