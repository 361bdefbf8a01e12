package sim

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The laws of movers, by the records of the commits, and with no code of the layer:
//
//   - A commit that moves removes from the one queue what it enqueues in the other, and nothing else. So the number of
//     messages in both (items and dead letters) never falls because of a move. It falls by the duplicates if the move
//     says that there were any. No message is in both, and none is moved twice.
//   - No other commit enqueues in the target, and none removes something from it but a drop.
//   - A message that is moved has its body, and is there under the id that the move returns.
//   - A message goes to the end of its group: behind all that its transaction has seen there.
//   - Nothing is moved to a queue that does not exist.
//   - A move that says that it is done has happened once, and as it says. One that says that it has not happened has
//     not. One of unknown outcome has happened at most once.
//   - A move is refused for want of room only if there was none.

// targetKeyOf takes a key of the target apart, as keyOf does one of the source; "" if it is none of the target's.
func targetKeyOf(key []byte) (name string, rest tuple.Tuple) {
	tail, ok := bytes.CutPrefix(key, []byte(targetPrefix))
	if !ok {
		return "", nil
	}
	return keyOf(append([]byte(queuePrefix), tail...))
}

func targetSection(name string) kv.KeyRange {
	k := append([]byte(targetPrefix), tuple.Tuple{targetName, name}.Pack()...)
	return kv.KeyRange{Begin: append(bytes.Clone(k), 0), End: append(bytes.Clone(k), 0xff)}
}

// side is one of the two queues after some records.
type side struct {
	prefix string
	db     map[string][]byte
	after  map[string][]byte // what the record under replay makes of the keys; nil = cleared
	// come and gone are the messages that the record under replay brings and takes away.
	come, gone map[layer.ID]bool
}

// apply replays a record.
func (s *side) apply(r *record) {
	s.after, s.come, s.gone = make(map[string][]byte), make(map[layer.ID]bool), make(map[layer.ID]bool)
	for _, w := range r.writes {
		switch own := bytes.HasPrefix(w.key, []byte(s.prefix)); {
		case own && w.kind == wrote:
			s.after[string(w.key)] = append([]byte{}, w.value...)
		case own && w.kind == cleared:
			s.after[string(w.key)] = nil
		case own && w.kind == clearedRange:
			for _, keys := range []map[string][]byte{s.db, maps.Clone(s.after)} {
				for k := range keys {
					if k >= string(w.key) && k < string(w.value) {
						s.after[k] = nil
					}
				}
			}
		}
	}
	was, is := make(map[layer.ID]bool), make(map[layer.ID]bool)
	for k, v := range s.after {
		name, rest := s.keyOf(k)
		if name == "item" || name == "dead" {
			id := idOf(rest)
			was[id], is[id] = was[id] || s.db[k] != nil, is[id] || v != nil
		}
	}
	for id := range is {
		if is[id] && !was[id] {
			s.come[id] = true
		} else if was[id] && !is[id] {
			s.gone[id] = true
		}
	}
}

// settle takes the writes of the record over.
func (s *side) settle() {
	for k, v := range s.after {
		if v == nil {
			delete(s.db, k)
		} else {
			s.db[k] = v
		}
	}
}

func (s *side) keyOf(key string) (name string, rest tuple.Tuple) {
	return keyOf([]byte(queuePrefix + key[len(s.prefix):]))
}

// exists reports whether the queue was there before the record under replay.
func (s *side) exists() bool {
	for k := range s.db {
		if name, _ := s.keyOf(k); name == "meta" {
			return true
		}
	}
	return false
}

// message returns a message of the queue, before or after the record under replay.
func (s *side) message(id layer.ID, in map[string][]byte) (e envelope, found bool) {
	for k, v := range in {
		name, rest := s.keyOf(k)
		if v == nil || (name != "item" && name != "dead") || idOf(rest) != id {
			continue
		}
		if name == "dead" {
			_, item, err := headed(v)
			if err != nil {
				return e, false
			}
			v = item
		}
		e, err := envelopeOf(v)
		return e, err == nil
	}
	return e, false
}

// body returns the body of a message, with its parts.
func (s *side) body(id layer.ID, e *envelope, in map[string][]byte) []byte {
	parts := make([][]byte, e.parts)
	for k, v := range in {
		if name, rest := s.keyOf(k); name == "part" && idOf(rest) == id {
			if n := rest[3].(int64); n < e.parts {
				parts[n] = v
			}
		}
	}
	return slices.Concat(append([][]byte{e.inline}, parts...)...)
}

// transfer is a move as it was committed.
type transfer struct {
	r     *record
	pairs []moved
}

