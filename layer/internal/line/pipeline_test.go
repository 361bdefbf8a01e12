package line

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// testOp is an operation without a database.
type testOp struct {
	Op
	settles, enqueues, receives bool

	size     Size
	named    bool
	template string
	groups   int
	served   bool // the receive has got something
	keeps    bool // the caller can repeat the receive
}

func (o *testOp) Size() Size {
	s := o.size
	if !o.settles {
		s.Settled = 0
	}
	return s
}

func (o *testOp) Settles() bool    { return o.settles }
func (o *testOp) Enqueues() bool   { return o.enqueues }
func (o *testOp) Receives() bool   { return o.receives }
func (o *testOp) Err() error       { return o.TxErr }
func (o *testOp) Named() bool      { return o.named }
func (o *testOp) Template() string { return o.template }
func (o *testOp) Place() string    { return o.template }
func (o *testOp) Unserved() bool   { return !o.served }
func (o *testOp) Keeps() bool      { return o.keeps }
func (o *testOp) Forget()          { o.served = false }
func (o *testOp) Settled()         { o.settles = false }

// testMost bounds the transactions of the tests.
var testMost = Size{Messages: 100, Bytes: 1000, Settled: 200, Received: 50}

var (
	errClosed = errors.New("closed")
	errFinal  = errors.New("the queue is gone")
)

// rig is a pipeline and a waiting line without a database, in a bubble of testing/synctest: the test decides when time
// passes and when goroutines run. A transaction of the pipeline stays in flight until the test ends it.
type rig struct {
	t      *testing.T
	p      Pipeline[*testOp]
	l      Line[*testOp]
	begun  chan *testFlight // in flight, and not known to the test yet
	open   []*testFlight    // in flight, and known
	back   chan *testOp     // given back
	plenty bool
	asked  func() // called by MayRecover; nil = nothing
}

// testFlight is a transaction that the pipeline has begun.
type testFlight struct {
	ctx    context.Context
	os     []*testOp
	others int
	by     string      // goroutine
	land   chan func() // ends it, once; then it is nil
}

// testRig runs fn, and then checks that nothing has been left in the books and that close ends all.
func testRig(t *testing.T, fn func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, begun: make(chan *testFlight, 1000), back: make(chan *testOp, 1000)}
		r.p.Begin(PipelineEnv[*testOp]{
			Most: testMost, Closed: errClosed, Run: r.run, Yield: func(context.Context, string) {},
			Groups: func(o *testOp) int { return o.groups }, Plenty: func() bool { return r.plenty },
			MayRecover: func(err error) bool {
				if r.asked != nil {
					r.asked()
				}
				return !errors.Is(err, errFinal) && !kv.MaybeCommitted(err)
			},
			GiveBack: func(o *testOp) {
				if o.served && !o.keeps {
					o.served = false
					r.back <- o
				}
			},
		}, &r.l)
		r.l.Begin(Env[*testOp]{
			RunTurn: r.p.RunTurn, Yield: r.p.env.Yield,
			Requested: func() (int64, bool) { return 0, false },
			Wants:     func() bool { return false },
			Gone:      func() time.Duration { return 0 },
		})
		defer func() {
			r.p.Close()
			for f := range r.inFlight() {
				r.open = append(r.open, f)
			}
			for _, f := range r.open {
				f.end()
			}
			_ = r.l.Stop(context.Background())
			if !t.Failed() {
				r.requireIdle()
			}
		}()
		fn(r)
	})
}

// run is the environment's: it waits for the test.
func (r *rig) run(ctx context.Context, os []*testOp, others int) {
	f := &testFlight{ctx: ctx, os: os, others: others, by: goroutine(), land: make(chan func())}
	for _, o := range os {
		o.Forget()
	}
	land := f.land
	r.begun <- f
	(<-land)()
}

// goroutine names the goroutine that calls it.
func goroutine() string {
	var buf [64]byte
	name, _, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte(" ["))
	return string(name)
}

// inFlight yields the transactions that were begun and are not known to the test yet.
func (r *rig) inFlight() func(func(*testFlight) bool) {
	return func(yield func(*testFlight) bool) {
		for {
			synctest.Wait()
			select {
			case f := <-r.begun:
				if !yield(f) {
					return
				}
			default:
				return
			}
		}
	}
}

