package layer_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// TestOperatorErrors: what cannot be done is refused with an error of its own, and nothing has changed.
func TestOperatorErrors(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	ids := e.enqueue("A", "a1", "a2")
	e.receive(e.q, 1)
	change := func(m *layer.Message) error { m.Body = []byte("x"); return nil }
	boom := errors.New("boom")
	unknown := layer.ID{Group: "A", Index: ids[0].Index, Random: uuid.New()}
	long := string(make([]byte, layer.MaxGroupSize+1))
	for _, c := range []struct {
		name string
		err  error
		call func() error
	}{
		{"cancel in flight", layer.ErrInFlight, func() error { return e.q.Admin().Cancel(e.ctx, ids[0]) }},
		{"cancel of nothing", layer.ErrNoItem, func() error { return e.q.Admin().Cancel(e.ctx, unknown) }},
		{"cancel in another group", layer.ErrNoItem, func() error {
			return e.q.Admin().Cancel(e.ctx, layer.ID{Group: "B", Index: ids[0].Index, Random: ids[0].Random})
		}},
		{"cancel by no id", layer.ErrInvalidID, func() error { return e.q.Admin().Cancel(e.ctx, layer.ID{}) }},
		{"cancel by a negative index", layer.ErrInvalidID, func() error {
			return e.q.Admin().Cancel(e.ctx, layer.ID{Group: "A", Index: -1, Random: ids[0].Random})
		}},
		{"cancel by a group that is none", layer.ErrInvalidID, func() error {
			return e.q.Admin().Cancel(e.ctx, layer.ID{Group: "\xff", Index: 1, Random: ids[0].Random})
		}},
		{"edit in flight", layer.ErrInFlight, func() error { return e.q.Admin().Edit(e.ctx, ids[0], change) }},
		{"edit of nothing", layer.ErrNoItem, func() error { return e.q.Admin().Edit(e.ctx, unknown, change) }},
		{"edit by no id", layer.ErrInvalidID, func() error { return e.q.Admin().Edit(e.ctx, layer.ID{}, change) }},
		{"edit into another group", layer.ErrOptions, func() error {
			return e.q.Admin().Edit(e.ctx, ids[1], func(m *layer.Message) error { m.Group = "B"; return nil })
		}},
		{"edit that changes its mind", boom, func() error {
			return e.q.Admin().Edit(e.ctx, ids[1], func(m *layer.Message) error { m.Body = []byte("x"); return boom })
		}},
		{"edit with a header that is no text", layer.ErrInvalidUTF8, func() error {
			return e.q.Admin().Edit(e.ctx, ids[1], func(m *layer.Message) error { m.Headers["k"] = "\xff"; return nil })
		}},
		{"skip in flight", layer.ErrInFlight, func() error { _, err := e.q.Admin().Skip(e.ctx, "A", layer.SkipOptions{}); return err }},
		{"skip in an empty group", layer.ErrNoItem, func() error { _, err := e.q.Admin().Skip(e.ctx, "B", layer.SkipOptions{}); return err }},
		{"skip in no group", layer.ErrInvalidUTF8, func() error { _, err := e.q.Admin().Skip(e.ctx, "\xff", layer.SkipOptions{}); return err }},
		{"release of what nobody holds", layer.ErrNotHeld, func() error {
			_, err := e.q.Admin().ForceRelease(e.ctx, "B", layer.ForceReleaseOptions{})
			return err
		}},
		{"release of another's claim", layer.ErrClaimLost, func() error {
			_, err := e.q.Admin().ForceRelease(e.ctx, "A", layer.ForceReleaseOptions{Token: 1})
			return err
		}},
		{"release with a reason for nothing", layer.ErrOptions, func() error {
			_, err := e.q.Admin().ForceRelease(e.ctx, "A", layer.ForceReleaseOptions{Reason: "stuck"})
			return err
		}},
		{"retry of what is held", layer.ErrNotDelayed, func() error { return e.retry("A") }},
		{"resume of what is not paused", layer.ErrNotPaused, func() error { return e.resume("A") }},
		{"resume of a queue that is not paused", layer.ErrNotPaused, func() error {
			_, err := e.q.Admin().Resume(e.ctx, layer.ResumeOptions{})
			return err
		}},
		{"pause of a queue by force", layer.ErrOptions, func() error {
			_, err := e.q.Admin().Pause(e.ctx, layer.PauseOptions{Force: true})
			return err
		}},
		{"pause by who is no text", layer.ErrInvalidUTF8, func() error {
			_, err := e.q.Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{By: "\xff"})
			return err
		}},
		{"retry of what is empty", layer.ErrNotDelayed, func() error { return e.retry("B") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := e.rows(kv.PrefixRange(testPrefix))
			require.ErrorIs(t, c.call(), c.err)
			require.Equal(t, before, e.rows(kv.PrefixRange(testPrefix)))
		})
	}
	for name, call := range map[string]func() error{
		"edit": func() error {
			return e.q.Admin().Edit(e.ctx, ids[1], func(m *layer.Message) error {
				m.Body = make([]byte, layer.MaxBodySize+1)
				return nil
			})
		},
		"skip":    func() error { _, err := e.q.Admin().Skip(e.ctx, long, layer.SkipOptions{}); return err },
		"retry":   func() error { return e.q.Admin().RetryNow(e.ctx, long, layer.RetryOptions{}) },
		"release": func() error { _, err := e.q.Admin().ForceRelease(e.ctx, long, layer.ForceReleaseOptions{}); return err },
	} {
		var limit *layer.LimitError
		require.ErrorAs(t, call(), &limit, name)
	}
	for name, o := range map[string]layer.PauseOptions{
		"by":     {By: string(make([]byte, 256+1))},
		"reason": {Reason: string(make([]byte, 1001))},
	} {
		var limit *layer.LimitError
		_, err := e.q.Admin().PauseGroup(e.ctx, "A", o)
		require.ErrorAs(t, err, &limit, name)
		_, err = e.q.Admin().Pause(e.ctx, o)
		require.ErrorAs(t, err, &limit, name)
		_, err = e.q.Admin().Skip(e.ctx, "A", layer.SkipOptions{By: o.By, Reason: o.Reason})
		require.ErrorAs(t, err, &limit, name)
	}
	require.NoError(t, e.q.Close(e.ctx))
	require.ErrorIs(t, e.q.Admin().Cancel(e.ctx, ids[1]), layer.ErrClosed)
	require.ErrorIs(t, e.q.Admin().RetryNow(e.ctx, "A", layer.RetryOptions{}), layer.ErrClosed)
}

