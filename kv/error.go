package kv

import (
	"errors"
	"fmt"
)

// The FoundationDB error codes that engines return and callers check.
const (
	CodeTransactionTooOld      = 1007
	CodeFutureVersion          = 1009
	CodeNotCommitted           = 1020 // conflict
	CodeCommitUnknownResult    = 1021
	CodeTransactionCancelled   = 1025
	CodeTransactionTimedOut    = 1031
	CodeTooManyWatches         = 1032
	CodeWatchesDisabled        = 1034
	CodeAccessedUnreadable     = 1036
	CodeProcessBehind          = 1037
	CodeDatabaseLocked         = 1038
	CodeClusterVersionChanged  = 1039
	CodeCommitProxyMemoryLimit = 1042
	CodeBatchThrottled         = 1051
	CodeGRVProxyMemoryLimit    = 1078
	CodeBlobGranuleFailed      = 1079
	CodeOperationCancelled     = 1101
	CodeTagThrottled           = 1213
	CodeProxyTagThrottled      = 1223
	CodeHotShardThrottled      = 1235
	CodeRangeLocked            = 1242
	CodeGRVQueueRejected       = 1251
	CodeIOError                = 1510
	CodeClientInvalidOperation = 2000
	CodeKeyOutsideLegalRange   = 2004
	CodeInvertedRange          = 2005
	CodeReadVersionAlreadySet  = 2010
	CodeVersionInvalid         = 2011
	CodeRangeLimitsInvalid     = 2012
	CodeUsedDuringCommit       = 2017
	CodeTransactionInvalidVer  = 2020
	CodeNoCommitVersion        = 2021
	CodeTransactionReadOnly    = 2023
	CodeTransactionTooLarge    = 2101
	CodeKeyTooLarge            = 2102
	CodeValueTooLarge          = 2103
)

// ErrClosed says that the database was closed. An engine wraps ErrClosed in each error that it returns for this reason.
// If a commit ends with such an error, nothing was applied and nothing will be, unless the *Error has InFlight set.
var ErrClosed = errors.New("closed")

// Error is an engine's error: FoundationDB's code and the cause. A transaction body must wrap it with %w, or Run cannot
// see that it is retryable.
type Error struct {
	Code int
	// InFlight is true if a commit was sent, its outcome is unknown, and it may still land. It may do so up to 5 s
	// later by the cluster's versions, which stop while the cluster recovers or hangs. With code 1021 InFlight is
	// false: that commit has landed or never will. A transaction that only writes, and whose folder another process has
	// open (package embedded), has no such bound: if that process is stopped, the commit lands when it continues.
	InFlight bool
	Cause    error // may be nil; the binding's error, or the context's
	// earlier: an attempt of a loop before the last one may have landed. Cause is the last attempt's error.
	earlier bool
}

var names = map[int]string{
	CodeTransactionTooOld:      "transaction_too_old: older than 5 seconds",
	CodeFutureVersion:          "future_version",
	CodeNotCommitted:           "not_committed: conflict with another transaction",
	CodeCommitUnknownResult:    "commit_unknown_result: it may have landed, find out before you repeat it",
	CodeTransactionCancelled:   "transaction_cancelled",
	CodeTransactionTimedOut:    "transaction_timed_out",
	CodeTooManyWatches:         "too_many_watches",
	CodeWatchesDisabled:        "watches_disabled",
	CodeAccessedUnreadable:     "accessed_unreadable: read of a key with a pending versionstamp",
	CodeProcessBehind:          "process_behind",
	CodeDatabaseLocked:         "database_locked",
	CodeClusterVersionChanged:  "cluster_version_changed",
	CodeCommitProxyMemoryLimit: "commit_proxy_memory_limit_exceeded",
	CodeBatchThrottled:         "batch_transaction_throttled",
	CodeGRVProxyMemoryLimit:    "grv_proxy_memory_limit_exceeded",
	CodeBlobGranuleFailed:      "blob_granule_request_failed",
	CodeOperationCancelled:     "operation_cancelled",
	CodeTagThrottled:           "tag_throttled",
	CodeProxyTagThrottled:      "proxy_tag_throttled",
	CodeHotShardThrottled:      "transaction_throttled_hot_shard",
	CodeRangeLocked:            "transaction_rejected_range_locked",
	CodeGRVQueueRejected:       "transaction_grv_queue_rejected",
	CodeIOError:                "io_error",
	CodeClientInvalidOperation: "client_invalid_operation",
	CodeKeyOutsideLegalRange:   "key_outside_legal_range",
	CodeInvertedRange:          "inverted_range",
	CodeReadVersionAlreadySet:  "read_version_already_set",
	CodeVersionInvalid:         "version_invalid",
	CodeRangeLimitsInvalid:     "range_limits_invalid",
	CodeUsedDuringCommit:       "used_during_commit",
	CodeTransactionInvalidVer:  "transaction_invalid_version",
	CodeNoCommitVersion:        "no_commit_version: the transaction wrote nothing",
	CodeTransactionReadOnly:    "transaction_read_only",
	CodeTransactionTooLarge: "transaction_too_large: more than 10,000,000 bytes, or than its SizeLimit; " +
		"do less in one transaction",
	CodeKeyTooLarge:   "key_too_large: a key of more than 10,000 bytes; shorten what it is made of",
	CodeValueTooLarge: "value_too_large: a value of more than 100,000 bytes; store less under one key",
}

