package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// This file changes the lock of a lane. A lane is a whole group or a part of one (package lanes). The value of a lock
// is a record (rec.Record): it says what keeps the lane from receives. A record has a holding, which is a claim, a
// grant or a delay, or a mark, which is a pause or a halt, or a claim and a mark. A lane without a lock is free: then a
// hint, or the timer of a delayed head, must lead receives to its first item, the head. The file also has the
// consequences of a failed attempt, and the delayed head. subspace.go has the table of all keys, and docs/glossary.md
// the other words.

// Status is the condition of a group.
type Status string

// The statuses. A group without items is not listed, unless it is paused or halted: see GroupsOptions.Marked.
const (
	Ready       Status = "ready"        // free to be claimed
	Held        Status = "held"         // under a claim of the group, of one of its lanes, or of its first item
	Expired     Status = "expired"      // under a claim whose lease has ended: the next receive takes over
	Delayed     Status = "delayed"      // given back with a delay which has not ended, or the head is delayed
	RateLimited Status = "rate_limited" // free, but the rate (Config.MaxRate) is used up for now
	Paused      Status = "paused"       // by an operator, until resumed: see GroupInfo.Mark
	Halted      Status = "halted"       // the head has failed for good; until resumed: see GroupInfo.Mark
	Excluded    Status = "excluded"     // of a template: the group, or an intersecting template, is under a claim
	Granted     Status = "granted"      // kept for a handle whose receives wait; free if not accepted within 2 s
	Corrupt     Status = "corrupt"      // the lock or the head cannot be read: LastError says why, Check tells more
	Empty       Status = "empty"        // no items, and no mark: listed nowhere, see Admin.Group
)

// extended returns the record r with a claim that ends at endMS, by this handle's clock, and that no heartbeat keeps. r
// must have a claim. If this clock has stepped ahead since the claim was made, extended also sets the begin of the
// claim (SinceMS) by the new clock. Otherwise other handles could not see that the end is wrong (isWrong). A small step
// counts, too: a clock may have been four minutes ahead before. See sinceSlack.
func extended(w *txn, r *rec.Record, endMS int64) (*rec.Record, error) {
	next := r.Until(endMS)
	c := next.Holding()
	if c.SinceMS == 0 {
		return next, nil
	}
	m, err := w.moment()
	if err != nil {
		return nil, err
	}
	slack := sinceSlack
	if c.Token > m.clock+offsetSlack { // from before a restore: the age of the claim is not known
		slack = clockSlack
	}
	if begunMS := m.at(c.Token); begunMS-c.SinceMS > slack.Milliseconds() {
		c.SinceMS = begunMS
	}
	return next, nil
}

