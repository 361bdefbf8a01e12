package layer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// This file has the receives that claim single items, the grants to waiting handles, and the receive ids. Words:
//
//   - A hold is the claim or the delay of a single item. Its key "hold" has a record, as a lock has: store_hold.go.
//   - The free lane of a group, in a queue with unordered receives, has the items without a hold: keys "lane". A hold
//     takes its item out of the free lane.
//   - Items are claimed in turn in a queue with LeasePerItem: each has a hold, from the head on. See group_hold.go.
//   - A request is the key by which a handle waits for ready groups. A grant is a holding that keeps a group for such a
//     handle for 2 s, with a grant key that leads the handle to the group.
//   - Booked items are counted in the queue's rate (MaxRateTotal) before they are delivered.
//   - look, candidate and verdict: see dequeue.go. Suspect items: see group_verdict.go.

// placeUnordered is ReceiveOptions.place for an unordered receive without a template: place has refused a template,
// because a queue with unordered receives has no views. It refuses other options that do not go with Unordered
// (ErrOptions), and returns the packed template of the free lane.
func (o *ReceiveOptions) placeUnordered(keys subspace) (where string, err error) {
	where, ok := keys.plan.WhereUnordered()
	switch {
	case !ok:
		return "", errUnordered
	case o.Strategy != FillGroup:
		return "", fmt.Errorf("%w: a strategy for an unordered receive", ErrOptions)
	case o.OnlyIfAny:
		return "", fmt.Errorf("%w: OnlyIfAny for an unordered receive", ErrOptions)
	case o.State:
		return "", fmt.Errorf("%w: the state of a group for an unordered receive", ErrOptions)
	}
	return where, nil
}

// readableAttempts reads, at snapshot, the records of failed attempts (attempt) of booked items. It returns the items
// and their records; an item without a record has never failed. If a record cannot be read, readableAttempts
// continues with the first item alone, and ends the bookings of the other items. If this fails too, or the engine
// returns an error, it ends all bookings and returns the error. It writes no key: a booking is a number in the
// handle's memory, of the queue's rate (MaxRateTotal).
func readableAttempts(w *txn, items []Item) ([]Item, map[ID]rec.Attempt, error) {
	attempts, err := w.readAttempts(itemIDs(items))
	if len(items) > 1 && w.skipsRow(err) {
		w.unreserve(len(items) - 1)
		items = items[:1]
		attempts, err = w.readAttempts(itemIDs(items))
	}
	if err != nil {
		w.unreserve(len(items))
	}
	return items, attempts, err
}