// next is the transaction that the pipeline has just begun, of these operations.
func (r *rig) next(want ...*testOp) *testFlight {
	r.t.Helper()
	for f := range r.inFlight() {
		require.Equal(r.t, len(want), len(f.os))
		for i := range want {
			require.Same(r.t, want[i], f.os[i], "operation %d", i)
		}
		r.open = append(r.open, f)
		return f
	}
	require.FailNow(r.t, "no transaction has begun")
	return nil
}

// none: the pipeline has begun no other transaction.
func (r *rig) none() {
	r.t.Helper()
	for f := range r.inFlight() {
		require.FailNow(r.t, "a transaction has begun", "of %d operations", len(f.os))
	}
}

// endWith ends the transaction with fn, and waits until the pipeline has reacted.
func (f *testFlight) endWith(fn func()) {
	if f.land == nil {
		return
	}
	f.land <- fn
	f.land = nil
	synctest.Wait()
}

// end ends the transaction with this claim for each of the receives given, and nothing for others.
func (f *testFlight) end(served ...*testOp) {
	f.endWith(func() {
		for _, o := range f.os {
			o.TxErr, o.served = nil, slices.Contains(served, o)
		}
	})
}

func (f *testFlight) fail(err error) {
	f.endWith(func() {
		for _, o := range f.os {
			o.TxErr = err
		}
	})
}

// requireIdle: the books are as at the beginning.
func (r *rig) requireIdle() {
	r.t.Helper()
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	require.Zero(r.t, r.p.flying, "in flight")
	require.Zero(r.t, r.p.receiving, "receiving")
	require.Zero(r.t, r.p.taking, "taking")
	require.Zero(r.t, r.p.contending, "contending")
	require.Zero(r.t, r.p.queue.length(), "queued")
	require.Zero(r.t, r.l.Length(), "waiting")
}

// caller is a goroutine that has submitted an operation.
type caller struct {
	o     *testOp
	leave context.CancelCauseFunc
	stop  chan struct{} // of a receive that waits
	done  chan error
}

var errLeft = errors.New("the caller left")

func (r *rig) calls(o *testOp, submit func(ctx context.Context, c *caller) error) *caller {
	c := &caller{o: o, stop: make(chan struct{}), done: make(chan error, 1)}
	ctx, leave := context.WithCancelCause(context.Background())
	c.leave = leave
	go func() { c.done <- submit(ctx, c) }()
	synctest.Wait()
	return c
}

func (r *rig) submit(o *testOp) *caller {
	return r.calls(o, func(ctx context.Context, c *caller) error { return r.p.Submit(ctx, o) })
}

// submitWaiting submits a receive that waits for a minute.
func (r *rig) submitWaiting(o *testOp) *caller {
	return r.calls(o, func(ctx context.Context, c *caller) error {
		return r.p.SubmitWaiting(ctx, o, time.Minute, c.stop)
	})
}

// result is what the caller got; err = nil: it has no error.
func (r *rig) result(c *caller, want error) {
	r.t.Helper()
	synctest.Wait()
	select {
	case err := <-c.done:
		require.ErrorIs(r.t, err, want)
	default:
		require.FailNow(r.t, "the caller still waits")
	}
}

func (r *rig) stillWaits(c *caller) {
	r.t.Helper()
	synctest.Wait()
	require.Empty(r.t, c.done, "the caller has gone")
}

// leaves makes the caller leave, and waits until the pipeline has reacted.
func (r *rig) leaves(c *caller) {
	c.leave(errLeft)
	synctest.Wait()
}

func enqueueOf(messages int) *testOp { return &testOp{enqueues: true, size: Size{Messages: messages}} }

func ackOf(items int) *testOp { return &testOp{settles: true, size: Size{Settled: items}} }

func receiveOf(groups int) *testOp {
	return &testOp{receives: true, groups: groups, size: Size{Received: 1}}
}

// keptReceiveOf is receiveOf for a receive that keeps its claims if its caller leaves.
func keptReceiveOf(groups int) *testOp {
	o := receiveOf(groups)
	o.keeps = true
	return o
}

// busy fills all slots with enqueues, and returns their transactions.
func (r *rig) busy() []*testFlight {
	var all []*testFlight
	for range maxFlying {
		o := enqueueOf(1)
		r.submit(o)
		all = append(all, r.next(o))
	}
	return all
}

