package kv

import (
	"context"
	"errors"
	"fmt"
)

// Attempt is what a transaction body may know of the attempts before it in the same loop.
type Attempt struct {
	N         int // 0 for the first
	Conflicts int // how many attempts failed with a conflict (1020)
	// MaybeCommitted is true after an earlier attempt ended with an unknown outcome. The body must find out whether
	// that attempt was applied before it does its work again.
	MaybeCommitted bool
	// InFlight is true once the commit of an earlier attempt may still land (1039), also after this one's. A finding of
	// the body is then final only if this attempt conflicts with that commit, and is committed itself.
	InFlight bool
}

// Run calls fn in a transaction, commits it, and starts over for as long as the engine's OnError says so. It
// returns the commit version, or -1 if fn wrote nothing.
//
// fn may run many times. It must assign its results, must not append to those of an earlier run, and must not keep tx.
// An error of fn that wraps an *Error is treated like the engine's own; any other ends the loop, and nothing is
// committed.
//
// An error is about all attempts, not only the last. If the commit of any attempt may have landed, MaybeCommitted is
// true of the error: it wraps an *Error of code 1021, or one with InFlight set if a commit may still land. It also
// wraps the error of the last attempt: a conflict at the limit of retries, a failure of the store, or an error of fn.
// If fn finds out the outcome of earlier attempts itself, the caller may use LastAttempt. After a commit was sent, a
// code counts as unknown unless it is known to mean that nothing was applied.
//
// When ctx ends, Run returns an error that wraps context.Cause(ctx). If Run was waiting for a commit then, the error is
// an *Error with InFlight set. The same holds for a time-out (1031) during a commit.
//
// MaybeCommitted of the error is never about another transaction. If context.Cause(ctx) wraps an *Error, the cause
// comes in another *Error, which hides it: with code 1101, or with the code of the last attempt if ctx ends during the
// pause after it. If the last attempt has sent no commit, an error of fn of which MaybeCommitted is true comes in an
// *Error of code 1037, in the same way.
func Run(ctx context.Context, db DB, o TxOptions, fn func(tx Tx, a Attempt) error) (int64, error) {
	watch := keepVigil(ctx, o)
	defer watch.end()
	tx, err := db.Begin(o)
	if err != nil {
		return 0, fmt.Errorf("kv: begin: %w", err)
	}
	committed := false
	defer func() {
		// Also on a panic of fn. After a commit there is nothing to give up, and watches must live on.
		if !committed {
			tx.Cancel()
		}
	}()
	var a, before Attempt // before is what the last attempt knew
	var open *Error       // of the last attempt's commit, if that may have landed
	for {
		if ctx.Err() != nil {
			return 0, before.failed(open.because(CauseOf(ctx)))
		}
		before, open = a, nil
		err := watch.in(func() error { return fn(tx, a) })
		sent := err == nil
		if sent {
			if _, err = tx.Commit().Wait(ctx); err == nil {
				committed = true
				return version(tx)
			}
		}
		e := first(err, func(*Error) bool { return true })
		if e == nil || isCause(ctx, err) {
			if sent || e != nil {
				// Wait gave up because ctx ended. A code in the cause is that of another call.
				err = &Error{Code: CodeOperationCancelled, InFlight: sent, Cause: err}
			}
			return 0, a.failed(err)
		}
		if sent && !e.notApplied() {
			open = &Error{Code: e.Code, InFlight: e.InFlight || e.Code != CodeCommitUnknownResult, Cause: e.Cause}
		}
		watch.failed(err)
		if o.UntilConflict && e.Code == CodeNotCommitted && !a.MaybeCommitted {
			return 0, err
		}
		if _, again := tx.OnError(err).Wait(ctx); again != nil {
			ended := Code(again) == 0 || isCause(ctx, again) // ctx ended during the backoff
			same := !ended && Code(again) == e.Code
			switch {
			case same && open != nil:
				again = open
			case open != nil:
				again = open.because(again)
			case ended:
				again = &Error{Code: e.Code, Cause: again}
			case same && sent:
				again = &Error{Code: e.Code, Cause: e.Cause}
			case same:
				again = err
			}
			if !sent && MaybeCommitted(again) { // of a read, or of another transaction
				again = &Error{Code: CodeProcessBehind, Cause: again}
			}
			return 0, a.failed(again)
		}
		a.N++
		switch {
		case e.Code == CodeNotCommitted:
			a.Conflicts++
		case open != nil:
			a.MaybeCommitted, a.InFlight = true, a.InFlight || open.InFlight
		}
	}
}

