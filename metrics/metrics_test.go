package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// labels are the labels of each metric: nothing else may become one, because a label with a name of a group, a message,
// an owner or an error has no bound.
var labels = map[string]string{
	"fdbfifo_claims_lost_total": "queue", "fdbfifo_claims_taken_over_total": "queue",
	"fdbfifo_claims_total": "path queue", "fdbfifo_exporter_duration_seconds": "queue",
	"fdbfifo_exporter_errors_total": "queue", "fdbfifo_exporter_up": "queue",
	"fdbfifo_queue_counts_truncated": "queue", "fdbfifo_queue_dead_letters": "queue",
	"fdbfifo_queue_events_total": "event queue", "fdbfifo_queue_groups": "queue state",
	"fdbfifo_queue_messages": "queue", "fdbfifo_queue_messages_in_flight": "queue",
	"fdbfifo_queue_oldest_age_seconds": "of queue", "fdbfifo_queue_paused": "queue",
	"fdbfifo_queue_clocks_apart_seconds": "queue",
	"fdbfifo_queue_waiting_handles":      "queue", "fdbfifo_transaction_conflicts_total": "queue",
	"fdbfifo_unreadable_rows_total": "queue", "fdbfifo_database_waiting_seconds": "queue",
	"fdbfifo_transactions_total": "queue", "fdbfifo_worker_busy": "queue", "fdbfifo_worker_stuck_total": "queue",
	"fdbfifo_worker_hands":                        "queue state",
	"messaging_client_consumed_messages_total":    "error_type queue",
	"messaging_process_duration_seconds":          "error_type le queue",
	"messaging_client_operation_duration_seconds": "le messaging_operation_name queue",
	"messaging_client_sent_messages_total":        "queue", "fdbfifo_operations_failed_total": "error_type queue",
	"fdbfifo_receive_wait_duration_seconds": "le queue", "fdbfifo_message_wait_duration_seconds": "le queue",
}

// maxSeries is how many series a queue may have.
const maxSeries = 150

// scene is an exporter of a queue with a name that needs care.
type scene struct {
	q   *layer.Queue
	e   *Exporter
	rec *record.Recorder
}

// hardName is a queue's name that the format has to escape.
const hardName = "a\\b \"c\"\nd é"

func inScene(t *testing.T, test func(t *testing.T, s *scene)) {
	synctest.Test(t, func(t *testing.T) {
		s := &scene{e: New(Options{}), rec: record.Wrap(embedded.OpenMemory(embedded.Options{}))}
		var err error
		s.q, err = layer.Create(t.Context(), s.rec, nil, hardName, layer.Options{
			Owner: "w", Hooks: []layer.Hook{s.e.Hook()},
		})
		require.NoError(t, err)
		s.e.Add(s.q)
		test(t, s)
		require.NoError(t, s.q.Close(context.Background()))
		require.NoError(t, s.rec.Close())
	})
}

