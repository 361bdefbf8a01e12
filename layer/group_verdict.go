package layer

import (
	"fmt"
	"math"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// This file decides how a receive or a take treats a lane, and carries out most of these decisions. A receive or a take
// finds lanes by three kinds of keys: a hint leads to a lane that is ready, a timer to a lane whose time has come, and
// a grant to a lane that is kept for a handle that waits. Such a key may be out of date. So the transaction also reads
// the lane's lock and its first items. Then it delivers items, or clears away what keeps it from that: an old key, an
// expired claim, items past retention. subspace.go has the table of all keys.

// verdict says how a receive or a take must treat a lane that it has looked at. A lane is a whole group or a part of
// one (package lanes). Usually a hint, a timer or a grant has led to the lane.
//
// assess sets the verdict and writes nothing. dispose and join carry the verdict out.
type verdict int

const (
	verdictDeliver  verdict = iota // the first items may be delivered now
	verdictStale                   // the lane is held or marked, or the holding whose timer or grant led here is gone
	verdictEmpty                   // the lane has no items: a holding that has ended is cleared
	verdictAged                    // the head has waited longer than the queue's retention
	verdictEnds                    // ending an expired claim dead-letters an item, halts the group, or leaves a mark
	verdictJoins                   // the head is due, and must move to the tail of its own group: see join.go
	verdictEarly                   // the head is not due yet, or the group's rate is used up
	verdictExcluded                // another lane that may share an item with this one is held
	verdictOther                   // such a lane has a holding that has ended, which must be removed first
)

// mayGive reports whether a receive may get an item of a lane with this verdict: at once, or after the receive has
// carried out the verdict.
func mayGive(v verdict) bool {
	switch v {
	case verdictDeliver, verdictAged, verdictEnds, verdictJoins, verdictOther:
		return true
	case verdictStale, verdictEmpty, verdictEarly, verdictExcluded:
	}
	return false
}

// found is a lane under examination: the candidate that led to the lane, the reads, and the verdict.
type found struct {
	candidate             // the hint, timer or grant that led to the lane; key is nil if the caller named the group
	record    *rec.Record // the value of the lane's lock; nil = the lane has no lock
	// others are the records of intersecting lanes: the lanes that may share an item with this lane. A hold of the
	// first item is among them. A hold is the claim or the delay of a single item (store_hold.go).
	others []heldLane
	other  int  // with verdictExcluded and verdictOther: the place in others of the record that decides
	rows   rows // the first items of the lane, up to the first item that has a hold
	behind *ID  // the item at which rows was cut, because the item has a hold; nil = rows was not cut
	// behindOver: items are claimed in turn (group_hold.go), and the time of the hold of behind is over.
	behindOver bool
	pace       kv.Future[[]byte] // the read of the group's pace; nil if the queue has no rate, as far as was known
	// fenced: a take has made the reads, with read conflicts. So the verdict needs no further read conflict.
	fenced bool

	// left: the hint, timer or grant that led here stays, and the transaction has no read conflict that proves the
	// verdict. So the transaction must not clear a second hint of the lane.
	left bool

	verdict verdict
	// refused: with verdictDeliver, the transaction gives nothing, because the head is suspect: see refusesLapsed.
	refused bool
	failure *failure  // the judgement on the item tried under an expired claim (judgeLapse); nil = no such claim
	untilMS int64     // with verdictEarly: when the head may be delivered (ms)
	allowed allowance // how many items the group's rate allows now
}

// keptUntil returns when the time ends (ms) that keeps a lane from receives, so that a waiting receive knows when to
// look again; 0 = no time is known. The time is that of the head (verdictEarly), or the end of the holding of the lane
// or of an intersecting lane. For a claim by heartbeat keptUntil reads the beat: see overAt. f may be nil.
func keptUntil(w *txn, f *found) (int64, error) {
	switch {
	case f == nil:
		return 0, nil
	case f.verdict == verdictEarly:
		return f.untilMS, nil
	case f.verdict == verdictExcluded:
		other := f.others[f.other]
		return w.overAt(other.lane, other.record)
	}
	return w.overAt(f.lane, f.record)
}

// assess sets f.verdict, and with it refused, failure, allowed and untilMS. It writes nothing. verdictDeliver is the
// zero value: it stays if nothing keeps the lane from the caller, and then the caller must also look at f.refused. A
// grant to this handle, if it led here, keeps the lane from others only. If the head or an attempt record cannot be
// read, the error wraps ErrCorrupt.
//
// In addition to the reads in f, assess reads the attempt records of the items of an expired claim, and, in a queue
// with MaxRate, the pace of the group if f.pace is nil.
func (w *txn) assess(f *found) error {
	cond := f.record.At(w.nowMS)
	switch {
	case f.accepts(f.record) && f.rows.len() > 0:
	case f.accepts(f.record): // granted, and emptied since
		f.verdict = verdictEmpty
		return nil
	case cond.Keeps(), cond == rec.Unheld && f.timer, f.grant != 0:
		// Held by another, or a timer of a holding that is gone, or a grant that the lock no longer has.
		f.verdict = verdictStale
		return nil
	case f.rows.len() == 0 && f.record.Mark() == nil:
		f.verdict = verdictEmpty
		return nil
	}
	if w.assessOthers(f) {
		return nil
	}
	if aged, err := isAged(w, f); err != nil || aged {
		f.verdict = verdictAged
		return err
	}
	if f.refused = refusesLapsed(w, f.record); f.refused {
		return nil
	}
	if c := f.record.Claim(); c != nil && len(c.Items) > 0 {
		var err error
		if f.failure, err = judgeLapse(w, f.lane, f.record); err != nil {
			return err
		}
	}
	if f.record.Mark() != nil || f.failure.endsItem() || f.failure.haltsGroup() {
		f.verdict = verdictEnds
		return nil
	}
	return w.assessHead(f)
}

// assessHead is the rest of assess, for a lane that no holding, mark or other lane keeps. The times of the head and the
// rate of the group decide. If the head cannot be read, assessHead returns its error.
func (w *txn) assessHead(f *found) (err error) {
	head := f.rows.at(0)
	if head.err != nil {
		return head.err
	}
	if f.allowed, err = w.allow(f.group(), f.pace); err != nil {
		return err
	}
	if f.untilMS = max(head.dueMS, f.allowed.untilMS); f.untilMS > w.nowMS {
		f.verdict = verdictEarly
	} else if head.envelope.Joins { // checked before joinedFrom, which would cost every claim too much
		if _, waits := joinedFrom(f.group()); waits {
			f.verdict = verdictJoins
		}
	}
	return nil
}

// fence adds a read conflict on r, which keeps a verdict true until the commit. It adds none if f.fenced is set. g is
// the guard of the conflict (package guard).
func (f *found) fence(w *txn, g guard.Guard, r kv.KeyRange) error {
	if f.fenced {
		return nil
	}
	return g.Read(w.tx, r)
}

// fenceOver is fence for the lane's own lock and for the locks of all intersecting lanes.
func (f *found) fenceOver(w *txn, g guard.Guard) error {
	if f.fenced {
		return nil
	}
	return w.fenceOver(g, f.lane)
}

// putsOff reports whether the caller must leave a verdict to a later transaction, because this one has carried out
// enough of them. The bounds are tired, enough and spent (tx.go). verdictDeliver is never put off.
func (w *txn) putsOff(f *found) bool {
	switch f.verdict {
	case verdictDeliver:
		return false
	case verdictAged:
		return w.spent() || w.enough()
	case verdictJoins:
		return w.tired() || w.spent() || w.enough()
	case verdictOther:
		return w.tired() || w.enough()
	case verdictExcluded, verdictEnds, verdictEarly:
		return f.record != nil && w.tired() || w.enough()
	case verdictStale, verdictEmpty:
	}
	return w.enough()
}

// dispose carries out every verdict except deliver and joins, so that the next search does not meet the same again.
// carryOutVerdict calls it. In the list, "the lead" is the hint, timer or grant that led to the lane. By verdict,
// dispose
//
//   - stale: clears the lead.
//   - empty: clears the lead, and the lock if there is one.
//   - aged: drops or dead-letters the items past retention, ends the holding, and clears the lead. If no mark is left
//     in the lock, it writes a hint of the next head.
//   - ends: ends the expired claim, and clears the lead (lapse has the keys). The first item of the claim becomes a
//     dead letter, and the next head gets a hint. Or the lock keeps a mark (a pause, or the halt at this item), and
//     there is no hint.
//   - early: ends a holding whose time is over, and sets a timer of the head in place of the lead. A caller that has
//     named the lane has no lead: then nothing happens unless there is a holding.
//   - excluded: turns the hint into a kept hint (disposeExcluded has the exceptions).
//   - other: ends the holding of the intersecting lane, and leaves the lead.
//
// If a verdict clears a key, a lock or items, it counts as one chore (tx.go). A receive does a bounded number of
// chores.
//
// behind is the candidate that the caller may look at next: the hint of the new head. After other it is the same
// candidate. nil = none.
//
// Footprint: a read conflict on what makes the verdict true: the lock, or the emptiness of the group, or the gap up to
// a head not yet due. Otherwise dispose could clear a hint which a release writes again at the same time. A take has
// these conflicts already (f.fenced). The guards of a lock have several names, so that a test can leave out each
// conflict by itself.
func (w *txn) dispose(f *found) (behind *candidate, err error) {
	key, free := kv.SingleKey(w.keys.lock(f.lane)), false // free: the lane has no lock any more, and needs a hint
	switch f.verdict {
	case verdictDeliver, verdictJoins:
		return nil, nil
	case verdictExcluded:
		return w.disposeExcluded(f)
	case verdictOther:
		return w.endOther(f)
	case verdictStale:
		if f.key != nil {
			w.chores.done++
		}
		if err = f.fence(w, guard.StaleLock, key); err == nil {
			w.clear(f.key)
		}
		return nil, err
	case verdictEmpty:
		if f.key != nil || f.record != nil {
			w.chores.done++
		}
		// An enqueue into the empty group writes a hint, which may have this very key.
		if err = f.fence(w, guard.StaleEmpty, f.rows.of); err == nil && f.record != nil {
			if err = f.fence(w, guard.EmptyLock, key); err == nil {
				w.end(f.lane, f.record, nil)
			}
		}
	case verdictAged:
		free, err = w.disposeAged(f)
	case verdictEnds:
		w.chores.done++
		g := guard.MarkLock
		if f.record.Mark() == nil && f.failure.endsItem() {
			g = guard.VerdictLock
		}
		if err = f.fence(w, g, key); err == nil {
			free, err = w.lapse(f.lane, f.record, f.failure, ID{})
		}
	case verdictEarly:
		return nil, w.disposeEarly(f)
	}
	if err != nil {
		return nil, err
	}
	return w.leadOn(f, free)
}

// leadOn clears the hint, timer or grant that led to a lane. free: the transaction has left the lane without a lock.
// Then leadOn also writes the hint of the lane's head and returns it; nil = free is false, or leave has written no
// hint.
func (w *txn) leadOn(f *found, free bool) (behind *candidate, err error) {
	w.clearLead(&f.candidate, f.record)
	if !free {
		return nil, nil
	}
	c, found, err := w.leave(f.lane, nil, guard.FreeEmpty, true)
	if err != nil || !found {
		return nil, err
	}
	return &c, nil
}

// disposeAged drops or dead-letters the items past retention at the head of a lane, at most a page (overduePage). It
// adds read conflicts on the locks and holds that may have these items. expireItems does the rest, and explains free.
func (w *txn) disposeAged(f *found) (free bool, err error) {
	w.chores.done++
	old, err := w.overduePage(f)
	if err != nil {
		return false, err
	}
	if err := f.fenceOver(w, guard.OverdueLock); err != nil {
		return false, err
	}
	if err := w.fenceHolds(guard.OverdueHold, old.id(old.len()-1)); err != nil {
		return false, err
	}
	w.did.wrote = true
	return w.expireItems(f.record, old)
}

// disposeEarly leaves a lane to a timer at f.untilMS, when the head is due or the rate has an item again. It ends a
// holding whose time is over (lapse), clears the hint, timer or grant that led here, and sets the timer of the head
// (awaitHead). If the stored times of the head are wrong (row.tamed), it also writes the item again, with corrected
// times, and a hint in each other lane of the item (rewriteHead).
func (w *txn) disposeEarly(f *found) error {
	if f.key == nil && f.record == nil {
		return nil // the caller has named the group: its hint or timer stays, and is right
	}
	w.chores.done++
	if err := f.fenceOver(w, guard.EarlyLock); err != nil {
		return err
	}
	if f.record != nil {
		if _, err := w.lapse(f.lane, f.record, f.failure, ID{}); err != nil {
			return err
		}
	}
	w.clearLead(&f.candidate, f.record)
	head := f.rows.at(0)
	if !head.tamed {
		return w.awaitHead(f.lane, nil, f.rows.id(0), f.rows.timing(f.untilMS))
	}
	// The head gets the time at which it is due by this clock, so that the head and its timer agree. The time of its
	// enqueue is by this clock too: if this clock is wrong, the next process sees that, because both are by one clock.
	head.envelope.DueMS = head.dueMS
	if err := w.awaitHead(f.lane, nil, f.rows.id(0), f.rows.timing(f.untilMS)); err != nil {
		return err
	}
	return rewriteHead(w, head, head.envelope, f.lane)
}

// clearLead clears the hint, timer or grant of the candidate c. r is the record of the lane's lock, as read. If r has a
// holding, the caller must end or replace it (put). A key that belongs to this holding is cleared by put: then
// clearLead only notes that a key was cleared.
func (w *txn) clearLead(c *candidate, r *rec.Record) {
	if h := r.Holding(); h != nil {
		if c.grant != 0 && c.accepts(r) || c.timer && string(c.key) == string(w.keys.tenure(c.lane, h)) {
			w.did.cleared = true
			return
		}
	}
	w.clear(c.key)
}

// clearTaken clears the key that led to a lane of which the transaction takes the head (clearLead), and notes that the
// lane is not ready.
//
// No key has led to a lane that the caller has named. Then clearTaken clears the hint of the head, and the timers of
// the head if it was delayed. Otherwise these keys would become more and more in a queue whose receives all name
// groups. A hint under another index (RoundRobin) or in an earlier shard stays until a search meets it.
func clearTaken(w *txn, f *found) {
	w.clearLead(&f.candidate, f.record)
	delete(w.noted.ready, f.lane)
	if f.key != nil {
		return
	}
	head := f.rows.at(0)
	w.tx.Clear(w.keys.ready(head.Index, f.lane))
	if head.dueMS > 0 {
		clearTimers(w, f.rows.timing(head.dueMS), f.lane)
	}
}

// clearTimers clears the timers of a lane that have the time dueMS in the key, in every shard in which they may lie.
// The transaction takes away the delayed head to which they lead, or delays it again.
func clearTimers(w *txn, dueMS int64, lane string) {
	for _, timer := range w.keys.timersAt(dueMS, lane) {
		w.tx.Clear(timer)
	}
}

// run returns the items from the head of f on that one claim or take may deliver together: at most limit, and no more
// than the group's rate allows. assess must have set f.allowed. items are for the caller. out has the same items, as a
// claim's record keeps them.
//
// run stops before an item that is delayed, joins another group, is past retention or cannot be read, and before an
// item with which the claim or its ack would be too large. fits gets the size of the next body in bytes, and run stops
// if fits returns false. If the first item cannot be read, run returns the error. run reads the parts of large bodies,
// and writes nothing.
func (w *txn) run(f *found, limit int, fits func(size int) bool) (items []Item, out []rec.Item, err error) {
	config, err := w.config()
	if err != nil {
		return nil, nil, err
	}
	n, stored, age := min(f.rows.len(), limit, f.allowed.items), 0, expiryIn(&config)
	// Of the items so far: locked counts the bytes in the lock, and written those that an ack adds to its transaction.
	sizes, locked, written := w.keys.sizesIn(f.group(), config.Changes), 0, 0
	items, out = make([]Item, 0, n), make([]rec.Item, 0, n)
	for i := range n {
		row := f.rows.at(i)
		if row.err != nil {
			if len(out) > 0 {
				break // the items before the unreadable item can be delivered
			}
			return nil, nil, row.err
		}
		e := &row.envelope
		if row.dueMS > w.nowMS || e.Joins && i > 0 {
			break // later items wait behind the delayed item
		}
		if len(out) > 0 {
			if old, err := isOld(w, &age, row); err != nil {
				return nil, nil, err
			} else if old {
				break // an item past retention is handled once it is the head
			}
		}
		if stored += len(row.Value); config.Archive > 0 && len(out) > 0 && stored > archiveClaimBytes {
			break // the ack writes all items again
		}
		locked += rec.ItemSize + len(row.Facets)
		written += sizes.finish(len(row.Facets))
		if len(out) > 0 && (locked > maxLockItems || written > maxFinishSize) {
			break // the claim, or its ack, would be too large
		}
		if !fits(max(len(row.body), int(e.Size))) {
			break
		}
		sent := *e
		sent.EnqueuedMS = row.sentMS
		item, err := w.assemble(idOf(row.Item, f.group()), sent, row.body, config.retro())
		if err != nil {
			if len(out) > 0 && isCorrupt(err) {
				break
			}
			return nil, nil, err
		}
		items, out = append(items, item), append(out, row.Item)
	}
	return items, out, nil
}

// await waits for the reads of the lane of c: its lock, the locks of intersecting lanes, the first hold and the first
// items. It returns them as a found that has no verdict yet.
func (w *txn) await(c candidate, lock laneLock, items kv.Future[[]kv.KV]) (*found, error) {
	f, pairs, err := meet(&w.view, c, lock, items)
	if err != nil {
		return nil, err
	}
	if f.rows, err = w.rows(c.lane, pairs); err != nil {
		return nil, err
	}
	return f, f.meetHold(&w.view, lock.hold)
}

// meet waits for the reads of a lane that the caller has started, but not for the hold: its lock, the locks of
// intersecting lanes, and the first items. It returns the items as pairs of key and value. In a queue with facets it
// may read more locks and starts the reads of the items, with the conflicts that the caller chose. The caller must set
// f.rows from the pairs, and then call f.meetHold.
func meet(v *view, c candidate, lock laneLock, items kv.Future[[]kv.KV]) (f *found, pairs []kv.KV, err error) {
	f = &found{candidate: c}
	if f.record, f.others, err = v.waitLaneLock(c.lane, lock); err != nil {
		return nil, nil, err
	}
	if pairs, err = items.Wait(v.ctx); err != nil {
		return nil, nil, fmt.Errorf("read items: %w", err)
	}
	return f, pairs, nil
}

// The transaction that finds an item past retention at the head of a group removes it: a claim, a take, or a sweep,
// which goes from head to head. Items behind a head within retention stay until their turn. Items in flight are never
// removed, because no transaction looks at a group under a live claim.

// expiry says how a transaction tells that items are past retention (isOld).
type expiry struct {
	keep  time.Duration // Config.Retention; 0 = no item is past retention
	retro retro         // by the handle's copy of the configuration; by the transaction's version once stored is true
	// stored: retro and eased were read in the transaction. Both are of one version, so a change of the delay that
	// commits at the same time needs no conflict: by the delay before the change the item is not due.
	stored bool
	eased  rec.Instant // the last change that made the delay shorter; zero = there was none
}

// expiryIn returns how items of a queue with this configuration are past retention.
func expiryIn(c *Config) expiry { return expiry{keep: c.Retention, retro: c.retro()} }

// isOld reports whether an item is past retention both by the handle's clock and by the database's version (moment).
// The time of a delay does not count as waiting. A row with wrong stored times (tamed) is not old.
//
// With retroactive delay a shorter delay may make the item due before its time. Then it has waited only since that
// change: otherwise the end of a long delay would remove the messages that it held back. For such an item isOld reads
// the configuration and the field eased of meta, at snapshot, once for each x.
func isOld(w *txn, x *expiry, r *row) (bool, error) {
	isShort := func() bool {
		return w.nowMS-x.retro.waitsSince(&r.envelope) <= x.keep.Milliseconds()
	}
	if r.tamed || x.keep == 0 || isShort() {
		return false, nil
	}
	m, err := w.moment()
	if err != nil {
		return false, err
	}
	if x.retro.decides(&r.envelope) {
		if err := x.read(w); err != nil || x.keep == 0 || isShort() || !m.past(x.eased, x.keep) {
			return false, err
		}
	}
	delay := x.retro.waitsSince(&r.envelope) - r.envelope.EnqueuedMS
	return m.old(r.Index, x.keep+min(time.Duration(delay)*time.Millisecond, MaxDelay)), nil
}

// read sets x.retro and x.eased as of the transaction's version, if no call before has. If the field eased cannot be
// read, no item of the queue counts as old; Check reports the field.
func (x *expiry) read(w *txn) error {
	if x.stored {
		return nil
	}
	key := w.keys.meta(metaEased)
	eased := w.read.Get(key)
	config, err := w.readStored()
	if err != nil {
		return err
	}
	x.eased, _, err = waitRow(w.ctx, eased, "eased", key, rec.UnpackInstant)
	if w.q.skipsRow(err) {
		x.keep, err = 0, nil
	}
	x.retro, x.stored = config.config.retro(), err == nil
	return err
}

// waitsSince returns since when (ms) the item counts as waiting. A delay does not count.
func (r retro) waitsSince(e *rec.Envelope) int64 { return max(e.EnqueuedMS, r.due(e)) }

// isAged reports whether the head of a lane is past retention (isOld) and must be removed. f must have an item, unless
// its record has a mark. A mark keeps the head. So does a claim whose lease has expired by the handle's clock alone,
// because its holder may live (claimLasts). If this transaction has itself ended such a claim of the group
// (suspects.early), the head stays, too: it is then delivered, although the earlier holder may still handle it.
func isAged(w *txn, f *found) (bool, error) {
	if f.record.Mark() != nil {
		return false, nil
	}
	old, err := w.overdue(f.rows.first(1))
	if err != nil || old.len() == 0 || w.suspects.early[f.group()] {
		return false, err
	}
	lasts, err := claimLasts(w, f.record)
	return !lasts, err
}

// overdue returns the rows at the beginning of all which are past retention (isOld). It stops at the first row that is
// not, or that cannot be read. Two bounds cut the result: the bytes of the values (overdueBytes), and the bytes that
// the removal adds to the transaction (maxFinishSize). The first row is always within both.
func (w *txn) overdue(all rows) (rows, error) {
	config, err := w.config()
	if err != nil || config.Retention == 0 {
		return rows{}, err
	}
	sizes, size, added, age := w.keys.sizesIn(all.group, config.Changes), 0, 0, expiryIn(&config)
	for i := range all.len() {
		row := all.at(i)
		if row.err != nil {
			return all.first(i), nil // the call that would deliver the unreadable item reports the error
		}
		if old, err := isOld(w, &age, row); err != nil || !old {
			return all.first(i), err
		}
		size += len(row.Value)
		added += sizes.expire(len(row.Facets))
		if i > 0 && (size > overdueBytes || added > maxFinishSize) {
			return all.first(i), nil
		}
	}
	return all, nil
}

// expireItems removes the items in old, which are the first of a lane and past retention. old must not be empty.
// expireItems drops the items, or with DeadLetterExpired makes dead letters of them. r is the record of the lane's
// lock, read by the caller with a conflict. It must not have a claim whose lease lasts. The holding ends, as at a
// takeover (lapse), but a mark stays. free: the lane has no lock then, and no hint yet, so the caller must write one.
//
// expireItems adds a write conflict on the lock (vacate). It clears the items, their keys in lanes, their attempts, and
// the hint of the head. For dead letters it reads the attempts, and receipts for the time (present), at snapshot, and
// sets the keys dead. The parts of a dropped item go with it; those of a dead letter stay. Counters and rows of changes
// are written, too.
func (w *txn) expireItems(r *rec.Record, old rows) (free bool, err error) {
	config, err := w.config()
	if err != nil {
		return false, err
	}
	out, err := old.delivered()
	if err != nil {
		return false, err
	}
	for i := range out {
		w.chores.agedBytes += len(old.at(i).Value)
	}
	w.chores.agedItems += len(out)
	if config.DeadLetterExpired { // before any write: if an attempt record cannot be read, the group must stay as it is
		if _, err := w.readAttempts(idsOf(out, old.group)); err != nil {
			return false, err
		}
	}
	if free, err = vacate(w, r, old, out); err != nil {
		return false, err
	}
	if !config.DeadLetterExpired {
		w.remove(old.group, out, out, false)
		w.count(countAgedOut, len(out))
		w.changeAll(ChangeExpired, old.group, out)
		return free, nil
	}
	records, err := w.readAttempts(idsOf(out, old.group))
	if err != nil {
		return false, err
	}
	reason := "waited longer than " + durationText(config.Retention)
	deadMS, err := w.present()
	if err != nil {
		return false, err
	}
	for i := range out {
		id := old.id(i)
		w.putDeadLetter(&failure{id: id, record: records[id], reason: reason}, old.at(i).Value, out[i].Facets, deadMS)
	}
	return free, nil
}

// vacate ends the holding of a lane whose first items, out, are about to be removed, and clears the hint of the head.
// It adds a write conflict on the lock, so that a claim at the same time fails. r is the record of the lock. old has
// the rows of the same items, at least one. free: the lane has no lock then, and no hint yet, so the caller must write
// one. endBefore has the other keys.
func vacate(w *txn, r *rec.Record, old rows, out []rec.Item) (free bool, err error) {
	if err := w.excludeHolders(guard.AgeExclude, old.lane); err != nil {
		return false, err
	}
	if free, err = w.endBefore(old.lane, r, out); err != nil {
		return false, err
	}
	w.tx.Clear(w.keys.ready(out[0].Index, old.lane))
	return free, nil
}

// endBefore ends the holding of a lane because the items out are about to be removed. The item tried under an expired
// claim, if it is one of out, is not dead-lettered and does not halt the group, because the caller removes it anyway.
// lapse has the keys. free: the lane has no lock then. It is false if a mark stays, or the failure of an item that is
// not in out halts the group.
func (w *txn) endBefore(lane string, r *rec.Record, out []rec.Item) (free bool, err error) {
	if r == nil {
		return true, nil
	}
	if r.Holding() == nil {
		return false, nil
	}
	spared, group := ID{}, lanes.GroupOf(lane)
	if c := r.Claim(); c != nil && len(c.Items) > 0 && place(out, idOf(c.Items[0], group), group) >= 0 {
		spared = idOf(c.Items[0], group)
	}
	return w.lapse(lane, r, nil, spared)
}

// overduePage returns the first items of a lane which are past retention, about overdueWidth at most. f has the items
// that the caller has read. If all of them are past retention, overduePage reads more: up to overdueWidth items from
// the head on, and the first hold, at snapshot. Otherwise a small take or claim would remove the items in many small
// steps, one after the other. An item with a hold, and the items behind it, stay.
func (w *txn) overduePage(f *found) (rows, error) {
	old, err := w.overdue(f.rows)
	width := w.chores.most(overdueWidth)
	if err != nil || old.len() < f.rows.len() || f.rows.len() >= width || f.behind != nil {
		return old, err
	}
	page := &found{candidate: f.candidate}
	pairs, hold := w.readItems(w.read, f.lane, width), w.firstHold(f.lane)
	read, err := pairs.Wait(w.ctx)
	if err != nil {
		return rows{}, fmt.Errorf("read items: %w", err)
	}
	if page.rows, err = w.rows(f.lane, read); err != nil {
		return rows{}, err
	}
	if err := page.meetHold(&w.view, hold); err != nil {
		return rows{}, err
	}
	return w.overdue(page.rows)
}

// A queue may bound how many items of a group start their delivery per time (MaxRate). In such a queue each group is
// one lane. A group saves up unused rate, for a second, or for the time of one item if longer. So a claim or a take
// gets at most a second's worth of items, at least one. Over any time T at most rate × T plus a second's worth of items
// start. A delivery counts at the start, whatever the outcome, and a redelivery counts again.
//
// The pace of a group, the value of its key pace, is the time up to which its rate is used up. A claim or take reads
// the pace together with the lock, moves this time on, and gets no more items than fit between this time and now. If no
// item fits, the head counts as not due (verdictEarly), and a timer leads to the group later. Until then the group
// costs no worker, nor a search.
//
// A claim or take writes the pace in a transaction with a conflict on the lock, so no conflict on the pace is needed.
// The stored time is never ahead of the writer's clock. Example: a worker 5 s fast delivers 5 s' worth too much, once;
// the others then wait 5 s longer.
//
// A pace so old that the group has saved up the maximum means the same as no pace. A sweep clears such a pace.

// paceFresh is the longest wait by a rate for which the configuration is not read again, because a handle's
// configuration may be that old anyway.
const paceFresh = followLimit

// allowance says how many items a group's rate allows now. It counts in parts of a microsecond, as many parts as the
// rate has items, so that no rate is rounded. Example: at 3/10s a microsecond has 3 parts, and an item takes 10,000,000
// parts.
type allowance struct {
	rate    Rate // none = no bound
	nowUS   int64
	saved   int64 // parts that the group has saved up, at most those of a burst (Rate.burst)
	items   int   // how many may be delivered now
	untilMS int64 // when the next item may be delivered, if none may now
}

// allowance returns the items that the rate r allows a group at nowMS. p is the time up to which the group's rate is
// used up. If r is none, any number is allowed: a handle may learn that the rate is gone after it has read p.
func (r Rate) allowance(p rec.Pace, nowMS int64) allowance {
	if r.isNone() {
		return allowance{items: math.MaxInt}
	}
	a := allowance{rate: r, nowUS: nowMS * 1000}
	count, item := int64(r.Count), r.Per.Microseconds()
	most := r.burst() * item
	if p.Of != count {
		p.US, p.Part = p.US+min(p.Part, 1), 0 // of another rate
	}
	from := p.US
	if behind := a.nowUS - p.US; behind > 0 {
		// Bounded before the multiplication, so that a very old p does not overflow.
		from, a.saved = a.nowUS, min(behind, most/count+1)*count-p.Part
		a.saved, p.Part = min(a.saved, most), 0
	}
	if a.items = int(a.saved / item); a.items == 0 {
		// From then on the missing parts of one item, rounded up to a microsecond and then to a millisecond.
		a.untilMS = (from + (item-a.saved+p.Part+count-1)/count + 999) / 1000
	}
	return a
}

// whole reports whether a group with the pace p has saved up the maximum at nowMS. Then p means the same as no pace,
// and need not be stored.
func (r Rate) whole(p rec.Pace, nowMS int64) bool {
	return r.isNone() || r.allowance(p, nowMS).saved == r.burst()*r.Per.Microseconds()
}

// allow returns the items that the group's rate (MaxRate) allows now. f is the read that readPace has started; nil =
// allow reads the pace itself, at snapshot. If the group would have to wait longer than paceFresh, allow reads the
// configuration again.
func (w *txn) allow(group string, f kv.Future[[]byte]) (allowance, error) {
	config, err := w.config()
	if err != nil || config.MaxRate.isNone() {
		return allowance{items: math.MaxInt}, err
	}
	if f == nil {
		f = w.read.Get(w.keys.pace(group))
	}
	p, err := w.waitPace(group, f)
	a := config.MaxRate.allowance(p, w.nowMS)
	if err != nil || w.follow.anew || a.untilMS-w.nowMS <= paceFresh.Milliseconds() {
		return a, err
	}
	// An operator may have raised the rate. That transaction has freed the waiting groups, and a handle that still
	// knows the old rate must not undo this.
	w.followAnew()
	return w.allow(group, f)
}

// spend writes the pace of a group, of which n items start their delivery. a comes from allow. If the queue has no
// rate, spend writes nothing. The caller must have a read conflict on the lock, which protects the pace too.
func (w *txn) spend(group string, a allowance, n int) {
	if a.rate.isNone() {
		return
	}
	w.tx.Set(w.keys.pace(group), a.after(int64(n)).Pack())
}

// after returns the pace of the group once n of the allowed items have started: the time up to which the rate is then
// used up.
func (a allowance) after(n int64) rec.Pace {
	count := int64(a.rate.Count)
	left := a.saved - n*a.rate.Per.Microseconds()
	back := (left + count - 1) / count
	return rec.Pace{US: a.nowUS - back, Part: back*count - left, Of: count}
}

// A lease that expires tells little. The caller may never have heard of its claim, because the commit of the receive
// landed and timed out. The caller may have handled the first items with success, and its process was killed before
// their ack landed. So an attempt counts by evidence that a handler was called:
//
//   - If a lease expires and the first item of the claim is not suspect, the item counts one attempt, but never its
//     last: nothing dead-letters the item or halts its group by that.
//   - All items of the claim are suspect from then on. A receive gives a suspect item alone: one claim, one item.
//     The handle then notes in the lock, in a transaction of its own, that the caller knows the claim. The claim is
//     proven.
//   - If the lease of a proven claim expires the attempt counts, and may be the last.
//   - If the lease of an unproven claim of a suspect expires nothing counts: no caller knew of the claim.
//   - A handle gives the next suspect item when the one before is settled, or after suspectPause. An item that was
//     alone when its lease expired excludes all others. Otherwise two of them would be handled at the same time in one
//     process, and one would kill the other. The handles of different queues of one kv.DB heed each other.
//   - An item is suspect until a call of its handler ends: with an ack, an advance, or a nack that is no release.
//   - If the lease has expired by the handle's clock, and not by versions, nothing counts: the handle's clock is ahead,
//     or the holder's was behind, and the holder lives.
//
// Example: a group has the messages 1 to 5, and the handler of 4 kills its process. The claim of all five expires: 1
// counts an attempt. Then 1, 2 and 3 come alone, and are acked. Then 4 comes alone, again and again, until it has used
// its attempts. Nothing is written and no transaction is added while no lease expires.
//
// Stored forms: a suspect item has an attempt record whose text begins as rec.Holding.LapseText does. Its count may be
// 0. A proven claim has a record whose token is greater than the claim's own. Earlier versions read both.

// hinted returns the number to store in the hint of a head with the attempt record a: how often the head has failed,
// and at least 1 if it is suspect. If it is 0, the receive that follows the hint need not read the record (isCounted).
func hinted(a rec.Attempt) int {
	if a.Suspect() {
		return max(a.Count, 1)
	}
	return a.Count
}

// unread is the number in a hint if the transaction has not read how often the head has failed, or if items behind the
// head have failed or are suspect. The receive that the hint leads to reads the records.
const unread = 1

// judgeLapse decides the consequences of the expired lease of the claim in r, by the rules above. The claim must have
// items. The result has the new attempt record of the item tried, which is the first item of the claim, and its fate.
// If the claim was not proven, or has ended early (isEarly), the result also has suspects: the new records of the other
// items. With countExpired each claim that has not ended early counts as proven. judgeLapse reads the attempt records
// of the claim's items, and notes an early end in suspects.early. It writes nothing: failure.carryOut does.
func judgeLapse(w *txn, lane string, r *rec.Record) (*failure, error) {
	c := r.Claim()
	group := lanes.GroupOf(lane)
	first := idOf(c.Items[0], group)
	records := make(map[ID]rec.Attempt, 1)
	var err error
	if len(c.Items) == 1 {
		records[first], err = w.readAttempt(first)
	} else {
		records, err = w.readAttempts(idsOf(c.Items, group))
	}
	if err != nil {
		return nil, err
	}
	before := records[first]
	f, err := w.judge(first, before.Failed(c.SinceMS, w.nowMS, c.LapseText()), "")
	if err != nil {
		return &f, err
	}
	early, err := isEarly(w, c)
	if early {
		setIn(&w.suspects.early, group, true)
	}
	if err != nil || !early && (r.Proven() || w.suspects.countExpired) {
		return &f, err
	}
	// The claim is not proven. So the attempt counts only if the item was not suspect before, and is never the last.
	if before.Suspect() || early || f.reason != "" {
		f.record, f.reason = before.Suspected(c.LapseText()), ""
	}
	f.suspects = make([]failure, 0, len(c.Items)-1)
	for _, d := range c.Items[1:] {
		id := idOf(d, group)
		f.suspects = append(f.suspects, failure{id: id, record: records[id].Suspected(c.LapseText())})
	}
	return &f, nil
}

// refusesLapsed reports whether the transaction gives no item of a lane with the record r, which has no claim that
// lasts. That is so if r has an expired claim, which makes the head suspect, and mayGiveSuspect has refused a suspect
// item in this transaction before. There may be thousands of such lanes: those of a dead process. The result is false
// after a proven claim, because the head may have failed for good, and for a lane with a mark, which must take effect.
// refusesLapsed reads nothing.
func refusesLapsed(w *txn, r *rec.Record) bool {
	c := r.Claim()
	return w.suspects.refused && !w.suspects.countExpired && c != nil && len(c.Items) > 0 && r.Mark() == nil &&
		!r.Proven()
}

// isEarly reports whether the lease of a claim has expired by the handle's clock alone. The caller must know that it
// has expired by this clock. By the database's versions the lease lasts, and the two clocks differ by more than
// clockSlack. Then the holder may live. How much of the lease is left does not matter, because the claim may have a
// shorter lease than the queue's. The result is false if the begin of the claim is not known.
func isEarly(w *txn, h *rec.Holding) (bool, error) {
	if h.SinceMS == 0 {
		return false, nil
	}
	m, err := w.moment()
	lease, age := m.leaseOf(h)
	left := lease - age
	apart := left + time.Duration(w.nowMS-h.EndMS)*time.Millisecond
	return apart > clockSlack && left > 0 && left <= MaxLease, err
}

// claimLasts reports whether r has a claim in force. A claim whose lease has expired by the handle's clock alone
// (isEarly) counts as in force. An item of the claim must not be changed, or removed because of its age: its holder may
// be handling it.
func claimLasts(w *txn, r *rec.Record) (bool, error) {
	if r.At(w.nowMS) == rec.Lapsed {
		return isEarly(w, r.Claim())
	}
	return r.At(w.nowMS) == rec.Claimed, nil
}

// lastTried returns the attempt record of the item that a claim of f would give first. After an expired claim it
// returns that of the item tried under it, as judged. id is the item. If the hint has said that the head has never
// failed, nothing is read, and id and record are zero. Otherwise lastTried reads the first attempt record of the group,
// from the head on. failed says whether an item of the group, from the head on, has an attempt record, as far as known.
func lastTried(w *txn, f *found) (id ID, record rec.Attempt, failed bool, err error) {
	switch {
	case f.failure != nil:
		return f.failure.id, f.failure.record, f.failure.record.Count > 0, nil
	case f.key != nil && f.attempts == 0 && f.isCounted(w.keys.plan):
		return ID{}, rec.Attempt{}, false, nil
	}
	id = f.rows.id(0)
	record, failed, err = readRecords(&w.view, id).wait(&w.view)
	return id, record, failed, err
}

// recordsRead is the read of the first attempt record of a group, from the item head on. An item that has failed or is
// suspect has such a record, and so has an item that was released with a delay.
type recordsRead struct {
	head  ID
	first kv.Future[[]kv.KV]
}

// readRecords starts the read of a recordsRead: one row of the attempts of the group of head.
func readRecords(v *view, head ID) *recordsRead {
	all := kv.KeyRange{
		Begin: v.keys.attempt(head), End: v.keys.below(v.keys.startGroup(nameAttempt, head.Group, 1)).End,
	}
	return &recordsRead{head, v.read.GetRange(all.Selectors(), kv.RangeOptions{Limit: 1})}
}

// wait returns the attempt record of the head (zero = it has none). some: the head or an item behind it has one.
func (r *recordsRead) wait(v *view) (record rec.Attempt, some bool, err error) {
	rows, err := r.first.Wait(v.ctx)
	if err != nil {
		return record, false, fmt.Errorf("read attempts: %w", err)
	}
	key := v.keys.attempt(r.head)
	if len(rows) == 0 || string(rows[0].Key) != string(key) {
		return record, len(rows) > 0, nil
	}
	record, err = rec.UnpackAttempt(key, rows[0].Value)
	return record, true, err
}

// hintedOf returns the number for the hint of the head of r, as hinted does, but at least 1 (unread) if an item behind
// the head has an attempt record, or if the record cannot be read.
func hintedOf(w *txn, r *recordsRead) (int, error) {
	record, some, err := r.wait(&w.view)
	if w.skipsRow(err) {
		return unread, nil
	}
	return hintedIn(record, some), err
}

// hintedIn is hinted for a head with the given record. some: the head or an item behind it has a record. Then the
// number is at least 1 (unread).
func hintedIn(record rec.Attempt, some bool) int {
	if n := hinted(record); n > 0 || !some {
		return n
	}
	return unread
}

// isCounted reports whether the hint that led here says how often the head has failed. The caller must know that a key
// has led here (f.key). In a queue with other lanes the head may have failed under a claim of another lane since the
// hint was written.
func (f *found) isCounted(plan lanes.Plan) bool { return f.record == nil && !f.head && plan.IsPlain() }

// isToBeProven reports whether the claim c, which was given before, is of one suspect item, and is not proven: no note
// in its record r says that the caller knows the claim. It reads the attempt record of the item.
func isToBeProven(v view, r *rec.Record, c *Claim) (bool, error) {
	if r.Proven() || len(c.Items) > 1 {
		return false, nil
	}
	record, err := v.readAttempt(c.Items[0].ID)
	return record.Suspect(), err
}

const (
	// suspectPause is for how long a handle gives no other suspect item, unless the item is settled before. It is
	// longer than most handlers take: a message that kills its process must not kill the handler of another a second
	// time. It is not longer, because after a crash the messages that were in hand are handled one after the other.
	suspectPause = 30 * time.Second
	// graveAttempts: a suspect item with so many failed attempts counts as one that was alone when its lease expired.
	graveAttempts = 2
)

// pauseIsOver reports whether suspectPause is over since the handle has given the suspect item of g: by the handle's
// clock, and by versions, because that clock may have stepped ahead. If the clock was set back, versions alone tell.
func pauseIsOver(v *view, g *givenSuspect) (bool, error) {
	m, err := v.moment()
	passed := m.nowMS - g.sinceMS
	return (passed < 0 || passed >= suspectPause.Milliseconds()) && m.old(g.Token, suspectPause), err
}

// mayGiveSuspect reports whether a receive may give a suspect item with this attempt record now. In a transaction of
// the caller it always may. Of the handle's own transactions one at a time gives suspect items, and at most one
// in each attempt. All this also holds for the handle and the handles of other queues that it heeds, together.
//
// The item must wait while the claim of the suspect item that a handle gave last is in force, for at most suspectPause.
// A grave item has graveAttempts. It must wait, however long, for all such claims, and every other suspect item must
// wait for the claim of a grave one. mayGiveSuspect reads the locks of these claims, at snapshot.
//
// If the result is true and the caller gives the item, the caller must set suspects.gave. The call takes the handle's
// right to give suspect items for this transaction, and endSuspectTurn returns the right.
func mayGiveSuspect(w *txn, record rec.Attempt) (may bool, err error) {
	if w.suspects.turn == nil {
		return true, nil // the transaction is the caller's
	}
	grave := record.Count >= graveAttempts
	if w.suspects.gave || w.suspects.refused || grave && w.suspects.refusedGrave {
		return false, nil
	}
	defer func() {
		if err == nil && !may { // without another look at the claims: there may be thousands of suspect items
			w.suspects.refusedGrave, w.suspects.refused = true, !grave
		}
	}()
	given, may := w.suspects.turn.begin() // given: the claims of suspect items that were given before
	for i, g := range given {
		of := w.view
		if g.q != w.q {
			of = g.q.viewOf(w.ctx, w.read)
		}
		// A claim that no longer matters is passed over.
		if !g.grave && !grave {
			over := i < len(given)-1 && given[i+1].q == g.q // it is not the last of its handle
			if !over {
				over, err = pauseIsOver(&of, &g)
			}
			if err != nil {
				return false, err
			}
			if over {
				continue
			}
		}
		if g.number > w.suspects.turn.known {
			return false, nil // the transaction may not see the claim yet
		}
		r, err := of.readLock(g.Lane)
		if err != nil && (g.q == w.q || !isCorrupt(err)) {
			return false, err
		}
		if held := r.Claim(); held != nil && held.Token == g.Token && r.At(of.nowMS) != rec.Lapsed {
			return false, nil
		}
		defer g.q.suspects.forget(g.ClaimRef)
	}
	return may, nil
}
