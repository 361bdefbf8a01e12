package layer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// An ack waits for nothing but its own transaction: whatever the worker waits for next, it settles first.

// tempo is a limiter that lets one item through in each interval, as a *rate.Limiter does.
type tempo struct {
	every time.Duration

	mu   sync.Mutex
	next time.Time // guarded by mu
}

func (l *tempo) Wait(ctx context.Context) error {
	l.mu.Lock()
	now := time.Now()
	if l.next.Before(now) {
		l.next = now
	}
	timer := time.NewTimer(l.next.Sub(now))
	l.next = l.next.Add(l.every)
	l.mu.Unlock()
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// scatter enqueues n items, each into a group of its own, with their numbers as bodies.
func (b *bubble) scatter(n int) {
	b.t.Helper()
	var msgs []layer.Message
	for i := range n {
		msgs = append(msgs, layer.Message{Group: fmt.Sprint("g", i), Body: fmt.Append(nil, i)})
	}
	_, err := b.q.Enqueue(b.t.Context(), msgs...)
	require.NoError(b.t, err)
}

// TestSlowLimiter: a worker whose limiter keeps each goroutine waiting for longer than the lease handles each item
// once, in groups of one and in one group, with claims of groups and of items.
func TestSlowLimiter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]layer.Config{"": {}, ", lease per item": {LeasePerItem: true}} {
		for where, fill := range map[string]func(b *bubble, n int){
			"groups": (*bubble).scatter, "one group": (*bubble).fill,
		} {
			t.Run(where+name, func(t *testing.T) {
				t.Parallel()
				onKinds(t, c, func(b *bubble, _ context.Context, d *worker.Delivery) error {
					b.called(d.Item)
					return nil
				}, func(b *bubble, h worker.Handler) {
					fill(b, 20)
					b.run(b.worker(h, worker.Options{Limiter: &tempo{every: 6 * time.Second}}), nil, 4*time.Minute)
					b.eachOnce(20)
				})
			})
		}
	}
}

// TestAckBeforeWait: what is handled is acked while the worker waits for its limiter, its hooks, its log, its Next, or
// for another item.
func TestAckBeforeWait(t *testing.T) {
	t.Parallel()
	hang := func(worker.Event) { time.Sleep(time.Minute) }
	calls := 0
	var other *layer.Queue
	for name, o := range map[string]func() worker.Options{
		"limiter": func() worker.Options { return worker.Options{Limiter: &tempo{every: time.Minute}} },
		"done":    func() worker.Options { return worker.Options{Events: worker.Events{Done: hang}} },
		"log": func() worker.Options {
			return worker.Options{Logger: slog.New(slowLog{slog.DiscardHandler, "worker: done"})}
		},
		"next": func() worker.Options {
			calls = 0
			return worker.Options{Next: func() (layer.Template, *string) {
				if calls++; calls > 1 {
					time.Sleep(time.Minute)
				}
				return nil, nil
			}}
		},
		"empty queue": func() worker.Options { return worker.Options{Poll: layer.MaxWait} },
		"others": func() worker.Options {
			h := worker.Handle(func(context.Context, *worker.Delivery) error { return nil })
			return worker.Options{Also: []worker.Source{{Queue: other, Handler: h}}, Poll: layer.MaxWait}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onKinds(t, layer.Config{}, func(b *bubble, _ context.Context, d *worker.Delivery) error {
				b.called(d.Item)
				return nil
			}, func(b *bubble, h worker.Handler) {
				b.fill(1)
				var err error
				other, err = layer.Create(b.t.Context(), b.db, testPrefix, "other", layer.Options{})
				require.NoError(b.t, err)
				o := o()
				o.Concurrency = 1
				w := b.worker(h, o)
				w.Start()
				time.Sleep(time.Second)
				require.EqualValues(b.t, 1, b.stats().Acked)
				require.NoError(b.t, w.SetConcurrency(1, 1))
				time.Sleep(2 * time.Minute)
				require.NoError(b.t, w.Stop(b.t.Context()))
				b.eachOnce(1)
				require.NoError(b.t, other.Close(b.t.Context()))
			})
		})
	}
}

// slowLog is a handler of the log that takes a minute for each record of that text.
type slowLog struct {
	slog.Handler
	text string
}