// work has a worker handle all kinds of messages.
func (s *scene) work(t *testing.T) {
	for i := range 20 {
		_, err := s.q.Enqueue(t.Context(), layer.Message{Group: fmt.Sprint("g", i), Body: []byte{byte(i)}})
		require.NoError(t, err)
	}
	worker, err := worker.New(s.q, worker.Handle(func(ctx context.Context, d *worker.Delivery) error {
		time.Sleep(300 * time.Millisecond)
		switch d.Body[0] {
		case 1:
			return errors.New("failed with a text of its own")
		case 2:
			return &worker.RejectError{Reason: "no use"}
		}
		return nil
	}), worker.Options{Events: s.e.Events(worker.Events{}), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	s.e.AddWorker(s.q, worker)
	worker.Start()
	time.Sleep(2 * time.Second)
	require.Regexp(t, `state="idle"} [78]\n`, s.scrape(), "one may be at the message that fails again and again")
	time.Sleep(DefaultEvery) // so that the figures are read again
	require.NoError(t, worker.Stop(context.Background()))
	for _, claim := range []*layer.Claim{{Group: "g1", Token: 1}, nil} {
		require.Error(t, s.q.Ack(t.Context(), claim))
	}
	sent, err := s.q.Enqueue(t.Context(), layer.Message{Group: "left"})
	require.NoError(t, err)
	claims, err := s.q.Receive(t.Context(), layer.ReceiveOptions{Group: &sent[0].ID.Group})
	require.NoError(t, err)
	_, err = s.q.Extend(t.Context(), claims[0], time.Minute)
	require.NoError(t, err)
	require.NoError(t, s.q.Ack(t.Context(), claims[0]))
}

func (s *scene) scrape() string {
	w := httptest.NewRecorder()
	s.e.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

var (
	sampleLine = regexp.MustCompile(`^([a-z_]+)\{(.*)\} (\S+)$`)
	labelPair  = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
)

// TestLabelSets: the metrics and their labels are these and no others; a queue has few series.
func TestLabelSets(t *testing.T) {
	inScene(t, func(t *testing.T, s *scene) {
		s.work(t)
		text, series, seen := s.scrape(), 0, map[string]string{}
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(line, "#") {
				continue
			}
			series++
			m := sampleLine.FindStringSubmatch(line)
			require.NotNil(t, m, line)
			name := m[1]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if cut, ok := strings.CutSuffix(name, suffix); ok && known[cut].kind == "histogram" {
					name = cut
				}
			}
			names := strings.Fields(seen[name])
			for _, pair := range labelPair.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(names, pair[1]) {
					names = append(names, pair[1])
				}
				require.NotContains(t, pair[2], "failed with")
			}
			slices.Sort(names)
			seen[name] = strings.Join(names, " ")
		}
		want := map[string]string{}
		for name, l := range labels {
			if name != "fdbfifo_exporter_errors_total" { // none has failed
				want[name] = l
			}
		}
		require.Equal(t, want, seen)
		require.Len(t, known, len(labels))
		require.LessOrEqual(t, series, maxSeries)
		t.Logf("series_per_queue %d", series)
		for _, part := range []string{
			`fdbfifo_queue_events_total{event="enqueued",queue="a\\b \"c\"\nd é"} 21`,
			`messaging_client_sent_messages_total{queue="a\\b \"c\"\nd é"} 21`,
			`fdbfifo_operations_failed_total{error_type="claim_lost",queue="a\\b \"c\"\nd é"} 1`,
			`fdbfifo_message_wait_duration_seconds_count{queue="a\\b \"c\"\nd é"} 21`,
			`messaging_client_consumed_messages_total{error_type="",queue="a\\b \"c\"\nd é"} 18`,
			`messaging_client_consumed_messages_total{error_type="rejected",queue="a\\b \"c\"\nd é"} 1`,
			`messaging_process_duration_seconds_bucket{error_type="",queue="a\\b \"c\"\nd é",le="0.5"} 18`,
			`messaging_process_duration_seconds_bucket{error_type="",queue="a\\b \"c\"\nd é",le="0.25"} 0`,
			`fdbfifo_worker_busy{queue="a\\b \"c\"\nd é"} 0`,
		} {
			require.Contains(t, text, part)
		}
	})
}

// TestBusyAfterFailures: no handler counts as running when it has ended, also if a batch has failed at an item, or if
// the claim was lost during the call.
func TestBusyAfterFailures(t *testing.T) {
	handlers := map[string]worker.Handler{
		"a batch that names an item": worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
			if ds[0].Attempt == 1 && len(ds) == 10 {
				return &worker.BatchError{Done: 3, Err: errors.New("no")}
			}
			return nil
		}),
		"a batch that names none": worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
			if len(ds) > 2 {
				return errors.New("no")
			}
			return nil
		}),
		"a batch whose claim is lost": worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
			return release(ctx, ds[0])
		}),
		"a claim that is lost": worker.Handle(release),
	}
	for name, h := range handlers {
		t.Run(name, func(t *testing.T) {
			inScene(t, func(t *testing.T, s *scene) {
				_, err := s.q.Enqueue(t.Context(), slices.Repeat([]layer.Message{{Group: "g"}}, 10)...)
				require.NoError(t, err)
				w, err := worker.New(s.q, h, worker.Options{
					Events: s.e.Events(worker.Events{}), Logger: slog.New(slog.DiscardHandler), Batch: 10,
				})
				require.NoError(t, err)
				w.Start()
				time.Sleep(time.Minute) // a second call of a message waits until the first has ended
				stats, err := s.q.Stats(t.Context(), layer.StatsOptions{})
				require.NoError(t, err)
				require.Zero(t, stats.Depth)
				require.Contains(t, s.scrape(), `fdbfifo_worker_busy{queue="a\\b \"c\"\nd é"} 0`+"\n")
				require.NoError(t, w.Stop(context.Background()))
			})
		})
	}
}