// takeHolds claims up to limit free items of a lane for r, each under a hold of its own. It claims nothing, and returns
// no error, if none fits, if the queue's rate is used up, or if the handle may not give the first item now because it
// is suspect. An unordered receive then passes over suspect items (takeOthers).
//
// Footprint: it reads the attempt records, and the parts of large bodies, at snapshot. Read conflicts on the lock of
// the group, in an unordered queue also on the holds taken and, if no free item is left, on the emptiness of the free
// lane. Writes the holds and their timers, takes the items out of the free lane, and moves its hint. If items are
// claimed in turn (LeasePerItem), the items stay in their lanes, takeHolds clears the group's hint, and sets no other.
// A grant in the lock of the group ends then (put). Instead of the conflicts on holds and free lane, takeHolds adds
// those of fenceTurn, and a write conflict on the lock (noteTurn).
func (c *claimer) takeHolds(r *reception, f *found, limit int) error {
	if r.o.Unordered {
		limit = min(limit, r.o.MaxGroups-r.groups)
	}
	items, out, err := c.runWithin(f, limit, r.fits(f.lane, true))
	if err != nil || len(out) == 0 {
		return err
	}
	if err := c.fenceOver(guard.ClaimLock, f.lane); err != nil {
		return err
	}
	items, attempts, err := readableAttempts(c.txn, items)
	if err != nil {
		return err
	}
	n, err := c.beforeSuspect(r, items, attempts)
	c.unreserve(len(items) - n)
	if items, out = items[:n], out[:n]; n == 0 {
		if err == nil && r.o.Unordered && r.items == 0 {
			return c.takeOthers(r, f, limit)
		}
		return err
	}
	lease, err := c.lease(r.o.Lease)
	if err != nil {
		return err
	}
	token, err := c.token(nil)
	if err != nil {
		return err
	}
	end := c.nowMS + lease.Milliseconds()
	if f.record != nil { // a grant to this handle: it ends
		c.put(f.lane, f.record, nil, 0)
	}
	for i := range items {
		item := &items[i]
		item.FirstDelivered = fromMillis(c.nowMS)
		item.failedBefore(attempts[item.ID])
		if r.o.Unordered {
			if err := guard.Hold.Read(c.tx, kv.SingleKey(c.keys.hold(item.ID))); err != nil {
				return err
			}
			c.tx.Clear(c.keys.laneItem(f.lane, item.ID))
		}
		suspect := r.alone(attempts[item.ID])
		hold := rec.HeldBy(rec.Holding{
			Kind: rec.KindClaim, Token: token, Owner: c.q.opts.Owner, EndMS: end, Items: out[i : i+1 : i+1],
			SinceMS: c.nowMS,
		}, nil)
		hold.Token += r.proof(suspect)
		c.put(holdLane(item.ID), nil, hold, item.ID.Index)
		r.give(&Claim{
			Queue: c.q.name, Group: f.group(), Hold: item.ID, Token: token, Items: items[i : i+1 : i+1],
			Until: fromMillis(end), ends: byMonotonic(&c.view, end), suspect: suspect && !r.inTx,
		}, f.lane)
	}
	c.taken++
	c.items += len(items)
	c.count(countReceived, len(items))
	clearTaken(c.txn, f)
	if !r.o.Unordered { // the head of the group is in flight now, so the group needs no hint
		r.groups++
		return c.fenceTurn(f.lane, items[0].ID)
	}
	r.groups += len(items)
	_, more, err := c.leave(f.lane, nil, guard.HoldEmpty, false)
	if delete(c.remains, f.lane); more {
		setIn(&c.remains, f.lane, true)
	}
	return err
}

// beforeSuspect returns how many of the items a receive may give, each under its own claim. These are the items before
// the first suspect item. If the first item is suspect, it is given alone, or nothing if the receive has items already
// or the handle may not give it now. attempts has the attempt records of the items. r.stopped is set if the receive may
// take no more after that.
func (c *claimer) beforeSuspect(r *reception, items []Item, attempts map[ID]rec.Attempt) (int, error) {
	for i := range items {
		if !r.alone(attempts[items[i].ID]) {
			continue
		}
		if i > 0 || r.items > 0 {
			r.stopped = true
			return i, nil
		}
		may, err := mayGiveSuspect(c.txn, attempts[items[i].ID])
		if err != nil || !may {
			r.stopped = false // the receive gives nothing, so it does not matter whether more items fit
			return 0, err
		}
		r.stopped, c.suspects.gave = true, true
		return 1, nil
	}
	return len(items), nil
}

// takeOthers is takeHolds for the items of the free lane that are not suspect. An unordered receive calls it if the
// first item is suspect and the handle may not give it now. It reads keys of the free lane, the attempt records, and
// then the items, all at snapshot. It reads past at most MaxBatch suspect items.
func (c *claimer) takeOthers(r *reception, f *found, limit int) error {
	of := c.keys.items(f.lane)
	all, err := c.view.read.GetRange(of.Selectors(), kv.RangeOptions{Limit: limit + MaxBatch}).Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read items: %w", err)
	}
	ids := make([]ID, len(all))
	for i := range all {
		p, err := c.keys.parseItem(all[i].Key, f.group(), of)
		if err != nil {
			return err
		}
		ids[i] = p.itemID()
	}
	attempts, err := c.readAttempts(ids)
	if err != nil {
		return err
	}
	others := make([]kv.KV, 0, limit)
	for i := range all {
		if !r.alone(attempts[ids[i]]) && len(others) < limit {
			others = append(others, all[i])
		}
	}
	read := &laneRead{keys: c.keys, lane: f.lane, first: kv.Done(others, nil), values: c.view.read}
	pairs, err := read.Wait(c.ctx)
	if err != nil {
		return err
	}
	rest := *f
	if rest.rows, err = c.rows(f.lane, pairs); err != nil {
		return err
	}
	old, err := c.overdue(rest.rows)
	if err != nil || old.len() == rest.rows.len() {
		return err
	}
	rest.rows = rest.rows.from(old.len())
	return c.takeHolds(r, &rest, limit)
}

