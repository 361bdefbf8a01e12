package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"fdbfifo/layer"
)

// The sizes that all benchmarks share.
const (
	batch    = 10   // items of an enqueue, a claim and an ack
	bodySize = 100  // bytes
	perLoad  = 1000 // items of an enqueue that fills a queue
)

// queue is the queue under measurement, with an account of what should be in it.
type queue struct {
	*layer.Queue
	env  Env
	left atomic.Int64 // items enqueued and not acked
	held atomic.Int64 // groups under a claim
}

func newQueue(ctx context.Context, env Env, s Space, name string) (*queue, error) {
	q, err := layer.Create(ctx, s.DB, s.Prefix, name, layer.Options{})
	if err != nil {
		return nil, err
	}
	return &queue{Queue: q, env: env}, nil
}

// groupName is the nth group. The names are of one length, so that all keys are.
func groupName(n int) string { return fmt.Sprintf("group-%06d", n) }

// messages returns n messages of the group.
func messages(group string, n int) []layer.Message {
	body := make([]byte, bodySize)
	m := make([]layer.Message, n)
	for i := range m {
		m[i] = layer.Message{Group: group, Body: body}
	}
	return m
}

func (q *queue) enqueue(ctx context.Context, m ...layer.Message) error {
	_, err := q.Enqueue(ctx, m...)
	if err == nil {
		q.left.Add(int64(len(m)))
	}
	return err
}

// load fills groups first, first+1, … with so many items each, some of every group in turn.
func (q *queue) load(ctx context.Context, first, groups, each int) error {
	total, done := groups*each, 0
	var pending []layer.Message
	flush := func() error {
		if err := q.enqueue(ctx, pending...); err != nil {
			return fmt.Errorf("load: %w", err)
		}
		done += len(pending)
		pending = pending[:0]
		q.env.progress("loading", done, total)
		return nil
	}
	const turn = perLoad / 10 // items of one group
	for from := 0; from < each; from += turn {
		n := min(turn, each-from)
		for g := range groups {
			if len(pending)+n > perLoad {
				if err := flush(); err != nil {
					return err
				}
			}
			pending = append(pending, messages(groupName(first+g), n)...)
		}
	}
	return flush()
}

// hold claims all that is ready and keeps it.
func (q *queue) hold(ctx context.Context) error {
	for {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: layer.MaxBatch, Lease: layer.MaxLease})
		if err != nil {
			return fmt.Errorf("hold: %w", err)
		}
		if len(claims) == 0 {
			return nil
		}
		q.held.Add(int64(len(claims)))
	}
}

// receive claims up to a batch of items.
func (q *queue) receive(ctx context.Context) ([]*layer.Claim, error) {
	return q.Receive(ctx, layer.ReceiveOptions{Max: batch})
}

// ack finishes the claims and returns how many items they had.
func (q *queue) ack(ctx context.Context, claims []*layer.Claim) (items int, err error) {
	for _, c := range claims {
		if err := q.Ack(ctx, c); err != nil {
			return items, err
		}
		items += len(c.Items)
		q.left.Add(-int64(len(c.Items)))
	}
	return items, nil
}

// errWrong is a queue that did not do what it was measured for.
var errWrong = errors.New("the queue is wrong")

// verify holds the queue to the account and to its own rules.
func (q *queue) verify(ctx context.Context) error {
	report, err := q.Admin().Check(ctx, layer.CheckOptions{
		Progress: func(keys int64) { q.env.progress("verifying", int(keys), -1) },
	})
	if err != nil {
		return err
	}
	switch {
	case len(report.Violations) > 0:
		return fmt.Errorf("%w: %s, and %d more", errWrong, report.Violations[0], len(report.Violations)-1)
	case report.Items != q.left.Load():
		return fmt.Errorf("%w: it has %d items, should be %d", errWrong, report.Items, q.left.Load())
	case report.Held != q.held.Load():
		return fmt.Errorf("%w: %d groups are held, should be %d", errWrong, report.Held, q.held.Load())
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
