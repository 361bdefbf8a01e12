package layer_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestPoisonBesideSlowNeighbours (G7): a message kills its process after a while, again and again. The handlers of its
// neighbours take longer than that, and longer than a lease. The message that kills becomes the only dead letter, and
// the neighbours are handled twice at most.
func TestPoisonBesideSlowNeighbours(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{1, 3} {
		for _, after := range []time.Duration{0, 600 * time.Millisecond, 3 * time.Second} {
			for _, takes := range []time.Duration{time.Second, 12 * time.Second} {
				for _, beats := range []bool{false, true} {
					name := fmt.Sprintf("%d attempts, killed after %s, beside %s, beat %t",
						attempts, after, takes, beats)
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						synctest.Test(t, func(t *testing.T) { besideSlowNeighbours(t, attempts, after, takes, beats) })
					})
				}
			}
		}
	}
}

func besideSlowNeighbours(t *testing.T, attempts int, after, takes time.Duration, beats bool) {
	ctx, raw := t.Context(), embedded.OpenMemory(embedded.Options{})
	q, err := layer.Create(ctx, raw, testPrefix, testQueue, layer.Options{
		Config: layer.Config{Lease: 5 * time.Second, MaxAttempts: attempts, Retry: atOnce},
	})
	require.NoError(t, err)
	for _, group := range []string{"A", "B", "C", "D"} {
		_, err := q.Enqueue(ctx, layer.Message{Group: group, Body: []byte(group)})
		require.NoError(t, err)
	}
	left := func() int64 {
		s, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		return s.Depth
	}
	var mu sync.Mutex
	calls := make(map[string]int)
	for n := 0; left() > 0; n++ {
		require.LessOrEqual(t, n, attempts+2, "calls: %v", calls)
		db := &mortal{DB: raw}
		mine, err := layer.Open(ctx, db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		dies := make(chan struct{})
		w, err := worker.New(mine, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
			mu.Lock()
			calls[string(d.Body)]++
			mu.Unlock()
			if string(d.Body) == "B" {
				time.Sleep(after)
				db.dead.Store(true)
				close(dies)
			}
			select {
			case <-dies:
				<-ctx.Done()
				return context.Cause(ctx)
			case <-time.After(takes):
				return nil
			}
		}), worker.Options{Concurrency: 4, Heartbeat: beats, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		w.Start()
		for !db.dead.Load() && left() > 0 {
			time.Sleep(100 * time.Millisecond)
		}
		gone, cancel := context.WithCancel(ctx)
		cancel()
		_ = w.Stop(gone)
		_ = mine.Close(gone)
		time.Sleep(20 * time.Second)
	}
	page, err := q.Admin().DeadLetters(ctx, layer.DeadOptions{Bodies: true})
	require.NoError(t, err)
	require.Len(t, page.Letters, 1, "calls: %v", calls)
	require.Equal(t, "B", string(page.Letters[0].Body))
	require.Equal(t, attempts, page.Letters[0].Attempts)
	for _, body := range []string{"A", "C", "D"} {
		require.LessOrEqual(t, calls[body], 2, "calls: %v", calls)
	}
	require.NoError(t, q.Close(ctx))
	require.NoError(t, raw.Close())
}

// TestSuspectsDelayNoOthers (G5): messages of other groups are delivered at once while a suspect message is handled,
// alone and for long. In an unordered queue those of the same group are delivered at the next poll at the latest. The
// next suspect message begins as soon as that one is handled, and after 30 s at the latest. The handle makes at most 20
// transactions a second until then. The messages are suspect because a process has died with them.
func TestSuspectsDelayNoOthers(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{20 * time.Second, 100 * time.Second} {
		for _, unordered := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				suspectsDelayNoOthers(t, takes, min(takes, 30*time.Second), unordered)
			})
		}
	}
}

