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

// verdict is what a receive or a take may do with a group to which a hint, a timer or a grant led.
type verdict int

const (
	verdictDeliver  verdict = iota
	verdictStale            // the group is held, or the holding that led here is gone
	verdictEmpty            // no items: the rest of a holding is cleared
	verdictAged             // the head has waited longer than the queue's retention
	verdictEnds             // a claim's end dead-letters the item, halts the group, or begins a mark
	verdictJoins            // the head is to join its own group now
	verdictEarly            // the head is not due, or the group's rate is used up
	verdictExcluded         // an intersecting lane is held
	verdictOther            // an intersecting lane is under a holding that has ended
)

// mayGive reports whether a receive that carries out the verdict may get an item of the group.
func mayGive(v verdict) bool {
	switch v {
	case verdictDeliver, verdictAged, verdictEnds, verdictJoins, verdictOther:
		return true
	case verdictStale, verdictEmpty, verdictEarly, verdictExcluded:
	}
	return false
}

// found is a group under examination: what led here, the reads, and the conclusions.
type found struct {
	candidate
	record *rec.Record
	others []heldLane // the locks of intersecting lanes
	other  int        // of excluded and other: which of others
	rows   rows       // up to the first that is held by itself
	behind *ID        // the item at which rows was cut, because it is held by itself; nil = rows was not cut
	// behindOver: items are claimed in turn, and the time of the hold of behind is over.
	behindOver bool
	pace       kv.Future[[]byte] // nil if the queue has no rate, as far as was known
	// fenced says: the reads were serialisable, so the read conflicts which a verdict needs exist already.
	fenced bool

	// left: the verdict was carried out by leaving what led to the group. There is no conflict on that.
	left bool

	verdict verdict
	failure *failure  // of the item tried under a lapsed claim; nil = none
	untilMS int64     // of early: when the group is due
	allowed allowance // of deliver
}

// keptUntil returns when the time ends (ms) that keeps the group from receives; 0 = no time does. f may be nil.
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

// assess sets the verdict. It writes nothing.
func (w *txn) assess(f *found) error {
	cond := f.record.At(w.nowMS)
	switch {
	case f.accepts(f.record) && f.rows.len() > 0:
	case f.accepts(f.record): // granted, and emptied since
		f.verdict = verdictEmpty
		return nil
	case cond.Keeps(), cond == rec.Unheld && f.timer, f.grant != 0:
		// Held by another, a timer of a holding that is gone, or a grant that was lost.
		f.verdict = verdictStale
		return nil
	case f.rows.len() == 0 && f.record.Mark() == nil:
		f.verdict = verdictEmpty
		return nil
	}
	if w.assessOthers(f) {
		return nil
	}
	if f.record.Mark() == nil {
		old, err := w.overdue(f.rows.first(1))
		if err != nil || old.len() > 0 {
			f.verdict = verdictAged
			return err
		}
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

// assessHead is assess for a group which nothing but its head or its rate may delay.
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
	} else if head.envelope.Joins { // asked first: to take apart each group's name would cost every claim
		if _, _, waits := joinedFrom(f.group()); waits {
			f.verdict = verdictJoins
		}
	}
	return nil
}

// fence adds the read conflict which keeps a verdict true, unless the reads have the conflict already.
func (f *found) fence(w *txn, g guard.Guard, r kv.KeyRange) error {
	if f.fenced {
		return nil
	}
	return g.Read(w.tx, r)
}

// fenceOver is fence for the locks of all lanes that may share an item with the lane.
func (f *found) fenceOver(w *txn, g guard.Guard) error {
	if f.fenced {
		return nil
	}
	return w.fenceOver(g, f.lane)
}

// putsOff reports whether a verdict is left to a later transaction, because this one has carried out enough of them.
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

