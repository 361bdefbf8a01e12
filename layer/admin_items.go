package layer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// An operator's changes of items and groups that he does not hold. Each operation reads the lock of the group with a
// conflict and adds a write conflict on the lock, so that the operation excludes a claim, an ack, a take or another
// such operation of the group, while enqueues and all other groups go on.

// Keys have their names in the table of subspace.go. A hint is a key ready or open, and leads to a ready lane. A timer
// is a key timer or due, and leads to a lane that is held or delayed. A lane is a whole group, the part of a group that
// a template matches, the free items of a group, or a single item. A hold is the lock of a single item. A lane has a
// name, see package lanes, and that of a whole group is the group. The head is the first item of a lane. To set a lane
// free is to write the hint of its head (or to conflict with the next enqueue if the lane is empty), when no lock keeps
// the lane.
//
// If an operation changes what counters count, it adds to them (key count). If the queue keeps changes, a cancel, a
// skip and an edit write a row of changes (key change). If an operation leaves a lane ready, it reads the requests, and
// wakes a handle whose receives wait (key wake). It has a read conflict on the field dropped of meta, and in a
// transaction of its own it also writes a receipt.
//
// Reads by w.read are at snapshot. A guard names a conflict, see package guard: guard.X.Get, guard.X.Reads and
// w.guarded(guard.X) read with a read conflict, guard.X.Read adds one, and guard.X.Write adds a write conflict. operate
// runs an operation in a transaction. interfere does so too, after it has extended those claims of the handle that have
// expired by its wall clock alone. act tells the hooks of a call. onceFor and onceTx run a transaction so that its
// effect happens once.
//
// The plan of a queue (lanes.Plan) says which lanes its groups have. IsPlain means that each group is one lane.
// TakesAny means that receives may be unordered, and then single items are claimed. A claim is stuck if it has the item
// and its lease has expired. A lane is held if it has a lock, and free if it has none.

// Cancel removes a waiting item, so that the item is not delivered any more. If the group was delayed because of the
// item, the delay ends. With Config.DedupForPending the item's dedup id is free then; otherwise the id is remembered
// until the end of its window.
//
// Cancel works on an unreadable item, too. For such an item, in a queue with facets, it looks for a claim among all
// locks of the group. If these are more than 1,000, the error is a *LimitError: pause the group with
// PauseOptions.Force, which ends the claims, and cancel again. It also looks for the item in the lanes of the group. If
// these are more than 1,000, the error is a *LimitError, too, and a purge of the group by force removes the item.
//
// CancelTx lists the keys that Cancel reads and writes.
//
// Errors: ErrNoItem, ErrInFlight, ErrInvalidID, *LimitError, ErrCorrupt if a lock of the group cannot be read,
// ErrNoQueue, ErrClosed, and the engine's; nothing was changed then.
func (a Admin) Cancel(ctx context.Context, id ID) error {
	return a.act(ctx, VerbCancel, &id.Group, id, func(ctx context.Context) (int, error) {
		return 1, a.q.onceTx(ctx, func(tx kv.Tx) error { return a.CancelTx(ctx, tx, id) })
	})
}

// CancelTx cancels in the caller's transaction. The caller must handle an unknown commit, for example with Once.
//
// Reads: the lock, with a conflict; the item and the key of the head, at snapshot. If the item is the head: the next
// head, at snapshot, with a conflict on the whole group if the group is empty now; and the next head's attempts. If an
// expired claim has the item: the attempts of the claim's items; if another item becomes a dead letter, that item and
// receipts. In a queue with templates, unordered receives or lease_per=item also: the locks of the item's lanes, with a
// conflict on all locks of the group, and the heads of these lanes. If the item cannot be read, in a queue with
// templates: all locks of the group, with a conflict, and at snapshot the first key of each lane and the item's key
// there.
//
// Writes: clears the item, its parts, its attempts and its keys lane, and a write conflict on the lock. If the item is
// the head: clears its hint or timer, and sets the hint of the next head. If the item is delayed for a retry: clears
// that lock and its timer. If an expired claim has the item: clears the lock of the claim, or leaves a mark in it,
// clears its timer, sets attempts of the claim's items, and without a mark the hint of its lane. If another item is the
// first of that claim, it may become a dead letter, or halt the group.
//
// Before that, other claims may change. If a dead handle holds the group by its heartbeat, the handle's claims end: see
// SetGroupStateTx. Claims of this handle that have expired by its wall clock alone are extended: their locks and
// timers. In a queue with facets, Unordered or LeasePerItem, the end of a claim or delay touches more keys: see the end
// of SettleTx.
func (a Admin) CancelTx(ctx context.Context, tx kv.Tx, id ID) error {
	if err := checkID(id); err != nil {
		return wrap("cancel", err)
	}
	return wrap("cancel", interfere(ctx, a.q, tx, func(w *txn) error { return w.cancel(id) }))
}

