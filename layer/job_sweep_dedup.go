package layer

import (
	"bytes"
	"context"
	"fmt"

	"fdbfifo/kv"
)

// dedup clears the entries whose time is over, or whose item is gone if the item decides. A sweep of many (Every) goes
// on where the last ended. After sweepRows rows it ends at the first page of which it clears less than a quarter.
//
// Footprint: a read conflict on each cleared entry, because an enqueue may write the entry anew.
func (s *sweeper) dedup() error {
	place := sweepPlace{s: s, section: s.q.keys.section(nameDedup), key: s.q.keys.meta(metaSweptTo)}
	if err := place.resume(); err != nil {
		return err
	}
	looked := 0
	return s.pagesUntil(place.section, func(tx kv.Tx, rows []kv.KV, more bool) (int64, error) {
		follow := s.q.follow(tx)
		over, err := s.q.outlived(s.ctx, tx.Snapshot(), rows)
		if err != nil {
			return 0, err
		}
		if _, err := follow.wait(s.ctx); err != nil {
			return 0, err
		}
		if err := follow.guardDrop(s.ctx, tx); err != nil {
			return 0, err
		}
		for _, k := range over {
			if err := guardDedupSweep.read(tx, kv.SingleKey(k)); err != nil {
				return 0, err
			}
			tx.Clear(k)
		}
		place.note(tx, rows, more)
		return int64(len(over)), nil
	}, &s.report.Dedup, func(rows int, cleared int64) bool {
		looked += rows
		return s.o.Every > 0 && looked >= sweepRows && cleared < int64(rows)/4
	})
}

// outlived returns the keys of the entries which make nothing a duplicate any more. An unreadable entry stays: Check
// names the entry.
func (q *Queue) outlived(ctx context.Context, tx kv.ReadTx, rows []kv.KV) ([][]byte, error) {
	type place struct{ entry, item, dead []byte }
	var over [][]byte
	var pending []place
	var found [][2]kv.Future[[]byte]
	now := q.nowMS()
	if !lacks(guardDedupSlack) {
		now -= dedupSlack.Milliseconds()
	}
	for _, row := range rows {
		r, err := unpackRemembered(row.Key, row.Value)
		switch {
		case err != nil:
		case r.untilMS == 0:
			p := place{row.Key, q.keys.item(r.id), q.keys.dead(r.id)}
			pending = append(pending, p)
			found = append(found, [2]kv.Future[[]byte]{
				tx.GetKey(kv.FirstGreaterOrEqual(p.item)), tx.GetKey(kv.FirstGreaterOrEqual(p.dead)),
			})
		case r.untilMS <= now:
			over = append(over, row.Key)
		}
	}
	for i, p := range pending {
		item, err := found[i][0].Wait(ctx)
		if err != nil {
			return nil, fmt.Errorf("look for item: %w", err)
		}
		dead, err := found[i][1].Wait(ctx)
		if err != nil {
			return nil, fmt.Errorf("look for dead letter: %w", err)
		}
		if !bytes.Equal(item, p.item) && !bytes.Equal(dead, p.dead) {
			over = append(over, p.entry)
		}
	}
	return over, nil
}
