package layer

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
)

// GroupInfo describes a group.
type GroupInfo struct {
	Group       string
	Status      Status
	Depth       int64         // items, the held ones included; counted up to GroupsOptions.MaxDepth
	Head        ID            // zero if the group is empty
	HeadAge     time.Duration // since the head was enqueued
	Attempts    int           // failed deliveries of the head
	LastError   string        // of the head's last failed delivery
	Owner       string        // of a held, expired or excluded group
	Token       int64         // likewise
	Outstanding int           // likewise: items delivered and not acked, by all holders
	// Where is the template of the claim that Owner has, or of the mark; nil = the whole group.
	Where Template
	// Hold is the group's head if Owner has the head by an unordered receive; zero = Owner has the group, or a lane.
	Hold ID
	// Left is the rest of the lease or of the delay, or the time until the rate lets the group go on, by this process's
	// clock; negative if expired.
	Left time.Duration
	// Mark says who has paused or halted the group, and why; nil = nobody. A held or expired group has a Mark if it was
	// marked under its claim: the pause or halt begins when the claim ends.
	Mark *Mark
}

// GroupsOptions bound a listing. The zero value lists the first DefaultGroups groups.
type GroupsOptions struct {
	// After is the group behind which the page begins: GroupsPage.Next of the page before; nil = the page begins with
	// the first group. The group need not be there.
	After *string
	// Limit is the number of groups of a page; 0 = DefaultGroups.
	Limit int
	// Marked lists, in place of the groups that have items, the groups which are paused or halted, or will be when
	// their claims end, the empty ones included.
	Marked bool
	// MaxDepth bounds the count of a group's items; 0 = DefaultMaxDepth.
	MaxDepth int64
	// Where, if not nil, lists the groups with items that agree with the template, and all that is said of a group is
	// said of these items. The list is found by a look at each group. Not with Marked.
	Where Template
}

// GroupsPage is a part of a list of groups.
type GroupsPage struct {
	Groups []GroupInfo
	Next   *string // pass as After to go on; nil = there are no more groups. The last page may be empty.
}

// Defaults of a listing.
const (
	DefaultGroups   = 1000
	DefaultMaxDepth = 100_000
)

// groupsPerView bounds the groups listed in one transaction, because a transaction may last 5 s at most.
const groupsPerView = 100

// Group describes one group, whether or not there are items. Items are counted up to DefaultMaxDepth. With a template,
// one at most, Group describes what the template sees of the group.
//
// Errors: *LimitError and ErrInvalidUTF8 for the name, *TemplateError, ErrOptions, ErrClosed, and the engine's. An
// unreadable group is Corrupt.
func (a Admin) Group(ctx context.Context, name string, where ...Template) (GroupInfo, error) {
	q := a.q
	if err := checkGroup(name); err != nil {
		return GroupInfo{}, wrap("group", err)
	}
	packed, err := q.whereGiven(where)
	if err != nil {
		return GroupInfo{}, wrap("group", err)
	}
	var info GroupInfo
	err = q.view(ctx, func(tx kv.ReadTx) error {
		lane := laneName(name, packed)
		head, err := q.firstItem(ctx, tx, q.keys.items(lane))
		if err == nil {
			info, err = q.describe(ctx, tx, lane, head, DefaultMaxDepth)
		}
		return err
	})
	if err != nil {
		return GroupInfo{}, wrap("group", err)
	}
	return info, nil
}

// Groups lists the groups that have items, by name, or those that are marked. Groups conflicts with nothing and changes
// nothing. A long listing is made of several transactions: each entry is true of one moment, the list as a whole is
// not.
//
// Errors: *LimitError, ErrInvalidUTF8, *TemplateError, ErrOptions, ErrClosed, and the engine's. An unreadable group is
// listed as Corrupt.
func (a Admin) Groups(ctx context.Context, o GroupsOptions) (GroupsPage, error) {
	q := a.q
	if o.Limit == 0 {
		o.Limit = DefaultGroups
	}
	if o.MaxDepth == 0 {
		o.MaxDepth = DefaultMaxDepth
	}
	if o.Limit < 0 {
		return GroupsPage{}, wrap("groups", &LimitError{
			What: "listing", Unit: "groups", Got: int64(o.Limit), Max: noLimit,
		})
	}
	if o.MaxDepth < 0 {
		return GroupsPage{}, wrap("groups", &LimitError{
			What: "depth of a listing", Unit: "items", Got: o.MaxDepth, Max: noLimit,
		})
	}
	walk := groupWalk{q: q, ctx: ctx, o: &o, section: q.keys.section(nameItem)}
	switch {
	case o.Marked && o.Where != nil:
		return GroupsPage{}, wrap("groups", fmt.Errorf("%w: marked groups by template", ErrOptions))
	case o.Marked:
		walk.section = q.keys.section(nameMark)
	case o.Where != nil:
		var err error
		if walk.where, err = q.keys.plan.where(o.Where); err != nil {
			return GroupsPage{}, wrap("groups", err)
		}
		walk.section = q.keys.section(nameLane)
	}
	from := walk.section.Begin
	if o.After != nil {
		if err := checkGroup(*o.After); err != nil {
			return GroupsPage{}, wrap("groups", err)
		}
		from = walk.behind(*o.After)
	}
	var all GroupsPage
	for len(all.Groups) < o.Limit {
		var page []GroupInfo
		next := from
		err := q.view(ctx, func(tx kv.ReadTx) (err error) {
			page, next, err = walk.page(tx, from, min(groupsPerView, o.Limit-len(all.Groups)))
			return err
		})
		if err != nil {
			return GroupsPage{}, wrap("groups", err)
		}
		all.Groups = append(all.Groups, page...)
		if next == nil {
			return all, nil
		}
		from = next
	}
	last := all.Groups[len(all.Groups)-1].Group
	all.Next = &last
	return all, nil
}

