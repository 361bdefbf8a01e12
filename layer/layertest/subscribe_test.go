package layer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// keepChanges makes the queue keep changes, and every handle of e follow.
func (e *env) keepChanges(d time.Duration) {
	e.t.Helper()
	_, _, err := e.calm().Admin().Configure(e.ctx, func(c *layer.Config) { c.Changes = d })
	require.NoError(e.t, err)
	e.clock.advance(time.Second)
}

// told is what a subscription was told.
type told struct {
	mu  sync.Mutex
	all []string
}

func (s *told) handler(_ context.Context, changes []layer.Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		s.all = append(s.all, fmt.Sprintf("%s %s %d", c.Kind, c.ID.Group, c.Items))
	}
	return nil
}

func (s *told) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.all...)
}

// subscribed runs a subscription until stop is called, which returns what Subscribe has returned.
func (e *env) subscribed(subscribe func(ctx context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(e.ctx)
	done := make(chan error, 1)
	go func() { done <- subscribe(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

// TestChangesOfEveryKind: a subscription is told of each thing that happens to an item, in the order of the commits.
func TestChangesOfEveryKind(t *testing.T) {
	onEngines(t, func(e *env) {
		e.keepChanges(time.Hour)
		var s told
		q := e.handle(2)
		stop := e.subscribed(func(ctx context.Context) error {
			return q.Subscribe(ctx, "audit", s.handler, layer.SubscribeOptions{FromOldest: true})
		})
		admin := e.q.Admin()
		ids := e.enqueue("A", "a1", "a2", "a3", "a4")
		claim := e.receive(e.q, 1)
		require.NoError(e.t, e.q.Ack(e.ctx, claim))
		claim = e.receive(e.q, 1)
		require.NoError(e.t, e.q.Nack(e.ctx, claim, layer.NackOptions{Reject: "no"}))
		require.NoError(e.t, e.q.Replace(e.ctx, ids[3], []byte("a5"), nil))
		require.NoError(e.t, admin.Cancel(e.ctx, ids[3]))
		report, err := admin.Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 1, report.Done)
		claim = e.receive(e.q, 1)
		require.NoError(e.t, e.q.Nack(e.ctx, claim, layer.NackOptions{Reject: "no"}))
		_, err = admin.Discard(e.ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{})
		require.NoError(e.t, err)
		e.enqueue("B", "b1", "b2", "b3")
		purged, err := admin.Purge(e.ctx, layer.PurgeOptions{Group: ptr("B")})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 3, purged.Items)
		want := []string{
			"enqueued A 1", "enqueued A 1", "enqueued A 1", "enqueued A 1",
			"finished A 1", "dead_lettered A 1", "edited A 1", "cancelled A 1", "redriven A 1", "dead_lettered A 1",
			"discarded A 1",
			"enqueued B 1", "enqueued B 1", "enqueued B 1", "purged B 3",
		}
		require.Eventually(e.t, func() bool {
			all, err := e.calm().Admin().Subscriptions(e.ctx)
			return err == nil && len(all) == 1 && len(s.list()) >= len(want) && all[0].Behind == 0
		}, time.Minute, time.Millisecond)
		require.NoError(e.t, stop())
		if e.plan.Chances == nil { // a failed store of the place tells again
			require.Equal(e.t, want, s.list())
		}
		all, err := e.calm().Admin().Subscriptions(e.ctx)
		require.NoError(e.t, err)
		require.Len(e.t, all, 1)
		all[0].Owner, all[0].Until = "", time.Time{} // it is given up within a second, or not: see endSubscriptions
		require.Equal(e.t, []layer.SubscriptionInfo{{Name: "audit"}}, all)
	})
}

// TestChangesExactlyOnce: workers and producers run, and three processes that share one subscription are stopped and
// started again. Commits fail or have unknown outcomes. The effects of a handler's transaction are there once for each
// change, and no item is finished before it is enqueued.
func TestChangesExactlyOnce(t *testing.T) {
	onEngines(t, func(e *env) {
		e.keepChanges(time.Hour)
		e.clock.real.Store(true)
		journal := func(n int64) []byte { return tuple.Tuple{"journal", n}.Pack() }
		tail := tuple.Tuple{"journal tail"}.Pack()
		write := func(ctx context.Context, tx kv.Tx, changes []layer.Change) error {
			v, err := tx.Get(tail).Wait(ctx)
			if err != nil {
				return err
			}
			n := int64(0)
			if v != nil {
				if n, _, err = tuple.DecodeInt(v); err != nil {
					return err
				}
			}
			for _, c := range changes {
				tx.Set(journal(n), tuple.Tuple{c.Kind.String(), c.ID.String()}.Pack())
				n++
			}
			tx.Set(tail, tuple.Tuple{n}.Pack())
			return nil
		}
		const items = 45
		producing, cancel := context.WithCancel(e.ctx)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				for n := uint64(0); producing.Err() == nil; n++ {
					q := e.handle(uint64(100*(i+1)) + n)
					// Longer and longer, so that a slow machine comes to an end too.
					lasts := time.Duration(10+7*i) * time.Millisecond * time.Duration(1+n/4)
					life, end := context.WithTimeout(producing, lasts)
					o := layer.SubscribeOptions{Max: 7, OnError: func(error) {}}
					if err := q.SubscribeTx(life, "audit", write, o); err != nil {
						e.t.Error(err)
					}
					end()
					if err := q.Close(e.ctx); err != nil {
						e.t.Error(err)
					}
				}
			})
		}
		// Before the first change, because the subscription begins with the changes to come.
		require.Eventually(e.t, func() bool {
			all, err := e.calm().Admin().Subscriptions(e.ctx)
			return err == nil && len(all) == 1
		}, time.Minute, time.Millisecond)
		for i := range items {
			e.enqueue(fmt.Sprintf("G%d", i%5), "x")
			if i%3 == 2 {
				if c := e.receive(e.q, 2); c != nil {
					require.NoError(e.t, e.q.Ack(e.ctx, c))
				}
			}
		}
		require.Eventually(e.t, func() bool {
			all, err := e.calm().Admin().Subscriptions(e.ctx)
			return err == nil && len(all) == 1 && all[0].Behind == 0
		}, 2*time.Minute, 5*time.Millisecond)
		cancel()
		wg.Wait()
		seen := map[string]string{}
		enqueued := 0
		for _, row := range e.rows(kv.PrefixRange(tuple.Tuple{"journal"}.Pack())) {
			line, err := tuple.Unpack(row.Value)
			require.NoError(e.t, err)
			kind, id := line[0].(string), line[1].(string)
			switch kind {
			case "enqueued":
				require.Empty(e.t, seen[id], id)
				enqueued++
			case "finished":
				require.Equal(e.t, "enqueued", seen[id], id)
			default:
				e.t.Errorf("%s %s", kind, id)
			}
			seen[id] = kind
		}
		require.Equal(e.t, items, enqueued)
		waiting := 0
		for g := range 5 {
			waiting += len(e.all(fmt.Sprintf("G%d", g)))
		}
		for _, kind := range seen {
			if kind == "enqueued" {
				waiting--
			}
		}
		require.Zero(e.t, waiting, "what is told as waiting is what waits")
	})
}