// TestOperatorsUnknownCommitHasItsEffectOnce (trap 4): the operator's operations, too, have their effect once and
// return what they would have returned, when the outcome of the commit was unknown.
func TestOperatorsUnknownCommitHasItsEffectOnce(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		t.Run(kind.String(), func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			ids := e.enqueue("A", "a1", "a2", "a3")
			e.plan.ForceNext(kind)
			id, err := e.q.Admin().Skip(e.ctx, "A", layer.SkipOptions{})
			require.NoError(t, err)
			require.Equal(t, ids[0], id, "not the one behind it")
			require.Equal(t, []string{"a2", "a3"}, e.all("A"))
			e.plan.ForceNext(kind)
			require.NoError(t, e.q.Admin().Cancel(e.ctx, ids[1]))
			e.plan.ForceNext(kind)
			require.NoError(t, e.q.Admin().Edit(e.ctx, ids[2], func(m *layer.Message) error {
				m.Body = append(m.Body, '+')
				return nil
			}))
			require.Equal(t, []string{"a3+"}, e.all("A"))
			c := e.receive(e.q, 1)
			e.plan.ForceNext(kind)
			h, err := e.q.Admin().ForceRelease(e.ctx, "A", layer.ForceReleaseOptions{CountAttempt: true})
			require.NoError(t, err)
			require.Equal(t, layer.Holder{Owner: "worker-1", Token: c.Token, Outstanding: 1}, h)
			c = e.receive(e.q, 1)
			require.Equal(t, 1, c.Items[0].Attempts, "the attempt counts once")
			require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{Delay: time.Hour}))
			e.plan.ForceNext(kind)
			require.NoError(t, e.q.Admin().RetryNow(e.ctx, "A", layer.RetryOptions{}))
			require.NotNil(t, e.receive(e.q, 1))
			for _, op := range []func() (layer.Mark, error){
				func() (layer.Mark, error) {
					return e.q.Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{Reason: "why"})
				},
				func() (layer.Mark, error) { return e.q.Admin().ResumeGroup(e.ctx, "A", layer.ResumeOptions{}) },
				func() (layer.Mark, error) { return e.q.Admin().Pause(e.ctx, layer.PauseOptions{Reason: "why"}) },
				func() (layer.Mark, error) { return e.q.Admin().Resume(e.ctx, layer.ResumeOptions{}) },
			} {
				e.plan.ForceNext(kind)
				m, err := op()
				require.NoError(t, err)
				require.Equal(t, layer.Mark{Status: layer.Paused, By: "worker-1", Reason: "why", Since: e.clock.now()}, m)
			}
			id = e.enqueue("B", "b1")[0]
			e.plan.ForceNext(kind)
			require.NoError(t, e.q.Reschedule(e.ctx, id, e.clock.now().Add(time.Minute)))
			e.plan.ForceNext(kind)
			require.NoError(t, e.q.Replace(e.ctx, id, []byte("b2"), nil))
			require.Equal(t, []string{"b2"}, e.all("B"))
		})
	}
}