// endHold ends the hold to which a timer led, as txn.endHold does. If items are claimed in turn and the group's head is
// free then, endHold returns the group's hint (behind). The receive looks at the group in place of the timer, before
// groups that became ready later. Otherwise behind is nil. It is also nil if the claimer has looked at the group
// before, or if this transaction has ended enough holdings (tired).
func (c *claimer) endHold(l *look) (behind *candidate, err error) {
	if c.tired() {
		return nil, nil // left to the next transaction: see claim
	}
	if c.holds.turned[l.lane] {
		l = c.read(l.candidate, 0) // this transaction has changed the hold since the read
	}
	c.met[l.lane] = true
	behind, free, err := c.txn.endHold(l.candidate, l.lock.lock)
	if err != nil || !free {
		return nil, err
	}
	group := lanes.Name(lanes.GroupOf(l.lane), c.keys.plan.HoldWhere())
	if c.met[group] {
		behind = nil // the claimer has decided about the group before, or has begun a look at it: see changed
	}
	c.changed(group)
	return behind, nil
}

// reach ends expired holds behind a free head, and reads the group again, in a queue whose items are claimed in turn.
// So the receive also gets the items of these holds. Example: 1 is free, and the hold of 2 has expired: the receive
// gets 1 and 2. If the transaction has ended enough holdings, reach leaves the others to the next transaction.
func (c *claimer) reach(l *look) error {
	c.chores.reached = min(l.limit, maxChores)
	defer func() { c.chores.reached = 0 }()
	for l.err == nil && l.seen.behindOver && !c.tired() {
		if _, err := c.endHolds(l.seen.group(), c.endHoldAt); err != nil {
			return err
		}
		*l = *c.read(l.candidate, l.limit)
		if _, err := c.reads(l); err != nil {
			return err
		}
	}
	return l.err
}

// endHold ends the hold of candidate c if its lease or delay is over. lock is the read of the hold's record. endHold
// clears the hold and its timer. An expired claim counts a failed attempt in the item's attempt record, or makes the
// item a dead letter. If the item is free again, endHold puts it back into the free lane with a hint, or leaves a hint
// of the group (letGo).
//
// free reports whether the hold is cleared: the item is free again, or is a dead letter. behind is the hint of the
// group, if items are claimed in turn and the head is free. If the hold lasts or is gone, endHold clears the timer that
// led to it, if any: the timer is stale. In each case endHold adds a read conflict on the hold.
func (w *txn) endHold(c candidate, lock kv.Future[[]byte]) (behind *candidate, free bool, err error) {
	key := w.keys.lock(c.lane)
	r, _, err := waitRow(w.ctx, lock, "hold", key, rec.UnpackRecord)
	if err != nil {
		return nil, false, err
	}
	if r == nil || r.At(w.nowMS).Keeps() {
		if err = guard.StaleLock.Read(w.tx, kv.SingleKey(key)); err == nil {
			w.clear(c.key)
		}
		if c.key != nil {
			w.chores.done++
		}
		return nil, false, err
	}
	if err := guard.HoldEnd.Read(w.tx, kv.SingleKey(key)); err != nil {
		return nil, false, err
	}
	if free, err = w.lapse(c.lane, r, nil, ID{}); err != nil {
		return nil, false, err
	}
	w.chores.done++
	if w.clearLead(&c, r); !free {
		return nil, false, nil
	}
	next, found, err := w.letGo(c.lane)
	if err == nil && found {
		behind = &next
	}
	return behind, true, err
}

// namedHolds bounds the holds that a receive of a named group looks at, to end the expired ones. Further expired holds
// are found by their timers, by receives that name no group.
const namedHolds = 100

// endHoldAt ends the hold of which lane is the name, if its time is over.
func (c *claimer) endHoldAt(lane string) error {
	_, err := c.endHold(c.read(candidate{lane: lane}, 0))
	return err
}

