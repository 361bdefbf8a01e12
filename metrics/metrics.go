// Package metrics writes figures of queues and workers in Prometheus's text format. It needs only this module.
//
//	m := metrics.New(metrics.Options{})
//	q, err := layer.Open(ctx, db, prefix, "orders", layer.Options{Hooks: []layer.Hook{m.Hook()}})
//	m.Add(q)
//	w, err := worker.New(q, h, worker.Options{Events: m.Events(worker.Events{})})
//	mux.Handle("GET /metrics", m)
//
// The figures of a queue come from its database. Scrape them from one process, or take their maximum over all
// processes: a sum counts them once for each process. The figures of a process are its own: sum them over all
// processes. No label names a group, a message, an owner or an error, because their number has no bound.
package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/layer"
)

// Options are the settings of an exporter. The zero value is the normal use.
type Options struct {
	// Every is how old the figures of a queue may be; 0 = DefaultEvery. A queue is read at most once in that time,
	// however many scrapes there are, and only for a scrape.
	Every time.Duration
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// DefaultEvery is how old the figures of a queue may be.
const DefaultEvery = 10 * time.Second

// readTimeout bounds the readings of one scrape. The figures of a queue that does not answer are missing. Prometheus
// waits 10 s by default, and then has no figure at all.
const readTimeout = 5 * time.Second

// Exporter is an http.Handler. It is safe for concurrent use.
type Exporter struct {
	o  Options
	mu sync.Mutex
	// Guarded by mu.
	queues []*source
	work   map[string]*work // by queue
	errors map[string]int64 // reads of figures that have failed, by queue
	closed []string         // the queues of Unopened
}

// source is a queue whose figures are exported.
type source struct {
	q    *layer.Queue
	turn chan struct{} // holds a token while the queue is read, which may take long if the engine hangs
	mu   sync.Mutex
	// Guarded by mu.
	stats layer.Stats
	at    time.Time
	took  time.Duration
	ok    bool
	gone  bool
}

// New makes an exporter without queues.
func New(o Options) *Exporter {
	if o.Every == 0 {
		o.Every = DefaultEvery
	}
	if o.Now == nil {
		o.Now = time.Now
	} else {
		o.Now = callback.Clock(o.Now)
	}
	return &Exporter{o: o, work: map[string]*work{}, errors: map[string]int64{}}
}

// Add also exports the figures of a queue, until Remove. The counts of several handles of a queue are added up. Two
// queues of an exporter must not have the same name.
func (e *Exporter) Add(q *layer.Queue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queues = append(e.queues, &source{q: q, turn: make(chan struct{}, 1)})
	e.of(q.Name())
}

// Remove ends the export of a queue's figures, and forgets what workers have done on it.
func (e *Exporter) Remove(q *layer.Queue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queues = slices.DeleteFunc(e.queues, func(s *source) bool { return s.q == q })
	if !e.has(q.Name()) {
		delete(e.work, q.Name())
		delete(e.errors, q.Name())
	}
}

// has reports whether there is a handle of the name. The caller must hold e.mu.
func (e *Exporter) has(name string) bool {
	return slices.ContainsFunc(e.queues, func(s *source) bool { return s.q.Name() == name })
}

// Gone returns the handles whose queues do not exist any more, by the last reading. There may be new queues of their
// names: the program should Remove the handles, and Add new ones.
func (e *Exporter) Gone() (gone []*layer.Queue) {
	e.mu.Lock()
	sources := slices.Clone(e.queues)
	e.mu.Unlock()
	for _, s := range sources {
		s.mu.Lock()
		if s.gone {
			gone = append(gone, s.q)
		}
		s.mu.Unlock()
	}
	return gone
}

// Unopened says which queues cannot be opened now. Until the next call the exporter shows an fdbfifo_exporter_up of 0
// for each of them. Each call counts an error of each of them.
func (e *Exporter) Unopened(names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range e.closed {
		if !e.has(name) && !slices.Contains(names, name) {
			delete(e.errors, name)
		}
	}
	for _, name := range names {
		e.errors[name]++
	}
	e.closed = slices.Clone(names)
}

// ServeHTTP writes all metrics.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var b bytes.Buffer
	e.Write(r.Context(), &b)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(b.Bytes()) // the scraper has gone
}

