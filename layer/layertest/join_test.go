package layer_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

var joinKinds = map[string]layer.Config{
	"plain":       {},
	"round robin": {RoundRobin: true},
	"fair":        {Fair: true, Shards: 4},
	"retained":    {Retention: time.Hour, DeadLetterExpired: true},
	"retroactive": {RetroactiveDelay: true},
	"archive":     {Archive: time.Hour},
	"in turn":     {LeasePerItem: true},
}

// joiner sends messages and takes them out of a queue of one kind.
type joiner struct {
	*env
	q  *layer.Queue
	do func(j *joiner) []string // one call: the bodies that it got
}

// joinWays are the calls that make messages join.
var joinWays = map[string]func(j *joiner) []string{
	"receive": func(j *joiner) (got []string) {
		j.t.Helper()
		claims, err := j.q.Receive(j.ctx, layer.ReceiveOptions{Max: 10})
		require.NoError(j.t, err)
		for _, c := range claims {
			require.Equal(j.t, "A", c.Group, "nothing is delivered from a waiting group")
			got = append(got, bodies(c.Items)...)
			require.NoError(j.t, j.q.Ack(j.ctx, c))
		}
		return got
	},
	"take": func(j *joiner) []string {
		items, err := takeFrom(j.ctx, j.q, 10, layer.TakeOptions{})
		require.NoError(j.t, err)
		for _, item := range items {
			require.Equal(j.t, "A", item.ID.Group)
		}
		return bodies(items)
	},
}

// send enqueues a message of group A; a delay makes it join when it is due.
func (j *joiner) send(body string, delay time.Duration) layer.ID {
	j.t.Helper()
	sent, err := j.q.Enqueue(j.ctx, layer.Message{
		Group: "A", Body: []byte(body), Delay: delay, JoinWhenDue: delay > 0,
	})
	require.NoError(j.t, err)
	return sent[0].ID
}

// drain calls until nothing comes any more.
func (j *joiner) drain() (got []string) {
	j.t.Helper()
	for vain := 0; vain < 3; {
		if more := j.do(j); len(more) > 0 {
			got, vain = append(got, more...), 0
		} else {
			vain++
		}
	}
	return got
}

// onJoiners runs a test in each kind of queue, with each call that makes messages join.
func onJoiners(t *testing.T, test func(j *joiner)) {
	for name, kind := range joinKinds {
		for way, do := range joinWays {
			t.Run(name+"/"+way, func(t *testing.T) {
				onEngines(t, func(e *env) {
					test(&joiner{env: e, q: e.configured(kind), do: do})
				})
			})
		}
	}
}

// TestJoinWhenDue: a message that joins when it is due delays no other message. When it is due it goes to the tail of
// its group, and messages join in the order of their times (G1).
func TestJoinWhenDue(t *testing.T) {
	onJoiners(t, func(j *joiner) {
		j.send("1", 0)
		late := j.send("late", 10*time.Second)
		require.True(j.t, strings.HasPrefix(late.Group, "A (until 20"), late.Group)
		j.send("sooner", 5*time.Second)
		j.send("2", 0)
		require.Equal(j.t, []string{"1", "2"}, j.drain())
		j.clock.advance(4 * time.Second)
		require.Empty(j.t, j.drain())
		j.send("3", 0)
		j.clock.advance(7 * time.Second)
		j.send("4", 0)
		require.Equal(j.t, []string{"3", "4", "sooner", "late"}, j.drain())
		require.Empty(j.t, j.all(late.Group))
	})
}

// TestJoinInOrder: many messages join in the order of their times, though receives meet them in any order, and those of
// the same time in the order of their enqueues (G1).
func TestJoinInOrder(t *testing.T) {
	onJoiners(t, func(j *joiner) {
		const times, each = 12, 3
		var want []string
		for n := range times * each {
			at := n * 5 % times // 5 and 12 have no common divisor
			j.send(fmt.Sprintf("%02d", at), time.Duration(at+1)*time.Second)
			want = append(want, fmt.Sprintf("%02d", n/each))
		}
		j.clock.advance(time.Minute)
		require.Equal(j.t, want, j.drain())
	})
}