// TestMoveInOneTransaction (G6): the forms for the caller's transaction compose. A message moves to another group, and
// all parts of the move happen together or not at all.
func TestMoveInOneTransaction(t *testing.T) {
	onEngines(t, func(e *env) {
		ids := e.enqueue("A", "a1", "a2", "a3")
		move := func(tx kv.Tx) error {
			for i, id := range ids[:2] {
				if err := e.q.Admin().CancelTx(e.ctx, tx, id); err != nil {
					return err
				}
				body := []byte(fmt.Sprint("a", i+1))
				if _, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "B", Body: body}); err != nil {
					return err
				}
			}
			return nil
		}
		abort := errors.New("changed my mind")
		require.ErrorIs(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error { return errors.Join(move(tx), abort) }), abort)
		require.Equal(e.t, []string{"a1", "a2", "a3"}, e.all("A"))
		require.NoError(e.t, e.q.Once(e.ctx, move))
		require.Equal(e.t, []string{"a3"}, e.all("A"))
		require.Equal(e.t, []string{"a1", "a2"}, e.all("B"))

		// All in one transaction: the group is taken from its holder, the head is canceled, and the rest is received
		// again.
		c := e.receive(e.q, 1)
		var again []*layer.Claim
		require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error {
			if _, err := e.q.Admin().ForceReleaseTx(e.ctx, tx, c.Group, layer.ForceReleaseOptions{Token: c.Token}); err != nil {
				return err
			}
			if _, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: c.Group, Body: []byte("new")}); err != nil {
				return err
			}
			if err := e.q.Admin().CancelTx(e.ctx, tx, c.Items[0].ID); err != nil {
				return err
			}
			var err error
			again, err = e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Group: &c.Group})
			return err
		}))
		require.NotContains(e.t, e.all(c.Group), string(c.Items[0].Body))
		require.Equal(e.t, e.all(c.Group), bodies(again[0].Items))
		require.ErrorIs(e.t, e.q.Ack(e.ctx, c), layer.ErrClaimLost)
	})
}

