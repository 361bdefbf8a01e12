package layer

import (
	"fmt"
	"slices"

	"fdbfifo/kv"
)

// readKept starts reading the hints put aside under a lock which is being released.
func (w *txn) readKept(lane string) {
	if w.q.keys.plan != nil {
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

// wakeReady wakes a request for each template by which this transaction has left lanes ready.
func (w *txn) wakeReady() error {
	if len(w.ready) == 0 {
		return nil
	}
	lanes := make(map[string]string)
	var order []string
	for lane := range w.ready {
		_, where := splitLane(lane)
		if lanes[where] == "" {
			order = append(order, where)
			lanes[where] = laneName("", where)
		}
	}
	slices.Sort(order) // the same order in each run of a simulation
	for _, where := range order {
		if err := w.wakeOldest(lanes[where]); err != nil {
			return err
		}
	}
	return nil
}

// wakeAll wakes a request for whole groups, and the requests by templates.
func (w *txn) wakeAll() error {
	if err := w.wakeOldest(""); err != nil || w.q.keys.plan == nil {
		return err
	}
	rows, err := w.tx.Snapshot().GetRange(
		w.q.keys.section(nameAwait).Selectors(), kv.RangeOptions{Limit: 1000}).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	for _, row := range rows {
		p, err := w.q.keys.parse(row.Key)
		if err != nil {
			return err
		}
		w.touch(p.id)
	}
	return nil
}