// TestJoinKeeps: a message that joins has the body, the headers and the random that it had, also if its body is large,
// and its dedup id is known under the new id.
func TestJoinKeeps(t *testing.T) {
	for name, c := range map[string]layer.Config{
		"in the queue": {DedupForPending: true}, "in the group": {DedupForPending: true, DedupInGroup: true},
		"in a window": {DedupWindow: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(e *env) {
				q := e.configured(c)
				message := func() layer.Message { // a new one for each call: the suite may take the memory back
					return layer.Message{
						Group: "A", Body: bytes.Repeat([]byte("body "), 50_000), Headers: map[string]string{"a": "b"},
						DedupID: "once", Delay: time.Second, JoinWhenDue: true,
					}
				}
				first := func() layer.Sent {
					e.t.Helper()
					sent, err := q.Enqueue(e.ctx, message())
					require.NoError(e.t, err)
					return sent[0]
				}
				id := first().ID
				require.Equal(e.t, layer.Sent{ID: id, Duplicate: true}, first())
				e.clock.advance(2 * time.Second)
				c := e.on(q).receive(q, 1)
				for c == nil {
					c = e.on(q).receive(q, 1)
				}
				item, m := c.Items[0], message()
				require.Equal(e.t, "A", item.ID.Group)
				require.Equal(e.t, id.Random, item.ID.Random)
				require.Equal(e.t, m.Body, item.Body)
				require.Equal(e.t, m.Headers, item.Headers)
				require.Equal(e.t, "once", item.DedupID)
				require.Zero(e.t, item.Attempts)
				require.Equal(e.t, layer.Sent{ID: item.ID, Duplicate: true}, first())
				require.NoError(e.t, q.Ack(e.ctx, c))
			})
		})
	}
}

// TestJoinOperated: what an operator may do with a message that waits to join is the same as with any message that
// waits. A dead letter of such a message returns to its group.
func TestJoinOperated(t *testing.T) {
	onEngines(t, func(e *env) {
		j := &joiner{env: e, q: e.q, do: joinWays["receive"]}
		admin := e.q.Admin()
		cancelled := j.send("cancelled", time.Hour)
		require.NoError(e.t, admin.Cancel(e.ctx, cancelled))
		edited := j.send("edited", time.Hour)
		require.NoError(e.t, admin.Edit(e.ctx, edited, func(m *layer.Message) error {
			m.Body = []byte("edited since")
			return nil
		}))
		require.ErrorIs(e.t, admin.Edit(e.ctx, edited, func(m *layer.Message) error {
			m.JoinWhenDue = true
			return nil
		}), layer.ErrOptions)
		require.ErrorIs(e.t, e.q.Reschedule(e.ctx, edited, e.clock.now().Add(time.Minute)), layer.ErrOptions)
		require.NoError(e.t, admin.RetryNow(e.ctx, edited.Group, layer.RetryOptions{}))
		require.Equal(e.t, []string{"edited since"}, j.drain(), "due at once")
		for _, o := range []layer.RedriveOptions{{}, {ToTail: true}} {
			skipped := j.send("skipped", time.Hour)
			_, err := admin.Skip(e.ctx, skipped.Group, layer.SkipOptions{})
			require.NoError(e.t, err)
			e.clock.advance(2 * time.Hour)
			require.Empty(e.t, j.drain())
			_, err = admin.Redrive(e.ctx, layer.DeadFilter{All: true}, o)
			require.NoError(e.t, err)
			require.Equal(e.t, []string{"skipped"}, j.drain(), "%+v", o)
		}
		paused := j.send("paused", time.Second)
		next := j.send("next", 2*time.Second)
		require.NotEqual(e.t, paused.Group, next.Group)
		_, err := admin.PauseGroup(e.ctx, paused.Group, layer.PauseOptions{})
		require.NoError(e.t, err)
		e.clock.advance(time.Minute)
		require.Equal(e.t, []string{"next"}, j.drain(), "a waiting group that an operator has paused keeps no other")
		_, err = admin.ResumeGroup(e.ctx, paused.Group, layer.ResumeOptions{})
		require.NoError(e.t, err)
		require.Equal(e.t, []string{"paused"}, j.drain())
	})
}

