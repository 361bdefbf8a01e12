package layer_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// A call ends with its context, at most a second late, whatever the database does.

// codes are errors that a database may give without end. 0 means that it does not answer. The last three are not tried
// again.
var codes = []int{
	0, kv.CodeTransactionTooOld, kv.CodeFutureVersion, kv.CodeNotCommitted, kv.CodeCommitUnknownResult,
	kv.CodeProcessBehind, kv.CodeDatabaseLocked, kv.CodeClusterVersionChanged, kv.CodeCommitProxyMemoryLimit,
	kv.CodeBatchThrottled, kv.CodeGRVProxyMemoryLimit, kv.CodeTagThrottled, kv.CodeProxyTagThrottled,
	kv.CodeTransactionTimedOut, kv.CodeIOError, 4100,
}

// late is how much later than its context a call may end.
const late = 1100 * time.Millisecond

// endsWith lets call run for a while on a database that is cut off, and requires that it ends with its context.
func endsWith(t *testing.T, after time.Duration, call func(ctx context.Context) error) (err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), after)
	defer cancel()
	begun, ended := time.Now(), make(chan error, 1)
	go func() { ended <- call(ctx) }()
	select {
	case err = <-ended:
	case <-time.After(time.Hour):
		t.Fatal("it has not ended")
	}
	require.LessOrEqual(t, time.Since(begun), after+late)
	return err
}

// TestRunEndsWithItsContext: Run of a worker that is idle, and of one whose handler has just returned.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, code := range codes {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("code %d, busy=%v", code, busy), func(t *testing.T) {
				t.Parallel()
				inBubble(t, layer.Config{}, func(b *bubble) {
					q, db := b.cutOffQueue(layer.Options{})
					cut := func() { db.cut(code) }
					if busy {
						b.fill(3)
					} else {
						time.AfterFunc(time.Second, cut)
					}
					w, err := plainWorker(q, func(_ context.Context, item layer.Item) error {
						if b.called(item); string(item.Body) == "1" {
							cut()
							time.Sleep(9900 * time.Millisecond) // to the end of the context, nearly
						}
						return nil
					}, worker.Options{Concurrency: 2, OnError: b.onError})
					require.NoError(t, err)
					err = endsWith(b.t, 10*time.Second, w.Run)
					if code == 0 && busy {
						require.ErrorIs(b.t, err, worker.ErrNoAnswer)
					}
					db.heal()
					time.Sleep(time.Minute) // what is under way ends
					b.close(q, db)
				})
			})
		}
	}
}

// TestRunEndsWithoutCommits: Run ends in time on a database that answers reads, and makes no commit from some point on,
// however long the lease is. "" = from before the receive on; else the body of the message that is being handled then.
func TestRunEndsWithoutCommits(t *testing.T) {
	t.Parallel()
	for _, kind := range []fault.Kind{
		fault.CommitFailed, fault.TimedOutLost, fault.UnknownLost, fault.Conflict, fault.MemoryLimit,
	} {
		for _, from := range []string{"", "0", "1", "2"} {
			for _, several := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s from %q on, several=%t", kind, from, several), func(t *testing.T) {
					inBubble(t, layer.Config{}, func(b *bubble) {
						var fails atomic.Bool
						plan := &fault.Plan{OnCommit: func(int, kv.Tx) fault.Kind {
							if fails.Load() {
								return kind
							}
							return fault.None
						}}
						db := fault.Wrap(b.db, plan)
						q, err := layer.Open(b.t.Context(), db, testPrefix, testQueue, layer.Options{})
						require.NoError(b.t, err)
						handler := worker.Handle(func(_ context.Context, d *worker.Delivery) error {
							if string(d.Body) == from {
								fails.Store(true)
								time.Sleep(time.Second)
							}
							return nil
						})
						o := quiet(worker.Options{Concurrency: 1, Lease: layer.MaxLease})
						if several {
							o.Also = []worker.Source{{Queue: q, Handler: handler}}
						}
						w, err := worker.New(q, handler, o)
						require.NoError(b.t, err)
						ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
						defer cancel()
						ended := make(chan error, 1)
						go func() { ended <- w.Run(ctx) }()
						time.Sleep(500 * time.Millisecond)
						fails.Store(from == "")
						b.fill(3)
						time.Sleep(20 * time.Second)
						select {
						case err := <-ended:
							require.NoError(b.t, err)
						default:
							b.t.Error("Run has not ended")
							fails.Store(false)
							<-ended
						}
						fails.Store(false)
						require.NoError(b.t, q.Close(b.t.Context()))
					})
				})
			}
		}
	}
}

