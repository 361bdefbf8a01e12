package layer

import (
	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
)

// A message with JoinWhenDue waits in another group, the waiting group, so that it delays no other message.
// The messages of a group that are due at the same millisecond have one waiting group, whose name is that of the group
// and the time. Example: "order-7 (until 2027-01-31T08:00:00.000Z)". A waiting group is a group like any other, with
// the timer of a delayed head. The envelope of a message that waits so has a sign.
//
// When such a message is the head and is due, nothing delivers it. The receive or take that finds it by its timer moves
// it to the tail of its group, under a new index and with the same random. Messages that are due earlier go first, so
// they join in the order of the times.

// joinProbe bounds how many earlier groups a transaction looks at in vain. An operator has paused them, they cannot be
// read, or they are other groups whose names lie between those of waiting groups.
const joinProbe = 20

// join makes messages join the group of the waiting group f: first those of the waiting groups that were due earlier,
// then those of f. It does as much as one transaction may, and leaves the rest, with what led here, to the next. So
// that due messages do not keep a receive from ready groups, a transaction moves the messages of at most maxLapsed
// waiting groups.
//
// Footprint: reads at snapshot. A message that comes to an earlier waiting group at the same time was due before its
// enqueue has ended.
func join(w *txn, f *found) (behind *candidate, err error) {
	group, _, _ := joinedFrom(f.group())
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
		if w.passes(err) {
			earlier.Begin, probes = kv.KeyAfter(key), probes+1
			continue
		}
		if err != nil {
			return nil, err
		}
		of, _, err := joinFrom(w, candidate{lane: p.group})
		if err != nil && !w.passes(err) || of == joinedLater {
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

// joined is what joinFrom has done with a group.
type joined int

const (
	joinedNone  joined = iota // no message of the group can join now
	joinedSome                // the first messages are at the tail of their group
	joinedLater               // left to the next transaction
)

// joinFrom moves the first messages of the group to which c leads to the tail of their group, if they wait to join it
// and are due. behind is the hint of the message that is the first then. If the error is of a row that cannot be read,
// nothing is written.
func joinFrom(w *txn, c candidate) (of joined, behind *candidate, err error) {
	if w.tired() || w.spent() || w.enough() {
		w.chores.postponed = true
		return joinedLater, nil, nil
	}
	f, err := lookAt(w, c, 1)
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

// lookAt reads a group, with up to most of its items, and sets the verdict.
func lookAt(w *txn, c candidate, most int) (*found, error) {
	f, err := w.await(c, w.readLaneLock(w.read, c.lane, locksAtOnce), w.readItems(w.read, c.lane, most))
	if err != nil {
		return nil, err
	}
	return f, w.assess(f)
}

// moveToTail moves the first messages of a waiting group to the tail of their group. behind is the hint of the message
// that is the first then. If the first message cannot be read, nothing is written.
//
// Footprint: a read conflict on the lock of the waiting group, and a write conflict on it; else that of an enqueue.
func moveToTail(w *txn, f *found) (behind *candidate, err error) {
	group, _, _ := joinedFrom(f.group())
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
