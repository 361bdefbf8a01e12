package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// laneTail is the end of a lane that is no whole group, where the transaction appends.
type laneTail struct {
	items kv.KeyRange
	key   kv.Future[[]byte] // the last item's; outside of items if the lane is empty
	begun bool
}

// readLaneTails starts reading the ends of the messages' lanes, if the queue has facets.
func (a *appending) readLaneTails(all []*enqueuing) {
	plan := a.q.keys.plan
	if plan == nil {
		return
	}
	a.lanes = make(map[string]*laneTail)
	for _, e := range all {
		for i := range e.msgs {
			m := &e.msgs[i]
			for _, lane := range plan.partsOf(m.Group, plan.values(m.Headers)) {
				if a.lanes[lane] == nil {
					items := a.q.keys.items(lane)
					a.lanes[lane] = &laneTail{
						items: items, key: a.tx.Snapshot().GetKey(kv.LastLessThan(items.End)),
					}
				}
			}
		}
	}
}

// joinLanes adds a new item to its lanes. A lane that was empty gets a hint, or the timer of its head. Of a lane that
// was not, the last key gets a read conflict: whoever removes that item may leave the lane empty and without a hint.
func (a *appending) joinLanes(m *Message, id ID, env *envelope) error {
	plan, delay := a.q.keys.plan, a.config.retro()
	if plan == nil {
		return nil
	}
	for _, lane := range plan.partsOf(id.Group, plan.values(m.Headers)) {
		t := a.lanes[lane]
		empty := false
		if !t.begun {
			t.begun = true
			key, err := t.key.Wait(a.ctx)
			if err != nil {
				return fmt.Errorf("read tail: %w", err)
			}
			if empty = !t.items.Contains(key); !empty {
				if err := guardLaneTail.read(a.tx, kv.SingleKey(key)); err != nil {
					return err
				}
			}
		}
		a.tx.Set(a.q.keys.laneItem(lane, id), nil)
		switch {
		case empty && delay.due(env) > a.nowMS:
			a.timeHead(lane, id.Index, delay.timing(env))
		case empty:
			a.hint(id.Index, lane, 0)
		}
	}
	return nil
}

// laneKeysSize estimates how many bytes the lanes of a message add to a transaction. key is the size of an item's key.
func (c *Config) laneKeysSize(key int) int {
	if c.Unordered {
		return 3 * (key + 100)
	}
	if len(c.Facets) == 0 {
		return 0
	}
	return (MaxViews + 1) * (3*(key+MaxFacets*(MaxFacetSize+2)) + 100)
}
