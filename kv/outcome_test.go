package kv_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
)

// MaybeCommitted finds an open outcome wherever it is wrapped, and among joined errors of known outcome. In a chain of
// errors the outermost *Error says what the outcome is.
func TestMaybeCommitted(t *testing.T) {
	unknown := &kv.Error{Code: kv.CodeCommitUnknownResult}
	inFlight := &kv.Error{Code: kv.CodeTransactionTimedOut, InFlight: true}
	conflict := &kv.Error{Code: kv.CodeNotCommitted}
	plain := errors.New("plain")
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{plain, false},
		{conflict, false},
		{unknown, true},
		{inFlight, true},
		{fmt.Errorf("call: %w", inFlight), true},
		{&kv.Error{Code: kv.CodeCommitUnknownResult, Cause: conflict}, true},
		{&kv.Error{Code: kv.CodeTransactionInvalidVer, Cause: unknown}, false},
		{errors.Join(conflict, plain, fmt.Errorf("claim 2: %w", unknown)), true},
		{fmt.Errorf("%w: %w", plain, unknown), true},
		{errors.Join(conflict, plain), false},
	} {
		require.Equal(t, c.want, kv.MaybeCommitted(c.err), "%v", c.err)
	}
}

// coded is an error of another package that stands for a *kv.Error.
type coded struct{ as *kv.Error }

func (coded) Error() string { return "coded" }

func (c coded) As(target any) bool {
	t, ok := target.(**kv.Error)
	if ok {
		*t = c.as
	}
	return ok
}

// TestNilErrorHidesNothing: a nil *Error is no error of an engine, and does not hide one that is joined with it.
func TestNilErrorHidesNothing(t *testing.T) {
	none := (*kv.Error)(nil)
	conflict := &kv.Error{Code: kv.CodeNotCommitted}
	unknown := &kv.Error{Code: kv.CodeCommitUnknownResult}
	for _, c := range []struct {
		err  error
		code int
	}{
		{none, 0},
		{fmt.Errorf("call: %w", none), 0},
		{errors.Join(none, none), 0},
		{&kv.Error{Code: kv.CodeNotCommitted, Cause: none}, kv.CodeNotCommitted},
		{coded{none}, 0},
		{coded{conflict}, kv.CodeNotCommitted},
		{errors.Join(none, conflict), kv.CodeNotCommitted},
		{errors.Join(errors.Join(none), fmt.Errorf("call: %w", unknown)), kv.CodeCommitUnknownResult},
		{fmt.Errorf("%w, %w, %w", coded{none}, none, unknown), kv.CodeCommitUnknownResult},
		{errors.Join(errors.New("plain"), fmt.Errorf("call: %w", none), coded{unknown}), kv.CodeCommitUnknownResult},
	} {
		require.Equal(t, c.code, kv.Code(c.err), "%v", c.err)
		require.Equal(t, c.code == kv.CodeCommitUnknownResult, kv.MaybeCommitted(c.err), "%v", c.err)
		require.Equal(t, c.err, kv.LastAttempt(c.err))
	}
}

// TestRunWithNilErrors: a body's nil *Error ends the loop as any error without a code does, also after an attempt of
// unknown outcome; joined with a conflict, it does not stop the next attempt.
func TestRunWithNilErrors(t *testing.T) {
	t.Parallel()
	none := (*kv.Error)(nil)
	for _, c := range []struct {
		second error // of the attempt after the commit
		tries  int
		open   bool
	}{
		{none, 2, true},
		{fmt.Errorf("call: %w", none), 2, true},
		{errors.Join(none, &kv.Error{Code: kv.CodeNotCommitted}), 3, false},
	} {
		plan := &fault.Plan{}
		plan.ForceNext(fault.UnknownLost)
		db := fault.Wrap(embedded.OpenMemory(embedded.Options{}), plan)
		tries := 0
		ctx := kv.WithTrouble(context.Background(), func(kv.Trouble) {})
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			if tries++; tries == 2 {
				return c.second
			}
			tx.Set([]byte("a"), nil)
			return nil
		})
		require.Equal(t, c.tries, tries)
		require.Equal(t, c.open, kv.MaybeCommitted(err))
		require.Equal(t, c.open, err != nil)
		require.NoError(t, db.Close())
	}
}
