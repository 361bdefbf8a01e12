package kv_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
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
