package layer

import (
	"bytes"
	"fmt"
	"slices"

	"fdbfifo/kv"
)

// What an operator does to a waiting item of a queue with facets. The item is in several lanes, and any of them may be
// held. So the operation reads all locks of the group with a conflict, and writes a conflict on the lock of the whole
// group, which every claim of the group reads: nothing of the group is claimed or released meanwhile.

// laneWaiting is an item that is not in flight, in a queue with facets.
type laneWaiting struct {
	value []byte
	locks map[string]*record // of the group's lanes
	stuck string             // the lane in whose claim, whose lease has run out, the item is; "" = none
	heads []string           // the lanes whose first item it is
}

// waitingInLanes is waitingItem for a queue with facets.
func (w *txn) waitingInLanes(id ID) (i laneWaiting, err error) {
	all, err := w.locksOver(guardItemLock, id)
	if err != nil {
		return i, err
	}
	if i.value, err = w.tx.Snapshot().Get(w.q.keys.item(id)).Wait(w.ctx); err != nil {
		return i, fmt.Errorf("read item: %w", err)
	}
	if i.value == nil {
		return i, fmt.Errorf("%w: %s", ErrNoItem, id)
	}
	i.locks = make(map[string]*record, len(all))
	for _, held := range all {
		i.locks[held.lane] = held.record
		c := held.record.claim()
		if !c.holds(id) {
			continue
		}
		if held.record.at(w.nowMS) != lapsed {
			return i, fmt.Errorf("%w: %s is held by %q for %s", ErrInFlight, id, c.owner, c.leftOf(w.nowMS))
		}
		i.stuck = held.lane
	}
	for _, lane := range w.q.keys.plan.lanesOf(id.Group, w.q.keys.facetsIn(i.value)) {
		first, err := w.head(lane).Wait(w.ctx)
		if err != nil {
			return i, fmt.Errorf("read head: %w", err)
		}
		if bytes.Equal(first, w.q.keys.laneItem(lane, id)) {
			i.heads = append(i.heads, lane)
		}
	}
	return i, nil
}

// unstick ends the claim whose lease has run out and which has the item, and returns the lanes to set free.
func (w *txn) unstick(i *laneWaiting, id ID) (free []string, err error) {
	if i.stuck == "" {
		return nil, nil
	}
	isFree, err := w.lapse(i.stuck, i.locks[i.stuck], nil, id)
	if isFree {
		free = append(free, i.stuck)
	}
	delete(i.locks, i.stuck)
	return free, err
}

// freeAll sets lanes free that nobody holds.
func (w *txn) freeAll(lanes []string) error {
	for _, lane := range lanes {
		if err := w.free(lane); err != nil {
			return err
		}
	}
	return nil
}

// takeOutOfLanes is takeOut for a queue with facets.
func (w *txn) takeOutOfLanes(id ID, remove func(value []byte) error) error {
	i, err := w.waitingInLanes(id)
	if err != nil {
		return err
	}
	if err := w.excludeHolders(guardTakeOutExclude, id.Group); err != nil {
		return err
	}
	free, err := w.unstick(&i, id)
	if err != nil {
		return err
	}
	for _, lane := range i.heads {
		r := i.locks[lane]
		if r.is(kindDelay) && w.end(lane, r, r.mark) || r == nil {
			free = append(free, lane)
		}
	}
	if r := i.locks[holdLane(id)]; r.is(kindDelay) {
		w.end(holdLane(id), r, nil)
	}
	if err := remove(i.value); err != nil {
		return err
	}
	w.clearItem(id, w.q.keys.facetsIn(i.value))
	return w.freeAll(free)
}

