package layer

import (
	"fmt"
	"maps"
	"slices"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// The effect of holds on a group. A hold is the claim, or the delay after a nack, of a single item: see store_hold.go.

// letGo makes the item of a hold that has ended findable again. lane is that of the hold, whose record this transaction
// has cleared.
//
// In an unordered queue the hold has taken the item out of the free lane. letGo reads the item at snapshot. If the item
// is still stored, letGo puts its key back into that lane and writes a hint there; found is false. If items are claimed
// in turn, the item has stayed in its lanes: letGo calls leadBack, which writes the group's hint if the head is free.
// Then c is the hint, and found is true.
func (w *txn) letGo(lane string) (c candidate, found bool, err error) {
	id, _ := holdOf(lane)
	free, out := w.keys.plan.TakenOutOf(lane)
	if !out {
		return w.leadBack(id.Group, true)
	}
	v, err := w.read.Get(w.keys.item(id)).Wait(w.ctx)
	if err != nil {
		return c, false, fmt.Errorf("read item: %w", err)
	}
	if v == nil {
		return c, false, nil
	}
	w.tx.Set(w.keys.laneItem(free, id), nil)
	_, err = w.rehint(id.Index, free, 0)
	return c, false, err
}

// meetHold waits for the read of the group's first hold, and cuts the rows of f before the held item: f.behind is that
// item. If the head itself is held, meetHold adds the hold to f.others instead, as a lock that excludes the lane. read
// may be nil: no hold can keep items of the lane from a claim.
func (f *found) meetHold(v *view, read kv.Future[[]kv.KV]) error {
	if read == nil {
		return nil
	}
	rows, err := read.Wait(v.ctx)
	if err != nil {
		return fmt.Errorf("read holds: %w", err)
	}
	if len(rows) == 0 {
		return nil
	}
	all, err := v.unpackHolds(rows)
	if err != nil {
		return err
	}
	id, _ := holdOf(all[0].lane)
	_, where := lanes.Split(f.lane)
	for i := range f.rows.len() {
		if f.rows.id(i) != id {
			continue
		}
		if f.rows = f.rows.first(max(i, 1)); i == 0 {
			f.others = append(f.others, all[0])
		} else {
			f.behind, f.behindOver = &id, v.keys.plan.ClaimsItems(where) && !all[0].record.At(v.nowMS).Keeps()
		}
		break
	}
	return nil
}

// fenceHolds adds a read conflict on the holds of a group up to and with the item last, by the guard g. It reads no
// key. The caller takes items up to last, and must conflict with a hold on one of them. Without holds in the queue it
// does nothing.
func (w *txn) fenceHolds(g guard.Guard, last ID) error {
	for _, r := range w.keys.holdsTo(last) {
		if err := g.Read(w.tx, r); err != nil {
			return err
		}
	}
	return nil
}

// In a queue with the setting lease_per=item each message in flight has a claim, a lease and a token of its own, and a
// group is delivered from its head up to the first message in flight: in turn. Example: a receive gets messages 1, 2
// and 3; 2 is returned. No receive gets 2 while 1 is in flight. Once 1 is acked, 2 is delivered again, and 4 is not.
//
// The claim of a message is a hold, as in an unordered queue (store_hold.go): a record, and a timer, of its own. So
// attempts, retry delays, dead letters, operators and Check treat the message as they treat any hold; and a group with
// many messages in flight has many small records, rather than one which every settlement would read and write. There
// are no free lanes, and no claims of whole groups: the hints are those of whole groups, and a hint leads to a group of
// which the head is free.
//
// Invariant I1 is kept by these rules. docs/model/Items.tla shows that each is needed:
//
//   - A transaction that begins or ends a hold adds a write conflict on the lock of the group.
//   - A transaction that ends a hold leaves a hint, if the head is free then. No further conflict is needed, because
//     the hint is there.
//   - A transaction that leaves no hint because the head is in flight has two read conflicts: on the lock of the group,
//     because the holder may return the head at the same time, and on the gap up to the head, because an item may land
//     in the gap.
//   - A transaction that clears the hint of a group whose head is in flight has the same conflicts.
//
// A head in flight has the timer of its hold, which leads back to the group.

// noteTurn notes that this transaction begins the hold of the given lane, or ends it if ends is set. It adds a write
// conflict on the lock of the group: the first rule above. Before the commit, finish calls leadBackAll for the groups
// whose holds have ended.
func (w *txn) noteTurn(group, lane string, ends bool) {
	if w.holds.let == nil {
		w.holds.lead, w.holds.let, w.holds.turned = w.leadBackAll, make(map[string]bool), make(map[string]bool)
	}
	if w.holds.turned[lane] = true; ends {
		w.holds.let[group] = true
	}
	if err := w.excludeHolders(guard.TurnNote, group); err != nil && w.did.illegal == nil {
		w.did.illegal = err
	}
}

// leadBackAll makes the groups findable of which this transaction has ended holds: leadBack for each. finish calls it.
func (w *txn) leadBackAll() error {
	for _, group := range slices.Sorted(maps.Keys(w.holds.let)) {
		if _, _, err := w.leadBack(group, false); err != nil {
			return err
		}
	}
	return nil
}

// leadBack makes a group findable after the end of a hold: it writes the hint of the group, unless the group is locked,
// or its head is held, or it is empty. It returns the results of leave, to which it passes tried.
func (w *txn) leadBack(group string, tried bool) (c candidate, found bool, err error) {
	delete(w.holds.let, group)
	return w.leave(group, nil, guard.ReleaseEmpty, tried)
}

// turnRead is the reads that tell whether a group without a lock needs a hint, where items are claimed in turn: of the
// group's lock and of its first hold. nil = the queue does not claim items in turn, and every such group needs a hint.
type turnRead struct {
	lane string
	lock kv.Future[[]byte]
	hold kv.Future[[]kv.KV]
}

// readTurn starts the reads of a turnRead, at snapshot. lane is the group.
func (w *txn) readTurn(lane string) *turnRead {
	if !w.keys.plan.InTurn() {
		return nil
	}
	return &turnRead{lane: lane, lock: w.read.Get(w.keys.lock(lane)), hold: w.firstHold(lane)}
}

// keeps reports whether the group with the given head needs no hint, because the group is locked, or the head has a
// hold. Then it adds the read conflicts that keep that true: on the lock, and for a held head those of fenceTurn.
func (t *turnRead) keeps(w *txn, head ID) (bool, error) {
	if t == nil {
		return false, nil
	}
	locked, err := t.lock.Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read lock: %w", err)
	}
	rows, err := t.hold.Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read holds: %w", err)
	}
	if locked != nil {
		return true, guard.TurnLock.Read(w.tx, kv.SingleKey(w.keys.lock(t.lane)))
	}
	if len(rows) == 0 {
		return false, nil
	}
	p, err := w.keys.parse(rows[0].Key)
	if w.skipsRow(err) || p.itemID() != head {
		return false, nil
	}
	return true, w.fenceTurn(t.lane, head)
}

