package layer

import (
	"context"
	"fmt"
	"sync"

	"fdbfifo/kv"
)

// The counters of items.
const (
	countEnqueued     = "enqueued"
	countReceived     = "received"
	countAcked        = "acked"
	countNacked       = "nacked"
	countExpired      = "expired"
	countTaken        = "taken"
	countDeadLettered = "dead_lettered"
	countRedriven     = "redriven"
	countDiscarded    = "discarded"
	countCancelled    = "cancelled"
	countPurged       = "purged"
	countForced       = "forced"
	countAgedOut      = "past_retention"
	countDuplicates   = "duplicates"
	// Items which left a claim without being acked: given back, taken over, dead-lettered, removed by force. So
	// received, less acked and returned, are in flight, and neither a receive nor an ack writes a counter more for
	// that.
	countReturned = "returned"

	// Of groups: how many are marked now; so the numbers also go down.
	countPausedGroups = "paused_groups"
	countHaltedGroups = "halted_groups"
)

// Each counter is spread over slots, so that handles do not all write the same key: a handle has one of counterSlots,
// and so many more as the queue has shards, which take turns.
const (
	counterSlots = 16
	// counterTurns bounds the slots of a handle, because whoever reads the counters reads all slots.
	counterTurns = 16
)

// counting is where a handle's counts go.
type counting struct {
	slot int64

	mu    sync.Mutex
	turns map[string]int64 // guarded by mu; by counter: a handle whose transactions alternate would else skip slots
}

// next returns the slot of the next count of a queue with so many shards.
func (c *counting) next(name string, shards int64) int64 {
	if shards == 1 {
		return c.slot
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turns == nil {
		c.turns = make(map[string]int64)
	}
	c.turns[name]++
	return c.slot + counterSlots*(c.turns[name]%min(shards, counterTurns))
}

// add adds n to a counter. No decision depends on the number, so add needs neither a read nor a conflict.
func (q *Queue) add(tx kv.Tx, keys subspace, name string, n int) {
	if n == 0 {
		return
	}
	slot := q.counting.next(name, keys.shards.all())
	tx.Atomic(kv.Add, keys.count(name, slot), packCount(int64(n)))
}

// readCounts returns the counters by name.
func (q *Queue) readCounts(ctx context.Context, tx kv.ReadTx) (map[string]int64, error) {
	rows, err := tx.GetRange(q.keys.section(nameCount).Selectors(), kv.RangeOptions{}).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	counts := make(map[string]int64)
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return nil, err
		}
		n, err := unpackCount(row.Key, row.Value)
		if err != nil {
			return nil, err
		}
		counts[p.field] += n
	}
	return counts, nil
}

// depth returns the number of items in the queue.
func depth(counts map[string]int64) int64 {
	n := counts[countEnqueued] + counts[countRedriven]
	for _, gone := range []string{
		countAcked, countTaken, countDeadLettered, countCancelled, countPurged, countAgedOut,
	} {
		n -= counts[gone]
	}
	return n
}
