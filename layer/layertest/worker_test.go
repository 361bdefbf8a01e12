package layer_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// journal is what handlers and OnError were given; others wait for its entries.
type journal struct {
	mu      sync.Mutex
	handled map[string][]string // bodies by group, in order; guarded by mu
	errs    []error             // guarded by mu
	entries chan string         // each body that was handled, and "error" for each error
}

func newJournal() *journal {
	return &journal{handled: make(map[string][]string), entries: make(chan string, 1000)}
}

func (j *journal) handle(item layer.Item) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.handled[item.ID.Group] = append(j.handled[item.ID.Group], string(item.Body))
	j.entries <- string(item.Body)
}

func (j *journal) onError(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.errs = append(j.errs, err)
	j.entries <- "error"
}

// await returns the next n entries.
func (j *journal) await(t *testing.T, n int) []string {
	t.Helper()
	got := make([]string, n)
	for i := range got {
		got[i] = receiveFrom(t, j.entries)
	}
	return got
}

// plainWorker is a worker with a handler of items.
func plainWorker(
	q *layer.Queue, h func(context.Context, layer.Item) error, o worker.Options,
) (*worker.Worker, error) {
	if h == nil {
		return worker.New(q, worker.Handle(nil), quiet(o))
	}
	return worker.New(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		return h(ctx, d.Item)
	}), quiet(o))
}

// txWorker is a worker with a handler of items in transactions.
func txWorker(
	q *layer.Queue, h func(context.Context, kv.Tx, layer.Item) error, o worker.Options,
) (*worker.Worker, error) {
	if h == nil {
		return worker.New(q, worker.HandleTx(nil), quiet(o))
	}
	return worker.New(q, worker.HandleTx(func(ctx context.Context, tx kv.Tx, d *worker.Delivery) error {
		return h(ctx, tx, d.Item)
	}), quiet(o))
}

// quiet logs nothing.
func quiet(o worker.Options) worker.Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// receiveFrom waits for a signal, and for long enough that only a fault of the program can keep it waiting.
func receiveFrom[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatal("the signal never came")
		panic("unreachable")
	}
}

// quick looks often, so that a test does not wait for a poll.
const quick = 2 * time.Millisecond

func start(t *testing.T, w *worker.Worker, err error) *worker.Worker {
	t.Helper()
	require.NoError(t, err)
	w.Start()
	// A test that failed half-way must not leave it running on a closed engine.
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		w.Stop(ended)
	})
	return w
}

// stopping is a context that tells when a call begins to wait for its end. Stop does so after it has told the worker's
// goroutines.
type stopping struct {
	context.Context
	begun chan struct{}
	once  sync.Once
}

func newStopping(ctx context.Context) *stopping {
	return &stopping{Context: ctx, begun: make(chan struct{})}
}

func (s *stopping) Done() <-chan struct{} {
	s.once.Do(func() { close(s.begun) })
	return s.Context.Done()
}

// TestWorkerHandlesAll: every item is handled once and in its group's order, by either kind of worker.
func TestWorkerHandlesAll(t *testing.T) {
	const groups, each = 5, 12
	kinds := map[string]func(q *layer.Queue, j *journal, o worker.Options) (*worker.Worker, error){
		"Handler": func(q *layer.Queue, j *journal, o worker.Options) (*worker.Worker, error) {
			return plainWorker(q, func(_ context.Context, item layer.Item) error {
				j.handle(item)
				return nil
			}, o)
		},
		"TxHandler": func(q *layer.Queue, j *journal, o worker.Options) (*worker.Worker, error) {
			return txWorker(q, func(_ context.Context, tx kv.Tx, item layer.Item) error {
				addOne(tx, item)
				return nil
			}, o)
		},
	}
	for name, newWorker := range kinds {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(e *env) {
				j := newJournal()
				o := worker.Options{Concurrency: 4, Batch: 5, Poll: quick, OnError: j.onError}
				w, err := newWorker(e.q, j, o)
				w = start(e.t, w, err)
				want := make(map[string][]string)
				for n := range each {
					for g := range groups {
						group := fmt.Sprint("g", g)
						body := fmt.Sprintf("%s.%02d", group, n)
						e.enqueue(group, body)
						want[group] = append(want[group], body)
					}
				}
				if name == "Handler" {
					j.await(e.t, groups*each)
				} else {
					e.awaitDepth(0)
				}
				require.NoError(e.t, w.Stop(e.ctx))
				require.Empty(e.t, j.errs)
				if name == "Handler" {
					require.Equal(e.t, want, j.handled)
				} else {
					for _, bodies := range want {
						for _, body := range bodies {
							require.EqualValues(e.t, 1, e.effects(body), "effects of %s", body)
						}
					}
				}
				s, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
				require.NoError(e.t, err)
				s.WaitingHandles = 0 // whose requests were not yet withdrawn
				require.Equal(e.t, layer.Stats{Enqueued: groups * each, Received: s.Received, Acked: groups * each}, s)
			})
		})
	}
}