func suspectsDelayNoOthers(t *testing.T, takes, next time.Duration, unordered bool) {
	const (
		many = 10
		poll = 1260 * time.Millisecond // 1 s, a quarter that chance adds, and a transaction
	)
	soon := 10 * time.Millisecond
	if unordered {
		soon = poll // the group is ready already, so the enqueue wakes no handle
	}
	group := func(name string, i int) string {
		if unordered {
			return "A"
		}
		return fmt.Sprint(name, i)
	}
	ctx, raw := t.Context(), embedded.OpenMemory(embedded.Options{})
	db := record.WrapCounting(raw)
	q, err := layer.Create(ctx, raw, testPrefix, testQueue, layer.Options{
		Config: layer.Config{Lease: 5 * time.Second, Unordered: unordered},
	})
	require.NoError(t, err)
	for i := range many {
		_, err := q.Enqueue(ctx, layer.Message{Group: group("S", i), Body: []byte("suspect")})
		require.NoError(t, err)
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: many, Unordered: unordered})
	require.NoError(t, err)
	require.Len(t, claims, many)
	require.NoError(t, q.Close(ctx))
	time.Sleep(10 * time.Second)

	mine, err := layer.Open(ctx, db, testPrefix, testQueue, layer.Options{})
	require.NoError(t, err)
	var mu sync.Mutex
	var begun []time.Time // of the suspects
	others := make(chan time.Time, 1)
	w, err := worker.New(mine, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		if string(d.Body) != "suspect" {
			others <- time.Now()
			return nil
		}
		mu.Lock()
		begun = append(begun, time.Now())
		mu.Unlock()
		select {
		case <-time.After(takes):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}), worker.Options{Concurrency: 4, Unordered: unordered, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	w.Start()
	time.Sleep(5 * time.Second)
	before := db.Counters()
	time.Sleep(10 * time.Second)
	made := db.Counters().Sub(before)
	require.LessOrEqual(t, made.Commits, int64(20*10))
	for i := range 3 {
		sent := time.Now()
		_, err := mine.Enqueue(ctx, layer.Message{Group: group("other", i)})
		require.NoError(t, err)
		require.Less(t, (<-others).Sub(sent), soon)
	}
	time.Sleep(20 * time.Second)
	mu.Lock()
	require.Len(t, begun, 2)
	require.InDelta(t, next.Seconds(), begun[1].Sub(begun[0]).Seconds(), poll.Seconds())
	mu.Unlock()
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_ = w.Stop(gone) // handlers run
	require.NoError(t, mine.Close(ctx))
	require.NoError(t, raw.Close())
}

