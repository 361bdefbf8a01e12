package layer_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// leaveReceipts writes n receipts as processes that were killed leave them.
func (e *env) leaveReceipts(n int) {
	e.t.Helper()
	e.write(func(tx kv.Tx) {
		for range n {
			tx.Set(key("receipt", uuid.New()), tuple.Tuple{e.clock.now().UnixMilli()}.Pack())
		}
	})
}

func (e *env) receipts() int { return len(e.rows(kv.PrefixRange(key("receipt")))) }

// TestSweepClearsReceipts: a sweep clears the receipts of killed processes when they are an hour old, in pages. Younger
// receipts, and those that cannot be read, stay. Handles at work are not disturbed.
func TestSweepClearsReceipts(t *testing.T) {
	onEngines(t, func(e *env) {
		require.NoError(e.t, e.q.Close(e.ctx))
		e.q = e.handle(2)
		e.leaveReceipts(450)
		e.clock.advance(time.Hour - time.Millisecond)
		report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(e.t, err)
		require.Zero(e.t, report.Receipts)
		require.EqualValues(e.t, 450, report.Keys)
		e.clock.advance(time.Millisecond)
		e.leaveReceipts(7)
		var progress []layer.SweepReport
		report, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{Progress: func(r layer.SweepReport) { progress = append(progress, r) }})
		require.NoError(e.t, err)
		require.Equal(e.t, 7, e.receipts())
		require.Equal(e.t, report, progress[len(progress)-1])
		if e.plan.Chances == nil { // an unknown commit makes it count less
			require.EqualValues(e.t, 450, report.Receipts)
			require.EqualValues(e.t, 457, report.Keys)
			require.Len(e.t, progress, 3)
		}
		e.enqueue("A", "a1")
		require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
	})
}

// TestSweepPassesOverCorruptReceipt: one that cannot be read does not keep the others from being swept.
func TestSweepPassesOverCorruptReceipt(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	bad := key("receipt", uuid.New())
	e.write(func(tx kv.Tx) { tx.Set(bad, []byte("?")) })
	e.leaveReceipts(3)
	e.clock.advance(2 * time.Hour)
	report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 3, report.Receipts)
	e.write(func(tx kv.Tx) { tx.Clear(bad) })
}

// TestSweepGoesOn: a sweep that was stopped has done what it reports, and the next one does the rest.
func TestSweepGoesOn(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.leaveReceipts(1000)
	e.clock.advance(2 * time.Hour)
	ctx, cancel := context.WithCancel(e.ctx)
	report, err := e.q.Admin().Sweep(ctx, layer.SweepOptions{Progress: func(layer.SweepReport) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 200, report.Receipts)
	require.Equal(t, 800, e.receipts())
	report, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 800, report.Receipts)
}

// TestOneOfManySweeps: of many processes that sweep now and then, one does it at a time.
func TestOneOfManySweeps(t *testing.T) {
	onEngines(t, func(e *env) {
		var swept atomic.Int64
		seed := uint64(10)
		round := func() {
			var wg sync.WaitGroup
			for range 8 {
				seed++
				q := e.handle(seed)
				wg.Go(func() {
					report, err := q.Admin().Sweep(e.ctx, layer.SweepOptions{Every: time.Minute})
					if err != nil {
						e.t.Error(err)
					}
					if !report.Skipped {
						swept.Add(1)
					}
				})
			}
			wg.Wait()
		}
		round()
		require.EqualValues(e.t, 1, swept.Load())
		round()
		require.EqualValues(e.t, 1, swept.Load())
		e.clock.advance(time.Minute)
		round()
		require.EqualValues(e.t, 2, swept.Load())
		// A process whose clock was an hour ahead does not keep the others from it for an hour.
		e.clock.advance(time.Hour)
		_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(e.t, err)
		e.clock.advance(-time.Hour)
		round()
		require.EqualValues(e.t, 3, swept.Load())
	})
}

