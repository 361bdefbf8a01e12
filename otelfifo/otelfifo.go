// Package otelfifo makes OpenTelemetry's spans and metrics of the handles and workers of a queue. Each message carries
// its trace in its headers. It is a module of its own, so that package layer needs no module of OpenTelemetry.
//
//	t, err := otelfifo.New(otelfifo.Options{})
//	q, err := layer.Open(ctx, db, prefix, "orders", layer.Options{Hooks: []layer.Hook{t.Hook()}})
//	w, err := worker.New(q, worker.Handle(t.Process(handle)), worker.Options{})
//
// Names follow OpenTelemetry's conventions for messaging, which are in development: names may change with a new minor
// version of this module. These queues have no "consumer group" of the conventions. The group of a message is
// messaging.fdbfifo.message.group, on spans only. No metric has an attribute with the name of a group, a message, an
// owner or an error, because their number has no bound.
//
// For the figures in the database (depth, ready groups, ages) use package metrics.
package otelfifo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"fdbfifo/internal/callback"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// scope is the name under which spans and metrics are made.
const scope = "fdbfifo/otelfifo"

// Options say where telemetry goes. The zero value is OpenTelemetry's globals.
type Options struct {
	Tracers trace.TracerProvider          // nil = otel.GetTracerProvider
	Meters  metric.MeterProvider          // nil = otel.GetMeterProvider
	Headers propagation.TextMapPropagator // nil = W3C Trace Context: traceparent and tracestate
	// NoHeaders leaves the headers of messages alone: nothing travels with them.
	NoHeaders bool
}

// Telemetry makes hooks. It is safe for concurrent use.
type Telemetry struct {
	o      Options
	tracer trace.Tracer
	stuck  atomic.Int64 // calls into OpenTelemetry that have not returned in time, and still run
	told   atomic.Bool  // a failure of OpenTelemetry was reported

	operations, process, received, waited metric.Float64Histogram
	sent, consumed                        metric.Int64Counter
}

// Buckets of histograms, in seconds: those of the conventions, and of the waits, which are longer.
var (
	seconds = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	waits   = []float64{0.01, 0.1, 0.5, 1, 5, 10, 60, 600, 3600, 6 * 3600, 24 * 3600}
)

// New makes telemetry. Errors: those of the meters.
func New(o Options) (*Telemetry, error) {
	if o.Tracers == nil {
		o.Tracers = otel.GetTracerProvider()
	}
	if o.Meters == nil {
		o.Meters = otel.GetMeterProvider()
	}
	if o.Headers == nil {
		o.Headers = propagation.TraceContext{}
	}
	t := &Telemetry{o: o, tracer: o.Tracers.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
	m := o.Meters.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	var errs []error
	histogram := func(name, what string, bounds []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what),
			metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	counter := func(name, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit("{message}"), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}
	t.operations = histogram("messaging.client.operation.duration", "How long operations took, without waits.", seconds)
	t.process = histogram("messaging.process.duration", "How long handlers took.", seconds)
	t.received = histogram("fdbfifo.receive.wait.duration", "How long receives waited that then got something.", waits)
	t.waited = histogram("fdbfifo.message.wait.duration", "How long messages waited for their first delivery.", waits)
	t.sent = counter("messaging.client.sent.messages", "Messages enqueued.")
	t.consumed = counter("messaging.client.consumed.messages", "Messages delivered.")
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("otelfifo: %w", err)
	}
	return t, nil
}

// system names the project in messaging.system.
var system = semconv.MessagingSystemKey.String("fdbfifo")

// kinds are the types of operations, as the conventions have them; the operators' verbs have none.
var kinds = map[layer.Verb]attribute.KeyValue{
	layer.VerbEnqueue: semconv.MessagingOperationTypeSend, layer.VerbReceive: semconv.MessagingOperationTypeReceive,
	layer.VerbAck: semconv.MessagingOperationTypeSettle, layer.VerbNack: semconv.MessagingOperationTypeSettle,
	layer.VerbRelease: semconv.MessagingOperationTypeSettle, layer.VerbExtend: semconv.MessagingOperationTypeSettle,
	layer.VerbAdvance: semconv.MessagingOperationTypeSettle,
}

