package layer

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"fdbfifo/kv"
)

// In a queue with the setting lease_per=item each message in hand has a claim, a lease and a token of its own, and a
// group is delivered from its head up to the first message in hand: in turn. Example: a receive gets messages 1, 2 and
// 3; 2 is given back; nobody gets 2 while 1 is in hand; once 1 is acked, 2 is delivered again, and 4 is not.
//
// The claim of a message is a hold, as in an unordered queue (store_hold.go): a record, and a timer, of its own. So
// attempts, retry delays, dead letters, operators and Check treat the message as they treat any hold; and a group with
// many messages in hand has many small records, rather than one which every settlement would read and write. There are
// no free lanes, and no claims of whole groups: the hints are those of whole groups, and a hint leads to a group of
// which the head is free.
//
// Invariant I1 is kept by these rules. docs/model/Items.tla shows that each is needed:
//
//   - Whoever begins or ends a hold writes a conflict on the lock of the group.
//   - Whoever ends a hold leaves a hint, if the head is free then. The hint needs no more: it is there.
//   - Whoever leaves no hint because the head is in hand has a read conflict on the lock of the group, because the
//     holder may give the head back meanwhile; and on the gap up to the head, because an item may land in the gap.
//   - Whoever meets the hint of a group whose head is in hand, and clears the hint, has the same conflicts.
//
// A head in hand has the timer of its hold, which leads back to the group.

// noteTurn notes that a hold of a group begins or ends.
func (w *txn) noteTurn(lane string, ends bool) {
	group := groupOf(lane)
	if w.let == nil {
		w.lead, w.let, w.turned = w.leadBackAll, make(map[string]bool), make(map[string]bool)
	}
	if w.turned[lane] = true; ends {
		w.let[group] = true
	}
	if err := w.excludeHolders(guardTurnNote, group); err != nil && w.illegal == nil {
		w.illegal = err
	}
}

// leadBackAll leaves the groups findable of which this transaction has ended holds.
func (w *txn) leadBackAll() error {
	if len(w.let) == 0 {
		return nil
	}
	for _, group := range slices.Sorted(maps.Keys(w.let)) {
		if err := w.leadBack(group, false); err != nil {
			return err
		}
	}
	return nil
}

// leadBack leaves a group findable after the end of a hold. tried: as leave has it.
func (w *txn) leadBack(group string, tried bool) error {
	delete(w.let, group)
	_, _, err := w.leave(group, nil, guardReleaseEmpty, tried)
	return err
}

// turnRead is the reads which tell whether a group needs a hint: of the group's lock and its first hold. nil = the
// queue does not deliver in turn.
type turnRead struct {
	lane string
	lock kv.Future[[]byte]
	hold kv.Future[[]kv.KV]
}

func (w *txn) readTurn(lane string) *turnRead {
	if !w.q.keys.inTurn() {
		return nil
	}
	tx := w.tx.Snapshot()
	return &turnRead{lane: lane, lock: tx.Get(w.q.keys.lock(lane)), hold: w.q.firstHold(tx, lane)}
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
		return true, guardTurnLock.read(w.tx, kv.SingleKey(w.q.keys.lock(t.lane)))
	}
	if len(rows) == 0 {
		return false, nil
	}
	p, err := w.q.keys.parse(rows[0].Key)
	if err != nil || p.itemID() != head {
		return false, err
	}
	return true, w.fenceTurn(t.lane, head)
}

// fenceTurn adds the read conflicts of whoever leaves a group without a hint, because its head is in hand.
func (w *txn) fenceTurn(lane string, head ID) error {
	if err := guardTurnLock.read(w.tx, kv.SingleKey(w.q.keys.lock(lane))); err != nil {
		return err
	}
	return guardTurnGap.read(w.tx,
		kv.KeyRange{Begin: w.q.keys.items(lane).Begin, End: kv.KeyAfter(w.q.keys.item(head))})
}

// disposeInHand clears a hint of a group whose head is in hand.
func (w *txn) disposeInHand(f *found) error {
	if err := w.fenceTurn(f.lane, f.rows.id(0)); err != nil {
		return err
	}
	w.clear(f.key)
	w.done++
	delete(w.ready, f.lane)
	return nil
}

// delayOf reads what delays a lane: the record of its lock, or, if items are claimed in turn and nothing locks the
// group, that of its head's hold. held is the lane of the record.
func (w *txn) delayOf(lane string) (held string, r *record, err error) {
	if r, err = w.q.readLock(w.ctx, guardRetryLock.reads(w.tx), lane); err != nil || r != nil || !w.q.keys.inTurn() {
		return lane, r, err
	}
	key, err := w.q.firstItem(w.ctx, w.tx.Snapshot(), w.q.keys.items(lane))
	if err != nil || key == nil {
		return lane, nil, err
	}
	p, err := w.q.keys.parseItem(key, lane, w.q.keys.items(lane))
	if err != nil {
		return lane, nil, err
	}
	held = holdLane(p.itemID())
	r, err = w.q.readLock(w.ctx, guardRetryLock.reads(w.tx), held)
	return held, r, err
}

// inHandMost bounds the holds of a group which inHand reads.
const inHandMost = 10_000

// inHand returns how many items of a group are under a claim of their own, of the first inHandMost holds.
func (q *Queue) inHand(ctx context.Context, tx kv.ReadTx, group string) (n int, err error) {
	rows, err := tx.GetRange(q.keys.holds(group).Selectors(), kv.RangeOptions{Limit: inHandMost}).Wait(ctx)
	if err != nil {
		return 0, fmt.Errorf("read holds: %w", err)
	}
	all, err := q.unpackHolds(rows)
	for _, held := range all {
		if held.record.claim() != nil {
			n++
		}
	}
	return n, err
}