// groupWalk is a listing of groups, by the keys of their items or of their marks.
type groupWalk struct {
	q       *Queue
	ctx     context.Context
	o       *GroupsOptions
	where   string // the packed template; "" = whole groups
	section kv.KeyRange
}

// behind returns where the walk goes on behind a group.
func (w *groupWalk) behind(group string) []byte {
	switch {
	case w.o.Marked:
		return w.q.keys.marks(group).End
	case w.where != "":
		return w.q.keys.lanesIn(group).End
	}
	return w.q.keys.items(group).End
}

// page returns up to n groups from a key on, and where to go on; nil = there are no more groups. By template the page
// may have fewer, because groups without a match are looked at, too.
func (w *groupWalk) page(tx kv.ReadTx, from []byte, n int) (groups []GroupInfo, next []byte, err error) {
	next = from
	for looks := 0; len(groups) < n && looks < groupsPerView; looks++ {
		k, err := tx.GetKey(kv.FirstGreaterOrEqual(next)).Wait(w.ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("read next group: %w", err)
		}
		if !w.section.Contains(k) {
			return groups, nil, nil
		}
		p, err := w.q.keys.parse(k)
		if err != nil {
			return nil, nil, err
		}
		head, lane := k, laneName(p.group, w.where)
		next = w.behind(p.group)
		if w.o.Marked || w.where != "" {
			if head, err = w.q.firstItem(w.ctx, tx, w.q.keys.items(lane)); err != nil {
				return nil, nil, err
			}
		}
		if head == nil && w.where != "" {
			continue
		}
		info, err := w.q.describe(w.ctx, tx, lane, head, w.o.MaxDepth)
		if err != nil {
			return nil, nil, err
		}
		groups = append(groups, info)
	}
	return groups, next, nil
}

// describe reads the state of a group, or of another lane, whose first item has key head; nil = there are no items.
// What cannot be read makes the group Corrupt.
func (q *Queue) describe(
	ctx context.Context, tx kv.ReadTx, lane string, head []byte, maxDepth int64,
) (GroupInfo, error) {
	info, err := q.describeLock(ctx, tx, lane)
	if err == nil && head != nil {
		err = q.describeHead(ctx, tx, &info, lane, head, maxDepth)
	} else if err == nil && info.Status == Ready {
		info.Status = Empty
	}
	if isCorrupt(err) {
		info.Status, info.LastError = Corrupt, err.Error()
		return info, nil
	}
	return info, err
}

// describeLock is describe without what the items say.
func (q *Queue) describeLock(ctx context.Context, tx kv.ReadTx, lane string) (GroupInfo, error) {
	info := GroupInfo{Group: groupOf(lane), Status: Ready}
	l, others, err := q.readRecords(ctx, tx, lane)
	if err != nil {
		return info, err
	}
	now := q.nowMS()
	info.Mark = l.bears().public()
	if h := l.holding(); h != nil {
		info.Left = time.Duration(h.endMS-now) * time.Millisecond
	}
	switch l.at(now) {
	case unheld:
	case marked:
		info.Status = info.Mark.Status
	case delayed:
		info.Status = Delayed
	case granted:
		info.Status = Granted
	case over:
		info.Left = 0
	case claimed:
		info.Status = Held
	case lapsed:
		info.Status = Expired
	}
	if c := l.claim(); c != nil {
		info.Owner, info.Token, info.Outstanding = c.owner, c.token, len(c.items)
		info.Where = q.whereOf(lane)
	}
	if !l.at(now).keeps() {
		info.others(q, lane, others, now)
	}
	if q.keys.inTurn() {
		info.Outstanding, err = q.inHand(ctx, tx, lane)
	}
	return info, err
}

