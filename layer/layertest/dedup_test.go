package layer_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// sendAs enqueues one message with a dedup id.
func (e *env) sendAs(q *layer.Queue, group, id string) layer.Sent {
	e.t.Helper()
	sent, err := q.Enqueue(e.ctx, layer.Message{Group: group, Body: []byte(id), DedupID: id})
	require.NoError(e.t, err)
	require.Len(e.t, sent, 1)
	return sent[0]
}

func enqueueAs(group, id string) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: group, Body: []byte(id), DedupID: id})
		return err
	}
}

// remembering has the message with that dedup id in group A, and what setup makes.
func remembering(id string, setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		e.sendAs(e.q, "A", id)
		return setup(e)
	}
}

// whilePending is setup in a queue that remembers what is in it.
func whilePending(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		e.configure(func(c *layer.Config) { c.DedupForPending = true })
		return setup(e)
	}
}

// TestDedupUnderRace: of many producers that send the same ids at the same time, through handles of their own and
// coalesced, each id is accepted once, and all are told the same message.
func TestDedupUnderRace(t *testing.T) {
	onEngines(t, func(e *env) {
		const ids, senders = 20, 6
		told := make([][]layer.Sent, senders)
		var wg sync.WaitGroup
		shared := e.handle(2)
		for s := range senders {
			q := shared
			if s%2 == 0 {
				q = e.handle(uint64(10 + s))
			}
			wg.Go(func() {
				var each sync.WaitGroup
				told[s] = make([]layer.Sent, ids)
				for i := range ids {
					each.Go(func() {
						sent, err := q.Enqueue(e.ctx, layer.Message{Group: fmt.Sprint("g", i%3), Body: []byte{byte(i)}, DedupID: fmt.Sprint(i)})
						if err != nil {
							e.t.Error(err)
							return
						}
						told[s][i] = sent[0]
					})
				}
				each.Wait()
			})
		}
		wg.Wait()
		for i := range ids {
			accepted := 0
			for s := range senders {
				require.Equal(e.t, told[0][i].ID, told[s][i].ID)
				if !told[s][i].Duplicate {
					accepted++
				}
			}
			require.Equal(e.t, 1, accepted, "id %d", i)
		}
		require.Len(e.t, e.rows(kv.PrefixRange(key("item"))), ids)
	})
}

// TestDedupOfUnknownCommit: a commit of unknown outcome does not change the results for the senders. A message is not a
// duplicate of itself, and a duplicate does not count as accepted.
func TestDedupOfUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		e := newEnv(t, anyEngine, false)
		e.plan.ForceNext(kind)
		first := e.sendAs(e.q, "A", "x")
		require.False(t, first.Duplicate)
		require.Equal(t, first.ID, nth(e, 1))
		e.plan.ForceNext(kind)
		sent, err := e.q.Enqueue(e.ctx,
			layer.Message{Group: "B", Body: []byte("y"), DedupID: "y"},
			layer.Message{Group: "B", Body: []byte("x"), DedupID: "x"},
			layer.Message{Group: "B", Body: []byte("z")},
			layer.Message{Group: "A", Body: []byte("y"), DedupID: "y"})
		require.NoError(t, err)
		require.Equal(t, []bool{false, true, false, true}, []bool{sent[0].Duplicate, sent[1].Duplicate, sent[2].Duplicate, sent[3].Duplicate})
		require.Equal(t, first.ID, sent[1].ID)
		require.Equal(t, sent[0].ID, sent[3].ID)
		require.Equal(t, []string{"y", "z"}, e.all("B"))
	}
}

// TestDedupInOwnTransaction: a transaction sees what it has enqueued itself; what it does not commit is not remembered.
func TestDedupInOwnTransaction(t *testing.T) {
	onEngines(t, func(e *env) {
		for _, pending := range []bool{false, true} {
			e.configure(func(c *layer.Config) { c.DedupForPending = pending })
			e.clock.advance(time.Second)
			id := fmt.Sprint(pending)
			tx, err := e.raw.Begin(kv.TxOptions{})
			require.NoError(e.t, err)
			calm := e.calm()
			m := layer.Message{Group: "A", Body: []byte(id), DedupID: id}
			sent, err := calm.EnqueueTx(e.ctx, tx, m)
			require.NoError(e.t, err)
			again, err := calm.EnqueueTx(e.ctx, tx, m)
			require.NoError(e.t, err)
			require.Equal(e.t, []layer.Sent{{ID: sent[0].ID, Duplicate: true}}, again)
			tx.Cancel()
			require.False(e.t, e.sendAs(e.q, "A", id).Duplicate)
		}
	})
}

