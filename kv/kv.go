// Package kv is the transaction interface between the queue and a key-value engine, and the one loop that
// retries a transaction.
//
// The contract is FoundationDB's (API version 730): strict serialisability, optimistic conflict ranges, reads
// that see the transaction's own writes, snapshot reads that conflict with nothing, commits whose outcome may
// stay unknown. An engine is right when kv/kvtest passes on it. No type of a vendor's binding appears here.
//
// Keys and values given to a transaction are copied; those it returns belong to the caller. A transaction may be used
// by several goroutines at once. If the order of their calls matters, they must arrange it.
package kv

import (
	"context"
	"time"
)

// Limits of FoundationDB, which every engine enforces.
const (
	MaxKeySize         = 10_000     // bytes; a longer key in a write is error 2102
	MaxValueSize       = 100_000    // bytes; a longer value or operand is error 2103
	MaxTransactionSize = 10_000_000 // bytes by FoundationDB's count; more is error 2101 at commit
)

// Future is one asynchronous result. It is safe for concurrent use and Wait may be repeated.
type Future[T any] interface {
	// Wait blocks until the result is there or ctx ends. When ctx ends first it cancels this operation alone
	// and returns context.Cause(ctx); a commit cancelled so is of unknown outcome and may still be in flight.
	Wait(ctx context.Context) (T, error)
	// Ready reports whether Wait would return at once.
	Ready() bool
	// Cancel gives the operation up: Wait then returns error 1101, unless the result was there already.
	Cancel()
}

// KV is one pair of a range read.
type KV struct{ Key, Value []byte }

// KeyRange is the half-open range Begin <= key < End.
type KeyRange struct{ Begin, End []byte }

// KeySelector names a key by its place: the last key < Key (<= Key if OrEqual), then Offset keys further on.
// The four constructors in range.go name the usual ones.
type KeySelector struct {
	Key     []byte
	OrEqual bool
	Offset  int
}

// Range is the keys from Begin up to, without, End.
type Range struct{ Begin, End KeySelector }

// RangeOptions bounds a range read. The zero value reads everything, ascending.
type RangeOptions struct {
	Limit   int // rows; 0 = no limit, < 0 = error 2012
	Reverse bool
}

// ReadTx reads at the transaction's read version. Each call starts its read at once, so independent reads are
// started together and awaited after. A read sees the writes issued before the call.
type ReadTx interface {
	// Get returns nil for an absent key and a non-nil empty slice for an empty value.
	Get(key []byte) Future[[]byte]
	// GetKey resolves a selector; "" stands for before the first key, "\xff" for after the last.
	GetKey(s KeySelector) Future[[]byte]
	// GetRange returns all pairs of r up to o.Limit: fewer than Limit means that the range is exhausted.
	// Further batches of a long range may be fetched only inside Wait.
	GetRange(r Range, o RangeOptions) Future[[]KV]
	// ReadVersion is the version all reads of the transaction see.
	ReadVersion() Future[int64]
}

// Tx is the part of a transaction that a queue operation uses: everything except its lifecycle. So an operation can run
// in a caller's own transaction. Reads add read conflict ranges and writes add write conflict ranges as FoundationDB's
// do. The first failing write is kept and every later read and the commit fail with it.
type Tx interface {
	ReadTx
	// Snapshot reads at the same version and sees own writes, but adds no read conflicts.
	Snapshot() ReadTx
	Set(key, value []byte)
	Clear(key []byte)
	ClearRange(r KeyRange) // an inverted range is a deferred error 2005
	// Atomic applies op at commit. SetVersionstampedKey and SetVersionstampedValue take the place of the stamp
	// as a 4-byte little-endian offset at the end of key or operand.
	Atomic(op MutationType, key, operand []byte)
	// AddReadConflictRange makes the commit fail if another transaction wrote into r after the read version.
	// It has no effect on keys that this transaction set or cleared before the call.
	AddReadConflictRange(r KeyRange) error
	AddWriteConflictRange(r KeyRange) error
	// NextWriteNoConflict leaves out the write conflict range of the next write only.
	NextWriteNoConflict()
	// Watch is ready when the value of key differs from the one this transaction sees. It counts from a successful
	// commit on and outlives the transaction: the caller must Cancel it. It may be ready late, or without a change, so
	// the caller must poll as well. It adds a read conflict on key, so use it in a transaction that writes nothing.
	Watch(key []byte) Future[struct{}]
	// Versionstamp must be called before the commit and is ready after it; error 2021 if nothing was written.
	Versionstamp() Future[[10]byte]
	// ApproximateSize is the size in bytes that MaxTransactionSize bounds.
	ApproximateSize() Future[int64]
}

