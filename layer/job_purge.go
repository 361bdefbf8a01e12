package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// PurgeOptions say what a purge removes: the items of Group, or with All the items of all groups, as far as they are
// not in flight. Without either the purge is refused (ErrOptions).
type PurgeOptions struct {
	// All purges all groups of the queue. Not with Group.
	All bool
	// Group, if not nil, limits the purge to this group; see OnlyGroup.
	Group *string
	// Head, if not zero, is the head of Group that the caller has seen: if another item is the head when the purge
	// begins, nothing is removed or cleared, and the error wraps ErrChanged. Not without Group.
	Head ID
	// Force ends claims, and removes the items in flight, too. Without Force the items in flight stay. Force also
	// clears the rows of the group, or of the queue, that cannot be read: see PurgeReport.Unreadable.
	//
	// A message enqueued after the purge came to its group stays. If a claim holds the message together with items that
	// the purge removes, the claim ends, and the message is delivered again. Two workers may then handle it at the same
	// time; only one can ack.
	Force bool
	// Progress, if not nil, is called after each step with the report so far.
	Progress func(PurgeReport)
}

// PurgeReport is what a purge did.
type PurgeReport struct {
	Items int64 // removed
	// Kept items are left: items in flight, and items of a group whose lock cannot be read. Without Force also
	// unreadable items of a group with more than 1,000 locks or 1,000 lanes, or fewer if several such items lie
	// together. With Force such items may count both as kept and as unreadable rows, and they are cleared.
	Kept   int64
	Forced int64 // claims ended by Force
	States int64 // of groups, cleared
	// Unreadable is how many rows Force has cleared because their key or value cannot be read, or because their item is
	// gone. Check reports such rows. Force does not clear the configuration and the pause of the queue. Among the
	// cleared rows may be dead letters, archived items, states and dedup entries. A purge of one group clears only rows
	// whose keys begin with the group: no hints, timers and dedup entries.
	Unreadable int64
}

const (
	// purgeWidth bounds the items (and so the groups) that a step reads: 5 MB with the largest values. An attempt after
	// a failed attempt reads half as many.
	purgeWidth = 50
	// purgePatience is how many conflicts a step accepts if each group is one lane. After more, the step leaves a hint
	// for each group without a look whether the group is empty. Then enqueues do not conflict with the step any more.
	purgePatience = 2
	// purgeStride is how many items of a large group a step removes at once.
	purgeStride = 1000
)

// Purge removes all items of a group, or with PurgeOptions.All of the queue, that are there when Purge comes to their
// group. Items enqueued behind them since then stay. A delay of a group ends, an expired claim ends without an attempt
// counted, and a pause stays. The states and used rates of groups go too; without Force, groups in flight keep theirs.
// Dead letters stay. The de-duplication of the group, or of the queue, forgets the removed items, and remembers the
// remaining items for as long as they stay in the queue.
//
// A purge of the queue removes all items in one transaction if no group is in flight, waits for a retry or is paused,
// if there are no dead letters, no archived items and no changes for subscriptions (Config.Changes), and if no other
// transaction changes the queue at the same time. Otherwise Purge works in steps at batch priority, group by group in
// the order of their names. Each step is short whatever the depth. It conflicts with calls that change or claim the
// groups that it purges, with enqueues whose dedup id is remembered, and with other purges and a drop. To continue a
// stopped purge, run it again.
//
// If Purge returns an error, the report says what was done before the error.
//
// Errors: ErrChanged, ErrOptions, *LimitError, ErrInvalidUTF8, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Purge(ctx context.Context, o PurgeOptions) (PurgeReport, error) {
	var report PurgeReport
	err := a.act(ctx, VerbPurge, o.Group, o.Head, func(ctx context.Context) (n int, err error) {
		report, err = a.q.purge(ctx, o)
		return int(report.Items), err
	})
	return report, err
}

