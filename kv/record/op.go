// Package record wraps an engine, or one transaction, and notes what is asked of it: for tests of an operation's
// conflict footprint and of its budget of reads and writes.
package record

import "fdbfifo/kv"

// Kind is the kind of a call.
type Kind int

// The calls that are noted, in the order in which a footprint lists them.
const (
	Get Kind = iota
	GetKey
	GetRange
	Watch
	ReadConflict  // AddReadConflictRange
	WriteConflict // AddWriteConflictRange
	Set
	Clear
	ClearRange
	Atomic
)

// Op is one call. Which fields are set depends on Kind; all are copies.
type Op struct {
	Kind     Kind
	Snapshot bool // of a read

	Key   []byte // Get, Watch, Set, Clear, Atomic
	Value []byte // Set, and the operand of Atomic

	Selector kv.KeySelector  // GetKey
	Range    kv.Range        // GetRange
	Options  kv.RangeOptions // GetRange

	Keys       kv.KeyRange     // ReadConflict, WriteConflict, ClearRange
	Mutation   kv.MutationType // Atomic
	NoConflict bool            // a write without its write conflict range
}

// Transaction is one attempt of a transaction: what it did and how it ended.
type Transaction struct {
	Attempt int  // 0 for the first of a retry loop
	Ops     []Op // in the order of the calls

	// Reads and Writes are the conflict ranges that came of it, sorted and merged. They are nil and Reported is
	// false if the engine cannot tell.
	Reads, Writes []kv.KeyRange
	Reported      bool

	Version int64 // of the commit; -1 if nothing was written, 0 if it failed
	Err     error // of the commit
}
