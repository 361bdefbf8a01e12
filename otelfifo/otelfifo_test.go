package otelfifo_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/otelfifo"
	"fdbfifo/worker"
)

// scene is a queue with telemetry into memory.
type scene struct {
	t      *testing.T
	ctx    context.Context
	q      *layer.Queue
	tel    *otelfifo.Telemetry
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
	tracer trace.Tracer
}

// inScene runs a test in virtual time; it ends with the full check of the queue.
func inScene(t *testing.T, change func(o *otelfifo.Options), test func(s *scene)) {
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, ctx: t.Context(), spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
		tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))
		s.tracer = tracers.Tracer("test")
		o := otelfifo.Options{Tracers: tracers, Meters: sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader))}
		if change != nil {
			change(&o)
		}
		var err error
		s.tel, err = otelfifo.New(o)
		require.NoError(t, err)
		db := embedded.OpenMemory(embedded.Options{})
		config := layer.Config{Retry: layer.RetryPolicy{Kind: layer.RetryAtOnce}, Archive: time.Hour}
		s.q, err = layer.Create(s.ctx, db, nil, "orders", layer.Options{
			Owner: "w", Config: config, Hooks: []layer.Hook{s.tel.Hook()},
		})
		require.NoError(t, err)
		test(s)
		report, err := s.q.Admin().Check(context.Background(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, s.q.Close(context.Background()))
		require.NoError(t, db.Close())
	})
}

func (s *scene) receive() *layer.Claim {
	s.t.Helper()
	claims, err := s.q.Receive(s.ctx, layer.ReceiveOptions{Max: 300, MaxGroups: 1})
	require.NoError(s.t, err)
	require.Len(s.t, claims, 1)
	return claims[0]
}

// span is the last span of a name.
func (s *scene) span(name string) sdktrace.ReadOnlySpan {
	s.t.Helper()
	all := s.spans.Ended()
	for _, span := range slices.Backward(all) {
		if span.Name() == name {
			return span
		}
	}
	require.Fail(s.t, "no span", name)
	return nil
}

func links(span sdktrace.ReadOnlySpan) (ids []trace.SpanID) {
	for _, l := range span.Links() {
		ids = append(ids, l.SpanContext.SpanID())
	}
	return ids
}