// Write writes all metrics. It leaves out queues that cannot be read, and sets fdbfifo_exporter_up to 0 for them.
func (e *Exporter) Write(ctx context.Context, b *bytes.Buffer) {
	e.mu.Lock()
	sources := slices.Clone(e.queues)
	e.mu.Unlock()
	p := printer{families: map[string]*family{}}
	e.readAll(ctx, sources)
	queues := map[string][]*source{} // by name
	for _, s := range sources {
		queues[s.q.Name()] = append(queues[s.q.Name()], s)
	}
	for name, handles := range queues {
		e.figures(&p, name, handles)
	}
	e.mu.Lock()
	for name, work := range e.work {
		work.print(&p, name)
	}
	for _, name := range e.closed {
		if queues[name] == nil {
			p.add("fdbfifo_exporter_up", 0, "queue", name)
		}
	}
	for name, n := range e.errors {
		p.add("fdbfifo_exporter_errors_total", float64(n), "queue", name)
	}
	e.mu.Unlock()
	p.write(b)
}

// readers is how many queues are read at the same time. One after the other, the figures of thousands of queues would
// take longer than a scrape may. A reading that takes longer than slowReading is not counted any more, so that queues
// that do not answer hold up no others.
const (
	readers     = 16
	slowReading = time.Second
)

// readAll reads the figures of queues, first of those that were read longest ago. If the time ends before a queue's
// turn, its last figures stay, and it comes earlier in the next scrape. But if no queue has answered, the database does
// not, and all of them count as not read.
func (e *Exporter) readAll(ctx context.Context, sources []*source) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	sources = slices.SortedStableFunc(slices.Values(sources), func(a, b *source) int {
		return a.readAt().Compare(b.readAt())
	})
	var reading sync.WaitGroup
	defer reading.Wait()
	free := make(chan struct{}, readers)
	var answered atomic.Bool
	for i, s := range sources {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			if reading.Wait(); answered.Load() {
				return
			}
			for _, s := range sources[i:] {
				e.keep(s, e.o.Now(), layer.Stats{}, context.Cause(ctx))
			}
			return
		}
		leave := sync.OnceFunc(func() { <-free })
		slow := time.AfterFunc(slowReading, leave)
		reading.Go(func() {
			defer leave()
			defer slow.Stop()
			if e.read(ctx, s) {
				answered.Store(true)
			}
		})
	}
}

// read reads the figures of a queue from its database, unless they are young enough. It returns when ctx ends, also if
// the engine hangs in a call, which no context ends. Then the reading goes on alone, and there is no other until it has
// ended. answered: the database has answered just now.
func (e *Exporter) read(ctx context.Context, s *source) (answered bool) {
	now := e.o.Now()
	if s.isYoung(now, e.o.Every) {
		return false
	}
	type result struct {
		stats layer.Stats
		err   error
	}
	results := make(chan result, 1)
	select {
	case s.turn <- struct{}{}:
		if now = e.o.Now(); s.isYoung(now, e.o.Every) { // another scrape has read them
			<-s.turn
			return false
		}
		go func() {
			stats, err := s.q.Stats(ctx, layer.StatsOptions{})
			results <- result{stats, err}
			<-s.turn
		}()
	case <-ctx.Done():
	}
	var r result
	select {
	case r = <-results:
	case <-ctx.Done():
		r.err = context.Cause(ctx)
	}
	e.keep(s, now, r.stats, r.err)
	return r.err == nil
}

// keep stores the figures of a queue that were read from a time on, or that they could not be read.
func (e *Exporter) keep(s *source, from time.Time, stats layer.Stats, err error) {
	s.mu.Lock()
	s.at, s.took, s.stats, s.ok = from, e.o.Now().Sub(from), stats, err == nil
	s.gone = errors.Is(err, layer.ErrNoQueue)
	s.mu.Unlock()
	if err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.errors[s.q.Name()]++
	}
}

// isYoung reports whether the figures were read less than every ago. A clock that was set back tells no age.
func (s *source) isYoung(now time.Time, every time.Duration) bool {
	at := s.readAt()
	age := now.Sub(at)
	return !at.IsZero() && age >= 0 && age < every
}

