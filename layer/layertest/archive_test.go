package layer_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// archivedBodies lists the archive.
func (e *env) archivedBodies(f layer.ArchiveFilter, limit int) []string {
	e.t.Helper()
	var out []string
	o := layer.ArchiveOptions{ArchiveFilter: f, Limit: limit, Bodies: true}
	for {
		page, err := e.calm().Admin().Archive(context.Background(), o)
		require.NoError(e.t, err)
		for _, item := range page.Items {
			require.NoError(e.t, item.Err)
			out = append(out, string(item.Body))
		}
		if page.Next == nil {
			return out
		}
		o.After = page.Next
	}
}

// TestArchiveInOrder: of many workers and groups, whatever the batches, the archive has each message once, and those of a
// group in their order in both listings, also page by page.
func TestArchiveInOrder(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		const groups, each = 5, 40
		for i := range each {
			var msgs []layer.Message
			for g := range groups {
				msgs = append(msgs, layer.Message{Group: fmt.Sprint(g), Body: []byte(fmt.Sprintf("%d-%02d", g, i))})
			}
			_, err := e.q.Enqueue(e.ctx, msgs...)
			require.NoError(e.t, err)
		}
		var wg sync.WaitGroup
		for n := range 3 {
			q := e.handle(uint64(10 + n))
			wg.Go(func() {
				for {
					claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 3 + n, MaxGroups: 1, Lease: layer.MaxLease})
					if err != nil {
						e.t.Error(err)
						return
					}
					if len(claims) == 0 {
						if s, err := q.Stats(e.ctx, layer.StatsOptions{}); err != nil || s.Depth == 0 {
							return
						}
						continue
					}
					c := claims[0]
					if err := q.AckItems(e.ctx, c, []layer.ID{c.Items[0].ID}); err != nil {
						e.t.Error(err)
						return
					}
					if len(c.Items) > 0 {
						if err := q.Ack(e.ctx, c); err != nil {
							e.t.Error(err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		all := e.archivedBodies(layer.ArchiveFilter{}, 7)
		require.Len(e.t, all, groups*each)
		for g := range groups {
			var want, got []string
			for i := range each {
				want = append(want, fmt.Sprintf("%d-%02d", g, i))
			}
			for _, body := range all {
				if strings.HasPrefix(body, fmt.Sprint(g, "-")) {
					got = append(got, body)
				}
			}
			require.Equal(e.t, want, got, "in the order of completion")
			require.Equal(e.t, want, e.archivedBodies(layer.ArchiveFilter{Group: ptr(fmt.Sprint(g))}, 7))
		}
	})
}

// TestArchiveOfTransactions: several acks and takes of a group in one transaction each leave their own entry, and all of it
// is swept.
func TestArchiveOfTransactions(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		c := holding(4, 2)(e).(*layer.Claim)
		require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error {
			if err := e.q.AckItemsTx(e.ctx, tx, c, []layer.ID{c.Items[0].ID}); err != nil {
				return err
			}
			if err := e.q.AckTx(e.ctx, tx, c); err != nil {
				return err
			}
			for range 2 {
				if _, _, err := e.q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{}); err != nil {
					return err
				}
			}
			return nil
		}))
		require.Len(e.t, e.archivedBodies(layer.ArchiveFilter{}, 0), 4)
		require.Len(e.t, e.rows(kv.PrefixRange(key("archived"))), 4)
		e.check()
		e.clock.advance(time.Hour)
		_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(e.t, err)
		require.Empty(e.t, e.rows(kv.PrefixRange(key("archive"))))
		require.Empty(e.t, e.rows(kv.PrefixRange(key("archived"))))
	})
}

// TestArchiveBounds: a claim has so few large items that its ack can archive them, the ack of one whose items are not
// known to it works too, and a stopped replay goes on where it was, with each message once.
func TestArchiveBounds(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		const n = 130
		for i := range n {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: append([]byte(fmt.Sprintf("%03d", i)), bytes.Repeat([]byte("x"), 60_000)...)})
			require.NoError(e.t, err)
		}
		for got := 0; got < n; {
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: n, MaxBytes: 100 << 20, Lease: layer.MaxLease})
			require.NoError(e.t, err)
			require.Len(e.t, claims, 1)
			require.LessOrEqual(e.t, len(claims[0].Items), 70)
			got += len(claims[0].Items)
			require.NoError(e.t, e.q.Ack(e.ctx, &layer.Claim{Group: "A", Token: claims[0].Token}))
		}
		var after *layer.ID
		done, runs := int64(0), 0
		for ; done < n; runs++ {
			ctx, cancel := context.WithCancel(e.ctx)
			report, err := e.q.Admin().Replay(ctx, groupA, layer.ReplayOptions{After: after, Progress: func(layer.ReplayReport) { cancel() }})
			cancel()
			if err != nil {
				require.ErrorIs(e.t, err, context.Canceled)
			}
			done += report.Done
			after = report.Last
		}
		require.Greater(e.t, runs, 4, "bounded steps")
		rows := e.rows(kv.PrefixRange(key("item")))
		require.EqualValues(e.t, n, len(rows))
		for i, row := range rows {
			require.True(e.t, bytes.Contains(row.Value, []byte(fmt.Sprintf("%03dxxx", i))), "the %d-th item", i)
		}
	})
}