// TestTraceTravelsWithTheMessage: the span of the enqueue is a child of the caller's; the receive, the handling, a
// redrive and a replay link to it; other headers stay as they are.
func TestTraceTravelsWithTheMessage(t *testing.T) {
	inScene(t, nil, func(s *scene) {
		ctx, request := s.tracer.Start(s.ctx, "request")
		_, err := s.q.Enqueue(ctx, layer.Message{Group: "A", Headers: map[string]string{"k": "v"}})
		require.NoError(t, err)
		request.End()
		sent := s.span("enqueue orders")
		require.Equal(t, request.SpanContext().SpanID(), sent.Parent().SpanID())
		require.Equal(t, trace.SpanKindProducer, sent.SpanKind())

		claim := s.receive()
		require.Equal(t, "v", claim.Items[0].Headers["k"])
		require.Contains(t, claim.Items[0].Headers["traceparent"], sent.SpanContext().TraceID().String())
		enqueued := []trace.SpanID{sent.SpanContext().SpanID()}
		require.Equal(t, enqueued, links(s.span("receive orders")))
		require.NoError(t, s.q.Nack(s.ctx, claim, layer.NackOptions{Reject: "no use"}))
		follows := attribute.String("messaging.fdbfifo.follows", "dead letter")
		require.Contains(t, s.span("nack orders").Attributes(), follows)

		_, err = s.q.Admin().As("ann").Redrive(s.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
		require.NoError(t, err)
		require.Contains(t, s.span("redrive orders").Attributes(), attribute.String("enduser.id", "ann"))
		claim = s.receive()
		require.Equal(t, enqueued, links(s.span("receive orders")))
		require.NoError(t, s.q.Ack(s.ctx, claim))
		_, err = s.q.Admin().Replay(s.ctx, layer.ArchiveFilter{All: true}, layer.ReplayOptions{})
		require.NoError(t, err)

		handle := func(ctx context.Context, _ *worker.Delivery) error {
			_, inner := s.tracer.Start(ctx, "inner")
			inner.End()
			return nil
		}
		quiet := worker.Options{Logger: slog.New(slog.DiscardHandler)}
		worker, err := worker.New(s.q, worker.Handle(s.tel.Process(handle)), quiet)
		require.NoError(t, err)
		worker.Start()
		time.Sleep(time.Second)
		require.NoError(t, worker.Stop(s.ctx))
		handled := s.span("process orders")
		require.Equal(t, enqueued, links(handled))
		require.Equal(t, trace.SpanKindConsumer, handled.SpanKind())
		require.Equal(t, handled.SpanContext().SpanID(), s.span("inner").Parent().SpanID())

		_, err = s.q.Enqueue(s.ctx, layer.Message{Group: "A", Headers: claim.Items[0].Headers})
		require.NoError(t, err)
		require.Equal(t, claim.Items[0].Headers["traceparent"], s.receive().Items[0].Headers["traceparent"],
			"who passes a message on keeps its trace")
	})
}

// TestHeadersWithoutRoom: a message whose headers are full is enqueued without the trace, and so are messages that are
// together as large as an enqueue may be. With NoHeaders nothing travels.
func TestHeadersWithoutRoom(t *testing.T) {
	inScene(t, nil, func(s *scene) {
		for _, sizes := range [][]int{{layer.MaxBodySize}, {layer.MaxBatchSize / 2, layer.MaxBatchSize / 2}} {
			var all []layer.Message
			for _, size := range sizes {
				all = append(all, layer.Message{Group: "A", Body: make([]byte, size)})
			}
			_, err := s.q.Enqueue(s.ctx, all...)
			require.NoError(t, err)
			for got := 0; got < len(sizes); {
				claim := s.receive() // it may be a part of so many bytes
				got += len(claim.Items)
				require.Empty(t, claim.Items[0].Headers)
				require.NoError(t, s.q.Ack(s.ctx, claim))
			}
		}
	})
	full := map[string]string{"k": strings.Repeat("v", layer.MaxHeadersSize-10)}
	inScene(t, nil, func(s *scene) {
		_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "A", Headers: full})
		require.NoError(t, err)
		require.Equal(t, full, s.receive().Items[0].Headers)
	})
	inScene(t, func(o *otelfifo.Options) { o.NoHeaders = true }, func(s *scene) {
		_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "A"})
		require.NoError(t, err)
		require.Empty(t, s.receive().Items[0].Headers)
		require.Equal(t, trace.SpanKindClient, s.span("enqueue orders").SpanKind())
	})
}

// TestLinksAreBounded: a receive of many messages has as many links as the SDK keeps.
func TestLinksAreBounded(t *testing.T) {
	inScene(t, nil, func(s *scene) {
		for range 3 {
			_, err := s.q.Enqueue(s.ctx, slices.Repeat([]layer.Message{{Group: "A"}}, 100)...)
			require.NoError(t, err)
		}
		require.Len(t, s.receive().Items, 300)
		span := s.span("receive orders")
		require.Len(t, span.Links(), 128)
		require.Zero(t, span.DroppedLinks())
	})
}

// TestTextsAreBounded: texts of the program, as those of errors and names, are cut, and are UTF-8 in the spans. The
// protocol of an exporter has a largest message and refuses other texts, and then all spans of the message are lost.
func TestTextsAreBounded(t *testing.T) {
	inScene(t, nil, func(s *scene) {
		hostile := "\xff" + strings.Repeat("é", 5_000_000)
		_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "g"})
		require.NoError(t, err)
		claim := s.receive()
		_, end := s.tel.Begin(s.ctx, &worker.Delivery{Item: claim.Items[0], Queue: s.q, Token: claim.Token})
		end(errors.New(hostile))
		_, err = s.q.Admin().As(hostile).PauseGroup(s.ctx, hostile, layer.PauseOptions{})
		require.Error(t, err)
		require.Error(t, s.q.Admin().Cancel(s.ctx, layer.ID{Group: hostile}))
		require.NoError(t, s.q.Ack(s.ctx, claim))
		texts := []string{s.span("process orders").Status().Description}
		for _, name := range []string{"pause orders", "cancel orders"} {
			for _, a := range s.span(name).Attributes() {
				texts = append(texts, a.Value.String())
			}
			texts = append(texts, s.span(name).Status().Description)
		}
		for _, text := range texts {
			require.LessOrEqual(t, len(text), 2100)
			require.True(t, utf8.ValidString(text), "%.20q", text)
		}
	})
}

