package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// overdue goes from head to head and removes the heads past retention, with the items past retention behind.
func (s *sweeper) overdue() error {
	config, err := s.configuration()
	if err != nil || config.Retention == 0 {
		return err
	}
	rest := s.q.keys.section(nameItem)
	heads := job[*overdueStep]{
		q: s.q, ctx: s.ctx, width: overdueWidth,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (*overdueStep, bool, error) {
			t := &overdueStep{rest: rest}
			return t, true, t.run(s.q.txn(s.ctx, tx), width)
		},
		pass: func(t *overdueStep) (bool, error) {
			rest.Begin = t.next
			s.passed(t.keys, int64(t.aged), &s.report.PastRetention)
			return t.next != nil, nil
		},
	}
	return heads.run(true)
}

// overdueStep is one attempt of a step of the sweep for items past retention.
//
// Footprint, per group with a head past retention: a read and a write conflict on the lock; if nobody holds the group,
// and the group is empty now, a read conflict on the whole group.
type overdueStep struct {
	rest kv.KeyRange // begins with the first item of a group
	next []byte      // where the next step begins; nil = done
	keys int
	aged int
}

func (t *overdueStep) run(w *txn, width int) error {
	rows, err := w.tx.Snapshot().GetRange(t.rest.Selectors(), kv.RangeOptions{Limit: width}).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read items: %w", err)
	}
	t.keys = len(rows)
	for len(rows) > 0 {
		p, err := w.q.keys.parse(rows[0].Key)
		if err != nil {
			return err
		}
		items := w.q.keys.items(p.group)
		n := 1
		for n < len(rows) && items.Contains(rows[n].Key) {
			n++
		}
		last := n == len(rows) && t.keys == width // the group may have more items
		all, err := w.rows(p.group, rows[:n])
		if err != nil {
			return err
		}
		again, err := t.group(w, all, last)
		if err != nil {
			return err
		}
		if again {
			t.next = items.Begin
			break
		}
		if last || w.spent() {
			t.next = items.End
			break
		}
		rows = rows[n:]
	}
	return w.finish()
}

// group drops or dead-letters the group's first items which are past retention. again means: more items of the group
// are past retention, or, if all were and last is true, perhaps more.
func (t *overdueStep) group(w *txn, all rows, last bool) (again bool, err error) {
	old, err := w.overdue(all)
	if err != nil || old.len() == 0 {
		return false, err
	}
	r, err := w.q.readLock(w.ctx, guardAgeLock.reads(w.tx), all.group)
	if w.q.keys.plan != nil && err == nil {
		var held []heldLane
		if held, err = w.groupLocks(guardAgeLock, all.group); err == nil && len(held) > 0 {
			return false, nil // left to the receives, which meet the item when its lanes are free
		}
	}
	if err == nil && w.q.keys.hasHolds() {
		var holds []heldLane
		if holds, err = w.readHolds(guardAgeLock, w.q.keys.holdsTo(old.id(old.len()-1))); err == nil && len(holds) > 0 {
			return false, nil
		}
	}
	if isCorrupt(err) {
		return false, nil // Check reports the lock
	}
	if err != nil {
		return false, err
	}
	if c := r.at(w.nowMS); c == claimed || c == granted {
		return false, nil // in flight, or about to be
	}
	free, err := w.expireItems(r, old)
	if err != nil {
		return false, err
	}
	t.aged += old.len()
	if free && w.q.keys.wholeGroups() {
		if err := w.free(all.group); err != nil {
			return false, err
		}
	}
	if old.len() == all.len() {
		return last, nil
	}
	rest, err := w.overdue(all.from(old.len()))
	return rest.len() > 0, err
}
