package layer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// causes are those of an explanation, in order.
func (e *env) causes(id layer.ID) []layer.Cause {
	e.t.Helper()
	x, err := e.calm().Admin().Why(e.ctx, id, nil)
	require.NoError(e.t, err)
	require.NotEmpty(e.t, x.Reasons)
	require.Equal(e.t, len(x.Reasons), strings.Count(x.String(), "\n")+1, "a line for each reason")
	all := make([]layer.Cause, len(x.Reasons))
	for i, r := range x.Reasons {
		all[i] = r.Cause
	}
	return all
}

// TestWhyChangesNothing: asking changes nothing, and conflicts with nothing.
func TestWhyChangesNothing(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	id := e.enqueue("A", "a1", "a2")[1]
	e.receive(e.q, 1)
	before := e.rows(kv.PrefixRange(testPrefix))
	require.Equal(t, []layer.Cause{layer.CauseGroupHeld, layer.CauseBehind}, e.causes(id))
	require.Equal(t, before, e.rows(kv.PrefixRange(testPrefix)))
}

// TestWhyBehindAHeadByItself: what waits behind a head that was claimed by itself is told who has the head, in a queue
// with a lease for each item as in an unordered one.
func TestWhyBehindAHeadByItself(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	for name, q := range map[string]*layer.Queue{
		"turns": e.inTurn("turns", nil, 1)[0], "items": e.unordered("items", nil, 1)[0],
	} {
		sent, err := q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Group: "A"})
		require.NoError(t, err)
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1, Unordered: name == "items"})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		why, err := q.Admin().Why(e.ctx, sent[1].ID, nil)
		require.NoError(t, err)
		require.Equal(t, layer.CauseHeadHeld, why.Reasons[0].Cause)
		require.Equal(t, claims[0].Token, why.Reasons[0].Token)
		require.Regexp(t, `^the first message of its group is in the hands of "[^"]*", by itself; the lease has`,
			why.String())
		require.NotContains(t, why.String(), "out of order")
	}
}

// TestWhySaysWhereTheCountEnded (Contract): if the hint of a group is not at its head's index, Why looks for the hint
// among the first 1,000. If it is not there, the number of older groups is a lower bound, and the reason says so.
func TestWhySaysWhereTheCountEnded(t *testing.T) {
	for ahead, want := range map[int]layer.Reason{
		999:  {Cause: layer.CauseTurn, Count: 999},
		1000: {Cause: layer.CauseTurn, Count: 1000, More: true},
		1500: {Cause: layer.CauseTurn, Count: 1000, More: true},
	} {
		e := newEnv(t, anyEngine, false)
		id := e.enqueue("A", "a1")[0]
		hint := e.rows(kv.PrefixRange(key("ready")))[0]
		e.write(func(tx kv.Tx) {
			tx.Clear(hint.Key)
			for i := range ahead {
				tx.Set(key("ready", int64(0), int64(i+1), fmt.Sprint("other", i)), nil)
			}
			tx.Set(key("ready", int64(0), int64(ahead+1), "A"), nil)
		})
		x, err := e.q.Admin().Why(e.ctx, id, nil)
		require.NoError(t, err)
		require.Equal(t, want, x.Reasons[0])
		require.Equal(t, want.More, strings.Contains(x.String(), "1000 or more older groups"), "%s", x)
	}
}

// TestWhyRefusesWhatIsNoID, and takes an id of nothing for one that is gone.
func TestWhyRefusesWhatIsNoID(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	for _, id := range []layer.ID{{}, {Group: "\xff", Random: uuid.New()}, {Index: -1, Random: uuid.New()}} {
		_, err := e.q.Admin().Why(e.ctx, id, nil)
		require.ErrorIs(t, err, layer.ErrInvalidID)
	}
	require.Equal(t, []layer.Cause{layer.CauseGone}, e.causes(layer.ID{Group: "A", Random: uuid.New()}))
	require.NoError(t, e.q.Close(e.ctx))
	_, err := e.q.Admin().Why(e.ctx, layer.ID{Random: uuid.New()}, nil)
	require.ErrorIs(t, err, layer.ErrClosed)
}