// brokenError panics in its only method, as a nil pointer in the place of an error often does.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

// TestErrorsAreTakenAsByTheWorker: a nil pointer to an error of this module is a success, and an error whose methods
// panic is a failure. Either ends the span.
func TestErrorsAreTakenAsByTheWorker(t *testing.T) {
	inScene(t, nil, func(s *scene) {
		_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "g"})
		require.NoError(t, err)
		claim := s.receive()
		handle := func(err error) sdktrace.ReadOnlySpan {
			d := &worker.Delivery{Item: claim.Items[0], Queue: s.q, Token: claim.Token}
			ctx, own := s.tracer.Start(s.ctx, "own")
			defer own.End()
			process := s.tel.Process(func(context.Context, *worker.Delivery) error { return err })
			require.NotPanics(t, func() { require.Equal(t, err, process(ctx, d)) })
			span := s.span("process orders")
			require.Equal(t, own.SpanContext().SpanID(), span.Parent().SpanID())
			return span
		}
		for _, err := range []error{(*worker.RetryError)(nil), (*worker.RejectError)(nil), (*layer.LimitError)(nil)} {
			require.Equal(t, codes.Unset, handle(err).Status().Code, "%T", err)
		}
		require.Equal(t, codes.Error, handle((*brokenError)(nil)).Status().Code)
		require.NoError(t, s.q.Ack(s.ctx, claim))
		require.Contains(t, fmt.Sprint(s.metrics()["messaging.process.duration"].Data), "handler")
	})
}

// badSpans are spans that go wrong.
type badSpans struct{ begin, end func() }

func (b badSpans) OnStart(context.Context, sdktrace.ReadWriteSpan) { b.begin() }
func (b badSpans) OnEnd(sdktrace.ReadOnlySpan)                     { b.end() }
func (badSpans) Shutdown(context.Context) error                    { return nil }
func (badSpans) ForceFlush(context.Context) error                  { return nil }

// TestHandlingOutlivesTelemetry (G7): OpenTelemetry panics, ends its goroutine, or hangs at the begin or the end of
// each span. The worker acks each message that was handled. One message waits for a call that hangs, and the others do
// not.
func TestHandlingOutlivesTelemetry(t *testing.T) {
	for name, wrong := range map[string]func(free <-chan struct{}){
		"panics": func(<-chan struct{}) { panic("the exporter") },
		"exits":  func(<-chan struct{}) { runtime.Goexit() },
		"hangs":  func(free <-chan struct{}) { <-free },
	} {
		for _, begin := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", begin ", begin), func(t *testing.T) {
				fine, failing := func() {}, func() {}
				bad := func() { failing() }
				change := func(o *otelfifo.Options) {
					spans := badSpans{begin: fine, end: bad}
					if begin {
						spans = badSpans{begin: bad, end: fine}
					}
					o.Tracers = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
				}
				inScene(t, change, func(s *scene) {
					free := make(chan struct{})
					for range 10 {
						_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "g"})
						require.NoError(t, err)
					}
					calls := 0
					failing = func() { wrong(free) }
					handle := func(context.Context, *worker.Delivery) error {
						calls++
						return nil
					}
					w, err := worker.New(s.q, worker.Handle(s.tel.Process(handle)), worker.Options{
						Concurrency: 1, Logger: slog.New(slog.DiscardHandler),
					})
					require.NoError(t, err)
					w.Start()
					time.Sleep(10 * time.Second)
					require.NoError(t, w.Stop(s.ctx))
					stats, err := s.q.Stats(s.ctx, layer.StatsOptions{})
					require.NoError(t, err)
					require.EqualValues(t, 10, stats.Acked)
					require.Equal(t, 10, calls)
					close(free)
				})
			})
		}
	}
}

// slowHeaders is a propagator whose Extract takes longer than an operation or a handler waits for it. seen gets the
// header k of each carrier, after the wait.
type slowHeaders struct {
	propagation.TraceContext
	seen chan<- string
}

