package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/console"
	"fdbfifo/internal/doors"
	"fdbfifo/internal/hosts"
	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/metrics"
	"fdbfifo/worker"
)

// beside is the console and the metrics that a command can serve while it works. You need no second process to see its
// progress.
type beside struct {
	console, metrics string // addresses; "" = not
	exporter         *metrics.Exporter
}

func (b *beside) add(c *cobra.Command) {
	c.Flags().StringVar(&b.console, "console", "", "also serve the console at this `ADDRESS`, see fdbfifo console")
	b.addMetrics(c)
}

func (b *beside) addMetrics(c *cobra.Command) {
	c.Flags().StringVar(&b.metrics, "metrics", "", "also serve metrics for Prometheus at `ADDRESS`, under /metrics")
}

// metricsOf returns the address at which process n of several serves its metrics: n ports above this one's, or any port
// if this one has any port. "" = none.
func (b *beside) metricsOf(n int) (string, error) {
	if b.metrics == "" {
		return "", nil
	}
	host, text, err := net.SplitHostPort(b.metrics)
	if err != nil {
		return "", usagef("--metrics %s: %w", b.metrics, err)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 0 || port > 0 && port+n > math.MaxUint16 {
		return "", usagef("--metrics %s: a port is wanted, with %s above it", b.metrics, plural(int64(n), "port"))
	}
	if port > 0 {
		port += n
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// start serves what the flags ask for, until stop is called or the context ends. The metrics are those of q; nil = of
// all queues under the prefix.
func (b *beside) start(ctx context.Context, s *session, db kv.DB, q *layer.Queue) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	if b.metrics != "" {
		b.operations(s.app.Now) // makes the exporter, if the queue was opened without
		var h http.Handler = b.exporter
		if q != nil {
			b.exporter.Add(q)
		} else {
			all := &allQueues{s: s, db: db, e: b.exporter, open: map[string]*layer.Queue{}}
			stops, h = append(stops, func() { all.close(ctx) }), all
		}
		f, err := s.serveBeside(ctx, "metrics", b.metrics, hosts.Guard(h))
		if err != nil {
			stop()
			return stop, err
		}
		stops = append(stops, f)
	}
	if b.console == "" {
		return stop, nil
	}
	token := console.NewToken()
	h, err := console.New(console.Options{
		DB: db, Prefix: s.prefix(), Token: token, Now: s.app.Now, Logger: slog.New(slog.NewTextHandler(s.stderr, nil)),
	})
	if err != nil {
		stop()
		return stop, err
	}
	f, err := s.serveBeside(ctx, "console", b.console, h, console.LoginPath(token))
	if err != nil {
		stop()
		return stop, err
	}
	stops = append(stops, func() {
		f()
		ctx, cancel := ending(ctx)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			s.notice("close the console: %v", err)
		}
	})
	return stop, nil
}

// operations returns the hooks that count the operations of the command's handle. It returns none if no metrics are
// served.
func (b *beside) operations(now func() time.Time) []layer.Hook {
	if b.metrics == "" {
		return nil
	}
	if b.exporter == nil {
		b.exporter = metrics.New(metrics.Options{Now: now})
	}
	return []layer.Hook{b.exporter.Hook()}
}

// hooks returns the events that count the work of a worker. They count nothing if no metrics are served.
func (b *beside) hooks() worker.Events {
	if b.exporter == nil {
		return worker.Events{}
	}
	return b.exporter.Events(worker.Events{})
}

// watch shows how many goroutines of the worker are busy.
func (b *beside) watch(q *layer.Queue, w *worker.Worker) {
	if b.exporter != nil {
		b.exporter.AddWorker(q, w)
	}
}

// serveBeside serves a handler only on this machine. It prints the link, with path.
func (s *session) serveBeside(
	ctx context.Context, what, address string, h http.Handler, path ...string,
) (stop func(), err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, usagef("--%s %s: %w", what, address, err)
	}
	if addr, ok := l.Addr().(*net.TCPAddr); !ok || !addr.IP.IsLoopback() {
		err := usagef("--%s %s is for other machines: give an address of this one", what, address)
		return nil, errors.Join(err, l.Close())
	}
	where, most, share := "/metrics", metricsConnections, doors.Metrics
	if len(path) > 0 {
		where, most, share = path[0], consoleConnections, doors.Console
	}
	s.notice("%s: http://%s%s", what, l.Addr(), where)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, l, h, most, share) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			s.notice("%s: %v", what, err)
		}
	}, nil
}

// allQueues exports the figures of all queues under the prefix, as they come and go.
type allQueues struct {
	s  *session
	db kv.DB
	e  *metrics.Exporter

	mu     sync.Mutex
	open   map[string]*layer.Queue // guarded by mu
	failed map[string]string       // why the other queues could not be opened; guarded by mu
	looked time.Time               // guarded by mu
}

// lookTimeout bounds the look for new queues in a scrape. Together with the reading of the figures it takes less than
// the 10 s that Prometheus waits by default.
const lookTimeout = 4 * time.Second

// ServeHTTP writes the metrics. While the database does not answer it writes those of the queues that it knows: their
// fdbfifo_exporter_up of 0 says so.
func (a *allQueues) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), lookTimeout)
	defer cancel()
	known, err := a.look(ctx)
	if err != nil && known == 0 {
		http.Error(w, fmt.Sprintf("the queues cannot be listed: %v", err), http.StatusServiceUnavailable)
		return
	}
	a.e.ServeHTTP(w, r)
}

// look opens new queues, at most as often as figures are read. It returns how many queues it knows, of this look or an
// earlier one.
func (a *allQueues) look(ctx context.Context) (known int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.s.app.Now(); a.looked.IsZero() || now.Sub(a.looked) >= metrics.DefaultEvery {
		err = a.find(ctx, now)
	}
	return len(a.open) + len(a.failed), err
}

// find opens new queues. A queue that cannot be opened, for example because a newer version has configured it, does not
// stop the others. The caller must hold a.mu.
func (a *allQueues) find(ctx context.Context, now time.Time) error {
	names, err := layer.Queues(ctx, a.db, a.s.prefix())
	if err != nil {
		return err
	}
	for _, q := range a.e.Gone() { // there may be a new queue of its name
		a.forget(q.Name())
	}
	failed, gone := map[string]string{}, map[string]bool{}
	for name := range a.open {
		gone[name] = true
	}
	for _, name := range names {
		delete(gone, name)
		if a.open[name] != nil {
			continue
		}
		q, err := layer.Open(ctx, a.db, a.s.prefix(), name, a.s.queueOptions())
		if errors.Is(err, layer.ErrNoQueue) || errors.Is(err, layer.ErrDropping) {
			continue
		}
		if err != nil && (ctx.Err() != nil || kv.Code(err) != 0) { // it is the database's error
			return err
		}
		if err != nil {
			if failed[name] = err.Error(); a.failed[name] != failed[name] {
				a.s.notice("metrics: %v", err)
			}
			continue
		}
		a.open[name] = q
		a.e.Add(q)
	}
	for name := range gone {
		a.forget(name)
	}
	a.e.Unopened(slices.Sorted(maps.Keys(failed)))
	a.failed, a.looked = failed, now
	return nil
}

// forget ends the export of a queue. The caller must hold a.mu.
func (a *allQueues) forget(name string) {
	a.e.Remove(a.open[name])
	delete(a.open, name)
}

func (a *allQueues) close(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.open {
		var err error
		closeQueue(ctx, q, &err)
	}
}
