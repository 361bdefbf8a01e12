package metrics

import (
	"context"
	"maps"
	"slices"
	"time"

	"fdbfifo/layer"
)

// timed are the verbs whose time is measured, each with a histogram of its own. They are the frequent calls of programs
// and workers.
var timed = []layer.Verb{layer.VerbEnqueue, layer.VerbReceive, layer.VerbAck, layer.VerbNack, layer.VerbExtend}

// Upper bounds of buckets, in seconds. They are few: a histogram for each verb of each queue is many series.
var (
	operationBounds = []float64{0.005, 0.025, 0.1, 0.5, 2.5}
	receiveBounds   = []float64{0.1, 1, 10}
	messageBounds   = []float64{0.1, 1, 10, 60, 600, 3600, 86400}
)

// operations counts the operations of this process's handle on a queue. The exporter's lock guards it.
type operations struct {
	took   map[layer.Verb]*histogram
	sent   int64
	failed map[string]int64 // by layer.ErrorKind
	// receives is how long receives with a result have waited. messages is how long messages have waited until their
	// first delivery.
	receives, messages *histogram
}

func newOperations() *operations {
	o := &operations{
		took: map[layer.Verb]*histogram{}, failed: map[string]int64{},
		receives: newHistogram(receiveBounds), messages: newHistogram(messageBounds),
	}
	for _, v := range timed {
		o.took[v] = newHistogram(operationBounds)
	}
	return o
}

// Hook returns a hook that counts the operations of a handle. The caller must put it into the layer.Options of each
// handle. A release counts as a nack. The settlement of SettleReceive is in the receive's time. Operations of other
// processes and the …Tx forms are not counted: the queue's own counters have them.
func (e *Exporter) Hook() layer.Hook {
	return layer.Hook{End: func(_ context.Context, o *layer.Operation) {
		now := e.o.Now()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.of(o.Queue).did.count(o, now)
	}}
}

func (d *operations) count(o *layer.Operation, now time.Time) {
	if o.Err != nil {
		d.failed[layer.ErrorKind(o.Err)]++
	}
	verb := o.Verb
	if verb == layer.VerbRelease {
		verb = layer.VerbNack
	}
	// The wait of a receive does not count as time of the operation. A receive without a result has only waited.
	if h := d.took[verb]; h != nil && !(verb == layer.VerbReceive && o.Err == nil && o.Items == 0) {
		h.observe((o.Took - o.Waited).Seconds())
	}
	switch {
	case o.Err != nil:
	case o.Verb == layer.VerbEnqueue:
		d.sent += int64(o.Items)
	case o.Verb == layer.VerbReceive && o.Items > 0:
		d.receives.observe(o.Waited.Seconds())
		for _, c := range o.Claims {
			for i := range c.Items {
				if item := &c.Items[i]; item.Attempts == 0 {
					d.messages.observe(max(0, now.Sub(latest(item.Enqueued, item.DeliverAt)).Seconds()))
				}
			}
		}
	}
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (d *operations) print(p *printer, queue string) {
	for _, v := range timed {
		if h := d.took[v]; h.n > 0 {
			h.print(p, "messaging_client_operation_duration_seconds",
				"messaging_operation_name", string(v), "queue", queue)
		}
	}
	p.add("messaging_client_sent_messages_total", float64(d.sent), "queue", queue)
	for _, kind := range slices.Sorted(maps.Keys(d.failed)) {
		p.add("fdbfifo_operations_failed_total", float64(d.failed[kind]), "error_type", kind, "queue", queue)
	}
	d.receives.print(p, "fdbfifo_receive_wait_duration_seconds", "queue", queue)
	d.messages.print(p, "fdbfifo_message_wait_duration_seconds", "queue", queue)
}