func (l slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (l slowLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.text {
		time.Sleep(time.Minute)
	}
	return nil
}

// TestSlowHooks: hooks that take longer than the lease cost no item a call or an attempt: the worker keeps the claim
// while they run.
func TestSlowHooks(t *testing.T) {
	t.Parallel()
	hang := func(worker.Event) { time.Sleep(time.Minute) }
	for name, o := range map[string]worker.Options{
		"received": {Events: worker.Events{Received: hang}},
		"started":  {Events: worker.Events{Started: hang}},
		"done":     {Events: worker.Events{Done: hang}},
		"failed":   {Events: worker.Events{Failed: hang}},
		"retry delay": {RetryDelay: func(int, error) time.Duration {
			time.Sleep(time.Minute)
			return time.Second
		}},
		"all": {Events: worker.Events{Received: hang, TakenOver: hang, Started: hang, Done: hang, Failed: hang}},
		"log": {Logger: slog.New(slowLog{slog.DiscardHandler, "worker: started"})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onKinds(t, layer.Config{Lease: 5 * time.Second, MaxAttempts: 2, Retry: eachSecond},
				func(b *bubble, _ context.Context, d *worker.Delivery) error {
					if n := b.called(d.Item); n == 1 && string(d.Body) == "1" {
						return errors.New("once")
					}
					return nil
				}, func(b *bubble, h worker.Handler) {
					b.fill(4)
					o := o
					o.Concurrency = 2
					w := b.worker(h, o)
					w.Start()
					for range 20 {
						if time.Sleep(time.Minute); b.stats().Acked == 4 {
							break
						}
					}
					require.NoError(b.t, w.Stop(b.t.Context()))
					require.Len(b.t, b.reported(), 1)
					require.Equal(b.t, map[string]int{"0": 1, "1": 2, "2": 1, "3": 1}, b.seen())
					require.EqualValues(b.t, 4, b.stats().Acked)
				})
		})
	}
}

// TestAckAfterFault: the worker repeats an ack that fails because of the database. No item is handled again, neither
// after the last ack of a claim, which travels with the next receive, nor after one before.
func TestAckAfterFault(t *testing.T) {
	t.Parallel()
	for _, kind := range []fault.Kind{
		fault.TimedOutLost, fault.TimedOutLate, fault.CommitFailed, fault.UnnamedApplied, fault.VersionChangedLate,
	} {
		for name, takes := range map[string]time.Duration{"last": 0, "travels": time.Second} {
			t.Run(fmt.Sprint(kind, ", ", name), func(t *testing.T) {
				inBubble(t, layer.Config{MaxAttempts: 1}, func(b *bubble) {
					b.fill(3)
					acks := 0
					plan := &fault.Plan{OnCommit: func(int, kv.Tx) fault.Kind {
						if len(b.seen()) == 0 {
							return fault.None
						}
						if acks++; acks > 3 {
							return fault.None
						}
						return kind
					}}
					q, err := layer.Open(b.t.Context(), fault.Wrap(b.db, plan), testPrefix, testQueue, layer.Options{})
					require.NoError(t, err)
					w, err := plainWorker(q, func(_ context.Context, item layer.Item) error {
						b.called(item)
						time.Sleep(takes)
						return nil
					}, worker.Options{Concurrency: 1, OnError: b.onError})
					b.run(w, err, 2*time.Minute)
					require.NoError(t, q.Close(b.t.Context()))
					require.GreaterOrEqual(t, acks, 3)
					require.Equal(t, map[string]int{"0": 1, "1": 1, "2": 1}, b.seen())
					s := b.stats()
					require.EqualValues(t, 3, s.Acked)
					require.Zero(t, s.DeadLettered)
				})
			})
		}
	}
}

// TestAckInAnOutage: what is handled is acked after commits have failed for half of a lease. The ack travels with the
// next receive, goes alone because the worker has another queue, or is in the settlement after a failure.
func TestAckInAnOutage(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"travels", "alone", "given back"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, layer.Config{MaxAttempts: 2, Retry: eachSecond}, func(b *bubble) {
				b.fill(3)
				var heals atomic.Int64 // ns
				plan := &fault.Plan{OnCommit: func(int, kv.Tx) fault.Kind {
					if time.Now().UnixNano() < heals.Load() {
						return fault.CommitFailed
					}
					return fault.None
				}}
				q, err := layer.Open(b.t.Context(), fault.Wrap(b.db, plan), testPrefix, testQueue, layer.Options{})
				require.NoError(t, err)
				again := 1
				handler := worker.Handle(func(_ context.Context, d *worker.Delivery) error {
					if b.called(d.Item) == 1 && string(d.Body) == "2" {
						heals.Store(time.Now().Add(q.Config().Lease / 2).UnixNano())
						if how == "given back" {
							again = 2
							return errors.New("once")
						}
					}
					return nil
				})
				o := worker.Options{Concurrency: 1}
				if how == "alone" {
					o.Also = []worker.Source{{Queue: b.q, Handler: handler}}
				}
				w, err := worker.New(q, handler, quiet(o))
				b.run(w, err, 3*time.Minute)
				require.NoError(t, q.Close(b.t.Context()))
				require.Equal(t, map[string]int{"0": 1, "1": 1, "2": again}, b.seen())
				s := b.stats()
				require.EqualValues(t, 3, s.Acked)
				require.Zero(t, s.Expired)
			})
		})
	}
}

