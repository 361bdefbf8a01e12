package layer

import (
	"fmt"
	"sort"
	"sync/atomic"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// search walks the hints of ready groups and the due timers, both at snapshot, a few at a time.
//
// With a window of more than one it starts at a random place within the window, stepped over by the selector's
// offset: what is skipped is not read. If nothing lies that far on, it starts over from the oldest.
type search struct {
	c       *claimer
	hints   cursor
	timers  cursor
	pending []candidate
}

// cursor is the part of a range that is still to be read.
type cursor struct {
	begin     kv.KeySelector
	end       []byte
	exhausted bool
}

func newCursor(r kv.KeyRange, skip int) cursor {
	begin := kv.FirstGreaterOrEqual(r.Begin)
	begin.Offset += skip
	return cursor{begin: begin, end: r.End}
}

// read starts reading the next rows; limit bounds them.
func (c *cursor) read(tx kv.ReadTx, limit int) kv.Future[[]kv.KV] {
	if c.exhausted {
		return kv.Done[[]kv.KV](nil, nil)
	}
	return tx.GetRange(kv.Range{Begin: c.begin, End: kv.FirstGreaterOrEqual(c.end)}, kv.RangeOptions{Limit: limit})
}

// passed moves the cursor behind rows.
func (c *cursor) passed(rows []kv.KV, limit int) {
	if len(rows) < limit {
		c.exhausted = true
		return
	}
	c.begin = kv.FirstGreaterThan(rows[len(rows)-1].Key)
}

func newSearch(c *claimer) *search {
	s := &search{c: c}
	s.start(c.q.spread.skip(c.q.random), c.q.spread.skip(c.q.random))
	return s
}

func (s *search) start(skipHints, skipTimers int) {
	s.hints = newCursor(s.c.q.keys.section(nameReady), skipHints)
	s.timers = newCursor(s.c.q.keys.timersUntil(s.c.nowMS), skipTimers)
}

// next returns up to n candidates, the oldest first, or none if there are no more.
func (s *search) next(n int) ([]candidate, error) {
	if len(s.pending) == 0 {
		skipped := s.hints.begin.Offset > 1 || s.timers.begin.Offset > 1
		if err := s.fill(n); err != nil {
			return nil, err
		}
		if len(s.pending) == 0 && skipped {
			s.c.q.spread.narrow()
			s.start(0, 0)
			if err := s.fill(n); err != nil {
				return nil, err
			}
		}
	}
	n = min(n, len(s.pending))
	wave := s.pending[:n:n]
	s.pending = s.pending[n:]
	return wave, nil
}

func (s *search) fill(n int) error {
	// One more than asked for: a hint may be stale, and one row costs less than another round trip.
	limit := n + 1
	snapshot := s.c.tx.Snapshot()
	hints, timers := s.hints.read(snapshot, limit), s.timers.read(snapshot, limit)
	rows, err := hints.Wait(s.c.ctx)
	if err != nil {
		return fmt.Errorf("read ready hints: %w", err)
	}
	due, err := timers.Wait(s.c.ctx)
	if err != nil {
		return fmt.Errorf("read timers: %w", err)
	}
	s.hints.passed(rows, limit)
	s.timers.passed(due, limit)
	for _, row := range rows {
		p, err := s.c.q.keys.parse(row.Key)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		attempts := int64(0)
		if len(row.Value) > 0 {
			if attempts, err = unpackInt(row.Key, row.Value); err != nil {
				return err
			}
		}
		s.pending = append(s.pending, candidate{key: row.Key, group: p.group, index: p.index, attempts: int(attempts)})
	}
	for _, row := range due {
		p, err := s.c.q.keys.parse(row.Key)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		_, index, err := unpackTimer(row.Key, row.Value)
		if err != nil {
			return err
		}
		s.pending = append(s.pending, candidate{key: row.Key, group: p.group, index: index, timer: true})
	}
	sort.SliceStable(s.pending, func(i, j int) bool { return s.pending[i].index < s.pending[j].index })
	return nil
}

func packTimer(kind string, headIndex int64) []byte {
	return tuple.AppendInt(tuple.AppendString(nil, kind), headIndex)
}

func unpackTimer(key, value []byte) (kind string, headIndex int64, err error) {
	d := keyDecoder{rest: value}
	kind, headIndex = d.str(), d.int()
	if d.err != nil {
		return "", 0, corrupt(key, d.err)
	}
	return kind, headIndex, nil
}

// spread is what a handle has learnt about its queue, to search well. It is advice: being wrong costs time.
type spread struct {
	// window is over how many of the oldest hints the handle spreads its claims, in 1/8; 0 stands for one hint.
	window atomic.Int64
	// perGroup is how many items a group gave lately, in 1/16; 0 = not known.
	perGroup atomic.Int64
}

const maxWindow = 1024 // hints: a selector's offset walks over what it skips

// widen is for a conflict: the window doubles.
func (s *spread) widen() {
	w := max(s.window.Load(), 8)
	s.window.Store(min(2*w, 8*maxWindow))
}

// narrow is for a receive without conflict: the window shrinks by an eighth.
func (s *spread) narrow() {
	w := s.window.Load()
	s.window.Store(w - (w+7)/8)
}

// skip chooses how many hints to pass over.
func (s *spread) skip(r *entropy) int {
	w := int(s.window.Load() / 8)
	if w <= 1 {
		return 0
	}
	return r.n(w)
}

func (s *spread) learn(items, groups int) {
	now := int64(16 * items / groups)
	if old := s.perGroup.Load(); old > 0 {
		now = (3*old + now) / 4
	}
	s.perGroup.Store(max(now, 1))
}

// groupsFor guesses how many groups it takes to get n items.
func (s *spread) groupsFor(n int) int {
	per := int(s.perGroup.Load())
	if per == 0 {
		return 1
	}
	return max(1, (16*n+per-1)/per)
}