// ManagedTx is a transaction with its lifecycle. Run drives it; other code has little use for it.
type ManagedTx interface {
	Tx
	// SetReadVersion fixes the read version. It must be called before the first read, else error 2010. v <= 0 is error
	// 2011.
	SetReadVersion(v int64)
	Commit() Future[struct{}]
	// CommittedVersion is the version of the last commit, or -1 if that wrote nothing.
	CommittedVersion() (int64, error)
	// OnError waits out FoundationDB's backoff and resets the transaction for another attempt if err is retryable.
	// Otherwise it returns err, and the transaction must not be used again.
	OnError(err error) Future[struct{}]
	// Cancel ends everything pending with error 1025. A commit that was sent may still happen.
	Cancel()
	Reset()
}

// TxOptions hold for every attempt of a transaction. The zero value is FoundationDB's defaults.
type TxOptions struct {
	Timeout       time.Duration // of the whole retry loop; 0 = none. Then error 1031, the commit may still land
	MaxRetryDelay time.Duration // cap of the backoff; 0 = 1 s
	Retries       int           // after the first attempt; 0 = no limit
	SizeLimit     int           // bytes; 0 = MaxTransactionSize
	Batch         bool          // batch priority, for sweeps: yields to all other traffic of a cluster
	Tag           string        // for a cluster's throttling; at most 16 bytes
	// UntilConflict makes Run return the first conflict (1020), without a pause, unless an earlier attempt may have
	// landed. It is for a body that splits its work after a conflict. Engines ignore it.
	UntilConflict bool
	// Call names the purpose of the transaction, for Trouble. Engines ignore it.
	Call string
	// OnTrouble, if not nil, is called when the database keeps a loop of Run waiting: after one second of failed
	// attempts, or after five seconds without an answer. A conflict is an answer, and these times begin again. As long
	// as the loop waits, OnTrouble is called again, once a second in the first minute, and later each time after a
	// sixtieth of the time waited so far. After a first call the last call comes when the loop has ended. Another
	// goroutine makes the calls, one after the other. OnTrouble must not panic. Engines ignore it.
	OnTrouble func(t Trouble)
	// Patient: the body waits for more than the database, for example for a handler. Otherwise a body that has not
	// returned after five seconds counts as one without an answer. Engines ignore it.
	Patient bool
}

// DB begins transactions.
type DB interface {
	Begin(o TxOptions) (ManagedTx, error)
	// Close releases the resources of the engine. From then on open transactions fail, at their commit at the latest,
	// and Begin returns an error that wraps ErrClosed.
	Close() error
}

// ConflictReporter is a transaction that can list its own conflict ranges: for tests and tools.
type ConflictReporter interface {
	// ConflictRanges returns the ranges added so far, each list sorted and merged: no two of its ranges touch.
	ConflictRanges(ctx context.Context) (read, write []KeyRange, err error)
}

// MutationType is the code of an atomic operation.
type MutationType int

// FoundationDB's atomic operations, with their codes.
const (
	Add                    MutationType = 2
	BitAnd                 MutationType = 6
	BitOr                  MutationType = 7
	BitXor                 MutationType = 8
	AppendIfFits           MutationType = 9
	Max                    MutationType = 12
	Min                    MutationType = 13
	SetVersionstampedKey   MutationType = 14
	SetVersionstampedValue MutationType = 15
	ByteMin                MutationType = 16
	ByteMax                MutationType = 17
	CompareAndClear        MutationType = 20
)
