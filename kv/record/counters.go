package record

import "sync/atomic"

// Counters are totals over all transactions, failed attempts included.
type Counters struct {
	Reads        int64 // Get, GetKey and GetRange, snapshot or not
	KeyReads     int64 // Get and GetKey
	RangeReads   int64 // GetRange
	Rows         int64 // that range reads returned
	Watches      int64
	Mutations    int64 // sets, clears of keys and of ranges, atomic operations
	BytesRead    int64 // keys and values that reads returned
	BytesWritten int64 // keys and values of mutations
	Commits      int64 // that succeeded, those without a write included
	Conflicts    int64 // commits that failed with 1020
	Failures     int64 // commits that failed with another error
}

// Sub returns what was counted since before.
func (c Counters) Sub(before Counters) Counters {
	return Counters{
		Reads:        c.Reads - before.Reads,
		KeyReads:     c.KeyReads - before.KeyReads,
		RangeReads:   c.RangeReads - before.RangeReads,
		Rows:         c.Rows - before.Rows,
		Watches:      c.Watches - before.Watches,
		Mutations:    c.Mutations - before.Mutations,
		BytesRead:    c.BytesRead - before.BytesRead,
		BytesWritten: c.BytesWritten - before.BytesWritten,
		Commits:      c.Commits - before.Commits,
		Conflicts:    c.Conflicts - before.Conflicts,
		Failures:     c.Failures - before.Failures,
	}
}

// counters are Counters in the making.
type counters struct {
	keyReads, rangeReads, rows, watches, mutations atomic.Int64
	bytesRead, bytesWritten                        atomic.Int64
	commits, conflicts, failures                   atomic.Int64
}

func (c *counters) load() Counters {
	keys, ranges := c.keyReads.Load(), c.rangeReads.Load()
	return Counters{
		Reads:        keys + ranges,
		KeyReads:     keys,
		RangeReads:   ranges,
		Rows:         c.rows.Load(),
		Watches:      c.watches.Load(),
		Mutations:    c.mutations.Load(),
		BytesRead:    c.bytesRead.Load(),
		BytesWritten: c.bytesWritten.Load(),
		Commits:      c.commits.Load(),
		Conflicts:    c.conflicts.Load(),
		Failures:     c.failures.Load(),
	}
}

func (c *counters) mutation(n int) {
	c.mutations.Add(1)
	c.bytesWritten.Add(int64(n))
}
