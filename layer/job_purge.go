package layer

import (
	"bytes"
	"context"
	"fmt"

	"fdbfifo/kv"
)

// PurgeOptions say what a purge removes. The zero value removes all items of the queue which are not in flight.
type PurgeOptions struct {
	// Group, if not nil, limits the purge to this group; see OnlyGroup.
	Group *string
	// Head, if not zero, is the head of Group that the caller has seen: if another item is the head when the purge
	// begins, nothing is removed, and the error wraps ErrChanged. Not without Group.
	Head ID
	// Force ends claims, and removes the items in flight, too. Without Force the items in flight stay.
	Force bool
	// Progress, if not nil, is called after each step with the report so far.
	Progress func(PurgeReport)
}

// PurgeReport is what a purge did.
type PurgeReport struct {
	Items  int64 // removed
	Kept   int64 // left: in flight, or in a group whose lock cannot be read
	Forced int64 // claims ended by Force
	States int64 // of groups, cleared
}

const (
	// purgeWidth bounds the items, and with the items the groups, which a step reads: 5 MB with the largest values. An
	// attempt after a failed attempt reads half as many.
	purgeWidth = 50
	// purgePatience is how many conflicts a step bears. After more, the step leaves a hint for each group without
	// looking whether the group is empty, so that enqueues no longer conflict with the step.
	purgePatience = 2
	// purgeStride is how many items of a large group a step removes at once.
	purgeStride = 1000
)

// Purge removes all items of a group, or of the queue, which are there when Purge comes to their group. Items enqueued
// behind them meanwhile stay. A delay of a group ends, an expired claim ends without an attempt counted, and a pause
// stays. The states of groups and their used rates go too, but not those of groups in flight. Dead letters stay. The
// de-duplication of the group, or of the queue, forgets the removed items, and remembers the remaining items for as
// long as they stay in the queue.
//
// If no group is in flight, waits for a retry or is paused, and there are no dead letters, no archive and no changes
// for subscriptions (Config.Changes), a purge of the queue removes all in one transaction, provided that nobody changes
// the queue at the same time. Otherwise Purge works in steps at batch priority, group by group in the order of their
// names. Each step is short whatever the depth, and conflicts only with claims of the groups which the step purges. A
// stopped purge may be run again to go on.
//
// If Purge returns an error, the report says what was done before the error.
//
// Errors: ErrChanged, ErrOptions, *LimitError, ErrInvalidUTF8, ErrClosed, and the engine's.
func (a Admin) Purge(ctx context.Context, o PurgeOptions) (PurgeReport, error) {
	var report PurgeReport
	err := a.act(ctx, VerbPurge, o.Group, o.Head, func(ctx context.Context) (n int, err error) {
		report, err = a.q.purge(ctx, o)
		return int(report.Items), err
	})
	return report, err
}

func (q *Queue) purge(ctx context.Context, o PurgeOptions) (PurgeReport, error) {
	p := &purger{q: q, ctx: ctx, o: o, section: q.keys.section(nameItem)}
	if o.Group != nil {
		if err := checkGroup(*o.Group); err != nil {
			return p.report, wrap("purge", err)
		}
		p.section = q.keys.items(*o.Group)
	}
	if err := p.begin(); err != nil {
		return p.report, wrap("purge", err)
	}
	if err := p.states(); err != nil {
		return p.report, wrap("purge", err)
	}
	if err := p.paces(); err != nil {
		return p.report, wrap("purge", err)
	}
	p.next = p.section.Begin
	steps := job[purged]{
		q: q, ctx: ctx, width: purgeWidth, kept: &purgeReceipt,
		attempt: func(tx kv.Tx, a kv.Attempt, width int) (purged, bool, error) {
			s := &purgeStep{txn: q.txn(ctx, tx), p: p, attempt: a, purged: purged{place: p.purgePlace}}
			if err := s.run(width); err != nil {
				return purged{}, false, err
			}
			return s.purged, s.done.Items > 0, s.finish()
		},
		pass: func(s purged) (bool, error) {
			p.purgePlace = s.place
			p.report.Items += s.done.Items
			p.report.Kept += s.done.Kept
			p.report.Forced += s.done.Forced
			if o.Progress != nil {
				o.Progress(p.report)
			}
			return p.next != nil, nil
		},
	}
	err := steps.run(true)
	return p.report, wrap("purge", err)
}