// TestDuplicateWritesOnlyItsCount: not even a receipt.
func TestDuplicateWritesOnlyItsCount(t *testing.T) {
	e, r := recorded(t)
	e.sendAs(e.q, "A", "x")
	before := r.Counters()
	require.True(t, e.sendAs(e.q, "B", "x").Duplicate)
	require.EqualValues(t, 1, r.Counters().Sub(before).Mutations, "the counter of Stats.Duplicates")
}

// TestDedupBudget: a message with a dedup id costs one read and one write more than one without.
func TestDedupBudget(t *testing.T) {
	type costs struct{ without, with record.Counters }
	cost := unhurried(func() (both costs) {
		e, r := recorded(t)
		cost := func(ids ...string) record.Counters {
			msgs := make([]layer.Message, len(ids))
			for i, id := range ids {
				msgs[i] = layer.Message{Group: "A", DedupID: id}
			}
			before := r.Counters()
			_, err := e.q.Enqueue(e.ctx, msgs...)
			require.NoError(t, err)
			return r.Counters().Sub(before)
		}
		cost("") // so that the next ones clear a receipt
		return costs{cost("", "", ""), cost("x", "y", "z")}
	})
	require.EqualValues(t, 3, cost.with.KeyReads-cost.without.KeyReads)
	require.EqualValues(t, 3, cost.with.Mutations-cost.without.Mutations)
	require.Equal(t, cost.without.RangeReads, cost.with.RangeReads)
}

// TestSweepOfDedup: a sweep clears exactly the entries that make no message a duplicate any more: their time is over,
// or their message is gone. A sweep with Every continues where the last one ended.
func TestSweepOfDedup(t *testing.T) {
	onEngines(t, func(e *env) {
		calm := e.calm()
		sweep := func(every time.Duration) layer.SweepReport {
			report, err := calm.Admin().Sweep(e.ctx, layer.SweepOptions{Every: every})
			require.NoError(e.t, err)
			return report
		}
		entries := func() int { return len(e.rows(kv.PrefixRange(key("dedup")))) }
		for i := range 450 {
			e.sendAs(calm, "A", fmt.Sprintf("old%03d", i))
		}
		const slack = time.Minute // for clocks that differ
		e.clock.advance(5*time.Minute + slack - time.Second)
		e.sendAs(calm, "A", "young")
		require.Zero(e.t, sweep(0).Dedup)
		require.Equal(e.t, 451, entries())
		e.clock.advance(time.Second)
		require.EqualValues(e.t, 450, sweep(time.Second).Dedup)
		require.True(e.t, e.sendAs(calm, "A", "young").Duplicate)
		e.configure(func(c *layer.Config) { c.DedupForPending = true })
		e.clock.advance(time.Second)
		for _, group := range []string{"waits", "acked", "dead"} {
			e.sendAs(calm, group, group)
		}
		e.clock.advance(5*time.Minute + slack)
		for _, group := range []string{"acked", "dead"} {
			claims, err := calm.Receive(e.ctx, layer.ReceiveOptions{Group: &group})
			require.NoError(e.t, err)
			if group == "dead" {
				require.NoError(e.t, calm.Nack(e.ctx, claims[0], layer.NackOptions{Reject: "no"}))
			} else {
				require.NoError(e.t, calm.Ack(e.ctx, claims[0]))
			}
		}
		require.EqualValues(e.t, 2, sweep(time.Second).Dedup) // "young" and "acked"
		require.Equal(e.t, 2, entries())
		require.True(e.t, e.sendAs(calm, "B", "waits").Duplicate)
		require.True(e.t, e.sendAs(calm, "B", "dead").Duplicate)
		require.False(e.t, e.sendAs(calm, "B", "acked").Duplicate)
	})
}

// TestSweepOfDedupGoesOn: one of many sweeps looks at a bounded number of entries that are still good.
func TestSweepOfDedupGoesOn(t *testing.T) {
	t.Parallel()
	e := newEnv(t, anyEngine, false)
	const n = 101_000
	random := e.sendAs(e.q, "A", "x").ID
	e.clock.advance(5 * time.Minute)
	entry := func(after time.Duration, clock int64) []byte {
		return tuple.Tuple{"A", random.Index, random.Random, e.clock.now().Add(after).UnixMilli(), clock}.Pack()
	}
	// A good entry ends within the window. A later end is not believed: such an entry is over when the versions have
	// jumped far enough, as they do at each recovery of a cluster.
	good := entry(4*time.Minute, random.Index+5*time.Minute.Microseconds())
	over := entry(-time.Minute, random.Index)
	for at := 0; at < n; at += 1000 {
		e.write(func(tx kv.Tx) {
			for i := at; i < at+1000; i++ {
				value := good
				if i%1000 == 999 {
					value = over
				}
				tx.Set(key("dedup", "queue", fmt.Sprintf("%06d", i)), value)
			}
		})
	}
	cleared := int64(0)
	for i, want := range []int64{50, 50, 1, 0} {
		report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{Every: time.Second})
		require.NoError(t, err)
		require.Equal(t, want, report.Dedup, "sweep %d", i)
		cleared += report.Dedup
		e.clock.advance(time.Second)
	}
	require.EqualValues(t, 101, cleared)
	report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.Greater(t, report.Keys, int64(n-200), "the command looks at all of them")
}

