package layer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// Status is the condition of a group which has items.
type Status string

// The statuses. A group without items is not listed, unless it is paused or halted: see GroupsOptions.Marked.
const (
	Ready       Status = "ready"        // free to be claimed
	Held        Status = "held"         // under a claim
	Expired     Status = "expired"      // under a claim whose lease has ended: the next receive takes over
	Delayed     Status = "delayed"      // given back with a delay which has not ended, or the head is delayed
	RateLimited Status = "rate_limited" // free, but the rate (Config.MaxRate) is used up for now
	Paused      Status = "paused"       // by an operator, until resumed: see GroupInfo.Mark
	Halted      Status = "halted"       // the head has failed for good; until redriven or resumed: see GroupInfo.Mark
	Excluded    Status = "excluded"     // of a template: a claim of an intersecting template has the group
	Granted     Status = "granted"      // kept for a handle whose receives wait; free if not accepted within 2 s
	Corrupt     Status = "corrupt"      // the lock or the head cannot be read: LastError says why, Check tells more
	Empty       Status = "empty"        // no items, and no mark: listed nowhere, see Admin.Group
)

// condition is the state of a group at a given time, as the group's record says.
type condition int

const (
	unheld  condition = iota // there is no record
	claimed                  // a claim whose lease has not ended
	granted                  // a grant which has not ended
	delayed                  // a retry delay which has not ended
	lapsed                   // a claim whose lease has ended: the holder keeps the claim until somebody takes over
	over                     // a grant or a delay which has ended
	marked                   // paused or halted, and held by nobody
)

// at returns the group's condition at nowMS. r is nil if the group has no record.
func (r *record) at(nowMS int64) condition {
	h := r.holding()
	switch {
	case r == nil:
		return unheld
	case h == nil:
		return marked
	}
	ended := h.endMS <= nowMS && !h.byBeat()
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
	case kindDelay, kindHead, kindBeat:
		if !ended {
			return delayed
		}
	}
	return over
}

// keeps reports whether receives must pass over a group in this condition.
func (c condition) keeps() bool { return c != unheld && c != lapsed && c != over }

// bears returns the mark of r, which may be nil.
func (r *record) bears() *mark {
	if r == nil {
		return nil
	}
	return r.mark
}

// without returns the record for when the holding has ended and the mark m, if any, stops the group. nil = no record.
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

// until returns the record with a claim which ends at endMS, whatever handle's heartbeat kept it before.
func (r *record) until(endMS int64) *record {
	next := r.with(r.holding().items, endMS)
	next.holdings[0].beat = uuid.Nil
	return next
}

// with returns the record with the claim changed to items and endMS.
func (r *record) with(items []delivered, endMS int64) *record {
	h := *r.holding()
	h.items, h.endMS = items, endMS
	next := heldBy(h, r.mark)
	next.token = r.token
	return next
}

// marking returns the record with the mark m (nil = none). A claim goes on beside m; a grant or a delay ends.
func (r *record) marking(m *mark) *record {
	if r.claim() == nil {
		return r.without(m)
	}
	next := *r
	next.mark = m
	return &next
}

// shape is a record without times, owners and items. The table steps is written in shapes.
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

// unreadable stands for a record which cannot be read and is about to be removed.
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

// steps lists the allowed changes of a group's record. Not allowed, for example: a grant of a group which somebody
// holds, and an end of a marked claim which loses the mark.
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

// step returns an error if a group's record may not change from old to next.
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