func (h slowHeaders) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	time.Sleep(600 * time.Millisecond)
	h.seen <- carrier.Get("k")
	return h.TraceContext.Extract(ctx, carrier)
}

// TestLateTelemetryLeavesTheCallersHeaders: when a call into OpenTelemetry takes longer than half a second, the caller
// may change the headers again. Telemetry reads them only before such a call. A map that is read
// and written at the same time would end the process. The race detector sees it for the enqueue, whose reads have no
// other effect.
func TestLateTelemetryLeavesTheCallersHeaders(t *testing.T) {
	var slow atomic.Bool
	var seen chan string
	change := func(o *otelfifo.Options) {
		begin := func() {
			if slow.Load() {
				time.Sleep(600 * time.Millisecond)
			}
		}
		spans := badSpans{begin: begin, end: func() {}}
		o.Tracers = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		seen = make(chan string, 10) // of the bubble
		o.Headers = slowHeaders{seen: seen}
	}
	inScene(t, change, func(s *scene) {
		headers := map[string]string{"k": "first"}
		slow.Store(true)
		_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "g", Headers: headers})
		require.NoError(t, err)
		headers["k"] = "second"
		time.Sleep(time.Second)
		slow.Store(false)
		_, err = s.q.Enqueue(s.ctx, layer.Message{Group: "g", Headers: headers})
		require.NoError(t, err)

		claim := s.receive()
		for _, item := range claim.Items {
			item.Headers["k"] = "the caller's"
		}
		require.Equal(t, []string{"first", "second"}, []string{<-seen, <-seen}, "the receive")
		time.Sleep(time.Second)

		d := &worker.Delivery{Queue: s.q, Item: claim.Items[0]}
		_, end := s.tel.Begin(s.ctx, d)
		d.Headers["k"] = "the handler's"
		end(nil)
		require.Equal(t, "the caller's", <-seen, "the handler")
		require.NoError(t, s.q.Ack(s.ctx, claim))
	})
}

// TestTimeoutWithAnotherError: a handler that fails after its time has a timeout, also if its error does not say so.
func TestTimeoutWithAnotherError(t *testing.T) {
	inScene(t, nil, func(s *scene) {
		_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "g"})
		require.NoError(t, err)
		handle := func(ctx context.Context, d *worker.Delivery) error {
			if d.Attempt > 1 {
				return nil
			}
			<-ctx.Done()
			return errors.New("gave up")
		}
		o := worker.Options{Logger: slog.New(slog.DiscardHandler), Timeout: time.Second}
		worker, err := worker.New(s.q, worker.Handle(s.tel.Process(handle)), o)
		require.NoError(t, err)
		worker.Start()
		time.Sleep(10 * time.Second)
		require.NoError(t, worker.Stop(s.ctx))
		require.Contains(t, fmt.Sprint(s.metrics()["messaging.process.duration"].Data), "timeout")
	})
}

// TestReceiveThatSettles: the span of a receive does not name the token of the claim that it has settled, because the
// claim that it gets has another.
func TestReceiveThatSettles(t *testing.T) {
	inScene(t, nil, func(s *scene) {
		for range 2 {
			_, err := s.q.Enqueue(s.ctx, layer.Message{Alone: true})
			require.NoError(t, err)
		}
		settle := layer.Settlement{Claim: s.receive(), FinishAll: true}
		claims, err := s.q.SettleReceive(s.ctx, settle, layer.ReceiveOptions{})
		require.NoError(t, err)
		for _, a := range s.span("receive orders").Attributes() {
			require.NotEqual(t, "messaging.fdbfifo.claim.token", string(a.Key))
		}
		require.NoError(t, s.q.Ack(s.ctx, claims[0]))
		settle.Claim = claims[0]
		_, err = s.q.SettleReceive(s.ctx, settle, layer.ReceiveOptions{})
		require.ErrorIs(t, err, layer.ErrClaimLost)
		lost := attribute.Int64("messaging.fdbfifo.claim.token", claims[0].Token)
		require.Contains(t, s.span("receive orders").Attributes(), lost)
	})
}

