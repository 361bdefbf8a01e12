package layer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// killed is a queue whose consumers' process dies at one message, whose acks travel behind the calls.
type killed struct {
	*env
	q      *layer.Queue
	o      layer.ReceiveOptions
	poison string
	calls  map[string]int
}

// life is one process, which receives and handles until it dies or there is nothing left. late is how many of the
// messages handled last are not acked yet. died reports that it has met the poison.
func (k *killed) life(late int) (died bool) {
	for range 100 {
		claims, err := k.q.Receive(k.ctx, k.o)
		require.NoError(k.t, err)
		if len(claims) == 0 {
			return false
		}
		for _, c := range claims {
			var done []layer.ID
			for _, item := range c.Items {
				k.calls[string(item.Body)]++
				if string(item.Body) == k.poison {
					acked := done[:max(0, len(done)-late)]
					require.NoError(k.t, k.q.AckItems(k.ctx, c, acked))
					return true
				}
				done = append(done, item.ID)
			}
			require.NoError(k.t, k.q.AckItems(k.ctx, c, done))
		}
	}
	require.Fail(k.t, "no end of messages")
	return false
}

// lives lets processes live and die until nothing is left, and holds them to the rule: the poison alone becomes a dead
// letter, after its attempts, and its neighbours are handled twice at most.
func (k *killed) lives(late, attempts int) {
	k.t.Helper()
	k.calls = make(map[string]int)
	died := 0
	for k.life(late) {
		died++
		require.LessOrEqual(k.t, died, attempts+1, "calls: %v", k.calls)
		k.clock.advance(2 * time.Minute)
	}
	page, err := k.q.Admin().DeadLetters(k.ctx, layer.DeadOptions{Limit: 100, Bodies: true})
	require.NoError(k.t, err)
	var dead []string
	for _, l := range page.Letters {
		dead = append(dead, string(l.Body))
		require.Equal(k.t, attempts, l.Attempts)
	}
	require.Equal(k.t, []string{k.poison}, dead, "calls: %v", k.calls)
	for body, n := range k.calls {
		if body != k.poison {
			require.LessOrEqual(k.t, n, 2, "calls of %s: %v", body, k.calls)
		}
	}
	require.GreaterOrEqual(k.t, k.calls[k.poison], attempts)
}

// TestPoisonDiesAlone (G7): a message that kills its process becomes a dead letter after its attempts. No other message
// does: the acks of the messages before it were under way, and no handler was called for the messages behind it and for
// those of other groups. None of them is handled more than twice.
func TestPoisonDiesAlone(t *testing.T) {
	groups := func(e *env, change func(c *layer.Config)) *layer.Queue {
		o := e.options(10)
		change(&o.Config)
		q, err := layer.Create(e.ctx, e.db, testPrefix, "poison", o)
		require.NoError(e.t, err)
		e.t.Cleanup(func() { e.sound("poison") })
		return q
	}
	holds := func(c *layer.Config) { c.Unordered = true }
	turns := func(c *layer.Config) { c.LeasePerItem = true }
	facets := func(c *layer.Config) { c.Facets, c.Views = []string{"state"}, "state" }
	lanes := func(c *layer.Config) { c.Facets, c.Views = []string{"state"}, "*; state" }
	for _, kind := range []struct {
		name   string
		change func(c *layer.Config)
		o      layer.ReceiveOptions
	}{
		{"group", nil, layer.ReceiveOptions{Max: 10, MaxGroups: 1}},
		{"groups", nil, layer.ReceiveOptions{Max: 10}},
		{"layers", nil, layer.ReceiveOptions{Max: 10, Strategy: layer.Layers}},
		{"heads", nil, layer.ReceiveOptions{Max: 10, Strategy: layer.Heads}},
		{"named", nil, layer.ReceiveOptions{Max: 10, Group: layer.OnlyGroup("A")}},
		{"whole groups", lanes, layer.ReceiveOptions{Max: 10}},
		{"template", facets, layer.ReceiveOptions{Max: 10, Where: layer.Template{"state": "new"}}},
		{"unordered", holds, layer.ReceiveOptions{Max: 10, Unordered: true}},
		{"in turn", turns, layer.ReceiveOptions{Max: 10}},
	} {
		for _, at := range []int{0, 3, 5} {
			for _, attempts := range []int{1, 3, 25} {
				t.Run(fmt.Sprintf("%s/%d/%d attempts", kind.name, at, attempts), func(t *testing.T) {
					t.Parallel()
					e := newEnv(t, inMemory, false)
					k := &killed{env: e, o: kind.o, poison: fmt.Sprint("A", at)}
					k.q = groups(e, func(c *layer.Config) {
						if c.MaxAttempts = attempts; kind.change != nil {
							kind.change(c)
						}
					})
					for _, group := range []string{"A", "B", "C"} {
						for i := range 6 {
							m := layer.Message{Group: group, Body: fmt.Append(nil, group, i)}
							if kind.name == "template" || kind.name == "whole groups" {
								m.Headers = map[string]string{"state": "new"}
							}
							_, err := k.q.Enqueue(e.ctx, m)
							require.NoError(t, err)
						}
					}
					k.lives(2, attempts)
				})
			}
		}
	}
}