// purge does the work of Purge. It checks the options, clears the states (state) and the used rates (pace) of the
// groups, and removes the items in steps. A step notes the purge (purged, or the field purged of meta). It clears item,
// part, attempt and lane, ends holdings (lock, hold, timer, due, held, grant), puts back kept hints (kept), and sets or
// clears hints (ready, open). A step that removes items also writes a receipt, counters and changes. purgeStep has the
// conflicts. With Force purge then clears the rows that cannot be read.
func (q *Queue) purge(ctx context.Context, o PurgeOptions) (PurgeReport, error) {
	p := &purger{q: q, ctx: ctx, o: o, section: q.keys.section(nameItem)}
	switch {
	case o.Group == nil && !o.All:
		return p.report, fmt.Errorf("%w: set Group, or All for all groups of the queue", ErrOptions)
	case o.Group != nil && o.All:
		return p.report, fmt.Errorf("%w: all groups, and group %q", ErrOptions, *o.Group)
	case o.Group == nil && o.Head != ID{}:
		return p.report, fmt.Errorf("%w: the head of no group", ErrOptions)
	}
	if o.Group != nil {
		if err := checkGroup(*o.Group); err != nil {
			return p.report, err
		}
		p.section = q.keys.items(*o.Group)
	}
	if err := p.states(); err != nil {
		return p.report, err
	}
	if err := p.paces(); err != nil {
		return p.report, err
	}
	p.next = p.section.Begin
	steps := job[purged]{
		q: q, ctx: ctx, width: purgeWidth, once: true,
		attempt: func(tx kv.Tx, a kv.Attempt, width int) (purged, bool, error) {
			s := &purgeStep{txn: q.txn(ctx, tx), p: p, attempt: a, purged: purged{place: p.purgePlace}}
			if err := s.run(width); err != nil {
				return purged{}, false, err
			}
			return s.purged, s.done.Items > 0, s.finish()
		},
		pass: func(s purged) bool {
			p.purgePlace, p.begun = s.place, true
			p.report.Items += s.done.Items
			p.report.Kept += s.done.Kept
			p.report.Forced += s.done.Forced
			if o.Progress != nil {
				o.Progress(p.report)
			}
			return p.next != nil
		},
	}
	err := steps.run(true)
	if err == nil && o.Force {
		err = p.clearUnreadable()
	}
	return p.report, err
}

// purger is a purge under way.
type purger struct {
	q       *Queue
	ctx     context.Context
	o       PurgeOptions
	section kv.KeyRange // the items of the purged group, or of all groups
	purgePlace
	begun  bool // a transaction has cleared something, or has looked for items
	report PurgeReport
}

// checkHead compares the head that the caller has seen (PurgeOptions.Head) with the head of the group. If another item
// is the head, the error wraps ErrChanged. Each transaction that may be the first to clear something must call
// checkHead before. Later transactions belong to a purge that has begun, and the head may have changed since: then
// checkHead reads nothing.
//
// Footprint: a read conflict on the gap up to the head, and on the head.
func checkHead(s *purgeStep) error {
	if s.p.begun || s.p.o.Group == nil {
		return nil
	}
	return s.guarded(guard.PurgeLock).sawHead(*s.p.o.Group, s.p.o.Head)
}

// purgePlace is how far a purge has come: its cursor.
type purgePlace struct {
	next []byte // the next key; nil = done
	// tail is the group's last item when the purge came to the group. Items behind tail were enqueued later.
	tail []byte
}

// purged is the result of a step: the new cursor, and the report of this step alone.
type purged struct {
	place purgePlace
	done  PurgeReport
}

// purgeStep is one attempt of a step.
//
// Footprint: a read conflict on the note of the purge (purged, or meta). Per group: a read and a write conflict on the
// lock. If the group has no lock and is empty now, also a read conflict on the whole group. If each group is one lane,
// after a few conflicts (purgePatience) the step leaves a hint instead of that conflict, because otherwise a stream of
// enqueues could hold up the purge. purgeLanes, wide and whole have more conflicts. A group whose holder's heartbeat is
// over: see endBeat.
type purgeStep struct {
	*txn
	p       *purger
	attempt kv.Attempt
	purged
}

// purgeRun is a run of consecutive items of a group, of which a step removes all but those in flight.
type purgeRun struct {
	group      string
	items      []rec.Item
	whole      bool              // known to be the whole group, as of the read version; never for a step's first run
	lock       kv.Future[[]byte] // the read of the group's lock, with a conflict
	unreadable []ID              // of the items that cannot be read, so that their lanes are not known
}

// run does the step from place.next on, and moves place. It extends claims of the handle itself that have ended by its
// wall clock alone (keepOwn), and notes the time of the purge (purged, or meta), which voids earlier dedup entries.
// Then it removes items in one of three ways. whole removes all items of the queue at once, if the purge has just
// begun. wide removes purgeStride items of a large group. narrow removes up to width items, of one or more groups.
// whole and wide remove nothing if they cannot be used.
func (s *purgeStep) run(width int) error {
	if err := checkHead(s); err != nil {
		return err
	}
	if err := keepOwn(s.txn); err != nil {
		return err
	}
	if err := s.notePurge(s.p.o.Group); err != nil {
		return err
	}
	if s.p.o.Group == nil && s.attempt.N == 0 && !s.p.passed() {
		if whole, err := s.whole(); err != nil || whole {
			return err
		}
	}
	snapshot := s.read
	rest := kv.KeyRange{Begin: s.place.next, End: s.p.section.End}
	found := snapshot.GetRange(rest.Selectors(), kv.RangeOptions{Limit: width + 1})
	far := snapshot.GetKey(kv.KeySelector{Key: s.place.next, Offset: 1 + purgeStride})
	rows, err := found.Wait(s.ctx)
	if err != nil {
		return fmt.Errorf("read items: %w", err)
	}
	if len(rows) == 0 {
		s.place = purgePlace{}
		return nil
	}
	first, err := s.keys.parse(rows[0].Key)
	if s.skipsRow(err) { // not the key of an item: at its end, a purge by force clears the row
		s.place.next = kv.KeyAfter(rows[0].Key)
		return nil
	}
	items := s.keys.items(first.group)
	if !items.Contains(s.place.tail) {
		if s.place.tail, err = snapshot.GetKey(kv.LastLessThan(items.End)).Wait(s.ctx); err != nil {
			return fmt.Errorf("read tail: %w", err)
		}
	}
	end, err := far.Wait(s.ctx)
	if err != nil {
		return fmt.Errorf("read items: %w", err)
	}
	if s.attempt.Conflicts == 0 && bytes.Compare(end, s.place.tail) <= 0 {
		if wide, err := s.wide(first.itemID(), end); err != nil || wide {
			return err
		}
	}
	s.place.next = nil
	if len(rows) > width {
		s.place.next, rows = rows[width].Key, rows[:width]
	}
	tail := s.nextTail(items)
	if err := s.narrow(items, rows); err != nil || tail == nil {
		return err
	}
	if s.place.tail, err = tail.Wait(s.ctx); err != nil {
		return fmt.Errorf("read tail: %w", err)
	}
	return nil
}