// release takes the group from the worker that handles its first message for the first time.
func release(ctx context.Context, d *worker.Delivery) error {
	if d.Attempt > 1 {
		return nil
	}
	o := layer.ForceReleaseOptions{CountAttempt: true}
	if _, err := d.Queue.Admin().ForceRelease(ctx, d.ID.Group, o); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestScrapesShareOneReading: scrapes read a queue at most once in ten seconds, however many come. Without a scrape the
// queue is not read.
func TestScrapesShareOneReading(t *testing.T) {
	inScene(t, func(t *testing.T, s *scene) {
		s.rec.Take()
		time.Sleep(time.Hour)
		require.Empty(t, s.rec.Take(), "no scrape")
		for range 100 {
			require.Contains(t, s.scrape(), "fdbfifo_exporter_up")
			time.Sleep(time.Second)
		}
		require.Len(t, s.rec.Take(), 10)
	})
}

// TestTwoHandlesOfAQueue: two handles of a queue give each series once. Prometheus refuses a scrape with a series that
// comes twice.
func TestTwoHandlesOfAQueue(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := layer.Create(t.Context(), db, nil, "q", layer.Options{})
	require.NoError(t, err)
	other, err := layer.Open(t.Context(), db, nil, "q", layer.Options{})
	require.NoError(t, err)
	e := New(Options{Every: time.Nanosecond})
	for _, h := range []*layer.Queue{q, other} {
		e.Add(h)
		_, err := h.Enqueue(t.Context(), layer.Message{Body: []byte("x")})
		require.NoError(t, err)
	}
	e.Unopened([]string{"q"})
	written := func() map[string]string {
		var b bytes.Buffer
		e.Write(t.Context(), &b)
		all := map[string]string{}
		for line := range strings.Lines(b.String()) {
			if series, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && !strings.HasPrefix(line, "#") {
				require.NotContains(t, all, series)
				all[series] = value
			}
		}
		require.NotEmpty(t, all)
		return all
	}
	all := written()
	require.Equal(t, "1", all[`fdbfifo_exporter_up{queue="q"`])
	require.Equal(t, "2", all[`fdbfifo_queue_messages{queue="q"`])
	require.Equal(t, "2", all[`fdbfifo_transactions_total{queue="q"`])
	require.NoError(t, q.Close(t.Context()))
	require.Equal(t, "1", written()[`fdbfifo_exporter_up{queue="q"`], "one is open")
	e.Remove(other)
	require.Equal(t, "0", written()[`fdbfifo_exporter_up{queue="q"`])
	require.NoError(t, other.Close(t.Context()))
}

// TestWaitingHandleByName: a process whose receives wait for groups by name is a waiting handle too, so
// FdbfifoNobodyWorks is not raised.
func TestWaitingHandleByName(t *testing.T) {
	inScene(t, func(t *testing.T, s *scene) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, group := range []string{"g1", "g2"} {
			go s.q.Receive(ctx, layer.ReceiveOptions{Group: &group, Wait: layer.MaxWait})
		}
		synctest.Wait()
		require.Contains(t, s.scrape(), `fdbfifo_queue_waiting_handles{queue="a\\b \"c\"\nd é"} 1`)
	})
}

// TestExporterSaysThatItFails: a queue that cannot be read is left out, and the exporter says so.
func TestExporterSaysThatItFails(t *testing.T) {
	inScene(t, func(t *testing.T, s *scene) {
		require.NoError(t, s.q.Close(t.Context()))
		text := s.scrape()
		require.Contains(t, text, `fdbfifo_exporter_up{queue="a\\b \"c\"\nd é"} 0`)
		require.Contains(t, text, `fdbfifo_exporter_errors_total{queue="a\\b \"c\"\nd é"} 1`)
		require.NotContains(t, text, "fdbfifo_queue_messages")
	})
}