// awaitDepth polls, for want of a signal.
func (e *env) awaitDepth(want int64) {
	e.t.Helper()
	require.Eventually(e.t, func() bool {
		s, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		return err == nil && s.Depth == want
	}, time.Minute, quick)
}

func effectKey(body string) []byte { return []byte("effect." + body) }

// addOne is the effect of a handler: it counts how often the item has happened.
func addOne(tx kv.Tx, item layer.Item) {
	tx.Atomic(kv.Add, effectKey(string(item.Body)), []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (e *env) effects(body string) uint64 {
	e.t.Helper()
	var n uint64
	_, err := kv.Run(context.Background(), e.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := tx.Get(effectKey(body)).Wait(e.ctx)
		if n = 0; err == nil && v != nil {
			n = binary.LittleEndian.Uint64(v)
		}
		return err
	})
	require.NoError(e.t, err)
	return n
}

// info lists the groups.
func (e *env) info() map[string]layer.GroupInfo {
	e.t.Helper()
	page, err := e.calm().Admin().Groups(e.ctx, layer.GroupsOptions{})
	require.NoError(e.t, err)
	byName := make(map[string]layer.GroupInfo)
	for _, g := range page.Groups {
		byName[g.Group] = g
	}
	return byName
}

// TestWorkerGivesBack: an error or a panic of the handler gives the item back with those behind it, counts an
// attempt of that item alone, and delays its group, and no other, by RetryDelay.
func TestWorkerGivesBack(t *testing.T) {
	boom := errors.New("boom")
	failures := map[string]func() error{
		"error": func() error { return boom },
		"panic": func() error { panic(boom) },
	}
	for name, fails := range failures {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(e *env) {
				j := newJournal()
				failing := true
				var attempts []int
				handler := func(_ context.Context, item layer.Item) error {
					if string(item.Body) == "a2" && failing {
						return fails()
					}
					j.handle(item)
					return nil
				}
				o := worker.Options{
					Concurrency: 1, Poll: quick, OnError: j.onError,
					RetryDelay: func(n int, _ error) time.Duration {
						attempts = append(attempts, n)
						return 10 * time.Second
					},
				}
				e.enqueue("A", "a1", "a2", "a3")
				e.enqueue("B", "b1")
				w, err := plainWorker(e.q, handler, o)
				w = start(e.t, w, err)
				require.ElementsMatch(e.t, []string{"a1", "error", "b1"}, j.await(e.t, 3))
				require.NoError(e.t, w.Stop(e.ctx))

				require.Len(e.t, j.errs, 1)
				var h *worker.HandlerError
				require.ErrorAs(e.t, j.errs[0], &h)
				a := e.info()["A"]
				require.Equal(e.t, a.Head, h.ID)
				require.Equal(e.t, layer.Delayed, a.Status)
				require.Equal(e.t, 10*time.Second, a.Left)
				require.Equal(e.t, 1, a.Attempts)
				require.Contains(e.t, a.LastError, "boom")
				require.Equal(e.t, []string{"a2", "a3"}, e.all("A"))
				require.Empty(e.t, e.all("B"))

				// A second failure counts on.
				e.clock.advance(10 * time.Second)
				w, err = plainWorker(e.q, handler, o)
				w = start(e.t, w, err)
				require.Equal(e.t, []string{"error"}, j.await(e.t, 1))
				require.NoError(e.t, w.Stop(e.ctx))
				require.Equal(e.t, []int{1, 2}, attempts)

				e.clock.advance(10 * time.Second)
				failing = false
				w, err = plainWorker(e.q, handler, o)
				w = start(e.t, w, err)
				require.Equal(e.t, []string{"a2", "a3"}, j.await(e.t, 2))
				require.NoError(e.t, w.Stop(e.ctx))
				require.Empty(e.t, e.info())
			})
		})
	}
}

