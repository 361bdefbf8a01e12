package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// bad is a function of the user's that goes wrong: the first time, or each time.
type bad struct {
	how    string
	always bool
	calls  int           // guarded by mu
	free   chan struct{} // closed when functions that hang may return
	mu     sync.Mutex
}

func (b *bad) goWrong() {
	b.mu.Lock()
	b.calls++
	first := b.calls == 1
	b.mu.Unlock()
	if !first && !b.always {
		return
	}
	switch b.how {
	case "hangs":
		<-b.free
	case "panics":
		panic("the function")
	case "exits":
		runtime.Goexit()
	}
}

func (b *bad) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

// badLog is a log of which one method goes wrong.
type badLog struct {
	*bad
	enabled bool // it is Enabled
}

func (l badLog) Enabled(context.Context, slog.Level) bool {
	if l.enabled {
		l.goWrong()
	}
	return true
}

func (l badLog) Handle(context.Context, slog.Record) error {
	if !l.enabled {
		l.goWrong()
	}
	return nil
}
func (l badLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l badLog) WithGroup(string) slog.Handler      { return l }

// badLimiter does not look at its context.
type badLimiter struct{ *bad }

func (l badLimiter) Wait(context.Context) error {
	l.goWrong()
	return nil
}

// badOptions are options of which one function goes wrong, by the name of the function.
var badOptions = map[string]func(o *worker.Options, b *bad){
	"Limiter": func(o *worker.Options, b *bad) { o.Limiter = badLimiter{b} },
	"Next": func(o *worker.Options, b *bad) {
		o.Next = func() (layer.Template, *string) {
			b.goWrong()
			return nil, nil
		}
	},
	"RetryDelay": func(o *worker.Options, b *bad) {
		o.RetryDelay = func(int, error) time.Duration {
			b.goWrong()
			return time.Second
		}
	},
	"OnError":        func(o *worker.Options, b *bad) { o.OnError = func(error) { b.goWrong() } },
	"Received":       func(o *worker.Options, b *bad) { o.Events.Received = b.event },
	"Started":        func(o *worker.Options, b *bad) { o.Events.Started = b.event },
	"Done":           func(o *worker.Options, b *bad) { o.Events.Done = b.event },
	"Failed":         func(o *worker.Options, b *bad) { o.Events.Failed = b.event },
	"DeadLettered":   func(o *worker.Options, b *bad) { o.Events.DeadLettered = b.event },
	"Lost":           func(o *worker.Options, b *bad) { o.Events.Lost = b.event },
	"Stuck":          func(o *worker.Options, b *bad) { o.Events.Stuck = b.event },
	"Logger":         func(o *worker.Options, b *bad) { o.Logger = slog.New(badLog{bad: b}) },
	"Logger.Enabled": func(o *worker.Options, b *bad) { o.Logger = slog.New(badLog{bad: b, enabled: true}) },
}

func (b *bad) event(worker.Event) { b.goWrong() }

// trial is a worker with a function that goes wrong. Its messages stand in groups of their names: the handler of
// "fails" fails once, that of "lost" loses its claim once, that of "stuck" does not return in time once, that of "long"
// takes most of a lease of a second, and "dead" is rejected.
type trial struct {
	t *testing.T
	q *layer.Queue
	*bad

	mu    sync.Mutex
	calls map[string]int // of the handler; guarded by mu
}

func (r *trial) call(ctx context.Context, d *worker.Delivery) error {
	r.mu.Lock()
	r.calls[string(d.Body)]++
	n := r.calls[string(d.Body)]
	r.mu.Unlock()
	switch name := string(d.Body); {
	case name == "dead":
		return &worker.RejectError{Reason: "never"}
	case name == "long":
		time.Sleep(850 * time.Millisecond)
	case name == "slow":
		time.Sleep(2 * time.Second)
	case n > 1:
	case name == "fails":
		return errors.New("fails once")
	case name == "lost":
		_, err := r.q.Admin().ForceRelease(ctx, d.ID.Group, layer.ForceReleaseOptions{Token: d.Token})
		return err
	case name == "stuck":
		// The handler is stuck after 15 s, and its lease may end after 20 s: so neither falls together with its return.
		time.Sleep(18 * time.Second)
	}
	return nil
}