// put changes the record of a lane's lock from old, as the transaction has read it, to next; nil = no lock. No other
// function sets a lock. The caller must have a read conflict on the lock, by the guard of its operation. If rec.Step
// does not allow the change, put writes nothing, and finish returns the error.
//
// put also keeps in step the keys that belong to a record. These are the timer of the holding, or the held key of a
// claim by heartbeat; the grant; and the mark. head is the index of the group's head, for the value of a new timer. In
// a queue that keeps hints (with facets or unordered), if a lock is cleared, or its holding ends earlier, the hints
// kept under it are read with a conflict, and put back when the transaction ends (putBackKept). If the hold of an item
// claimed in turn begins or ends, put also adds a write conflict on the lock of the group (noteTurn). A counter gets
// the number of items that leave the claim.
func (w *txn) put(lane string, old, next *rec.Record, head int64) {
	if err := rec.Step(old, next); err != nil {
		// finish returns the error, and then the transaction has no effect.
		w.did.illegal = errors.Join(w.did.illegal, fmt.Errorf("group %q: %w", lanes.GroupOf(lane), err))
		return
	}
	w.count(countReturned, rec.Leaving(old, next))
	if c, n := old.Claim(), next.Claim(); c != nil && (n == nil || n.Token != c.Token || n.SinceMS != c.SinceMS) {
		endOwn(w, ownKey{lane, c.Token, c.SinceMS})
	}
	keys, was, is := w.keys, old.Holding(), next.Holding()
	if group, turns := keys.plan.TurnOf(lane); turns && (old == nil || next == nil) {
		w.noteTurn(group, lane, next == nil)
	}
	// The timer (or held key) and the grant change only with these parts of the holding.
	if was == nil || is == nil || was.EndMS != is.EndMS || was.Kind != is.Kind || was.Beat != is.Beat {
		if was != nil && (is == nil || was.EndMS != is.EndMS || was.Beat != is.Beat) {
			w.tx.Clear(keys.tenure(lane, was))
		}
		if random, ok := old.GrantedTo(); ok {
			w.clear(keys.grant(random, lane))
		}
		if is != nil {
			timeHolding(w, lane, is, head)
			noteOwn(w, lane, next.Claim())
		}
		if random, ok := next.GrantedTo(); ok {
			w.tx.Set(keys.grant(random, lane), rec.PackInt(is.Token))
		}
	}
	switch wasMarked, isMarked := old.Mark() != nil, next.Mark() != nil; {
	case isMarked && !wasMarked:
		w.tx.Set(keys.mark(lane), nil)
	case !isMarked && (wasMarked || old == rec.Unreadable):
		w.tx.Clear(keys.mark(lane))
	}
	if next == nil {
		w.tx.Clear(keys.lock(lane))
		w.unlock(lane)
		return
	}
	if was != nil && is != nil && is.EndMS < was.EndMS {
		w.readKept(lane) // the timers that belong to the kept hints are at the old end
	}
	w.tx.Set(keys.lock(lane), next.Pack())
}

// hasLease reports whether c is a claim with a lease of its own: no heartbeat keeps it. c may be nil.
func hasLease(c *rec.Holding) bool { return c != nil && !c.ByBeat() }

// noteOwn notes in the handle's memory (ownClaims, claim.go) that this transaction makes or extends the claim c of a
// lane. It does nothing if c is nil or a claim by heartbeat.
func noteOwn(w *txn, lane string, c *rec.Holding) {
	if !hasLease(c) {
		return
	}
	clock, err := w.clock()
	if err != nil {
		return
	}
	key, as := ownKey{lane, c.Token, c.SinceMS}, ownClaim{
		endMS: c.EndMS, ends: byMonotonic(&w.view, c.EndMS), clock: clock,
		lease: time.Duration(c.EndMS-w.nowMS) * time.Millisecond,
	}
	w.q.owns.note(key, as)
	if w.along.own != nil {
		w.along.own.lasts(key, as)
	}
}

// endOwn notes that this transaction ends a claim, perhaps another handle's. The handle's list (ownClaims) drops the
// claim when the transaction has committed. The outcome of a caller's own transaction (along.own is nil) is not told:
// there the handle keeps the claim in its list for at most transactionLife more.
func endOwn(w *txn, key ownKey) {
	if w.along.own == nil {
		w.q.owns.ending(key)
	} else {
		w.along.own.ends(key)
	}
}

// keepOwn extends the claims of the handle that have ended by its wall clock alone, by the rest of their leases.
// claim.go explains how the wall clock may step. A transaction that may end expired claims must call keepOwn first. A
// claim that is gone is left alone.
//
// More than ownAlong claims may not fit into one transaction. Then keepOwn extends them in transactions of their own.
// This transaction may have begun before these, and reads the old locks. That is safe: a transaction that ends a claim
// has a read conflict on the lock, so it fails if the claim was extended since.
//
// Footprint: as extendOwn for up to ownAlong claims. With more of them, this transaction reads and writes no key.
func keepOwn(w *txn) error {
	if !w.q.owns.due(w.nowMS) {
		return nil
	}
	m, err := w.moment()
	if err != nil {
		return err
	}
	early := w.q.owns.early(m)
	inOrder := slices.SortedFunc(maps.Keys(early), func(a, b ownKey) int { return cmp.Compare(a.lane, b.lane) })
	if len(early) <= ownAlong {
		_, err = extendOwn(w, early, inOrder)
		return err
	}
	for len(inOrder) > 0 {
		n, changes := 0, &ownChanges{owns: &w.q.owns}
		err := runApart(w, "heartbeat", func(tx kv.Tx) (err error) {
			changes.Attempt()
			apart := w.q.txn(w.ctx, tx)
			apart.along.own = changes
			if n, err = extendOwn(apart, early, inOrder[:min(len(inOrder), ownPage)]); err != nil {
				return err
			}
			return apart.finish()
		})
		if err != nil {
			return err
		}
		changes.End(advice.Applied)
		inOrder = inOrder[n:]
	}
	return nil
}