// TestWorkerRetriesByThePolicy: a worker without options for retries uses the queue's policy. The group that has failed
// waits, and the worker's only goroutine continues with the others.
func TestWorkerRetriesByThePolicy(t *testing.T) {
	onEngines(t, func(e *env) {
		_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) {
			c.Retry = layer.RetryPolicy{Kind: layer.RetryConstant, Base: 7 * time.Second}
		})
		require.NoError(e.t, err)
		j := newJournal()
		e.enqueue("A", "a1", "a2")
		e.enqueue("B", "b1")
		w, err := plainWorker(e.q, func(_ context.Context, item layer.Item) error {
			if string(item.Body) == "a1" {
				return errors.New("no luck")
			}
			j.handle(item)
			return nil
		}, worker.Options{Concurrency: 1, Poll: quick, OnError: j.onError})
		w = start(e.t, w, err)
		require.ElementsMatch(e.t, []string{"error", "b1"}, j.await(e.t, 2))
		require.NoError(e.t, w.Stop(e.ctx))
		a := e.info()["A"]
		require.Equal(e.t, layer.Delayed, a.Status)
		require.Equal(e.t, 7*time.Second, a.Left)
		require.Equal(e.t, "no luck", a.LastError)
	})
}

// TestWorkerRejects: a handler that says that an item will never succeed makes it a dead letter at once, whatever is
// left of its attempts, and the worker goes on with the item behind it.
func TestWorkerRejects(t *testing.T) {
	onEngines(t, func(e *env) {
		boom := errors.New("boom")
		for _, inTx := range []bool{false, true} {
			j := newJournal()
			handle := func(item layer.Item) error {
				if string(item.Body) == "a1" {
					return fmt.Errorf("no: %w", &worker.RejectError{Reason: "schema", Err: boom})
				}
				return nil
			}
			e.enqueue("A", "a1", "a2")
			o := worker.Options{Concurrency: 1, Poll: quick, OnError: j.onError}
			w, err := plainWorker(e.q, func(_ context.Context, item layer.Item) error {
				err := handle(item)
				if err == nil {
					j.handle(item)
				}
				return err
			}, o)
			if inTx {
				w, err = txWorker(e.q, func(_ context.Context, tx kv.Tx, item layer.Item) error {
					err := handle(item)
					if err == nil {
						addOne(tx, item)
					}
					return err
				}, o)
			}
			w = start(e.t, w, err)
			if inTx {
				require.Equal(e.t, []string{"error"}, j.await(e.t, 1))
				require.Eventually(e.t, func() bool { return e.effects("a2") == 1 }, time.Minute, time.Millisecond)
			} else {
				require.Equal(e.t, []string{"error", "a2"}, j.await(e.t, 2))
			}
			require.NoError(e.t, w.Stop(e.ctx))
			require.ErrorIs(e.t, j.errs[0], boom)
			letters := e.dead()
			require.Len(e.t, letters, 1)
			require.Equal(e.t, "schema", letters[0].Reason)
			require.Equal(e.t, "boom", letters[0].LastError)
			require.Equal(e.t, 1, letters[0].Attempts)
			require.Empty(e.t, e.all("A"))
			_, err = e.calm().Admin().Discard(e.ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{})
			require.NoError(e.t, err)
		}
	})
}

// TestTxWorkerFailure: what a failed TxHandler wrote is not there, what those before it wrote is.
func TestTxWorkerFailure(t *testing.T) {
	onEngines(t, func(e *env) {
		j := newJournal()
		e.enqueue("A", "a1", "a2", "a3")
		w, err := txWorker(e.q, func(_ context.Context, tx kv.Tx, item layer.Item) error {
			addOne(tx, item)
			if string(item.Body) == "a2" {
				panic("boom")
			}
			return nil
		}, worker.Options{
			Concurrency: 1, Poll: quick, OnError: j.onError,
			RetryDelay: func(int, error) time.Duration { return 100 * layer.MaxDelay }, // is cut
		})
		w = start(e.t, w, err)
		j.await(e.t, 1)
		require.NoError(e.t, w.Stop(e.ctx))
		require.EqualValues(e.t, 1, e.effects("a1"))
		require.Zero(e.t, e.effects("a2"))
		a := e.info()["A"]
		require.Equal(e.t, []string{"a2", "a3"}, e.all("A"))
		require.Equal(e.t, 1, a.Attempts)
		require.Equal(e.t, layer.Delayed, a.Status)
		require.Equal(e.t, layer.MaxDelay, a.Left)
	})
}

