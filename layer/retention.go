package layer

import (
	"errors"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// OnExpiry is what becomes of an item that has waited longer than the queue's Retention.
type OnExpiry int

// The choices.
const (
	// DropExpired removes it for good.
	DropExpired OnExpiry = iota
	// ParkExpired takes it aside, to the dead letters.
	ParkExpired
)

var onExpiryNames = []string{"drop", "park"}

func (o OnExpiry) String() string { return nameOf(o, onExpiryNames) }

// The limits of Retention, if it is not 0.
const (
	MinRetention = time.Second
	MaxRetention = 10 * 365 * 24 * time.Hour
)

// The retention is carried out by whoever meets an item at the head of its group that has waited too long: a claimer, a
// taker, or a sweep, which goes from head to head. Items behind a head that is not due stay until it is their turn. What
// is in hand is never touched: a claim whose lease lasts keeps its whole group from being looked at.

const (
	// overdueWidth bounds the items that one look reads: with the largest values that is 5 MB.
	overdueWidth = 50
	// overdueItems and overdueBytes bound what a transaction settles on its way to something to deliver, and a step of a
	// sweep: parked items are written again.
	overdueItems = 200
	overdueBytes = 1 << 20
)

func checkRetention(d time.Duration) error {
	if d != 0 && d < MinRetention {
		return &LimitError{
			What: "retention", Unit: "ms", Got: d.Milliseconds(), Min: MinRetention.Milliseconds(), Max: MaxRetention.Milliseconds(),
		}
	}
	return nil
}

// isOverdue reports whether an item has waited too long.
func (w *work) isOverdue(config *Config, e *envelope) bool {
	return config.Retention > 0 && w.nowMS-e.waitsSince() > config.Retention.Milliseconds()
}

// waitsSince is from when on the item counts as waiting: not while it is kept back.
func (e *envelope) waitsSince() int64 { return max(e.enqueuedMS, e.dueMS) }

// overdue returns those of a group's first rows, from the head on, that have waited too long; up to about overdueBytes.
func (w *work) overdue(rows []kv.KV) ([]kv.KV, error) {
	config, err := w.config()
	if err != nil || config.Retention == 0 {
		return nil, err
	}
	size := 0
	for i, row := range rows {
		e, _, err := openEnvelope(row.Value)
		if err != nil || !w.isOverdue(&config, &e) {
			return rows[:i], nil // what cannot be read is met by whoever would deliver it
		}
		if size += len(row.Value); i > 0 && size > overdueBytes {
			return rows[:i], nil
		}
	}
	return rows, nil
}

// spent reports whether the transaction has settled as much as it may.
func (w *work) spent() bool {
	return (w.agedItems >= overdueItems || w.agedBytes >= overdueBytes) && !lacks(guardSpent)
}

// ageOut drops or parks a group's first items. l is its lock, which the caller has read with a conflict: nobody's claim
// whose lease lasts. It ends, as a takeover would end it, but a mark stays. free reports whether the group is then free,
// and without a hint.
func (w *work) ageOut(group string, l *lock, rows []kv.KV) (free bool, err error) {
	config, err := w.config()
	if err != nil {
		return false, err
	}
	out := make([]delivered, len(rows))
	for i, row := range rows {
		p, err := w.q.keys.parse(row.Key)
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		e, _, err := openEnvelope(row.Value)
		if err != nil {
			return false, corrupt(row.Key, err)
		}
		out[i] = delivered{index: p.index, random: p.id, parts: e.parts}
		w.agedBytes += len(row.Value)
	}
	w.agedItems += len(rows)
	if err := w.excludeHolders(guardAgeExclude, group); err != nil {
		return false, err
	}
	if free, err = w.endBefore(group, l, out); err != nil {
		return false, err
	}
	w.tx.Clear(w.q.keys.ready(out[0].index, group))
	if config.OnExpiry == DropExpired {
		w.remove(group, out, out, false)
		w.count(countAgedOut, len(out))
		return free, nil
	}
	records, err := w.q.readAttempts(w.ctx, w.tx.Snapshot(), out[0].id(group), out[len(out)-1].id(group))
	if err != nil {
		return false, err
	}
	reason := "waited longer than " + durationText(config.Retention)
	for i, row := range rows {
		id := out[i].id(group)
		w.takeAside(&failure{id: id, record: records[id], reason: reason}, row.Value)
	}
	return free, nil
}

// endBefore ends a lock before the items out go.
func (w *work) endBefore(group string, l *lock, out []delivered) (free bool, err error) {
	switch {
	case l == nil:
		return true, nil
	case l.isMark():
		return false, nil
	case l.kind == kindClaim && len(l.outstanding) > 0:
		spared := l.outstanding[0].id(group)
		if place(out, spared, group) < 0 {
			spared = ID{}
		}
		return w.lapse(group, l, spared)
	}
	return w.unlock(group, l), nil
}

// settleOverdue settles the head that was met, and those behind it, before it looks at the group again.
func (c *claimer) settleOverdue(r *reception, l look, lockKey []byte, held *lock, limit int) error {
	if c.spent() {
		c.left, r.more = true, true
		return nil
	}
	rows, err := c.overduePage(l.group)
	if err != nil {
		return err
	}
	if err := guardOverdueLock.read(c.tx, kv.SingleKey(lockKey)); err != nil {
		return err
	}
	free, err := c.ageOut(l.group, held, rows)
	if err != nil {
		return err
	}
	c.clear(l.key)
	c.wrote = true
	if !free {
		return nil
	}
	behind, found, err := c.freed(l.group)
	if err != nil || !found {
		return err
	}
	return c.decide(r, c.read(behind, limit), limit)
}

// overduePage reads those of a group's first items that have waited too long, overdueWidth at most.
func (w *work) overduePage(group string) ([]kv.KV, error) {
	rows, err := w.tx.Snapshot().GetRange(w.q.keys.items(group).Selectors(), kv.RangeOptions{Limit: overdueWidth}).Wait(w.ctx)
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	return w.overdue(rows)
}

// takeOverdue is settleOverdue for a taker, of the overdue rows among the max and one that it has read. If all of those are
// overdue there may be more, and a small take would go through them in small steps.
func (w *work) takeOverdue(c candidate, l *lock, rows []kv.KV, max int) ([]Item, error) {
	if w.spent() {
		return nil, nil
	}
	if len(rows) > max && len(rows) < overdueWidth {
		var err error
		if rows, err = w.overduePage(c.group); err != nil {
			return nil, err
		}
	}
	free, err := w.ageOut(c.group, l, rows)
	if err != nil {
		return nil, err
	}
	return w.takeRest(c, free, max)
}

// overdue goes from head to head and settles those that have waited too long, with what is overdue behind them.
func (s *sweeper) overdue() error {
	config, err := s.configuration()
	if err != nil || config.Retention == 0 {
		return err
	}
	section := s.q.keys.section(nameItem)
	for next := section.Begin; next != nil; {
		begun := time.Now()
		step := &overdueStep{s: s, rest: kv.KeyRange{Begin: next, End: section.End}}
		if err := step.run(); err != nil {
			return err
		}
		took := time.Since(begun)
		next = step.next
		s.report.Keys += int64(step.keys)
		s.report.AgedOut += int64(step.aged)
		if s.o.Progress != nil && step.keys > 0 {
			s.o.Progress(s.report)
		}
		if next != nil {
			s.q.restAfter(s.ctx, took)
		}
	}
	return nil
}

// overdueStep is one transaction of the sweep of what is overdue.
//
// Footprint, per group with an overdue head: a read and a write conflict on the lock; if nobody holds the group, one on
// the whole group if that is empty now.
type overdueStep struct {
	s    *sweeper
	rest kv.KeyRange // begins with the first item of a group
	next []byte      // where the next step begins; nil = done
	keys int
	aged int
}

func (t *overdueStep) run() error {
	q, ctx := t.s.q, t.s.ctx
	_, err := kv.Run(ctx, q.db, q.batchOptions(), func(tx kv.Tx, a kv.Attempt) error {
		t.next, t.keys, t.aged = nil, 0, 0
		width := stepWidth(overdueWidth, a)
		w := q.work(ctx, tx)
		rows, err := tx.Snapshot().GetRange(t.rest.Selectors(), kv.RangeOptions{Limit: width}).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read items: %w", err)
		}
		t.keys = len(rows)
		for len(rows) > 0 {
			p, err := q.keys.parse(rows[0].Key)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			items := q.keys.items(p.group)
			n := 1
			for n < len(rows) && items.Contains(rows[n].Key) {
				n++
			}
			last := n == len(rows) && t.keys == width // there may be more of this group
			again, err := t.group(w, p.group, rows[:n], last)
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
	})
	return err
}

// group settles what is overdue of a group's first items. again says that there is, or if it has others, last, may be
// more of it.
func (t *overdueStep) group(w *work, group string, rows []kv.KV, last bool) (again bool, err error) {
	old, err := w.overdue(rows)
	if err != nil || len(old) == 0 {
		return false, err
	}
	l, err := w.q.readLock(w.ctx, guardAgeLock.reads(w.tx), group)
	if errors.Is(err, ErrCorrupt) {
		return false, nil // Check names it
	}
	if err != nil {
		return false, err
	}
	if l != nil && !l.isMark() && l.kind != kindDelay && l.endMS > w.nowMS {
		return false, nil // in hand, or about to be
	}
	free, err := w.ageOut(group, l, old)
	if err != nil {
		return false, err
	}
	t.aged += len(old)
	if free {
		if err := w.free(group); err != nil {
			return false, err
		}
	}
	if len(old) == len(rows) {
		return last, nil
	}
	rest, err := w.overdue(rows[len(old):])
	return len(rest) > 0, err
}