type purger struct {
	q       *Queue
	ctx     context.Context
	o       PurgeOptions
	section kv.KeyRange
	purgePlace
	report PurgeReport
}

// begin checks the head that the caller has seen, before anything is removed.
func (p *purger) begin() error {
	switch {
	case p.o.Head == ID{}:
		return nil
	case p.o.Group == nil:
		return fmt.Errorf("%w: the head of no group", ErrOptions)
	}
	return p.q.view(p.ctx, func(tx kv.ReadTx) error {
		return p.q.sawHead(p.ctx, tx, *p.o.Group, p.o.Head)
	})
}

// purgePlace is how far a purge has come: its cursor.
type purgePlace struct {
	next []byte // the next key; nil = done
	// tail is the group's last item when the purge came to the group. Items behind tail were enqueued later.
	tail []byte
}

// purged is the result of a step: the new cursor, and what was removed.
type purged struct {
	place purgePlace
	done  PurgeReport
}

// purgeStep is one attempt of a step.
//
// Footprint, per group: a read and a write conflict on the lock. If nobody holds the group, and the group is empty now,
// also a read conflict on the whole group. After a few conflicts (purgePatience) not even the latter: the step leaves a
// hint, because otherwise a stream of enqueues could hold the purge up.
type purgeStep struct {
	*txn
	p       *purger
	attempt kv.Attempt
	purged
}

// purgeRun is a run of consecutive items of a group.
type purgeRun struct {
	group string
	items []delivered
	whole bool // the run is the whole group, as of the read version
	lock  kv.Future[[]byte]
}

func (s *purgeStep) run(width int) error {
	if err := s.notePurge(s.p.o.Group); err != nil {
		return err
	}
	if s.p.o.Group == nil && s.attempt.N == 0 && !s.p.begun() {
		if whole, err := s.whole(); err != nil || whole {
			return err
		}
	}
	snapshot := s.tx.Snapshot()
	rest := kv.KeyRange{Begin: s.place.next, End: s.p.section.End}
	found := snapshot.GetRange(rest.Selectors(), kv.RangeOptions{Limit: width + 1})
	far := snapshot.GetKey(kv.KeySelector{Key: s.place.next, Offset: 1 + purgeStride})
	rows, err := found.Wait(s.ctx)
	if err != nil {
		return fmt.Errorf("read items: %w", err)
	}
	begins := bytes.Equal(s.place.next, s.p.section.Begin)
	if len(rows) == 0 {
		if begins {
			err = seenHead(s.p.o.Head, ID{})
		}
		s.place = purgePlace{}
		return err
	}
	first, err := s.q.keys.parse(rows[0].Key)
	if err != nil {
		return err
	}
	if begins {
		if err := seenHead(s.p.o.Head, first.itemID()); err != nil {
			return err
		}
	}
	items := s.q.keys.items(first.group)
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
	return s.narrow(items, rows)
}