// TestReplayByPortions: a replay with a limit continues behind the item at which the replay before has ended, until there
// is no more. It repeats each item once, in order, whatever the commits.
func TestReplayByPortions(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		const n = 120
		want := make([]string, n)
		for i := range want {
			want[i] = fmt.Sprintf("%03d", i)
		}
		for from := 0; from < n; from += 30 { // an entry each
			if from == 60 {
				e.clock.advance(time.Minute)
			}
			for _, group := range []string{"A", "B"} {
				e.enqueue(group, want[from:from+30]...)
				require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 30)))
			}
		}
		replay := func(f layer.ArchiveFilter, o layer.ReplayOptions) (layer.ReplayReport, error) {
			return e.q.Admin().Replay(e.ctx, f, o)
		}
		all := func(f layer.ArchiveFilter, limit int) (done int64, steps int) {
			o := layer.ReplayOptions{Limit: limit}
			for {
				report, err := replay(f, o)
				require.NoError(e.t, err)
				done += report.Done
				steps++
				if !report.More {
					return done, steps
				}
				require.NotEqual(e.t, o.After, report.Last, "it gets on")
				o.After = report.Last
			}
		}
		done, steps := all(groupA, 0)
		require.EqualValues(e.t, n, done)
		require.Equal(e.t, 1, steps)
		require.Equal(e.t, want, e.all("A"))
		require.Empty(e.t, e.all("B"))
		_, steps = all(groupA, 40)
		require.GreaterOrEqual(e.t, steps, 3)
		require.Equal(e.t, append(slices.Clone(want), want...), e.all("A"))

		// The later half, of which the first steps of the group find nothing.
		done, _ = all(layer.ArchiveFilter{Group: ptr("B"), From: e.clock.now()}, 0)
		require.EqualValues(e.t, n/2, done)
		require.Equal(e.t, want[60:], e.all("B"))
		done, _ = all(everything, 0)
		require.EqualValues(e.t, 2*n, done)
		require.Len(e.t, e.all("B"), n/2+n)

		_, err := replay(groupA, layer.ReplayOptions{After: &layer.ID{Group: "B", Random: uuid.New()}})
		require.ErrorIs(e.t, err, layer.ErrOptions)
		var limit *layer.LimitError
		_, err = replay(groupA, layer.ReplayOptions{Limit: -1})
		require.ErrorAs(e.t, err, &limit)
		_, err = replay(groupA, layer.ReplayOptions{After: &layer.ID{Group: "A"}})
		require.ErrorIs(e.t, err, layer.ErrInvalidID)
		report, err := replay(layer.ArchiveFilter{Group: ptr("none")}, layer.ReplayOptions{})
		require.NoError(e.t, err)
		require.Zero(e.t, report)
	})
}

// TestReplayByPortionsBesideWorkers (G3): if a worker finishes the replayed messages between the portions of a replay,
// Before keeps them out of the next portion.
func TestReplayByPortionsBesideWorkers(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		const n = 7
		finish := func() {
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
			require.NoError(e.t, err)
			for _, c := range claims {
				require.NoError(e.t, e.q.Ack(e.ctx, c))
			}
		}
		e.enqueue("A", make([]string, n)...)
		finish()
		e.clock.advance(time.Second)
		begun, done := e.clock.now(), int64(0)
		o := layer.ReplayOptions{Limit: 3}
		for more := true; more; {
			report, err := e.q.Admin().Replay(e.ctx, layer.ArchiveFilter{Before: begun}, o)
			require.NoError(e.t, err)
			done, o.After, more = done+report.Done, report.Last, report.More
			require.LessOrEqual(e.t, done, int64(n))
			finish()
		}
		require.EqualValues(e.t, n, done)
	})
}