// TestJoinIsTold: subscriptions are told of a message when it joins its group, under the id that it has there.
func TestJoinIsTold(t *testing.T) {
	onEngines(t, func(e *env) {
		e.keepChanges(time.Hour)
		var s told
		q := e.handle(2)
		stop := e.subscribed(func(ctx context.Context) error {
			return q.Subscribe(ctx, "audit", s.handler, layer.SubscribeOptions{FromOldest: true})
		})
		j := &joiner{env: e, q: e.q, do: joinWays["receive"]}
		j.send("1", time.Second)
		e.clock.advance(time.Minute)
		require.Equal(e.t, []string{"1"}, j.drain())
		require.Eventually(e.t, func() bool { return len(s.list()) >= 2 }, time.Minute, time.Millisecond)
		require.NoError(e.t, stop())
		require.Equal(e.t, []string{"enqueued A 1", "finished A 1"}, slices.Compact(s.list()))
	})
}

// TestJoinBesideOthers: groups whose names lie between those of waiting groups keep no message from joining.
func TestJoinBesideOthers(t *testing.T) {
	onEngines(t, func(e *env) {
		for i := range 30 {
			e.enqueue(fmt.Sprintf("A (until 1%02d", i), "other")
		}
		e.enqueue("A (until dawn)", "other")
		j := &joiner{env: e, q: e.q}
		j.send("1", time.Second)
		j.send("2", 2*time.Second)
		e.clock.advance(time.Minute)
		got := make(map[string][]string)
		for range 40 {
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 10})
			require.NoError(e.t, err)
			for _, c := range claims {
				got[c.Group] = append(got[c.Group], bodies(c.Items)...)
				require.NoError(e.t, e.q.Ack(e.ctx, c))
			}
		}
		require.Equal(e.t, []string{"1", "2"}, got["A"])
		require.Len(e.t, got, 32)
	})
}

// TestJoinUnreadable: a message that waits to join and cannot be read keeps no other group, and no other message that
// joins.
func TestJoinUnreadable(t *testing.T) {
	for way := range joinWays {
		t.Run(way, func(t *testing.T) {
			e := newEnv(t, inMemory, false)
			j := &joiner{env: e, q: e.q}
			sent, err := e.q.Enqueue(e.ctx, layer.Message{
				Group: "A", Body: bytes.Repeat([]byte("x"), 200_000), Delay: time.Second, JoinWhenDue: true,
			})
			require.NoError(t, err)
			j.send("next", 2*time.Second)
			j.send("ready", 0)
			parts := e.rows(kv.PrefixRange(key("part")))
			require.NotEmpty(t, parts)
			e.write(func(tx kv.Tx) { tx.Clear(parts[0].Key) })
			e.clock.advance(time.Minute)
			var got []string
			for range 5 {
				got = append(got, takeOrReceive(e, way)...)
			}
			require.Equal(t, []string{"ready", "next"}, got)
			report, err := e.q.Admin().Check(e.ctx, layer.CheckOptions{})
			require.NoError(t, err)
			require.Len(t, report.Violations, 1, "of the part alone: a timer or hint still leads to the group")
			require.NoError(t, e.q.Admin().Cancel(e.ctx, sent[0].ID))
		})
	}
}