// TestPipelineTravelsTogether: operations that arrive while all slots are taken travel together, in the order of their
// arrival, in the transaction that follows the first to end.
func TestPipelineTravelsTogether(t *testing.T) {
	testRig(t, func(r *rig) {
		flights := r.busy()
		ack, enqueue, receive := ackOf(3), enqueueOf(2), receiveOf(1)
		callers := []*caller{r.submit(ack), r.submit(enqueue), r.submit(receive)}
		r.none()
		require.Equal(t, 3, r.p.Queued())
		flights[2].end()
		next := r.next(ack, enqueue, receive)
		flights[0].end()
		r.none()
		next.end(receive)
		for _, c := range callers {
			r.result(c, nil)
		}
		require.True(t, receive.served)
	})
}

// TestPipelineAloneNeedsNoGoroutine: an operation that meets nothing else in flight is run by its caller.
func TestPipelineAloneNeedsNoGoroutine(t *testing.T) {
	testRig(t, func(r *rig) {
		var by string
		o := enqueueOf(1)
		c := r.calls(o, func(ctx context.Context, c *caller) error {
			by = goroutine()
			return r.p.Submit(ctx, o)
		})
		f := r.next(o)
		require.Equal(t, by, f.by)
		f.end()
		r.result(c, nil)
	})
}

// TestPipelineInBounds: a transaction takes as many operations as its bounds allow. An operation that is larger than
// the bounds has a transaction of its own.
func TestPipelineInBounds(t *testing.T) {
	large := func() *testOp { return &testOp{enqueues: true, size: Size{Bytes: testMost.Bytes/2 + 1}} }
	asks := func() *testOp {
		return &testOp{receives: true, groups: 1, size: Size{Received: testMost.Received/2 + 1}}
	}
	for name, c := range map[string]struct {
		make         func() *testOp
		count, first int
	}{
		"operations":     {func() *testOp { return enqueueOf(0) }, maxOperations + 1, maxOperations},
		"messages":       {func() *testOp { return enqueueOf(testMost.Messages/2 + 1) }, 2, 1},
		"bytes":          {large, 2, 1},
		"settled":        {func() *testOp { return ackOf(testMost.Settled / 2) }, 3, 2},
		"settled, alone": {func() *testOp { return ackOf(testMost.Settled + 1) }, 2, 1},
		"received":       {asks, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			testRig(t, func(r *rig) {
				flights := r.busy()
				var os []*testOp
				for range c.count {
					os = append(os, c.make())
					r.submit(os[len(os)-1])
				}
				flights[0].end()
				first := r.next(os[:c.first]...)
				r.none()
				first.end()
				r.next(os[c.first:]...).end()
			})
		})
	}
}

// TestPipelineMayReceive: one transaction receives at a time, and the next one takes all receives that have come since.
// Other operations pass them. If groups are plenty, three transactions may receive, and each knows how many groups the
// others take.
func TestPipelineMayReceive(t *testing.T) {
	testRig(t, func(r *rig) {
		a, b, c, enqueue := receiveOf(2), receiveOf(3), receiveOf(4), enqueueOf(1)
		r.submit(a)
		first := r.next(a)
		require.Zero(t, first.others)
		r.submit(b)
		r.submit(c)
		r.none()
		r.submit(enqueue)
		r.next(enqueue).end()
		r.none()
		first.end(a)
		both := r.next(b, c)
		require.Zero(t, both.others)

		r.plenty = true
		d, e, f := receiveOf(1), receiveOf(5), receiveOf(1)
		r.submit(d)
		second := r.next(d)
		require.Equal(t, 7, second.others)
		r.submit(e)
		third := r.next(e)
		require.Equal(t, 8, third.others)
		r.submit(f)
		r.none()
		second.end()
		last := r.next(f)
		require.Equal(t, 12, last.others)
	})
}

// TestPipelineContends: operations that lose one conflict after the other have one transaction at a time, and others do
// not travel with them. Beside such a transaction fewer receive, so that one is left to acks.
func TestPipelineContends(t *testing.T) {
	testRig(t, func(r *rig) {
		contending := func() *testOp {
			o := enqueueOf(1)
			o.Contends = true
			return o
		}
		a, b, c, enqueue := contending(), contending(), contending(), enqueueOf(1)
		r.submit(a)
		first := r.next(a)
		r.submit(b)
		r.submit(c)
		r.none()
		r.submit(enqueue)
		r.next(enqueue).end()
		first.end()
		r.next(b, c)

		r.plenty = true
		d, e, f, another := receiveOf(1), receiveOf(1), receiveOf(1), enqueueOf(1)
		r.submit(d)
		second := r.next(d)
		r.submit(e)
		r.next(e)
		r.submit(f)
		r.none()
		r.submit(another)
		r.next(another).end()
		second.end()
		r.next(f)
	})
}

