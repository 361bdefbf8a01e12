package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// letters discards the dead letters which have been kept for as long as Config.DeadRetention says. The letters of a
// group lie together, whatever their age, so a sweep reads them all. A sweep of many (Every) therefore goes on where
// the last ended, and ends after sweepLetters letters.
//
// Footprint: a read conflict on each discarded letter, because a redrive may take the letter.
func (s *sweeper) letters() error {
	config, err := s.configuration()
	if err != nil || config.DeadRetention == 0 {
		return err
	}
	place := sweepPlace{s: s, section: s.q.keys.section(nameDead), key: s.q.keys.meta(metaSweptDead)}
	if err := place.resume(); err != nil {
		return err
	}
	before := s.q.nowMS() - config.DeadRetention.Milliseconds()
	looked := 0
	return s.pagesUntil(place.section, func(tx kv.Tx, rows []kv.KV, more bool) (int64, error) {
		w := s.q.txn(s.ctx, tx)
		var old []deadRow
		for _, row := range rows {
			d, err := unpackDead(row.Key, row.Value)
			if err != nil || d.deadMS > before {
				continue // Check names what cannot be read
			}
			p, err := s.q.keys.parse(row.Key)
			if err != nil {
				return 0, err
			}
			old = append(old, deadRow{key: row.Key, letter: DeadLetter{ID: p.itemID()}, dead: d})
		}
		if err := w.discard(old); err != nil {
			return 0, err
		}
		place.note(tx, rows, more)
		return int64(len(old)), w.finish()
	}, &s.report.Dead, func(rows int, cleared int64) bool {
		looked += rows
		return s.o.Every > 0 && looked >= sweepLetters && cleared < int64(rows)/4
	})
}

// sweepPlace is where sweeps of a section go on, one of many behind the other.
type sweepPlace struct {
	s       *sweeper
	section kv.KeyRange
	key     []byte // of the note
	noted   bool
}

// resume moves the begin of the section behind the row where the last sweep ended.
func (p *sweepPlace) resume() error {
	if p.s.o.Every == 0 {
		return nil
	}
	err := p.s.q.view(p.s.ctx, func(tx kv.ReadTx) error {
		v, err := tx.Get(p.key).Wait(p.s.ctx)
		if err != nil || v == nil {
			return err
		}
		if last, err := unpackSweptTo(p.key, v); err == nil && p.section.Contains(last) {
			p.section.Begin, p.noted = kv.KeyAfter(last), true
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read where to go on: %w", err)
	}
	return nil
}

// note writes where the next sweep goes on: behind rows; from the first row on if there are no more.
func (p *sweepPlace) note(tx kv.Tx, rows []kv.KV, more bool) {
	switch {
	case more:
		tx.Set(p.key, packSweptTo(rows[len(rows)-1].Key))
		p.noted = true
	case p.noted:
		tx.Clear(p.key)
	}
}