// SkipOptions say who skips, what and why.
type SkipOptions struct {
	// Head, if not zero, is the head that the caller has seen: if another item is the head now, nothing is skipped and
	// the error wraps ErrChanged. So a second click does not skip a second item.
	Head ID
	// By is who skips, for people; "" = as Admin.As says. At most 256 bytes.
	By string
	// Reason is why, for people; at most 1,000 bytes.
	Reason string
}

// Skip moves the head of a group, whichever item is the head, to the dead letters, and returns the item's id: for a
// group blocked by its head. A delay of the group ends. Use Cancel to name the item, or to remove an item for good.
//
// Reads: as CancelTx, and, at snapshot, the attempts of the head, and receipts, to compare the clocks of the handles.
// Writes: as CancelTx, but the parts stay, and the dead letter is set.
//
// Errors: as Cancel's; ErrNoItem if the group is empty; ErrChanged if another item than o.Head is the head;
// ErrInvalidUTF8, and *LimitError for By and Reason.
func (a Admin) Skip(ctx context.Context, group string, o SkipOptions) (ID, error) {
	var id ID
	a.by = cmp.Or(o.By, a.by)
	err := a.act(ctx, VerbSkip, &group, o.Head, func(ctx context.Context) (n int, err error) {
		id, err = onceOf(ctx, a.q, txFor(a.q, "skip"), func(tx kv.Tx) (ID, error) { return a.skip(ctx, tx, group, o) })
		return 1, err
	})
	return id, err
}

// skip is Skip in a transaction. It reads the keys that CancelTx reads, and the attempts of the head and receipts. It
// writes the dead letter, and otherwise the keys that CancelTx writes, but leaves the parts.
func (a Admin) skip(ctx context.Context, tx kv.Tx, group string, o SkipOptions) (ID, error) {
	q := a.q
	if err := checkGroup(group); err != nil {
		return ID{}, err
	}
	if err := checkByReason(o.By, o.Reason); err != nil {
		return ID{}, err
	}
	reason := "skipped by " + a.who()
	if o.Reason != "" {
		reason += ": " + o.Reason
	}
	var id ID
	err := interfere(ctx, q, tx, func(w *txn) error {
		head, found, err := w.readHead(group)
		if err != nil {
			return err
		}
		if id = head; !found {
			return fmt.Errorf("%w: group %q is empty", ErrNoItem, group)
		}
		if err := seenHead(o.Head, id); err != nil {
			return err
		}
		return w.takeOut(id, func(i *waiting) error {
			record, err := w.readAttempt(id)
			if err != nil {
				return err
			}
			deadMS, err := w.present()
			if err != nil {
				return err
			}
			w.putDeadLetter(&failure{id: id, record: record, reason: rec.Cut(reason)}, i.value, i.facets, deadMS)
			return nil
		})
	})
	return id, err
}

// Edit changes the body and the headers of a waiting item. change gets the current message and changes it. change may
// run several times, so its result must not depend on earlier runs. An error of change ends the edit without effect,
// also an error that wraps a *kv.Error.
// The item keeps its place, its id, the time of its enqueue, and its failed attempts; a delay of the group goes on.
//
// ReplaceTx lists the keys that Edit reads and writes.
//
// Errors: as Cancel's; those of change; ErrCorrupt if the item cannot be read; ErrOptions if change sets anything but
// body and headers; *LimitError and ErrInvalidUTF8 as Enqueue's.
func (a Admin) Edit(ctx context.Context, id ID, change func(m *Message) error) error {
	return a.act(ctx, VerbEdit, &id.Group, id, func(ctx context.Context) (int, error) {
		return 1, reveal(a.q.onceTx(ctx, func(tx kv.Tx) error { return a.edit(ctx, tx, id, change) }))
	})
}

