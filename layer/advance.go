package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
)

// Advance lets the holder rewrite items of a claim: change gets each item as a message, and changes its headers, its
// facets among them, or its body. An advanced item keeps its place and its id, leaves the claim, and is delivered again
// by the templates that it agrees with now: so a message goes from stage to stage of a pipeline in place. With its last
// item the claim ends. Without ids Advance advances all that the claim still has; with an empty slice of ids, nothing.
//
// Failed attempts do not go along: each stage begins with none. An item whose facets are left as they are is delivered
// again to the same template, in a later claim. change may run several times; an error of change ends the call without
// effect.
//
// Errors: ErrClaimLost, ErrNotInClaim, ErrCorrupt if an item cannot be read; ErrOptions if change sets anything but
// body and headers; *LimitError and ErrInvalidUTF8 as Enqueue's, and for the value of a facet; ErrClosed, and the
// engine's. Nothing was changed then.
func (q *Queue) Advance(ctx context.Context, c *Claim, change func(m *Message) error, ids ...ID) error {
	if ids != nil && len(ids) == 0 {
		return nil
	}
	err := q.onceTx(ctx, func(tx kv.Tx) error { return q.AdvanceTx(ctx, tx, c, change, ids...) })
	if err == nil {
		c.drop(ids, nil)
	}
	return wrap("advance", err)
}

// AdvanceTx advances in the caller's transaction, as AckTx acks.
//
// Reads: the lock, with a conflict; the items, at snapshot; the first and the last key of each lane that an item joins,
// at snapshot. Conflicts: with the removal of the last item of such a lane; when the claim ends, as AckTx.
func (q *Queue) AdvanceTx(ctx context.Context, tx kv.Tx, c *Claim, change func(m *Message) error, ids ...ID) error {
	if ids != nil && len(ids) == 0 {
		return nil
	}
	s := &settlement{claim: c, ids: ids}
	if err := s.checkClaim(q); err != nil {
		return wrap("advance", err)
	}
	if isHold(s.lane) {
		return wrap("advance", fmt.Errorf("%w: an item of an unordered claim is not advanced", ErrOptions))
	}
	return wrap("advance", q.operate(ctx, tx, func(w *txn) error { return w.advance(s, change) }))
}

// advanced is an item as its holder has changed it.
type advanced struct {
	id     ID
	value  []byte
	parts  [][]byte
	had    int64    // parts of the old body
	left   []string // the lanes which the item leaves
	joined []string // the lanes which the item joins
}

// advance rewrites items of a claim. After an error nothing was written.
func (w *txn) advance(s *settlement, change func(m *Message) error) error {
	group := s.claim.Group
	r, err := w.q.readLock(w.ctx, guardSettleLock.reads(w.tx), s.lane)
	if err != nil {
		return err
	}
	c := r.claim()
	if c == nil || c.token != s.claim.Token && !lacks(guardToken) || !s.claim.of(w.q) {
		return s.lost(w, r)
	}
	gone, left, err := c.divide(group, s.ids, true)
	if err != nil {
		return err
	}
	changed, err := w.changed(group, gone, change)
	if err != nil {
		return err
	}
	ends, err := w.readLaneEnds(changed)
	if err != nil {
		return err
	}
	for i := range changed {
		if err := w.rewrite(&changed[i], ends); err != nil {
			return err
		}
	}
	w.clearAttempts(group, c.items, gone)
	w.changeAll(ChangeAdvanced, group, gone)
	if len(left) > 0 {
		w.put(s.lane, r, r.with(left, c.endMS), 0)
		return nil
	}
	w.ended(s.lane)
	if !w.end(s.lane, r, r.mark) {
		return nil
	}
	_, _, err = w.leave(s.lane, nil, guardReleaseEmpty, false)
	return err
}

// changed returns the items as change leaves them.
func (w *txn) changed(group string, gone []delivered, change func(m *Message) error) ([]advanced, error) {
	snapshot := w.tx.Snapshot()
	gets := make([]kv.Future[[]byte], len(gone))
	for i, d := range gone {
		gets[i] = snapshot.Get(w.q.keys.item(d.id(group)))
	}
	all := make([]advanced, len(gone))
	for i, d := range gone {
		id := d.id(group)
		value, err := gets[i].Wait(w.ctx)
		if err != nil {
			return nil, fmt.Errorf("read item: %w", err)
		}
		if value == nil {
			return nil, corrupt(w.q.keys.item(id), fmt.Errorf("held, and not there"))
		}
		m, e, err := w.changedItem(id, value, change)
		if err != nil {
			return nil, err
		}
		a := advanced{id: id, had: d.parts}
		a.value, a.parts = split(m, e)
		a.left, a.joined = w.q.keys.moves(id, w.q.keys.facetsIn(value), w.q.keys.plan.pack(m.Headers))
		all[i] = a
	}
	return all, nil
}

