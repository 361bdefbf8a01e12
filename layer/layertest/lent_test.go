package layer_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

var takeBackFlag = flag.Bool("layer.take-back", false, "callers change the messages of an enqueue once it has returned")

// takeBack is the end of a call whose caller changes its messages at once: with -layer.take-back all tests of an env do
// so, and the race detector sees what the handle still reads. Headers are changed only after a call that its caller has
// left, because messages of a test share them.
func takeBack(_ context.Context, o *layer.Operation) {
	left := errors.Is(o.Err, context.Canceled) || errors.Is(o.Err, context.DeadlineExceeded)
	if o.Err != nil && !left {
		return
	}
	for _, m := range o.Messages {
		for i := range m.Body {
			m.Body[i] = '!'
		}
		if !left {
			continue
		}
		for name := range m.Headers {
			m.Headers[name] = "!"
		}
	}
}

// lender is a caller that takes its memory back as soon as a call has returned.
type lender struct {
	t    *testing.T
	plan *fault.Plan
	q    *layer.Queue
}

// lend runs a test of memory that a caller lends.
func lend(t *testing.T, c layer.Config, fn func(t *testing.T, l *lender)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		db := fault.Wrap(embedded.OpenMemory(embedded.Options{}), plan)
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue,
			layer.Options{Config: c, Test: &layer.TestOptions{Seed: 1}})
		require.NoError(t, err)
		fn(t, &lender{t: t, plan: plan, q: q})
		report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, db.Close())
	})
}

// busy begins a transaction that stays in flight for half a second, so that the next operation of the handle runs in
// another goroutine than its caller's. then chooses the fault of each commit that follows.
func (l *lender) busy(then func(n int) fault.Kind) (ended func()) {
	l.t.Helper()
	done, commits := make(chan error, 1), 0
	l.plan.OnCommit = func(int, kv.Tx) fault.Kind {
		if commits++; commits == 1 {
			time.Sleep(500 * time.Millisecond)
			return fault.None
		}
		return then(commits - 1)
	}
	go func() {
		_, err := l.q.Enqueue(l.t.Context(), layer.Message{Group: "busy", Headers: map[string]string{"state": "BUSY"}})
		done <- err
	}()
	synctest.Wait()
	return func() {
		l.t.Helper()
		require.NoError(l.t, <-done)
		time.Sleep(10 * time.Second)
		l.plan.OnCommit = nil
	}
}

