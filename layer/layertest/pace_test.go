package layer_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// badWatches is an engine with watches that fail with a code, fire at once and for nothing, or never end, while bad is
// set. The engine counts the attempts of transactions, and the open watches.
type badWatches struct {
	kv.DB
	code  int  // with which watches fail; 0 = they do not
	never bool // they never end; otherwise they fire at once
	// refused: commits of transactions with a watch fail with this code; 0 = they do not.
	refused  int
	bad      atomic.Bool
	attempts atomic.Int64
	open     atomic.Int64
}

func (b *badWatches) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	b.attempts.Add(1)
	time.Sleep(time.Millisecond) // otherwise virtual time would stand for a loop without a pause
	tx, err := b.DB.Begin(o)
	return &badWatchTx{ManagedTx: tx, b: b}, err
}

// mostASecond returns the most attempts in one of ten seconds. The first five do not count: a handle that begins to
// wait looks more often.
func (b *badWatches) mostASecond() (most int64) {
	time.Sleep(5 * time.Second)
	for range 10 {
		before := b.attempts.Load()
		time.Sleep(time.Second)
		most = max(most, b.attempts.Load()-before)
	}
	return most
}

type badWatchTx struct {
	kv.ManagedTx
	b       *badWatches
	watches bool
}

func (t *badWatchTx) Watch(key []byte) kv.Future[struct{}] {
	if !t.b.bad.Load() {
		return t.ManagedTx.Watch(key)
	}
	t.watches = true
	t.b.open.Add(1)
	w := &badWatch{b: t.b, end: make(chan struct{})}
	if !t.b.never {
		close(w.end)
	}
	return w
}

func (t *badWatchTx) Commit() kv.Future[struct{}] {
	if t.watches && t.b.refused != 0 {
		return kv.Done(struct{}{}, error(&kv.Error{Code: t.b.refused}))
	}
	return t.ManagedTx.Commit()
}

func (t *badWatchTx) OnError(err error) kv.Future[struct{}] {
	t.b.attempts.Add(1)
	return t.ManagedTx.OnError(err)
}

type badWatch struct {
	b    *badWatches
	end  chan struct{}
	once sync.Once
}

func (w *badWatch) Wait(ctx context.Context) (struct{}, error) {
	select {
	case <-w.end:
	case <-ctx.Done():
		w.Cancel()
		return struct{}{}, context.Cause(ctx)
	}
	if w.b.code != 0 {
		return struct{}{}, &kv.Error{Code: w.b.code}
	}
	return struct{}{}, nil
}

func (w *badWatch) Ready() bool { return !w.b.never }
func (w *badWatch) Cancel()     { w.once.Do(func() { w.b.open.Add(-1) }) }

// kindsOfBadWatches are the ways in which watches fail their callers.
func kindsOfBadWatches() map[string]*badWatches {
	kinds := map[string]*badWatches{"fires for nothing": {}, "never ends": {never: true}}
	for _, code := range []int{kv.CodeTooManyWatches, kv.CodeFutureVersion, kv.CodeClusterVersionChanged} {
		kinds[fmt.Sprint("fails with ", code)] = &badWatches{code: code}
	}
	return kinds
}

// waitingCall is a call that waits on a watch. wait returns when it was served.
type waitingCall struct {
	name  string
	setup func(ctx context.Context, t *testing.T, q *layer.Queue)
	wait  func(ctx context.Context, q *layer.Queue) error
}

func receiving(o layer.ReceiveOptions) func(ctx context.Context, q *layer.Queue) error {
	o.Wait = layer.MaxWait
	return func(ctx context.Context, q *layer.Queue) error {
		claims, err := q.Receive(ctx, o)
		if err == nil && len(claims) == 0 {
			err = context.Cause(ctx)
		}
		return err
	}
}