// TestOperatorWakes: what an operation makes ready is received by a handle that waits, without its poll.
func TestOperatorWakes(t *testing.T) {
	for name, op := range map[string]struct {
		delay time.Duration
		run   func(e *env, id layer.ID) error
	}{
		"release": {0, func(e *env, _ layer.ID) error {
			_, err := e.q.Admin().ForceRelease(e.ctx, "A", layer.ForceReleaseOptions{})
			return err
		}},
		"retry": {time.Hour, func(e *env, _ layer.ID) error { return e.retry("A") }},
		"resume of the group": {0, func(e *env, _ layer.ID) error {
			if _, err := e.q.Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{Force: true}); err != nil {
				return err
			}
			_, err := e.q.Admin().ResumeGroup(e.ctx, "A", layer.ResumeOptions{})
			return err
		}},
		"cancel of a delay": {time.Hour, func(e *env, id layer.ID) error { return e.q.Admin().Cancel(e.ctx, id) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, anyEngine, false)
			id := e.enqueue("A", "a1", "a2")[0]
			c := e.receive(e.q, 1)
			if op.delay > 0 {
				require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{Delay: op.delay}))
			}
			o := e.options(2)
			o.Poll = time.Hour
			waiter, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
			require.NoError(t, err)
			got := make(chan []*layer.Claim, 1)
			go func() {
				claims, err := waiter.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Minute})
				if err != nil {
					t.Error(err)
				}
				got <- claims
			}()
			require.Eventually(t, func() bool { return len(e.rows(kv.PrefixRange(key("request")))) > 0 }, time.Minute, time.Millisecond)
			require.Eventually(t, func() bool { return waiter.Paths().Looks > 0 }, time.Minute, time.Millisecond)
			require.NoError(t, op.run(e, id))
			require.Len(t, <-got, 1)
			require.NoError(t, waiter.Close(e.ctx))
		})
	}
}

// TestPausedQueueWaits: receives that wait go on waiting while the queue is paused, at the cost of their polls, also if
// groups are ready; the resume wakes them.
func TestPausedQueueWaits(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	_, err := e.q.Admin().Pause(e.ctx, layer.PauseOptions{Reason: "rollout"})
	require.NoError(t, err)
	o := e.options(2)
	o.Poll, o.Test.NoLooks = time.Hour, true
	waiter, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(t, err)
	got := make(chan []*layer.Claim, 1)
	go func() {
		claims, err := waiter.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Minute})
		if err != nil {
			t.Error(err)
		}
		got <- claims
	}()
	require.Eventually(t, func() bool { return waiter.Paths().Looks > 0 }, time.Minute, time.Millisecond)
	e.enqueue("B", "b1") // wakes it, for nothing
	require.Eventually(t, func() bool { return waiter.Paths().Looks > 1 }, time.Minute, time.Millisecond)
	for range 20 {
		e.enqueue("B", "b2") // gives a wait that spins the time to show
	}
	require.Less(t, waiter.Paths().Looks, int64(5))
	require.Empty(t, got)
	_, err = e.q.Admin().Resume(e.ctx, layer.ResumeOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, <-got)
	require.NoError(t, waiter.Close(e.ctx))
}

// TestCancelCorruptItem: an item that cannot be read holds its group up; cancelling it is the cure.
func TestCancelCorruptItem(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	ids := e.enqueue("A", "a1", "a2")
	item := e.rows(kv.PrefixRange(key("item")))[0]
	e.write(func(tx kv.Tx) { tx.Set(item.Key, []byte{9, 9}) })
	_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
	require.ErrorIs(t, err, layer.ErrCorrupt)
	require.ErrorIs(t, e.q.Admin().Edit(e.ctx, ids[0], func(*layer.Message) error { return nil }), layer.ErrCorrupt)
	require.NoError(t, e.q.Admin().Cancel(e.ctx, ids[0]))
	require.Equal(t, []string{"a2"}, bodies(e.receive(e.q, 5).Items))
}

// TestItemsBeforeACorruptItem: a list of the items of a group has those before an item that cannot be read, and ends
// with the error.
func TestItemsBeforeACorruptItem(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	all := make([]string, 100)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	e.enqueue("A", all...)
	mend := e.spoil(e.rows(kv.PrefixRange(key("item")))[77].Key)
	var listed []string
	var failed error
	for item, err := range e.q.Admin().AllItems(e.ctx, "A", nil) {
		if failed = err; err == nil {
			listed = append(listed, string(item.Body))
		}
	}
	require.ErrorIs(t, failed, layer.ErrCorrupt)
	require.Equal(t, all[:77], listed)
	mend()
}