// TestSuspectsHideNoOthers (G5): a process has died with the messages of two groups, and another handles one of them,
// alone. Its next receive passes over the other suspect messages, and gives a message that was never in flight: of
// another group, or, in an unordered queue, of the same group.
func TestSuspectsHideNoOthers(t *testing.T) {
	t.Parallel()
	turns := func(c *layer.Config) { c.LeasePerItem = true }
	facets := func(c *layer.Config) { c.Facets, c.Views = []string{"state"}, "*; state" }
	unordered := func(c *layer.Config) { c.Unordered = true }
	for _, kind := range []struct {
		name   string
		change func(c *layer.Config)
		o      layer.ReceiveOptions
		group  string // of the message that was never in flight
	}{
		{"groups", nil, layer.ReceiveOptions{}, "other"},
		{"heads", nil, layer.ReceiveOptions{Strategy: layer.Heads}, "other"},
		{"layers", nil, layer.ReceiveOptions{Strategy: layer.Layers}, "other"},
		{"whole groups", facets, layer.ReceiveOptions{}, "other"},
		{"template", facets, layer.ReceiveOptions{Where: layer.Template{"state": "new"}}, "other"},
		{"layers of a template", facets,
			layer.ReceiveOptions{Where: layer.Template{"state": "new"}, Strategy: layer.Layers}, "other"},
		{"in turn", turns, layer.ReceiveOptions{}, "other"},
		{"layers in turn", turns, layer.ReceiveOptions{Strategy: layer.Layers}, "other"},
		{"unordered", unordered, layer.ReceiveOptions{Unordered: true}, "other"},
		{"unordered in the same group", unordered, layer.ReceiveOptions{Unordered: true}, "B"},
		{"unordered of the group", unordered, layer.ReceiveOptions{Unordered: true, Group: layer.OnlyGroup("B")}, "B"},
	} {
		for _, max := range []int{1, 2, 10} {
			t.Run(fmt.Sprintf("%s/%d", kind.name, max), func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, inMemory, false)
				o := e.options(10)
				if kind.change != nil {
					kind.change(&o.Config)
				}
				q, err := layer.Create(e.ctx, e.db, testPrefix, "hidden", o)
				require.NoError(t, err)
				t.Cleanup(func() { e.sound("hidden") })
				send := func(group, body string) {
					m := layer.Message{Group: group, Body: []byte(body)}
					if len(o.Config.Facets) > 0 {
						m.Headers = map[string]string{"state": "new"}
					}
					_, err := q.Enqueue(e.ctx, m)
					require.NoError(t, err)
				}
				large := strings.Repeat("x", 1<<20*2/3) // two do not fit into a receive
				for range 2 {
					send("A", large)
					send("B", large)
				}
				receive := func(q *layer.Queue, o layer.ReceiveOptions) []*layer.Claim {
					claims, err := q.Receive(e.ctx, o)
					require.NoError(t, err)
					return claims
				}
				dies, err := layer.Open(e.ctx, e.db, testPrefix, "hidden", e.options(11))
				require.NoError(t, err)
				died := kind.o
				died.Max, died.MaxBytes, died.Group, died.Strategy = 10, 10*1<<20, nil, layer.FillGroup
				for n := 0; n < 4; {
					claims := receive(dies, died)
					require.NotEmpty(t, claims)
					for _, c := range claims {
						n += len(c.Items)
					}
				}
				e.clock.advance(2 * time.Minute)
				next := kind.o
				next.Max = max
				first := receive(q, next)
				require.Len(t, first, 1)
				require.Len(t, first[0].Items, 1)
				require.Empty(t, receive(q, next))
				send(kind.group, "new")
				claims := receive(q, next)
				require.Len(t, claims, 1)
				require.Equal(t, []string{"new"}, bodies(claims[0].Items))
			})
		}
	}
}

// TestReadsOfManySuspects: a process has died with a thousand groups, and another handle handles a message of one of
// them, alone. Its next receive passes over the others by three reads of each, most of them in waves of many groups.
func TestReadsOfManySuspects(t *testing.T) {
	const groups, waves = 1000, 50
	e := newEnv(t, inMemory, false)
	for i := range groups {
		e.enqueue(fmt.Sprint("g", i), "x")
	}
	dies := e.handle(2)
	for n := 0; n < groups; {
		claims, err := dies.Receive(e.ctx, layer.ReceiveOptions{Max: layer.MaxBatch})
		require.NoError(t, err)
		n += len(claims)
	}
	e.clock.advance(2 * time.Minute)
	counting := record.WrapCounting(e.db)
	q, err := layer.Open(e.ctx, counting, testPrefix, testQueue, e.options(3))
	require.NoError(t, err)
	first := e.receive(q, 10)
	require.Len(t, first.Items, 1)
	before := counting.Counters()
	require.Nil(t, e.receive(q, 10))
	made := counting.Counters().Sub(before)
	require.LessOrEqual(t, made.KeyReads, int64(2*groups+10))
	require.LessOrEqual(t, made.RangeReads, int64(groups+waves))
	require.NoError(t, q.Ack(e.ctx, first))
	require.NotNil(t, e.receive(q, 10))
}

// staleDB is an engine that stops one transaction once it has its read version.
type staleDB struct {
	kv.DB
	stops         atomic.Bool
	reached, open chan struct{}
	doubt         func() // not nil: the transaction stops after a commit of unknown outcome, which doubt follows
}