// endHolds reads the first namedHolds holds of a group, at snapshot, and calls end for those whose time is over. nextMS
// is the time (ms) at which the next of the other holds ends; 0 = no time is known. If the transaction has ended enough
// (tired), the rest is left to the next transaction.
func (w *txn) endHolds(group string, end func(lane string) error) (nextMS int64, err error) {
	rows, err := w.read.GetRange(
		w.keys.holds(group).Selectors(), kv.RangeOptions{Limit: namedHolds}).Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read holds: %w", err)
	}
	for _, row := range rows {
		all, err := w.unpackHolds([]kv.KV{row})
		if w.skipsRow(err) {
			continue // a hold that cannot be read keeps its item alone
		}
		if err != nil {
			return 0, err
		}
		if !all[0].record.At(w.nowMS).Keeps() {
			if w.tired() {
				break
			}
			if err := end(all[0].lane); err != nil {
				return 0, err
			}
		} else if h := all[0].record.Holding(); h != nil && (nextMS == 0 || h.EndMS < nextMS) {
			nextMS = h.EndMS
		}
	}
	return nextMS, nil
}

// accept makes the claimer look at the groups granted to the handle before any other group. It takes the grant keys
// that begin has read, and begins a look for each. The keys are noted in wakes.grants until a receive has taken the
// group.
func (c *claimer) accept() error {
	if c.granted == nil {
		return nil
	}
	rows, err := c.granted.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read grants: %w", err)
	}
	limit := 1
	for _, r := range c.owed {
		limit = max(limit, r.o.Max)
	}
	for _, row := range rows {
		p, err := c.keys.parse(row.Key)
		if c.skipsRow(err) {
			continue
		}
		token, err := rec.UnpackInt(row.Key, row.Value)
		if c.skipsRow(err) {
			continue // the timer at the end of the grant leads to the group
		}
		c.met[p.lane] = false
		c.looks = append(c.looks, c.read(candidate{key: row.Key, lane: p.lane, grant: token}, limit))
		setIn(&c.wakes.grants, string(row.Key), true)
	}
	return nil
}

// holdsGrants reports whether the handle may have grants that no receive has taken: then its request must stay. Only a
// claimer of whole groups has read the grants.
func (w *txn) holdsGrants(claimers []*claimer) bool {
	read := slices.ContainsFunc(claimers, func(c *claimer) bool { return c.where == "" })
	return !read || len(w.wakes.grants) > 0
}

// grantOthers grants ready groups that the handle's own receives do not need to the requests of other handles, and
// changes the wake keys of these handles. The oldest request gets the oldest group. requests has the rows of the oldest
// requests: each says how many groups its handle wants (Wants).
//
// Footprint: for each request served a read conflict, and the request is rewritten. For each group as for a claim, with
// a grant in the lock.
func (c *claimer) grantOthers(requests []kv.KV) error {
	q := c.q
	for _, row := range requests {
		p, r, err := q.keys.openRequest(row)
		if q.skipsRow(err) {
			continue
		}
		if p.id == q.waitID || !lives(r, c.nowMS) {
			continue
		}
		given := int64(0)
		for given < r.Wants {
			ok, err := c.grant(p.id)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			given++
		}
		if given > 0 {
			if err := guard.GrantRequest.Read(c.tx, kv.SingleKey(row.Key)); err != nil {
				return err
			}
			r.Wants -= given
			c.tx.Set(row.Key, r.Pack())
			c.touch(p.id)
			c.did.wrote = true
			c.wakes.others += int(given)
		}
		if given == 0 && r.Wants > 0 {
			return nil // nothing more is ready
		}
	}
	return nil
}

// lookAgain starts the reads of all begun looks again. Claimers of other templates have claimed lanes in the same
// transaction since, and a transaction does not conflict with its own claims.
func (c *claimer) lookAgain() {
	for i, l := range c.looks {
		c.looks[i] = c.read(l.candidate, l.limit)
	}
}

// grant grants the next ready group to the handle with the random, as grantFrom does. It returns false if no group is
// left.
func (c *claimer) grant(random uuid.UUID) (bool, error) {
	for {
		l, ok, err := c.next()
		if err != nil || !ok {
			return false, err
		}
		if l.grant != 0 {
			continue // it is granted to this handle already
		}
		given, err := c.grantFrom(l, random)
		if err != nil || given {
			return given, err
		}
	}
}