// TestSweptReceiptIsNotTrusted: an operation that learns the outcome of its commit so late that a sweep may have
// cleared the receipt says that it does not know, rather than do its work twice.
func TestSweptReceiptIsNotTrusted(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		e := newEnv(t, anyEngine, false)
		other := e.handle(2)
		q, err := layer.Open(e.ctx, between{e.db, func() {
			e.clock.advance(2 * time.Hour) // the cluster is away
			_, err := other.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(t, err)
		}}, testPrefix, testQueue, e.options(3))
		require.NoError(t, err)
		e.plan.ForceNext(kind)
		_, err = q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("a1")})
		var unknown *kv.Error
		require.ErrorAs(t, err, &unknown)
		require.True(t, unknown.MaybeCommitted())
		want := []string{"a1"}
		if kind == fault.UnknownLost {
			want = []string{}
		}
		require.Equal(t, want, e.all("A"))
	}
}

// TestSweepErrors: a span that is none is refused, and a closed handle.
func TestSweepErrors(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	for _, every := range []time.Duration{-1 * time.Millisecond, layer.MaxDelay + time.Millisecond} {
		var limit *layer.LimitError
		_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{Every: every})
		require.ErrorAs(t, err, &limit)
	}
	require.NoError(t, e.q.Close(e.ctx))
	_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.ErrorIs(t, err, layer.ErrClosed)
}

// TestSweepClearsWakeKeys: the wake key of a handle that was killed goes when it has no request any more; that of one
// whose receives wait stays, and wakes it.
func TestSweepClearsWakeKeys(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	w := e.wait(2, never, layer.ReceiveOptions{})
	wakes := func() int { return len(e.rows(kv.PrefixRange(key("wake")))) }
	e.write(func(tx kv.Tx) {
		for range 300 {
			tx.Set(key("wake", uuid.New()), []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
	})
	// The wake key of the handle whose receives wait, as if a transaction had touched it.
	own := e.rows(kv.PrefixRange(key("request")))[0].Key
	random, err := tuple.Unpack(own[len(testPrefix):])
	require.NoError(t, err)
	e.write(func(tx kv.Tx) { tx.Set(key("wake", random[len(random)-1]), []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	report, err := e.calm().Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 300, report.Wakes)
	require.Equal(t, 1, wakes())
	e.enqueue("A", "a1")
	require.NoError(t, w.q.Ack(e.ctx, w.get(t)))
}

// TestCloseLeavesNoRows: a handle that was closed leaves no rows of its own, whatever it did before: receives that
// waited and were served, and a handler of Once that panicked.
func TestCloseLeavesNoRows(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	w := e.wait(2, never, layer.ReceiveOptions{})
	e.enqueue("A", "a1")
	require.NoError(t, w.q.Ack(e.ctx, w.get(t)))
	require.Zero(t, e.requests())
	require.Len(t, e.rows(kv.PrefixRange(key("wake"))), 1, "it was woken")
	require.Panics(t, func() { _ = w.q.Once(e.ctx, func(kv.Tx) error { panic("a handler's") }) })
	again := make(chan error, 1)
	go func() { // a receive waits when the handle closes
		_, err := w.q.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Minute})
		again <- err
	}()
	require.Eventually(t, func() bool { return e.requests() == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, w.q.Close(e.ctx))
	require.ErrorIs(t, <-again, layer.ErrClosed)
	require.NoError(t, e.q.Close(e.ctx))
	require.Empty(t, e.rows(kv.PrefixRange(key("wake"))))
	require.Zero(t, e.receipts())
}

// TestSweepClearsTimersOfOtherLanes: a sweep clears the timers of delayed messages that are gone, of whole groups too,
// from which no handle receives. It leaves those of messages that wait.
func TestSweepClearsTimersOfOtherLanes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *layer.Config)
		o      layer.ReceiveOptions
	}{
		"unordered": {func(c *layer.Config) { c.Unordered = true }, layer.ReceiveOptions{Unordered: true}},
		"lanes": {func(c *layer.Config) { c.Facets, c.Views = []string{"state"}, "*; state" },
			layer.ReceiveOptions{Where: layer.Template{"state": "new"}}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnvOf(t, anyEngine, false, c.change)
			send := func(group string) {
				m := layer.Message{Group: group, Delay: time.Second, Headers: map[string]string{"state": "new"}}
				_, err := e.q.Enqueue(e.ctx, m)
				require.NoError(t, err)
			}
			for i := range 20 {
				send(fmt.Sprint("g", i))
				e.clock.advance(2 * time.Second)
				claims, err := e.q.Receive(e.ctx, c.o)
				require.NoError(t, err)
				require.Len(t, claims, 1)
				require.NoError(t, e.q.Ack(e.ctx, claims[0]))
			}
			send("waits")
			report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 20, report.Hints)
			require.Len(t, e.rows(kv.PrefixRange(key("timer"))), 1)
			e.clock.advance(2 * time.Second)
			claims, err := e.q.Receive(e.ctx, c.o)
			require.NoError(t, err)
			require.Len(t, claims, 1)
		})
	}
}