// TestPipelineLeaveQueued: the pipeline does not begin an operation whose caller has left.
func TestPipelineLeaveQueued(t *testing.T) {
	testRig(t, func(r *rig) {
		flights := r.busy()
		goes, stays := enqueueOf(1), enqueueOf(1)
		c, d := r.submit(goes), r.submit(stays)
		r.leaves(c)
		r.result(c, errLeft)
		flights[0].end()
		r.next(stays).end()
		r.result(d, nil)
	})
}

// TestPipelineLeaveRunning: an enqueue whose caller leaves has an unknown outcome. The claims of a receive whose caller
// leaves are given back, unless the receive has failed. A receive that keeps its claims has an unknown outcome.
func TestPipelineLeaveRunning(t *testing.T) {
	for name, c := range map[string]struct {
		o       *testOp
		err     error // of the transaction
		unknown bool
		back    bool
	}{
		"enqueue":          {enqueueOf(1), nil, true, false},
		"ack":              {ackOf(1), nil, true, false},
		"receive":          {receiveOf(1), nil, false, true},
		"receive, refused": {receiveOf(1), errors.New("no"), false, false},
		"receive, keeps":   {keptReceiveOf(1), nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			testRig(t, func(r *rig) {
				ahead := enqueueOf(1) // so that a driver runs c.o, and not its caller
				r.submit(ahead)
				r.next(ahead)
				who := r.submit(c.o)
				f := r.next(c.o)
				r.leaves(who)
				err := <-who.done
				require.ErrorIs(t, err, errLeft)
				require.Equal(t, c.unknown, kv.MaybeCommitted(err))
				f.endWith(func() { c.o.TxErr, c.o.served = c.err, c.o.receives })
				if c.back {
					require.Len(t, r.back, 1)
					require.Same(t, c.o, <-r.back)
				}
				require.Empty(t, r.back)
			})
		})
	}
}

// TestPipelineCallerThatRunsLeaves: a caller whose goroutine runs its receive can leave when the transaction has ended.
// The caller gets no claim, because the pipeline gives the claim back, and the error says why.
func TestPipelineCallerThatRunsLeaves(t *testing.T) {
	for name, served := range map[string]bool{"served": true, "nothing ready": false} {
		for kind, submit := range map[string]func(r *rig, o *testOp) *caller{
			"at once": (*rig).submit, "waiting": (*rig).submitWaiting,
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				testRig(t, func(r *rig) {
					o := receiveOf(1)
					c := submit(r, o)
					f := r.next(o)
					r.leaves(c)
					r.stillWaits(c)
					if served {
						f.end(o)
						require.Same(t, o, <-r.back)
					} else {
						f.end()
					}
					r.result(c, errLeft)
					require.False(t, o.served)
				})
			})
		}
	}
}

// TestManyLeaveTogether: the callers of many receives in the line and of as many operations in the queue leave
// together. An operation leaves about as fast from among 100,000 as from among 10,000, so that other calls of the
// handle can go on. The time for as many operations is compared; if each operation looked at all others, it would be 10
// times as long and more. The best of three tries counts, because the machine may be busy.
func TestManyLeaveTogether(t *testing.T) {
	var few, many time.Duration
	for range 3 {
		few, many = 0, leaveTogether(t, 100_000)
		for range 10 {
			few += leaveTogether(t, 10_000)
		}
		if many <= 5*few {
			return
		}
	}
	require.LessOrEqual(t, many, 5*few)
}

