package layer

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// beatPage is how many claims of a handle one transaction ends, beside those whose groups are asked for.
const beatPage = 100

// meetBeat is called when a handle's heartbeat holds the lane. meetBeat returns the heartbeat's deadline (ms), 0 if
// there is no heartbeat any more. After the deadline, the handle is added to w.dueBeats, for the caller to end.
func (w *txn) meetBeat(lane string, r *record) (dueMS int64, err error) {
	h := r.holding()
	if !h.byBeat() {
		return 0, nil
	}
	b, found, err := w.readBeat(h.beat)
	if found = found || w.passes(err); !found {
		return 0, err
	}
	if b.ended || b.dueMS <= w.nowMS {
		w.dueBeats = append(w.dueBeats, dueBeat{handle: h.beat, held: [][]byte{w.keys.held(h.beat, lane)}})
	}
	return b.dueMS, nil
}

// endOwner ends a page of the claims of the handle by whose heartbeat a group is held, if the beat is due, and reports
// whether any claim was ended: then the group is worth another look.
func (w *txn) endOwner(f *found) (ended bool, err error) {
	if !f.record.holding().byBeat() {
		return false, nil
	}
	due := w.dueBeats
	w.dueBeats = nil
	if _, err := w.meetBeat(f.lane, f.record); err != nil {
		return false, err
	}
	met := w.dueBeats
	w.dueBeats = due
	return w.endBeats(met)
}

// endBeats ends a page of the claims of each handle whose beat this transaction has met when it was due, and reports
// whether any claim was ended.
func (w *txn) endBeats(due []dueBeat) (ended bool, err error) {
	for _, d := range together(due) {
		n, err := w.endBeat(d)
		if err != nil {
			return false, err
		}
		ended = ended || n > 0
	}
	if ended {
		// A handle that waits for one of the groups, or by another template, has set its clock by no timer of theirs.
		return true, w.wakeAll()
	}
	return false, nil
}

// together returns each handle once, with all that has led there.
func together(due []dueBeat) (all []dueBeat) {
	for _, d := range due {
		i := slices.IndexFunc(all, func(other dueBeat) bool { return other.handle == d.handle })
		if i < 0 {
			all = append(all, dueBeat{handle: d.handle})
			i = len(all) - 1
		}
		if d.key != nil {
			all[i].key = d.key
		}
		all[i].held = append(all[i].held, d.held...)
	}
	return all
}

// endBeat ends a page of the claims of a handle whose beat is due, and the claims that led here. Each gets the time at
// which the beat was due as the end of a lease of its own, and a timer there. With the last page the beat is gone, too.
//
// Footprint: a read conflict on the beat, which a handle that lives moves; a write conflict on the right to join the
// beat, so no claim joins a beat which is being ended; read conflicts on the locks, and, if a single page is all, on
// the list of the handle's claims. To repeat it does no harm.
func (w *txn) endBeat(d dueBeat) (ended int, err error) {
	keys, key := w.keys, w.keys.beat(d.handle)
	v, err := guardBeatEnd.get(w.tx, key).Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read beat: %w", err)
	}
	var b beat
	if v != nil {
		if b, err = unpackBeat(key, v); w.passes(err) {
			// Nobody can tell how long the handle lives. It is ended now, which costs what a lease cut short costs.
			b.dueMS = w.nowMS
		}
	}
	timer := keys.beatTimer(b.dueMS, d.handle)
	if d.key != nil && (v == nil || !bytes.Equal(timer, d.key)) {
		w.tx.Clear(d.key) // a timer of a beat that has moved on, or is gone
		if v != nil {
			w.tx.Set(timer, packTimer(kindBeat, 0))
		}
	}
	if v == nil || !b.ended && b.dueMS > w.nowMS {
		return 0, nil
	}
	if err := guardBeatJoin.write(w.tx, keys.beatJoin(d.handle)); err != nil {
		return 0, err
	}
	rows, err := w.read.GetRange(
		keys.heldBy(d.handle).Selectors(), kv.RangeOptions{Limit: beatPage}).Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read claims by heartbeat: %w", err)
	}
	ending := slices.Clip(rows)
	for _, held := range d.held { // who asks for the group need not go through all pages
		if !slices.ContainsFunc(ending, func(row kv.KV) bool { return bytes.Equal(row.Key, held) }) {
			ending = append(ending, kv.KV{Key: held})
		}
	}
	ended, cut, err := w.endByBeat(d.handle, b.dueMS, ending)
	if err != nil {
		return 0, err
	}
	last := len(rows) < beatPage && !cut
	if last && !b.ended {
		// A claim which has joined the beat since these reads is in no page: only who reads the mark sees all.
		if err := guardBeatLast.read(w.tx, keys.heldBy(d.handle)); err != nil {
			return 0, err
		}
	}
	switch {
	case last:
		w.tx.Clear(key)
		w.tx.Clear(timer)
	case !b.ended:
		b.ended = true
		w.tx.Set(key, b.pack())
	}
	return ended, nil
}

// endByBeat gives the claims in rows, by the heartbeat of a handle, a lease that has ended at dueMS. cut: it has left
// some to the next transaction.
func (w *txn) endByBeat(handle uuid.UUID, dueMS int64, rows []kv.KV) (ended int, cut bool, err error) {
	locks := make([]kv.Future[[]byte], len(rows))
	groups := make([]string, len(rows))
	for i, row := range rows {
		p, err := w.keys.parse(row.Key)
		if w.passes(err) {
			continue
		}
		groups[i] = p.lane
		locks[i] = guardBeatLock.get(w.tx, w.keys.lock(p.lane))
	}
	for i, group := range groups {
		if locks[i] == nil {
			w.tx.Clear(rows[i].Key)
			continue
		}
		if i > 0 && w.crowded() {
			return ended, true, nil
		}
		v, err := locks[i].Wait(w.ctx)
		if err != nil {
			return 0, false, fmt.Errorf("read lock: %w", err)
		}
		var r *record
		if v != nil {
			r, err = unpackRecord(w.keys.lock(group), v)
		}
		c := r.claim()
		if err != nil || c == nil || c.beat != handle {
			w.tx.Clear(rows[i].Key) // unreadable: an operator ends it, as any lock that cannot be read
			continue
		}
		w.put(group, r, r.until(dueMS), c.items[0].index)
		ended++
	}
	return ended, false, nil
}
