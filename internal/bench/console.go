package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"fdbfifo/console"
	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
	"fdbfifo/metrics"
	"fdbfifo/worker"
)

// consoleTabs is how many pages are open in the figures of the console.
const consoleTabs = 20

// watched is a console that serves a queue, and the count of what that costs.
type watched struct {
	env      Env
	q        *queue
	counting *record.Recorder
	base     string
	close    func() error
}

// watchConsole serves a console of a queue, whose pages look every so often.
func watchConsole(ctx context.Context, env Env, every time.Duration) (w *watched, err error) {
	space, counting, err := env.openCounted(ctx)
	if err != nil {
		return nil, err
	}
	q, err := newQueue(ctx, env, space, "console")
	if err != nil {
		return nil, errors.Join(err, space.DB.Close())
	}
	c, err := console.New(console.Options{
		DB: counting, Prefix: space.Prefix, Open: true, Every: every, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, errors.Join(err, space.DB.Close())
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, space.DB.Close())
	}
	server := &http.Server{Handler: c, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	w = &watched{env: env, q: q, counting: counting, base: "http://" + l.Addr().String() + "/"}
	w.close = func() error {
		ctx := context.WithoutCancel(ctx)
		errs := []error{server.Close(), c.Close(ctx), q.Close(ctx), space.DB.Close()}
		<-ended
		return errors.Join(errs...)
	}
	return w, nil
}

// count returns the transactions a second in s.Watch.
func (w *watched) count(ctx context.Context, watch time.Duration) (float64, error) {
	before, begun := w.counting.Counters(), time.Now()
	if err := sleep(ctx, watch); err != nil {
		return 0, err
	}
	// By the length asked for: a few milliseconds more would count a look of the next five seconds as one of these.
	return float64(attempts(w.counting.Counters().Sub(before))) / max(watch, time.Since(begun)).Seconds(), nil
}

// tabs opens the events of a page, as so many browsers do, and returns when each has had its first.
func (w *watched) tabs(ctx context.Context, page string, n int) (stop func(), err error) {
	ctx, stop = context.WithCancel(ctx)
	for range n {
		target := w.base + "events?" + url.Values{"page": {page}, "q": {w.q.Name()}}.Encode()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		if err != nil {
			return stop, err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return stop, err
		}
		lines := bufio.NewReader(answer.Body)
		first, err := lines.ReadString('\n')
		if err != nil || answer.StatusCode != http.StatusOK {
			return stop, fmt.Errorf("%w: the events of %s: %s %q %v", errWrong, page, answer.Status, first, err)
		}
		go func() {
			_, _ = io.Copy(io.Discard, lines) // ends with ctx
			_ = answer.Body.Close()
		}()
	}
	return stop, nil
}

// consoleTransactions counts the transactions of a console, with no page open and with many pages of one queue open.
func consoleTransactions(s Sizes) Benchmark {
	const name, idle = "console_transactions_per_s", "console_idle_transactions_per_s"
	means := fmt.Sprintf("transactions of %d open overviews of a queue: its figures and blocked groups", consoleTabs)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		every := s.Watch / 2
		w, err := watchConsole(ctx, env, every)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, w.close()) }()
		held := s.ManyGroups / 5
		if err := w.q.load(ctx, 0, held, 1); err != nil {
			return nil, err
		}
		if err := w.q.hold(ctx); err != nil {
			return nil, err
		}
		if err := w.q.load(ctx, held, s.ManyGroups-held, 1); err != nil {
			return nil, err
		}
		nobody, err := w.count(ctx, s.Watch)
		if err != nil {
			return nil, err
		}
		detail := fmt.Sprintf("%d groups, watched for %v", s.ManyGroups, s.Watch)
		figures := map[string]float64{}
		for _, page := range []string{"/", "/blocked", "/queue"} {
			stop, err := w.tabs(ctx, page, consoleTabs)
			defer stop()
			if err == nil {
				// Half a look later, so that no look is at an end of the count: a page looks once or twice in s.Watch.
				err = sleep(ctx, time.Until(time.Now().Truncate(s.Watch).Add(s.Watch+every/2)))
			}
			if err == nil {
				figures[page], err = w.count(ctx, s.Watch)
			}
			stop()
			if err != nil {
				return nil, err
			}
		}
		if err := w.q.verify(ctx); err != nil {
			return nil, err
		}
		return []Result{
			{name, figures["/queue"], "transactions/s", means, detail, atMost(0.2)},
			{idle, nobody, "transactions/s", "transactions of a console that nobody looks at", detail, atMost(0)},
			{
				"console_blocked_transactions_per_s", figures["/blocked"], "transactions/s",
				fmt.Sprintf("transactions of %d open lists of blocked groups", consoleTabs), detail, atMost(0.4),
			},
			{
				"console_queues_transactions_per_s", figures["/"], "transactions/s",
				fmt.Sprintf("transactions of %d open lists of queues", consoleTabs), detail, atMost(0.2),
			},
		}, nil
	}}
}

