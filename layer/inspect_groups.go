package layer

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// Keys have their names in the table of subspace.go. A lane is a whole group, the part of a group that a template
// matches, the free items of a group, or a single item. A hold is the lock of a single item. A lane has a name, see
// package lanes, and that of a whole group is the group. A packed template has the values of the template as they are
// in keys; "" = whole groups. The head is the first item of a lane. A lane that may have an item of another intersects
// it. Then a claim of the one keeps receives from the other. skipsRow(err) reports whether a row cannot be read: such a
// row is left out.
//
// The plan of a queue (lanes.Plan) says which lanes its groups have. IsPlain means that each group is one lane.
// HasHolds means that single items are claimed. At returns the condition of a lock (rec.Condition). Claimed, Granted
// and Delayed mean that its claim, grant or retry delay lasts. Lapsed means a claim whose lease has expired, and Over a
// grant or delay that has ended. Marked means a mark without a holding, and Unheld no lock. Keeps reports whether
// receives must pass over a lane in that condition: in all except Unheld, Lapsed and Over.

// GroupInfo describes a group.
type GroupInfo struct {
	Group       string
	Status      Status
	Depth       int64         // items, the held ones included; counted up to GroupsOptions.MaxDepth
	Head        ID            // zero if the group is empty, or cannot be read
	HeadAge     time.Duration // since the head was enqueued
	Attempts    int           // failed deliveries of the head
	LastError   string        // of the head's last failed delivery; of a Corrupt group, why it cannot be read
	Owner       string        // of a held, expired or excluded group
	Token       int64         // of the claim that Owner has
	Outstanding int           // items delivered and not acked, of up to 100 claims of each view or 10,000 of items
	// Where is the template of the claim that Owner has. Without a claim it is that of the mark or delay, if an
	// intersecting lane has it; nil = the whole group, or the lane that was asked about.
	Where Template
	// Hold is the group's head if Owner has the head by itself: by an unordered receive, or in a queue with
	// LeasePerItem. Zero = Owner has the group, or a lane.
	Hold ID
	// Left is the rest of the lease or of the delay, or the time until the rate lets the group go on, by this process's
	// clock; negative if expired.
	Left time.Duration
	// Mark is the pause or halt of the group, with its author and reason; nil = none. A held or expired group has a
	// Mark if it was marked under its claim. The pause or halt begins when the claim ends.
	Mark *Mark
}

// GroupsOptions bound a listing. The zero value lists the first 1,000 groups.
type GroupsOptions struct {
	// After is the group behind which the page begins: GroupsPage.Next of the page before; nil = the page begins with
	// the first group. The group need not be there.
	After *string
	// Limit is the number of groups of a page; 0 = 1,000.
	Limit int
	// Marked lists, in place of the groups that have items, the groups which are paused or halted, or will be when
	// their claims end, the empty ones included.
	Marked bool
	// MaxDepth bounds the count of a group's items; 0 = 100,000.
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
	defaultGroups   = 1000
	defaultMaxDepth = 100_000
)

// groupsPerView bounds the groups listed in one transaction, because a transaction may last 5 s at most. If the
// transactions take long, they list fewer.
const groupsPerView = 100

// Group describes one group, whether or not there are items. Items are counted up to 100,000. With a template
// Group describes what the template sees of the group; nil = the whole group.
//
// Reads, at snapshot: the lock, the locks of lanes that may share an item, the holds, and the beat of a claim by
// heartbeat. If there are items: the head, its attempt record, the used rate (pace), and the keys of the items, to
// count them. Also the configuration and the pause (meta), unless the handle's copy is fresh.
//
// Errors: *LimitError and ErrInvalidUTF8 for the name, *TemplateError, ErrOptions, ErrNoQueue, ErrCorrupt for the
// configuration, ErrClosed, and the engine's. An unreadable group is Corrupt.
func (a Admin) Group(ctx context.Context, name string, where Template) (GroupInfo, error) {
	q := a.q
	if err := checkGroup(name); err != nil {
		return GroupInfo{}, wrap("group", err)
	}
	lane, err := q.keys.laneAt(name, where)
	if err != nil {
		return GroupInfo{}, wrap("group", err)
	}
	info, err := viewFor(ctx, q, func(v *view) (GroupInfo, error) {
		head, err := v.firstItem(v.keys.items(lane))
		if err != nil {
			return GroupInfo{}, err
		}
		return inspection{v}.describe(lane, head, defaultMaxDepth)
	})
	return info, wrap("group", err)
}