// nextTail starts reading, at snapshot, the last key of the group at place.next, if the step has come to that group
// behind the group of its first row, which has the range items. nil = it has not.
func (s *purgeStep) nextTail(items kv.KeyRange) kv.Future[[]byte] {
	if s.place.next == nil || items.Contains(s.place.next) {
		return nil
	}
	next, err := s.keys.parse(s.place.next)
	if err != nil {
		return nil // not the key of an item, as in run
	}
	return s.read.GetKey(kv.LastLessThan(s.keys.items(next.group).End))
}

// narrow removes the items of rows, which were read at snapshot, except those in flight and those enqueued since the
// purge came to their group. items is the range of the group of the first row, whose tail is place.tail.
func (s *purgeStep) narrow(items kv.KeyRange, rows []kv.KV) error {
	var runs []*purgeRun
	for _, row := range rows {
		if items.Contains(row.Key) && bytes.Compare(row.Key, s.place.tail) > 0 {
			continue // enqueued later
		}
		p, err := s.keys.parse(row.Key)
		if s.skipsRow(err) {
			continue // not the key of an item, as in run
		}
		if n := len(runs); n == 0 || runs[n-1].group != p.group {
			runs = append(runs, &purgeRun{
				group: p.group, whole: n > 0, lock: guard.PurgeLock.Get(s.tx, s.keys.lock(p.group)),
			})
		}
		r, d := runs[len(runs)-1], rec.Item{Index: p.index, Random: p.id}
		if e, _, err := rec.OpenEnvelope(row.Value); err != nil {
			d.Parts, r.unreadable = 1, append(r.unreadable, p.itemID()) // there may be parts
		} else {
			d.Parts = e.Parts
		}
		d.Facets = s.keys.plan.FacetsIn(row.Value)
		r.items = append(r.items, d)
	}
	if len(runs) == 0 {
		if s.place.next != nil {
			s.place.next = items.End
		}
		return nil
	}
	if s.place.next != nil {
		runs[len(runs)-1].whole = false
	}
	for _, r := range runs {
		if err := s.purge(r); err != nil {
			return err
		}
	}
	return nil
}

// held returns the record in the group's lock; nil = there is none, or it cannot be read. keeps says that the purge
// must leave items alone. Either the record has a live claim, and the purge keeps its items. Or the record cannot be
// read, and the purge keeps the whole group. With Force nothing keeps the items: held clears a lock that cannot be
// read. If a dead handle has the group by its heartbeat, held first ends that claim, see withoutDead.
func (s *purgeStep) held(r *purgeRun) (held *rec.Record, keeps bool, err error) {
	held, err = s.waitLock(r.group, r.lock)
	if isCorrupt(err) {
		if s.p.o.Force {
			s.put(r.group, rec.Unreadable, nil, 0)
		}
		return nil, !s.p.o.Force, nil
	}
	if err != nil || held == nil {
		return nil, false, err
	}
	if held, err = withoutDead(s.txn, guard.PurgeLock, r.group, held); err != nil {
		return nil, false, err
	}
	keeps, err = s.inHand(held)
	return held, keeps, err
}

// states clears the states (state) of the purged groups, with or without items. Unless Force is set, groups in flight
// keep theirs, and so do groups whose lock cannot be read. A group whose unreadable lock Force has cleared gets a hint.
//
// Footprint, per group: a read and a write conflict on the lock; for a hint also what leave reads.
func (p *purger) states() error {
	return p.besides(nameState, &p.report.States, func(s *purgeStep, r *purgeRun, l *rec.Record) error {
		// If an unreadable lock is gone now, nothing leads to the group.
		if v, _ := r.lock.Wait(s.ctx); l == nil && v != nil {
			return s.free(r.group)
		}
		return nil
	})
}

