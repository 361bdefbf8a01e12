package layer

import (
	"bytes"
	"fmt"

	"fdbfifo/kv"
)

// changes clears the rows of changes which every subscription has seen, and those older than Config.Changes. For the
// latter it notes how far it came, so that a subscription which was behind learns that it has missed changes.
//
// Footprint: no conflict but with a drop. The rows and the cursors are read at snapshot: a cursor only moves on, and a
// subscription which begins with the oldest change begins with the oldest there is.
func (s *sweeper) changes() error {
	config, err := s.configuration()
	if err != nil {
		return err
	}
	oldest := s.q.nowMS() - config.Changes.Milliseconds()
	return s.pagesUntil(s.q.keys.section(nameChange), func(tx kv.Tx, rows []kv.KV, _ bool) (cleared int64, err error) {
		if len(rows) == 0 {
			return 0, nil
		}
		follow := s.q.follow(tx)
		seen, err := s.slowest(tx.Snapshot())
		if err != nil {
			return 0, err
		}
		var unseen []byte
		for _, row := range rows {
			ms, _, err := unpackChanges(row.Key, row.Value)
			if err != nil {
				continue // Check names the row
			}
			at := s.q.keys.relative(row.Key)
			passed := bytes.Compare(at, seen) < 0 // never if there is no subscription
			if !passed && config.Changes > 0 && ms > oldest {
				break
			}
			tx.Clear(row.Key)
			cleared++
			if !passed {
				unseen = at
			}
		}
		if unseen == nil || seen == nil {
			return cleared, nil
		}
		if _, err := follow.wait(s.ctx); err != nil {
			return 0, err
		}
		// Of two sweeps at the same time the one that has come further is right.
		tx.Atomic(kv.ByteMax, s.q.keys.meta(metaMissed), packSweptTo(unseen))
		return cleared, follow.guardDrop(s.ctx, tx)
	}, &s.report.Changes, func(rows int, cleared int64) bool { return cleared < int64(rows) })
}

// slowest returns the place of the subscription which is furthest behind; nil if there is no subscription.
func (s *sweeper) slowest(tx kv.ReadTx) (from []byte, err error) {
	for row, err := range walk(s.ctx, tx, s.q.keys.section(nameCursor), sweepPage) {
		if err != nil {
			return nil, fmt.Errorf("read cursors: %w", err)
		}
		p, err := unpackProgress(row.Key, row.Value)
		if err != nil {
			return nil, err
		}
		if from == nil || bytes.Compare(p.from, from) < 0 {
			from = p.from
		}
	}
	return from, nil
}
