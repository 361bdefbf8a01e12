package layer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// TestNoHooksNoAllocations: an operation of a handle without hooks allocates nothing for hooks.
func TestNoHooksNoAllocations(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	q, err := Create(t.Context(), db, nil, "q", Options{})
	require.NoError(t, err)
	ctx, group := t.Context(), "A"
	require.Zero(t, testing.AllocsPerRun(100, func() {
		ctx, w := q.observe(ctx, Operation{Verb: VerbReceive, Group: &group})
		if err := w.end(ctx, nil); err != nil {
			panic(err)
		}
	}))
	report, err := q.Admin().Check(ctx, CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
}

// TestErrorKinds: each kind is a word, and every error has one.
func TestErrorKinds(t *testing.T) {
	require.Empty(t, ErrorKind(nil))
	for _, k := range errorKinds {
		require.Equal(t, k.kind, ErrorKind(wrap("ack", k.is)))
	}
	require.Equal(t, "limit", ErrorKind(&LimitError{}))
	require.Equal(t, "engine", ErrorKind(&kv.Error{Code: 1020}))
	require.Equal(t, "other", ErrorKind(ErrNoItem))
	require.Equal(t, "cancelled", ErrorKind(context.Canceled))
}
