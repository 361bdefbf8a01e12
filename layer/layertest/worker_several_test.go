package layer_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// second makes another queue in db.
func (b *bubble) second(db kv.DB, c layer.Config) *layer.Queue {
	b.t.Helper()
	q, err := layer.Create(b.t.Context(), db, testPrefix, "second", layer.Options{Config: c})
	require.NoError(b.t, err)
	return q
}

// ends stops a worker and closes the second queue. Afterwards no item of either queue has lost a lease or an attempt.
func (b *bubble) ends(w *worker.Worker, second *layer.Queue) {
	b.t.Helper()
	require.NoError(b.t, w.Stop(b.t.Context()))
	for _, q := range []*layer.Queue{b.q, second} {
		s, err := q.Stats(b.t.Context(), layer.StatsOptions{})
		require.NoError(b.t, err)
		require.Zero(b.t, s.Expired, q.Name())
		require.Zero(b.t, s.DeadLettered, q.Name())
	}
	require.NoError(b.t, second.Close(b.t.Context()))
}

// prompt is a handler that checks that each message is handled within a time of its enqueue.
func (b *bubble) prompt(within time.Duration) worker.Handler {
	return worker.Handle(func(_ context.Context, d *worker.Delivery) error {
		if late := time.Since(d.Enqueued); late > within {
			b.t.Errorf("item %s was handled after %s", d.ID, late)
		}
		b.called(d.Item)
		return nil
	})
}

// sendEach enqueues n messages, with a pause after each.
func (b *bubble) sendEach(n int, pause time.Duration) {
	b.t.Helper()
	for i := range n {
		_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: "g", Body: fmt.Append(nil, i)})
		require.NoError(b.t, err)
		time.Sleep(pause)
	}
}

// TestSlowNextOfOneQueue: Next of one of several queues takes longer than a lease. Each message of the other queue is
// handled at once, and no lease ends.
func TestSlowNextOfOneQueue(t *testing.T) {
	t.Parallel()
	for _, hands := range []int{1, 2, 8} {
		for _, perItem := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d hands, lease per item %t", hands, perItem), func(t *testing.T) {
				t.Parallel()
				c := layer.Config{Lease: 10 * time.Second, MaxAttempts: 3, LeasePerItem: perItem}
				inBubble(t, c, func(b *bubble) {
					second := b.second(b.db, layer.Config{})
					h := b.prompt(300 * time.Millisecond)
					w := b.worker(h, worker.Options{Concurrency: hands, Also: []worker.Source{{
						Queue: second, Handler: h, Next: func() (layer.Template, *string) {
							time.Sleep(50 * time.Second)
							return nil, nil
						},
					}}})
					w.Start()
					b.sendEach(20, 7*time.Second)
					b.eachOnce(20)
					b.ends(w, second)
				})
			})
		}
	}
}

// TestWrongNextOfOneQueue: a queue whose Next returns a template that the queue does not allow holds up no other.
func TestWrongNextOfOneQueue(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		second := b.second(b.db, layer.Config{})
		h := b.prompt(300 * time.Millisecond)
		w := b.worker(h, worker.Options{Concurrency: 1, Also: []worker.Source{{
			Queue: second, Handler: h, Next: func() (layer.Template, *string) {
				return layer.Template{"no": "facet"}, nil
			},
		}}})
		w.Start()
		b.sendEach(20, time.Second)
		require.Len(b.t, b.seen(), 20)
		require.NotEmpty(b.t, b.reported())
		require.Less(b.t, len(b.reported()), 60) // the pause grows
		b.ends(w, second)
	})
}

// receives returns how many goroutines of workers with several queues receive.
func receives() int {
	all := make([]byte, 4<<20)
	return strings.Count(string(all[:runtime.Stack(all, true)]), "worker.(*hand).runAsking(")
}

// TestOneOfTwoDatabases: a worker serves queues of two databases. While one hangs, or answers each call with an error,
// each message of the other queue is handled at once. The worker has no more receives under way than goroutines for
// each queue, also while goroutines begin and end. The queue of the database that comes back is served again.
func TestOneOfTwoDatabases(t *testing.T) {
	for _, code := range []int{0, kv.CodeProcessBehind, kv.CodeIOError} {
		for _, hands := range []int{1, 4} {
			if testing.Short() && (code == kv.CodeIOError || hands == 1) {
				continue // the same goroutines
			}
			t.Run(fmt.Sprintf("code %d, %d hands", code, hands), func(t *testing.T) {
				c := layer.Config{Lease: 10 * time.Second, MaxAttempts: 3}
				inBubble(t, c, func(b *bubble) {
					db := &cutDB{DB: embedded.OpenMemory(embedded.Options{})}
					second := b.second(db, layer.Config{})
					h := b.prompt(500 * time.Millisecond)
					w := b.worker(h, worker.Options{
						Concurrency: hands, MaxConcurrency: 2 * hands, Poll: time.Second,
						Also: []worker.Source{{Queue: second, Handler: h}},
					})
					w.Start()
					time.Sleep(5 * time.Second)
					db.cut(code)
					time.Sleep(time.Second)
					b.sendEach(60, 10*time.Second)
					require.Len(b.t, b.seen(), 60)
					if code == 0 {
						synctest.Wait()
						require.LessOrEqual(b.t, receives(), 4*hands)
					}
					db.heal()
					time.Sleep(time.Minute)
					_, err := second.Enqueue(b.t.Context(), layer.Message{Body: []byte("second")})
					require.NoError(b.t, err)
					time.Sleep(time.Second)
					require.Equal(b.t, 1, b.seen()["second"])
					b.ends(w, second)
					require.NoError(b.t, db.Close())
				})
			})
		}
	}
}