const (
	// ownAlong is how many claims keepOwn extends in the transaction of its caller: 1 MB with the largest locks.
	ownAlong = 8
	// ownPage bounds the claims that a transaction of keepOwn extends.
	ownPage = 100
)

// extendOwn extends the claims with these keys, in order, as many as fit into the transaction. early has what the
// handle knows of each claim. looked is how many claims are done: extended, or left alone because they are gone, still
// last, or have nothing left of their lease. extendOwn reads the locks with a conflict, and writes locks and timers.
func extendOwn(w *txn, early map[ownKey]ownClaim, keys []ownKey) (looked int, err error) {
	m, err := w.moment()
	if err != nil {
		return 0, err
	}
	locks := make([]kv.Future[[]byte], len(keys))
	for i, key := range keys {
		locks[i] = guard.OwnClaim.Get(w.tx, w.keys.lock(key.lane))
	}
	for i, key := range keys {
		if i > 0 && len(keys) > ownAlong && w.crowded() {
			return i, nil
		}
		r, err := w.waitLock(key.lane, locks[i])
		if err != nil && !isCorrupt(err) {
			return 0, err
		}
		h := r.Claim()
		if !hasLease(h) || h.Token != key.token || h.SinceMS != key.sinceMS {
			continue
		}
		known := early[key]
		switch c := *known.as(h.EndMS); { // an earlier extension of unknown outcome may have been committed
		case h.EndMS > w.nowMS: // it was extended, and only the handle's memory is old
			c.endMS = h.EndMS
			w.q.owns.confirm(key, c)
		case c.left(m) <= ownSlack: // only its extension would last, and that was not committed
		default:
			next, err := extended(w, r, w.nowMS+c.left(m).Milliseconds())
			if err != nil {
				return 0, err
			}
			w.put(key.lane, r, next, h.FirstIndex())
			w.did.wrote = true
		}
	}
	return len(keys), nil
}

// interfere is Queue.operate for an operator's call that may end an expired claim. Before fn it calls keepOwn, which
// may extend claims of this handle: it writes their locks and timers.
func interfere(ctx context.Context, q *Queue, tx kv.Tx, fn func(w *txn) error) error {
	return q.operate(ctx, tx, func(w *txn) error {
		if err := keepOwn(w); err != nil {
			return err
		}
		return fn(w)
	})
}

// end ends the holding of a lane whose lock has the record r. With a mark m, the lock stays and has the mark alone. If
// m is nil, end clears the lock. put explains the other keys. free: the lane has no lock then, and no hint yet, so the
// caller must write a hint.
func (w *txn) end(lane string, r *rec.Record, m *rec.Mark) (free bool) {
	w.put(lane, r, r.WithoutHolding(m), 0)
	return m == nil
}

