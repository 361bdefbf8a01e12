package embedded

import (
	"math"

	"github.com/tidwall/btree"
)

// window is how many versions a transaction may live: FoundationDB's MAX_READ_TRANSACTION_LIFE_VERSIONS.
const window = 5_000_000

// history remembers the write conflict ranges of the last window of versions. It is kept in generations of about
// a second: a transaction is checked only against those younger than its read version, and old ones are dropped
// whole. One goroutine uses it.
//
// A range may hold very many keys that were written lately, but none since the transaction began. So history also keeps
// the last writes as a list. Nearly all transactions are young, so the list has few writes to compare.
type history struct {
	generations []*generation // oldest first

	recent      []writtenAt // by version: all writes above recentFrom, and perhaps some at it
	recentFrom  int64
	recentCount int // ranges in recent
}

// writtenAt is the write conflict ranges of one commit.
type writtenAt struct {
	version int64
	writes  []keyRange
}

// maxRecent is how many ranges recent keeps at least. When there are twice as many, the older half goes.
const maxRecent = 1024

// generationSpan is how many versions one generation covers.
const generationSpan = window / 5

type generation struct {
	first, last int64 // versions added
	// points are single keys with the last version that wrote them, ranges the boundaries of a step function:
	// from each key up to the next the last version that wrote there as part of a range.
	points btree.Map[string, int64]
	ranges btree.Map[string, int64]
}

// add records a write at version, which is no smaller than any before.
func (h *history) add(writes []keyRange, version int64) {
	if len(writes) == 0 {
		return
	}
	var g *generation
	if n := len(h.generations); n > 0 {
		g = h.generations[n-1]
	}
	if g == nil || version-g.first >= generationSpan {
		g = &generation{first: version}
		h.generations = append(h.generations, g)
	}
	g.last = version
	h.addRecent(writes, version)
	for _, w := range writes {
		if w.isSingle() {
			g.points.Set(w.begin, version)
		} else {
			g.addRange(w, version)
		}
	}
}

func (h *history) addRecent(writes []keyRange, version int64) {
	h.recent = append(h.recent, writtenAt{version, writes})
	h.recentCount += len(writes)
	if h.recentCount <= 2*maxRecent {
		return
	}
	n := 0
	for n < len(h.recent) && h.recentCount > maxRecent {
		h.recentCount -= len(h.recent[n].writes)
		h.recentFrom = h.recent[n].version
		n++
	}
	left := copy(h.recent, h.recent[n:])
	clear(h.recent[left:])
	h.recent = h.recent[:left]
}

// addRange sets the step function to version over w.
func (g *generation) addRange(w keyRange, version int64) {
	var behind int64 // the function's value at the end of w
	var inner []string
	first := true
	g.ranges.Descend(w.end, func(key string, v int64) bool {
		if first {
			behind, first = v, false
		}
		if key <= w.begin {
			return false
		}
		if key < w.end {
			inner = append(inner, key)
		}
		return true
	})
	for _, key := range inner {
		g.ranges.Delete(key)
	}
	g.ranges.Set(w.end, behind)
	g.ranges.Set(w.begin, version)
}

// conflicts reports whether anything in reads was written after version.
func (h *history) conflicts(reads []keyRange, version int64) bool {
	for _, r := range reads {
		if h.written(r, version) {
			return true
		}
	}
	return false
}

// maxSteps is how many writes of a generation a range is compared with, before the list of recent writes is used
// instead.
const maxSteps = 32

func (h *history) written(r keyRange, version int64) bool {
	bound := math.MaxInt
	if version >= h.recentFrom && !r.isSingle() {
		bound = maxSteps
	}
	for i := len(h.generations) - 1; i >= 0 && h.generations[i].last > version; i-- {
		hit, whole := h.generations[i].written(r, version, bound)
		if hit {
			return true
		}
		if !whole {
			return h.recentlyWritten(r, version)
		}
	}
	return false
}

func (h *history) recentlyWritten(r keyRange, version int64) bool {
	for i := len(h.recent) - 1; i >= 0 && h.recent[i].version > version; i-- {
		for _, w := range h.recent[i].writes {
			if w.begin < r.end && r.begin < w.end {
				return true
			}
		}
	}
	return false
}

// written reports whether r was written after version. It gives up, and is not whole, after bound steps.
func (g *generation) written(r keyRange, version int64, bound int) (hit, whole bool) {
	steps := 0
	if g.ranges.Len() > 0 {
		// From the segment that r begins in, backwards from r's last.
		g.ranges.Descend(r.end, func(key string, v int64) bool {
			if key == r.end {
				return true
			}
			hit = v > version
			steps++
			return !hit && key > r.begin && steps < bound
		})
		if hit {
			return true, true
		}
	}
	if r.isSingle() {
		v, ok := g.points.Get(r.begin)
		return ok && v > version, true
	}
	g.points.Ascend(r.begin, func(key string, v int64) bool {
		if key >= r.end {
			return false
		}
		hit = v > version
		steps++
		return !hit && steps < bound
	})
	return hit, hit || steps < bound
}

// forget drops what no transaction can conflict with any more, at the given version.
func (h *history) forget(version int64) {
	n := 0
	for n < len(h.generations) && h.generations[n].last < version-window {
		n++
	}
	if n > 0 {
		h.generations = append([]*generation(nil), h.generations[n:]...)
	}
}