// TestChangesOfUnknownCommit (G3, trap 4): if the outcome of the commit of a handler's transaction is unknown, its
// effect is there once: the handler is called again only if the commit did not land.
func TestChangesOfUnknownCommit(t *testing.T) {
	for kind, most := range map[fault.Kind]int{fault.UnknownApplied: 1, fault.UnknownLost: 2} {
		t.Run(kind.String(), func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			e.keepChanges(time.Hour)
			e.enqueue("A", "a1")
			effect, calls := []byte("effect"), 0
			ctx, cancel := context.WithCancel(e.ctx)
			defer cancel()
			stop := e.subscribed(func(context.Context) error {
				return e.q.SubscribeTx(ctx, "s", func(_ context.Context, tx kv.Tx, _ []layer.Change) error {
					if calls++; calls == 1 {
						e.plan.ForceNext(kind)
					}
					tx.Atomic(kv.Add, effect, []byte{1, 0, 0, 0, 0, 0, 0, 0})
					return nil
				}, layer.SubscribeOptions{FromOldest: true})
			})
			handled := func() {
				require.Eventually(t, func() bool {
					all, err := e.calm().Admin().Subscriptions(e.ctx)
					return err == nil && len(all) == 1 && all[0].Behind == 0
				}, time.Minute, time.Millisecond)
			}
			handled()
			e.enqueue("A", "a2") // the subscriber comes to it when it has done with the first
			handled()
			cancel()
			require.NoError(t, stop())
			require.Equal(t, most+1, calls)
			rows := e.rows(kv.SingleKey(effect))
			require.Len(t, rows, 1)
			require.Equal(t, []byte{2, 0, 0, 0, 0, 0, 0, 0}, rows[0].Value)
		})
	}
}

// TestChangesOfLateCommit (G3, trap 4): the commit of a handler's transaction may still be under way when the handler
// fails in the retry. If the commit lands thereafter, its changes are not handled again, and none behind them is left
// out.
func TestChangesOfLateCommit(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.keepChanges(time.Hour)
	e.enqueue("A", "a1", "a2", "a3")
	e.plan.KeepLate = true
	effect, calls := []byte("effect"), 0
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	stop := e.subscribed(func(context.Context) error {
		return e.q.SubscribeTx(ctx, "s", func(_ context.Context, tx kv.Tx, changes []layer.Change) error {
			switch calls++; calls {
			case 1:
				e.plan.ForceNext(fault.VersionChangedLate)
			case 2:
				return errors.New("failed")
			}
			tx.Atomic(kv.Add, effect, []byte{byte(len(changes)), 0, 0, 0, 0, 0, 0, 0})
			return nil
		}, layer.SubscribeOptions{FromOldest: true, Max: 2, OnError: func(error) {
			if calls == 2 {
				require.NoError(t, e.plan.Land(e.ctx))
			}
		}})
	})
	require.Eventually(t, func() bool {
		all, err := e.calm().Admin().Subscriptions(e.ctx)
		return err == nil && len(all) == 1 && all[0].Behind == 0
	}, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, stop())
	rows := e.rows(kv.SingleKey(effect))
	require.Len(t, rows, 1)
	require.Equal(t, []byte{3, 0, 0, 0, 0, 0, 0, 0}, rows[0].Value)
}

