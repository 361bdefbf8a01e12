package layer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// Why follows an item's way to a receive: the pause of the queue, the locks that may keep its lane, the item itself,
// the items before it, the rates, and at last the hint or timer by which a receive finds the lane. It adds a reason for
// each obstacle that it meets.
//
// Keys have their names in the table of subspace.go. A hint is a key ready or open, and leads to a ready lane. A timer
// is a key timer or due, and leads to a lane that is held or delayed. A lane is a whole group, the part of a group that
// a template matches, or a single item. A hold is the lock of a single item. A lane has a name, see package lanes, and
// that of a whole group is the group. The head is the first item of the lane. An inspection is a look for people at one
// version of the database: all reads are at snapshot, and it writes nothing. skipsRow(err) reports whether a row cannot
// be read: such a row is left out.
//
// The plan of a queue (lanes.Plan) says which lanes its groups have. IsPlain means that each group is one lane.
// NeedsHint reports whether a receive can claim a lane. At returns the condition of a lock (rec.Condition). Claimed,
// Granted and Delayed mean that its claim, grant or retry delay lasts. Lapsed means a claim whose lease has expired,
// and Over a grant or delay that has ended. Marked means a mark without a holding, and Unheld no lock. Keeps reports
// whether receives must pass over a lane in that condition: in all except Unheld, Lapsed and Over.

// Cause is a kind of reason why an item is not being delivered.
type Cause string

// The causes. An explanation begins with the pause of the queue. Then come the locks, each with its claim, delay or
// grant before its mark. Then come the item, the head, the items before it, and the rates. If nothing of that keeps the
// group, the last reason says whether a receive may take it.
const (
	// CauseGone: there is no such item, and no such dead letter: see ErrNoItem. An archived item is gone, too.
	CauseGone Cause = "gone"
	// CauseDead: the item has failed for good, after Count failed attempts. Err is the reason and the last error.
	CauseDead Cause = "dead"
	// CauseQueuePaused: the whole queue is paused: Mark.
	CauseQueuePaused Cause = "queue paused"
	// CauseGroupPaused, CauseGroupHalted: the item's group bears a mark: Mark.
	CauseGroupPaused Cause = "group paused"
	CauseGroupHalted Cause = "group halted"
	// CauseInFlight: the item was delivered to Owner, under Token, and is not acked yet. Left is the rest of the lease.
	CauseInFlight Cause = "in flight"
	// CauseGroupHeld: Owner holds the group, under Token, for other items. In Blocked they may be any items. Left is
	// the rest of the lease.
	CauseGroupHeld Cause = "group held"
	// CauseLeaseExpired: the lease of the group's last holder, Owner, expired -Left ago. The next receive or take that
	// looks at the group takes over. Until then Owner may still ack under Token.
	CauseLeaseExpired Cause = "lease expired"
	// CauseExcluded: a claim excludes the template, or the whole group, that was asked about. It is of an intersecting
	// template, Where, or of the whole group if Where is nil. Owner has held it since Since, under Token. Left is the
	// rest of the lease.
	CauseExcluded Cause = "excluded"
	// CauseHeadHeld: a claim of a single item, by an unordered receive or in a queue with a lease for each item, has
	// the first item of the group. Owner has held it since Since, under Token. Left is the rest of the lease. Until
	// then receives of the group get nothing.
	CauseHeadHeld Cause = "head held"
	// CauseOtherFacets: the item does not agree with the template that was asked about, Where.
	CauseOtherFacets Cause = "other facets"
	// CauseGranted: the group is kept for a handle whose receives wait, for Left at most.
	CauseGranted Cause = "granted"
	// CauseDelayed: the group waits for a retry of its head. Left is the rest of the delay.
	CauseDelayed Cause = "delayed"
	// CauseItemDelayed, CauseHeadDelayed: the item, or the head of its group, must not be delivered before Left has
	// passed.
	CauseItemDelayed Cause = "item delayed"
	CauseHeadDelayed Cause = "head delayed"
	// CauseRateLimited: the group has used up its rate (Config.MaxRate), for Left.
	CauseRateLimited Cause = "rate limited"
	// CauseQueueRateLimited: the queue has used up its rate (Config.MaxRateTotal), for Left; a handle which has drawn a
	// portion before may deliver from it.
	CauseQueueRateLimited Cause = "queue rate limited"
	// CauseFailed, CauseHeadFailed: the delivery of the item, or of the head of its group, has failed Count times. Err
	// is the last error.
	CauseFailed     Cause = "failed"
	CauseHeadFailed Cause = "head failed"
	// CauseBehind: Count items of the group come before the item.
	CauseBehind Cause = "behind"
	// CauseTurn: the group is ready; Count other ready groups are older, or about as many. Blocked does not count them
	// (Count is 0): receives wait that may take the group.
	CauseTurn Cause = "turn"
	// CauseNobodyWaits: the group is ready, and no receive waits that may take the group. Busy workers come back.
	// Without workers the item is not delivered.
	CauseNobodyWaits Cause = "nobody waits"
	// CauseReady: the group is ready, and Count handles have waiting receives, so delivery is about to happen. If the
	// question is about a template, Where, handles are not counted: the next receive by that template gets the group.
	CauseReady Cause = "ready"
	// CauseCorrupt: the lock or the head of the group cannot be read; Err says why. See Check.
	CauseCorrupt Cause = "corrupt"
	// CauseEmpty: there are no items in the group that was asked about.
	CauseEmpty Cause = "empty"
	// CauseUnreachable: the queue breaks its rules: nothing leads to the group. See Check.
	CauseUnreachable Cause = "unreachable"
)

