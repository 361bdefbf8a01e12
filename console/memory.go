package console

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"fdbfifo/layer"
)

// cache keeps the answers to questions for a short time. So any number of pages costs the database as much as one page.
// It has no poller. The database is read only for a question whose answer is too old.
type cache struct {
	now func() time.Time
	mu  sync.Mutex
	// answers by queue and question; guarded by mu.
	answers map[question]*answer
}

type question struct{ queue, text string }

// answer is the last answer to a question. value, err and at are written before done is closed.
type answer struct {
	done  chan struct{}
	every time.Duration // how old it may be
	value any
	err   error
	at    time.Time
}

// errPanicked is the error of an answer until it is there.
var errPanicked = errors.New("the question has panicked")

// old reports whether the answer is there, and too old to use.
func (a *answer) old(now time.Time) bool {
	select {
	case <-a.done:
		age := now.Sub(a.at)
		// A little less than every, because timers are not exact. A clock that was set back tells no age.
		return age < 0 || age >= a.every-a.every/20 || a.err != nil
	default: // under way
		return false
	}
}

func (c *cache) init(now func() time.Time) { c.now, c.answers = now, map[question]*answer{} }

// get returns the answer to a question, and asks again if the answer is older than every. If another call is already
// asking, get waits for its answer.
func (c *cache) get(
	ctx context.Context, q question, every time.Duration, ask func() (any, error),
) (any, time.Time, error) {
	c.mu.Lock()
	a, now := c.answers[q], c.now()
	mine := a == nil || a.old(now)
	if mine {
		// An answer may have the bodies of messages, so old ones go even if no other call asks their questions.
		maps.DeleteFunc(c.answers, func(_ question, a *answer) bool { return a.old(now) })
		a = &answer{done: make(chan struct{}), every: every, at: now, err: errPanicked}
		c.answers[q] = a
	}
	c.mu.Unlock()
	if mine {
		func() {
			defer close(a.done) // also if Options.Queues panics: other calls wait
			a.value, a.err = ask()
		}()
	}
	select {
	case <-a.done:
		return a.value, a.at, a.err
	case <-ctx.Done():
		return nil, time.Time{}, ctx.Err()
	}
}

// forget drops the answers about a queue, after an action.
func (c *cache) forget(queue string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for q := range c.answers {
		if q.queue == queue {
			delete(c.answers, q)
		}
	}
}

// ask asks a question about a queue through the cache.
func ask[T any](
	c *Console, ctx context.Context, queue, text string, fn func(ctx context.Context, q *layer.Queue) (T, error),
) (T, error) {
	value, _, err := c.cache.get(ctx, question{queue, text}, c.o.Every, func() (any, error) {
		// Not the request's context: others may wait for the answer.
		ctx, cancel := context.WithTimeout(c.ctx, readTimeout)
		defer cancel()
		q, err := c.queue(ctx, queue)
		if err != nil {
			return nil, err
		}
		return fn(ctx, q)
	})
	if err != nil {
		if isGone(err) {
			c.forget(queue)
		}
		var none T
		return none, err
	}
	return value.(T), nil
}

// stats asks for the figures of a queue, and notes them for the charts.
func (c *Console) stats(ctx context.Context, queue string) (layer.Stats, error) {
	return ask(c, ctx, queue, "stats", func(ctx context.Context, q *layer.Queue) (layer.Stats, error) {
		s, err := q.Stats(ctx, layer.StatsOptions{})
		if err == nil {
			c.note(queue, s)
		}
		return s, err
	})
}

// history has the figures of a queue in the last hour, for the times when a page was open.
type history struct{ samples []sample }

type sample struct {
	at                        time.Time
	enqueued, acked, depth    int64
	oldest                    time.Duration
	ready, held, bad, waiting int64
}

const (
	kept       = time.Hour
	maxSamples = 720
)

func (c *Console) note(queue string, s layer.Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.rates[queue]
	if h == nil {
		h = &history{}
		c.rates[queue] = h
	}
	now := c.o.Now()
	h.samples = append(h.samples, sample{
		at: now, enqueued: s.Enqueued, acked: s.Acked + s.Taken, depth: s.Depth, oldest: s.OldestReady,
		ready: s.ReadyGroups, held: s.HeldGroups, bad: s.HaltedGroups + s.PausedGroups + s.FailingGroups,
		waiting: s.WaitingHandles,
	})
	first := 0
	for first < len(h.samples) && now.Sub(h.samples[first].at) > kept {
		first++
	}
	first = max(first, len(h.samples)-maxSamples)
	h.samples = append([]sample(nil), h.samples[first:]...)
}

// history returns the samples of a queue.
func (c *Console) history(queue string) []sample {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.rates[queue]; h != nil {
		return h.samples
	}
	return nil
}
