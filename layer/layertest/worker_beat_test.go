package layer_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	recording "fdbfifo/kv/record"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// midCommit is an engine that calls a function once, before the commit of a transaction that has written a key with the
// prefix.
type midCommit struct {
	kv.DB
	prefix []byte
	call   atomic.Pointer[func()]
}

func (d *midCommit) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &midCommitTx{ManagedTx: tx, db: d}, err
}

type midCommitTx struct {
	kv.ManagedTx
	db  *midCommit
	met bool
}

func (t *midCommitTx) Set(key, value []byte) {
	t.met = t.met || bytes.HasPrefix(key, t.db.prefix)
	t.ManagedTx.Set(key, value)
}

func (t *midCommitTx) Commit() kv.Future[struct{}] {
	if t.met {
		if call := t.db.call.Swap(nil); call != nil {
			(*call)()
		}
	}
	return t.ManagedTx.Commit()
}

// TestLongerLeaseEndsNoHeartbeat (G5): a handle learns of a longer lease of the queue while it moves its heartbeat by
// the shorter one. Its claims last as long as it lives.
func TestLongerLeaseEndsNoHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, memory := t.Context(), embedded.OpenMemory(embedded.Options{})
		db := &midCommit{DB: memory, prefix: key("beat")}
		o := layer.Options{Config: layer.Config{Lease: time.Second}}
		other, err := layer.Create(ctx, memory, testPrefix, testQueue, o)
		require.NoError(t, err)
		q, err := layer.Open(ctx, db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		sendGroups(t, q, 1)
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Heartbeat: true})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		longer := make(chan struct{})
		call := func() {
			close(longer)
			_, _, err := other.Admin().Configure(ctx, func(c *layer.Config) { c.Lease = time.Hour })
			require.NoError(t, err)
			_, _, err = q.Admin().ReadConfig(ctx)
			require.NoError(t, err)
		}
		db.call.Store(&call)
		time.Sleep(5 * time.Second)
		<-longer
		others, err := other.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		require.Empty(t, others)
		require.NoError(t, q.Ack(ctx, claims[0]))
		require.NoError(t, q.Close(ctx))
		require.NoError(t, other.Close(ctx))
		require.NoError(t, memory.Close())
	})
}

// inHeartbeatBubble runs a test on a queue in memory, in virtual time.
func inHeartbeatBubble(t *testing.T, test func(t *testing.T, q *layer.Queue, r *recording.Recorder)) {
	synctest.Test(t, func(t *testing.T) {
		r := recording.Wrap(embedded.OpenMemory(embedded.Options{}))
		q, err := layer.Create(t.Context(), r, nil, "q", layer.Options{Owner: "w"})
		require.NoError(t, err)
		test(t, q, r)
		report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, r.Close())
	})
}

func sendGroups(t *testing.T, q *layer.Queue, n int) {
	t.Helper()
	for i := range n {
		_, err := q.Enqueue(t.Context(), layer.Message{Group: fmt.Sprintf("g%04d", i)})
		require.NoError(t, err)
	}
}

func receiveNow(t *testing.T, q *layer.Queue, o layer.ReceiveOptions) []*layer.Claim {
	t.Helper()
	claims, err := q.Receive(t.Context(), o)
	require.NoError(t, err)
	return claims
}

// TestWorkerHeartbeatOptions: claims by heartbeat have no lease of their own.
func TestWorkerHeartbeatOptions(t *testing.T) {
	inHeartbeatBubble(t, func(t *testing.T, q *layer.Queue, _ *recording.Recorder) {
		_, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error { return nil }),
			worker.Options{Heartbeat: true, Lease: time.Second})
		require.ErrorIs(t, err, layer.ErrOptions)
		require.ErrorContains(t, err, "worker: new: ")
	})
}

