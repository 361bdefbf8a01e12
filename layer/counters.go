package layer

import (
	"context"
	"fmt"

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

// counterSlots is over how many keys each counter is spread, so that handles do not all write the same key.
const counterSlots = 16

// add adds n to a counter. No decision depends on the number, so add needs neither a read nor a conflict.
func (q *Queue) add(tx kv.Tx, name string, n int) {
	if n == 0 {
		return
	}
	tx.Atomic(kv.Add, q.keys.count(name, q.slot), packCount(int64(n)))
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
