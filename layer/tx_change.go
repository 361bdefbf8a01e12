package layer

import (
	"sync/atomic"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// What a transaction has done to items is collected, and written at the end as a row for subscriptions, if the queue
// keeps changes (Config.Changes). The row is part of the transaction, so there is a change if and only if the
// transaction was committed.

// changeRowSize bounds a row of changes; what is more goes into another row. The database allows 100,000 bytes.
const changeRowSize = 90_000

// changeRows numbers the rows of this process, so that rows which one transaction writes keep the order of its calls,
// whichever handles are called.
var changeRows atomic.Int64

// change notes a change of one item. facets are packed: those that the item has, or had.
func (w *txn) change(kind ChangeKind, id ID, facets string) {
	if !w.mayKeepChanges() {
		return
	}
	d := delivered{index: id.Index, random: id.Random, facets: facets}
	if n := len(w.changes) - 1; n >= 0 && w.changes[n].kind == kind && w.changes[n].group == id.Group {
		w.changes[n].items = append(w.changes[n].items, d)
		return
	}
	w.note(changed{kind: kind, group: id.Group, items: []delivered{d}})
}

// changeAll notes a change of several items of a group, in order.
func (w *txn) changeAll(kind ChangeKind, group string, items []delivered) {
	if len(items) > 0 {
		// The slice stays the caller's: what is appended goes into a copy.
		w.note(changed{kind: kind, group: group, items: items[:len(items):len(items)]})
	}
}

// changePurged notes that n items of a group are gone.
func (w *txn) changePurged(group string, n int) {
	w.note(changed{kind: ChangePurged, group: group, n: n})
}

// note keeps changes for writeChanges.
func (w *txn) note(c changed) {
	if w.mayKeepChanges() {
		w.changes = append(w.changes, c)
	}
}

// mayKeepChanges is false if the queue is known to keep no changes.
func (w *txn) mayKeepChanges() bool { return w.follow.stored != nil || w.follow.config.Changes > 0 }

// writeChanges writes what the transaction has noted, and touches the key which subscriptions watch.
//
// Footprint: a key that nobody else writes, and an atomic add; no read and no conflict, so writers of changes do not
// conflict with each other, nor with subscriptions.
func (w *txn) writeChanges() error {
	if len(w.changes) == 0 {
		return nil
	}
	config, err := w.config()
	if err != nil || config.Changes == 0 {
		return err
	}
	row := tuple.AppendInt(nil, w.nowMS)
	flush := func() {
		w.tx.Atomic(kv.SetVersionstampedKey, w.q.keys.change(w.q.offset, changeRows.Add(1)), row)
		row = tuple.AppendInt(nil, w.nowMS)
	}
	for i := range w.changes {
		c := &w.changes[i]
		if len(row) > changeRowSize {
			flush()
		}
		if c.kind == ChangePurged {
			row = c.appendPurge(row)
			continue
		}
		for _, d := range c.items {
			if len(row) > changeRowSize {
				flush()
			}
			row = c.appendItem(row, d)
		}
	}
	flush()
	w.tx.Atomic(kv.Add, w.q.keys.meta(metaChanged), packCount(1))
	w.changes = nil
	return nil
}