// Reason is a reason why an item is not being delivered. The comment of its Cause says which fields are set. In
// addition each reason of Why about a claim has Since, Lease and Age, and each about a claim, delay, grant or mark has
// Where. The other fields are zero.
type Reason struct {
	Cause Cause
	// Count is a number of attempts, items, groups or handles: see Cause. More says that the counting stopped at Count.
	Count int64
	// More says that the counting stopped at Count.
	More  bool
	Owner string        // of the claim that the reason is about
	Token int64         // of that claim
	Left  time.Duration // until the lease, delay or rate lets the group go on; negative if that is over
	Err   string        // the last error of a handler, or why something cannot be read
	Mark  *Mark         // the pause or halt
	// Where is the template of the claim, delay or mark that the reason is about; nil = the whole group.
	Where Template
	// Since is when a claim was made, by the holder's clock; zero = not known.
	Since time.Time
	// Lease is how long a claim lasts in all, from Since on, with its extensions. Age is how old the claim is by the
	// versions of the database, which no clock of a process changes. Both are zero if Age is not known. Example: Left
	// is negative and Age is less than Lease: the clock of this process may be ahead.
	Lease, Age time.Duration
}

// Explanation is why an item is not being delivered.
type Explanation struct {
	ID ID
	// Where is the template by whose receives the item would be delivered; nil = by receives of whole groups.
	Where Template
	// Reasons has at least one element. Each but the last must come to an end before the item is delivered, except
	// CauseFailed, CauseHeadFailed and CauseTurn. Of the claims that exclude a lane it has up to 100 of each view.
	Reasons []Reason
}

// Why counts keys up to whyCap, and reads up to whyRows pairs of a kind.
const (
	whyCap  = 10_000
	whyRows = 1000
)

// Why says why an item is not being delivered, or not yet, by the state of the queue at this moment. Why conflicts with
// nothing and changes nothing, and reads a bounded number of keys.
//
// In a queue with facets the template says by whose receives. nil = receives of whole groups, or, if "*" is no view,
// those by the first view.
//
// Reads, at snapshot: the item, the head of its group or lane, the pause of the queue, the locks and holds that may
// keep them, the beat of a claim by heartbeat, attempts, the rates, hints, timers, and the requests of waiting
// receives. If the item is not there: its dead letter. Also the configuration (meta), unless the handle's copy is
// fresh.
//
// Errors: ErrInvalidID, *TemplateError, *LimitError and ErrInvalidUTF8 for the template, ErrOptions, ErrCorrupt,
// ErrNoQueue, ErrClosed, and the engine's. A missing item is no error: CauseGone.
func (a Admin) Why(ctx context.Context, id ID, where Template) (Explanation, error) {
	if err := checkID(id); err != nil {
		return Explanation{ID: id}, wrap("why", err)
	}
	return a.q.why(ctx, id, where, (*explaining).explainItem)
}

