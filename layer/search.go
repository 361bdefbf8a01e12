package layer

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// search walks the hints of ready groups and the due timers, both at snapshot, a few at a time, the oldest first.
//
// With a window it starts at a random place within it instead: at an index (a due time) between the oldest and the
// newest one it knows of, so that what it passes over is not even walked past. Beside that it reads where the hints
// begin and end now, for the next time. If nothing lies behind the place, it starts over from the oldest.
type search struct {
	w       *work
	shards  []cursor // of hints
	timers  cursor
	pending []candidate
	spread  bool // began at a random place
	begun   bool
}

// cursor is the part of a range that is still to be read.
type cursor struct {
	begin     kv.KeySelector
	end       []byte
	exhausted bool
}

func newCursor(r kv.KeyRange) cursor {
	return cursor{begin: kv.FirstGreaterOrEqual(r.Begin), end: r.End}
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

func newSearch(w *work) *search { return &search{w: w} }

// begin chooses where to start.
func (s *search) begin() error {
	s.begun = true
	fraction := s.w.q.spread.fraction()
	if fraction == 0 {
		s.fromTheOldest()
		return nil
	}
	now, err := s.w.clock()
	if err != nil {
		return err
	}
	q := s.w.q
	s.spread = true
	s.shards = make([]cursor, 0, q.keys.shards)
	newest := min(q.spread.newest.Load(), now)
	for shard := range q.keys.shards {
		s.shards = append(s.shards, newCursor(q.keys.readyFrom(shard, q.within(q.spread.oldest.Load(), newest, fraction))))
	}
	s.timers = newCursor(q.keys.timersDue(q.within(q.spread.due.Load(), s.w.nowMS, fraction), s.w.nowMS))
	return nil
}

// within is a random point in the first part, fraction, of the span from low to high.
func (q *Queue) within(low, high int64, fraction float64) int64 {
	if high <= low {
		return low
	}
	return low + int64(q.random.float()*fraction*float64(high-low))
}

// fromTheOldest starts at the oldest hints and timers.
func (s *search) fromTheOldest() {
	q := s.w.q
	s.begun, s.spread = true, false
	s.shards = s.shards[:0]
	for shard := range q.keys.shards {
		s.shards = append(s.shards, newCursor(q.keys.readyFrom(shard, 0)))
	}
	s.timers = newCursor(q.keys.timersDue(0, s.w.nowMS))
}

// next returns up to n candidates, the oldest first, or none if there are no more.
func (s *search) next(n int) ([]candidate, error) {
	if !s.begun {
		if err := s.begin(); err != nil {
			return nil, err
		}
	}
	if len(s.pending) == 0 {
		if err := s.fill(n); err != nil {
			return nil, err
		}
		if len(s.pending) == 0 && s.spread {
			s.fromTheOldest()
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
	fromTheOldest := !s.spread && s.timers.begin.Offset == 1 && !s.timers.begin.OrEqual
	snapshot := s.w.tx.Snapshot()
	var bounds [2]kv.Future[[]byte]
	if s.spread {
		// Of one shard: groups are spread over them evenly.
		all := s.w.q.keys.readyFrom(int64(s.w.q.random.n(int(s.w.q.keys.shards))), 0)
		bounds[0], bounds[1] = snapshot.GetKey(kv.FirstGreaterOrEqual(all.Begin)), snapshot.GetKey(kv.LastLessThan(all.End))
	}
	hints := make([]kv.Future[[]kv.KV], len(s.shards))
	for i := range s.shards {
		hints[i] = s.shards[i].read(snapshot, limit)
	}
	timers := s.timers.read(snapshot, limit)
	for i, f := range hints {
		rows, err := f.Wait(s.w.ctx)
		if err != nil {
			return fmt.Errorf("read ready hints: %w", err)
		}
		s.shards[i].passed(rows, limit)
		if err := s.addHints(rows); err != nil {
			return err
		}
	}
	if fromTheOldest {
		oldest := int64(0)
		for i, c := range s.pending {
			if i == 0 || c.index < oldest {
				oldest = c.index
			}
		}
		s.w.q.spread.oldest.Store(oldest)
	}
	if s.spread {
		if err := s.learnBounds(bounds); err != nil {
			return err
		}
	}
	due, err := timers.Wait(s.w.ctx)
	if err != nil {
		return fmt.Errorf("read timers: %w", err)
	}
	s.timers.passed(due, limit)
	for i, row := range due {
		p, err := s.w.q.keys.parse(row.Key)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if i == 0 && fromTheOldest {
			s.w.q.spread.due.Store(p.index)
		}
		_, index, err := unpackTimer(row.Key, row.Value)
		if err != nil {
			return err
		}
		s.pending = append(s.pending, candidate{key: row.Key, group: p.group, index: index, timer: true})
	}
	slices.SortStableFunc(s.pending, func(a, b candidate) int { return cmp.Compare(a.index, b.index) })
	return nil
}

// learnBounds notes where the hints begin and end.
func (s *search) learnBounds(bounds [2]kv.Future[[]byte]) error {
	q := s.w.q
	for i, note := range []*atomic.Int64{&q.spread.oldest, &q.spread.newest} {
		k, err := bounds[i].Wait(s.w.ctx)
		if err != nil {
			return fmt.Errorf("read ready hints: %w", err)
		}
		if !q.keys.section(nameReady).Contains(k) {
			continue // there are none
		}
		p, err := q.keys.parse(k)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		note.Store(p.index)
	}
	return nil
}

func (s *search) addHints(rows []kv.KV) error {
	for _, row := range rows {
		p, err := s.w.q.keys.parse(row.Key)
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
	// window is over what part of the ready groups, by age, the handle spreads its claims, in 1/maxWindow.
	window atomic.Int64
	oldest atomic.Int64 // index of the oldest hint when last seen
	newest atomic.Int64 // and of the newest; only a spread search looks
	due    atomic.Int64 // due time of the oldest timer when last seen, ms
	// perGroup is how many items a group gave lately, in 1/16; 0 = not known.
	perGroup atomic.Int64
}

const (
	maxWindow = 1 << 20
	minWindow = 1 << 10
)

// widen is for a conflict: the window grows eightfold, so that many handles that begin at once are soon apart.
func (s *spread) widen() {
	s.window.Store(min(8*max(s.window.Load(), minWindow/8), maxWindow))
}

// narrow is for a transaction without conflict: the window shrinks by a 64th, so that in the long run less than one
// transaction in a hundred conflicts (one growth is made up for by 132 shrinks).
func (s *spread) narrow() {
	if w := s.window.Load() * 63 / 64; w >= minWindow {
		s.window.Store(w)
	} else {
		s.window.Store(0)
	}
}

func (s *spread) fraction() float64 { return float64(s.window.Load()) / maxWindow }

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
