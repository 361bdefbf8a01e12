package layer

import (
	"context"
	"fmt"
	"math"
	"time"

	"fdbfifo/kv"
)

// statsTimers bounds the timers that Stats reads, those that are due first.
const statsTimers = 10_000

// groupCounts counts the groups of a queue by their state, by hints and timers alone: its cost is bounded, and does not
// grow with the depth.
type groupCounts struct {
	q     *Queue
	ctx   context.Context
	tx    kv.ReadTx
	nowMS int64

	ready, busy, held, delayed int64
	oldestReady, oldest        head // of the ready groups, and of all that are ready or busy
}

// head is a group and where its head is, or was when the hint or timer was written.
type head struct {
	group string
	index int64
	found bool
}

// older takes h over if it is older than what is known.
func (o *head) older(h head) {
	if !o.found || h.index < o.index {
		*o = h
	}
}

func (c *groupCounts) count() error {
	keys := c.q.keys
	for shard := range keys.shards {
		rows, err := c.tx.GetRange(keys.readyFrom(shard, 0).Selectors(), kv.RangeOptions{Limit: 1}).Wait(c.ctx)
		if err != nil {
			return fmt.Errorf("read hints: %w", err)
		}
		for _, row := range rows {
			p, err := keys.parse(row.Key)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			c.oldestReady.older(head{group: p.group, index: p.index, found: true})
		}
	}
	if err := c.timers(); err != nil {
		return err
	}
	c.oldest.older(c.oldestReady)
	hints, err := countKeys(c.ctx, c.tx, keys.section(nameReady), StatsCap)
	if err != nil {
		return err
	}
	due, err := countKeys(c.ctx, c.tx, keys.timersDue(0, c.nowMS), StatsCap)
	if err != nil {
		return err
	}
	c.ready = min(hints+due, StatsCap)
	c.busy, err = countKeys(c.ctx, c.tx, keys.timersDue(c.nowMS+1, math.MaxInt64-1), StatsCap)
	return err
}

// timers reads the timers that are due first, for what kind they are of and how old their heads.
func (c *groupCounts) timers() error {
	timers := newCursor(c.q.keys.section(nameTimer))
	for read := 0; read < statsTimers && !timers.exhausted; {
		const page = 1000
		rows, err := timers.read(c.tx, page).Wait(c.ctx)
		if err != nil {
			return fmt.Errorf("read timers: %w", err)
		}
		timers.passed(rows, page)
		read += len(rows)
		for _, row := range rows {
			p, err := c.q.keys.parse(row.Key)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			kind, index, err := unpackTimer(row.Key, row.Value)
			if err != nil {
				return err
			}
			h := head{group: p.group, index: index, found: true}
			c.oldest.older(h)
			switch {
			case p.index <= c.nowMS:
				c.oldestReady.older(h)
			case kind == kindClaim || kind == kindGrant:
				c.held++
			default:
				c.delayed++
			}
		}
	}
	return nil
}

// age is how long ago the item was enqueued that is now the head of the group; 0 if there is none.
func (c *groupCounts) age(h head) (time.Duration, error) {
	if !h.found {
		return 0, nil
	}
	rows, err := c.tx.GetRange(c.q.keys.items(h.group).Selectors(), kv.RangeOptions{Limit: 1}).Wait(c.ctx)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	e, _, err := openEnvelope(rows[0].Value)
	if err != nil {
		return 0, corrupt(rows[0].Key, err)
	}
	return max(0, time.Duration(c.nowMS-e.enqueuedMS)*time.Millisecond), nil
}
