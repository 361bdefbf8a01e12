package fault

import "fdbfifo/kv"

// Kind is one kind of fault.
type Kind int

// The faults, by the place where they strike.
const (
	Chance Kind = iota // of a hook: leave the choice to the plan's probabilities
	None               // no fault

	// At the first read, ReadVersion or blind commit of an attempt: it and all that follows in the attempt fail.
	ReadVersionFailed // 1078
	Throttled         // 1213, as a cluster that has too much to do answers

	// At a Get, GetKey or GetRange, snapshot or not: the read fails, and so does the attempt's commit.
	ReadTooOld    // 1007
	FutureVersion // 1009
	ProcessBehind // 1037

	// At the commit of a transaction that wrote something.
	Conflict       // 1020, nothing applied
	UnknownApplied // 1021, after the commit was really done
	UnknownLost    // 1021, nothing applied
	CommitTooOld   // 1007, nothing applied
	MemoryLimit    // 1042, nothing applied
	TimedOutLate   // 1031, not retryable; the commit is sent later and may land then, see Plan.Land
	TimedOutLost   // 1031, not retryable; nothing applied

	// Also at such a commit: 1039, retryable, as by FoundationDB's client of several versions. That client continues at
	// once over another connection, in a new transaction with the same options. The time-out and the retries count from
	// there. The commit is still in flight over the first connection.
	VersionChangedLate // it is sent later, before or after that of the retry, and may land then, see Plan.Land
	VersionChangedLost // nothing applied

	// At a Watch.
	WatchSpurious // it fires as soon as its transaction has committed
	WatchError    // 1032 at once; the transaction stays usable

	// The errors of a store that has failed, at a read and at the commit of a transaction that wrote something.
	ReadFailed   // 1510, not retryable; the attempt's commit fails too
	CommitFailed // 1510, not retryable; nothing applied
	// At such a commit: an error whose code says nothing about the commit, although the commit was done.
	UnnamedApplied // 4100, not retryable

	kinds
)

// place is where in a transaction a fault strikes. Each has its own count of calls.
type place int

const (
	nowhere place = iota
	atReadVersion
	atRead
	atCommit
	atWatch
	places
)

var placeNames = [places]string{"", "read version", "read", "commit", "watch"}

var table = [kinds]struct {
	name  string
	place place
	code  int
}{
	Chance:            {"chance", nowhere, 0},
	None:              {"none", nowhere, 0},
	ReadVersionFailed: {"read-version-failed", atReadVersion, kv.CodeGRVProxyMemoryLimit},
	ReadTooOld:        {"read-too-old", atRead, kv.CodeTransactionTooOld},
	FutureVersion:     {"future-version", atRead, kv.CodeFutureVersion},
	ProcessBehind:     {"process-behind", atRead, kv.CodeProcessBehind},
	Throttled:         {"throttled", atReadVersion, kv.CodeTagThrottled},
	Conflict:          {"conflict", atCommit, kv.CodeNotCommitted},
	UnknownApplied:    {"unknown-applied", atCommit, kv.CodeCommitUnknownResult},
	UnknownLost:       {"unknown-lost", atCommit, kv.CodeCommitUnknownResult},
	CommitTooOld:      {"commit-too-old", atCommit, kv.CodeTransactionTooOld},
	MemoryLimit:       {"memory-limit", atCommit, kv.CodeCommitProxyMemoryLimit},
	TimedOutLate:      {"timed-out-late", atCommit, kv.CodeTransactionTimedOut},
	TimedOutLost:      {"timed-out-lost", atCommit, kv.CodeTransactionTimedOut},

	VersionChangedLate: {"version-changed-late", atCommit, kv.CodeClusterVersionChanged},
	VersionChangedLost: {"version-changed-lost", atCommit, kv.CodeClusterVersionChanged},

	WatchSpurious: {"watch-spurious", atWatch, 0},
	WatchError:    {"watch-error", atWatch, kv.CodeTooManyWatches},

	ReadFailed:     {"read-failed", atRead, kv.CodeIOError},
	CommitFailed:   {"commit-failed", atCommit, kv.CodeIOError},
	UnnamedApplied: {"unnamed-applied", atCommit, codeInternalError},
}

// codeInternalError is FoundationDB's internal_error, which may come at any time and says nothing of a commit.
const codeInternalError = 4100

// String returns the kind's name.
func (k Kind) String() string {
	if k < 0 || k >= kinds {
		return "unknown"
	}
	return table[k].name
}

// err returns the error that a caller sees, or nil for a kind without one.
func (k Kind) err() error {
	code := table[k].code
	if code == 0 {
		return nil
	}
	return &kv.Error{Code: code, InFlight: code == kv.CodeTransactionTimedOut || code == kv.CodeClusterVersionChanged}
}