// TestReplayAmidSweep (G3): an entry of which a replay has done a part, and which a sweep then clears, takes nothing of the next
// one with it.
func TestReplayAmidSweep(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Archive = time.Minute })
		const n = 60 // more than one step
		want := make([]string, n)
		for i := range want {
			want[i] = fmt.Sprintf("%02d", i)
		}
		for _, group := range []string{"A", "B"} {
			e.enqueue(group, want...)
			require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, n)))
			e.clock.advance(30 * time.Second)
		}
		swept := false
		report, err := e.q.Admin().Replay(e.ctx, everything, layer.ReplayOptions{Progress: func(layer.ReplayReport) {
			if swept {
				return
			}
			swept = true
			e.clock.advance(15 * time.Second)
			_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(e.t, err)
		}})
		require.NoError(e.t, err)
		require.EqualValues(e.t, len(e.all("A"))+n, report.Done)
		require.Less(e.t, len(e.all("A")), n)
		require.Equal(e.t, want, e.all("B"))
	})
}

// TestReplayAmidAck: an item that is finished after the replay of a group has begun is not replayed. This holds also if
// it came before the items that were finished by then, and for a replay that needs several transactions. Guard
// replay-end.
func TestReplayAmidAck(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		for group, bodies := range map[string][]string{ // more than two steps: of 50 items, or of 1 MiB
			"A": make([]string, 120), "B": slices.Repeat([]string{strings.Repeat("x", 400_000)}, 9),
		} {
			n := len(bodies)
			e.enqueue(group, bodies...)
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Group: &group, Max: n, MaxBytes: 4 << 20})
			require.NoError(e.t, err)
			c := claims[0]
			require.Len(e.t, c.Items, n)
			kept := c.Items[n-2].ID
			var ids []layer.ID
			for _, item := range c.Items {
				if item.ID != kept {
					ids = append(ids, item.ID)
				}
			}
			require.NoError(e.t, e.q.AckItems(e.ctx, c, ids))
			acked, f := false, layer.ArchiveFilter{Group: &group}
			report, err := e.q.Admin().Replay(e.ctx, f, layer.ReplayOptions{Progress: func(layer.ReplayReport) {
				if !acked {
					acked = true
					require.NoError(e.t, e.q.AckItems(e.ctx, c, []layer.ID{kept}))
				}
			}})
			require.NoError(e.t, err)
			require.True(e.t, acked)
			require.EqualValues(e.t, n-1, report.Done)
			require.Len(e.t, e.rows(kv.PrefixRange(key("item", group))), n-1)
			require.Len(e.t, e.archivedBodies(f, 0), n)
		}
	})
}

// TestReplayOfUnknownCommit: what was replayed by a commit of unknown outcome is not replayed again.
func TestReplayOfUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		e := newEnv(t, anyEngine, false)
		archivedItems(3)(e)
		e.plan.ForceNext(kind)
		_, err := e.q.Admin().Replay(e.ctx, groupA, layer.ReplayOptions{})
		require.NoError(t, err)
		require.Len(t, e.all("A"), 3)
	}
}

// TestArchiveOptions: what contradicts itself or lies outside the limits is refused, with the value and the range.
func TestArchiveOptions(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	now := e.clock.now()
	var limit *layer.LimitError
	for _, d := range []time.Duration{-1, 10*365*24*time.Hour + 1} {
		_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Archive = d })
		require.ErrorAs(t, err, &limit)
		require.Equal(t, "archive", limit.What)
	}
	for _, n := range []int{-1, layer.MaxBatch + 1} {
		_, err := e.q.Admin().Archive(e.ctx, layer.ArchiveOptions{Limit: n})
		require.ErrorAs(t, err, &limit)
	}
	_, err := e.q.Admin().Replay(e.ctx, layer.ArchiveFilter{All: true}, layer.ReplayOptions{Limit: -1})
	require.ErrorAs(t, err, &limit)
	_, err = e.q.Admin().Archive(e.ctx, layer.ArchiveOptions{ArchiveFilter: layer.ArchiveFilter{From: now, Before: now}})
	require.ErrorIs(t, err, layer.ErrOptions)
	other := e.enqueue("B", "b")[0]
	_, err = e.q.Admin().Replay(e.ctx, groupA, layer.ReplayOptions{After: &other})
	require.ErrorIs(t, err, layer.ErrOptions)
	_, err = e.q.Admin().Archive(e.ctx, layer.ArchiveOptions{After: &layer.ID{}})
	require.ErrorIs(t, err, layer.ErrInvalidID)
	_, err = e.q.Admin().Archive(e.ctx, layer.ArchiveOptions{ArchiveFilter: layer.ArchiveFilter{Group: ptr("\xff")}})
	require.ErrorIs(t, err, layer.ErrInvalidUTF8)
	require.NoError(t, e.q.Close(e.ctx))
	_, err = e.q.Admin().Archive(e.ctx, layer.ArchiveOptions{})
	require.ErrorIs(t, err, layer.ErrClosed)
}