// TestEditNeverShowsHalf: a message is edited between bodies of different lengths, each of one letter. Each read, peek
// or receive gets one of the bodies whole.
func TestEditNeverShowsHalf(t *testing.T) {
	onEngines(t, func(e *env) {
		sizes := []int{10, 100_000, 400_000, 95_000}
		whole := func(body []byte) bool {
			return len(body) > 0 && bytes.Equal(body, bytes.Repeat(body[:1], len(body))) && len(body) == sizes[int(body[0]-'a')]
		}
		id := e.enqueue("A", string(bytes.Repeat([]byte("a"), sizes[0])))[0]
		other := e.handle(2)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		wg.Go(func() {
			defer close(stop)
			for i := range 40 {
				n := i % len(sizes)
				err := other.Admin().Edit(e.ctx, id, func(m *layer.Message) error {
					if !whole(m.Body) {
						return fmt.Errorf("an edit was given %d bytes of %q", len(m.Body), m.Body[:1])
					}
					m.Body = bytes.Repeat([]byte{byte('a' + n)}, sizes[n])
					return nil
				})
				if err != nil && !errors.Is(err, layer.ErrInFlight) {
					e.t.Error(err)
					return
				}
			}
		})
		for running := true; running; {
			select {
			case <-stop:
				running = false
			default:
			}
			items, err := e.q.Peek(e.ctx, "A", 1, nil)
			require.NoError(e.t, err)
			require.True(e.t, whole(items[0].Body), "%d bytes of %q", len(items[0].Body), items[0].Body[:1])
			c := e.receive(e.q, 1)
			require.True(e.t, whole(c.Items[0].Body))
			require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
		}
		wg.Wait()
		require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		require.Empty(e.t, e.rows(kv.PrefixRange(key("part"))), "no part is left behind")
	})
}

// TestTakersServeDueTimers (G5): a queue that is served by takers only does not strand what a dead worker held.
func TestTakersServeDueTimers(t *testing.T) {
	onEngines(t, func(e *env) {
		for i := range 20 {
			e.enqueue(fmt.Sprint(i), "x")
		}
		for range 20 {
			require.NotNil(e.t, e.receive(e.q, 1))
		}
		e.clock.advance(time.Hour)
		taken := 0
		for {
			items, err := e.take(e.q, 10, layer.TakeOptions{})
			require.NoError(e.t, err)
			if len(items) == 0 {
				break
			}
			taken += len(items)
		}
		if e.plan.Chances == nil {
			require.Equal(e.t, 20, taken)
		}
		for _, name := range []string{"item", "lock", "timer", "ready", "attempt"} {
			require.Empty(e.t, e.rows(kv.PrefixRange(key(name))), name)
		}
	})
}