// put changes the record of a group, or of another lane, from old to next (either may be nil), and keeps the timer, or
// the key in the list of the claims by a heartbeat, the grant and the mark's key in step. head is the index of the
// group's head, for a new timer. No other function writes a lock. The caller has a read conflict on the lock, by the
// guard of the operation.
func (w *txn) put(lane string, old, next *record, head int64) {
	if err := step(old, next); err != nil {
		// finish returns the error, so that the transaction ends without effect.
		w.illegal = errors.Join(w.illegal, fmt.Errorf("group %q: %w", groupOf(lane), err))
		return
	}
	w.count(countReturned, leaving(old, next))
	keys, was, is := w.keys, old.holding(), next.holding()
	if (old == nil || next == nil) && keys.inTurn() && isHold(lane) {
		w.noteTurn(lane, next == nil)
	}
	if was == nil || is == nil || was.endMS != is.endMS || was.kind != is.kind || was.beat != is.beat {
		switch {
		case was.byBeat():
			w.tx.Clear(keys.held(was.beat, lane))
		case was != nil && (is == nil || was.endMS != is.endMS || is.byBeat()):
			w.tx.Clear(keys.timer(was.endMS, lane))
		}
		if random, ok := old.grantedTo(); ok {
			w.clear(keys.grant(random, lane))
		}
		switch {
		case is.byBeat():
			w.tx.Set(keys.held(is.beat, lane), packTimer(is.kind, head))
		case is != nil:
			w.tx.Set(keys.timer(is.endMS, lane), packTimer(is.kind, head))
		}
		if random, ok := next.grantedTo(); ok {
			w.tx.Set(keys.grant(random, lane), packInt(is.token))
		}
	}
	switch wasMarked, isMarked := old.bears() != nil, next.bears() != nil; {
	case isMarked && !wasMarked:
		w.tx.Set(keys.mark(lane), nil)
	case !isMarked && (wasMarked || old == unreadable):
		w.tx.Clear(keys.mark(lane))
	}
	if next == nil {
		w.tx.Clear(keys.lock(lane))
		w.unlock(lane)
		return
	}
	if was != nil && is != nil && is.endMS < was.endMS {
		w.readKept(lane) // the timers beside the kept hints are at the old end
	}
	w.tx.Set(keys.lock(lane), next.pack())
}

// leaving returns how many items leave a claim when a record changes from old to next. An ack takes the acked items off
// the counter again.
func leaving(old, next *record) int {
	was, is := old.claim(), next.claim()
	switch {
	case was == nil:
		return 0
	case is == nil || is.token != was.token:
		return len(was.items)
	}
	return len(was.items) - len(is.items)
}

// end ends the holding of a group. The mark m, if any, then stops the group. free means: the group is free, and has no
// hint yet, so the caller has to write a hint.
func (w *txn) end(lane string, r *record, m *mark) (free bool) {
	w.put(lane, r, r.without(m), 0)
	return m == nil
}

// lapse ends the holding of a group as the next receive after the holding's end would. After a claim, the item which
// was tried counts a failed attempt: f, if the caller has judged the attempt already. After a delay or a grant nothing
// counts. free means: the group is free, and has no hint yet. The item spared, if any, is not dead-lettered, because
// the caller is about to change or remove the item.
func (w *txn) lapse(lane string, r *record, f *failure, spared ID) (free bool, err error) {
	m := r.mark
	w.lapsed, w.cleared = w.lapsed+1, true
	if c := r.claim(); c != nil && len(c.items) > 0 {
		w.count(countExpired, 1)
		if f == nil {
			if f, err = w.judgeTried(lane, c, c.lapseText()); err != nil {
				return false, err
			}
		}
		if m, err = f.carryOut(w, m, spared); err != nil {
			return false, err
		}
	}
	return w.end(lane, r, m), nil
}

// lapseText is the error text of a failed attempt whose lease has ended.
func (h *holding) lapseText() string { return "lease expired, held by " + h.owner }

// leave makes a group which nobody holds findable: leave writes the head's hint, or adds a conflict on the emptiness.
// first is the key of the first item as head reads the key; nil = leave reads the key, and sees the transaction's
// writes. tried: the head may have failed before, and the hint says how often. The hint also leads to an item which
// lands before the head; nobody removes such an item without the lock.
func (w *txn) leave(
	lane string, first kv.Future[[]byte], empty guard, tried bool,
) (c candidate, found bool, err error) {
	if !isPart(lane) && !w.keys.wholeGroups() {
		return c, false, nil // nobody receives the whole group
	}
	if isHold(lane) {
		return c, false, w.letGo(lane)
	}
	items := w.keys.items(lane)
	if first == nil {
		first = w.head(lane)
	}
	turn := w.readTurn(lane)
	key, err := first.Wait(w.ctx)
	if err != nil {
		return c, false, fmt.Errorf("read head: %w", err)
	}
	if !items.Contains(key) {
		delete(w.ready, lane)
		return c, false, empty.read(w.tx, items)
	}
	p, err := w.keys.parseItem(key, groupOf(lane), items)
	if err != nil {
		return c, false, err
	}
	if keeps, err := turn.keeps(w, p.itemID()); err != nil || keeps {
		delete(w.ready, lane)
		return c, false, err
	}
	c = candidate{lane: lane, index: p.index}
	if tried {
		record, err := w.q.readAttempt(w.ctx, w.tx.Snapshot(), p.itemID())
		if err != nil {
			return c, false, err
		}
		c.attempts = record.count
	}
	c.key, err = w.rehint(p.index, lane, c.attempts)
	return c, err == nil, err
}