// clears reports whether dispose clears anything: what led to the lane, a holding, items. Of an excluded lane
// disposeExcluded says so.
func (f *found) clears() bool {
	switch f.verdict {
	case verdictAged, verdictEnds, verdictOther:
		return true
	case verdictJoins: // see join
		return false
	case verdictStale:
		return f.key != nil
	case verdictEmpty, verdictEarly:
		return f.key != nil || f.record != nil
	case verdictDeliver, verdictExcluded:
	}
	return false
}

// dispose carries out every verdict but deliver and joins. carryOut calls it. behind is the hint of the group's next
// head if the head may be deliverable at once; else nil.
//
// Footprint: a read conflict on what makes the verdict true: the lock, or the emptiness of the group, or the gap up to
// a head not yet due. Otherwise dispose could clear a hint which a release writes again at the same time.
func (w *txn) dispose(f *found) (behind *candidate, err error) {
	key, free := kv.SingleKey(w.keys.lock(f.lane)), false
	if f.clears() {
		w.chores.done++
	}
	switch f.verdict {
	case verdictDeliver, verdictJoins:
		return nil, nil
	case verdictExcluded:
		return w.disposeExcluded(f)
	case verdictOther:
		return w.endOther(f)
	case verdictStale:
		if err = f.fence(w, guard.StaleLock, key); err == nil {
			w.clear(f.key)
		}
		return nil, err
	case verdictEmpty:
		// An enqueue into the empty group writes a hint, which may have this very key.
		if err = f.fence(w, guard.StaleEmpty, f.rows.of); err == nil && f.record != nil {
			if err = f.fence(w, guard.EmptyLock, key); err == nil {
				w.end(f.lane, f.record, nil)
			}
		}
	case verdictAged:
		free, err = w.disposeAged(f)
	case verdictEnds:
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

// leadOn clears what led to a lane; of a lane that is free then, leadOn leaves a new hint if there are items, and
// returns it.
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

func (w *txn) disposeAged(f *found) (free bool, err error) {
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

// disposeEarly leaves a group to the timer of its head.
func (w *txn) disposeEarly(f *found) error {
	if f.key == nil && f.record == nil {
		return nil // named by the caller: the hint or timer stays right
	}
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

// clearLead clears the key which led to a group, unless put clears the key: the timer or grant of the group's record.
func (w *txn) clearLead(c *candidate, r *rec.Record) {
	if h := r.Holding(); h != nil {
		if c.grant != 0 && c.accepts(r) || c.timer && string(c.key) == string(w.keys.tenure(c.lane, h)) {
			w.did.cleared = true
			return
		}
	}
	w.clear(c.key)
}

// clearNamed clears what leads to the head of a group that the caller has named, as a rule: its hint, and its timer if
// the head was delayed. Otherwise these keys would become more and more in a queue whose receives all name groups.
func clearNamed(w *txn, f *found) {
	if f.key != nil {
		return
	}
	head := f.rows.at(0)
	w.tx.Clear(w.keys.ready(head.Index, f.lane))
	if head.dueMS > 0 {
		clearTimers(w, f.rows.timing(head.dueMS), f.lane)
	}
}

// clearTimers clears the timers that a lane has at dueMS, for a delayed head that the transaction takes away or
// delays again.
func clearTimers(w *txn, dueMS int64, lane string) {
	for _, timer := range w.keys.timersAt(dueMS, lane) {
		w.tx.Clear(timer)
	}
}

// run returns the items from the head on that may be delivered together, up to limit, and as long as fits accepts them.
// fits gets the size of the next body, in bytes. run returns nothing if fits refuses the first item.
func (w *txn) run(f *found, limit int, fits func(size int) bool) (items []Item, out []rec.Item, err error) {
	config, err := w.config()
	if err != nil {
		return nil, nil, err
	}
	n, stored := min(f.rows.len(), limit, f.allowed.items), 0
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
			if old, err := isOld(w, &config, row); err != nil {
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

// await waits for the reads of a group.
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

// meet waits for the reads of a group, and returns the first items as pairs. The caller sets the rows, and then lets f
// meet the first hold.
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

// isOld reports whether an item is past retention by both clocks. The time of a delay does not count as waiting.
func isOld(w *txn, config *Config, r *row) (bool, error) {
	if r.tamed || !w.isOverdue(config, &r.envelope) {
		return false, nil
	}
	delay := config.retro().waitsSince(&r.envelope) - r.envelope.EnqueuedMS
	m, err := w.moment()
	return err == nil && m.old(r.Index, config.Retention+min(time.Duration(delay)*time.Millisecond, MaxDelay)), err
}

// isOverdue reports whether an item is past retention by the handle's clock.
func (w *txn) isOverdue(config *Config, e *rec.Envelope) bool {
	return config.Retention > 0 && w.nowMS-config.retro().waitsSince(e) > config.Retention.Milliseconds()
}

// waitsSince returns since when (ms) the item counts as waiting. A delay does not count.
func (r retro) waitsSince(e *rec.Envelope) int64 { return max(e.EnqueuedMS, r.due(e)) }

// overdue returns the first rows of a group which are past retention, from the head on; up to about overdueBytes.
func (w *txn) overdue(all rows) (rows, error) {
	config, err := w.config()
	if err != nil || config.Retention == 0 {
		return rows{}, err
	}
	sizes, size, keys := w.keys.sizesIn(all.group, config.Changes), 0, 0
	for i := range all.len() {
		row := all.at(i)
		if row.err != nil {
			return all.first(i), nil // whoever would deliver an unreadable item reports the error
		}
		if old, err := isOld(w, &config, row); err != nil || !old {
			return all.first(i), err
		}
		size += len(row.Value)
		keys += sizes.expire(len(row.Facets))
		if i > 0 && (size > overdueBytes || keys > maxFinishSize) {
			return all.first(i), nil
		}
	}
	return all, nil
}

// expireItems drops or dead-letters a group's first items. r is the group's record, read by the caller with a conflict,
// and not a claim whose lease lasts. The holding ends, as at a takeover, but a mark stays. free means: the group is
// free, and has no hint yet.
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
	if config.DeadLetterExpired { // a record that cannot be read must leave the group as it is
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
		w.putDeadLetter(&failure{id: id, record: records[id], reason: reason}, old.at(i).Value, deadMS)
	}
	return free, nil
}

// vacate ends the holding of a group whose first items are about to be removed, and clears the hint of its head.
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

// endBefore ends the holding of a group because the items out are about to be removed. If out contains the item which
// was tried, the attempt counts, but does not dead-letter the item, because the item is removed anyway.
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

// overduePage returns the group's first items which are past retention, about overdueWidth at most. f holds the items
// read by the caller. If all of them are past retention, overduePage reads more, because a small take or claim would
// otherwise remove the items in many small steps, one after the other. Items behind the first item held by itself stay.
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

// A queue may bound how many items of a group start their delivery per time (MaxRate). A group saves up unused rate,
// for a second, or for the time of one item if longer. So a claim or a take gets at most a second's worth of items, at
// least one, and over any time T at most rate × T plus a second's worth start. A delivery counts at the start, whatever
// the outcome; a redelivery again.
//
// Each group has a pair: the time up to which its rate is used up. A claim or take reads the pair together with the
// lock, moves the time on, and gets no more items than fit between the time and now. If no item fits, the head is not
// due, see group.go: a timer leads to the group later. Meanwhile the group costs no worker, nor a search.
//
// A claim or take writes the pair in a transaction with the lock, so no conflict on the pair is needed. The stored time
// is never ahead of the writer's clock. Example: a worker 5 s fast delivers 5 s' worth too much, once; the others then
// wait 5 s longer.
//
// A pair so old that the group has saved up the maximum means the same as no pair. A sweep clears the pair.

// paceFresh is the longest wait by a rate for which the configuration is not read again, because a handle's
// configuration may be that old anyway.
const paceFresh = followLimit

// allowance is what a group's rate leaves, counted in parts of a microsecond, as many parts as the rate has items.
// Example: at 3/10s a microsecond has 3 parts, and an item takes 10,000,000 parts.
type allowance struct {
	rate    Rate // none = no bound
	nowUS   int64
	saved   int64 // unused parts, at most a burst's
	items   int   // how many may be delivered now
	untilMS int64 // when the next item may be delivered, if none may now
}

// allowance returns what the rate leaves of a group whose rate is used up as p says. No rate has no bound: a handle may
// learn that the rate is gone after it has read p.
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
		from, a.saved = a.nowUS, min(behind, most/count+1)*count-p.Part
		a.saved, p.Part = min(a.saved, most), 0
	}
	if a.items = int(a.saved / item); a.items == 0 {
		a.untilMS = (from + (item-a.saved+p.Part+count-1)/count + 999) / 1000
	}
	return a
}

// whole reports whether a group's token bucket is full. A full bucket need not be stored.
func (r Rate) whole(p rec.Pace, nowMS int64) bool {
	return r.isNone() || r.allowance(p, nowMS).saved == r.burst()*r.Per.Microseconds()
}

// allow returns what a group's rate leaves. f is the read which readPace started, or nil.
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
	// The transaction that raised the rate has just freed the waiting groups. A handle still at the old rate must not
	// undo this.
	w.followAnew()
	return w.allow(group, f)
}

// spend counts n items which start their delivery. The caller has a read conflict on the lock.
func (w *txn) spend(group string, a allowance, n int) {
	if a.rate.isNone() {
		return
	}
	w.tx.Set(w.keys.pace(group), a.after(int64(n)).Pack())
}

// after is up to when the rate is used up once n of the allowed items have started.
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
//   - The first lease of an item that expires counts one attempt for the first item of the claim, but never the last
//     attempt: nothing dead-letters the item or halts its group by that.
//   - All items of the claim are suspect from then on. A receive gives a suspect item alone: one claim, one item.
//     The handle then notes in the lock, in a transaction of its own, that the caller knows the claim. The claim is
//     proven.
//   - If the lease of a proven claim expires the attempt counts, and may be the last.
//   - If the lease of an unproven claim of a suspect expires nothing counts: no caller knew of the claim.
//   - A handle gives the next suspect item when the one before is settled, or after suspectPause. An item that was
//     alone when its lease expired excludes all others. Otherwise two of them would be handled at the same time in one
//     process, and one would kill the other.
//   - An item is suspect until a call of its handler ends: with an ack, or with a nack that has a text.
//   - If the lease has expired by the handle's clock, and not by versions, nothing counts: the handle's clock is ahead,
//     or the holder's was behind, and the holder lives.
//
// Example: a group has the messages 1 to 5, and the handler of 4 kills its process. The claim of all five expires: 1
// counts an attempt. Then 1, 2 and 3 come alone, and are acked. Then 4 comes alone, again and again, until it has used
// its attempts. Nothing is written and no transaction is added while no lease expires.
//
// Stored forms: a suspect item has an attempt record whose text begins as rec.Holding.LapseText does. Its count may be
// 0. A proven claim has a record whose token is greater than the claim's own. Earlier versions read both.

// hinted is the number in the hint of a group whose head has the record a. More than 0 leads a receive to the record.
func hinted(a rec.Attempt) int {
	if a.Suspect() {
		return max(a.Count, 1)
	}
	return a.Count
}

// unread is the number in a hint of a head of which the transaction has not read how often it has failed, or behind
// which items have failed or are suspect. The receive that the hint leads to reads the records.
const unread = 1

// judgeLapse is judge for the end of a claim's lease. judgeLapse writes nothing.
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
	if err != nil || !early && (r.Proven() || w.suspects.countExpired) {
		return &f, err
	}
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

// isEarly reports whether the lease of a claim still lasts by versions though it has expired by the handle's clock, and
// the two differ by more than clocks may differ. A worker that lives extends a claim when two thirds of the lease are
// left.
func isEarly(w *txn, h *rec.Holding) (bool, error) {
	if h.SinceMS == 0 {
		return false, nil
	}
	m, err := w.moment()
	lease, age := m.leaseOf(h)
	left := lease - age
	apart := left + time.Duration(w.nowMS-h.EndMS)*time.Millisecond
	return apart > clockSlack && left > w.known().Lease/3 && left <= MaxLease, err
}

// lastTried returns the record of failed attempts of the item that a claim of f would give first, or of the item which
// was tried under the claim that has expired. known is false if the hint has said that the head has never failed.
// failed is whether items of the group have failed before, as far as known.
func lastTried(w *txn, f *found) (id ID, record rec.Attempt, known, failed bool, err error) {
	switch {
	case f.failure != nil:
		return f.failure.id, f.failure.record, true, f.failure.record.Count > 0, nil
	case f.key != nil && f.attempts == 0 && f.isCounted(w.keys.plan):
		return ID{}, rec.Attempt{}, false, false, nil
	}
	id = f.rows.id(0)
	record, failed, err = readRecords(&w.view, id).wait(&w.view)
	return id, record, true, failed, err
}

// recordsRead is a read of the records of failed attempts of a group's items, from head on. Each item that has failed
// or is suspect has one.
type recordsRead struct {
	head  ID
	first kv.Future[[]kv.KV]
}

func readRecords(v *view, head ID) *recordsRead {
	all := kv.KeyRange{
		Begin: v.keys.attempt(head), End: v.keys.below(v.keys.startGroup(nameAttempt, head.Group, 1)).End,
	}
	return &recordsRead{head, v.read.GetRange(all.Selectors(), kv.RangeOptions{Limit: 1})}
}

// wait returns the head's record, and whether any item from the head on has one.
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

// hintedOf returns the number for the hint of a head that may have failed before, or that may be suspect, or have
// suspect items behind it in its group.
func hintedOf(w *txn, r *recordsRead) (int, error) {
	record, some, err := r.wait(&w.view)
	if w.passes(err) {
		return unread, nil
	}
	return hintedIn(record, some), err
}

// hintedIn is hinted for a group in which some items, from the head on, have records.
func hintedIn(record rec.Attempt, some bool) int {
	if n := hinted(record); n > 0 || !some {
		return n
	}
	return unread
}

// isCounted reports whether the hint that led here says how often the head has failed. In a queue with other lanes the
// head may have failed under a claim of another lane since the hint was written.
func (f *found) isCounted(plan lanes.Plan) bool { return f.record == nil && !f.head && plan.IsPlain() }

// isToBeProven reports whether a claim that was given before is of a suspect item, and is not proven.
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
	// graveAttempts: an item that has as many, and is suspect, was alone when its lease expired.
	graveAttempts = 2
)

// mayGiveSuspect reports whether an item with this record may be given while claims of the suspect items last that the
// handle has given. An item that was alone when its lease expired excludes all others.
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
	given, may := w.suspects.turn.begin()
	var over []rec.ClaimRef
	defer func() { w.q.suspects.forget(over) }()
	for i, g := range given {
		if last := i == len(given)-1; !g.grave && !grave &&
			(!last || w.nowMS < g.sinceMS || w.nowMS-g.sinceMS >= suspectPause.Milliseconds()) {
			continue
		}
		if g.number > w.suspects.turn.known {
			return false, nil // the transaction may not see the claim yet
		}
		r, err := w.readLock(g.Lane)
		if err != nil {
			return false, err
		}
		if held := r.Claim(); held != nil && held.Token == g.Token && r.At(w.nowMS) != rec.Lapsed {
			return false, nil
		}
		over = append(over, g.ClaimRef)
	}
	return may, nil
}
