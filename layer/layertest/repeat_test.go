package layer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// TestRepeatedAtOnce: of many receives with one receive id, of one handle and of several, at the same time, one claims
// and all are given the same.
func TestRepeatedAtOnce(t *testing.T) {
	onEngines(t, func(e *env) {
		for i := range 10 {
			e.enqueue(fmt.Sprint("G", i), "x")
		}
		handles := []*layer.Queue{e.q, e.handle(2), e.handle(3)}
		var mu sync.Mutex
		given := make(map[string]int)
		var wg sync.WaitGroup
		for i := range 30 {
			q := handles[i%len(handles)]
			wg.Go(func() {
				claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 2, Strategy: layer.Heads, ReceiveID: "once"})
				if err != nil {
					e.t.Error(err)
					return
				}
				var words []string
				for _, c := range claims {
					words = append(words, fmt.Sprint(c.Group, " ", c.Token, " ", len(c.Items)))
				}
				mu.Lock()
				defer mu.Unlock()
				given[strings.Join(words, ", ")]++
			})
		}
		wg.Wait()
		require.Len(e.t, given, 1, "all are given the same")
		s, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 2, s.HeldGroups)
	})
}

// TestRepeatableWaitsInLine: a waiting receive with a receive id waits in its handle's line, as others do. The handle
// does not look until a group becomes ready. The repetition is answered at once, with the claims that are left, and
// never waits.
func TestRepeatableWaitsInLine(t *testing.T) {
	t.Parallel()
	e := newEnv(t, anyEngine, false)
	o := e.options(3)
	o.Poll = time.Hour
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(t, err)
	const n = 10
	receive := func(i int) ([]*layer.Claim, error) {
		id := fmt.Sprint("id ", i)
		return q.Receive(e.ctx, layer.ReceiveOptions{MaxGroups: 1, ReceiveID: id, Wait: time.Minute})
	}
	claims := make([]*layer.Claim, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			got, err := receive(i)
			if err != nil || len(got) != 1 {
				t.Error(got, err)
				return
			}
			claims[i] = got[0]
		})
	}
	require.Eventually(t, func() bool { return q.Paths().Looks > 0 }, time.Minute, time.Millisecond)
	for i := range n {
		e.enqueue(fmt.Sprint("G", i), "x")
	}
	wg.Wait()
	paths := q.Paths()
	require.EqualValues(t, n, paths.Staged+paths.Direct+paths.Widened)
	require.Positive(t, paths.Staged)
	for i := range n {
		again, err := receive(i)
		require.NoError(t, err)
		require.Len(t, again, 1)
		require.Equal(t, claims[i].Stored(), again[0].Stored())
		require.NoError(t, q.Ack(e.ctx, claims[i]))
		again, err = receive(i)
		require.NoError(t, err)
		require.Empty(t, again)
	}
	require.NoError(t, q.Close(e.ctx))
}

// TestRepeatedAfterCancel: what a receive claims whose caller has gone is not given back if it can be repeated.
func TestRepeatedAfterCancel(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	ctx, cancel := context.WithCancel(e.ctx)
	db := &beforeCommit{DB: e.raw}
	q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
	require.NoError(t, err)
	db.run = func() {
		cancel()
		e.enqueue("B", "b1") // which gives the handle time to see it
	}
	db.left.Store(1)
	_, _ = q.Receive(ctx, layer.ReceiveOptions{Max: 1, ReceiveID: "once"}) // with the claim, or with the error of ctx
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{ReceiveID: "once"})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.NoError(t, q.Close(e.ctx))
	require.NoError(t, e.q.Ack(e.ctx, claims[0]))
}

// TestReceiveIDErrors: ids that are too long or no text are refused, and so is one of a receive that acks.
func TestReceiveIDErrors(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	var limit *layer.LimitError
	_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{ReceiveID: strings.Repeat("x", 128+1)})
	require.ErrorAs(t, err, &limit)
	require.EqualValues(t, 128, limit.Max)
	_, err = e.q.Receive(e.ctx, layer.ReceiveOptions{ReceiveID: "\xff"})
	require.ErrorIs(t, err, layer.ErrInvalidUTF8)
	c := holding(1, 1)(e).(*layer.Claim)
	_, err = e.q.SettleReceive(
		e.ctx, layer.Settlement{Claim: c, FinishAll: true}, layer.ReceiveOptions{ReceiveID: "once"},
	)
	require.ErrorIs(t, err, layer.ErrOptions)
	require.Equal(t, []string{"a"}, e.all("A"), "nothing was done")
}