// TestStopWaitsForSlowCommits: a stop succeeds, and the last ack is made, on a database that takes 5 s for a commit.
func TestStopWaitsForSlowCommits(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		b.fill(1)
		db := &slowDB{DB: b.db}
		q, err := layer.Open(b.t.Context(), db, testPrefix, testQueue, layer.Options{})
		require.NoError(b.t, err)
		w, err := plainWorker(q, func(_ context.Context, item layer.Item) error {
			b.called(item)
			db.slow.Store(true)
			time.Sleep(2 * time.Second)
			return nil
		}, worker.Options{Concurrency: 1, OnError: b.onError})
		require.NoError(b.t, err)
		w.Start()
		time.Sleep(time.Second)
		begun := time.Now()
		require.NoError(b.t, w.Stop(b.t.Context()))
		require.Greater(b.t, time.Since(begun), 5*time.Second)
		db.slow.Store(false)
		require.EqualValues(b.t, 1, b.stats().Acked)
		require.NoError(b.t, q.Close(b.t.Context()))
	})
}

// slowDB is a database whose commits take 5 s while slow is set.
type slowDB struct {
	kv.DB
	slow atomic.Bool
}

func (d *slowDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &slowTx{writingTx{ManagedTx: tx}, d}, err
}

type slowTx struct {
	writingTx
	d *slowDB
}

func (t *slowTx) Commit() kv.Future[struct{}] {
	f := t.ManagedTx.Commit()
	if !t.wrote || !t.d.slow.Load() {
		return f
	}
	return slowly{f}
}

type slowly struct{ kv.Future[struct{}] }

func (f slowly) Ready() bool { return false }

func (f slowly) Wait(ctx context.Context) (struct{}, error) {
	select {
	case <-time.After(5 * time.Second):
		return f.Future.Wait(ctx)
	case <-ctx.Done():
		return struct{}{}, context.Cause(ctx)
	}
}

// TestSubscribeEndsWithItsContext: a subscription that waits, and one whose handler returns at the end of its context.
func TestSubscribeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, kv.CodeProcessBehind, kv.CodeIOError} {
		for _, busy := range []bool{false, true} {
			inBubble(t, layer.Config{Changes: time.Hour}, func(b *bubble) {
				q, db := b.cutOffQueue(layer.Options{})
				if busy {
					b.fill(1)
				} else {
					time.AfterFunc(time.Second, func() { db.cut(code) })
				}
				require.NoError(b.t, endsWith(b.t, 10*time.Second, func(ctx context.Context) error {
					return q.Subscribe(ctx, "s", func(ctx context.Context, _ []layer.Change) error {
						db.cut(code)
						<-ctx.Done()
						return nil
					}, layer.SubscribeOptions{FromOldest: true, OnError: b.onError})
				}))
				db.heal()
				time.Sleep(time.Minute)
				b.close(q, db)
			})
		}
	}
}

// TestSubscriptionTellsItsEnd: a handler of changes whose process is cut off is told at the latest when the lease ends,
// also if the wall clock goes back.
func TestSubscriptionTellsItsEnd(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, kv.CodeProcessBehind} {
		inBubble(t, layer.Config{Changes: time.Hour}, func(b *bubble) {
			b.fill(1)
			var back atomic.Int64
			now := func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }
			q, db := b.cutOffQueue(layer.Options{Now: now})
			told := time.Duration(0)
			ctx, cancel := context.WithCancel(b.t.Context())
			err := q.Subscribe(ctx, "s", func(ctx context.Context, _ []layer.Change) error {
				time.Sleep(7 * time.Second)
				begun := time.Now()
				back.Store(int64(time.Hour))
				db.cut(code)
				<-ctx.Done()
				told = time.Since(begun)
				cancel()
				return nil
			}, layer.SubscribeOptions{FromOldest: true, Lease: 6 * time.Second, OnError: b.onError})
			require.NoError(b.t, err)
			require.NotZero(b.t, told)
			require.LessOrEqual(b.t, told, 6*time.Second)
			time.Sleep(time.Minute)
			b.close(q, db)
		})
	}
}