// TestSubscriptionsTellWhatIsKnown (contract): a row of a subscription cannot be read. The list names the error, and
// counts the changes which the subscription has not seen, unless its place is unreadable.
func TestSubscriptionsTellWhatIsKnown(t *testing.T) {
	calmly(t, func(t *testing.T, open func(t *testing.T) kv.DB) {
		e := newEnv(t, open, false)
		e.keepChanges(time.Hour)
		e.enqueue("A", "first")
		ctx, cancel := context.WithCancel(e.ctx)
		require.NoError(t, e.q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
			cancel()
			return nil
		}, layer.SubscribeOptions{FromOldest: true}))
		e.clock.advance(time.Second)
		seen := len(e.rows(kv.PrefixRange(key("change"))))
		for range 3 {
			e.enqueue("A", "x")
		}
		list := func() layer.SubscriptionInfo {
			all, err := e.q.Admin().Subscriptions(e.ctx)
			require.NoError(t, err)
			require.Len(t, all, 1)
			return all[0]
		}
		known := list()
		require.NoError(t, known.Err)
		require.EqualValues(t, 3, known.Behind)

		mend := e.spoil(key("reader", "s"))
		info := list()
		require.ErrorIs(t, info.Err, layer.ErrCorrupt)
		require.EqualValues(t, 3, info.Behind)
		require.Equal(t, known.Next, info.Next)
		mend()

		mend = e.spoil(e.rows(kv.PrefixRange(key("change")))[seen].Key)
		info = list()
		require.ErrorIs(t, info.Err, layer.ErrCorrupt)
		require.EqualValues(t, 3, info.Behind)
		require.Zero(t, info.Next)
		mend()

		mend = e.spoil(key("cursor", "s"))
		info = list()
		require.ErrorIs(t, info.Err, layer.ErrCorrupt)
		require.Zero(t, info.Behind)
		mend()
		require.Equal(t, known, list())
		e.check()
	})
}

// TestSubscriptionEndsAsItBegins: a call whose context ends while it takes the subscription does not leave it held,
// whatever the cause of the end is.
func TestSubscriptionEndsAsItBegins(t *testing.T) {
	calmly(t, func(t *testing.T, open func(t *testing.T) kv.DB) {
		e := newEnv(t, open, false)
		e.keepChanges(time.Hour)
		causes := []error{nil, layer.ErrNoQueue, layer.ErrOptions, layer.ErrClosed}
		for n := range 3 * len(causes) {
			ctx, cancel := context.WithCancelCause(e.ctx)
			commits, cause := n/len(causes), causes[n%len(causes)]
			db := &beforeCommit{DB: e.raw, run: func() { cancel(cause) }}
			q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
			require.NoError(t, err)
			db.skip.Store(int64(commits))
			db.left.Store(1)
			err = q.Subscribe(ctx, "s", (&told{}).handler, layer.SubscribeOptions{Lease: layer.MinLease})
			require.NoError(t, err, "%d %v", commits, cause)
			all, err := e.q.Admin().Subscriptions(e.ctx)
			require.NoError(t, err)
			for _, s := range all {
				require.Zero(t, s.Until)
			}
		}
	})
}

// TestSubscriptionKeepsOrder: a handler that fails, panics or is slow gets the same changes again, fewer at a time, and
// no change passes it. The heartbeat does not disturb a slow transaction.
func TestSubscriptionKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		q, err := layer.Create(ctx, db, testPrefix, testQueue, layer.Options{Config: layer.Config{Changes: time.Hour}})
		require.NoError(t, err)
		msgs := make([]layer.Message, 8)
		for i := range msgs {
			msgs[i].Group = fmt.Sprint(i)
		}
		_, err = q.Enqueue(ctx, msgs...)
		require.NoError(t, err)
		var groups, sizes []string
		var told []error
		calls := 0
		handler := func(ctx context.Context, tx kv.Tx, changes []layer.Change) error {
			calls++
			sizes = append(sizes, fmt.Sprint(len(changes)))
			switch calls {
			case 1:
				return errors.New("down")
			case 2:
				panic("bug")
			case 3:
				time.Sleep(3500 * time.Millisecond) // longer than the lease
			case 4:
				<-ctx.Done() // the context ends before the transaction's 5 s
				return context.Cause(ctx)
			}
			for _, c := range changes {
				groups = append(groups, c.ID.Group)
			}
			return nil
		}
		done := make(chan error)
		go func() {
			done <- q.SubscribeTx(ctx, "s", handler, layer.SubscribeOptions{
				FromOldest: true, Lease: layer.MinLease, OnError: func(err error) { told = append(told, err) },
			})
		}()
		time.Sleep(time.Minute)
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7"}, groups)
		require.Equal(t, []string{"8", "4", "2", "4", "2", "4"}, sizes)
		require.Len(t, told, 3)
		for _, err := range told {
			var failed *layer.ChangeError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, "s", failed.Subscription)
		}
		require.ErrorContains(t, told[0], "down")
		require.ErrorContains(t, told[1], "panic: bug")
		require.ErrorIs(t, told[2], context.DeadlineExceeded)
		require.NoError(t, q.Close(context.Background()))
	})
}

