package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// hints clears the stale hints of lanes, in a queue with facets. A claim clears the hint of its own lane; the hints of
// lanes by which nobody receives stay when the claims of other lanes have emptied these. Example: with the views "*;
// state", of which all workers receive by state, each whole group keeps a hint for each time that it was empty.
func (s *sweeper) hints() error {
	if s.q.keys.plan == nil {
		return nil
	}
	for _, section := range []string{nameReady, nameOpen} {
		if err := s.pagesUntil(s.q.keys.section(section), s.staleHints, &s.report.Hints, nil); err != nil {
			return err
		}
	}
	return nil
}

// staleHints clears the hints of a page whose lanes are empty, and of a lane with items those that do not lead to its
// head: the head gets a hint instead, if it has none.
//
// Footprint, per hint cleared: of an empty lane a read conflict on the whole lane, because an item that comes back to
// the lane writes a hint which may have this very key; else a read conflict on the hint of the head. And one on the
// mark of a drop.
func (s *sweeper) staleHints(tx kv.Tx, rows []kv.KV, _ bool) (cleared int64, err error) {
	keys, lanes, follow := s.q.keys, make([]string, len(rows)), s.q.follow(tx)
	heads := make([]kv.Future[[]byte], len(rows))
	for i, row := range rows {
		p, err := keys.parse(row.Key)
		if err != nil {
			continue // Check names it
		}
		lanes[i] = p.lane
		heads[i] = tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(keys.items(p.lane).Begin))
	}
	for i, row := range rows {
		if heads[i] == nil {
			continue
		}
		head, err := heads[i].Wait(s.ctx)
		if err != nil {
			return 0, fmt.Errorf("read head: %w", err)
		}
		stale, err := s.isStale(tx, row.Key, lanes[i], head)
		if err != nil {
			return 0, err
		}
		if stale {
			tx.Clear(row.Key)
			cleared++
		}
	}
	if cleared == 0 {
		return 0, nil
	}
	// A hint that is set must not come into another queue of the name, made while this sweep was under way.
	if _, err := follow.wait(s.ctx); err != nil {
		return 0, err
	}
	return cleared, follow.guardDrop(s.ctx, tx)
}

// isStale reports whether the hint of a lane can be cleared, with the conflict that keeps the answer true.
func (s *sweeper) isStale(tx kv.Tx, hint []byte, lane string, head []byte) (bool, error) {
	keys := s.q.keys
	items := keys.items(lane)
	if !items.Contains(head) {
		return true, guardStaleEmpty.read(tx, items)
	}
	p, err := keys.parseItem(head, groupOf(lane), items)
	if err != nil {
		return false, nil // Check names it
	}
	right := keys.ready(p.index, lane)
	if string(right) == string(hint) {
		return false, nil
	}
	v, err := guardStaleEmpty.get(tx, right).Wait(s.ctx)
	if err != nil {
		return false, fmt.Errorf("read hint: %w", err)
	}
	if v != nil {
		return true, nil
	}
	failed, err := s.q.readAttempt(s.ctx, tx.Snapshot(), p.itemID())
	if err != nil {
		return false, err
	}
	var value []byte
	if failed.count > 0 {
		value = packInt(int64(failed.count))
	}
	tx.Set(right, value)
	return true, nil
}