// lapse ends the holding of a lane as the next receive after the holding's end would. r is the record of the lane's
// lock. After a claim, the item tried (the first of the claim) counts a failed attempt if the judgement f says so. If f
// is nil, lapse calls judgeLapse, which reads the attempt records of the claim. After a delay or a grant nothing
// counts. spared is an item that the caller is about to change or remove: its failure does not dead-letter it and does
// not halt its group. The zero ID = there is no such item. free: the lane has no lock then, and no hint yet.
//
// lapse writes the lock and its keys (put), and attempt records or a dead letter (failure.carryOut).
func (w *txn) lapse(lane string, r *rec.Record, f *failure, spared ID) (free bool, err error) {
	m := r.Mark()
	c := r.Claim()
	claimed := c != nil && len(c.Items) > 0
	if claimed && f == nil { // before any write: the caller may pass over an attempt record that cannot be read
		if f, err = judgeLapse(w, lane, r); err != nil {
			return false, err
		}
	}
	w.chores.lapsed, w.did.cleared = w.chores.lapsed+1, true
	if claimed {
		w.count(countExpired, 1)
		if m, err = f.carryOut(w, m, spared); err != nil {
			return false, err
		}
	}
	return w.end(lane, r, m), nil
}

// lapseAndFree is lapse for a lane that the caller is not about to claim or to change. If no mark stays in the lock, it
// also makes sure that receives find the lane (free).
func (w *txn) lapseAndFree(lane string, r *rec.Record) error {
	free, err := w.lapse(lane, r, nil, ID{})
	if err != nil || !free {
		return err
	}
	return w.free(lane)
}

// leave makes sure that receives find a lane without a lock. It writes the hint of the lane's head, and returns the
// hint as c, with found set. found is false if no receive claims the lane, or if the lane is empty. If items are
// claimed in turn, it is also false if the group is locked or its head is in flight: readTurn has the reads, and
// turnRead.keeps the read conflicts. For a hold in an unordered queue found is always false.
//
// If the lane is empty, leave adds a read conflict on the range of its items, by the guard empty. Example: an enqueue
// has seen an item that this transaction removes, and so writes no hint. If the enqueue commits first, this transaction
// fails.
//
// first is the read of the first item's key, by head. nil = leave reads the key itself, and sees the transaction's
// writes. tried: the head may have failed before. Then leave reads its attempt record, and the hint has the number of
// attempts. For a hold (the claim of a single item, store_hold.go) leave calls letGo.
//
// The hint also leads to an item that lands before the head, because no transaction removes such an item without the
// lock.
func (w *txn) leave(
	lane string, first kv.Future[[]byte], empty guard.Guard, tried bool,
) (c candidate, found bool, err error) {
	if !w.keys.plan.NeedsHint(lane) {
		return c, false, nil // no receive claims the lane
	}
	if lanes.IsHold(lane) {
		return w.letGo(lane)
	}
	items := w.keys.items(lane)
	if first == nil {
		first = w.head(lane)
	}
	turn := w.readTurn(lane)
	key, err := first.Wait(w.ctx)
	if err != nil {
		return c, false, fmt.Errorf("read head: %w", err)
	}
	if !items.Contains(key) {
		delete(w.noted.ready, lane)
		return c, false, empty.Read(w.tx, items)
	}
	p, err := w.keys.parseItem(key, lanes.GroupOf(lane), items)
	if w.skipsRow(err) {
		// The key of the head cannot be read. The group still gets a hint, and the receive that follows it reports the
		// fault.
		if p.index, err = w.clock(); err != nil {
			return c, false, err
		}
	}
	if keeps, err := turn.keeps(w, p.itemID()); err != nil || keeps {
		delete(w.noted.ready, lane)
		return c, false, err
	}
	c = candidate{lane: lane, index: p.index}
	if tried {
		if c.attempts, err = hintedOf(w, readRecords(&w.view, p.itemID())); err != nil {
			return c, false, err
		}
	}
	c.key, err = w.rehint(p.index, lane, c.attempts)
	return c, err == nil, err
}

// free is leave for a lane that is set free by another than its holder: by an operator, a sweep, or a receive of
// another lane. The lane must have no lock.
func (w *txn) free(lane string) error {
	_, _, err := w.leave(lane, nil, guard.FreeEmpty, true)
	return err
}

// freeAll sets lanes free, one by one. They must have no locks.
func (w *txn) freeAll(all []string) error {
	for _, lane := range all {
		if err := w.free(lane); err != nil {
			return err
		}
	}
	return nil
}