// paces clears the used rates (pace) of the purged groups. A group with items and no lock gets a hint, because it may
// have waited for the rate. Unless Force is set, groups in flight keep theirs, and so do groups whose lock cannot be
// read.
//
// Footprint, per group: a read and a write conflict on the lock; the first item's key, and for a hint its attempts, at
// snapshot.
func (p *purger) paces() error {
	return p.besides(namePace, new(int64), func(s *purgeStep, r *purgeRun, l *rec.Record) error {
		if l != nil {
			return nil
		}
		head, err := s.firstItem(s.keys.items(r.group))
		if err != nil || head == nil {
			return err
		}
		return s.free(r.group)
	})
}

// besides clears the rows of the purged groups in the section name, page by page, in steps that happen once, except of
// groups that something keeps (held). The rows are read at snapshot. After each clear besides calls cleared, with the
// group and the record of its lock (nil = there is none now). counted counts the cleared rows.
func (p *purger) besides(
	name string, counted *int64, cleared func(s *purgeStep, r *purgeRun, l *rec.Record) error,
) error {
	of := p.q.keys.section(name)
	if p.o.Group != nil {
		of = kv.SingleKey(p.q.keys.startGroup(name, *p.o.Group, 0))
	}
	j := job[page]{q: p.q, ctx: p.ctx, width: purgeWidth, once: true}
	return eachPage(j, of, name, func(tx kv.Tx, rows []kv.KV, _ bool) (n int64, err error) {
		s := &purgeStep{txn: p.q.txn(p.ctx, tx), p: p}
		for _, row := range rows {
			parsed, err := s.keys.parse(row.Key)
			if s.skipsRow(err) {
				continue
			}
			if err := checkHead(s); err != nil {
				return 0, err
			}
			r := &purgeRun{group: parsed.group, lock: guard.PurgeLock.Get(s.tx, s.keys.lock(parsed.group))}
			l, keeps, err := s.held(r)
			if err != nil {
				return 0, err
			}
			if keeps {
				continue
			}
			s.tx.Clear(row.Key)
			if err := s.excludeHolders(guard.PurgeExclude, r.group); err != nil {
				return 0, err
			}
			if err := cleared(s, r, l); err != nil {
				return 0, err
			}
			n++
		}
		if len(rows) == 0 {
			return 0, nil
		}
		return n, s.finish() // also if nothing was cleared: held may have ended a dead handle's claims
	}, func(_ int, n int64) bool {
		p.begun = p.begun || n > 0
		if *counted += n; n > 0 && p.o.Progress != nil {
			p.o.Progress(p.report)
		}
		return false
	})
}

// inHand reports whether the record l has a live claim, whose items the purge must keep. With Force there is none.
func (s *purgeStep) inHand(l *rec.Record) (bool, error) {
	if s.p.o.Force {
		return false, nil
	}
	return claimLasts(s.txn, l)
}

// purge removes a run's items, except the items in flight. It clears each item by its exact key, with its parts and its
// attempts. It ends the group's holding as end says, and leaves the group findable as leave says. If several claims of
// a group are possible, purgeLanes does this.
func (s *purgeStep) purge(r *purgeRun) error {
	if !s.keys.plan.IsPlain() {
		return s.purgeLanes(r)
	}
	l, keeps, err := s.held(r)
	if err != nil {
		return err
	}
	gone := r.items
	if keeps {
		gone = slices.DeleteFunc(slices.Clone(r.items), func(d rec.Item) bool {
			return l == nil || hasItem(l.Claim(), idOf(d, r.group))
		})
	}
	s.done.Kept += int64(len(r.items) - len(gone))
	if len(gone) == 0 {
		return nil
	}
	if err := s.excludeHolders(guard.PurgeExclude, r.group); err != nil {
		return err
	}
	free := s.end(r.group, l, keeps, r.whole)
	s.txn.remove(r.group, r.items, gone, false)
	s.noteRemoved(r.group, len(gone))
	return s.leave(idOf(gone[0], r.group), free, r.whole)
}