// transfers is what the laws of movers need.
type transfers struct {
	w              *world
	source, target *side
	all            map[int][]transfer // by the number of the move
	left           map[layer.ID]*record
	entered        map[layer.ID]*record
	sizes          map[string][]sizeAt // of the target's groups
}

// compareMoves holds the run to the laws of movers.
func (m *model) compareMoves(records []record) {
	if m.w.moving == nil {
		return
	}
	t := &transfers{
		w:      m.w,
		source: &side{prefix: queuePrefix, db: make(map[string][]byte)},
		target: &side{prefix: targetPrefix, db: make(map[string][]byte)},
		all:    make(map[int][]transfer), left: make(map[layer.ID]*record), entered: make(map[layer.ID]*record),
		sizes: make(map[string][]sizeAt),
	}
	for i := range records {
		t.apply(&records[i])
	}
	for _, mv := range m.w.moving.moves {
		t.compare(mv)
	}
	for _, name := range []string{"item", "dead"} {
		for _, row := range m.w.rows(targetSection(name), 0) {
			m.w.violation("the target has %q when it was drained", row.Key)
		}
	}
}

func (t *transfers) apply(r *record) {
	t.source.apply(r)
	t.target.apply(r)
	n, pairs, moves := movedBy(r)
	switch {
	case moves:
		t.all[n] = append(t.all[n], transfer{r, pairs})
		from, to := t.source, t.target
		if t.w.moving.moves[n].back {
			from, to = to, from
		}
		t.transfer(r, from, to, pairs)
	case len(t.target.come) > 0:
		t.w.violation("G3: unexpected: commit %d (step %d, handle %d) enqueues %v in the target, and is no move",
			r.order, r.step, r.who, t.target.come)
	case len(t.target.gone) > 0 && !t.dropped() && r.step <= t.w.moving.calm:
		t.w.violation("G3: lost: commit %d (step %d, handle %d) takes %v out of the target, and is no move",
			r.order, r.step, r.who, t.target.gone)
	}
	touched := make(map[string]bool)
	for _, ids := range []map[layer.ID]bool{t.target.come, t.target.gone} {
		for id := range ids {
			touched[id.Group] = true
		}
	}
	t.source.settle()
	t.target.settle()
	for group := range touched {
		n := 0
		for k := range t.target.db {
			if name, rest := t.target.keyOf(k); name == "item" && rest[0] == group {
				n++
			}
		}
		t.sizes[group] = append(t.sizes[group], sizeAt{r.from, r.to, n})
	}
}

// dropped reports whether the record under replay drops the target.
func (t *transfers) dropped() bool {
	for k, v := range t.target.after {
		if name, _ := t.target.keyOf(k); name == "meta" && v == nil {
			return true
		}
	}
	return !t.target.exists()
}

// movedBy is what a record says that it moves.
func movedBy(r *record) (n int, pairs []moved, moves bool) {
	for _, w := range r.writes {
		rest, ok := bytes.CutPrefix(w.key, []byte(movePrefix))
		if !ok || w.kind != wrote {
			continue
		}
		key, _ := tuple.Unpack(rest)
		number, _ := key[0].(int64)
		note, _ := tuple.Unpack(w.value)
		for i := 0; i+2 < len(note); i += 3 {
			var p moved
			from, _ := note[i].(string)
			to, _ := note[i+1].(string)
			p.from, _ = layer.ParseID(from)
			p.to, _ = layer.ParseID(to)
			p.duplicate, _ = note[i+2].(bool)
			pairs = append(pairs, p)
		}
		return int(number), pairs, true
	}
	return 0, nil, false
}

// transfer holds one commit of a move to its laws.
func (t *transfers) transfer(r *record, from, to *side, pairs []moved) {
	violation := func(format string, args ...any) {
		t.w.violation("commit %d (step %d, handle %d, transaction %d): "+format,
			append([]any{r.order, r.step, r.who, r.tx}, args...)...)
	}
	if !t.target.exists() {
		violation("a move, and there is no target")
	}
	swallowed := 0
	came := make(map[layer.ID]bool)
	for _, p := range pairs {
		if other := t.left[p.from]; other != nil {
			t.w.report.Doubled++
			violation("G3: doubled: %s is moved, and was moved by commit %d", p.from, other.order)
		}
		t.left[p.from] = r
		if !from.gone[p.from] {
			t.w.report.Doubled++
			violation("G3: doubled: %s is moved to %s, and is still there", p.from, p.to)
		}
		if p.duplicate {
			if swallowed++; t.entered[p.to] == nil && to == t.target {
				violation("G3: lost: %s is a duplicate of %s, which was never there", p.from, p.to)
			}
			continue
		}
		if !to.come[p.to] {
			t.w.report.Lost++
			violation("G3: lost: %s is moved to %s, which is not there", p.from, p.to)
			continue
		}
		came[p.to], t.entered[p.to] = true, r
		t.carried(violation, from, to, p)
		t.behind(violation, r, to, p.to)
	}
	if len(from.gone) != len(pairs) || len(from.come) > 0 || len(to.gone) > 0 || !maps.Equal(came, to.come) {
		violation("moves %v, and takes %v away, and brings %v", pairs, from.gone, to.come)
	}
	if grown := len(to.come) - len(from.gone); grown != -swallowed {
		t.w.report.Lost++
		violation("G3: lost: the messages in both queues are %d more, with %d duplicates", grown, swallowed)
	}
}