// TestSubscriptionTellsOfItsLease (contract): the lease of a subscription expires because the database fails, while its
// handler runs. The end of the handler's context says so, and OnError hears of it once. The handler gets the changes
// again.
func TestSubscriptionTellsOfItsLease(t *testing.T) {
	t.Parallel()
	for _, code := range []int{kv.CodeIOError, kv.CodeProcessBehind} {
		inBubble(t, layer.Config{Changes: time.Hour}, func(b *bubble) {
			b.fill(1)
			q, db := b.cutOffQueue(layer.Options{})
			calls, cause := 0, error(nil)
			ctx, cancel := context.WithCancel(b.t.Context())
			err := q.Subscribe(ctx, "s", func(ctx context.Context, _ []layer.Change) error {
				if calls++; calls == 2 {
					cancel()
					return nil
				}
				db.cut(code)
				<-ctx.Done()
				cause = context.Cause(ctx)
				db.heal()
				return cause
			}, layer.SubscribeOptions{FromOldest: true, Lease: 6 * time.Second, OnError: b.onError})
			require.NoError(b.t, err)
			require.Equal(b.t, 2, calls)
			require.ErrorContains(b.t, cause, "the lease of the subscription has expired")
			require.Len(b.t, b.reported(), 1)
			require.ErrorIs(b.t, b.reported()[0], cause)
			b.close(q, db)
		})
	}
}

// TestSubscriptionRepeatsNoError (contract): the database fails for ten minutes. OnError of a subscription hears of the
// same error at most once in ten seconds.
func TestSubscriptionRepeatsNoError(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{Changes: time.Hour}, func(b *bubble) {
		b.fill(1)
		q, db := b.cutOffQueue(layer.Options{})
		ctx, cancel := context.WithCancel(b.t.Context())
		ended, met := make(chan error, 1), make(chan bool, 1)
		go func() {
			ended <- q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
				met <- true
				return nil
			}, layer.SubscribeOptions{FromOldest: true, OnError: b.onError})
		}()
		<-met
		db.cut(kv.CodeIOError)
		time.Sleep(10 * time.Minute)
		n := len(b.reported())
		require.GreaterOrEqual(b.t, n, 2)
		require.LessOrEqual(b.t, n, 62) // an error of a take, and one of the lease
		db.heal()
		time.Sleep(time.Minute)
		require.Len(b.t, b.reported(), n)
		cancel()
		require.NoError(b.t, <-ended)
		b.close(q, db)
	})
}

// TestCloseEnds: Close of a handle ends, with a deadline and without one, while a receive waits for the database.
func TestCloseEnds(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, kv.CodeProcessBehind} {
		for name, bound := range map[string]time.Duration{"none": 5 * time.Second, "a second": time.Second} {
			t.Run(fmt.Sprint(code, ", ", name), func(t *testing.T) {
				inBubble(t, layer.Config{}, func(b *bubble) {
					q, db := b.cutOffQueue(layer.Options{})
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						_, _ = q.Receive(b.t.Context(), layer.ReceiveOptions{Wait: 10 * time.Minute})
					}()
					time.Sleep(time.Second)
					db.cut(code)
					_, err := q.Enqueue(contextOf(b.t, time.Second), layer.Message{Group: "A"})
					require.Error(b.t, err)
					time.Sleep(time.Minute)
					ctx, cancel := context.WithCancel(b.t.Context())
					defer cancel()
					if name != "none" {
						ctx = contextOf(b.t, bound)
					}
					begun := time.Now()
					require.Error(b.t, q.Close(ctx))
					require.LessOrEqual(b.t, time.Since(begun), bound+late)
					db.heal()
					<-ended
					time.Sleep(time.Minute)
				})
			})
		}
	}
}