// wide removes the items of a group from first up to (not including) the key end, which are purgeStride items. It
// clears them, their parts and their attempts by ranges, without reading them, and adds a read conflict on the range of
// the items. It ends the group's holding and leaves the group findable, as purge does.
//
// wide removes nothing and returns false if, without Force, the group has a live claim or a lock that cannot be read.
// So it does if a dead letter or an archived item is in between, because its parts lie among those of the items, if the
// key end cannot be read, and in a queue with other lanes than groups.
func (s *purgeStep) wide(first ID, end []byte) (bool, error) {
	if !s.keys.plan.IsPlain() {
		return false, nil // the keys of the lanes are known by the items alone
	}
	keys := s.keys
	r := &purgeRun{group: first.Group, lock: guard.PurgeLock.Get(s.tx, keys.lock(first.Group))}
	dead := s.read.GetKey(kv.FirstGreaterOrEqual(keys.dead(first)))
	finished := s.read.GetKey(kv.FirstGreaterOrEqual(keys.archive(first)))
	l, keeps, err := s.held(r)
	if err != nil || keeps {
		return false, err
	}
	p, err := keys.parse(end)
	if s.skipsRow(err) {
		return false, nil
	}
	last := p.itemID()
	letter, err := dead.Wait(s.ctx)
	if err != nil {
		return false, fmt.Errorf("read dead letters: %w", err)
	}
	archived, err := finished.Wait(s.ctx)
	if err != nil {
		return false, fmt.Errorf("read archive: %w", err)
	}
	if bytes.Compare(letter, keys.dead(last)) <= 0 || bytes.Compare(archived, keys.archive(last)) <= 0 {
		return false, nil // its parts lie between the items' parts
	}
	if err := s.excludeHolders(guard.PurgeExclude, r.group); err != nil {
		return false, err
	}
	free := s.end(r.group, l, false, false)
	all := kv.KeyRange{Begin: keys.item(first), End: end}
	// At the read version the range has purgeStride items. An item that lands late, in between, must not be removed
	// uncounted.
	if err := guard.PurgeItems.Read(s.tx, all); err != nil {
		return false, err
	}
	s.tx.ClearRange(all)
	s.tx.ClearRange(kv.KeyRange{Begin: keys.attempt(first), End: keys.attempt(last)})
	s.tx.ClearRange(kv.KeyRange{Begin: keys.parts(first).Begin, End: keys.parts(last).Begin})
	s.noteRemoved(r.group, purgeStride)
	s.place.next = end
	return true, s.leave(first, free, false)
}

// noteRemoved counts n items of a group as removed: in the report, in the counter, and in the changes.
func (s *purgeStep) noteRemoved(group string, n int) {
	s.done.Items += int64(n)
	s.count(countPurged, n)
	s.changePurged(group, n)
}

// end ends the holding of the group (or of another lane) in the record r, and returns whether the group is then free.
// It clears or rewrites the lock, and clears the timer (or held key) and the grant of the holding. These stay: a live
// claim without Force, a mark, and a grant unless the whole group goes. inHand is the result of inHand for r. whole
// means: no item of the group is left.
func (s *purgeStep) end(group string, r *rec.Record, inHand, whole bool) (free bool) {
	switch cond := r.At(s.nowMS); {
	case cond == rec.Unheld:
		return true
	case inHand, cond == rec.Marked, r.Is(rec.KindGrant) && !whole:
		return false
	case cond == rec.Claimed:
		s.done.Forced++
		s.count(countForced, 1)
	}
	return s.txn.end(group, r, r.Mark())
}

// leave makes a group findable after this step has removed items of it. first is the first of these items, and leave
// clears its hint (ready). If the group is free, its new head gets a hint, or leave adds a read conflict on the empty
// group. But after more than purgePatience conflicts a free group gets the hint of first, without a look at its head. A
// group that is not free is found when its holding or mark ends. whole means: no item of the group is left.
func (s *purgeStep) leave(first ID, free, whole bool) error {
	if free && s.attempt.Conflicts > purgePatience {
		// The hint may be stale: the receive that finds a stale hint clears it. With the number unread, the receive
		// reads how often the head has failed.
		s.hint(first.Index, first.Group, unread)
		return nil
	}
	s.tx.Clear(s.keys.ready(first.Index, first.Group))
	switch {
	case !free: // every hint of the group is stale
		return nil
	case whole:
		return guard.PurgeGap.Read(s.tx, s.keys.items(first.Group))
	}
	return s.txn.free(first.Group)
}

// A purge of the whole queue first tries to remove all items in a single transaction, whatever their number. It clears
// ranges, without reading an item. That is possible if there are no locks and no holds, so that nothing is in flight,
// waits for a retry or is paused. There must be neither dead letters nor archived items, because their parts lie
// between those of the items. The queue must keep no changes (Config.Changes), because a change says how many items of
// a group are gone. No other transaction may change the queue at the same time. Otherwise the purge works group by
// group. Example: a purge of 200,000 items in 20,000 groups takes 4,000 steps, or this one.