// leaveTogether returns how long so many receives of a line and operations of a queue take to leave, the last first.
func leaveTogether(t *testing.T, count int) time.Duration {
	r := &rig{t: t}
	r.p.Begin(PipelineEnv[*testOp]{Yield: func(context.Context, string) {}}, &r.l)
	r.p.flying = maxApart              // no transaction begins
	r.l.attended = make(chan struct{}) // nor does a turn
	os := make([]*testOp, 0, 2*count)
	for range count {
		queued, waits := enqueueOf(1), waiter()
		begin(queued)
		begin(waits)
		r.p.queueUp(queued)
		r.l.join(waits)
		waits.state = isWaiting
		os = append(os, queued, waits)
	}
	runtime.GC() // and none while the time is taken
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	begun, left := time.Now(), 0
	for _, o := range slices.Backward(os) {
		if r.p.leave(o, errLeft) == errLeft {
			left++
		}
	}
	took := time.Since(begun)
	require.Equal(t, 2*count, left)
	require.Zero(t, r.p.Queued())
	require.Zero(t, r.l.Length())
	return took
}

// TestPipelineAbandoned: a transaction whose callers have all gone is cancelled after abandonedTimeout, and not
// before, and not while one of them is there.
func TestPipelineAbandoned(t *testing.T) {
	testRig(t, func(r *rig) {
		flights := r.busy()
		a, b := ackOf(1), enqueueOf(1)
		first, second := r.submit(a), r.submit(b)
		flights[0].end()
		both := r.next(a, b)
		r.leaves(first)
		time.Sleep(2 * abandonedTimeout)
		require.NoError(t, both.ctx.Err())
		r.leaves(second)
		time.Sleep(abandonedTimeout - 1)
		synctest.Wait()
		require.NoError(t, both.ctx.Err())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Error(t, both.ctx.Err())
		both.fail(both.ctx.Err())
	})
}

// TestPipelineApart: where a transaction takes long, few callers do not wait for each other; many share the
// transactions.
func TestPipelineApart(t *testing.T) {
	testRig(t, func(r *rig) {
		flights := r.busy()
		time.Sleep(20 * farAway)
		for _, f := range flights { // as often as it takes to know that the database is far away
			f.end()
		}
		require.GreaterOrEqual(t, r.p.took, farAway)
		flights = nil
		for range maxApart {
			o := enqueueOf(1)
			r.submit(o)
			flights = append(flights, r.next(o))
		}
		var later []*testOp
		for range fewCallers {
			later = append(later, enqueueOf(1))
			r.submit(later[len(later)-1])
		}
		r.none()
		for _, f := range flights[:maxApart-maxFlying] {
			f.end()
		}
		r.none() // they have left their slots and the queued operations to the others
		require.Equal(t, maxFlying, r.p.flying)
		flights[maxApart-1].end()
		r.next(later...).end()
		for _, f := range flights[maxApart-maxFlying : maxApart-1] {
			f.end()
		}
	})
}

// TestPipelineTurns: a receive for which nothing is ready waits; then the line gives it a turn, in a transaction in
// which nothing else travels, and it gets what that one claims. Its settlement happens once.
func TestPipelineTurns(t *testing.T) {
	testRig(t, func(r *rig) {
		o := receiveOf(1)
		o.settles, o.size.Settled = true, 1
		c := r.submitWaiting(o)
		r.next(o).end()
		r.stillWaits(c)
		require.False(t, o.settles)
		require.Equal(t, Size{Received: 1}, o.load, "without the settlement")
		turn := r.next(o)
		enqueue := enqueueOf(1)
		r.submit(enqueue)
		r.next(enqueue).end()
		turn.end(o)
		r.result(c, nil)
		require.True(t, o.served)
	})
}

// TestPipelineTurnInQueue: a turn that finds no slot queues up, and does not travel with what writes.
func TestPipelineTurnInQueue(t *testing.T) {
	testRig(t, func(r *rig) {
		o := receiveOf(1)
		c := r.submitWaiting(o)
		first := r.next(o)
		for range maxFlying - 1 {
			enqueue := enqueueOf(1)
			r.submit(enqueue)
			r.next(enqueue)
		}
		receive, enqueue := receiveOf(1), enqueueOf(1)
		r.submit(receive)
		r.submit(enqueue)
		first.end() // o waits; the slot passes to a queued operation, and o's turn finds none
		next := r.next(receive, enqueue)
		r.none()
		next.end()
		r.next(o).end(o)
		r.result(c, nil)
	})
}