// TestWorkerStopDrains: Stop lets the handler finish its item, acks what was handled, and gives back the rest of
// the claim at once and without a failed attempt.
func TestWorkerStopDrains(t *testing.T) {
	onEngines(t, func(e *env) {
		j := newJournal()
		in, out := make(chan context.Context), make(chan struct{})
		e.enqueue("A", "a1", "a2", "a3")
		w, err := plainWorker(e.q, func(ctx context.Context, item layer.Item) error {
			j.handle(item)
			if string(item.Body) == "a2" {
				in <- ctx
				<-out
			}
			return nil
		}, worker.Options{Concurrency: 2, Poll: quick, OnError: j.onError})
		w = start(e.t, w, err)
		ctx := receiveFrom(e.t, in)
		stop := newStopping(e.ctx)
		stopped := make(chan error)
		go func() { stopped <- w.Stop(stop) }()
		receiveFrom(e.t, stop.begun)
		require.NoError(e.t, ctx.Err(), "the handler is left to finish")
		close(out)
		require.NoError(e.t, receiveFrom(e.t, stopped))

		require.Empty(e.t, j.errs)
		require.Equal(e.t, []string{"a1", "a2"}, j.handled["A"])
		a := e.info()["A"]
		require.Equal(e.t, layer.Ready, a.Status)
		require.Zero(e.t, a.Attempts)
		require.Equal(e.t, []string{"a3"}, e.all("A"))
		require.NoError(e.t, w.Stop(e.ctx), "stopped twice")
	})
}

// TestWorkerStopByForce: when Stop's context ends, so do the handlers', with its cause; the item is given back
// and that is no failure of the item.
func TestWorkerStopByForce(t *testing.T) {
	onEngines(t, func(e *env) {
		j := newJournal()
		in, cause := make(chan struct{}), make(chan error, 1)
		e.enqueue("A", "a1", "a2", "a3")
		w, err := plainWorker(e.q, func(ctx context.Context, item layer.Item) error {
			if string(item.Body) == "a1" {
				return nil
			}
			close(in)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		}, worker.Options{Concurrency: 1, Poll: quick, OnError: j.onError})
		w = start(e.t, w, err)
		receiveFrom(e.t, in)
		impatient := errors.New("out of patience")
		ctx, cancel := context.WithCancelCause(e.ctx)
		cancel(impatient)
		require.ErrorIs(e.t, w.Stop(ctx), impatient)
		require.ErrorIs(e.t, receiveFrom(e.t, cause), impatient)
		require.NoError(e.t, w.Stop(e.ctx)) // the first call may have returned before the hand had given back
		a := e.info()["A"]
		require.Equal(e.t, layer.Ready, a.Status, "given back, although the worker was stopped by force")
		require.Zero(e.t, a.Attempts)
		require.Equal(e.t, []string{"a2", "a3"}, e.all("A"), "what was handled before is acked")
	})
}

// TestWorkerLifecycle: Stop before Start, Start after Stop and Start twice do no harm.
func TestWorkerLifecycle(t *testing.T) {
	onEngines(t, func(e *env) {
		j := newJournal()
		handler := func(_ context.Context, item layer.Item) error {
			j.handle(item)
			return nil
		}
		w, err := plainWorker(e.q, handler, worker.Options{Poll: quick, OnError: j.onError})
		require.NoError(e.t, err)
		require.NoError(e.t, w.Stop(e.ctx), "never started")
		require.NoError(e.t, w.Stop(e.ctx), "stopped twice")
		w.Start()
		e.enqueue("A", "a1", "a2")
		e.enqueue("B", "b1")
		require.NoError(e.t, w.Stop(e.ctx))
		require.Empty(e.t, j.handled, "a worker that was stopped does not start again")

		// One goroutine, started twice, is one goroutine: two groups are never in flight at once.
		in, out := make(chan string), make(chan struct{})
		w, err = plainWorker(e.q, func(_ context.Context, item layer.Item) error {
			in <- string(item.Body)
			<-out
			return nil
		}, worker.Options{Concurrency: 1, Poll: quick, OnError: j.onError})
		w = start(e.t, w, err)
		w.Start()
		first := receiveFrom(e.t, in)
		for range 20 {
			runtime.Gosched()
			select {
			case body := <-in:
				e.t.Fatalf("%s is handled beside %s", body, first)
			default:
			}
			held := 0
			for _, g := range e.info() {
				if g.Status == layer.Held {
					held++
				}
			}
			require.Equal(e.t, 1, held, "groups in flight")
		}
		out <- struct{}{}
		for range 2 {
			receiveFrom(e.t, in)
			out <- struct{}{}
		}
		require.NoError(e.t, w.Stop(e.ctx))
		require.Empty(e.t, j.errs)
		require.Empty(e.t, e.info())
	})
}