// others adds to info who holds lanes that intersect the lane: the first holder, and the items of all; if there is no
// holder, the first mark. A whole group counts as held if a lane of it is.
func (info *GroupInfo) others(q *Queue, lane string, all []heldLane, nowMS int64) {
	status := Held
	if isPart(lane) {
		status = Excluded
	}
	held := false
	for _, other := range all {
		m, c := other.record.bears(), other.record.claim()
		if c != nil {
			info.Outstanding += len(c.items)
		}
		switch {
		case c != nil && !held && other.record.at(nowMS) == claimed:
			held = true
			info.Status, info.Owner, info.Token, info.Where = status, c.owner, c.token, q.whereOf(other.lane)
			info.Hold, _ = holdOf(other.lane)
			info.Left = time.Duration(c.endMS-nowMS) * time.Millisecond
		case c == nil && m != nil && info.Mark == nil:
			info.Mark = m.public()
			if !held {
				info.Status, info.Where = info.Mark.Status, q.whereOf(other.lane)
			}
		case other.record.at(nowMS) == delayed && info.Status == Ready:
			info.Status, info.Where = Delayed, q.whereOf(other.lane)
			info.Left = time.Duration(other.record.holding().endMS-nowMS) * time.Millisecond
		}
	}
}

// readRecords reads the record of a lane, and those of the lanes which may share an item with it.
func (q *Queue) readRecords(ctx context.Context, tx kv.ReadTx, lane string) (*record, []heldLane, error) {
	if q.keys.plan == nil {
		l, err := q.readLock(ctx, tx, lane)
		if err == nil {
			l, err = q.lasting(ctx, tx, l, beatsSeen{})
		}
		return l, nil, err
	}
	rows, err := tx.GetRange(q.keys.locks(groupOf(lane)).Selectors(), kv.RangeOptions{}).Wait(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read locks: %w", err)
	}
	own, others, err := q.unpackLocks(lane, rows)
	if err != nil || isPart(lane) || !q.keys.hasHolds() {
		return own, others, err
	}
	held, err := q.heldHead(ctx, tx, lane)
	return own, append(others, held...), err
}

// readRecordsOver is readRecords, with the hold of an item of the group among the others, if the item is held.
func (q *Queue) readRecordsOver(
	ctx context.Context, tx kv.ReadTx, lane string, id ID,
) (own *record, others []heldLane, err error) {
	own, others, err = q.readRecords(ctx, tx, lane)
	hold := holdLane(id)
	seen := func(o heldLane) bool { return o.lane == hold }
	if err != nil || !q.keys.hasHolds() || slices.ContainsFunc(others, seen) {
		return own, others, err
	}
	r, err := q.readLock(ctx, tx, hold)
	if r != nil {
		others = append(others, heldLane{lane: hold, record: r})
	}
	return own, others, err
}

// heldHead returns the hold of a group's first item, if there is one.
func (q *Queue) heldHead(ctx context.Context, tx kv.ReadTx, group string) ([]heldLane, error) {
	first := q.firstHold(tx, group)
	head, err := q.firstItem(ctx, tx, q.keys.items(group))
	if err != nil || head == nil {
		return nil, err
	}
	rows, err := first.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read hold: %w", err)
	}
	p, err := q.keys.parse(head)
	if err != nil || len(rows) == 0 || !bytes.Equal(rows[0].Key, q.keys.hold(p.itemID())) {
		return nil, err
	}
	return q.unpackHolds(rows)
}

// describeHead adds to info what the items of the group say.
func (q *Queue) describeHead(
	ctx context.Context, tx kv.ReadTx, info *GroupInfo, lane string, head []byte, maxDepth int64,
) error {
	p, err := q.keys.parse(head)
	if err != nil {
		return err
	}
	info.Head = p.itemID()
	head = q.keys.item(info.Head)
	now := q.nowMS()
	value, record, pace := tx.Get(head), tx.Get(q.keys.attempt(info.Head)), q.readPace(tx, p.group)
	v, err := value.Wait(ctx)
	if err != nil {
		return fmt.Errorf("read head: %w", err)
	}
	e, _, err := openEnvelope(v)
	if err != nil {
		return corrupt(head, err)
	}
	config := q.Config()
	if due := config.retro().due(&e); due > now && info.Status == Ready {
		info.Status, info.Left = Delayed, time.Duration(due-now)*time.Millisecond
	}
	if info.Status == Ready && pace != nil {
		a, err := q.allowance(ctx, q.Config().MaxRate, p.group, pace, now)
		if err != nil {
			return err
		}
		if a.untilMS > now {
			info.Status, info.Left = RateLimited, time.Duration(a.untilMS-now)*time.Millisecond
		}
	}
	info.HeadAge = max(0, time.Duration(now-e.enqueuedMS)*time.Millisecond)
	if v, err = record.Wait(ctx); err != nil {
		return fmt.Errorf("read attempts: %w", err)
	}
	if v != nil {
		a, err := unpackAttempt(q.keys.attempt(info.Head), v)
		if err != nil {
			return err
		}
		info.Attempts, info.LastError = a.count, a.lastErr
	}
	info.Depth, err = countKeys(ctx, tx, q.keys.items(lane), maxDepth)
	return err
}