// TestMetricsAreDocumented: the table of docs/telemetry.md has every metric, with its type, labels and help, and no
// other.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/telemetry.md")
	require.NoError(t, err)
	for name, m := range known {
		var more []string
		for _, label := range strings.Fields(labels[name]) {
			if label != "queue" && label != "le" {
				more = append(more, "`"+label+"`")
			}
		}
		row := fmt.Sprintf("\n| `%s` | %s | %s | %s |\n", name, m.kind, strings.Join(more, " "), m.help)
		require.True(t, strings.Contains(string(text), row), "docs/telemetry.md has no row %s", row)
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (gauge|counter|histogram) ")
	for _, row := range rows.FindAllStringSubmatch(string(text), -1) {
		require.Contains(t, known, row[1])
	}
}

// promtool returns the path of Prometheus's tool, or skips.
func promtool(t *testing.T) string {
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIP: there is no promtool: apt-get install -y --no-install-recommends prometheus")
	}
	return path
}

// TestPromtoolTakesTheMetrics: Prometheus's own tool finds no fault.
func TestPromtoolTakesTheMetrics(t *testing.T) {
	tool, text := promtool(t), ""
	inScene(t, func(t *testing.T, s *scene) {
		s.work(t)
		text = s.scrape()
	})
	cmd := exec.Command(tool, "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(bytes.TrimSpace(out)))
}

// TestPromtoolTakesTheRules: the rules and the configuration of deploy are well formed, and the rules' tests hold.
func TestPromtoolTakesTheRules(t *testing.T) {
	tool := promtool(t)
	for _, args := range [][]string{
		{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}, {"check", "config", "prometheus.yml"},
	} {
		cmd := exec.Command(tool, args...)
		cmd.Dir = "../deploy"
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

var metricName = regexp.MustCompile(`\b(?:fdbfifo|messaging)_[a-z_]+\b`)

// TestDeployNamesWhatThereIs: the rules and the board name no metric that is not exported.
func TestDeployNamesWhatThereIs(t *testing.T) {
	for _, file := range []string{"rules.yml", "grafana.json"} {
		text, err := os.ReadFile("../deploy/" + file)
		require.NoError(t, err)
		names := metricName.FindAllString(string(text), -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			_, plain := known[name]
			_, bucket := known[strings.TrimSuffix(name, "_bucket")]
			require.True(t, plain || bucket, "%s names %s", file, name)
		}
	}
}

// slowBegin is a database in which each transaction takes a while to begin.
type slowBegin struct {
	kv.DB
	lag time.Duration
}

func (d slowBegin) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	time.Sleep(d.lag)
	return d.DB.Begin(o)
}

// TestFiguresOfManyQueues: the figures of many queues are read at the same time, so that a scrape does not take longer
// with each queue.
func TestFiguresOfManyQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		e := New(Options{})
		const n, lag = 10 * readers, 100 * time.Millisecond
		for i := range n {
			name := fmt.Sprintf("queue-%d", i)
			made, err := layer.Create(t.Context(), db, nil, name, layer.Options{})
			require.NoError(t, err)
			require.NoError(t, made.Close(t.Context()))
			q, err := layer.Open(t.Context(), slowBegin{db, lag}, nil, name, layer.Options{})
			require.NoError(t, err)
			defer q.Close(t.Context())
			e.Add(q)
		}
		var b bytes.Buffer
		begun := time.Now()
		e.Write(t.Context(), &b)
		require.Less(t, time.Since(begun), 2*n/readers*lag)
		require.Equal(t, n, strings.Count(b.String(), "fdbfifo_exporter_up{queue=\"queue-"))
		require.Equal(t, n, strings.Count(b.String(), "fdbfifo_queue_messages{"))
	})
}

// hangingDB does not begin a transaction before hangs is closed.
type hangingDB struct {
	kv.DB
	hangs atomic.Pointer[chan struct{}] // nil = it does not hang
}

func (d *hangingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if hangs := d.hangs.Load(); hangs != nil {
		<-*hangs
	}
	return d.DB.Begin(o)
}