// onBubbles runs a test without and with faults, in virtual time: a lease that is extended in time is, however busy the
// machine.
func onBubbles(t *testing.T, test func(e *env)) {
	t.Helper()
	for _, faults := range []bool{false, true} {
		t.Run(fmt.Sprintf("faults=%v", faults), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(newEnv(t, inMemory, faults)) })
		})
	}
}

// realTime opens a handle, which the end of the test closes, on the wall clock or the bubble's: a worker extends by
// that.
func (e *env) realTime(n uint64, skew time.Duration) *layer.Queue {
	e.t.Helper()
	o := e.options(n)
	o.Now = func() time.Time { return time.Now().Add(skew) }
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { require.NoError(e.t, q.Close(context.Background())) })
	return q
}

// TestWorkerExtends: a handler that runs longer than the lease keeps its claim.
func TestWorkerExtends(t *testing.T) {
	onBubbles(t, func(e *env) {
		j := newJournal()
		other := e.realTime(3, 0)
		e.enqueue("A", "a1", "a2")
		w, err := plainWorker(e.realTime(2, 0), func(ctx context.Context, item layer.Item) error {
			if string(item.Body) == "a1" {
				<-time.After(1500 * time.Millisecond) // the lease must be seen to pass
				claims, err := other.Receive(e.ctx, layer.ReceiveOptions{})
				if err != nil || len(claims) > 0 {
					return fmt.Errorf("another got %v, %w", claims, err)
				}
			}
			j.handle(item)
			return ctx.Err()
		}, worker.Options{Concurrency: 1, Lease: time.Second, Poll: quick, OnError: j.onError})
		w = start(e.t, w, err)
		require.Equal(e.t, []string{"a1", "a2"}, j.await(e.t, 2))
		require.NoError(e.t, w.Stop(e.ctx))
		require.Empty(e.t, j.errs)
		require.Empty(e.t, e.info())
	})
}

// TestWorkerLosesClaim: when another takes over, the handler's context ends with ErrClaimLost as its cause, and
// the worker acks nothing, whatever the handler returns (G2).
func TestWorkerLosesClaim(t *testing.T) {
	onBubbles(t, func(e *env) {
		j := newJournal()
		in, cause := make(chan struct{}), make(chan error, 1)
		e.enqueue("A", "a1", "a2")
		w, err := plainWorker(e.realTime(2, 0), func(ctx context.Context, item layer.Item) error {
			close(in)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return nil
		}, worker.Options{Concurrency: 1, Lease: time.Second, Poll: quick, OnError: j.onError})
		w = start(e.t, w, err)
		receiveFrom(e.t, in)
		// For a clock that is a minute ahead the lease has run out already.
		other := e.realTime(3, time.Minute)
		claims, err := other.Receive(e.ctx, layer.ReceiveOptions{Lease: time.Hour})
		require.NoError(e.t, err)
		require.Len(e.t, claims, 1)
		require.ErrorIs(e.t, receiveFrom(e.t, cause), layer.ErrClaimLost)
		require.NoError(e.t, w.Stop(e.ctx))
		require.Len(e.t, j.errs, 1, "OnError is told")
		require.ErrorIs(e.t, j.errs[0], layer.ErrClaimLost)
		require.Equal(e.t, []string{"a1", "a2"}, e.all("A"), "nothing was acked")
		require.Equal(e.t, claims[0].Token, e.info()["A"].Token, "the other still holds the group")
		require.NoError(e.t, other.Ack(e.ctx, claims[0]))
	})
}