// changedItem returns an item's message as change leaves it, checked, and the item's envelope.
func (w *txn) changedItem(id ID, value []byte, change func(m *Message) error) (*Message, envelope, error) {
	key := w.q.keys.item(id)
	e, _, err := openEnvelope(value)
	if err != nil {
		return nil, e, corrupt(key, err)
	}
	old, err := w.q.readItem(w.ctx, w.tx.Snapshot(), kv.KV{Key: key, Value: value})
	if err != nil {
		return nil, e, err
	}
	m := old.message()
	if err := change(&m); err != nil {
		return nil, e, err
	}
	if err := m.keeps(&old); err != nil {
		return nil, e, err
	}
	if _, err := m.check(); err != nil {
		return nil, e, err
	}
	config, err := w.config()
	if err != nil {
		return nil, e, err
	}
	return &m, e, config.checkFacetsOf(m.Headers)
}

// moves returns the lanes, but for the whole group, which an item leaves and joins with a change of its facets.
func (s subspace) moves(id ID, old, next string) (left, joined []string) {
	if s.plan == nil || old == next {
		return nil, nil
	}
	was, is := s.plan.partsOf(id.Group, unpackStrings(old)), s.plan.partsOf(id.Group, unpackStrings(next))
	for i := range was {
		if was[i] != is[i] {
			left, joined = append(left, was[i]), append(joined, is[i])
		}
	}
	return left, joined
}

// laneEnds is the first and the last item of a lane, as the transaction has read them; nil = the lane is empty.
type laneEnds struct {
	first, last []byte
	fenced      bool
}

// readLaneEnds reads the ends of the lanes which items join.
func (w *txn) readLaneEnds(all []advanced) (map[string]*laneEnds, error) {
	type reads struct{ first, last kv.Future[[]byte] }
	begun := make(map[string]reads)
	var order []string
	for i := range all {
		for _, lane := range all[i].joined {
			if _, ok := begun[lane]; ok {
				continue
			}
			items := w.q.keys.items(lane)
			begun[lane] = reads{
				w.tx.Snapshot().GetKey(kv.FirstGreaterOrEqual(items.Begin)),
				w.tx.Snapshot().GetKey(kv.LastLessThan(items.End)),
			}
			order = append(order, lane)
		}
	}
	ends := make(map[string]*laneEnds, len(begun))
	for _, lane := range order {
		first, err := begun[lane].first.Wait(w.ctx)
		if err != nil {
			return nil, fmt.Errorf("read lane: %w", err)
		}
		last, err := begun[lane].last.Wait(w.ctx)
		if err != nil {
			return nil, fmt.Errorf("read lane: %w", err)
		}
		ends[lane] = &laneEnds{}
		if w.q.keys.items(lane).Contains(first) {
			ends[lane].first, ends[lane].last = first, last
		}
	}
	return ends, nil
}

// rewrite writes an advanced item, and moves the item from lane to lane. Where the item becomes the first of a lane it
// writes a hint. Elsewhere the lane has a hint or a lock, and the conflict on the lane's last key keeps that so, as in
// an enqueue.
func (w *txn) rewrite(a *advanced, ends map[string]*laneEnds) error {
	keys, tx := w.q.keys, w.tx
	if a.had > 0 {
		tx.ClearRange(keys.parts(a.id))
	}
	tx.Set(keys.item(a.id), a.value)
	for n, part := range a.parts {
		tx.Set(keys.part(a.id, n), part)
	}
	for _, lane := range a.left {
		tx.Clear(keys.laneItem(lane, a.id))
	}
	for _, lane := range a.joined {
		key, end := keys.laneItem(lane, a.id), ends[lane]
		becomesFirst := end.first == nil || string(key) < string(end.first)
		if end.last != nil && !end.fenced {
			end.fenced = true
			if err := guardLaneTail.read(tx, kv.SingleKey(end.last)); err != nil {
				return err
			}
		}
		tx.Set(key, nil)
		if becomesFirst {
			end.first = key
			if _, err := w.rehint(a.id.Index, lane, 0); err != nil {
				return err
			}
		}
	}
	return nil
}