// leave makes a call whose context ends while its commit is under way, takes the memory back, and then has the commit
// fail, so that the body of the transaction runs again. It returns how many commits of the call there were.
func (l *lender) leave(call func(ctx context.Context) error, takeBack func()) (commits int) {
	l.t.Helper()
	ended := l.busy(func(n int) fault.Kind {
		if commits = n; n == 1 {
			time.Sleep(200 * time.Millisecond)
			return fault.Conflict
		}
		return fault.None
	})
	ctx, cancel := context.WithTimeout(l.t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(l.t, call(ctx), context.DeadlineExceeded)
	takeBack()
	ended()
	return commits
}

// claim enqueues messages of a group, and returns a claim of them.
func (l *lender) claim(o layer.ReceiveOptions, msgs ...layer.Message) *layer.Claim {
	l.t.Helper()
	_, err := l.q.Enqueue(l.t.Context(), msgs...)
	require.NoError(l.t, err)
	claims, err := l.q.Receive(l.t.Context(), o)
	require.NoError(l.t, err)
	require.Len(l.t, claims, 1)
	return claims[0]
}

func (l *lender) bodies(group string) (bodies []string) {
	l.t.Helper()
	for item, err := range l.q.Admin().AllItems(l.t.Context(), group, nil) {
		require.NoError(l.t, err)
		bodies = append(bodies, string(item.Body))
	}
	return bodies
}

func bodiesIn(group string, bodies ...string) (msgs []layer.Message) {
	for _, b := range bodies {
		msgs = append(msgs, layer.Message{Group: group, Body: []byte(b), Headers: map[string]string{"state": "NEW"}})
	}
	return msgs
}

// TestEnqueueKeepsNoMessage (message.go: the queue keeps no reference to the message): an enqueue that its caller has
// left stores the messages as they were at the call, whatever the caller does with body, headers and slice afterwards.
func TestEnqueueKeepsNoMessage(t *testing.T) {
	lend(t, layer.Config{}, func(t *testing.T, l *lender) {
		small, large := []byte("old"), bytes.Repeat([]byte("old"), 100_000) // in the item, and in parts
		headers := map[string]string{"name": "old"}
		msgs := []layer.Message{
			{Group: "A", Body: small, Headers: headers}, {Group: "A", Body: large, Headers: headers},
			{Alone: true, Body: small},
		}
		want := string(large)
		l.leave(func(ctx context.Context) error {
			_, err := l.q.Enqueue(ctx, msgs...)
			return err
		}, func() {
			copy(small, "new")
			copy(large[len(large)/2:], bytes.Repeat([]byte("new"), 50_000))
			headers["name"], headers["more"] = "new", "new"
			clear(msgs)
		})
		bodies := l.bodies("A")
		require.Len(t, bodies, 2)
		require.Equal(t, "old", bodies[0])
		require.True(t, want == bodies[1], "the stored body is a mix of two")
		for item, err := range l.q.Admin().AllItems(t.Context(), "A", nil) {
			require.NoError(t, err)
			require.Equal(t, map[string]string{"name": "old"}, item.Headers)
		}
		stats, err := l.q.Stats(t.Context(), layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 4, stats.Depth, "with the busy caller's")
	})
}

// TestSettleKeepsNoIDs: a settlement that its caller has left finishes the items, and stores the state, of the call.
func TestSettleKeepsNoIDs(t *testing.T) {
	lend(t, layer.Config{}, func(t *testing.T, l *lender) {
		c := l.claim(layer.ReceiveOptions{}, bodiesIn("A", "1", "2", "3")...)
		ids, state := []layer.ID{c.Items[0].ID}, []byte("old")
		l.leave(func(ctx context.Context) error {
			return l.q.Settle(ctx, layer.Settlement{Claim: c, Finish: ids, State: &state})
		}, func() {
			ids[0] = c.Items[2].ID
			copy(state, "new")
		})
		require.Equal(t, []string{"2", "3"}, l.bodies("A"))
		stored, err := l.q.GroupState(t.Context(), "A")
		require.NoError(t, err)
		require.Equal(t, "old", string(stored))
	})
}

// TestAckKeepsNoItems: an ack of all that its caller has left archives and removes the items that the claim had at the
// call.
func TestAckKeepsNoItems(t *testing.T) {
	for _, archive := range []time.Duration{0, time.Hour} {
		lend(t, layer.Config{Archive: archive}, func(t *testing.T, l *lender) {
			c := l.claim(layer.ReceiveOptions{}, bodiesIn("A", "1", "2", "3")...)
			l.leave(func(ctx context.Context) error { return l.q.Ack(ctx, c) }, func() {
				for i := range c.Items { // not by clear, which the race detector does not see
					c.Items[i] = layer.Item{}
				}
			})
			require.Empty(t, l.bodies("A"))
		})
	}
}

// TestNackKeepsNoOptions: a nack that its caller has left gives back from the item of the call on, and has asked the
// error for its text before the call has returned.
func TestNackKeepsNoOptions(t *testing.T) {
	lend(t, layer.Config{}, func(t *testing.T, l *lender) {
		c := l.claim(layer.ReceiveOptions{}, bodiesIn("A", "1", "2", "3")...)
		from, third := c.Items[1].ID, c.Items[2].ID
		l.leave(func(ctx context.Context) error {
			return l.q.Nack(ctx, c, layer.NackOptions{Release: true, From: &from})
		}, func() { from = third })
		require.ErrorIs(t, l.q.AckItems(t.Context(), c, []layer.ID{c.Items[1].ID}), layer.ErrNotInClaim)
	})
	lend(t, layer.Config{}, func(t *testing.T, l *lender) {
		c := l.claim(layer.ReceiveOptions{}, bodiesIn("A", "1")...)
		failed := &lentError{t: t}
		l.leave(func(ctx context.Context) error { return l.q.Nack(ctx, c, layer.NackOptions{Err: failed}) },
			func() { failed.over = true })
	})
}

// lentError is an error of the caller's.
type lentError struct {
	t    *testing.T
	over bool
}

func (e *lentError) Error() string {
	if e.over {
		e.t.Error("the error is asked for its text when the call has returned")
	}
	return "failed"
}

// TestReceiveKeepsNoGroup: a receive that its caller has left takes from no other group than the one named at the call.
func TestReceiveKeepsNoGroup(t *testing.T) {
	lend(t, layer.Config{}, func(t *testing.T, l *lender) {
		_, err := l.q.Enqueue(t.Context(), bodiesIn("A", "1")...)
		require.NoError(t, err)
		group := "A"
		commits := l.leave(func(ctx context.Context) error {
			_, err := l.q.Receive(ctx, layer.ReceiveOptions{Group: &group})
			return err
		}, func() { group = "none" })
		require.GreaterOrEqual(t, commits, 2, "the transaction that runs again has nothing to write")
		require.Equal(t, []string{"1"}, l.bodies("A"))
	})
}

// TestAdvanceEndsWithItsCall: Settlement.Advance is not called when Settle has returned, and Settle does not return
// while Advance runs.
func TestAdvanceEndsWithItsCall(t *testing.T) {
	c := layer.Config{Facets: []string{"state"}, Views: "*; state"}
	lend(t, c, func(t *testing.T, l *lender) {
		claim := l.claimNew("1", "2")
		var over atomic.Bool
		calls := 0
		l.leave(func(ctx context.Context) error {
			return l.q.Settle(ctx, advanceAll(claim, func(m *layer.Message) error {
				calls++
				if over.Load() {
					t.Error("called after the return of Settle")
				}
				m.Headers["state"] = "PAID"
				return nil
			}))
		}, func() { over.Store(true) })
		require.Equal(t, 2, calls)
	})
	lend(t, c, func(t *testing.T, l *lender) {
		claim := l.claimNew("1")
		var inside atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := l.busy(func(int) fault.Kind { return fault.None })
		err := l.q.Settle(ctx, advanceAll(claim, func(m *layer.Message) error {
			inside.Store(true)
			cancel()
			time.Sleep(100 * time.Millisecond)
			inside.Store(false)
			m.Headers["state"] = "PAID"
			return nil
		}))
		require.False(t, inside.Load(), "Settle has returned while Advance runs")
		require.ErrorIs(t, err, context.Canceled)
		ended()
	})
}

// advanceAll is a settlement that changes each item of a claim.
func advanceAll(c *layer.Claim, change func(m *layer.Message) error) layer.Settlement {
	by := func(_ layer.ID, m *layer.Message) error { return change(m) }
	return layer.Settlement{Claim: c, AdvanceAll: true, Change: by}
}

// claimNew returns a claim of the items of group A that have the state NEW.
func (l *lender) claimNew(bodies ...string) *layer.Claim {
	l.t.Helper()
	return l.claim(layer.ReceiveOptions{Where: layer.Template{"state": "NEW"}}, bodiesIn("A", bodies...)...)
}

// TestHandleKeepsNoOptions: a handle uses the options of the call that made it, and hands out no memory of its own.
// The caller may change prefix, hooks and facets afterwards.
func TestHandleKeepsNoOptions(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	prefix, facets, told := bytes.Clone(testPrefix), []string{"state"}, 0
	hooks := []layer.Hook{{End: func(context.Context, *layer.Operation) { told++ }}}
	q, err := layer.Create(t.Context(), db, prefix, testQueue,
		layer.Options{Config: layer.Config{Facets: facets, Views: "*; state"}, Hooks: hooks})
	require.NoError(t, err)
	clear(prefix)
	clear(hooks)
	facets[0] = "other"
	_, err = q.Enqueue(t.Context(), bodiesIn("A", "1")...)
	require.NoError(t, err)
	require.Equal(t, 1, told)

	q.Config().Facets[0] = "other"
	stored, _, err := q.Admin().ReadConfig(t.Context())
	require.NoError(t, err)
	stored.Facets[0] = "other"
	changed, _, err := q.Admin().Configure(t.Context(), func(c *layer.Config) { c.Lease = time.Hour })
	require.NoError(t, err)
	changed.Facets[0] = "other"
	require.Equal(t, []string{"state"}, q.Config().Facets)
	_, _, err = q.Admin().Configure(t.Context(), func(c *layer.Config) { c.Facets[0] = "other" })
	require.ErrorIs(t, err, layer.ErrOptions, "facets are fixed at creation")
	stored, _, err = q.Admin().ReadConfig(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"state"}, stored.Facets)

	where := layer.Template{"state": "NEW"}
	groups, items := q.Admin().AllGroups(t.Context(), layer.GroupsOptions{Where: where}), 0
	all := q.Admin().AllItems(t.Context(), "A", where)
	where["state"] = "OLD"
	for _, err := range groups {
		require.NoError(t, err)
		items++
	}
	for _, err := range all {
		require.NoError(t, err)
		items++
	}
	require.Equal(t, 2, items, "an iterator uses the options of its call")

	id := layer.ID{Group: "A", Random: uuid.New()}
	ids := []layer.ID{id}
	dead := q.Admin().AllDeadLetters(t.Context(), layer.DeadOptions{DeadFilter: layer.DeadFilter{IDs: ids}})
	ids[0] = layer.ID{}
	for _, err := range dead {
		require.NoError(t, err)
	}
	report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.NoError(t, q.Close(t.Context()))
}