// TestWorkerByHeartbeat: a worker with a hundred hands holds a hundred groups for minutes without extending one.
func TestWorkerByHeartbeat(t *testing.T) {
	inHeartbeatBubble(t, func(t *testing.T, q *layer.Queue, r *recording.Recorder) {
		const groups = 100
		sendGroups(t, q, groups)
		open := make(chan struct{})
		var all sync.WaitGroup
		all.Add(groups)
		w, err := worker.New(q, worker.Handle(func(context.Context, *worker.Delivery) error {
			all.Done()
			<-open
			return nil
		}), worker.Options{
			Heartbeat: true, Concurrency: groups, Timeout: -1, OnError: func(err error) { t.Error(err) },
		})
		require.NoError(t, err)
		w.Start()
		all.Wait()
		synctest.Wait()
		before := r.Counters()
		time.Sleep(9 * time.Minute)
		n := r.Counters().Sub(before).Mutations
		t.Logf("%d mutations in nine minutes", n)
		require.Less(t, n, int64(9*6*6))
		close(open)
		time.Sleep(time.Second)
		require.NoError(t, w.Stop(t.Context()))
		stats, err := q.Stats(t.Context(), layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, groups, stats.Acked)
	})
}

// TestWorkerLosesItsHeartbeat: when others have ended a handle that lives, the contexts of its handlers end whose
// groups are another's by then, and the others go on under leases of their own.
func TestWorkerLosesItsHeartbeat(t *testing.T) {
	inHeartbeatBubble(t, func(t *testing.T, q *layer.Queue, r *recording.Recorder) {
		sendGroups(t, q, 3)
		var mu sync.Mutex
		var running sync.WaitGroup
		running.Add(3)
		ended := map[string]error{}
		w, err := worker.New(q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
			running.Done()
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Minute):
			}
			mu.Lock()
			defer mu.Unlock()
			ended[d.ID.Group] = context.Cause(ctx)
			return nil
		}), worker.Options{Heartbeat: true, Concurrency: 3, Timeout: -1})
		require.NoError(t, err)
		w.Start()
		running.Wait()
		// Another, whose clock is ahead, takes one group.
		ahead, err := layer.Open(t.Context(), r, nil, "q", layer.Options{
			Owner: "ahead", Now: func() time.Time { return time.Now().Add(time.Minute) },
		})
		require.NoError(t, err)
		taken := receiveNow(t, ahead, layer.ReceiveOptions{MaxGroups: 1})
		require.Len(t, taken, 1)
		time.Sleep(15 * time.Second)
		mu.Lock()
		require.Len(t, ended, 1)
		require.ErrorIs(t, ended[taken[0].Group], layer.ErrClaimLost)
		mu.Unlock()
		require.NoError(t, ahead.Ack(t.Context(), taken[0]))
		require.NoError(t, ahead.Close(t.Context()))
		time.Sleep(6 * time.Minute)
		require.NoError(t, w.Stop(t.Context()))
		stats, err := q.Stats(t.Context(), layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 3, stats.Acked)
		require.Len(t, ended, 3)
	})
}

// TestStuckHandlerLosesItsHeartbeat (G5): a group whose handler is stuck is another's after a lease, though the handle
// lives and beats.
func TestStuckHandlerLosesItsHeartbeat(t *testing.T) {
	inHeartbeatBubble(t, func(t *testing.T, q *layer.Queue, r *recording.Recorder) {
		_, err := q.Enqueue(t.Context(), layer.Message{Group: "stuck"}, layer.Message{Group: "fine"})
		require.NoError(t, err)
		free := make(chan struct{})
		w, err := worker.New(q, worker.Handle(func(_ context.Context, d *worker.Delivery) error {
			if d.ID.Group == "stuck" {
				<-free
			}
			return nil
		}), worker.Options{Heartbeat: true, Concurrency: 2, Timeout: time.Minute})
		require.NoError(t, err)
		w.Start()
		other, err := layer.Open(t.Context(), r, nil, "q", layer.Options{Owner: "other"})
		require.NoError(t, err)
		time.Sleep(time.Minute + 4*time.Second)
		require.Empty(t, receiveNow(t, other, layer.ReceiveOptions{}))
		time.Sleep(40 * time.Second)
		stuck := "stuck"
		claims := receiveNow(t, other, layer.ReceiveOptions{Group: &stuck})
		if len(claims) == 0 { // the worker itself has taken it over
			info, err := q.Admin().Group(t.Context(), stuck, nil)
			require.NoError(t, err)
			require.Equal(t, 1, info.Attempts)
		} else {
			require.Equal(t, 1, claims[0].Items[0].Attempts)
			require.NoError(t, other.Ack(t.Context(), claims[0]))
		}
		close(free)
		time.Sleep(time.Minute)
		require.NoError(t, other.Close(t.Context()))
		require.NoError(t, w.Stop(t.Context()))
	})
}