// blockedRatio compares a page of blocked groups of a wide queue with one of a narrow queue.
func blockedRatio(s Sizes) Benchmark {
	const name = "blocked_ms_ratio"
	means := fmt.Sprintf("a page of blocked groups among %d groups, against %d", s.Deep, s.Shallow)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		took := map[int]time.Duration{}
		for _, groups := range []int{s.Shallow, s.Deep} {
			w, err := watchConsole(ctx, env, console.DefaultEvery)
			if err != nil {
				return nil, err
			}
			best, err := w.blocked(ctx, groups, s.Rounds)
			if err := errors.Join(err, w.close()); err != nil {
				return nil, err
			}
			took[groups] = best
		}
		detail := fmt.Sprintf("%v against %v, the best of %d", took[s.Deep], took[s.Shallow], s.Rounds)
		ratio := float64(took[s.Deep]) / float64(took[s.Shallow])
		return []Result{{name, ratio, "ratio", means, detail, atMost(3)}}, nil
	}}
}

// blocked returns the time of the fastest of so many pages.
func (w *watched) blocked(ctx context.Context, groups, rounds int) (best time.Duration, err error) {
	if err := w.q.load(ctx, 0, groups, 1); err != nil {
		return 0, err
	}
	for range rounds {
		begun := time.Now()
		page, err := w.q.Admin().Blocked(ctx, layer.BlockedOptions{ReadyFor: time.Nanosecond})
		if err != nil {
			return 0, err
		}
		if took := time.Since(begun); best == 0 || took < best {
			best = took
		}
		if len(page.Groups) != layer.DefaultBlocked {
			return 0, fmt.Errorf("%w: %d blocked groups on a page", errWrong, len(page.Groups))
		}
	}
	return best, w.q.verify(ctx)
}

// seriesPerQueue counts the series of a queue and a process that Prometheus would keep.
func seriesPerQueue(Sizes) Benchmark {
	const name = "series_per_queue"
	const means = "series of one queue and process in Prometheus's text format"
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "series")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, q.Close(context.WithoutCancel(ctx))) }()
		if err := q.load(ctx, 0, 1, 1); err != nil {
			return nil, err
		}
		e := metrics.New(metrics.Options{})
		e.Add(q.Queue)
		hook := e.Hook()
		for _, v := range layer.Verbs() {
			o := layer.Operation{Queue: q.Name(), Verb: v, Items: 1}
			hook.End(ctx, &o)
			for _, err := range []error{
				layer.ErrClaimLost, layer.ErrFull, layer.ErrClosed, layer.ErrNoQueue, layer.ErrChanged,
				layer.ErrCorrupt, layer.ErrLimit, context.DeadlineExceeded, context.Canceled, errWrong,
				&kv.Error{Code: kv.CodeOperationCancelled},
			} {
				o.Err = err
				hook.End(ctx, &o)
			}
		}
		hooks := e.Events(worker.Events{})
		for _, err := range []error{nil, errWrong, context.DeadlineExceeded, &worker.RejectError{}} {
			event := worker.Event{Queue: q.Name(), Err: err}
			hooks.Started(event)
			if err == nil {
				hooks.Done(event)
			} else {
				hooks.Failed(event)
			}
		}
		var b bytes.Buffer
		e.Write(ctx, &b)
		n := 0
		for line := range bytes.Lines(b.Bytes()) {
			if line[0] != '#' {
				n++
			}
		}
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		detail := "every verb, outcome of a handler and kind of error seen"
		return []Result{{name, float64(n), "series", means, detail, atMost(150)}}, nil
	}}
}