// edit is Edit in a transaction. It reads the lock, with a conflict; the item and its parts, at snapshot. It writes the
// item and its parts. In a queue with facets it reads more, and may write keys lane and hints: see ReplaceTx.
func (a Admin) edit(ctx context.Context, tx kv.Tx, id ID, change func(m *Message) error) error {
	if err := checkID(id); err != nil {
		return err
	}
	if change == nil {
		return fmt.Errorf("%w: no function that changes the message", ErrOptions)
	}
	called := func(m *Message) error { return given(change(m)) }
	return interfere(ctx, a.q, tx, func(w *txn) error { return w.edit(id, called) })
}

// waiting is an item that is not in flight, as waitingItem has read it.
type waiting struct {
	value  []byte                 // of the item's key
	facets string                 // the item's facets, packed; "" = not known, or there are none
	locks  map[string]*rec.Record // by lane: the locks under which a claim may have the item
	heads  []string               // the lanes whose first item it is; unstick removes one that a mark stops
	stuck  *heldLane              // the claim that has the item, and whose lease has expired; nil = there is none
}

// waitingItem reads an item that the caller is about to change. The item may be in several lanes, and any of them may
// be held. So waitingItem reads, with a conflict, the locks under which a claim may have the item. If the queue has
// other lanes than whole groups, it adds a conflict on all locks of the group. The caller must write a conflict on the
// lock of the whole group, which every claim in the group reads. Together these exclude every claim and release in the
// group until the commit.
//
// It also reads the item, and the keys of the heads of its lanes, at snapshot. It writes nothing, except that it ends
// claims of a dead handle that holds the group by its heartbeat (withoutDead). The error is ErrNoItem if the item is
// not there, ErrInFlight if a claim whose lease lasts has it, and ErrCorrupt if a lock cannot be read. If the item
// cannot be read, in a queue with facets, and its group has too many locks or lanes to search, it is a *LimitError.
func (w *txn) waitingItem(id ID) (i waiting, err error) {
	lockKey := w.keys.lock(id.Group)
	own, value, head := guard.ItemLock.Get(w.tx, lockKey), w.read.Get(w.keys.item(id)), w.head(id.Group)
	if i.value, err = value.Wait(w.ctx); err != nil {
		return i, fmt.Errorf("read item: %w", err)
	}
	v, err := own.Wait(w.ctx)
	if err != nil {
		return i, fmt.Errorf("read lock: %w", err)
	}
	if i.value == nil {
		return i, fmt.Errorf("%w: %s", ErrNoItem, id)
	}
	i.facets = w.keys.plan.FacetsIn(i.value)
	all, err := w.locksBeside(guard.ItemLock, id.Group, id, i.facets)
	if _, unknown := w.keys.lanesOver(id, i.facets); err == nil && unknown {
		all, err = besideUnreadable(w, &i, id, all)
	}
	if err != nil {
		return i, err
	}
	if v != nil {
		r, err := rec.UnpackRecord(lockKey, v)
		if err == nil {
			r, err = withoutDead(w, guard.ItemLock, id.Group, r)
		}
		if err != nil {
			return i, err
		}
		all = append(all, heldLane{lane: id.Group, record: r})
	}
	i.locks = make(map[string]*rec.Record, len(all))
	for _, held := range all {
		i.locks[held.lane] = held.record
		c := held.record.Claim()
		if !hasItem(c, id) {
			continue
		}
		lasts, err := claimLasts(w, held.record)
		if err != nil {
			return i, err
		}
		if lasts {
			m, err := w.moment()
			if err != nil {
				return i, err
			}
			return i, fmt.Errorf("%w: %s is held by %q for %s", ErrInFlight, id, c.Owner, leftOf(c, m))
		}
		i.stuck = &held
	}
	for _, lane := range w.keys.plan.LanesOf(id.Group, i.facets) {
		first := head
		if lane != id.Group {
			first = w.head(lane)
		}
		key, err := first.Wait(w.ctx)
		if err != nil {
			return i, fmt.Errorf("read head: %w", err)
		}
		if bytes.Equal(key, w.keys.laneItem(lane, id)) {
			i.heads = append(i.heads, lane)
		}
	}
	return i, nil
}