// TestSweepByAClockAhead: a sweep by a clock that is up to a minute ahead ends no dedup window early (G3).
func TestSweepByAClockAhead(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	first := e.sendAs(e.q, "A", "x")
	ahead := e.options(2)
	ahead.Now = func() time.Time { return e.clock.now().Add(time.Minute) }
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, ahead)
	require.NoError(t, err)
	e.clock.advance(5*time.Minute - time.Millisecond)
	report, err := q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.Zero(t, report.Dedup)
	again := e.sendAs(e.q, "A", "x")
	require.True(t, again.Duplicate)
	require.Equal(t, first.ID, again.ID)
	e.clock.advance(time.Millisecond)
	report, err = q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, report.Dedup)
	require.False(t, e.sendAs(e.q, "A", "x").Duplicate)
}

// TestSweepOfPurges: the note of a purge stays for as long as an entry may ask for it.
func TestSweepOfPurges(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.DedupWindow = 30 * 24 * time.Hour })
	e.sendAs(e.q, "A", "x")
	require.NoError(t, purgeGroup("A", false)(e, nil, nil))
	e.clock.advance(30*24*time.Hour - time.Second)
	report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.Zero(t, report.Purges)
	require.False(t, e.sendAs(e.q, "A", "x").Duplicate)
	e.clock.advance(25 * time.Hour)
	report, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, report.Purges)
}

// TestDedupIDLimits: an invalid id is refused. The error names the allowed values, and nothing is enqueued.
func TestDedupIDLimits(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	_, err := e.q.Enqueue(e.ctx, layer.Message{Body: []byte("1")}, layer.Message{DedupID: strings.Repeat("x", layer.MaxDedupIDSize+1)})
	var limit *layer.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, layer.LimitError{What: "dedup id", Unit: "bytes", Got: layer.MaxDedupIDSize + 1, Min: 1, Max: layer.MaxDedupIDSize}, *limit)
	_, err = e.q.Enqueue(e.ctx, layer.Message{DedupID: "\xff"})
	require.ErrorIs(t, err, layer.ErrInvalidUTF8)
	require.Empty(t, e.all(""))
	require.False(t, e.sendAs(e.q, "", strings.Repeat("x", layer.MaxDedupIDSize)).Duplicate)
	for _, window := range []time.Duration{time.Second - time.Millisecond, 30*24*time.Hour + time.Millisecond} {
		_, _, err = e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.DedupWindow = window })
		require.ErrorAs(t, err, &limit)
		require.Equal(t, "dedup_window", limit.What)
	}
}

// TestEditOfDedupID: neither an edit nor a redrive changes the dedup id of a message.
func TestEditOfDedupID(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	sent := e.sendAs(e.q, "A", "x")
	require.ErrorIs(t, e.q.Admin().Edit(e.ctx, sent.ID, func(m *layer.Message) error { m.DedupID = "y"; return nil }), layer.ErrOptions)
	require.NoError(t, e.q.Admin().Edit(e.ctx, sent.ID, func(m *layer.Message) error { m.Body = []byte("new"); return nil }))
	items, err := e.q.Peek(e.ctx, "A", 1, nil)
	require.NoError(t, err)
	require.Equal(t, "x", items[0].DedupID)
	require.NoError(t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Reject: "no"}))
	change := func(_ layer.DeadLetter, m *layer.Message) error { m.DedupID = ""; return nil }
	require.ErrorIs(t, e.q.Once(e.ctx, func(tx kv.Tx) error {
		return e.q.Admin().RedriveTx(e.ctx, tx, layer.RedriveOptions{Edit: change}, sent.ID)
	}), layer.ErrOptions)
}

// TestLargestBatch: 1,000 messages of the longest group and dedup id fit into a transaction, or are refused before it.
func TestLargestBatch(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.DedupInGroup = true })
	batch := func(group string, size int) []layer.Message {
		msgs := make([]layer.Message, layer.MaxBatch)
		for i := range msgs {
			msgs[i] = layer.Message{Group: group, Body: make([]byte, size), DedupID: fmt.Sprintf("%0*d", layer.MaxDedupIDSize, i)}
		}
		return msgs
	}
	sent, err := e.q.Enqueue(e.ctx, batch("A", 4096)...)
	require.NoError(t, err)
	require.Len(t, sent, layer.MaxBatch)
	_, err = e.q.Enqueue(e.ctx, batch(strings.Repeat("g", layer.MaxGroupSize), 4096)...)
	var limit *layer.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, "batch with its keys", limit.What)
}