// head starts reading the key of a lane's first item, at snapshot. If the lane is empty, the key found is not in the
// lane's range.
func (w *txn) head(lane string) kv.Future[[]byte] {
	return w.read.GetKey(kv.FirstGreaterOrEqual(w.keys.items(lane).Begin))
}

// hasItem reports whether the claim h contains the item. h may be nil.
func hasItem(h *rec.Holding, id ID) bool { return h != nil && place(h.Items, id, id.Group) >= 0 }

// divide splits the items of the claim h in two, each in key order: acked has the items named by ids, or all items if
// all is set, and left has the rest. If one of ids is not in the claim, the error wraps ErrNotInClaim.
func divide(h *rec.Holding, group string, ids []ID, all bool) (acked, left []rec.Item, err error) {
	if len(ids) == 0 {
		if all {
			return h.Items, nil, nil
		}
		return nil, h.Items, nil
	}
	named := setOf(ids)
	for _, d := range h.Items {
		if id := idOf(d, group); named[id] {
			acked = append(acked, d)
			delete(named, id)
		} else {
			left = append(left, d)
		}
	}
	for id := range named {
		return nil, nil, fmt.Errorf("%w: %s", ErrNotInClaim, id)
	}
	if all {
		return h.Items, nil, nil
	}
	return acked, left, nil
}

// place returns the position of id among the items left of a claim of the group, or -1.
func place(left []rec.Item, id ID, group string) int {
	return slices.IndexFunc(left,
		func(d rec.Item) bool { return d.Index == id.Index && d.Random == id.Random && group == id.Group })
}

// excludeHolders adds a write conflict on a lane's lock, so that a claim of the lane at the same time fails.
func (w *txn) excludeHolders(g guard.Guard, lane string) error {
	return g.Write(w.tx, w.keys.lock(lane))
}

// remove clears the acked items of a claim of the lane, with their keys in lanes, their attempts, and their parts
// unless they are archived. all are the items under the claim. remove clears each item by its exact key: a range from
// the first to the last would also clear an item whose enqueue committed late, between the acked items. A settlement
// may exclude that: see settlement.remove.
func (w *txn) remove(lane string, all, acked []rec.Item, archived bool) {
	group := lanes.GroupOf(lane)
	for _, d := range acked {
		w.clearItem(lane, idOf(d, group), d.Facets)
	}
	w.clearRest(group, all, acked, archived)
}

// clearRest clears the attempt records of the acked items, a subset of all, and their parts. If archived is set, the
// parts stay: they belong to the archived items.
func (w *txn) clearRest(group string, all, acked []rec.Item, archived bool) {
	for _, d := range acked {
		if d.Parts > 0 && !archived {
			w.tx.ClearRange(w.keys.parts(idOf(d, group)))
		}
	}
	w.clearAttempts(group, all, acked)
}

// clearAttempts clears the attempt records of gone, a subset of all (the items under the claim). Few items have a
// record. So one range is cleared for each run of items, and not a key for each item.
//
// An item with facets has a range of its own, because items of other lanes lie between those of a claim. Example: a
// group has items of the states old, new, old. A claim of the two old items must not clear the record of the new one.
// So has an item of a group with holds. Example: an unordered take of the first and the third item must leave the
// record of the second, which is under a hold.
func (w *txn) clearAttempts(group string, all, gone []rec.Item) {
	keys, tx := w.keys, w.tx
	var run []rec.Item
	endRun := func() {
		if len(run) > 0 {
			first, last := idOf(run[0], group), idOf(run[len(run)-1], group)
			tx.ClearRange(kv.KeyRange{Begin: keys.attempt(first), End: keys.after(keys.attempt(last))})
			run = nil
		}
	}
	for i, d := range all {
		if len(gone) == 0 || d != gone[0] {
			endRun()
			continue
		}
		gone = gone[1:]
		run = all[i-len(run) : i+1]
		if d.Facets != "" || keys.plan.MeetsHolds(group) {
			endRun()
		}
	}
	endRun()
}