func waitingCalls() []waitingCall {
	group := "B"
	subscribing := func(ctx context.Context, q *layer.Queue, name string) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		return q.Subscribe(ctx, name, func(context.Context, []layer.Change) error {
			stop()
			return nil
		}, layer.SubscribeOptions{OnError: func(error) {}})
	}
	return []waitingCall{
		{"receive", nil, receiving(layer.ReceiveOptions{})},
		{"receive of a group", nil, receiving(layer.ReceiveOptions{Group: &group})},
		{"receive by a template", nil, receiving(layer.ReceiveOptions{Where: isNew})},
		{"unordered receive", nil, receiving(layer.ReceiveOptions{Unordered: true})},
		{"receive under an id", nil, receiving(layer.ReceiveOptions{ReceiveID: "id"})},
		{"receive by heartbeat", nil, receiving(layer.ReceiveOptions{Heartbeat: true})},
		{"receive if there is any", func(ctx context.Context, t *testing.T, q *layer.Queue) {
			_, err := q.Enqueue(ctx, layer.Message{Group: "A"})
			require.NoError(t, err)
			_, err = q.Receive(ctx, layer.ReceiveOptions{Lease: layer.MaxLease})
			require.NoError(t, err)
		}, receiving(layer.ReceiveOptions{OnlyIfAny: true})},
		{"forty receives", nil, func(ctx context.Context, q *layer.Queue) error {
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			var wg sync.WaitGroup
			for range 40 {
				wg.Go(func() {
					if receiving(layer.ReceiveOptions{})(ctx, q) == nil {
						stop()
					}
				})
			}
			wg.Wait()
			return nil
		}},
		{"subscribe", nil, func(ctx context.Context, q *layer.Queue) error { return subscribing(ctx, q, "s") }},
		{"subscribe in a transaction", nil, func(ctx context.Context, q *layer.Queue) error {
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			return q.SubscribeTx(ctx, "s", func(context.Context, kv.Tx, []layer.Change) error {
				stop()
				return nil
			}, layer.SubscribeOptions{OnError: func(error) {}})
		}},
		{"six subscriptions", nil, func(ctx context.Context, q *layer.Queue) error {
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() { _ = subscribing(ctx, q, fmt.Sprint(i)) })
			}
			wg.Wait()
			return nil
		}},
	}
}

// mostAttempts is how many transactions a handle may begin in a second while nothing succeeds.
const mostAttempts = 20

// TestWaitsHaveAPace (contract): a call that waits begins at most 20 transactions a second, and is served within a
// poll, even if the watches of the database fail or fire for nothing. It leaves no watch open.
func TestWaitsHaveAPace(t *testing.T) {
	t.Parallel()
	for _, call := range waitingCalls() {
		for kind, db := range kindsOfBadWatches() {
			t.Run(call.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { waitAtAPace(t, call, db) })
			})
		}
	}
}

// begin creates the queue that the call waits at, and sets it up. From then on the watches are bad.
func (call waitingCall) begin(ctx context.Context, t *testing.T, db *badWatches) *layer.Queue {
	config := layer.Config{Changes: time.Hour}
	switch call.name {
	case "receive by a template":
		config.Facets, config.Views = []string{"state"}, "*; state"
	case "unordered receive":
		config.Unordered = true
	}
	q, err := layer.Create(ctx, db, testPrefix, testQueue, layer.Options{Config: config})
	require.NoError(t, err)
	if call.setup != nil {
		call.setup(ctx, t, q)
	}
	db.bad.Store(true)
	return q
}

func waitAtAPace(t *testing.T, call waitingCall, db *badWatches) {
	ctx := t.Context()
	db.DB = inMemory(t)
	defer db.DB.Close()
	q := call.begin(ctx, t, db)
	producer, err := layer.Open(ctx, db.DB, testPrefix, testQueue, layer.Options{})
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- call.wait(ctx, q) }()
	most := db.mostASecond()
	_, err = producer.Enqueue(ctx, layer.Message{Group: "B", Headers: map[string]string{"state": "NEW"}})
	require.NoError(t, err)
	begun := time.Now()
	require.NoError(t, <-served)
	require.LessOrEqual(t, time.Since(begun), 11*time.Second)
	require.NoError(t, q.Close(ctx))
	require.LessOrEqual(t, most, int64(mostAttempts), "attempts in a second")
	require.Zero(t, db.open.Load(), "open watches")
	report, err := producer.Admin().Check(ctx, layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.NoError(t, producer.Close(ctx))
}

// TestRefusedWatchesAreCancelled (contract): a watch is cancelled if the commit of its transaction fails, and a handle
// whose commits all fail has a pace.
func TestRefusedWatchesAreCancelled(t *testing.T) {
	t.Parallel()
	const refused = 6000
	for _, call := range waitingCalls() {
		t.Run(call.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				db := &badWatches{DB: inMemory(t), never: true, refused: refused}
				defer db.DB.Close()
				q := call.begin(ctx, t, db)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_ = call.wait(ctx, q)
				}()
				most := db.mostASecond()
				stop()
				<-ended
				db.bad.Store(false)
				require.NoError(t, q.Close(context.Background()))
				require.LessOrEqual(t, most, int64(mostAttempts), "attempts in a second")
				require.Zero(t, db.open.Load(), "open watches")
			})
		})
	}
}