func (s *source) readAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// figures prints the figures of a queue from the database, by one of its handles, and from all of them.
func (e *Exporter) figures(p *printer, name string, handles []*source) {
	var st *layer.Stats
	var took time.Duration
	for _, s := range handles {
		s.mu.Lock()
		if s.ok {
			stats := s.stats
			st = &stats
		}
		took = max(took, s.took)
		s.mu.Unlock()
	}
	p.add("fdbfifo_exporter_up", bit(st != nil), "queue", name)
	p.add("fdbfifo_exporter_duration_seconds", took.Seconds(), "queue", name)
	e.paths(p, name, handles)
	if st == nil {
		return
	}
	p.add("fdbfifo_queue_messages", float64(st.Depth), "queue", name)
	p.add("fdbfifo_queue_messages_in_flight", float64(st.InFlight), "queue", name)
	p.add("fdbfifo_queue_dead_letters", float64(st.Dead), "queue", name)
	p.add("fdbfifo_queue_waiting_handles", float64(st.WaitingHandles), "queue", name)
	p.add("fdbfifo_queue_clocks_apart_seconds", st.ClocksApart.Seconds(), "queue", name)
	p.add("fdbfifo_queue_paused", bit(st.Paused != nil), "queue", name)
	p.add("fdbfifo_queue_counts_truncated", bit(st.ReadyGroups == layer.StatsCap), "queue", name)
	for state, n := range map[string]int64{
		"ready": st.ReadyGroups, "held": st.HeldGroups, "delayed": st.DelayedGroups, "failing": st.FailingGroups,
		"paused": st.PausedGroups, "halted": st.HaltedGroups,
	} {
		p.add("fdbfifo_queue_groups", float64(n), "queue", name, "state", state)
	}
	for of, age := range map[string]time.Duration{
		"ready": st.OldestReady, "head": st.OldestHead, "hold": st.LongestHold,
	} {
		p.add("fdbfifo_queue_oldest_age_seconds", age.Seconds(), "of", of, "queue", name)
	}
	for event, n := range map[string]int64{
		"enqueued": st.Enqueued, "duplicate": st.Duplicates, "received": st.Received, "acked": st.Acked,
		"nacked": st.Nacked, "expired": st.Expired, "taken": st.Taken, "dead_lettered": st.DeadLettered,
		"redriven": st.Redriven, "discarded": st.Discarded, "cancelled": st.Cancelled, "purged": st.Purged,
		"past_retention": st.PastRetention, "forced": st.Forced,
	} {
		p.add("fdbfifo_queue_events_total", float64(n), "event", event, "queue", name)
	}
}

