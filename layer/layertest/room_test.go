package layer_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// bounded is setup in a queue whose groups may have n messages.
func bounded(n int, setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		e.configure(func(c *layer.Config) { c.MaxWaiting = n })
		return setup(e)
	}
}

// TestFullGroupAmongOthers: of enqueues that travel together, those for a full group are refused, with their group and
// the limit, and the others go on.
func TestFullGroupAmongOthers(t *testing.T) {
	onEngines(t, func(e *env) {
		bounded(2, having("a1", "a2"))(e)
		const n = 40
		var refused atomic.Int64
		var wg sync.WaitGroup
		for i := range n {
			group := fmt.Sprint("g", i)
			if i%4 == 0 {
				group = "A"
			}
			wg.Go(func() {
				_, err := e.q.Enqueue(e.ctx, layer.Message{Group: group}, layer.Message{Group: "B" + group})
				var full *layer.FullError
				switch {
				case group == "A" && errors.As(err, &full) && *full == layer.FullError{Group: "A", Adding: 1, Max: 2}:
					refused.Add(1)
				case group == "A" || err != nil:
					e.t.Errorf("enqueue to %s: %v", group, err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(e.t, n/4, refused.Load())
		require.Len(e.t, e.rows(kv.PrefixRange(key("item"))), 2+2*n*3/4)
		require.Empty(e.t, e.all("BA"), "what was refused was refused whole")
	})
}

// TestFullGroupTogether: enqueues of one transaction see each other.
func TestFullGroupTogether(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	bounded(3, having())(e)
	err := e.calm().Once(e.ctx, func(tx kv.Tx) error {
		for range 3 {
			if _, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A"}); err != nil {
				return err
			}
		}
		_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A"}, layer.Message{Group: "B"})
		var full *layer.FullError
		require.ErrorAs(t, err, &full)
		return nil // nothing was written by the one that was refused
	})
	require.NoError(t, err)
	require.Len(t, e.all("A"), 3)
	require.Empty(t, e.all("B"))
}

// TestFullGroupOfUnknownCommit: an enqueue that filled the group, by a commit of unknown outcome, is not refused because
// of itself.
func TestFullGroupOfUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		e := newEnv(t, anyEngine, false)
		bounded(1, having())(e)
		e.clock.advance(time.Second)
		e.plan.ForceNext(kind)
		e.enqueue("A", "a1")
		require.Equal(t, []string{"a1"}, e.all("A"))
	}
}
