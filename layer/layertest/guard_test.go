package layer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Guards that no other test misses. Each test names the guard without which it fails.

// TestOverdueInSteps (trap 7): a claim that meets many overdue items settles a bounded number of them in its
// transaction, and so does a take. Guard spent.
func TestOverdueInSteps(t *testing.T) {
	for name, meet := range map[string]func(e *env, tx kv.Tx, _ any) error{"claim": claimAll, "take": take} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			e.configure(func(c *layer.Config) { c.Retention = time.Minute })
			e.fill("A", 1000)
			e.clock.advance(time.Hour)
			require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) error { return meet(e, tx, nil) }))
			left := len(e.all("A"))
			require.GreaterOrEqual(t, left, 1000-300)
			require.Less(t, left, 1000)
			require.Empty(t, e.receiveAll(), "a receive goes on until all are settled")
			require.Empty(t, e.all("A"))
		})
	}
}

// TestOverdueInWideSteps: a call that is to deliver one item reads what is overdue before it in pages, not one by one.
func TestOverdueInWideSteps(t *testing.T) {
	takeOne := func(e *env, tx kv.Tx) error {
		items, _, err := e.q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{})
		require.Empty(e.t, items)
		return err
	}
	claimOne := func(e *env, tx kv.Tx) error {
		claims, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Max: 1, MaxGroups: 1})
		require.Empty(e.t, claims)
		return err
	}
	for name, meet := range map[string]func(e *env, tx kv.Tx) error{"claim": claimOne, "take": takeOne} {
		t.Run(name, func(t *testing.T) {
			e, r := recorded(t)
			e.configure(func(c *layer.Config) { c.Retention = time.Minute })
			e.fill("A", 500)
			e.clock.advance(time.Hour)
			before := r.Counters()
			require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) error { return meet(e, tx) }))
			read := r.Counters().Sub(before)
			require.LessOrEqual(t, len(e.all("A")), 300, "so many are settled together")
			require.Less(t, read.KeyReads+read.RangeReads, int64(50))
		})
	}
}

// receiveAll receives what there is.
func (e *env) receiveAll() []*layer.Claim {
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 100})
	require.NoError(e.t, err)
	return claims
}

// TestReplayInStepsRepeatsEachOnce: a replay that has to go on behind what one transaction could do repeats each
// archived item once, in their order, and nothing that is finished after it has begun. Guards replay-end, replay-cut.
func TestReplayInStepsRepeatsEachOnce(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.Archive = time.Hour })
	archive := func(bodies ...string) {
		e.enqueue("A", bodies...)
		for range bodies {
			require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		}
	}
	var want []string
	for i := range 7 {
		want = append(want, fmt.Sprint(i)+strings.Repeat("x", 400_000))
	}
	archive(want...)
	steps := 0
	report, err := e.q.Admin().Replay(e.ctx, everything, layer.ReplayOptions{Progress: func(layer.ReplayReport) {
		if steps++; steps == 1 {
			// No other group is used, so that the order of A is that of the replay.
			sent, err := e.q.Enqueue(e.ctx, layer.Message{Group: "B", Body: []byte("later")})
			require.NoError(t, err)
			require.Len(t, sent, 1)
			group := "B"
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Group: &group})
			require.NoError(t, err)
			require.NoError(t, e.q.Ack(e.ctx, claims[0]))
		}
		require.Less(t, steps, 20)
	}})
	require.NoError(t, err)
	require.Greater(t, steps, 1)
	require.EqualValues(t, len(want), report.Done)
	require.Empty(t, e.all("B"))
	for i := range want {
		c := e.receive(e.q, 1)
		require.NotNil(t, c)
		require.Equal(t, want[i][:1], string(c.Items[0].Body[:1]))
		require.NoError(t, e.q.Ack(e.ctx, c))
	}
	require.Nil(t, e.receive(e.q, 1))
}

// TestRepeatableIsNotGivenBack: if the caller of a receive with a receive id leaves, its claims stay, for the
// repetition. The caller's error says that the outcome is unknown. Guard repeat-back.
func TestRepeatableIsNotGivenBack(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	var given atomic.Bool
	o := e.options(3)
	o.Test.Yield = func(_ context.Context, what string) {
		if strings.HasPrefix(what, "give back") {
			given.Store(true)
		}
	}
	ctx, cancel := context.WithCancel(e.ctx)
	db := &holdCommits{DB: e.raw, entered: make(chan struct{}, 1), release: make(chan struct{})}
	q, err := layer.Open(e.ctx, db, testPrefix, testQueue, o)
	require.NoError(t, err)
	db.armed.Store(true)
	ended := make(chan error, 2)
	// While an enqueue is in flight, the receive's transaction runs in another goroutine than its caller's.
	go func() { _, err := q.Enqueue(e.ctx, layer.Message{Group: "B"}); ended <- err }()
	<-db.entered
	go func() { _, err := q.Receive(ctx, layer.ReceiveOptions{Max: 1, ReceiveID: "once"}); ended <- err }()
	<-db.entered
	cancel()
	left := <-ended
	require.ErrorIs(t, left, context.Canceled)
	require.True(t, kv.MaybeCommitted(left))
	close(db.release)
	require.NoError(t, <-ended)
	require.Eventually(t, func() bool { return q.Paths().Shared == 2 }, time.Minute, time.Millisecond)
	require.Never(t, given.Load, 300*time.Millisecond, time.Millisecond) // far longer than it takes to begin
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{ReceiveID: "once"})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.NoError(t, e.q.Ack(e.ctx, claims[0]))
	require.NoError(t, q.Close(e.ctx))
}
