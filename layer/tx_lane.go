package layer

import (
	"fmt"

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
