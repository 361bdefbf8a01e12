package layer

import (
	"fmt"
	"slices"

	"fdbfifo/kv"
)

// State is the state of a group that has items.
type Status string

// The states. A group without items is empty and is not listed.
const (
	Ready       Status = "ready"        // free to be claimed
	Held        Status = "held"         // under a claim
	Expired     Status = "expired"      // under a claim whose lease has run out: taken over by the next receive
	Delayed     Status = "delayed"      // given back with a delay that has not ended, or its head is delayed
	RateLimited Status = "rate_limited" // free, but its rate (Config.MaxRate) is used up for now
	Paused      Status = "paused"       // by an operator, until it is resumed: see GroupInfo.Mark
	Halted      Status = "halted"       // its head has failed for good; until it is redriven or resumed: see GroupInfo.Mark
	Granted     Status = "granted"      // kept for a handle whose receives wait; it accepts within 2 s, or the group is free
	Corrupt     Status = "corrupt"      // its lock or its head cannot be read: LastError says why, Check tells more
)

// condition is what a group's record says about the group at a time.
type condition int

const (
	unheld  condition = iota // there is no record
	claimed                  // a claim whose lease lasts
	granted                  // a grant that lasts
	delayed                  // a retry delay that lasts
	lapsed                   // a claim whose lease has ended: still the holder's until somebody takes over
	over                     // a grant or a delay that has ended
	marked                   // paused or halted, and held by nobody
)

// at is the group's condition. r is nil if the group has no record.
func (r *record) at(nowMS int64) condition {
	h := r.holding()
	switch {
	case r == nil:
		return unheld
	case h == nil:
		return marked
	}
	ended := h.endMS <= nowMS
	switch h.kind {
	case kindClaim:
		if ended {
			return lapsed
		}
		return claimed
	case kindGrant:
		if !ended {
			return granted
		}
	case kindDelay, kindHead:
		if !ended {
			return delayed
		}
	}
	return over
}

// keeps reports whether the condition keeps the group from whoever looks for something to deliver.
func (c condition) keeps() bool { return c != unheld && c != lapsed && c != over }

// bears returns the mark of a record that may be nil.
func (r *record) bears() *mark {
	if r == nil {
		return nil
	}
	return r.mark
}

// without is the record of the group when the holding has ended and m keeps the group from then on; nil = no record.
func (r *record) without(m *mark) *record {
	if m == nil {
		return nil
	}
	next := &record{mark: m}
	if r != nil {
		next.token = r.token
	}
	return next
}

// with is the record with its claim changed: to those items, until that time.
func (r *record) with(items []delivered, endMS int64) *record {
	h := *r.holding()
	h.items, h.endMS = items, endMS
	next := heldBy(h, r.mark)
	next.token = r.token
	return next
}

// marking is the record with that mark, or without one: a claim goes on beside it, anything else gives way to a mark.
func (r *record) marking(m *mark) *record {
	if r.claim() == nil {
		return r.without(m)
	}
	next := *r
	next.mark = m
	return &next
}

// shape is a record without times, owners and items: what the steps of a group lead from and to.
type shape string

const (
	shapeNone   shape = "none"
	shapeClaim  shape = "claim"
	shapeNoted  shape = "claim, mark to follow"
	shapeGrant  shape = "grant"
	shapeDelay  shape = "delay"
	shapePause  shape = "pause"
	shapeHalt   shape = "halt"
	shapeBroken shape = "unreadable"
)

// unreadable stands for a record that cannot be read and is to be removed.
var unreadable = &record{}

func (r *record) shape() shape {
	h := r.holding()
	switch {
	case r == nil:
		return shapeNone
	case h == nil && r.mark == nil:
		return shapeBroken
	case h == nil && r.mark.kind == markHalt:
		return shapeHalt
	case h == nil:
		return shapePause
	case h.kind == kindGrant:
		return shapeGrant
	case h.kind == kindDelay:
		return shapeDelay
	case r.mark != nil:
		return shapeNoted
	}
	return shapeClaim
}