// TestSweepReadsFewRows (trap 7): no transaction of a sweep reads the requests of all handles that wait, nor the
// places of all subscriptions. Here are 1,500 of each. With so many subscriptions the sweep removes only old changes.
func TestSweepReadsFewRows(t *testing.T) {
	const many = 1500
	e := newEnv(t, anyEngine, false)
	e.keepChanges(time.Hour)
	e.enqueue("A", "a1")
	e.write(func(tx kv.Tx) {
		end := key("change", "z")
		for i := range many {
			waits, gone := uuid.New(), uuid.New()
			deadline := e.clock.now().Add(time.Minute).UnixMilli()
			tx.Set(key("request", int64(i+1), waits), tuple.Tuple{"other", int64(1), deadline}.Pack())
			for _, random := range []uuid.UUID{waits, gone} {
				tx.Set(key("wake", random), []byte{1, 0, 0, 0, 0, 0, 0, 0})
			}
			place := tuple.Tuple{uuid.New(), end[len(key()):], int64(0)}
			tx.Set(key("cursor", fmt.Sprint(i)), place.Pack())
		}
	})
	db := &rowsOfEach{DB: e.raw}
	q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(2))
	require.NoError(t, err)
	report, err := q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.LessOrEqual(t, db.most(), int64(1201))
	require.EqualValues(t, many, report.Wakes)
	require.Len(t, e.rows(kv.PrefixRange(key("wake"))), many)
	require.Zero(t, report.Changes)
	e.clock.advance(2 * time.Hour)
	report, err = q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, report.Changes)
	require.NoError(t, q.Close(e.ctx))
}

// TestSweepOfManyOldChanges: one sweep clears all old changes, also if one of them cannot be read.
func TestSweepOfManyOldChanges(t *testing.T) {
	const many = 300
	e := newEnv(t, anyEngine, false)
	e.keepChanges(time.Hour)
	for range many {
		e.enqueue("A", "a")
	}
	rows := e.rows(kv.PrefixRange(key("change")))
	require.Len(t, rows, many)
	e.write(func(tx kv.Tx) { tx.Set(rows[1].Key, []byte{0xff}) })
	e.clock.advance(2 * time.Hour)
	report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.EqualValues(t, many, report.Changes)
	require.Empty(t, e.rows(kv.PrefixRange(key("change"))))
}

// TestSweepOfManyChangesOfAWrongClock: a process whose clock is a year ahead has written more changes than a page of
// the sweep has, and more cannot be read. Once they are old, one sweep clears them, and the later old changes.
func TestSweepOfManyChangesOfAWrongClock(t *testing.T) {
	const many = 450
	e := newEnv(t, anyEngine, false)
	e.keepChanges(time.Hour)
	o := e.options(7)
	o.Now = func() time.Time { return e.clock.now().Add(365 * 24 * time.Hour) }
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(t, err)
	for range many {
		_, err := q.Enqueue(e.ctx, layer.Message{Group: "A"})
		require.NoError(t, err)
	}
	require.NoError(t, q.Close(e.ctx))
	rows := e.rows(kv.PrefixRange(key("change")))
	require.Len(t, rows, many)
	e.write(func(tx kv.Tx) {
		for _, row := range rows[:220] {
			tx.Set(row.Key, []byte{0xff})
		}
	})
	e.enqueue("A", "right")
	sweep := func() int64 {
		report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(t, err)
		return report.Changes
	}
	e.clock.advance(45 * time.Minute)
	require.Zero(t, sweep())
	e.clock.advance(75 * time.Minute)
	e.enqueue("A", "young")
	require.EqualValues(t, many+1, sweep())
	require.Len(t, e.rows(kv.PrefixRange(key("change"))), 1)
	e.check()
}