// seen is a copy of the calls so far.
func (r *trial) seen() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.calls)
}

// inTrial runs fn with a worker, and then checks the queue.
func inTrial(t *testing.T, b *bad, kind string, use func(o *worker.Options, b *bad),
	fn func(r *trial, w *worker.Worker),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := context.Background(), embedded.OpenMemory(embedded.Options{})
		q, err := layer.Create(ctx, db, []byte("worker"), "orders", layer.Options{Config: layer.Config{
			Lease: 15 * time.Second, MaxAttempts: 3,
			Retry: layer.RetryPolicy{Kind: layer.RetryConstant, Base: time.Second},
		}})
		require.NoError(t, err)
		b.free = make(chan struct{})
		r := &trial{t: t, q: q, bad: b, calls: make(map[string]int)}
		h := worker.Handle(r.call)
		if kind == "HandleTx" {
			h = worker.HandleTx(func(ctx context.Context, _ kv.Tx, d *worker.Delivery) error { return r.call(ctx, d) })
		}
		o := worker.Options{
			Concurrency: 2, Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler), StayWhenStuck: true,
		}
		use(&o, b)
		w, err := worker.New(q, h, o)
		require.NoError(t, err)
		fn(r, w)
		close(b.free)
		time.Sleep(time.Minute)
		report, err := q.Admin().Check(ctx, layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(ctx))
		require.NoError(t, db.Close())
	})
}

// send enqueues messages into groups of their names.
func (r *trial) send(names ...string) {
	r.t.Helper()
	for _, name := range names {
		_, err := r.q.Enqueue(context.Background(), layer.Message{Group: name, Body: []byte(name)})
		require.NoError(r.t, err)
	}
}

// TestFunctionsThatGoWrong: a function of a worker's options that hangs, panics or ends its goroutine costs the worker
// none of its goroutines, and no message a delivery or an attempt.
func TestFunctionsThatGoWrong(t *testing.T) {
	t.Parallel()
	for i, name := range slices.Sorted(maps.Keys(badOptions)) {
		use := badOptions[name]
		for j, how := range []string{"hangs", "panics", "exits"} {
			kind := []string{"Handle", "HandleTx"}[(i+j)%2]
			t.Run(name+" "+how+", "+kind, func(t *testing.T) {
				t.Parallel()
				wrong := &bad{how: how, always: how != "hangs" && name != "Next"}
				inTrial(t, wrong, kind, use, func(r *trial, w *worker.Worker) {
					ctx, stop := context.WithCancel(context.Background())
					ended := make(chan error, 1)
					go func() { ended <- w.Run(ctx) }()
					r.send("a", "fails", "b", "dead", "lost", "c", "stuck", "d")
					time.Sleep(6 * time.Minute)
					require.NotZero(t, r.count())
					require.Equal(t, worker.Hands{All: 2, Idle: 2}, w.Hands())
					r.send("e", "f", "g")
					time.Sleep(time.Minute)
					want := map[string]int{
						"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1,
						"dead": 1, "fails": 2, "lost": 2, "stuck": 1,
					}
					if kind == "HandleTx" {
						want["stuck"] = r.seen()["stuck"] // its transaction is too old
					}
					require.Equal(t, want, r.seen())
					stats, err := r.q.Stats(context.Background(), layer.StatsOptions{})
					require.NoError(t, err)
					require.EqualValues(t, 10, stats.Acked)
					require.EqualValues(t, 1, stats.DeadLettered)
					stop()
					time.Sleep(time.Second)
					require.NoError(t, <-ended)
				})
			})
		}
	}
}

// sleepyLog is a log whose Enabled hangs for the level debug, from a call on.
type sleepyLog struct {
	slog.Handler
	*bad
	from int
}

func (l sleepyLog) Enabled(_ context.Context, level slog.Level) bool {
	if level == slog.LevelDebug {
		l.mu.Lock()
		l.calls++
		hangs := l.calls >= l.from
		l.mu.Unlock()
		if hangs {
			<-l.free
		}
	}
	return true
}