// why calls explain in a transaction that only reads (Queue.view), and returns the reasons that explain has added.
// explain gets an explaining that has the id and a lane. The lane is the part of the id's group that the template where
// matches, or the whole group if where is nil.
func (q *Queue) why(
	ctx context.Context, id ID, where Template, explain func(x *explaining) error,
) (e Explanation, err error) {
	packed, err := q.keys.whereGiven(where)
	if err != nil {
		return Explanation{ID: id}, wrap("why", err)
	}
	err = q.view(ctx, func(v *view) error {
		m, err := v.moment()
		if err != nil {
			return err
		}
		x := &explaining{inspection: inspection{v}, now: m, id: id, lane: lanes.Name(id.Group, packed)}
		err = explain(x)
		e = Explanation{ID: x.id, Where: x.keys.plan.TemplateOf(x.lane), Reasons: x.reasons}
		return err
	})
	if err != nil {
		return Explanation{ID: id}, wrap("why", err)
	}
	return e, nil
}

// WhyGroup says why the first message of a group is not being delivered, as Why does for its id. The explanation of an
// empty group has the group in its ID, and nothing else of the ID; its reasons are what keeps the group, a mark for
// example, and CauseEmpty.
//
// With a template it is the first message of the group that agrees with the template; nil = the first of the group.
//
// Reads, at snapshot: the key of the head, and then the keys that Why reads. If there is no head: the locks, and the
// beat of a claim by heartbeat.
//
// Errors: *LimitError and ErrInvalidUTF8 for the name or the template, *TemplateError, ErrOptions, ErrCorrupt,
// ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) WhyGroup(ctx context.Context, group string, where Template) (Explanation, error) {
	if err := checkGroup(group); err != nil {
		return Explanation{}, wrap("why", err)
	}
	return a.q.why(ctx, ID{Group: group}, where, (*explaining).explainGroup)
}

// explainItem explains why the item x.id is not delivered by receives of x.lane. If the lane is the whole group, and
// the queue has no receives of whole groups, it explains for the first view instead: it reads the item for its facets.
func (x *explaining) explainItem() error {
	if plan := x.keys.plan; !plan.NeedsHint(x.lane) {
		v, err := x.read.Get(x.keys.item(x.id)).Wait(x.ctx)
		if err != nil {
			return fmt.Errorf("read item: %w", err)
		}
		if facets := plan.FacetsIn(v); facets != "" {
			x.lane = plan.LanesOf(x.id.Group, facets)[0]
		}
	}
	return x.explain()
}

// explainGroup explains why the first item of x.lane is not delivered. If the lane is empty, the reasons are those of
// the locks that keep it, and CauseEmpty.
func (x *explaining) explainGroup() error {
	head, found, err := x.readHead(x.lane)
	if err != nil {
		return err
	}
	if found {
		x.id = head
		return x.explainItem()
	}
	l, others, err := x.readRecords(x.lane)
	if err != nil {
		return err
	}
	x.locked(l, others)
	x.add(Reason{Cause: CauseEmpty})
	return nil
}

// explaining is a look at an item, and the reasons found so far.
type explaining struct {
	inspection
	now     moment // by the clock of this process, and by the version of the database
	id      ID
	lane    string // by whose receives the item would be delivered
	reasons []Reason
}

// add adds a reason behind the others.
func (x *explaining) add(r Reason) { x.reasons = append(x.reasons, r) }