// TestWorkerKeepsNoOptions: a worker uses the template and the group of New. A handler may keep and change the
// headers of its delivery, also while the worker acks.
func TestWorkerKeepsNoOptions(t *testing.T) {
	lend(t, layer.Config{Facets: []string{"state"}, Views: "*; state"}, func(t *testing.T, l *lender) {
		_, err := l.q.Enqueue(t.Context(), bodiesIn("A", "1", "2", "3")...)
		require.NoError(t, err)
		where, group := layer.Template{"state": "NEW"}, "A"
		handled := make(chan string, 3)
		w, err := worker.New(l.q, worker.Handle(func(_ context.Context, d *worker.Delivery) error {
			handled <- string(d.Body)
			go func() { d.Headers["state"] = "OLD" }()
			return nil
		}), worker.Options{Where: where, Group: &group, Concurrency: 1})
		require.NoError(t, err)
		where["state"], group = "OLD", "B"
		w.Start()
		for _, body := range []string{"1", "2", "3"} {
			select {
			case got := <-handled:
				require.Equal(t, body, got)
			case <-time.After(time.Minute):
				require.FailNow(t, "nothing is handled")
			}
		}
		require.NoError(t, w.Stop(t.Context()))
		require.Empty(t, l.bodies("A"))
	})
}