// TestReceiveThatWaits: the span of a receive is that of the transaction that got something, and one that got nothing
// has none.
func TestReceiveThatWaits(t *testing.T) {
	inScene(t, nil, func(s *scene) {
		_, err := s.q.Receive(s.ctx, layer.ReceiveOptions{Wait: time.Second})
		require.NoError(t, err)
		require.Empty(t, s.spans.Ended())
		go func() {
			time.Sleep(10 * time.Second)
			_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "A"})
			require.NoError(t, err)
		}()
		_, err = s.q.Receive(s.ctx, layer.ReceiveOptions{Wait: layer.MaxWait})
		require.NoError(t, err)
		span := s.span("receive orders")
		require.Less(t, span.EndTime().Sub(span.StartTime()), 2*time.Second)
		require.Contains(t, fmt.Sprint(s.metrics()["fdbfifo.receive.wait.duration"].Data), "orders")
	})
}

// metrics are the metrics by name.
func (s *scene) metrics() map[string]metricdata.Metrics {
	s.t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(s.t, s.reader.Collect(s.ctx, &all))
	byName := map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		require.Equal(s.t, "https://opentelemetry.io/schemas/1.43.0", scope.Scope.SchemaURL)
		for _, m := range scope.Metrics {
			byName[m.Name] = m
		}
	}
	return byName
}

// client are the attributes of operations.
const client = "messaging.destination.name messaging.operation.name messaging.operation.type messaging.system"

// TestMetrics: names, units, buckets and attributes are these and no others: nothing whose number has no bound. All are
// in docs/telemetry.md.
func TestMetrics(t *testing.T) {
	want := map[string]struct{ unit, attributes string }{
		"messaging.client.operation.duration": {"s", "error.type " + client},
		"messaging.client.sent.messages":      {"{message}", "error.type " + client},
		"messaging.client.consumed.messages":  {"{message}", client},
		"messaging.process.duration":          {"s", "error.type " + client},
		"fdbfifo.message.wait.duration":       {"s", "messaging.destination.name messaging.system"},
		"fdbfifo.receive.wait.duration":       {"s", "messaging.destination.name messaging.system"},
	}
	inScene(t, nil, func(s *scene) {
		for i := range 5 {
			_, err := s.q.Enqueue(s.ctx, layer.Message{Group: fmt.Sprint("g", i), Body: []byte{byte(i)}})
			require.NoError(t, err)
		}
		_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "\xff"})
		require.Error(t, err)
		require.Equal(t, codes.Error, s.span("enqueue orders").Status().Code)
		handle := func(_ context.Context, d *worker.Delivery) error {
			time.Sleep(300 * time.Millisecond)
			switch d.Body[0] {
			case 1:
				return errors.New("failed with a text of its own")
			case 2:
				return &worker.RejectError{Reason: "no use"}
			case 3:
				if d.Attempt == 1 {
					panic("boom")
				}
			}
			return nil
		}
		o := worker.Options{Logger: slog.New(slog.DiscardHandler)}
		worker, err := worker.New(s.q, worker.Handle(s.tel.Process(handle)), o)
		require.NoError(t, err)
		worker.Start()
		time.Sleep(2 * time.Second)
		require.NoError(t, worker.Stop(s.ctx))

		got := s.metrics()
		require.Len(t, got, len(want))
		types := map[string]bool{}
		for name, m := range got {
			require.Equal(t, want[name].unit, m.Unit, name)
			keys := map[string]bool{}
			note := func(set attribute.Set) {
				for _, kv := range set.ToSlice() {
					keys[string(kv.Key)] = true
					if kv.Key == "error.type" {
						types[kv.Value.AsString()] = true
					}
				}
			}
			switch d := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					note(p.Attributes)
					require.Less(t, p.Bounds[0], 0.1, "not the default buckets, which are for milliseconds")
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					note(p.Attributes)
				}
			}
			var names []string
			for k := range keys {
				names = append(names, k)
			}
			slices.Sort(names)
			require.Equal(t, want[name].attributes, strings.Join(names, " "), name)
		}
		require.Equal(t, map[string]bool{"other": true, "handler": true, "rejected": true, "panic": true}, types)
	})
	docs, err := os.ReadFile("../docs/telemetry.md")
	require.NoError(t, err)
	for name, m := range want {
		more := ""
		if strings.Contains(m.attributes, "error.type") {
			more = " `error.type`"
		}
		require.Contains(t, string(docs), fmt.Sprintf("\n| `%s` | %s |%s | ", name, m.unit, more))
	}
}