// paths prints how this process's handles found their claims.
func (e *Exporter) paths(p *printer, name string, handles []*source) {
	var paths layer.Paths
	for _, s := range handles {
		one := s.q.Paths()
		paths.Direct += one.Direct
		paths.Widened += one.Widened
		paths.Staged += one.Staged
		paths.Shared += one.Shared
		paths.Conflicts += one.Conflicts
		paths.Unreadable += one.Unreadable
		paths.Waiting = max(paths.Waiting, one.Waiting)
	}
	for path, n := range map[string]int64{"direct": paths.Direct, "widened": paths.Widened, "staged": paths.Staged} {
		p.add("fdbfifo_claims_total", float64(n), "path", path, "queue", name)
	}
	p.add("fdbfifo_transactions_total", float64(paths.Shared), "queue", name)
	p.add("fdbfifo_transaction_conflicts_total", float64(paths.Conflicts), "queue", name)
	p.add("fdbfifo_database_waiting_seconds", paths.Waiting.Seconds(), "queue", name)
	p.add("fdbfifo_unreadable_rows_total", float64(paths.Unreadable), "queue", name)
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// metric is a family's type and help.
type metric struct{ kind, help string }

// known has every metric, by name.
var known = map[string]metric{
	"fdbfifo_queue_messages":              {"gauge", "Messages in the queue, by its counters."},
	"fdbfifo_queue_messages_in_flight":    {"gauge", "Messages delivered and not acked, by the queue's counters."},
	"fdbfifo_queue_dead_letters":          {"gauge", "Dead letters, by the queue's counters."},
	"fdbfifo_queue_groups":                {"gauge", "Groups by state; failing groups are delayed too."},
	"fdbfifo_queue_oldest_age_seconds":    {"gauge", "Age of the oldest ready head, oldest head, and longest hold."},
	"fdbfifo_queue_waiting_handles":       {"gauge", "Processes whose receives wait."},
	"fdbfifo_queue_clocks_apart_seconds":  {"gauge", "How far clocks of processes differ; 0 = up to 5 minutes."},
	"fdbfifo_queue_paused":                {"gauge", "1 if the whole queue is paused."},
	"fdbfifo_queue_counts_truncated":      {"gauge", "1 if there are more ready groups than are counted."},
	"fdbfifo_queue_events_total":          {"counter", "Events of messages, by the queue's counters."},
	"fdbfifo_claims_total":                {"counter", "Claims of this process's handle, by how they were got."},
	"fdbfifo_claims_lost_total":           {"counter", "Claims that this process has lost to another."},
	"fdbfifo_claims_taken_over_total":     {"counter", "Claims of groups whose holder's lease had ended."},
	"fdbfifo_transactions_total":          {"counter", "Transactions of this process's handle."},
	"fdbfifo_transaction_conflicts_total": {"counter", "Attempts of these that have failed with a conflict."},
	"fdbfifo_database_waiting_seconds":    {"gauge", "How long the database has kept this process waiting."},
	"fdbfifo_unreadable_rows_total":       {"counter", "Times this process has passed over a row that cannot be read."},
	"fdbfifo_worker_busy":                 {"gauge", "Handlers that run in this process, the stuck ones too."},
	"fdbfifo_worker_hands":                {"gauge", "Goroutines of this process's workers, by state."},
	"fdbfifo_worker_stuck_total":          {"counter", "Handlers that did not return at the end of their context."},
	"fdbfifo_exporter_up":                 {"gauge", "1 if the queue's figures could be read."},
	"fdbfifo_exporter_duration_seconds":   {"gauge", "How long the last reading of the queue's figures took."},
	"fdbfifo_exporter_errors_total":       {"counter", "Readings of the queue's figures that have failed."},
	"messaging_process_duration_seconds":  {"histogram", "How long handlers took, well or badly ended."},
	"messaging_client_operation_duration_seconds": {
		"histogram", "How long operations of this process took, without the waits of receives.",
	},
	"messaging_client_sent_messages_total": {"counter", "Messages that this process has enqueued."},
	"fdbfifo_operations_failed_total":      {"counter", "Operations of this process that have failed."},
	"fdbfifo_receive_wait_duration_seconds": {
		"histogram", "How long receives of this process have waited that then got something.",
	},
	"fdbfifo_message_wait_duration_seconds": {
		"histogram", "How long messages have waited, since they were enqueued or due, for their first delivery here.",
	},
	"messaging_client_consumed_messages_total": {
		"counter", "Messages delivered to this process, by how their handling ended.",
	},
}

// family is the lines of one metric.
type family struct{ lines []string }

type printer struct{ families map[string]*family }

// add adds a sample. labels are names and values, the names in order.
func (p *printer) add(name string, v float64, labels ...string) {
	p.line(name, name, v, labels...)
}

// line adds a line of a family; sample is the family's name, with the suffix of a histogram.
func (p *printer) line(name, sample string, v float64, labels ...string) {
	f := p.families[name]
	if f == nil {
		f = &family{}
		p.families[name] = f
	}
	pairs := make([]string, 0, len(labels)/2)
	for i := 0; i+1 < len(labels); i += 2 {
		pairs = append(pairs, labels[i]+`="`+escapes.Replace(labels[i+1])+`"`)
	}
	f.lines = append(f.lines, sample+"{"+strings.Join(pairs, ",")+"} "+strconv.FormatFloat(v, 'g', -1, 64)+"\n")
}

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// write writes the families in order. A histogram's lines stay as they are.
func (p *printer) write(b *bytes.Buffer) {
	names := make([]string, 0, len(p.families))
	for name := range p.families {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		m := known[name]
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, m.help, name, m.kind)
		lines := p.families[name].lines
		if m.kind != "histogram" {
			slices.Sort(lines)
		}
		for _, line := range lines {
			b.WriteString(line)
		}
	}
}
