// Package herd simulates more handles of one queue than a machine has processes, in virtual time, on an engine in
// memory made as slow as a cluster. The counts show the queue's own rules: where handles look, and which handles
// conflict. The simulation assumes that a cluster keeps these latencies under such a load.
//
// Virtual time is that of testing/synctest, so the tests of the package are the command: make handles.
package herd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// Options say what is simulated.
type Options struct {
	Handles, Workers int // workers of each handle, which receive, work and ack with the next receive
	Groups, Items    int // items that stand in each group at the beginning
	Shards           int
	Work             time.Duration // of a claim of one item, on the average
	Time             time.Duration // that is counted, after a time in which the handles get under way
}

// Result is what the handles did in the time that is counted.
type Result struct {
	Claims, Conflicts, Looks, Transactions, Reads int64
	Least, Most                                   float64 // claims of a handle, over the mean
	Starved                                       int     // handles with less than a third of the mean
}

// PerClaim is n over the number of claims.
func (r Result) PerClaim(n int64) float64 { return float64(n) / float64(max(r.Claims, 1)) }

var (
	errDone  = errors.New("the time is over")
	errWrong = errors.New("the queue did wrong")
)

const (
	queueName  = "herd"
	batchItems = 1000 // of an enqueue of the load
)

// herd is the handles at work.
type herd struct {
	o       Options
	ctx     context.Context
	stop    context.CancelCauseFunc
	handles []*layer.Queue
	claims  []atomic.Int64 // by handle
	acked   atomic.Int64
	workers sync.WaitGroup
}

// Run simulates, and verifies the queue afterwards. Run must be called in a bubble of testing/synctest, and db made
// there.
func Run(outer context.Context, db kv.DB, o Options) (r Result, err error) {
	config := layer.Config{Shards: o.Shards}
	q, err := layer.Create(outer, db, nil, queueName, layer.Options{Config: config}) // without latency
	if err != nil {
		return r, err
	}
	if err := load(outer, q, o); err != nil {
		return r, err
	}
	counting := record.WrapCounting(&slowDB{db, clusterLatency})
	h := &herd{o: o, claims: make([]atomic.Int64, o.Handles)}
	h.ctx, h.stop = context.WithCancelCause(outer)
	defer h.stop(errDone)
	for n := range o.Handles {
		handle, err := layer.Open(outer, counting, nil, queueName, layer.Options{Owner: fmt.Sprint("h", n)})
		if err != nil {
			return r, err
		}
		h.handles = append(h.handles, handle)
	}
	h.begin()
	err = sleep(h.ctx, 2*o.Work)
	before, claimsBefore, looksBefore := counting.Counters(), h.counts(), h.looks()
	if err == nil {
		err = sleep(h.ctx, o.Time)
	}
	counted := counting.Counters().Sub(before)
	r = shares(claimsBefore, h.counts())
	r.Conflicts, r.Reads, r.Looks = counted.Conflicts, counted.Reads, h.looks()-looksBefore
	r.Transactions = counted.Commits + counted.Conflicts + counted.Failures
	h.stop(errDone)
	h.workers.Wait()
	if cause := context.Cause(h.ctx); !errors.Is(cause, errDone) {
		err = errors.Join(err, cause)
	}
	for _, handle := range h.handles {
		err = errors.Join(err, handle.Close(outer))
	}
	return r, errors.Join(err, h.verify(outer, q), q.Close(outer))
}

func load(ctx context.Context, q *layer.Queue, o Options) error {
	var msgs []layer.Message
	for n := range o.Groups * o.Items {
		msgs = append(msgs, layer.Message{Group: fmt.Sprint("g", n%o.Groups), Body: make([]byte, 100)})
		if len(msgs) == batchItems || n == o.Groups*o.Items-1 {
			if _, err := q.Enqueue(ctx, msgs...); err != nil {
				return err
			}
			msgs = msgs[:0]
		}
	}
	return nil
}

// verify checks the queue's invariants, and compares its content with the acked messages.
func (h *herd) verify(ctx context.Context, q *layer.Queue) error {
	report, err := q.Admin().Check(ctx, layer.CheckOptions{})
	if err != nil {
		return err
	}
	if len(report.Violations) > 0 {
		return fmt.Errorf("%w: %v", errWrong, report.Violations[0])
	}
	if all := int64(h.o.Groups * h.o.Items); report.Items+h.acked.Load() != all {
		return fmt.Errorf("%w: %d items left and %d acked of %d", errWrong, report.Items, h.acked.Load(), all)
	}
	return nil
}

// begin starts the workers, not all at the same moment.
func (h *herd) begin() {
	for n, handle := range h.handles {
		for range h.o.Workers {
			h.workers.Go(func() {
				if sleep(h.ctx, below(h.o.Work)) == nil {
					if err := h.work(n, handle); err != nil {
						h.stop(err)
					}
				}
			})
		}
	}
}

// work receives one item after the other, works on it, and acks it with the receive of the next, until the time is
// over. These calls are not cut off at the end, so that no group stays held.
func (h *herd) work(n int, handle *layer.Queue) error {
	ctx, o := context.WithoutCancel(h.ctx), layer.ReceiveOptions{Max: 1, Wait: time.Second}
	claims, err := handle.Receive(ctx, o)
	for err == nil && h.ctx.Err() == nil {
		if len(claims) == 0 {
			claims, err = handle.Receive(ctx, o)
			continue
		}
		h.claims[n].Add(1)
		_ = sleep(h.ctx, h.o.Work/2+below(h.o.Work)) // no work is left undone at the end
		if claims, err = handle.SettleReceive(ctx, layer.Settlement{Claim: claims[0], FinishAll: true}, o); err == nil {
			h.acked.Add(1)
		}
	}
	if err == nil && len(claims) > 0 { // received as the time was over
		if err = handle.Ack(ctx, claims[0]); err == nil {
			h.acked.Add(1)
		}
	}
	return err
}

func (h *herd) looks() (n int64) {
	for _, handle := range h.handles {
		n += handle.Paths().Looks
	}
	return n
}

func (h *herd) counts() []int64 {
	counts := make([]int64, len(h.claims))
	for n := range h.claims {
		counts[n] = h.claims[n].Load()
	}
	return counts
}

// shares compares what the handles claimed between two counts.
func shares(before, after []int64) (r Result) {
	for n := range after {
		r.Claims += after[n] - before[n]
	}
	mean := max(float64(r.Claims)/float64(len(after)), 1)
	r.Least = 1
	for n := range after {
		share := float64(after[n]-before[n]) / mean
		r.Least, r.Most = min(r.Least, share), max(r.Most, share)
		if share < 1.0/3 {
			r.Starved++
		}
	}
	return r
}