// TestCloseIdle: Close of a handle that has nothing to do and nothing to clear needs no time, so a context that has
// ended does not fail it.
func TestCloseIdle(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		q, _ := b.cutOffQueue(layer.Options{})
		_, err := q.Stats(b.t.Context(), layer.StatsOptions{})
		require.NoError(b.t, err)
		ended, cancel := context.WithCancel(b.t.Context())
		cancel()
		require.NoError(b.t, q.Close(ended))
	})
}

// TestErrorNamesTheCallersCause (G3): a call that ends with its context on a database that does not answer names the
// caller's own cause, also a call that shares transactions. If the cause wraps the error of another call, the error
// tells nothing of that call's outcome: a call that has sent nothing is not of unknown outcome.
func TestErrorNamesTheCallersCause(t *testing.T) {
	t.Parallel()
	for _, errOwn := range []error{
		errors.New("the caller has no more time"),
		fmt.Errorf("another call: %w", &kv.Error{Code: kv.CodeCommitUnknownResult}),
	} {
		for name, call := range outcomeCalls {
			t.Run(fmt.Sprintf("%s, code %d", name, kv.Code(errOwn)), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { endsWithCause(t, call, errOwn) })
			})
		}
	}
}

func endsWithCause(t *testing.T, call func(e *env, q *layer.Queue, c *layer.Claim) error, errOwn error) {
	t.Helper()
	e := newEnv(t, inMemory, false)
	claim := e.beforeOutcome()
	db := &cutDB{DB: e.db}
	q, err := layer.Open(e.ctx, db, testPrefix, testQueue, layer.Options{})
	require.NoError(t, err)
	_, err = q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	db.cut(0)
	whole := e.ctx
	var cancel context.CancelFunc
	e.ctx, cancel = context.WithTimeoutCause(whole, time.Second, errOwn)
	begun := time.Now()
	err = call(e, q, claim)
	require.ErrorIs(t, err, errOwn)
	require.False(t, kv.MaybeCommitted(err), "%v", err)
	require.LessOrEqual(t, time.Since(begun), time.Second+late)
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "B"})
	require.ErrorIs(t, err, errOwn)
	require.False(t, kv.MaybeCommitted(err), "a call that begins after the end: %v", err)
	cancel()
	e.ctx = whole
	db.heal()
	require.NoError(t, q.Close(e.ctx))
	e.sound(testQueue)
}

// TestCallOfAClosedHandleEnds (contract): a call ends with its context, at most a second late, also if the handle
// closes before that. The database does not answer, so the receipts of earlier calls cannot be cleared.
func TestCallOfAClosedHandleEnds(t *testing.T) {
	t.Parallel()
	for name, call := range outcomeCalls {
		for _, code := range []int{0, kv.CodeProcessBehind} {
			t.Run(fmt.Sprintf("%s, code %d", name, code), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					e := newEnv(t, inMemory, false)
					claim := e.beforeOutcome()
					db := &cutDB{DB: e.db}
					q, err := layer.Open(e.ctx, db, testPrefix, testQueue, layer.Options{})
					require.NoError(t, err)
					_, err = q.Enqueue(e.ctx, layer.Message{Group: "F"}) // it leaves a receipt
					require.NoError(t, err)
					db.cut(code)
					closed := make(chan error, 1)
					time.AfterFunc(time.Second, func() { closed <- q.Close(t.Context()) })
					whole := e.ctx
					err = endsWith(t, 10*time.Second, func(ctx context.Context) error {
						e.ctx = ctx
						return call(e, q, claim)
					})
					require.Error(t, err)
					<-closed // without an error if the call has all receipts
					e.ctx = whole
					db.heal()
					e.sound(testQueue)
				})
			})
		}
	}
}

// contextOf is a context that ends after d.
func contextOf(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestCloseEndsDuringSearch: Close of a handle that looks for the claims of a receive of unknown outcome.
func TestCloseEndsDuringSearch(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		cut := &cutDB{DB: b.db}
		late := &lateCommits{DB: cut, lands: time.Hour, timesOut: time.Second}
		q, err := layer.Open(b.t.Context(), late, testPrefix, testQueue, layer.Options{})
		require.NoError(b.t, err)
		b.fill(1)
		late.on.Store(true)
		// The search begins when the receive ends. By then the database does not answer.
		time.AfterFunc(500*time.Millisecond, func() { late.on.Store(false); cut.cut(0) })
		_, err = q.Receive(b.t.Context(), layer.ReceiveOptions{})
		require.True(b.t, kv.MaybeCommitted(err), "%v", err)
		time.Sleep(time.Second)
		begun := time.Now()
		require.Error(b.t, q.Close(b.t.Context()))
		require.LessOrEqual(b.t, time.Since(begun), 5100*time.Millisecond)
		cut.heal()
		time.Sleep(2 * time.Hour)
	})
}