// common are the attributes of an operation's span and of its metrics.
func common(queue string, verb layer.Verb) []attribute.KeyValue {
	all := []attribute.KeyValue{
		system, semconv.MessagingDestinationName(queue), semconv.MessagingOperationName(string(verb)),
	}
	if kind, ok := kinds[verb]; ok {
		all = append(all, kind)
	}
	return all
}

// failed adds the kind of an error.
func failed(all []attribute.KeyValue, kind string) []attribute.KeyValue {
	if kind == "" {
		return all
	}
	return append(all[:len(all):len(all)], semconv.ErrorTypeKey.String(kind))
}

// maxLinks is how many links a span gets: the SDK drops those beyond.
const maxLinks = 128

// Hook returns a hook for layer.Options: a span for each operation, and its metrics. An enqueue puts its span into the
// headers of each message that has no trace yet, if the headers and the whole enqueue have room. A receive has a span
// only if it got messages or failed. The span is of the transaction that got them, without the wait, and has a link to
// the enqueue of each message.
func (t *Telemetry) Hook() layer.Hook { return layer.Hook{Begin: t.begin, End: t.end} }

func (t *Telemetry) begin(ctx context.Context, o *layer.Operation) context.Context {
	if o.Verb == layer.VerbReceive {
		return ctx
	}
	kind, sends := trace.SpanKindClient, o.Verb == layer.VerbEnqueue && !t.o.NoHeaders
	var had []map[string]string
	if sends {
		kind, had = trace.SpanKindProducer, headersOf(o.Messages)
	}
	ctx, span := t.tracer.Start(ctx, string(o.Verb)+" "+o.Queue, trace.WithSpanKind(kind),
		trace.WithAttributes(common(o.Queue, o.Verb)...), trace.WithTimestamp(o.Begun))
	if sends {
		t.inject(ctx, o, had)
	}
	return context.WithValue(ctx, spanKey{t}, span)
}

// spanKey is the key of an operation's span in the context of its hooks. The span that is active there may be another:
// that of a later hook, or the program's own if begin has panicked.
type spanKey struct{ t *Telemetry }

// headersOf returns copies of the messages' headers. The hook must make them before its first call into OpenTelemetry:
// such a call may take longer than the operation waits for the hook, and then the maps belong to the caller again.
func headersOf(messages []layer.Message) []map[string]string {
	all := make([]map[string]string, len(messages))
	for i := range messages {
		all[i] = maps.Clone(messages[i].Headers)
	}
	return all
}

// inject puts the trace into the headers of the messages. A message whose headers have no room gets none. had has the
// headers of each message.
func (t *Telemetry) inject(ctx context.Context, o *layer.Operation, had []map[string]string) {
	carrier := propagation.MapCarrier{}
	t.o.Headers.Inject(ctx, carrier)
	size := 0
	for k, v := range carrier {
		size += len(k) + len(v)
	}
	for i, headers := range had {
		room := layer.MaxHeadersSize - size
		has := false
		for k, v := range headers {
			room -= len(k) + len(v)
			_, same := carrier[k]
			has = has || same
		}
		if has || room < 0 {
			continue // the sender has set the trace, or there is no room
		}
		for k, v := range carrier {
			o.SetHeader(i, k, v)
		}
	}
}

func (t *Telemetry) end(ctx context.Context, o *layer.Operation) {
	attrs := common(o.Queue, o.Verb)
	kind := layer.ErrorKind(o.Err)
	if o.Verb == layer.VerbReceive {
		if o.Items == 0 && o.Err == nil {
			return // it has only waited
		}
		t.receive(ctx, o, attrs)
	} else if span, ok := ctx.Value(spanKey{t}).(trace.Span); ok {
		finish(span, o, details(o))
	}
	set := metric.WithAttributes(failed(attrs, kind)...)
	t.operations.Record(ctx, (o.Took - o.Waited).Seconds(), set)
	if o.Verb == layer.VerbEnqueue {
		n := int64(o.Items)
		if o.Err != nil {
			n = int64(len(o.Messages))
		}
		t.sent.Add(ctx, n, set)
	}
}