// besideUnreadable is for an item whose value cannot be read. It sets the item's facets, as far as strayFacets finds
// them, and adds to claims the locks of the lanes with these facets, which it reads with a conflict. claims are what
// locksBeside has found without the facets. If one of them lasts, besideUnreadable looks no further: the caller then
// refuses the change.
func besideUnreadable(w *txn, i *waiting, id ID, claims []heldLane) ([]heldLane, error) {
	for _, claim := range claims {
		lasts, err := claimLasts(w, claim.record)
		if err != nil || lasts || claim.record.At(w.nowMS) != rec.Lapsed { // the caller refuses the change
			return claims, err
		}
	}
	facets, err := strayFacets(&w.view, id, straysMost)
	if err != nil || facets == "" {
		return claims, err
	}
	i.facets = facets
	all, err := w.locksBeside(guard.ItemLock, id.Group, id, facets)
	for _, claim := range claims {
		if !slices.ContainsFunc(all, func(h heldLane) bool { return h.lane == claim.lane }) {
			all = append(all, claim)
		}
	}
	return all, err
}

// unstick ends i.stuck, the claim that has the item id and whose lease has expired. If there is none, it does nothing.
// It writes as the next receive would: the lock, its timer, and the attempts of the claim's items (lapse). But it never
// makes the item id a dead letter, and never halts the group because of that item. If another item is the first of the
// claim, that item may become a dead letter, or halt the group. unstick takes the lane of the claim out of i.locks, and
// out of i.heads if a mark stops the lane. free has the lane of the claim if no mark stops it and the item is not its
// head: the caller must set that lane free. nil = there is none.
func (w *txn) unstick(i *waiting, id ID) (free []string, err error) {
	if i.stuck == nil {
		return nil, nil
	}
	lane := i.stuck.lane
	isFree, err := w.lapse(lane, i.stuck.record, nil, id)
	delete(i.locks, lane)
	isHead := func(head string) bool { return head == lane }
	switch {
	case !isFree:
		i.heads = slices.DeleteFunc(i.heads, isHead)
	case !slices.ContainsFunc(i.heads, isHead):
		free = []string{lane}
	}
	return free, err
}

// freeHeads returns the lanes whose head the item is, and which no lock keeps.
func (i *waiting) freeHeads() []string {
	return slices.DeleteFunc(slices.Clone(i.heads), func(lane string) bool { return i.locks[lane] != nil })
}

// clearHeadTimers clears the timers that lead to a delayed item in the given lanes (of). value is the stored value of
// the item. The item must be the head of these lanes, and no lock may keep them. The caller must set them free. If the
// item is not delayed, or cannot be read, clearHeadTimers clears nothing. A timer that stayed would be found stale when
// it is due, which may be days later.
func clearHeadTimers(w *txn, value []byte, of []string) error {
	config, err := w.config()
	if err != nil || len(of) == 0 {
		return err
	}
	e, _, err := rec.OpenEnvelope(value)
	if delay := config.retro(); err == nil && delay.due(&e) > 0 { // else the item is not delayed, or not readable
		for _, lane := range of {
			clearTimers(w, delay.timing(&e), lane)
		}
	}
	return nil
}

// cancel removes a waiting item for good, see takeOut. It clears the item, its keys lane, its parts and its attempts.
func (w *txn) cancel(id ID) error {
	return w.takeOut(id, func(i *waiting) error {
		w.clearItem(id.Group, id, i.facets)
		w.tx.ClearRange(w.keys.parts(id))
		w.tx.Clear(w.keys.attempt(id))
		w.count(countCancelled, 1)
		w.change(ChangeCancelled, id, i.facets)
		return nil
	})
}