// suspectKind is a way to receive messages that may be suspect.
type suspectKind struct {
	name   string
	change func(c *layer.Config)
	o      layer.ReceiveOptions
}

func suspectKinds() []suspectKind {
	facets := func(c *layer.Config) { c.Facets, c.Views = []string{"state"}, "*; state" }
	return []suspectKind{
		{"groups", nil, layer.ReceiveOptions{Max: 10}},
		{"one by one at first", nil, layer.ReceiveOptions{Max: 1}},
		{"heads", nil, layer.ReceiveOptions{Max: 10, Strategy: layer.Heads}},
		{"named", nil, layer.ReceiveOptions{Max: 10, Group: layer.OnlyGroup("A")}},
		{"in rounds", func(c *layer.Config) { c.RoundRobin = true }, layer.ReceiveOptions{Max: 10}},
		{"at a rate", func(c *layer.Config) { c.MaxRateTotal = layer.Rate{Count: 1000, Per: time.Minute} },
			layer.ReceiveOptions{Max: 10}},
		{"whole groups", facets, layer.ReceiveOptions{Max: 10}},
		{"template", facets, layer.ReceiveOptions{Max: 10, Where: layer.Template{"state": "new"}}},
		{"unordered", func(c *layer.Config) { c.Unordered = true }, layer.ReceiveOptions{Max: 10, Unordered: true}},
		{"in turn", func(c *layer.Config) { c.LeasePerItem = true }, layer.ReceiveOptions{Max: 10}},
	}
}

// suspectQueue makes a queue of the kind with the messages 0 to 4 of group A. The lease of a claim of them has expired.
func (e *env) suspectQueue(kind suspectKind) (q *layer.Queue, ids []layer.ID) {
	e.t.Helper()
	o := e.options(10)
	if o.Config.Retry = atOnce; kind.change != nil {
		kind.change(&o.Config)
	}
	q, err := layer.Create(e.ctx, e.db, testPrefix, "suspects", o)
	require.NoError(e.t, err)
	for i := range 5 {
		sent, err := q.Enqueue(e.ctx, layer.Message{
			Group: "A", Body: fmt.Append(nil, i), Headers: map[string]string{"state": "new"},
		})
		require.NoError(e.t, err)
		ids = append(ids, sent[0].ID)
	}
	first, err := q.Receive(e.ctx, layer.ReceiveOptions{
		Max: 5, Where: kind.o.Where, Unordered: kind.o.Unordered,
	})
	require.NoError(e.t, err)
	require.NotEmpty(e.t, first)
	e.clock.advance(2 * time.Minute)
	return q, ids
}

// givenAlone receives, and expects one message alone.
func (e *env) givenAlone(q *layer.Queue, o layer.ReceiveOptions) (c *layer.Claim, body string) {
	e.t.Helper()
	claims, err := q.Receive(e.ctx, o)
	require.NoError(e.t, err)
	require.Len(e.t, claims, 1)
	require.Len(e.t, claims[0].Items, 1)
	return claims[0], string(claims[0].Items[0].Body)
}

// TestSuspectBehindAFailedMessage (G7): the lease of a claim of five messages expires. The first is given alone and
// fails with an error twice, and is then no longer suspect. The four behind it are: each is given alone.
func TestSuspectBehindAFailedMessage(t *testing.T) {
	for _, kind := range suspectKinds() {
		t.Run(kind.name, func(t *testing.T) {
			e := newEnv(t, inMemory, false)
			q, _ := e.suspectQueue(kind)
			defer e.sound("suspects")
			for range 2 {
				claim, body := e.givenAlone(q, kind.o)
				require.Equal(t, "0", body)
				require.NoError(t, q.Nack(e.ctx, claim, layer.NackOptions{Err: errors.New("failed")}))
				kind.o.Max = 10
			}
			for i := range 5 {
				claim, body := e.givenAlone(q, kind.o)
				require.Equal(t, fmt.Sprint(i), body)
				require.NoError(t, q.Ack(e.ctx, claim))
			}
		})
	}
}

// TestErrorThatReadsLikeALapse (G7): a handler fails with an error whose text is like the layer's own about an expired
// lease. Its message has failed, and is not suspect: it is given together with those behind it.
func TestErrorThatReadsLikeALapse(t *testing.T) {
	e := newEnv(t, inMemory, false)
	e.configure(func(c *layer.Config) { c.Retry = atOnce })
	e.enqueue("A", "a1", "a2", "a3")
	failed := errors.New("lease expired, held by node-7")
	require.NoError(t, e.q.Nack(e.ctx, e.receive(e.q, 10), layer.NackOptions{Err: failed}))
	claim := e.receive(e.q, 10)
	require.Len(t, claim.Items, 3)
	require.Equal(t, 1, claim.Items[0].Attempts)
	require.NoError(t, e.q.Nack(e.ctx, claim, layer.NackOptions{Reject: "no use", Err: failed}))
	require.Contains(t, e.dead()[0].LastError, failed.Error())
}

