package sqs

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

const (
	// deadEvery is how often the server moves the dead letters of queues in use, and deadPage how many in a
	// transaction.
	deadEvery = time.Second
	deadPage  = 50
)

// A message that was received too often is a dead letter of its queue first, in the transaction that finds so. From
// there the server moves it to the dead letter queue, in a transaction of its own: once each second for queues in
// use, and before each receive from the dead letter queue, so nobody who receives there can see the difference.

// moveAllDead moves the dead letters of the queues in use.
func (s *Server) moveAllDead(ctx context.Context) error {
	var failed []error
	for _, name := range s.inUse() {
		failed = append(failed, s.moveDead(ctx, name))
	}
	return errors.Join(failed...)
}

// inUse are the open queues with a dead letter queue that are, or were just now, in use.
func (s *Server) inUse() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, o := range s.queues {
		if o.record.deadLetterQueue() != "" && (o.users > 0 || time.Since(o.used) < 2*deadEvery) {
			names = append(names, name)
		}
	}
	return names
}

// moveDead moves the dead letters of a queue to its dead letter queue. Without one they stay.
func (s *Server) moveDead(ctx context.Context, source string) error {
	from, err := s.open(ctx, source)
	if errors.Is(err, layer.ErrNoQueue) || isNoQueue(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer from.release()
	dead := from.record.deadLetterQueue()
	if dead == "" {
		return nil
	}
	for {
		letters, err := from.Admin().DeadLetters(ctx, layer.DeadOptions{Limit: deadPage, Bodies: true})
		if err != nil || len(letters.Letters) == 0 {
			return ignoreNoQueue(err)
		}
		moved, err := s.movePage(ctx, from, dead, letters.Letters)
		if err != nil || !moved || letters.Next == nil {
			return ignoreNoQueue(err)
		}
	}
}

func isNoQueue(err error) bool {
	var e *apiError
	return errors.As(err, &e) && e.code == noQueue().code
}

// ignoreNoQueue is err, unless that says that a queue has gone meanwhile.
func ignoreNoQueue(err error) error {
	if isNoQueue(err) || errors.Is(err, layer.ErrNoQueue) {
		return nil
	}
	return err
}

// movePage moves letters in one transaction. It reports false if another server has moved them, or the dead letter
// queue does not exist: then they stay.
func (s *Server) movePage(ctx context.Context, from *queue, dead string, letters []layer.DeadLetter) (bool, error) {
	to, err := s.open(ctx, dead)
	if err != nil {
		return false, ignoreNoQueue(err)
	}
	defer to.release()
	ids, messages := make([]layer.ID, len(letters)), make([]layer.Message, len(letters))
	for i, l := range letters {
		ids[i] = l.ID
		messages[i] = moved(from, to, layer.Item{
			ID: l.ID, Body: l.Body, Headers: l.Headers, Enqueued: l.Enqueued, DedupID: l.DedupID, Attempts: l.Attempts,
		})
		messages[i].Headers[headerSource] = from.Name()
	}
	err = from.Once(ctx, func(tx kv.Tx) error {
		if err := from.Admin().DiscardTx(ctx, tx, ids...); err != nil {
			return err
		}
		_, err := to.EnqueueTx(ctx, tx, messages...)
		return err
	})
	if errors.Is(err, layer.ErrNotDead) {
		return false, nil
	}
	return err == nil, err
}

// moved is a message of one queue as it goes to another: its id, its receives and, between standard queues, the
// time of its sending stay.
func moved(from, to *queue, item layer.Item) layer.Message {
	m := load(item)
	headers := maps.Clone(item.Headers)
	if headers == nil {
		headers = make(map[string]string)
	}
	headers[headerID] = m.id()
	headers[headerReceived] = strconv.Itoa(m.receives())
	out := layer.Message{Body: item.Body, Headers: headers, AtOnce: true}
	if !to.fifo() {
		headers[headerSent] = strconv.FormatInt(m.sent(), 10)
		out.Alone = true
		return out
	}
	delete(headers, headerSent)
	out.Group, out.DedupID = item.ID.Group, m.id()
	if !from.fifo() {
		out.Group = m.id()
	}
	return out
}