// TestSweepClearsReceiveIDs: an hour after, and not before.
func TestSweepClearsReceiveIDs(t *testing.T) {
	onEngines(t, func(e *env) {
		e.enqueue("A", "a1")
		_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{ReceiveID: "once", Lease: layer.MaxLease})
		require.NoError(e.t, err)
		kept := func() int { return len(e.rows(kv.PrefixRange(key("repeat")))) }
		e.clock.advance(time.Hour - time.Millisecond)
		_, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(e.t, err)
		require.Equal(e.t, 1, kept())
		e.clock.advance(time.Millisecond)
		_, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(e.t, err)
		require.Zero(e.t, kept())
	})
}

// TestRepeatedDamagedClaimSaysSo: a repeated receive whose claim says that nothing is outstanding is damage, and says
// so.
func TestRepeatedDamagedClaimSaysSo(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	again := layer.ReceiveOptions{ReceiveID: "once"}
	claims, err := e.q.Receive(e.ctx, again)
	require.NoError(t, err)
	require.Len(t, claims, 1)
	sound := e.rows(kv.SingleKey(key("lock", "A")))[0]
	lock, err := tuple.Unpack(sound.Value)
	require.NoError(t, err)
	lock[2] = lock[2].(tuple.Tuple)[:4]
	e.write(func(tx kv.Tx) { tx.Set(sound.Key, lock.Pack()) })
	_, err = e.q.Receive(e.ctx, again)
	require.ErrorIs(t, err, layer.ErrCorrupt)
	e.write(func(tx kv.Tx) { tx.Set(sound.Key, sound.Value) })
	claims, err = e.q.Receive(e.ctx, again)
	require.NoError(t, err)
	require.Equal(t, []string{"a1"}, bodies(claims[0].Items))
}

// TestRepetitionLeavesOutLapsedClaims: a receive repeated under its id is not given a claim whose lease has ended (G2).
func TestRepetitionLeavesOutLapsedClaims(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	o := layer.ReceiveOptions{ReceiveID: "r", Lease: time.Second}
	claims, err := e.q.Receive(e.ctx, o)
	require.NoError(t, err)
	require.Len(t, claims, 1)
	e.clock.advance(2 * time.Second)
	claims, err = e.q.Receive(e.ctx, o)
	require.NoError(t, err)
	require.Empty(t, claims)
}

// TestRepetitionInTurnLeavesOutWhatIsBehind (G1): with a lease for each item, a receive repeated under its id is not
// given an item behind one whose lease has ended, which another may have; but it is given what is behind one that is
// finished.
func TestRepetitionInTurnLeavesOutWhatIsBehind(t *testing.T) {
	for _, finished := range []bool{false, true} {
		t.Run(fmt.Sprint("finished ", finished), func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			q := e.inTurn("turns", nil, 1)[0]
			for range 2 {
				_, err := q.Enqueue(e.ctx, layer.Message{Group: "A"})
				require.NoError(t, err)
			}
			o := layer.ReceiveOptions{ReceiveID: "r", Max: 2, Lease: time.Second}
			claims, err := q.Receive(e.ctx, o)
			require.NoError(t, err)
			require.Len(t, claims, 2)
			_, err = q.Extend(e.ctx, claims[1], time.Hour)
			require.NoError(t, err)
			var left []*layer.Claim
			if finished {
				require.NoError(t, q.Ack(e.ctx, claims[0]))
				left = claims[1:]
			}
			e.clock.advance(2 * time.Second)
			again, err := q.Receive(e.ctx, o)
			require.NoError(t, err)
			require.Len(t, again, len(left))
			for i := range left {
				require.Equal(t, left[i].Hold, again[i].Hold)
			}
		})
	}
}