// explain adds all reasons why the item x.id is not delivered by receives of x.lane. If the item is not in its group,
// absent adds the only reason. If it is not in the lane, agrees does. Otherwise explain reads the item, the head of the
// lane, the pause of the queue, the locks that may keep the lane or have the item (with holds and beats), and the
// attempts of item and head. It counts the keys of the items before it, and reads the rates (key pace, and the field
// pace of meta). If nothing of that keeps the lane, ready looks for the hint or timer that leads to it.
func (x *explaining) explain() error {
	items := x.keys.items(x.lane)
	key := x.keys.item(x.id)
	found, head := x.read.GetKey(kv.FirstGreaterOrEqual(key)), x.read.GetKey(kv.FirstGreaterOrEqual(items.Begin))
	k, err := found.Wait(x.ctx)
	if err != nil {
		return fmt.Errorf("read item: %w", err)
	}
	if string(k) != string(key) {
		return x.absent()
	}
	if is, err := x.agrees(); err != nil || !is {
		return err
	}
	if k, err = head.Wait(x.ctx); err != nil {
		return fmt.Errorf("read head: %w", err)
	}
	first, err := x.keys.parse(k)
	if err != nil {
		return err
	}
	paused, err := x.readPause()
	if err != nil {
		return err
	}
	if paused != nil {
		x.add(Reason{Cause: CauseQueuePaused, Mark: publicMark(paused)})
	}
	l, others, err := x.readRecordsOver(x.lane, x.id)
	if err != nil {
		return err
	}
	// free: no lock keeps the lane. early: the head of the lane is not due.
	free := x.locked(l, others)
	if err := x.failed(CauseFailed, x.id); err != nil {
		return err
	}
	early, err := x.delayedUntil(CauseItemDelayed, key)
	if err != nil {
		return err
	}
	if first.itemID() != x.id {
		if early, err = x.delayedUntil(CauseHeadDelayed, x.keys.item(first.itemID())); err != nil {
			return err
		}
		if err := x.failed(CauseHeadFailed, first.itemID()); err != nil {
			return err
		}
		before := kv.KeyRange{Begin: items.Begin, End: x.keys.laneItem(x.lane, x.id)}
		ahead, err := x.countKeys(before, whyCap)
		if err != nil {
			return err
		}
		x.add(Reason{Cause: CauseBehind, Count: ahead, More: ahead == whyCap})
	}
	waits, err := x.paced()
	if err != nil {
		return err
	}
	short, err := x.pacedTotal()
	if err != nil {
		return err
	}
	if !free || early || waits || short || paused != nil {
		return nil
	}
	return x.ready(l != nil || len(others) > 0, first)
}

// agrees reports whether the item is in the lane that was asked about: by its key lane, unless the lane is a whole
// group. If not, it adds CauseOtherFacets.
func (x *explaining) agrees() (bool, error) {
	if !lanes.IsPart(x.lane) {
		return true, nil
	}
	v, err := x.read.Get(x.keys.laneItem(x.lane, x.id)).Wait(x.ctx)
	if err != nil {
		return false, fmt.Errorf("read lane: %w", err)
	}
	if v == nil {
		x.add(Reason{Cause: CauseOtherFacets, Where: x.keys.plan.TemplateOf(x.lane)})
	}
	return v != nil, nil
}

// absent adds the reason for an item that is not in its group. It reads the dead letter of the id (key dead). CauseDead
// means: the item is among the dead letters. CauseGone means: it is not.
func (x *explaining) absent() error {
	key := x.keys.dead(x.id)
	d, found, err := waitRow(x.ctx, x.read.Get(key), "dead letter", key, rec.UnpackDeadLetter)
	if err != nil {
		return err
	}
	if !found {
		x.add(Reason{Cause: CauseGone})
		return nil
	}
	text := d.Reason
	if d.LastError != "" {
		text += ": " + d.LastError
	}
	x.add(Reason{Cause: CauseDead, Count: int64(d.Attempts), Err: text})
	return nil
}

