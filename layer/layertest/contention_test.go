package layer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
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

// TestAckWaitsForNoEnqueue (contract): a call that settles or enqueues waits for nothing but its own transaction. The
// enqueues of the handle with BehindAll may lose one conflict after the other, because other processes enqueue into
// the group. Receives of the handle that lose conflicts, too, leave room for the call.
func TestAckWaitsForNoEnqueue(t *testing.T) {
	t.Parallel()
	for _, enqueues := range []int{1, 10, 400} {
		for _, receives := range []int{0, 40} {
			t.Run(fmt.Sprintf("%d enqueues, %d receives", enqueues, receives), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { ackBesideEnqueues(t, enqueues, receives) })
			})
		}
	}
}

func ackBesideEnqueues(t *testing.T, enqueues, receives int) {
	t.Helper()
	e := newEnv(t, inMemory, false)
	e.clock.real.Store(true)
	ctx, stop := context.WithCancel(e.ctx)
	e.enqueue("A", "a")
	claim := e.receive(e.q, 1)
	e.enqueue("B", "b")
	var healed atomic.Bool
	e.losing(func() bool { return !healed.Load() })
	receiveLoses := e.plan.OnCommit
	log := kv.PrefixRange(key("item", "log"))
	e.plan.OnCommit = func(n int, tx kv.Tx) fault.Kind {
		if healed.Load() {
			return fault.None
		}
		rows, err := tx.Snapshot().GetRange(log.Selectors(), kv.RangeOptions{}).Wait(e.ctx)
		if err == nil && len(rows) > 0 { // of this transaction, because none was committed
			return fault.Conflict
		}
		return receiveLoses(n, tx)
	}
	for range receives {
		go e.q.Receive(ctx, layer.ReceiveOptions{Wait: time.Minute})
	}
	sent := make(chan error, enqueues)
	for range enqueues {
		go func() {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "log", BehindAll: true})
			sent <- err
		}()
	}
	time.Sleep(3 * time.Second) // they have lost a few conflicts
	require.Empty(t, sent)
	begun := time.Now()
	time.AfterFunc(time.Second, func() { healed.Store(true) })
	assert.NoError(t, e.q.Ack(ctx, claim))
	assert.LessOrEqual(t, time.Since(begun), time.Millisecond)
	stop()
	for range enqueues {
		require.NoError(t, <-sent)
	}
	synctest.Wait()
	require.NoError(t, e.q.Close(context.Background()))
	e.sound(testQueue)
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