// details returns the attributes that only spans have, because the number of their values has no bound.
func details(o *layer.Operation) []attribute.KeyValue {
	all := []attribute.KeyValue{semconv.MessagingBatchMessageCount(max(o.Items, len(o.Messages)))}
	if o.By != "" {
		all = append(all, attribute.String("enduser.id", short(o.By)))
	}
	if o.Group != nil {
		all = append(all, attribute.String("messaging.fdbfifo.message.group", short(*o.Group)))
	}
	if o.ID != (layer.ID{}) {
		all = append(all, semconv.MessagingMessageID(short(o.ID.String())))
	}
	if o.Settled != nil && (o.Verb != layer.VerbReceive || o.Err != nil) { // else the claim that it got is another
		all = append(all, attribute.Int64("messaging.fdbfifo.claim.token", o.Settled.Token))
	}
	if o.Follows != "" {
		all = append(all, attribute.String("messaging.fdbfifo.follows", string(o.Follows)))
	}
	return all
}

// maxText is how much of a text of the program's a span gets, in bytes.
const maxText = 2000

// short returns the begin of a text, as UTF-8. One text that is too long, or no UTF-8, would make an exporter lose all
// spans of its batch.
func short(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD") }

// finish ends the span of an operation.
func finish(span trace.Span, o *layer.Operation, more []attribute.KeyValue) {
	span.SetAttributes(more...)
	if o.Err != nil {
		span.SetAttributes(semconv.ErrorTypeKey.String(layer.ErrorKind(o.Err)))
		span.SetStatus(codes.Error, short(o.Err.Error()))
	}
	span.End(trace.WithTimestamp(o.Begun.Add(o.Took)))
}

// receive makes the span of a receive, and counts the received items.
func (t *Telemetry) receive(ctx context.Context, o *layer.Operation, attrs []attribute.KeyValue) {
	var links []trace.Link
	queue := metric.WithAttributes(system, semconv.MessagingDestinationName(o.Queue))
	headers, waited := received(o)
	for _, had := range headers {
		if link, ok := t.link(had); ok && len(links) < maxLinks {
			links = append(links, link)
		}
	}
	for _, d := range waited {
		t.waited.Record(ctx, d.Seconds(), queue)
	}
	ctx, span := t.tracer.Start(ctx, "receive "+o.Queue, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithLinks(links...), trace.WithAttributes(attrs...), trace.WithTimestamp(o.Begun.Add(o.Waited)))
	finish(span, o, details(o))
	if o.Err == nil {
		t.received.Record(ctx, o.Waited.Seconds(), queue)
		t.consumed.Add(ctx, int64(o.Items), metric.WithAttributes(attrs...))
	}
}

// received returns copies of the received items' headers, and how long each item has waited for its first delivery. The
// hook must read the claims before its first call into OpenTelemetry, for the reason of headersOf.
func received(o *layer.Operation) (headers []map[string]string, waited []time.Duration) {
	end := o.Begun.Add(o.Took)
	for _, c := range o.Claims {
		for i := range c.Items {
			item := &c.Items[i]
			headers = append(headers, maps.Clone(item.Headers))
			if item.Attempts > 0 {
				continue
			}
			since := item.Enqueued
			if item.DeliverAt.After(since) {
				since = item.DeliverAt
			}
			waited = append(waited, max(0, end.Sub(since)))
		}
	}
	return headers, waited
}

// link returns a link to the span of the enqueue of an item with these headers.
func (t *Telemetry) link(headers map[string]string) (trace.Link, bool) {
	ctx := t.o.Headers.Extract(context.Background(), propagation.MapCarrier(headers))
	at := trace.SpanContextFromContext(ctx)
	return trace.Link{SpanContext: at}, at.IsValid()
}

// Process wraps the function of worker.Handle: each call is a span, with a link to where the item was enqueued, and its
// time is measured. For the other kinds of handlers call Begin in the function.
func (t *Telemetry) Process(
	h func(ctx context.Context, d *worker.Delivery) error,
) func(ctx context.Context, d *worker.Delivery) error {
	return func(ctx context.Context, d *worker.Delivery) (err error) {
		ctx, end := t.Begin(ctx, d)
		done := false
		defer func() {
			if !done {
				err = errPanic // only for the span: the panic continues
			}
			end(err)
		}()
		err = h(ctx, d)
		done = true
		return err
	}
}

var errPanic = errors.New("the handler has panicked")

// patience is how long a call into OpenTelemetry may take in the goroutine of a handler.
const patience = callback.Shield(500 * time.Millisecond)

// try calls into OpenTelemetry: a tracer, a propagator or a meter, with the functions of the program's that these call.
// It returns false if the call has failed. The caller must then not read the variables that fn writes. While a call
// hangs, try makes no other, so that each handler does not wait for it again. The first failure is reported.
func (t *Telemetry) try(what string, fn func()) bool {
	if t.stuck.Load() > 0 {
		return false
	}
	err := patience.TryCounted(&t.stuck, what, fn)
	if err != nil && !t.told.Swap(true) {
		callback.Report("otelfifo: OpenTelemetry has failed", err)
	}
	return err == nil
}

// Begin begins the span of an item's handling. Call end exactly once, with the error of the handling; nil = handled. If
// OpenTelemetry panics, or does not return in half a second, the span or the measurement is lost, and the handling
// continues.
//
//	worker.HandleTx(func(ctx context.Context, tx kv.Tx, d *worker.Delivery) (err error) {
//		ctx, end := t.Begin(ctx, d)
//		defer func() { end(err) }()
//		…
//	})
func (t *Telemetry) Begin(ctx context.Context, d *worker.Delivery) (inner context.Context, end func(err error)) {
	attrs := []attribute.KeyValue{
		system, semconv.MessagingDestinationName(d.Queue.Name()), semconv.MessagingOperationName("process"),
		semconv.MessagingOperationTypeProcess,
	}
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...),
		trace.WithAttributes(
			semconv.MessagingMessageID(d.ID.String()),
			attribute.String("messaging.fdbfifo.message.group", d.ID.Group),
			attribute.Int64("messaging.fdbfifo.claim.token", d.Token),
			attribute.Int("messaging.fdbfifo.attempt", d.Attempt)),
	}
	inner = ctx
	var within context.Context // only if begun
	var span trace.Span
	headers := maps.Clone(d.Headers) // the handler may change its own while a call into OpenTelemetry is stuck
	begun := t.try("the begin of a span", func() {
		if link, ok := t.link(headers); ok {
			options = append(options, trace.WithLinks(link))
		}
		within, span = t.tracer.Start(ctx, "process "+d.Queue.Name(), options...)
	})
	if begun {
		inner = within
	}
	since := time.Now()
	return inner, func(err error) {
		took := time.Since(since)
		meant, _ := callback.Meant(err) // what the worker takes it for
		err = callback.Sound(meant)
		kind := outcome(ctx, err)
		if begun {
			t.try("the end of a span", func() {
				if err != nil {
					span.SetAttributes(semconv.ErrorTypeKey.String(kind))
					span.SetStatus(codes.Error, short(err.Error()))
				}
				span.End()
			})
		}
		t.try("a measurement", func() {
			t.process.Record(inner, took.Seconds(), metric.WithAttributes(failed(attrs, kind)...))
		})
	}
}

// outcome names the kind of a handler's error in a few words, never the error's own. ctx is the handler's. An error
// after the handler's time is a timeout, whatever it says, because the worker counts it so.
func outcome(ctx context.Context, err error) string {
	var reject *worker.RejectError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errPanic):
		return "panic"
	case errors.As(err, &reject) && reject != nil:
		return "rejected"
	case errors.Is(err, context.DeadlineExceeded), endedByTime(ctx):
		return "timeout"
	}
	return "handler"
}

// endedByTime reports whether the worker has ended a handler's context after the handler's time. The worker's cause
// wraps DeadlineExceeded. A context that ends because a worker is stopped by a deadline has DeadlineExceeded itself.
func endedByTime(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return cause != context.DeadlineExceeded && errors.Is(cause, context.DeadlineExceeded)
}