// failed reads the attempts of an item (key attempt), and adds the cause if its delivery has failed.
func (x *explaining) failed(cause Cause, id ID) error {
	record, err := x.readAttempt(id)
	if err == nil && record.Count > 0 {
		x.add(Reason{Cause: cause, Count: int64(record.Count), Err: record.LastError})
	}
	return err
}

// delayedUntil reads the item with the key, and reports whether it is not due yet. Then it adds the cause.
func (x *explaining) delayedUntil(cause Cause, key []byte) (bool, error) {
	v, err := x.read.Get(key).Wait(x.ctx)
	if err != nil {
		return false, fmt.Errorf("read item: %w", err)
	}
	e, _, err := rec.OpenEnvelope(v)
	if err != nil {
		return false, rec.Corrupt(key, err)
	}
	return x.addUntil(cause, x.known().retro().due(&e)), nil
}

// addUntil adds the cause if it ends at untilMS, a time to come, and reports whether it has.
func (x *explaining) addUntil(cause Cause, untilMS int64) bool {
	if untilMS <= x.nowMS {
		return false
	}
	x.add(Reason{Cause: cause, Left: time.Duration(untilMS-x.nowMS) * time.Millisecond})
	return true
}

// paced reads the rate of the item's group (key pace) if the queue has one, and reports whether it is used up for now.
// Then it adds CauseRateLimited.
func (x *explaining) paced() (bool, error) {
	untilMS, err := x.pacedUntil(x.id.Group, x.readPace(x.id.Group))
	return err == nil && x.addUntil(CauseRateLimited, untilMS), err
}

// pacedTotal reads the rate of the whole queue (field pace of meta) if it has one, and reports whether it is used up
// for now. Then it adds CauseQueueRateLimited.
func (x *explaining) pacedTotal() (bool, error) {
	rate := x.known().MaxRateTotal
	if rate.isNone() {
		return false, nil
	}
	used, err := x.readPaceTotal(rate)
	if err != nil {
		return false, err
	}
	return x.addUntil(CauseQueueRateLimited, rate.allowance(used, x.nowMS).untilMS), nil
}

// locked adds a reason for each lock that keeps the lane, and for each lease that has expired. It reads nothing. own is
// the lane's lock; nil = there is none. others are locks of other lanes that may have items of the lane, and the holds
// of the item and of the lane's first item. free: a receive may pass all of them. An expired lease is a reason, but
// does not change free.
func (x *explaining) locked(own *rec.Record, others []heldLane) (free bool) {
	free = x.lockedBy(x.lane, own)
	for _, other := range others {
		if !x.lockedBy(other.lane, other.record) {
			free = false
		}
	}
	return free
}

// lockedBy is locked for the lock of one lane: x.lane or another. A holding that lasts, and a mark, keep receives out.
// An expired lease is a reason, too, but lets a receive pass.
func (x *explaining) lockedBy(lane string, r *rec.Record) (free bool) {
	holder := Reason{Where: x.keys.plan.TemplateOf(lane)}
	if h := r.Holding(); h != nil {
		holder.Owner, holder.Token = h.Owner, h.Token
		holder.Left = time.Duration(h.EndMS-x.nowMS) * time.Millisecond
		if h.SinceMS > 0 {
			holder.Since = fromMillis(h.SinceMS)
		}
		holder.Lease, holder.Age = x.now.leaseOf(h)
	}
	cond := r.At(x.nowMS)
	switch cond {
	case rec.Unheld, rec.Marked, rec.Over:
	case rec.Lapsed:
		holder.Cause = CauseLeaseExpired
		x.add(holder)
	case rec.Claimed:
		switch holder.Cause = CauseGroupHeld; {
		case hasItem(r.Claim(), x.id):
			holder.Cause = CauseInFlight
		case lanes.IsHold(lane):
			holder.Cause = CauseHeadHeld
		case lane != x.lane:
			holder.Cause = CauseExcluded
		}
		x.add(holder)
	case rec.Delayed:
		x.add(Reason{Cause: CauseDelayed, Left: holder.Left, Where: holder.Where})
	case rec.Granted:
		x.add(Reason{Cause: CauseGranted, Left: holder.Left, Where: holder.Where})
	}
	m := r.Mark()
	if m != nil {
		mark := publicMark(m)
		x.add(Reason{Cause: mark.cause(), Mark: mark, Where: holder.Where})
	}
	return !cond.Keeps() && m == nil
}

