package layer

import (
	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
)

// A message with JoinWhenDue waits in another group, the waiting group, so that it delays no other message.
// The messages of a group that are due at the same millisecond have one waiting group, whose name is that of the group
// and the time. Example: "order-7 (until 2027-01-31T08:00:00.000Z)". A waiting group is a group like any other, with
// the timer of a delayed head. The envelope of a message that waits so says so (Joins).
//
// When such a message is the head and is due, nothing delivers it. The receive or take that finds it by its timer moves
// it to the tail of its group, under a new index and with the same random. Messages that are due earlier go first, so
// they join in the order of the times.

// joinProbe bounds how many earlier groups one call of join looks at in vain. Such a group is paused or unreadable, or
// it is no waiting group, and its name lies between those of waiting groups.
const joinProbe = 20

// join carries out the verdict "joins" on f, a waiting group with a head that is due. It makes messages join the group:
// first those of the waiting groups that were due earlier, then those of f. moveToTail has the keys. It does as much as
// one transaction may, and leaves the rest, with the hint or timer that led here, to the next. So that due messages do
// not keep a receive from ready groups, a transaction moves the messages of at most maxLapsed waiting groups.
//
// behind is the hint of the waiting group, if messages are left in it; else nil. f.left is set if messages of f, or of
// an earlier waiting group, are left to the next transaction.
//
// Footprint: of a waiting group whose messages join, that of moveToTail. Of an earlier one that is passed over (paused,
// held, unreadable) only its first key, locks, holds and head, at snapshot. So it may join later, and so may a message
// that is enqueued there at the same time.
func join(w *txn, f *found) (behind *candidate, err error) {
	group, _ := joinedFrom(f.group())
	first := w.keys.items(group + joinMark)
	earlier := kv.KeyRange{Begin: first.End, End: w.keys.items(f.group()).Begin}
	for probes := 0; probes < joinProbe; {
		key, err := w.firstItem(earlier)
		if err != nil {
			return nil, err
		}
		if key == nil {
			break
		}
		p, err := w.keys.parse(key)
		if w.skipsRow(err) {
			earlier.Begin, probes = kv.KeyAfter(key), probes+1
			continue
		}
		if err != nil {
			return nil, err
		}
		of, _, err := joinFrom(w, candidate{lane: p.group})
		if err != nil && !w.skipsRow(err) || of == joinedLater {
			f.left = true
			return nil, err
		}
		if of == joinedNone {
			earlier.Begin, probes = w.keys.items(p.group).End, probes+1
		}
	}
	of, behind, err := joinFrom(w, f.candidate)
	if f.left = of == joinedLater; err != nil || of != joinedNone {
		return behind, err
	}
	own, err := lookAt(w, f.candidate, 1)
	if err != nil || own.verdict != verdictEmpty {
		return nil, err
	}
	return w.leadOn(f, false) // another look of this transaction has moved the messages since f was read
}

// joined says how joinFrom has ended.
type joined int

const (
	joinedNone  joined = iota // no message of the group can join now: nothing is written, and there is no conflict
	joinedSome                // the first messages are at the tail of their group
	joinedLater               // left to the next transaction
)

// joinFrom moves the first messages of the waiting group to which c leads to the tail of the group that they join, if
// they are due. It reads the locks and the first items of the waiting group, at snapshot; moveToTail writes. behind is
// the hint of the next message of the waiting group; nil = there is none. If the error is of a row that cannot be read,
// nothing is written.
func joinFrom(w *txn, c candidate) (of joined, behind *candidate, err error) {
	if w.tired() || w.spent() || w.enough() {
		w.chores.postponed = true
		return joinedLater, nil, nil
	}
	f, err := lookAt(w, c, 1) // first the head alone, which tells whether the transaction has room for it
	if err != nil || f.verdict != verdictJoins {
		return joinedNone, nil, err
	}
	head := f.rows.at(0)
	if size := max(len(head.body), int(head.envelope.Size)); w.chores.done > 0 && w.used()+2*size > w.q.txLimit() {
		w.chores.postponed = true
		return joinedLater, nil, nil
	}
	if f, err = lookAt(w, c, overdueWidth); err != nil {
		return joinedNone, nil, err
	}
	if behind, err = moveToTail(w, f); err != nil {
		return joinedNone, nil, err
	}
	return joinedSome, behind, nil
}

// lookAt reads, at snapshot, the locks and the hold that may keep the lane of c, and the first items of the lane. The
// parameter most bounds the number of items. lookAt returns them with the verdict. assess has the other reads.
func lookAt(w *txn, c candidate, most int) (*found, error) {
	f, err := w.await(c, w.readLaneLock(w.read, c.lane, locksAtOnce), w.readItems(w.read, c.lane, most))
	if err != nil {
		return nil, err
	}
	return f, w.assess(f)
}

// moveToTail moves the first messages of the waiting group f to the tail of the group that they join: it removes the
// items (txn.remove), and enqueues the messages under new indexes, with the same randoms. It moves those that are due,
// up to overdueBytes. It clears the waiting group's holding, if one has ended, and its hint and timers, and points the
// dedup entries of the messages to the new items. behind is the hint of the next message of the waiting group; nil =
// there is none. If the first message cannot be read, nothing is written.
//
// Footprint: read conflicts on the lock of the waiting group and on the holds up to its last moved item, a write
// conflict on the lock, and read conflicts on the dedup entries. If no message is left in the waiting group, also a
// read conflict on the range of its items (leadOn). The rest is the footprint of an enqueue.
func moveToTail(w *txn, f *found) (behind *candidate, err error) {
	group, _ := joinedFrom(f.group())
	config, err := w.config()
	if err != nil {
		return nil, err
	}
	e, size := &enqueuing{redriven: true}, 0
	for i := range f.rows.len() {
		row := f.rows.at(i)
		if row.err != nil || !row.envelope.Joins || row.dueMS > w.nowMS {
			break // assess has seen that the first is none of these
		}
		n := max(len(row.body), int(row.envelope.Size))
		if i > 0 && size+n > overdueBytes {
			break
		}
		item, err := w.assemble(f.rows.id(i), row.envelope, row.body, config.retro())
		if i > 0 && isCorrupt(err) {
			break
		}
		if err != nil {
			return nil, err
		}
		m := item.message()
		m.Group = group
		e.msgs, e.randoms, size = append(e.msgs, m), append(e.randoms, row.Random), size+n
	}
	old := f.rows.first(len(e.msgs))
	out, err := old.delivered()
	if err != nil {
		return nil, err
	}
	if err := f.fenceOver(w, guard.OverdueLock); err != nil {
		return nil, err
	}
	if err := w.fenceHolds(guard.OverdueHold, old.id(old.len()-1)); err != nil {
		return nil, err
	}
	w.chores.done, w.chores.lapsed, w.did.wrote = w.chores.done+1, w.chores.lapsed+1, true
	w.chores.agedItems, w.chores.agedBytes = w.chores.agedItems+len(out), w.chores.agedBytes+size
	free, err := vacate(w, f.record, old, out)
	if err != nil {
		return nil, err
	}
	clearTimers(w, old.timing(old.at(0).dueMS), old.lane)
	w.remove(old.group, out, out, false)
	if err := w.enqueue(e); err != nil {
		return nil, err
	}
	for i := range e.msgs {
		if err := w.renamed(e.msgs[i].DedupID, old.id(i), e.sent[i].ID); err != nil {
			return nil, err
		}
	}
	return w.leadOn(f, free)
}