// TestSuspectBehindOneThatLeaves (G7): the lease of a claim of five messages expires. The first then leaves its group
// without a claim, or the first two. Those behind are suspect, so each is given alone.
func TestSuspectBehindOneThatLeaves(t *testing.T) {
	take := func(e *env, q *layer.Queue, kind suspectKind, group *string) error {
		items, err := e.take(q, 1, layer.TakeOptions{
			Group: group, Where: kind.o.Where, Unordered: kind.o.Unordered,
		})
		require.Len(e.t, items, 1)
		return err
	}
	ways := map[string]func(e *env, q *layer.Queue, kind suspectKind, first layer.ID) error{
		"take": func(e *env, q *layer.Queue, kind suspectKind, _ layer.ID) error {
			return take(e, q, kind, nil)
		},
		"take of the group": func(e *env, q *layer.Queue, kind suspectKind, _ layer.ID) error {
			return take(e, q, kind, layer.OnlyGroup("A"))
		},
		"two takes": func(e *env, q *layer.Queue, kind suspectKind, _ layer.ID) error {
			require.NoError(e.t, take(e, q, kind, nil))
			return take(e, q, kind, layer.OnlyGroup("A"))
		},
		"cancel": func(e *env, q *layer.Queue, _ suspectKind, first layer.ID) error {
			return q.Admin().Cancel(e.ctx, first)
		},
		"skip": func(e *env, q *layer.Queue, _ suspectKind, _ layer.ID) error {
			_, err := q.Admin().Skip(e.ctx, "A", layer.SkipOptions{})
			return err
		},
		"sweep and cancel": func(e *env, q *layer.Queue, _ suspectKind, first layer.ID) error {
			_, err := q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			require.NoError(e.t, err)
			return q.Admin().Cancel(e.ctx, first)
		},
	}
	for name, leave := range ways {
		for _, kind := range suspectKinds() {
			t.Run(name+"/"+kind.name, func(t *testing.T) {
				e := newEnv(t, inMemory, false)
				q, ids := e.suspectQueue(kind)
				defer e.sound("suspects")
				require.NoError(t, leave(e, q, kind, ids[0]))
				stats, err := q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(t, err)
				for i := 5 - stats.Depth; i < 5; i++ {
					claim, body := e.givenAlone(q, kind.o)
					require.Equal(t, fmt.Sprint(i), body)
					require.NoError(t, q.Ack(e.ctx, claim))
					kind.o.Max = 10
				}
			})
		}
	}
}

// TestSuspectBehindOneThatReturns (G7): messages return from the dead letters in front of suspect ones. They are
// delivered together, also after a release, and each suspect one alone.
func TestSuspectBehindOneThatReturns(t *testing.T) {
	release := layer.NackOptions{Release: true}
	ends := map[string]func(e *env, q *layer.Queue, claim *layer.Claim, again bool) error{
		"ack":        func(e *env, q *layer.Queue, c *layer.Claim, _ bool) error { return q.Ack(e.ctx, c) },
		"stored ack": func(e *env, q *layer.Queue, c *layer.Claim, _ bool) error { return q.Ack(e.ctx, c.Stored()) },
		"release": func(e *env, q *layer.Queue, c *layer.Claim, again bool) error {
			if again {
				return q.Ack(e.ctx, c)
			}
			return q.Nack(e.ctx, c, release)
		},
	}
	for _, kind := range suspectKinds() {
		for _, most := range []int{1, 10} {
			for name, end := range ends {
				t.Run(fmt.Sprintf("%s/%d/%s", kind.name, most, name), func(t *testing.T) {
					e := newEnv(t, inMemory, false)
					q, ids := e.suspectQueue(kind)
					defer e.sound("suspects")
					e.returnLetters(q, kind, ids[:2])
					o := kind.o
					o.Max = most
					for seen := make(map[layer.ID]bool); ; {
						stats, err := q.Stats(e.ctx, layer.StatsOptions{})
						require.NoError(t, err)
						if stats.Depth == 3 {
							break
						}
						claims, err := q.Receive(e.ctx, o)
						require.NoError(t, err)
						require.NotEmpty(t, claims)
						for _, claim := range claims {
							again := false
							for _, item := range claim.Items {
								require.Contains(t, ids[:2], item.ID, "a suspect message is given with others")
								again, seen[item.ID] = seen[item.ID], true
							}
							require.NoError(t, end(e, q, claim, again))
						}
					}
					for i := 2; i < len(ids); i++ {
						kind.o.Max = 10
						claim, body := e.givenAlone(q, kind.o)
						require.Equal(t, fmt.Sprint(i), body)
						require.NoError(t, q.Ack(e.ctx, claim))
					}
				})
			}
		}
	}
}

// returnLetters rejects suspect messages, and redrives them.
func (e *env) returnLetters(q *layer.Queue, kind suspectKind, ids []layer.ID) {
	e.t.Helper()
	for _, id := range ids {
		claim, _ := e.givenAlone(q, kind.o)
		require.Equal(e.t, id, claim.Items[0].ID)
		require.NoError(e.t, q.Nack(e.ctx, claim, layer.NackOptions{Reject: "test"}))
		kind.o.Max = 10
	}
	_, err := q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
	require.NoError(e.t, err)
}