// whole removes all items of the queue with their parts, attempts, lane keys, hints (ready, open) and timers (timer,
// due), or does nothing and returns false. It reads the counters (count), and the first key of each of lock, hold, dead
// and archive, at snapshot. The timers of heartbeats go too: the next move of the beat, or the next claim that joins
// it, sets its timer again.
//
// Footprint: read conflicts on all items and on all records; write conflicts on both. So an item or a claim that is
// committed at the same time makes the attempt fail. A claimer, taker or enqueue that has read a removed item fails
// too.
func (s *purgeStep) whole() (bool, error) {
	config, err := s.config()
	if err != nil || config.Changes != 0 {
		return false, err // changes have the number of removed items of each group
	}
	keys := s.keys
	items, records := keys.section(nameItem), keys.sections(nameLock, nameHold)
	for _, of := range records {
		record, err := s.firstItem(of)
		if err != nil || record != nil {
			return false, err
		}
	}
	clearParts, err := s.partsAreItems()
	if err != nil || !clearParts {
		return false, err
	}
	counts, err := s.readCounts()
	if err != nil {
		return false, err
	}
	n := depth(counts)
	if n <= 0 {
		return false, nil // the counters of a damaged queue may be wrong: count the items
	}
	for _, of := range records {
		if err := guard.PurgeWholeLock.Read(s.tx, of); err != nil {
			return false, err
		}
		if err := guard.PurgeWholeExclude.WriteRange(s.tx, of); err != nil {
			return false, err
		}
	}
	// The counters are of the read version: an item which lands, or goes, between the reads and the commit must not be
	// removed uncounted, nor be counted twice.
	if err := guard.PurgeWholeItems.Read(s.tx, items); err != nil {
		return false, err
	}
	names := []string{nameItem, namePart, nameAttempt, nameReady, nameTimer, nameLane, nameOpen, nameDue}
	for _, of := range keys.sections(names...) {
		s.tx.ClearRange(of)
	}
	s.done.Items += n
	s.count(countPurged, int(n))
	s.place = purgePlace{}
	return true, nil
}

// passed reports whether the purge is past the first key of the queue's items.
func (p *purger) passed() bool { return !bytes.Equal(p.next, p.q.keys.section(nameItem).Begin) }

// partsAreItems reports whether all parts belong to items, so that all can be cleared. It looks for a first dead letter
// and a first archived item, at snapshot, because these have parts in the same section.
func (s *purgeStep) partsAreItems() (bool, error) {
	for _, name := range []string{nameDead, nameArchive} {
		k, err := s.firstItem(s.keys.section(name))
		if err != nil || k != nil {
			return false, err
		}
	}
	return true, nil
}

// purgeLanes is purge for a queue in which several claims of a group are possible. A lane is a group, or a part of a
// group that can be claimed by itself; a hold is the claim of a single item. The items of the run may be in the claims
// of several lanes or under holds, and any lane may have lost its head. So purgeLanes ends every holding that concerns
// the run, except the claims that must stay, and makes each lane of a removed item findable again.
//
// Footprint: read conflicts on all locks of the group, and on the holds from the first item of the run to the last; a
// write conflict on the lock of the whole group, which every claim reads. purgeLanes reads the locks of the group and
// of the items' lanes. If an item cannot be read, it also reads other locks and keys lane of the group, at snapshot.
// txn.put has the keys of a holding that ends. txn.leave has the reads and conflicts of a lane that is set free, for
// example a conflict on an empty lane.
func (s *purgeStep) purgeLanes(r *purgeRun) error {
	if err := learnFacets(s, r); err != nil {
		return err
	}
	named := make(map[string]bool)
	for _, d := range r.items {
		for _, lane := range s.keys.plan.PartsOf(r.group, d.Facets) {
			named[lane] = true
		}
	}
	parts := slices.Sorted(maps.Keys(named))
	var free []string // the lanes without a lock that have lost an item, perhaps their head, or an unreadable lock
	all, err := s.readOver(r, parts)
	if isCorrupt(err) && s.p.o.Force {
		if free, err = s.forceUnreadable(r, parts); err == nil {
			all, err = s.readOver(r, parts)
		}
	}
	if isCorrupt(err) {
		s.done.Kept += int64(len(r.items))
		return s.freeAll(free)
	}
	if err != nil {
		return err
	}
	// stays has the lanes that keep their locks, and are found when these end.
	stays := make(map[string]bool)
	all = slices.DeleteFunc(all, func(held heldLane) bool { // a claim without an item of the run is left alone
		stays[held.lane] = !concerns(r, held)
		return stays[held.lane]
	})
	inHand := make(map[string]bool, len(all))
	for _, held := range all {
		if inHand[held.lane], err = s.inHand(held.record); err != nil {
			return err
		}
	}
	// Without the items in flight.
	gone := slices.DeleteFunc(slices.Clone(r.items), func(d rec.Item) bool {
		return slices.ContainsFunc(all, func(held heldLane) bool {
			return inHand[held.lane] && hasItem(held.record.Claim(), idOf(d, r.group))
		})
	})
	s.done.Kept += int64(len(r.items) - len(gone))
	if len(gone) == 0 {
		return s.freeAll(free)
	}
	if err := s.excludeHolders(guard.PurgeExclude, r.group); err != nil {
		return err
	}
	for _, held := range all {
		if s.end(held.lane, held.record, inHand[held.lane], r.whole) {
			free = append(free, held.lane)
		} else {
			stays[held.lane] = true
		}
	}
	s.txn.remove(r.group, r.items, gone, false)
	s.noteRemoved(r.group, len(gone))
	for _, d := range gone {
		for _, lane := range s.keys.plan.LanesOf(r.group, d.Facets) {
			if !stays[lane] && !slices.Contains(free, lane) {
				free = append(free, lane)
			}
		}
	}
	return s.freeAll(free)
}

