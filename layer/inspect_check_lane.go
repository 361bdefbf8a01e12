package layer

import (
	"fmt"
	"maps"
	"slices"

	"fdbfifo/kv"
)

// The part of Check that a queue with facets adds: see store_lane.go.

// lookLanes notes which items of a page are not in the lanes of their facets, and which keys of lanes have no item with
// these facets, at the page's version.
func (c *checker) lookLanes(tx kv.ReadTx, rows []kv.KV) error {
	if c.q.keys.plan == nil {
		return nil
	}
	type pair struct {
		key   []byte
		lane  string // of a lane's key; "" = of an item
		other kv.Future[[]byte]
		hold  kv.Future[[]byte] // in an unordered queue, the item's hold; else nil
	}
	var pairs []pair
	for _, row := range rows {
		p, err := c.q.keys.parse(row.Key)
		if err != nil {
			continue
		}
		switch p.name {
		case nameItem:
			for _, lane := range c.lanesIn(p, row.Value) {
				pairs = append(pairs, pair{row.Key, "", tx.Get(c.q.keys.laneItem(lane, p.itemID())), c.holdOf(tx, p)})
			}
		case nameLane:
			pairs = append(pairs, pair{row.Key, p.lane, tx.Get(c.q.keys.item(p.itemID())), c.holdOf(tx, p)})
		}
	}
	for _, pair := range pairs {
		v, err := pair.other.Wait(c.ctx)
		if err != nil {
			return fmt.Errorf("read item or lane: %w", err)
		}
		sound := v != nil
		if pair.lane != "" && sound {
			p := parsedKey{group: groupOf(pair.lane)}
			sound = slices.Contains(c.lanesIn(p, v), pair.lane)
		}
		if pair.hold != nil {
			held, err := pair.hold.Wait(c.ctx)
			if err != nil {
				return fmt.Errorf("read hold: %w", err)
			}
			sound = sound == (held == nil)
		}
		if !sound {
			c.odd[string(pair.key)] = true
		}
	}
	return nil
}

// holdOf reads the hold of an item; nil if the queue has none.
func (c *checker) holdOf(tx kv.ReadTx, p parsedKey) kv.Future[[]byte] {
	if !c.q.keys.hasHolds() {
		return nil
	}
	return tx.Get(c.q.keys.hold(p.itemID()))
}

// heldByItself reports whether the item has a hold.
func (c *checker) heldByItself(tx kv.ReadTx, p parsedKey) (bool, error) {
	f := c.holdOf(tx, p)
	if f == nil {
		return false, nil
	}
	v, err := f.Wait(c.ctx)
	if err != nil {
		return false, fmt.Errorf("read hold: %w", err)
	}
	return v != nil, nil
}

// lanesIn returns the lanes, but for the whole group, of the item with the given value.
func (c *checker) lanesIn(p parsedKey, value []byte) []string {
	facets := c.q.keys.facetsIn(value)
	if facets == "" && !c.q.keys.hasHolds() {
		return nil
	}
	return c.q.keys.plan.partsOf(p.group, unpackStrings(facets))
}

// laneRow takes a pair of a queue with facets into account.
func (c *checker) laneRow(p parsedKey, row kv.KV) {
	switch p.name {
	case nameLane:
		c.group(p.lane).items++
		if c.odd[string(row.Key)] {
			c.suspectPair(row.Key, func(tx kv.ReadTx, _ []byte) (Rule, string, error) {
				v, err := tx.Get(c.q.keys.item(p.itemID())).Wait(c.ctx)
				if err != nil {
					return "", "", fmt.Errorf("read item: %w", err)
				}
				if v != nil && slices.Contains(c.lanesIn(p, v), p.lane) {
					held, err := c.heldByItself(tx, p)
					if err != nil || !held {
						return "", "", err
					}
					return RuleLane, "free and held: " + p.itemID().String(), nil
				}
				return RuleLane, "no item with these facets: " + p.itemID().String(), nil
			})
		}
	case nameOpen:
		if c.astray(p, row, c.q.keys.shardsOf(p.group)) {
			return
		}
		c.group(p.lane).hints++
	case nameKept:
		g := c.group(p.lane)
		g.kept = append(g.kept, p.holder)
		c.kept = append(c.kept, keptRow{key: row.Key, holder: p.holder})
	}
}

// keptRow is a hint put aside under the lock of holder.
type keptRow struct {
	key    []byte
	holder string
}

