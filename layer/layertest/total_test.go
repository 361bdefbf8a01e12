package layer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// totalled is setup in a queue whose rate, over all groups, is bounded.
func totalled(text string, setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		e.configure(func(c *layer.Config) { require.NoError(e.t, c.Set("max_rate_total", text)) })
		return setup(e)
	}
}

// totalLaw is what Config.MaxRateTotal promises: over any time T at most rate × (T + 1 s) items and a second's worth,
// one at least. It returns the first time over which it was more, or "".
func totalLaw(r layer.Rate, all []started) string { return rateLaw(r, all, time.Second) }

// TestTotalRateHolds (the law of Config.MaxRateTotal): several handles that receive and take as fast as they can start
// no more deliveries than that over any time, and not much less, though one of them dies with a portion in flight. The
// handles write the queue's pair a few times a second, however many claims they make.
func TestTotalRateHolds(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"60/s", "12/s", "3/s", "1/s", "20/m", "5/2.5s"} {
		t.Run(strings.ReplaceAll(text, "/", " in "), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { holdTotalRate(t, text) })
		})
	}
}

func holdTotalRate(t *testing.T, text string) {
	e := newEnv(t, inMemory, false)
	e.clock.real.Store(true) // which is the bubble's
	totalled(text, having())(e)
	rate := e.q.Config().MaxRateTotal
	const handles, span = 4, 40 * time.Second
	need := int(int64(span+2*time.Second)*int64(rate.Count)/int64(rate.Per)) + rate.Count + 10
	for i := 0; i < need; i += 100 {
		msgs := make([]layer.Message, 100)
		for n := range msgs {
			msgs[n].Group = fmt.Sprint("g", (i+n)%97)
		}
		_, err := e.q.Enqueue(e.ctx, msgs...)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(e.ctx, span)
	defer cancel()
	var mu sync.Mutex
	var all []started
	var recorders [handles]*record.Recorder
	total := 0
	note := func(items int) {
		mu.Lock()
		defer mu.Unlock()
		all, total = append(all, started{time.Now(), items}), total+items
	}
	var wg sync.WaitGroup
	for n := range handles {
		recorders[n] = record.Wrap(e.raw)
		q, err := layer.Open(e.ctx, recorders[n], testPrefix, testQueue, e.options(uint64(10+n)))
		require.NoError(t, err)
		wg.Go(func() {
			defer func() { require.NoError(t, q.Close(context.WithoutCancel(ctx))) }()
			for i := 0; ctx.Err() == nil; i++ {
				if n == 0 && i == 3 {
					return // with the portion that it has drawn
				}
				if n == 1 && i%5 == 0 {
					var items []layer.Item
					err := q.Once(ctx, func(tx kv.Tx) (err error) {
						items, _, err = q.TakeTx(ctx, tx, 3, layer.TakeOptions{})
						return err
					})
					if ctx.Err() == nil {
						require.NoError(t, err)
					}
					note(len(items))
					continue
				}
				claims, err := q.Receive(ctx, layer.ReceiveOptions{
					Max: 1 + i%10, Wait: time.Second, Strategy: layer.Strategy(i % 3),
				})
				if ctx.Err() != nil {
					return
				}
				require.NoError(t, err)
				for _, c := range claims {
					note(len(c.Items))
					if i%4 > 0 {
						require.NoError(t, q.Ack(e.ctx, c))
					} else {
						require.NoError(t, q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
					}
				}
				if n == 3 {
					time.Sleep(30 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, totalLaw(rate, all))
	could := float64(span) * float64(rate.Count) / float64(rate.Per)
	require.Greater(t, float64(total), 0.8*could-1, "of %.0f", could)
	for n, recorder := range recorders {
		draws := 0
		for _, tr := range recorder.Take() {
			for _, op := range tr.Ops {
				if op.Kind == record.Set && string(op.Key) == string(key("meta", "pace")) {
					draws++
				}
			}
		}
		require.LessOrEqual(t, draws, int(4*span/time.Second)+4, "draws of handle %d", n)
		t.Logf("%s: %d of %.0f delivered, handle %d has drawn %d times", text, total, could, n, draws)
	}
}

// TestTotalRateOfNone: a queue whose rate is not bounded has no pair.
func TestTotalRateOfNone(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.fill("A", 3)
	require.NotNil(t, e.receive(e.q, 1))
	require.Empty(t, e.rows(kv.SingleKey(key("meta", "pace"))))
}

// TestTotalDrawsOfTwoHandles (guard total-draw): of two handles that draw at the same time, one sees what the other has
// drawn.
func TestTotalDrawsOfTwoHandles(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	totalled("1/m", having())(e)
	e.fill("A", 2)
	e.fill("B", 2)
	other := e.calm()
	var got *layer.Claim
	e.plan.OnCommit = func(n int, _ kv.Tx) fault.Kind {
		e.plan.OnCommit = nil
		got = e.receive(other, 1)
		return fault.None
	}
	require.Nil(t, e.receive(e.q, 1), "the other has drawn the only item of this minute")
	require.NotNil(t, got)
	e.clock.advance(time.Minute)
	require.NotNil(t, e.receive(e.q, 1))
}

// TestTotalPortionComesBack: what an attempt has booked that failed is there for the next.
func TestTotalPortionComesBack(t *testing.T) {
	for _, kind := range []fault.Kind{fault.Conflict, fault.UnknownLost, fault.UnknownApplied, fault.None} {
		e := newEnv(t, anyEngine, false)
		totalled("8/s", having())(e)
		e.fill("A", 1)
		e.fill("B", 20)
		n := 0
		e.plan.OnCommit = func(int, kv.Tx) fault.Kind {
			if n++; n == 2 { // the first is the draw of one item
				return kind
			}
			return fault.None
		}
		first := e.receive(e.q, 1) // of either group: an attempt that failed looks elsewhere
		require.NotNil(t, first, kind)
		e.plan.OnCommit = nil
		require.NoError(t, e.q.Ack(e.ctx, first))
		// A portion is four of the eight at most; the last is what is left.
		got := 0
		for range 5 {
			if c := e.receive(e.q, 10); c != nil {
				got += len(c.Items)
				require.NoError(t, e.q.Ack(e.ctx, c))
			}
		}
		require.Equal(t, 7, got, kind)
	}
}

// TestTotalRateOfAWrongClock: a handle whose clock is an hour ahead does not stop others for that hour.
func TestTotalRateOfAWrongClock(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	totalled("5/s", having())(e)
	e.fill("A", 3)
	e.fill("B", 3)
	e.fill("C", 3)
	o := e.options(5)
	o.Now = func() time.Time { return e.clock.now().Add(time.Hour) }
	ahead, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(t, err)
	require.NotNil(t, e.receive(ahead, 1))
	require.NotNil(t, e.receive(e.q, 1))
	e.clock.advance(time.Second)
	require.NotNil(t, e.receive(e.q, 1))
}

// TestTotalRateRaised: a handle that waits by a rate goes on within a second once the rate is raised, and at once when
// there is none.
func TestTotalRateRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, inMemory, false)
		e.clock.real.Store(true)
		totalled("1/h", having())(e)
		e.fill("A", 1)
		e.fill("B", 1)
		require.NotNil(t, e.receive(e.q, 1))
		require.Nil(t, e.receive(e.q, 1))
		begun := time.Now()
		var claims []*layer.Claim
		var wg sync.WaitGroup
		wg.Go(func() {
			var err error
			claims, err = e.q.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Minute})
			require.NoError(t, err)
		})
		time.Sleep(100 * time.Millisecond)
		_, _, err := e.calm().Admin().Configure(e.ctx, func(c *layer.Config) { c.MaxRateTotal = layer.Rate{} })
		require.NoError(t, err)
		wg.Wait()
		require.Len(t, claims, 1)
		require.Less(t, time.Since(begun), 2*time.Second)
		require.NoError(t, e.q.Close(e.ctx))
	})
}