// learnFacets sets the facets of the unreadable items of a run, as far as strayFacets finds them: then the items' keys
// in lanes go with the items. In a group with too many lanes for that it takes these items out of the run, unless the
// purge is by force.
func learnFacets(s *purgeStep, r *purgeRun) error {
	for _, id := range r.unreadable {
		facets, err := strayFacets(&s.view, id, straysMost/int64(len(r.unreadable)))
		if errors.Is(err, ErrLimit) && s.p.o.Force {
			return nil // clearUnreadable clears the keys
		}
		if errors.Is(err, ErrLimit) {
			s.keepUnreadable(r)
			return nil
		}
		if err != nil {
			return err
		}
		for i := range r.items {
			if idOf(r.items[i], r.group) == id {
				r.items[i].Facets = facets
			}
		}
	}
	return nil
}

// readOver returns the records that may have the items of a run: the lock of the whole group, the locks of parts (other
// lanes of the group), and the holds from the first item to the last. An unreadable item may be in any lane, so
// readOver looks for its claim in all locks of the group. If the group has too many locks for that, readOver takes the
// unreadable items out of the run. All reads have a conflict, see locksOf, except those for unreadable items.
func (s *purgeStep) readOver(r *purgeRun, parts []string) ([]heldLane, error) {
	all, err := s.locksOf(guard.PurgeLock, r.group, parts)
	if err == nil && len(r.unreadable) > 0 {
		var claims []heldLane
		claims, err = claimsWith(&s.view, r.group, r.unreadable)
		if errors.Is(err, ErrLimit) {
			s.keepUnreadable(r)
			err = nil
		}
		for _, claim := range claims {
			if claim.lane != r.group && !slices.Contains(parts, claim.lane) {
				all = append(all, claim)
			}
		}
	}
	if err != nil || len(r.items) == 0 {
		return nil, err
	}
	holds, err := s.recordsIn(guard.PurgeLock, holdsOver(s.keys, r))
	return append(all, holds...), err
}

// keepUnreadable takes the unreadable items out of a run, so that they stay in the queue, and reports them as kept.
func (s *purgeStep) keepUnreadable(r *purgeRun) {
	s.done.Kept += int64(len(r.unreadable))
	r.items = slices.DeleteFunc(r.items, func(d rec.Item) bool {
		return slices.Contains(r.unreadable, idOf(d, r.group))
	})
	r.whole, r.unreadable = false, nil
}

// holdsOver returns the range of the holds from a run's first item to its last. A hold is the lock of a single item. In
// a queue without holds there is no range. The run must have an item.
func holdsOver(s subspace, r *purgeRun) []kv.KeyRange {
	return s.holdsFrom(s.hold(idOf(r.items[0], r.group)), idOf(r.items[len(r.items)-1], r.group))
}

// concerns reports whether a step that removes the items of a run may end the holding in a record. A claim must have
// one of the items; a grant, a delay or a mark always concerns the run.
func concerns(r *purgeRun, held heldLane) bool {
	c := held.record.Claim()
	return c == nil || slices.ContainsFunc(r.items, func(d rec.Item) bool {
		return hasItem(c, idOf(d, r.group))
	})
}

// forceUnreadable clears, for a purge by force, the locks of the group and of parts (other lanes of the group), and the
// holds over a run, if they cannot be read. If the run has unreadable items, it looks at the locks of all lanes, as
// readOver does. It reads the locks with a conflict. cleared are the lanes of which it has cleared the lock: the caller
// must set them free.
func (s *purgeStep) forceUnreadable(r *purgeRun, parts []string) (cleared []string, err error) {
	sections := append(s.keys.locksOf(r.group, parts), holdsOver(s.keys, r)...)
	if len(r.unreadable) > 0 {
		sections = append(sections, s.keys.locks(r.group))
	}
	for i, section := range sections {
		var read locksRead
		whole := len(r.unreadable) > 0 && i == len(sections)-1 // the section of all locks
		for row, err := range walk(s.ctx, guard.PurgeLock.Reads(s.tx), section, locksOfPage) {
			if err != nil {
				return nil, fmt.Errorf("read locks: %w", err)
			}
			if read.add(row); read.over() && whole {
				break // then readOver leaves the unreadable items alone
			}
			if p, err := s.keys.parse(row.Key); err != nil {
				s.tx.Clear(row.Key)
			} else if _, err := rec.UnpackRecord(row.Key, row.Value); err != nil {
				s.put(p.lane, rec.Unreadable, nil, 0)
				cleared = append(cleared, p.lane)
			}
		}
	}
	return cleared, nil
}

// The first step of a drop marks the queue and clears the configuration, so that no handle can open the queue. The last
// step comes dropGrace later, when all handles have had to read the configuration again. It clears all keys in one
// range. Only then can a queue of the name be created again, with another incarnation, see tx_config.go.
//
// A transaction T that began before the last step must not commit after it, because T would leave keys behind. So T has
// a read conflict on the mark, which the last step clears. So T fails if its read version is older than that step. It
// is: tx_config.go has the proof.

