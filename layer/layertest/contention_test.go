package layer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// losing makes each commit conflict that claims group B, while on returns true, as if other handles were always faster.
func (e *env) losing(on func() bool) {
	locks := kv.PrefixRange(append(append([]byte(nil), testPrefix...), tuple.Tuple{testQueue, "lock", "B"}.Pack()...))
	e.plan.OnCommit = func(_ int, tx kv.Tx) fault.Kind {
		rows, err := tx.Snapshot().GetRange(locks.Selectors(), kv.RangeOptions{}).Wait(e.ctx)
		if err == nil && len(rows) > 0 && on() {
			return fault.Conflict
		}
		return fault.None
	}
}

// TestAckWaitsForNoReceive (contract): a call that settles or enqueues waits for nothing but its own transaction. The
// receives of the handle may lose one conflict after the other, also the one that travels with the ack.
func TestAckWaitsForNoReceive(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(ctx context.Context, q *layer.Queue, claim *layer.Claim) error{
		"ack": func(ctx context.Context, q *layer.Queue, claim *layer.Claim) error { return q.Ack(ctx, claim) },
		"nack": func(ctx context.Context, q *layer.Queue, claim *layer.Claim) error {
			return q.Nack(ctx, claim, layer.NackOptions{})
		},
		"extend": func(ctx context.Context, q *layer.Queue, claim *layer.Claim) error {
			_, err := q.Extend(ctx, claim, time.Minute)
			return err
		},
		"enqueue": func(ctx context.Context, q *layer.Queue, _ *layer.Claim) error {
			_, err := q.Enqueue(ctx, layer.Message{Group: "C"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { callBesideConflicts(t, call) })
		})
	}
	for name, wait := range map[string]time.Duration{"ack and receive": 0, "ack and wait": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				callBesideConflicts(t, func(ctx context.Context, q *layer.Queue, claim *layer.Claim) error {
					s := layer.Settlement{Claim: claim, FinishAll: true}
					go q.SettleReceive(ctx, s, layer.ReceiveOptions{Wait: wait})
					for {
						left, err := q.Admin().Group(ctx, "A", nil)
						if err != nil || left.Depth == 0 {
							return err
						}
						time.Sleep(100 * time.Microsecond)
					}
				})
			})
		})
	}
}

// callBesideConflicts calls while no receive of the handle waits, while one loses its conflicts, and while many do.
func callBesideConflicts(t *testing.T, call func(ctx context.Context, q *layer.Queue, claim *layer.Claim) error) {
	for _, receives := range []int{0, 1, 40} {
		e := newEnv(t, inMemory, false)
		e.clock.real.Store(true)
		ctx, stop := context.WithCancel(e.ctx)
		e.enqueue("A", "a")
		claim := e.receive(e.q, 1)
		e.enqueue("B", "b")
		loses := true
		e.losing(func() bool { return loses })
		for range receives {
			go e.q.Receive(ctx, layer.ReceiveOptions{Wait: time.Minute})
		}
		time.Sleep(3 * time.Second) // the receives have lost a few conflicts
		begun := time.Now()
		require.NoError(t, call(ctx, e.q, claim))
		require.LessOrEqual(t, time.Since(begun), time.Millisecond, "beside %d receives", receives)
		stop()
		synctest.Wait()
		loses = false
		require.NoError(t, e.q.Close(context.Background()))
	}
}