// lateCommits is an engine whose commits land after a while, and time out before.
type lateCommits struct {
	kv.DB
	lands, timesOut time.Duration
	on              atomic.Bool
}

func (d *lateCommits) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	o.Timeout = 0
	tx, err := d.DB.Begin(o)
	return &lateCommit{ManagedTx: tx, d: d}, err
}

type lateCommit struct {
	kv.ManagedTx
	d     *lateCommits
	wrote bool
}

func (t *lateCommit) Set(key, value []byte) {
	t.wrote = true
	t.ManagedTx.Set(key, value)
}

func (t *lateCommit) Cancel() {
	if !t.wrote {
		t.ManagedTx.Cancel()
	}
}

func (t *lateCommit) Commit() kv.Future[struct{}] {
	if !t.wrote || !t.d.on.Load() {
		return t.ManagedTx.Commit()
	}
	go func() {
		time.Sleep(t.d.lands)
		_, _ = t.ManagedTx.Commit().Wait(context.Background())
	}()
	return timesOut(t.d.timesOut)
}

// timesOut is a commit that times out.
type timesOut time.Duration

func (d timesOut) Wait(ctx context.Context) (struct{}, error) {
	timer := time.NewTimer(time.Duration(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return struct{}{}, &kv.Error{Code: kv.CodeTransactionTimedOut}
	case <-ctx.Done():
		return struct{}{}, context.Cause(ctx)
	}
}

func (timesOut) Ready() bool { return false }
func (timesOut) Cancel()     {}

func (t *lateCommit) OnError(err error) kv.Future[struct{}] {
	if kv.Code(err) == kv.CodeTransactionTimedOut {
		return kv.Done(struct{}{}, err)
	}
	return t.ManagedTx.OnError(err)
}

// TestReceiveThatNobodyHearsOf (G7): receives whose commits land and time out make claims that no caller knows of. The
// handle finds them and gives them back, long before their leases expire. No attempt is counted, and no message becomes
// a dead letter.
func TestReceiveThatNobodyHearsOf(t *testing.T) {
	for _, attempts := range []int{1, 25} {
		for _, lease := range []time.Duration{5 * time.Second, time.Minute} {
			t.Run(fmt.Sprintf("%d attempts, %s", attempts, lease), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx := t.Context()
					raw := embedded.OpenMemory(embedded.Options{})
					db := &lateCommits{DB: raw, lands: 1500 * time.Millisecond, timesOut: time.Second}
					q, err := layer.Create(ctx, db, testPrefix, testQueue, layer.Options{
						Owner: "cut off", Config: layer.Config{Lease: lease, MaxAttempts: attempts},
					})
					require.NoError(t, err)
					a, b := layer.Message{Group: "A"}, layer.Message{Group: "B"}
					_, err = q.Enqueue(ctx, a, a, b)
					require.NoError(t, err)
					db.on.Store(true)
					for begun := time.Now(); time.Since(begun) < 5*time.Minute; {
						claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 2, Wait: time.Second})
						require.Empty(t, claims)
						if err != nil {
							require.True(t, kv.MaybeCommitted(err), "%v", err)
						}
						time.Sleep(100 * time.Millisecond)
					}
					db.on.Store(false)
					time.Sleep(min(lease/2, 10*time.Second))
					seen := 0
					for seen < 3 {
						claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 2})
						require.NoError(t, err)
						require.NotEmpty(t, claims, "%d seen", seen)
						for _, c := range claims {
							require.Zero(t, c.Items[0].Attempts)
							seen += len(c.Items)
							require.NoError(t, q.Ack(ctx, c))
						}
					}
					page, err := q.Admin().DeadLetters(ctx, layer.DeadOptions{})
					require.NoError(t, err)
					require.Empty(t, page.Letters)
					require.NoError(t, q.Close(ctx))
					require.NoError(t, raw.Close())
				})
			})
		}
	}
}

// TestFewReceiptsAfterTimeouts: calls that time out leave a receipt each. The next calls clear all of them but one, and
// a search for claims that no caller knows of ends with one answer of the database.
func TestFewReceiptsAfterTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		e := newEnv(t, inMemory, false)
		db := &lateCommits{DB: e.db, lands: 20 * time.Millisecond, timesOut: 10 * time.Millisecond}
		q, err := layer.Open(ctx, db, testPrefix, testQueue, layer.Options{Owner: "cut off"})
		require.NoError(t, err)
		for range 40 {
			_, err := q.Enqueue(ctx, layer.Message{Group: "A"})
			require.NoError(t, err)
		}
		db.on.Store(true)
		for n := range 40 {
			if n%2 == 0 {
				_, err = q.Enqueue(ctx, layer.Message{Group: "A"})
			} else {
				_, err = q.Receive(ctx, layer.ReceiveOptions{})
			}
			require.True(t, kv.MaybeCommitted(err), "%v", err)
		}
		db.on.Store(false)
		time.Sleep(time.Second) // less than a search may take if the database does not answer
		for range 45 {
			_, err := q.Enqueue(ctx, layer.Message{Group: "A"})
			require.NoError(t, err)
		}
		require.Len(t, e.rows(kv.PrefixRange(key("receipt"))), 1)
		require.NoError(t, q.Close(ctx))
		require.Empty(t, e.rows(kv.PrefixRange(key("receipt"))))
		e.sound(testQueue)
	})
}

