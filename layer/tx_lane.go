package layer

import (
	"fmt"
	"maps"
	"slices"

	"fdbfifo/kv"
)

// unlock notes that a lock is released.
func (w *txn) unlock(lane string) {
	if w.q.keys.plan == nil || w.q.keys.inTurn() {
		return
	}
	if w.unlocked == nil {
		w.unlocked = make(map[string]bool)
	}
	w.unlocked[lane] = true
	w.readRequests()
	w.readKept(lane)
}

// readKept starts reading the hints put aside under a lock which is being released.
func (w *txn) readKept(lane string) {
	if w.q.keys.plan != nil && !w.q.keys.inTurn() {
		w.unkept = append(w.unkept,
			guardKept.reads(w.tx).GetRange(w.q.keys.keptUnder(lane).Selectors(), kv.RangeOptions{}))
	}
}

// putBackKept puts back the hints which were put aside under the locks that this transaction has released.
func (w *txn) putBackKept() error {
	for _, f := range w.unkept {
		rows, err := f.Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read kept hints: %w", err)
		}
		for _, row := range rows {
			p, err := w.q.keys.parse(row.Key)
			if err != nil {
				return err
			}
			attempts, err := unpackHint(row)
			if err != nil {
				return err
			}
			w.tx.Clear(row.Key)
			w.hint(p.index, p.lane, attempts)
		}
	}
	w.unkept = nil
	return nil
}

// vacate notes that an item goes from lanes whose first it may be.
func (w *txn) vacate(index int64, lanes []string) {
	if w.vacated == nil {
		w.vacated = make(map[string][]int64)
	}
	for _, lane := range lanes {
		w.vacated[lane] = append(w.vacated[lane], index)
	}
}

// leadToNext leads to the next items of the lanes from which this transaction has taken items, in a queue with
// retroactive delay. Elsewhere the timer of a head which leaves with a claim of another lane was due, and still leads
// to the lane. With retroactive delay the delay may be longer since, and the next item have a time of its own: an item
// which is to come at once would wait for the time of the one that is gone. The hint which leadToNext has set for an
// item that goes is cleared: there would be more and more of them in a lane by which nobody receives.
//
// Footprint: the keys of the lanes' heads, at snapshot; of an empty lane a conflict on the emptiness, as in leave.
func (w *txn) leadToNext() error {
	config, err := w.config()
	if err != nil || !config.RetroactiveDelay || len(w.vacated) == 0 {
		return err
	}
	lanes := slices.DeleteFunc(slices.Sorted(maps.Keys(w.vacated)), func(lane string) bool { return w.ready[lane] })
	heads := make([]kv.Future[[]byte], len(lanes))
	for i, lane := range lanes {
		heads[i] = w.tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(w.q.keys.items(lane).Begin))
	}
	for i, lane := range lanes {
		key, err := heads[i].Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read head: %w", err)
		}
		items := w.q.keys.items(lane)
		if !items.Contains(key) {
			if err := guardFreeEmpty.read(w.tx, items); err != nil {
				return err
			}
			continue
		}
		p, err := w.q.keys.parseItem(key, groupOf(lane), items)
		if err != nil {
			return err
		}
		for _, index := range w.vacated[lane] {
			w.tx.Clear(w.q.keys.ready(index, lane))
		}
		w.hint(p.index, lane, 0)
	}
	w.vacated = nil
	return nil
}

// unpackHint returns how often the head of a hint has failed.
func unpackHint(row kv.KV) (attempts int, err error) {
	if len(row.Value) == 0 {
		return 0, nil
	}
	n, err := unpackInt(row.Key, row.Value)
	return int(n), err
}

// wakeReady wakes the requests for what this transaction has left ready.
func (w *txn) wakeReady() error {
	switch {
	case w.q.keys.plan != nil:
		return w.wakeLanes()
	case len(w.ready) > 0:
		return w.wakeOldest()
	}
	return nil
}
