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

// The effect of holds on a group: see store_hold.go.

// letGo puts the item of a hold that has ended back into the lane out of which the hold took it, if the item is still
// there. If the item stayed in its lanes, and the group's head is free now, letGo returns the group's hint.
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

// meetHold notes the first hold of the group: f is delivered up to the held item. If the head is held, meetHold notes
// the hold as a lock that excludes.
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
	if f.rows.len() > 0 && f.rows.id(0) == id {
		f.others = append(f.others, all[0])
	}
	for i := range f.rows.len() {
		if f.rows.id(i) == id {
			if f.rows = f.rows.first(max(i, 1)); i > 0 {
				f.behind, f.behindOver = &id, v.keys.plan.ClaimsItems(where) && !all[0].record.At(v.nowMS).Keeps()
			}
			break
		}
	}
	return nil
}

// fenceHolds adds a read conflict on the holds of a group up to an item. The caller must know that none of them holds
// an item that it is about to take.
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
//   - A transaction that begins or ends a hold writes a conflict on the lock of the group.
//   - A transaction that ends a hold leaves a hint, if the head is free then. No further conflict is needed, because
//     the hint is there.
//   - A transaction that leaves no hint because the head is in flight has two read conflicts: on the lock of the group,
//     because the holder may return the head at the same time, and on the gap up to the head, because an item may land
//     in the gap.
//   - A transaction that clears the hint of a group whose head is in flight has the same conflicts.
//
// A head in flight has the timer of its hold, which leads back to the group.

// noteTurn notes that a hold of a group begins or ends.
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

// leadBackAll leaves the groups findable of which this transaction has ended holds.
func (w *txn) leadBackAll() error {
	if len(w.holds.let) == 0 {
		return nil
	}
	for _, group := range slices.Sorted(maps.Keys(w.holds.let)) {
		if _, _, err := w.leadBack(group, false); err != nil {
			return err
		}
	}
	return nil
}

// leadBack leaves a group findable after the end of a hold, and returns what leave does. tried: as leave has it.
func (w *txn) leadBack(group string, tried bool) (c candidate, found bool, err error) {
	delete(w.holds.let, group)
	return w.leave(group, nil, guard.ReleaseEmpty, tried)
}

// turnRead is the reads which tell whether a group needs a hint: of the group's lock and its first hold. nil = the
// queue does not deliver in turn.
type turnRead struct {
	lane string
	lock kv.Future[[]byte]
	hold kv.Future[[]kv.KV]
}

func (w *txn) readTurn(lane string) *turnRead {
	if !w.keys.plan.InTurn() {
		return nil
	}
	return &turnRead{lane: lane, lock: w.read.Get(w.keys.lock(lane)), hold: w.firstHold(lane)}
}

// keeps reports whether the group with the given head needs no hint, because the group is locked, or its head is in
// hand, and adds the conflicts which keep that true.
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
	if w.passes(err) || p.itemID() != head {
		return false, nil
	}
	return true, w.fenceTurn(t.lane, head)
}

// fenceTurn adds the read conflicts of a transaction that leaves a group without a hint, because its head is in flight.
func (w *txn) fenceTurn(lane string, head ID) error {
	if err := guard.TurnLock.Read(w.tx, kv.SingleKey(w.keys.lock(lane))); err != nil {
		return err
	}
	return guard.TurnGap.Read(w.tx,
		kv.KeyRange{Begin: w.keys.items(lane).Begin, End: kv.KeyAfter(w.keys.item(head))})
}

// disposeInHand clears a hint of a group whose head is in flight.
func (w *txn) disposeInHand(f *found) error {
	if err := w.fenceTurn(f.lane, f.rows.id(0)); err != nil {
		return err
	}
	w.clear(f.key)
	w.chores.done++
	delete(w.noted.ready, f.lane)
	return nil
}

// delayOf reads what delays a lane: the record of its lock, or, if items are claimed in turn and nothing locks the
// group, that of its head's hold. held is the lane of the record.
func (w *txn) delayOf(lane string) (held string, r *rec.Record, err error) {
	if r, err = w.guarded(guard.RetryLock).readLock(lane); err != nil || r != nil || !w.keys.plan.InTurn() {
		return lane, r, err
	}
	key, err := w.firstItem(w.keys.items(lane))
	if err != nil || key == nil {
		return lane, nil, err
	}
	p, err := w.keys.parseItem(key, lane, w.keys.items(lane))
	if err != nil {
		return lane, nil, err
	}
	held = holdLane(p.itemID())
	r, err = w.guarded(guard.RetryLock).readLock(held)
	return held, r, err
}