// mortal is the engine of one process. After its death nothing of the process reaches the engine any more.
type mortal struct {
	kv.DB
	dead atomic.Bool
	// afterCommit: the process dies as soon as a commit has landed, and before it learns so.
	afterCommit atomic.Bool
}

var errDead = &kv.Error{Code: kv.CodeOperationCancelled}

// ended returns a context that has ended. With it Close does not wait for a database that does not answer.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func (d *mortal) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if d.dead.Load() {
		return nil, errDead
	}
	tx, err := d.DB.Begin(o)
	return &mortalTx{tx, d}, err
}

type mortalTx struct {
	kv.ManagedTx
	d *mortal
}

func (t *mortalTx) Commit() kv.Future[struct{}] {
	switch {
	case t.d.dead.Load():
		return kv.Done(struct{}{}, error(errDead))
	case t.d.afterCommit.Load():
		_, err := t.ManagedTx.Commit().Wait(context.Background())
		t.d.dead.Store(true)
		if err == nil {
			err = &kv.Error{Code: kv.CodeTransactionTimedOut, InFlight: true}
		}
		return kv.Done(struct{}{}, err)
	}
	return t.ManagedTx.Commit()
}

func (t *mortalTx) OnError(err error) kv.Future[struct{}] {
	if t.d.dead.Load() {
		return kv.Done(struct{}{}, err)
	}
	return t.ManagedTx.OnError(err)
}

// TestLeaseOfAClaimThatNobodyKnows (G7): processes that die between the commit of a receive and its answer leave claims
// that no caller knows of. Their leases never make a dead letter, and count one attempt at most.
func TestLeaseOfAClaimThatNobodyKnows(t *testing.T) {
	for _, kind := range []layer.ReceiveOptions{{Max: 10}, {Max: 1}, {Max: 10, Strategy: layer.Heads}} {
		for _, attempts := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%d by %d, %d attempts", kind.Max, kind.Strategy, attempts), func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, inMemory, false)
				e.configure(func(c *layer.Config) { c.MaxAttempts = attempts })
				e.enqueue("A", "a1", "a2")
				e.enqueue("B", "b1")
				for n := range 10 {
					db := &mortal{DB: e.raw}
					q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(uint64(10+n)))
					require.NoError(t, err)
					db.afterCommit.Store(true)
					_, err = q.Receive(e.ctx, kind)
					require.True(t, kv.MaybeCommitted(err), "%v", err)
					_ = q.Close(ended()) // as the process cannot
					e.clock.advance(2 * time.Minute)
				}
				var got []string
				for range 3 {
					c := e.receive(e.q, 1)
					require.NotNil(t, c, "got %s", got)
					require.LessOrEqual(t, c.Items[0].Attempts, 1)
					got = append(got, string(c.Items[0].Body))
					require.NoError(t, e.q.Ack(e.ctx, c))
				}
				require.Empty(t, e.dead())
			})
		}
	}
}

// handlersOf are handlers that call one function for each message, in order.
var handlersOf = map[string]func(handle func(ctx context.Context, body string) error) worker.Handler{
	"each": func(handle func(ctx context.Context, body string) error) worker.Handler {
		return worker.Handle(func(ctx context.Context, d *worker.Delivery) error { return handle(ctx, string(d.Body)) })
	},
	"tx": func(handle func(ctx context.Context, body string) error) worker.Handler {
		return worker.HandleTx(func(ctx context.Context, _ kv.Tx, d *worker.Delivery) error {
			return handle(ctx, string(d.Body))
		})
	},
	"batch": func(handle func(ctx context.Context, body string) error) worker.Handler {
		return worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
			for _, d := range ds {
				if err := handle(ctx, string(d.Body)); err != nil {
					return err
				}
			}
			return nil
		})
	},
}

// TestPoisonUnderWorkers (G7): a message whose handler kills the worker's process, again and again, becomes a dead
// letter. No other message does, and the others are handled twice at most.
func TestPoisonUnderWorkers(t *testing.T) {
	const attempts = 5
	for name, handler := range handlersOf {
		for _, beats := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, heartbeat %t", name, beats), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { poisonUnderWorkers(t, attempts, beats, handler) })
			})
		}
	}
}

