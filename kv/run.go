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
	// MaybeCommitted is true once an earlier attempt ended with an unknown outcome: the body must find out
	// whether that one was applied before it does its work again.
	MaybeCommitted bool
	// InFlight is true once the commit of an earlier attempt may still land (1039), also after this one's: what the body
	// finds out then is final only if this attempt conflicts with that commit, and is committed itself.
	InFlight bool
}

// Run calls fn in a transaction, commits it, and starts over for as long as the engine's OnError says so. It
// returns the commit version, or -1 if fn wrote nothing.
//
// fn may run many times: it assigns results and never appends to what an earlier run left, and it keeps no
// reference to tx. An error of fn that wraps an *Error is treated like the engine's own; any other ends the
// loop, and nothing is committed.
//
// When ctx ends, Run returns an error that wraps context.Cause(ctx); if a commit had been sent by then, that
// error is an *Error with InFlight set. The same holds for a time-out (1031) during a commit. If ctx ends in an attempt
// that follows one of unknown outcome, the error is an *Error of code 1021, or of 1039 with InFlight set if a commit may
// still land.
func Run(ctx context.Context, db DB, o TxOptions, fn func(tx Tx, a Attempt) error) (int64, error) {
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
	var a Attempt
	for {
		if ctx.Err() != nil {
			return 0, stopped(a, context.Cause(ctx))
		}
		err := fn(tx, a)
		sent := false
		if err == nil {
			sent = true
			if _, err = tx.Commit().Wait(ctx); err == nil {
				committed = true
				return tx.CommittedVersion()
			}
		}
		var e *Error
		if !errors.As(err, &e) || e == nil {
			if sent {
				// Wait gave up on the commit because ctx ended.
				return 0, &Error{Code: CodeOperationCancelled, InFlight: true, Cause: err}
			}
			if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
				return 0, stopped(a, err) // a wait of fn's ended with ctx
			}
			return 0, err
		}
		if _, again := tx.OnError(err).Wait(ctx); again != nil {
			if Code(again) == 0 {
				// ctx ended during the backoff: a commit of unknown outcome stays one, this one or an earlier.
				if a.MaybeCommitted && !(sent && inFlight(e.Code)) {
					return 0, a.unknown(again)
				}
				return 0, &Error{Code: e.Code, InFlight: sent && inFlight(e.Code), Cause: again}
			}
			if a.MaybeCommitted && !sent {
				// The end of this attempt does not tell what became of the one before it.
				return 0, a.unknown(err)
			}
			if sent {
				return 0, &Error{Code: e.Code, InFlight: inFlight(e.Code), Cause: e.Cause}
			}
			return 0, err
		}
		a.N++
		switch {
		case e.Code == CodeNotCommitted:
			a.Conflicts++
		case sent && e.MaybeCommitted():
			a.MaybeCommitted, a.InFlight = true, a.InFlight || inFlight(e.Code)
		}
	}
}

// stopped is what a loop that ctx has ended returns before the commit of an attempt: what became of an earlier one stays
// unknown.
func stopped(a Attempt, cause error) error {
	if a.MaybeCommitted {
		return a.unknown(cause)
	}
	return cause
}

// unknown is the error of a loop that ends for cause in an attempt which follows one of unknown outcome.
func (a Attempt) unknown(cause error) error {
	if a.InFlight {
		return &Error{Code: CodeClusterVersionChanged, InFlight: true, Cause: cause}
	}
	return &Error{Code: CodeCommitUnknownResult, Cause: cause}
}

// inFlight reports whether a commit that failed with code may still land. After 1021 it cannot: the client
// has made sure of that before it returned.
func inFlight(code int) bool {
	switch code {
	case CodeTransactionCancelled, CodeTransactionTimedOut, CodeClusterVersionChanged, CodeOperationCancelled,
		CodeUsedDuringCommit:
		return true
	}
	return false
}