// TestTxWorkerEffectOnce: the effect of a TxHandler happens exactly once, whatever becomes of the very commit
// that acks (G3).
func TestTxWorkerEffectOnce(t *testing.T) {
	kinds := []fault.Kind{fault.UnknownApplied, fault.UnknownLost, fault.Conflict, fault.CommitTooOld, fault.MemoryLimit}
	onEngines(t, func(e *env) {
		j := newJournal()
		var names []string
		for i := range 4 * len(kinds) {
			names = append(names, fmt.Sprint("m", i))
		}
		e.enqueue("A", names...)
		calls := make(map[string]int)
		w, err := txWorker(e.q, func(_ context.Context, tx kv.Tx, item layer.Item) error {
			body := string(item.Body)
			if calls[body]++; calls[body] == 1 {
				e.plan.ForceNext(kinds[slices.Index(names, body)%len(kinds)])
			}
			addOne(tx, item)
			return nil
		}, worker.Options{Concurrency: 1, Poll: quick, OnError: j.onError})
		w = start(e.t, w, err)
		e.awaitDepth(0)
		require.NoError(e.t, w.Stop(e.ctx))
		require.Empty(e.t, j.errs)
		for i, name := range names {
			require.EqualValues(e.t, 1, e.effects(name), "effects of %s", name)
			if len(e.plan.Chances) > 0 {
				continue
			}
			want := 2
			if kinds[i%len(kinds)] == fault.UnknownApplied {
				want = 1
			}
			require.Equal(e.t, want, calls[name], "calls for %s, which met %s", name, kinds[i%len(kinds)])
		}
	})
}

// TestWorkersUnderLoad: several workers of either kind share a queue; each effect happens once.
func TestWorkersUnderLoad(t *testing.T) {
	const groups, each = 8, 25
	onEngines(t, func(e *env) {
		j := newJournal()
		o := worker.Options{Concurrency: 3, Batch: 4, Poll: quick, OnError: j.onError}
		var workers []*worker.Worker
		for n := range uint64(3) {
			w, err := txWorker(e.handle(2+n), func(_ context.Context, tx kv.Tx, item layer.Item) error {
				addOne(tx, item)
				return nil
			}, o)
			workers = append(workers, start(e.t, w, err))
		}
		for n := range each {
			var msgs []layer.Message
			for g := range groups {
				msgs = append(msgs, layer.Message{Group: fmt.Sprint("g", g), Body: fmt.Appendf(nil, "%d.%d", g, n)})
			}
			_, err := e.q.Enqueue(e.ctx, msgs...)
			require.NoError(e.t, err)
		}
		e.awaitDepth(0)
		for _, w := range workers {
			require.NoError(e.t, w.Stop(e.ctx))
		}
		require.Empty(e.t, j.errs)
		for g := range groups {
			for n := range each {
				require.EqualValues(e.t, 1, e.effects(fmt.Sprintf("%d.%d", g, n)))
			}
		}
	})
}

// TestWorkerLeavesNoGoroutine: after Stop there are as many goroutines as before Start. It does not run in parallel
// with other tests.
func TestWorkerLeavesNoGoroutine(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1", "a2") // whatever the engine starts at its first use is there now
	j := newJournal()
	before := runtime.NumGoroutine()
	for range 3 {
		w, err := plainWorker(e.q, func(_ context.Context, item layer.Item) error {
			j.handle(item)
			return errors.New("again")
		}, worker.Options{Poll: quick, RetryDelay: func(int, error) time.Duration { return -time.Second }})
		require.NoError(t, err)
		w.Start()
		j.await(t, 3)
		require.NoError(t, w.Stop(e.ctx))
	}
	// A goroutine that has told that it is done may not have ended yet.
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines before, %d after\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// TestWorkerOptions: values outside their limits are refused.
func TestWorkerOptions(t *testing.T) {
	onEngines(t, func(e *env) {
		for _, o := range []worker.Options{
			{Concurrency: -1}, {Concurrency: 1 << 20}, {Batch: -1}, {Batch: layer.MaxBatch + 1},
			{Lease: time.Millisecond}, {Lease: 2 * layer.MaxLease}, {Poll: -1},
			{Poll: 20}, {Timeout: 30}, // times without a unit
			{MaxConcurrency: -1}, {MaxConcurrency: 1 << 20}, {Concurrency: 4, MaxConcurrency: 3}, {MaxConcurrency: 7},
		} {
			w, err := plainWorker(e.q, func(context.Context, layer.Item) error { return nil }, o)
			var limit *layer.LimitError
			require.ErrorAs(e.t, err, &limit, "%+v", o)
			require.Nil(e.t, w)
		}
	})
}