// failure is a failed delivery of the item that was tried, and the consequences. The item tried is the first item of a
// claim.
type failure struct {
	id     ID
	record rec.Attempt // the item's attempt record, with this failure
	fate   OnFailure   // the queue's setting for an item that has failed for good
	reason string      // why the item has failed for good; "" = it has not, and is delivered again
	// suspects are the new attempt records of the other items, after the lease of the claim has expired: see
	// group_verdict.go.
	suspects []failure
}

// judge returns the failure of the item id with its consequences. record is the item's attempt record, with this
// failure counted. rejected is the handler's reason to reject the item, or "". An item has failed for good if it is
// rejected or has used MaxAttempts, except with OnFailure Block. judge reads only the configuration.
func (w *txn) judge(id ID, record rec.Attempt, rejected string) (failure, error) {
	f := failure{id: id, record: record}
	config, err := w.config()
	if err != nil {
		return f, err
	}
	f.fate = config.OnFailure
	switch {
	case f.fate == Block:
	case rejected != "":
		f.reason = rec.Cut(rejected)
	case config.MaxAttempts > 0 && record.Count >= config.MaxAttempts:
		f.reason = countWords(record.Count, "attempt") + " failed"
	}
	return f, nil
}

// endsItem and haltsGroup report whether the failure dead-letters the item, or halts the group. f may be nil.
func (f *failure) endsItem() bool   { return f != nil && f.reason != "" && f.fate == DeadLetterItem }
func (f *failure) haltsGroup() bool { return f != nil && f.reason != "" && f.fate == HaltGroup }

// follows returns the consequence as the results of a nack name it.
func (f *failure) follows() Follows {
	switch {
	case f.endsItem():
		return FollowsDeadLetter
	case f.haltsGroup():
		return FollowsHalt
	}
	return FollowsRetry
}

// judgeTried is judge for the item tried under the claim of a lane, with one more failure counted. text is the error of
// the failure. claim must have an item. judgeTried reads the item's attempt record, at snapshot, and writes nothing.
func (w *txn) judgeTried(lane string, claim *rec.Holding, text string) (*failure, error) {
	id := idOf(claim.Items[0], lanes.GroupOf(lane))
	record, err := w.readAttempt(id)
	if err != nil {
		return nil, err
	}
	f, err := w.judge(id, record.Failed(claim.SinceMS, w.nowMS, text), "")
	return &f, err
}

// carryOut writes the consequences of the failure: it dead-letters the item (deadLetter), or else writes the attempt
// record of the item. It also writes the attempt records of the suspects. The caller must write the end of the claim.
//
// m is the group's mark before. carryOut returns the mark from then on: m, or the halt that follows from the failure.
// spared is an item that the caller is about to change or remove: its failure neither dead-letters it nor halts the
// group. The zero ID = there is no such item.
func (f *failure) carryOut(w *txn, m *rec.Mark, spared ID) (*rec.Mark, error) {
	if f.id == spared {
		f.reason = ""
	}
	if f.endsItem() {
		dead, err := f.deadLetter(w)
		if err != nil || dead {
			return m, err
		}
	}
	if f.haltsGroup() {
		m = f.mark(w, m)
	}
	f.write(w)
	return m, nil
}

// write stores the attempt record of an item that stays in its group, and those of the suspects.
func (f *failure) write(w *txn) {
	w.tx.Set(w.keys.attempt(f.id), f.record.Pack())
	for i := range f.suspects {
		f.suspects[i].write(w)
	}
}

// mark returns the mark of the halt that follows from the failure. It replaces old, the group's mark before (nil =
// none), but an earlier halt stays. mark adjusts the counters of marked groups. The caller must store the mark in the
// lock.
func (f *failure) mark(w *txn, old *rec.Mark) *rec.Mark {
	if old != nil && old.Kind == rec.MarkHalt {
		return old
	}
	reason := f.reason
	if f.record.LastError != "" {
		reason += ": " + f.record.LastError
	}
	m := &rec.Mark{Kind: rec.MarkHalt, By: w.q.opts.Owner, Reason: rec.Cut(reason), SinceMS: w.nowMS}
	w.countMark(old, -1)
	w.countMark(m, 1)
	return m
}