// grantFrom grants the group of a look to the handle with the random, if the group is free: it writes a grant into the
// lock, with a timer and the grant key, and clears the hint. It adds read conflicts on the lock and on the locks of
// intersecting lanes. given reports whether it has granted the group.
//
// If the lane may not be given now, grantFrom does what a receive would (decide). It clears a stale hint, removes items
// past retention, or ends an expired hold to which a timer has led, and so on. But if the group has an expired claim,
// delay or grant, grantFrom leaves the group to the next receive, which counts the failed attempt.
func (c *claimer) grantFrom(l *look, random uuid.UUID) (given bool, err error) {
	if l, err = c.passHold(l, 1); l == nil {
		return false, (&reception{}).spoilt(err)
	}
	f, err := c.reads(l)
	if err == nil && f.record != nil && !f.record.At(c.nowMS).Keeps() && f.record.Mark() == nil {
		return false, nil
	}
	f, err = c.see(l)
	if err != nil || f.verdict != verdictDeliver {
		return false, c.decide(&reception{o: ReceiveOptions{Max: 1}}, l, 0)
	}
	if err := c.fenceOver(guard.GrantLock, f.lane); err != nil {
		return false, err
	}
	token, err := c.token(nil)
	if err != nil {
		return false, err
	}
	end := c.nowMS + grantLease.Milliseconds()
	grant := rec.Holding{Kind: rec.KindGrant, Token: token, Owner: random.String(), EndMS: end}
	c.hold(f, rec.HeldBy(grant, nil))
	c.met[f.lane] = true
	c.given(f)
	return true, nil
}

// A receive with a receive id records its claims in the row "repeat" of the id, in the transaction which claims. The
// receive first reads the row, with a conflict. So of two concurrent receives with the same id one claims, and the
// other gets the same claims.

// receiveIDLife is how long a receive can be repeated under its receive id. The id ends when both the clocks of the two
// processes and the versions of the database say so: see answer.
const receiveIDLife = 5 * time.Minute

// checkReceiveID returns an error if the id is too long (*LimitError) or no UTF-8 (ErrInvalidUTF8). "" is valid: no id.
func checkReceiveID(id string) error { return checkText("receive id", id, maxReceiveIDSize) }

// readRepeats starts reading the repeat rows of the receive ids in owed, with a conflict.
func (c *claimer) readRepeats() {
	for _, r := range c.owed {
		if id := r.o.ReceiveID; id != "" && c.repeats[id] == nil {
			setIn(&c.repeats, id, guard.Repeat.Get(c.tx, c.keys.repeat(id)))
		}
	}
}

// repeat answers the receives whose id was used before with the earlier claims, and removes these receives from owed.
// named has the other receives with an id. If several of them have one id, only the first stays in owed: keepRepeats
// gives its claims to all.
func (c *claimer) repeat() (named []*reception, err error) {
	owed := make([]*reception, 0, len(c.owed))
	for _, r := range c.owed {
		if r.o.ReceiveID == "" {
			owed = append(owed, r)
			continue
		}
		if err := c.answer(r); err != nil {
			return nil, err
		}
		if r.repeated {
			continue
		}
		same := func(other *reception) bool { return other.o.ReceiveID == r.o.ReceiveID }
		if !slices.ContainsFunc(named, same) {
			owed = append(owed, r)
		}
		named = append(named, r)
	}
	c.owed = owed
	return named, nil
}

// answer gives r the claims that the repeat row of its id names, as far as they still last, and sets r.repeated.
// reclaim says which keys it reads. If there is no row, or if the row is older than receiveIDLife, answer changes
// nothing, and r receives like any other. A row that cannot be read is an error.
func (c *claimer) answer(r *reception) error {
	key := c.keys.repeat(r.o.ReceiveID)
	v, err := c.repeats[r.o.ReceiveID].Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read receive id: %w", err)
	}
	if named := c.named[r.o.ReceiveID]; named != nil {
		v = named // written in this transaction, by a receive of another template
	}
	if v == nil {
		return nil
	}
	kept, err := rec.UnpackRepeat(key, v)
	if err != nil {
		return err
	}
	m, err := c.moment()
	if err != nil {
		return err
	}
	// The row is too old if the wall clock and the versions say so, or the versions beyond doubt: see moment.
	over := c.nowMS-kept.AtMS >= receiveIDLife.Milliseconds() || ahead(kept.AtMS, c.nowMS)
	first := kept.Claims[0].Token
	if over && m.old(first, receiveIDLife) || m.isLongOver(first, receiveIDLife) {
		return nil
	}
	// A claim with an expired lease is left out, because the next receive takes the group over.
	r.claims, err = c.q.reclaim(c.ctx, c.tx, kept.Claims, &r.o, func(h *rec.Holding) bool { return h.EndMS > c.nowMS })
	r.repeated = true
	_, r.was = lanes.Split(kept.Claims[0].Lane)
	return err
}