// TestArchiveByTime: a listing that begins at some time finds all that was finished from then on, without reading what was
// before.
func TestArchiveByTime(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.Archive = 24 * time.Hour })
	var want []string
	begin := e.clock.now()
	for i := range 120 {
		e.enqueue("A", fmt.Sprint(i))
		require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		want = append(want, fmt.Sprint(i))
		e.clock.advance(time.Minute)
	}
	for _, i := range []int{0, 1, 59, 118, 119} {
		at := begin.Add(time.Duration(i) * time.Minute)
		require.Equal(t, want[i:], e.archivedBodies(layer.ArchiveFilter{From: at}, 0))
		require.Equal(t, want[i:i+1], e.archivedBodies(layer.ArchiveFilter{From: at, Before: at.Add(time.Minute)}, 0))
		report, err := e.q.Admin().Replay(e.ctx, layer.ArchiveFilter{From: at}, layer.ReplayOptions{DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 120-i, report.Done)
		require.LessOrEqual(t, report.Scanned, report.Done+2)
	}
	require.Empty(t, e.archivedBodies(layer.ArchiveFilter{From: e.clock.now().Add(time.Hour)}, 0))
	require.Empty(t, e.archivedBodies(layer.ArchiveFilter{Before: begin}, 0))
}

// TestReplayOfFullHeaders: a replayed message whose headers have no room for ReplayHeader can be edited, and enqueued
// again.
func TestReplayOfFullHeaders(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.configured(layer.Config{Archive: time.Hour})
	full := map[string]string{"h": strings.Repeat("x", layer.MaxHeadersSize-1)}
	_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: full})
	require.NoError(t, err)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.NoError(t, q.Ack(e.ctx, claims[0]))
	_, err = q.Admin().Replay(e.ctx, layer.ArchiveFilter{All: true}, layer.ReplayOptions{})
	require.NoError(t, err)
	items, err := q.Peek(e.ctx, "A", 1, nil)
	require.NoError(t, err)
	require.Contains(t, items[0].Headers, layer.ReplayHeader)
	require.NoError(t, q.Admin().Edit(e.ctx, items[0].ID, func(m *layer.Message) error {
		m.Body = []byte("new")
		return nil
	}))
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "B", Headers: items[0].Headers})
	require.NoError(t, err)
	items[0].Headers[layer.ReplayHeader] = full["h"]
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "B", Headers: items[0].Headers})
	require.ErrorIs(t, err, layer.ErrLimit)
}

// TestUnreadableArchivedItem (bounded calls): an archived item cannot be read, wherever it is among others. A list page
// by page and a replay come to their end, and have each other item once.
func TestUnreadableArchivedItem(t *testing.T) {
	const n = 5
	for spoilt := range n {
		t.Run(fmt.Sprint(spoilt), func(t *testing.T) {
			e := newEnvOf(t, inMemory, false, func(c *layer.Config) { c.Archive = time.Hour })
			var ids []layer.ID
			for i := range n {
				body := bytes.Repeat([]byte{byte('0' + i)}, 600<<10) // so that not all fit in one step of a replay
				sent, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: body})
				require.NoError(t, err)
				ids = append(ids, sent[0].ID)
				require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
			}
			mend := e.spoil(key("archive", "A", ids[spoilt].Index, ids[spoilt].Random))
			for limit := 1; limit <= n; limit++ {
				seen := map[layer.ID]int{}
				pages := 0
				for item, err := range e.q.Admin().AllArchived(e.ctx, layer.ArchiveOptions{Limit: limit}) {
					if pages++; err != nil {
						require.ErrorIs(t, err, layer.ErrCorrupt)
						require.Equal(t, 1, limit, "a page has nothing else")
						break
					}
					require.Less(t, pages, 3*n)
					seen[item.ID]++
				}
				for i, id := range ids {
					if i != spoilt && (limit > 1 || i < spoilt) {
						require.Equal(t, 1, seen[id], "limit %d, item %d", limit, i)
					}
				}
			}
			all := layer.ArchiveFilter{Before: e.clock.now().Add(time.Second)}
			report, err := e.q.Admin().Replay(e.ctx, all, layer.ReplayOptions{})
			require.NoError(t, err)
			require.EqualValues(t, n-1, report.Done)
			require.EqualValues(t, 1, report.Unreadable)
			rest, err := e.q.Admin().Replay(e.ctx, all, layer.ReplayOptions{After: report.Last})
			require.NoError(t, err)
			require.Zero(t, rest.Done)
			items, err := takeFrom(e.ctx, e.q, n, layer.TakeOptions{})
			require.NoError(t, err)
			got := len(items)
			for len(items) > 0 {
				items, err = takeFrom(e.ctx, e.q, n, layer.TakeOptions{})
				require.NoError(t, err)
				got += len(items)
			}
			require.Equal(t, n-1, got)
			mend()
		})
	}
}