// TestAckOfOneQueueHangs: while the last ack of one queue waits for its database, the only goroutine handles messages
// of the other queue.
func TestAckOfOneQueueHangs(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		db := &cutDB{DB: embedded.OpenMemory(embedded.Options{})}
		second := b.second(db, layer.Config{})
		h := b.prompt(500 * time.Millisecond)
		w := b.worker(h, worker.Options{Concurrency: 1, Also: []worker.Source{{
			Queue: second, Handler: worker.Handle(func(context.Context, *worker.Delivery) error {
				db.cut(0)
				return nil
			}),
		}}})
		_, err := second.Enqueue(b.t.Context(), layer.Message{})
		require.NoError(b.t, err)
		w.Start()
		time.Sleep(10 * time.Millisecond)
		b.sendEach(5, time.Second)
		require.Len(b.t, b.seen(), 5)
		db.heal()
		time.Sleep(time.Minute)
		b.ends(w, second)
		require.NoError(b.t, db.Close())
	})
}

// TestLateClaim: a claim that arrives while the only goroutine is busy with another queue is extended until the
// goroutine handles it, also if the first queue always has messages.
func TestLateClaim(t *testing.T) {
	for name, o := range map[string]worker.Options{"lease": {}, "heartbeat": {Heartbeat: true}} {
		t.Run(name, func(t *testing.T) {
			c := layer.Config{Lease: 3 * time.Second, MaxAttempts: 2}
			inBubble(t, c, func(b *bubble) {
				second := b.second(b.db, c)
				h := worker.Handle(func(_ context.Context, d *worker.Delivery) error {
					b.called(d.Item)
					time.Sleep(10 * time.Second)
					return nil
				})
				o.Concurrency, o.Batch = 1, 1
				o.Also = []worker.Source{{Queue: second, Handler: h, Next: func() (layer.Template, *string) {
					time.Sleep(4 * time.Second)
					return nil, nil
				}}}
				w := b.worker(h, o)
				b.fill(200)
				for i := range 5 {
					_, err := second.Enqueue(b.t.Context(), layer.Message{Body: fmt.Append(nil, "second ", i)})
					require.NoError(b.t, err)
				}
				w.Start()
				time.Sleep(150 * time.Second)
				seen := b.seen()
				for i := range 5 {
					require.Equal(b.t, 1, seen[fmt.Sprint("second ", i)])
				}
				require.Greater(b.t, len(seen), 9)
				require.Empty(b.t, b.reported())
				b.ends(w, second)
			})
		})
	}
}

// TestLateClaimIsReturned: a claim for which a worker has had no goroutine for a minute is returned, without an
// attempt, and another process can have it. The same happens when the worker stops.
func TestLateClaimIsReturned(t *testing.T) {
	for name, stops := range map[string]bool{"busy": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			c := layer.Config{Lease: 3 * time.Second, MaxAttempts: 2}
			inBubble(t, c, func(b *bubble) {
				second := b.second(b.db, c)
				gate, asked := make(chan struct{}), make(chan struct{})
				h := worker.Handle(func(context.Context, *worker.Delivery) error {
					<-gate
					return nil
				})
				w := b.worker(h, worker.Options{Concurrency: 1, Timeout: -1, Also: []worker.Source{{
					Queue: second, Handler: h, Next: func() (layer.Template, *string) {
						<-asked
						return nil, nil
					},
				}}})
				_, err := second.Enqueue(b.t.Context(), layer.Message{Body: []byte("second")})
				require.NoError(b.t, err)
				w.Start()
				time.Sleep(time.Second)
				b.fill(1)
				time.Sleep(time.Second)
				close(asked)
				time.Sleep(30 * time.Second)
				receive := layer.ReceiveOptions{}
				claims, err := second.Receive(b.t.Context(), receive)
				require.NoError(b.t, err)
				require.Empty(b.t, claims) // the worker has it
				stopped := make(chan error, 1)
				if stops {
					go func() { stopped <- w.Stop(b.t.Context()) }()
					time.Sleep(time.Second)
				} else {
					time.Sleep(31 * time.Second)
				}
				claims, err = second.Receive(b.t.Context(), receive)
				require.NoError(b.t, err)
				require.Len(b.t, claims, 1)
				require.Zero(b.t, claims[0].Items[0].Attempts)
				require.NoError(b.t, second.Ack(b.t.Context(), claims[0]))
				close(gate)
				if stops {
					require.NoError(b.t, <-stopped)
				}
				b.ends(w, second)
			})
		})
	}
}