// TestLogThatHangsAmidWork (G7): the log does not say whether a level is enabled, while a message is in flight: before
// its handler or behind it. The worker keeps the claim and acks the message, which is handled once.
func TestLogThatHangsAmidWork(t *testing.T) {
	t.Parallel()
	for from := range 3 {
		t.Run(fmt.Sprint("from call ", from+1), func(t *testing.T) {
			t.Parallel()
			use := func(o *worker.Options, b *bad) {
				o.Lease, o.Concurrency = 5*time.Second, 8
				o.Logger = slog.New(sleepyLog{slog.DiscardHandler, b, from + 1})
			}
			inTrial(t, &bad{}, "Handle", use, func(r *trial, w *worker.Worker) {
				w.Start()
				r.send("slow")
				time.Sleep(5 * time.Minute)
				r.send("slow")
				time.Sleep(5 * time.Minute)
				require.Equal(t, map[string]int{"slow": 2}, r.seen())
				stats, err := r.q.Stats(context.Background(), layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 2, stats.Acked)
				require.Zero(t, stats.Expired)
				require.Zero(t, stats.DeadLettered)
				require.NoError(t, w.Stop(context.Background()))
			})
		})
	}
}

// TestSlowHookLateInTheLease: a claim is extended in time during a hook that is slow, if little of its lease is left
// when the hook is called. No lease is extended while the transaction of a handler is open.
func TestSlowHookLateInTheLease(t *testing.T) {
	t.Parallel()
	var reported []error
	slow := func(o *worker.Options, _ *bad) {
		o.Lease, o.Concurrency = layer.MinLease, 1
		o.Events.Done = func(worker.Event) { time.Sleep(3 * time.Second) }
		o.OnError = func(err error) { reported = append(reported, err) }
	}
	inTrial(t, &bad{}, "HandleTx", slow, func(r *trial, w *worker.Worker) {
		r.send("long", "long", "long")
		w.Start()
		time.Sleep(time.Minute)
		require.NoError(t, w.Stop(context.Background()))
		require.Empty(t, reported)
		require.Equal(t, map[string]int{"long": 3}, r.seen())
	})
}

// TestRunEndsDespiteFunctionsThatHang: Run returns in its time while a function of the options never returns, wherever
// in a claim the end of the context meets the worker.
func TestRunEndsDespiteFunctionsThatHang(t *testing.T) {
	t.Parallel()
	for i, name := range slices.Sorted(maps.Keys(badOptions)) {
		use := badOptions[name]
		after := []time.Duration{0, time.Second, 3 * time.Minute}[i%3]
		t.Run(fmt.Sprint(name, " after ", after), func(t *testing.T) {
			t.Parallel()
			inTrial(t, &bad{how: "hangs", always: true}, "Handle", use, func(r *trial, w *worker.Worker) {
				r.send("a", "fails", "b", "dead", "lost", "c", "stuck", "d")
				ctx, stop := context.WithTimeout(context.Background(), after)
				defer stop()
				begun := time.Now()
				err := w.Run(ctx)
				require.LessOrEqual(t, time.Since(begun), after+10*time.Minute)
				if stopped := new(worker.StopError); err != nil {
					require.ErrorAs(t, err, &stopped)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestLogThatAsksItsWorker: a log handler may call the methods of the worker whose line it gets.
func TestLogThatAsksItsWorker(t *testing.T) {
	t.Parallel()
	var w *worker.Worker
	asked := map[string]int{}
	ask := func(o *worker.Options, _ *bad) { o.Logger = slog.New(asking{&w, asked}) }
	inTrial(t, &bad{}, "Handle", ask, func(r *trial, made *worker.Worker) {
		w = made
		w.Start()
		r.send("a")
		time.Sleep(time.Second)
		begun := time.Now()
		require.NoError(t, w.Stop(context.Background()))
		require.Less(t, time.Since(begun), time.Second)
		require.Equal(t, 1, asked["worker started"])
		require.Equal(t, 1, asked["worker stops"])
	})
}

// asking is a log handler that asks the worker for its goroutines.
type asking struct {
	w     **worker.Worker
	asked map[string]int
}

func (asking) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (a asking) Handle(_ context.Context, r slog.Record) error {
	(*a.w).Hands()
	a.asked[r.Message]++
	return nil
}
func (a asking) WithAttrs([]slog.Attr) slog.Handler { return a }
func (a asking) WithGroup(string) slog.Handler      { return a }