// TestSkipOfWhatWasSeen: skipping the head that was seen, twice, as a double click does, skips one item (Contract).
func TestSkipOfWhatWasSeen(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1", "a2")
	items, err := e.q.Peek(e.ctx, "A", 1, nil)
	require.NoError(t, err)
	o := layer.SkipOptions{Head: items[0].ID}
	_, err = e.q.Admin().Skip(e.ctx, "A", o)
	require.NoError(t, err)
	_, err = e.q.Admin().Skip(e.ctx, "A", o)
	require.ErrorIs(t, err, layer.ErrChanged)
	items, err = e.q.Peek(e.ctx, "A", 2, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a2"}, bodies(items))
}

func (e *env) retry(group string) error {
	return e.q.Admin().RetryNow(e.ctx, group, layer.RetryOptions{})
}

func (e *env) resume(group string) error {
	_, err := e.q.Admin().ResumeGroup(e.ctx, group, layer.ResumeOptions{})
	return err
}

// TestReadErrorIsNoChange (trap 6): a head which cannot be read is not taken for another head than the caller has seen.
func TestReadErrorIsNoChange(t *testing.T) {
	t.Parallel()
	e := newEnv(t, anyEngine, false)
	id := e.enqueue("A", "a1")[0]
	require.NoError(t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Delay: time.Hour}))
	options := e.options(2)
	options.Tx.Retries = 1
	failed := 0
	for range 100 {
		e.plan.Chances = map[fault.Kind]float64{fault.ProcessBehind: 0.6}
		_, err := kv.Run(e.ctx, e.db, options.Tx, func(tx kv.Tx, _ kv.Attempt) error {
			a := e.join(tx, testQueue, options, false)
			if err := a.RetryNow(e.ctx, "A", layer.RetryOptions{Head: id}); err != nil {
				return err
			}
			return errors.New("not committed")
		})
		e.plan.Chances = nil
		if kv.Code(err) != 0 {
			require.NotErrorIs(t, err, layer.ErrChanged)
			failed++
		}
	}
	require.NotZero(t, failed)
}

// TestReadErrorIsNoAnswer (fault): a call that finds nothing after the queue is gone says that the queue is gone, or
// that it could not read that, so that its body runs again; never that there is no such item.
func TestReadErrorIsNoAnswer(t *testing.T) {
	t.Parallel()
	e := newEnv(t, anyEngine, false)
	q := e.doomed("doomed", 5)
	id := e.receive(q, 1).Items[0].ID
	require.NoError(t, layer.Drop(e.ctx, e.db, testPrefix, "doomed", layer.DropOptions{}))
	failed := 0
	for range 100 {
		e.clock.advance(time.Second) // so that the handle reads the configuration
		e.plan.Chances = map[fault.Kind]float64{fault.FutureVersion: 0.4}
		_, err := kv.Run(e.ctx, e.db, kv.TxOptions{Retries: 1}, func(tx kv.Tx, _ kv.Attempt) error {
			return q.Admin().CancelTx(e.ctx, tx, id)
		})
		e.plan.Chances = nil
		require.NotErrorIs(t, err, layer.ErrNoItem)
		if kv.Code(err) != 0 {
			failed++
		}
	}
	require.NotZero(t, failed)
}