// TestSubscriptionStopsWithASlowHandler (contract): a subscription that is stopped while its handler runs stays the
// process's own until the handler has returned, however short the lease: no other process gets the same changes in that
// time.
func TestSubscriptionStopsWithASlowHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		o := layer.Options{Config: layer.Config{Changes: time.Hour}}
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, o)
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), layer.Message{Group: "A"})
		require.NoError(t, err)
		var mu sync.Mutex
		var calls []string
		note := func(call string) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, call)
		}
		noted := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(calls)
		}
		subscribe := func(ctx context.Context, name string, took time.Duration) (ended chan error) {
			ended = make(chan error)
			go func() {
				ended <- q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
					note(name + " begins")
					time.Sleep(took)
					note(name + " ends")
					return nil
				}, layer.SubscribeOptions{FromOldest: true, Lease: layer.MinLease})
			}()
			return ended
		}
		stopping, stop := context.WithCancel(t.Context())
		first := subscribe(stopping, "first", 5*layer.MinLease)
		time.Sleep(time.Second)
		stop()
		others, end := context.WithCancel(t.Context())
		second := subscribe(others, "second", 0)
		time.Sleep(time.Minute)
		require.NoError(t, <-first)
		require.Equal(t, []string{"first begins", "first ends"}, noted())
		_, err = q.Enqueue(t.Context(), layer.Message{Group: "A"})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"first begins", "first ends", "second begins", "second ends"}, noted())
		end()
		require.NoError(t, <-second)
		report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(t.Context()))
	})
}

// TestSubscriptionGoesOnElsewhere (G5): when the process that holds a subscription ends it in good order, a process
// that waits for it goes on within ten seconds, however long the lease is.
func TestSubscriptionGoesOnElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, inMemory, false)
		e.clock.real.Store(true)
		e.keepChanges(time.Hour)
		var s told
		var stops []func() error
		for n := range uint64(2) {
			q := e.handle(2 + n)
			stops = append(stops, e.subscribed(func(ctx context.Context) error {
				return q.Subscribe(ctx, "s", s.handler, layer.SubscribeOptions{Lease: layer.MaxLease})
			}))
			time.Sleep(2 * time.Second)
		}
		require.NoError(t, stops[0]())
		e.enqueue("A", "a1")
		time.Sleep(11 * time.Second)
		require.Len(t, s.list(), 1)
		require.NoError(t, stops[1]())
	})
}

// TestSubscriptionsEnd: a subscription ends with its context and its handle, and lets the next one go on at once.
func TestSubscriptionsEnd(t *testing.T) { synctest.Test(t, endSubscriptions) }

func endSubscriptions(t *testing.T) {
	e := newEnv(t, inMemory, false)
	e.keepChanges(time.Hour)
	var s told
	serve := func(n uint64) (q *layer.Queue, stop func() error) {
		q = e.handle(n)
		stop = e.subscribed(func(ctx context.Context) error {
			return q.Subscribe(ctx, "s", s.handler, layer.SubscribeOptions{FromOldest: true})
		})
		require.Eventually(t, func() bool {
			all, err := e.q.Admin().Subscriptions(e.ctx)
			return err == nil && len(all) == 1 && all[0].Owner == fmt.Sprintf("worker-%d", n)
		}, time.Minute, time.Millisecond)
		return q, stop
	}
	_, stop := serve(2)
	require.NoError(t, stop())
	q, stop := serve(3)
	require.NoError(t, q.Close(e.ctx))
	time.Sleep(600 * time.Millisecond)
	require.ErrorIs(t, stop(), layer.ErrClosed)
	require.NoError(t, e.q.Admin().Unsubscribe(e.ctx, "s"))
	require.ErrorIs(t, e.q.Admin().Unsubscribe(e.ctx, "s"), layer.ErrNoSubscription)
}

