package metrics

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"fdbfifo/layer"
	"fdbfifo/worker"
)

// work counts the work of this process's workers on a queue. The exporter's lock guards it.
type work struct {
	lost, takenOver, stuck int64
	// busy is how many items handlers run for, by claim. A batch that fails, or whose claim is lost, ends for all its
	// items, but its event names one item, or none.
	busy        map[claim]int64
	ended       map[string]int64 // by outcome
	well, badly *histogram       // how long handlers took
	did         *operations
	workers     []*worker.Worker // that have not ended, as far as the exporter knows
	served      bool             // there has been a worker
}

// claim names a claim in this process. Claims of two lanes of a group may have one name.
type claim struct {
	group string
	token int64
}

func claimOf(ev worker.Event) claim { return claim{ev.Group, ev.Token} }

// done notes that a handler has finished an item of a claim.
func (w *work) done(c claim) {
	if w.busy[c]--; w.busy[c] <= 0 {
		delete(w.busy, c)
	}
}

// outcomes are how the handling of a message ends, as the label error_type says: "" = well. A panic is a "handler".
var outcomes = []string{"", "handler", "rejected", "timeout"}

// bounds are the upper bounds of the buckets in seconds, those of OpenTelemetry's messaging conventions.
var bounds = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}

// histogram counts durations.
type histogram struct {
	bounds []float64 // upper bounds in seconds, ascending
	counts []int64   // one for each bound, and one above
	sum    float64
	n      int64
}

func newHistogram(bounds []float64) *histogram {
	return &histogram{bounds: bounds, counts: make([]int64, len(bounds)+1)}
}

func (h *histogram) observe(seconds float64) {
	i, _ := slices.BinarySearch(h.bounds, seconds)
	h.counts[i]++
	h.sum += seconds
	h.n++
}

// of returns the work on a queue. e.mu is held.
func (e *Exporter) of(queue string) *work {
	w := e.work[queue]
	if w == nil {
		w = &work{busy: map[claim]int64{}, ended: map[string]int64{}, did: newOperations()}
		w.well, w.badly = newHistogram(bounds), newHistogram(bounds)
		e.work[queue] = w
	}
	return w
}

// AddWorker exports how many goroutines of a worker of the queue are busy and idle, until the worker has ended. A queue
// whose workers have all ended has none.
func (e *Exporter) AddWorker(q *layer.Queue, w *worker.Worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.of(q.Name())
	of.workers, of.served = append(of.workers, w), true
}

// Events returns functions that count, and then call those of next. The caller must put them into the worker.Options of
// each worker.
func (e *Exporter) Events(next worker.Events) worker.Events {
	counting := func(then func(worker.Event), count func(w *work, ev worker.Event)) func(worker.Event) {
		return func(ev worker.Event) {
			e.mu.Lock()
			count(e.of(ev.Queue), ev)
			e.mu.Unlock()
			if then != nil {
				then(ev)
			}
		}
	}
	h := next
	h.TakenOver = counting(next.TakenOver, func(w *work, _ worker.Event) { w.takenOver++ })
	h.Lost = counting(next.Lost, func(w *work, ev worker.Event) {
		delete(w.busy, claimOf(ev))
		w.lost++
	})
	h.Stuck = counting(next.Stuck, func(w *work, _ worker.Event) { w.stuck++ })
	h.Started = counting(next.Started, func(w *work, ev worker.Event) { w.busy[claimOf(ev)]++ })
	h.Done = counting(next.Done, func(w *work, ev worker.Event) {
		w.done(claimOf(ev))
		w.ended[""]++
		w.well.observe(ev.Took.Seconds())
	})
	h.Failed = counting(next.Failed, func(w *work, ev worker.Event) {
		delete(w.busy, claimOf(ev))
		if errors.Is(ev.Err, worker.ErrUncalled) {
			return // no handler has ended
		}
		w.ended[outcome(ev.Err)]++
		w.badly.observe(ev.Took.Seconds())
	})
	return h
}

// outcome names the kind of a handler's error: a few words, never the error's own.
func outcome(err error) string {
	var reject *worker.RejectError
	switch {
	case errors.As(err, &reject) && reject != nil:
		return "rejected"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "handler"
}

func (w *work) print(p *printer, queue string) {
	p.add("fdbfifo_claims_lost_total", float64(w.lost), "queue", queue)
	p.add("fdbfifo_claims_taken_over_total", float64(w.takenOver), "queue", queue)
	p.add("fdbfifo_worker_stuck_total", float64(w.stuck), "queue", queue)
	busy := int64(0)
	for _, n := range w.busy {
		busy += n
	}
	p.add("fdbfifo_worker_busy", float64(busy), "queue", queue)
	if w.served {
		var hands worker.Hands
		w.workers = slices.DeleteFunc(w.workers, func(worker *worker.Worker) bool {
			now := worker.Hands()
			hands.All, hands.Idle = hands.All+now.All, hands.Idle+now.Idle
			return now.Ended
		})
		p.add("fdbfifo_worker_hands", float64(hands.All-hands.Idle), "queue", queue, "state", "busy")
		p.add("fdbfifo_worker_hands", float64(hands.Idle), "queue", queue, "state", "idle")
	}
	for _, o := range outcomes {
		p.add("messaging_client_consumed_messages_total", float64(w.ended[o]), "error_type", o, "queue", queue)
	}
	// The times are counted only for success and failure. One histogram for each outcome would double the series.
	for _, ended := range []struct {
		as string
		h  *histogram
	}{{"", w.well}, {"error", w.badly}} {
		if ended.h.n > 0 {
			ended.h.print(p, "messaging_process_duration_seconds", "error_type", ended.as, "queue", queue)
		}
	}
	w.did.print(p, queue)
}

// print prints the histogram of a name. labels are names and values.
func (h *histogram) print(p *printer, name string, labels ...string) {
	n := int64(0)
	for i, bound := range h.bounds {
		n += h.counts[i]
		le := strconv.FormatFloat(bound, 'g', -1, 64)
		p.line(name, name+"_bucket", float64(n), append(slices.Clone(labels), "le", le)...)
	}
	p.line(name, name+"_bucket", float64(h.n), append(slices.Clone(labels), "le", "+Inf")...)
	p.line(name, name+"_sum", h.sum, labels...)
	p.line(name, name+"_count", float64(h.n), labels...)
}