// TestPipelineTurnFails: a turn that fails does not count: the receive continues to wait until a turn serves it. After
// an error from which no turn recovers, the wait ends.
func TestPipelineTurnFails(t *testing.T) {
	testRig(t, func(r *rig) {
		o := receiveOf(1)
		c := r.submitWaiting(o)
		r.next(o).end()
		r.next(o).fail(errors.New("no database"))
		r.none()
		r.stillWaits(c)
		time.Sleep(ErrorPause)
		r.next(o).end(o)
		r.result(c, nil)
	})
	testRig(t, func(r *rig) {
		o := receiveOf(1)
		c := r.submitWaiting(o)
		r.next(o).end()
		r.next(o).fail(errFinal)
		r.result(c, errFinal)
	})
	testRig(t, func(r *rig) { // a first look that fails is no turn
		o, refused := receiveOf(1), errors.New("no database")
		c := r.submitWaiting(o)
		r.next(o).fail(refused)
		r.result(c, refused)
	})
}

// endings are the ways in which a wait ends before anything is ready.
var endings = map[string]struct {
	end func(r *rig, c *caller)
	err error
}{
	"timeout": {func(r *rig, c *caller) { time.Sleep(time.Minute) }, nil},
	"stop":    {func(r *rig, c *caller) { close(c.stop) }, nil},
	"leave":   {func(r *rig, c *caller) { r.leaves(c) }, errLeft},
	"close":   {func(r *rig, c *caller) { r.p.Close() }, errClosed},
}

// TestPipelineWaitEnds: each way to end a wait, in each state that the receive can be in. In the line a wait ends at
// once; in the queue and in a transaction the receive gets what that one claims, unless its caller has gone.
func TestPipelineWaitEnds(t *testing.T) {
	for name, by := range endings {
		t.Run(name+", in the line", func(t *testing.T) {
			testRig(t, func(r *rig) {
				o := receiveOf(1)
				c := r.submitWaiting(o)
				r.next(o).end()
				r.next(o).restAfter(Rest{Watch: newTestWatch(), Wait: time.Hour})
				r.none()
				by.end(r, c)
				r.result(c, by.err)
			})
		})
		for _, turn := range []bool{false, true} {
			for _, serve := range []bool{false, true} {
				t.Run(name+map[bool]string{false: ", first look", true: ", turn"}[turn]+
					map[bool]string{false: "", true: " that serves"}[serve], func(t *testing.T) {
					testRig(t, func(r *rig) { r.endsInFlight(turn, serve, by.end, by.err) })
				})
			}
		}
	}
}

// endsInFlight ends a wait while the receive's first look, or its turn, is in flight.
func (r *rig) endsInFlight(turn, serve bool, end func(r *rig, c *caller), want error) {
	ahead := enqueueOf(1) // so that a driver runs the first look
	r.submit(ahead)
	other := r.next(ahead)
	o := receiveOf(1)
	c := r.submitWaiting(o)
	f := r.next(o)
	if turn {
		f.end()
		f = r.next(o)
	}
	end(r, c)
	left := want == errLeft
	if left {
		r.result(c, errLeft)
	} else {
		r.stillWaits(c)
	}
	if serve {
		f.end(o)
	} else {
		f.end()
	}
	switch {
	case left && serve:
		require.Same(r.t, o, <-r.back)
	case left:
	case serve:
		r.result(c, nil)
		require.True(r.t, o.served)
	default:
		r.result(c, want)
	}
	require.Empty(r.t, r.back)
	r.none()
	other.end()
}

// TestPipelineCalledAndGone: between the line's call and the pipeline's turn a receive may be left, told to stop, or
// closed. Without a receive that wants one there is no turn. The receive still ends.
func TestPipelineCalledAndGone(t *testing.T) {
	for name, by := range endings {
		t.Run(name, func(t *testing.T) {
			testRig(t, func(r *rig) {
				o := receiveOf(1)
				called, goOn := make(chan struct{}), make(chan struct{})
				runTurn := r.l.env.RunTurn
				r.l.env.RunTurn = func(os []*testOp) {
					close(called)
					<-goOn
					runTurn(os)
				}
				c := r.submitWaiting(o)
				r.next(o).end()
				<-called
				by.end(r, c)
				close(goOn)
				if by.err == nil {
					r.next(o).end() // its last turn
				}
				r.none()
				r.result(c, by.err)
			})
		})
	}
}