// deadLetter moves the item to the dead letters. The parts stay where they are. It returns false if the item is not
// there.
//
// Footprint: reads the item at snapshot, and receipts, whose times correct the handle's clock (present). The caller
// must have a read conflict on the lock. putDeadLetter has the writes.
func (f *failure) deadLetter(w *txn) (bool, error) {
	keys := w.keys
	key := keys.item(f.id)
	value, err := w.read.Get(key).Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read item: %w", err)
	}
	if value == nil {
		return false, nil
	}
	deadMS, err := w.present()
	if err != nil {
		return false, err
	}
	w.putDeadLetter(f, value, w.keys.plan.FacetsIn(value), deadMS)
	return true, nil
}

// putDeadLetter moves the item of f, which has the given value and packed facets, to the dead letters, with the reason
// and the attempts of f. deadMS is the time of it. putDeadLetter writes the dead letter, clears the item with its keys
// in lanes and its attempt record, and adds to a counter and to the rows of changes.
func (w *txn) putDeadLetter(f *failure, value []byte, facets string, deadMS int64) {
	keys := w.keys
	d := rec.DeadLetter{
		Reason: f.reason, LastError: f.record.LastError, Attempts: f.record.Count,
		FirstMS: f.record.FirstMS, LastMS: f.record.LastMS, DeadMS: deadMS, Item: value,
		DeliveredMS: f.record.DeliveredMS,
	}
	w.tx.Set(keys.dead(f.id), d.Pack())
	w.clearItem(f.id.Group, f.id, facets)
	w.tx.Clear(keys.attempt(f.id))
	w.count(countDeadLettered, 1)
	w.change(ChangeDeadLettered, f.id, facets)
}

// A message may be delayed: the envelope has the earliest delivery time. The message delays its own group and no other.
// The items behind it wait too, and a claim ends before the delayed item. While the head is delayed the group has no
// holding. A timer of kind "head" leads to the group when the time has come, as a hint leads to a ready group. The
// enqueue writes the timer if the group was empty. Otherwise the end of a claim writes a hint, because it reads only
// the next head's key and not its value. The receive or take that meets this hint replaces it with the timer.

// rows makes rows of pairs (key and value of items) that were read in a lane. The rows have the queue's delay by the
// configuration of this transaction, and its time, by which they correct wrong stored times (moment.tame).
func (w *txn) rows(lane string, pairs []kv.KV) (rows, error) {
	config, err := w.config()
	if err != nil {
		return rows{}, err
	}
	all := w.keys.rows(lane, pairs, config.retro())
	all.now, err = w.moment()
	return all, err
}

// awaitHead leaves a lane without a lock to a timer of its head, which is not to be delivered yet. timingMS is the time
// in the timer's key. awaitHead sets the timer. from is the key of the hint or timer that led here, and awaitHead
// clears it; nil = none did.
//
// Footprint: the caller must have a read conflict on the lock. awaitHead adds a read conflict on the gap up to the
// head, because an enqueue that saw the group empty may fill the gap, and write a hint with the same key that awaitHead
// clears. If the lane is that of a template, awaitHead also adds a write conflict on the range of its items (keys
// lane), because a transaction that lets an item join the lane reads its last item.
func (w *txn) awaitHead(lane string, from []byte, head ID, timingMS int64) error {
	gap := kv.KeyRange{Begin: w.keys.items(lane).Begin, End: kv.KeyAfter(w.keys.laneItem(lane, head))}
	if err := guard.EarlyGap.Read(w.tx, gap); err != nil {
		return err
	}
	if w.keys.plan.JoinsAnywhere(lane) {
		// An item may join the lane in the middle, behind one that has just left: it is the first, and needs a hint.
		if err := guard.EarlyGap.WriteRange(w.tx, w.keys.items(lane)); err != nil {
			return err
		}
	}
	w.clear(from)
	w.did.cleared = true
	delete(w.noted.ready, lane)
	w.timeHead(lane, head.Index, timingMS)
	return nil
}

