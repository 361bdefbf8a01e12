package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// Each marked group, or lane, has a key of its own, ("mark", group), beside the mark in its record: so the marked
// groups, the empty ones included, can be listed without a walk over all records, and statistics can pass over their
// hints. put writes both.

// statsMarks bounds the marked groups, and the hints of each shard, which Stats reads to tell marked groups from ready
// groups.
const statsMarks = 10_000

// readMarked reads the marked groups.
func (c *groupCounts) readMarked() error {
	rows, err := c.tx.GetRange(c.q.keys.section(nameMark).Selectors(), kv.RangeOptions{Limit: statsMarks}).Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read marks: %w", err)
	}
	c.marked = make(map[string]bool, len(rows))
	for _, row := range rows {
		p, err := c.q.keys.parse(row.Key)
		if err != nil {
			return err
		}
		if c.q.keys.plan == nil || c.q.keys.plan.intersect(p.lane, c.lane(p.group)) {
			c.marked[p.group] = true
		}
	}
	return nil
}

// hints finds the oldest ready group of a shard by its hints, and returns how many hints of marked groups there are.
func (c *groupCounts) hints(shard int64) (marked int64, err error) {
	hints := newCursor(c.q.keys.hintsFrom(c.where, shard, 0))
	for read, found := 0, false; read < statsMarks && !hints.exhausted; {
		limit := 1
		if len(c.marked) > 0 {
			limit = 1000
		}
		rows, err := hints.read(c.tx, limit).Wait(c.ctx)
		if err != nil {
			return marked, fmt.Errorf("read hints: %w", err)
		}
		hints.passed(rows, limit)
		read += len(rows)
		for _, row := range rows {
			p, err := c.q.keys.parse(row.Key)
			switch {
			case err != nil:
				return marked, err
			case c.marked[p.group]:
				marked++
			case !found:
				found = true
				c.oldestReady.older(head{group: p.group, index: p.index, found: true})
			}
		}
		if len(c.marked) == 0 {
			break
		}
	}
	return marked, nil
}

// passes reports whether the timer of a marked group leads to nothing: the end of a claim which the mark follows, or
// the time of a delayed head. Only the claim itself still lasts.
func (c *groupCounts) passes(group string, k kind, dueMS int64) bool {
	return c.marked[group] && (dueMS <= c.nowMS || k == kindHead)
}