// steps are the changes of a group's record that there may be. Not among them, for example: a grant of a group that
// somebody holds, and the end of a marked claim that forgets the mark.
var steps = map[shape][]shape{
	shapeNone:   {shapeClaim, shapeGrant, shapePause, shapeHalt},
	shapeClaim:  {shapeNone, shapeClaim, shapeNoted, shapeDelay, shapePause, shapeHalt},
	shapeNoted:  {shapeClaim, shapeNoted, shapePause, shapeHalt},
	shapeGrant:  {shapeNone, shapeClaim, shapePause, shapeHalt},
	shapeDelay:  {shapeNone, shapeClaim, shapePause, shapeHalt},
	shapePause:  {shapeNone, shapeHalt},
	shapeHalt:   {shapeNone},
	shapeBroken: {shapeNone},
}

// step is an error if a group's record may not change from old to next.
func step(old, next *record) error {
	from, to := old.shape(), next.shape()
	if !slices.Contains(steps[from], to) {
		return fmt.Errorf("%w: no step leads from %s to %s", errStep, from, to)
	}
	if old != nil && next != nil && next.token < old.token {
		return fmt.Errorf("%w: token %d after %d", errStep, next.token, old.token)
	}
	return nil
}

// put changes a group's record from old to next, either of which may be nil, with the timer and the grant beside it. head
// is the index of the group's head, for a new timer. No other function writes a lock. The caller has a read conflict on
// the lock, by the guard of the operation.
func (w *txn) put(group string, old, next *record, head int64) {
	if err := step(old, next); err != nil && w.illegal == nil {
		w.illegal = fmt.Errorf("group %q: %w", group, err) // finish returns it, and the transaction ends without effect
	}
	keys, was, is := w.q.keys, old.holding(), next.holding()
	if was == nil || is == nil || was.endMS != is.endMS || was.kind != is.kind {
		if was != nil && (is == nil || was.endMS != is.endMS) {
			w.tx.Clear(keys.timer(was.endMS, group))
		}
		if random, ok := old.grantedTo(); ok {
			w.clear(keys.grant(random, group))
		}
		if is != nil {
			w.tx.Set(keys.timer(is.endMS, group), packTimer(is.kind, head))
		}
		if random, ok := next.grantedTo(); ok {
			w.tx.Set(keys.grant(random, group), packInt(is.token))
		}
	}
	if next == nil {
		w.tx.Clear(keys.lock(group))
		return
	}
	w.tx.Set(keys.lock(group), next.pack())
}

// end ends what holds a group: m, if there is one, keeps the group from then on. It reports whether the group is free,
// and then without a hint.
func (w *txn) end(group string, r *record, m *mark) (free bool) {
	w.put(group, r, r.without(m), 0)
	return m == nil
}

// lapse ends what holds a group as the receive would that comes after the end: the item that was tried under a claim
// counts a failed attempt, which f has if the caller has judged it; the end of a delay or of a grant counts none. It
// reports whether the group is free, and then without a hint. The item that is spared, if any, is not parked, because
// the caller is about to change or remove it.
func (w *txn) lapse(group string, r *record, f *failure, spared ID) (free bool, err error) {
	m := r.mark
	if c := r.claim(); c != nil && len(c.items) > 0 {
		w.count(countExpired, 1)
		if f == nil {
			if f, err = w.judgeTried(group, c, c.lapseText()); err != nil {
				return false, err
			}
		}
		if m, err = f.carryOut(w, m, spared); err != nil {
			return false, err
		}
	}
	return w.end(group, r, m), nil
}

// lapseText is the text of the failure of a lease that has ended.
func (h *holding) lapseText() string { return "lease expired, held by " + h.owner }