// TestPipelineClosed: after close nothing is submitted; what is queued or in flight comes to its end.
func TestPipelineClosed(t *testing.T) {
	testRig(t, func(r *rig) {
		flights := r.busy()
		queued := enqueueOf(1)
		c := r.submit(queued)
		require.True(t, r.p.Close())
		require.False(t, r.p.Close(), "a second time")
		require.True(t, r.p.IsClosed())
		r.result(r.submit(enqueueOf(1)), errClosed)
		r.result(r.submitWaiting(receiveOf(1)), errClosed)
		flights[0].end()
		r.next(queued).end()
		r.result(c, nil)
	})
}

// TestPipelineCloseWhileATurnEnds: a receive that waits ends with errClosed when close comes while the pipeline decides
// what becomes of its turn, which has failed. The pipeline asks whether the wait may go on: then close comes.
func TestPipelineCloseWhileATurnEnds(t *testing.T) {
	testRig(t, func(r *rig) {
		o, closed := receiveOf(1), make(chan bool)
		c := r.submitWaiting(o)
		r.next(o).end()
		r.asked = func() { go func() { closed <- r.p.Close() }() }
		r.next(o).fail(errors.New("no database"))
		require.True(t, <-closed)
		r.result(c, errClosed)
	})
}

// TestPipelinePanicOfCaller: a panic in the transaction that a caller runs himself goes on to him, and the handle goes
// on working: slot, receiving and taking are given back.
func TestPipelinePanicOfCaller(t *testing.T) {
	testRig(t, func(r *rig) {
		o := receiveOf(2)
		c := r.calls(o, func(ctx context.Context, c *caller) (err error) {
			defer func() { err = recover().(error) }()
			return r.p.Submit(ctx, o)
		})
		f := r.next(o)
		behind := receiveOf(1)
		next := r.submit(behind)
		r.none()
		boom := errors.New("boom")
		f.endWith(func() { panic(boom) })
		r.result(c, boom)
		r.next(behind).end(behind)
		r.result(next, nil)
	})
}

// TestPipelinePanicInDriver: a panic in a transaction that a driver runs is the error of the operations that have no
// outcome yet: whether they committed is not known. Operations that had ended before, each in its own transaction, keep
// their results.
func TestPipelinePanicInDriver(t *testing.T) {
	testRig(t, func(r *rig) {
		flights := r.busy()
		os := []*testOp{enqueueOf(1), ackOf(1), receiveOf(1)}
		var callers []*caller
		for _, o := range os {
			callers = append(callers, r.submit(o))
		}
		flights[0].end()
		r.next(os...).endWith(func() {
			os[0].TxErr = nil
			panic("boom")
		})
		r.result(callers[0], nil)
		for _, c := range callers[1:] {
			err := <-c.done
			require.ErrorContains(t, err, "boom")
			require.ErrorContains(t, err, "pipeline_test.go", "the stack")
			require.True(t, kv.MaybeCommitted(err))
		}
		after := enqueueOf(1)
		c := r.submit(after)
		r.next(after).end()
		r.result(c, nil)
	})
}

// TestPipelinePanicOfATurn: a panic in a turn, which the attendance runs, ends the receives; the next one is attended.
func TestPipelinePanicOfATurn(t *testing.T) {
	testRig(t, func(r *rig) {
		o := receiveOf(1)
		c := r.submitWaiting(o)
		r.next(o).end()
		r.next(o).endWith(func() { panic("boom") })
		require.ErrorContains(t, <-c.done, "boom")
		again := receiveOf(1)
		c = r.submitWaiting(again)
		r.next(again).end()
		r.next(again).end(again)
		r.result(c, nil)
	})
}

// TestPipelineGoexit: a transaction that ends its goroutine, as a test's FailNow does, leaves no trace in the pipeline
// either.
func TestPipelineGoexit(t *testing.T) {
	testRig(t, func(r *rig) {
		o := enqueueOf(1)
		r.submit(o)
		r.next(o).endWith(runtime.Goexit)
		r.requireIdle()
		require.ErrorIs(t, o.Err(), errInterrupted)
	})
	testRig(t, func(r *rig) {
		first, behind := enqueueOf(1), enqueueOf(1)
		r.submit(first)
		f := r.next(first)
		r.submit(behind)
		r.next(behind).endWith(runtime.Goexit)
		require.ErrorIs(t, behind.Err(), errInterrupted)
		f.end()
		r.requireIdle()
	})
}