// takeOrReceive makes one call, which may report what cannot be read.
func takeOrReceive(e *env, way string) (got []string) {
	if way == "take" {
		items, err := takeFrom(e.ctx, e.q, 10, layer.TakeOptions{})
		if err != nil {
			require.ErrorIs(e.t, err, layer.ErrCorrupt)
		}
		return bodies(items)
	}
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 10})
	if err != nil {
		require.ErrorIs(e.t, err, layer.ErrCorrupt)
	}
	for _, c := range claims {
		got = append(got, bodies(c.Items)...)
		require.NoError(e.t, e.q.Ack(e.ctx, c))
	}
	return got
}

// TestJoinMany: many messages join at one time, of one group and of many, and so do large ones. Groups that are ready
// are delivered in between.
func TestJoinMany(t *testing.T) {
	onEngines(t, func(e *env) {
		at := e.clock.now().Add(time.Second)
		var msgs []layer.Message
		for i := range 130 {
			msgs = append(msgs, layer.Message{Group: "A", Body: fmt.Append(nil, i), DeliverAt: at, JoinWhenDue: true})
		}
		for i := range 60 {
			msgs = append(msgs, layer.Message{Group: fmt.Sprint("G", i), DeliverAt: at, JoinWhenDue: true})
		}
		_, err := e.q.Enqueue(e.ctx, msgs...)
		require.NoError(e.t, err)
		for i := range 2 {
			_, err := e.q.Enqueue(e.ctx, layer.Message{
				Group: "B", Body: bytes.Repeat([]byte{byte('0' + i)}, 600<<10), DeliverAt: at, JoinWhenDue: true,
			})
			require.NoError(e.t, err)
		}
		e.clock.advance(time.Minute)
		e.enqueue("ready", "ready")
		got := make(map[string][]string)
		calls := 0
		for vain := 0; vain < 5; calls++ {
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 20})
			require.NoError(e.t, err)
			if vain++; len(claims) > 0 {
				vain = 0
			}
			for _, c := range claims {
				if len(got["ready"]) == 0 && c.Group == "ready" {
					require.Less(e.t, calls, 4, "due messages keep no ready group")
				}
				got[c.Group] = append(got[c.Group], bodies(c.Items)...)
				require.NoError(e.t, e.q.Ack(e.ctx, c))
			}
		}
		require.Len(e.t, got, 63)
		require.Len(e.t, got["A"], 130)
		for i, body := range got["A"] {
			require.Equal(e.t, fmt.Sprint(i), body)
		}
		require.Len(e.t, got["B"], 2)
		require.Equal(e.t, "0", got["B"][0][:1])
	})
}

// TestJoinedIdsEnd: the window of a dedup id begins with the enqueue, also if the message joins its group later.
func TestJoinedIdsEnd(t *testing.T) {
	onEngines(t, func(e *env) {
		q := e.configured(layer.Config{DedupWindow: time.Hour, DedupInGroup: true})
		m := layer.Message{Group: "A", DedupID: "once", Delay: 30 * time.Minute, JoinWhenDue: true}
		_, err := q.Enqueue(e.ctx, m)
		require.NoError(e.t, err)
		e.clock.advance(40 * time.Minute)
		c := e.on(q).receive(q, 1)
		require.NotNil(e.t, c)
		require.NoError(e.t, q.Ack(e.ctx, c))
		for _, duplicate := range []bool{true, false} {
			sent, err := q.Enqueue(e.ctx, m)
			require.NoError(e.t, err)
			require.Equal(e.t, duplicate, sent[0].Duplicate)
			e.clock.advance(25 * time.Minute)
		}
	})
}

// TestJoinBesideMaxWaiting: messages that wait to join do not count for the bound of their group.
func TestJoinBesideMaxWaiting(t *testing.T) {
	onEngines(t, func(e *env) {
		q := e.configured(layer.Config{MaxWaiting: 2})
		at := e.clock.now().Add(time.Second)
		for range 5 {
			_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", DeliverAt: at, JoinWhenDue: true})
			require.NoError(e.t, err)
		}
		e.clock.advance(2 * time.Second)
		n := 0
		for c := e.on(q).receive(q, 10); c != nil; c = e.on(q).receive(q, 10) {
			n += len(c.Items)
			require.NoError(e.t, q.Ack(e.ctx, c))
		}
		require.Equal(e.t, 5, n)
	})
}