// takeOut removes a waiting item from its group. remove must clear the item, and its keys lane. takeOut reads as
// waitingItem does, and adds a write conflict on the lock of the group. It ends an expired claim of the item (unstick),
// and a retry delay of the item or of a lane whose head it is: their locks and timers. In the lanes whose head the item
// is, it clears the item's hint and timer. Then it sets these lanes free, and the lane of the ended claim, unless a
// lock keeps them.
func (w *txn) takeOut(id ID, remove func(i *waiting) error) error {
	i, err := w.waitingItem(id)
	if err != nil {
		return err
	}
	if err := w.excludeHolders(guard.TakeOutExclude, id.Group); err != nil {
		return err
	}
	free, err := w.unstick(&i, id)
	if err != nil {
		return err
	}
	for _, lane := range i.heads { // elsewhere the hint or timer of the lane's head stays right
		if r := i.locks[lane]; r.Is(rec.KindDelay) && w.end(lane, r, r.Mark()) { // the delay was for this item
			delete(i.locks, lane)
		}
		w.tx.Clear(w.keys.ready(id.Index, lane))
	}
	// The item may be delayed by itself, in a queue with claims of single items.
	if hold := holdLane(id); i.locks[hold].Is(rec.KindDelay) {
		w.end(hold, i.locks[hold], nil)
	}
	if err := remove(&i); err != nil {
		return err
	}
	heads := i.freeHeads()
	if err := clearHeadTimers(w, i.value, heads); err != nil {
		return err
	}
	return w.freeAll(append(free, heads...))
}

// edit gives a waiting item the body and headers that change makes of the old. It reads as waitingItem does, and also
// the parts and both ends of each lane that the item joins. It adds a write conflict on the lock of the group, and
// writes the item and its parts. It ends an expired claim of the item (unstick). A change of a facet moves the item to
// other lanes: edit clears and sets keys lane (leaveLanes, rewrite), writes hints, and clears the item's timers in the
// lanes that it leaves.
func (w *txn) edit(id ID, change func(m *Message) error) error {
	i, err := w.waitingItem(id)
	if err != nil {
		return err
	}
	a, err := w.changedItem(id, i.value, change)
	if err != nil {
		return err
	}
	a.had = 1 // rewrite then clears the old parts, if there are any
	ends, err := w.readLaneEnds([]advanced{a})
	if err != nil {
		return err
	}
	if err := w.excludeHolders(guard.EditExclude, id.Group); err != nil {
		return err
	}
	free, err := w.unstick(&i, id)
	if err != nil {
		return err
	}
	w.leaveLanes(&a)
	// The old body goes in the same transaction in which the new body comes: no reader sees parts of both.
	if err := w.rewrite(&a, ends); err != nil {
		return err
	}
	w.changeEdited(id, a.was, a.facets)
	if i.stuck == nil && len(a.left) == 0 {
		return w.freeAll(free)
	}
	heads := i.freeHeads()
	stays := func(lane string) bool { return !slices.Contains(a.left, lane) }
	if err := clearHeadTimers(w, i.value, slices.DeleteFunc(slices.Clone(heads), stays)); err != nil {
		return err
	}
	return w.freeAll(append(free, heads...))
}

// guardBefore makes the transaction fail if the item becomes the head of a lane before the commit. The caller moves the
// item, of an unordered queue, to an earlier time. Example: a and b are in a lane, and b is moved from 9:00 to 8:00. At
// the same time an ack removes a, and a receive leaves the lane to a timer at b's old time, 9:00. Then no receive would
// look at 8:00. A conflict on locks does not exclude this, because an unordered claim and its ack change no lock of the
// lane.
//
// Footprint: for each lane of which the item is not the first, a read conflict on the item before it.
func (w *txn) guardBefore(i *waiting, id ID) error {
	keys := w.keys
	for _, lane := range keys.plan.LanesOf(id.Group, i.facets) {
		if slices.Contains(i.heads, lane) {
			continue
		}
		before, err := w.read.GetKey(kv.LastLessThan(keys.laneItem(lane, id))).Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read the item before: %w", err)
		}
		if err := guard.NextEarlier.Read(w.tx, kv.SingleKey(before)); err != nil {
			return err
		}
	}
	return nil
}

const (
	// lanesOfStep bounds the lanes which a step of an operator's call changes, and which it reads at once.
	lanesOfStep = 100
	// allLanes is no bound: the call must change all lanes, or none.
	allLanes = math.MaxInt
)