func (e *Error) Error() string {
	if e == nil {
		return "<nil>"
	}
	name, ok := names[e.Code]
	if !ok {
		name = "error"
	}
	s := fmt.Sprintf("%s (%d)", name, e.Code)
	if e.InFlight {
		s += ", it may have landed or may still land, find out before you repeat it"
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// keyShown bounds the bytes of a key in an error.
const keyShown = 200

// TooLarge returns the error of a write whose key or value is too large, with the key and the size; nil = neither is.
// It is for engines: an error of FoundationDB names no key.
func TooLarge(key, value []byte) error {
	switch {
	case len(key) > MaxKeySize:
		return &Error{Code: CodeKeyTooLarge, Cause: fmt.Errorf("key %q … has %d bytes", key[:keyShown], len(key))}
	case len(value) > MaxValueSize:
		more := ""
		if len(key) > keyShown {
			key, more = key[:keyShown], " …"
		}
		cause := fmt.Errorf("the value of key %q%s has %d bytes", key, more, len(value))
		return &Error{Code: CodeValueTooLarge, Cause: cause}
	}
	return nil
}

// TransactionTooLarge returns the error of a transaction that has size bytes.
func TransactionTooLarge(size int64) *Error {
	return &Error{Code: CodeTransactionTooLarge, Cause: fmt.Errorf("the transaction has %d bytes", size)}
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Cause
}

// Is matches another *Error of the same code, so that errors.Is(err, &kv.Error{Code: …}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	if e == nil || t == nil {
		return ok && e == t
	}
	return ok && t.Code == e.Code
}

// MaybeCommitted reports FoundationDB's predicate of that name: the commit may have been applied. It looks at the code
// alone (1021 or 1039), not at InFlight. The function MaybeCommitted looks at both.
func (e *Error) MaybeCommitted() bool {
	return e != nil && (e.Code == CodeCommitUnknownResult || e.Code == CodeClusterVersionChanged)
}

// Retryable reports FoundationDB's predicate of that name (documented set: 1007 1009 1020 1021 1037 1038 1039 1042 1051
// 1078 1213 1223, and 1235 and 1242 from version 7.4 on). The engine's OnError decides whether an attempt is retried.
func (e *Error) Retryable() bool {
	if e == nil {
		return false
	}
	switch e.Code {
	case CodeTransactionTooOld, CodeFutureVersion, CodeNotCommitted, CodeProcessBehind, CodeDatabaseLocked,
		CodeCommitProxyMemoryLimit, CodeBatchThrottled, CodeGRVProxyMemoryLimit, CodeTagThrottled,
		CodeProxyTagThrottled, CodeHotShardThrottled, CodeRangeLocked:
		return true
	}
	return e.MaybeCommitted()
}

// Code returns the code of the *Error that err is or wraps, or 0. Of several joined errors, the first counts that has
// one. A nil *Error has none.
func Code(err error) int {
	if e := first(err, func(*Error) bool { return true }); e != nil {
		return e.Code
	}
	return 0
}

// first returns the first *Error in the tree of err that is not nil and for which is returns true; nil = there is none.
// The outermost *Error stands for those that it wraps. errors.As would stop at a nil pointer.
func first(err error, is func(e *Error) bool) *Error {
	if x, ok := err.(interface{ As(target any) bool }); ok {
		var e *Error
		if x.As(&e) && e != nil && is(e) {
			return e
		}
	}
	switch x := err.(type) {
	case *Error:
		if x != nil && is(x) {
			return x
		}
	case interface{ Unwrap() error }:
		return first(x.Unwrap(), is)
	case interface{ Unwrap() []error }:
		for _, inner := range x.Unwrap() {
			if e := first(inner, is); e != nil {
				return e
			}
		}
	}
	return nil
}