// TestActsOnWhatWasSeen: an operator's call that says what the operator has seen does nothing if that has changed
// since: another head, another mark, another claim. Repeated, a call that was done does nothing more (Contract).
func TestActsOnWhatWasSeen(t *testing.T) {
	onEngines(t, func(e *env) {
		admin := e.q.Admin()
		ids := e.enqueue("A", "a1", "a2", "a3")
		refused := func(err error) {
			e.t.Helper()
			before := e.rows(kv.PrefixRange(key("item")))
			require.ErrorIs(e.t, err, layer.ErrChanged)
			require.Equal(e.t, before, e.rows(kv.PrefixRange(key("item"))))
		}

		// A retry, of the head that was seen.
		fail := func() { require.NoError(e.t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Delay: time.Hour})) }
		fail()
		refused(admin.RetryNow(e.ctx, "A", layer.RetryOptions{Head: ids[1]}))
		require.NoError(e.t, admin.RetryNow(e.ctx, "A", layer.RetryOptions{Head: ids[0]}))
		fail()
		_, err := admin.Skip(e.ctx, "A", layer.SkipOptions{Head: ids[0]})
		require.NoError(e.t, err)
		fail()
		refused(admin.RetryNow(e.ctx, "A", layer.RetryOptions{Head: ids[0]}))
		require.NoError(e.t, e.retry("A"))

		// A resume, of the mark that was seen.
		first, err := admin.PauseGroup(e.ctx, "A", layer.PauseOptions{Reason: "first"})
		require.NoError(e.t, err)
		_, err = admin.ResumeGroup(e.ctx, "A", layer.ResumeOptions{Mark: &first})
		require.NoError(e.t, err)
		e.clock.advance(time.Millisecond)
		second, err := admin.PauseGroup(e.ctx, "A", layer.PauseOptions{Reason: "first"})
		require.NoError(e.t, err)
		_, err = admin.ResumeGroup(e.ctx, "A", layer.ResumeOptions{Mark: &first})
		refused(err)
		g, err := admin.Group(e.ctx, "A", nil)
		require.NoError(e.t, err)
		require.Equal(e.t, &second, g.Mark)
		require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error { // and goes on after the error
			_, err := admin.ResumeGroupTx(e.ctx, tx, "A", layer.ResumeOptions{Mark: &first})
			if errors.Is(err, layer.ErrChanged) {
				return nil
			}
			return fmt.Errorf("not refused: %w", err) // or a fault, and the body runs again
		}))
		_, err = admin.ResumeGroup(e.ctx, "A", layer.ResumeOptions{Mark: &second})
		require.NoError(e.t, err)
		m, err := admin.Pause(e.ctx, layer.PauseOptions{})
		require.NoError(e.t, err)
		_, err = admin.Resume(e.ctx, layer.ResumeOptions{Mark: &first})
		refused(err)
		_, err = admin.Resume(e.ctx, layer.ResumeOptions{Mark: &m})
		require.NoError(e.t, err)

		// A pause by force, of the claim that was seen.
		c := e.receive(e.q, 1)
		_, err = admin.PauseGroup(e.ctx, "A", layer.PauseOptions{Force: true, Token: c.Token + 1})
		refused(err)
		_, err = admin.PauseGroup(e.ctx, "A", layer.PauseOptions{Token: c.Token})
		require.ErrorIs(e.t, err, layer.ErrOptions)
		require.NoError(e.t, e.q.Ack(e.ctx, c))
		c = e.receive(e.q, 1)
		_, err = admin.PauseGroup(e.ctx, "A", layer.PauseOptions{Force: true, Token: c.Token})
		require.NoError(e.t, err)
		require.ErrorIs(e.t, e.q.Ack(e.ctx, c), layer.ErrClaimLost)

		// A purge, of the head that was seen.
		group := layer.OnlyGroup("A")
		_, err = admin.Purge(e.ctx, layer.PurgeOptions{Group: group, Head: ids[1]})
		refused(err)
		report, err := admin.Purge(e.ctx, layer.PurgeOptions{Group: group, Head: ids[2]})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 1, report.Items)
		_, err = admin.Purge(e.ctx, layer.PurgeOptions{Group: group, Head: ids[2]})
		refused(err)
		_, err = admin.Purge(e.ctx, layer.PurgeOptions{Head: ids[2], All: true})
		require.ErrorIs(e.t, err, layer.ErrOptions)
	})
}