// eachPart reads the rows of the sections, which are locks or marks of a group, with a conflict, in the order of their
// keys. The sections must be in that order, too. eachPart begins at the key from; nil = at the first row. For each row
// of a lane that is no whole group it calls begin, and then do, the function that begin returns; do nil = nothing is to
// be done. next is the key of the row where the next transaction must continue; nil = there is no more.
//
// The parameter most bounds the calls of do. A transaction also ends when it has no room left for another call, or when
// it has read its share of the rows (locksRead), because there may be many rows that need no change. If most is
// allLanes, there is no next transaction, so all calls of do come after the reads. If the rows are too many then, there
// is no call, and the error is a *LimitError.
func eachPart(
	w *txn, sections []kv.KeyRange, from []byte, most int,
	begin func(lane string, row kv.KV) (do func() error, err error),
) (next []byte, err error) {
	n, read := 0, locksRead{}
	var all []func() error // with allLanes: an error must come before the first write
	for _, section := range sections {
		if bytes.Compare(from, section.End) >= 0 {
			continue
		}
		if section.Contains(from) {
			section.Begin = from
		}
		for row, err := range walk(w.ctx, guard.MarkGroup.Reads(w.tx), section, lanesOfStep) {
			if err != nil {
				return nil, fmt.Errorf("read locks: %w", err)
			}
			if read.add(row); read.over() {
				if most == allLanes {
					return nil, read.limit()
				}
				return row.Key, nil
			}
			p, err := w.keys.parse(row.Key)
			if err != nil {
				return nil, err
			}
			if p.lane == p.group { // the whole group
				continue
			}
			do, err := begin(p.lane, row)
			if err != nil {
				return nil, err
			}
			if do == nil {
				continue
			}
			if most == allLanes {
				all = append(all, do)
				continue
			}
			if n == most || w.crowded() {
				return row.Key, nil
			}
			if err := do(); err != nil {
				return nil, err
			}
			n++
		}
	}
	for _, do := range all {
		if err := do(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// endParts ends, by force, the claims of all lanes of a group except the whole group: see eachPart for from, most and
// next. It reads the locks and holds of the group, with a conflict. Of each claim it clears the lock, or leaves a mark
// in it, and clears the timer. A lane without a mark is set free.
func (w *txn) endParts(group string, from []byte, most int) (next []byte, err error) {
	others := w.keys.locksIn(group, w.keys.plan.Others())
	return eachPart(w, others, from, most, func(lane string, row kv.KV) (func() error, error) {
		r, err := rec.UnpackRecord(row.Key, row.Value)
		if err != nil || r.Claim() == nil {
			return nil, err
		}
		return func() error {
			w.count(countForced, 1)
			if !w.end(lane, r, r.Mark()) {
				return nil
			}
			return w.free(lane)
		}, nil
	})
}

// unmarkAll removes the marks of lanes of a group. If whole is set, it then removes the mark of the whole group, too.
// The function allow decides about each mark: after nil the mark is removed, after ErrChanged it stays, and any other
// error ends unmarkAll. The parameter most bounds the lanes (see eachPart). old is a mark that was removed: that of the
// group, or else the first; nil = none. next is the key at which the next call must begin; nil = there are no more.
//
// It finds the lanes by the keys mark, because the locks of the lanes in flight may be many and large. It reads these
// keys with a conflict, and adds a read conflict on all locks of the group. It begins with the mark whose key is from;
// nil = the first. For each it reads and writes the lock, and clears the key mark. A lane that no holding keeps is set
// free, and after a halt the attempts of its head are cleared.
func (w *txn) unmarkAll(
	group string, allow func(m *rec.Mark) error, whole bool, from []byte, most int,
) (old *rec.Mark, next []byte, err error) {
	unmark := func(lane string) (*rec.Mark, error) {
		m, err := w.unmark(lane, allow)
		if errors.Is(err, ErrChanged) {
			err = nil
		}
		return m, err
	}
	if !w.keys.plan.IsPlain() {
		if err := guard.MarkGroup.Read(w.tx, w.keys.locks(group)); err != nil {
			return nil, nil, err
		}
		marks := []kv.KeyRange{w.keys.marks(group)}
		next, err = eachPart(w, marks, from, most, func(lane string, _ kv.KV) (func() error, error) {
			return func() error {
				m, err := unmark(lane)
				if old == nil {
					old = m
				}
				return err
			}, nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	if whole {
		m, err := unmark(group)
		if err != nil {
			return nil, nil, err
		}
		if m != nil {
			old = m
		}
	}
	return old, next, nil
}

// Changes which a program makes of its own waiting messages: another time, another body. Find gives the id of a message
// which the program knows by its dedup id.

// Reschedule moves the earliest delivery time of a waiting message to at, later or earlier. A time in the past, and the
// zero time, mean at once. at is rounded up to the millisecond. It may be at most MaxDelay from now.
//
// The message keeps its place in the group, because order is kept. So the messages behind wait as long as the message
// waits, and a message behind a delayed message does not overtake: its new time counts once it is the group's first. A
// retry delay of the group, a pause and a used-up rate stay. Admin.RetryNow ends a retry delay. Retention counts from
// the new time on.
//
// RescheduleTx lists the keys that Reschedule reads and writes.
//
// Errors: ErrNoItem, ErrInFlight, ErrInvalidID, ErrOptions if the message joins its group when it is due, ErrCorrupt,
// *LimitError, ErrNoQueue, ErrClosed, and the engine's; nothing was changed then.
func (q *Queue) Reschedule(ctx context.Context, id ID, at time.Time) error {
	ctx, w := q.observe(ctx, Operation{Verb: VerbReschedule, ID: id})
	err := q.onceTx(ctx, func(tx kv.Tx) error { return q.RescheduleTx(ctx, tx, id, at) })
	return w.end(ctx, wrap("reschedule", err))
}

// RescheduleTx reschedules in the caller's transaction. The caller must handle an unknown commit: with Once, or by a
// second call, which does no harm. After the message was delivered, the error of the second call is ErrNoItem or
// ErrInFlight.
//
// Reads: the lock, with a conflict; the item and the key of the head, at snapshot. If the item is the head of a group
// that is not held: a conflict on the place before the head, the timer of the old time, with a conflict, and the head's
// attempts if it is due at once. If an expired claim has the item: as CancelTx. In a queue with templates, unordered
// receives or lease_per=item also: the locks of the item's lanes, with a conflict on all locks of the group, and the
// heads of these lanes. In an unordered queue, if the new time is earlier: the item before, with a conflict.
//
// Writes: the item, and a write conflict on the lock. If the item is the head of a group that is not held: its timer
// and its hint. If an expired claim has the item, that claim ends, with the keys of CancelTx. Other claims may change
// before, as in CancelTx.
func (q *Queue) RescheduleTx(ctx context.Context, tx kv.Tx, id ID, at time.Time) error {
	if err := checkID(id); err != nil {
		return wrap("reschedule", err)
	}
	return wrap("reschedule", interfere(ctx, q, tx, func(w *txn) error {
		left := at.Sub(fromMillis(w.nowMS))
		if left > MaxDelay {
			return checkDelay(left)
		}
		var dueMS int64 // at once
		if left > 0 {
			dueMS = millis(at.Add(time.Millisecond - 1))
		}
		return w.reschedule(id, dueMS)
	}))
}

// Replace puts another body and other headers (nil = none) in the place of those of a waiting message. The message
// keeps its place, its id, its dedup id, its times and its failed attempts. If the new body depends on the old one, use
// Admin.Edit. With DedupByContent the dedup id remains that of the first body.
//
// ReplaceTx lists the keys that Replace reads and writes.
//
// Errors: ErrNoItem, ErrInFlight, ErrInvalidID, ErrCorrupt, *LimitError, ErrInvalidUTF8, ErrNoQueue, ErrClosed, and the
// engine's; nothing was changed then.
func (q *Queue) Replace(ctx context.Context, id ID, body []byte, headers map[string]string) error {
	ctx, w := q.observe(ctx, Operation{Verb: VerbReplace, ID: id})
	err := q.onceTx(ctx, func(tx kv.Tx) error { return q.ReplaceTx(ctx, tx, id, body, headers) })
	return w.end(ctx, wrap("replace", err))
}

// ReplaceTx replaces in the caller's transaction. The caller must handle an unknown commit, as for RescheduleTx.
//
// Reads: the lock, with a conflict; the item, its parts and the key of the head, at snapshot. In a queue with
// templates, unordered receives or lease_per=item also: the locks of the item's lanes, with a conflict on all locks of
// the group, and the heads of these lanes. If a facet changes, the first and the last key of each lane that the item
// joins, with a conflict on the last. If an expired claim has the item: as CancelTx.
//
// Writes: the item and its parts, and a write conflict on the lock. If a facet changes: the keys lane of the lanes that
// the item leaves and joins, hints of those of which it is, or was, the first, and clears its timers in those that it
// leaves. If an expired claim has the item, that claim ends, with the keys of CancelTx. Other claims may change before,
// as in CancelTx.
func (q *Queue) ReplaceTx(ctx context.Context, tx kv.Tx, id ID, body []byte, headers map[string]string) error {
	if err := checkID(id); err != nil {
		return wrap("replace", err)
	}
	return wrap("replace", interfere(ctx, q, tx, func(w *txn) error {
		return w.edit(id, func(m *Message) error {
			m.Body, m.Headers = body, headers
			return nil
		})
	}))
}

// reschedule makes a waiting item due at dueMS; 0 = at once. If both the old and the new time are over, nothing
// changes. If the message joins its group when it is due, the error wraps ErrOptions. reschedule reads as waitingItem
// does, adds a write conflict on the lock of the group, and sets the item with the new time. It ends an expired claim
// of the item (unstick).
//
// If each group is one lane, a free group of which the item is the head gets its new timer here: reschedule adds a read
// conflict on the gap up to the head, and retimeHead does the rest. In other queues reschedule clears the item's timers
// in the lanes of which the item is the head, and sets their hints. A receive that follows such a hint leaves the lane
// to a timer. In an unordered queue guardBefore adds conflicts if the new time is earlier.
func (w *txn) reschedule(id ID, dueMS int64) error {
	i, err := w.waitingItem(id)
	if err != nil {
		return err
	}
	key, plan := w.keys.item(id), w.keys.plan
	e, body, err := rec.OpenEnvelope(i.value)
	if err != nil {
		return rec.Corrupt(key, err)
	}
	if e.Joins {
		return fmt.Errorf("%w: %s joins its group when it is due: cancel it, and enqueue it again", ErrOptions, id)
	}
	config, err := w.config()
	if err != nil {
		return err
	}
	wasMS, oldMS := config.retro().due(&e), config.retro().timing(&e)
	if max(wasMS, dueMS) <= w.nowMS {
		return nil
	}
	if err := w.excludeHolders(guard.EditExclude, id.Group); err != nil {
		return err
	}
	if plan.TakesAny() && dueMS < wasMS {
		if err := w.guardBefore(&i, id); err != nil {
			return err
		}
	}
	free, err := w.unstick(&i, id)
	if err != nil {
		return err
	}
	heads, timed := i.freeHeads(), plan.IsPlain()
	if timed && len(heads) > 0 {
		// Before the set, or else the item's own key would be left out of the conflict. The gap is awaitHead's: the old
		// timer, which is about to be cleared, may be that of an item which comes into the gap.
		gap := kv.KeyRange{Begin: w.keys.items(id.Group).Begin, End: kv.KeyAfter(key)}
		if err := guard.EarlyGap.Read(w.tx, gap); err != nil {
			return err
		}
	}
	if err := retime(w, &e, id.Index, dueMS); err != nil {
		return err
	}
	w.tx.Set(key, append(e.Append(nil), body...))
	if timed && len(heads) > 0 {
		return w.retimeHead(id, oldMS, dueMS)
	}
	if err := clearHeadTimers(w, i.value, heads); err != nil {
		return err
	}
	return w.freeAll(append(free, heads...)) // elsewhere the hint or timer of the head, or of the holding, stays right
}

// retimeHead makes the head of a group that is not held due at dueMS. It reads the timer with the time oldMS in its
// key, with a conflict and in each shard in which it may lie, and clears it. Then it sets a timer at dueMS, and clears
// the head's hint. If dueMS is over, it sets the hint instead. The caller must have a read conflict on the lock, and on
// the gap up to the head.
func (w *txn) retimeHead(head ID, oldMS, dueMS int64) error {
	keys := w.keys
	for _, key := range keys.timersAt(oldMS, head.Group) {
		// With a conflict: a claim which leaves the group to its head at the same time sets the timer.
		timers, err := guard.EarlyGap.Reads(w.tx).GetRange(kv.SingleKey(key).Selectors(), kv.RangeOptions{}).Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read timer: %w", err)
		}
		for _, row := range timers { // at most one
			w.clear(row.Key)
		}
	}
	if dueMS > w.nowMS {
		return w.awaitHead(head.Group, keys.ready(head.Index, head.Group), head, dueMS)
	}
	return w.free(head.Group)
}