// TestWhyCountsWaitingHandles: Why tells a message for which no handle waits from one that is about to be delivered. A
// request of a handle that died does not count a minute later, and until then the text says that it may have died.
func TestWhyCountsWaitingHandles(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	id := e.enqueue("A", "a1")[0]
	require.Equal(t, []layer.Cause{layer.CauseNobodyWaits}, e.causes(id))
	request := key("request", int64(1), uuid.New())
	deadline := e.clock.now().Add(time.Minute).UnixMilli()
	e.write(func(tx kv.Tx) { tx.Set(request, tuple.Tuple{"w", int64(1), deadline}.Pack()) })
	require.Equal(t, []layer.Cause{layer.CauseReady}, e.causes(id))
	x, err := e.q.Admin().Why(e.ctx, id, nil)
	require.NoError(t, err)
	require.Contains(t, x.Reasons[0].String(), "unless a handle that waits has died")
	e.clock.advance(time.Hour)
	require.Equal(t, []layer.Cause{layer.CauseNobodyWaits}, e.causes(id))
	e.write(func(tx kv.Tx) { tx.Clear(request) })
}

// TestWhyIsBounded: what stands before a message is counted up to a bound, whatever the depth.
func TestWhyIsBounded(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	bodies := make([]string, layer.MaxBatch)
	for range 11 {
		e.enqueue("A", bodies...)
	}
	last := e.enqueue("A", "last")[0]
	x, err := e.q.Admin().Why(e.ctx, last, nil)
	require.NoError(t, err)
	require.Equal(t, layer.Reason{Cause: layer.CauseBehind, Count: 10_000, More: true}, x.Reasons[0])
	require.Equal(t, "10000 or more messages of its group come first", x.Reasons[0].String())
}

// TestWhyUnreachable: a group that nothing leads to is called so, one whose hint is elsewhere than at its head is not.
func TestWhyUnreachable(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	id := e.enqueue("A", "a1")[0]
	hint := e.rows(kv.PrefixRange(key("ready")))[0]
	e.write(func(tx kv.Tx) {
		tx.Clear(hint.Key)
		tx.Set(key("ready", int64(0), id.Index+7, "A"), nil)
	})
	require.Equal(t, []layer.Cause{layer.CauseNobodyWaits}, e.causes(id))
	e.write(func(tx kv.Tx) { tx.Clear(key("ready", int64(0), id.Index+7, "A")) })
	require.Equal(t, []layer.Cause{layer.CauseUnreachable}, e.causes(id))
	// The remedy.
	_, err := e.q.Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{})
	require.NoError(t, err)
	_, err = e.q.Admin().ResumeGroup(e.ctx, "A", layer.ResumeOptions{})
	require.NoError(t, err)
	require.Equal(t, []layer.Cause{layer.CauseNobodyWaits}, e.causes(id))
	require.NotNil(t, e.receive(e.q, 1))
}

// TestWhyOfAGrant: a group that is kept for a handle that waits is said to be.
func TestWhyOfAGrant(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	id := e.enqueue("A", "a1")[0]
	random := uuid.New()
	end := e.clock.now().Add(2 * time.Second).UnixMilli()
	e.write(func(tx kv.Tx) {
		tx.Set(key("lock", "A"), tuple.Tuple{int64(5), nil, tuple.Tuple{"grant", int64(5), random.String(), end}}.Pack())
		tx.Set(key("timer", end, "A"), append(key0("grant"), 0x14))
	})
	require.Equal(t, []layer.Cause{layer.CauseGranted}, e.causes(id))
	e.clock.advance(3 * time.Second)
	require.Equal(t, []layer.Cause{layer.CauseNobodyWaits}, e.causes(id))
}