// TestTelemetryIsDocumented: docs/telemetry.md has each span, and the attributes that spans alone have.
func TestTelemetryIsDocumented(t *testing.T) {
	docs, err := os.ReadFile("../docs/telemetry.md")
	require.NoError(t, err)
	_, spans, ok := strings.Cut(string(docs), "\n| span | ")
	require.True(t, ok)
	row := func(name string) string {
		_, rest, ok := strings.Cut(spans, "\n| `"+name)
		require.True(t, ok, name)
		row, _, _ := strings.Cut(rest, "\n")
		return row
	}
	inScene(t, nil, func(s *scene) {
		_, err := s.q.Enqueue(s.ctx, layer.Message{Group: "A"})
		require.NoError(t, err)
		d := &worker.Delivery{Queue: s.q, Item: s.receive().Items[0]}
		_, end := s.tel.Begin(s.ctx, d)
		end(nil)
		_, err = s.q.Admin().As("ann").ForceRelease(s.ctx, "A", layer.ForceReleaseOptions{})
		require.NoError(t, err)
		require.NoError(t, s.q.Nack(s.ctx, s.receive(), layer.NackOptions{Reject: "no"}))
		spans := s.spans.Ended()
		require.Len(t, spans, 6)
		for _, span := range spans {
			verb, ok := strings.CutSuffix(span.Name(), " orders")
			require.True(t, ok, span.Name())
			if !slices.Contains([]string{"enqueue", "receive", "process"}, verb) {
				verb = "VERB"
			}
			text := row(verb + " QUEUE`")
			require.Contains(t, text, span.SpanKind().String())
			for _, a := range span.Attributes() {
				if !strings.Contains(client, string(a.Key)) {
					require.Contains(t, text, "`"+string(a.Key)+"`", span.Name())
				}
			}
		}
	})
}

// enqueueWith enqueues a message into a queue of its own, by a handle with the hooks.
func enqueueWith(ctx context.Context, t *testing.T, all ...*otelfifo.Telemetry) {
	t.Helper()
	db := embedded.OpenMemory(embedded.Options{})
	var o layer.Options
	for _, tel := range all {
		o.Hooks = append(o.Hooks, tel.Hook())
	}
	q, err := layer.Create(t.Context(), db, nil, "orders", o)
	require.NoError(t, err)
	_, err = q.Enqueue(ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	require.NoError(t, q.Close(t.Context()))
	require.NoError(t, db.Close())
}

// TestTwoTelemetriesOfAHandle: of two hooks of a handle each ends its own span of an operation, and no other.
func TestTwoTelemetriesOfAHandle(t *testing.T) {
	var spans [2]*tracetest.SpanRecorder
	var all []*otelfifo.Telemetry
	for i := range spans {
		spans[i] = tracetest.NewSpanRecorder()
		tel, err := otelfifo.New(otelfifo.Options{
			Tracers: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans[i])),
			Meters:  sdkmetric.NewMeterProvider(),
		})
		require.NoError(t, err)
		all = append(all, tel)
	}
	enqueueWith(t.Context(), t, all...)
	for _, s := range spans {
		require.Len(t, s.Started(), 1)
		require.Len(t, s.Ended(), 1)
		require.Equal(t, "enqueue orders", s.Ended()[0].Name())
	}
}

// badHeaders is a propagator that panics.
type badHeaders struct{ propagation.TraceContext }

func (badHeaders) Inject(context.Context, propagation.TextMapCarrier) { panic("the propagator") }

// TestTelemetryThatPanicsEndsNoOtherSpan: the begin of an operation's span panics. The end of the operation leaves the
// program's own span alone.
func TestTelemetryThatPanicsEndsNoOtherSpan(t *testing.T) {
	tracers := sdktrace.NewTracerProvider()
	tel, err := otelfifo.New(otelfifo.Options{
		Tracers: tracers, Meters: sdkmetric.NewMeterProvider(), Headers: badHeaders{},
	})
	require.NoError(t, err)
	ctx, own := tracers.Tracer("test").Start(t.Context(), "request")
	enqueueWith(ctx, t, tel)
	require.True(t, own.IsRecording())
	require.Empty(t, own.(sdktrace.ReadOnlySpan).Attributes())
	own.End()
}
