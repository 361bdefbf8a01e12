package layer

import (
	"fmt"

	"fdbfifo/kv"
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
			return false, err
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

// overduePage reads those of a group's first items that have waited too long, overdueWidth at most.
func (w *work) overduePage(group string) ([]kv.KV, error) {
	rows, err := w.tx.Snapshot().GetRange(w.q.keys.items(group).Selectors(), kv.RangeOptions{Limit: overdueWidth}).Wait(w.ctx)
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	return w.overdue(rows)
}