// TestResumeEndsTheSeenMarkOnly (contract): a group with lanes may have several marks. A resume that names one of them
// ends this one. If the group does not have the mark any more, the resume changes nothing, also in the transaction of a
// caller that continues after the error.
func TestResumeEndsTheSeenMarkOnly(t *testing.T) {
	for _, paused := range []bool{false, true} {
		e := newEnvOf(t, anyEngine, false, func(c *layer.Config) {
			facets("*; state").configure(c)
			c.OnFailure = layer.HaltGroup
		})
		admin := e.q.Admin()
		states := []string{"NEW", "OLD", "PAID"}
		for _, state := range states {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: facetsOf(state, "EU")})
			require.NoError(t, err)
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": state}})
			require.NoError(t, err)
			require.Len(t, claims, 1)
			require.NoError(t, e.q.Nack(e.ctx, claims[0], layer.NackOptions{Reject: "poison"}))
			e.clock.advance(time.Second)
		}
		marks := len(states)
		if paused {
			_, err := admin.PauseGroup(e.ctx, "A", layer.PauseOptions{})
			require.NoError(t, err)
			marks++
		}
		e.check()
		stored := func() []kv.KV {
			return append(e.rows(kv.PrefixRange(key("lock"))), e.rows(kv.PrefixRange(key("mark")))...)
		}
		var ended *layer.Mark
		for left := marks; left > 0; left-- {
			require.Len(t, e.rows(kv.PrefixRange(key("mark"))), left)
			if ended != nil {
				before := stored()
				_, err := admin.ResumeGroup(e.ctx, "A", layer.ResumeOptions{Mark: ended})
				require.ErrorIs(t, err, layer.ErrChanged)
				require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) error {
					_, err := admin.ResumeGroupTx(e.ctx, tx, "A", layer.ResumeOptions{Mark: ended})
					require.ErrorIs(t, err, layer.ErrChanged)
					return nil
				}))
				require.Equal(t, before, stored())
			}
			g, err := admin.Group(e.ctx, "A", nil)
			require.NoError(t, err)
			require.NotNil(t, g.Mark)
			was, err := admin.ResumeGroup(e.ctx, "A", layer.ResumeOptions{Mark: g.Mark})
			require.NoError(t, err)
			require.Equal(t, *g.Mark, was)
			ended = &was
			e.check()
		}
		_, err := admin.ResumeGroup(e.ctx, "A", layer.ResumeOptions{Mark: ended})
		require.ErrorIs(t, err, layer.ErrNotPaused)
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 3})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.Len(t, claims[0].Items, len(states))
	}
}

// TestRefusedResumeOfManyLanes (contract): a group has more halted lanes than a resume in the caller's transaction can
// end. It then changes nothing. A resume in transactions of its own, with a mark that 77 lanes have, ends these alone.
func TestRefusedResumeOfManyLanes(t *testing.T) {
	e := newEnvOf(t, anyEngine, false, func(c *layer.Config) {
		facets("*; state").configure(c)
		c.OnFailure = layer.HaltGroup
	})
	const lanes = 1001
	for first := 0; first < lanes; first += 77 {
		var some []layer.Message
		for i := first; i < first+77; i++ {
			some = append(some, layer.Message{Group: "A", Headers: facetsOf(fmt.Sprint("s", i), "EU")})
		}
		_, err := e.q.Enqueue(e.ctx, some...)
		require.NoError(t, err)
		for _, m := range some {
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{
				Group: layer.OnlyGroup("A"), Where: layer.Template{"state": m.Headers["state"]},
			})
			require.NoError(t, err)
			require.Len(t, claims, 1)
			require.NoError(t, e.q.Nack(e.ctx, claims[0], layer.NackOptions{Reject: "poison"}))
		}
		e.clock.advance(time.Second)
	}
	admin := e.q.Admin()
	require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) error {
		_, err := admin.ResumeGroupTx(e.ctx, tx, "A", layer.ResumeOptions{})
		require.ErrorIs(t, err, layer.ErrLimit)
		return nil
	}))
	require.Len(t, e.rows(kv.PrefixRange(key("mark"))), lanes)
	g, err := admin.Group(e.ctx, "A", layer.Template{"state": "s1000"})
	require.NoError(t, err)
	was, err := admin.ResumeGroup(e.ctx, "A", layer.ResumeOptions{Mark: g.Mark})
	require.NoError(t, err)
	require.Equal(t, *g.Mark, was)
	require.Len(t, e.rows(kv.PrefixRange(key("mark"))), lanes-77)
	_, err = admin.ResumeGroup(e.ctx, "A", layer.ResumeOptions{Mark: g.Mark})
	require.ErrorIs(t, err, layer.ErrChanged)
	e.check()
}

// TestRetryNowLeavesNoTimer: after RetryNow a group is ready, and counts no more as delayed.
func TestRetryNowLeavesNoTimer(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: time.Hour})
	require.NoError(t, err)
	s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, s.DelayedGroups)
	require.NoError(t, e.q.Admin().RetryNow(e.ctx, "A", layer.RetryOptions{}))
	s, err = e.q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.Zero(t, s.DelayedGroups)
	require.EqualValues(t, 1, s.ReadyGroups)
	require.NotNil(t, e.receive(e.q, 1))
}