// Groups lists up to Limit groups by name, behind After. It lists the groups that have items, with Where those that
// have items of the template, and with Marked those that are paused or halted. Pass Next of the result as After to
// continue; nil = there are no more groups. Groups conflicts with nothing and changes nothing. A long listing is made
// of several transactions: each entry is true of one moment, the list as a whole is not.
//
// Reads, at snapshot: from group to group a key item, with Where a key lane, with Marked a key mark. Of each group:
// the lock, the locks of lanes that may share an item, the holds, and the beat of a claim by heartbeat. Of a group
// with items also: the head, its attempt record, the used rate (pace), and the keys of the items, to count them.
// Groups also reads the configuration and the pause (meta), unless the handle's copy is fresh.
//
// Errors: *LimitError, ErrInvalidUTF8, *TemplateError, ErrOptions, ErrNoQueue, ErrCorrupt for the configuration,
// ErrClosed, and the engine's. An unreadable group is listed as Corrupt.
func (a Admin) Groups(ctx context.Context, o GroupsOptions) (GroupsPage, error) {
	q := a.q
	o.Limit = cmp.Or(o.Limit, defaultGroups)
	o.MaxDepth = cmp.Or(o.MaxDepth, defaultMaxDepth)
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
	walk := groupWalk{keys: q.keys, o: &o, name: nameItem}
	switch {
	case o.Marked && o.Where != nil:
		return GroupsPage{}, wrap("groups", fmt.Errorf("%w: marked groups by template", ErrOptions))
	case o.Marked:
		walk.name = nameMark
	case o.Where != nil:
		var err error
		if walk.where, err = q.keys.where(o.Where); err != nil {
			return GroupsPage{}, wrap("groups", err)
		}
		walk.name = nameLane
	}
	from := walk.keys.section(walk.name).Begin
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
		err := q.view(ctx, func(v *view) (err error) {
			page, next, err = walk.page(inspection{v}, from, min(groupsPerView, o.Limit-len(all.Groups)))
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
	all.Next = new(all.Groups[len(all.Groups)-1].Group)
	return all, nil
}

// inspection is a look for people at one version of the database: at groups, at their holders, at figures. All reads
// are at snapshot, so they conflict with nothing, and their number is bounded. It writes nothing.
type inspection struct{ *view }

// groupWalk is a listing of groups, by the keys item, mark or lane, in the order of the groups.
type groupWalk struct {
	keys  subspace
	o     *GroupsOptions
	where string // the packed template; "" = whole groups
	name  string // of the keys item, mark or lane: each listed group has one of them
	// begun is the start of the last page. slow counts the pages that outlasted slowStats: each divides the number of
	// groups of a page by four, because a page with deep groups may outlast a transaction.
	begun time.Time
	slow  int
}

// behind returns the key behind all keys with the name that are of a group: there the next group begins.
func (w *groupWalk) behind(group string) []byte { return w.keys.withLanes(w.name, group).End }

// page reads up to n groups, the first at or behind the key from. next is where the next page begins; nil = there are
// no more groups. It finds each group by a key with the name, and then reads what describe reads. The page may have
// fewer groups: by template, because groups without a match are looked at, too, and after a slow page. At the end the
// items of all groups are counted, up to MaxDepth of each.
func (w *groupWalk) page(v inspection, from []byte, n int) (groups []GroupInfo, next []byte, err error) {
	if !w.begun.IsZero() && time.Since(w.begun) > slowStats {
		w.slow++
	}
	w.begun = time.Now()
	most, section := halved(groupsPerView, 2*w.slow), w.keys.section(w.name)
	var deep []int // the groups to count
	var items []kv.KeyRange
	next = from
	for looks := 0; len(groups) < min(n, most) && looks < most; looks++ {
		k, err := v.read.GetKey(kv.FirstGreaterOrEqual(next)).Wait(v.ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("read next group: %w", err)
		}
		if !section.Contains(k) {
			next = nil
			break
		}
		p, err := v.keys.parse(k)
		if v.skipsRow(err) {
			next = kv.KeyAfter(k)
			continue
		}
		head, lane := k, lanes.Name(p.group, w.where)
		next = w.behind(p.group)
		if w.o.Marked || w.where != "" {
			if head, err = v.firstItem(v.keys.items(lane)); err != nil {
				return nil, nil, err
			}
		}
		if head == nil && w.where != "" {
			continue
		}
		info, err := v.describe(lane, head, 0)
		if err != nil {
			return nil, nil, err
		}
		if head != nil && info.Status != Corrupt {
			deep, items = append(deep, len(groups)), append(items, v.keys.items(lane))
		}
		groups = append(groups, info)
	}
	depths, err := v.countKeysOfEach(items, w.o.MaxDepth)
	for i, n := range depths {
		groups[deep[i]].Depth = n
	}
	return groups, next, err
}

// describe returns the status of a lane, and the other facts of a GroupInfo. head is the key of the lane's first item;
// nil = the lane has no items. It reads the lock, those of intersecting lanes, the beat and the holds, and, if there is
// a head, the keys that describeHead reads. It counts up to maxDepth items. A row that cannot be read is no error: the
// status is Corrupt then, with the error as LastError.
func (v inspection) describe(lane string, head []byte, maxDepth int64) (GroupInfo, error) {
	info, err := v.describeLock(lane)
	if err == nil && head != nil {
		err = v.describeHead(&info, lane, head, maxDepth)
	} else if err == nil && info.Status == Ready {
		info.Status = Empty
	}
	if isCorrupt(err) {
		info.Status, info.LastError = Corrupt, err.Error()
		return info, nil
	}
	return info, err
}

// describeLock is describe without the items. It reads as readRecords does. It sets the status by the locks: Ready
// means that no lock keeps the lane, apart from a grant of an intersecting lane. In a queue with claims of single items
// it also reads the holds of the group, to count the items in flight.
func (v inspection) describeLock(lane string) (GroupInfo, error) {
	info := GroupInfo{Group: lanes.GroupOf(lane)}
	l, others, err := v.readRecords(lane)
	if err != nil {
		return info, err
	}
	now, cond := v.nowMS, l.At(v.nowMS)
	info.Mark = publicMark(l.Mark())
	if cond == rec.Marked {
		info.Status = info.Mark.Status
	} else {
		info.Status = map[rec.Condition]Status{
			rec.Unheld: Ready, rec.Over: Ready, rec.Delayed: Delayed, rec.Granted: Granted, rec.Claimed: Held,
			rec.Lapsed: Expired,
		}[cond]
	}
	if h := l.Holding(); h != nil && cond != rec.Over {
		info.Left = time.Duration(h.EndMS-now) * time.Millisecond
	}
	if c := l.Claim(); c != nil {
		info.Owner, info.Token, info.Outstanding = c.Owner, c.Token, len(c.Items)
		info.Where = v.keys.plan.TemplateOf(lane)
	}
	// No holding that lasts, and no mark alone, is in the lane's own lock: a lock of another lane may keep it.
	if !cond.Keeps() {
		info.others(v.keys.plan, lane, others, now)
	}
	if v.keys.plan.HasHolds() {
		if info.Outstanding, err = v.inHand(lane); l.Claim() != nil {
			info.Outstanding += len(l.Claim().Items) // of a claim of the whole group
		}
	}
	return info, err
}

// others completes info, and reads nothing. all are the locks of lanes that intersect the lane. others adds the items
// of all their claims to Outstanding. The first claim whose lease lasts sets the status, the owner and the time left.
// The status is then Held for a whole group, of which a lane is held, and Excluded for the lane of a template. Without
// such a claim the status becomes that of the first mark, and without a mark that of a delay.
func (info *GroupInfo) others(plan lanes.Plan, lane string, all []heldLane, nowMS int64) {
	status := Held
	if lanes.IsPart(lane) {
		status = Excluded
	}
	held := false
	for _, other := range all {
		m, c := other.record.Mark(), other.record.Claim()
		if c != nil {
			info.Outstanding += len(c.Items)
		}
		switch {
		case c != nil && !held && other.record.At(nowMS) == rec.Claimed:
			held = true
			info.Status, info.Owner, info.Token, info.Where = status, c.Owner, c.Token, plan.TemplateOf(other.lane)
			info.Hold, _ = holdOf(other.lane)
			info.Left = time.Duration(c.EndMS-nowMS) * time.Millisecond
		case c == nil && m != nil && info.Mark == nil:
			info.Mark = publicMark(m)
			if !held {
				info.Status, info.Where = info.Mark.Status, plan.TemplateOf(other.lane)
			}
		case other.record.At(nowMS) == rec.Delayed && info.Status == Ready:
			info.Status, info.Where = Delayed, plan.TemplateOf(other.lane)
			info.Left = time.Duration(other.record.Holding().EndMS-nowMS) * time.Millisecond
		}
	}
}

// readRecords reads the lock of a lane, and those of intersecting lanes: up to locksOfPage in each range of keys where
// they may be. others is empty if no lock of another lane is in the way. For a whole group others also has the hold of
// the first item: see heldHead. A claim by heartbeat in own gets the present end of its lease, from the key beat.
func (v inspection) readRecords(lane string) (*rec.Record, []heldLane, error) {
	own, others, err := v.waitLaneLock(lane, v.readLaneLock(v.read, lane, locksOfPage))
	if err == nil {
		own, err = v.withPresentEnd(own, beatsSeen{})
	}
	if err != nil {
		return own, others, err
	}
	held, err := v.heldHead(lane)
	return own, append(others, held...), err
}

// readRecordsOver is readRecords, and adds to others the locks whose claims may have the item: of the whole group, of
// the item's lanes, and its hold. In a queue in which each group is one lane it adds nothing. It reads the item for its
// facets; an item that is gone has none. Of a claim by heartbeat it reads the beat.
func (v inspection) readRecordsOver(lane string, id ID) (own *rec.Record, others []heldLane, err error) {
	own, others, err = v.readRecords(lane)
	if err != nil || v.keys.plan.IsPlain() {
		return own, others, err
	}
	value, err := v.read.Get(v.keys.item(id)).Wait(v.ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read item: %w", err)
	}
	over, err := v.recordsOver(id, v.keys.plan.FacetsIn(value))
	for _, o := range over {
		if o.lane != lane && !slices.ContainsFunc(others, func(h heldLane) bool { return h.lane == o.lane }) {
			others = append(others, o)
		}
	}
	return own, others, err
}

// recordsOver reads the locks that may have an item: of the whole group, of the lanes of its facets, and its hold.
// facets are packed. A claim by heartbeat gets the present end of its lease.
func (v inspection) recordsOver(id ID, facets string) (all []heldLane, err error) {
	over, _ := v.keys.lanesOver(id, facets)
	for _, lane := range over {
		r, err := v.readLock(lane)
		if err == nil {
			r, err = v.withPresentEnd(r, beatsSeen{})
		}
		if err != nil {
			return nil, err
		}
		if r != nil {
			all = append(all, heldLane{lane: lane, record: r})
		}
	}
	return all, nil
}

// heldHead returns the hold of the first item of a whole group, in a list; nil = that item has no hold, or the lane is
// no whole group. It reads the first item's key and the first hold of the group. A hold of a later item does not count.
// A queue without claims of single items has no holds.
func (v inspection) heldHead(lane string) ([]heldLane, error) {
	first := v.firstHold(lane)
	if first == nil {
		return nil, nil
	}
	head, err := v.firstItem(v.keys.items(lane))
	if err != nil || head == nil {
		return nil, err
	}
	rows, err := first.Wait(v.ctx)
	if err != nil {
		return nil, fmt.Errorf("read hold: %w", err)
	}
	p, err := v.keys.parse(head)
	if err != nil || len(rows) == 0 || !bytes.Equal(rows[0].Key, v.keys.hold(p.itemID())) {
		return nil, err
	}
	return v.unpackHolds(rows)
}

// describeHead adds to info the facts about the items of a lane. It reads the head, its attempts, and the rate of the
// group (key pace), and counts the keys of the items up to maxDepth. If no lock keeps the lane, the status may become
// Delayed, because the head is not due, or RateLimited.
func (v inspection) describeHead(info *GroupInfo, lane string, head []byte, maxDepth int64) error {
	p, err := v.keys.parse(head)
	if err != nil {
		return err
	}
	info.Head = p.itemID()
	head = v.keys.item(info.Head)
	now := v.nowMS
	first, record, pace := v.read.Get(head), v.read.Get(v.keys.attempt(info.Head)), v.readPace(p.group)
	value, err := first.Wait(v.ctx)
	if err != nil {
		return fmt.Errorf("read head: %w", err)
	}
	e, _, err := rec.OpenEnvelope(value)
	if err != nil {
		return rec.Corrupt(head, err)
	}
	if due := v.known().retro().due(&e); due > now && info.Status == Ready {
		info.Status, info.Left = Delayed, time.Duration(due-now)*time.Millisecond
	}
	if info.Status == Ready {
		untilMS, err := v.pacedUntil(p.group, pace)
		if err != nil {
			return err
		}
		if untilMS > now {
			info.Status, info.Left = RateLimited, time.Duration(untilMS-now)*time.Millisecond
		}
	}
	info.HeadAge = max(0, time.Duration(now-e.EnqueuedMS)*time.Millisecond)
	a, _, err := waitRow(v.ctx, record, "attempts", v.keys.attempt(info.Head), rec.UnpackAttempt)
	if err != nil {
		return err
	}
	info.Attempts, info.LastError = a.Count, a.LastError
	info.Depth, err = v.countKeys(v.keys.items(lane), maxDepth)
	return err
}

// pacedUntil returns when (ms) the rate of a group allows the next item; 0 = now. f is the read that readPace has
// started.
func (v inspection) pacedUntil(group string, f kv.Future[[]byte]) (untilMS int64, err error) {
	if f == nil {
		return 0, nil
	}
	used, err := v.waitPace(group, f)
	return v.known().MaxRate.allowance(used, v.nowMS).untilMS, err
}

// HolderInfo is an owner of claims, and how much of the queue these claims hold.
type HolderInfo struct {
	Owner string
	// Groups is the number of groups under a claim of the owner. A claim with an expired lease counts until another
	// takes over. In a queue with facets a group counts once for each template that has a claim of it. Items with
	// claims of their own count as their group, once.
	Groups      int
	Outstanding int // items delivered and not acked
	// LongestHold is about how long the oldest of these claims has lasted, and Longest its group. A version of the
	// database counts as a microsecond.
	LongestHold time.Duration
	Longest     string
	// LeastLeft is the shortest time that is left of a lease; negative = the lease has expired.
	LeastLeft time.Duration
}

// HoldersPage lists the owners that hold groups of a queue.
type HoldersPage struct {
	Holders []HolderInfo // the owner with the oldest claim first
	Groups  int          // held, among those looked at; counted as HolderInfo.Groups is
	// Sampled: Holders has not read all timers of the queue. Owners may be missing, and numbers may be too small.
	Sampled bool
	Waiting int64 // handles which have receives that wait, as Stats.WaitingHandles counts them
}

// holdersLocks bounds the locks that Holders reads.
const holdersLocks = 1000

// Holders lists the owners that hold groups. It reads up to 10,000 timers in keys timer: of whole groups, and with
// LeasePerItem of single items. Then it reads up to 10,000 in keys due: of lanes, and in an unordered queue of single
// items. It stops at 1,000 claims. A claim by heartbeat counts as a timer. In a plain queue with one shard these are
// the claims whose leases end first, so leases that have expired, and those that are not extended, are among them.
// Holders conflicts with nothing, and changes nothing. All results are of one moment.
//
// Reads, at snapshot: timers, claims by heartbeat with their beats, locks, holds, and the requests of waiting receives.
// Also the configuration and the pause (meta), unless the handle's copy is fresh.
//
// Errors: ErrCorrupt, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Holders(ctx context.Context) (HoldersPage, error) {
	page, err := viewFor(ctx, a.q, func(v *view) (HoldersPage, error) { return inspection{v}.holders() })
	return page, wrap("holders", err)
}

// holders is Holders at one version. It finds held lanes by their timers, or keys held, and reads their locks, the
// beats, and the requests of the handles whose receives wait.
func (v inspection) holders() (page HoldersPage, err error) {
	now, err := v.moment()
	if err != nil {
		return page, fmt.Errorf("read version: %w", err)
	}
	held, more, err := v.heldLanes()
	if err != nil {
		return page, err
	}
	page.Sampled = more
	records, _, err := v.readLocks(held)
	if err != nil {
		return page, err
	}
	requests, _, err := v.requests()
	if err != nil {
		return page, err
	}
	page.Waiting = handlesOf(requests)
	type owner struct {
		HolderInfo
		groups map[string]bool
	}
	owners, groups := map[string]*owner{}, map[string]bool{}
	for i, r := range records {
		h := r.Claim()
		if h == nil {
			continue
		}
		left := time.Duration(h.EndMS-v.nowMS) * time.Millisecond
		o := owners[h.Owner]
		if o == nil {
			o = &owner{HolderInfo: HolderInfo{Owner: h.Owner, LeastLeft: left}, groups: map[string]bool{}}
			owners[h.Owner] = o
		}
		lane := held[i].group
		group := lanes.GroupOf(lane)
		// A claim of a single item counts as one of its group.
		if lanes.IsHold(lane) {
			lane = group
		}
		groups[lane], o.groups[lane] = true, true
		o.Outstanding += len(h.Items)
		o.LeastLeft = min(o.LeastLeft, left)
		if d := max(0, now.span(h.Token)); d >= o.LongestHold {
			o.LongestHold, o.Longest = d, group
		}
	}
	page.Groups = len(groups)
	for _, o := range owners {
		o.Groups = len(o.groups)
		page.Holders = append(page.Holders, o.HolderInfo)
	}
	slices.SortFunc(page.Holders, func(x, y HolderInfo) int {
		return cmp.Or(-cmp.Compare(x.LongestHold, y.LongestHold), cmp.Compare(x.Owner, y.Owner))
	})
	return page, nil
}

// heldLanes returns up to holdersLocks lanes under a claim, each once, with the index of its head. The field group is
// the name of the lane. It finds them by timers of kind claim, and by the keys held of claims by heartbeat. It reads
// the timers of whole groups first (key timer). Those of holds may be among them. Then it reads the timers of all
// templates together, in the order of their keys (key due). In a shard of a template the lease that ends first comes
// first. more says that there are, or may be, timers that it has not read.
func (v inspection) heldLanes() (held []head, more bool, err error) {
	seen := map[string]bool{}
	note := func(t timerRow) (enough bool) {
		lane := t.key.lane
		if t.kind != rec.KindClaim || seen[lane] {
			return false
		}
		if len(held) == holdersLocks {
			return true
		}
		seen[lane] = true
		held = append(held, head{group: lane, index: t.head})
		return false
	}
	more, err = v.firstTimers("", statsTimers, note)
	for _, section := range v.keys.sections(nameDue) {
		if err != nil {
			break
		}
		var byTemplate bool
		byTemplate, err = v.passTimers(section, statsTimers, note)
		more = more || byTemplate
	}
	return held, more, err
}

// Each marked group, or lane, has a key of its own, ("mark", group), in addition to the mark in its record. So the
// marked groups, also empty ones, can be listed without a walk over all records, and statistics can pass over their
// hints. put writes both.

// statsMarks bounds the marked groups, and the hints of each shard, which Stats reads to tell marked groups from ready
// groups.
const statsMarks = 10_000

// readMarked reads the first statsMarks keys mark, and returns the groups of which a mark stops the lane of the
// template: the mark is on that lane, or on an intersecting one. where is a packed template. more says that there may
// be more marks.
func (v inspection) readMarked(where string) (marked map[string]bool, more bool, err error) {
	rows, err := v.read.GetRange(v.keys.section(nameMark).Selectors(), kv.RangeOptions{Limit: statsMarks}).Wait(v.ctx)
	if err != nil {
		return nil, false, fmt.Errorf("read marks: %w", err)
	}
	marked = make(map[string]bool, len(rows))
	for _, row := range rows {
		p, err := v.keys.parse(row.Key)
		if v.skipsRow(err) {
			continue
		}
		if v.keys.plan.Intersect(p.lane, lanes.Name(p.group, where)) {
			marked[p.group] = true
		}
	}
	return marked, len(rows) == statsMarks, nil
}

// hints reads the hints in a range, which are those of one shard (keys ready or open), up to statsMarks of them. It
// adds the oldest ready groups to oldestReady, and returns how many hints are of marked groups. If no group is marked,
// it ends with the first page that has the hint of a ready group.
func (c *groupCounts) hints(in kv.KeyRange) (marked int64, err error) {
	hints := newCursor(in)
	for read, found := 0, 0; read < statsMarks && !hints.exhausted; {
		limit := 1
		if len(c.marked) > 0 || len(c.hinted) > 0 {
			limit = 1000
		}
		rows, err := hints.read(c.read, limit).Wait(c.ctx)
		if err != nil {
			return marked, fmt.Errorf("read hints: %w", err)
		}
		hints.passed(rows, limit)
		read += len(rows)
		for _, row := range rows {
			p, err := c.keys.parse(row.Key)
			switch {
			case c.skipsRow(err):
			case c.marked[p.group]:
				marked++
			case c.notReady(p.lane):
			case found < statsHeads:
				found++
				c.oldestReady = oldHeads(c.oldestReady, head{group: p.group, index: p.index})
			}
		}
		if len(c.marked) == 0 && found > 0 {
			break
		}
	}
	return marked, nil
}

// notReady reports whether the hints of a lane are known, by verify, to lead to no ready group.
func (c *groupCounts) notReady(lane string) bool {
	says, known := c.hinted[lane]
	return known && says != hintReady
}