// ready adds the reasons for a lane that a receive could take at once. led means: the lane has a lock, or another has
// one that may keep it, and its timer leads there. Otherwise ready looks for the hint or timer that leads to the lane,
// and adds CauseUnreachable if there is none. If the lane is a whole group, it at last reads the requests of handles
// whose receives wait: those for any group (key request), and those for the group and its other lanes (key reqgroup).
func (x *explaining) ready(led bool, head parsedKey) error {
	if !led {
		older, more, found, err := x.olderHints(head)
		if err == nil && !found {
			found, err = x.awaited(head)
		}
		if err != nil {
			return err
		}
		if !found {
			x.add(Reason{Cause: CauseUnreachable})
			return nil
		}
		if older > 0 {
			x.add(Reason{Cause: CauseTurn, Count: older, More: more})
		}
	}
	if lanes.IsPart(x.lane) { // no requests are counted: see CauseReady
		x.add(Reason{Cause: CauseReady, Where: x.keys.plan.TemplateOf(x.lane)})
		return nil
	}
	requests, more, err := x.requestsIn(x.keys.section(nameRequest), x.keys.namedFor(head.group))
	if err != nil {
		return err
	}
	if len(requests) == 0 {
		x.add(Reason{Cause: CauseNobodyWaits})
		return nil
	}
	x.add(Reason{Cause: CauseReady, Count: handlesOf(requests), More: more})
	return nil
}

// olderHints looks for the hint of the lane, and counts the hints before it in its shard, up to whyCap: these groups
// are received first. The hint is at the index of the head, unless the last claim ended with another place
// (RoundRobin), or the head has changed since. Then the first whyRows hints of each of the group's shards are searched.
// found is also true if there are more hints than were searched, because the hint may be among them. more says that the
// counting stopped at older.
func (x *explaining) olderHints(head parsedKey) (older int64, more, found bool, err error) {
	_, where := lanes.Split(x.lane)
	shards := x.keys.shardsOf(head.group)
	for _, shard := range shards {
		own := x.keys.readyAt(shard, head.index, x.lane)
		v, err := x.read.Get(own).Wait(x.ctx)
		if err != nil {
			return 0, false, false, fmt.Errorf("read hint: %w", err)
		}
		if v != nil {
			before := x.keys.hintsFrom(where, shard, 0)
			before.End = own
			older, err = x.countKeys(before, whyCap)
			return older, older == whyCap, true, err
		}
	}
	for _, shard := range shards {
		rows, err := x.read.GetRange(
			x.keys.hintsFrom(where, shard, 0).Selectors(), kv.RangeOptions{Limit: whyRows}).Wait(x.ctx)
		if err != nil {
			return 0, false, false, fmt.Errorf("read hints: %w", err)
		}
		for i, row := range rows {
			p, err := x.keys.parse(row.Key)
			if x.skipsRow(err) {
				continue
			}
			if p.group == head.group {
				return int64(i), false, true, nil
			}
		}
		older, more = max(older, int64(len(rows))), more || len(rows) == whyRows
	}
	return older, more, more, nil
}