// TestSubscriptionEndsWithItsHandle: a call that ends because its handle was closed does not leave the subscription
// held for the rest of the lease. The call may be in its handler, wait for a change, or wait for another process.
func TestSubscriptionEndsWithItsHandle(t *testing.T) {
	for _, doing := range []string{"handles", "waits", "stands by"} {
		t.Run(doing, func(t *testing.T) {
			inBubble(t, layer.Config{Changes: time.Hour}, func(b *bubble) {
				ctx, q := b.t.Context(), b.q
				other, err := layer.Open(ctx, b.db, testPrefix, testQueue, layer.Options{})
				require.NoError(b.t, err)
				defer other.Close(ctx)
				handled, o := make(chan string, 3), layer.SubscribeOptions{Lease: time.Hour, Max: 1}
				handler := func(_ context.Context, all []layer.Change) error {
					handled <- all[0].ID.Group
					if doing == "handles" {
						time.Sleep(3 * time.Second)
					}
					return nil
				}
				closed := make(chan error, 1)
				go func() { closed <- q.Subscribe(ctx, "s", handler, o) }()
				time.Sleep(time.Second)
				ending, end := context.WithCancel(ctx)
				ended := make(chan error, 1)
				if doing == "stands by" {
					go func() { ended <- q.Subscribe(ending, "s", handler, o) }()
				}
				_, err = other.Enqueue(ctx, layer.Message{Group: "A"})
				require.NoError(b.t, err)
				require.Equal(b.t, "A", <-handled)
				require.NoError(b.t, q.Close(ctx))
				require.ErrorIs(b.t, <-closed, layer.ErrClosed)
				if doing == "stands by" {
					require.ErrorIs(b.t, <-ended, layer.ErrClosed)
				}
				go func() { ended <- other.Subscribe(ending, "s", handler, o) }()
				_, err = other.Enqueue(ctx, layer.Message{Group: "B"})
				require.NoError(b.t, err)
				begun := time.Now()
				for group := ""; group != "B"; {
					group = <-handled
				}
				require.Less(b.t, time.Since(begun), 10*time.Second)
				end()
				require.NoError(b.t, <-ended)
			})
		})
	}
}

// TestHandlerErrorEndsNoSubscription: an error of the handler's own, as of another queue that is gone, is not taken for
// one of the subscription when its context has ended, or another process has taken over.
func TestHandlerErrorEndsNoSubscription(t *testing.T) {
	for _, theirs := range []error{layer.ErrNoQueue, layer.ErrClosed, layer.ErrOptions, layer.ErrCorrupt} {
		t.Run(theirs.Error(), func(t *testing.T) {
			calmly(t, func(t *testing.T, open func(t *testing.T) kv.DB) {
				e := newEnv(t, open, false)
				e.keepChanges(time.Hour)
				e.enqueue("A", "a1")
				ctx, cancel := context.WithCancel(e.ctx)
				err := e.q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
					cancel()
					return fmt.Errorf("my other queue: %w", theirs)
				}, layer.SubscribeOptions{FromOldest: true, Lease: time.Hour})
				require.NoError(t, err)
				all, err := e.q.Admin().Subscriptions(e.ctx)
				require.NoError(t, err)
				require.Len(t, all, 1)
				require.Zero(t, all[0].Until)

				calls := 0
				ctx, cancel = context.WithCancel(e.ctx)
				err = e.q.Subscribe(ctx, "s", func(of context.Context, _ []layer.Change) error {
					if calls++; calls == 2 {
						cancel()
						return nil
					}
					e.write(func(tx kv.Tx) { tx.Clear(key("reader", "s")) }) // as if another process had been there
					<-of.Done()
					return fmt.Errorf("my other queue: %w", theirs)
				}, layer.SubscribeOptions{Lease: layer.MinLease})
				require.NoError(t, err)
				require.Equal(t, 2, calls)
			})
		})
	}
}

// TestSubscribeRefuses: what cannot work is an error before anything is written.
func TestSubscribeRefuses(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	var s told
	inTx := func(context.Context, kv.Tx, []layer.Change) error { return nil }
	type options = layer.SubscribeOptions
	subscribe := func(name string, o options) error { return e.q.Subscribe(e.ctx, name, s.handler, o) }
	for name, c := range map[string]struct{ err, want error }{
		"no changes kept": {subscribe("s", options{}), layer.ErrOptions},
		"no handler":      {e.q.Subscribe(e.ctx, "s", nil, options{}), layer.ErrOptions},
		"no handler, tx":  {e.q.SubscribeTx(e.ctx, "s", nil, options{}), layer.ErrOptions},
		"no name":         {subscribe("", options{}), layer.ErrLimit},
		"name":            {subscribe("\xff", options{}), layer.ErrInvalidUTF8},
		"kind":            {subscribe("s", options{Kinds: []layer.ChangeKind{99}}), layer.ErrOptions},
		"left what":       {subscribe("s", options{Kinds: []layer.ChangeKind{layer.ChangeLeft}}), layer.ErrOptions},
		"max":             {subscribe("s", options{Max: 1001}), layer.ErrLimit},
		"parallel":        {subscribe("s", options{Parallel: -1}), layer.ErrLimit},
		"parallel, tx":    {e.q.SubscribeTx(e.ctx, "s", inTx, options{Parallel: 2}), layer.ErrOptions},
		"lease":           {subscribe("s", options{Lease: 1}), layer.ErrLimit},
	} {
		require.ErrorIs(t, c.err, c.want, name)
	}
	require.Empty(t, e.rows(kv.PrefixRange(key("cursor"))))
}