// timeHolding sets the key by which the holding h of a lane is found when its time is over: a timer, or the held key of
// a claim by heartbeat. head is the index of the lane's head.
func timeHolding(w *txn, lane string, h *rec.Holding, head int64) {
	w.tx.Set(w.keys.tenure(lane, h), rec.PackTimer(h.Kind, head))
}

// timeHead sets the timer of a lane's head, which has the given index, in a lane without a holding. timingMS is the
// time in the timer's key.
func (w *txn) timeHead(lane string, index, timingMS int64) {
	w.tx.Set(w.keys.timer(timingMS, lane), rec.PackTimer(rec.KindHead, index))
}

// hasten makes the delayed head of a lane deliverable now: it writes the item with a new due time, clears the head's
// timers, and sets a hint in each other lane of the item. The caller must write the hint of this lane. early reports
// whether the head was delayed. The caller must have a read conflict on the lock. hasten reads the head at snapshot. If
// a claim of another lane has the head, or the head has a hold, hasten changes nothing, and early is false: inOtherLane
// has the reads and conflicts.
func (w *txn) hasten(lane string) (early bool, err error) {
	found := w.readItems(w.read, lane, 1)
	pairs, err := found.Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read head: %w", err)
	}
	if len(pairs) == 0 {
		return false, nil
	}
	items, err := w.rows(lane, pairs)
	if err != nil {
		return false, err
	}
	head := items.at(0)
	if head.err != nil || head.dueMS <= w.nowMS {
		return false, head.err
	}
	id := idOf(head.Item, lanes.GroupOf(lane))
	if held, err := w.inOtherLane(guard.RetryLock, lane, id, head.Facets); err != nil || held {
		return false, err
	}
	config, err := w.config()
	if err != nil {
		return false, err
	}
	e := head.envelope
	// The timer would be found stale when it is due. Until then it would count as a delayed group.
	for _, timer := range w.keys.timersAt(items.timing(head.dueMS), lane) {
		w.clear(timer)
	}
	e.DueMS = items.retro.own(e.EnqueuedMS) // instead of now, because clocks differ
	if config.Retention > 0 {
		if err := retime(w, &e, head.Index, 0); err != nil { // otherwise it would have waited since the enqueue
			return false, err
		}
	}
	return true, rewriteHead(w, head, e, lane)
}

// retime sets e.DueMS, the due time of the item with the given index, to dueMS; 0 = at once. It writes no key. An item
// that is due at once gets the present. But this clock may be ahead of the clock of the enqueue, as versions tell.
// Other handles would take such a present for a delay. Then e.DueMS becomes the time of the enqueue plus the time since
// then by versions.
func retime(w *txn, e *rec.Envelope, index, dueMS int64) error {
	e.DueMS = cmp.Or(dueMS, w.nowMS)
	if dueMS > 0 || !ahead(w.nowMS, e.EnqueuedMS) {
		return nil
	}
	m, err := w.moment()
	since := m.span(index)
	if presentMS := e.EnqueuedMS + since.Milliseconds(); since >= 0 && ahead(w.nowMS, presentMS) {
		e.DueMS = presentMS
	}
	return err
}

// rewriteHead writes the item of a lane's head with the envelope e, which has new times, and its old body. In each
// other lane of the item it writes a hint, because the item may be the head there too, under a timer of the old time.
// It does not read the locks of these lanes: a receive clears a hint that leads to nothing.
func rewriteHead(w *txn, head *row, e rec.Envelope, lane string) error {
	w.tx.Set(head.Key, append(e.Append(nil), head.body...))
	for _, other := range w.keys.plan.LanesOf(lanes.GroupOf(lane), head.Facets) {
		if other == lane {
			continue // left to the caller
		}
		if _, err := w.rehint(head.Index, other, 0); err != nil {
			return err
		}
	}
	return nil
}