func poisonUnderWorkers(
	t *testing.T, attempts int, beats bool,
	handler func(handle func(ctx context.Context, body string) error) worker.Handler,
) {
	ctx, raw := t.Context(), embedded.OpenMemory(embedded.Options{})
	q, err := layer.Create(ctx, raw, testPrefix, testQueue, layer.Options{
		Config: layer.Config{Lease: 5 * time.Second, MaxAttempts: attempts, Retry: atOnce},
	})
	require.NoError(t, err)
	for i := range 6 {
		for _, group := range []string{"A", "B"} {
			_, err := q.Enqueue(ctx, layer.Message{Group: group, Body: fmt.Append(nil, group, i)})
			require.NoError(t, err)
		}
	}
	var mu sync.Mutex
	calls := make(map[string]int)
	left := func() int64 {
		s, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		return s.Depth
	}
	for n := 0; left() > 0; n++ {
		require.LessOrEqual(t, n, attempts+2, "calls: %v", calls)
		db := &mortal{DB: raw}
		mine, err := layer.Open(ctx, db, testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		w, err := worker.New(mine, handler(func(ctx context.Context, body string) error {
			mu.Lock()
			calls[body]++
			mu.Unlock()
			if body == "A3" {
				db.dead.Store(true)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			time.Sleep(time.Millisecond)
			return nil
		}), worker.Options{Concurrency: 2, Batch: 10, Heartbeat: beats, Logger: slog.New(slog.DiscardHandler)})
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
	require.Equal(t, "A3", string(page.Letters[0].Body))
	require.Equal(t, attempts, page.Letters[0].Attempts)
	for body, n := range calls {
		if body != "A3" {
			require.LessOrEqual(t, n, 2, "calls of %s: %v", body, calls)
		}
	}
	require.NoError(t, q.Close(ctx))
	require.NoError(t, raw.Close())
}

// TestPoisonOfAnotherQueue (G7): a worker serves two queues. A message of the first kills the process, again and again,
// and becomes a dead letter. No message of the second queue does, although its handler is slow: the messages of both
// queues that may have killed the process are given one at a time.
func TestPoisonOfAnotherQueue(t *testing.T) {
	for _, hands := range []int{1, 2} {
		for _, beats := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d goroutines, heartbeat %t", hands, beats), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { poisonOfAnotherQueue(t, hands, beats) })
			})
		}
	}
}

func poisonOfAnotherQueue(t *testing.T, hands int, beats bool) {
	const attempts = 3
	ctx, raw := t.Context(), embedded.OpenMemory(embedded.Options{})
	var queues []*layer.Queue
	for i, groups := range [][]string{{"K"}, {"1", "2", "3"}} {
		q, err := layer.Create(ctx, raw, testPrefix, fmt.Sprint(testQueue, i), layer.Options{
			Config: layer.Config{Lease: 5 * time.Second, MaxAttempts: attempts, Retry: atOnce},
		})
		require.NoError(t, err)
		for _, group := range groups {
			_, err := q.Enqueue(ctx, layer.Message{Group: group, Body: []byte(group)})
			require.NoError(t, err)
		}
		queues = append(queues, q)
	}
	stats := func(i int) layer.Stats {
		s, err := queues[i].Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		return s
	}
	for n := 0; stats(0).Depth+stats(1).Depth > 0; n++ {
		require.LessOrEqual(t, n, attempts+2)
		db := &mortal{DB: raw}
		h := worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
			time.Sleep(100 * time.Millisecond)
			if string(d.Body) == "K" {
				db.dead.Store(true)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			time.Sleep(900 * time.Millisecond)
			return nil
		})
		var own []*layer.Queue
		for i := range queues {
			q, err := layer.Open(ctx, db, testPrefix, fmt.Sprint(testQueue, i), layer.Options{})
			require.NoError(t, err)
			own = append(own, q)
		}
		w, err := worker.New(own[0], h, worker.Options{
			Concurrency: hands, Heartbeat: beats, Logger: slog.New(slog.DiscardHandler),
			Also: []worker.Source{{Queue: own[1], Handler: h}},
		})
		require.NoError(t, err)
		w.Start()
		for !db.dead.Load() && stats(0).Depth+stats(1).Depth > 0 {
			time.Sleep(100 * time.Millisecond)
		}
		_ = w.Stop(ended())
		for _, q := range own {
			_ = q.Close(ended())
		}
		time.Sleep(20 * time.Second)
	}
	require.EqualValues(t, 1, stats(0).DeadLettered)
	require.Zero(t, stats(1).DeadLettered)
	require.EqualValues(t, 3, stats(1).Acked)
	for _, q := range queues {
		report, err := q.Admin().Check(ctx, layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(ctx))
	}
	require.NoError(t, raw.Close())
}

// TestBatchBlamesOne (G7): a call of HandleBatch that fails at a message, and says not at which, is followed by calls
// with half as many messages. The message that fails becomes a dead letter after its attempts, and no other does, nor
// counts an attempt.
func TestBatchBlamesOne(t *testing.T) {
	for name, fail := range map[string]func() error{
		"panic":  func() error { panic("at the message") },
		"goexit": func() error { runtime.Goexit(); return nil },
		"error":  func() error { return errors.New("failed") },
		"reject": func() error { return &worker.RejectError{Reason: "hopeless"} },
		"retry":  func() error { return &worker.RetryError{After: time.Second} },
		"below":  func() error { return &worker.BatchError{Done: -1, Err: errors.New("failed")} },
	} {
		for _, at := range []int{0, 2, 7} {
			for _, attempts := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/%d/%d attempts", name, at, attempts), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { batchBlamesOne(t, at, attempts, fail) })
				})
			}
		}
	}
}