// keepRepeats writes the claims of each named receive into the repeat row of its id. A second receive with the same id
// gets copies of the claims. A receive without claims writes nothing, so its id is still unused.
func (c *claimer) keepRepeats(named []*reception) {
	first := make(map[string]*reception, len(named))
	for _, r := range named {
		if twin := first[r.o.ReceiveID]; twin != nil {
			for _, claim := range twin.claims {
				r.claims = append(r.claims, own(claim))
			}
			continue
		}
		first[r.o.ReceiveID] = r
		if len(r.claims) > 0 {
			v := rec.Repeat{AtMS: c.nowMS, Claims: r.given()}.Pack()
			setIn(&c.named, r.o.ReceiveID, v)
			c.tx.Set(c.keys.repeat(r.o.ReceiveID), v)
		}
	}
}

// reload is reclaim for a receive whose commit was of unknown outcome and has happened: given has the claims that it
// made. A claim whose lease has expired since is returned, too.
func (q *Queue) reload(ctx context.Context, tx kv.Tx, given []rec.ClaimRef, o *ReceiveOptions) ([]*Claim, error) {
	return q.reclaim(ctx, tx, given, o, func(*rec.Holding) bool { return true })
}

// reclaim rebuilds claims that were given before, with their present leases and items. It reads the lock and the items
// of each, with their parts, the state if o asks for it, and attempt records, all at snapshot, and writes nothing. It
// leaves out claims that are lost, and those for which keeps returns false.
//
// If items are claimed in turn, it also leaves out the claims of items behind such an item, unless the item is
// finished. Example: the hold of 1 is lost, and 1 is still in the queue. Another handle may have 1, and must be able to
// handle 1 before 2. So the claim of 2 is left out.
func (q *Queue) reclaim(
	ctx context.Context, tx kv.Tx, given []rec.ClaimRef, o *ReceiveOptions, keeps func(h *rec.Holding) bool,
) ([]*Claim, error) {
	var claims []*Claim
	v := q.viewOf(ctx, tx.Snapshot())
	behind := make(map[string]bool) // the groups of which further claims are left out
	for _, ref := range given {
		c := givenClaim(q, ref)
		if behind[c.Group] {
			continue
		}
		state := v.readState(c.Group, o.State)
		r, err := v.readLock(ref.Lane)
		if err != nil {
			return nil, err
		}
		h := r.Claim()
		if h == nil || h.Token != ref.Token || !keeps(h) {
			if group, turns := q.keys.plan.TurnOf(ref.Lane); turns {
				item, err := v.read.Get(q.keys.item(c.Hold)).Wait(ctx)
				if err != nil {
					return nil, fmt.Errorf("read item: %w", err)
				}
				behind[group] = item != nil
			}
			continue
		}
		c.Until, c.ends = fromMillis(h.EndMS), byMonotonic(&v, h.EndMS)
		c.beat, c.pulse = h.Beat, q.heart.of(h.Beat)
		if c.Items, err = v.reloadItems(ref.Lane, h); err != nil {
			return nil, err
		}
		if c.State, err = v.waitState(state); err != nil {
			return nil, err
		}
		if c.suspect, err = isToBeProven(v, r, c); err != nil {
			return nil, err
		}
		_, c.failed, err = readRecords(&v, c.Items[0].ID).wait(&v)
		if err != nil && !isCorrupt(err) {
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// givenClaim returns the claim that a receive was given, with the fields that a release needs, and no more. It reads no
// key.
func givenClaim(q *Queue, ref rec.ClaimRef) *Claim {
	hold, _ := holdOf(ref.Lane)
	return &Claim{
		Queue: q.name, Group: lanes.GroupOf(ref.Lane), Where: q.keys.plan.TemplateOf(ref.Lane), Hold: hold,
		Token: ref.Token,
	}
}