// TestSweepClearsChanges: changes go when every subscription has seen them, or when they are as old as the queue says;
// a subscription that was too far behind is told once that it has missed some, and goes on.
func TestSweepClearsChanges(t *testing.T) {
	calmly(t, func(t *testing.T, open func(t *testing.T) kv.DB) {
		e := newEnv(t, open, false)
		e.keepChanges(time.Hour)
		var fast, slow told
		run := func(s *told, name string, o layer.SubscribeOptions, n int) {
			stop := e.subscribed(func(ctx context.Context) error { return e.q.Subscribe(ctx, name, s.handler, o) })
			require.Eventually(t, func() bool {
				all, err := e.q.Admin().Subscriptions(e.ctx)
				for _, s := range all {
					if s.Name == name && s.Behind == 0 && !s.Until.IsZero() {
						return err == nil && len(s.Name) > 0
					}
				}
				return false
			}, time.Minute, time.Millisecond)
			require.NoError(t, stop())
			require.Len(t, s.list(), n)
		}
		sweep := func(n int64) {
			report, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(t, err)
			require.Equal(t, n, report.Changes)
		}
		run(&slow, "slow", layer.SubscribeOptions{}, 0)
		e.enqueue("A", "a1")
		e.enqueue("A", "a2")
		run(&fast, "fast", layer.SubscribeOptions{FromOldest: true}, 2)
		sweep(0)
		run(&slow, "slow", layer.SubscribeOptions{}, 2)
		sweep(2)
		e.enqueue("A", "a3")
		e.clock.advance(time.Hour)
		e.enqueue("A", "a4")
		run(&fast, "fast", layer.SubscribeOptions{}, 4)
		sweep(1)
		missed := 0
		run(&slow, "slow", layer.SubscribeOptions{OnError: func(err error) {
			var m *layer.MissedError
			require.ErrorAs(t, err, &m)
			missed++
		}}, 3)
		require.Equal(t, 1, missed)
		run(&told{}, "new", layer.SubscribeOptions{FromOldest: true, OnError: func(err error) { t.Error(err) }}, 1)
	})
}

// TestChangesInParallel: calls of different groups run at the same time, those of one group never.
func TestChangesInParallel(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.keepChanges(time.Hour)
	for range 3 {
		for g := range 16 {
			e.enqueue(fmt.Sprint(g), "x")
		}
	}
	var mu sync.Mutex
	busy, most, total := map[string]bool{}, 0, 0
	last := map[string]int64{}
	handler := func(_ context.Context, changes []layer.Change) error {
		mu.Lock()
		groups := map[string]bool{}
		for _, c := range changes {
			if busy[c.ID.Group] {
				t.Errorf("group %s is in two calls", c.ID.Group)
			}
			if c.ID.Index <= last[c.ID.Group] {
				t.Errorf("group %s: index %d after %d", c.ID.Group, c.ID.Index, last[c.ID.Group])
			}
			last[c.ID.Group] = c.ID.Index
			groups[c.ID.Group] = true
		}
		for g := range groups {
			busy[g] = true
		}
		total += len(changes)
		most = max(most, len(busy))
		mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		for g := range groups {
			delete(busy, g)
		}
		return nil
	}
	stop := e.subscribed(func(ctx context.Context) error {
		return e.q.Subscribe(ctx, "s", handler, layer.SubscribeOptions{FromOldest: true, Parallel: 4, Max: 16})
	})
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return total == 48
	}
	require.Eventually(t, all, time.Minute, time.Millisecond)
	require.NoError(t, stop())
	require.Greater(t, most, 4)
}