func batchBlamesOne(t *testing.T, at, attempts int, fail func() error) {
	ctx, raw := t.Context(), embedded.OpenMemory(embedded.Options{})
	q, err := layer.Create(ctx, raw, testPrefix, testQueue, layer.Options{
		Config: layer.Config{MaxAttempts: attempts, Retry: atOnce},
	})
	require.NoError(t, err)
	msgs := make([]layer.Message, 8)
	for i := range msgs {
		msgs[i] = layer.Message{Group: "A", Body: fmt.Append(nil, i)}
	}
	_, err = q.Enqueue(ctx, msgs...)
	require.NoError(t, err)
	good := make(map[string]int)
	w, err := worker.New(q, worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
		for _, d := range ds {
			if string(d.Body) == fmt.Sprint(at) {
				return fail()
			}
			require.Zero(t, d.Item.Attempts)
			good[string(d.Body)]++
		}
		return nil
	}), worker.Options{Batch: 10, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	w.Start()
	for {
		s, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		if s.Depth == 0 {
			break
		}
		time.Sleep(time.Second)
	}
	require.NoError(t, w.Stop(ctx))
	page, err := q.Admin().DeadLetters(ctx, layer.DeadOptions{Bodies: true})
	require.NoError(t, err)
	require.Len(t, page.Letters, 1)
	require.Equal(t, fmt.Sprint(at), string(page.Letters[0].Body))
	for body, n := range good {
		require.LessOrEqual(t, n, 4, "calls of %s", body)
	}
	require.NoError(t, q.Close(ctx))
	require.NoError(t, raw.Close())
}

// proofFails is an engine whose commits end with an error while on.
type proofFails struct {
	kv.DB
	code int
	on   atomic.Bool
}

func (d *proofFails) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &proofFailsTx{tx, d}, err
}

type proofFailsTx struct {
	kv.ManagedTx
	d *proofFails
}

func (t *proofFailsTx) Commit() kv.Future[struct{}] {
	if t.d.on.Load() {
		return kv.Done(struct{}{}, error(&kv.Error{Code: t.d.code}))
	}
	return t.ManagedTx.Commit()
}

// TestSuspectWithoutProof (G7): a suspect message was claimed, and then the handle cannot note that the caller has the
// claim. The receive does not say that nothing has happened. The handle gives the claim back as soon as the database
// allows it, or keeps the claim for the caller that repeats the receive under its id. No attempt is counted.
func TestSuspectWithoutProof(t *testing.T) {
	for _, id := range []string{"", "again"} {
		for _, outage := range []time.Duration{time.Millisecond, 20 * time.Second} {
			t.Run(fmt.Sprintf("receive id %q, outage of %s", id, outage), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { suspectWithoutProof(t, id, outage) })
			})
		}
	}
}

func suspectWithoutProof(t *testing.T, id string, outage time.Duration) {
	ctx, raw := t.Context(), embedded.OpenMemory(embedded.Options{})
	db := &proofFails{DB: raw, code: kv.CodeIOError}
	q, err := layer.Create(ctx, db, testPrefix, testQueue, layer.Options{
		Config: layer.Config{Lease: time.Minute, MaxAttempts: 2},
		Test: &layer.TestOptions{Yield: func(_ context.Context, what string) {
			if what == "prove" {
				db.on.Store(true)
			}
		}},
	})
	require.NoError(t, err)
	_, err = q.Enqueue(ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	time.Sleep(2 * time.Minute)

	o := layer.ReceiveOptions{ReceiveID: id}
	_, err = q.Receive(ctx, o)
	require.ErrorIs(t, err, &kv.Error{Code: kv.CodeIOError})
	require.True(t, kv.MaybeCommitted(err), "%v", err)
	time.Sleep(outage)
	db.on.Store(false)
	time.Sleep(2 * time.Second)
	other, err := layer.Open(ctx, raw, testPrefix, testQueue, layer.Options{})
	require.NoError(t, err)
	if id != "" {
		claims, err = other.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		require.Empty(t, claims)
	}
	claims, err = other.Receive(ctx, o)
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Equal(t, 1, claims[0].Items[0].Attempts, "of the first lease")
	require.NoError(t, other.Ack(ctx, claims[0]))
	require.NoError(t, other.Close(ctx))
	require.NoError(t, q.Close(ctx))
	require.NoError(t, raw.Close())
}

// TestSuspectOfACallerThatLeaves (G7): a suspect message was claimed, and the caller leaves while the handle cannot
// note that the caller has the claim. The receive does not say that nothing has happened. The same receive again gets
// the claim.
func TestSuspectOfACallerThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, raw := t.Context(), embedded.OpenMemory(embedded.Options{})
		db := &proofFails{DB: raw, code: kv.CodeNotCommitted}
		var failing sync.Once // until the second receive
		q, err := layer.Create(ctx, db, testPrefix, testQueue, layer.Options{
			Config: layer.Config{Lease: time.Minute},
			Test: &layer.TestOptions{Yield: func(_ context.Context, what string) {
				if what == "prove" {
					failing.Do(func() { db.on.Store(true) })
				}
			}},
		})
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, layer.Message{Group: "A"})
		require.NoError(t, err)
		claims, err := q.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		time.Sleep(2 * time.Minute)

		o := layer.ReceiveOptions{ReceiveID: "again"}
		leaving, leave := context.WithTimeout(ctx, time.Second)
		defer leave()
		_, err = q.Receive(leaving, o)
		require.Error(t, err)
		require.True(t, kv.MaybeCommitted(err), "%v", err)
		db.on.Store(false)
		s, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, s.InFlight)
		claims, err = q.Receive(ctx, o)
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.NoError(t, q.Ack(ctx, claims[0]))
		require.NoError(t, q.Close(ctx))
		require.NoError(t, raw.Close())
	})
}