// free is leave for a group which an operator or a sweep sets free.
func (w *txn) free(lane string) error {
	_, _, err := w.leave(lane, nil, guardFreeEmpty, true)
	return err
}

// head starts reading the key of a group's first item, at snapshot.
func (w *txn) head(lane string) kv.Future[[]byte] {
	return w.tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(w.keys.items(lane).Begin))
}

// seenHead returns an error if the caller has seen another head; zero = the caller takes any.
func seenHead(seen, head ID) error {
	switch {
	case seen == ID{} || seen == head:
		return nil
	case head == ID{}:
		return fmt.Errorf("%w: the group is empty, the head was %s", ErrChanged, seen)
	}
	return fmt.Errorf("%w: the head is %s, not %s", ErrChanged, head, seen)
}

// sawHead is seenHead for the present head of a group.
func (q *Queue) sawHead(ctx context.Context, tx kv.ReadTx, lane string, seen ID) error {
	if seen == (ID{}) {
		return nil
	}
	items := q.keys.items(lane)
	key, err := q.firstItem(ctx, tx, items)
	if err != nil {
		return err
	}
	if key == nil {
		return seenHead(seen, ID{})
	}
	p, err := q.keys.parseItem(key, groupOf(lane), items)
	if err != nil {
		return err
	}
	return seenHead(seen, p.itemID())
}

// holds reports whether the claim contains the item.
func (h *holding) holds(id ID) bool { return h != nil && place(h.items, id, id.Group) >= 0 }

// divide splits the items of a claim into the items named by ids and the rest, both in key order.
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

// place returns the position of id in left, or -1.
func place(left []delivered, id ID, group string) int {
	return slices.IndexFunc(left,
		func(d delivered) bool { return d.index == id.Index && d.random == id.Random && group == id.Group })
}

// excludeHolders adds a write conflict on a group's lock, so that a claim at the same time fails.
func (w *txn) excludeHolders(g guard, lane string) error {
	return g.write(w.tx, w.keys.lock(lane))
}

// remove clears the acked items, a subset of all (the items under the claim), by exact keys. A range from the first to
// the last would also clear an item whose enqueue committed late, between the acked items; for who has excluded that,
// see settlement.remove.
func (w *txn) remove(group string, all, acked []delivered, archived bool) {
	for _, d := range acked {
		w.clearItem(d.id(group), d.facets)
	}
	w.clearRest(group, all, acked, archived)
}

// clearRest clears what the acked items have beside their own keys: parts, unless these are archived, and attempt
// records. Attempt records go by ranges, one range for each run of acked items, because only an item which was tried
// has an attempt record.
func (w *txn) clearRest(group string, all, acked []delivered, archived bool) {
	for _, d := range acked {
		if d.parts > 0 && !archived {
			w.tx.ClearRange(w.keys.parts(d.id(group)))
		}
	}
	w.clearAttempts(group, all, acked)
}

// clearAttempts clears the attempt records of gone, a subset of all (the items under the claim).
func (w *txn) clearAttempts(group string, all, gone []delivered) {
	keys, tx := w.keys, w.tx
	var run []delivered
	endRun := func() {
		if len(run) > 0 {
			first, last := run[0].id(group), run[len(run)-1].id(group)
			tx.ClearRange(kv.KeyRange{Begin: keys.attempt(first), End: keys.after(keys.attempt(last))})
			if lacks(guardExactClear) {
				tx.ClearRange(kv.KeyRange{Begin: keys.item(first), End: kv.KeyAfter(keys.item(last))})
			}
			run = nil
		}
	}
	for i, d := range all {
		if len(gone) == 0 || d != gone[0] {
			endRun()
			continue
		}
		gone = gone[1:]
		run = all[i-len(run) : i+1]
	}
	endRun()
}