// awaited reports whether a timer leads to the lane. It reads the head, and the timer at the time of the head, which
// may be in any of the group's shards. If the group has a rate in use (key pace), or the queue has lanes other than
// whole groups, the timer may be at another time. Then it searches the timers that are due, up to whyRows of each
// shard, and also reports true if there are more.
func (x *explaining) awaited(head parsedKey) (bool, error) {
	key := x.keys.item(head.itemID())
	v, err := x.read.Get(key).Wait(x.ctx)
	if err != nil {
		return false, fmt.Errorf("read head: %w", err)
	}
	e, _, err := rec.OpenEnvelope(v)
	if err != nil {
		return false, rec.Corrupt(key, err)
	}
	if v, err = x.firstOf(x.keys.timersAt(x.known().retro().timing(&e), x.lane)); err != nil {
		return false, fmt.Errorf("read timer: %w", err)
	}
	if v != nil {
		return true, nil
	}
	if v, err = x.read.Get(x.keys.pace(head.group)).Wait(x.ctx); err != nil || v == nil && x.keys.plan.IsPlain() {
		return false, err
	}
	// The group waited by its rate, or for an intersecting claim. If the rate has been changed since, the timer is at
	// another time: search.
	_, where := lanes.Split(x.lane)
	many := false
	for _, shard := range x.keys.timerShardsOf(head.group) {
		due, err := x.read.GetRange(
			x.keys.dueFrom(where, shard, 0, x.nowMS).Selectors(), kv.RangeOptions{Limit: whyRows}).Wait(x.ctx)
		if err != nil {
			return false, fmt.Errorf("read timers: %w", err)
		}
		for _, row := range due {
			if p, err := x.keys.parse(row.Key); err == nil && p.group == head.group {
				return true, nil
			}
		}
		many = many || len(due) == whyRows
	}
	return many, nil
}

// String returns the reason in words. A cause without words stands for itself.
func (r Reason) String() string {
	words, ok := reasonWords[r.Cause]
	switch {
	case !ok:
		return string(r.Cause)
	case r.ofWrongClock():
		return words(r) + ": that time is wrong, the clock of its process was ahead, and workers end it"
	}
	return words(r)
}

// longestLeft has, by cause, the longest time that may be left until the reason ends.
var longestLeft = map[Cause]time.Duration{
	CauseDelayed: MaxDelay, CauseItemDelayed: MaxDelay, CauseHeadDelayed: MaxDelay, CauseInFlight: MaxLease,
	CauseGroupHeld: MaxLease, CauseHeadHeld: MaxLease, CauseExcluded: MaxLease, CauseGranted: grantLease,
}

// ofWrongClock reports whether the reason ends later than any process may make it end.
func (r Reason) ofWrongClock() bool {
	longest, ends := longestLeft[r.Cause]
	return ends && tooLate(r.Left.Milliseconds(), 0, longest)
}