// TestQueuesThatHangHoldUpNoOthers: the engine of many queues hangs in a call, which no context ends. A scrape ends in
// time and has the figures of the other queues. Each later scrape and Gone end, too.
func TestQueuesThatHangHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		far := &hangingDB{DB: db}
		e := New(Options{})
		const hanging = 2 * readers
		for i := range hanging + 1 {
			name, of := fmt.Sprintf("queue-%d", i), kv.DB(far)
			if i == hanging {
				name, of = "fine", db
			}
			q, err := layer.Create(t.Context(), of, nil, name, layer.Options{})
			require.NoError(t, err)
			defer q.Close(t.Context())
			e.Add(q)
		}
		hangs := make(chan struct{})
		far.hangs.Store(&hangs)
		down := regexp.MustCompile(`fdbfifo_exporter_up\{queue="queue-\d+"\} 0\n`)
		scrape := func(wrong int) {
			var b bytes.Buffer
			begun := time.Now()
			e.Write(t.Context(), &b)
			require.LessOrEqual(t, time.Since(begun), readTimeout)
			require.True(t, strings.Contains(b.String(), "fdbfifo_exporter_up{queue=\"fine\"} 1\n"))
			require.True(t, strings.Contains(b.String(), "fdbfifo_queue_messages{queue=\"fine\"} 0\n"))
			require.Len(t, down.FindAllString(b.String(), -1), wrong)
			require.Equal(t, hanging-wrong, strings.Count(b.String(), "fdbfifo_queue_messages{queue=\"queue-"))
			require.Empty(t, e.Gone())
		}
		for range 3 {
			scrape(hanging)
			time.Sleep(DefaultEvery)
		}
		far.hangs.Store(nil)
		close(hangs)
		time.Sleep(DefaultEvery)
		scrape(0)
	})
}

// TestUncalledHandlersAreNotCounted: a claim ends after Events.Started, so that the handler is not called. It counts
// neither as running nor as failed, and has taken no time.
func TestUncalledHandlersAreNotCounted(t *testing.T) {
	inScene(t, func(t *testing.T, s *scene) {
		_, err := s.q.Enqueue(t.Context(), layer.Message{Group: "g"})
		require.NoError(t, err)
		var w *worker.Worker
		var uncalled error
		stopped := make(chan struct{})
		next := worker.Events{
			Started: func(worker.Event) {
				go func() {
					defer close(stopped)
					ctx, cancel := context.WithCancel(context.Background())
					cancel()
					_ = w.Stop(ctx)
				}()
				time.Sleep(500 * time.Millisecond)
			},
			Failed: func(ev worker.Event) { uncalled = ev.Err },
		}
		w, err = worker.New(s.q, worker.Handle(func(context.Context, *worker.Delivery) error {
			return nil
		}), worker.Options{Concurrency: 1, Events: s.e.Events(next), Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		w.Start()
		<-stopped
		require.ErrorIs(t, uncalled, worker.ErrUncalled)
		text := s.scrape()
		require.Contains(t, text, `fdbfifo_worker_busy{queue="a\\b \"c\"\nd é"} 0`+"\n")
		for _, kind := range outcomes {
			require.Contains(t, text, `consumed_messages_total{error_type="`+kind+`",queue="a\\b \"c\"\nd é"} 0`+"\n")
		}
		require.NotContains(t, text, "messaging_process_duration_seconds_count")
	})
}

// TestEndedWorkersAreForgotten: the exporter keeps no worker that has ended. The queue then has no goroutines.
func TestEndedWorkersAreForgotten(t *testing.T) {
	inScene(t, func(t *testing.T, s *scene) {
		for _, starts := range []bool{true, false} {
			w, err := worker.New(s.q, worker.Handle(func(context.Context, *worker.Delivery) error {
				return nil
			}), worker.Options{Concurrency: 3, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			s.e.AddWorker(s.q, w)
			if starts {
				w.Start()
				require.Contains(t, s.scrape(), `state="idle"} 3`+"\n")
			}
			require.NoError(t, w.Stop(t.Context()))
		}
		require.Contains(t, s.scrape(), `state="idle"} 0`+"\n")
		require.Empty(t, s.e.of(s.q.Name()).workers)
	})
}