// itemInLanes makes a suspect of an item which lacks the key of a lane.
func (c *checker) itemInLanes(p parsedKey, row kv.KV) {
	if !c.odd[string(row.Key)] {
		return
	}
	c.suspectPair(row.Key, func(tx kv.ReadTx, value []byte) (Rule, string, error) {
		for _, lane := range c.lanesIn(p, value) {
			v, err := tx.Get(c.q.keys.laneItem(lane, p.itemID())).Wait(c.ctx)
			if err != nil {
				return "", "", fmt.Errorf("read lane: %w", err)
			}
			held, err := c.heldByItself(tx, p)
			if err != nil {
				return "", "", err
			}
			if (v == nil) != held {
				if held {
					return RuleLane, "free and held", nil
				}
				return RuleLane, "not in the lane of " + parsedKey{lane: lane}.laneWords(), nil
			}
		}
		return "", "", nil
	})
}

// compareLanes looks at the kept hints, and at the lanes of each group that are held at the same time.
func (c *checker) compareLanes() {
	if c.q.keys.plan == nil {
		return
	}
	for _, kept := range c.kept {
		if g := c.groups[kept.holder]; g == nil || g.lock == nil {
			c.suspectPair(kept.key, func(tx kv.ReadTx, _ []byte) (Rule, string, error) {
				r, err := c.q.readLock(c.ctx, tx, kept.holder)
				if err != nil || r != nil {
					return "", "", err
				}
				return RuleKept, "the lock is gone of " + parsedKey{lane: kept.holder}.laneWords(), nil
			})
		}
	}
	c.compareHolds()
	held := make(map[string][]string)
	for _, lane := range slices.Sorted(maps.Keys(c.groups)) {
		if c.groups[lane].lock.claim() != nil && !isHold(lane) {
			held[groupOf(lane)] = append(held[groupOf(lane)], lane)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(held)) {
		if _, _, ok := c.meeting(held[group]); ok {
			c.suspect(c.q.keys.lock(group), func(tx kv.ReadTx) (Rule, string, error) {
				rows, err := tx.GetRange(c.q.keys.locks(group).Selectors(), kv.RangeOptions{}).Wait(c.ctx)
				if err != nil {
					return "", "", fmt.Errorf("read locks: %w", err)
				}
				var claims []string
				for _, row := range rows {
					p, err := c.q.keys.parse(row.Key)
					if err != nil {
						continue
					}
					if r, err := unpackRecord(row.Key, row.Value); err == nil && r.claim() != nil {
						claims = append(claims, p.lane)
					}
				}
				if a, b, ok := c.meeting(claims); ok {
					return RuleDisjoint, parsedKey{lane: a}.laneWords() + ", and " + parsedKey{lane: b}.laneWords(), nil
				}
				return "", "", nil
			})
		}
	}
}

// compareHolds looks for items of a group's claim that are held by themselves, too.
func (c *checker) compareHolds() {
	for _, lane := range slices.Sorted(maps.Keys(c.groups)) {
		id, ok := holdOf(lane)
		whole := c.groups[id.Group]
		if !ok || c.groups[lane].lock.claim() == nil || whole == nil || !whole.lock.claim().holds(id) {
			continue
		}
		c.suspect(c.q.keys.hold(id), func(tx kv.ReadTx) (Rule, string, error) {
			r, err := c.q.readLock(c.ctx, tx, id.Group)
			if err != nil || !r.claim().holds(id) {
				return "", "", err
			}
			if r, err = c.q.readLock(c.ctx, tx, lane); err != nil || r.claim() == nil {
				return "", "", err
			}
			return RuleDisjoint, "the group, and " + id.String() + " by itself", nil
		})
	}
}

// meeting returns two lanes that may have an item in common, if there are any.
func (c *checker) meeting(lanes []string) (a, b string, ok bool) {
	for i, a := range lanes {
		for _, b := range lanes[i+1:] {
			if c.q.keys.plan.intersect(a, b) {
				return a, b, true
			}
		}
	}
	return "", "", false
}

// timedOrKept looks for a hint of the lane that was put aside under a lock, or for a timer that leads to the lane no
// later than its head is due. head is the head's value. The timer may be that of an earlier head, which has left the
// lane with a claim of another lane, and so was due.
func (c *checker) timedOrKept(tx kv.ReadTx, lane string, head []byte) (bool, error) {
	if c.q.keys.plan == nil {
		return false, nil
	}
	config, due := c.q.Config(), c.q.nowMS()
	delay := config.retro()
	if e, _, err := openEnvelope(head); err == nil {
		due = max(due, delay.due(&e))
	}
	section := nameTimer
	if isPart(lane) {
		section = nameDue
	}
	found, err := c.some(tx, section, func(p parsedKey, row kv.KV) bool {
		kind, _, err := unpackTimer(row.Key, row.Value)
		return err == nil && kind == kindHead && p.lane == lane && delay.dueOf(p.index) <= due
	})
	if err != nil || found {
		return found, err
	}
	return c.some(tx, nameKept, func(p parsedKey, _ kv.KV) bool { return p.lane == lane })
}

// wanted reports whether anybody can receive the lane, so that the lane needs a hint.
func (c *checker) wanted(lane string) bool { return isPart(lane) || c.q.keys.wholeGroups() }
