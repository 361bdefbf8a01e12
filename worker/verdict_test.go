package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestJoinedVerdicts: a verdict counts also if a nil pointer of its type is joined before it, and an error that joins
// only nil pointers is no failure.
func TestJoinedVerdicts(t *testing.T) {
	t.Parallel()
	var reject *worker.RejectError
	var retry *worker.RetryError
	for name, want := range map[string]struct {
		err         error
		acked, dead int64
		reported    string
	}{
		"real":          {errors.Join(reject, &worker.RejectError{Reason: "never"}), 0, 4, "rejected: never"},
		"deep":          {errors.Join(errors.Join(retry, reject), &worker.RejectError{}), 0, 4, "rejected"},
		"nil":           {errors.Join(reject, retry), 4, 0, "a nil *worker.RejectError was returned"},
		"nil, deep":     {errors.Join(errors.Join(retry), reject), 4, 0, "a nil *worker.RetryError was returned"},
		"a nil verdict": {errors.Join(reject, errors.New("failed")), 0, 4, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := layer.Config{MaxAttempts: 1}
			r := handles(t, config, func(call func(d *worker.Delivery) int) worker.Handler {
				return worker.Handle(func(_ context.Context, d *worker.Delivery) error {
					call(d)
					return want.err
				})
			})
			require.Equal(t, map[string]int{"0": 1, "1": 1, "2": 1, "3": 1}, r.calls)
			require.EqualValues(t, want.acked, r.stats.Acked)
			require.EqualValues(t, want.dead, r.stats.DeadLettered)
			require.Len(t, r.reported, 4)
			require.ErrorContains(t, r.reported[0], want.reported)
		})
	}
}

// TestDoneOfBatchErrors: a BatchError finishes as many items as Done says. If Done is the number of items or more, no
// item has failed, and Err is reported; otherwise the next item has failed, also if Err is nil.
func TestDoneOfBatchErrors(t *testing.T) {
	t.Parallel()
	failed := errors.New("afterwards")
	var retry *worker.RetryError
	for name, want := range map[string]struct {
		err      *worker.BatchError
		again    int // the message that is handled twice; -1 = none
		reported int
	}{
		"all":        {&worker.BatchError{Done: 4, Err: failed}, -1, 1},
		"more":       {&worker.BatchError{Done: 99, Err: failed}, -1, 1},
		"all, nil":   {&worker.BatchError{Done: 4}, -1, 0},
		"all, a nil": {&worker.BatchError{Done: 4, Err: retry}, -1, 0},
		"one":        {&worker.BatchError{Done: 1, Err: failed}, 1, 1},
		"one, nil":   {&worker.BatchError{Done: 1}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := handles(t, layer.Config{}, func(call func(d *worker.Delivery) int) worker.Handler {
				return worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
					first := len(ds) == 4
					if want.err.Done < len(ds) && first {
						ds = ds[:want.err.Done+1]
					}
					for _, d := range ds {
						call(d)
					}
					if first {
						return want.err
					}
					return nil
				})
			})
			calls := map[string]int{"0": 1, "1": 1, "2": 1, "3": 1}
			if want.again >= 0 {
				calls[string(rune('0'+want.again))] = 2
			}
			require.Equal(t, calls, r.calls)
			require.EqualValues(t, 4, r.stats.Acked)
			require.Len(t, r.reported, want.reported)
			if want.reported > 0 && want.err.Err != nil {
				require.ErrorIs(t, r.reported[0], failed)
			}
		})
	}
}

// TestVerdictsOfATransaction: the verdict of a handler counts also if it is about an error of the database after which
// a transaction may be tried again. Without a verdict the handler is called again at once, and nothing is reported.
func TestVerdictsOfATransaction(t *testing.T) {
	t.Parallel()
	conflict := &kv.Error{Code: kv.CodeNotCommitted}
	const after = 10 * time.Second
	for kind, handler := range map[string]func(h func(d *worker.Delivery) error) worker.Handler{
		"HandleTx": func(h func(d *worker.Delivery) error) worker.Handler {
			return worker.HandleTx(func(_ context.Context, _ kv.Tx, d *worker.Delivery) error { return h(d) })
		},
		"HandleCommit": func(h func(d *worker.Delivery) error) worker.Handler {
			return worker.HandleCommit(
				func(context.Context, *worker.Delivery) (int, error) { return 0, nil },
				func(_ context.Context, _ kv.Tx, d *worker.Delivery, _ int) error { return h(d) })
		},
	} {
		for name, want := range map[string]struct {
			err         error
			calls       int
			acked, dead int64
			reported    int
			pause       time.Duration // at least, between two calls of a message
		}{
			"reject":    {&worker.RejectError{Err: conflict}, 1, 0, 4, 4, 0},
			"counted":   {&worker.RetryError{After: after, Err: conflict}, 1, 0, 4, 4, 0},
			"uncounted": {&worker.RetryError{After: after, Uncounted: true, Err: conflict}, 2, 4, 0, 4, after / 2},
			"none":      {fmt.Errorf("read: %w", conflict), 2, 4, 0, 0, 0},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				var last time.Time
				r := handles(t, layer.Config{MaxAttempts: 1}, func(call func(d *worker.Delivery) int) worker.Handler {
					return handler(func(d *worker.Delivery) error {
						again := call(d) > 1
						since := time.Since(last)
						if last = time.Now(); !again {
							return want.err
						}
						assert.GreaterOrEqual(t, since, want.pause)
						return nil
					})
				})
				n := want.calls
				require.Equal(t, map[string]int{"0": n, "1": n, "2": n, "3": n}, r.calls)
				require.EqualValues(t, want.acked, r.stats.Acked)
				require.EqualValues(t, want.dead, r.stats.DeadLettered)
				require.Len(t, r.reported, want.reported)
			})
		}
	}
}