func (d *staleDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &staleTx{ManagedTx: tx, d: d}, err
}

type staleTx struct {
	kv.ManagedTx
	d       *staleDB
	doubted bool
}

func (t *staleTx) ReadVersion() kv.Future[int64] {
	v, err := t.ManagedTx.ReadVersion().Wait(context.Background())
	if t.d.doubt == nil {
		t.stop()
	}
	return kv.Done(v, err)
}

func (t *staleTx) Get(key []byte) kv.Future[[]byte] {
	if !t.doubted {
		return t.ManagedTx.Get(key)
	}
	v, err := t.ManagedTx.Get(key).Wait(context.Background())
	t.stop()
	return kv.Done(v, err)
}

func (t *staleTx) OnError(err error) kv.Future[struct{}] {
	if kv.MaybeCommitted(err) && t.d.stops.Load() {
		t.doubted = true
		t.d.doubt()
	}
	return t.ManagedTx.OnError(err)
}

func (t *staleTx) stop() {
	if t.d.stops.CompareAndSwap(true, false) {
		close(t.d.reached)
		<-t.d.open
	}
}

// TestSuspectOfAnOlderReadVersion (G7): a handle gives a suspect message. A receive whose transaction has read the
// database before does not see the claim. It gives no other suspect message: one would kill the other. The second case
// is a transaction whose first commit was of unknown outcome: the next attempt first looks for the receipt.
func TestSuspectOfAnOlderReadVersion(t *testing.T) {
	t.Parallel()
	for _, unknown := range []bool{false, true} {
		t.Run(fmt.Sprintf("unknown commit=%t", unknown), func(t *testing.T) { suspectOfAnOlderReadVersion(t, unknown) })
	}
}

func suspectOfAnOlderReadVersion(t *testing.T, unknown bool) {
	e := newEnv(t, inMemory, false)
	receive := func(q *layer.Queue, group string) *layer.Claim {
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1, Group: layer.OnlyGroup(group)})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		return claims[0]
	}
	for _, group := range strings.Split("CDEFGHIJAB", "") {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: group, Body: []byte(group)})
		require.NoError(t, err)
	}
	receive(e.q, "A")
	receive(e.q, "B")
	e.clock.advance(2 * time.Minute)
	release := layer.NackOptions{Release: true}
	require.NoError(t, e.q.Nack(e.ctx, receive(e.q, "A"), release)) // its lease has expired
	b := receive(e.q, "B")

	plan := &fault.Plan{}
	db := &staleDB{DB: fault.Wrap(e.raw, plan), reached: make(chan struct{}), open: make(chan struct{})}
	other, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(11))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close(context.Background())) })
	// Ready groups are plenty: from here on two transactions receive at the same time.
	claims, err := other.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
	require.NoError(t, err)
	if unknown {
		db.doubt = func() { assert.NoError(t, e.q.Nack(e.ctx, b, release)) }
		plan.ForceNext(fault.UnknownLost)
	} else {
		require.NoError(t, other.Ack(e.ctx, claims[0]))
		require.NoError(t, e.q.Nack(e.ctx, b, release))
	}
	db.stops.Store(true)
	late := make(chan []*layer.Claim)
	go func() {
		o := layer.ReceiveOptions{Max: 1, Group: layer.OnlyGroup("B")}
		if unknown {
			claims, err := other.SettleReceive(e.ctx, layer.Settlement{Claim: claims[0], FinishAll: true}, o)
			assert.NoError(t, err)
			late <- claims
			return
		}
		claims, err := other.Receive(e.ctx, o)
		assert.NoError(t, err)
		late <- claims
	}()
	<-db.reached
	given := receive(other, "A")
	close(db.open)
	require.Empty(t, <-late, "B is given while A is in the hands of the same process")
	require.NoError(t, other.Ack(e.ctx, given))
	require.NoError(t, other.Ack(e.ctx, receive(other, "B")))
	e.sound(testQueue)
}
