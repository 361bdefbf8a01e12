package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// What holds mean for a group: see store_hold.go.

// letGo puts the item of a hold that has ended back among the free items of its group, if the item is still there.
func (w *txn) letGo(lane string) error {
	id, _ := holdOf(lane)
	if w.q.keys.inTurn() {
		return w.leadBack(id.Group, true)
	}
	v, err := w.tx.Snapshot().Get(w.q.keys.item(id)).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read item: %w", err)
	}
	if v == nil {
		return nil
	}
	free := freeLane(id.Group)
	w.tx.Set(w.q.keys.laneItem(free, id), nil)
	_, err = w.rehint(id.Index, free, 0)
	return err
}

// firstHold is the read of the first hold of a group; nil if the queue has none.
func (q *Queue) firstHold(tx kv.ReadTx, group string) kv.Future[[]kv.KV] {
	if !q.keys.hasHolds() {
		return nil
	}
	return tx.GetRange(q.keys.holds(group).Selectors(), kv.RangeOptions{Limit: 1})
}

// meetHold notes the first hold of the group, which f is to be delivered up to: if the head is held, as a lock that
// excludes.
func (f *found) meetHold(w *txn, read kv.Future[[]kv.KV]) error {
	if read == nil {
		return nil
	}
	rows, err := read.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read holds: %w", err)
	}
	if len(rows) == 0 {
		return nil
	}
	all, err := w.q.unpackHolds(rows)
	if err != nil {
		return err
	}
	id, _ := holdOf(all[0].lane)
	if f.rows.len() > 0 && f.rows.id(0) == id {
		f.others = append(f.others, all[0])
	}
	for i := range f.rows.len() {
		if f.rows.id(i) == id {
			if f.rows = f.rows.first(max(i, 1)); i > 0 {
				f.behind = &id
			}
			break
		}
	}
	return nil
}

// unpackHolds reads the records of holds.
func (q *Queue) unpackHolds(rows []kv.KV) ([]heldLane, error) {
	all := make([]heldLane, 0, len(rows))
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return nil, err
		}
		r, err := unpackRecord(row.Key, row.Value)
		if err != nil {
			return nil, err
		}
		all = append(all, heldLane{lane: p.lane, record: r})
	}
	return all, nil
}

// readHolds reads the holds of a group from one item to another, both included, with a conflict.
func (w *txn) readHolds(g guard, r kv.KeyRange) ([]heldLane, error) {
	if !w.q.keys.hasHolds() {
		return nil, nil
	}
	rows, err := g.reads(w.tx).GetRange(r.Selectors(), kv.RangeOptions{}).Wait(w.ctx)
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	return w.q.unpackHolds(rows)
}

// fenceHolds adds a read conflict on the holds of a group up to an item, which are known to hold nothing of what the
// caller is about to take.
func (w *txn) fenceHolds(g guard, lane string, last ID) error {
	if !w.q.keys.hasHolds() || isHold(lane) {
		return nil
	}
	return g.read(w.tx, w.q.keys.holdsTo(last))
}