// TestFaultBlamesNoItem: an error of the database in the transaction that acks an item is no failed attempt of the
// item, before the handler is called (in an extension, or in a read of the ack) and at the commit. A handler that
// panics has failed.
func TestFaultBlamesNoItem(t *testing.T) {
	t.Parallel()
	for _, kind := range []fault.Kind{fault.ReadFailed, fault.CommitFailed, fault.TimedOutLost, fault.None} {
		for _, at := range []string{"extension", "begin", "commit"} {
			t.Run(fmt.Sprint(kind, ", ", at), func(t *testing.T) {
				inBubble(t, layer.Config{MaxAttempts: 1, Lease: 5 * time.Second}, func(b *bubble) {
					b.fill(3)
					plan := &fault.Plan{}
					q, err := layer.Open(b.t.Context(), fault.Wrap(b.db, plan), testPrefix, testQueue, layer.Options{})
					require.NoError(t, err)
					struck := false
					strike := func() {
						if !struck && kind != fault.None {
							plan.ForceNext(kind)
						}
						struck = true
					}
					h := worker.HandleTx(func(_ context.Context, _ kv.Tx, d *worker.Delivery) error {
						b.called(d.Item)
						if at == "commit" {
							strike()
						}
						if kind == fault.None && string(d.Body) == "1" {
							panic("no luck")
						}
						return nil
					})
					started := func(worker.Event) {
						if at == "extension" {
							time.Sleep(time.Second) // so that the worker extends the claim before the transaction
						}
						if at != "commit" {
							strike()
						}
					}
					o := worker.Options{Concurrency: 1, Events: worker.Events{Started: started}}
					w, err := worker.New(q, h, quiet(o))
					b.run(w, err, time.Minute)
					require.NoError(t, q.Close(b.t.Context()))
					require.True(t, struck)
					dead := 0
					if kind == fault.None {
						dead = 1
					}
					require.EqualValues(t, dead, b.stats().DeadLettered)
					require.EqualValues(t, 3-dead, b.stats().Acked)
				})
			})
		}
	}
}

// TestGiveBackAfterFault: the worker repeats the settlement that gives a claim back if it fails because of the
// database. The items before the one that has failed are acked in it, and none of them is handled again.
func TestGiveBackAfterFault(t *testing.T) {
	t.Parallel()
	for _, kind := range []fault.Kind{
		fault.TimedOutLost, fault.TimedOutLate, fault.CommitFailed, fault.UnnamedApplied, fault.VersionChangedLate,
	} {
		for name, handler := range map[string]func(do func(d *worker.Delivery) error) worker.Handler{
			"item": func(do func(d *worker.Delivery) error) worker.Handler {
				return worker.Handle(func(_ context.Context, d *worker.Delivery) error { return do(d) })
			},
			"batch": func(do func(d *worker.Delivery) error) worker.Handler {
				return worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
					for i, d := range ds {
						if err := do(d); err != nil {
							return &worker.BatchError{Done: i, Err: err}
						}
					}
					return nil
				})
			},
		} {
			t.Run(fmt.Sprint(kind, ", ", name), func(t *testing.T) {
				inBubble(t, layer.Config{MaxAttempts: 2, Retry: eachSecond}, func(b *bubble) {
					b.fill(3)
					struck := 0
					plan := &fault.Plan{OnCommit: func(int, kv.Tx) fault.Kind {
						if b.seen()["2"] == 0 || struck == 3 {
							return fault.None
						}
						struck++
						return kind
					}}
					q, err := layer.Open(b.t.Context(), fault.Wrap(b.db, plan), testPrefix, testQueue, layer.Options{})
					require.NoError(t, err)
					var failed []worker.Event
					w, err := worker.New(q, handler(func(d *worker.Delivery) error {
						if b.called(d.Item) == 1 && string(d.Body) == "2" {
							return errors.New("once")
						}
						return nil
					}), worker.Options{Concurrency: 1, Events: worker.Events{
						Failed: func(e worker.Event) { failed = append(failed, e) },
					}})
					b.run(w, err, 2*time.Minute)
					require.NoError(t, q.Close(b.t.Context()))
					require.Equal(t, 3, struck)
					require.Equal(t, map[string]int{"0": 1, "1": 1, "2": 2}, b.seen())
					s := b.stats()
					require.EqualValues(t, 3, s.Acked)
					require.Zero(t, s.Expired)
					require.Len(t, failed, 1)
					switch kind {
					case fault.UnnamedApplied: // nothing says what such a commit has done
						require.Equal(t, layer.FollowsUnknown, failed[0].Follows)
					case fault.TimedOutLost, fault.CommitFailed:
						require.Equal(t, layer.FollowsRetry, failed[0].Follows)
					}
				})
			})
		}
	}
}