// TestSubscribeByTemplate: a subscription with a template gets the changes of items that match it, by the facets that
// they have then. It also gets the change by which an item ceases to match, and purges. Each change has its facets, and
// those before.
func TestSubscribeByTemplate(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.laned("lanes", "*; state", func(c *layer.Config) { c.Changes = time.Hour }, 1)[0]
	l := e.on(q)
	follow := func(name string, o layer.SubscribeOptions) (list func() []string, stop func() error) {
		var mu sync.Mutex
		var all []string
		o.FromOldest = true
		stop = e.subscribed(func(ctx context.Context) error {
			return q.Subscribe(ctx, name, func(_ context.Context, changes []layer.Change) error {
				mu.Lock()
				defer mu.Unlock()
				for _, c := range changes {
					text := fmt.Sprint(c.Kind, " ", c.Facets["state"], " ", c.Facets["region"])
					if c.Was != nil {
						text += " was " + c.Was["state"] + " " + c.Was["region"]
					}
					all = append(all, strings.TrimSpace(text))
				}
				return nil
			}, o)
		})
		return func() []string {
			mu.Lock()
			defer mu.Unlock()
			return append([]string(nil), all...)
		}, stop
	}
	l.sendStates("NEW", "PAID")
	_, err := q.Enqueue(e.ctx, layer.Message{Group: "B", Headers: facetsOf("NEW", "US")})
	require.NoError(t, err)
	require.NoError(t, advancing("PAID")(l, l.claimBy(isNew, 1)))
	require.NoError(t, q.Ack(e.ctx, l.claimBy(isPaid, 1)))
	require.NoError(t, q.Nack(e.ctx, l.claimBy(isPaid, 1), layer.NackOptions{Reject: "no"}))
	_, err = q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
	require.NoError(t, err)
	items, err := q.Peek(e.ctx, "A", 1, nil)
	require.NoError(t, err)
	require.NoError(t, q.Admin().Cancel(e.ctx, items[0].ID))
	items, err = q.Peek(e.ctx, "B", 1, nil)
	require.NoError(t, err)
	_, err = q.Admin().Skip(e.ctx, "B", layer.SkipOptions{})
	require.NoError(t, err)
	_, err = q.Admin().Discard(e.ctx, layer.DeadFilter{IDs: []layer.ID{items[0].ID}}, layer.DiscardOptions{})
	require.NoError(t, err)
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "C", Headers: facetsOf("DONE", "US")})
	require.NoError(t, err)
	_, err = q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: layer.OnlyGroup("C")})
	require.NoError(t, err)
	sent, err := q.Enqueue(e.ctx, layer.Message{Group: "D", Headers: facetsOf("PAID", "EU")})
	require.NoError(t, err)
	require.NoError(t, q.Replace(e.ctx, sent[0].ID, []byte("the same facets"), facetsOf("PAID", "EU")))
	require.NoError(t, q.Admin().Edit(e.ctx, sent[0].ID, func(m *layer.Message) error {
		m.Headers["state"] = "NEW"
		return nil
	}))
	for name, c := range map[string]struct {
		o    layer.SubscribeOptions
		want []string
	}{
		"all": {layer.SubscribeOptions{}, []string{
			"enqueued NEW EU", "enqueued PAID EU", "enqueued NEW US", "advanced PAID EU was NEW EU", "finished PAID EU",
			"dead_lettered PAID EU", "redriven PAID EU", "cancelled PAID EU", "dead_lettered NEW US",
			"discarded NEW US", "enqueued DONE US", "purged", "enqueued PAID EU",
			"edited PAID EU", "edited NEW EU was PAID EU",
		}},
		"paid": {layer.SubscribeOptions{Where: isPaid}, []string{
			"enqueued PAID EU", "advanced PAID EU was NEW EU", "finished PAID EU", "dead_lettered PAID EU",
			"redriven PAID EU", "cancelled PAID EU", "purged", "enqueued PAID EU", "edited PAID EU",
			"left NEW EU was PAID EU",
		}},
		"new": {layer.SubscribeOptions{Where: isNew}, []string{
			"enqueued NEW EU", "enqueued NEW US", "left PAID EU was NEW EU", "dead_lettered NEW US", "discarded NEW US",
			"purged", "edited NEW EU was PAID EU",
		}},
		"left": {layer.SubscribeOptions{Where: isNew, Kinds: []layer.ChangeKind{layer.ChangeLeft}}, []string{
			"left PAID EU was NEW EU",
		}},
		"of no view, by kind": {
			layer.SubscribeOptions{
				Where: layer.Template{"region": "US"},
				Kinds: []layer.ChangeKind{layer.ChangeEnqueued, layer.ChangeDiscarded},
			},
			[]string{"enqueued NEW US", "discarded NEW US", "enqueued DONE US"},
		},
	} {
		list, stop := follow(name, c.o)
		all := func() bool { return len(list()) >= len(c.want) }
		require.Eventually(t, all, time.Minute, time.Millisecond, name)
		require.Equal(t, c.want, list(), name)
		require.NoError(t, stop())
	}
	handler := func(context.Context, []layer.Change) error { return nil }
	var value *layer.ValueError
	err = q.Subscribe(e.ctx, "s", handler, layer.SubscribeOptions{Where: layer.Template{"color": "red"}})
	require.ErrorAs(t, err, &value)
	require.ErrorContains(t, err, "state")
	var refused *layer.TemplateError
	err = e.q.Subscribe(e.ctx, "s", handler, layer.SubscribeOptions{Where: isNew})
	require.ErrorAs(t, err, &refused)
}

// TestChangesChangedInPlace: a handler may sort or filter its changes in place. Another attempt of its transaction gets
// them as they are stored.
func TestChangesChangedInPlace(t *testing.T) {
	inBubble(t, layer.Config{Changes: time.Hour}, func(b *bubble) {
		b.fill(2)
		ctx, cancel := context.WithCancel(b.t.Context())
		var got [][]layer.ID
		err := b.q.SubscribeTx(ctx, "s", func(_ context.Context, _ kv.Tx, changes []layer.Change) error {
			var ids []layer.ID
			for _, c := range changes {
				ids = append(ids, c.ID)
			}
			got = append(got, ids)
			clear(changes)
			if len(got) == 1 {
				return &kv.Error{Code: kv.CodeNotCommitted}
			}
			cancel()
			return nil
		}, layer.SubscribeOptions{FromOldest: true})
		require.NoError(b.t, err)
		require.Len(b.t, got, 2)
		require.Len(b.t, got[0], 2)
		require.Equal(b.t, got[0], got[1])
	})
}