// narrow removes the items of rows. The first rows belong to the group of items, whose tail is known.
func (s *purgeStep) narrow(items kv.KeyRange, rows []kv.KV) error {
	var runs []*purgeRun
	for _, row := range rows {
		if items.Contains(row.Key) && bytes.Compare(row.Key, s.place.tail) > 0 {
			continue // enqueued later
		}
		p, err := s.q.keys.parse(row.Key)
		if err != nil {
			return err
		}
		if n := len(runs); n == 0 || runs[n-1].group != p.group {
			runs = append(runs, &purgeRun{
				group: p.group, whole: n > 0, lock: guardPurgeLock.get(s.tx, s.q.keys.lock(p.group)),
			})
		}
		d := delivered{index: p.index, random: p.id}
		if e, _, err := openEnvelope(row.Value); err != nil {
			d.parts = 1 // unreadable: there may be parts
		} else {
			d.parts = e.parts
		}
		d.facets = s.q.keys.facetsIn(row.Value)
		r := runs[len(runs)-1]
		r.items = append(r.items, d)
	}
	if len(runs) == 0 && s.place.next != nil {
		s.place.next = items.End
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

// held reads the group's record. kept means: leave the group alone, because the record cannot be read.
func (s *purgeStep) held(r *purgeRun) (held *record, kept bool, err error) {
	key := s.q.keys.lock(r.group)
	v, err := r.lock.Wait(s.ctx)
	if err != nil {
		return nil, false, fmt.Errorf("read lock: %w", err)
	}
	if v == nil {
		return nil, false, nil
	}
	held, err = unpackRecord(key, v)
	if isCorrupt(err) {
		if !s.p.o.Force {
			return nil, true, nil
		}
		s.put(r.group, unreadable, nil, 0)
		return nil, false, nil
	}
	return held, false, err
}

// states clears the states of the purged groups, with or without items.
//
// Footprint, per group: a read and a write conflict on the lock.
func (p *purger) states() error {
	return p.besides(nameState, func(s *purgeStep, group string, key []byte) (bool, error) {
		l, kept, err := s.held(&purgeRun{group: group, lock: guardPurgeLock.get(s.tx, s.q.keys.lock(group))})
		if err != nil || kept || s.inHand(l) {
			return false, err
		}
		s.tx.Clear(key)
		return true, s.excludeHolders(guardPurgeExclude, group)
	}, &p.report.States)
}

// paces clears the rate records of the purged groups. A group which waits for the rate becomes ready.
//
// Footprint, per group: a read and a write conflict on the lock.
func (p *purger) paces() error {
	cleared := int64(0)
	return p.besides(namePace, func(s *purgeStep, group string, key []byte) (bool, error) {
		l, kept, err := s.held(&purgeRun{group: group, lock: guardPurgeLock.get(s.tx, s.q.keys.lock(group))})
		if err != nil || kept || s.inHand(l) {
			return false, err
		}
		s.tx.Clear(key)
		if err := s.excludeHolders(guardPurgeExclude, group); err != nil || l != nil {
			return true, err
		}
		head, err := s.head(group).Wait(s.ctx)
		if err != nil {
			return false, fmt.Errorf("read head: %w", err)
		}
		if !s.q.keys.items(group).Contains(head) {
			return true, nil
		}
		return true, s.free(group)
	}, &cleared)
}

// besides calls visit for the pair of each purged group in the section name, page by page. visit reports whether the
// pair was cleared; counted counts the cleared pairs.
func (p *purger) besides(
	name string, visit func(s *purgeStep, group string, key []byte) (bool, error), counted *int64,
) error {
	rest := newCursor(p.q.keys.section(name))
	if p.o.Group != nil {
		rest = newCursor(kv.SingleKey(p.q.keys.startGroup(name, *p.o.Group, 0)))
	}
	pages := job[page]{
		q: p.q, ctx: p.ctx, width: purgeWidth, kept: &receipt[page]{},
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (page, bool, error) {
			found := page{width: width}
			s := &purgeStep{txn: p.q.txn(p.ctx, tx), p: p}
			var err error
			if found.rows, err = rest.read(tx.Snapshot(), width).Wait(p.ctx); err != nil {
				return found, false, fmt.Errorf("read %s: %w", name, err)
			}
			for _, row := range found.rows {
				parsed, err := p.q.keys.parse(row.Key)
				if err != nil {
					return found, false, err
				}
				cleared, err := visit(s, parsed.group, row.Key)
				if err != nil {
					return found, false, err
				}
				if cleared {
					found.cleared++
				}
			}
			if found.cleared == 0 {
				return found, false, nil
			}
			return found, true, s.finish()
		},
		pass: func(found page) (bool, error) {
			rest.passed(found.rows, found.width)
			if *counted += found.cleared; found.cleared > 0 && p.o.Progress != nil {
				p.o.Progress(p.report)
			}
			return !rest.exhausted, nil
		},
	}
	return pages.run(true)
}

// inHand reports whether the group is in flight, so that items must not be purged.
func (s *purgeStep) inHand(l *record) bool { return l.at(s.nowMS) == claimed && !s.p.o.Force }

// purge removes a run's items, except the items in flight.
func (s *purgeStep) purge(r *purgeRun) error {
	if s.q.keys.plan != nil {
		return s.purgeLanes(r)
	}
	l, kept, err := s.held(r)
	if err != nil {
		return err
	}
	gone := r.items
	if kept {
		gone = nil
	} else if s.inHand(l) {
		gone = nil
		for _, d := range r.items {
			if !l.claim().holds(d.id(r.group)) {
				gone = append(gone, d)
			}
		}
	}
	s.done.Kept += int64(len(r.items) - len(gone))
	if len(gone) == 0 {
		return nil
	}
	if err := s.excludeHolders(guardPurgeExclude, r.group); err != nil {
		return err
	}
	free := s.end(r.group, l, r.whole)
	s.txn.remove(r.group, r.items, gone, false)
	s.removed(r.group, len(gone))
	return s.leave(gone[0].id(r.group), free, r.whole)
}

// wide removes the items of a group from first up to (not including) the key end. If something in between must stay,
// wide does nothing and returns false.
func (s *purgeStep) wide(first ID, end []byte) (bool, error) {
	if s.q.keys.plan != nil {
		return false, nil // the keys of the lanes are known by the items alone
	}
	keys := s.q.keys
	r := &purgeRun{group: first.Group, lock: guardPurgeLock.get(s.tx, keys.lock(first.Group))}
	dead := s.tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(keys.dead(first)))
	l, kept, err := s.held(r)
	if err != nil || kept || s.inHand(l) {
		return false, err
	}
	p, err := keys.parse(end)
	if err != nil {
		return false, err
	}
	last := p.itemID()
	k, err := dead.Wait(s.ctx)
	if err != nil {
		return false, fmt.Errorf("read dead letters: %w", err)
	}
	if bytes.Compare(k, keys.dead(last)) <= 0 {
		return false, nil // the letter's parts lie between the items' parts
	}
	if err := s.excludeHolders(guardPurgeExclude, r.group); err != nil {
		return false, err
	}
	free := s.end(r.group, l, false)
	all := kv.KeyRange{Begin: keys.item(first), End: end}
	// The count is of the items read: an item which lands late, in between, must not be removed uncounted.
	if err := guardPurgeItems.read(s.tx, all); err != nil {
		return false, err
	}
	s.tx.ClearRange(all)
	s.tx.ClearRange(kv.KeyRange{Begin: keys.attempt(first), End: keys.attempt(last)})
	s.tx.ClearRange(kv.KeyRange{Begin: keys.parts(first).Begin, End: keys.parts(last).Begin})
	s.removed(r.group, purgeStride)
	s.place.next = end
	return true, s.leave(first, free, false)
}

func (s *purgeStep) removed(group string, n int) {
	s.done.Items += int64(n)
	s.count(countPurged, n)
	s.changePurged(group, n)
}

// end ends the holding of the group, unless the holding has to stay, and returns whether the group is then free.
func (s *purgeStep) end(group string, r *record, whole bool) (free bool) {
	switch cond := r.at(s.nowMS); {
	case cond == unheld:
		return true
	case s.inHand(r), cond == marked, r.is(kindGrant) && !whole:
		return false
	case cond == claimed:
		s.done.Forced++
		s.count(countForced, 1)
	}
	return s.txn.end(group, r, r.mark)
}

// leave makes a group findable whose items from first on are gone.
func (s *purgeStep) leave(first ID, free, whole bool) error {
	if free && s.attempt.Conflicts > purgePatience {
		s.hint(first.Index, first.Group, 0) // the hint may be stale: whoever meets a stale hint clears the hint
		return nil
	}
	s.tx.Clear(s.q.keys.ready(first.Index, first.Group))
	switch {
	case !free: // every hint of the group is stale
		return nil
	case whole:
		return guardPurgeGap.read(s.tx, s.q.keys.items(first.Group))
	}
	return s.txn.free(first.Group)
}