// isCause reports whether ctx has ended and err says so: err is or wraps the cause.
func isCause(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
}

// CauseOf returns the cause of a context that has ended, for the error of a call. If the cause wraps an *Error, it
// comes in an *Error of code 1101, because its code is that of another call. Example: an enqueue of unknown outcome
// ends the context of a group of goroutines. The other enqueues of the group, which were never sent, must not be of
// unknown outcome, too.
func CauseOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if Code(cause) != 0 {
		return &Error{Code: CodeOperationCancelled, Cause: cause}
	}
	return cause
}

// version is the version of a commit that has landed. An error does not undo the commit.
func version(tx ManagedTx) (int64, error) {
	v, err := tx.CommittedVersion()
	if err != nil {
		err = &Error{Code: CodeCommitUnknownResult, Cause: err}
	}
	return v, err
}

// because returns the error of a loop that cause has ended after a commit ended with e; nil = nothing of that commit
// was applied.
func (e *Error) because(cause error) error {
	if e == nil {
		return cause
	}
	return &Error{Code: e.Code, InFlight: e.InFlight, Cause: cause}
}

// failed is the error of a loop whose last attempt knew a and ended with last.
func (a Attempt) failed(last error) error {
	says := func(e *Error) bool { return e.InFlight || e.MaybeCommitted() && !a.InFlight }
	switch {
	case !a.MaybeCommitted, first(last, says) != nil:
		return last
	case a.InFlight:
		return &Error{Code: CodeClusterVersionChanged, InFlight: true, Cause: last, earlier: true}
	}
	return &Error{Code: CodeCommitUnknownResult, Cause: last, earlier: true}
}

// LastAttempt takes from an error of Run what the attempts before the last have left open, and returns the last
// attempt's own error. It is for a body that looks, in each attempt after one of unknown outcome, whether that one was
// applied. If the last attempt's look has proved that none was and none will be, the last attempt's own error is the
// outcome of the whole. Any other error comes back unchanged.
func LastAttempt(err error) error {
	if e := first(err, func(e *Error) bool { return e.earlier }); e != nil {
		return e.Cause
	}
	return err
}

// MaybeCommitted reports whether err leaves open whether a transaction was committed: the error wraps an *Error of code
// 1021 or 1039, or one with InFlight set. An *Error hides those that it wraps. Of several joined errors, one is enough.
// The caller must find out whether the transaction was applied before it does the work again.
func MaybeCommitted(err error) bool {
	return first(err, func(e *Error) bool { return e.InFlight || e.MaybeCommitted() }) != nil
}

// notApplied reports whether a commit that ended with e was not applied and never will be: by its code, or because the
// database was closed before. Each code that is not in the list says nothing of the commit: it may have landed, and,
// except after 1021, may still land.
func (e *Error) notApplied() bool {
	if !e.InFlight && errors.Is(e, ErrClosed) {
		return true
	}
	switch e.Code {
	case
		// The cluster has refused the commit, or the client has got no read version for it.
		CodeTransactionTooOld, CodeFutureVersion, CodeNotCommitted, CodeProcessBehind, CodeDatabaseLocked,
		CodeCommitProxyMemoryLimit, CodeBatchThrottled, CodeGRVProxyMemoryLimit, CodeBlobGranuleFailed,
		CodeTagThrottled, CodeProxyTagThrottled, CodeHotShardThrottled, CodeRangeLocked, CodeGRVQueueRejected,
		// The client has refused to send the commit.
		CodeTooManyWatches, CodeWatchesDisabled, CodeAccessedUnreadable, CodeClientInvalidOperation,
		CodeKeyOutsideLegalRange, CodeInvertedRange, CodeReadVersionAlreadySet, CodeVersionInvalid,
		CodeRangeLimitsInvalid, CodeTransactionInvalidVer, CodeNoCommitVersion, CodeTransactionReadOnly,
		CodeTransactionTooLarge, CodeKeyTooLarge, CodeValueTooLarge,
		// The embedded engine's store has failed before, or has written nothing.
		CodeIOError:
		return true
	}
	return false
}
