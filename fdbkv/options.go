package fdbkv

import (
	"math"
	"time"

	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/kv"
)

// setOptions sets all options of a new transaction, or of one that was reset. Zero values leave the defaults of the
// database handle, which are FoundationDB's unless its owner has set others. A number outside FoundationDB's limits
// would be error 2006, so the nearest limit takes its place.
func setOptions(to fdb.TransactionOptions, o kv.TxOptions) error {
	if o.Timeout > 0 {
		if err := to.SetTimeout(milliseconds(o.Timeout)); err != nil {
			return converted(err)
		}
	}
	if o.MaxRetryDelay > 0 {
		if err := to.SetMaxRetryDelay(milliseconds(o.MaxRetryDelay)); err != nil {
			return converted(err)
		}
	}
	if o.Retries > 0 {
		if err := to.SetRetryLimit(int64(min(o.Retries, math.MaxInt32))); err != nil {
			return converted(err)
		}
	}
	return setAttemptOptions(to, o)
}

// setAttemptOptions sets those options that OnError forgets. Snapshot reads of a kv.Tx see its own writes, even if the
// owner of the database handle has disabled this.
func setAttemptOptions(to fdb.TransactionOptions, o kv.TxOptions) error {
	if err := to.SetSnapshotRywEnable(); err != nil {
		return converted(err)
	}
	if o.SizeLimit > 0 {
		if err := to.SetSizeLimit(int64(min(max(o.SizeLimit, minSizeLimit), kv.MaxTransactionSize))); err != nil {
			return converted(err)
		}
	}
	if o.Batch {
		if err := to.SetPriorityBatch(); err != nil {
			return converted(err)
		}
	}
	if o.Tag != "" {
		if err := to.SetTag(o.Tag); err != nil {
			return converted(err)
		}
	}
	return nil
}

// minSizeLimit is the smallest SizeLimit of FoundationDB, in bytes. No transaction that writes a key is smaller.
const minSizeLimit = 32

// milliseconds rounds up, because 0 would mean no limit at all. It returns at most what FoundationDB takes.
func milliseconds(d time.Duration) int64 {
	n := d / time.Millisecond
	if d%time.Millisecond > 0 {
		n++
	}
	return min(int64(n), math.MaxInt32)
}