// carried: a message that goes to the target keeps its body and says where it is from. One on its way back gets a body
// that the model of the source knows.
func (t *transfers) carried(violation func(string, ...any), from, to *side, p moved) {
	if to == t.source {
		return
	}
	old, had := from.message(p.from, from.db)
	now, has := to.message(p.to, to.after)
	switch {
	case !had || !has:
		violation("%s or %s cannot be read", p.from, p.to)
	case now.headers[originHeader] != p.from.String():
		violation("%s is there as %s, with %v, from %s", p.from, p.to, now.headers, now.headers[originHeader])
	}
	// A header more may leave the item less room for the body, and so may make a part more.
	if was, is := from.body(p.from, &old, from.db), to.body(p.to, &now, to.after); !bytes.Equal(was, is) {
		violation("%s has %d bytes, %.40q, and as %s %d bytes, %.40q", p.from, len(was), was, p.to, len(is), is)
	}
}

// behind: a message that is moved comes behind all that its transaction has seen in its group of the target.
func (t *transfers) behind(violation func(string, ...any), r *record, to *side, id layer.ID) {
	if to == t.source {
		return // the model of the source holds it to that
	}
	for k := range to.db {
		name, rest := to.keyOf(k)
		if name != "item" {
			continue
		}
		if other := idOf(rest); other.Group == id.Group && before(id, other) && t.entered[other] != nil &&
			t.entered[other].version <= r.rv {
			violation("G1: %s is moved before %s, which was there", id, other)
		}
	}
}

// compare holds what a move says of its outcome against the commits.
func (t *transfers) compare(mv *move) {
	o, all := mv.o, t.all[mv.n]
	same := func(pairs []moved) bool { return len(all) == 1 && slices.Equal(all[0].pairs, pairs) }
	switch {
	case len(all) > 1:
		t.w.report.Doubled++
		t.w.violation("G3: doubled: %s has happened %d times", o, len(all))
	case o.over && o.outcome == done && len(mv.pairs) > 0 && len(all) == 0:
		t.w.report.Lost++
		t.w.violation("G3: lost: %s is done, and has not happened", o)
	case o.over && o.outcome == done && len(all) == 1 && (!same(mv.pairs) || !o.maybeAt(all[0].r)):
		t.w.violation("%s is done, with %v, and has happened at step %d, with %v",
			o, mv.pairs, all[0].r.step, all[0].pairs)
	case o.over && o.outcome != done && !mv.mayYet && len(all) > 0:
		t.w.report.Unexpected++
		t.w.violation("G3: unexpected: %s is not done, and has happened at step %d", o, all[0].r.step)
	case len(all) == 1 && !slices.ContainsFunc(mv.tries, same):
		t.w.violation("%s has happened with %v, which it has not tried", o, all[0].pairs)
	}
	if o.over && o.outcome == unknown && len(all) == 1 {
		t.w.mark("move of unknown outcome found")
	}
	if mv.full != "" && o.over {
		t.roomless(mv)
	}
}

// roomless: the group of the target had no room at some moment of a move that was refused for that.
func (t *transfers) roomless(mv *move) {
	o, sizes, most := mv.o, t.sizes[mv.full], 0
	for i, s := range sizes {
		if s.from > o.end {
			break
		}
		if s.to >= o.begin || i+1 == len(sizes) || sizes[i+1].to >= o.begin {
			most = max(most, s.n)
		}
	}
	if limit := t.w.knobs.target.MaxWaiting; limit == 0 || cmp.Compare(most+mv.tried, limit) <= 0 {
		t.w.violation("%s was refused because of %q of the target, which had %d items of %d, and %d were to come",
			o, mv.full, most, limit, mv.tried)
	}
}