// TestStandingClockHasAPace (contract): a lease is about to end, and the clock stands. A call that waits for the end of
// the lease keeps its pace.
func TestStandingClockHasAPace(t *testing.T) {
	t.Parallel()
	hold := map[string]func(ctx context.Context, t *testing.T, q *layer.Queue){
		"receive": func(ctx context.Context, t *testing.T, q *layer.Queue) {
			_, err := q.Enqueue(ctx, layer.Message{Group: "A"})
			require.NoError(t, err)
			_, err = q.Receive(ctx, layer.ReceiveOptions{Lease: layer.MinLease})
			require.NoError(t, err)
		},
		"subscribe": func(ctx context.Context, t *testing.T, q *layer.Queue) {
			go q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error { return nil },
				layer.SubscribeOptions{Lease: layer.MinLease})
			synctest.Wait()
		},
	}
	for _, call := range waitingCalls() {
		if hold[call.name] == nil {
			continue
		}
		t.Run(call.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				db := &badWatches{DB: inMemory(t)}
				defer db.DB.Close()
				now, before := newClock(), newClock()
				o := layer.Options{Now: before.now, Config: layer.Config{Changes: time.Hour}}
				other, err := layer.Create(ctx, db.DB, testPrefix, testQueue, o)
				require.NoError(t, err)
				o.Now = now.now
				q, err := layer.Open(ctx, db, testPrefix, testQueue, o)
				require.NoError(t, err)
				hold[call.name](ctx, t, other)
				now.advance(layer.MinLease - time.Millisecond)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_ = call.wait(ctx, q)
				}()
				most := db.mostASecond()
				stop()
				<-ended
				require.NoError(t, q.Close(context.Background()))
				require.NoError(t, other.Close(context.Background()))
				require.LessOrEqual(t, most, int64(mostAttempts), "attempts in a second")
			})
		})
	}
}

// refusing is an engine that refuses each transaction with a code that is not retryable, while on is set.
type refusing struct {
	kv.DB
	on       atomic.Bool
	attempts atomic.Int64
}

func (r *refusing) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	r.attempts.Add(1)
	if r.on.Load() {
		return nil, &kv.Error{Code: 6000}
	}
	return r.DB.Begin(o)
}

// TestWaitReturnsTheErrorThatLasts (contract): a receive that waits returns the error of the database that lasts until
// the end of the wait, and none if the error has passed, or if the caller has stopped the wait.
func TestWaitReturnsTheErrorThatLasts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  time.Duration // of the error; 0 = it lasts
		stop time.Duration // 0 = never
		code int
	}{
		"lasts":   {code: 6000},
		"passes":  {end: 15 * time.Second},
		"stopped": {stop: 10 * time.Second},
	} {
		for _, group := range []*string{nil, layer.OnlyGroup("A")} {
			t.Run(fmt.Sprint(name, " group=", group != nil), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					db := &refusing{DB: inMemory(t)}
					defer db.DB.Close()
					q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{})
					require.NoError(t, err)
					time.AfterFunc(3*time.Second, func() { db.on.Store(true) })
					if c.end > 0 {
						time.AfterFunc(c.end, func() { db.on.Store(false) })
					}
					o := layer.ReceiveOptions{Wait: 20 * time.Second, Group: group}
					if c.stop > 0 {
						stop := make(chan struct{})
						o.Stop = stop
						time.AfterFunc(c.stop, func() { close(stop) })
					}
					claims, err := q.Receive(t.Context(), o)
					db.on.Store(false)
					require.Empty(t, claims)
					require.Equal(t, c.code, kv.Code(err), "%v", err)
					require.NoError(t, q.Close(t.Context()))
				})
			})
		}
	}
}

// TestWorkerHasOnePace (contract): the goroutines of a worker share a pace and a log line while the database refuses
// all that they ask. The worker continues when the database does.
func TestWorkerHasOnePace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := &refusing{DB: inMemory(t)}
		defer db.DB.Close()
		q, err := layer.Create(t.Context(), db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		var handled, told atomic.Int64
		w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
			handled.Add(1)
			return nil
		}), worker.Options{
			Concurrency: 64, Logger: slog.New(slog.DiscardHandler), OnError: func(error) { told.Add(1) },
		})
		require.NoError(t, err)
		db.on.Store(true)
		w.Start()
		time.Sleep(5 * time.Second)
		attempts, errors := db.attempts.Load(), told.Load()
		time.Sleep(100 * time.Second)
		attempts, errors = db.attempts.Load()-attempts, told.Load()-errors
		db.on.Store(false)
		for i := range 200 {
			_, err := q.Enqueue(t.Context(), layer.Message{Group: fmt.Sprint(i)})
			require.NoError(t, err)
		}
		time.Sleep(2 * time.Second)
		require.NoError(t, w.Stop(t.Context()))
		require.NoError(t, q.Close(t.Context()))
		require.LessOrEqual(t, attempts, int64(100*mostAttempts))
		require.LessOrEqual(t, errors, int64(10))
		require.EqualValues(t, 200, handled.Load())
	})
}