const (

	// dropGrace is the time between the mark and the last step. dropGrace and followLimit are measured by different
	// clocks: the difference (1 s) makes up for clocks which run at different speeds.
	dropGrace = 2 * time.Second
	// dropWakes bounds the waiting handles which are woken to notice the drop.
	dropWakes = 1000
)

// DropOptions configure a drop. The zero value is the normal use.
type DropOptions struct {
	// Tx applies to the transactions of the drop.
	Tx kv.TxOptions
	// If, if not nil, is called in the first transaction of the drop, perhaps several times. If it returns an error,
	// Drop returns that error, and has done nothing. A key that If reads in tx cannot change before the drop begins.
	If func(ctx context.Context, tx kv.Tx) error
}

// Drop removes a queue with everything in the queue: messages, dead letters, claims, configuration. From the first
// transaction on, the queue cannot be opened. Handles in use get ErrNoQueue within a second, and their work until then
// is removed too. Drop takes two seconds, whatever the depth. After an interruption the queue stays, but cannot be
// opened: the caller must call Drop again. A handle that was opened before the drop stays useless, even if a queue of
// the same name is created: each of its calls returns ErrNoQueue.
//
// Errors: ErrNoQueue, ErrNoQueueName, *LimitError and ErrInvalidUTF8 for the name, and the engine's.
func Drop(ctx context.Context, db kv.DB, prefix []byte, name string, o DropOptions) error {
	if err := checkQueueName(name); err != nil {
		return wrap("drop queue", err)
	}
	call := fmt.Sprintf("drop queue %q", name)
	d := &dropping{ctx: ctx, o: o, keys: newSubspace(prefix, name)}
	if _, err := kv.Run(ctx, db, o.Tx, d.mark); err != nil {
		return wrap(call, err)
	}
	for d.seen != nil {
		timer := time.NewTimer(dropGrace)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return wrap(call, kv.CauseOf(ctx))
		}
		if _, err := kv.Run(ctx, db, o.Tx, d.clear); err != nil {
			return wrap(call, err)
		}
		d.seen = d.other
	}
	return nil
}

// dropping is a drop under way.
type dropping struct {
	ctx   context.Context
	o     DropOptions
	keys  subspace
	seen  []byte // the mark that was there before the grace; nil = the queue is gone
	other []byte // another mark, found after the grace; nil = there is none
}

// mark is the first step of a drop. It reads the fields format and dropped of meta, with a conflict. It sets the mark
// of a drop (dropped), clears the configuration (config), reads the first dropWakes requests at snapshot, and wakes
// their handles by their wake keys. If the queue has a mark already, that mark stays. d.seen is then the mark. It is
// nil if an earlier attempt may have set a mark, and another Drop has cleared the queue since. Without a queue of the
// name the error is ErrNoQueue.
func (d *dropping) mark(tx kv.Tx, a kv.Attempt) error {
	format, err := tx.Get(d.keys.meta(metaFormat)).Wait(d.ctx)
	if err != nil {
		return fmt.Errorf("read format: %w", err)
	}
	d.seen = nil
	switch {
	case format == nil && a.MaybeCommitted:
		return nil // marked by an earlier attempt, and cleared by another Drop
	case format == nil:
		return ErrNoQueue
	}
	if d.seen, err = tx.Get(d.keys.meta(metaDropped)).Wait(d.ctx); err != nil {
		return fmt.Errorf("read mark: %w", err)
	}
	// If an earlier attempt has marked the queue, it is too late to refuse.
	if d.o.If != nil && (d.seen == nil || !a.MaybeCommitted) {
		if err := d.o.If(d.ctx, tx); err != nil {
			return err
		}
	}
	if d.seen == nil {
		d.seen = rec.PackInt(millis(time.Now()))
		tx.Set(d.keys.meta(metaDropped), d.seen)
	}
	tx.Clear(d.keys.meta(metaConfig))
	rows, err := tx.Snapshot().GetRange(d.keys.requests().Selectors(),
		kv.RangeOptions{Limit: dropWakes}).Wait(d.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	for _, row := range rows {
		if p, err := d.keys.parse(row.Key); err == nil {
			tx.Atomic(kv.Add, d.keys.wake(p.id), rec.PackCount(1))
		}
	}
	return nil
}

// clear is the last step of a drop: it clears all keys of the queue. If the mark is missing, it clears nothing, because
// another Drop has cleared the queue, and any queue there now is new. If a new queue has a mark of its own, clear
// returns that mark in d.other. Handles of that queue may not have seen the mark yet, so the grace begins again.
func (d *dropping) clear(tx kv.Tx, _ kv.Attempt) error {
	v, err := tx.Get(d.keys.meta(metaDropped)).Wait(d.ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read mark: %w", err)
	case v != nil && !bytes.Equal(v, d.seen):
		d.other = v
		return nil
	}
	if d.other = nil; v != nil {
		tx.ClearRange(d.keys.all())
	}
	return nil
}