// TestJoinIsRefused: JoinWhenDue is refused where it would say nothing. A message that is due is in its group from the
// start.
func TestJoinIsRefused(t *testing.T) {
	onEngines(t, func(e *env) {
		for name, m := range map[string]layer.Message{
			"no delay":   {Group: "A", JoinWhenDue: true},
			"at once":    {Group: "A", JoinWhenDue: true, AtOnce: true},
			"alone":      {Alone: true, JoinWhenDue: true, Delay: time.Second},
			"behind all": {Group: "A", JoinWhenDue: true, Delay: time.Second, BehindAll: true},
		} {
			_, err := e.q.Enqueue(e.ctx, m)
			require.ErrorIs(e.t, err, layer.ErrOptions, name)
		}
		for _, c := range []layer.Config{{Unordered: true}, {Facets: []string{"state"}, Views: "*; state"}} {
			o := e.options(20)
			o.Config = c
			q, err := layer.Create(e.ctx, e.db, testPrefix, fmt.Sprint("refuses ", c.Unordered), o)
			require.NoError(e.t, err)
			m := layer.Message{Group: "A", Headers: map[string]string{"state": "NEW"}, JoinWhenDue: true}
			m.Delay = time.Second
			_, err = q.Enqueue(e.ctx, m)
			require.ErrorIs(e.t, err, layer.ErrOptions)
		}
		long := layer.Message{Group: strings.Repeat("x", layer.MaxGroupSize-32), JoinWhenDue: true, Delay: time.Second}
		var limit *layer.LimitError
		_, err := e.q.Enqueue(e.ctx, long)
		require.ErrorAs(e.t, err, &limit)
		long.Group = long.Group[1:]
		_, err = e.q.Enqueue(e.ctx, long)
		require.NoError(e.t, err)
		sent, err := e.q.Enqueue(e.ctx, layer.Message{
			Group: "A", Body: []byte("due"), JoinWhenDue: true, DeliverAt: e.clock.now().Add(-time.Second),
		})
		require.NoError(e.t, err)
		require.Equal(e.t, "A", sent[0].ID.Group)
	})
}

// joinsDue adds a message that joins group A, and is due.
func joinsDue(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		given := setup(e)
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: time.Second, JoinWhenDue: true})
		require.NoError(e.t, err)
		e.clock.advance(2 * time.Second)
		return given
	}
}

// cancelWaiting cancels the message that waits to join its group.
func cancelWaiting(e *env, tx kv.Tx, _ any) error {
	for g, err := range e.calm().Admin().AllGroups(e.ctx, layer.GroupsOptions{}) {
		if err != nil {
			return err
		}
		if strings.HasPrefix(g.Group, "A (until ") {
			return e.q.Admin().CancelTx(e.ctx, tx, g.Head)
		}
	}
	return layer.ErrNoItem
}

// enqueueJoining enqueues a message that joins group A later.
func enqueueJoining(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A", Delay: time.Hour, JoinWhenDue: true})
	return err
}

// TestJoinWakes: a receive that waits gets a message that joins its group within a second of its time (G5).
func TestJoinWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := inMemory(t)
		defer func() { require.NoError(t, db.Close()) }()
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, q.Close(t.Context())) }()
		_, err = q.Enqueue(t.Context(), layer.Message{Group: "A", Delay: 5 * time.Second, JoinWhenDue: true})
		require.NoError(t, err)
		begun := time.Now()
		claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Wait: time.Minute})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.Equal(t, "A", claims[0].Group)
		require.InDelta(t, 5.5, time.Since(begun).Seconds(), 0.5)
		require.NoError(t, q.Ack(t.Context(), claims[0]))
	})
}
