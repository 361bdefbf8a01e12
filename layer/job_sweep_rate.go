package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// paces clears the pairs of groups with a full token bucket, and looks at the groups which wait by a former rate.
func (s *sweeper) paces() error {
	config, err := s.configuration()
	if err != nil {
		return err
	}
	return s.pagesUntil(s.q.keys.section(namePace), func(tx kv.Tx, rows []kv.KV, _ bool) (int64, error) {
		w := s.q.txn(s.ctx, tx)
		groups := make([]string, len(rows))
		heads := make([]kv.Future[[]byte], len(rows))
		for i, row := range rows {
			p, err := s.q.keys.parse(row.Key)
			if err != nil {
				return 0, err
			}
			groups[i], heads[i] = p.group, w.head(p.group)
		}
		cleared := int64(0)
		for i, row := range rows {
			used, err := unpackPace(row.Key, row.Value)
			if err != nil {
				continue // Check names it
			}
			head, err := heads[i].Wait(s.ctx)
			if err != nil {
				return 0, fmt.Errorf("read head: %w", err)
			}
			whole := config.MaxRate.whole(used, w.nowMS)
			items := s.q.keys.items(groups[i])
			empty := !items.Contains(head)
			if !empty {
				if err := w.repace(groups[i], config.MaxRate, used); err != nil {
					return 0, err
				}
			}
			if !whole {
				continue
			}
			if empty {
				// A message enqueued meanwhile may wait by the rate of a newer configuration than ours. Then the pair
				// must stay, because the next change of the rate finds the group by its pair.
				if err := guardPaceEmpty.read(tx, items); err != nil {
					return 0, err
				}
			}
			if err := guardPaceSweep.read(tx, kv.SingleKey(row.Key)); err != nil {
				return 0, err
			}
			tx.Clear(row.Key)
			cleared++
		}
		return cleared, w.finish()
	}, &s.report.Paces, nil)
}

// repace makes a hint or a timer lead to a group with items when its rate lets the group go on.
//
// Footprint: a write conflict on the lock, so that nobody leaves the group to an outdated rate, not at the end of a
// claim or a delay either. If nothing has to be written, because somebody holds the group or the right timer is there
// already, a read conflict on the lock, or on the timer. If the group has to wait, a read conflict on the gap up to the
// head. All else is read at snapshot, because a hint or timer too many does no harm.
func (w *txn) repace(group string, rate Rate, used pace) error {
	found := w.tx.Snapshot().GetRange(w.q.keys.items(group).Selectors(), kv.RangeOptions{Limit: 1})
	pairs, err := found.Wait(w.ctx)
	if err != nil || len(pairs) == 0 {
		return err
	}
	items, err := w.rows(group, pairs)
	if err != nil {
		return err
	}
	head := items.at(0)
	if head.err != nil {
		return nil // Check names it
	}
	untilMS := head.dueMS
	if !rate.isNone() {
		untilMS = max(untilMS, rate.allowance(used, w.nowMS).untilMS)
	}
	if err := w.excludeHolders(guardPaceExclude, group); err != nil {
		return err
	}
	if untilMS > w.nowMS {
		for _, timer := range w.q.keys.timersAt(items.timing(untilMS), group) {
			v, err := guardPaceExclude.get(w.tx, timer).Wait(w.ctx)
			if err != nil || v != nil {
				return err // the timer is there already
			}
		}
	}
	r, err := w.q.readLock(w.ctx, w.tx.Snapshot(), group)
	if err != nil {
		return err
	}
	if r != nil {
		return guardPaceExclude.read(w.tx, kv.SingleKey(w.q.keys.lock(group)))
	}
	if untilMS > w.nowMS {
		return w.awaitHead(group, nil, head.id(group), items.timing(untilMS))
	}
	return w.free(group)
}