// TestCloseDuringSearch (G7): a handle is closed when the outcome of a receive is unknown, or about to be. Close waits
// until the claims are given back: another handle receives them at once.
func TestCloseDuringSearch(t *testing.T) {
	t.Parallel()
	for _, closes := range []time.Duration{500 * time.Millisecond, 3 * time.Second} {
		t.Run(fmt.Sprintf("after %s", closes), func(t *testing.T) {
			inBubble(t, layer.Config{Lease: layer.MaxLease}, func(b *bubble) {
				late := &lateCommits{DB: b.db, lands: 2 * time.Second, timesOut: time.Second}
				cut := &cutDB{DB: late}
				q, err := layer.Open(b.t.Context(), cut, testPrefix, testQueue, layer.Options{})
				require.NoError(b.t, err)
				b.fill(1)
				late.on.Store(true)
				received := make(chan error, 1)
				go func() {
					_, err := q.Receive(b.t.Context(), layer.ReceiveOptions{})
					received <- err
				}()
				time.Sleep(400 * time.Millisecond) // it is at its commit
				late.on.Store(false)
				cut.cut(kv.CodeProcessBehind) // no search gets an answer
				time.AfterFunc(3*time.Second, cut.heal)
				time.Sleep(closes - 400*time.Millisecond)
				require.NoError(b.t, q.Close(b.t.Context()))
				require.True(b.t, kv.MaybeCommitted(<-received))
				claims, err := b.q.Receive(b.t.Context(), layer.ReceiveOptions{})
				require.NoError(b.t, err)
				require.Len(b.t, claims, 1, "given back")
				require.Zero(b.t, claims[0].Items[0].Attempts)
				require.NoError(b.t, b.q.Ack(b.t.Context(), claims[0]))
				report, err := b.q.Admin().Check(b.t.Context(), layer.CheckOptions{})
				require.NoError(b.t, err)
				require.Empty(b.t, report.Violations)
			})
		})
	}
}

// holdCalls is an engine that does not begin the transactions of a call, until the test releases them.
type holdCalls struct {
	kv.DB
	call    string
	release chan struct{}
}

func (d *holdCalls) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if o.Call == d.call {
		<-d.release
	}
	return d.DB.Begin(o)
}