// editInLanes is edit for a queue with facets: a change of a facet moves the item to other lanes.
func (w *txn) editInLanes(id ID, change func(m *Message) error) error {
	i, err := w.waitingInLanes(id)
	if err != nil {
		return err
	}
	m, e, err := w.changedItem(id, i.value, change)
	if err != nil {
		return err
	}
	a := []advanced{{id: id, had: 1}}
	a[0].value, a[0].parts = split(nil, m, e)
	a[0].left, a[0].joined = w.q.keys.moves(id, w.q.keys.facetsIn(i.value), w.q.keys.plan.pack(m.Headers))
	ends, err := w.readLaneEnds(a)
	if err != nil {
		return err
	}
	if err := w.excludeHolders(guardEditExclude, id.Group); err != nil {
		return err
	}
	free, err := w.unstick(&i, id)
	if err != nil {
		return err
	}
	w.leaveLanes(&a[0])
	if err := w.rewrite(&a[0], ends); err != nil {
		return err
	}
	for _, lane := range i.heads {
		if i.locks[lane] == nil {
			free = append(free, lane)
		}
	}
	return w.freeAll(free)
}

// rescheduleInLanes is reschedule for a queue with facets: a hint leads to each lane whose head the item is, and who
// follows the hint leaves the lane to a timer.
func (w *txn) rescheduleInLanes(id ID, dueMS int64) error {
	i, err := w.waitingInLanes(id)
	if err != nil {
		return err
	}
	key := w.q.keys.item(id)
	e, body, err := openEnvelope(i.value)
	if err != nil {
		return corrupt(key, err)
	}
	config, err := w.config()
	if err != nil {
		return err
	}
	if max(config.retro().due(&e), dueMS) <= w.nowMS {
		return nil
	}
	if err := w.excludeHolders(guardEditExclude, id.Group); err != nil {
		return err
	}
	if w.q.keys.takesAny() && dueMS < config.retro().due(&e) {
		if err := w.staysBehind(&i, id); err != nil {
			return err
		}
	}
	free, err := w.unstick(&i, id)
	if err != nil {
		return err
	}
	e.dueMS = dueMS
	w.tx.Set(key, append(e.append(nil), body...))
	for _, lane := range i.heads {
		if i.locks[lane] == nil {
			free = append(free, lane)
		}
	}
	return w.freeAll(free)
}

// staysBehind adds read conflicts on the items right before an item in its lanes, for an unordered queue: while these
// are there, the item is no head, and nobody leaves the lane to the time that the item had. An unordered claim, and its
// ack, change no lock that would tell.
func (w *txn) staysBehind(i *laneWaiting, id ID) error {
	keys := w.q.keys
	for _, lane := range keys.plan.lanesOf(id.Group, keys.facetsIn(i.value)) {
		if slices.Contains(i.heads, lane) {
			continue
		}
		before, err := w.tx.Snapshot().GetKey(kv.LastLessThan(keys.laneItem(lane, id))).Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read the item before: %w", err)
		}
		if err := guardNextEarlier.read(w.tx, kv.SingleKey(before)); err != nil {
			return err
		}
	}
	return nil
}

// endParts ends the claims of all lanes of a group but the whole group, by force.
func (w *txn) endParts(group string) error {
	all, err := w.groupLocks(guardMarkGroup, group)
	if err != nil {
		return err
	}
	holds, err := w.readHolds(guardMarkGroup, w.q.keys.holds(group))
	if err != nil {
		return err
	}
	for _, held := range append(all, holds...) {
		if !isPart(held.lane) || held.record.claim() == nil {
			continue
		}
		w.count(countForced, 1)
		if !w.end(held.lane, held.record, held.record.mark) {
			continue
		}
		if err := w.free(held.lane); err != nil {
			return err
		}
	}
	return nil
}

// unmarkAll removes the mark of a group and those of its other lanes, and returns the first; nil = there is none.
func (w *txn) unmarkAll(group string, allow func(m *mark) error) (*mark, error) {
	old, err := w.unmark(group, allow)
	if err != nil || w.q.keys.plan == nil {
		return old, err
	}
	all, err := w.groupLocks(guardMarkGroup, group)
	if err != nil {
		return nil, err
	}
	for _, held := range all {
		if !isPart(held.lane) || held.record.bears() == nil {
			continue
		}
		m, err := w.unmark(held.lane, allow)
		if err != nil {
			return nil, err
		}
		if old == nil {
			old = m
		}
	}
	return old, nil
}
