package layer

import (
	"errors"
	"fmt"
	"slices"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// advanced is an item as its holder, or an operator (Admin.Edit), has changed it. Facets are the headers by which items
// can be received. A lane is the items of a group that agree with a template, which gives values for facets. So an item
// with other facets leaves lanes and joins others. "Packed" facets are the values in one text, see lanes.Plan.Pack.
type advanced struct {
	id     ID
	value  []byte   // the new value of the key item
	parts  [][]byte // the new values of the keys part
	had    int64    // how many parts the old body has
	left   []string // the lanes which the item leaves
	joined []string // the lanes which the item joins
	was    string   // the item's facets before, packed
	facets string   // the item's facets from now on, packed
}

// advancing is the part of a settlement that advances items: Settlement.Change rewrites them in place. A nil *advancing
// does nothing: the settlement advances no items.
type advancing struct {
	fn   func(id ID, m *Message) error // the caller's Settlement.Change, see call
	lent lent                          // fn, until the caller's call returns
	of   func(id ID) bool              // whether an item that leaves the claim is advanced; else it is acked

	// Of the attempt under way.
	values  map[ID]kv.Future[[]byte] // reads of the items
	changed []advanced               // set by check
}

// errReturned ends the settlement after its caller has left.
var errReturned = errors.New("the call of the settlement has returned")

// call calls Settlement.Change in the goroutine of the transaction, which may be another than the caller's. It returns
// the error of Change as given marks it. A panic of Change becomes an error, and so does runtime.Goexit, because other
// callers may share the transaction and the goroutine. errReturned means that Change was not called, because the
// caller's call has returned.
func (a *advancing) call(id ID, m *Message) (err error) {
	var failed error
	used := a.lent.use(func() {
		failed = callback.Shield(0).Try("Settlement.Change", func() { err = given(a.fn(id, m)) })
	})
	switch {
	case !used:
		return errReturned
	case failed != nil:
		return failed
	}
	return err
}

// begin starts reading the items that will be advanced, at snapshot: those whose ids are known before the lock is read.
func (a *advancing) begin(w *txn, s *settlement) {
	if a == nil {
		return
	}
	a.values, a.changed = make(map[ID]kv.Future[[]byte]), nil
	for _, id := range s.items {
		if a.of(id) {
			a.values[id] = w.read.Get(w.keys.item(id))
		}
	}
}

// check takes the advanced items out of run.acked into run.moved, reads them with the parts of their bodies, at
// snapshot, and calls Change for each. It notes the changed items, and writes nothing.
func (a *advancing) check(w *txn, s *settlement) error {
	if a == nil {
		return nil
	}
	leaving, group := s.run.acked, s.claim.Group
	s.run.acked = nil
	for _, d := range leaving {
		id := idOf(d, group)
		if !a.of(id) {
			s.run.acked = append(s.run.acked, d)
			continue
		}
		c, err := a.changedBy(w, id)
		if err != nil {
			return err
		}
		c.had = d.Parts
		a.changed, s.run.moved = append(a.changed, c), append(s.run.moved, d)
	}
	return nil
}

// changedBy reads an item of the claim, at snapshot, and returns the item as Change leaves it. The field had is left to
// the caller. ErrCorrupt means that the item cannot be read, or is not there although the claim has it.
func (a *advancing) changedBy(w *txn, id ID) (c advanced, err error) {
	get := a.values[id]
	if get == nil {
		get = w.read.Get(w.keys.item(id))
	}
	value, err := get.Wait(w.ctx)
	if err != nil {
		return c, fmt.Errorf("read item: %w", err)
	}
	if value == nil {
		return c, rec.Corrupt(w.keys.item(id), fmt.Errorf("held, and not there"))
	}
	return w.changedItem(id, value, func(m *Message) error { return a.call(id, m) })
}

// write clears the lane keys by which the advanced items are in the lanes that they leave. It also tells subscriptions
// of the change. conclude writes the items themselves.
func (a *advancing) write(w *txn, s *settlement) {
	if a == nil {
		return
	}
	given, was := slices.Clone(s.run.moved), make([]string, len(a.changed))
	for i := range a.changed {
		w.leaveLanes(&a.changed[i])
		given[i].Facets, was[i] = a.changed[i].facets, a.changed[i].was
	}
	w.changeInPlace(ChangeAdvanced, s.claim.Group, given, was)
}

// conclude writes the advanced items, and puts them into the lanes which they join: see rewrite. It runs when all
// claims that are settled together have been written. So readLaneEnds finds a lane empty if one of these claims has
// emptied it, and the advanced item brings the lane's hint.
func (a *advancing) conclude(w *txn) error {
	if a == nil || len(a.changed) == 0 {
		return nil
	}
	ends, err := w.readLaneEnds(a.changed)
	if err != nil {
		return err
	}
	for i := range a.changed {
		if err := w.rewrite(&a.changed[i], ends); err != nil {
			return err
		}
	}
	return nil
}

// changedItem calls change with an item as a message, and returns the item as change leaves it. The item keeps its
// times and its dedup id. The field had is left to the caller. value is the value of the item; the other parts of its
// body are read. The errors are those of change, of a change that is not allowed (ErrOptions, *LimitError,
// ErrInvalidUTF8), or ErrCorrupt.
func (w *txn) changedItem(id ID, value []byte, change func(m *Message) error) (a advanced, err error) {
	key := w.keys.item(id)
	e, _, err := rec.OpenEnvelope(value)
	if err != nil {
		return a, rec.Corrupt(key, err)
	}
	old, err := w.readItem(kv.KV{Key: key, Value: value})
	if err != nil {
		return a, err
	}
	m := old.message()
	if err := changeMessage(w, &m, &old, change); err != nil {
		return a, err
	}
	plan := w.keys.plan
	a = advanced{id: id, was: plan.FacetsIn(value), facets: plan.Pack(m.Headers)}
	a.value, a.parts = split(nil, &m, e)
	a.left, a.joined = w.keys.moves(id, a.was, a.facets)
	return a, nil
}

// changeMessage calls change with m, a message made of the item old; change modifies m. The error is that of change, of
// w.config (which may read the configuration, at snapshot), or of a result that is not allowed: more than body and
// headers differ, the message is not valid, or a facet is missing or has a value that is not allowed.
func changeMessage(w *txn, m *Message, old *Item, change func(m *Message) error) error {
	if err := change(m); err != nil {
		return err
	}
	if err := m.keeps(old); err != nil {
		return err
	}
	if _, err := m.check(); err != nil {
		return err
	}
	config, err := w.config()
	if err != nil {
		return err
	}
	return config.checkFacetsOf(m.Headers)
}

// moves returns the lanes that an item leaves and joins when its facets change from old to next (both packed). The lane
// of the whole group is not among them. Both results are nil if the facets are the same.
func (s subspace) moves(id ID, old, next string) (left, joined []string) {
	if old == next {
		return nil, nil
	}
	was, is := s.plan.PartsOf(id.Group, old), s.plan.PartsOf(id.Group, next)
	for i := range was {
		if was[i] != is[i] {
			left, joined = append(left, was[i]), append(joined, is[i])
		}
	}
	return left, joined
}

// laneEnds is the keys of the first and the last item of a lane, as the transaction has read them; nil = the lane is
// empty.
type laneEnds struct {
	first, last []byte
	fenced      bool // there is a read conflict on last already
}

// readLaneEnds reads the first and the last key of each lane which the items join, at snapshot. The result is by the
// names of the lanes.
func (w *txn) readLaneEnds(all []advanced) (map[string]*laneEnds, error) {
	var joined []string
	for i := range all {
		joined = append(joined, all[i].joined...)
	}
	slices.Sort(joined)
	joined = slices.Compact(joined)
	type reads struct{ first, last kv.Future[[]byte] }
	begun := make([]reads, len(joined))
	for i, lane := range joined {
		items := w.keys.items(lane)
		begun[i] = reads{w.read.GetKey(kv.FirstGreaterOrEqual(items.Begin)), w.read.GetKey(kv.LastLessThan(items.End))}
	}
	ends := make(map[string]*laneEnds, len(joined))
	for i, lane := range joined {
		first, err := begun[i].first.Wait(w.ctx)
		if err != nil {
			return nil, fmt.Errorf("read lane: %w", err)
		}
		last, err := begun[i].last.Wait(w.ctx)
		if err != nil {
			return nil, fmt.Errorf("read lane: %w", err)
		}
		ends[lane] = &laneEnds{}
		if w.keys.items(lane).Contains(first) {
			ends[lane].first, ends[lane].last = first, last
		}
	}
	return ends, nil
}

// leaveLanes clears the lane keys of an item in the lanes which it leaves. It also notes these lanes for leadToNext: in
// a queue with RetroactiveDelay a lane that has lost its first item needs a hint.
func (w *txn) leaveLanes(a *advanced) {
	w.vacate(a.id.Index, a.left)
	for _, lane := range a.left {
		w.tx.Clear(w.keys.laneItem(lane, a.id))
	}
}

// rewrite writes an advanced item: it clears the old parts, sets the keys item and part, and sets a lane key in each
// lane which the item joins. ends are the ends of these lanes as they were read. If the item becomes the first of a
// lane, rewrite updates first there, for the items that follow; last stays as it was read.
//
// Where the item becomes the first of a lane, rewrite sets a hint (open). Elsewhere another key leads to the lane: a
// hint, a timer, or a hint kept under a lock. If a lane was not empty, rewrite adds a read conflict on its last key, as
// an enqueue does: the transaction fails if another one removes that item first, and perhaps leaves the lane without
// such a key.
func (w *txn) rewrite(a *advanced, ends map[string]*laneEnds) error {
	keys, tx := w.keys, w.tx
	if a.had > 0 {
		tx.ClearRange(keys.parts(a.id))
	}
	tx.Set(keys.item(a.id), a.value)
	for n, part := range a.parts {
		tx.Set(keys.part(a.id, n), part)
	}
	for _, lane := range a.joined {
		key, end := keys.laneItem(lane, a.id), ends[lane]
		becomesFirst := end.first == nil || string(key) < string(end.first)
		if end.last != nil && !end.fenced {
			end.fenced = true
			if err := guard.LaneTail.Read(tx, kv.SingleKey(end.last)); err != nil {
				return err
			}
		}
		tx.Set(key, nil)
		if becomesFirst {
			end.first = key
			if _, err := w.rehint(a.id.Index, lane, 0); err != nil {
				return err
			}
		}
	}
	return nil
}