// TestCommittedIsTold: a receive meets the heartbeat of a dead handle, whose claims must be ended in another
// transaction. That holds up neither an enqueue nor an ack in the same transaction. The receive gets its claims before
// its context ends. After that transaction a receive that found nothing receives the group of the dead handle.
func TestCommittedIsTold(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{}, func(b *bubble) {
		ctx := b.t.Context()
		cut := &cutDB{DB: b.db}
		dead, err := layer.Open(ctx, cut, testPrefix, testQueue, layer.Options{Owner: "dead"})
		require.NoError(b.t, err)
		b.fill(1)
		claims, err := dead.Receive(ctx, layer.ReceiveOptions{Heartbeat: true})
		require.NoError(b.t, err)
		require.Len(b.t, claims, 1)
		cut.cut(0)
		_, err = b.q.Enqueue(ctx, layer.Message{Group: "B"}, layer.Message{Group: "C"}, layer.Message{Group: "D"})
		require.NoError(b.t, err)
		held := &holdCalls{DB: b.db, call: "heartbeat", release: make(chan struct{})}
		q, err := layer.Open(ctx, held, testPrefix, testQueue, layer.Options{})
		require.NoError(b.t, err)
		one := layer.ReceiveOptions{MaxGroups: 1, Lease: time.Hour}
		claims, err = q.Receive(ctx, one)
		require.NoError(b.t, err)
		time.Sleep(2 * time.Minute) // the heartbeat is due

		settles := func(o layer.ReceiveOptions) ([]*layer.Claim, error) {
			begun := time.Now()
			claims, err := q.SettleReceive(
				contextOf(b.t, time.Second), layer.Settlement{Claim: claims[0], FinishAll: true}, o,
			)
			assert.LessOrEqual(b.t, time.Since(begun), time.Second)
			return claims, err
		}
		time.AfterFunc(10*time.Second, func() { close(held.release) })
		claims, err = settles(one)
		require.NoError(b.t, err)
		require.Len(b.t, claims, 1)
		require.Equal(b.t, "C", claims[0].Group)
		claims, err = settles(one)
		require.NoError(b.t, err)
		require.Len(b.t, claims, 1)
		require.Equal(b.t, "D", claims[0].Group)
		claims, err = settles(one)
		require.NoError(b.t, err)
		require.Empty(b.t, claims)
		claims, err = q.Receive(ctx, one)
		require.NoError(b.t, err)
		require.Len(b.t, claims, 1, "of the dead handle")
		require.Equal(b.t, "A", claims[0].Group)
		require.NoError(b.t, q.Ack(ctx, claims[0]))
		stats := b.stats()
		require.Zero(b.t, stats.Depth)
		require.NoError(b.t, q.Close(ctx))
		cut.heal()
		require.NoError(b.t, dead.Close(ctx))
		report, err := b.q.Admin().Check(ctx, layer.CheckOptions{})
		require.NoError(b.t, err)
		require.Empty(b.t, report.Violations)
	})
}

// refusedCalls is an engine whose reads fail in the transactions of a call, as long as it is on.
type refusedCalls struct {
	kv.DB
	call  string
	on    atomic.Bool
	reads atomic.Int64
}

func (d *refusedCalls) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	if o.Call != d.call || err != nil {
		return tx, err
	}
	return &refusedReads{tx, d}, nil
}

type refusedReads struct {
	kv.ManagedTx
	d *refusedCalls
}

func (t *refusedReads) Get(key []byte) kv.Future[[]byte] {
	t.d.reads.Add(1)
	if t.d.on.Load() {
		return kv.Done[[]byte](nil, &kv.Error{Code: kv.CodeProcessBehind})
	}
	return t.ManagedTx.Get(key)
}

// TestSearchesInAnOutage (G7): many receives of a handle have an unknown outcome, and no search for their claims gets
// an answer. The searches read seldom, however many receives there are. Later all claims are given back.
func TestSearchesInAnOutage(t *testing.T) {
	t.Parallel()
	inBubble(t, layer.Config{Lease: 10 * time.Minute}, func(b *bubble) {
		const many = 100
		ctx := b.t.Context()
		late := &lateCommits{DB: b.db, lands: 1500 * time.Millisecond, timesOut: time.Second}
		refused := &refusedCalls{DB: late, call: "receipt"}
		q, err := layer.Open(ctx, refused, testPrefix, testQueue, layer.Options{})
		require.NoError(b.t, err)
		for n := range many {
			_, err := b.q.Enqueue(ctx, layer.Message{Group: fmt.Sprint(n)})
			require.NoError(b.t, err)
		}
		late.on.Store(true)
		refused.on.Store(true)
		for range many {
			_, err := q.Receive(ctx, layer.ReceiveOptions{MaxGroups: 1})
			require.True(b.t, kv.MaybeCommitted(err), "%v", err)
			time.Sleep(time.Second) // the claim is made
		}
		before := refused.reads.Load()
		time.Sleep(time.Minute)
		require.LessOrEqual(b.t, refused.reads.Load()-before, int64(60*20))
		late.on.Store(false)
		refused.on.Store(false)
		time.Sleep(10 * time.Second)
		for range many {
			claims, err := b.q.Receive(ctx, layer.ReceiveOptions{MaxGroups: 1})
			require.NoError(b.t, err)
			require.Len(b.t, claims, 1, "given back")
			require.NoError(b.t, b.q.Ack(ctx, claims[0]))
		}
		require.NoError(b.t, q.Close(ctx))
		report, err := b.q.Admin().Check(ctx, layer.CheckOptions{})
		require.NoError(b.t, err)
		require.Empty(b.t, report.Violations)
	})
}