// leave leaves a group that nobody holds: with the hint of its head, which it returns, or with a conflict on its
// emptiness. first is the key of the first item as head reads it; nil = leave reads it, and sees what the transaction has
// done. tried says that the head may have failed before; the hint then says how often. An item that comes before the head
// meanwhile is led to by the same hint, and nobody removes that item but under the lock.
func (w *txn) leave(
	group string, first kv.Future[[]byte], empty guard, tried bool,
) (c candidate, found bool, err error) {
	items := w.q.keys.items(group)
	if first == nil {
		first = w.head(group)
	}
	key, err := first.Wait(w.ctx)
	if err != nil {
		return c, false, fmt.Errorf("read head: %w", err)
	}
	if !items.Contains(key) {
		delete(w.ready, group)
		return c, false, empty.read(w.tx, items)
	}
	p, err := w.q.keys.parseItem(key, group, items)
	if err != nil {
		return c, false, err
	}
	c = candidate{group: group, index: p.index}
	if tried {
		record, err := w.q.readAttempt(w.ctx, w.tx.Snapshot(), p.itemID())
		if err != nil {
			return c, false, err
		}
		c.attempts = record.count
	}
	c.key, err = w.rehint(p.index, group, c.attempts)
	return c, err == nil, err
}

// free is leave for a group that an operator or a sweep set free.
func (w *txn) free(group string) error {
	_, _, err := w.leave(group, nil, guardFreeEmpty, true)
	return err
}

// head starts reading the key of a group's first item, at snapshot.
func (w *txn) head(group string) kv.Future[[]byte] {
	return w.tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(w.q.keys.items(group).Begin))
}

// holds reports whether the item is under the claim.
func (h *holding) holds(id ID) bool { return h != nil && place(h.items, id, id.Group) >= 0 }

// divide splits the items of a claim into those that ids name and the rest, both in key order.
func (h *holding) divide(group string, ids []ID, allIfNone bool) (acked, left []delivered, err error) {
	if len(ids) == 0 {
		if allIfNone {
			return h.items, nil, nil
		}
		return nil, h.items, nil
	}
	named := make(map[ID]bool, len(ids))
	for _, id := range ids {
		named[id] = true
	}
	for _, d := range h.items {
		if id := d.id(group); named[id] {
			acked = append(acked, d)
			delete(named, id)
		} else {
			left = append(left, d)
		}
	}
	for id := range named {
		if lacks(guardNotInClaim) {
			break
		}
		return nil, nil, fmt.Errorf("%w: %s", ErrNotInClaim, id)
	}
	return acked, left, nil
}

// place is where id stands in left, or -1.
func place(left []delivered, id ID, group string) int {
	return slices.IndexFunc(left, func(d delivered) bool { return d.index == id.Index && d.random == id.Random && group == id.Group })
}

// excludeHolders is the write conflict on a group's lock.
func (w *txn) excludeHolders(g guard, group string) error {
	return g.write(w.tx, w.q.keys.lock(group))
}

// remove clears the items acked, out of those under the claim, by their exact keys: a range from the first to
// the last would take with it an item whose enqueue committed late, between them. Attempt records need no such
// care, because only an item that was tried has one: they go by ranges, one for each run of acked items.
func (w *txn) remove(group string, all, acked []delivered, archived bool) {
	keys, tx := w.q.keys, w.tx
	var run []delivered
	endRun := func() {
		if len(run) > 0 {
			first, last := run[0].id(group), run[len(run)-1].id(group)
			tx.ClearRange(kv.KeyRange{Begin: keys.attempt(first), End: kv.KeyAfter(keys.attempt(last))})
			if lacks(guardExactClear) {
				tx.ClearRange(kv.KeyRange{Begin: keys.item(first), End: kv.KeyAfter(keys.item(last))})
			}
			run = nil
		}
	}
	for i, d := range all {
		if len(acked) == 0 || d != acked[0] {
			endRun()
			continue
		}
		acked = acked[1:]
		id := d.id(group)
		tx.Clear(keys.item(id))
		if d.parts > 0 && !archived {
			tx.ClearRange(keys.parts(id))
		}
		run = all[i-len(run) : i+1]
	}
	endRun()
}