// slowCommits is an engine whose commits take a while.
type slowCommits struct {
	kv.DB
	takes atomic.Int64 // nanoseconds
}

func (d *slowCommits) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &slowCommit{tx, d}, err
}

type slowCommit struct {
	kv.ManagedTx
	d *slowCommits
}

func (t *slowCommit) Commit() kv.Future[struct{}] {
	_, err := t.ManagedTx.Commit().Wait(context.Background())
	time.Sleep(time.Duration(t.d.takes.Load()))
	return kv.Done(struct{}{}, err)
}

// TestSuspectOfASlowReceive (G7): the receive of a suspect message takes longer than the lease. Its caller gets the
// claim with a lease that lasts, so the claim counts no attempt before the caller has it.
func TestSuspectOfASlowReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, raw := t.Context(), embedded.OpenMemory(embedded.Options{})
		db := &slowCommits{DB: raw}
		q, err := layer.Create(ctx, db, testPrefix, testQueue, layer.Options{
			Config: layer.Config{Lease: 5 * time.Second, MaxAttempts: 2},
		})
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, layer.Message{Group: "A"})
		require.NoError(t, err)
		_, err = q.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		time.Sleep(6 * time.Second)
		db.takes.Store(int64(4 * time.Second))
		claims, err := q.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.Greater(t, claims[0].Until, time.Now())
		others, err := q.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		require.Empty(t, others)
		require.NoError(t, q.Ack(ctx, claims[0]))
		require.NoError(t, q.Close(ctx))
		require.NoError(t, raw.Close())
	})
}

// TestWakeBehindASuspect (G5): a receive of an unordered queue waits, because its handle must not give the suspect
// message that a group begins with. A message that comes behind it in the group is received at once, long before the
// handle's next poll.
func TestWakeBehindASuspect(t *testing.T) {
	for _, own := range []bool{true, false} {
		for how, o := range map[string]layer.ReceiveOptions{"any": {}, "group": {Group: layer.OnlyGroup("B")}} {
			t.Run(fmt.Sprintf("%s, own=%t", how, own), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { wakesBehindASuspect(t, own, o) })
			})
		}
	}
}

func wakesBehindASuspect(t *testing.T, own bool, o layer.ReceiveOptions) {
	ctx, db := t.Context(), embedded.OpenMemory(embedded.Options{})
	options := layer.Options{Poll: time.Minute, Test: &layer.TestOptions{NoLooks: true}}
	options.Config = layer.Config{Lease: 10 * time.Second, Unordered: true}
	q, err := layer.Create(ctx, db, testPrefix, testQueue, options)
	require.NoError(t, err)
	options.Config = layer.Config{}
	others := make([]*layer.Queue, 2)
	for i := range others {
		others[i], err = layer.Open(ctx, db, testPrefix, testQueue, options)
		require.NoError(t, err)
	}
	_, err = q.Enqueue(ctx, layer.Message{Group: "A"}, layer.Message{Group: "B"})
	require.NoError(t, err)
	claims, err := others[1].Receive(ctx, layer.ReceiveOptions{Unordered: true, Max: 2})
	require.NoError(t, err)
	require.Len(t, claims, 2)
	time.Sleep(11 * time.Second) // the leases are over

	given, err := q.Receive(ctx, layer.ReceiveOptions{Unordered: true, Lease: time.Hour})
	require.NoError(t, err)
	require.Len(t, given, 1)
	require.Equal(t, "A", given[0].Group)
	sent := make(chan time.Time, 1)
	go func() {
		time.Sleep(5 * time.Second)
		from := others[0]
		if own {
			from = q
		}
		from.Enqueue(ctx, layer.Message{Group: "B", Body: []byte("behind")}) // if it fails, no receive gets it
		sent <- time.Now()
	}()
	o.Unordered, o.Wait = true, 20*time.Second
	claims, err = q.Receive(ctx, o)
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Equal(t, "behind", string(claims[0].Items[0].Body))
	require.Less(t, time.Since(<-sent), 100*time.Millisecond)
	for _, q := range append(others, q) {
		ended, end := context.WithCancel(ctx)
		end()
		q.Close(ended)
	}
	require.NoError(t, db.Close())
}