// onLagging runs fn in a bubble with a database, and with the same database whose calls take lag.
func onLagging(t *testing.T, lag time.Duration, fn func(t *testing.T, db, lagging kv.DB)) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		fn(t, db, &cutDB{DB: db, lag: lag})
	})
}

// TestSubscriptionsOfMany: the subscriptions are listed, with the changes that they have not seen, however many there
// are and however long a read takes.
func TestSubscriptionsOfMany(t *testing.T) {
	onLagging(t, 20*time.Millisecond, func(t *testing.T, db, lagging kv.DB) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		q, err := layer.Create(ctx, db, testPrefix, testQueue, layer.Options{Config: layer.Config{Changes: time.Hour}})
		require.NoError(t, err)
		defer q.Close(t.Context())
		enqueue := func() {
			_, err := q.Enqueue(ctx, layer.Message{Group: "A"})
			require.NoError(t, err)
		}
		enqueue()
		told, stop := context.WithCancel(ctx)
		require.NoError(t, q.Subscribe(told, "0000", func(context.Context, []layer.Change) error {
			stop()
			return nil
		}, layer.SubscribeOptions{FromOldest: true}))
		for range 7 {
			enqueue()
		}
		_, err = kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			key := func(i int) []byte {
				path := tuple.Tuple{testQueue, "cursor", fmt.Sprintf("%04d", i)}
				return append(append([]byte(nil), testPrefix...), path.Pack()...)
			}
			stored, err := tx.Get(key(0)).Wait(ctx)
			for i := range 300 {
				tx.Set(key(i), stored)
			}
			return err
		})
		require.NoError(t, err)
		slow, err := layer.Open(ctx, lagging, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		defer slow.Close(t.Context())
		all, err := slow.Admin().Subscriptions(ctx)
		require.NoError(t, err)
		require.Len(t, all, 300)
		for i, s := range all {
			require.NoError(t, s.Err)
			require.Equal(t, fmt.Sprintf("%04d", i), s.Name)
			require.EqualValues(t, 7, s.Behind)
		}
	})
}

// inSubscription runs a subscription of each kind while fn runs. Its errors are told to b.onError.
func inSubscription(
	t *testing.T, plan *fault.Plan, handler func(b *bubble) error, fn func(b *bubble, inTx bool, calls *atomic.Int64),
) {
	for _, inTx := range []bool{false, true} {
		inBubble(t, layer.Config{Changes: time.Hour}, func(b *bubble) {
			q, err := layer.Open(b.t.Context(), fault.Wrap(b.db, plan), testPrefix, testQueue, layer.Options{})
			require.NoError(b.t, err)
			var calls atomic.Int64
			call := func() error {
				calls.Add(1)
				return handler(b)
			}
			ctx, cancel := context.WithCancel(b.t.Context())
			done, o := make(chan error, 1), layer.SubscribeOptions{FromOldest: true, OnError: b.onError}
			go func() {
				plain := func(context.Context, []layer.Change) error { return call() }
				if inTx {
					part := func(context.Context, kv.Tx, []layer.Change) error { return call() }
					done <- q.SubscribeTx(ctx, "s", part, o)
				} else {
					done <- q.Subscribe(ctx, "s", plain, o)
				}
			}()
			b.fill(1)
			fn(b, inTx, &calls)
			cancel()
			require.NoError(b.t, <-done)
			require.NoError(b.t, q.Close(b.t.Context()))
		})
	}
}

// TestChangesAfterFault: a plain handler is not called again if its place cannot be stored at first, because commits
// fail for half of the lease.
func TestChangesAfterFault(t *testing.T) {
	for _, kind := range []fault.Kind{fault.CommitFailed, fault.TimedOutLost, fault.UnnamedApplied} {
		var heals atomic.Int64
		plan := &fault.Plan{OnCommit: func(int, kv.Tx) fault.Kind {
			if time.Now().UnixNano() < heals.Load() {
				return kind
			}
			return fault.None
		}}
		inSubscription(t, plan, func(*bubble) error {
			heals.Store(time.Now().Add(15 * time.Second).UnixNano())
			return nil
		}, func(b *bubble, inTx bool, calls *atomic.Int64) {
			time.Sleep(time.Minute)
			if !inTx {
				require.EqualValues(b.t, 1, calls.Load(), kind)
			}
			require.NotEmpty(b.t, b.reported())
		})
	}
}

// TestStuckHandlerOfChanges: a handler of changes that does not return is reported once, with its stack.
func TestStuckHandlerOfChanges(t *testing.T) {
	hang := func(*bubble) error {
		time.Sleep(6 * time.Hour)
		return nil
	}
	inSubscription(t, &fault.Plan{}, hang, func(b *bubble, inTx bool, calls *atomic.Int64) {
		time.Sleep(5 * time.Hour)
		require.Len(b.t, b.reported(), 1)
		require.ErrorAs(b.t, b.reported()[0], new(*layer.ChangeError))
		require.ErrorContains(b.t, b.reported()[0], "TestStuckHandlerOfChanges")
		require.EqualValues(b.t, 1, calls.Load())
	})
}