// fenceTurn adds the read conflicts of a transaction that leaves a group without a hint because its head is in flight:
// on the lock of the group, and on the items up to the head. The third rule above has the reasons.
func (w *txn) fenceTurn(lane string, head ID) error {
	if err := guard.TurnLock.Read(w.tx, kv.SingleKey(w.keys.lock(lane))); err != nil {
		return err
	}
	return guard.TurnGap.Read(w.tx,
		kv.KeyRange{Begin: w.keys.items(lane).Begin, End: kv.KeyAfter(w.keys.item(head))})
}

// disposeInHand clears the hint that led to a group whose head is in flight, with the read conflicts of fenceTurn. The
// timer of the head's hold leads back to the group.
func (w *txn) disposeInHand(f *found) error {
	if err := w.fenceTurn(f.lane, f.rows.id(0)); err != nil {
		return err
	}
	w.clear(f.key)
	w.chores.done++
	delete(w.noted.ready, f.lane)
	return nil
}

// delayOf reads the record that may delay a lane: that of its lock. If items are claimed in turn and the group has no
// lock, that is the record of its head's hold. held is the lane of the record r. nil = there is no record. The reads of
// the records have conflicts (guard RetryLock), that of the head's key has none.
func (w *txn) delayOf(lane string) (held string, r *rec.Record, err error) {
	if r, err = w.guarded(guard.RetryLock).readLock(lane); err != nil || r != nil || !w.keys.plan.InTurn() {
		return lane, r, err
	}
	head, found, err := w.readHead(lane)
	if err != nil || !found {
		return lane, nil, err
	}
	held = holdLane(head)
	r, err = w.guarded(guard.RetryLock).readLock(held)
	return held, r, err
}
