package layer

import (
	"fmt"
	"slices"

	"fdbfifo/kv"
)

// State is the state of a group that has items.
type State string

// The states. A group without items is empty and is not listed.
const (
	Ready   State = "ready"   // free to be claimed
	Held    State = "held"    // under a claim
	Expired State = "expired" // under a claim whose lease has run out: taken over by the next receive
	Delayed State = "delayed" // given back with a delay that has not ended, or its head is kept back
	Paced   State = "paced"   // free, but its rate (Config.MaxRate) is used up for now
	Paused  State = "paused"  // by an operator, until it is resumed: see GroupInfo.Mark
	Parked  State = "parked"  // its head has failed for good; until it is redriven or resumed: see GroupInfo.Mark
	Granted State = "granted" // kept for a handle whose receives wait; it accepts within 2 s, or the group is free
	Corrupt State = "corrupt" // its lock or its head cannot be read: LastError says why, Check tells more
)

// holds reports whether the item is outstanding in this claim.
func (l *lock) holds(id ID) bool {
	for _, d := range l.outstanding {
		if d.index == id.Index && d.random == id.Random {
			return true
		}
	}
	return false
}

// divide splits what is outstanding into what ids name and the rest, both in key order.
func (l *lock) divide(group string, ids []ID, allIfNone bool) (acked, left []delivered, err error) {
	if len(ids) == 0 {
		if allIfNone {
			return l.outstanding, nil, nil
		}
		return nil, l.outstanding, nil
	}
	named := make(map[ID]bool, len(ids))
	for _, id := range ids {
		named[id] = true
	}
	for _, d := range l.outstanding {
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
	return slices.IndexFunc(left, func(d delivered) bool { return d.id(group) == id })
}

// lapsed is the text of the failure of a lease that has run out.
func lapsed(l *lock) string { return "lease expired, held by " + l.owner }

// head starts reading the key of a group's first item, at snapshot.
func (w *work) head(group string) kv.Future[[]byte] {
	return w.tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(w.q.keys.items(group).Begin))
}

// release leaves a group ready that nobody holds any more: it sets the hint if there are items, and otherwise makes
// sure that there are none. head is its first item as head reads it. An item that comes before it meanwhile is led to by
// the same hint, and nobody removes it but under the lock.
func (w *work) release(group string, head kv.Future[[]byte]) error {
	next, err := head.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read head: %w", err)
	}
	items := w.q.keys.items(group)
	if !items.Contains(next) {
		return guardReleaseEmpty.read(w.tx, items)
	}
	p, err := w.q.keys.parse(next)
	if err != nil {
		return err
	}
	return w.rehint(p.index, group, 0)
}

// free is release for a group that nobody had in hand: its head may have failed before, and its hint says how often.
// It sees what the transaction has done so far. Beside it, any other hint of the group may be cleared.
func (w *work) free(group string) error {
	items := w.q.keys.items(group)
	head, err := w.q.firstItem(w.ctx, w.tx.Snapshot(), items)
	if err != nil {
		return err
	}
	if head == nil {
		delete(w.ready, group)
		return guardFreeEmpty.read(w.tx, items)
	}
	p, err := w.q.keys.parse(head)
	if err != nil {
		return err
	}
	record, err := w.q.readAttempt(w.ctx, w.tx.Snapshot(), p.itemID())
	if err != nil {
		return err
	}
	return w.rehint(p.index, group, record.count)
}

// freed is free, and returns the group as its hint now names it; found is false if it is empty.
func (w *work) freed(group string) (c candidate, found bool, err error) {
	if err := w.free(group); err != nil || !w.ready[group] {
		return c, false, err
	}
	head, err := w.q.firstItem(w.ctx, w.tx.Snapshot(), w.q.keys.items(group))
	if err != nil {
		return c, false, err
	}
	p, err := w.q.keys.parse(head)
	if err != nil {
		return c, false, err
	}
	record, err := w.q.readAttempt(w.ctx, w.tx.Snapshot(), p.itemID())
	if err != nil {
		return c, false, err
	}
	index, err := w.placeOf(p.index)
	return candidate{key: w.q.keys.ready(index, group), group: group, index: p.index, attempts: record.count}, true, err
}

// unhold clears what stands beside a lock that ends: its timer and its grant.
func (w *work) unhold(group string, l *lock) {
	if l.endMS != noEnd {
		w.tx.Clear(w.q.keys.timer(l.endMS, group))
	}
	if random, ok := l.grantedTo(); ok {
		w.tx.Clear(w.q.keys.grant(random, group))
	}
}

// unlock ends a lock: it goes, with what belongs to it, or becomes the mark that it bears. It reports whether the group
// is then free.
func (w *work) unlock(group string, l *lock) (free bool) {
	w.unhold(group, l)
	if l.mark != nil {
		w.tx.Set(w.q.keys.lock(group), l.mark.lock(l.token).pack())
		return false
	}
	w.tx.Clear(w.q.keys.lock(group))
	return true
}

// lapse ends a lock whose time has run out, as a receive that meets it would: the item that was tried under a claim
// counts a failed attempt; the end of a delay or of a grant counts none. A group that is then free is left without a
// hint. The item that is spared, if any, is not parked.
func (w *work) lapse(group string, l *lock, spared ID) (free bool, err error) {
	if l.kind == kindClaim && len(l.outstanding) > 0 {
		w.count(countExpired, 1)
		if err := w.failTried(group, l, lapsed(l), spared); err != nil {
			return false, err
		}
	}
	return w.unlock(group, l), nil
}

// failTried counts a failed attempt of the item that was tried under a claim, and what follows from it.
func (w *work) failTried(group string, l *lock, text string, spared ID) error {
	f, err := w.judgeTried(group, l, text)
	if err != nil {
		return err
	}
	return f.carryOut(w, l, spared)
}

// excludeHolders is the write conflict on a group's lock.
func (w *work) excludeHolders(g guard, group string) error {
	return g.write(w.tx, w.q.keys.lock(group))
}

// remove clears the items acked, out of those under the claim, by their exact keys: a range from the first to
// the last would take with it an item whose enqueue committed late, between them. Attempt records need no such
// care, because only an item that was tried has one: they go by ranges, one for each run of acked items.
func (w *work) remove(group string, all, acked []delivered, archived bool) {
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