// reasonWords has the words of each cause.
var reasonWords = map[Cause]func(r Reason) string{
	CauseGone:        plainReason("there is no such message: it was handled or removed, or never there"),
	CauseDead:        func(r Reason) string { return "it is among the dead letters: " + strings.TrimSpace(r.Err) },
	CauseQueuePaused: func(r Reason) string { return "the queue is " + r.Mark.String() },
	CauseGroupPaused: Reason.marked,
	CauseGroupHalted: Reason.marked,
	CauseInFlight: func(r Reason) string {
		return fmt.Sprintf("it is in the hands of %q%s, whose lease has %s left", r.Owner, r.by(), r.Left)
	},
	CauseGroupHeld: func(r Reason) string {
		return fmt.Sprintf("its group%s is in the hands of %q, for other messages; the lease has %s left",
			r.by(), r.Owner, r.Left)
	},
	CauseExcluded: Reason.excluded,
	CauseHeadHeld: func(r Reason) string {
		return fmt.Sprintf("the first message of its group is in the hands of %q, by itself; the lease has %s left",
			r.Owner, r.Left)
	},
	CauseOtherFacets: func(r Reason) string {
		return fmt.Sprintf("it does not agree with %s: receives by that template never get it", r.Where)
	},
	CauseLeaseExpired: func(r Reason) string {
		return fmt.Sprintf("%q had its group%s until %s ago, when the lease ran out; the next receive takes over",
			r.Owner, r.by(), -r.Left)
	},
	CauseGranted: func(r Reason) string {
		return fmt.Sprintf("its group%s is being given to a receive that waits, which has %s left to take it",
			r.by(), r.Left)
	},
	CauseDelayed: func(r Reason) string {
		return fmt.Sprintf("its group%s waits for a retry, in %s", r.by(), r.Left)
	},
	CauseItemDelayed:      waitingReason("it is not to be delivered before %s have passed"),
	CauseHeadDelayed:      waitingReason("the first message of its group is not to be delivered before %s have passed"),
	CauseRateLimited:      waitingReason("its group has used up its rate; the next message may be delivered in %s"),
	CauseQueueRateLimited: waitingReason("the queue has used up its rate; the next message may be delivered in %s"),
	CauseFailed:           func(r Reason) string { return r.failed("it") },
	CauseHeadFailed:       func(r Reason) string { return r.failed("the first message of its group") },
	CauseBehind: func(r Reason) string {
		return r.counted("message", " of its group", "comes", "come") + " first"
	},
	CauseTurn: func(r Reason) string {
		if r.Count == 0 {
			return "receives wait that may take it"
		}
		return r.counted("older group", "", "is", "are") + " ready too"
	},
	CauseNobodyWaits: plainReason(
		"its group is ready, and no receive waits for it: all workers are busy, or there are none"),
	CauseReady: func(r Reason) string {
		if r.Where != nil {
			return fmt.Sprintf("its group%s is ready: the next receive by that template gets it", r.by())
		}
		return "its group is ready, and " + r.counted("handle", "", "waits", "wait") +
			": it is about to be delivered, unless a handle that waits has died within the last minute"
	},
	CauseCorrupt:     func(r Reason) string { return "its group cannot be read: " + strings.TrimSpace(r.Err) },
	CauseEmpty:       plainReason("there are no messages in the group"),
	CauseUnreachable: plainReason("nothing leads to its group: the queue breaks its rules, see check"),
}

// plainReason returns a function for reasonWords that says the text, whatever the reason.
func plainReason(text string) func(Reason) string { return func(Reason) string { return text } }

// waitingReason returns a function for reasonWords that says the format with Reason.Left.
func waitingReason(format string) func(Reason) string {
	return func(r Reason) string { return fmt.Sprintf(format, r.Left) }
}

// marked says that the group, or its lane, is paused or halted.
func (r Reason) marked() string { return "its group" + r.by() + " is " + r.Mark.String() }

// excluded says which claim excludes the lane, and until when.
func (r Reason) excluded() string {
	since := ""
	if !r.Since.IsZero() {
		since = " since " + r.Since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("it is excluded by the claim of %s, held by %q%s; the lease has %s left",
		r.claimed(), r.Owner, since, r.Left)
}

// failed says how often subject has failed, and the last error.
func (r Reason) failed(subject string) string {
	text := subject + " has failed " + countWords(int(r.Count), "time")
	if r.Err != "" {
		text += ", the last time with: " + strings.TrimSpace(r.Err)
	}
	return text
}

// counted says Count of a noun, and then the verb one or many, for one thing or for several. more follows the noun.
// Example: "2 messages of its group come".
func (r Reason) counted(noun, more, one, many string) string {
	switch {
	case r.More:
		return fmt.Sprintf("%d or more %ss%s %s", r.Count, noun, more, many)
	case r.Count == 1:
		return countWords(1, noun) + more + " " + one
	}
	return countWords(int(r.Count), noun) + more + " " + many
}

// by says which template the reason is about, as words behind the noun "group"; "" = the whole group.
func (r Reason) by() string {
	if r.Where == nil {
		return ""
	}
	return " where " + r.Where.String()
}

// claimed says which part of the group the claim of the reason has: a template, or the whole group.
func (r Reason) claimed() string {
	if r.Where == nil {
		return "the whole group"
	}
	return r.Where.String()
}

// String returns the explanation in words, a line for each reason.
func (e Explanation) String() string {
	lines := make([]string, len(e.Reasons))
	for i, r := range e.Reasons {
		lines[i] = r.String()
	}
	return strings.Join(lines, "\n")
}
