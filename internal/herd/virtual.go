package herd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
)

// latency is how long the parts of a transaction take: between the two durations, evenly.
type latency struct{ start, read, commit [2]time.Duration }

// clusterLatency is FoundationDB's below three quarters of its load, by
// https://apple.github.io/foundationdb/performance.html.
var clusterLatency = latency{
	start:  [2]time.Duration{300 * time.Microsecond, time.Millisecond},
	read:   [2]time.Duration{100 * time.Microsecond, time.Millisecond},
	commit: [2]time.Duration{1500 * time.Microsecond, 2500 * time.Microsecond},
}

// chance is the source of the durations of a herd.
var chance = seeds.Concurrent("herd")

// below is a duration from 0 on that is shorter than d.
func below(d time.Duration) time.Duration { return time.Duration(chance.Int64N(int64(d))) }

func draw(d [2]time.Duration) time.Duration { return d[0] + below(d[1]-d[0]+1) }

// slowDB answers as late as a cluster would. Reads that begin together take as long as the slowest of them. A
// transaction sees what there was when its first read began, and meets the others halfway through its commit.
type slowDB struct {
	kv.DB
	latency latency
}

func (d *slowDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	return &slowTx{ManagedTx: tx, latency: d.latency}, nil
}

type slowTx struct {
	kv.ManagedTx
	latency latency
	mu      sync.Mutex
	started time.Time // when the read version is there; guarded by mu; zero = not asked for
}

// begun returns when the read version is there; a commit asks for one, too.
func (t *slowTx) begun() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.started.IsZero() {
		t.started = now.Add(draw(t.latency.start))
	}
	if t.started.After(now) {
		return t.started
	}
	return now
}

// ready returns when a read that begins now has its answer.
func (t *slowTx) ready() time.Time { return t.begun().Add(draw(t.latency.read)) }

func (t *slowTx) restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started = time.Time{}
}

func (t *slowTx) Get(key []byte) kv.Future[[]byte] { return slowly(t, t.ManagedTx.Get(key)) }
func (t *slowTx) GetKey(s kv.KeySelector) kv.Future[[]byte] {
	return slowly(t, t.ManagedTx.GetKey(s))
}
func (t *slowTx) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return slowly(t, t.ManagedTx.GetRange(r, o))
}
func (t *slowTx) Snapshot() kv.ReadTx { return slowSnapshot{t.ManagedTx.Snapshot(), t} }

type slowSnapshot struct {
	kv.ReadTx
	tx *slowTx
}

func (s slowSnapshot) Get(key []byte) kv.Future[[]byte] { return slowly(s.tx, s.ReadTx.Get(key)) }
func (s slowSnapshot) GetKey(k kv.KeySelector) kv.Future[[]byte] {
	return slowly(s.tx, s.ReadTx.GetKey(k))
}
func (s slowSnapshot) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	return slowly(s.tx, s.ReadTx.GetRange(r, o))
}

func (t *slowTx) Commit() kv.Future[struct{}] {
	c := &slowCommit{done: make(chan struct{})}
	took, begun := draw(t.latency.commit), t.begun()
	go func() {
		defer close(c.done)
		time.Sleep(time.Until(begun))
		time.Sleep(took / 2)
		_, c.err = t.ManagedTx.Commit().Wait(context.Background())
		time.Sleep(took - took/2)
	}()
	return c
}

func (t *slowTx) OnError(err error) kv.Future[struct{}] {
	t.restart()
	return t.ManagedTx.OnError(err)
}

func (t *slowTx) Reset() {
	t.restart()
	t.ManagedTx.Reset()
}

// slowFuture has its answer at a time.
type slowFuture[T any] struct {
	kv.Future[T]
	at time.Time
}

func slowly[T any](t *slowTx, f kv.Future[T]) kv.Future[T] { return &slowFuture[T]{f, t.ready()} }

func (f *slowFuture[T]) Ready() bool { return !time.Now().Before(f.at) && f.Future.Ready() }

func (f *slowFuture[T]) Wait(ctx context.Context) (v T, err error) {
	if d := time.Until(f.at); d > 0 {
		if err := sleep(ctx, d); err != nil {
			return v, fmt.Errorf("wait: %w", err)
		}
	}
	return f.Future.Wait(ctx)
}

type slowCommit struct {
	done chan struct{}
	err  error // set before done is closed
}

func (c *slowCommit) Wait(ctx context.Context) (struct{}, error) {
	select {
	case <-c.done:
		return struct{}{}, c.err
	case <-ctx.Done():
		return struct{}{}, context.Cause(ctx)
	}
}

func (c *slowCommit) Ready() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *slowCommit) Cancel() {} // a commit that was sent may still happen

// sleep returns early, with the cause, if ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
