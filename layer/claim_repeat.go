package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// A receive with a receive id records its claims, in the transaction which claims. The receive first reads the record,
// with a conflict: of two receives with the same id at the same time the first claims, and the second gets its claims.

// ReceiveIDLife is how long a receive can be repeated under its receive id, by the clocks of the two workers.
const ReceiveIDLife = 5 * time.Minute

func checkReceiveID(id string) error {
	if len(id) > MaxReceiveIDSize {
		return &LimitError{What: "receive id", Unit: "bytes", Got: int64(len(id)), Max: MaxReceiveIDSize}
	}
	if !utf8.ValidString(id) {
		return fmt.Errorf("%w: receive id %q", ErrInvalidUTF8, id)
	}
	return nil
}

// readRepeats starts reading the records of the receive ids.
func (c *claimer) readRepeats() {
	for _, r := range c.owed {
		if id := r.o.ReceiveID; id != "" && c.repeats[id] == nil {
			if c.repeats == nil {
				c.repeats = make(map[string]kv.Future[[]byte])
			}
			c.repeats[id] = guardRepeat.get(c.tx, c.q.keys.repeat(id))
		}
	}
}

// repeat answers the receives which are repetitions and removes each from owed. It returns the other receives with an
// id: of several with the same id only the first stays owed, and answers for all.
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
		if lacks(guardRepeatTwin) ||
			!slices.ContainsFunc(named, func(other *reception) bool { return other.o.ReceiveID == r.o.ReceiveID }) {
			owed = append(owed, r)
		}
		named = append(named, r)
	}
	c.owed = owed
	return named, nil
}

// answer gives r the claims recorded under its id, as far as still held.
func (c *claimer) answer(r *reception) error {
	key := c.q.keys.repeat(r.o.ReceiveID)
	v, err := c.repeats[r.o.ReceiveID].Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read receive id: %w", err)
	}
	if named := c.named[r.o.ReceiveID]; named != nil {
		v = named // by a receive of another template, in the same transaction, which the read has not seen
	}
	if v == nil {
		return nil
	}
	kept, err := unpackRepeat(key, v)
	if err != nil {
		return err
	}
	if c.nowMS-kept.ms >= ReceiveIDLife.Milliseconds() {
		return nil
	}
	// A claim whose lease has ended is no longer the caller's to work on: whoever comes next takes the group over.
	r.claims, err = c.q.reclaim(c.ctx, c.tx, kept.claims, &r.o, func(h *holding) bool { return h.endMS > c.nowMS })
	r.repeated = true
	if len(kept.claims) > 0 {
		_, r.was = splitLane(kept.claims[0].lane)
	}
	return err
}

// keepRepeats records the claims of the named receives. A second receive with the same id gets copies of the claims.
func (c *claimer) keepRepeats(named []*reception) {
	first := make(map[string]*reception, len(named))
	for _, r := range named {
		if twin := first[r.o.ReceiveID]; twin != nil {
			for _, claim := range twin.claims {
				same := *claim
				r.claims = append(r.claims, &same)
			}
			continue
		}
		first[r.o.ReceiveID] = r
		if len(r.claims) > 0 {
			if c.named == nil {
				c.named = make(map[string][]byte)
			}
			v := repeat{ms: c.nowMS, claims: r.given()}.pack()
			c.named[r.o.ReceiveID] = v
			c.tx.Set(c.q.keys.repeat(r.o.ReceiveID), v)
		}
	}
}

// reload rebuilds the claims of a receive from its receipt, after an unknown commit which turned out to have been
// applied.
func (q *Queue) reload(ctx context.Context, tx kv.Tx, result tuple.Tuple, o *ReceiveOptions) ([]*Claim, error) {
	d := decoder{rest: result.Pack()}
	given := d.claims()
	if err := d.left(); err != nil {
		return nil, fmt.Errorf("%w: receipt of a receive %v: %w", ErrCorrupt, result, err)
	}
	return q.reclaim(ctx, tx, given, o, func(*holding) bool { return true })
}

// reclaim rebuilds claims which were given before, with their present leases and items. A claim lost since is left out,
// and so is one which keeps refuses. If items are claimed in turn, those behind such an item are left out, too, unless
// the item is finished: another may have it, and is to be first.
func (q *Queue) reclaim(
	ctx context.Context, tx kv.Tx, given []claimRef, o *ReceiveOptions, keeps func(h *holding) bool,
) ([]*Claim, error) {
	var claims []*Claim
	behind := make(map[string]bool) // groups
	for _, ref := range given {
		if behind[groupOf(ref.lane)] {
			continue
		}
		state := readState(q, tx.Snapshot(), groupOf(ref.lane), o.State)
		r, err := q.readLock(ctx, tx.Snapshot(), ref.lane)
		if err != nil {
			return nil, err
		}
		h := r.claim()
		hold, _ := holdOf(ref.lane)
		if h == nil || h.token != ref.token && !lacks(guardReloadToken) || !keeps(h) {
			if q.keys.inTurn() {
				item, err := tx.Snapshot().Get(q.keys.item(hold)).Wait(ctx)
				if err != nil {
					return nil, fmt.Errorf("read item: %w", err)
				}
				behind[hold.Group] = item != nil
			}
			continue
		}
		c := &Claim{
			Hold: hold, Queue: q.name, Group: groupOf(ref.lane), Where: q.whereOf(ref.lane), Token: ref.token,
			Until: fromMillis(h.endMS), beat: h.beat,
		}
		if c.Items, err = q.reloadItems(ctx, tx.Snapshot(), ref.lane, h); err != nil {
			return nil, err
		}
		if c.State, err = waitState(ctx, state); err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// reloadItems reads the items of a held claim. A late item, not of the claim, may stand between two.
func (q *Queue) reloadItems(ctx context.Context, tx kv.ReadTx, lane string, h *holding) ([]Item, error) {
	out := h.items
	if len(out) == 0 {
		return nil, corrupt(q.keys.lock(lane), errors.New("a claim of nothing"))
	}
	group := groupOf(lane)
	found := q.reloadRows(tx, lane, out)
	// Only of the first item, as in a new claim.
	record, err := q.readAttempt(ctx, tx, out[0].id(group))
	if err != nil {
		return nil, err
	}
	rows, err := found.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	items := make([]Item, 0, len(out))
	for _, row := range rows {
		id := out[len(items)].id(group)
		if !bytes.Equal(row.Key, q.keys.item(id)) && !lacks(guardReloadExact) {
			continue
		}
		item, err := q.readItem(ctx, tx, row)
		if err != nil {
			return nil, err
		}
		if item.FirstDelivered = fromMillis(h.sinceMS); len(items) == 0 {
			item.failedBefore(record)
		}
		items = append(items, item)
	}
	if len(items) < len(out) {
		return nil, corrupt(q.keys.item(out[len(items)].id(group)), errors.New("held, and not there"))
	}
	return items, nil
}
